//! Many label selectors, and which of them select an object.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{IndexPath, Object, Term, Terms, Test};

/// Label selectors of namespaces, found by one label that what they select must have.
#[derive(Debug, Default)]
pub struct SelectorSet {
    selectors: Vec<Terms>,
    namespaces: HashMap<String, NamespaceSelectors>,
}

/// The selectors of one namespace, by their place.
#[derive(Debug, Default)]
struct NamespaceSelectors {
    /// Those that ask for a label with one of some values, by it.
    by_label: HashMap<String, HashMap<String, Vec<usize>>>,
    others: Vec<usize>,
}

impl SelectorSet {
    /// Adds a selector of objects of a namespace, or of all objects if that is empty. Returns its place.
    pub fn add(&mut self, namespace: &str, terms: Vec<Term>) -> usize {
        let place = self.selectors.len();
        let group = self.namespaces.entry(namespace.to_owned()).or_default();
        match terms.iter().find_map(wanted) {
            Some((key, values)) => {
                let by_value = group.by_label.entry(key.to_owned()).or_default();
                for value in values {
                    by_value.entry(value.clone()).or_default().push(place);
                }
            }
            None => group.others.push(place),
        }
        self.selectors.push(Terms::new(terms));
        place
    }

    /// Whether it has no selector.
    pub fn is_empty(&self) -> bool {
        self.selectors.is_empty()
    }

    /// The labels, each with the values, one of which every selected object has. `None` if there is a selector without such a label.
    pub fn labels(&self) -> Option<Vec<(String, Vec<String>)>> {
        let mut labels: BTreeMap<&String, BTreeSet<&String>> = BTreeMap::new();
        for group in self.namespaces.values() {
            if !group.others.is_empty() {
                return None;
            }
            for (key, by_value) in &group.by_label {
                labels.entry(key).or_default().extend(by_value.keys());
            }
        }
        let plain = |(key, values): (&String, BTreeSet<&String>)| {
            (key.clone(), values.into_iter().cloned().collect())
        };
        Some(labels.into_iter().map(plain).collect())
    }

    /// The namespaces of which objects may be selected; `None` for all.
    pub fn namespaces(&self) -> Option<Vec<&str>> {
        let mut namespaces: Vec<_> = self.namespaces.keys().map(String::as_str).collect();
        namespaces.sort_unstable();
        (!namespaces.contains(&"")).then_some(namespaces)
    }

    /// The places of the selectors that select an object, sorted.
    pub fn selecting(&self, object: &Object) -> Vec<usize> {
        let namespace = object.key().namespace();
        let everywhere = (!namespace.is_empty()).then_some("");
        let groups: Vec<_> = [Some(namespace), everywhere]
            .into_iter()
            .flatten()
            .filter_map(|name| self.namespaces.get(name))
            .collect();
        if groups.is_empty() {
            return Vec::new();
        }
        let labels = object.labels();
        let mut places: Vec<usize> = Vec::new();
        for group in groups {
            places.extend(&group.others);
            for (key, value) in &labels {
                let found =
                    group.by_label.get(key.as_ref()).and_then(|by_value| by_value.get(value.as_ref()));
                places.extend(found.into_iter().flatten());
            }
        }
        places.sort_unstable();
        places.dedup();
        places.retain(|place| self.selectors[*place].matches(object));
        places
    }
}

/// The label and its values that a term asks for.
fn wanted(term: &Term) -> Option<(&str, &[String])> {
    match (&term.path, &term.test) {
        (IndexPath::Label(key), Test::In(values)) => Some((key, values)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{DecodeOptions, Decoder, LabelSelector, Resource, ResourceParts};
    use super::*;

    fn object(namespace: &str, labels: &[(String, String)]) -> Object {
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        let labels: serde_json::Map<_, _> =
            labels.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
        let metadata = serde_json::json!(
            {"namespace": namespace, "name": "x", "uid": "u", "resourceVersion": "1", "labels": labels}
        );
        let text = serde_json::json!({"metadata": metadata}).to_string();
        Decoder::new(Resource::new(ResourceParts::default()), options).object(&text).unwrap()
    }

    fn selector() -> impl Strategy<Value = String> {
        let term = prop_oneof![
            ("[abc]", "[xyz]").prop_map(|(key, value)| format!("{key}={value}")),
            ("[abc]", "[xyz]").prop_map(|(key, value)| format!("{key}!={value}")),
            "[abc]".prop_map(|key| format!("{key} in (x,y)")),
            "[abc]".prop_map(|key| format!("!{key}")),
            "[abc]",
        ];
        prop::collection::vec(term, 0..3).prop_map(|terms| terms.join(","))
    }

    proptest! {
        #[test]
        fn a_set_finds_what_each_selector_matches(
            selectors in prop::collection::vec(("[mn]?", selector()), 0..8),
            objects in prop::collection::vec(("[mn]", prop::collection::btree_map("[abc]", "[xyz]", 0..3)), 0..8),
        ) {
            let mut set = SelectorSet::default();
            for (place, (namespace, text)) in selectors.iter().enumerate() {
                let terms = LabelSelector::parse(text).unwrap().terms().to_vec();
                prop_assert_eq!(set.add(namespace, terms), place);
            }
            for (namespace, labels) in objects {
                let labels: Vec<_> = labels.into_iter().collect();
                let object = object(&namespace, &labels);
                let each = selectors.iter().enumerate().filter(|(_, (of, text))| {
                    (of.is_empty() || *of == namespace) && LabelSelector::parse(text).unwrap().matches(&object)
                });
                let expected: Vec<_> = each.map(|(place, _)| place).collect();
                prop_assert_eq!(set.selecting(&object), expected);
            }
        }
    }
}
