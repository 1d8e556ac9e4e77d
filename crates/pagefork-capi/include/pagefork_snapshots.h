/*
 * pagefork_snapshots.h: what stores were, in memory and in files. It is a part of pagefork.h, which
 * includes it.
 */

#ifndef PAGEFORK_SNAPSHOTS_H
#define PAGEFORK_SNAPSHOTS_H

#include "pagefork.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------- */
/* Taking and using them */

/* What a store was: its instances, and a guest that was suspended. Any thread may use it. The
 * functions of the host that the store had live as long. */
typedef struct pagefork_snapshot_t pagefork_snapshot_t;

/* What the store is now; it does not change by that. An error while a guest runs or a call waits, if
 * a guest holds something of the host (see pagefork_store_snapshot_with), or its program has
 * something open that cannot be opened again. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_snapshot(
    wasm_store_t *, WASM_OWN pagefork_snapshot_t **out);

/* Says what takes the place of an object that guests hold a reference to, in all stores that are made
 * of a snapshot: a foreign object or a module, such as a copy of the same one, or what
 * pagefork_foreign_new makes. The object is lent; its host information tells what it is. The hook must
 * not use the store. It gives null, or an error with which the snapshot fails. */
typedef WASM_OWN pagefork_error_t *(*pagefork_keep_reference_t)(void *env, const wasm_ref_t *,
                                                                WASM_OWN wasm_ref_t **out);

/* As pagefork_store_snapshot, of a store whose guests hold references to objects of the host: the
 * hook is called for each that they may hold. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_snapshot_with(
    wasm_store_t *, pagefork_keep_reference_t, void *env, WASM_OWN pagefork_snapshot_t **out);

/* As pagefork_wasi_config_directory, to read and write, of a directory that belongs to the programs'
 * session: pagefork_store_snapshot_with_files copies it, and each store that goes on from there has a
 * copy of its own. The directory itself stays, and stores that are given this configuration share
 * it. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_wasi_config_session_directory(
    pagefork_wasi_config_t *, const char *host_path, const char *guest_path);

/* As pagefork_store_snapshot_with, with the files of a session. They are copied to `place`, a new
 * directory, in which the stores that are made of the snapshot have theirs, too. It is removed with
 * the last of snapshot and stores; a process that is killed leaves it behind. `wasi` of
 * pagefork_spawn_t leaves these directories out. The hook may be null. An error if something has this
 * name, or if there are more than 1 GiB or 65,536 files. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_snapshot_with_files(
    wasm_store_t *, const char *place, pagefork_keep_reference_t, void *env,
    WASM_OWN pagefork_snapshot_t **out);

/* A foreign object of no store, with something attached: see
 * wasm_foreign_set_host_info_with_finalizer. It can be given to guests of any store; the finalizer is
 * called when neither they, nor snapshots, nor C have the object any more, on the thread that had it
 * last. */
WASM_API_EXTERN WASM_OWN wasm_foreign_t *pagefork_foreign_new(void *, void (*finalizer)(void *));

/* Deletes the snapshot; null is nothing to delete. Stores that go on from it stay. */
WASM_API_EXTERN void pagefork_snapshot_delete(WASM_OWN pagefork_snapshot_t *);

/* What pagefork_instance_pre_spawn makes stores of that go on from the snapshot. The instance that it
 * gives is the one whose function was called, or else the one that was made last. No start function
 * runs. Programs of WASI have the arguments, variables and files that they had, for which `wasi` of
 * pagefork_spawn_t must give them the same directories; standard streams are those of `wasi`. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_snapshot_instance_pre(
    const pagefork_snapshot_t *, WASM_OWN pagefork_instance_pre_t **out);

/* As pagefork_store_reset, but to the snapshot: of this store, of the one that it was spawned as, or
 * of another one of the same prepared instance. A guest that was suspended is again. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_reset_to(
    wasm_store_t *, const pagefork_snapshot_t *, const pagefork_wasi_config_t *wasi);

/* Makes `count` stores that go on from where this one is, which stays as it is: all of them, or none
 * and an error. `how` may be null. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_fork(
    wasm_store_t *, const pagefork_spawn_t *how, WASM_OWN wasm_store_t **stores, size_t count);

/* What in this store, which was made of a snapshot of another one, corresponds to something of
 * that. An error if nothing does. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_counterpart(
    wasm_store_t *, const wasm_extern_t *, WASM_OWN wasm_extern_t **out);
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_counterpart_instance(
    wasm_store_t *, const wasm_instance_t *, WASM_OWN wasm_instance_t **out);

/* ------------------------------------------------------------------------------------------- */
/* Where they are saved */

/*
 * A snapshot is saved as an image, in a store of images: a directory of files, which any number of
 * processes use at once. What the stores of an image have in memory is mapped from the files, and read
 * when it is needed. Any thread may use a store of images, and several at once. The command
 * `pagefork image` looks after such a directory.
 */
typedef struct pagefork_image_store_t pagefork_image_store_t;

/* What stands for an image: the hash of all that is in it. */
typedef struct pagefork_image_hash_t {
  uint8_t bytes[32];
} pagefork_image_hash_t;

/* Opens the directory, which is made unless it is there. An error if others may write to it. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_image_store_open(
    const char *directory, WASM_OWN pagefork_image_store_t **out);

/* Closes the directory; null is nothing to close. Snapshots of it stay. */
WASM_API_EXTERN void pagefork_image_store_delete(WASM_OWN pagefork_image_store_t *);

/* The image that is meant by a name, by the 64 hexadecimal digits of a hash, or by four or more of the
 * first of them. An error unless there is one: `out` is as it was then. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_image_store_find(
    const pagefork_image_store_t *, const char *text, pagefork_image_hash_t *out);

/* Gives an image a name, which leads to no other any more. What no name leads to, and nothing has
 * loaded, is garbage. A name has letters, digits and `.`, `_`, `-`, up to 128, and begins with none of
 * these three. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_image_store_set_name(
    const pagefork_image_store_t *, const char *name, const pagefork_image_hash_t *);

/* Takes a name away, if it is there. An error if it cannot be a name, or the directory not be
 * written. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_image_store_remove_name(
    const pagefork_image_store_t *, const char *name);

/* Removes what is garbage. An error if the directory cannot be read or written. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_image_store_collect(
    const pagefork_image_store_t *);

/* Writes an image to a single file, compressed, with its code and all that it is a delta of. The file
 * is there when this has succeeded, and as it was before if not. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_image_store_export(
    const pagefork_image_store_t *, const pagefork_image_hash_t *, const char *path);

/* Takes in what a file has that was written so: all of it is checked. `out` is the last image in it.
 * An error if the file is damaged, or there is none: `out` is as it was then. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_image_store_import(
    const pagefork_image_store_t *, const char *path, pagefork_image_hash_t *out);

/* ------------------------------------------------------------------------------------------- */
/* Saving and loading */

/* A key that signs: 32 random bytes, which are secret. */
typedef struct pagefork_secret_key_t {
  uint8_t bytes[32];
} pagefork_secret_key_t;

/* A key that signatures are checked with. */
typedef struct pagefork_public_key_t {
  uint8_t bytes[32];
} pagefork_public_key_t;

/* The public key of a secret one. An error if an argument is null. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_secret_key_public(const pagefork_secret_key_t *,
                                                                      pagefork_public_key_t *out);

/* A function of the host that no linker has defined, with names by which a linker is to have it. */
typedef struct pagefork_named_func_t {
  const wasm_func_t *func;
  const char *module, *name;
} pagefork_named_func_t;

/* Writes to `out`, which is empty, what is kept of an object that guests hold a reference to: bytes,
 * of which a hook makes an object when the snapshot is loaded. It gives null or an error. */
typedef WASM_OWN pagefork_error_t *(*pagefork_save_reference_t)(void *env, const wasm_ref_t *,
                                                                WASM_OWN wasm_byte_vec_t *out);

/* Makes an object of such bytes, as of pagefork_keep_reference_t. */
typedef WASM_OWN pagefork_error_t *(*pagefork_load_reference_t)(void *env, const void *bytes,
                                                                size_t size,
                                                                WASM_OWN wasm_ref_t **out);

/* How a snapshot is saved: all zero unless it is set. What it leads to is lent. */
typedef struct pagefork_save_t {
  /* Bytes of the embedder's, which pagefork_snapshot_state gives who loads it. */
  const void *state;
  size_t state_size;
  /* Has those pages alone saved in which it differs from another one, which was saved in or loaded from
   * the same store. */
  const pagefork_snapshot_t *delta_of;
  /* Keys that sign what is saved. */
  const pagefork_secret_key_t *signers;
  size_t signer_count;
  /* Functions of wasm_func_new and its like, which nothing has a name of. */
  const pagefork_named_func_t *funcs;
  size_t func_count;
  /* What is kept of objects that guests hold, and what the hook is called with. */
  pagefork_save_reference_t save_reference;
  void *env;
  /* For later versions: zero. */
  uint64_t reserved[4];
} pagefork_save_t;

/*
 * Writes the snapshot to a store of images, with the code of its modules, what its WASI program had and
 * the files of its session: this and other processes can load it. It is there when this has succeeded,
 * and not before. Functions of the host are saved by the names that a linker has given them. `how` and
 * `out` may be null.
 */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_snapshot_save(
    const pagefork_snapshot_t *, const pagefork_image_store_t *, const pagefork_save_t *how,
    pagefork_image_hash_t *out);

/* How a snapshot is loaded: all zero unless it is set. What it leads to is lent. */
typedef struct pagefork_load_t {
  /* Modules that are there already: instances of them use their code, which is not loaded. */
  const wasm_module_t *const *modules;
  size_t module_count;
  /* Keys whose owners are trusted like those who install programs here: a snapshot of a suspended guest
   * that one of them has signed is machine state, and can do all that this process can. */
  const pagefork_public_key_t *trusted;
  size_t trusted_count;
  /* What takes the place of objects that guests hold, and what the hook is called with. */
  pagefork_load_reference_t load_reference;
  void *env;
  /* A store in whose place go on those that are spawned, which find what corresponds to things of it:
   * see pagefork_store_counterpart. The caller knows that the snapshot descends from that store. */
  const wasm_store_t *continues;
  /* For later versions: zero. */
  uint64_t reserved[4];
} pagefork_load_t;

/*
 * A snapshot that was saved, or a program that the command has captured. The linker has the functions of
 * the host that its guests know. Whoever makes an image can have its guest call any function of the
 * linker. A snapshot in which no guest is suspended needs no trust; one of a suspended guest must be
 * saved by this process, or signed by a trusted key. `how` may be null.
 */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_snapshot_load(
    const pagefork_linker_t *, const pagefork_image_store_t *, const pagefork_image_hash_t *,
    const pagefork_load_t *how, WASM_OWN pagefork_snapshot_t **out);

/* The same, with the files of a session, which are in the image. They are copied to `place`, as of
 * pagefork_store_snapshot_with_files; nothing is made there if the program has no session. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_snapshot_load_with_files(
    const pagefork_linker_t *, const pagefork_image_store_t *, const pagefork_image_hash_t *,
    const pagefork_load_t *how, const char *place, WASM_OWN pagefork_snapshot_t **out);

/* The bytes that were saved with a snapshot; of a program that the command has captured, what it had
 * written to its output. None of a snapshot that was neither saved nor loaded. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_snapshot_state(const pagefork_snapshot_t *,
                                                                   WASM_OWN wasm_byte_vec_t *out);

/* What a snapshot was first saved as, or loaded from. An error if it was neither: `out` is as it was
 * then. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_snapshot_image(const pagefork_snapshot_t *,
                                                                   pagefork_image_hash_t *out);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PAGEFORK_SNAPSHOTS_H */
