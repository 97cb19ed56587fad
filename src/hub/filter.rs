//! Which objects a subscription wants.

use crate::cache::Snapshot;
use crate::k8s::{FieldSelector, Key, LabelSelector, Object};
use std::sync::Arc;

/// Scope and selectors of a subscription. The default one wants everything.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Namespaces in key order; empty for all (and for cluster-scoped resources).
    namespaces: Vec<String>,
    /// One object only.
    pub name: Option<String>,
    /// Labels.
    pub labels: LabelSelector,
    /// Fields.
    pub fields: FieldSelector,
}

impl Filter {
    /// A filter; namespaces in any order, none for all.
    pub fn new(
        mut namespaces: Vec<String>,
        name: Option<String>,
        labels: LabelSelector,
        fields: FieldSelector,
    ) -> Self {
        // As keys are ordered: `a-b/` comes before `a/`, and pieces are handed out one after the other.
        namespaces.sort_by_cached_key(|namespace| format!("{namespace}/"));
        namespaces.dedup();
        Self { namespaces, name, labels, fields }
    }

    /// The namespaces it is restricted to; empty for all.
    pub fn namespaces(&self) -> &[String] {
        &self.namespaces
    }

    /// Whether it wants everything.
    pub fn is_all(&self) -> bool {
        self.namespaces.is_empty() && self.name.is_none() && !self.selects()
    }

    /// Whether objects are filtered by their content, so that a change can make one enter or leave.
    pub fn selects(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }

    /// Whether a key is in scope; never changes for one object.
    pub fn in_scope(&self, key: &Key) -> bool {
        (self.namespaces.is_empty() || self.namespaces.iter().any(|namespace| namespace == key.namespace()))
            && self.name.as_deref().is_none_or(|name| name == key.name())
    }

    /// Whether an object matches.
    pub fn matches(&self, object: &Object) -> bool {
        self.in_scope(object.key()) && self.labels.matches(object) && self.fields.matches(object)
    }

    /// The matching objects of a snapshot after a key, in key order. Costs what the scope holds.
    pub fn objects<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        after: Option<&'a Key>,
    ) -> Box<dyn Iterator<Item = &'a Arc<Object>> + Send + 'a> {
        if let (Some(name), [] | [_]) = (&self.name, &*self.namespaces) {
            let key = Key::new(self.namespaces.first().map_or("", String::as_str), name);
            // Without a namespace, a namespaced object of this name has to be searched for below.
            if let Some(object) = snapshot.get(&key) {
                let wanted = self.matches(object) && after.is_none_or(|after| key > *after);
                return Box::new(wanted.then_some(object).into_iter());
            }
        }
        if self.namespaces.is_empty() {
            return Box::new(snapshot.after(after).filter(move |object| self.matches(object)));
        }
        let pieces =
            self.namespaces.iter().flat_map(move |namespace| snapshot.namespace_after(namespace, after));
        Box::new(pieces.filter(move |object| self.matches(object)))
    }
}
