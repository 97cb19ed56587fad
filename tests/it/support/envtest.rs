//! Real API servers with their etcd on loopback, if `KUBEBUILDER_ASSETS` names the folder of the binaries.
#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::port::Port;

/// Longest time until a server is ready on a busy machine.
const READY_WAIT: Duration = Duration::from_secs(180);

const TOKEN: &str = "admin-token";

/// The token of the user `informerd` at the start.
pub(crate) const FIRST_TOKEN: &str = "first-token";

/// The version of a server.
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
    /// etcd's compaction interval, as a Go duration.
    pub(crate) compact: String,
    /// Seconds. A watch without a timeout lasts once to twice this.
    pub(crate) min_request_timeout: u32,
    /// Further flags of the API server.
    pub(crate) flags: Vec<String>,
    /// TLS with a verified certificate, users by token, and permissions: RBAC in 1.20; in 1.36 all or nothing, by the
    /// user's role.
    pub(crate) guarded: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { compact: "5m0s".into(), min_request_timeout: 1800, flags: Vec::new(), guarded: false }
    }
}

/// A process of the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Process {
    Etcd,
    ApiServer,
    /// A second API server on the same etcd.
    Peer,
}

#[derive(Debug)]
struct Ports {
    etcd: Port,
    etcd_peer: Port,
    https: Port,
    http: Port,
    peer_https: Port,
    peer_http: Port,
}

impl Ports {
    /// Holds all ports until nothing of the server is left, so that it restarts on the same ones.
    fn hold() -> Self {
        Self {
            etcd: Port::hold(),
            etcd_peer: Port::hold(),
            https: Port::hold(),
            http: Port::hold(),
            peer_https: Port::hold(),
            peer_http: Port::hold(),
        }
    }
}

/// A running API server with its etcd. Dropping it kills both and removes their data.
#[derive(Debug)]
pub(crate) struct Envtest {
    version: Version,
    /// For the next start of an API server.
    pub(crate) options: Options,
    assets: PathBuf,
    ports: Box<Ports>,
    data: tempfile::TempDir,
    etcd: Option<Child>,
    api_server: Option<Child>,
    peer: Option<Child>,
}

impl Envtest {
    /// Starts a server and waits until it is ready; `None`, with a `skipped:` line, if the binaries are missing or the server is of
    /// another version.
    ///
    /// # Panics
    /// If the binaries exist and no server starts: the test must fail then, not be skipped.
    pub(crate) async fn start(version: Version, options: Options) -> Option<Self> {
        let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
        let found = assets.filter(|dir| dir.join(binary(version)).is_file() && dir.join("etcd").is_file());
        let Some(assets) = found else {
            let name = binary(version);
            println!("skipped: no {name} and etcd here, set KUBEBUILDER_ASSETS to the folder that has them");
            return None;
        };
        if let Some(other) = other_version(version, &assets).await {
            println!(
                "skipped: the kube-apiserver of KUBEBUILDER_ASSETS is {other}, and this test needs one of 1.20"
            );
            return None;
        }
        Some(Self::try_start(version, options, assets).await.unwrap())
    }

    async fn try_start(version: Version, options: Options, assets: PathBuf) -> Result<Self, String> {
        let data = tempfile::tempdir().unwrap();
        let ports = Box::new(Ports::hold());
        let (etcd, api_server, peer) = (None, None, None);
        let mut server = Self { version, options, assets, ports, data, etcd, api_server, peer };
        server.prepare().await;
        server.launch(Process::Etcd);
        server.wait_for_etcd().await?;
        server.launch(Process::ApiServer);
        server.wait_for_api_server().await?;
        Ok(server)
    }

    /// The URL of the API server: `https://…` for 1.20, `http://…` for 1.36 unless it is guarded.
    pub(crate) fn url(&self) -> String {
        self.url_at(self.address(Process::ApiServer))
    }

    /// The URL of the API server at another address, such as a proxy's.
    pub(crate) fn url_at(&self, address: SocketAddr) -> String {
        let scheme = if self.is_tls() { "https" } else { "http" };
        format!("{scheme}://{address}")
    }

    /// The address of a process.
    pub(crate) fn address(&self, process: Process) -> SocketAddr {
        let port = match (process, self.is_tls()) {
            (Process::Etcd, _) => &self.ports.etcd,
            (Process::ApiServer, true) => &self.ports.https,
            (Process::ApiServer, false) => &self.ports.http,
            (Process::Peer, true) => &self.ports.peer_https,
            (Process::Peer, false) => &self.ports.peer_http,
        };
        port.address
    }

    fn is_tls(&self) -> bool {
        self.version == Version::V1_20 || self.options.guarded
    }

    /// A bearer token of an administrator.
    pub(crate) fn token(&self) -> &'static str {
        TOKEN
    }

    /// A kubeconfig of the administrator.
    pub(crate) fn kubeconfig_path(&self) -> PathBuf {
        self.file("kubeconfig")
    }

    /// Writes another kubeconfig, for the server at another address; `user` is the line that authenticates.
    pub(crate) fn write_kubeconfig(&self, name: &str, address: SocketAddr, user: &str) -> PathBuf {
        let server = self.url_at(address);
        let verify = match (self.options.guarded, self.is_tls()) {
            (true, _) => format!("\n    certificate-authority: {}", self.file("ca.crt").display()),
            (false, true) => "\n    insecure-skip-tls-verify: true".to_owned(),
            (false, false) => String::new(),
        };
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster:\n    server: {server}{verify}\nusers:\n- name: u\n  \
             user:\n    {user}\ncontexts:\n- name: c\n  context:\n    cluster: c\n    user: u\n    namespace: default\n\
             current-context: c\n"
        );
        let path = self.file(name);
        std::fs::write(&path, kubeconfig).unwrap();
        path
    }

    /// The path of a file beside the servers' data, which is removed with it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.data.path().join(name)
    }

    /// The URL of etcd.
    pub(crate) fn etcd_url(&self) -> String {
        format!("http://{}", self.address(Process::Etcd))
    }

    /// Kills the API server as a crash does; its data stays.
    pub(crate) async fn kill_api_server(&mut self) {
        self.kill(Process::ApiServer).await;
    }

    /// Starts the API server again on the same ports and data.
    ///
    /// # Panics
    /// If it does not become ready.
    pub(crate) async fn start_api_server(&mut self) {
        self.launch(Process::ApiServer);
        self.wait_for_api_server().await.unwrap();
    }

    /// Kills a process by SIGKILL: it loses its memory and keeps its data.
    pub(crate) async fn kill(&mut self, process: Process) {
        if let Some(mut child) = self.child(process).take() {
            child.kill().await.unwrap();
        }
    }

    /// Starts a process on its ports and data, without waiting until it is ready.
    pub(crate) fn launch(&mut self, process: Process) {
        let etcd = self.etcd_url();
        let child = match process {
            Process::Etcd => self.spawn_etcd(),
            Process::ApiServer => self.spawn_api_server(Process::ApiServer, &etcd),
            Process::Peer => self.spawn_api_server(Process::Peer, &etcd),
        };
        assert!(self.child(process).replace(child).is_none(), "{process:?} runs already");
    }

    /// Starts the second API server, with etcd at this address.
    pub(crate) fn launch_peer(&mut self, etcd: SocketAddr) {
        let child = self.spawn_api_server(Process::Peer, &format!("http://{etcd}"));
        assert!(self.peer.replace(child).is_none(), "it runs already");
    }

    /// Stops a process by SIGSTOP: it answers nothing, and its connections stay open.
    pub(crate) async fn pause(&mut self, process: Process) {
        self.signal(process, "-STOP").await;
    }

    /// Lets a stopped process go on, by SIGCONT.
    pub(crate) async fn resume(&mut self, process: Process) {
        self.signal(process, "-CONT").await;
    }

    async fn signal(&mut self, process: Process, signal: &str) {
        let id = self.child(process).as_ref().and_then(Child::id).expect("it runs");
        let sent = Command::new("kill").arg(signal).arg(id.to_string()).status().await.unwrap();
        assert!(sent.success(), "no signal to {process:?}");
    }

    fn child(&mut self, process: Process) -> &mut Option<Child> {
        match process {
            Process::Etcd => &mut self.etcd,
            Process::ApiServer => &mut self.api_server,
            Process::Peer => &mut self.peer,
        }
    }

    /// Compacts etcd up to the newest revision. API servers answer requests for earlier ones with 410.
    pub(crate) async fn compact(&self) {
        let client = kube::Client::try_from(kube::Config::new(self.etcd_url().parse().unwrap())).unwrap();
        let ask = async |path: &str, body: Value| -> Value {
            let request = http::Request::post(path).body(body.to_string().into_bytes()).unwrap();
            serde_json::from_str(&client.request_text(request).await.unwrap()).unwrap()
        };
        let status = ask("/v3/kv/range", json!({"key": "AA=="})).await;
        ask("/v3/kv/compaction", json!({"revision": status["header"]["revision"], "physical": true})).await;
    }

    /// Copies etcd's data as a backup. etcd must not run.
    pub(crate) async fn save_etcd(&self) {
        self.copy_etcd("etcd", "etcd.saved").await;
    }

    /// Replaces etcd's data by the backup. etcd must not run.
    pub(crate) async fn restore_etcd(&self) {
        std::fs::remove_dir_all(self.file("etcd")).unwrap();
        self.copy_etcd("etcd.saved", "etcd").await;
    }

    async fn copy_etcd(&self, from: &str, to: &str) {
        assert!(self.etcd.is_none(), "etcd must not run during a copy");
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(self.file(from)).arg(self.file(to));
        assert!(copy.status().await.unwrap().success(), "etcd's data was not copied");
    }

    /// Sets the token of the user `informerd` and, for 1.36, whether the user may do everything; in 1.20 RBAC decides
    /// that. An API server of 1.20 reads the file at its start, one of 1.36 at each request.
    pub(crate) fn write_user(&self, token: &str, is_allowed: bool) {
        let users = match (self.version, is_allowed) {
            (Version::V1_20, _) => format!("{TOKEN},admin,1,\"system:masters\"\n{token},informerd,2\n"),
            (Version::V1_36, true) => format!("{TOKEN},admin,admin\n{token},informerd,admin\n"),
            (Version::V1_36, false) => format!("{TOKEN},admin,admin\n{token},informerd,none\n"),
        };
        // Replaced by a rename: an API server that read half a file would refuse every request.
        std::fs::write(self.file("tokens.new"), users).unwrap();
        std::fs::rename(self.file("tokens.new"), self.file("tokens.csv")).unwrap();
    }

    /// Writes another serving certificate and key of the same authority. The API server reads them at its next start
    /// at the latest.
    pub(crate) async fn renew_certificate(&self) {
        let ca = [self.file("ca.crt"), self.file("ca.key")];
        let mut command = openssl_certificate(&self.file("server.crt"), &self.file("server.key"));
        command.arg("-CA").arg(&ca[0]).arg("-CAkey").arg(&ca[1]).args(["-subj", "/CN=kube-apiserver"]);
        command.args(["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"]);
        assert!(command.status().await.unwrap().success(), "openssl made no certificate");
    }

    /// Kills all processes and removes their data; dropping does the same without waiting.
    pub(crate) async fn stop(mut self) {
        for process in [Process::Peer, Process::ApiServer, Process::Etcd] {
            self.kill(process).await;
        }
    }

    /// Waits until the API server says that it is ready.
    ///
    /// # Errors
    /// What it logged last, when it ended or took too long.
    pub(crate) async fn wait_for_api_server(&mut self) -> Result<(), String> {
        let client = client(&self.kubeconfig_path()).await;
        self.wait_until_ready(Process::ApiServer, &client).await
    }

    /// Waits until the second API server says that it is ready.
    pub(crate) async fn wait_for_peer(&mut self) -> Result<(), String> {
        let user = format!("token: {TOKEN}");
        let kubeconfig = self.write_kubeconfig("kubeconfig.peer", self.address(Process::Peer), &user);
        self.wait_until_ready(Process::Peer, &client(&kubeconfig).await).await
    }

    async fn wait_until_ready(&mut self, process: Process, client: &kube::Client) -> Result<(), String> {
        let log = log_of(process);
        let deadline = Instant::now() + READY_WAIT;
        loop {
            let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
            let asked = tokio::time::timeout(Duration::from_secs(5), client.request_text(request)).await;
            if matches!(asked, Ok(Ok(text)) if text == "ok") {
                return Ok(());
            }
            let child = self.child(process).as_mut().expect("it was launched");
            if let Some(status) = child.try_wait().unwrap() {
                *self.child(process) = None;
                return Err(format!("{process:?} ended with {status}: {}", self.tail(log)));
            }
            if Instant::now() > deadline {
                return Err(format!("{process:?} is not ready: {}", self.tail(log)));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn wait_for_etcd(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + READY_WAIT;
        while tokio::net::TcpStream::connect(self.address(Process::Etcd)).await.is_err() {
            let etcd = self.etcd.as_mut().expect("it was launched");
            if let Some(status) = etcd.try_wait().unwrap() {
                return Err(format!("etcd ended with {status}: {}", self.tail("etcd.log")));
            }
            if Instant::now() > deadline {
                return Err(format!("etcd does not listen: {}", self.tail("etcd.log")));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    fn spawn_api_server(&self, process: Process, etcd: &str) -> Child {
        let path = |name: &str| self.file(name).display().to_string();
        let is_peer = process == Process::Peer;
        let https = if is_peer { &self.ports.peer_https } else { &self.ports.https }.number();
        let http = if is_peer { &self.ports.peer_http } else { &self.ports.http }.number();
        let mut command = Command::new(self.assets.join(binary(self.version)));
        command
            .arg(format!("--etcd-servers={etcd}"))
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--secure-port={https}"))
            .arg(format!("--cert-dir={}", path(if is_peer { "certs.peer" } else { "certs" })))
            .arg(format!("--etcd-compaction-interval={}", self.options.compact))
            .arg(format!("--min-request-timeout={}", self.options.min_request_timeout));
        if self.options.guarded {
            command.arg(format!("--tls-cert-file={}", path("server.crt")));
            command.arg(format!("--tls-private-key-file={}", path("server.key")));
        }
        match self.version {
            Version::V1_20 => command
                .arg("--advertise-address=127.0.0.1")
                .arg("--insecure-port=0")
                .arg(format!("--token-auth-file={}", path("tokens.csv")))
                .arg(if self.options.guarded {
                    "--authorization-mode=RBAC"
                } else {
                    "--authorization-mode=AlwaysAllow"
                })
                .arg("--service-account-issuer=https://kubernetes.default.svc")
                .arg(format!("--service-account-signing-key-file={}", path("sa.key")))
                .arg(format!("--service-account-key-file={}", path("sa.key")))
                .arg("--service-cluster-ip-range=10.0.0.0/24")
                .arg("--disable-admission-plugins=ServiceAccount")
                .arg("--endpoint-reconciler-type=none"),
            Version::V1_36 => command
                .env("CRDSERVER_TOKENS", path("tokens.csv"))
                .arg(format!("--http-port={http}"))
                .arg(if self.options.guarded { "--auth=token" } else { "--auth=off" })
                .arg("--feature-gates=WatchList=true"),
        };
        command.args(&self.options.flags);
        spawn(command, &self.file(log_of(process)))
    }

    fn spawn_etcd(&self) -> Child {
        let url = |port: &Port| format!("http://{}", port.address);
        let (client, peer) = (url(&self.ports.etcd), url(&self.ports.etcd_peer));
        let mut command = Command::new(self.assets.join("etcd"));
        command
            .args(["--name", "s1", "--unsafe-no-fsync", "--data-dir"])
            .arg(self.file("etcd"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("s1={peer}")]);
        spawn(command, &self.file("etcd.log"))
    }

    /// Writes the files that the server reads at its start, and the kubeconfig.
    async fn prepare(&self) {
        self.write_user(FIRST_TOKEN, true);
        if self.version == Version::V1_20 {
            let mut openssl = Command::new("openssl");
            openssl.args(["genrsa", "-out"]).arg(self.file("sa.key")).arg("2048").stderr(Stdio::null());
            assert!(openssl.status().await.unwrap().success(), "openssl made no key");
        }
        if self.options.guarded {
            let mut authority = openssl_certificate(&self.file("ca.crt"), &self.file("ca.key"));
            authority.args(["-subj", "/CN=authority"]);
            assert!(authority.status().await.unwrap().success(), "openssl made no certificate");
            self.renew_certificate().await;
        }
        self.write_kubeconfig("kubeconfig", self.address(Process::ApiServer), &format!("token: {TOKEN}"));
    }

    /// The last lines of a log, for the message of a failure.
    fn tail(&self, log: &str) -> String {
        let text = std::fs::read_to_string(self.file(log)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(10).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Envtest {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in [Process::Etcd, Process::ApiServer, Process::Peer].map(log_of) {
                println!("the end of {log}:\n{}", self.tail(log));
            }
        }
    }
}

fn binary(version: Version) -> &'static str {
    match version {
        Version::V1_20 => "kube-apiserver",
        Version::V1_36 => "kube-apiserver-1.36-mini",
    }
}

/// What a `kube-apiserver` says of its version if it is not the one that is meant.
async fn other_version(version: Version, assets: &Path) -> Option<String> {
    if version != Version::V1_20 {
        return None;
    }
    let output = Command::new(assets.join(binary(version))).arg("--version").output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    // Later ones lack flags with which it is started here.
    (!said.starts_with("Kubernetes v1.20.")).then_some(said)
}

fn log_of(process: Process) -> &'static str {
    match process {
        Process::Etcd => "etcd.log",
        Process::ApiServer => "apiserver.log",
        Process::Peer => "peer.log",
    }
}

/// Makes a new key with a certificate, self-signed unless arguments say otherwise.
fn openssl_certificate(certificate: &Path, key: &Path) -> Command {
    let mut command = Command::new("openssl");
    command
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ])
        .arg("-out")
        .arg(certificate)
        .arg("-keyout")
        .arg(key)
        .stderr(Stdio::null());
    command
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
    // These tests check every answer, so the client must not retry.
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}
