/* C functions of every type of number as functions of the host: their signatures, and imports of other types. */

#include "check.h"
#include "pagefork.h"

#define OK(call) RETURNS(call)
#define FAILS(call, text) TRAPS((call), (text))

static double add(const pagefork_caller_t *caller, int32_t a, int64_t b) {
  (void)caller;
  return (double)(a + b);
}

static void nothing(const pagefork_caller_t *caller) { (void)caller; }

/* As many parameters as can be. */
static uint64_t most(const pagefork_caller_t *caller, int32_t a, uint32_t b, int64_t c, uint64_t d,
                     int32_t e, float f, double g, float h, float i, float j, double k, double l,
                     double m) {
  (void)caller;
  double sum = f + g + h + i + j + k + l + m;
  return (uint64_t)a + b + (uint64_t)c + d + (uint64_t)e + (uint64_t)sum;
}

static void signatures(void) {
  CHECK(strcmp(PAGEFORK_SIGNATURE(void), ":") == 0);
  CHECK(strcmp(PAGEFORK_SIGNATURE(float, double), "F:f") == 0);
  CHECK(strcmp(PAGEFORK_SIGNATURE(uint32_t, int32_t, uint32_t, int64_t, uint64_t), "iiII:i") == 0);
  const struct {
    const char *signature;
    pagefork_function_t function;
  } all[] = {
      {PAGEFORK_WRAP(add, double, int32_t, int64_t)},
      {PAGEFORK_WRAP(nothing, void)},
      {PAGEFORK_WRAP(most, uint64_t, int32_t, uint32_t, int64_t, uint64_t, int32_t, float, double,
                     float, float, float, double, double, double)},
  };
  CHECK(strcmp(all[0].signature, "iI:F") == 0 && all[0].function == (pagefork_function_t)add);
  CHECK(strcmp(all[1].signature, ":") == 0 && all[1].function == (pagefork_function_t)nothing);
  CHECK(strcmp(all[2].signature, "iiIIifFfffFFF:I") == 0);
  CHECK(all[2].function == (pagefork_function_t)most);
}

/* A module that imports a function of this type. */
static wasm_module_t *importing(wasm_engine_t *engine, const char *type) {
  char text[300];
  int length = snprintf(text, sizeof text, "(module (import \"host\" \"f\" (func %s)))", type);
  wasm_module_t *module;
  OK(pagefork_module_new(engine, text, (size_t)length, &module));
  return module;
}

static void other_types(wasm_engine_t *engine) {
  static const char *const refused[] = {
      "",
      "(param i32 i64)",
      "(param i32) (result f64)",
      "(param i32 i32) (result f64)",
      "(param i64 i32) (result f64)",
      "(param i32 i64 i32) (result f64)",
      "(param i32 i64) (result f32)",
      "(param i32 i64) (result i64)",
      "(param i32 i64) (result f64 f64)",
  };
  pagefork_linker_t *linker;
  OK(pagefork_linker_new(engine, &linker));
  OK(pagefork_linker_func_wrap(linker, "host", "f", PAGEFORK_WRAP(add, double, int32_t, int64_t),
                               NULL, NULL));
  wasm_store_t *store = wasm_store_new(engine);
  wasm_func_t *func;
  OK(pagefork_func_wrap(store, PAGEFORK_WRAP(add, double, int32_t, int64_t), NULL, NULL, &func));
  wasm_extern_t *imported[] = {wasm_func_as_extern(func)};
  wasm_extern_vec_t imports = WASM_ARRAY_VEC(imported);
  wasm_instance_t *instance;
  pagefork_instance_pre_t *pre;
  wasm_trap_t *trap;
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    wasm_module_t *module = importing(engine, refused[i]);
    pagefork_error_t *error = pagefork_linker_instantiate(linker, store, module, &instance);
    CHECK(!instance && pagefork_error_kind(error) == PAGEFORK_ERROR_LINK);
    FAILS(error, "host");
    error = pagefork_linker_instantiate_pre(linker, module, &pre);
    CHECK(!pre && pagefork_error_kind(error) == PAGEFORK_ERROR_LINK);
    FAILS(error, "host");
    CHECK(!wasm_instance_new(store, module, &imports, &trap));
    CHECK(pagefork_error_kind(trap) == PAGEFORK_ERROR_LINK);
    FAILS(trap, "type");
    wasm_module_delete(module);
  }
  wasm_module_t *module = importing(engine, "(param i32 i64) (result f64)");
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  wasm_instance_delete(instance);
  OK(pagefork_linker_instantiate_pre(linker, module, &pre));
  pagefork_instance_pre_delete(pre);
  instance = wasm_instance_new(store, module, &imports, &trap);
  CHECK(instance && !trap);
  wasm_instance_delete(instance);
  wasm_module_delete(module);
  wasm_func_delete(func);
  wasm_store_delete(store);
  pagefork_linker_delete(linker);
}

/* Every argument and the result, of the largest type. */
static void most_arguments(wasm_engine_t *engine) {
  wasm_store_t *store = wasm_store_new(engine);
  wasm_func_t *func;
  pagefork_typed_func_t *typed;
  OK(pagefork_func_wrap(store,
                        PAGEFORK_WRAP(most, uint64_t, int32_t, uint32_t, int64_t, uint64_t, int32_t,
                                      float, double, float, float, float, double, double, double),
                        NULL, NULL, &func));
  OK(pagefork_func_typed(func,
                         PAGEFORK_SIGNATURE(uint64_t, int32_t, uint32_t, int64_t, uint64_t, int32_t,
                                            float, double, float, float, float, double, double,
                                            double),
                         &typed));
  CHECK(PAGEFORK_CALL(typed, uint64_t,
                      (pagefork_typed_func_t *, int32_t, uint32_t, int64_t, uint64_t, int32_t, float,
                       double, float, float, float, double, double, double),
                      typed, -1, UINT32_MAX, -1, UINT64_MAX, 7, 1, 2, 3, 4, 5, 6, 7, 8) ==
        (uint64_t)UINT32_MAX + 4 + 36);
  pagefork_typed_func_delete(typed);
  wasm_func_delete(func);
  wasm_store_delete(store);
}

int main(void) {
  wasm_engine_t *engine;
  OK(pagefork_engine_new(NULL, &engine));
  signatures();
  other_types(engine);
  most_arguments(engine);
  wasm_engine_delete(engine);
  puts("ok");
  return 0;
}
