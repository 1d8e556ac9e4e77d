//! The nodes that the user knows: a file with a line for each.
//!
//! ```text
//! edge 5f…09 address=edge.example:7410 serve run   # a remark
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use pagefork::image::{PublicKey, check_name};
use pagefork_node::{MemoryPeer, Transport};

use crate::captured::keys;

/// What is known of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KnownNode {
    pub(super) key: PublicKey,
    /// Where images are fetched from it, if they are.
    pub(super) address: Option<String>,
    /// Whether it may have images of this one.
    pub(super) may_fetch: bool,
    /// Whether it may have programs run by this one.
    pub(super) may_run: bool,
}

/// Nodes by their names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct KnownNodes(BTreeMap<String, KnownNode>);

impl KnownNodes {
    /// Those that the user knows.
    pub(super) fn read() -> Result<Self, String> {
        let path = path()?;
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text).map_err(|error| format!("{}, {error}", path.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(failed("read", &path, &error)),
        }
    }

    /// Changes what is known, all or nothing. Two changes at once are made one after the other.
    pub(super) fn change(
        change: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        // The directory is made with the key.
        keys::of_node()?;
        let path = path()?;
        let lock = path.with_extension("lock");
        let mut options = OpenOptions::new();
        let held = options.create(true).append(true).mode(0o600).open(&lock);
        let held = held.and_then(|file| file.lock().map(|()| file));
        let _held = held.map_err(|error| failed("lock", &lock, &error))?;
        let mut nodes = Self::read()?;
        change(&mut nodes)?;
        let unfinished = path.with_extension("unfinished");
        let mut options = OpenOptions::new();
        let written = options
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&unfinished)
            .and_then(|mut file| file.write_all(nodes.text().as_bytes()).and(file.sync_all()))
            .and_then(|()| fs::rename(&unfinished, &path))
            .and_then(|()| File::open(keys_directory(&path))?.sync_all());
        written.map_err(|error| failed("write", &path, &error))
    }

    /// The node of this name.
    pub(super) fn find(&self, name: &str) -> Result<&KnownNode, String> {
        self.0.get(name).ok_or_else(|| {
            format!("no node {name:?} is known: `pagefork node trust` makes one known")
        })
    }

    /// The key that somebody means: of the node of this name, or the key itself. No name looks like a key.
    pub(super) fn key_of(&self, text: &str) -> Result<PublicKey, String> {
        match text.parse() {
            Ok(key) => Ok(key),
            Err(_) => self.find(text).map(|node| node.key),
        }
    }

    pub(super) fn insert(&mut self, name: &str, node: KnownNode) -> Result<(), String> {
        check_name(name).map_err(|error| error.to_string())?;
        if let Some(address) = &node.address {
            check_address(address)?;
        }
        self.0.insert(name.to_owned(), node);
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) -> Result<(), String> {
        self.find(name)?;
        self.0.remove(name);
        Ok(())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &KnownNode)> {
        self.0.iter().map(|(name, node)| (name.as_str(), node))
    }

    /// Whether a node of this key may have images of this one.
    pub(super) fn may_fetch(&self, key: &PublicKey) -> bool {
        self.0.values().any(|node| node.key == *key && node.may_fetch)
    }

    /// Whether a node of this key may have programs run by this one.
    pub(super) fn may_run(&self, key: &PublicKey) -> bool {
        self.0.values().any(|node| node.key == *key && node.may_run)
    }

    /// Where the node with this key is.
    pub(super) fn reached(&self, key: &PublicKey) -> Option<MemoryPeer> {
        let mut known = self.0.values().filter(|node| node.key == *key);
        let address = known.find_map(|node| node.address.clone())?;
        Some(MemoryPeer { address, key: *key })
    }

    pub(super) fn name_of(&self, key: &PublicKey) -> Option<&str> {
        self.iter().find(|(_, node)| node.key == *key).map(|(name, _)| name)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut nodes = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let wrong = |what: String| format!("line {number}: {what}");
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(name) = words.next() else { continue };
            let key = words.next().ok_or_else(|| wrong("a node has a name and a key".into()))?;
            let key = key.parse().map_err(|error| wrong(format!("{error}")))?;
            let mut node = KnownNode { key, address: None, may_fetch: false, may_run: false };
            for word in words {
                match word.strip_prefix("address=") {
                    Some(address) => node.address = Some(address.to_owned()),
                    None if word == "serve" => node.may_fetch = true,
                    None if word == "run" => node.may_run = true,
                    None => return Err(wrong(format!("{word:?} means nothing here"))),
                }
            }
            if nodes.0.contains_key(name) {
                return Err(wrong(format!("node {name:?} was there before")));
            }
            nodes.insert(name, node).map_err(wrong)?;
        }
        Ok(nodes)
    }

    fn text(&self) -> String {
        let line = |(name, node): (&str, &KnownNode)| {
            let address = node.address.as_ref().map(|address| format!(" address={address}"));
            let serve = if node.may_fetch { " serve" } else { "" };
            let run = if node.may_run { " run" } else { "" };
            format!("{name} {}{}{serve}{run}\n", node.key, address.unwrap_or_default())
        };
        self.iter().map(line).collect()
    }
}

/// Checks that an address has a form that can be connected to; whether anything is there is seen then.
fn check_address(address: &str) -> Result<(), String> {
    let (_, place) = Transport::of(address);
    let port = place.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    let is_good = port.is_some_and(|(_, port)| port.parse::<u16>().is_ok())
        && !place.contains(|c: char| c.is_whitespace() || c.is_control() || "#/".contains(c));
    match is_good {
        true => Ok(()),
        false => {
            Err(format!("{address:?} is no address of a node: give HOST:PORT, or quic://HOST:PORT"))
        }
    }
}

fn path() -> Result<PathBuf, String> {
    Ok(keys::directory()?.join("nodes"))
}

fn keys_directory(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_nodes_is_read_as_it_was_written_and_refused_where_it_means_nothing() {
        let key = "0a".repeat(32);
        let mut nodes = KnownNodes::default();
        let node = |address: Option<&str>, may_fetch| KnownNode {
            key: key.parse().unwrap(),
            address: address.map(str::to_owned),
            may_fetch,
            may_run: !may_fetch,
        };
        nodes.insert("a", node(Some("[::1]:7410"), false)).unwrap();
        nodes.insert("b.c", node(None, true)).unwrap();
        nodes.insert("d", node(Some("quic://edge.example:7410"), true)).unwrap();
        assert_eq!(KnownNodes::parse(&nodes.text()), Ok(nodes.clone()));
        assert_eq!(KnownNodes::parse(&format!("\n{} # mine\n", nodes.text())), Ok(nodes));
        for (line, complaint) in [
            ("a".to_owned(), "a name and a key"),
            ("a 12".to_owned(), "no public key"),
            (format!("../a {key}"), "can be no name"),
            (format!("a {key} adress=x:1"), "means nothing here"),
            (format!("a {key} address=here"), "give HOST:PORT"),
            (format!("a {key} address=tcp://here:1"), "give HOST:PORT"),
            (format!("a {key} serve\na {key}"), "line 2: node \"a\" was there before"),
        ] {
            let error = KnownNodes::parse(&line).unwrap_err();
            assert!(error.contains(complaint), "{error}");
        }
    }
}
