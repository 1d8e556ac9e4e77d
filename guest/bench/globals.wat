;; A loop that keeps all it works with in globals: `count` rounds.
(module
  (global $sum (mut i64) (i64.const 0))
  (global $count (mut i32) (i32.const 0))
  (global $step (mut i64) (i64.const 1))
  (func (export "globals") (param i32) (result i64)
    (global.set $count (local.get 0))
    (global.set $sum (i64.const 0))
    (global.set $step (i64.const 1))
    (loop $next
      (global.set $sum (i64.add (global.get $sum) (global.get $step)))
      (global.set $step (i64.xor
        (i64.rotl (global.get $step) (i64.const 5))
        (i64.extend_i32_u (global.get $count))))
      (global.set $count (i32.sub (global.get $count) (i32.const 1)))
      (br_if $next (global.get $count)))
    (global.get $sum)))
