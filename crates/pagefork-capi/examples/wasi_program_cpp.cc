// Runs a WASI program with input, arguments and variables of its own, and keeps what it writes.

#include <pagefork.hh>

#include <iostream>

static const char *const greets = R"((module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_get" (func $args (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func $print (param i32 i32)
    (i32.store (i32.const 0) (local.get 0))
    (i32.store (i32.const 4) (local.get 1))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))))
  (func (export "_start")
    (drop (call $args (i32.const 16) (i32.const 64)))
    (call $print (i32.load (i32.const 16)) (i32.const 5))
    (i32.store (i32.const 0) (i32.const 128))
    (i32.store (i32.const 4) (i32.const 1000))
    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (call $print (i32.const 128) (i32.load (i32.const 8)))
    (call $exit (i32.const 3)))))";

int main() {
  pagefork::Engine engine;
  pagefork::Module module(engine, greets);
  pagefork::Linker linker(engine);
  linker.wasi();

  pagefork::Wasi wasi;
  wasi.arg("hello").stdin_bytes(" from its input\n").capture_stdout(1 << 16);
  pagefork::Store store(engine);
  store.set_wasi(wasi);
  pagefork::Instance instance = linker.instantiate(store, module);
  int32_t status = 0;
  try {
    instance.start();
  } catch (const pagefork::Error &error) {
    // A program that ends itself is no failure.
    if (!error.exit_status(status)) throw;
  }
  std::cout << store.take_output() << "it ended with " << status << "\n";
}
