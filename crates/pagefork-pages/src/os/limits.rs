//! Limits of the process, and which of them a failed call has met: the kernel says ENOMEM
//! for six reasons, and what it tells about the process shows which one it was.

use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;
use std::{fs, io};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::os::error::{Call, Feature, PagesError};
use crate::os::sys::CallFailure;

impl From<CallFailure> for PagesError {
    fn from(failure: CallFailure) -> Self {
        explain(failure, HostLimits::read)
    }
}

/// Limits of this process, and what it uses of them, in bytes unless a field says otherwise.
/// `None`: there is no limit, or the kernel does not tell.
///
/// # Examples
///
/// ```
/// let limits = pagefork_pages::HostLimits::read();
/// assert!(limits.mapped > limits.data);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct HostLimits {
    /// Number of kernel maps now, and how many there may be: `vm.max_map_count`.
    pub maps: Option<(u64, u64)>,
    /// Address space in use.
    pub mapped: u64,
    /// Address space that may be in use: RLIMIT_AS.
    pub mapped_max: Option<u64>,
    /// Private writable memory in use.
    pub data: u64,
    /// Private writable memory that may be in use: RLIMIT_DATA.
    pub data_max: Option<u64>,
    /// Number of descriptors that may be open: RLIMIT_NOFILE.
    pub descriptors_max: Option<u64>,
    /// What a file may have: RLIMIT_FSIZE.
    pub file_size_max: Option<u64>,
    /// Memory that is promised to all processes, and the most that may be. Only with
    /// `vm.overcommit_memory` 2, where the kernel enforces it.
    pub commit: Option<(u64, u64)>,
}

impl HostLimits {
    /// Reads them as they are now.
    ///
    /// # Examples
    ///
    /// See [`HostLimits`].
    pub fn read() -> Self {
        let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let bytes = |field: usize| {
            let pages = statm.split_whitespace().nth(field).and_then(|word| word.parse().ok());
            pages.unwrap_or(0u64) * rustix::param::page_size() as u64
        };
        let commit = || {
            (number("/proc/sys/vm/overcommit_memory")? == 2).then_some(())?;
            let info = fs::read_to_string("/proc/meminfo").ok()?;
            let field = |name: &str| {
                let line = info.lines().find_map(|line| line.strip_prefix(name))?;
                Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
            };
            Some((field("Committed_AS:")?, field("CommitLimit:")?))
        };
        Self {
            maps: count_and_limit_of_maps(),
            mapped: bytes(0),
            data: bytes(5),
            mapped_max: getrlimit(Resource::As).current,
            data_max: getrlimit(Resource::Data).current,
            descriptors_max: getrlimit(Resource::Nofile).current,
            file_size_max: getrlimit(Resource::Fsize).current,
            commit: commit(),
        }
    }
}

/// Whether private memory that could be written counts against a limit, though it was never touched.
pub(crate) fn writable_counts() -> bool {
    number("/proc/sys/vm/overcommit_memory") == Some(2)
        || getrlimit(Resource::Data).current.is_some()
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
}

/// Bytes of memory that this machine has, or this process's control group may have if that is
/// less; asked once.
pub(crate) fn memory() -> u64 {
    static MEMORY: OnceLock<u64> = OnceLock::new();
    *MEMORY.get_or_init(|| {
        let machine = rustix::system::sysinfo();
        let machine = (machine.totalram as u64).saturating_mul(machine.mem_unit.into());
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        memory_of_groups(&groups, number).map_or(machine, |groups| groups.min(machine))
    })
}

/// The least that any control group of a process may have, of those that `groups`, as the
/// kernel lists them, lie in.
fn memory_of_groups(groups: &str, number: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let limit = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let above = Path::new(path).ancestors();
        let files = above.map(|path| format!("{root}{}/{file}", path.display()));
        files.filter_map(|file| number(&file.replace("//", "/"))).min()
    };
    groups.lines().filter_map(limit).min()
}

/// How many maps this process has, and how many it may have.
pub(crate) fn count_and_limit_of_maps() -> Option<(u64, u64)> {
    Some((count_maps().ok()?, number("/proc/sys/vm/max_map_count")?))
}

/// How many maps this process has, found without making one: at the limit, a
/// buffer for all lines could not be had.
fn count_maps() -> io::Result<u64> {
    let mut file = fs::File::open("/proc/self/maps")?;
    let mut buffer = [0; 4096];
    let mut count = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(count),
            length => {
                let lines = buffer[..length].iter().filter(|&&byte| byte == b'\n');
                count += lines.count() as u64;
            }
        }
    }
}

/// The error that `failure` means; `facts` are asked for only if they matter.
fn explain(failure: CallFailure, facts: impl FnOnce() -> HostLimits) -> PagesError {
    let CallFailure { call, errno, requested } = failure;
    match (call, errno) {
        (_, Errno::MFILE) => {
            let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            PagesError::TooManyDescriptors { limit }
        }
        (_, Errno::NFILE) => PagesError::TooManyFiles,
        (Call::ResizeImage | Call::WriteImage | Call::GrowFile, Errno::FBIG) => {
            let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
            PagesError::FileSizeLimit { requested, limit }
        }
        (Call::CreateImage, Errno::NOSYS | Errno::PERM | Errno::ACCESS | Errno::INVAL) => {
            PagesError::Unsupported {
                feature: Feature::Memfd,
                detail: "the call is refused, perhaps by a seccomp filter or by vm.memfd_noexec",
            }
        }
        (Call::SealImage, Errno::INVAL) => PagesError::Unsupported {
            feature: Feature::Seals,
            detail: "the kernel does not know the seals of an image",
        },
        (Call::Discard, Errno::INVAL) => PagesError::Unsupported {
            feature: Feature::Discard,
            detail: "the call is refused, as it is for locked memory: do not use mlockall",
        },
        (Call::ResizeImage | Call::WriteImage | Call::AllocateImage, Errno::NOSPC) => {
            PagesError::OutOfMemory { call }
        }
        (_, Errno::NOMEM | Errno::AGAIN) => out_of_memory(call, requested, &facts()),
        _ => PagesError::System { call, code: errno.raw_os_error() },
    }
}

fn out_of_memory(call: Call, requested: u64, facts: &HostLimits) -> PagesError {
    let &HostLimits { maps, mapped, data, mapped_max, data_max, commit, .. } = facts;
    // A call that splits maps needs up to two more; and other threads go on.
    const MAPS_SLACK: u64 = 3;
    if let Some((count, limit)) = maps
        && count + MAPS_SLACK >= limit
    {
        return PagesError::TooManyMaps { count, limit };
    }
    let reserves = call == Call::Reserve;
    if let Some(limit) = mapped_max
        && reserves
        && mapped.saturating_add(requested) > limit
    {
        return PagesError::AddressSpaceLimit { requested, mapped, limit };
    }
    if reserves {
        return PagesError::AddressSpaceExhausted { requested, mapped };
    }
    if let Some(limit) = data_max
        && data.saturating_add(requested) > limit
    {
        return PagesError::DataLimit { requested, used: data, limit };
    }
    if let Some((committed, limit)) = commit {
        return PagesError::OvercommitRefused { requested, committed, limit };
    }
    PagesError::OutOfMemory { call }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: HostLimits = HostLimits {
        maps: Some((100, 65530)),
        mapped: 1 << 30,
        data: 1 << 20,
        mapped_max: None,
        data_max: None,
        descriptors_max: None,
        file_size_max: None,
        commit: None,
    };

    fn explained(call: Call, errno: Errno, facts: HostLimits) -> PagesError {
        explain(CallFailure { call, errno, requested: 8 << 30 }, || facts)
    }

    #[test]
    fn memory_is_the_least_that_any_control_group_may_have() {
        let limits = |path: &str| match path {
            "/sys/fs/cgroup/a/memory.max" => Some(300),
            "/sys/fs/cgroup/a/b/memory.max" => Some(500),
            "/sys/fs/cgroup/memory/c/memory.limit_in_bytes" => Some(200),
            _ => None,
        };
        assert_eq!(memory_of_groups("0::/a/b\n", limits), Some(300));
        assert_eq!(memory_of_groups("5:cpu:/c\n4:memory:/c\n0::/\n", limits), Some(200));
        assert_eq!(memory_of_groups("0::/\nnonsense\n", limits), None);
        assert!(memory() >= 64 << 20);
    }

    #[test]
    fn out_of_memory_names_the_limit_that_was_met() {
        let requested = 8 << 30;
        let cases = [
            (Call::Reserve, FREE, PagesError::AddressSpaceExhausted { requested, mapped: 1 << 30 }),
            (
                Call::Reserve,
                HostLimits { mapped_max: Some(9 << 30), ..FREE },
                PagesError::AddressSpaceExhausted { requested, mapped: 1 << 30 },
            ),
            (
                Call::Reserve,
                HostLimits { mapped_max: Some((9 << 30) - 1), ..FREE },
                PagesError::AddressSpaceLimit { requested, mapped: 1 << 30, limit: (9 << 30) - 1 },
            ),
            (
                Call::Commit,
                HostLimits { maps: Some((65528, 65530)), ..FREE },
                PagesError::TooManyMaps { count: 65528, limit: 65530 },
            ),
            (
                Call::Commit,
                HostLimits { data_max: Some(1 << 30), ..FREE },
                PagesError::DataLimit { requested, used: 1 << 20, limit: 1 << 30 },
            ),
            (
                Call::MapPrivate,
                HostLimits { commit: Some((5, 6)), ..FREE },
                PagesError::OvercommitRefused { requested, committed: 5, limit: 6 },
            ),
            (Call::Commit, FREE, PagesError::OutOfMemory { call: Call::Commit }),
            (Call::Commit, HostLimits::default(), PagesError::OutOfMemory { call: Call::Commit }),
        ];
        for (call, facts, error) in cases {
            assert_eq!(explained(call, Errno::NOMEM, facts), error);
        }
    }

    #[test]
    fn other_errors_name_the_limit_or_the_feature() {
        let no_facts = |call, errno| {
            explain(CallFailure { call, errno, requested: 1 }, || {
                panic!("facts do not matter here")
            })
        };
        let nofile = no_facts(Call::CreateImage, Errno::MFILE);
        assert!(matches!(nofile, PagesError::TooManyDescriptors { .. }));
        assert!(nofile.to_string().contains("RLIMIT_NOFILE"));
        assert_eq!(no_facts(Call::CreateImage, Errno::NFILE), PagesError::TooManyFiles);
        let fsize = no_facts(Call::ResizeImage, Errno::FBIG);
        assert!(matches!(fsize, PagesError::FileSizeLimit { .. }));
        for errno in [Errno::NOSYS, Errno::PERM] {
            let error = no_facts(Call::CreateImage, errno);
            assert!(matches!(error, PagesError::Unsupported { feature: Feature::Memfd, .. }));
        }
        let locked = no_facts(Call::Discard, Errno::INVAL);
        assert!(locked.to_string().contains("mlockall"));
        let other = no_facts(Call::Release, Errno::INVAL);
        assert_eq!(other, PagesError::System { call: Call::Release, code: 22 });
        assert!(other.to_string().contains("munmap"), "{other}");
    }

    #[test]
    fn the_facts_of_this_process_are_there() {
        let facts = HostLimits::read();
        let (count, limit) = facts.maps.unwrap();
        assert!(count > 5 && limit > count);
        assert!(facts.mapped > facts.data && facts.data > 0);
    }
}
