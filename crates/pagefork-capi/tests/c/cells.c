/* C functions on cells: what they are given and give, however they are reached, how they fail, and that their caller
 * stays as it is whatever happens while they run, which holds of functions with values, too. */

#include "check.h"
#include "pagefork.h"

#define OK(call) RETURNS(call)
#define FAILS(call, text) TRAPS((call), (text))

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

/* A type by its letters, as signatures have them, and V for vectors. */
static wasm_functype_t *type_of(const char *params, const char *results) {
  const char *const lists[] = {params, results};
  wasm_valtype_vec_t vecs[2];
  for (int list = 0; list < 2; list++) {
    wasm_valtype_t *types[16];
    size_t count = strlen(lists[list]);
    for (size_t i = 0; i < count; i++) {
      const char letter = lists[list][i];
      types[i] = letter == 'V' ? wasm_valtype_new(PAGEFORK_V128)
                               : wasm_valtype_new(letter == 'i'   ? WASM_I32
                                                  : letter == 'I' ? WASM_I64
                                                  : letter == 'f' ? WASM_F32
                                                                  : WASM_F64);
    }
    wasm_valtype_vec_new(&vecs[list], count, types);
  }
  return wasm_functype_new(&vecs[0], &vecs[1]);
}

static void define(pagefork_linker_t *linker, const char *name, const char *params,
                   const char *results, pagefork_raw_callback_t function, void *env) {
  wasm_functype_t *type = type_of(params, results);
  OK(pagefork_linker_func_raw(linker, "host", name, type, function, env, NULL));
  wasm_functype_delete(type);
}

/* Results of each kind, of one argument, of none and of several. What a cell has besides its value is 0 before, and
 * does not count after. */

static int32_t i32_of(const pagefork_cell_t *cell) {
  CHECK(cell->v128[0] <= UINT32_MAX && cell->v128[1] == 0);
  return cell->i32;
}

static int64_t i64_of(const pagefork_cell_t *cell) {
  CHECK(cell->v128[1] == 0);
  return cell->i64;
}

static void fill(pagefork_cell_t *cell) { memset(cell, 0xa5, sizeof *cell); }

static void count(const pagefork_caller_t *caller) { ++*(int *)caller->env; }

static pagefork_error_t *none_of_one(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  count(caller);
  CHECK(i32_of(&cells[0]) == -1);
  fill(&cells[0]);
  return NULL;
}

static pagefork_error_t *i32_of_one(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  count(caller);
  const int64_t arg = i64_of(&cells[0]);
  fill(&cells[0]);
  cells[0].i32 = (int32_t)(arg >> 32);
  return NULL;
}

static pagefork_error_t *i64_of_none(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  count(caller);
  cells[0].i64 = 0x123456789;
  return NULL;
}

static pagefork_error_t *f32_of_one(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  count(caller);
  const int32_t arg = i32_of(&cells[0]);
  fill(&cells[0]);
  cells[0].f32 = (float)arg / 2;
  return NULL;
}

static pagefork_error_t *f64_of_one(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  count(caller);
  const int32_t arg = i32_of(&cells[0]);
  fill(&cells[0]);
  cells[0].f64 = arg / 4.0;
  return NULL;
}

/* 12345 of the arguments 1 to 5, of which the last two have 64 bits, above as well. */
static int64_t five(pagefork_cell_t *cells) {
  const int64_t fourth = i64_of(&cells[3]), fifth = i64_of(&cells[4]);
  CHECK(fourth >> 32 == 40 && fifth >> 32 == 50);
  const int64_t sum = i32_of(&cells[0]) * 10000 + i32_of(&cells[1]) * 1000 + i32_of(&cells[2]) * 100 +
                      (fourth & 0xff) * 10 + (fifth & 0xff);
  for (int i = 0; i < 5; i++) fill(&cells[i]);
  return sum;
}

static pagefork_error_t *none_of_five(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  count(caller);
  CHECK(five(cells) == 12345);
  return NULL;
}

static pagefork_error_t *i32_of_five(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  count(caller);
  cells[0].i32 = (int32_t)five(cells);
  return NULL;
}

static pagefork_error_t *i64_of_five(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  count(caller);
  cells[0].i64 = five(cells) << 32;
  return NULL;
}

static pagefork_error_t *f32_of_five(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  count(caller);
  cells[0].f32 = (float)five(cells);
  return NULL;
}

static pagefork_error_t *f64_of_five(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  count(caller);
  cells[0].f64 = (double)five(cells) / 4;
  return NULL;
}

/* What no register holds, or not in this order. */
static pagefork_error_t *mixed(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  count(caller);
  CHECK(i32_of(&cells[0]) == 1 && cells[1].f64 == 2.5 && i32_of(&cells[2]) == 3 && cells[3].f32 == 4.5f);
  cells[0].f64 = 5.5;
  return NULL;
}

static pagefork_error_t *two(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  count(caller);
  CHECK(cells[0].v128[0] == 1 && cells[0].v128[1] == 2);
  cells[0].i64 = 6;
  cells[1].i32 = 7;
  return NULL;
}

#define FIVE(numbers) \
  numbers "(local.get $wide)) (i32.wrap_i64 (i64.add (local.get $wide) (i64.const 1)))" \
          "(i32.wrap_i64 (i64.add (local.get $wide) (i64.const 2)))" \
          "(i64.const 0x2800000004) (i64.const 0x3200000005)"

/* Each is called at a call site, and some in place of their caller, through a table, and where exceptions are caught.
 * Arguments of 32 bits come from 64, whose rest may be in registers. */
static const char kinds_text[] =
    "(module"
    "  (type $i32_of_five (func (param i32 i32 i32 i64 i64) (result i32)))"
    "  (import \"host\" \"none_of_one\" (func $none_of_one (param i32)))"
    "  (import \"host\" \"i32_of_one\" (func $i32_of_one (param i64) (result i32)))"
    "  (import \"host\" \"i64_of_none\" (func $i64_of_none (result i64)))"
    "  (import \"host\" \"f32_of_one\" (func $f32_of_one (param i32) (result f32)))"
    "  (import \"host\" \"f64_of_one\" (func $f64_of_one (param i32) (result f64)))"
    "  (import \"host\" \"none_of_five\" (func $none_of_five (param i32 i32 i32 i64 i64)))"
    "  (import \"host\" \"i32_of_five\" (func $i32_of_five (type $i32_of_five)))"
    "  (import \"host\" \"i64_of_five\" (func $i64_of_five (param i32 i32 i32 i64 i64) (result i64)))"
    "  (import \"host\" \"f32_of_five\" (func $f32_of_five (param i32 i32 i32 i64 i64) (result f32)))"
    "  (import \"host\" \"f64_of_five\" (func $f64_of_five (param i32 i32 i32 i64 i64) (result f64)))"
    "  (import \"host\" \"mixed\" (func $mixed (param i32 f64 i32 f32) (result f64)))"
    "  (import \"host\" \"two\" (func $two (param v128) (result i64 i32)))"
    "  (table 1 1 funcref) (elem (i32.const 0) $i32_of_five) (tag $tag)"
    "  (func $tail (param $wide i64) (result i32)"
    "    (return_call $i32_of_five " FIVE("(i32.wrap_i64 ") "))"
    "  (func $caught (param $wide i64) (result i32)"
    "    (block $out (try_table (catch $tag $out)"
    "      (return (call $i32_of_five " FIVE("(i32.wrap_i64 ") "))))"
    "    (unreachable))"
    "  (func (export \"run\") (param $wide i64) (result i32) (local $i64 i64) (local $i32 i32)"
    "    (call $none_of_one (i32.wrap_i64 (i64.sub (local.get $wide) (i64.const 2))))"
    "    (if (i64.ne (i64.const 0xfffffff6) (i64.extend_i32_u (call $i32_of_one (i64.const 0xfffffff612345678))))"
    "      (then (return (i32.const 1))))"
    "    (if (i64.ne (i64.const 0x123456789) (call $i64_of_none)) (then (return (i32.const 2))))"
    "    (if (f32.ne (f32.const 0.5) (call $f32_of_one (i32.wrap_i64 (local.get $wide)))) (then (return (i32.const 3))))"
    "    (if (f64.ne (f64.const 0.25) (call $f64_of_one (i32.wrap_i64 (local.get $wide)))) (then (return (i32.const 4))))"
    "    (call $none_of_five " FIVE("(i32.wrap_i64 ") ")"
    "    (if (i64.ne (i64.const 12345) (i64.extend_i32_u (call $i32_of_five " FIVE("(i32.wrap_i64 ") ")))"
    "      (then (return (i32.const 5))))"
    "    (if (i64.ne (i64.const 0x303900000000) (call $i64_of_five " FIVE("(i32.wrap_i64 ") "))"
    "      (then (return (i32.const 6))))"
    "    (if (f32.ne (f32.const 12345) (call $f32_of_five " FIVE("(i32.wrap_i64 ") ")) (then (return (i32.const 7))))"
    "    (if (f64.ne (f64.const 3086.25) (call $f64_of_five " FIVE("(i32.wrap_i64 ") "))"
    "      (then (return (i32.const 8))))"
    "    (if (f64.ne (f64.const 5.5) (call $mixed (i32.const 1) (f64.const 2.5) (i32.const 3) (f32.const 4.5)))"
    "      (then (return (i32.const 9))))"
    "    (call $two (v128.const i64x2 1 2)) (local.set $i32) (local.set $i64)"
    "    (if (i64.ne (i64.const 67) (i64.add (i64.mul (local.get $i64) (i64.const 10)) (i64.extend_i32_u (local.get $i32))))"
    "      (then (return (i32.const 10))))"
    "    (if (i32.ne (i32.const 12345) (call_indirect (type $i32_of_five) " FIVE("(i32.wrap_i64 ") " (i32.const 0)))"
    "      (then (return (i32.const 11))))"
    "    (if (i32.ne (i32.const 12345) (call $tail (local.get $wide))) (then (return (i32.const 12))))"
    "    (if (i32.ne (i32.const 12345) (call $caught (local.get $wide))) (then (return (i32.const 13))))"
    "    (i32.const 0)))";

static void kinds(wasm_engine_t *engine) {
  int calls = 0;
  pagefork_linker_t *linker;
  OK(pagefork_linker_new(engine, &linker));
  define(linker, "none_of_one", "i", "", none_of_one, &calls);
  define(linker, "i32_of_one", "I", "i", i32_of_one, &calls);
  define(linker, "i64_of_none", "", "I", i64_of_none, &calls);
  define(linker, "f32_of_one", "i", "f", f32_of_one, &calls);
  define(linker, "f64_of_one", "i", "F", f64_of_one, &calls);
  define(linker, "none_of_five", "iiiII", "", none_of_five, &calls);
  define(linker, "i32_of_five", "iiiII", "i", i32_of_five, &calls);
  define(linker, "i64_of_five", "iiiII", "I", i64_of_five, &calls);
  define(linker, "f32_of_five", "iiiII", "f", f32_of_five, &calls);
  define(linker, "f64_of_five", "iiiII", "F", f64_of_five, &calls);
  define(linker, "mixed", "iFif", "F", mixed, &calls);
  define(linker, "two", "V", "Ii", two, &calls);
  wasm_module_t *module = module_of(engine, kinds_text);
  wasm_store_t *store = wasm_store_new(engine);
  wasm_instance_t *instance;
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  wasm_func_t *func = exported(instance, "run");
  pagefork_val_t wide = {WASM_I64, {.i64 = 0x7654321000000001}}, result;
  for (int i = 1; i <= 4; i++) {
    bool suspended = false;
    if (i < 3) {
      OK(pagefork_func_call(func, &wide, 1, &result, 1));
    } else {
      /* The same once guests of the store may be suspended. */
      OK(pagefork_func_call_suspendable(func, &wide, 1, &result, 1, &suspended));
    }
    CHECK(!suspended && result.of.i32 == 0 && calls == i * 15);
  }
  wasm_func_delete(func);
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  wasm_module_delete(module);
  pagefork_linker_delete(linker);
}

/* How functions fail. */
enum { RETURNS_ONLY, RETURNS_AN_ERROR, RAISES, BOTH, RETURNS_WHAT_IS_NO_ERROR, THROWS, INTERRUPTS, LAST };

struct failing {
  wasm_extern_t *tag;
  int calls;
};

static pagefork_error_t *fails(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  struct failing *failing = caller->env;
  const int32_t what = cells[0].i32;
  failing->calls++;
  cells[0].i32 = 10;
  if (what == RAISES || what == BOTH) pagefork_raise(caller, pagefork_error_new("raised"));
  if (what == RETURNS_AN_ERROR || what == BOTH) return pagefork_error_new("returned");
  if (what == RETURNS_WHAT_IS_NO_ERROR) return (pagefork_error_t *)wasm_foreign_new(caller->store);
  if (what == INTERRUPTS) {
    pagefork_interrupt_t *interrupt;
    OK(pagefork_store_interrupt_handle(caller->store, &interrupt));
    pagefork_interrupt_guests(interrupt);
    pagefork_interrupt_delete(interrupt);
  }
  if (what == THROWS) {
    const pagefork_val_t value = {WASM_I32, {.i32 = 42}};
    pagefork_error_t *exception;
    OK(pagefork_exception_new(failing->tag, &value, 1, &exception));
    return exception;
  }
  return NULL;
}

static pagefork_error_t *call(wasm_func_t *run, int32_t what, int32_t *answer) {
  pagefork_val_t arg = {WASM_I32, {.i32 = what}}, result = {WASM_I32, {.i32 = 0}};
  pagefork_error_t *error = pagefork_func_call(run, &arg, 1, &result, 1);
  *answer = result.of.i32;
  return error;
}

/* Guests end by what such a function returns, raises or throws, which they may catch; the next call finds nothing of
 * it. With one parameter, and with more. */
static void failures(wasm_engine_t *engine) {
  static const char *const errors[LAST] = {NULL, "returned", "raised", "returned", "a trap is needed", NULL, "interrupt"};
  static const char text[] =
      "(module (import \"host\" \"one\" (func $one (param i32) (result i32)))"
      "  (import \"host\" \"many\" (func $many (param i32 i32) (result i32)))"
      "  (tag $tag (export \"tag\") (param i32))"
      "  (func (export \"one\") (param i32) (result i32)"
      "    (block $out (result i32) (try_table (catch $tag $out) (return (call $one (local.get 0)))) (unreachable)))"
      "  (func (export \"many\") (param i32) (result i32)"
      "    (block $out (result i32) (try_table (catch $tag $out)"
      "      (return (call $many (local.get 0) (i32.const 5)))) (unreachable))))";
  static const char *const names[] = {"one", "many"};
  struct failing failing = {NULL, 0};
  pagefork_linker_t *linker;
  OK(pagefork_linker_new(engine, &linker));
  define(linker, "one", "i", "i", fails, &failing);
  define(linker, "many", "ii", "i", fails, &failing);
  wasm_module_t *module = module_of(engine, text);
  wasm_store_t *store = wasm_store_new(engine);
  wasm_instance_t *instance;
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  OK(pagefork_instance_export(instance, "tag", &failing.tag));
  for (int name = 0; name < 2; name++) {
    wasm_func_t *run = exported(instance, names[name]);
    for (int what = RETURNS_ONLY; what < LAST; what++) {
      for (int i = 0; i < 3; i++) {
        int32_t answer;
        failing.calls = 0;
        pagefork_error_t *error = call(run, what, &answer);
        CHECK(failing.calls == 1);
        if (errors[what]) {
          FAILS(error, errors[what]);
        } else {
          OK(error);
          CHECK(answer == (what == THROWS ? 42 : 10));
        }
        OK(call(run, RETURNS_ONLY, &answer));
        CHECK(answer == 10);
      }
    }
    wasm_func_delete(run);
  }
  wasm_extern_delete(failing.tag);
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  wasm_module_delete(module);
  pagefork_linker_delete(linker);
}

/* A caller is that function's own also while guests that it calls call others. */

static const pagefork_caller_t *callers[8];
static char envs[8];
static size_t depth;
static wasm_func_t *down;

static void check_callers(void) {
  for (size_t i = 0; i < depth; i++) CHECK(callers[i]->env == &envs[i % 3]);
}

static int32_t goes_down(const pagefork_caller_t *caller) {
  callers[depth++] = caller;
  check_callers();
  int32_t answer = (int32_t)depth;
  if (depth < 8) {
    pagefork_val_t arg = {WASM_I32, {.i32 = (int32_t)depth % 3}}, result;
    OK(pagefork_func_call(down, &arg, 1, &result, 1));
    answer = result.of.i32;
  }
  check_callers();
  depth--;
  return answer;
}

static pagefork_error_t *on_cells(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  cells[0].i32 = goes_down(caller);
  return NULL;
}

static pagefork_error_t *on_values(const pagefork_caller_t *caller, const pagefork_val_t *args, size_t arg_count,
                                   pagefork_val_t *results, size_t result_count) {
  (void)args;
  CHECK(arg_count == 0 && result_count == 1);
  results[0].of.i32 = goes_down(caller);
  return NULL;
}

static int32_t on_its_own(const pagefork_caller_t *caller) { return goes_down(caller); }

static void callers_are_their_functions(wasm_engine_t *engine) {
  static const char text[] =
      "(module (import \"\" \"0\" (func $0 (result i32))) (import \"\" \"1\" (func $1 (result i32)))"
      "  (import \"\" \"2\" (func $2 (result i32)))"
      "  (func (export \"down\") (param i32) (result i32)"
      "    (if (i32.eqz (local.get 0)) (then (return (call $0))))"
      "    (if (i32.eq (local.get 0) (i32.const 1)) (then (return (call $1))))"
      "    (call $2)))";
  wasm_module_t *module = module_of(engine, text);
  wasm_functype_t *type = type_of("", "i");
  for (int suspendable = 0; suspendable < 2; suspendable++) {
    wasm_store_t *store = wasm_store_new(engine);
    wasm_func_t *funcs[3];
    OK(pagefork_func_new_raw(store, type, on_cells, &envs[0], NULL, &funcs[0]));
    OK(pagefork_func_new(store, type, on_values, &envs[1], NULL, &funcs[1]));
    OK(pagefork_func_wrap(store, PAGEFORK_WRAP(on_its_own, int32_t), &envs[2], NULL, &funcs[2]));
    wasm_extern_t *imports[] = {wasm_func_as_extern(funcs[0]), wasm_func_as_extern(funcs[1]),
                                wasm_func_as_extern(funcs[2])};
    const wasm_extern_vec_t all = {3, imports};
    wasm_instance_t *instance = wasm_instance_new(store, module, &all, NULL);
    down = exported(instance, "down");
    for (int i = 0; i < 3; i++) {
      pagefork_val_t arg = {WASM_I32, {.i32 = 0}}, result;
      bool suspended;
      if (suspendable && i == 1) {
        OK(pagefork_func_call_suspendable(down, &arg, 1, &result, 1, &suspended));
      } else {
        OK(pagefork_func_call(down, &arg, 1, &result, 1));
      }
      CHECK(result.of.i32 == 8 && depth == 0);
    }
    wasm_func_delete(down);
    wasm_instance_delete(instance);
    for (int i = 0; i < 3; i++) wasm_func_delete(funcs[i]);
    wasm_store_delete(store);
  }
  wasm_functype_delete(type);
  wasm_module_delete(module);
}

/* A mistake that is easily made: the result is written behind the arguments, and not in place of the first. */

static pagefork_error_t *behind_one(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  (void)caller;
  fill(&cells[1]);
  return NULL;
}

static pagefork_error_t *behind_five(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  (void)caller;
  fill(&cells[5]);
  return NULL;
}

/* Then the result is the first argument, and nothing else is wrong: the guest and its store go on. */
static void results_behind_the_arguments_are_none(wasm_engine_t *engine) {
  pagefork_linker_t *linker;
  OK(pagefork_linker_new(engine, &linker));
  define(linker, "one", "I", "I", behind_one, NULL);
  define(linker, "five", "IIIII", "I", behind_five, NULL);
  wasm_module_t *module = module_of(
      engine,
      "(module (import \"host\" \"one\" (func $one (param i64) (result i64)))"
      "  (import \"host\" \"five\" (func $five (param i64 i64 i64 i64 i64) (result i64)))"
      "  (func (export \"run\") (param i64) (result i64)"
      "    (i64.add (call $one (local.get 0))"
      "      (call $five (local.get 0) (i64.const 1) (i64.const 2) (i64.const 3) (i64.const 4)))))");
  wasm_store_t *store = wasm_store_new(engine);
  wasm_instance_t *instance;
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  wasm_func_t *run = exported(instance, "run");
  for (int turn = 0; turn < 3; turn++) {
    pagefork_val_t arg = {.kind = WASM_I64, .of.i64 = 21}, result;
    OK(pagefork_func_call(run, &arg, 1, &result, 1));
    CHECK(result.of.i64 == 42);
  }
  wasm_func_delete(run);
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  wasm_module_delete(module);
  pagefork_linker_delete(linker);
}

int main(void) {
  wasm_engine_t *engine;
  OK(pagefork_engine_new(NULL, &engine));
  kinds(engine);
  results_behind_the_arguments_are_none(engine);
  failures(engine);
  callers_are_their_functions(engine);
  wasm_engine_delete(engine);
  puts("ok");
  return 0;
}
