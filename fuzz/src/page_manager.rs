//! Random calls of the guest page manager, `guest/pageman`, with a model of pages that says what
//! comes of each: whatever a host answers to discards, what others grow, and wherever a copy of the
//! program goes on.

use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;

use arbitrary::Unstructured;
use pagefork::{
    Caller, Discarded, Engine, ExternType, Instance, InstancePre, Linker, Memory, Module, Result,
    Store, TypedFunc, Val,
};

/// At most this many things are done.
const ACTIONS_MAX: u32 = 160;

/// Bytes of the manager's pages in the guest that is called.
const PAGE: u32 = 4096;
/// Pages of that size in a wasm page, in the largest memory of the guest, and in 4 GiB.
const PER_WASM_PAGE: usize = 16;
const PAGES_MAX: usize = 4096;
const ADDRESS_PAGES: u64 = 1 << 20;

const PROTECTIONS: u32 = 7;
const SHARED: u32 = 1;
const PRIVATE: u32 = 2;
const FIXED: u32 = 0x10;
const ANONYMOUS: u32 = 0x20;
const NO_REPLACE: u32 = 0x10_0000;
const ALIGN_SHIFT: u32 = 26;
const MAY_MOVE: u32 = 1;
const MOVE_FIXED: u32 = 2;
const DONT_NEED: u32 = 4;

/// Errors of preview 1.
const EBADF: u32 = 8;
const EEXIST: u32 = 20;
const EFAULT: u32 = 21;
const EINVAL: u32 = 28;
const ENOMEM: u32 = 48;

/// A call of the guest, by its number.
#[derive(Clone, Copy, Debug)]
enum Op {
    Mmap,
    Munmap,
    Mprotect,
    Madvise,
    Mincore,
    Mremap,
    Sbrk,
    Msync,
    PosixMadvise,
    Mlock,
    Munlock,
    Map,
    Unmap,
    Discard,
    Trim,
    Decay,
    Policy,
    StateOf,
    Check,
}

/// What the model knows of a page.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Page {
    /// The program's, or grown by the host.
    Foreign,
    /// Holds tables or records of the manager.
    Internal,
    /// Free, or not there yet.
    Free,
    Mapped(Mapped),
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Mapped {
    protection: u32,
    /// It never could be accessed, and reads zero when it first can.
    reserved: bool,
    shared: bool,
    /// What all of its bytes are, if that is known.
    byte: Option<u8>,
}

/// How the host answers a discard.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// As Pagefork does.
    Real,
    /// With this status, and zeros if that says so.
    Status(i32),
}

/// The guest as `zig cc` builds it; `None` if it was not built.
static GUEST: LazyLock<Option<InstancePre<Answer>>> = LazyLock::new(|| guest("pageman_calls.wasm"));

/// The same by emscripten, for a single thread.
static GUEST_BY_EMSCRIPTEN: LazyLock<Option<InstancePre<Answer>>> =
    LazyLock::new(|| guest("emscripten_calls.wasm"));

fn guest(file: &str) -> Option<InstancePre<Answer>> {
    let directory = std::env::var("PAGEFORK_GUESTS")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../target/guests").to_owned());
    let path = Path::new(&directory).join(file);
    if !path.exists() {
        let missing = format!("there is no {}: run `cargo xtask guests`", path.display());
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{missing}");
        println!("skipped: {missing}");
        return None;
    }
    let module = Module::from_file(&Engine::default(), &path).expect("a valid module");
    let mut linker = Linker::new(module.engine());
    linker.func_wrap("pagefork", "memory_discard", discard).expect("a new name");
    for import in module.imports().filter(|import| import.module() != "pagefork") {
        let ExternType::Func(ty) = import.ty() else { panic!("{} is no function", import.name()) };
        let name = import.name().to_owned();
        // No files and no variables.
        let stub = move |mut caller: Caller<'_, Answer>, args: &[Val], results: &mut [Val]| {
            if name == "environ_sizes_get" {
                let memory = exported(&mut caller)?;
                for place in args {
                    memory.write(&mut caller, place.unwrap_i32() as usize, &[0; 4])?;
                }
            }
            results.fill(Val::I32(if name.starts_with("fd_") { EBADF as i32 } else { 0 }));
            Ok(())
        };
        linker.func_new(import.module(), import.name(), ty, stub).expect("a new name");
    }
    Some(linker.instantiate_pre(&module).expect("all is linked"))
}

fn exported(caller: &mut Caller<'_, Answer>) -> Result<Memory> {
    let memory = caller.get_export("memory").and_then(|export| export.into_memory());
    memory.ok_or_else(|| pagefork::Error::msg("it exports a memory"))
}

fn discard(mut caller: Caller<'_, Answer>, start: u32, length: u32) -> Result<i32> {
    assert_eq!((start % PAGE, length % PAGE), (0, 0), "whole pages");
    let memory = exported(&mut caller)?;
    match *caller.data() {
        Answer::Real => Ok(match memory.discard(&mut caller, start.into(), length.into())? {
            Some(Discarded::Released) => 0,
            Some(Discarded::Zeroed) => 1,
            None => -1,
        }),
        Answer::Status(status) => {
            let range = start as usize..start as usize + length as usize;
            if matches!(status, 0 | 1) {
                memory.data_mut(&mut caller)[range].fill(0);
            }
            Ok(status)
        }
    }
}

/// Calls of the page manager have the results that the model says, and all that is mapped has the
/// bytes that were written; free pages that the page map calls zero are.
pub fn page_manager(data: &[u8]) {
    calls_of(GUEST.as_ref(), data);
}

/// The same of the guest that emscripten builds.
pub fn page_manager_by_emscripten(data: &[u8]) {
    calls_of(GUEST_BY_EMSCRIPTEN.as_ref(), data);
}

fn calls_of(guest: Option<&InstancePre<Answer>>, data: &[u8]) {
    let Some(pre) = guest else { return };
    let mut input = Unstructured::new(data);
    let mut world = World::start(pre);
    for _ in 0..ACTIONS_MAX {
        if input.is_empty() || world.act(&mut input).is_err() {
            break;
        }
        world.look();
    }
    world.verify();
}

/// A guest, and the model of it.
struct World {
    store: Store<Answer>,
    memory: Memory,
    /// The address of the page map.
    map: usize,
    call: TypedFunc<(u32, u32, u32, u32, u32, u32), u64>,
    pages: Vec<Page>,
    /// As the page map has them.
    states: Vec<u8>,
    /// Addresses that were mapped last.
    recent: Vec<u32>,
}

impl World {
    fn start(pre: &InstancePre<Answer>) -> Self {
        let (mut store, instance) = pre.spawn(Answer::Real).expect("a slot");
        let start = instance.get_typed_func::<(), ()>(&mut store, "_initialize");
        start.and_then(|start| start.call(&mut store, ())).expect("a library");
        let mut world = Self::of(store, &instance, vec![Page::Free; PAGES_MAX]);
        world.call(Op::StateOf, [0; 5]);
        // What lies before the first heap is the program's.
        world.states = world.read_map();
        let first = world.states.iter().position(|state| *state != 3);
        world.pages[..first.expect("a heap")].fill(Page::Foreign);
        // A C library's own malloc has some by sbrk.
        let taken = Mapped { protection: 3, reserved: false, shared: false, byte: None };
        for page in (0..world.states.len()).filter(|page| world.states[*page] >= 8) {
            world.pages[page] = Page::Mapped(taken);
        }
        world.look();
        world
    }

    fn of(mut store: Store<Answer>, instance: &Instance, pages: Vec<Page>) -> Self {
        let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
        let map = instance.get_global(&mut store, "pageman_page_map").expect("it is exported");
        let map = map.get(&mut store).unwrap_i32() as usize;
        let call = instance.get_typed_func(&mut store, "call").expect("it is exported");
        Self { store, memory, map, call, pages, states: Vec::new(), recent: Vec::new() }
    }

    /// Errno and the result.
    fn call(&mut self, op: Op, [a, b, c, d, e]: [u32; 5]) -> (u32, u32) {
        let both = self.call.call(&mut self.store, (op as u32, a, b, c, d, e));
        let both = both.expect("it does not trap");
        ((both >> 32) as u32, both as u32)
    }

    fn act(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        let (address, length) = (self.address(input)?, length(input)?);
        match input.int_in_range(0..=28)? {
            0..=6 => self.mmap(address, length, input)?,
            7..=9 => self.munmap(address, length, Op::Munmap),
            10 => {
                // Records of shared memory are munmap's.
                let is_shared = |page: &Page| matches!(page, Page::Mapped(it) if it.shared);
                let range = range(address, length).unwrap_or(0..0);
                let end = range.end.min(PAGES_MAX);
                if !self.pages[range.start.min(end)..end].iter().any(is_shared) {
                    self.munmap(address, length, Op::Unmap);
                }
            }
            11 | 12 => self.mprotect(address, length, input)?,
            13 => self.madvise(address, length, input)?,
            14 => self.asked_of_mapped(address, length, input)?,
            15..=17 => self.mremap(address, length, input)?,
            18 => self.sbrk(input)?,
            19 | 20 => self.map(input)?,
            21 => self.discard(address, length),
            22 => {
                const ANSWERS: [Answer; 5] = [
                    Answer::Real,
                    Answer::Status(0),
                    Answer::Status(1),
                    Answer::Status(-1),
                    Answer::Status(i32::MAX),
                ];
                *self.store.data_mut() = *input.choose(&ANSWERS)?;
            }
            23 => {
                let op = *input.choose(&[Op::Trim, Op::Decay, Op::Policy])?;
                self.call(op, [input.arbitrary()?, 0, 0, 0, 0]);
            }
            24 => self.grow_from_outside(input.int_in_range(0..=3)?),
            25 => self.go_on_in_a_copy(),
            26 => self.fill_up(input.int_in_range(0..=40)?),
            _ => self.write(input)?,
        }
        Ok(())
    }

    // ---- Arguments ----

    fn address(&self, input: &mut Unstructured<'_>) -> arbitrary::Result<u32> {
        let page = input.int_in_range(0..=self.states.len() as u32 + 20)?;
        Ok(match input.int_in_range(0..=23)? {
            0 => input.arbitrary()?,
            1 => 0u32.wrapping_sub(PAGE * (page % 4)),
            2 => page * PAGE + input.int_in_range(1..=PAGE - 1)?,
            3 => 0,
            4..=14 if !self.recent.is_empty() => {
                let start = *input.choose(&self.recent)?;
                start.wrapping_add(PAGE * input.int_in_range(0..=5)?)
            }
            _ => page * PAGE,
        })
    }

    /// Pages of the memory as it is.
    fn memory_pages(&self) -> usize {
        self.memory.size(&self.store) as usize * PER_WASM_PAGE
    }

    fn are_mapped(&self, range: &Range<usize>) -> bool {
        self.mapped_up_to(range) == range.end
    }

    /// The first page of a range that is not mapped, or its end.
    fn mapped_up_to(&self, range: &Range<usize>) -> usize {
        let is_mapped = |page: &usize| matches!(self.pages.get(*page), Some(Page::Mapped(_)));
        range.clone().find(|page| !is_mapped(page)).unwrap_or(range.end)
    }

    fn mapped_in(&mut self, range: Range<usize>) -> impl Iterator<Item = &mut Mapped> {
        let end = range.end.min(PAGES_MAX);
        self.pages[range.start.min(end)..end].iter_mut().filter_map(|page| match page {
            Page::Mapped(mapped) => Some(mapped),
            _ => None,
        })
    }

    // ---- Calls ----

    fn mmap(
        &mut self,
        address: u32,
        length: u32,
        input: &mut Unstructured<'_>,
    ) -> arbitrary::Result<()> {
        let protection =
            if input.ratio(3, 4)? { 3 } else { input.int_in_range(0..=PROTECTIONS)? };
        let mut flags = if input.ratio(7, 8)? { PRIVATE | ANONYMOUS } else { SHARED | ANONYMOUS };
        match input.int_in_range(0..=15)? {
            0..=2 => flags |= FIXED,
            3 => flags |= NO_REPLACE,
            4 => flags = input.arbitrary()?,
            5 => flags |= input.int_in_range(0..=31)? << ALIGN_SHIFT,
            _ => {}
        }
        let count = length.div_ceil(PAGE) as usize;
        let placed = flags & (FIXED | NO_REPLACE) != 0;
        let end = u64::from(address) + count as u64 * u64::from(PAGE);
        let range = (address / PAGE) as usize..(address / PAGE) as usize + count;
        let in_memory = range.start.min(self.memory_pages())..range.end.min(self.memory_pages());
        let expected = if flags & ANONYMOUS == 0 {
            EBADF
        } else if length == 0 {
            EINVAL
        } else if placed && end > ADDRESS_PAGES * u64::from(PAGE) {
            ENOMEM
        } else if placed && !address.is_multiple_of(PAGE) {
            EINVAL
        } else if flags & NO_REPLACE != 0
            && self.pages[in_memory].iter().any(|page| *page != Page::Free)
        {
            EEXIST
        } else if !matches!(flags & 15, SHARED | PRIVATE) {
            EINVAL
        } else {
            0
        };
        let (errno, result) = self.call(Op::Mmap, [address, length, protection, flags, 0]);
        if errno == ENOMEM && expected == 0 {
            self.states = self.read_map();
            let shared = flags & 15 == SHARED;
            if placed {
                let refused = range.end > self.states.len()
                    || self.states[range.clone()].iter().any(|state| matches!(state, 3 | 4));
                assert!(refused || shared, "it has room");
                // What was there may be gone.
                for page in range.start..range.end.min(self.states.len()) {
                    if self.states[page] < 3 {
                        self.pages[page] = Page::Free;
                    }
                }
            } else {
                let alignment = 1u64 << (flags >> ALIGN_SHIFT & 31).max(12);
                let room = count + (alignment / u64::from(PAGE)) as usize - 1;
                assert!(shared || !self.has_free_run(room), "there are {count} pages");
            }
            return Ok(());
        }
        assert_eq!(errno, expected, "mmap({address:#x}, {length:#x}, {protection}, {flags:#x})");
        if errno != 0 {
            assert_eq!(result, u32::MAX);
            return Ok(());
        }
        if placed {
            assert_eq!(result, address);
        } else {
            let alignment = 1u64 << (flags >> ALIGN_SHIFT & 31).max(12);
            assert!(result != 0 && u64::from(result).is_multiple_of(alignment), "{result:#x}");
        }
        let zero = flags >> ALIGN_SHIFT & 31 != 1;
        let reserved = protection == 0;
        let mapped = Mapped {
            protection,
            reserved,
            shared: flags & 15 == SHARED,
            byte: (zero || reserved).then_some(0),
        };
        self.mapped(result, count, placed, mapped);
        Ok(())
    }

    /// Notes pages that a call has mapped. What reads zero does.
    fn mapped(&mut self, address: u32, count: usize, may_replace: bool, mapped: Mapped) {
        let start = (address / PAGE) as usize;
        assert!(start + count <= self.memory_pages(), "it is there");
        for page in start..start + count {
            let was = self.pages[page];
            assert_ne!(was, Page::Foreign, "page {page}");
            assert!(may_replace || !matches!(was, Page::Mapped(_)), "page {page} is mapped");
            self.pages[page] = Page::Mapped(mapped);
            self.check_bytes(page);
        }
        self.remember(address);
    }

    fn remember(&mut self, address: u32) {
        if self.recent.len() == 12 {
            self.recent.remove(0);
        }
        self.recent.push(address);
    }

    fn munmap(&mut self, address: u32, length: u32, op: Op) {
        let range = range(address, length).filter(|_| length != 0);
        let memory_pages = self.memory_pages();
        let known = range.as_ref().map(|range| range.start..range.end.min(memory_pages));
        let is_ours = |page: &Page| !matches!(page, Page::Foreign | Page::Internal);
        let expected = match &known {
            None => EINVAL,
            Some(known) if known.is_empty() => 0,
            Some(known) if self.pages[known.clone()].iter().all(is_ours) => 0,
            Some(_) => EINVAL,
        };
        let (errno, result) = self.call(op, [address, length, 0, 0, 0]);
        match op {
            Op::Munmap => assert_eq!((errno, result == 0), (expected, expected == 0)),
            _ => assert_eq!(result == 0, expected == 0),
        }
        if expected == 0 {
            for page in known.into_iter().flatten() {
                self.pages[page] = Page::Free;
            }
        }
    }

    fn mprotect(
        &mut self,
        address: u32,
        length: u32,
        input: &mut Unstructured<'_>,
    ) -> arbitrary::Result<()> {
        let protection = input.int_in_range(0..=8)?;
        let (errno, _) = self.call(Op::Mprotect, [address, length, protection, 0, 0]);
        if !address.is_multiple_of(PAGE) || (length != 0 && protection == 8) {
            assert_eq!(errno, EINVAL);
            return Ok(());
        }
        let Some(range) = range(address, length) else {
            assert_eq!(errno, if length == 0 { 0 } else { ENOMEM });
            return Ok(());
        };
        assert_eq!(errno, if self.are_mapped(&range) { 0 } else { ENOMEM });
        let changed = range.start..self.mapped_up_to(&range);
        for mapped in self.mapped_in(changed.clone()) {
            mapped.protection = protection;
            mapped.reserved &= protection == 0;
        }
        for page in changed {
            self.check_bytes(page);
        }
        Ok(())
    }

    fn madvise(
        &mut self,
        address: u32,
        length: u32,
        input: &mut Unstructured<'_>,
    ) -> arbitrary::Result<()> {
        let advice = if input.arbitrary()? { DONT_NEED } else { input.int_in_range(0..=24)? };
        let is_known = matches!(advice, 0..=4 | 8 | 14..=17 | 20 | 21);
        let (errno, _) = self.call(Op::Madvise, [address, length, advice, 0, 0]);
        let range = range(address, length);
        let expected = match &range {
            _ if !is_known || !address.is_multiple_of(PAGE) => EINVAL,
            _ if length == 0 => 0,
            None => EINVAL,
            Some(range) if self.are_mapped(range) => 0,
            Some(_) => ENOMEM,
        };
        assert_eq!(errno, expected, "madvise({address:#x}, {length:#x}, {advice})");
        if let Some(range) = range.filter(|_| expected != EINVAL && advice == DONT_NEED) {
            for mapped in self.mapped_in(range).filter(|mapped| !mapped.shared) {
                mapped.byte = Some(0);
            }
        }
        Ok(())
    }

    /// Calls that ask only whether all pages are mapped.
    fn asked_of_mapped(
        &mut self,
        address: u32,
        length: u32,
        input: &mut Unstructured<'_>,
    ) -> arbitrary::Result<()> {
        let op =
            *input.choose(&[Op::Mincore, Op::Msync, Op::PosixMadvise, Op::Mlock, Op::Munlock])?;
        let argument = input.int_in_range(0..=8)?;
        let (errno, result) = self.call(op, [address, length, argument, 0, 0]);
        let is_wrong = match op {
            Op::Msync => argument == 8 || argument & 5 == 5,
            Op::PosixMadvise => argument > 4,
            _ => false,
        };
        // Locks are of the pages that bytes lie in, wherever these begin.
        let before = if matches!(op, Op::Mlock | Op::Munlock) { address % PAGE } else { 0 };
        let outside = if matches!(op, Op::PosixMadvise) { EINVAL } else { ENOMEM };
        let expected = if is_wrong || !(address - before).is_multiple_of(PAGE) {
            EINVAL
        } else if length == 0 && before == 0 {
            0
        } else {
            let whole = length.checked_add(before);
            match whole.and_then(|length| range(address - before, length)) {
                None => outside,
                Some(range) if self.are_mapped(&range) => 0,
                Some(_) => ENOMEM,
            }
        };
        assert_eq!(errno, expected, "{op:?}({address:#x}, {length:#x}, {argument})");
        assert_eq!(result == 0, expected == 0);
        Ok(())
    }

    fn mremap(
        &mut self,
        address: u32,
        old_length: u32,
        input: &mut Unstructured<'_>,
    ) -> arbitrary::Result<()> {
        let new_length = length(input)?;
        let target = self.address(input)?;
        let flags = if input.ratio(9, 10)? {
            *input.choose(&[0, MAY_MOVE, MAY_MOVE | MOVE_FIXED])?
        } else {
            input.arbitrary()?
        };
        let (errno, result) =
            self.call(Op::Mremap, [address, old_length, new_length, flags, target]);
        let fixed = flags & MOVE_FIXED != 0;
        let what = format!(
            "mremap({address:#x}, {old_length:#x}, {new_length:#x}, {flags}, {target:#x}) is \
             {result:#x}, {errno}"
        );
        let (from, to) = (range(address, old_length), range(target, new_length));
        let overlap = match (&from, &to) {
            (Some(from), Some(to)) => to.start < from.end && from.start < to.end,
            _ => false,
        };
        if flags & !(MAY_MOVE | MOVE_FIXED) != 0
            || (fixed && flags & MAY_MOVE == 0)
            || !address.is_multiple_of(PAGE)
            || old_length == 0
            || new_length == 0
            || (fixed && (overlap || to.is_none() || !target.is_multiple_of(PAGE)))
        {
            assert_eq!((errno, result), (EINVAL, u32::MAX), "{what}");
            return Ok(());
        }
        let count = new_length.div_ceil(PAGE) as usize;
        if errno != 0 {
            assert_eq!(result, u32::MAX, "{what}");
        }
        let Some(from) = from else {
            assert!(matches!(errno, EFAULT), "{what}");
            return Ok(());
        };
        let old = from.len();
        let has_shared = self.mapped_in(from.clone()).any(|mapped| mapped.shared);
        let shrinks = count <= old && !fixed;
        if !self.are_mapped(&from) {
            // Without room for it any other way, that can be said first.
            let no_room = from.start + count > ADDRESS_PAGES as usize && flags & MAY_MOVE == 0;
            assert!(errno == EFAULT || (errno == ENOMEM && no_room), "{what}");
            return Ok(());
        }
        if errno == EFAULT {
            assert!(has_shared && !shrinks, "{what}");
            return Ok(());
        }
        if errno == ENOMEM {
            assert!(!shrinks, "{what}");
            self.states = self.read_map();
            if fixed {
                let to = to.expect("it was checked");
                let refused = to.end > self.states.len()
                    || self.states[to].iter().any(|state| matches!(state, 3 | 4));
                assert!(refused, "{what}");
            } else if flags & MAY_MOVE != 0 {
                assert!(!self.has_free_run(count), "{what}");
            }
            return Ok(());
        }
        assert_eq!(errno, 0, "{what}");
        let start = (result / PAGE) as usize;
        assert!(result.is_multiple_of(PAGE) && start + count <= self.memory_pages(), "{what}");
        let was: Vec<Page> = self.pages[from.clone()].to_vec();
        let is_in_place = start == from.start;
        assert!(is_in_place || flags & MAY_MOVE != 0, "{what}");
        assert!(!fixed || result == target, "{what}");
        assert!(!shrinks || is_in_place, "{what}");
        let taken = if is_in_place {
            from.end.min(start + count)..start + count
        } else {
            start..start + count
        };
        for page in taken {
            let page = self.pages[page];
            let is_free =
                !matches!(page, Page::Foreign) && (fixed || !matches!(page, Page::Mapped(_)));
            assert!(is_free, "{what}");
        }
        self.pages[from].fill(Page::Free);
        let Some(Page::Mapped(last)) = was.last().copied() else { panic!("it was mapped") };
        let more = Page::Mapped(Mapped { byte: Some(0), ..last });
        for (at, page) in (start..start + count).enumerate() {
            self.pages[page] = was.get(at).copied().unwrap_or(more);
            self.check_bytes(page);
        }
        self.remember(result);
        Ok(())
    }

    fn sbrk(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        let by = match input.int_in_range(0..=7)? {
            0 => input.arbitrary()?,
            1 => i32::MIN,
            _ => input.int_in_range(-3 * PAGE as i32..=5 * PAGE as i32)?,
        };
        let before = self.read_map();
        let (errno, _) = self.call(Op::Sbrk, [by as u32, 0, 0, 0, 0]);
        assert!(matches!(errno, 0 | ENOMEM), "{errno}");
        let after = self.read_map();
        for (page, state) in after.iter().enumerate() {
            let (was, is) = (before.get(page).is_some_and(|was| *was > 4), *state > 4);
            if is && !was {
                self.mapped(
                    page as u32 * PAGE,
                    1,
                    false,
                    Mapped { protection: 3, reserved: false, shared: false, byte: Some(0) },
                );
            } else if was && !is {
                assert!(by < 0, "sbrk({by}) frees page {page}");
                self.pages[page] = Page::Free;
            }
        }
        Ok(())
    }

    fn map(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        let length = length(input)?;
        let (shift, wish) = (input.int_in_range(0..=31)?, input.int_in_range(0..=2)?);
        let alignment = *input.choose(&[0, 1u32 << shift, 1 << (shift % 17), 3 << (shift % 17)])?;
        let (_, address) = self.call(Op::Map, [length, alignment, wish, 0, 0]);
        let is_wrong = length == 0 || wish > 1 || (alignment & alignment.wrapping_sub(1)) != 0;
        let count = length.div_ceil(PAGE) as usize;
        if address == 0 {
            self.states = self.read_map();
            let room = count + (alignment.max(PAGE) / PAGE) as usize - 1;
            assert!(is_wrong || !self.has_free_run(room), "there are {count} pages");
            return Ok(());
        }
        assert!(!is_wrong && address.is_multiple_of(alignment.max(PAGE)), "{address:#x}");
        let byte = (wish == 1).then_some(0);
        let mapped = Mapped { protection: 3, reserved: false, shared: false, byte };
        self.mapped(address, count, false, mapped);
        Ok(())
    }

    fn discard(&mut self, address: u32, length: u32) {
        let range = range(address, length).filter(|_| length != 0);
        let (_, taken) = self.call(Op::Discard, [address, length, 0, 0, 0]);
        if taken & 1 == 1 {
            let range = range.expect("such a range");
            assert!(self.are_mapped(&range));
            self.mapped_in(range).for_each(|mapped| mapped.byte = Some(0));
        }
    }

    /// Memory that is not grown by the manager is nobody else's.
    fn grow_from_outside(&mut self, wasm_pages: u64) {
        let start = self.memory_pages();
        if self.memory.grow(&mut self.store, wasm_pages).is_ok() {
            let end = self.memory_pages();
            self.pages[start..end].fill(Page::Foreign);
        }
    }

    /// Takes all but a few pages, so that calls come to the end of memory, and to dirty pages.
    fn fill_up(&mut self, left: u32) {
        for count in [1024, 256, 64, 16, 4, 1] {
            loop {
                let (_, address) = self.call(Op::Map, [count * PAGE, 0, 0, 0, 0]);
                if address == 0 {
                    break;
                }
                let mapped = Mapped { protection: 3, reserved: false, shared: false, byte: None };
                self.mapped(address, count as usize, false, mapped);
            }
        }
        // Tables may have moved.
        self.look();
        if let Some(start) = self.recent.last().and_then(|last| last.checked_sub(left * PAGE)) {
            self.munmap(start, (left + 1) * PAGE, Op::Munmap);
        }
    }

    /// Of a snapshot, which leaves out what is free.
    fn go_on_in_a_copy(&mut self) {
        let pre = self.store.snapshot().and_then(|snapshot| snapshot.instance_pre());
        let (store, instance) = pre.and_then(|pre| pre.spawn(*self.store.data())).expect("a slot");
        let (pages, recent) = (self.pages.clone(), std::mem::take(&mut self.recent));
        *self = Self { recent, ..Self::of(store, &instance, pages) };
    }

    /// Fills pages that can be written.
    fn write(&mut self, input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        let start = (self.address(input)? / PAGE) as usize;
        let byte = input.arbitrary()?;
        for page in start..(start + 12).min(PAGES_MAX) {
            if let Page::Mapped(mapped) = &mut self.pages[page]
                && mapped.protection & 2 != 0
            {
                mapped.byte = Some(byte);
                self.memory.data_mut(&mut self.store)[bytes_of(page)].fill(byte);
            }
        }
        Ok(())
    }

    // ---- Looking ----

    /// The states of all pages that the manager knows.
    fn read_map(&self) -> Vec<u8> {
        let memory = self.memory.data(&self.store);
        let word = |at: usize| {
            let four = memory[self.map + at..][..4].try_into().expect("four bytes");
            u32::from_le_bytes(four) as usize
        };
        assert_eq!((word(0), word(4)), (0x4d47_4150, 0x040c_0001));
        assert_eq!(word(8) % 2, 0, "no change is under way");
        let (pages, states) = (word(12), word(16));
        (0..pages).map(|page| memory[states + page / 2] >> (page % 2 * 4) & 15).collect()
    }

    /// Whether the map has as many free pages in a row.
    fn has_free_run(&self, count: usize) -> bool {
        let is_free = |state: &u8| *state <= 2;
        self.states.split(|state| !is_free(state)).any(|run| run.len() >= count)
    }

    /// Compares the page map with the model, and what has become free and zero with zero.
    fn look(&mut self) {
        let states = self.read_map();
        let before = std::mem::replace(&mut self.states, states);
        assert!(self.states.len() <= self.memory_pages());
        for page in 0..self.states.len() {
            let state = self.states[page];
            match (state, self.pages[page]) {
                (3, Page::Foreign) => {}
                (0..=2, Page::Free | Page::Internal) => self.pages[page] = Page::Free,
                (4, Page::Free | Page::Internal) => self.pages[page] = Page::Internal,
                (5 | 6, Page::Mapped(mapped)) if mapped.reserved => {}
                (8.., Page::Mapped(mapped))
                    if !mapped.reserved && u32::from(state & 7) == mapped.protection => {}
                (state, known) => panic!("page {page} is in state {state} and {known:?}"),
            }
            if matches!(state, 0 | 2 | 6) && before.get(page) != Some(&state) {
                let bytes = &self.memory.data(&self.store)[bytes_of(page)];
                assert!(bytes.iter().all(|byte| *byte == 0), "page {page} is not zero");
            }
        }
        let beyond = &self.pages[self.states.len()..];
        assert!(!beyond.iter().any(|page| matches!(page, Page::Mapped(_) | Page::Internal)));
    }

    fn check_bytes(&self, page: usize) {
        if let Page::Mapped(Mapped { reserved: false, byte: Some(byte), .. }) = self.pages[page] {
            let bytes = &self.memory.data(&self.store)[bytes_of(page)];
            assert!(bytes.iter().all(|found| *found == byte), "page {page} is not all {byte}");
        }
    }

    /// Looks at every page, and has the manager check itself.
    fn verify(&mut self) {
        (0..self.memory_pages()).for_each(|page| self.check_bytes(page));
        assert_eq!(self.call(Op::Check, [0; 5]).1, 0, "the manager's tables are right");
    }
}

fn bytes_of(page: usize) -> Range<usize> {
    page * PAGE as usize..(page + 1) * PAGE as usize
}

/// The pages of a range of bytes that begins a page; `None` if it does not, or reaches beyond 4 GiB.
fn range(address: u32, length: u32) -> Option<Range<usize>> {
    let (start, count) = (u64::from(address / PAGE), u64::from(length.div_ceil(PAGE)));
    let fits = address.is_multiple_of(PAGE) && start + count <= ADDRESS_PAGES;
    fits.then_some(start as usize..(start + count) as usize)
}

fn length(input: &mut Unstructured<'_>) -> arbitrary::Result<u32> {
    let pages = input.int_in_range(1..=24)?;
    Ok(match input.int_in_range(0..=31)? {
        0 => 0,
        1 => u32::MAX - input.int_in_range(0..=2 * PAGE)?,
        2 => 1 << input.int_in_range(12..=31)?,
        3 => input.arbitrary()?,
        4 | 5 => PAGE * input.int_in_range(1..=3000)?,
        6..=12 => PAGE * pages - input.int_in_range(0..=PAGE - 1)?,
        _ => PAGE * pages,
    })
}
