//! Arguments of the commands that capture programs and go on with them.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use pagefork::DeltaTracker;

use super::common::{
    ComingArguments, EnvironmentArguments, HolderArgument, ProgramArguments, SessionArguments,
    StoreArguments, UnknownImports, holder, time,
};

#[derive(Args)]
#[command(
    override_usage = "pagefork snapshot [OPTIONS] FILE [ARGUMENTS]...",
    after_help = "The image is signed with the user's key, which is made when it is first needed. Its hash is \
                  printed on standard error; give it a name, since images without one are removed by \
                  `pagefork image gc`."
)]
pub(crate) struct SnapshotArguments {
    /// Where the program is captured: at its first read of standard input or where it calls
    /// `pagefork.snapshot`; `call:FUNCTION` or `call:FUNCTION:N`, before it calls a function of WASI
    /// for the Nth time; `export:FUNCTION`, after this was called instead of the program; `time:2s`,
    /// when it has run this long
    #[arg(long, value_name = "POINT", value_parser = point, default_value = "read")]
    pub(crate) at: SnapshotPoint,

    /// The name by which the image is found again; of several, the last one
    #[arg(short = 'o', long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    // Each image is the parent of the next, and a chain has at most 64.
    /// Capture the program this often, each time that it comes to POINT: each image has what has
    /// changed since the one before
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=50))]
    pub(crate) count: u32,

    /// Say in the image that this node or object store (`file:///DIRECTORY`) will have it, too: a node that is known, or
    /// a node key as `node init` prints it. Who starts the image and loses the node it comes from asks there, if it knows
    /// it. Can be given up to 16 times
    #[arg(long = "holder", value_name = "NODE|KEY|URL", value_parser = holder)]
    pub(crate) holders: Vec<HolderArgument>,

    /// How the pages are found that were written between two images: `writes` has the kernel note them
    /// and reads no others, `protect` makes pages read-only and notes who writes to them, `fault`
    /// write-protects them by userfaultfd for that, `compare` looks at all that the program has ever written, `off` compares each image with what the program began as
    #[arg(long, value_name = "TRACKER", value_parser = tracker, default_value = "writes")]
    pub(crate) deltas: DeltaTracker,

    #[command(flatten)]
    pub(crate) environment: EnvironmentArguments,

    #[command(flatten)]
    pub(crate) session: SessionArguments,

    /// What to do about imported functions that the command does not define
    #[arg(long, value_name = "ACTION", value_enum, default_value_t)]
    pub(crate) unknown_imports: UnknownImports,

    #[command(flatten)]
    pub(crate) program: ProgramArguments,
}

/// Where a program is captured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SnapshotPoint {
    Read,
    /// Before it calls a function of WASI; the first time is 1.
    Call {
        function: String,
        calls: u64,
    },
    /// After this was called.
    Export(String),
    Time(Duration),
}

#[derive(Args)]
#[command(override_usage = "pagefork restore [OPTIONS] IMAGE [ARGUMENTS]...")]
pub(crate) struct RestoreArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,

    #[command(flatten)]
    pub(crate) coming: ComingArguments,

    #[command(flatten)]
    pub(crate) environment: EnvironmentArguments,

    /// Call this exported function with ARGUMENTS, if no program is running in the image
    #[arg(long, value_name = "FUNCTION")]
    pub(crate) invoke: Option<String>,

    /// End the program with a trap when it has run this long: 500ms, 10s, 2m
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) timeout: Option<Duration>,

    /// The image: its name, its hash, or four or more of the hash's first digits; NODE/IMAGE fetches it
    /// from another node
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,

    /// What the function takes
    #[arg(value_name = "ARGUMENTS", trailing_var_arg = true)]
    pub(crate) arguments: Vec<OsString>,
}

fn tracker(text: &str) -> Result<DeltaTracker, String> {
    let named = DeltaTracker::ALL.into_iter().find(|tracker| tracker.to_string() == text);
    named.ok_or_else(|| {
        format!(
            "give a tracker: {}",
            DeltaTracker::ALL.map(|tracker| tracker.to_string()).join(", ")
        )
    })
}

fn point(text: &str) -> Result<SnapshotPoint, String> {
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    match (kind, rest) {
        ("read", "") => Ok(SnapshotPoint::Read),
        ("export", name) if !name.is_empty() => Ok(SnapshotPoint::Export(name.to_owned())),
        ("time", text) => time(text).map(SnapshotPoint::Time),
        ("call", rest) if !rest.is_empty() => {
            let (function, calls) = match rest.split_once(':') {
                None => (rest, Some(1)),
                Some((function, number)) => (function, number.parse().ok().filter(|n| *n > 0)),
            };
            let calls = calls.ok_or("a call has a number, from 1: call:fd_write:3")?;
            Ok(SnapshotPoint::Call { function: function.to_owned(), calls })
        }
        _ => Err("give the point as read, call:FUNCTION, export:FUNCTION or time:2s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_read() {
        let call = |function: &str, calls| SnapshotPoint::Call { function: function.into(), calls };
        for (text, expected) in [
            ("read", SnapshotPoint::Read),
            ("call:fd_write", call("fd_write", 1)),
            ("call:poll_oneoff:20", call("poll_oneoff", 20)),
            ("export:a:b", SnapshotPoint::Export("a:b".into())),
            ("time:2s", SnapshotPoint::Time(Duration::from_secs(2))),
        ] {
            assert_eq!(point(text).as_ref(), Ok(&expected), "{text}");
        }
        for text in ["", "read:1", "call", "call:", "call:fd_write:0", "export:", "time:2", "x"] {
            assert!(point(text).is_err(), "{text}");
        }
    }
}
