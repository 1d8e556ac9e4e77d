//! Code images in a store of images: each once, by its hash.

use pagefork_compiler::CpuLevel;
use pagefork_image::{ContentHash, ImageError, ImageStore};

use crate::base::error::Result;
use crate::code::code_file;
use crate::code::engine::Engine;
use crate::code::module::Module;
use crate::store::frozen::Frozen;

/// Puts the code of a captured store into a store of images, unless it is there.
///
/// # Errors
/// [`ImageError`] if it cannot be written.
pub(crate) fn save(images: &ImageStore, frozen: &Frozen) -> Result<()> {
    let mut seen: Vec<u64> = Vec::new();
    for module in frozen.instances.iter().map(|instance| &instance.module) {
        if module.is_of_host() || seen.contains(&module.number()) {
            continue;
        }
        seen.push(module.number());
        match images.load_code(module.code_hash()) {
            Ok(_) => {}
            Err(ImageError::NotFound { .. }) => drop(images.save_code(&module.code_image())?),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Loads a code image from a store of images.
///
/// # Errors
/// [`ImageError`] if it is not there; [`CodeImageError`](crate::CodeImageError) if it is of another
/// version, for other settings or a better processor, or damaged.
pub(crate) fn load(engine: &Engine, images: &ImageStore, hash: ContentHash) -> Result<Module> {
    let code = images.load_code(hash)?;
    // SAFETY: no process writes to a file of the store: it got its name when it was complete and
    // its hash was right, and only this user may write the directory, which is the store's alone.
    let module = unsafe { code_file::load_known(engine, code.file())? };
    Ok(module.with_code_hash(hash))
}

/// The processors that code is made for here, in words.
///
/// # Errors
/// If there is no code for this machine.
pub(crate) fn processor() -> Result<String> {
    Ok(CpuLevel::of_this_machine()?.to_string())
}
