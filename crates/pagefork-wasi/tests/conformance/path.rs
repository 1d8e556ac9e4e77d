//! Names: create, rename, link, remove.

use pagefork_wasi::{Errno, Permissions, WasiCtx};

use crate::harness::*;

#[test]
fn directories_are_made_and_removed() {
    let dir = TempDir::new();
    dir.write("file", "");
    dir.symlink("nowhere", "dangling");
    let mut guest = Guest::with_dir(&dir);
    assert_eq!(guest.mkdir(DIR, "a"), Ok(()));
    assert_eq!(guest.mkdir(DIR, "a/b"), Ok(()));
    // A trailing slash is what a directory has anyway.
    assert_eq!(guest.mkdir(DIR, "a/c//"), Ok(()));
    assert_eq!(guest.mkdir(DIR, "a"), Err(Errno::Exist));
    assert_eq!(guest.mkdir(DIR, "file"), Err(Errno::Exist));
    assert_eq!(guest.mkdir(DIR, "dangling"), Err(Errno::Exist));
    assert_eq!(guest.mkdir(DIR, "dangling/"), Err(Errno::Exist));
    assert_eq!(guest.mkdir(DIR, "."), Err(Errno::Exist));
    assert_eq!(guest.mkdir(DIR, "a/.."), Err(Errno::Exist));
    assert_eq!(guest.mkdir(DIR, "no/a"), Err(Errno::Noent));
    assert_eq!(guest.mkdir(DIR, "file/a"), Err(Errno::Notdir));
    assert_eq!(guest.mkdir(DIR, ""), Err(Errno::Noent));
    assert_eq!(guest.mkdir(0, "x"), Err(Errno::Notdir));
    assert_eq!(guest.mkdir(99, "x"), Err(Errno::Badf));

    assert_eq!(guest.rmdir(DIR, "a"), Err(Errno::Notempty));
    assert_eq!(guest.rmdir(DIR, "a/b"), Ok(()));
    assert_eq!(guest.rmdir(DIR, "a/c/"), Ok(()));
    assert_eq!(guest.rmdir(DIR, "a/c"), Err(Errno::Noent));
    assert_eq!(guest.rmdir(DIR, "file"), Err(Errno::Notdir));
    assert_eq!(guest.rmdir(DIR, "dangling"), Err(Errno::Notdir));
    assert_eq!(guest.rmdir(DIR, "."), Err(Errno::Inval));
    assert_eq!(guest.rmdir(DIR, "a"), Ok(()));
    assert_eq!(guest.rmdir(99, "a"), Err(Errno::Badf));
    assert!(!dir.has("a"));
}

#[test]
fn removing_a_directory_does_not_follow_a_link() {
    let dir = TempDir::new();
    dir.mkdir("sub");
    dir.symlink("sub", "link");
    let mut guest = Guest::with_dir(&dir);
    assert_eq!(guest.rmdir(DIR, "link"), Err(Errno::Notdir));
    assert_eq!(guest.rmdir(DIR, "link/"), Err(Errno::Notdir));
    assert!(dir.has("sub"));
}

#[test]
fn files_are_unlinked() {
    let dir = TempDir::new();
    dir.write("file", "text");
    dir.mkdir("sub");
    dir.symlink("file", "link");
    dir.symlink("sub", "sublink");
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", reading()).unwrap();
    assert_eq!(guest.unlink(DIR, "file/"), Err(Errno::Notdir));
    assert_eq!(guest.unlink(DIR, "link/"), Err(Errno::Notdir));
    assert_eq!(guest.unlink(DIR, "link"), Ok(()));
    assert!(dir.has("file"));
    assert_eq!(guest.unlink(DIR, "file"), Ok(()));
    assert_eq!(guest.unlink(DIR, "file"), Err(Errno::Noent));
    assert_eq!(guest.unlink(DIR, "file/"), Err(Errno::Noent));
    assert_eq!(guest.unlink(DIR, "sub"), Err(Errno::Isdir));
    assert_eq!(guest.unlink(DIR, "sub/"), Err(Errno::Isdir));
    assert_eq!(guest.unlink(DIR, "sub/."), Err(Errno::Isdir));
    assert_eq!(guest.unlink(DIR, "sublink/"), Err(Errno::Notdir));
    assert_eq!(guest.unlink(DIR, "sublink"), Ok(()));
    assert_eq!(guest.unlink(99, "x"), Err(Errno::Badf));
    // What is open stays readable.
    assert_eq!(guest.read(fd, 9).unwrap(), b"text");
    assert_eq!(guest.stat(fd).unwrap().links, 0);
}

#[test]
fn renaming_replaces() {
    let dir = TempDir::new();
    dir.write("a", "a");
    dir.write("b", "b");
    dir.mkdir("empty");
    dir.mkdir("full/inner");
    let mut guest = Guest::with_dir(&dir);
    assert_eq!(guest.rename(DIR, "a", DIR, "b"), Ok(()));
    assert_eq!(dir.read("b"), "a");
    assert!(!dir.has("a"));
    assert_eq!(guest.rename(DIR, "a", DIR, "c"), Err(Errno::Noent));
    assert_eq!(guest.rename(DIR, "b", DIR, "b"), Ok(()));
    assert_eq!(guest.rename(DIR, "b", DIR, "empty"), Err(Errno::Isdir));
    assert_eq!(guest.rename(DIR, "empty", DIR, "b"), Err(Errno::Notdir));
    assert_eq!(guest.rename(DIR, "empty", DIR, "full"), Err(Errno::Notempty));
    assert_eq!(guest.rename(DIR, "full", DIR, "full/inner/x"), Err(Errno::Inval));
    assert_eq!(guest.rename(DIR, ".", DIR, "x"), Err(Errno::Busy));
    assert_eq!(guest.rename(DIR, "full", DIR, "empty"), Ok(()));
    assert!(dir.has("empty/inner"));
    assert_eq!(guest.rename(DIR, "b", DIR, "no/b"), Err(Errno::Noent));
    assert_eq!(guest.rename(99, "b", DIR, "c"), Err(Errno::Badf));
    assert_eq!(guest.rename(DIR, "b", 99, "c"), Err(Errno::Badf));
}

#[test]
fn renaming_with_slashes_is_for_directories() {
    let dir = TempDir::new();
    dir.write("file", "");
    dir.mkdir("sub");
    dir.symlink("sub", "link");
    let mut guest = Guest::with_dir(&dir);
    assert_eq!(guest.rename(DIR, "file/", DIR, "x"), Err(Errno::Notdir));
    assert_eq!(guest.rename(DIR, "file", DIR, "x/"), Err(Errno::Notdir));
    assert_eq!(guest.rename(DIR, "link/", DIR, "x"), Err(Errno::Notdir));
    assert_eq!(guest.rename(DIR, "sub/", DIR, "x/"), Ok(()));
    assert_eq!(guest.rename(DIR, "x", DIR, "y/"), Ok(()));
    // The link itself moves, not what it names.
    assert_eq!(guest.rename(DIR, "link", DIR, "y/link"), Ok(()));
    assert!(dir.has("y/link"));
}

#[test]
fn files_move_between_preopened_directories() {
    let (from, to) = (TempDir::new(), TempDir::new());
    from.write("file", "text");
    let mut builder = WasiCtx::builder();
    builder.preopened_dir(from.path(), "/from", Permissions::ReadWrite).unwrap();
    builder.preopened_dir(to.path(), "/to", Permissions::ReadWrite).unwrap();
    let mut guest = Guest::new(&builder);
    assert_eq!(guest.rename(3, "file", 4, "../file"), Err(Errno::Perm));
    assert_eq!(guest.rename(3, "file", 4, "moved"), Ok(()));
    assert_eq!(to.read("moved"), "text");
    assert_eq!(guest.link(4, false, "moved", 3, "linked"), Ok(()));
    assert_eq!(from.read("linked"), "text");
}

#[test]
fn hard_links_share_the_file() {
    let dir = TempDir::new();
    dir.write("file", "text");
    dir.mkdir("sub");
    dir.symlink("file", "symbolic");
    dir.symlink("loop", "loop");
    let mut guest = Guest::with_dir(&dir);
    assert_eq!(guest.link(DIR, false, "file", DIR, "sub/second"), Ok(()));
    let first = guest.path_stat(DIR, "file", true).unwrap();
    assert_eq!(first.links, 2);
    assert_eq!(guest.path_stat(DIR, "sub/second", true).unwrap().inode, first.inode);
    assert_eq!(guest.link(DIR, false, "file", DIR, "sub/second"), Err(Errno::Exist));
    assert_eq!(guest.link(DIR, false, "none", DIR, "x"), Err(Errno::Noent));
    assert_eq!(guest.link(DIR, false, "sub", DIR, "x"), Err(Errno::Perm));
    assert_eq!(guest.link(DIR, false, "sub/", DIR, "x"), Err(Errno::Perm));
    assert_eq!(guest.link(DIR, false, "file/", DIR, "x"), Err(Errno::Notdir));
    assert_eq!(guest.link(DIR, false, "symbolic/", DIR, "x"), Err(Errno::Notdir));
    assert_eq!(guest.link(DIR, false, "file", DIR, "x/"), Err(Errno::Noent));
    assert_eq!(guest.link(DIR, false, "file", DIR, "sub/"), Err(Errno::Exist));
    // Without following, the symbolic link gets a second name; with, its file.
    assert_eq!(guest.link(DIR, false, "symbolic", DIR, "soft"), Ok(()));
    assert_eq!(guest.path_stat(DIR, "soft", false).unwrap().filetype, 7);
    assert_eq!(guest.link(DIR, true, "symbolic", DIR, "hard"), Ok(()));
    assert_eq!(guest.path_stat(DIR, "hard", false).unwrap().inode, first.inode);
    assert_eq!(guest.link(DIR, true, "loop", DIR, "x"), Err(Errno::Loop));
    assert_eq!(guest.link(99, false, "file", DIR, "x"), Err(Errno::Badf));
    assert_eq!(guest.link(DIR, false, "file", 99, "x"), Err(Errno::Badf));
}

#[test]
fn symbolic_links_hold_what_they_are_given() {
    let dir = TempDir::new();
    dir.write("file", "");
    let mut guest = Guest::with_dir(&dir);
    assert_eq!(guest.symlink("some/where", DIR, "link"), Ok(()));
    assert_eq!(guest.readlink(DIR, "link", 100).unwrap(), "some/where");
    assert_eq!(guest.readlink(DIR, "link", 4).unwrap(), "some");
    assert_eq!(guest.readlink(DIR, "link", 0).unwrap(), "");
    assert_eq!(guest.readlink(DIR, "file", 9), Err(Errno::Inval));
    assert_eq!(guest.readlink(DIR, ".", 9), Err(Errno::Inval));
    assert_eq!(guest.readlink(DIR, "none", 9), Err(Errno::Noent));
    assert_eq!(guest.readlink(99, "link", 9), Err(Errno::Badf));
    assert_eq!(guest.symlink("x", DIR, "link"), Err(Errno::Exist));
    assert_eq!(guest.symlink("x", DIR, "file"), Err(Errno::Exist));
    assert_eq!(guest.symlink("x", DIR, "file/"), Err(Errno::Notdir));
    assert_eq!(guest.symlink("x", DIR, "new/"), Err(Errno::Noent));
    assert_eq!(guest.symlink("", DIR, "new"), Err(Errno::Noent));
    assert_eq!(guest.symlink("x", 99, "new"), Err(Errno::Badf));
    assert!(!dir.has("new"));
}

#[test]
fn a_link_with_a_slash_is_what_it_names() {
    let dir = TempDir::new();
    dir.write("file", "");
    dir.mkdir("sub");
    dir.symlink("sub", "sublink");
    dir.symlink("file", "filelink");
    let mut guest = Guest::with_dir(&dir);
    assert_eq!(guest.readlink(DIR, "sublink/", 9), Err(Errno::Inval));
    assert_eq!(guest.readlink(DIR, "filelink/", 9), Err(Errno::Notdir));
    assert_eq!(guest.path_stat(DIR, "sublink", false).unwrap().filetype, 7);
    assert_eq!(guest.path_stat(DIR, "sublink/", false).unwrap().filetype, 3);
    assert_eq!(guest.path_stat(DIR, "filelink/", false), Err(Errno::Notdir));
    assert_eq!(guest.path_stat(DIR, "file/", true), Err(Errno::Notdir));
}
