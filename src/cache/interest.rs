//! A wake-up for a reader of many objects, which come and go.
//!
//! A reader that follows a few objects of a large cache is not woken by changes of others, and reads nothing of the journal if
//! none of its own changed. One wake-up serves all its objects, in as many caches as it likes.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

use super::scope::Scope;
use super::shared::{Reader, Shared};
use super::{Cursor, Snapshot};
use crate::k8s::{IndexPath, Key};

/// Scopes that are looked up to tell whether all of them are quiet. With more, the journal is read.
const QUIET_SCOPES_MAX: usize = 256;

/// The objects and namespaces of one cache that a reader follows.
#[derive(Debug)]
pub struct Interest {
    shared: Arc<Shared>,
    wake: Arc<Notify>,
    /// How often each was added.
    scopes: BTreeMap<Scope, u32>,
    /// Number of the objects that the reader remembers itself.
    objects: usize,
}

/// A part of a cache that an [`Interest`] follows.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// An object, which may not exist.
    Object(&'a Key),
    /// The objects of a namespace.
    Namespace(&'a str),
    /// The objects that an index has under a value.
    Value(&'a IndexPath, &'a str),
    /// All objects.
    Everything,
}

impl Interest {
    /// Follows a part of the cache. Changes before now are not noticed. A part that is added twice has to be removed twice.
    pub fn add(&mut self, part: Part<'_>) {
        let scope = part.scope();
        let count = self.scopes.entry(scope).or_default();
        *count += 1;
        if *count == 1 {
            self.listen(scope);
        }
    }

    /// Follows an object that the reader remembers, so that it is not held twice: the reader has to call
    /// [`Interest::remove_remembered`] for each before it drops the interest. Changes before now are not noticed.
    pub fn add_remembered(&mut self, object: &Key) {
        self.objects += 1;
        self.listen(Scope::object(object));
    }

    /// Follows no longer an object of [`Interest::add_remembered`].
    pub fn remove_remembered(&mut self, object: &Key) {
        self.objects -= 1;
        self.forget(Scope::object(object));
    }

    fn listen(&self, scope: Scope) {
        self.shared.listen(scope, self.wake.clone());
    }

    /// Follows a part no longer.
    pub fn remove(&mut self, part: Part<'_>) {
        let scope = part.scope();
        let Some(count) = self.scopes.get_mut(&scope) else { return };
        *count -= 1;
        if *count == 0 {
            self.scopes.remove(&scope);
            self.forget(scope);
        }
    }

    /// The current state, and whether nothing of this interest changed after a cursor. `objects` are those of
    /// [`Interest::add_remembered`].
    pub fn look<'a>(&'a self, cursor: Cursor, objects: impl Iterator<Item = &'a Key>) -> (Snapshot, bool) {
        let state = self.shared.read();
        let head = state.store.cursor;
        let is_quiet = |scope: Scope| state.touched.is_quiet_since(scope, cursor.revision);
        let is_short = self.scopes.len() + self.objects <= QUIET_SCOPES_MAX;
        let all_quiet =
            || is_short && self.scopes.keys().copied().chain(objects.map(Scope::object)).all(is_quiet);
        let quiet = head.history == cursor.history && (head.revision == cursor.revision || all_quiet());
        (state.store.clone(), quiet)
    }

    fn forget(&self, scope: Scope) {
        self.shared.forget(scope, &self.wake);
    }
}

impl Part<'_> {
    fn scope(self) -> Scope {
        match self {
            Self::Object(key) => Scope::object(key),
            Self::Namespace(namespace) => Scope::namespace(namespace),
            Self::Value(path, value) => Scope::value(path, value),
            Self::Everything => Scope::EVERYTHING,
        }
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        for scope in std::mem::take(&mut self.scopes).into_keys() {
            self.forget(scope);
        }
    }
}

impl Reader {
    /// An interest in no object yet, with the wake-up of its reader. The reader is woken by each commit that touches the interest,
    /// when versions went back, and at [`Reader::rouse`]: by the last two only once it follows something.
    pub fn interest(&self, wake: Arc<Notify>) -> Interest {
        Interest { shared: self.shared.clone(), wake, scopes: BTreeMap::new(), objects: 0 }
    }
}
