//! Images that a node keeps for programs that went on elsewhere before their pages were there, by names
//! that are removed once nobody can need them.
//!
//! | name | of | as long as |
//! | --- | --- | --- |
//! | `moving-NODE-MIGRATION` | what this node has handed over | it is not known whose the program is, or its target lacks pages |
//! | `kept-NODE-HOLDER-PROGRAM` | what this node keeps as a second place | the program's node lacks pages |
//! | `kept-NODE-IMAGE`, in an object store | what this node has handed over, with that as a second place | as of `moving-…` |
//!
//! Who has the program is asked, again and again: so it does not matter which of the nodes was started
//! anew meanwhile. A node that stays away may still need the pages. NODE is the beginning of this node's
//! key, since several may share a store.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pagefork_image::{ContentHash, PublicKey};
use pagefork_postcopy::{MigrationId, SourceState};

use super::client::NodeLink;
use super::node::{ProgramNode, WeakProgramNode};
use super::wire::{ClientRequest, NodeReply, ProgramId};

/// Between two questions, at first and later.
const ASK_FIRST: Duration = Duration::from_millis(100);
const ASK_LATER: Duration = Duration::from_secs(60);

/// Between two collections of the object stores of a node. What is removed has been there longer.
const COLLECT_EVERY: Duration = Duration::from_secs(3600);

/// An image that has such a name, and who may need it.
#[derive(Clone, Debug)]
pub(super) struct KeptImage {
    pub(super) name: String,
    pub(super) image: ContentHash,
    pub(super) holder: PublicKey,
    pub(super) program: ProgramId,
}

/// What is known of a hand-over when a node is started: how it stands, of which program, and to whom.
pub(super) type KnownMove = (SourceState, ProgramId, PublicKey);

/// The name of what is handed over.
pub(super) fn moving_name(node: &PublicKey, migration: MigrationId) -> String {
    // Both are 16 bytes.
    format!("{}{}", moving_prefix(node), ProgramId(migration.0))
}

/// The name of what is kept for a program of the node `holder`.
pub(super) fn second_name(node: &PublicKey, holder: &PublicKey, program: ProgramId) -> String {
    format!("{}{holder}-{program}", second_prefix(node))
}

/// The name of what is handed over in an object store that is its second place.
pub(super) fn place_name(node: &PublicKey, image: ContentHash) -> String {
    format!("{}{image}", second_prefix(node))
}

/// Whether a name may be one of these, of this node or another one.
pub(super) fn is_reserved(name: &str) -> bool {
    name.starts_with("moving-") || name.starts_with("kept-")
}

fn moving_prefix(node: &PublicKey) -> String {
    format!("moving-{}-", &node.to_string()[..16])
}

fn second_prefix(node: &PublicKey) -> String {
    format!("kept-{}-", &node.to_string()[..16])
}

/// Goes on with the names that another process of this node has left behind.
///
/// # Errors
/// If the store cannot be read or written.
pub(super) fn take_up(
    node: &ProgramNode,
    known: &BTreeMap<MigrationId, KnownMove>,
    unreadable: &BTreeSet<MigrationId>,
) -> Result<(), String> {
    let (images, own) = (&node.options().images, node.options().key.public());
    let failed = |error: pagefork_image::ImageError| error.to_string();
    for (name, image) in images.names().map_err(failed)? {
        if let Some(migration) = name.strip_prefix(&moving_prefix(&own)) {
            let Ok(migration) = migration.parse::<ProgramId>() else { continue };
            match known.get(&MigrationId(migration.0)) {
                // An operator may have it go on here.
                Some((SourceState::HandedOver { .. } | SourceState::Declined, ..)) => {}
                Some((SourceState::Taken, program, holder)) => {
                    let (program, holder) = (*program, *holder);
                    keep(node, KeptImage { name, image, holder, program });
                }
                // Nobody knows that it was never handed over.
                None if unreadable.contains(&MigrationId(migration.0)) => {}
                // It was never handed over.
                Some(_) | None => drop(images.remove_name(&name).map_err(failed)?),
            }
        } else if let Some(rest) = name.strip_prefix(&second_prefix(&own)) {
            let parts = rest.split_once('-');
            let Some((holder, program)) = parts else { continue };
            if let (Ok(holder), Ok(program)) = (holder.parse(), program.parse()) {
                keep(node, KeptImage { name, image, holder, program });
            }
        }
    }
    Ok(())
}

/// The images that a node keeps. One thread asks of all of them, so that they cost no more than they hold: a node that
/// does not answer has the others wait for as long as [`NodeTimes::idle`](crate::NodeTimes::idle) at most.
#[derive(Debug, Default)]
pub(super) struct KeptImages {
    list: Mutex<KeptList>,
    added: Condvar,
}

#[derive(Debug, Default)]
struct KeptList {
    entries: BTreeMap<String, KeptEntry>,
    has_thread: bool,
}

#[derive(Debug)]
struct KeptEntry {
    kept: Arc<KeptImage>,
    /// Who has had it kept here, if it is another node and this process was asked.
    from: Option<PublicKey>,
    /// When its holder is asked next; `None` while it comes.
    ask_at: Option<Instant>,
    pause: Duration,
}

impl KeptList {
    /// Whether it is this one that has the name.
    fn has(&self, kept: &Arc<KeptImage>) -> bool {
        self.entries.get(&kept.name).is_some_and(|entry| Arc::ptr_eq(&entry.kept, kept))
    }
}

impl KeptImages {
    fn lock(&self) -> MutexGuard<'_, KeptList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a holder is to be asked. Returns what of, in their order by names; nothing if the list is empty: then
    /// the thread that asks is gone.
    fn due(&self) -> Vec<Arc<KeptImage>> {
        let mut list = self.lock();
        loop {
            let times = list.entries.values().filter_map(|entry| entry.ask_at.zip(Some(entry)));
            let Some((at, first)) = times.min_by_key(|(at, _)| *at) else {
                list.has_thread = false;
                return Vec::new();
            };
            let now = Instant::now();
            if at <= now {
                let holder = first.kept.holder;
                let is_due = |entry: &&KeptEntry| {
                    entry.kept.holder == holder && entry.ask_at.is_some_and(|at| at <= now)
                };
                return list
                    .entries
                    .values()
                    .filter(is_due)
                    .map(|due| Arc::clone(&due.kept))
                    .collect();
            }
            let waited = self.added.wait_timeout(list, at - now);
            list = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// It was asked of this one, which may still be needed.
    fn asked(&self, kept: &Arc<KeptImage>) {
        let mut list = self.lock();
        let entry = list.entries.get_mut(&kept.name);
        if let Some(entry) = entry.filter(|entry| Arc::ptr_eq(&entry.kept, kept)) {
            entry.ask_at = Some(Instant::now() + entry.pause);
            entry.pause = (entry.pause * 2).min(ASK_LATER);
        }
    }
}

/// Lets who has the program have the image until it says that it does not need it.
pub(super) fn keep(node: &ProgramNode, kept: KeptImage) {
    let (kept, from, pause) = (Arc::new(kept), None, ASK_FIRST);
    let entry = KeptEntry { kept: Arc::clone(&kept), from, ask_at: None, pause };
    let mut list = node.kept().lock();
    list.entries.insert(kept.name.clone(), entry);
    begin_to_ask(node, &mut list, &kept);
}

/// An image is here: its holder may have it, and is asked from now on.
fn begin_to_ask(node: &ProgramNode, list: &mut KeptList, kept: &KeptImage) {
    let Some(entry) = list.entries.get_mut(&kept.name) else { return };
    entry.ask_at = Some(Instant::now() + ASK_FIRST);
    node.grant(kept.holder, kept.program, kept.image);
    if !std::mem::replace(&mut list.has_thread, true) {
        let (all, node_later) = (Arc::clone(node.kept()), node.downgrade());
        let thread = thread::Builder::new().name("pagefork-kept".to_owned());
        if let Err(error) = thread.spawn(move || ask_all(&all, &node_later)) {
            // It is asked with the next one, or when the node is started the next time.
            list.has_thread = false;
            (node.options().say)(&format!("cannot start a thread: {error}"));
        }
    }
    node.kept().added.notify_all();
}

/// Room for an image that is to be kept for another node, which is given back unless it is filled.
#[derive(Debug)]
pub(super) struct KeptRoom<'a> {
    node: &'a ProgramNode,
    kept: Arc<KeptImage>,
    is_filled: bool,
}

impl KeptRoom<'_> {
    /// The image is here: it gets its name.
    ///
    /// # Errors
    /// If the store refuses, or something else is kept instead by now.
    pub(super) fn fill(mut self) -> Result<(), String> {
        let KeptImage { name, image, .. } = &*self.kept;
        let mut list = self.node.kept().lock();
        if !list.has(&self.kept) {
            return Err("other pages of the program are kept here meanwhile".to_owned());
        }
        let named = self.node.options().images.set_name(name, *image);
        named.map_err(|error| error.to_string())?;
        begin_to_ask(self.node, &mut list, &self.kept);
        self.is_filled = true;
        Ok(())
    }
}

impl Drop for KeptRoom<'_> {
    fn drop(&mut self) {
        let mut list = self.node.kept().lock();
        if !self.is_filled && list.has(&self.kept) {
            list.entries.remove(&self.kept.name);
        }
    }
}

/// Makes room for what the node `from` wants to be kept.
///
/// # Errors
/// If it has [as much](super::ProgramLimits::kept) kept here as it may, or other pages of the program are.
pub(super) fn make_room(
    node: &ProgramNode,
    from: PublicKey,
    kept: KeptImage,
) -> Result<KeptRoom<'_>, String> {
    let before = node.kept().lock().entries.get(&kept.name).map(|entry| Arc::clone(&entry.kept));
    if let Some(before) = before {
        // Whoever has it kept: its pages are not forgotten as long as they may be needed.
        if may_need(node, std::slice::from_ref(&before))[0] {
            return Err(format!(
                "pages of the program are kept here already, which node {} may need",
                before.holder
            ));
        }
        let_go(node, &before);
    }
    let mut list = node.kept().lock();
    let limit = node.options().limits.kept;
    if list.entries.values().filter(|entry| entry.from == Some(from)).count() >= limit {
        return Err(format!(
            "{limit} images are kept here for programs that node {from} has moved, which is all that may be"
        ));
    }
    let kept = Arc::new(kept);
    let (shared, from, pause) = (Arc::clone(&kept), Some(from), ASK_FIRST);
    match list.entries.entry(kept.name.clone()) {
        Entry::Occupied(_) => Err("pages of the program come here already".to_owned()),
        Entry::Vacant(free) => {
            free.insert(KeptEntry { kept: shared, from, ask_at: None, pause });
            Ok(KeptRoom { node, kept, is_filled: false })
        }
    }
}

/// Asks until nothing is kept any more, or the node is no more.
fn ask_all(all: &KeptImages, node: &WeakProgramNode) {
    loop {
        let due = all.due();
        let Some(node) = node.upgrade().filter(|_| !due.is_empty()) else { return };
        for (kept, is_needed) in due.iter().zip(may_need(&node, &due)) {
            match is_needed {
                true => all.asked(kept),
                false => let_go(&node, kept),
            }
        }
    }
}

/// Nobody needs it any more.
fn let_go(node: &ProgramNode, kept: &Arc<KeptImage>) {
    {
        // What follows by the same name is not named before that is gone.
        let mut list = node.kept().lock();
        if !list.has(kept) {
            return;
        }
        list.entries.remove(&kept.name);
        node.revoke_image(&kept.holder, kept.program, kept.image);
        if let Err(error) = node.options().images.remove_name(&kept.name) {
            (node.options().say)(&format!("cannot remove the name {:?}: {error}", kept.name));
        }
    }
    // Which place has it, if one does, another process may have known.
    if kept.name.starts_with(&moving_prefix(&node.options().key.public())) {
        let name = place_name(&node.options().key.public(), kept.image);
        for place in &node.options().places {
            if let Err(error) = place.images.remove_name(&name) {
                (node.options().say)(&format!("{place} keeps the name {name:?}: {error}"));
            }
        }
    }
}

/// Whether who has these programs may need these images, which are of one holder. Who does not say may.
fn may_need(node: &ProgramNode, kept: &[Arc<KeptImage>]) -> Vec<bool> {
    let (options, mut needed) = (node.options(), vec![true; kept.len()]);
    let Some(peer) = kept.first().and_then(|kept| options.peers.with_key(&kept.holder)) else {
        return needed;
    };
    let times = &options.start.times.node;
    let until = Instant::now() + times.idle;
    let Ok(mut link) = NodeLink::connect(&peer, &options.key, times) else { return needed };
    for (kept, needed) in kept.iter().zip(&mut needed) {
        match link.ask_until(&ClientRequest::Needs(kept.image), "an image", until) {
            Ok(NodeReply::Needed(is_needed)) => *needed = is_needed,
            _ => break,
        }
    }
    let _ = link.duplex.end();
    needed
}

/// Has the object stores of a node collected as long as it lives: what has lost its name there goes by no
/// other hand.
pub(super) fn collect_places(node: &ProgramNode) {
    if node.options().places.is_empty() {
        return;
    }
    let node_later = node.downgrade();
    let thread = thread::Builder::new().name("pagefork-collect".to_owned());
    let started = thread.spawn(move || {
        while let Some(node) = node_later.upgrade() {
            let (places, say) = (node.options().places.clone(), Arc::clone(&node.options().say));
            drop(node);
            for place in places {
                if let Err(error) = place.images.collect() {
                    say(&format!("{place} is not collected: {error}"));
                }
            }
            thread::sleep(COLLECT_EVERY);
        }
    });
    if let Err(error) = started {
        (node.options().say)(&format!("cannot start a thread: {error}"));
    }
}

/// The pages of an image that come from other nodes while a program runs. Dropped, they are not needed
/// any more.
#[derive(Debug)]
pub(super) struct NeededImage {
    node: WeakProgramNode,
    image: ContentHash,
}

impl NeededImage {
    pub(super) fn new(node: &ProgramNode, image: ContentHash) -> Self {
        node.need(image);
        Self { node: node.downgrade(), image }
    }
}

impl Drop for NeededImage {
    fn drop(&mut self) {
        if let Some(node) = self.node.upgrade() {
            node.need_no_more(&self.image);
        }
    }
}

#[cfg(test)]
mod tests;
