//! Compiled modules in files: *code images* that can be mapped and run as they
//! are.
//!
//! ```text
//!  0        128                                      n * 4096
//!  | header | compiler's version | manifest | zeros | text ... |
//!  '--------head, hashed as one---------------------'--hashed--'
//! ```
//!
//! The header, all numbers little-endian:
//!
//! ```text
//!   0  magic: 93 50 41 47 45 46 52 4b      40  bytes of the text: u64
//!   8  version of this format: u32         48  zeros
//!  12  version of the ABI: u32             64  BLAKE3 of the text
//!  16  bytes of the compiler's version: u32  96  BLAKE3 of the head but for these
//!  20  zeros                                   32 bytes
//!  24  bytes of the manifest: u64
//!  32  offset of the text: u64            128
//! ```
//!
//! The hashes find damage, not malice: an attacker who writes a file can hash it too.
//! A code image is machine code, and as trusted as any executable; what is
//! checked beyond the hashes keeps mistakes from becoming more than errors.

use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::LazyLock;

use pagefork_layout::ABI_VERSION;
use pagefork_layout::page::round_up;
use serde::{Deserialize, Serialize};

use crate::base::error::CompileError;
use crate::base::module::{CompiledModule, TEXT_SIZE_MAX};
use crate::base::options::CompileOptions;
use crate::base::target::CpuLevel;
use crate::base::threads;

/// Whether a manifest means something: indices, ranges and sizes.
mod check;

use self::check::TextParts;

/// What every code image begins with. No text begins so, and no module.
pub const MAGIC: [u8; 8] = *b"\x93PAGEFRK";

/// Version of the file format, and of what code in files relies on outside of slots: the records of
/// imported functions. What slots have is of [`ABI_VERSION`], as images are.
pub const FORMAT_VERSION: u32 = 5;

/// Cranelift's version: said here because what only reads code images is built without it.
const CRANELIFT_VERSION: &str = "0.135.8";

#[cfg(feature = "cranelift")]
const _: () = {
    let (said, used) = (CRANELIFT_VERSION.as_bytes(), cranelift_codegen::VERSION.as_bytes());
    let mut at = 0;
    while at < said.len() {
        assert!(said.len() == used.len() && said[at] == used[at], "another version of Cranelift");
        at += 1;
    }
};

/// The compiler's version: code images are those of this one or are refused.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let (own, sources) = (env!("CARGO_PKG_VERSION"), env!("PAGEFORK_SOURCES"));
        format!("{own} (cranelift {CRANELIFT_VERSION}, sources {sources})")
    });
    &VERSION
}

const HEADER_SIZE: usize = 128;
/// Where the versions end, by which the rest is known.
const VERSIONS_END: usize = 16;
const TEXT_HASH: Range<usize> = 64..96;
const HEAD_HASH: Range<usize> = 96..128;
/// Longer versions are refused.
const VERSION_SIZE_MAX: u64 = 256;
/// Modules are at most as large, and so is what they declare.
const MANIFEST_SIZE_MAX: u64 = 1 << 30;
/// How much of a text is read at once: it stays in the cache until it is hashed.
const CHUNK: usize = 256 << 10;
/// From how many bytes on several threads hash faster than one.
const MANY: usize = 1 << 20;

/// What code is a function of: the module's bytes, the compiler and its options,
/// and the machine. Displayed, it is 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct CodeKey {
    module: [u8; 32],
    key: [u8; 32],
    /// What the code needs, which may be less than the machine has that it is on by now.
    level: CpuLevel,
}

impl CodeKey {
    /// The key of what `compile` makes of these bytes on this
    /// machine.
    ///
    /// # Errors
    /// If there is no code for this machine.
    pub fn new(wasm: &[u8], options: &CompileOptions) -> Result<Self, CompileError> {
        let level = CpuLevel::of_this_machine()?;
        let module: [u8; 32] = add(&mut blake3::Hasher::new(), wasm).finalize().into();
        let about = (FORMAT_VERSION, ABI_VERSION, version(), level, options, module);
        let about = postcard::to_allocvec(&about).expect("plain data in memory");
        Ok(Self { module, key: blake3::hash(&about).into(), level })
    }

    /// What the code needs of a processor.
    pub fn level(&self) -> CpuLevel {
        self.level
    }

    /// BLAKE3 of the module's bytes.
    pub fn module_hash(&self) -> [u8; 32] {
        self.module
    }
}

impl fmt::Display for CodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a code image must be for.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// How it was compiled.
    pub options: &'a CompileOptions,
    /// What it runs on.
    pub machine: CpuLevel,
    /// What it was compiled from, where that is known.
    pub key: Option<CodeKey>,
}

/// A module from a file.
#[derive(Debug)]
pub struct FileContents {
    /// The module. Its text is empty unless it was asked for.
    pub module: CompiledModule,
    /// Where the text is in the file: bytes, from a multiple of the page size.
    pub text: Range<u64>,
    /// What it was compiled from.
    pub key: CodeKey,
}

/// Why a code image was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodeImageError {
    /// It begins in another way.
    #[error("this is no code image of Pagefork: it begins in another way")]
    NotACodeImage,
    /// It is of another format or for another runtime.
    #[error(
        "the code image is of format {format} with ABI {abi}, this is format {FORMAT_VERSION} \
         with ABI {ABI_VERSION}: compile the module again"
    )]
    OtherFormat {
        /// Version of the file format.
        format: u32,
        /// Version of the ABI.
        abi: u32,
    },
    /// Another compiler made it.
    #[error(
        "the code image was made by version {0}, this is version {own}: compile the module again",
        own = version()
    )]
    OtherCompiler(String),
    /// It was compiled in another way than this engine compiles.
    #[error("the code image was made with other settings than this engine has: {0}")]
    OtherSettings(String),
    /// It is for a processor that can do more.
    #[error(
        "the code image is for {needed} processors, this one is {found}: compile the module again \
         on this machine"
    )]
    OtherMachine {
        /// What it needs.
        needed: CpuLevel,
        /// What there is.
        found: CpuLevel,
    },
    /// It was compiled from another module than expected.
    #[error("the code image was made from another module")]
    OtherModule,
    /// It was cut short or altered.
    #[error("the code image is damaged: {0}; compile the module again")]
    Damaged(&'static str),
    /// Its hashes are right and yet it makes no sense.
    #[error("the code image is wrong about itself: {0}")]
    Inconsistent(&'static str),
    /// It could not be read.
    #[error("cannot read the code image: {0}")]
    Read(#[from] io::Error),
}

/// Whether a file that begins with these bytes is meant to be a code image.
pub fn is_code_image(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// A code image up to its text, which follows: together they are the file.
/// `text` is the module's, wherever it lies.
pub fn head(
    module: &CompiledModule,
    text: &[u8],
    options: &CompileOptions,
    key: CodeKey,
) -> Vec<u8> {
    let origin = Provenance { key, options: options.clone() };
    let mut head = vec![0; HEADER_SIZE];
    head.extend(version().as_bytes());
    let manifest_start = head.len();
    let mut head = postcard::to_extend(&(origin, module), head).expect("plain data in memory");
    let manifest_size = (head.len() - manifest_start) as u64;
    head.resize(round_up(head.len() as u64) as usize, 0);

    let text_offset = head.len() as u64;
    let mut put = |at: usize, bytes: &[u8]| head[at..][..bytes.len()].copy_from_slice(bytes);
    put(0, &MAGIC);
    put(8, &FORMAT_VERSION.to_le_bytes());
    put(12, &ABI_VERSION.to_le_bytes());
    put(16, &(version().len() as u32).to_le_bytes());
    put(24, &manifest_size.to_le_bytes());
    put(32, &text_offset.to_le_bytes());
    put(40, &(text.len() as u64).to_le_bytes());
    put(TEXT_HASH.start, add(&mut blake3::Hasher::new(), text).finalize().as_bytes());
    let hash = head_hash(&head[..HEADER_SIZE], &head[HEADER_SIZE..]);
    head[HEAD_HASH].copy_from_slice(hash.as_bytes());
    head
}

/// Reads a code image from its first byte to its last, verifies it, and keeps the
/// text if `with_text`.
///
/// # Errors
/// If it is no code image, or damaged, or not what is expected.
pub fn read(
    source: &mut impl Read,
    expected: &Expected<'_>,
    with_text: bool,
) -> Result<FileContents, CodeImageError> {
    let mut header = [0; HEADER_SIZE];
    let size = fill(source, &mut header)?;
    let header = Header::parse(&header, size)?;
    let rest = header.rest(source)?;
    header.verify(&rest)?;
    let (mut module, key, parts) = header.module(&rest, expected)?;
    let text = header.text(source, parts, with_text)?;
    check::descriptors(&module, &text.descriptors)
        .and_then(|()| check::lists(&module.code, &text.lists))
        .map_err(CodeImageError::Inconsistent)?;
    module.code.text = text.kept;
    Ok(FileContents { module, text: header.text_place(), key })
}

/// As [`read`], of a file of `size` bytes whose hash is known to be right: nothing is hashed, and of
/// the text, which stays in the file, only the descriptors are read: no list, no data. `read_at` fills bytes from
/// an offset on.
///
/// # Errors
/// As [`read`].
pub fn read_known(
    mut read_at: impl FnMut(&mut [u8], u64) -> io::Result<()>,
    size: u64,
    expected: &Expected<'_>,
) -> Result<FileContents, CodeImageError> {
    let mut header = [0; HEADER_SIZE];
    let present = size.min(HEADER_SIZE as u64) as usize;
    read_at(&mut header[..present], 0)?;
    let header = Header::parse(&header, present)?;
    let text = header.text_place();
    if text.end != size {
        return Err(if text.end > size { CUT_SHORT } else { LONGER });
    }
    let mut rest = vec![0; (text.start - HEADER_SIZE as u64) as usize];
    read_at(&mut rest, HEADER_SIZE as u64)?;
    let (module, key, TextParts { descriptors, .. }) = header.module(&rest, expected)?;
    let mut bytes = vec![0; (descriptors.end - descriptors.start) as usize];
    read_at(&mut bytes, text.start + u64::from(descriptors.start))?;
    check::descriptors(&module, &bytes).map_err(CodeImageError::Inconsistent)?;
    Ok(FileContents { module, text, key })
}

/// What code was compiled from and for.
#[derive(Serialize, Deserialize)]
struct Provenance {
    key: CodeKey,
    options: CompileOptions,
}

impl Provenance {
    fn check(&self, expected: &Expected<'_>) -> Result<(), CodeImageError> {
        let differences = differences(&self.options, expected.options);
        if !differences.is_empty() {
            return Err(CodeImageError::OtherSettings(differences.join(", ")));
        }
        if self.key.level > expected.machine {
            let (needed, found) = (self.key.level, expected.machine);
            return Err(CodeImageError::OtherMachine { needed, found });
        }
        match expected.key {
            Some(key) if key != self.key => Err(CodeImageError::OtherModule),
            _ => Ok(()),
        }
    }
}

/// Which settings differ, in words. Works from what `Debug` shows, so that no
/// setting can be forgotten.
fn differences(made: &CompileOptions, wanted: &CompileOptions) -> Vec<String> {
    let CompileOptions { verify_ir, cost, .. } = *wanted;
    let made = CompileOptions { verify_ir, cost, ..made.clone() };
    if made == *wanted {
        return Vec::new();
    }
    let (made, wanted) = (format!("{made:#?}"), format!("{wanted:#?}"));
    let pairs = made.lines().zip(wanted.lines()).filter(|(made, wanted)| made != wanted);
    let trim = |line: &str| line.trim().trim_end_matches(',').to_owned();
    pairs.map(|(made, wanted)| format!("{} instead of {}", trim(made), trim(wanted))).collect()
}

const CUT_SHORT: CodeImageError = CodeImageError::Damaged("it was cut short");
const LONGER: CodeImageError = CodeImageError::Damaged("something follows its end");

/// The header as far as it can be judged alone: the sizes are plausible.
struct Header {
    bytes: [u8; HEADER_SIZE],
    version_size: usize,
    manifest_size: usize,
    text_offset: u64,
    text_size: u32,
}

/// A text that has been read and verified.
#[derive(Default)]
struct TextReader {
    descriptors: Vec<u8>,
    /// Traps and call sites.
    lists: Vec<u8>,
    /// All of it, or nothing.
    kept: Vec<u8>,
}

impl Header {
    /// Only the first `present` bytes are there.
    fn parse(bytes: &[u8; HEADER_SIZE], present: usize) -> Result<Self, CodeImageError> {
        let magic = present.min(MAGIC.len());
        if bytes[..magic] != MAGIC[..magic] {
            return Err(CodeImageError::NotACodeImage);
        }
        if present < VERSIONS_END {
            return Err(CUT_SHORT);
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..][..4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..][..8].try_into().expect("8 bytes"));
        let (format, abi) = (word(8), word(12));
        if (format, abi) != (FORMAT_VERSION, ABI_VERSION) {
            return Err(CodeImageError::OtherFormat { format, abi });
        }
        if present < HEADER_SIZE {
            return Err(CUT_SHORT);
        }
        let (version_size, manifest_size) = (u64::from(word(16)), long(24));
        let (text_offset, text_size) = (long(32), long(40));
        let plausible = version_size <= VERSION_SIZE_MAX
            && manifest_size <= MANIFEST_SIZE_MAX
            && text_size <= TEXT_SIZE_MAX as u64
            && text_offset == round_up(HEADER_SIZE as u64 + version_size + manifest_size);
        if !plausible {
            return Err(CodeImageError::Damaged("its header is impossible"));
        }
        Ok(Self {
            bytes: *bytes,
            version_size: version_size as usize,
            manifest_size: manifest_size as usize,
            text_offset,
            text_size: text_size as u32,
        })
    }

    /// Where the text lies in the file.
    fn text_place(&self) -> Range<u64> {
        self.text_offset..self.text_offset + u64::from(self.text_size)
    }

    /// The module that the bytes between header and text describe, what it was compiled from, and
    /// which parts of the text are to be judged.
    fn module(
        &self,
        rest: &[u8],
        expected: &Expected<'_>,
    ) -> Result<(CompiledModule, CodeKey, TextParts), CodeImageError> {
        let (found, manifest) = rest.split_at(self.version_size);
        if found != version().as_bytes() {
            return Err(CodeImageError::OtherCompiler(String::from_utf8_lossy(found).into_owned()));
        }
        let wrong = CodeImageError::Inconsistent("its manifest cannot be read");
        let manifest = &manifest[..self.manifest_size];
        // The module comes second: what it is compiled for is judged before.
        let Ok((origin, module)) = postcard::take_from_bytes::<Provenance>(manifest) else {
            return Err(wrong);
        };
        origin.check(expected)?;
        let Ok((module, [])) = postcard::take_from_bytes::<CompiledModule>(module) else {
            return Err(wrong);
        };
        let parts = check::manifest(&module, &expected.options.limits, self.text_size)
            .map_err(CodeImageError::Inconsistent)?;
        Ok((module, origin.key, parts))
    }

    /// # Errors
    /// If the hash of the head is another.
    fn verify(&self, rest: &[u8]) -> Result<(), CodeImageError> {
        match head_hash(&self.bytes, rest).as_bytes() == &self.bytes[HEAD_HASH] {
            true => Ok(()),
            false => Err(CodeImageError::Damaged("the hash of its head is another")),
        }
    }

    /// What follows up to the text.
    fn rest(&self, source: &mut impl Read) -> Result<Vec<u8>, CodeImageError> {
        let size = self.text_offset - HEADER_SIZE as u64;
        let mut rest = Vec::new();
        // Memory is taken as bytes arrive, not as a header promises them.
        if source.by_ref().take(size).read_to_end(&mut rest)? as u64 != size {
            return Err(CUT_SHORT);
        }
        Ok(rest)
    }

    /// The text, which ends the file.
    fn text(
        &self,
        source: &mut impl Read,
        parts: TextParts,
        keep: bool,
    ) -> Result<TextReader, CodeImageError> {
        let mut hasher = blake3::Hasher::new();
        let mut text = TextReader::default();
        let mut chunk = vec![0; CHUNK.min(self.text_size as usize)];
        let mut place = 0;
        while place < self.text_size {
            let size = chunk.len().min((self.text_size - place) as usize);
            let chunk = &mut chunk[..size];
            if fill(source, chunk)? < size {
                return Err(CUT_SHORT);
            }
            hasher.update(chunk);
            if keep {
                text.kept.extend_from_slice(chunk);
            }
            let end = place + size as u32;
            for (part, into) in
                [(&parts.descriptors, &mut text.descriptors), (&parts.lists, &mut text.lists)]
            {
                let wanted = part.start.max(place)..part.end.min(end);
                if !wanted.is_empty() {
                    let wanted = (wanted.start - place) as usize..(wanted.end - place) as usize;
                    into.extend_from_slice(&chunk[wanted]);
                }
            }
            place = end;
        }
        if fill(source, &mut [0])? > 0 {
            return Err(LONGER);
        }
        if hasher.finalize().as_bytes() != &self.bytes[TEXT_HASH] {
            return Err(CodeImageError::Damaged("the hash of its machine code is another"));
        }
        Ok(text)
    }
}

fn head_hash(header: &[u8], rest: &[u8]) -> blake3::Hash {
    add(blake3::Hasher::new().update(&header[..HEAD_HASH.start]), rest).finalize()
}

/// Hashes bytes, on all threads if they are [`MANY`].
fn add<'a>(hasher: &'a mut blake3::Hasher, bytes: &[u8]) -> &'a mut blake3::Hasher {
    match bytes.len() < MANY {
        true => hasher.update(bytes),
        false => threads::on_all(|| hasher.update_rayon(bytes)),
    }
}

/// Reads until `into` is full or the source ends; returns the bytes read.
fn fill(source: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match source.read(&mut into[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
