//! Tests that take longer than continuous integration may.

use crate::Result;
use crate::host::{self, Host};
use crate::sabotage::{self, Selection};

/// Tests that take longer than CI does: those marked as ignored in it. Ten thousand damaged
/// modules, the specification's suite by every pair of strategies and through files, programs that
/// go to and fro between processes, a million calls of the page manager, a million requests, a
/// store of images that several processes use for a minute, each damaged byte of an object, a
/// gibibyte that is loaded unread, and programs that move fifty times, over links that break and between
/// nodes that are killed five hundred times.
const TESTS: [(&str, &str); 10] = [
    ("pagefork-tests", "bad_input"),
    ("pagefork-tests", "spec_suite"),
    ("pagefork-tests", "saved_guests"),
    ("pagefork-tests", "page_manager"),
    ("pagefork-serve", "soak"),
    ("pagefork-image", "processes"),
    ("pagefork-objects", "objects"),
    ("pagefork", "saved"),
    ("pagefork-node", "moving"),
    ("pagefork-cli", "killed_nodes"),
];

pub(crate) fn run(host: &Host) -> Result {
    for (package, test) in TESTS {
        let mut cargo = host.cargo();
        cargo.args(["test", "--locked", "-p", package, "--test", test]);
        cargo.args(["--", "--ignored", "--nocapture"]);
        host::check(&mut cargo)?;
    }
    sabotage::run(host, Selection::All)
}
