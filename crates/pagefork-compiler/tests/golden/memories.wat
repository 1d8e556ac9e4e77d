;; A further memory lies at a constant distance above the base, an imported one at
;; an address from the link record; neither is checked.
(module
  (import "host" "memory" (memory 1))
  (memory 1)
  (memory 1)
  (func (param i32) (result i32) (i32.load 1 offset=8 (local.get 0)))
  (func (param i32) (result i32) (i32.load 2 offset=8 (local.get 0)))
  (func (param i32) (result i32) (i32.load 0 offset=8 (local.get 0))))
;; optimised IR:
;; function u0:0(i32) -> i32 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
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
;; block3(v8: i64):
;;     v9 = uextend.i64 v0
;;     v10 = iadd v8, v9
;;     v11 = load.i32 user2 little region0 v10+8
;;     jump block1
;; block1:
;;     return v11
;; }
;; function u0:1(i32) -> i32 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
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
;; block3(v8: i64):
;;     v9 = iconst.i64 0x0002_000e_e000
;;     v10 = iadd v8, v9  ; v9 = 0x0002_000e_e000
;;     v11 = uextend.i64 v0
;;     v12 = iadd v10, v11
;;     v13 = load.i32 user2 little region0 v12+8
;;     jump block1
;; block1:
;;     return v13
;; }
;; function u0:2(i32) -> i32 tail {
;;     region0 = 0 "Memory"
;;     region1 = 1 "Table"
;;     region2 = 2 "Global"
;;     region3 = 3 "State"
;;     region4 = 4 "Link"
;;     sig0 = () preserve_all
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
;; block3(v8: i64):
;;     v9 = load.i64 notrap aligned region4 v8-4224
;;     v10 = uextend.i64 v0
;;     v11 = iadd v9, v10
;;     v12 = load.i32 user2 little region0 v11+8
;;     jump block1
;; block1:
;;     return v12
;; }
