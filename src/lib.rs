//! informerd: the Kubernetes informer as a daemon.

pub mod app;
pub mod cache;
pub mod cli;
pub mod config;
pub mod encode;
pub mod hub;
pub mod k8s;
pub mod rbac;
pub mod reflect;
pub mod serve;
pub mod sim;
pub mod telemetry;
pub mod upstream;
