;; Loops of a few stores, behind more and more other code: where they lie in a line of the processor
;; differs. `count` rounds.
(module
  (memory 1)
  (func $a (param $sum i64) (result i64) (local $at i32)
      (local.set $sum (i64.add (i64.rotl (local.get $sum) (i64.const 7)) (i64.const 19088743)))
      (loop $next
        (i64.store8 (local.get $at) (local.get $sum))
        (i64.store16 offset=1 (local.get $at) (local.get $sum))
        (i64.store32 offset=3 (local.get $at) (local.get $sum))
        (br_if $next (i32.lt_u
          (local.tee $at (i32.add (local.get $at) (i32.const 7)))
          (i32.const 16384))))
      (i64.add (local.get $sum) (i64.load (local.get $at))))
  (func $b (param $sum i64) (result i64) (local $at i32)
      (local.set $sum (i64.add (i64.rotl (local.get $sum) (i64.const 7)) (i64.const 19088743)))
      (local.set $sum (i64.add (i64.rotl (local.get $sum) (i64.const 7)) (i64.const 38177486)))
      (loop $next
        (i64.store8 (local.get $at) (local.get $sum))
        (i64.store16 offset=1 (local.get $at) (local.get $sum))
        (i64.store32 offset=3 (local.get $at) (local.get $sum))
        (br_if $next (i32.lt_u
          (local.tee $at (i32.add (local.get $at) (i32.const 7)))
          (i32.const 16384))))
      (i64.add (local.get $sum) (i64.load (local.get $at))))
  (func $c (param $sum i64) (result i64) (local $at i32)
      (local.set $sum (i64.add (i64.rotl (local.get $sum) (i64.const 7)) (i64.const 19088743)))
      (local.set $sum (i64.add (i64.rotl (local.get $sum) (i64.const 7)) (i64.const 38177486)))
      (local.set $sum (i64.add (i64.rotl (local.get $sum) (i64.const 7)) (i64.const 57266229)))
      (loop $next
        (i64.store8 (local.get $at) (local.get $sum))
        (i64.store16 offset=1 (local.get $at) (local.get $sum))
        (i64.store32 offset=3 (local.get $at) (local.get $sum))
        (br_if $next (i32.lt_u
          (local.tee $at (i32.add (local.get $at) (i32.const 7)))
          (i32.const 16384))))
      (i64.add (local.get $sum) (i64.load (local.get $at))))
  (func $d (param $sum i64) (result i64) (local $at i32)
      (local.set $sum (i64.add (i64.rotl (local.get $sum) (i64.const 7)) (i64.const 19088743)))
      (local.set $sum (i64.add (i64.rotl (local.get $sum) (i64.const 7)) (i64.const 38177486)))
      (local.set $sum (i64.add (i64.rotl (local.get $sum) (i64.const 7)) (i64.const 57266229)))
      (local.set $sum (i64.add (i64.rotl (local.get $sum) (i64.const 7)) (i64.const 76354972)))
      (loop $next
        (i64.store8 (local.get $at) (local.get $sum))
        (i64.store16 offset=1 (local.get $at) (local.get $sum))
        (i64.store32 offset=3 (local.get $at) (local.get $sum))
        (br_if $next (i32.lt_u
          (local.tee $at (i32.add (local.get $at) (i32.const 7)))
          (i32.const 16384))))
      (i64.add (local.get $sum) (i64.load (local.get $at))))
  (func (export "stores") (param $count i32) (result i64) (local $sum i64)
    (loop $next
      (local.set $sum (call $d (call $c (call $b (call $a (local.get $sum))))))
      (br_if $next (local.tee $count (i32.sub (local.get $count) (i32.const 1)))))
    (local.get $sum)))
