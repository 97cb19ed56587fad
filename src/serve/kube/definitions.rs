//! Columns of custom resources whose definitions are not watched: read from the API server from time to time.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::k8s::Resource;
use crate::k8s::table::PrinterColumn;

/// Asks the API server for a `CustomResourceDefinition` by its name. Returns its JSON, or `None` without an answer.
pub type FetchDefinition =
    Arc<dyn Fn(String) -> Pin<Box<dyn Future<Output = Option<Vec<u8>>> + Send>> + Send + Sync>;

/// Time for which an answer is kept. Definitions rarely change, and only columns are outdated until then.
const KEPT: Duration = Duration::from_secs(60);

/// Longest time that a request for a table waits. Then the client gets the form that it accepts next.
const PATIENCE: Duration = Duration::from_secs(2);

/// The columns that were read.
pub(crate) struct Definitions {
    fetch: FetchDefinition,
    /// By name and version of the resource. There are as few as followed resources.
    known: Mutex<HashMap<(String, String), Entry>>,
}

/// The columns of one resource. The first request locks it until the answer arrives, so that others do not ask, too.
type Entry = Arc<tokio::sync::Mutex<Option<Known>>>;

struct Known {
    at: Instant,
    columns: Option<Arc<[PrinterColumn]>>,
}

impl Definitions {
    /// Nothing is known yet.
    pub(crate) fn new(fetch: FetchDefinition) -> Self {
        Self { fetch, known: Mutex::default() }
    }

    /// The columns of a custom resource; `None` if the API server does not give its definition.
    pub(super) async fn columns(&self, resource: &Resource) -> Option<Arc<[PrinterColumn]>> {
        let key = (resource.canonical(), resource.version().to_owned());
        let entry = self.known.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone();
        let mut entry = entry.lock().await;
        let now = Instant::now();
        if let Some(known) = entry.as_ref().filter(|known| now.duration_since(known.at) < KEPT) {
            return known.columns.clone();
        }
        let json = timeout(PATIENCE, (self.fetch)(resource.canonical())).await.ok().flatten();
        let columns =
            json.and_then(|json| PrinterColumn::of_definition(&json, resource.version()).ok().flatten());
        let columns: Option<Arc<[PrinterColumn]>> = columns.map(Into::into);
        *entry = Some(Known { at: Instant::now(), columns: columns.clone() });
        columns
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;
    use crate::k8s::ResourceParts;

    fn widgets(version: &str) -> Resource {
        let parts = ResourceParts {
            group: "example.com".into(),
            version: version.into(),
            plural: "widgets".into(),
            ..Default::default()
        };
        Resource::new(parts)
    }

    #[tokio::test(start_paused = true)]
    async fn a_definition_is_read_at_most_once_a_minute() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let definitions = Definitions::new(Arc::new(move |name| {
            let turn = counted.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                assert_eq!(name, "widgets.example.com");
                tokio::time::sleep(Duration::from_millis(10)).await;
                let column = r#"{"name":"Size","type":"integer","jsonPath":".spec.size"}"#;
                let version = format!(r#"{{"name":"v1","additionalPrinterColumns":[{column}]}}"#);
                let json = format!(r#"{{"spec":{{"versions":[{version}]}}}}"#);
                (turn != 1).then(|| json.into_bytes())
            })
        }));
        let v1 = widgets("v1");
        let all = join_all((0..50).map(|_| definitions.columns(&v1))).await;
        assert!(all.iter().all(|columns| columns.as_ref().is_some_and(|columns| columns.len() == 1)));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        tokio::time::advance(KEPT).await;
        for _ in 0..2 {
            assert!(definitions.columns(&v1).await.is_none(), "served although it is forbidden by now");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        tokio::time::advance(KEPT).await;
        assert!(definitions.columns(&v1).await.is_some());
        assert!(
            definitions.columns(&widgets("v2")).await.is_none(),
            "the definition does not have this version"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_unanswered_request_for_a_definition_gives_no_columns() {
        let definitions = Definitions::new(Arc::new(|_| Box::pin(std::future::pending())));
        assert!(definitions.columns(&widgets("v1")).await.is_none());
    }
}
