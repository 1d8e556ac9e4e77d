/* malloc on top of the page manager: Doug Lea's, version 2.8.6, whose `malloc.c` is found by -I.
 *
 * Linked into a program, every entry point of the C library's malloc is this one. It is what WASI's own C library
 * has, so programs cost what they cost with that; but blocks of 256 KiB or more have pages of their own, and what
 * is free at the end of the others' pages goes back to the manager.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "internal.h"

/* Blocks from this size on have pages of their own. */
#define LARGE ((size_t)256 << 10)

/* What blocks with pages of their own are wished to be, which is asked under malloc's lock. */
static unsigned wish = PAGEMAN_ANY;

/* Compilers count on blocks of less than half of an address space. */
static void *take_pages(size_t length, unsigned wished) {
    void *pages = length <= PTRDIFF_MAX ? pageman_map(length, 0, wished) : NULL;
    return pages ? pages : (void *)-1;
}

static void *move_pages(void *pages, size_t old_length, size_t length, int may_move) {
    if (length > PTRDIFF_MAX) return (void *)-1;
    return pageman_mremap(&pages, old_length, length, may_move, NULL) == PAGEMAN_OK ? pages : (void *)-1;
}

/* The first segment begins within a page, see `take_first`: what of that page is before the next one is not had again then. */
static int give_pages(void *memory, size_t length) {
    uintptr_t at = (uintptr_t)memory, skipped = (0 - at) % PAGEMAN_PAGE_SIZE;
    return skipped < length ? pageman_unmap((void *)(at + skipped), length - skipped) : -1;
}

/* But for the first of it all memory comes as pages. What is joined to the heap is not cleared, because no caller counts on it. */
#define HAVE_MORECORE 0
#define HAVE_MMAP 1
#define HAVE_MREMAP 1
/* Pages with the wish for zeros never come to dlcalloc, and others may be dirty. */
#define MMAP_CLEARS 0
#define MMAP(length) take_pages(length, PAGEMAN_ANY)
#define DIRECT_MMAP(length) take_pages(length, wish)
#define MUNMAP(pages, length) give_pages(pages, length)
#define MREMAP(pages, old_length, length, may_move) move_pages(pages, old_length, length, may_move)
#define malloc_getpagesize PAGEMAN_PAGE_SIZE
#define DEFAULT_GRANULARITY ((size_t)64 << 10)
#define DEFAULT_MMAP_THRESHOLD LARGE
#define MALLOC_ALIGNMENT _Alignof(max_align_t)

/* Nothing of a system but what is above. WASI's own C library looks for nothing that a program has done wrong to its
 * heap, and neither does this, unless wanted: what it sees then ends the program. It costs lists of small blocks a tenth. */
#ifndef PAGEMAN_MALLOC_CHECKS
#define INSECURE 1
#endif
#define ABORT(message) __builtin_trap()
#define USE_DL_PREFIX 1
#define DLMALLOC_EXPORT static
#ifndef __EMSCRIPTEN__
#define NO_MALLINFO 1
#endif
#define NO_MALLOC_STATS 1
#define LACKS_FCNTL_H
#define LACKS_SCHED_H
#define LACKS_STDLIB_H
#define LACKS_STRINGS_H
#define LACKS_SYS_MMAN_H
#define LACKS_SYS_PARAM_H
#define LACKS_TIME_H
#define LACKS_UNISTD_H

/* The lock is the manager's, which is recursive, and nothing without threads. */
#define USE_LOCKS 2
#define init_lock pageman_malloc_init_lock
#define final_lock pageman_malloc_final_lock
#define acquire_lock pageman_malloc_acquire_lock
#define release_lock pageman_malloc_release_lock

#include "malloc.c"

void init_lock(MLOCK_T *lock) { (void)lock; }
void final_lock(MLOCK_T *lock) { (void)lock; }
void acquire_lock(MLOCK_T *lock) { (void)lock, port_lock(); }
void release_lock(MLOCK_T *lock) { (void)lock, port_unlock(); }

/* The memory between the linker's data and the end of memory is the manager's. */
bool pageman_owns_heap = true;

/* The heap begins with what is left of the page that the program's data end in, or small programs would have a page more
 * than they need. It is the first to run before main: WASI's own C library allocates there, by constructors from 50 on. */
__attribute__((constructor(1))) static void take_first(void) {
    if (is_initialized(gm)) return;
    void *memory;
    size_t length = manager_take_rest(TOP_FOOT_SIZE + 64 * sizeof(void *), &memory);
    if (!length) return;
    ensure_initialization();
    gm->footprint = gm->max_footprint = length;
    gm->least_addr = gm->seg.base = memory;
    gm->seg.size = length;
    gm->seg.sflags = USE_MMAP_BIT;
    gm->magic = mparams.magic;
    gm->release_checks = MAX_RELEASE_CHECK_RATE;
    init_bins(gm);
    init_top(gm, memory, length - TOP_FOOT_SIZE);
}

/* ---- The C library's names ---- */

/* What is far too large is refused without a word by malloc itself. */
static void *or_error(void *block) {
    if (!block) errno = ENOMEM;
    return block;
}

/* Whether a block has pages of its own and was aligned, so that it begins far behind the first of these. malloc.c does not
 * count that when it makes their number fit another size. */
static bool begins_late(void *block) {
    mchunkptr chunk = block ? mem2chunk(block) : NULL;
    return chunk && is_mmapped(chunk) && chunk->prev_foot > CHUNK_ALIGN_MASK;
}

static void *resize(void *block, size_t size) {
    if (!begins_late(block)) return dlrealloc(block, size);
    void *other = dlmalloc(size);
    if (!other) return NULL;
    size_t had = dlmalloc_usable_size(block);
    memcpy(other, block, had < size ? had : size);
    dlfree(block);
    return other;
}

void *malloc(size_t size) { return or_error(dlmalloc(size)); }
void free(void *block) { dlfree(block); }
void *realloc(void *block, size_t size) { return or_error(resize(block, size)); }

/* Pages of its own, which read zero; null if there is no such run of pages. */
static void *zeroed_pages(size_t bytes) {
    if (bytes >= MAX_REQUEST) return NULL;
    if (!is_initialized(gm)) dlfree(dlmalloc(1));
    if (PREACTION(gm)) return NULL;
    wish = PAGEMAN_ZERO;
    void *block = mmap_alloc(gm, pad_request(bytes));
    wish = PAGEMAN_ANY;
    POSTACTION(gm);
    return block;
}

void *calloc(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) bytes = SIZE_MAX;
    void *block = bytes >= LARGE ? zeroed_pages(bytes) : NULL;
    return block ? block : or_error(dlcalloc(1, bytes));
}

void *reallocarray(void *block, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) bytes = SIZE_MAX;
    return or_error(resize(block, bytes));
}

void *memalign(size_t alignment, size_t size) {
    /* malloc.c looks for a power of two that is not below it. */
    return or_error(alignment <= (size_t)1 << 31 ? dlmemalign(alignment, size) : NULL);
}

void *valloc(size_t size) { return or_error(dlmemalign(PAGEMAN_PAGE_SIZE, size)); }
size_t malloc_usable_size(void *block) { return dlmalloc_usable_size(block); }

int posix_memalign(void **block, size_t alignment, size_t size) { return dlposix_memalign(block, alignment, size); }

void *aligned_alloc(size_t alignment, size_t size) {
    if (alignment && !(alignment & (alignment - 1))) return memalign(alignment, size);
    errno = EINVAL;
    return NULL;
}

/* Names by which the C library itself allocates. */
void *__libc_malloc(size_t size) { return malloc(size); }
void *__libc_calloc(size_t count, size_t size) { return calloc(count, size); }
void *__libc_realloc(void *block, size_t size) { return realloc(block, size); }
void __libc_free(void *block) { dlfree(block); }

/* Gives back what lies behind the last block but for so many bytes, and all runs of pages that are free. */
int malloc_trim(size_t keep) { return dlmalloc_trim(keep); }

#ifdef __EMSCRIPTEN__
/* Names by which emscripten's own code allocates: what it had by the names above it may free by these. */
void *emscripten_builtin_malloc(size_t size) { return malloc(size); }
void *emscripten_builtin_calloc(size_t count, size_t size) { return calloc(count, size); }
void *emscripten_builtin_realloc(void *block, size_t size) { return realloc(block, size); }
void *emscripten_builtin_memalign(size_t alignment, size_t size) { return memalign(alignment, size); }
void emscripten_builtin_free(void *block) { free(block); }

/* The rest of what its own malloc has: a program that calls one of these would have that one beside this. */
#define SAME(name) __attribute__((alias("dl" #name)))
struct mallinfo mallinfo(void) SAME(mallinfo);
int mallopt(int parameter, int value) SAME(mallopt);
size_t malloc_footprint(void) SAME(malloc_footprint);
size_t malloc_max_footprint(void) SAME(malloc_max_footprint);
size_t malloc_footprint_limit(void) SAME(malloc_footprint_limit);
size_t malloc_set_footprint_limit(size_t bytes) SAME(malloc_set_footprint_limit);
void *pvalloc(size_t size) SAME(pvalloc);
void **independent_calloc(size_t count, size_t size, void **blocks) SAME(independent_calloc);
void **independent_comalloc(size_t count, size_t *sizes, void **blocks) SAME(independent_comalloc);
size_t bulk_free(void **blocks, size_t count) SAME(bulk_free);

void *realloc_in_place(void *block, size_t size) {
    return begins_late(block) ? NULL : dlrealloc_in_place(block, size);
}
#endif
