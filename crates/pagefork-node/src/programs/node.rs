//! A node that runs programs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagefork_image::{PublicKey, check_name};

use super::host::{ProgramHost, ProgramNodeOptions, random};
use super::program::NodeProgram;
use super::streams::ProgramStreams;
use super::wire::{ProgramId, ProgramInfo, ProgramPhase, ProgramSource, ProgramStart};

/// A node that runs programs, for itself and for clients that
/// [may](crate::KnownPeers::may_run). [`MemoryServer`](crate::MemoryServer) lets them in by
/// [`ServeOptions::programs`](crate::ServeOptions::programs); they are
/// [`ProgramClient`](crate::ProgramClient)s.
///
/// Programs get the functions of WASI preview 1. Their standard streams are kept at the node, so far
/// as nobody has them: a program goes on when its client is gone, until it has written 64 KiB that
/// nobody takes. Clones are the same node. Programs end with its process.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
///
/// use pagefork::Engine;
/// use pagefork_image::{ImageStore, PublicKey, SecretKey, TrustedKeys};
/// use pagefork_node::*;
///
/// /// Everybody may run programs, and nobody else is known.
/// #[derive(Debug)]
/// struct Open;
///
/// impl KnownPeers for Open {
///     fn may_run(&self, _: &PublicKey) -> bool {
///         true
///     }
///     fn named(&self, _: &str) -> Option<MemoryPeer> {
///         None
///     }
///     fn signers(&self) -> Result<TrustedKeys, String> {
///         Ok(TrustedKeys::default())
///     }
/// }
///
/// # let path = std::env::temp_dir().join(format!("pagefork-programs-{}", std::process::id()));
/// let (images, key) = (ImageStore::open(path.join("images"))?, SecretKey::from_seed([1; 32]));
/// let peers = Arc::new(Open);
/// let options =
///     ProgramNodeOptions::new(Engine::default(), images.clone(), key.clone(), peers, path.clone());
/// let node = ProgramNode::new(options)?;
/// let mut serve = ServeOptions::new(key.clone());
/// serve.programs = Some(node);
/// let server = MemoryServer::bind("127.0.0.1:0", images, serve)?;
/// let peer = MemoryPeer { address: server.address().to_string(), key: key.public() };
/// std::thread::spawn(move || server.run());
///
/// // Elsewhere: a program that prints what it reads.
/// let module = wat::parse_str(r#"(module
///     (import "wasi_snapshot_preview1" "fd_read"
///         (func $read (param i32 i32 i32 i32) (result i32)))
///     (import "wasi_snapshot_preview1" "fd_write"
///         (func $write (param i32 i32 i32 i32) (result i32)))
///     (memory (export "memory") 1)
///     (data (i32.const 0) "\10\00\00\00\20\00\00\00")
///     (func (export "_start")
///         (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 4)))
///         (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#)?;
/// let own = SecretKey::from_seed([2; 32]);
/// let mut client = ProgramClient::connect(&peer, &own, &NodeTimes::default())?;
/// let id = client.start(&ProgramStart::new("echo", ProgramSource::Module(module)))?;
/// assert_eq!(client.programs()?[0].phase, ProgramPhase::Running);
///
/// let (mut printed, mut errors) = (Vec::new(), Vec::new());
/// let streams = AttachStreams {
///     input: Box::new(std::io::Cursor::new("hello")),
///     outputs: [&mut printed, &mut errors],
/// };
/// let end = attach_program(&peer, &own, &id.to_string(), streams, &PageTimes::default())?;
/// assert_eq!(end, ProgramEnd::Exited(0));
/// assert_eq!(&printed[..5], b"hello");
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ProgramNode {
    shared: Arc<NodeShared>,
}

#[derive(Debug)]
struct NodeShared {
    host: ProgramHost,
    programs: Mutex<BTreeMap<ProgramId, KnownProgram>>,
}

/// A program that has a place.
#[derive(Clone, Debug)]
enum KnownProgram {
    /// It is being made ready.
    Starting,
    Here(Arc<NodeProgram>),
}

impl ProgramNode {
    /// A node without programs.
    ///
    /// # Errors
    /// If the engine cannot define what programs import.
    ///
    /// # Examples
    ///
    /// See [`ProgramNode`].
    pub fn new(options: ProgramNodeOptions) -> Result<Self, String> {
        let host = ProgramHost::new(options)?;
        Ok(Self { shared: Arc::new(NodeShared { host, programs: Mutex::default() }) })
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<ProgramId, KnownProgram>> {
        self.shared.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn options(&self) -> &ProgramNodeOptions {
        &self.shared.host.options
    }

    /// Whether who has this key may have programs run.
    pub(crate) fn lets_in(&self, key: &PublicKey) -> bool {
        let options = self.options();
        options.key.public() == *key || options.peers.may_run(key)
    }

    /// Starts a program, whose client and owner is this node.
    ///
    /// # Errors
    /// Why it is refused: it is wrong or means nothing here, or there are as many programs as
    /// [there may be](crate::ProgramLimits).
    ///
    /// # Examples
    ///
    /// See [`ProgramNode`].
    pub fn start(&self, start: &ProgramStart) -> Result<ProgramId, String> {
        self.start_for(self.options().key.public(), start)
    }

    pub(super) fn start_for(
        &self,
        owner: PublicKey,
        start: &ProgramStart,
    ) -> Result<ProgramId, String> {
        check_name(&start.name).map_err(|error| error.to_string())?;
        if let ProgramSource::Module(binary) = &start.source
            && binary.len() as u64 > self.options().limits.module_size
        {
            return Err("the module is larger than this node takes".to_owned());
        }
        let id = ProgramId(random()?);
        let place = self.take_place(id)?;
        let streams = Arc::<ProgramStreams>::default();
        let ready = self.shared.host.ready(start, &streams)?;
        let (name, phase) = (start.name.clone(), ProgramPhase::Running);
        let program = NodeProgram::new(id, name, owner, streams, phase);
        program.run(ready)?;
        place.fill(program);
        Ok(id)
    }

    /// Keeps a place for a program that is about to begin.
    fn take_place(&self, id: ProgramId) -> Result<ProgramPlace<'_>, String> {
        let limits = &self.options().limits;
        let mut table = self.table();
        let ended = |known: &KnownProgram| match known {
            KnownProgram::Here(program) => program.is_over(),
            KnownProgram::Starting => false,
        };
        let over: Vec<ProgramId> =
            table.iter().filter(|(_, known)| ended(known)).map(|(id, _)| *id).collect();
        if table.len() - over.len() >= limits.programs {
            return Err(format!(
                "this node runs {} programs already, which is all that it may",
                limits.programs
            ));
        }
        // Those that are known longest have no order; which of them go does not matter.
        for id in over.iter().take((over.len() + 1).saturating_sub(limits.ended)) {
            table.remove(id);
        }
        table.insert(id, KnownProgram::Starting);
        Ok(ProgramPlace { node: self, id })
    }

    /// All programs, those that have ended among them.
    ///
    /// # Examples
    ///
    /// See [`ProgramClient::programs`](crate::ProgramClient::programs).
    pub fn programs(&self) -> Vec<ProgramInfo> {
        let all: Vec<Arc<NodeProgram>> = self
            .table()
            .values()
            .filter_map(|known| match known {
                KnownProgram::Here(program) => Some(Arc::clone(program)),
                KnownProgram::Starting => None,
            })
            .collect();
        all.iter().map(|program| program.info()).collect()
    }

    /// Stops a program, by its name, if no other has it, or its number; one that has ended is
    /// forgotten.
    ///
    /// # Errors
    /// If there is none, or it has not stopped after `patience`; it does so later then.
    ///
    /// # Examples
    ///
    /// See [`ProgramClient::stop`](crate::ProgramClient::stop).
    pub fn stop(&self, program: &str, patience: Duration) -> Result<(), String> {
        let found = self.find(program)?;
        if found.is_over() {
            self.table().remove(&found.id);
            return Ok(());
        }
        match found.stop("it was told to stop", patience) {
            true => Ok(()),
            false => Err(format!("program {program} has not stopped yet, and will")),
        }
    }

    /// The program that a text means.
    pub(super) fn find(&self, text: &str) -> Result<Arc<NodeProgram>, String> {
        let table = self.table();
        let here = || {
            table.values().filter_map(|known| match known {
                KnownProgram::Here(program) => Some(program),
                KnownProgram::Starting => None,
            })
        };
        if let Ok(id) = text.parse() {
            let found = here().find(|program| program.id == id);
            return found.cloned().ok_or_else(|| format!("there is no program {text} here"));
        }
        let named: Vec<&Arc<NodeProgram>> = here().filter(|program| program.name == text).collect();
        // One that runs is meant before those that have ended.
        let running: Vec<_> = named.iter().filter(|program| !program.is_over()).collect();
        match (&running[..], &named[..]) {
            ([one], _) => Ok(Arc::clone(one)),
            ([], [one]) => Ok(Arc::clone(one)),
            ([], []) => Err(format!("there is no program {text:?} here")),
            _ => {
                Err(format!("{} programs are called {text:?}: name one by its number", named.len()))
            }
        }
    }

    /// Forgets a program that has ended, and of which its client has all.
    pub(super) fn forget(&self, program: &NodeProgram) {
        if program.is_over() {
            self.table().remove(&program.id);
        }
    }
}

/// A place for a program, which is given back unless it is filled.
struct ProgramPlace<'a> {
    node: &'a ProgramNode,
    id: ProgramId,
}

impl ProgramPlace<'_> {
    fn fill(self, program: Arc<NodeProgram>) {
        self.node.table().insert(self.id, KnownProgram::Here(program));
        std::mem::forget(self);
    }
}

impl Drop for ProgramPlace<'_> {
    fn drop(&mut self) {
        self.node.table().remove(&self.id);
    }
}
