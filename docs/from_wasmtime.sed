# Ports programs written for wasmtime 48, as far as names go: see FROM_WASMTIME.md.
#   sed -i -f docs/from_wasmtime.sed src/*.rs
# What it cannot port the compiler then names.

# Crates.
s/\bwasmtime_wasi::p1::WasiP1Ctx\b/pagefork_wasi::WasiCtx/g
s/\bwasmtime_wasi::p1::add_to_linker_sync\b/pagefork_wasi::add_to_linker/g
s/\bwasmtime_wasi::p1::{\(.*\)}/pagefork_wasi::{\1}/g
s/\bwasmtime_wasi::p1\b/pagefork_wasi/g
s/\bwasmtime_wasi\b/pagefork_wasi/g
s/\bwasmtime::error::Context\b/pagefork::Context/g
s/\bwasmtime\b/pagefork/g

# WASI.
s/\bp1::add_to_linker_sync\b/pagefork_wasi::add_to_linker/g
s/\badd_to_linker_sync\b/add_to_linker/g
s/\bWasiP1Ctx\b/WasiCtx/g
s/\.build_p1()/.build()?/g
s/\bI32Exit\b/Exit/g
s/\bFsPerms\b/Permissions/g

# Errors and traps.
s/\bTrap::UnreachableCodeReached\b/TrapCode::Unreachable/g
s/\bTrap::\(StackOverflow\|MemoryOutOfBounds\|TableOutOfBounds\|IndirectCallToNull\|BadSignature\|IntegerOverflow\|IntegerDivisionByZero\|BadConversionToInteger\|Interrupt\|OutOfFuel\|NullReference\)\b/TrapCode::\1/g
s/\.downcast_ref::<\(pagefork::\)\?Trap>()/.downcast_ref::<\1Trap>().map(\1Trap::code)/g
s/\bSome(&TrapCode::/Some(TrapCode::/g
s/\(use pagefork::{.*\)\bTrap\b/\1Trap, TrapCode/
s/\.downcast::<\(pagefork::\)\?Trap>()?/&.code()/g
s/\.downcast_ref::<\(pagefork::\)\?WasmBacktrace>()/.backtrace()/g
s/\.func_name()/.function_name()/g
s/\.func_index()/.function_index()/g
s/\.module_offset()/.wasm_offset()/g

# Engine, stores, values.
s/\.epoch_interruption(\(true\|false\))/.interruption(\1)/g
s/\.consume_fuel(/.fuel(/g
s/\.get_fuel()/.fuel()/g
s/\.max_wasm_stack(/.stack_size(/g
s/\.cranelift_nan_canonicalization(/.deterministic(/g
s/\.relaxed_simd_deterministic(/.deterministic(/g
s/\bRooted<\([A-Za-z]*\)>/\1/g
s/\bRooted::ref_eq(/ExternRef::ptr_eq(/g
s/\.unwrap_extern()/.unwrap_externref()/g
s/\.gc(None)?\?/.collect_references()/g
s/\bRef::Func(/Val::FuncRef(/g
s/\bRef::Extern(/Val::ExternRef(/g
s/\bWasm\(Params\|Results\)\b/WasmValues/g

# There is no heap of references that could be full: what collects and tries again goes.
/= match ExternRef::new(.*) {$/,/^ *};$/{
/= match /!d
s/= match \(ExternRef::new(.*)\) {$/= \1?;/
}

# Settings that there are none of, because there is one way.
/if let Err([a-z]*) = config\.target(/,/^ *}$/d
/let mut [a-z]* = PoolingAllocationConfig::new();/,/\.allocation_strategy(.*);$/d
/^ *config\.\(strategy\|signals_based_traps\|memory_reservation\|memory_guard_size\|memory_init_cow\|parallel_compilation\|coredump_on_trap\|cranelift_[a-z_]*\)(.*);$/d
s/\b\(InstanceAllocationStrategy\|PoolingAllocationConfig\|Strategy\), //g
s/^\(use pagefork::{.*\), Strategy}/\1}/
s/\bGcHeapOutOfMemory, //
s/^\(use pagefork::{.*\), GcHeapOutOfMemory}/\1}/

# Types.
s/\bFuncType::new(&\?\(self\.\)\?\(engine\|store\.engine()\|linker\.engine()\|[a-z_]*\.engine()\), /FuncType::new(/g
/\bFuncType::new($/{n
/^ *&\?\(engine\|[a-z_.]*engine()\),$/d
}

# Names that are not needed.
s/^\(use pagefork::{.*\)\bWasmBacktrace, /\1/
s/^\(use pagefork::{.*\)\bWasmBacktrace, /\1/
s/^\(use pagefork::{.*\), WasmBacktrace}/\1}/
