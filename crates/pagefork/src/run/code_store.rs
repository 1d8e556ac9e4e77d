//! Code images in a store of images: each once, by its hash.

use pagefork_compiler::CpuLevel;
use pagefork_image::{ContentHash, ImageError, ImageStore, Manifest, SavedCode};
use pagefork_layout::ABI_VERSION;

use crate::base::error::{Result, SnapshotError};
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

/// The processors that the code of a captured store's instances was made for, in words: none of what the
/// host made.
pub(crate) fn processors(frozen: &Frozen) -> Vec<String> {
    let modules = frozen.instances.iter().map(|instance| &instance.module);
    modules.map(|module| processor(module).unwrap_or_default()).collect()
}

/// The processors that a module's code was made for, in words, unless the host made it.
pub(crate) fn processor(module: &Module) -> Option<String> {
    (!module.is_of_host()).then(|| module.code_key().level().to_string())
}

/// Whether code that an image names can run here, as far as the image says.
///
/// # Errors
/// [`SnapshotError::NoCode`] if it is of another ABI, or for processors that can do more than this one.
pub(crate) fn check(manifest: &Manifest) -> Result<()> {
    let machine = CpuLevel::of_this_machine()?;
    for instance in &manifest.instances {
        let SavedCode { hash, abi, processor } = &instance.code;
        // Of what the host made, and of images that do not say it, nothing is known.
        if processor.is_empty() {
            continue;
        }
        let why = if *abi != ABI_VERSION {
            format!("it is for ABI {abi}, this is ABI {ABI_VERSION}: capture the program anew")
        } else if CpuLevel::named(processor).is_none_or(|needed| needed > machine) {
            format!(
                "it is for {processor} processors, this one is {machine}: code that a program runs in is \
                 not made again, so start the program on a machine like this one, and capture it there"
            )
        } else {
            continue;
        };
        let name = if instance.name.is_empty() { "an instance" } else { &instance.name };
        let (module, hash) = (instance.module.to_string(), hash.to_string());
        return Err(SnapshotError::NoCode { name: name.to_owned(), module, hash, why }.into());
    }
    Ok(())
}
