/*
 * pagefork_wasi.h: programs for WASI preview 1. It is a part of pagefork.h, which includes it.
 */

#ifndef PAGEFORK_WASI_H
#define PAGEFORK_WASI_H

#include "pagefork.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------- */
/* What programs see */

/* Programs see nothing: no arguments, variables or files; what they write is discarded. The functions
 * that say otherwise change nothing if the configuration is null. */
WASM_API_EXTERN WASM_OWN pagefork_wasi_config_t *pagefork_wasi_config_new(void);

/* Deletes the configuration; null is nothing to delete. Stores that have it stay as they are. */
WASM_API_EXTERN void pagefork_wasi_config_delete(WASM_OWN pagefork_wasi_config_t *);

/* Adds an argument, which is copied; the first is the program's name. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_wasi_config_arg(pagefork_wasi_config_t *,
                                                                    const char *);

/* Sets a variable; name and value are copied. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_wasi_config_env(
    pagefork_wasi_config_t *, const char *name, const char *value);

/* Arguments, variables and standard streams of this process. */
WASM_API_EXTERN void pagefork_wasi_config_inherit_args(pagefork_wasi_config_t *);
WASM_API_EXTERN void pagefork_wasi_config_inherit_env(pagefork_wasi_config_t *);
WASM_API_EXTERN void pagefork_wasi_config_inherit_stdin(pagefork_wasi_config_t *);
WASM_API_EXTERN void pagefork_wasi_config_inherit_stdout(pagefork_wasi_config_t *);
WASM_API_EXTERN void pagefork_wasi_config_inherit_stderr(pagefork_wasi_config_t *);

/* Has programs that were called by pagefork_func_call_suspendable suspended before they read; others
 * fail to read. A store that goes on from a snapshot can give them what they read. */
WASM_API_EXTERN void pagefork_wasi_config_await_stdin(pagefork_wasi_config_t *);

/* Has programs read these bytes, which are copied. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_wasi_config_stdin(
    pagefork_wasi_config_t *, const void *bytes, size_t size);

/* Keeps what programs write, at most so many bytes: see pagefork_store_take_output. */
WASM_API_EXTERN void pagefork_wasi_config_capture_stdout(pagefork_wasi_config_t *, size_t size_max);
WASM_API_EXTERN void pagefork_wasi_config_capture_stderr(pagefork_wasi_config_t *, size_t size_max);

/* Gives programs a directory by a name of their own. An error if it cannot be opened. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_wasi_config_directory(
    pagefork_wasi_config_t *, const char *host_path, const char *guest_path, bool read_only);

/* ------------------------------------------------------------------------------------------- */
/* Running them */

/* Has programs of the store see this from now on. The configuration can be used again. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_set_wasi(wasm_store_t *,
                                                                   const pagefork_wasi_config_t *);

/* What programs have written to their output (1) or errors (2) since it was last taken. An error if
 * it is not kept. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_take_output(
    wasm_store_t *, uint8_t stream, WASM_OWN wasm_byte_vec_t *out);

/* Runs a program: calls `_start`. A program that ends itself gives an error with its exit status:
 * see pagefork_error_exit_status. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_wasi_start(const wasm_instance_t *);

/* Initializes a reactor, whose functions can be called then; of a program it does nothing. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_wasi_initialize(const wasm_instance_t *);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PAGEFORK_WASI_H */
