//! Leases, which are read and written for leader election.

use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{Method, Request};
use percent_encoding::utf8_percent_encode;
use serde_json::Value;

use super::client::{AGENT, ERROR_BYTES_MAX, JSON, QUERY_VALUE};
use super::metrics::Verb;
use super::{Client, UpstreamError};

impl Client {
    /// The namespace of the credentials: that of the pod, or of the kubeconfig's context; `default` where there is none.
    pub async fn own_namespace(&self) -> String {
        self.session().await.kube.default_namespace().to_owned()
    }

    /// A Lease.
    ///
    /// # Errors
    /// As [`Client::list_page`]; [`UpstreamError::Garbage`] when the answer is no JSON.
    pub async fn lease(&self, namespace: &str, name: &str) -> Result<Value, UpstreamError> {
        let path = format!("{}/{}", leases(namespace), utf8_percent_encode(name, QUERY_VALUE));
        let answer = self.document(&path, JSON).await?;
        serde_json::from_slice(&answer).map_err(UpstreamError::Garbage)
    }

    /// Writes a Lease. One with a `metadata.resourceVersion` replaces that version; one without is created. Returns what is
    /// stored.
    ///
    /// # Errors
    /// As [`Client::lease`]; [`UpstreamError::Refused`] with 409 if another version is the current one, or if it exists already.
    pub async fn write_lease(&self, lease: &Value) -> Result<Value, UpstreamError> {
        let text = |name: &str| lease["metadata"][name].as_str().unwrap_or_default();
        let mut path = leases(text("namespace"));
        let is_new = text("resourceVersion").is_empty();
        let (verb, method) = if is_new { (Verb::Create, Method::POST) } else { (Verb::Update, Method::PUT) };
        if !is_new {
            path.push('/');
            path.extend(utf8_percent_encode(text("name"), QUERY_VALUE));
        }
        let request = Request::builder().method(method).uri(path);
        let request = request.header(USER_AGENT, AGENT).header(ACCEPT, JSON).header(CONTENT_TYPE, JSON);
        let response = self.send(verb, request.body(lease.to_string().into_bytes().into())).await?;
        let answer = self.collect(response, ERROR_BYTES_MAX).await?;
        serde_json::from_slice(&answer).map_err(UpstreamError::Garbage)
    }
}

/// The path of the Leases of a namespace.
fn leases(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", utf8_percent_encode(namespace, QUERY_VALUE))
}
