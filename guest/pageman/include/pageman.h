/* Pagefork's page manager for WebAssembly programs: pages with states, mmap and malloc on top of them.
 *
 * One owner of memory.grow for a whole program. Functions here have no errno: they return an address
 * or 0, or 0 or a negative `enum pageman_error`. <sys/mman.h> in this directory has POSIX's own calls.
 */
#ifndef PAGEMAN_H
#define PAGEMAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Size of a page as a power of two. The library and all that includes this are built with the same one. */
#ifndef PAGEMAN_PAGE_SHIFT
#define PAGEMAN_PAGE_SHIFT 16
#endif

#define PAGEMAN_PAGE_SIZE ((size_t)1 << PAGEMAN_PAGE_SHIFT)

/* What a page is. These are the four-bit values of the exported page map, too. */
enum pageman_state {
    PAGEMAN_FREE_ZERO = 0,      /* free, and all of it reads zero */
    PAGEMAN_FREE_DIRTY = 1,     /* free, with the bytes of a former owner */
    PAGEMAN_FREE_DISCARDED = 2, /* free, given back to the host; reads zero */
    PAGEMAN_FOREIGN = 3,        /* not the manager's: data, stack, or grown by others */
    PAGEMAN_INTERNAL = 4,       /* holds the manager's own tables */
    PAGEMAN_RESERVED_DIRTY = 5, /* mapped without access, to be cleared at the first access that is given */
    PAGEMAN_RESERVED_ZERO = 6,  /* mapped without access, and reads zero */
    PAGEMAN_USED = 8,           /* mapped; the low three bits are its protection: read 1, write 2, execute 4 */
    PAGEMAN_BEYOND = 16,        /* no page of memory has this address; never in the map */
};

enum pageman_error {
    PAGEMAN_OK = 0,
    PAGEMAN_INVALID = -1,     /* EINVAL: an argument that means nothing, or pages that are not the manager's */
    PAGEMAN_NO_MEMORY = -2,   /* ENOMEM: nothing can be had, or the range is not all mapped */
    PAGEMAN_EXISTS = -3,      /* EEXIST: the range is taken */
    PAGEMAN_NOT_MAPPED = -4,  /* EFAULT: the range is not all mapped (mremap) */
    PAGEMAN_BUSY = -5,        /* EBUSY: too late, memory is in use */
};

/* Wishes of pageman_map, to be combined. */
enum pageman_wish {
    PAGEMAN_ANY = 0,        /* contents do not matter: dirty pages are taken first, and nothing is cleared */
    PAGEMAN_ZERO = 1,       /* all bytes read zero: zero pages are taken first, and only dirty ones are cleared */
};

/* Where runs of pages are taken from. */
enum pageman_policy {
    PAGEMAN_FIRST_FIT = 0,  /* the lowest run that is long enough */
    PAGEMAN_BEST_FIT = 1,   /* the shortest of the first eight runs that are long enough */
    PAGEMAN_TWO_ENDS = 2,   /* runs of less than 16 pages from below, longer ones from above */
    PAGEMAN_BY_LENGTH = 3,  /* runs of less than 8 pages as best fit does, longer ones as first fit: if nothing is said */
};

/* Takes `length` bytes of whole pages, readable and writable, at a multiple of `alignment`, which is 0 or a
 * power of two. Null if there is no memory, or an argument means nothing. */
void *pageman_map(size_t length, size_t alignment, unsigned wish);

/* The same, and says through `zero` whether all bytes are known to read zero, whatever the wish was. */
void *pageman_map_known(size_t length, size_t alignment, unsigned wish, bool *zero);

/* Gives back every page of `length` bytes from `address`, a multiple of the page size, on; pages that are
 * free already stay so. PAGEMAN_INVALID where a page is not the manager's: then nothing is done. Memory that
 * mmap has made of a file goes by munmap. */
int pageman_unmap(void *address, size_t length);

/* Offers mapped pages whose contents matter no more to the host; they stay mapped, and hold anything then, or
 * zeros if the host took them, which is the result. */
bool pageman_discard(void *address, size_t length);

/* The state of the page that an address lies in. */
unsigned pageman_state_of(const void *address);

size_t pageman_page_size(void);

/* The block that costs least for its size: callers that choose a size, as allocators do, choose multiples. */
size_t pageman_preferred_size(void);

/* Whether mmap and its family are served by the manager (see pageman_set_active). */
bool pageman_active(void);

/* Turns the manager on or off, before anything was mapped; afterwards PAGEMAN_BUSY. Off, mmap and its
 * family fail with ENOSYS, and nothing but pageman_map and sbrk take pages. The environment variable
 * PAGEMAN=off does the same for programs with WASI. */
int pageman_set_active(bool active);

void pageman_set_policy(enum pageman_policy policy);

/* Gives free dirty pages back to the host, those that were freed a moment ago, too. Returns how many pages
 * the host has released. A program linked with `-Wl,--export=pageman_trim` has hosts call it between requests. */
size_t pageman_trim(void);

/* One step of decay: what has been free and dirty since the last step is offered to the host. The manager
 * does it by itself every 256 calls, or more where memory is above 1 GiB, and whenever 64 MiB were freed. */
void pageman_decay(void);

struct pageman_statistics {
    uint64_t page_size;
    uint64_t memory_pages;      /* all pages below the end of memory */
    uint64_t free_pages;        /* zero, dirty and discarded */
    uint64_t dirty_pages;       /* of the free ones */
    uint64_t discarded_pages;   /* of the free ones */
    uint64_t mapped_pages;      /* used and reserved */
    uint64_t reserved_pages;    /* of the mapped ones */
    uint64_t foreign_pages;
    uint64_t internal_pages;
    uint64_t mapped_pages_max;  /* the most that were ever mapped at once */
    uint64_t longest_free_run;  /* in pages */
    uint64_t table_bytes;       /* of the tables, wherever they lie */
    uint64_t maps, unmaps;      /* calls that succeeded */
    uint64_t grown_pages;       /* by the manager's own memory.grow */
    uint64_t cleared_pages;     /* that had to be written with zeros for a promise */
    uint64_t spared_pages;      /* for which the promise cost nothing */
    uint64_t discards;          /* offers to the host */
    uint64_t released_pages;    /* that the host released */
    uint64_t zeroed_pages;      /* that the host only wrote with zeros */
    uint64_t declined_pages;    /* that the host did not want */
};

void pageman_statistics(struct pageman_statistics *statistics);

/* Statistics as text or as JSON, with a final zero; returns the length without it, even if `size` is
 * smaller and the end is cut off. `pageman_dump` adds a line, or element, for each run of pages. */
size_t pageman_print(char *buffer, size_t size, bool json);
size_t pageman_dump(char *buffer, size_t size, bool json);

/* Recomputes all that is derived. Null if it is right, else a sentence that says what is not. */
const char *pageman_check(void);

/* POSIX's calls without errno: addresses are returned through `address`, errors are `enum pageman_error`.
 * `protection` and `flags` are those of <sys/mman.h> here. Memory of files is made by <sys/mman.h>. */
int pageman_mmap(void **address, size_t length, int protection, int flags);
int pageman_munmap(void *address, size_t length);
int pageman_mprotect(void *address, size_t length, int protection);
int pageman_madvise(void *address, size_t length, int advice);
int pageman_mincore(void *address, size_t length, unsigned char *vector);
int pageman_mremap(void **address, size_t old_length, size_t new_length, int flags, void *target);

/* Moves the break by `increment` bytes; the old one is stored. Where the pages behind it are taken, it goes
 * on elsewhere, as on systems whose break is not contiguous. */
int pageman_sbrk(ptrdiff_t increment, void **previous);

/* What a host reads of the manager: the export `pageman_page_map` is the address of this. Numbers are little
 * endian, as all of a program's memory. While `sequence` is odd the rest is being changed, and says nothing. */
struct pageman_page_map {
    uint32_t magic;      /* PAGEMAN_MAGIC */
    uint16_t version;    /* 1 */
    uint8_t page_shift;
    uint8_t bits;        /* bits of a page in `states`: 4, the lower ones first */
    uint32_t sequence;
    uint32_t pages;      /* pages that `states` tells of, from address 0 on */
    uintptr_t states;    /* the address of the states */
    uint32_t cleared;    /* a host that has made all free pages zero, as in a copy without them, writes 1 */
};

#define PAGEMAN_MAGIC 0x4d474150u

extern struct pageman_page_map pageman_page_map;

#ifdef __cplusplus
}
#endif

#endif
