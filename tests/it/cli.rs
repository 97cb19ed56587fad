//! The informerd program on the command line: what it prints, on which channel, and its exit code.

use std::process::Output;

use informerd::testing::sim::{ApiServer, Cluster};

use crate::support::{self, server::ANY_PORT};

/// Runs informerd without the INFORMERD_ variables of the caller's environment.
fn informerd(args: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = support::informerd();
    command.env_remove("KUBERNETES_SERVICE_HOST");
    command.args(args).envs(environment.iter().copied()).output().expect("the binary exists")
}

fn prints(args: &[&str], expected: &[&str]) {
    let Output { status, stdout, stderr } = informerd(args, &[]);
    let stdout = String::from_utf8(stdout).expect("text");
    assert!(status.success(), "{args:?}: {status} {}", String::from_utf8_lossy(&stderr));
    for text in expected {
        assert!(stdout.contains(text), "{args:?}: {text:?} not in\n{stdout}");
    }
}

fn refuses(args: &[&str], environment: &[(&str, &str)], expected: &[&str]) {
    let Output { status, stdout, stderr } = informerd(args, environment);
    let stderr = String::from_utf8(stderr).expect("text");
    assert_eq!(status.code(), Some(2), "{args:?}: {stderr}");
    assert!(stdout.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&stdout));
    for text in expected {
        assert!(stderr.contains(text), "{args:?}: {text:?} not in\n{stderr}");
    }
}

#[test]
fn the_printed_version_is_that_of_the_cargo_manifest() {
    prints(&["--version"], &[concat!("informerd ", env!("CARGO_PKG_VERSION"))]);
}

#[test]
fn help_has_headings_and_examples() {
    prints(&["--help"], &["Examples:", "informerd demo", "Exit codes:"]);
    prints(
        &["serve", "--help"],
        &["What to watch:", "Limits:", "--journal-bytes-max", "curl -N localhost:8090"],
    );
    refuses(&[], &[], &["Usage: informerd <COMMAND>", "Examples:"]);
}

#[test]
fn an_invalid_flag_is_reported_with_its_value_and_the_accepted_values() {
    refuses(
        &["serve", "--watch", "pods?ns=web"],
        &[],
        &["--watch", "pods?ns=web", "unknown parameter \"ns\"", "labelSelector"],
    );
    refuses(
        &["serve", "--listen", "8090"],
        &[],
        &["error: --listen \"8090\": expected ADDRESS:PORT", "--help"],
    );
    refuses(&["serve", "--page-size", "many"], &[], &["--page-size \"many\": expected a whole number"]);
    refuses(&["serve", "--page-size", "-5"], &[], &["--page-size \"-5\": expected a whole number"]);
    refuses(&["serve", "--log-format", "xml"], &[], &["--log-format \"xml\": expected auto, text or json"]);
    refuses(&["serve", "--log", "inof"], &[], &["--log \"inof\": \"inof\" is no level; expected a level"]);
    refuses(&["demo", "--rate", "-1"], &[], &["--rate", "expected a number from 0"]);
    refuses(&["serve", "--wach", "pods"], &[], &["--wach", "--watch"]);
}

#[test]
fn an_invalid_configuration_is_reported_before_the_log_starts() {
    refuses(&["serve"], &[], &["error: nothing to watch", "--watch pods"]);
    refuses(
        &["serve", "--watch=pods", "--server=http://a", "--in-cluster"],
        &[],
        &["--server and --in-cluster cannot both be given"],
    );
    refuses(
        &["serve", "--config", "/does/not/exist.yaml"],
        &[],
        &["cannot read configuration /does/not/exist.yaml"],
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    std::fs::write(path, "watch: [{resource: pods}]\nlisten: nowhere\n").unwrap();
    refuses(&["serve", "--config", path], &[], &[path, "listen \"nowhere\": expected ADDRESS:PORT"]);
    std::fs::write(path, "wacth: [{resource: pods}]\n").unwrap();
    refuses(&["serve", "--config", path], &[], &[path, "wacth", "watch"]);
}

#[test]
fn a_flag_wins_over_the_environment_and_the_environment_over_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "watch: [{resource: secrets}]\n").unwrap();
    let path = file.path().to_str().unwrap();
    let resources = |args: &[&str], environment: &[(&str, &str)]| {
        let output = informerd(&[&["rbac", "--config", path], args].concat(), environment);
        let yaml = String::from_utf8(output.stdout).unwrap();
        yaml.lines().find(|line| line.contains("resources:")).unwrap().trim().to_owned()
    };
    assert_eq!(resources(&[], &[]), r#"resources: ["secrets"]"#);
    let environment = [("INFORMERD_WATCH", "pods; services")];
    assert_eq!(resources(&[], &environment), r#"resources: ["pods", "services"]"#);
    assert_eq!(resources(&["--watch=nodes"], &environment), r#"resources: ["nodes"]"#);
}

#[test]
fn an_invalid_environment_variable_is_reported_by_name() {
    let pods = ("INFORMERD_WATCH", "pods");
    let expected = "error: INFORMERD_LISTEN \"x\": expected ADDRESS:PORT";
    refuses(&["serve"], &[pods, ("INFORMERD_LISTEN", "x")], &[expected]);
    refuses(&["check"], &[pods, ("INFORMERD_PAGE_SIZE", "x")], &["error: INFORMERD_PAGE_SIZE \"x\""]);
    refuses(
        &["demo"],
        &[("INFORMERD_RATE", "-1")],
        &["error: INFORMERD_RATE \"-1\": expected a number from 0"],
    );
    let expected = "INFORMERD_LOGFORMAT: no setting has this variable; INFORMERD_LOG_FORMAT is one";
    refuses(&["serve"], &[pods, ("INFORMERD_LOGFORMAT", "json")], &[expected]);
    // A flag wins over a variable, also if the two choose different clusters.
    let kubeconfig = ("INFORMERD_KUBECONFIG", "/does/not/exist");
    let output = informerd(&["check", "--watch=pods", "--server=http://127.0.0.1:1"], &[kubeconfig]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains("from http://127.0.0.1:1"), "{stdout}");
}

/// The lines that the demo prints, and what it logged until then.
fn demo(environment: &[(&str, &str)]) -> (Vec<String>, String) {
    use std::io::BufRead as _;
    let mut command = support::informerd();
    command.args(["demo", "--listen=127.0.0.1:0", "--admin-listen=off", "--rate=50", "--log-format=text"]);
    let mut demo = command
        .envs(environment.iter().copied())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary exists");
    let lines = std::io::BufReader::new(demo.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut banner = Vec::new();
    for line in lines {
        let last = line.starts_with("Ctrl-C");
        banner.push(line);
        if last {
            break;
        }
    }
    demo.kill().unwrap();
    (banner, String::from_utf8(demo.wait_with_output().unwrap().stderr).unwrap())
}

#[test]
fn the_demo_prints_commands_to_try_and_no_log_lines_after_them() {
    let (banner, log) = demo(&[]);
    let page = banner.iter().find_map(|line| line.trim().strip_prefix("the page")).expect("the page").trim();
    let server = page.trim_end_matches('/');
    assert!(banner.iter().any(|line| line.contains(&format!("kubectl --server {server} get"))), "{banner:?}");
    assert!(banner.iter().any(|line| line.contains("export KUBECONFIG=")), "{banner:?}");
    assert!(banner.last().unwrap().contains("--seed "), "{banner:?}");
    assert!(banner.len() < 25, "fits a terminal: {}", banner.len());
    assert_eq!(log, "", "a log line would push the banner away");
}

#[test]
fn the_demo_runs_without_a_folder_for_temporary_files_as_in_an_empty_image() {
    let (banner, log) = demo(&[("TMPDIR", "/does/not/exist")]);
    assert!(banner.iter().any(|line| line.contains("the page")), "{banner:?} {log}");
    assert!(!banner.iter().any(|line| line.contains("KUBECONFIG")), "{banner:?}");
    assert!(log.contains("--kubeconfig-out names another file"), "{log}");
}

#[test]
fn what_is_watched_may_also_be_allowed_on_demand() {
    let (_runtime, api) = api_server();
    let server = format!("--server={}", api.url());
    let Output { status, stdout, .. } =
        informerd(&["check", &server, "--watch=po", "--on-demand=pods,services"], &[]);
    let report = String::from_utf8(stdout).unwrap();
    assert!(status.success(), "{report}");
    assert_eq!(report.matches("list pods in all namespaces").count(), 1, "{report}");
    assert!(report.contains("list services in all namespaces"), "{report}");
}

/// A simulated API server for a process to connect to.
fn api_server() -> (tokio::runtime::Runtime, ApiServer) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let api = runtime.block_on(ApiServer::bind(Cluster::default(), ANY_PORT)).unwrap();
    (runtime, api)
}

/// Checks that `serve` and `check` refuse a configuration with exit code 2, and that both report the cause.
fn both_refuse(args: &[&str], environment: &[(&str, &str)], expected: &[&str]) {
    let listeners = ["--listen=127.0.0.1:0", "--admin-listen=off", "--log-format=text"];
    let Output { status, stderr, .. } = informerd(&[&["serve"], &listeners[..], args].concat(), environment);
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "serve {args:?}: {said}");
    let last = said.lines().last().unwrap_or_default().to_owned();
    let Output { status, stdout, stderr } = informerd(&[&["check"], args].concat(), environment);
    let report = String::from_utf8(stdout).unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(2), "check {args:?}: {report}{stderr}");
    for text in expected {
        assert!(last.contains(text), "serve {args:?}: {text:?} not in\n{last}");
        assert!(report.contains(text), "check {args:?}: {text:?} not in\n{report}");
    }
}

#[test]
fn check_and_serve_refuse_the_same_configurations_with_exit_code_2() {
    let (_runtime, api) = api_server();
    let server = format!("--server={}", api.url());
    both_refuse(
        &[&server, "--watch=nodes?namespace=web"],
        &[],
        &["nodes is cluster-scoped, so it cannot be watched in namespace \"web\""],
    );
    both_refuse(
        &[&server, "--watch=pods", "--watch=po"],
        &[],
        &["pods is watched twice (as \"po\" the second time)"],
    );
    let watch = "--watch=pods";
    both_refuse(&[watch, "--kubeconfig=/does/not/exist"], &[], &["/does/not/exist", "No such file"]);
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("config");
    std::fs::write(&kubeconfig, api.kubeconfig()).unwrap();
    let path = kubeconfig.display().to_string();
    both_refuse(
        &[watch, "--kubeconfig", &path, "--context=prod"],
        &[],
        &[&format!("{path} has no context \"prod\"; it has ")],
    );
    both_refuse(
        &[watch, "--context=prod"],
        &[("KUBECONFIG", &path)],
        &["the kubeconfig has no context \"prod\""],
    );
    let home = ("HOME", folder.path().to_str().unwrap());
    let nowhere = [home, ("KUBECONFIG", "")];
    both_refuse(
        &[watch],
        &nowhere,
        &["no cluster is named: ", "give --kubeconfig or --server", "informerd demo"],
    );
    both_refuse(&[watch, "--in-cluster"], &nowhere, &["--in-cluster needs a pod's service account"]);
}

#[test]
fn check_reports_a_field_selector_that_the_api_server_refuses() {
    let (_runtime, api) = api_server();
    let server = format!("--server={}", api.url());
    let check = |selector: &str| {
        let output = informerd(&["check", &server, &format!("--watch=pods?fieldSelector={selector}")], &[]);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, report) = check("spec.nodeName=node-1");
    assert!(code == Some(0) && report.contains("fieldSelector spec.nodeName=node-1 is taken"), "{report}");
    let (code, report) = check("spec.nope=1");
    assert!(code == Some(1) && report.contains("FAIL select pods in all namespaces: "), "{report}");
}

#[test]
fn a_failed_start_names_the_address_or_path_and_the_cause() {
    let output = informerd(&["check", "--watch=pods", "--server=http://me:secret@127.0.0.1:1"], &[]);
    let report = String::from_utf8(output.stdout).unwrap();
    let expected = "the API server was not reached at http://127.0.0.1:1: ";
    assert!(report.contains(expected) && !report.contains("secret"), "{report}");
    assert_eq!(output.status.code(), Some(1));
    let file = tempfile::NamedTempFile::new().unwrap();
    let listen = format!("--listen=unix:{}", file.path().display());
    let serve = ["serve", "--watch=pods", "--server=http://127.0.0.1:1", &listen];
    let output = informerd(&[&serve[..], &["--log-format=text"]].concat(), &[]);
    let text = String::from_utf8(output.stderr).unwrap();
    let expected = "a file that is no socket is there; remove it, or choose another path";
    assert!(
        text.lines().last().is_some_and(|line| line.starts_with("error: ") && line.ends_with(expected)),
        "{text}"
    );
    assert_eq!(output.status.code(), Some(1));
    // With `--log-format=json` the error is a JSON line, too.
    let output = informerd(&[&serve[..], &["--log-format=json"]].concat(), &[]);
    let text = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.last().unwrap()["error"].as_str().unwrap().ends_with(expected), "{text}");
}

#[test]
fn the_schema_of_the_configuration_is_printed() {
    prints(&["config-schema"], &["\"$schema\"", "\"journalLenMax\"", "\"logFormat\""]);
}

#[test]
fn rbac_prints_a_manifest_or_names_the_unknown_resource() {
    prints(
        &["rbac", "--watch=pods?namespace=web", "--service-account=web:api", "--name=reader"],
        &[
            "kind: Role\n",
            "  name: reader\n  namespace: web\n",
            "verbs: [\"list\", \"watch\"]",
            "  name: api\n",
        ],
    );
    refuses(&["rbac", "--watch=widgets"], &[], &["\"widgets\"", "plural and group"]);
    refuses(
        &["rbac", "--watch=pods", "--service-account=api"],
        &[],
        &["--service-account", "NAMESPACE:NAME"],
    );
}

#[test]
fn completions_and_manual_pages_are_printed() {
    prints(&["completions", "bash"], &["complete -F _informerd", "--journal-bytes-max"]);
    prints(&["completions", "fish"], &["complete -c informerd"]);
    prints(
        &["links"],
        &["spec.tls.secretName", "service-name", "spec.podSelector (labels)", "metadata.ownerReferences.uid"],
    );
    let declared = r#"{"from":"widgets.example.com","path":"spec.secretName","to":"secrets"}"#;
    prints(&["links", "--link", declared], &["widgets.example.com", "spec.secretName"]);
    refuses(
        &["links", "--link", r#"{"from":"widgets","to":"secrets"}"#],
        &[],
        &["--link", "expected either path, where the name is, or selector"],
    );
    prints(&["man"], &[".TH informerd", "rbac"]);
    prints(&["man", "serve"], &[".TH", "journal"]);
    refuses(
        &["man", "nothing"],
        &[],
        &["no command \"nothing\"", "serve, demo, check, rbac, links, config-schema"],
    );
}

#[test]
fn the_contract_contains_the_example_clients_verbatim() {
    let contract = include_str!("../../docs/contract.md");
    for (language, client) in [
        ("python", include_str!("../../examples/watch.py")),
        ("js", include_str!("../../examples/watch.js")),
        ("sh", include_str!("../../examples/watch.sh")),
    ] {
        assert!(contract.contains(&format!("```{language}\n{client}```\n")), "{language}");
    }
}

#[test]
fn the_configuration_of_the_readme_is_accepted() {
    let readme = include_str!("../../README.md");
    let (_, rest) = readme.split_once("```yaml\n").expect("an example");
    let (yaml, _) = rest.split_once("```").expect("its end");
    let environment = |name: &str| (name == "NODE_NAME").then(|| "node-1".to_owned());
    let settings = informerd::testing::config::ServeSettings::from_yaml(yaml, &environment)
        .expect("a valid configuration");
    let source = informerd::testing::config::ConfigLayers { file: None, settings };
    assert_eq!(source.resolve(&environment).expect("a complete configuration").watches.len(), 5);
}

#[test]
fn the_readme_has_every_metric() {
    let readme = include_str!("../../README.md");
    let mut folders = vec![std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut metrics = std::collections::BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap_or_default();
            let names = source.split('"').filter(|text| text.starts_with("informerd_"));
            let is_name = |text: &&str| text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            metrics.extend(names.filter(is_name).map(str::to_owned));
        }
    }
    assert!(metrics.len() > 20, "{metrics:?}");
    for metric in metrics.iter().filter(|metric| !metric.starts_with("informerd_test_")) {
        assert!(readme.contains(&format!("`{metric}`")), "{metric} is not in the README");
    }
}
