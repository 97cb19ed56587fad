//! Writes: create, update, delete, and the metadata that the server sets.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::kinds::Kind;
use super::managed_fields::{self, Manager};
use super::object::{Stored, key_of};
use super::selector::Filter;
use super::state::State;
use super::status::{Cause, Status};
use super::table::{EventType, Table};

/// The object of a write.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Canonical resource name.
    pub(super) resource: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// The part of an object that a write may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Everything, as in the Rust interface.
    Whole,
    /// All but the status, where the kind has a status subresource.
    Main,
    /// The status alone.
    Status,
}

/// Whether a write is stored; with `dryRun=All` it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Commit {
    Store,
    DryRun,
}

/// The writer, the part that may be changed, and whether the write is stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Door<'a> {
    pub(super) manager: Manager<'a>,
    pub(super) part: Part,
    pub(super) commit: Commit,
}

/// The result of a deletion.
#[derive(Debug)]
pub(super) enum Deletion {
    /// The object is gone; its last state.
    Done(Arc<Stored>),
    /// Marked with a deletionTimestamp; finalizers or a kubelet have to finish.
    Pending(Arc<Stored>),
}

impl Place {
    pub(super) fn new(resource: &str, namespace: &str, name: &str) -> Self {
        Self { resource: resource.into(), namespace: namespace.into(), name: name.into() }
    }

    /// The namespace and name in an object's metadata.
    pub(super) fn of(resource: &str, object: &Value) -> Self {
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        Self::new(resource, text("namespace"), text("name"))
    }

    fn key(&self) -> String {
        key_of(&self.namespace, &self.name)
    }
}

impl State {
    /// Creates an object. `namespace` is that of the path; empty to take the object's own.
    pub(super) fn create(
        &mut self,
        resource: &str,
        namespace: &str,
        mut value: Value,
        door: Door<'_>,
    ) -> Result<Arc<Stored>, Status> {
        let kind = self.table_mut(resource)?.kind.clone();
        self.prepare_new(&kind, namespace, &mut value)?;
        let place = Place::of(resource, &value);
        if self.tables[resource].objects.contains_key(&place.key()) {
            return Err(Status::already_exists(&kind.plural, &kind.group, &place.name));
        }
        let definition = is_definition(&kind).then(|| definition_of(&value)).transpose()?;
        if door.part == Part::Main && kind.has("status") && !is_definition(&kind) {
            value.as_object_mut().expect("prepared to be a map").remove("status");
        }
        super::defaults::apply(self, &kind, &mut value);
        let api_version = kind.api_version(kind.preferred());
        managed_fields::record(None, &mut value, door.manager, &api_version, &self.timestamp());
        let revision = if door.commit == Commit::DryRun { self.revision } else { self.next_revision() };
        value["metadata"]["resourceVersion"] = revision.to_string().into();
        let stored = Arc::new(Stored::new(&kind, value, revision));
        if door.commit == Commit::Store {
            self.commit(resource, EventType::Added, &stored, None);
            if let Some(custom) = definition {
                let name = custom.resource();
                let mut table = Table::new(custom, revision);
                // Older watches may still be open, and are counted until they end.
                table.counters = self.tables.get(&name).map(|before| before.counters).unwrap_or_default();
                self.tables.insert(name, table);
            }
        }
        Ok(stored)
    }

    /// Checks and completes the metadata of a new object.
    fn prepare_new(&mut self, kind: &Kind, namespace: &str, value: &mut Value) -> Result<(), Status> {
        if !value.is_object() {
            return Err(Status::bad_request("the object provided is unrecognized (must be of type Object)"));
        }
        if !value["metadata"].is_object() {
            value["metadata"] = json!({});
        }
        let (uid, now) = (self.next_uid(), self.timestamp());
        let suffix = self.next_suffix();
        let metadata = value["metadata"].as_object_mut().expect("set above");
        if metadata.get("name").and_then(Value::as_str).unwrap_or_default().is_empty() {
            let prefix = metadata.get("generateName").and_then(Value::as_str).unwrap_or_default();
            if prefix.is_empty() {
                let message = "Required value: name or generateName is required".into();
                let cause = Cause { reason: "FieldValueRequired", message, field: "metadata.name" };
                return Err(Status::invalid(&kind.kind, &kind.group, "", &[cause]));
            }
            let name = format!("{prefix}{suffix}");
            metadata.insert("name".into(), name.into());
        }
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        check_name(kind, &name)?;
        if kind.is_namespaced() {
            let own = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default().to_owned();
            if !namespace.is_empty() && !own.is_empty() && own != namespace {
                return Err(Status::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            let chosen = [namespace, &own, "default"].into_iter().find(|n| !n.is_empty()).unwrap_or_default();
            metadata.insert("namespace".into(), chosen.into());
        } else {
            metadata.remove("namespace");
        }
        for server_set in ["resourceVersion", "deletionTimestamp", "managedFields", "selfLink"] {
            metadata.remove(server_set);
        }
        metadata.insert("uid".into(), uid.into());
        metadata.insert("creationTimestamp".into(), now.into());
        if kind.has_generation() {
            metadata.insert("generation".into(), 1.into());
        }
        Ok(())
    }

    /// Replaces an object by the result of `change`.
    ///
    /// As on a real server, nothing is written if nothing changes.
    pub(super) fn update(
        &mut self,
        place: &Place,
        door: Door<'_>,
        change: impl FnOnce(Value) -> Result<Value, Status>,
    ) -> Result<Arc<Stored>, Status> {
        let table = self.table_mut(&place.resource)?;
        let kind = table.kind.clone();
        let current = table.objects.get(&place.key());
        let current = current.ok_or_else(|| Status::not_found(&kind.plural, &kind.group, &place.name))?;
        let current = Arc::clone(current);
        let before = current.value();
        let mut after = change(before.clone())?;
        check_preconditions(&kind, place, &current, &before, &after)?;
        keep_server_fields(&kind, door.part, &before, &mut after);
        if after == before {
            return Ok(current);
        }
        let definition = is_definition(&kind).then(|| definition_of(&after)).transpose()?;
        let specification = |value: &Value| {
            let mut value = value.clone();
            for name in ["metadata", "status", "kind", "apiVersion"] {
                value.as_object_mut().map(|map| map.remove(name));
            }
            value
        };
        if kind.has_generation() && specification(&before) != specification(&after) {
            after["metadata"]["generation"] =
                (before["metadata"]["generation"].as_u64().unwrap_or(0) + 1).into();
        }
        let api_version = kind.api_version(kind.preferred());
        managed_fields::record(Some(&before), &mut after, door.manager, &api_version, &self.timestamp());
        let revision = if door.commit == Commit::DryRun { self.revision } else { self.next_revision() };
        after["metadata"]["resourceVersion"] = revision.to_string().into();
        // The last finalizer of a deleted object was removed: this write is the deletion, and it carries the state
        // before it.
        let done = has_finalizers(&before) && !has_finalizers(&after) && is_deleted(&before);
        let stored =
            if done { current.at_revision(&kind, revision) } else { Stored::new(&kind, after, revision) };
        let stored = Arc::new(stored);
        if door.commit == Commit::Store {
            let event_type = if done { EventType::Deleted } else { EventType::Modified };
            self.commit(&place.resource, event_type, &stored, Some(current));
            if let Some(custom) = definition {
                self.redefine(custom, revision);
            }
        }
        Ok(stored)
    }

    /// Deletes an object, or marks it if finalizers or a kubelet come first.
    ///
    /// `preconditions` is that field of the delete options (or null); `grace_seconds` likewise.
    pub(super) fn delete(
        &mut self,
        place: &Place,
        preconditions: &Value,
        grace_seconds: Option<u64>,
        door: Door<'_>,
    ) -> Result<Deletion, Status> {
        let table = self.table_mut(&place.resource)?;
        let kind = table.kind.clone();
        let current = table.objects.get(&place.key());
        let current = current.ok_or_else(|| Status::not_found(&kind.plural, &kind.group, &place.name))?;
        let current = Arc::clone(current);
        let mut value = current.value();
        check_preconditions(&kind, place, &current, &value, &json!({"metadata": preconditions}))?;
        if door.commit == Commit::DryRun {
            return Ok(Deletion::Done(current));
        }
        let grace =
            if self.graceful_pods && kind.resource() == "pods" && value["spec"]["nodeName"].is_string() {
                grace_seconds.unwrap_or(30)
            } else {
                0
            };
        if has_finalizers(&value) || grace > 0 {
            if is_deleted(&value) {
                return Ok(Deletion::Pending(current));
            }
            let at = super::object::rfc3339(self.now_millis() + grace * 1000);
            value["metadata"]["deletionTimestamp"] = at.into();
            value["metadata"]["deletionGracePeriodSeconds"] = grace.into();
            let revision = self.next_revision();
            value["metadata"]["resourceVersion"] = revision.to_string().into();
            let stored = Arc::new(Stored::new(&kind, value, revision));
            self.commit(&place.resource, EventType::Modified, &stored, Some(current));
            return Ok(Deletion::Pending(stored));
        }
        if kind.resource() == "namespaces" {
            self.empty_namespace(&place.name);
        }
        let custom = is_definition(&kind).then(|| Kind::from_definition(&value).ok()).flatten();
        if let Some(custom) = custom {
            self.undefine(&custom.resource());
        }
        let stored = self.remove(&place.resource, &kind, &current);
        Ok(Deletion::Done(stored))
    }

    fn remove(&mut self, resource: &str, kind: &Kind, current: &Arc<Stored>) -> Arc<Stored> {
        let revision = self.next_revision();
        let stored = Arc::new(current.at_revision(kind, revision));
        self.commit(resource, EventType::Deleted, &stored, Some(Arc::clone(current)));
        stored
    }

    fn empty_namespace(&mut self, namespace: &str) {
        let filter = Filter::in_namespace(namespace);
        let resources: Vec<String> = self.tables.keys().cloned().collect();
        for resource in resources {
            let kind = self.tables[&resource].kind.clone();
            for object in self.matching(&resource, &filter) {
                self.remove(&resource, &kind, &object);
            }
        }
    }

    /// Handles a changed definition: every watch of its objects ends, and the window starts over, so that all older
    /// resourceVersions are too old.
    fn redefine(&mut self, custom: Kind, revision: u64) {
        if let Some(table) = self.tables.get_mut(&custom.resource()) {
            table.ended.cancel();
            table.ended = CancellationToken::new();
            table.kind = custom;
            table.forget(revision);
        }
    }

    /// Handles a deleted definition: DELETED for each object, then every watch ends and the resource is no longer served.
    fn undefine(&mut self, resource: &str) {
        let Some(table) = self.tables.get(resource) else { return };
        let kind = table.kind.clone();
        for object in self.matching(resource, &Filter::default()) {
            self.remove(resource, &kind, &object);
        }
        // The table is kept but not served, so that open watches can still read their last events.
        if let Some(table) = self.tables.get(resource) {
            table.ended.cancel();
        }
    }
}

fn is_definition(kind: &Kind) -> bool {
    kind.plural == "customresourcedefinitions"
}

fn definition_of(value: &Value) -> Result<Kind, Status> {
    Kind::from_definition(value).map_err(|why| {
        let cause =
            Cause { reason: "FieldValueInvalid", message: format!("Invalid value: {why}"), field: "spec" };
        let name = value["metadata"]["name"].as_str().unwrap_or_default();
        Status::invalid("CustomResourceDefinition", "apiextensions.k8s.io", name, &[cause])
    })
}

fn has_finalizers(value: &Value) -> bool {
    value["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty())
}

fn is_deleted(value: &Value) -> bool {
    value["metadata"]["deletionTimestamp"].is_string()
}

/// Names are DNS subdomains: lower case letters, digits, `-` and `.`, an alphanumeric at both ends.
fn check_name(kind: &Kind, name: &str) -> Result<(), Status> {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let good = name.len() <= 253
        && name.starts_with(alphanumeric)
        && name.ends_with(alphanumeric)
        && name.chars().all(|c| alphanumeric(c) || matches!(c, '-' | '.'));
    if good {
        return Ok(());
    }
    let message = format!(
        "Invalid value: {}: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
         '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        super::status::quoted(name)
    );
    let cause = Cause { reason: "FieldValueInvalid", message, field: "metadata.name" };
    Err(Status::invalid(&kind.kind, &kind.group, name, &[cause]))
}

fn check_preconditions(
    kind: &Kind,
    place: &Place,
    current: &Stored,
    before: &Value,
    after: &Value,
) -> Result<(), Status> {
    let asked = |name: &str| after["metadata"][name].as_str().filter(|text| !text.is_empty());
    let conflict = || Status::conflict(&kind.plural, &kind.group, &place.name);
    if asked("resourceVersion").is_some_and(|asked| asked != current.revision.to_string()) {
        return Err(conflict());
    }
    if asked("uid").is_some_and(|asked| Some(asked) != before["metadata"]["uid"].as_str()) {
        let mut status = conflict();
        status.message = status.message.replace(
            "the object has been modified; please apply your changes to the latest version and try again",
            "Precondition failed: UID in precondition does not match UID in object meta",
        );
        return Err(status);
    }
    Ok(())
}

/// Restores the members that a client cannot change.
fn keep_server_fields(kind: &Kind, part: Part, before: &Value, after: &mut Value) {
    if part == Part::Status {
        let status = after.get("status").cloned();
        *after = before.clone();
        set_or_remove(after, "status", status);
        return;
    }
    if !after["metadata"].is_object() {
        after["metadata"] = json!({});
    }
    let map = after.as_object_mut().expect("indexing by a name made it a map");
    map.remove("kind");
    map.remove("apiVersion");
    for name in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "managedFields",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        set_or_remove(&mut after["metadata"], name, before["metadata"].get(name).cloned());
    }
    if part == Part::Main && kind.has("status") {
        set_or_remove(after, "status", before.get("status").cloned());
    }
}

fn set_or_remove(target: &mut Value, name: &str, value: Option<Value>) {
    if let Some(map) = target.as_object_mut() {
        match value {
            Some(value) => drop(map.insert(name.into(), value)),
            None => drop(map.remove(name)),
        }
    }
}
