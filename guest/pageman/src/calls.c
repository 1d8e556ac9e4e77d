/* POSIX's calls on memory, without errno and files: what they check, in Linux's order, and what they do. */
#include "internal.h"

/* The values of <sys/mman.h>, which this file does without: it needs no C library. */
enum { SHARED = 1, PRIVATE = 2, TYPE = 15, FIXED = 0x10, NO_REPLACE = 0x100000 };
enum { UNINITIALIZED = 0x4000000, ALIGN_SHIFT = 26 };
enum { MAY_MOVE = 1, MOVE_FIXED = 2 };
enum { DONT_NEED = 4, FREE = 8 };

static unsigned state_for(int protection) {
    protection &= 7;
    return protection ? PAGEMAN_USED | (unsigned)protection : PAGEMAN_RESERVED_ZERO;
}

/* Whether every page of a range is free or mapped, so that it may be mapped or unmapped. */
static bool all_ours(page_t start, page_t end) {
    for (page_t page = start; page < end; page = states_end(page, end)) {
        unsigned state = state_of(page);
        if (state == PAGEMAN_FOREIGN || state == PAGEMAN_INTERNAL) return false;
    }
    return true;
}

/* The first page of a range that is not mapped, or its end. */
static page_t mapped_end(page_t start, page_t end) {
    page_t page = start;
    while (page < end && state_is_mapped(state_of(page))) page = states_end(page, end);
    return page;
}

int manager_check_place(const void *address, size_t length, int flags) {
    page_t count, start, end;
    if (length == 0) return PAGEMAN_INVALID;
    if (!manager_pages_of(length, &count)) return PAGEMAN_NO_MEMORY;
    if (!(flags & (FIXED | NO_REPLACE))) return PAGEMAN_OK;
    uintptr_t offset = (uintptr_t)address - (uintptr_t)port_base();
    if ((uint64_t)offset + ((uint64_t)count << PAGEMAN_PAGE_SHIFT) > (uint64_t)PAGES_MAX << PAGEMAN_PAGE_SHIFT)
        return PAGEMAN_NO_MEMORY;
    if (!manager_range((uintptr_t)address, length, &start, &end)) return PAGEMAN_INVALID;
    if (flags & NO_REPLACE) {
        manager_sync();
        if (run_end(CLASS_FREE, start) < (end < manager.pages ? end : manager.pages) && start < manager.pages)
            return PAGEMAN_EXISTS;
    }
    return PAGEMAN_OK;
}

RARE static int map_fixed(void *address, page_t count, unsigned state, bool zero) {
    page_t start = (page_t)(((uintptr_t)address - (uintptr_t)port_base()) >> PAGEMAN_PAGE_SHIFT);
    page_t end = start + count;
    if (!manager_grow_to(end) || !all_ours(start, end)) return PAGEMAN_NO_MEMORY;
    manager_take(start, end, state, zero);
    return PAGEMAN_OK;
}

RARE static int map_found(void **address, page_t count, page_t alignment, unsigned state, bool zero) {
    page_t page = manager_find(count, alignment, zero && state != PAGEMAN_RESERVED_ZERO);
    if (page == PAGE_NONE) return PAGEMAN_NO_MEMORY;
    manager_take(page, page + count, state, zero);
    *address = page_address(page);
    return PAGEMAN_OK;
}

/* A wish for a place is heard if the place is free. */
RARE static bool map_hint(void **address, page_t count, page_t alignment, unsigned state, bool zero) {
    uintptr_t offset = (uintptr_t)*address - (uintptr_t)port_base();
    uint64_t hint = ((uint64_t)offset + PAGEMAN_PAGE_SIZE / 2) >> PAGEMAN_PAGE_SHIFT;
    if (hint + count > manager.pages || !is_aligned((page_t)hint, alignment) || run_end(CLASS_FREE, (page_t)hint) < hint + count) return false;
    manager_take((page_t)hint, (page_t)hint + count, state, zero);
    *address = page_address((page_t)hint);
    return true;
}

static inline int map_anywhere(void **address, page_t count, page_t alignment, unsigned state, bool zero) {
    if (*address && map_hint(address, count, alignment, state, zero)) return PAGEMAN_OK;
    /* What may not be accessed is cleared when it first may be, if ever. */
    page_t page = manager_take_recent(count, alignment, state, zero && state != PAGEMAN_RESERVED_ZERO);
    if (page == PAGE_NONE) return map_found(address, count, alignment, state, zero);
    *address = page_address(page);
    return PAGEMAN_OK;
}

int pageman_mmap(void **address, size_t length, int protection, int flags) {
    page_t count;
    bool counted = manager_pages_of(length, &count), placed = flags & (FIXED | NO_REPLACE);
    unsigned shift = (unsigned)flags >> ALIGN_SHIFT & 31;
    /* The bit of MAP_UNINITIALIZED is the lowest of the alignment, and 2 bytes are none. */
    bool zero = shift != UNINITIALIZED >> ALIGN_SHIFT;
    page_t alignment = shift > PAGEMAN_PAGE_SHIFT ? (page_t)1 << (shift - PAGEMAN_PAGE_SHIFT) : 1;
    unsigned state = state_for(protection);
    uint32_t before = manager_enter();
    int error = counted && !placed ? PAGEMAN_OK : manager_check_place(*address, length, flags);
    if (error == PAGEMAN_OK && (flags & TYPE) != SHARED && (flags & TYPE) != PRIVATE) error = PAGEMAN_INVALID;
    if (error == PAGEMAN_OK) {
        error = placed ? map_fixed(*address, count, state, zero)
                       : map_anywhere(address, count, alignment, state, zero);
    }
    if (error == PAGEMAN_OK) {
        manager.is_used = true;
        manager.counts.maps++;
        manager_tick();
    }
    manager_leave(before);
    return error;
}

/* Unmaps pages of several states, if all are the manager's. */
RARE static int unmap_mixed(page_t start, page_t end) {
    if (!all_ours(start, end)) return PAGEMAN_INVALID;
    manager_release(start, end);
    return PAGEMAN_OK;
}

int pageman_munmap(void *address, size_t length) {
    page_t start, end;
    if (length == 0 || !manager_range((uintptr_t)address, length, &start, &end)) return PAGEMAN_INVALID;
    uint32_t before = manager_enter();
    manager_sync();
    int error = PAGEMAN_OK;
    page_t known = end < manager.pages ? end : manager.pages;
    if (start < known) {
        bool same = known - start == 1 || states_end(start, known) == known;
        if (same && state_of(start) >= PAGEMAN_USED) {
            states_free(start, known);
            manager.freed_since += known - start;
        } else {
            error = unmap_mixed(start, known);
        }
        if (error == PAGEMAN_OK) {
            manager.counts.unmaps++;
            manager_tick();
        }
    }
    manager_leave(before);
    return error;
}

int pageman_mprotect(void *address, size_t length, int protection) {
    page_t start, end;
    if ((uintptr_t)address % PAGEMAN_PAGE_SIZE) return PAGEMAN_INVALID;
    if (length == 0) return PAGEMAN_OK;
    if (protection & ~7) return PAGEMAN_INVALID;
    if (!manager_range((uintptr_t)address, length, &start, &end)) return PAGEMAN_NO_MEMORY;
    uint32_t before = manager_enter();
    page_t mapped = mapped_end(start, end);
    for (page_t page = start; page < mapped;) {
        page_t next = states_end(page, mapped);
        bool reserved = state_of(page) < PAGEMAN_USED;
        if (!reserved) {
            states_set(page, next, PAGEMAN_USED | (unsigned)protection);
        } else if (protection) {
            /* The first access that is given: now the promise of zeros is due. */
            manager_take(page, next, PAGEMAN_USED | (unsigned)protection, true);
        }
        page = next;
    }
    manager_leave(before);
    return mapped == end ? PAGEMAN_OK : PAGEMAN_NO_MEMORY;
}

bool pageman_discard(void *address, size_t length) {
    page_t start, end;
    if (length == 0 || !manager_range((uintptr_t)address, length, &start, &end)) return false;
    uint32_t before = manager_enter();
    bool taken = false;
    if (mapped_end(start, end) == end) {
        manager.counts.discards++;
        int status = port_discard(address, (size_t)(end - start) << PAGEMAN_PAGE_SHIFT);
        taken = status == 0 || status == 1;
        *(status == 0 ? &manager.counts.released_pages
          : taken     ? &manager.counts.zeroed_pages
                      : &manager.counts.declined_pages) += end - start;
    }
    manager_leave(before);
    return taken;
}

/* Makes mapped pages read zero, by giving them back where the host takes them. */
static void drop_contents(page_t start, page_t end) {
    for (page_t page = start; page < end;) {
        page_t next = states_end(page, end);
        unsigned state = state_of(page);
        size_t bytes = (size_t)(next - page) << PAGEMAN_PAGE_SHIFT;
        if (state == PAGEMAN_RESERVED_DIRTY || state == PAGEMAN_RESERVED_ZERO || !state_is_mapped(state)) {
            page = next;
            continue;
        }
        int status = port_discard(page_address(page), bytes);
        manager.counts.discards++;
        if (status == 0) manager.counts.released_pages += next - page;
        else if (status == 1) manager.counts.zeroed_pages += next - page;
        if (status != 0 && status != 1) {
            manager.counts.declined_pages += next - page;
            manager.counts.cleared_pages += next - page;
            __builtin_memset(page_address(page), 0, bytes);
        }
        page = next;
    }
}

int pageman_madvise(void *address, size_t length, int advice) {
    page_t start, end;
    bool known = (advice >= 0 && advice <= DONT_NEED) || advice == FREE || (advice >= 14 && advice <= 17) ||
                 advice == 20 || advice == 21;
    if (!known || (uintptr_t)address % PAGEMAN_PAGE_SIZE) return PAGEMAN_INVALID;
    if (length == 0) return PAGEMAN_OK;
    if (!manager_range((uintptr_t)address, length, &start, &end)) return PAGEMAN_INVALID;
    uint32_t before = manager_enter();
    bool whole = mapped_end(start, end) == end;
    if (advice == DONT_NEED)
        drop_contents(start, end < manager.pages ? end : manager.pages);
    manager_leave(before);
    return whole ? PAGEMAN_OK : PAGEMAN_NO_MEMORY;
}

int pageman_mincore(void *address, size_t length, unsigned char *vector) {
    page_t start, end;
    if ((uintptr_t)address % PAGEMAN_PAGE_SIZE) return PAGEMAN_INVALID;
    if (length == 0) return PAGEMAN_OK;
    if (!manager_range((uintptr_t)address, length, &start, &end)) return PAGEMAN_NO_MEMORY;
    uint32_t before = manager_enter();
    bool whole = mapped_end(start, end) == end;
    for (page_t page = start; whole && page < end; page++) vector[page - start] = 1;
    manager_leave(before);
    return whole ? PAGEMAN_OK : PAGEMAN_NO_MEMORY;
}

/* Moves pages with their states and contents; what the new place has more is like the last page, and zero. */
static void move_pages(page_t from, page_t old, page_t to, page_t count) {
    page_t moved = old < count ? old : count;
    for (page_t page = 0; page < moved;) {
        page_t next = states_end(from + page, from + moved) - from;
        unsigned state = state_of(from + page);
        if (state >= PAGEMAN_USED) {
            __builtin_memcpy(page_address(to + page), page_address(from + page),
                             (size_t)(next - page) << PAGEMAN_PAGE_SHIFT);
            states_set(to + page, to + next, state);
        } else {
            manager_take(to + page, to + next, PAGEMAN_RESERVED_ZERO, false);
        }
        page = next;
    }
    if (count > old) {
        unsigned state = state_of(from + old - 1);
        manager_take(to + old, to + count, state < PAGEMAN_USED ? PAGEMAN_RESERVED_ZERO : state, true);
    }
    manager_release(from, from + old);
}

static int remap(void **address, page_t from, page_t old, page_t count, int flags, void *target) {
    if (mapped_end(from, from + old) != from + old) return PAGEMAN_NOT_MAPPED;
    if (flags & MOVE_FIXED) {
        page_t to = (page_t)(((uintptr_t)target - (uintptr_t)port_base()) >> PAGEMAN_PAGE_SHIFT);
        if (!manager_grow_to(to + count) || !all_ours(to, to + count)) return PAGEMAN_NO_MEMORY;
        manager_release(to, to + count);
        move_pages(from, old, to, count);
        *address = page_address(to);
        return PAGEMAN_OK;
    }
    if (count <= old) {
        manager_release(from + count, from + old);
        return PAGEMAN_OK;
    }
    page_t end = from + count;
    if (run_end(CLASS_FREE, from + old) < end && run_end(CLASS_FREE, from + old) >= manager.pages &&
        from + old <= manager.pages)
        manager_grow_to(end);
    if (end <= manager.pages && run_end(CLASS_FREE, from + old) >= end) {
        unsigned state = state_of(from + old - 1);
        manager_take(from + old, end, state < PAGEMAN_USED ? PAGEMAN_RESERVED_ZERO : state, true);
        return PAGEMAN_OK;
    }
    if (!(flags & MAY_MOVE)) return PAGEMAN_NO_MEMORY;
    page_t to = manager_find(count, 1, false);
    if (to == PAGE_NONE) return PAGEMAN_NO_MEMORY;
    move_pages(from, old, to, count);
    *address = page_address(to);
    return PAGEMAN_OK;
}

int pageman_mremap(void **address, size_t old_length, size_t new_length, int flags, void *target) {
    page_t from, from_end, count, to, to_end;
    if (flags & ~(MAY_MOVE | MOVE_FIXED) || (flags & MOVE_FIXED && !(flags & MAY_MOVE))) return PAGEMAN_INVALID;
    if ((uintptr_t)*address % PAGEMAN_PAGE_SIZE || old_length == 0 || new_length == 0) return PAGEMAN_INVALID;
    if (!manager_pages_of(new_length, &count)) return PAGEMAN_NO_MEMORY;
    if (!manager_range((uintptr_t)*address, old_length, &from, &from_end)) return PAGEMAN_NOT_MAPPED;
    if (flags & MOVE_FIXED) {
        if (!manager_range((uintptr_t)target, new_length, &to, &to_end)) return PAGEMAN_INVALID;
        if (to < from_end && from < to_end) return PAGEMAN_INVALID;
    } else if ((uint64_t)from + count > PAGES_MAX && !(flags & MAY_MOVE)) {
        return PAGEMAN_NO_MEMORY;
    }
    uint32_t before = manager_enter();
    int error = remap(address, from, from_end - from, count, flags, target);
    manager_tick();
    manager_leave(before);
    return error;
}
