//! informerd: the Kubernetes informer as a daemon.

pub mod k8s;
