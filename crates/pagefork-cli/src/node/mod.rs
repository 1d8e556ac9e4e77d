//! `pagefork node`: serves images to other nodes and runs programs for them, and knows those that
//! do so.

/// Who else has an image.
pub(crate) mod holders;
/// What is known of other nodes.
mod known;
/// A node that runs programs.
mod run;
/// Programs at nodes.
mod programs;
/// Tokens for images.
mod tokens;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use pagefork::image::{ImageStore, PublicKey, SecretKey, StoredImage, TrustedKeys};
use pagefork_node::{
    FoundImage, MemoryPeer, MemoryServer, NodeAddress, NodeError, NodeTimes, PageTimes, ServeEvent,
    ServeOptions, StartEvent, StartOptions, ThreadClock, fetch_image, start_image,
};
use pagefork_postcopy::FetchPlan;

use crate::arguments::{
    ComingArguments, FetchLayer, MigrateArguments, NodeAction, NodeArguments, TrustArguments,
};
use crate::captured::{self, NamedImage, keys};
use crate::{output, show};
use known::{KnownNode, KnownNodes};

/// Runs one of the commands.
pub(crate) fn node(arguments: &NodeArguments) -> Result<ExitCode, String> {
    match &arguments.action {
        NodeAction::Init => init(),
        NodeAction::Trust(arguments) => trust(arguments),
        NodeAction::Ls => ls(),
        NodeAction::Forget { name } => KnownNodes::change(|nodes| nodes.remove(name)),
        NodeAction::Grant(arguments) => tokens::grant(arguments),
        NodeAction::Serve { addr, tokens, store } => {
            return serve(addr, tokens.tokens, store.store.as_deref());
        }
        NodeAction::Run(arguments) => return run::run(arguments),
        NodeAction::Start(arguments) => return programs::start(arguments),
        NodeAction::Ps { node } => programs::list(node.as_deref()),
        NodeAction::Attach { program, lost } => return programs::attach(program, lost),
        NodeAction::Snapshot(arguments) => programs::snapshot(arguments),
        NodeAction::Stop { program } => programs::stop(program),
        NodeAction::Reclaim { program } => programs::reclaim(program),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Moves a program.
pub(crate) fn migrate(arguments: &MigrateArguments) -> Result<ExitCode, String> {
    programs::migrate(arguments).map(|()| ExitCode::SUCCESS)
}

/// The image that a node has under a name, in `images`, where it is put if it is not there.
pub(crate) fn fetch(node: &str, image: &str, images: &ImageStore) -> Result<NamedImage, String> {
    let (peer, own, signers) = source(node)?;
    fetch_image(&peer, &own, image, images, &signers, &NodeTimes::default())
        .map(here)
        .map_err(|error| format!("{node}/{image}: {error}"))
}

/// The same, without waiting for its pages, which come while programs run.
pub(crate) fn start(
    node: &str,
    image: &str,
    images: &ImageStore,
    arguments: &ComingArguments,
) -> Result<NamedImage, String> {
    let began = ThreadClock::start();
    let (peer, own, signers) = source(node)?;
    let others = holders::to_be_asked(&arguments.from_also, arguments.node_timeout)?;
    let name = format!("{node}/{image}");
    let observed = name.clone();
    let observe = move |event: &StartEvent<'_>| match event {
        StartEvent::Lost { error, .. } => output::say(format_args!("{observed}: {error}")),
        StartEvent::NotKept { error, .. } => {
            output::say(format_args!("{observed} is here and not kept: {error}"));
        }
        StartEvent::Elsewhere { error, holder, .. } => {
            output::say(format_args!("{observed}: {error}; {holder} is asked from now on"));
        }
        StartEvent::NotAsked { holder, why, .. } => {
            output::say(format_args!("{observed}: it names {holder}, which is not asked: {why}"));
        }
        _ => {}
    };
    let times = PageTimes { lost: arguments.node_timeout, ..PageTimes::default() };
    let plan = FetchPlan {
        certain: arguments.has(FetchLayer::Certain),
        stride: arguments.has(FetchLayer::Stride),
        background: arguments.has(FetchLayer::Background),
        ..FetchPlan::default()
    };
    let recall = arguments.has(FetchLayer::Recorded);
    let observe = Arc::new(observe);
    let token = arguments.token.as_deref().map_or(Ok(Vec::new()), tokens::read)?;
    let known = holders::known(others.clone());
    let options = StartOptions { plan, times, others, recall, token, observe, ..<_>::default() };
    // By who loads it.
    let options = StartOptions { compiles: true, holders: Some(known.clone()), ..options };
    match start_image(&peer, &own, image, images, &signers, &options) {
        Ok(FoundImage::Here(image)) => {
            if arguments.report {
                let time = began.spent().wall.as_secs_f64() * 1e3;
                output::say(format_args!("{name}: all of it is in the store, after {time:.2} ms"));
            }
            Ok(here(image))
        }
        Ok(FoundImage::Coming(coming)) => {
            let guests = arguments.report.then(|| coming.guests().clone());
            let (loaded, compiled) = (None, None);
            Ok(NamedImage::Coming { name, known, coming, began, loaded, compiled, guests })
        }
        Err(error) => Err(format!("{name}: {error}")),
    }
}

fn here(image: StoredImage) -> NamedImage {
    NamedImage::Here { hash: image.hash(), held: Some(image) }
}

/// A node that images come from, this node's key, and who is trusted.
fn source(node: &str) -> Result<(MemoryPeer, SecretKey, TrustedKeys), String> {
    let nodes = KnownNodes::read()?;
    let known = nodes.find(node)?;
    let address = known.address.clone().ok_or_else(|| {
        format!("nothing is fetched from node {node}: say where it is by `pagefork node trust --address`")
    })?;
    let peer = MemoryPeer { address, key: known.key };
    Ok((peer, keys::of_node()?, keys::trusted()?))
}

fn init() -> Result<(), String> {
    let (node, images) = (keys::of_node()?.public(), keys::own()?.public());
    output::print(format!("node key {node}\nimage key {images}\n"))
}

fn trust(arguments: &TrustArguments) -> Result<(), String> {
    let TrustArguments { name, key, address, serve, run, signer } = arguments;
    let (address, may_fetch, may_run) = (address.clone(), *serve, *run);
    let node = KnownNode { key: *key, address, may_fetch, may_run };
    KnownNodes::change(|nodes| nodes.insert(name, node))?;
    // Last: a name that is refused is to change nothing.
    signer.map_or(Ok(()), keys::trust)
}

fn ls() -> Result<(), String> {
    let nodes = KnownNodes::read()?;
    let titles = ["node", "key", "address", "may fetch", "may run programs"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    for (name, node) in nodes.iter() {
        let address = node.address.clone().unwrap_or_default();
        let (key, may) = (node.key.to_string(), [node.may_fetch, node.may_run].map(yes));
        rows.push([vec![name.to_owned(), key, address], may.to_vec()].concat());
    }
    output::print(show::table(&rows, &[]))
}

fn serve(
    addresses: &[NodeAddress],
    takes_tokens: bool,
    store: Option<&Path>,
) -> Result<ExitCode, String> {
    let images = captured::open(store)?;
    listen(addresses, images, serve_options(takes_tokens)?, "images are served")
}

/// Serves at all of these addresses, and says where `what` is done.
fn listen(
    addresses: &[NodeAddress],
    images: ImageStore,
    options: ServeOptions,
    what: &str,
) -> Result<ExitCode, String> {
    let said = |error: NodeError| error.to_string();
    let (first, others) = addresses.split_first().ok_or("give an address to listen at")?;
    let mut server = MemoryServer::bind(first, images, options).map_err(said)?;
    output::say(format!("{what} at {}", server.address()));
    for other in others {
        let address = server.listen_at(other).map_err(said)?;
        output::say(format!("{what} at {address}"));
    }
    server.run()
}

/// How images are served to the nodes that may have them, those with tokens of this node among them if
/// it `takes_tokens`.
fn serve_options(takes_tokens: bool) -> Result<ServeOptions, String> {
    let key = keys::of_node()?;
    let issuer = takes_tokens.then(|| key.public());
    let mut options = ServeOptions::new(key);
    options.issuers = TrustedKeys::from_iter(issuer);
    // A node that is known, or not any more, while this one serves, counts at its next connection.
    options.access = Arc::new(|key| match KnownNodes::read() {
        Ok(nodes) => nodes.may_fetch(key),
        Err(error) => {
            output::say(error);
            false
        }
    });
    options.observe = Arc::new(|event| output::say(happened(event)));
    // An unreadable list is an error now, not at the first connection.
    KnownNodes::read()?;
    Ok(options)
}

fn happened(event: &ServeEvent) -> String {
    match event {
        ServeEvent::Sent { peer, image } => format!("{} has image {image} now", named(peer)),
        ServeEvent::Failed { address, error } => format!("a connection of {address}: {error}"),
        ServeEvent::TooMany { address } => {
            format!("a connection of {address} was closed: there are too many at once")
        }
        ServeEvent::NotAccepted(error) => format!("cannot take a connection: {error}"),
        other => format!("{other:?}"),
    }
}

fn named(peer: &PublicKey) -> String {
    let known = KnownNodes::read().ok().and_then(|nodes| Some(nodes.name_of(peer)?.to_owned()));
    known.unwrap_or_else(|| peer.to_string())
}
