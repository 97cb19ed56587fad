//! Real API servers with their etcd on loopback, where `KUBEBUILDER_ASSETS` names the binaries.
#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::Instant;

/// How long a server may take to become ready on a busy machine.
const READY_WAIT: Duration = Duration::from_secs(90);

/// Starts with other ports, should somebody have taken one between asking for it and using it.
const STARTS_MAX: usize = 3;

const TOKEN: &str = "admin-token";

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// kube-apiserver v1.20.2, over TLS.
    V1_20,
    /// The 1.36 API server libraries in a small main, over plain HTTP.
    V1_36,
}

/// Settings that tests change.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// etcd compaction interval, as Go writes durations.
    pub(crate) compact: String,
    /// Seconds; watches without a timeout last once to twice this.
    pub(crate) min_request_timeout: u32,
    /// More flags for the API server.
    pub(crate) flags: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { compact: "5m0s".into(), min_request_timeout: 1800, flags: Vec::new() }
    }
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    etcd: u16,
    etcd_peer: u16,
    https: u16,
    http: u16,
}

/// A running API server with its etcd; dropping it kills both and removes their data.
#[derive(Debug)]
pub(crate) struct Envtest {
    version: Version,
    options: Options,
    assets: PathBuf,
    ports: Ports,
    data: tempfile::TempDir,
    etcd: Child,
    api_server: Option<Child>,
}

impl Envtest {
    /// Starts a server and waits until it is ready; `None`, with a line that says so, where there are no binaries.
    ///
    /// # Panics
    /// If the binaries are there and no server comes up: that is a failed test, not a skipped one.
    pub(crate) async fn start(version: Version, options: Options) -> Option<Self> {
        let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
        let found = assets.filter(|dir| dir.join(binary(version)).is_file() && dir.join("etcd").is_file());
        let Some(assets) = found else {
            let name = binary(version);
            println!("skipped: no {name} and etcd here, set KUBEBUILDER_ASSETS to the folder that has them");
            return None;
        };
        for _ in 1..STARTS_MAX {
            if let Ok(server) = Self::try_start(version, options.clone(), assets.clone()).await {
                return Some(server);
            }
        }
        Some(Self::try_start(version, options, assets).await.unwrap())
    }

    async fn try_start(version: Version, options: Options, assets: PathBuf) -> Result<Self, String> {
        let data = tempfile::tempdir().unwrap();
        let ports = free_ports();
        prepare(version, data.path(), ports).await;
        let etcd = spawn_etcd(&assets, data.path(), ports);
        let mut server = Self { version, options, assets, ports, data, etcd, api_server: None };
        server.wait_for_etcd().await?;
        server.try_start_api_server().await?;
        Ok(server)
    }

    /// Where the API server listens: `https://…` for 1.20, `http://…` for 1.36.
    pub(crate) fn url(&self) -> String {
        url(self.version, self.ports)
    }

    /// A bearer token that may do everything.
    pub(crate) fn token(&self) -> &'static str {
        TOKEN
    }

    /// A kubeconfig for clients of any kind.
    pub(crate) fn kubeconfig_path(&self) -> PathBuf {
        self.data.path().join("kubeconfig")
    }

    /// Where etcd listens.
    pub(crate) fn etcd_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.etcd)
    }

    /// Kills the API server as a crash does; its data stays.
    pub(crate) async fn kill_api_server(&mut self) {
        if let Some(mut child) = self.api_server.take() {
            child.kill().await.unwrap();
        }
    }

    /// Starts the API server again on the same ports and data.
    ///
    /// # Panics
    /// If it does not become ready.
    pub(crate) async fn start_api_server(&mut self) {
        self.try_start_api_server().await.unwrap();
    }

    /// Kills both processes and removes their data; dropping does the same without waiting.
    pub(crate) async fn stop(mut self) {
        self.kill_api_server().await;
        self.etcd.kill().await.unwrap();
    }

    async fn try_start_api_server(&mut self) -> Result<(), String> {
        let mut child = self.spawn_api_server();
        let client = client(&self.kubeconfig_path()).await;
        let deadline = Instant::now() + READY_WAIT;
        loop {
            let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
            let asked = tokio::time::timeout(Duration::from_secs(5), client.request_text(request)).await;
            if matches!(asked, Ok(Ok(text)) if text == "ok") {
                self.api_server = Some(child);
                return Ok(());
            }
            if let Some(status) = child.try_wait().unwrap() {
                return Err(format!("the API server ended with {status}: {}", self.tail("apiserver.log")));
            }
            if Instant::now() > deadline {
                return Err(format!("the API server is not ready: {}", self.tail("apiserver.log")));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn wait_for_etcd(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + READY_WAIT;
        while tokio::net::TcpStream::connect(("127.0.0.1", self.ports.etcd)).await.is_err() {
            if let Some(status) = self.etcd.try_wait().unwrap() {
                return Err(format!("etcd ended with {status}: {}", self.tail("etcd.log")));
            }
            if Instant::now() > deadline {
                return Err(format!("etcd does not listen: {}", self.tail("etcd.log")));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    fn spawn_api_server(&self) -> Child {
        let path = |name: &str| self.data.path().join(name).display().to_string();
        let mut command = Command::new(self.assets.join(binary(self.version)));
        command
            .arg(format!("--etcd-servers={}", self.etcd_url()))
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--secure-port={}", self.ports.https))
            .arg(format!("--cert-dir={}", path("certs")))
            .arg(format!("--etcd-compaction-interval={}", self.options.compact))
            .arg(format!("--min-request-timeout={}", self.options.min_request_timeout));
        match self.version {
            Version::V1_20 => command
                .arg("--advertise-address=127.0.0.1")
                .arg("--insecure-port=0")
                .arg(format!("--token-auth-file={}", path("tokens.csv")))
                .arg("--authorization-mode=AlwaysAllow")
                .arg("--service-account-issuer=https://kubernetes.default.svc")
                .arg(format!("--service-account-signing-key-file={}", path("sa.key")))
                .arg(format!("--service-account-key-file={}", path("sa.key")))
                .arg("--service-cluster-ip-range=10.0.0.0/24")
                .arg("--disable-admission-plugins=ServiceAccount")
                .arg("--endpoint-reconciler-type=none"),
            Version::V1_36 => command
                .env("CRDSERVER_TOKENS", "/dev/null")
                .arg(format!("--http-port={}", self.ports.http))
                .arg("--auth=off")
                .arg("--feature-gates=WatchList=true"),
        };
        command.args(&self.options.flags);
        spawn(command, &self.data.path().join("apiserver.log"))
    }

    /// The last lines of a log, for the message of a failure.
    fn tail(&self, log: &str) -> String {
        let text = std::fs::read_to_string(self.data.path().join(log)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

fn binary(version: Version) -> &'static str {
    match version {
        Version::V1_20 => "kube-apiserver",
        Version::V1_36 => "kube-apiserver-1.36-mini",
    }
}

fn url(version: Version, ports: Ports) -> String {
    match version {
        Version::V1_20 => format!("https://127.0.0.1:{}", ports.https),
        Version::V1_36 => format!("http://127.0.0.1:{}", ports.http),
    }
}

/// Four ports that are free now. All are held until all are known, so that they differ.
fn free_ports() -> Ports {
    let listeners: Vec<std::net::TcpListener> =
        (0..4).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let port = |at: usize| listeners[at].local_addr().unwrap().port();
    Ports { etcd: port(0), etcd_peer: port(1), https: port(2), http: port(3) }
}

/// Writes what the server reads at its start, and the kubeconfig.
async fn prepare(version: Version, data: &Path, ports: Ports) {
    if version == Version::V1_20 {
        let key = data.join("sa.key");
        let mut openssl = Command::new("openssl");
        openssl.args(["genrsa", "-out"]).arg(&key).arg("2048").stderr(Stdio::null());
        assert!(openssl.status().await.unwrap().success(), "openssl made no key");
        std::fs::write(data.join("tokens.csv"), format!("{TOKEN},admin,1,\"system:masters\"\n")).unwrap();
    }
    let server = url(version, ports);
    let verify = if version == Version::V1_20 { "\n    insecure-skip-tls-verify: true" } else { "" };
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster:\n    server: {server}{verify}\nusers:\n- name: u\n  \
         user:\n    token: {TOKEN}\ncontexts:\n- name: c\n  context:\n    cluster: c\n    user: u\n    namespace: default\n\
         current-context: c\n"
    );
    std::fs::write(data.join("kubeconfig"), kubeconfig).unwrap();
}

fn spawn_etcd(assets: &Path, data: &Path, ports: Ports) -> Child {
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let mut command = Command::new(assets.join("etcd"));
    command
        .args(["--name", "s1", "--unsafe-no-fsync", "--data-dir"])
        .arg(data.join("etcd"))
        .args(["--listen-client-urls", &url(ports.etcd), "--advertise-client-urls", &url(ports.etcd)])
        .args([
            "--listen-peer-urls",
            &url(ports.etcd_peer),
            "--initial-advertise-peer-urls",
            &url(ports.etcd_peer),
        ])
        .args(["--initial-cluster", &format!("s1={}", url(ports.etcd_peer))]);
    spawn(command, &data.join("etcd.log"))
}

fn spawn(mut command: Command, log: &Path) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// A client for raw requests, from a kubeconfig file.
pub(crate) async fn client(kubeconfig: &Path) -> kube::Client {
    let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    // These tests want to see every answer.
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}
