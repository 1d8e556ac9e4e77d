//! Descriptors: numbers, flags, offsets, sizes.

use pagefork_wasi::{Errno, Permissions, WasiCtx};

use crate::harness::*;

#[test]
fn seeking_moves_from_start_offset_and_end() {
    let dir = TempDir::new();
    dir.write("file", "0123456789");
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", reading()).unwrap();
    assert_eq!(guest.seek(fd, 4, 0), Ok(4));
    assert_eq!(guest.seek(fd, -1, 1), Ok(3));
    assert_eq!(guest.seek(fd, -3, 2), Ok(7));
    assert_eq!(guest.read(fd, 9).unwrap(), b"789");
    assert_eq!(guest.seek(fd, 5, 2), Ok(15));
    assert_eq!(guest.read(fd, 9).unwrap(), b"");
    assert_eq!(guest.tell(fd), Ok(15));
    // What fails leaves the offset.
    assert_eq!(guest.seek(fd, -16, 1), Err(Errno::Inval));
    assert_eq!(guest.seek(fd, -1, 0), Err(Errno::Inval));
    assert_eq!(guest.seek(fd, i64::MIN, 2), Err(Errno::Inval));
    assert_eq!(guest.seek(fd, 0, 3), Err(Errno::Inval));
    assert_eq!(guest.seek(fd, i64::MAX, 1), Err(Errno::Inval));
    assert_eq!(guest.tell(fd), Ok(15));
    assert_eq!(guest.seek(fd, i64::MAX, 0), Ok(i64::MAX as u64));
    assert_eq!(guest.seek(fd, 1, 1), Err(Errno::Inval));
}

#[test]
fn only_files_have_an_offset() {
    let dir = TempDir::new();
    let mut guest = Guest::with_dir(&dir);
    assert_eq!(guest.seek(DIR, 0, 0), Err(Errno::Badf));
    assert_eq!(guest.tell(DIR), Err(Errno::Badf));
    for fd in 0..3 {
        assert_eq!(guest.seek(fd, 0, 1), Err(Errno::Spipe));
        assert_eq!(guest.tell(fd), Err(Errno::Spipe));
    }
    assert_eq!(guest.seek(4, 0, 1), Err(Errno::Badf));
    assert_eq!(guest.tell(4), Err(Errno::Badf));
}

#[test]
fn offsets_of_two_descriptors_are_two() {
    let dir = TempDir::new();
    dir.write("file", "abcdef");
    let mut guest = Guest::with_dir(&dir);
    let first = guest.open(DIR, "file", reading()).unwrap();
    let second = guest.open(DIR, "file", reading()).unwrap();
    assert_eq!(guest.read(first, 2).unwrap(), b"ab");
    assert_eq!(guest.read(second, 3).unwrap(), b"abc");
    assert_eq!(guest.read(first, 2).unwrap(), b"cd");
}

#[test]
fn closing_frees_the_number() {
    let dir = TempDir::new();
    dir.write("file", "");
    let mut guest = Guest::with_dir(&dir);
    let fds: Vec<u32> = (0..4).map(|_| guest.open(DIR, "file", reading()).unwrap()).collect();
    assert_eq!(fds, [4, 5, 6, 7]);
    assert_eq!(guest.close(5), Ok(()));
    assert_eq!(guest.close(5), Err(Errno::Badf));
    assert_eq!(guest.close(u32::MAX), Err(Errno::Badf));
    assert_eq!(guest.open(DIR, "file", reading()), Ok(5));
    assert_eq!(guest.open(DIR, "file", reading()), Ok(8));
    // Standard streams and preopened directories can be closed too.
    for fd in 0..4 {
        assert_eq!(guest.close(fd), Ok(()));
    }
    assert_eq!(guest.open(DIR, "file", reading()), Err(Errno::Badf));
}

/// A program that closes its standard output and goes on to log there does not log into what it
/// opens next.
#[test]
fn what_is_opened_never_takes_the_number_of_a_standard_stream() {
    let dir = TempDir::new();
    dir.write("file", "text");
    let mut guest = Guest::with_dir(&dir);
    for fd in 0..3 {
        guest.close(fd).unwrap();
    }
    assert_eq!(guest.open(DIR, "file", writing()), Ok(4));
    assert_eq!(guest.write(1, b"logged"), Err(Errno::Badf));
    guest.close(DIR).unwrap();
    assert_eq!(dir.read("file"), "text");
}

#[test]
fn renumbering_moves_a_descriptor() {
    let dir = TempDir::new();
    dir.write("a", "aaa");
    dir.write("b", "bbb");
    let mut guest = Guest::with_dir(&dir);
    let a = guest.open(DIR, "a", reading()).unwrap();
    let b = guest.open(DIR, "b", reading()).unwrap();
    guest.read(a, 1).unwrap();
    assert_eq!(guest.renumber(a, 77), Err(Errno::Badf));
    assert_eq!(guest.renumber(77, a), Err(Errno::Badf));
    assert_eq!(guest.renumber(77, 77), Err(Errno::Badf));
    assert_eq!(guest.renumber(a, a), Ok(()));
    assert_eq!(guest.read(a, 1).unwrap(), b"a");
    assert_eq!(guest.renumber(a, b), Ok(()));
    assert_eq!(guest.tell(b), Ok(2));
    assert_eq!(guest.read(b, 5).unwrap(), b"a");
    assert_eq!(guest.read(a, 1), Err(Errno::Badf));
    assert_eq!(guest.open(DIR, "b", reading()), Ok(a));
    // A file as standard input, a directory elsewhere.
    assert_eq!(guest.renumber(a, 0), Ok(()));
    assert_eq!(guest.read(0, 5).unwrap(), b"bbb");
    assert_eq!(guest.renumber(DIR, 1), Ok(()));
    assert_eq!(guest.open(1, "a", reading()), Ok(3));
}

#[test]
fn flags_are_kept_and_unknown_ones_refused() {
    let dir = TempDir::new();
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", creating()).unwrap();
    for flags in [APPEND, NONBLOCK, 0x1f, 0] {
        assert_eq!(guest.set_flags(fd, flags), Ok(()));
        assert_eq!(u32::from(guest.fdstat(fd).unwrap().flags), flags);
    }
    assert_eq!(guest.set_flags(fd, 0x20), Err(Errno::Inval));
    assert_eq!(guest.set_flags(fd, u32::MAX), Err(Errno::Inval));
    assert_eq!(guest.set_flags(99, 0), Err(Errno::Badf));
    assert_eq!(guest.fdstat(99), Err(Errno::Badf));
}

#[test]
fn sizes_are_set_and_ranges_allocated() {
    let dir = TempDir::new();
    dir.write("file", "0123456789");
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", writing()).unwrap();
    assert_eq!(guest.set_size(fd, 4), Ok(()));
    assert_eq!(dir.read("file"), "0123");
    assert_eq!(guest.set_size(fd, 6), Ok(()));
    assert_eq!(dir.read("file"), "0123\0\0");
    assert_eq!(guest.set_size(fd, u64::MAX), Err(Errno::Inval));
    assert_eq!(guest.set_size(DIR, 0), Err(Errno::Badf));
    assert_eq!(guest.set_size(1, 0), Err(Errno::Inval));
    assert_eq!(guest.set_size(99, 0), Err(Errno::Badf));

    let allocate = |guest: &mut Guest, fd, offset, size| {
        guest.call(|ctx, memory| ctx.fd_allocate(memory, fd, offset, size))
    };
    assert_eq!(allocate(&mut guest, fd, 10, 90), Ok(()));
    assert_eq!(guest.stat(fd).unwrap().size, 100);
    assert_eq!(allocate(&mut guest, fd, 0, 10), Ok(()));
    assert_eq!(guest.stat(fd).unwrap().size, 100);
    assert_eq!(allocate(&mut guest, fd, 0, 0), Err(Errno::Inval));
    assert_eq!(allocate(&mut guest, fd, u64::MAX, 1), Err(Errno::Inval));
    assert_eq!(allocate(&mut guest, fd, 1, u64::MAX), Err(Errno::Inval));
    assert_eq!(allocate(&mut guest, DIR, 0, 1), Err(Errno::Badf));
    assert_eq!(allocate(&mut guest, 1, 0, 1), Err(Errno::Spipe));
    assert_eq!(allocate(&mut guest, 99, 0, 1), Err(Errno::Badf));
}

#[test]
fn advice_is_checked() {
    let dir = TempDir::new();
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", creating()).unwrap();
    let mut advise = |fd, offset, size, advice| {
        guest.call(|ctx, memory| ctx.fd_advise(memory, fd, offset, size, advice))
    };
    for advice in 0..6 {
        assert_eq!(advise(fd, 0, 0, advice), Ok(()));
        assert_eq!(advise(fd, 10, 100, advice), Ok(()));
    }
    assert_eq!(advise(fd, 0, 0, 6), Err(Errno::Inval));
    assert_eq!(advise(fd, u64::MAX, 0, 0), Err(Errno::Inval));
    assert_eq!(advise(fd, 0, u64::MAX, 0), Err(Errno::Inval));
    assert_eq!(advise(DIR, 0, 0, 0), Err(Errno::Badf));
    assert_eq!(advise(0, 0, 0, 0), Err(Errno::Spipe));
    assert_eq!(advise(99, 0, 0, 0), Err(Errno::Badf));
}

#[test]
fn files_and_directories_are_synchronised() {
    let dir = TempDir::new();
    dir.mkdir("sub");
    let mut guest = Guest::with_dir(&dir);
    let file = guest.open(DIR, "file", creating()).unwrap();
    let sub = guest.open(DIR, "sub", directory()).unwrap();
    let mut sync = |fd| {
        let all = guest.call(|ctx, memory| ctx.fd_sync(memory, fd));
        let data = guest.call(|ctx, memory| ctx.fd_datasync(memory, fd));
        assert_eq!(all, data);
        all
    };
    for fd in [file, sub, DIR] {
        assert_eq!(sync(fd), Ok(()));
    }
    for fd in 0..3 {
        assert_eq!(sync(fd), Err(Errno::Inval));
    }
    assert_eq!(sync(99), Err(Errno::Badf));
}

#[test]
fn preopened_directories_tell_their_names() {
    let dir = TempDir::new();
    dir.mkdir("sub");
    let mut guest = Guest::with_dir(&dir);
    let prestat =
        |guest: &mut Guest, fd| guest.call(|ctx, memory| ctx.fd_prestat_get(memory, fd, 64));
    let name = |guest: &mut Guest, fd, size| {
        guest.call(|ctx, memory| ctx.fd_prestat_dir_name(memory, fd, 128, size))
    };
    guest.put(64, &[0xff; 8]);
    assert_eq!(prestat(&mut guest, DIR), Ok(()));
    assert_eq!(guest.bytes_at(64, 8), [0, 0, 0, 0, 4, 0, 0, 0]);
    guest.put(128, b"########");
    assert_eq!(name(&mut guest, DIR, 3), Err(Errno::Nametoolong));
    assert_eq!(name(&mut guest, DIR, 4), Ok(()));
    assert_eq!(guest.bytes_at(128, 8), b"/dir####");
    assert_eq!(name(&mut guest, DIR, 99), Ok(()));
    assert_eq!(guest.bytes_at(128, 8), b"/dir####");
    // A C library looks for more until it is told that there is none.
    assert_eq!(prestat(&mut guest, 4), Err(Errno::Badf));
    let sub = guest.open(DIR, "sub", directory()).unwrap();
    for fd in [0, sub, 99] {
        assert_eq!(prestat(&mut guest, fd), Err(Errno::Badf));
        assert_eq!(name(&mut guest, fd, 99), Err(Errno::Badf));
    }
}

/// The host has fewer descriptors than guests could open.
#[test]
fn a_guest_has_at_most_as_many_descriptors_as_the_embedder_allows() {
    let dir = TempDir::new();
    dir.write("file", "text");
    let mut builder = WasiCtx::builder();
    builder.preopened_dir(dir.path(), "/dir", Permissions::ReadWrite).unwrap();
    for (set, max) in [(None, 1024), (Some(6), 6)] {
        if let Some(count) = set {
            builder.descriptors_max(count);
        }
        let mut guest = Guest::new(&builder);
        for fd in 4..max {
            assert_eq!(guest.open(DIR, "file", reading()), Ok(fd));
        }
        let truncating = Open { flags: CREAT | TRUNC, ..writing() };
        assert_eq!(guest.open(DIR, "file", truncating), Err(Errno::Mfile));
        assert_eq!(dir.read("file"), "text", "a call that fails changes nothing");
        // Another number is no way around the limit.
        assert_eq!(guest.renumber(4, max), Err(Errno::Badf));
        guest.renumber(5, 4).unwrap();
        assert_eq!(guest.open(DIR, "file", reading()), Ok(5));
        assert_eq!(guest.open(DIR, "file", reading()), Err(Errno::Mfile));
    }
}
