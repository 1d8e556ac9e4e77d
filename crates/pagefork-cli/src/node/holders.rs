//! Who else has an image: as the command says, and as the image does.

use std::time::Duration;

use pagefork::image::{SavedHolder, check_holders};
use pagefork_node::{HolderCheck, PageHolder};

use super::known::KnownNodes;
use super::{run, source};
use crate::arguments::HolderArgument;

/// Who is asked, and where it is.
pub(super) fn to_be_asked(
    arguments: &[HolderArgument],
    patience: Duration,
) -> Result<Vec<PageHolder>, String> {
    let holder = |argument: &HolderArgument| match argument {
        HolderArgument::Node(name) => source(name).map(|(peer, ..)| PageHolder::Node(peer)),
        HolderArgument::Objects(url) => run::place(url, patience).map(PageHolder::Place),
    };
    arguments.iter().map(holder).collect()
}

/// What an image that is made says of who else will have it.
pub(crate) fn to_be_named(arguments: &[HolderArgument]) -> Result<Vec<SavedHolder>, String> {
    if arguments.is_empty() {
        return Ok(Vec::new());
    }
    let nodes = KnownNodes::read()?;
    let holder = |argument: &HolderArgument| match argument {
        HolderArgument::Node(node) => nodes.key_of(node).map(SavedHolder::Node),
        HolderArgument::Objects(url) => Ok(SavedHolder::Objects(url.to_string())),
    };
    let holders: Vec<_> = arguments.iter().map(holder).collect::<Result<_, _>>()?;
    check_holders(&holders).map_err(|error| error.to_string())?;
    Ok(holders)
}

/// Of the holders that an image names those are asked that the user knows, where the user knows them to be, and the
/// object stores that were given to the command. `others` are asked in any case.
pub(super) fn known(others: Vec<PageHolder>) -> HolderCheck {
    HolderCheck::new(move |holder| match holder {
        SavedHolder::Node(key) => {
            let peer = KnownNodes::read()?.reached(key);
            peer.map(PageHolder::Node).ok_or_else(|| {
                "where it is is not known here: `pagefork node trust --address` says it".to_owned()
            })
        }
        SavedHolder::Objects(url) => {
            let is_it = |other: &&PageHolder| matches!(other, PageHolder::Place(place) if place.url == *url);
            let given = others.iter().find(is_it).cloned();
            given.ok_or_else(|| format!("it is asked if it is given: `--from-also {url}`"))
        }
    })
}

/// A holder for people: a node by what it is called here, too.
pub(crate) fn shown(holder: &SavedHolder) -> String {
    let name = match holder {
        SavedHolder::Node(key) => KnownNodes::read().ok().and_then(|nodes| {
            let name = nodes.name_of(key)?;
            Some(format!(", known as {name}"))
        }),
        SavedHolder::Objects(_) => None,
    };
    format!("{holder}{}", name.unwrap_or_default())
}
