//! What engines for tests do to each slot before it is handed out.

use std::sync::atomic::{AtomicU64, Ordering};

use pagefork_pages::Slot;

use crate::base::error::Result;
use crate::code::config::Config;

impl Config {
    /// Whether each slot is overwritten and reset before an instance is made in it, and
    /// compared with its image, byte by byte, before and after. For tests.
    #[doc(hidden)]
    pub fn poison(&mut self, on: bool) -> &mut Self {
        self.poison = on;
        self
    }
}

/// Sees that a slot is handed out as its image, and is so again after the worst that
/// could happen to it.
///
/// # Panics
/// If it is not.
#[cold]
pub(crate) fn poison_and_reset(slot: &mut Slot) -> Result<()> {
    static SEED: AtomicU64 = AtomicU64::new(0);
    assert_is_as_image(slot, "is handed out")?;
    slot.poison(SEED.fetch_add(1, Ordering::Relaxed))?;
    slot.reset()?;
    assert_is_as_image(slot, "has been reset")
}

fn assert_is_as_image(slot: &Slot, when: &str) -> Result<()> {
    let differs = slot.differs_from_image()?;
    let strategy = slot.strategy();
    assert_eq!(differs, None, "a slot that {when} ({strategy}) is not as its image");
    Ok(())
}
