//! Clients of nodes that run programs: they start, list and stop them.

use std::io;
use std::time::Instant;

use pagefork_image::{PublicKey, SecretKey, check_holders};
use pagefork_postcopy::Lane;

use crate::base::{NodeError, NodeTimes};
use crate::duplex::Duplex;
use crate::fetch::{MemoryPeer, reach};
use crate::identity::Protocol;

use super::move_report::MigrateReport;
use super::moving::MigrateOptions;
use super::snapshots::{CaptureOptions, CaptureReport};
use super::wire::{
    ClientRequest, Inbox, NONSENSE, NodeReply, PART, ProgramId, ProgramInfo, ProgramSource,
    ProgramStart, encode, nonsense,
};

/// A connection of a client with a node.
pub(super) struct NodeLink {
    pub(super) duplex: Duplex,
    inbox: Inbox,
    address: String,
    times: NodeTimes,
    heard: Instant,
    spoke: Instant,
    /// By when an answer is of use.
    until: Option<Instant>,
}

impl NodeLink {
    /// Connects.
    ///
    /// # Errors
    /// As of [`ProgramClient::connect`].
    pub(super) fn connect(
        peer: &MemoryPeer,
        own: &SecretKey,
        times: &NodeTimes,
    ) -> Result<Self, NodeError> {
        let channel = reach(peer, own, Protocol::Programs, times)?;
        let address = peer.address.clone();
        let action = || NodeError::io(format!("talk to node {address}"));
        let mut duplex = Duplex::new(channel).map_err(action())?;
        duplex.in_bulk();
        let (inbox, now) = (Inbox::default(), Instant::now());
        Ok(Self { duplex, inbox, address, times: *times, heard: now, spoke: now, until: None })
    }

    pub(super) fn talk(&self) -> impl FnOnce(io::Error) -> NodeError + use<> {
        let action = NodeError::io(format!("talk to node {}", self.address));
        let address = self.address.clone();
        move |error| match error.kind() {
            NONSENSE => NodeError::Malformed("something else than answers to what it was asked"),
            // Of TLS: a node that does not know us says so only here, as its side of the handshake
            // ends last.
            io::ErrorKind::InvalidData => NodeError::Handshake { address, error },
            _ => action(error),
        }
    }

    pub(super) fn push(&mut self, request: &ClientRequest) {
        self.duplex.push(Lane::Control, encode(request));
        self.spoke = Instant::now();
    }

    /// The next answer, if there is one. Sends what is to be sent, and says that this side is there. Receives once at
    /// most: a peer that never ceases to say that it is there does not keep a caller from what else it looks at.
    pub(super) fn turn(&mut self) -> io::Result<Option<NodeReply>> {
        if let Some(reply) = self.heard_before()? {
            return Ok(Some(reply));
        }
        if self.spoke.elapsed() >= self.times.idle / 3 {
            self.push(&ClientRequest::KeepAlive);
        }
        self.duplex.send()?;
        let arrived = self.duplex.receive()?;
        if !arrived.bytes.is_empty() {
            self.heard = Instant::now();
            self.inbox.push(&arrived.bytes);
            return self.heard_before();
        }
        if arrived.is_over {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.heard.elapsed() >= self.times.idle {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(None)
    }

    /// The next answer among what was received.
    fn heard_before(&mut self) -> io::Result<Option<NodeReply>> {
        loop {
            match self.inbox.next()? {
                Some(NodeReply::KeepAlive) => {}
                reply => return Ok(reply),
            }
        }
    }

    /// Sends what is to be sent.
    pub(super) fn turn_out(&mut self) -> io::Result<()> {
        self.duplex.send().map(drop)
    }

    /// When there is something to do though nothing has come.
    pub(super) fn due(&self) -> Instant {
        let due = (self.heard + self.times.idle).min(self.spoke + self.times.idle / 3);
        due.max(Instant::now() + std::time::Duration::from_millis(1))
    }

    /// The next answer.
    fn answer(&mut self) -> Result<NodeReply, NodeError> {
        loop {
            if let Some(reply) = self.turn().map_err(self.talk())? {
                return Ok(reply);
            }
            if self.until.is_some_and(|until| until <= Instant::now()) {
                return Err(self.talk()(io::ErrorKind::TimedOut.into()));
            }
            let due = self.until.map_or(self.due(), |until| until.min(self.due()));
            self.duplex.wait(&[], Some(due)).map_err(self.talk())?;
        }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// [`NodeError::Refused`] if it is that.
    pub(super) fn ask(
        &mut self,
        request: &ClientRequest,
        about: &str,
    ) -> Result<NodeReply, NodeError> {
        self.push(request);
        self.answer_about(about)
    }

    /// As [`Self::ask`], and waits for no longer than that, whatever else the peer says.
    ///
    /// # Errors
    /// Also if there is no answer by then.
    pub(super) fn ask_until(
        &mut self,
        request: &ClientRequest,
        about: &str,
        until: Instant,
    ) -> Result<NodeReply, NodeError> {
        self.until = Some(until);
        let answer = self.ask(request, about);
        self.until = None;
        answer
    }

    fn answer_about(&mut self, about: &str) -> Result<NodeReply, NodeError> {
        match self.answer()? {
            NodeReply::Refused(reason) => {
                Err(NodeError::NotDone { name: about.to_owned(), reason })
            }
            reply => Ok(reply),
        }
    }

    fn strange(&self) -> NodeError {
        self.talk()(nonsense("an answer to something else"))
    }
}

/// A client of a node that runs programs. [`ProgramNode`](crate::ProgramNode) has an example.
pub struct ProgramClient {
    link: NodeLink,
}

impl std::fmt::Debug for ProgramClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProgramClient").field("address", &self.link.address).finish_non_exhaustive()
    }
}

impl ProgramClient {
    /// Connects to the node `peer`. `own` is the key that this client has there.
    ///
    /// # Errors
    /// [`NodeError::Io`] if the node cannot be reached; [`NodeError::Handshake`] if one of the two
    /// does not know the other, which may show only at the first request. This holds for all
    /// requests: [`NodeError::NotDone`] if the node refuses something, [`NodeError::Malformed`] if
    /// it talks nonsense.
    ///
    /// # Examples
    ///
    /// See [`ProgramNode`](crate::ProgramNode).
    pub fn connect(
        peer: &MemoryPeer,
        own: &SecretKey,
        times: &NodeTimes,
    ) -> Result<Self, NodeError> {
        let mut link = NodeLink::connect(peer, own, times)?;
        // Whether it lets us in shows with its first answer.
        let strange = |error: NodeError| match error {
            NodeError::Io { error, .. } => {
                NodeError::Handshake { address: peer.address.clone(), error }
            }
            other => other,
        };
        link.push(&ClientRequest::Hello);
        match link.answer().map_err(strange)? {
            NodeReply::Done => Ok(Self { link }),
            NodeReply::Refused(reason) => {
                Err(NodeError::NotDone { name: "a client".to_owned(), reason })
            }
            _ => Err(link.strange()),
        }
    }

    /// The node's programs, those that have ended among them.
    ///
    /// # Errors
    /// As of [`ProgramClient::connect`].
    ///
    /// # Examples
    ///
    /// See [`ProgramNode`](crate::ProgramNode).
    pub fn programs(&mut self) -> Result<Vec<ProgramInfo>, NodeError> {
        let mut programs = Vec::new();
        let mut reply = self.link.ask(&ClientRequest::List, "the list of programs")?;
        loop {
            match reply {
                NodeReply::Program(program) => programs.push(program),
                NodeReply::Done => return Ok(programs),
                _ => return Err(self.link.strange()),
            }
            reply = self.link.answer_about("the list of programs")?;
        }
    }

    /// Starts a program: it waits for who [attaches](crate::attach_program) only where it needs its
    /// streams.
    ///
    /// # Errors
    /// As of [`ProgramClient::connect`].
    ///
    /// # Examples
    ///
    /// See [`ProgramNode`](crate::ProgramNode).
    pub fn start(&mut self, start: &ProgramStart) -> Result<ProgramId, NodeError> {
        let module = match &start.source {
            ProgramSource::Module(module) => &module[..],
            ProgramSource::Image(_) => &[],
        };
        self.link.push(&ClientRequest::Start(start.clone(), module.len() as u64));
        for part in module.chunks(PART) {
            self.link.push(&ClientRequest::Module(part.to_vec()));
        }
        match self.link.answer_about(&start.name)? {
            NodeReply::Started(id) => Ok(id),
            _ => Err(self.link.strange()),
        }
    }

    /// Stops a program, by its name or number, or forgets one that has ended.
    ///
    /// # Errors
    /// As of [`ProgramClient::connect`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(client: &mut pagefork_node::ProgramClient) -> Result<(), pagefork_node::NodeError> {
    /// client.stop("counter")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn stop(&mut self, program: &str) -> Result<(), NodeError> {
        match self.link.ask(&ClientRequest::Stop { program: program.to_owned() }, program)? {
            NodeReply::Done => Ok(()),
            _ => Err(self.link.strange()),
        }
    }
}

impl ProgramClient {
    /// Moves a program to the node with the key `to`, which both the program's node and its target
    /// have to know. It runs while its pages go ahead, rests for a moment, and goes on there; who has
    /// its streams follows it. Returns when it is there.
    ///
    /// # Errors
    /// As of [`ProgramClient::connect`]: then it goes on where it is, unless it was handed over, which
    /// [`NodeError::NotDone`] says then.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use pagefork_node::{MigrateOptions, NodeError, ProgramClient};
    ///
    /// # fn example(client: &mut ProgramClient, there: pagefork_image::PublicKey) -> Result<(), NodeError> {
    /// let report = client.migrate("counter", there, MigrateOptions::default())?;
    /// println!("it rested {:?}: {report}", report.pause());
    /// # Ok(())
    /// # }
    /// ```
    pub fn migrate(
        &mut self,
        program: &str,
        to: PublicKey,
        options: MigrateOptions,
    ) -> Result<MigrateReport, NodeError> {
        let MigrateOptions { rounds, patience, second } = options;
        let (program_name, to) = (program.to_owned(), *to.as_bytes());
        let request =
            ClientRequest::Migrate { program: program_name, to, rounds, patience, second };
        match self.link.ask(&request, program)? {
            NodeReply::Migrated(report) => Ok(report),
            _ => Err(self.link.strange()),
        }
    }

    /// Makes an image of a program in the node's store, while the program runs on: from there it is fetched
    /// as any image is, by who may have images of the node. What the node does is
    /// [`ProgramNode::snapshot`](crate::ProgramNode::snapshot); it does so to the end if this client is gone
    /// meanwhile.
    ///
    /// # Errors
    /// As of [`ProgramClient::connect`]; [`NodeError::Image`] if no image can name these holders.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use pagefork_node::{CaptureOptions, NodeError, ProgramClient};
    ///
    /// # fn example(client: &mut ProgramClient) -> Result<(), NodeError> {
    /// let options = CaptureOptions { name: Some("half-way".to_owned()), ..CaptureOptions::default() };
    /// let report = client.snapshot("counter", &options)?;
    /// println!("image {}; it rested {:?}", report.image, report.rested);
    /// # Ok(())
    /// # }
    /// ```
    pub fn snapshot(
        &mut self,
        program: &str,
        options: &CaptureOptions,
    ) -> Result<CaptureReport, NodeError> {
        let CaptureOptions { name, patience, holders } = options.clone();
        // More of them, or longer ones, would be no message.
        check_holders(&holders)?;
        let request =
            ClientRequest::Snapshot { program: program.to_owned(), name, patience, holders };
        match self.link.ask(&request, program)? {
            NodeReply::Captured(report) => Ok(report),
            _ => Err(self.link.strange()),
        }
    }

    /// Says that a program that was handed over, and of whose target there is no answer, or which that
    /// has declined, goes on at its source. **Whoever says so has to know that it does not run there**:
    /// nobody else can.
    ///
    /// # Errors
    /// As of [`ProgramClient::connect`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(client: &mut pagefork_node::ProgramClient) -> Result<(), pagefork_node::NodeError> {
    /// client.reclaim("counter")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn reclaim(&mut self, program: &str) -> Result<(), NodeError> {
        match self.link.ask(&ClientRequest::Reclaim { program: program.to_owned() }, program)? {
            NodeReply::Done => Ok(()),
            _ => Err(self.link.strange()),
        }
    }
}

impl Drop for ProgramClient {
    fn drop(&mut self) {
        // A node that does not hear it notices that the connection is gone.
        let _ = self.link.duplex.end();
    }
}
