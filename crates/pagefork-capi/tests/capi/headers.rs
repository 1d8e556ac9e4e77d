//! The headers: every language takes them without a warning, and every function that they declare
//! is there and is used by a C program.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::common::{compiler, crate_root, folder, run, static_library, write_guests};

/// The headers in C.
pub(crate) const HEADERS: &[&str] =
    &["wasm.h", "pagefork.h", "pagefork_snapshots.h", "pagefork_waiting.h", "pagefork_wasi.h"];

/// Names of the functions that C text declares or calls.
fn functions(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut rest = text;
    while let Some(at) = rest.find("wasm_").into_iter().chain(rest.find("pagefork_")).min() {
        let begins = !rest[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = rest[at..].find(|c| !is_word(c)).map_or(rest.len(), |length| at + length);
        if begins && rest[end..].trim_start().starts_with('(') {
            found.insert(rest[at..end].to_owned());
        }
        rest = &rest[end..];
    }
    found
}

/// The preprocessed text of a C file, by the file that each line is of.
pub(crate) fn preprocessed(
    source: &std::path::Path,
    folder: &std::path::Path,
) -> Vec<(String, String)> {
    let text = run(compiler("cc", folder).args(["-std=c11", "-E"]).arg(source));
    let (mut lines, mut file) = (Vec::new(), String::new());
    for line in text.lines() {
        match line.strip_prefix("# ").and_then(|marker| marker.split('"').nth(1)) {
            Some(path) => file = path.to_owned(),
            None => lines.push((file.clone(), line.to_owned())),
        }
    }
    lines
}

/// The text of the lines that are of files with such a path.
pub(crate) fn text_of(lines: &[(String, String)], is_wanted: impl Fn(&str) -> bool) -> String {
    let lines = lines.iter().filter(|(file, _)| is_wanted(file));
    lines.map(|(_, line)| format!("{line}\n")).collect()
}

/// The functions that a header declares, and those of them that are inline.
fn declared(header: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let folder = folder(&format!("declared_{header}"));
    let source = folder.join("all.c");
    fs::write(&source, format!("#include \"{header}\"\n")).expect("the folder can be written");
    let lines = preprocessed(&source, &folder);
    let text = text_of(&lines, |file| file.ends_with(&format!("include/{header}")));
    let mut inline = BTreeSet::new();
    let mut outside = String::new();
    let mut rest = text.as_str();
    // The body of an inline function calls others; it ends with a brace in the first column.
    while let Some(at) = rest.find("static inline") {
        outside += &rest[..at];
        let body = rest[at..].find('{').expect("inline functions have bodies") + at;
        inline.extend(functions(&rest[at..body]));
        let line_end = rest[body..].find('\n').map_or(rest.len(), |length| body + length);
        rest = match rest[body..line_end].trim_end().ends_with('}') {
            true => &rest[line_end..],
            false => &rest[rest[body..].find("\n}").expect("they end") + body + 2..],
        };
    }
    outside += rest;
    (&functions(&outside) | &inline, inline)
}

#[test]
fn every_language_takes_the_headers_without_a_warning() {
    let folder = folder("languages");
    for header in HEADERS {
        for (name, standard) in [
            ("cc", "-std=c99"),
            ("cc", "-std=c11"),
            ("cc", "-std=c2x"),
            ("c++", "-std=c++11"),
            ("c++", "-std=c++17"),
            ("c++", "-std=c++20"),
        ] {
            let extension = if name == "cc" { "c" } else { "cc" };
            let source = folder.join(format!("all.{extension}"));
            let text = format!("#include \"{header}\"\nint main(void) {{ return 0; }}\n");
            fs::write(&source, text).expect("the folder can be written");
            let mut compiler = compiler(name, &folder);
            compiler.args([standard, "-pedantic", "-fsyntax-only"]).arg(&source);
            run(&mut compiler);
        }
    }
}

#[test]
fn the_wrapper_is_taken_from_cpp17_on_without_a_warning() {
    let folder = folder("wrapper");
    write_guests(&folder);
    let program = crate_root().join("tests/c/wrapper.cc");
    for standard in ["-std=c++17", "-std=c++20", "-std=c++23"] {
        // Alone, and with all of it used.
        let alone = folder.join("alone.cc");
        fs::write(&alone, "#include \"pagefork.hh\"\nint main() {}\n").expect("it is written");
        for source in [&alone, &program] {
            let mut compiler = compiler("c++", &folder);
            compiler.args([standard, "-pedantic", "-fsyntax-only"]).arg(source);
            run(&mut compiler);
        }
    }
}

/// What comes before a function is wrapped, and says how that fails in C++ and in C.
const WRAPPED: &str = "#include \"pagefork.h\"
static double add(const pagefork_caller_t *caller, int32_t a, int64_t b) {
  (void)caller;
  return (double)(a + b);
}
static int16_t narrow(const pagefork_caller_t *caller, int32_t a) {
  (void)caller;
  return (int16_t)a;
}
pagefork_error_t *wrap(wasm_store_t *store, wasm_func_t **out);
pagefork_error_t *wrap(wasm_store_t *store, wasm_func_t **out) {
  (void)add, (void)narrow;
";

#[test]
fn a_function_of_another_prototype_is_refused_when_it_is_wrapped() {
    let folder = folder("wrapped");
    for (name, standard) in [
        ("cc", "-std=c11"),
        ("cc", "-std=c17"),
        ("cc", "-std=c2x"),
        ("c++", "-std=c++11"),
        ("c++", "-std=c++17"),
        ("c++", "-std=c++20"),
    ] {
        let source = folder.join(if name == "cc" { "wrapped.c" } else { "wrapped.cc" });
        let is_taken = |wrapped: &str| {
            let text = format!(
                "{WRAPPED}  return pagefork_func_wrap(store, {wrapped}, NULL, NULL, out);\n}}\n"
            );
            fs::write(&source, text).expect("the folder can be written");
            let mut compiler = compiler(name, &folder);
            compiler.args([standard, "-pedantic", "-fsyntax-only"]).arg(&source);
            compiler.output().expect("the compiler runs").status.success()
        };
        assert!(is_taken("PAGEFORK_WRAP(add, double, int32_t, int64_t)"), "{standard}");
        for wrapped in [
            "PAGEFORK_WRAP(add, double, int32_t, int32_t)",
            "PAGEFORK_WRAP(add, double, int64_t, int32_t)",
            "PAGEFORK_WRAP(add, double, uint32_t, int64_t)",
            "PAGEFORK_WRAP(add, double, int32_t)",
            "PAGEFORK_WRAP(add, double, int32_t, int64_t, int32_t)",
            "PAGEFORK_WRAP(add, int64_t, int32_t, int64_t)",
            "PAGEFORK_WRAP(add, float, int32_t, int64_t)",
            "PAGEFORK_WRAP(add, void, int32_t, int64_t)",
            "PAGEFORK_WRAP(add, void)",
            // Of its prototype, but of no type that guests have.
            "PAGEFORK_WRAP(narrow, int16_t, int32_t)",
        ] {
            assert!(!is_taken(wrapped), "{standard} takes {wrapped}");
        }
    }
}

#[test]
fn wasm_h_declares_what_the_standard_does() {
    let (all, inline) = declared("wasm.h");
    assert_eq!((all.len(), inline.len()), (306, 26));
    // By name and order the standard's, whose parts are families: these are all there are.
    for family in ["valtype", "functype", "frame", "val", "extern", "importtype", "byte"] {
        for function in ["new", "new_empty", "new_uninitialized", "copy", "delete"] {
            let name = format!("wasm_{family}_vec_{function}");
            assert!(all.contains(&name), "{name}");
        }
    }
}

/// The functions of a header that no comment is about. A comment stands right before a function, or before
/// the first of several without an empty line in between; that of a macro names each function.
fn uncommented(header: &str) -> Vec<String> {
    let (mut found, mut comment, mut is_said) = (Vec::new(), String::new(), false);
    let mut lines = header.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("/*") {
            comment = line.to_owned();
            while !comment.ends_with("*/") {
                comment += lines.next().expect("comments end");
            }
            is_said = !comment.contains("-----");
        } else if line.starts_with("#define WASM_DECLARE_") {
            let mut body = line.to_owned();
            while body.ends_with('\\') {
                body += lines.next().expect("macros end");
            }
            // `wasm_##X##_as_##GENERAL` is `wasm_X_as_GENERAL` in the comment.
            for function in functions(&body.replace("##", "")) {
                let part = function.strip_prefix("wasm_X").unwrap_or(&function).to_owned();
                if !is_said
                    || !comment.contains(&function) && !comment.contains(&format!("`{part}`"))
                {
                    found.push(function);
                }
            }
        } else if line.starts_with("WASM_API_EXTERN") || line.starts_with("static inline") {
            let is_inline = line.starts_with("static inline");
            let mut declared = line.to_owned();
            while !declared.ends_with([';', '{', '}']) {
                declared += lines.next().expect("declarations end");
            }
            let end = declared.find('{').unwrap_or(declared.len());
            if !is_said {
                found.extend(functions(&declared[..end]));
            }
            while is_inline && !declared.ends_with('}') {
                declared = lines.next().expect("bodies end").to_owned();
            }
        } else if line.trim().is_empty() {
            is_said = false;
        }
    }
    found
}

#[test]
fn every_function_has_a_comment() {
    for header in HEADERS {
        let text = fs::read_to_string(crate_root().join("include").join(header));
        let text = text.expect("the header is there");
        let found = uncommented(&text);
        assert!(found.is_empty(), "nothing is said of these in {header}: {found:?}");
        // Of some it would be seen.
        let marked = text.replace("WASM_API_EXTERN", "\nWASM_API_EXTERN");
        assert!(uncommented(&marked).len() > 5, "{header}");
    }
}

/// The functions that all headers declare, but for those that are inline.
fn interface() -> BTreeSet<String> {
    HEADERS
        .iter()
        .flat_map(|header| {
            let (all, inline) = declared(header);
            &all - &inline
        })
        .collect()
}

#[test]
fn every_function_is_in_the_library() {
    let symbols = run(Command::new("nm").args(["-g", "--defined-only"]).arg(static_library()));
    let names = symbols.lines().filter_map(|line| line.split(' ').nth(2));
    let found: BTreeSet<String> = names.map(str::to_owned).collect();
    let declared = interface();
    assert_eq!(&declared - &found, BTreeSet::new(), "declared, and not there");
    // The runtime's assembly has names of its own that begin as those of pagefork.h do.
    let of_wasm_h = found.iter().filter(|name| name.starts_with("wasm_"));
    let of_wasm_h: BTreeSet<String> = of_wasm_h.cloned().collect();
    assert_eq!(&of_wasm_h - &declared, BTreeSet::new(), "there, and not declared");
}

#[test]
fn the_interface_is_the_list_that_the_shared_library_exports() {
    let list = fs::read_to_string(crate_root().join("abi/0.1.txt")).expect("the list is there");
    let list: BTreeSet<String> = list.lines().map(str::to_owned).collect();
    let declared = interface();
    assert_eq!(&list - &declared, BTreeSet::new(), "programs of this version need these");
    assert_eq!(&declared - &list, BTreeSet::new(), "new functions stand in the list, too");
}

#[test]
fn every_function_is_used_by_a_program() {
    let folder = folder("used");
    write_guests(&folder);
    let mut used = BTreeSet::new();
    for file in fs::read_dir(crate_root().join("tests/c")).expect("there are programs").flatten() {
        if file.path().extension().is_some_and(|extension| extension == "c") {
            let lines = preprocessed(&file.path(), &folder);
            used.extend(functions(&text_of(&lines, |file| file.contains("tests/c/"))));
        }
    }
    for header in HEADERS {
        let (all, _) = declared(header);
        assert_eq!(&all - &used, BTreeSet::new(), "declared in {header}, and used by no program");
    }
}
