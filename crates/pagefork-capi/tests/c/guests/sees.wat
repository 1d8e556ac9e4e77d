;; A WASI program that writes its arguments, its variables and a file that it finds, and ends itself with what
;; it is told when it makes another.
(module
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $args_sizes (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_get" (func $args (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $env_sizes (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_get" (func $env (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 64) "there.txt")
  (data (i32.const 80) "made.txt")
  (func $print (param $at i32) (param $size i32)
    (i32.store (i32.const 0) (local.get $at))
    (i32.store (i32.const 4) (local.get $size))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))))
  (func (export "_start")
    (drop (call $args_sizes (i32.const 16) (i32.const 20)))
    (drop (call $args (i32.const 256) (i32.const 1024)))
    (call $print (i32.const 1024) (i32.load (i32.const 20)))
    (drop (call $env_sizes (i32.const 16) (i32.const 20)))
    (drop (call $env (i32.const 256) (i32.const 2048)))
    (call $print (i32.const 2048) (i32.load (i32.const 20)))
    ;; To read, by the first directory.
    (if (i32.eqz (call $open (i32.const 3) (i32.const 0) (i32.const 64) (i32.const 9) (i32.const 0)
          (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 24)))
      (then
        (i32.store (i32.const 0) (i32.const 4096))
        (i32.store (i32.const 4) (i32.const 100))
        (drop (call $read (i32.load (i32.const 24)) (i32.const 0) (i32.const 1) (i32.const 8)))
        (call $print (i32.const 4096) (i32.load (i32.const 8)))))
    ;; To be made and written.
    (call $exit
      (call $open (i32.const 3) (i32.const 0) (i32.const 80) (i32.const 8) (i32.const 1)
        (i64.const 64) (i64.const 0) (i32.const 0) (i32.const 24)))))
