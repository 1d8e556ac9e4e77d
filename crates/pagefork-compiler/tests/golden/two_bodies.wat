;; With two bodies of each function: an access is compared in one of them, which calls
;; others that compare.
(module
  (memory 1 10)
  (func (param i32) (result i32)
    (i32.add (local.get 0) (i32.load offset=8 (local.get 0))))
  (func (param i32) (result i32)
    (call 0 (i32.add (local.get 0) (i32.const 1))))
  (table 1 funcref)
  (func (param i32)
    (loop
      (i32.store (local.get 0) (i32.const 0))
      (call_indirect (param i32) (local.get 0) (local.get 0))
      (br 0))))
;; optimised IR:
;; function u0:0(i32) -> i32 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = (i32) -> i32 tail
;;     fn0 = colocated u7:0 sig1
;; block0(v0: i32):
;;     v1 = get_pinned_reg.i64 
;;     v3 = load.i64 notrap aligned region4 v1-0x0008_10b0
;;     brif v3, block2, block4(v1)
;; block2 cold:
;;     v6 = load.i32 notrap aligned region4 v1-0x0008_10ac
;;     brif v6, block5, block6(v1)
;; block5 cold:
;;     v7 = load.i64 notrap aligned region4 v1-0x0008_10c0
;;     v8 = load.i64 notrap aligned region4 v7+48
;;     call_indirect sig0, v8()
;;     v9 = get_pinned_reg.i64 
;;     jump block6(v9)
;; block6(v10: i64) cold:
;;     v11 = load.i32 notrap aligned region4 v10-0x0008_10b0
;;     brif v11, block3, block4(v10)
;; block3 cold:
;;     return_call fn0(v0)
;; block4(v16: i64):
;;     v17 = uextend.i64 v0
;;     v18 = iadd v16, v17
;;     v19 = load.i32 user2 little region0 v18+8
;;     jump block1
;; block1:
;;     v20 = iadd.i32 v0, v19
;;     return v20
;; }
;; function u7:0(i32) -> i32 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = (i32) -> i32 tail
;;     sig2 = () tail
;;     fn0 = colocated u0:0 sig1
;;     fn1 = colocated u2:2 sig2
;; block0(v0: i32):
;;     v1 = get_pinned_reg.i64 
;;     v3 = load.i64 notrap aligned region4 v1-0x0008_10b0
;;     v4 = iconst.i64 1
;;     v5 = icmp ne v3, v4  ; v4 = 1
;;     brif v5, block2, block4(v1)
;; block2 cold:
;;     v6 = load.i32 notrap aligned region4 v1-0x0008_10ac
;;     brif v6, block5, block6(v1)
;; block5 cold:
;;     v7 = load.i64 notrap aligned region4 v1-0x0008_10c0
;;     v8 = load.i64 notrap aligned region4 v7+48
;;     call_indirect sig0, v8()
;;     v9 = get_pinned_reg.i64 
;;     jump block6(v9)
;; block6(v10: i64) cold:
;;     v11 = load.i32 notrap aligned region4 v10-0x0008_10b0
;;     v12 = iconst.i32 1
;;     v13 = icmp ne v11, v12  ; v12 = 1
;;     brif v13, block3, block4(v10)
;; block3 cold:
;;     return_call fn0(v0)
;; block4(v19: i64):
;;     v20 = load.i64 notrap aligned region3 v19-80
;;     v16 = uextend.i64 v0
;;     v17 = iconst.i64 12
;;     v18 = iadd v16, v17  ; v17 = 12
;;     v21 = icmp ugt v18, v20
;;     brif v21, block7, block8
;; block7 cold:
;;     call fn1()
;;     trap user2
;; block8:
;;     v23 = iadd.i64 v19, v16
;;     v24 = load.i32 user2 little region0 v23+8
;;     jump block1
;; block1:
;;     v25 = iadd.i32 v0, v24
;;     return v25
;; }
;; function u0:1(i32) -> i32 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = (i32) -> i32 tail
;;     sig2 = (i32) -> i32 tail
;;     fn0 = colocated u7:1 sig1
;;     fn1 = colocated u0:0 sig2
;; block0(v0: i32):
;;     v1 = get_pinned_reg.i64 
;;     v3 = load.i64 notrap aligned region4 v1-0x0008_10b0
;;     brif v3, block2, block4
;; block2 cold:
;;     v6 = load.i32 notrap aligned region4 v1-0x0008_10ac
;;     brif v6, block5, block6(v1)
;; block5 cold:
;;     v7 = load.i64 notrap aligned region4 v1-0x0008_10c0
;;     v8 = load.i64 notrap aligned region4 v7+48
;;     call_indirect sig0, v8()
;;     v9 = get_pinned_reg.i64 
;;     jump block6(v9)
;; block6(v10: i64) cold:
;;     v11 = load.i32 notrap aligned region4 v10-0x0008_10b0
;;     brif v11, block3, block4
;; block3 cold:
;;     return_call fn0(v0)
;; block4:
;;     v16 = iconst.i32 1
;;     v17 = iadd.i32 v0, v16  ; v16 = 1
;;     v18 = call fn1(v17)
;;     v19 = get_pinned_reg.i64 
;;     jump block1
;; block1:
;;     return v18
;; }
;; function u7:1(i32) -> i32 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = (i32) -> i32 tail
;;     sig2 = (i32) -> i32 tail
;;     fn0 = colocated u0:1 sig1
;;     fn1 = colocated u7:0 sig2
;; block0(v0: i32):
;;     v1 = get_pinned_reg.i64 
;;     v3 = load.i64 notrap aligned region4 v1-0x0008_10b0
;;     v4 = iconst.i64 1
;;     v5 = icmp ne v3, v4  ; v4 = 1
;;     brif v5, block2, block4
;; block2 cold:
;;     v6 = load.i32 notrap aligned region4 v1-0x0008_10ac
;;     brif v6, block5, block6(v1)
;; block5 cold:
;;     v7 = load.i64 notrap aligned region4 v1-0x0008_10c0
;;     v8 = load.i64 notrap aligned region4 v7+48
;;     call_indirect sig0, v8()
;;     v9 = get_pinned_reg.i64 
;;     jump block6(v9)
;; block6(v10: i64) cold:
;;     v11 = load.i32 notrap aligned region4 v10-0x0008_10b0
;;     v12 = iconst.i32 1
;;     v13 = icmp ne v11, v12  ; v12 = 1
;;     brif v13, block3, block4
;; block3 cold:
;;     return_call fn0(v0)
;; block4:
;;     v20 = iconst.i32 1
;;     v17 = iadd.i32 v0, v20  ; v20 = 1
;;     v18 = call fn1(v17)
;;     v19 = get_pinned_reg.i64 
;;     jump block1
;; block1:
;;     return v18
;; }
;; function u0:2(i32) tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = (i32) tail
;;     sig2 = () preserve_all
;;     sig3 = () tail
;;     sig4 = (i64, i32) tail
;;     sig5 = () tail
;;     sig6 = () tail
;;     sig7 = (i32) tail
;;     fn0 = colocated u7:2 sig1
;;     fn1 = colocated u2:3 sig3
;;     fn2 = colocated u1:1 sig4
;;     fn3 = colocated u2:4 sig5
;;     fn4 = colocated u2:5 sig6
;; block0(v0: i32):
;;     v1 = get_pinned_reg.i64 
;;     v2 = load.i64 notrap aligned region4 v1-0x0008_10b0
;;     brif v2, block2, block4(v1)
;; block2 cold:
;;     v5 = load.i32 notrap aligned region4 v1-0x0008_10ac
;;     brif v5, block5, block6(v1)
;; block5 cold:
;;     v6 = load.i64 notrap aligned region4 v1-0x0008_10c0
;;     v7 = load.i64 notrap aligned region4 v6+48
;;     call_indirect sig0, v7()
;;     v8 = get_pinned_reg.i64 
;;     jump block6(v8)
;; block6(v9: i64) cold:
;;     v10 = load.i32 notrap aligned region4 v9-0x0008_10b0
;;     brif v10, block3, block4(v9)
;; block3 cold:
;;     return_call fn0(v0)
;; block4(v46: i64):
;;     v11 = iconst.i32 0
;;     v22 = uextend.i64 v0
;;     v27 = iconst.i64 3
;;     v28 = ishl v22, v27  ; v27 = 3
;;     v32 = iconst.i64 32
;;     v39 = iconst.i32 1
;;     jump block7(v46)
;; block7(v13: i64):
;;     v14 = load.i32 notrap aligned region4 v13-0x0008_10ac
;;     brif v14, block8, block9(v13)
;; block8 cold:
;;     v15 = load.i64 notrap aligned region4 v13-0x0008_10c0
;;     v16 = load.i64 notrap aligned region4 v15+48
;;     call_indirect sig2, v16()
;;     v17 = get_pinned_reg.i64 
;;     jump block9(v17)
;; block9(v21: i64):
;;     v52 = iconst.i32 0
;;     v23 = iadd v21, v22
;;     store user2 little region0 v52, v23  ; v52 = 0
;;     v25 = load.i64 notrap aligned region3 v21-96
;;     v26 = icmp.i64 uge v22, v25
;;     brif v26, block10, block11
;; block10 cold:
;;     call fn1()
;;     trap user3
;; block11:
;;     v29 = isub.i64 v21, v28
;;     v30 = select_spectre_guard.i64 v26, v21, v29
;;     v31 = load.i64 notrap aligned region1 v30-248
;;     v53 = iconst.i64 32
;;     v54 = ushr v31, v53  ; v53 = 32
;;     brif v54, block13, block12
;; block13 cold:
;;     call fn2(v31, v0)
;;     jump block14
;; block12:
;;     v34 = load.i64 notrap aligned region4 v21-0x0008_10a0
;;     v55 = iconst.i64 3
;;     v56 = ishl.i64 v31, v55  ; v55 = 3
;;     v37 = iadd v34, v56
;;     v38 = load.i32 notrap aligned region4 v37+4
;;     v57 = iconst.i32 1
;;     v58 = icmp ne v38, v57  ; v57 = 1
;;     brif v58, block15, block16
;; block15 cold:
;;     v3 = iconst.i64 0
;;     v42 = icmp.i64 eq v31, v3  ; v3 = 0
;;     brif v42, block17, block18
;; block17 cold:
;;     call fn3()
;;     trap user4
;; block18:
;;     call fn4()
;;     trap user5
;; block16:
;;     v43 = sload32.i64 notrap aligned region4 v37
;;     v44 = iadd.i64 v34, v43
;;     call_indirect sig7, v44(v0)
;;     jump block14
;; block14:
;;     v45 = get_pinned_reg.i64 
;;     jump block7(v45)
;; }
;; function u7:2(i32) tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = (i32) tail
;;     sig2 = () preserve_all
;;     sig3 = () tail
;;     sig4 = () tail
;;     sig5 = (i64, i32) tail
;;     sig6 = () tail
;;     sig7 = () tail
;;     sig8 = (i32) tail
;;     fn0 = colocated u0:2 sig1
;;     fn1 = colocated u2:2 sig3
;;     fn2 = colocated u2:3 sig4
;;     fn3 = colocated u1:1 sig5
;;     fn4 = colocated u2:4 sig6
;;     fn5 = colocated u2:5 sig7
;; block0(v0: i32):
;;     v1 = get_pinned_reg.i64 
;;     v2 = load.i64 notrap aligned region4 v1-0x0008_10b0
;;     v3 = iconst.i64 1
;;     v4 = icmp ne v2, v3  ; v3 = 1
;;     brif v4, block2, block4(v1)
;; block2 cold:
;;     v5 = load.i32 notrap aligned region4 v1-0x0008_10ac
;;     brif v5, block5, block6(v1)
;; block5 cold:
;;     v6 = load.i64 notrap aligned region4 v1-0x0008_10c0
;;     v7 = load.i64 notrap aligned region4 v6+48
;;     call_indirect sig0, v7()
;;     v8 = get_pinned_reg.i64 
;;     jump block6(v8)
;; block6(v9: i64) cold:
;;     v10 = load.i32 notrap aligned region4 v9-0x0008_10b0
;;     v11 = iconst.i32 1
;;     v12 = icmp ne v10, v11  ; v11 = 1
;;     brif v12, block3, block4(v9)
;; block3 cold:
;;     return_call fn0(v0)
;; block4(v51: i64):
;;     v21 = uextend.i64 v0
;;     v22 = iconst.i64 4
;;     v23 = iadd v21, v22  ; v22 = 4
;;     v20 = iconst.i32 0
;;     v32 = iconst.i64 3
;;     v33 = ishl v21, v32  ; v32 = 3
;;     v37 = iconst.i64 32
;;     v64 = iconst.i32 1
;;     jump block7(v51)
;; block7(v13: i64):
;;     v14 = load.i32 notrap aligned region4 v13-0x0008_10ac
;;     brif v14, block8, block9(v13)
;; block8 cold:
;;     v15 = load.i64 notrap aligned region4 v13-0x0008_10c0
;;     v16 = load.i64 notrap aligned region4 v15+48
;;     call_indirect sig2, v16()
;;     v17 = get_pinned_reg.i64 
;;     jump block9(v17)
;; block9(v24: i64):
;;     v25 = load.i64 notrap aligned region3 v24-80
;;     v57 = iadd.i64 v21, v22  ; v22 = 4
;;     v58 = icmp ugt v57, v25
;;     brif v58, block10, block11
;; block10 cold:
;;     call fn1()
;;     trap user2
;; block11:
;;     v59 = iconst.i32 0
;;     v28 = iadd.i64 v24, v21
;;     store user2 little region0 v59, v28  ; v59 = 0
;;     v30 = load.i64 notrap aligned region3 v24-96
;;     v31 = icmp.i64 uge v21, v30
;;     brif v31, block12, block13
;; block12 cold:
;;     call fn2()
;;     trap user3
;; block13:
;;     v34 = isub.i64 v24, v33
;;     v35 = select_spectre_guard.i64 v31, v24, v34
;;     v36 = load.i64 notrap aligned region1 v35-248
;;     v60 = iconst.i64 32
;;     v61 = ushr v36, v60  ; v60 = 32
;;     brif v61, block15, block14
;; block15 cold:
;;     call fn3(v36, v0)
;;     jump block16
;; block14:
;;     v39 = load.i64 notrap aligned region4 v24-0x0008_10a0
;;     v62 = iconst.i64 3
;;     v63 = ishl.i64 v36, v62  ; v62 = 3
;;     v42 = iadd v39, v63
;;     v43 = load.i32 notrap aligned region4 v42+4
;;     v45 = icmp ne v43, v64  ; v64 = 1
;;     brif v45, block17, block18
;; block17 cold:
;;     v46 = iconst.i64 0
;;     v47 = icmp.i64 eq v36, v46  ; v46 = 0
;;     brif v47, block19, block20
;; block19 cold:
;;     call fn4()
;;     trap user4
;; block20:
;;     call fn5()
;;     trap user5
;; block18:
;;     v48 = sload32.i64 notrap aligned region4 v42+32
;;     v49 = iadd.i64 v39, v48
;;     call_indirect sig8, v49(v0)
;;     jump block16
;; block16:
;;     v50 = get_pinned_reg.i64 
;;     jump block7(v50)
;; }
