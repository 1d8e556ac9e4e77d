//! The instances that are looked at before a store is made of them, and what references mean among
//! them.

use std::sync::Arc;

use pagefork_layout::module::{HeapType, RefType};
use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};
use pagefork_pages::MemorySize;

use crate::code::module::Module;
use crate::run::load::exceptions::Blocks;
use crate::run::load::zones::BelowBase;
use crate::run::load::{exceptions, links, state};
use crate::run::save::definition;
use crate::store::group::Imports;
use crate::store::host_func::HostFunc;
use crate::store::record::ImportsRecord;
use crate::store::references::References;

/// Instances that may become a store.
pub(super) struct Group {
    /// By ordinal, less one.
    pub(super) instances: Vec<Candidate>,
    pub(super) host_functions: Vec<Arc<HostFunc>>,
    pub(super) references: References,
}

/// What claims to be an instance. Its module is certain, and sizes and lengths are possible.
pub(super) struct Candidate {
    pub(super) module: Module,
    pub(super) recorded_imports: ImportsRecord,
    /// What is recorded, once that was checked.
    pub(super) imports: Imports,
    pub(super) sizes: Vec<MemorySize>,
    pub(super) table_lengths: Vec<u64>,
    pub(super) below: BelowBase,
    pub(super) exceptions: Vec<u8>,
}

/// What is wrong, in words.
pub(super) type Judged<T = ()> = std::result::Result<T, String>;

impl Group {
    /// Checks all but frames.
    pub(super) fn check(&mut self) -> Judged {
        for ordinal in 1..=self.instances.len() as u32 {
            let imports = links::imports(self, ordinal).map_err(|what| of(ordinal, &what))?;
            self.candidate_mut(ordinal).imports = imports;
        }
        let blocks = self.instances.iter().zip(1..).map(|(instance, ordinal)| {
            exceptions::blocks(instance).map_err(|what| of(ordinal, &what))
        });
        let blocks: Vec<Blocks> = blocks.collect::<Judged<_>>()?;
        for ordinal in 1..=self.instances.len() as u32 {
            let checked = state::check(self, ordinal, &blocks)
                .and_then(|()| exceptions::check(self, ordinal, &blocks));
            checked.map_err(|what| of(ordinal, &what))?;
        }
        Ok(())
    }

    /// Checks that nothing is saved of registers but where a guest is suspended.
    pub(super) fn check_save_areas(&self, suspended_in: Option<u32>) -> Judged {
        for (instance, ordinal) in self.instances.iter().zip(1..) {
            if Some(ordinal) != suspended_in && !state::is_save_area_empty(instance) {
                return Err(of(ordinal, "has registers, and no guest is suspended in it"));
            }
        }
        Ok(())
    }

    /// The instance with this ordinal, if there is one.
    pub(super) fn candidate(&self, ordinal: u32) -> Option<&Candidate> {
        self.instances.get(ordinal.checked_sub(1)? as usize)
    }

    fn candidate_mut(&mut self, ordinal: u32) -> &mut Candidate {
        &mut self.instances[ordinal as usize - 1]
    }

    /// The definition behind function `index` of an instance, if there are both.
    pub(super) fn definition(&self, ordinal: u32, index: u32) -> Option<FuncRef> {
        let instance = self.candidate(ordinal)?;
        let functions = instance.module.info().functions.len();
        definition(&instance.imports, functions, ordinal, index)
    }

    /// Checks a word that lies in a place of the instance `owner`, of a type that the module of the
    /// instance `declarer` declares.
    pub(super) fn check_reference(
        &self,
        (owner, declarer): (u32, u32),
        ty: RefType,
        word: u64,
        blocks: &[Blocks],
    ) -> Judged {
        if word == 0 {
            return match ty.nullable {
                true => Ok(()),
                false => Err(format!("has null where its type is {ty}")),
            };
        }
        match ty.heap.top() {
            HeapType::Func => self.check_function((owner, declarer), ty, FuncRef(word)),
            HeapType::Extern if ty.heap == HeapType::Extern => {
                match self.references.get(word).is_some() {
                    true => Ok(()),
                    false => {
                        Err(format!("refers to a value of the host, {word:#x}, that is not there"))
                    }
                }
            }
            HeapType::Exn if ty.heap == HeapType::Exn => {
                exceptions::check_reference(owner, word, blocks)
            }
            _ => Err(format!("refers to something where its type is {ty}")),
        }
    }

    fn check_function(
        &self,
        (owner, declarer): (u32, u32),
        ty: RefType,
        function: FuncRef,
    ) -> Judged {
        let unknown = || format!("refers to a function, {:#x}, that is not there", function.0);
        let index = function.index().ok_or_else(unknown)?;
        // Where it is the owner's, the word says so by saying nothing.
        if function.ordinal() == owner {
            return Err(format!("refers to a function of its own as {:#x}", function.0));
        }
        let function = function.absolute(owner);
        let definition = match function.ordinal() {
            HOST_ORDINAL => function,
            ordinal => self.definition(ordinal, index).ok_or_else(unknown)?,
        };
        let index = definition.index().ok_or_else(unknown)?;
        let type_id = match definition.ordinal() {
            HOST_ORDINAL => self.host_functions.get(index as usize).ok_or_else(unknown)?.type_id,
            ordinal => {
                let module = &self.candidate(ordinal).ok_or_else(unknown)?.module;
                let canonical = *module.info().functions.get(index as usize).ok_or_else(unknown)?;
                // The host can get at the function, and call it.
                if module.code().entries.get(canonical as usize).is_none_or(Option::is_none) {
                    return Err(format!("refers to function {index}, which nothing can refer to"));
                }
                module.type_id(canonical)
            }
        };
        let module = &self.candidate(declarer).ok_or_else(unknown)?.module;
        match ty.heap {
            HeapType::Func => Ok(()),
            HeapType::Concrete(wanted) if module.type_id(wanted) == type_id => Ok(()),
            HeapType::Concrete(_) => Err("refers to a function of another type".to_owned()),
            _ => Err(format!("refers to something where its type is {ty}")),
        }
    }

    /// Shows the number of every function of the host that globals and tables refer to.
    pub(super) fn each_host_function(&self, mut look: impl FnMut(u32)) {
        for instance in &self.instances {
            state::each_reference(instance, |ty, word| {
                let function = FuncRef(word);
                if ty.heap.top() == HeapType::Func
                    && function.ordinal() == HOST_ORDINAL
                    && let Some(index) = function.index()
                {
                    look(index);
                }
            });
        }
    }
}

/// What is wrong with an instance.
fn of(ordinal: u32, what: &str) -> String {
    format!("instance {ordinal} {what}")
}
