/* The manager's rules, one by one: how memory grows, which pages are taken, what the check notices, what a small program pays,
 * what the switch does, and that what it says as JSON is JSON. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "common.h"
#include "port_native.h"

#define MIB ((size_t)1 << 20)
#define PAGE PAGEMAN_PAGE_SIZE
#define PAGES(bytes) ((page_t)((bytes) / PAGE))
/* What WebAssembly's memories grow by. */
#define UNIT ((size_t)64 << 10)

void *pageman_posix_mmap(void *, size_t, int, int, int, off_t);
int pageman_posix_munmap(void *, size_t);
int pageman_posix_mprotect(void *, size_t, int);
int pageman_posix_msync(void *, size_t, int);
int pageman_posix_madvise(void *, size_t, int);
int pageman_posix_posix_madvise(void *, size_t, int);
int pageman_posix_mincore(void *, size_t, unsigned char *);
int pageman_posix_mlock(const void *, size_t);
int pageman_posix_munlock(const void *, size_t);
void *pageman_posix_mremap(void *, size_t, size_t, int, ...);
void *pageman_posix_sbrk(intptr_t);

static struct pageman_statistics statistics(void) {
    struct pageman_statistics statistics;
    pageman_statistics(&statistics);
    return statistics;
}

static void check(void) {
    const char *wrong = pageman_check();
    if (wrong) fail_test("%s", wrong);
}

static char *map(size_t length, unsigned wish) {
    char *address = pageman_map(length, 0, wish);
    EXPECT(address);
    return address;
}

static void unmap(char *address, size_t length) { EXPECT(pageman_unmap(address, length) == PAGEMAN_OK); }

static char *end_of_memory(void) { return page_address(port_pages()); }

/* Begins with so much memory, all of which is mapped; returns the first page. */
static char *begin_full(size_t memory) {
    native_reset(PAGES(1024 * MIB), PAGES(memory), PAGE);
    size_t length = statistics().free_pages * PAGE;
    char *all = map(length, PAGEMAN_ANY);
    /* Large tables lie at the end. */
    EXPECT(statistics().free_pages == 0 && all + length + statistics().internal_pages * PAGE == end_of_memory());
    return all;
}

/* ---- How memory grows ---- */

static void memory_grows_by_two_mebibytes_at_least(void) {
    begin_full(MIB);
    map(1, PAGEMAN_ANY);
    EXPECT(port_pages() == PAGES(3 * MIB) && statistics().grown_pages == PAGES(2 * MIB));
    /* More than that where more is wanted. */
    begin_full(MIB);
    map(2 * MIB + UNIT, PAGEMAN_ANY);
    EXPECT(port_pages() == PAGES(3 * MIB + UNIT));
    check();
}

static void large_memories_grow_by_a_sixteenth(void) {
    begin_full(512 * MIB);
    map(1, PAGEMAN_ANY);
    EXPECT(port_pages() == PAGES(544 * MIB));
    check();
}

/* What is refused is asked for again, as little as will do; what is refused then cannot be had, and nothing is lost. */
static void memory_grows_exactly_if_more_is_refused(void) {
    begin_full(MIB);
    native_growth_max = PAGES(5 * UNIT);
    map(4 * UNIT + 1, PAGEMAN_ANY);
    EXPECT(port_pages() == PAGES(MIB + 5 * UNIT));
    size_t left = statistics().free_pages * PAGE;
    EXPECT(left == (UNIT - 1) / PAGE * PAGE);
    EXPECT(!pageman_map(left + 5 * UNIT + 1, 0, PAGEMAN_ANY) && statistics().free_pages == PAGES(left));
    map(left + 5 * UNIT, PAGEMAN_ANY);
    EXPECT(port_pages() == PAGES(MIB + 10 * UNIT) && statistics().free_pages == 0);
    check();
}

/* What is new is one run with what was free before it, unless others have grown memory in between. */
static void new_memory_is_joined_with_free_pages_before_it(void) {
    begin_full(MIB);
    char *tail = end_of_memory() - 3 * UNIT;
    unmap(tail, 3 * UNIT);
    native_growth_max = PAGES(2 * UNIT);
    EXPECT(map(5 * UNIT, PAGEMAN_ANY) == tail);
    unmap(tail, 5 * UNIT);
    EXPECT(native_grow_foreign(PAGES(UNIT)) != PAGE_NONE);
    native_growth_max = PAGE_NONE;
    EXPECT(map(6 * UNIT, PAGEMAN_ANY) == tail + 6 * UNIT);
    EXPECT(pageman_state_of(tail + 5 * UNIT) == PAGEMAN_FOREIGN && statistics().free_pages >= PAGES(5 * UNIT));
    check();
}

/* A heap of more pages than the first tables tell of is the manager's from its start on, wherever it starts; one that has no
 * room for larger tables is not touched, and memory grows. */
static void the_linkers_heap_is_used_however_large_it_is(void) {
    size_t starts[] = {PAGE, MIB + 5, 100 * MIB + 5};
    for (int i = 0; i < 3; i++) {
        size_t first = (starts[i] + PAGE - 1) / PAGE;
        native_reset(PAGES(1024 * MIB), first + PAGES(128 * MIB), starts[i]);
        struct pageman_statistics now = statistics();
        EXPECT(now.foreign_pages == first && now.free_pages > 0);
        EXPECT(now.free_pages + now.internal_pages == PAGES(128 * MIB) && now.grown_pages == 0);
        size_t length = now.free_pages * PAGE;
        char *all = map(length, PAGEMAN_ZERO);
        EXPECT(all == page_address((page_t)first) && statistics().cleared_pages == 0);
        for (size_t at = 0; at < length; at += PAGE) EXPECT(all[at] == 0);
        check();
    }
    native_reset(PAGES(1024 * MIB), PAGES(100 * MIB) + 1, 100 * MIB);
    char *grown = map(MIB, PAGEMAN_ZERO);
    EXPECT(grown >= (char *)page_address(PAGES(100 * MIB)) && statistics().foreign_pages >= PAGES(100 * MIB));
    check();
}

/* Up to what FIRST_CAPACITY pages hold, tables take none. */
static void small_programs_pay_for_no_tables(void) {
    for (size_t memory = MIB; memory <= FIRST_CAPACITY * PAGE; memory *= 2) {
        begin_full(memory);
        EXPECT(statistics().internal_pages == 0 && statistics().table_bytes <= FIRST_CAPACITY);
    }
    /* With larger ones too no table is larger than a byte a page; each has room for four times as many pages. */
    begin_full(256 * MIB);
    map(MIB, PAGEMAN_ANY);
    EXPECT(statistics().table_bytes <= tables.capacity && tables.capacity <= 4 * PAGES(512 * MIB));
}

/* ---- Which pages are taken ---- */

/* A run of zero pages below one of dirty pages, or above it, both long enough. */
static void begin_mixed(bool zero_below, enum pageman_policy policy, char **zero, char **dirty) {
    char *all = begin_full(16 * MIB), *below = all + MIB, *above = all + 8 * MIB;
    pageman_set_policy(policy);
    *zero = zero_below ? below : above;
    *dirty = zero_below ? above : below;
    memset(all, 0x77, 10 * MIB);
    unmap(*zero, MIB);
    native_discard_status = 0;
    EXPECT(pageman_trim() == PAGES(MIB));
    native_discard_status = -1;
    unmap(*dirty, MIB);
    /* Not as what was freed last. */
    EXPECT(statistics().dirty_pages == PAGES(MIB) && statistics().free_pages == 2 * PAGES(MIB));
}

static bool all_are(const char *bytes, size_t length, char value) {
    return bytes[0] == value && memcmp(bytes, bytes + 1, length - 1) == 0;
}

static void wishes_take_the_pages_that_cost_least(void) {
    for (int turn = 0; turn < 8; turn++) {
        char *zero, *dirty, *had;
        step = (unsigned long)turn;
        begin_mixed(turn % 2, (enum pageman_policy)(turn / 2), &zero, &dirty);
        uint64_t cleared = statistics().cleared_pages;
        had = map(MIB / 2, PAGEMAN_ZERO);
        EXPECT(had >= zero && had + MIB / 2 <= zero + MIB && all_are(had, MIB / 2, 0));
        EXPECT(statistics().cleared_pages == cleared);
        had = map(MIB / 2, PAGEMAN_ANY);
        EXPECT(had >= dirty && had + MIB / 2 <= dirty + MIB && all_are(had, MIB / 2, 0x77));
        /* The second half of each; then one takes of the other's. */
        had = map(MIB / 2, PAGEMAN_ANY);
        EXPECT(had >= dirty && had + MIB / 2 <= dirty + MIB);
        had = map(MIB / 4, PAGEMAN_ANY);
        EXPECT(had >= zero && had + MIB / 4 <= zero + MIB);
        unmap(dirty, MIB);
        EXPECT(statistics().cleared_pages == cleared);
        had = map(MIB, PAGEMAN_ZERO);
        EXPECT(had == dirty && all_are(had, MIB, 0) && statistics().cleared_pages == cleared + PAGES(MIB));
        check();
    }
}

/* Of a run that is zero in part, the other part is cleared alone. */
static void only_dirty_pages_are_cleared(void) {
    char *all = begin_full(4 * MIB);
    memset(all, 0x77, MIB);
    unmap(all, MIB);
    native_discard_status = 0;
    pageman_trim();
    native_discard_status = -1;
    memset(all + MIB, 0x77, MIB);
    unmap(all + MIB, MIB);
    struct pageman_statistics before = statistics();
    char *had = map(2 * MIB, PAGEMAN_ZERO);
    EXPECT(had == all && all_are(had, 2 * MIB, 0));
    EXPECT(statistics().cleared_pages - before.cleared_pages == PAGES(MIB));
    EXPECT(statistics().spared_pages - before.spared_pages == PAGES(MIB));
    check();
}

/* ---- What the check notices ---- */

static void flip(uint64_t *word, const char *what) {
    uint64_t was = *word;
    unsigned bit = random_below(64);
    *word ^= (uint64_t)1 << bit;
    if (!pageman_check()) fail_test("bit %u of %s can be wrong", bit, what);
    *word = was;
}

/* Each number and bit that follows from the states of pages. */
static void a_flipped_bit_is_noticed(void) {
    begin_full(MIB);
    /* Tables of three levels, the highest not full, and of all states. */
    EXPECT(native_grow_foreign(5008) != PAGE_NONE);
    native_discard_status = 0;
    char *blocks = map(600 * PAGE, PAGEMAN_ANY);
    for (int i = 0; i < 500; i += 20) unmap(blocks + i * PAGE, (size_t)(1 + i % 19) * PAGE);
    pageman_trim();
    native_discard_status = -1;
    for (int i = 0; i < 500; i += 40) unmap(blocks + (i + 19) * PAGE, PAGE);
    pageman_decay();
    check();
    EXPECT(tables.levels >= 3);
    page_t words = tables.capacity / 64;
    for (step = 0; step < words; step++) {
        flip(&tables.free[step], "free pages");
        flip(&tables.zero[step], "zero pages");
        /* That a free dirty page is idle follows from nothing. */
        uint64_t dirty = class_word(CLASS_DIRTY, (page_t)step), was = tables.idle[step];
        tables.idle[step] |= ~dirty & -~dirty;
        if (~dirty && !pageman_check()) fail_test("a page that is not free is idle");
        tables.idle[step] = was;
    }
    for (int class = 0; class < CLASSES; class++)
        for (uint32_t level = 0; level < tables.levels; level++)
            for (step = 0; step < tables.capacity >> (CHUNK_SHIFT + FANOUT_SHIFT * level); step++)
                flip(&tables.summaries[class][level][step], "a summary");
    page_t *const numbers[] = {&manager.free, &manager.zero, &manager.foreign, &manager.internal};
    for (step = 0; step < 4; step++) {
        ++*numbers[step];
        EXPECT(pageman_check());
        --*numbers[step];
    }
    /* A page is of another kind than all that follows from its state says. */
    static const unsigned kinds[] = {PAGEMAN_FREE_ZERO, PAGEMAN_FREE_DIRTY, PAGEMAN_FOREIGN, PAGEMAN_INTERNAL, 7,
                                     PAGEMAN_USED | 3};
    for (step = 0; step < 2000; step++) {
        page_t page = random_below(tables.capacity);
        unsigned was = state_of(page), other = kinds[random_below(6)];
        bool alike = was == other || (was == PAGEMAN_FREE_DISCARDED && other == PAGEMAN_FREE_ZERO);
        states_fill(page, page + 1, other);
        if (!alike && !pageman_check()) fail_test("page %u is in state %u, not %u", page, other, was);
        states_fill(page, page + 1, was);
    }
    check();
}

/* ---- Switch and query ---- */

#define NO_CALL(call) (errno = 0, EXPECT((call) && errno == ENOSYS))

static void switched_off_calls_are_as_if_there_were_none(void) {
    native_reset(PAGES(64 * MIB), PAGES(MIB), PAGE);
    EXPECT(pageman_active());
    EXPECT(pageman_set_active(false) == PAGEMAN_OK && !pageman_active());
    char *at = map(PAGE, PAGEMAN_ZERO);
    unsigned char vector[1];
    NO_CALL(pageman_posix_mmap(0, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
    NO_CALL(pageman_posix_mremap(at, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
    NO_CALL(pageman_posix_munmap(at, PAGE) == -1);
    NO_CALL(pageman_posix_mprotect(at, PAGE, PROT_READ) == -1);
    NO_CALL(pageman_posix_msync(at, PAGE, MS_SYNC) == -1);
    NO_CALL(pageman_posix_madvise(at, PAGE, MADV_NORMAL) == -1);
    NO_CALL(pageman_posix_mincore(at, PAGE, vector) == -1);
    NO_CALL(pageman_posix_mlock(at, PAGE) == -1);
    NO_CALL(pageman_posix_munlock(at, PAGE) == -1);
    EXPECT(pageman_posix_posix_madvise(at, PAGE, POSIX_MADV_NORMAL) == ENOSYS);
    EXPECT(pageman_posix_sbrk(100) != (void *)-1);
    /* What malloc has taken is no reason against it; a map is one. */
    EXPECT(pageman_set_active(true) == PAGEMAN_OK && pageman_active());
    EXPECT(pageman_posix_mmap(0, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    EXPECT(pageman_set_active(false) == PAGEMAN_BUSY && pageman_active());
    EXPECT(pageman_set_active(true) == PAGEMAN_OK);
    unmap(at, PAGE);
    check();
}

static void sizes_can_be_asked_for(void) {
    EXPECT(pageman_page_size() == PAGE);
    size_t preferred = pageman_preferred_size();
    EXPECT(preferred >= UNIT && preferred % PAGE == 0);
    /* No part of such a block is left over. */
    native_reset(PAGES(64 * MIB), PAGES(MIB), PAGE);
    map(preferred, PAGEMAN_ANY);
    EXPECT(statistics().mapped_pages * PAGE == preferred);
}

/* What Linux takes and this does not is refused, as its list of differences says. */
static void what_there_is_not_is_refused(void) {
    static const int advice[] = {-1, 5, 7, 9, 10, 11, 12, 13, 18, 19, 22, 23, 24, 25, 26, 100};
    enum { DO_NOT_UNMAP = 4 };
    native_reset(PAGES(64 * MIB), PAGES(MIB), PAGE);
    char *at = pageman_posix_mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(at != MAP_FAILED);
    memset(at, 0x77, PAGE);
    for (step = 0; step < sizeof advice / sizeof *advice; step++)
        EXPECT((errno = 0, pageman_posix_madvise(at, PAGE, advice[step]) == -1 && errno == EINVAL));
    EXPECT((errno = 0, pageman_posix_mremap(at, PAGE, PAGE, MREMAP_MAYMOVE | DO_NOT_UNMAP) == MAP_FAILED && errno == EINVAL));
    EXPECT(pageman_posix_madvise(at, PAGE, MADV_FREE) == 0 && all_are(at, PAGE, 0x77));
    EXPECT(pageman_posix_madvise(at, PAGE, MADV_DONTNEED) == 0 && all_are(at, PAGE, 0));
    check();
}

/* ---- JSON ---- */

/* The end of the value that begins here, by the grammar, or null. Strings here have no escapes. */
static const char *value_end(const char *at) {
    if (*at == '"') {
        for (at++; *at >= ' ' && *at != '"' && *at != '\\';) at++;
        return *at == '"' ? at + 1 : NULL;
    }
    if (*at >= '0' && *at <= '9') {
        const char *end = at + strspn(at, "0123456789");
        return *at == '0' && end - at > 1 ? NULL : end;
    }
    if (*at != '{' && *at != '[') return NULL;
    char close = *at == '{' ? '}' : ']';
    for (at++;; at++) {
        if (close == '}') {
            if (*at != '"' || !(at = value_end(at)) || *at++ != ':') return NULL;
        }
        if (!(at = value_end(at))) return NULL;
        if (*at == close) return at + 1;
        if (*at != ',') return NULL;
    }
}

/* The number of this name. */
static uint64_t number(const char *json, const char *name) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, "\"%s\":", name);
    const char *at = strstr(json, wanted);
    if (!at) fail_test("there is no %s", name);
    return strtoull(at + strlen(wanted), NULL, 10);
}

static void json_is_json_and_says_the_numbers(void) {
    static char text[1 << 16];
    begin_full(4 * MIB);
    unmap((char *)port_base() + 2 * MIB, MIB);
    EXPECT(pageman_posix_mmap(0, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    native_discard_status = 0;
    pageman_trim();
    for (int dump = 0; dump < 2; dump++) {
        size_t length = dump ? pageman_dump(text, sizeof text, true) : pageman_print(text, sizeof text, true);
        EXPECT(value_end(text) == text + length && length == strlen(text));
        const struct pageman_statistics s = statistics();
#define SAYS(name) EXPECT(number(text, #name) == s.name)
        SAYS(page_size), SAYS(memory_pages), SAYS(free_pages), SAYS(dirty_pages), SAYS(discarded_pages);
        SAYS(mapped_pages), SAYS(reserved_pages), SAYS(foreign_pages), SAYS(internal_pages), SAYS(mapped_pages_max);
        SAYS(longest_free_run), SAYS(table_bytes), SAYS(maps), SAYS(unmaps), SAYS(grown_pages), SAYS(cleared_pages);
        SAYS(spared_pages), SAYS(discards), SAYS(released_pages), SAYS(zeroed_pages), SAYS(declined_pages);
        EXPECT(s.reserved_pages == 1 && s.discarded_pages > 0 && s.maps == 2);
    }
    /* The runs of a dump are all pages, one behind the other. */
    uint64_t pages = 0;
    for (const char *at = strstr(text, "\"runs\":["); (at = strstr(at, "{\"page\":")); at++) {
        EXPECT(number(at, "page") == pages);
        pages += number(at, "pages");
    }
    EXPECT(pages == port_pages());
}

int main(void) {
    memory_grows_by_two_mebibytes_at_least();
    large_memories_grow_by_a_sixteenth();
    memory_grows_exactly_if_more_is_refused();
    new_memory_is_joined_with_free_pages_before_it();
    small_programs_pay_for_no_tables();
    the_linkers_heap_is_used_however_large_it_is();
    wishes_take_the_pages_that_cost_least();
    only_dirty_pages_are_cleared();
    a_flipped_bit_is_noticed();
    switched_off_calls_are_as_if_there_were_none();
    sizes_can_be_asked_for();
    what_there_is_not_is_refused();
    json_is_json_and_says_the_numbers();
    return 0;
}
