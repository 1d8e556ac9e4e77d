//! `pagefork doctor`: tries features of the processor and the kernel, and shows limits.

use std::fs;
use std::process::ExitCode;

use pagefork::{Config, Engine, GrowthKind, GrowthReason, Instance, Module, Store, Trap, TrapCode};
use pagefork_compiler::CpuLevel;
use pagefork_host::probes::{Probe, ProbeResult};
use pagefork_layout::slot::PRE_GUARD;
use pagefork_pages::{
    Choice, HostLimits, OWN_FILES_LARGE_MAX, OWN_FILES_MAX, Reason, StrategyConfig,
};

use crate::output;
use crate::show;

/// Bytes of address space that a process has.
const ADDRESS_SPACE: u64 = 1 << 47;

/// Kernel maps that a slot takes.
const MAPS_PER_SLOT: u64 = 4;

/// With room for fewer instances, the report advises what to raise.
const INSTANCES_COMFORTABLE: u64 = 1000;

/// With fewer descriptors, the report advises what to raise.
const DESCRIPTORS_COMFORTABLE: u64 = 2 * OWN_FILES_LARGE_MAX as u64;

/// A memory, a table and data, and a function that reads.
const GUEST: &str = r#"(module (memory 1) (table 1 funcref) (data (i32.const 0) "\2a")
    (func (export "read") (param i32) (result i32) (i32.load8_u (local.get 0))))"#;

/// Tries the features of this machine. The exit code is 0 if guests can run here.
pub(crate) fn doctor() -> Result<ExitCode, String> {
    let machine = [processor(), engine(), guest()];
    let needed = NEEDED.map(|needed| needed.try_out());
    let resets: Vec<Finding> = strategy()
        .into_iter()
        .chain(RESETS.map(|wanted| wanted.try_out()))
        .chain([touches()])
        .collect();
    let growth = [growth_in_files(), growth_by_faults()];
    let [noted] = SNAPSHOTS.map(|wanted| wanted.try_out());
    let snapshots = [noted, read_only_pages(), write_faults()];
    let coming = [absent_pages(), early_bytes()];
    let limits = limits();
    let mut report = String::new();
    for (title, lines) in [
        ("Machine", &machine[..]),
        (&format!("Kernel: what instances need{}", release()), &needed),
        ("Reset of slots", &resets),
        ("Growth of memories", &growth),
        ("Snapshots of what runs on", &snapshots),
        ("Images of other nodes", &coming),
        ("Limits of this process", &limits),
    ] {
        report += &section(title, lines);
    }

    let can_run = machine.iter().chain(&needed).all(|line| line.state != Verdict::Missing);
    report += match can_run {
        true => "\nPagefork can run here.\n",
        false => "\nPagefork cannot run here: see what is missing above.\n",
    };
    output::print(report)?;
    Ok(if can_run { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Ok,
    Limited,
    Missing,
}

/// The result of one check.
struct Finding {
    state: Verdict,
    name: String,
    /// The observation, and advice.
    detail: String,
}

impl Finding {
    fn new(state: Verdict, name: &str, detail: impl Into<String>) -> Self {
        Self { state, name: name.to_owned(), detail: detail.into() }
    }
}

fn section(title: &str, lines: &[Finding]) -> String {
    let row = |line: &Finding| {
        let state = match line.state {
            Verdict::Ok => "ok",
            Verdict::Limited => "limited",
            Verdict::Missing => "missing",
        };
        vec![format!("{state:<7}"), format!("{:<24}", line.name), line.detail.clone()]
    };
    let rows: Vec<_> = lines.iter().map(row).collect();
    format!("{title}\n{}", show::table(&rows, &[]))
}

fn release() -> String {
    match std::fs::read_to_string("/proc/sys/kernel/osrelease") {
        Ok(release) => format!(" (Linux {})", release.trim()),
        Err(_) => String::new(),
    }
}

/// The levels that code is compiled for.
fn processor() -> Finding {
    let (state, detail) = match CpuLevel::of_this_machine() {
        Ok(CpuLevel::V2) => {
            (Verdict::Limited, "x86-64-v2: code is made without AVX2, BMI and FMA".to_owned())
        }
        Ok(level) => (Verdict::Ok, level.to_string()),
        Err(error) => (Verdict::Missing, format!("{error}: use another machine")),
    };
    Finding::new(state, "processor", detail)
}

fn engine() -> Finding {
    match Engine::new(&Config::new()) {
        Ok(_) => {
            Finding::new(Verdict::Ok, "engine", "pages of 4 KiB, signal handlers, no shadow stacks")
        }
        Err(error) => Finding::new(Verdict::Missing, "engine", format!("{error:#}")),
    }
}

/// Runs a guest.
fn guest() -> Finding {
    let run = || {
        let engine = Engine::new(&Config::new())?;
        let module = Module::new(&engine, GUEST)?;
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[])?;
        let read = instance.get_typed_func::<i32, i32>(&mut store, "read")?;
        let value = read.call(&mut store, 0)?;
        let beyond = read.call(&mut store, 1 << 16);
        let code = beyond.err().and_then(|error| error.downcast_ref().map(Trap::code));
        Ok::<_, pagefork::Error>((value, code))
    };
    match run() {
        Ok((42, Some(TrapCode::MemoryOutOfBounds))) => {
            Finding::new(Verdict::Ok, "guest", "it ran, and trapped when it read beyond its memory")
        }
        Ok(found) => {
            let detail = format!("it gave a wrong result ({found:?}): please report this");
            Finding::new(Verdict::Missing, "guest", detail)
        }
        Err(error) => Finding::new(Verdict::Missing, "guest", format!("{error:#}")),
    }
}

/// How slots are reset by default, whether copy-on-write is switched off, and how page
/// faults are noticed.
fn strategy() -> [Finding; 3] {
    let choice = StrategyConfig::default().check().and_then(|strategies| strategies.choice());
    let reset = match &choice {
        Ok(choice) => chosen(choice),
        Err(error) => Finding::new(Verdict::Missing, "reset strategy", error.to_string()),
    };
    let name = "PAGEFORK_COW";
    let is_off = choice.is_ok_and(|choice| choice.reason == Reason::CopyOnWriteOff);
    let switch = match (is_off, std::env::var_os(name)) {
        (false, _) => Finding::new(Verdict::Ok, name, "images are mapped copy-on-write"),
        (true, Some(value)) if value == "0" => {
            let detail = "0: images are copied into slots and not mapped. Unset it to map them";
            Finding::new(Verdict::Limited, name, detail)
        }
        (true, _) => {
            let detail = "this program was built with the feature no-cow: images are copied into \
                          slots and not mapped";
            Finding::new(Verdict::Limited, name, detail)
        }
    };
    let faults = match pagefork_pages::counts_faults_in_memory() {
        true => Finding::new(Verdict::Ok, "page faults", "the kernel counts them in mapped memory"),
        false => {
            let detail = "perf_event_open is refused, so each reset asks the kernel (getrusage): \
                          permit it in the seccomp filter, or set kernel.perf_event_paranoid to 2";
            Finding::new(Verdict::Limited, "page faults", detail)
        }
    };
    [reset, switch, faults]
}

fn chosen(choice: &Choice) -> Finding {
    let (state, detail) = match choice.reason {
        Reason::Asked => (Verdict::Ok, format!("{}, the default, works in full", choice.used)),
        _ => (Verdict::Limited, choice.to_string()),
    };
    Finding::new(state, "reset strategy", detail)
}

/// A feature of kernels, and what its absence means.
struct Wanted {
    probe: Probe,
    name: &'static str,
    /// The text where it works.
    works: &'static str,
    /// The verdict where it is absent.
    absent: Verdict,
    /// What its absence costs, and advice.
    without: &'static str,
}

impl Wanted {
    fn try_out(&self) -> Finding {
        match self.probe.try_out() {
            ProbeResult::Works => Finding::new(Verdict::Ok, self.name, self.works),
            ProbeResult::Fails(seen) => {
                Finding::new(self.absent, self.name, format!("{seen}. {}", self.without))
            }
        }
    }
}

const NEEDED: [Wanted; 6] = [
    Wanted {
        probe: Probe::ImageFile,
        name: "memfd_create",
        works: "files in memory keep their bytes",
        absent: Verdict::Missing,
        without: "Permit the system call in the seccomp filter of the container; kernels have it \
                  since 3.17.",
    },
    Wanted {
        probe: Probe::Seals,
        name: "file seals",
        works: "sealed files can be neither written nor truncated",
        absent: Verdict::Missing,
        without: "Images could change under their instances: use a kernel of 5.11 or later.",
    },
    Wanted {
        probe: Probe::NoExecSeal,
        name: "MFD_NOEXEC_SEAL",
        works: "images can never be executed",
        absent: Verdict::Limited,
        without: "All other changes of images are prevented; kernels have it since 6.3.",
    },
    Wanted {
        probe: Probe::CopyOnWrite,
        name: "copy-on-write maps",
        works: "a write shows in one map alone, and not in the image",
        absent: Verdict::Missing,
        without: "Instances of a module would see each other's memory: use another kernel.",
    },
    Wanted {
        probe: Probe::Discard,
        name: "MADV_DONTNEED",
        works: "it restores the bytes of an image, and zeros",
        absent: Verdict::Limited,
        without: "Slots are reset by mapping them anew, which costs more: use another kernel.",
    },
    Wanted {
        probe: Probe::Grow,
        name: "growth by mprotect",
        works: "new pages are zero, and old ones stay as they are",
        absent: Verdict::Missing,
        without: "Memories could not grow: use another kernel.",
    },
];

const RESETS: [Wanted; 4] = [
    Wanted {
        probe: Probe::Scan,
        name: "PAGEMAP_SCAN",
        works: "one call finds the pages that differ from an image",
        absent: Verdict::Limited,
        without: "Private pages are read from /proc/self/pagemap, 8 bytes a page; kernels have \
                  it since 6.7.",
    },
    Wanted {
        probe: Probe::Pagemap,
        name: "/proc/self/pagemap",
        works: "it tells pages of an image from private ones",
        absent: Verdict::Limited,
        without: "Without PAGEMAP_SCAN too, slots are discarded as a whole: mount /proc.",
    },
    Wanted {
        probe: Probe::NoHugePages,
        name: "MADV_NOHUGEPAGE",
        works: "huge pages can be kept out of a slot",
        absent: Verdict::Limited,
        without: "Page faults tell nothing about writes to huge pages, so every reset searches \
                  for private pages.",
    },
    Wanted {
        probe: Probe::SmallMaps,
        name: "MAP_STACK",
        works: "slots get no huge pages, without a further call",
        absent: Verdict::Limited,
        without: "The first spawn in a slot takes one more call; kernels have it since 6.7.",
    },
];

const SNAPSHOTS: [Wanted; 1] = [Wanted {
    probe: Probe::TrackWrites,
    name: "userfaultfd WP_ASYNC",
    works: "the kernel notes which pages were written since the last snapshot, or reset",
    absent: Verdict::Limited,
    without: "All private pages are compared with the last snapshot, and what runs write seldom is \
              discarded at resets instead of kept under protection. Permit the system call in the \
              seccomp filter of the container; kernels have it since 6.7.",
}];

/// Whether memories can grow in files.
fn growth_in_files() -> Finding {
    let name = "growth by ftruncate";
    match pagefork::grows_in_files() {
        true => Finding::new(
            Verdict::Ok,
            name,
            "what is beyond the end of a file in memory cannot be accessed (for --growth ftruncate)",
        ),
        false => Finding::new(
            Verdict::Limited,
            name,
            "Memories grow by mprotect where --growth ftruncate is asked for: files in memory are \
             refused, or do not bound what is mapped.",
        ),
    }
}

/// Whether touches can decide what memories have.
fn growth_by_faults() -> Finding {
    let name = "growth by fault";
    match GrowthKind::Fault.lack() {
        None => Finding::new(
            Verdict::Ok,
            name,
            "a touch beyond the size of a memory is a signal that nothing is done about (for --growth \
             fault)",
        ),
        Some(GrowthReason::WritableCounts) => Finding::new(
            Verdict::Limited,
            name,
            "Memories grow by mprotect where --growth fault is asked for: memory that can be written \
             counts against a limit here, and all that memories may become can be. Set \
             vm.overcommit_memory to 0 or 1, and lift RLIMIT_DATA (ulimit -d unlimited).",
        ),
        Some(_) => Finding::new(
            Verdict::Limited,
            name,
            "Memories grow by mprotect where --growth fault is asked for. Permit the system call \
             userfaultfd in the seccomp filter of the container.",
        ),
    }
}

/// Whether writes can be noticed without the kernel's notes.
fn read_only_pages() -> Finding {
    let name = "read-only pages";
    match pagefork_pages::protects_writes() {
        true => Finding::new(
            Verdict::Ok,
            name,
            "pages become writable again when somebody writes to them (for --deltas protect)",
        ),
        false => Finding::new(
            Verdict::Limited,
            name,
            "All private pages are compared where --deltas protect is asked for: memory that can be written \
             counts against a limit here, and may not become writable again. Set vm.overcommit_memory to \
             0 or 1, and lift RLIMIT_DATA (ulimit -d unlimited).",
        ),
    }
}

/// Whether pages can get their contents when they are touched.
fn touches() -> Finding {
    let name = "userfaultfd touches";
    match pagefork_pages::faults_at_touches() {
        true if pagefork_pages::faults_in_messages() => Finding::new(
            Verdict::Ok,
            name,
            "a touch of a page without contents is a signal in the thread that touches it, or a message to \
             others (for --reset fault)",
        ),
        true => Finding::new(
            Verdict::Limited,
            name,
            "Who touches a page copies it where --reset fault=N asks for threads that do (for --reset fault): \
             those need Linux 6.6 or later.",
        ),
        false => Finding::new(
            Verdict::Limited,
            name,
            "Written pages are discarded where --reset fault is asked for. Permit the system call \
             userfaultfd in the seccomp filter of the container.",
        ),
    }
}

/// Whether writes can be noticed by faults in the thread that writes.
fn write_faults() -> Finding {
    let name = "userfaultfd write faults";
    match pagefork_pages::faults_at_writes() {
        true => Finding::new(
            Verdict::Ok,
            name,
            "a write to a protected page is a signal in the thread that writes (for --deltas fault)",
        ),
        false => Finding::new(
            Verdict::Limited,
            name,
            "All private pages are compared where --deltas fault is asked for. Permit the system call \
             userfaultfd in the seccomp filter of the container; kernels do it since 5.19.",
        ),
    }
}

/// Whether programs go on before their pages are here.
fn absent_pages() -> Finding {
    let name = "userfaultfd SIGBUS";
    match pagefork::serves_absent_pages() {
        true => Finding::new(
            Verdict::Ok,
            name,
            "a thread that touches an absent page waits until it has come",
        ),
        false => Finding::new(
            Verdict::Limited,
            name,
            "Images are fetched whole before programs go on. Permit the system call userfaultfd in the \
             seccomp filter of the container; no privilege is needed, and kernels have it since 5.11.",
        ),
    }
}

/// Whether who connects over TLS waits for one round trip less.
fn early_bytes() -> Finding {
    let name = "TCP Fast Open";
    /// The bit of who listens; that of who connects is usually set.
    const SERVER: u32 = 2;
    /// Who connects need not have done so before.
    const UNCHECKED: u32 = 0x200;
    let setting = fs::read_to_string("/proc/sys/net/ipv4/tcp_fastopen").unwrap_or_default();
    // As decimal numbers, as the system writes them.
    match setting.trim().parse().unwrap_or(0) {
        bits if bits & (SERVER | UNCHECKED) == SERVER | UNCHECKED => Finding::new(
            Verdict::Limited,
            name,
            "Anybody can begin connections to a node here in the name of others, up to half of those that it \
             takes: `sysctl net.ipv4.tcp_fastopen=3` has the system check addresses.",
        ),
        bits if bits & SERVER != 0 => Finding::new(
            Verdict::Ok,
            name,
            "who connects to a node here over TLS again waits for a round trip less",
        ),
        _ => Finding::new(
            Verdict::Limited,
            name,
            "Who connects to a node here over TLS waits for a round trip more than over QUIC. \
             `sysctl net.ipv4.tcp_fastopen=3` spares it, from the second connection of an address on. (Where something on the way drops \
             what it does not know, each connection takes a second more then.)",
        ),
    }
}

fn limits() -> Vec<Finding> {
    let limits = HostLimits::read();
    let slot = slot_size();
    let mut lines = Vec::new();
    let mut room = |name: &str, says: String, instances: u64, advice: &str| {
        let (state, advice) = match instances {
            0 => (Verdict::Limited, format!(": {advice}")),
            1..INSTANCES_COMFORTABLE => (Verdict::Limited, format!(": {advice}")),
            _ => (Verdict::Ok, String::new()),
        };
        let detail = format!("{says}: room for {instances} instances{advice}");
        lines.push(Finding::new(state, name, detail));
    };

    let free = ADDRESS_SPACE.saturating_sub(limits.mapped);
    let says = format!("47 bits, {} a slot with a memory", show::size(slot));
    room("address space", says, free / slot, "spread instances over processes");
    if let Some((count, limit)) = limits.maps {
        let says = format!("{limit}, {count} in use, {MAPS_PER_SLOT} a slot");
        let advice = "raise it with `sysctl vm.max_map_count=N`";
        room("vm.max_map_count", says, limit.saturating_sub(count) / MAPS_PER_SLOT, advice);
    }
    if let Some(limit) = limits.mapped_max {
        let says = format!("{}, {} in use", show::size(limit), show::size(limits.mapped));
        let advice = "raise it with `ulimit -v unlimited`";
        // Where address space is limited each slot has a guard of its own below it.
        let each = slot + PRE_GUARD;
        room("RLIMIT_AS", says, limit.saturating_sub(limits.mapped) / each, advice);
    } else {
        lines.push(Finding::new(Verdict::Ok, "RLIMIT_AS", "unlimited"));
    }
    lines.push(match limits.descriptors_max {
        Some(limit) if limit < DESCRIPTORS_COMFORTABLE => {
            let detail = format!(
                "{limit}: the first {OWN_FILES_MAX} images of a process take one each, large ones \
                 up to {OWN_FILES_LARGE_MAX}: raise it with `ulimit -n N`"
            );
            Finding::new(Verdict::Limited, "RLIMIT_NOFILE", detail)
        }
        Some(limit) => {
            let detail = format!("{limit}: room for any number of images, which share files");
            Finding::new(Verdict::Ok, "RLIMIT_NOFILE", detail)
        }
        None => Finding::new(Verdict::Ok, "RLIMIT_NOFILE", "unlimited"),
    });
    for (name, limit, option) in
        [("RLIMIT_DATA", limits.data_max, "-d"), ("RLIMIT_FSIZE", limits.file_size_max, "-f")]
    {
        lines.push(match limit {
            None => Finding::new(Verdict::Ok, name, "unlimited"),
            Some(limit) => {
                let detail = format!(
                    "{}: memories and images may meet it: raise it with `ulimit {option} unlimited`",
                    show::size(limit)
                );
                Finding::new(Verdict::Limited, name, detail)
            }
        });
    }
    lines.push(match limits.commit {
        None => Finding::new(Verdict::Ok, "vm.overcommit_memory", "only touched pages count"),
        Some((committed, limit)) => {
            let detail = format!(
                "2: accessible pages count even if untouched, {} of {} are promised: set it to 0 \
                 with `sysctl vm.overcommit_memory=0`",
                show::size(committed),
                show::size(limit)
            );
            Finding::new(Verdict::Limited, "vm.overcommit_memory", detail)
        }
    });
    lines
}

/// Bytes of a slot with a memory.
fn slot_size() -> u64 {
    use pagefork_layout::slot::{MEMORY_GUARD, MEMORY_RESERVATION, SLOT_ALIGN};
    let compiled = Engine::new(&Config::new()).and_then(|engine| Module::new(&engine, GUEST));
    compiled.map_or(MEMORY_RESERVATION + MEMORY_GUARD + SLOT_ALIGN, |module| {
        module.compiled().layout.size
    })
}

#[cfg(test)]
mod tests {
    use pagefork_pages::ResetKind::{self, Auto, Copy, Discard, Remap};

    use super::*;

    #[test]
    fn what_replaces_a_strategy_is_named_with_its_reason() {
        let line = |used: ResetKind, reason| chosen(&Choice { asked: Auto, used, reason });
        let good = line(Auto, Reason::Asked);
        assert_eq!((good.state, good.detail.starts_with("auto")), (Verdict::Ok, true));
        for (used, reason, words) in [
            (Copy, Reason::CopyOnWriteOff, "switched off"),
            (Remap, Reason::DiscardDoesNothing, "MADV_DONTNEED does nothing"),
            (Discard, Reason::NoPageMap, "neither PAGEMAP_SCAN nor"),
            (Auto, Reason::ReadsPageMap, "PAGEMAP_SCAN is missing"),
        ] {
            let Finding { state, detail, .. } = line(used, reason);
            assert_eq!(state, Verdict::Limited);
            assert!(detail.starts_with(&used.to_string()) && detail.contains(words), "{detail}");
        }
    }
}
