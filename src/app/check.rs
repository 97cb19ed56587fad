//! `informerd check`: reports on configuration, connection and permissions.

use std::io::Write as _;

use serde::Serialize;

use super::check_size::size;
use super::compare::Comparer;
use super::informers::fits;
use super::run::upstream_config;
use crate::config::{self, LeaseName, Output, WatchSpec};
use crate::k8s::Resource;
use crate::reflect::{Difference, ObjectState, Verification};
use crate::upstream::{Access, Client, Discovery, PageRequest, Selectors, Target, UpstreamError};

/// Number of differences that a text report names; a JSON report names all.
const DIFFERENCES_TOLD_MAX: usize = 100;

/// The result of one check.
#[derive(Serialize)]
struct Finding {
    what: String,
    ok: bool,
    /// Right, but perhaps not what was meant.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    warning: bool,
    detail: String,
    /// Whether `serve` would refuse to start.
    #[serde(skip)]
    misconfigured: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    differences: Vec<Told>,
}

/// A difference, for the report.
#[derive(Serialize)]
struct Told {
    key: String,
    kind: &'static str,
    listed: Option<ToldState>,
    held: Option<ToldState>,
}

#[derive(PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ToldState {
    uid: String,
    resource_version: Option<String>,
}

/// The outcome of `informerd check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything is right.
    Right,
    /// Something is wrong, or differs.
    Wrong,
    /// `serve` would refuse the configuration.
    Misconfigured,
}

/// Checks configuration, connection and permissions, and prints a report.
///
/// # Errors
/// If the report could not be printed.
pub async fn check(config: config::Check) -> anyhow::Result<Verdict> {
    let findings = examine(&config).await;
    let verdict = match findings.iter().any(|finding| finding.misconfigured) {
        true => Verdict::Misconfigured,
        false if findings.iter().all(|finding| finding.ok) => Verdict::Right,
        false => Verdict::Wrong,
    };
    let ok = verdict == Verdict::Right;
    let mut out = std::io::stdout().lock();
    match config.output {
        Output::Json => {
            let report = serde_json::json!({ "ok": ok, "findings": findings });
            writeln!(out, "{report}")?;
        }
        Output::Text => {
            for Finding { what, ok, warning, detail, differences, .. } in &findings {
                let outcome = match (ok, warning) {
                    (false, _) => "FAIL",
                    (true, true) => "WARN",
                    (true, false) => "ok  ",
                };
                writeln!(out, "{outcome} {what}: {detail}")?;
                for Told { key, kind, listed, held } in differences.iter().take(DIFFERENCES_TOLD_MAX) {
                    let state = |state: &Option<ToldState>| {
                        state.as_ref().map_or("nothing".to_owned(), ToldState::text)
                    };
                    if listed == held {
                        // Restored from a backup, a cluster may write an object at the same version again.
                        writeln!(out, "     {kind} {key}: other content at {}", state(listed))?;
                        continue;
                    }
                    writeln!(out, "     {kind} {key}: listed {}, held {}", state(listed), state(held))?;
                }
                if let Some(more) =
                    differences.len().checked_sub(DIFFERENCES_TOLD_MAX).filter(|more| *more > 0)
                {
                    writeln!(out, "     and {more} more")?;
                }
            }
        }
    }
    Ok(verdict)
}

/// The findings for informers on demand, which are known only once a client asks.
fn on_demand(pattern: &config::Pattern) -> Finding {
    let detail = "starts when a client asks for one; whether it may be read is not checked here".to_owned();
    Finding::new(&format!("on demand {pattern}"), Ok(detail))
}

async fn examine(config: &config::Check) -> Vec<Finding> {
    let mut findings = vec![Finding::new(
        "configuration",
        Ok(format!("{} watches, from {}", config.watches.len(), config.upstream)),
    )];
    findings.extend(config.exposure.as_deref().map(Finding::exposed));
    let client =
        match Client::connect(upstream_config(&config.upstream, !config.watch_http2, &config.limits)).await {
            Ok(client) => client,
            Err(error) => {
                findings.push(Finding::refused("connection", error.sentence()));
                return findings;
            }
        };
    let version = client.version().await;
    let reached = version.is_ok();
    findings.push(Finding::new("connection", version.map_err(|error| error.sentence())));
    if !reached {
        return findings;
    }
    let discovery = match client.discover().await {
        Ok(discovery) => discovery,
        Err(error) => {
            findings.push(Finding::new("discovery", Err(error.sentence())));
            return findings;
        }
    };
    for broken in discovery.broken() {
        let why = format!("{}; its kinds cannot be watched until it answers", broken.reason);
        findings.push(Finding::new(&format!("API {}", broken.group_version), Ok(why)));
    }
    let wildcards = config.on_demand.patterns.iter().filter(|pattern| pattern.is_wildcard());
    findings.extend(wildcards.map(on_demand));
    if let Some(election) = &config.election {
        findings.extend(election_permissions(&client, &election.lease).await);
    }
    findings.extend(watched(config, &client, &discovery).await);
    findings
}

/// Whether the kinds to watch are served and may be read, and whether caches equal the API server where that is wanted.
async fn watched(config: &config::Check, client: &Client, discovery: &Discovery) -> Vec<Finding> {
    let mut findings = Vec::new();
    let comparer = match Comparer::new(config, client).await {
        Ok(comparer) => comparer,
        Err(why) => {
            findings.push(Finding::new("informerd", Err(why)));
            None
        }
    };
    let mut seen: Vec<Resource> = Vec::new();
    let named = config.on_demand.patterns.iter().filter(|pattern| !pattern.is_wildcard());
    let named: Vec<_> = named.map(|pattern| config.on_demand.spec(pattern.as_str())).collect();
    let watches = config.watches.iter().map(|spec| (spec, false));
    for (spec, may_start) in watches.chain(named.iter().map(|spec| (spec, true))) {
        let resource = match discovery.resolve(&spec.resource) {
            Ok(resource) => resource,
            Err(error) => {
                findings.push(Finding::new(&spec.resource, Err(error.to_string())));
                continue;
            }
        };
        if may_start && seen.iter().any(|other| other.canonical() == resource.canonical()) {
            // It is watched anyway, and never has to be started.
            continue;
        }
        if let Err(why) = fits(spec, &resource, &seen) {
            findings.push(Finding::refused(&spec.to_string(), why));
            continue;
        }
        seen.push(resource.clone());
        for target in targets(spec, &resource) {
            let permissions = permissions(client, &target).await;
            let allowed = permissions.iter().all(|finding| finding.ok);
            findings.extend(permissions);
            if allowed {
                let what = format!("size of {} in {}", target.resource, place(&target));
                findings.push(Finding::new(&what, size(client, spec, &target, &config.limits).await));
            }
            if allowed && !target.selectors.field.is_empty() {
                findings.push(selected(client, &target).await);
            }
            if let (Some(comparer), true) = (&comparer, allowed) {
                let what = format!("compare {} in {}", target.resource, place(&target));
                findings.push(Finding::compared(&what, comparer.compare(spec, &target).await));
            }
        }
    }
    findings
}

/// The targets of a watch: one for all namespaces, or one for each.
fn targets(spec: &WatchSpec, resource: &Resource) -> Vec<Target> {
    let namespaces = match &*spec.namespaces {
        namespaces if namespaces.is_empty() || !resource.namespaced() => vec![None],
        namespaces => namespaces.iter().cloned().map(Some).collect(),
    };
    let target = |namespace| Target {
        resource: resource.clone(),
        namespace,
        selectors: Selectors {
            label: spec.label_selector.clone().unwrap_or_default(),
            field: spec.field_selector.clone().unwrap_or_default(),
        },
        metadata_only: spec.metadata_only,
    };
    namespaces.into_iter().map(target).collect()
}

fn place(target: &Target) -> String {
    target.namespace.as_deref().map_or("all namespaces".to_owned(), |name| format!("namespace {name}"))
}

async fn permissions(client: &Client, target: &Target) -> Vec<Finding> {
    let mut findings = Vec::new();
    for verb in ["list", "watch"] {
        let result = match client.can(verb, target).await {
            // RBAC has no permission for metadata alone.
            Ok(access) if access.allowed && target.metadata_only => {
                Ok("allowed; only metadata is asked for, though the permission covers all".to_owned())
            }
            answer => permitted(answer),
        };
        findings.push(Finding::new(&format!("{verb} {} in {}", target.resource, place(target)), result));
    }
    findings
}

/// Whether informerd may take part in the election of the queues' leader.
async fn election_permissions(client: &Client, lease: &LeaseName) -> Vec<Finding> {
    let namespace = match &lease.namespace {
        Some(namespace) => namespace.clone(),
        None => client.own_namespace().await,
    };
    let mut findings = Vec::new();
    for verb in ["get", "create", "update"] {
        let result = permitted(client.can_lease(verb, &namespace, &lease.name).await);
        findings.push(Finding::new(&format!("{verb} lease {} in namespace {namespace}", lease.name), result));
    }
    findings
}

/// What the answer to a permission review means.
fn permitted(answer: Result<Access, UpstreamError>) -> Result<String, String> {
    match answer {
        Ok(access) if access.allowed => Ok("allowed".to_owned()),
        Ok(access) => {
            let why = if access.reason.is_empty() { "" } else { " because " };
            let why = format!("not allowed{why}{}", access.reason);
            Err(format!("{why}: `informerd rbac` prints what to grant"))
        }
        Err(error) => Err(error.sentence()),
    }
}

/// Whether the API server accepts the field selector. Only it knows by which fields a kind can be selected.
async fn selected(client: &Client, target: &Target) -> Finding {
    let page = PageRequest { limit: 1, metadata_only: true, ..PageRequest::default() };
    let result = client.list_page(target, &page).await;
    let field = &target.selectors.field;
    let result = result.map(|_| format!("fieldSelector {field} is taken")).map_err(|error| error.sentence());
    Finding::new(&format!("select {} in {}", target.resource, place(target)), result)
}

// === impl Finding ===

impl Finding {
    fn new(what: &str, result: Result<String, String>) -> Self {
        let (what, ok) = (what.to_owned(), result.is_ok());
        let detail = result.unwrap_or_else(|why| why);
        Self { what, ok, warning: false, detail, misconfigured: false, differences: Vec::new() }
    }

    fn exposed(exposure: &str) -> Self {
        Self { warning: true, ..Self::new("listener", Ok(exposure.to_owned())) }
    }

    /// A finding that keeps `serve` from starting.
    fn refused(what: &str, why: String) -> Self {
        Self { misconfigured: true, ..Self::new(what, Err(why)) }
    }

    fn compared(what: &str, result: Result<Verification, String>) -> Self {
        let Verification { resource_version, objects, differences } = match result {
            Ok(verification) => verification,
            Err(why) => return Self::new(what, Err(why)),
        };
        let same = format!("{objects} objects at resourceVersion {resource_version}");
        if differences.is_empty() {
            return Self::new(what, Ok(format!("{same}, all the same")));
        }
        let detail = format!("{} differences among {same}", differences.len());
        let differences = differences.into_iter().map(Told::from).collect();
        Self { differences, ..Self::new(what, Err(detail)) }
    }
}

// === impl Told ===

impl From<Difference> for Told {
    fn from(difference: Difference) -> Self {
        let kind = difference.kind().as_str();
        let Difference { key, listed, held } = difference;
        Self {
            key: key.to_string(),
            kind,
            listed: listed.map(ToldState::from),
            held: held.map(ToldState::from),
        }
    }
}

// === impl ToldState ===

impl ToldState {
    fn text(&self) -> String {
        let version = self.resource_version.as_deref().unwrap_or("?");
        format!("resourceVersion {version} of {}", self.uid)
    }
}

impl From<ObjectState> for ToldState {
    fn from(state: ObjectState) -> Self {
        let resource_version = state.version.map(|version| version.to_string());
        Self { uid: state.uid.into(), resource_version }
    }
}
