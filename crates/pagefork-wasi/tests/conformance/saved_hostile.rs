//! A saved state that was tampered with gives an error, or a guest that reaches no more than it
//! was granted.

use std::path::PathBuf;

use pagefork_wasi::{
    Description, DescriptorOrigin, Errno, FdFlags, FileType, OpenMode, Permissions, RestoreError,
    RestoreNotice, Rights, WasiCtx, WasiState,
};
use serde::{Deserialize, Serialize};

use crate::harness::*;
use crate::saved::{builder, saved};

/// A saved state, with its parts in the open.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Parts {
    args: Vec<Vec<u8>>,
    variables: Vec<Vec<u8>>,
    preopens: Vec<(String, Permissions, bool)>,
    descriptors: Vec<Entry>,
    monotonic_ns: u64,
    exit_code: Option<i32>,
    pub(crate) put_off_poll: Option<([u32; 4], u64)>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Entry {
    fd: u32,
    description: Description,
    file: Option<Identity>,
    listing: Option<(u64, Option<(Vec<u8>, u64)>)>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Identity {
    device: u64,
    inode: u64,
    special_device: u64,
    filetype: FileType,
    size: u64,
    changed: (i64, u64),
}

impl Parts {
    pub(crate) fn of(guest: &Guest) -> Parts {
        let bytes = postcard::to_allocvec(&guest.ctx.save().unwrap()).unwrap();
        postcard::from_bytes(&bytes).unwrap()
    }

    pub(crate) fn state(&self) -> WasiState {
        postcard::from_bytes(&postcard::to_allocvec(self).unwrap()).unwrap()
    }
}

/// A guest that reads `file`, its directory, and the state with that as the last descriptor.
fn reader() -> (TempDir, Parts) {
    let dir = TempDir::new();
    dir.write("file", "text");
    let mut guest = Guest::with_dir(&dir);
    guest.open(DIR, "file", reading()).unwrap();
    let parts = Parts::of(&guest);
    (dir, parts)
}

#[track_caller]
fn damaged(change: impl FnOnce(&mut Parts)) {
    let (dir, mut parts) = reader();
    change(&mut parts);
    let error = builder(&dir).restore(&parts.state()).unwrap_err();
    assert!(matches!(error, RestoreError::Damaged { .. }), "{error}");
    assert!(error.to_string().starts_with("the saved state is damaged: "), "{error}");
}

#[test]
fn a_state_that_no_guest_can_be_in_is_refused() {
    let last = |parts: &mut Parts| parts.descriptors.pop().unwrap();
    damaged(|parts| parts.args.push(b"a\0b".to_vec()));
    damaged(|parts| parts.variables.push(b"A=\0".to_vec()));
    damaged(|parts| parts.variables.push(b"=B".to_vec()));
    damaged(|parts| parts.variables.push(b"B".to_vec()));
    damaged(|parts| parts.monotonic_ns = 1 << 63);
    damaged(|parts| parts.descriptors[4].description.offset = 1 << 63);
    damaged(|parts| parts.descriptors[4].file = None);
    damaged(|parts| parts.descriptors[4].listing = Some((0, None)));
    damaged(|parts| {
        let first = parts.descriptors[0].clone();
        parts.descriptors.push(first);
    });
    damaged(|parts| parts.descriptors.swap(0, 1));
    damaged(|parts| {
        let entry = last(parts);
        parts.descriptors.extend([entry.clone(), entry]);
    });
    for origin in [
        DescriptorOrigin::Connection { index: 0 },
        DescriptorOrigin::Accepted { listener: 0 },
        DescriptorOrigin::Preopen { index: 1 },
        DescriptorOrigin::Preopen { index: u32::MAX },
    ] {
        damaged(|parts| parts.descriptors[4].description.origin = origin);
    }
    damaged(|parts| {
        let mode = OpenMode { read: true, write: false, directory: false, follow: true };
        let origin = DescriptorOrigin::Opened { preopen: 1, path: "file".into(), mode };
        parts.descriptors[4].description.origin = origin;
    });
}

#[test]
fn a_number_out_of_range_takes_no_memory() {
    for fd in [1024, u32::MAX] {
        let (dir, mut parts) = reader();
        parts.descriptors[4].fd = fd;
        let error = builder(&dir).restore(&parts.state()).unwrap_err();
        assert_eq!(error, RestoreError::TooManyDescriptors { fd, count_max: 1024 });
    }
}

#[test]
fn rights_are_not_widened() {
    // Each descriptor has what its file can have at most; any more is refused.
    for index in 0..5 {
        for right in Rights::all().iter() {
            let (dir, mut parts) = reader();
            let description = &mut parts.descriptors[index].description;
            let allowed = match index {
                0 => Rights::STREAM.difference(Rights::FD_WRITE),
                1 | 2 => Rights::STREAM.difference(Rights::FD_READ),
                3 => Rights::DIRECTORY,
                _ => Rights::FILE.difference(
                    Rights::FD_WRITE | Rights::FD_ALLOCATE | Rights::FD_FILESTAT_SET_SIZE,
                ),
            };
            description.rights_base |= right;
            let result = builder(&dir).restore(&parts.state());
            assert_eq!(result.is_ok(), allowed.contains(right), "{index} {right:?}");
        }
    }
    damaged(|parts| parts.descriptors[0].description.rights_inheriting = Rights::FD_READ);
    damaged(|parts| parts.descriptors[3].description.rights_inheriting |= Rights::SOCK_ACCEPT);
    damaged(|parts| parts.descriptors[4].description.rights_inheriting |= Rights::SOCK_SHUTDOWN);
}

#[test]
fn a_state_cannot_open_for_writing_what_is_for_reading_only() {
    let (dir, mut parts) = reader();
    let DescriptorOrigin::Opened { mode, .. } = &mut parts.descriptors[4].description.origin else {
        panic!("it was opened")
    };
    mode.write = true;
    parts.descriptors[4].description.rights_base = Rights::FILE;
    parts.preopens[0].1 = Permissions::ReadWrite;
    let mut builder = WasiCtx::builder();
    builder.preopened_dir(dir.path(), "/dir", Permissions::ReadOnly).unwrap();
    let error = builder.restore(&parts.state()).unwrap_err();
    assert!(matches!(error, RestoreError::ReadOnly { fd: 4, .. }), "{error}");
}

#[test]
fn no_path_of_a_state_leads_out() {
    let outside = TempDir::new();
    outside.write("secret", "secret");
    let (dir, parts) = reader();
    dir.symlink(outside.path(), "out");
    dir.mkdir("sub");
    let name = outside.path().file_name().unwrap().to_str().unwrap().to_owned();
    let secret = outside.join("secret").display().to_string();
    let identity = {
        // What it would take to pass for the file that was saved.
        let mut builder = WasiCtx::builder();
        builder.preopened_dir(outside.path(), "/dir", Permissions::ReadOnly).unwrap();
        let mut guest = Guest::new(&builder);
        guest.open(DIR, "secret", reading()).unwrap();
        Parts::of(&guest).descriptors.pop().unwrap().file
    };
    let up = "../".repeat(20);
    for path in [
        secret.clone(),
        format!("../{name}/secret"),
        format!("sub/../../{name}/secret"),
        "out/secret".to_owned(),
        format!("{up}{}", secret.trim_start_matches('/')),
        "/proc/self/root/etc/passwd".to_owned(),
        String::new(),
        "a\0b".to_owned(),
        "a/".repeat(10_000),
    ] {
        for follow in [false, true] {
            let mut parts = parts.clone();
            let mode = OpenMode { read: true, write: false, directory: false, follow };
            let path = PathBuf::from(&path);
            parts.descriptors[4].description.origin =
                DescriptorOrigin::Opened { preopen: 0, path, mode };
            parts.descriptors[4].file.clone_from(&identity);
            let error = builder(&dir).restore(&parts.state()).unwrap_err();
            assert!(matches!(error, RestoreError::Changed(_)), "{error}");
        }
    }
}

#[test]
fn a_listing_from_nowhere_lists_what_is_there() {
    let (dir, mut parts) = reader();
    let listing = [
        (u64::MAX, Some((b"file".to_vec(), u64::MAX - 1))),
        (7, None),
        (0, Some((vec![0; 4096], 3))),
        (1 << 40, Some((Vec::new(), 0))),
    ];
    for listing in listing {
        parts.descriptors[3].listing = Some(listing);
        let mut guest = Guest::with_dir(&dir);
        guest.ctx = builder(&dir).restore(&parts.state()).unwrap().ctx;
        for cookie in [1, 7, u64::MAX, 1 << 40] {
            guest.readdir(DIR, 4096, cookie).unwrap();
        }
        let entries = Guest::entries(&guest.readdir(DIR, 4096, 0).unwrap());
        let names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, [".", "..", "file"]);
    }
}

#[test]
fn unknown_flags_and_rights_are_refused_when_they_are_read() {
    for description in [1_u64 << 30, u64::MAX] {
        let bytes = postcard::to_allocvec(&description).unwrap();
        assert!(postcard::from_bytes::<Rights>(&bytes).is_err());
    }
    let bytes = postcard::to_allocvec(&32_u16).unwrap();
    assert!(postcard::from_bytes::<FdFlags>(&bytes).is_err());
    let bytes = postcard::to_allocvec(&Rights::all()).unwrap();
    assert_eq!(postcard::from_bytes::<Rights>(&bytes), Ok(Rights::all()));
}

/// What a guest may have open: the standard streams, its directory, and files in that.
fn is_within(guest: &mut Guest) {
    let descriptions: Vec<_> =
        guest.ctx.descriptors().map(|(fd, description)| (fd, description.clone())).collect();
    for (fd, description) in descriptions {
        match description.origin {
            DescriptorOrigin::Stdin | DescriptorOrigin::Stdout | DescriptorOrigin::Stderr => {}
            DescriptorOrigin::Preopen { index } => assert_eq!(index, 0),
            DescriptorOrigin::Opened { preopen, .. } => {
                assert_eq!(preopen, 0);
                assert_ne!(guest.write(fd, b"x"), Ok(1));
            }
            other => panic!("{other:?}"),
        }
        assert!(!matches!(guest.unlink(fd, "file"), Ok(())));
    }
}

#[test]
fn bytes_of_any_kind_are_an_error_or_within_the_grants() {
    let dir = TempDir::new();
    dir.write("file", "text");
    dir.mkdir("sub");
    let mut builder = WasiCtx::builder();
    builder.preopened_dir(dir.path(), "/dir", Permissions::ReadOnly).unwrap();
    builder.arg("prog").env("A", "B");
    let mut guest = Guest::new(&builder);
    guest.open(DIR, "file", reading()).unwrap();
    guest.open(DIR, "sub", directory()).unwrap();
    guest.readdir(DIR, 60, 0).unwrap();
    let bytes = postcard::to_allocvec(&saved(&guest)).unwrap();

    let mut accepted = 0;
    let mut attempt = |bytes: &[u8]| {
        let Ok(state) = postcard::from_bytes::<WasiState>(bytes) else { return };
        let Ok(restored) = builder.restore(&state) else { return };
        accepted += 1;
        let mut guest = Guest::new(&WasiCtx::builder());
        guest.ctx = restored.ctx;
        is_within(&mut guest);
    };
    for size in 0..bytes.len() {
        attempt(&bytes[..size]);
    }
    for at in 0..bytes.len() {
        for value in 0..=255 {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            attempt(&bytes);
        }
    }
    // Two changes at a time, the same in each run.
    let mut seed = 1_u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for _ in 0..20_000 {
        let mut bytes = bytes.clone();
        for _ in 0..2 {
            let at = random(bytes.len());
            bytes[at] = random(256) as u8;
        }
        attempt(&bytes);
    }
    assert!(accepted > 1000, "{accepted}");
    assert_eq!(dir.read("file"), "text");
}

#[test]
fn a_stream_that_was_a_terminal_and_is_none_is_reported() {
    let (dir, mut parts) = reader();
    for index in [0, 2] {
        parts.descriptors[index].description.filetype = FileType::CharacterDevice;
    }
    let restored = builder(&dir).restore(&parts.state()).unwrap();
    let notices = [RestoreNotice::NoTerminal { fd: 0 }, RestoreNotice::NoTerminal { fd: 2 }];
    assert_eq!(restored.notices, notices);
    assert!(restored.notices[0].to_string().starts_with("descriptor 0 was a terminal"));
    // The guest sees what it is now.
    let mut guest = Guest::with_dir(&dir);
    guest.ctx = restored.ctx;
    assert_eq!(guest.fdstat(2).unwrap().filetype, FileType::Unknown as u8);
    assert_eq!(guest.close(9), Err(Errno::Badf));
}
