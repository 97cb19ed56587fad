//! Tables against those of real API servers: every kind in many states, and the output of `kubectl get`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use informerd::testing::k8s::table::{PrinterColumn, Table, Timestamp};
use informerd::testing::k8s::{Resource, ResourceParts};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::cluster::{administer, send};
use crate::support::PATIENCE;
use crate::support::envtest::{self, Envtest, Options, Version};
use crate::support::server::{Informerd, kubeconfig, serve_config};

const AS_TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// How often two answers may differ because a second passed between them.
const TRIES_MAX: usize = 10;

/// An object of `tables.json`, created in order to be listed.
#[derive(Deserialize)]
struct Shown {
    /// The collection's path.
    at: String,
    object: Value,
    status: Option<Value>,
    #[serde(default)]
    delete: bool,
}

impl Shown {
    fn all() -> Vec<Self> {
        serde_json::from_str(include_str!("tables.json")).unwrap()
    }

    /// Whether it is a custom resource or a definition, which any API server accepts.
    fn is_custom(&self) -> bool {
        self.at.contains(".example.com/") || self.at == DEFINITIONS
    }

    async fn create(&self, client: &kube::Client) {
        let name = self.object["metadata"]["name"].as_str().unwrap();
        let path = format!("{}/{name}", self.at);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        // A custom resource is accepted only a moment after its definition.
        while ask(client, "POST", &self.at, Some(&self.object)).await.is_none() {
            assert!(tokio::time::Instant::now() < deadline, "{path} is not taken");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if let Some(status) = &self.status {
            let patch = json!({"status": status});
            administer(client, "PATCH", &format!("{path}/status"), Some(&patch), ANSWER_PATIENCE).await;
        }
        if self.delete {
            administer(client, "DELETE", &path, None, ANSWER_PATIENCE).await;
        }
    }
}

/// Time limit for one answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);

async fn ask(client: &kube::Client, method: &str, path: &str, body: Option<&Value>) -> Option<Value> {
    send(client, method, path, body, ANSWER_PATIENCE).await
}

async fn list(client: &kube::Client, path: &str, accept: &str) -> Value {
    let request = http::Request::get(path).header("accept", accept).body(Vec::new()).unwrap();
    client.request(request).await.unwrap()
}

/// A server with every object of `tables.json` that it accepts.
async fn populated(version: Version) -> Option<(Envtest, kube::Client)> {
    let api = Envtest::start(version, Options::default()).await?;
    let client = envtest::client(&api.kubeconfig_path()).await;
    for shown in Shown::all().iter().filter(|shown| version == Version::V1_20 || shown.is_custom()) {
        shown.create(&client).await;
    }
    Some((api, client))
}

/// The path and resource of everything that can be listed, in every served version.
async fn resources(client: &kube::Client) -> Vec<(String, Resource)> {
    let groups = list(client, "/apis", "application/json").await;
    let versions = groups["groups"].as_array().unwrap().iter().flat_map(|group| group["versions"].as_array());
    let versions = versions.flatten().map(|version| version["groupVersion"].as_str().unwrap().to_owned());
    let mut found = Vec::new();
    for api_version in std::iter::once("v1".to_owned()).chain(versions) {
        let root = if api_version == "v1" { "/api/v1".into() } else { format!("/apis/{api_version}") };
        let Some(known) = ask(client, "GET", &root, None).await else { continue };
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        for resource in known["resources"].as_array().unwrap() {
            let plural = resource["name"].as_str().unwrap();
            let is_listed = resource["verbs"].as_array().unwrap().contains(&json!("list"));
            // Component statuses are not stored and cannot be watched.
            if !is_listed || plural.contains('/') || plural == "componentstatuses" {
                continue;
            }
            let parts = ResourceParts {
                group: group.to_owned(),
                version: version.to_owned(),
                plural: plural.to_owned(),
                kind: resource["kind"].as_str().unwrap().to_owned(),
                ..Default::default()
            };
            found.push((format!("{root}/{plural}"), Resource::new(parts)));
        }
    }
    found
}

/// The differences between a server's table and the one made here from the server's list, and the number of rows.
async fn differences(
    client: &kube::Client,
    path: &str,
    resource: &Resource,
    definitions: &BTreeMap<String, Value>,
    minor: u32,
) -> (Vec<String>, usize) {
    let definition = definitions.get(&resource.canonical()).map(Value::to_string);
    let columns = definition.map(|definition| {
        PrinterColumn::of_definition(definition.as_bytes(), resource.version()).unwrap().unwrap()
    });
    let table = Table::of(resource, columns.as_deref(), Some(minor)).unwrap();
    let theirs = list(client, path, AS_TABLE).await;
    let now =
        Timestamp::since_epoch(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    let objects = list(client, path, "application/json").await;
    let mut found = Vec::new();
    let told = serde_json::to_value(table.columns()).unwrap();
    if told != theirs["columnDefinitions"] {
        found.push(format!("{path}: columns {told} for {}", theirs["columnDefinitions"]));
    }
    // Compared by name, as flow schemas are in another order.
    let key = |metadata: &Value| format!("{}/{}", metadata["namespace"], metadata["name"]);
    let rows = theirs["rows"].as_array().cloned().unwrap_or_default();
    let rows: BTreeMap<String, Value> =
        rows.into_iter().map(|row| (key(&row["object"]["metadata"]), row)).collect();
    let objects = objects["items"].as_array().unwrap();
    assert_eq!(rows.len(), objects.len(), "{path}");
    for object in objects {
        let mut whole = object.clone();
        whole["apiVersion"] = resource.api_version().into();
        let ours = table.row(whole.to_string().as_bytes(), now);
        let theirs = &rows[&key(&object["metadata"])];
        let ended = ours.completed.is_some();
        if json!(ours.cells) != theirs["cells"] || ended != theirs.get("conditions").is_some() {
            found.push(format!(
                "{}: {} for {}",
                key(&object["metadata"]),
                json!(ours.cells),
                theirs["cells"]
            ));
        }
    }
    (found, rows.len())
}

async fn every_cell_is_the_servers(version: Version) {
    let Some((api, client)) = populated(version).await else { return };
    let definitions = list(&client, DEFINITIONS, "application/json").await;
    let definitions: BTreeMap<String, Value> = definitions["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|definition| (definition["metadata"]["name"].as_str().unwrap().to_owned(), definition.clone()))
        .collect();
    let minor = if version == Version::V1_20 { 20 } else { 36 };
    let (mut kinds, mut compared, mut all) = (0, 0, Vec::new());
    for (path, resource) in resources(&client).await {
        // The small 1.36 server has no printers for built-in kinds.
        if version == Version::V1_36 && !definitions.contains_key(&resource.canonical()) {
            continue;
        }
        let mut tries = 0;
        let (found, rows) = loop {
            let (found, rows) = differences(&client, &path, &resource, &definitions, minor).await;
            tries += 1;
            if found.is_empty() || tries == TRIES_MAX {
                break (found, rows);
            }
        };
        kinds += 1;
        compared += rows;
        all.extend(found);
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
    let least = if version == Version::V1_20 { (60, 200) } else { (4, 10) };
    assert!(kinds >= least.0 && compared >= least.1, "{kinds} kinds, {compared} rows");
    api.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flow_schemas_are_listed_by_matching_precedence() {
    let Some(api) = Envtest::start(Version::V1_20, Options::default()).await else { return };
    let client = envtest::client(&api.kubeconfig_path()).await;
    let path = "/apis/flowcontrol.apiserver.k8s.io/v1beta1/flowschemas";
    // The API server creates its flow schemas one after the other.
    let exempt_last = async {
        while list(&client, path, "application/json").await["items"].as_array().unwrap().len() < 10 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    crate::support::in_time("the flow schemas", exempt_last).await;
    let server = Informerd::start(serve_config(kubeconfig(api.kubeconfig_path()), &["flowschemas"])).await;
    let names = |table: &Value| -> Vec<String> {
        let rows = table["rows"].as_array().unwrap();
        rows.iter().map(|row| row["cells"][0].as_str().unwrap().to_owned()).collect()
    };
    let theirs = names(&list(&client, path, AS_TABLE).await);
    let ours = server.get_with(path, &[("Accept", AS_TABLE)]).await.json();
    assert_eq!(names(&ours), theirs);
    assert_ne!(theirs.last().map(String::as_str), Some("workload-leader-election"), "not by name");
    api.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_table_cell_equals_that_of_1_20() {
    Box::pin(every_cell_is_the_servers(Version::V1_20)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_table_cell_equals_that_of_1_36() {
    Box::pin(every_cell_is_the_servers(Version::V1_36)).await;
}

/// The output of `kubectl`; `None` if it is not installed. `home` holds its discovery cache.
async fn kubectl(home: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = tokio::process::Command::new("kubectl");
    command.env("HOME", home).env("KUBECONFIG", home.join("none")).args(arguments).kill_on_drop(true);
    match tokio::time::timeout(PATIENCE, command.output()).await.expect("kubectl ends") {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        output => {
            let output = output.unwrap();
            let (out, errors) = (output.stdout, output.stderr);
            Some(format!("{}{}", String::from_utf8(out).unwrap(), String::from_utf8(errors).unwrap()))
        }
    }
}

/// Commands whose output is compared.
const PRINTED: &[&str] = &[
    "get pods",
    "get pods -o wide",
    "get pods -A",
    "get pods running",
    "get pods running crash -o wide",
    "get pods gates --show-labels",
    "get pods -L app,tier",
    "get pods -l app=web",
    "get pods --sort-by=.metadata.name",
    "get pods --field-selector=status.phase=Failed",
    "get pods --no-headers",
    "get pods none",
    "get deployments,services,nodes -o wide",
    "get typeds",
    "get typeds -o wide",
    "get pathss",
    "get plains",
    "get events -o wide",
    "get events",
    "get crd",
    "get roles",
    "get pv,pvc -o wide",
    "get hpa",
    "get ingresses",
    "get jobs,cronjobs -o wide",
    "get all",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_get_prints_the_same_tables() {
    let Some((api, client)) = Box::pin(populated(Version::V1_20)).await else { return };
    // kubectl complains about a group without served resources; informerd leaves such a group out.
    let absent = "/apis/apiregistration.k8s.io/v1/apiservices/v1.extra.example.com";
    administer(&client, "DELETE", absent, None, ANSWER_PATIENCE).await;
    let followed = [
        "pods",
        "replicationcontrollers",
        "deployments",
        "replicasets.apps",
        "statefulsets",
        "daemonsets",
        // From here on in the order of the API server's groups.
        "horizontalpodautoscalers",
        "jobs",
        "cronjobs",
        "services",
        "nodes",
        "events",
        "customresourcedefinitions",
        "typeds",
        "pathss",
        "plains",
        "roles",
        "persistentvolumes",
        "persistentvolumeclaims",
        "ingresses.networking.k8s.io",
    ];
    let mut informerd = Informerd::start(serve_config(kubeconfig(api.kubeconfig_path()), &followed)).await;
    let home = tempfile::tempdir().unwrap();
    let (ours, theirs) =
        (format!("--server=http://{}", informerd.address), api.kubeconfig_path().display().to_string());
    let theirs = format!("--kubeconfig={theirs}");
    let mut different = Vec::new();
    for request in PRINTED {
        let words: Vec<&str> = request.split(' ').collect();
        let mut tries = 0;
        loop {
            let of = |server: &str| [&words[..], &[server]].concat().into_iter().map(str::to_owned).collect();
            let (to_us, to_them): (Vec<String>, Vec<String>) = (of(&ours), of(&theirs));
            let (to_us, to_them) = (texts(&to_us), texts(&to_them));
            let printed = tokio::join!(kubectl(home.path(), &to_us), kubectl(home.path(), &to_them));
            let (Some(us), Some(them)) = printed else {
                println!("skipped: no kubectl to compare with; apt-get install kubernetes-client");
                return;
            };
            tries += 1;
            if us == them {
                break;
            }
            if tries == TRIES_MAX {
                different.push(format!("kubectl {request}\n--- informerd\n{us}\n--- API server\n{them}"));
                break;
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n\n"));
    watches_print_the_same(&client, home.path(), &[&ours, &theirs]).await;
    informerd.stop().await;
    api.stop().await;
}

/// Compares `kubectl get -w` at each server while objects change.
async fn watches_print_the_same(client: &kube::Client, home: &Path, servers: &[&str]) {
    for (plural, path, shown) in [
        ("pods", "/api/v1/namespaces/default/pods/gates", "changed=yes"),
        ("typeds", "/apis/shown.example.com/v1/namespaces/default/typeds/bare", "changed=yes"),
    ] {
        let mut printed = Vec::new();
        for server in servers {
            let mut command = tokio::process::Command::new("kubectl");
            command.env("HOME", home).args(["get", plural, "-w", "--show-labels", server]);
            let output = std::process::Stdio::piped();
            let mut child = command.stdout(output).kill_on_drop(true).spawn().unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let mut all = Vec::new();
            let mut is_changed = false;
            loop {
                let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
                let line = line.unwrap_or_else(|_| panic!("{plural} of {server}: {all:?}")).unwrap().unwrap();
                let is_last = line.contains(shown);
                all.push(without_ages(&line));
                if is_last {
                    break;
                }
                // By now kubectl has listed the objects, and its watch starts after that list.
                if !is_changed {
                    is_changed = true;
                    for value in [json!("yes"), Value::Null] {
                        let patch = json!({"metadata": {"labels": {"changed": value}}});
                        assert!(ask(client, "PATCH", path, Some(&patch)).await.is_some(), "{path}");
                    }
                }
            }
            child.kill().await.unwrap();
            printed.push(all);
        }
        assert_eq!(printed[0], printed[1], "kubectl get {plural} -w");
    }
}

/// A line with its ages replaced by one text, and without the blanks that depend on their length.
fn without_ages(line: &str) -> String {
    let is_age = |word: &str| {
        let number = word.trim_end_matches(['s', 'm', 'h', 'd']);
        number != word && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let words = line.split_whitespace().map(|word| if is_age(word) { "AGE" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

fn texts(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}
