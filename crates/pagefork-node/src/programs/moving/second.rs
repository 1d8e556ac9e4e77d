//! What gets all pages of a program that goes on before they are at its target.

use std::sync::Arc;

use pagefork_image::{ContentHash, PublicKey, copy_image};

use super::MovingProgram;
use crate::programs::client::NodeLink;
use crate::programs::kept;
use crate::programs::wire::{ClientRequest, SecondPlace};
use crate::watched::{ToldGroups, WatchedImages};

impl MovingProgram {
    /// What is to have the pages, too, if there are any to come.
    pub(super) fn second(&self) -> Option<SecondPlace> {
        self.options.second.clone().filter(|_| self.options.rounds == 0)
    }

    /// Has the second place get all pages of what was handed over. Returns whether there is one.
    ///
    /// # Errors
    /// Why it has not. The program is at its target all the same.
    pub(super) fn keep_at_second(&mut self) -> Result<bool, String> {
        let (Some(second), Some(image)) = (self.second(), self.image) else { return Ok(false) };
        if second == SecondPlace::Nowhere {
            return Ok(false);
        }
        let stored = self.node.options().images.load(image);
        let groups = stored.map(|stored| stored.chain().tip().group_count());
        let groups = groups.map_err(|error| {
            format!("it is at its target, but its pages are not at {second}: {error}")
        })?;
        self.program.begin_kept(groups);
        let program = Arc::clone(&self.program);
        let told: ToldGroups = Arc::new(move |read| {
            // The last one counts when all of it is there.
            program.set_kept(read.min(groups.saturating_sub(1)));
        });
        let outcome = match &second {
            SecondPlace::Node(key) => self.keep_at_node(*key, image, told),
            SecondPlace::Objects(url) => self.keep_in_place(url, image, told),
            SecondPlace::Nowhere => Ok(()),
        };
        match outcome {
            Ok(()) => {
                self.program.set_kept(groups);
                Ok(true)
            }
            Err(why) => {
                let kept = self.program.kept().map(|kept| format!(" ({kept} were sent)"));
                let kept = kept.unwrap_or_default();
                Err(format!(
                    "it is at its target, but its pages are not at {second}{kept}: {why}; until all of \
                     them are at its target, it is lost if its source is"
                ))
            }
        }
    }

    /// Puts all pages into an object store, where they have a name until the target has them.
    fn keep_in_place(&self, url: &str, image: ContentHash, told: ToldGroups) -> Result<(), String> {
        let options = self.node.options();
        let place = options.place(url)?;
        let name = kept::place_name(&options.key.public(), image);
        let images = WatchedImages { images: &options.images, told };
        let put = copy_image(&images, &*place.images, image);
        put.and_then(|()| place.images.set_name(&name, image)).map_err(|error| error.to_string())
    }

    fn keep_at_node(
        &self,
        second: PublicKey,
        image: ContentHash,
        told: ToldGroups,
    ) -> Result<(), String> {
        let options = self.node.options();
        self.node.grant(second, self.program.id, image);
        self.node.watch(second, image, told);
        let kept = || {
            let peer = options.peers.with_key(&second);
            let peer = peer.ok_or_else(|| format!("where node {second} is is not known"))?;
            let link = NodeLink::connect(&peer, &options.key, &options.start.times.node);
            let mut link = link.map_err(|error| error.to_string())?;
            let (program, holder) = (self.program.id, *self.to.as_bytes());
            let request = ClientRequest::Keep { image, program, holder };
            let kept = link.ask(&request, "the second place of its pages");
            kept.map(drop).map_err(|error| error.to_string())
        };
        let outcome = kept();
        self.node.watch_no_more(second, image);
        self.node.revoke_image(&second, self.program.id, image);
        outcome
    }
}
