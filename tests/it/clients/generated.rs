//! A client that a generator makes from `/openapi.json`.

use serde_json::{Value, json};
use tokio::process::Command;

use super::script;
use crate::support::server::TestServer;
use crate::support::{in_time, mk_pod};

/// Runs a command in a folder and returns its output.
async fn run(command: &mut Command) -> String {
    let output = in_time("the command", command.output()).await.expect("it runs");
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{errors}");
    out.into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_generated_client_calls_every_path() {
    let Some(python) = std::env::var_os("INFORMERD_OPENAPI_PYTHON") else {
        println!(
            "skipped: no generator; pip install openapi-python-client, and set INFORMERD_OPENAPI_PYTHON to that python"
        );
        return;
    };
    let server = TestServer::start(&["pods", "configmaps", "namespaces"]).await;
    server.cluster.create("namespaces", json!({"metadata": {"name": "shop"}})).unwrap();
    for (namespace, name, app) in [("shop", "a", "web"), ("shop", "b", "db"), ("other", "c", "web")] {
        server.cluster.create("pods", mk_pod(namespace, name, app)).unwrap();
    }
    server.cluster.create("configmaps", json!({"metadata": {"namespace": "shop", "name": "m"}})).unwrap();
    for resource in ["pods", "configmaps", "namespaces"] {
        server.caught_up(resource).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let document = folder.path().join("openapi.json");
    std::fs::write(&document, server.get("/openapi.json").await.body).unwrap();
    let mut generate = Command::new(&python);
    generate.current_dir(&folder).args(["-m", "openapi_python_client", "generate", "--meta=none"]);
    run(generate.args(["--output-path=generated", "--path"]).arg(&document)).await;
    let mut call = Command::new(&python);
    call.current_dir(&folder).arg(script("python/generated.py"));
    call.args([format!("http://{}", server.address), format!("http://{}", server.admin)]);
    let read: Value = serde_json::from_str(&run(&mut call).await).unwrap();
    let expected = json!({
        "all": ["other/c", "shop/a", "shop/b"],
        "several": ["other/c", "shop/a", "shop/b", "shop/m"],
        "selected": ["other/c", "shop/a"],
        "pages": ["other/c", "shop/a"],
        "namespace": ["shop/a", "shop/b"],
        "cluster": "shop",
        "object": "a",
        "missing": [404, "NotFound"],
        // One where it is complete, one at its end.
        "watch": ["ADDED c", "ADDED a", "ADDED b", "BOOKMARK", "BOOKMARK"],
        "watch namespace": ["ADDED a", "ADDED b", "BOOKMARK", "BOOKMARK"],
        "watch object": ["ADDED a", "BOOKMARK", "BOOKMARK"],
        "resources": ["pods", "configmaps", "namespaces"],
        "live": "ok",
        "ready": 200,
    });
    for (what, expected) in expected.as_object().unwrap() {
        assert_eq!(&read[what], expected, "{what}");
    }
}
