//! Permissions, and the API server's version.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Client, Target, UpstreamError};

/// The answer to a permission review.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Access {
    /// Whether the request would be allowed.
    pub allowed: bool,
    /// The reason, if the server gives one.
    pub reason: String,
}

impl Client {
    /// Asks whether informerd may `verb` (`list`, `watch`) a target, in its namespace or everywhere.
    ///
    /// # Errors
    /// As [`Client::list_page`]; [`UpstreamError::Garbage`] when the answer is no review.
    ///
    /// Source: `authorization.k8s.io/v1 SelfSubjectAccessReview`.
    pub async fn can(&self, verb: &str, target: &Target) -> Result<Access, UpstreamError> {
        self.may(json!({
            "namespace": target.namespace.as_deref().unwrap_or_default(),
            "verb": verb,
            "group": target.resource.group(),
            "version": target.resource.version(),
            "resource": target.resource.plural(),
        }))
        .await
    }

    /// Asks whether informerd may `verb` (`get`, `create`, `update`) a Lease.
    ///
    /// # Errors
    /// As [`Client::can`].
    pub async fn can_lease(&self, verb: &str, namespace: &str, name: &str) -> Result<Access, UpstreamError> {
        let mut attributes = json!({
            "namespace": namespace,
            "verb": verb,
            "group": "coordination.k8s.io",
            "version": "v1",
            "resource": "leases",
        });
        // A request that creates does not carry the name where permissions are checked.
        if verb != "create" {
            attributes["name"] = name.into();
        }
        self.may(attributes).await
    }

    /// Asks for a permission by its attributes.
    async fn may(&self, attributes: Value) -> Result<Access, UpstreamError> {
        #[derive(Deserialize)]
        struct Review {
            status: Access,
        }
        let review = json!({
            "kind": "SelfSubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "spec": {"resourceAttributes": attributes},
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer = self.review(path, review.to_string().into_bytes()).await?;
        let review: Review = serde_json::from_slice(&answer).map_err(UpstreamError::Garbage)?;
        Ok(review.status)
    }

    /// The API server's own version: `v1.36.0`.
    ///
    /// # Errors
    /// As [`Client::list_page`]; [`UpstreamError::Garbage`] when the answer is no version.
    pub async fn version(&self) -> Result<String, UpstreamError> {
        #[derive(Deserialize)]
        struct Version {
            #[serde(rename = "gitVersion")]
            git_version: String,
        }
        let answer = self.document("/version", "application/json").await?;
        let version: Version = serde_json::from_slice(&answer).map_err(UpstreamError::Garbage)?;
        Ok(version.git_version)
    }
}
