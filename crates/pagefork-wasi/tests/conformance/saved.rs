//! A state that is saved as plain data and made again from it: the guest goes on as if nothing
//! had happened, or the error says by name what is otherwise.

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pagefork_wasi::{
    ChangedFile, DescriptorOrigin, Errno, FileChange, FileDecision, FilePolicy, FileType,
    HostMonotonicClock, HostWallClock, Permissions, RestoreError, RestoreNotice, SaveError,
    StdinKind, WasiCtx, WasiCtxBuilder, WasiState,
};

use crate::harness::*;

/// As it comes out of a file.
pub(crate) fn stored(state: &WasiState) -> WasiState {
    postcard::from_bytes(&postcard::to_allocvec(state).unwrap()).unwrap()
}

pub(crate) fn saved(guest: &Guest) -> WasiState {
    stored(&guest.ctx.save().unwrap())
}

fn with_ctx(ctx: WasiCtx) -> Guest {
    let mut guest = Guest::new(&WasiCtx::builder());
    guest.ctx = ctx;
    guest
}

pub(crate) fn restored(builder: &WasiCtxBuilder, state: &WasiState) -> Guest {
    let restored = builder.restore(state).unwrap();
    assert_eq!(restored.notices, []);
    with_ctx(restored.ctx)
}

pub(crate) fn builder(dir: &TempDir) -> WasiCtxBuilder {
    with_dir(dir, Permissions::ReadWrite)
}

fn with_dir(dir: &TempDir, permissions: Permissions) -> WasiCtxBuilder {
    let mut builder = WasiCtx::builder();
    builder.preopened_dir(dir.path(), "/dir", permissions).unwrap();
    builder
}

#[test]
fn a_restored_guest_has_all_that_it_had() {
    let dir = TempDir::new();
    dir.mkdir("sub");
    let mut builder = builder(&dir);
    builder.args(["prog", "", "-x"]).env("A", "1=2").env("B", "");
    let mut guest = Guest::new(&builder);
    let sub = guest.open(DIR, "sub", directory()).unwrap();
    let file = guest.open(sub, "./file", Open { fd_flags: APPEND, ..creating() }).unwrap();
    guest.write(file, b"0123456789").unwrap();
    guest.seek(file, 3, 0).unwrap();
    let gap = guest.open(DIR, "sub/file", reading()).unwrap();
    let reader = guest.open(DIR, "sub/file", reading()).unwrap();
    guest.seek(reader, 7, 0).unwrap();
    guest.set_rights(reader, READ | SEEK | TELL, 0).unwrap();
    guest.set_flags(1, NONBLOCK).unwrap();
    guest.close(gap).unwrap();
    guest.close(2).unwrap();
    guest.renumber(1, DIR).unwrap();
    guest.ctx.proc_exit(7);
    let before: Vec<_> = guest.ctx.descriptors().map(|(fd, d)| (fd, d.clone())).collect();
    let state = saved(&guest);

    // Arguments and environment are the saved ones.
    let mut fresh = with_dir(&dir, Permissions::ReadWrite);
    fresh.arg("other").env("A", "other");
    let mut copy = restored(&fresh, &state);
    let after: Vec<_> = copy.ctx.descriptors().map(|(fd, d)| (fd, d.clone())).collect();
    assert_eq!(after, before);
    assert!(state.descriptors().map(|(fd, d)| (fd, d.clone())).eq(before));
    assert_eq!(copy.strings(false).unwrap(), [&b"prog"[..], b"", b"-x"]);
    assert_eq!(copy.strings(true).unwrap(), [&b"A=1=2"[..], b"B="]);
    assert_eq!((copy.ctx.exit_code(), state.exit_code()), (Some(7), Some(7)));
    // Numbers that were free are free again, but not those of the streams.
    assert_eq!(copy.close(2), Err(Errno::Badf));
    assert_eq!(copy.open(sub, "file", reading()), Ok(gap));
    assert_eq!(copy.read(reader, 9).unwrap(), b"789");
    assert_eq!(copy.stat(reader), Err(Errno::Notcapable));
    // It appends, and both have offsets of their own.
    copy.write(file, b"ab").unwrap();
    assert_eq!((copy.tell(file), guest.tell(file)), (Ok(12), Ok(3)));
    assert_eq!(dir.read("sub/file"), "0123456789ab");
    // A reset begins the program anew.
    copy.ctx.reset();
    assert_eq!((copy.ctx.exit_code(), copy.ctx.descriptors().count()), (None, 4));
}

#[test]
fn a_listing_under_way_goes_on_where_it_was() {
    let dir = TempDir::new();
    for index in 0..40 {
        dir.write(&format!("name-{index:02}"), "");
    }
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, ".", directory()).unwrap();
    let first = Guest::entries(&guest.readdir(fd, 400, 0).unwrap());
    assert!(first.len() > 3 && first.len() < 20);
    let state = saved(&guest);
    // What is removed or added before and behind that place shifts nothing.
    std::fs::remove_file(dir.join("name-00")).unwrap();
    std::fs::remove_file(dir.join("name-39")).unwrap();
    for name in ["aaa", "bbb", "ccc", "zzz"] {
        dir.write(name, "");
    }
    let mut copy = restored(&builder(&dir), &state);
    let mut rest = Vec::new();
    let mut cookie = first.last().unwrap().next;
    loop {
        let part = Guest::entries(&copy.readdir(fd, 400, cookie).unwrap());
        let Some(last) = part.last() else { break };
        cookie = last.next;
        rest.extend(part);
    }
    let names: Vec<_> = first.iter().skip(2).chain(&rest).map(|entry| entry.name.clone()).collect();
    let mut expected: Vec<_> = (0..39).map(|index| format!("name-{index:02}")).collect();
    expected.push("zzz".to_owned());
    assert_eq!(names, expected);
    // The original goes on with the names that it had.
    let rest = Guest::entries(&guest.readdir(fd, 1 << 14, first.last().unwrap().next).unwrap());
    assert_eq!(rest.last().unwrap().name, "name-39");
}

#[test]
fn directories_are_found_by_their_names_in_the_guest() {
    let (one, other, moved) = (TempDir::new(), TempDir::new(), TempDir::new());
    one.write("file", "one");
    other.write("file", "other");
    moved.write("here", "moved");
    let mut builder = with_dir(&one, Permissions::ReadWrite);
    builder.preopened_dir(other.path(), "/other", Permissions::ReadWrite).unwrap();
    let mut guest = Guest::new(&builder);
    let state = saved(&guest);
    let names: Vec<_> = state.preopens().collect();
    let read_write = Permissions::ReadWrite;
    assert_eq!(names, [("/dir", read_write), ("/other", read_write)]);
    assert!(guest.open(DIR, "file", reading()).is_ok());

    // In another order, and one of them elsewhere.
    let mut builder = WasiCtx::builder();
    builder.preopened_dir(moved.path(), "/other", read_write).unwrap();
    let error = builder.restore(&state).unwrap_err();
    assert_eq!(error, RestoreError::MissingPreopen { guest_path: "/dir".into() });
    builder.preopened_dir(one.path(), "/dir", read_write).unwrap();
    let mut copy = restored(&builder, &state);
    let file = copy.open(DIR, "file", reading()).unwrap();
    assert_eq!(copy.read(file, 9).unwrap(), b"one");
    assert!(copy.open(DIR + 1, "here", reading()).is_ok());

    builder.preopened_dir(other.path(), "/more", read_write).unwrap();
    let error = builder.restore(&state).unwrap_err();
    assert_eq!(error, RestoreError::UnknownPreopen { guest_path: "/more".into() });
}

#[test]
fn a_guest_may_do_what_both_the_saved_state_and_the_restorer_allow() {
    let dir = TempDir::new();
    dir.write("file", "text");
    let (read_only, read_write) = (Permissions::ReadOnly, Permissions::ReadWrite);
    for (before, after) in [(read_only, read_write), (read_write, read_only)] {
        let guest = Guest::with_permissions(&dir, before);
        let mut copy = restored(&with_dir(&dir, after), &saved(&guest));
        assert_eq!(copy.open(DIR, "new", creating()), Err(Errno::Perm));
        assert_eq!(copy.unlink(DIR, "file"), Err(Errno::Perm));
        let fd = copy.open(DIR, "file", reading()).unwrap();
        assert_eq!(copy.read(fd, 9).unwrap(), b"text");
    }
    // What is open for writing would still be.
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", writing()).unwrap();
    let error = with_dir(&dir, read_only).restore(&saved(&guest)).unwrap_err();
    assert_eq!(
        error,
        RestoreError::ReadOnly { fd, guest_path: "/dir".into(), path: "file".into() }
    );
}

/// A guest with `file` open for reading, and what happens to it between.
fn change_of(change: impl FnOnce(&TempDir)) -> Option<FileChange> {
    let dir = TempDir::new();
    dir.write("file", "text");
    dir.write("other", "text");
    let mut guest = Guest::with_dir(&dir);
    let fd = guest.open(DIR, "file", reading()).unwrap();
    let state = saved(&guest);
    change(&dir);
    match builder(&dir).restore(&state) {
        Ok(restored) => {
            let mut copy = with_ctx(restored.ctx);
            assert_eq!(copy.read(fd, 9).unwrap(), b"text");
            None
        }
        Err(RestoreError::Changed(changed)) => {
            let text = format!("descriptor {fd}, the file `file` in `/dir`, is not what it was");
            assert!(changed.to_string().starts_with(&text), "{changed}");
            Some(changed.change)
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_file_must_be_what_it_was() {
    let is = |saved, found| Some(FileChange::Type { saved, found });
    let regular = FileType::RegularFile;
    assert_eq!(change_of(|_| ()), None);
    assert_eq!(change_of(|dir| drop(dir.read("file"))), None);
    let replaced = |dir: &TempDir| std::fs::rename(dir.join("other"), dir.join("file")).unwrap();
    assert_eq!(change_of(replaced), Some(FileChange::Replaced));
    let longer = |dir: &TempDir| dir.write("file", "text and more");
    assert_eq!(change_of(longer), Some(FileChange::Size { saved: 4, found: 13 }));
    let truncated = |dir: &TempDir| dir.write("file", "");
    assert_eq!(change_of(truncated), Some(FileChange::Size { saved: 4, found: 0 }));
    let rewritten = |dir: &TempDir| {
        let changed = || {
            let meta = std::fs::metadata(dir.join("file")).unwrap();
            (meta.ctime(), meta.ctime_nsec())
        };
        let before = changed();
        while changed() == before {
            dir.write("file", "TEXT");
        }
    };
    assert_eq!(change_of(rewritten), Some(FileChange::Modified));
    let remove = |dir: &TempDir| std::fs::remove_file(dir.join("file")).unwrap();
    assert_eq!(change_of(remove), Some(FileChange::Unreachable(Errno::Noent)));
    let by_dir = |dir: &TempDir| {
        remove(dir);
        dir.mkdir("file");
    };
    assert_eq!(change_of(by_dir), is(regular, FileType::Directory));
    // Nothing waits for a writer.
    let by_fifo = |dir: &TempDir| {
        remove(dir);
        dir.fifo("file");
    };
    assert_eq!(change_of(by_fifo), is(regular, FileType::Unknown));
    // A link within is followed, as when it was opened, but to another file.
    let by_link = |dir: &TempDir| {
        remove(dir);
        dir.symlink("other", "file");
    };
    assert_eq!(change_of(by_link), Some(FileChange::Replaced));
    // A link to the same file is the same file, but the time at which its names changed.
    let moved = |dir: &TempDir| {
        std::fs::rename(dir.join("file"), dir.join("behind")).unwrap();
        dir.symlink("behind", "file");
    };
    assert!(matches!(change_of(moved), None | Some(FileChange::Modified)));
    let out = |dir: &TempDir| {
        remove(dir);
        dir.symlink("/etc/passwd", "file");
    };
    assert_eq!(change_of(out), Some(FileChange::Unreachable(Errno::Perm)));
}

#[test]
fn a_directory_may_have_other_names_in_it_and_must_be_the_same() {
    let dir = TempDir::new();
    dir.mkdir("sub");
    let mut guest = Guest::with_dir(&dir);
    let sub = guest.open(DIR, "sub", directory()).unwrap();
    let state = saved(&guest);
    dir.write("sub/new", "text");
    let mut copy = restored(&builder(&dir), &state);
    assert!(copy.open(sub, "new", reading()).is_ok());
    std::fs::rename(dir.join("sub"), dir.join("old")).unwrap();
    dir.mkdir("sub");
    let error = builder(&dir).restore(&state).unwrap_err();
    let RestoreError::Changed(changed) = error else { panic!("{error}") };
    assert_eq!((changed.fd, changed.change), (sub, FileChange::Replaced));
}

fn refused_descriptor(builder: &WasiCtxBuilder, state: &WasiState, policy: FilePolicy<'_>) -> u32 {
    match builder.restore_with(state, policy) {
        Err(RestoreError::Changed(changed)) => changed.fd,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_caller_chooses_what_happens_with_changed_files() {
    let dir = TempDir::new();
    for name in ["grown", "gone", "same"] {
        dir.write(name, "text");
    }
    let mut guest = Guest::with_dir(&dir);
    let grown = guest.open(DIR, "grown", reading()).unwrap();
    let gone = guest.open(DIR, "gone", reading()).unwrap();
    let same = guest.open(DIR, "same", reading()).unwrap();
    let state = saved(&guest);
    dir.write("grown", "text and more");
    std::fs::remove_file(dir.join("gone")).unwrap();

    let builder = builder(&dir);
    let (builder, state) = (&builder, &state);
    let refused = |policy: FilePolicy<'_>| refused_descriptor(builder, state, policy);
    assert_eq!(refused(FilePolicy::Refuse), grown);
    // What is gone cannot be opened.
    assert_eq!(refused(FilePolicy::Open), gone);
    assert_eq!(refused(FilePolicy::Decide(&mut |_| FileDecision::Open)), gone);
    assert_eq!(refused(FilePolicy::Decide(&mut |_| FileDecision::Refuse)), grown);
    let mut decide = |changed: &ChangedFile| match changed.change {
        FileChange::Unreachable(Errno::Noent) => FileDecision::Close,
        _ => FileDecision::Open,
    };
    let restored = builder.restore_with(state, FilePolicy::Decide(&mut decide)).unwrap();
    let changed = |fd, path: &str, change| {
        let (guest_path, path) = ("/dir".to_owned(), path.into());
        ChangedFile { fd, guest_path, path, change }
    };
    let size = FileChange::Size { saved: 4, found: 13 };
    let notices = [
        RestoreNotice::OpenedAnyway(changed(grown, "grown", size)),
        RestoreNotice::Closed(changed(gone, "gone", FileChange::Unreachable(Errno::Noent))),
    ];
    assert_eq!(restored.notices, notices);
    let mut copy = with_ctx(restored.ctx);
    assert_eq!(copy.read(grown, 20).unwrap(), b"text and more");
    assert_eq!(copy.read(gone, 20), Err(Errno::Badf));
    assert_eq!(copy.read(same, 20).unwrap(), b"text");
    assert_eq!(copy.open(DIR, "same", reading()), Ok(gone));
}

#[test]
fn what_cannot_be_opened_again_is_refused_by_name() {
    let dir = TempDir::new();
    dir.write("removed", "text");
    dir.write("renamed", "text");
    dir.write("replaced", "text");
    dir.mkdir("sub");
    dir.write("sub/inside", "text");
    dir.fifo("pipe");
    let refused = |name: &str, change: &dyn Fn()| {
        let mut guest = Guest::with_dir(&dir);
        let fd = guest.open(DIR, name, reading()).unwrap();
        guest.ctx.check_saveable().map_err(|error| error.to_string()).unwrap_or_default();
        change();
        let error = guest.ctx.save().unwrap_err();
        assert_eq!(guest.ctx.check_saveable(), Err(error.clone()));
        let text = error.to_string();
        assert!(text.contains(&format!("descriptor {fd} ")) && text.contains(name), "{text}");
        guest.close(fd).unwrap();
        assert!(guest.ctx.save().is_ok());
        error
    };
    let remove = || std::fs::remove_file(dir.join("removed")).unwrap();
    let gone = Some(Errno::Noent);
    assert!(
        matches!(refused("removed", &remove), SaveError::Unlinked { error, .. } if error == gone)
    );
    let rename = || std::fs::rename(dir.join("renamed"), dir.join("elsewhere")).unwrap();
    assert!(
        matches!(refused("renamed", &rename), SaveError::Unlinked { error, .. } if error == gone)
    );
    let replace = || {
        dir.write("new", "text");
        std::fs::rename(dir.join("new"), dir.join("replaced")).unwrap();
    };
    assert!(matches!(refused("replaced", &replace), SaveError::Unlinked { error: None, .. }));
    let rename = || std::fs::rename(dir.join("sub"), dir.join("bus")).unwrap();
    assert!(
        matches!(refused("sub/inside", &rename), SaveError::Unlinked { error, .. } if error == gone)
    );
    assert!(matches!(refused("pipe", &|| ()), SaveError::Pipe { .. }));
}

#[test]
fn a_listening_socket_is_the_restorers() {
    let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
    let mut before = WasiCtx::builder();
    before.preopened_socket(listener()).unwrap();
    let state = saved(&Guest::new(&before));
    let error = WasiCtx::builder().restore(&state).unwrap_err();
    assert_eq!(error, RestoreError::MissingListener { fd: DIR, index: 0 });
    let (stream, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut builder = WasiCtx::builder();
    builder.preopened_socket(stream).unwrap();
    let error = builder.restore(&state).unwrap_err();
    assert_eq!(error, RestoreError::MissingListener { fd: DIR, index: 0 });

    let other = listener();
    let address = other.local_addr().unwrap();
    let mut builder = WasiCtx::builder();
    builder.preopened_socket(other).unwrap();
    let mut copy = restored(&builder, &state);
    let _client = TcpStream::connect(address).unwrap();
    assert_eq!(copy.accept(DIR, 0), Ok(4));
    assert!(matches!(copy.ctx.save(), Err(SaveError::Connection { fd: 4, .. })));
}

#[test]
fn standard_input_is_the_restorers_from_its_start() {
    let mut builder = WasiCtx::builder();
    builder.stdin(StdinKind::bytes("before"));
    let mut guest = Guest::new(&builder);
    guest.read(0, 3).unwrap();
    let state = saved(&guest);
    for word in ["one", "two"] {
        builder.stdin(StdinKind::bytes(word));
        assert_eq!(restored(&builder, &state).read(0, 9).unwrap(), word.as_bytes());
    }
    assert_eq!(guest.read(0, 9).unwrap(), b"ore");
}

/// This test runs itself at a terminal, where the state is saved.
#[test]
fn streams_that_were_a_terminal_and_are_none_are_reported() {
    const FILE: &str = "PAGEFORK_TEST_SAVES_TO";
    const TEST: &str = "saved::streams_that_were_a_terminal_and_are_none_are_reported";
    if let Some(path) = std::env::var_os(FILE) {
        let ctx = WasiCtx::builder().inherit_stdio().build().unwrap();
        std::fs::write(path, postcard::to_allocvec(&ctx.save().unwrap()).unwrap()).unwrap();
        return;
    }
    let dir = TempDir::new();
    let this = std::env::current_exe().unwrap();
    let mut terminal = std::process::Command::new("script");
    terminal.args(["-qec", &format!("'{}' --exact {TEST}", this.display()), "/dev/null"]);
    terminal.env(FILE, dir.join("state")).stdin(std::process::Stdio::null());
    if terminal.output().is_err() {
        // There is no tool that makes a terminal.
        return;
    }
    let state: WasiState =
        postcard::from_bytes(&std::fs::read(dir.join("state")).unwrap()).unwrap();
    let terminal =
        |(_, one): &(u32, &pagefork_wasi::Description)| one.filetype == FileType::CharacterDevice;
    assert_eq!(state.descriptors().filter(terminal).count(), 3);
    let restored = WasiCtx::builder().restore(&state).unwrap();
    let notices = [0, 1, 2].map(|fd| RestoreNotice::NoTerminal { fd });
    assert_eq!(restored.notices, notices);
}

#[test]
fn descriptors_keep_to_the_restorers_limit() {
    let dir = TempDir::new();
    dir.write("file", "");
    let mut guest = Guest::with_dir(&dir);
    for _ in 0..4 {
        guest.open(DIR, "file", reading()).unwrap();
    }
    let state = saved(&guest);
    let mut builder = builder(&dir);
    let error = builder.descriptors_max(6).restore(&state).unwrap_err();
    assert_eq!(error, RestoreError::TooManyDescriptors { fd: 6, count_max: 6 });
    let mut copy = restored(builder.descriptors_max(8), &state);
    assert_eq!(copy.open(DIR, "file", reading()), Err(Errno::Mfile));
    // What it was given does not count.
    assert!(Guest::with_dir(&dir).ctx.save().is_ok());
    let state = saved(&Guest::with_dir(&dir));
    assert!(builder.descriptors_max(0).restore(&state).is_ok());
}

#[test]
fn a_state_is_plain_data() {
    fn is_plain<T: Clone + Eq + Send + Sync + serde::Serialize + serde::de::DeserializeOwned>() {}
    is_plain::<WasiState>();
}

#[test]
fn two_restored_guests_have_different_random_bytes() {
    let state = saved(&Guest::new(&WasiCtx::builder()));
    let random = || {
        let mut copy = restored(&WasiCtx::builder(), &state);
        copy.call(|ctx, memory| ctx.random_get(memory, 0, 32)).unwrap();
        copy.bytes_at(0, 32).to_vec()
    };
    assert_ne!(random(), random());
}

/// A clock that stands still until it is set.
#[derive(Clone, Default)]
struct Hand(Arc<AtomicU64>);

impl HostMonotonicClock for Hand {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl HostWallClock for Hand {
    fn resolution(&self) -> Duration {
        Duration::from_nanos(1)
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

const REALTIME: u32 = 0;
const MONOTONIC: u32 = 1;

#[test]
fn the_monotonic_clock_goes_on_on_a_host_that_was_started_later_or_earlier() {
    let saved_at = 5_000;
    for host_at in [0, 17, 1_000_000] {
        let (before, after) = (Hand::default(), Hand::default());
        before.0.store(saved_at, Ordering::Relaxed);
        let state = saved(&Guest::new(WasiCtx::builder().monotonic_clock(before)));
        after.0.store(host_at, Ordering::Relaxed);
        let mut builder = WasiCtx::builder();
        builder.monotonic_clock(after.clone());
        let mut copy = restored(&builder, &state);
        assert_eq!(copy.time(MONOTONIC), Ok(saved_at));
        after.0.fetch_add(30, Ordering::Relaxed);
        assert_eq!(copy.time(MONOTONIC), Ok(saved_at + 30));
        // And once more.
        let state = saved(&copy);
        let mut copy = restored(&builder, &state);
        after.0.fetch_add(1, Ordering::Relaxed);
        assert_eq!(copy.time(MONOTONIC), Ok(saved_at + 31));
    }
}

/// A clock of years ago, or of a machine that has been up for decades.
#[test]
fn the_hosts_clock_and_waits_until_a_time_follow_the_saved_clock() {
    let year = 365 * 24 * 3600 * 1_000_000_000;
    for saved_at in [3, 30 * year] {
        let before = Hand::default();
        before.0.store(saved_at, Ordering::Relaxed);
        let state = saved(&Guest::new(WasiCtx::builder().monotonic_clock(before)));
        let mut copy = restored(&WasiCtx::builder(), &state);
        let first = copy.time(MONOTONIC).unwrap();
        assert!(first >= saved_at && first < saved_at + year, "{first}");
        assert!(copy.time(MONOTONIC).unwrap() >= first);
        let until = first + 20 * MILLISECOND;
        let events = copy.poll(&[clock_subscription(7, MONOTONIC, until, 1)]).unwrap();
        assert_eq!(events, [event(7, 0)]);
        assert!(copy.time(MONOTONIC).unwrap() >= until);
        let past = clock_subscription(7, MONOTONIC, saved_at, 1);
        assert_eq!(copy.poll(&[past]).unwrap(), [event(7, 0)]);
    }
}

#[test]
fn the_time_of_day_is_the_hosts() {
    let before = Hand::default();
    let mut guest = Guest::new(WasiCtx::builder().wall_clock(before));
    assert_eq!(guest.time(REALTIME), Ok(0));
    let mut copy = restored(&WasiCtx::builder(), &saved(&guest));
    assert!(copy.time(REALTIME).unwrap() > 1_000_000_000_000_000_000);
}

#[test]
fn paths_need_not_be_unicode() {
    use std::os::unix::ffi::OsStrExt;
    let dir = TempDir::new();
    let name = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    std::fs::write(dir.path().join(name), "text").unwrap();
    let mut guest = Guest::with_dir(&dir);
    let (address, size) = guest.put(0x1000, name.as_bytes());
    let open =
        guest.call(|ctx, memory| ctx.path_open(memory, DIR, 1, address, size, 0, READ, 0, 0, 0x10));
    assert_eq!(open, Ok(()));
    let fd = guest.u32_at(0x10);
    let mut copy = restored(&builder(&dir), &saved(&guest));
    assert_eq!(copy.read(fd, 9).unwrap(), b"text");
}

#[test]
fn a_device_is_opened_again() {
    let mut builder = WasiCtx::builder();
    builder.preopened_dir("/dev", "/dev", Permissions::ReadWrite).unwrap();
    let mut guest = Guest::new(&builder);
    let fd = guest.open(DIR, "zero", writing()).unwrap();
    let mut copy = restored(&builder, &saved(&guest));
    assert_eq!(copy.read(fd, 3).unwrap(), [0; 3]);
    assert_eq!(copy.write(fd, b"abc"), Ok(3));
    let (_, description) = copy.ctx.descriptors().last().unwrap();
    assert!(matches!(&description.origin, DescriptorOrigin::Opened { mode, .. } if mode.write));
}
