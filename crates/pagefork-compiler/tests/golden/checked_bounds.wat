;; With checked bounds the end of an access of a 32-bit memory is compared with the
;; size, in the state zone or through the link record; it cannot wrap around. What a
;; mispredicted comparison reads is of the memory or its guard. The same bytes are not
;; compared again.
(module
  (import "host" "memory" (memory 1))
  (memory 1)
  (func (param i32) (result i64) (i64.load 1 offset=8 (local.get 0)))
  (func (param i32) (result i32) (i32.load8_u 0 offset=0xffffffff (local.get 0)))
  (func (param i32) (i32.store 1 (local.get 0) (i32.load 1 (local.get 0))))
  (func (param i32 i32) (memory.copy 1 1 (local.get 0) (local.get 1) (i32.const 8)))
  (func (param i32 i32) (memory.fill 0 (local.get 0) (local.get 1) (i32.const 3))))
;; optimised IR:
;; function u0:0(i32) -> i64 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = () tail
;;     fn0 = colocated u2:2 sig1
;; block0(v0: i32):
;;     v1 = get_pinned_reg.i64 
;;     v3 = load.i32 notrap aligned region4 v1-4268
;;     brif v3, block2, block3(v1)
;; block2 cold:
;;     v4 = load.i64 notrap aligned region4 v1-4288
;;     v5 = load.i64 notrap aligned region4 v4+48
;;     call_indirect sig0, v5()
;;     v6 = get_pinned_reg.i64 
;;     jump block3(v6)
;; block3(v11: i64):
;;     v12 = load.i64 notrap aligned region3 v11-80
;;     v8 = uextend.i64 v0
;;     v9 = iconst.i64 16
;;     v10 = iadd v8, v9  ; v9 = 16
;;     v13 = icmp ugt v10, v12
;;     brif v13, block4, block5
;; block4 cold:
;;     call fn0()
;;     trap user2
;; block5:
;;     v15 = iadd.i64 v11, v8
;;     v16 = load.i64 user2 little region0 v15+8
;;     jump block1
;; block1:
;;     return v16
;; }
;; function u0:1(i32) -> i32 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = () tail
;;     fn0 = colocated u2:2 sig1
;; block0(v0: i32):
;;     v1 = get_pinned_reg.i64 
;;     v3 = load.i32 notrap aligned region4 v1-4268
;;     brif v3, block2, block3(v1)
;; block2 cold:
;;     v4 = load.i64 notrap aligned region4 v1-4288
;;     v5 = load.i64 notrap aligned region4 v4+48
;;     call_indirect sig0, v5()
;;     v6 = get_pinned_reg.i64 
;;     jump block3(v6)
;; block3(v11: i64):
;;     v12 = load.i64 notrap aligned region4 v11-4216
;;     v13 = load.i64 notrap aligned region3 v12
;;     v8 = uextend.i64 v0
;;     v9 = iconst.i64 0x0001_0000_0000
;;     v10 = iadd v8, v9  ; v9 = 0x0001_0000_0000
;;     v14 = icmp ugt v10, v13
;;     brif v14, block4, block5
;; block4 cold:
;;     call fn0()
;;     trap user2
;; block5:
;;     v15 = load.i64 notrap aligned region4 v11-4224
;;     v17 = iadd v15, v8
;;     v18 = iconst.i64 0xffff_ffff
;;     v19 = iadd v17, v18  ; v18 = 0xffff_ffff
;;     v20 = uload8.i32 user2 little region0 v19
;;     jump block1
;; block1:
;;     return v20
;; }
;; function u0:2(i32) tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = () tail
;;     fn0 = colocated u2:2 sig1
;; block0(v0: i32):
;;     v1 = get_pinned_reg.i64 
;;     v2 = load.i32 notrap aligned region4 v1-4268
;;     brif v2, block2, block3(v1)
;; block2 cold:
;;     v3 = load.i64 notrap aligned region4 v1-4288
;;     v4 = load.i64 notrap aligned region4 v3+48
;;     call_indirect sig0, v4()
;;     v5 = get_pinned_reg.i64 
;;     jump block3(v5)
;; block3(v10: i64):
;;     v11 = load.i64 notrap aligned region3 v10-80
;;     v7 = uextend.i64 v0
;;     v8 = iconst.i64 4
;;     v9 = iadd v7, v8  ; v8 = 4
;;     v12 = icmp ugt v9, v11
;;     brif v12, block4, block5
;; block4 cold:
;;     call fn0()
;;     trap user2
;; block5:
;;     v14 = iadd.i64 v10, v7
;;     v15 = load.i32 user2 little region0 v14
;;     jump block1
;; block1:
;;     return
;; }
;; function u0:3(i32, i32) tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = () tail
;;     fn0 = colocated u2:2 sig1
;; block0(v0: i32, v1: i32):
;;     v2 = get_pinned_reg.i64 
;;     v3 = load.i32 notrap aligned region4 v2-4268
;;     brif v3, block2, block3(v2)
;; block2 cold:
;;     v4 = load.i64 notrap aligned region4 v2-4288
;;     v5 = load.i64 notrap aligned region4 v4+48
;;     call_indirect sig0, v5()
;;     v6 = get_pinned_reg.i64 
;;     jump block3(v6)
;; block3(v13: i64):
;;     v14 = load.i64 notrap aligned region3 v13-80
;;     v10 = uextend.i64 v1
;;     v11 = iconst.i64 8
;;     v12 = iadd v10, v11  ; v11 = 8
;;     v15 = icmp ugt v12, v14
;;     brif v15, block4, block5
;; block4 cold:
;;     call fn0()
;;     trap user2
;; block5:
;;     v17 = iadd.i64 v13, v10
;;     v18 = load.i64 user2 little region0 v17
;;     v22 = load.i64 notrap aligned region3 v13-80
;;     v19 = uextend.i64 v0
;;     v26 = iconst.i64 8
;;     v27 = iadd v19, v26  ; v26 = 8
;;     v23 = icmp ugt v27, v22
;;     brif v23, block6, block7
;; block6 cold:
;;     call fn0()
;;     trap user2
;; block7:
;;     v25 = iadd.i64 v13, v19
;;     store.i64 user2 little region0 v18, v25
;;     jump block1
;; block1:
;;     return
;; }
;; function u0:4(i32, i32) tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = () tail
;;     fn0 = colocated u2:2 sig1
;; block0(v0: i32, v1: i32):
;;     v2 = get_pinned_reg.i64 
;;     v3 = load.i32 notrap aligned region4 v2-4268
;;     brif v3, block2, block3(v2)
;; block2 cold:
;;     v4 = load.i64 notrap aligned region4 v2-4288
;;     v5 = load.i64 notrap aligned region4 v4+48
;;     call_indirect sig0, v5()
;;     v6 = get_pinned_reg.i64 
;;     jump block3(v6)
;; block3(v13: i64):
;;     v14 = load.i64 notrap aligned region4 v13-4216
;;     v15 = load.i64 notrap aligned region3 v14
;;     v10 = uextend.i64 v0
;;     v11 = iconst.i64 3
;;     v12 = iadd v10, v11  ; v11 = 3
;;     v16 = icmp ugt v12, v15
;;     brif v16, block4, block5
;; block4 cold:
;;     call fn0()
;;     trap user2
;; block5:
;;     v17 = load.i64 notrap aligned region4 v13-4224
;;     v20 = ireduce.i8 v1
;;     v21 = uextend.i16 v20
;;     v22 = iconst.i16 257
;;     v23 = imul v21, v22  ; v22 = 257
;;     v19 = iadd v17, v10
;;     store user2 little region0 v23, v19+1
;;     store user2 little region0 v23, v19
;;     jump block1
;; block1:
;;     return
;; }
