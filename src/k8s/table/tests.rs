//! Rows as the API server prints them: recorded from kube-apiserver 1.20 (`recorded.json`), and by hand where newer
//! versions print something else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::k8s::ResourceParts;

/// The answers of the API server for one resource, as JSON and as a table.
#[derive(Deserialize)]
struct Recorded {
    group: String,
    version: String,
    plural: String,
    /// Seconds since 1970.
    now: u64,
    /// The CustomResourceDefinition.
    definition: Option<Value>,
    rows: Vec<RecordedRow>,
}

#[derive(Deserialize)]
struct RecordedRow {
    cells: Vec<Value>,
    object: Value,
}

fn recorded() -> Vec<Recorded> {
    serde_json::from_str(include_str!("recorded.json")).unwrap()
}

fn resource(group: &str, version: &str, plural: &str) -> Resource {
    let (group, version, plural) = (group.to_owned(), version.to_owned(), plural.to_owned());
    Resource::new(ResourceParts { group, version, plural, ..Default::default() })
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::since_epoch(Duration::from_secs(seconds))
}

/// The cells of an object by column, at the first minute of 2026.
#[track_caller]
fn cells(canonical: &str, minor: u32, object: &Value) -> BTreeMap<String, Value> {
    let (plural, group) = canonical.split_once('.').unwrap_or((canonical, ""));
    let table = Table::of(&resource(group, "v1", plural), None, Some(minor)).unwrap();
    let row = table.row(object.to_string().as_bytes(), at(1_767_225_660));
    assert_eq!(row.cells.len(), table.columns().len());
    table.columns().iter().map(|column| column.name.clone()).zip(row.cells).collect()
}

/// One cell of an object.
#[track_caller]
#[allow(clippy::needless_pass_by_value, reason = "most objects are made for one call")]
fn check(canonical: &str, minor: u32, column: &str, object: Value, expected: impl Into<Value>) {
    let cells = cells(canonical, minor, &object);
    assert_eq!(cells.get(column), Some(&expected.into()), "{canonical} on 1.{minor}: {object}");
}

#[test]
fn table_rows_equal_the_recorded_ones() {
    for Recorded { group, version, plural, now, definition, rows } in recorded() {
        let columns = definition.map(|definition| {
            let json = definition.to_string();
            PrinterColumn::of_definition(json.as_bytes(), &version).unwrap().unwrap()
        });
        let table = Table::of(&resource(&group, &version, &plural), columns.as_deref(), Some(20)).unwrap();
        assert!(!rows.is_empty(), "{plural} of {group}/{version}");
        for RecordedRow { cells, object } in rows {
            let row = table.row(object.to_string().as_bytes(), at(now));
            let name = &object["metadata"]["name"];
            assert_eq!(row.cells, cells, "{plural} of {group}/{version}: {name}");
        }
    }
}

#[test]
fn every_printer_has_columns_and_every_kind_with_columns_a_printer() {
    let printers: BTreeSet<&str> = PRINTERS.iter().map(|(kind, _)| *kind).collect();
    let kinds: BTreeSet<&str> = columns::kinds().filter(|kind| *kind != "customresources").collect();
    assert_eq!(printers, kinds);
    // There is a cell for each column, whatever the object lacks.
    for minor in [20, 24, 28, MINOR_MAX] {
        for kind in printers.iter().filter(|kind| **kind != "*") {
            cells(kind, minor, &json!({}));
            cells(kind, minor, &json!({"metadata": [], "spec": "x", "status": 3, "data": null}));
        }
    }
}

#[test]
fn every_kind_that_1_20_prints_was_recorded() {
    let recorded: BTreeSet<String> = recorded()
        .iter()
        .map(|recorded| resource(&recorded.group, &recorded.version, &recorded.plural).canonical())
        .collect();
    for (kind, _) in PRINTERS.iter().filter(|(kind, _)| *kind != "*") {
        let is_newer = [
            "admissionpolic",
            "csistoragecapacities",
            "resource.k8s.io",
            "servicecidrs",
            "ipaddresses",
            "volumeattributesclasses",
        ]
        .iter()
        .any(|word| kind.contains(word));
        assert!(is_newer || recorded.contains(*kind), "{kind}");
    }
}

#[test]
fn since_1_22_restarts_show_when_the_last_one_was() {
    let ended = json!({"terminated": {"exitCode": 1, "finishedAt": "2025-12-31T23:56:00Z"}});
    let earlier = json!({"terminated": {"exitCode": 1, "finishedAt": "2025-12-31T23:50:00Z"}});
    let state = json!({"running": {}});
    let pod = json!({"status": {"containerStatuses": [
        {"state": state, "restartCount": 2, "lastState": earlier}, {"state": state, "restartCount": 1, "lastState": ended}]}});
    check("pods", 20, "Restarts", pod.clone(), 3);
    check("pods", 22, "Restarts", pod, "3 (5m ago)");
    check("pods", 36, "Restarts", json!({"status": {"containerStatuses": [{"restartCount": 2}]}}), "2");
    check("pods", 36, "Restarts", json!({}), "0");
}

#[test]
fn sidecars_count_as_containers() {
    let always = json!({"name": "side", "restartPolicy": "Always"});
    let spec = json!({"containers": [{"name": "main"}], "initContainers": [{"name": "once"}, always]});
    let once = json!({"name": "once", "restartCount": 4, "state": {"terminated": {"exitCode": 0}}});
    let side = |started: bool| json!({"name": "side", "restartCount": 1, "started": started, "ready": started, "state": {"running": {}}});
    let main = json!({"name": "main", "ready": true, "restartCount": 2, "state": {"running": {}}});
    let pod = |started: bool| {
        json!({"spec": spec, "status": {"phase": "Running", "initContainerStatuses": [once, side(started)],
            "containerStatuses": [main]}})
    };
    check("pods", 36, "Ready", pod(true), "2/2");
    check("pods", 36, "Restarts", pod(true), "3");
    check("pods", 36, "Status", pod(true), "Running");
    check("pods", 36, "Ready", pod(false), "0/2");
    check("pods", 36, "Status", pod(false), "Init:1/2");
    let mut initialized = pod(false);
    initialized["status"]["conditions"] = json!([{"type": "Initialized", "status": "True"}]);
    check("pods", 36, "Status", initialized, "Init:1/2");
}

#[test]
fn the_status_of_ended_pods_depends_on_the_version() {
    let over =
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Succeeded"}});
    check("pods", 20, "Status", over.clone(), "Terminating");
    check("pods", 36, "Status", over, "Succeeded");
    let ended =
        |code: i64, reason: &str| json!({"state": {"terminated": {"exitCode": code, "reason": reason}}});
    let half = json!({"status": {"phase": "Failed", "containerStatuses": [ended(0, "Completed"), ended(2, "Error")]}});
    check("pods", 34, "Status", half.clone(), "Completed");
    check("pods", 35, "Status", half, "Error");
    let gated = json!({"status": {"phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}});
    check("pods", 36, "Status", gated, "SchedulingGated");
}

#[test]
fn newer_versions_have_further_columns_and_values() {
    let job = |conditions: Value| json!({"spec": {"completions": 1}, "status": {"conditions": conditions}});
    let so = |kind: &str| json!([{"type": kind, "status": "True"}]);
    check("jobs.batch", 36, "Status", job(json!([])), "Running");
    for status in ["Complete", "Failed", "Suspended", "FailureTarget"] {
        check("jobs.batch", 36, "Status", job(so(status)), status);
    }
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    check("jobs.batch", 36, "Status", going, "Terminating");
    check("cronjobs.batch", 36, "Timezone", json!({"spec": {"timeZone": "Europe/Berlin"}}), "Europe/Berlin");
    check("cronjobs.batch", 36, "Timezone", json!({}), "<none>");
    check("persistentvolumeclaims", 36, "VolumeAttributesClass", json!({}), "<unset>");
    let signing = json!({"spec": {"expirationSeconds": 3600}});
    check("certificatesigningrequests.certificates.k8s.io", 36, "RequestedDuration", signing, "60m");
    let modes = json!({"spec": {"accessModes": ["ReadWriteOncePod"]}});
    check("persistentvolumes", 36, "Access Modes", modes, "RWOP");
    let series = json!({"series": {"count": 4, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}});
    check("events", 36, "Count", series.clone(), 4);
    check("events", 36, "Last Seen", series, "60s");
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 50}}});
    let scaler = json!({"apiVersion": "autoscaling/v2", "spec": {"metrics": [cpu]}});
    check("horizontalpodautoscalers.autoscaling", 20, "Targets", scaler.clone(), "<unknown>/50%");
    check("horizontalpodautoscalers.autoscaling", 36, "Targets", scaler, "cpu: <unknown>/50%");
    let shares = json!({"spec": {"limited": {"nominalConcurrencyShares": 3}}});
    let levels = "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io";
    check(levels, 36, "NominalConcurrencyShares", shares, 3);
}

#[test]
fn kinds_added_after_1_20_have_rows() {
    let policies = "validatingadmissionpolicies.admissionregistration.k8s.io";
    let policy =
        json!({"spec": {"validations": [{}, {}], "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}});
    check(policies, 36, "Validations", policy.clone(), 2);
    check(policies, 36, "ParamKind", policy, "v1/ConfigMap");
    let bindings = "validatingadmissionpolicybindings.admissionregistration.k8s.io";
    check(bindings, 36, "ParamRef", json!({"spec": {"paramRef": {"name": "a", "namespace": "b"}}}), "b/a");
    check(bindings, 36, "ParamRef", json!({"spec": {"paramRef": {"name": "a"}}}), "*/a");
    let parent =
        json!({"spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "s"}}});
    check("ipaddresses.networking.k8s.io", 36, "ParentRef", parent, "services/default/s");
    check("servicecidrs.networking.k8s.io", 36, "CIDRs", json!({"spec": {"cidrs": ["a", "b"]}}), "a,b");
    let claims = "resourceclaims.resource.k8s.io";
    check(claims, 36, "State", json!({}), "pending");
    let claim = json!({"status": {"allocation": {}, "reservedFor": [{}]}});
    check(claims, 36, "State", claim, "allocated,reserved");
    check("resourceslices.resource.k8s.io", 36, "Pool", json!({"spec": {"pool": {"name": "p"}}}), "p");
    let class = json!({"metadata": {"name": "a", "annotations":
        {"volumeattributesclass.alpha.kubernetes.io/is-default-class": "true"}}});
    check("volumeattributesclasses.storage.k8s.io", 36, "Name", class, "a (default)");
}

#[test]
fn a_kind_without_a_printer_has_no_table() {
    assert!(Table::of(&resource("example.com", "v1", "widgets"), None, None).is_none());
    assert!(Table::of(&resource("snapshot.storage.k8s.io", "v1", "volumesnapshots"), None, None).is_none());
    let unknown = Table::of(&resource("apps", "v9", "things"), None, None).unwrap();
    assert_eq!(unknown.columns()[1].name, "Created At");
}

#[test]
fn definitions_declare_their_columns() {
    let column = |path: &str| json!({"name": "c", "type": "string", "jsonPath": path});
    let of = |definition: &Value, version: &str| {
        PrinterColumn::of_definition(definition.to_string().as_bytes(), version)
    };
    let v1 = json!({"spec": {"versions": [{"name": "v1", "additionalPrinterColumns": [column(".a")]}, {"name": "v2"}]}});
    assert_eq!(of(&v1, "v1").unwrap().unwrap()[0].json_path, ".a");
    assert_eq!(of(&v1, "v2").unwrap().unwrap()[0].name, "Age");
    assert_eq!(of(&v1, "v3").unwrap(), None);
    let old = json!({"spec": {"versions": [{"name": "v1"}],
        "additionalPrinterColumns": [{"name": "c", "type": "string", "JSONPath": ".b"}]}});
    assert_eq!(of(&old, "v1").unwrap().unwrap()[0].json_path, ".b");
    assert!(of(&json!({"spec": 3}), "v1").is_err());
    assert!(of(&json!([]), "v1").is_err());
}

#[test]
fn an_object_that_is_too_deep_shows_only_its_name() {
    let deep =
        format!(r#"{{"metadata":{{"name":"a"}},"data":{}1{}}}"#, r#"{"a":"#.repeat(200), "}".repeat(200));
    let table = Table::of(&resource("", "v1", "configmaps"), None, None).unwrap();
    assert_eq!(table.row(deep.as_bytes(), at(0)).cells, [json!("a"), Value::Null, Value::Null]);
    assert_eq!(table.row(b"no JSON", at(0)).cells, [json!(""), Value::Null, Value::Null]);
}

#[test]
fn endpoints_of_many_addresses_and_ports_are_counted() {
    let many = |name: &str, value: &str, count: usize| {
        let all: Vec<_> = (1..=count).map(|at| json!({name: format!("{value}{at}")})).collect();
        Value::from(all)
    };
    let ports: Vec<_> = (1..=12_000).map(|port| json!({"port": port})).collect();
    let subsets = json!([
        {"addresses": many("ip", "10.0.0.", 2)},
        {"addresses": many("ip", "10.0.1.", 25_000), "ports": ports},
        {"addresses": []},
    ]);
    let shown = "10.0.0.1,10.0.0.2,10.0.1.1:1 + 299999999 more...";
    check("endpoints", 30, "Endpoints", json!({"metadata": {"name": "a"}, "subsets": subsets}), shown);
}

#[test]
fn column_paths_that_find_too_much_find_nothing() {
    let deep = format!("{}1{}", r#"{"a":"#.repeat(100), "}".repeat(100));
    let tree: tree::Tree<'_> = serde_json::from_str(&deep).unwrap();
    let pair: tree::Tree<'_> = serde_json::from_str(r#"{"a":[[1,2],[3,4]]}"#).unwrap();
    let find = |path: &str, tree: &tree::Tree<'_>| {
        jsonpath::Path::parse(path).unwrap().find(tree).map_err(|_| ()).map(|found| found.len())
    };
    assert_eq!(find("..a..a..a..a..a..a", &tree), Err(()));
    assert_eq!(find(&format!(".a{}", "[0,0]".repeat(2)), &pair), Ok(4));
    assert_eq!(find("..a", &tree).map(|found| found > 0), Ok(true));
}

#[test]
fn invalid_column_paths_are_refused() {
    let parse = jsonpath::Path::parse;
    for path in [
        ".a[",
        ".a[x]",
        ".a[1:2:3:4]",
        ".a[?(@.b==\"c)]",
        ".a[?(@.b)",
        ".a{.b}",
        "....",
        ".a[+1]",
        ".a['b'c']",
        ".a[?(@.b==\"\\q\")]",
    ] {
        assert!(parse(path).is_none(), "{path}");
    }
    // Deep, but within the bound.
    assert!(parse(&format!(".a{}", "[?(@.a".repeat(40))).is_none());
    assert!(parse(".a[18446744073709551616]").is_none());
    let tree: tree::Tree<'_> = serde_json::from_str(r#"{"a":[1,2]}"#).unwrap();
    let huge = parse(".a[-9223372036854775808:9223372036854775807:9223372036854775807]").unwrap();
    assert!(huge.find(&tree).is_err());
}

#[test]
fn columns_printers_and_the_table_of_kinds_agree() {
    let printed: BTreeSet<&str> = PRINTERS.iter().map(|(name, _)| *name).collect();
    // Except those for a definition without columns, which no built-in kind uses.
    let described: BTreeSet<&str> = columns::kinds().filter(|name| *name != "customresources").collect();
    assert_eq!(printed, described, "columns.json and the printers have different kinds");
    let known: BTreeSet<String> =
        crate::k8s::kinds::BUILT_IN.iter().map(crate::k8s::BuiltIn::canonical).collect();
    for name in printed.iter().filter(|name| **name != "*") {
        assert!(known.contains(*name), "{name} has columns, but is not in k8s/kinds.rs");
    }
}
