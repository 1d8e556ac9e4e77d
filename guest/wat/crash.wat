;; Traps three calls deep, to show a backtrace: pagefork run guest/wat/crash.wat
(module
  (memory (export "memory") 1)
  (func $read_far (param $address i32) (result i32)
    (i32.load (local.get $address)))
  (func $work (result i32)
    (i32.add (call $read_far (i32.const 65536)) (i32.const 1)))
  (func $main (export "_start")
    (drop (call $work))))
