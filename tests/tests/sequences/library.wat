;; Calls the host from another instance than the one that the embedder called.
(module
    (import "host" "step" (func $step (param i32) (result i32)))
    (memory (export "memory") 1 1)
    (table (export "table") 4 funcref)
    (global $count (mut i32) (i32.const 0))
    (func $self (param i32) (result i32) (i32.add (local.get 0) (global.get $count)))
    (elem (i32.const 0) func $self $self)
    (func (export "mix") (param i32) (result i32)
        (local $i i32)
        (global.set $count (i32.add (global.get $count) (i32.const 1)))
        (loop $again
            (i32.store (i32.add (i32.and (local.get 0) (i32.const 0xfff0)) (local.get $i))
                (global.get $count))
            (br_if $again (i32.lt_u
                (local.tee $i (i32.add (local.get $i) (i32.const 4))) (i32.const 12))))
        (if (result i32) (i32.and (local.get 0) (i32.const 8))
            (then (i32.add (local.get $i) (call $step (global.get $count))))
            (else (i32.load (i32.and (local.get 0) (i32.const 0xfffc)))))))
