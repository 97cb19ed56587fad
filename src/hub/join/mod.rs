//! `join=` on a stream: with the selected objects those that they are linked with.
//!
//! A stream with a join follows its selected objects as any other does. Beside them it holds which related object is wanted by
//! which selected one ([`joined::Joined`]): a related object is ADDED when the first selected one is linked with it, and DELETED
//! with the last. A related informer wakes the stream only where something of this changed ([`crate::cache::Interest`]). With up to
//! a thousand related objects the changes of others cost it nothing; with more, it reads the journal when it is woken.
//!
//! The stream moves in steps from one set of positions to the next, one position for each informer. At the end of a step the
//! client holds the join of the states at these positions. A step with several events ends with a bookmark, which has the token.

mod ends;
mod hash_index;
mod id_lists;
mod joined;
mod reader;
mod state;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

pub use reader::JOINED_MAX;
pub(super) use reader::{JoinError, JoinReader, is_behind, locate};
pub(super) use state::{changes_between, undo};

use super::Informer;
use crate::cache::{IndexTerm, UsedIndex};
use crate::k8s::{
    ContentHash, IndexPath, IndexPaths, Key, Link, LinkBy, Links, Object, ResourceVersion, Terms, owners,
};

/// What a stream shows beside its selected objects: the related informers, and the links to them. Shared by all streams that ask
/// for the same.
pub struct Join {
    /// The related informers, each once.
    relations: Vec<Relation>,
    /// The links of selected objects, for each of the selected informers.
    forward: Vec<Forward>,
}

/// An informer whose objects may be related to selected ones.
#[derive(Clone, Debug)]
pub struct RelatedInformer {
    /// The informer.
    pub informer: Arc<Informer>,
    /// Whether links lead to its objects or from them.
    pub linked: bool,
    /// Whether its objects may be owners.
    pub owners: bool,
}

/// A related informer, with the links of its objects to selected ones.
struct Relation {
    informer: Arc<Informer>,
    owners: bool,
    /// Its links by name, each with the selected informers that it leads to.
    names: Vec<NameLink>,
    /// Its links by selector, with the same.
    selectors: Vec<(Link, Vec<usize>)>,
    /// Whether selectors of selected objects lead to it.
    is_selected: bool,
    /// The selectors of its objects that were read. They are read once for all streams.
    read: Mutex<ReadSelectors>,
}

/// A link by name of related objects.
struct NameLink {
    link: Link,
    path: IndexPath,
    selected: Vec<usize>,
    /// Keeps the index.
    _index: UsedIndex,
}

/// The links of the objects of a selected informer.
struct Forward {
    /// Links by name, each with the relations that it leads to.
    names: Vec<(Link, Vec<usize>)>,
    /// The paths of these, in the same order.
    paths: IndexPaths,
    /// Links by selector, with the relations.
    selectors: Vec<(Link, Vec<usize>)>,
    /// Whether the objects live in namespaces.
    namespaced: bool,
}

/// The selectors that were read of objects of one history of an informer ([`crate::cache::Cursor::history`]). After the
/// API server was restored from a backup, a new object may have the uid and the version of one of before.
#[derive(Default)]
struct ReadSelectors {
    history: u64,
    by_key: HashMap<Key, SelectorsOf>,
}

/// The selectors of an object at a version, one for each link.
struct SelectorsOf {
    version: ResourceVersion,
    uid: Box<str>,
    terms: Arc<[Option<Terms>]>,
}

/// What a selected object refers to.
#[derive(Default)]
struct References {
    named: Vec<(usize, Key)>,
    owners: Vec<(usize, Key, Uid)>,
    /// Its selectors: the relation, the namespace of what is selected (empty for all), and the selector.
    selectors: Vec<(usize, String, Terms)>,
}

/// The uid of an owner, as short as it can be: a stream may hold many. It is compared with those of owners of the same name only. A user
/// who seeks two uids of one hash gets no more than one who writes the owner's uid.
type Uid = [u8; 8];

fn uid_of(text: &str) -> Uid {
    ContentHash::of(text.as_bytes()).half()
}

/// Largest number of objects whose selectors are remembered for a relation.
const READ_MAX: usize = 65_536;

// === impl Join ===

impl Join {
    /// The join of selected informers with related ones. The indexes of [`Join::index_paths`] have to be complete.
    ///
    /// # Errors
    /// The path of an index that is missing.
    pub fn new(
        selected: &[Arc<Informer>],
        related: Vec<RelatedInformer>,
        links: &Links,
    ) -> Result<Self, IndexPath> {
        let mut relations = Vec::new();
        for RelatedInformer { informer, linked, owners } in related {
            let (mut names, mut selectors) = (Vec::new(), Vec::new());
            for link in backward(&informer, links).filter(|_| linked) {
                let meant = |at: &usize| link.is_to(&selected[*at].spec.resource);
                let selected: Vec<_> = (0..selected.len()).filter(meant).collect();
                match &link.by {
                    _ if selected.is_empty() => {}
                    LinkBy::Name(path) => {
                        let term = IndexTerm { path: path.clone(), values: Vec::new().into() };
                        let index = informer.reader.use_index(&term).ok_or_else(|| path.clone())?;
                        names.push(NameLink {
                            link: link.clone(),
                            path: path.clone(),
                            selected,
                            _index: index,
                        });
                    }
                    LinkBy::Selector(..) => selectors.push((link.clone(), selected)),
                }
            }
            let is_selected = linked
                && selected.iter().any(|one| {
                    let mut from = links.from(&one.spec.resource);
                    from.any(|link| {
                        matches!(link.by, LinkBy::Selector(..)) && link.is_to(&informer.spec.resource)
                    })
                });
            let read = Mutex::default();
            relations.push((Relation { informer, owners, names, selectors, is_selected, read }, linked));
        }
        let forward = selected.iter().map(|one| Forward::new(one, &relations, links)).collect();
        let relations = relations.into_iter().map(|(relation, _)| relation).collect();
        Ok(Self { relations, forward })
    }

    /// The paths of related objects whose indexes have to be complete before [`Join::new`].
    pub fn index_paths(selected: &[Arc<Informer>], related: &Informer, links: &Links) -> Vec<IndexPath> {
        let leads = |link: &&Link| selected.iter().any(|one| link.is_to(&one.spec.resource));
        let by_name = backward(related, links).filter(leads).filter_map(|link| match &link.by {
            LinkBy::Name(path) => Some(path.clone()),
            LinkBy::Selector(..) => None,
        });
        by_name.collect()
    }

    /// The related informers, in the order of the positions behind those of the selected ones.
    pub fn informers(&self) -> impl Iterator<Item = &Arc<Informer>> {
        self.relations.iter().map(|relation| &relation.informer)
    }

    /// What a selected object refers to.
    fn references(&self, source: usize, object: &Object) -> References {
        let forward = &self.forward[source];
        let namespace = object.key().namespace();
        let there = |relation: &usize| {
            if self.relations[*relation].informer.spec.resource.namespaced() { namespace } else { "" }
        };
        let mut references = References::default();
        if !forward.names.is_empty() {
            let values = object.read_values(&forward.paths);
            for (slot, (link, relations)) in forward.names.iter().enumerate() {
                let mut names = values.get(slot).iter().filter(|name| !name.is_empty()).peekable();
                if names.peek().is_none() || !link.means(object) {
                    continue;
                }
                for name in names {
                    let keys = relations.iter().map(|relation| (*relation, Key::new(there(relation), name)));
                    references.named.extend(keys);
                }
            }
        }
        for (link, relations) in &forward.selectors {
            if let Some(terms) = link.selector(object) {
                let selectors = relations
                    .iter()
                    .map(|relation| (*relation, there(relation).to_owned(), Terms::new(terms.clone())));
                references.selectors.extend(selectors);
            }
        }
        references.owners = self.owners(object);
        references
    }

    /// The owners of an object among related informers.
    fn owners(&self, object: &Object) -> Vec<(usize, Key, Uid)> {
        let owning: Vec<_> =
            self.relations.iter().enumerate().filter(|(_, relation)| relation.owners).collect();
        if owning.is_empty() {
            return Vec::new();
        }
        let namespace = object.key().namespace();
        let mut found = Vec::new();
        for owner in owners(object) {
            let uid = uid_of(&owner.uid);
            for (at, relation) in &owning {
                let spec = &relation.informer.spec;
                if owner.is_of(&spec.resource) && (namespace.is_empty() || spec.scope.covers(namespace)) {
                    let there = if spec.resource.namespaced() { namespace } else { "" };
                    found.push((*at, Key::new(there, &owner.name), uid));
                }
            }
        }
        found
    }
}

impl fmt::Debug for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.informers()).finish()
    }
}

/// The links of an informer's own kind. The link to the namespace, which all kinds have, leads to everything in it.
fn backward<'a>(informer: &'a Informer, links: &'a Links) -> impl Iterator<Item = &'a Link> {
    links.from(&informer.spec.resource).filter(|link| !link.is_from_any())
}

// === impl Forward ===

impl Forward {
    fn new(informer: &Informer, relations: &[(Relation, bool)], links: &Links) -> Self {
        let (mut names, mut selectors, mut paths) = (Vec::new(), Vec::new(), Vec::new());
        for link in links.from(&informer.spec.resource) {
            let meant = relations
                .iter()
                .enumerate()
                .filter(|(_, (relation, linked))| *linked && link.is_to(&relation.informer.spec.resource));
            let meant: Vec<_> = meant.map(|(at, _)| at).collect();
            match &link.by {
                _ if meant.is_empty() => {}
                LinkBy::Name(path) => {
                    paths.push(path.clone());
                    names.push((link.clone(), meant));
                }
                LinkBy::Selector(..) => selectors.push((link.clone(), meant)),
            }
        }
        let namespaced = informer.spec.resource.namespaced();
        Self { names, paths: IndexPaths::new(paths), selectors, namespaced }
    }
}

// === impl Relation ===

impl Relation {
    /// Whether its objects have to be compared with selected ones, as a link leads from them, or a selector to them.
    fn compares(&self) -> bool {
        self.is_selected || !self.names.is_empty() || !self.selectors.is_empty()
    }

    /// Whether a change of labels of either side matters, so that whole namespaces are followed.
    fn selects(&self) -> bool {
        self.is_selected || !self.selectors.is_empty()
    }

    /// The names that an object of it has by one of its links.
    fn names(&self, link: &NameLink, object: &Object) -> Vec<Arc<str>> {
        let paths = self.informer.reader.paths();
        let all: Vec<Arc<str>> = match paths.slot(&link.path) {
            Some(slot) => object.values(&paths).get(slot).iter().cloned().collect(),
            None => {
                object.read_values(&IndexPaths::new(vec![link.path.clone()])).get(0).iter().cloned().collect()
            }
        };
        let named = !all.is_empty() && link.link.means(object);
        all.into_iter().filter(|name| named && !name.is_empty()).collect()
    }

    /// The selectors of an object of it in one of its histories, in the order of its links.
    fn selectors_of(&self, history: u64, object: &Object) -> Arc<[Option<Terms>]> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if read.history != history {
            *read = ReadSelectors { history, by_key: HashMap::new() };
        }
        if let Some(known) = read.by_key.get(object.key())
            && known.version == object.resource_version()
            && *known.uid == *object.uid()
        {
            return known.terms.clone();
        }
        let selectors = self.selectors.iter().map(|(link, _)| link.selector(object).map(Terms::new));
        let terms: Arc<[_]> = selectors.collect();
        if read.by_key.len() >= READ_MAX {
            read.by_key.clear();
        }
        let (version, uid) = (object.resource_version(), object.uid().into());
        read.by_key.insert(object.key().clone(), SelectorsOf { version, uid, terms: terms.clone() });
        terms
    }
}
