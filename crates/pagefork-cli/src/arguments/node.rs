//! Arguments of `pagefork node`.

use std::net::SocketAddr;

use clap::{ArgGroup, Args, Subcommand};
use pagefork::image::PublicKey;

use super::common::StoreArguments;

#[derive(Args)]
#[command(after_help = "Where other commands take an image, they take NODE/IMAGE: the image is \
                        fetched from that node, if it is not here, before the program goes on.")]
pub(crate) struct NodeArguments {
    #[command(subcommand)]
    pub(crate) action: NodeAction,
}

#[derive(Subcommand)]
pub(crate) enum NodeAction {
    /// Make this node's keys, if there are none, and print what other nodes must know
    Init,
    /// Know another node: where it is, whether it may have images of this one, whose programs run here
    Trust(TrustArguments),
    /// List the nodes that are known
    Ls,
    /// Know a node no more; keys that sign images stay trusted
    Forget {
        /// The node
        name: String,
    },
    /// Serve the images of a store to the nodes that may have them, until the process ends
    Serve {
        /// Where to listen
        #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7410")]
        addr: SocketAddr,

        #[command(flatten)]
        store: StoreArguments,
    },
}

#[derive(Args)]
#[command(group = ArgGroup::new("trust").required(true).multiple(true))]
pub(crate) struct TrustArguments {
    /// What the node is called here: letters, digits, `.`, `_` and `-`. One of that name is replaced
    pub(crate) name: String,

    /// Its key, as `pagefork node init` prints it there
    pub(crate) key: PublicKey,

    /// Fetch images from it there, and believe what its names of images stand for
    #[arg(long, value_name = "HOST:PORT", group = "trust")]
    pub(crate) address: Option<String>,

    /// Let it have all images of this node
    #[arg(long, group = "trust")]
    pub(crate) serve: bool,

    /// Run what this key has signed: the image key that `pagefork node init` prints there
    #[arg(long, value_name = "IMAGE-KEY", group = "trust")]
    pub(crate) signer: Option<PublicKey>,
}
