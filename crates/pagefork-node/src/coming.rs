//! Images whose pages come, by whom they come of and their hashes: starts of the same one share what comes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use pagefork::IncompleteImage;
use pagefork_image::{ContentHash, ImageStore, PublicKey, SecretKey, StoredImage, TrustedKeys};

use crate::base::NodeError;
use crate::fetch::MemoryPeer;
use crate::named::AcceptedHead;
use crate::start::{ComingImage, FoundImage, ImageSource, StartOptions};

/// An image that [`ComingImages::start`] has found.
#[derive(Debug)]
pub enum SharedImage {
    /// All of it is in the store.
    Here(StoredImage),
    /// Its pages come while instances run, of this start and of others: as long as one keeps it.
    Coming(Arc<ComingImage>),
}

/// The images whose pages come to a process. Starts of the same one from the same node, one after the other or
/// at once, share its pages, in memory and on their way: the first one gets them, by its options, and the others
/// wait for what it gets. An image that [is lost](ComingImage::is_lost) is not shared with who starts later, and
/// what comes of one node depends on no other.
///
/// A later start asks the node all the same, for what the name means there and whether it may have it.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use pagefork::image::{ImageStore, SecretKey, TrustedKeys};
/// use pagefork::{Engine, Instance, Module, SaveOptions, Store};
/// use pagefork_node::*;
///
/// # let path = std::env::temp_dir().join(format!("pagefork-coming-{}", std::process::id()));
/// let (here, there) = (ImageStore::open(path.join("a"))?, ImageStore::open(path.join("b"))?);
/// let [node, runner, author] = [1, 2, 3].map(|seed| SecretKey::from_seed([seed; 32]));
/// let engine = Engine::default();
/// let module = Module::new(&engine, "(module (memory 100) (data (i32.const 0) \"near\"))")?;
/// let mut store = Store::new(&engine, ());
/// Instance::new(&mut store, &module, &[])?;
/// let save = SaveOptions::new().sign_with(std::slice::from_ref(&author));
/// there.set_name("started", store.snapshot()?.save(&there, save)?)?;
/// let mut serve = ServeOptions::new(node.clone());
/// serve.access = Arc::new(|_| true);
/// let server = MemoryServer::bind("127.0.0.1:0", there, serve)?;
/// let peer = MemoryPeer { address: server.address().to_string(), key: node.public() };
/// std::thread::spawn(move || server.run());
///
/// let (keys, coming) = (TrustedKeys::from_iter([author.public()]), ComingImages::default());
/// let options = StartOptions { keep: false, ..StartOptions::default() };
/// let start = || coming.start(&peer, &runner, "started", &here, &keys, &options);
/// if let (SharedImage::Coming(first), SharedImage::Coming(second)) = (start()?, start()?) {
///     assert!(Arc::ptr_eq(&first, &second) && !first.is_lost());
/// }
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct ComingImages(Mutex<KnownImages>);

#[derive(Debug, Default)]
struct KnownImages {
    /// Of whom each comes. It is locked while it is started.
    images: BTreeMap<(PublicKey, ContentHash), Arc<Mutex<Weak<ComingImage>>>>,
    /// What names meant, of whom.
    names: BTreeMap<(PublicKey, String), ContentHash>,
}

impl KnownImages {
    /// Forgets what nobody has any more, or starts.
    fn prune(&mut self) {
        self.images.retain(|_, place| {
            let is_unused = |place: &Mutex<Weak<ComingImage>>| match place.try_lock() {
                Ok(image) => image.strong_count() == 0,
                Err(TryLockError::Poisoned(image)) => image.into_inner().strong_count() == 0,
                Err(TryLockError::WouldBlock) => false,
            };
            Arc::strong_count(place) > 1 || !is_unused(place)
        });
        let Self { images, names } = self;
        names.retain(|(peer, _), hash| images.contains_key(&(*peer, *hash)));
    }
}

impl ComingImages {
    /// As [`start_image`](crate::start_image); what another start has begun to get is shared with it.
    ///
    /// # Errors
    /// As of [`start_image`](crate::start_image).
    ///
    /// # Examples
    ///
    /// See [`ComingImages`].
    pub fn start(
        &self,
        peer: &MemoryPeer,
        own: &SecretKey,
        name: &str,
        images: &ImageStore,
        signers: &TrustedKeys,
        options: &StartOptions,
    ) -> Result<SharedImage, NodeError> {
        let (coming, found, asked) = (self.coming(), &AcceptedHead::default(), &[]);
        let source =
            ImageSource { peer, own, name, images, signers, options, coming, found, asked };
        match self.start_of(&source) {
            // What comes of others is not shared: it is the exception.
            Err(error) if error.is_of_peer() => source.start_elsewhere(error).map(shared),
            started => started,
        }
    }

    fn start_of(&self, source: &ImageSource<'_>) -> Result<SharedImage, NodeError> {
        let ImageSource { peer, name, .. } = *source;
        let known_as = (peer.key, name.to_owned());
        let is_known = {
            let mut known = self.known();
            known.prune();
            let asked = name.parse().ok().map(|hash| (peer.key, hash));
            asked.is_some_and(|asked| known.images.contains_key(&asked))
                || known.names.contains_key(&known_as)
        };
        // Of what comes already nothing is to be sent along.
        let Some(opened) = source.open(!is_known)? else {
            return source.whole().map(shared);
        };
        let place = {
            let mut known = self.known();
            known.names.insert(known_as, opened.hash());
            Arc::clone(known.images.entry((peer.key, opened.hash())).or_default())
        };
        // Who starts the same one at the same time waits until it is known.
        let mut image = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(coming) = image.upgrade().filter(|coming| !coming.is_lost()) {
            return Ok(SharedImage::Coming(coming));
        }
        let found = shared(source.go_on(opened)?);
        if let SharedImage::Coming(coming) = &found {
            *image = Arc::downgrade(coming);
        }
        Ok(found)
    }

    /// The images that come, of which pages may be here that others have as well.
    fn coming(&self) -> Vec<Weak<IncompleteImage>> {
        let places: Vec<_> = self.known().images.values().cloned().collect();
        let coming = places.iter().filter_map(|place| match place.try_lock() {
            Ok(image) => image.upgrade(),
            // It is being started, and none of it is here.
            Err(_) => None,
        });
        coming.map(|coming| Arc::downgrade(coming.image())).collect()
    }

    fn known(&self) -> MutexGuard<'_, KnownImages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shared(found: FoundImage) -> SharedImage {
    match found {
        FoundImage::Here(image) => SharedImage::Here(image),
        FoundImage::Coming(coming) => SharedImage::Coming(Arc::new(coming)),
    }
}
