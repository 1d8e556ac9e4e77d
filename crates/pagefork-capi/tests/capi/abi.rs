//! The interface of this version is kept, so that programs that were built with it run with what comes:
//! `abi/0.1/pagefork.h` has the types and prototypes, and `abi/0.1/layouts.txt` the sizes, places and
//! numbers that such programs have in them.
//!
//! Both are written anew by `BLESS=1`. What is added is more lines; a line that goes or changes is a break,
//! for which the version of the interface is another one.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::Command;
use std::{env, fs};

use crate::common::{compiler, crate_root, folder, run};
use crate::headers::{HEADERS, preprocessed, text_of};

/// What the kept header needs besides, and what it is.
const KEPT_HEAD: &str = "/* The types and functions of the headers, as programs of this version were built with. */\n\
     #include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n";

/// All that the headers declare, but for what programs have in themselves: a declaration each, with single
/// spaces, in their order.
fn declarations(name: &str) -> Vec<String> {
    let folder = folder(name);
    let source = folder.join("all.c");
    fs::write(&source, "#include \"pagefork.h\"\n").expect("the folder can be written");
    let lines = preprocessed(&source, &folder);
    let is_ours =
        |file: &str| HEADERS.iter().any(|header| file.ends_with(&format!("include/{header}")));
    let (mut found, mut present, mut depth) = (Vec::new(), String::new(), 0);
    for letter in text_of(&lines, is_ours).chars() {
        present.push(letter);
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        let is_body = letter == '}' && present.trim_start().starts_with("static inline");
        if depth == 0 && (letter == ';' || is_body) {
            let text = normalised(&std::mem::take(&mut present));
            if !text.starts_with("static ") {
                found.push(text);
            }
        }
    }
    assert_eq!(present.trim(), "");
    found
}

/// A text with single spaces, and none at brackets.
fn normalised(text: &str) -> String {
    let mut made = String::new();
    for word in text.split_whitespace() {
        let is_tight = made.ends_with(['(', '*']) || word.starts_with([')', ';', ',']);
        if !made.is_empty() && !is_tight {
            made.push(' ');
        }
        made += word;
    }
    made.replace(" (", "(").replace("( ", "(")
}

/// The names of a structure's members.
fn members(body: &str) -> Vec<&str> {
    let (mut found, mut from, mut depth) = (Vec::new(), 0, 0);
    for (at, letter) in body.char_indices() {
        match letter {
            '{' | '(' => depth += 1,
            '}' | ')' => depth -= 1,
            ';' | ',' if depth == 0 => {
                // What a union has in it does not count.
                let declared = body[from..at].rsplit('}').next().unwrap_or_default();
                from = at + 1;
                // A pointer to a function has its name in brackets.
                let name = match declared.split_once("(*") {
                    Some((_, name)) => name.split(')').next().unwrap_or_default(),
                    None => declared.split('[').next().unwrap_or_default(),
                };
                let name = name.trim_end().rsplit([' ', '*']).next().unwrap_or_default();
                assert!(!name.is_empty(), "{declared}");
                found.push(name);
            }
            _ => {}
        }
    }
    found
}

/// A program that prints the layout of each structure and the number of each constant.
fn layout_program(declarations: &[String]) -> String {
    let mut text = String::from("#include <stdio.h>\n#include \"pagefork.h\"\nint main(void) {\n");
    let mut print = |what: &str, number: &str| {
        writeln!(text, "printf(\"{what} %lld\\n\", (long long)({number}));").expect("text");
    };
    for declaration in declarations {
        let Some((head, rest)) = declaration.split_once('{') else { continue };
        let (body, name) = rest.rsplit_once('}').expect("it ends");
        if head.contains("enum ") {
            for constant in body.split(',') {
                let constant = constant.split('=').next().unwrap_or_default().trim();
                print(constant, constant);
            }
            continue;
        }
        let name = name.trim_matches([' ', ';']);
        print(&format!("size of {name}"), &format!("sizeof({name})"));
        print(&format!("alignment of {name}"), &format!("_Alignof({name})"));
        for member in members(body) {
            let part = format!("{name}.{member}");
            print(&format!("{part} at"), &format!("offsetof({name}, {member})"));
            print(&format!("size of {part}"), &format!("sizeof((({name} *)0)->{member})"));
        }
    }
    text + "return 0;\n}\n"
}

/// Compares what is there with what is kept, or keeps it.
fn compare(kept: &str, head: &str, found: &[String]) {
    let path = crate_root().join("abi/0.1").join(kept);
    if env::var_os("BLESS").is_some() {
        let text = found.iter().fold(head.to_owned(), |text, line| text + line + "\n");
        fs::write(&path, text).expect("the kept file can be written");
    }
    let text = fs::read_to_string(&path).expect("the interface is kept");
    let lines = text.strip_prefix(head).expect("it begins as it should").lines();
    let kept: BTreeSet<&str> = lines.collect();
    let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    let gone: Vec<_> = kept.difference(&found).collect();
    assert!(gone.is_empty(), "programs of this version need these: {gone:#?}");
    let new: Vec<_> = found.difference(&kept).collect();
    assert!(new.is_empty(), "what is new stands in {path:?}, too (BLESS=1): {new:#?}");
}

#[test]
fn prototypes_and_types_are_those_that_are_kept() {
    let found = declarations("declarations");
    assert!(found.len() > 432, "each function, and some types");
    compare("pagefork.h", KEPT_HEAD, &found);
}

#[test]
fn layouts_and_numbers_are_those_that_are_kept() {
    let folder = folder("layouts");
    let (source, program) = (folder.join("layouts.c"), folder.join("layouts"));
    fs::write(&source, layout_program(&declarations("declarations_with_layouts")))
        .expect("the folder can be written");
    run(compiler("cc", &folder).arg("-std=c11").arg(&source).arg("-o").arg(&program));
    let found: Vec<String> = run(&mut Command::new(program)).lines().map(str::to_owned).collect();
    assert!(found.iter().any(|line| line == "size of wasm_val_t 16"), "{found:?}");
    assert!(found.iter().any(|line| line == "PAGEFORK_TRAP_UNREACHABLE 9"), "{found:?}");
    compare("layouts.txt", "", &found);
}
