//! Opening files.

use pagefork_wasi::Errno;

use crate::harness::*;

#[test]
fn opening_for_reading_needs_the_file() {
    let dir = TempDir::new();
    dir.write("file", "text");
    let mut guest = Guest::with_dir(&dir);
    assert_eq!(guest.open(DIR, "none", reading()), Err(Errno::Noent));
    assert_eq!(guest.open(DIR, "none/file", reading()), Err(Errno::Noent));
    assert_eq!(guest.open(DIR, "file/none", reading()), Err(Errno::Notdir));
    assert_eq!(guest.open(DIR, "", reading()), Err(Errno::Noent));
    assert_eq!(guest.open(DIR, "a\0b", reading()), Err(Errno::Inval));
    assert_eq!(guest.open(DIR, &"x".repeat(256), reading()), Err(Errno::Nametoolong));
    assert_eq!(guest.open(DIR, &"x/".repeat(2500), reading()), Err(Errno::Nametoolong));
    let fd = guest.open(DIR, "file", reading()).unwrap();
    assert_eq!(guest.read(fd, 9).unwrap(), b"text");
    assert_eq!(guest.write(fd, b"a"), Err(Errno::Badf));
    assert_eq!(guest.open(fd, "file", reading()), Err(Errno::Notdir));
    assert_eq!(guest.open(0, "file", reading()), Err(Errno::Notdir));
    assert_eq!(guest.open(99, "file", reading()), Err(Errno::Badf));
}

#[test]
fn paths_are_resolved_within_the_directory() {
    let dir = TempDir::new();
    dir.mkdir("a/b");
    dir.write("file", "top");
    dir.write("a/b/file", "deep");
    dir.symlink("b", "a/link");
    let mut guest = Guest::with_dir(&dir);
    for (path, text) in [
        ("file", "top"),
        ("./file", "top"),
        (".//file", "top"),
        ("a/../file", "top"),
        ("a/b/../../file", "top"),
        ("a/./b/file", "deep"),
        ("a//b///file", "deep"),
        ("a/link/file", "deep"),
        ("a/link/../../file", "top"),
    ] {
        for follow in [false, true] {
            let fd = guest.open(DIR, path, Open { follow, ..reading() }).unwrap();
            assert_eq!(guest.read(fd, 9).unwrap(), text.as_bytes(), "{path}");
        }
    }
}

#[test]
fn exclusive_creation_is_for_new_names() {
    let dir = TempDir::new();
    dir.mkdir("sub");
    dir.symlink("nowhere", "dangling");
    let mut guest = Guest::with_dir(&dir);
    let exclusive = Open { flags: CREAT | EXCL, ..writing() };
    let fd = guest.open(DIR, "file", exclusive).unwrap();
    assert_eq!(guest.write(fd, b"x"), Ok(1));
    for follow in [false, true] {
        let exclusive = Open { follow, ..exclusive };
        assert_eq!(guest.open(DIR, "file", exclusive), Err(Errno::Exist));
        assert_eq!(guest.open(DIR, "sub", exclusive), Err(Errno::Exist));
        assert_eq!(guest.open(DIR, "dangling", exclusive), Err(Errno::Exist));
    }
    // Without creation it has no meaning.
    assert!(guest.open(DIR, "file", Open { flags: EXCL, ..writing() }).is_ok());
    assert!(!dir.has("nowhere"));
}

#[test]
fn creation_opens_what_exists() {
    let dir = TempDir::new();
    dir.write("file", "text");
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", creating()).unwrap();
    assert_eq!(guest.read(fd, 9).unwrap(), b"text");
    // For reading only, too.
    let fd = guest.open(DIR, "new", Open { flags: CREAT, ..reading() }).unwrap();
    assert_eq!(guest.read(fd, 9).unwrap(), b"");
    assert_eq!(guest.open(DIR, "no/new", creating()), Err(Errno::Noent));
    assert_eq!(guest.open(DIR, "slash/", creating()), Err(Errno::Isdir));
    assert!(!dir.has("slash"));
}

#[test]
fn truncation_empties_a_file() {
    let dir = TempDir::new();
    dir.write("file", "text");
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", Open { flags: TRUNC, ..writing() }).unwrap();
    assert_eq!(dir.read("file"), "");
    guest.write(fd, b"new").unwrap();
    guest.open(DIR, "file", Open { flags: TRUNC | CREAT, ..writing() }).unwrap();
    assert_eq!(dir.read("file"), "");
    assert_eq!(guest.open(DIR, "none", Open { flags: TRUNC, ..writing() }), Err(Errno::Noent));
}

#[test]
fn directories_are_opened_for_lookup_and_listing() {
    let dir = TempDir::new();
    dir.mkdir("a/b");
    dir.write("a/b/file", "text");
    dir.write("plain", "");
    let mut guest = Guest::with_dir(&dir);
    // With and without saying that it is one, with and without a slash.
    for (path, open) in
        [("a", directory()), ("a", reading()), ("a/", reading()), ("a/", directory())]
    {
        let a = guest.open(DIR, path, open).unwrap();
        let b = guest.open(a, "b", directory()).unwrap();
        let file = guest.open(b, "file", reading()).unwrap();
        assert_eq!(guest.read(file, 9).unwrap(), b"text");
        assert_eq!(guest.fdstat(a).unwrap().filetype, 3);
        for fd in [file, b, a] {
            guest.close(fd).unwrap();
        }
    }
    let here = guest.open(DIR, ".", directory()).unwrap();
    assert_eq!(guest.stat(here).unwrap().inode, guest.stat(DIR).unwrap().inode);
    assert_eq!(guest.open(DIR, "plain", directory()), Err(Errno::Notdir));
    assert_eq!(guest.open(DIR, "plain/", reading()), Err(Errno::Notdir));
    assert_eq!(guest.open(DIR, "a", writing()), Err(Errno::Isdir));
    let written = Open { flags: DIRECTORY, ..writing() };
    assert_eq!(guest.open(DIR, "a", written), Err(Errno::Isdir));
    // Rights to change a size mean nothing for a directory.
    assert!(guest.open(DIR, "a", Open { rights: written.rights & !WRITE, ..written }).is_ok());
    for flags in [CREAT, EXCL, TRUNC] {
        let open = Open { flags: DIRECTORY | flags, ..writing() };
        assert_eq!(guest.open(DIR, "a", open), Err(Errno::Inval));
    }
}

#[test]
fn a_link_is_followed_only_if_asked() {
    let dir = TempDir::new();
    dir.write("file", "text");
    dir.mkdir("sub");
    dir.symlink("file", "link");
    dir.symlink("sub", "sublink");
    dir.symlink("loop", "loop");
    dir.symlink("nowhere", "dangling");
    let mut guest = Guest::with_dir(&dir);
    let nofollow = Open { follow: false, ..reading() };
    let fd = guest.open(DIR, "link", reading()).unwrap();
    assert_eq!(guest.read(fd, 9).unwrap(), b"text");
    assert_eq!(guest.open(DIR, "link", nofollow), Err(Errno::Loop));
    assert_eq!(guest.open(DIR, "sub/../link", nofollow), Err(Errno::Loop));
    assert!(guest.open(DIR, "file", nofollow).is_ok());
    assert!(guest.open(DIR, "sub", nofollow).is_ok());
    assert!(guest.open(DIR, "sub/..", nofollow).is_ok());
    assert!(guest.open(DIR, "sublink", directory()).is_ok());
    // With a slash, it is the directory that is named.
    assert!(guest.open(DIR, "sublink/", nofollow).is_ok());
    assert_eq!(guest.open(DIR, "loop", reading()), Err(Errno::Loop));
    assert_eq!(guest.open(DIR, "dangling", reading()), Err(Errno::Noent));
    // Creation follows a dangling link, or refuses to.
    let create = Open { follow: false, ..creating() };
    assert_eq!(guest.open(DIR, "dangling", create), Err(Errno::Loop));
    guest.open(DIR, "dangling", creating()).unwrap();
    assert!(dir.has("nowhere"));
    let create = guest.open(DIR, "brand-new", create).unwrap();
    assert_eq!(guest.write(create, b"x"), Ok(1));
}

#[test]
fn unknown_flags_are_refused() {
    let dir = TempDir::new();
    dir.write("file", "");
    let mut guest = Guest::with_dir(&dir);
    for flags in [16, u32::MAX] {
        assert_eq!(guest.open(DIR, "file", Open { flags, ..reading() }), Err(Errno::Inval));
    }
    for fd_flags in [32, u32::MAX] {
        assert_eq!(guest.open(DIR, "file", Open { fd_flags, ..reading() }), Err(Errno::Inval));
    }
    guest.put(0x1000, b"file");
    let lookup =
        guest.call(|ctx, memory| ctx.path_open(memory, DIR, 2, 0x1000, 4, 0, READ, 0, 0, 0x10));
    assert_eq!(lookup, Err(Errno::Inval));
}

#[test]
fn names_are_bytes() {
    let dir = TempDir::new();
    let mut guest = Guest::with_dir(&dir);
    let (path, size) = guest.put(0x1000, b"caf\xe9");
    let created = guest
        .call(|ctx, memory| ctx.path_open(memory, DIR, 0, path, size, CREAT, ALL, ALL, 0, 0x10));
    assert_eq!(created, Ok(()));
    let listed = guest.readdir(DIR, 4096, 0).unwrap();
    assert!(listed.ends_with(b"caf\xe9"));
}
