//! Reading and writing.

use pagefork_wasi::Errno;

use crate::harness::*;

#[test]
fn what_is_written_is_read_again() {
    let dir = TempDir::new();
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", creating()).unwrap();
    assert_eq!(guest.write(fd, b"hello "), Ok(6));
    assert_eq!(guest.write_v(fd, &[b"wor", b"", b"ld"]), Ok(5));
    assert_eq!(dir.read("file"), "hello world");
    assert_eq!(guest.read(fd, 10).unwrap(), b"");
    assert_eq!(guest.seek(fd, 0, 0), Ok(0));
    assert_eq!(guest.read_v(fd, &[2, 0, 3, 100]).unwrap(), b"hello world");
    assert_eq!(guest.tell(fd), Ok(11));
    assert_eq!(guest.read(fd, 1).unwrap(), b"");
}

#[test]
fn zero_buffers_transfer_nothing() {
    let dir = TempDir::new();
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", creating()).unwrap();
    assert_eq!(guest.write_v(fd, &[]), Ok(0));
    assert_eq!(guest.write_v(fd, &[b""]), Ok(0));
    assert_eq!(guest.read_v(fd, &[]).unwrap(), b"");
    assert_eq!(guest.pwrite(fd, b"", 5), Ok(0));
    assert_eq!(guest.pread(fd, 0, 5).unwrap(), b"");
    assert_eq!(dir.read("file"), "");
}

#[test]
fn pread_and_pwrite_leave_the_offset() {
    let dir = TempDir::new();
    dir.write("file", "0123456789");
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", writing()).unwrap();
    guest.seek(fd, 4, 0).unwrap();
    assert_eq!(guest.pread(fd, 3, 1).unwrap(), b"123");
    assert_eq!(guest.pread(fd, 30, 8).unwrap(), b"89");
    assert_eq!(guest.pread(fd, 3, 100).unwrap(), b"");
    assert_eq!(guest.pwrite(fd, b"xy", 8), Ok(2));
    assert_eq!(guest.pwrite(fd, b"z", 12), Ok(1));
    assert_eq!(guest.tell(fd), Ok(4));
    assert_eq!(guest.read(fd, 2).unwrap(), b"45");
    assert_eq!(dir.read("file"), "01234567xy\0\0z");
    for offset in [1 << 63, u64::MAX] {
        assert_eq!(guest.pread(fd, 1, offset), Err(Errno::Inval));
        assert_eq!(guest.pwrite(fd, b"a", offset), Err(Errno::Inval));
    }
}

#[test]
fn appending_writes_at_the_end_wherever_the_offset_is() {
    let dir = TempDir::new();
    dir.write("file", "abc");
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", Open { fd_flags: APPEND, ..writing() }).unwrap();
    assert_eq!(guest.fdstat(fd).unwrap().flags, 1);
    assert_eq!(guest.read(fd, 1).unwrap(), b"a");
    assert_eq!(guest.write_v(fd, &[b"d", b"ef"]), Ok(3));
    assert_eq!(guest.tell(fd), Ok(6));
    // Someone else appends.
    dir.write("file", "0123456789");
    assert_eq!(guest.write(fd, b"x"), Ok(1));
    assert_eq!(guest.tell(fd), Ok(11));
    assert_eq!(dir.read("file"), "0123456789x");
    // An offset that is given makes no difference, as on Linux.
    assert_eq!(guest.pwrite(fd, b"Y", 2), Ok(1));
    assert_eq!(guest.tell(fd), Ok(11));
    assert_eq!(dir.read("file"), "0123456789xY");
    guest.seek(fd, 0, 0).unwrap();
    assert_eq!(guest.write(fd, b"z"), Ok(1));
    assert_eq!(dir.read("file"), "0123456789xYz");
    guest.set_flags(fd, 0).unwrap();
    assert_eq!(guest.pwrite(fd, b"-", 2), Ok(1));
    assert_eq!(dir.read("file"), "01-3456789xYz");
}

#[test]
fn the_append_flag_can_be_set_and_cleared() {
    let dir = TempDir::new();
    dir.write("file", "abc");
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", writing()).unwrap();
    guest.write(fd, b"A").unwrap();
    guest.set_flags(fd, APPEND).unwrap();
    guest.write(fd, b"d").unwrap();
    guest.seek(fd, 1, 0).unwrap();
    guest.set_flags(fd, 0).unwrap();
    guest.write(fd, b"B").unwrap();
    assert_eq!(dir.read("file"), "ABcd");
}

#[test]
fn synchronous_writes_are_written() {
    let dir = TempDir::new();
    let mut guest = Guest::with_dir(&dir);
    // DSYNC, SYNC, all of them.
    for flags in [2, 16, 2 | 8 | 16] {
        let fd = guest.open(DIR, "file", Open { fd_flags: flags, ..creating() }).unwrap();
        assert_eq!(guest.write(fd, b"abc"), Ok(3));
        assert_eq!(guest.pwrite(fd, b"d", 3), Ok(1));
        assert_eq!(u32::from(guest.fdstat(fd).unwrap().flags), flags);
        guest.close(fd).unwrap();
    }
    assert_eq!(dir.read("file"), "abcd");
}

#[test]
fn directories_are_neither_read_nor_written() {
    let dir = TempDir::new();
    dir.mkdir("sub");
    let mut guest = Guest::with_dir(&dir);
    let sub = guest.open(DIR, "sub", directory()).unwrap();
    for fd in [DIR, sub] {
        assert_eq!(guest.read(fd, 1), Err(Errno::Badf));
        assert_eq!(guest.pread(fd, 1, 0), Err(Errno::Badf));
        assert_eq!(guest.write(fd, b"a"), Err(Errno::Badf));
        assert_eq!(guest.pwrite(fd, b"a", 0), Err(Errno::Badf));
    }
}

#[test]
fn closed_descriptors_are_bad() {
    let dir = TempDir::new();
    let mut guest = Guest::with_dir(&dir);
    for fd in [4, 99, u32::MAX] {
        assert_eq!(guest.read(fd, 1), Err(Errno::Badf));
        assert_eq!(guest.pread(fd, 1, 0), Err(Errno::Badf));
        assert_eq!(guest.write(fd, b"a"), Err(Errno::Badf));
        assert_eq!(guest.pwrite(fd, b"a", 0), Err(Errno::Badf));
    }
}

#[test]
fn more_iovecs_than_the_host_takes_are_a_short_transfer() {
    let dir = TempDir::new();
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", creating()).unwrap();
    let parts = vec![&b"a"[..]; 1500];
    assert_eq!(guest.write_v(fd, &parts), Ok(1024));
    guest.seek(fd, 0, 0).unwrap();
    assert_eq!(guest.read_v(fd, &[1; 1500]).unwrap().len(), 1024);
}

#[test]
fn a_pipe_in_a_directory_is_a_stream() {
    let dir = TempDir::new();
    dir.fifo("pipe");
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "pipe", writing()).unwrap();
    assert_eq!(guest.fdstat(fd).unwrap().filetype, 0);
    assert_eq!(guest.write(fd, b"hello"), Ok(5));
    assert_eq!(guest.read_v(fd, &[0, 3, 3]).unwrap(), b"hel");
    assert_eq!(guest.read(fd, 10).unwrap(), b"lo");
    assert_eq!(guest.seek(fd, 0, 1), Err(Errno::Spipe));
    assert_eq!(guest.pread(fd, 1, 0), Err(Errno::Spipe));
    assert_eq!(guest.pwrite(fd, b"a", 0), Err(Errno::Spipe));
    guest.set_flags(fd, NONBLOCK).unwrap();
    assert_eq!(guest.read(fd, 1), Err(Errno::Again));
}
