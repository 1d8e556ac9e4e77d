/*
 * wasm.h: WebAssembly in C, by the standard interface that several engines have.
 *
 * Names, types and layouts are those of the standard header, so that programs that were written
 * for it compile and link with Pagefork. What Pagefork has besides is in pagefork.h.
 *
 * OWNERSHIP
 *
 * `WASM_OWN` marks what changes hands. An argument that is marked belongs to the callee from then
 * on, also if the function fails; a result that is marked belongs to the caller, who deletes it
 * with the function of its kind. An `out` argument leads to a place that may be uninitialised: the
 * function writes to it whatever happens, and what it writes is the caller's. Everything else is
 * lent: arguments for the length of the call, results as long as what they were taken from.
 * A vector that is owned owns its elements, and so does a struct its members.
 *
 * Deleting an object ends its owner's use of it. What it stands for (a memory, a function, an
 * instance) is part of its store, which lives as long as any object of it, the store's own
 * included. Deleting null does nothing.
 *
 * FAILURE
 *
 * A function that gives a pointer answers null on failure, one that gives a bool false, one that
 * gives a number 0; a vector or value that it should have written is then empty or 0. Null where
 * an object is needed, an object of another kind, a list of another length and an object of
 * another store or engine are failures, never undefined behaviour. `pagefork_last_error` of
 * pagefork.h tells the reason. Calls and instantiations give a trap that says it.
 *
 * What cannot be checked: pointers to nothing, or to what was deleted. But of a store that lives, a
 * reference of any kind (or a typed function of pagefork.h) that was deleted is an error until another
 * takes its place, as what the library makes next of that store may; and it is the same as nothing.
 *
 * THREADS
 *
 * Engines, configurations, types, shared modules and vectors of these may be used by any thread,
 * and engines and shared modules by several at once. A store, with all objects of it, is used by
 * one thread at a time, also to delete objects; it may move between threads.
 *
 * CALLBACKS
 *
 * A callback may use all objects of the store, call functions of it, and delete objects. It must
 * return: neither longjmp nor an exception may leave it.
 */

#ifndef WASM_H
#define WASM_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef WASM_API_EXTERN
#define WASM_API_EXTERN
#endif

/* Marks what changes hands; see OWNERSHIP. */
#define WASM_OWN

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------- */
/* What families of functions have in common */

/*
 * An object of its own type.
 *
 * wasm_X_delete: deletes the object; null is nothing to delete.
 */
#define WASM_DECLARE_OBJECT(X)                                                                  \
  typedef struct wasm_##X##_t wasm_##X##_t;                                                     \
  WASM_API_EXTERN void wasm_##X##_delete(WASM_OWN wasm_##X##_t *);

/*
 * A vector of elements of type E: `size` of them, at `data`, which is null if there are none. The
 * memory of vectors that these functions make is freed by `_delete` alone.
 *
 * wasm_X_vec_new_empty: no elements.
 * wasm_X_vec_new_uninitialized: room for so many elements, all bytes zero. All have to be set
 *   before the vector is copied or deleted; null pointers may stay. Empty if there is no memory.
 * wasm_X_vec_new: takes so many elements over from an array, whose own memory stays the caller's.
 * wasm_X_vec_copy: copies a vector with its elements.
 * wasm_X_vec_delete: deletes the elements and their memory; the vector is empty after that.
 */
#define WASM_DECLARE_VECTOR(X, E)                                                               \
  typedef struct wasm_##X##_vec_t {                                                             \
    size_t size;                                                                                \
    E *data;                                                                                    \
  } wasm_##X##_vec_t;                                                                           \
  WASM_API_EXTERN void wasm_##X##_vec_new_empty(WASM_OWN wasm_##X##_vec_t *out);                \
  WASM_API_EXTERN void wasm_##X##_vec_new_uninitialized(WASM_OWN wasm_##X##_vec_t *out,         \
                                                        size_t size);                           \
  WASM_API_EXTERN void wasm_##X##_vec_new(WASM_OWN wasm_##X##_vec_t *out, size_t size,          \
                                          WASM_OWN E const elements[]);                         \
  WASM_API_EXTERN void wasm_##X##_vec_copy(WASM_OWN wasm_##X##_vec_t *out,                      \
                                           const wasm_##X##_vec_t *vec);                        \
  WASM_API_EXTERN void wasm_##X##_vec_delete(WASM_OWN wasm_##X##_vec_t *vec);

/*
 * A type, and vectors of such types.
 *
 * wasm_X_copy: a type that is equal.
 */
#define WASM_DECLARE_TYPE(X)                                                                    \
  WASM_DECLARE_OBJECT(X)                                                                        \
  WASM_DECLARE_VECTOR(X, wasm_##X##_t *)                                                        \
  WASM_API_EXTERN WASM_OWN wasm_##X##_t *wasm_##X##_copy(const wasm_##X##_t *);

/*
 * A reference to a thing.
 *
 * wasm_X_copy: one more reference to the same thing.
 * wasm_X_same: whether both refer to the same thing; two nulls do. What was deleted does not.
 * wasm_X_get_host_info: what was attached to the thing, by whichever reference; else null.
 * wasm_X_set_host_info, wasm_X_set_host_info_with_finalizer: attaches something, which may be null,
 *   as the finalizer may. The finalizer is called once with it, on the thread that causes it: if this
 *   fails, as of a null or deleted reference; when something else is attached; when a module, trap or
 *   foreign object has no reference any more, neither in C nor in a guest; and for everything else
 *   when its store is reset or it goes with its store (an instance may go before). It must not use
 *   objects of that store.
 */
#define WASM_DECLARE_REFERENCE_BASE(X)                                                          \
  WASM_DECLARE_OBJECT(X)                                                                        \
  WASM_API_EXTERN WASM_OWN wasm_##X##_t *wasm_##X##_copy(const wasm_##X##_t *);                 \
  WASM_API_EXTERN bool wasm_##X##_same(const wasm_##X##_t *, const wasm_##X##_t *);             \
  WASM_API_EXTERN void *wasm_##X##_get_host_info(const wasm_##X##_t *);                         \
  WASM_API_EXTERN void wasm_##X##_set_host_info(wasm_##X##_t *, void *);                        \
  WASM_API_EXTERN void wasm_##X##_set_host_info_with_finalizer(wasm_##X##_t *, void *,          \
                                                               void (*)(void *));

/*
 * A reference that can be taken for one of any kind, and back.
 *
 * wasm_X_as_ref, wasm_X_as_ref_const: the same reference, lent; it is deleted by one name alone.
 * wasm_ref_as_X, wasm_ref_as_X_const: the same reference, lent, if it is of this kind; else null.
 */
#define WASM_DECLARE_REFERENCE(X)                                                               \
  WASM_DECLARE_REFERENCE_BASE(X)                                                                \
  WASM_API_EXTERN wasm_ref_t *wasm_##X##_as_ref(wasm_##X##_t *);                                \
  WASM_API_EXTERN wasm_##X##_t *wasm_ref_as_##X(wasm_ref_t *);                                  \
  WASM_API_EXTERN const wasm_ref_t *wasm_##X##_as_ref_const(const wasm_##X##_t *);              \
  WASM_API_EXTERN const wasm_##X##_t *wasm_ref_as_##X##_const(const wasm_ref_t *);

/*
 * One kind of something that is taken for the general thing, and back, as by `_as_ref`: lent, and null
 * if it is of another kind.
 *
 * wasm_X_as_GENERAL, wasm_X_as_GENERAL_const: the same thing as a general one.
 * wasm_GENERAL_as_X, wasm_GENERAL_as_X_const: the same thing as one of this kind.
 */
#define WASM_DECLARE_KIND(X, GENERAL)                                                           \
  WASM_API_EXTERN wasm_##GENERAL##_t *wasm_##X##_as_##GENERAL(wasm_##X##_t *);                  \
  WASM_API_EXTERN wasm_##X##_t *wasm_##GENERAL##_as_##X(wasm_##GENERAL##_t *);                  \
  WASM_API_EXTERN const wasm_##GENERAL##_t *wasm_##X##_as_##GENERAL##_const(                    \
      const wasm_##X##_t *);                                                                    \
  WASM_API_EXTERN const wasm_##X##_t *wasm_##GENERAL##_as_##X##_const(                          \
      const wasm_##GENERAL##_t *);

/* ------------------------------------------------------------------------------------------- */
/* Numbers, bytes and names */

typedef char byte_t;
typedef float float32_t;
typedef double float64_t;

typedef byte_t wasm_byte_t;

WASM_DECLARE_VECTOR(byte, wasm_byte_t)

/* A name: bytes, which are UTF-8 in names of imports and exports. */
typedef wasm_byte_vec_t wasm_name_t;

#define wasm_name wasm_byte_vec
#define wasm_name_new wasm_byte_vec_new
#define wasm_name_new_empty wasm_byte_vec_new_empty
#define wasm_name_new_new_uninitialized wasm_byte_vec_new_uninitialized
#define wasm_name_copy wasm_byte_vec_copy
#define wasm_name_delete wasm_byte_vec_delete

/* The name that a string says, without its zero. */
static inline void wasm_name_new_from_string(WASM_OWN wasm_name_t *out, const char *string) {
  wasm_byte_vec_new(out, strlen(string), string);
}

/* The name that a string says, with its zero as the last byte. */
static inline void wasm_name_new_from_string_nt(WASM_OWN wasm_name_t *out, const char *string) {
  wasm_byte_vec_new(out, strlen(string) + 1, string);
}

/* ------------------------------------------------------------------------------------------- */
/* Engines and stores */

/* How engines are made. pagefork.h has functions that change what it says. */
WASM_DECLARE_OBJECT(config)

/* The configuration that wasm_engine_new takes. */
WASM_API_EXTERN WASM_OWN wasm_config_t *wasm_config_new(void);

/* What compiles modules, and what stores belong to. Everything that was made with an engine shares
 * it, and may be used when the engine was deleted. */
WASM_DECLARE_OBJECT(engine)

/* An engine. Null if the machine or process lacks what guests need. */
WASM_API_EXTERN WASM_OWN wasm_engine_t *wasm_engine_new(void);

/* An engine with this configuration. Null as of wasm_engine_new, or if parts of the configuration
 * do not go together. */
WASM_API_EXTERN WASM_OWN wasm_engine_t *wasm_engine_new_with_config(WASM_OWN wasm_config_t *);

/* All instances that can refer to each other, with what they own. */
WASM_DECLARE_OBJECT(store)

/* An empty store. Null if the engine is, or there is no memory for one. */
WASM_API_EXTERN WASM_OWN wasm_store_t *wasm_store_new(wasm_engine_t *);

/* ------------------------------------------------------------------------------------------- */
/* Types */

/* Whether a global can be written. */
typedef uint8_t wasm_mutability_t;
enum wasm_mutability_enum { WASM_CONST, WASM_VAR };

/* How large a table (in elements) or memory (in pages of 64 KiB) is at least and at most. Of
 * sizes that need 64 bits it says the largest number. */
typedef struct wasm_limits_t {
  uint32_t min;
  uint32_t max;
} wasm_limits_t;

/* The maximum of what has none. */
static const uint32_t wasm_limits_max_default = 0xffffffff;

/* The type of a value. */
WASM_DECLARE_TYPE(valtype)

/* Kinds of values. pagefork.h has further ones, for vectors and references to exceptions. */
typedef uint8_t wasm_valkind_t;
enum wasm_valkind_enum {
  WASM_I32,
  WASM_I64,
  WASM_F32,
  WASM_F64,
  WASM_EXTERNREF = 128,
  WASM_FUNCREF
};

/* The type with values of a kind; null if there is no such kind. References may be null. */
WASM_API_EXTERN WASM_OWN wasm_valtype_t *wasm_valtype_new(wasm_valkind_t);

/* The kind of the type's values; WASM_I32 if the type is null. */
WASM_API_EXTERN wasm_valkind_t wasm_valtype_kind(const wasm_valtype_t *);

/* Whether values of the kind are numbers or vectors. */
static inline bool wasm_valkind_is_num(wasm_valkind_t kind) { return kind < WASM_EXTERNREF; }

/* Whether values of the kind are references. */
static inline bool wasm_valkind_is_ref(wasm_valkind_t kind) { return kind >= WASM_EXTERNREF; }

/* Whether values of the type are numbers or vectors. */
static inline bool wasm_valtype_is_num(const wasm_valtype_t *type) {
  return wasm_valkind_is_num(wasm_valtype_kind(type));
}

/* Whether values of the type are references. */
static inline bool wasm_valtype_is_ref(const wasm_valtype_t *type) {
  return wasm_valkind_is_ref(wasm_valtype_kind(type));
}

/* The type of a function. */
WASM_DECLARE_TYPE(functype)

/* The type with these parameters and results; both vectors are empty afterwards. Null if one of
 * their elements is. */
WASM_API_EXTERN WASM_OWN wasm_functype_t *wasm_functype_new(WASM_OWN wasm_valtype_vec_t *params,
                                                            WASM_OWN wasm_valtype_vec_t *results);

/* The types of the parameters, lent by the type. Null if that is. */
WASM_API_EXTERN const wasm_valtype_vec_t *wasm_functype_params(const wasm_functype_t *);

/* The types of the results, lent by the type. Null if that is. */
WASM_API_EXTERN const wasm_valtype_vec_t *wasm_functype_results(const wasm_functype_t *);

/* The type of a global. */
WASM_DECLARE_TYPE(globaltype)

/* The type with such a value. Null if there is no such mutability, or no type of values. */
WASM_API_EXTERN WASM_OWN wasm_globaltype_t *wasm_globaltype_new(WASM_OWN wasm_valtype_t *,
                                                                wasm_mutability_t);

/* The type of the value, lent by the type. Null if that is. */
WASM_API_EXTERN const wasm_valtype_t *wasm_globaltype_content(const wasm_globaltype_t *);

/* Whether the value can be written; WASM_CONST if the type is null. */
WASM_API_EXTERN wasm_mutability_t wasm_globaltype_mutability(const wasm_globaltype_t *);

/* The type of a table. */
WASM_DECLARE_TYPE(tabletype)

/* The type of tables of such elements. Null if these are no references, or an argument is null. */
WASM_API_EXTERN WASM_OWN wasm_tabletype_t *wasm_tabletype_new(WASM_OWN wasm_valtype_t *,
                                                              const wasm_limits_t *);

/* The type of the elements, lent by the type. Null if that is. */
WASM_API_EXTERN const wasm_valtype_t *wasm_tabletype_element(const wasm_tabletype_t *);

/* The limits, lent by the type. Null if that is. */
WASM_API_EXTERN const wasm_limits_t *wasm_tabletype_limits(const wasm_tabletype_t *);

/* The type of a memory. */
WASM_DECLARE_TYPE(memorytype)

/* The type of memories of such a size. Null if the limits are; impossible ones are seen by who uses
 * the type. */
WASM_API_EXTERN WASM_OWN wasm_memorytype_t *wasm_memorytype_new(const wasm_limits_t *);

/* The limits, lent by the type. Null if that is. */
WASM_API_EXTERN const wasm_limits_t *wasm_memorytype_limits(const wasm_memorytype_t *);

/* The type of whatever is imported or exported. */
WASM_DECLARE_TYPE(externtype)

/* Kinds of what is imported and exported. pagefork.h has a further one, for tags. */
typedef uint8_t wasm_externkind_t;
enum wasm_externkind_enum {
  WASM_EXTERN_FUNC,
  WASM_EXTERN_GLOBAL,
  WASM_EXTERN_TABLE,
  WASM_EXTERN_MEMORY
};

/* Which kind the type is of; WASM_EXTERN_FUNC if it is null. */
WASM_API_EXTERN wasm_externkind_t wasm_externtype_kind(const wasm_externtype_t *);

WASM_DECLARE_KIND(functype, externtype)
WASM_DECLARE_KIND(globaltype, externtype)
WASM_DECLARE_KIND(tabletype, externtype)
WASM_DECLARE_KIND(memorytype, externtype)

/* What a module imports. */
WASM_DECLARE_TYPE(importtype)

/* An import by two names; both are empty afterwards. Null if an argument is. */
WASM_API_EXTERN WASM_OWN wasm_importtype_t *wasm_importtype_new(WASM_OWN wasm_name_t *module,
                                                                WASM_OWN wasm_name_t *name,
                                                                WASM_OWN wasm_externtype_t *);

/* The first name, lent by the import. Null if that is. */
WASM_API_EXTERN const wasm_name_t *wasm_importtype_module(const wasm_importtype_t *);

/* The second name, lent by the import. Null if that is. */
WASM_API_EXTERN const wasm_name_t *wasm_importtype_name(const wasm_importtype_t *);

/* What it must be, lent by the import. Null if that is. */
WASM_API_EXTERN const wasm_externtype_t *wasm_importtype_type(const wasm_importtype_t *);

/* What a module exports. */
WASM_DECLARE_TYPE(exporttype)

/* An export by a name, which is empty afterwards. Null if an argument is. */
WASM_API_EXTERN WASM_OWN wasm_exporttype_t *wasm_exporttype_new(WASM_OWN wasm_name_t *,
                                                                WASM_OWN wasm_externtype_t *);

/* The name, lent by the export. Null if that is. */
WASM_API_EXTERN const wasm_name_t *wasm_exporttype_name(const wasm_exporttype_t *);

/* What it is, lent by the export. Null if that is. */
WASM_API_EXTERN const wasm_externtype_t *wasm_exporttype_type(const wasm_exporttype_t *);

/* ------------------------------------------------------------------------------------------- */
/* Values and references */

struct wasm_ref_t;

/* A value: its kind, and the member of that kind. A reference that is owned is deleted with it. */
typedef struct wasm_val_t {
  wasm_valkind_t kind;
  union {
    int32_t i32;
    int64_t i64;
    float32_t f32;
    float64_t f64;
    struct wasm_ref_t *ref;
  } of;
} wasm_val_t;

/* Deletes the reference, if the value is one; it is null afterwards. */
WASM_API_EXTERN void wasm_val_delete(WASM_OWN wasm_val_t *);

/* Copies a value, and its reference if it is one. */
WASM_API_EXTERN void wasm_val_copy(WASM_OWN wasm_val_t *out, const wasm_val_t *);

WASM_DECLARE_VECTOR(val, wasm_val_t)

/* A reference to a thing of any kind. Guests can be given each as an externref, and hold it. */
WASM_DECLARE_REFERENCE_BASE(ref)

/* ------------------------------------------------------------------------------------------- */
/* Traps and frames */

/* A function of a guest that was running. */
WASM_DECLARE_OBJECT(frame)
WASM_DECLARE_VECTOR(frame, wasm_frame_t *)

/* A frame that is equal. Null if the frame is. */
WASM_API_EXTERN WASM_OWN wasm_frame_t *wasm_frame_copy(const wasm_frame_t *);

/* The instance whose function it is, lent. Null if that is gone. */
WASM_API_EXTERN struct wasm_instance_t *wasm_frame_instance(const wasm_frame_t *);

/* The index of the function in its module, imports included; 0 if the frame is null. */
WASM_API_EXTERN uint32_t wasm_frame_func_index(const wasm_frame_t *);

/* How many bytes of the module into the function's body, which begins with its locals, the instruction
 * is that trapped or has called. 0 if it is not known: see pagefork_config_sources. */
WASM_API_EXTERN size_t wasm_frame_func_offset(const wasm_frame_t *);

/* How many bytes into the module it was, as of wasm_frame_func_offset. */
WASM_API_EXTERN size_t wasm_frame_module_offset(const wasm_frame_t *);

/* Text, with a zero as the last byte. */
typedef wasm_name_t wasm_message_t;

/* Why a call or an instantiation ended: a guest has trapped, a host function has failed, or what
 * was given does not fit. */
WASM_DECLARE_REFERENCE(trap)

/* A trap of C's, for callbacks to return. Its frames are those of the guests that wait for the
 * callback, if it is made in one, and else of those through which it passes first. The message, which
 * is copied, may be null or empty, and ends with a zero if it is text. Null if the store is, or it
 * cannot be used now. */
WASM_API_EXTERN WASM_OWN wasm_trap_t *wasm_trap_new(wasm_store_t *, const wasm_message_t *);

/* Why the call ended: text with a zero as the last byte. Empty if the trap is null. */
WASM_API_EXTERN void wasm_trap_message(const wasm_trap_t *, WASM_OWN wasm_message_t *out);

/* The innermost frame; null if no guest was running, or the trap is null. */
WASM_API_EXTERN WASM_OWN wasm_frame_t *wasm_trap_origin(const wasm_trap_t *);

/* The frames, innermost first: the first 64. Empty if no guest was running, or the trap is null. */
WASM_API_EXTERN void wasm_trap_trace(const wasm_trap_t *, WASM_OWN wasm_frame_vec_t *out);

/* ------------------------------------------------------------------------------------------- */
/* Foreign objects */

/* Something of C's that guests can hold: what it is is attached to it. */
WASM_DECLARE_REFERENCE(foreign)

/* A foreign object to which nothing is attached. Null if the store is. */
WASM_API_EXTERN WASM_OWN wasm_foreign_t *wasm_foreign_new(wasm_store_t *);

/* ------------------------------------------------------------------------------------------- */
/* Modules */

/* A compiled module. */
WASM_DECLARE_REFERENCE(module)

/* A module that is of no store, so that stores of other threads can have it. */
WASM_DECLARE_OBJECT(shared_module)

/* The module, for stores of all threads. Null if this is no module. */
WASM_API_EXTERN WASM_OWN wasm_shared_module_t *wasm_module_share(const wasm_module_t *);

/* The module as one of a store; null if that is of another engine. */
WASM_API_EXTERN WASM_OWN wasm_module_t *wasm_module_obtain(wasm_store_t *,
                                                           const wasm_shared_module_t *);

/* Compiles a module; null if it is invalid or too large. */
WASM_API_EXTERN WASM_OWN wasm_module_t *wasm_module_new(wasm_store_t *,
                                                        const wasm_byte_vec_t *binary);

/* Whether it is a valid module; false also if an argument is null. */
WASM_API_EXTERN bool wasm_module_validate(wasm_store_t *, const wasm_byte_vec_t *binary);

/* What the module imports, in order. Empty on failure. */
WASM_API_EXTERN void wasm_module_imports(const wasm_module_t *, WASM_OWN wasm_importtype_vec_t *out);

/* What the module exports, in order. Empty on failure. */
WASM_API_EXTERN void wasm_module_exports(const wasm_module_t *, WASM_OWN wasm_exporttype_vec_t *out);

/* The compiled module as bytes. Empty on failure. */
WASM_API_EXTERN void wasm_module_serialize(const wasm_module_t *, WASM_OWN wasm_byte_vec_t *out);

/* The module of such bytes. They are native code: only bytes that wasm_module_serialize gave, and
 * that nobody has changed, may be given. Null if they are damaged, or made by another version,
 * with other settings, or for a processor that can do more. */
WASM_API_EXTERN WASM_OWN wasm_module_t *wasm_module_deserialize(wasm_store_t *,
                                                                const wasm_byte_vec_t *);

/* ------------------------------------------------------------------------------------------- */
/* Functions */

/* A function: a guest's, or the host's. */
WASM_DECLARE_REFERENCE(func)

/*
 * A function of the host. The arguments are lent. The results have the kinds of the function's
 * type and are 0 or null; the callback sets what they are, and references there change hands. It
 * returns null, or a trap that ends the guests that have called it; results do not count then.
 */
typedef WASM_OWN wasm_trap_t *(*wasm_func_callback_t)(const wasm_val_vec_t *args,
                                                      WASM_OWN wasm_val_vec_t *results);

/* As wasm_func_callback_t, with something of C's. */
typedef WASM_OWN wasm_trap_t *(*wasm_func_callback_with_env_t)(void *env,
                                                               const wasm_val_vec_t *args,
                                                               wasm_val_vec_t *results);

/* Makes a C function one of the store. Null if an argument is. */
WASM_API_EXTERN WASM_OWN wasm_func_t *wasm_func_new(wasm_store_t *, const wasm_functype_t *,
                                                    wasm_func_callback_t);

/* As wasm_func_new, with something that each call is given. The finalizer, which may be null, is
 * called once with it, when the store goes or if this fails. */
WASM_API_EXTERN WASM_OWN wasm_func_t *wasm_func_new_with_env(wasm_store_t *,
                                                             const wasm_functype_t *,
                                                             wasm_func_callback_with_env_t,
                                                             void *env,
                                                             void (*finalizer)(void *));

/* The function's type. Null if this is no function. */
WASM_API_EXTERN WASM_OWN wasm_functype_t *wasm_func_type(const wasm_func_t *);

/* How many parameters it has; 0 if this is no function. */
WASM_API_EXTERN size_t wasm_func_param_arity(const wasm_func_t *);

/* How many results it has; 0 if this is no function. */
WASM_API_EXTERN size_t wasm_func_result_arity(const wasm_func_t *);

/*
 * Calls the function. There must be as many arguments and places for results as it has, and the
 * arguments of its parameters' kinds. Null for a vector is an empty one. Arguments are looked at
 * before the call, places for results once the function has returned.
 *
 * Answers null if the function has returned: the results are written, and references in them are
 * the caller's. Else a trap that says why not; the results are as they were.
 */
WASM_API_EXTERN WASM_OWN wasm_trap_t *wasm_func_call(const wasm_func_t *,
                                                     const wasm_val_vec_t *args,
                                                     wasm_val_vec_t *results);

/* ------------------------------------------------------------------------------------------- */
/* Globals */

/* A global variable. */
WASM_DECLARE_REFERENCE(global)

/* A global of the host with this value, which is copied. Null if it is not of the type. */
WASM_API_EXTERN WASM_OWN wasm_global_t *wasm_global_new(wasm_store_t *, const wasm_globaltype_t *,
                                                        const wasm_val_t *);

/* The global's type. Null if this is no global. */
WASM_API_EXTERN WASM_OWN wasm_globaltype_t *wasm_global_type(const wasm_global_t *);

/* The global's value; 0 of kind i32 if it is one that wasm.h does not have. */
WASM_API_EXTERN void wasm_global_get(const wasm_global_t *, WASM_OWN wasm_val_t *out);

/* Sets the global's value, which is copied. Nothing changes if the global cannot be written or
 * the value is not of its type; pagefork_last_error says so. */
WASM_API_EXTERN void wasm_global_set(wasm_global_t *, const wasm_val_t *);

/* ------------------------------------------------------------------------------------------- */
/* Tables */

/* A table of references. */
WASM_DECLARE_REFERENCE(table)

/* Numbers of elements. */
typedef uint32_t wasm_table_size_t;

/* A table of the host, full of a reference, which is lent and may be null. Null if the type is
 * impossible, the reference not of it, or a limit is met. */
WASM_API_EXTERN WASM_OWN wasm_table_t *wasm_table_new(wasm_store_t *, const wasm_tabletype_t *,
                                                      wasm_ref_t *init);

/* The table's type, with the present size as the minimum. Null if this is no table. */
WASM_API_EXTERN WASM_OWN wasm_tabletype_t *wasm_table_type(const wasm_table_t *);

/* An element; null if it is null, or beyond the end. */
WASM_API_EXTERN WASM_OWN wasm_ref_t *wasm_table_get(const wasm_table_t *, wasm_table_size_t index);

/* Sets an element to a reference, which is lent and may be null. False if that is beyond the end,
 * or the reference does not fit. */
WASM_API_EXTERN bool wasm_table_set(wasm_table_t *, wasm_table_size_t index, wasm_ref_t *);

/* How many elements there are; 0 if this is no table. */
WASM_API_EXTERN wasm_table_size_t wasm_table_size(const wasm_table_t *);

/* Adds elements, which are all one reference. False if a limit is met, or it does not fit. */
WASM_API_EXTERN bool wasm_table_grow(wasm_table_t *, wasm_table_size_t delta, wasm_ref_t *init);

/* ------------------------------------------------------------------------------------------- */
/* Memories */

/* A linear memory. */
WASM_DECLARE_REFERENCE(memory)

/* Numbers of pages. */
typedef uint32_t wasm_memory_pages_t;

/* Bytes of a page. */
static const size_t MEMORY_PAGE_SIZE = 0x10000;

/* A memory of the host, full of zeros. Null if the type is impossible or a limit is met. */
WASM_API_EXTERN WASM_OWN wasm_memory_t *wasm_memory_new(wasm_store_t *, const wasm_memorytype_t *);

/* The memory's type, with the present size as the minimum. Null if this is no memory. */
WASM_API_EXTERN WASM_OWN wasm_memorytype_t *wasm_memory_type(const wasm_memory_t *);

/* The first byte. A memory stays where it is as long as its store is neither deleted nor reset,
 * also when it grows. Null if this is no memory, or its store cannot be used now. */
WASM_API_EXTERN byte_t *wasm_memory_data(wasm_memory_t *);

/* How many bytes there are; 0 if this is no memory. */
WASM_API_EXTERN size_t wasm_memory_data_size(const wasm_memory_t *);

/* How many pages there are; 0 if this is no memory. */
WASM_API_EXTERN wasm_memory_pages_t wasm_memory_size(const wasm_memory_t *);

/* Adds pages of zeros. False if a limit is met. */
WASM_API_EXTERN bool wasm_memory_grow(wasm_memory_t *, wasm_memory_pages_t delta);

/* ------------------------------------------------------------------------------------------- */
/* What is imported and exported */

/* A function, global, table or memory, or a tag of pagefork.h. */
WASM_DECLARE_REFERENCE(extern)
WASM_DECLARE_VECTOR(extern, wasm_extern_t *)

/* Which kind it is of; WASM_EXTERN_FUNC, which is 0, also on failure. */
WASM_API_EXTERN wasm_externkind_t wasm_extern_kind(const wasm_extern_t *);

/* Its type. Null on failure. */
WASM_API_EXTERN WASM_OWN wasm_externtype_t *wasm_extern_type(const wasm_extern_t *);

WASM_DECLARE_KIND(func, extern)
WASM_DECLARE_KIND(global, extern)
WASM_DECLARE_KIND(table, extern)
WASM_DECLARE_KIND(memory, extern)

/* ------------------------------------------------------------------------------------------- */
/* Instances */

/* A module in a store, with its memories, tables and globals. It stays as long as its store; only the
 * instance that was made last goes with its object, if it imports nothing and its exports were never
 * asked for. */
WASM_DECLARE_REFERENCE(instance)

/*
 * Instantiates a module and runs its start function. The imports, which are lent, are in the
 * module's order; null is an empty vector.
 *
 * Null if imports do not fit, a limit is met, or the start function traps. `trap` may be null;
 * else it is set to a trap that says why, or to null if there is an instance.
 */
WASM_API_EXTERN WASM_OWN wasm_instance_t *wasm_instance_new(wasm_store_t *, const wasm_module_t *,
                                                            const wasm_extern_vec_t *imports,
                                                            WASM_OWN wasm_trap_t **trap);

/* What the instance exports, in the order of wasm_module_exports. Empty if this is no instance. */
WASM_API_EXTERN void wasm_instance_exports(const wasm_instance_t *, WASM_OWN wasm_extern_vec_t *out);

/* ------------------------------------------------------------------------------------------- */
/* Shorthands */

/* Initialisers of vectors: an empty one, and one of an array that stays where it is. */
#define WASM_EMPTY_VEC {0, NULL}
#define WASM_ARRAY_VEC(array) {sizeof(array) / sizeof(*(array)), array}

/* Initialisers of values. */
#define WASM_I32_VAL(value) {.kind = WASM_I32, .of = {.i32 = value}}
#define WASM_I64_VAL(value) {.kind = WASM_I64, .of = {.i64 = value}}
#define WASM_F32_VAL(value) {.kind = WASM_F32, .of = {.f32 = value}}
#define WASM_F64_VAL(value) {.kind = WASM_F64, .of = {.f64 = value}}
#define WASM_REF_VAL(value) {.kind = WASM_EXTERNREF, .of = {.ref = value}}
#define WASM_INIT_VAL {.kind = WASM_EXTERNREF, .of = {.ref = NULL}}

/* Types of values by their names. */
static inline WASM_OWN wasm_valtype_t *wasm_valtype_new_i32(void) {
  return wasm_valtype_new(WASM_I32);
}
static inline WASM_OWN wasm_valtype_t *wasm_valtype_new_i64(void) {
  return wasm_valtype_new(WASM_I64);
}
static inline WASM_OWN wasm_valtype_t *wasm_valtype_new_f32(void) {
  return wasm_valtype_new(WASM_F32);
}
static inline WASM_OWN wasm_valtype_t *wasm_valtype_new_f64(void) {
  return wasm_valtype_new(WASM_F64);
}
static inline WASM_OWN wasm_valtype_t *wasm_valtype_new_externref(void) {
  return wasm_valtype_new(WASM_EXTERNREF);
}
static inline WASM_OWN wasm_valtype_t *wasm_valtype_new_funcref(void) {
  return wasm_valtype_new(WASM_FUNCREF);
}

/* Types of functions with up to three parameters and two results, all of which change hands. */
static inline WASM_OWN wasm_functype_t *wasm_functype_new_0_0(void) {
  wasm_valtype_vec_t params, results;
  wasm_valtype_vec_new_empty(&params);
  wasm_valtype_vec_new_empty(&results);
  return wasm_functype_new(&params, &results);
}
static inline WASM_OWN wasm_functype_t *wasm_functype_new_1_0(WASM_OWN wasm_valtype_t *p) {
  wasm_valtype_vec_t params, results;
  wasm_valtype_t *param_list[] = {p};
  wasm_valtype_vec_new(&params, 1, param_list);
  wasm_valtype_vec_new_empty(&results);
  return wasm_functype_new(&params, &results);
}
static inline WASM_OWN wasm_functype_t *wasm_functype_new_2_0(WASM_OWN wasm_valtype_t *p1,
    WASM_OWN wasm_valtype_t *p2) {
  wasm_valtype_vec_t params, results;
  wasm_valtype_t *param_list[] = {p1, p2};
  wasm_valtype_vec_new(&params, 2, param_list);
  wasm_valtype_vec_new_empty(&results);
  return wasm_functype_new(&params, &results);
}
static inline WASM_OWN wasm_functype_t *wasm_functype_new_3_0(WASM_OWN wasm_valtype_t *p1,
    WASM_OWN wasm_valtype_t *p2, WASM_OWN wasm_valtype_t *p3) {
  wasm_valtype_vec_t params, results;
  wasm_valtype_t *param_list[] = {p1, p2, p3};
  wasm_valtype_vec_new(&params, 3, param_list);
  wasm_valtype_vec_new_empty(&results);
  return wasm_functype_new(&params, &results);
}
static inline WASM_OWN wasm_functype_t *wasm_functype_new_0_1(WASM_OWN wasm_valtype_t *r) {
  wasm_valtype_vec_t params, results;
  wasm_valtype_t *result_list[] = {r};
  wasm_valtype_vec_new_empty(&params);
  wasm_valtype_vec_new(&results, 1, result_list);
  return wasm_functype_new(&params, &results);
}
static inline WASM_OWN wasm_functype_t *wasm_functype_new_1_1(WASM_OWN wasm_valtype_t *p,
    WASM_OWN wasm_valtype_t *r) {
  wasm_valtype_vec_t params, results;
  wasm_valtype_t *param_list[] = {p};
  wasm_valtype_t *result_list[] = {r};
  wasm_valtype_vec_new(&params, 1, param_list);
  wasm_valtype_vec_new(&results, 1, result_list);
  return wasm_functype_new(&params, &results);
}
static inline WASM_OWN wasm_functype_t *wasm_functype_new_2_1(WASM_OWN wasm_valtype_t *p1,
    WASM_OWN wasm_valtype_t *p2, WASM_OWN wasm_valtype_t *r) {
  wasm_valtype_vec_t params, results;
  wasm_valtype_t *param_list[] = {p1, p2};
  wasm_valtype_t *result_list[] = {r};
  wasm_valtype_vec_new(&params, 2, param_list);
  wasm_valtype_vec_new(&results, 1, result_list);
  return wasm_functype_new(&params, &results);
}
static inline WASM_OWN wasm_functype_t *wasm_functype_new_3_1(WASM_OWN wasm_valtype_t *p1,
    WASM_OWN wasm_valtype_t *p2, WASM_OWN wasm_valtype_t *p3, WASM_OWN wasm_valtype_t *r) {
  wasm_valtype_vec_t params, results;
  wasm_valtype_t *param_list[] = {p1, p2, p3};
  wasm_valtype_t *result_list[] = {r};
  wasm_valtype_vec_new(&params, 3, param_list);
  wasm_valtype_vec_new(&results, 1, result_list);
  return wasm_functype_new(&params, &results);
}
static inline WASM_OWN wasm_functype_t *wasm_functype_new_0_2(WASM_OWN wasm_valtype_t *r1,
    WASM_OWN wasm_valtype_t *r2) {
  wasm_valtype_vec_t params, results;
  wasm_valtype_t *result_list[] = {r1, r2};
  wasm_valtype_vec_new_empty(&params);
  wasm_valtype_vec_new(&results, 2, result_list);
  return wasm_functype_new(&params, &results);
}
static inline WASM_OWN wasm_functype_t *wasm_functype_new_1_2(WASM_OWN wasm_valtype_t *p,
    WASM_OWN wasm_valtype_t *r1, WASM_OWN wasm_valtype_t *r2) {
  wasm_valtype_vec_t params, results;
  wasm_valtype_t *param_list[] = {p};
  wasm_valtype_t *result_list[] = {r1, r2};
  wasm_valtype_vec_new(&params, 1, param_list);
  wasm_valtype_vec_new(&results, 2, result_list);
  return wasm_functype_new(&params, &results);
}
static inline WASM_OWN wasm_functype_t *wasm_functype_new_2_2(WASM_OWN wasm_valtype_t *p1,
    WASM_OWN wasm_valtype_t *p2, WASM_OWN wasm_valtype_t *r1, WASM_OWN wasm_valtype_t *r2) {
  wasm_valtype_vec_t params, results;
  wasm_valtype_t *param_list[] = {p1, p2};
  wasm_valtype_t *result_list[] = {r1, r2};
  wasm_valtype_vec_new(&params, 2, param_list);
  wasm_valtype_vec_new(&results, 2, result_list);
  return wasm_functype_new(&params, &results);
}
static inline WASM_OWN wasm_functype_t *wasm_functype_new_3_2(WASM_OWN wasm_valtype_t *p1,
    WASM_OWN wasm_valtype_t *p2, WASM_OWN wasm_valtype_t *p3, WASM_OWN wasm_valtype_t *r1,
    WASM_OWN wasm_valtype_t *r2) {
  wasm_valtype_vec_t params, results;
  wasm_valtype_t *param_list[] = {p1, p2, p3};
  wasm_valtype_t *result_list[] = {r1, r2};
  wasm_valtype_vec_new(&params, 3, param_list);
  wasm_valtype_vec_new(&results, 2, result_list);
  return wasm_functype_new(&params, &results);
}

/* A pointer of the host as a number of its width. */
static inline void wasm_val_init_ptr(WASM_OWN wasm_val_t *out, void *pointer) {
#if UINTPTR_MAX == UINT32_MAX
  out->kind = WASM_I32;
  out->of.i32 = (int32_t)(intptr_t)pointer;
#else
  out->kind = WASM_I64;
  out->of.i64 = (int64_t)(intptr_t)pointer;
#endif
}

/* The pointer that wasm_val_init_ptr made a number of. */
static inline void *wasm_val_ptr(const wasm_val_t *value) {
#if UINTPTR_MAX == UINT32_MAX
  return (void *)(intptr_t)value->of.i32;
#else
  return (void *)(intptr_t)value->of.i64;
#endif
}

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* WASM_H */
