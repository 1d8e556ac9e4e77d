//! FIFOs in a preopened directory: what they do for guests, and that no call waits for the
//! other end where the guest cannot be called back.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pagefork_wasi::Errno;

use crate::harness::{DIR, Guest, NONBLOCK, Open, READ, TempDir, WRITE, reading};

fn guest_with_pipe() -> (TempDir, Guest) {
    let dir = TempDir::new();
    dir.fifo("pipe");
    let guest = Guest::with_dir(&dir);
    (dir, guest)
}

fn write_only() -> Open {
    Open { rights: WRITE, ..reading() }
}

#[test]
fn opening_one_to_read_does_not_wait_and_its_first_read_does() {
    let (dir, mut guest) = guest_with_pipe();
    let fd = guest.open(DIR, "pipe", reading()).unwrap();
    let path = dir.join("pipe");
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        std::fs::File::options().write(true).open(path).unwrap().write_all(b"hi").unwrap();
    });
    assert_eq!(guest.read(fd, 9).unwrap(), b"hi");
    writer.join().unwrap();
    assert_eq!(guest.read(fd, 9).unwrap(), b"", "its writer is gone");
}

#[test]
fn opening_one_to_write_waits_for_a_reader() {
    let (dir, mut guest) = guest_with_pipe();
    let path = dir.join("pipe");
    let reader = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        let mut text = String::new();
        std::fs::File::open(path).unwrap().read_to_string(&mut text).unwrap();
        text
    });
    let fd = guest.open(DIR, "pipe", write_only()).unwrap();
    guest.write(fd, b"hello").unwrap();
    guest.close(fd).unwrap();
    assert_eq!(reader.join().unwrap(), "hello");
}

#[test]
fn in_non_blocking_mode_nothing_waits() {
    let (_dir, mut guest) = guest_with_pipe();
    let nonblocking = |rights| Open { rights, fd_flags: NONBLOCK, ..reading() };
    assert_eq!(guest.open(DIR, "pipe", nonblocking(WRITE)), Err(Errno::Nxio));
    let fd = guest.open(DIR, "pipe", nonblocking(READ)).unwrap();
    assert_eq!(guest.read(fd, 1), Err(Errno::Again));
    let both = guest.open(DIR, "pipe", nonblocking(READ | WRITE)).unwrap();
    let page = [7; 4096];
    let mut written = 0;
    let full = loop {
        match guest.write(both, &page) {
            Ok(size) => written += size,
            Err(error) => break error,
        }
        assert!(written < 1 << 30, "a pipe holds some 64 KiB");
    };
    assert_eq!(full, Errno::Again);
    assert_eq!(guest.read(fd, 9).unwrap(), [7; 9]);
}

/// A write takes all, as one of a pipe that blocks does.
#[test]
fn a_large_write_is_not_cut_short() {
    let (dir, mut guest) = guest_with_pipe();
    let fd = guest.open(DIR, "pipe", Open { rights: READ | WRITE, ..reading() }).unwrap();
    let path = dir.join("pipe");
    const SIZE: usize = 50_000;
    let reader = std::thread::spawn(move || {
        let mut file = std::fs::File::open(path).unwrap();
        let mut bytes = vec![0; 4 * SIZE];
        std::thread::sleep(Duration::from_millis(20));
        file.read_exact(&mut bytes).unwrap();
        bytes
    });
    for number in 0..4 {
        assert_eq!(guest.write(fd, &[number; SIZE]).unwrap() as usize, SIZE);
    }
    let expected: Vec<u8> = (0..4).flat_map(|number| [number; SIZE]).collect();
    assert!(reader.join().unwrap() == expected);
}

#[test]
fn every_wait_for_the_other_end_can_be_called_back() {
    type Wait = fn(&mut Guest) -> Errno;
    let waits: [Wait; 3] = [
        |guest| guest.open(DIR, "pipe", write_only()).unwrap_err(),
        |guest| {
            let fd = guest.open(DIR, "pipe", reading()).unwrap();
            guest.read(fd, 1).unwrap_err()
        },
        |guest| {
            let fd = guest.open(DIR, "pipe", Open { rights: READ | WRITE, ..reading() }).unwrap();
            loop {
                if let Err(error) = guest.write(fd, &[0; 4096]) {
                    break error;
                }
            }
        },
    ];
    for wait in waits {
        let (_dir, mut guest) = guest_with_pipe();
        let interrupted = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&interrupted);
        guest.ctx.set_interrupt_check(move || asked.load(Ordering::Relaxed));
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            interrupted.store(true, Ordering::Relaxed);
        });
        assert_eq!(wait(&mut guest), Errno::Intr);
        thread.join().unwrap();
    }
}
