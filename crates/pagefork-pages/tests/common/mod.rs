//! What the tests of this crate share: small layouts, probes that take no
//! signal, and processes of their own for tests that count.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::ops::Range;
use std::process::Command;
use std::sync::Arc;
use std::{env, fs};

use pagefork_layout::module::{MemoryType, ModuleInfo, RefType, TableType};
use pagefork_layout::slot::{SlotLayout, SlotLimits};
use pagefork_pages::{Image, MemorySize, PagesError, Slot};

pub const PAGE: u64 = 4096;
pub const WASM_PAGE: u64 = 65536;
pub const MIB: u64 = 1 << 20;

/// The slot of a module with one memory and one table that can grow.
pub fn layout() -> SlotLayout {
    layout_of(&[MemoryType::new(0, None)])
}

/// The slot of a module without memory.
pub fn layout_without_memory() -> SlotLayout {
    layout_of(&[])
}

/// The slot of a module with these memories.
pub fn layout_of(memories: &[MemoryType]) -> SlotLayout {
    let module = ModuleInfo {
        memories: memories.to_vec(),
        tables: vec![TableType::new(RefType::FUNCREF, 600, None)],
        ..ModuleInfo::default()
    };
    let limits =
        SlotLimits { stack_size: 64 << 10, table_elements: 16 << 10, ..Default::default() };
    SlotLayout::new(&module, &limits).unwrap()
}

/// A slot whose memories, if it has any, all have these sizes.
pub fn spawn(
    layout: &SlotLayout,
    image: &Arc<Image>,
    initial: u64,
    maximum: u64,
) -> Result<Slot, PagesError> {
    Slot::new(layout, image, &vec![MemorySize { initial, maximum }; layout.memories.len()])
}

/// Bytes that say where they belong: page contents that cannot be mistaken.
pub fn pattern(seed: u8, length: u64) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ seed | 1)
        .collect()
}

/// An image of all tables contents and state and of `memory` bytes of memory.
pub fn dense_image(layout: &SlotLayout, seed: u8, memory: u64) -> (Arc<Image>, Vec<u8>) {
    let extent = layout.image_start..layout.base + memory;
    let bytes = pattern(seed, extent.end - extent.start);
    let image = Image::new("dense", extent.clone(), [(extent.start, &bytes[..])]).unwrap();
    (image, bytes)
}

pub fn empty_image(layout: &SlotLayout) -> Arc<Image> {
    Image::new("empty", layout.base..layout.base, []).unwrap()
}

/// The accessible parts of a slot, as slot offsets, where its memories have these
/// sizes: from the stack to the end of the first memory, then each further one.
pub fn parts(layout: &SlotLayout, memory_sizes: &[u64]) -> Vec<Range<u64>> {
    assert_eq!(memory_sizes.len(), layout.memories.len());
    let first = memory_sizes.first().unwrap_or(&0);
    let further = layout.memories.iter().zip(memory_sizes).skip(1).map(|(place, size)| {
        let start = layout.base + place.offset;
        start..start + size
    });
    std::iter::once(layout.stack.start..layout.base + first).chain(further).collect()
}

/// The sizes of a slot's memories.
pub fn memory_sizes(slot: &Slot) -> Vec<u64> {
    (0..slot.memory_count()).map(|index| slot.memory_size(index)).collect()
}

/// What a slot's accessible bytes must be, by reading its image.
pub fn expected(layout: &SlotLayout, image: &Image, memory_sizes: &[u64]) -> Vec<u8> {
    let mut all = Vec::new();
    for part in parts(layout, memory_sizes) {
        let mut bytes = vec![0; (part.end - part.start) as usize];
        for extent in image.extents().iter().filter(|extent| part.contains(&extent.start)) {
            let at = (extent.start - part.start) as usize;
            let length = (extent.end - extent.start) as usize;
            image.read(extent.start, &mut bytes[at..at + length]).unwrap();
        }
        all.extend(bytes);
    }
    all
}

/// The accessible bytes of a slot, part by part.
pub fn contents(layout: &SlotLayout, slot: &Slot) -> Vec<u8> {
    let mut all = Vec::new();
    for part in parts(layout, &memory_sizes(slot)) {
        let from = slot.start().wrapping_add(part.start as usize);
        // SAFETY: the slot says that this much is accessible, and only this thread
        // uses it.
        all.extend(unsafe { std::slice::from_raw_parts(from, (part.end - part.start) as usize) });
    }
    all
}

/// Asserts that a slot, each of whose memories has this size, is as its image.
#[track_caller]
pub fn assert_as_image(layout: &SlotLayout, slot: &Slot, memory_size: u64) {
    assert_as_image_with(layout, slot, &vec![memory_size; layout.memories.len()]);
}

/// Asserts that a slot is as its image, without printing megabytes.
#[track_caller]
pub fn assert_as_image_with(layout: &SlotLayout, slot: &Slot, sizes: &[u64]) {
    assert_eq!(memory_sizes(slot), sizes);
    let (found, wanted) = (contents(layout, slot), expected(layout, slot.image(), sizes));
    assert_eq!(found.len(), wanted.len());
    if let Some(at) = (0..found.len()).find(|&at| found[at] != wanted[at]) {
        panic!("accessible byte {at:#x} is {:#x}, not {:#x}", found[at], wanted[at]);
    }
}

/// Overwrites all that is accessible.
pub fn overwrite(layout: &SlotLayout, slot: &Slot, byte: u8) {
    for part in parts(layout, &memory_sizes(slot)) {
        let from = slot.start().wrapping_add(part.start as usize);
        // SAFETY: as in `contents`.
        unsafe { from.write_bytes(byte, (part.end - part.start) as usize) };
    }
}

/// Writes one byte at a slot offset.
pub fn poke(slot: &Slot, offset: u64, byte: u8) {
    assert!(accessible(slot, offset), "{offset:#x}");
    // SAFETY: probed above, and only this thread uses the slot.
    unsafe { slot.start().wrapping_add(offset as usize).write_volatile(byte) };
}

/// Whether the byte at a slot offset can be read, found without a signal.
pub fn accessible(slot: &Slot, offset: u64) -> bool {
    let address = slot.start().wrapping_add(offset as usize).addr();
    // The kernel finds no pages that get their contents when they are touched.
    let _ = slot.wait_at(address..address + 1);
    readable(address)
}

/// Whether the byte at an address can be read.
pub fn readable(address: usize) -> bool {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote =
        libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address), iov_len: 1 };
    // SAFETY: the kernel checks the remote address, and the local one is a
    // byte of this frame.
    unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) == 1 }
}

/// Runs `body` in a process of its own, in which no other test runs: `name` is
/// the name of the calling test.
pub fn in_own_process(name: &str, body: impl FnOnce()) {
    const MARK: &str = "PAGEFORK_TEST_CHILD";
    if env::var_os(MARK).is_some() {
        return body();
    }
    let output = Command::new(env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(MARK, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    assert!(text.contains("1 passed"), "no such test: {name}\n{text}");
}

/// What a process holds: number of maps, bytes of address space, descriptors.
#[derive(PartialEq, Eq, Debug, Clone, Copy)]
pub struct Held {
    pub maps: usize,
    pub mapped: u64,
    pub descriptors: usize,
}

pub fn held() -> Held {
    // What counts the faults of a thread belongs to it.
    pagefork_pages::counts_faults_in_memory();
    // Reading allocates; what comes and goes with the heap is not counted.
    let maps = pagefork_pages::procmaps::read().unwrap();
    let counted = maps.iter().filter(|map| map.name != "[heap]");
    Held {
        maps: counted.clone().count(),
        mapped: counted.map(|map| map.range.end - map.range.start).sum(),
        descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
    }
}

/// Has writes to pages that are read-only or write-protected noted, as the runtime's handlers do.
pub fn handle_refused_writes() {
    handle_refused_writes_by(&[libc::SIGSEGV, libc::SIGBUS]);
}

/// Installs the handler of these signals alone, in a process once.
pub fn handle_refused_writes_by(signals: &[libc::c_int]) {
    static INSTALLED: std::sync::Once = std::sync::Once::new();
    unsafe extern "C" fn on_signal(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
    ) {
        // SAFETY: the kernel gives valid structures.
        let (is_write, address) = unsafe {
            let context = &*context.cast::<libc::ucontext_t>();
            let is_write = context.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0;
            (is_write, (*info).si_addr().addr())
        };
        let is_served = match signal {
            libc::SIGBUS => pagefork_pages::serve_fault(address, is_write),
            _ => is_write && pagefork_pages::lift_protection(address),
        };
        if !is_served {
            // SAFETY: the instruction is made again, and ends the process.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
    INSTALLED.call_once(|| {
        // SAFETY: zeros are a value of the type, and the handler is async-signal-safe.
        unsafe {
            let mut action = std::mem::zeroed::<libc::sigaction>();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            for signal in signals {
                assert_eq!(libc::sigaction(*signal, &action, std::ptr::null_mut()), 0);
            }
        }
        pagefork_pages::lift_protection_is_called();
        pagefork_pages::serve_fault_is_called();
    });
}
