(module
  (import "wasi_snapshot_preview1" "fd_read"
    (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write"
    (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\40\00\00\00\10\00\00\00")
  (data (i32.const 64) "started:")
  (func (export "_start")
    ;; Twelve bytes behind what is there.
    (i32.store (i32.const 0) (i32.const 72))
    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 16)))
    (i32.store (i32.const 0) (i32.const 64))
    (i32.store (i32.const 4) (i32.add (i32.const 8) (i32.load (i32.const 16))))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16)))))
