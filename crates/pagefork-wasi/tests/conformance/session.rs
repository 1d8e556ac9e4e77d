//! Directories that belong to a guest's session: copied with the saved state, a copy for each
//! guest that is restored from it, and no way out of it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pagefork_wasi::{
    Errno, FileChange, Permissions, RestoreError, SaveError, SessionError, SessionLimits, WasiCtx,
    WasiCtxBuilder, WasiState,
};

use crate::harness::*;
use crate::saved::{restored, stored};

/// A directory that is a session's, one for saved copies, and one for those of restored guests.
struct World {
    work: TempDir,
    copies: TempDir,
    forks: TempDir,
}

impl World {
    fn new() -> World {
        World { work: TempDir::new(), copies: TempDir::new(), forks: TempDir::new() }
    }

    fn builder(&self) -> WasiCtxBuilder {
        let mut builder = WasiCtx::builder();
        builder.session_dir(self.work.path(), "/work").unwrap();
        builder
    }

    fn guest(&self) -> Guest {
        Guest::new(&self.builder())
    }

    fn saved(&self) -> PathBuf {
        self.copies.join("saved")
    }

    fn save(&self, guest: &Guest) -> WasiState {
        stored(&guest.ctx.save_with_files(self.saved()).unwrap())
    }

    fn restorer(&self) -> WasiCtxBuilder {
        let mut builder = WasiCtx::builder();
        builder.session_files(self.saved(), self.forks.path());
        builder
    }

    /// Saves a guest in this directory, and restores it. Returns it and its copy's path.
    fn fork(&self) -> (Guest, PathBuf) {
        let copy = restored(&self.restorer(), &self.save(&self.guest()));
        let path = copy.ctx.preopens().next().unwrap().0.to_owned();
        (copy, path)
    }

    /// The error with which saving fails, which leaves nothing behind.
    fn refused(&self, builder: &WasiCtxBuilder) -> SessionError {
        let error = builder.build().unwrap().save_with_files(self.saved()).unwrap_err();
        assert!(!self.copies.has("saved"));
        match error {
            SaveError::Session(error) => error,
            error => panic!("{error}"),
        }
    }
}

fn count(path: &Path) -> usize {
    fs::read_dir(path).unwrap().count()
}

#[test]
fn each_restored_guest_has_a_copy_of_its_own() {
    let world = World::new();
    world.work.mkdir("sub");
    let mut guest = world.guest();
    let fd = guest.open(DIR, "sub/file", creating()).unwrap();
    guest.write(fd, b"0123456789").unwrap();
    guest.seek(fd, 4, 0).unwrap();
    let state = world.save(&guest);
    assert_eq!(
        (state.session_dirs().collect::<Vec<_>>(), state.preopens().count()),
        (vec!["/work"], 0)
    );
    guest.write(fd, b"original").unwrap();

    let restorer = world.restorer();
    let mut forks: Vec<_> = (0..3).map(|_| restored(&restorer, &state)).collect();
    assert_eq!(count(world.forks.path()), 3);
    for (index, fork) in forks.iter_mut().enumerate() {
        // Its descriptor is open in its copy, at its offset.
        fork.write(fd, format!("fork {index}").as_bytes()).unwrap();
        fork.open(DIR, &format!("only-{index}"), creating()).unwrap();
    }
    for (index, fork) in forks.iter_mut().enumerate() {
        let file = fork.open(DIR, "sub/file", reading()).unwrap();
        assert_eq!(fork.read(file, 99).unwrap(), format!("0123fork {index}").as_bytes());
        let names = Guest::entries(&fork.readdir(DIR, 4096, 0).unwrap());
        assert_eq!(names.len(), 4);
        assert_eq!(names[2].name, format!("only-{index}"));
        // Nobody else may look into it.
        let path = fork.ctx.preopens().next().unwrap().0.to_owned();
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o77, 0);
    }
    assert_eq!(world.work.read("sub/file"), "0123original");
    assert_eq!(fs::read(world.saved().join("0/sub/file")).unwrap(), b"0123456789");
    forks.pop();
    assert_eq!(count(world.forks.path()), 2);
    drop(forks);
    assert_eq!(count(world.forks.path()), 0);
    assert!(world.work.has("sub/file"));
}

#[test]
fn a_restored_guest_is_saved_and_restored_in_turn() {
    let world = World::new();
    world.work.write("file", "a");
    let mut state = world.save(&world.guest());
    let mut restorer = world.restorer();
    for round in 0..3 {
        let mut fork = restored(&restorer, &state);
        let fd = fork.open(DIR, "file", Open { fd_flags: APPEND, ..writing() }).unwrap();
        fork.write(fd, b"b").unwrap();
        fork.close(fd).unwrap();
        let next = world.copies.join(&format!("round-{round}"));
        state = fork.ctx.save_with_files(&next).unwrap();
        restorer.session_files(&next, world.forks.path());
        drop(fork);
        assert_eq!(count(world.forks.path()), 0);
    }
    let mut fork = restored(&restorer, &state);
    let fd = fork.open(DIR, "file", reading()).unwrap();
    assert_eq!(fork.read(fd, 9).unwrap(), b"abbb");
}

#[test]
fn other_directories_are_shared_with_the_host() {
    let (world, shared) = (World::new(), TempDir::new());
    let mut builder = world.builder();
    builder.preopened_dir(shared.path(), "/shared", Permissions::ReadWrite).unwrap();
    let state = world.save(&Guest::new(&builder));
    let mut restorer = world.restorer();
    restorer.preopened_dir(shared.path(), "/shared", Permissions::ReadWrite).unwrap();
    let mut fork = restored(&restorer, &state);
    fork.open(DIR, "own", creating()).unwrap();
    fork.open(DIR + 1, "common", creating()).unwrap();
    assert!(shared.has("common") && !world.work.has("own") && !shared.has("own"));
}

#[test]
fn a_copy_has_names_links_times_and_permissions() {
    let world = World::new();
    let work = &world.work;
    work.mkdir("a/b/c");
    work.write("a/b/c/deep", "deep");
    work.write("empty", "");
    work.write("two", "names");
    fs::hard_link(work.join("two"), work.join("a/b/two again")).unwrap();
    work.symlink("a/b", "link");
    work.symlink("nowhere", "dangling");
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for name in ["empty", "a/b"] {
        fs::File::open(work.join(name)).unwrap().set_modified(past).unwrap();
    }
    let set_mode = |name: &str, mode| {
        fs::set_permissions(work.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode("empty", 0o4755);
    set_mode("two", 0o444);
    set_mode("a/b/c", 0o500);

    let (mut fork, path) = world.fork();
    let stat = |name: &str| fs::symlink_metadata(path.join(name)).unwrap();
    let read = |name: &str| fs::read_to_string(path.join(name)).unwrap();
    assert_eq!((read("link/c/deep").as_str(), read("empty").as_str()), ("deep", ""));
    assert_eq!(fs::read_link(path.join("dangling")).unwrap(), Path::new("nowhere"));
    assert_eq!(stat("two").ino(), stat("a/b/two again").ino());
    assert_eq!(stat("empty").modified().unwrap(), past);
    assert_eq!(stat("a/b").modified().unwrap(), past);
    let mode = |name| stat(name).mode() & 0o7777;
    assert_eq!((mode("empty"), mode("two"), mode("a/b/c")), (0o755, 0o444, 0o500));
    // The two names are one file for the guest, too.
    let fd = fork.open(DIR, "two", reading()).unwrap();
    assert_eq!(fork.stat(fd).unwrap().links, 2);
    fork.unlink(DIR, "link").unwrap();
    drop(fork);
    assert_eq!(count(world.forks.path()), 0);
}

#[test]
fn no_link_leads_out_of_a_copy_or_into_one() {
    let (world, outside) = (World::new(), TempDir::new());
    outside.write("secret", "secret");
    world.work.symlink(outside.join("secret"), "file");
    world.work.symlink(outside.path(), "directory");
    world.work.symlink("../../../../../../../etc", "up");
    let (mut fork, path) = world.fork();
    for name in ["file", "directory", "up"] {
        assert!(fs::symlink_metadata(path.join(name)).unwrap().is_symlink(), "{name}");
    }
    for path in ["file", "directory/secret", "up/passwd"] {
        assert_eq!(fork.open(DIR, path, reading()), Err(Errno::Perm), "{path}");
    }
    drop(fork);
    // What it led to was not removed with the copy.
    assert_eq!(outside.read("secret"), "secret");

    // A saved copy that is a link is none.
    let state =
        world.builder().build().unwrap().save_with_files(world.copies.join("more")).unwrap();
    let copy = world.copies.join("more/0");
    fs::remove_dir_all(&copy).unwrap();
    std::os::unix::fs::symlink(outside.path(), &copy).unwrap();
    let mut restorer = WasiCtx::builder();
    restorer.session_files(world.copies.join("more"), world.forks.path());
    let error = restorer.restore(&state).unwrap_err();
    assert!(matches!(error, RestoreError::Session { error: SessionError::Host { .. }, .. }));
    assert_eq!(count(world.forks.path()), 0);
}

#[test]
fn a_session_is_copied_within_its_limits() {
    let world = World::new();
    world.work.mkdir("sub");
    world.work.write("sub/a", "12345");
    world.work.write("sub/b", "12345");
    let limited = |bytes, files| {
        let mut builder = world.builder();
        builder.session_limits(SessionLimits { bytes, files });
        builder
    };
    let error = world.refused(&limited(9, 10));
    assert!(matches!(&error, SessionError::Bytes { limit: 9, path } if path.starts_with("sub")));
    assert!(error.to_string().contains("more than 9 bytes"), "{error}");
    let error = world.refused(&limited(10, 2));
    assert!(matches!(&error, SessionError::Files { limit: 2, .. }), "{error}");
    // A hole takes no room now, but counts: it could be filled.
    fs::File::create(world.work.join("hole")).unwrap().set_len(1 << 40).unwrap();
    let error = world.refused(&limited(1 << 30, 10));
    assert!(matches!(&error, SessionError::Bytes { .. }), "{error}");
    fs::remove_file(world.work.join("hole")).unwrap();

    // All directories of a session together.
    let other = TempDir::new();
    other.write("c", "12345");
    let mut builder = limited(14, 10);
    builder.session_dir(other.path(), "/other").unwrap();
    assert!(matches!(world.refused(&builder), SessionError::Bytes { .. }));
    builder.session_limits(SessionLimits { bytes: 15, files: 4 });
    let state = builder.build().unwrap().save_with_files(world.saved()).unwrap();

    let mut restorer = world.restorer();
    let small = SessionLimits { bytes: 14, files: 4 };
    let error = restorer.session_limits(small).restore(&state).unwrap_err();
    let RestoreError::Session { guest_path, error } = error else { panic!("{error}") };
    assert_eq!(guest_path, "/other");
    assert!(matches!(error, SessionError::Bytes { limit: 14, .. }));
    assert_eq!(count(world.forks.path()), 0);
    assert!(restorer.session_limits(SessionLimits { bytes: 15, files: 4 }).restore(&state).is_ok());
}

#[test]
fn what_has_no_contents_is_refused_by_name() {
    let world = World::new();
    world.work.mkdir("sub");
    world.work.fifo("sub/pipe");
    let error = world.refused(&world.builder());
    assert_eq!(error, SessionError::Special { path: "sub/pipe".into() });
    fs::remove_file(world.work.join("sub/pipe")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(world.work.join("socket")).unwrap();
    let error = world.refused(&world.builder());
    assert_eq!(error, SessionError::Special { path: "socket".into() });
}

#[test]
fn the_place_of_a_copy_is_new_and_elsewhere() {
    let world = World::new();
    world.work.write("file", "text");
    let ctx = world.builder().build().unwrap();
    let error = ctx.save_with_files(world.copies.path()).unwrap_err();
    let exists = SessionError::Host { path: world.copies.path().into(), error: Errno::Exist };
    assert_eq!(error, SaveError::Session(exists));
    assert!(world.copies.path().exists());
    let error = ctx.save_with_files(world.work.join("inside")).unwrap_err();
    assert!(matches!(&error, SaveError::Session(SessionError::Inside { .. })), "{error}");
    assert!(!world.work.has("inside") && world.work.has("file"));
    let error = ctx.save_with_files(world.copies.join("no/such")).unwrap_err();
    assert!(matches!(&error, SaveError::Session(SessionError::Host { .. })), "{error}");
}

#[test]
fn a_state_with_files_needs_places_for_them() {
    let world = World::new();
    let guest = world.guest();
    let error = guest.ctx.save().unwrap_err();
    assert_eq!(error, SaveError::NoPlaceForFiles { guest_path: "/work".into() });
    let state = world.save(&guest);
    let error = WasiCtx::builder().restore(&state).unwrap_err();
    assert_eq!(error, RestoreError::NoSessionFiles { guest_path: "/work".into() });
    let mut restorer = world.restorer();
    restorer.session_dir(world.work.path(), "/work").unwrap();
    let error = restorer.restore(&state).unwrap_err();
    assert_eq!(error, RestoreError::UnknownPreopen { guest_path: "/work".into() });
    assert_eq!(count(world.forks.path()), 0);
}

#[test]
fn a_copy_that_was_tampered_with_is_noticed_and_nothing_is_left() {
    let world = World::new();
    world.work.write("file", "text");
    let mut guest = world.guest();
    let fd = guest.open(DIR, "file", reading()).unwrap();
    let state = world.save(&guest);
    let file = world.saved().join("0/file");
    let change = || match world.restorer().restore(&state) {
        Err(RestoreError::Changed(changed)) => {
            assert_eq!((changed.fd, changed.guest_path.as_str()), (fd, "/work"));
            assert_eq!(count(world.forks.path()), 0);
            changed.change
        }
        other => panic!("{other:?}"),
    };
    fs::write(&file, "text and more").unwrap();
    assert_eq!(change(), FileChange::Size { saved: 4, found: 13 });
    fs::remove_file(&file).unwrap();
    assert_eq!(change(), FileChange::Unreachable(Errno::Noent));
    fs::create_dir(&file).unwrap();
    assert!(matches!(change(), FileChange::Type { .. }));
    // A session's file that is gone is refused when it is to be saved.
    fs::remove_file(world.work.join("file")).unwrap();
    let error = guest.ctx.save_with_files(world.copies.join("other")).unwrap_err();
    assert!(matches!(error, SaveError::Unlinked { .. }));
    assert!(!world.copies.has("other"));
}

/// A guest can make trees whose paths the kernel would not take, and that are deeper than a
/// process may have descriptors.
#[test]
fn a_tree_of_any_depth_is_refused_or_removed() {
    let world = World::new();
    let (mut fork, _) = world.fork();
    fork.mkdir(DIR, "1").unwrap();
    let mut parent = DIR;
    for level in 0..1200 {
        fork.mkdir(parent, "inner").unwrap();
        let next = fork.open(parent, "inner", directory()).unwrap();
        if level % 100 == 0 {
            fork.open(parent, "file", creating()).and_then(|fd| fork.close(fd)).unwrap();
        }
        if parent != DIR {
            fork.close(parent).unwrap();
        }
        parent = next;
    }
    fork.close(parent).unwrap();
    let error = fork.ctx.save_with_files(world.copies.join("deep")).unwrap_err();
    assert_eq!(error, SaveError::Session(SessionError::TooDeep));
    assert!(!world.copies.has("deep"));
    drop(fork);
    assert_eq!(count(world.forks.path()), 0);
}

/// What is kept of a tree while it is copied is bounded, too.
#[test]
fn long_paths_are_refused_before_they_take_memory() {
    let world = World::new();
    let name = "d".repeat(200);
    let mut deep = world.work.path().to_owned();
    for _ in 0..15 {
        deep.push(&name);
        fs::create_dir(&deep).unwrap();
    }
    let mut builder = world.builder();
    builder.session_limits(SessionLimits { bytes: 1 << 20, files: 1000 });
    (0..300).for_each(|number| fs::create_dir(deep.join(number.to_string())).unwrap());
    assert!(builder.build().unwrap().save_with_files(world.saved()).is_ok());
    fs::remove_dir_all(world.saved()).unwrap();
    (300..400).for_each(|number| fs::create_dir(deep.join(number.to_string())).unwrap());
    assert_eq!(world.refused(&builder), SessionError::Paths);
}

#[test]
fn copies_between_file_systems_are_whole() {
    // A file system in memory, as most hosts have it.
    let place = Path::new("/dev/shm").join(format!("pagefork-session-{}", std::process::id()));
    if fs::create_dir(&place).is_err() {
        return;
    }
    let world = World::new();
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|at| (at * 31) as u8).collect();
    fs::write(world.work.join("file"), &bytes).unwrap();
    let state = world.save(&world.guest());
    let mut restorer = WasiCtx::builder();
    restorer.session_files(world.saved(), &place);
    let fork = restored(&restorer, &state);
    let path = fork.ctx.preopens().next().unwrap().0.to_owned();
    let same = fs::read(path.join("file")).unwrap() == bytes;
    drop(fork);
    let left = count(&place);
    fs::remove_dir_all(&place).unwrap();
    assert!(same && left == 0);
}

#[test]
fn many_guests_are_restored_at_once() {
    let world = World::new();
    world.work.write("file", "text");
    let state = world.save(&world.guest());
    let restorer = world.restorer();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (restorer, state) = (&restorer, &state);
            scope.spawn(move || {
                for _ in 0..20 {
                    let mut fork = restored(restorer, state);
                    let fd = fork.open(DIR, "file", Open { flags: TRUNC, ..writing() }).unwrap();
                    let own = format!("{number}");
                    fork.write(fd, own.as_bytes()).unwrap();
                    assert_eq!(fork.pread(fd, 9, 0).unwrap(), own.as_bytes());
                }
            });
        }
    });
    assert_eq!(count(world.forks.path()), 0);
}
