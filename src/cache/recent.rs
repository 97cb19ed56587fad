//! What is remembered of objects that changed since the first list.

use super::{Revision, Snapshot};
use crate::k8s::{Key, Object, ResourceVersion};

/// An object that changed since the first list, by the revision of its last change. The store has its state. In a busy cluster there are as
/// many as objects, so it is small.
#[derive(Debug)]
pub(super) struct Recent {
    pub(super) created: Revision,
    pub(super) key: Key,
    /// The versions of the change. `None` if both are that of the object, as after an event of a watch.
    versions: Option<Box<Versions>>,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Recent>() <= 24);

/// The versions of a change.
#[derive(Debug)]
struct Versions {
    position: ResourceVersion,
    reached: ResourceVersion,
}

impl Recent {
    /// What is remembered of a change to this state of an object.
    pub(super) fn new(
        created: Revision,
        object: &Object,
        position: &ResourceVersion,
        reached: &ResourceVersion,
    ) -> Self {
        let are_its_own = [position, reached].iter().all(|one| **one == object.resource_version());
        let versions = || Box::new(Versions { position: position.clone(), reached: reached.clone() });
        Self { created, key: object.key().clone(), versions: (!are_its_own).then(versions) }
    }

    /// The position of the change. `store` is the one that has the object.
    pub(super) fn position(&self, store: &Snapshot) -> Option<ResourceVersion> {
        self.version(store, |versions| &versions.position)
    }

    /// The version that the change reached. `store` is the one that has the object.
    pub(super) fn reached(&self, store: &Snapshot) -> Option<ResourceVersion> {
        self.version(store, |versions| &versions.reached)
    }

    fn version(
        &self,
        store: &Snapshot,
        which: impl FnOnce(&Versions) -> &ResourceVersion,
    ) -> Option<ResourceVersion> {
        match &self.versions {
            Some(versions) => Some(which(versions).clone()),
            None => store.get(&self.key).map(Object::resource_version),
        }
    }
}
