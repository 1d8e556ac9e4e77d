/* Objects: their identity, what is attached to them, how long they live, and misuse of them. */

#include "check.h"

#define COUNT 16

static int finalized[COUNT];

static void finalize(void *data) { finalized[(size_t)data]++; }

/* Everything that references of each kind have in common; `other` is of another identity. */
#define REFERENCE(name, kind, number, object, other)                                            \
  do {                                                                                          \
    wasm_##name##_t *copy = wasm_##name##_copy(object);                                         \
    CHECK(wasm_##name##_same(copy, object) && wasm_##name##_same(object, object));              \
    CHECK(!wasm_##name##_same(object, other) && !wasm_##name##_same(object, NULL));             \
    CHECK(wasm_##name##_same(NULL, NULL) && !wasm_##name##_copy(NULL));                         \
    CHECK(!wasm_##name##_get_host_info(copy));                                                  \
    wasm_##name##_set_host_info(copy, (void *)9);                                               \
    CHECK(wasm_##name##_get_host_info(object) == (void *)9);                                    \
    wasm_##name##_set_host_info_with_finalizer(object, (void *)number, finalize);               \
    CHECK(wasm_##name##_get_host_info(copy) == (void *)number && !finalized[number]);           \
    CHECK(!wasm_##name##_get_host_info(other) && !wasm_##name##_get_host_info(NULL));           \
    wasm_##name##_set_host_info(NULL, NULL);                                                    \
    wasm_##name##_delete(copy);                                                                 \
    wasm_##name##_delete(NULL);                                                                 \
    CHECK(!finalized[number]);                                                                  \
  } while (0)

#define AS_REFERENCE(name, number, object, other, stranger)                                     \
  do {                                                                                          \
    REFERENCE(name, name, number, object, other);                                               \
    wasm_ref_t *general = wasm_##name##_as_ref(object);                                         \
    const wasm_ref_t *constant = wasm_##name##_as_ref_const(object);                            \
    CHECK(wasm_ref_as_##name(general) == object);                                               \
    CHECK(wasm_ref_as_##name##_const(constant) == object);                                      \
    CHECK(!wasm_ref_as_##name(stranger) && !wasm_ref_as_##name##_const(stranger));              \
    CHECK(!wasm_ref_as_##name(NULL) && !wasm_##name##_as_ref(NULL));                            \
    CHECK(wasm_ref_get_host_info(general) == (void *)number);                                   \
  } while (0)

#define EXTERNAL(name, kind, object)                                                            \
  do {                                                                                          \
    wasm_extern_t *external = wasm_##name##_as_extern(object);                                  \
    const wasm_extern_t *constant = wasm_##name##_as_extern_const(object);                      \
    CHECK(wasm_extern_kind(external) == kind && wasm_extern_kind(constant) == kind);            \
    CHECK(wasm_extern_as_##name(external) == object);                                           \
    CHECK(wasm_extern_as_##name##_const(constant) == object);                                   \
    CHECK((wasm_extern_as_func(external) != NULL) == (kind == WASM_EXTERN_FUNC));               \
    CHECK((wasm_extern_as_global(external) != NULL) == (kind == WASM_EXTERN_GLOBAL));           \
    CHECK((wasm_extern_as_table(external) != NULL) == (kind == WASM_EXTERN_TABLE));             \
    CHECK((wasm_extern_as_memory(external) != NULL) == (kind == WASM_EXTERN_MEMORY));           \
    wasm_externtype_t *type = wasm_extern_type(external);                                       \
    CHECK(wasm_externtype_kind(type) == kind);                                                  \
    wasm_externtype_delete(type);                                                               \
  } while (0)

static wasm_trap_t *return_at_once(const wasm_val_vec_t *args, wasm_val_vec_t *results) {
  (void)args, (void)results;
  return NULL;
}

static wasm_global_t *new_global(wasm_store_t *store) {
  wasm_globaltype_t *type = wasm_globaltype_new(wasm_valtype_new_i32(), WASM_VAR);
  wasm_val_t value = WASM_I32_VAL(1);
  wasm_global_t *global = wasm_global_new(store, type, &value);
  wasm_globaltype_delete(type);
  return global;
}

static wasm_func_t *new_func(wasm_store_t *store) {
  wasm_functype_t *type = wasm_functype_new_0_0();
  wasm_func_t *func = wasm_func_new(store, type, return_at_once);
  wasm_functype_delete(type);
  return func;
}

static wasm_table_t *new_table(wasm_store_t *store) {
  wasm_limits_t limits = {2, 8};
  wasm_tabletype_t *type = wasm_tabletype_new(wasm_valtype_new_externref(), &limits);
  wasm_table_t *table = wasm_table_new(store, type, NULL);
  wasm_tabletype_delete(type);
  return table;
}

static wasm_memory_t *new_memory(wasm_store_t *store) {
  wasm_limits_t limits = {1, 8};
  wasm_memorytype_t *type = wasm_memorytype_new(&limits);
  wasm_memory_t *memory = wasm_memory_new(store, type);
  wasm_memorytype_delete(type);
  return memory;
}

static wasm_trap_t *new_trap(wasm_store_t *store) {
  wasm_message_t message;
  wasm_name_new_from_string_nt(&message, "oh");
  wasm_trap_t *trap = wasm_trap_new(store, &message);
  wasm_name_delete(&message);
  return trap;
}

static wasm_module_t *new_module(wasm_store_t *store) {
  wasm_byte_vec_t binary = GUEST(empty);
  return wasm_module_new(store, &binary);
}

static void all_kinds(wasm_engine_t *engine) {
  wasm_store_t *store = wasm_store_new(engine);
  wasm_func_t *func = new_func(store), *func2 = new_func(store);
  wasm_global_t *global = new_global(store), *global2 = new_global(store);
  wasm_table_t *table = new_table(store), *table2 = new_table(store);
  wasm_memory_t *memory = new_memory(store), *memory2 = new_memory(store);
  wasm_module_t *module = new_module(store), *module2 = new_module(store);
  wasm_instance_t *instance = wasm_instance_new(store, module, NULL, NULL);
  wasm_instance_t *instance2 = wasm_instance_new(store, module, NULL, NULL);
  wasm_foreign_t *foreign = wasm_foreign_new(store), *foreign2 = wasm_foreign_new(store);
  wasm_trap_t *trap = new_trap(store), *trap2 = new_trap(store);
  wasm_ref_t *ref = wasm_foreign_as_ref(foreign), *of_func = wasm_func_as_ref(func);

  AS_REFERENCE(func, 1, func, func2, ref);
  AS_REFERENCE(global, 2, global, global2, ref);
  AS_REFERENCE(table, 3, table, table2, ref);
  AS_REFERENCE(memory, 4, memory, memory2, ref);
  AS_REFERENCE(module, 5, module, module2, ref);
  AS_REFERENCE(instance, 6, instance, instance2, ref);
  AS_REFERENCE(foreign, 7, foreign, foreign2, of_func);
  AS_REFERENCE(trap, 8, trap, trap2, ref);
  wasm_global_t *third = new_global(store), *fourth = new_global(store);
  wasm_extern_t *external = wasm_global_as_extern(third);
  AS_REFERENCE(extern, 9, external, wasm_global_as_extern(fourth), ref);
  wasm_foreign_t *foreign3 = wasm_foreign_new(store);
  REFERENCE(ref, foreign, 10, wasm_foreign_as_ref(foreign3), wasm_foreign_as_ref(foreign2));
  EXTERNAL(func, WASM_EXTERN_FUNC, func);
  EXTERNAL(global, WASM_EXTERN_GLOBAL, global);
  EXTERNAL(table, WASM_EXTERN_TABLE, table);
  EXTERNAL(memory, WASM_EXTERN_MEMORY, memory);

  /* Another thing in its place: the finalizer of the first is called. */
  wasm_func_set_host_info_with_finalizer(func, (void *)11, finalize);
  CHECK(finalized[1] == 1 && !finalized[11]);

  /* An export is the same function as what it is taken from, by every name. */
  wasm_extern_vec_t exports, copy;
  wasm_instance_exports(instance, &exports);
  wasm_extern_vec_copy(&copy, &exports);
  CHECK(exports.size == 2 && wasm_extern_same(exports.data[0], copy.data[0]));
  CHECK(!wasm_extern_same(exports.data[0], exports.data[1]));
  wasm_extern_vec_delete(&copy);
  wasm_extern_vec_new(&copy, exports.size, exports.data);
  wasm_extern_vec_delete(&copy);
  /* Its elements went with the vector that took them over. */
  exports.size = 0;
  wasm_extern_vec_delete(&exports);
  wasm_extern_vec_new_empty(&copy);
  CHECK(!copy.size && !copy.data);
  wasm_extern_vec_new_uninitialized(&copy, 1);
  wasm_extern_vec_delete(&copy);

  /* What is of no store goes with its last reference. */
  wasm_foreign_delete(foreign);
  CHECK(finalized[7] == 1);
  wasm_foreign_delete(foreign3);
  CHECK(finalized[10] == 1);
  wasm_trap_delete(trap);
  CHECK(finalized[8] == 1);
  wasm_module_delete(module);
  CHECK(finalized[5] == 1);

  /* What a guest holds does not go. */
  wasm_foreign_set_host_info_with_finalizer(foreign2, (void *)12, finalize);
  CHECK(wasm_table_set(table, 0, wasm_foreign_as_ref(foreign2)));
  wasm_foreign_delete(foreign2);
  CHECK(!finalized[12]);
  wasm_ref_t *held = wasm_table_get(table, 0);
  CHECK(wasm_ref_get_host_info(held) == (void *)12);
  wasm_ref_delete(held);

  /* Objects keep their store alive, whose handle is only one of them. */
  wasm_store_delete(store);
  wasm_func_delete(func);
  wasm_func_delete(func2);
  wasm_global_delete(global);
  wasm_global_delete(global2);
  wasm_global_delete(fourth);
  wasm_extern_delete(wasm_global_as_extern(third));
  wasm_table_delete(table);
  wasm_table_delete(table2);
  wasm_memory_delete(memory);
  wasm_module_delete(module2);
  wasm_instance_delete(instance2);
  wasm_trap_delete(trap2);
  wasm_instance_delete(instance);
  CHECK(!finalized[2] && !finalized[6]);
  CHECK(wasm_memory_size(memory2) == 1);
  wasm_memory_delete(memory2);
  for (int i = 1; i <= 12; i++) CHECK(finalized[i] == 1);
}

/* Guests give up what they no longer hold, while the store lives. */
static void references_are_given_up(wasm_engine_t *engine) {
  wasm_store_t *store = wasm_store_new(engine);
  wasm_table_t *table = new_table(store);
  memset(finalized, 0, sizeof finalized);
  for (int i = 0; i < 5000; i++) {
    wasm_foreign_t *foreign = wasm_foreign_new(store);
    wasm_foreign_set_host_info_with_finalizer(foreign, (void *)3, finalize);
    CHECK(wasm_table_set(table, 1, wasm_foreign_as_ref(foreign)));
    wasm_foreign_delete(foreign);
  }
  CHECK(finalized[3] > 4000 && finalized[3] < 5000);
  wasm_store_delete(store);
  wasm_table_delete(table);
  CHECK(finalized[3] == 5000);
}

/* More instances than a process has address space for, one after the other. */
static void instances_that_nobody_knows_go(wasm_engine_t *engine) {
  wasm_store_t *store = wasm_store_new(engine);
  wasm_module_t *module = new_module(store);
  memset(finalized, 0, sizeof finalized);
  for (int i = 0; i < 30000; i++) {
    wasm_instance_t *instance = wasm_instance_new(store, module, NULL, NULL);
    CHECK(instance && !wasm_instance_get_host_info(instance));
    wasm_instance_set_host_info_with_finalizer(instance, (void *)4, finalize);
    wasm_instance_delete(instance);
    CHECK(finalized[4] == i + 1);
  }
  /* One whose export was asked for stays with that; one that was copied stays, too. */
  wasm_instance_t *instance = wasm_instance_new(store, module, NULL, NULL), *copy;
  wasm_instance_set_host_info_with_finalizer(instance, (void *)5, finalize);
  wasm_extern_vec_t exports;
  wasm_instance_exports(instance, &exports);
  wasm_instance_delete(instance);
  CHECK(!finalized[5]);
  instance = wasm_instance_new(store, module, NULL, NULL);
  copy = wasm_instance_copy(instance);
  wasm_instance_delete(copy);
  CHECK(wasm_instance_same(instance, instance));
  RETURNS(wasm_func_call(wasm_extern_as_func(exports.data[0]), NULL, NULL));
  wasm_extern_vec_delete(&exports);
  wasm_instance_delete(instance);
  wasm_module_delete(module);
  wasm_store_delete(store);
  CHECK(finalized[5] == 1);
}

/* A callback that has every object of its store deleted, and the store. */
static wasm_store_t *doomed_store;
static wasm_func_t *doomed_func;

static wasm_trap_t *delete_all(void *env, const wasm_val_vec_t *args, wasm_val_vec_t *results) {
  (void)args, (void)results;
  wasm_func_delete(doomed_func);
  wasm_store_delete(doomed_store);
  finalized[(size_t)env] += 10;
  return NULL;
}

static void all_are_deleted_in_a_callback(wasm_engine_t *engine) {
  memset(finalized, 0, sizeof finalized);
  doomed_store = wasm_store_new(engine);
  wasm_functype_t *type = wasm_functype_new_0_0();
  doomed_func = wasm_func_new_with_env(doomed_store, type, delete_all, (void *)5, finalize);
  wasm_functype_delete(type);
  RETURNS(wasm_func_call(doomed_func, NULL, NULL));
  CHECK(finalized[5] == 11);
}

/* Null and objects of the wrong kind are refused by everything that takes some. */
static void misuse(wasm_engine_t *engine) {
  wasm_store_t *store = wasm_store_new(engine);
  wasm_func_t *func = new_func(store);
  wasm_memory_t *memory = new_memory(store);
  wasm_functype_t *type = wasm_functype_new_0_0();
  CHECK(!wasm_store_new(NULL) && !wasm_engine_new_with_config(NULL));
  CHECK(!wasm_func_new(NULL, type, return_at_once) && !wasm_func_new(store, type, NULL));
  memset(finalized, 0, sizeof finalized);
  CHECK(!wasm_func_new_with_env(store, type, NULL, (void *)1, finalize) && finalized[1] == 1);
  CHECK(!wasm_func_new(store, NULL, return_at_once));
  wasm_memorytype_t *memory_type = wasm_memory_type(memory);
  CHECK(!wasm_func_new(store, (wasm_functype_t *)memory_type, return_at_once));
  wasm_memorytype_delete(memory_type);
  CHECK(!wasm_memory_data((wasm_memory_t *)func) && !wasm_memory_size((wasm_memory_t *)func));
  CHECK(!wasm_memory_grow((wasm_memory_t *)func, 1) && !wasm_memory_type(NULL));
  CHECK(!wasm_table_size((wasm_table_t *)memory) && !wasm_table_get((wasm_table_t *)memory, 0));
  CHECK(!wasm_func_param_arity((wasm_func_t *)memory) && !wasm_func_type((wasm_func_t *)memory));
  TRAPS(wasm_func_call((wasm_func_t *)memory, NULL, NULL), "a function is needed");
  wasm_extern_vec_t exports;
  wasm_instance_exports((wasm_instance_t *)memory, &exports);
  CHECK(!exports.size && !exports.data);
  CHECK(!wasm_module_share((wasm_module_t *)memory) && !wasm_foreign_new(NULL));
  CHECK(!wasm_instance_new(store, (wasm_module_t *)memory, NULL, NULL));
  CHECK(!wasm_instance_new(NULL, NULL, NULL, NULL));
  wasm_val_t value;
  wasm_global_get((wasm_global_t *)memory, &value);
  CHECK(value.kind == WASM_I32 && !value.of.i32);
  wasm_global_get((wasm_global_t *)memory, NULL);
  wasm_functype_delete(type);
  wasm_func_delete(func);
  wasm_memory_delete(memory);
  wasm_store_delete(store);
}

int main(void) {
  wasm_config_t *config = wasm_config_new();
  CHECK(config);
  wasm_config_delete(config);
  wasm_engine_t *engine = wasm_engine_new_with_config(wasm_config_new());
  CHECK(engine);
  all_kinds(engine);
  references_are_given_up(engine);
  instances_that_nobody_knows_go(engine);
  all_are_deleted_in_a_callback(engine);
  misuse(engine);
  wasm_engine_delete(engine);
  puts("ok");
  return 0;
}
