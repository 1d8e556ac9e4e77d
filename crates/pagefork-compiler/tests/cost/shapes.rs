//! Modules of one shape and any size, each of which has been quadratic in some compiler.

use wasm_encoder::{
    BlockType, Catch, CodeSection, ConstExpr, CustomSection, DataSection, ElementSection, Elements,
    EntityType, ExportKind, ExportSection, Function, FunctionSection, GlobalSection, GlobalType,
    ImportSection, Instruction as I, MemArg, MemArgTarget, MemorySection, MemoryType, Module,
    NameMap, NameSection, RefType, TableSection, TableType, TagKind, TagSection, TagType,
    TypeSection, ValType,
};

/// A shape: its name, and how it is built in some size.
pub(crate) type Shape = (&'static str, fn(u32) -> Vec<u8>);

/// All shapes.
pub(crate) const SHAPES: &[Shape] = &[
    ("a br_table that carries 1000 values", |n| br_table(n, 1000)),
    ("a br_table that carries nothing", |n| br_table(n, 0)),
    ("a br_table that carries 1000 locals", br_table_with_locals),
    ("a br_table with a block for each target", br_table_of_blocks),
    ("a br_table with a block for each target and values", br_table_of_blocks_with_values),
    ("short br_tables one after the other", |n| short_br_tables(n, 0)),
    ("short br_tables that carry 100 values", |n| short_br_tables(n, 100)),
    ("nested loops", |n| nested(n, Nest::Loop)),
    ("nested loops with 10 parameters", |n| nested(n, Nest::LoopWithParams(10))),
    ("nested loops with branches to each", |n| nested(n, Nest::LoopWithBranch)),
    ("nested loops with calls", |n| nested(n, Nest::LoopWithCall)),
    ("nested loops that use a local", |n| nested(n, Nest::LoopWithLocal)),
    ("nested blocks", |n| nested(n, Nest::Block)),
    ("nested blocks with branches out of all", |n| nested(n, Nest::BlockWithBranch)),
    ("nested ifs", |n| nested(n, Nest::If)),
    ("nested ifs with else", |n| nested(n, Nest::IfElse)),
    ("nested try_tables", |n| nested(n, Nest::Try)),
    ("nested try_tables with calls", |n| nested(n, Nest::TryWithCall)),
    ("loops one after the other", |n| in_a_row(n, Nest::Loop)),
    ("ifs one after the other", |n| in_a_row(n, Nest::If)),
    ("ifs that set a local", |n| in_a_row(n, Nest::IfLocal)),
    ("blocks with 100 parameters", |n| in_a_row(n, Nest::LoopWithParams(100))),
    ("calls one after the other", |n| in_a_row(n, Nest::Call)),
    ("loads and stores", |n| in_a_row(n, Nest::Memory)),
    ("constants stored in memory", |n| stored_constants(n, &I::I32Store(memory_arg(0)))),
    ("constants stored as bytes", |n| {
        stored_constants(n, &I::I32Store8(MemArg { align: 0, ..memory_arg(0) }))
    }),
    ("live values", |n| live_values(n, false)),
    ("live values across a call", |n| live_values(n, true)),
    ("functions with 1000 live values", |n| many_live_values(1000, false, n)),
    ("locals in many blocks", locals_and_blocks),
    ("locals live in loops", |n| locals_in_loops(n)),
    ("a chain of selects", chain_of_selects),
    ("a chain of additions", chain_of_additions),
    ("a call of many parameters", calls_with_many_parameters),
    ("functions", |n| functions(n, false)),
    ("functions with types of their own", |n| functions(n, true)),
    ("functions with loops", functions_with_loops),
    ("exports", exports),
    ("imports", imports),
    ("imports with types of 150 parameters", imports_of_large_types),
    ("globals", globals),
    ("element segments", |n| elements(n, true)),
    ("elements", |n| elements(n, false)),
    ("data segments", data_segments),
    ("custom sections", custom_sections),
    ("names", names),
    ("a long constant expression", long_constant),
    ("indirect calls of distinct types", indirect_calls),
    ("distinct constants", distinct_constants),
    ("catch clauses", catch_clauses),
];

fn memory_arg(offset: u64) -> MemArg {
    MemArg { offset, align: 2, target: MemArgTarget::default(), ordering: None }
}

fn small_memory() -> MemoryType {
    MemoryType { minimum: 1, maximum: None, memory64: false, shared: false, page_size_log2: None }
}

/// A module of one function, see [`many`].
fn one(types: &TypeSection, function: &Function) -> Vec<u8> {
    many(types, function, 1)
}

/// A module of `count` equal functions of type 0, with types, a memory, a tag and an import of a
/// function without parameters or results.
fn many(types: &TypeSection, function: &Function, count: u32) -> Vec<u8> {
    let mut imports = ImportSection::new();
    imports.import("a", "b", EntityType::Function(types.len() - 1));
    let mut functions = FunctionSection::new();
    for _ in 0..count {
        functions.function(0);
    }
    let mut memories = MemorySection::new();
    memories.memory(small_memory());
    let mut tags = TagSection::new();
    tags.tag(TagType { kind: TagKind::Exception, func_type_idx: types.len() - 1 });
    let mut exports = ExportSection::new();
    exports.export("f", ExportKind::Func, 1);
    let mut code = CodeSection::new();
    for _ in 0..count {
        code.function(function);
    }
    let mut module = Module::new();
    module.section(types).section(&imports).section(&functions).section(&memories);
    module.section(&tags).section(&exports).section(&code);
    module.finish()
}

/// The type of the function, others, and at last that without anything.
fn types(types: &[(u32, u32)]) -> TypeSection {
    let mut section = TypeSection::new();
    let i32s = |count| std::iter::repeat_n(ValType::I32, count as usize);
    for &(params, results) in types.iter().chain(&[(0, 0)]) {
        section.ty().function(i32s(params), i32s(results));
    }
    section
}

fn br_table(n: u32, values: u32) -> Vec<u8> {
    let mut f = Function::new([]);
    f.instruction(&I::Block(BlockType::FunctionType(1)));
    for _ in 0..values {
        f.instruction(&I::LocalGet(0));
    }
    f.instruction(&I::LocalGet(0));
    f.instruction(&I::BrTable(vec![0; n as usize].into(), 0));
    f.instruction(&I::End);
    for _ in 0..values {
        f.instruction(&I::Drop);
    }
    f.instruction(&I::End);
    one(&types(&[(1, 0), (0, values)]), &f)
}

fn br_table_with_locals(n: u32) -> Vec<u8> {
    let mut f = Function::new([(1000, ValType::I32)]);
    f.instruction(&I::Block(BlockType::Empty));
    f.instruction(&I::LocalGet(0));
    f.instruction(&I::BrIf(0));
    for local in 1..=1000 {
        f.instruction(&I::LocalGet(0));
        f.instruction(&I::LocalSet(local));
    }
    f.instruction(&I::LocalGet(0));
    f.instruction(&I::BrTable(vec![0; n as usize].into(), 0));
    f.instruction(&I::End);
    for local in 1..=1000 {
        f.instruction(&I::LocalGet(0));
        f.instruction(&I::LocalGet(local));
        f.instruction(&I::I32Store(memory_arg(0)));
    }
    f.instruction(&I::End);
    one(&types(&[(1, 0)]), &f)
}

fn br_table_of_blocks(n: u32) -> Vec<u8> {
    let mut f = Function::new([]);
    for _ in 0..=n {
        f.instruction(&I::Block(BlockType::Empty));
    }
    f.instruction(&I::LocalGet(0));
    f.instruction(&I::BrTable((0..n).collect::<Vec<_>>().into(), n));
    for i in 0..=n {
        f.instruction(&I::End);
        f.instruction(&I::LocalGet(0));
        f.instruction(&I::I32Const(i as i32));
        f.instruction(&I::I32Store(memory_arg(0)));
        f.instruction(&I::Return);
    }
    f.instruction(&I::End);
    one(&types(&[(1, 0)]), &f)
}

fn br_table_of_blocks_with_values(n: u32) -> Vec<u8> {
    let mut f = Function::new([]);
    for _ in 0..=n {
        f.instruction(&I::Block(BlockType::FunctionType(1)));
    }
    for _ in 0..100 {
        f.instruction(&I::LocalGet(0));
    }
    f.instruction(&I::LocalGet(0));
    f.instruction(&I::BrTable((0..n).collect::<Vec<_>>().into(), n));
    for _ in 0..=n {
        f.instruction(&I::End);
        f.instruction(&I::LocalGet(0));
        f.instruction(&I::I32Add);
    }
    for _ in 0..100 {
        f.instruction(&I::Drop);
    }
    f.instruction(&I::End);
    one(&types(&[(1, 0), (0, 100)]), &f)
}

fn short_br_tables(n: u32, values: u32) -> Vec<u8> {
    let mut f = Function::new([]);
    f.instruction(&I::Block(BlockType::FunctionType(1)));
    for _ in 0..values {
        f.instruction(&I::LocalGet(0));
    }
    for _ in 0..n {
        f.instruction(&I::Block(BlockType::FunctionType(2)));
        f.instruction(&I::LocalGet(0));
        f.instruction(&I::BrTable(vec![0, 1, 0, 1].into(), 0));
        f.instruction(&I::End);
    }
    f.instruction(&I::End);
    for _ in 0..values {
        f.instruction(&I::Drop);
    }
    f.instruction(&I::End);
    one(&types(&[(1, 0), (0, values), (values, values)]), &f)
}

/// What is nested, or follows one another.
#[derive(Clone, Copy, PartialEq)]
enum Nest {
    Loop,
    LoopWithParams(u32),
    LoopWithBranch,
    LoopWithCall,
    LoopWithLocal,
    Block,
    BlockWithBranch,
    If,
    IfElse,
    IfLocal,
    Try,
    TryWithCall,
    Call,
    Memory,
}

fn open(f: &mut Function, nest: Nest, depth: u32) {
    match nest {
        Nest::Loop => drop(f.instruction(&I::Loop(BlockType::Empty))),
        Nest::LoopWithParams(_) => drop(f.instruction(&I::Loop(BlockType::FunctionType(1)))),
        Nest::LoopWithBranch => drop(f.instruction(&I::Loop(BlockType::Empty))),
        Nest::LoopWithCall => {
            f.instruction(&I::Loop(BlockType::Empty));
            f.instruction(&I::Call(0));
        }
        Nest::LoopWithLocal => {
            f.instruction(&I::Loop(BlockType::Empty));
            f.instruction(&I::LocalGet(0));
            f.instruction(&I::I32Const(3));
            f.instruction(&I::I32Add);
            f.instruction(&I::LocalSet(0));
        }
        Nest::Block => drop(f.instruction(&I::Block(BlockType::Empty))),
        Nest::BlockWithBranch => {
            f.instruction(&I::Block(BlockType::Empty));
            f.instruction(&I::LocalGet(0));
            f.instruction(&I::BrIf(depth));
        }
        Nest::If | Nest::IfElse | Nest::IfLocal => {
            f.instruction(&I::LocalGet(0));
            f.instruction(&I::If(BlockType::Empty));
        }
        Nest::Try | Nest::TryWithCall => {
            let catches = vec![Catch::All { label: 0 }];
            f.instruction(&I::TryTable(BlockType::Empty, catches.into()));
            if nest == Nest::TryWithCall {
                f.instruction(&I::Call(0));
            }
        }
        Nest::Call => drop(f.instruction(&I::Call(0))),
        Nest::Memory => {
            f.instruction(&I::LocalGet(0));
            f.instruction(&I::LocalGet(0));
            f.instruction(&I::I32Load(memory_arg(4)));
            f.instruction(&I::I32Store(memory_arg(8)));
        }
    }
}

fn close(f: &mut Function, nest: Nest) {
    match nest {
        Nest::Call | Nest::Memory => return,
        Nest::LoopWithBranch | Nest::LoopWithCall | Nest::LoopWithLocal | Nest::Loop => {
            f.instruction(&I::LocalGet(0));
            f.instruction(&I::BrIf(0));
        }
        Nest::IfElse => {
            f.instruction(&I::Else);
            f.instruction(&I::LocalGet(0));
            f.instruction(&I::I32Const(7));
            f.instruction(&I::I32Store(memory_arg(0)));
        }
        Nest::IfLocal => {
            f.instruction(&I::LocalGet(0));
            f.instruction(&I::I32Const(7));
            f.instruction(&I::I32Add);
            f.instruction(&I::LocalSet(0));
        }
        _ => {}
    }
    f.instruction(&I::End);
}

fn nested(n: u32, nest: Nest) -> Vec<u8> {
    build(n, nest, true)
}

fn in_a_row(n: u32, nest: Nest) -> Vec<u8> {
    build(n, nest, false)
}

fn build(n: u32, nest: Nest, nested: bool) -> Vec<u8> {
    let mut f = Function::new([]);
    let values = if let Nest::LoopWithParams(values) = nest { values } else { 0 };
    for _ in 0..values {
        f.instruction(&I::LocalGet(0));
    }
    for depth in 0..n {
        open(&mut f, nest, depth);
        if !nested {
            close(&mut f, nest);
        }
    }
    if nested {
        if let Nest::LoopWithBranch = nest {
            for depth in 0..n {
                f.instruction(&I::LocalGet(0));
                f.instruction(&I::BrIf(depth));
            }
        }
        for _ in 0..n {
            close(&mut f, nest);
        }
    }
    for _ in 0..values {
        f.instruction(&I::Drop);
    }
    f.instruction(&I::End);
    one(&types(&[(1, 0), (values, values)]), &f)
}

/// As compilers generate for the initialisers of tables: a few hundred values, each often.
fn stored_constants(n: u32, store: &I<'_>) -> Vec<u8> {
    let mut f = Function::new([]);
    for i in 0..n {
        f.instruction(&I::I32Const((4 * i % 65_536) as i32));
        f.instruction(&I::I32Const((i.wrapping_mul(2_654_435_761) >> 23) as i32));
        f.instruction(store);
    }
    f.instruction(&I::End);
    one(&types(&[(1, 0)]), &f)
}

fn live_values(n: u32, call: bool) -> Vec<u8> {
    many_live_values(n, call, 1)
}

fn many_live_values(n: u32, call: bool, functions: u32) -> Vec<u8> {
    let mut f = Function::new([]);
    f.instruction(&I::LocalGet(0));
    for i in 0..n {
        f.instruction(&I::LocalGet(0));
        f.instruction(&I::I32Load(memory_arg(u64::from(4 * i))));
    }
    if call {
        f.instruction(&I::Call(0));
    }
    for _ in 1..n {
        f.instruction(&I::I32Add);
    }
    f.instruction(&I::I32Store(memory_arg(0)));
    f.instruction(&I::End);
    many(&types(&[(1, 0)]), &f, functions)
}

fn locals_and_blocks(n: u32) -> Vec<u8> {
    let mut f = Function::new([(n.min(40_000), ValType::I32)]);
    for i in 0..n {
        f.instruction(&I::LocalGet(0));
        f.instruction(&I::If(BlockType::Empty));
        f.instruction(&I::LocalGet(0));
        f.instruction(&I::LocalSet(1 + i % 40_000));
        f.instruction(&I::End);
    }
    f.instruction(&I::End);
    one(&types(&[(1, 0)]), &f)
}

fn locals_in_loops(n: u32) -> Vec<u8> {
    let mut f = Function::new([(n, ValType::I32)]);
    for i in 0..n {
        f.instruction(&I::LocalGet(0));
        f.instruction(&I::I32Load(memory_arg(u64::from(4 * i))));
        f.instruction(&I::LocalSet(i + 1));
    }
    for _ in 0..n {
        f.instruction(&I::Loop(BlockType::Empty));
        f.instruction(&I::LocalGet(0));
        f.instruction(&I::BrIf(0));
        f.instruction(&I::End);
    }
    for i in 0..n {
        f.instruction(&I::LocalGet(0));
        f.instruction(&I::LocalGet(i + 1));
        f.instruction(&I::I32Store(memory_arg(u64::from(4 * i))));
    }
    f.instruction(&I::End);
    one(&types(&[(1, 0)]), &f)
}

fn chain_of_selects(n: u32) -> Vec<u8> {
    let mut f = Function::new([]);
    f.instruction(&I::LocalGet(0));
    f.instruction(&I::LocalGet(0));
    for _ in 0..n {
        f.instruction(&I::LocalGet(0));
        f.instruction(&I::LocalGet(0));
        f.instruction(&I::Select);
    }
    f.instruction(&I::I32Store(memory_arg(0)));
    f.instruction(&I::End);
    one(&types(&[(1, 0)]), &f)
}

fn chain_of_additions(n: u32) -> Vec<u8> {
    let mut f = Function::new([]);
    f.instruction(&I::LocalGet(0));
    f.instruction(&I::LocalGet(0));
    for i in 0..n {
        f.instruction(&I::LocalGet(0));
        f.instruction(if i % 3 == 0 { &I::I32Xor } else { &I::I32Add });
    }
    f.instruction(&I::I32Store(memory_arg(0)));
    f.instruction(&I::End);
    one(&types(&[(1, 0)]), &f)
}

fn calls_with_many_parameters(n: u32) -> Vec<u8> {
    let mut f = Function::new([]);
    for i in 0..n.div_ceil(1000) {
        for k in 0..1000 {
            f.instruction(&I::LocalGet((i + k) % 1000));
        }
        f.instruction(&I::Call(1));
    }
    f.instruction(&I::End);
    one(&types(&[(1000, 0)]), &f)
}

fn functions(n: u32, own_types: bool) -> Vec<u8> {
    let mut types = TypeSection::new();
    for i in 0..if own_types { n } else { 1 } {
        let bits = |i: u32| {
            (0..20)
                .map(move |bit: u32| if (i >> bit) & 1 == 0 { ValType::I32 } else { ValType::I64 })
        };
        types.ty().function(bits(i), []);
    }
    let (mut functions, mut code) = (FunctionSection::new(), CodeSection::new());
    let (mut tables, mut elements) = (TableSection::new(), ElementSection::new());
    for i in 0..n {
        functions.function(if own_types { i } else { 0 });
        let mut f = Function::new([]);
        f.instruction(&I::End);
        code.function(&f);
    }
    tables.table(table(n.into()));
    let all: Vec<u32> = (0..n).collect();
    elements.active(None, &ConstExpr::i32_const(0), Elements::Functions(all.into()));
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&tables).section(&elements).section(&code);
    module.finish()
}

fn functions_with_loops(n: u32) -> Vec<u8> {
    let (mut functions, mut code) = (FunctionSection::new(), CodeSection::new());
    for _ in 0..n {
        functions.function(0);
        let mut f = Function::new([]);
        for _ in 0..100 {
            open(&mut f, Nest::Loop, 0);
            close(&mut f, Nest::Loop);
        }
        f.instruction(&I::End);
        code.function(&f);
    }
    let mut module = Module::new();
    module.section(&types(&[(1, 0)])).section(&functions).section(&code);
    module.finish()
}

fn table(minimum: u64) -> TableType {
    TableType {
        element_type: RefType::FUNCREF,
        table64: false,
        minimum,
        maximum: None,
        shared: false,
    }
}

fn empty_function() -> Function {
    let mut f = Function::new([]);
    f.instruction(&I::End);
    f
}

fn exports(n: u32) -> Vec<u8> {
    let mut functions = FunctionSection::new();
    functions.function(0);
    let mut exports = ExportSection::new();
    for i in 0..n {
        exports.export(&format!("{i}"), ExportKind::Func, 0);
    }
    let mut code = CodeSection::new();
    code.function(&empty_function());
    let mut module = Module::new();
    module.section(&types(&[])).section(&functions).section(&exports).section(&code);
    module.finish()
}

fn imports(n: u32) -> Vec<u8> {
    let mut imports = ImportSection::new();
    for i in 0..n {
        imports.import("a", &format!("{i}"), EntityType::Function(0));
    }
    let mut module = Module::new();
    module.section(&types(&[])).section(&imports);
    module.finish()
}

/// Each of another type of 150 parameters.
fn imports_of_large_types(n: u32) -> Vec<u8> {
    let mut types = TypeSection::new();
    let mut imports = ImportSection::new();
    for i in 0..n {
        let wide =
            |bit: u32| if bit < 32 && i >> bit & 1 != 0 { ValType::I64 } else { ValType::I32 };
        types.ty().function((0..150).map(wide), []);
        imports.import("a", &format!("f{i}"), EntityType::Function(i));
    }
    let mut module = Module::new();
    module.section(&types).section(&imports);
    module.finish()
}

fn globals(n: u32) -> Vec<u8> {
    let mut globals = GlobalSection::new();
    let ty = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
    for i in 0..n {
        globals.global(ty, &ConstExpr::i32_const(i as i32));
    }
    let mut functions = FunctionSection::new();
    functions.function(0);
    let mut f = Function::new([]);
    for i in 0..n {
        f.instruction(&I::GlobalGet(i));
        f.instruction(&I::GlobalSet(n - 1 - i));
    }
    f.instruction(&I::End);
    let mut code = CodeSection::new();
    code.function(&f);
    let mut module = Module::new();
    module.section(&types(&[])).section(&functions).section(&globals).section(&code);
    module.finish()
}

fn elements(n: u32, segments: bool) -> Vec<u8> {
    let mut functions = FunctionSection::new();
    functions.function(0);
    let (mut tables, mut elements) = (TableSection::new(), ElementSection::new());
    tables.table(table(n.into()));
    if segments {
        for i in 0..n {
            let one = Elements::Functions(vec![0].into());
            elements.active(None, &ConstExpr::i32_const(i as i32), one);
        }
    } else {
        let all = vec![0; n as usize];
        elements.active(None, &ConstExpr::i32_const(0), Elements::Functions(all.into()));
    }
    let mut code = CodeSection::new();
    code.function(&empty_function());
    let mut module = Module::new();
    module.section(&types(&[])).section(&functions).section(&tables).section(&elements);
    module.section(&code);
    module.finish()
}

fn data_segments(n: u32) -> Vec<u8> {
    let mut memories = MemorySection::new();
    memories.memory(MemoryType { minimum: 1000, ..small_memory() });
    let mut data = DataSection::new();
    for i in 0..n {
        let at = u64::from(i) * 7919 * 64 % (1000 * 65536);
        data.active(0, &ConstExpr::i32_const(at as i32), [1, 2, 3]);
    }
    let mut module = Module::new();
    module.section(&memories).section(&data);
    module.finish()
}

fn custom_sections(n: u32) -> Vec<u8> {
    let mut module = Module::new();
    for i in 0..n {
        let name = if i % 2 == 0 { ".debug_info" } else { "x" };
        module.section(&CustomSection { name: name.into(), data: (&[1, 2][..]).into() });
    }
    module.finish()
}

fn names(n: u32) -> Vec<u8> {
    let mut functions = NameMap::new();
    for i in (0..n).rev() {
        functions.append(i, "a");
    }
    let mut names = NameSection::new();
    names.functions(&functions);
    let mut module = Module::new();
    module.section(&names);
    module.finish()
}

fn long_constant(n: u32) -> Vec<u8> {
    let additions = std::iter::repeat_n([I::I32Const(1), I::I32Add], n as usize).flatten();
    let expr: Vec<I<'_>> = std::iter::once(I::I32Const(0)).chain(additions).collect();
    let mut globals = GlobalSection::new();
    let ty = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
    globals.global(ty, &ConstExpr::extended(expr));
    let mut module = Module::new();
    module.section(&globals);
    module.finish()
}

fn indirect_calls(n: u32) -> Vec<u8> {
    let mut types = TypeSection::new();
    let (mut functions, mut tables) = (FunctionSection::new(), TableSection::new());
    functions.function(0);
    tables.table(table(10));
    let mut f = Function::new([]);
    for i in 0..n {
        let bits = |i: u32| {
            (0..20)
                .map(move |bit: u32| if (i >> bit) & 1 == 0 { ValType::I32 } else { ValType::I64 })
        };
        types.ty().function(if i == 0 { vec![] } else { bits(i).collect() }, []);
        for bit in 0..if i == 0 { 0 } else { 20 } {
            f.instruction(&if (i >> bit) & 1 == 0 { I::I32Const(0) } else { I::I64Const(0) });
        }
        f.instruction(&I::I32Const(i as i32));
        f.instruction(&I::CallIndirect { type_index: i, table_index: 0 });
    }
    f.instruction(&I::End);
    let mut code = CodeSection::new();
    code.function(&f);
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&tables).section(&code);
    module.finish()
}

fn distinct_constants(n: u32) -> Vec<u8> {
    let mut f = Function::new([]);
    for i in 0..n {
        f.instruction(&I::LocalGet(0));
        f.instruction(&I::V128Const(i128::from(i) << 70 | i128::from(i * 3)));
        f.instruction(&I::V128Store(memory_arg(0)));
    }
    f.instruction(&I::End);
    one(&types(&[(1, 0)]), &f)
}

fn catch_clauses(n: u32) -> Vec<u8> {
    let mut f = Function::new([]);
    for _ in 0..n.div_ceil(1000) {
        let catches = vec![Catch::One { tag: 0, label: 0 }; n.min(1000) as usize];
        f.instruction(&I::TryTable(BlockType::Empty, catches.into()));
        f.instruction(&I::Call(0));
        f.instruction(&I::End);
    }
    f.instruction(&I::End);
    one(&types(&[(1, 0)]), &f)
}
