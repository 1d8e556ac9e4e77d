//! Who sends: the thread that is there for it, and the one that hashes where that has no processor.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use pagefork_image::SecretKey;

use super::*;
use crate::base::NodeTimes;
use crate::duplex::Duplex;
use crate::programs::wire::Inbox;
use crate::strangers::{TRANSPORTS, stranger};

/// A connection with a node that tells what changes come, in their order, once the connection is over.
fn link(transport: crate::address::Transport) -> (NodeLink, mpsc::Receiver<Vec<(u64, Vec<u8>)>>) {
    let [key, own] = [1, 2].map(|seed| SecretKey::from_seed([seed; 32]));
    let (sender, changes) = mpsc::sync_channel(1);
    let peer = stranger(transport, &key, move |channel| {
        let mut duplex = Duplex::new(channel).unwrap();
        let (mut inbox, mut all) = (Inbox::default(), Vec::new());
        loop {
            let arrived = duplex.receive().unwrap();
            inbox.push(&arrived.bytes);
            while let Some(request) = inbox.next::<ClientRequest>().unwrap() {
                let ClientRequest::LastChanges { at, bytes } = request else { continue };
                all.push((at, bytes));
            }
            if arrived.is_over {
                break;
            }
            duplex.wait(&[], None).unwrap();
        }
        sender.send(all).unwrap();
    });
    (NodeLink::connect(&peer, &own, &NodeTimes::default()).unwrap(), changes)
}

/// The bytes of a part.
fn part(number: u64) -> Vec<u8> {
    (0..PART as u64).map(|at| (number * 31 + at / 9) as u8).collect()
}

fn show(sending: &mut ChangesSending, parts: std::ops::Range<u64>) {
    for number in parts {
        sending.show(4096 + number * PART as u64, &part(number));
    }
}

/// Ends it, and has what came be these parts, in their order.
fn ends(
    sending: ChangesSending,
    changes: &mpsc::Receiver<Vec<(u64, Vec<u8>)>>,
    parts: std::ops::Range<u64>,
) {
    let link = sending.end().expect("the connection is given back");
    link.duplex.end_and_drain(Instant::now() + Duration::from_secs(60)).unwrap();
    let expected = parts.map(|number| (4096 + number * PART as u64, part(number)));
    assert!(changes.recv().unwrap() == expected.collect::<Vec<_>>(), "other parts came");
}

#[test]
fn where_the_thread_has_no_processor_who_hashes_sends_and_few_parts_wait() {
    for transport in TRANSPORTS {
        let (link, changes) = link(transport);
        let mut sending = ChangesSending::begin(link).unwrap();
        // It has nothing to do, and is over.
        sending.shared.end();
        let over = sending.thread.take().unwrap().join();
        assert!(over.is_ok());
        sending.thread = Some(thread::spawn(|| ()));
        for number in 0..40 {
            show(&mut sending, number..number + 1);
            let waiting = sending.shared.parts().all.len();
            assert!(waiting <= WAITING_MAX, "{waiting} parts wait");
        }
        ends(sending, &changes, 0..40);
    }
}

#[test]
fn parts_are_sent_in_their_order_whichever_thread_sends_them() {
    for transport in TRANSPORTS {
        let (link, changes) = link(transport);
        let mut sending = ChangesSending::begin(link).unwrap();
        let shared = Arc::clone(&sending.shared);
        // Neither of them has the connection.
        let held = shared.link.lock().unwrap();
        show(&mut sending, 0..20);
        assert_eq!(shared.parts().all.len(), 20);
        drop(held);
        // Both go on, at once.
        show(&mut sending, 20..60);
        drop(shared);
        ends(sending, &changes, 0..60);
    }
}
