use super::setting::{Form, Reload, camel_case};
use super::watch::FileWatch;
use super::*;
use std::path::Path;
use std::time::Duration;

fn is_limit(setting: &Setting) -> bool {
    setting.key.as_ref().is_some_and(|key| key.starts_with("limits."))
}

/// The configuration made of flags and a file, or the error's text.
fn made(typed: &[&str], yaml: &str) -> Result<Serve, String> {
    use clap::Parser;
    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        settings: ServeSettings,
    }
    let environment = |name: &str| (name == "NODE_NAME").then(|| "node-1".to_owned());
    let typed =
        Args::try_parse_from(std::iter::once(&"serve").chain(typed)).map_err(|error| error.to_string())?;
    let file = ServeSettings::from_yaml(yaml, &environment).map_err(|error| error.to_string())?;
    let source = ConfigLayers { file: None, settings: typed.settings.or(file) };
    source.resolve(&environment).map_err(|error| error.to_string())
}

fn refused(typed: &[&str], yaml: &str, expected: &str) {
    let message = made(typed, yaml).map_or_else(|message| message, |config| format!("accepted: {config:?}"));
    assert!(message.contains(expected), "expected {expected:?} in {message}");
}

const PODS: &str = "watch: [{resource: pods}]\n";

#[test]
fn an_empty_configuration_is_refused_with_an_example() {
    refused(&[], "", "nothing to watch; name a resource, as in --watch pods");
    refused(&[], "# nothing\n", "nothing to watch");
}

#[test]
fn resolved_defaults_are_those_of_the_help() {
    let config = made(&["--watch", "pods"], "").unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8090");
    assert_eq!(config.admin_listen.unwrap().to_string(), "0.0.0.0:8091");
    assert_eq!(config.drain_timeout, Duration::from_secs(25));
    assert_eq!(config.shutdown_delay, Duration::ZERO);
    assert_eq!(config.unready_after, None);
    assert_eq!(config.upstream, UpstreamSource::Infer);
    assert_eq!(config.log.filter.as_str(), "info");
    assert_eq!(config.limits, Limits::DEFAULT);
    assert_eq!(config.watches[0].to_string(), "pods");
}

#[test]
fn every_key_of_the_file_is_read() {
    let yaml = "
watch:
- resource: pods
  namespaces: [web, db]
  labelSelector: app=web,tier!=x
  fieldSelector: spec.nodeName=$(NODE_NAME)
  keepManagedFields: true
- resource: deployments.apps
  keepLastApplied: false
namespaces: [team]
keepLastApplied: true
listen: unix:/run/informerd.sock
adminListen: off
kubeconfig: /etc/$(NODE_NAME)/kubeconfig
context: prod
allowOrigins: ['https://app.example']
allowHosts: [informerd.web.svc]
drainTimeout: 10s
unreadyAfter: 5m
log: debug
logFormat: json
limits:
  connectionsMax: 500
  journalBytesMax: 32MiB
  heartbeatInterval: 5s
";
    let config = made(&[], yaml).unwrap();
    let watches: Vec<String> = config.watches.iter().map(WatchSpec::to_string).collect();
    assert_eq!(
        watches,
        [
            "pods?namespace=db&namespace=web&labelSelector=app=web,tier!=x&fieldSelector=spec.nodeName=node-1\
             &keepManagedFields=true&keepLastApplied=true",
            "deployments.apps?namespace=team",
        ]
    );
    assert!(config.watches[1].namespaces_are_default && !config.watches[0].namespaces_are_default);
    assert_eq!(config.listen, Listen::Unix("/run/informerd.sock".into()));
    assert_eq!(config.admin_listen, None);
    let path = Some("/etc/node-1/kubeconfig".into());
    assert_eq!(config.upstream, UpstreamSource::Kubeconfig { path, context: Some("prod".to_owned()) });
    assert_eq!(config.allow_origins[0].as_str(), "https://app.example");
    assert_eq!(config.allow_hosts[0].as_str(), "informerd.web.svc");
    assert_eq!(config.drain_timeout, Duration::from_secs(10));
    assert_eq!(config.unready_after, Some(Duration::from_secs(300)));
    assert_eq!((config.log.filter.as_str(), config.log.format), ("debug", LogFormat::Json));
    assert_eq!(config.limits.connections_max, 500);
    assert_eq!(config.limits.journal_bytes_max, 32 << 20);
    assert_eq!(config.limits.heartbeat_interval, Duration::from_secs(5));
    assert_eq!(config.limits.page_size, Limits::DEFAULT.page_size);
}

#[test]
fn unready_after_must_exceed_the_silence_of_a_watch() {
    let refused = made(&["--watch=pods", "--unready-after=30s"], "").unwrap_err().to_string();
    assert_eq!(
        refused,
        "--unready-after \"30s\": expected more than watchSilenceMax (--watch-silence-max), which is 30s: \
         for that long nothing is heard where nothing happens"
    );
    let config = made(&["--watch=pods", "--unready-after=30s", "--watch-silence-max=20s"], "").unwrap();
    assert_eq!(config.unready_after, Some(Duration::from_secs(30)));
}

#[test]
fn a_flag_wins_over_the_file_and_a_list_replaces_a_list() {
    let yaml = "watch: [{resource: pods}]\nlisten: 127.0.0.1:1\nlog: debug\nlimits: {pageSize: 100, batchLenMax: 8}\n";
    let config = made(&["--watch=nodes", "--listen=127.0.0.1:2", "--page-size=200"], yaml).unwrap();
    assert_eq!(config.watches.len(), 1);
    assert_eq!(config.watches[0].resource, "nodes");
    assert_eq!(config.listen.to_string(), "127.0.0.1:2");
    assert_eq!(config.log.filter.as_str(), "debug");
    assert_eq!((config.limits.page_size, config.limits.batch_len_max), (200, 8));
}

#[test]
fn only_one_cluster_can_be_chosen() {
    let config = made(&["--server=http://127.0.0.1:8001"], &format!("{PODS}kubeconfig: /a\n")).unwrap();
    assert_eq!(config.upstream.to_string(), "http://127.0.0.1:8001");
    let config = made(&["--context=b"], &format!("{PODS}kubeconfig: /a\n")).unwrap();
    assert_eq!(config.upstream.to_string(), "kubeconfig /a context b");
    let config = made(&["--in-cluster"], PODS).unwrap();
    assert_eq!(config.upstream, UpstreamSource::InCluster);
    let config = made(&["--in-cluster=false"], &format!("{PODS}kubeconfig: /a\n")).unwrap();
    assert_eq!(config.upstream.to_string(), "kubeconfig /a", "false chooses no cluster");
    let config = made(&["--in-cluster=false"], &format!("{PODS}inCluster: true\n")).unwrap();
    assert_eq!(config.upstream, UpstreamSource::Infer);
    refused(&["--in-cluster", "--server=http://a"], PODS, "--server and --in-cluster cannot both be given");
    refused(&["--server=localhost:8001"], PODS, r#"--server "localhost:8001": expected http://HOST"#);
    let secret = UpstreamSource::Server { url: "https://me:secret@host:1".to_owned() };
    assert_eq!(secret.to_string(), "https://host:1");
}

#[test]
fn unknown_keys_are_refused_by_name_and_place() {
    refused(&[], "watch: [{resource: pods}]\nlisten: a\nlog_format: json\n", "log_format");
    refused(&[], "watch:\n- resource: pods\n  namespace: web\n", "namespace");
    refused(&[], "limits:\n  journalLen: 1\n", "journalLen");
}

#[test]
fn values_are_refused_by_key_with_what_is_accepted() {
    refused(&[], &format!("{PODS}listen: 8090\n"), r#"listen "8090": expected ADDRESS:PORT"#);
    refused(&[], &format!("{PODS}drainTimeout: 30\n"), r#"drainTimeout "30": expected a time with its unit"#);
    refused(
        &[],
        &format!("{PODS}limits: {{journalBytesMax: 64MB}}\n"),
        r#"limits.journalBytesMax "64MB": expected a size"#,
    );
    refused(
        &[],
        &format!("{PODS}allowOrigins: [app.example]\n"),
        r#"allowOrigins "app.example": expected an origin"#,
    );
    refused(&[], &format!("{PODS}server: $(NOPE)\n"), r#"server "$(NOPE)": the environment has no NOPE"#);
    refused(&[], "watch: [{resource: pods/web}]\n", r#""pods/web" is not a resource name"#);
    refused(&["--watch=pods", "--watch=Pods"], "", r#"watch "Pods": is watched twice"#);
}

#[test]
fn the_start_log_line_has_only_the_limits_that_were_changed() {
    let config = made(&["--watch=pods", "--page-size=50"], "").unwrap();
    let fields = config.loggable();
    let value = |name: &str| fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value.as_str());
    assert_eq!(value("watch"), Some("pods"));
    assert_eq!(value("page_size"), Some("50"));
    assert_eq!(value("journal_len_max"), None);
}

#[test]
fn setting_names_become_camel_case_keys() {
    assert_eq!(camel_case("journal_len_max"), "journalLenMax");
    assert_eq!(camel_case("log"), "log");
}

#[test]
fn an_error_names_the_place_where_the_value_was_given() {
    refused(&["--on-demand-idle=10ms"], PODS, r#"--on-demand-idle "10ms": expected at least 1s"#);
    refused(&[], &format!("{PODS}onDemandIdle: 10ms\n"), r#"onDemandIdle "10ms": expected at least 1s"#);
    refused(&["--header-bytes-max=100"], PODS, r#"--header-bytes-max "100": expected at least 8KiB"#);
    let file = format!("{PODS}limits: {{headerBytesMax: 100}}\n");
    refused(&[], &file, r#"limits.headerBytesMax "100": expected at least 8KiB"#);
    refused(&[], &format!("{PODS}server: 'http://a'\ninCluster: true\n"), "server and inCluster cannot both");
    refused(&["--in-cluster=perhaps"], PODS, r#"--in-cluster "perhaps": expected true or false"#);
}

#[test]
fn a_negative_number_is_refused_as_a_value() {
    refused(&["--watch=pods", "--page-size", "-5"], "", r#"--page-size "-5": expected a whole number"#);
    refused(&["--watch=pods", "--drain-timeout", "-5s"], "", r#"--drain-timeout "-5s": expected a time"#);
    refused(&["--watch=pods", "--unready-after", "-1m"], "", r#"--unready-after "-1m": expected a time"#);
}

#[test]
fn every_changed_setting_is_applied_or_reported_at_a_reload() {
    let base = made(&[], PODS).unwrap();
    let changed = |yaml: &str| base.fixed_differences(&made(&[], yaml).unwrap());
    let applied = "watch: [{resource: nodes}]\nnamespaces: [a]\nonDemand: [pods]\nonDemandIdle: 1m\nkeepLastApplied: true\n";
    assert_eq!(changed(applied), [""; 0]);
    let applied = table::settings()
        .iter()
        .filter(|setting| setting.reload == Reload::Applied)
        .map(|setting| setting.name);
    let applied: Vec<_> = applied.collect();
    let known =
        ["watch", "namespace", "keep_managed_fields", "keep_last_applied", "on_demand", "on_demand_idle"];
    assert_eq!(applied, known, "Informers::reconfigure and Reloader::reload_quietly have to apply a new one");
    for (yaml, name) in [
        ("logFormat: json", "log_format"),
        ("log: debug", "log"),
        ("server: 'http://me:secret@a'", "server"),
        ("allowHosts: [a]", "allow_host"),
        ("limits: {pageSize: 7}", "page_size"),
    ] {
        assert_eq!(changed(&format!("{PODS}{yaml}\n")), [name], "{yaml}");
    }
    // The change of a password is reported without the password.
    let one = made(&[], &format!("{PODS}server: 'http://me:one@a'\n")).unwrap();
    let other = made(&[], &format!("{PODS}server: 'http://me:two@a'\n")).unwrap();
    assert_eq!(one.fixed_differences(&other), ["server"]);
    assert!(one.loggable().iter().all(|(_, value)| !value.contains("one")));
}

#[test]
fn every_limit_states_its_default_and_reason() {
    for limit in settings().iter().filter(|setting| is_limit(setting)) {
        let told = format!("[default {}: ", limit.default);
        assert!(limit.help.contains(&told), "{}: {told:?} not in {:?}", limit.name, limit.help);
    }
}

#[test]
fn the_schema_has_every_key_and_its_default_fits() {
    let schema = schema();
    let of = |key: &str| match key.split_once('.') {
        Some((group, key)) => schema["properties"][group]["properties"][key].clone(),
        None => schema["properties"][key].clone(),
    };
    for setting in settings() {
        let Some(key) = &setting.key else { continue };
        let found = of(key);
        assert_eq!(found["description"], setting.help, "{key}");
        if !setting.default.is_empty() {
            let default = &found["default"];
            let text = default.as_str().map_or_else(|| default.to_string(), str::to_owned);
            assert_eq!(text, setting.default, "{key}");
        }
    }
    for key in FileWatch::KEYS {
        let found = &schema["properties"]["watch"]["items"]["properties"][key];
        assert!(found["description"].is_string(), "{key}");
        let value = match found["type"].as_str() {
            Some("array") => "[web]",
            Some("boolean") => "true",
            _ => "web",
        };
        let yaml = match key {
            "resource" => "watch: [{resource: pods}]".to_owned(),
            key => format!("watch: [{{resource: pods, {key}: {value}}}]"),
        };
        ServeSettings::from_yaml(&yaml, &|_| None).unwrap();
    }
}

/// The rows of the README's table of limits.
fn limits_table() -> String {
    let limits = settings().iter().filter(|setting| is_limit(setting));
    limits.map(|limit| format!("| `{}` | {} | {} |\n", limit.flag(), limit.default, reason(limit))).collect()
}

/// A setting's help without its default: what it does, and the reason for the default.
fn reason(setting: &Setting) -> String {
    let at = ["[default", "[repeatable"].iter().find_map(|mark| setting.help.find(mark));
    let (before, rest) = setting.help.split_at(at.unwrap_or(setting.help.len()));
    let (within, after) = rest.trim_start_matches('[').split_once(']').unwrap_or_default();
    let within = within.replace(&format!("default {}", setting.default), "");
    let within = within.trim_start_matches([':', ',', ';', ' ']);
    if within.is_empty() { format!("{}{after}", before.trim()) } else { format!("{before}({within}){after}") }
}

/// The value after a flag. That of a switch may be left out, and needs the sign.
fn shown_value(form: Form) -> String {
    let name = form.value_name();
    if form == Form::Switch { format!("[={name}]") } else { format!(" {name}") }
}

/// The text of docs/settings.md.
fn page() -> String {
    let mut page = "# Settings\n\n\
        <!-- Made from src/config/table.rs: UPDATE_DOCS=1 cargo test --lib every_document -->\n\n\
        Every setting has a flag, a variable and a key of the file given with `--config`. The flag wins over the variable, the\n\
        variable over the file. A change of a setting marked *restart* needs a restart; a reload only warns of it. The others\n\
        are applied when the file changes, or on SIGHUP. A flag, a variable or a key that does not exist is refused, as is a value that\n\
        does not fit, with exit code 2. `informerd config-schema` prints a JSON Schema of the file, for an editor.\n"
        .to_owned();
    let mut heading = "";
    for setting in settings() {
        if setting.heading != heading {
            heading = setting.heading;
            let of = if setting.key.is_none() { " (demo)" } else { "" };
            page.push_str(&format!(
                "\n## {heading}{of}\n\n| flag, variable, key | default | reload | what it does, and why its default is what it is |\n\
                 |---|---|---|---|\n"
            ));
        }
        let key = setting.key.as_ref().map_or_else(String::new, |key| format!("<br>`{key}`"));
        let default =
            if setting.default.is_empty() { String::new() } else { format!("`{}`", setting.default) };
        let reload = match setting.reload {
            Reload::Applied => "applied",
            Reload::Restart => "restart",
        };
        page.push_str(&format!(
            "| `{}{}`<br>`{}`{key} | {default} | {reload} | {} |\n",
            setting.flag(),
            shown_value(setting.form),
            setting.variable(),
            reason(setting).replace('|', "\\|")
        ));
    }
    page
}

#[test]
fn every_document_has_the_table_of_settings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let schema = format!("{:#}\n", schema());
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let head = "| limit | default | what it bounds |\n|---|---|---|\n";
    let (before, rest) = readme.split_once(head).expect("the table of limits");
    let (_, after) = rest.split_once("\n\n").expect("its end");
    let readme = format!("{before}{head}{}\n{after}", limits_table());
    for (file, text) in
        [("README.md", readme), ("docs/settings.md", page()), ("docs/config.schema.json", schema)]
    {
        let path = root.join(file);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == text,
            "{file} is not what the table of settings gives: UPDATE_DOCS=1 cargo test --lib every_document"
        );
    }
}
