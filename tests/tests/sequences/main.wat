;; Calls the host at each depth of a recursion. Exceptions, vectors and floats live across the
;; calls; what the host answers decides what is written and grown. Sizes are looked at where the
;; host has just returned, and nowhere else.
(module
    (import "host" "step" (func $step (param i32) (result i32)))
    (import "library" "memory" (memory $far 1))
    (import "library" "mix" (func $mix (param i32) (result i32)))
    (import "library" "table" (table $shared 4 funcref))
    (memory $own (export "memory") 2 24)
    (table $grows 3 40 funcref)
    (tag $tag (param i32))
    (type $unary (func (param i32) (result i32)))
    (global $sum (mut i64) (i64.const 1))
    (global $vector (mut v128) (v128.const i64x2 3 5))
    (data (memory $own) (i32.const 5000) "what the image holds")
    (elem (table $shared) (i32.const 2) func $twice)
    (elem declare func $thrice)
    (func $twice (param i32) (result i32) (i32.shl (local.get 0) (i32.const 1)))
    (func $thrice (param i32) (result i32) (i32.mul (local.get 0) (i32.const 3)))
    (func $use (param $answer i32)
        (local $kind i32)
        (local.set $kind (i32.and (local.get $answer) (i32.const 7)))
        (i32.store $own
            (i32.and (local.get $answer) (i32.const 0x1fffc)) (local.get $answer))
        (if (i32.eqz (local.get $kind)) (then
            (memory.fill $own
                (i32.and (local.get $answer) (i32.const 0xf000)) (i32.const 0) (i32.const 5000))))
        (if (i32.eq (local.get $kind) (i32.const 1)) (then
            (drop (table.grow $grows (ref.func $thrice) (i32.const 1)))
            (table.set $shared (i32.const 1) (ref.func $thrice))))
        (if (i32.eq (local.get $kind) (i32.const 2)) (then
            (memory.copy $far $own (i32.const 9000) (i32.const 4990) (i32.const 3000))
            (i32.store $far (i32.const 10000) (local.get $answer))))
        (if (i32.eq (local.get $kind) (i32.const 3)) (then
            (global.set $vector (i64x2.add
                (global.get $vector) (i64x2.splat (i64.extend_i32_s (local.get $answer))))))))
    (func $work (param $depth i32) (param $x i64) (result i64)
        (local $answer i32) (local $size i32) (local $i i32)
        (local $held exnref) (local $v v128) (local $f f64)
        (if (i32.eqz (local.get $depth)) (then (return (local.get $x))))
        (block $caught (result i32 exnref)
            (try_table (catch_ref $tag $caught) (throw $tag (local.get $depth)))
            (unreachable))
        (local.set $held)
        (drop)
        (local.set $v (global.get $vector))
        (loop $again
            (local.set $v (i64x2.add (local.get $v) (i64x2.splat (local.get $x))))
            (local.set $f (f64.add (local.get $f) (f64.const 1.5)))
            (br_if $again (i32.lt_u
                (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 3))))
        (local.set $answer
            (call $step (i32.xor (local.get $depth) (i32.wrap_i64 (local.get $x)))))
        (if (i32.eq (i32.and (local.get $answer) (i32.const 15)) (i32.const 4)) (then
            (drop (memory.grow $own (i32.const 1)))))
        (local.set $size (memory.size $own))
        (i32.store $own
            (i32.sub (i32.shl (local.get $size) (i32.const 16))
                (i32.add (i32.const 4) (i32.and (local.get $answer) (i32.const 0xfffc))))
            (local.get $answer))
        (call $use (local.get $answer))
        (local.set $x (i64.add
            (i64.mul (local.get $x) (i64.const 31))
            (i64.extend_i32_s (i32.add
                (i32.add (local.get $size) (call $mix (local.get $answer)))
                (call_indirect $shared (type $unary) (local.get $answer)
                    (i32.and (local.get $answer) (i32.const 2)))))))
        (global.set $sum (i64.xor (global.get $sum) (local.get $x)))
        (local.set $x (call $work (i32.sub (local.get $depth) (i32.const 1)) (local.get $x)))
        (block $back (result i32)
            (try_table (catch $tag $back) (throw_ref (local.get $held)))
            (unreachable))
        (i64.add
            (i64.extend_i32_s)
            (i64.add (local.get $x) (i64.add
                (i64x2.extract_lane 1 (local.get $v)) (i64.trunc_sat_f64_s (local.get $f))))))
    (func (export "run") (param i32 i64) (result i64)
        (i64.add (call $work (local.get 0) (local.get 1)) (global.get $sum))))
