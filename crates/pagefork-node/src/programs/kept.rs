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

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

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

/// Lets who has the program have the image until it says that it does not need it.
pub(super) fn keep(node: &ProgramNode, kept: KeptImage) {
    node.grant(kept.holder, kept.program, kept.image);
    let node_later = node.downgrade();
    let thread = thread::Builder::new().name("pagefork-kept".to_owned());
    let started = thread.spawn(move || until_unneeded(&node_later, &kept));
    if let Err(error) = started {
        // It is asked when the node is started the next time.
        (node.options().say)(&format!("cannot start a thread: {error}"));
    }
}

fn until_unneeded(node: &WeakProgramNode, kept: &KeptImage) {
    let mut pause = ASK_FIRST;
    loop {
        thread::sleep(pause);
        pause = (pause * 2).min(ASK_LATER);
        let Some(node) = node.upgrade() else { return };
        if is_needed(&node, kept) {
            continue;
        }
        node.revoke_image(&kept.holder, kept.program, kept.image);
        // Another hand-over has another name, but the same program may be kept again.
        let images = &node.options().images;
        let is_same = images.find(&kept.name).is_ok_and(|image| image == kept.image);
        if is_same && let Err(error) = images.remove_name(&kept.name) {
            (node.options().say)(&format!("cannot remove the name {:?}: {error}", kept.name));
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
        return;
    }
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

/// Whether who has the program may need the image. Who does not say may.
fn is_needed(node: &ProgramNode, kept: &KeptImage) -> bool {
    let options = node.options();
    let Some(peer) = options.peers.with_key(&kept.holder) else { return true };
    let link = NodeLink::connect(&peer, &options.key, &options.start.times.node);
    let answer = link.and_then(|mut link| {
        let answer = link.ask(&ClientRequest::Needs(kept.image), "an image");
        let _ = link.duplex.end();
        answer
    });
    !matches!(answer, Ok(NodeReply::Needed(false)))
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
