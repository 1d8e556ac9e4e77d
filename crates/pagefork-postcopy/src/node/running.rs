//! The side of a running node: it fetches images from all nodes that have them, and gives out
//! nothing that was not proved.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagefork_image::{ContentHash, ImageHead};

use crate::base::error::ProtocolError;
use crate::base::limits::FetchLimits;
use crate::base::moment::{Moment, earlier};
use crate::node::fetch::{FetchedImage, Holder, HolderStage};
use crate::node::link::{AskedGroup, Link};
use crate::node::memory::RANGES_MAX;
use crate::plan::layer::PlanLayer;
use crate::plan::planner::{FetchPlan, PlanReport, Planner};
use crate::wire::body::CAN_COMPRESS;
use crate::wire::frame::{Lane, encode};
use crate::wire::message::{EndReason, Hello, Message, PROTOCOL_VERSION, Priority, ranges};
use crate::wire::migration::MigrationMessage;

/// Groups that are asked for of one peer before another one has its turn.
const BATCH: usize = 16;

/// A connection, by a number of the caller's. [`MemoryNode`](crate::MemoryNode) has an example.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u64);

/// An image that is fetched, by a number of the caller's. [`MemoryNode`](crate::MemoryNode) has an
/// example.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ImageKey(pub u64);

/// What a running node is told. [`MemoryNode`](crate::MemoryNode) has an example.
#[derive(Clone, Debug)]
pub enum RunningInput<'a> {
    /// A connection to a memory node is there, and both sides have authenticated themselves.
    Connected {
        /// Its number, which no other one has had.
        connection: ConnectionId,
    },
    /// Bytes have come.
    Received {
        /// From where.
        connection: ConnectionId,
        /// On which stream.
        lane: Lane,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// A connection is lost.
    Disconnected {
        /// Which one.
        connection: ConnectionId,
    },
    /// An image is wanted.
    Open {
        /// Its number, which no other one has had.
        image: ImageKey,
        /// Its name at the memory nodes.
        name: String,
        /// What it must be, if that is known. Else the first holder's word counts.
        hash: Option<ContentHash>,
        /// What to ask for, and when.
        plan: FetchPlan,
    },
    /// The peer of a connection may have an image.
    AddHolder {
        /// The image.
        image: ImageKey,
        /// The connection.
        connection: ConnectionId,
        /// A token for it, or nothing if the peer needs none.
        token: Vec<u8>,
    },
    /// A guest waits for a group.
    Need {
        /// The image.
        image: ImageKey,
        /// The group.
        group: u64,
        /// Until when it waits.
        deadline: Instant,
    },
    /// The bytes of [`RunningOutput::LookUp`]; `None` if they are here no more.
    LookedUp {
        /// The image.
        image: ImageKey,
        /// The group.
        group: u64,
        /// Its bytes.
        bytes: Option<Vec<u8>>,
    },
    /// This node has contents, of other images, that groups of this one may have. It looks them up if a
    /// peer says that they do. A background that has waited for it begins.
    Here {
        /// The image, whose head is here.
        image: ImageKey,
        /// Groups, and [what would stand for them](ImageHead::leaf) in the image's tree. A group can have
        /// several.
        groups: Vec<(u64, ContentHash)>,
    },
    /// Groups are here from elsewhere, verified by the caller.
    Given {
        /// The image.
        image: ImageKey,
        /// Which groups.
        groups: Range<u64>,
    },
    /// Guests have touched groups that were here.
    Touched {
        /// The image.
        image: ImageKey,
        /// Which groups.
        groups: Range<u64>,
    },
    /// A plan that was [held](FetchPlan::held) begins: all that is needed before pages is here.
    Begin {
        /// The image, whose head is here.
        image: ImageKey,
        /// What earlier runs have touched, in order, unless the plan says it.
        recorded: Vec<Range<u64>>,
        /// Whether the background waits for [`RunningInput::Here`].
        looks_here: bool,
    },
    /// Memory is short: what nobody waits for has time.
    MemoryPressure,
    /// An image is not wanted any more.
    Close {
        /// Which one.
        image: ImageKey,
    },
    /// A step of a migration is to be sent.
    Migration {
        /// To whom.
        connection: ConnectionId,
        /// The step.
        message: MigrationMessage,
    },
    /// Nothing but that time has passed.
    Tick,
}

/// What a running node does, in order. [`MemoryNode`](crate::MemoryNode) has an example.
#[derive(Debug)]
pub enum RunningOutput {
    /// Bytes for a peer, which go on its stream [`Lane::Control`].
    Send {
        /// To whom.
        connection: ConnectionId,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The head of an image is here: it can be looked at, and mapped.
    Opened {
        /// The image.
        image: ImageKey,
        /// Its head.
        head: Arc<ImageHead>,
    },
    /// A group is here and was verified. Each is given once.
    Group {
        /// The image.
        image: ImageKey,
        /// The group.
        group: u64,
        /// Its bytes.
        bytes: Vec<u8>,
        /// Why it was asked for.
        layer: PlanLayer,
        /// How long the memory node had it, as it says: from the question until it was read.
        spent: Duration,
        /// What it has taken of a processor for the connection since the group before, as it says.
        cpu: Duration,
    },
    /// A peer says that a group has these contents, which this node has said it has.
    LookUp {
        /// The image.
        image: ImageKey,
        /// The group.
        group: u64,
        /// What stands for it in the image's tree.
        hash: ContentHash,
    },
    /// A guest has waited for a group until its deadline. It is still asked for.
    Overdue {
        /// The image.
        image: ImageKey,
        /// The group.
        group: u64,
    },
    /// All groups of an image are here. It is closed.
    Whole {
        /// The image.
        image: ImageKey,
        /// What came of its plan.
        report: PlanReport,
    },
    /// A peer is no source of an image any more, or never was.
    HolderLost {
        /// The image.
        image: ImageKey,
        /// The connection.
        connection: ConnectionId,
        /// Why.
        why: HolderLoss,
    },
    /// No holder is left. Others can be added; guests wait until their deadlines.
    Stranded {
        /// The image.
        image: ImageKey,
    },
    /// A peer has sent a step of a migration.
    Migration {
        /// Which one.
        connection: ConnectionId,
        /// The step.
        message: MigrationMessage,
    },
    /// A connection is to be closed; nothing follows.
    Close {
        /// Which one.
        connection: ConnectionId,
        /// Why.
        why: ProtocolError,
    },
}

/// Why a peer is no source of an image. [`MemoryNode`](crate::MemoryNode) has an example of its
/// use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HolderLoss {
    /// It says so.
    Ended(EndReason),
    /// What it has under this name is another image.
    OtherImage,
    /// It cannot read a group.
    GroupFailed,
    /// The connection is gone.
    Disconnected,
}

/// The side of a running node, for all its connections and images. It does no I/O, as
/// [`MemoryNode`](crate::MemoryNode), which has an example.
#[derive(Debug)]
pub struct RunningNode {
    pub(crate) limits: FetchLimits,
    pub(crate) links: BTreeMap<ConnectionId, Link>,
    pub(crate) images: BTreeMap<ImageKey, FetchedImage>,
    pub(crate) output: Vec<RunningOutput>,
}

impl RunningNode {
    /// One without connections.
    pub fn new(limits: FetchLimits) -> Self {
        Self { limits, links: BTreeMap::new(), images: BTreeMap::new(), output: Vec::new() }
    }

    /// Takes what has happened, and gives what is to be done.
    pub fn handle(&mut self, input: RunningInput<'_>, now: Moment) -> Vec<RunningOutput> {
        match input {
            RunningInput::Connected { connection } => {
                let zstd = CAN_COMPRESS;
                let certain_groups = self.limits.certain_groups.min(RANGES_MAX as u32);
                self.links.insert(connection, Link::new(now.at));
                let hello = Hello { version: PROTOCOL_VERSION, zstd, certain_groups };
                self.send(connection, &Message::Hello(hello));
            }
            RunningInput::Received { connection, lane, bytes } => {
                self.received(connection, lane, bytes, now);
            }
            RunningInput::Disconnected { connection } => self.drop_link(connection),
            RunningInput::Open { image, name, hash, plan } => {
                self.images.insert(image, FetchedImage::new(name, hash, plan));
            }
            RunningInput::AddHolder { image, connection, token } => {
                self.add_holder(image, connection, token);
            }
            RunningInput::Need { image, group, deadline } => self.need(image, group, deadline, now),
            RunningInput::LookedUp { image, group, bytes } => {
                self.looked_up(image, group, bytes, now)
            }
            RunningInput::Here { image, groups } => self.here(image, groups),
            RunningInput::Given { image, groups } => self.given(image, groups),
            RunningInput::Touched { image, groups } => {
                if let Some((_, planner)) = self.planner(image) {
                    planner.touched(groups);
                }
            }
            RunningInput::Begin { image, recorded, looks_here } => {
                if let Some((_, planner)) = self.planner(image) {
                    planner.begin(recorded, looks_here);
                }
            }
            RunningInput::MemoryPressure => {
                let open = self.images.values_mut().filter_map(|image| image.open.as_mut());
                open.for_each(|(_, planner)| planner.pressure(now.at));
            }
            RunningInput::Close { image } => self.close(image),
            RunningInput::Migration { connection, message } => {
                self.send(connection, &Message::Migration(message));
            }
            RunningInput::Tick => {}
        }
        self.check_time(now);
        self.open_queued();
        self.dispatch(now);
        self.finish(now);
        std::mem::take(&mut self.output)
    }

    /// When [`RunningInput::Tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let of_link =
            |link: &Link| earlier(link.stalls_at(self.limits.answer_timeout), link.speaks_at());
        let links = self.links.values().filter_map(of_link);
        links.chain(self.images.values().filter_map(FetchedImage::deadline)).min()
    }

    /// What has come of an image's plan so far, if its head is here.
    pub fn report(&self, image: ImageKey) -> Option<&PlanReport> {
        let (_, planner) = self.images.get(&image)?.open.as_ref()?;
        Some(planner.report())
    }

    pub(crate) fn planner(&mut self, image: ImageKey) -> Option<&mut (Arc<ImageHead>, Planner)> {
        self.images.get_mut(&image)?.open.as_mut()
    }

    pub(crate) fn send(&mut self, connection: ConnectionId, message: &Message) {
        // What is for a connection that is gone needs no sending.
        if self.links.contains_key(&connection) {
            let bytes = encode(message);
            self.output.push(RunningOutput::Send { connection, bytes });
        }
    }

    fn received(&mut self, connection: ConnectionId, lane: Lane, bytes: &[u8], now: Moment) {
        let Some(link) = self.links.get_mut(&connection) else { return };
        if let Some(decoder) = link.decoders.get_mut(&lane) {
            decoder.push(bytes);
        }
        // A message can end the connection.
        while let Some(link) = self.links.get_mut(&connection) {
            let Some(decoder) = link.decoders.get_mut(&lane) else { return };
            let handled = match decoder.message() {
                Ok(None) => return,
                Ok(Some(message)) => self.message(connection, lane, message, now),
                Err(error) => Err(error),
            };
            if let Err(error) = handled {
                self.fail(connection, error);
            }
        }
    }

    /// Leaves a peer.
    pub(crate) fn fail(&mut self, connection: ConnectionId, why: ProtocolError) {
        if !matches!(why, ProtocolError::PeerLeft(_)) {
            self.send(connection, &Message::Farewell { text: why.to_string() });
        }
        self.drop_link(connection);
        self.output.push(RunningOutput::Close { connection, why });
    }

    fn drop_link(&mut self, connection: ConnectionId) {
        let images: Vec<ImageKey> = self.images.keys().copied().collect();
        for key in images {
            self.lose_holder(key, connection, HolderLoss::Disconnected);
        }
        self.links.remove(&connection);
    }

    fn add_holder(&mut self, image: ImageKey, connection: ConnectionId, token: Vec<u8>) {
        let is_linked = self.links.contains_key(&connection);
        let Some(fetched) = self.images.get_mut(&image) else { return };
        if !is_linked {
            let why = HolderLoss::Disconnected;
            self.output.push(RunningOutput::HolderLost { image, connection, why });
            return;
        }
        (fetched.is_stranded, fetched.had_holder) = (false, true);
        let queued = Holder { token, stage: HolderStage::Queued };
        fetched.holders.entry(connection).or_insert(queued);
    }

    /// Asks holders to open images, where they have room for more.
    fn open_queued(&mut self) {
        let mut messages = Vec::new();
        for (key, image) in &mut self.images {
            for (connection, holder) in &mut image.holders {
                let Some(link) = self.links.get_mut(connection) else { continue };
                if !matches!(holder.stage, HolderStage::Queued) || !link.may_open() {
                    continue;
                }
                let number = link.next_number;
                link.next_number += 1;
                link.opening += 1;
                link.images.insert(number, *key);
                holder.stage = HolderStage::Opening { number };
                let head = image.open.as_ref().map(|(head, _)| head.hash());
                let (name, token) = (image.name.clone(), holder.token.clone());
                messages.push((*connection, Message::Open { image: number, name, token, head }));
            }
        }
        messages.iter().for_each(|(connection, message)| self.send(*connection, message));
    }

    fn need(&mut self, image: ImageKey, group: u64, deadline: Instant, now: Moment) {
        let Some(fetched) = self.images.get_mut(&image) else { return };
        if let Some((_, planner)) = &mut fetched.open {
            if planner.is_present(group) || !planner.has(group) {
                return;
            }
            planner.fault(group);
        }
        let until = fetched.waits.entry(group).or_insert(deadline);
        *until = (*until).min(deadline);
        // What is on its way already goes before all else.
        let mut raised = None;
        for (connection, holder) in &fetched.holders {
            let asked = holder.stage.number().zip(self.links.get_mut(connection));
            let Some((number, link)) = asked else { continue };
            if let Some(asked) = link.asked.get_mut(&(number, group))
                && asked.urgent_since.is_none()
            {
                asked.urgent_since = Some(now.at);
                // What is looked up here is no more to be sent.
                if asked.look_up.is_none() {
                    raised = Some((*connection, Message::Raise { image: number, group }));
                }
            }
        }
        if let Some((connection, message)) = raised {
            self.send(connection, &message);
        }
    }

    fn here(&mut self, image: ImageKey, groups: Vec<(u64, ContentHash)>) {
        let Some(fetched) = self.images.get_mut(&image) else { return };
        let Some((_, planner)) = &mut fetched.open else { return };
        planner.looked();
        for (group, hash) in groups {
            if planner.has(group) && !planner.is_present(group) {
                let hashes = fetched.here.entry(group).or_default();
                if !hashes.contains(&hash) {
                    hashes.push(hash);
                }
            }
        }
    }

    fn given(&mut self, image: ImageKey, groups: Range<u64>) {
        let Some(fetched) = self.images.get_mut(&image) else { return };
        let Some((head, planner)) = &mut fetched.open else { return };
        let end = groups.end.min(head.group_count());
        let groups = groups.start.min(end)..end;
        for group in groups.clone() {
            planner.given(group);
            fetched.said.remove(&group);
            fetched.waits.remove(&group);
            fetched.here.remove(&group);
        }
        let mut messages = Vec::new();
        for (connection, holder) in &fetched.holders {
            let asked = holder.stage.number().zip(self.links.get(connection));
            let Some((image, link)) = asked else { continue };
            let asked = link.asked.range((image, groups.start)..(image, groups.end));
            let asked: Vec<u64> = asked.map(|((_, group), _)| *group).collect();
            messages.extend(asked.chunks(link.named_max()).map(|groups| {
                let groups = ranges(groups.iter().copied());
                (*connection, Message::Cancel { image, groups })
            }));
        }
        messages.iter().for_each(|(connection, message)| self.send(*connection, message));
    }

    fn close(&mut self, image: ImageKey) {
        let Some(fetched) = self.images.remove(&image) else { return };
        for (connection, holder) in fetched.holders {
            if let Some(number) = holder.stage.number() {
                self.forget(connection, number, holder.stage.is_opening());
                self.send(connection, &Message::Close { image: number });
            }
        }
    }

    /// Nothing of an image is expected on a connection any more.
    pub(crate) fn forget(&mut self, connection: ConnectionId, number: u32, was_opening: bool) {
        let Some(link) = self.links.get_mut(&connection) else { return };
        link.images.remove(&number);
        link.asked.retain(|(image, _), _| *image != number);
        link.opening -= u32::from(was_opening);
    }

    /// Does what is due.
    fn check_time(&mut self, now: Moment) {
        let timeout = self.limits.answer_timeout;
        let stalls = |link: &Link| link.stalls_at(timeout).is_some_and(|at| at <= now.at);
        let stalled = self.links.iter().filter(|(_, link)| stalls(link));
        let stalled: Vec<ConnectionId> = stalled.map(|(connection, _)| *connection).collect();
        for connection in stalled {
            self.fail(connection, ProtocolError::Stalled { seconds: timeout.as_secs() });
        }
        let speaks = |link: &Link| link.speaks_at().is_some_and(|at| at <= now.at);
        let silent = self.links.iter().filter(|(_, link)| speaks(link));
        let silent: Vec<ConnectionId> = silent.map(|(connection, _)| *connection).collect();
        silent.into_iter().for_each(|connection| self.send(connection, &Message::KeepAlive));
        let mut renewals = Vec::new();
        for (key, image) in &mut self.images {
            let over = image.waits.extract_if(.., |_, deadline| *deadline <= now.at);
            let overdue = over.map(|(group, _)| RunningOutput::Overdue { image: *key, group });
            self.output.extend(overdue);
            for (connection, holder) in &mut image.holders {
                if let HolderStage::Ready { number, renew_at } = &mut holder.stage
                    && renew_at.is_some_and(|at| at <= now.at)
                {
                    *renew_at = None;
                    renewals.push((*connection, Message::Renew { image: *number }));
                }
            }
        }
        renewals.iter().for_each(|(connection, message)| self.send(*connection, message));
    }

    /// Asks for as many groups as may be on their way: first, of all images, those that guests wait
    /// for.
    fn dispatch(&mut self, now: Moment) {
        let images: Vec<ImageKey> = self.images.keys().copied().collect();
        for is_urgent in [true, false] {
            for key in &images {
                while let Some((connection, number, room)) = self.best_holder(*key, is_urgent) {
                    let Some((_, planner)) = self.planner(*key) else { break };
                    let count = room.min(BATCH);
                    let groups = match is_urgent {
                        true => planner.next(count, 0),
                        false => planner.next(0, count),
                    };
                    if groups.is_empty() {
                        break;
                    }
                    self.tell_here(*key, connection, &groups);
                    self.ask(connection, number, &groups, now);
                }
            }
        }
    }

    /// The holder of an image that owes least, and how many groups it may be asked for.
    fn best_holder(&self, key: ImageKey, is_urgent: bool) -> Option<(ConnectionId, u32, usize)> {
        let kept = if is_urgent { 0 } else { self.limits.urgent_requests as usize };
        let holders = self.images.get(&key)?.holders.iter();
        let ready = holders.filter_map(|(connection, holder)| match holder.stage {
            HolderStage::Ready { number, .. } => {
                let link = self.links.get(connection)?;
                let limit = link.requests_max(self.limits.requests);
                // Where few are allowed at all, half of them are kept.
                let limit = limit - kept.min(limit / 2);
                let room = limit.saturating_sub(link.asked.len());
                (room > 0).then_some((*connection, number, room))
            }
            _ => None,
        });
        ready.max_by_key(|(_, _, room)| *room)
    }

    /// Says which contents this node has of groups that are about to be asked for, so many as the peer
    /// keeps in mind.
    fn tell_here(&mut self, key: ImageKey, connection: ConnectionId, groups: &[(u64, PlanLayer)]) {
        let Some(image) = self.images.get(&key).filter(|image| !image.here.is_empty()) else {
            return;
        };
        let Some(link) = self.links.get_mut(&connection) else { return };
        let here = groups.iter().filter_map(|(group, _)| image.here.get(group)).flatten();
        let hashes = link.have(here.copied());
        if !hashes.is_empty() {
            self.send(connection, &Message::Have { hashes });
        }
    }

    fn ask(
        &mut self,
        connection: ConnectionId,
        number: u32,
        groups: &[(u64, PlanLayer)],
        now: Moment,
    ) {
        let Some(link) = self.links.get_mut(&connection) else { return };
        for (group, layer) in groups {
            let asked = AskedGroup::new(*layer == PlanLayer::Fault, now.at);
            link.asked.insert((number, *group), asked);
        }
        for priority in [Priority::Urgent, Priority::Planned, Priority::Background] {
            let of_priority = groups.iter().filter(|(_, layer)| priority_of(*layer) == priority);
            let groups = ranges(of_priority.map(|(group, _)| *group));
            if !groups.is_empty() {
                self.send(connection, &Message::Ask { image: number, priority, groups });
            }
        }
    }

    /// Closes what is whole, says what nobody has, and notes who owes answers.
    fn finish(&mut self, now: Moment) {
        let mut whole = Vec::new();
        for (key, image) in &mut self.images {
            match &image.open {
                Some((_, planner)) if planner.is_whole() => {
                    whole.push((*key, planner.report().clone()));
                }
                _ if image.holders.is_empty() && !image.is_stranded && image.had_holder => {
                    image.is_stranded = true;
                    self.output.push(RunningOutput::Stranded { image: *key });
                }
                _ => {}
            }
        }
        for (image, report) in whole {
            self.close(image);
            self.output.push(RunningOutput::Whole { image, report });
        }
        let sent = self.output.iter().filter_map(|output| match output {
            RunningOutput::Send { connection, .. } => Some(connection),
            _ => None,
        });
        for connection in sent {
            if let Some(link) = self.links.get_mut(connection) {
                link.spoke = now.at;
            }
        }
        self.links.values_mut().for_each(|link| link.note_debt(now.at));
    }
}

fn priority_of(layer: PlanLayer) -> Priority {
    match layer {
        PlanLayer::Fault => Priority::Urgent,
        PlanLayer::Background => Priority::Background,
        _ => Priority::Planned,
    }
}
