//! What can go wrong with pages, and what to do about it.

use std::fmt;
use std::io;
use std::ops::Range;

/// Why a slot or an image could not be made or changed.
///
/// # Examples
///
/// ```
/// use pagefork_pages::{Image, PagesError};
///
/// let error = Image::new("example", 0..4096, [(4095, &b"ab"[..])]).unwrap_err();
/// assert!(matches!(error, PagesError::OutsideImage { offset: 4095, length: 2, .. }));
/// assert!(error.to_string().starts_with("a run of 2 bytes at slot offset 0xfff lies outside"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PagesError {
    /// No gap of the 47-bit address space is large enough.
    #[error(
        "no free range of {requested} bytes is left in the 47-bit address space of this process \
         ({mapped} bytes are mapped): keep fewer instances, or spread them over processes"
    )]
    AddressSpaceExhausted {
        /// Bytes asked for.
        requested: u64,
        /// Bytes of address space in use.
        mapped: u64,
    },
    /// The process may not use that much address space.
    #[error(
        "{requested} bytes of address space would exceed the limit of {limit} bytes ({mapped} are \
         mapped): raise RLIMIT_AS (`ulimit -v unlimited`)"
    )]
    AddressSpaceLimit {
        /// Bytes asked for.
        requested: u64,
        /// Bytes of address space in use.
        mapped: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The process may not use that many bytes of private writable memory.
    #[error(
        "{requested} bytes of writable memory would exceed the limit of {limit} bytes ({used} are \
         in use): raise RLIMIT_DATA (`ulimit -d unlimited`)"
    )]
    DataLimit {
        /// Bytes asked for.
        requested: u64,
        /// Bytes of private writable maps.
        used: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The process has as many maps as the kernel allows.
    #[error(
        "this process has {count} memory maps and the kernel allows {limit}: raise it with \
         `sysctl vm.max_map_count=N` (a slot takes 4 maps)"
    )]
    TooManyMaps {
        /// Maps of this process.
        count: u64,
        /// The limit.
        limit: u64,
    },
    /// The kernel promises no more memory than it has.
    #[error(
        "the kernel refuses to promise {requested} more bytes: {committed} of {limit} bytes are \
         promised and vm.overcommit_memory is 2. Set it to 0 or 1 with `sysctl \
         vm.overcommit_memory=0`, or raise vm.overcommit_ratio"
    )]
    OvercommitRefused {
        /// Bytes asked for.
        requested: u64,
        /// Bytes promised to all processes.
        committed: u64,
        /// Bytes the kernel is ready to promise.
        limit: u64,
    },
    /// The kernel has no memory for it, and no limit of this process explains it.
    #[error("out of memory: could not {call}; free memory or raise the limit of the control group")]
    OutOfMemory {
        /// What was tried.
        call: Call,
    },
    /// The process has as many open descriptors as it may have.
    #[error(
        "this process may not open more than {limit} descriptors: raise RLIMIT_NOFILE (`ulimit -n \
         N`)"
    )]
    TooManyDescriptors {
        /// The limit.
        limit: u64,
    },
    /// The machine has as many open files as it may have.
    #[error("too many open files on this machine: raise it with `sysctl fs.file-max=N`")]
    TooManyFiles,
    /// The process may not make files that large, and an image is a file.
    #[error(
        "an image of {requested} bytes exceeds the limit of {limit} bytes a file: raise \
         RLIMIT_FSIZE (`ulimit -f unlimited`)"
    )]
    FileSizeLimit {
        /// Bytes of the image.
        requested: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The kernel, or what stands in for it, cannot do something needed.
    #[error("this machine lacks {feature}: {detail}")]
    Unsupported {
        /// What is missing.
        feature: Feature,
        /// How that showed, and what to do.
        detail: &'static str,
    },
    /// A file that cannot be used as an image.
    #[error("the image file cannot be used: {0}")]
    FileRefused(FileProblem),
    /// A run of bytes outside the image that it belongs to.
    #[error(
        "a run of {length} bytes at slot offset {offset:#x} lies outside its image ({:#x}..{:#x})",
        extent.start, extent.end
    )]
    OutsideImage {
        /// Slot offset of the run.
        offset: u64,
        /// Bytes of the run.
        length: u64,
        /// The image, in slot offsets.
        extent: Range<u64>,
    },
    /// An image that does not fit between the fixed zones of a slot and the end
    /// of its memory.
    #[error(
        "an image of slot offsets {:#x}..{:#x} does not fit the part of the slot that images fill, \
         {:#x}..{:#x}",
        extent.start, extent.end, room.start, room.end
    )]
    ImageMisfit {
        /// The image, in slot offsets.
        extent: Range<u64>,
        /// Where an image may lie: from the tables zone to the end of the
        /// initial memory.
        room: Range<u64>,
    },
    /// A size that a memory cannot have.
    #[error(
        "a memory of {requested} bytes is impossible here: at least {current}, at most {maximum}, \
         in whole pages of 4096 bytes"
    )]
    MemorySize {
        /// Bytes asked for.
        requested: u64,
        /// Bytes it has now.
        current: u64,
        /// Bytes it may have.
        maximum: u64,
    },
    /// Strategies that cannot serve the same slot.
    #[error("strategies that cannot be combined: {0}")]
    IllegalStrategies(IllegalStrategies),
    /// A reset failed and could not be undone; the slot can be reset again or
    /// dropped.
    #[error("an earlier reset of this slot failed half-way: reset it again or drop it")]
    ResetIncomplete,
    /// A page of an image that is not here yet is needed, and does not come.
    #[error(transparent)]
    PageAbsent(#[from] AbsentPage),
    /// A group of an image's data with another number of bytes than it has.
    #[error("group {group} of an image has {expected} bytes, not {found}")]
    GroupSize {
        /// The group.
        group: u64,
        /// Bytes that were given.
        found: u64,
        /// Bytes that it has.
        expected: u64,
    },
    /// A system call failed for another reason.
    #[error("could not {call}: {}", io::Error::from_raw_os_error(*code))]
    System {
        /// What was tried.
        call: Call,
        /// The error number.
        code: i32,
    },
}

/// Defines an enum whose variants are displayed as these texts.
macro_rules! displayed {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$doc:meta])* $variant:ident = $text:literal,)*
    }) => {
        $(#[$meta])*
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $text,)*
                })
            }
        }
    };
}

/// A page of an image that is not here, and does not come.
///
/// # Examples
///
/// See [`IncompletePages::give_up`](crate::IncompletePages::give_up).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", AbsentText(self))]
pub struct AbsentPage {
    /// The group of the image's data that it is in.
    pub group: u64,
    /// Why it does not come.
    pub why: Absence,
}

/// What is said of an absent page.
struct AbsentText<'a>(&'a AbsentPage);

impl fmt::Display for AbsentText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AbsentPage { group, why } = self.0;
        match why {
            Absence::OfParent => why.fmt(f),
            _ => write!(f, "pages of an image are absent (group {group} of 16 KiB): {why}"),
        }
    }
}

displayed! {
    /// Why pages of an image that are absent do not come.
    ///
    /// # Examples
    ///
    /// See [`IncompletePages::give_up`](crate::IncompletePages::give_up).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[non_exhaustive]
    pub enum Absence {
        /// They did not come in the time that was set.
        Overdue = "they did not come in the time that was set for it",
        /// Nobody has them any more.
        GivenUp = "they were given up, because nobody has them any more",
        /// This process was forked from the one that they come to.
        Forked = "they come to the process that this one was forked from: start a new one instead",
        /// What memories have grown by lies in a file of the process that this one was forked from, or
        /// pages get their contents there when they are touched.
        OfParent = "memories of this instance grow in a file (growth by ftruncate), or get their \
                    pages when they are touched (reset or growth by fault), in the process that \
                    this one was forked from: make a new instance instead",
        /// Nothing would tell of a touch of them.
        NotServed = "this system does not tell of faults in them (userfaultfd), so nothing runs \
                     before all are here",
    }
}

/// Why strategies cannot serve the same slot.
///
/// # Examples
///
/// ```
/// use pagefork_pages::{GrowthKind, IllegalStrategies, PagesError, StrategyConfig};
///
/// let config = StrategyConfig { growth: GrowthKind::Kept, ..StrategyConfig::default() };
/// let wrong = IllegalStrategies::CheckedWithoutBounds;
/// assert_eq!(config.check().unwrap_err(), PagesError::IllegalStrategies(wrong));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IllegalStrategies {
    /// Memory stays accessible beyond its size, and the code would use it.
    #[error(
        "any growth but `mprotect` leaves memory accessible beyond its size, so it needs code that \
         can compare accesses with the size, and this code relies on inaccessible pages: compile it \
         with explicit bounds or with both, or grow by `mprotect`"
    )]
    CheckedWithoutBounds,
    /// More threads would serve touches than can be of use.
    #[error("{threads} threads would serve faults: at most {max}")]
    FaultThreads {
        /// Threads asked for.
        threads: u32,
        /// The most that there can be.
        max: u32,
    },
    /// More of a stack than a few pages would be kept.
    #[error("{bytes} bytes of each stack would be kept: at most {max}")]
    StackKept {
        /// Bytes asked for.
        bytes: u64,
        /// The most that can be kept.
        max: u64,
    },
}

displayed! {
    /// What a system call was made for.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::Call;
    ///
    /// // Errors say it like this.
    /// assert_eq!(Call::Scan.to_string(), "find private pages (PAGEMAP_SCAN)");
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[non_exhaustive]
    pub enum Call {
        /// Reserve address space.
        Reserve = "reserve address space (mmap)",
        /// Make reserved pages accessible.
        Commit = "make reserved pages accessible (mprotect)",
        /// Make pages inaccessible.
        Protect = "make pages inaccessible (mprotect)",
        /// Make pages executable.
        MakeExecutable = "make pages executable (mprotect)",
        /// Map an image copy-on-write.
        MapPrivate = "map an image copy-on-write (mmap)",
        /// Throw away page contents.
        Discard = "discard pages (madvise)",
        /// Put fresh pages in the place of used ones.
        Replace = "put fresh pages in the place of used ones (mmap)",
        /// Keep huge pages out of a range.
        RefuseHugePages = "keep huge pages out of a slot (madvise)",
        /// Map an image or code for reading alone.
        MapView = "map a file for reading (mmap)",
        /// Map the room for new images for writing.
        MapWindow = "map the room for new images for writing (mmap)",
        /// Set the length of the file that a memory grows in.
        GrowFile = "set the length of the file that a memory grows in (ftruncate)",
        /// Map the file that a memory grows in.
        MapGrowth = "map the file that a memory grows in (mmap)",
        /// Give back pages of the file that a memory grows in.
        Punch = "give back pages of the file that a memory grows in (madvise)",
        /// Keep a map from forked processes.
        KeepFromFork = "keep a map from forked processes (madvise)",
        /// Open the page map of this process.
        OpenPagemap = "open /proc/self/pagemap",
        /// Find private pages.
        Scan = "find private pages (PAGEMAP_SCAN)",
        /// Read the page map of this process.
        ReadPagemap = "read /proc/self/pagemap",
        /// Read the number of page faults of this thread.
        CountFaults = "count page faults (getrusage)",
        /// Having the kernel note page faults in memory.
        WatchFaults = "have page faults noted (perf_event_open)",
        /// Map pages of a file before they are touched.
        Prefetch = "prefetch pages of an image (madvise)",
        /// Have the kernel note which pages are written.
        WatchWrites = "have written pages noted (userfaultfd)",
        /// Have that end.
        UnwatchWrites = "have written pages noted no more (userfaultfd)",
        /// Make pages read-only, so that writes to them are noticed.
        GuardWrites = "make pages read-only, so that writes to them are noticed (mprotect)",
        /// Make such pages writable again.
        UnguardWrites = "make read-only pages writable again (mprotect)",
        /// Write-protect pages, so that writes to them raise signals.
        FaultWrites = "write-protect pages, so that writes to them are noticed (userfaultfd)",
        /// Make such pages writable again.
        UnfaultWrites = "make write-protected pages writable again (userfaultfd)",
        /// Have faults in absent pages told, and give such pages contents.
        ServeFaults = "have faults in absent pages told (userfaultfd)",
        /// Copy a page that was touched, or make it zero. It is made by handlers of signals.
        CopyPage = "copy a page that was touched (userfaultfd)",
        /// Have that end.
        UnserveFaults = "have faults told no more (userfaultfd)",
        /// Start a thread that gives pages their contents.
        StartThread = "start a thread that serves faults (clone)",
        /// Make a descriptor that tells of something.
        MakeSignal = "make a descriptor that tells of something (eventfd)",
        /// Give address space back.
        Release = "give address space back (munmap)",
        /// Make the memfd of an image.
        CreateImage = "create an image (memfd_create)",
        /// Set the size of an image.
        ResizeImage = "set the size of an image (ftruncate)",
        /// Write into an image.
        WriteImage = "write an image (pwrite)",
        /// Take the memory for an image.
        AllocateImage = "take the memory for an image (fallocate)",
        /// Seal an image.
        SealImage = "seal an image (fcntl F_ADD_SEALS)",
        /// Find what of an image is no hole.
        FindData = "find the data of an image (lseek)",
        /// Read from an image.
        ReadImage = "read an image (pread)",
        /// Read the attributes of an image file.
        StatImage = "read the attributes of an image file (fstat)",
    }
}

displayed! {
    /// Something the kernel must be able to do.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::Feature;
    ///
    /// // Errors say it like this.
    /// assert_eq!(Feature::PageSize.to_string(), "4 KiB pages");
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[non_exhaustive]
    pub enum Feature {
        /// Host pages of 4 KiB.
        PageSize = "4 KiB pages",
        /// `memfd_create`.
        Memfd = "memfd_create",
        /// Seals on a memfd that hold.
        Seals = "file seals",
        /// `MADV_DONTNEED` that really brings an image's bytes back.
        Discard = "a working MADV_DONTNEED",
    }
}

/// Why a file cannot be an image.
///
/// # Examples
///
/// ```
/// use pagefork_pages::{FileProblem, Image, PagesError};
///
/// let directory = std::fs::File::open("/")?;
/// let error = Image::from_file(directory.into(), 0, 0..4096).unwrap_err();
/// assert_eq!(error, PagesError::FileRefused(FileProblem::NotRegular));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileProblem {
    /// A directory, a pipe, a device.
    #[error("it is not a regular file")]
    NotRegular,
    /// Its owner could change it under us.
    #[error("it belongs to user {owner}, not to this user ({user}) or root: copy it first")]
    ForeignOwner {
        /// The file's owner.
        owner: u32,
        /// The effective user of this process.
        user: u32,
    },
    /// Others could change it under us.
    #[error("others may write it (mode {mode:03o}): use `chmod go-w`")]
    WritableByOthers {
        /// The permission bits.
        mode: u32,
    },
    /// It ends before the image does.
    #[error("it has {size} bytes and the image needs {needed}: it was cut short")]
    TooShort {
        /// Bytes of the file.
        size: u64,
        /// Bytes up to the image's end.
        needed: u64,
    },
    /// A page of it was gone when it was looked at.
    #[error("a page of it cannot be read: it was cut short for a while, or its disk fails")]
    Unreadable,
    /// The image does not start at a page of the file.
    #[error("the image starts at byte {offset} of it, which is no multiple of 4096")]
    Unaligned {
        /// Byte offset in the file.
        offset: u64,
    },
    /// Where contents are said to lie in it is impossible.
    #[error("of the places of contents in it, {0}")]
    Spans(&'static str),
}
