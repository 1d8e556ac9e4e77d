//! No path leaves a preopened directory: each way out is tried with each
//! function that takes a path, and fails with `Notcapable`.

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

const ESCAPE: Errno = Errno::Notcapable;

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
