//! Calls through C: `wasm.h` and `pagefork.h`, with Rust's own beside, and both interfaces of
//! wasmtime's C library, which `cargo xtask guests` fetches.

#![allow(unsafe_code, reason = "C functions are called, and looked up in a library")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;

use pagefork::{Caller, Engine, Func, FuncType, InstancePre, Linker, Module, Store, TypedFunc};
use pagefork::{Val, ValRaw, ValType};

use crate::grid::{Contestant, Grid, Iteration, percentile};
use crate::measure::{Effort, Size, Unit};
use crate::report::Report;

/// What is called, in the order of `names` in `calls.c`.
const WAT: &str = r#"(module
    (import "host" "i64" (func $i64 (result i64)))
    (import "host" "many" (func $many (param i32 i32 i32 i32 i32) (result i32)))
    (func (export "nop"))
    (func (export "i64") (result i64) (call $i64))
    (func (export "many")
        (drop (call $many
            (i32.const 1) (i32.const 2) (i32.const 3) (i32.const 4) (i32.const 5))))
    (func (export "loop_i64") (param $count i32) (result i64) (local $sum i64)
        (loop $next
            (local.set $sum (i64.add (local.get $sum) (call $i64)))
            (local.set $count (i32.sub (local.get $count) (i32.const 1)))
            (br_if $next (local.get $count)))
        (local.get $sum))
    (func (export "loop_many") (param $count i32) (result i64) (local $sum i32)
        (loop $next
            (local.set $sum (i32.add (local.get $sum) (call $many (i32.const 1) (i32.const 0)
                (i32.const 2) (i32.const 4) (i32.const 0))))
            (local.set $count (i32.sub (local.get $count) (i32.const 1)))
            (br_if $next (local.get $count)))
        (i64.extend_i32_u (local.get $sum)))
    (memory (export "memory") 1))"#;

/// The functions: their numbers, what a call comes to, and how many things are done in one.
const FUNCTIONS: [(&str, c_int, u64, f64); 5] = [
    ("nop", 0, 0, 1.0),
    ("i64", 1, 7, 1.0),
    ("many", 2, 0, 1.0),
    ("the host from a loop, i64", 3, 700, 100.0),
    ("the host from a loop, five i32", 4, 700, 100.0),
];

/// Calls of one iteration: entering C, and what is measured around it, costs nothing beside them.
const CALLS: u32 = 200;

const COLUMNS: [&str; 5] =
    ["`wasm.h`", "`pagefork.h`", "Rust", "wasmtime: `wasm.h`", "wasmtime: `wasmtime.h`"];

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

type Find = extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Calls = unsafe extern "C" fn(*mut c_void, c_int, u32) -> u64;

/// Opens a library, whose symbols are nobody else's.
fn open(path: &Path) -> Result<*mut c_void, String> {
    const NOW: c_int = 2;
    let name = CString::new(path.to_string_lossy().as_bytes()).expect("a path has no zeros");
    // SAFETY: the name is a string; the library's own start does what any does.
    unsafe {
        let library = dlopen(name.as_ptr(), NOW);
        match library.is_null() {
            false => Ok(library),
            true => Err(CStr::from_ptr(dlerror()).to_string_lossy().into_owned()),
        }
    }
}

extern "C" fn find_in_library(library: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: C gives back the library that it was given, and a name.
    unsafe { dlsym(library, name) }
}

macro_rules! own_functions {
    ($($name:ident)*) => {
        mod own {
            unsafe extern "C" {
                $(pub(super) fn $name();)*
            }
        }

        /// Finds those of Pagefork, which are in this program.
        extern "C" fn find_own(_: *mut c_void, name: *const c_char) -> *mut c_void {
            // SAFETY: C gives a name.
            match unsafe { CStr::from_ptr(name) }.to_str() {
                $(Ok(stringify!($name)) => own::$name as *mut c_void,)*
                _ => ptr::null_mut(),
            }
        }
    };
}

own_functions! {
    wasm_engine_new wasm_store_new wasm_store_delete wasm_module_new wasm_valtype_new
    wasm_valtype_vec_new wasm_functype_new wasm_func_new wasm_func_as_extern wasm_instance_new
    wasm_instance_exports wasm_instance_delete wasm_extern_as_func wasm_func_call
    wasm_extern_delete pagefork_module_new pagefork_linker_new pagefork_linker_func
    pagefork_linker_func_raw pagefork_linker_func_wrap pagefork_linker_instantiate
    pagefork_linker_instantiate_pre pagefork_instance_export pagefork_func_call
    pagefork_func_call_raw pagefork_func_typed pagefork_typed_func_delete
    pagefork_instance_pre_spawn pagefork_module_export pagefork_instance_typed_export
    pagefork_instance_pre_typed_export pagefork_instance_typed_func
}

// The functions are in the crate's object files, which nothing else names.
use pagefork_capi as _;

/// The compiled `calls.c`.
struct Program(*mut c_void);

impl Program {
    fn build() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let library =
            std::env::temp_dir().join(format!("pagefork-calls-{}.so", std::process::id()));
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-shared", "-fPIC", "-I"])
            .arg(root.join("../crates/pagefork-capi/include"));
        cc.arg(root.join("src/capi/calls.c")).arg("-o").arg(&library);
        let status = cc.status().expect("there is a C compiler");
        assert!(status.success(), "calls.c is compiled");
        let opened = open(&library).unwrap_or_else(|error| panic!("{error}"));
        // Nothing needs the file any more.
        let _ = std::fs::remove_file(&library);
        Self(opened)
    }

    fn find(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the library is open as long as the process.
        let found = unsafe { dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null(), "calls.c has {name:?}");
        found
    }

    /// One of the functions that are measured.
    fn calls(&self, name: &CStr) -> Calls {
        // SAFETY: all that are measured have this type.
        unsafe { std::mem::transmute::<*mut c_void, Calls>(self.find(name)) }
    }

    /// What `calls.c` keeps of a library, which is never freed.
    fn side(
        &self,
        is_peer: bool,
        find: Find,
        library: *mut c_void,
        wasm: &[u8],
    ) -> Result<*mut c_void, String> {
        type Make = unsafe extern "C" fn(
            *mut c_void,
            bool,
            Find,
            *mut c_void,
            usize,
            *const u8,
        ) -> *const c_char;
        // SAFETY: the types are those in `calls.c`; the place is large enough, aligned, and zero.
        unsafe {
            let size = std::mem::transmute::<*mut c_void, extern "C" fn() -> usize>(
                self.find(c"side_size"),
            )();
            let side = vec![0u64; size.div_ceil(8)].leak().as_mut_ptr().cast();
            let make = std::mem::transmute::<*mut c_void, Make>(self.find(c"side_make"));
            let failed = make(side, is_peer, find, library, wasm.len(), wasm.as_ptr());
            match failed.is_null() {
                true => Ok(side),
                false => Err(CStr::from_ptr(failed).to_string_lossy().into_owned()),
            }
        }
    }
}

/// The same from Rust.
struct OwnCalls {
    store: Store<()>,
    nop: TypedFunc<(), ()>,
    i64: TypedFunc<(), i64>,
    many: TypedFunc<(), ()>,
    loops: [TypedFunc<u32, i64>; 2],
    funcs: Vec<Func>,
}

/// How a host function is made.
#[derive(Clone, Copy)]
enum Form {
    Slices,
    Raw,
    Closures,
    /// Closures that call a C function: what it costs to call one at all is in it.
    Pointers,
    /// The same on cells.
    RawPointers,
}

type SumOfThree = extern "C" fn(*const c_void, i32, i32, i32, i32, i32) -> i32;
type OnCells = extern "C" fn(*const c_void, *mut ValRaw) -> *const c_void;

extern "C" fn seven(_: *const c_void) -> i64 {
    7
}

extern "C" fn sum_of_three(_: *const c_void, a: i32, _: i32, c: i32, d: i32, _: i32) -> i32 {
    a + c + d
}

extern "C" fn set_seven(_: *const c_void, cells: *mut ValRaw) -> *const c_void {
    // SAFETY: who calls gives at least one cell.
    unsafe { *cells = ValRaw::i64(7) };
    ptr::null()
}

extern "C" fn set_sum(_: *const c_void, cells: *mut ValRaw) -> *const c_void {
    // SAFETY: who calls gives five cells.
    unsafe {
        let number = |at: usize| (*cells.add(at)).get_i32();
        *cells = ValRaw::i32(number(0) + number(2) + number(3));
    }
    ptr::null()
}

fn own_linker(engine: &Engine, form: Form) -> Linker<()> {
    let mut linker = Linker::new(engine);
    let five = [ValType::I32; 5];
    let (no, many) = (FuncType::new([], [ValType::I64]), FuncType::new(five, [ValType::I32]));
    let i32 = |value: &Val| value.i32().unwrap_or_default();
    match form {
        Form::Closures => {
            linker.func_wrap("host", "i64", |_: Caller<'_, ()>| 7i64).expect("a new name");
            let many = |_: Caller<'_, ()>, a: i32, _: i32, c: i32, d: i32, _: i32| a + c + d;
            linker.func_wrap("host", "many", many).expect("a new name");
        }
        Form::Pointers => {
            let (seven, sum) =
                (black_box(seven as extern "C" fn(_) -> _), black_box(sum_of_three as SumOfThree));
            let seven = move |_: Caller<'_, ()>| seven(ptr::null());
            linker.func_wrap("host", "i64", seven).expect("a new name");
            let many = move |_: Caller<'_, ()>, a: i32, b: i32, c: i32, d: i32, e: i32| {
                sum(ptr::null(), a, b, c, d, e)
            };
            linker.func_wrap("host", "many", many).expect("a new name");
        }
        // SAFETY: the C functions leave results of the functions' types.
        Form::RawPointers => unsafe {
            let on_cells = |function: OnCells| {
                let function = black_box(function);
                move |_: Caller<'_, ()>, cells: &mut [ValRaw]| match function(
                    ptr::null(),
                    cells.as_mut_ptr(),
                )
                .is_null()
                {
                    true => Ok(()),
                    false => Err(pagefork::Error::msg("it has failed")),
                }
            };
            linker.func_new_unchecked("host", "i64", no, on_cells(set_seven)).expect("a new name");
            linker.func_new_unchecked("host", "many", many, on_cells(set_sum)).expect("a new name");
        },
        Form::Slices => {
            let set = |_: Caller<'_, ()>, _: &[Val], results: &mut [Val]| {
                results[0] = Val::I64(7);
                Ok(())
            };
            linker.func_new("host", "i64", no, set).expect("a new name");
            let add = move |_: Caller<'_, ()>, args: &[Val], results: &mut [Val]| {
                results[0] = Val::I32(i32(&args[0]) + i32(&args[2]) + i32(&args[3]));
                Ok(())
            };
            linker.func_new("host", "many", many, add).expect("a new name");
        }
        // SAFETY: the closures leave results of the functions' types.
        Form::Raw => unsafe {
            let set = |_: Caller<'_, ()>, cells: &mut [ValRaw]| {
                cells[0] = ValRaw::i64(7);
                Ok(())
            };
            linker.func_new_unchecked("host", "i64", no, set).expect("a new name");
            let add = |_: Caller<'_, ()>, cells: &mut [ValRaw]| {
                let number = |at: usize| cells[at].get_i32();
                cells[0] = ValRaw::i32(number(0) + number(2) + number(3));
                Ok(())
            };
            linker.func_new_unchecked("host", "many", many, add).expect("a new name");
        },
    }
    linker
}

impl OwnCalls {
    fn new(engine: &Engine, module: &Module, form: Form) -> Self {
        let mut store = Store::new(engine, ());
        let linker = own_linker(engine, form);
        let instance = linker.instantiate(&mut store, module).expect("all is linked");
        let funcs = ["nop", "i64", "many", "loop_i64", "loop_many"];
        let funcs = funcs.map(|name| instance.get_func(&mut store, name).expect("an export"));
        let typed = |at: usize| funcs[at].typed(&store).expect("it is of that type");
        Self {
            nop: funcs[0].typed(&store).expect("it is of that type"),
            i64: funcs[1].typed(&store).expect("it is of that type"),
            many: funcs[2].typed(&store).expect("it is of that type"),
            loops: [typed(3), typed(4)],
            funcs: funcs.to_vec(),
            store,
        }
    }

    fn typed(&mut self, function: c_int) -> u64 {
        let Self { store, nop, i64, many, loops, .. } = self;
        (0..CALLS)
            .map(|_| match function {
                0 => nop.call(&mut *store, ()).map_or(1, |()| 0),
                1 => i64.call(&mut *store, ()).map_or(0, |value| value as u64),
                2 => many.call(&mut *store, ()).map_or(1, |()| 0),
                other => {
                    let called = loops[other as usize - 3].call(&mut *store, 100);
                    called.map_or(0, |value| value as u64)
                }
            })
            .sum()
    }

    fn values(&mut self, function: c_int) -> u64 {
        let (func, is_loop) = (self.funcs[function as usize], function >= 3);
        let (args, mut results) = ([Val::I32(100)], [Val::I64(0)]);
        let args = &args[..usize::from(is_loop)];
        let results = &mut results[..usize::from(is_loop || function == 1)];
        let call = |_| match func.call(&mut self.store, args, results) {
            Ok(()) => results.first().and_then(|value| value.i64()).unwrap_or(0) as u64,
            Err(_) => 1,
        };
        (0..CALLS).map(call).sum()
    }

    fn raw(&mut self, function: c_int) -> u64 {
        let (func, is_loop) = (self.funcs[function as usize], function >= 3);
        let mut cells = [ValRaw::i64(0)];
        let call = |_| {
            if is_loop {
                cells[0] = ValRaw::i32(100);
            }
            // SAFETY: the argument is of the function's type, and there is room for a result.
            let called = unsafe { func.call_unchecked(&mut self.store, &raw mut cells[..]) };
            called.map_or(1, |()| cells[0].get_i64() as u64)
        };
        (0..CALLS).map(call).sum()
    }
}

fn own_found_requests(pre: &InstancePre<()>) -> u64 {
    let i64 = pre.module().get_typed_export::<(), i64>("i64").expect("it is exported");
    let request = |_| {
        let (mut store, instance) = pre.spawn(()).expect("there is room");
        let i64 = instance.get_typed_export(&store, &i64).expect("it is the module's");
        i64.call(&mut store, ()).map_or(0, |value| value as u64)
    };
    (0..CALLS).map(request).sum()
}

fn own_requests(pre: &InstancePre<()>) -> u64 {
    let request = |_| {
        let (mut store, instance) = pre.spawn(()).expect("there is room");
        let i64 = instance.get_typed_func::<(), i64>(&mut store, "i64").expect("it is exported");
        i64.call(&mut store, ()).map_or(0, |value| value as u64)
    };
    (0..CALLS).map(request).sum()
}

/// Where the peer's C library is.
fn peer_library() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("../target/guests/libwasmtime.so")
}

/// A column with what is done in it.
type Way<'a> = (&'static str, Box<dyn FnMut() -> u64 + 'a>);

/// Adds a line, of nanoseconds for each thing that is done.
fn line(grid: &mut Grid, name: &str, effort: Effort, expected: u64, done: f64, ways: Vec<Way<'_>>) {
    let contestant = |(column, work)| Contestant { column, work: Iteration::Here(work) };
    let mut contestants: Vec<_> = ways.into_iter().map(contestant).collect();
    let mut measured = Grid::new("", COLUMNS.len(), COLUMNS);
    let expected = expected * u64::from(CALLS);
    let line = measured.contest(name, effort, expected, &mut contestants);
    let count = f64::from(CALLS) * done;
    let samples = COLUMNS
        .iter()
        .zip(&line.cells)
        .map(|(column, cells)| (*column, cells.iter().map(|sample| sample / count).collect()));
    grid.add(name, Unit::Nanoseconds, samples.collect()).alone = true;
}

/// Times calls in both directions, and an instance a request.
pub fn run(size: Size) -> Report {
    let wasm = wat::parse_str(WAT).expect("a module");
    let program = Program::build();
    let ours = program.side(false, find_own, ptr::null_mut(), &wasm);
    let ours = ours.unwrap_or_else(|name| panic!("{name} of ours"));
    let peer = open(&peer_library());
    let theirs = peer.as_ref().ok().map(|library| {
        let side = program.side(true, find_in_library, *library, &wasm);
        side.unwrap_or_else(|name| panic!("{name} of the peer's"))
    });
    let engine = Engine::default();
    let module = Module::new(&engine, &wasm).expect("a valid module");
    let own = |form| RefCell::new(OwnCalls::new(&engine, &module, form));
    let (values, raw) = (own(Form::Slices), own(Form::Raw));
    let typed = own(Form::Closures);
    let (pointers, raw_pointers) = (own(Form::Pointers), own(Form::RawPointers));
    let effort = Effort::short(size);
    let mut grid = Grid::new("calls", 3, COLUMNS);
    let c = |side: *mut c_void, name: &CStr, function: c_int| -> Box<dyn FnMut() -> u64> {
        let calls = program.calls(name);
        // SAFETY: the side was made for these functions, and is never freed.
        Box::new(move || unsafe { calls(side, function, CALLS) })
    };
    for (name, function, expected, done) in FUNCTIONS {
        let mut ways: Vec<Way<'_>> = vec![
            (COLUMNS[1], c(ours, c"pagefork_typed_calls", function)),
            (COLUMNS[2], Box::new(|| typed.borrow_mut().typed(function))),
        ];
        // It has none that are typed.
        line(&mut grid, &format!("{name}: typed"), effort, expected, done, ways);
        if done > 1.0 {
            ways = vec![
                (COLUMNS[1], c(ours, c"pagefork_typed_calls", function)),
                (COLUMNS[2], Box::new(|| pointers.borrow_mut().typed(function))),
            ];
            let typed = format!("{name}: typed, a C function in Rust, too");
            line(&mut grid, &typed, effort, expected, done, ways);
            ways = vec![
                (COLUMNS[1], c(ours, c"pagefork_raw_calls", function)),
                (COLUMNS[2], Box::new(|| raw_pointers.borrow_mut().raw(function))),
            ];
            let cells = format!("{name}: cells, a C function in Rust, too");
            line(&mut grid, &cells, effort, expected, done, ways);
        }
        ways = vec![
            (COLUMNS[1], c(ours, c"pagefork_raw_calls", function)),
            (COLUMNS[2], Box::new(|| raw.borrow_mut().raw(function))),
        ];
        ways.extend(theirs.map(|side| (COLUMNS[4], c(side, c"wasmtime_raw_calls", function))));
        line(&mut grid, &format!("{name}: cells"), effort, expected, done, ways);
        ways = vec![
            (COLUMNS[0], c(ours, c"wasm_calls", function)),
            (COLUMNS[1], c(ours, c"pagefork_value_calls", function)),
            (COLUMNS[2], Box::new(|| values.borrow_mut().values(function))),
        ];
        ways.extend(theirs.map(|side| (COLUMNS[3], c(side, c"wasm_calls", function))));
        ways.extend(theirs.map(|side| (COLUMNS[4], c(side, c"wasmtime_value_calls", function))));
        line(&mut grid, &format!("{name}: values"), effort, expected, done, ways);
    }
    let pre = own_linker(&engine, Form::Closures).instantiate_pre(&module).expect("all is linked");
    let mut ways: Vec<Way<'_>> = vec![
        (COLUMNS[1], c(ours, c"pagefork_requests", 1)),
        (COLUMNS[2], Box::new(|| own_requests(&pre))),
    ];
    ways.extend(theirs.map(|side| (COLUMNS[4], c(side, c"wasmtime_requests", 1))));
    line(&mut grid, "an instance a request, i64", effort, 7, 1.0, ways);
    ways = vec![
        (COLUMNS[1], c(ours, c"pagefork_object_requests", 1)),
        (COLUMNS[2], Box::new(|| own_requests(&pre))),
    ];
    line(&mut grid, "the same, with an object of the function", effort, 7, 1.0, ways);
    ways = vec![
        (COLUMNS[1], c(ours, c"pagefork_found_requests", 1)),
        (COLUMNS[2], Box::new(|| own_found_requests(&pre))),
    ];
    line(&mut grid, "the same, its function found once", effort, 7, 1.0, ways);
    ways = vec![
        (COLUMNS[1], c(ours, c"pagefork_fresh_requests", 1)),
        (COLUMNS[2], Box::new(|| own_found_requests(&pre))),
    ];
    line(&mut grid, "the same, in one call from C", effort, 7, 1.0, ways);
    grid.notes = notes(&grid);
    if let Err(error) = &peer {
        grid.notes.push(format!("Without wasmtime's C library: {error}."));
    }
    Report::of_grid("capi", &grid)
}

/// The ratios that there are goals for.
fn notes(grid: &Grid) -> Vec<String> {
    let median = |line: &crate::grid::Line, column: usize| percentile(&line.cells[column], 50);
    let mut notes = Vec::new();
    for line in &grid.lines {
        let mut parts = Vec::new();
        if let (Some(ours), Some(theirs)) = (median(line, 0), median(line, 3)) {
            parts.push(format!("`wasm.h` in 1/{:.2} of the peer's time", theirs / ours));
        }
        if let (Some(ours), Some(theirs)) = (median(line, 1), median(line, 4)) {
            parts.push(format!("`pagefork.h` in 1/{:.2} of `wasmtime.h`'s", theirs / ours));
        }
        if let (Some(c), Some(rust)) = (median(line, 1), median(line, 2)) {
            let (more, percent) = (c - rust, (c / rust - 1.0) * 100.0);
            parts.push(format!("{more:+.2} ns ({percent:+.0} %) beside Rust"));
        }
        notes.push(format!("{}: {}.", line.name, parts.join(", ")));
    }
    notes
}
