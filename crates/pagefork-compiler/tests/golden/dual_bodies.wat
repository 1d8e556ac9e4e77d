;; With dual bodies of each function: an access is compared in one of them, which calls
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
;; block4(v14: i64):
;;     v15 = uextend.i64 v0
;;     v16 = iadd v14, v15
;;     v17 = load.i32 user2 little region0 v16+8
;;     jump block1
;; block1:
;;     v18 = iadd.i32 v0, v17
;;     return v18
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
;;     brif v11, block4(v10), block3
;; block3 cold:
;;     return_call fn0(v0)
;; block4(v17: i64):
;;     v18 = load.i64 notrap aligned region3 v17-80
;;     v14 = uextend.i64 v0
;;     v15 = iconst.i64 12
;;     v16 = iadd v14, v15  ; v15 = 12
;;     v19 = icmp ugt v16, v18
;;     brif v19, block7, block8
;; block7 cold:
;;     call fn1()
;;     trap user2
;; block8:
;;     v21 = iadd.i64 v17, v14
;;     v22 = load.i32 user2 little region0 v21+8
;;     jump block1
;; block1:
;;     v23 = iadd.i32 v0, v22
;;     return v23
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
;;     v14 = iconst.i32 1
;;     v15 = iadd.i32 v0, v14  ; v14 = 1
;;     v16 = call fn1(v15)
;;     v17 = get_pinned_reg.i64 
;;     jump block1
;; block1:
;;     return v16
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
;;     brif v11, block4, block3
;; block3 cold:
;;     return_call fn0(v0)
;; block4:
;;     v14 = iconst.i32 1
;;     v15 = iadd.i32 v0, v14  ; v14 = 1
;;     v16 = call fn1(v15)
;;     v17 = get_pinned_reg.i64 
;;     jump block1
;; block1:
;;     return v16
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
;; block4(v44: i64):
;;     v18 = iconst.i32 0
;;     v20 = uextend.i64 v0
;;     v25 = iconst.i64 3
;;     v26 = ishl v20, v25  ; v25 = 3
;;     v30 = iconst.i64 32
;;     v37 = iconst.i32 1
;;     jump block7(v44)
;; block7(v11: i64):
;;     v12 = load.i32 notrap aligned region4 v11-0x0008_10ac
;;     brif v12, block8, block9(v11)
;; block8 cold:
;;     v13 = load.i64 notrap aligned region4 v11-0x0008_10c0
;;     v14 = load.i64 notrap aligned region4 v13+48
;;     call_indirect sig2, v14()
;;     v15 = get_pinned_reg.i64 
;;     jump block9(v15)
;; block9(v19: i64):
;;     v50 = iconst.i32 0
;;     v21 = iadd v19, v20
;;     store user2 little region0 v50, v21  ; v50 = 0
;;     v23 = load.i64 notrap aligned region3 v19-96
;;     v24 = icmp.i64 uge v20, v23
;;     brif v24, block10, block11
;; block10 cold:
;;     call fn1()
;;     trap user3
;; block11:
;;     v27 = isub.i64 v19, v26
;;     v28 = select_spectre_guard.i64 v24, v19, v27
;;     v29 = load.i64 notrap aligned region1 v28-248
;;     v51 = iconst.i64 32
;;     v52 = ushr v29, v51  ; v51 = 32
;;     brif v52, block13, block12
;; block13 cold:
;;     call fn2(v29, v0)
;;     jump block14
;; block12:
;;     v32 = load.i64 notrap aligned region4 v19-0x0008_10a0
;;     v53 = iconst.i64 3
;;     v54 = ishl.i64 v29, v53  ; v53 = 3
;;     v35 = iadd v32, v54
;;     v36 = load.i32 notrap aligned region4 v35+4
;;     v55 = iconst.i32 1
;;     v56 = icmp ne v36, v55  ; v55 = 1
;;     brif v56, block15, block16
;; block15 cold:
;;     v3 = iconst.i64 0
;;     v40 = icmp.i64 eq v29, v3  ; v3 = 0
;;     brif v40, block17, block18
;; block17 cold:
;;     call fn3()
;;     trap user4
;; block18:
;;     call fn4()
;;     trap user5
;; block16:
;;     v41 = sload32.i64 notrap aligned region4 v35
;;     v42 = iadd.i64 v32, v41
;;     call_indirect sig7, v42(v0)
;;     jump block14
;; block14:
;;     v43 = get_pinned_reg.i64 
;;     jump block7(v43)
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
;;     brif v10, block4(v9), block3
;; block3 cold:
;;     return_call fn0(v0)
;; block4(v49: i64):
;;     v19 = uextend.i64 v0
;;     v20 = iconst.i64 4
;;     v21 = iadd v19, v20  ; v20 = 4
;;     v18 = iconst.i32 0
;;     v30 = iconst.i64 3
;;     v31 = ishl v19, v30  ; v30 = 3
;;     v35 = iconst.i64 32
;;     v42 = iconst.i32 1
;;     jump block7(v49)
;; block7(v11: i64):
;;     v12 = load.i32 notrap aligned region4 v11-0x0008_10ac
;;     brif v12, block8, block9(v11)
;; block8 cold:
;;     v13 = load.i64 notrap aligned region4 v11-0x0008_10c0
;;     v14 = load.i64 notrap aligned region4 v13+48
;;     call_indirect sig2, v14()
;;     v15 = get_pinned_reg.i64 
;;     jump block9(v15)
;; block9(v22: i64):
;;     v23 = load.i64 notrap aligned region3 v22-80
;;     v55 = iadd.i64 v19, v20  ; v20 = 4
;;     v56 = icmp ugt v55, v23
;;     brif v56, block10, block11
;; block10 cold:
;;     call fn1()
;;     trap user2
;; block11:
;;     v57 = iconst.i32 0
;;     v26 = iadd.i64 v22, v19
;;     store user2 little region0 v57, v26  ; v57 = 0
;;     v28 = load.i64 notrap aligned region3 v22-96
;;     v29 = icmp.i64 uge v19, v28
;;     brif v29, block12, block13
;; block12 cold:
;;     call fn2()
;;     trap user3
;; block13:
;;     v32 = isub.i64 v22, v31
;;     v33 = select_spectre_guard.i64 v29, v22, v32
;;     v34 = load.i64 notrap aligned region1 v33-248
;;     v58 = iconst.i64 32
;;     v59 = ushr v34, v58  ; v58 = 32
;;     brif v59, block15, block14
;; block15 cold:
;;     call fn3(v34, v0)
;;     jump block16
;; block14:
;;     v37 = load.i64 notrap aligned region4 v22-0x0008_10a0
;;     v60 = iconst.i64 3
;;     v61 = ishl.i64 v34, v60  ; v60 = 3
;;     v40 = iadd v37, v61
;;     v41 = load.i32 notrap aligned region4 v40+4
;;     v62 = iconst.i32 1
;;     v63 = icmp ne v41, v62  ; v62 = 1
;;     brif v63, block17, block18
;; block17 cold:
;;     v44 = iconst.i64 0
;;     v45 = icmp.i64 eq v34, v44  ; v44 = 0
;;     brif v45, block19, block20
;; block19 cold:
;;     call fn4()
;;     trap user4
;; block20:
;;     call fn5()
;;     trap user5
;; block18:
;;     v46 = sload32.i64 notrap aligned region4 v40+32
;;     v47 = iadd.i64 v37, v46
;;     call_indirect sig8, v47(v0)
;;     jump block16
;; block16:
;;     v48 = get_pinned_reg.i64 
;;     jump block7(v48)
;; }
