;; Element, descriptor, call: nothing needed initialising. References to other
;; instances take the cold path; so do null and a wrong type.
(module
  (type $binary (func (param i32 i32) (result i32)))
  (table 8 funcref)
  (func (param i32) (result i32)
    (call_indirect (type $binary) (i32.const 1) (i32.const 2) (local.get 0))))
;; optimised IR:
;; function u0:0(i32) -> i32 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = () tail
;;     sig2 = (i64, i32, i32) -> i32 tail
;;     sig3 = () tail
;;     sig4 = () tail
;;     sig5 = (i32, i32) -> i32 tail
;;     fn0 = colocated u2:3 sig1
;;     fn1 = colocated u1:0 sig2
;;     fn2 = colocated u2:4 sig3
;;     fn3 = colocated u2:5 sig4
;; block0(v0: i32):
;;     v1 = get_pinned_reg.i64 
;;     v3 = load.i32 notrap aligned region4 v1-0x0008_10ac
;;     brif v3, block2, block3(v1)
;; block2 cold:
;;     v4 = load.i64 notrap aligned region4 v1-0x0008_10c0
;;     v5 = load.i64 notrap aligned region4 v4+48
;;     call_indirect sig0, v5()
;;     v6 = get_pinned_reg.i64 
;;     jump block3(v6)
;; block3(v11: i64):
;;     v12 = load.i64 notrap aligned region3 v11-80
;;     v10 = uextend.i64 v0
;;     v13 = icmp uge v10, v12
;;     brif v13, block4, block5
;; block4 cold:
;;     call fn0()
;;     trap user3
;; block5:
;;     v14 = iconst.i64 3
;;     v15 = ishl.i64 v10, v14  ; v14 = 3
;;     v16 = isub.i64 v11, v15
;;     v17 = select_spectre_guard.i64 v13, v11, v16
;;     v18 = load.i64 notrap aligned region1 v17-232
;;     v20 = iconst.i64 32
;;     v21 = ushr v18, v20  ; v20 = 32
;;     brif v21, block7, block6
;; block7 cold:
;;     v40 = iconst.i32 1
;;     v41 = iconst.i32 2
;;     v22 = call fn1(v18, v40, v41)  ; v40 = 1, v41 = 2
;;     jump block8(v22)
;; block6:
;;     v23 = load.i64 notrap aligned region4 v11-0x0008_10a0
;;     v38 = iconst.i64 3
;;     v39 = ishl.i64 v18, v38  ; v38 = 3
;;     v26 = iadd v23, v39
;;     v27 = load.i32 notrap aligned region4 v26+4
;;     brif v27, block9, block10
;; block9 cold:
;;     v30 = iconst.i64 0
;;     v31 = icmp.i64 eq v18, v30  ; v30 = 0
;;     brif v31, block11, block12
;; block11 cold:
;;     call fn2()
;;     trap user4
;; block12:
;;     call fn3()
;;     trap user5
;; block10:
;;     v32 = sload32.i64 notrap aligned region4 v26
;;     v33 = iadd.i64 v23, v32
;;     v7 = iconst.i32 1
;;     v8 = iconst.i32 2
;;     v34 = call_indirect sig5, v33(v7, v8)  ; v7 = 1, v8 = 2
;;     jump block8(v34)
;; block8(v19: i32):
;;     v35 = get_pinned_reg.i64 
;;     jump block1(v19)
;; block1(v2: i32):
;;     return v2
;; }
