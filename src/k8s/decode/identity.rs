//! Decodes only key, uid and resourceVersion of the items of a list.

use serde::Deserialize;

use super::DecodeError;
use super::list::ListMeta;
use crate::k8s::json::Text;
use crate::k8s::{Key, ResourceVersion};

/// An object without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Namespace and name.
    pub key: Key,
    /// Tells it from other objects of the same key, earlier or later.
    pub uid: Box<str>,
    /// The version of its state; `None` if the list has none for it.
    pub version: Option<ResourceVersion>,
}

/// A page of a list, its objects by identity only.
#[derive(Debug, PartialEq, Eq)]
pub struct IdentityPage {
    /// The version of the whole list, the same on each page.
    pub resource_version: ResourceVersion,
    /// The token of the next page.
    pub continue_token: Option<String>,
    /// The objects, in the server's order.
    pub identities: Vec<Identity>,
}

/// The identities in a page of a list, be it of whole objects or of their metadata (U34).
///
/// # Errors
/// [`DecodeError`] when the body is not a list, has no resourceVersion, or has an item without a name. Such an item is
/// not skipped: the caller would take its object for deleted.
pub fn identities(body: &[u8]) -> Result<IdentityPage, DecodeError> {
    #[derive(Deserialize)]
    struct List<'a> {
        #[serde(default)]
        metadata: ListMeta,
        #[serde(borrow, default)]
        items: Option<Vec<Item<'a>>>,
    }
    #[derive(Deserialize)]
    struct Item<'a> {
        #[serde(borrow)]
        metadata: Metadata<'a>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata<'a> {
        #[serde(borrow, default)]
        name: Option<Text<'a>>,
        #[serde(borrow, default)]
        namespace: Option<Text<'a>>,
        #[serde(borrow, default)]
        uid: Option<Text<'a>>,
        #[serde(borrow, default)]
        resource_version: Option<Text<'a>>,
    }
    let list: List<'_> = serde_json::from_str(std::str::from_utf8(body)?)?;
    let (resource_version, continue_token) = list.metadata.into_parts()?;
    let mut identities = Vec::new();
    for Item { metadata } in list.items.unwrap_or_default() {
        let name = metadata.name.filter(|name| !name.0.is_empty()).ok_or(DecodeError::Missing("name"))?;
        let namespace = metadata.namespace.map(|namespace| namespace.0).unwrap_or_default();
        let uid = metadata.uid.map(|uid| uid.0).unwrap_or_default();
        let version = metadata.resource_version.filter(|version| !version.0.is_empty());
        let version = version.map(|version| ResourceVersion::new(&version.0));
        identities.push(Identity { key: Key::new(&namespace, &name.0), uid: uid.into(), version });
    }
    Ok(IdentityPage { resource_version, continue_token, identities })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_and_whole_objects_give_the_same_identities() {
        let metadata = br#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1",
            "metadata":{"resourceVersion":"7","continue":"t1","remainingItemCount":3},"items":[
            {"kind":"PartialObjectMetadata","metadata":{"name":"a","namespace":"web","uid":"u1","resourceVersion":"5","labels":{"x":"y"}}},
            {"metadata":{"name":"node","uid":"u2"}}]}"#;
        let whole = br#"{"items":[{"metadata":{"uid":"u1","resourceVersion":"5","namespace":"web","name":"a"},"spec":{"n":[1,{}]}},
            {"metadata":{"name":"node","uid":"u2","namespace":null},"status":null}],
            "metadata":{"continue":"t1","resourceVersion":"7"}}"#;
        let page = identities(metadata).unwrap();
        assert_eq!(page, identities(whole).unwrap());
        assert_eq!((page.resource_version, page.continue_token.as_deref()), (7.into(), Some("t1")));
        let of = |key: Key, uid: &str, version| Identity { key, uid: uid.into(), version };
        let expected = [of(Key::new("web", "a"), "u1", Some(5.into())), of(Key::new("", "node"), "u2", None)];
        assert_eq!(page.identities, expected);
    }

    #[test]
    fn the_last_page_has_no_token_and_an_empty_list_no_items() {
        let page = identities(br#"{"metadata":{"resourceVersion":"7","continue":""},"items":null}"#).unwrap();
        assert_eq!((page.continue_token, page.identities.len()), (None, 0));
    }

    #[test]
    fn a_page_that_would_hide_an_object_is_an_error() {
        for body in [
            r#"{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"uid":"u"}}]}"#,
            r#"{"metadata":{"resourceVersion":"7"},"items":[{}]}"#,
            r#"{"metadata":{},"items":[]}"#,
            r#"{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}}"#,
            "<html>",
        ] {
            assert!(identities(body.as_bytes()).is_err(), "{body}");
        }
    }
}
