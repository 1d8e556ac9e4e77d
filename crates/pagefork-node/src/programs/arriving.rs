//! The side of a node to which a program moves.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use pagefork::{LoadOptions, SlotsAhead, Snapshot};
use pagefork_image::{ComingGroups, ContentHash, ImageError, PublicKey, StoredImage, check_name};
use pagefork_postcopy::{
    MigrationId, MigrationMessage, MigrationStep, MigrationTarget, TargetInput, TargetOutput,
    TargetRecord, TargetState,
};
use pagefork_wasi::ProgramState;

use crate::ahead::{fetch_first, fetch_tip};
use crate::base::NodeError;
use crate::fetch::MemoryPeer;
use crate::place::PageHolder;
use crate::start::{FoundImage, StartEvent, StartOptions, start_image};

use super::host::{ProgramHost, ProgramNodeOptions};
use super::kept::NeededImage;
use super::moving::{FEW_BYTES, touched};
use super::node::{PlaceOfArrival, ProgramNode};
use super::program::{NodeGuest, NodeProgram, ParkedProgram};
use super::records::ArrivingRecord;
use super::streams::ProgramStreams;
use super::wire::{LAST_CHANGES_MAX, MoveOffer, ProgramPhase, SecondPlace, shortened};

/// How programs have come to a node so far that have moved there. What was done ahead is no error if it was for nothing:
/// they come all the same, and rest longer.
///
/// # Examples
///
/// See [`ProgramNode::arrival_counts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ArrivalCounts {
    /// Programs that went on here.
    pub programs: u64,
    /// Hand-overs that the thread which had received them set about at once, also such as did not succeed.
    pub at_once: u64,
    /// Those that went on in slots that were filled before they were handed over.
    pub in_filled_slots: u64,
    /// States that went ahead behind the first, each sent before its target asked for it.
    pub states_sent: u64,
    /// Those that the target fetched.
    pub states_fetched: u64,
    /// Groups of first states that were not sent: images that were here had them, such as of the program's last stay. Of
    /// a state that is here as a whole none are counted.
    pub groups_here: u64,
}

/// Programs that are on their way here.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    all: Mutex<BTreeMap<MigrationId, Arc<ProgramArrival>>>,
    counts: Mutex<ArrivalCounts>,
}

#[derive(Debug)]
struct ProgramArrival {
    from: PublicKey,
    /// The connection of its source is gone. Is looked at when a step of it is done, and while its first state comes.
    is_left: AtomicBool,
    program: Mutex<ArrivingProgram>,
}

#[derive(Debug)]
struct ArrivingProgram {
    migration: MigrationId,
    target: MigrationTarget,
    from: PublicKey,
    offer: MoveOffer,
    /// The state that has come last while it ran: what comes next is what has changed.
    ahead: Option<StoredImage>,
    /// As it was loaded: its code and its pages are ready when the program goes on.
    warm: Option<Snapshot<NodeGuest>>,
    /// Its pages in a slot. The program is spawned there when its last changes have come.
    slots: Option<SlotsAhead>,
    /// What has come with a hand-over, or with a state ahead.
    changes: Option<(Vec<u8>, ComingGroups)>,
    place: Option<PlaceOfArrival>,
    /// A record that need not be on the disk yet.
    noted: Option<ArrivingRecord>,
    /// It was forgotten.
    is_gone: bool,
}

impl Arrivals {
    fn find(
        &self,
        node: &ProgramNode,
        from: PublicKey,
        offer: &MoveOffer,
        message: &MigrationMessage,
    ) -> Result<Arc<ProgramArrival>, String> {
        let migration = message.migration;
        let mut all = self.lock();
        if let Some(known) = all.get(&migration) {
            return Ok(Arc::clone(known));
        }
        if all.len() >= node.options().limits.programs {
            return Err("too many programs are on their way here".to_owned());
        }
        let limit = match message.step {
            MigrationStep::Offer { .. } => node.options().limits.remembered,
            // What was accepted before rests, and nobody else may have it.
            _ => node.options().limits.remembered.saturating_mul(2),
        };
        let kept = node.records().arriving(migration);
        let kept = kept.map_err(|error| format!("the node cannot read its records: {error}"))?;
        let (target, from) = match kept {
            Some((kept, knows)) => {
                let (target, outputs) = MigrationTarget::restore(kept.target.clone(), knows);
                for output in outputs {
                    if let TargetOutput::Record(target) = output {
                        let kept = ArrivingRecord { target, ..kept.clone() };
                        let written = node.records().keep_arriving(&kept);
                        written.map_err(cannot_keep)?;
                    }
                }
                (target, PublicKey::from_bytes(kept.from))
            }
            None if node.records().remembered().count(&from) >= limit => {
                return Err(format!(
                    "of {limit} programs of node {from} it is remembered here what became of them, which is \
                     all that may be: they run here, that node has not said that it knows, or an older \
                     connection of its is open"
                ));
            }
            None => (MigrationTarget::new(migration), from),
        };
        let (ahead, warm, slots, changes, place, noted, is_gone) = <_>::default();
        let offer = offer.clone();
        let arriving = ArrivingProgram {
            migration,
            target,
            from,
            offer,
            ahead,
            warm,
            slots,
            changes,
            place,
            noted,
            is_gone,
        };
        let (is_left, program) = (AtomicBool::new(false), Mutex::new(arriving));
        let arriving = Arc::new(ProgramArrival { from, is_left, program });
        all.insert(migration, Arc::clone(&arriving));
        Ok(arriving)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<MigrationId, Arc<ProgramArrival>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> ArrivalCounts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count_as(&self, add: impl FnOnce(&mut ArrivalCounts)) {
        add(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// It is no more. Who waits for its lock finds that out, and looks for the one that follows.
    fn forget(
        &self,
        migration: MigrationId,
        arrival: &Arc<ProgramArrival>,
        arriving: &mut ArrivingProgram,
    ) {
        arriving.is_gone = true;
        // Who comes next finds it free.
        arriving.place = None;
        let mut all = self.lock();
        if all.get(&migration).is_some_and(|known| Arc::ptr_eq(known, arrival)) {
            all.remove(&migration);
        }
        // Others do not wait until pages are given back.
        drop(all);
        (arriving.slots, arriving.warm, arriving.ahead) = <_>::default();
    }

    /// How many there are, and of how many pages are in slots already.
    #[cfg(test)]
    fn count(&self) -> (usize, usize) {
        let all: Vec<_> = self.lock().values().cloned().collect();
        let has_slots = |arriving: &&Arc<ProgramArrival>| arriving.lock().slots.is_some();
        (all.len(), all.iter().filter(has_slots).count())
    }

    /// Whether a program is most likely taken without the network when its last changes are here: the state before
    /// them is here, its slots are filled, and nobody works on it. If that changes meanwhile, the step takes longer.
    pub(super) fn is_ready(&self, migration: MigrationId) -> bool {
        let Some(arrival) = self.lock().get(&migration).cloned() else { return false };
        let arriving = arrival.program.try_lock();
        arriving.is_ok_and(|arriving| arriving.ahead.is_some() && arriving.slots.is_some())
    }

    /// The connection of its source is gone: what was not handed over does not come.
    pub(super) fn left(&self, node: &ProgramNode, from: PublicKey, migration: MigrationId) {
        let arrival = self.lock().get(&migration).filter(|arrival| arrival.from == from).cloned();
        let Some(arrival) = arrival else { return };
        arrival.is_left.store(true, Ordering::SeqCst);
        self.give_up(node, migration, &arrival);
    }

    /// Gives back what its source has left, unless it is worked on: who does that gives it up then.
    fn give_up(&self, node: &ProgramNode, migration: MigrationId, arrival: &Arc<ProgramArrival>) {
        let mut arriving = match arrival.program.try_lock() {
            Ok(arriving) => arriving,
            Err(TryLockError::Poisoned(left)) => left.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        // What has followed on one that is gone is not of this source.
        if !arriving.is_gone
            && matches!(arriving.target.state(), TargetState::Asked | TargetState::Accepted)
        {
            // If it is handed over after all, that is recorded anew. What cannot be removed is asked for when
            // the node is started again.
            let _ = node.records().forget_arriving(migration);
            self.forget(migration, arrival, &mut arriving);
        }
    }
}

impl ProgramArrival {
    fn lock(&self) -> MutexGuard<'_, ArrivingProgram> {
        self.program.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of a delta of what has come ahead, as they come before its hand-over.
#[derive(Debug, Default)]
pub(super) struct LastChanges {
    bytes: Vec<u8>,
    /// Groups are hashed while the next ones come.
    groups: ComingGroups,
    /// The part at 0 is here, which is the last one.
    is_whole: bool,
}

impl LastChanges {
    /// For which memory is there already: while a program rests, nothing is made of it.
    pub(super) fn with_room() -> Self {
        let mut bytes = touched(FEW_BYTES as usize);
        bytes.clear();
        Self { bytes, ..Self::default() }
    }

    /// Takes a part. Returns whether that is possible: there may be no more of them, or it lies where
    /// none may.
    pub(super) fn put(&mut self, at: u64, part: &[u8]) -> bool {
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        let end = start.saturating_add(part.len());
        if self.is_whole || end > LAST_CHANGES_MAX {
            return false;
        }
        if start == self.bytes.len() {
            self.bytes.extend_from_slice(part);
        } else {
            self.bytes.resize(self.bytes.len().max(end), 0);
            self.bytes[start..end].copy_from_slice(part);
        }
        self.groups.take(at, part);
        self.is_whole = at == 0;
        true
    }

    /// All of it, if that is here, and what stands for its groups.
    pub(super) fn whole(mut self) -> Option<(Vec<u8>, ComingGroups)> {
        // The program has it for as long as it lives.
        if self.bytes.len() < self.bytes.capacity() / 2 {
            self.bytes.shrink_to_fit();
        }
        self.is_whole.then_some((self.bytes, self.groups))
    }
}

/// Does what follows from a step of a source. Returns what it is told, or why the step was for nothing,
/// and is to be made again; and a record that was noted, and is to be kept after that. Takes as long as
/// pages take.
pub(super) fn step(
    node: &ProgramNode,
    peer: PublicKey,
    offer: &MoveOffer,
    message: MigrationMessage,
    changes: Option<(Vec<u8>, ComingGroups)>,
) -> (Result<Vec<MigrationMessage>, String>, Option<ArrivingRecord>) {
    // All that is recorded has it.
    if let Err(error) = check_name(&offer.name) {
        return (Err(error.to_string()), None);
    }
    let mut changes = changes;
    loop {
        let arrival = match node.arrivals().find(node, peer, offer, &message) {
            Ok(arrival) => arrival,
            Err(why) => return (Err(why), None),
        };
        if let Some(done) = step_of(node, &arrival, peer, &message, &mut changes) {
            return done;
        }
    }
}

/// A source knows what has become of a program that it has handed over, whatever happens to it: what is remembered of it
/// here is needed no more once it is over.
pub(super) fn known(
    node: &ProgramNode,
    peer: PublicKey,
    migration: MigrationId,
) -> Result<(), String> {
    let kept = node.records().change_arriving(migration, |record| {
        record.is_known |= record.from == *peer.as_bytes();
    });
    kept.map_err(cannot_keep)
}

/// As [`step`], of the program that was found; `None` if that was forgotten meanwhile.
fn step_of(
    node: &ProgramNode,
    arrival: &Arc<ProgramArrival>,
    peer: PublicKey,
    message: &MigrationMessage,
    changes: &mut Option<(Vec<u8>, ComingGroups)>,
) -> Option<(Result<Vec<MigrationMessage>, String>, Option<ArrivingRecord>)> {
    let mut arriving = arrival.lock();
    if arriving.is_gone {
        return None;
    }
    let is_settled =
        |state| matches!(state, TargetState::Idle | TargetState::Own | TargetState::Declined);
    if arriving.from != peer {
        // What is settled is in the records.
        if is_settled(arriving.target.state()) {
            node.arrivals().forget(message.migration, arrival, &mut arriving);
        }
        return Some((Err("this program is on its way from another node".to_owned()), None));
    }
    arriving.changes = changes.take();
    let outcome = arriving.step(node, message.clone(), &arrival.is_left);
    let noted = arriving.noted.take();
    // What has failed begins anew: nothing was decided that somebody may ask for.
    let has_failed = outcome.is_err() && !is_settled(arriving.target.state());
    if has_failed {
        let _ = node.records().forget_arriving(message.migration);
    }
    if has_failed || is_settled(arriving.target.state()) {
        node.arrivals().forget(message.migration, arrival, &mut arriving);
    }
    // Whoever says from now on that its source is gone finds that nothing is done.
    drop(arriving);
    if arrival.is_left.load(Ordering::SeqCst) {
        node.arrivals().give_up(node, message.migration, arrival);
    }
    Some((outcome, noted))
}

pub(super) fn cannot_keep(error: std::io::Error) -> String {
    format!("the node cannot keep its records: {error}")
}

impl ArrivingProgram {
    fn step(
        &mut self,
        node: &ProgramNode,
        message: MigrationMessage,
        is_left: &AtomicBool,
    ) -> Result<Vec<MigrationMessage>, String> {
        let epoch = message.epoch;
        let mut to_do: Vec<TargetOutput> = self.target.handle(TargetInput::Received(message));
        let (mut answers, mut ready) = (Vec::new(), None);
        to_do.reverse();
        while let Some(output) = to_do.pop() {
            let input = match output {
                TargetOutput::Record(target) => {
                    let kept = match target.state {
                        // It does not come.
                        TargetState::Idle => node.records().forget_arriving(target.migration),
                        _ => node.records().keep_arriving(&self.record(target)),
                    };
                    kept.map_err(cannot_keep)?;
                    None
                }
                TargetOutput::Note(target) => {
                    let record = self.record(target);
                    node.records().note_arriving(&record).map_err(cannot_keep)?;
                    self.noted = Some(record);
                    None
                }
                TargetOutput::Send(message) => {
                    answers.push(message);
                    None
                }
                TargetOutput::Asked { .. } => Some(match self.would_take(node, epoch) {
                    Ok(place) => {
                        self.place = Some(place);
                        TargetInput::Accept
                    }
                    Err(why) => TargetInput::Refuse { text: shortened(why) },
                }),
                TargetOutput::Ahead { image, .. } => {
                    Some(match self.fetch_ahead(node, image, epoch, is_left) {
                        Ok(()) => TargetInput::AheadHere(image),
                        Err(why) => TargetInput::Refuse { text: shortened(why) },
                    })
                }
                TargetOutput::HandedOver { image, .. } => {
                    Some(match self.prepare(node, image, epoch) {
                        Ok(prepared) => {
                            ready = Some(prepared);
                            TargetInput::Take
                        }
                        Err(TakeFailure::Never(why)) => {
                            TargetInput::Refuse { text: shortened(why) }
                        }
                        // Its source hands it over again.
                        Err(TakeFailure::NotYet(why)) => return Err(why),
                    })
                }
                TargetOutput::Own => {
                    if let (Some(prepared), Some(place)) = (ready.take(), self.place.take()) {
                        let PreparedProgram { program, parked, in_place } = prepared;
                        place.fill(&program);
                        parked.run();
                        node.arrivals().count_as(|counts| {
                            counts.programs += 1;
                            counts.in_filled_slots += u64::from(in_place);
                        });
                    }
                    None
                }
                TargetOutput::Withdrawn => None,
            };
            if let Some(input) = input {
                let mut next = self.target.handle(input);
                next.reverse();
                to_do.extend(next);
            }
        }
        Ok(answers)
    }

    fn record(&self, target: TargetRecord) -> ArrivingRecord {
        let (program, name) = (self.offer.program, self.offer.name.clone());
        let (from, is_known, is_over) = (*self.from.as_bytes(), false, false);
        ArrivingRecord { target, program, name, from, is_known, is_over }
    }

    /// Whether the program could run here.
    fn would_take(&self, node: &ProgramNode, epoch: u64) -> Result<PlaceOfArrival, String> {
        source(node.options(), &self.from)?;
        let MoveOffer { program, directories, signer, .. } = &self.offer;
        let signer = PublicKey::from_bytes(*signer);
        if !node.options().peers.signers()?.contains(&signer) {
            return Err(format!(
                "images that key {signer} has signed are not run here: `pagefork node trust --signer` \
                 says it to the node that is to have the program"
            ));
        }
        for name in directories {
            let mut known = node.options().directories.iter();
            if !known.any(|known| known.guest == *name) {
                return Err(format!("this node has no directory {name:?} for programs"));
            }
        }
        self.others(node)?;
        if self.offer.has_sockets && node.options().listeners.is_empty() {
            return Err("this node has no listening sockets for programs".to_owned());
        }
        if let Some(needs) = &self.offer.needs {
            needs.check(node.host(), self.offer.has_sockets)?;
        }
        node.place_of_arrival(*program, epoch)
    }

    /// Who has its pages, too.
    fn others(&self, node: &ProgramNode) -> Result<Vec<PageHolder>, String> {
        let options = node.options();
        let holder = |second: &SecondPlace| match second {
            SecondPlace::Node(key) => source(options, key).map(PageHolder::Node).map(Some),
            SecondPlace::Objects(url) => {
                options.place(url).cloned().map(PageHolder::Place).map(Some)
            }
            SecondPlace::Nowhere => Ok(None),
        };
        self.offer.second.iter().filter_map(|second| holder(second).transpose()).collect()
    }

    fn fetch_ahead(
        &mut self,
        node: &ProgramNode,
        image: ContentHash,
        epoch: u64,
        is_left: &AtomicBool,
    ) -> Result<(), String> {
        if self.place.is_none() {
            // It is known of a record alone: slots are of who has a place.
            self.place = Some(self.would_take(node, epoch)?);
        }
        let ProgramNodeOptions { images, key, peers, start, .. } = node.options();
        let (peer, signers) = (source(node.options(), &self.from)?, peers.signers()?);
        let times = &start.times.node;
        let fetched = match (&self.ahead, self.changes.take()) {
            (None, _) => {
                let how = (&start.times, start.look_here);
                let is_left = || is_left.load(Ordering::SeqCst);
                let found = fetch_first(&peer, key, image, images, &signers, how, is_left);
                found.map(|(found, spared)| {
                    node.arrivals().count_as(|counts| counts.groups_here += spared);
                    found
                })
            }
            (Some(ahead), Some((bytes, groups))) => {
                node.arrivals().count_as(|counts| counts.states_sent += 1);
                let bytes = Arc::new(bytes);
                let found = images.open_beside_hashed(Arc::clone(&bytes), ahead, &signers, &groups);
                found.map_err(NodeError::from).and_then(|found| match found.hash() == image {
                    true => Ok(images.adopt(bytes)?),
                    false => Err(NodeError::OtherImage { wanted: image, found: found.hash() }),
                })
            }
            (Some(_), None) => {
                node.arrivals().count_as(|counts| counts.states_fetched += 1);
                fetch_tip(&peer, key, image, images, &signers, times)
            }
        };
        let fetched = fetched.map_err(|error| error.to_string())?;
        // While the program runs: of what comes last, only that is loaded.
        let options = LoadOptions::new().trust(signers);
        let warm = node.host().load_ahead(&fetched, self.warm.as_ref(), options)?;
        // If there is no room for it, the program goes on where it is.
        self.slots = Some(node.host().fill_ahead(&warm, self.slots.take())?);
        self.warm = Some(warm);
        self.ahead = Some(fetched);
        Ok(())
    }

    /// Makes the program ready that was handed over.
    fn prepare(
        &mut self,
        node: &ProgramNode,
        image: ContentHash,
        epoch: u64,
    ) -> Result<PreparedProgram, TakeFailure> {
        if self.place.is_none() {
            self.place = Some(node.place_of_arrival(self.offer.program, epoch)?);
        }
        let next = epoch.checked_add(1).ok_or("it was handed over as often as it can be")?;
        let ProgramNodeOptions { images, key, peers, start, .. } = node.options();
        let (peer, signers) = (source(node.options(), &self.from)?, peers.signers()?);
        let (weak, observe) = (node.downgrade(), Arc::clone(&start.observe));
        let observes = move |event: &StartEvent<'_>| {
            if let StartEvent::Whole { image, .. } | StartEvent::Lost { image, .. } = event
                && let Some(node) = weak.upgrade()
            {
                node.need_no_more(image);
            }
            observe(event);
        };
        let (others, observe) = (self.others(node)?, Arc::new(observes));
        let start = &StartOptions { others, observe, ..start.clone() };
        let changes = self.changes.take();
        let tip = self.ahead.as_ref().map(|ahead| match changes {
            Some((bytes, groups)) => {
                let bytes = Arc::new(bytes);
                let found = images.open_beside_hashed(bytes, ahead, &signers, &groups)?;
                let (found, here) = (found.hash(), found);
                match found == image {
                    true => Ok(here),
                    false => Err(NodeError::OtherImage { wanted: image, found }),
                }
            }
            None => fetch_tip(&peer, key, image, images, &signers, &start.times.node),
        });
        let mut needed = None;
        let found = match tip {
            Some(Ok(image)) => FoundImage::Here(image),
            // What came ahead was collected since: all comes anew, or as it is needed.
            None | Some(Err(NodeError::Image(ImageError::NotFound { .. }))) => {
                // Before its pages begin to come, since that may be over at once.
                needed = Some(NeededImage::new(node, image));
                let found = start_image(&peer, key, &image.to_string(), images, &signers, start)?;
                if matches!(found, FoundImage::Here(_)) {
                    needed = None;
                }
                found
            }
            Some(Err(error)) => return Err(error.into()),
        };
        let host = node.host();
        let mut load = LoadOptions::new().trust(signers);
        if let Some(warm) = &self.warm {
            load = load.moved_over(warm);
        }
        let (snapshot, mut pages) = host.load(found, load)?;
        if let Some(needed) = needed {
            pages.push(needed);
        }
        let (record, wasi) = moving(&snapshot)?;
        if record.program != self.offer.program || record.epoch != epoch {
            let why = "what was handed over is another program, or another time of it";
            return Err(TakeFailure::Never(why.to_owned()));
        }
        let streams = ProgramStreams::of_record(record.streams);
        let (has_sockets, slots) = (record.has_sockets, self.slots.take());
        let uses = slots.as_ref().map(SlotsAhead::uses);
        let mut ready = host.of_snapshot(&snapshot, &wasi, &streams, has_sockets, pages, slots)?;
        let in_place = uses.is_some_and(|uses| uses.in_place() > 0);
        let limit = node.options().limits.timeout;
        ready.store.set_timeout(limit).map_err(|error| format!("{error:#}"))?;
        let phase = ProgramPhase::Running;
        let program = NodeProgram::new(record.program, record.name, self.from, streams, phase);
        program.set_travels(next, record.has_sockets);
        program.set_came_by(self.migration);
        // When it is taken, the system cannot refuse a thread any more.
        let parked = node.park(&program, ready)?;
        Ok(PreparedProgram { program, parked, in_place })
    }
}

/// A program that was handed over, ready to go on.
struct PreparedProgram {
    program: Arc<NodeProgram>,
    parked: ParkedProgram,
    /// In slots that were filled before.
    in_place: bool,
}

/// Why a program that was handed over does not go on here.
enum TakeFailure {
    /// Its pages do not come, and may come later.
    NotYet(String),
    /// It cannot run here.
    Never(String),
}

impl From<&str> for TakeFailure {
    fn from(why: &str) -> Self {
        Self::Never(why.to_owned())
    }
}

impl From<String> for TakeFailure {
    fn from(why: String) -> Self {
        Self::Never(why)
    }
}

impl From<NodeError> for TakeFailure {
    fn from(error: NodeError) -> Self {
        let why = error.to_string();
        match error {
            NodeError::OwnFailure(error) => (*error).into(),
            // Whoever is there again by then may have it.
            NodeError::Nowhere { tried, .. } => {
                let mut tried = tried.into_iter().map(|(_, error)| Self::from(error));
                match tried.any(|failed| matches!(failed, Self::NotYet(_))) {
                    true => Self::NotYet(why),
                    false => Self::Never(why),
                }
            }
            NodeError::Io { .. }
            | NodeError::Handshake { .. }
            | NodeError::Version { .. }
            | NodeError::Protocol(_) => Self::NotYet(why),
            // A stream that was cut, also where something else could have followed.
            NodeError::Image(ImageError::Io { .. } | ImageError::Damaged { .. }) => {
                Self::NotYet(why)
            }
            _ => Self::Never(why),
        }
    }
}

/// What is known of a program that moves, from its image.
pub(super) fn moving(
    snapshot: &Snapshot<NodeGuest>,
) -> Result<(super::capture::MovingRecord, pagefork_wasi::WasiState), String> {
    let record = ProgramHost::read_moving(snapshot)?;
    let state = ProgramState::from_bytes(snapshot.state()).map_err(|error| error.to_string())?;
    Ok((record, state.wasi))
}

/// Where the node is that has a program.
fn source(options: &ProgramNodeOptions, key: &PublicKey) -> Result<MemoryPeer, String> {
    options.peers.with_key(key).ok_or_else(|| {
        format!(
            "where node {key} is is not known here: `pagefork node trust --address` says it to the \
             node that is to have its program"
        )
    })
}

#[cfg(test)]
mod tests;
