//! Calls of guests whose pages get their contents when they are touched, those of the image or those that
//! memories grow by: the kernel reads and writes pages that nobody has touched before.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use pagefork::{Config, Engine, GrowthKind, Linker, Module, ResetKind, StrategyConfig};
use pagefork_wasi::{WasiCtx, add_to_linker};

const GUEST: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_read"
        (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "sock_send"
        (func $send (param i32 i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 4)
    ;; Vectors of buffers: what is sent from the data, and what is read over other data.
    (data (i32.const 8) "\00\f0\00\00\00\20\00\00")
    (data (i32.const 24) "\fe\0f\02\00\10\27\00\00")
    (data (i32.const 0xf000) "sent from here")
    (data (i32.const 0x10ff8) "and ends")
    (data (i32.const 0x20ffe) "gone")
    (data (i32.const 0x2f000) "stays")
    (func (export "send") (result i32)
        (call $send (i32.const 3) (i32.const 8) (i32.const 1) (i32.const 0) (i32.const 48)))
    (func (export "read") (result i32)
        (call $read (i32.const 3) (i32.const 24) (i32.const 1) (i32.const 48))))"#;

#[test]
fn the_kernel_reads_and_writes_pages_that_nobody_has_touched() {
    let strategies = StrategyConfig { reset: ResetKind::Fault, ..StrategyConfig::default() };
    let engine = Engine::new(Config::new().strategies(strategies)).unwrap();
    let module = Module::new(&engine, GUEST).unwrap();
    let mut linker = Linker::new(&engine);
    add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx).unwrap();
    let pre = linker.instantiate_pre(&module).unwrap();
    for round in 0..4u8 {
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let mut builder = WasiCtx::builder();
        builder.preopened_socket(socket).unwrap();
        let (mut store, instance) = pre.spawn(builder.build().unwrap()).unwrap();
        if instance.strategy(&store).used != ResetKind::Fault {
            eprintln!("NOT TESTED: this kernel raises no signals at touches");
            return;
        }
        let send = instance.get_typed_func::<(), i32>(&mut store, "send").unwrap();
        let read = instance.get_typed_func::<(), i32>(&mut store, "read").unwrap();
        assert_eq!(send.call(&mut store, ()).unwrap(), 0);
        let mut sent = [0; 0x2000];
        peer.read_exact(&mut sent).unwrap();
        assert_eq!((&sent[..14], &sent[0x1ff8..]), (&b"sent from here"[..], &b"and ends"[..]));

        let bytes = vec![round + 1; 10_000];
        peer.write_all(&bytes).unwrap();
        assert_eq!(read.call(&mut store, ()).unwrap(), 0);
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        let data = memory.data(&store);
        assert!(data[0x20ffe..][..10_000] == bytes);
        assert_eq!((data[0x20ffd], &data[0x2f000..][..5]), (0, &b"stays"[..]));
    }
}

/// Buffers that lie in what a memory has just grown by, up to its last byte.
#[test]
fn the_kernel_reads_and_writes_what_a_memory_has_just_grown_by() {
    const GROWS: &str = r#"(module
        (import "wasi_snapshot_preview1" "fd_read"
            (func $read (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "sock_send"
            (func $send (param i32 i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1)
        ;; The last 10,000 bytes of the second page; and what begins there, and ends behind it.
        (data (i32.const 8) "\f0\d8\01\00\10\27\00\00")
        (data (i32.const 24) "\f0\d8\01\00\11\27\00\00")
        (func (export "grow") (result i32) (memory.grow (i32.const 1)))
        (func (export "send") (param i32) (result i32)
            (call $send (i32.const 3) (local.get 0) (i32.const 1) (i32.const 0) (i32.const 48)))
        (func (export "read") (param i32) (result i32)
            (call $read (i32.const 3) (local.get 0) (i32.const 1) (i32.const 48))))"#;
    const START: usize = 0x1d8f0;
    for reset in ResetKind::ALL {
        let growth = GrowthKind::Fault;
        let strategies = StrategyConfig { reset, growth, ..StrategyConfig::default() };
        let engine = Engine::new(Config::new().strategies(strategies)).unwrap();
        let module = Module::new(&engine, GROWS).unwrap();
        let mut linker = Linker::new(&engine);
        add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx).unwrap();
        let pre = linker.instantiate_pre(&module).unwrap();
        for round in 0..3u8 {
            let (socket, mut peer) = UnixStream::pair().unwrap();
            let mut builder = WasiCtx::builder();
            builder.preopened_socket(socket).unwrap();
            let (mut store, instance) = pre.spawn(builder.build().unwrap()).unwrap();
            let choice = instance.growth(&store);
            if choice.used != growth {
                eprintln!("NOT TESTED: memories that grow by faults ({choice})");
                return;
            }
            let grow = instance.get_typed_func::<(), i32>(&mut store, "grow").unwrap();
            let send = instance.get_typed_func::<i32, i32>(&mut store, "send").unwrap();
            let read = instance.get_typed_func::<i32, i32>(&mut store, "read").unwrap();
            assert_eq!(grow.call(&mut store, ()).unwrap(), 1);
            if round != 1 {
                assert_eq!(send.call(&mut store, 8).unwrap(), 0, "{reset}");
                let mut sent = [1; 10_000];
                peer.read_exact(&mut sent).unwrap();
                assert!(sent == [0; 10_000], "{reset}: nobody has written there");
            }
            // A byte more than the memory has.
            assert_ne!(send.call(&mut store, 24).unwrap(), 0, "{reset}");
            assert_ne!(read.call(&mut store, 24).unwrap(), 0, "{reset}");
            let bytes = vec![round + 1; 10_000];
            peer.write_all(&bytes).unwrap();
            assert_eq!(read.call(&mut store, 8).unwrap(), 0, "{reset}");
            let memory = instance.get_memory(&mut store, "memory").unwrap();
            let data = memory.data(&store);
            assert!(data[START..] == bytes && data[START - 1] == 0, "{reset}");
        }
    }
}
