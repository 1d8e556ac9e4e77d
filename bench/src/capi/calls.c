/*
 * Calls through C interfaces, many at a time: what the benchmark `capi` measures. It is compiled when
 * the benchmark runs, and finds the functions of each library by name, so that all are called by
 * pointers, as those of a shared library are.
 */

#include "pagefork.h"

/* The address of a library's function; null if it has none of this name. */
typedef void *(*find_t)(void *library, const char *name);

/* What of wasmtime.h is used. */
typedef struct wasmtime_context wasmtime_context_t;
typedef struct wasmtime_store wasmtime_store_t;
typedef struct wasmtime_module wasmtime_module_t;
typedef struct wasmtime_linker wasmtime_linker_t;
typedef struct wasmtime_caller wasmtime_caller_t;
typedef struct wasmtime_error wasmtime_error_t;
typedef struct wasmtime_instance_pre wasmtime_instance_pre_t;
typedef struct { uint64_t store; void *private_; } wasmtime_func_t;
typedef struct { uint64_t store; size_t private_; } wasmtime_instance_t;
typedef struct { uint8_t kind; union { wasmtime_func_t func; uint64_t other[3]; } of; } wasmtime_extern_t;
typedef struct { uint8_t kind; union { int32_t i32; int64_t i64; uint64_t other[3]; } of; } wasmtime_val_t;
typedef union { int32_t i32; int64_t i64; uint64_t other[2]; } wasmtime_val_raw_t;
_Static_assert(sizeof(wasmtime_val_t) == 32 && sizeof(wasmtime_extern_t) == 32, "its layout");
typedef wasm_trap_t *(*wasmtime_callback_t)(void *, wasmtime_caller_t *, const wasmtime_val_t *,
                                            size_t, wasmtime_val_t *, size_t);
typedef wasm_trap_t *(*wasmtime_raw_callback_t)(void *, wasmtime_caller_t *, wasmtime_val_raw_t *,
                                                size_t);
wasmtime_store_t *wasmtime_store_new(wasm_engine_t *, void *, void (*)(void *));
void wasmtime_store_delete(wasmtime_store_t *);
wasmtime_context_t *wasmtime_store_context(wasmtime_store_t *);
wasmtime_error_t *wasmtime_module_new(wasm_engine_t *, const uint8_t *, size_t, wasmtime_module_t **);
wasmtime_linker_t *wasmtime_linker_new(wasm_engine_t *);
wasmtime_error_t *wasmtime_linker_define_func(wasmtime_linker_t *, const char *, size_t,
                                              const char *, size_t, const wasm_functype_t *,
                                              wasmtime_callback_t, void *, void (*)(void *));
wasmtime_error_t *wasmtime_linker_define_func_unchecked(wasmtime_linker_t *, const char *, size_t,
                                                        const char *, size_t,
                                                        const wasm_functype_t *,
                                                        wasmtime_raw_callback_t, void *,
                                                        void (*)(void *));
wasmtime_error_t *wasmtime_linker_instantiate(const wasmtime_linker_t *, wasmtime_context_t *,
                                              const wasmtime_module_t *, wasmtime_instance_t *,
                                              wasm_trap_t **);
wasmtime_error_t *wasmtime_linker_instantiate_pre(const wasmtime_linker_t *,
                                                  const wasmtime_module_t *,
                                                  wasmtime_instance_pre_t **);
wasmtime_error_t *wasmtime_instance_pre_instantiate(const wasmtime_instance_pre_t *,
                                                    wasmtime_context_t *, wasmtime_instance_t *,
                                                    wasm_trap_t **);
bool wasmtime_instance_export_get(wasmtime_context_t *, const wasmtime_instance_t *, const char *,
                                  size_t, wasmtime_extern_t *);
wasmtime_error_t *wasmtime_func_call(wasmtime_context_t *, const wasmtime_func_t *,
                                     const wasmtime_val_t *, size_t, wasmtime_val_t *, size_t,
                                     wasm_trap_t **);
wasmtime_error_t *wasmtime_func_call_unchecked(wasmtime_context_t *, const wasmtime_func_t *,
                                               wasmtime_val_raw_t *, size_t, wasm_trap_t **);

#define WASM(F)                                                                                 \
  F(wasm_engine_new) F(wasm_store_new) F(wasm_store_delete) F(wasm_module_new)                  \
  F(wasm_valtype_new) F(wasm_valtype_vec_new) F(wasm_functype_new)        \
  F(wasm_func_new) F(wasm_func_as_extern) F(wasm_instance_new) F(wasm_instance_exports)         \
  F(wasm_instance_delete) F(wasm_extern_as_func) F(wasm_func_call)
#define PAGEFORK(F)                                                                             \
  F(pagefork_module_new) F(pagefork_linker_new) F(pagefork_linker_func)                         \
  F(pagefork_linker_func_raw) F(pagefork_linker_func_wrap) F(pagefork_linker_instantiate)       \
  F(pagefork_linker_instantiate_pre) F(pagefork_instance_export) F(pagefork_func_call)          \
  F(pagefork_func_call_raw) F(pagefork_func_typed) F(pagefork_typed_func_delete)                \
  F(pagefork_instance_pre_spawn) F(wasm_extern_delete) F(pagefork_module_export)                \
  F(pagefork_instance_typed_export) F(pagefork_instance_pre_typed_export)                      \
  F(pagefork_instance_typed_func)
#define WASMTIME(F)                                                                             \
  F(wasmtime_store_new) F(wasmtime_store_delete) F(wasmtime_store_context)                      \
  F(wasmtime_module_new) F(wasmtime_linker_new) F(wasmtime_linker_define_func)                  \
  F(wasmtime_linker_define_func_unchecked) F(wasmtime_linker_instantiate)                       \
  F(wasmtime_linker_instantiate_pre) F(wasmtime_instance_pre_instantiate)                       \
  F(wasmtime_instance_export_get) F(wasmtime_func_call) F(wasmtime_func_call_unchecked)

#define FIELD(name) __typeof__(&name) name;
#define FIND(name)                                                                              \
  if (!(side->name = (__typeof__(&name))find(library, #name))) return #name;

/* A library, with a guest that was compiled and linked in each way. */
struct side {
  WASM(FIELD) PAGEFORK(FIELD) WASMTIME(FIELD)
  wasm_engine_t *engine;
  wasm_store_t *store;
  wasm_module_t *module;
  wasm_extern_vec_t exports;
  /* Of pagefork.h, whose host functions have values, cells, and their own arguments. */
  pagefork_typed_func_t *typed[3][5];
  wasm_func_t *func[3][5];
  pagefork_instance_pre_t *pre;
  pagefork_export_t *found;
  pagefork_typed_func_t *fresh;
  /* Of wasmtime.h, whose host functions have values and cells. */
  wasmtime_context_t *context;
  wasmtime_func_t theirs[2][5];
  wasmtime_instance_pre_t *their_pre;
};

enum { NOP, I64, MANY, LOOP_I64, LOOP_MANY };

static const char *const names[] = {"nop", "i64", "many", "loop_i64", "loop_many"};
static const char *const signatures[] = {"", ":I", "", "i:I", "i:I"};

/* Host functions in each form. */

static wasm_trap_t *i64(const wasm_val_vec_t *args, wasm_val_vec_t *results) {
  (void)args;
  results->data[0].kind = WASM_I64;
  results->data[0].of.i64 = 7;
  return NULL;
}

static wasm_trap_t *many(const wasm_val_vec_t *args, wasm_val_vec_t *results) {
  results->data[0].kind = WASM_I32;
  results->data[0].of.i32 = args->data[0].of.i32 + args->data[2].of.i32 + args->data[3].of.i32;
  return NULL;
}

static pagefork_error_t *i64_values(const pagefork_caller_t *caller, const pagefork_val_t *args,
                                    size_t count, pagefork_val_t *results, size_t result_count) {
  (void)caller, (void)args, (void)count, (void)result_count;
  results[0].kind = WASM_I64;
  results[0].of.i64 = 7;
  return NULL;
}

static pagefork_error_t *many_values(const pagefork_caller_t *caller, const pagefork_val_t *args,
                                     size_t count, pagefork_val_t *results, size_t result_count) {
  (void)caller, (void)count, (void)result_count;
  results[0].kind = WASM_I32;
  results[0].of.i32 = args[0].of.i32 + args[2].of.i32 + args[3].of.i32;
  return NULL;
}

static pagefork_error_t *i64_cells(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  (void)caller;
  cells[0].i64 = 7;
  return NULL;
}

static pagefork_error_t *many_cells(const pagefork_caller_t *caller, pagefork_cell_t *cells) {
  (void)caller;
  cells[0].i32 = cells[0].i32 + cells[2].i32 + cells[3].i32;
  return NULL;
}

static int64_t i64_direct(const pagefork_caller_t *caller) {
  (void)caller;
  return 7;
}

static int32_t many_direct(const pagefork_caller_t *caller, int32_t a, int32_t b, int32_t c,
                           int32_t d, int32_t e) {
  (void)caller, (void)b, (void)e;
  return a + c + d;
}

static wasm_trap_t *i64_theirs(void *env, wasmtime_caller_t *caller, const wasmtime_val_t *args,
                               size_t count, wasmtime_val_t *results, size_t result_count) {
  (void)env, (void)caller, (void)args, (void)count, (void)result_count;
  results[0].kind = WASM_I64;
  results[0].of.i64 = 7;
  return NULL;
}

static wasm_trap_t *many_theirs(void *env, wasmtime_caller_t *caller, const wasmtime_val_t *args,
                                size_t count, wasmtime_val_t *results, size_t result_count) {
  (void)env, (void)caller, (void)count, (void)result_count;
  results[0].kind = WASM_I32;
  results[0].of.i32 = args[0].of.i32 + args[2].of.i32 + args[3].of.i32;
  return NULL;
}

static wasm_trap_t *i64_their_cells(void *env, wasmtime_caller_t *caller, wasmtime_val_raw_t *cells,
                                    size_t count) {
  (void)env, (void)caller, (void)count;
  cells[0].i64 = 7;
  return NULL;
}

static wasm_trap_t *many_their_cells(void *env, wasmtime_caller_t *caller,
                                     wasmtime_val_raw_t *cells, size_t count) {
  (void)env, (void)caller, (void)count;
  cells[0].i32 = cells[0].i32 + cells[2].i32 + cells[3].i32;
  return NULL;
}

static wasm_functype_t *type_of(struct side *side, size_t params, wasm_valkind_t kind) {
  wasm_valtype_t *in[5], *out[1] = {side->wasm_valtype_new(kind)};
  wasm_valtype_vec_t in_vec, out_vec;
  for (size_t i = 0; i < params; i++) in[i] = side->wasm_valtype_new(WASM_I32);
  side->wasm_valtype_vec_new(&in_vec, params, in);
  side->wasm_valtype_vec_new(&out_vec, 1, out);
  return side->wasm_functype_new(&in_vec, &out_vec);
}

/* Makes a store by wasm.h, whose exports are in the order of `names`. */
static const char *make_wasm(struct side *side, size_t size, const char *bytes) {
  wasm_byte_vec_t binary = {size, (char *)bytes};
  side->store = side->wasm_store_new(side->engine);
  side->module = side->wasm_module_new(side->store, &binary);
  if (!side->module) return "wasm_module_new has failed";
  wasm_func_t *a = side->wasm_func_new(side->store, type_of(side, 0, WASM_I64), i64);
  wasm_func_t *b = side->wasm_func_new(side->store, type_of(side, 5, WASM_I32), many);
  wasm_extern_t *imports[] = {side->wasm_func_as_extern(a), side->wasm_func_as_extern(b)};
  wasm_extern_vec_t vec = WASM_ARRAY_VEC(imports);
  wasm_instance_t *instance = side->wasm_instance_new(side->store, side->module, &vec, NULL);
  if (!instance) return "wasm_instance_new has failed";
  side->wasm_instance_exports(instance, &side->exports);
  return NULL;
}

static const char *make_pagefork(struct side *side, size_t size, const char *bytes) {
  wasm_module_t *module;
  if (side->pagefork_module_new(side->engine, bytes, size, &module)) return "pagefork_module_new";
  for (int form = 0; form < 3; form++) {
    pagefork_linker_t *linker;
    side->pagefork_linker_new(side->engine, &linker);
    wasm_functype_t *a = type_of(side, 0, WASM_I64), *b = type_of(side, 5, WASM_I32);
    if (form == 0) {
      side->pagefork_linker_func(linker, "host", "i64", a, i64_values, NULL, NULL);
      side->pagefork_linker_func(linker, "host", "many", b, many_values, NULL, NULL);
    } else if (form == 1) {
      side->pagefork_linker_func_raw(linker, "host", "i64", a, i64_cells, NULL, NULL);
      side->pagefork_linker_func_raw(linker, "host", "many", b, many_cells, NULL, NULL);
    } else {
      side->pagefork_linker_func_wrap(linker, "host", "i64", ":I",
                                      PAGEFORK_FUNCTION(i64_direct, int64_t), NULL, NULL);
      side->pagefork_linker_func_wrap(linker, "host", "many", "iiiii:i",
                                      PAGEFORK_FUNCTION(many_direct, int32_t, int32_t, int32_t,
                                                        int32_t, int32_t, int32_t),
                                      NULL, NULL);
      side->pagefork_linker_instantiate_pre(linker, module, &side->pre);
      if (side->pagefork_module_export(module, names[I64], signatures[I64], &side->found))
        return "pagefork_module_export";
      if (side->pagefork_instance_pre_typed_export(side->pre, NULL, NULL, side->found, &side->fresh))
        return "pagefork_instance_pre_typed_export";
    }
    wasm_instance_t *instance;
    wasm_store_t *store = side->wasm_store_new(side->engine);
    if (side->pagefork_linker_instantiate(linker, store, module, &instance))
      return "pagefork_linker_instantiate";
    for (int i = 0; i < 5; i++) {
      wasm_extern_t *external;
      side->pagefork_instance_export(instance, names[i], &external);
      side->func[form][i] = side->wasm_extern_as_func(external);
      if (side->pagefork_func_typed(side->func[form][i], signatures[i], &side->typed[form][i]))
        return "pagefork_func_typed";
    }
  }
  return NULL;
}

static const char *make_wasmtime(struct side *side, size_t size, const char *bytes) {
  wasmtime_module_t *module;
  if (side->wasmtime_module_new(side->engine, (const uint8_t *)bytes, size, &module))
    return "wasmtime_module_new";
  side->context = side->wasmtime_store_context(side->wasmtime_store_new(side->engine, NULL, NULL));
  for (int form = 0; form < 2; form++) {
    wasmtime_linker_t *linker = side->wasmtime_linker_new(side->engine);
    wasm_functype_t *a = type_of(side, 0, WASM_I64), *b = type_of(side, 5, WASM_I32);
    if (form == 0) {
      side->wasmtime_linker_define_func(linker, "host", 4, "i64", 3, a, i64_theirs, NULL, NULL);
      side->wasmtime_linker_define_func(linker, "host", 4, "many", 4, b, many_theirs, NULL, NULL);
    } else {
      side->wasmtime_linker_define_func_unchecked(linker, "host", 4, "i64", 3, a, i64_their_cells,
                                                  NULL, NULL);
      side->wasmtime_linker_define_func_unchecked(linker, "host", 4, "many", 4, b,
                                                  many_their_cells, NULL, NULL);
    }
    wasmtime_instance_t instance;
    wasm_trap_t *trap = NULL;
    if (side->wasmtime_linker_instantiate(linker, side->context, module, &instance, &trap) || trap)
      return "wasmtime_linker_instantiate";
    for (int i = 0; i < 5; i++) {
      wasmtime_extern_t external;
      size_t length = __builtin_strlen(names[i]);
      if (!side->wasmtime_instance_export_get(side->context, &instance, names[i], length, &external))
        return names[i];
      side->theirs[form][i] = external.of.func;
    }
    if (form == 1 && side->wasmtime_linker_instantiate_pre(linker, module, &side->their_pre))
      return "wasmtime_linker_instantiate_pre";
  }
  return NULL;
}

/* Fills a side, of Pagefork or of the peer; the name of what is not there or has failed, or null. */
const char *side_make(struct side *side, bool is_peer, find_t find, void *library, size_t size,
                      const char *bytes) {
  WASM(FIND)
  if (is_peer) {
    WASMTIME(FIND)
  } else {
    PAGEFORK(FIND)
  }
  side->engine = side->wasm_engine_new();
  const char *failed = make_wasm(side, size, bytes);
  if (failed) return failed;
  return is_peer ? make_wasmtime(side, size, bytes) : make_pagefork(side, size, bytes);
}

size_t side_size(void) { return sizeof(struct side); }

/* What is measured: `count` calls of the function with this number, whose results are added up. */

uint64_t wasm_calls(struct side *side, int function, uint32_t count) {
  const wasm_func_t *func = side->wasm_extern_as_func(side->exports.data[function]);
  wasm_val_t arg[] = {WASM_I32_VAL(100)}, result[] = {WASM_I64_VAL(0)};
  wasm_val_vec_t args = {function >= LOOP_I64, arg};
  wasm_val_vec_t results = {function == I64 || function >= LOOP_I64, result};
  uint64_t sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (side->wasm_func_call(func, &args, &results)) return 0;
    sum += (uint64_t)result[0].of.i64;
  }
  return sum;
}

uint64_t pagefork_typed_calls(struct side *side, int function, uint32_t count) {
  pagefork_typed_func_t *func = side->typed[2][function];
  uint64_t sum = 0;
  switch (function) {
    case I64:
      for (uint32_t i = 0; i < count; i++)
        sum += (uint64_t)PAGEFORK_CALL(func, int64_t, (pagefork_typed_func_t *), func);
      break;
    case LOOP_I64:
    case LOOP_MANY:
      for (uint32_t i = 0; i < count; i++)
        sum += (uint64_t)PAGEFORK_CALL(func, int64_t, (pagefork_typed_func_t *, int32_t), func, 100);
      break;
    default:
      for (uint32_t i = 0; i < count; i++) {
        PAGEFORK_CALL(func, void, (pagefork_typed_func_t *), func);
        if (func->error) return 1;
      }
  }
  return sum;
}

uint64_t pagefork_value_calls(struct side *side, int function, uint32_t count) {
  const wasm_func_t *func = side->func[0][function];
  pagefork_val_t arg = {WASM_I32, {.i32 = 100}}, result = {WASM_I64, {.i64 = 0}};
  size_t args = function >= LOOP_I64, results = function == I64 || function >= LOOP_I64;
  uint64_t sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (side->pagefork_func_call(func, &arg, args, &result, results)) return 0;
    sum += (uint64_t)result.of.i64;
  }
  return sum;
}

uint64_t pagefork_raw_calls(struct side *side, int function, uint32_t count) {
  const wasm_func_t *func = side->func[1][function];
  uint64_t sum = 0;
  pagefork_cell_t cell = {.i64 = 0};
  for (uint32_t i = 0; i < count; i++) {
    if (function >= LOOP_I64) cell.i32 = 100;
    if (side->pagefork_func_call_raw(func, &cell, 1)) return 0;
    sum += (uint64_t)cell.i64;
  }
  return sum;
}

uint64_t wasmtime_value_calls(struct side *side, int function, uint32_t count) {
  const wasmtime_func_t *func = &side->theirs[0][function];
  wasmtime_val_t arg = {WASM_I32, {.i32 = 100}}, result = {WASM_I64, {.i64 = 0}};
  size_t args = function >= LOOP_I64, results = function == I64 || function >= LOOP_I64;
  uint64_t sum = 0;
  wasm_trap_t *trap = NULL;
  for (uint32_t i = 0; i < count; i++) {
    if (side->wasmtime_func_call(side->context, func, &arg, args, &result, results, &trap) || trap)
      return 0;
    sum += (uint64_t)result.of.i64;
  }
  return sum;
}

uint64_t wasmtime_raw_calls(struct side *side, int function, uint32_t count) {
  const wasmtime_func_t *func = &side->theirs[1][function];
  uint64_t sum = 0;
  wasm_trap_t *trap = NULL;
  wasmtime_val_raw_t cell = {.i64 = 0};
  for (uint32_t i = 0; i < count; i++) {
    if (function >= LOOP_I64) cell.i32 = 100;
    if (side->wasmtime_func_call_unchecked(side->context, func, &cell, 1, &trap) || trap) return 0;
    sum += (uint64_t)cell.i64;
  }
  return sum;
}

/* Requests, each with an instance of its own, which is called once. */

uint64_t pagefork_requests(struct side *side, int function, uint32_t count) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    wasm_store_t *store;
    wasm_instance_t *instance;
    pagefork_typed_func_t *func;
    if (side->pagefork_instance_pre_spawn(side->pre, NULL, &store, &instance)) return 0;
    if (side->pagefork_instance_typed_func(instance, names[function], signatures[function], &func)) return 0;
    sum += (uint64_t)PAGEFORK_CALL(func, int64_t, (pagefork_typed_func_t *), func);
    side->pagefork_typed_func_delete(func);
    side->wasm_instance_delete(instance);
    side->wasm_store_delete(store);
  }
  return sum;
}

/* The same with an object of the function, which is made a typed one. */
uint64_t pagefork_object_requests(struct side *side, int function, uint32_t count) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    wasm_store_t *store;
    wasm_instance_t *instance;
    wasm_extern_t *external;
    pagefork_typed_func_t *func;
    if (side->pagefork_instance_pre_spawn(side->pre, NULL, &store, &instance)) return 0;
    side->pagefork_instance_export(instance, names[function], &external);
    side->pagefork_func_typed(side->wasm_extern_as_func(external), signatures[function], &func);
    sum += (uint64_t)PAGEFORK_CALL(func, int64_t, (pagefork_typed_func_t *), func);
    side->pagefork_typed_func_delete(func);
    side->wasm_extern_delete(external);
    side->wasm_instance_delete(instance);
    side->wasm_store_delete(store);
  }
  return sum;
}

/* The same of an export that was found once: `i64`. */
uint64_t pagefork_found_requests(struct side *side, int function, uint32_t count) {
  uint64_t sum = 0;
  (void)function;
  for (uint32_t i = 0; i < count; i++) {
    wasm_store_t *store;
    wasm_instance_t *instance;
    pagefork_typed_func_t *func;
    if (side->pagefork_instance_pre_spawn(side->pre, NULL, &store, &instance)) return 0;
    if (side->pagefork_instance_typed_export(instance, side->found, &func)) return 0;
    sum += (uint64_t)PAGEFORK_CALL(func, int64_t, (pagefork_typed_func_t *), func);
    side->pagefork_typed_func_delete(func);
    side->wasm_instance_delete(instance);
    side->wasm_store_delete(store);
  }
  return sum;
}

/* The same by a typed function that runs in a fresh instance each time. */
uint64_t pagefork_fresh_requests(struct side *side, int function, uint32_t count) {
  uint64_t sum = 0;
  (void)function;
  pagefork_typed_func_t *func = side->fresh;
  for (uint32_t i = 0; i < count; i++) {
    sum += (uint64_t)PAGEFORK_CALL(func, int64_t, (pagefork_typed_func_t *), func);
    if (func->error) return 0;
  }
  return sum;
}

uint64_t wasmtime_requests(struct side *side, int function, uint32_t count) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    wasmtime_store_t *store = side->wasmtime_store_new(side->engine, NULL, NULL);
    wasmtime_context_t *context = side->wasmtime_store_context(store);
    wasmtime_instance_t instance;
    wasmtime_extern_t external;
    wasm_trap_t *trap = NULL;
    wasmtime_val_raw_t cell = {.i64 = 0};
    if (side->wasmtime_instance_pre_instantiate(side->their_pre, context, &instance, &trap)) return 0;
    size_t length = __builtin_strlen(names[function]);
    side->wasmtime_instance_export_get(context, &instance, names[function], length, &external);
    if (side->wasmtime_func_call_unchecked(context, &external.of.func, &cell, 1, &trap)) return 0;
    sum += (uint64_t)cell.i64;
    side->wasmtime_store_delete(store);
  }
  return sum;
}
