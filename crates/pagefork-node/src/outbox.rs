//! What is to be sent and was not yet: what is waited for goes first.

use std::collections::VecDeque;

use pagefork_postcopy::Lane;

/// Whole messages, of which that of a lower lane goes before those of higher ones.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    lanes: [VecDeque<Vec<u8>>; 4],
    /// The message that has begun to go.
    current: Vec<u8>,
    /// Of it, how many bytes are gone.
    gone: usize,
}

impl Outbox {
    /// The place of a lane. What guests wait for goes before all else.
    fn place(lane: Lane) -> usize {
        match lane {
            Lane::Urgent => 0,
            Lane::Control => 1,
            Lane::Planned => 2,
            Lane::Background => 3,
        }
    }

    pub(crate) fn push(&mut self, lane: Lane, message: Vec<u8>) {
        self.lanes[Self::place(lane)].push_back(message);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.gone == self.current.len() && self.lanes.iter().all(VecDeque::is_empty)
    }

    /// Bytes that are not gone.
    pub(crate) fn size(&self) -> usize {
        let rest = self.lanes.iter().flatten().map(Vec::len).sum::<usize>();
        self.current.len() - self.gone + rest
    }

    /// The bytes that are to go next; none if nothing is to be sent.
    pub(crate) fn next(&mut self) -> &[u8] {
        if self.gone == self.current.len() {
            let first = self.lanes.iter_mut().find_map(VecDeque::pop_front);
            (self.current, self.gone) = (first.unwrap_or_default(), 0);
        }
        &self.current[self.gone..]
    }

    /// So many of these are gone.
    pub(crate) fn advance(&mut self, count: usize) {
        self.gone += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_overtakes_whole_messages() {
        let mut outbox = Outbox::default();
        outbox.push(Lane::Background, b"background 1,".to_vec());
        outbox.push(Lane::Background, b"background 2,".to_vec());
        let mut sent = Vec::new();
        let mut send = |outbox: &mut Outbox, size: usize| {
            let next = outbox.next();
            let size = size.min(next.len());
            sent.extend_from_slice(&next[..size]);
            outbox.advance(size);
            size > 0
        };
        send(&mut outbox, 4);
        outbox.push(Lane::Planned, b"planned,".to_vec());
        outbox.push(Lane::Control, b"control,".to_vec());
        outbox.push(Lane::Urgent, b"urgent,".to_vec());
        assert!(!outbox.is_empty());
        assert_eq!(outbox.size(), "ground 1,urgent,control,planned,background 2,".len());
        while send(&mut outbox, 3) {}
        assert!(outbox.is_empty());
        let order: &[u8] = b"background 1,urgent,control,planned,background 2,";
        assert_eq!(sent, order);
    }
}
