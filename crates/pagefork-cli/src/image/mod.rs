//! `pagefork image`: what is in a store of images, and what goes in and out.

/// Pages, drawn.
mod page_map;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::path::Path;
use std::process::ExitCode;

use pagefork::image::{
    ContentHash, FileBytes, ImageChain, ImageError, ImageStore, PAGE_SIZE, PublicKey, StoredImage,
};

use crate::arguments::{self, ImageAction, ImageArguments};
use crate::captured::{self, keys};
use crate::node::holders;
use crate::{output, show};

/// Digits of a hash in lists: enough to tell images apart, and to name one.
const DIGITS: usize = 16;

/// Runs one of the commands.
pub(crate) fn image(arguments: &ImageArguments) -> Result<ExitCode, String> {
    if let ImageAction::Key { trust } = &arguments.action {
        return key(*trust);
    }
    let store = captured::open(arguments.store.as_deref())?;
    match &arguments.action {
        ImageAction::Ls => ls(&store),
        ImageAction::Inspect { image } => inspect(&store, image),
        ImageAction::Diff { image, other } => diff(&store, image, other),
        ImageAction::Squash { image, name } => squash(&store, image, name.as_deref()),
        ImageAction::Sign { image } => {
            store.sign(store.find(image).map_err(text)?, &[keys::own()?]).map_err(text)
        }
        ImageAction::Name { image, name } => {
            store.set_name(name, store.find(image).map_err(text)?).map_err(text)
        }
        ImageAction::Rm { images } => rm(&store, images),
        ImageAction::Gc => gc(&store),
        ImageAction::Push { images, output, level } => push(&store, images, output, *level),
        ImageAction::Pull { file, name } => pull(&store, file, name.as_deref()),
        ImageAction::Verify { images } => return verify(&store, images),
        ImageAction::Key { .. } => Ok(()),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn text(error: ImageError) -> String {
    error.to_string()
}

fn short(hash: ContentHash) -> String {
    hash.to_string()[..DIGITS].to_owned()
}

fn find(store: &ImageStore, image: &str) -> Result<StoredImage, String> {
    store.find(image).and_then(|hash| store.load(hash)).map_err(text)
}

/// The names of each image.
fn names(store: &ImageStore) -> Result<BTreeMap<ContentHash, Vec<String>>, String> {
    let mut names = BTreeMap::<_, Vec<String>>::new();
    for (name, hash) in store.names().map_err(text)? {
        names.entry(hash).or_default().push(name);
    }
    Ok(names)
}

fn ls(store: &ImageStore) -> Result<(), String> {
    let names = names(store)?;
    let heading = ["image", "data", "instances", "kind", "names"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for hash in store.images().map_err(text)? {
        let image = match store.load(hash) {
            Ok(image) => image,
            // It was collected meanwhile.
            Err(ImageError::NotFound { .. }) => continue,
            Err(error) => {
                rows.push(vec![short(hash), String::new(), String::new(), text(error)]);
                continue;
            }
        };
        let manifest = image.chain().tip().manifest();
        let mut kind = match manifest.parent {
            Some(parent) => format!("delta of {}", short(parent)),
            None => "full".to_owned(),
        };
        if manifest.has_live_frames() {
            kind += ", running";
        }
        rows.push(vec![
            short(hash),
            show::size(manifest.data_size),
            manifest.instances.len().to_string(),
            kind,
            names.get(&hash).map_or(String::new(), |names| names.join(" ")),
        ]);
    }
    output::print(show::table(&rows, &[1, 2]))
}

fn inspect(store: &ImageStore, image: &str) -> Result<(), String> {
    let image = find(store, image)?;
    let (chain, tip) = (image.chain(), image.chain().tip());
    let manifest = tip.manifest();
    let mut rows = vec![("image", tip.hash().to_string())];
    rows.extend(names(store)?.remove(&tip.hash()).map(|names| ("names", names.join(" "))));
    rows.push((
        "file",
        format!("{}, {} of pages", show::size(tip.size()), show::size(manifest.data_size)),
    ));
    rows.extend(
        chain.images().iter().skip(1).map(|parent| ("delta of", parent.hash().to_string())),
    );
    let signers = tip.signers().iter().map(|key| ("signed by", key.to_string()));
    rows.extend(signers);
    rows.extend(manifest.holders.iter().map(|holder| ("held by", holders::shown(holder))));
    if let Some(suspended) = &manifest.suspension {
        let (stack, words) = (suspended.stack.len() as u64, suspended.frames.len() as u64);
        rows.push((
            "running",
            format!(
                "instance {}, {} of stack, {}",
                suspended.ordinal,
                show::size(stack),
                show::count(words, "address").replace("addresss", "addresses"),
            ),
        ));
    }
    if !manifest.wasi.is_empty() {
        rows.push(("state", show::size(manifest.wasi.len() as u64)));
    }
    for function in &manifest.host_functions {
        let name = format!("{} {}", show::name(&function.module), show::name(&function.name));
        rows.push(("needs", name));
    }
    for attachment in &manifest.attachments {
        let name = format!("{}, {}", show::name(&attachment.name), show::size(attachment.size));
        rows.push(("file of it", name));
    }
    let rows: Vec<_> = rows.into_iter().map(|(what, is)| vec![what.to_owned(), is]).collect();
    let mut report = show::table(&rows, &[]);
    for (index, instance) in manifest.instances.iter().enumerate() {
        let memories: Vec<_> = instance.memory_sizes.iter().map(|size| show::size(*size)).collect();
        let name = match instance.name.is_empty() {
            true => String::new(),
            false => format!(" {}", show::name(&instance.name)),
        };
        report += &format!("\ninstance {}{name}, memories: {}\n", index + 1, memories.join(", "));
        report +=
            &format!("  module {}, code {}\n", short(instance.module), short(instance.code.hash));
        report += &page_map::contents(chain, index).map_err(text)?;
    }
    output::print(report)
}

fn diff(store: &ImageStore, image: &str, other: &str) -> Result<(), String> {
    let (image, other) = (find(store, image)?, find(store, other)?);
    let count = |chain: &ImageChain| chain.tip().manifest().instances.len();
    let (ours, theirs) = (count(image.chain()), count(other.chain()));
    let mut report = String::new();
    for index in 0..ours.min(theirs) {
        let ranges = image.chain().differing(index, other.chain(), index).map_err(text)?;
        let pages: u64 = ranges.iter().map(|range| (range.end - range.start) / PAGE_SIZE).sum();
        let pages = show::count(pages, "page");
        report += &format!("instance {}: {pages} differ\n", index + 1);
        report += &page_map::differences(image.chain(), other.chain(), index, &ranges);
    }
    if ours != theirs {
        let (ours, theirs) = (show::count(ours as u64, "instance"), theirs);
        report += &format!("one has {ours}, the other {theirs}\n");
    }
    output::print(report)
}

fn squash(store: &ImageStore, image: &str, name: Option<&str>) -> Result<(), String> {
    let hash = store.find(image).map_err(text)?;
    let tip = store.load(hash).map_err(text)?.chain().tip().clone();
    // Whoever may go on with the one may go on with the other, and nobody else.
    let signers = match tip.manifest().has_live_frames() {
        true if tip.check_trust(&keys::trusted()?).is_ok() => vec![keys::own()?],
        true => {
            output::say("the new image is not signed, because the old one is not trusted");
            Vec::new()
        }
        false => Vec::new(),
    };
    let squashed = store.squash(hash, &signers).map_err(text)?;
    let is_name = |image: &str| store.names().map(|names| names.contains_key(image)).map_err(text);
    match name {
        Some(name) => store.set_name(name, squashed.hash()).map_err(text)?,
        None if is_name(image)? => store.set_name(image, squashed.hash()).map_err(text)?,
        None => output::say("the new image has no name: `gc` removes it"),
    }
    output::print(format!("{}\n", squashed.hash()))
}

fn rm(store: &ImageStore, images: &[String]) -> Result<(), String> {
    for image in images {
        if store.names().map_err(text)?.contains_key(image) {
            store.remove_name(image).map_err(text)?;
            continue;
        }
        let hash = store.find(image).map_err(text)?;
        for name in names(store)?.remove(&hash).unwrap_or_default() {
            store.remove_name(&name).map_err(text)?;
        }
    }
    Ok(())
}

fn gc(store: &ImageStore) -> Result<(), String> {
    let report = store.collect().map_err(text)?;
    for (hash, why) in &report.damaged {
        output::say(format_args!("image {hash} stays, and cannot be read: {why}"));
    }
    let mut line = format!(
        "{} and {} removed, {}",
        show::count(report.images.len() as u64, "image"),
        show::count(report.code.len() as u64, "code image"),
        show::size(report.bytes),
    );
    if !report.in_use.is_empty() {
        let in_use = show::count(report.in_use.len() as u64, "image");
        line += &format!("; {in_use} without a name in use");
    }
    output::print(line + "\n")
}

fn push(store: &ImageStore, images: &[String], file: &Path, level: i32) -> Result<(), String> {
    let hashes: Vec<_> =
        images.iter().map(|image| store.find(image).map_err(text)).collect::<Result<_, _>>()?;
    if arguments::is_stdin(file) {
        let out = BufWriter::new(io::stdout().lock());
        return store.export(&hashes, out, level).map(drop).map_err(text);
    }
    // Where it is, a reader would find half of it.
    let unfinished = file.with_extension("unfinished");
    let failed = |error: io::Error| format!("cannot write {}: {error}", file.display());
    let write = || {
        let out = BufWriter::new(File::create(&unfinished).map_err(failed)?);
        let out = store.export(&hashes, out, level).map_err(text)?;
        let out = out.into_inner().map_err(|error| failed(error.into_error()))?;
        out.sync_all().map_err(failed)?;
        std::fs::rename(&unfinished, file).map_err(failed)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&unfinished)))
}

fn pull(store: &ImageStore, file: &Path, name: Option<&str>) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot read {}: {error}", file.display());
    let received = if arguments::is_stdin(file) {
        store.import(io::stdin().lock()).map_err(text)?
    } else {
        let bytes = FileBytes::new(File::open(file).map_err(failed)?);
        // An image file, or else a stream.
        match store.adopt(bytes) {
            Ok(image) => vec![image],
            Err(ImageError::NotAnImage | ImageError::Damaged(_)) => {
                let input = BufReader::new(File::open(file).map_err(failed)?);
                store.import(input).map_err(text)?
            }
            Err(error) => return Err(text(error)),
        }
    };
    match (name, received.last()) {
        (Some(name), Some(last)) => store.set_name(name, last.hash()).map_err(text)?,
        (Some(_), None) => return Err("there is no image in it to give the name to".to_owned()),
        (None, _) => output::say("what was taken in has no name: `gc` removes it"),
    }
    output::print(received.iter().map(|image| format!("{}\n", image.hash())).collect::<String>())
}

fn verify(store: &ImageStore, images: &[String]) -> Result<ExitCode, String> {
    let mut code = Vec::new();
    let hashes: Vec<_> = match images {
        [] => {
            code = store.codes().map_err(text)?;
            store.images().map_err(text)?
        }
        images => {
            images.iter().map(|image| store.find(image).map_err(text)).collect::<Result<_, _>>()?
        }
    };
    let mut is_whole = true;
    let images = hashes.into_iter().map(|hash| (hash, store.verify(hash)));
    let code = code.into_iter().map(|hash| (hash, store.verify_code(hash)));
    for (hash, result) in images.chain(code) {
        if let Err(error) = result {
            is_whole = false;
            output::say(format_args!("{hash}: {error}"));
        }
    }
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the user's public key, or trusts another one.
fn key(trust: Option<PublicKey>) -> Result<ExitCode, String> {
    match trust {
        Some(key) => keys::trust(key)?,
        None => output::print(format!("{}\n", keys::own()?.public()))?,
    }
    Ok(ExitCode::SUCCESS)
}
