//! Tests of several rooms together, in one binary.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "what was skipped or measured is printed")]

mod browser;
mod cli;
mod clients;
mod compressed;
mod damage;
mod deploy;
mod doors;
mod election;
mod etag;
mod faults;
mod fold;
mod graph;
mod graph_stream;
mod http2;
mod join;
mod kube;
mod limits;
mod lookup;
mod multiplex;
mod ndjson;
mod node_agent;
mod packing;
mod pod_ips;
mod queues;
mod real;
mod relist;
mod replicas;
mod restart;
mod runtime;
mod shutdown;
mod sim;
mod snapshot;
mod sse;
mod subscriptions;
mod support;
mod tidy;
mod tidy_circles;
mod tidy_docs;
mod upstream;
mod verify;
mod views;
mod waiting;
mod websocket;
mod world;
