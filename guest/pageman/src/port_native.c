/* The port to Linux, for tests and measurements: an arena in place of a WebAssembly memory. */
#define _GNU_SOURCE
#include "port_native.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* In WebAssembly memory begins at 0, a multiple of all that programs align to. */
#define ALIGNMENT ((size_t)4 << 20)

static char *arena;
static size_t arena_bytes;
static page_t arena_limit, arena_pages;
static uintptr_t heap_start, heap_end;
int native_discard_status = -1;
size_t native_discard_min = 0;
page_t native_growth_max = PAGE_NONE;

void native_reset(page_t limit, page_t initial, size_t start) {
    size_t bytes = (size_t)limit << PAGEMAN_PAGE_SHIFT;
    if (arena) munmap(arena, arena_bytes);
    char *over = mmap(NULL, bytes + ALIGNMENT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (over == MAP_FAILED) {
        perror("mmap of an arena");
        exit(2);
    }
    arena = (char *)(((uintptr_t)over + ALIGNMENT - 1) & ~(uintptr_t)(ALIGNMENT - 1));
    if (arena > over) munmap(over, (size_t)(arena - over));
    if (arena < over + ALIGNMENT) munmap(arena + bytes, (size_t)(over + ALIGNMENT - arena));
    arena_bytes = bytes;
    arena_limit = limit;
    arena_pages = initial;
    heap_start = start;
    heap_end = (uintptr_t)initial << PAGEMAN_PAGE_SHIFT;
    native_discard_status = -1;
    native_discard_min = 0;
    native_growth_max = PAGE_NONE;
    memset(&manager, 0, sizeof manager);
    memset(&tables, 0, sizeof tables);
    memset(&recent, 0, sizeof recent);
    memset(first_states(), 0, tables_size(FIRST_CAPACITY));
}

void *port_base(void) { return arena; }
page_t port_pages(void) { return arena_pages; }
page_t port_growth_unit(void) { return (page_t)1 << (16 - PAGEMAN_PAGE_SHIFT); }

page_t port_grow(page_t pages) {
    if (pages > arena_limit - arena_pages || pages > native_growth_max) return PAGE_NONE;
    page_t old = arena_pages;
    arena_pages += pages;
    return old;
}

page_t native_grow_foreign(page_t pages) { return port_grow(pages); }

void port_first_heap(uintptr_t *start, uintptr_t *end) {
    *start = heap_start;
    *end = heap_end;
}

int port_discard(void *address, size_t length) {
    if (length < native_discard_min) return -1;
    if (native_discard_status == 0 && madvise(address, length, MADV_DONTNEED) != 0) return -1;
    if (native_discard_status == 1) memset(address, 0, length);
    return native_discard_status;
}

void port_lock(void) {}
void port_unlock(void) {}
