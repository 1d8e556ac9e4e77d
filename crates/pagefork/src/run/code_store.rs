//! Code images in a store of images: each once, by its hash.

use std::collections::BTreeSet;

use pagefork_compiler::CpuLevel;
use pagefork_image::{
    ContentHash, ImageError, ImageStore, Manifest, SavedCode, SavedInstance, StoredCode,
};
use pagefork_layout::ABI_VERSION;

use crate::base::error::{Error, Result, SnapshotError, UsageError};
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

/// Keeps the bytes of modules of a captured store, which stay as long as an image names them or what is returned
/// lives.
///
/// # Errors
/// [`SnapshotError::NotItsModule`] if none of the instances is of one; [`ImageError`] if it cannot be written.
pub(crate) fn keep_modules(
    images: &ImageStore,
    frozen: &Frozen,
    modules: &[&[u8]],
) -> Result<Vec<StoredCode>> {
    let mut kept = Vec::new();
    for bytes in modules {
        let hash = ContentHash::of(bytes);
        let mut own = frozen.instances.iter().map(|instance| &instance.module);
        if !own.any(|module| !module.is_of_host() && module.module_hash() == hash) {
            return Err(SnapshotError::NotItsModule(hash.to_string()).into());
        }
        kept.push(images.save_code(bytes)?);
    }
    Ok(kept)
}

/// Makes a module of its bytes, if a store of images has them.
///
/// # Errors
/// [`ImageError`] if it has not; what `compile` fails with; [`UsageError`] if that gives a module of other bytes or of
/// another engine.
pub(crate) fn compile(
    engine: &Engine,
    images: &ImageStore,
    hash: ContentHash,
    compile: &mut dyn FnMut(&[u8]) -> Result<Module>,
) -> Result<Module> {
    let kept = match images.load_code(hash) {
        Ok(kept) => kept,
        Err(ImageError::NotFound { .. }) => return Err(Error::msg("its module was not kept")),
        Err(error) => return Err(error.into()),
    };
    let mut bytes = vec![0; kept.size() as usize];
    let action = || "read a module".to_owned();
    let read = kept.bytes().read_exact_at(&mut bytes, 0);
    read.map_err(|error| ImageError::Io { action: action(), error })?;
    let module = compile(&bytes).map_err(|error| error.about("its module"))?;
    if !Engine::same(module.engine(), engine) {
        return Err(UsageError::WrongEngine { what: "module" }.into());
    }
    match module.is_of_host() || module.module_hash() != hash {
        true => Err(Error::msg("another module was made of its bytes")),
        false => Ok(module),
    }
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
    let problems = manifest.instances.iter().filter_map(|instance| {
        problem(instance, machine, manifest.has_live_frames()).map(|problem| problem.error)
    });
    problems.map(Err).next().unwrap_or(Ok(()))
}

/// The modules that code for this machine is to be made of, each once, before an image goes on here: none if all that it
/// names can run here.
///
/// # Errors
/// As [`check`], of code that nothing else can take the place of.
pub(crate) fn to_compile(manifest: &Manifest) -> Result<Vec<ContentHash>> {
    let machine = CpuLevel::of_this_machine()?;
    let (mut modules, mut seen) = (Vec::new(), BTreeSet::new());
    for instance in &manifest.instances {
        match problem(instance, machine, manifest.has_live_frames()) {
            None => {}
            Some(problem) if !problem.other_code_does => return Err(problem.error),
            Some(_) if !seen.insert(instance.module) => {}
            Some(_) => modules.push(instance.module),
        }
    }
    Ok(modules)
}

/// Whether an image says that the code of one of its instances is for better processors than this one, and code made of
/// its module takes its place.
pub(crate) fn is_foreign(instance: &SavedInstance, manifest: &Manifest) -> bool {
    let problem = |machine| problem(instance, machine, manifest.has_live_frames());
    let found = CpuLevel::of_this_machine().ok().and_then(problem);
    found.is_some_and(|problem| problem.other_code_does)
}

/// Why the code of an instance cannot run here.
struct CodeProblem {
    error: Error,
    /// Whether code of the same module for this machine can take its place.
    other_code_does: bool,
}

fn problem(instance: &SavedInstance, machine: CpuLevel, has_frames: bool) -> Option<CodeProblem> {
    let SavedCode { hash, abi, processor } = &instance.code;
    // Of what the host made, and of images that do not say it, nothing is known.
    if processor.is_empty() {
        return None;
    }
    let (why, other_code_does) = if *abi != ABI_VERSION {
        // What the slot has below its memories is as that code had it.
        let why =
            format!("it is for ABI {abi}, this is ABI {ABI_VERSION}: capture the program anew");
        (why, false)
    } else if CpuLevel::named(processor).is_none_or(|needed| needed > machine) {
        let machines = format!("it is for {processor} processors, this one is {machine}");
        let advice = match has_frames {
            true => {
                "code that a program runs in is not made again, so start the program on a machine like this \
                 one, and capture it there"
            }
            false => "nothing runs in it, so its module would do, if that was kept",
        };
        (format!("{machines}: {advice}"), !has_frames)
    } else {
        return None;
    };
    let name = if instance.name.is_empty() { "an instance" } else { &instance.name };
    let (module, hash) = (instance.module.to_string(), hash.to_string());
    let error = SnapshotError::NoCode { name: name.to_owned(), module, hash, why }.into();
    Some(CodeProblem { error, other_code_does })
}
