//! An image never changes, whoever tries; a file that others could change is no
//! image.

mod common;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use common::*;
use pagefork_pages::{FileProblem, Image, PagesError};

#[test]
fn nothing_can_write_cut_or_grow_an_image() {
    let layout = layout();
    let extent = layout.image_start..layout.base;
    let bytes = pattern(5, extent.end - extent.start);
    let image =
        Image::new("immutable-by-test", extent.clone(), [(extent.start, &bytes[..])]).unwrap();
    // Even through a new descriptor, opened for writing.
    let path = memfd_path("pagefork:immutable-by-test");
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    assert!(file.write_at(b"x", 0).is_err());
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(1 << 30).is_err());
    let shared = |access| {
        // SAFETY: the kernel picks the address; a map that comes to be is
        // never used.
        unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        }
    };
    assert_eq!(shared(libc::PROT_READ | libc::PROT_WRITE), libc::MAP_FAILED);
    let readable = shared(libc::PROT_READ);
    assert_ne!(readable, libc::MAP_FAILED);
    // SAFETY: changes only the map made above.
    let made_writable =
        unsafe { libc::mprotect(readable, 4096, libc::PROT_READ | libc::PROT_WRITE) };
    assert_ne!(made_writable, 0);
    // SAFETY: the descriptor is open; the call takes no address.
    let unsealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, 0) };
    assert_ne!(unsealed, 0, "the set of seals is final");

    // And what slots do stays in the slots.
    let slot = spawn(&layout, &image, WASM_PAGE, WASM_PAGE).unwrap();
    overwrite(&layout, &slot, 0xdd);
    let mut read = vec![0; bytes.len()];
    image.read(extent.start, &mut read).unwrap();
    assert!(read == bytes);
}

#[test]
fn a_file_of_ours_is_an_image() {
    let layout = layout();
    let extent = layout.image_start..layout.base + WASM_PAGE;
    let bytes = pattern(0x21, extent.end - extent.start);
    let directory = Directory::new("ours");
    let file = directory.file("image", 3 * PAGE, &bytes, 0o600);
    let image = Image::from_file(file, 3 * PAGE, extent.clone()).unwrap();
    let mut slot = spawn(&layout, &image, 2 * WASM_PAGE, 4 * WASM_PAGE).unwrap();
    let at = (extent.start - layout.stack.start) as usize;
    assert!(contents(&layout, &slot)[at..at + bytes.len()] == bytes[..]);
    assert_as_image(&layout, &slot, 2 * WASM_PAGE);
    overwrite(&layout, &slot, 0);
    slot.reset().unwrap();
    assert_as_image(&layout, &slot, 2 * WASM_PAGE);
    drop(slot);
    let on_disk = fs::read(directory.path.join("image")).unwrap();
    assert!(on_disk[3 * PAGE as usize..] == bytes[..]);
}

#[test]
fn a_file_that_is_not_safe_is_refused_with_the_reason() {
    let directory = Directory::new("refused");
    let extent = 0x10_0000..0x10_0000 + 2 * PAGE;
    let refused = |file: OwnedFd, offset: u64| match Image::from_file(file, offset, extent.clone())
    {
        Err(PagesError::FileRefused(problem)) => problem,
        other => panic!("{other:?}"),
    };
    let bytes = pattern(1, 2 * PAGE);
    for mode in [0o620, 0o602, 0o666, 0o777] {
        let file = directory.file(&format!("mode-{mode:o}"), 0, &bytes, mode);
        assert_eq!(refused(file, 0), FileProblem::WritableByOthers { mode });
    }
    let file = directory.file("short", 0, &bytes[..bytes.len() - 1], 0o644);
    assert_eq!(refused(file, 0), FileProblem::TooShort { size: 2 * PAGE - 1, needed: 2 * PAGE });
    let file = directory.file("short-by-offset", 0, &bytes, 0o644);
    assert_eq!(refused(file, PAGE), FileProblem::TooShort { size: 2 * PAGE, needed: 3 * PAGE });
    let file = directory.file("far", 0, &bytes, 0o644);
    assert!(matches!(refused(file, !4095), FileProblem::TooShort { .. }));
    let file = directory.file("unaligned", 0, &bytes, 0o644);
    assert_eq!(refused(file, 512), FileProblem::Unaligned { offset: 512 });
    let folder = OwnedFd::from(File::open(&directory.path).unwrap());
    assert_eq!(refused(folder, 0), FileProblem::NotRegular);
    let (_reader, writer) = std::io::pipe().unwrap();
    assert_eq!(refused(writer.into(), 0), FileProblem::NotRegular);
    let device = OwnedFd::from(File::open("/dev/zero").unwrap());
    assert_eq!(refused(device, 0), FileProblem::NotRegular);

    // Only root can give a file away.
    let foreign = directory.file("foreign", 0, &bytes, 0o644);
    if std::os::unix::fs::fchown(&foreign, Some(12345), None).is_ok() {
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(refused(foreign, 0), FileProblem::ForeignOwner { owner: 12345, user });
    }
}

#[test]
fn a_file_cut_short_later_is_an_error_when_read() {
    let directory = Directory::new("cut");
    let extent = 0x10_0000..0x10_0000 + 4 * PAGE;
    let file = directory.file("image", 0, &pattern(1, 4 * PAGE), 0o600);
    let image = Image::from_file(file, 0, extent.clone()).unwrap();
    OpenOptions::new()
        .write(true)
        .open(directory.path.join("image"))
        .unwrap()
        .set_len(PAGE)
        .unwrap();
    let mut all = vec![0; 4 * PAGE as usize];
    let error = image.read(extent.start, &mut all).unwrap_err();
    assert!(matches!(error, PagesError::FileRefused(FileProblem::TooShort { .. })), "{error}");
    image.read(extent.start, &mut all[..PAGE as usize]).unwrap();
}

/// The path through which this process can open its own memfd again.
fn memfd_path(name: &str) -> PathBuf {
    let wanted = format!("/memfd:{name} (deleted)");
    let is_wanted =
        |path: &PathBuf| fs::read_link(path).is_ok_and(|link| link == Path::new(&wanted));
    let mut paths = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    paths.find(is_wanted).expect("the image has a descriptor")
}

/// A folder of a test, removed at its end.
struct Directory {
    path: PathBuf,
}

impl Directory {
    fn new(name: &str) -> Self {
        let name = format!("pagefork-pages-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self { path }
    }

    /// A file with `bytes` behind `offset` zeros, opened for reading through a
    /// symbolic link.
    fn file(&self, name: &str, offset: u64, bytes: &[u8], mode: u32) -> OwnedFd {
        let path = self.path.join(name);
        let mut file = File::create(&path).unwrap();
        file.write_all(&vec![0; offset as usize]).unwrap();
        file.write_all(bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let link = self.path.join(format!("{name}.link"));
        symlink(&path, &link).unwrap();
        File::open(link).unwrap().into()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
