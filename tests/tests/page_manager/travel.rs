//! What a program has freed does not travel to other nodes.

use std::sync::Arc;
use std::thread;

use pagefork::image::{ImageStore, SecretKey, TrustedKeys};
use pagefork::suspend;
use pagefork::{Linker, LoadOptions, SaveOptions, Snapshot, Store};
use pagefork_node::{
    FoundImage, MemoryPeer, MemoryServer, ServeOptions, StartOptions, start_image,
};
use pagefork_wasi::WasiCtx;

use super::context;
use super::giving_back::states;
use super::guests::{fetched, scratch};

/// Bytes of the pages that the program keeps.
const KEPT: usize = 64 << 20;

/// A program that has freed 448 of 512 MiB, to a host that takes nothing back, goes on at another node
/// with what it kept; the pages that its manager calls free are not sent, and are zero there.
#[test]
fn what_a_program_has_freed_does_not_travel() {
    let Some(guest) = fetched("pageman_give_back.wasm") else { return };
    let mut linker: Linker<WasiCtx> = Linker::new(guest.engine());
    pagefork_wasi::add_to_linker(&mut linker, |context| context).expect("every name is free");
    let declines = |_address: u32, _length: u32| -1_i32;
    linker.func_wrap("pagefork", "memory_discard", declines).expect("a new name");
    let mut store = Store::new(guest.engine(), context());
    let instance = linker.instantiate(&mut store, &guest).expect("it is all there");
    let start = instance.get_typed_func::<(), ()>(&mut store, "_start").expect("a command");
    start.call(&mut store, ()).expect("it does not trap");
    let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
    let was = memory.data(&store).to_vec();
    let written = was.chunks(4096).filter(|page| page.iter().any(|byte| *byte != 0)).count();
    assert!(written << 12 >= 512 << 20, "the program itself still has all that it wrote");

    let path = scratch("pageman-travel");
    let open = |name| ImageStore::open(path.join(name)).expect("a directory");
    let (here, there) = (open("here"), open("there"));
    let [node, runner, author] = [1, 2, 3].map(|seed| SecretKey::from_seed([seed; 32]));
    let options = SaveOptions::new().sign_with(std::slice::from_ref(&author));
    let image = store.snapshot().and_then(|snapshot| snapshot.save(&there, options));
    there.set_name("program", image.expect("it can be saved")).expect("a name");
    let mut options = ServeOptions::new(node.clone());
    options.access = Arc::new(|_| true);
    let server = MemoryServer::bind("127.0.0.1:0", there, options).expect("a port");
    let peer = MemoryPeer { address: server.address().to_string(), key: node.public() };
    thread::spawn(move || server.run());

    let keys = TrustedKeys::from_iter([author.public()]);
    let options = StartOptions::default();
    let found =
        start_image(&peer, &runner, "program", &here, &keys, &options).expect("it is there");
    let snapshot: Snapshot<WasiCtx> = match &found {
        FoundImage::Coming(coming) => {
            let trust = LoadOptions::new().trust(keys.clone());
            Snapshot::load_incomplete(&linker, coming.image(), &here, trust).expect("a head")
        }
        // Where the system tells nothing of faults.
        other => panic!("userfaultfd is missing: {other:?}"),
    };
    let pre = snapshot.instance_pre().expect("all is linked");
    let (mut gone_on, _) = pre.spawn(context()).expect("a slot");
    let FoundImage::Coming(coming) = found else { unreachable!() };
    // Bytes on the line would say little: they are compressed.
    let groups = coming.image().head().group_count() as usize;
    let report = coming.join().expect("all of it comes");
    println!("{groups} groups and {} KiB of {} came", report.received >> 10, was.len() >> 10);
    assert!(groups * (16 << 10) * 10 <= KEPT * 11, "{groups} groups");

    let instance = suspend::instance(&gone_on, 1);
    let memory = instance.get_memory(&mut gone_on, "memory").expect("it is exported");
    let map = instance.get_global(&mut gone_on, "pageman_page_map").expect("it is exported");
    let map = map.get(&mut gone_on).unwrap_i32() as usize;
    let (is, free) = (memory.data(&gone_on), states(&was, map));
    assert!(free.iter().filter(|state| **state == 1).count() << 16 >= 440 << 20);
    for (page, state) in free.iter().enumerate() {
        let range = page << 16..(page + 1) << 16;
        if *state == 1 {
            assert!(is[range].iter().all(|byte| *byte == 0), "page {page} is not zero");
        } else if !range.contains(&map) {
            assert!(is[range.clone()] == was[range], "page {page} differs");
        }
    }
    drop(gone_on);
    std::fs::remove_dir_all(path).expect("it is there");
}
