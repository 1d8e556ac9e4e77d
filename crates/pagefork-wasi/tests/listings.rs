//! The listings of many open directories take a bounded amount of memory, and a listing whose
//! names were dropped goes on where it stopped.

#[allow(dead_code)]
#[path = "conformance/harness.rs"]
mod harness;

use harness::{DIR, Entry, Guest, TempDir, directory};

/// Bytes of memory of this process that are resident.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn listings_of_many_directories_take_bounded_memory_and_lose_nothing() {
    const ROOM: u32 = 100_000;
    let dir = TempDir::new();
    let mut expected: Vec<String> =
        (0..4000).map(|index| format!("{index:04}{}", "x".repeat(236))).collect();
    for name in &expected {
        dir.write(name, "");
    }
    let mut guest = Guest::with_dir(&dir);
    let before = resident();
    let mut listings: Vec<(u32, Vec<Entry>)> = (0..100)
        .map(|_| {
            let fd = guest.open(DIR, ".", directory()).unwrap();
            (fd, Guest::entries(&guest.readdir(fd, ROOM, 0).unwrap()))
        })
        .collect();
    // All names in all listings would be 100 MB.
    let grown = resident() - before;
    assert!(grown < 84 << 20, "{grown} bytes");

    // Names that were listed already are removed, others are added before and behind.
    for name in &expected[..50] {
        std::fs::remove_file(dir.join(name)).unwrap();
    }
    dir.write("0000", "");
    dir.write("5000", "");
    // In reverse, because the last ones are still in memory.
    for (fd, entries) in listings.iter_mut().rev() {
        loop {
            let bytes = guest.readdir(*fd, ROOM, entries.last().unwrap().next).unwrap();
            entries.extend(Guest::entries(&bytes));
            if bytes.len() < ROOM as usize {
                break;
            }
        }
    }
    expected.splice(0..0, [".".to_owned(), "..".to_owned()]);
    let names = |entries: &[Entry]| -> Vec<String> {
        entries.iter().map(|entry| entry.name.clone()).collect()
    };
    // The names of the first one were read again.
    let (first, last) = (names(&listings[0].1), names(&listings[99].1));
    assert!(last == expected, "{} names", last.len());
    expected.push("5000".to_owned());
    assert!(first == expected, "{} names", first.len());
}
