;; The base is read again in each block, and a loop tests for interruption once
;; an iteration.
(module
  (memory 1)
  (func (param $from i32) (param $to i32) (result i32) (local $sum i32)
    (loop $next
      (local.set $sum (i32.add (local.get $sum) (i32.load (local.get $from))))
      (local.set $from (i32.add (local.get $from) (i32.const 4)))
      (br_if $next (i32.lt_u (local.get $from) (local.get $to))))
    (local.get $sum)))
;; optimised IR:
;; function u0:0(i32, i32) -> i32 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = () preserve_all
;; block0(v0: i32, v1: i32):
;;     v2 = get_pinned_reg.i64 
;;     v4 = load.i32 notrap aligned region4 v2-4268
;;     brif v4, block2, block3(v2)
;; block2 cold:
;;     v5 = load.i64 notrap aligned region4 v2-4288
;;     v6 = load.i64 notrap aligned region4 v5+48
;;     call_indirect sig0, v6()
;;     v7 = get_pinned_reg.i64 
;;     jump block3(v7)
;; block3(v29: i64):
;;     v8 = iconst.i32 0
;;     v23 = iconst.i32 4
;;     jump block4(v29, v8, v0)  ; v8 = 0
;; block4(v9: i64, v15: i32, v17: i32):
;;     v10 = load.i32 notrap aligned region4 v9-4268
;;     brif v10, block5, block6(v9)
;; block5 cold:
;;     v11 = load.i64 notrap aligned region4 v9-4288
;;     v12 = load.i64 notrap aligned region4 v11+48
;;     call_indirect sig1, v12()
;;     v13 = get_pinned_reg.i64 
;;     jump block6(v13)
;; block6(v18: i64):
;;     v19 = uextend.i64 v17
;;     v20 = iadd v18, v19
;;     v21 = load.i32 user2 little region0 v20
;;     v32 = iconst.i32 4
;;     v33 = iadd.i32 v17, v32  ; v32 = 4
;;     v27 = icmp ult v33, v1
;;     v22 = iadd.i32 v15, v21
;;     brif v27, block4(v18, v22, v33), block7
;; block7:
;;     jump block1
;; block1:
;;     return v22
;; }
