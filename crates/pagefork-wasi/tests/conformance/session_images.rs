//! Files of a session in images: they are there again where the image is loaded, and no list of
//! them leads out of the place that they are given.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pagefork::image::{ContentHash, ImageStore};
use pagefork::{
    Engine, Error, Instance, Linker, LoadOptions, Module, SaveOptions, Snapshot, Store,
};
use pagefork_wasi::{
    Errno, ProgramState, SessionArchive, SessionError, SessionLimits, WasiCtx, WasiCtxBuilder,
    WasiState,
};
use serde::Serialize;

use crate::harness::*;
use crate::saved::restored;

/// A directory of a session, and a store of images.
struct World {
    work: TempDir,
    place: TempDir,
    images: ImageStore,
    engine: Engine,
    store: Store<()>,
}

impl World {
    fn new() -> World {
        let (place, engine) = (TempDir::new(), Engine::default());
        place.mkdir("forks");
        let module = Module::new(&engine, "(module)").unwrap();
        let mut store = Store::new(&engine, ());
        Instance::new(&mut store, &module, &[]).unwrap();
        let images = ImageStore::open(place.join("images")).unwrap();
        World { work: TempDir::new(), place, images, engine, store }
    }

    fn guest(&self) -> Guest {
        Guest::new(WasiCtx::builder().session_dir(self.work.path(), "/work").unwrap())
    }

    fn copied(&self, guest: &Guest) -> WasiState {
        guest.ctx.save_with_files(self.place.join("copies")).unwrap()
    }

    fn save(&mut self, wasi: WasiState, options: SaveOptions<'_>) -> ContentHash {
        let state = ProgramState { wasi, written: Vec::new() }.to_bytes().unwrap();
        let saved = self.store.snapshot().unwrap().save(&self.images, options.state(state));
        fs::remove_dir_all(self.place.join("copies")).unwrap();
        saved.unwrap()
    }

    fn save_packed(&mut self, guest: &Guest) -> ContentHash {
        let wasi = self.copied(guest);
        let archive = SessionArchive::pack(&wasi, self.place.join("copies")).unwrap();
        self.save(wasi, archive.attach(SaveOptions::new()))
    }

    /// Saves an image with this list and these files.
    fn save_list(&mut self, list: &Vec<u8>, files: &[Vec<u8>]) -> ContentHash {
        let wasi = self.copied(&self.guest());
        let options = SaveOptions::new().attach("session", 1, list);
        self.save(wasi, files.iter().fold(options, |options, file| options.attach("", 2, file)))
    }

    fn unpacked(&self) -> PathBuf {
        self.place.join("unpacked")
    }

    /// Copies the files of an image out.
    fn take(&self, builder: &mut WasiCtxBuilder, image: ContentHash) -> Result<WasiState, Error> {
        let linker: Linker<()> = Linker::new(&self.engine);
        let snapshot = Snapshot::load(&linker, &self.images, image, LoadOptions::new())?;
        let state = ProgramState::from_bytes(snapshot.state())?.wasi;
        let forks = self.place.join("forks");
        builder.session_files_from(&snapshot, &state, self.unpacked(), forks)?;
        Ok(state)
    }

    /// Why no files can be copied out, of which nothing stays.
    fn refused(&self, builder: &mut WasiCtxBuilder, image: ContentHash) -> SessionError {
        let error = self.take(builder, image).unwrap_err();
        assert!(!self.unpacked().exists(), "something stays: {error}");
        error.downcast_ref::<SessionError>().unwrap_or_else(|| panic!("{error:?}")).clone()
    }
}

/// All that lies below a directory: path, type and permissions, links, time, contents.
fn tree(root: &Path) -> Vec<(PathBuf, u32, u64, SystemTime, Vec<u8>)> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            let (mut contents, mut time) = (Vec::new(), metadata.modified().unwrap());
            if metadata.is_dir() {
                waiting.push(path.clone());
            } else if metadata.is_symlink() {
                contents = fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec();
                time = SystemTime::UNIX_EPOCH;
            } else {
                contents = fs::read(&path).unwrap();
            }
            let path = path.strip_prefix(root).unwrap().to_owned();
            found.push((path, metadata.mode(), metadata.nlink(), time, contents));
        }
    }
    found.sort();
    found
}

#[test]
fn what_a_session_has_written_is_there_where_its_image_is_loaded() {
    let mut world = World::new();
    let work = world.work.path().to_owned();
    fs::create_dir_all(work.join("sub/empty")).unwrap();
    fs::write(work.join(OsStr::from_bytes(b"sub/\xff\n")), "no text").unwrap();
    fs::write(work.join("large"), (0..100_000_u32).map(|at| at as u8).collect::<Vec<_>>()).unwrap();
    fs::hard_link(work.join("large"), work.join("sub/same")).unwrap();
    std::os::unix::fs::symlink("../../nowhere", work.join("sub/link")).unwrap();
    let hole = fs::File::create(work.join("hole")).unwrap();
    hole.set_len(50 << 20).unwrap();
    std::os::unix::fs::FileExt::write_at(&hole, b"middle", 20 << 20).unwrap();
    fs::set_permissions(work.join("large"), fs::Permissions::from_mode(0o640)).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    fs::File::open(work.join("sub")).unwrap().set_modified(time).unwrap();
    let mut guest = world.guest();
    let fd = guest.open(DIR, "notes", creating()).unwrap();
    guest.write(fd, b"0123456789").unwrap();
    guest.seek(fd, 4, 0).unwrap();
    let before = tree(&work);
    let image = world.save_packed(&guest);
    // What is in the image is enough.
    guest.write(fd, b"original").unwrap();
    fs::remove_file(work.join("hole")).unwrap();

    let mut builder = WasiCtx::builder();
    let state = world.take(&mut builder, image).unwrap();
    assert_eq!(tree(&world.unpacked().join("0")), before);
    let blocks = fs::metadata(world.unpacked().join("0/hole")).unwrap().blocks();
    assert!(blocks < 2048, "the holes were filled");
    for round in 0..2 {
        let mut fork = restored(&builder, &state);
        fork.write(fd, format!("fork {round}").as_bytes()).unwrap();
        let file = fork.open(DIR, "notes", reading()).unwrap();
        assert_eq!(fork.read(file, 99).unwrap(), format!("0123fork {round}").as_bytes());
        // It is saved in turn.
        let again = world.save_packed(&fork);
        assert_ne!(again, image);
    }
    assert_eq!(tree(&world.unpacked().join("0")), before);
}

#[test]
fn more_files_than_the_embedder_allows_are_refused() {
    let mut world = World::new();
    world.work.write("a", "12345");
    world.work.mkdir("sub");
    world.work.write("sub/b", "12345");
    let guest = world.guest();
    let image = world.save_packed(&guest);
    for (bytes, files, is_enough) in [(10, 3, true), (9, 3, false), (10, 2, false)] {
        let mut builder = WasiCtx::builder();
        builder.session_limits(SessionLimits { bytes, files });
        if is_enough {
            assert!(world.take(&mut builder, image).is_ok());
            // It is a new directory each time.
            let error = world.take(&mut builder, image).unwrap_err();
            let path = world.unpacked();
            let exists = SessionError::Host { path: path.clone(), error: Errno::Exist };
            assert_eq!(error.downcast_ref(), Some(&exists));
            fs::remove_dir_all(path).unwrap();
            continue;
        }
        let error = world.refused(&mut builder, image);
        assert!(
            matches!(error, SessionError::Bytes { .. } | SessionError::Files { .. }),
            "{error}"
        );
    }
    let wasi = world.copied(&guest);
    let image = world.save(wasi, SaveOptions::new());
    assert_eq!(world.refused(&mut WasiCtx::builder(), image), SessionError::NotInImage);
}

/// As in the archive.
type Attributes = (u32, (i64, u32), (i64, u32));
type Tree<'a> = (u32, Attributes, Vec<(Option<u32>, &'a [u8], Contents)>);

#[derive(Clone, Serialize)]
enum Contents {
    Directory(Attributes),
    File(Attributes),
    SameFile(u32),
    Link(Vec<u8>),
}

const PLAIN: Attributes = (0o700, (0, 0), (0, 0));

fn list(trees: &[Tree<'_>]) -> Vec<u8> {
    // A name is a list of bytes.
    postcard::to_extend(&trees, vec![1]).unwrap()
}

#[test]
fn no_list_leads_out_of_its_place() {
    use Contents::{Directory, File, Link, SameFile};
    let mut world = World::new();
    world.place.mkdir("outside");
    world.place.write("outside/file", "of another");
    let outside = world.place.join("outside").as_os_str().as_bytes().to_vec();
    let mut refused = |entries: &[(Option<u32>, &[u8], Contents)], files: usize| {
        let list = list(&[(0, PLAIN, entries.to_vec())]);
        let image = world.save_list(&list, &vec![b"hostile".to_vec(); files]);
        let error = world.refused(&mut WasiCtx::builder(), image);
        let place = fs::read_dir(world.place.join("outside")).unwrap();
        assert_eq!((place.count(), world.place.read("outside/file").as_str()), (1, "of another"));
        error
    };
    for name in [&b""[..], b".", b"..", b"/tmp/x", b"../x", b"a/b", b"a\0b"] {
        for contents in [File(PLAIN), Directory(PLAIN), Link(b"x".to_vec())] {
            let files = usize::from(matches!(contents, File(_)));
            let error = refused(&[(None, name, contents)], files);
            assert!(matches!(error, SessionError::Damaged { .. }), "{error}");
        }
    }
    // A link is no directory, and is not followed.
    let link = || (None, &b"link"[..], Link(outside.clone()));
    let error = refused(&[link(), (Some(0), b"file", File(PLAIN))], 1);
    assert!(matches!(error, SessionError::Damaged { .. }), "{error}");
    let mut file = outside.clone();
    file.extend(b"/file");
    for second in [
        (None, &b"link"[..], File(PLAIN)),
        (None, b"link", Directory(PLAIN)),
        (None, b"link", Link(b"other".to_vec())),
    ] {
        let files = usize::from(matches!(second.2, File(_)));
        let error = refused(&[(None, b"link", Link(file.clone())), second], files);
        assert!(matches!(error, SessionError::Host { error: Errno::Exist, .. }), "{error}");
    }
    for (first, second) in [
        (link(), (None, &b"same"[..], SameFile(0))),
        (link(), (None, b"same", SameFile(1))),
        (link(), (None, b"same", SameFile(u32::MAX))),
        (link(), (Some(1), b"own", Directory(PLAIN))),
        (link(), (Some(u32::MAX), b"far", Directory(PLAIN))),
    ] {
        let error = refused(&[first, second], 0);
        assert!(matches!(error, SessionError::Damaged { .. }), "{error}");
    }
    let files = [(None, &b"a"[..], File(PLAIN)), (None, &b"b"[..], File(PLAIN))];
    for count in [0, 1, 3] {
        let error = refused(&files, count);
        assert!(matches!(error, SessionError::Damaged { .. }), "{error}");
    }
    let deep: Vec<_> =
        (0..300).map(|level: u32| (level.checked_sub(1), &b"d"[..], Directory(PLAIN))).collect();
    assert_eq!(refused(&deep, 0), SessionError::TooDeep);
    let bad_time = (0o700, (0, u32::MAX), (0, u32::MAX));
    let error = refused(&[(None, b"file", File(bad_time))], 1);
    assert!(matches!(error, SessionError::Host { error: Errno::Inval, .. }), "{error}");
}

#[test]
fn lists_of_other_directories_or_forms_are_refused() {
    let mut world = World::new();
    for trees in [&[][..], &[1][..], &[0, 0], &[0, 1], &[u32::MAX]] {
        let trees: Vec<Tree<'_>> = trees.iter().map(|number| (*number, PLAIN, vec![])).collect();
        let image = world.save_list(&list(&trees), &[]);
        let error = world.refused(&mut WasiCtx::builder(), image);
        assert!(matches!(error, SessionError::Damaged { .. }), "{error}");
    }
    let entry = (None, &b"file"[..], Contents::File((0o4755, (5, 5), (5, 5))));
    let good = list(&[(0, PLAIN, vec![entry])]);
    for length in 0..=good.len() + 1 {
        let mut bytes = good.clone();
        bytes.resize(length, 0);
        let image = world.save_list(&bytes, &[b"text".to_vec()]);
        if length == good.len() {
            world.take(&mut WasiCtx::builder(), image).unwrap();
            // Nothing runs as another user.
            let mode = fs::metadata(world.unpacked().join("0/file")).unwrap().mode();
            assert_eq!(mode & 0o7777, 0o755);
            fs::remove_dir_all(world.unpacked()).unwrap();
            continue;
        }
        let error = world.refused(&mut WasiCtx::builder(), image);
        assert!(matches!(error, SessionError::Damaged { .. }), "{length}: {error}");
    }
    // Any other byte is refused, or is another file in the same place.
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 7);
        let image = world.save_list(&bytes, &[b"text".to_vec()]);
        match world.take(&mut WasiCtx::builder(), image) {
            Ok(_) => {
                let copy = world.unpacked().join("0");
                fs::set_permissions(&copy, fs::Permissions::from_mode(0o700)).unwrap();
                let found = fs::read_dir(copy).unwrap().count();
                assert_eq!(found, 1, "byte {at}");
                fs::remove_dir_all(world.unpacked()).unwrap();
            }
            Err(_) => assert!(!world.unpacked().exists(), "byte {at}"),
        }
    }
}
