//! Slots that are filled before a store is spawned in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::vec;

use pagefork_pages::{Slot, Strategies};

use crate::base::error::Result;
use crate::code::engine::Engine;
use crate::code::module::Module;
#[cfg(feature = "testing")]
use crate::run::poison;
use crate::store::frozen::{Frozen, FrozenInstance};

/// Slots of the instances of a captured store. Nothing runs in them, and no guest has them.
pub(crate) struct FilledSlots {
    strategies: Strategies,
    /// By ordinal, less one: whose they are, and what they are filled with.
    slots: Vec<(Module, Slot)>,
    /// How many of them a store was spawned in without that they were filled anew.
    pub(crate) in_place: Arc<AtomicU32>,
}

impl FilledSlots {
    /// Fills slots, those of `before` if they fit.
    ///
    /// # Errors
    /// If the system refuses something.
    pub(crate) fn new(
        engine: &Engine,
        frozen: &Frozen,
        strategies: Strategies,
        before: Option<Self>,
    ) -> Result<Self> {
        let mut before = SlotSupply::new(before);
        let fill = |instance: &FrozenInstance| {
            Ok((instance.module.clone(), before.slot(engine, instance, &strategies)?))
        };
        let slots = frozen.instances.iter().map(fill).collect::<Result<_>>()?;
        Ok(Self { strategies, slots, in_place: Arc::default() })
    }
}

/// Where the slots of a store that is spawned come from: filled ones first, then new ones.
pub(crate) struct SlotSupply {
    filled: vec::IntoIter<(Module, Slot)>,
    strategies: Option<Strategies>,
    in_place: Arc<AtomicU32>,
}

impl SlotSupply {
    pub(crate) fn new(filled: Option<FilledSlots>) -> Self {
        let (strategies, slots, in_place) = match filled {
            Some(FilledSlots { strategies, slots, in_place }) => {
                (Some(strategies), slots, in_place)
            }
            None => <_>::default(),
        };
        Self { filled: slots.into_iter(), strategies, in_place }
    }

    /// A slot for the next instance, as its image.
    ///
    /// # Errors
    /// If the system refuses something.
    pub(crate) fn slot(
        &mut self,
        engine: &Engine,
        instance: &FrozenInstance,
        strategies: &Strategies,
    ) -> Result<Slot> {
        let (image, sizes) = (&instance.image, &instance.sizes);
        if let Some((module, mut slot)) = self.filled.next()
            && self.strategies == Some(*strategies)
            && Module::same(&module, &instance.module)
        {
            if slot.advance_to(image, sizes)? {
                self.in_place.fetch_add(1, Ordering::Relaxed);
            }
            return Ok(slot);
        }
        let (layout, budget) = (instance.module.layout(), engine.budget());
        #[cfg_attr(not(feature = "testing"), expect(unused_mut, reason = "tests write to it"))]
        let mut slot = Slot::within(layout, image, sizes, strategies, budget)?;
        #[cfg(feature = "testing")]
        if engine.config().poison {
            poison::poison_and_reset(&mut slot)?;
        }
        Ok(slot)
    }
}
