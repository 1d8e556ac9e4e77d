/* pagefork.h: functions in each form, linkers, spawning, resetting, limits, times and exceptions. */

#include "check.h"
#include "pagefork.h"

#define OK(call) RETURNS(call)
#define FAILS(call, text) TRAPS((call), (text))

static int finalized;

static void finalize(void *data) {
  CHECK(data == &finalized);
  finalized++;
}

/* Functions with their own arguments. */

static double add(const pagefork_caller_t *caller, int32_t a, int64_t b) {
  CHECK(caller->env == &finalized && caller->store);
  if (a == -1) {
    wasm_message_t message;
    wasm_name_new_from_string_nt(&message, "minus one");
    pagefork_raise(caller, wasm_trap_new(caller->store, &message));
    wasm_name_delete(&message);
  }
  return (double)a + (double)b;
}

static int64_t many(const pagefork_caller_t *caller, int32_t a, int64_t b, int32_t c, int64_t d,
                    int32_t e, float f, double g, float h, double i, float j, double k, float l,
                    double m) {
  (void)caller;
  return a + 10 * b + 100 * c + 1000 * d + 10000 * e + (int64_t)(f + g + h + i + j + k + l + m);
}

static float half(const pagefork_caller_t *caller, float value) {
  (void)caller;
  return value / 2;
}

static pagefork_error_t *thrown;

/* Reads a text out of its caller's memory, throws where the length is -1, or fails. */
static void log_text(const pagefork_caller_t *caller, int32_t at, int32_t length) {
  if (length == -1 && at == 1) {
    pagefork_raise(caller, wasm_trap_copy(thrown));
  } else if (length == -1) {
    pagefork_raise(caller, wasm_trap_new(caller->store, NULL));
  } else {
    wasm_extern_t *memory, *nothing;
    OK(pagefork_caller_export(caller, "memory", &memory));
    const char *data = wasm_memory_data(wasm_extern_as_memory(memory));
    CHECK(memcmp(data + at, "hello", (size_t)length) == 0);
    wasm_extern_delete(memory);
    FAILS(pagefork_caller_export(caller, "no such", &nothing), "no such");
    CHECK(!nothing);
    char *written = (char *)pagefork_store_data(caller->store);
    if (written) memcpy(written, data + at, (size_t)length);
  }
}

/* With values, and with cells. */

static pagefork_error_t *vector(const pagefork_caller_t *caller, const pagefork_val_t *args,
                                size_t arg_count, pagefork_val_t *results, size_t result_count) {
  CHECK(caller->env == &finalized && arg_count == 1 && result_count == 1);
  CHECK(args[0].kind == PAGEFORK_V128 && results[0].kind == PAGEFORK_V128);
  results[0].of.v128[0] = args[0].of.v128[1];
  results[0].of.v128[1] = args[0].of.v128[0];
  return NULL;
}

static pagefork_error_t *raw(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  CHECK(caller->env == &finalized);
  int32_t first = cells[0].i32;
  if (first == -1) return wasm_trap_new(caller->store, NULL);
  cells[0].i64 = cells[1].i64;
  cells[1].i32 = first;
  return NULL;
}

/* Each argument is a digit of the result, which is of another kind if the last one is negative. */
static pagefork_error_t *digits(const pagefork_caller_t *caller, const pagefork_val_t *args,
                                size_t arg_count, pagefork_val_t *results, size_t result_count) {
  (void)caller;
  CHECK(arg_count == 4 && result_count == 1);
  CHECK(args[0].kind == WASM_F32 && args[1].kind == WASM_I64);
  CHECK(args[2].kind == WASM_F64 && args[3].kind == WASM_I32);
  CHECK(results[0].kind == WASM_F64 && results[0].of.f64 == 0);
  if (args[3].of.i32 < 0) results[0].kind = WASM_F32;
  results[0].of.f64 = args[0].of.f32 * 1000 + (double)args[1].of.i64 * 100 + args[2].of.f64 * 10 +
                      args[3].of.i32;
  return NULL;
}

/* The same with values of wasm.h. */
static wasm_trap_t *standard_digits(const wasm_val_vec_t *args, wasm_val_vec_t *results) {
  CHECK(args->size == 4 && results->size == 1);
  const wasm_val_t *arg = args->data;
  CHECK(arg[0].kind == WASM_F32 && arg[1].kind == WASM_I64);
  CHECK(arg[2].kind == WASM_F64 && arg[3].kind == WASM_I32);
  CHECK(results->data[0].kind == WASM_F64 && results->data[0].of.f64 == 0);
  if (arg[3].of.i32 < 0) results->data[0].kind = WASM_F32;
  results->data[0].of.f64 =
      arg[0].of.f32 * 1000 + (double)arg[1].of.i64 * 100 + arg[2].of.f64 * 10 + arg[3].of.i32;
  return NULL;
}

static wasm_valtype_vec_t types_of(size_t count, const wasm_valkind_t *kinds) {
  wasm_valtype_vec_t types;
  wasm_valtype_vec_new_uninitialized(&types, count);
  for (size_t i = 0; i < count; i++) types.data[i] = wasm_valtype_new(kinds[i]);
  return types;
}

static wasm_functype_t *type_of(size_t params, const wasm_valkind_t *in, size_t results,
                                const wasm_valkind_t *out) {
  wasm_valtype_vec_t a = types_of(params, in), b = types_of(results, out);
  return wasm_functype_new(&a, &b);
}

static const wasm_valkind_t v128s[] = {PAGEFORK_V128}, i32_i64[] = {WASM_I32, WASM_I64},
                            i64_i32[] = {WASM_I64, WASM_I32};

static pagefork_linker_t *new_linker(wasm_engine_t *engine) {
  pagefork_linker_t *linker;
  OK(pagefork_linker_new(engine, &linker));
  OK(pagefork_linker_func_wrap(linker, "host", "add", PAGEFORK_WRAP(add, double, int32_t, int64_t),
                               &finalized, finalize));
  OK(pagefork_linker_func_wrap(linker, "host", "many",
                               PAGEFORK_WRAP(many, int64_t, int32_t, int64_t, int32_t, int64_t,
                                             int32_t, float, double, float, double, float, double,
                                             float, double),
                               NULL, NULL));
  OK(pagefork_linker_func_wrap(linker, "host", "half", PAGEFORK_WRAP(half, float, float), NULL,
                               NULL));
  OK(pagefork_linker_func_wrap(linker, "host", "log",
                               PAGEFORK_WRAP(log_text, void, int32_t, int32_t), NULL, NULL));
  wasm_functype_t *type = type_of(1, v128s, 1, v128s);
  OK(pagefork_linker_func(linker, "host", "vector", type, vector, &finalized, finalize));
  wasm_functype_delete(type);
  type = type_of(2, i32_i64, 2, i64_i32);
  OK(pagefork_linker_func_raw(linker, "host", "raw", type, raw, &finalized, finalize));

  /* What cannot be defined is refused, and its environment finalized. */
  finalized = 0;
  FAILS(pagefork_linker_func_raw(linker, "host", "raw", type, raw, &finalized, finalize),
        "already defined");
  FAILS(pagefork_linker_func_wrap(linker, "host", "x", "iiiiii", (pagefork_function_t)add,
                                  &finalized, finalize), "at most 5 integers");
  FAILS(pagefork_linker_func_wrap(linker, "host", "x", "i?", (pagefork_function_t)add, &finalized,
                                  finalize), "'?'");
  FAILS(pagefork_linker_func_wrap(linker, "host", "x", NULL, (pagefork_function_t)add, &finalized,
                                  finalize), "null");
  FAILS(pagefork_linker_func_wrap(linker, "host", NULL, "i", (pagefork_function_t)add, &finalized,
                                  finalize), "null");
  FAILS(pagefork_linker_func(linker, "host", "x", type, NULL, &finalized, finalize), "null");
  CHECK(finalized == 6);
  finalized = 0;
  wasm_functype_delete(type);
  pagefork_linker_allow_shadowing(linker, false);
  return linker;
}

/* A tag in a store, and the linker's definition of it. */
static wasm_extern_t *define_tag(pagefork_linker_t *linker, wasm_store_t *store) {
  wasm_functype_t *type = type_of(2, i32_i64, 0, NULL);
  wasm_extern_t *tag;
  OK(pagefork_tag_new(store, type, &tag));
  wasm_functype_delete(type);
  CHECK(wasm_extern_kind(tag) == PAGEFORK_EXTERN_TAG && pagefork_extern_as_tag(tag) == tag);
  type = pagefork_tag_type(tag);
  CHECK(wasm_functype_params(type)->size == 2);
  wasm_functype_delete(type);
  OK(pagefork_linker_define(linker, "host", "tag", tag));
  return tag;
}

static wasm_func_t *export_func(const wasm_instance_t *instance, const char *name) {
  wasm_extern_t *export;
  OK(pagefork_instance_export(instance, name, &export));
  wasm_func_t *func = wasm_extern_as_func((wasm_extern_t *)keep(export));
  CHECK(func);
  return func;
}

static void functions(wasm_store_t *store, wasm_instance_t *instance) {
  /* Typed calls, from C through a guest to C and back. */
  pagefork_typed_func_t *typed;
  OK(pagefork_func_typed(export_func(instance, "add"), "iI:F", &typed));
#define ADD(a, b)                                                                               \
  PAGEFORK_CALL(typed, double, (pagefork_typed_func_t *, int32_t, int64_t), typed, a, b)
  CHECK(ADD(2, -7) == -5 && !typed->error);
  CHECK(ADD(-1, 5) == 0 && typed->error);
  wasm_frame_t *origin = wasm_trap_origin(typed->error);
  CHECK(wasm_instance_same(wasm_frame_instance(origin), instance));
  wasm_frame_delete(origin);
  CHECK(ADD(-1, 6) == 0);
  FAILS(typed->error, "minus one");
  typed->error = NULL;
  CHECK(ADD(3, INT64_C(1) << 40) == 3 + (double)(INT64_C(1) << 40));
  pagefork_typed_func_delete(typed);
  OK(pagefork_func_typed(export_func(instance, "many"), "iIiIifFfFfFfF:I", &typed));
  CHECK(PAGEFORK_CALL(typed, int64_t,
                      (pagefork_typed_func_t *, int32_t, int64_t, int32_t, int64_t, int32_t, float,
                       double, float, double, float, double, float, double),
                      typed, -1, 2, 3, 4, 5, 0.5f, 1.5, 1, 1, 1, 1, 1, 1) == 54327);
  pagefork_typed_func_delete(typed);
  OK(pagefork_func_typed(export_func(instance, "half"), "f:f", &typed));
  CHECK(PAGEFORK_CALL(typed, float, (pagefork_typed_func_t *, float), typed, 5) == 2.5f);
  pagefork_typed_func_delete(typed);
  OK(pagefork_func_typed(export_func(instance, "log"), "", &typed));
  PAGEFORK_CALL(typed, void, (pagefork_typed_func_t *), typed);
  CHECK(!typed->error);
  pagefork_typed_func_delete(typed);
  FAILS(pagefork_func_typed(export_func(instance, "add"), "iI:I", &typed), "type mismatch");
  CHECK(!typed);
  FAILS(pagefork_func_typed(export_func(instance, "raw"), "iI:I", &typed), "type mismatch");

  /* With values and with cells. */
  pagefork_val_t value = {PAGEFORK_V128, {.v128 = {1, 2}}}, result;
  OK(pagefork_func_call(export_func(instance, "vector"), &value, 1, &result, 1));
  CHECK(result.kind == PAGEFORK_V128 && result.of.v128[0] == 2 && result.of.v128[1] == 1);
  FAILS(pagefork_func_call(export_func(instance, "vector"), &value, 0, &result, 1), "needed");
  FAILS(pagefork_func_call(export_func(instance, "vector"), NULL, 1, &result, 1), "null");
  pagefork_cell_t cells[2] = {{.i32 = 7}, {.i64 = -9}};
  OK(pagefork_func_call_raw(export_func(instance, "raw"), cells, 2));
  CHECK(cells[0].i64 == -9 && cells[1].i32 == 7);
  FAILS(pagefork_func_call_raw(export_func(instance, "raw"), cells, 1), "values");
  FAILS(pagefork_func_call_raw(NULL, cells, 2), "null");
  wasm_foreign_t *foreign = wasm_foreign_new(store);
  value.kind = WASM_EXTERNREF;
  value.of.ref = wasm_foreign_as_ref(foreign);
  OK(pagefork_func_call(export_func(instance, "reference"), &value, 1, &result, 1));
  CHECK(wasm_ref_same(result.of.ref, value.of.ref));
  wasm_ref_delete(result.of.ref);
  wasm_foreign_delete(foreign);
  CHECK(pagefork_store_collect(store) == 0);

  /* Functions of a store in each form, called by C itself. */
  wasm_functype_t *type = type_of(1, v128s, 1, v128s);
  wasm_func_t *func;
  OK(pagefork_func_new(store, type, vector, &finalized, finalize, &func));
  value = (pagefork_val_t){PAGEFORK_V128, {.v128 = {3, 4}}};
  OK(pagefork_func_call(func, &value, 1, &result, 1));
  CHECK(result.of.v128[0] == 4);
  wasm_func_delete(func);
  wasm_functype_delete(type);
  type = type_of(2, i32_i64, 2, i64_i32);
  OK(pagefork_func_new_raw(store, type, raw, &finalized, finalize, &func));
  wasm_functype_delete(type);
  cells[0].i32 = -1;
  pagefork_error_t *error = pagefork_func_call_raw(func, cells, 2);
  CHECK(pagefork_error_kind(error) == PAGEFORK_ERROR_HOST);
  FAILS(error, "");
  wasm_func_delete(func);
  OK(pagefork_func_wrap(store, PAGEFORK_WRAP(add, double, int32_t, int64_t), &finalized, finalize,
                        &func));
  OK(pagefork_func_typed(func, "iI:F", &typed));
  CHECK(ADD(4, 5) == 9);
  CHECK(ADD(-1, 5) == 0);
  FAILS(typed->error, "minus one");
  typed->error = NULL;
  pagefork_typed_func_delete(typed);
  wasm_func_delete(func);

  /* A global with a vector. */
  wasm_extern_t *global;
  OK(pagefork_instance_export(instance, "vector global", &global));
  keep(global);
  OK(pagefork_global_get(wasm_extern_as_global(global), &value));
  CHECK(value.kind == PAGEFORK_V128 && value.of.v128[0] == 5 && value.of.v128[1] == 6);
  value.of.v128[1] = 8;
  OK(pagefork_global_set(wasm_extern_as_global(global), &value));
  OK(pagefork_global_get(wasm_extern_as_global(global), &result));
  CHECK(result.of.v128[1] == 8);
  value.kind = WASM_I32;
  FAILS(pagefork_global_set(wasm_extern_as_global(global), &value), "v128");
}

/* Functions with values that registers hold, of either header, called by guests and by C. */
static void numbers(wasm_engine_t *engine) {
  static const char text[] =
      "(module (type $digits (func (param f32 i64 f64 i32) (result f64)))"
      " (import \"host\" \"a\" (func $a (type $digits)))"
      " (import \"host\" \"b\" (func $b (type $digits)))"
      " (func (export \"a\") (param i32) (result f64)"
      " (call $a (f32.const 1) (i64.const 2) (f64.const 3) (local.get 0)))"
      " (func (export \"b\") (param i32) (result f64)"
      " (call $b (f32.const 1) (i64.const 2) (f64.const 3) (local.get 0))))";
  const wasm_valkind_t in[] = {WASM_F32, WASM_I64, WASM_F64, WASM_I32}, out[] = {WASM_F64};
  wasm_functype_t *type = type_of(4, in, 1, out);
  wasm_module_t *module;
  pagefork_linker_t *linker;
  wasm_instance_t *instance;
  wasm_store_t *store = wasm_store_new(engine);
  wasm_func_t *func = wasm_func_new(store, type, standard_digits);
  OK(pagefork_module_new(engine, text, sizeof text - 1, &module));
  OK(pagefork_linker_new(engine, &linker));
  OK(pagefork_linker_func(linker, "host", "a", type, digits, NULL, NULL));
  OK(pagefork_linker_define(linker, "host", "b", wasm_func_as_extern(func)));
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  pagefork_val_t arg = {WASM_I32, {.i32 = 4}}, result;
  for (const char *name = "a"; *name <= 'b'; name = *name == 'a' ? "b" : "c") {
    arg.of.i32 = 4;
    OK(pagefork_func_call(export_func(instance, name), &arg, 1, &result, 1));
    CHECK(result.kind == WASM_F64 && result.of.f64 == 1234);
    arg.of.i32 = -1;
    FAILS(pagefork_func_call(export_func(instance, name), &arg, 1, &result, 1),
          "result 0 of a host function is f32, expected f64");
  }
  const pagefork_val_t args[] = {{WASM_F32, {.f32 = 5}}, {WASM_I64, {.i64 = 6}},
                                 {WASM_F64, {.f64 = 7}}, {WASM_I32, {.i32 = 8}}};
  OK(pagefork_func_call(func, args, 4, &result, 1));
  CHECK(result.kind == WASM_F64 && result.of.f64 == 5678);
  delete_kept();
  wasm_functype_delete(type);
  wasm_instance_delete(instance);
  wasm_func_delete(func);
  wasm_store_delete(store);
  wasm_module_delete(module);
  pagefork_linker_delete(linker);
}

static void exceptions(wasm_instance_t *instance, wasm_extern_t *tag) {
  pagefork_val_t values[2] = {{WASM_I32, {.i32 = 5}}, {WASM_I64, {.i64 = -6}}}, got[2];
  pagefork_error_t *error = pagefork_func_call(export_func(instance, "throw"), values, 2, NULL, 0);
  CHECK(pagefork_error_kind(error) == PAGEFORK_ERROR_EXCEPTION);
  wasm_extern_t *found = pagefork_exception_tag(error);
  CHECK(wasm_extern_same(found, tag));
  wasm_extern_delete(found);
  OK(pagefork_exception_values(error, got, 2));
  CHECK(got[0].of.i32 == 5 && got[1].of.i64 == -6);
  FAILS(pagefork_exception_values(error, got, 1), "needed");
  FAILS(error, "uncaught exception");

  /* One of C's is caught by the guest; an error is not. */
  OK(pagefork_exception_new(tag, values, 2, &thrown));
  pagefork_val_t which = {WASM_I32, {.i32 = 1}};
  OK(pagefork_func_call(export_func(instance, "catch"), &which, 1, got, 2));
  CHECK(got[0].of.i32 == 5 && got[1].of.i64 == -6);
  wasm_trap_delete(thrown);
  which.of.i32 = 2;
  error = pagefork_func_call(export_func(instance, "catch"), &which, 1, got, 2);
  CHECK(!pagefork_exception_tag(error));
  FAILS(error, "");
  FAILS(pagefork_exception_new(tag, values, 1, &thrown), "needed");
  values[0].kind = WASM_F32;
  FAILS(pagefork_exception_new(tag, values, 2, &thrown), "mismatch");
}

static int32_t count(wasm_instance_t *instance) {
  pagefork_val_t result;
  wasm_extern_t *export;
  OK(pagefork_instance_export(instance, "count", &export));
  OK(pagefork_func_call(wasm_extern_as_func(export), NULL, 0, &result, 1));
  wasm_extern_delete(export);
  return result.of.i32;
}

static void limits_and_times(wasm_engine_t *engine, wasm_store_t *store, wasm_instance_t *instance) {
  pagefork_error_t *error;
  wasm_func_t *spin = export_func(instance, "spin");
  OK(pagefork_store_set_timeout(store, 5 * 1000 * 1000));
  error = pagefork_func_call(spin, NULL, 0, NULL, 0);
  CHECK(pagefork_error_trap_code(error) == PAGEFORK_TRAP_INTERRUPT);
  FAILS(error, "interrupted");
  OK(pagefork_store_set_timeout(store, 0));
  OK(pagefork_store_set_epoch_deadline(store, 1));
  pagefork_engine_increment_epoch(engine);
  FAILS(pagefork_func_call(spin, NULL, 0, NULL, 0), "interrupted");
  OK(pagefork_store_set_epoch_deadline(store, UINT64_MAX));
  OK(pagefork_store_set_fuel(store, 1000000));
  error = pagefork_func_call(spin, NULL, 0, NULL, 0);
  CHECK(pagefork_error_trap_code(error) == PAGEFORK_TRAP_OUT_OF_FUEL);
  FAILS(error, "fuel");
  uint64_t fuel = 7;
  OK(pagefork_store_fuel(store, &fuel));
  CHECK(fuel == 0);
  OK(pagefork_store_set_fuel(store, UINT64_MAX));
  pagefork_interrupt_t *handle;
  OK(pagefork_store_interrupt_handle(store, &handle));
  /* What was meant for no call is forgotten by the next. */
  pagefork_interrupt_guests(handle);
  pagefork_interrupt_guests(NULL);
  CHECK(count(instance) > 0);
  pagefork_interrupt_delete(handle);

  pagefork_limits_t limits = {.memory_size = 2 << 16};
  OK(pagefork_store_set_limits(store, &limits));
  pagefork_val_t pages = {WASM_I32, {.i32 = 1}}, answer;
  wasm_func_t *grow = export_func(instance, "grow");
  OK(pagefork_func_call(grow, &pages, 1, &answer, 1));
  CHECK(answer.of.i32 == 1);
  OK(pagefork_func_call(grow, &pages, 1, &answer, 1));
  CHECK(answer.of.i32 == -1);
  limits.trap_on_grow_failure = true;
  OK(pagefork_store_set_limits(store, &limits));
  error = pagefork_func_call(grow, &pages, 1, &answer, 1);
  CHECK(pagefork_error_kind(error) == PAGEFORK_ERROR_LIMIT);
  FAILS(error, "limit");
  OK(pagefork_store_set_limits(store, NULL));
  OK(pagefork_func_call(grow, &pages, 1, &answer, 1));
  CHECK(answer.of.i32 == 2);
}

static void reset(wasm_store_t *store, wasm_instance_t *instance) {
  int before = finalized;
  wasm_instance_set_host_info_with_finalizer(instance, &finalized, finalize);
  CHECK(count(instance) > 1);
  OK(pagefork_store_reset(store, NULL));
  CHECK(finalized == before + 1 && !wasm_instance_get_host_info(instance));
  CHECK(count(instance) == 1);
  CHECK(finalized == before + 1);
}

/* A callback that asks for what may not be while a guest runs. */
static pagefork_error_t *ask(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  CHECK(cells[0].i32 == 7);
  FAILS(pagefork_store_reset(caller->store, NULL), "runs");
  FAILS(pagefork_store_set_timeout(caller->store, 1), "runs");
  FAILS(pagefork_store_set_limits(caller->store, NULL), "runs");
  wasm_extern_t *memory;
  OK(pagefork_caller_export(caller, "memory", &memory));
  CHECK(wasm_memory_size(wasm_extern_as_memory(memory)) == 4);
  wasm_extern_delete(memory);
  return NULL;
}

static void spawning(wasm_engine_t *engine) {
  static const char text[] =
      "(module (import \"host\" \"note\" (func $note (param i32)))"
      " (memory (export \"memory\") 4)"
      " (global $count (mut i32) (i32.const 0))"
      " (func (export \"count\") (result i32)"
      "  (global.set $count (i32.add (global.get $count) (i32.const 1))) (global.get $count))"
      " (func $start (call $note (i32.const 7))) (start $start))";
  wasm_module_t *module;
  OK(pagefork_module_new(engine, text, sizeof text - 1, &module));
  FAILS(pagefork_module_new(engine, "(module", 7, &(wasm_module_t *){NULL}), "text");
  pagefork_linker_t *linker;
  OK(pagefork_linker_new(engine, &linker));
  pagefork_instance_pre_t *pre, *other;
  FAILS(pagefork_linker_instantiate_pre(linker, module, &pre), "note");
  CHECK(!pre);
  OK(pagefork_linker_unknown_imports_as_traps(linker, module));
  OK(pagefork_linker_instantiate_pre(linker, module, &pre));
  wasm_store_t *store;
  wasm_instance_t *instance;
  FAILS(pagefork_instance_pre_spawn(pre, NULL, &store, &instance), "note");
  CHECK(!store && !instance);
  pagefork_instance_pre_delete(pre);
  pagefork_linker_delete(linker);

  /* Many times, with the same pages; each is fresh. */
  OK(pagefork_linker_new(engine, &linker));
  wasm_functype_t *type = wasm_functype_new_1_0(wasm_valtype_new_i32());
  finalized = 0;
  OK(pagefork_linker_func_raw(linker, "host", "note", type, ask, &finalized, finalize));
  pagefork_linker_allow_shadowing(linker, true);
  OK(pagefork_linker_func_raw(linker, "host", "note", type, ask, NULL, NULL));
  CHECK(finalized == 1);
  wasm_functype_delete(type);
  OK(pagefork_linker_instantiate_pre(linker, module, &pre));
  pagefork_strategies_t strategies = {.reset = PAGEFORK_RESET_DISCARD, .clear_stack = true};
  OK(pagefork_instance_pre_with_strategies(pre, &strategies, &other));
  strategies.reset = 77;
  FAILS(pagefork_instance_pre_with_strategies(pre, &strategies, &(pagefork_instance_pre_t *){NULL}),
        "77");
  pagefork_export_t *count_export, *memory_export;
  OK(pagefork_module_export(module, "count", ":i", &count_export));
  OK(pagefork_module_export(module, "memory", NULL, &memory_export));
  FAILS(pagefork_module_export(module, "count", ":I", &(pagefork_export_t *){NULL}), "mismatch");
  FAILS(pagefork_module_export(module, "memory", ":I", &(pagefork_export_t *){NULL}), "memory");
  FAILS(pagefork_module_export(module, "none", NULL, &(pagefork_export_t *){NULL}), "none");
  FAILS(pagefork_module_export(NULL, "count", NULL, &(pagefork_export_t *){NULL}), "null");
  for (int i = 0; i < 100; i++) {
    pagefork_limits_t limits = {.memory_total = 8 << 16};
    pagefork_spawn_t how = {.tenant = (uint64_t)i, .limits = i % 2 ? &limits : NULL};
    OK(pagefork_instance_pre_spawn(i % 3 ? pre : other, &how, &store, &instance));
    CHECK(count(instance) == 1 && count(instance) == 2);
    wasm_store_t *copy = pagefork_store_copy(store);
    wasm_store_delete(store);
    OK(pagefork_store_reset(copy, NULL));
    CHECK(count(instance) == 1);
    pagefork_typed_func_t *typed;
    OK(pagefork_instance_typed_export(instance, count_export, &typed));
    CHECK(PAGEFORK_CALL(typed, int32_t, (pagefork_typed_func_t *), typed) == 2);
    pagefork_typed_func_delete(typed);
    wasm_extern_t *memory;
    OK(pagefork_instance_export_at(instance, memory_export, &memory));
    CHECK(wasm_memory_size(wasm_extern_as_memory(memory)) == 4);
    wasm_extern_delete(memory);
    FAILS(pagefork_instance_typed_export(instance, memory_export, &typed), "signature");
    CHECK(!typed);
    OK(pagefork_instance_typed_func(instance, "count", ":i", &typed));
    CHECK(PAGEFORK_CALL(typed, int32_t, (pagefork_typed_func_t *), typed) == 3);
    pagefork_typed_func_delete(typed);
    FAILS(pagefork_instance_typed_func(instance, "count", ":I", &typed), "expected () -> (i64)");
    FAILS(pagefork_instance_typed_func(instance, "memory", ":i", &typed), "function");
    CHECK(!typed);
    wasm_store_delete(copy);
    wasm_instance_delete(instance);
  }
  pagefork_limits_t limits = {.memory_total = 1 << 16};
  pagefork_spawn_t how = {.limits = &limits};
  FAILS(pagefork_instance_pre_spawn(pre, &how, &store, &instance), "limit");
  FAILS(pagefork_instance_pre_spawn(NULL, &how, &store, &instance), "null");
  wasm_store_t *stranger = wasm_store_new(engine);
  wasm_module_t *empty = COMPILE(stranger, empty);
  instance = wasm_instance_new(stranger, empty, NULL, NULL);
  FAILS(pagefork_instance_export_at(instance, memory_export, &(wasm_extern_t *){NULL}), "module");
  FAILS(pagefork_instance_typed_export(instance, count_export, &(pagefork_typed_func_t *){NULL}),
        "module");
  FAILS(pagefork_instance_export_at(NULL, memory_export, &(wasm_extern_t *){NULL}), "null");
  FAILS(pagefork_instance_typed_export(instance, NULL, &(pagefork_typed_func_t *){NULL}), "null");
  pagefork_typed_func_t *none;
  FAILS(pagefork_instance_typed_func(instance, "none", ":i", &none), "none");
  FAILS(pagefork_instance_typed_func(NULL, "none", ":i", &none), "instance is null");
  FAILS(pagefork_instance_typed_func(instance, NULL, ":i", &none), "name is null");
  CHECK(!none);
  FAILS(pagefork_instance_typed_func(instance, "none", ":i", NULL), "null");
  FAILS(pagefork_instance_typed_func(instance, "f", NULL, &none), "signature is null");
  FAILS(pagefork_instance_typed_func((wasm_instance_t *)empty, "f", ":", &none), "instance");
  /* Whoever has a function of it knows the instance, which stays when its object goes. */
  OK(pagefork_instance_typed_func(instance, "f", ":", &none));
  wasm_instance_delete(instance);
  instance = wasm_instance_new(stranger, empty, NULL, NULL);
  PAGEFORK_CALL(none, void, (pagefork_typed_func_t *), none);
  pagefork_typed_func_delete(none);
  wasm_instance_delete(instance);
  delete_kept();
  wasm_store_delete(stranger);
  pagefork_export_delete(count_export);
  pagefork_export_delete(memory_export);
  pagefork_export_delete(NULL);
  pagefork_instance_pre_delete(other);
  pagefork_instance_pre_delete(pre);
  pagefork_linker_delete(linker);

  /* A module of bytes and of a file. */
  wasm_byte_vec_t bytes;
  wasm_module_serialize(module, &bytes);
  wasm_module_t *again;
  OK(pagefork_module_deserialize(engine, bytes.data, bytes.size, &again));
  wasm_module_delete(again);
  FILE *file = fopen("module.image", "wb");
  CHECK(file && fwrite(bytes.data, 1, bytes.size, file) == bytes.size && !fclose(file));
  OK(pagefork_module_deserialize_file(engine, "module.image", &again));
  wasm_module_delete(again);
  CHECK(!remove("module.image"));
  FAILS(pagefork_module_deserialize_file(engine, "no such", &again), "no such");
  FAILS(pagefork_module_new_file(engine, "no such", &again), "no such");
  FAILS(pagefork_module_deserialize(engine, bytes.data, 10, &again), "");
  wasm_byte_vec_delete(&bytes);
  wasm_module_delete(module);
}

/* A guest gives memory back, by the functions that a linker defines. */
static void giving_back(wasm_engine_t *engine) {
  static const char text[] =
      "(module (import \"pagefork\" \"memory_discard\" (func $back (param i32 i32) (result i32)))"
      " (import \"env\" \"__wbindgen_memory_discard\" (func $zero (param i32 i32)))"
      " (memory (export \"memory\") 256)"
      " (func (export \"back\") (param i32 i32) (result i32)"
      "  (call $back (local.get 0) (local.get 1)))"
      " (func (export \"zero\") (param i32 i32) (result i32)"
      "  (call $zero (local.get 0) (local.get 1)) (i32.const 5)))";
  wasm_module_t *module;
  OK(pagefork_module_new(engine, text, sizeof text - 1, &module));
  pagefork_linker_t *linker;
  OK(pagefork_linker_new(engine, &linker));
  OK(pagefork_linker_memory_discard(linker));
  FAILS(pagefork_linker_memory_discard(linker), "already defined");
  FAILS(pagefork_linker_memory_discard(NULL), "null");
  pagefork_instance_pre_t *pre;
  OK(pagefork_linker_instantiate_pre(linker, module, &pre));
  pagefork_export_t *exports[3];
  OK(pagefork_module_export(module, "back", "ii:i", &exports[0]));
  OK(pagefork_module_export(module, "zero", "ii:i", &exports[1]));
  OK(pagefork_module_export(module, "memory", NULL, &exports[2]));
  wasm_store_t *store;
  wasm_instance_t *instance;
  OK(pagefork_instance_pre_spawn(pre, NULL, &store, &instance));
  pagefork_typed_func_t *back, *zero;
  OK(pagefork_instance_typed_export(instance, exports[0], &back));
  OK(pagefork_instance_typed_export(instance, exports[1], &zero));
  wasm_extern_t *memory;
  OK(pagefork_instance_export_at(instance, exports[2], &memory));
  char *data = wasm_memory_data(wasm_extern_as_memory(memory));
  const int32_t all = 256 << 16;
  memset(data, 7, (size_t)all);
#define GIVE(f, from, length) \
  PAGEFORK_CALL(f, int32_t, (pagefork_typed_func_t *, int32_t, int32_t), f, from, length)
  CHECK(GIVE(back, 0, 100) == -1 && data[0] == 7);
  CHECK(GIVE(back, 1 << 16, all - (1 << 16)) == 0);
  CHECK(data[(1 << 16) - 1] == 7 && data[1 << 16] == 0 && data[all - 1] == 0);
  CHECK(GIVE(zero, 10, 20) == 5 && data[9] == 7 && data[10] == 0 && data[29] == 0 && data[30] == 7);
#undef GIVE
  wasm_extern_delete(memory);
  pagefork_typed_func_delete(back);
  pagefork_typed_func_delete(zero);
  for (int i = 0; i < 3; i++) pagefork_export_delete(exports[i]);
  wasm_store_delete(store);
  wasm_instance_delete(instance);
  pagefork_instance_pre_delete(pre);
  pagefork_linker_delete(linker);
  wasm_module_delete(module);
}

/* Sees both arguments as they are in whole cells, and writes the lower halves of results alone. */
static pagefork_error_t *narrow(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  (void)caller;
  for (int i = 0; i < 2; i++) {
    CHECK(cells[i].i64 == 7 + i && cells[i].v128[1] == 0);
    memset(&cells[i], -1, sizeof cells[i]);
    cells[i].i32 = 9 + i;
  }
  return NULL;
}

/* Of a cell the member of its type counts: C need not write the rest, and reads zeros there. C and
 * guests call functions of the host with one result, which guests call directly, and with two. */
static void narrow_cells(wasm_engine_t *engine) {
  static const char text[] =
      "(module (import \"host\" \"one\" (func $one (param i32 i32) (result i32)))"
      " (import \"host\" \"two\" (func $two (param i32 i32) (result i32 i32)))"
      " (func (export \"one\") (param i32 i32) (result i32)"
      "  (call $one (local.get 0) (local.get 1)))"
      " (func (export \"two\") (param i32 i32) (result i32 i32)"
      "  (call $two (local.get 0) (local.get 1))))";
  static const wasm_valkind_t i32s[] = {WASM_I32, WASM_I32};
  wasm_store_t *store = wasm_store_new(engine);
  wasm_module_t *module;
  OK(pagefork_module_new(engine, text, sizeof text - 1, &module));
  wasm_func_t *host[2];
  for (size_t i = 0; i < 2; i++) {
    wasm_functype_t *type = type_of(2, i32s, i + 1, i32s);
    OK(pagefork_func_new_raw(store, type, narrow, NULL, NULL, &host[i]));
    wasm_functype_delete(type);
  }
  wasm_extern_t *imported[] = {wasm_func_as_extern(host[0]), wasm_func_as_extern(host[1])};
  wasm_extern_vec_t imports = WASM_ARRAY_VEC(imported);
  wasm_instance_t *instance = wasm_instance_new(store, module, &imports, NULL);
  wasm_func_t *called[] = {host[0], host[1], export_func(instance, "one"),
                           export_func(instance, "two")};
  for (size_t i = 0; i < 4; i++) {
    pagefork_cell_t cells[2];
    memset(cells, -1, sizeof cells);
    cells[0].i32 = 7;
    cells[1].i32 = 8;
    OK(pagefork_func_call_raw(called[i], cells, 2));
    size_t results = i % 2 + 1;
    for (size_t j = 0; j < results; j++)
      CHECK(cells[j].i64 == 9 + (int64_t)j && cells[j].v128[1] == 0);
  }
  delete_kept();
  for (size_t i = 0; i < 2; i++) wasm_func_delete(host[i]);
  wasm_instance_delete(instance);
  wasm_module_delete(module);
  wasm_store_delete(store);
}

/* Host functions in each form within each other: each keeps its own caller, whoever was called between. */

enum { OUTER, MIDDLE, INNER, FORMS };

static int environments[FORMS], seen_callers;
static wasm_func_t *through[FORMS], *direct[FORMS];

static void check_caller(const pagefork_caller_t *caller, int form, wasm_store_t *store, bool guest) {
  wasm_extern_t *found;
  CHECK(caller->env == &environments[form] && caller->store == store);
  if (guest) {
    OK(pagefork_caller_export(caller, "outer", &found));
    CHECK(wasm_func_same(wasm_extern_as_func(found), through[OUTER]));
    wasm_extern_delete(found);
  } else {
    FAILS(pagefork_caller_export(caller, "outer", &found), "instance that has called");
  }
  seen_callers++;
}

/* Calls the next forms with less, through a guest and without one; whether a guest has called is in the
 * lowest bit. */
static int32_t call_within(const pagefork_caller_t *caller, int form, int32_t number) {
  wasm_store_t *store = caller->store;
  bool guest = number % 2;
  check_caller(caller, form, store, guest);
  /* A guest waits, so the store itself is not to be had. */
  FAILS(pagefork_store_reset(store, NULL), "runs or waits");
  if (number < 8) return 1;
  int32_t sum = 1;
  for (int next = 0; next < FORMS; next++) {
    for (int way = 0; way < 2; way++) {
      pagefork_cell_t cell = {.i32 = (number / 8 - 1) * 2 + way};
      OK(pagefork_func_call_raw(way ? through[next] : direct[next], &cell, 1));
      sum += cell.i32;
      check_caller(caller, form, store, guest);
    }
  }
  return sum;
}

static pagefork_error_t *outer(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  cells[0].i32 = call_within(caller, OUTER, cells[0].i32);
  return NULL;
}

static int32_t middle(const pagefork_caller_t *caller, int32_t number) {
  return call_within(caller, MIDDLE, number);
}

static pagefork_error_t *inner(const pagefork_caller_t *caller, const pagefork_val_t *args,
                               size_t arg_count, pagefork_val_t *results, size_t result_count) {
  CHECK(arg_count == 1 && result_count == 1);
  results[0].of.i32 = call_within(caller, INNER, args[0].of.i32);
  return NULL;
}

static void callers(wasm_engine_t *engine) {
  static const char text[] =
      "(module (import \"host\" \"outer\" (func $outer (param i32) (result i32)))"
      " (import \"host\" \"middle\" (func $middle (param i32) (result i32)))"
      " (import \"host\" \"inner\" (func $inner (param i32) (result i32)))"
      " (func (export \"outer\") (param i32) (result i32) (call $outer (local.get 0)))"
      " (func (export \"middle\") (param i32) (result i32) (call $middle (local.get 0)))"
      " (func (export \"inner\") (param i32) (result i32) (call $inner (local.get 0))))";
  static const wasm_valkind_t i32s[] = {WASM_I32};
  static const char *const names[] = {"outer", "middle", "inner"};
  wasm_store_t *store = wasm_store_new(engine);
  wasm_module_t *module;
  OK(pagefork_module_new(engine, text, sizeof text - 1, &module));
  wasm_functype_t *type = type_of(1, i32s, 1, i32s);
  OK(pagefork_func_new_raw(store, type, outer, &environments[OUTER], NULL, &direct[OUTER]));
  OK(pagefork_func_wrap(store, PAGEFORK_WRAP(middle, int32_t, int32_t), &environments[MIDDLE], NULL,
                        &direct[MIDDLE]));
  OK(pagefork_func_new(store, type, inner, &environments[INNER], NULL, &direct[INNER]));
  wasm_functype_delete(type);
  wasm_extern_t *imported[FORMS];
  for (int i = 0; i < FORMS; i++) imported[i] = wasm_func_as_extern(direct[i]);
  wasm_extern_vec_t imports = WASM_ARRAY_VEC(imported);
  wasm_instance_t *instance = wasm_instance_new(store, module, &imports, NULL);
  for (int i = 0; i < FORMS; i++) through[i] = export_func(instance, names[i]);
  for (int i = 0; i < FORMS; i++) {
    for (int way = 0; way < 2; way++) {
      seen_callers = 0;
      pagefork_cell_t cell = {.i32 = 80 + way};
      OK(pagefork_func_call_raw(way ? through[i] : direct[i], &cell, 1));
      CHECK(cell.i32 == 43 && seen_callers == 85);
    }
  }
  delete_kept();
  wasm_instance_delete(instance);
  for (int i = 0; i < FORMS; i++) wasm_func_delete(direct[i]);
  /* No host function runs any more. */
  OK(pagefork_store_reset(store, NULL));
  wasm_module_delete(module);
  wasm_store_delete(store);
}

static void configurations(void) {
  wasm_config_t *config = wasm_config_new();
  pagefork_config_stack_size(config, 1 << 18);
  pagefork_config_table_elements(config, 1000);
  pagefork_config_memory64_size(config, 1 << 30);
  pagefork_config_exceptions_size(config, 1 << 16);
  pagefork_config_resident_max(config, 1 << 30);
  pagefork_config_compile_timeout(config, 100000);
  pagefork_config_compile_memory(config, 1 << 30);
  pagefork_config_compile_work(config, UINT64_MAX);
  pagefork_config_deterministic(config, true);
  pagefork_config_sources(config, false);
  pagefork_config_interruption(config, false);
  pagefork_config_cache(config, "cache of a test");
  pagefork_strategies_t strategies = {.reset = PAGEFORK_RESET_SCAN, .stack_kept = 1 << 12};
  OK(pagefork_config_strategies(config, &strategies));
  FAILS(pagefork_config_strategies(config, NULL), "null");
  OK(pagefork_config_feature(config, PAGEFORK_FEATURE_SIMD, false));
  OK(pagefork_config_feature(config, PAGEFORK_FEATURE_RELAXED_SIMD, false));
  FAILS(pagefork_config_feature(config, 200, false), "200");
  wasm_engine_t *engine;
  OK(pagefork_engine_new(config, &engine));
  wasm_module_t *module;
  FAILS(pagefork_module_new(engine, guest_numbers, sizeof guest_numbers, &module), "SIMD");
  wasm_store_t *store = wasm_store_new(engine);
  FAILS(pagefork_store_set_timeout(store, 1), "interrupt");
  FAILS(pagefork_store_set_epoch_deadline(store, 1), "interrupt");
  FAILS(pagefork_store_set_fuel(store, 1), "fuel");
  wasm_store_delete(store);
  wasm_engine_delete(engine);
}

static int data_finalized;

static void finalize_data(void *data) {
  (void)data;
  data_finalized++;
}

int main(void) {
  wasm_config_t *config = wasm_config_new();
  pagefork_config_fuel(config, true);
  wasm_engine_t *engine;
  OK(pagefork_engine_new(config, &engine));
  pagefork_linker_t *linker = new_linker(engine);
  wasm_store_t *store = wasm_store_new(engine);
  OK(pagefork_store_set_fuel(store, UINT64_MAX));
  wasm_extern_t *tag = define_tag(linker, store);
  wasm_module_t *module = COMPILE(store, embed);
  wasm_instance_t *instance, *second;
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  char written[6] = "";
  pagefork_store_set_data(store, written, finalize_data);
  CHECK(pagefork_store_data(store) == written);
  functions(store, instance);
  CHECK(strcmp(written, "hello") == 0);
  exceptions(instance, tag);
  limits_and_times(engine, store, instance);
  reset(store, instance);
  OK(pagefork_linker_instance(linker, "first", instance));
  FAILS(pagefork_linker_instance(linker, "first", instance), "already defined");
  OK(pagefork_linker_instantiate(linker, store, module, &second));
  wasm_store_t *stranger = wasm_store_new(engine);
  wasm_instance_t *none;
  FAILS(pagefork_linker_instantiate(linker, stranger, module, &none), "store");
  CHECK(!none);
  wasm_store_delete(stranger);
  wasm_instance_delete(second);
  wasm_extern_delete(tag);
  pagefork_linker_delete(linker);
  wasm_instance_delete(instance);
  delete_kept();
  CHECK(!data_finalized);
  wasm_store_delete(store);
  CHECK(data_finalized == 1);
  /* Three of the linker, three of the store, one that was attached to the instance. */
  CHECK(finalized == 7);
  wasm_engine_delete(engine);
  OK(pagefork_engine_new(NULL, &engine));
  numbers(engine);
  spawning(engine);
  giving_back(engine);
  narrow_cells(engine);
  callers(engine);
  wasm_engine_delete(engine);
  configurations();
  puts("ok");
  return 0;
}
