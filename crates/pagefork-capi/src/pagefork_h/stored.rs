//! Snapshots that outlive their process: saved in a store of images, and loaded.

use std::any::Any;
use std::ffi::{c_char, c_void};
use std::path::Path;
use std::sync::Arc;

use pagefork::image::{SecretKey, TrustedKeys};
use pagefork::{Engine, Error, LoadOptions, Result, SaveOptions, Snapshot, UsageError};
use pagefork_wasi::{ProgramState, ProgramStateError, WasiState};

use crate::base::border::{BorderError, given};
use crate::base::c_box::CBox;
use crate::base::c_vec::{CVec, OwnedVec, put};
use crate::objects::callback::raised;
use crate::objects::fallible::{OutBox, bytes, elements, fallible, make, path, text};
use crate::objects::linker::pagefork_linker_t;
use crate::objects::object::{wasm_ref_t, wasm_store_t};
use crate::objects::saved_program::SavedProgram;
use crate::objects::store::{HostData, KnownObject};
use crate::pagefork_h::configs::check_reserved;
use crate::pagefork_h::images::{
    IMAGE, IMAGES, Out, pagefork_image_hash_t, pagefork_image_store_t, pagefork_public_key_t,
    pagefork_secret_key_t,
};
use crate::pagefork_h::snapshots::{PLACE, SNAPSHOT, given_object, pagefork_snapshot_t};

/// Before the bytes of C's in the state of an image that is of no program. Those of a program begin
/// with the version of [`ProgramState`].
const OF_NO_PROGRAM: u8 = 0;

/// What an image keeps beside its pages: what a WASI program had, and bytes of C's.
///
/// # Errors
/// If the program has what cannot be saved.
fn state_to_bytes(wasi: Option<&WasiState>, own: &[u8]) -> Result<Vec<u8>> {
    match wasi {
        Some(wasi) => ProgramState { wasi: wasi.clone(), written: own.to_vec() }.to_bytes(),
        None => Ok([&[OF_NO_PROGRAM], own].concat()),
    }
}

/// See [`state_to_bytes`].
///
/// # Errors
/// If neither C nor the command has made the image.
fn state_of_bytes(state: &[u8]) -> Result<(Option<WasiState>, Vec<u8>), ProgramStateError> {
    match state {
        [] => Ok((None, Vec::new())),
        [OF_NO_PROGRAM, own @ ..] => Ok((None, own.to_vec())),
        program => {
            let ProgramState { wasi, written } = ProgramState::from_bytes(program)?;
            Ok((Some(wasi), written))
        }
    }
}

/// A C function that says what is kept of an object.
type SaveHook =
    extern "C-unwind" fn(*mut c_void, &wasm_ref_t, &mut CVec<u8>) -> Option<CBox<wasm_ref_t>>;

/// A C function that makes an object of what was kept.
type LoadHook = extern "C-unwind" fn(
    *mut c_void,
    *const u8,
    usize,
    &mut Option<CBox<wasm_ref_t>>,
) -> Option<CBox<wasm_ref_t>>;

/// A function with the names that a linker is to have it by, as the header has it.
#[repr(C)]
struct pagefork_named_func_t<'a> {
    func: Option<&'a wasm_ref_t>,
    module: *const c_char,
    name: *const c_char,
}

/// How a snapshot is saved, as the header has it.
#[repr(C)]
struct pagefork_save_t<'a> {
    state: *const u8,
    state_size: usize,
    delta_of: Option<&'a pagefork_snapshot_t>,
    signers: *const pagefork_secret_key_t,
    signer_count: usize,
    funcs: *const pagefork_named_func_t<'a>,
    func_count: usize,
    save_reference: Option<SaveHook>,
    env: *mut c_void,
    reserved: [u64; 4],
}

/// How a snapshot is loaded, as the header has it.
#[repr(C)]
struct pagefork_load_t<'a> {
    modules: *const Option<&'a wasm_ref_t>,
    module_count: usize,
    trusted: *const pagefork_public_key_t,
    trusted_count: usize,
    load_reference: Option<LoadHook>,
    env: *mut c_void,
    continues: Option<&'a wasm_store_t>,
    reserved: [u64; 4],
}

/// What a hook of C's keeps of a value that guests hold a reference to.
///
/// # Errors
/// What the hook fails with.
fn saved_reference(
    hook: SaveHook,
    env: *mut c_void,
    value: &(dyn Any + Send + Sync),
) -> Result<Vec<u8>> {
    let object = KnownObject::of_value(value)?;
    let object = wasm_ref_t::without_store(object.clone());
    let mut out = CVec::EMPTY;
    let error = hook(env, &object, &mut out);
    // It is ours now, also on failure.
    let out = OwnedVec::from(out);
    match error {
        Some(error) => Err(raised(&error)),
        None => Ok(out.elements()?.to_vec()),
    }
}

/// What a hook of C's makes of such bytes.
///
/// # Errors
/// What the hook fails with; if it makes nothing that guests of any store can hold.
fn loaded_reference(
    hook: LoadHook,
    env: *mut c_void,
    bytes: &[u8],
) -> Result<Arc<dyn Any + Send + Sync>> {
    let mut out = None;
    let error = hook(env, bytes.as_ptr(), bytes.len(), &mut out);
    given_object(error, out)
}

/// Saves a snapshot, as C says.
///
/// # Errors
/// As [`Snapshot::save`]; if what C says is not right.
fn save(
    snapshot: &Snapshot<HostData>,
    program: Option<&SavedProgram>,
    images: &pagefork_image_store_t,
    how: Option<&pagefork_save_t<'_>>,
) -> Result<pagefork_image_hash_t> {
    let wasi = program.map(|program| &program.state);
    let archive = program.map(SavedProgram::archive).transpose()?.flatten();
    let mut options = SaveOptions::new();
    if let Some(archive) = &archive {
        options = archive.attach(options);
    }
    let Some(how) = how else {
        options = options.state(state_to_bytes(wasi, &[])?);
        return Ok(snapshot.save(&images.0, options)?.into());
    };
    check_reserved(&how.reserved)?;
    let own = bytes(how.state, how.state_size)?;
    options = options.state(state_to_bytes(wasi, own)?);
    let signers = elements(how.signers, how.signer_count)?;
    let signers: Vec<SecretKey> = signers.iter().map(|key| key.key()).collect();
    options = options.sign_with(&signers);
    for named in elements(how.funcs, how.func_count)? {
        let func = *given(named.func, "function")?.bare_func()?;
        let (module, name) = (text(named.module, "name of the module")?, text(named.name, "name")?);
        options = options.name_host_function(func, module, name);
    }
    if let Some(parent) = how.delta_of {
        options = options.delta_of(&parent.snapshot);
    }
    let Some(hook) = how.save_reference else {
        return Ok(snapshot.save(&images.0, options)?.into());
    };
    let mut save = |value: &(dyn Any + Send + Sync)| saved_reference(hook, how.env, value);
    Ok(snapshot.save(&images.0, options.references(&mut save))?.into())
}

/// Loads a snapshot, as C says, with the files of its session in the new directory `place`.
///
/// # Errors
/// As [`load_snapshot`] and [`SavedProgram::load`].
fn load(
    linker: Option<&pagefork_linker_t>,
    images: Option<&pagefork_image_store_t>,
    image: Option<&pagefork_image_hash_t>,
    how: Option<&pagefork_load_t<'_>>,
    place: Option<&Path>,
) -> Result<Box<pagefork_snapshot_t>> {
    let (linker, images) = (given(linker, "linker")?, given(images, IMAGES)?);
    let snapshot = load_snapshot(linker, images, given(image, IMAGE)?, how)?;
    let (wasi, _) = state_of_bytes(snapshot.state()).map_err(Error::new)?;
    let program = wasi.map(|state| SavedProgram::load(&snapshot, state, place)).transpose()?;
    Ok(Box::new(pagefork_snapshot_t { program: program.map(Arc::new), snapshot }))
}

/// # Errors
/// As [`Snapshot::load`]; if what C says is not right.
fn load_snapshot(
    linker: &pagefork_linker_t,
    images: &pagefork_image_store_t,
    image: &pagefork_image_hash_t,
    how: Option<&pagefork_load_t<'_>>,
) -> Result<Snapshot<HostData>> {
    let mut options = LoadOptions::new();
    // A hook may define something.
    let linker = linker.0.clone();
    let Some(how) = how else {
        return Snapshot::load(&linker, &images.0, image.hash(), options);
    };
    check_reserved(&how.reserved)?;
    for module in elements(how.modules, how.module_count)? {
        options = options.module(&given(*module, "module")?.module()?.module);
    }
    let trusted = elements(how.trusted, how.trusted_count)?;
    options = options.trust(trusted.iter().map(|key| key.key()).collect::<TrustedKeys>());
    if let Some(store) = how.continues {
        options =
            store.0.with_store(|store| match Engine::same(store.engine(), linker.engine()) {
                true => Ok(options.continues(store)),
                false => Err(UsageError::WrongEngine { what: "store" }.into()),
            })?;
    }
    let Some(hook) = how.load_reference else {
        return Snapshot::load(&linker, &images.0, image.hash(), options);
    };
    let mut load = |bytes: &[u8]| loaded_reference(hook, how.env, bytes);
    Snapshot::load(&linker, &images.0, image.hash(), options.references(&mut load))
}

fallible! {
    fn pagefork_snapshot_save(
        snapshot: Option<&pagefork_snapshot_t>,
        images: Option<&pagefork_image_store_t>,
        how: Option<&pagefork_save_t<'_>>,
        out: Out<'_, pagefork_image_hash_t>,
    ) {
        let (snapshot, images) = (given(snapshot, SNAPSHOT)?, given(images, IMAGES)?);
        let saved = save(&snapshot.snapshot, snapshot.program.as_deref(), images, how)?;
        match out {
            Some(out) => put(Some(out), IMAGE, saved),
            None => Ok(()),
        }
    }

    fn pagefork_snapshot_load(
        linker: Option<&pagefork_linker_t>,
        images: Option<&pagefork_image_store_t>,
        image: Option<&pagefork_image_hash_t>,
        how: Option<&pagefork_load_t<'_>>,
        out: OutBox<'_, pagefork_snapshot_t>,
    ) {
        make(out, || load(linker, images, image, how, None))
    }

    fn pagefork_snapshot_load_with_files(
        linker: Option<&pagefork_linker_t>,
        images: Option<&pagefork_image_store_t>,
        image: Option<&pagefork_image_hash_t>,
        how: Option<&pagefork_load_t<'_>>,
        place: *const c_char,
        out: OutBox<'_, pagefork_snapshot_t>,
    ) {
        make(out, || load(linker, images, image, how, Some(path(place, PLACE)?)))
    }

    fn pagefork_snapshot_state(
        snapshot: Option<&pagefork_snapshot_t>,
        out: Out<'_, CVec<u8>>,
    ) {
        let out = given(out, "vector")?.write(CVec::EMPTY);
        let state = given(snapshot, SNAPSHOT)?.snapshot.state();
        let (_, own) = state_of_bytes(state).map_err(Error::new)?;
        *out = CVec::new(own)?;
        Ok(())
    }

    fn pagefork_snapshot_image(
        snapshot: Option<&pagefork_snapshot_t>,
        out: Out<'_, pagefork_image_hash_t>,
    ) {
        let stored = given(snapshot, SNAPSHOT)?.snapshot.stored_image();
        let none = || {
            BorderError::Unfit("the snapshot was neither saved nor loaded".to_owned())
        };
        put(out, "place for the image", stored.ok_or_else(none)?.hash().into())
    }
}

#[cfg(test)]
mod tests {
    use pagefork_wasi::WasiCtx;

    use super::*;

    #[test]
    fn states_are_of_c_or_of_a_program_of_the_command() {
        let wasi = WasiCtx::builder().arg("program").build().unwrap().save().unwrap();
        let program = ProgramState { wasi: wasi.clone(), written: b"ready".to_vec() };
        let program = program.to_bytes().unwrap();
        assert_eq!(state_of_bytes(&program), Ok((Some(wasi.clone()), b"ready".to_vec())));
        assert_eq!(state_to_bytes(Some(&wasi), b"ready").unwrap(), program);
        let own = state_to_bytes(None, &program).unwrap();
        assert_eq!(state_of_bytes(&own), Ok((None, program)));
        assert_eq!(state_of_bytes(&[]), Ok((None, Vec::new())));
        assert_eq!(state_of_bytes(b"another embedder's"), Err(ProgramStateError));
    }
}
