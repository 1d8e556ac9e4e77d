/* A C function that guests call directly: it reads the caller's memory, and can fail. */

#include "example.h"

static const char text[] =
    "(module (import \"host\" \"print\" (func $print (param i32 i32)))"
    "  (memory (export \"memory\") 1)"
    "  (data (i32.const 8) \"hello from the guest\")"
    "  (func (export \"run\") (param i32) (call $print (i32.const 8) (local.get 0))))";

static void print(const pagefork_caller_t *caller, int32_t at, int32_t length) {
  wasm_extern_t *external;
  check(pagefork_caller_export(caller, "memory", &external));
  wasm_memory_t *memory = wasm_extern_as_memory(external);
  size_t size = wasm_memory_data_size(memory);
  if ((uint32_t)at > size || (uint32_t)length > size - (uint32_t)at) {
    wasm_message_t message;
    wasm_name_new_from_string_nt(&message, "the text is not in memory");
    pagefork_raise(caller, wasm_trap_new(caller->store, &message));
    wasm_byte_vec_delete(&message);
  } else {
    printf("%s%.*s\n", (const char *)caller->env, (int)length, wasm_memory_data(memory) + at);
  }
  wasm_extern_delete(external);
}

int main(void) {
  wasm_engine_t *engine;
  wasm_module_t *module;
  wasm_instance_t *instance;
  pagefork_linker_t *linker;
  check(pagefork_engine_new(NULL, &engine));
  check(pagefork_module_new(engine, text, sizeof text - 1, &module));
  check(pagefork_linker_new(engine, &linker));
  check(pagefork_linker_func_wrap(linker, "host", "print",
                                  PAGEFORK_WRAP(print, void, int32_t, int32_t), (void *)"guest: ", NULL));
  wasm_store_t *store = wasm_store_new(engine);
  check(pagefork_linker_instantiate(linker, store, module, &instance));

  pagefork_typed_func_t *run = typed_export(instance, "run", "i");
  PAGEFORK_CALL(run, void, (pagefork_typed_func_t *, int32_t), run, 20);
  check(run->error);
  PAGEFORK_CALL(run, void, (pagefork_typed_func_t *, int32_t), run, -1);
  print_error("the second call", run->error);
  run->error = NULL;

  pagefork_typed_func_delete(run);
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  pagefork_linker_delete(linker);
  wasm_module_delete(module);
  wasm_engine_delete(engine);
  return 0;
}
