//! What we may do, and whom we talk to.

use serde::Deserialize;

use super::{Client, Target, UpstreamError};

/// Whether something is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Access {
    /// Whether it is.
    pub allowed: bool,
    /// Why, as far as the server tells.
    pub reason: String,
}

impl Client {
    /// Whether we may `verb` (`list`, `watch`) a target, in its namespace or everywhere.
    ///
    /// # Errors
    /// As [`Client::list_page`]; [`UpstreamError::Garbage`] when the answer is no review.
    ///
    /// Source: `authorization.k8s.io/v1 SelfSubjectAccessReview`.
    pub async fn can(&self, verb: &str, target: &Target) -> Result<Access, UpstreamError> {
        #[derive(Deserialize)]
        struct Review {
            status: Access,
        }
        let review = serde_json::json!({
            "kind": "SelfSubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "spec": {"resourceAttributes": {
                "namespace": target.namespace.as_deref().unwrap_or_default(),
                "verb": verb,
                "group": target.resource.group(),
                "version": target.resource.version(),
                "resource": target.resource.plural(),
            }},
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer = self.review(path, review.to_string().into_bytes()).await?;
        let review: Review = serde_json::from_slice(&answer).map_err(UpstreamError::Garbage)?;
        Ok(review.status)
    }

    /// The API server's version, as it calls it: `v1.36.0`.
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
