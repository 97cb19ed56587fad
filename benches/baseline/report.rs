//! Results: each a line of the table, and together JSON.

use serde::Serialize;

/// One result.
#[derive(Serialize)]
pub(crate) struct Row {
    group: &'static str,
    case: String,
    metric: &'static str,
    value: f64,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<Against>,
}

/// The value that a result is compared with, measured in the same run.
#[derive(Serialize)]
struct Against {
    what: &'static str,
    value: f64,
    /// The result divided by that value.
    ratio: f64,
}

/// A figure of a sample: its name, its unit, and how to read it.
pub(crate) type Figure<T> = (&'static str, &'static str, fn(&T) -> f64);

/// All results so far.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Row {
    /// A result of a case in a group.
    pub(crate) fn new(group: &'static str, case: impl Into<String>) -> Self {
        Self { group, case: case.into(), metric: "", value: 0.0, unit: "", against: None }
    }

    /// The measured value.
    pub(crate) fn value(mut self, metric: &'static str, value: f64, unit: &'static str) -> Self {
        (self.metric, self.value, self.unit) = (metric, value, unit);
        self
    }

    /// The value that it is compared with.
    pub(crate) fn against(mut self, what: &'static str, value: f64) -> Self {
        self.against = Some(Against { what, value, ratio: self.value / value });
        self
    }
}

impl Report {
    /// Adds a result and prints its line.
    pub(crate) fn add(&mut self, row: Row) {
        if self.rows.is_empty() {
            let (against, ratio) = ("against", "ratio");
            println!(
                "{:<14} {:<46} {:<32} {:>20}  {against:<34} {ratio:>7}",
                "group", "case", "what", "value"
            );
        }
        let value = format!("{} {}", figure(row.value), row.unit);
        print!("{:<14} {:<46} {:<32} {value:>20}", row.group, row.case, row.metric);
        match &row.against {
            Some(Against { what, value, ratio }) => {
                println!("  {:<34} {ratio:>7.3}", format!("{what}: {}", figure(*value)));
            }
            None => println!(),
        }
        self.rows.push(row);
    }

    /// All results.
    pub(crate) fn to_json(&self, quick: bool) -> anyhow::Result<String> {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let version = env!("CARGO_PKG_VERSION");
        let report =
            serde_json::json!({ "version": version, "cores": cores, "quick": quick, "results": self.rows });
        Ok(format!("{report:#}\n"))
    }
}

/// A number with three significant digits.
fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A quantile of sorted microseconds, in milliseconds.
pub(crate) fn millis_at(sorted_micros: &[u32], quantile: f64) -> f64 {
    let at = (sorted_micros.len().saturating_sub(1) as f64 * quantile) as usize;
    sorted_micros.get(at).map_or(f64::NAN, |micros| f64::from(*micros) / 1e3)
}

/// The middle one of several measurements.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
