//! The user's key, which signs images, and the keys of others that are trusted.
//!
//! An image of a running program is machine state: who makes one that is accepted can do all that
//! this command can. So it is accepted only if it was signed by the user's own key, or by one that
//! the user has said to trust.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pagefork::image::{PublicKey, SecretKey, TrustedKeys};

/// The name of the user's key in [`directory`].
const OWN: &str = "image-key";

/// The user's key, which is made when it is needed for the first time: to sign, or to be shown.
pub(crate) fn own() -> Result<SecretKey, String> {
    own_named(OWN)
}

/// The key by which other nodes know this one; it signs nothing that lasts, and is made likewise.
pub(crate) fn of_node() -> Result<SecretKey, String> {
    own_named("node-key")
}

fn own_named(name: &str) -> Result<SecretKey, String> {
    let directory = directory()?;
    let path = directory.join(name);
    if let Some(key) = read_own(&path)? {
        return Ok(key);
    }
    let failed =
        |what: &str, path: &Path, error| format!("cannot {what} {}: {error}", path.display());
    make(&directory)?;
    let mut seed = [0; 32];
    let random = Path::new("/dev/urandom");
    File::open(random)
        .and_then(|mut file| file.read_exact(&mut seed))
        .map_err(|error| failed("read", random, error))?;
    // All of it is there when it has its name, and whoever is first decides.
    let unfinished = directory.join(format!("{name}.{}", std::process::id()));
    let text: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| match fs::hard_link(&unfinished, &path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        });
    let _ = fs::remove_file(&unfinished);
    written.map_err(|error| failed("write", &path, error))?;
    read_own(&path)?.ok_or_else(|| format!("{} was removed", path.display()))
}

fn read_own(path: &Path) -> Result<Option<SecretKey>, String> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
    };
    // A public key has the same form as a secret one.
    let seed: Result<PublicKey, _> = text.trim_end().parse();
    let seed = seed.map_err(|_| {
        let path = path.display();
        format!("{path} is no key: 64 hexadecimal digits are needed; remove it to have one made")
    })?;
    Ok(Some(SecretKey::from_seed(*seed.as_bytes())))
}

/// The user's key, if there is one, and those that the user trusts. Nothing is written: a key that is
/// yet to be made has signed nothing.
pub(crate) fn trusted() -> Result<TrustedKeys, String> {
    let own = read_own(&directory()?.join(OWN))?;
    let mut keys: Vec<PublicKey> = own.iter().map(SecretKey::public).collect();
    let path = trusted_path()?;
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
    };
    for (number, line) in (1..).zip(text.lines()) {
        let key = line.split('#').next().unwrap_or_default().trim();
        if !key.is_empty() {
            let wrong = |error| format!("{}, line {number}: {error}", path.display());
            keys.push(key.parse().map_err(wrong)?);
        }
    }
    Ok(TrustedKeys::from_iter(keys))
}

/// Trusts a key from now on.
pub(crate) fn trust(key: PublicKey) -> Result<(), String> {
    if trusted()?.contains(&key) {
        return Ok(());
    }
    make(&directory()?)?;
    let path = trusted_path()?;
    let failed = |error| format!("cannot write {}: {error}", path.display());
    let mut options = OpenOptions::new();
    let mut file = options.create(true).append(true).mode(0o600).open(&path).map_err(failed)?;
    // A line that has no end yet gets one.
    writeln!(file, "\n{key}").and_then(|()| file.sync_all()).map_err(failed)
}

/// Where the keys of others are: one a line, with remarks behind a `#`.
pub(crate) fn trusted_path() -> Result<PathBuf, String> {
    Ok(directory()?.join("trusted-keys"))
}

/// Makes the directory of keys, unless it is there.
fn make(directory: &Path) -> Result<(), String> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| format!("cannot make {}: {error}", directory.display()))
}

/// Where keys are, and what is known of other nodes.
pub(crate) fn directory() -> Result<PathBuf, String> {
    let known = super::of_user("XDG_CONFIG_HOME", ".config");
    known.ok_or_else(|| "no directory is known for keys: set HOME".to_owned())
}
