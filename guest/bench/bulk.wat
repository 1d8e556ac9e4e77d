;; Copies and fills of 200 bytes to 4 KiB, each length in turn: `count` of both.
(module
  (memory 1)
  (func (export "bulk") (param $count i32) (result i64) (local $length i32)
    (i64.store (i32.const 20000) (i64.const 0x0123456789abcdef))
    (loop $next
      (local.set $length (i32.add (i32.const 200)
        (i32.and (i32.mul (local.get $count) (i32.const 1237)) (i32.const 0xeff))))
      (memory.copy (i32.const 16384) (i32.const 20000) (local.get $length))
      (memory.fill (i32.const 8192) (local.get $count) (local.get $length))
      (memory.copy (i32.const 20001) (i32.const 16384) (local.get $length))
      (br_if $next (local.tee $count (i32.sub (local.get $count) (i32.const 1)))))
    (i64.add (i64.load (i32.const 20100)) (i64.load (i32.const 8200)))))
