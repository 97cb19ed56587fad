//! `informerd demo`: an embedded cluster in which things happen, followed by informerd over a socket.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::run::{App, Hangup, Signals};
use crate::sim::{ApiServer, Cluster, ClusterConfig, Scenario};
use crate::{config, telemetry};

/// The resources that the demo watches: all that its cluster uses.
const RESOURCES: [&str; 9] = [
    "pods",
    "deployments.apps",
    "replicasets.apps",
    "nodes",
    "services",
    "configmaps",
    "namespaces",
    "events",
    "widgets.demo.informerd.dev",
];
/// Size of the additional pods: about that of a real one without managedFields.
const POD_BYTES: usize = 5 << 10;

/// Serves the embedded cluster until a signal ends it.
///
/// # Errors
/// If a listener could not be bound, or the file of `--kubeconfig-out` not be written.
pub async fn demo(config: config::Demo, metrics: telemetry::Metrics) -> anyhow::Result<()> {
    let signals = Signals::new(Hangup::Ends)?;
    let seed = config.seed.unwrap_or_else(rand::random);
    let cluster = Cluster::new(ClusterConfig { seed, ..ClusterConfig::default() });
    let scenario = Scenario::new(cluster.clone(), seed, config.rate);
    if config.pods > 0 {
        cluster
            .bulk_load("pods", config.pods, POD_BYTES)
            .map_err(|status| anyhow::anyhow!(status.message))?;
    }
    let api_server = ApiServer::bind(cluster, config.api_listen)
        .await
        .with_context(|| format!("cannot listen on {} (--api-listen)", config.api_listen))?;
    let kubeconfig = write_kubeconfig(&config, &api_server)?;
    tokio::spawn(metrics.clone().upkeep());
    let cancel = CancellationToken::new();
    tokio::spawn(scenario.run(cancel.clone()));
    let app =
        App::start(config.serve(api_server.url(), &RESOURCES), Arc::new(move || metrics.render())).await?;
    print(&app, &config, seed, kubeconfig.as_deref())?;
    let ended = app.run(signals).await;
    cancel.cancel();
    if let (Some(kubeconfig), None) = (kubeconfig, config.kubeconfig_out) {
        let _ = std::fs::remove_file(kubeconfig);
    }
    ended
}

/// Writes a kubeconfig for the embedded cluster. A container image may have no folder for temporary files: then there is none, unless one
/// is asked for.
fn write_kubeconfig(config: &config::Demo, api_server: &ApiServer) -> anyhow::Result<Option<PathBuf>> {
    let asked = config.kubeconfig_out.clone();
    let path = asked.unwrap_or_else(|| {
        std::env::temp_dir().join(format!("informerd-demo-{}.kubeconfig", std::process::id()))
    });
    match (std::fs::write(&path, api_server.kubeconfig()), &config.kubeconfig_out) {
        (Ok(()), _) => Ok(Some(path)),
        (Err(error), None) => {
            warn!(path = %path.display(), %error, "no kubeconfig for the embedded cluster; --kubeconfig-out names another file");
            Ok(None)
        }
        (Err(error), Some(_)) => {
            Err(error).with_context(|| format!("cannot write {} (--kubeconfig-out)", path.display()))
        }
    }
}

/// What to try.
fn print(app: &App, config: &config::Demo, seed: u64, kubeconfig: Option<&Path>) -> anyhow::Result<()> {
    let (curl, base) = match app.address {
        Some(address) => ("curl".to_owned(), format!("http://{address}")),
        None => {
            let path = config.settings.listen.to_string();
            (
                format!("curl --unix-socket {}", path.trim_start_matches("unix:")),
                "http://localhost".to_owned(),
            )
        }
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "\ninformerd runs against an embedded cluster. Try:\n")?;
    if app.address.is_some() {
        writeln!(out, "  the page        {base}/")?;
    }
    writeln!(out, "  a snapshot      {curl} -s '{base}/v1/snapshot/pods'")?;
    writeln!(out, "  a stream        {curl} -N '{base}/v1/watch/pods'")?;
    writeln!(
        out,
        "  as lines        {curl} -N -H 'Accept: application/x-ndjson' '{base}/v1/watch/pods,deployments/shop'"
    )?;
    writeln!(out, "  the informers   {curl} -s '{base}/v1/resources'")?;
    if let Some(admin) = app.admin_address {
        writeln!(
            out,
            "  probes, metrics curl -s 'http://{admin}/readyz?verbose'; curl -s http://{admin}/metrics"
        )?;
    }
    if app.address.is_some() {
        writeln!(out, "\nkubectl reads from informerd, too:\n")?;
        writeln!(out, "  kubectl --server {base} get deployments -A")?;
        writeln!(out, "  kubectl --server {base} get pods -A --watch")?;
    }
    if let Some(kubeconfig) = kubeconfig {
        writeln!(
            out,
            "\nand changes the embedded cluster itself, which the page and the streams show at once:\n"
        )?;
        writeln!(out, "  export KUBECONFIG={}", kubeconfig.display())?;
        writeln!(out, "  kubectl -n shop scale deployment web --replicas 5")?;
        writeln!(out, "  kubectl -n shop delete pod -l app=web")?;
    }
    writeln!(
        out,
        "\nCtrl-C ends it; --seed {seed} plays it again. Warnings are logged; --log info tells more.\n"
    )?;
    out.flush()?;
    Ok(())
}
