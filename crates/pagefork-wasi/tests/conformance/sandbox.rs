//! No path leaves a preopened directory: each way out is tried with each
//! function that takes a path, and fails with `Perm`.

use pagefork_wasi::Errno;

use crate::harness::*;

/// A directory for the guest inside one that is not, with something in the
/// outer one to reach for and links that lead there.
struct Prison {
    outer: TempDir,
}

impl Prison {
    fn new() -> (Prison, Guest) {
        let outer = TempDir::new();
        outer.write("secret", "secret");
        outer.mkdir("outside/empty");
        outer.mkdir("inner/sub");
        outer.write("inner/file", "file");
        outer.symlink("../secret", "inner/up");
        outer.symlink("../outside", "inner/updir");
        outer.symlink("../not-there", "inner/upnew");
        outer.symlink(outer.join("secret"), "inner/absolute");
        outer.symlink(outer.join("outside"), "inner/absolutedir");
        outer.symlink("/", "inner/root");
        outer.symlink("sub/../../secret", "inner/winding");
        outer.symlink("up", "inner/twice");
        outer.symlink("/proc/self/root/etc/passwd", "inner/magic");
        let mut builder = pagefork_wasi::WasiCtx::builder();
        let permissions = pagefork_wasi::Permissions::ReadWrite;
        builder.preopened_dir(outer.join("inner"), "/", permissions).unwrap();
        (Prison { outer }, Guest::new(&builder))
    }

    /// Paths to a file outside, however it is meant: by name, or through links
    /// as the last component.
    fn named(&self) -> Vec<String> {
        let absolute = self.outer.join("secret").display().to_string();
        let mut paths: Vec<String> = [
            "../secret",
            "./../secret",
            "sub/../../secret",
            "..//secret",
            "updir/../secret",
            "absolutedir/../secret",
            "root/etc/passwd",
            "/etc/passwd",
            "//etc/passwd",
            "/inner/file",
            "/file",
        ]
        .map(String::from)
        .to_vec();
        paths.push(absolute);
        paths
    }

    fn linked() -> [&'static str; 6] {
        ["up", "absolute", "winding", "twice", "upnew", "magic"]
    }

    fn directories() -> [&'static str; 10] {
        ["..", "../", "../..", "sub/../..", "/", "//", "updir", "updir/", "absolutedir/", "root/"]
    }

    /// Checks that the outer directory is as it was.
    fn check(&self) {
        let mut names: Vec<_> = std::fs::read_dir(self.outer.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["inner", "outside", "secret"]);
        assert_eq!(self.outer.read("secret"), "secret");
        assert!(self.outer.has("outside/empty"));
        let links = std::os::unix::fs::MetadataExt::nlink(
            &self.outer.join("secret").symlink_metadata().unwrap(),
        );
        assert_eq!(links, 1);
    }
}

const ESCAPE: Errno = Errno::Perm;

#[test]
fn opening_stays_inside() {
    let (prison, mut guest) = Prison::new();
    let opens = [
        reading(),
        writing(),
        creating(),
        Open { flags: CREAT | EXCL, ..writing() },
        Open { flags: TRUNC, ..writing() },
    ];
    for open in opens {
        for follow in [false, true] {
            let open = Open { follow, ..open };
            for path in prison.named() {
                assert_eq!(guest.open(DIR, &path, open), Err(ESCAPE), "{path}");
            }
        }
        for path in Prison::linked() {
            // Exclusive creation does not follow, so the link exists.
            let expected = if open.flags & EXCL == 0 { ESCAPE } else { Errno::Exist };
            assert_eq!(guest.open(DIR, path, open), Err(expected), "{path}");
            let nofollow = Open { follow: false, ..open };
            assert!(guest.open(DIR, path, nofollow).is_err(), "{path}");
        }
    }
    for path in Prison::directories() {
        assert_eq!(guest.open(DIR, path, directory()), Err(ESCAPE), "{path}");
        let nofollow = Open { follow: false, ..directory() };
        let nofollow = guest.open(DIR, path, nofollow);
        assert!(nofollow == Err(ESCAPE) || nofollow == Err(Errno::Notdir), "{path}: {nofollow:?}");
    }
    prison.check();
}

#[test]
fn a_subdirectory_is_a_prison_of_its_own() {
    let (prison, mut guest) = Prison::new();
    let sub = guest.open(DIR, "sub", directory()).unwrap();
    assert_eq!(guest.open(sub, "../file", reading()), Err(ESCAPE));
    assert_eq!(guest.open(sub, "..", directory()), Err(ESCAPE));
    assert_eq!(guest.mkdir(sub, "../new"), Err(ESCAPE));
    // The same file is there for who asks through the right descriptor.
    assert!(guest.open(DIR, "sub/../file", reading()).is_ok());
    prison.check();
}

#[test]
fn attributes_stay_inside() {
    let (prison, mut guest) = Prison::new();
    let times = (0, 0, 1 | 4);
    for follow in [false, true] {
        for path in prison.named() {
            assert_eq!(guest.path_stat(DIR, &path, follow), Err(ESCAPE), "{path}");
            assert_eq!(guest.path_set_times(DIR, &path, follow, times), Err(ESCAPE), "{path}");
        }
    }
    for path in Prison::linked() {
        assert_eq!(guest.path_stat(DIR, path, true), Err(ESCAPE), "{path}");
        assert_eq!(guest.path_set_times(DIR, path, true, times), Err(ESCAPE), "{path}");
        // The link itself is inside.
        assert_eq!(guest.path_stat(DIR, path, false).unwrap().filetype, 7);
        assert_eq!(guest.path_set_times(DIR, path, false, times), Ok(()));
    }
    for path in Prison::directories() {
        assert_eq!(guest.path_stat(DIR, path, true), Err(ESCAPE), "{path}");
        assert_eq!(guest.path_set_times(DIR, path, true, times), Err(ESCAPE), "{path}");
    }
    for path in ["updir/", "absolutedir/", "root/", "..", "../", "/"] {
        assert_eq!(guest.path_stat(DIR, path, false), Err(ESCAPE), "{path}");
        assert_eq!(guest.path_set_times(DIR, path, false, times), Err(ESCAPE), "{path}");
    }
    prison.check();
}

#[test]
fn names_are_made_and_removed_inside() {
    let (prison, mut guest) = Prison::new();
    let mut paths = prison.named();
    paths
        .extend(["../new", "updir/new", "absolutedir/new", "/new", "root/tmp/x"].map(String::from));
    paths.extend(["..", "../", "/", "sub/../.."].map(String::from));
    for path in &paths {
        assert_eq!(guest.mkdir(DIR, path), Err(ESCAPE), "{path}");
        assert_eq!(guest.rmdir(DIR, path), Err(ESCAPE), "{path}");
        assert_eq!(guest.unlink(DIR, path), Err(ESCAPE), "{path}");
        assert_eq!(guest.symlink("file", DIR, path), Err(ESCAPE), "{path}");
        assert_eq!(guest.readlink(DIR, path, 9), Err(ESCAPE), "{path}");
        assert_eq!(guest.rename(DIR, path, DIR, "new"), Err(ESCAPE), "{path}");
        assert_eq!(guest.rename(DIR, "file", DIR, path), Err(ESCAPE), "{path}");
        for follow in [false, true] {
            assert_eq!(guest.link(DIR, follow, path, DIR, "new"), Err(ESCAPE), "{path}");
            assert_eq!(guest.link(DIR, follow, "file", DIR, path), Err(ESCAPE), "{path}");
        }
    }
    assert_eq!(guest.rmdir(DIR, "../outside/empty"), Err(ESCAPE));
    assert_eq!(guest.rmdir(DIR, "updir/empty"), Err(ESCAPE));
    assert_eq!(guest.rename(DIR, "updir/empty", DIR, "new"), Err(ESCAPE));
    prison.check();
}

#[test]
fn hard_links_do_not_follow_out() {
    let (prison, mut guest) = Prison::new();
    for path in ["up", "absolute", "winding", "twice"] {
        assert_eq!(guest.link(DIR, true, path, DIR, "new"), Err(ESCAPE), "{path}");
        assert_eq!(guest.link(DIR, false, &format!("{path}/"), DIR, "new"), Err(Errno::Notdir));
    }
    assert!(!prison.outer.has("inner/new"));
    prison.check();
}

#[test]
fn links_are_removed_not_their_targets() {
    let (prison, mut guest) = Prison::new();
    for path in ["updir/", "absolutedir/"] {
        assert_eq!(guest.rmdir(DIR, path), Err(Errno::Notdir));
        assert_eq!(guest.unlink(DIR, path), Err(Errno::Notdir));
        assert_eq!(guest.rename(DIR, path, DIR, "new"), Err(Errno::Notdir));
        assert_eq!(guest.rename(DIR, "sub", DIR, path), Err(Errno::Notdir));
    }
    for path in Prison::linked() {
        assert_eq!(guest.unlink(DIR, path), Ok(()), "{path}");
    }
    prison.check();
}

#[test]
fn absolute_targets_are_neither_made_nor_told() {
    let (prison, mut guest) = Prison::new();
    assert_eq!(guest.symlink("/etc/passwd", DIR, "new"), Err(ESCAPE));
    assert_eq!(guest.readlink(DIR, "absolute", 99), Err(ESCAPE));
    assert_eq!(guest.readlink(DIR, "root", 99), Err(ESCAPE));
    assert_eq!(guest.readlink(DIR, "up", 99).unwrap(), "../secret");
    prison.check();
}

#[test]
fn a_link_that_the_guest_makes_leads_nowhere_outside() {
    let (prison, mut guest) = Prison::new();
    assert_eq!(guest.symlink("../secret", DIR, "own"), Ok(()));
    assert_eq!(guest.symlink("..", DIR, "parent"), Ok(()));
    assert_eq!(guest.open(DIR, "own", reading()), Err(ESCAPE));
    assert_eq!(guest.open(DIR, "parent/secret", reading()), Err(ESCAPE));
    assert_eq!(guest.mkdir(DIR, "parent/new"), Err(ESCAPE));
    // In a subdirectory, the parent is inside: for who starts at the top.
    assert_eq!(guest.symlink("..", DIR, "sub/parent"), Ok(()));
    assert!(guest.open(DIR, "sub/parent/file", reading()).is_ok());
    let sub = guest.open(DIR, "sub", directory()).unwrap();
    assert_eq!(guest.open(sub, "parent/file", reading()), Err(ESCAPE));
    prison.check();
}

#[test]
fn listing_tells_nothing_of_the_parent() {
    let (prison, mut guest) = Prison::new();
    let own = guest.stat(DIR).unwrap().inode;
    let entries = Guest::entries(&guest.readdir(DIR, 4096, 0).unwrap());
    assert_eq!((entries[1].name.as_str(), entries[1].inode), ("..", own));
    prison.check();
}

#[test]
fn chains_of_links_lead_out_no_further_than_one() {
    let (prison, mut guest) = Prison::new();
    for (target, name) in [("../secret", "c0"), ("../not-there", "n0"), ("..", "p0")] {
        prison.outer.symlink(target, &format!("inner/{name}"));
    }
    for index in 1..18 {
        for kind in ["c", "n", "p"] {
            // Each in another way, some through a directory.
            let way = ["", "./", "sub/../"][index % 3];
            let (target, name) = (format!("{way}{kind}{}", index - 1), format!("{kind}{index}"));
            prison.outer.symlink(target, &format!("inner/{name}"));
        }
    }
    for index in [0, 1, 2, 3, 10, 17] {
        for open in [reading(), writing(), creating()] {
            assert_eq!(guest.open(DIR, &format!("c{index}"), open), Err(ESCAPE), "{index}");
            assert_eq!(guest.open(DIR, &format!("n{index}"), open), Err(ESCAPE));
            assert_eq!(guest.open(DIR, &format!("p{index}/secret"), open), Err(ESCAPE));
        }
        assert_eq!(guest.mkdir(DIR, &format!("p{index}/new")), Err(ESCAPE));
        assert_eq!(guest.link(DIR, true, &format!("c{index}"), DIR, "new"), Err(ESCAPE));
        assert_eq!(guest.path_stat(DIR, &format!("c{index}"), true), Err(ESCAPE));
    }
    prison.check();
}

#[test]
fn a_link_that_is_renamed_is_judged_where_it_is() {
    let (prison, mut guest) = Prison::new();
    // Inside where it is made, it would lead out from where it goes.
    assert_eq!(guest.symlink("../file", DIR, "sub/link"), Ok(()));
    assert!(guest.open(DIR, "sub/link", reading()).is_ok());
    assert_eq!(guest.rename(DIR, "sub/link", DIR, "moved"), Ok(()));
    prison.outer.write("file", "secret");
    assert_eq!(guest.open(DIR, "moved", reading()), Err(ESCAPE));
    assert_eq!(guest.path_stat(DIR, "moved", true), Err(ESCAPE));
    // So with a second name of a link, and with a directory above one.
    assert_eq!(guest.rename(DIR, "moved", DIR, "sub/link"), Ok(()));
    assert_eq!(guest.link(DIR, false, "sub/link", DIR, "second"), Ok(()));
    assert_eq!(guest.open(DIR, "second", reading()), Err(ESCAPE));
    assert_eq!(guest.mkdir(DIR, "sub/deep"), Ok(()));
    assert_eq!(guest.symlink("../../file", DIR, "sub/deep/link"), Ok(()));
    assert!(guest.open(DIR, "sub/deep/link", reading()).is_ok());
    assert_eq!(guest.rename(DIR, "sub/deep", DIR, "deep"), Ok(()));
    assert_eq!(guest.open(DIR, "deep/link", reading()), Err(ESCAPE));
    std::fs::remove_file(prison.outer.join("file")).unwrap();
    prison.check();
}

#[test]
fn magic_links_lead_nowhere() {
    let mut builder = pagefork_wasi::WasiCtx::builder();
    let permissions = pagefork_wasi::Permissions::ReadWrite;
    builder.preopened_dir("/proc/self", "/self", permissions).unwrap();
    builder.preopened_dir("/proc", "/proc", permissions).unwrap();
    let mut guest = Guest::new(&builder);
    // What they lead to is there for who follows them.
    assert!(std::fs::metadata("/proc/self/root/etc/passwd").is_ok());
    let own = std::process::id();
    for fd in [DIR, DIR + 1] {
        let up = if fd == DIR { String::new() } else { format!("{own}/") };
        for path in ["root/etc/passwd", "root", "root/", "cwd", "cwd/.", "exe", "fd/0", "fd/1"] {
            let path = format!("{up}{path}");
            for follow in [false, true] {
                let opened = guest.open(fd, &path, Open { follow, ..reading() });
                assert!(matches!(opened, Err(ESCAPE | Errno::Loop)), "{path}: {opened:?}");
            }
            let stat = guest.path_stat(fd, &path, true);
            assert!(matches!(stat, Err(ESCAPE | Errno::Loop)), "{path}: {stat:?}");
        }
        for path in ["root", "cwd", "exe"] {
            assert_eq!(guest.readlink(fd, &format!("{up}{path}"), 99), Err(ESCAPE));
        }
    }
    // A file of the directory is a file, though.
    assert!(guest.open(DIR, "status", reading()).is_ok());
}

#[test]
fn renumbering_makes_no_directory_larger() {
    let (prison, mut guest) = Prison::new();
    let sub = guest.open(DIR, "sub", directory()).unwrap();
    // The small one where the large one was, and in the place of a stream.
    guest.renumber(sub, DIR).unwrap();
    assert_eq!(guest.open(DIR, "../file", reading()), Err(ESCAPE));
    assert_eq!(guest.open(DIR, "file", reading()), Err(Errno::Noent));
    guest.renumber(DIR, 0).unwrap();
    assert_eq!(guest.open(0, "../file", reading()), Err(ESCAPE));
    assert_eq!(guest.mkdir(0, "../new"), Err(ESCAPE));
    // The large one is gone; no number brings it back.
    for fd in [DIR, sub, 5, 99] {
        assert_eq!(guest.open(fd, "file", reading()), Err(Errno::Badf));
    }
    // It does not become writable by another number either.
    let mut guest = Guest::with_permissions(&prison.outer, pagefork_wasi::Permissions::ReadOnly);
    guest.renumber(DIR, 1).unwrap();
    assert_eq!(guest.open(1, "new", creating()), Err(Errno::Perm));
    assert_eq!(guest.unlink(1, "secret"), Err(Errno::Perm));
    prison.check();
}

#[test]
fn closed_descriptors_and_files_lead_nowhere() {
    let (prison, mut guest) = Prison::new();
    let file = guest.open(DIR, "file", writing()).unwrap();
    let sub = guest.open(DIR, "sub", directory()).unwrap();
    guest.close(sub).unwrap();
    for (fd, errno) in [(file, Errno::Notdir), (sub, Errno::Badf), (0, Errno::Notdir)] {
        for path in ["", ".", "..", "../file", "/", "secret"] {
            let expected = if path.is_empty() { Errno::Noent } else { errno };
            assert_eq!(guest.open(fd, path, reading()), Err(expected), "{fd} {path}");
            assert_eq!(guest.path_stat(fd, path, true), Err(expected), "{fd} {path}");
            assert_eq!(guest.mkdir(fd, path), Err(expected), "{fd} {path}");
            assert_eq!(guest.rename(fd, path, DIR, "new"), Err(expected), "{fd} {path}");
            assert_eq!(guest.readlink(fd, path, 9), Err(expected), "{fd} {path}");
        }
        assert!(guest.readdir(fd, 99, 0).is_err());
    }
    // The number is given anew, and means something else then.
    assert_eq!(guest.open(DIR, "file", reading()), Ok(sub));
    assert_eq!(guest.open(sub, "../file", reading()), Err(Errno::Notdir));
    prison.check();
}

#[test]
fn cookies_lead_to_no_other_directory() {
    let (prison, mut guest) = Prison::new();
    for index in 0..50 {
        prison.outer.write(&format!("inner/sub/{index}"), "");
    }
    let sub = guest.open(DIR, "sub", directory()).unwrap();
    let all = Guest::entries(&guest.readdir(sub, 0x8000, 0).unwrap());
    assert_eq!(all.len(), 52);
    // A cookie of one directory is a place in another, at most.
    let inner = Guest::entries(&guest.readdir(DIR, 0x8000, 0).unwrap());
    for cookie in (0..60).chain([1 << 31, 1 << 32, 1 << 63, u64::MAX]) {
        let entries = Guest::entries(&guest.readdir(DIR, 0x8000, cookie).unwrap());
        let first = usize::try_from(cookie).unwrap().min(inner.len());
        assert_eq!(entries, inner[first..], "cookie {cookie}");
    }
    prison.check();
}

#[test]
fn trailing_slashes_open_no_way_out() {
    let (prison, mut guest) = Prison::new();
    for path in ["up/", "absolute/", "winding//", "twice/", "upnew/", "updir//", "absolutedir/."] {
        for open in [reading(), directory(), creating(), Open { follow: false, ..reading() }] {
            let opened = guest.open(DIR, path, open);
            assert!(matches!(opened, Err(ESCAPE | Errno::Isdir)), "{path}: {opened:?}");
        }
        for follow in [false, true] {
            assert_eq!(guest.path_stat(DIR, path, follow), Err(ESCAPE), "{path}");
            assert_eq!(guest.path_set_times(DIR, path, follow, (0, 0, 5)), Err(ESCAPE), "{path}");
        }
        assert!(guest.readlink(DIR, path, 99).is_err(), "{path}");
        assert!(guest.mkdir(DIR, path).is_err(), "{path}");
        assert!(guest.rmdir(DIR, path).is_err(), "{path}");
        assert!(guest.unlink(DIR, path).is_err(), "{path}");
        assert!(guest.symlink("x", DIR, path).is_err(), "{path}");
        assert!(guest.link(DIR, true, path, DIR, "new").is_err(), "{path}");
        assert!(guest.link(DIR, false, "file", DIR, path).is_err(), "{path}");
        assert!(guest.rename(DIR, path, DIR, "new").is_err(), "{path}");
        assert!(guest.rename(DIR, "file", DIR, path).is_err(), "{path}");
    }
    prison.check();
}

#[test]
fn a_nul_does_not_cut_a_path_short() {
    let (prison, mut guest) = Prison::new();
    for path in ["../secret\0", "\0../secret", "file\0", "sub\0/../../secret", "\0"] {
        assert_eq!(guest.open(DIR, path, reading()), Err(Errno::Inval), "{path:?}");
        assert_eq!(guest.open(DIR, path, creating()), Err(Errno::Inval), "{path:?}");
        assert_eq!(guest.mkdir(DIR, path), Err(Errno::Inval), "{path:?}");
        assert_eq!(guest.symlink(path, DIR, "new"), Err(Errno::Inval), "{path:?}");
        assert_eq!(guest.rename(DIR, "file", DIR, path), Err(Errno::Inval), "{path:?}");
    }
    prison.check();
}

#[test]
fn long_paths_lead_out_no_better_than_short_ones() {
    let (prison, mut guest) = Prison::new();
    for count in [1, 30, 500] {
        let path = format!("{}../secret", "sub/../".repeat(count));
        assert_eq!(guest.open(DIR, &path, reading()), Err(ESCAPE), "{count}");
        assert_eq!(guest.unlink(DIR, &path), Err(ESCAPE), "{count}");
        let path = format!("{}file", "./".repeat(count));
        assert!(guest.open(DIR, &path, reading()).is_ok(), "{count}");
        let path = format!("{}secret", "../".repeat(count));
        assert_eq!(guest.open(DIR, &path, reading()), Err(ESCAPE), "{count}");
        assert_eq!(guest.path_stat(DIR, &path, false), Err(ESCAPE), "{count}");
    }
    let long = format!("{}../secret", "sub/../".repeat(700));
    assert_eq!(guest.open(DIR, &long, reading()), Err(Errno::Nametoolong));
    let name = "x".repeat(256);
    assert_eq!(
        guest.open(DIR, &format!("{name}/../../secret"), reading()),
        Err(Errno::Nametoolong)
    );
    assert_eq!(guest.open(DIR, "", reading()), Err(Errno::Noent));
    assert_eq!(guest.path_stat(DIR, "", true), Err(Errno::Noent));
    prison.check();
}

#[test]
fn opening_again_stays_inside() {
    let (prison, mut guest) = Prison::new();
    let sub = guest.open(DIR, "sub", directory()).unwrap();
    let file = guest.open(DIR, "file", reading()).unwrap();
    // Links have taken the places of what was open.
    for (name, target) in [("sub", "../outside"), ("file", "../secret")] {
        let path = prison.outer.join("inner").join(name);
        std::fs::rename(&path, path.with_extension("old")).unwrap();
        prison.outer.symlink(target, &format!("inner/{name}"));
    }
    assert_eq!(guest.ctx.reopen(sub), Err(ESCAPE));
    assert_eq!(guest.ctx.reopen(file), Err(ESCAPE));
    assert_eq!(guest.read(file, 9).unwrap(), b"file");
    prison.check();
}

#[test]
fn a_read_only_directory_lends_nothing_to_a_writable_one() {
    let (prison, _) = Prison::new();
    let other = TempDir::new();
    let mut builder = pagefork_wasi::WasiCtx::builder();
    let (only, write) =
        (pagefork_wasi::Permissions::ReadOnly, pagefork_wasi::Permissions::ReadWrite);
    builder.preopened_dir(prison.outer.path(), "/ro", only).unwrap();
    builder.preopened_dir(other.path(), "/rw", write).unwrap();
    let mut guest = Guest::new(&builder);
    let (ro, rw) = (DIR, DIR + 1);
    // A second name would let it be written through the other directory.
    for follow in [false, true] {
        assert_eq!(guest.link(ro, follow, "secret", rw, "new"), Err(Errno::Perm));
    }
    assert_eq!(guest.rename(ro, "secret", rw, "new"), Err(Errno::Perm));
    other.write("file", "");
    assert_eq!(guest.rename(rw, "file", ro, "new"), Err(Errno::Perm));
    assert_eq!(guest.link(rw, false, "file", ro, "new"), Err(Errno::Perm));
    assert!(!other.has("new"));
    prison.check();
}
