//! Notes: a member that every object has in the cluster, and that informers keep or drop, as their configuration says. A reload may
//! change that, for one replica before the other.

use informerd::testing::hub::{Informer, InformerSpec, Scope};
use informerd::testing::k8s::{DropPaths, Object};
use serde_json::Value;

use crate::replica::resource;

/// The member of `data` with the note: the number of the write once more.
pub(crate) const NOTE: &str = "note";

/// For each source of a stream, whether its informer keeps notes.
pub(crate) type Noted = [bool; 2];

/// The description of an informer of a resource.
pub(crate) fn spec(index: usize, keeps_notes: bool) -> InformerSpec {
    let mut spec = InformerSpec::new(resource(index), Scope::All);
    spec.content.dropped = dropped(keeps_notes);
    spec
}

/// The members that an informer drops.
pub(crate) fn dropped(keeps_notes: bool) -> DropPaths {
    let paths = if keeps_notes { String::new() } else { format!(".data.{NOTE}") };
    paths.parse().expect("valid paths")
}

/// Whether an informer keeps notes.
pub(crate) fn are_kept_by(informer: &Informer) -> bool {
    informer.spec.holds(&format!("data.{NOTE}"))
}

/// The note of an object.
pub(crate) fn note_of(json: &Value) -> Option<&str> {
    json["data"][NOTE].as_str()
}

/// Whether an object has its note. The name of the member occurs nowhere else in an object, so its text is searched: parsing it took a
/// fifth of the time of a history.
pub(crate) fn has_note(object: &Object) -> bool {
    memchr::memmem::find(&object.json(), br#""note":"#).is_some()
}
