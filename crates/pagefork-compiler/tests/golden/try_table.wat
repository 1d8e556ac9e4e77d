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
;; optimised IR:
;; function u0:0(i32) tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;; block0(v0: i32):
;;     v1 = get_pinned_reg.i64 
;;     v2 = load.i32 notrap aligned region4 v1-0x0001_10ac
;;     brif v2, block2, block3
;; block2 cold:
;;     v3 = load.i64 notrap aligned region4 v1-0x0001_10c0
;;     v4 = load.i64 notrap aligned region4 v3+48
;;     call_indirect sig0, v4()
;;     v5 = get_pinned_reg.i64 
;;     jump block3
;; block3:
;;     jump block1
;; block1:
;;     return
;; }
;; function u0:1(i32) -> i32 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = (i32) tail
;;     sig2 = (i64, i64) system_v
;;     sig3 = (i64) tail
;;     fn0 = colocated u0:0 sig1
;;     fn1 = colocated u4:0 sig3
;; block0(v0: i32):
;;     v1 = get_pinned_reg.i64 
;;     v3 = load.i32 notrap aligned region4 v1-0x0001_10ac
;;     brif v3, block2, block3
;; block2 cold:
;;     v4 = load.i64 notrap aligned region4 v1-0x0001_10c0
;;     v5 = load.i64 notrap aligned region4 v4+48
;;     call_indirect sig0, v5()
;;     v6 = get_pinned_reg.i64 
;;     jump block3
;; block3:
;;     try_call fn0(v0), sig1, block7, [ default: block6(exn0) ]
;; block7:
;;     v10 = get_pinned_reg.i64 
;;     jump block5
;; block6(v8: i64) cold:
;;     v11 = get_pinned_reg.i64 
;;     store notrap aligned region3 v8, v11-0x0001_1080
;;     v12 = iconst.i64 0
;;     store notrap aligned region3 v12, v11-0x0001_1070  ; v12 = 0
;;     store notrap aligned region3 v12, v11-0x0001_1060  ; v12 = 0
;;     v15 = load.i64 notrap aligned region4 v11-0x0001_10c0
;;     v16 = load.i64 notrap aligned region4 v15+40
;;     v14 = iconst.i64 0x8000_000d
;;     v17 = iconst.i64 -69760
;;     v18 = iadd v11, v17  ; v17 = -69760
;;     call_indirect sig2, v16(v14, v18)  ; v14 = 0x8000_000d
;;     v19 = get_pinned_reg.i64 
;;     v20 = load.i64 notrap aligned region3 v19-0x0001_1080
;;     brif v20, block8, block9
;; block8:
;;     v21 = load.i32 notrap aligned region3 v19-0x0001_1070
;;     jump block4(v21)
;; block9:
;;     store.i64 notrap aligned region3 v8, v19-0x0001_1080
;;     v22 = iconst.i64 0x8000_000c
;;     call fn1(v22)  ; v22 = 0x8000_000c
;;     trap user9
;; block5:
;;     v23 = iconst.i32 0
;;     jump block4(v23)  ; v23 = 0
;; block4(v7: i32):
;;     jump block1(v7)
;; block1(v2: i32):
;;     return v2
;; }
