//! A headless Chromium, controlled by WebDriver.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Time limit of every step. Only a failure ever takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// chromedriver is started at most this many times until it has a port.
const STARTS_MAX: usize = 5;

/// A browser with one page and a profile of its own. Dropping it ends the processes.
pub(crate) struct Browser {
    client: Client,
    driver: Child,
    profile: TempDir,
}

impl Browser {
    /// Starts a browser; `None`, with a `skipped:` line, if it is not installed.
    pub(crate) async fn start() -> Option<Self> {
        let Some((chromium, chromedriver)) = find("chromium").zip(find("chromedriver")) else {
            skip();
            return None;
        };
        let profile = TempDir::new().expect("a temporary folder for the profile");
        let (driver, port) = start_driver(&chromedriver).await;
        let mut args = vec![format!("--user-data-dir={}", profile.path().display())];
        args.extend(
            [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--window-size=1280,800",
            ]
            .map(str::to_owned),
        );
        let capabilities = json!({
            "browserName": "chrome",
            "timeouts": { "script": PATIENCE.as_millis() },
            "goog:chromeOptions": { "binary": chromium, "args": args },
        });
        let Value::Object(capabilities) = capabilities else { unreachable!("an object, as written above") };
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .expect("chromedriver opens a session");
        Some(Self { client, driver, profile })
    }

    /// Opens a page and waits until it has loaded.
    pub(crate) async fn open(&self, url: &str) {
        self.client.goto(url).await.unwrap_or_else(|error| panic!("cannot open {url}: {error}"));
    }

    /// The value of a JavaScript expression in the page.
    pub(crate) async fn eval<T: DeserializeOwned>(&self, expression: &str) -> T {
        let value = self
            .client
            .execute(&format!("return ({expression})"), vec![])
            .await
            .unwrap_or_else(|error| panic!("{expression}: {error}"));
        serde_json::from_value(value.clone())
            .unwrap_or_else(|error| panic!("{expression} = {value}: {error}"))
    }

    /// Waits until a JavaScript expression is true. The page itself evaluates it every few milliseconds.
    pub(crate) async fn until(&self, expression: &str) {
        let script = format!(
            "const done = arguments[0], started = performance.now();
             const look = () => {{
               let value;
               try {{ value = ({expression}); }} catch (error) {{ value = false; }}
               if (value) done(true);
               else if (performance.now() - started > {}) done(false);
               else setTimeout(look, 20);
             }};
             look();",
            (PATIENCE / 2).as_millis()
        );
        let came = self.client.execute_async(&script, vec![]).await;
        if matches!(came, Ok(Value::Bool(true))) {
            return;
        }
        let state = self.client.execute(STATE, vec![]).await;
        panic!("never became true: {expression}\n{came:?}\nthe page: {state:?}");
    }

    /// Runs a script that calls `done(value)` at its end.
    pub(crate) async fn run(&self, script: &str) -> Value {
        let script = format!("const done = arguments[0];\n{script}");
        self.client.execute_async(&script, vec![]).await.unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// Clicks, as a user does, on the first element that matches a CSS selector.
    pub(crate) async fn click(&self, css: &str) {
        let element = self.client.find(Locator::Css(css)).await;
        let clicked = match element {
            Ok(element) => element.click().await,
            Err(error) => Err(error),
        };
        clicked.unwrap_or_else(|error| panic!("cannot click {css}: {error}"));
    }

    /// Replaces the text of the first element that matches a CSS selector, as a user would.
    pub(crate) async fn fill(&self, css: &str, text: &str) {
        let field =
            self.client.find(Locator::Css(css)).await.unwrap_or_else(|error| panic!("no {css}: {error}"));
        field.clear().await.unwrap_or_else(|error| panic!("cannot clear {css}: {error}"));
        field.send_keys(text).await.unwrap_or_else(|error| panic!("cannot type into {css}: {error}"));
    }
}

/// The state of the page, for the message of a failure.
const STATE: &str = "return {
  url: location.href,
  rows: window.informerd?.rows(), shown: window.informerd?.shown(), state: window.informerd?.state,
  fold: window.fold && { ...window.fold, objects: window.fold.objects.size, source: undefined },
  text: document.body.innerText.slice(0, 600),
}";

impl Drop for Browser {
    /// Kills the driver, then its browser, which would outlive it.
    fn drop(&mut self) {
        // tokio reaps the process. An error means that it has ended already.
        let _ = self.driver.start_kill();
        let marker = format!("--user-data-dir={}", self.profile.path().display());
        for pid in processes_with(&marker) {
            // It may have ended between the look-up and the kill.
            let _ = std::process::Command::new("kill").args(["-KILL", &pid]).stderr(Stdio::null()).status();
        }
    }
}

/// Ids of the processes with `argument` on their command line.
fn processes_with(argument: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            // Chromium separates the arguments of its children by blanks.
            String::from_utf8_lossy(&line).split(['\0', ' ']).any(|word| word == argument)
        })
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// Starts chromedriver. Returns its process and port.
///
/// chromedriver asks the system for an IPv4 port, and then needs the same port for IPv6. It ends if another process has that one, as
/// happens while many tests run. So it is started again.
async fn start_driver(chromedriver: &Path) -> (Child, u16) {
    for _ in 0..STARTS_MAX {
        let mut driver = Command::new(chromedriver)
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("chromedriver starts");
        match port_of(&mut driver).await {
            Ok(port) => return (driver, port),
            Err(output) => println!("chromedriver ended without a port: {output}"),
        }
    }
    panic!("chromedriver ended without a port {STARTS_MAX} times");
}

/// The port that chromedriver chose, from its output; all of its output if it ended without one.
async fn port_of(driver: &mut Child) -> Result<u16, String> {
    let stdout = driver.stdout.take().expect("stdout is piped");
    let mut lines = BufReader::new(stdout).lines();
    let port = async {
        let mut output = String::new();
        while let Some(line) = lines.next_line().await.expect("chromedriver's output is text") {
            if let Some((_, rest)) = line.split_once("started successfully on port ") {
                return Ok(rest.trim_end_matches('.').parse().expect("a port number"));
            }
            output.push_str(&line);
            output.push('\n');
        }
        Err(output)
    };
    let port = tokio::time::timeout(PATIENCE, port).await.expect("chromedriver starts or ends in time");
    // Its output is read on, as a closed pipe would end it.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    port
}

/// The path of a program, looked up as a shell does.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

#[expect(clippy::print_stdout, reason = "a test that did not run says so")]
fn skip() {
    println!("skipped: no chromium or no chromedriver; apt-get install chromium chromium-driver");
}
