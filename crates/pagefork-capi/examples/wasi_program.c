/* Runs a WASI program, by default one that echoes what it reads: wasi_program [PROGRAM ARGUMENT..]. */

#include "example.h"

static const char echo[] =
    "(module"
    "  (import \"wasi_snapshot_preview1\" \"fd_read\" (func $read (param i32 i32 i32 i32) (result i32)))"
    "  (import \"wasi_snapshot_preview1\" \"fd_write\" (func $write (param i32 i32 i32 i32) (result i32)))"
    "  (memory (export \"memory\") 1)"
    "  (func (export \"_start\")"
    "    (i32.store (i32.const 0) (i32.const 64))"
    "    (i32.store (i32.const 4) (i32.const 1000))"
    "    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))"
    "    (i32.store (i32.const 4) (i32.load (i32.const 8)))"
    "    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))";

int main(int argc, char **argv) {
  wasm_engine_t *engine;
  wasm_module_t *module;
  wasm_instance_t *instance;
  pagefork_linker_t *linker;
  check(pagefork_engine_new(NULL, &engine));
  if (argc > 1) {
    check(pagefork_module_new_file(engine, argv[1], &module));
  } else {
    check(pagefork_module_new(engine, echo, sizeof echo - 1, &module));
  }
  check(pagefork_linker_new(engine, &linker));
  check(pagefork_linker_wasi(linker));

  pagefork_wasi_config_t *wasi = pagefork_wasi_config_new();
  for (int i = 1; i < argc; i++) check(pagefork_wasi_config_arg(wasi, argv[i]));
  if (argc > 1) {
    pagefork_wasi_config_inherit_stdin(wasi);
  } else {
    check(pagefork_wasi_config_stdin(wasi, "read by the guest\n", 18));
  }
  pagefork_wasi_config_inherit_stdout(wasi);
  pagefork_wasi_config_inherit_stderr(wasi);
  wasm_store_t *store = wasm_store_new(engine);
  check(pagefork_store_set_wasi(store, wasi));
  pagefork_wasi_config_delete(wasi);

  check(pagefork_linker_instantiate(linker, store, module, &instance));
  pagefork_error_t *error = pagefork_wasi_start(instance);
  int32_t status = 0;
  if (error && !pagefork_error_exit_status(error, &status)) check(error);
  wasm_trap_delete(error);

  wasm_instance_delete(instance);
  wasm_store_delete(store);
  pagefork_linker_delete(linker);
  wasm_module_delete(module);
  wasm_engine_delete(engine);
  return status;
}
