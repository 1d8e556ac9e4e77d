//! Slots need nothing that a user without rights may not do: by every strategy and growth they are what the image
//! says after whatever runs did.

mod common;
#[path = "common/matrix.rs"]
mod matrix;

use common::*;
use matrix::*;
use pagefork_pages::Owner;

#[test]
fn every_strategy_resets_for_users_without_rights() {
    in_own_process("every_strategy_resets_for_users_without_rights", || {
        // SAFETY: this process has one test.
        let changed =
            unsafe { libc::geteuid() != 0 || libc::setgid(65534) == 0 && libc::setuid(65534) == 0 };
        assert!(changed);
        let (image, _) = dense_image(&layout(), 0x42, 40 * PAGE);
        let case = Case::new("without rights", layout(), image, (4 * WASM_PAGE, 16 * WASM_PAGE));
        for strategies in all_strategies() {
            let mut slot = case.spawn(&strategies);
            let what = format!("{:?}", strategies.config());
            for round in 0..6 {
                slot.enter();
                // Other pages each time, and once hundreds of them, most of which are new.
                let (size, pages) = if round == 3 { (16, 250) } else { (4 + round, 5) };
                slot.grow_memory(0, size * WASM_PAGE).unwrap();
                for page in 0..pages {
                    let page = (page * (7 + 2 * round)) % (size * WASM_PAGE / PAGE);
                    write(&slot, case.memory(0) + page * PAGE, &[round as u8; 3]);
                }
                slot.reset_for(Owner(7)).unwrap();
                case.assert_fresh(&slot, &strategies, &what);
            }
        }
    });
}
