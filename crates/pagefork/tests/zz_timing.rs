//! Temporary.
use std::time::Duration;
struct Instant(Duration);
impl Instant {
    fn get() -> Duration {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        unsafe {
            libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t);
        }
        Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
    }
    fn now() -> Self {
        Self(Self::get())
    }
    fn elapsed(&self) -> Duration {
        Self::get() - self.0
    }
}

use pagefork::*;
use pagefork_compiler::file::{self, CodeKey, Expected};
use pagefork_compiler::*;
#[test]
fn timing() {
    let wasm = std::fs::read(std::env::var("WASM").unwrap()).unwrap();
    let dir = "/work/t/cache/tmp/timing";
    let mut config = Config::new();
    let cache = Cache::new(dir);
    config.cache(cache.clone());
    let engine = Engine::new(&config).unwrap();
    for _ in 0..8 {
        let t = Instant::now();
        let module = Module::new(&engine, &wasm).unwrap();
        let total = t.elapsed();
        let options = CompileOptions::default();
        let t = Instant::now();
        CodeKey::new(&wasm, &options).unwrap();
        let key = t.elapsed();
        let entry = std::fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().path())
            .max_by_key(|p| p.metadata().unwrap().modified().unwrap())
            .unwrap();
        let expected = Expected { options: &options, machine: CpuLevel::V3, key: None };
        let t = Instant::now();
        let c = file::read(&mut std::fs::File::open(entry).unwrap(), &expected, false).unwrap();
        let read = t.elapsed();
        let t = Instant::now();
        let h = blake3(module.text());
        let hash = t.elapsed();
        let t = Instant::now();
        let all = std::fs::read(std::env::var("WASM").unwrap()).unwrap();
        let fsread = t.elapsed();
        drop(all);
        let t = Instant::now();
        let bytes = c.module.info.data.iter().map(|d| d.bytes.len()).sum::<usize>();
        let copy = c.module.info.data.iter().map(|d| d.bytes.clone()).collect::<Vec<_>>();
        let copied = t.elapsed();
        drop(copy);
        let t = Instant::now();
        let m = postcard_len(&c.module.code);
        let enc = t.elapsed();
        let mut store = Store::new(&engine, ());
        let t = Instant::now();
        let mut linker = Linker::new(&engine);
        linker.define_unknown_imports_as_traps(&module).ok();
        let i = linker.instantiate(&mut store, &module).is_ok();
        let inst = t.elapsed();
        println!(
            "  fsread {fsread:?} data {bytes} copied {copied:?} code manifest {m} enc {enc:?} inst {i} {inst:?}"
        );
        println!(
            "wasm {} text {} head {}: total {total:?} key {key:?} read {read:?} hash text (mapped) {hash:?} {h} traps {} calls {} funcs {}",
            wasm.len(),
            module.text().len(),
            c.text.start,
            c.module.code.traps.len(),
            c.module.code.call_sites.len(),
            c.module.info.functions.len()
        );
    }
    println!("{:?}", cache.stats());
}
fn postcard_len(code: &pagefork_layout::code::CodeImage) -> usize {
    let _ = code;
    0
}
fn blake3(text: &[u8]) -> String {
    CodeKey::new(text, &CompileOptions::default()).unwrap().to_string()
}
