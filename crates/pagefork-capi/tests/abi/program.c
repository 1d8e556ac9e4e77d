/* A program as one that was built with the first library of this interface: by the headers that are kept, and
 * against a library in which nothing is but names. It runs with the library that there is now. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pagefork.h"

/* Every function that the interface has, so that none can be missing when the program starts. */
static void (*const all[])(void) = {
#include "functions.h"
};

#define CHECK(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                 \
      exit(1);                                                                                  \
    }                                                                                           \
  } while (0)

static void ok(pagefork_error_t *error) {
  if (!error) return;
  wasm_byte_vec_t message;
  wasm_trap_message(error, &message);
  fprintf(stderr, "%s\n", message.data);
  exit(1);
}

static const char text[] =
    "(module (import \"host\" \"half\" (func $half (param i32) (result f64)))"
    "  (import \"host\" \"swap\" (func $swap (param i32 i64) (result i64 i32)))"
    "  (memory (export \"memory\") 1)"
    "  (func (export \"half\") (param i32) (result f64)"
    "    (i32.store (i32.const 8) (local.get 0)) (call $half (local.get 0)))"
    "  (func (export \"swap\") (param i32 i64) (result i64 i32)"
    "    (call $swap (local.get 0) (local.get 1)))"
    "  (func (export \"grow\") (result i32) (memory.grow (i32.const 1)))"
    "  (func (export \"trap\") unreachable))";

static double half(const pagefork_caller_t *caller, int32_t number) {
  ++*(int *)caller->env;
  CHECK(caller->store);
  return number / 2.0;
}

static pagefork_error_t *swap(const pagefork_caller_t *caller, const pagefork_val_t *args,
                              size_t arg_count, pagefork_val_t *results, size_t result_count) {
  (void)caller;
  CHECK(arg_count == 2 && result_count == 2);
  CHECK(args[0].kind == WASM_I32 && args[1].kind == WASM_I64 && results[0].kind == WASM_I64);
  results[0].of.i64 = args[1].of.i64;
  results[1].of.i32 = args[0].of.i32;
  return NULL;
}

static void finalize(void *env) { *(int *)env += 100; }

static wasm_functype_t *swap_type(void) {
  wasm_valtype_t *in[] = {wasm_valtype_new(WASM_I32), wasm_valtype_new(WASM_I64)};
  wasm_valtype_t *out[] = {wasm_valtype_new(WASM_I64), wasm_valtype_new(WASM_I32)};
  wasm_valtype_vec_t params, results;
  wasm_valtype_vec_new(&params, 2, in);
  wasm_valtype_vec_new(&results, 2, out);
  return wasm_functype_new(&params, &results);
}

int main(void) {
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) CHECK(all[i]);
  int calls = 0;
  wasm_config_t *config = wasm_config_new();
  pagefork_strategies_t strategies = {.reset = PAGEFORK_RESET_SCAN, .clear_stack = true};
  ok(pagefork_config_strategies(config, &strategies));
  pagefork_pool_t pool = {.kept_max = 2};
  ok(pagefork_config_pool(config, &pool));
  wasm_engine_t *engine;
  wasm_module_t *module;
  pagefork_linker_t *linker;
  pagefork_instance_pre_t *pre;
  ok(pagefork_engine_new(config, &engine));
  ok(pagefork_module_new(engine, text, sizeof text - 1, &module));
  ok(pagefork_linker_new(engine, &linker));
  ok(pagefork_linker_func_wrap(linker, "host", "half", "i:F", (pagefork_function_t)half, &calls,
                               finalize));
  wasm_functype_t *type = swap_type();
  ok(pagefork_linker_func(linker, "host", "swap", type, swap, NULL, NULL));
  wasm_functype_delete(type);
  ok(pagefork_linker_instantiate_pre(linker, module, &pre));

  /* Structures are as large as they were, and what is in them lies where it did. */
  pagefork_limits_t limits = {.memory_size = 1 << 16, .instances = 1};
  pagefork_spawn_t how = {.tenant = 7, .limits = &limits};
  wasm_store_t *store;
  wasm_instance_t *instance;
  ok(pagefork_instance_pre_spawn(pre, &how, &store, &instance));
  wasm_exporttype_vec_t names;
  wasm_extern_vec_t exports;
  wasm_module_exports(module, &names);
  wasm_instance_exports(instance, &exports);
  CHECK(names.size == 5 && exports.size == 5);
  const wasm_name_t *name = wasm_exporttype_name(names.data[1]);
  CHECK(name->size == 4 && memcmp(name->data, "half", 4) == 0);
  CHECK(wasm_extern_kind(exports.data[0]) == WASM_EXTERN_MEMORY);

  pagefork_typed_func_t *typed;
  ok(pagefork_func_typed(wasm_extern_as_func(exports.data[1]), "i:F", &typed));
  CHECK(((double (*)(pagefork_typed_func_t *, int32_t))typed->call)(typed, 9) == 4.5);
  CHECK(!typed->error && calls == 1);
  pagefork_typed_func_delete(typed);
  CHECK(wasm_memory_data(wasm_extern_as_memory(exports.data[0]))[8] == 9);
  CHECK(wasm_memory_data_size(wasm_extern_as_memory(exports.data[0])) == 65536);

  wasm_val_t args[] = {{WASM_I32, {.i32 = 3}}, {WASM_I64, {.i64 = INT64_C(5) << 40}}}, results[2];
  wasm_val_vec_t in = {2, args}, out = {2, results};
  ok(wasm_func_call(wasm_extern_as_func(exports.data[2]), &in, &out));
  CHECK(results[0].kind == WASM_I64 && results[0].of.i64 == INT64_C(5) << 40);
  CHECK(results[1].kind == WASM_I32 && results[1].of.i32 == 3);
  pagefork_cell_t cells[2] = {{.i32 = 3}, {.i64 = 4}};
  ok(pagefork_func_call_raw(wasm_extern_as_func(exports.data[2]), cells, 2));
  CHECK(cells[0].i64 == 4 && cells[1].i32 == 3);
  pagefork_val_t grown;
  ok(pagefork_func_call(wasm_extern_as_func(exports.data[3]), NULL, 0, &grown, 1));
  CHECK(grown.kind == WASM_I32 && grown.of.i32 == -1);
  pagefork_error_t *error = pagefork_func_call(wasm_extern_as_func(exports.data[4]), NULL, 0, NULL, 0);
  CHECK(pagefork_error_kind(error) == PAGEFORK_ERROR_TRAP);
  CHECK(pagefork_error_trap_code(error) == PAGEFORK_TRAP_UNREACHABLE);
  wasm_trap_delete(error);

  ok(pagefork_store_reset(store, NULL));
  CHECK(wasm_memory_data(wasm_extern_as_memory(exports.data[0]))[8] == 0);
  wasm_exporttype_vec_delete(&names);
  wasm_extern_vec_delete(&exports);
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  pagefork_instance_pre_delete(pre);
  pagefork_linker_delete(linker);
  wasm_module_delete(module);
  wasm_engine_delete(engine);
  CHECK(calls == 101);
  puts("ok");
  return 0;
}
