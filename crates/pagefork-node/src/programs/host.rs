//! How a program begins at a node: from a module, or from an image.

use std::collections::BTreeSet;
use std::fmt;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pagefork::{Engine, Linker, LoadOptions, Module, SlotsAhead, Snapshot, Store, StoreLimits};
use pagefork_image::{
    ImageStore, PublicKey, SavedHolder, SecretKey, StoredImage, TrustedKeys, check_name,
};
use pagefork_wasi::{OwnDir, Permissions, ProgramState, RestoreNotice, WasiCtxBuilder, WasiState};

use crate::coming::{ComingImages, SharedImage};
use crate::fetch::MemoryPeer;
use crate::named::HolderCheck;
use crate::place::{ImagePlace, PageHolder};
use crate::start::{ComingImage, FoundImage, StartOptions};

use super::program::{HeldPages, NodeGuest, ReadyProgram};
use super::streams::ProgramStreams;
use super::wire::{ProgramSource, ProgramStart};

/// What a node knows of other nodes. [`ProgramNode`](crate::ProgramNode) has an example.
pub trait KnownPeers: Send + Sync + fmt::Debug {
    /// Whether who has this key may have programs run here, see those of all, attach to them and
    /// stop them.
    fn may_run(&self, key: &PublicKey) -> bool;

    /// The node of this name, to get images from.
    fn named(&self, name: &str) -> Option<MemoryPeer>;

    /// The node with this key, to which programs move, or from which they come.
    fn with_key(&self, key: &PublicKey) -> Option<MemoryPeer>;

    /// Whose signature makes images acceptable: their machine code is run.
    ///
    /// # Errors
    /// Why that is not known.
    fn signers(&self) -> Result<TrustedKeys, String>;
}

/// A directory of a node that programs can have. [`ProgramNode`](crate::ProgramNode) has an
/// example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeDirectory {
    /// Where it is.
    pub host: PathBuf,
    /// The name that programs know it by.
    pub guest: String,
    /// What they may do there.
    pub permissions: Permissions,
}

/// How much programs can have at a node. [`ProgramNode`](crate::ProgramNode) has an example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramLimits {
    /// Programs at once: 64 by default.
    pub programs: usize,
    /// Programs that have ended and are still known, with what they have printed last: 64 by
    /// default.
    pub ended: usize,
    /// Bytes of a module: 64 MiB by default.
    pub module_size: u64,
    /// Bytes of all memories of a program: 4 GiB by default.
    pub memory: u64,
    /// How long a program may run: for ever by default.
    pub timeout: Option<Duration>,
    /// Images that are kept here for one other node, as the second place of its programs' pages, besides those of the
    /// process before: 256 by default.
    pub kept: usize,
    /// Programs of one other node that came here or were declined, and which run here or of which that node has not
    /// said that it knows what became of them: 4,096 by default. Beyond that none of its programs come here.
    pub remembered: usize,
}

impl Default for ProgramLimits {
    fn default() -> Self {
        Self {
            programs: 64,
            ended: 64,
            module_size: 64 << 20,
            memory: 4 << 30,
            timeout: None,
            kept: 256,
            remembered: 4096,
        }
    }
}

/// How a node runs programs. [`ProgramNode`](crate::ProgramNode) has an example.
#[derive(Clone)]
pub struct ProgramNodeOptions {
    /// What compiles and runs them.
    pub engine: Engine,
    /// Its images.
    pub images: ImageStore,
    /// The key that it authenticates itself with.
    pub key: SecretKey,
    /// The key that signs programs that move.
    pub image_key: SecretKey,
    /// What it knows of other nodes.
    pub peers: Arc<dyn KnownPeers>,
    /// Directories that programs can have, if they ask for them.
    pub directories: Vec<NodeDirectory>,
    /// Object stores that can be second places of programs that move from here, or here; the first one
    /// is, if nothing else is said. What a node calls by a URL has to be the same at all. No peer can
    /// have another one used. They are collected when the node starts, and each hour from then on: what has no name goes.
    pub places: Vec<ImagePlace>,
    /// The node that is the second place of programs that move from here to another one, if nothing else is said: before
    /// the first of `places`. It has to know this one, as a target has to.
    pub second: Option<PublicKey>,
    /// Listening sockets that programs can have, if they ask for them: all of them.
    pub listeners: Vec<Arc<TcpListener>>,
    /// A directory, in which those of programs' sessions are made.
    pub place: PathBuf,
    /// The directory in which it remembers what became of programs that moved: in `place`, unless it
    /// is set. Its own must be on a disk.
    pub records: PathBuf,
    /// How much programs can have.
    pub limits: ProgramLimits,
    /// How images of other nodes come.
    pub start: StartOptions,
    /// Is told what people may want to know.
    pub say: Arc<dyn Fn(&str) + Send + Sync>,
}

impl fmt::Debug for ProgramNodeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { directories, place, limits, .. } = self;
        let mut shown = f.debug_struct("ProgramNodeOptions");
        shown.field("directories", directories).field("place", place).field("limits", limits);
        shown.finish_non_exhaustive()
    }
}

impl ProgramNodeOptions {
    /// The object store that is known by this URL.
    ///
    /// # Errors
    /// If none is.
    pub(super) fn place(&self, url: &str) -> Result<&ImagePlace, String> {
        self.places.iter().find(|place| place.url == url).ok_or_else(|| {
            let key = self.key.public();
            format!("node {key} was not started with the object store {url:?}, and uses no other")
        })
    }

    /// With the usual limits, and without directories; nobody is told anything.
    pub fn new(
        engine: Engine,
        images: ImageStore,
        key: SecretKey,
        peers: Arc<dyn KnownPeers>,
        place: impl Into<PathBuf>,
    ) -> Self {
        let place = place.into();
        Self {
            engine,
            images,
            image_key: key.clone(),
            key,
            peers,
            directories: Vec::new(),
            places: Vec::new(),
            second: None,
            listeners: Vec::new(),
            records: place.join("moves"),
            place,
            limits: ProgramLimits::default(),
            start: StartOptions::default(),
            say: Arc::new(|_| ()),
        }
    }
}

/// What makes programs ready.
pub(super) struct ProgramHost {
    pub(super) options: ProgramNodeOptions,
    linker: Linker<NodeGuest>,
    /// Those whose pages come to programs that were started here.
    coming: ComingImages,
}

impl fmt::Debug for ProgramHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramHost").field("options", &self.options).finish_non_exhaustive()
    }
}

impl ProgramHost {
    pub(super) fn new(mut options: ProgramNodeOptions) -> Result<Self, String> {
        let mut linker = Linker::new(&options.engine);
        pagefork_wasi::add_to_linker(&mut linker, |guest: &mut NodeGuest| &mut guest.ctx)
            // Here is the original of every program.
            .and_then(|()| linker.func_wrap("pagefork", "snapshot", || 0_u32).map(drop))
            .and_then(|()| linker.define_memory_discard().map(drop))
            .map_err(|error| format!("{error:#}"))?;
        if options.start.holders.is_none() {
            options.start.holders = Some(known_holders(&options));
        }
        Ok(Self { options, linker, coming: ComingImages::default() })
    }

    /// Makes a program ready, whose streams these are.
    ///
    /// # Errors
    /// Why that is not possible, for who has asked.
    pub(super) fn ready(
        &self,
        start: &ProgramStart,
        streams: &Arc<ProgramStreams>,
    ) -> Result<ReadyProgram, String> {
        check_name(&start.name).map_err(|error| error.to_string())?;
        let mut ready = match &start.source {
            ProgramSource::Module(binary) => self.of_module(start, binary, streams),
            ProgramSource::Image(name) => self.of_image(start, name, streams),
        }?;
        let timeout = start.timeout.into_iter().chain(self.options.limits.timeout).min();
        ready.store.set_timeout(timeout).map_err(|error| format!("{error:#}"))?;
        Ok(ready)
    }

    fn of_module(
        &self,
        start: &ProgramStart,
        binary: &[u8],
        streams: &Arc<ProgramStreams>,
    ) -> Result<ReadyProgram, String> {
        // What is compiled already would be machine code of who has asked.
        let module = Module::from_binary(&self.options.engine, binary);
        let module = module.map_err(|error| format!("the module is refused: {error:#}"))?;
        let mut builder = self.builder(streams);
        builder.args(&start.arguments);
        for variable in &start.variables {
            let at = variable.iter().position(|byte| *byte == b'=').filter(|at| *at > 0);
            let at = at.ok_or("a variable is no `name=value`")?;
            builder.env(&variable[..at], &variable[at + 1..]);
        }
        let mut named = BTreeSet::new();
        if let Some(twice) = start.directories.iter().find(|name| !named.insert(*name)) {
            return Err(format!("directory {twice:?} is asked for twice"));
        }
        let names = start.directories.iter().map(|name| (&name[..], Permissions::ReadWrite));
        self.share(&mut builder, names)?;
        self.pass_sockets(&mut builder, start.sockets)?;
        let mut files = None;
        if !start.sessions.is_empty() {
            let own = files.insert(self.own_directory()?);
            for (number, guest) in start.sessions.iter().enumerate() {
                let host = own.path().join(number.to_string());
                std::fs::create_dir(&host)
                    .map_err(|error| format!("no place for its files: {error}"))?;
                builder.session_dir(&host, guest.clone()).map_err(|error| error.to_string())?;
            }
        }
        let ctx = builder.build().map_err(|error| error.to_string())?;
        let mut store = Store::new(&self.options.engine, NodeGuest { ctx });
        store.set_limits(self.store_limits());
        self.check_imports(&mut store, &module)?;
        let failed = |error: pagefork::Error| format!("{error:?}");
        // A start function that does not end is for the limit of time.
        let patience = start.timeout.into_iter().chain(self.options.limits.timeout);
        let patience = patience.chain([Duration::from_secs(10)]).min();
        store.set_timeout(patience).map_err(failed)?;
        let instance = self.linker.instantiate(&mut store, &module).map_err(failed)?;
        let function = instance.get_func(&mut store, "_start").ok_or(
            "the module exports no function `_start`, so it is no program; build it as a WASI \
             command (`wasm32-wasip1`)",
        )?;
        let sessions = start.sessions.clone();
        let (start, pages) = (Some(function), HeldPages::default());
        Ok(ReadyProgram { store, start, sessions, pages, files })
    }

    fn of_image(
        &self,
        start: &ProgramStart,
        name: &str,
        streams: &Arc<ProgramStreams>,
    ) -> Result<ReadyProgram, String> {
        let has_own = !start.arguments.is_empty()
            || !start.variables.is_empty()
            || !start.sessions.is_empty();
        if has_own {
            return Err(
                "a program in an image has its arguments, variables and directories of its \
                        session already: leave them out"
                    .to_owned(),
            );
        }
        let images = &self.options.images;
        let options = LoadOptions::new().trust(self.options.peers.signers()?);
        let failed = |error: &dyn fmt::Display| format!("{name}: {error:#}");
        let found = match name.split_once('/') {
            Some((node, image)) => self.fetch(node, image)?,
            None => {
                let found = images.find(name).and_then(|hash| images.load(hash));
                SharedImage::Here(found.map_err(|error| failed(&error))?)
            }
        };
        let loaded = match found {
            SharedImage::Here(image) => self.load(FoundImage::Here(image), options),
            SharedImage::Coming(coming) => self.load_coming(coming, options),
        };
        let (snapshot, pages) = loaded.map_err(|error| failed(&error))?;
        let state = ProgramState::from_bytes(snapshot.state()).map_err(|error| failed(&error))?;
        self.of_snapshot(&snapshot, &state.wasi, streams, start.sockets, pages, None)
            .map_err(|error| failed(&error))
    }

    /// Loads an image. Returns also what its pages depend on.
    pub(super) fn load(
        &self,
        found: FoundImage,
        options: LoadOptions<'_>,
    ) -> Result<(Snapshot<NodeGuest>, HeldPages), String> {
        let images = &self.options.images;
        let mut pages = HeldPages::default();
        let snapshot = match found {
            // What is beside the store is small.
            FoundImage::Here(image) if image.chain().tip().file().is_none() => {
                let snapshot = Snapshot::load_stored(&self.linker, images, image.clone(), options);
                pages.push(image);
                snapshot
            }
            FoundImage::Here(image) => {
                let snapshot = Snapshot::load(&self.linker, images, image.hash(), options);
                pages.push(image);
                snapshot
            }
            FoundImage::Coming(coming) => return self.load_coming(Arc::new(coming), options),
        };
        Ok((snapshot.map_err(|error| format!("{error:#}"))?, pages))
    }

    /// The same, of an image whose pages come, perhaps to others, too.
    fn load_coming(
        &self,
        coming: Arc<ComingImage>,
        options: LoadOptions<'_>,
    ) -> Result<(Snapshot<NodeGuest>, HeldPages), String> {
        let (image, images) = (coming.image(), &self.options.images);
        let snapshot = Snapshot::load_incomplete(&self.linker, image, images, options);
        let snapshot = snapshot.map_err(|error| format!("{error:#}"))?;
        Ok((snapshot, HeldPages::coming(coming)))
    }

    /// Loads a state of a program that went ahead, over the one that came before it.
    pub(super) fn load_ahead(
        &self,
        image: &StoredImage,
        before: Option<&Snapshot<NodeGuest>>,
        mut options: LoadOptions<'_>,
    ) -> Result<Snapshot<NodeGuest>, String> {
        if let Some(before) = before {
            options = options.over(before);
        }
        let images = &self.options.images;
        let snapshot = Snapshot::load_stored(&self.linker, images, image.clone(), options);
        snapshot.map_err(|error| format!("{error:#}"))
    }

    /// Fills the slots that a program which moves here is going to have with a state of it, those from before if
    /// there are any.
    pub(super) fn fill_ahead(
        &self,
        state: &Snapshot<NodeGuest>,
        before: Option<SlotsAhead>,
    ) -> Result<SlotsAhead, String> {
        let filled =
            state.instance_pre().and_then(|pre| pre.fill_ahead(&self.store_limits(), before));
        filled.map_err(|error| format!("there is no room for its pages: {error:#}"))
    }

    /// Makes a program ready that was captured while it ran, in slots that were filled ahead if there are any.
    pub(super) fn of_snapshot(
        &self,
        snapshot: &Snapshot<NodeGuest>,
        wasi: &WasiState,
        streams: &Arc<ProgramStreams>,
        has_sockets: bool,
        pages: HeldPages,
        slots: Option<SlotsAhead>,
    ) -> Result<ReadyProgram, String> {
        let mut builder = self.builder(streams);
        self.pass_sockets(&mut builder, has_sockets)?;
        self.share(&mut builder, wasi.preopens())?;
        let mut files = None;
        if wasi.session_dirs().next().is_some() {
            let own = files.insert(self.own_directory()?);
            let captured = own.path().join("captured");
            let taken = builder.session_files_from(snapshot, wasi, captured, own.path());
            taken.map_err(|error| format!("{error:#}"))?;
        }
        let restored = builder.restore(wasi).map_err(|error| error.to_string())?;
        for notice in &restored.notices {
            if !matches!(notice, RestoreNotice::NoTerminal { .. }) {
                (self.options.say)(&format!("otherwise than when it was captured: {notice:?}"));
            }
        }
        let pre = snapshot.instance_pre().map_err(|error| format!("{error:#}"))?;
        let guest = NodeGuest { ctx: restored.ctx };
        // No other program finds a byte of its stack.
        let tenant = u64::from_le_bytes(std::array::from_fn({
            let bytes = random()?;
            move |index| bytes[index]
        }));
        let limits = self.store_limits();
        let spawned = match slots {
            Some(slots) => pre.spawn_in(slots, tenant, guest, limits, |_| ()),
            None => pre.spawn_limited(tenant, guest, limits, |_| ()),
        };
        let (store, _) = spawned.map_err(|error| format!("{error:#}"))?;
        match store.suspended() {
            Some(_) => {
                let sessions = wasi.session_dirs().map(str::to_owned).collect();
                Ok(ReadyProgram { store, start: None, sessions, pages, files })
            }
            None => Err("no program is running in this image".to_owned()),
        }
    }

    /// Whether what a program has of WASI can be had here: its directories, and the files that it has open
    /// in them.
    pub(super) fn check_state(&self, wasi: &WasiState, has_sockets: bool) -> Result<(), String> {
        let mut builder = self.builder(&Arc::default());
        self.pass_sockets(&mut builder, has_sockets)?;
        self.share(&mut builder, wasi.preopens())?;
        builder.restore(wasi).map(drop).map_err(|error| error.to_string())
    }

    /// An image of another node.
    fn fetch(&self, node: &str, image: &str) -> Result<SharedImage, String> {
        let ProgramNodeOptions { images, key, peers, start, places, .. } = &self.options;
        // When the node is lost, what somebody has put into an object store is there.
        let places = places.iter().cloned().map(PageHolder::Place);
        let others = start.others.iter().cloned().chain(places).collect();
        let start = &StartOptions { others, ..start.clone() };
        let peer = peers.named(node).ok_or_else(|| {
            format!("no node {node:?} is known here from which images are fetched")
        })?;
        let signers = peers.signers()?;
        let found = self.coming.start(&peer, key, image, images, &signers, start);
        found.map_err(|error| format!("{node}/{image}: {error}"))
    }

    fn builder(&self, streams: &Arc<ProgramStreams>) -> WasiCtxBuilder {
        let (stdin, stdout, stderr) = streams.kinds();
        let mut builder = WasiCtxBuilder::new();
        builder.stdin(stdin).stdout(stdout).stderr(stderr);
        builder
    }

    /// Gives a program those of the node's directories that it asks for.
    fn share<'a>(
        &self,
        builder: &mut WasiCtxBuilder,
        names: impl Iterator<Item = (&'a str, Permissions)>,
    ) -> Result<(), String> {
        for (name, wanted) in names {
            let known = self.options.directories.iter().find(|known| known.guest == name);
            let known = known.ok_or_else(|| {
                format!(
                    "this node has no directory {name:?} for programs: it is to be started with one"
                )
            })?;
            // No more than the node allows, and no more than is wanted.
            let permissions = match (known.permissions, wanted) {
                (Permissions::ReadWrite, Permissions::ReadWrite) => Permissions::ReadWrite,
                _ => Permissions::ReadOnly,
            };
            let shared = builder.preopened_dir(&known.host, known.guest.clone(), permissions);
            shared.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Gives a program the node's listening sockets.
    fn pass_sockets(&self, builder: &mut WasiCtxBuilder, has_them: bool) -> Result<(), String> {
        if !has_them {
            return Ok(());
        }
        if self.options.listeners.is_empty() {
            return Err("this node has no listening sockets for programs".to_owned());
        }
        for listener in &self.options.listeners {
            let socket = listener.try_clone().map_err(|error| error.to_string())?;
            builder.preopened_socket(socket).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    pub(super) fn own_directory(&self) -> Result<OwnDir, String> {
        let path = self.options.place.join(format!("program-{}", random_name()?));
        OwnDir::new(path).map_err(|error| format!("no place for its files: {error}"))
    }

    fn store_limits(&self) -> StoreLimits {
        let limit = usize::try_from(self.options.limits.memory).unwrap_or(usize::MAX);
        StoreLimits::new().memory_total(limit)
    }

    fn check_imports(&self, store: &mut Store<NodeGuest>, module: &Module) -> Result<(), String> {
        let mut missing = Vec::new();
        for import in module.imports() {
            let is_known = self.linker.get_by_import(&mut *store, &import).is_some();
            if !is_known && missing.len() < 8 {
                missing.push(format!("{:?} {:?}", import.module(), import.name()));
            }
        }
        match missing.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "the module imports what this node does not define, which is WASI preview 1: {}",
                missing.join(", ")
            )),
        }
    }
}

/// Of the holders that images name a node asks the nodes and object stores that it knows.
fn known_holders(options: &ProgramNodeOptions) -> HolderCheck {
    let (peers, places) = (Arc::clone(&options.peers), options.places.clone());
    HolderCheck::new(move |holder| match holder {
        SavedHolder::Node(key) => {
            let known = peers.with_key(key).map(PageHolder::Node);
            known.ok_or_else(|| "where it is is not known here".to_owned())
        }
        SavedHolder::Objects(url) => {
            let known = places.iter().find(|place| place.url == *url);
            let known = known.cloned().map(PageHolder::Place);
            known.ok_or_else(|| "this node was not started with it, and uses no other".to_owned())
        }
    })
}

/// A name that nothing has.
pub(super) fn random_name() -> Result<String, String> {
    Ok(super::wire::ProgramId(random()?).to_string())
}

/// Random bytes.
pub(super) fn random() -> Result<[u8; 16], String> {
    let mut bytes = [0; 16];
    let flags = rustix::rand::GetRandomFlags::empty();
    match rustix::rand::getrandom(&mut bytes[..], flags) {
        Ok(16) => Ok(bytes),
        Ok(_) => Err("the system gives too few random bytes".to_owned()),
        Err(error) => Err(format!("the system gives no random bytes: {error}")),
    }
}
