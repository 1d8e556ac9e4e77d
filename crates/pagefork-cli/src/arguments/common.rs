//! Arguments that several commands share.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use pagefork_objects::ObjectUrl;
use pagefork_wasi::Permissions;

/// The directories and variables of a program.
#[derive(Args)]
pub(crate) struct EnvironmentArguments {
    /// Let the program see the directory HOST of this machine as GUEST; `:ro` is for reading only,
    /// and a GUEST with a colon in its last part needs `:ro` or `:rw`
    #[arg(long = "dir", value_name = "HOST[::GUEST[:ro|:rw]]", value_parser = directory)]
    pub(crate) directories: Vec<DirectoryArgument>,

    /// Set an environment variable; without a value, pass this process's own
    #[arg(long = "env", value_name = "NAME[=VALUE]", value_parser = variable)]
    pub(crate) variables: Vec<(String, String)>,
}

/// The directories of a program's session: each fork has them for itself, and images have their files.
#[derive(Args)]
pub(crate) struct SessionArguments {
    /// Let the program see the directory HOST of this machine as GUEST, to read and write; an image of
    /// the program has its files, and each program that goes on from there a copy of its own
    #[arg(long = "session-dir", value_name = "HOST[::GUEST]", value_parser = session_directory)]
    pub(crate) own_directories: Vec<DirectoryArgument>,
}

/// A program, its arguments, and the cache of its compiled code.
#[derive(Args)]
pub(crate) struct ProgramArguments {
    /// Keep compiled modules in this directory and not in `~/.cache/pagefork`
    #[arg(long = "cache", value_name = "DIR")]
    pub(crate) cache_directory: Option<PathBuf>,

    /// Compile the program, even if it was compiled before, and keep nothing
    #[arg(long, conflicts_with = "cache_directory")]
    pub(crate) no_cache: bool,

    /// Give up compiling the program after this time, such as 500ms, 10s or 2m
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) compile_timeout: Option<Duration>,

    // One list, because Clap ends its options only with the first value of a list.
    /// The program, a WebAssembly module, binary or text, or compiled; `-` is standard input; what
    /// follows are its arguments
    #[arg(value_name = "FILE", trailing_var_arg = true, required_unless_present = "from")]
    program: Vec<OsString>,

    #[command(flatten)]
    pub(crate) image: FromArguments,
}

/// An image in place of a program.
#[derive(Args)]
pub(crate) struct FromArguments {
    /// Go on with the program in this image, and not with FILE: its name, its hash, or four or more
    /// of the hash's first digits; NODE/IMAGE fetches it from another node
    #[arg(long, value_name = "IMAGE")]
    pub(crate) from: Option<String>,

    #[command(flatten)]
    pub(crate) store: StoreArguments,

    #[command(flatten)]
    pub(crate) coming: ComingArguments,
}

/// What is fetched before a program waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum FetchLayer {
    None,
    Certain,
    Recorded,
    Stride,
    Background,
}

impl ComingArguments {
    /// Whether a layer is on.
    pub(crate) fn has(&self, layer: FetchLayer) -> bool {
        self.fetch_ahead.contains(&layer)
    }
}

/// Who else may have an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum HolderArgument {
    /// The node of this name.
    Node(String),
    Objects(ObjectUrl),
}

/// No name of a node has a colon, and each URL has.
pub(super) fn holder(text: &str) -> Result<HolderArgument, String> {
    match text {
        url if url.contains(':') => {
            let url = url.parse().map_err(|error: pagefork::image::ImageError| error.to_string());
            url.map(HolderArgument::Objects)
        }
        name => Ok(HolderArgument::Node(name.to_owned())),
    }
}

/// How an image of another node comes.
#[derive(Args)]
pub(crate) struct ComingArguments {
    /// How long the node of an image is tried to be reached again when it is lost, before a program
    /// traps that needs more of its pages
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "15s")]
    pub(crate) node_timeout: Duration,

    /// What is asked for of an image of another node besides what a program waits for: what each
    /// program needs, what earlier runs have touched, groups at the distance of the last faults,
    /// the rest; or `none`
    #[arg(
        long,
        value_name = "LAYERS",
        value_delimiter = ',',
        default_value = "certain,recorded,stride,background"
    )]
    pub(crate) fetch_ahead: Vec<FetchLayer>,

    /// Ask this node or object store (`file:///DIRECTORY`) for pages of NODE/IMAGE, too, when NODE is lost; also before
    /// anything has come, if IMAGE is a hash. What it gives is proved by the image. Give it several times for others
    /// that are asked then, in this order
    #[arg(long, value_name = "NODE|URL", value_parser = holder)]
    pub(crate) from_also: Vec<HolderArgument>,

    /// Show the node of an image the token in FILE, as `node grant` has printed it there
    #[arg(long, value_name = "FILE")]
    pub(crate) token: Option<PathBuf>,

    /// Say on standard error, at the end, what came of an image of another node, when and why
    #[arg(long)]
    pub(crate) report: bool,
}

/// Where images are kept.
#[derive(Args)]
pub(crate) struct StoreArguments {
    /// The directory of images, in place of `~/.local/share/pagefork/images`
    #[arg(long = "store", value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
}

impl ProgramArguments {
    /// The program: a WebAssembly module, binary or text, or compiled. If it is in an image, what
    /// that is called.
    pub(crate) fn file(&self) -> &Path {
        match &self.image.from {
            Some(image) => Path::new(image),
            None => Path::new(&self.program[0]),
        }
    }

    /// What the program gets as its arguments, or the function that is called of an image.
    pub(crate) fn arguments(&self) -> &[OsString] {
        match self.image.from {
            Some(_) => &self.program,
            None => &self.program[1..],
        }
    }
}

/// What happens to imported functions that nothing defines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum UnknownImports {
    /// Refuse the program
    #[default]
    Refuse,
    /// Run it; a call of such a function traps
    Trap,
}

/// A directory that a program may see.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DirectoryArgument {
    /// Where it is on this machine.
    pub(crate) host: PathBuf,
    /// What the program calls it.
    pub(crate) guest: String,
    /// What the program may do in it.
    pub(crate) permissions: Permissions,
}

pub(super) fn directory(text: &str) -> Result<DirectoryArgument, String> {
    // A colon in HOST alone is part of its name.
    let (host, guest, permissions) = match text.split_once("::") {
        None => (text, text, Permissions::ReadWrite),
        Some((host, guest)) => match guest.rsplit_once(':') {
            Some((guest, "ro")) => (host, guest, Permissions::ReadOnly),
            Some((guest, "rw")) => (host, guest, Permissions::ReadWrite),
            Some((_, word)) if !word.contains('/') => {
                return Err(format!(
                    "`{word}` is neither `ro` nor `rw`; if the name ends so, give the directory \
                     as {text}:rw"
                ));
            }
            _ => (host, guest, Permissions::ReadWrite),
        },
    };
    if host.is_empty() || guest.is_empty() {
        return Err("give the directory as HOST, HOST::GUEST or HOST::GUEST:ro".to_owned());
    }
    Ok(DirectoryArgument { host: host.into(), guest: guest.to_owned(), permissions })
}

fn session_directory(text: &str) -> Result<DirectoryArgument, String> {
    let (host, guest) = text.split_once("::").unwrap_or((text, text));
    if host.is_empty() || guest.is_empty() {
        return Err("give the directory as HOST or HOST::GUEST".to_owned());
    }
    let (host, guest) = (host.into(), guest.to_owned());
    Ok(DirectoryArgument { host, guest, permissions: Permissions::ReadWrite })
}

pub(super) fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) => Err("a variable needs a name".to_owned()),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => match std::env::var(text) {
            Ok(value) => Ok((text.to_owned(), value)),
            Err(_) => {
                Err(format!("this process has no variable {text}; give its value as {text}=VALUE"))
            }
        },
    }
}

pub(super) fn time(text: &str) -> Result<Duration, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        _ => return Err("give a time as a whole number and a unit: 500ms, 10s, 2m".to_owned()),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(milliseconds))
        .map(Duration::from_millis)
        .ok_or_else(|| "this is no time; give one like 500ms, 10s or 2m".to_owned())
}

pub(super) fn size(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err("give a size as a whole number and a unit: 64KiB, 256MiB, 1GiB".to_owned()),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| "this is no size; give one like 64KiB, 256MiB or 1GiB".to_owned())
}
