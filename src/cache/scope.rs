//! Wake-ups for readers of one namespace, object or value.
//!
//! Ten thousand readers, each of its own namespace, must not be woken by changes in another one. So each scope that has a
//! reader has its own wake-up, and the revision of its last change. A reader whose scope did not change continues at the
//! head without looking at the changes between.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::{self, Write as _};
use std::hash::Hasher as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Revision;
use crate::k8s::{IndexPath, Key};

/// What a reader follows, as the hash of its text: tens of thousands of readers follow some dozen scopes each.
///
/// Two scopes with the same hash are one. A change of either wakes the readers of both, and those of the other find nothing new in
/// the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Scope(u64);

/// The last change of each scope that has a reader. Behind the cache's lock.
#[derive(Debug, Default)]
pub(super) struct Touched {
    last: HashMap<Scope, Revision>,
    /// Scopes that were touched since [`Touched::take_dirty`].
    dirty: Vec<Scope>,
}

/// The wake-ups of the scopes. Outside of the cache's lock, as readers must not be woken under it.
#[derive(Debug, Default)]
pub(super) struct Wakes(Mutex<Waiting>);

/// The readers of each scope. A reader of many scopes has one wake-up for all of them.
#[derive(Debug, Default)]
pub(super) struct Waiting(HashMap<Scope, Vec<Arc<Notify>>>);

impl Scope {
    /// All objects.
    pub(super) const EVERYTHING: Self = Self(0);

    /// An object, which may not exist.
    pub(super) fn object(key: &Key) -> Self {
        Self::of(format_args!("{}", key.as_str()))
    }

    /// The objects of a namespace.
    pub(super) fn namespace(namespace: &str) -> Self {
        Self::of(format_args!("{namespace}/"))
    }

    /// The objects with a value at a path.
    pub(super) fn value(path: &IndexPath, value: &str) -> Self {
        // No namespace or name begins like this.
        Self::of(format_args!("={path}={value}"))
    }

    fn of(text: fmt::Arguments<'_>) -> Self {
        let mut hashed = Hashed(DefaultHasher::new());
        let _ = hashed.write_fmt(text);
        Self(hashed.0.finish())
    }
}

/// Hashes a text while it is written, so that it is not held.
struct Hashed(DefaultHasher);

impl fmt::Write for Hashed {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl Touched {
    /// Begins to record a scope's changes. Earlier ones are unknown.
    pub(super) fn begin(&mut self, scope: Scope, now: Revision) {
        self.last.entry(scope).or_insert(now);
    }

    /// Stops recording a scope's changes.
    pub(super) fn end(&mut self, scope: Scope) {
        self.last.remove(&scope);
    }

    /// Records a change of an object.
    pub(super) fn note(&mut self, key: &Key, revision: Revision) {
        if self.last.is_empty() {
            return;
        }
        let namespace = (!key.namespace().is_empty()).then(|| Scope::namespace(key.namespace()));
        for scope in namespace.into_iter().chain([Scope::object(key), Scope::EVERYTHING]) {
            self.touch(scope, revision);
        }
    }

    /// Records a change of an object that has or had a value at a path.
    pub(super) fn note_value(&mut self, path: &IndexPath, value: &str, revision: Revision) {
        if !self.last.is_empty() {
            self.touch(Scope::value(path, value), revision);
        }
    }

    fn touch(&mut self, scope: Scope, revision: Revision) {
        if let Some(last) = self.last.get_mut(&scope) {
            *last = revision;
            if self.dirty.last() != Some(&scope) {
                self.dirty.push(scope);
            }
        }
    }

    /// Whether nothing in a scope changed after a revision. `false` for a scope that is not recorded.
    pub(super) fn is_quiet_since(&self, scope: Scope, revision: Revision) -> bool {
        self.last.get(&scope).is_some_and(|last| *last <= revision)
    }

    /// Takes the scopes that were touched since the last call.
    pub(super) fn take_dirty(&mut self) -> Vec<Scope> {
        std::mem::take(&mut self.dirty)
    }
}

impl Wakes {
    pub(super) fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the readers of these scopes, in any order and with duplicates. Each change of a commit has touched some of the same scopes.
    pub(super) fn wake(&self, mut scopes: Vec<Scope>) {
        if scopes.is_empty() {
            return;
        }
        scopes.sort_unstable();
        scopes.dedup();
        let waiting = self.lock();
        for scope in scopes {
            waiting.0.get(&scope).into_iter().flatten().for_each(|wake| wake.notify_one());
        }
    }

    /// Wakes the readers of all scopes.
    pub(super) fn wake_all(&self) {
        self.lock().0.values().flatten().for_each(|wake| wake.notify_one());
    }
}

impl Waiting {
    /// Adds a reader to a scope.
    pub(super) fn listen(&mut self, scope: Scope, wake: Arc<Notify>) {
        let wakes = self.0.entry(scope).or_default();
        // Most have one reader, or few.
        if wakes.len() == wakes.capacity() {
            wakes.reserve_exact(wakes.len() / 4 + 1);
        }
        wakes.push(wake);
    }

    /// Removes a reader from a scope, and returns whether the scope has no other.
    pub(super) fn unlisten(&mut self, scope: Scope, wake: &Arc<Notify>) -> bool {
        let Some(wakes) = self.0.get_mut(&scope) else { return true };
        if let Some(at) = wakes.iter().position(|other| Arc::ptr_eq(other, wake)) {
            wakes.swap_remove(at);
        }
        let is_empty = wakes.is_empty();
        if is_empty {
            self.0.remove(&scope);
        }
        is_empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_of_other_texts_are_others() {
        let path = IndexPath::Label("app".into());
        let scopes = [
            Scope::EVERYTHING,
            Scope::namespace("a"),
            Scope::namespace("a1"),
            Scope::object(&Key::new("a", "1")),
            Scope::object(&Key::new("", "a")),
            Scope::value(&path, "a"),
            Scope::value(&path, "a1"),
        ];
        for (at, scope) in scopes.iter().enumerate() {
            assert!(scopes[..at].iter().all(|other| other != scope), "{at}");
        }
    }
}
