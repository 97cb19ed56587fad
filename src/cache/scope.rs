//! Wake-ups for readers of one namespace, object or value.
//!
//! Ten thousand readers, each of its own namespace, must not be woken by changes in another one. So each scope that has a
//! reader has its own wake-up, and the revision of its last change. A reader whose scope did not change continues at the
//! head without looking at the changes between.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::Revision;
use crate::k8s::{IndexPath, Key};

/// The last change of each scope that has a reader. Behind the cache's lock.
#[derive(Debug, Default)]
pub(super) struct Touched {
    last: HashMap<Arc<str>, Revision>,
    /// Scopes that were touched since [`Touched::take_dirty`].
    dirty: Vec<Arc<str>>,
}

/// The wake-ups of the scopes. Outside of the cache's lock, as readers must not be woken under it.
#[derive(Debug, Default)]
pub(super) struct Wakes(Mutex<Waiting>);

/// The readers of each scope.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Readers of one scope.
    pub(super) single: HashMap<Arc<str>, watch::Sender<()>>,
    /// Readers of many scopes, each with one wake-up for all of them.
    many: HashMap<Arc<str>, Vec<Arc<Notify>>>,
}

/// The scope of all objects. No namespace or name is written like it.
pub(super) const EVERYTHING: &str = "*";

/// The text of a scope: `namespace/`, or an object's key.
pub(super) fn scope_of(namespace: &str, name: Option<&str>) -> Arc<str> {
    match name {
        Some(name) => Key::new(namespace, name).as_str().into(),
        None => format!("{namespace}/").into(),
    }
}

/// The text of the scope of objects with a value at a path. No namespace or name begins like it.
pub(super) fn value_scope(path: &IndexPath, value: &str) -> Arc<str> {
    format!("={path}={value}").into()
}

impl Touched {
    /// Begins to record a scope's changes. Earlier ones are unknown.
    pub(super) fn begin(&mut self, scope: Arc<str>, now: Revision) {
        self.last.entry(scope).or_insert(now);
    }

    /// Stops recording a scope's changes.
    pub(super) fn end(&mut self, scope: &str) {
        self.last.remove(scope);
    }

    /// Records a change of an object.
    pub(super) fn note(&mut self, key: &Key, revision: Revision) {
        if self.last.is_empty() {
            return;
        }
        let text = key.as_str();
        let namespace = text.find('/').map(|slash| &text[..=slash]);
        for scope in namespace.into_iter().chain([text, EVERYTHING]) {
            if let Some((scope, _)) = self.last.get_key_value(scope) {
                let scope = scope.clone();
                self.last.insert(scope.clone(), revision);
                if self.dirty.last() != Some(&scope) {
                    self.dirty.push(scope);
                }
            }
        }
    }

    /// Records a change of an object that has or had a value at a path.
    pub(super) fn note_value(&mut self, path: &IndexPath, value: &str, revision: Revision) {
        if self.last.is_empty() {
            return;
        }
        let scope = value_scope(path, value);
        if let Some(last) = self.last.get_mut(&scope) {
            *last = revision;
            self.dirty.push(scope);
        }
    }

    /// Whether nothing in a scope changed after a revision. `false` for a scope that is not recorded.
    pub(super) fn is_quiet_since(&self, scope: &str, revision: Revision) -> bool {
        self.last.get(scope).is_some_and(|last| *last <= revision)
    }

    /// Takes the scopes that were touched since the last call.
    pub(super) fn take_dirty(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.dirty)
    }
}

impl Wakes {
    pub(super) fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the readers of these scopes.
    pub(super) fn wake(&self, scopes: &[Arc<str>]) {
        if scopes.is_empty() {
            return;
        }
        let waiting = self.lock();
        for scope in scopes {
            if let Some(wake) = waiting.single.get(scope) {
                wake.send_replace(());
            }
            waiting.many.get(scope).into_iter().flatten().for_each(|wake| wake.notify_one());
        }
    }

    /// Wakes the readers of all scopes.
    pub(super) fn wake_all(&self) {
        let waiting = self.lock();
        waiting.single.values().for_each(|wake| wake.send_replace(()));
        waiting.many.values().flatten().for_each(|wake| wake.notify_one());
    }
}

impl Waiting {
    /// Whether a scope has a reader.
    pub(super) fn has(&self, scope: &str) -> bool {
        self.single.contains_key(scope) || self.many.contains_key(scope)
    }

    /// Adds a reader of many scopes to one of them.
    pub(super) fn listen(&mut self, scope: Arc<str>, wake: Arc<Notify>) {
        let wakes = self.many.entry(scope).or_default();
        // Most have one reader.
        if wakes.is_empty() {
            wakes.reserve_exact(1);
        }
        wakes.push(wake);
    }

    /// Removes a reader of many scopes from one of them, and returns whether the scope has no other reader.
    pub(super) fn unlisten(&mut self, scope: &str, wake: &Arc<Notify>) -> bool {
        if let Some(wakes) = self.many.get_mut(scope) {
            if let Some(at) = wakes.iter().position(|other| Arc::ptr_eq(other, wake)) {
                wakes.swap_remove(at);
            }
            if wakes.is_empty() {
                self.many.remove(scope);
            }
        }
        !self.has(scope)
    }
}
