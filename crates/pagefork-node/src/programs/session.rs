//! One client of a node that runs programs, on the node's side.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use pagefork_image::PublicKey;
use pagefork_postcopy::{Lane, MigrationId, MigrationStep};
use rustix::event::{EventfdFlags, eventfd};

use crate::base::{NodeError, NodeTimes};
use crate::duplex::Duplex;
use crate::pace::ClientPace;

use super::arriving::{self, LastChanges};
use super::moving::MigrateOptions;
use super::node::ProgramNode;
use super::program::NodeProgram;
use super::records::ArrivingRecord;
use super::snapshots::CaptureOptions;
use super::streams::WrongPosition;
use super::wire::{
    ClientRequest, Inbox, NodeReply, PART, ProgramEnd, ProgramPhase, ProgramSource, ProgramStart,
    encode, nonsense,
};

/// Bytes of answers that the network has not taken, and of requests that wait for one that is being done: beyond that
/// nothing is read from a client.
const BACKLOG_MAX: usize = 1 << 20;

/// How long a program may take to stop before its client is told that it has not.
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// Answers a client until it has ended the connection.
///
/// # Errors
/// If it is lost, or the client is left.
pub(crate) fn serve(
    mut visit: ClientVisit,
    peer: PublicKey,
    mut duplex: Duplex,
    times: &NodeTimes,
) -> Result<(), NodeError> {
    visit.name(peer);
    let visit = Arc::new(visit);
    duplex.in_bulk();
    let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let signal = signal.map_err(|error| NodeError::io("serve a client")(error.into()))?;
    let now = Instant::now();
    let mut session = ProgramSession {
        node: &visit.node,
        visit: &visit,
        peer,
        duplex: &mut duplex,
        inbox: Inbox::default(),
        signal: Arc::new(signal),
        idle: times.idle,
        heard: now,
        spoke: now,
        backlog: 0,
        attached: None,
        coming: None,
        last_changes: LastChanges::default(),
        pace: ClientPace::default(),
        busy: None,
        carries: BTreeSet::new(),
        is_over: false,
    };
    let served = session.talk();
    let busy = session.busy.take();
    // What it had is free before it hears why.
    drop(session);
    // What it still sends is not for us.
    let served = served.and_then(|()| duplex.end_and_drain(Instant::now() + times.idle));
    // What is done for it goes on, and nobody else has its place meanwhile: else who comes again and again would have as
    // much done at once as it likes.
    let _ = busy.map(|busy| busy.recv());
    served.map_err(NodeError::io(format!("talk to client {peer}")))
}

/// Says why a client is not served, in words that those of every version understand.
///
/// # Errors
/// If the connection is lost.
pub(crate) fn refuse(mut duplex: Duplex, why: &str, times: &NodeTimes) -> io::Result<()> {
    // The first kind of answer in every version.
    duplex.push(Lane::Control, encode(&NodeReply::refused(why)));
    duplex.end_and_drain(Instant::now() + times.idle)
}

/// A connection from when it was accepted until all is done that was asked for over it: as long as that, what it asks for
/// may be what was done before.
#[derive(Debug)]
pub(crate) struct ClientVisit {
    node: ProgramNode,
    number: u64,
    peer: Option<PublicKey>,
}

impl ClientVisit {
    /// Of somebody whose key is not known yet.
    pub(crate) fn begin(node: &ProgramNode) -> Self {
        let number = node.records().remembered().begin();
        Self { node: node.clone(), number, peer: None }
    }

    /// Whether who has this key may have programs run.
    pub(crate) fn lets_in(&self, key: &PublicKey) -> bool {
        self.node.lets_in(key)
    }

    pub(super) fn name(&mut self, peer: PublicKey) {
        self.node.records().remembered().name(self.number, peer);
        self.peer = Some(peer);
    }
}

impl Drop for ClientVisit {
    fn drop(&mut self) {
        if let Err(error) = self.node.records().end_connection(self.number, self.peer) {
            (self.node.options().say)(&arriving::cannot_keep(error));
        }
    }
}

/// A connection with a client.
struct ProgramSession<'a> {
    node: &'a ProgramNode,
    /// What is done for it goes on when it is over.
    visit: &'a Arc<ClientVisit>,
    peer: PublicKey,
    duplex: &'a mut Duplex,
    inbox: Inbox,
    /// Is raised when something has happened to the program that the client has, or an answer is
    /// there.
    signal: Arc<OwnedFd>,
    idle: Duration,
    heard: Instant,
    spoke: Instant,
    /// Bytes that the network has not taken.
    backlog: usize,
    attached: Option<AttachedClient>,
    /// What is to be started, with as much of its module as has come, and its size.
    coming: Option<(ProgramStart, Vec<u8>, u64)>,
    /// What has come of the last changes of a program that moves here.
    last_changes: LastChanges,
    /// How long what it has begun to say takes.
    pace: ClientPace,
    /// What is being done for the client. Nothing else is until it is answered.
    busy: Option<Receiver<NodeReply>>,
    /// Programs whose way here goes over this connection.
    carries: BTreeSet<MigrationId>,
    /// Nothing follows from this side.
    is_over: bool,
}

/// The client has the streams of a program.
struct AttachedClient {
    program: Arc<NodeProgram>,
    number: u64,
    /// Up to where it was sent outputs.
    sent: [u64; 2],
    /// What it was told of input.
    told: (u64, u64),
    /// It has sent input that was not taken, because the program was moving.
    lacks: bool,
    is_told_end: bool,
    /// To where it was told that the program moves.
    told_target: Option<[u8; 32]>,
}

impl Drop for ProgramSession<'_> {
    /// The connection is over, also if what it has sent made a thread panic.
    fn drop(&mut self) {
        if let Some(attached) = &self.attached {
            attached.program.detach(attached.number);
        }
        for migration in &self.carries {
            self.node.arrivals().left(self.node, self.peer, *migration);
        }
    }
}

impl ProgramSession<'_> {
    /// Whether nothing is read from the client.
    fn is_drowned(&self) -> bool {
        let waits = self.busy.is_some() && self.inbox.unread() > BACKLOG_MAX;
        waits || self.backlog > BACKLOG_MAX
    }

    fn talk(&mut self) -> io::Result<()> {
        loop {
            let is_drowned = self.is_drowned();
            let mut is_ended = false;
            if !is_drowned {
                let arrived = self.duplex.receive()?;
                if !arrived.bytes.is_empty() {
                    self.heard = Instant::now();
                    self.inbox.push(&arrived.bytes);
                }
                is_ended = arrived.is_over;
            }
            // What is done for it is done first: its requests have an order.
            self.answer_when_done();
            while self.busy.is_none() && !self.is_over && self.backlog <= BACKLOG_MAX {
                match self.inbox.next()? {
                    Some(request) => {
                        self.pace.message();
                        self.handle(request)?;
                    }
                    None => break,
                }
            }
            if is_ended {
                return Ok(());
            }
            self.go_on_with_program();
            if self.spoke.elapsed() >= self.idle / 3 {
                self.push(&NodeReply::KeepAlive);
            }
            let taken = self.duplex.send()?;
            self.backlog = self.backlog.saturating_sub(taken);
            if self.is_over && self.backlog == 0 {
                return Ok(());
            }
            if self.heard.elapsed() >= self.idle && self.busy.is_none() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // What waits here, because something is being done, is no fault of the client's.
            let is_heard = self.busy.is_none() && !is_drowned && !self.is_over;
            let part = self.inbox.part().filter(|_| is_heard);
            let (idle, now) = (self.idle, Instant::now());
            let due = self.pace.due(part, idle, now).filter(|_| is_heard);
            if due.is_some_and(|due| due <= now) {
                let why = "it says too slowly what it has begun to say";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            let speaks = self.spoke + self.idle / 3;
            let until = match self.busy {
                // It may be silent.
                Some(_) => speaks,
                None => speaks.min(self.heard + self.idle),
            };
            let until = due.map_or(until, |due| until.min(due));
            let until = until.max(Instant::now() + Duration::from_millis(1));
            let signal = [self.signal.as_fd()];
            // What it sends that drowns in answers stays where it is.
            match self.is_drowned() {
                true => self.duplex.wait_to_send(&signal, Some(until))?,
                false => self.duplex.wait(&signal, Some(until))?,
            }
            // Whether it is raised is seen by what it was raised for.
            let _ = rustix::io::read(&*self.signal, &mut [0; 8]);
        }
    }

    fn push(&mut self, reply: &NodeReply) {
        let bytes = encode(reply);
        self.backlog += bytes.len();
        self.duplex.push(Lane::Control, bytes);
        self.spoke = Instant::now();
    }

    fn handle(&mut self, request: ClientRequest) -> io::Result<()> {
        if self.coming.is_some()
            && !matches!(request, ClientRequest::Module(_) | ClientRequest::KeepAlive)
        {
            return Err(nonsense("something in place of a module"));
        }
        match request {
            ClientRequest::KeepAlive => {}
            ClientRequest::Hello => self.push(&NodeReply::Done),
            ClientRequest::List => {
                for program in self.node.programs() {
                    self.push(&NodeReply::Program(program));
                }
                self.push(&NodeReply::Done);
            }
            ClientRequest::Start(start, module_size) => {
                let is_module = matches!(start.source, ProgramSource::Module(_));
                match is_module {
                    false => self.start(start),
                    true if module_size > self.node.options().limits.module_size => {
                        let why = "the module is larger than this node takes";
                        self.push(&NodeReply::refused(why));
                        // What follows is not for us.
                        self.is_over = true;
                    }
                    true if module_size == 0 => {
                        self.push(&NodeReply::refused("the module is empty"));
                    }
                    true => {
                        self.pace.part(0, Instant::now());
                        self.coming = Some((start, Vec::new(), module_size));
                    }
                }
            }
            ClientRequest::Module(bytes) => {
                let Some((mut start, mut module, size)) = self.coming.take() else {
                    return Err(nonsense("a module that is not started"));
                };
                module.extend_from_slice(&bytes);
                self.pace.part(bytes.len() as u64, Instant::now());
                match (module.len() as u64).cmp(&size) {
                    std::cmp::Ordering::Less => self.coming = Some((start, module, size)),
                    std::cmp::Ordering::Equal => {
                        self.pace.all_parts();
                        start.source = ProgramSource::Module(module);
                        self.start(start);
                    }
                    std::cmp::Ordering::Greater => {
                        return Err(nonsense("more of a module than it has"));
                    }
                }
            }
            ClientRequest::Stop { program } => {
                self.work(move |node| match node.stop(&program, STOP_PATIENCE) {
                    Ok(()) => NodeReply::Done,
                    Err(why) => NodeReply::refused(why),
                })
            }
            ClientRequest::Keep { image, program, holder } => {
                let (peer, holder) = (self.peer, PublicKey::from_bytes(holder));
                self.work(move |node| match node.keep_for(peer, program, holder, image) {
                    Ok(()) => NodeReply::Done,
                    Err(why) => NodeReply::refused(why),
                });
            }
            ClientRequest::Migrate { program, to, rounds, patience, second } => {
                self.work(move |node| {
                    let to = PublicKey::from_bytes(to);
                    let options = MigrateOptions { rounds, patience, second };
                    match node.migrate(&program, to, options) {
                        Ok(report) => NodeReply::Migrated(report),
                        Err(why) => NodeReply::refused(why),
                    }
                })
            }
            ClientRequest::Snapshot { program, name, patience, holders } => {
                let options = CaptureOptions { name, patience, holders };
                self.work(move |node| match node.snapshot(&program, &options) {
                    Ok(report) => NodeReply::Captured(report),
                    Err(why) => NodeReply::refused(why),
                });
            }
            ClientRequest::Known(migration) => {
                if let Err(why) = arriving::known(self.node, self.peer, migration) {
                    (self.node.options().say)(&why);
                }
            }
            ClientRequest::Needs(image) => {
                let is_needed = self.node.needs(&image);
                self.push(&NodeReply::Needed(is_needed));
            }
            ClientRequest::Reclaim { program } => {
                self.work(move |node| match node.reclaim(&program) {
                    Ok(()) => NodeReply::Done,
                    Err(why) => NodeReply::refused(why),
                })
            }
            ClientRequest::LastChanges { at, bytes } => self.take_changes(at, &bytes)?,
            ClientRequest::Move { message, .. } if !self.may_carry(message.migration) => {
                let why = "too many programs are on their way here over this connection";
                self.push(&NodeReply::refused(why));
            }
            ClientRequest::Move { offer, message } => {
                self.carries.insert(message.migration);
                self.pace.all_parts();
                let peer = self.peer;
                let changes = std::mem::take(&mut self.last_changes).whole();
                if matches!(message.step, MigrationStep::Ahead { .. }) {
                    // Its program runs.
                    self.last_changes = LastChanges::with_room();
                }
                let is_here = changes.is_some()
                    && matches!(message.step, MigrationStep::HandOver { .. })
                    && self.node.arrivals().is_ready(message.migration);
                let step = move |node: &ProgramNode| {
                    let (steps, after) = arriving::step(node, peer, &offer, message, changes);
                    let reply = match steps {
                        Ok(steps) => NodeReply::Steps(steps),
                        Err(why) => NodeReply::refused(why),
                    };
                    (reply, after)
                };
                match is_here {
                    // Its program rests. No thread is started for the step.
                    true => self.do_now(step)?,
                    false => self.work_and(step),
                }
            }
            ClientRequest::Attach { program, client, outputs } => {
                if self.attached.is_some() {
                    return Err(nonsense("a second program to attach to"));
                }
                let attached = self.node.find(&program).and_then(|program| {
                    let number = program.attach(client, Arc::clone(&self.signal))?;
                    Ok((program, number))
                });
                match attached {
                    Err(why) => self.push(&NodeReply::refused(why)),
                    Ok((program, number)) => self.attach(program, number, outputs)?,
                }
            }
            ClientRequest::Input { at, bytes, ends } => {
                let attached = self.attached()?;
                match attached.program.streams.take_input(at, &bytes, ends) {
                    Ok(is_taken) => attached.lacks |= !is_taken,
                    Err(WrongPosition) => return Err(nonsense("input that does not belong there")),
                }
            }
            ClientRequest::Took { outputs } => {
                let attached = self.attached()?;
                let is_sent = outputs[0] <= attached.sent[0] && outputs[1] <= attached.sent[1];
                if !is_sent || attached.program.streams.forget_output(outputs).is_err() {
                    return Err(nonsense("word of output that it does not have"));
                }
                let (program, is_told) = (Arc::clone(&attached.program), attached.is_told_end);
                if is_told && outputs == attached.sent {
                    self.node.forget(&program);
                }
            }
        }
        Ok(())
    }

    fn may_carry(&self, migration: MigrationId) -> bool {
        let limit = self.node.options().limits.programs;
        self.carries.len() < limit || self.carries.contains(&migration)
    }

    fn attached(&mut self) -> io::Result<&mut AttachedClient> {
        self.attached.as_mut().ok_or_else(|| nonsense("streams of no program"))
    }

    fn attach(
        &mut self,
        program: Arc<NodeProgram>,
        number: u64,
        outputs: Option<[u64; 2]>,
    ) -> io::Result<()> {
        if let Some(has) = outputs
            && program.streams.forget_output(has).is_err()
        {
            program.detach(number);
            return Err(nonsense("word of output that there was never"));
        }
        let starts = program.streams.output_starts();
        let sent = outputs.map_or(starts, |has| [has[0].max(starts[0]), has[1].max(starts[1])]);
        self.push(&NodeReply::Attached { program: program.id, outputs: sent });
        // It is told at once where input is.
        let told = (u64::MAX, 0);
        let (lacks, is_told_end, told_target) = (false, false, None);
        self.attached =
            Some(AttachedClient { program, number, sent, told, lacks, is_told_end, told_target });
        Ok(())
    }

    fn start(&mut self, start: ProgramStart) {
        let peer = self.peer;
        self.work(move |node| match node.start_for(peer, &start) {
            Ok(id) => NodeReply::Started(id),
            Err(why) => NodeReply::refused(why),
        });
    }

    fn take_changes(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if self.carries.is_empty() {
            return Err(nonsense("changes of a program that does not move here"));
        }
        self.pace.part(bytes.len() as u64, Instant::now());
        match self.last_changes.put(at, bytes) {
            true => Ok(()),
            false => Err(nonsense("more of changes than a program may have")),
        }
    }

    /// Has something done that takes its time.
    fn work(&mut self, work: impl FnOnce(&ProgramNode) -> NodeReply + Send + 'static) {
        self.work_and(|node| (work(node), None));
    }

    /// Has something done that takes its time, and more after it was answered.
    fn work_and(
        &mut self,
        work: impl FnOnce(&ProgramNode) -> (NodeReply, Option<ArrivingRecord>) + Send + 'static,
    ) {
        let (sender, receiver) = mpsc::channel();
        let (visit, signal) = (Arc::clone(self.visit), Arc::clone(&self.signal));
        let thread = thread::Builder::new().name("pagefork-node-work".to_owned());
        let started = thread.spawn(move || {
            let (reply, noted) = work(&visit.node);
            let _ = sender.send(reply);
            let _ = rustix::io::write(&*signal, &1_u64.to_ne_bytes());
            if let Some(noted) = noted {
                keep_noted(&visit.node, &noted);
            }
        });
        match started {
            Ok(_) => self.busy = Some(receiver),
            Err(error) => {
                self.push(&NodeReply::refused(format!("the node cannot start a thread: {error}")));
            }
        }
    }

    /// Does at once what most likely waits for no network, answers, and has more done then.
    ///
    /// # Errors
    /// If the connection is lost.
    fn do_now(
        &mut self,
        work: impl FnOnce(&ProgramNode) -> (NodeReply, Option<ArrivingRecord>),
    ) -> io::Result<()> {
        self.node.arrivals().count_as(|counts| counts.at_once += 1);
        let done = panic::catch_unwind(AssertUnwindSafe(|| work(self.node)));
        let (reply, noted) = done.unwrap_or_else(|_| (has_failed(), None));
        self.heard = Instant::now();
        self.push(&reply);
        let sent = self.duplex.send();
        if let Some(noted) = noted {
            let (node, record) = (self.node.clone(), noted.clone());
            let thread = thread::Builder::new().name("pagefork-node-work".to_owned());
            if thread.spawn(move || keep_noted(&node, &record)).is_err() {
                keep_noted(self.node, &noted);
            }
        }
        self.backlog = self.backlog.saturating_sub(sent?);
        Ok(())
    }

    fn answer_when_done(&mut self) {
        let Some(receiver) = &self.busy else { return };
        let reply = match receiver.try_recv() {
            Ok(reply) => reply,
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => has_failed(),
        };
        self.busy = None;
        // It has waited for us.
        self.heard = Instant::now();
        self.push(&reply);
    }

    /// Tells the client what is new of the program that it has.
    fn go_on_with_program(&mut self) {
        let Some(mut attached) = self.attached.take() else { return };
        if !attached.program.is_attached(attached.number) {
            // It has connected again.
            self.is_over = true;
            return;
        }
        // Before its outputs: after its end nothing is added to them.
        let phase = attached.program.phase();
        let streams = Arc::clone(&attached.program.streams);
        for which in 0..2 {
            while self.backlog <= BACKLOG_MAX {
                let at = attached.sent[which];
                let bytes = streams.output_from(which, at, PART);
                if bytes.is_empty() {
                    break;
                }
                attached.sent[which] += bytes.len() as u64;
                self.push(&NodeReply::Output { which: which as u8, at, bytes });
            }
        }
        let (received, until) = streams.input_positions();
        let lacks = attached.lacks && !streams.is_frozen();
        if lacks || attached.told != (received, until) {
            attached.told = (received, until);
            attached.lacks &= !lacks;
            self.push(&NodeReply::Input { received, until, lacks });
        }
        let is_told = attached.is_told_end || self.backlog > BACKLOG_MAX;
        match phase {
            ProgramPhase::Ended(end) if !is_told => {
                attached.is_told_end = true;
                self.push(&NodeReply::Ended(end));
            }
            ProgramPhase::Lost(why) if !is_told => {
                attached.is_told_end = true;
                self.push(&NodeReply::Ended(ProgramEnd::Failed(why)));
            }
            ProgramPhase::Moving { to } | ProgramPhase::HandedOver { to }
                if attached.told_target != Some(to) =>
            {
                attached.told_target = Some(to);
                self.push(&NodeReply::Moving(to));
            }
            ProgramPhase::Moved { to } => {
                self.push(&NodeReply::Moved(to));
                self.is_over = true;
            }
            _ => {}
        }
        self.attached = Some(attached);
    }
}

/// What a client is told if what it asked for has panicked.
fn has_failed() -> NodeReply {
    NodeReply::refused("the node has failed")
}

/// Puts a record on the disk that was noted.
fn keep_noted(node: &ProgramNode, noted: &ArrivingRecord) {
    // What has become of it meanwhile stays.
    if let Err(error) = node.records().change_arriving(noted.target.migration, |_| ()) {
        (node.options().say)(&arriving::cannot_keep(error));
    }
}
