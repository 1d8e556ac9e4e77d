/* What the manager's own files share: the tables of pages, and the port to a machine. */
#ifndef PAGEMAN_INTERNAL_H
#define PAGEMAN_INTERNAL_H

#include "pageman.h"

#if PAGEMAN_PAGE_SHIFT < 12 || PAGEMAN_PAGE_SHIFT > 16
#error "PAGEMAN_PAGE_SHIFT is 12 to 16"
#endif

/* A page's number, counted from address 0, or a number of pages. 4 GiB have 2^20 of the smallest. */
typedef uint32_t page_t;

/* What few calls do stays out of those that do it: they need fewer registers then. */
#define RARE __attribute__((noinline, cold))

#define PAGE_NONE UINT32_MAX
#define PAGES_MAX ((page_t)1 << (32 - PAGEMAN_PAGE_SHIFT))

/* The last 64 KiB below 4 GiB are never used: of a block at the very end, `address + length` would be 0. */
#define PAGES_USABLE (PAGES_MAX - ((page_t)1 << (16 - PAGEMAN_PAGE_SHIFT)))

/* So much freed memory makes a step of decay due. */
#define DECAY_PAGES ((page_t)((64 << 20) >> PAGEMAN_PAGE_SHIFT))

/* Free pages are looked for by what they hold. Each class has a bit a page and summaries of its own. */
enum class { CLASS_FREE, CLASS_ZERO, CLASS_DIRTY, CLASSES };

/* Pages that one summary of the lowest level tells of, and how many summaries one above does. */
#define CHUNK_SHIFT 9
#define CHUNK_PAGES ((page_t)1 << CHUNK_SHIFT)
#define FANOUT_SHIFT 3
#define FANOUT ((page_t)1 << FANOUT_SHIFT)
#define LEVELS_MAX 5

/* Tables of the pages of a small program: of so many pages, without memory of their own. */
#define FIRST_CAPACITY 1024

/*
 * The tables of `capacity` pages, one behind the other in one block:
 *
 *   states      4 bits a page: `enum pageman_state`
 *   free        1 bit: the page is free
 *   zero        1 bit: it is free and reads zero
 *   idle        1 bit: it was free and dirty at the last step of decay
 *   summaries   8 bytes for 512 pages and each class, and for 8 of these, and so on up to one
 *
 * In all 0.93 bytes a page. `free` and `zero` follow from `states`, and the summaries from them.
 */
struct tables {
    page_t capacity; /* a multiple of CHUNK_PAGES */
    uint32_t levels;
    uint8_t *states;
    uint64_t *free, *zero, *idle;
    uint64_t *summaries[CLASSES][LEVELS_MAX];
};

/* Where a summary's numbers lie: pages that are free at the start, most that are in a row, those at the end. */
struct summary {
    uint32_t prefix, longest, suffix;
};

extern struct tables tables;

/* Pages that were freed last, which only their states call free. Programs often map again what they have just
 * unmapped, and then neither bits nor summaries change. */
struct recent {
    page_t start, end;
};
extern struct recent recent;

/* tables.c */
size_t tables_size(page_t capacity);
void tables_place(struct tables *tables, page_t capacity, void *block);
void tables_init(void);
/* Where the states of the first tables lie, which take no pages. */
void *first_states(void);
void tables_move(page_t capacity, void *block);
/* The first page from `page` on, below `end`, whose state is another one. */
page_t states_end(page_t page, page_t end);
void states_set(page_t start, page_t end, unsigned state);
/* Writes states alone. */
void states_fill(page_t start, page_t end, unsigned state);
/* Brings bits up to date with `recent`; summaries stay behind, which `tables_behind` says. */
void tables_note_recent(void);
extern bool tables_behind;
/* Brings bits and summaries up to date. */
RARE void tables_settle_recent(void);
/* The first page at or above `from` of the lowest run of `count` pages. */
page_t run_first(enum class class, page_t from, page_t count);
/* The first page of the highest run of `count` pages below `to`. */
page_t run_last(enum class class, page_t to, page_t count);
/* The end of the run that `start` is in. */
page_t run_end(enum class class, page_t start);
/* The start of the run that ends at `end`; `end` itself if there is none. */
page_t run_start(enum class class, page_t end);
const char *tables_check(page_t pages);
uint64_t class_word(enum class class, page_t word);

static inline bool state_is_free(unsigned state) { return state <= PAGEMAN_FREE_DISCARDED; }
static inline bool state_is_zero(unsigned state) {
    return state == PAGEMAN_FREE_ZERO || state == PAGEMAN_FREE_DISCARDED || state == PAGEMAN_RESERVED_ZERO;
}
static inline bool state_is_mapped(unsigned state) { return state >= PAGEMAN_RESERVED_DIRTY; }

/* manager.c */
struct manager {
    bool started, active;
    bool is_used; /* by mmap: what malloc has does not count */
    enum pageman_policy policy;
    page_t pages;  /* below the end of memory, as far as known */
    page_t first;  /* the lowest that was the manager's from the start */
    page_t free, zero, foreign, internal, mapped_max;
    /* The break, and where its pages end; 0 before the first. */
    uintptr_t break_at, break_end, break_start;
    /* Of decay: calls and pages since the last step, calls that make the next one due, and steps to leave out because
     * the host declines. */
    uint32_t calls_since, calls_due, skip, skip_next;
    uint32_t freed_since;
    struct pageman_statistics counts;
};
extern struct manager manager;

/* Begins, or takes notice of what a host did to a copy of memory. */
RARE void manager_prepare(void);
/* Takes notice of memory that others have grown. */
RARE void manager_find_foreign(void);
/* Makes memory reach up to `end`. */
bool manager_grow_to(page_t end);
/* Finds `count` free pages in a row, or grows memory by them. */
page_t manager_find(page_t count, page_t alignment, bool zero);
/* Makes pages that can be used of any: `zero` clears what is not known to be zero. */
void manager_take(page_t start, page_t end, unsigned state, bool zero);
/* Frees mapped pages; those that are free stay so. */
void manager_release(page_t start, page_t end);
/* Pages for the manager's own records, and back. */
void *manager_own(page_t count);
void manager_disown(void *address, page_t count);
/* Takes what lies between the break and the end of its page, if that is at least so much: it is the caller's for good, and
 * the break goes on behind it. Returns how many bytes that are, or 0. */
size_t manager_take_rest(size_t least, void **memory);
/* Writes zeros. */
RARE void manager_clear(page_t start, page_t end);
/* What is wrong with a place and length for mmap, within manager_enter. */
RARE int manager_check_place(const void *address, size_t length, int flags);

/* The port: port_wasm.c, or port_native.c for tests. */
void *port_base(void);               /* where page 0 lies */
page_t port_pages(void);             /* whole pages below the end of memory */
page_t port_grow(page_t pages);       /* by so many, which read zero: the first of them, or PAGE_NONE */
page_t port_growth_unit(void);       /* pages that memory grows by at least */
void port_first_heap(uintptr_t *start, uintptr_t *end); /* offsets of what the linker left free, untouched */
int port_discard(void *address, size_t length); /* 0 released, 1 only zeroed, -1 declined */
void port_lock(void);
void port_unlock(void);

static inline void *page_address(page_t page) {
    return (char *)port_base() + ((uintptr_t)page << PAGEMAN_PAGE_SHIFT);
}

/* ---- What every call does, here so that compilers put it in its place ---- */

static inline unsigned state_of(page_t page) {
    if (page >= tables.capacity) return PAGEMAN_FOREIGN;
    return tables.states[page / 2] >> (page % 2 * 4) & 15;
}

static inline void state_set_one(page_t page, unsigned state) {
    uint8_t *pair = &tables.states[page / 2];
    unsigned shift = page % 2 * 4;
    *pair = (uint8_t)((*pair & ~(15u << shift)) | state << shift);
}

static inline void states_write(page_t start, page_t end, unsigned state) {
    if (end - start == 1) state_set_one(start, state);
    else states_fill(start, end, state);
}

static inline void tables_settle(void) {
    if (recent.start < recent.end || tables_behind) tables_settle_recent();
}

/* Makes pages free and dirty. Bits and summaries follow when they are looked at, or other pages change. */
static inline void states_free(page_t start, page_t end) {
    if (start >= end) return;
    if (recent.start < recent.end) tables_note_recent();
    states_write(start, end, PAGEMAN_FREE_DIRTY);
    recent = (struct recent){start, end};
}

/* Alignments are powers of two, and to divide takes longer than all else that a call does. */
static inline bool is_aligned(page_t page, page_t alignment) { return (page & (alignment - 1)) == 0; }

/* Makes the pages that were freed last, if there are so many and nothing has looked since, of this state. */
static inline page_t recent_take(page_t count, page_t alignment, unsigned state) {
    page_t start = recent.start;
    if (recent.end - start != count || !is_aligned(start, alignment)) return PAGE_NONE;
    recent = (struct recent){0, 0};
    states_write(start, start + count, state);
    return start;
}

static inline struct summary unpack(uint64_t packed) {
    const uint32_t mask = (1u << 21) - 1;
    return (struct summary){(uint32_t)packed & mask, (uint32_t)(packed >> 21) & mask, (uint32_t)(packed >> 42) & mask};
}

/* Pages that were freed last may not count yet. */
static inline page_t longest_run(enum class class) {
    return unpack(tables.summaries[class][tables.levels - 1][0]).longest;
}

/* No access moves past a change of `sequence`, where atomic operations are lowered to plain ones, too. */
static inline void sequence_set(uint32_t number) {
    __asm__ __volatile__("" : : : "memory");
    __atomic_store_n(&pageman_page_map.sequence, number, __ATOMIC_SEQ_CST);
    __asm__ __volatile__("" : : : "memory");
}

/* Every call begins and ends by these. The tables may change between them, so `sequence` is odd: then a host sees that it
 * came into the middle. Within another call it is odd already, and stays so. It is read once a call: what is stored
 * and read again at once costs more than all else here. */
static inline uint32_t manager_enter(void) {
    port_lock();
    uint32_t before = __atomic_load_n(&pageman_page_map.sequence, __ATOMIC_RELAXED);
    if (before % 2 == 0) sequence_set(before + 1);
    if (!manager.started || pageman_page_map.cleared) manager_prepare();
    return before;
}

/* `before` is what entering has returned. */
static inline void manager_leave(uint32_t before) {
    if (before % 2 == 0) {
        pageman_page_map.pages = manager.pages;
        pageman_page_map.states = (uintptr_t)tables.states;
        sequence_set(before + 2);
    }
    port_unlock();
}

static inline void manager_sync(void) {
    if (port_pages() != manager.pages) manager_find_foreign();
}

static inline void manager_tick(void) {
    if (++manager.calls_since >= manager.calls_due || manager.freed_since >= DECAY_PAGES) pageman_decay();
}

/* So many bytes in pages; false if there are none, or more than an address space has. */
static inline bool manager_pages_of(size_t length, page_t *count) {
    *count = 0;
    uint64_t pages = ((uint64_t)length + PAGEMAN_PAGE_SIZE - 1) >> PAGEMAN_PAGE_SHIFT;
    if (length == 0 || pages > PAGES_MAX || (uint64_t)length > UINT64_MAX - PAGEMAN_PAGE_SIZE) return false;
    *count = (page_t)pages;
    return true;
}

/* The pages of a range of bytes from a page's start on; false if it does not lie in an address space. */
static inline bool manager_range(uintptr_t address, size_t length, page_t *start, page_t *end) {
    *start = *end = 0;
    uintptr_t offset = address - (uintptr_t)port_base();
    if (offset % PAGEMAN_PAGE_SIZE || (uint64_t)offset > (uint64_t)(PAGES_MAX - 1) << PAGEMAN_PAGE_SHIFT)
        return false;
    const uint64_t limit = (uint64_t)PAGES_MAX << PAGEMAN_PAGE_SHIFT;
    if ((uint64_t)length > limit || offset + (uint64_t)length > limit) return false;
    *start = (page_t)(offset >> PAGEMAN_PAGE_SHIFT);
    *end = (page_t)((offset + (uint64_t)length + (PAGEMAN_PAGE_SIZE - 1)) >> PAGEMAN_PAGE_SHIFT);
    return true;
}

/* Takes the pages that were freed last, if there are so many, and no others would be better. */
static inline page_t manager_take_recent(page_t count, page_t alignment, unsigned state, bool zero) {
    if (zero && longest_run(CLASS_ZERO) >= count) return PAGE_NONE;
    page_t page = recent_take(count, alignment, state == PAGEMAN_RESERVED_ZERO ? PAGEMAN_RESERVED_DIRTY : state);
    if (page != PAGE_NONE && zero) manager_clear(page, page + count);
    return page;
}

#endif
