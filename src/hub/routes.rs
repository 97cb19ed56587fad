//! Routes: find the views that a change can concern. No async, no clock.

use std::collections::HashMap;
use std::sync::Arc;

use super::Matcher;
use super::project::ChangeValues;
use crate::cache::Change;
use crate::k8s::{IndexPath, Key};

/// A view, and the place of the informer among its sources.
pub(super) type ViewSource = (usize, usize);

/// The property by which a view is found for a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Every change can concern it.
    Everything,
    /// Changes in one of these namespaces.
    Namespaces(Vec<String>),
    /// Changes of one object.
    Key(Key),
    /// Changes of objects that have or had one of these values.
    Values(IndexPath, Arc<[String]>),
}

/// The views of one informer, by their routes.
#[derive(Debug, Default)]
pub(super) struct Routes {
    everything: Vec<ViewSource>,
    namespaces: HashMap<String, Vec<ViewSource>>,
    keys: HashMap<Key, Vec<ViewSource>>,
    values: Vec<(IndexPath, HashMap<String, Vec<ViewSource>>)>,
}

impl Route {
    pub(super) fn new(matcher: &Matcher, namespaced: bool) -> Self {
        let selection = matcher.selection();
        match (&selection.name, selection.namespaces()) {
            (Some(name), [namespace]) if namespaced => return Self::Key(Key::new(namespace, name)),
            (Some(name), []) if !namespaced => return Self::Key(Key::new("", name)),
            _ => {}
        }
        match selection.index_wanted() {
            // Otherwise its values are not read together with those of other selections.
            Some(term) if matcher.reads_together() => Self::Values(term.path, term.values),
            _ if !selection.namespaces().is_empty() => Self::Namespaces(selection.namespaces().to_vec()),
            _ => Self::Everything,
        }
    }
}

impl Routes {
    pub(super) fn add(&mut self, route: &Route, view: ViewSource) {
        self.lists(route, |list| {
            // Mostly there is one view, in as many lists as there are values.
            if list.is_empty() {
                list.reserve_exact(1);
            }
            list.push(view);
        });
    }

    pub(super) fn remove(&mut self, route: &Route, view: ViewSource) {
        self.lists(route, |list| list.retain(|one| *one != view));
        match route {
            Route::Everything => {}
            Route::Namespaces(names) => {
                names.iter().for_each(|name| drop_if_empty(&mut self.namespaces, name));
            }
            Route::Key(key) => drop_if_empty(&mut self.keys, key),
            Route::Values(path, values) => {
                if let Some((_, lists)) = self.values.iter_mut().find(|(one, _)| one == path) {
                    values.iter().for_each(|value| drop_if_empty(lists, value));
                }
                self.values.retain(|(_, lists)| !lists.is_empty());
            }
        }
    }

    /// The views that every change can concern.
    pub(super) fn everything(&self) -> &[ViewSource] {
        &self.everything
    }

    /// Calls `each` with every view that a change can concern, perhaps more than once.
    pub(super) fn concerned(
        &self,
        change: &Change,
        values: &ChangeValues<'_>,
        mut each: impl FnMut(ViewSource),
    ) {
        self.everything.iter().copied().for_each(&mut each);
        let key = change.object.key();
        if !self.namespaces.is_empty()
            && let Some(views) = self.namespaces.get(key.namespace())
        {
            views.iter().copied().for_each(&mut each);
        }
        if !self.keys.is_empty()
            && let Some(views) = self.keys.get(key)
        {
            views.iter().copied().for_each(&mut each);
        }
        for (path, views) in &self.values {
            let Some(slot) = values.paths().slot(path) else { continue };
            let before = change.previous.iter().flat_map(|previous| values.before(previous).get(slot).iter());
            for value in values.after(&change.object).get(slot).iter().chain(before) {
                if let Some(views) = views.get(&**value) {
                    views.iter().copied().for_each(&mut each);
                }
            }
        }
    }

    fn lists(&mut self, route: &Route, mut each: impl FnMut(&mut Vec<ViewSource>)) {
        match route {
            Route::Everything => each(&mut self.everything),
            Route::Namespaces(names) => {
                names.iter().for_each(|name| each(self.namespaces.entry(name.clone()).or_default()));
            }
            Route::Key(key) => each(self.keys.entry(key.clone()).or_default()),
            Route::Values(path, values) => {
                let at = self.values.iter().position(|(one, _)| one == path);
                let at = at.unwrap_or_else(|| {
                    self.values.push((path.clone(), HashMap::new()));
                    self.values.len() - 1
                });
                let lists = &mut self.values[at].1;
                values.iter().for_each(|value| each(lists.entry(value.clone()).or_default()));
            }
        }
    }
}

fn drop_if_empty<K: std::hash::Hash + Eq>(lists: &mut HashMap<K, Vec<ViewSource>>, key: &K) {
    if lists.get(key).is_some_and(Vec::is_empty) {
        lists.remove(key);
    }
}
