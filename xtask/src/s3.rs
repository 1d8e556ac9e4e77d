//! Tests of images in an object store that speaks S3's protocol.

use std::path::PathBuf;

use crate::Result;
use crate::guests;
use crate::host::{self, Host};
use crate::sha256;

/// What is installed: the service, a package of Python, and what it imports.
const REQUIREMENTS: &str = "xtask/s3.txt";

/// Runs them with the service, which is fetched if it is not here. The feature `s3` has other dependencies built, and
/// so they are built apart from all others.
pub(crate) fn run(host: &Host) -> Result {
    let packages = packages(host)?;
    let mut cargo = host.cargo();
    cargo.env("PAGEFORK_S3_PACKAGES", packages);
    cargo.env("CARGO_TARGET_DIR", host.target.join("s3"));
    cargo.args(["test", "--locked", "--package", "pagefork-objects", "--features", "s3"]);
    host::check(cargo.args(["--test", "s3", "--", "--ignored", "--nocapture"]))
}

/// Where the service is, installed if it was not.
fn packages(host: &Host) -> Result<PathBuf> {
    let requirements = host.root.join(REQUIREMENTS);
    let digest = sha256::hex(&host::read(&requirements)?);
    let directory = host.guests().join(format!("s3-{}", &digest[..16]));
    if !directory.is_dir() {
        eprintln!("installing what {REQUIREMENTS} names");
        guests::install(host, &requirements, &directory)?;
    }
    Ok(directory)
}
