//! No path leaves a preopened directory while others rename what it leads
//! through: every moment is one in which the path leads inside or nowhere.
//!
//! Another thread changes the directory without pause. A test goes on until
//! the guest has met both states hundreds of times, so it does not depend on
//! how fast either runs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use pagefork_wasi::{Errno, Permissions, WasiCtx};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::harness::*;

/// How often each of two outcomes is to be seen.
const TIMES: u32 = 500;

/// A directory `outer` with `inner`, which the guest has, and `outside`.
/// Everything called `secret` says where it is.
struct Field {
    outer: TempDir,
}

impl Field {
    fn new() -> Field {
        let outer = TempDir::new();
        for (place, word) in
            [("inner/d", "inside"), ("outside", "outside"), ("inner/a/b", "inside")]
        {
            outer.mkdir(place);
            outer.write(&format!("{place}/secret"), word);
            outer.symlink(word, &format!("{place}/link"));
        }
        outer.write("secret", "outside");
        outer.write("inner/a/secret", "inside");
        outer.write("inner/secret", "inside");
        outer.write("inner/f", "inside");
        outer.symlink("../outside", "inner/e");
        outer.symlink("../secret", "inner/l");
        Field { outer }
    }

    fn guest(&self) -> Guest {
        let mut builder = WasiCtx::builder();
        let permissions = Permissions::ReadWrite;
        builder.preopened_dir(self.outer.join("inner"), "/", permissions).unwrap();
        Guest::new(&builder)
    }

    fn inner(&self, name: &str) -> PathBuf {
        self.outer.join("inner").join(name)
    }

    /// Runs `guest` again and again while `change` is called in another
    /// thread, until `guest` says that it has seen enough.
    fn race(&self, mut change: impl FnMut() + Send, mut guest: impl FnMut(&mut Guest) -> bool) {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // The other thread ends even if the guest panics.
            let _stop = OnDrop(&done);
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    change();
                }
            });
            let mut state = self.guest();
            for round in 1.. {
                if guest(&mut state) {
                    break;
                }
                if round % 64 == 0 {
                    self.check();
                }
            }
        });
        self.check();
    }

    /// Checks that nothing outside has changed.
    fn check(&self) {
        let names = |place: &str| {
            let mut names: Vec<_> = std::fs::read_dir(self.outer.join(place))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names("outside"), ["link", "secret"]);
        assert_eq!(self.outer.read("outside/secret"), "outside");
        assert_eq!(self.outer.read("secret"), "outside");
        let times = std::fs::metadata(self.outer.join("outside/secret")).unwrap();
        assert!(
            times.modified().unwrap() > std::time::UNIX_EPOCH + std::time::Duration::from_secs(9)
        );
    }

    /// Exchanges two names in the guest's directory.
    fn exchange(&self, one: &str, other: &str) {
        let (one, other) = (self.inner(one), self.inner(other));
        renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
    }
}

struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Counts successes and failures.
#[derive(Default)]
struct Seen {
    inside: u32,
    refused: u32,
}

impl Seen {
    /// Takes a result, which may fail only as a path may that is changed.
    fn take<T>(&mut self, result: Result<T, Errno>) -> Option<T> {
        match result {
            Ok(value) => {
                self.inside += 1;
                Some(value)
            }
            Err(Errno::Perm | Errno::Noent | Errno::Notdir | Errno::Loop) => {
                self.refused += 1;
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn enough(&self) -> bool {
        self.inside >= TIMES && self.refused >= TIMES
    }
}

/// The text of the file at a path.
fn text(guest: &mut Guest, path: &str, open: Open) -> Result<String, Errno> {
    let fd = guest.open(DIR, path, open)?;
    let text = guest.read(fd, 99).unwrap();
    guest.close(fd).unwrap();
    Ok(String::from_utf8(text).unwrap())
}

#[test]
fn reading_through_a_directory_that_becomes_a_link_stays_inside() {
    let field = Field::new();
    let mut seen: [Seen; 5] = Default::default();
    field.race(
        || field.exchange("d", "e"),
        |guest| {
            let [open, nofollow, stat, link, list] = &mut seen;
            if let Some(text) = open.take(text(guest, "d/secret", reading())) {
                assert_eq!(text, "inside");
            }
            let unfollowing = Open { follow: false, ..reading() };
            if let Some(text) = nofollow.take(text(guest, "d/./secret", unfollowing)) {
                assert_eq!(text, "inside");
            }
            if let Some(stat) = stat.take(guest.path_stat(DIR, "d/secret", true)) {
                assert_eq!(stat.size, 6);
            }
            if let Some(target) = link.take(guest.readlink(DIR, "d/link", 99)) {
                assert_eq!(target, "inside");
            }
            if let Some(fd) = list.take(guest.open(DIR, "d", directory())) {
                assert_eq!(text_of(guest, fd), "inside");
                guest.close(fd).unwrap();
            }
            seen.iter().all(Seen::enough)
        },
    );
}

/// The text of `secret` in an open directory.
fn text_of(guest: &mut Guest, fd: u32) -> String {
    let file = guest.open(fd, "secret", reading()).unwrap();
    let text = guest.read(file, 99).unwrap();
    guest.close(file).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn changing_through_a_directory_that_becomes_a_link_stays_inside() {
    type Change = fn(&mut Guest) -> Result<(), Errno>;
    // Each is undone by the one after it, or does the same again.
    const CHANGES: &[Change] = &[
        |guest| guest.mkdir(DIR, "d/made"),
        |guest| guest.rmdir(DIR, "d/made"),
        |guest| guest.symlink("x", DIR, "d/soft"),
        |guest| guest.unlink(DIR, "d/soft"),
        |guest| guest.link(DIR, false, "f", DIR, "d/hard"),
        |guest| guest.rename(DIR, "d/hard", DIR, "d/moved"),
        |guest| guest.unlink(DIR, "d/moved"),
        |guest| guest.path_set_times(DIR, "d/secret", false, (7, 7, 5)),
        |guest| guest.path_set_times(DIR, "d/secret", true, (7, 7, 5)),
        |guest| {
            let fd = guest.open(DIR, "d/new", creating())?;
            guest.write(fd, b"new").unwrap();
            guest.close(fd)
        },
        |guest| guest.unlink(DIR, "d/new"),
        |guest| {
            let fd = guest.open(DIR, "d/secret", Open { flags: TRUNC, ..writing() })?;
            guest.write(fd, b"inside").unwrap();
            guest.close(fd)
        },
        |guest| guest.link(DIR, true, "d/secret", DIR, "stolen"),
        |guest| guest.unlink(DIR, "stolen"),
    ];
    let field = Field::new();
    let mut seen: Vec<Seen> = CHANGES.iter().map(|_| Seen::default()).collect();
    field.race(
        || field.exchange("d", "e"),
        |guest| {
            for (change, seen) in CHANGES.iter().zip(&mut seen) {
                match change(guest) {
                    // The one before it, or the one that undoes it, was refused.
                    Err(Errno::Exist) => {}
                    result => {
                        seen.take(result);
                    }
                }
            }
            seen.iter().map(|seen| seen.inside).sum::<u32>() >= 5 * TIMES
                && seen.iter().all(|seen| seen.refused >= TIMES)
        },
    );
    let links = std::os::unix::fs::MetadataExt::nlink(
        &std::fs::metadata(field.outer.join("outside/secret")).unwrap(),
    );
    assert_eq!(links, 1);
}

#[test]
fn a_file_that_becomes_a_link_is_not_followed_out() {
    let field = Field::new();
    let mut seen: [Seen; 4] = Default::default();
    field.race(
        || field.exchange("f", "l"),
        |guest| {
            let opens = [
                reading(),
                Open { follow: false, ..reading() },
                writing(),
                Open { flags: CREAT, ..writing() },
            ];
            for (open, seen) in opens.into_iter().zip(&mut seen) {
                if let Some(text) = seen.take(text(guest, "f", open)) {
                    assert_eq!(text, "inside");
                }
            }
            // What is cut off is inside.
            if let Ok(fd) = guest.open(DIR, "f", Open { flags: TRUNC, ..writing() }) {
                guest.write(fd, b"inside").unwrap();
                guest.close(fd).unwrap();
            }
            seen.iter().all(Seen::enough)
        },
    );
}

#[test]
fn a_directory_that_is_moved_out_does_not_take_its_parent_along() {
    let field = Field::new();
    let mut seen: [Seen; 3] = Default::default();
    let (inside, outside) = (field.inner("a/b"), field.outer.join("moved"));
    field.race(
        || {
            std::fs::rename(&inside, &outside).unwrap();
            std::fs::rename(&outside, &inside).unwrap();
        },
        |guest| {
            let paths = ["a/b/../secret", "a/b/../b/../secret", "a/b/../../secret"];
            for (path, seen) in paths.into_iter().zip(&mut seen) {
                if let Some(text) = seen.take(text(guest, path, reading())) {
                    assert_eq!(text, "inside", "{path}");
                }
            }
            seen.iter().all(Seen::enough)
        },
    );
}

#[test]
fn a_directory_that_was_moved_out_while_open_has_no_parent() {
    let field = Field::new();
    let mut guest = field.guest();
    let b = guest.open(DIR, "a/b", directory()).unwrap();
    std::fs::rename(field.inner("a/b"), field.outer.join("moved")).unwrap();
    assert_eq!(text_of(&mut guest, b), "inside");
    for path in ["..", "../secret", "./../secret", "../outside/secret"] {
        assert_eq!(guest.open(b, path, reading()), Err(Errno::Perm), "{path}");
        assert_eq!(guest.path_stat(b, path, false), Err(Errno::Perm), "{path}");
    }
    assert_eq!(guest.mkdir(b, "../made"), Err(Errno::Perm));
    assert!(!field.outer.has("made"));
}

#[test]
fn two_guests_cannot_help_each_other_out() {
    let field = Field::new();
    let mut helper = field.guest();
    let mut seen: [Seen; 3] = Default::default();
    field.race(
        move || {
            // A directory, then links that lead out from where they are.
            helper.rename(DIR, "d", DIR, "x").unwrap();
            for target in ["../outside", "..", "a/../../outside"] {
                helper.symlink(target, DIR, "d").unwrap();
                helper.unlink(DIR, "d").unwrap();
            }
            helper.rename(DIR, "x", DIR, "d").unwrap();
        },
        |guest| {
            let paths = ["d/secret", "./d/../d/secret", "a/../d/./secret"];
            for (path, seen) in paths.into_iter().zip(&mut seen) {
                if let Some(text) = seen.take(text(guest, path, reading())) {
                    assert_eq!(text, "inside", "{path}");
                }
            }
            seen.iter().all(Seen::enough)
        },
    );
}
