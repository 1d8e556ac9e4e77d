;; Ways to trap, two functions deep.
(module
  (import "host" "fail" (func $fail (param i32)))
  (func $divide (param i32) (result i32) (i32.div_u (i32.const 1) (local.get 0)))
  (func (export "divide") (param i32) (result i32) (call $divide (local.get 0)))
  (func (export "fail") (param i32) (call $fail (local.get 0)))
  (func $deep (export "deep") (call $deep)))
