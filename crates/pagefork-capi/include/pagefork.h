/*
 * pagefork.h: what Pagefork has beyond wasm.h.
 *
 * Ownership, threads and callbacks are as wasm.h says. Functions that can fail give a
 * `pagefork_error_t`: null if they have succeeded, else a trap of wasm.h, whose message and frames
 * say what happened, and which the caller deletes. What they make they write to an `out` argument,
 * which is null after a failure, and 0 if it is a number. Places for values of a list are as they were.
 * Null is an error where a function does not say that it may be given.
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
  PAGEFORK_ERROR_USAGE,
  /* A snapshot could not be saved, or one that was saved is refused. */
  PAGEFORK_ERROR_SNAPSHOT
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
  PAGEFORK_TRAP_TOO_MANY_EXCEPTIONS,
  PAGEFORK_TRAP_PAGE_ABSENT /* and did not come, of the instance's image */
};

/* Why the last function that failed on this thread without giving an error has done so; null if
 * that was told already. Functions that succeed leave it. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_last_error(void);

/* An error of the embedder's, with this text, which is copied. It is of no store: any thread can make
 * one. Null if the text is. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_error_new(const char *message);

/* Which kind of error it is. Of null it says PAGEFORK_ERROR_COMPILE, which is 0: there is no error. */
WASM_API_EXTERN pagefork_error_kind_t pagefork_error_kind(const pagefork_error_t *);

/* Why a guest trapped; PAGEFORK_TRAP_NONE for any other error. */
WASM_API_EXTERN pagefork_trap_code_t pagefork_error_trap_code(const pagefork_error_t *);

/* Whether a WASI program has ended itself: `out`, unless null, is set to its exit status. */
WASM_API_EXTERN bool pagefork_error_exit_status(const pagefork_error_t *, int32_t *out);

/* ------------------------------------------------------------------------------------------- */
/* Configuration: of null these functions change nothing, and pagefork_last_error says so. */

/* Bytes of stack that guests have: 1 MiB unless it is set. */
WASM_API_EXTERN void pagefork_config_stack_size(wasm_config_t *, uint64_t bytes);

/* Elements that tables without a smaller maximum may grow to. */
WASM_API_EXTERN void pagefork_config_table_elements(wasm_config_t *, uint64_t elements);

/* Bytes that memories of 64 bits without a smaller maximum may grow to. */
WASM_API_EXTERN void pagefork_config_memory64_size(wasm_config_t *, uint64_t bytes);

/* Bytes that exceptions of an instance may take. */
WASM_API_EXTERN void pagefork_config_exceptions_size(wasm_config_t *, uint64_t bytes);

/* Bytes that the engine's slots may keep in memory between runs, all together. */
WASM_API_EXTERN void pagefork_config_resident_max(wasm_config_t *, uint64_t bytes);

/* How long, in how much memory and in how many steps a module may be compiled; 0 milliseconds are
 * no limit. */
WASM_API_EXTERN void pagefork_config_compile_timeout(wasm_config_t *, uint64_t milliseconds);
WASM_API_EXTERN void pagefork_config_compile_memory(wasm_config_t *, uint64_t bytes);
WASM_API_EXTERN void pagefork_config_compile_work(wasm_config_t *, uint64_t steps);

/* Whether guests can be interrupted, so that timeouts, interrupt handles and epochs work: on unless
 * it is set. */
WASM_API_EXTERN void pagefork_config_interruption(wasm_config_t *, bool on);

/* Whether guests pay fuel for what they do: off unless it is set. */
WASM_API_EXTERN void pagefork_config_fuel(wasm_config_t *, bool on);

/* Whether results are the same on all machines, NaNs included: off unless it is set. */
WASM_API_EXTERN void pagefork_config_deterministic(wasm_config_t *, bool on);

/* Whether frames tell offsets in their module: on unless it is set. Compiled modules are smaller
 * without. */
WASM_API_EXTERN void pagefork_config_sources(wasm_config_t *, bool on);

/* Has compiled modules kept in a directory, or in the user's own if that is null. */
WASM_API_EXTERN void pagefork_config_cache(wasm_config_t *, const char *directory);

/* Ways to make a slot as it was: see pagefork_strategies_t. */
enum pagefork_reset_enum {
  /* What measuring says. */
  PAGEFORK_RESET_AUTO,
  /* New maps each time. */
  PAGEFORK_RESET_REMAP,
  /* The kernel throws written pages away. */
  PAGEFORK_RESET_DISCARD,
  /* The kernel says which pages were written; they are copied back. */
  PAGEFORK_RESET_SCAN,
  /* As by scanning, but only if there was a page fault. */
  PAGEFORK_RESET_RESIDENT,
  /* Without copy-on-write: what differs is copied. */
  PAGEFORK_RESET_COPY,
  /* As RESIDENT, but pages that runs write seldom stay under write protection, without being looked at. */
  PAGEFORK_RESET_PROTECT,
  /* Without copy-on-write: a page is copied when it is touched, by a signal, or as `fault_threads` and
   * `fault_eager` below say. Not for processes that are forked. It is there to be compared. */
  PAGEFORK_RESET_FAULT
};

/* How memories become longer. */
enum pagefork_growth_enum {
  /* Pages become accessible when a memory grows, and inaccessible when it is reset. */
  PAGEFORK_GROWTH_MPROTECT,
  /* Pages are accessible from the start: see `accessible`. */
  PAGEFORK_GROWTH_CHECKED,
  /* What runs have grown to stays accessible. */
  PAGEFORK_GROWTH_KEPT,
  /* What measuring says. */
  PAGEFORK_GROWTH_AUTO,
  /* In a file, whose end is the bound. Not for processes that are forked. */
  PAGEFORK_GROWTH_FTRUNCATE,
  /* By signals: a page is there once it was touched, if the memory has grown as far. System calls fail
   * (EFAULT) where a page was not. Not for processes that are forked. It is there to be compared. */
  PAGEFORK_GROWTH_FAULT
};

/* What bounds accesses. Memories grow by CHECKED, KEPT and AUTO only with code that compares. */
enum pagefork_bounds_enum {
  /* What is beyond the size is inaccessible. */
  PAGEFORK_BOUNDS_GUARDED,
  /* The code compares each access with the size. */
  PAGEFORK_BOUNDS_CHECKED,
  /* Functions have a body of either kind. */
  PAGEFORK_BOUNDS_DUAL
};

/* How a snapshot of a store that runs on finds what was written since the last one. It has those pages
 * alone then, and stores that are spawned from it have copies of them. */
enum pagefork_deltas_enum {
  /* Not at all: a snapshot has all in which the store differs from what it was made of. */
  PAGEFORK_DELTAS_OFF,
  /* Pages that were written since the store was made are compared. It costs guests nothing. */
  PAGEFORK_DELTAS_COMPARE,
  /* The kernel notes which pages are written: the first write to a page after each snapshot is a page
   * fault. Where the kernel cannot (before Linux 6.7) or may not, pages are compared. */
  PAGEFORK_DELTAS_WRITES,
  /* Pages are read-only after each snapshot, and the first write to one is a signal that notes it. It
   * needs nothing of the kernel. Where that cannot be, pages are compared: after wasm_memory_data(),
   * until the store is reset, and where vm.overcommit_memory is 2. */
  PAGEFORK_DELTAS_PROTECT,
  /* Private pages are write-protected after each snapshot (userfaultfd), and the first write to one is a
   * signal that notes it. Where that cannot be, pages are compared: where the kernel refuses, of images
   * in files, and after wasm_memory_data(), until the store is reset. */
  PAGEFORK_DELTAS_FAULT
};

/* How slots are reset, and memories grow. All zero is what an engine does unless it is told. */
typedef struct pagefork_strategies_t {
  /* One of pagefork_reset_enum, pagefork_growth_enum and pagefork_bounds_enum. */
  uint8_t reset, growth, bounds;
  /* Whether stacks are cleared at each reset, and not only for another tenant. */
  bool clear_stack;
  /* Whether images must not be mapped copy-on-write. */
  bool no_copy_on_write;
  /* With PAGEFORK_GROWTH_CHECKED: bytes of each memory that are accessible from the start; 0 for all
   * that it may become. */
  uint64_t accessible;
  /* Bytes of a slot that may stay in memory; 0 is no limit but the engine's. */
  uint64_t resident_max;
  /* Bytes of the stack that stay in memory; 0 for the usual number. */
  uint64_t stack_kept;
  /* One of pagefork_deltas_enum. */
  uint64_t deltas;
  /* With PAGEFORK_RESET_FAULT: how many threads copy pages, while those wait that touch them; 0 for none, so
   * that each thread copies what it touches. And whether all pages are copied at each reset instead. */
  uint32_t fault_threads;
  bool fault_eager;
  /* For later versions: zero. */
  uint64_t reserved[2];
} pagefork_strategies_t;

/* Has slots reset in this way. An error if there are no such strategies, or they do not go
 * together. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_config_strategies(
    wasm_config_t *, const pagefork_strategies_t *);

/* What an engine keeps of stores and slots that are used no more, for those that come. All zero is
 * what it does unless it is told. */
typedef struct pagefork_pool_t {
  /* How many, and bytes that they may keep in memory, all together and of one image; 0 is no limit. */
  uint64_t kept_max, resident_max, resident_max_per_image;
  /* How long one may lie unused; 0 is a minute, UINT64_MAX for ever. */
  uint64_t idle_milliseconds_max;
  /* Whether they stay in memory though the system is short of it. */
  bool ignore_pressure;
  /* For later versions: zero. */
  uint64_t reserved[4];
} pagefork_pool_t;

/* Has engines keep this. An error if something that is reserved is not zero. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_config_pool(wasm_config_t *,
                                                                const pagefork_pool_t *);

/* What modules may use: all of it unless it is switched off. */
enum pagefork_feature_enum {
  PAGEFORK_FEATURE_BULK_MEMORY,
  PAGEFORK_FEATURE_EXCEPTIONS,
  PAGEFORK_FEATURE_EXTENDED_CONST,
  PAGEFORK_FEATURE_FUNCTION_REFERENCES,
  PAGEFORK_FEATURE_MEMORY64,
  PAGEFORK_FEATURE_MULTI_MEMORY,
  PAGEFORK_FEATURE_MULTI_VALUE,
  PAGEFORK_FEATURE_MUTABLE_GLOBAL,
  PAGEFORK_FEATURE_REFERENCE_TYPES,
  PAGEFORK_FEATURE_SATURATING_FLOAT_TO_INT,
  PAGEFORK_FEATURE_SIGN_EXTENSION,
  PAGEFORK_FEATURE_SIMD,
  PAGEFORK_FEATURE_RELAXED_SIMD,
  PAGEFORK_FEATURE_TAIL_CALL
};

/* Switches a feature, one of pagefork_feature_enum, on or off. An error if there is no such one. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_config_feature(wasm_config_t *,
                                                                   uint8_t feature, bool on);

/* An engine; null for the configuration is that of wasm_config_new. An error as of
 * wasm_engine_new_with_config. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_engine_new(WASM_OWN wasm_config_t *,
                                                               WASM_OWN wasm_engine_t **out);

/* Makes the engine's epoch one more: stores whose deadline it is trap. From any thread, and in
 * signal handlers. Of null it does nothing. */
WASM_API_EXTERN void pagefork_engine_increment_epoch(wasm_engine_t *);

/* ------------------------------------------------------------------------------------------- */
/* Modules */

/* Compiles a module, binary or text. It is of no store, and any thread may use it for its stores. An
 * error if it is invalid, or takes more than the configuration allows. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_module_new(
    wasm_engine_t *, const void *bytes, size_t size, WASM_OWN wasm_module_t **out);

/* As pagefork_module_new, of a file. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_module_new_file(
    wasm_engine_t *, const char *path, WASM_OWN wasm_module_t **out);

/* The module that wasm_module_serialize gave these bytes of, which must be unchanged: they are
 * native code. An error as of wasm_module_deserialize. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_module_deserialize(
    wasm_engine_t *, const void *bytes, size_t size, WASM_OWN wasm_module_t **out);

/* As pagefork_module_deserialize, of a file. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_module_deserialize_file(
    wasm_engine_t *, const char *path, WASM_OWN wasm_module_t **out);

/* ------------------------------------------------------------------------------------------- */
/* Stores */

/* What WASI programs are to see. */
typedef struct pagefork_wasi_config_t pagefork_wasi_config_t;

/* What a store may have; 0 is no limit. */
typedef struct pagefork_limits_t {
  /* Bytes of each memory, and of all together. */
  uint64_t memory_size, memory_total;
  /* Elements of each table. */
  uint64_t table_elements;
  /* How many there may be. */
  uint64_t instances, memories, tables;
  /* Whether growth that fails ends the guest, and does not answer -1. */
  bool trap_on_grow_failure;
  /* For later versions: zero. */
  uint64_t reserved[4];
} pagefork_limits_t;

/* One more reference to the store. Null if the store is. */
WASM_API_EXTERN WASM_OWN wasm_store_t *pagefork_store_copy(const wasm_store_t *);

/* Attaches something to the store, which each callback finds; what was there is finalized. The
 * finalizer, which may be null, is called once, at the latest when the store goes. */
WASM_API_EXTERN void pagefork_store_set_data(wasm_store_t *, void *, void (*finalizer)(void *));

/* What is attached to the store, or null. */
WASM_API_EXTERN void *pagefork_store_data(const wasm_store_t *);

/* Has the store keep these limits from now on; null for none. An error while a guest runs. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_set_limits(wasm_store_t *,
                                                                     const pagefork_limits_t *);

/* Has each call of a guest end after this time, with PAGEFORK_TRAP_INTERRUPT; 0 for never. An error
 * while a guest runs, or if guests cannot be interrupted. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_set_timeout(wasm_store_t *,
                                                                      uint64_t nanoseconds);

/* Gives guests fuel, and says how much is left, which is 0 after a failure. An error if the engine
 * does not meter. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_set_fuel(wasm_store_t *, uint64_t fuel);
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_fuel(const wasm_store_t *, uint64_t *out);

/* Has guests trap when the engine's epoch is so many further on. An error while a guest runs, or if
 * guests cannot be interrupted. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_set_epoch_deadline(wasm_store_t *,
                                                                             uint64_t ticks);

/* What interrupts the store's guests, from any thread. */
typedef struct pagefork_interrupt_t pagefork_interrupt_t;

/* A handle for interrupts; it does not keep the store alive. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_interrupt_handle(
    wasm_store_t *, WASM_OWN pagefork_interrupt_t **out);

/* Interrupts the guests that run now: they trap with PAGEFORK_TRAP_INTERRUPT. Of null, and if the
 * store has gone, it does nothing. */
WASM_API_EXTERN void pagefork_interrupt_guests(const pagefork_interrupt_t *);

/* Has the guest suspended that runs now, if it was called by pagefork_func_call_suspendable, at its
 * next function entry or loop iteration. Of null, and if the store has gone, it does nothing. */
WASM_API_EXTERN void pagefork_interrupt_suspend(const pagefork_interrupt_t *);

/* Deletes the handle, from any thread; null is nothing to delete. */
WASM_API_EXTERN void pagefork_interrupt_delete(WASM_OWN pagefork_interrupt_t *);

/* Drops the foreign objects, traps and modules that no guest holds any more, though they were
 * given to one; how many are left, and 0 also on failure. The library does so by itself, when it has
 * many. */
WASM_API_EXTERN size_t pagefork_store_collect(wasm_store_t *);

/*
 * Brings all instances of the store back to where they started, and runs their start functions
 * again. Objects stay good; what was attached to things of the store is finalized; limits and times
 * stay. WASI programs see what `wasi` says, or nothing if it is null. An error while a guest runs.
 */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_reset(wasm_store_t *,
                                                                const pagefork_wasi_config_t *wasi);

/* ------------------------------------------------------------------------------------------- */
/* Values */

/* Kinds of values that wasm.h does not have. */
enum pagefork_valkind_enum { PAGEFORK_V128 = 4, PAGEFORK_EXNREF = 130 };

/* A value: its kind, and the member of that kind. A reference that is owned is deleted with
 * wasm_ref_delete. What an exnref leads to is an error that is an exception: see
 * pagefork_exception_tag. */
typedef struct pagefork_val_t {
  wasm_valkind_t kind;
  union {
    int32_t i32;
    int64_t i64;
    float32_t f32;
    float64_t f64;
    uint64_t v128[2]; /* The lower half first. */
    wasm_ref_t *ref;
  } of;
} pagefork_val_t;

/* A value without its kind, as guests have it: 16 bytes. Of a cell the member of the value's type
 * counts: the rest need not be written, and is 0 in what the library writes. References are numbers,
 * which mean something in their store alone; C can pass them on, and use 0 for null. */
typedef union pagefork_cell_t {
  int32_t i32;
  int64_t i64;
  float32_t f32;
  float64_t f64;
  uint64_t v128[2];
  uint64_t ref;
} pagefork_cell_t;

/* A global's value, which is 0 of kind i32 after a failure, and setting it: to a copy. An error if it
 * is not of the global's type, or that cannot be written. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_global_get(const wasm_global_t *,
                                                               WASM_OWN pagefork_val_t *out);
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_global_set(wasm_global_t *,
                                                               const pagefork_val_t *);

/* ------------------------------------------------------------------------------------------- */
/* Functions of the host */

/* Who has called a function of C's: what it was made with, and the store, lent for the call. */
typedef struct pagefork_caller_t {
  void *env;
  wasm_store_t *store;
} pagefork_caller_t;

/* What the calling instance exports by a name. An error if it exports nothing by that name, or C
 * itself has called. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_caller_export(
    const pagefork_caller_t *, const char *name, WASM_OWN wasm_extern_t **out);

/* A function with values: as of wasm_func_callback_t. It gives null, or an error that ends the
 * guests that have called it. */
typedef WASM_OWN pagefork_error_t *(*pagefork_func_callback_t)(const pagefork_caller_t *,
                                                               const pagefork_val_t *args,
                                                               size_t arg_count,
                                                               WASM_OWN pagefork_val_t *results,
                                                               size_t result_count);

/* Makes a function with values one of the store. The finalizer, which may be null, is called once
 * with `env`: when the store goes, or if this fails. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_func_new(
    wasm_store_t *, const wasm_functype_t *, pagefork_func_callback_t, void *env,
    void (*finalizer)(void *), WASM_OWN wasm_func_t **out);

/* A function with cells: as many as it has parameters, or results if these are more. The first ones
 * are the arguments; it puts the results in their place, which nothing checks. */
typedef WASM_OWN pagefork_error_t *(*pagefork_raw_callback_t)(const pagefork_caller_t *,
                                                              pagefork_cell_t *cells);

/* As pagefork_func_new, with cells. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_func_new_raw(
    wasm_store_t *, const wasm_functype_t *, pagefork_raw_callback_t, void *env,
    void (*finalizer)(void *), WASM_OWN wasm_func_t **out);

/*
 * A function with its own arguments and result: guests call it directly.
 *
 * A signature says its type: a letter for each parameter, a colon, and the letter of the result if
 * there is one. `i` is an int32_t, `I` an int64_t, `f` a float, `F` a double; "iI:F" takes an int32_t
 * and an int64_t, and gives a double. At most five integers and eight floats are parameters.
 * Functions with vectors, references or several results are made with values or cells.
 *
 * The C function takes a `const pagefork_caller_t *`, then these: `double f(const pagefork_caller_t *,
 * int32_t, int64_t)`. It is given as a `pagefork_function_t`, which nothing compares with the signature:
 * PAGEFORK_WRAP makes both, and compares the prototype. To end the guests that have called it, it calls
 * pagefork_raise and returns.
 */
typedef void (*pagefork_function_t)(void);

/*
 * PAGEFORK_WRAP(f, R, T...), as PAGEFORK_WRAP(f, double, int32_t, int64_t): the signature and the
 * function, where the functions that wrap take both, made of one list of types. It does not compile if
 * the prototype is not `R f(const pagefork_caller_t *, T...)`, or one of the types is not int32_t,
 * uint32_t, int64_t, uint64_t, float or double; R may be void.
 *
 *     pagefork_linker_func_wrap(linker, "host", "half", PAGEFORK_WRAP(half, double, int32_t), NULL, NULL)
 *
 * PAGEFORK_SIGNATURE(R, T...) is the signature alone, as text that lives as long as the block, for
 * pagefork_func_typed and pagefork_module_export. PAGEFORK_FUNCTION(f, R, T...) is the function alone.
 * All are of C11 and C++11.
 */
#define PAGEFORK_WRAP(f, ...) PAGEFORK_SIGNATURE(__VA_ARGS__), PAGEFORK_FUNCTION(f, __VA_ARGS__)
#ifdef __cplusplus
} /* extern "C" */
template <typename T> struct pagefork_letter;
template <> struct pagefork_letter<int32_t> { enum : char { value = 'i' }; };
template <> struct pagefork_letter<uint32_t> { enum : char { value = 'i' }; };
template <> struct pagefork_letter<int64_t> { enum : char { value = 'I' }; };
template <> struct pagefork_letter<uint64_t> { enum : char { value = 'I' }; };
template <> struct pagefork_letter<float> { enum : char { value = 'f' }; };
template <> struct pagefork_letter<double> { enum : char { value = 'F' }; };
template <> struct pagefork_letter<void> { enum : char { value = 0 }; };
template <typename R, typename... T> struct pagefork_prototype {
  static pagefork_function_t of(R (*f)(const pagefork_caller_t *, T...)) {
    return reinterpret_cast<pagefork_function_t>(f);
  }
  static const char *signature() {
    static const char letters[] = {pagefork_letter<T>::value..., ':', pagefork_letter<R>::value, 0};
    return letters;
  }
};
extern "C" {
#define PAGEFORK_SIGNATURE(...) (pagefork_prototype<__VA_ARGS__>::signature())
#define PAGEFORK_FUNCTION(f, ...) (pagefork_prototype<__VA_ARGS__>::of(f))
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define PAGEFORK_SIGNATURE(...) ((const char[]){PAGEFORK_LETTERS(__VA_ARGS__), 0})
#define PAGEFORK_FUNCTION(f, ...)                                                               \
  ((pagefork_function_t)_Generic(&(f), PAGEFORK_PROTOTYPE(__VA_ARGS__): &(f)))
/* What follows is for these alone. */
#define PAGEFORK_LAST(r, a, b, c, d, e, f, g, h, i, j, k, l, m, kind, ...) kind
#define PAGEFORK_PROTOTYPE(...)                                                                 \
  PAGEFORK_LAST(__VA_ARGS__,                                                                    \
    PAGEFORK_MORE, PAGEFORK_MORE, PAGEFORK_MORE, PAGEFORK_MORE, PAGEFORK_MORE,                  \
    PAGEFORK_MORE, PAGEFORK_MORE, PAGEFORK_MORE, PAGEFORK_MORE, PAGEFORK_MORE,                  \
    PAGEFORK_MORE, PAGEFORK_MORE, PAGEFORK_MORE, PAGEFORK_NONE, 0)(__VA_ARGS__)
#define PAGEFORK_NONE(R) R (*)(const pagefork_caller_t *)
#define PAGEFORK_MORE(R, ...) R (*)(const pagefork_caller_t *, __VA_ARGS__)
#define PAGEFORK_LETTERS(...)                                                                   \
  PAGEFORK_LAST(__VA_ARGS__,                                                                    \
    PAGEFORK_LETTERS_13, PAGEFORK_LETTERS_12, PAGEFORK_LETTERS_11, PAGEFORK_LETTERS_10,         \
    PAGEFORK_LETTERS_9, PAGEFORK_LETTERS_8, PAGEFORK_LETTERS_7, PAGEFORK_LETTERS_6,             \
    PAGEFORK_LETTERS_5, PAGEFORK_LETTERS_4, PAGEFORK_LETTERS_3, PAGEFORK_LETTERS_2,             \
    PAGEFORK_LETTERS_1, PAGEFORK_LETTERS_0, 0)(__VA_ARGS__)
#define PAGEFORK_LETTERS_0(R) ':', PAGEFORK_LETTER(R)
#define PAGEFORK_LETTERS_1(R, A) PAGEFORK_LETTER(A), PAGEFORK_LETTERS_0(R)
#define PAGEFORK_LETTERS_2(R, A, ...) PAGEFORK_LETTER(A), PAGEFORK_LETTERS_1(R, __VA_ARGS__)
#define PAGEFORK_LETTERS_3(R, A, ...) PAGEFORK_LETTER(A), PAGEFORK_LETTERS_2(R, __VA_ARGS__)
#define PAGEFORK_LETTERS_4(R, A, ...) PAGEFORK_LETTER(A), PAGEFORK_LETTERS_3(R, __VA_ARGS__)
#define PAGEFORK_LETTERS_5(R, A, ...) PAGEFORK_LETTER(A), PAGEFORK_LETTERS_4(R, __VA_ARGS__)
#define PAGEFORK_LETTERS_6(R, A, ...) PAGEFORK_LETTER(A), PAGEFORK_LETTERS_5(R, __VA_ARGS__)
#define PAGEFORK_LETTERS_7(R, A, ...) PAGEFORK_LETTER(A), PAGEFORK_LETTERS_6(R, __VA_ARGS__)
#define PAGEFORK_LETTERS_8(R, A, ...) PAGEFORK_LETTER(A), PAGEFORK_LETTERS_7(R, __VA_ARGS__)
#define PAGEFORK_LETTERS_9(R, A, ...) PAGEFORK_LETTER(A), PAGEFORK_LETTERS_8(R, __VA_ARGS__)
#define PAGEFORK_LETTERS_10(R, A, ...) PAGEFORK_LETTER(A), PAGEFORK_LETTERS_9(R, __VA_ARGS__)
#define PAGEFORK_LETTERS_11(R, A, ...) PAGEFORK_LETTER(A), PAGEFORK_LETTERS_10(R, __VA_ARGS__)
#define PAGEFORK_LETTERS_12(R, A, ...) PAGEFORK_LETTER(A), PAGEFORK_LETTERS_11(R, __VA_ARGS__)
#define PAGEFORK_LETTERS_13(R, A, ...) PAGEFORK_LETTER(A), PAGEFORK_LETTERS_12(R, __VA_ARGS__)
#define PAGEFORK_LETTER(T)                                                                      \
  _Generic((T(*)(void))0, void (*)(void): 0, int32_t (*)(void): 'i', uint32_t (*)(void): 'i',   \
           int64_t (*)(void): 'I', uint64_t (*)(void): 'I', float (*)(void): 'f',               \
           double (*)(void): 'F')
#endif

/* Makes a function of the signature's type one of the store; see pagefork_func_new. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_func_wrap(
    wasm_store_t *, const char *signature, pagefork_function_t, void *env, void
    (*finalizer)(void *), WASM_OWN wasm_func_t **out);

/* Has the function that runs now fail when it returns; of several errors the last counts. If one of
 * both is null, or no function of the store runs, nothing fails, and pagefork_last_error says so. */
WASM_API_EXTERN void pagefork_raise(const pagefork_caller_t *, WASM_OWN pagefork_error_t *);

/* ------------------------------------------------------------------------------------------- */
/* Calling functions */

/* Calls a function with values: as wasm_func_call. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_func_call(
    const wasm_func_t *, const pagefork_val_t *args, size_t arg_count, pagefork_val_t *results,
    size_t result_count);

/* Calls a function with cells, of which there are `count`: as many as it has parameters, and as
 * results, or more. The first ones are the arguments, which nothing checks; the results take their
 * place. After a failure cells have what they had, or anything. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_func_call_raw(
    const wasm_func_t *, pagefork_cell_t *cells, size_t count);

/* A function whose type was checked once, to be called as a C function. */
typedef struct pagefork_typed_func_t {
  /* Takes the typed function, then the arguments: see PAGEFORK_CALL. */
  pagefork_function_t call;
  /* Why the last call that has failed did so: the caller's, who deletes it and sets it to null. The
   * result is 0 then. */
  WASM_OWN pagefork_error_t *error;
} pagefork_typed_func_t;

/* The function, to be called as one of a signature's type: see pagefork_function_t. An error if it is
 * of another type, or has vectors, references or several results. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_func_typed(
    const wasm_func_t *, const char *signature, WASM_OWN pagefork_typed_func_t **out);

/* Deletes the typed function, with its error; not during a call of it. Null is nothing to delete. */
WASM_API_EXTERN void pagefork_typed_func_delete(WASM_OWN pagefork_typed_func_t *);

/* Calls a typed function: `R` is its result, `T` its parameters' types in parentheses, with the
 * typed function's own first: PAGEFORK_CALL(f, double, (pagefork_typed_func_t *, int32_t), f, 1). */
#define PAGEFORK_CALL(f, R, T, ...) (((R(*) T)(f)->call)(__VA_ARGS__))

/* ------------------------------------------------------------------------------------------- */
/* Instances */

/* What the instance exports by a name; an error if that is nothing. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_instance_export(
    const wasm_instance_t *, const char *name, WASM_OWN wasm_extern_t **out);

/* The function that the instance exports by a name, to be called as a C function: as pagefork_func_typed,
 * without an object of the function. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_instance_typed_func(
    const wasm_instance_t *, const char *name, const char *signature,
    WASM_OWN pagefork_typed_func_t **out);

/* How the instance is reset: one of pagefork_reset_enum, but never PAGEFORK_RESET_AUTO, since it is
 * what measuring has come to; and in words, with what was asked for, and why. Either place may be
 * null. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_instance_strategy(
    const wasm_instance_t *, uint8_t *used, WASM_OWN wasm_message_t *why);

/* How its memories grow, in the same way: one of pagefork_growth_enum. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_instance_growth(
    const wasm_instance_t *, uint8_t *used, WASM_OWN wasm_message_t *why);

/* Where an export is in all instances of a module. It needs neither. */
typedef struct pagefork_export_t pagefork_export_t;

/* Finds an export once, for all instances of the module. With a signature, which may be null, it is a
 * function of that type: see pagefork_func_typed. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_module_export(
    const wasm_module_t *, const char *name, const char *signature, WASM_OWN pagefork_export_t
    **out);

/* Deletes what was found; null is nothing to delete. Typed functions that were got by it stay. */
WASM_API_EXTERN void pagefork_export_delete(WASM_OWN pagefork_export_t *);

/* What the instance exports there; an error if it is an instance of another module. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_instance_export_at(
    const wasm_instance_t *, const pagefork_export_t *, WASM_OWN wasm_extern_t **out);

/* The function that the instance exports there, to be called as a C function; nothing is looked up.
 * An error if the export was found without a signature, or is one of another module. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_instance_typed_export(
    const wasm_instance_t *, const pagefork_export_t *, WASM_OWN pagefork_typed_func_t **out);

/* ------------------------------------------------------------------------------------------- */
/* Tags and exceptions */

/* The kind of tags, of what is imported and exported. */
enum pagefork_externkind_enum { PAGEFORK_EXTERN_TAG = 4 };

/* A tag of the host, whose exceptions carry values of the type's parameters. An error if it has
 * results. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_tag_new(wasm_store_t *, const wasm_functype_t *,
                                                            WASM_OWN wasm_extern_t **out);

/* The same object, lent, if it is a tag; else null. */
WASM_API_EXTERN wasm_extern_t *pagefork_extern_as_tag(wasm_extern_t *);

/* The type of a tag; null if it is none. */
WASM_API_EXTERN WASM_OWN wasm_functype_t *pagefork_tag_type(const wasm_extern_t *tag);

/* An exception, as an error: a function of the host that fails with it throws it. The values are
 * copied. An error if they are not of the tag's type. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_exception_new(
    const wasm_extern_t *tag, const pagefork_val_t *values, size_t count,
    WASM_OWN pagefork_error_t **out);

/* The tag of an exception that ended a call; null if the error is none. */
WASM_API_EXTERN WASM_OWN wasm_extern_t *pagefork_exception_tag(const pagefork_error_t *);

/* The values of an exception that ended a call, as many as its tag says. An error if it is none, or if
 * they are more or fewer. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_exception_values(
    const pagefork_error_t *, WASM_OWN pagefork_val_t *out, size_t count);

/* ------------------------------------------------------------------------------------------- */
/* Linkers */

/* Definitions by two names, with which modules' imports are satisfied. What belongs to no store can
 * be used in any of the engine. A linker is used by one thread at a time. */
typedef struct pagefork_linker_t pagefork_linker_t;

/* A linker without definitions. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_linker_new(wasm_engine_t *,
                                                               WASM_OWN pagefork_linker_t **out);

/* Deletes the linker; null is nothing to delete. Instances that were linked stay. */
WASM_API_EXTERN void pagefork_linker_delete(WASM_OWN pagefork_linker_t *);

/* Whether names may be defined again; without that it is an error. Of null it changes nothing. */
WASM_API_EXTERN void pagefork_linker_allow_shadowing(pagefork_linker_t *, bool allow);

/* Defines something of a store, for instances in that store alone. An error if the name is defined,
 * or the store is of another engine. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_linker_define(
    pagefork_linker_t *, const char *module, const char *name, const wasm_extern_t *);

/* Define functions of the host, with values, with cells, and with their own arguments. Finalizers are
 * called when nothing can call the function any more, or if this fails: the name is defined, or there
 * is no such type. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_linker_func(
    pagefork_linker_t *, const char *module, const char *name, const wasm_functype_t *,
    pagefork_func_callback_t, void *env, void (*finalizer)(void *));
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_linker_func_raw(
    pagefork_linker_t *, const char *module, const char *name, const wasm_functype_t *,
    pagefork_raw_callback_t, void *env, void (*finalizer)(void *));
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_linker_func_wrap(
    pagefork_linker_t *, const char *module, const char *name, const char *signature,
    pagefork_function_t, void *env, void (*finalizer)(void *));

/* Defines the functions of WASI preview 1. An error if one of the names is defined. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_linker_wasi(pagefork_linker_t *);

/* Defines the functions by which guests say that pages of their exported memory `memory` hold nothing
 * that they need any more: "pagefork" "memory_discard" (address, length), whose result is 0 if pages
 * were given back and read zero, 1 if they were only written with zeros, and -1 if nothing was done;
 * and "env" "__wbindgen_memory_discard" without a result, after which they read zero. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_linker_memory_discard(pagefork_linker_t *);

/* Defines all that an instance exports, by a first name. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_linker_instance(
    pagefork_linker_t *, const char *module, const wasm_instance_t *);

/* Defines functions that trap for what the module imports and nothing defines. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_linker_unknown_imports_as_traps(
    pagefork_linker_t *, const wasm_module_t *);

/* Instantiates a module in a store, and runs its start function. An error if imports are not defined
 * or of other types, a limit is met, the start function traps, or both are not of the linker's
 * engine. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_linker_instantiate(
    const pagefork_linker_t *, wasm_store_t *, const wasm_module_t *, WASM_OWN wasm_instance_t **out);

/* ------------------------------------------------------------------------------------------- */
/* A fresh instance each time */

/* A module with what its imports are: instances of it are made without looking names up. Any thread
 * may use it, and several at once. */
typedef struct pagefork_instance_pre_t pagefork_instance_pre_t;

/* Finds the module's imports. An error if they are not defined, or of other types. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_linker_instantiate_pre(
    const pagefork_linker_t *, const wasm_module_t *, WASM_OWN pagefork_instance_pre_t **out);

/* Deletes it; null is nothing to delete. Instances that were made of it stay. */
WASM_API_EXTERN void pagefork_instance_pre_delete(WASM_OWN pagefork_instance_pre_t *);

/* The same, with its own way of resetting slots. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_instance_pre_with_strategies(
    const pagefork_instance_pre_t *, const pagefork_strategies_t *,
    WASM_OWN pagefork_instance_pre_t **out);

/* How an instance is spawned. All zero is without limits, for one tenant. */
typedef struct pagefork_spawn_t {
  /* Who it is for: of what another tenant has left on the stack nothing is there. */
  uint64_t tenant;
  /* What its store may have from the start, or null. */
  const pagefork_limits_t *limits;
  /* What WASI programs see, or null. */
  const pagefork_wasi_config_t *wasi;
  /* For later versions: zero. */
  uint64_t reserved[4];
} pagefork_spawn_t;

/*
 * Makes a fresh instance in a store of its own, and runs its start function. When the last object
 * of the store is deleted, its pages are used for the next one. All imports must be of the linker,
 * and none of a store. `how` may be null.
 */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_instance_pre_spawn(
    const pagefork_instance_pre_t *, const pagefork_spawn_t *how, WASM_OWN wasm_store_t **store,
    WASM_OWN wasm_instance_t **out);

/* An export, found with a signature, to be called as a C function: each call spawns an instance,
 * calls the export there, and gives the store up, but for what `error` and other objects have of it.
 * `how` and what it leads to are copied. `data` is attached to each store (pagefork_store_data),
 * where functions of the host find it; it stays the caller's. One thread at a time may call it, each
 * its own. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_instance_pre_typed_export(
    const pagefork_instance_pre_t *, const pagefork_spawn_t *how, void *data,
    const pagefork_export_t *, WASM_OWN pagefork_typed_func_t **out);

#ifdef __cplusplus
} /* extern "C" */
#endif

#include "pagefork_snapshots.h"
#include "pagefork_waiting.h"
#include "pagefork_wasi.h"

#endif /* PAGEFORK_H */
