//! A real API server with its etcd, if `KUBEBUILDER_ASSETS` names the folder of the binaries.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::{Process, Usage};
use crate::server::{get, wait_until};

/// The binary with the API server libraries of that release. It can serve without TLS and credentials, as informerd
/// does here.
const BINARY: &str = "kube-apiserver-1.36-mini";

/// A running API server. Dropping it ends it and removes its data.
pub(crate) struct RealServer {
    api: Process,
    _etcd: Process,
    _data: tempfile::TempDir,
    pub(crate) address: SocketAddr,
}

/// A connection on which requests are sent one after the other.
pub(crate) struct Writer {
    stream: TcpStream,
    address: SocketAddr,
}

impl RealServer {
    /// Starts it and waits until it is ready; `None` if the binaries are missing.
    pub(crate) fn start() -> anyhow::Result<Option<Self>> {
        let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS") else { return Ok(None) };
        let (etcd, api) = (Path::new(&assets).join("etcd"), Path::new(&assets).join(BINARY));
        if !etcd.is_file() || !api.is_file() {
            return Ok(None);
        }
        let data = tempfile::tempdir()?;
        let [client, peer, plain, secure] = free_ports()?;
        let log = |name: &str| std::fs::File::create(data.path().join(name));
        let mut command = Command::new(etcd);
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        command.args(["--name", "one", "--unsafe-no-fsync", "--data-dir"]).arg(data.path().join("etcd"));
        command.args(["--listen-client-urls", &url(client), "--advertise-client-urls", &url(client)]);
        command.args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)]);
        command.arg(format!("--initial-cluster=one={}", url(peer))).stderr(log("etcd.log")?);
        let etcd = Process::spawn(command)?;
        let client = SocketAddr::from((Ipv4Addr::LOCALHOST, client));
        wait_until("etcd", || TcpStream::connect(client).is_ok())?;
        let mut command = Command::new(api);
        command.arg(format!("--etcd-servers=http://{client}"));
        command.args([format!("--http-port={plain}"), "--auth=off".to_owned()]);
        command.arg(format!("--cert-dir={}", data.path().join("certs").display()));
        command.args(["--bind-address=127.0.0.1", &format!("--secure-port={secure}")]);
        command.stderr(log("apiserver.log")?);
        let api = Process::spawn(command)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, plain));
        wait_until("the API server", || get(address, "/readyz").is_ok_and(|answer| answer.ends_with(b"ok")))?;
        Ok(Some(Self { api, _etcd: etcd, _data: data, address }))
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        self.api.usage()
    }

    pub(crate) fn writer(&self) -> anyhow::Result<Writer> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Writer { stream, address: self.address })
    }
}

impl Writer {
    /// Sends a write and waits until it is acknowledged.
    pub(crate) fn send(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<()> {
        let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: {content}\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        self.stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        let mut buffer = [0; 64 << 10];
        while !is_complete(&answer) {
            let read = self.stream.read(&mut buffer)?;
            anyhow::ensure!(read > 0, "the API server hung up");
            answer.extend_from_slice(&buffer[..read]);
        }
        anyhow::ensure!(answer.starts_with(b"HTTP/1.1 20"), "{}", String::from_utf8_lossy(&answer));
        Ok(())
    }
}

/// Whether an answer has its complete body, which has a length or chunks.
fn is_complete(answer: &[u8]) -> bool {
    let Some(end) = memchr::memmem::find(answer, b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    match length {
        Some(length) => answer.len() >= end + 4 + length,
        None => answer.ends_with(b"0\r\n\r\n"),
    }
}

/// Ports that were free a moment ago; it is unlikely that another process takes just these.
fn free_ports() -> anyhow::Result<[u16; 4]> {
    let listeners: Vec<_> =
        (0..4).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>()?;
    let ports: Vec<_> = listeners
        .iter()
        .map(|one| one.local_addr().map(|address| address.port()))
        .collect::<Result<_, _>>()?;
    ports.try_into().map_err(|_| anyhow::anyhow!("four were asked for"))
}
