//! Snapshots that are loaded before their pages are here.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pagefork_image::{
    ContentHash, GROUP_SIZE, ImageChain, ImageHead, ImageLimits, ImageReader, ImageStore, Manifest,
    ReadAt, SavedCode,
};
use pagefork_layout::ABI_VERSION;
use pagefork_pages::{
    HostFeatures, IncompletePages, PAGE_GROUP, ResidencyCounts, serves_absent_pages,
};

use crate::api::linker::Linker;
use crate::api::snapshot::Snapshot;
use crate::api::stored::{LoadOptions, is_own, load_chain};
use crate::base::error::{Result, SnapshotError};
use crate::run::code_store;
use crate::run::save::base_of_layout;
use crate::store::frozen::SavedAs;

const _: () = assert!(PAGE_GROUP == GROUP_SIZE);

/// Whether [`IncompleteImage::prepare`] is over.
static PREPARED: AtomicBool = AtomicBool::new(false);

/// An image of which pages are absent, from which stores are spawned while they come.
///
/// Somebody has the pages: a file, another machine. Who knows how to fetch them
/// [learns](Self::take_wanted) which groups of 16 KiB guests and the host wait for, and
/// [installs](Self::install) those and others, once they are proved. A guest that touches an absent
/// page waits in its thread, without a system call of its own, and without others being held up; if
/// the page does not come in time, it [traps](crate::TrapCode::PageAbsent). One such object serves
/// all stores of an image. When all is here, it costs what any other image does.
///
/// Calls that [wait](crate::TypedFunc::call_async) are refused in stores with absent pages, since a
/// guest that waits for a page blocks its thread: unless the store has a
/// [runner](crate::Store::run_turns_with). In processes that are forked while pages are
/// absent, guests of such stores trap before they run, and the stores cannot be reset.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use pagefork::image::{ImageHead, ImageStore};
/// use pagefork::{
///     Absence, Engine, IncompleteImage, Instance, Linker, LoadOptions, Module, SaveOptions,
///     Snapshot, Store, Trap, TrapCode,
/// };
///
/// # let directory = std::env::temp_dir().join(format!("pagefork-incomplete-{}", std::process::id()));
/// let images = ImageStore::open(&directory)?;
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module
///     (memory (export "memory") 2) (data (i32.const 100000) "far")
///     (func (export "far") (result i32) (i32.load8_u (i32.const 100000)))
///     (func (export "near") (result i32) (i32.load8_u (i32.const 60000))))"#)?;
/// let mut store = Store::new(&engine, ());
/// let memory = Instance::new(&mut store, &module, &[])?.get_memory(&mut store, "memory").unwrap();
/// memory.data_mut(&mut store)[..70_000].fill(7);
/// let hash = store.snapshot()?.save(&images, SaveOptions::new())?;
///
/// // Elsewhere there is the head alone, and somebody who can be asked for groups.
/// let stored = images.load(hash)?;
/// let head = Arc::new(ImageHead::read(stored.chain().tip())?);
/// let image = IncompleteImage::new(head, Duration::from_secs(10))?;
/// # if !image.runs_incomplete() { return Ok(()) }
/// let answers = Arc::clone(&image);
/// let near = 60_000 / 16_384;
/// let fetcher = std::thread::spawn(move || {
///     while answers.residency().poisoned == 0 {
///         for group in answers.take_wanted().into_iter().filter(|group| *group != near) {
///             let bytes = stored.chain().tip().read_group(group).expect("it is proved");
///             answers.install(group, &bytes).expect("it has its place");
///         }
///         std::thread::yield_now();
///     }
/// });
/// let linker = Linker::new(&engine);
/// let options = LoadOptions::new().module(&module);
/// let snapshot: Snapshot<()> = Snapshot::load_incomplete(&linker, &image, &images, options)?;
/// let (mut store, instance) = snapshot.instance_pre()?.spawn(())?;
/// let far = instance.get_typed_func::<(), i32>(&mut store, "far")?;
/// assert_eq!(far.call(&mut store, ())?, i32::from(b'f'));
/// assert!(!image.is_whole() && !image.missing().is_empty());
///
/// // Nobody has the rest any more.
/// image.give_up();
/// let near = instance.get_typed_func::<(), i32>(&mut store, "near")?;
/// let error = near.call(&mut store, ()).unwrap_err();
/// let trap = error.downcast_ref::<Trap>().expect("it is a trap");
/// assert_eq!(trap.code(), TrapCode::PageAbsent);
/// assert_eq!(trap.absent_page().unwrap().why, Absence::GivenUp);
/// assert_eq!(far.call(&mut store, ())?, i32::from(b'f'));
/// # fetcher.join().unwrap();
/// # std::fs::remove_dir_all(directory).unwrap();
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Debug)]
pub struct IncompleteImage {
    head: Arc<ImageHead>,
    pages: Arc<IncompletePages>,
    /// Of one image, whose data are these pages.
    chain: ImageChain,
}

impl IncompleteImage {
    /// The image with this head, of whose pages none is here. Guests, and the host for them, wait for
    /// a page as long as `patience` at most.
    ///
    /// # Errors
    /// [`SnapshotError::Inconsistent`] of a delta, which has to be squashed by who has it; if the
    /// system refuses memory.
    ///
    /// # Examples
    ///
    /// See [`IncompleteImage`].
    pub fn new(head: Arc<ImageHead>, patience: Duration) -> Result<Arc<Self>> {
        if head.manifest().parent.is_some() {
            let why = "it is a delta: who has it is to squash it first";
            return Err(SnapshotError::inconsistent(why).into());
        }
        let name = head.hash().to_string();
        let pages = IncompletePages::new(&name, head.manifest().data_size, patience)?;
        let reader = ImageReader::of_head(&head, Box::new(Data(Arc::clone(&pages))));
        let chain = ImageChain::new(vec![Arc::new(reader)], &ImageLimits::default())?;
        Ok(Arc::new(Self { head, pages, chain }))
    }

    /// Tries what this system can do, which is otherwise tried when the first image is made and the first slot.
    /// It takes a millisecond or two, once a process: who waits for a head does it meanwhile, on another
    /// thread.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::IncompleteImage;
    ///
    /// IncompleteImage::prepare();
    /// assert!(IncompleteImage::is_prepared());
    /// ```
    pub fn prepare() {
        serves_absent_pages();
        // Who makes a slot is told of a failure.
        let _ = HostFeatures::get();
        PREPARED.store(true, Ordering::Relaxed);
    }

    /// Whether [`IncompleteImage::prepare`] is over.
    ///
    /// # Examples
    ///
    /// See [`IncompleteImage::prepare`].
    pub fn is_prepared() -> bool {
        PREPARED.load(Ordering::Relaxed)
    }

    /// The groups that [`Snapshot::load_incomplete`] waits for, and whoever goes on from it: what
    /// lies below the memories, and what is attached. Who has the image can send them along.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::IncompleteImage;
    /// use pagefork::image::Manifest;
    ///
    /// assert_eq!(IncompleteImage::first_groups(&Manifest::default()), []);
    /// ```
    pub fn first_groups(manifest: &Manifest) -> Vec<Range<u64>> {
        let below = manifest.instances.iter().flat_map(|instance| {
            let base = base_of_layout(&instance.layout).unwrap_or(0);
            let spans = instance.spans.iter().take_while(move |span| span.start < base);
            spans.map(move |span| (span.data_offset, span.size.min(base - span.start)))
        });
        let attached = manifest.attachments.iter();
        let attached = attached.map(|attachment| (attachment.data_offset, attachment.size));
        let filled = below.chain(attached).filter(|(_, size)| *size > 0);
        filled
            .map(|(offset, size)| {
                let end = offset.saturating_add(size).min(manifest.data_size);
                offset / GROUP_SIZE..end.div_ceil(GROUP_SIZE)
            })
            .collect()
    }

    /// Whether the code of an image can run on this machine, as far as its manifest says: who has to get
    /// code and pages first asks before. What it does not say, loading finds.
    ///
    /// # Errors
    /// [`SnapshotError::NoCode`] if the code is of another ABI, or for processors that can do more.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::IncompleteImage;
    /// use pagefork::image::{Manifest, SavedCode, SavedInstance};
    ///
    /// let mut manifest = Manifest { instances: vec![SavedInstance::default()], ..Manifest::default() };
    /// IncompleteImage::check_code(&manifest)?;
    /// let (abi, processor) = (0, "x86-64-v9".to_owned());
    /// manifest.instances[0].code = SavedCode { abi, processor, ..SavedCode::default() };
    /// IncompleteImage::check_code(&manifest).unwrap_err();
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn check_code(manifest: &Manifest) -> Result<()> {
        code_store::check(manifest)
    }

    /// The modules that code for this machine is to be [made](LoadOptions::compile) of before an image can go on here:
    /// none if the code that it names can run here, as far as it says.
    ///
    /// # Errors
    /// As of [`IncompleteImage::check_code`], where nothing can take the place of that code: a guest is suspended in
    /// it, or it is of another ABI.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::IncompleteImage;
    /// use pagefork::image::{ContentHash, Manifest, SavedCode, SavedInstance, SavedSuspension};
    ///
    /// let code = SavedCode { processor: "x86-64-v9".to_owned(), ..IncompleteImage::own_code() };
    /// let module = ContentHash::of(b"(module)");
    /// let instances = vec![SavedInstance { code, module, ..SavedInstance::default() }];
    /// let mut manifest = Manifest { instances, ..Manifest::default() };
    /// assert_eq!(IncompleteImage::modules_to_compile(&manifest)?, [module]);
    /// manifest.suspension = Some(SavedSuspension::default());
    /// assert!(IncompleteImage::modules_to_compile(&manifest).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn modules_to_compile(manifest: &Manifest) -> Result<Vec<ContentHash>> {
        code_store::to_compile(manifest)
    }

    /// What an image that is saved here says of its code, but for which it is, and what processors it is
    /// for.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::IncompleteImage;
    /// use pagefork::image::{Manifest, SavedCode, SavedInstance};
    ///
    /// let code = SavedCode { processor: "x86-64-v2".to_owned(), ..IncompleteImage::own_code() };
    /// let instances = vec![SavedInstance { code, ..SavedInstance::default() }];
    /// IncompleteImage::check_code(&Manifest { instances, ..Manifest::default() })?;
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn own_code() -> SavedCode {
        SavedCode { abi: ABI_VERSION, ..SavedCode::default() }
    }

    /// Manifest and signatures.
    ///
    /// # Examples
    ///
    /// See [`ImageHead`].
    pub fn head(&self) -> &Arc<ImageHead> {
        &self.head
    }

    /// The image's identity.
    ///
    /// # Examples
    ///
    /// See [`ImageHead`].
    pub fn hash(&self) -> ContentHash {
        self.head.hash()
    }

    /// Whether guests run before all is here. Where the system does not tell of faults in absent
    /// pages, loading waits for all of them.
    ///
    /// # Examples
    ///
    /// See [`IncompleteImage`].
    pub fn runs_incomplete(&self) -> bool {
        self.pages.runs_incomplete()
    }

    /// Puts a group in its place. **Its bytes were proved**, by
    /// [`ImageHead::verify_group`] for instance: nobody looks at them again. `false`: it was here
    /// already, or is given up. See [`IncompletePages::install`].
    ///
    /// # Errors
    /// If it has another size, or the system refuses memory: it can be installed again then.
    ///
    /// # Panics
    /// If the image has no such group.
    ///
    /// # Examples
    ///
    /// See [`IncompleteImage`].
    pub fn install(&self, group: u64, bytes: &[u8]) -> Result<bool> {
        Ok(self.pages.install(group, bytes)?)
    }

    /// As [`Self::install`], and says when the group was in its place: before anybody who waits for it could go on.
    /// `None`: it was not put there now. See [`IncompletePages::install_timed`].
    ///
    /// # Errors
    /// As of [`Self::install`].
    ///
    /// # Panics
    /// As [`Self::install`].
    ///
    /// # Examples
    ///
    /// See [`IncompletePages::install_timed`].
    pub fn install_timed(&self, group: u64, bytes: &[u8]) -> Result<Option<Instant>> {
        Ok(self.pages.install_timed(group, bytes)?)
    }

    /// Gives up what is absent, because nobody has it any more: who waits for it gets an error at
    /// once, now and later. Returns how many groups that are.
    ///
    /// # Examples
    ///
    /// See [`IncompleteImage`].
    pub fn give_up(&self) -> u64 {
        self.pages.give_up()
    }

    /// A descriptor that is ready for reading when somebody has begun to wait for a group, until
    /// [`Self::take_wanted`] is called.
    ///
    /// # Examples
    ///
    /// See [`IncompletePages::wanted_signal`].
    pub fn wanted_signal(&self) -> BorrowedFd<'_> {
        self.pages.wanted_signal()
    }

    /// The groups that somebody has begun to wait for since the last call, ascending.
    ///
    /// # Examples
    ///
    /// See [`IncompleteImage`].
    pub fn take_wanted(&self) -> Vec<u64> {
        self.pages.take_wanted()
    }

    /// Whether a group is here.
    ///
    /// # Panics
    /// If the image has no such group.
    ///
    /// # Examples
    ///
    /// See [`IncompletePages::is_present`].
    pub fn is_present(&self, group: u64) -> bool {
        self.pages.is_present(group)
    }

    /// How much is here.
    ///
    /// # Examples
    ///
    /// See [`IncompleteImage`].
    pub fn residency(&self) -> ResidencyCounts {
        self.pages.residency()
    }

    /// The groups that are not here: ascending, apart.
    ///
    /// # Examples
    ///
    /// See [`IncompleteImage`].
    pub fn missing(&self) -> Vec<Range<u64>> {
        self.pages.missing()
    }

    /// Whether all of it is here, and final.
    ///
    /// # Examples
    ///
    /// See [`IncompleteImage`].
    pub fn is_whole(&self) -> bool {
        self.pages.is_whole()
    }

    /// Asks for all that is absent and waits until it is here. Not for the thread that installs it.
    ///
    /// # Errors
    /// [`AbsentPage`](crate::AbsentPage) names the first that did not come.
    ///
    /// # Examples
    ///
    /// See [`IncompletePages::wait`].
    pub fn wait_whole(&self) -> Result<()> {
        Ok(self.pages.wait_whole()?)
    }

    /// Reads bytes of the image's data, from their first byte on: those of group 0 come first. Asks
    /// for what is absent and waits for it. Not for the thread that installs it, unless all is here.
    ///
    /// # Errors
    /// [`AbsentPage`](crate::AbsentPage) if a page does not come.
    ///
    /// # Panics
    /// If there are no such bytes.
    ///
    /// # Examples
    ///
    /// See [`IncompletePages::read`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        Ok(self.pages.read(offset, into)?)
    }
}

impl<T: 'static> Snapshot<T> {
    /// As [`Snapshot::load`], of an image whose pages come meanwhile. It waits for those that code
    /// and the host rely on, which are checked first: tables and state, below the memories. The code of
    /// modules that are not [given](LoadOptions::module) is loaded from `images`.
    ///
    /// Where guests [cannot run](IncompleteImage::runs_incomplete) before all is here, it waits for all.
    /// The thread that installs pages must not call it.
    ///
    /// # Errors
    /// [`AbsentPage`](crate::AbsentPage) if pages that it waits for do not come; else as of
    /// [`Snapshot::load`].
    ///
    /// # Examples
    ///
    /// See [`IncompleteImage`].
    pub fn load_incomplete(
        linker: &Linker<T>,
        image: &Arc<IncompleteImage>,
        images: &ImageStore,
        options: LoadOptions<'_>,
    ) -> Result<Self> {
        if !image.runs_incomplete() {
            image.wait_whole()?;
        }
        let is_trusted = is_own(image.hash()) || options.trusts(&image.chain);
        let origin = SavedAs::Incomplete(image.chain.clone());
        load_chain(linker, images, origin, Some(&image.pages), is_trusted, options)
    }
}

/// The data of an image, from their first byte on.
struct Data(Arc<IncompletePages>);

impl ReadAt for Data {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.size())
    }

    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(into.len() as u64);
        if end.is_none_or(|end| end > self.0.size()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.0.read(offset, into).map_err(io::Error::other)
    }
}
