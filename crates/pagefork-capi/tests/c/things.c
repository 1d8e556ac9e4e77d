/* What things are: the same by whichever way they are found; what is attached to each is finalized once,
 * also at a reset; and where exactly frames of several instances are. */

#include "check.h"
#include "pagefork.h"

#define OK(call) RETURNS(call)
#define FAILS(call, text) TRAPS((call), (text))

/* A memory is exported by two names, and so is a function that a table has, too. */
static const char text[] =
    "(module (memory (export \"memory\") (export \"alias\") 1)"
    "  (table (export \"table\") 3 funcref) (elem (i32.const 1) $f)"
    "  (global (export \"global\") (mut externref) (ref.null extern))"
    "  (tag (export \"tag\"))"
    "  (func $f (export \"f\") (export \"f alias\"))"
    "  (func (export \"take\") (param externref) (global.set 0 (local.get 0))))";

/* Imports all of the other, and exports it again. */
static const char again[] =
    "(module (import \"o\" \"memory\" (memory $m 1)) (export \"memory\" (memory $m))"
    "  (import \"o\" \"table\" (table $t 1 funcref)) (export \"table\" (table $t))"
    "  (import \"o\" \"global\" (global $g (mut externref))) (export \"global\" (global $g))"
    "  (import \"o\" \"tag\" (tag $e)) (export \"tag\" (tag $e))"
    "  (import \"o\" \"f\" (func $f)) (export \"f\" (func $f)))";

static const char *names[] = {"memory", "table", "global", "tag", "f"};
enum { KINDS = sizeof names / sizeof *names };

static wasm_extern_t *export_of(const wasm_instance_t *instance, const char *name) {
  wasm_extern_t *external;
  OK(pagefork_instance_export(instance, name, &external));
  return external;
}

static wasm_module_t *module_of(wasm_engine_t *engine, const char *source, size_t size) {
  wasm_module_t *module;
  OK(pagefork_module_new(engine, source, size - 1, &module));
  return module;
}

static void identity(wasm_engine_t *engine) {
  wasm_module_t *module = module_of(engine, text, sizeof text);
  wasm_module_t *second = module_of(engine, again, sizeof again);
  pagefork_linker_t *linker;
  OK(pagefork_linker_new(engine, &linker));
  wasm_store_t *store = wasm_store_new(engine), *other_store = wasm_store_new(engine);
  wasm_instance_t *instance, *sibling, *reexporting, *elsewhere;
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  OK(pagefork_linker_instantiate(linker, store, module, &sibling));
  OK(pagefork_linker_instantiate(linker, other_store, module, &elsewhere));
  OK(pagefork_linker_instance(linker, "o", instance));
  OK(pagefork_linker_instantiate(linker, store, second, &reexporting));
  CHECK(!wasm_instance_same(instance, sibling) && !wasm_instance_same(instance, elsewhere));
  for (int i = 0; i < KINDS; i++) {
    wasm_extern_t *a = export_of(instance, names[i]), *b = export_of(instance, names[i]);
    wasm_extern_t *c = export_of(reexporting, names[i]), *d = export_of(sibling, names[i]);
    wasm_extern_t *e = export_of(elsewhere, names[i]);
    CHECK(a != b && wasm_extern_same(a, b));
    CHECK(wasm_extern_same(a, c));
    CHECK(!wasm_extern_same(a, d) && !wasm_extern_same(a, e));
    /* What is attached by one is found by the others. */
    wasm_extern_set_host_info(a, &names[i]);
    CHECK(wasm_extern_get_host_info(b) == &names[i] && wasm_extern_get_host_info(c) == &names[i]);
    CHECK(!wasm_extern_get_host_info(d) && !wasm_extern_get_host_info(e));
    for (int j = 0; j < i; j++) {
      wasm_extern_t *another = export_of(instance, names[j]);
      CHECK(!wasm_extern_same(a, another));
      wasm_extern_delete(another);
    }
    wasm_extern_t *all[] = {a, b, c, d, e};
    for (int j = 0; j < 5; j++) wasm_extern_delete(all[j]);
  }
  wasm_extern_t *memory = export_of(instance, "memory"), *alias = export_of(instance, "alias");
  CHECK(wasm_extern_same(memory, alias));
  wasm_extern_t *f = export_of(instance, "f"), *f_alias = export_of(instance, "f alias");
  CHECK(wasm_extern_same(f, f_alias));
  wasm_extern_t *table = export_of(instance, "table");
  wasm_ref_t *element = wasm_table_get(wasm_extern_as_table(table), 1);
  CHECK(wasm_ref_same(element, wasm_extern_as_ref(f)));
  wasm_ref_delete(element);
  wasm_extern_t *all[] = {memory, alias, f, f_alias, table};
  for (int j = 0; j < 5; j++) wasm_extern_delete(all[j]);
  wasm_instance_t *instances[] = {instance, sibling, reexporting, elsewhere};
  for (int j = 0; j < 4; j++) wasm_instance_delete(instances[j]);
  wasm_store_delete(store);
  wasm_store_delete(other_store);
  pagefork_linker_delete(linker);
  wasm_module_delete(module);
  wasm_module_delete(second);
}

static void finalize(void *count) { ++*(int *)count; }

/* At a reset all that is attached to things of the store is finalized, and what guests alone held. */
static void finalizers_at_reset(wasm_engine_t *engine) {
  wasm_module_t *module = module_of(engine, text, sizeof text);
  for (int how = 0; how < 2; how++) {
    wasm_store_t *store = wasm_store_new(engine);
    wasm_trap_t *trap;
    wasm_instance_t *instance = wasm_instance_new(store, module, NULL, &trap);
    pagefork_snapshot_t *snapshot;
    OK(pagefork_store_snapshot(store, &snapshot));
    int counts[KINDS] = {0}, of_instance = 0, held = 0, kept = 0;
    wasm_extern_t *externs[KINDS];
    for (int i = 0; i < KINDS; i++) {
      externs[i] = export_of(instance, names[i]);
      wasm_extern_set_host_info_with_finalizer(externs[i], &counts[i], finalize);
    }
    wasm_instance_set_host_info_with_finalizer(instance, &of_instance, finalize);
    wasm_foreign_t *foreign = wasm_foreign_new(store), *own = wasm_foreign_new(store);
    wasm_foreign_set_host_info_with_finalizer(foreign, &held, finalize);
    wasm_foreign_set_host_info_with_finalizer(own, &kept, finalize);
    wasm_extern_t *take = export_of(instance, "take");
    pagefork_val_t value = {WASM_EXTERNREF, {.ref = wasm_foreign_as_ref(foreign)}};
    OK(pagefork_func_call(wasm_extern_as_func(take), &value, 1, NULL, 0));
    wasm_foreign_delete(foreign);
    pagefork_store_collect(store);
    CHECK(held == 0);

    if (how) {
      OK(pagefork_store_reset_to(store, snapshot, NULL));
    } else {
      OK(pagefork_store_reset(store, NULL));
    }
    CHECK(of_instance == 1 && held == 1 && kept == 0);
    for (int i = 0; i < KINDS; i++) {
      CHECK(counts[i] == 1 && !wasm_extern_get_host_info(externs[i]));
      /* The thing can have something attached again. */
      wasm_extern_set_host_info_with_finalizer(externs[i], &counts[i], finalize);
      CHECK(wasm_extern_get_host_info(externs[i]) == &counts[i]);
      wasm_extern_delete(externs[i]);
    }
    CHECK(wasm_foreign_get_host_info(own) == &kept);
    wasm_foreign_delete(own);
    CHECK(kept == 1);
    wasm_extern_delete(take);
    wasm_instance_delete(instance);
    pagefork_snapshot_delete(snapshot);
    wasm_store_delete(store);
    CHECK(of_instance == 1 && held == 1 && kept == 1);
    for (int i = 0; i < KINDS; i++) CHECK(counts[i] == 2);
  }
  wasm_module_delete(module);

  /* Of what nothing can be attached to, too, and at once. */
  int count = 0;
  wasm_ref_set_host_info_with_finalizer(NULL, &count, finalize);
  CHECK(count == 1);
  wasm_store_t *store = wasm_store_new(engine);
  wasm_foreign_t *foreign = wasm_foreign_new(store);
  wasm_foreign_delete(foreign);
  wasm_foreign_set_host_info_with_finalizer(foreign, &count, finalize);
  CHECK(count == 2);
  wasm_store_delete(store);
  CHECK(count == 2);
  wasm_trap_delete(pagefork_last_error());
}

/* Where the bytes are in a guest's, once. */
static size_t find(const unsigned char *guest, size_t size, const char *bytes, size_t count) {
  size_t found = 0;
  for (size_t i = 0; i + count <= size; i++) {
    if (memcmp(guest + i, bytes, count) == 0) {
      CHECK(!found);
      found = i;
    }
  }
  CHECK(found);
  return found;
}

static wasm_trap_t *unused(const wasm_val_vec_t *args, wasm_val_vec_t *results) {
  (void)args, (void)results;
  return NULL;
}

/* Offsets of frames are to the byte, in the instance whose function it is, unless they are switched off. */
static void frames(bool sources) {
  static const char outer[] =
      "(module (import \"o\" \"divide\" (func $divide (param i32) (result i32)))"
      "  (func (export \"run\") (result i32) (call $divide (i32.const 0))))";
  wasm_config_t *config = wasm_config_new();
  pagefork_config_sources(config, sources);
  wasm_engine_t *engine = wasm_engine_new_with_config(config);
  wasm_store_t *store = wasm_store_new(engine);
  wasm_module_t *module, *second = module_of(engine, outer, sizeof outer);
  OK(pagefork_module_new(engine, guest_traps, sizeof guest_traps, &module));
  wasm_functype_t *type = wasm_functype_new_1_0(wasm_valtype_new_i32());
  wasm_func_t *fail = wasm_func_new(store, type, unused);
  wasm_functype_delete(type);
  wasm_extern_t *imported[] = {wasm_func_as_extern(fail)};
  wasm_extern_vec_t imports = WASM_ARRAY_VEC(imported);
  wasm_instance_t *inner_instance = wasm_instance_new(store, module, &imports, NULL);
  imported[0] = export_of(inner_instance, "divide");
  wasm_instance_t *outer_instance = wasm_instance_new(store, second, &imports, NULL);
  wasm_extern_t *run = export_of(outer_instance, "run");
  pagefork_val_t result;
  wasm_trap_t *trap = pagefork_func_call(wasm_extern_as_func(run), NULL, 0, &result, 1);
  wasm_frame_vec_t trace;
  wasm_trap_trace(trap, &trace);
  CHECK(trace.size == 3);
  /* In $divide, in the function that calls it, and in the other module's, which calls that. */
  CHECK(wasm_instance_same(wasm_frame_instance(trace.data[0]), inner_instance));
  CHECK(wasm_instance_same(wasm_frame_instance(trace.data[1]), inner_instance));
  CHECK(wasm_instance_same(wasm_frame_instance(trace.data[2]), outer_instance));
  static const uint32_t indices[] = {1, 2, 1};
  for (int i = 0; i < 3; i++) CHECK(wasm_frame_func_index(trace.data[i]) == indices[i]);
  if (sources) {
    /* No locals, i32.const 1, local.get 0, i32.div_u: the body begins with the number of locals. */
    size_t body = find(guest_traps, sizeof guest_traps, "\x00\x41\x01\x20\x00\x6e\x0b", 7);
    CHECK(wasm_frame_module_offset(trace.data[0]) == body + 5);
    CHECK(wasm_frame_func_offset(trace.data[0]) == 5);
    /* No locals, local.get 0, and the call. */
    body = find(guest_traps, sizeof guest_traps, "\x00\x20\x00\x10\x01\x0b", 6);
    CHECK(wasm_frame_module_offset(trace.data[1]) == body + 3);
    CHECK(wasm_frame_func_offset(trace.data[1]) == 3);
    /* No locals, i32.const 0, call 0. */
    CHECK(wasm_frame_func_offset(trace.data[2]) == 3);
    wasm_frame_t *origin = wasm_trap_origin(trap), *copy = wasm_frame_copy(origin);
    CHECK(wasm_frame_module_offset(copy) == wasm_frame_module_offset(trace.data[0]));
    wasm_frame_delete(origin);
    wasm_frame_delete(copy);
  } else {
    for (int i = 0; i < 3; i++) {
      CHECK(wasm_frame_func_offset(trace.data[i]) == 0 && wasm_frame_module_offset(trace.data[i]) == 0);
    }
  }
  wasm_frame_vec_delete(&trace);
  FAILS(trap, "divide");
  wasm_extern_delete(run);
  wasm_extern_delete(imported[0]);
  wasm_instance_delete(inner_instance);
  wasm_instance_delete(outer_instance);
  wasm_func_delete(fail);
  wasm_module_delete(module);
  wasm_module_delete(second);
  wasm_store_delete(store);
  wasm_engine_delete(engine);
}

int main(void) {
  wasm_engine_t *engine = wasm_engine_new();
  identity(engine);
  finalizers_at_reset(engine);
  wasm_engine_delete(engine);
  frames(true);
  frames(false);
  puts("ok");
  return 0;
}
