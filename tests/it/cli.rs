//! The program as a person runs it: what it prints, where, and with which exit code.

use std::process::{Command, Output};

/// Runs informerd with nothing of the caller's settings in the environment.
fn informerd(args: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_informerd"));
    let inherited = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("INFORMERD_"));
    inherited.for_each(|(name, _)| {
        command.env_remove(name);
    });
    command.args(args).envs(environment.iter().copied()).output().expect("the binary is there")
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
fn the_version_is_that_of_the_manifest() {
    prints(&["--version"], &[concat!("informerd ", env!("CARGO_PKG_VERSION"))]);
}

#[test]
fn help_teaches_by_headings_and_examples() {
    prints(&["--help"], &["Examples:", "informerd demo", "Exit codes:"]);
    prints(
        &["serve", "--help"],
        &["What to watch:", "Limits:", "--journal-bytes-max", "curl -N localhost:8090"],
    );
    refuses(&[], &[], &["Usage: informerd <COMMAND>", "Examples:"]);
}

#[test]
fn a_wrong_flag_names_itself_its_value_and_what_is_accepted() {
    refuses(
        &["serve", "--watch", "pods?ns=web"],
        &[],
        &["--watch", "pods?ns=web", "unknown parameter \"ns\"", "labelSelector"],
    );
    refuses(&["serve", "--listen", "8090"], &[], &["--listen", "'8090'", "ADDRESS:PORT"]);
    refuses(&["serve", "--page-size", "many"], &[], &["--page-size", "'many'", "whole number"]);
    refuses(&["serve", "--log-format", "xml"], &[], &["--log-format", "'xml'", "auto, text, json"]);
    refuses(&["demo", "--rate", "-1"], &[], &["--rate", "expected a number from 0"]);
    refuses(&["serve", "--wach", "pods"], &[], &["--wach", "--watch"]);
}

#[test]
fn a_wrong_configuration_is_told_without_a_log() {
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
    refuses(&["serve"], &[("INFORMERD_WATCH", "pods"), ("INFORMERD_LISTEN", "x")], &["--listen", "'x'"]);
}

#[test]
fn rbac_prints_a_manifest_or_says_which_name_it_cannot_resolve() {
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
    prints(&["man"], &[".TH informerd", "rbac"]);
    prints(&["man", "serve"], &[".TH", "journal"]);
    refuses(&["man", "nothing"], &[], &["no command \"nothing\"", "serve, demo, check, rbac"]);
}
