//! Code images in files of the user's own.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use pagefork::{
    CodeImageError, Config, Engine, ErrorKind, Module, PagesError, Precompiled, SystemError,
};

use crate::support::{
    Directory, MODULE, files, is_root, make_read_only, mount_tmpfs, private_directory, run,
};

/// A code image, and the directory that it is in.
fn image() -> (Engine, Directory, PathBuf) {
    let engine = Engine::default();
    let directory = private_directory("image");
    let path = directory.join("answer.pfc");
    Module::new(&engine, MODULE).unwrap().write_code_image_file(&path).unwrap();
    (engine, directory, path)
}

/// The permissions of the maps of a file.
fn maps_of(path: &Path) -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let inode = fs::metadata(path).unwrap().ino().to_string();
    let of_file = maps.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_file = of_file.filter(|words| words.get(4) == Some(&&*inode));
    of_file.map(|words| words[1].to_owned()).collect()
}

#[test]
fn a_code_image_is_loaded_without_compiling() {
    let (engine, _directory, path) = image();
    let module = Module::from_code_image_file(&engine, &path).unwrap();
    assert_eq!((run(&module), module.name()), (42, Some("answer")));
    assert_eq!(module.serialize().unwrap(), fs::read(&path).unwrap());

    let detected = Engine::detect_precompiled_file(&path).unwrap();
    assert_eq!(detected, Some(Precompiled::Module));
    // Where a module is wanted, machine code is none.
    let error = Module::from_file(&engine, &path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Compile);
}

/// What runs is what was verified: safe code can write to the file and cut it.
#[test]
fn writing_to_the_file_does_not_change_code_that_was_loaded() {
    let (engine, _directory, path) = image();
    let size = fs::metadata(&path).unwrap().len() as usize;
    for overwrite in [true, false] {
        let (engine_again, _directory, path) = image();
        let module = Module::from_code_image_file(&engine_again, &path).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        match overwrite {
            // An invalid instruction, again and again.
            true => file.write_all_at(&[0x06].repeat(size), 0).unwrap(),
            false => file.set_len(0).unwrap(),
        }
        assert_eq!(run(&module), 42);
    }
    assert_eq!(run(&Module::from_code_image_file(&engine, &path).unwrap()), 42);
    assert_eq!(maps_of(&path), Vec::<String>::new());
}

#[test]
fn on_a_read_only_file_system_it_is_mapped() {
    std::thread::spawn(|| {
        let directory = private_directory("read-only");
        if !mount_tmpfs(&directory, 0, "") {
            return;
        }
        let (engine, path) = (Engine::default(), directory.join("answer.pfc"));
        Module::new(&engine, MODULE).unwrap().write_code_image_file(&path).unwrap();
        let copied = Module::from_code_image_file(&engine, &path).unwrap();
        assert_eq!(maps_of(&path), Vec::<String>::new());
        make_read_only(&directory);
        let mapped = Module::from_code_image_file(&engine, &path).unwrap();
        // The code, and what is read of it now and then.
        assert_eq!(maps_of(&path), ["r-xp", "r--p"]);
        assert_eq!((run(&copied), run(&mapped)), (42, 42));
    })
    .join()
    .unwrap();
}

#[test]
fn it_is_replaced_as_a_whole_and_nothing_lies_beside_it() {
    let (engine, _directory, path) = image();
    let first = Module::from_code_image_file(&engine, &path).unwrap();
    let other = Module::new(&engine, crate::support::numbered(3)).unwrap();
    other.write_code_image_file(&path).unwrap();
    assert_eq!(run(&first), 42, "the file that it was loaded from is still there for it");
    assert_eq!(run(&Module::from_code_image_file(&engine, &path).unwrap()), 3);
    assert_eq!(files(path.parent().unwrap()), std::slice::from_ref(&path));
    let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode & 0o700, mode & 0o022), (0o700, 0));

    let error = other.write_code_image_file("/nowhere/at/all").unwrap_err();
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
}

#[test]
fn it_is_trusted_like_an_executable() {
    let (engine, _directory, path) = image();
    let load = || Module::from_code_image_file(&engine, &path);
    let set_mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o644);
    let error = load().unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(SystemError::NotExecutable { .. })), "{error:?}");
    assert!(format!("{error:#}").contains("chmod +x"), "{error:#}");
    for mode in [0o775, 0o757] {
        set_mode(mode);
        let error = load().unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(PagesError::FileRefused(_))), "{error:?}");
        assert!(format!("{error:#}").contains("chmod go-w"), "{error:#}");
    }
    set_mode(0o500);
    assert_eq!(run(&load().unwrap()), 42);
    if is_root() {
        chown(&path, Some(12345), None).unwrap();
        let error = load().unwrap_err();
        assert!(format!("{error:#}").contains("12345"), "{error:#}");
    }
    for path in ["/dev/null", "/", "/nowhere"] {
        assert_eq!(
            Module::from_code_image_file(&engine, path).unwrap_err().kind(),
            ErrorKind::System
        );
    }
}

#[test]
fn an_engine_with_other_settings_refuses_it_and_says_which() {
    let (_, _directory, path) = image();
    type Change = fn(&mut Config) -> &mut Config;
    let changes: [(&str, Change); 6] = [
        ("interruptible: true instead of interruptible: false", |config| {
            config.interruption(false)
        }),
        ("fuel: false instead of fuel: true", |config| config.fuel(true)),
        ("deterministic: false instead of deterministic: true", |config| {
            config.deterministic(true)
        }),
        ("stack_size: 1048576 instead of stack_size: 65536", |config| config.stack_size(65536)),
        ("instead of table_elements: 7", |config| config.table_elements(7)),
        ("simd: true instead of simd: false", |config| config.wasm_simd(false)),
    ];
    for (words, change) in changes {
        let engine = Engine::new(change(&mut Config::new())).unwrap();
        let error = Module::from_code_image_file(&engine, &path).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(CodeImageError::OtherSettings(_))));
        assert!(format!("{error:#}").contains(words), "{error:#}");
    }
}

#[test]
fn a_damaged_one_is_refused() {
    let (engine, _directory, path) = image();
    let good = fs::read(&path).unwrap();
    for at in (0..good.len()).step_by(61) {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = Module::from_code_image_file(&engine, &path).unwrap_err();
        assert!(error.is::<CodeImageError>(), "byte {at}: {error:?}");
        assert!(error.to_string().contains("answer.pfc"), "{error}");
    }
    fs::write(&path, "").unwrap();
    Module::from_code_image_file(&engine, &path).unwrap_err();
}
