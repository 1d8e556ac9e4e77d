//! Migrations, over connections that are lost and processes that end at any step: there are never
//! two owners.

use std::collections::VecDeque;
use std::time::Duration;

use pagefork_image::ContentHash;
use pagefork_postcopy::{
    KnownRecords, MigrationId, MigrationMessage, MigrationSource, MigrationStep, MigrationTarget,
    Moment, SourceInput, SourceOutput, SourceRecord, SourceState, TargetInput, TargetOutput,
    TargetRecord, TargetState,
};

use crate::network::{Numbers, start};

const ID: MigrationId = MigrationId([3; 16]);
const PATIENCE: Duration = Duration::from_secs(10);

/// Both sides, their disks, and what is on its way.
struct World {
    now: Moment,
    numbers: Numbers,
    source: MigrationSource,
    target: MigrationTarget,
    source_disk: Option<SourceRecord>,
    target_disk: Option<TargetRecord>,
    /// What was kept last, and need not be on the disk.
    source_note: Option<SourceRecord>,
    target_note: Option<TargetRecord>,
    up: VecDeque<MigrationMessage>,
    down: VecDeque<MigrationMessage>,
    is_connected: bool,
    /// Who runs the instance.
    source_runs: bool,
    target_runs: bool,
    /// How often it has begun at the target.
    begun: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let now = start();
        let (source, outputs) = MigrationSource::offer(ID, 4, "counter", PATIENCE, now);
        let mut world = Self {
            now,
            numbers: Numbers(seed),
            source,
            target: MigrationTarget::new(ID),
            source_disk: None,
            target_disk: None,
            source_note: None,
            target_note: None,
            up: VecDeque::new(),
            down: VecDeque::new(),
            is_connected: true,
            source_runs: true,
            target_runs: false,
            begun: 0,
        };
        world.source_does(outputs);
        world
    }

    fn source_does(&mut self, outputs: Vec<SourceOutput>) {
        for output in outputs {
            match output {
                SourceOutput::Record(record) => {
                    (self.source_disk, self.source_note) = (Some(record), None);
                }
                SourceOutput::Note(record) => self.source_note = Some(record),
                SourceOutput::Send(message) if self.is_connected => self.up.push_back(message),
                SourceOutput::GoesOn { .. } => self.source_runs = true,
                _ => {}
            }
        }
    }

    fn tell_source(&mut self, input: SourceInput) {
        let outputs = self.source.handle(input, self.now);
        self.source_does(outputs);
    }

    fn tell_target(&mut self, input: TargetInput) {
        let outputs = self.target.handle(input);
        self.target_does(outputs);
    }

    fn target_does(&mut self, outputs: Vec<TargetOutput>) {
        for output in outputs {
            match output {
                TargetOutput::Record(record) => {
                    (self.target_disk, self.target_note) = (Some(record), None);
                }
                TargetOutput::Note(record) => self.target_note = Some(record),
                TargetOutput::Send(message) if self.is_connected => self.down.push_back(message),
                TargetOutput::Own => {
                    self.target_runs = true;
                    self.begun += 1;
                    assert_eq!(self.begun, 1, "it has begun twice at its target");
                }
                _ => {}
            }
        }
    }

    fn disconnect(&mut self) {
        self.is_connected = false;
        self.up.clear();
        self.down.clear();
    }

    /// What another process finds: a note as long as the system goes on, and after that by chance.
    fn kept<R>(&mut self, disk: Option<R>, note: Option<R>) -> (Option<R>, KnownRecords) {
        match self.numbers.below(4) {
            0 => (disk, KnownRecords::OnDisk),
            1 => (note.or(disk), KnownRecords::OnDisk),
            _ => (note.or(disk), KnownRecords::All),
        }
    }

    fn restart_source(&mut self) {
        self.disconnect();
        let (disk, note) = (self.source_disk.take(), self.source_note.take());
        let (record, knows) = self.kept(disk, note);
        let record = record.expect("the first record is written before all");
        self.source_disk = Some(record.clone());
        let (source, outputs) = MigrationSource::restore(record, knows);
        // An instance that had been running is started from what was saved.
        self.source_runs = *source.state() == SourceState::GoesOn;
        self.source = source;
        self.source_does(outputs);
    }

    fn restart_target(&mut self) {
        self.disconnect();
        let (disk, note) = (self.target_disk.take(), self.target_note.take());
        let (record, knows) = self.kept(disk, note);
        self.target_disk.clone_from(&record);
        let (target, outputs) = match record {
            Some(record) => MigrationTarget::restore(record, knows),
            None => (MigrationTarget::new(ID), Vec::new()),
        };
        self.target = target;
        self.target_does(outputs);
        // It does not go on after its process has ended, and never begins again.
        self.target_runs = self.target.state() == TargetState::Own;
    }

    fn step(&mut self, with_faults: bool) {
        let kinds = if with_faults { 13 } else { 10 };
        match self.numbers.below(kinds) {
            0 | 1 => {
                if let Some(message) = self.up.pop_front() {
                    self.tell_target(TargetInput::Received(message));
                }
            }
            2 | 3 => {
                if let Some(message) = self.down.pop_front() {
                    self.tell_source(SourceInput::Received(message));
                }
            }
            4 if !self.is_connected => {
                self.is_connected = true;
                self.tell_source(SourceInput::Connected);
            }
            5 => self.tell_target(TargetInput::Accept),
            6 if *self.source.state() == SourceState::Accepted => {
                self.source_runs = false;
                let (image, token) = (ContentHash::of(b"image"), vec![1]);
                self.tell_source(SourceInput::HandOver { image, token });
            }
            7 => self.tell_target(TargetInput::Take),
            8 if *self.source.state() == SourceState::Accepted && self.numbers.below(2) == 0 => {
                let (image, token) = (ContentHash::of(b"ahead"), Vec::new());
                self.tell_source(SourceInput::Ahead { image, token });
                self.tell_target(TargetInput::AheadHere(image));
            }
            8 if self.numbers.below(8) == 0 => {
                self.tell_target(TargetInput::Refuse { text: "full".into() });
            }
            9 => {
                self.now = self.now.after(Duration::from_millis(self.numbers.below(500)));
                self.tell_source(SourceInput::Tick);
                if self.numbers.below(16) == 0 {
                    self.tell_source(SourceInput::Withdraw);
                }
            }
            10 => self.disconnect(),
            11 if self.numbers.below(4) == 0 => self.restart_source(),
            12 if self.numbers.below(4) == 0 => self.restart_target(),
            _ => {}
        }
        assert!(!(self.source_runs && self.target_runs), "two owners");
    }

    fn is_settled(&self) -> bool {
        match self.source.state() {
            // Or the target's system has ended with the instance, and does not know that it had it.
            SourceState::Taken => {
                matches!(self.target.state(), TargetState::Own | TargetState::Declined)
            }
            SourceState::GoesOn => self.target.state() != TargetState::Own,
            // Or the source does not know, and asks nobody but an operator.
            SourceState::Declined => true,
            _ => false,
        }
    }
}

#[test]
fn there_are_never_two_owners_whatever_is_lost() {
    let (mut taken, mut kept, mut declined) = (0, 0, 0);
    for seed in 0..40_000 {
        let mut world = World::new(seed);
        (0..60).for_each(|_| world.step(true));
        // Once faults end, so does the migration.
        for step in 0.. {
            world.step(false);
            if world.is_settled() {
                break;
            }
            assert!(step < 20_000, "seed {seed}: {:?}", world.source.state());
        }
        match world.source.state() {
            SourceState::Taken => {
                let runs = world.target.state() == TargetState::Own;
                assert!(world.target_runs == runs && !world.source_runs);
                taken += u32::from(runs);
            }
            SourceState::GoesOn => {
                assert!(world.source_runs && !world.target_runs);
                kept += 1;
            }
            _ => {
                assert!(!world.source_runs, "nobody asked an operator");
                declined += 1;
            }
        }
    }
    assert!(taken > 100 && kept > 100 && declined > 10, "{taken} {kept} {declined}");
}

fn sent(outputs: &[SourceOutput]) -> Vec<&MigrationStep> {
    let steps = outputs.iter().filter_map(|output| match output {
        SourceOutput::Send(message) => Some(&message.step),
        _ => None,
    });
    steps.collect()
}

/// A source that has handed over.
fn handed_over() -> (MigrationSource, Moment) {
    let now = start();
    let (mut source, _) = MigrationSource::offer(ID, 4, "counter", PATIENCE, now);
    let accept = MigrationMessage { migration: ID, epoch: 4, step: MigrationStep::Accept };
    source.handle(SourceInput::Received(accept), now);
    let outputs = source
        .handle(SourceInput::HandOver { image: ContentHash::of(b"image"), token: vec![1] }, now);
    // It is noted before the target hears of it.
    assert!(matches!(outputs[0], SourceOutput::Note(_)));
    assert!(matches!(sent(&outputs)[..], [MigrationStep::HandOver { .. }]));
    (source, now)
}

#[test]
fn after_the_hand_over_only_an_operator_makes_the_source_go_on() {
    let message = |epoch, step| MigrationMessage { migration: ID, epoch, step };
    let refuse = || MigrationStep::Refuse { text: "changed its mind".into() };
    let (mut source, now) = handed_over();
    let late = now.after(Duration::from_secs(1_000_000));
    for input in [
        SourceInput::Tick,
        SourceInput::Withdraw,
        SourceInput::Received(message(4, refuse())),
        SourceInput::Received(message(4, MigrationStep::Accept)),
        SourceInput::Received(message(3, MigrationStep::Taken)),
        SourceInput::HandOver { image: ContentHash::of(b"other"), token: vec![] },
    ] {
        assert_eq!(source.handle(input, late), []);
        assert!(matches!(source.state(), SourceState::HandedOver { .. }));
    }
    let again = source.handle(SourceInput::Connected, late);
    assert!(matches!(sent(&again)[..], [MigrationStep::HandOver { .. }]));

    let (mut declined, _) = handed_over();
    let step = MigrationStep::Declined { text: "no room".into() };
    declined.handle(SourceInput::Received(message(4, step)), now);
    assert_eq!(*declined.state(), SourceState::Declined);
    for source in [&mut source, &mut declined] {
        let outputs = source.handle(SourceInput::OperatorGoesOn, late);
        assert!(matches!(outputs.last(), Some(SourceOutput::GoesOn { .. })));
        assert_eq!(sent(&outputs), [&MigrationStep::Withdraw]);
    }
    let (mut taken, _) = handed_over();
    taken.handle(SourceInput::Received(message(4, MigrationStep::Taken)), now);
    assert_eq!(taken.handle(SourceInput::OperatorGoesOn, late), [], "it is the target's");
}

#[test]
fn before_the_hand_over_whatever_goes_wrong_leaves_the_instance_where_it_is() {
    let now = start();
    let offered = || MigrationSource::offer(ID, 4, "counter", PATIENCE, now).0;
    let refuse = MigrationStep::Refuse { text: "no room".into() };
    let refused = MigrationMessage { migration: ID, epoch: 4, step: refuse };
    for (input, at) in [
        (SourceInput::Tick, now.after(PATIENCE)),
        (SourceInput::Withdraw, now),
        (SourceInput::Received(refused), now),
    ] {
        let mut source = offered();
        assert_eq!(source.deadline(), Some(now.at + PATIENCE));
        let outputs = source.handle(input, at);
        assert!(matches!(outputs.last(), Some(SourceOutput::GoesOn { .. })), "{outputs:?}");
        assert_eq!(*source.state(), SourceState::GoesOn);
        assert_eq!(source.deadline(), None);
        let late = source.handle(SourceInput::Connected, at);
        assert_eq!(sent(&late), [&MigrationStep::Withdraw]);
    }
}
