;; Every access of a 64-bit memory is compared with the size, in the state zone or
;; through the link record: its end, and whether that has wrapped around. A
;; mispredicted comparison reads the start of the memory. An access that no memory
;; can have traps at once.
(module
  (import "host" "memory" (memory i64 1))
  (memory i64 1)
  (func (param i64) (result i64) (i64.load 1 offset=8 (local.get 0)))
  (func (param i64) (result i32) (i32.load8_u 0 offset=0xfffffffffffffffe (local.get 0)))
  (func (param i64) (result i32) (i32.load 1 offset=0xfffffffffffffffe (local.get 0)))
  (func (param i64) (result i64) (memory.grow 1 (local.get 0)) (memory.size 1) (i64.add)))
;; optimised IR:
;; function u0:0(i64) -> i64 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = () tail
;;     fn0 = colocated u2:2 sig1
;; block0(v0: i64):
;;     v1 = get_pinned_reg.i64 
;;     v3 = load.i32 notrap aligned region4 v1-4268
;;     brif v3, block2, block3(v1)
;; block2 cold:
;;     v4 = load.i64 notrap aligned region4 v1-4288
;;     v5 = load.i64 notrap aligned region4 v4+48
;;     call_indirect sig0, v5()
;;     v6 = get_pinned_reg.i64 
;;     jump block3(v6)
;; block3(v8: i64):
;;     v9 = load.i64 notrap aligned region3 v8-80
;;     v10 = iconst.i64 16
;;     v11 = iadd.i64 v0, v10  ; v10 = 16
;;     v12 = icmp ult v11, v0
;;     v13 = icmp ugt v11, v9
;;     v14 = bor v12, v13
;;     brif v14, block4, block5
;; block4 cold:
;;     call fn0()
;;     trap user2
;; block5:
;;     v15 = iconst.i64 8
;;     v16 = iadd.i64 v0, v15  ; v15 = 8
;;     v17 = iadd.i64 v8, v16
;;     v18 = select_spectre_guard.i64 v14, v8, v17
;;     v19 = load.i64 user2 little region0 v18
;;     jump block1
;; block1:
;;     return v19
;; }
;; function u0:1(i64) -> i32 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = () tail
;;     fn0 = colocated u2:2 sig1
;; block0(v0: i64):
;;     v1 = get_pinned_reg.i64 
;;     v3 = load.i32 notrap aligned region4 v1-4268
;;     brif v3, block2, block3(v1)
;; block2 cold:
;;     v4 = load.i64 notrap aligned region4 v1-4288
;;     v5 = load.i64 notrap aligned region4 v4+48
;;     call_indirect sig0, v5()
;;     v6 = get_pinned_reg.i64 
;;     jump block3(v6)
;; block3(v8: i64):
;;     v9 = load.i64 notrap aligned region4 v8-4216
;;     v10 = load.i64 notrap aligned region3 v9
;;     v11 = iconst.i64 -1
;;     v12 = iadd.i64 v0, v11  ; v11 = -1
;;     v13 = icmp ult v12, v0
;;     v14 = icmp ugt v12, v10
;;     v15 = bor v13, v14
;;     brif v15, block4, block5
;; block4 cold:
;;     call fn0()
;;     trap user2
;; block5:
;;     v16 = load.i64 notrap aligned region4 v8-4224
;;     v17 = iconst.i64 -2
;;     v18 = iadd.i64 v0, v17  ; v17 = -2
;;     v19 = iadd v16, v18
;;     v20 = select_spectre_guard v15, v16, v19
;;     v21 = uload8.i32 user2 little region0 v20
;;     jump block1
;; block1:
;;     return v21
;; }
;; function u0:2(i64) -> i32 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = () tail
;;     fn0 = colocated u2:2 sig1
;; block0(v0: i64):
;;     v1 = get_pinned_reg.i64 
;;     v3 = load.i32 notrap aligned region4 v1-4268
;;     brif v3, block2, block3(v1)
;; block2 cold:
;;     v4 = load.i64 notrap aligned region4 v1-4288
;;     v5 = load.i64 notrap aligned region4 v4+48
;;     call_indirect sig0, v5()
;;     v6 = get_pinned_reg.i64 
;;     jump block3(v6)
;; block3(v8: i64):
;;     v9 = load.i64 notrap aligned region3 v8-80
;;     jump block4
;; block4 cold:
;;     call fn0()
;;     trap user2
;; }
;; function u0:3(i64) -> i64 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
;;     sig1 = (i64, i64) system_v
;; block0(v0: i64):
;;     v1 = get_pinned_reg.i64 
;;     v3 = load.i32 notrap aligned region4 v1-4268
;;     brif v3, block2, block3(v1)
;; block2 cold:
;;     v4 = load.i64 notrap aligned region4 v1-4288
;;     v5 = load.i64 notrap aligned region4 v4+48
;;     call_indirect sig0, v5()
;;     v6 = get_pinned_reg.i64 
;;     jump block3(v6)
;; block3(v9: i64):
;;     v8 = iconst.i64 1
;;     store notrap aligned region3 v8, v9-4208  ; v8 = 1
;;     store.i64 notrap aligned region3 v0, v9-4192
;;     v11 = load.i64 notrap aligned region4 v9-4288
;;     v12 = load.i64 notrap aligned region4 v11+40
;;     v10 = iconst.i64 0x8000_0000
;;     v13 = iconst.i64 -4208
;;     v14 = iadd v9, v13  ; v13 = -4208
;;     call_indirect sig1, v12(v10, v14)  ; v10 = 0x8000_0000
;;     v15 = get_pinned_reg.i64 
;;     v16 = load.i64 notrap aligned region3 v15-4208
;;     v17 = load.i64 notrap aligned region3 v15-80
;;     jump block1
;; block1:
;;     v18 = iconst.i64 16
;;     v19 = ushr.i64 v17, v18  ; v18 = 16
;;     v20 = iadd.i64 v16, v19
;;     return v20
;; }
