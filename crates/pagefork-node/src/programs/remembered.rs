//! Of which programs of other nodes it is remembered what became of them here, and until when.
//!
//! A source that has no answer sends its hand-over again, over another connection, and what it has sent over
//! older ones may be read later. So a record is needed until its source knows, the program is over, and all
//! connections have ended that the source had by then.

use std::collections::{BTreeMap, BTreeSet};

use pagefork_image::PublicKey;
use pagefork_postcopy::MigrationId;

/// Hand-overs that were taken or declined here, and the connections of those that may ask for them.
#[derive(Debug, Default)]
pub(super) struct RememberedMoves {
    moves: BTreeMap<MigrationId, RememberedMove>,
    /// Connections, and whose they are if that is known; by how many there were before.
    open: BTreeSet<(Option<PublicKey>, u64)>,
    begun: u64,
}

#[derive(Debug)]
struct RememberedMove {
    from: PublicKey,
    /// It is needed by connections alone that had begun by then.
    needless_since: Option<u64>,
}

impl RememberedMoves {
    /// Programs of a node.
    pub(super) fn count(&self, from: &PublicKey) -> usize {
        self.moves.values().filter(|known| known.from == *from).count()
    }

    pub(super) fn keep(&mut self, migration: MigrationId, from: PublicKey, is_needless: bool) {
        let needless_since = is_needless.then_some(self.begun);
        self.moves.insert(migration, RememberedMove { from, needless_since });
    }

    pub(super) fn forget(&mut self, migration: MigrationId) {
        self.moves.remove(&migration);
    }

    /// A connection begins, which may be of any node. Returns its number.
    pub(super) fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.open.insert((None, self.begun));
        self.begun
    }

    /// Of which node a connection is.
    pub(super) fn name(&mut self, number: u64, from: PublicKey) {
        self.open.remove(&(None, number));
        self.open.insert((Some(from), number));
    }

    /// A connection has ended, which was of that node if it was named.
    pub(super) fn end(&mut self, number: u64, from: Option<PublicKey>) {
        self.open.remove(&(from, number));
    }

    /// How many connections there are.
    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        self.open.len()
    }

    /// What nobody needs any more.
    pub(super) fn needless(&self) -> Vec<MigrationId> {
        let oldest = |of: Option<PublicKey>| {
            let first = self.open.range((of, 0)..).next().filter(|(known, _)| *known == of);
            first.map_or(u64::MAX, |(_, number)| *number)
        };
        let unnamed = oldest(None);
        let is_needless = |known: &RememberedMove| {
            known.needless_since.is_some_and(|at| at < unnamed && at < oldest(Some(known.from)))
        };
        let needless = self.moves.iter().filter(|(_, known)| is_needless(known));
        needless.map(|(migration, _)| *migration).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOVE: MigrationId = MigrationId([7; 16]);

    fn begin(all: &mut RememberedMoves, from: PublicKey) -> u64 {
        let number = all.begin();
        all.name(number, from);
        number
    }

    #[test]
    fn a_move_is_remembered_while_a_connection_is_there_that_may_ask_for_it() {
        let mut all = RememberedMoves::default();
        let [from, other] = [1, 2].map(|byte| PublicKey::from_bytes([byte; 32]));
        let (first, second) = (begin(&mut all, from), begin(&mut all, from));
        let strange = all.begin();
        all.keep(MOVE, from, false);
        assert_eq!((all.count(&from), all.count(&other)), (1, 0));
        all.end(second, Some(from));
        let third = begin(&mut all, from);
        all.keep(MOVE, from, true);
        all.end(third, Some(from));
        let (later, others) = (begin(&mut all, from), begin(&mut all, other));
        assert!(all.needless().is_empty(), "what the first has sent may be read yet");
        all.end(first, Some(from));
        assert!(all.needless().is_empty(), "another one may be of the same node");
        all.end(strange, None);
        assert_eq!(all.needless(), [MOVE], "no connection is as old");
        all.end(later, Some(from));
        all.end(others, Some(other));
        all.forget(MOVE);
        assert!(all.needless().is_empty() && all.count(&from) == 0 && all.open.is_empty());
    }

    #[test]
    fn a_move_that_is_needed_stays() {
        let mut all = RememberedMoves::default();
        let from = PublicKey::from_bytes([1; 32]);
        all.keep(MOVE, from, false);
        assert!(all.needless().is_empty());
        all.keep(MOVE, from, true);
        assert_eq!(all.needless(), [MOVE], "there is no connection");
    }
}
