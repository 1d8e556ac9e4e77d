;; After the call the base is read again: the instance may have been moved.
(module
  (import "host" "pause" (func $pause))
  (global $count (mut i64) (i64.const 0))
  (func (global.set $count (i64.add (global.get $count) (i64.const 1)))
    (call $pause)
    (global.set $count (i64.mul (global.get $count) (i64.const 3)))))
;; optimised IR:
;; function u0:1() tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     region5 = 5 "Global 0"
;;     sig0 = () preserve_all
;;     sig1 = () tail
;;     sig2 = (i64) -> i64 system_v
;;     fn0 = colocated u0:0 sig1
;; block0:
;;     v0 = get_pinned_reg.i64 
;;     v1 = load.i32 notrap aligned region4 v0-4268
;;     brif v1, block2, block3(v0)
;; block2 cold:
;;     v2 = load.i64 notrap aligned region4 v0-4288
;;     v3 = load.i64 notrap aligned region4 v2+48
;;     call_indirect sig0, v3()
;;     v4 = get_pinned_reg.i64 
;;     jump block3(v4)
;; block3(v5: i64):
;;     v6 = load.i64 notrap aligned region5 v5-80
;;     v7 = iconst.i64 1
;;     v8 = iadd v6, v7  ; v7 = 1
;;     store notrap aligned region5 v8, v5-80
;;     v9 = load.i64 notrap aligned region4 v5-4280
;;     v10 = load.i64 notrap aligned region4 v9+16
;;     brif v10, block5, block6
;; block5:
;;     v13 = call_indirect.i64 sig2, v10(v9)
;;     jump block4
;; block6 cold:
;;     call fn0()
;;     jump block4
;; block4:
;;     v14 = get_pinned_reg.i64 
;;     v15 = load.i64 notrap aligned region5 v14-80
;;     v16 = iconst.i64 3
;;     v17 = imul v15, v16  ; v16 = 3
;;     store notrap aligned region5 v17, v14-80
;;     jump block1
;; block1:
;;     return
;; }
