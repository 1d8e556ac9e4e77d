/* Untrusted plugins in one store: it is reset between them, and nothing of one is left to the next. */

#include "example.h"

static const char text[] =
    "(module (memory (export \"memory\") 1)"
    "  (func (export \"keep\") (param i32) (i32.store (i32.const 0) (local.get 0)))"
    "  (func (export \"find\") (result i32) (i32.load (i32.const 0))))";

int main(void) {
  wasm_engine_t *engine;
  wasm_module_t *module;
  wasm_instance_t *instance;
  pagefork_linker_t *linker;
  wasm_config_t *config = wasm_config_new();
  pagefork_strategies_t strategies = {.reset = PAGEFORK_RESET_AUTO, .clear_stack = true};
  check(pagefork_config_strategies(config, &strategies));
  check(pagefork_engine_new(config, &engine));
  check(pagefork_module_new(engine, text, sizeof text - 1, &module));
  check(pagefork_linker_new(engine, &linker));
  wasm_store_t *store = wasm_store_new(engine);
  check(pagefork_linker_instantiate(linker, store, module, &instance));

  /* Objects stay good when the store is reset. */
  pagefork_typed_func_t *keep = typed_export(instance, "keep", "i");
  pagefork_typed_func_t *find = typed_export(instance, "find", ":i");
  for (int32_t plugin = 1; plugin <= 3; plugin++) {
    printf("plugin %d finds %d\n", plugin,
           PAGEFORK_CALL(find, int32_t, (pagefork_typed_func_t *), find));
    PAGEFORK_CALL(keep, void, (pagefork_typed_func_t *, int32_t), keep, 1000 + plugin);
    check(find->error);
    check(keep->error);
    check(pagefork_store_reset(store, NULL));
  }

  pagefork_typed_func_delete(keep);
  pagefork_typed_func_delete(find);
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  pagefork_linker_delete(linker);
  wasm_module_delete(module);
  wasm_engine_delete(engine);
  return 0;
}
