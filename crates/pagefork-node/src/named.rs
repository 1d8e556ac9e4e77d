//! Holders that an image names in its manifest: whom of them this process asks.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pagefork_image::{ContentHash, Manifest, PublicKey, SavedHolder};

use crate::place::PageHolder;

/// Says whom of the holders that images name this process asks, and where it knows them to be; or why it does not ask
/// one. What an image names is a claim of who has signed it: no address of another process's choosing is ever connected
/// to. It is asked when a node is lost, on the thread that fetches, and more than once of each.
///
/// # Examples
///
/// ```
/// use pagefork_image::{SavedHolder, SecretKey};
/// use pagefork_node::{HolderCheck, MemoryPeer, PageHolder, StartOptions};
///
/// let edge = SecretKey::from_seed([1; 32]).public();
/// let known = MemoryPeer { address: "edge.example:7410".to_owned(), key: edge };
/// let check = HolderCheck::new(move |holder| match holder {
///     SavedHolder::Node(key) if *key == known.key => Ok(PageHolder::Node(known.clone())),
///     _ => Err("it is not known here".to_owned()),
/// });
/// assert!(check.find(&SavedHolder::Node(edge)).is_ok());
/// assert!(check.find(&SavedHolder::Objects("s3://bucket/images".to_owned())).is_err());
/// let options = StartOptions { holders: Some(check), ..StartOptions::default() };
/// # drop(options);
/// ```
#[derive(Clone)]
pub struct HolderCheck(Arc<dyn Fn(&SavedHolder) -> Result<PageHolder, String> + Send + Sync>);

impl HolderCheck {
    /// By what `find` says: where a holder is, or why it is not asked. It says the same of a holder each time, as long as
    /// that is where it was. A holder of which it panics is not asked.
    pub fn new(
        find: impl Fn(&SavedHolder) -> Result<PageHolder, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(find))
    }

    /// Whom to ask.
    ///
    /// # Errors
    /// Why it is not asked, for people.
    pub fn find(&self, holder: &SavedHolder) -> Result<PageHolder, String> {
        // Guests wait on this thread: they would wait out their time.
        catch_unwind(AssertUnwindSafe(|| (self.0)(holder)))
            .unwrap_or_else(|_| Err("who was to say where it is panicked".to_owned()))
    }
}

impl fmt::Debug for HolderCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HolderCheck")
    }
}

/// Holders that an image names. Whom of them this process asks is looked up when somebody is to be asked: it may not
/// know them any more, or by then.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamedHolders {
    named: Vec<SavedHolder>,
    check: Option<HolderCheck>,
}

impl NamedHolders {
    /// The next one that is to be asked besides `asked`.
    pub(crate) fn besides(&self, asked: &[PageHolder]) -> Option<PageHolder> {
        let is_new = |holder: &PageHolder| !asked.iter().any(|asked| asked.is_same(holder));
        self.named.iter().filter_map(|holder| self.find(holder).ok()).find(is_new)
    }

    /// Whom this process does not ask, and why, of those that are not among `asked`.
    pub(crate) fn unasked(&self, asked: &[PageHolder]) -> Vec<(SavedHolder, String)> {
        let is_new = |holder: &&SavedHolder| !asked.iter().any(|asked| asked.is_named(holder));
        let why = |holder: &SavedHolder| Some((holder.clone(), self.find(holder).err()?));
        self.named.iter().filter(is_new).filter_map(why).collect()
    }

    fn find(&self, holder: &SavedHolder) -> Result<PageHolder, String> {
        match &self.check {
            Some(check) => check.find(holder),
            None => Err("this process asks nobody because an image names it".to_owned()),
        }
    }
}

/// What is known of the image that a name means, once somebody who is trusted has signed that.
#[derive(Debug, Default)]
pub(crate) struct AcceptedHead {
    image: Cell<Option<ContentHash>>,
    named: RefCell<NamedHolders>,
}

impl AcceptedHead {
    /// The image.
    pub(crate) fn image(&self) -> Option<ContentHash> {
        self.image.get()
    }

    /// Whom it names.
    pub(crate) fn named(&self) -> NamedHolders {
        self.named.borrow().clone()
    }

    /// Somebody who is trusted has signed this manifest. `own` is the key of this node, which asks itself for nothing.
    pub(crate) fn accept(
        &self,
        image: ContentHash,
        manifest: &Manifest,
        check: Option<&HolderCheck>,
        own: &PublicKey,
    ) {
        self.image.set(Some(image));
        let is_other = |holder: &&SavedHolder| **holder != SavedHolder::Node(*own);
        let named = manifest.holders.iter().filter(is_other).cloned().collect();
        *self.named.borrow_mut() = NamedHolders { named, check: check.cloned() };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use pagefork_image::SecretKey;

    use super::*;
    use crate::fetch::MemoryPeer;

    #[test]
    fn who_is_forgotten_after_being_asked_is_not_said_to_be_unasked_and_a_panic_is_an_answer() {
        let [edge, store, other] = [1, 2, 3].map(|seed| SecretKey::from_seed([seed; 32]).public());
        let peer = MemoryPeer { address: "edge:1".to_owned(), key: edge };
        let (times, at) = (Arc::new(AtomicUsize::new(0)), peer.clone());
        let check = HolderCheck::new(move |holder| match holder {
            SavedHolder::Node(key) if *key == edge => match times.fetch_add(1, Ordering::Relaxed) {
                0 => Ok(PageHolder::Node(at.clone())),
                _ => Err("forgotten".to_owned()),
            },
            SavedHolder::Node(key) if *key == store => panic!("what a bug"),
            _ => Err("unknown".to_owned()),
        });
        let holders = [edge, store, other].map(SavedHolder::Node);
        let named = NamedHolders { named: holders.to_vec(), check: Some(check) };
        let asked = named.besides(&[]).expect("it is known");
        assert!(asked.is_same(&PageHolder::Node(peer)) && asked.is_named(&holders[0]));
        let asked = [asked];
        assert!(named.besides(&asked).is_none());
        let panicked = "who was to say where it is panicked".to_owned();
        let unasked = named.unasked(&asked);
        let [_, store, other] = holders;
        assert_eq!(unasked, [(store, panicked), (other, "unknown".to_owned())]);
    }
}
