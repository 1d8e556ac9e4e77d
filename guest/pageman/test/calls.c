/* The manager's calls, one by one, for a host that makes them at random and knows what has to come of each. */
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pageman.h"

/* For as many pages as memory can have. */
#define PAGES_MAX 4096
static unsigned char vector[PAGES_MAX];

static uint32_t do_call(uint32_t what, uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t e) {
    void *address = (void *)(uintptr_t)a;
    switch (what) {
    case 0: return (uint32_t)(uintptr_t)mmap(address, b, (int)c, (int)d, -1, 0);
    case 1: return (uint32_t)munmap(address, b);
    case 2: return (uint32_t)mprotect(address, b, (int)c);
    case 3: return (uint32_t)madvise(address, b, (int)c);
    case 4: return (uint32_t)mincore(address, b, vector);
    case 5: return (uint32_t)(uintptr_t)mremap(address, b, c, (int)d, (void *)(uintptr_t)e);
    case 6: return (uint32_t)(uintptr_t)sbrk((intptr_t)a);
    case 7: return (uint32_t)msync(address, b, (int)c);
    case 8: errno = posix_madvise(address, b, (int)c); return errno ? UINT32_MAX : 0;
    case 9: return (uint32_t)mlock(address, b);
    case 10: return (uint32_t)munlock(address, b);
    case 11: return (uint32_t)(uintptr_t)pageman_map(a, b, c);
    case 12: return (uint32_t)pageman_unmap(address, b);
    case 13: return pageman_discard(address, b);
    case 14: return (uint32_t)pageman_trim();
    case 15: pageman_decay(); return 0;
    case 16: pageman_set_policy((enum pageman_policy)(a % 4)); return 0;
    case 17: return pageman_state_of(address);
    default: return (uint32_t)(uintptr_t)pageman_check();
    }
}

/* The result in the lower half, errno in the upper one. */
__attribute__((export_name("call"))) uint64_t call(uint32_t what, uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                                                  uint32_t e) {
    errno = 0;
    uint32_t result = do_call(what, a, b, c, d, e);
    return (uint64_t)(uint32_t)errno << 32 | result;
}
