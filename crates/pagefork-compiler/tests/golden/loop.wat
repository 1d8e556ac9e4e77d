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
;;     v3 = get_pinned_reg.i64 
;;     v4 = load.i64 notrap aligned region4 v3-8176
;;     brif v4, block2, block3
;; block2 cold:
;;     v5 = get_pinned_reg.i64 
;;     v6 = load.i64 notrap aligned region4 v5-8192
;;     v7 = load.i64 notrap aligned region4 v6+48
;;     call_indirect sig0, v7()
;;     jump block3
;; block3:
;;     v8 = iconst.i32 0
;;     v23 = iconst.i32 4
;;     jump block4(v8, v0)  ; v8 = 0
;; block4(v15: i32, v17: i32):
;;     v9 = get_pinned_reg.i64 
;;     v10 = load.i64 notrap aligned region4 v9-8176
;;     brif v10, block5, block6
;; block5 cold:
;;     v11 = get_pinned_reg.i64 
;;     v12 = load.i64 notrap aligned region4 v11-8192
;;     v13 = load.i64 notrap aligned region4 v12+48
;;     call_indirect sig1, v13()
;;     jump block6
;; block6:
;;     v18 = get_pinned_reg.i64 
;;     v19 = uextend.i64 v17
;;     v20 = iadd v18, v19
;;     v21 = load.i32 user2 little region0 v20
;;     v31 = iconst.i32 4
;;     v32 = iadd.i32 v17, v31  ; v31 = 4
;;     v27 = icmp ult v32, v1
;;     v22 = iadd.i32 v15, v21
;;     brif v27, block4(v22, v32), block7
;; block7:
;;     jump block1
;; block1:
;;     return v22
;; }
