/* Calls in both directions with numbers and references; globals, tables and memories. */

#include "check.h"

static int finalized;

static void count_finalized(void *data) {
  (void)data;
  finalized++;
}

/* Gives its arguments back in the other order. */
static wasm_trap_t *mix(const wasm_val_vec_t *args, wasm_val_vec_t *results) {
  CHECK(args->size == 4 && results->size == 4);
  for (size_t i = 0; i < 4; i++) results->data[i] = args->data[3 - i];
  return NULL;
}

static wasm_trap_t *sum(void *env, const wasm_val_vec_t *args, wasm_val_vec_t *results) {
  ++*(int *)env;
  CHECK(results->data[0].kind == WASM_I32 && results->data[0].of.i32 == 0);
  for (size_t i = 0; i < args->size; i++) {
    CHECK(args->data[i].kind == WASM_I32);
    results->data[0].of.i32 += args->data[i].of.i32 << i;
  }
  return NULL;
}

static void numbers(wasm_store_t *store) {
  int calls = 0;
  wasm_module_t *module = COMPILE(store, numbers);
  wasm_importtype_vec_t imports;
  wasm_module_imports(module, &imports);
  CHECK(imports.size == 2);
  const wasm_functype_t *types[2];
  for (int i = 0; i < 2; i++) {
    types[i] = wasm_externtype_as_functype_const(wasm_importtype_type(imports.data[i]));
  }
  wasm_func_t *host_mix = wasm_func_new(store, types[0], mix);
  wasm_func_t *host_sum = wasm_func_new_with_env(store, types[1], sum, &calls, count_finalized);
  CHECK(wasm_func_param_arity(host_sum) == 10 && wasm_func_result_arity(host_sum) == 1);
  wasm_importtype_vec_delete(&imports);
  wasm_extern_t *externs[] = {wasm_func_as_extern(host_mix), wasm_func_as_extern(host_sum)};
  wasm_extern_vec_t given = WASM_ARRAY_VEC(externs);
  wasm_instance_t *instance = wasm_instance_new(store, module, &given, NULL);
  keep(instance);
  keep(host_mix);
  keep(host_sum);

  RETURNS(wasm_func_call(find_func(module, instance, "nop"), NULL, NULL));

  wasm_func_t *func = find_func(module, instance, "mix");
  wasm_val_t in[] = {WASM_I32_VAL(-3), WASM_I64_VAL(INT64_MIN), WASM_F32_VAL(1.25f),
                     WASM_F64_VAL(-0.0)};
  wasm_val_t out[4];
  wasm_val_vec_t args = WASM_ARRAY_VEC(in), results = WASM_ARRAY_VEC(out);
  for (int way = 0; way < 2; way++) {
    memset(out, 0xff, sizeof out);
    RETURNS(wasm_func_call(way ? host_mix : func, &args, &results));
    CHECK(out[0].kind == WASM_F64 && out[0].of.f64 == 0 && out[0].of.i64 == INT64_MIN);
    CHECK(out[1].kind == WASM_F32 && out[1].of.f32 == 1.25f);
    CHECK(out[2].kind == WASM_I64 && out[2].of.i64 == INT64_MIN);
    CHECK(out[3].kind == WASM_I32 && out[3].of.i32 == -3);
  }

  wasm_val_t ten[10], one[1];
  for (int i = 0; i < 10; i++) ten[i] = (wasm_val_t)WASM_I32_VAL(1);
  wasm_val_vec_t many = WASM_ARRAY_VEC(ten), single = WASM_ARRAY_VEC(one);
  RETURNS(wasm_func_call(find_func(module, instance, "sum"), &many, &single));
  CHECK(one[0].of.i32 == 1023 && calls == 1);
  RETURNS(wasm_func_call(host_sum, &many, &single));
  CHECK(one[0].of.i32 == 1023 && calls == 2);

  /* Arguments that do not fit are refused before anything is called. */
  TRAPS(wasm_func_call(host_sum, &args, &single), "10 arguments are needed, and 4 were given");
  ten[9].kind = WASM_I64;
  TRAPS(wasm_func_call(host_sum, &many, &single), "parameter 9 is i64, expected i32");
  TRAPS(wasm_func_call(NULL, &many, &single), "null");
  CHECK(calls == 2);
  wasm_val_vec_t malformed = {10, NULL};
  TRAPS(wasm_func_call(host_sum, &malformed, &single), "null");
  ten[9].kind = WASM_I32;
  TRAPS(wasm_func_call(host_sum, &many, NULL), "1 results are needed, and 0 were given");
  CHECK(calls == 3);
  TRAPS(wasm_func_call(find_func(module, instance, "v128"), NULL, &single), "pagefork.h");

  wasm_functype_t *type = wasm_func_type(host_sum);
  CHECK(wasm_functype_params(type)->size == 10);
  wasm_functype_delete(type);

  /* Globals. */
  wasm_global_t *counter = wasm_extern_as_global(find_export(module, instance, "counter"));
  wasm_val_t value;
  wasm_global_get(counter, &value);
  CHECK(value.kind == WASM_I64 && value.of.i64 == 5);
  value.of.i64 = 6;
  wasm_global_set(counter, &value);
  wasm_global_get(counter, &value);
  CHECK(value.of.i64 == 6);
  value.kind = WASM_I32;
  wasm_global_set(counter, &value);
  wasm_global_get(counter, &value);
  CHECK(value.kind == WASM_I64 && value.of.i64 == 6);
  wasm_global_t *constant = wasm_extern_as_global(find_export(module, instance, "constant"));
  wasm_val_t two = WASM_F32_VAL(2);
  wasm_global_set(constant, &two);
  wasm_global_get(constant, &value);
  CHECK(value.kind == WASM_F32 && value.of.f32 == 1.5f);
  wasm_globaltype_t *global_type = wasm_global_type(constant);
  CHECK(wasm_globaltype_mutability(global_type) == WASM_CONST);
  wasm_global_t *own = (wasm_global_t *)keep(wasm_global_new(store, global_type, &two));
  wasm_global_get(own, &value);
  CHECK(value.of.f32 == 2);
  value.kind = WASM_F64;
  CHECK(!wasm_global_new(store, global_type, &value));
  wasm_globaltype_delete(global_type);
  /* A vector is nothing that wasm.h has. */
  wasm_global_get(wasm_extern_as_global(find_export(module, instance, "vector")), &value);
  CHECK(value.kind == WASM_I32 && value.of.i32 == 0);

  int variable;
  wasm_val_init_ptr(&value, &variable);
  CHECK(wasm_val_ptr(&value) == &variable);
}

/* Gives its arguments back in the other order. */
static wasm_trap_t *pass(const wasm_val_vec_t *args, wasm_val_vec_t *results) {
  CHECK(results->data[0].kind == WASM_FUNCREF && !results->data[0].of.ref);
  CHECK(results->data[1].kind == WASM_EXTERNREF && !results->data[1].of.ref);
  wasm_val_copy(&results->data[0], &args->data[1]);
  wasm_val_copy(&results->data[1], &args->data[0]);
  return NULL;
}

static wasm_instance_t *instance_with_references(wasm_store_t *store, wasm_module_t *module) {
  wasm_functype_t *type =
      wasm_functype_new_2_2(wasm_valtype_new_externref(), wasm_valtype_new_funcref(),
                            wasm_valtype_new_funcref(), wasm_valtype_new_externref());
  wasm_func_t *host = wasm_func_new(store, type, pass);
  wasm_functype_delete(type);
  wasm_extern_t *externs[] = {wasm_func_as_extern(host)};
  wasm_extern_vec_t given = WASM_ARRAY_VEC(externs);
  wasm_instance_t *instance = wasm_instance_new(store, module, &given, NULL);
  wasm_func_delete(host);
  return (wasm_instance_t *)keep(instance);
}

static void references(wasm_store_t *store) {
  wasm_module_t *module = COMPILE(store, references);
  wasm_instance_t *instance = instance_with_references(store, module);
  wasm_func_t *seven = find_func(module, instance, "seven");
  wasm_foreign_t *foreign = wasm_foreign_new(store);
  wasm_byte_vec_t text;
  wasm_byte_vec_new(&text, 1, "");
  wasm_trap_t *trap = (wasm_trap_t *)keep(wasm_trap_new(store, &text));
  wasm_byte_vec_delete(&text);
  wasm_limits_t limits = {1, 2};
  wasm_memorytype_t *memory_type = wasm_memorytype_new(&limits);
  wasm_memory_t *memory = (wasm_memory_t *)keep(wasm_memory_new(store, memory_type));
  wasm_memorytype_delete(memory_type);
  wasm_table_t *externs = wasm_extern_as_table(find_export(module, instance, "externs"));
  wasm_global_t *global = wasm_extern_as_global(find_export(module, instance, "extern"));

  /* Whatever it is passes through a guest, and is the same. */
  wasm_ref_t *refs[] = {wasm_foreign_as_ref(foreign), wasm_trap_as_ref(trap),
                        wasm_func_as_ref(seven),      wasm_module_as_ref(module),
                        wasm_instance_as_ref(instance), wasm_memory_as_ref(memory),
                        wasm_table_as_ref(externs),   wasm_global_as_ref(global), NULL};
  wasm_func_t *function = find_func(module, instance, "pass");
  for (size_t i = 0; i < sizeof refs / sizeof *refs; i++) {
    wasm_val_t in[] = {WASM_REF_VAL(refs[i]), WASM_REF_VAL(i % 2 ? wasm_func_as_ref(seven) : NULL)};
    wasm_val_t out[2];
    wasm_val_vec_t args = WASM_ARRAY_VEC(in), results = WASM_ARRAY_VEC(out);
    RETURNS(wasm_func_call(function, &args, &results));
    CHECK(out[0].kind == WASM_FUNCREF && out[1].kind == WASM_EXTERNREF);
    CHECK(wasm_ref_same(out[0].of.ref, in[1].of.ref));
    CHECK(wasm_ref_same(out[1].of.ref, refs[i]));
    CHECK(!refs[i] || !wasm_ref_same(out[1].of.ref, refs[(i + 1) % 8]));
    wasm_val_vec_t owned;
    wasm_val_vec_new(&owned, 2, out);
    wasm_val_vec_t copy;
    wasm_val_vec_copy(&copy, &owned);
    wasm_val_vec_delete(&owned);
    CHECK(wasm_ref_same(copy.data[1].of.ref, refs[i]));
    wasm_val_vec_delete(&copy);
    wasm_val_vec_new_uninitialized(&owned, 2);
    wasm_val_vec_delete(&owned);
    wasm_val_vec_new_empty(&owned);
    CHECK(!owned.size);
  }
  wasm_val_t in[] = {WASM_REF_VAL(NULL), WASM_REF_VAL(wasm_foreign_as_ref(foreign))}, out[2];
  wasm_val_vec_t args = WASM_ARRAY_VEC(in), results = WASM_ARRAY_VEC(out);
  TRAPS(wasm_func_call(function, &args, &results), "a function is needed");
  in[1] = (wasm_val_t)WASM_I64_VAL(1);
  TRAPS(wasm_func_call(function, &args, &results), "i64");

  /* A function that was a reference can be called. */
  wasm_func_t *call = find_func(module, instance, "call");
  wasm_val_t callee[] = {WASM_REF_VAL(wasm_func_as_ref(seven))}, answer[1];
  wasm_val_vec_t call_args = WASM_ARRAY_VEC(callee), call_results = WASM_ARRAY_VEC(answer);
  RETURNS(wasm_func_call(call, &call_args, &call_results));
  CHECK(answer[0].of.i32 == 7);

  /* Tables. */
  CHECK(wasm_table_size(externs) == 4);
  CHECK(wasm_table_set(externs, 3, refs[0]) && !wasm_table_set(externs, 4, refs[0]));
  wasm_ref_t *element = wasm_table_get(externs, 3);
  CHECK(wasm_ref_same(element, refs[0]) && wasm_ref_as_foreign(element));
  wasm_ref_delete(element);
  CHECK(!wasm_table_get(externs, 2) && !wasm_table_get(externs, 4));
  CHECK(wasm_table_grow(externs, 6, refs[1]) && !wasm_table_grow(externs, 1, NULL));
  CHECK(wasm_table_size(externs) == 10);
  element = wasm_table_get(externs, 9);
  CHECK(wasm_trap_same(wasm_ref_as_trap(element), trap));
  wasm_ref_delete(element);
  wasm_table_t *funcs = wasm_extern_as_table(find_export(module, instance, "funcs"));
  element = wasm_table_get(funcs, 1);
  CHECK(wasm_func_same(wasm_ref_as_func(element), seven));
  wasm_ref_delete(element);
  CHECK(!wasm_table_set(funcs, 0, refs[0]) && wasm_table_set(funcs, 0, NULL));
  wasm_tabletype_t *table_type = wasm_table_type(externs);
  CHECK(wasm_tabletype_limits(table_type)->min == 10);
  wasm_table_t *own = (wasm_table_t *)keep(wasm_table_new(store, table_type, refs[0]));
  element = wasm_table_get(own, 9);
  CHECK(wasm_ref_same(element, refs[0]));
  wasm_ref_delete(element);
  wasm_tabletype_delete(table_type);
  wasm_limits_t wrong = {3, 2};
  table_type = wasm_tabletype_new(wasm_valtype_new_funcref(), &wrong);
  CHECK(!wasm_table_new(store, table_type, NULL));
  wasm_tabletype_delete(table_type);

  /* A global takes a copy. */
  wasm_val_t value = WASM_REF_VAL(refs[0]), got;
  wasm_global_set(global, &value);
  wasm_global_get(global, &got);
  CHECK(wasm_ref_same(got.of.ref, refs[0]));
  wasm_val_delete(&got);
  CHECK(!got.of.ref);
  wasm_foreign_delete(foreign);
  wasm_global_get(global, &got);
  CHECK(wasm_ref_as_foreign(got.of.ref));
  wasm_val_delete(&got);

  /* Objects of another store are refused. */
  wasm_engine_t *engine = wasm_engine_new();
  wasm_store_t *other = wasm_store_new(engine);
  wasm_foreign_t *stranger = wasm_foreign_new(other);
  value.of.ref = wasm_foreign_as_ref(stranger);
  wasm_global_set(global, &value);
  CHECK(!wasm_table_set(externs, 0, value.of.ref));
  wasm_trap_t *refused;
  CHECK(!wasm_instance_new(other, module, NULL, &refused));
  TRAPS(refused, "engine");
  wasm_foreign_delete(stranger);
  wasm_store_delete(other);
  wasm_engine_delete(engine);
  wasm_global_get(global, &got);
  CHECK(wasm_ref_as_foreign(got.of.ref));
  wasm_val_delete(&got);
}

static void memories(wasm_store_t *store) {
  wasm_module_t *module = COMPILE(store, memory);
  wasm_instance_t *instance = instantiate(store, module);
  wasm_memory_t *memory = wasm_extern_as_memory(find_export(module, instance, "memory"));
  CHECK(wasm_memory_size(memory) == 2 && wasm_memory_data_size(memory) == 2 * MEMORY_PAGE_SIZE);
  char *data = wasm_memory_data(memory);
  CHECK(memcmp(data + 0x1000, "abc", 3) == 0);
  wasm_func_t *load = find_func(module, instance, "load");
  wasm_func_t *put = find_func(module, instance, "store");
  data[5] = 77;
  wasm_val_t in[] = {WASM_I32_VAL(5), WASM_I32_VAL(0)}, out[1];
  wasm_val_vec_t args = {1, in}, two = {2, in}, results = WASM_ARRAY_VEC(out), none = WASM_EMPTY_VEC;
  RETURNS(wasm_func_call(load, &args, &results));
  CHECK(out[0].of.i32 == 77);
  CHECK(wasm_memory_grow(memory, 2) && !wasm_memory_grow(memory, 1));
  CHECK(wasm_memory_size(memory) == 4 && wasm_memory_data(memory) == data);
  in[0].of.i32 = 4 * MEMORY_PAGE_SIZE - 1;
  in[1].of.i32 = 8;
  RETURNS(wasm_func_call(put, &two, &none));
  CHECK(data[4 * MEMORY_PAGE_SIZE - 1] == 8);
  in[0].of.i32++;
  TRAPS(wasm_func_call(put, &two, &none), "out of bounds");
  wasm_memorytype_t *type = wasm_memory_type(memory);
  CHECK(wasm_memorytype_limits(type)->min == 4 && wasm_memorytype_limits(type)->max == 4);
  wasm_memory_t *own = wasm_memory_new(store, type);
  CHECK(wasm_memory_size(own) == 4 && wasm_memory_data(own)[0] == 0);
  wasm_memorytype_delete(type);
  wasm_memory_delete(own);
}

int main(void) {
  wasm_engine_t *engine = wasm_engine_new();
  wasm_store_t *store = wasm_store_new(engine);
  numbers(store);
  references(store);
  memories(store);
  delete_kept();
  wasm_store_delete(store);
  wasm_engine_delete(engine);
  puts("ok");
  return 0;
}
