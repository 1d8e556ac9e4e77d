//! Arguments of `pagefork node`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use pagefork::image::PublicKey;
use pagefork_node::NodeAddress;
use pagefork_objects::ObjectUrl;

use super::common::{
    DirectoryArgument, HolderArgument, StoreArguments, directory, holder, size, time, variable,
};

#[derive(Args)]
#[command(after_help = "Where other commands take an image, they take NODE/IMAGE: the image is \
                        fetched from that node, if it is not here, before the program goes on. \
                        PROGRAM is a program of a node, NODE/PROGRAM, by its name or number; \
                        without NODE, of the user's own node at 127.0.0.1:7410.")]
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
    /// Print a token by which a node may have an image of this one for a while, and no other
    Grant(GrantArguments),
    /// Serve the images of a store to the nodes that may have them, until the process ends
    Serve {
        /// Where to listen: for TLS over TCP, or for QUIC at quic://ADDRESS:PORT; can be given more than
        /// once
        #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7410")]
        addr: Vec<NodeAddress>,

        #[command(flatten)]
        tokens: TokensArguments,

        #[command(flatten)]
        store: StoreArguments,
    },
    /// Run programs for the nodes that may have them run, and serve images, until the process ends
    Run(NodeRunArguments),
    /// Start a program at a node, with the standard streams of this process
    Start(NodeStartArguments),
    /// List the programs of a node
    Ps {
        /// The node; without it, the user's own
        node: Option<String>,
    },
    /// Connect the standard streams of this process with those of a program at a node
    Attach {
        /// The program
        program: String,

        #[command(flatten)]
        lost: LostArguments,
    },
    /// Make an image of a program at a node, in the node's store, while the program runs on
    Snapshot(NodeSnapshotArguments),
    /// Stop a program at a node, or forget one that has ended
    Stop {
        /// The program
        program: String,
    },
    /// Have a program go on where it was that was handed over to another node: only who knows that
    /// it does not run there may say so, since else there are two of it
    Reclaim {
        /// The program, at the node that has handed it over
        program: String,
    },
}

#[derive(Args)]
#[command(
    after_help = "The node that has the program and the other one must know each other: each the \
                        other's address and that it may have programs run (`pagefork node trust --run \
                        --address`), and the other one the image key of the first (`--signer`). Once it \
                        was handed over, it never goes on by itself where it was."
)]
pub(crate) struct MigrateArguments {
    /// Send so many states of the program ahead, at most, while it runs; with none, it goes on at once,
    /// its pages come while it runs there, and until then it is lost if this node is
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    pub(crate) rounds: u8,

    /// How long to wait until the other node answers, the program comes to rest, and closes what cannot
    /// move
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10s")]
    pub(crate) patience: Duration,

    /// Without rounds, have this node or object store get all pages, too, so that the program is not lost
    /// if the node is that it comes from; `none` has nothing get them. If not given, it is the
    /// `--second` of that node, or its first `--place`, if it has any
    #[arg(long, value_name = "NODE|URL|none", value_parser = second)]
    pub(crate) second: Option<SecondArgument>,

    /// Say how long the program rested, for what, and how many bytes went before and with it
    #[arg(long)]
    pub(crate) report: bool,

    /// The program: NODE/PROGRAM, by its name or number; without NODE, of the user's own node
    pub(crate) program: String,

    /// The node to which it moves
    pub(crate) node: String,
}

/// What gets all pages of a program, too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SecondArgument {
    /// The node of this name.
    Node(String),
    Objects(ObjectUrl),
    Nowhere,
}

/// No name of a node has a colon, and each URL has.
fn second(text: &str) -> Result<SecondArgument, String> {
    match text {
        "none" => Ok(SecondArgument::Nowhere),
        url if url.contains(':') => place(url).map(SecondArgument::Objects),
        name => Ok(SecondArgument::Node(name.to_owned())),
    }
}

fn place(text: &str) -> Result<ObjectUrl, String> {
    text.parse().map_err(|error: pagefork::image::ImageError| error.to_string())
}

#[derive(Args)]
pub(crate) struct LostArguments {
    /// How long a node that is lost is tried to be reached again
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "15s")]
    pub(crate) node_timeout: Duration,
}

/// Whether tokens count.
#[derive(Args)]
pub(crate) struct TokensArguments {
    /// Give images also to nodes that are not known and show a token of `node grant`: whoever connects is
    /// let in as far as to show one
    #[arg(long)]
    pub(crate) tokens: bool,
}

#[derive(Args)]
#[command(
    after_help = "The node shows it by `--token FILE`, where FILE is what was printed, if this one \
                        serves with `--tokens`."
)]
pub(crate) struct GrantArguments {
    /// The image, as it is now: its name, its hash, or four or more of the hash's first digits
    pub(crate) image: String,

    /// Who may have it: a node that is known, or a node key as `node init` prints it
    #[arg(long = "for", value_name = "NODE|KEY")]
    pub(crate) holder: String,

    /// For how long
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1h")]
    pub(crate) expires: Duration,

    #[command(flatten)]
    pub(crate) store: StoreArguments,
}

#[derive(Args)]
pub(crate) struct NodeRunArguments {
    /// Where to listen: for TLS over TCP, or for QUIC at quic://ADDRESS:PORT; can be given more than once
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7410")]
    pub(crate) addr: Vec<NodeAddress>,

    /// Let programs that ask for GUEST see the directory HOST of this machine; `:ro` is for reading
    /// only
    #[arg(long = "dir", value_name = "HOST[::GUEST[:ro|:rw]]", value_parser = directory)]
    pub(crate) directories: Vec<DirectoryArgument>,

    /// Put pages of programs that move before them into this object store, too: file:///DIRECTORY. Both
    /// nodes have to have it; can be given more than once, and the first one is used unless `migrate`
    /// says otherwise
    #[arg(long = "place", value_name = "URL", value_parser = place)]
    pub(crate) places: Vec<ObjectUrl>,

    /// Have this node get the pages of programs that move before them, too, unless `migrate` says otherwise:
    /// before a `--place`
    #[arg(long, value_name = "NODE")]
    pub(crate) second: Option<String>,

    /// Run this many programs at once
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    pub(crate) programs: usize,

    /// Let each program have this much memory
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "4GiB")]
    pub(crate) memory: u64,

    /// End each program that has run this long
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) tokens: TokensArguments,

    #[command(flatten)]
    pub(crate) lost: LostArguments,

    #[command(flatten)]
    pub(crate) store: StoreArguments,
}

#[derive(Args)]
#[command(
    after_help = "Others go on from there: here by `restore NODE/NAME`, and `--from NODE/NAME` of `run`, \
                        `fork` and `serve`, if the node lets this one have images (`node trust --serve` \
                        there) and its image key is trusted (`node trust --signer` here); at the node by \
                        `node start --from NAME`. What is in the program's standard streams stays its own. \
                        The image's hash is printed; give it a name, since images without one are \
                        removed by `pagefork image gc`."
)]
pub(crate) struct NodeSnapshotArguments {
    /// The name by which the image is found in the node's store; no other image may have it
    #[arg(short = 'o', long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Say in the image that this node or object store (`file:///DIRECTORY`) will have it, too: a node that is known
    /// here, or a node key. Can be given up to 16 times
    #[arg(long = "holder", value_name = "NODE|KEY|URL", value_parser = holder)]
    pub(crate) holders: Vec<HolderArgument>,

    /// How long to wait until the program comes to rest, and closes what no image can have
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10s")]
    pub(crate) patience: Duration,

    /// Say how long the program rested, how long it took to save the image, and how large it is
    #[arg(long)]
    pub(crate) report: bool,

    /// The program: NODE/PROGRAM, by its name or number; without NODE, of the user's own node
    pub(crate) program: String,
}

#[derive(Args)]
#[command(override_usage = "pagefork node start [OPTIONS] NODE FILE [ARGUMENTS]...\n       \
                            pagefork node start [OPTIONS] NODE --from IMAGE")]
pub(crate) struct NodeStartArguments {
    /// What the program is called at the node; without it, as FILE or IMAGE
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Do not connect its standard streams: print its number, and leave it there
    #[arg(long)]
    pub(crate) detach: bool,

    /// Let the program see the directory that the node has for programs under this name
    #[arg(long = "dir", value_name = "GUEST")]
    pub(crate) directories: Vec<String>,

    /// Give the program an empty directory of its own under this name: it goes where the program goes
    #[arg(long = "session-dir", value_name = "GUEST")]
    pub(crate) sessions: Vec<String>,

    /// Set an environment variable; without a value, pass this process's own
    #[arg(long = "env", value_name = "NAME[=VALUE]", value_parser = variable)]
    pub(crate) variables: Vec<(String, String)>,

    /// End the program when it has run this long: 500ms, 10s, 2m
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) timeout: Option<Duration>,

    /// Go on with the program in this image of the node, or NODE/IMAGE as the node knows it
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["program", "variables", "sessions", "directories"])]
    pub(crate) from: Option<String>,

    #[command(flatten)]
    pub(crate) lost: LostArguments,

    /// The node; `-` is the user's own
    pub(crate) node: String,

    /// The program, a WebAssembly module, binary or text; what follows are its arguments
    #[arg(value_name = "FILE", trailing_var_arg = true, required_unless_present = "from")]
    pub(crate) program: Vec<OsString>,
}

#[derive(Args)]
#[command(group = ArgGroup::new("trust").required(true).multiple(true))]
pub(crate) struct TrustArguments {
    /// What the node is called here: letters, digits, `.`, `_` and `-`. One of that name is replaced
    pub(crate) name: String,

    /// Its key, as `pagefork node init` prints it there
    pub(crate) key: PublicKey,

    /// Fetch images from it there, by TLS over TCP or, from quic://HOST:PORT, by QUIC, and believe what
    /// its names of images stand for
    #[arg(long, value_name = "HOST:PORT", group = "trust")]
    pub(crate) address: Option<String>,

    /// Let it have all images of this node
    #[arg(long, group = "trust")]
    pub(crate) serve: bool,

    /// Let it start programs here, and see, attach to and stop those of all
    #[arg(long, group = "trust")]
    pub(crate) run: bool,

    /// Run what this key has signed: the image key that `pagefork node init` prints there
    #[arg(long, value_name = "IMAGE-KEY", group = "trust")]
    pub(crate) signer: Option<PublicKey>,
}
