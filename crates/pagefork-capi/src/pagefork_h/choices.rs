//! How an instance is reset and its memories grow, and why.

use std::fmt::Display;
use std::mem::MaybeUninit;

use pagefork::{GrowthKind, ResetKind, Result};

use crate::base::border::{BorderError, given};
use crate::base::c_vec::CVec;
use crate::objects::fallible::fallible;
use crate::objects::object::wasm_ref_t;
use crate::pagefork_h::configs::RESETS;

/// The number of a way of resetting slots in `pagefork_reset_enum`.
fn reset_number(kind: ResetKind) -> Option<u8> {
    RESETS.into_iter().zip(0..).find_map(|(known, number)| (known == kind).then_some(number))
}

/// The number of a way in which memories grow in `pagefork_growth_enum`.
fn growth_number(kind: GrowthKind) -> Option<u8> {
    Some(match kind {
        GrowthKind::Mprotect => 0,
        GrowthKind::Checked { .. } => 1,
        GrowthKind::Kept => 2,
        GrowthKind::Auto => 3,
        GrowthKind::Ftruncate => 4,
        GrowthKind::Fault => 5,
        _ => return None,
    })
}

/// Tells C what is done, and why, where it wants to know.
///
/// # Errors
/// If the header has no number for it, and if there is no memory.
fn tell(
    (used, why): (Option<&mut MaybeUninit<u8>>, Option<&mut CVec<u8>>),
    (number, choice): (Option<u8>, impl Display),
) -> Result<()> {
    let number = number.ok_or_else(|| BorderError::Unfit(format!("no number for {choice}")))?;
    if let Some(used) = used {
        used.write(number);
    }
    if let Some(why) = why {
        // As all messages, with a zero behind.
        *why = CVec::new(format!("{choice}\0").into_bytes())?;
    }
    Ok(())
}

fallible! {
    fn pagefork_instance_strategy(
        instance: Option<&wasm_ref_t>,
        used: Option<&mut MaybeUninit<u8>>,
        why: Option<&mut MaybeUninit<CVec<u8>>>,
    ) {
        let why = why.map(|why| why.write(CVec::EMPTY));
        let instance = given(instance, "instance")?;
        let choice = instance.instance()?.strategy(&instance.store()?.context()?);
        tell((used, why), (reset_number(choice.used), choice))
    }

    fn pagefork_instance_growth(
        instance: Option<&wasm_ref_t>,
        used: Option<&mut MaybeUninit<u8>>,
        why: Option<&mut MaybeUninit<CVec<u8>>>,
    ) {
        let why = why.map(|why| why.write(CVec::EMPTY));
        let instance = given(instance, "instance")?;
        let choice = instance.instance()?.growth(&instance.store()?.context()?);
        tell((used, why), (growth_number(choice.used), choice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_has_its_number() {
        for kind in ResetKind::ALL {
            let number = reset_number(kind).expect("one of pagefork_reset_enum");
            assert_eq!(RESETS[usize::from(number)], kind);
        }
        let mut numbers = GrowthKind::ALL.map(|kind| growth_number(kind).expect("one of them"));
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
    }
}
