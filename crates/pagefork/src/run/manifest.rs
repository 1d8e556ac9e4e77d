//! Records of stores as manifests of images, and back.

use pagefork_image::{
    FrameTarget, Manifest, SavedCode, SavedFrameWord, SavedHostFunction, SavedInstance,
    SavedReference, SavedSuspension,
};
use pagefork_layout::ABI_VERSION;
use pagefork_layout::module::FuncType;
use serde::{Deserialize, Serialize};

use crate::base::error::SnapshotError;
use crate::code::host_entity::HostEntity;
use crate::store::record::{
    CallRecord, FrameRecord, FrameRecordWord, HostFuncRecord, ImportsRecord, InstanceOrigin,
    InstanceRecord, ReferenceRecord, StoreRecord,
};

/// The number of the form of what the runtime keeps in a manifest beside its fields.
const FORM: u32 = 1;

/// What the runtime keeps of a store beside the fields of a manifest.
#[derive(Serialize, Deserialize)]
struct StoreForm {
    host_function_types: Vec<Option<FuncType>>,
}

/// What the runtime keeps of an instance beside the fields of a manifest.
#[derive(Serialize, Deserialize)]
struct InstanceForm {
    /// What the host made; else the instance is of a module.
    host: Option<HostEntity>,
    imports: ImportsRecord,
}

/// The manifest of a full image, without pages. The code of its instances is for these processors.
pub(crate) fn manifest(record: &StoreRecord, processors: &[String]) -> Manifest {
    let functions = record.host_functions.iter().map(|function| SavedHostFunction {
        module: function.module.clone(),
        name: function.name.clone(),
    });
    let references = record.references.iter().map(|reference| SavedReference {
        handle: reference.handle,
        bytes: reference.bytes.clone(),
    });
    let instances = record.instances.iter().zip(processors);
    let types = record.host_functions.iter().map(|function| function.ty.clone()).collect();
    Manifest {
        instances: instances.map(|(of, processor)| saved_instance(of, processor)).collect(),
        main: record.main,
        host_functions: functions.collect(),
        host_references: references.collect(),
        suspension: record.call.as_ref().map(suspension),
        fuel: record.fuel,
        runtime: form(&StoreForm { host_function_types: types }),
        ..Manifest::default()
    }
}

fn saved_instance(record: &InstanceRecord, processor: &str) -> SavedInstance {
    let (name, module, code, host) = match &record.origin {
        InstanceOrigin::Module { name, module, code } => {
            let processor = processor.to_owned();
            let code = SavedCode { hash: *code, abi: ABI_VERSION, processor };
            (name.clone(), *module, code, None)
        }
        InstanceOrigin::Host(entity) => {
            (String::new(), Default::default(), SavedCode::default(), Some(entity.clone()))
        }
    };
    SavedInstance {
        name,
        module,
        code,
        layout: record.layout.clone(),
        memory_sizes: record.memory_sizes.clone(),
        table_lengths: record.table_lengths.clone(),
        exceptions: record.exceptions.clone(),
        runtime: form(&InstanceForm { host, imports: record.imports.clone() }),
        ..SavedInstance::default()
    }
}

fn suspension(call: &CallRecord) -> SavedSuspension {
    let word = |frame: &FrameRecord| SavedFrameWord {
        place: frame.place,
        target: match frame.word {
            FrameRecordWord::FramePointer(to) => FrameTarget::FramePointer(to),
            FrameRecordWord::Return { ordinal, piece, call_site } => {
                FrameTarget::Return { ordinal, function: piece, call_site }
            }
            FrameRecordWord::ReturnToHost => FrameTarget::ReturnToHost,
        },
    };
    SavedSuspension {
        ordinal: call.ordinal,
        stack_owner: call.stack_owner,
        kind: call.kind,
        function: call.function,
        host_function: call.host_function,
        timeout_ns: call.rest_ns,
        stack: call.stack.clone(),
        frames: call.frames.iter().map(word).collect(),
    }
}

/// What a manifest records.
///
/// # Errors
/// [`SnapshotError`] if another version has made it, or it cannot be read.
pub(crate) fn record(manifest: &Manifest) -> Result<StoreRecord, SnapshotError> {
    let StoreForm { host_function_types } = parse(&manifest.runtime)?;
    if host_function_types.len() != manifest.host_functions.len() {
        return Err(SnapshotError::inconsistent("it has types for more or fewer host functions"));
    }
    let functions = manifest.host_functions.iter().zip(host_function_types);
    let function = |(function, ty): (&SavedHostFunction, _)| HostFuncRecord {
        module: function.module.clone(),
        name: function.name.clone(),
        ty,
    };
    let reference = |reference: &SavedReference| ReferenceRecord {
        handle: reference.handle,
        bytes: reference.bytes.clone(),
    };
    Ok(StoreRecord {
        instances: manifest.instances.iter().map(instance).collect::<Result<_, _>>()?,
        main: manifest.main,
        host_functions: functions.map(function).collect(),
        references: manifest.host_references.iter().map(reference).collect(),
        fuel: manifest.fuel,
        call: manifest.suspension.as_ref().map(call),
    })
}

fn instance(saved: &SavedInstance) -> Result<InstanceRecord, SnapshotError> {
    let InstanceForm { host, imports } = parse(&saved.runtime)?;
    let origin = match host {
        Some(entity) => InstanceOrigin::Host(entity),
        None => InstanceOrigin::Module {
            name: saved.name.clone(),
            module: saved.module,
            code: saved.code.hash,
        },
    };
    Ok(InstanceRecord {
        origin,
        layout: saved.layout.clone(),
        memory_sizes: saved.memory_sizes.clone(),
        table_lengths: saved.table_lengths.clone(),
        imports,
        exceptions: saved.exceptions.clone(),
    })
}

fn call(saved: &SavedSuspension) -> CallRecord {
    let frame = |word: &SavedFrameWord| FrameRecord {
        place: word.place,
        word: match word.target {
            FrameTarget::FramePointer(to) => FrameRecordWord::FramePointer(to),
            FrameTarget::Return { ordinal, function, call_site } => {
                FrameRecordWord::Return { ordinal, piece: function, call_site }
            }
            FrameTarget::ReturnToHost => FrameRecordWord::ReturnToHost,
        },
    };
    CallRecord {
        ordinal: saved.ordinal,
        stack_owner: saved.stack_owner,
        kind: saved.kind,
        function: saved.function,
        host_function: saved.host_function,
        rest_ns: saved.timeout_ns,
        stack: saved.stack.clone(),
        frames: saved.frames.iter().map(frame).collect(),
    }
}

/// Bytes that begin with the number of their form.
fn form(value: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(value, FORM.to_le_bytes().to_vec()).expect("plain data in memory")
}

fn parse<'a, V: Deserialize<'a>>(bytes: &'a [u8]) -> Result<V, SnapshotError> {
    let unreadable = || SnapshotError::inconsistent("what the runtime keeps in it cannot be read");
    let (number, rest) = bytes.split_first_chunk().ok_or_else(unreadable)?;
    match u32::from_le_bytes(*number) {
        FORM => match postcard::take_from_bytes(rest) {
            Ok((value, [])) => Ok(value),
            _ => Err(unreadable()),
        },
        found => Err(SnapshotError::OtherForm { found, known: FORM }),
    }
}
