/* Snapshots that outlive their process: saved by one, loaded by another, with what guests hold. */

#define _DEFAULT_SOURCE

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "pagefork.h"

#define OK(call) RETURNS(call)
#define FAILS(call, text) TRAPS((call), (text))

static const pagefork_secret_key_t key = {{7}}, stranger = {{8}};

static int32_t answer;
static bool is_suspending;

static pagefork_val_t i32(int32_t value) { return (pagefork_val_t){WASM_I32, {.i32 = value}}; }

static pagefork_error_t *ask(const pagefork_caller_t *caller, const pagefork_val_t *args,
                             size_t arg_count, pagefork_val_t *results, size_t result_count) {
  CHECK(arg_count == 1 && result_count == 1);
  if (is_suspending) return pagefork_caller_suspend_before(caller);
  results[0] = i32(args[0].of.i32 + answer);
  return NULL;
}

static wasm_trap_t *unnamed(const wasm_val_vec_t *args, wasm_val_vec_t *results) {
  (void)args, (void)results;
  results->data[0].of.i32 = 30;
  return NULL;
}

static wasm_func_t *export_func(const wasm_instance_t *instance, const char *name) {
  wasm_extern_t *export;
  OK(pagefork_instance_export(instance, name, &export));
  return wasm_extern_as_func((wasm_extern_t *)keep(export));
}

static int32_t count(wasm_instance_t *instance) {
  pagefork_val_t result;
  OK(pagefork_func_call(export_func(instance, "count"), NULL, 0, &result, 1));
  return result.of.i32;
}

static wasm_functype_t *one_to_one(void) {
  return wasm_functype_new_1_1(wasm_valtype_new_i32(), wasm_valtype_new_i32());
}

static pagefork_linker_t *linker_of(wasm_engine_t *engine) {
  pagefork_linker_t *linker;
  OK(pagefork_linker_new(engine, &linker));
  wasm_functype_t *type = one_to_one();
  OK(pagefork_linker_func(linker, "host", "ask", type, ask, NULL, NULL));
  wasm_functype_delete(type);
  OK(pagefork_linker_wasi(linker));
  return linker;
}

static wasm_module_t *module_of(wasm_engine_t *engine, const unsigned char *bytes, size_t size) {
  wasm_module_t *module;
  OK(pagefork_module_new(engine, bytes, size, &module));
  return module;
}

/* Saves the store's snapshot by a name. */
static void save(wasm_store_t *store, pagefork_image_store_t *images, const pagefork_save_t *how,
                 const char *name) {
  pagefork_snapshot_t *snapshot;
  pagefork_image_hash_t image, again;
  OK(pagefork_store_snapshot(store, &snapshot));
  FAILS(pagefork_snapshot_image(snapshot, &image), "neither saved nor loaded");
  wasm_byte_vec_t state;
  OK(pagefork_snapshot_state(snapshot, &state));
  CHECK(state.size == 0);
  OK(pagefork_snapshot_save(snapshot, images, how, &image));
  OK(pagefork_snapshot_image(snapshot, &again));
  CHECK(!memcmp(&image, &again, sizeof image));
  OK(pagefork_image_store_set_name(images, name, &image));
  OK(pagefork_image_store_find(images, name, &again));
  CHECK(!memcmp(&image, &again, sizeof image));
  pagefork_snapshot_delete(snapshot);
}

static pagefork_snapshot_t *load(pagefork_linker_t *linker, pagefork_image_store_t *images,
                                 const char *name, const pagefork_load_t *how) {
  pagefork_image_hash_t image, again;
  pagefork_snapshot_t *snapshot;
  OK(pagefork_image_store_find(images, name, &image));
  OK(pagefork_snapshot_load(linker, images, &image, how, &snapshot));
  OK(pagefork_snapshot_image(snapshot, &again));
  CHECK(!memcmp(&image, &again, sizeof image));
  return snapshot;
}

static wasm_store_t *spawn(const pagefork_snapshot_t *snapshot, const pagefork_spawn_t *how,
                           wasm_instance_t **instance) {
  pagefork_instance_pre_t *pre;
  wasm_store_t *store;
  OK(pagefork_snapshot_instance_pre(snapshot, &pre));
  OK(pagefork_instance_pre_spawn(pre, how, &store, instance));
  pagefork_instance_pre_delete(pre);
  return store;
}

static void has_state(const pagefork_snapshot_t *snapshot, const char *expected) {
  wasm_byte_vec_t state;
  OK(pagefork_snapshot_state(snapshot, &state));
  CHECK(state.size == strlen(expected));
  CHECK(!state.size || !memcmp(state.data, expected, state.size));
  wasm_byte_vec_delete(&state);
}

/* A letter more in the notes of a session. */
static void note(wasm_instance_t *instance, char letter) {
  pagefork_val_t arg = i32(letter);
  OK(pagefork_func_call(export_func(instance, "note"), &arg, 1, NULL, 0));
  delete_kept();
}

/* Whether a session has these notes. */
static bool has_notes(wasm_store_t *store, wasm_instance_t *instance, const char *expected) {
  OK(pagefork_func_call(export_func(instance, "show"), NULL, 0, NULL, 0));
  delete_kept();
  wasm_byte_vec_t output;
  OK(pagefork_store_take_output(store, 1, &output));
  bool has = output.size == strlen(expected) && !memcmp(output.data, expected, output.size);
  wasm_byte_vec_delete(&output);
  return has;
}

/* Files of a session, in this process and into an image. */
static void session(wasm_engine_t *engine, pagefork_linker_t *linker,
                    pagefork_image_store_t *images) {
  CHECK(!mkdir("session", 0700));
  pagefork_wasi_config_t *config = pagefork_wasi_config_new();
  FAILS(pagefork_wasi_config_session_directory(config, "no such", "/own"), "no such");
  FAILS(pagefork_wasi_config_session_directory(config, NULL, "/own"), "path is null");
  FAILS(pagefork_wasi_config_session_directory(config, "session", NULL), "path is null");
  FAILS(pagefork_wasi_config_session_directory(NULL, "session", "/own"), "configuration is null");
  OK(pagefork_wasi_config_session_directory(config, "session", "/own"));
  pagefork_wasi_config_capture_stdout(config, 100);
  wasm_store_t *store = wasm_store_new(engine), *forks[1];
  OK(pagefork_store_set_wasi(store, config));
  wasm_module_t *module = module_of(engine, guest_notes, sizeof guest_notes);
  wasm_instance_t *instance, *other;
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  note(instance, 'a');

  pagefork_snapshot_t *snapshot;
  const char *told = "pagefork_store_snapshot_with_files";
  FAILS(pagefork_store_snapshot(store, &snapshot), told);
  FAILS(pagefork_store_fork(store, NULL, forks, 1), told);
  FAILS(pagefork_store_snapshot_with_files(store, "session", NULL, NULL, &snapshot), "session");
  FAILS(pagefork_store_snapshot_with_files(store, "no/such", NULL, NULL, &snapshot), "no/such");
  FAILS(pagefork_store_snapshot_with_files(store, NULL, NULL, NULL, &snapshot), "files is null");
  FAILS(pagefork_store_snapshot_with_files(NULL, "place", NULL, NULL, &snapshot), "store is null");
  CHECK(!snapshot && access("place", F_OK));
  OK(pagefork_store_snapshot_with_files(store, "place", NULL, NULL, &snapshot));
  note(instance, 'b');
  CHECK(has_notes(store, instance, "ab"));
  wasm_instance_delete(instance);
  wasm_store_delete(store);

  pagefork_image_hash_t image;
  pagefork_save_t how = {.state = "own", .state_size = 3};
  OK(pagefork_snapshot_save(snapshot, images, &how, &image));
  OK(pagefork_image_store_set_name(images, "session", &image));
  pagefork_wasi_config_t *streams = pagefork_wasi_config_new();
  pagefork_wasi_config_capture_stdout(streams, 100);
  pagefork_spawn_t spawning = {.wasi = streams};
  store = spawn(snapshot, &spawning, &instance);
  note(instance, 'c');
  wasm_store_t *second = spawn(snapshot, &spawning, &other);
  OK(pagefork_store_reset_to(second, snapshot, streams));
  /* Stores keep the place of their files. */
  pagefork_snapshot_delete(snapshot);
  CHECK(has_notes(second, other, "a") && has_notes(store, instance, "ac"));
  wasm_instance_delete(other);
  wasm_store_delete(second);
  CHECK(!access("place", F_OK));
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  CHECK(access("place", F_OK) && !access("session/notes", F_OK));
  pagefork_wasi_config_delete(streams);
  pagefork_wasi_config_delete(config);
  wasm_module_delete(module);
}

/* The files of a session that another process had. */
static void session_of_another(pagefork_linker_t *linker, pagefork_image_store_t *images) {
  pagefork_image_hash_t image;
  OK(pagefork_image_store_find(images, "session", &image));
  pagefork_wasi_config_t *streams = pagefork_wasi_config_new();
  pagefork_wasi_config_capture_stdout(streams, 100);
  pagefork_spawn_t spawning = {.wasi = streams};
  pagefork_instance_pre_t *pre;
  wasm_store_t *store;
  wasm_instance_t *instance;

  /* Without them it is known, and neither goes on nor is saved again. */
  pagefork_snapshot_t *snapshot = load(linker, images, "session", NULL);
  has_state(snapshot, "own");
  const char *told = "pagefork_snapshot_load_with_files";
  OK(pagefork_snapshot_instance_pre(snapshot, &pre));
  FAILS(pagefork_instance_pre_spawn(pre, &spawning, &store, &instance), told);
  FAILS(pagefork_snapshot_save(snapshot, images, NULL, &image), told);
  pagefork_instance_pre_delete(pre);
  pagefork_snapshot_delete(snapshot);

  FAILS(pagefork_snapshot_load_with_files(linker, images, &image, NULL, "session", &snapshot),
        "session");
  FAILS(pagefork_snapshot_load_with_files(linker, images, &image, NULL, NULL, &snapshot),
        "files is null");
  OK(pagefork_snapshot_load_with_files(linker, images, &image, NULL, "place", &snapshot));
  for (int i = 0; i < 2; i++) {
    store = spawn(snapshot, &spawning, &instance);
    CHECK(has_notes(store, instance, "a"));
    note(instance, 'd');
    CHECK(has_notes(store, instance, "ad"));
    wasm_instance_delete(instance);
    wasm_store_delete(store);
  }
  /* Saved again, it has them. */
  pagefork_save_t how = {.state = "again", .state_size = 5};
  OK(pagefork_snapshot_save(snapshot, images, &how, &image));
  pagefork_snapshot_delete(snapshot);
  CHECK(access("place", F_OK));
  OK(pagefork_snapshot_load_with_files(linker, images, &image, NULL, "place", &snapshot));
  store = spawn(snapshot, &spawning, &instance);
  CHECK(has_notes(store, instance, "a"));
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  pagefork_snapshot_delete(snapshot);
  pagefork_wasi_config_delete(streams);

  /* Of what has none, no place is made. */
  OK(pagefork_image_store_find(images, "idle", &image));
  OK(pagefork_snapshot_load_with_files(linker, images, &image, NULL, "place", &snapshot));
  CHECK(access("place", F_OK));
  pagefork_snapshot_delete(snapshot);
}

/* What another process does, which ends then. */
static void first_process(void) {
  wasm_engine_t *engine = wasm_engine_new();
  pagefork_linker_t *linker = linker_of(engine);
  wasm_module_t *module = module_of(engine, guest_suspended, sizeof guest_suspended);
  wasm_store_t *store = wasm_store_new(engine);
  wasm_instance_t *instance;
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  pagefork_image_store_t *images;
  OK(pagefork_image_store_open("saved images", &images));
  CHECK(count(instance) == 1);
  pagefork_save_t how = {.state = "idle state", .state_size = 10};
  save(store, images, &how, "idle");

  pagefork_val_t arg = i32(7), results[2];
  bool suspended;
  is_suspending = true;
  OK(pagefork_func_call_suspendable(export_func(instance, "run"), &arg, 1, results, 2, &suspended));
  CHECK(suspended);
  /* Of other contents, so that it is another image than the one that is signed. */
  how = (pagefork_save_t){.state = "unsigned", .state_size = 8};
  save(store, images, &how, "unsigned");
  const pagefork_secret_key_t keys[] = {stranger, key};
  how = (pagefork_save_t){.signers = keys, .signer_count = 2};
  save(store, images, &how, "running");
  delete_kept();
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  wasm_module_delete(module);

  /* A program that waits for its input. */
  module = module_of(engine, guest_reads, sizeof guest_reads);
  pagefork_wasi_config_t *config = pagefork_wasi_config_new();
  pagefork_wasi_config_await_stdin(config);
  store = wasm_store_new(engine);
  OK(pagefork_store_set_wasi(store, config));
  pagefork_wasi_config_delete(config);
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  OK(pagefork_func_call_suspendable(export_func(instance, "_start"), NULL, 0, NULL, 0, &suspended));
  CHECK(suspended);
  how = (pagefork_save_t){.state = "own", .state_size = 3, .signers = &key, .signer_count = 1};
  save(store, images, &how, "program");
  delete_kept();
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  wasm_module_delete(module);

  session(engine, linker, images);
  pagefork_image_hash_t image;
  OK(pagefork_image_store_find(images, "idle", &image));
  OK(pagefork_image_store_export(images, &image, "idle.image"));
  OK(pagefork_image_store_export(images, &image, "idle.image"));
  pagefork_image_store_delete(images);
  pagefork_linker_delete(linker);
  wasm_engine_delete(engine);
}

/* Images of the other process. */
static void second_process(wasm_engine_t *engine, pagefork_linker_t *linker,
                           pagefork_image_store_t *images) {
  wasm_instance_t *instance;
  pagefork_snapshot_t *snapshot = load(linker, images, "idle", NULL);
  has_state(snapshot, "idle state");
  for (int i = 0; i < 2; i++) {
    wasm_store_t *store = spawn(snapshot, NULL, &instance);
    CHECK(count(instance) == 2 && count(instance) == 3);
    delete_kept();
    wasm_instance_delete(instance);
    wasm_store_delete(store);
  }

  /* Deltas, and what corresponds in another store. */
  wasm_store_t *store = spawn(snapshot, NULL, &instance);
  CHECK(count(instance) == 2);
  pagefork_snapshot_t *later, *unsaved;
  OK(pagefork_store_snapshot(store, &unsaved));
  OK(pagefork_store_snapshot(store, &later));
  pagefork_save_t delta = {.delta_of = unsaved};
  FAILS(pagefork_snapshot_save(later, images, &delta, NULL), "never saved");
  delta.delta_of = snapshot;
  pagefork_image_hash_t image;
  OK(pagefork_snapshot_save(later, images, &delta, &image));
  OK(pagefork_image_store_set_name(images, "later", &image));
  pagefork_snapshot_delete(unsaved);
  pagefork_snapshot_delete(later);
  wasm_module_t *module = module_of(engine, guest_suspended, sizeof guest_suspended);
  const wasm_module_t *modules[] = {module};
  pagefork_load_t how = {.modules = modules, .module_count = 1, .continues = store};
  later = load(linker, images, "later", &how);
  has_state(later, "");
  wasm_instance_t *other, *found;
  wasm_store_t *spawned = spawn(later, NULL, &other);
  OK(pagefork_store_counterpart_instance(spawned, instance, &found));
  CHECK(wasm_instance_same(found, other) && count(found) == 3);
  delete_kept();
  wasm_instance_delete(found);
  wasm_instance_delete(other);
  wasm_instance_delete(instance);
  wasm_store_delete(spawned);
  wasm_store_delete(store);
  pagefork_snapshot_delete(later);
  pagefork_snapshot_delete(snapshot);

  /* Suspended guests are taken from who is trusted. */
  pagefork_public_key_t trusted;
  OK(pagefork_image_store_find(images, "running", &image));
  pagefork_error_t *refused = pagefork_snapshot_load(linker, images, &image, NULL, &snapshot);
  CHECK(pagefork_error_kind(refused) == PAGEFORK_ERROR_SNAPSHOT);
  FAILS(refused, "trust");
  CHECK(!snapshot);
  const pagefork_secret_key_t other_key = {{9}};
  OK(pagefork_secret_key_public(&other_key, &trusted));
  how = (pagefork_load_t){.trusted = &trusted, .trusted_count = 1};
  FAILS(pagefork_snapshot_load(linker, images, &image, &how, &snapshot), "trust");
  OK(pagefork_secret_key_public(&key, &trusted));
  snapshot = load(linker, images, "running", &how);
  for (int32_t i = 0; i < 3; i++) {
    pagefork_val_t results[2];
    bool suspended = true;
    store = spawn(snapshot, NULL, &instance);
    CHECK(pagefork_store_suspended_at(store) == PAGEFORK_SUSPENDED_BEFORE_HOST_CALL);
    answer = i;
    OK(pagefork_store_resume(store, results, 2, &suspended));
    CHECK(!suspended && results[0].of.i32 == 8 + i && results[1].of.i64 == -3);
    CHECK(count(instance) == 12);
    delete_kept();
    wasm_instance_delete(instance);
    wasm_store_delete(store);
  }
  pagefork_snapshot_delete(snapshot);
  OK(pagefork_image_store_find(images, "unsigned", &image));
  FAILS(pagefork_snapshot_load(linker, images, &image, &how, &snapshot), "trust");

  /* Programs have what they had, and read what each is given. */
  snapshot = load(linker, images, "program", &how);
  has_state(snapshot, "own");
  for (int i = 0; i < 2; i++) {
    char line[] = "line 0";
    line[5] = (char)('0' + i);
    pagefork_wasi_config_t *config = pagefork_wasi_config_new();
    OK(pagefork_wasi_config_stdin(config, line, 6));
    pagefork_wasi_config_capture_stdout(config, 100);
    pagefork_spawn_t spawning = {.wasi = config};
    store = spawn(snapshot, &spawning, &instance);
    pagefork_wasi_config_delete(config);
    bool suspended;
    OK(pagefork_store_resume(store, NULL, 0, &suspended));
    wasm_byte_vec_t output;
    OK(pagefork_store_take_output(store, 1, &output));
    CHECK(output.size == 14 && !memcmp(output.data + 8, line, 6));
    wasm_byte_vec_delete(&output);
    wasm_instance_delete(instance);
    wasm_store_delete(store);
  }
  pagefork_snapshot_delete(snapshot);

  /* With what does not fit. */
  OK(pagefork_image_store_find(images, "idle", &image));
  pagefork_linker_t *empty, *wrong;
  OK(pagefork_linker_new(engine, &empty));
  FAILS(pagefork_snapshot_load(empty, images, &image, NULL, &snapshot), "ask");
  OK(pagefork_linker_new(engine, &wrong));
  wasm_functype_t *type = wasm_functype_new_0_0();
  OK(pagefork_linker_func(wrong, "host", "ask", type, ask, NULL, NULL));
  wasm_functype_delete(type);
  FAILS(pagefork_snapshot_load(wrong, images, &image, NULL, &snapshot), "ask");
  pagefork_linker_delete(empty);
  pagefork_linker_delete(wrong);
  wasm_engine_t *other_engine = wasm_engine_new();
  wasm_module_t *foreign = module_of(other_engine, guest_empty, sizeof guest_empty);
  modules[0] = foreign;
  how = (pagefork_load_t){.modules = modules, .module_count = 1};
  FAILS(pagefork_snapshot_load(linker, images, &image, &how, &snapshot), "engine");
  modules[0] = NULL;
  FAILS(pagefork_snapshot_load(linker, images, &image, &how, &snapshot), "module is null");
  how = (pagefork_load_t){.trusted_count = 1};
  FAILS(pagefork_snapshot_load(linker, images, &image, &how, &snapshot), "list is null");
  how = (pagefork_load_t){.reserved = {1}};
  FAILS(pagefork_snapshot_load(linker, images, &image, &how, &snapshot), "reserved");
  wasm_module_delete(foreign);
  wasm_engine_delete(other_engine);
  wasm_module_delete(module);
}

/* One file, names, and what is damaged. */
static void files(pagefork_linker_t *linker, pagefork_image_store_t *images) {
  pagefork_image_store_t *others;
  pagefork_image_hash_t image, none = {{1}};
  OK(pagefork_image_store_open("others", &others));
  FAILS(pagefork_image_store_find(others, "idle", &image), "idle");
  OK(pagefork_image_store_import(others, "idle.image", &image));
  pagefork_snapshot_t *snapshot;
  OK(pagefork_snapshot_load(linker, others, &image, NULL, &snapshot));
  has_state(snapshot, "idle state");
  /* It is in use; then it is not. */
  OK(pagefork_image_store_collect(others));
  pagefork_snapshot_t *again;
  OK(pagefork_snapshot_load(linker, others, &image, NULL, &again));
  pagefork_snapshot_delete(again);
  pagefork_snapshot_delete(snapshot);
  OK(pagefork_image_store_collect(others));
  FAILS(pagefork_snapshot_load(linker, others, &image, NULL, &snapshot), "no image");
  OK(pagefork_image_store_import(others, "idle.image", &image));
  OK(pagefork_image_store_set_name(others, "kept", &image));
  OK(pagefork_image_store_collect(others));
  OK(pagefork_image_store_find(others, "kept", &image));
  OK(pagefork_image_store_remove_name(others, "kept"));
  OK(pagefork_image_store_remove_name(others, "kept"));
  OK(pagefork_image_store_collect(others));
  FAILS(pagefork_image_store_find(others, "kept", &image), "kept");
  FAILS(pagefork_image_store_set_name(others, "kept", &image), "no image");
  FAILS(pagefork_image_store_set_name(images, "../name", &image), "name");
  FAILS(pagefork_image_store_export(others, &none, "other.image"), "no image");
  CHECK(access("other.image", F_OK));
  OK(pagefork_image_store_find(images, "idle", &image));
  FAILS(pagefork_image_store_export(images, &image, "no such/file"), "no such/file");
  FAILS(pagefork_image_store_export(images, &image, ".."), "no name of a file");
  FAILS(pagefork_image_store_import(others, "no such file", &image), "no such file");
  int file = open("idle.image", O_RDWR);
  char byte;
  CHECK(file >= 0 && pread(file, &byte, 1, 500) == 1);
  byte ^= 1;
  CHECK(pwrite(file, &byte, 1, 500) == 1);
  CHECK(!close(file));
  FAILS(pagefork_image_store_import(others, "idle.image", &image), "");
  CHECK(!truncate("idle.image", 500));
  FAILS(pagefork_image_store_import(others, "idle.image", &image), "");
  pagefork_image_store_delete(others);
  FAILS(pagefork_image_store_open("idle.image", &others), "idle.image");
  CHECK(!others);
}

static int finalized;

static void finalize(void *text) {
  finalized++;
  free(text);
}

static wasm_foreign_t *text_object(const char *text, size_t size) {
  char *copy = calloc(1, size + 1);
  memcpy(copy, text, size);
  return pagefork_foreign_new(copy, finalize);
}

enum hook { KEEP, OTHER, NOTHING, FUNCTION, FAIL };

static wasm_func_t *some_func;
static int asked;

static pagefork_error_t *give(enum hook hook, WASM_OWN wasm_ref_t *object, wasm_ref_t **out) {
  CHECK(!*out);
  *out = object;
  if (hook == FAIL) return pagefork_error_new("the hook fails");
  if (hook == NOTHING || hook == FUNCTION) {
    wasm_ref_delete(object);
    *out = hook == NOTHING ? NULL : wasm_ref_copy(wasm_func_as_ref(some_func));
  }
  return NULL;
}

static pagefork_error_t *keep_reference(void *env, const wasm_ref_t *object, wasm_ref_t **out) {
  enum hook hook = *(enum hook *)env;
  asked++;
  if (hook == KEEP) return give(hook, wasm_ref_copy(object), out);
  return give(hook, wasm_foreign_as_ref(text_object("another", 7)), out);
}

static pagefork_error_t *save_reference(void *env, const wasm_ref_t *object, wasm_byte_vec_t *out) {
  const char *text = wasm_ref_get_host_info(object);
  CHECK(text && !out->size);
  wasm_byte_vec_new(out, strlen(text), text);
  return *(enum hook *)env == FAIL ? pagefork_error_new("the hook fails") : NULL;
}

static pagefork_error_t *load_reference(void *env, const void *bytes, size_t size,
                                        wasm_ref_t **out) {
  return give(*(enum hook *)env, wasm_foreign_as_ref(text_object(bytes, size)), out);
}

/* Deletes the store that it is called for. */
static pagefork_error_t *delete_store(void *env, const wasm_ref_t *object, wasm_ref_t **out) {
  (void)object;
  wasm_store_t *store = env;
  FAILS(pagefork_store_reset(store, NULL), "cannot be used now");
  wasm_store_delete(store);
  *out = NULL;
  return NULL;
}

/* The text of what the guest has in its first place. */
static void holds(wasm_instance_t *instance, const char *expected) {
  pagefork_val_t index = i32(1), got;
  OK(pagefork_func_call(export_func(instance, "get"), &index, 1, &got, 1));
  CHECK(got.kind == WASM_EXTERNREF && got.of.ref && wasm_ref_as_foreign(got.of.ref));
  const char *text = wasm_ref_get_host_info(got.of.ref);
  CHECK(text && !strcmp(text, expected));
  wasm_ref_delete(got.of.ref);
}

static wasm_trap_t *pass(const wasm_val_vec_t *args, wasm_val_vec_t *results) {
  (void)args, (void)results;
  return NULL;
}

/* Objects of C's that guests hold. */
static void references(wasm_engine_t *engine, pagefork_image_store_t *images) {
  pagefork_linker_t *linker;
  OK(pagefork_linker_new(engine, &linker));
  wasm_module_t *module = module_of(engine, guest_references, sizeof guest_references);
  wasm_store_t *store = wasm_store_new(engine), *spawned;
  wasm_importtype_vec_t imports;
  wasm_module_imports(module, &imports);
  const wasm_functype_t *type =
      wasm_externtype_as_functype_const(wasm_importtype_type(imports.data[0]));
  wasm_func_t *func = wasm_func_new(store, type, pass);
  wasm_importtype_vec_delete(&imports);
  wasm_extern_t *import = wasm_func_as_extern(func);
  wasm_extern_vec_t list = {1, &import};
  wasm_instance_t *instance = wasm_instance_new(store, module, &list, NULL), *other;
  CHECK(instance);
  some_func = func;

  /* One that the guest holds, and one that it does not. */
  pagefork_val_t args[2] = {i32(1), {WASM_EXTERNREF, {.ref = NULL}}}, got;
  wasm_foreign_t *text = text_object("a text", 6), *unheld = text_object("unheld", 6);
  args[1].of.ref = wasm_foreign_as_ref(text);
  OK(pagefork_func_call(export_func(instance, "set"), args, 2, NULL, 0));
  args[1].of.ref = wasm_foreign_as_ref(unheld);
  OK(pagefork_func_call(export_func(instance, "same"), args + 1, 1, &got, 1));
  wasm_ref_delete(got.of.ref);
  wasm_foreign_delete(unheld);
  CHECK(finalized == 0);
  pagefork_snapshot_t *kept, *changed;
  FAILS(pagefork_store_snapshot(store, &kept), "a value of the host");
  enum hook hook = KEEP;
  OK(pagefork_store_snapshot_with(store, keep_reference, &hook, &kept));
  CHECK(asked == 1 && finalized == 1);
  hook = OTHER;
  OK(pagefork_store_snapshot_with(store, keep_reference, &hook, &changed));
  pagefork_snapshot_t *none;
  hook = NOTHING;
  FAILS(pagefork_store_snapshot_with(store, keep_reference, &hook, &none), "null");
  hook = FUNCTION;
  FAILS(pagefork_store_snapshot_with(store, keep_reference, &hook, &none), "a function means");
  hook = FAIL;
  FAILS(pagefork_store_snapshot_with(store, keep_reference, &hook, &none), "the hook fails");
  CHECK(!none && finalized == 4);
  FAILS(pagefork_store_snapshot_with(store, NULL, NULL, &none), "hook is null");
  none = kept;
  FAILS(pagefork_store_snapshot_with(NULL, keep_reference, &hook, &none), "store is null");
  CHECK(!none);
  FAILS(pagefork_store_snapshot_with(store, keep_reference, &hook, NULL), "null");

  /* Stores that are made of them, and the same one. */
  spawned = spawn(kept, NULL, &other);
  holds(other, "a text");
  args[1].of.ref = wasm_foreign_as_ref(text);
  OK(pagefork_func_call(export_func(other, "same"), args + 1, 1, &got, 1));
  CHECK(wasm_ref_same(got.of.ref, wasm_foreign_as_ref(text)));
  wasm_ref_delete(got.of.ref);
  wasm_foreign_delete(text);
  delete_kept();
  wasm_instance_delete(other);
  wasm_store_delete(spawned);
  spawned = spawn(changed, NULL, &other);
  holds(other, "another");
  delete_kept();
  wasm_instance_delete(other);
  wasm_store_delete(spawned);
  holds(instance, "a text");
  OK(pagefork_store_reset_to(store, changed, NULL));
  holds(instance, "another");
  CHECK(finalized == 4);

  /* Saved and loaded: neither without the function's names, nor without hooks. */
  pagefork_image_hash_t image;
  pagefork_save_t saving = {.save_reference = save_reference, .env = &hook};
  hook = KEEP;
  FAILS(pagefork_snapshot_save(kept, images, &saving, &image), "name");
  pagefork_named_func_t named = {func, "host", "pass"};
  saving.funcs = &named;
  saving.func_count = 1;
  hook = FAIL;
  FAILS(pagefork_snapshot_save(kept, images, &saving, &image), "the hook fails");
  saving.save_reference = NULL;
  FAILS(pagefork_snapshot_save(kept, images, &saving, &image), "references");
  hook = KEEP;
  saving.save_reference = save_reference;
  OK(pagefork_snapshot_save(kept, images, &saving, &image));
  FAILS(pagefork_snapshot_load(linker, images, &image, NULL, &none), "pass");
  OK(pagefork_linker_unknown_imports_as_traps(linker, module));
  FAILS(pagefork_snapshot_load(linker, images, &image, NULL, &none), "references");
  pagefork_load_t loading = {.load_reference = load_reference, .env = &hook};
  hook = NOTHING;
  FAILS(pagefork_snapshot_load(linker, images, &image, &loading, &none), "null");
  hook = FUNCTION;
  FAILS(pagefork_snapshot_load(linker, images, &image, &loading, &none), "a function means");
  hook = FAIL;
  FAILS(pagefork_snapshot_load(linker, images, &image, &loading, &none), "the hook fails");
  CHECK(finalized == 7);
  hook = KEEP;
  pagefork_snapshot_t *loaded;
  OK(pagefork_snapshot_load(linker, images, &image, &loading, &loaded));
  spawned = spawn(loaded, NULL, &other);
  holds(other, "a text");
  pagefork_snapshot_delete(loaded);
  holds(other, "a text");
  delete_kept();
  wasm_instance_delete(other);
  CHECK(finalized == 7);
  wasm_store_delete(spawned);
  CHECK(finalized == 8);

  /* Names of what is no function of the store's host. */
  named.func = NULL;
  FAILS(pagefork_snapshot_save(kept, images, &saving, &image), "function is null");
  named.func = export_func(instance, "seven");
  FAILS(pagefork_snapshot_save(kept, images, &saving, &image), "store");
  named = (pagefork_named_func_t){func, NULL, "name"};
  FAILS(pagefork_snapshot_save(kept, images, &saving, &image), "null");
  named = (pagefork_named_func_t){func, "host", "\xff"};
  FAILS(pagefork_snapshot_save(kept, images, &saving, &image), "UTF-8");
  saving.funcs = NULL;
  FAILS(pagefork_snapshot_save(kept, images, &saving, &image), "list is null");
  saving.reserved[0] = 1;
  FAILS(pagefork_snapshot_save(kept, images, &saving, &image), "reserved");
  pagefork_snapshot_delete(kept);
  CHECK(finalized == 9);
  pagefork_snapshot_delete(changed);
  delete_kept();
  wasm_func_delete(func);
  wasm_instance_delete(instance);
  /* The hook deletes the last that there is of the store. */
  FAILS(pagefork_store_snapshot_with(store, delete_store, store, &none), "null");
  CHECK(finalized == 10);
  wasm_module_delete(module);
  pagefork_linker_delete(linker);
}

/* A function of the store, which no linker has, of a guest that runs no reference. */
static void named_functions(wasm_engine_t *engine, pagefork_image_store_t *images) {
  wasm_module_t *module = module_of(engine, guest_suspended, sizeof guest_suspended);
  wasm_store_t *store = wasm_store_new(engine);
  wasm_functype_t *type = one_to_one();
  wasm_func_t *func = wasm_func_new(store, type, unnamed);
  wasm_functype_delete(type);
  wasm_extern_t *import = wasm_func_as_extern(func);
  wasm_extern_vec_t list = {1, &import};
  wasm_instance_t *instance = wasm_instance_new(store, module, &list, NULL), *other;
  pagefork_named_func_t named = {func, "host", "ask"};
  pagefork_save_t how = {.funcs = &named, .func_count = 1};
  save(store, images, &how, "named");
  wasm_instance_delete(instance);
  wasm_func_delete(func);
  wasm_store_delete(store);
  wasm_module_delete(module);
  pagefork_linker_t *linker = linker_of(engine);
  pagefork_snapshot_t *snapshot = load(linker, images, "named", NULL);
  store = spawn(snapshot, NULL, &other);
  pagefork_val_t arg = i32(5), results[2];
  answer = 1000;
  OK(pagefork_func_call(export_func(other, "run"), &arg, 1, results, 2));
  CHECK(results[0].of.i32 == 1006);
  delete_kept();
  wasm_instance_delete(other);
  wasm_store_delete(store);
  pagefork_snapshot_delete(snapshot);
  pagefork_linker_delete(linker);
}

static void nothing(pagefork_linker_t *linker, pagefork_image_store_t *images) {
  pagefork_image_hash_t image;
  pagefork_image_store_t *none;
  pagefork_public_key_t public;
  pagefork_snapshot_t *snapshot = load(linker, images, "idle", NULL), *other;
  OK(pagefork_image_store_find(images, "idle", &image));
  FAILS(pagefork_image_store_open(NULL, &none), "directory is null");
  FAILS(pagefork_image_store_open("saved images", NULL), "null");
  FAILS(pagefork_image_store_find(NULL, "idle", &image), "images is null");
  FAILS(pagefork_image_store_find(images, NULL, &image), "name is null");
  FAILS(pagefork_image_store_find(images, "idle", NULL), "null");
  FAILS(pagefork_image_store_set_name(NULL, "a", &image), "images is null");
  FAILS(pagefork_image_store_set_name(images, NULL, &image), "name is null");
  FAILS(pagefork_image_store_set_name(images, "a", NULL), "image is null");
  FAILS(pagefork_image_store_remove_name(NULL, "a"), "images is null");
  FAILS(pagefork_image_store_remove_name(images, NULL), "name is null");
  FAILS(pagefork_image_store_collect(NULL), "images is null");
  FAILS(pagefork_image_store_export(NULL, &image, "a"), "images is null");
  FAILS(pagefork_image_store_export(images, NULL, "a"), "image is null");
  FAILS(pagefork_image_store_export(images, &image, NULL), "path is null");
  FAILS(pagefork_image_store_import(NULL, "a", &image), "images is null");
  FAILS(pagefork_image_store_import(images, NULL, &image), "path is null");
  FAILS(pagefork_image_store_import(images, "a", NULL), "null");
  FAILS(pagefork_secret_key_public(NULL, &public), "key is null");
  FAILS(pagefork_secret_key_public(&key, NULL), "null");
  FAILS(pagefork_snapshot_save(NULL, images, NULL, &image), "snapshot is null");
  FAILS(pagefork_snapshot_save(snapshot, NULL, NULL, &image), "images is null");
  OK(pagefork_snapshot_save(snapshot, images, NULL, NULL));
  FAILS(pagefork_snapshot_load(NULL, images, &image, NULL, &other), "linker is null");
  FAILS(pagefork_snapshot_load(linker, NULL, &image, NULL, &other), "images is null");
  FAILS(pagefork_snapshot_load(linker, images, NULL, NULL, &other), "image is null");
  FAILS(pagefork_snapshot_load(linker, images, &image, NULL, NULL), "null");
  wasm_byte_vec_t state;
  FAILS(pagefork_snapshot_state(NULL, &state), "snapshot is null");
  FAILS(pagefork_snapshot_state(snapshot, NULL), "null");
  FAILS(pagefork_snapshot_image(NULL, &image), "snapshot is null");
  FAILS(pagefork_snapshot_image(snapshot, NULL), "null");
  pagefork_image_store_delete(NULL);
  pagefork_snapshot_delete(snapshot);
}

int main(void) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    first_process();
    exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  wasm_engine_t *engine = wasm_engine_new();
  pagefork_linker_t *linker = linker_of(engine);
  pagefork_image_store_t *images;
  OK(pagefork_image_store_open("saved images", &images));
  second_process(engine, linker, images);
  session_of_another(linker, images);
  files(linker, images);
  references(engine, images);
  CHECK(finalized == 10);
  named_functions(engine, images);
  nothing(linker, images);
  pagefork_image_store_delete(images);
  pagefork_linker_delete(linker);
  wasm_engine_delete(engine);
  puts("ok");
  return 0;
}
