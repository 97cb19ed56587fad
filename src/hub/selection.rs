//! Selections: which objects a subscription or list asks for, and their application to one informer.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use super::Form;
use super::metrics::Metrics;
use crate::cache::{IndexTerm, KeySet, Reader, Snapshot, UsedIndex, UsedPaths};
use crate::k8s::{
    Condition, FieldSelector, IndexPath, IndexPaths, IndexValues, Key, LabelSelector, Object, Term, Terms,
    Test,
};

/// Scope and selectors. The default selects everything. Selections that mean the same are equal.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Namespaces in key order; empty for all (and for cluster-scoped resources).
    namespaces: Vec<String>,
    /// One object only.
    pub name: Option<String>,
    /// Conditions on labels and fields.
    terms: Arc<Terms>,
    /// A condition that selected objects must meet as well.
    condition: Option<Arc<Condition>>,
    /// The form in which clients get the selected objects. Selections that differ only in it are not equal.
    pub form: Form,
}

/// Cost of an evaluation of a condition above which a stream leaves its live view: some 25 ms a batch.
const LIVE_COST_MAX: Duration = Duration::from_micros(50);
/// Cost up to which a stream joins a live view. It is lower, so that streams do not come and go with each object that costs more than most.
const JOIN_COST_MAX: Duration = Duration::from_micros(25);

/// Cost of a look at an object with a condition, relative to one without: what it reads is cut from the object's JSON.
const CONDITION_WEIGHT: usize = 64;
/// Time of a look at an object without a condition.
const PLAIN_LOOK: Duration = Duration::from_nanos(250);
/// Cost of an object in a form that cuts or compares parts of it, relative to a whole one: some 4 us.
const FORM_WEIGHT: usize = 8;

/// Number of ranges of keys that a walk by index may open for its namespaces.
const RANGES_MAX: usize = 200;

/// A selection applied to the objects of one informer. Values are read together with those for other selections, and equality
/// is answered by an index if there is one.
#[derive(Debug)]
pub struct Matcher {
    selection: Arc<Selection>,
    reader: Reader,
    paths: Arc<IndexPaths>,
    /// The slot of each term's path; `None` if objects are read for this selection alone.
    slots: Option<Vec<usize>>,
    /// In boxes, as most streams have neither.
    index: Option<Box<UsedIndex>>,
    used: Option<Box<UsedPaths>>,
}

/// The objects of one state that may match.
#[derive(Clone, Debug)]
pub struct Candidates {
    /// The state.
    pub snapshot: Snapshot,
    /// The keys that an index gave; `None` for all in scope.
    keys: Option<KeySet>,
    /// Whether the terms and the condition are known to hold for the objects with these keys.
    all_match: bool,
}

impl Default for Selection {
    fn default() -> Self {
        let terms = Arc::new(Terms::new(Vec::new()));
        Self { namespaces: Vec::new(), name: None, terms, condition: None, form: Form::default() }
    }
}

impl PartialEq for Selection {
    fn eq(&self, other: &Self) -> bool {
        (&self.namespaces, &self.name, self.terms.terms())
            == (&other.namespaces, &other.name, other.terms.terms())
            && (&self.condition, &self.form) == (&other.condition, &other.form)
    }
}

impl Eq for Selection {}

impl Hash for Selection {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.namespaces, &self.name, self.terms.terms(), &self.condition, &self.form).hash(state);
    }
}

impl Selection {
    /// Makes a selection. Namespaces in any order; none for all.
    pub fn new(
        mut namespaces: Vec<String>,
        name: Option<String>,
        labels: &LabelSelector,
        fields: &FieldSelector,
    ) -> Self {
        // In the order of keys, in which `a-b/` comes before `a/`, as namespaces are read one after the other.
        namespaces.sort_by_cached_key(|namespace| format!("{namespace}/"));
        namespaces.dedup();
        let terms = labels.terms().iter().chain(fields.terms()).cloned().collect();
        let terms = Arc::new(Terms::new(terms));
        Self { namespaces, name, terms, condition: None, form: Form::default() }
    }

    /// The same selection with a condition.
    #[must_use]
    pub fn with_condition(self, condition: Option<Condition>) -> Self {
        Self { condition: condition.map(Arc::new), ..self }
    }

    /// The same selection with one more term.
    #[must_use]
    pub fn and(self, term: Term) -> Self {
        let terms = self.terms.terms().iter().cloned().chain([term]).collect();
        Self { terms: Arc::new(Terms::new(terms)), ..self }
    }

    /// The same selection in another form.
    #[must_use]
    pub fn with_form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// How many objects of this selection take as long as the given number of whole objects that are only matched by terms: at least
    /// one. A condition that has turned out to be costly lowers it.
    pub fn looks_in(&self, plain: usize) -> usize {
        let weight = match (&self.condition, self.form.is_default()) {
            (Some(condition), _) => {
                CONDITION_WEIGHT + (condition.cost().as_nanos() / PLAIN_LOOK.as_nanos()) as usize
            }
            (None, false) => FORM_WEIGHT,
            (None, true) => 1,
        };
        (plain / weight).max(1)
    }

    /// Whether its condition costs too much to be evaluated in a live loop, with which other streams wait: a batch of changes has hundreds
    /// of states.
    pub(super) fn is_costly(&self) -> bool {
        self.costs_more_than(LIVE_COST_MAX)
    }

    /// Whether a stream stays out of live views because of what its condition costs.
    pub(super) fn stays_out(&self) -> bool {
        self.costs_more_than(JOIN_COST_MAX)
    }

    fn costs_more_than(&self, max: Duration) -> bool {
        self.condition.as_ref().is_some_and(|condition| condition.cost() > max)
    }

    /// The namespaces it is restricted to; empty for all.
    pub fn namespaces(&self) -> &[String] {
        &self.namespaces
    }

    /// Whether it selects every object, in any form.
    pub fn has_all(&self) -> bool {
        self.namespaces.is_empty() && self.name.is_none() && !self.selects()
    }

    /// Whether it selects every object, and whole.
    pub fn is_all(&self) -> bool {
        self.has_all() && self.form.is_default()
    }

    /// Whether it has conditions on the content of objects, so that a change can make one begin or stop to match.
    pub fn selects(&self) -> bool {
        !self.terms.is_empty() || self.condition.is_some()
    }

    /// Whether its only condition on the content of objects is a single term, so that an index answers it completely.
    fn is_one_term(&self) -> bool {
        self.terms.terms().len() == 1 && self.condition.is_none()
    }

    /// Whether a key is in scope. This never changes for an object.
    pub fn in_scope(&self, key: &Key) -> bool {
        (self.namespaces.is_empty() || self.namespaces.iter().any(|namespace| namespace == key.namespace()))
            && self.name.as_deref().is_none_or(|name| name == key.name())
    }

    /// Whether an object matches. Reads its JSON, which a [`Matcher`] does only once for all selections.
    pub fn matches(&self, object: &Object) -> bool {
        self.in_scope(object.key()) && self.terms.matches(object) && self.condition_holds(object)
    }

    fn condition_holds(&self, object: &Object) -> bool {
        let Some(condition) = &self.condition else { return true };
        condition.holds(object).unwrap_or_else(|failure| {
            Metrics::condition_failed();
            debug!(condition = condition.text(), key = %object.key(), %failure, "a where could not be evaluated");
            false
        })
    }

    /// The terms of equality, any of which an index may answer. Empty if one object is named, as a look-up by key is faster.
    pub fn index_terms(&self) -> Vec<IndexTerm> {
        if self.name.is_some() {
            return Vec::new();
        }
        let is_key = |path: &IndexPath| match path {
            IndexPath::Field(field) => matches!(&*field.path, "metadata.name" | "metadata.namespace"),
            IndexPath::Label(_) => false,
        };
        let equality = self.terms.terms().iter().filter(|term| !is_key(&term.path));
        let indexed = equality.filter_map(|term| match &term.test {
            Test::In(values) => Some(IndexTerm { path: term.path.clone(), values: values.clone() }),
            Test::NotIn(_) | Test::Exists | Test::Missing | Test::Greater(_) | Test::Less(_) => None,
        });
        indexed.collect()
    }

    /// The term for which an index is built if none of the terms has one. Fields come before labels, as they mostly have more
    /// different values.
    pub fn index_wanted(&self) -> Option<IndexTerm> {
        let terms = self.index_terms();
        let field = terms.iter().find(|term| matches!(term.path, IndexPath::Field(_)));
        field.or(terms.first()).cloned()
    }

    /// The matching objects of a state after a key, in key order. The cost grows with the scope.
    pub fn objects<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        after: Option<&'a Key>,
    ) -> Box<dyn Iterator<Item = &'a Object> + Send + 'a> {
        Box::new(self.in_reach(snapshot, after).filter(move |object| self.matches(object)))
    }

    /// The objects of the scope after a key, in key order, matching or not; may contain a few beyond the scope.
    fn in_reach<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        after: Option<&'a Key>,
    ) -> Box<dyn Iterator<Item = &'a Object> + Send + 'a> {
        if let (Some(name), [] | [_]) = (&self.name, &*self.namespaces) {
            let key = Key::new(self.namespaces.first().map_or("", String::as_str), name);
            let object = snapshot.get(&key);
            // Without a namespace, namespaced objects of this name are searched for below.
            if object.is_some() || !self.namespaces.is_empty() {
                let wanted = after.is_none_or(|after| key > *after);
                return Box::new(object.filter(|_| wanted).into_iter());
            }
        }
        if self.namespaces.is_empty() {
            return Box::new(snapshot.after(after));
        }
        let pieces =
            self.namespaces.iter().flat_map(move |namespace| snapshot.namespace_after(namespace, after));
        Box::new(pieces)
    }
}

impl Matcher {
    /// Applies a selection to an informer's objects.
    pub fn new(selection: Arc<Selection>, reader: &Reader) -> Self {
        let used =
            selection.selects().then(|| reader.use_paths(&selection.terms.paths())).flatten().map(Box::new);
        Self::with(selection, reader, used)
    }

    /// The same for a single use: its paths are not registered, so that their values are not kept with the objects.
    pub fn once(selection: Arc<Selection>, reader: &Reader) -> Self {
        Self::with(selection, reader, None)
    }

    fn with(selection: Arc<Selection>, reader: &Reader, used: Option<Box<UsedPaths>>) -> Self {
        let paths = reader.paths();
        let slots = selection.terms.slots_in(&paths);
        let index = best_index(&selection, reader).map(Box::new);
        Self { selection, reader: reader.clone(), paths, slots, index, used }
    }

    /// The selection.
    pub fn selection(&self) -> &Arc<Selection> {
        &self.selection
    }

    /// The index that answers one of its terms.
    pub fn index(&self) -> Option<&UsedIndex> {
        self.index.as_deref()
    }

    /// Updates to the paths that are in use now. To be called before objects are read.
    pub fn refresh(&mut self) {
        if self.selection.selects() {
            self.refresh_to(&self.reader.paths());
        }
    }

    /// As [`Matcher::refresh`], with the given paths.
    pub(super) fn refresh_to(&mut self, paths: &Arc<IndexPaths>) {
        if paths.generation() != self.paths.generation() {
            self.slots = self.selection.terms.slots_in(paths);
            self.paths = paths.clone();
        }
    }

    /// Whether its values are read together with those for other selections.
    pub(super) fn reads_together(&self) -> bool {
        self.used.is_some()
    }

    /// Whether an object matches.
    pub fn matches(&self, object: &Object) -> bool {
        self.selection.in_scope(object.key()) && self.selects(object, || object.values(&self.paths))
    }

    /// Whether an object of the scope matches. `values` gives its values at the paths of this matcher's last refresh, and is
    /// called only if they are needed.
    pub(super) fn selects<V: Deref<Target = IndexValues>>(
        &self,
        object: &Object,
        values: impl FnOnce() -> V,
    ) -> bool {
        let terms = &self.selection.terms;
        let terms_hold = match &self.slots {
            _ if terms.is_empty() => true,
            Some(slots) => terms.hold(&values(), slots),
            None => terms.matches(object),
        };
        terms_hold && self.selection.condition_holds(object)
    }

    /// Whether one of these candidates matches. An object that is known to match, by an index or an earlier look, is not read.
    pub fn matches_among(&self, candidates: &Candidates, object: &Object) -> bool {
        if candidates.all_match { self.selection.in_scope(object.key()) } else { self.matches(object) }
    }

    /// The objects of the current state that may match.
    pub fn candidates(&self) -> Candidates {
        match &self.index {
            Some(index) => {
                let (snapshot, keys) = index.snapshot();
                let all_match = self.selection.is_one_term();
                Candidates { snapshot, keys: Some(keys), all_match }
            }
            None => Candidates::all(self.reader.snapshot()),
        }
    }

    /// The candidates after a key, in key order, matching or not.
    pub fn reach<'a>(
        &'a self,
        candidates: &'a Candidates,
        after: Option<&'a Key>,
    ) -> Box<dyn Iterator<Item = &'a Object> + Send + 'a> {
        let Some(keys) = &candidates.keys else {
            return self.selection.in_reach(&candidates.snapshot, after);
        };
        let object = |key| candidates.snapshot.get(key);
        let namespaces = self.selection.namespaces.iter();
        // Of thousands of namespaces and values most ranges may be empty, and an empty one counts for nothing in a turn.
        if namespaces.len() == 0 || namespaces.len() * keys.ranges() > RANGES_MAX {
            return Box::new(keys.after(after).filter_map(object));
        }
        Box::new(namespaces.flat_map(move |one| keys.namespace_after(one, after)).filter_map(object))
    }
}

impl Candidates {
    /// All objects of a state.
    pub fn all(snapshot: Snapshot) -> Self {
        Self { snapshot, keys: None, all_match: false }
    }

    /// The objects of a state with these keys.
    pub fn of_keys(snapshot: Snapshot, keys: KeySet) -> Self {
        Self { snapshot, keys: Some(keys), all_match: false }
    }

    /// How many objects they are.
    pub fn count(&self) -> usize {
        self.keys.as_ref().map_or_else(|| self.snapshot.len(), KeySet::count)
    }

    /// The objects of a state with these keys, all of which match.
    pub fn matching(snapshot: Snapshot, keys: KeySet) -> Self {
        Self { all_match: true, ..Self::of_keys(snapshot, keys) }
    }
}

/// The index with the fewest objects among those that answer a term of a selection.
fn best_index(selection: &Selection, reader: &Reader) -> Option<UsedIndex> {
    let terms = selection.index_terms();
    let indexes = terms.iter().filter_map(|term| reader.use_index(term));
    indexes.min_by_key(UsedIndex::count)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use tokio::time::Instant;

    use super::*;
    use crate::cache::{self, Delta};
    use crate::k8s::{DecodeOptions, Decoder, Resource, ResourceParts};

    /// Namespaces whose ranges of keys lie beside each other.
    const NAMESPACES: [&str; 4] = ["n", "n-a", "n.b", "n0"];

    fn object((namespace, name, app): (usize, u8, u8)) -> Object {
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        let namespace = NAMESPACES[namespace];
        let text = format!(
            r#"{{"metadata":{{"namespace":"{namespace}","name":"o{name}","uid":"{namespace}{name}","resourceVersion":"1","labels":{{"app":"{app}"}}}}}}"#
        );
        Decoder::new(Resource::new(ResourceParts::default()), options).object(&text).unwrap()
    }

    proptest! {
        /// From the start, and after each of the objects.
        #[test]
        fn an_index_gives_the_objects_of_the_namespaces_in_order(
            held in prop::collection::vec((0..4usize, 0..20u8, 0..3u8), 0..40),
            asked in prop::collection::vec(0..4usize, 0..4),
            apps in prop::collection::btree_set(0..3u8, 1..3),
            without in prop::option::of(0..3u8),
        ) {
            let now = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async { Instant::now() });
            let config = cache::Config { journal_len_max: 4, journal_bytes_max: 1 << 20, tombstones_len_max: 4 };
            let (mut writer, reader) = cache::cache(config, now);
            let items = held.into_iter().map(|one| Delta::PassItem(object(one)));
            writer.commit([Delta::PassBegin].into_iter().chain(items).chain([Delta::PassEnd(1.into())]).collect());
            let apps: Vec<_> = apps.iter().map(u8::to_string).collect();
            let without_term = without.map(|app| format!(",app!={app}")).unwrap_or_default();
            let labels = LabelSelector::parse(&format!("app in ({}){without_term}", apps.join(","))).unwrap();
            let namespaces = asked.iter().map(|at| NAMESPACES[*at].to_owned()).collect();
            let selection = Arc::new(Selection::new(namespaces, None, &labels, &FieldSelector::default()));
            let mut builder = reader.build_index(&selection.index_wanted().unwrap().path, now).unwrap();
            while !builder.turn() {}
            let matcher = Matcher::once(selection.clone(), &reader);
            assert!(matcher.index().is_some());
            let (state, all) = (matcher.candidates(), reader.snapshot());
            let starts = std::iter::once(None).chain(all.after(None).map(|object| Some(object.key())));
            for start in starts {
                let expected: BTreeSet<_> = selection.objects(&all, start).map(|object| object.key()).collect();
                let reached = || matcher.reach(&state, start);
                let matching = reached().filter(|object| matcher.matches_among(&state, object));
                prop_assert!(matching.map(|object| object.key()).eq(expected.iter().copied()));
                // The index answers the only term.
                prop_assert!(without.is_some() || reached().map(|object| object.key()).eq(expected));
            }
        }
    }
}
