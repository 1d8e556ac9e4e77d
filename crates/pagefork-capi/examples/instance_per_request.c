/* A fresh instance for each request, in the pages of the one before. */

#include "example.h"

static const char text[] =
    "(module (global $seen (mut i32) (i32.const 0))"
    "  (func (export \"handle\") (param i32) (result i32)"
    "    (global.set $seen (i32.add (global.get $seen) (i32.const 1)))"
    "    (i32.add (i32.mul (local.get 0) (i32.const 10)) (global.get $seen))))";

int main(void) {
  wasm_engine_t *engine;
  wasm_module_t *module;
  pagefork_linker_t *linker;
  pagefork_instance_pre_t *pre;
  check(pagefork_engine_new(NULL, &engine));
  check(pagefork_module_new(engine, text, sizeof text - 1, &module));
  check(pagefork_linker_new(engine, &linker));
  check(pagefork_linker_instantiate_pre(linker, module, &pre));
  /* Found once, and its type checked once: nothing is looked up for a request. */
  pagefork_export_t *export;
  check(pagefork_module_export(module, "handle", "i:i", &export));

  int32_t sum = 0;
  for (int32_t request = 0; request < 1000; request++) {
    wasm_store_t *store;
    wasm_instance_t *instance;
    pagefork_spawn_t how = {.tenant = (uint64_t)request % 10};
    check(pagefork_instance_pre_spawn(pre, &how, &store, &instance));
    pagefork_typed_func_t *handle;
    check(pagefork_instance_typed_export(instance, export, &handle));
    sum += PAGEFORK_CALL(handle, int32_t, (pagefork_typed_func_t *, int32_t), handle, request);
    check(handle->error);
    pagefork_typed_func_delete(handle);
    wasm_instance_delete(instance);
    /* The last object of the store: its pages go to the next request. */
    wasm_store_delete(store);
  }
  /* Each instance has seen one request. */
  printf("sum of the answers: %d\n", sum);

  pagefork_export_delete(export);
  pagefork_instance_pre_delete(pre);
  pagefork_linker_delete(linker);
  wasm_module_delete(module);
  wasm_engine_delete(engine);
  return 0;
}
