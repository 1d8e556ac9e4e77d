;; What real guests do seldom, all at once, with as many values as possible live
;; across calls: deep recursion, vectors and floats, more results than registers,
;; calls through tables and between instances in both directions, memories and
;; tables that grow, references, bulk operations.
(module $library
  (import "host" "note" (func $note (param i32 i64 f32 f64) (result i64 f64)))
  (type $unary (func (param i32) (result i32)))
  (memory (export "memory") 1 8)
  (table $shared (export "table") 4 16 funcref)
  (global $total (export "total") (mut i64) (i64.const 0))
  (global $lanes (export "lanes") (mut v128) (v128.const i32x4 1 2 3 4))
  (data $text "a passive segment of bytes")
  (elem (table $shared) (i32.const 0) func $triple)

  (func $triple (type $unary)
    (local $i i32) (local $v v128) (local $f f64)
    (local.set $v (global.get $lanes))
    (local.set $f (f64.convert_i32_s (local.get 0)))
    (loop $again
      (local.set $v (i32x4.add (local.get $v) (i32x4.splat (local.get $i))))
      (local.set $f (f64.mul (local.get $f) (f64.const 1.5)))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $again (i32.lt_u (local.get $i) (i32.const 3))))
    (global.set $lanes (local.get $v))
    (global.set $total (i64.add (global.get $total) (i64.trunc_sat_f64_s (local.get $f))))
    (i32.mul (local.get 0) (i32.const 3)))

  ;; Ten integers and ten floats: two of each beyond the registers.
  (func (export "spread") (param $x i32)
    (result i32 i64 i32 i64 i32 i64 i32 i64 i32 i64 f64 v128 f64 f32 f64 f32 f64 v128 f64 f32)
    (local $n i64) (local $f f64) (local $v v128) (local $s f32)
    (local.set $v (v128.xor (global.get $lanes) (i64x2.splat (i64.extend_i32_u (local.get $x)))))
    (local.set $s (f32.convert_i32_u (local.get $x)))
    (call $note (local.get $x) (global.get $total) (local.get $s) (f64.const 0.5))
    (local.set $f) (local.set $n)
    (memory.init $text (i32.add (i32.const 200) (local.get $x)) (i32.const 2) (i32.const 9))
    (local.get $x) (local.get $n) (call $triple (local.get $x)) (i64.const 4)
    (i32.load (local.get $x)) (i64.mul (local.get $n) (i64.const 3)) (i32.const 7) (i64.const 8)
    (i32.add (local.get $x) (i32.const 9)) (i64.xor (local.get $n) (i64.const 10))
    (local.get $f) (local.get $v) (f64.neg (local.get $f)) (local.get $s)
    (f64.sqrt (f64.abs (local.get $f))) (f32.const 1.5) (f64.const 2.5)
    (i8x16.add (local.get $v) (local.get $v)) (f64.const 3.5) (f32.neg (local.get $s))))
