/* The port to WebAssembly: memory.grow, the linker's heap, and hosts that take pages back. */
#include "internal.h"

#define WASM_PAGE_SHIFT 16
#define PER_WASM_PAGE ((page_t)1 << (WASM_PAGE_SHIFT - PAGEMAN_PAGE_SHIFT))

/* Where the linker's data and stack end. */
extern unsigned char __heap_base;
#ifndef __EMSCRIPTEN__
/* The initial end of memory, in linkers that say so. */
extern unsigned char __heap_end __attribute__((weak));
#endif

/* Whether nothing else uses the memory between these: malloc, if it is the library's own. A strong definition
 * takes the place of this one, which some compilers would take for final if it were constant. */
#ifdef PAGEMAN_OWNS_HEAP
bool pageman_owns_heap = true;
#else
__attribute__((weak)) bool pageman_owns_heap = false;
#endif

void *port_base(void) { return (void *)0; }

page_t port_pages(void) { return (page_t)__builtin_wasm_memory_size(0) * PER_WASM_PAGE; }

page_t port_growth_unit(void) { return PER_WASM_PAGE; }

page_t port_grow(page_t pages) {
    size_t old = __builtin_wasm_memory_grow(0, pages / PER_WASM_PAGE);
#ifdef __EMSCRIPTEN__
    /* JavaScript's views of memory are of its old size. */
    extern void emscripten_notify_memory_growth(size_t);
    if (old != (size_t)-1) emscripten_notify_memory_growth(0);
#endif
    return old == (size_t)-1 ? PAGE_NONE : (page_t)old * PER_WASM_PAGE;
}

void port_first_heap(uintptr_t *start, uintptr_t *end) {
    *start = *end = 0;
    if (!pageman_owns_heap) return;
    *start = (uintptr_t)&__heap_base;
#ifdef __EMSCRIPTEN__
    /* Its older linkers do not say where memory ends, and all that grows its memory is here. */
    page_t pages = port_pages();
    *end = (uintptr_t)(pages < PAGES_USABLE ? pages : PAGES_USABLE) << PAGEMAN_PAGE_SHIFT;
#else
    *end = (uintptr_t)&__heap_end;
#endif
    /* Without the linker's word for it memory could have been grown by others already. */
    if (*end < *start) *start = *end = 0;
}

#if defined(PAGEMAN_DISCARD_BINDGEN)
/* The name by which wasm-bindgen's experimental option puts the instruction in: it has no status. */
__attribute__((import_module("env"), import_name("__wbindgen_memory_discard"))) extern void
discard_now(void *address, size_t length);
/* The instruction takes whole pages of WebAssembly and traps for others. So it gets those that lie in the range, and what is
 * left at both ends is cleared; where there are none, this is declined. */
int port_discard(void *address, size_t length) {
    const uint64_t size = (uint64_t)1 << WASM_PAGE_SHIFT;
    uint64_t start = (uintptr_t)address, end = start + length;
    uint64_t first = (start + size - 1) & ~(size - 1), last = end & ~(size - 1);
    if (first >= last) return -1;
    __builtin_memset(address, 0, (size_t)(first - start));
    discard_now((void *)(uintptr_t)first, (size_t)(last - first));
    __builtin_memset((void *)(uintptr_t)last, 0, (size_t)(end - last));
    return 0;
}
#elif defined(PAGEMAN_DISCARD_IMPORT)
__attribute__((import_module("pagefork"), import_name("memory_discard"))) extern int
discard_with_status(void *address, size_t length);
int port_discard(void *address, size_t length) { return discard_with_status(address, length); }
#else
/* A host that takes nothing back: free dirty memory is kept for reuse. */
int port_discard(void *address, size_t length) {
    (void)address, (void)length;
    return -1;
}
#endif

#ifdef __wasm_atomics__
#ifdef __EMSCRIPTEN_WASM_WORKERS__
#error "the page manager tells threads apart by pthread_self, which Wasm Workers have not"
#endif
#ifdef __EMSCRIPTEN__
#include <pthread.h>
/* A thread allocates the memory of its own variables, so it locks before it has any. What tells it from others is there by
 * then, except for the first thread before it has begun, which is alone. */
static uintptr_t this_thread(void) { return (uintptr_t)pthread_self() | 1; }
#else
static _Thread_local char mark;
static uintptr_t this_thread(void) { return (uintptr_t)&mark; }
#endif

/* A recursive lock that needs no memory. */
static uintptr_t owner;
static uint32_t waiting, depth;

void port_lock(void) {
    uintptr_t me = this_thread();
    if (__atomic_load_n(&owner, __ATOMIC_RELAXED) == me) {
        depth++;
        return;
    }
    for (uint32_t turn = 0;; turn++) {
        uintptr_t none = 0;
        if (__atomic_compare_exchange_n(&owner, &none, me, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) break;
        if (turn < 100) continue;
        /* The thread of a browser's window may not wait, so nobody waits for longer than a moment. */
        __atomic_fetch_add(&waiting, 1, __ATOMIC_SEQ_CST);
#ifdef __EMSCRIPTEN__
        extern int emscripten_is_main_browser_thread(void);
        if (!emscripten_is_main_browser_thread())
#endif
            __builtin_wasm_memory_atomic_wait32((int *)&owner, (int)none, 1000000);
        __atomic_fetch_sub(&waiting, 1, __ATOMIC_SEQ_CST);
    }
    depth = 1;
}

void port_unlock(void) {
    if (--depth) return;
    __atomic_store_n(&owner, 0, __ATOMIC_RELEASE);
    if (__atomic_load_n(&waiting, __ATOMIC_SEQ_CST)) __builtin_wasm_memory_atomic_notify((int *)&owner, 1);
}
#else
void port_lock(void) {}
void port_unlock(void) {}
#endif
