//! Names of compiled functions for Linux's profiler `perf`, in its two formats:
//! perf maps (tools/perf/Documentation/jit-interface.txt) and jitdump
//! (tools/perf/Documentation/jitdump-specification.txt).
//!
//! Both are one file a process, which all engines of the process share.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use pagefork_layout::code::{CodeImage, CodeKind};
use pagefork_layout::module::{Item, ModuleInfo};
use pagefork_layout::page::PAGE_SIZE;
use pagefork_layout::text::OneLine;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::time::{ClockId, clock_gettime};

use crate::base::error::SystemError;
use crate::code::code_memory::CodeMemory;

/// What the profiler `perf` is told about compiled code.
///
/// # Examples
///
/// ```
/// use pagefork::{Config, Engine, Profile};
///
/// let engine = Engine::new(Config::new().profile(Profile::None))?;
/// assert_eq!(Profile::default(), Profile::None);
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Profile {
    /// Nothing.
    #[default]
    None,
    /// Names, in `/tmp/perf-PID.map`. `perf record` needs no option; `perf report`
    /// reads the file. Where code was unmapped and other code mapped in its place,
    /// it mistakes the one for the other.
    PerfMap,
    /// Names and machine code, in `jit-PID.dump` in the directory that the variable
    /// `JITDUMPDIR` names, or else in the working directory. `perf record -k mono`
    /// notes the file, `perf inject --jit` takes the code over, and `perf report`
    /// and `perf annotate` then know it.
    JitDump,
}

impl Profile {
    /// Makes the file.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn open(self) -> Result<(), SystemError> {
        self.write(|_| Ok(()))
    }

    /// Tells about code that was mapped just now. A disk that is full by now costs
    /// a profile its names, and no program fails for it.
    pub(crate) fn register(self, memory: &CodeMemory, code: &CodeImage, info: &ModuleInfo) {
        if self == Self::None || code.functions.is_empty() {
            return;
        }
        let pieces: Vec<Piece<'_>> = pieces(memory, code, info).collect();
        let _ = self.write(|writer| writer.pieces(&pieces));
    }

    /// Writes to this process's file, which is made first where there is none.
    fn write(
        self,
        write: impl FnOnce(&mut ProfileWriter) -> io::Result<()>,
    ) -> Result<(), SystemError> {
        static PERF_MAP: Mutex<Option<ProfileWriter>> = Mutex::new(None);
        static JIT_DUMP: Mutex<Option<ProfileWriter>> = Mutex::new(None);
        let writer = match self {
            Self::None => return Ok(()),
            Self::PerfMap => &PERF_MAP,
            Self::JitDump => &JIT_DUMP,
        };
        // A panic elsewhere leaves a file to which more can be appended.
        let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        let path = || match self {
            Self::JitDump => jit_dump_path(std::env::var_os("JITDUMPDIR"), process),
            _ => PathBuf::from(format!("/tmp/perf-{process}.map")),
        };
        let failed = |source| SystemError::Profile { path: path(), source };
        // The child of a fork has a file of its own.
        if writer.as_ref().is_none_or(|writer| writer.process != process) {
            *writer = Some(ProfileWriter::new(self, &path(), process).map_err(failed)?);
        }
        write(writer.as_mut().expect("made above")).map_err(failed)
    }
}

fn jit_dump_path(directory: Option<std::ffi::OsString>, process: u32) -> PathBuf {
    let directory = directory.filter(|directory| !directory.is_empty());
    let name = format!("jit-{process}.dump");
    directory.map_or(PathBuf::from("."), PathBuf::from).join(name)
}

/// A piece of compiled code, where it is mapped.
struct Piece<'a> {
    address: usize,
    bytes: &'a [u8],
    name: String,
}

fn pieces<'a>(
    memory: &'a CodeMemory,
    code: &'a CodeImage,
    info: &'a ModuleInfo,
) -> impl Iterator<Item = Piece<'a>> {
    let imports: Vec<&pagefork_layout::module::Import> =
        info.imports.iter().filter(|import| matches!(import.item, Item::Func(_))).collect();
    code.functions.iter().map(move |range| {
        let (start, size) = (range.start as usize, range.size as usize);
        let name = match range.kind {
            CodeKind::Function(index) | CodeKind::Checked(index) => {
                match imports.get(index as usize) {
                    Some(import) => format!("import {}.{}", import.module, import.name),
                    None => info
                        .function_name(index)
                        .map_or_else(|| format!("wasm-function[{index}]"), str::to_owned),
                }
            }
            CodeKind::Entry(ty) => format!("entry {}", info.types[ty as usize]),
            CodeKind::DirectEntry(ty) => format!("direct entry {}", info.types[ty as usize]),
            CodeKind::Foreign(ty) => format!("foreign call {}", info.types[ty as usize]),
            CodeKind::Cross(ty) => format!("cross-instance call {}", info.types[ty as usize]),
            CodeKind::Throw => "throw".to_owned(),
            CodeKind::Trap(code) => format!("trap: {code}"),
            CodeKind::Copy(memory) => format!("copy within memory {memory}"),
            CodeKind::Fill(memory) => format!("fill memory {memory}"),
        };
        let bytes = &memory.text()[start..start + size];
        Piece { address: memory.start() + start, bytes, name: OneLine(&name).to_string() }
    })
}

/// The file of a process.
struct ProfileWriter {
    process: u32,
    file: File,
    /// Whether it ends within something: then nothing can follow.
    broken: bool,
    /// `None` for perf maps, which number nothing.
    next_index: Option<u64>,
}

impl ProfileWriter {
    fn new(profile: Profile, path: &Path, process: u32) -> io::Result<Self> {
        // A file of an earlier process of this number is no use to anybody. Made
        // anew it is ours, even where others can write to the directory.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file =
            OpenOptions::new().read(true).append(true).create_new(true).mode(0o600).open(path)?;
        let next_index = (profile == Profile::JitDump).then_some(0);
        let mut writer = Self { process, file, broken: false, next_index };
        if next_index.is_some() {
            writer.append(&header(process))?;
            writer.show_to_perf()?;
        }
        Ok(writer)
    }

    /// Maps the file executable for good: `perf record` notes such maps with their
    /// files' names, and so learns of this one.
    fn show_to_perf(&self) -> io::Result<()> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::EXEC, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping where the kernel finds room; nothing uses it yet.
        unsafe { mmap(ptr::null_mut(), PAGE_SIZE as usize, access, flags, &self.file, 0)? };
        Ok(())
    }

    fn pieces(&mut self, pieces: &[Piece<'_>]) -> io::Result<()> {
        let Some(next_index) = &mut self.next_index else {
            let mut lines = String::new();
            for Piece { address, bytes, name } in pieces {
                let _ = writeln!(lines, "{address:x} {:x} {name}", bytes.len());
            }
            return self.append(lines.as_bytes());
        };
        let mut records = Vec::new();
        for piece in pieces {
            load_record(&mut records, self.process, *next_index, piece);
            *next_index += 1;
        }
        self.append(&records)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.broken {
            return Ok(());
        }
        self.file.write_all(bytes).inspect_err(|_| self.broken = true)
    }
}

/// What a jitdump begins with.
fn header(process: u32) -> Vec<u8> {
    const MAGIC: u32 = 0x4a69_5444;
    const VERSION: u32 = 1;
    const SIZE: u32 = 40;
    const EM_X86_64: u32 = 62;
    let mut header = Vec::new();
    for word in [MAGIC, VERSION, SIZE, EM_X86_64, 0, process] {
        header.extend(word.to_le_bytes());
    }
    header.extend(now().to_le_bytes());
    // No flags: the time is that of CLOCK_MONOTONIC.
    header.extend(0u64.to_le_bytes());
    debug_assert_eq!(header.len(), SIZE as usize);
    header
}

/// Appends a record that says what is loaded where.
fn load_record(records: &mut Vec<u8>, process: u32, index: u64, piece: &Piece<'_>) {
    const JIT_CODE_LOAD: u32 = 0;
    const FIXED_SIZE: usize = 56;
    let Piece { address, bytes, name } = piece;
    let size = FIXED_SIZE + name.len() + 1 + bytes.len();
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    for word in [JIT_CODE_LOAD, size as u32] {
        records.extend(word.to_le_bytes());
    }
    records.extend(now().to_le_bytes());
    for word in [process, thread] {
        records.extend(word.to_le_bytes());
    }
    let address = *address as u64;
    for word in [address, address, bytes.len() as u64, index] {
        records.extend(word.to_le_bytes());
    }
    records.extend(name.as_bytes());
    records.push(0);
    records.extend(*bytes);
}

/// Nanoseconds of CLOCK_MONOTONIC.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let name = format!("pagefork-profile-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    fn half(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn a_jitdump_is_as_its_specification_says_and_mapped_for_perf() {
        let directory = directory("jitdump");
        let path = directory.join("jit-7.dump");
        // What an earlier process left, even a link, is replaced.
        std::os::unix::fs::symlink("/nowhere/else", &path).unwrap();
        let start = now();
        let mut writer = ProfileWriter::new(Profile::JitDump, &path, 7).unwrap();
        let pieces = [
            Piece { address: 0x1000, bytes: &[1, 2, 3], name: "first".to_owned() },
            Piece { address: 0x1010, bytes: &[4; 20], name: String::new() },
        ];
        writer.pieces(&pieces).unwrap();
        writer.pieces(&pieces[..1]).unwrap();

        let bytes = fs::read(&path).unwrap();
        // "JiTD", as a number of this machine.
        assert_eq!(bytes[..4], *b"DTiJ");
        let header: Vec<u32> = (1..6).map(|i| half(&bytes, 4 * i)).collect();
        assert_eq!(header, [1, 40, 62, 0, 7]);
        assert!(word(&bytes, 24) >= start && word(&bytes, 32) == 0);
        let (mut at, mut time) = (40, word(&bytes, 24));
        for (index, piece) in [&pieces[0], &pieces[1], &pieces[0]].into_iter().enumerate() {
            assert_eq!(half(&bytes, at), 0, "a load");
            let size = half(&bytes, at + 4) as usize;
            assert!(word(&bytes, at + 8) >= time);
            time = word(&bytes, at + 8);
            assert_eq!(half(&bytes, at + 16), 7);
            let words: Vec<u64> = (0..4).map(|i| word(&bytes, at + 24 + 8 * i)).collect();
            let (address, length) = (piece.address as u64, piece.bytes.len() as u64);
            assert_eq!(words, [address, address, length, index as u64]);
            let rest = [piece.name.as_bytes(), &[0], piece.bytes].concat();
            assert_eq!(bytes[at + 56..at + size], rest);
            at += size;
        }
        assert_eq!(at, bytes.len());

        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let map = maps.lines().find(|line| line.ends_with("jit-7.dump")).unwrap();
        assert!(map.contains(" r-xp "), "{map}");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_perf_map_is_a_line_a_piece() {
        let directory = directory("perfmap");
        let path = directory.join("perf-7.map");
        let mut writer = ProfileWriter::new(Profile::PerfMap, &path, 7).unwrap();
        let name = OneLine("a b\nc").to_string();
        writer.pieces(&[Piece { address: 0xabc0, bytes: &[0; 17], name }]).unwrap();
        writer.pieces(&[Piece { address: 1, bytes: &[0], name: "é".to_owned() }]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "abc0 11 a b\\nc\n1 1 é\n");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        let path = Path::new("/nowhere/jit-7.dump");
        let error = ProfileWriter::new(Profile::JitDump, path, 7).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(jit_dump_path(None, 7), Path::new("./jit-7.dump"));
        assert_eq!(jit_dump_path(Some("".into()), 7), Path::new("./jit-7.dump"));
        assert_eq!(jit_dump_path(Some("/a".into()), 7), Path::new("/a/jit-7.dump"));
    }
}
