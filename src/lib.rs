//! informerd: the Kubernetes informer as a daemon.

pub mod cache;
pub mod k8s;
pub mod reflect;
pub mod upstream;
