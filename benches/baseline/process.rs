//! Other processes, and the kernel's figures of them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::Context as _;

/// A child that answers lines with lines. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

/// The usage of a process so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// User and kernel CPU time, in seconds.
    pub(crate) cpu_seconds: f64,
    /// Resident memory, in bytes.
    pub(crate) rss: f64,
    /// Peak of the resident memory, in bytes.
    pub(crate) rss_peak: f64,
}

/// Ticks of /proc/PID/stat in a second: the same on every Linux that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

impl Process {
    /// This binary, in a role.
    pub(crate) fn role(role: &str) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--role", role]);
        Self::spawn(command)
    }

    /// Any program.
    pub(crate) fn spawn(mut command: Command) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().context("no standard output")?);
        Ok(Self { child, stdin, stdout })
    }

    /// Writes a line.
    pub(crate) fn send(&mut self, line: &str) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("no standard input")?;
        writeln!(stdin, "{line}")?;
        Ok(stdin.flush()?)
    }

    /// Waits for a line.
    pub(crate) fn receive(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        anyhow::ensure!(line.ends_with('\n'), "a process of the benchmark ended early");
        Ok(line.trim_end().to_owned())
    }

    /// Writes a line and waits for the answer.
    pub(crate) fn ask(&mut self, line: &str) -> anyhow::Result<String> {
        self.send(line)?;
        self.receive()
    }

    /// Its usage so far.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        let read = |file| std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id()));
        let stat = read("stat")?;
        // The name in parentheses may contain anything. utime and stime are the 14th and 15th field.
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        // The first field after the name is the state; Z is a process that has ended.
        anyhow::ensure!(!after_name.trim_start().starts_with('Z'), "a process under measurement has ended");
        let ticks = after_name.split_whitespace().skip(11).take(2);
        let ticks: f64 = ticks.filter_map(|field| field.parse::<f64>().ok()).sum();
        // The ticks are too coarse for short measurements. The nanoseconds of the threads lack threads that have
        // ended. The larger value is right.
        let cpu_seconds = self.thread_seconds().max(ticks / TICKS_PER_SECOND);
        let status = read("status")?;
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kibibytes = line.and_then(|rest| rest.split_whitespace().next()).and_then(|n| n.parse().ok());
            kibibytes.map_or(f64::NAN, |n: f64| n * 1024.0)
        };
        Ok(Usage { cpu_seconds, rss: bytes("VmRSS:"), rss_peak: bytes("VmHWM:") })
    }
}

impl Process {
    /// CPU time of its current threads, in seconds; 0 if the kernel does not count it.
    fn thread_seconds(&self) -> f64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let nanos = threads.into_iter().flatten().flatten().filter_map(|thread| {
            // A thread may end meanwhile.
            let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<f64>().ok()
        });
        nanos.sum::<f64>() / 1e9
    }

    /// Resets the peak of its memory.
    pub(crate) fn reset_peak(&self) -> anyhow::Result<()> {
        // 5 resets VmHWM (proc_pid_clear_refs(5)).
        let path = format!("/proc/{}/clear_refs", self.child.id());
        std::fs::write(&path, "5").with_context(|| format!("cannot write {path}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Memory of the kernel for all TCP sockets of this machine, in bytes.
pub(crate) fn kernel_tcp_bytes() -> f64 {
    const PAGE_BYTES: f64 = 4096.0;
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let tcp = text.lines().find_map(|line| line.strip_prefix("TCP:")).unwrap_or_default();
    let pages = tcp.split_once("mem ").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    pages.map_or(f64::NAN, |pages: f64| pages * PAGE_BYTES)
}
