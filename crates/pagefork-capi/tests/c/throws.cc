// A function of the host that breaks its word, and throws: the process ends there, and who has called the guest
// gets no exception.

#include <stdexcept>

#include "check.h"
#include "pagefork.h"

static int32_t throws(const pagefork_caller_t *, int32_t) { throw std::runtime_error("thrown"); }

int main() {
  static const char text[] =
      "(module (import \"host\" \"f\" (func $f (param i32) (result i32)))"
      "  (func (export \"run\") (param i32) (result i32) (call $f (local.get 0))))";
  wasm_engine_t *engine;
  wasm_module_t *module;
  pagefork_linker_t *linker;
  wasm_instance_t *instance;
  wasm_extern_t *run;
  pagefork_typed_func_t *typed;
  RETURNS(pagefork_engine_new(nullptr, &engine));
  wasm_store_t *store = wasm_store_new(engine);
  RETURNS(pagefork_module_new(engine, text, sizeof text - 1, &module));
  RETURNS(pagefork_linker_new(engine, &linker));
  RETURNS(pagefork_linker_func_wrap(linker, "host", "f", PAGEFORK_WRAP(throws, int32_t, int32_t),
                                    nullptr, nullptr));
  RETURNS(pagefork_linker_instantiate(linker, store, module, &instance));
  RETURNS(pagefork_instance_export(instance, "run", &run));
  RETURNS(pagefork_func_typed(wasm_extern_as_func(run), "i:i", &typed));
  try {
    PAGEFORK_CALL(typed, int32_t, (pagefork_typed_func_t *, int32_t), typed, 1);
  } catch (...) {
    puts("caught");
    return 0;
  }
  puts("returned");
  return 0;
}
