//! The manifests in `deploy/`: kustomize builds them, and a real API server accepts them.

use std::path::{Path, PathBuf};
use std::process::Output;

use tokio::process::Command;

use crate::support::envtest::{Envtest, Options, Version};

/// Each folder, and whether the schema of the oldest server knows all of it. `restartPolicy` of an init container
/// came with 1.28; for such a folder kubectl runs without validation, as the server drops the field.
const FOLDERS: [(&str, bool); 3] = [("native-sidecar", false), ("classic-sidecar", true), ("shared", true)];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)
}

/// Runs kubectl; `None`, with a `skipped:` line, if it is not installed.
#[expect(clippy::print_stdout, reason = "a test that did not run says so")]
async fn kubectl(command: &mut Command) -> Option<Output> {
    match command.output().await {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: no kubectl; apt-get install kubernetes-client");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The output of `kubectl kustomize` for a folder.
async fn build(folder: &Path) -> Option<String> {
    let output = kubectl(Command::new("kubectl").arg("kustomize").arg(folder)).await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", folder.display());
    Some(String::from_utf8(output.stdout).expect("YAML is text"))
}

#[tokio::test]
async fn kustomize_builds_each_folder() {
    for (name, _) in FOLDERS {
        let Some(manifests) = build(&folder(name)).await else { return };
        for expected in [
            "image: informerd:",
            "runAsNonRoot: true",
            "readOnlyRootFilesystem: true",
            "allowPrivilegeEscalation: false",
            "type: RuntimeDefault",
        ] {
            assert!(manifests.contains(expected), "{name}: no {expected}");
        }
    }
}

#[tokio::test]
async fn manifests_grant_list_and_watch_only() {
    for (name, _) in FOLDERS {
        let Some(manifests) = build(&folder(name)).await else { return };
        let count = |item: &str| manifests.lines().filter(|line| line.trim() == item).count();
        assert!(count("- list") > 0, "{name}");
        assert_eq!(count("- list"), count("- watch"), "{name}");
        for forbidden in ["- get", "- create", "- update", "- patch", "- delete", "- '*'"] {
            assert_eq!(count(forbidden), 0, "{name}: {forbidden}");
        }
    }
}

#[tokio::test]
async fn probes_of_the_native_sidecar_apply_when_uncommented() {
    let copy = tempfile::tempdir().expect("a temporary folder");
    for entry in std::fs::read_dir(folder("native-sidecar")).expect("the folder is there") {
        let entry = entry.expect("it can be read");
        let mut text = std::fs::read_to_string(entry.path()).expect("a text file");
        if entry.file_name() == "kustomization.yaml" {
            let commented = "# patches:\n#   - path: probes.yaml\n";
            assert!(text.contains(commented), "the lines to uncomment are gone");
            text = text.replace(commented, "patchesStrategicMerge:\n  - probes.yaml\n");
        }
        std::fs::write(copy.path().join(entry.file_name()), text).expect("it can be written");
    }
    let Some(plain) = build(&folder("native-sidecar")).await else { return };
    let Some(probed) = build(copy.path()).await else { return };
    assert!(!plain.contains("startupProbe:"));
    for probe in ["startupProbe:", "livenessProbe:", "readinessProbe:", "restartPolicy: Always"] {
        assert!(probed.contains(probe), "no {probe} in {probed}");
    }
}

#[tokio::test]
async fn a_real_api_server_accepts_each_folder() {
    let Some(server) = Envtest::start(Version::V1_20, Options::default()).await else { return };
    for (name, is_known) in FOLDERS {
        let mut apply = Command::new("kubectl");
        apply.env("KUBECONFIG", server.kubeconfig_path()).args(["apply", "--dry-run=server"]);
        apply.arg(format!("--validate={is_known}")).arg("-k").arg(folder(name));
        let Some(output) = kubectl(&mut apply).await else { return };
        let (told, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{name}: {errors}");
        assert!(told.contains("deployment.apps/"), "{name}: {told}");
        assert!(told.lines().all(|line| line.ends_with("(server dry run)")), "{name}: {told}");
    }
}
