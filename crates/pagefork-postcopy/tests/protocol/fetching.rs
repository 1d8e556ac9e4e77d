//! Images that are fetched: contents, order, limits, loss.

use std::time::Duration;

use pagefork_image::{ContentHash, GROUP_SIZE};
use pagefork_postcopy::{
    FetchLimits, FetchPlan, HolderLoss, PlanLayer, PlanReport, RunningInput, RunningNode,
    RunningOutput, ServeLimits,
};

use crate::network::{CPU_OF_READ, Faults, KEY, Network, image};

const MINUTE: Duration = Duration::from_secs(60);

fn delay(milliseconds: u64) -> Faults {
    Faults { delay: Duration::from_millis(milliseconds), ..Faults::none() }
}

/// A plan that asks for what guests wait for, and nothing else.
fn on_demand() -> FetchPlan {
    FetchPlan { stride: false, background: false, ..FetchPlan::default() }
}

fn need(network: &mut Network, group: u64) {
    let deadline = network.now.at + MINUTE;
    network.tell(RunningInput::Need { image: KEY, group, deadline });
}

fn is_open(network: &Network) -> bool {
    network.seen.iter().any(|seen| matches!(seen, RunningOutput::Opened { .. }))
}

fn report(network: &Network) -> &PlanReport {
    let whole = network.seen.iter().find_map(|seen| match seen {
        RunningOutput::Whole { report, .. } => Some(report),
        _ => None,
    });
    whole.unwrap_or_else(|| network.runner.report(KEY).unwrap())
}

#[test]
fn every_image_comes_whole_and_right() {
    for groups in [1, 2, 3, 7, 64, 65, 300] {
        let mut network = Network::new(image(groups, groups), groups, delay(3));
        network.open(FetchPlan::default());
        network.connect(Vec::new());
        assert!(network.run(MINUTE, Network::is_whole), "{groups} groups");
        assert_eq!(network.groups.len() as u64, groups);
        assert!(network.run(MINUTE, |network| network.leases.is_empty()));
    }
}

#[test]
fn what_groups_take_of_a_memory_nodes_processor_is_told_to_the_microsecond() {
    let mut network = Network::new(image(50, 1), 1, Faults::none());
    network.open(FetchPlan::default());
    network.connect(Vec::new());
    assert!(network.run(MINUTE, Network::is_whole));
    let (all, told) = (CPU_OF_READ * network.groups.len() as u32, network.cpu);
    assert!(told <= all && all - told < Duration::from_micros(1), "{told:?} of {all:?}");
}

#[test]
fn random_faults_delays_orders_and_losses_change_no_byte() {
    for seed in 0..60 {
        let faults = Faults {
            delay: Duration::from_millis(seed % 20),
            cut: [0, 40, 200][seed as usize % 3],
            pieces: seed % 2 == 0,
        };
        let groups = 40 + seed;
        let mut network = Network::new(image(groups, seed), seed, faults);
        network.certain = vec![3..5, 0..2];
        network.open(FetchPlan { recorded: vec![7..20], ..FetchPlan::default() });
        for step in 0..10_000 {
            while network.wires.len() < 1 + seed as usize % 3 {
                network.connect(Vec::new());
            }
            if network.numbers.below(4) == 0 {
                let group = network.numbers.below(groups);
                need(&mut network, group);
            }
            if network.run(Duration::from_millis(1), Network::is_whole) {
                break;
            }
            assert!(step < 9_999, "seed {seed}: {} of {groups} groups", network.groups.len());
        }
        assert_eq!(network.groups.len() as u64, groups, "seed {seed}");
        let overdue = network.seen.iter().any(|seen| matches!(seen, RunningOutput::Overdue { .. }));
        assert!(!overdue, "seed {seed}");
    }
}

#[test]
fn the_first_group_is_here_after_two_round_trips_whatever_the_size() {
    for groups in [4, 400] {
        let mut network = Network::new(image(groups, 1), 1, Faults::none());
        network.certain = vec![1..3];
        network.open(on_demand());
        network.connect(Vec::new());
        // Greeting and opening, their answers, and what follows: nothing else was sent.
        assert!(network.run(Duration::ZERO, |network| network.groups.len() == 2));
        assert!(network.bytes_down < 2000 + 3 * GROUP_SIZE as usize, "{}", network.bytes_down);
        assert_eq!(report(&network).counts(PlanLayer::Certain).arrived, 2);
    }
}

#[test]
fn certain_groups_come_in_their_order_each_once_and_the_first_ones_of_too_many() {
    let mut network = Network::new(image(400, 1), 1, Faults::none());
    network.certain = vec![300..302, 5..6, 301..303, 100..300];
    network.open(on_demand());
    network.connect(Vec::new());
    assert!(!network.run(Duration::ZERO, |network| network.groups.len() > 64));
    let first = [300, 301, 5, 302].into_iter().chain(100..160);
    assert_eq!(network.order, first.collect::<Vec<u64>>());
}

#[test]
fn only_what_guests_wait_for_travels_without_a_plan() {
    let mut network = Network::new(image(100, 4), 4, Faults::none());
    network.open(on_demand());
    network.connect(Vec::new());
    assert!(network.run(MINUTE, is_open));
    for group in [50, 3, 99] {
        need(&mut network, group);
        need(&mut network, group);
    }
    assert!(network.run(MINUTE, |network| network.groups.len() == 3));
    assert!(!network.run(MINUTE, |network| network.groups.len() > 3));
    assert_eq!(report(&network).counts(PlanLayer::Fault).asked, 3);
}

#[test]
fn what_a_guest_waits_for_overtakes_what_nobody_does() {
    let mut network = Network::new(image(300, 5), 5, Faults::none());
    network.serve =
        ServeLimits { bytes_in_flight: 4 * GROUP_SIZE as usize, ..ServeLimits::default() };
    network.open(FetchPlan { background_window: 200, ..FetchPlan::default() });
    network.connect(Vec::new());
    assert!(network.run(MINUTE, |network| network.groups.len() > 10));
    let before = network.groups.len();
    need(&mut network, 180);
    assert!(network.run(MINUTE, |network| network.groups.contains(&180)));
    assert!(network.groups.len() <= before + 30, "{} came before", network.groups.len() - before);
}

#[test]
fn bytes_on_their_way_and_requests_stay_within_their_limits() {
    let mut network = Network::new(image(300, 6), 6, delay(5));
    network.serve =
        ServeLimits { requests: 8, bytes_in_flight: 40_000, images: 1, ..ServeLimits::default() };
    network.open(FetchPlan { background_window: 1000, ..FetchPlan::default() });
    network.connect(Vec::new());
    (0..300).for_each(|group| need(&mut network, group));
    assert!(network.run(MINUTE, Network::is_whole));
    assert!(network.in_flight_max <= 40_000 + 20_000, "{} bytes", network.in_flight_max);
    assert_eq!(network.left, [""; 0]);
}

#[test]
fn a_peer_that_allows_few_requests_is_asked_for_the_rest_too() {
    for requests in [1, 2, 8] {
        let mut network = Network::new(image(30, 6), 6, Faults::none());
        network.serve = ServeLimits { requests, ..ServeLimits::default() };
        network.open(FetchPlan::default());
        network.connect(Vec::new());
        assert!(network.run(MINUTE, Network::is_whole), "{requests} requests");
    }
}

#[test]
fn zeros_and_what_is_here_already_do_not_travel() {
    let reader = image(200, 7);
    let contents: Vec<Vec<u8>> = (0..200).map(|group| reader.read_group(group).unwrap()).collect();
    let zeros = contents.iter().filter(|bytes| bytes.iter().all(|byte| *byte == 0)).count();
    assert!(zeros > 20);
    let mut network = Network::new(reader, 7, Faults::none());
    // Few fit in the memory node's mind: each is told before it is asked for, and taken back.
    network.serve.known_groups = 300;
    let leaves = network.image.leaves(1..200).unwrap();
    for (group, leaf) in (1..200).zip(leaves) {
        network.cache.insert((group, leaf), contents[group as usize].clone());
        network.cache.insert((group, ContentHash::of(&group.to_le_bytes())), vec![1; 16384]);
    }
    // Nothing is asked for before it is known what is here.
    let plan = FetchPlan { held: true, background_window: 32, ..FetchPlan::default() };
    network.open(plan);
    network.connect(Vec::new());
    assert!(network.run(MINUTE, is_open));
    network.tell(RunningInput::Begin { image: KEY, recorded: Vec::new(), looks_here: false });
    assert!(network.run(MINUTE, Network::is_whole));
    let looked_up =
        network.seen.iter().filter(|seen| matches!(seen, RunningOutput::LookUp { .. })).count();
    assert_eq!(looked_up, 199);
    let report = network.seen.iter().find_map(|seen| match seen {
        RunningOutput::Whole { report, .. } => Some(report.here),
        _ => None,
    });
    assert_eq!(report, Some(199));
    // Proofs of up to eight hashes, and one group.
    assert!(network.bytes_down < 200 * 400 + 40_000, "{} bytes", network.bytes_down);
}

#[test]
fn what_was_here_and_is_no_more_is_fetched() {
    let reader = image(50, 8);
    let mut network = Network::new(reader, 8, delay(2));
    network.open(on_demand());
    let leaves = network.image.leaves(0..50).unwrap();
    // Of some nothing is here, and of others it is something else.
    let lost = [Vec::new(), vec![9; 16384]];
    let lost = (0..50).zip(leaves).map(|place| (place, lost[place.0 as usize % 2].clone()));
    network.cache = lost.collect();
    network.connect(Vec::new());
    assert!(network.run(MINUTE, is_open));
    (0..50).for_each(|group| need(&mut network, group));
    assert!(network.run(MINUTE, Network::is_whole));
    let here = network.seen.iter().find_map(|seen| match seen {
        RunningOutput::Whole { report, .. } => Some(report.here),
        _ => None,
    });
    assert_eq!(here, Some(0));
    assert_eq!(network.left, [""; 0]);
}

#[test]
fn groups_from_elsewhere_are_taken_back_and_not_given_out() {
    let mut network = Network::new(image(100, 9), 9, delay(10));
    network.serve = ServeLimits { bytes_in_flight: 20_000, ..ServeLimits::default() };
    network.open(on_demand());
    network.connect(Vec::new());
    assert!(network.run(MINUTE, is_open));
    (0..100).for_each(|group| need(&mut network, group));
    network.tell(RunningInput::Given { image: KEY, groups: 200..201 });
    network.tell(RunningInput::Given { image: KEY, groups: 10..u64::MAX });
    assert!(network.run(MINUTE, Network::is_whole));
    assert!(network.groups.iter().all(|group| *group < 10), "{:?}", network.groups);
    // All but a few were taken back in time.
    assert!(network.bytes_down < 40 * 17_000, "{} bytes", network.bytes_down);
    assert!(!network.run(MINUTE * 10, |network| !network.left.is_empty()));
}

#[test]
fn a_lost_source_is_a_question_to_others() {
    let mut network = Network::new(image(200, 10), 10, delay(4));
    network.open(FetchPlan::default());
    let first = network.connect(Vec::new());
    assert!(network.run(MINUTE, |network| network.groups.len() > 30));
    network.connect(Vec::new());
    network.cut(first);
    assert!(network.run(MINUTE, Network::is_whole));
    let lost = network.seen.iter().filter(|seen| {
        matches!(seen, RunningOutput::HolderLost { why: HolderLoss::Disconnected, .. })
    });
    assert_eq!(lost.count(), 1);
    assert!(!network.seen.iter().any(|seen| matches!(seen, RunningOutput::Stranded { .. })));
}

#[test]
fn without_a_source_waits_end_at_their_deadlines_and_go_on_with_another_one() {
    let mut network = Network::new(image(20, 11), 11, Faults::none());
    network.open(on_demand());
    let only = network.connect(Vec::new());
    assert!(network.run(MINUTE, is_open));
    network.cut(only);
    assert!(matches!(network.seen.last(), Some(RunningOutput::Stranded { image: KEY })));
    let deadline = network.now.at + Duration::from_secs(3);
    network.tell(RunningInput::Need { image: KEY, group: 5, deadline });
    let is_overdue = |network: &Network| {
        matches!(network.seen.last(), Some(RunningOutput::Overdue { image: KEY, group: 5 }))
    };
    assert!(!network.run(Duration::from_millis(2999), is_overdue));
    assert!(network.run(Duration::from_millis(1), is_overdue));
    network.connect(Vec::new());
    assert!(network.run(MINUTE, |network| network.groups.contains(&5)));
}

#[test]
fn leases_are_renewed_and_released_and_outlive_a_lost_connection() {
    let mut network = Network::new(image(20, 12), 12, delay(1));
    network.open(on_demand());
    let connection = network.connect(Vec::new());
    assert!(network.run(MINUTE, is_open));
    let hash = network.image.hash();
    for _ in 0..10 {
        network.run(Duration::from_secs(200), |_| false);
        assert!(network.leases[&hash] > network.now.at);
    }
    assert_eq!(network.left, [""; 0]);
    network.cut(connection);
    assert!(network.leases[&hash] > network.now.at);
    network.connect(Vec::new());
    network.run(MINUTE, |_| false);
    network.tell(RunningInput::Close { image: KEY });
    assert!(network.run(MINUTE, |network| network.leases.is_empty()));
}

#[test]
fn an_image_of_another_hash_is_not_taken_for_the_one_that_was_meant() {
    let mut network = Network::new(image(20, 13), 13, Faults::none());
    let (name, hash) = ("counter".to_owned(), Some(ContentHash::of(b"another")));
    network.tell(RunningInput::Open { image: KEY, name, hash, plan: FetchPlan::default() });
    network.connect(Vec::new());
    assert!(!network.run(MINUTE, is_open));
    let is_other = |seen: &RunningOutput| {
        matches!(seen, RunningOutput::HolderLost { why: HolderLoss::OtherImage, .. })
    };
    assert!(network.seen.iter().any(is_other));
    assert!(network.leases.is_empty());
}

#[test]
fn one_running_node_fetches_within_its_own_limits() {
    let mut network = Network::new(image(100, 14), 14, delay(3));
    let limits = FetchLimits { requests: 2, urgent_requests: 16, ..FetchLimits::default() };
    network.runner = RunningNode::new(limits);
    network.open(FetchPlan::default());
    network.connect(Vec::new());
    assert!(network.run(MINUTE, is_open));
    (0..100).step_by(3).for_each(|group| need(&mut network, group));
    assert!(network.run(MINUTE, Network::is_whole));
}
