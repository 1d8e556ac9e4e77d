//! The function types of an engine, numbered, and freed when the last use goes.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagefork_layout::module::{FuncType, HeapType, RefType, ValType};

/// A function type, by its number in the engine: equal exactly if the types are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TypeId(pub(crate) u32);

impl TypeId {
    /// In a type that is looked for, stands for its own number.
    pub(crate) const ITSELF: Self = Self(u32::MAX);
}

/// The function types of an engine: those that its modules, host functions and what else
/// lives uses, and no other.
#[derive(Default)]
pub(crate) struct Types(Mutex<Registry>);

/// Invariant: `numbers` and `entries` say the same.
#[derive(Default)]
struct Registry {
    numbers: HashMap<Arc<FuncType>, u32>,
    entries: HashMap<u32, TypeEntry>,
    /// A number that is free again is not given away soon: embedders may still have a
    /// type with it.
    next: u32,
}

struct TypeEntry {
    ty: Arc<FuncType>,
    users: u64,
    /// Other types that it names, which live as long.
    parts: Box<[u32]>,
}

impl Types {
    /// How many there are.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn count(&self) -> usize {
        self.lock().entries.len()
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        // Nothing panics while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    /// The number of a type, with one more user.
    fn add(&mut self, ty: &FuncType) -> u32 {
        if let Some(number) = self.numbers.get(ty).copied().or_else(|| self.number_of_itself(ty)) {
            self.hold(number);
            return number;
        }
        let parts = concrete(ty).filter(|number| self.hold(*number)).collect();
        while self.next == TypeId::ITSELF.0 || self.entries.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let (number, ty) = (self.next, Arc::new(ty.clone()));
        self.next = self.next.wrapping_add(1);
        self.numbers.insert(Arc::clone(&ty), number);
        self.entries.insert(number, TypeEntry { ty, users: 1, parts });
        number
    }

    /// The number of a type that names itself by its number.
    ///
    /// Compares only as far as types are alike, and makes none: one can name a thousand others.
    fn number_of_itself(&self, ty: &FuncType) -> Option<u32> {
        let mut last = None;
        concrete(ty).find(|number| {
            let is_new = last.replace(*number) != Some(*number);
            is_new
                && self
                    .entries
                    .get(number)
                    .is_some_and(|entry| names_itself(&entry.ty, ty, *number))
        })
    }

    /// Adds a user, if there is such a type.
    fn hold(&mut self, number: u32) -> bool {
        let entry = self.entries.get_mut(&number);
        entry.map(|entry| entry.users += 1).is_some()
    }

    /// Takes users away, and types without any. Types name each other in chains of any
    /// length, so this does not recurse.
    fn release(&mut self, mut numbers: Vec<u32>) {
        while let Some(number) = numbers.pop() {
            let entry = self.entries.get_mut(&number).expect("who holds a type has it counted");
            entry.users -= 1;
            if entry.users == 0 {
                let entry = self.entries.remove(&number).expect("it was there");
                self.numbers.remove(&entry.ty);
                numbers.extend(entry.parts);
            }
        }
    }
}

/// Whether `ty` is the type with this number, but for naming itself by the number where `known`
/// does so by [`TypeId::ITSELF`].
fn names_itself(known: &FuncType, ty: &FuncType, number: u32) -> bool {
    let own = |other| if other == TypeId::ITSELF.0 { number } else { other };
    let are_equal = |known: &[ValType], types: &[ValType]| {
        let mut pairs = known.iter().zip(types);
        known.len() == types.len() && pairs.all(|(known, ty)| known.map_concrete(own) == *ty)
    };
    are_equal(&known.params, &ty.params) && are_equal(&known.results, &ty.results)
}

/// The types that a function type names by their numbers.
fn concrete(ty: &FuncType) -> impl Iterator<Item = u32> {
    let types = ty.params.iter().chain(&ty.results);
    types.filter_map(|ty| match ty {
        ValType::Ref(RefType { heap: HeapType::Concrete(number), .. })
            if *number != TypeId::ITSELF.0 =>
        {
            Some(*number)
        }
        _ => None,
    })
}

/// Types of an engine that are in use as long as this value lives.
pub(crate) struct TypeUses {
    types: Arc<Types>,
    used: Vec<u32>,
}

impl TypeUses {
    pub(crate) fn new(types: &Arc<Types>) -> Self {
        Self { types: Arc::clone(types), used: Vec::new() }
    }

    /// The engine's number of a function type, whose concrete types are the engine's
    /// numbers, or [`TypeId::ITSELF`] for the type's own.
    pub(crate) fn add(&mut self, ty: &FuncType) -> TypeId {
        let number = self.types.lock().add(ty);
        self.used.push(number);
        TypeId(number)
    }

    /// As [`TypeUses::add`], with the type itself, which all who use it share: it can be
    /// a thousand times as long as what names it.
    pub(crate) fn add_shared(&mut self, ty: FuncType) -> (TypeId, Arc<FuncType>) {
        let id = self.add(&ty);
        let known = Arc::clone(&self.types.lock().entries[&id.0].ty);
        // One that names itself does so in another way.
        (id, if *known == ty { known } else { ty.into() })
    }

    /// Uses the type that a value's type names, if it names one.
    pub(crate) fn hold(&mut self, ty: ValType) {
        if let ValType::Ref(RefType { heap: HeapType::Concrete(number), .. }) = ty
            && self.types.lock().hold(number)
        {
            self.used.push(number);
        }
    }
}

impl Drop for TypeUses {
    fn drop(&mut self) {
        self.types.lock().release(std::mem::take(&mut self.used));
    }
}

impl fmt::Debug for TypeUses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.used).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn concrete_ref(number: u32) -> ValType {
        ValType::Ref(RefType { nullable: true, heap: HeapType::Concrete(number) })
    }

    fn takes(params: &[ValType]) -> FuncType {
        FuncType { params: params.into(), results: [].into() }
    }

    #[test]
    fn equal_types_have_equal_numbers_while_one_is_used() {
        let types = Arc::new(Types::default());
        let (mut first, mut second) = (TypeUses::new(&types), TypeUses::new(&types));
        let a = first.add(&takes(&[ValType::I32]));
        assert_eq!(second.add(&takes(&[ValType::I32])), a);
        assert_ne!(second.add(&takes(&[ValType::I64])), a);
        drop(first);
        assert_eq!((types.count(), second.add(&takes(&[ValType::I32]))), (2, a));
        drop(second);
        assert_eq!(types.count(), 0);
        // Its number does not come again soon.
        assert_ne!(TypeUses::new(&types).add(&takes(&[ValType::F32])), a);
    }

    #[test]
    fn types_live_as_long_as_those_that_name_them() {
        let types = Arc::new(Types::default());
        let mut first = TypeUses::new(&types);
        let inner = first.add(&takes(&[ValType::I32]));
        let outer = takes(&[concrete_ref(inner.0)]);
        let mut second = TypeUses::new(&types);
        let number = second.add(&outer);
        drop(first);
        let mut third = TypeUses::new(&types);
        assert_eq!(third.add(&takes(&[ValType::I32])), inner);
        assert_eq!(third.add(&outer), number);
        drop((second, third));
        assert_eq!(types.count(), 0);
    }

    #[test]
    fn chains_of_types_are_freed_without_recursion() {
        let types = Arc::new(Types::default());
        let mut last = TypeUses::new(&types);
        let mut number = last.add(&takes(&[]));
        for _ in 0..200_000 {
            let mut next = TypeUses::new(&types);
            number = next.add(&takes(&[concrete_ref(number.0)]));
            last = next;
        }
        assert_eq!(types.count(), 200_001);
        let small = std::thread::Builder::new().stack_size(64 << 10);
        small.spawn(move || drop(last)).expect("a thread").join().expect("no panic");
        assert_eq!(types.count(), 0);
    }

    #[test]
    fn who_uses_a_type_shares_it() {
        let types = Arc::new(Types::default());
        let mut uses = TypeUses::new(&types);
        let (a, b) =
            (uses.add_shared(takes(&[ValType::I32])), uses.add_shared(takes(&[ValType::I32])));
        assert!(a.0 == b.0 && Arc::ptr_eq(&a.1, &b.1));
        let (number, _) = uses.add_shared(takes(&[concrete_ref(TypeId::ITSELF.0)]));
        let itself = takes(&[concrete_ref(number.0)]);
        assert_eq!(uses.add_shared(itself.clone()), (number, itself.into()));
    }

    /// Making another type for each type that one names would take minutes.
    #[test]
    fn types_that_name_thousands_of_others_are_added_soon() {
        let types = Arc::new(Types::default());
        let mut uses = TypeUses::new(&types);
        let parts: Vec<_> =
            (1..2_000).map(|count| uses.add(&takes(&vec![ValType::I32; count])).0).collect();
        for turn in 0..1_000 {
            let (end, begin) = parts.split_at(turn);
            let named: Vec<_> = begin.iter().chain(end).copied().map(concrete_ref).collect();
            uses.add(&takes(&named));
        }
    }

    #[test]
    fn a_type_that_names_itself_is_one_however_it_does() {
        let types = Arc::new(Types::default());
        let mut uses = TypeUses::new(&types);
        let number = uses.add(&takes(&[concrete_ref(TypeId::ITSELF.0)]));
        assert_eq!(uses.add(&takes(&[concrete_ref(number.0)])), number);
        // A number that means nothing is a type of its own, which holds nothing.
        assert_ne!(uses.add(&takes(&[concrete_ref(7)])), number);
        uses.hold(concrete_ref(9));
        drop(uses);
        assert_eq!(types.count(), 0);
    }
}
