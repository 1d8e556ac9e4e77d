//! Holders that an image names in its manifest: whom of them this process asks.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;

use pagefork_image::{ContentHash, Manifest, PublicKey, SavedHolder};

use crate::place::PageHolder;

/// Says whom of the holders that images name this process asks, and where it knows them to be; or why it does not ask
/// one. What an image names is a claim of who has signed it: no address of another process's choosing is ever connected
/// to.
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
    /// By what `find` says: where a holder is, or why it is not asked.
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
        (self.0)(holder)
    }
}

impl fmt::Debug for HolderCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HolderCheck")
    }
}

/// Holders that an image names.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamedHolders {
    /// Whom this process asks.
    pub(crate) known: Vec<PageHolder>,
    /// Whom it does not ask, and why.
    pub(crate) unasked: Vec<(SavedHolder, String)>,
}

impl NamedHolders {
    /// Those that are to be asked besides `asked`.
    pub(crate) fn besides(&self, asked: &[&PageHolder]) -> Vec<PageHolder> {
        let is_new = |holder: &&PageHolder| !asked.iter().any(|asked| asked.is_same(holder));
        self.known.iter().filter(is_new).cloned().collect()
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
        let mut named = NamedHolders::default();
        let others = manifest.holders.iter().filter(|holder| **holder != SavedHolder::Node(*own));
        for holder in others {
            let nobody = || Err("this process asks nobody because an image names it".to_owned());
            match check.map_or_else(nobody, |check| check.find(holder)) {
                Ok(known) => named.known.push(known),
                Err(why) => named.unasked.push((holder.clone(), why)),
            }
        }
        *self.named.borrow_mut() = named;
    }
}
