//! Kernel features, tried one by one on real pages. A probe passes only if the contents of
//! pages are right afterwards: some emulators report success and do nothing.
//!
//! ```
//! use pagefork_host::probes::{Probe, ProbeResult};
//!
//! match Probe::CopyOnWrite.try_out() {
//!     ProbeResult::Works => println!("private maps work"),
//!     ProbeResult::Fails(seen) => println!("private maps do not work: {seen}"),
//! }
//! ```

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags};

use crate::scratch::{
    self, Checked, IMAGE_BYTE, PAGE, Pages, Seen, check, filled_file, refused, seal,
};
use crate::userfault::{self, Userfault};

/// Something that a kernel can do, or not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Probe {
    /// Files in memory: `memfd_create`, written and read.
    ImageFile,
    /// Seals after which a memfd can be neither written nor cut.
    Seals,
    /// Sealing a memfd against execution (kernel 6.3).
    NoExecSeal,
    /// Private maps of a memfd: a write shows in the one map and nowhere else.
    CopyOnWrite,
    /// `MADV_DONTNEED`: pages of an image read as the image again, others as zero.
    Discard,
    /// Growth of a memory: `mprotect` makes more pages accessible, which read as
    /// zero, and leaves the others as they are.
    Grow,
    /// `MADV_NOHUGEPAGE`, which keeps huge pages out of a range.
    NoHugePages,
    /// Maps made with `MAP_STACK` have no huge pages from the start (kernel 6.7).
    SmallMaps,
    /// `/proc/self/pagemap` tells pages of an image from private copies.
    Pagemap,
    /// PAGEMAP_SCAN does so for many pages at once (kernel 6.7).
    Scan,
    /// userfaultfd write protection that the kernel lifts itself, read and reset by
    /// PAGEMAP_SCAN (kernel 6.7): which pages were written.
    TrackWrites,
}

/// What trying something out showed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProbeResult {
    /// It does what it should, as the contents of pages show.
    Works,
    /// It does not: what was seen.
    Fails(String),
}

impl Probe {
    /// All probes; later ones build on earlier ones.
    pub const ALL: [Self; 11] = [
        Self::ImageFile,
        Self::Seals,
        Self::NoExecSeal,
        Self::CopyOnWrite,
        Self::Discard,
        Self::Grow,
        Self::NoHugePages,
        Self::SmallMaps,
        Self::Pagemap,
        Self::Scan,
        Self::TrackWrites,
    ];

    /// Tries it out. Takes milliseconds.
    pub fn try_out(self) -> ProbeResult {
        let checked = match self {
            Self::ImageFile => file_as_image(),
            Self::Seals => seals(),
            Self::NoExecSeal => no_exec_seal(),
            Self::CopyOnWrite => copy_on_write(),
            Self::Discard => discard(),
            Self::Grow => grow(),
            Self::NoHugePages => no_huge_pages(),
            Self::SmallMaps => small_maps(),
            Self::Pagemap => pagemap(),
            Self::Scan => scan(),
            Self::TrackWrites => track_writes(),
        };
        match checked {
            Ok(()) => ProbeResult::Works,
            Err(Seen(what)) => ProbeResult::Fails(what),
        }
    }
}

fn file_as_image() -> Checked {
    let file = filled_file(1)?;
    let mut bytes = [0; PAGE];
    file.read_exact_at(&mut bytes, 0).map_err(refused("pread"))?;
    check(bytes == [IMAGE_BYTE; PAGE], "a memfd does not keep what is written")
}

fn seals() -> Checked {
    let file = filled_file(1)?;
    seal(&file)?;
    check(file.write_all_at(&[0], 0).is_err(), "a sealed memfd could still be written")?;
    check(file.set_len(0).is_err(), "a sealed memfd could still be cut")
}

fn no_exec_seal() -> Checked {
    let (_, sealed) = scratch::memfd()?;
    check(sealed, "the kernel does not know MFD_NOEXEC_SEAL")
}

fn copy_on_write() -> Checked {
    let mut pages = Pages::new(1, 0)?;
    let other = Pages::of(&pages.image)?;
    pages.write(0, 1);
    let mut byte = [0];
    pages.image.read_exact_at(&mut byte, 0).map_err(refused("pread"))?;
    check(pages.read(0) == 1, "a page does not keep what is written")?;
    let unchanged = other.read(0) == IMAGE_BYTE && byte == [IMAGE_BYTE];
    check(unchanged, "a private write showed elsewhere")
}

fn discard() -> Checked {
    let mut pages = Pages::new(1, 1)?;
    pages.write(0, 1);
    pages.write(1, 1);
    pages.discard()?;
    check(pages.read(0) == IMAGE_BYTE, "a discarded page of an image kept what was written")?;
    check(pages.read(1) == 0, "a discarded anonymous page kept what was written")
}

fn grow() -> Checked {
    let mut pages = Pages::inaccessible(3)?;
    for count in 1..=3 {
        pages.grow(count)?;
        check(pages.read(count - 1) == 0, "a new page was not zero")?;
        pages.write(count - 1, 1);
    }
    check((0..3).all(|page| pages.read(page) == 1), "growth changed pages")
}

fn no_huge_pages() -> Checked {
    let mut pages = Pages::new(0, 1)?;
    match pages.advise(Advice::LinuxNoHugepage) {
        // A kernel without huge pages needs no advice against them.
        Err(Errno::INVAL) => return Ok(()),
        advised => advised.map_err(refused("madvise"))?,
    }
    let follows = refuses_huge_pages(pages.address(0)).unwrap_or(true);
    check(follows, "the advice was accepted and not followed")
}

fn small_maps() -> Checked {
    let map = scratch::map_anywhere(PAGE, MapFlags::STACK)?;
    let refuses = refuses_huge_pages(map) == Some(true);
    scratch::unmap(map, PAGE);
    check(refuses, "/proc/self/smaps does not say so of such a map")
}

/// Whether the map at an address has no huge pages, if the kernel says so.
fn refuses_huge_pages(address: usize) -> Option<bool> {
    let maps = fs::read_to_string("/proc/self/smaps").ok()?;
    let starts_it = |line: &&str| {
        let (range, _) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some((number(start)?..number(end)?).contains(&address))
    };
    let mut lines = maps.lines().skip_while(|line| starts_it(line) != Some(true));
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:"))?;
    Some(flags.split(' ').any(|flag| flag == "nh"))
}

/// Pages 0 and 1 are of an image, 2 and 3 anonymous; 1 and 3 are written.
fn half_written() -> Result<Pages, Seen> {
    let mut pages = Pages::new(2, 2)?;
    check((pages.read(0), pages.read(2)) == (IMAGE_BYTE, 0), "pages do not start as they should")?;
    pages.write(1, 1);
    pages.write(3, 1);
    Ok(pages)
}

fn open_pagemap() -> Result<File, Seen> {
    File::open("/proc/self/pagemap").map_err(refused("/proc/self/pagemap"))
}

fn pagemap() -> Checked {
    const PRESENT: u64 = 1 << 63;
    const OF_FILE: u64 = 1 << 61;
    let pages = half_written()?;
    let map = open_pagemap()?;
    let entry = |page: usize| {
        let mut word = [0; 8];
        let at = (pages.address(page) / PAGE * 8) as u64;
        let read = map.read_exact_at(&mut word, at);
        read.map_err(refused("/proc/self/pagemap"))?;
        Ok::<_, Seen>(u64::from_le_bytes(word) & (PRESENT | OF_FILE))
    };
    check(entry(0)? == PRESENT | OF_FILE, "it does not know a page of an image")?;
    check(entry(1)? == PRESENT && entry(3)? == PRESENT, "it does not know a private page")
}

fn scan() -> Checked {
    let pages = Pages::new(3, 0).and_then(|mut pages| {
        check(pages.read(0) == IMAGE_BYTE, "a page does not start as its image")?;
        pages.write(1, 1);
        Ok(pages)
    })?;
    let pagemap = open_pagemap()?;
    let (all_of, inverted) = (userfault::PRESENT | userfault::OF_FILE, userfault::OF_FILE);
    // SAFETY: nothing is protected.
    let found = unsafe { userfault::scan(&pagemap, pages.addresses(), all_of, inverted, false) };
    let found = found.map_err(refused("PAGEMAP_SCAN"))?;
    check(numbers(&pages, &found) == [1], "the scan did not find the private page, and it alone")
}

fn track_writes() -> Checked {
    let features = userfault::WP_ASYNC | userfault::WP_UNPOPULATED;
    let watch = Userfault::by_call(features).map_err(refused("userfaultfd with WP_ASYNC"))?;
    let mut pages = Pages::new(2, 2)?;
    let pagemap = open_pagemap()?;
    let (address, length) = (pages.address(0), pages.count() * PAGE);
    // SAFETY: the pages are ours, and the kernel itself answers these faults.
    unsafe {
        let mode = userfault::WRITE_PROTECT;
        watch.register(address, length, mode).map_err(refused("UFFDIO_REGISTER"))?;
        watch.protect(address, length).map_err(refused("UFFDIO_WRITEPROTECT"))?;
    }
    let written = |pages: &Pages| {
        // SAFETY: the pages are ours.
        let found =
            unsafe { userfault::scan(&pagemap, pages.addresses(), userfault::WRITTEN, 0, true) };
        Ok::<_, Seen>(numbers(pages, &found.map_err(refused("PAGEMAP_SCAN"))?))
    };
    check(pages.read(0) == IMAGE_BYTE && pages.read(2) == 0, "a watched page reads wrongly")?;
    check(written(&pages)?.is_empty(), "pages were called written that were only read")?;
    pages.write(1, 1);
    pages.write(3, 1);
    check(written(&pages)? == [1, 3], "the pages that were written were not found")?;
    check(written(&pages)?.is_empty(), "finding written pages did not reset them")?;
    pages.write(0, 1);
    pages.write(1, 2);
    check(written(&pages)? == [0, 1], "later writes were not found")?;
    let bytes: Vec<u8> = (0..4).map(|page| pages.read(page)).collect();
    check(bytes == [1, 2, 0, 1], "a watched page did not keep what was written")
}

/// The pages that regions are of, by number.
fn numbers(pages: &Pages, regions: &[userfault::FoundPages]) -> Vec<u64> {
    let start = pages.addresses().start;
    let page = |region: &userfault::FoundPages| {
        (region.start - start) / PAGE as u64..(region.end - start) / PAGE as u64
    };
    regions.iter().flat_map(page).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_slots_are_made_of_works_here() {
        for probe in [
            Probe::ImageFile,
            Probe::Seals,
            Probe::CopyOnWrite,
            Probe::Discard,
            Probe::Grow,
            Probe::NoHugePages,
        ] {
            assert_eq!(probe.try_out(), ProbeResult::Works, "{probe:?}");
        }
    }

    #[test]
    fn probes_say_the_same_again_and_leave_no_descriptor() {
        const ROUNDS: usize = 20;
        let first = Probe::ALL.map(Probe::try_out);
        let descriptors = || fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let before = descriptors();
        for _ in 0..ROUNDS {
            assert_eq!(Probe::ALL.map(Probe::try_out), first);
        }
        // Other tests of this process open some too, and close them.
        let after = descriptors();
        assert!(after < before + ROUNDS, "{before} descriptors, then {after}");
    }
}
