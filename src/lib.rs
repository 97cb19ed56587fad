//! informerd: the Kubernetes informer as a daemon.

pub mod app;
pub mod cache;
pub mod cli;
pub mod config;
pub mod k8s;
pub mod rbac;
pub mod telemetry;
