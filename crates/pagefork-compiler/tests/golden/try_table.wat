;; The call has two ends: the block where it returns, and the landing pad of the
;; `try_table`, which gets the exception and asks, clause by clause, whether it is
;; the one. What no clause wants is thrown on.
(module
  (tag $t (param i32))
  (func $f (param i32))
  (func (param i32) (result i32)
    (block $h (result i32)
      (try_table (catch $t $h) (call $f (local.get 0)))
      (i32.const 0))))
