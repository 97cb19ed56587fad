//! Concepts of Kubernetes: names, resourceVersions, objects, selectors, watch events, tables, Status.
//!
//! In come bytes as an API server writes them and text as a person types it; out go values for the
//! other rooms. This room does no I/O, has no clock, and imports no other room.

mod condition;
mod content_hash;
mod decode;
mod expand;
mod field_mask;
mod index_path;
mod json;
mod kept;
pub(crate) mod kinds;
mod labels;
mod lines;
mod link;
mod merge_patch;
mod name;
mod name_parts;
mod object;
mod packed;
mod places;
mod press;
mod resource_version;
mod selector;
mod selector_set;
mod shorthand;
mod status;
pub mod table;
mod training;
mod watch_event;
mod words;

pub use condition::Condition;
pub use content_hash::ContentHash;
pub use decode::{
    DecodeError, DecodeOptions, Decoder, DropPaths, Identity, IdentityPage, ListPage, identities,
};
pub use field_mask::FieldMask;
pub use index_path::{FieldPath, IndexPath, IndexPaths, IndexValues, Values};
pub use kinds::{BuiltIn, built_in, built_in_named};
pub(crate) use labels::read_labels;
pub use lines::LineSplitter;
pub use link::{Link, LinkBy, Links, Owner, SelectorForm, links, names_at, names_of, owner_uids, owners};
pub use merge_patch::merge_patch;
pub use name::{Key, Resource, ResourceParts, is_built_in_group};
pub use object::Object;
pub use packed::{Damaged, Dictionary, damages, damages_of_thread, note_damage};
pub use press::{CommonLabels, Press};
pub use resource_version::ResourceVersion;
pub use selector::{FieldSelector, LabelSelector, SELECTOR_TERMS_MAX, Term, Terms, Test};
pub use selector_set::SelectorSet;
pub use status::{Cause, Details, Status, escaped};
pub use watch_event::WatchEvent;

/// The annotation that marks the bookmark at the end of a streaming list (U18).
pub const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// The annotation in which `kubectl apply` keeps the last applied manifest.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
