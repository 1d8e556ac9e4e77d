//! `capi`: installs the C library, and checks what is installed as a new user would.

use std::fs;
use std::path::{Path, PathBuf};

use crate::host::{self, Host};
use crate::{Result, c_programs, capi_compat};

/// The crate of the library.
pub(crate) const CRATE: &str = "crates/pagefork-capi";

/// The version of the interface, which each exported symbol has: it changes when a function goes
/// or takes other arguments. Programs that were linked against it run with all libraries of it.
pub(crate) const INTERFACE: &str = "0.1";

/// What is installed for C and C++.
const HEADERS: &[&str] = &[
    "wasm.h",
    "pagefork.h",
    "pagefork_snapshots.h",
    "pagefork_waiting.h",
    "pagefork_wasi.h",
    "pagefork.hh",
];

/// What the library needs of the system.
const SYSTEM: &str = "-lpthread -ldl -lm";

/// What has a program's own code watched, and what it is told: guests' faults are the library's to handle.
pub(crate) const SANITIZERS: &[&str] =
    &["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover"];
pub(crate) const SANITIZER_OPTIONS: &str = "handle_segv=0:handle_sigbus=0:handle_sigill=0:\
    handle_sigfpe=0:use_sigaltstack=0:detect_stack_use_after_return=0";

/// The examples, and what they print.
const EXAMPLES: &[(&str, &str)] = &[
    ("hello", "2 + 3 = 5\n"),
    ("host_function", "guest: hello from the guest\nthe second call: the text is not in memory\n"),
    ("wasi_program", "read by the guest\n"),
    ("instance_per_request", "sum of the answers: 4996000\n"),
    ("reset_plugins", "plugin 1 finds 0\nplugin 2 finds 0\nplugin 3 finds 0\n"),
    (
        "limits",
        "growing by 9 pages: 1\nby another: -1\n\
         an endless loop: wasm trap: interrupted\nstill there: 10 pages\n",
    ),
    ("async", "sum of the totals: 3135\n"),
    (
        "hello_cpp",
        "length(5, 3) = 4\nlength(3, 5): no square root of a negative number\n\
         2 calls of the host\n",
    ),
    ("wasi_program_cpp", "hello from its input\nit ended with 3\n"),
    ("instance_per_request_cpp", "sum of the answers: 4996000\n"),
    ("reset_plugins_cpp", "plugin 1 finds 0\nplugin 2 finds 0\nplugin 3 finds 0\n"),
    (
        "limits_cpp",
        "growing by 9 pages: 1\nby another: -1\n\
         an endless loop: wasm trap: interrupted\nstill there: 10 pages\n",
    ),
    ("async_cpp", "the total is 156\nthe total is unknown: no such item\n"),
];

/// Builds the library by a profile of cargo's, and installs it below `prefix`: headers, the static
/// and the shared library, and what pkg-config and CMake find them by.
pub(crate) fn install(host: &Host, prefix: &Path, profile: &str) -> Result {
    let prefix = std::path::absolute(prefix).map_err(|error| error.to_string())?;
    let mut cargo = host.cargo();
    cargo.args(["build", "--locked", "-p", "pagefork-capi", "--profile", profile]);
    host::check(&mut cargo)?;
    let folder = if profile == "dev" { "debug" } else { profile };
    let built = host.target.join(folder).join("libpagefork_capi.a");
    let root = host.root.join(CRATE);
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    for header in HEADERS {
        copy(&root.join("include").join(header), &include.join(header))?;
    }
    copy(&built, &lib.join("libpagefork.a"))?;
    link_shared(host, &built, &lib)?;
    host::write(&lib.join("pkgconfig/pagefork.pc"), pkg_config(&prefix).as_bytes())?;
    host::write(&lib.join("cmake/pagefork/pagefork-config.cmake"), CMAKE.as_bytes())?;
    let version = with_versions(CMAKE_VERSION);
    let place = lib.join("cmake/pagefork/pagefork-config-version.cmake");
    host::write(&place, version.as_bytes())?;
    println!("installed in {}", prefix.display());
    Ok(())
}

/// A text with the version of the library and that of the interface.
fn with_versions(text: &str) -> String {
    text.replace("@VERSION@", env!("CARGO_PKG_VERSION")).replace("@INTERFACE@", INTERFACE)
}

/// Links the static library as a shared one, of which only the interface is seen.
fn link_shared(host: &Host, built: &Path, lib: &Path) -> Result {
    let version = env!("CARGO_PKG_VERSION");
    let names = interface(host)?;
    let script = lib.join("pagefork.map");
    host::write(&script, capi_compat::version_script(&names).as_bytes())?;
    let soname = format!("libpagefork.so.{INTERFACE}");
    let library = lib.join(format!("libpagefork.so.{version}"));
    let mut cc = host.command("cc");
    cc.args(["-shared", "-o"]).arg(&library);
    cc.arg(format!("-Wl,-soname,{soname}"));
    cc.arg(format!("-Wl,--version-script={}", script.display()));
    cc.args(["-Wl,--gc-sections", "-Wl,-z,defs,-z,relro,-z,now", "-Wl,--whole-archive"]);
    cc.arg(built).arg("-Wl,--no-whole-archive").args(SYSTEM.split(' ')).arg("-lgcc_s");
    host::check(&mut cc)?;
    fs::remove_file(&script).map_err(|error| error.to_string())?;
    link(&library, &lib.join(&soname))?;
    link(&library, &lib.join("libpagefork.so"))
}

/// The functions of the interface, as the list has them.
pub(crate) fn interface(host: &Host) -> Result<Vec<String>> {
    let list = host::read(&host.root.join(CRATE).join("abi").join(format!("{INTERFACE}.txt")))?;
    Ok(String::from_utf8_lossy(&list).lines().map(str::to_owned).collect())
}

fn copy(from: &Path, to: &Path) -> Result {
    host::create_directory(to.parent().unwrap_or(Path::new(".")))?;
    let copied = fs::copy(from, to).map(|_| ());
    copied.map_err(|error| format!("cannot copy {} to {}: {error}", from.display(), to.display()))
}

/// Another name for a file in the same folder.
fn link(file: &Path, name: &Path) -> Result {
    let _ = fs::remove_file(name);
    let target = file.file_name().ok_or("a library has a name")?;
    let linked = std::os::unix::fs::symlink(target, name);
    linked.map_err(|error| format!("cannot make {}: {error}", name.display()))
}

fn pkg_config(prefix: &Path) -> String {
    format!(
        "prefix={}\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\nsystem={SYSTEM}\n\n\
         Name: pagefork\nDescription: A WebAssembly runtime in which an instance is one run of \
         pages\nVersion: {}\nCflags: -I${{includedir}}\nLibs: -L${{libdir}} -lpagefork\n\
         Libs.private: {SYSTEM}\n",
        prefix.display(),
        env!("CARGO_PKG_VERSION"),
    )
}

const CMAKE: &str = r#"# The targets pagefork::pagefork, of the shared library, and pagefork::pagefork_static.

get_filename_component(_pagefork_lib "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
get_filename_component(_pagefork_prefix "${_pagefork_lib}" DIRECTORY)
if(NOT TARGET pagefork::pagefork)
  add_library(pagefork::pagefork SHARED IMPORTED)
  set_target_properties(pagefork::pagefork PROPERTIES
    IMPORTED_LOCATION "${_pagefork_lib}/libpagefork.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_pagefork_prefix}/include")
  add_library(pagefork::pagefork_static STATIC IMPORTED)
  set_target_properties(pagefork::pagefork_static PROPERTIES
    IMPORTED_LOCATION "${_pagefork_lib}/libpagefork.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_pagefork_prefix}/include"
    INTERFACE_LINK_LIBRARIES "pthread;dl;m")
endif()
"#;

/// What was built for another version of the interface is not compatible.
const CMAKE_VERSION: &str = r#"set(PACKAGE_VERSION "@VERSION@")
set(PACKAGE_VERSION_COMPATIBLE FALSE)
if(NOT PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
elseif("${PACKAGE_FIND_VERSION_MAJOR}.${PACKAGE_FIND_VERSION_MINOR}" VERSION_EQUAL "@INTERFACE@")
  if(NOT PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
  endif()
  if(PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
"#;

/// A project in C alone, with the static library, which asks for versions.
const CMAKE_VERSIONS: &str = r#"cmake_minimum_required(VERSION 3.13)
project(versions C)
foreach(other 0.0 0.2 1.0 99.1.2)
  find_package(pagefork ${other} QUIET)
  if(pagefork_FOUND)
    message(FATAL_ERROR "version ${other} was found, and it is @VERSION@")
  endif()
endforeach()
find_package(pagefork @VERSION@ EXACT REQUIRED)
find_package(pagefork @INTERFACE@ REQUIRED)
add_executable(hello hello.c)
target_link_libraries(hello pagefork::pagefork_static)
"#;

/// Installs the library, builds the examples with it in each way, and runs them, and programs of others.
pub(crate) fn check(host: &Host) -> Result {
    let work = host.target.join("tmp/capi");
    let _ = fs::remove_dir_all(&work);
    let prefix = work.join("prefix");
    install(host, &prefix, "dev")?;
    check_symbols(host, &prefix)?;
    capi_compat::check(host, &prefix, &work.join("compat"))?;
    c_programs::check(host, &prefix, &work.join("programs"))?;
    let examples = host.root.join(CRATE).join("examples");
    let watched = SANITIZERS.join(" ");
    let watched = ["CFLAGS", "CXXFLAGS"].map(|flags| format!("{flags}=-Wall -pthread {watched}"));
    let ways: [(_, &[String]); 3] =
        [("shared", &[]), ("static", &["STATIC=1".to_owned()]), ("sanitized", &watched)];
    for (name, variables) in ways {
        let folder = copy_examples(&examples, &work.join(name))?;
        let mut make = host.command("make");
        make.arg("-C").arg(&folder).args(["CC=cc", "CXX=c++"]).args(variables);
        make.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        host::check(&mut make)?;
        run_examples(host, &folder)?;
    }
    let build = work.join("cmake");
    let mut cmake = host.command("cmake");
    cmake.arg("-S").arg(&examples).arg("-B").arg(&build);
    cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    host::check(&mut cmake)?;
    host::check(host.command("cmake").arg("--build").arg(&build))?;
    run_examples(host, &build)?;
    check_versions(host, &prefix, &examples, &work.join("versions"))?;
    check_without_shared_library(host, &prefix, &examples, &work.join("alone"))
}

/// CMake finds the versions that there are and no other, also for programs in C alone.
fn check_versions(host: &Host, prefix: &Path, examples: &Path, work: &Path) -> Result {
    let folder = copy_examples(examples, work)?;
    host::write(&folder.join("CMakeLists.txt"), with_versions(CMAKE_VERSIONS).as_bytes())?;
    let build = work.join("build");
    let mut cmake = host.command("cmake");
    cmake.arg("-S").arg(&folder).arg("-B").arg(&build).arg("-DCMAKE_C_STANDARD=11");
    host::check(cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())))?;
    host::check(host.command("cmake").arg("--build").arg(&build))?;
    run_example(host, &build.join("hello"), EXAMPLES[0].1)
}

/// Where only the static library is installed, `pkg-config --static` says all that programs need.
fn check_without_shared_library(
    host: &Host,
    prefix: &Path,
    examples: &Path,
    work: &Path,
) -> Result {
    let lib = work.join("prefix/lib");
    copy(&prefix.join("lib/libpagefork.a"), &lib.join("libpagefork.a"))?;
    for header in HEADERS {
        copy(&prefix.join("include").join(header), &work.join("prefix/include").join(header))?;
    }
    let description = pkg_config(&work.join("prefix"));
    host::write(&lib.join("pkgconfig/pagefork.pc"), description.as_bytes())?;
    let mut asked = host.command("pkg-config");
    asked.args(["--static", "--cflags", "--libs", "pagefork"]);
    let flags = host::output(asked.env("PKG_CONFIG_PATH", lib.join("pkgconfig")))?;
    let program = work.join("hello");
    let mut cc = host.command("cc");
    cc.arg("-std=c11").arg(examples.join("hello.c")).arg("-o").arg(&program);
    host::check(cc.args(flags.split_whitespace()))?;
    run_example(host, &program, EXAMPLES[0].1)
}

/// What the shared library exports is the interface, each with its version.
fn check_symbols(host: &Host, prefix: &Path) -> Result {
    let library = prefix.join("lib/libpagefork.so");
    let symbols = host::output(
        host.command("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library),
    )?;
    let version = format!("PAGEFORK_{INTERFACE}");
    let mut found = Vec::new();
    for symbol in symbols.lines().filter_map(|line| line.split_whitespace().nth(2)) {
        match symbol.split_once("@@") {
            Some((name, own)) if own == version => found.push(name.to_owned()),
            // The version itself is a symbol.
            _ if symbol.starts_with(&version) => {}
            _ => return Err(format!("{symbol} is exported without the version {version}")),
        }
    }
    found.sort();
    match found == interface(host)? {
        true => Ok(()),
        false => Err("the library does not export what the list of its interface has".to_owned()),
    }
}

fn copy_examples(examples: &Path, folder: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(examples).map_err(|error| error.to_string())?;
    for file in files.flatten() {
        copy(&file.path(), &folder.join(file.file_name()))?;
    }
    Ok(folder.to_owned())
}

fn run_examples(host: &Host, folder: &Path) -> Result {
    EXAMPLES.iter().try_for_each(|(name, expected)| run_example(host, &folder.join(name), expected))
}

fn run_example(host: &Host, program: &Path, expected: &str) -> Result {
    let mut command = host.command(&program.to_string_lossy());
    let printed = host::output(command.env("ASAN_OPTIONS", SANITIZER_OPTIONS))?;
    match printed == expected {
        true => Ok(()),
        false => Err(format!("{} printed {printed:?}, not {expected:?}", program.display())),
    }
}
