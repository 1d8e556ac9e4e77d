;; Never ends by itself: pagefork run --timeout 500ms guest/wat/spin.wat
(module
  (memory (export "memory") 1)
  (func (export "_start") (loop $forever (br $forever))))
