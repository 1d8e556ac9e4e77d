//! Each `golden/*.wat` holds a module and, below it, the optimised IR that its
//! functions become, with such bounds as the first line of the file says.
//! `BLESS=1 cargo test -p pagefork-compiler --test golden`
//! writes what the compiler makes now; look at the difference before committing.

use std::fs;
use std::path::Path;

use pagefork_compiler::{Bounds, CompileOptions, optimised_ir};

const SEPARATOR: &str = ";; optimised IR:\n";

#[test]
fn the_ir_of_each_golden_module_is_as_recorded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let bless = std::env::var_os("BLESS").is_some();
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let recorded = fs::read_to_string(&path).unwrap();
        let source = recorded.split(SEPARATOR).next().unwrap();
        let wasm = wat::parse_str(source).unwrap();
        let bounds = match source.lines().next() {
            Some(line) if line.starts_with(";; With checked bounds") => Bounds::Checked,
            Some(line) if line.starts_with(";; With dual bodies") => Bounds::Dual,
            _ => Bounds::Guarded,
        };
        let options = CompileOptions { bounds, ..CompileOptions::default() };
        let ir = optimised_ir(&wasm, &options).unwrap();
        let commented: String = ir
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(|line| format!(";; {line}\n"))
            .collect();
        let now = format!("{}\n{SEPARATOR}{commented}", source.trim_end());
        if bless {
            fs::write(&path, now.trim_end().to_owned() + "\n").unwrap();
        } else {
            assert_eq!(recorded.trim_end(), now.trim_end(), "{} differs", path.display());
        }
        seen += 1;
    }
    assert!(seen >= 4, "golden modules are missing");
}
