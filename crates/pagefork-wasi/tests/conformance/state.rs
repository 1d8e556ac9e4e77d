//! The state is plain data: it can be looked at, reset, and a handle can be
//! opened again from its description.

use std::path::Path;

use pagefork_wasi::{DescriptorOrigin, Errno, FdFlags, Permissions, Rights, StdinKind, WasiCtx};

use crate::harness::*;

#[test]
fn descriptions_tell_how_a_descriptor_came_to_be() {
    let dir = TempDir::new();
    dir.mkdir("a/b");
    let mut guest = Guest::with_dir(&dir);
    let a = guest.open(DIR, "a/", directory()).unwrap();
    let file = guest.open(a, "./b/file", Open { fd_flags: APPEND, ..creating() }).unwrap();
    guest.write(file, b"12345").unwrap();
    let descriptions: Vec<_> = guest.ctx.descriptors().collect();
    let numbers: Vec<u32> = descriptions.iter().map(|(fd, _)| *fd).collect();
    assert_eq!(numbers, [0, 1, 2, DIR, a, file]);
    assert_eq!(descriptions[0].1.origin, DescriptorOrigin::Stdin);
    assert_eq!(descriptions[3].1.origin, DescriptorOrigin::Preopen { index: 0 });
    let description = descriptions[5].1;
    let DescriptorOrigin::Opened { preopen, path, mode } = &description.origin else {
        panic!("opened by the guest: {description:?}")
    };
    assert_eq!((*preopen, path.as_path()), (0, Path::new("a/b/file")));
    assert!(mode.read && mode.write && mode.follow && !mode.directory);
    assert_eq!(description.flags, FdFlags::APPEND);
    assert_eq!(description.offset, 5);
    assert_eq!(description.rights_base, Rights::FILE);
}

#[test]
fn reopening_goes_on_where_it_was() {
    let dir = TempDir::new();
    dir.mkdir("sub");
    let mut guest = Guest::with_dir(&dir);
    let sub = guest.open(DIR, "sub", directory()).unwrap();
    let file = guest.open(sub, "file", Open { flags: CREAT | EXCL | TRUNC, ..writing() }).unwrap();
    guest.write(file, b"0123456789").unwrap();
    guest.seek(file, 3, 0).unwrap();
    for fd in [0, 1, 2, DIR, sub, file] {
        assert_eq!(guest.ctx.reopen(fd), Ok(()));
    }
    assert_eq!(guest.read(file, 2).unwrap(), b"34");
    assert_eq!(guest.write(file, b"x"), Ok(1));
    assert_eq!(dir.read("sub/file"), "01234x6789");
    assert!(guest.open(sub, "file", reading()).is_ok());
    assert_eq!(guest.readdir(sub, 4096, 0).unwrap().len(), 3 * 24 + 1 + 2 + 4);
    assert_eq!(guest.ctx.reopen(99), Err(Errno::Badf));
}

#[test]
fn reopening_fails_if_the_file_is_gone_or_another() {
    let dir = TempDir::new();
    dir.write("file", "text");
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", reading()).unwrap();
    std::fs::remove_file(dir.join("file")).unwrap();
    assert_eq!(guest.ctx.reopen(fd), Err(Errno::Noent));
    dir.mkdir("file");
    assert_eq!(guest.ctx.reopen(fd), Err(Errno::Stale));
    // The old handle stays.
    assert_eq!(guest.read(fd, 9).unwrap(), b"text");
}

#[test]
fn reset_returns_to_the_start() {
    let dir = TempDir::new();
    dir.write("file", "text");
    let mut builder = WasiCtx::builder();
    builder.stdin(StdinKind::bytes("input"));
    builder.preopened_dir(dir.path(), "/dir", Permissions::ReadWrite).unwrap();
    let mut guest = Guest::new(&builder);
    let before: Vec<_> =
        guest.ctx.descriptors().map(|(fd, description)| (fd, description.clone())).collect();

    guest.open(DIR, "file", reading()).unwrap();
    guest.read(0, 3).unwrap();
    guest.set_flags(1, NONBLOCK).unwrap();
    guest.set_rights(DIR, 0, 0).unwrap();
    guest.close(2).unwrap();
    guest.renumber(4, DIR).unwrap();
    guest.ctx.reset();

    let after: Vec<_> =
        guest.ctx.descriptors().map(|(fd, description)| (fd, description.clone())).collect();
    assert_eq!(after, before);
    assert_eq!(guest.read(0, 9).unwrap(), b"input");
    assert_eq!(guest.open(DIR, "file", reading()), Ok(4));
    assert_eq!(guest.write(2, b"x"), Ok(1));
}

#[test]
fn a_state_can_move_to_another_thread() {
    let dir = TempDir::new();
    dir.write("file", "text");
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", reading()).unwrap();
    let text = std::thread::spawn(move || guest.read(fd, 9).unwrap()).join().unwrap();
    assert_eq!(text, b"text");
}
