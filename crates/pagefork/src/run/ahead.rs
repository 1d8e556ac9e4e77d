//! Slots that are filled before a store is spawned in them.

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
        Ok(Self { strategies, slots })
    }
}

/// Where the slots of a store that is spawned come from: filled ones first, then new ones.
pub(crate) struct SlotSupply {
    filled: vec::IntoIter<(Module, Slot)>,
    strategies: Option<Strategies>,
}

impl SlotSupply {
    pub(crate) fn new(filled: Option<FilledSlots>) -> Self {
        let (strategies, slots) = match filled {
            Some(FilledSlots { strategies, slots }) => (Some(strategies), slots),
            None => (None, Vec::new()),
        };
        Self { filled: slots.into_iter(), strategies }
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
            slot.advance_to(image, sizes)?;
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
