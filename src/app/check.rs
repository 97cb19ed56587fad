//! `informerd check`: configuration, connection and permissions, told plainly.

use std::io::Write as _;

use serde::Serialize;

use super::upstream_config;
use crate::config::{self, Limits, Output};
use crate::upstream::{Client, Selectors, Target};

/// One thing that was looked at.
#[derive(Serialize)]
struct Finding {
    what: String,
    ok: bool,
    detail: String,
}

/// Tells whether configuration, connection and permissions are right; `false` where they are not.
///
/// # Errors
/// What kept it from telling: standard output.
pub async fn check(config: config::Check) -> anyhow::Result<bool> {
    let findings = examine(&config).await;
    let ok = findings.iter().all(|finding| finding.ok);
    let mut out = std::io::stdout().lock();
    match config.output {
        Output::Json => {
            let report = serde_json::json!({ "ok": ok, "findings": findings });
            writeln!(out, "{report}")?;
        }
        Output::Text => {
            for Finding { what, ok, detail } in &findings {
                writeln!(out, "{} {what}: {detail}", if *ok { "ok  " } else { "FAIL" })?;
            }
        }
    }
    Ok(ok)
}

/// What may start is only known once somebody asks.
fn on_demand(pattern: &config::Pattern) -> Finding {
    let detail = "starts when a client asks for one; whether it may be read is not checked here".to_owned();
    Finding { what: format!("on demand {pattern}"), ok: true, detail }
}

async fn examine(config: &config::Check) -> Vec<Finding> {
    let finding = |what: &str, result: Result<String, String>| Finding {
        what: what.to_owned(),
        ok: result.is_ok(),
        detail: result.unwrap_or_else(|why| why),
    };
    let mut findings = vec![finding(
        "configuration",
        Ok(format!("{} watches, from {}", config.watches.len(), config.upstream)),
    )];
    let client = match Client::connect(upstream_config(&config.upstream, &Limits::DEFAULT)).await {
        Ok(client) => client,
        Err(error) => {
            findings.push(finding("connection", Err(error.sentence())));
            return findings;
        }
    };
    let version = client.version().await;
    let reached = version.is_ok();
    findings.push(finding("connection", version.map_err(|error| error.sentence())));
    if !reached {
        return findings;
    }
    let discovery = match client.discover().await {
        Ok(discovery) => discovery,
        Err(error) => {
            findings.push(finding("discovery", Err(error.sentence())));
            return findings;
        }
    };
    for broken in discovery.broken() {
        let why = format!("{}; its kinds cannot be watched until it answers", broken.reason);
        findings.push(finding(&format!("API {}", broken.group_version), Ok(why)));
    }
    findings.extend(config.wildcards.iter().map(on_demand));
    for spec in &config.watches {
        let resource = match discovery.resolve(&spec.resource) {
            Ok(resource) => resource,
            Err(error) => {
                findings.push(finding(&spec.resource, Err(error.to_string())));
                continue;
            }
        };
        let scopes = match &*spec.namespaces {
            namespaces if namespaces.is_empty() || !resource.namespaced() => vec![None],
            namespaces => namespaces.iter().cloned().map(Some).collect(),
        };
        for namespace in scopes {
            let place =
                namespace.as_deref().map_or("all namespaces".to_owned(), |name| format!("namespace {name}"));
            let (resource, selectors) = (resource.clone(), Selectors::default());
            let target = Target { resource, namespace, selectors, metadata_only: false };
            for verb in ["list", "watch"] {
                let result = match client.can(verb, &target).await {
                    Ok(access) if access.allowed => Ok("allowed".to_owned()),
                    Ok(access) => {
                        let why = if access.reason.is_empty() { "" } else { " because " };
                        let why = format!("not allowed{why}{}", access.reason);
                        Err(format!("{why}: `informerd rbac` prints what to grant"))
                    }
                    Err(error) => Err(error.sentence()),
                };
                findings.push(finding(&format!("{verb} {} in {place}", target.resource), result));
            }
        }
    }
    findings
}
