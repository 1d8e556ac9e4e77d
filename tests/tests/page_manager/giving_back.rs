//! Programs that give memory back: what is resident then, what their page maps say, and what they ask of hosts.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pagefork::image::ImageStore;
use pagefork::{Caller, Extern, Instance, Linker, Module, SaveOptions, Store, Val};
use pagefork_wasi::{OutputKind, WasiCtx, WasiCtxBuilder};

use super::guests::{fetched, scratch};

/// A program that has run to its end, and whose memory is still there.
struct Ended {
    store: Store<WasiCtx>,
    instance: Instance,
}

impl Ended {
    /// Runs a command with WASI and with what `define` adds.
    fn run(guest: &Module, define: impl FnOnce(&mut Linker<WasiCtx>)) -> Self {
        Self::run_with(guest, &[], define)
    }

    /// The same, with these arguments.
    fn run_with(
        guest: &Module,
        arguments: &[&str],
        define: impl FnOnce(&mut Linker<WasiCtx>),
    ) -> Self {
        let (stdout, output) = OutputKind::pipe();
        let mut context = WasiCtxBuilder::new();
        context.arg("guest").args(arguments.iter().copied()).stdout(output);
        let context = context.build().expect("a context");
        let mut store = Store::new(guest.engine(), context);
        let mut linker: Linker<WasiCtx> = Linker::new(guest.engine());
        pagefork_wasi::add_to_linker(&mut linker, |context| context).expect("every name is free");
        define(&mut linker);
        let instance = linker.instantiate(&mut store, guest).expect("it is all there");
        let start = instance.get_typed_func::<(), ()>(&mut store, "_start").expect("a command");
        start.call(&mut store, ()).expect("it does not trap");
        println!("{}", stdout.contents().escape_ascii());
        Self { store, instance }
    }

    fn bytes(&mut self) -> &[u8] {
        let memory = self.instance.get_memory(&mut self.store, "memory").expect("it is exported");
        memory.data(&self.store)
    }

    /// The states of pages by the page map, which says that they have so many bytes.
    fn states(&mut self, page_size: usize) -> Vec<u8> {
        let map = self.instance.get_global(&mut self.store, "pageman_page_map");
        let Val::I32(map) = map.expect("it is exported").get(&mut self.store) else {
            panic!("an address")
        };
        let (bytes, map) = (self.bytes(), map as usize);
        assert_eq!(1 << bytes[map + 6], page_size);
        let states = states(bytes, map);
        assert!(states.len() * page_size <= bytes.len());
        states
    }

    /// All bytes are zero of the pages that the map calls so.
    fn zeros_are_zeros(&mut self, page_size: usize) {
        let states = self.states(page_size);
        let bytes = self.bytes();
        for page in (0..states.len()).filter(|page| matches!(states[*page], 0 | 2)) {
            let page = &bytes[page * page_size..(page + 1) * page_size];
            assert!(page.iter().all(|byte| *byte == 0), "{page:p}");
        }
    }
}

/// A program that has freed most of its memory gives it back: what is resident is what it uses
/// and some more. The page map that it exports tells which pages are free, and of those that it
/// calls zero all bytes are.
#[test]
fn a_program_gives_memory_back_and_its_page_map_is_true() {
    let Some(guest) = fetched("pageman_give_back.wasm") else { return };
    let mut ended = Ended::run(&guest, |linker| {
        linker.define_memory_discard().expect("every name is free");
    });
    let states = ended.states(1 << 16);
    let used = states.iter().filter(|state| **state > 4).count();
    assert_eq!(used, 64 * 16, "pages of 64 KiB in use");
    let resident = resident(ended.bytes());
    println!("{} MiB of {} resident, {} used", resident >> 20, states.len() >> 4, used >> 4);
    assert!(resident * 10 <= (used << 16) * 11, "{resident} bytes for {used} pages");
    ended.zeros_are_zeros(1 << 16);

    // So is the image of it.
    let directory = scratch("pageman-image");
    let images = ImageStore::open(&directory).expect("a directory");
    let snapshot = ended.store.snapshot().expect("it can be captured");
    snapshot.save(&images, SaveOptions::new()).expect("it can be saved");
    let saved = size_of_files(&directory);
    println!("{} KiB saved", saved >> 10);
    assert!(saved * 10 <= (used << 16) * 11, "{saved} bytes for {used} pages");
    std::fs::remove_dir_all(directory).expect("it is there");
}

/// `calloc` of large blocks from fresh memory writes to none of their pages: nearly nothing of 64 MiB is resident.
#[test]
fn zeros_of_large_blocks_are_not_written() {
    for name in ["pageman", "pageman_4k", "pageman_mimalloc"] {
        let Some(guest) = fetched(&format!("{name}.wasm")) else { return };
        let mut ended = Ended::run_with(&guest, &["zeros"], |_| ());
        let (bytes, resident) = (ended.bytes().len(), resident(ended.bytes()));
        println!("{name}: {} KiB of {} are resident", resident >> 10, bytes >> 10);
        assert!(bytes >= 64 << 20 && resident < 4 << 20, "{name}: {resident} of {bytes}");
    }
}

/// The import that wasm-bindgen makes the instruction of gets what the instruction takes: whole pages of
/// WebAssembly, whatever the size of the manager's pages is. Nearly all that is freed is given back so, and
/// what is left over at the edges of ranges is zero, too.
#[test]
fn the_import_without_a_status_gets_whole_pages() {
    for (name, page_size) in [("pageman_bindgen", 1 << 16), ("pageman_bindgen_4k", 1 << 12)] {
        let Some(guest) = fetched(&format!("{name}.wasm")) else { return };
        let discarded = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&discarded);
        let strict = move |mut caller: Caller<'_, WasiCtx>, start: u32, length: u32| {
            assert_eq!((start % 65536, length % 65536), (0, 0), "{name}");
            assert_ne!(length, 0, "{name}");
            let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
                panic!("a memory")
            };
            let (start, length) = (start as usize, length as usize);
            memory.data_mut(&mut caller)[start..start + length].fill(0);
            count.fetch_add(length, Relaxed);
        };
        let mut ended = Ended::run(&guest, |linker| {
            linker.func_wrap("env", "__wbindgen_memory_discard", strict).expect("a free name");
        });
        let discarded = discarded.load(Relaxed);
        assert!(discarded > 440 << 20, "{name}: {discarded} bytes");
        ended.zeros_are_zeros(page_size);

        // By Pagefork's own function of that name memory is released, but where that would only cost: it has no
        // status to say so, and writes zeros instead.
        let mut ended = Ended::run(&guest, |linker| {
            linker.define_memory_discard().expect("every name is free");
        });
        let resident = resident(ended.bytes());
        assert!(resident * 10 <= (64 << 20) * 12, "{name}: {resident} bytes are resident");
        ended.zeros_are_zeros(page_size);
    }
}

/// The states of pages by the page map at this address.
pub(super) fn states(bytes: &[u8], map: usize) -> Vec<u8> {
    let word = |at: usize| {
        let four = bytes[at..at + 4].try_into().expect("four bytes");
        u32::from_le_bytes(four) as usize
    };
    assert_eq!((word(map), word(map + 4) & 0xff00_ffff), (0x4d47_4150, 0x0400_0001));
    assert_eq!(word(map + 8) % 2, 0, "no change is under way");
    let (pages, states) = (word(map + 12), word(map + 16));
    (0..pages).map(|page| bytes[states + page / 2] >> (page % 2 * 4) & 15).collect()
}

/// Bytes of all files below a directory.
fn size_of_files(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let size = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("it can be listed").path();
        let is_directory = path.is_dir();
        let length = || path.metadata().expect("it is there").len() as usize;
        if is_directory { size_of_files(&path) } else { length() }
    };
    entries.map(size).sum()
}

/// How many of these bytes are resident, as the kernel counts pages.
fn resident(bytes: &[u8]) -> usize {
    let mut pages = vec![0u8; bytes.len() / 4096];
    let start = bytes.as_ptr().cast_mut().cast();
    // SAFETY: the bytes are whole pages, and `pages` has a byte for each of them.
    let done = unsafe { libc::mincore(start, bytes.len(), pages.as_mut_ptr()) };
    assert_eq!(done, 0, "the bytes are mapped");
    pages.iter().filter(|page| **page & 1 == 1).count() * 4096
}
