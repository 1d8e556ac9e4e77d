//! A node that runs programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use pagefork::LoadOptions;
use pagefork_image::{ContentHash, ImageError, PublicKey, TrustedKeys, check_name};
use pagefork_postcopy::{KnownRecords, MigrationId, SourceRecord, SourceState, TargetState};

use crate::fetch::fetch_image;
use crate::start::FoundImage;
use crate::watched::ToldGroups;

use super::arriving::{self, ArrivalCounts, Arrivals, cannot_keep};
use super::host::{ProgramHost, ProgramNodeOptions, random};
use super::kept::{self, KeptImage, KeptImages};
use super::move_control::MoveControl;
use super::move_report::MigrateReport;
use super::moving::{self, MigrateOptions};
use super::program::{NodeProgram, PATIENCE_MAX, ParkedProgram, ReadyProgram};
use super::records::{AllRecords, ArrivingRecord, LeavingRecord, MoveRecords};
use super::snapshots::{self, CaptureOptions, CaptureReport};
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
///     fn with_key(&self, _: &PublicKey) -> Option<MemoryPeer> {
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
/// // It does not move; who has programs that do says here where other nodes are.
/// let nobody = |_: &PublicKey| None;
/// let times = PageTimes::default();
/// let end = attach_program(&peer, &own, &id.to_string(), streams, &nobody, &times)?;
/// assert_eq!(end, ProgramEnd::Exited(0));
/// assert_eq!(&printed[..5], b"hello");
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ProgramNode {
    shared: Arc<NodeShared>,
}

/// The same node, if it is still there.
#[derive(Clone, Debug)]
pub(super) struct WeakProgramNode(Weak<NodeShared>);

impl WeakProgramNode {
    pub(super) fn upgrade(&self) -> Option<ProgramNode> {
        self.0.upgrade().map(|shared| ProgramNode { shared })
    }
}

#[derive(Debug)]
struct NodeShared {
    host: ProgramHost,
    programs: Mutex<BTreeMap<ProgramId, KnownProgram>>,
    arrivals: Arrivals,
    kept: Arc<KeptImages>,
    records: MoveRecords,
    moves: Mutex<Moves>,
}

/// Programs that are on their way.
#[derive(Default)]
struct Moves {
    leaving: BTreeMap<ProgramId, Arc<MoveControl>>,
    /// Programs that have a place here and are not here yet.
    arriving: BTreeSet<ProgramId>,
    /// The images of a program that the node to which it moves may have.
    granted: BTreeMap<(PublicKey, ProgramId), BTreeSet<ContentHash>>,
    /// Images of which pages come while programs run that have moved here.
    needed: BTreeSet<ContentHash>,
    /// Images that second places fetch, and who wants to know how far they are.
    watched: BTreeMap<(PublicKey, ContentHash), ToldGroups>,
}

impl fmt::Debug for Moves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { leaving, arriving, .. } = self;
        let mut shown = f.debug_struct("Moves");
        shown.field("leaving", leaving).field("arriving", arriving).finish_non_exhaustive()
    }
}

/// A program of a process that has ended, ready to go on.
pub(super) struct ProgramAgain {
    again: Arc<NodeProgram>,
    parked: ParkedProgram,
}

/// Why a program does not go on here, though an operator has said so.
pub(super) enum NotAgain {
    /// It never can.
    Gone(String),
    /// It may, if the operator says it again.
    NotNow(String),
}

impl From<String> for NotAgain {
    fn from(why: String) -> Self {
        Self::NotNow(why)
    }
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
        let records = MoveRecords::open(&options.records);
        let shown = options.records.display().to_string();
        let failed = |error| format!("cannot use {shown}: {error}");
        let records = records.map_err(failed)?;
        let all = records.read_all(&*options.say).map_err(failed)?;
        let host = ProgramHost::new(options)?;
        let (programs, arrivals, kept, moves) = <_>::default();
        let shared = Arc::new(NodeShared { host, programs, arrivals, kept, records, moves });
        let node = Self { shared };
        let known = all.leaving.iter().map(|(record, knows)| {
            let LeavingRecord { source, program, to, .. } = record;
            let state = left_behind(source, *knows);
            (source.migration, (state, *program, PublicKey::from_bytes(*to)))
        });
        let (known, unreadable) = (known.collect(), all.unreadable.clone());
        node.take_up_records(all)?;
        kept::take_up(&node, &known, &unreadable)?;
        kept::collect_places(&node);
        Ok(node)
    }

    /// Goes on with what another process of this node has left behind.
    fn take_up_records(&self, all: AllRecords) -> Result<(), String> {
        let owner = self.options().key.public();
        let known = |id, name: &str, phase| {
            let streams = Arc::<ProgramStreams>::default();
            NodeProgram::new(id, name.to_owned(), owner, streams, phase)
        };
        let mut newest = BTreeMap::<ProgramId, (u64, SourceState)>::new();
        for (record, knows) in all.leaving {
            let LeavingRecord { source, program: id, name, to, is_over } = &record;
            let mut state = left_behind(source, knows);
            if source.state == SourceState::Accepted
                && moving::named_image(self, source.migration)?.is_none()
            {
                // Nothing is here that could go on.
                state = SourceState::GoesOn;
            }
            let (phase, waits) = match &state {
                SourceState::HandedOver { image, .. } => {
                    self.grant(PublicKey::from_bytes(*to), *id, *image);
                    (ProgramPhase::HandedOver { to: *to }, true)
                }
                SourceState::Declined => {
                    let why = "it has said so to a process that has ended".to_owned();
                    (ProgramPhase::Declined { to: *to, why }, true)
                }
                SourceState::Taken => (ProgramPhase::Moved { to: *to }, false),
                // It has ended with its process.
                SourceState::Offered | SourceState::Accepted | SourceState::GoesOn => {
                    let forgotten = self.records().forget_leaving(source.migration);
                    forgotten.map_err(cannot_keep)?;
                    continue;
                }
            };
            if newest.get(id).is_some_and(|(epoch, _)| *epoch > source.epoch) {
                continue;
            }
            newest.insert(*id, (source.epoch, state.clone()));
            if *is_over {
                self.table().remove(id);
                continue;
            }
            let program = known(*id, name, phase);
            program.set_travels(source.epoch.saturating_add(1), false);
            program.streams.freeze();
            self.table().insert(*id, KnownProgram::Here(Arc::clone(&program)));
            if waits {
                moving::go_on(self, &program, record, knows)?;
            }
        }
        for (ArrivingRecord { target, program: id, name, is_over, .. }, _) in all.arriving {
            if target.state != TargetState::Own || is_over {
                continue;
            }
            // It has left, or has come back since.
            if let Some((_, state)) = newest.get(&id).filter(|(epoch, _)| *epoch > target.epoch) {
                match (state, self.table().get(&id)) {
                    (SourceState::Taken, _) => self.over(target.migration)?,
                    // It may go on here.
                    (_, Some(KnownProgram::Here(program))) => program.set_came_by(target.migration),
                    _ => {}
                }
                continue;
            }
            let why = "its node was started anew: what it has done since it came here is lost";
            let program = known(id, &name, ProgramPhase::Lost(why.to_owned()));
            program.set_travels(target.epoch.saturating_add(1), false);
            program.set_came_by(target.migration);
            // None that it left from here by is as new.
            newest.insert(id, (target.epoch, SourceState::GoesOn));
            self.table().insert(id, KnownProgram::Here(program));
        }
        Ok(())
    }

    pub(super) fn downgrade(&self) -> WeakProgramNode {
        WeakProgramNode(Arc::downgrade(&self.shared))
    }

    pub(super) fn host(&self) -> &ProgramHost {
        &self.shared.host
    }

    pub(super) fn records(&self) -> &MoveRecords {
        &self.shared.records
    }

    /// How programs have come here so far that have moved here.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_node::ArrivalCounts;
    ///
    /// let counts = ArrivalCounts::default();
    /// assert!(counts.in_filled_slots <= counts.programs);
    /// ```
    pub fn arrival_counts(&self) -> ArrivalCounts {
        self.arrivals().counts()
    }

    pub(super) fn arrivals(&self) -> &Arrivals {
        &self.shared.arrivals
    }

    pub(super) fn kept(&self) -> &Arc<KeptImages> {
        &self.shared.kept
    }

    fn moves(&self) -> MutexGuard<'_, Moves> {
        self.shared.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn grant(&self, to: PublicKey, program: ProgramId, image: ContentHash) {
        self.moves().granted.entry((to, program)).or_default().insert(image);
    }

    pub(super) fn revoke_image(&self, to: &PublicKey, program: ProgramId, image: ContentHash) {
        let mut moves = self.moves();
        if let Some(images) = moves.granted.get_mut(&(*to, program)) {
            images.remove(&image);
            if images.is_empty() {
                moves.granted.remove(&(*to, program));
            }
        }
    }

    /// Pages of an image come from other nodes from now on.
    pub(super) fn need(&self, image: ContentHash) {
        self.moves().needed.insert(image);
    }

    pub(super) fn need_no_more(&self, image: &ContentHash) {
        self.moves().needed.remove(image);
    }

    /// Whether pages of an image come from other nodes, or would if they were asked for.
    pub(super) fn needs(&self, image: &ContentHash) -> bool {
        self.moves().needed.contains(image)
    }

    /// The images that a peer may have because a program moves there, or has.
    pub(crate) fn granted(&self, peer: &PublicKey) -> BTreeSet<ContentHash> {
        let moves = self.moves();
        let granted = moves.granted.iter().filter(|((to, _), _)| to == peer);
        granted.flat_map(|(_, images)| images.iter().copied()).collect()
    }

    /// Has it told how far a peer is with fetching an image.
    pub(super) fn watch(&self, peer: PublicKey, image: ContentHash, told: ToldGroups) {
        self.moves().watched.insert((peer, image), told);
    }

    pub(super) fn watch_no_more(&self, peer: PublicKey, image: ContentHash) {
        self.moves().watched.remove(&(peer, image));
    }

    /// Who is to be told how far a peer is with fetching an image.
    pub(crate) fn watching(&self, peer: PublicKey, image: ContentHash) -> Option<ToldGroups> {
        self.moves().watched.get(&(peer, image)).cloned()
    }

    /// Keeps an image of a peer for another one, whose program's pages are in it.
    pub(super) fn keep_for(
        &self,
        from: PublicKey,
        program: ProgramId,
        holder: PublicKey,
        image: ContentHash,
    ) -> Result<(), String> {
        let ProgramNodeOptions { images, key, peers, start, .. } = self.options();
        let known = |key| {
            let peer = peers.with_key(key);
            peer.ok_or_else(|| format!("where node {key} is is not known here"))
        };
        // Who cannot be asked whether it needs the image might need it for ever.
        let (peer, _) = (known(&from)?, known(&holder)?);
        let name = kept::second_name(&key.public(), &holder, program);
        let room = kept::make_room(self, from, KeptImage { name, image, holder, program })?;
        // It is held until it has a name.
        let times = &start.times.node;
        let held = fetch_image(&peer, key, &image.to_string(), images, &peers.signers()?, times);
        let held = held.map_err(|error| error.to_string())?;
        debug_assert_eq!(held.hash(), image);
        room.fill()
    }

    pub(super) fn note_move(&self, program: ProgramId, control: &Arc<MoveControl>) {
        self.moves().leaving.insert(program, Arc::clone(control));
    }

    pub(super) fn forget_move(&self, program: ProgramId, control: &Arc<MoveControl>) {
        let mut moves = self.moves();
        if moves.leaving.get(&program).is_some_and(|known| Arc::ptr_eq(known, control)) {
            moves.leaving.remove(&program);
        }
    }

    /// Keeps a place for a program that moves here.
    pub(super) fn place_of_arrival(
        &self,
        id: ProgramId,
        epoch: u64,
    ) -> Result<PlaceOfArrival, String> {
        let mut table = self.table();
        match table.get(&id) {
            Some(KnownProgram::Here(known)) if known.is_over() && known.travels().0 <= epoch => {}
            Some(KnownProgram::Here(known)) if known.is_over() => {
                return Err("this node has had the program at a later time".to_owned());
            }
            Some(_) => return Err("this node has the program already".to_owned()),
            None => {}
        }
        let mut moves = self.moves();
        self.check_room(&table, &moves)?;
        if !moves.arriving.insert(id) {
            return Err("the program is on its way here already".to_owned());
        }
        self.forget_ended(&mut table);
        Ok(PlaceOfArrival { node: self.clone(), id })
    }

    fn check_room(
        &self,
        table: &BTreeMap<ProgramId, KnownProgram>,
        moves: &Moves,
    ) -> Result<(), String> {
        let is_live = |known: &&KnownProgram| match known {
            KnownProgram::Here(program) => !program.is_over(),
            KnownProgram::Starting => true,
        };
        let limit = self.options().limits.programs;
        match table.values().filter(is_live).count() + moves.arriving.len() < limit {
            true => Ok(()),
            false => {
                Err(format!("this node runs {limit} programs already, which is all that it may"))
            }
        }
    }

    /// Moves a program to the node with this key, where it goes on. Returns when it is there.
    ///
    /// # Errors
    /// Why it goes on here; or, if it was handed over and there is no answer, that it does not, until
    /// there is or an operator [says](Self::reclaim) that it does.
    ///
    /// # Examples
    ///
    /// See [`ProgramClient::migrate`](crate::ProgramClient::migrate).
    pub fn migrate(
        &self,
        program: &str,
        to: PublicKey,
        options: MigrateOptions,
    ) -> Result<MigrateReport, String> {
        if to == self.options().key.public() {
            return Err("it is there already".to_owned());
        }
        let program = self.find(program)?;
        let patience = options.patience.min(PATIENCE_MAX);
        let control = moving::begin(self, &program, to, options)?;
        loop {
            match (control.outcome(patience), program.phase()) {
                (Some(outcome), _) => return outcome,
                (None, ProgramPhase::HandedOver { .. }) => {
                    return Err(format!(
                        "it was handed over to node {to}, which has not answered yet: it rests \
                         until that node has, or an operator who knows that it does not run there \
                         has it go on here (`pagefork node reclaim`)"
                    ));
                }
                (None, _) => {}
            }
        }
    }

    /// Makes an image of a program in the node's store, from which others go on as from any image. The
    /// program runs on, and rests only for as long as it takes to capture it. What is in its standard
    /// streams stays its own. Pages of it that are at other nodes come first.
    ///
    /// # Errors
    /// Why there is no image: there is no such program, it does not run here, it has ended meanwhile, it
    /// has something open that no image can have, another image has the name, or the image cannot be
    /// written. The program runs as it did.
    ///
    /// # Examples
    ///
    /// See [`ProgramClient::snapshot`](crate::ProgramClient::snapshot).
    pub fn snapshot(
        &self,
        program: &str,
        options: &CaptureOptions,
    ) -> Result<CaptureReport, String> {
        snapshots::capture(self, program, options)
    }

    /// An operator knows that a program that was handed over is not its target's, and has it go on
    /// here: **if it is, there are two of it**.
    ///
    /// # Errors
    /// If the program was not handed over, or has an owner; or why it cannot go on.
    ///
    /// # Examples
    ///
    /// See [`ProgramClient::reclaim`](crate::ProgramClient::reclaim).
    pub fn reclaim(&self, program: &str) -> Result<(), String> {
        let program = self.find(program)?;
        let is_open = matches!(
            program.phase(),
            ProgramPhase::HandedOver { .. } | ProgramPhase::Declined { .. }
        );
        let control = self.moves().leaving.get(&program.id).cloned();
        let Some(control) = control.filter(|_| is_open) else {
            return Err("it was not handed over, or it is known whose it is".to_owned());
        };
        let word = control.reclaim();
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            if let Some(why) = control.refusal(word) {
                return Err(why);
            }
            match program.phase() {
                ProgramPhase::Running => return Ok(()),
                ProgramPhase::Lost(why) => return Err(why),
                ProgramPhase::Moved { .. } => {
                    return Err("its target has just said that it has it".to_owned());
                }
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        Err("it does not go on yet".to_owned())
    }

    /// Makes a program ready from what was handed over by a process that has ended.
    ///
    /// # Errors
    /// Why it cannot go on here.
    pub(super) fn ready_again(
        &self,
        program: &Arc<NodeProgram>,
        image: Option<ContentHash>,
    ) -> Result<ProgramAgain, NotAgain> {
        let options = self.options();
        let gone = || NotAgain::Gone("what was handed over is not known any more".to_owned());
        let image = image.ok_or_else(gone)?;
        let found = options.images.load(image).map_err(|error| match error {
            ImageError::NotFound { .. } => NotAgain::Gone(error.to_string()),
            error => NotAgain::NotNow(error.to_string()),
        })?;
        let load = LoadOptions::new().trust(TrustedKeys::from_iter([options.image_key.public()]));
        let (snapshot, pages) = self.host().load(FoundImage::Here(found), load)?;
        let (record, wasi) = arriving::moving(&snapshot)?;
        let streams = ProgramStreams::of_record(record.streams);
        let ready =
            self.host().of_snapshot(&snapshot, &wasi, &streams, record.has_sockets, pages, None)?;
        let (name, phase) = (program.name.clone(), ProgramPhase::Running);
        let again = NodeProgram::new(program.id, name, program.owner, streams, phase);
        again.set_travels(record.epoch, record.has_sockets);
        if let Some(migration) = program.came_by() {
            again.set_came_by(migration);
        }
        let parked = self.park(&again, ready)?;
        Ok(ProgramAgain { again, parked })
    }

    /// Has it go on.
    pub(super) fn go_on_with(&self, program: &NodeProgram, again: ProgramAgain) {
        let ProgramAgain { again, parked } = again;
        // In its place: clients find it by its number.
        self.table().insert(program.id, KnownProgram::Here(again));
        parked.run();
        program.set_phase(ProgramPhase::Running);
        program.part_with_client();
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
        program.set_travels(0, start.sockets);
        let parked = self.park(&program, ready)?;
        place.fill(program);
        parked.run();
        Ok(id)
    }

    /// Keeps a place for a program that is about to begin.
    fn take_place(&self, id: ProgramId) -> Result<ProgramPlace<'_>, String> {
        let mut table = self.table();
        self.check_room(&table, &self.moves())?;
        self.forget_ended(&mut table);
        table.insert(id, KnownProgram::Starting);
        Ok(ProgramPlace { node: self, id })
    }

    /// Makes room for one more program that ends.
    fn forget_ended(&self, table: &mut BTreeMap<ProgramId, KnownProgram>) {
        let ended = |known: &KnownProgram| match known {
            KnownProgram::Here(program) => program.is_over(),
            KnownProgram::Starting => false,
        };
        let over: Vec<ProgramId> =
            table.iter().filter(|(_, known)| ended(known)).map(|(id, _)| *id).collect();
        // Those that are known longest have no order; which of them go does not matter.
        let more = (over.len() + 1).saturating_sub(self.options().limits.ended);
        for id in over.iter().take(more) {
            table.remove(id);
        }
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
        if matches!(found.phase(), ProgramPhase::HandedOver { .. } | ProgramPhase::Declined { .. })
        {
            return Err(
                "it was handed over, and may run elsewhere: reclaim it first, if it does not"
                    .to_owned(),
            );
        }
        if found.is_over() {
            self.table().remove(&found.id);
            return self.ended(&found);
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

    /// Makes a thread for a program. When it is over here, that is recorded.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn park(
        &self,
        program: &Arc<NodeProgram>,
        ready: ReadyProgram,
    ) -> Result<ParkedProgram, String> {
        let (weak, over) = (self.downgrade(), Arc::downgrade(program));
        program.park(ready, Arc::clone(&self.options().say), move |phase| {
            let Some((node, program)) = weak.upgrade().zip(over.upgrade()) else { return };
            let recorded = match (phase, program.came_by()) {
                (ProgramPhase::Ended(_), _) => node.ended(&program),
                (ProgramPhase::Moved { .. }, Some(migration)) => node.over(migration),
                _ => Ok(()),
            };
            if let Err(error) = recorded {
                (node.options().say)(&error);
            }
        })
    }

    /// A program is over here, and where it was before is of no interest.
    ///
    /// # Errors
    /// If that cannot be recorded.
    pub(super) fn ended(&self, program: &NodeProgram) -> Result<(), String> {
        // The other way round, it would be said after a crash that it is where it was before.
        self.records().end_leaving(program.id).map_err(cannot_keep)?;
        program.came_by().map_or(Ok(()), |migration| self.over(migration))
    }

    /// What came here by this hand-over does not run here any more.
    ///
    /// # Errors
    /// If that cannot be recorded.
    pub(super) fn over(&self, migration: MigrationId) -> Result<(), String> {
        let kept = self.records().change_arriving(migration, |record| record.is_over = true);
        kept.map_err(cannot_keep)
    }

    /// Forgets a program that has ended, and of which its client has all.
    pub(super) fn forget(&self, program: &NodeProgram) {
        if matches!(program.phase(), ProgramPhase::Ended(_)) {
            self.table().remove(&program.id);
        }
    }
}

/// How a hand-over stands that another process has left behind. That it was handed over may be what the end of the system
/// has taken away.
fn left_behind(source: &SourceRecord, knows: KnownRecords) -> SourceState {
    match (&source.state, knows) {
        (SourceState::Accepted, KnownRecords::OnDisk) => SourceState::Declined,
        (state, _) => state.clone(),
    }
}

/// A place for a program that moves here.
#[derive(Debug)]
pub(super) struct PlaceOfArrival {
    node: ProgramNode,
    id: ProgramId,
}

impl PlaceOfArrival {
    /// It is here.
    pub(super) fn fill(self, program: &Arc<NodeProgram>) {
        self.node.table().insert(self.id, KnownProgram::Here(Arc::clone(program)));
    }
}

impl Drop for PlaceOfArrival {
    fn drop(&mut self) {
        self.node.moves().arriving.remove(&self.id);
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

#[cfg(test)]
mod tests;
