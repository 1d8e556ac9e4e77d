/* The manager: where pages come from, what they become, and when they go back to the host. */
#include "internal.h"

#define PAGES_OF(bytes) ((page_t)(((uint64_t)(bytes) + PAGEMAN_PAGE_SIZE - 1) >> PAGEMAN_PAGE_SHIFT))

/* Memory grows by this much at least, and by a sixteenth of what it is, unless that is refused. */
#define GROWTH_MIN PAGES_OF(2 << 20)
/* Below this it is not worth a call of the host. */
#define DISCARD_MIN PAGES_OF(64 << 10)
/* A step of decay comes after so many calls that change pages, more of them if there are more words to look at. */
#define DECAY_CALLS 256
#define DECAY_SKIP_MAX 64
/* Best fit chooses among so many runs: more would take longer, and fragment no less. */
#define BEST_OF 8
/* With two ends, shorter runs come from below. */
#define SHORT_RUN 16
/* By length, runs from this many pages on are the lowest that is long enough. Programs map more than they need of these, to trim
 * it to an alignment: best fit leaves them runs that are as long as what was trimmed, which is too short for the next. */
#define LONG_RUN 8

struct manager manager;

struct pageman_page_map pageman_page_map = {
    .magic = PAGEMAN_MAGIC, .version = 1, .page_shift = PAGEMAN_PAGE_SHIFT, .bits = 4};

/* ---- Memory that is there ---- */

/* Says what pages are that have been foreign until now. */
static void found(page_t start, page_t end, unsigned state) {
    if (start >= end) return;
    if (state == PAGEMAN_FOREIGN) manager.foreign += end - start;
    if (state == PAGEMAN_INTERNAL) manager.internal += end - start;
    states_set(start, end, state);
}

/* Where `by` more pages begin, and the end of memory then; what others grew before them becomes foreign. */
static bool grow_memory(page_t by, page_t *start, page_t *end) {
    page_t unit = port_growth_unit(), pages = port_pages();
    page_t limit = pages < PAGES_USABLE ? PAGES_USABLE - pages : 0;
    if (by > limit) return false;
    by = (by + unit - 1) / unit * unit;
    if (by > limit) return false;
    *start = port_grow(by);
    if (*start == PAGE_NONE) return false;
    *end = *start + by;
    manager.counts.grown_pages += by;
    return true;
}

/* The least capacity of larger tables that tell of `end` pages, and of their own where memory grows for them, and how many pages they
 * take. False if none are so large. */
static bool larger_tables(page_t end, page_t *capacity, page_t *pages) {
    *capacity = tables.capacity;
    do {
        *capacity = *capacity <= PAGES_MAX / 4 ? *capacity * 4 : PAGES_MAX;
        *pages = PAGES_OF(tables_size(*capacity));
    } while (*capacity < PAGES_MAX && *capacity < end + *pages + port_growth_unit());
    return end <= *capacity;
}

/* Makes the tables as large as `end` needs. The block for them comes from free pages, else from memory that
 * is grown for it; then memory's end has moved. */
static bool make_room(page_t end) {
    page_t capacity, pages;
    if (!larger_tables(end, &capacity, &pages)) return false;

    bool first = tables.states == first_states();
    page_t old = first ? 0 : (page_t)(((char *)tables.states - (char *)port_base()) >> PAGEMAN_PAGE_SHIFT);
    page_t old_pages = PAGES_OF(tables_size(tables.capacity));
    page_t block = run_first(CLASS_FREE, 0, pages);
    if (block != PAGE_NONE) {
        found(block, block + pages, PAGEMAN_INTERNAL);
        tables_move(capacity, page_address(block));
    } else {
        page_t grown_end;
        if (!grow_memory(pages, &block, &grown_end)) return false;
        tables_move(capacity, page_address(block));
        found(manager.pages, block, PAGEMAN_FOREIGN);
        found(block, block + pages, PAGEMAN_INTERNAL);
        found(block + pages, grown_end, PAGEMAN_FREE_ZERO);
        manager.pages = grown_end;
    }
    if (!first) {
        manager.internal -= old_pages;
        states_set(old, old + old_pages, PAGEMAN_FREE_DIRTY);
    }
    return true;
}

void manager_find_foreign(void) {
    page_t pages = port_pages();
    /* Without tables for them, pages count as foreign all the same. */
    if (pages > tables.capacity && !make_room(pages)) pages = tables.capacity;
    if (pages > manager.pages) {
        found(manager.pages, pages, PAGEMAN_FOREIGN);
        manager.pages = pages;
    }
}

bool manager_grow_to(page_t end) {
    manager_sync();
    if (end <= manager.pages) return true;
    if (end > PAGES_USABLE || (end > tables.capacity && !make_room(end))) return false;
    if (end <= manager.pages) return true;
    page_t start, grown_end;
    if (!grow_memory(end - manager.pages, &start, &grown_end)) return false;
    if (grown_end > tables.capacity) {
        /* Others have grown it in between, or by more than there is room for: nothing is lost but pages. */
        manager_sync();
        return end <= manager.pages;
    }
    found(manager.pages, start, PAGEMAN_FOREIGN);
    found(start, grown_end, PAGEMAN_FREE_ZERO);
    manager.pages = grown_end;
    return true;
}

static void start(void) {
    manager.started = manager.active = true;
    manager.skip_next = 1;
    manager.calls_due = DECAY_CALLS;
    manager.policy = PAGEMAN_BY_LENGTH;
    uintptr_t heap, heap_end;
    port_first_heap(&heap, &heap_end);
    page_t pages = port_pages();
    page_t first = PAGES_OF(heap), end = (page_t)((uint64_t)heap_end >> PAGEMAN_PAGE_SHIFT);
    tables_init();
    if (end > pages) end = pages;
    if (end > PAGES_USABLE) end = PAGES_USABLE;
    if (first > end) first = end;
    if (heap && heap < heap_end) {
        manager.break_start = manager.break_at = heap;
        manager.break_end = (uintptr_t)first << PAGEMAN_PAGE_SHIFT;
        if (manager.break_end < heap) manager.break_start = manager.break_at = manager.break_end = 0;
    }
    page_t tables_at = end;
    if (end > tables.capacity) {
        page_t capacity, taken;
        bool has_room = larger_tables(end, &capacity, &taken) && end - first >= taken;
        /* Larger tables lie at the heap's end. Without room for them it is foreign, as what others have grown. */
        tables_at = has_room ? end - taken : 0;
        if (has_room) tables_move(capacity, page_address(tables_at));
        else first = end = 0;
    }
    manager.foreign = manager.first = first;
    manager.pages = end;
    found(first, tables_at, PAGEMAN_FREE_ZERO);
    found(tables_at, end, PAGEMAN_INTERNAL);
    manager_sync();
}

/* Free pages read zero since a host has left them out of a copy of memory, which this is. */
static void note_cleared(void) {
    pageman_page_map.cleared = 0;
    for (page_t page = 0; page < manager.pages;) {
        page_t next = states_end(page, manager.pages);
        if (state_of(page) == PAGEMAN_FREE_DIRTY) states_set(page, next, PAGEMAN_FREE_ZERO);
        page = next;
    }
}

void manager_prepare(void) {
    if (!manager.started) start();
    if (pageman_page_map.cleared) note_cleared();
}

/* ---- Finding pages ---- */

static page_t align_up(page_t page, page_t alignment) {
    uint64_t up = ((uint64_t)page + alignment - 1) & ~((uint64_t)alignment - 1);
    return up > PAGES_MAX ? PAGES_MAX : (page_t)up;
}

static page_t find_lowest(enum class class, page_t count, page_t alignment) {
    for (page_t from = 0;;) {
        page_t page = run_first(class, from, count);
        if (page == PAGE_NONE || is_aligned(page, alignment)) return page;
        from = align_up(page, alignment);
    }
}

static page_t find_highest(enum class class, page_t count, page_t alignment) {
    for (page_t to = tables.capacity;;) {
        page_t page = run_last(class, to, count);
        if (page == PAGE_NONE || is_aligned(page, alignment)) return page;
        to = (page & ~(alignment - 1)) + count;
    }
}

static page_t find_best(enum class class, page_t count, page_t alignment) {
    page_t best = PAGE_NONE, best_pages = PAGE_NONE;
    int seen = 0;
    for (page_t from = 0;;) {
        page_t page = seen < BEST_OF ? run_first(class, from, count) : PAGE_NONE;
        if (page == PAGE_NONE) return best;
        page_t end = run_end(class, page), aligned = align_up(page, alignment);
        if ((uint64_t)aligned + count <= end && end - page < best_pages) {
            best = aligned;
            best_pages = end - page;
            if (best_pages == count) return best;
        }
        if (best != PAGE_NONE) seen++;
        from = end;
    }
}

static page_t find(page_t count, page_t alignment, bool zero) {
    const enum class classes[] = {zero ? CLASS_ZERO : CLASS_DIRTY, CLASS_FREE};
    for (int i = 0; i < 2; i++) {
        if (longest_run(classes[i]) < count) continue;
        page_t page;
        if (manager.policy == PAGEMAN_BEST_FIT || (manager.policy == PAGEMAN_BY_LENGTH && count < LONG_RUN)) {
            page = find_best(classes[i], count, alignment);
        } else if (manager.policy == PAGEMAN_TWO_ENDS && count >= SHORT_RUN) {
            page = find_highest(classes[i], count, alignment);
        } else {
            page = find_lowest(classes[i], count, alignment);
        }
        if (page != PAGE_NONE) return page;
    }
    return PAGE_NONE;
}

page_t manager_find(page_t count, page_t alignment, bool zero) {
    tables_settle();
    page_t page = find(count, alignment, zero);
    /* Growing can need tables, and these take pages, so the end is looked at again. */
    for (int turn = 0; page == PAGE_NONE && turn < 4; turn++) {
        manager_sync();
        uint64_t begin = align_up(run_start(CLASS_FREE, manager.pages), alignment), end = begin + count;
        if (end > PAGES_USABLE) return PAGE_NONE;
        if (end > manager.pages) {
            uint64_t more = end - manager.pages;
            if (more < GROWTH_MIN) more = GROWTH_MIN;
            if (more < manager.pages / 16) more = manager.pages / 16;
            uint64_t generous = manager.pages + more < PAGES_USABLE ? manager.pages + more : PAGES_USABLE;
            if (!manager_grow_to((page_t)generous) && !manager_grow_to((page_t)end)) return PAGE_NONE;
        }
        page = find(count, alignment, zero);
    }
    return page;
}

/* ---- What pages become ---- */

/* By memory.fill, which compilers before LLVM 20 use only where they are told to: their loops take more than twice as long. */
#ifdef __wasm__
__attribute__((target("bulk-memory")))
#endif
void manager_clear(page_t start, page_t end) {
    __builtin_memset(page_address(start), 0, (size_t)(end - start) << PAGEMAN_PAGE_SHIFT);
    manager.counts.cleared_pages += end - start;
}

static void note_mapped(void) {
    page_t mapped = manager.pages - manager.free - manager.foreign - manager.internal;
    if (mapped > manager.mapped_max) manager.mapped_max = mapped;
}

void manager_take(page_t start, page_t end, unsigned state, bool zero) {
    bool reserve = state == PAGEMAN_RESERVED_ZERO;
    if (reserve || zero) {
        for (page_t page = start; page < end;) {
            page_t next = states_end(page, end);
            bool is_zero = state_is_zero(state_of(page));
            if (reserve) {
                states_set(page, next, is_zero ? PAGEMAN_RESERVED_ZERO : PAGEMAN_RESERVED_DIRTY);
            } else if (is_zero) {
                manager.counts.spared_pages += next - page;
            } else {
                manager_clear(page, next);
            }
            page = next;
        }
    }
    if (!reserve) states_set(start, end, state);
    note_mapped();
}

void manager_release(page_t start, page_t end) {
    for (page_t page = start; page < end;) {
        page_t next = states_end(page, end);
        unsigned state = state_of(page);
        if (state_is_mapped(state)) {
            if (state == PAGEMAN_RESERVED_ZERO) states_set(page, next, PAGEMAN_FREE_ZERO);
            else states_free(page, next);
            manager.freed_since += next - page;
        }
        page = next;
    }
}

void *manager_own(page_t count) {
    page_t page = manager_find(count, 1, false);
    if (page == PAGE_NONE) return 0;
    found(page, page + count, PAGEMAN_INTERNAL);
    return page_address(page);
}

void manager_disown(void *address, page_t count) {
    page_t page = (page_t)(((uintptr_t)address - (uintptr_t)port_base()) >> PAGEMAN_PAGE_SHIFT);
    manager.internal -= count;
    states_set(page, page + count, PAGEMAN_FREE_DIRTY);
}

/* ---- Giving back ---- */

/* Offers free dirty pages to the host. False if it does not want them. */
static bool offer(page_t start, page_t end) {
    page_t pages = end - start;
    manager.counts.discards++;
    int status = port_discard(page_address(start), (size_t)pages << PAGEMAN_PAGE_SHIFT);
    if (status == 0) {
        states_set(start, end, PAGEMAN_FREE_DISCARDED);
        manager.counts.released_pages += pages;
    } else if (status == 1) {
        states_set(start, end, PAGEMAN_FREE_ZERO);
        manager.counts.zeroed_pages += pages;
    } else {
        manager.counts.declined_pages += pages;
        return false;
    }
    return true;
}

/* The bits of the pages that are to be offered, of 64. */
static uint64_t offered(page_t word, bool all) {
    uint64_t dirty = class_word(CLASS_DIRTY, word);
    return all ? dirty : dirty & tables.idle[word];
}

/* The first page from `from` on that is to be offered, or that is not; the last word's end if there is none. */
static page_t next_offered(page_t from, bool all, bool is) {
    page_t words = (manager.pages + 63) / 64;
    for (page_t word = from / 64; word < words; word++) {
        uint64_t bits = is ? offered(word, all) : ~offered(word, all);
        if (word == from / 64) bits &= ~(uint64_t)0 << from % 64;
        if (bits) return word * 64 + (page_t)__builtin_ctzll(bits);
    }
    return words * 64;
}

/* Offers every run of free dirty pages, only those that are idle or all of them. A host that declines a run is
 * not asked for shorter ones. */
static void offer_runs(bool all) {
    tables_settle();
    bool declined = false, taken = false;
    page_t least = DISCARD_MIN;
    for (page_t start, end = 0; (start = next_offered(end, all, true)) < manager.pages;) {
        end = next_offered(start, all, false);
        if (end - start < least) continue;
        if (offer(start, end)) {
            taken = true;
        } else {
            declined = true;
            least = end - start + 1;
        }
    }
    if (declined && !taken) {
        /* A host that declines is asked less and less often. */
        manager.skip = manager.skip_next;
        if (manager.skip_next < DECAY_SKIP_MAX) manager.skip_next *= 2;
    } else {
        manager.skip_next = 1;
    }
}

void pageman_decay(void) {
    uint32_t before = manager_enter();
    if (manager.skip) {
        manager.skip--;
    } else {
        offer_runs(false);
    }
    /* What is idle matters at the next step only if the host is asked then. */
    if (!manager.skip) {
        tables_settle();
        for (page_t word = 0; word < (manager.pages + 63) / 64; word++)
            tables.idle[word] = class_word(CLASS_DIRTY, word);
    }
    manager.calls_since = 0;
    manager.freed_since = 0;
    page_t words = manager.pages / 64;
    manager.calls_due = words > DECAY_CALLS ? words : DECAY_CALLS;
    manager_leave(before);
}

size_t pageman_trim(void) {
    uint32_t before = manager_enter();
    uint64_t had = manager.counts.released_pages;
    offer_runs(true);
    size_t released = (size_t)(manager.counts.released_pages - had);
    manager_leave(before);
    return released;
}

/* ---- The manager's own names ---- */

void *pageman_map(size_t length, size_t alignment, unsigned wish) {
    bool zero;
    return pageman_map_known(length, alignment, wish, &zero);
}

void *pageman_map_known(size_t length, size_t alignment, unsigned wish, bool *zero) {
    page_t count, aligned = 1;
    if (!manager_pages_of(length, &count) || wish > PAGEMAN_ZERO || (alignment & (alignment - 1))) return 0;
    if (alignment > PAGEMAN_PAGE_SIZE) aligned = (page_t)(alignment >> PAGEMAN_PAGE_SHIFT);
    uint32_t before = manager_enter();
    void *address = 0;
    page_t page = manager_take_recent(count, aligned, PAGEMAN_USED | 3, wish == PAGEMAN_ZERO);
    *zero = wish == PAGEMAN_ZERO;
    if (page == PAGE_NONE) {
        page = manager_find(count, aligned, wish == PAGEMAN_ZERO);
        if (page != PAGE_NONE) {
            *zero |= run_end(CLASS_ZERO, page) >= page + count;
            manager_take(page, page + count, PAGEMAN_USED | 3, wish == PAGEMAN_ZERO);
        }
    }
    if (page != PAGE_NONE) {
        manager.counts.maps++;
        address = page_address(page);
        manager_tick();
    }
    manager_leave(before);
    return address;
}

int pageman_unmap(void *address, size_t length) { return pageman_munmap(address, length); }

unsigned pageman_state_of(const void *address) {
    uint32_t before = manager_enter();
    manager_sync();
    uintptr_t offset = (uintptr_t)address - (uintptr_t)port_base();
    uint64_t page = (uint64_t)offset >> PAGEMAN_PAGE_SHIFT;
    unsigned state = page >= port_pages() ? PAGEMAN_BEYOND : state_of((page_t)page);
    manager_leave(before);
    return state;
}

size_t pageman_page_size(void) { return PAGEMAN_PAGE_SIZE; }

size_t pageman_preferred_size(void) {
    return PAGEMAN_PAGE_SIZE < 64 << 10 ? (size_t)64 << 10 : PAGEMAN_PAGE_SIZE;
}

bool pageman_active(void) {
    uint32_t before = manager_enter();
    bool active = manager.active;
    manager_leave(before);
    return active;
}

int pageman_set_active(bool active) {
    uint32_t before = manager_enter();
    int error = PAGEMAN_OK;
    if (manager.is_used && active != manager.active) error = PAGEMAN_BUSY;
    else manager.active = active;
    manager_leave(before);
    return error;
}

void pageman_set_policy(enum pageman_policy policy) {
    uint32_t before = manager_enter();
    manager.policy = policy;
    manager_leave(before);
}

/* ---- The break ---- */

/* Moves the break up within free pages right behind it. */
static bool extend_break(uint64_t at) {
    if (at > (uint64_t)(PAGES_MAX - 1) << PAGEMAN_PAGE_SHIFT) return false;
    page_t from = (page_t)(manager.break_end >> PAGEMAN_PAGE_SHIFT), to = PAGES_OF(at);
    if (!manager_grow_to(to)) return false;
    if (run_end(CLASS_FREE, from) < to) return false;
    manager_take(from, to, PAGEMAN_USED | 3, true);
    manager.break_end = (uintptr_t)to << PAGEMAN_PAGE_SHIFT;
    return true;
}

static int move_break(ptrdiff_t increment, void **previous) {
    uintptr_t at = manager.break_at;
    if (increment < 0) {
        uintptr_t down = (uintptr_t)0 - (uintptr_t)increment;
        if (down > at - manager.break_start) return PAGEMAN_INVALID;
        manager.break_at = at - down;
        page_t end = PAGES_OF(manager.break_at), old = (page_t)(manager.break_end >> PAGEMAN_PAGE_SHIFT);
        manager_release(end, old);
        manager.break_end = (uintptr_t)end << PAGEMAN_PAGE_SHIFT;
    } else {
        uint64_t wanted = (uint64_t)at + (uintptr_t)increment;
        if (manager.break_end == 0 || (wanted > manager.break_end && !extend_break(wanted))) {
            page_t count;
            if (!manager_pages_of(increment ? (size_t)increment : 1, &count)) return PAGEMAN_NO_MEMORY;
            page_t page = manager_find(count, 1, true);
            if (page == PAGE_NONE) return PAGEMAN_NO_MEMORY;
            manager_take(page, page + count, PAGEMAN_USED | 3, true);
            at = manager.break_start = (uintptr_t)page << PAGEMAN_PAGE_SHIFT;
            manager.break_end = (uintptr_t)(page + count) << PAGEMAN_PAGE_SHIFT;
            wanted = (uint64_t)at + (uintptr_t)increment;
        }
        manager.break_at = (uintptr_t)wanted;
    }
    *previous = (char *)port_base() + at;
    return PAGEMAN_OK;
}

int pageman_sbrk(ptrdiff_t increment, void **previous) {
    uint32_t before = manager_enter();
    int error = move_break(increment, previous);
    manager_tick();
    manager_leave(before);
    return error;
}

size_t manager_take_rest(size_t least, void **memory) {
    uint32_t before = manager_enter();
    size_t rest = manager.break_end - manager.break_at;
    if (rest < least) {
        rest = 0;
    } else {
        *memory = (char *)port_base() + manager.break_at;
        manager.break_start = manager.break_at = manager.break_end;
    }
    manager_leave(before);
    return rest;
}
