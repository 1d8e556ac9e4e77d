/* Errors of pagefork.h: what they say of failures that wasm.h only shows. */

#include "check.h"
#include "pagefork.h"

/* The last error, which is of this kind and says so. */
static void last_error(pagefork_error_kind_t kind, const char *text) {
  pagefork_error_t *error = pagefork_last_error();
  CHECK(error && pagefork_error_kind(error) == kind);
  CHECK(pagefork_error_trap_code(error) == PAGEFORK_TRAP_NONE);
  CHECK(!pagefork_error_exit_status(error, NULL));
  TRAPS(error, text);
  CHECK(!pagefork_last_error());
}

int main(void) {
  CHECK(strcmp(pagefork_version(), PAGEFORK_VERSION) == 0);
  CHECK(!pagefork_last_error());
  wasm_engine_t *engine = wasm_engine_new();
  wasm_store_t *store = wasm_store_new(engine);
  wasm_byte_vec_t broken = {3, "abc"};
  CHECK(!wasm_module_new(store, &broken));
  last_error(PAGEFORK_ERROR_COMPILE, "module");
  CHECK(!wasm_store_new(NULL));
  last_error(PAGEFORK_ERROR_USAGE, "the engine is null");

  wasm_trap_t *trap;
  wasm_module_t *module = COMPILE(store, start_traps);
  CHECK(!wasm_instance_new(store, module, NULL, &trap));
  CHECK(pagefork_error_kind(trap) == PAGEFORK_ERROR_TRAP);
  CHECK(pagefork_error_trap_code(trap) == PAGEFORK_TRAP_UNREACHABLE);
  TRAPS(trap, "unreachable");
  CHECK(!wasm_instance_new(store, COMPILE(store, traps), NULL, &trap));
  CHECK(pagefork_error_kind(trap) == PAGEFORK_ERROR_LINK);
  TRAPS(trap, "imports");
  trap = wasm_trap_new(store, NULL);
  CHECK(pagefork_error_kind(trap) == PAGEFORK_ERROR_HOST);
  TRAPS(trap, "");
  delete_kept();
  wasm_store_delete(store);
  wasm_engine_delete(engine);
  puts("ok");
  return 0;
}
