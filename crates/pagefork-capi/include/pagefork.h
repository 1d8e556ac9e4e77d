/*
 * pagefork.h: what Pagefork has beyond wasm.h.
 *
 * Ownership, threads and callbacks are as wasm.h says. Functions that can fail give a
 * `pagefork_error_t`: null if they have succeeded, else a trap of wasm.h, whose message and frames
 * say what happened, and which the caller deletes. What they make they write to an `out` argument,
 * which is null after a failure.
 */

#ifndef PAGEFORK_H
#define PAGEFORK_H

#include "wasm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------- */
/* Version */

/* The version of this header. */
#define PAGEFORK_VERSION "0.1.0"

/* The version of the library: text that lives as long as the program. */
WASM_API_EXTERN const char *pagefork_version(void);

/* ------------------------------------------------------------------------------------------- */
/* Errors */

/* Why something has failed; wasm_trap_message, wasm_trap_origin, wasm_trap_trace and
 * wasm_trap_delete are its functions too. */
typedef wasm_trap_t pagefork_error_t;

/* What part of the world an error is about. */
typedef uint8_t pagefork_error_kind_t;
enum pagefork_error_kind_enum {
  /* A module was refused: it is invalid, too large, or damaged. */
  PAGEFORK_ERROR_COMPILE,
  /* Imports do not match. */
  PAGEFORK_ERROR_LINK,
  /* A guest trapped: pagefork_error_trap_code says why. */
  PAGEFORK_ERROR_TRAP,
  /* A guest threw an exception that nothing caught. */
  PAGEFORK_ERROR_EXCEPTION,
  /* The embedder's own: what a host function has failed with; the exit of a WASI program. */
  PAGEFORK_ERROR_HOST,
  /* A limit of the store was met. */
  PAGEFORK_ERROR_LIMIT,
  /* The operating system refused something. */
  PAGEFORK_ERROR_SYSTEM,
  /* Something was used where it does not fit. */
  PAGEFORK_ERROR_USAGE
};

/* Why a guest trapped. */
typedef uint8_t pagefork_trap_code_t;
enum pagefork_trap_code_enum {
  PAGEFORK_TRAP_NONE,
  PAGEFORK_TRAP_STACK_OVERFLOW,
  PAGEFORK_TRAP_MEMORY_OUT_OF_BOUNDS,
  PAGEFORK_TRAP_TABLE_OUT_OF_BOUNDS,
  PAGEFORK_TRAP_INDIRECT_CALL_TO_NULL,
  PAGEFORK_TRAP_BAD_SIGNATURE,
  PAGEFORK_TRAP_INTEGER_OVERFLOW,
  PAGEFORK_TRAP_INTEGER_DIVISION_BY_ZERO,
  PAGEFORK_TRAP_BAD_CONVERSION_TO_INTEGER,
  PAGEFORK_TRAP_UNREACHABLE,
  /* It was interrupted, or its time was up. */
  PAGEFORK_TRAP_INTERRUPT,
  PAGEFORK_TRAP_OUT_OF_FUEL,
  PAGEFORK_TRAP_NULL_REFERENCE,
  PAGEFORK_TRAP_IMAGE_UNREADABLE,
  PAGEFORK_TRAP_NULL_FUNCTION_REFERENCE,
  PAGEFORK_TRAP_NULL_EXCEPTION_REFERENCE,
  PAGEFORK_TRAP_TOO_MANY_EXCEPTIONS
};

/* Why the last function that failed on this thread without giving an error has done so; null if
 * that was told already. Functions that succeed leave it. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_last_error(void);

/* Which kind of error it is. */
WASM_API_EXTERN pagefork_error_kind_t pagefork_error_kind(const pagefork_error_t *);

/* Why a guest trapped; PAGEFORK_TRAP_NONE for any other error. */
WASM_API_EXTERN pagefork_trap_code_t pagefork_error_trap_code(const pagefork_error_t *);

/* Whether a WASI program has ended itself: `out`, unless null, is set to its exit status. */
WASM_API_EXTERN bool pagefork_error_exit_status(const pagefork_error_t *, int32_t *out);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PAGEFORK_H */
