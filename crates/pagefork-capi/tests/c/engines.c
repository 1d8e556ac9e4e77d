/* Objects of one engine are refused wherever another one's are needed, and nothing changes by that. The
 * error says what is of another engine or store. */

#include "check.h"
#include "pagefork.h"

#define OK(call) RETURNS(call)
#define FAILS(call, text) TRAPS((call), (text))

static const char text[] =
    "(module (import \"host\" \"f\" (func $f (param i32) (result i32)))"
    "  (memory (export \"memory\") 1) (table (export \"table\") 2 10 funcref)"
    "  (global (export \"global\") (mut funcref) (ref.null func))"
    "  (global (export \"extern\") (mut externref) (ref.null extern))"
    "  (tag (export \"tag\") (param i32))"
    "  (func (export \"run\") (param i32) (result i32) (call $f (local.get 0)))"
    "  (func (export \"take\") (param funcref externref)"
    "    (global.set 0 (local.get 0)) (global.set 1 (local.get 1))))";

/* All that there is of one engine. */
typedef struct side {
  wasm_engine_t *engine;
  wasm_module_t *module;
  wasm_shared_module_t *shared;
  pagefork_linker_t *linker;
  pagefork_instance_pre_t *pre;
  wasm_store_t *store;
  wasm_instance_t *instance;
  wasm_extern_t *memory, *table, *global, *external, *tag, *run, *take;
  pagefork_export_t *found;
  pagefork_snapshot_t *snapshot;
} side;

static pagefork_error_t *echo(const pagefork_caller_t *caller, const pagefork_val_t *args,
                              size_t count, pagefork_val_t *results, size_t result_count) {
  (void)caller, (void)count, (void)result_count;
  results[0] = args[0];
  return NULL;
}

static side make(void) {
  side s;
  OK(pagefork_engine_new(NULL, &s.engine));
  OK(pagefork_module_new(s.engine, text, sizeof text - 1, &s.module));
  s.shared = wasm_module_share(s.module);
  OK(pagefork_linker_new(s.engine, &s.linker));
  wasm_functype_t *type = wasm_functype_new_1_1(wasm_valtype_new_i32(), wasm_valtype_new_i32());
  OK(pagefork_linker_func(s.linker, "host", "f", type, echo, NULL, NULL));
  wasm_functype_delete(type);
  OK(pagefork_linker_instantiate_pre(s.linker, s.module, &s.pre));
  OK(pagefork_instance_pre_spawn(s.pre, NULL, &s.store, &s.instance));
  OK(pagefork_instance_export(s.instance, "memory", &s.memory));
  OK(pagefork_instance_export(s.instance, "table", &s.table));
  OK(pagefork_instance_export(s.instance, "global", &s.global));
  OK(pagefork_instance_export(s.instance, "extern", &s.external));
  OK(pagefork_instance_export(s.instance, "tag", &s.tag));
  OK(pagefork_instance_export(s.instance, "run", &s.run));
  OK(pagefork_instance_export(s.instance, "take", &s.take));
  OK(pagefork_module_export(s.module, "run", PAGEFORK_SIGNATURE(int32_t, int32_t), &s.found));
  OK(pagefork_store_snapshot(s.store, &s.snapshot));
  return s;
}

static void delete_side(side s) {
  pagefork_snapshot_delete(s.snapshot);
  pagefork_export_delete(s.found);
  wasm_extern_t *externs[] = {s.memory, s.table, s.global, s.external, s.tag, s.run, s.take};
  for (size_t i = 0; i < sizeof externs / sizeof *externs; i++) wasm_extern_delete(externs[i]);
  wasm_instance_delete(s.instance);
  wasm_store_delete(s.store);
  pagefork_instance_pre_delete(s.pre);
  pagefork_linker_delete(s.linker);
  wasm_shared_module_delete(s.shared);
  wasm_module_delete(s.module);
  wasm_engine_delete(s.engine);
}

/* What the last function failed with names this. */
static bool refused(const char *what) {
  pagefork_error_t *error = pagefork_last_error();
  if (!error) return false;
  wasm_message_t message;
  wasm_trap_message(error, &message);
  bool says = strstr(message.data, what) != NULL;
  if (!says) fprintf(stderr, "not \"%s\" but: %s\n", what, message.data);
  wasm_byte_vec_delete(&message);
  wasm_trap_delete(error);
  return says;
}

/* Modules, linkers, and what was found in modules. */
static void modules(side *a, side *b) {
  wasm_instance_t *instance;
  wasm_module_t *module;
  pagefork_instance_pre_t *pre;
  pagefork_typed_func_t *typed;
  wasm_extern_t *external;
  CHECK(!wasm_module_obtain(a->store, b->shared) && refused("engine"));
  module = wasm_module_obtain(a->store, a->shared);
  CHECK(module && wasm_module_same(module, a->module));
  wasm_module_delete(module);
  wasm_extern_vec_t none = WASM_EMPTY_VEC;
  wasm_trap_t *trap;
  CHECK(!wasm_instance_new(a->store, b->module, &none, &trap));
  FAILS(trap, "engine");
  FAILS(pagefork_linker_instantiate(a->linker, a->store, b->module, &instance), "engine");
  CHECK(!instance);
  FAILS(pagefork_linker_instantiate(a->linker, b->store, a->module, &instance), "engine");
  FAILS(pagefork_linker_instantiate(a->linker, b->store, b->module, &instance), "engine");
  FAILS(pagefork_linker_instantiate_pre(a->linker, b->module, &pre), "engine");
  CHECK(!pre);
  pagefork_call_t *call;
  FAILS(pagefork_linker_instantiate_async(a->linker, b->store, b->module, NULL, NULL, NULL, &call),
        "engine");
  CHECK(!call);
  FAILS(pagefork_linker_unknown_imports_as_traps(a->linker, b->module), "engine");

  /* The same text is another module. */
  FAILS(pagefork_instance_export_at(a->instance, b->found, &external), "another module");
  FAILS(pagefork_instance_typed_export(a->instance, b->found, &typed), "another module");
  FAILS(pagefork_instance_pre_typed_export(a->pre, NULL, NULL, b->found, &typed), "another module");
  CHECK(!typed && !external);
  OK(pagefork_instance_typed_export(a->instance, a->found, &typed));
  pagefork_typed_func_delete(typed);
}

/* References of one in values, tables and globals of the other. */
static void references(side *a, side *b) {
  wasm_foreign_t *foreign = wasm_foreign_new(b->store), *own = wasm_foreign_new(a->store);
  wasm_ref_t *func = wasm_extern_as_ref(b->run);
  pagefork_val_t args[2] = {{WASM_FUNCREF, {.ref = func}}, {WASM_EXTERNREF, {.ref = NULL}}};
  FAILS(pagefork_func_call(wasm_extern_as_func(a->take), args, 2, NULL, 0), "another store");
  bool suspended;
  FAILS(pagefork_func_call_suspendable(wasm_extern_as_func(a->take), args, 2, NULL, 0, &suspended),
        "another store");
  pagefork_call_t *call;
  FAILS(pagefork_func_call_async(wasm_extern_as_func(a->take), args, 2, NULL, NULL, NULL, &call),
        "another store");
  CHECK(!call);
  wasm_val_t standard[2] = {{WASM_FUNCREF, {.ref = func}}, {WASM_EXTERNREF, {.ref = NULL}}};
  wasm_val_vec_t in = WASM_ARRAY_VEC(standard), out = WASM_EMPTY_VEC;
  FAILS(wasm_func_call(wasm_extern_as_func(a->take), &in, &out), "another store");
  args[0].of.ref = NULL;
  /* What belongs to a store is one of it, as an externref, too. */
  args[1].of.ref = wasm_extern_as_ref(b->memory);
  FAILS(pagefork_func_call(wasm_extern_as_func(a->take), args, 2, NULL, 0), "another store");
  args[1].of.ref = wasm_instance_as_ref(b->instance);
  FAILS(pagefork_func_call(wasm_extern_as_func(a->take), args, 2, NULL, 0), "another store");
  args[1].of.ref = wasm_foreign_as_ref(own);
  OK(pagefork_func_call(wasm_extern_as_func(a->take), args, 2, NULL, 0));

  wasm_table_t *table = wasm_extern_as_table(a->table);
  CHECK(!wasm_table_set(table, 0, func) && refused("another store"));
  CHECK(!wasm_table_grow(table, 1, func) && refused("another store"));
  CHECK(wasm_table_size(table) == 2 && !wasm_table_get(table, 0));
  wasm_limits_t limits = {2, 4};
  wasm_tabletype_t *table_type = wasm_tabletype_new(wasm_valtype_new_funcref(), &limits);
  CHECK(!wasm_table_new(a->store, table_type, func) && refused("another store"));
  wasm_table_t *made = wasm_table_new(a->store, table_type, wasm_extern_as_ref(a->run));
  CHECK(made);
  wasm_table_delete(made);
  wasm_tabletype_delete(table_type);

  wasm_val_t value = {WASM_FUNCREF, {.ref = func}}, found;
  wasm_global_set(wasm_extern_as_global(a->global), &value);
  CHECK(refused("another store"));
  wasm_global_get(wasm_extern_as_global(a->global), &found);
  CHECK(found.kind == WASM_FUNCREF && !found.of.ref);
  args[0] = (pagefork_val_t){WASM_FUNCREF, {.ref = func}};
  FAILS(pagefork_global_set(wasm_extern_as_global(a->global), &args[0]), "another store");
  wasm_globaltype_t *global_type = wasm_globaltype_new(wasm_valtype_new_funcref(), WASM_VAR);
  CHECK(!wasm_global_new(a->store, global_type, &value) && refused("another store"));
  wasm_globaltype_delete(global_type);
  wasm_foreign_delete(foreign);
  wasm_foreign_delete(own);
}

/* Imports that are things of the other's store, by the standard interface and by a linker. */
static void imports(side *a, side *b) {
  wasm_extern_t *imported[] = {b->run};
  wasm_extern_vec_t list = WASM_ARRAY_VEC(imported);
  wasm_trap_t *trap;
  CHECK(!wasm_instance_new(a->store, a->module, &list, &trap));
  FAILS(trap, "another store");
  imported[0] = a->run;
  wasm_instance_t *instance = wasm_instance_new(a->store, a->module, &list, &trap);
  CHECK(instance && !trap);
  wasm_instance_delete(instance);

  wasm_extern_t *things[] = {b->memory, b->table, b->global, b->tag, b->run};
  for (size_t i = 0; i < sizeof things / sizeof *things; i++) {
    FAILS(pagefork_linker_define(a->linker, "other", "thing", things[i]), "engine");
  }
  FAILS(pagefork_linker_instance(a->linker, "other", b->instance), "engine");
}

static void exceptions(side *a, side *b) {
  pagefork_error_t *exception;
  wasm_functype_t *type = wasm_functype_new_1_0(wasm_valtype_new_funcref());
  wasm_extern_t *tag;
  OK(pagefork_tag_new(a->store, type, &tag));
  wasm_functype_delete(type);
  pagefork_val_t value = {WASM_FUNCREF, {.ref = wasm_extern_as_ref(b->run)}};
  FAILS(pagefork_exception_new(tag, &value, 1, &exception), "another store");
  CHECK(!exception);
  value.of.ref = wasm_extern_as_ref(a->run);
  OK(pagefork_exception_new(tag, &value, 1, &exception));
  wasm_trap_delete(exception);
  wasm_extern_delete(tag);
}

static void snapshots(side *a, side *b) {
  wasm_extern_t *external;
  wasm_instance_t *instance;
  wasm_memory_data(wasm_extern_as_memory(a->memory))[9] = 5;
  FAILS(pagefork_store_reset_to(a->store, b->snapshot, NULL), "snapshot");
  CHECK(wasm_memory_data(wasm_extern_as_memory(a->memory))[9] == 5);
  FAILS(pagefork_store_counterpart(a->store, b->run, &external), "another store");
  CHECK(!external);
  FAILS(pagefork_store_counterpart_instance(a->store, b->instance, &instance), "another store");
  CHECK(!instance);
  OK(pagefork_store_reset_to(a->store, a->snapshot, NULL));

  /* A snapshot is loaded with a linker of one engine, and modules of it. */
  pagefork_image_store_t *images;
  pagefork_image_hash_t image;
  OK(pagefork_image_store_open("engines_images", &images));
  OK(pagefork_snapshot_save(a->snapshot, images, NULL, &image));
  const wasm_module_t *modules[] = {b->module};
  pagefork_load_t how = {.modules = modules, .module_count = 1};
  pagefork_snapshot_t *loaded;
  FAILS(pagefork_snapshot_load(a->linker, images, &image, &how, &loaded), "engine");
  CHECK(!loaded);
  OK(pagefork_snapshot_load(b->linker, images, &image, &how, &loaded));
  pagefork_snapshot_delete(loaded);
  how = (pagefork_load_t){.continues = b->store};
  FAILS(pagefork_snapshot_load(a->linker, images, &image, &how, &loaded), "engine");
  CHECK(!loaded);
  pagefork_image_store_delete(images);
}

int main(void) {
  side a = make(), b = make();
  modules(&a, &b);
  /* Before there are others: a snapshot is of the instances that there were. */
  snapshots(&a, &b);
  references(&a, &b);
  imports(&a, &b);
  exceptions(&a, &b);

  /* Neither has changed. */
  side *both[] = {&a, &b};
  for (int i = 0; i < 2; i++) {
    pagefork_val_t arg = {WASM_I32, {.i32 = 7}}, result;
    OK(pagefork_func_call(wasm_extern_as_func(both[i]->run), &arg, 1, &result, 1));
    CHECK(result.kind == WASM_I32 && result.of.i32 == 7);
  }
  CHECK(!wasm_extern_same(a.run, b.run) && !wasm_module_same(a.module, b.module));
  CHECK(!wasm_instance_same(a.instance, b.instance));
  delete_side(b);
  delete_side(a);
  puts("ok");
  return 0;
}
