//! What a running node does with the answers of memory nodes, none of which it believes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pagefork_image::{ContentHash, GroupProof, ImageHead};

use crate::base::error::ProtocolError;
use crate::base::moment::Moment;
use crate::node::fetch::{ComingHead, Holder, HolderStage};
use crate::node::link::AskedGroup;
use crate::node::running::{ConnectionId, HolderLoss, ImageKey, RunningNode, RunningOutput};
use crate::plan::planner::Planner;
use crate::wire::body::GroupBody;
use crate::wire::frame::Lane;
use crate::wire::message::{GroupRange, Message, Priority};

/// Leases that are shorter are not renewed.
const LEASE_MIN_MS: u64 = 2000;

const NOT_ASKED: ProtocolError = ProtocolError::Unexpected("a group that was not asked for");

impl RunningNode {
    pub(crate) fn message(
        &mut self,
        connection: ConnectionId,
        lane: Lane,
        message: Message,
        now: Moment,
    ) -> Result<(), ProtocolError> {
        let Some(link) = self.links.get_mut(&connection) else { return Ok(()) };
        let is_first = link.welcome.is_none();
        match (&message, lane) {
            (Message::Group { .. } | Message::GroupFailed { .. }, _) | (_, Lane::Control) => {}
            _ => {
                return Err(ProtocolError::Unexpected("anything but groups on a stream of groups"));
            }
        }
        let number = match message {
            Message::Farewell { text } => return Err(ProtocolError::PeerLeft(text)),
            Message::Welcome(welcome) if is_first => {
                link.greeted(welcome, now.at);
                return Ok(());
            }
            _ if is_first => {
                return Err(ProtocolError::Unexpected("a greeting comes first"));
            }
            Message::Migration(message) => {
                self.output.push(RunningOutput::Migration { connection, message });
                return Ok(());
            }
            Message::Opened { image, .. }
            | Message::HeadPart { image, .. }
            | Message::Ended { image, .. }
            | Message::Group { image, .. }
            | Message::GroupFailed { image, .. }
            | Message::Dropped { image, .. }
            | Message::Renewed { image, .. } => image,
            _ => return Err(ProtocolError::Unexpected("a message of a running node")),
        };
        let Some(key) = link.images.get(&number).copied() else {
            // It was closed when this was on its way.
            return match number < link.next_number {
                true => Ok(()),
                false => Err(ProtocolError::Unexpected("an image that was never opened")),
            };
        };
        match message {
            Message::Opened { hash, manifest_size, signatures_size, lease_ms, certain, .. } => {
                let sizes = (manifest_size, signatures_size);
                self.opened(connection, key, hash, sizes, lease_ms, &certain, now)
            }
            Message::HeadPart { bytes, .. } => self.head_part(connection, key, &bytes),
            Message::Ended { why, .. } => {
                self.lose_holder(key, connection, HolderLoss::Ended(why));
                Ok(())
            }
            Message::Group { group, body, proof, spent_us, cpu_us, .. } => {
                let proof = GroupProof { neighbours: proof };
                let times = [spent_us, cpu_us].map(|us| Duration::from_micros(us.into()));
                self.group(connection, (key, number), (group, times), (body, proof), now)
            }
            Message::GroupFailed { group, .. } => {
                link.asked.get(&(number, group)).ok_or(NOT_ASKED)?;
                self.lose_holder(key, connection, HolderLoss::GroupFailed);
                self.send(connection, &Message::Close { image: number });
                Ok(())
            }
            Message::Dropped { groups, .. } => self.dropped(connection, number, &groups),
            Message::Renewed { lease_ms, .. } => {
                let holder = self.images.get_mut(&key);
                let holder = holder.and_then(|image| image.holders.get_mut(&connection));
                if let Some(Holder { stage: HolderStage::Ready { renew_at, .. }, .. }) = holder {
                    *renew_at = half_of_lease(lease_ms, now);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn opened(
        &mut self,
        connection: ConnectionId,
        key: ImageKey,
        hash: ContentHash,
        (manifest_size, signatures_size): (u64, u64),
        lease_ms: u64,
        certain: &[GroupRange],
        now: Moment,
    ) -> Result<(), ProtocolError> {
        let limits = &self.limits;
        let Some(image) = self.images.get_mut(&key) else { return Ok(()) };
        let Some(holder) = image.holders.get_mut(&connection) else { return Ok(()) };
        let HolderStage::Opening { number } = holder.stage else {
            return Err(ProtocolError::Unexpected("an image that is open already"));
        };
        if let Some(link) = self.links.get_mut(&connection) {
            link.answered();
        }
        if image.hash.is_some_and(|expected| expected != hash) {
            self.lose_holder(key, connection, HolderLoss::OtherImage);
            self.send(connection, &Message::Close { image: number });
            return Ok(());
        }
        let signatures_max = limits.image.signatures.saturating_mul(96) as u64;
        if manifest_size > limits.image.manifest_size || signatures_size > signatures_max {
            let limit = limits.image.manifest_size;
            return Err(ProtocolError::Exceeded { what: "bytes of an image's head", limit });
        }
        let mut unasked = Vec::new();
        for range in certain {
            let room = u64::from(limits.certain_groups).saturating_sub(unasked.len() as u64);
            let groups = range.groups().filter(|_| u64::from(range.count) <= room);
            let limit = u64::from(limits.certain_groups);
            let what = "groups that were not asked for";
            unasked.extend(groups.ok_or(ProtocolError::Exceeded { what, limit })?);
        }
        let size = manifest_size + signatures_size;
        if size == 0 {
            let Some((_, planner)) = &image.open else {
                return Err(ProtocolError::Unexpected("no head, though it is not here"));
            };
            if unasked.iter().any(|group| !planner.has(*group)) {
                return Err(ProtocolError::Unexpected("groups that are not in the image"));
            }
            holder.stage = HolderStage::Ready { number, renew_at: half_of_lease(lease_ms, now) };
            self.announced(connection, key, number, unasked);
        } else {
            holder.stage = HolderStage::Head(ComingHead {
                number,
                hash,
                manifest_size: manifest_size as usize,
                size: size as usize,
                bytes: Vec::new(),
                certain: unasked,
                renew_at: half_of_lease(lease_ms, now),
            });
        }
        Ok(())
    }

    fn head_part(
        &mut self,
        connection: ConnectionId,
        key: ImageKey,
        part: &[u8],
    ) -> Result<(), ProtocolError> {
        let Some(image) = self.images.get_mut(&key) else { return Ok(()) };
        let Some(holder) = image.holders.get_mut(&connection) else { return Ok(()) };
        let HolderStage::Head(coming) = &mut holder.stage else {
            return Err(ProtocolError::Unexpected("a part of a head that is here"));
        };
        if part.is_empty() || part.len() > coming.size - coming.bytes.len() {
            return Err(ProtocolError::Unexpected("more of a head than there is"));
        }
        coming.bytes.extend_from_slice(part);
        let mut round_trip = Duration::ZERO;
        if let Some(link) = self.links.get_mut(&connection) {
            link.answered();
            round_trip = link.round_trip;
        }
        if coming.bytes.len() < coming.size {
            return Ok(());
        }
        let ComingHead { number, hash, renew_at, .. } = *coming;
        let unasked = std::mem::take(&mut coming.certain);
        let mut manifest = std::mem::take(&mut coming.bytes);
        let signatures = manifest.split_off(coming.manifest_size);
        let limits = &self.limits.image;
        let head = ImageHead::decode(hash, manifest, signatures, limits);
        let head = Arc::new(head.map_err(ProtocolError::WrongHead)?);
        if unasked.iter().any(|group| *group >= head.group_count()) {
            return Err(ProtocolError::Unexpected("groups that are not in the image"));
        }
        // Of several holders the first whose head is right says what the image is.
        if *image.hash.get_or_insert(hash) != hash {
            self.lose_holder(key, connection, HolderLoss::OtherImage);
            self.send(connection, &Message::Close { image: number });
            return Ok(());
        }
        holder.stage = HolderStage::Ready { number, renew_at };
        if image.open.is_none() {
            let plan = std::mem::take(&mut image.plan);
            let mut planner = Planner::new(plan, head.group_count(), round_trip);
            image.waits.keys().for_each(|group| planner.fault(*group));
            image.open = Some((head.clone(), planner));
            self.output.push(RunningOutput::Opened { image: key, head });
        }
        self.announced(connection, key, number, unasked);
        Ok(())
    }

    /// An image is ready on a connection, and these groups come unasked.
    fn announced(
        &mut self,
        connection: ConnectionId,
        key: ImageKey,
        number: u32,
        groups: Vec<u64>,
    ) {
        let Some(link) = self.links.get_mut(&connection) else { return };
        link.opening -= 1;
        let image = self.images.get_mut(&key).and_then(|image| image.open.as_mut());
        let Some((_, planner)) = image else { return };
        for group in groups {
            link.asked.insert((number, group), AskedGroup::announced());
            planner.announced(group);
        }
    }

    fn group(
        &mut self,
        connection: ConnectionId,
        (key, number): (ImageKey, u32),
        (group, [spent, cpu]): (u64, [Duration; 2]),
        (body, proof): (GroupBody, GroupProof),
        now: Moment,
    ) -> Result<(), ProtocolError> {
        let Some(link) = self.links.get_mut(&connection) else { return Ok(()) };
        let asked = link.asked.get_mut(&(number, group));
        let asked = asked.filter(|asked| asked.look_up.is_none()).ok_or(NOT_ASKED)?;
        let image = self.images.get_mut(&key).and_then(|image| image.open.as_mut());
        let (head, planner) = image.ok_or(NOT_ASKED)?;
        if let GroupBody::Known(hash) = body {
            if !link.told.contains(&hash) || asked.is_lacking {
                return Err(ProtocolError::Unexpected(
                    "a group by the hash of bytes that are not here",
                ));
            }
            asked.look_up = Some((hash, proof));
            asked.spent = spent;
            asked.cpu += cpu;
            link.answered();
            match planner.is_present(group) {
                true => drop(link.asked.remove(&(number, group))),
                false => self.output.push(RunningOutput::LookUp { image: key, group, hash }),
            }
            return Ok(());
        }
        let size = head.group_size(group) as usize;
        let bytes = body.decode(size)?.unwrap_or_default();
        let wrong = |_| ProtocolError::WrongGroup { image: head.hash().to_string(), group };
        head.verify_group(group, &bytes, &proof).map_err(wrong)?;
        let mut asked = link.asked.remove(&(number, group));
        if let Some(asked) = &mut asked {
            asked.spent = spent;
            // It may have been said to be here before.
            asked.cpu += cpu;
        }
        link.answered();
        self.arrived(key, group, bytes, asked, now);
        self.need_not(key, connection, group);
        Ok(())
    }

    /// A group is here: its peer need not have in mind what else it could have been.
    fn need_not(&mut self, key: ImageKey, connection: ConnectionId, group: u64) {
        let image = self.images.get_mut(&key);
        let Some(hashes) = image.and_then(|image| image.here.remove(&group)) else { return };
        let Some(link) = self.links.get_mut(&connection) else { return };
        let hashes = link.need_not(&hashes);
        if !hashes.is_empty() {
            self.send(connection, &Message::Lack { hashes });
        }
    }

    /// A group was verified.
    fn arrived(
        &mut self,
        key: ImageKey,
        group: u64,
        bytes: Vec<u8>,
        asked: Option<AskedGroup>,
        now: Moment,
    ) {
        let Some(image) = self.images.get_mut(&key) else { return };
        let Some((_, planner)) = &mut image.open else { return };
        // It may have come from elsewhere in the meantime.
        let times = asked.as_ref().map(|asked| (asked.spent, asked.cpu));
        let (spent, cpu) = times.unwrap_or_default();
        let took = asked.and_then(|asked| asked.at).map(|at| now.at.saturating_duration_since(at));
        if let Some(layer) = planner.arrived(group, took, now.at) {
            image.waits.remove(&group);
            self.output.push(RunningOutput::Group { image: key, group, bytes, layer, spent, cpu });
        }
    }

    /// The caller has looked a group up that a peer says it has.
    pub(crate) fn looked_up(
        &mut self,
        key: ImageKey,
        group: u64,
        bytes: Option<Vec<u8>>,
        now: Moment,
    ) {
        let Some(image) = self.images.get(&key) else { return };
        let Some((head, _)) = &image.open else { return };
        let place = image.holders.iter().find_map(|(connection, holder)| {
            let name = (holder.stage.number()?, group);
            let asked = self.links.get(connection)?.asked.get(&name)?;
            Some((*connection, name, asked.look_up.clone()?))
        });
        let Some((connection, name, (hash, proof))) = place else {
            return self.looked_up_alone(key, group, bytes, now);
        };
        // What is not what it was said to be is not here.
        let bytes = bytes.filter(|bytes| head.leaf(group, bytes).is_ok_and(|leaf| leaf == hash));
        let is_right = |bytes: &Vec<u8>| head.verify_group(group, bytes, &proof).is_ok();
        match bytes {
            Some(bytes) if is_right(&bytes) => {
                let link = self.links.get_mut(&connection);
                let asked = link.and_then(|link| link.asked.remove(&name));
                if let Some((_, planner)) = self.planner(key) {
                    planner.was_here(group);
                }
                self.arrived(key, group, bytes, asked, now);
                self.need_not(key, connection, group);
            }
            Some(_) => {
                let why = ProtocolError::WrongGroup { image: head.hash().to_string(), group };
                self.fail(connection, why);
            }
            None => {
                let link = self.links.get_mut(&connection);
                let Some(link) = link else { return };
                let hashes = link.lacks(hash);
                let Some(asked) = link.asked.get_mut(&name) else { return };
                // What the peer has said before it hears of that is no lie.
                (asked.look_up, asked.is_lacking) = (None, true);
                let priority = match &mut asked.urgent_since {
                    Some(since) => {
                        // The peer is not to blame for the time until now.
                        *since = now.at;
                        Priority::Urgent
                    }
                    None => Priority::Planned,
                };
                if let Some(image) = self.images.get_mut(&key) {
                    image.here.remove(&group);
                }
                if !hashes.is_empty() {
                    self.send(connection, &Message::Lack { hashes });
                }
                let groups = vec![GroupRange { first: group, count: 1 }];
                self.send(connection, &Message::Ask { image: name.0, priority, groups });
            }
        }
    }

    /// The same, after who has said what the group is has left.
    fn looked_up_alone(&mut self, key: ImageKey, group: u64, bytes: Option<Vec<u8>>, now: Moment) {
        let comes = self.comes(key, group);
        let Some(image) = self.images.get_mut(&key) else { return };
        let Some((hash, proof)) = image.said.remove(&group) else { return };
        let Some((head, planner)) = &mut image.open else { return };
        let is_right = |bytes: &Vec<u8>| {
            head.leaf(group, bytes).is_ok_and(|leaf| leaf == hash)
                && head.verify_group(group, bytes, &proof).is_ok()
        };
        match bytes.filter(is_right) {
            Some(bytes) => {
                planner.was_here(group);
                image.here.remove(&group);
                self.arrived(key, group, bytes, None, now);
            }
            // It is asked for as what never came, and is not said to be here again. Another holder may send it unasked.
            None => {
                image.here.remove(&group);
                if !comes {
                    planner.lost(group);
                }
            }
        }
    }

    /// Whether a holder owes a group.
    fn comes(&self, key: ImageKey, group: u64) -> bool {
        let Some(image) = self.images.get(&key) else { return false };
        image.holders.iter().any(|(connection, holder)| {
            let link = self.links.get(connection).zip(holder.stage.number());
            link.is_some_and(|(link, number)| link.asked.contains_key(&(number, group)))
        })
    }

    /// Groups that were taken back will not come.
    fn dropped(
        &mut self,
        connection: ConnectionId,
        number: u32,
        groups: &[GroupRange],
    ) -> Result<(), ProtocolError> {
        let Some(link) = self.links.get_mut(&connection) else { return Ok(()) };
        let image = link.images.get(&number).and_then(|key| self.images.get(key));
        let planner = image.and_then(|image| image.open.as_ref()).map(|(_, planner)| planner);
        for range in groups {
            let groups = range.groups().filter(|_| range.count as usize <= link.asked.len());
            for group in groups.ok_or(NOT_ASKED)? {
                // Only what is here from elsewhere was taken back.
                let is_here = planner.is_some_and(|planner| planner.is_present(group));
                link.asked.remove(&(number, group)).filter(|_| is_here).ok_or(NOT_ASKED)?;
            }
        }
        Ok(())
    }

    /// A peer is no source of an image any more: what it was asked for is asked of others.
    pub(crate) fn lose_holder(&mut self, key: ImageKey, connection: ConnectionId, why: HolderLoss) {
        let Some(image) = self.images.get_mut(&key) else { return };
        let Some(holder) = image.holders.remove(&connection) else { return };
        if let Some(number) = holder.stage.number() {
            let mut owed = Vec::new();
            if let Some(link) = self.links.get(&connection) {
                for ((_, group), asked) in link.asked.range((number, 0)..=(number, u64::MAX)) {
                    match &asked.look_up {
                        // It needs nobody any more, if it is here.
                        Some(said) => drop(image.said.insert(*group, said.clone())),
                        None => owed.push(*group),
                    }
                }
            }
            self.forget(connection, number, holder.stage.is_opening());
            // Another one may have sent it, unasked: what it would send again would be one too many.
            owed.retain(|group| !self.comes(key, *group));
            let image = self.images.get_mut(&key).and_then(|image| image.open.as_mut());
            if let Some((_, planner)) = image {
                owed.into_iter().for_each(|group| planner.lost(group));
            }
        }
        self.output.push(RunningOutput::HolderLost { image: key, connection, why });
    }
}

/// When a lease of this length is to be renewed; `None` if there is none, or only the rest of a
/// token's time, of which each renewal would give half.
fn half_of_lease(lease_ms: u64, now: Moment) -> Option<Instant> {
    now.at.checked_add(Duration::from_millis(lease_ms / 2)).filter(|_| lease_ms >= LEASE_MIN_MS)
}
