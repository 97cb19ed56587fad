//! Changes while informerd runs: kinds, informers on demand, and the configuration.

mod configuration;
mod kinds;
mod on_demand;

use std::net::SocketAddr;

use informerd::testing::sim::{Cluster, Counters};
use serde_json::{Value, json};

use crate::support::client::{self, Item, Stream, StreamEvent};
use crate::support::in_time;

/// The cost of one informer: a streaming list, which goes on as the watch.
const ONCE: (u64, u64) = (0, 1);

/// The numbers of lists and watches of a resource at the API server.
fn costs(cluster: &Cluster, resource: &str) -> (u64, u64) {
    let Counters { lists, watches_started, .. } = cluster.counters()[resource];
    (lists, watches_started)
}

/// The next event that is not a bookmark; panics at the end of the stream.
async fn change(stream: &mut Stream) -> StreamEvent {
    loop {
        let event = stream.next().await.expect("the stream goes on");
        if event.kind != "BOOKMARK" {
            return event;
        }
    }
}

/// Type and name of the next event that is not a bookmark.
async fn next_event(stream: &mut Stream) -> (String, String) {
    let event = change(stream).await;
    (event.kind.clone(), event.name().to_owned())
}

/// The end of a stream: the Status of its ERROR event, and the item after it.
async fn last_words(stream: &mut Stream) -> (Value, Item) {
    loop {
        let event = stream.next().await.expect("an ERROR before the end");
        if event.kind == "ERROR" {
            let end = in_time("the end", stream.item()).await;
            return (event.object, end);
        }
        assert_eq!(event.kind, "BOOKMARK");
    }
}

/// The answer of `/v1/resources`.
async fn resources(address: SocketAddr) -> Value {
    client::get(address, "/v1/resources", &[]).await.json()
}

/// The names of the informers in `/v1/resources`.
async fn names(address: SocketAddr) -> Vec<String> {
    let body = resources(address).await;
    let informers = body["informers"].as_array().expect("a list").iter();
    informers.map(|informer| informer["name"].as_str().expect("a name").to_owned()).collect()
}

/// Waits until a request is answered with this code, and returns the answer.
async fn answered(address: SocketAddr, target: &str, code: u16) -> client::Response {
    in_time(&format!("{code} for {target}"), async {
        loop {
            let answer = client::get(address, target, &[]).await;
            if answer.status() == code {
                return answer;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await
}

/// A ConfigMap with a label.
fn mk_config_map(namespace: &str, name: &str, app: &str) -> Value {
    json!({"metadata": {"namespace": namespace, "name": name, "labels": {"app": app}}, "data": {"a": "1"}})
}
