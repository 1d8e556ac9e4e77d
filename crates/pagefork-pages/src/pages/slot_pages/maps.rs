//! How many kernel maps a slot may have.

use super::Setup;
use super::served::served_maps;
use crate::image::{Image, Source};
use crate::pages::growth::GrowthKind;

/// Maps that a slot takes, and that each memory behind the first takes.
const MAPS: u64 = 4;
const MAPS_FURTHER: u64 = 3;

/// So many with this image, and so many memories.
pub(super) fn maps_of(setup: Setup, image: &Image, sources: &[Source], memories: usize) -> u64 {
    let further = memories.saturating_sub(1) as u64;
    let beside = u64::from(image.is_partly_held());
    // A file that a memory grows in is a map of its own, and so are pages that are registered.
    let is_apart = matches!(setup.growth, GrowthKind::Ftruncate | GrowthKind::Fault);
    let growing = if is_apart { memories as u64 } else { 0 };
    let served = if setup.image_service.is_some() { served_maps(sources, image) } else { 0 };
    MAPS + MAPS_FURTHER * further + beside + growing + served
}

#[cfg(test)]
impl super::SlotPages {
    /// What its share is.
    pub(crate) fn maps_max(&self) -> u64 {
        self.maps.count()
    }
}
