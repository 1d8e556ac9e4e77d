//! How the memories of a slot grow, and what follows from it.

use super::Slot;
use crate::pages::growth::GrowthChoice;

impl Slot {
    /// How the slot's memories grow, and why so.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::{
    ///     GrowthKind, Image, MemorySize, MemoryZone, Slot, SlotConfig, StrategyConfig,
    /// };
    ///
    /// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    /// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    /// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    /// let image = Image::new("example", base..base, [])?;
    /// let size = MemorySize { initial: 65_536, maximum: 1 << 20 };
    /// let growth = GrowthKind::Ftruncate;
    /// let strategies = StrategyConfig { growth, ..StrategyConfig::default() }.check()?;
    /// let mut slot = Slot::with_strategies(config, &image, &[size], &strategies)?;
    /// let choice = slot.growth();
    /// assert_eq!(choice.asked, growth);
    /// println!("memories grow by {choice}");
    /// // Processes that are forked would share what the memory grows by.
    /// assert_eq!(slot.is_bound(), choice.used == growth);
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn growth(&self) -> GrowthChoice {
        self.pages.growth()
    }

    /// Whether the slot can be used in this process alone, and not in those that are forked from it:
    /// memories of it [grow in files](crate::GrowthKind::Ftruncate), or it gets pages when they are
    /// touched: [of its image](crate::ResetKind::Fault), or [as memories
    /// grow](crate::GrowthKind::Fault).
    ///
    /// # Examples
    ///
    /// See [`Slot::growth`].
    pub fn is_bound(&self) -> bool {
        self.pages.is_bound()
    }
}
