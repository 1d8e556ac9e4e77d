//! Instances.

use std::mem::MaybeUninit;

use pagefork::{Export, Extern, Instance, Result};

use crate::base::border::{attempt, exported, given, note_error};
use crate::base::c_box::CBox;
use crate::base::c_vec::CVec;
use crate::objects::object::{Object, wasm_ref_t, wasm_store_t};
use crate::objects::store::StoreRef;
use crate::objects::trap::TrapObject;

/// A vector of what is imported or exported.
type ExternVec = CVec<Option<CBox<wasm_ref_t>>>;

fn instantiate(
    store: &StoreRef,
    module: Option<&wasm_ref_t>,
    imports: Option<&ExternVec>,
) -> Result<Instance> {
    let module = &given(module, "module")?.module()?.module;
    store.check_engine(module)?;
    let imports = match imports {
        Some(imports) => imports.elements()?,
        None => &[],
    };
    let import = |import: &Option<CBox<wasm_ref_t>>| given(import.as_deref(), "import")?.external();
    let imports: Vec<Extern> = imports.iter().map(import).collect::<Result<_>>()?;
    let mut context = store.context()?;
    Instance::new(&mut context, module, &imports)
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn wasm_instance_new(
    store: Option<&wasm_store_t>,
    module: Option<&wasm_ref_t>,
    imports: Option<&ExternVec>,
    trap: Option<&mut MaybeUninit<Option<CBox<wasm_ref_t>>>>,
) -> Option<CBox<wasm_ref_t>> {
    let trap = trap.map(|trap| trap.write(None));
    let store = match given(store, "store") {
        // The start function may have all objects deleted.
        Ok(store) => store.0.keep(),
        Err(error) => {
            note_error(error);
            return None;
        }
    };
    match attempt(|| instantiate(&store, module, imports)) {
        Ok(instance) => {
            let imports_nothing = imports.is_none_or(|imports| imports.size() == 0);
            if imports_nothing {
                store.note_unknown(instance);
            }
            Some(store.own(Object::Instance(instance)))
        }
        Err(error) => {
            match trap {
                Some(trap) => *trap = Some(store.own(Object::Trap(TrapObject::of(error)))),
                None => note_error(error),
            }
            None
        }
    }
}

exported! {
    fn wasm_instance_exports(
        instance: Option<&wasm_ref_t>,
        out: Option<&mut MaybeUninit<ExternVec>>,
    ) {
        let out = given(out, "vector")?.write(CVec::EMPTY);
        let instance = given(instance, "instance")?;
        let (store, own) = (instance.store()?, instance.instance()?);
        let exports: Vec<Export> = own.exports(&mut store.context()?).collect();
        let exports = exports.into_iter().map(|export| Ok(Some(store.own_extern(export.into_extern())?)));
        *out = CVec::new(exports.collect::<Result<Vec<_>>>()?)?;
        Ok(())
    }
}
