//! Entries and directories that are not to be trusted.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use pagefork::{Cache, CacheRefusal, Module};

use crate::support::{
    Directory, MODULE, cached, counts, engine, entries, is_root, numbered, private_directory, run,
};

/// A cache with one entry: its directory and the entry.
fn with_entry(name: &str) -> (Directory, PathBuf) {
    let directory = private_directory(name);
    cached(&directory, MODULE);
    let entry = entries(&directory).remove(0);
    (directory, entry)
}

/// The entry is not trusted: the module is compiled, and a good entry takes its
/// place.
fn assert_replaced(directory: &Path, what: &str) {
    let (module, stats) = cached(directory, MODULE);
    assert_eq!(run(&module), 42, "{what}");
    assert_eq!(counts(&stats), [0, 1, 1, 1, 0], "{what}: {stats:?}");
    let (module, stats) = cached(directory, MODULE);
    assert_eq!(run(&module), 42, "{what}");
    assert_eq!(counts(&stats), [1, 0, 0, 0, 0], "{what}");
}

/// Replaces an entry by a file of these bytes, as a disk or a person might.
fn overwrite(entry: &Path, bytes: &[u8]) {
    fs::remove_file(entry).unwrap();
    fs::write(entry, bytes).unwrap();
    fs::set_permissions(entry, fs::Permissions::from_mode(0o400)).unwrap();
}

#[test]
fn a_damaged_entry_is_noticed_in_each_of_its_regions() {
    let (directory, entry) = with_entry("damaged");
    let good = fs::read(&entry).unwrap();
    let text = u64::from_le_bytes(good[32..40].try_into().unwrap()) as usize;
    let middle = (128 + text) / 2;
    for at in [0, 8, 12, 16, 20, 24, 32, 40, 60, 64, 95, 96, 127, 128, 200, middle, text - 1]
        .into_iter()
        .chain([text, text + 16, good.len() - 1])
    {
        let mut bytes = good.clone();
        bytes[at] ^= 0x40;
        overwrite(&entry, &bytes);
        assert_replaced(&directory, &format!("byte {at}"));
    }
    for length in [0, 1, 8, 100, 128, 1000, text - 1, text, good.len() - 1] {
        overwrite(&entry, &good[..length]);
        assert_replaced(&directory, &format!("the first {length} bytes"));
    }
    // As after a power cut, where a disk has forgotten what it was told to keep.
    overwrite(&entry, &vec![0; good.len()]);
    assert_replaced(&directory, "zeros");
    overwrite(&entry, &[&good[..], b"more"].concat());
    assert_replaced(&directory, "more bytes");
    overwrite(&entry, b"(module)");
    assert_replaced(&directory, "text");
}

#[test]
fn an_entry_under_another_name_is_not_taken_for_that_module() {
    let (directory, entry) = with_entry("renamed");
    let other = directory.join("other");
    fs::rename(&entry, &other).unwrap();
    cached(&directory, &numbered(3));
    let own = crate::support::files(&directory).into_iter().find(|path| *path != other).unwrap();
    fs::remove_file(&other).unwrap();
    fs::rename(own, &entry).unwrap();
    assert_replaced(&directory, "an entry of another module");
}

#[test]
fn an_entry_that_others_could_have_written_is_not_trusted() {
    let (directory, entry) = with_entry("writable");
    for mode in [0o620, 0o602, 0o666, 0o460] {
        fs::set_permissions(&entry, fs::Permissions::from_mode(mode)).unwrap();
        assert_replaced(&directory, &format!("mode {mode:o}"));
    }
    if is_root() {
        chown(&entry, Some(12345), None).unwrap();
        assert_replaced(&directory, "an entry of another user");
    }
}

#[test]
fn what_is_no_file_is_no_entry() {
    let (directory, entry) = with_entry("strange");
    let other_directory = private_directory("strange_target");
    let elsewhere = other_directory.join("target");
    fs::copy(&entry, &elsewhere).unwrap();
    fs::remove_file(&entry).unwrap();
    symlink(&elsewhere, &entry).unwrap();
    let before = fs::metadata(&elsewhere).unwrap();
    assert_replaced(&directory, "a symbolic link");
    assert_eq!(before.mtime(), fs::metadata(&elsewhere).unwrap().mtime());

    fs::remove_file(&entry).unwrap();
    symlink("/nowhere/at all", &entry).unwrap();
    assert_replaced(&directory, "a broken link");

    fs::remove_file(&entry).unwrap();
    let path = std::ffi::CString::new(entry.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the string lives through the call.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    assert_replaced(&directory, "a pipe");

    // A directory stays: nobody but its owner knows what it is good for.
    fs::remove_file(&entry).unwrap();
    fs::create_dir(&entry).unwrap();
    let (module, stats) = cached(&directory, MODULE);
    assert_eq!((run(&module), stats.misses, stats.written), (42, 1, 0), "{stats:?}");
    assert!(stats.errors > 0 && stats.last_error.is_some());
}

#[test]
fn a_directory_that_others_can_write_is_refused_and_untouched() {
    let (directory, entry) = with_entry("group");
    for mode in [0o770, 0o702, 0o1777] {
        fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
        let (module, stats) = cached(&directory, MODULE);
        assert_eq!((run(&module), stats.hits, stats.written), (42, 0, 0));
        let refused = stats.refused.expect("a reason");
        assert!(matches!(refused, CacheRefusal::NotPrivate { .. }), "{refused}");
        assert!(refused.to_string().contains("chmod go-w"), "{refused}");
        cached(&directory, &numbered(1));
        assert_eq!(crate::support::files(&directory), std::slice::from_ref(&entry));
    }
    if is_root() {
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
        chown(&directory, Some(12345), None).unwrap();
        let (module, stats) = cached(&directory, MODULE);
        assert_eq!((run(&module), stats.hits, stats.written), (42, 0, 0));
        assert!(stats.refused.unwrap().to_string().contains("12345"));
    }
}

#[test]
fn a_directory_that_cannot_be_is_refused() {
    let directory = private_directory("file");
    let file = directory.join("file");
    fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("below"), "/proc/none".into(), "".into()] {
        let (module, stats) = cached(&path, MODULE);
        assert_eq!((run(&module), stats.written), (42, 0));
        let refused = stats.refused.expect("a reason");
        assert!(matches!(refused, CacheRefusal::Unusable { .. }), "{path:?}: {refused}");
    }
}

/// What becomes of a directory while it is used is no error either.
#[test]
fn a_directory_that_goes_away_is_no_loss() {
    let (directory, entry) = with_entry("gone");
    let cache = Cache::new(&directory);
    let engine = engine(&cache);
    let module = Module::new(&engine, MODULE).unwrap();
    fs::remove_file(entry).unwrap();
    fs::remove_dir(&directory).unwrap();
    assert_eq!(run(&module), 42, "its code is mapped");
    assert_eq!(run(&Module::new(&engine, MODULE).unwrap()), 42);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.written), (1, 1, 0), "{stats:?}");
}
