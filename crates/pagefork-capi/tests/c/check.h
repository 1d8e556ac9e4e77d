/* What the test programs share: checks, and modules that the harness compiles of text. */

#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guests.h"
#include "wasm.h"

/* Ends the program, with where and what, unless the condition holds. */
#define CHECK(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                 \
      exit(1);                                                                                  \
    }                                                                                           \
  } while (0)

/* Ends the program with the trap's message, unless there is none. */
static inline void check_returned(wasm_trap_t *trap, const char *file, int line) {
  if (trap) {
    wasm_message_t message;
    wasm_trap_message(trap, &message);
    fprintf(stderr, "%s:%d: trap: %s\n", file, line, message.data);
    exit(1);
  }
}

#define RETURNS(call) check_returned((call), __FILE__, __LINE__)

/* Ends the program unless the trap's message contains the text; deletes the trap. */
static inline void check_trap(wasm_trap_t *trap, const char *text, const char *file, int line) {
  wasm_message_t message = WASM_EMPTY_VEC;
  if (trap) wasm_trap_message(trap, &message);
  if (!trap || message.data[message.size - 1] != 0 || !strstr(message.data, text)) {
    fprintf(stderr, "%s:%d: no trap with \"%s\": %s\n", file, line, text,
            trap ? message.data : "it returned");
    exit(1);
  }
  wasm_byte_vec_delete(&message);
  wasm_trap_delete(trap);
}

#define TRAPS(call, text) check_trap((call), (text), __FILE__, __LINE__)

/* Objects that are deleted at the end. */
static struct wasm_ref_t *kept[256];
static size_t kept_count;

/* Has an object of whichever kind deleted by delete_kept; returns it. */
static inline void *keep(void *object) {
  CHECK(object && kept_count < sizeof kept / sizeof *kept);
  kept[kept_count++] = (struct wasm_ref_t *)object;
  return object;
}

/* Deletes what was kept. */
static inline void delete_kept(void) {
  while (kept_count > 0) wasm_ref_delete(kept[--kept_count]);
}

/* The bytes of a guest: an array that the harness has made of guests/NAME.wat. */
#define GUEST(name) {sizeof(guest_##name), (char *)guest_##name}

/* A module of a guest, which is kept. */
#define COMPILE(store, name) compile((store), sizeof(guest_##name), guest_##name)

static inline wasm_module_t *compile(wasm_store_t *store, size_t size, const unsigned char *bytes) {
  wasm_byte_vec_t binary = {size, (char *)bytes};
  wasm_module_t *module = wasm_module_new(store, &binary);
  return (wasm_module_t *)keep(module);
}

/* An instance of a module without imports, which is kept. */
static inline wasm_instance_t *instantiate(wasm_store_t *store, const wasm_module_t *module) {
  wasm_trap_t *trap;
  wasm_instance_t *instance = wasm_instance_new(store, module, NULL, &trap);
  RETURNS(trap);
  return (wasm_instance_t *)keep(instance);
}

/* What an instance exports by a name, which is kept. */
static inline wasm_extern_t *find_export(const wasm_module_t *module,
                                         const wasm_instance_t *instance, const char *name) {
  wasm_exporttype_vec_t types;
  wasm_extern_vec_t exports;
  wasm_extern_t *found = NULL;
  wasm_module_exports(module, &types);
  wasm_instance_exports(instance, &exports);
  CHECK(types.size == exports.size);
  for (size_t i = 0; i < types.size; i++) {
    const wasm_name_t *own = wasm_exporttype_name(types.data[i]);
    if (own->size == strlen(name) && memcmp(own->data, name, own->size) == 0) {
      found = exports.data[i];
      exports.data[i] = NULL;
    }
  }
  wasm_exporttype_vec_delete(&types);
  wasm_extern_vec_delete(&exports);
  if (!found) fprintf(stderr, "there is no export %s\n", name);
  return (wasm_extern_t *)keep(found);
}

/* The function that an instance exports by a name, which is kept. */
static inline wasm_func_t *find_func(const wasm_module_t *module, const wasm_instance_t *instance,
                                     const char *name) {
  wasm_func_t *func = wasm_extern_as_func(find_export(module, instance, name));
  CHECK(func);
  return func;
}

#endif
