//! The maps of this process, as the kernel lists them.

use std::ops::Range;
use std::{fs, io};

/// One map of this process: a line of `/proc/self/maps`.
///
/// # Examples
///
/// See [`within`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    /// Addresses.
    pub range: Range<u64>,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub execute: bool,
    /// Writes are shared (otherwise copy-on-write).
    pub shared: bool,
    /// Byte offset in the file.
    pub offset: u64,
    /// Inode of the file, 0 if there is none.
    pub inode: u64,
    /// Path of the file or name of the map; may be empty.
    pub name: String,
}

/// All maps of this process, ascending.
///
/// # Errors
/// If `/proc/self/maps` cannot be read or is not as expected.
///
/// # Examples
///
/// ```
/// use pagefork_pages::procmaps;
///
/// let maps = procmaps::read()?;
/// assert!(maps.iter().any(|map| map.name == "[stack]" && map.write));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn read() -> io::Result<Vec<Map>> {
    let text = fs::read_to_string("/proc/self/maps")?;
    let unexpected = |line: &str| {
        io::Error::new(io::ErrorKind::InvalidData, format!("unexpected line of maps: {line:?}"))
    };
    text.lines().map(|line| parse(line).ok_or_else(|| unexpected(line))).collect()
}

/// The maps that lie in `range`, wholly or in part.
///
/// # Errors
/// As [`read`].
///
/// # Examples
///
/// ```
/// use pagefork_pages::procmaps;
///
/// let value = Box::new(7);
/// let address = (&raw const *value).addr() as u64;
/// let maps = procmaps::within(address..address + 1)?;
/// assert_eq!(maps.len(), 1);
/// assert!(maps[0].read && maps[0].write && !maps[0].execute);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn within(range: Range<u64>) -> io::Result<Vec<Map>> {
    let mut maps = read()?;
    maps.retain(|map| map.range.start < range.end && range.start < map.range.end);
    Ok(maps)
}

/// What the kernel says of the pages in each map of this process, which it counts: that takes a while.
pub(crate) fn counted() -> Option<String> {
    fs::read_to_string("/proc/self/smaps").ok()
}

/// Whether the map at an address has no huge pages, by what is [counted]; `None` if that does not say so.
pub(crate) fn refuses_huge_pages(maps: &str, address: usize) -> Option<bool> {
    let starts_it =
        |line: &&str| parse(line).is_some_and(|map| map.range.contains(&(address as u64)));
    let mut lines = maps.lines().skip_while(|line| !starts_it(line));
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:"))?;
    Some(flags.split(' ').any(|flag| flag == "nh"))
}

fn parse(line: &str) -> Option<Map> {
    // 7f0000000000-7f0000001000 rw-p 00001000 00:01 1234       /memfd:name (deleted)
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let access = fields.next()?.as_bytes();
    let offset = fields.next()?;
    let _device = fields.next()?;
    let inode = fields.next()?;
    let name = fields.next().unwrap_or("").trim_start();
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    let [read, write, execute, shared] = *access else { return None };
    Some(Map {
        range: hex(start)?..hex(end)?,
        read: read == b'r',
        write: write == b'w',
        execute: execute == b'x',
        shared: shared == b's',
        offset: hex(offset)?,
        inode: inode.parse().ok()?,
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_a_name_and_one_without() {
        let line = "7f0000000000-7f0000001000 rw-p 00002000 00:01 1234       /memfd:a b (deleted)";
        let map = parse(line).unwrap();
        assert_eq!(map.range, 0x7f00_0000_0000..0x7f00_0000_1000);
        assert!(map.read && map.write && !map.execute && !map.shared);
        assert_eq!((map.offset, map.inode), (0x2000, 1234));
        assert_eq!(map.name, "/memfd:a b (deleted)");
        let map = parse("10000-11000 ---s 00000000 00:00 0 ").unwrap();
        assert!(!map.read && map.shared && map.name.is_empty());
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn this_process_has_maps_in_ascending_order() {
        let maps = read().unwrap();
        assert!(maps.is_sorted_by_key(|map| map.range.start));
        let here = (&raw const maps).addr() as u64;
        assert_eq!(within(here..here + 1).unwrap().len(), 1);
    }
}
