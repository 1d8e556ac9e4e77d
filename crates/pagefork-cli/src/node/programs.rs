//! Programs at nodes: they are started, listed, attached to and stopped.

use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use pagefork::image::{PublicKey, SecretKey};
use pagefork_node::{
    AttachStreams, CaptureOptions, MemoryPeer, MigrateOptions, NodeError, NodeTimes, PageTimes,
    ProgramClient, ProgramEnd, ProgramPhase, ProgramSource, ProgramStart, SecondPlace,
    attach_program,
};

use super::known::KnownNodes;
use crate::arguments::{
    LostArguments, MigrateArguments, NodeSnapshotArguments, NodeStartArguments, SecondArgument,
};
use crate::captured::keys;
use crate::program;
use crate::{output, run, show};

/// Where the user's own node is, unless it is known otherwise.
const OWN_ADDRESS: &str = "127.0.0.1:7410";

/// Starts a program, and goes on as its client. The exit code is the program's.
pub(super) fn start(arguments: &NodeStartArguments) -> Result<ExitCode, String> {
    let (source, name) = match &arguments.from {
        Some(image) => {
            let name = image.rsplit('/').next().unwrap_or_default();
            (ProgramSource::Image(image.clone()), name.to_owned())
        }
        None => {
            let file = Path::new(&arguments.program[0]);
            let stem = file.file_stem().unwrap_or_default().to_string_lossy();
            // A name has no other letters.
            let is_good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            let name = stem.replace(|c: char| !is_good(c), "-");
            (
                ProgramSource::Module(program::read(file)?),
                name.trim_start_matches(['-', '.', '_']).to_owned(),
            )
        }
    };
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None if name.is_empty() => "program".to_owned(),
        None => name,
    };
    let mut start = ProgramStart::new(name, source);
    start.arguments = arguments.program.iter().map(|word| word.as_bytes().to_vec()).collect();
    let variables = arguments.variables.iter().map(|(name, value)| format!("{name}={value}"));
    start.variables = variables.map(String::into_bytes).collect();
    start.directories.clone_from(&arguments.directories);
    start.sessions.clone_from(&arguments.sessions);
    start.timeout = arguments.timeout;

    let node = Some(&arguments.node[..]).filter(|node| *node != "-");
    let reached = ReachedNode::find(node)?;
    let id = reached.client()?.start(&start).map_err(|error| reached.failed(&error))?;
    if arguments.detach {
        output::print(format!("{id}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    reached.attach(&id.to_string(), &arguments.lost)
}

/// Lists the programs of a node.
pub(super) fn list(node: Option<&str>) -> Result<(), String> {
    let reached = ReachedNode::find(node)?;
    let programs = reached.client()?.programs().map_err(|error| reached.failed(&error))?;
    let nodes = KnownNodes::read()?;
    let named = |key: &[u8; 32]| {
        let key = PublicKey::from_bytes(*key);
        nodes.name_of(&key).map_or_else(|| key.to_string(), str::to_owned)
    };
    let mut rows = vec![["program", "name", "state", "attached"].map(str::to_owned).to_vec()];
    for program in programs {
        let state = match &program.phase {
            ProgramPhase::Running => "runs".to_owned(),
            ProgramPhase::Moving { to } => format!("runs, and moves to {}", named(to)),
            ProgramPhase::HandedOver { to } => {
                format!("handed over to {}, which has not answered yet", named(to))
            }
            ProgramPhase::Declined { to, why } => format!("declined by {}: {why}", named(to)),
            ProgramPhase::Moved { to } => {
                let kept = program.kept.map(|kept| format!("; its second place was sent {kept}"));
                format!("is at {}{}", named(to), kept.unwrap_or_default())
            }
            ProgramPhase::Lost(why) => format!("lost: {why}"),
            ProgramPhase::Ended(ProgramEnd::Exited(code)) => format!("exit code {code}"),
            ProgramPhase::Ended(ProgramEnd::Stopped(why)) => format!("stopped: {why}"),
            ProgramPhase::Ended(ProgramEnd::Failed(why)) => {
                format!("failed: {}", why.lines().next().unwrap_or_default())
            }
        };
        let attached = if program.is_attached { "yes" } else { "no" };
        let name = show::name(&program.name);
        rows.push(vec![program.id.to_string(), name, show::name(&state), attached.to_owned()]);
    }
    output::print(show::table(&rows, &[]))
}

/// Goes on as a program's client. The exit code is the program's.
pub(super) fn attach(program: &str, lost: &LostArguments) -> Result<ExitCode, String> {
    let (reached, program) = ReachedNode::of_program(program)?;
    reached.attach(program, lost)
}

/// Stops a program.
pub(super) fn stop(program: &str) -> Result<(), String> {
    let (reached, program) = ReachedNode::of_program(program)?;
    reached.client()?.stop(program).map_err(|error| reached.failed(&error))
}

/// Makes an image of a program that runs on.
pub(super) fn snapshot(arguments: &NodeSnapshotArguments) -> Result<(), String> {
    let NodeSnapshotArguments { name, holders, patience, report, program } = arguments;
    let (reached, program) = ReachedNode::of_program(program)?;
    let holders = super::holders::to_be_named(holders)?;
    let options = CaptureOptions { name: name.clone(), patience: *patience, holders };
    let captured = reached.client()?.snapshot(program, &options);
    let captured = captured.map_err(|error| reached.failed(&error))?;
    if *report {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        output::say(format_args!(
            "{program} rested {:.1} ms; its image of {} bytes was saved in {:.1} ms",
            ms(captured.rested),
            captured.size,
            ms(captured.saving),
        ));
    }
    output::print(format!("{}\n", captured.image))
}

/// Moves a program to another node.
pub(super) fn migrate(arguments: &MigrateArguments) -> Result<(), String> {
    let MigrateArguments { rounds, patience, second, report, program, node } = arguments;
    let nodes = KnownNodes::read()?;
    let to = nodes.find(node)?.key;
    let second = match second {
        None => None,
        Some(SecondArgument::Node(name)) => Some(SecondPlace::Node(nodes.find(name)?.key)),
        Some(SecondArgument::Objects(url)) => Some(SecondPlace::Objects(url.to_string())),
        Some(SecondArgument::Nowhere) => Some(SecondPlace::Nowhere),
    };
    let (reached, program) = ReachedNode::of_program(program)?;
    let options = MigrateOptions { rounds: *rounds, patience: *patience, second };
    let moved = reached.client()?.migrate(program, to, options);
    let moved = moved.map_err(|error| reached.failed(&error))?;
    if *report {
        output::say(format_args!("{program} is at {node}: {moved}"));
        if let Some(kept) = moved.kept {
            output::say(format_args!("{program}: {kept} are at its second place"));
        }
    }
    if *rounds == 0 && !moved.is_kept {
        output::say(format_args!(
            "{program} goes on at {node}, and its pages follow: until they are there, it is lost if \
             {} is (`--second` has another node or an object store get them, too)",
            reached.name
        ));
    }
    Ok(())
}

/// Has a program go on that was handed over.
pub(super) fn reclaim(program: &str) -> Result<(), String> {
    let (reached, program) = ReachedNode::of_program(program)?;
    reached.client()?.reclaim(program).map_err(|error| reached.failed(&error))
}

/// A node, as its clients reach it.
struct ReachedNode {
    name: String,
    peer: MemoryPeer,
    own: SecretKey,
}

impl ReachedNode {
    fn find(node: Option<&str>) -> Result<Self, String> {
        let own = keys::of_node()?;
        let Some(name) = node else {
            let peer = MemoryPeer { address: OWN_ADDRESS.to_owned(), key: own.public() };
            return Ok(Self { name: "the user's own node".to_owned(), peer, own });
        };
        let nodes = KnownNodes::read()?;
        let known = nodes.find(name)?;
        let address = known.address.clone().ok_or_else(|| {
            format!("where node {name} is is not known: say it by `pagefork node trust --address`")
        })?;
        let peer = MemoryPeer { address, key: known.key };
        Ok(Self { name: name.to_owned(), peer, own })
    }

    /// The node of a program, and what this is called there.
    fn of_program(program: &str) -> Result<(Self, &str), String> {
        let (node, program) = match program.split_once('/') {
            Some((node, program)) => (Some(node), program),
            None => (None, program),
        };
        Ok((Self::find(node)?, program))
    }

    fn client(&self) -> Result<ProgramClient, String> {
        let client = ProgramClient::connect(&self.peer, &self.own, &NodeTimes::default());
        client.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &dyn fmt::Display) -> String {
        format!("{}: {error}", self.name)
    }

    fn attach(&self, program: &str, lost: &LostArguments) -> Result<ExitCode, String> {
        let (mut stdout, mut stderr) = (io::stdout(), io::stderr());
        let streams =
            AttachStreams { input: Box::new(io::stdin()), outputs: [&mut stdout, &mut stderr] };
        let times = PageTimes { lost: lost.node_timeout, ..PageTimes::default() };
        let places = |key: &PublicKey| KnownNodes::read().ok()?.reached(key);
        match attach_program(&self.peer, &self.own, program, streams, &places, &times) {
            // As a shell has it: the low eight bits.
            Ok(ProgramEnd::Exited(code)) => Ok(ExitCode::from(code as u8)),
            Ok(ProgramEnd::Stopped(why)) => {
                output::say(format_args!("{program} was stopped: {why}"));
                Ok(ExitCode::from(run::TRAP_EXIT_CODE))
            }
            Ok(ProgramEnd::Failed(why)) => {
                output::say(format_args!("{program}: {why}"));
                Ok(ExitCode::from(run::TRAP_EXIT_CODE))
            }
            // Who reads has seen what it wanted.
            Err(NodeError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => Err(self.failed(&error)),
        }
    }
}
