/* Each setting of a configuration, and each limit of a store, has its effect, and has none if it is not set. */

#define _DEFAULT_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "check.h"
#include "pagefork.h"

#define OK(call) RETURNS(call)
#define FAILS(call, text) TRAPS((call), (text))

static wasm_engine_t *engine_of(wasm_config_t *config) {
  wasm_engine_t *engine;
  OK(pagefork_engine_new(config, &engine));
  return engine;
}

/* What the function "run" of a module gives, without arguments; the engine goes with it. */
static pagefork_error_t *run(wasm_engine_t *engine, const char *text, pagefork_val_t *result) {
  wasm_module_t *module;
  pagefork_linker_t *linker;
  wasm_instance_t *instance;
  wasm_extern_t *external;
  OK(pagefork_module_new(engine, text, strlen(text), &module));
  OK(pagefork_linker_new(engine, &linker));
  wasm_store_t *store = wasm_store_new(engine);
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  OK(pagefork_instance_export(instance, "run", &external));
  pagefork_error_t *error =
      pagefork_func_call(wasm_extern_as_func(external), NULL, 0, result, 1);
  wasm_extern_delete(external);
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  pagefork_linker_delete(linker);
  wasm_module_delete(module);
  wasm_engine_delete(engine);
  return error;
}

static int32_t answer(wasm_config_t *config, const char *text) {
  pagefork_val_t result;
  OK(run(engine_of(config), text, &result));
  CHECK(result.kind == WASM_I32);
  return result.of.i32;
}

static void sizes(void) {
  static const char table[] = "(module (table 1 funcref) (func (export \"run\") (result i32)"
                              "  (table.grow (ref.null func) (i32.const 99))))";
  CHECK(answer(NULL, table) == 1);
  wasm_config_t *config = wasm_config_new();
  pagefork_config_table_elements(config, 99);
  CHECK(answer(config, table) == -1);

  static const char memory[] = "(module (memory i64 1) (func (export \"run\") (result i32)"
                               "  (i32.wrap_i64 (memory.grow (i64.const 40)))))";
  CHECK(answer(NULL, memory) == 1);
  config = wasm_config_new();
  pagefork_config_memory64_size(config, 40 << 16);
  CHECK(answer(config, memory) == -1);

  /* Exceptions that a table holds. */
  static const char exceptions[] =
      "(module (tag $t (param i64 i64 i64 i64)) (table $x 2000 exnref)"
      "  (func (export \"run\") (result i32) (local $i i32)"
      "    (loop $again"
      "      (table.set $x (local.get $i)"
      "        (block $caught (result exnref)"
      "          (try_table (catch_all_ref $caught)"
      "            (throw $t (i64.const 1) (i64.const 2) (i64.const 3) (i64.const 4)))"
      "          (unreachable)))"
      "      (local.set $i (i32.add (local.get $i) (i32.const 1)))"
      "      (br_if $again (i32.lt_u (local.get $i) (i32.const 2000))))"
      "    (local.get $i)))";
  config = wasm_config_new();
  pagefork_config_exceptions_size(config, 1 << 20);
  CHECK(answer(config, exceptions) == 2000);
  config = wasm_config_new();
  pagefork_config_exceptions_size(config, 1 << 14);
  pagefork_val_t result;
  pagefork_error_t *error = run(engine_of(config), exceptions, &result);
  CHECK(pagefork_error_trap_code(error) == PAGEFORK_TRAP_TOO_MANY_EXCEPTIONS);
  wasm_trap_delete(error);
}

/* What compiling a large function may cost. */
static void compiling(void) {
  enum { COUNT = 20000 };
  static const char head[] = "(module (func (export \"run\") (result i32) (i32.const 0)";
  static const char step[] = "(i32.add (i32.mul (i32.const 3)))";
  char *text = malloc(sizeof head + COUNT * sizeof step + 2), *end = text;
  end = stpcpy(end, head);
  for (int i = 0; i < COUNT; i++) end = stpcpy(end, "(i32.const 3) i32.mul");
  stpcpy(end, "))");
  static const char *const says[] = {NULL, "work", "memory", "longer than 1ms"};
  for (int limit = 0; limit < 4; limit++) {
    wasm_config_t *config = wasm_config_new();
    if (limit == 1) pagefork_config_compile_work(config, 10);
    if (limit == 2) pagefork_config_compile_memory(config, 1 << 10);
    /* It takes longer anywhere. */
    if (limit == 3) pagefork_config_compile_timeout(config, 1);
    wasm_engine_t *engine = engine_of(config);
    wasm_module_t *module;
    pagefork_error_t *error = pagefork_module_new(engine, text, strlen(text), &module);
    CHECK(!error == !limit && !module == !!limit);
    if (error) {
      CHECK(pagefork_error_kind(error) == PAGEFORK_ERROR_COMPILE);
      FAILS(error, says[limit]);
    }
    if (module) wasm_module_delete(module);
    wasm_engine_delete(engine);
  }
  free(text);
  /* 0 milliseconds are no limit. */
  wasm_config_t *config = wasm_config_new();
  pagefork_config_compile_timeout(config, 0);
  CHECK(answer(config, "(module (func (export \"run\") (result i32) (i32.const 7)))") == 7);
}

static void results(void) {
  /* 0 / 0 is a NaN with a sign on x86-64, unless results are the same everywhere. */
  static const char nan[] =
      "(module (func (export \"run\") (result i32) (local f64)"
      "  (i32.wrap_i64 (i64.shr_u (i64.reinterpret_f64 (f64.div (local.get 0) (local.get 0)))"
      "                           (i64.const 32)))))";
#ifdef __x86_64__
  CHECK((uint32_t)answer(NULL, nan) == 0xfff80000);
#endif
  wasm_config_t *config = wasm_config_new();
  pagefork_config_deterministic(config, true);
  CHECK((uint32_t)answer(config, nan) == 0x7ff80000);
}

/* How many entries a directory has besides itself and its parent. */
static int entries(const char *path) {
  DIR *directory = opendir(path);
  if (!directory) return 0;
  int count = 0;
  for (struct dirent *entry; (entry = readdir(directory));) count += entry->d_name[0] != '.';
  closedir(directory);
  return count;
}

static void cache(void) {
  CHECK(entries("settings_cache") == 0);
  for (int i = 0; i < 2; i++) {
    wasm_config_t *config = wasm_config_new();
    pagefork_config_cache(config, "settings_cache");
    CHECK(answer(config, "(module (func (export \"run\") (result i32) (i32.const 8)))") == 8);
    CHECK(entries("settings_cache") > 0);
  }
}

static void features(void) {
  static const struct {
    uint8_t feature;
    const char *text;
  } all[] = {
      {PAGEFORK_FEATURE_BULK_MEMORY,
       "(module (memory 1) (func (memory.fill (i32.const 0) (i32.const 0) (i32.const 0))))"},
      {PAGEFORK_FEATURE_EXCEPTIONS, "(module (tag))"},
      {PAGEFORK_FEATURE_EXTENDED_CONST,
       "(module (global i32 (i32.add (i32.const 1) (i32.const 2))))"},
      {PAGEFORK_FEATURE_FUNCTION_REFERENCES,
       "(module (type $t (func)) (func (param (ref null $t))))"},
      {PAGEFORK_FEATURE_MEMORY64, "(module (memory i64 1))"},
      {PAGEFORK_FEATURE_MULTI_MEMORY, "(module (memory 1) (memory 1))"},
      {PAGEFORK_FEATURE_MULTI_VALUE,
       "(module (func (result i32 i32) (i32.const 1) (i32.const 2)))"},
      {PAGEFORK_FEATURE_MUTABLE_GLOBAL,
       "(module (global (export \"g\") (mut i32) (i32.const 0)))"},
      {PAGEFORK_FEATURE_REFERENCE_TYPES, "(module (func (param externref)))"},
      {PAGEFORK_FEATURE_SATURATING_FLOAT_TO_INT,
       "(module (func (drop (i32.trunc_sat_f32_s (f32.const 0)))))"},
      {PAGEFORK_FEATURE_SIGN_EXTENSION, "(module (func (drop (i32.extend8_s (i32.const 0)))))"},
      {PAGEFORK_FEATURE_SIMD, "(module (func (drop (v128.const i64x2 0 0))))"},
      {PAGEFORK_FEATURE_RELAXED_SIMD,
       "(module (func (param v128 v128) (result v128)"
       "  (i8x16.relaxed_swizzle (local.get 0) (local.get 1))))"},
      {PAGEFORK_FEATURE_TAIL_CALL, "(module (func $f (return_call $f)))"},
  };
  for (uint8_t i = 0; i < sizeof all / sizeof *all; i++) {
    CHECK(all[i].feature == i);
    for (int on = 0; on < 2; on++) {
      wasm_config_t *config = wasm_config_new();
      OK(pagefork_config_feature(config, all[i].feature, on));
      /* What is built on these is switched off with them. */
      if (!on && i == PAGEFORK_FEATURE_SIMD) {
        OK(pagefork_config_feature(config, PAGEFORK_FEATURE_RELAXED_SIMD, false));
      }
      if (!on && i == PAGEFORK_FEATURE_REFERENCE_TYPES) {
        OK(pagefork_config_feature(config, PAGEFORK_FEATURE_FUNCTION_REFERENCES, false));
      }
      wasm_engine_t *engine = engine_of(config);
      wasm_module_t *module;
      pagefork_error_t *error = pagefork_module_new(engine, all[i].text, strlen(all[i].text), &module);
      if (!error != !!on) fprintf(stderr, "feature %d, %d\n", i, on);
      CHECK(!error == !!on && !module == !on);
      if (error) {
        CHECK(pagefork_error_kind(error) == PAGEFORK_ERROR_COMPILE);
        wasm_trap_delete(error);
      }
      if (module) wasm_module_delete(module);
      wasm_engine_delete(engine);
    }
  }
}

/* A module with two of everything, and a table that grows by five. */
static const char two[] =
    "(module (memory 1) (memory 1) (table 2 20 funcref) (table 2 20 funcref)"
    "  (func (export \"run\") (result i32) (table.grow 0 (ref.null func) (i32.const 5))))";

static void limits(void) {
  wasm_engine_t *engine = engine_of(NULL);
  wasm_module_t *module;
  pagefork_linker_t *linker;
  OK(pagefork_module_new(engine, two, sizeof two - 1, &module));
  OK(pagefork_linker_new(engine, &linker));
  /* What is refused, and what is just let through. */
  const struct {
    pagefork_limits_t limits;
    int instances;
    int32_t grown;
  } all[] = {
      {{.table_elements = 1}, 0, 0},           {{.table_elements = 2}, 2, -1},
      {{.table_elements = 6}, 2, -1},          {{.table_elements = 7}, 2, 2},
      {{.memories = 1}, 0, 0},              {{.memories = 2}, 1, 2},
      {{.tables = 1}, 0, 0},                {{.tables = 2}, 1, 2},
      {{.instances = 1}, 1, 2},             {{.memory_size = 65535}, 0, 0},
      {{.memory_total = 2 * 65536 - 1}, 0, 0}, {{.memory_total = 2 * 65536}, 1, 2},
      {{.memory_size = 65536}, 2, 2},       {{0}, 2, 2},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    wasm_store_t *store = wasm_store_new(engine);
    OK(pagefork_store_set_limits(store, &all[i].limits));
    int made = 0;
    for (int round = 0; round < 2; round++) {
      wasm_instance_t *instance;
      pagefork_error_t *error = pagefork_linker_instantiate(linker, store, module, &instance);
      CHECK(!error == !!instance);
      if (error) {
        CHECK(pagefork_error_kind(error) == PAGEFORK_ERROR_LIMIT);
        wasm_trap_delete(error);
        continue;
      }
      made++;
      wasm_extern_t *external;
      pagefork_val_t result;
      OK(pagefork_instance_export(instance, "run", &external));
      OK(pagefork_func_call(wasm_extern_as_func(external), NULL, 0, &result, 1));
      CHECK(result.of.i32 == all[i].grown);
      wasm_extern_delete(external);
      wasm_instance_delete(instance);
    }
    /* A limit of tables or memories is one of all instances together. */
    if (made != all[i].instances) fprintf(stderr, "limit %zu: %d instances\n", i, made);
    CHECK(made == all[i].instances);
    /* The same of one that is spawned. */
    pagefork_instance_pre_t *pre;
    wasm_store_t *spawned;
    wasm_instance_t *instance;
    OK(pagefork_linker_instantiate_pre(linker, module, &pre));
    pagefork_spawn_t how = {.limits = &all[i].limits};
    pagefork_error_t *error = pagefork_instance_pre_spawn(pre, &how, &spawned, &instance);
    CHECK(!error == (all[i].instances > 0));
    if (error) {
      CHECK(pagefork_error_kind(error) == PAGEFORK_ERROR_LIMIT && !spawned && !instance);
      wasm_trap_delete(error);
    } else {
      wasm_instance_delete(instance);
      wasm_store_delete(spawned);
    }
    pagefork_instance_pre_delete(pre);
    wasm_store_delete(store);
  }
  pagefork_linker_delete(linker);
  wasm_module_delete(module);
  wasm_engine_delete(engine);
}

/* How many of these pages are in memory, and the process's own. */
static int own_pages(const char *start, int count) {
  static uint64_t entries[4096];
  CHECK(count <= 4096);
  int file = open("/proc/self/pagemap", O_RDONLY), own = 0;
  size_t size = (size_t)count * sizeof *entries;
  CHECK(file >= 0);
  CHECK(pread(file, entries, size, (off_t)((uintptr_t)start / 4096 * sizeof *entries)) == (ssize_t)size);
  close(file);
  /* Present, and of no file. */
  for (int i = 0; i < count; i++) own += (entries[i] >> 63 & 1) && !(entries[i] >> 61 & 1);
  return own;
}

enum { WRITTEN = 64 };

static wasm_module_t *writing(wasm_engine_t *engine) {
  static const char text[] =
      "(module (memory (export \"memory\") 16) (func (export \"run\") (local $at i32)"
      "  (loop $again (i32.store8 (local.get $at) (i32.const 1))"
      "    (local.set $at (i32.add (local.get $at) (i32.const 4096)))"
      "    (br_if $again (i32.lt_u (local.get $at) (i32.const 262144))))))";
  wasm_module_t *module;
  OK(pagefork_module_new(engine, text, sizeof text - 1, &module));
  return module;
}

/* Where a guest has written; it is one of this instance. */
static const char *written(const wasm_instance_t *instance) {
  wasm_extern_t *run, *memory;
  OK(pagefork_instance_export(instance, "run", &run));
  OK(pagefork_func_call(wasm_extern_as_func(run), NULL, 0, NULL, 0));
  OK(pagefork_instance_export(instance, "memory", &memory));
  const char *data = wasm_memory_data(wasm_extern_as_memory(memory));
  CHECK(own_pages(data, WRITTEN) == WRITTEN);
  wasm_extern_delete(run);
  wasm_extern_delete(memory);
  return data;
}

/* What a slot keeps in memory when it is reset. */
static void resident(void) {
  for (int limit = 0; limit < 3; limit++) {
    wasm_config_t *config = wasm_config_new();
    pagefork_strategies_t strategies = {.reset = PAGEFORK_RESET_RESIDENT,
                                        .resident_max = limit == 1 ? 8 << 12 : 0};
    OK(pagefork_config_strategies(config, &strategies));
    if (limit == 2) pagefork_config_resident_max(config, 8 << 12);
    wasm_engine_t *engine = engine_of(config);
    wasm_module_t *module = writing(engine);
    wasm_store_t *store = wasm_store_new(engine);
    wasm_instance_t *instance = wasm_instance_new(store, module, NULL, NULL);
    for (int i = 0; i < 4; i++) {
      const char *data = written(instance);
      OK(pagefork_store_reset(store, NULL));
      int kept = own_pages(data, WRITTEN);
      CHECK(limit ? kept <= 8 : kept == WRITTEN);
    }
    wasm_instance_delete(instance);
    wasm_store_delete(store);
    wasm_module_delete(module);
    wasm_engine_delete(engine);
  }
}

/* What is kept of stores that are used no more. */
static void pool(void) {
  static const pagefork_pool_t all[] = {
      {.idle_milliseconds_max = UINT64_MAX, .ignore_pressure = true},
      {.idle_milliseconds_max = UINT64_MAX, .ignore_pressure = true, .kept_max = 2},
      {.idle_milliseconds_max = UINT64_MAX, .ignore_pressure = true, .resident_max = (2 * WRITTEN + 32) << 12},
      {.idle_milliseconds_max = UINT64_MAX, .ignore_pressure = true,
       .resident_max_per_image = (2 * WRITTEN + 32) << 12},
      {.idle_milliseconds_max = 1, .ignore_pressure = true},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    enum { STORES = 6 };
    wasm_config_t *config = wasm_config_new();
    pagefork_strategies_t strategies = {.reset = PAGEFORK_RESET_RESIDENT};
    OK(pagefork_config_strategies(config, &strategies));
    OK(pagefork_config_pool(config, &all[i]));
    wasm_engine_t *engine = engine_of(config);
    wasm_module_t *module = writing(engine);
    pagefork_linker_t *linker;
    pagefork_instance_pre_t *pre;
    OK(pagefork_linker_new(engine, &linker));
    OK(pagefork_linker_instantiate_pre(linker, module, &pre));
    wasm_store_t *stores[STORES];
    wasm_instance_t *instances[STORES];
    const char *data[STORES];
    for (int j = 0; j < STORES; j++) {
      OK(pagefork_instance_pre_spawn(pre, NULL, &stores[j], &instances[j]));
      data[j] = written(instances[j]);
    }
    for (int j = 0; j < STORES; j++) {
      wasm_instance_delete(instances[j]);
      wasm_store_delete(stores[j]);
    }
    int kept;
    /* What leaves does so soon, by a thread of the engine's. */
    for (int wait = 0; wait < 200; wait++) {
      kept = 0;
      for (int j = 0; j < STORES; j++) kept += own_pages(data[j], WRITTEN);
      if (i == 0 || kept <= 2 * WRITTEN) break;
      usleep(50000);
    }
    CHECK(i == 0 ? kept == STORES * WRITTEN : kept <= 2 * WRITTEN);
    CHECK(kept > 0 || i == 4);
    pagefork_instance_pre_delete(pre);
    pagefork_linker_delete(linker);
    wasm_module_delete(module);
    wasm_engine_delete(engine);
  }
}

int main(void) {
  sizes();
  resident();
  pool();
  compiling();
  results();
  cache();
  features();
  limits();
  puts("ok");
  return 0;
}
