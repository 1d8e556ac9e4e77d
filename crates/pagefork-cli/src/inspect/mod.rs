//! `pagefork inspect`: shows the parts of a module, and its compiled code.

mod layout;
pub(crate) mod proposals;
mod words;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use pagefork::{Config, Module};
use pagefork_compiler::CompiledModule;
use pagefork_layout::code::CodeKind;
use pagefork_layout::module::{Item, ModuleInfo};
use wasmparser::{Parser, Payload};

use crate::arguments::InspectArguments;
use crate::output;
use crate::program::{self, Loader};
use crate::show;

/// Functions, segments or globals that are listed without `--all`.
const LISTED: usize = 10;

/// Shows what a module is made of, and what the compiler makes of it.
pub(crate) fn inspect(arguments: &InspectArguments) -> Result<ExitCode, String> {
    let binary = program::read(&arguments.file)?;
    let module = Loader::new(Config::new())?.compile(&arguments.file, &binary)?;
    let report = report(&arguments.file, &binary, &module, arguments.all);
    output::print(report)?;
    Ok(ExitCode::SUCCESS)
}

fn report(path: &Path, binary: &[u8], module: &Module, all: bool) -> String {
    let text_size = module.text().len() as u64;
    let (behind, module) = (module.behind_code(), module.compiled());
    let info = &module.info;
    let mut text = String::new();
    text += &summary(path, binary, module);
    text += &imports(info);
    text += &exports(info);
    text += &own_items(info, all);
    text += &segments(info, all);
    text += &functions(binary, module, text_size, all);
    text += "\nSlot of an instance\n";
    text += &layout::draw(module, behind);
    text
}

fn summary(path: &Path, binary: &[u8], module: &CompiledModule) -> String {
    let info = &module.info;
    let name = info.name.as_deref().map_or("(none)".to_owned(), show::name);
    let proposals = proposals::needed(binary).unwrap_or_default();
    let needs = match proposals.is_empty() {
        true => "WebAssembly 1.0 alone".to_owned(),
        false => proposals.join(", "),
    };
    let mut rows = vec![
        vec!["module".to_owned(), name],
        vec!["file".to_owned(), path.display().to_string()],
        vec!["size".to_owned(), show::size(binary.len() as u64)],
        vec!["needs".to_owned(), needs],
    ];
    if let Some(start) = info.start {
        rows.push(vec![
            "start".to_owned(),
            format!("function {start}, {}", function_name(info, start)),
        ]);
    }
    show::table(&rows, &[])
}

fn imports(info: &ModuleInfo) -> String {
    let row = |import: &pagefork_layout::module::Import| {
        let ty = show::extern_type(&info.item_type(import.item));
        vec![words::item(import.item), show::name(&import.module), show::name(&import.name), ty]
    };
    section("Imports", info.imports.iter().map(row).collect(), &[], true)
}

fn exports(info: &ModuleInfo) -> String {
    let row = |export: &pagefork_layout::module::ExportInfo| {
        let ty = show::extern_type(&info.item_type(export.item));
        vec![words::item(export.item), show::name(&export.name), ty]
    };
    section("Exports", info.exports.iter().map(row).collect(), &[], true)
}

/// What the module defines itself, apart from functions.
fn own_items(info: &ModuleInfo, all: bool) -> String {
    let mut rows = Vec::new();
    let mut add = |items: &mut dyn Iterator<Item = Item>| {
        for item in items {
            rows.push(vec![words::item(item), show::extern_type(&info.item_type(item))]);
        }
    };
    add(&mut (info.imported_memories..info.memories.len() as u32).map(Item::Memory));
    add(&mut (info.imported_tables..info.tables.len() as u32).map(Item::Table));
    add(&mut (info.imported_globals..info.globals.len() as u32).map(Item::Global));
    add(&mut (info.imported_tags..info.tags.len() as u32).map(Item::Tag));
    section("Memories, tables, globals and tags of its own", rows, &[], all)
}

fn segments(info: &ModuleInfo, all: bool) -> String {
    let mut rows = Vec::new();
    for (index, segment) in info.data.iter().enumerate() {
        let size = show::size(segment.bytes.len() as u64);
        rows.push(vec![format!("data {index}"), size, words::mode(&segment.mode, "memory")]);
    }
    for (index, segment) in info.elements.iter().enumerate() {
        let size = show::count(segment.items.len() as u64, "element");
        let mode = words::mode(&segment.mode, "table");
        rows.push(vec![format!("element {index}"), size, format!("{}, {mode}", segment.element)]);
    }
    section("Segments", rows, &[1], all)
}

fn functions(binary: &[u8], module: &CompiledModule, text_size: u64, all: bool) -> String {
    let (info, code) = (&module.info, &module.code);
    let bodies = body_sizes(binary);
    // Machine code by what it is for; the functions themselves one by one.
    let mut own: Vec<(u32, u32)> = Vec::new();
    let (mut stubs, mut stub_bytes) = (0u64, 0u64);
    for range in &code.functions {
        match range.kind {
            CodeKind::Function(index) if index >= info.imported_functions => {
                own.push((index, range.size));
            }
            CodeKind::Checked(index) => {
                if let Some((_, size)) = own.iter_mut().find(|(known, _)| *known == index) {
                    *size += range.size;
                }
            }
            _ => {
                stubs += 1;
                stub_bytes += u64::from(range.size);
            }
        }
    }
    let wasm_bytes: u64 = bodies.iter().sum();
    let code_bytes: u64 = own.iter().map(|(_, size)| u64::from(*size)).sum();
    let sums = [
        ("functions", own.len() as u64, Some(wasm_bytes), code_bytes),
        ("stubs", stubs, None, stub_bytes),
        (
            "descriptors",
            info.functions.len() as u64 + 1,
            None,
            text_size - u64::from(code.descriptors),
        ),
    ];
    let mut rows = vec![header(&["", "number", "wasm", "code"])];
    for (what, number, wasm, code) in sums {
        let wasm = wasm.map(show::size).unwrap_or_default();
        rows.push(vec![what.to_owned(), number.to_string(), wasm, show::size(code)]);
    }
    rows.push(vec!["all".to_owned(), String::new(), String::new(), show::size(text_size)]);
    let mut text = format!("\nCode\n{}", show::table(&rows, &[1, 2, 3]));

    if !all {
        own.sort_by_key(|(index, size)| (std::cmp::Reverse(*size), *index));
    }
    let listed = if all { own.len() } else { own.len().min(LISTED) };
    if listed == 0 {
        return text;
    }
    let exported: HashMap<u32, &str> = info
        .exports
        .iter()
        .rev()
        .filter_map(|export| match export.item {
            Item::Func(index) => Some((index, export.name.as_str())),
            _ => None,
        })
        .collect();
    let mut rows = vec![header(&["function", "wasm", "code", "name", "type"])];
    for (index, size) in &own[..listed] {
        let body = bodies.get((*index - info.imported_functions) as usize).copied();
        let mut name = function_name(info, *index);
        if let Some(export) = exported.get(index)
            && info.function_name(*index).is_none()
        {
            name = format!("exported as {}", show::name(export));
        }
        rows.push(vec![
            index.to_string(),
            body.map(show::size).unwrap_or_default(),
            show::size(u64::from(*size)),
            name,
            info.function_type(*index).to_string(),
        ]);
    }
    let _ = match own.len() - listed {
        0 => write!(text, "\nFunctions\n"),
        _ => write!(
            text,
            "\nFunctions with the most code, {listed} of {}; `--all` lists all\n",
            own.len()
        ),
    };
    text + &show::table(&rows, &[0, 1, 2])
}

/// Bytes of the body of each function the module defines.
fn body_sizes(binary: &[u8]) -> Vec<u64> {
    let payloads = Parser::new(0).parse_all(binary).filter_map(Result::ok);
    payloads
        .filter_map(|payload| match payload {
            Payload::CodeSectionEntry(body) => Some(body.as_bytes().len() as u64),
            _ => None,
        })
        .collect()
}

fn function_name(info: &ModuleInfo, index: u32) -> String {
    info.function_name(index).map_or("(no name)".to_owned(), show::name)
}

fn section(title: &str, rows: Vec<Vec<String>>, right: &[usize], all: bool) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let listed = if all { rows.len() } else { rows.len().min(LISTED) };
    let mut text = format!("\n{title}: {}\n{}", rows.len(), show::table(&rows[..listed], right));
    if listed < rows.len() {
        let _ = writeln!(text, "  and {} more; `--all` lists all", rows.len() - listed);
    }
    text
}

fn header(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}
