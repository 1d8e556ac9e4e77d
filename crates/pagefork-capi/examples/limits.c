/* Limits and timeouts: a guest that takes too much memory or time is stopped, and can be used again. */

#include "example.h"

static const char text[] =
    "(module (memory 1)"
    "  (func (export \"grow\") (param i32) (result i32) (memory.grow (local.get 0)))"
    "  (func (export \"spin\") (loop (br 0))))";

int main(void) {
  wasm_engine_t *engine;
  wasm_module_t *module;
  wasm_instance_t *instance;
  pagefork_linker_t *linker;
  check(pagefork_engine_new(NULL, &engine));
  check(pagefork_module_new(engine, text, sizeof text - 1, &module));
  check(pagefork_linker_new(engine, &linker));
  wasm_store_t *store = wasm_store_new(engine);
  pagefork_limits_t limits = {.memory_size = 10 << 16};
  check(pagefork_store_set_limits(store, &limits));
  check(pagefork_store_set_timeout(store, 10 * 1000 * 1000));
  check(pagefork_linker_instantiate(linker, store, module, &instance));

  pagefork_typed_func_t *grow = typed_export(instance, "grow", "i:i");
  pagefork_typed_func_t *spin = typed_export(instance, "spin", "");
#define GROW(pages) PAGEFORK_CALL(grow, int32_t, (pagefork_typed_func_t *, int32_t), grow, pages)
  printf("growing by 9 pages: %d\n", GROW(9));
  printf("by another: %d\n", GROW(1));
  PAGEFORK_CALL(spin, void, (pagefork_typed_func_t *), spin);
  print_error("an endless loop", spin->error);
  spin->error = NULL;
  printf("still there: %d pages\n", GROW(0));

  pagefork_typed_func_delete(grow);
  pagefork_typed_func_delete(spin);
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  pagefork_linker_delete(linker);
  wasm_module_delete(module);
  wasm_engine_delete(engine);
  return 0;
}
