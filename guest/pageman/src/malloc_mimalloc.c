/* malloc on top of the page manager: mimalloc, whose sources are found by -I, through its own port layer.
 *
 * Linked into a program, every entry point of the C library's malloc is this one.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pageman.h"

#ifdef __wasm_atomics__
#error "mimalloc on the page manager is for programs without threads: take malloc_dlmalloc.c"
#endif

/* Segments of 1 MiB come from the manager one by one: it is what keeps free memory. */
#define MI_SEGMENT_SHIFT 20
#define MI_DEFAULT_ARENA_RESERVE 0

/* In the order of mimalloc's own single-file build, without its primitives. */
#include "alloc.c"
#include "alloc-aligned.c"
#include "alloc-posix.c"
#include "arena.c"
#include "bitmap.c"
#include "heap.c"
#include "init.c"
#include "libc.c"
#include "options.c"
#include "os.c"
#include "page.c"
#include "random.c"
#include "segment.c"
#include "segment-map.c"
#include "stats.c"

/* The memory between the linker's data and the end of memory is the manager's. */
bool pageman_owns_heap = true;

/* Blocks from this size on have pages of their own, so it is worth asking for zeros. */
#define LARGE ((size_t)512 << 10)

/* Whether zeros are wanted of what is allocated now. */
static _Thread_local bool zero_wanted;

void _mi_prim_mem_init(mi_os_mem_config_t *config) {
    config->page_size = pageman_page_size();
    config->large_page_size = 0;
    config->alloc_granularity = pageman_page_size();
    config->has_overcommit = true;
    config->has_partial_free = true;
    config->has_virtual_reserve = false;
}

int _mi_prim_alloc(void *hint, size_t size, size_t alignment, bool commit, bool allow_large, bool *is_large,
                   bool *is_zero, void **address) {
    (void)hint, (void)commit, (void)allow_large;
    *is_large = false;
    *is_zero = false;
    *address = pageman_map_known(size, alignment, zero_wanted ? PAGEMAN_ZERO : PAGEMAN_ANY, is_zero);
    return *address ? 0 : ENOMEM;
}

int _mi_prim_free(void *address, size_t size) { return pageman_unmap(address, size) == PAGEMAN_OK ? 0 : EINVAL; }

int _mi_prim_commit(void *address, size_t size, bool *is_zero) {
    (void)address, (void)size;
    *is_zero = false;
    return 0;
}

int _mi_prim_decommit(void *address, size_t size, bool *needs_recommit) {
    *needs_recommit = false;
    return _mi_prim_reset(address, size);
}

int _mi_prim_reset(void *address, size_t size) {
    pageman_discard(address, size);
    return 0;
}

int _mi_prim_reuse(void *address, size_t size) {
    (void)address, (void)size;
    return 0;
}

int _mi_prim_protect(void *address, size_t size, bool protect) {
    (void)address, (void)size, (void)protect;
    return 0;
}

int _mi_prim_alloc_huge_os_pages(void *hint, size_t size, int node, bool *is_zero, void **address) {
    (void)hint, (void)size, (void)node;
    *is_zero = false;
    *address = NULL;
    return ENOSYS;
}

size_t _mi_prim_numa_node(void) { return 0; }
size_t _mi_prim_numa_node_count(void) { return 1; }

mi_msecs_t _mi_prim_clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (mi_msecs_t)now.tv_sec * 1000 + (mi_msecs_t)(now.tv_nsec / 1000000);
}

void _mi_prim_process_info(mi_process_info_t *info) { (void)info; }
void _mi_prim_out_stderr(const char *message) { fputs(message, stderr); }

bool _mi_prim_getenv(const char *name, char *result, size_t size) {
    const char *value = _mi_preloading() ? NULL : getenv(name);
    if (!value || strlen(value) >= size) return false;
    strcpy(result, value);
    return true;
}

/* Then mimalloc takes the clock and addresses, as it does without a good source. */
bool _mi_prim_random_buf(void *buffer, size_t length) {
    (void)buffer, (void)length;
    return false;
}

void _mi_prim_thread_init_auto_done(void) {}
void _mi_prim_thread_done_auto_done(void) {}
void _mi_prim_thread_associate_default_heap(mi_heap_t *heap) { (void)heap; }

/* ---- The C library's names ---- */

/* mimalloc has other numbers for some of what it refuses. */
static void *or_error(void *block) {
    if (!block) errno = ENOMEM;
    return block;
}

void *malloc(size_t size) { return or_error(mi_malloc(size)); }
void free(void *block) { mi_free(block); }
void *realloc(void *block, size_t size) { return or_error(mi_realloc(block, size)); }

void *reallocarray(void *block, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) bytes = SIZE_MAX;
    return realloc(block, bytes);
}

void *calloc(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes < LARGE) return or_error(mi_calloc(count, size));
    zero_wanted = true;
    void *block = mi_calloc(count, size);
    zero_wanted = false;
    return or_error(block);
}

void *memalign(size_t alignment, size_t size) { return or_error(mi_memalign(alignment, size)); }
void *valloc(size_t size) { return or_error(mi_valloc(size)); }

void *aligned_alloc(size_t alignment, size_t size) {
    if (alignment && !(alignment & (alignment - 1))) return memalign(alignment, size);
    errno = EINVAL;
    return NULL;
}

size_t malloc_usable_size(void *block) { return mi_usable_size(block); }

int posix_memalign(void **block, size_t alignment, size_t size) { return mi_posix_memalign(block, alignment, size); }

/* Names by which the C library itself allocates. */
void *__libc_malloc(size_t size) { return malloc(size); }
void *__libc_calloc(size_t count, size_t size) { return calloc(count, size); }
void *__libc_realloc(void *block, size_t size) { return realloc(block, size); }
void __libc_free(void *block) { mi_free(block); }

#ifdef __EMSCRIPTEN__
/* Names by which emscripten's own code allocates: what it had by the names above it may free by these. */
void *emscripten_builtin_malloc(size_t size) { return malloc(size); }
void *emscripten_builtin_calloc(size_t count, size_t size) { return calloc(count, size); }
void *emscripten_builtin_realloc(void *block, size_t size) { return realloc(block, size); }
void *emscripten_builtin_memalign(size_t alignment, size_t size) { return memalign(alignment, size); }
void emscripten_builtin_free(void *block) { free(block); }
#endif
