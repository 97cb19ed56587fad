//! informerd: the Kubernetes informer as a daemon.

pub mod cache;
pub mod hub;
pub mod k8s;
pub mod sim;
