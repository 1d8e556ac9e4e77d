;; A WASI reactor that counts how often it was initialized.
(module
  (memory (export "memory") 1)
  (global $count (mut i32) (i32.const 0))
  (func (export "_initialize") (global.set $count (i32.add (global.get $count) (i32.const 1))))
  (func (export "count") (result i32) (global.get $count)))
