//! Loops of a few lines.

use crate::measure::{Effort, Row, Size, Work, compare};

/// A loop of a few lines: an export of a module.
struct Kernel {
    name: &'static str,
    module: Source,
    export: &'static str,
    /// How much work the small size does, and what must come of it. It comes from
    /// the same source compiled by the host's own compiler, or from elsewhere.
    small: (u32, u64),
    /// How much work is measured: some milliseconds.
    large: u32,
}

#[derive(Clone, Copy)]
enum Source {
    Kernels,
    Globals,
    Stores,
    Bulk,
    Fib,
}

impl Source {
    fn bytes(self) -> Vec<u8> {
        let text = match self {
            Self::Kernels => return include_bytes!("../../guest/built/kernels.wasm").to_vec(),
            Self::Globals => include_str!("../../guest/bench/globals.wat"),
            Self::Stores => include_str!("../../guest/bench/stores.wat"),
            Self::Bulk => include_str!("../../guest/bench/bulk.wat"),
            Self::Fib => include_str!("../../guest/wat/fib.wat"),
        };
        wat::parse_str(text).expect("a module")
    }
}

const fn c(name: &'static str, export: &'static str, small: (u32, u64), large: u32) -> Kernel {
    Kernel { name, module: Source::Kernels, export, small, large }
}

const KERNELS: &[Kernel] = &[
    c("SHA-256", "sha256", (1000, 0x41ed_ece4_2d63_e8d9), 2_000_000),
    c("n bodies", "nbody", (100, 0xb692_6ff2_bbf5_6c53), 50_000),
    c("Mandelbrot, SIMD", "mandelbrot", (32, 0x3886), 512),
    c("sort", "sort", (1000, 0x5575_b84d_a508_daf4), 100_000),
    c("interpreter loop (br_table)", "interpreter", (100, 3142), 4000),
    c("call_indirect", "dispatch", (1000, 0xe38a_9677_336a_6c51), 2_000_000),
    Kernel {
        name: "calls (Fibonacci)",
        module: Source::Fib,
        export: "fib",
        small: (12, 144),
        large: 30,
    },
    c("copies below 64 bytes", "copy_short", (1000, 0x94c5_4dea_c3f1_0c5f), 500_000),
    c("copies of 64 KiB", "copy_long", (4, 0xa8a9_b537_0173_6f8a), 1000),
    c("strided sweep over 16 MiB", "sweep", (4, 0x03b8_0000), 16),
    c("UTF-8 scan", "utf8", (64, 0xcf2e_5a5a_7bcc_5709), 4000),
    c("matrix product", "matrix", (1, 0x9122_bc69_761d_721d), 4),
    Kernel {
        name: "globals",
        module: Source::Globals,
        export: "globals",
        small: (1000, 0x0260_661e_9107_81c2),
        large: 5_000_000,
    },
    Kernel {
        name: "short loops of stores",
        module: Source::Stores,
        export: "stores",
        small: (1000, 0x385b_81f6_8fa9_f759),
        large: 1000,
    },
    Kernel {
        name: "copies and fills of 200 bytes to 4 KiB",
        module: Source::Bulk,
        export: "bulk",
        small: (1000, 0x0101_0101_0101_0101),
        large: 50_000,
    },
];

/// Runs every kernel on both sides.
pub(crate) fn run(size: Size, interruptible: bool) -> Vec<Row> {
    KERNELS.iter().map(|kernel| measure(kernel, size, interruptible)).collect()
}

fn measure(kernel: &Kernel, size: Size, interruptible: bool) -> Row {
    let wasm = kernel.module.bytes();
    let mut ours = pagefork_side::Instance::new(&wasm, kernel.export, interruptible);
    let (count, expected) = kernel.small;
    assert_eq!(ours.call(count), expected, "{} of {count}", kernel.name);
    let count = if size == Size::Small { count } else { kernel.large };

    #[cfg(feature = "peer")]
    let mut theirs = wasmtime_side::Instance::new(&wasm, kernel.export, interruptible);
    #[cfg(feature = "peer")]
    let expected = theirs.call(count);
    #[cfg(not(feature = "peer"))]
    let expected = ours.call(count);
    #[cfg(feature = "peer")]
    let mut peer = || theirs.call(count);
    #[cfg(feature = "peer")]
    let peer: Option<Work<'_>> = Some(&mut peer);
    #[cfg(not(feature = "peer"))]
    let peer: Option<Work<'_>> = None;
    compare(kernel.name, Effort::short(size), expected, &mut || ours.call(count), peer)
}

macro_rules! side {
    ($module:ident, $engine:ident) => {
        mod $module {
            use $engine::{Linker, Module, TypedFunc};

            use crate::engines::$engine as engines;

            pub(super) struct Instance {
                store: $engine::Store<()>,
                function: TypedFunc<u32, i64>,
            }

            impl Instance {
                pub(super) fn new(wasm: &[u8], export: &str, interruptible: bool) -> Self {
                    let engine = engines::engine(interruptible);
                    let module = Module::new(&engine, wasm).expect("a valid module");
                    let mut store = engines::store(&engine, (), interruptible);
                    let instance = Linker::new(&engine)
                        .instantiate(&mut store, &module)
                        .expect("nothing to link");
                    let function = instance.get_typed_func(&mut store, export).expect("an export");
                    Self { store, function }
                }

                pub(super) fn call(&mut self, count: u32) -> u64 {
                    self.function.call(&mut self.store, count).expect("kernels do not trap") as u64
                }
            }
        }
    };
}

side!(pagefork_side, pagefork);
#[cfg(feature = "peer")]
side!(wasmtime_side, wasmtime);
