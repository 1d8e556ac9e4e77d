/* A module, an instance, and a call whose type is checked once. */

#include "example.h"

static const char text[] =
    "(module (func (export \"add\") (param i32 i32) (result i32)"
    "  (i32.add (local.get 0) (local.get 1))))";

int main(void) {
  wasm_engine_t *engine;
  wasm_module_t *module;
  wasm_instance_t *instance;
  pagefork_linker_t *linker;
  check(pagefork_engine_new(NULL, &engine));
  check(pagefork_module_new(engine, text, sizeof text - 1, &module));
  check(pagefork_linker_new(engine, &linker));
  wasm_store_t *store = wasm_store_new(engine);
  check(pagefork_linker_instantiate(linker, store, module, &instance));

  pagefork_typed_func_t *add = typed_export(instance, "add", "ii:i");
  int32_t sum = PAGEFORK_CALL(add, int32_t, (pagefork_typed_func_t *, int32_t, int32_t), add, 2, 3);
  check(add->error);
  printf("2 + 3 = %d\n", sum);

  pagefork_typed_func_delete(add);
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  pagefork_linker_delete(linker);
  wasm_module_delete(module);
  wasm_engine_delete(engine);
  return 0;
}
