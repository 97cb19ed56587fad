//! The state of a cluster: its tables, its revision, its clock, and what writes take from them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use serde_json::Value;

use super::kinds::Kind;
use super::object::{Stored, rfc3339};
use super::selector::Filter;
use super::status::Status;
use super::table::{Event, EventType, Table};

/// The state behind the lock of a cluster.
#[derive(Debug)]
pub(super) struct State {
    pub(super) revision: u64,
    /// By `plural` or `plural.group`.
    pub(super) tables: BTreeMap<String, Table>,
    pub(super) window_events_max: usize,
    pub(super) rng: StdRng,
    /// Milliseconds since 1970 where a test or scenario sets the time, else the system's.
    pub(super) clock_millis: Option<u64>,
    pub(super) graceful_pods: bool,
    /// Last octets of the next service address.
    pub(super) service_ips: u16,
}

impl State {
    pub(super) fn fork(&self) -> Self {
        Self {
            revision: self.revision,
            tables: self.tables.iter().map(|(name, table)| (name.clone(), table.fork())).collect(),
            window_events_max: self.window_events_max,
            rng: StdRng::seed_from_u64(self.rng.clone().next_u64()),
            clock_millis: self.clock_millis,
            graceful_pods: self.graceful_pods,
            service_ips: self.service_ips,
        }
    }

    /// The canonical name of a resource given by plural, singular, short name, or `plural.group`.
    pub(super) fn resolve(&self, name: &str) -> Result<String, Status> {
        if self.served(name).is_some() {
            return Ok(name.to_owned());
        }
        let known = |kind: &Kind| {
            kind.plural == name || kind.singular == name || kind.short_names.iter().any(|short| short == name)
        };
        let found = self.tables.iter().find(|(_, table)| !table.ended.is_cancelled() && known(&table.kind));
        found.map(|(resource, _)| resource.clone()).ok_or_else(Status::no_such_resource)
    }

    /// The table of a canonical name, unless its definition was deleted.
    pub(super) fn served(&self, resource: &str) -> Option<&Table> {
        self.tables.get(resource).filter(|table| !table.ended.is_cancelled())
    }

    /// The table of a canonical name; 404 if its definition is gone.
    pub(super) fn table_mut(&mut self, resource: &str) -> Result<&mut Table, Status> {
        let served = self.tables.get_mut(resource).filter(|table| !table.ended.is_cancelled());
        served.ok_or_else(Status::no_such_resource)
    }

    /// Served kinds, core group first.
    pub(super) fn kinds(&self) -> Vec<Kind> {
        let served = self.tables.values().filter(|table| !table.ended.is_cancelled());
        let mut kinds: Vec<Kind> = served.map(|table| table.kind.clone()).collect();
        kinds.sort_by(|a, b| (&a.group, &a.plural).cmp(&(&b.group, &b.plural)));
        kinds
    }

    /// Milliseconds since 1970.
    pub(super) fn now_millis(&self) -> u64 {
        self.clock_millis.unwrap_or_else(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
    }

    /// Now, as Kubernetes writes it.
    pub(super) fn timestamp(&self) -> String {
        rfc3339(self.now_millis())
    }

    /// A version 4 UUID from the seed.
    pub(super) fn next_uid(&mut self) -> String {
        let mut bytes = [0_u8; 16];
        self.rng.fill_bytes(&mut bytes);
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }

    /// Five characters as the API server appends to `generateName`.
    pub(super) fn next_suffix(&mut self) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..5).map(|_| char::from(ALPHABET[self.rng.next_u32() as usize % ALPHABET.len()])).collect()
    }

    /// Counts the revision up for a write.
    pub(super) fn next_revision(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    /// Commits one write to its table.
    pub(super) fn commit(
        &mut self,
        resource: &str,
        event_type: EventType,
        object: &Arc<Stored>,
        previous: Option<Arc<Stored>>,
    ) {
        let window = self.window_events_max;
        let event = Event { event_type, revision: object.revision, object: Arc::clone(object), previous };
        self.tables.get_mut(resource).expect("the caller looked it up under this lock").commit(event, window);
    }

    /// The object as a tree with `kind` and `apiVersion`.
    pub(super) fn complete(&self, resource: &str, stored: &Stored) -> Value {
        let kind = &self.tables[resource].kind;
        let mut value = stored.value();
        value["kind"] = kind.kind.as_str().into();
        value["apiVersion"] = kind.api_version(kind.preferred()).into();
        value
    }

    /// Current objects of a table that match, in key order.
    pub(super) fn matching(&self, resource: &str, filter: &Filter) -> Vec<Arc<Stored>> {
        self.matching_at(resource, filter, self.revision)
    }

    /// Objects of a table that match, as they were at a revision, in key order.
    pub(super) fn matching_at(&self, resource: &str, filter: &Filter, revision: u64) -> Vec<Arc<Stored>> {
        self.served(resource).map_or_else(Vec::new, |table| table.page(filter, revision, None, 0).objects)
    }
}
