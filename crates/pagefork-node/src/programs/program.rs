//! One program: the thread that runs it, and what others ask of it.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pagefork::{CallProgress, Error, Func, InterruptHandle, Store, Trap, TrapCode};
use pagefork_image::PublicKey;
use pagefork_postcopy::MigrationId;
use pagefork_wasi::{Exit, OwnDir, WasiCtx};

use crate::guests::GuestClock;
use crate::start::ComingImage;

use super::streams::ProgramStreams;
use super::wire::{
    ClientId, KeptGroups, ProgramEnd, ProgramId, ProgramInfo, ProgramPhase, shortened,
};

/// Between two requests that a program stop or rest: one that comes while none of its code runs is
/// forgotten.
const NUDGE: Duration = Duration::from_millis(1);

/// Nobody waits longer for a program, whatever was said: a time that far is as good as none, and can be
/// added to any.
pub(super) const PATIENCE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// The data of a program's store.
#[derive(Debug)]
pub(super) struct NodeGuest {
    pub(super) ctx: WasiCtx,
}

/// A program that can run.
pub(super) struct ReadyProgram {
    pub(super) store: Store<NodeGuest>,
    /// What is called; `None` if its guest is suspended.
    pub(super) start: Option<Func>,
    /// Directories of its session, by the names that it knows them by.
    pub(super) sessions: Vec<String>,
    /// What gives its pages, until it has ended and all is saved that was captured of it.
    pub(super) pages: HeldPages,
    /// Its files, until it has ended.
    #[expect(dead_code, reason = "they are kept")]
    pub(super) files: Option<OwnDir>,
}

impl ReadyProgram {
    /// Calls it, or has its guest go on that is suspended.
    fn go_on(&mut self, start: Option<Func>) -> pagefork::Result<CallProgress> {
        let store = &mut self.store;
        let run = || match start {
            Some(start) => start.call_suspendable(store, &[]),
            None => store.resume(),
        };
        match &self.pages.guests {
            Some(guests) => guests.run(run),
            None => run(),
        }
    }
}

/// Is told what people may want to know.
pub(super) type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// What pages depend on that are not in this process yet.
#[derive(Clone, Default)]
pub(super) struct HeldPages {
    held: Vec<Arc<dyn Any + Send + Sync>>,
    /// Counts what programs of its image take, if its pages come while they run.
    guests: Option<GuestClock>,
}

impl HeldPages {
    /// Those of an image that come.
    pub(super) fn coming(coming: Arc<ComingImage>) -> Self {
        let guests = Some(coming.guests().clone());
        let mut pages = Self { guests, ..Self::default() };
        pages.push(coming);
        pages
    }

    pub(super) fn push(&mut self, held: impl Any + Send + Sync) {
        self.held.push(Arc::new(held));
    }
}

impl fmt::Debug for HeldPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldPages").field("count", &self.held.len()).finish()
    }
}

impl fmt::Debug for ReadyProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadyProgram").finish_non_exhaustive()
    }
}

/// What is done with a program while it rests.
pub(super) type RestJob = Box<dyn FnOnce(&mut ReadyProgram) -> AfterRest + Send>;

/// What a program does after it has rested.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum AfterRest {
    /// It runs on.
    GoesOn,
    /// It rests until the next job.
    Rests,
    /// It rests on if it did, and runs on if it did: the job decides nothing.
    AsBefore,
    /// It does not run here any more.
    Leaves(ProgramPhase),
}

/// A program of this node.
#[derive(Debug)]
pub(super) struct NodeProgram {
    pub(super) id: ProgramId,
    pub(super) name: String,
    /// Who has started it.
    pub(super) owner: PublicKey,
    pub(super) streams: Arc<ProgramStreams>,
    life: Mutex<ProgramLife>,
    changed: Condvar,
    /// How far the second place of its pages is.
    kept: Mutex<Option<KeptGroups>>,
}

struct ProgramLife {
    phase: ProgramPhase,
    /// Whether its thread is there no more, and all that it had is given back.
    is_over: bool,
    handle: Option<InterruptHandle>,
    /// Why it is to stop.
    stop: Option<String>,
    jobs: VecDeque<RestJob>,
    client: Option<ClientId>,
    /// How many clients have been attached so far: the last one is.
    attachments: u64,
    /// How often it was handed over.
    epoch: u64,
    has_sockets: bool,
    /// Those of the node's directories that it has.
    directories: Vec<String>,
    /// The hand-over by which it came here.
    came_by: Option<MigrationId>,
}

impl fmt::Debug for ProgramLife {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramLife").field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl NodeProgram {
    pub(super) fn new(
        id: ProgramId,
        name: String,
        owner: PublicKey,
        streams: Arc<ProgramStreams>,
        phase: ProgramPhase,
    ) -> Arc<Self> {
        let life = ProgramLife {
            is_over: phase != ProgramPhase::Running,
            phase,
            handle: None,
            stop: None,
            jobs: VecDeque::new(),
            client: None,
            attachments: 0,
            epoch: 0,
            has_sockets: false,
            directories: Vec::new(),
            came_by: None,
        };
        let (changed, kept) = (Condvar::new(), Mutex::default());
        Arc::new(Self { id, name, owner, streams, life: Mutex::new(life), changed, kept })
    }

    fn life(&self) -> MutexGuard<'_, ProgramLife> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn info(&self) -> ProgramInfo {
        let life = self.life();
        let (name, phase) = (self.name.clone(), life.phase.clone());
        let (is_attached, kept) = (life.client.is_some(), self.kept());
        ProgramInfo { id: self.id, name, phase, is_attached, kept }
    }

    /// How far the second place of its pages is, if it has one.
    pub(super) fn kept(&self) -> Option<KeptGroups> {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A second place is to have so many groups.
    pub(super) fn begin_kept(&self, groups: u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = Some(KeptGroups { sent: 0, groups });
    }

    /// It was sent so many of them, or more than that by now.
    pub(super) fn set_kept(&self, sent: u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = &mut *kept {
            kept.sent = kept.sent.max(sent.min(kept.groups));
        }
    }

    pub(super) fn phase(&self) -> ProgramPhase {
        self.life().phase.clone()
    }

    pub(super) fn set_phase(&self, phase: ProgramPhase) {
        self.life().phase = phase;
        self.streams.tell_client();
    }

    /// Whether it does not run, and never will again here.
    pub(super) fn is_over(&self) -> bool {
        let life = self.life();
        let ProgramLife { is_over, phase, .. } = &*life;
        *is_over
            && matches!(
                phase,
                ProgramPhase::Ended(_) | ProgramPhase::Moved { .. } | ProgramPhase::Lost(_)
            )
    }

    /// Whether nothing of it is in this process.
    pub(super) fn has_no_thread(&self) -> bool {
        self.life().is_over
    }

    /// Waits until nothing of it is in this process any more.
    pub(super) fn wait_until_over(&self, patience: Duration) {
        let life = self.life();
        let is_here = |life: &mut ProgramLife| !life.is_over;
        drop(self.changed.wait_timeout_while(life, patience, is_here));
    }

    /// How often it was handed over, and whether it has sockets.
    pub(super) fn travels(&self) -> (u64, bool) {
        let life = self.life();
        (life.epoch, life.has_sockets)
    }

    pub(super) fn set_travels(&self, epoch: u64, has_sockets: bool) {
        let mut life = self.life();
        (life.epoch, life.has_sockets) = (epoch, has_sockets);
    }

    /// The hand-over by which it came here, if it did.
    pub(super) fn came_by(&self) -> Option<MigrationId> {
        self.life().came_by
    }

    pub(super) fn set_came_by(&self, migration: MigrationId) {
        self.life().came_by = Some(migration);
    }

    /// The directories of the node that it has.
    pub(super) fn directories(&self) -> Vec<String> {
        self.life().directories.clone()
    }

    /// It is on its way.
    ///
    /// # Errors
    /// If it does not run, or is on its way already.
    pub(super) fn begin_move(&self, to: PublicKey) -> Result<(), String> {
        let mut life = self.life();
        match &life.phase {
            ProgramPhase::Running if life.stop.is_none() => {
                life.phase = ProgramPhase::Moving { to: *to.as_bytes() };
                drop(life);
                self.streams.tell_client();
                Ok(())
            }
            ProgramPhase::Ended(_) => Err("it has ended".to_owned()),
            _ => Err("it does not run here, or is on its way already".to_owned()),
        }
    }

    /// It rests, and is to be its target's.
    ///
    /// # Errors
    /// If it has ended meanwhile, or was told to: it is handed over to nobody then.
    pub(super) fn hand_over(&self, to: PublicKey) -> Result<(), String> {
        let mut life = self.life();
        if life.is_over || life.stop.is_some() {
            return Err("it has ended".to_owned());
        }
        life.phase = ProgramPhase::HandedOver { to: *to.as_bytes() };
        drop(life);
        self.streams.tell_client();
        Ok(())
    }

    /// It stays.
    pub(super) fn end_move(&self) {
        let mut life = self.life();
        if !life.is_over {
            life.phase = ProgramPhase::Running;
        }
        drop(life);
        self.streams.tell_client();
    }

    /// Makes a thread of its own for it. If its pages come while it runs, `say` is told after the end what programs of its
    /// image have taken; `is_over` is called before that, when others can see it.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn park(
        self: &Arc<Self>,
        mut ready: ReadyProgram,
        say: Say,
        is_over: impl FnOnce(&ProgramPhase) + Send + 'static,
    ) -> Result<ParkedProgram, String> {
        let handle = ready.store.interrupt_handle().map_err(|error| format!("{error:#}"))?;
        let shared = ready.store.data().ctx.preopens().map(|(_, guest, _)| guest.to_owned());
        let shared: Vec<String> = shared.filter(|guest| !ready.sessions.contains(guest)).collect();
        {
            let mut life = self.life();
            (life.handle, life.directories) = (Some(handle), shared);
        }
        let program = Arc::clone(self);
        let (may_run, runs) = mpsc::channel();
        let thread = thread::Builder::new().name("pagefork-program".to_owned());
        let started = thread.spawn(move || {
            if runs.recv().is_err() {
                return;
            }
            let phase = program.live(&mut ready);
            let guests = ready.pages.guests.clone();
            // What it holds, its files among it, is gone when others see that it has ended.
            drop(ready);
            program.end(phase.clone());
            // Who is told may let this wait.
            is_over(&phase);
            if let Some(guests) = guests {
                say(&format!("program {}: of its image {}", program.name, guests.times()));
            }
        });
        let thread = started.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(ParkedProgram { may_run: Some(may_run), thread: Some(thread) })
    }

    fn end(&self, phase: ProgramPhase) {
        let mut life = self.life();
        life.phase = phase;
        life.is_over = true;
        life.handle = None;
        // Who waits for one learns that it never begins.
        life.jobs.clear();
        drop(life);
        self.changed.notify_all();
        self.streams.tell_client();
    }

    /// Runs it until it has ended or leaves.
    fn live(&self, ready: &mut ReadyProgram) -> ProgramPhase {
        let mut progress = match ready.start.take() {
            // What asks it to stop before it runs is not forgotten.
            _ if self.life().stop.is_some() => Ok(CallProgress::Suspended),
            start => ready.go_on(start),
        };
        loop {
            match progress {
                Ok(CallProgress::Finished(_)) => return ended(ProgramEnd::Exited(0)),
                Err(error) => return ended(self.failure(&error)),
                Ok(CallProgress::Suspended) => {}
            }
            match self.rest(ready) {
                Some(phase) => return phase,
                None => progress = ready.go_on(None),
            }
        }
    }

    /// Does what there is to do while it rests. Returns what has become of it if it does not go on.
    fn rest(&self, ready: &mut ReadyProgram) -> Option<ProgramPhase> {
        let mut stays = false;
        loop {
            let mut life = self.life();
            let job = loop {
                if let Some(why) = &life.stop {
                    return Some(ended(ProgramEnd::Stopped(why.clone())));
                }
                match life.jobs.pop_front() {
                    Some(job) => break Some(job),
                    None if !stays => break None,
                    None => life = self.changed.wait(life).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(life);
            match job?(ready) {
                AfterRest::GoesOn => stays = false,
                AfterRest::AsBefore => {}
                AfterRest::Rests => stays = true,
                AfterRest::Leaves(phase) => return Some(phase),
            }
        }
    }

    fn failure(&self, error: &Error) -> ProgramEnd {
        if let Some(exit) = error.downcast_ref::<Exit>() {
            return ProgramEnd::Exited(exit.0);
        }
        let is_interrupt =
            error.downcast_ref::<Trap>().is_some_and(|trap| trap.code() == TrapCode::Interrupt);
        match &self.life().stop {
            Some(why) => ProgramEnd::Stopped(why.clone()),
            None if is_interrupt => ProgramEnd::Stopped("it has run as long as it may".to_owned()),
            None => ProgramEnd::Failed(shortened(format!("{error:?}"))),
        }
    }

    /// Has it stop, and waits until it has, for `patience` at most. Returns whether it has.
    pub(super) fn stop(&self, why: &str, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut life = self.life();
        let is_here = matches!(life.phase, ProgramPhase::Running | ProgramPhase::Moving { .. });
        if is_here {
            life.stop.get_or_insert_with(|| shortened(why.to_owned()));
        }
        self.changed.notify_all();
        while is_here && !life.is_over && Instant::now() < until {
            if let Some(handle) = &life.handle {
                handle.interrupt();
            }
            let waited = self.changed.wait_timeout(life, NUDGE);
            life = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        life.is_over
    }

    /// Has it rest, and `job` done then, on its thread. Returns what that comes to.
    ///
    /// # Errors
    /// If it has ended before, or did not rest in time: the job is not done then.
    pub(super) fn at_rest<R: Send + 'static>(
        &self,
        patience: Duration,
        job: impl FnOnce(&mut ReadyProgram) -> (AfterRest, R) + Send + 'static,
    ) -> Result<R, String> {
        let until = Instant::now() + patience;
        let (sender, receiver) = std::sync::mpsc::channel();
        let is_wanted = Arc::new(Mutex::new(true));
        let wanted = Arc::clone(&is_wanted);
        let job: RestJob = Box::new(move |ready| {
            // It begins, or who waits for it gives up: one of the two.
            if !std::mem::take(&mut *wanted.lock().unwrap_or_else(PoisonError::into_inner)) {
                // Who gave it up knows nothing of what has become of the program since.
                return AfterRest::AsBefore;
            }
            let (after, result) = job(ready);
            let _ = sender.send(result);
            after
        });
        {
            let mut life = self.life();
            if life.is_over {
                return Err("it has ended".to_owned());
            }
            life.jobs.push_back(job);
        }
        self.changed.notify_all();
        loop {
            if let Some(handle) = &self.life().handle {
                handle.suspend();
            }
            match receiver.recv_timeout(NUDGE) {
                Ok(result) => return Ok(result),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    return Err("it has ended".to_owned());
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    let mut wanted = is_wanted.lock().unwrap_or_else(PoisonError::into_inner);
                    if !std::mem::take(&mut *wanted) {
                        // It has begun, and ends.
                        drop(wanted);
                        return receiver.recv().map_err(|_| "it has ended".to_owned());
                    }
                    return Err(format!(
                        "it did not come to rest within {} s: it is inside a call of the host, or \
                         waits for pages",
                        patience.as_secs()
                    ));
                }
            }
        }
    }

    /// Gives the streams to a client, and tells it by `signal` of what happens. Returns the number
    /// by which it is known.
    ///
    /// # Errors
    /// If another client has them.
    pub(super) fn attach(&self, client: ClientId, signal: Arc<OwnedFd>) -> Result<u64, String> {
        let mut life = self.life();
        if life.client.is_some_and(|other| other != client) {
            return Err("another client has its streams".to_owned());
        }
        life.client = Some(client);
        life.attachments += 1;
        let number = life.attachments;
        drop(life);
        self.streams.set_client(Some(signal));
        Ok(number)
    }

    /// Whether the streams are still those of the client with this number.
    pub(super) fn is_attached(&self, number: u64) -> bool {
        let life = self.life();
        life.client.is_some() && life.attachments == number
    }

    /// Its client is to attach anew: the program has another form.
    pub(super) fn part_with_client(&self) {
        self.life().client = None;
        self.streams.set_client(None);
    }

    /// The client with this number is gone.
    pub(super) fn detach(&self, number: u64) {
        let mut life = self.life();
        if life.client.is_some() && life.attachments == number {
            life.client = None;
            self.streams.set_client(None);
        }
    }
}

/// A program whose thread waits until it may run: nothing that can fail is left to do then. Dropped, it never runs, and
/// what it has is given back.
pub(super) struct ParkedProgram {
    may_run: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ParkedProgram {
    /// Has it run.
    pub(super) fn run(mut self) {
        if let Some(may_run) = self.may_run.take() {
            let _ = may_run.send(());
        }
        self.thread = None;
    }
}

impl Drop for ParkedProgram {
    fn drop(&mut self) {
        self.may_run = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ended(end: ProgramEnd) -> ProgramPhase {
    ProgramPhase::Ended(end)
}
