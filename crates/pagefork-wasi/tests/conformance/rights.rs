//! Rights and permissions.

use pagefork_wasi::{Errno, Permissions, Rights};

use crate::harness::*;

#[test]
fn directories_start_with_every_right() {
    let dir = TempDir::new();
    let mut guest = Guest::with_dir(&dir);
    let stat = guest.fdstat(DIR).unwrap();
    assert_eq!(stat.base, Rights::DIRECTORY.bits());
    assert_eq!(stat.inheriting, (Rights::DIRECTORY | Rights::FILE).bits());
    assert_eq!(stat.filetype, 3);
}

#[test]
fn files_get_what_means_something_as_they_are_opened() {
    let dir = TempDir::new();
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", creating()).unwrap();
    assert_eq!(guest.fdstat(fd).unwrap().base, Rights::FILE.bits());
    let changing = Rights::MUTATE_FILE;
    let read_only = Rights::FILE.difference(changing);
    for (rights, base) in [
        (READ, read_only),
        (READ | SEEK, read_only),
        (0, read_only.difference(Rights::FD_READ)),
        (WRITE, Rights::FILE.difference(Rights::FD_READ)),
        (READ | WRITE, Rights::FILE),
        (Rights::FD_ALLOCATE.bits(), Rights::FILE.difference(Rights::FD_READ | Rights::FD_WRITE)),
    ] {
        let open = Open { rights, inheriting: 0, ..reading() };
        let fd = guest.open(DIR, "file", open).unwrap();
        let stat = guest.fdstat(fd).unwrap();
        assert_eq!((stat.base, stat.inheriting), (base.bits(), 0), "{rights:#x}");
        assert_eq!(guest.read(fd, 1).is_ok(), rights & READ != 0, "{rights:#x}");
        assert_eq!(guest.write(fd, b"").is_ok(), rights & WRITE != 0, "{rights:#x}");
    }
}

/// Programs ask for what they read and write, and do the rest unasked.
#[test]
fn what_other_hosts_allow_is_not_refused() {
    let dir = TempDir::new();
    let mut guest = Guest::with_dir(&dir);
    let flags = CREAT;
    let open = Open { rights: READ | WRITE, inheriting: 0, flags, ..reading() };
    let fd = guest.open(DIR, "file", open).unwrap();
    assert_eq!(guest.pwrite(fd, b"0123456789", 0), Ok(10));
    assert_eq!(guest.pread(fd, 3, 4).unwrap(), b"456");
    assert_eq!(guest.seek(fd, 2, 0), Ok(2));
    assert_eq!(guest.tell(fd), Ok(2));
    assert_eq!(guest.stat(fd).unwrap().size, 10);
    assert_eq!(guest.set_flags(fd, APPEND), Ok(()));
    assert_eq!(guest.set_size(fd, 5), Ok(()));
    assert_eq!(guest.call(|ctx, memory| ctx.fd_allocate(memory, fd, 0, 7)), Ok(()));
    assert_eq!(guest.call(|ctx, memory| ctx.fd_advise(memory, fd, 0, 1, 0)), Ok(()));
    assert_eq!(guest.call(|ctx, memory| ctx.fd_sync(memory, fd)), Ok(()));
    assert_eq!(guest.call(|ctx, memory| ctx.fd_datasync(memory, fd)), Ok(()));
    assert_eq!(guest.call(|ctx, memory| ctx.fd_filestat_set_times(memory, fd, 0, 0, 0)), Ok(()));
    let events = guest.poll(&[descriptor(1, FD_READ, fd), descriptor(2, FD_WRITE, fd)]).unwrap();
    assert_eq!(events.iter().map(|event| event.error).collect::<Vec<_>>(), [0, 0]);
    assert_eq!(dir.read("file"), "01234\0\0");
}

#[test]
fn a_directory_is_never_open_for_writing() {
    let dir = TempDir::new();
    dir.mkdir("sub");
    let mut guest = Guest::with_dir(&dir);
    for path in [".", "sub", "sub/.."] {
        for flags in [0, DIRECTORY] {
            let open = Open { rights: READ | WRITE, flags, ..reading() };
            assert_eq!(guest.open(DIR, path, open), Err(Errno::Isdir), "{path} {flags}");
            assert!(guest.open(DIR, path, Open { rights: READ, ..open }).is_ok());
            assert!(guest.open(DIR, path, Open { rights: 0, ..open }).is_ok());
            // What a directory says that it has may be asked for.
            let rights = guest.fdstat(DIR).unwrap().base;
            assert!(guest.open(DIR, path, Open { rights, ..open }).is_ok());
        }
    }
}

#[test]
fn every_operation_needs_its_right() {
    let dir = TempDir::new();
    dir.write("file", "text");
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", Open { rights: READ | WRITE, ..reading() }).unwrap();
    guest.set_rights(fd, READ | WRITE, 0).unwrap();
    assert_eq!(guest.read(fd, 1).unwrap(), b"t");
    assert_eq!(guest.write(fd, b"E"), Ok(1));
    let lacking = Err(Errno::Notcapable);
    assert_eq!(guest.pread(fd, 1, 0).map(drop), lacking);
    assert_eq!(guest.pwrite(fd, b"a", 0).map(drop), lacking);
    assert_eq!(guest.seek(fd, 0, 0).map(drop), lacking);
    assert_eq!(guest.tell(fd).map(drop), lacking);
    assert_eq!(guest.stat(fd).map(drop), lacking);
    assert_eq!(guest.set_size(fd, 0), lacking);
    assert_eq!(guest.set_flags(fd, 0), lacking);
    assert_eq!(guest.call(|ctx, memory| ctx.fd_allocate(memory, fd, 0, 1)), lacking);
    assert_eq!(guest.call(|ctx, memory| ctx.fd_advise(memory, fd, 0, 1, 0)), lacking);
    assert_eq!(guest.call(|ctx, memory| ctx.fd_sync(memory, fd)), lacking);
    assert_eq!(guest.call(|ctx, memory| ctx.fd_datasync(memory, fd)), lacking);
    assert_eq!(guest.call(|ctx, memory| ctx.fd_filestat_set_times(memory, fd, 0, 0, 0)), lacking);

    // To tell is less than to seek.
    let fd = guest.open(DIR, "file", reading()).unwrap();
    guest.set_rights(fd, READ | TELL, 0).unwrap();
    assert_eq!(guest.tell(fd), Ok(0));
    assert_eq!(guest.seek(fd, 0, 1), Ok(0));
    assert_eq!(guest.seek(fd, 1, 1), Err(Errno::Notcapable));
    assert_eq!(guest.seek(fd, 0, 0), Err(Errno::Notcapable));
    let fd = guest.open(DIR, "file", reading()).unwrap();
    guest.set_rights(fd, READ | SEEK, 0).unwrap();
    assert_eq!(guest.tell(fd), Ok(0));
    assert_eq!(guest.seek(fd, 1, 0), Ok(1));
}

#[test]
fn every_path_operation_needs_its_right() {
    let dir = TempDir::new();
    dir.write("file", "text");
    dir.mkdir("sub");
    let mut guest = Guest::with_dir(&dir);
    let lacking = Err(Errno::Notcapable);
    let all = Rights::DIRECTORY;
    let inheriting = guest.fdstat(DIR).unwrap().inheriting;
    let mut without = |right: Rights, f: &mut dyn FnMut(&mut Guest, u32) -> Result<(), Errno>| {
        let fd = guest.open(DIR, ".", directory()).unwrap();
        guest.set_rights(fd, all.difference(right).bits(), inheriting).unwrap();
        assert_eq!(f(&mut guest, fd), lacking, "without {right:?}");
        guest.close(fd).unwrap();
    };
    without(Rights::PATH_OPEN, &mut |g, fd| g.open(fd, "file", reading()).map(drop));
    without(Rights::PATH_CREATE_FILE, &mut |g, fd| g.open(fd, "x", creating()).map(drop));
    without(Rights::PATH_FILESTAT_SET_SIZE, &mut |g, fd| {
        g.open(fd, "file", Open { flags: TRUNC, ..writing() }).map(drop)
    });
    without(Rights::PATH_CREATE_DIRECTORY, &mut |g, fd| g.mkdir(fd, "x"));
    without(Rights::PATH_REMOVE_DIRECTORY, &mut |g, fd| g.rmdir(fd, "sub"));
    without(Rights::PATH_UNLINK_FILE, &mut |g, fd| g.unlink(fd, "file"));
    without(Rights::PATH_RENAME_SOURCE, &mut |g, fd| g.rename(fd, "file", DIR, "x"));
    without(Rights::PATH_RENAME_TARGET, &mut |g, fd| g.rename(DIR, "file", fd, "x"));
    without(Rights::PATH_LINK_SOURCE, &mut |g, fd| g.link(fd, false, "file", DIR, "x"));
    without(Rights::PATH_LINK_TARGET, &mut |g, fd| g.link(DIR, false, "file", fd, "x"));
    without(Rights::PATH_SYMLINK, &mut |g, fd| g.symlink("file", fd, "x"));
    without(Rights::PATH_READLINK, &mut |g, fd| g.readlink(fd, "file", 9).map(drop));
    without(Rights::PATH_FILESTAT_GET, &mut |g, fd| g.path_stat(fd, "file", true).map(drop));
    without(Rights::PATH_FILESTAT_SET_TIMES, &mut |g, fd| {
        g.path_set_times(fd, "file", true, (0, 0, 0))
    });
    without(Rights::FD_READDIR, &mut |g, fd| g.readdir(fd, 99, 0).map(drop));
    without(Rights::FD_FILESTAT_GET, &mut |g, fd| g.stat(fd).map(drop));
    assert_eq!(dir.read("file"), "text");
    assert!(!dir.has("x"));
}

#[test]
fn rights_are_given_up_and_never_gained() {
    let dir = TempDir::new();
    dir.write("file", "text");
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", Open { rights: READ | SEEK, ..reading() }).unwrap();
    assert_eq!(guest.set_rights(fd, READ | WRITE, 0), Err(Errno::Notcapable));
    assert_eq!(guest.set_rights(fd, u64::MAX, 0), Err(Errno::Notcapable));
    assert_eq!(guest.set_rights(fd, SEEK, u64::MAX), Err(Errno::Notcapable));
    assert_eq!(guest.set_rights(fd, SEEK, 0), Ok(()));
    assert_eq!(guest.read(fd, 1), Err(Errno::Badf));
    assert_eq!(guest.set_rights(fd, READ | SEEK, 0), Err(Errno::Notcapable));
    assert_eq!(guest.set_rights(99, 0, 0), Err(Errno::Badf));
}

#[test]
fn what_a_directory_cannot_pass_on_its_files_do_not_get() {
    let dir = TempDir::new();
    dir.write("file", "text");
    dir.mkdir("sub");
    dir.write("sub/file", "text");
    let mut guest = Guest::with_dir(&dir);
    let base = guest.fdstat(DIR).unwrap().base;
    guest.set_rights(DIR, base, READ | SEEK | Rights::DIRECTORY.bits()).unwrap();
    assert_eq!(guest.open(DIR, "file", writing()), Err(Errno::Notcapable));
    let fd = guest.open(DIR, "file", reading()).unwrap();
    assert_eq!(
        guest.fdstat(fd).unwrap().base,
        READ | SEEK | Rights::DIRECTORY.bits() & Rights::FILE.bits()
    );
    // Nor do the files of its directories.
    let sub = guest.open(DIR, "sub", directory()).unwrap();
    assert_eq!(guest.open(sub, "file", writing()), Err(Errno::Notcapable));
    assert!(guest.open(sub, "file", reading()).is_ok());
}

#[test]
fn nothing_below_a_read_only_directory_changes() {
    let dir = TempDir::new();
    dir.write("file", "text");
    dir.mkdir("sub/inner");
    let before = std::fs::metadata(dir.join("file")).unwrap().modified().unwrap();
    let mut guest = Guest::with_permissions(&dir, Permissions::ReadOnly);
    let sub = guest.open(DIR, "sub", directory()).unwrap();
    let read_only = Err(Errno::Perm);
    for (fd, up) in [(DIR, ""), (sub, "inner/../")] {
        let path = |name: &str| format!("{up}{name}");
        assert_eq!(guest.open(fd, &path("file"), writing()).map(drop), read_only);
        assert_eq!(guest.open(fd, &path("new"), creating()).map(drop), read_only);
        let truncate = Open { flags: TRUNC, ..reading() };
        assert_eq!(guest.open(fd, &path("file"), truncate).map(drop), read_only);
        assert_eq!(guest.mkdir(fd, &path("new")), read_only);
        assert_eq!(guest.rmdir(fd, &path("inner")), read_only);
        assert_eq!(guest.unlink(fd, &path("file")), read_only);
        assert_eq!(guest.rename(fd, &path("file"), fd, "new"), read_only);
        assert_eq!(guest.link(fd, false, &path("file"), fd, "new"), read_only);
        assert_eq!(guest.symlink("file", fd, "new"), read_only);
        assert_eq!(guest.path_set_times(fd, &path("file"), true, (0, 0, 5)), read_only);
    }
    let fd = guest.open(DIR, "file", reading()).unwrap();
    assert_eq!(guest.read(fd, 9).unwrap(), b"text");
    // Though it has rights that it did not ask for.
    assert_eq!(guest.write(fd, b"x"), Err(Errno::Badf));
    assert_eq!(guest.pwrite(fd, b"x", 0), Err(Errno::Badf));
    assert_eq!(guest.set_size(fd, 0), Err(Errno::Inval));
    let allocated = guest.call(|ctx, memory| ctx.fd_allocate(memory, fd, 0, 9));
    assert_eq!(allocated, Err(Errno::Notcapable));
    let times = |fd| {
        move |guest: &mut Guest| {
            guest.call(|ctx, memory| ctx.fd_filestat_set_times(memory, fd, 0, 0, 5))
        }
    };
    assert_eq!(times(fd)(&mut guest), read_only);
    assert_eq!(times(DIR)(&mut guest), read_only);
    assert_eq!(guest.readdir(DIR, 4096, 0).unwrap().len(), 4 * 24 + 1 + 2 + 4 + 3);
    assert_eq!(std::fs::metadata(dir.join("file")).unwrap().modified().unwrap(), before);
    assert_eq!(dir.read("file"), "text");
}
