/* WASI programs: what they read and write, how they end, and directories. */

#define _DEFAULT_SOURCE
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "pagefork.h"

/* What a program sees of arguments, variables and files, and whether it may make one. */
static void sees(wasm_engine_t *engine, pagefork_linker_t *linker) {
  wasm_module_t *module;
  RETURNS(pagefork_module_new(engine, guest_sees, sizeof guest_sees, &module));
  mkdir("wasi_directory", 0700);
  unlink("wasi_directory/made.txt");
  FILE *file = fopen("wasi_directory/there.txt", "w");
  CHECK(file && fputs("what is there", file) >= 0 && fclose(file) == 0);
  /* Without a directory, with one to read, and with one to write. */
  for (int directory = 0; directory < 3; directory++) {
    pagefork_wasi_config_t *wasi = pagefork_wasi_config_new();
    RETURNS(pagefork_wasi_config_arg(wasi, "program"));
    RETURNS(pagefork_wasi_config_arg(wasi, "with spaces"));
    RETURNS(pagefork_wasi_config_env(wasi, "NAME", "value"));
    RETURNS(pagefork_wasi_config_env(wasi, "OTHER", ""));
    if (directory) {
      RETURNS(pagefork_wasi_config_directory(wasi, "wasi_directory", "/d", directory == 1));
    }
    pagefork_wasi_config_capture_stdout(wasi, 1000);
    wasm_store_t *store = wasm_store_new(engine);
    RETURNS(pagefork_store_set_wasi(store, wasi));
    pagefork_wasi_config_delete(wasi);
    wasm_instance_t *instance;
    RETURNS(pagefork_linker_instantiate(linker, store, module, &instance));
    pagefork_error_t *error = pagefork_wasi_start(instance);
    int32_t status = -1;
    CHECK(pagefork_error_exit_status(error, &status) && !status == (directory == 2));
    wasm_trap_delete(error);
    CHECK((access("wasi_directory/made.txt", F_OK) == 0) == (directory == 2));
    static const char expected[] = "program\0with spaces\0NAME=value\0OTHER=\0what is there";
    size_t size = sizeof expected - 1 - (directory ? 0 : strlen("what is there"));
    wasm_byte_vec_t output;
    RETURNS(pagefork_store_take_output(store, 1, &output));
    CHECK(output.size == size && memcmp(output.data, expected, size) == 0);
    wasm_byte_vec_delete(&output);
    wasm_instance_delete(instance);
    wasm_store_delete(store);
  }
  wasm_module_delete(module);
}

int main(void) {
  wasm_engine_t *engine = wasm_engine_new();
  pagefork_linker_t *linker;
  RETURNS(pagefork_linker_new(engine, &linker));
  RETURNS(pagefork_linker_wasi(linker));
  sees(engine, linker);
  wasm_module_t *module;
  RETURNS(pagefork_module_new(engine, guest_program, sizeof guest_program, &module));
  pagefork_instance_pre_t *pre;
  RETURNS(pagefork_linker_instantiate_pre(linker, module, &pre));

  pagefork_wasi_config_t *wasi = pagefork_wasi_config_new();
  RETURNS(pagefork_wasi_config_arg(wasi, "program"));
  RETURNS(pagefork_wasi_config_env(wasi, "NAME", "value"));
  RETURNS(pagefork_wasi_config_stdin(wasi, "a text", 6));
  RETURNS(pagefork_wasi_config_directory(wasi, ".", "/here", true));
  TRAPS(pagefork_wasi_config_directory(wasi, "no such", "/here", false), "no such");
  TRAPS(pagefork_wasi_config_arg(wasi, NULL), "null");
  pagefork_wasi_config_capture_stdout(wasi, 100);
  pagefork_wasi_config_capture_stderr(wasi, 100);
  for (int i = 0; i < 3; i++) {
    wasm_store_t *store;
    wasm_instance_t *instance;
    pagefork_spawn_t how = {.wasi = wasi};
    RETURNS(pagefork_instance_pre_spawn(pre, &how, &store, &instance));
    pagefork_error_t *error = pagefork_wasi_start(instance);
    int32_t status = 0;
    CHECK(pagefork_error_exit_status(error, &status) && status == 3);
    CHECK(pagefork_error_kind(error) == PAGEFORK_ERROR_HOST);
    TRAPS(error, "3");
    wasm_byte_vec_t output;
    for (uint8_t stream = 1; stream <= 2; stream++) {
      RETURNS(pagefork_store_take_output(store, stream, &output));
      CHECK(output.size == 6 && memcmp(output.data, "a text", 6) == 0);
      wasm_byte_vec_delete(&output);
      RETURNS(pagefork_store_take_output(store, stream, &output));
      CHECK(output.size == 0);
    }
    TRAPS(pagefork_store_take_output(store, 3, &output), "stream 3");
    if (i == 1) {
      /* A reset store sees what it is told, or nothing. */
      RETURNS(pagefork_store_reset(store, wasi));
      TRAPS(pagefork_wasi_start(instance), "3");
      RETURNS(pagefork_store_take_output(store, 1, &output));
      CHECK(output.size == 6);
      wasm_byte_vec_delete(&output);
      RETURNS(pagefork_store_reset(store, NULL));
      TRAPS(pagefork_wasi_start(instance), "3");
      TRAPS(pagefork_store_take_output(store, 1, &output), "not captured");
    }
    wasm_store_delete(store);
    wasm_instance_delete(instance);
  }

  /* Everything of this process, in a store that was made before. */
  pagefork_wasi_config_t *own = pagefork_wasi_config_new();
  pagefork_wasi_config_inherit_args(own);
  pagefork_wasi_config_inherit_env(own);
  pagefork_wasi_config_inherit_stdin(own);
  pagefork_wasi_config_inherit_stdout(own);
  pagefork_wasi_config_inherit_stderr(own);
  wasm_store_t *store = wasm_store_new(engine);
  RETURNS(pagefork_store_set_wasi(store, own));
  pagefork_wasi_config_delete(own);
  wasm_instance_t *instance;
  RETURNS(pagefork_linker_instantiate(linker, store, module, &instance));
  TRAPS(pagefork_wasi_start(instance), "3");
  wasm_instance_delete(instance);
  wasm_module_delete(module);

  /* A reactor is initialized once. */
  RETURNS(pagefork_module_new(engine, guest_reactor, sizeof guest_reactor, &module));
  RETURNS(pagefork_linker_instantiate(linker, store, module, &instance));
  RETURNS(pagefork_wasi_initialize(instance));
  wasm_extern_t *count;
  RETURNS(pagefork_instance_export(instance, "count", &count));
  pagefork_val_t result;
  RETURNS(pagefork_func_call(wasm_extern_as_func(count), NULL, 0, &result, 1));
  CHECK(result.of.i32 == 1);
  TRAPS(pagefork_wasi_start(instance), "_start");
  wasm_extern_delete(count);
  wasm_instance_delete(instance);
  wasm_module_delete(module);
  wasm_store_delete(store);
  pagefork_wasi_config_delete(wasi);
  pagefork_instance_pre_delete(pre);
  pagefork_linker_delete(linker);
  wasm_engine_delete(engine);
  puts("ok");
  return 0;
}
