//! `pagefork node run`: a node that runs programs.

use std::env;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use pagefork::image::{PublicKey, TrustedKeys};
use pagefork::{Cache, Config, DeltaTracker, StrategyConfig};
use pagefork_node::{
    ImagePlace, KnownPeers, MemoryPeer, NodeDirectory, PageTimes, ProgramLimits, ProgramNode,
    ProgramNodeOptions, StartEvent, StartOptions,
};
use pagefork_objects::{ObjectImages, ObjectSettings, ObjectUrl};

use super::known::KnownNodes;
use crate::arguments::NodeRunArguments;
use crate::captured::{self, keys, restore};
use crate::output;

/// Runs programs as long as this process lives.
pub(super) fn run(arguments: &NodeRunArguments) -> Result<ExitCode, String> {
    let images = captured::open(arguments.store.store.as_deref())?;
    let mut config = Config::new();
    config.cache(Cache::in_default_directory());
    // Programs that move are captured again and again.
    let deltas = DeltaTracker::Writes;
    config.strategies(StrategyConfig { deltas, ..StrategyConfig::default() });
    let engine = restore::engine(&config)?;
    let peers = Arc::new(UserPeers);
    let mut options =
        ProgramNodeOptions::new(engine, images.clone(), keys::of_node()?, peers, env::temp_dir());
    options.image_key = keys::own()?;
    // Of the node that has this key.
    options.records = keys::directory()?.join("moves");
    let known = arguments.directories.iter().map(|directory| NodeDirectory {
        host: directory.host.clone(),
        guest: directory.guest.clone(),
        permissions: directory.permissions,
    });
    options.directories = known.collect();
    for directory in &options.directories {
        let metadata = std::fs::metadata(&directory.host);
        let is_directory = metadata.map(|metadata| metadata.is_dir());
        let shown = directory.host.display();
        match is_directory {
            Ok(true) => {}
            Ok(false) => return Err(format!("{shown} is no directory")),
            Err(error) => return Err(format!("cannot use the directory {shown}: {error}")),
        }
    }
    let places = arguments.places.iter().map(|url| place(url, arguments.lost.node_timeout));
    options.places = places.collect::<Result<_, _>>()?;
    if let Some(name) = &arguments.second {
        options.second = Some(KnownNodes::read()?.find(name)?.key);
    }
    let NodeRunArguments { programs, memory, timeout, .. } = *arguments;
    options.limits = ProgramLimits { programs, memory, timeout, ..ProgramLimits::default() };
    let times = PageTimes { lost: arguments.lost.node_timeout, ..PageTimes::default() };
    let observe = |event: &StartEvent<'_>| match event {
        StartEvent::Lost { image, error } => output::say(format_args!("image {image}: {error}")),
        StartEvent::Elsewhere { image, error, holder } => {
            output::say(format_args!("image {image}: {error}; {holder} is asked from now on"))
        }
        StartEvent::NotAsked { image, holder, why } => {
            output::say(format_args!("image {image} names {holder}, which is not asked: {why}"));
        }
        StartEvent::NotKept { image, error } => {
            output::say(format_args!("image {image} is here and not kept: {error}"));
        }
        _ => {}
    };
    options.start = StartOptions { times, observe: Arc::new(observe), ..StartOptions::default() };
    options.say = Arc::new(|text| output::say(text));
    let mut serve = super::serve_options(arguments.tokens.tokens)?;
    serve.programs = Some(ProgramNode::new(options)?);
    super::listen(&arguments.addr, images, serve, "programs are run")
}

/// An object store, tried out.
pub(super) fn place(url: &ObjectUrl, patience: Duration) -> Result<ImagePlace, String> {
    // A service needs some time, however little a lost node gets.
    let timeout = patience.max(Duration::from_secs(1));
    let settings = ObjectSettings { timeout, ..ObjectSettings::default() };
    let opened = ObjectImages::at(url, settings);
    let opened = opened.and_then(|images| images.check().map(|()| images));
    let images = opened.map_err(|error| format!("cannot use the object store {url}: {error}"))?;
    Ok(ImagePlace { url: url.to_string(), images: Arc::new(images) })
}

/// What the user's files say. Who is known, or not any more, while the node runs counts at the next
/// question.
#[derive(Debug)]
struct UserPeers;

impl KnownPeers for UserPeers {
    fn may_run(&self, key: &PublicKey) -> bool {
        match KnownNodes::read() {
            Ok(nodes) => nodes.may_run(key),
            Err(error) => {
                output::say(error);
                false
            }
        }
    }

    fn named(&self, name: &str) -> Option<MemoryPeer> {
        let nodes = KnownNodes::read().ok()?;
        let known = nodes.find(name).ok()?;
        Some(MemoryPeer { address: known.address.clone()?, key: known.key })
    }

    fn with_key(&self, key: &PublicKey) -> Option<MemoryPeer> {
        KnownNodes::read().ok()?.reached(key)
    }

    fn signers(&self) -> Result<TrustedKeys, String> {
        keys::trusted()
    }
}
