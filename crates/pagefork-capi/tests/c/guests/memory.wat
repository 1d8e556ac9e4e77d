;; A memory that can grow twice.
(module
  (memory (export "memory") 2 4)
  (data (i32.const 0x1000) "abc")
  (func (export "load") (param i32) (result i32) (i32.load8_u (local.get 0)))
  (func (export "store") (param i32 i32) (i32.store8 (local.get 0) (local.get 1))))
