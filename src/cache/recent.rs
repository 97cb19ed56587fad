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
        let are_its_own = [position, reached].iter().all(|one| *one == object.resource_version());
        let versions = || Box::new(Versions { position: position.clone(), reached: reached.clone() });
        Self { created, key: object.key().clone(), versions: (!are_its_own).then(versions) }
    }

    /// Position and reached version of the change. `store` is the one that has the object.
    pub(super) fn versions<'a>(
        &'a self,
        store: &'a Snapshot,
    ) -> Option<(&'a ResourceVersion, &'a ResourceVersion)> {
        match &self.versions {
            Some(versions) => Some((&versions.position, &versions.reached)),
            None => store.get(&self.key).map(Object::resource_version).map(|version| (version, version)),
        }
    }
}
