//! Guest functions that were called without their types, with what the next call of each needs.

use pagefork_layout::module::FuncType;
use pagefork_layout::reference::FuncRef;

use crate::store::frame::Target;
use crate::store::group::StoreGroup;

/// How many functions have places in the store itself.
const FIRST: usize = 8;

/// At most this many others are known at once: then all of these are looked up again.
const OTHERS_MAX: usize = 4096;

/// A parked store keeps no more places than these for others.
const KEPT_MAX: usize = 256;

/// Guest functions that were called untyped: each is looked up once, as long as the store has its
/// instances.
///
/// The first function of each index modulo [`FIRST`] is where that says. A function that finds its
/// place taken is among the others, and stays there.
pub(crate) struct CalledFunctions {
    first: [CalledFunction; FIRST],
    /// A hash table: a function is at the place that its hash says, or one of the next, with no free
    /// place in between. A power of two, at most 3/4 of which are taken; or empty.
    others: Vec<CalledFunction>,
    /// How many of the others' places are taken.
    others_count: usize,
}

impl Default for CalledFunctions {
    fn default() -> Self {
        Self { first: [CalledFunction::NONE; FIRST], others: Vec::new(), others_count: 0 }
    }
}

/// A guest function with what calls of it need.
#[derive(Clone, Copy)]
pub(crate) struct CalledFunction {
    /// Null if the place is free.
    function: FuncRef,
    pub(crate) target: Target,
    /// Part of the module of the function's instance.
    ty: *const FuncType,
}

impl CalledFunction {
    const NONE: Self = Self { function: FuncRef::NULL, target: Target::NONE, ty: std::ptr::null() };

    /// The function's type.
    ///
    /// # Safety
    /// The store has had its instances ever since this was [looked up](StoreGroup::called).
    pub(crate) unsafe fn ty<'a>(&self) -> &'a FuncType {
        // SAFETY: by this function's contract the instance is there, and with it its module.
        unsafe { &*self.ty }
    }
}

impl CalledFunctions {
    /// Forgets all functions: to be called when instances come or go.
    pub(crate) fn clear(&mut self) {
        self.first.iter_mut().for_each(|called| called.function = FuncRef::NULL);
        self.clear_others();
    }

    /// Keeps no more memory than the next tenant is likely to need.
    pub(crate) fn trim(&mut self) {
        if self.others.len() > KEPT_MAX {
            self.others = Vec::new();
            self.others_count = 0;
        }
    }

    fn clear_others(&mut self) {
        if self.others_count > 0 {
            self.others.fill(CalledFunction::NONE);
            self.others_count = 0;
        }
    }

    #[inline(always)]
    fn first(&self, function: FuncRef) -> Option<&CalledFunction> {
        let known = &self.first[function.0 as usize % FIRST];
        (known.function == function).then_some(known)
    }

    #[inline(always)]
    fn get(&self, function: FuncRef) -> Option<&CalledFunction> {
        self.first(function).or_else(|| self.other(function))
    }

    #[inline(never)]
    fn other(&self, function: FuncRef) -> Option<&CalledFunction> {
        let known = &self.others[self.place_among_others(function)?];
        (known.function == function).then_some(known)
    }

    /// Where a function is among the others, or where it would be; `None` if there are no places.
    fn place_among_others(&self, function: FuncRef) -> Option<usize> {
        let mask = self.others.len().checked_sub(1)?;
        // A multiplier whose product's upper half depends on all bits of the function.
        let mut place = (function.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        // A free place ends the search: a quarter of them are free.
        while !matches!(self.others[place].function, FuncRef::NULL)
            && self.others[place].function != function
        {
            place = (place + 1) & mask;
        }
        Some(place)
    }

    /// Adds a function that is not known.
    fn add(&mut self, called: CalledFunction) -> &CalledFunction {
        let first = called.function.0 as usize % FIRST;
        if self.first[first].function.is_null() {
            self.first[first] = called;
            return &self.first[first];
        }
        if self.others_count == OTHERS_MAX {
            self.clear_others();
        }
        if (self.others_count + 1) * 4 > self.others.len() * 3 {
            self.grow_others();
        }
        let place = self.place_among_others(called.function).expect("it has just grown");
        self.others[place] = called;
        self.others_count += 1;
        &self.others[place]
    }

    fn grow_others(&mut self) {
        let length = (self.others.len() * 2).max(FIRST);
        let before = std::mem::replace(&mut self.others, vec![CalledFunction::NONE; length]);
        for called in before.into_iter().filter(|called| !called.function.is_null()) {
            let place = self.place_among_others(called.function).expect("there are places");
            self.others[place] = called;
        }
    }
}

impl StoreGroup {
    /// What calls of a guest's function need, if it was [looked up](StoreGroup::called) and has its
    /// place in the store itself: for calls that have nothing else to do.
    #[inline(always)]
    pub(crate) fn first_known_call(&self, function: FuncRef) -> Option<&CalledFunction> {
        self.called.first(function)
    }

    /// What calls of a guest's function need, if it was [looked up](StoreGroup::called).
    #[inline]
    pub(crate) fn known_call(&self, function: FuncRef) -> Option<&CalledFunction> {
        self.called.get(function)
    }

    /// What calls of a guest's function need.
    #[inline]
    pub(crate) fn called(&mut self, function: FuncRef) -> CalledFunction {
        match self.called.get(function) {
            Some(known) => *known,
            None => *self.look_up_called(function),
        }
    }

    #[cold]
    #[inline(never)]
    fn look_up_called(&mut self, function: FuncRef) -> &CalledFunction {
        let (target, ty) = (self.target(function), &raw const *self.function_type(function).0);
        self.called.add(CalledFunction { function, target, ty })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(called: &CalledFunctions, function: FuncRef) -> Option<usize> {
        called.get(function).map(|called| called.target.code)
    }

    fn add(called: &mut CalledFunctions, function: FuncRef, code: usize) {
        let target = Target { code, ..Target::NONE };
        called.add(CalledFunction { function, target, ..CalledFunction::NONE });
    }

    #[test]
    fn all_functions_stay_known_whatever_their_indices() {
        let mut called = CalledFunctions::default();
        // Of two instances, next to each other and far apart: nearly all want the same places.
        let near = (0..300).map(|index| FuncRef::new(1 + index % 2, index / 2));
        let far = (1..300).map(|index| FuncRef::new(3, index << 20));
        for (code, function) in near.clone().chain(far.clone()).enumerate() {
            assert_eq!(known(&called, function), None);
            add(&mut called, function, code + 1);
        }
        for (code, function) in near.chain(far).enumerate() {
            assert_eq!(known(&called, function), Some(code + 1));
        }
        called.clear();
        assert_eq!(known(&called, FuncRef::new(1, 0)), None);
        assert_eq!(known(&called, FuncRef::new(3, 5 << 20)), None);
    }

    #[test]
    fn more_functions_than_are_kept_are_known_in_turn() {
        let mut called = CalledFunctions::default();
        for index in 0..3 * OTHERS_MAX as u32 {
            let function = FuncRef::new(1, index);
            add(&mut called, function, index as usize + 1);
            assert_eq!(known(&called, function), Some(index as usize + 1));
            assert!(called.others.len() <= 2 * OTHERS_MAX);
        }
        called.trim();
        assert!(called.others.len() <= KEPT_MAX);
        assert_eq!(known(&called, FuncRef::new(1, 0)), Some(1), "the first ones stay");
    }
}
