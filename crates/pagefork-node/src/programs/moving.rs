//! The side of a node from which a program moves: states of it go ahead while it runs, then it rests,
//! is sealed, and handed over.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pagefork::{SaveOptions, Snapshot};
use pagefork_image::{ContentHash, ImageError, PublicKey};
use pagefork_postcopy::{
    KnownRecords, MigrationId, MigrationSource, MigrationStep, SourceInput, SourceOutput,
    SourceRecord, SourceState,
};
use rustix::event::{PollFd, PollFlags};

use crate::give::now;
use crate::poll::wait_for;

use super::arriving::cannot_keep;
use super::capture::{CaptureFailure, CapturedProgram, MovingRecord, SpentSnapshots};
use super::client::NodeLink;
use super::host::{ProgramNodeOptions, random};
use super::kept::{self, KeptImage};
use super::move_control::MoveControl;
use super::move_report::MigrateReport;
use super::needs::ProgramNeeds;
use super::node::{NotAgain, ProgramNode};
use super::program::{AfterRest, NodeGuest, NodeProgram, PATIENCE_MAX, ReadyProgram};
use super::records::LeavingRecord;
use super::sending::{ChangesSending, send_state};
use super::wire::{
    ClientRequest, LAST_CHANGES_MAX, MoveOffer, NodeReply, ProgramPhase, SecondPlace, shortened,
};

mod second;

/// Between two attempts to reach a node again that may have a program.
const RETRY: Duration = Duration::from_millis(300);

/// Between two looks whether a program has closed what cannot move.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Bytes of a state ahead that are few: it is handed over when no more have changed.
pub(super) const FEW_BYTES: u64 = 4 << 20;

/// Bytes of room for what comes before the pages of changes, and for a few pages more than the last time.
const HEAD_ROOM: usize = 256 << 10;

/// How long a target may take to answer a hand-over before what was handed over goes to the disk.
const EARLY: Duration = Duration::from_millis(200);

/// How a program moves. [`ProgramClient::migrate`](crate::ProgramClient::migrate) has an example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MigrateOptions {
    /// How many states are sent ahead at most while it runs: 5 by default. With none, it goes on
    /// there before its pages are there.
    pub rounds: u8,
    /// How long it is waited for: that the target answers, that the program comes to rest, and that it
    /// closes what cannot move, each: 10 s by default.
    pub patience: Duration,
    /// What gets all pages of a program that goes on before they are at its target: if the source is
    /// lost, the target asks there. Another node has to know the source, as a target has to, and where the
    /// target is, which has to know where it is; an object store has to be one of
    /// [`ProgramNodeOptions::places`](crate::ProgramNodeOptions::places) of both. If nothing is said, it
    /// is [`ProgramNodeOptions::second`](crate::ProgramNodeOptions::second) of the source, or the first of its
    /// object stores, if it has any. With rounds, all pages are there before the
    /// program is, and nothing else gets them.
    pub second: Option<SecondPlace>,
}

impl Default for MigrateOptions {
    fn default() -> Self {
        Self { rounds: 5, patience: Duration::from_secs(10), second: None }
    }
}

/// Begins to move a program.
pub(super) fn begin(
    node: &ProgramNode,
    program: &Arc<NodeProgram>,
    to: PublicKey,
    mut options: MigrateOptions,
) -> Result<Arc<MoveControl>, String> {
    options.patience = options.patience.min(PATIENCE_MAX);
    match &options.second {
        // Before anything is sent: it would be known too late that nothing can be kept there.
        Some(SecondPlace::Objects(url)) => drop(node.options().place(url)?),
        Some(_) => {}
        None => {
            let ProgramNodeOptions { second, places, .. } = node.options();
            let other = second.filter(|second| *second != to).map(SecondPlace::Node);
            let place = places.first().map(|place| SecondPlace::Objects(place.url.clone()));
            options.second = other.or(place);
        }
    }
    let control = MoveControl::new()?;
    let migration = MigrationId(random()?);
    let (epoch, has_sockets) = program.travels();
    let (source, outputs) =
        MigrationSource::offer(migration, epoch, &program.name, options.patience, now());
    let moving = MovingProgram {
        node: node.clone(),
        program: Arc::clone(program),
        to,
        options,
        migration,
        has_sockets,
        control: Arc::clone(&control),
        source,
        link: None,
        sending: None,
        granted: Vec::new(),
        image: None,
        unsaved: None,
        said: None,
        is_named: false,
        noted: None,
        needs: None,
        rests_since: None,
        spent: None,
        report: MigrateReport::default(),
    };
    program.begin_move(to)?;
    // It may be over as soon as it begins.
    node.note_move(program.id, &control);
    let thread = thread::Builder::new().name("pagefork-move".to_owned());
    let started = thread.spawn(move || moving.run(outputs));
    if let Err(error) = started {
        node.forget_move(program.id, &control);
        program.end_move();
        return Err(format!("cannot start a thread: {error}"));
    }
    Ok(control)
}

/// Goes on with what a process has left behind: it has handed the program over.
pub(super) fn go_on(
    node: &ProgramNode,
    program: &Arc<NodeProgram>,
    record: LeavingRecord,
    knows: KnownRecords,
) -> Result<(), String> {
    let control = MoveControl::new()?;
    let migration = record.source.migration;
    let image = match record.source.state {
        SourceState::HandedOver { image, .. } => Some(image),
        // Its name is there until it is known whose the program is.
        _ => named_image(node, migration)?,
    };
    let (source, outputs) = MigrationSource::restore(record.source.clone(), knows);
    // It may have been noted alone.
    let is_handed_over = matches!(source.state(), SourceState::HandedOver { .. });
    let noted = is_handed_over.then(|| record.clone());
    for output in outputs {
        if let SourceOutput::Record(source) = output {
            let record = LeavingRecord { source, ..record.clone() };
            node.records().keep_leaving(&record).map_err(cannot_keep)?;
        }
    }
    let moving = MovingProgram {
        node: node.clone(),
        program: Arc::clone(program),
        to: PublicKey::from_bytes(record.to),
        options: MigrateOptions::default(),
        migration,
        has_sockets: false,
        control: Arc::clone(&control),
        source,
        link: None,
        sending: None,
        // By its name.
        granted: image.into_iter().collect(),
        image,
        unsaved: None,
        said: None,
        // Its process has seen to that, if it could.
        is_named: true,
        noted,
        needs: None,
        rests_since: None,
        spent: None,
        report: MigrateReport::default(),
    };
    node.note_move(program.id, &control);
    let thread = thread::Builder::new().name("pagefork-move".to_owned());
    let started = thread.spawn(move || moving.settle());
    started.map(drop).map_err(|error| format!("cannot start a thread: {error}"))
}

/// What was handed over, if that has its name.
///
/// # Errors
/// If that cannot be read.
pub(super) fn named_image(
    node: &ProgramNode,
    migration: MigrationId,
) -> Result<Option<ContentHash>, String> {
    let ProgramNodeOptions { images, key, .. } = node.options();
    let names = images.names().map_err(|error| error.to_string())?;
    Ok(names.get(&kept::moving_name(&key.public(), migration)).copied())
}

/// Bytes of what a snapshot was saved as: of pages, and of what lies among them.
fn saved_size(snapshot: &Snapshot<NodeGuest>) -> u64 {
    snapshot.stored_image().map_or(0, |stored| stored.chain().tip().manifest().data_size)
}

/// Room for so many bytes of changes and what is among them, whose pages are there: else each of them is
/// made when it is first written, while the program rests.
pub(super) fn touched(size: usize) -> Vec<u8> {
    // Zeros would be asked for and not written.
    vec![1; size + HEAD_ROOM]
}

/// A program that moves, as its thread has it.
struct MovingProgram {
    node: ProgramNode,
    program: Arc<NodeProgram>,
    to: PublicKey,
    options: MigrateOptions,
    migration: MigrationId,
    has_sockets: bool,
    control: Arc<MoveControl>,
    source: MigrationSource,
    link: Option<NodeLink>,
    /// Has the connection, until what is handed over is on its way.
    sending: Option<ChangesSending>,
    /// What the target may fetch of it.
    granted: Vec<ContentHash>,
    /// What was handed over.
    image: Option<ContentHash>,
    /// Its bytes, as long as nothing but this process has them, and perhaps the target.
    unsaved: Option<Arc<Vec<u8>>>,
    /// Why what is to be on the disk is not there, as it was said last.
    said: Option<String>,
    /// What was handed over has a name in the store.
    is_named: bool,
    /// A record that need not be on the disk yet.
    noted: Option<LeavingRecord>,
    /// What the program needs of the target.
    needs: Option<ProgramNeeds>,
    /// When the program was suspended for good.
    rests_since: Option<Instant>,
    /// What was handed over, which nobody needs any more.
    spent: Option<SpentSnapshots>,
    report: MigrateReport,
}

/// What a target's answer has come to.
#[derive(Clone, PartialEq, Eq, Debug)]
enum MoveEvent {
    Accepted,
    AheadHere(ContentHash),
    GoesOn(String),
    Taken,
    Declined(String),
}

impl Drop for MovingProgram {
    /// Who waits for it waits no longer, also if it panics.
    fn drop(&mut self) {
        self.control.end_without("the node has failed");
    }
}

impl MovingProgram {
    fn run(mut self, outputs: Vec<SourceOutput>) {
        match self.until_handed_over(outputs) {
            Ok(()) => self.settle(),
            Err(why) => {
                // It was not handed over, so it goes on; who hears of that is of no weight.
                let outputs = self.source.handle(SourceInput::Withdraw, now());
                let _ = self.carry_out(outputs);
                self.take_link_back();
                let _ = self.node.records().forget_leaving(self.migration);
                // From when it goes on, it may move again.
                self.revoke_but(None);
                self.node.forget_move(self.program.id, &self.control);
                self.resume();
                if let Some(link) = &mut self.link {
                    let _ = link.duplex.end();
                }
                self.remove_name();
                self.control.end(Err(why));
            }
        }
    }

    /// # Errors
    /// Why the program goes on here.
    fn until_handed_over(&mut self, outputs: Vec<SourceOutput>) -> Result<(), String> {
        self.needs = Some(ProgramNeeds::of(&self.program, self.options.patience)?);
        let mut events = self.carry_out_connected(outputs)?;
        while !events.contains(&MoveEvent::Accepted) {
            events = self.next_events(self.options.patience)?;
        }
        let parent = self.send_ahead()?;
        let size = parent.as_ref().map_or(0, saved_size).min(FEW_BYTES) as usize;
        let room = touched(size);
        let captured_room = parent.is_some().then(|| touched(size));
        let sending = match (&parent, self.link.take()) {
            (Some(_), Some(link)) => Some(ChangesSending::begin(link)?),
            (_, link) => {
                self.link = link;
                None
            }
        };
        match self.capture(captured_room) {
            Ok((captured, record)) => {
                let handed = self.hand_over(&captured, &record, parent.as_ref().zip(sending), room);
                self.spent = Some(SpentSnapshots::new(captured, parent));
                handed
            }
            Err(why) => {
                self.link = self.link.take().or(sending.and_then(ChangesSending::end));
                Err(why)
            }
        }
    }

    /// Sends states of the program ahead while it runs. Returns the last one.
    fn send_ahead(&mut self) -> Result<Option<Snapshot<NodeGuest>>, String> {
        let mut parent: Option<Snapshot<NodeGuest>> = None;
        let options = self.node.options().clone();
        for round in 0..self.options.rounds {
            let snapshot = self.program.at_rest(self.options.patience, |ready| {
                (AfterRest::GoesOn, ready.store.snapshot())
            })?;
            let failed = |error: pagefork::Error| format!("{error:#}");
            let snapshot = snapshot.map_err(failed)?;
            let mut save = SaveOptions::new().sign_with(std::slice::from_ref(&options.image_key));
            if let Some(parent) = &parent {
                save = save.delta_of(parent);
            }
            let image = snapshot.save(&options.images, save).map_err(failed)?;
            self.grant(image);
            if let (Some(link), Some(stored), Some(_)) =
                (&mut self.link, snapshot.stored_image(), &parent)
            {
                send_state(link, stored)?;
            }
            let input = SourceInput::Ahead { image, token: Vec::new() };
            let outputs = self.source.handle(input, now());
            let mut events = self.carry_out(outputs)?;
            // How long pages take is not known: what is silent is left.
            while !events.contains(&MoveEvent::AheadHere(image)) {
                events = self.next_events(Duration::MAX)?;
            }
            let size = saved_size(&snapshot);
            self.report.rounds += 1;
            self.report.ahead += size;
            let has_parent = parent.replace(snapshot).is_some();
            if has_parent && size <= FEW_BYTES && round > 0 {
                break;
            }
        }
        Ok(parent)
    }

    /// Has the program rest, and captures it: what has changed, into that room, if the rest of it is ahead.
    fn capture(
        &mut self,
        room: Option<Vec<u8>>,
    ) -> Result<(CapturedProgram, MovingRecord), String> {
        let until = Instant::now() + self.options.patience;
        let room = Arc::new(Mutex::new(room));
        loop {
            let (node, program) = (self.node.clone(), Arc::clone(&self.program));
            let (epoch, has_sockets) = (self.source.epoch(), self.has_sockets);
            let room = Arc::clone(&room);
            let job = move |ready: &mut ReadyProgram| {
                let began = Instant::now();
                let mut room = room.lock().unwrap_or_else(PoisonError::into_inner);
                match node.host().capture(ready, room.as_mut()) {
                    Ok(captured) => {
                        // What was made before it rests is what it goes into: memory that is new costs a fault a page.
                        debug_assert!(
                            room.as_ref().is_none_or(Vec::is_empty),
                            "it was copied elsewhere"
                        );
                        let streams = program.streams.freeze();
                        let (id, name) = (program.id, program.name.clone());
                        let record =
                            MovingRecord { program: id, name, epoch, streams, has_sockets };
                        (AfterRest::Rests, Ok((captured, record, began)))
                    }
                    Err(failure) => (AfterRest::GoesOn, Err(failure)),
                }
            };
            match self.program.at_rest(self.options.patience, job)? {
                Ok((captured, record, began)) => {
                    self.rests_since = Some(began);
                    self.report.capturing = began.elapsed();
                    return Ok((captured, record));
                }
                Err(CaptureFailure::Failed(why)) => return Err(why),
                Err(CaptureFailure::Open(why)) if Instant::now() >= until => {
                    return Err(format!(
                        "it was waited for {} s: {why}",
                        self.options.patience.as_secs()
                    ));
                }
                Err(CaptureFailure::Open(_)) => thread::sleep(LOOK_AGAIN),
            }
        }
    }

    fn hand_over(
        &mut self,
        captured: &CapturedProgram,
        record: &MovingRecord,
        ahead: Option<(&Snapshot<NodeGuest>, ChangesSending)>,
        room: Vec<u8>,
    ) -> Result<(), String> {
        let options = self.node.options().clone();
        let (images, signer) = (&options.images, &options.image_key);
        // No disk is waited for while it rests, if its changes go along with the hand-over.
        let image = match ahead {
            None => captured.save(record, images, signer)?,
            Some((parent, mut sending)) => {
                // They are on their way while the next ones are hashed.
                let mut show = |place, part: &[u8]| sending.show(place, part);
                let saved = captured.save_changes(record, parent, images, signer, room, &mut show);
                self.sending = Some(sending);
                let (image, bytes) = saved?;
                self.unsaved = Some(bytes);
                image
            }
        };
        self.image = Some(image);
        if self.unsaved.as_ref().is_none_or(|bytes| bytes.len() > LAST_CHANGES_MAX) {
            self.save_handed_over()?;
        }
        self.report.changes = captured.size();
        self.report.saving = self.rest() - self.report.pause();
        self.grant(image);
        // A target that is gone by now is no reason to wait for an operator.
        let is_lost = match &self.sending {
            Some(sending) => sending.is_lost(),
            None => self.link.as_ref().is_none_or(|link| link.duplex.is_lost()),
        };
        if is_lost {
            return Err("the connection with the target is lost".to_owned());
        }
        self.program.hand_over(self.to)?;
        let outputs = self.source.handle(SourceInput::HandOver { image, token: Vec::new() }, now());
        let kept = self.carry_out(outputs);
        // Also if a record could not be kept: then nothing was sent.
        self.take_link_back();
        kept?;
        if !matches!(self.source.state(), SourceState::HandedOver { .. }) {
            return Err("it was withdrawn".to_owned());
        }
        self.report.sending = self.rest() - self.report.pause();
        // From now on only an operator's word makes it go on here, whatever fails.
        Ok(())
    }

    /// Waits until all that is to go before the hand-over is on its way. The connection is lost if that has failed.
    fn take_link_back(&mut self) {
        if let Some(sending) = self.sending.take() {
            self.link = sending.end();
        }
    }

    /// Puts what is handed over into the store, where it outlives this process.
    fn save_handed_over(&mut self) -> Result<(), String> {
        let images = &self.node.options().images;
        let failed = |error: ImageError| error.to_string();
        // It is held until it has a name.
        let held = self.unsaved.clone().map(|bytes| images.adopt(bytes)).transpose();
        let _held = held.map_err(failed)?;
        let Some(image) = self.image else { return Ok(()) };
        // Collection spares it as long as it has a name.
        images.set_name(&self.image_name(), image).map_err(failed)?;
        (self.unsaved, self.is_named) = (None, true);
        Ok(())
    }

    /// Has the target fetch an image.
    fn grant(&mut self, image: ContentHash) {
        self.node.grant(self.to, self.program.id, image);
        self.granted.push(image);
    }

    /// The target fetches no other image by this move. The program may have come back and move there again.
    fn revoke_but(&mut self, kept: Option<ContentHash>) {
        for image in self.granted.extract_if(.., |image| Some(*image) != kept) {
            self.node.revoke_image(&self.to, self.program.id, image);
        }
    }

    /// Nobody needs what was to be handed over.
    fn remove_name(&mut self) {
        if std::mem::take(&mut self.is_named)
            && let Err(error) = self.node.options().images.remove_name(&self.image_name())
        {
            (self.node.options().say)(&format!("program {}: {error}", self.program.name));
        }
    }

    /// What has become of the program is on the disk: its target need not remember it for this node.
    fn say_known(&mut self, is_recorded: bool) {
        if let Some(link) = self.link.as_mut().filter(|_| is_recorded) {
            link.push(&ClientRequest::Known(self.migration));
            let _ = link.turn_out();
        }
    }

    /// Brings to the disk what was only noted. A program that rests does not wait for it. Returns whether all of it is
    /// there; what is not is tried again.
    fn settle_notes(&mut self) -> bool {
        let saved = match self.unsaved {
            Some(_) => self.save_handed_over(),
            None => Ok(()),
        };
        let kept = match &self.noted {
            Some(noted) => self.node.records().keep_leaving(noted).map_err(cannot_keep),
            None => Ok(()),
        };
        if kept.is_ok() {
            self.noted = None;
        }
        let settled = saved.and(kept);
        if let Err(error) = &settled
            && self.said.as_ref() != Some(error)
        {
            (self.node.options().say)(&format!("program {}: {error}", self.program.name));
        }
        self.said = settled.err();
        self.said.is_none()
    }

    /// How long the program has rested so far.
    fn rest(&self) -> Duration {
        self.rests_since.map(|since| since.elapsed()).unwrap_or_default()
    }

    fn image_name(&self) -> String {
        kept::moving_name(&self.node.options().key.public(), self.migration)
    }

    /// Waits until it is known whose the program is.
    fn settle(mut self) {
        let outcome = loop {
            if let Some(word) = self.control.word() {
                match self.reclaim() {
                    Ok(()) => break Err("an operator has said that it goes on where it was".into()),
                    Err(NotAgain::Gone(why)) => break Err(why),
                    Err(NotAgain::NotNow(why)) => self.control.refuse(word, why),
                }
            }
            // Most targets answer at once.
            let is_early = self.link.is_some() && self.rest() < EARLY;
            if !is_early || self.unsaved.is_none() {
                self.settle_notes();
            }
            // What is to be saved stands on them.
            self.spent.take_if(|_| !is_early && self.unsaved.is_none());
            let is_early = is_early && (self.unsaved.is_some() || self.spent.is_some());
            let events = match self.link {
                Some(_) if is_early => match self.next_events(EARLY) {
                    Err(_) if self.link.is_some() => Ok(Vec::new()),
                    events => events,
                },
                Some(_) => self.next_events(Duration::MAX),
                // What is not in the store cannot be asked for.
                None if matches!(self.source.state(), SourceState::HandedOver { .. })
                    && self.unsaved.is_none() =>
                {
                    let outputs = self.source.handle(SourceInput::Connected, now());
                    self.carry_out_connected(outputs)
                }
                None => Ok(Vec::new()),
            };
            match events {
                Ok(events) if events.contains(&MoveEvent::Taken) => {
                    self.report.taking = self.rest().saturating_sub(self.report.pause());
                    debug_assert!(
                        self.spent.is_some() || !is_early,
                        "pages were given back while the program rested"
                    );
                    self.leave();
                    // It has all of it.
                    (self.unsaved, self.spent) = (None, None);
                    let is_recorded = self.settle_notes();
                    // Of one of a process that has ended, no thread says so.
                    let over = self.program.came_by().map(|came_by| self.node.over(came_by));
                    if let Some(Err(error)) = over {
                        (self.node.options().say)(&error);
                    }
                    self.say_known(is_recorded);
                    let (name, to, mut report) = (&self.program.name, self.to, self.report);
                    if self.rests_since.is_some() {
                        let say = &self.node.options().say;
                        say(&format!("program {name} moved to node {to}: {report}"));
                    }
                    break self.keep_at_second().map(|is_kept| {
                        (report.is_kept, report.kept) = (is_kept, self.program.kept());
                        report
                    });
                }
                Ok(events) => {
                    for event in events {
                        if let MoveEvent::Declined(why) = event {
                            let to = *self.to.as_bytes();
                            // All clients of this node are told.
                            let why = shortened(why);
                            let said = format!("the target has declined it: {why:?}");
                            self.program.set_phase(ProgramPhase::Declined { to, why });
                            self.control.end(Err(said));
                            let is_recorded = self.settle_notes();
                            self.say_known(is_recorded);
                            if let Some(mut link) = self.link.take() {
                                let _ = link.duplex.end();
                            }
                        }
                    }
                }
                Err(_) => self.link = None,
            }
            if self.link.is_none() {
                self.pause(RETRY);
            }
        };
        if let Some(link) = &mut self.link {
            let _ = link.duplex.end();
        }
        match (self.source.state(), self.image) {
            // It may have gone on there before its pages were there.
            (SourceState::Taken, Some(image)) if self.is_named => {
                let (name, holder, program) = (self.image_name(), self.to, self.program.id);
                self.revoke_but(Some(image));
                kept::keep(&self.node, KeptImage { name, image, holder, program });
            }
            _ => self.revoke_but(None),
        }
        self.control.end(outcome);
        self.node.forget_move(self.program.id, &self.control);
    }

    /// The program is the target's.
    fn leave(&mut self) {
        let phase = ProgramPhase::Moved { to: *self.to.as_bytes() };
        let leaving = phase.clone();
        // Its thread may be of a process that has ended.
        let left = self.program.at_rest(PATIENCE_MAX, |_| (AfterRest::Leaves(leaving), ()));
        match left {
            // It can come back then.
            Ok(()) => self.program.wait_until_over(self.options.patience),
            Err(_) => self.program.set_phase(phase),
        }
    }

    /// An operator has said that the program goes on here. As long as it cannot, that is said nowhere.
    fn reclaim(&mut self) -> Result<(), NotAgain> {
        let has_thread = !self.program.has_no_thread();
        let again = match has_thread {
            true => Ok(None),
            false => self.node.ready_again(&self.program, self.image).map(Some),
        };
        if let Err(NotAgain::NotNow(why)) = again {
            return Err(NotAgain::NotNow(why));
        }
        // Else the next process would hand it over again.
        let (SourceState::HandedOver { .. } | SourceState::Declined) = self.source.state() else {
            return Err(NotAgain::NotNow("it is known whose it is".to_owned()));
        };
        let (migration, epoch) = (self.migration, self.source.epoch());
        let record = self.record(SourceRecord { migration, epoch, state: SourceState::GoesOn });
        if let Err(error) = self.node.records().keep_leaving(&record) {
            // It may be there all the same, and is not so.
            let state = self.source.state().clone();
            let before = self.record(SourceRecord { migration, epoch, state });
            let records = self.node.records();
            let undone = records.keep_leaving(&before).or_else(|_| records.note_leaving(&before));
            self.noted = undone.is_err().then_some(before);
            return Err(NotAgain::NotNow(cannot_keep(error)));
        }
        let outputs = self.source.handle(SourceInput::OperatorGoesOn, now());
        let _ = self.carry_out(outputs);
        let _ = self.node.records().forget_leaving(self.migration);
        let outcome = again.map(|again| match again {
            None => self.resume(),
            Some(again) => self.node.go_on_with(&self.program, again),
        });
        if let Err(NotAgain::Gone(why)) = &outcome {
            self.program.set_phase(ProgramPhase::Lost(shortened(why.clone())));
        }
        self.remove_name();
        outcome
    }

    fn resume(&self) {
        self.program.end_move();
        self.program.streams.thaw();
        // One that rests goes on at once, unless it has ended.
        if self.rests_since.is_some() {
            let _ = self.program.at_rest(PATIENCE_MAX, |_| (AfterRest::GoesOn, ()));
        }
    }

    /// As [`Self::carry_out`], after it has connected.
    fn carry_out_connected(
        &mut self,
        outputs: Vec<SourceOutput>,
    ) -> Result<Vec<MoveEvent>, String> {
        let options = self.node.options();
        let peer = options.peers.with_key(&self.to).ok_or_else(|| {
            format!("where node {} is is not known to the node that has the program", self.to)
        })?;
        let link = NodeLink::connect(&peer, &options.key, &options.start.times.node);
        self.link = Some(link.map_err(|error| error.to_string())?);
        self.carry_out(outputs)
    }

    fn record(&self, source: SourceRecord) -> LeavingRecord {
        let (program, name) = (self.program.id, self.program.name.clone());
        LeavingRecord { source, program, name, to: *self.to.as_bytes(), is_over: false }
    }

    /// Does what the state machine says.
    ///
    /// # Errors
    /// If a record cannot be kept: nothing that follows from it is done then.
    fn carry_out(&mut self, outputs: Vec<SourceOutput>) -> Result<Vec<MoveEvent>, String> {
        let mut events = Vec::new();
        for output in outputs {
            match output {
                SourceOutput::Record(source) => {
                    let record = self.record(source);
                    match self.node.records().keep_leaving(&record).map_err(cannot_keep) {
                        // As long as that is nowhere recorded, the target is asked again by the next process.
                        Err(error) if record.source.state == SourceState::Declined => {
                            (self.node.options().say)(&error);
                            self.noted = Some(record);
                        }
                        kept => {
                            kept?;
                            self.noted = None;
                        }
                    }
                }
                SourceOutput::Note(source) => {
                    let record = self.record(source);
                    let noted = self.node.records().note_leaving(&record).map_err(cannot_keep);
                    match noted {
                        // It is the target's all the same: as long as that is nowhere recorded, the target is asked
                        // again by the next process.
                        Err(error) if record.source.state == SourceState::Taken => {
                            (self.node.options().say)(&error);
                        }
                        noted => noted?,
                    }
                    self.noted = Some(record);
                }
                SourceOutput::Send(message) => {
                    let is_first = matches!(message.step, MigrationStep::Offer { .. });
                    let offer = MoveOffer {
                        program: self.program.id,
                        name: self.program.name.clone(),
                        directories: self.program.directories(),
                        has_sockets: self.has_sockets,
                        signer: *self.node.options().image_key.public().as_bytes(),
                        second: self.second(),
                        needs: self.needs.clone().filter(|_| is_first),
                    };
                    // Until now there was something else to do meanwhile.
                    self.take_link_back();
                    if let Some(link) = &mut self.link {
                        link.push(&ClientRequest::Move { offer, message });
                        // What is sent late is sent again.
                        let _ = link.turn_out();
                    }
                }
                SourceOutput::Accepted => events.push(MoveEvent::Accepted),
                SourceOutput::AheadHere(image) => events.push(MoveEvent::AheadHere(image)),
                SourceOutput::GoesOn { why } => events.push(MoveEvent::GoesOn(why)),
                SourceOutput::Taken => events.push(MoveEvent::Taken),
                SourceOutput::Declined { why } => events.push(MoveEvent::Declined(why)),
            }
        }
        Ok(events)
    }

    /// Waits for the next answer of the target.
    ///
    /// # Errors
    /// If the connection is lost, the program goes on here, or nothing came for so long.
    fn next_events(&mut self, patience: Duration) -> Result<Vec<MoveEvent>, String> {
        let until = Instant::now().checked_add(patience);
        loop {
            let Some(link) = &mut self.link else {
                return Err("the connection with the target is lost".to_owned());
            };
            let reply = match link.turn() {
                Ok(reply) => reply,
                Err(error) => {
                    let why = link.talk()(error).to_string();
                    self.link = None;
                    return Err(why);
                }
            };
            match reply {
                Some(NodeReply::Steps(steps)) => {
                    let mut events = Vec::new();
                    for step in steps {
                        let outputs = self.source.handle(SourceInput::Received(step), now());
                        events.extend(self.carry_out(outputs)?);
                    }
                    for event in &events {
                        if let MoveEvent::GoesOn(why) = event {
                            return Err(why.clone());
                        }
                    }
                    return Ok(events);
                }
                Some(NodeReply::Refused(why)) => {
                    self.link = None;
                    return Err(format!("the target refuses: {why}"));
                }
                Some(_) => {
                    self.link = None;
                    return Err(
                        "the target says something else than what follows from a step".into()
                    );
                }
                None => {
                    if self.program.is_over() {
                        return Err("it has ended".to_owned());
                    }
                    if until.is_some_and(|until| until <= Instant::now()) {
                        return Err("the target has not answered in time".to_owned());
                    }
                    let due = link.due();
                    let until = until.map_or(due, |until| until.min(due));
                    let waited = link.duplex.wait(&[self.control.signal.as_fd()], Some(until));
                    waited.map_err(|error| format!("cannot wait: {error}"))?;
                    let is_asked = rustix::io::read(&self.control.signal, &mut [0; 8]).is_ok();
                    if is_asked && self.control.word().is_some() {
                        return Ok(Vec::new());
                    }
                }
            }
        }
    }

    fn pause(&self, time: Duration) {
        let mut signals = [PollFd::from_borrowed_fd(self.control.signal.as_fd(), PollFlags::IN)];
        let _ = wait_for(&mut signals, Some(Instant::now() + time));
        let _ = rustix::io::read(&self.control.signal, &mut [0; 8]);
    }
}
