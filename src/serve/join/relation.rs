//! The relations of a join, and the objects of one related resource.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use axum::http::StatusCode;
use tokio::time::Instant;

use crate::cache::{IndexTerm, KeySet, Snapshot};
use crate::hub::Informer;
use crate::k8s::{IndexPath, Key, Link, LinkBy, Object, SelectorSet, built_in_named};
use crate::serve::params::Params;
use crate::serve::target::{self, Target};
use crate::serve::turns::Turns;
use crate::serve::{ApiError, Server, metrics};

/// Largest number of labels whose indexes are built to find what selectors select. With more, namespaces are scanned.
const LABELS_MAX: usize = 4;
/// Objects that are looked at in one turn.
const LOOKED_AT_MAX: usize = 100;
/// The relation to the owners of an object, and to theirs.
const OWNERS: &str = "owners";

/// The selected objects of one informer, and the state that has them.
pub(super) struct Selected {
    pub(super) informer: Arc<Informer>,
    pub(super) state: Snapshot,
    pub(super) objects: Vec<Object>,
}

/// What is asked for beside the selected objects.
pub(super) struct Relations {
    pub(super) kinds: Vec<RelatedResource>,
    pub(super) owners: bool,
}

/// A related resource.
pub(super) struct RelatedResource {
    pub(super) informers: Vec<Arc<Informer>>,
    /// Links of selected resources to it.
    forward: Vec<Link>,
    /// Links of it to selected resources.
    backward: Vec<Link>,
}

impl Relations {
    pub(super) async fn parse(
        server: &Server,
        target: &Target,
        params: &Params,
        deadline: Instant,
    ) -> Result<Self, ApiError> {
        let text = params.get("join").unwrap_or_default();
        let links = &server.config.links;
        let resources = || target.informers.iter().map(|informer| &informer.spec.resource);
        let mut known = BTreeSet::from([OWNERS.to_owned()]);
        for resource in resources() {
            known.extend(links.from(resource).map(|link| link.to.to_string()));
            let backward = links.to(resource).filter(|link| !link.is_from_any());
            known.extend(backward.map(|link| link.from.to_string()));
        }
        let mut relations = Self { kinds: Vec::new(), owners: false };
        let mut seen = BTreeSet::new();
        for name in text.split(',').map(str::trim) {
            let wrong = |why: &str| ApiError::invalid("join", name, why);
            let Some(name) = meant(name, &known) else {
                let known: Vec<_> = known.iter().map(String::as_str).collect();
                let resources: BTreeSet<_> = resources().map(|resource| resource.canonical()).collect();
                let resources: Vec<_> = resources.into_iter().collect();
                return Err(wrong(&format!("{} have {}", resources.join(" and "), known.join(", "))));
            };
            if !seen.insert(name.to_owned()) {
                return Err(wrong("expected each relation once"));
            }
            if name == OWNERS {
                relations.owners = true;
                continue;
            }
            let informers = target::resolve(&server.hub, name, deadline).await.map_err(|error| {
                let is_missing = error.code() == StatusCode::NOT_FOUND;
                if is_missing { wrong(&error.status().message) } else { error }
            })?;
            if resources().any(|resource| *resource == informers[0].spec.resource) {
                return Err(wrong("expected another resource than those that are selected"));
            }
            let relation = RelatedResource::new(server, target, informers);
            relation.check_held(target).map_err(|why| wrong(&why))?;
            relations.kinds.push(relation);
        }
        let related = relations.kinds.iter().flat_map(|relation| relation.informers.iter().cloned());
        let related: Vec<_> = related.collect();
        // Possible owners are not checked, as nearly any resource may contain one. An owner is shown with the members that are held.
        for name in ["fields", "changed"] {
            target::mask(&related, name, params)?;
        }
        let count = relations.kinds.iter().map(|relation| relation.informers.len()).sum::<usize>();
        let max = server.config.streams_per_connection_max;
        if target.informers.len() + count > max {
            metrics::limit_hit("streams_per_connection_max");
            let accepted = format!("with it the request reads more than {max} informers");
            return Err(ApiError::invalid("join", text, &accepted));
        }
        Ok(relations)
    }
}

/// The relation that a name as kubectl takes it means.
fn meant<'a>(name: &str, known: &'a BTreeSet<String>) -> Option<&'a str> {
    let plural = |known: &str| known.split_once('.').map_or(known == name, |(plural, _)| plural == name);
    let exactly = known.get(name);
    let (word, group) = name.split_once('.').map_or((name, None), |(word, group)| (word, Some(group)));
    let built_in = || built_in_named(word, group).and_then(|kind| known.get(&kind.canonical()));
    let found = exactly.or_else(|| known.iter().find(|known| plural(known))).or_else(built_in);
    found.map(String::as_str)
}

impl RelatedResource {
    fn new(server: &Server, target: &Target, informers: Vec<Arc<Informer>>) -> Self {
        let resource = informers[0].spec.resource.clone();
        let links = &server.config.links;
        let any = |is: &dyn Fn(&Informer) -> bool| target.informers.iter().any(|informer| is(informer));
        let forward =
            links.to(&resource).filter(|link| any(&|informer| link.is_from(&informer.spec.resource)));
        let backward = links.from(&resource).filter(|link| !link.is_from_any());
        let backward = backward.filter(|link| any(&|informer| link.is_to(&informer.spec.resource)));
        let (forward, backward) = (forward.cloned().collect(), backward.cloned().collect());
        Self { informers, forward, backward }
    }

    /// Refuses a link whose path the objects are held without: nothing would seem to be related.
    fn check_held(&self, target: &Target) -> Result<(), String> {
        let forward = self.forward.iter().flat_map(|link| {
            let from = target.informers.iter().filter(|informer| link.is_from(&informer.spec.resource));
            from.map(move |informer| (informer, link))
        });
        let backward =
            self.backward.iter().flat_map(|link| self.informers.iter().map(move |informer| (informer, link)));
        for (informer, link) in forward.chain(backward) {
            if !informer.spec.holds(&link.path()) {
                return Err(format!("the cache keeps no {} of {}", link.path(), informer.spec.resource));
            }
        }
        Ok(())
    }

    /// The objects of one of its informers that are linked with selected ones, with the state that has them.
    pub(super) async fn find(
        &self,
        informer: &Arc<Informer>,
        selected: &[Selected],
        turns: &Turns,
    ) -> (Snapshot, BTreeMap<Key, Object>) {
        let wanted = self.wanted(informer, selected, turns).await;
        let named = self.backward.iter().filter_map(|link| match &link.by {
            LinkBy::Name(path) => Some((link, path)),
            LinkBy::Selector(..) => None,
        });
        let named: Vec<_> = named.collect();
        let mut terms: Vec<_> = named.iter().map(|(link, path)| named_by(link, path, selected)).collect();
        let labels = wanted.selectors.labels().filter(|labels| labels.len() <= LABELS_MAX);
        let by_label = |(key, values): (String, Vec<String>)| IndexTerm {
            path: IndexPath::Label(key.into()),
            values: values.into(),
        };
        terms.extend(labels.clone().into_iter().flatten().map(by_label));
        for IndexTerm { path, .. } in terms.iter().filter(|term| !term.values.is_empty()) {
            turns.index_at(informer, path).await;
        }
        let (state, mut keys) = informer.reader.find(&terms);
        let mut found: BTreeMap<Key, Object> = BTreeMap::new();
        let mut keep = |object: &Object| drop(found.insert(object.key().clone(), object.clone()));
        wanted.keys.iter().filter_map(|key| state.get(key)).for_each(&mut keep);
        let by_label = keys.split_off(named.len());
        for ((link, _), keys) in named.into_iter().zip(keys) {
            let names = selected.iter().filter(|one| link.is_to(&one.informer.spec.resource));
            let of_namespace = names.clone().any(|one| one.informer.spec.resource.namespaced());
            let names: HashSet<&Key> =
                names.flat_map(|one| one.objects.iter().map(|object| object.key())).collect();
            if names.is_empty() {
                continue;
            }
            in_turns(turns, candidates(&state, keys.as_ref(), None), |object| {
                let there = if of_namespace { object.key().namespace() } else { "" };
                if link.names(object).iter().any(|name| names.contains(&Key::new(there, name))) {
                    keep(object);
                }
            })
            .await;
        }
        if !wanted.selectors.is_empty() {
            let by_label = by_label.into_iter().collect::<Option<Vec<_>>>().filter(|_| labels.is_some());
            let keys = by_label.map(KeySet::union);
            let namespaces = wanted.selectors.namespaces();
            in_turns(turns, candidates(&state, keys.as_ref(), namespaces.as_deref()), |object| {
                if !wanted.selectors.selecting(object).is_empty() {
                    keep(object);
                }
            })
            .await;
        }
        for link in self.backward.iter().filter(|link| matches!(link.by, LinkBy::Selector(..))) {
            select_back(link, &state, selected, turns).await.iter().for_each(&mut keep);
        }
        (state, found)
    }

    /// What selected objects refer to.
    async fn wanted(&self, informer: &Informer, selected: &[Selected], turns: &Turns) -> Wanted {
        let mut wanted = Wanted::default();
        for link in &self.forward {
            for one in selected.iter().filter(|one| link.is_from(&one.informer.spec.resource)) {
                in_turns(turns, one.objects.iter(), |object| {
                    let namespace = object.key().namespace();
                    let there = if informer.spec.resource.namespaced() { namespace } else { "" };
                    wanted.keys.extend(link.names(object).iter().map(|name| Key::new(there, name)));
                    if let Some(terms) = link.selector(object) {
                        wanted.selectors.add(there, terms);
                    }
                })
                .await;
            }
        }
        wanted
    }
}

/// What selected objects refer to in one resource.
#[derive(Default)]
struct Wanted {
    keys: BTreeSet<Key>,
    selectors: SelectorSet,
}

/// The term of the objects that name selected ones by a link.
fn named_by(link: &Link, path: &IndexPath, selected: &[Selected]) -> IndexTerm {
    let meant = selected.iter().filter(|one| link.is_to(&one.informer.spec.resource));
    let names = meant.flat_map(|one| one.objects.iter().map(|object| object.key().name()));
    let names: BTreeSet<&str> = names.collect();
    IndexTerm { path: path.clone(), values: names.into_iter().map(str::to_owned).collect() }
}

/// The objects of a state whose selectors select one of the selected objects.
async fn select_back(link: &Link, state: &Snapshot, selected: &[Selected], turns: &Turns) -> Vec<Object> {
    let meant = || selected.iter().filter(|one| link.is_to(&one.informer.spec.resource));
    let objects = || meant().flat_map(|one| one.objects.iter());
    let mut set = SelectorSet::default();
    let mut with_selector: Vec<Object> = Vec::new();
    let of_namespace = meant().any(|one| one.informer.spec.resource.namespaced());
    let namespaces: BTreeSet<&str> = objects().map(|object| object.key().namespace()).collect();
    in_turns(turns, candidates(state, None, None), |object| {
        let namespace = if of_namespace { object.key().namespace() } else { "" };
        // One of a cluster's object selects in all namespaces.
        if !namespace.is_empty() && !namespaces.contains(namespace) {
            return;
        }
        if let Some(terms) = link.selector(object) {
            set.add(namespace, terms);
            with_selector.push(object.clone());
        }
    })
    .await;
    let mut places = BTreeSet::new();
    in_turns(turns, objects(), |object| places.extend(set.selecting(object))).await;
    places.into_iter().map(|place| with_selector[place].clone()).collect()
}

/// The objects of a state with these keys, or of these namespaces, or all.
fn candidates<'a>(
    state: &'a Snapshot,
    keys: Option<&'a KeySet>,
    namespaces: Option<&'a [&'a str]>,
) -> Box<dyn Iterator<Item = &'a Object> + Send + 'a> {
    match (keys, namespaces) {
        (Some(keys), _) => Box::new(keys.iter().filter_map(|key| state.get(key))),
        (None, Some(namespaces)) => {
            Box::new(namespaces.iter().flat_map(|namespace| state.namespace_after(namespace, None)))
        }
        (None, None) => Box::new(state.after(None)),
    }
}

/// Looks at each item, in turns.
pub(super) async fn in_turns<T>(
    turns: &Turns,
    mut items: impl Iterator<Item = T> + Send,
    mut look: impl FnMut(T) + Send,
) {
    loop {
        let permit = turns.take().await;
        for _ in 0..LOOKED_AT_MAX {
            match items.next() {
                Some(item) => look(item),
                None => return,
            }
        }
        drop(permit);
        tokio::task::yield_now().await;
    }
}
