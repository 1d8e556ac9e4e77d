;; Eight results fit registers, the ninth goes through a cell.
(module
  (func $nine (result i32 i32 i32 i32 i32 i32 i32 i32 i32)
    (i32.const 1) (i32.const 2) (i32.const 3) (i32.const 4) (i32.const 5)
    (i32.const 6) (i32.const 7) (i32.const 8) (i32.const 9))
  (func (result i32) (call $nine)
    (drop) (drop) (drop) (drop) (drop) (drop) (drop) (drop)))
;; optimised IR:
;; function u0:0() -> i32, i32, i32, i32, i32, i32, i32, i32 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;; block0:
;;     v0 = get_pinned_reg.i64 
;;     v10 = load.i32 notrap aligned region4 v0-4332
;;     brif v10, block2, block3(v0)
;; block2 cold:
;;     v11 = load.i64 notrap aligned region4 v0-4352
;;     v12 = load.i64 notrap aligned region4 v11+48
;;     call_indirect sig0, v12()
;;     v13 = get_pinned_reg.i64 
;;     jump block3(v13)
;; block3(v24: i64):
;;     jump block1
;; block1:
;;     v25 = iconst.i64 9
;;     store notrap aligned region3 v25, v24-4160  ; v25 = 9
;;     v14 = iconst.i32 1
;;     v15 = iconst.i32 2
;;     v16 = iconst.i32 3
;;     v17 = iconst.i32 4
;;     v18 = iconst.i32 5
;;     v19 = iconst.i32 6
;;     v20 = iconst.i32 7
;;     v21 = iconst.i32 8
;;     return v14, v15, v16, v17, v18, v19, v20, v21  ; v14 = 1, v15 = 2, v16 = 3, v17 = 4, v18 = 5, v19 = 6, v20 = 7, v21 = 8
;; }
;; function u0:1() -> i32 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = () -> i32, i32, i32, i32, i32, i32, i32, i32 tail
;;     fn0 = colocated u0:0 sig1
;; block0:
;;     v0 = get_pinned_reg.i64 
;;     v2 = load.i32 notrap aligned region4 v0-4332
;;     brif v2, block2, block3
;; block2 cold:
;;     v3 = load.i64 notrap aligned region4 v0-4352
;;     v4 = load.i64 notrap aligned region4 v3+48
;;     call_indirect sig0, v4()
;;     v5 = get_pinned_reg.i64 
;;     jump block3
;; block3:
;;     v6, v7, v8, v9, v10, v11, v12, v13 = call fn0()
;;     v14 = get_pinned_reg.i64 
;;     v15 = load.i32 notrap aligned region3 v14-4160
;;     jump block1
;; block1:
;;     return v6
;; }
