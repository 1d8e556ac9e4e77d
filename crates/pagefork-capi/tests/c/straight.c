/* C functions that guests call with nothing in between: what they are given and give, however they are reached,
 * how they fail, and that their caller stays as it is whatever happens while they run. */

#include "check.h"
#include "pagefork.h"

#define OK(call) RETURNS(call)
#define FAILS(call, text) TRAPS((call), (text))

/* What functions are made with. */
struct env {
  const char *name;
  int calls;
};

static struct env outer_env = {"outer", 0}, inner_env = {"inner", 0};

static pagefork_linker_t *linker_of(wasm_engine_t *engine) {
  pagefork_linker_t *linker;
  OK(pagefork_linker_new(engine, &linker));
  return linker;
}

static wasm_module_t *module_of(wasm_engine_t *engine, const char *text) {
  wasm_module_t *module;
  OK(pagefork_module_new(engine, text, strlen(text), &module));
  return module;
}

static wasm_func_t *exported(const wasm_instance_t *instance, const char *name) {
  wasm_extern_t *external;
  OK(pagefork_instance_export(instance, name, &external));
  return wasm_extern_as_func(external);
}

/* The caller is that of this function, and leads to its store and instance. */
static void check_caller(const pagefork_caller_t *caller, const struct env *env) {
  wasm_extern_t *memory;
  CHECK(caller->env == env);
  OK(pagefork_caller_export(caller, "memory", &memory));
  wasm_memory_data(wasm_extern_as_memory(memory))[0]++;
  wasm_extern_delete(memory);
}

/* Results of each kind, of arguments of each. */

static void nothing(const pagefork_caller_t *caller, int32_t a, double b) {
  CHECK(a == -1 && b == 2.5);
  ++*(int *)caller->env;
}

static int32_t small(const pagefork_caller_t *caller, int64_t a, float b, int32_t c) {
  ++*(int *)caller->env;
  return (int32_t)(a >> 32) + (int32_t)b + c;
}

static int64_t large(const pagefork_caller_t *caller, int32_t a, int32_t b, int32_t c, int32_t d,
                     int64_t e) {
  ++*(int *)caller->env;
  return a + b * 10 + c * 100 + d * 1000 + e;
}

static float narrow(const pagefork_caller_t *caller, double a, float b) {
  ++*(int *)caller->env;
  return (float)a - b;
}

static double wide(const pagefork_caller_t *caller, float a, double b, float c, double d, float e,
                   double f, float g, double h) {
  ++*(int *)caller->env;
  return a + b * 10 + c * 100 + d * 1000 + e * 1e4 + f * 1e5 + g * 1e6 + h * 1e7;
}

/* Each is called at a call site, in place of its caller, through a table, and where exceptions are caught. */
static const char kinds_text[] =
    "(module"
    "  (type $small (func (param i64 f32 i32) (result i32)))"
    "  (import \"host\" \"nothing\" (func $nothing (param i32 f64)))"
    "  (import \"host\" \"small\" (func $small (type $small)))"
    "  (import \"host\" \"large\" (func $large (param i32 i32 i32 i32 i64) (result i64)))"
    "  (import \"host\" \"narrow\" (func $narrow (param f64 f32) (result f32)))"
    "  (import \"host\" \"wide\" (func $wide (param f32 f64 f32 f64 f32 f64 f32 f64) (result f64)))"
    "  (table 1 1 funcref) (elem (i32.const 0) $small) (tag $tag)"
    "  (func $tail (result i32)"
    "    (return_call $small (i64.const 0x7ffffffff) (f32.const 20.5) (i32.const 300)))"
    "  (func $caught (result i32)"
    "    (block $out (try_table (catch $tag $out)"
    "      (return (call $small (i64.const 0x7ffffffff) (f32.const 20.5) (i32.const 300)))))"
    "    (unreachable))"
    "  (func (export \"run\") (result i32)"
    "    (call $nothing (i32.const -1) (f64.const 2.5))"
    "    (if (i32.ne (i32.const 327)"
    "        (call $small (i64.const 0x7ffffffff) (f32.const 20.5) (i32.const 300)))"
    "      (then (return (i32.const 1))))"
    "    (if (i32.ne (i32.const 327)"
    "        (call_indirect (type $small) (i64.const 0x7ffffffff) (f32.const 20.5) (i32.const 300)"
    "                       (i32.const 0)))"
    "      (then (return (i32.const 2))))"
    "    (if (i32.ne (i32.const 327) (call $tail)) (then (return (i32.const 3))))"
    "    (if (i32.ne (i32.const 327) (call $caught)) (then (return (i32.const 4))))"
    "    (if (i64.ne (i64.const 4294971617) (call $large (i32.const 1) (i32.const 2) (i32.const 3)"
    "                                              (i32.const 4) (i64.const 0x100000000)))"
    "      (then (return (i32.const 5))))"
    "    (if (f32.ne (f32.const 1.5) (call $narrow (f64.const 4) (f32.const 2.5)))"
    "      (then (return (i32.const 6))))"
    "    (if (f64.ne (f64.const 87654321) (call $wide (f32.const 1) (f64.const 2) (f32.const 3)"
    "          (f64.const 4) (f32.const 5) (f64.const 6) (f32.const 7) (f64.const 8)))"
    "      (then (return (i32.const 7))))"
    "    (i32.const 0)))";

static void define_kinds(pagefork_linker_t *linker, int *calls) {
  OK(pagefork_linker_func_wrap(linker, "host", "nothing",
                               PAGEFORK_WRAP(nothing, void, int32_t, double), calls, NULL));
  OK(pagefork_linker_func_wrap(linker, "host", "small",
                               PAGEFORK_WRAP(small, int32_t, int64_t, float, int32_t), calls, NULL));
  OK(pagefork_linker_func_wrap(
      linker, "host", "large",
      PAGEFORK_WRAP(large, int64_t, int32_t, int32_t, int32_t, int32_t, int64_t), calls, NULL));
  OK(pagefork_linker_func_wrap(linker, "host", "narrow",
                               PAGEFORK_WRAP(narrow, float, double, float), calls, NULL));
  OK(pagefork_linker_func_wrap(
      linker, "host", "wide",
      PAGEFORK_WRAP(wide, double, float, double, float, double, float, double, float, double), calls,
      NULL));
}

static void kinds(wasm_engine_t *engine) {
  int calls = 0;
  pagefork_linker_t *linker = linker_of(engine);
  define_kinds(linker, &calls);
  wasm_module_t *module = module_of(engine, kinds_text);
  wasm_store_t *store = wasm_store_new(engine);
  wasm_instance_t *instance;
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  wasm_func_t *func = exported(instance, "run");
  pagefork_typed_func_t *typed;
  OK(pagefork_func_typed(func, ":i", &typed));
  for (int i = 1; i <= 3; i++) {
    CHECK(PAGEFORK_CALL(typed, int32_t, (pagefork_typed_func_t *), typed) == 0);
    CHECK(!typed->error && calls == i * 8);
  }
  /* The same once guests of the store may be suspended. */
  bool suspended;
  pagefork_val_t result;
  OK(pagefork_func_call_suspendable(func, NULL, 0, &result, 1, &suspended));
  CHECK(!suspended && result.of.i32 == 0 && calls == 4 * 8);
  pagefork_typed_func_delete(typed);
  wasm_func_delete(func);
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  wasm_module_delete(module);
  pagefork_linker_delete(linker);
}

/* What outer does besides calling the guest again. */
enum { RETURNS_ONLY, RAISES_BEFORE, RAISES_AFTER, RAISES_TWICE, INNER_RAISES, SUSPENDABLE, INTERRUPTS };

static const char nested_text[] =
    "(module (import \"host\" \"outer\" (func $outer (param i32) (result i32)))"
    "  (import \"host\" \"inner\" (func $inner (param i32) (result i32)))"
    "  (memory (export \"memory\") 1)"
    "  (func (export \"again\") (param i32) (result i32)"
    "    (i32.add (i32.const 1) (call $inner (local.get 0))))"
    "  (func (export \"run\") (param i32) (result i32)"
    "    (i32.add (i32.const 100) (call $outer (local.get 0)))))";

static wasm_func_t *again;

static int32_t inner(const pagefork_caller_t *caller, int32_t what) {
  check_caller(caller, &inner_env);
  inner_env.calls++;
  if (what == INNER_RAISES) pagefork_raise(caller, pagefork_error_new("inner"));
  return 10;
}

static int32_t outer(const pagefork_caller_t *caller, int32_t what) {
  pagefork_val_t arg = {WASM_I32, {.i32 = what}}, result = {WASM_I32, {.i32 = 0}};
  outer_env.calls++;
  check_caller(caller, &outer_env);
  if (what == RAISES_BEFORE || what == RAISES_TWICE)
    pagefork_raise(caller, pagefork_error_new("outer before"));
  if (what == SUSPENDABLE) {
    bool suspended;
    FAILS(pagefork_func_call_suspendable(again, &arg, 1, &result, 1, &suspended), "suspended");
  }
  if (what == INNER_RAISES) {
    FAILS(pagefork_func_call(again, &arg, 1, &result, 1), "inner");
    result.of.i32 = 11;
  } else {
    OK(pagefork_func_call(again, &arg, 1, &result, 1));
  }
  CHECK(result.of.i32 == 11);
  if (what == RAISES_AFTER || what == RAISES_TWICE)
    pagefork_raise(caller, pagefork_error_new("outer after"));
  if (what == INTERRUPTS) {
    pagefork_interrupt_t *interrupt;
    OK(pagefork_store_interrupt_handle(caller->store, &interrupt));
    pagefork_interrupt_guests(interrupt);
    pagefork_interrupt_delete(interrupt);
  }
  check_caller(caller, &outer_env);
  return result.of.i32;
}

static pagefork_error_t *call(wasm_func_t *run, int32_t what, int32_t *answer) {
  pagefork_val_t arg = {WASM_I32, {.i32 = what}}, result = {WASM_I32, {.i32 = 0}};
  pagefork_error_t *error = pagefork_func_call(run, &arg, 1, &result, 1);
  *answer = result.of.i32;
  return error;
}

/* A function fails by its own errors alone, and its caller is its own, also after guests ran in between. */
static void nested(wasm_engine_t *engine) {
  static const char *const errors[] = {NULL, "outer before", "outer after", "outer after", NULL, NULL, "interrupt"};
  pagefork_linker_t *linker = linker_of(engine);
  OK(pagefork_linker_func_wrap(linker, "host", "outer", PAGEFORK_WRAP(outer, int32_t, int32_t),
                               &outer_env, NULL));
  OK(pagefork_linker_func_wrap(linker, "host", "inner", PAGEFORK_WRAP(inner, int32_t, int32_t),
                               &inner_env, NULL));
  wasm_module_t *module = module_of(engine, nested_text);
  for (int last = RETURNS_ONLY; last <= INTERRUPTS; last++) {
    wasm_store_t *store = wasm_store_new(engine);
    wasm_instance_t *instance;
    OK(pagefork_linker_instantiate(linker, store, module, &instance));
    again = exported(instance, "again");
    wasm_func_t *run = exported(instance, "run");
    const int order[] = {RETURNS_ONLY, last, RETURNS_ONLY, last};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
      int32_t answer;
      outer_env.calls = inner_env.calls = 0;
      pagefork_error_t *error = call(run, order[i], &answer);
      CHECK(outer_env.calls == 1 && inner_env.calls == 1);
      if (errors[order[i]]) {
        FAILS(error, errors[order[i]]);
      } else {
        OK(error);
        CHECK(answer == 111);
      }
    }
    /* Reset, it is the same store with the same functions. */
    OK(pagefork_store_reset(store, NULL));
    int32_t answer;
    OK(call(run, RETURNS_ONLY, &answer));
    CHECK(answer == 111);
    wasm_func_delete(again);
    wasm_func_delete(run);
    wasm_instance_delete(instance);
    wasm_store_delete(store);
  }
  wasm_module_delete(module);
  pagefork_linker_delete(linker);
}

/* Whose store it is that a function is called from, by the data of each. */
static int32_t whose(const pagefork_caller_t *caller) {
  check_caller(caller, &outer_env);
  const int *data = pagefork_store_data(caller->store);
  return data ? *data : -1;
}

/* A store that is used again is another one for the functions that its guests call, from its start function on. */
static void spawned(wasm_engine_t *engine) {
  static const char text[] =
      "(module (import \"host\" \"whose\" (func $whose (result i32))) (memory (export \"memory\") 1)"
      "  (global $started (mut i32) (i32.const 0))"
      "  (func $start (drop (call $whose)) (global.set $started (i32.const 1))) (start $start)"
      "  (func (export \"run\") (result i32)"
      "    (i32.add (call $whose) (i32.mul (i32.const 1000) (global.get $started)))))";
  pagefork_linker_t *linker = linker_of(engine);
  OK(pagefork_linker_func_wrap(linker, "host", "whose", PAGEFORK_WRAP(whose, int32_t), &outer_env,
                               NULL));
  wasm_module_t *module = module_of(engine, text);
  pagefork_instance_pre_t *pre;
  OK(pagefork_linker_instantiate_pre(linker, module, &pre));
  for (int i = 0; i < 20; i++) {
    wasm_store_t *stores[3];
    wasm_instance_t *instances[3];
    int data[3];
    for (int j = 0; j < 3; j++) {
      data[j] = 10 * i + j;
      OK(pagefork_instance_pre_spawn(pre, NULL, &stores[j], &instances[j]));
      pagefork_store_set_data(stores[j], &data[j], NULL);
    }
    for (int j = 0; j < 3; j++) {
      wasm_func_t *run = exported(instances[j], "run");
      pagefork_val_t result;
      OK(pagefork_func_call(run, NULL, 0, &result, 1));
      CHECK(result.of.i32 == 1000 + data[j]);
      wasm_func_delete(run);
    }
    for (int j = 0; j < 3; j++) {
      wasm_instance_delete(instances[j]);
      wasm_store_delete(stores[j]);
    }
  }
  pagefork_instance_pre_delete(pre);
  wasm_module_delete(module);
  pagefork_linker_delete(linker);
}

/* Nothing runs that could fail. */
static void nothing_to_fail(wasm_engine_t *engine) {
  wasm_store_t *store = wasm_store_new(engine);
  const pagefork_caller_t caller = {NULL, store};
  pagefork_raise(&caller, pagefork_error_new("too late"));
  FAILS(pagefork_last_error(), "no function of the host runs");
  pagefork_linker_t *linker = linker_of(engine);
  int calls = 0;
  define_kinds(linker, &calls);
  wasm_module_t *module = module_of(engine, kinds_text);
  wasm_instance_t *instance;
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  wasm_func_t *func = exported(instance, "run");
  pagefork_val_t result;
  OK(pagefork_func_call(func, NULL, 0, &result, 1));
  wasm_func_delete(func);
  wasm_instance_delete(instance);
  wasm_module_delete(module);
  pagefork_linker_delete(linker);
  wasm_store_delete(store);
}

/* Functions of C's that call each other, with no guest between or around them. */
static wasm_func_t *inner_of[3];

static pagefork_error_t *inner_with_cells(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  if (cells[0].i32) pagefork_raise(caller, pagefork_error_new("inner"));
  cells[0].i32 = 10;
  return NULL;
}

static pagefork_error_t *inner_with_values(const pagefork_caller_t *caller,
                                           const pagefork_val_t *args, size_t count,
                                           pagefork_val_t *results, size_t result_count) {
  CHECK(count == 1 && result_count == 1);
  if (args[0].of.i32) pagefork_raise(caller, pagefork_error_new("inner"));
  results[0].of.i32 = 10;
  return NULL;
}

static int32_t inner_alone(const pagefork_caller_t *caller, int32_t raises) {
  if (raises) pagefork_raise(caller, pagefork_error_new("inner"));
  return 10;
}

/* Bits: 1 for an error of its own before, 2 for one of the inner function's. */
static int32_t outer_alone(const pagefork_caller_t *caller, int32_t what) {
  if (what & 1) pagefork_raise(caller, pagefork_error_new("outer"));
  for (size_t i = 0; i < 3; i++) {
    pagefork_val_t arg = {WASM_I32, {.i32 = what >> 1}}, result = {WASM_I32, {.i32 = 0}};
    pagefork_error_t *error = pagefork_func_call(inner_of[i], &arg, 1, &result, 1);
    if (what >> 1) {
      FAILS(error, "inner");
    } else {
      OK(error);
      CHECK(result.of.i32 == 10);
    }
  }
  return what;
}

/* What each fails with is its own, called by the host, by another one, and by a guest. */
static void among_functions_of_c(wasm_engine_t *engine) {
  static const char text[] =
      "(module (import \"\" \"f\" (func $f (param i32) (result i32))) (memory (export \"memory\") 1)"
      "  (func (export \"run\") (param i32) (result i32) (call $f (local.get 0))))";
  wasm_store_t *store = wasm_store_new(engine);
  wasm_functype_t *type = wasm_functype_new_1_1(wasm_valtype_new_i32(), wasm_valtype_new_i32());
  wasm_func_t *outer;
  OK(pagefork_func_new_raw(store, type, inner_with_cells, NULL, NULL, &inner_of[0]));
  OK(pagefork_func_new(store, type, inner_with_values, NULL, NULL, &inner_of[1]));
  OK(pagefork_func_wrap(store, PAGEFORK_WRAP(inner_alone, int32_t, int32_t), NULL, NULL, &inner_of[2]));
  OK(pagefork_func_wrap(store, PAGEFORK_WRAP(outer_alone, int32_t, int32_t), NULL, NULL, &outer));
  wasm_module_t *module = module_of(engine, text);
  wasm_extern_t *imports[] = {wasm_func_as_extern(outer)};
  const wasm_extern_vec_t all = {1, imports};
  wasm_instance_t *instance = wasm_instance_new(store, module, &all, NULL);
  wasm_func_t *run = exported(instance, "run");
  wasm_func_t *const ways[] = {outer, run, outer};
  for (int what = 0; what < 4; what++) {
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
      int32_t answer;
      pagefork_error_t *error = call(ways[i], what, &answer);
      if (what & 1) {
        FAILS(error, "outer");
      } else {
        OK(error);
        CHECK(answer == what);
      }
      /* Nothing of it is left. */
      OK(call(run, 0, &answer));
      CHECK(answer == 0);
    }
  }
  for (size_t i = 0; i < 3; i++) wasm_func_delete(inner_of[i]);
  wasm_func_delete(run);
  wasm_func_delete(outer);
  wasm_instance_delete(instance);
  wasm_module_delete(module);
  wasm_functype_delete(type);
  wasm_store_delete(store);
}

int main(void) {
  wasm_engine_t *engine;
  OK(pagefork_engine_new(NULL, &engine));
  kinds(engine);
  nested(engine);
  spawned(engine);
  nothing_to_fail(engine);
  among_functions_of_c(engine);
  wasm_engine_delete(engine);
  puts("ok");
  return 0;
}
