/* What the examples share: an error ends them with its text. */

#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <pagefork.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program, unless the error is null. */
static inline void check(pagefork_error_t *error) {
  if (!error) return;
  wasm_message_t message;
  wasm_trap_message(error, &message);
  fprintf(stderr, "error: %s\n", message.data);
  exit(1);
}

/* Prints an error that was expected, and deletes it. */
static inline void print_error(const char *what, pagefork_error_t *error) {
  wasm_message_t message;
  wasm_trap_message(error, &message);
  printf("%s: %s\n", what, message.data);
  wasm_byte_vec_delete(&message);
  wasm_trap_delete(error);
}

/* The exported function of a signature's type: see pagefork_function_t. */
static inline pagefork_typed_func_t *typed_export(const wasm_instance_t *instance, const char *name,
                                                  const char *signature) {
  wasm_extern_t *external;
  pagefork_typed_func_t *func;
  check(pagefork_instance_export(instance, name, &external));
  check(pagefork_func_typed(wasm_extern_as_func(external), signature, &func));
  wasm_extern_delete(external);
  return func;
}

#endif
