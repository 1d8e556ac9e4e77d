//! Attributes and timestamps.

use std::os::unix::fs::MetadataExt;

use pagefork_wasi::Errno;

use crate::harness::*;

#[test]
fn attributes_are_those_of_the_host() {
    let dir = TempDir::new();
    dir.write("file", "12345");
    dir.symlink("file", "link");
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", reading()).unwrap();
    let stat = guest.stat(fd).unwrap();
    let host = std::fs::metadata(dir.join("file")).unwrap();
    assert_eq!(stat.device, host.dev());
    assert_eq!(stat.inode, host.ino());
    assert_eq!(stat.filetype, 4);
    assert_eq!(stat.links, 1);
    assert_eq!(stat.size, 5);
    assert_eq!(stat.mtim, host.mtime() as u64 * 1_000_000_000 + host.mtime_nsec() as u64);
    assert_eq!(guest.path_stat(DIR, "file", true).unwrap(), stat);
    assert_eq!(guest.path_stat(DIR, "file", false).unwrap(), stat);
    assert_eq!(guest.path_stat(DIR, "link", true).unwrap(), stat);
    let link = guest.path_stat(DIR, "link", false).unwrap();
    assert_eq!((link.filetype, link.size), (7, 4));
    assert_eq!(guest.path_stat(DIR, ".", false).unwrap(), guest.stat(DIR).unwrap());
    assert_eq!(guest.stat(DIR).unwrap().filetype, 3);
    assert_eq!(guest.path_stat(DIR, "none", true), Err(Errno::Noent));
    assert_eq!(guest.path_stat(DIR, "", true), Err(Errno::Noent));
    assert_eq!(guest.path_stat(fd, "x", true), Err(Errno::Notdir));
    assert_eq!(guest.path_stat(99, "x", true), Err(Errno::Badf));
    assert_eq!(guest.stat(99), Err(Errno::Badf));
}

#[test]
fn standard_streams_have_a_type_and_nothing_else() {
    let dir = TempDir::new();
    let mut guest = Guest::with_dir(&dir);
    for fd in 0..3 {
        let stat = guest.stat(fd).unwrap();
        assert_eq!((stat.filetype, stat.inode, stat.size), (0, 0, 0));
    }
}

const ATIM: u32 = 1;
const ATIM_NOW: u32 = 2;
const MTIM: u32 = 4;
const MTIM_NOW: u32 = 8;

#[test]
fn timestamps_are_set_by_path() {
    let dir = TempDir::new();
    dir.write("file", "");
    dir.mkdir("sub");
    dir.symlink("file", "link");
    dir.symlink("sub", "sublink");
    let mut guest = Guest::with_dir(&dir);
    let times = (1_000_000_007, 2_000_000_009, ATIM | MTIM);
    for (path, follow) in [("file", true), ("file", false), ("sub", true), ("sub/", false)] {
        assert_eq!(guest.path_set_times(DIR, path, follow, times), Ok(()), "{path}");
        let stat = guest.path_stat(DIR, path, false).unwrap();
        assert_eq!((stat.atim, stat.mtim), (1_000_000_007, 2_000_000_009), "{path}");
    }
    // The link, or what it names.
    assert_eq!(guest.path_set_times(DIR, "link", false, (7, 8, ATIM | MTIM)), Ok(()));
    assert_eq!(guest.path_stat(DIR, "link", false).unwrap().mtim, 8);
    assert_eq!(guest.path_stat(DIR, "file", false).unwrap().mtim, 2_000_000_009);
    assert_eq!(guest.path_set_times(DIR, "link", true, (3, 4, ATIM | MTIM)), Ok(()));
    assert_eq!(guest.path_stat(DIR, "file", false).unwrap().mtim, 4);
    assert_eq!(guest.path_stat(DIR, "link", false).unwrap().mtim, 8);
    assert_eq!(guest.path_set_times(DIR, "sublink/", false, (3, 5, MTIM)), Ok(()));
    assert_eq!(guest.path_stat(DIR, "sub", false).unwrap().mtim, 5);
    assert_eq!(guest.path_set_times(DIR, "file/", true, times), Err(Errno::Notdir));
    assert_eq!(guest.path_set_times(DIR, "none", true, times), Err(Errno::Noent));
    assert_eq!(guest.path_set_times(99, "file", true, times), Err(Errno::Badf));
}

#[test]
fn each_timestamp_is_set_kept_or_now() {
    let dir = TempDir::new();
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", creating()).unwrap();
    let set = |guest: &mut Guest, fd, atim, mtim, flags| {
        guest.call(|ctx, memory| ctx.fd_filestat_set_times(memory, fd, atim, mtim, flags))
    };
    assert_eq!(set(&mut guest, fd, 5, 6, ATIM | MTIM), Ok(()));
    assert_eq!(set(&mut guest, fd, 99, 7, MTIM), Ok(()));
    assert_eq!(set(&mut guest, fd, 99, 99, 0), Ok(()));
    let stat = guest.stat(fd).unwrap();
    assert_eq!((stat.atim, stat.mtim), (5, 7));
    assert_eq!(set(&mut guest, fd, 8, 9, ATIM | MTIM_NOW), Ok(()));
    let stat = guest.stat(fd).unwrap();
    assert_eq!(stat.atim, 8);
    assert!(stat.mtim > 1_600_000_000 * 1_000_000_000);
    assert_eq!(set(&mut guest, fd, 8, 9, ATIM_NOW | MTIM_NOW), Ok(()));
    assert_eq!(set(&mut guest, fd, 8, 9, ATIM | ATIM_NOW), Err(Errno::Inval));
    assert_eq!(set(&mut guest, fd, 8, 9, MTIM | MTIM_NOW), Err(Errno::Inval));
    assert_eq!(set(&mut guest, fd, 8, 9, 16), Err(Errno::Inval));
    assert_eq!(set(&mut guest, DIR, 11, 12, ATIM | MTIM), Ok(()));
    assert_eq!(guest.stat(DIR).unwrap().mtim, 12);
    assert_eq!(set(&mut guest, 0, 0, 0, 0), Err(Errno::Notcapable));
    assert_eq!(set(&mut guest, 99, 0, 0, 0), Err(Errno::Badf));
    // Any number is a time; the host says which it can keep.
    let _ = set(&mut guest, fd, u64::MAX, u64::MAX, ATIM | MTIM);
}

#[test]
fn timestamps_of_a_file_need_no_right_to_read_it() {
    let dir = TempDir::new();
    dir.write("file", "");
    let unreadable = std::os::unix::fs::PermissionsExt::from_mode(0o000);
    std::fs::set_permissions(dir.join("file"), unreadable).unwrap();
    let mut guest = Guest::with_dir(&dir);
    assert_eq!(guest.path_set_times(DIR, "file", true, (1, 2, ATIM | MTIM)), Ok(()));
    assert_eq!(guest.path_stat(DIR, "file", true).unwrap().mtim, 2);
}
