//! Logs, metrics, and the report of a panic.
//!
//! Each room describes and records its metrics through the `metrics` facade under the prefix `informerd_<room>_`. Names are
//! written in full (`informerd_hub_resets_total`), so that a name on the metrics page can be found in the code. This file
//! has the recorder behind the facade, and the metrics of the process.

use std::io::{IsTerminal, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// Whether the log is JSON, in which a line of plain text would be lost.
static JSON_LOG: AtomicBool = AtomicBool::new(false);

/// Time between two rounds of upkeep. Until then histograms keep their raw samples.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Upper bounds of histograms of durations: from 0.1 ms (a snapshot from memory) to a minute (a long poll).
const SECONDS_BUCKETS: [f64; 15] =
    [0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];

/// Upper bounds of the histograms of work queues: as client-go has them, for its dashboards.
///
/// Source: Kubernetes `component-base/metrics/prometheus/workqueue/metrics.go`, `ExponentialBuckets(10e-9, 10, 12)`.
const WORK_BUCKETS: [f64; 12] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0];

/// Upper bounds of histograms of sizes: 256 bytes to 256 MiB, each four times the one before.
const BYTES_BUCKETS: [f64; 11] = [
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
    268_435_456.0,
];

/// Upper bounds of histograms of counts, such as objects in a batch.
const COUNT_BUCKETS: [f64; 12] =
    [0.0, 1.0, 2.0, 5.0, 10.0, 25.0, 100.0, 250.0, 1000.0, 2500.0, 10_000.0, 100_000.0];

/// The metrics of the process. Cheap to clone; clones share the recorder.
#[derive(Clone)]
pub struct Metrics {
    handle: PrometheusHandle,
    process: metrics_process::Collector,
}

// === impl Metrics ===

impl Metrics {
    /// Makes the recorder and installs it for the whole process.
    ///
    /// # Errors
    /// If one is installed already.
    pub fn install() -> anyhow::Result<Self> {
        let recorder = builder()?.build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).context("cannot install the metrics recorder")?;
        let metrics = Self { handle, process: metrics_process::Collector::default() };
        metrics.process.describe();
        describe_build();
        Ok(metrics)
    }

    /// A separate recorder for tests that read what was counted: pass it to `metrics::with_local_recorder`.
    ///
    /// # Errors
    /// None, as the bounds in this file are not empty.
    pub fn local() -> anyhow::Result<(Self, metrics_exporter_prometheus::PrometheusRecorder)> {
        let recorder = builder()?.build_recorder();
        let handle = recorder.handle();
        Ok((Self { handle, process: metrics_process::Collector::default() }, recorder))
    }

    /// All metrics in Prometheus' text format. Those of the process are read now.
    pub fn render(&self) -> String {
        self.process.collect();
        self.handle.render()
    }

    /// Folds the raw samples of histograms from time to time, so that they do not grow between scrapes. Runs until it is
    /// dropped or aborted.
    pub async fn upkeep(self) {
        let mut interval = tokio::time::interval(UPKEEP_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            self.handle.run_upkeep();
        }
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

/// Starts the log on stderr, and logs panics there, too.
///
/// # Errors
/// If a log was started already.
pub fn init_log(log: &Log) -> anyhow::Result<()> {
    let mut filter = EnvFilter::try_new(log.filter.as_str()).context("cannot read the log filter")?;
    if !log.filter.as_str().contains("kube_client") {
        // It logs an error for each failed connection, which the reflector logs once, in a sentence.
        filter = filter.add_directive("kube_client=off".parse().context("a constant")?);
    }
    let terminal = std::io::stderr().is_terminal();
    let json = match log.format {
        LogFormat::Auto => !terminal,
        LogFormat::Json => true,
        LogFormat::Text => false,
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = if json {
        builder.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init()
    } else {
        builder.with_ansi(terminal && std::env::var_os("NO_COLOR").is_none()).with_target(false).try_init()
    };
    JSON_LOG.store(json && started.is_ok(), Ordering::Relaxed);
    started.map_err(|error| anyhow::anyhow!(error)).context("cannot start the log")?;
    log_panics();
    Ok(())
}

/// Prints why the process ends: as a log line if the log is JSON, else as text, which also works before a log was started.
pub fn last_words(error: &anyhow::Error) {
    let words = sentences(error);
    if JSON_LOG.load(Ordering::Relaxed) && tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!(error = words, "ends");
    } else {
        let _ = writeln!(std::io::stderr(), "error: {words}");
    }
}

/// An error and its causes, leaving out a cause with which the text so far ends.
fn sentences(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Logs panics, which otherwise would be lines of plain text among JSON.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let payload = panic.payload();
        let message = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("(no message)");
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current();
        let backtrace = std::backtrace::Backtrace::capture();
        tracing::error!(
            message_of_panic = message,
            location,
            thread = thread.name().unwrap_or("unnamed"),
            %backtrace,
            "panicked"
        );
    }));
}

fn builder() -> anyhow::Result<PrometheusBuilder> {
    // Recommended naming appends a missing `_total` or unit and does not change a full name, so it catches a name that is
    // not written in full. Without bounds a histogram would be rendered as a summary, which cannot be summed over
    // replicas.
    let suffix = |suffix: &str| Matcher::Suffix(suffix.to_owned());
    let full = |name: &str| Matcher::Full(name.to_owned());
    PrometheusBuilder::new()
        .with_recommended_naming(true)
        .set_buckets(&COUNT_BUCKETS)
        .and_then(|builder| builder.set_buckets_for_metric(suffix("_seconds"), &SECONDS_BUCKETS))
        .and_then(|builder| {
            builder.set_buckets_for_metric(full("workqueue_queue_duration_seconds"), &WORK_BUCKETS)
        })
        .and_then(|builder| {
            builder.set_buckets_for_metric(full("workqueue_work_duration_seconds"), &WORK_BUCKETS)
        })
        .and_then(|builder| builder.set_buckets_for_metric(suffix("_duration"), &SECONDS_BUCKETS))
        .and_then(|builder| builder.set_buckets_for_metric(suffix("_bytes"), &BYTES_BUCKETS))
        .context("cannot set the bounds of histograms")
}

fn describe_build() {
    metrics::describe_gauge!("informerd_build_info", "Always 1; the version is in the label");
    metrics::gauge!("informerd_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_names_are_exported_unchanged() {
        let (metrics, recorder) = Metrics::local().unwrap();
        let page = metrics::with_local_recorder(&recorder, || {
            describe_build();
            metrics::describe_histogram!(
                "informerd_http_request_duration_seconds",
                metrics::Unit::Seconds,
                "Time to answer"
            );
            metrics::histogram!("informerd_http_request_duration_seconds").record(0.002);
            metrics::describe_counter!("informerd_test_closes_total", "Streams closed");
            metrics::counter!("informerd_test_closes_total", "reason" => "lagged").increment(1);
            metrics::describe_gauge!("informerd_cache_bytes", metrics::Unit::Bytes, "Bytes held");
            metrics::gauge!("informerd_cache_bytes").set(7.0);
            metrics::histogram!("informerd_test_lag_revisions").record(3.0);
            metrics.render()
        });
        for line in [
            &*format!("informerd_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")),
            "informerd_http_request_duration_seconds_bucket{le=\"0.0025\"} 1",
            "informerd_test_closes_total{reason=\"lagged\"} 1",
            "informerd_cache_bytes 7",
            "informerd_test_lag_revisions_bucket{le=\"5\"} 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} not in\n{page}");
        }
    }
}
