/* The tables of pages: states, bits, and summaries by which runs are found without looking at every page. */
#include "internal.h"

struct tables tables;

#define WORDS(pages) ((pages) / 64)
#define CHUNK_WORDS WORDS(CHUNK_PAGES)

static _Alignas(8) uint8_t first_block[FIRST_CAPACITY / 2 + 3 * (FIRST_CAPACITY / 8) + 8 * CLASSES * 3];

/* Chunks of which more pages are free than their summaries say, a bit each. Frees come in a row, as when a collector sweeps:
 * then a chunk is looked at once for all of them, by the call that needs to know. */
static uint64_t behind[(PAGES_MAX / CHUNK_PAGES + 63) / 64];
bool tables_behind;

/* Summaries of one class and level that `capacity` pages have. */
static page_t level_length(page_t capacity, uint32_t level) {
    uint32_t shift = CHUNK_SHIFT + FANOUT_SHIFT * level;
    return (page_t)(((uint64_t)capacity + (((uint64_t)1 << shift) - 1)) >> shift);
}

static uint32_t level_count(page_t capacity) {
    uint32_t levels = 1;
    while (level_length(capacity, levels - 1) > 1) levels++;
    return levels;
}

size_t tables_size(page_t capacity) {
    size_t summaries = 0;
    for (uint32_t level = 0; level < level_count(capacity); level++) summaries += level_length(capacity, level);
    return capacity / 2 + 3 * ((size_t)capacity / 8) + 8 * CLASSES * summaries;
}

void tables_place(struct tables *placed, page_t capacity, void *block) {
    placed->capacity = capacity;
    placed->levels = level_count(capacity);
    placed->states = block;
    placed->free = (uint64_t *)(void *)(placed->states + capacity / 2);
    placed->zero = placed->free + WORDS(capacity);
    placed->idle = placed->zero + WORDS(capacity);
    uint64_t *next = placed->idle + WORDS(capacity);
    for (int class = 0; class < CLASSES; class++) {
        for (uint32_t level = 0; level < LEVELS_MAX; level++) {
            placed->summaries[class][level] = next;
            if (level < placed->levels) next += level_length(capacity, level);
        }
    }
}

void *first_states(void) { return first_block; }

void tables_init(void) {
    tables_place(&tables, FIRST_CAPACITY, first_block);
    __builtin_memset(behind, 0, sizeof behind);
    tables_behind = false;
    /* Beyond memory all is foreign; memory that is found makes it free. */
    __builtin_memset(tables.states, PAGEMAN_FOREIGN * 0x11, FIRST_CAPACITY / 2);
}

/* ---- Summaries ---- */

static uint64_t pack(struct summary s) {
    return (uint64_t)s.prefix | (uint64_t)s.longest << 21 | (uint64_t)s.suffix << 42;
}

uint64_t class_word(enum class class, page_t word) {
    switch (class) {
    case CLASS_FREE: return tables.free[word];
    case CLASS_ZERO: return tables.zero[word];
    default: return tables.free[word] & ~tables.zero[word];
    }
}

/* Ones at the low end, and at the high end. */
static uint32_t low_ones(uint64_t word) { return ~word ? (uint32_t)__builtin_ctzll(~word) : 64; }
static uint32_t high_ones(uint64_t word) { return ~word ? (uint32_t)__builtin_clzll(~word) : 64; }

/* The bits from which on `count` bits are set, `count` being 1 to 64. */
static uint64_t starts_of_runs(uint64_t word, uint32_t count) {
    uint32_t have = 1;
    while (have < count) {
        uint32_t step = have < count - have ? have : count - have;
        word &= word >> step;
        have += step;
    }
    return word;
}

static uint64_t summarize_chunk(enum class class, page_t chunk) {
    struct summary s = {0, 0, 0};
    uint32_t run = 0;
    bool open = true; /* all pages so far are in the class */
    for (page_t word = 0; word < CHUNK_WORDS; word++) {
        uint64_t bits = class_word(class, chunk * CHUNK_WORDS + word);
        if (bits == ~(uint64_t)0) {
            run += 64;
            continue;
        }
        run += low_ones(bits);
        if (open) s.prefix = run;
        open = false;
        if (run > s.longest) s.longest = run;
        if (s.longest < 64) {
            /* Each turn finds a longer run, so there are at most 64 in a chunk. */
            for (uint64_t longer = starts_of_runs(bits, s.longest + 1); longer; longer &= longer >> 1) s.longest++;
        }
        run = high_ones(bits);
    }
    if (open) s.prefix = run;
    if (run > s.longest) s.longest = run;
    s.suffix = run;
    return pack(s);
}

static page_t level_pages(uint32_t level) { return CHUNK_PAGES << (FANOUT_SHIFT * level); }

static uint64_t summarize_children(enum class class, uint32_t level, page_t index) {
    struct summary s = {0, 0, 0};
    uint32_t run = 0, full = level_pages(level - 1);
    bool open = true;
    page_t child = index << FANOUT_SHIFT, end = child + FANOUT;
    page_t length = level_length(tables.capacity, level - 1);
    for (; child < end; child++) {
        struct summary part = {0, 0, 0};
        if (child < length) part = unpack(tables.summaries[class][level - 1][child]);
        if (part.prefix == full) {
            run += full;
            continue;
        }
        run += part.prefix;
        if (open) s.prefix = run;
        open = false;
        if (run > s.longest) s.longest = run;
        if (part.longest > s.longest) s.longest = part.longest;
        run = part.suffix;
    }
    if (open) s.prefix = run;
    if (run > s.longest) s.longest = run;
    s.suffix = run;
    return pack(s);
}

/* Brings the summaries of a class up to date for a range whose bits have changed. */
static void summarize(enum class class, page_t start, page_t end) {
    page_t first = start >> CHUNK_SHIFT, last = (end - 1) >> CHUNK_SHIFT;
    for (page_t chunk = first; chunk <= last; chunk++)
        tables.summaries[class][0][chunk] = summarize_chunk(class, chunk);
    for (uint32_t level = 1; level < tables.levels; level++) {
        first >>= FANOUT_SHIFT;
        last >>= FANOUT_SHIFT;
        for (page_t index = first; index <= last; index++)
            tables.summaries[class][level][index] = summarize_children(class, level, index);
    }
}

/* ---- States ---- */

page_t states_end(page_t page, page_t end) {
    unsigned state = state_of(page);
    page++;
    const uint64_t same = state * UINT64_C(0x1111111111111111);
    while (page < end) {
        if (page % 16 == 0 && page + 16 <= end) {
            uint64_t sixteen;
            __builtin_memcpy(&sixteen, tables.states + page / 2, 8);
            if (sixteen == same) {
                page += 16;
                continue;
            }
        }
        if (state_of(page) != state) break;
        page++;
    }
    return page;
}

/* Sets or clears the bits of a range in one word; returns those that have changed. */
static uint64_t set_bits(uint64_t *word, uint64_t mask, bool value) {
    uint64_t old = *word;
    *word = value ? old | mask : old & ~mask;
    return old ^ *word;
}

void states_fill(page_t start, page_t end, unsigned state) {
    page_t from = start, to = end;
    if (from % 2) state_set_one(from++, state);
    if (to > from && to % 2) state_set_one(--to, state);
    if (to > from) __builtin_memset(tables.states + from / 2, (int)(state * 0x11), (to - from) / 2);
}

/* Brings bits and summaries up to date for pages that have become free, and zero, or not. */
static void set_classes(page_t start, page_t end, bool free, bool zero) {
    uint64_t changed[CLASSES] = {0, 0, 0};
    for (page_t word = start / 64; word <= (end - 1) / 64; word++) {
        uint64_t mask = ~(uint64_t)0;
        if (word == start / 64) mask &= ~(uint64_t)0 << start % 64;
        if (word == (end - 1) / 64) mask &= ~(uint64_t)0 >> (63 - (end - 1) % 64);
        /* What was not free, or not known to be, stays out of all classes. */
        if (!free && !(tables.free[word] & mask)) continue;
        uint64_t dirty = class_word(CLASS_DIRTY, word);
        uint64_t frees = set_bits(&tables.free[word], mask, free);
        uint64_t zeros = set_bits(&tables.zero[word], mask, zero);
        /* What is freed now was not free at the last step of decay. */
        tables.idle[word] &= ~mask;
        changed[CLASS_FREE] |= frees;
        changed[CLASS_ZERO] |= zeros;
        changed[CLASS_DIRTY] |= dirty ^ class_word(CLASS_DIRTY, word);
        int sign = free ? 1 : -1;
        manager.free += (page_t)(sign * __builtin_popcountll(frees));
        sign = zero ? 1 : -1;
        manager.zero += (page_t)(sign * __builtin_popcountll(zeros));
    }
    for (int class = 0; class < CLASSES; class++)
        if (changed[class]) summarize((enum class)class, start, end);
}

void states_set(page_t start, page_t end, unsigned state) {
    if (start >= end) return;
    tables_settle();
    states_write(start, end, state);
    set_classes(start, end, state_is_free(state), state_is_free(state) && state_is_zero(state));
}

struct recent recent;

void tables_note_recent(void) {
    page_t start = recent.start, end = recent.end;
    recent = (struct recent){0, 0};
    /* Until now they were mapped, so they are in no class, and not idle. */
    for (page_t word = start / 64; word <= (end - 1) / 64; word++) {
        uint64_t mask = ~(uint64_t)0;
        if (word == start / 64) mask &= ~(uint64_t)0 << start % 64;
        if (word == (end - 1) / 64) mask &= ~(uint64_t)0 >> (63 - (end - 1) % 64);
        tables.free[word] |= mask;
    }
    for (page_t chunk = start >> CHUNK_SHIFT; chunk <= (end - 1) >> CHUNK_SHIFT; chunk++)
        behind[chunk / 64] |= (uint64_t)1 << chunk % 64;
    manager.free += end - start;
    tables_behind = true;
}

/* Of pages that are free and dirty only two classes change. A word of `behind` is of the chunks of one summary of level 2,
 * and a byte of it of one of level 1. */
static void summarize_behind(enum class class) {
    _Static_assert(FANOUT_SHIFT == 3, "a byte has a bit for each summary below one");
    page_t words = (tables.capacity / CHUNK_PAGES + 63) / 64, first = words, last = 0;
    for (page_t word = 0; word < words; word++) {
        if (!behind[word]) continue;
        if (first == words) first = word;
        last = word;
        for (uint64_t bits = behind[word]; bits; bits &= bits - 1) {
            page_t chunk = word * 64 + (page_t)__builtin_ctzll(bits);
            tables.summaries[class][0][chunk] = summarize_chunk(class, chunk);
        }
        for (page_t byte = 0; byte < 8 && tables.levels > 1; byte++)
            if (behind[word] >> byte * 8 & 255)
                tables.summaries[class][1][word * 8 + byte] = summarize_children(class, 1, word * 8 + byte);
    }
    for (uint32_t level = 2; level < tables.levels; level++) {
        for (page_t index = first; index <= last; index++)
            tables.summaries[class][level][index] = summarize_children(class, level, index);
        first >>= FANOUT_SHIFT;
        last >>= FANOUT_SHIFT;
    }
}

void tables_settle_recent(void) {
    if (recent.start < recent.end) tables_note_recent();
    summarize_behind(CLASS_FREE);
    summarize_behind(CLASS_DIRTY);
    __builtin_memset(behind, 0, sizeof behind);
    tables_behind = false;
}

/* Puts the tables into a larger block. The block is not part of the ranges that change meanwhile. */
void tables_move(page_t capacity, void *block) {
    tables_settle();
    struct tables old = tables, placed;
    tables_place(&placed, capacity, block);
    __builtin_memset(block, 0, tables_size(capacity));
    __builtin_memset(placed.states, PAGEMAN_FOREIGN * 0x11, capacity / 2);
    __builtin_memcpy(placed.states, old.states, old.capacity / 2);
    __builtin_memcpy(placed.free, old.free, old.capacity / 8);
    __builtin_memcpy(placed.zero, old.zero, old.capacity / 8);
    __builtin_memcpy(placed.idle, old.idle, old.capacity / 8);
    tables = placed;
    for (int class = 0; class < CLASSES; class++) summarize((enum class)class, 0, capacity);
}

/* ---- Finding runs ---- */

/* A search in one direction: `run` pages of the class lie right before the place that is looked at. */
struct search {
    enum class class;
    page_t count, limit, run, found;
};

static bool first_in_chunk(struct search *search, page_t start) {
    for (page_t word = 0; word < CHUNK_WORDS; word++) {
        page_t at = start + word * 64;
        uint64_t bits = class_word(search->class, at / 64);
        if (at + 64 <= search->limit) {
            bits = 0;
        } else if (at < search->limit) {
            bits &= ~(uint64_t)0 << (search->limit - at);
        }
        if (search->run + low_ones(bits) >= search->count) {
            search->found = at - search->run;
            return true;
        }
        if (bits == ~(uint64_t)0) {
            search->run += 64;
            continue;
        }
        uint64_t starts = search->count < 64 ? starts_of_runs(bits, search->count) : 0;
        if (starts) {
            search->found = at + (page_t)__builtin_ctzll(starts);
            return true;
        }
        search->run = high_ones(bits);
    }
    return false;
}

static bool first_in(struct search *search, uint32_t level, page_t index) {
    page_t pages = level_pages(level), start = index * pages;
    if ((uint64_t)start + pages <= search->limit) return false;
    if (start >= search->limit) {
        struct summary s = unpack(tables.summaries[search->class][level][index]);
        if (search->run + s.prefix >= search->count) {
            search->found = start - search->run;
            return true;
        }
        if (s.longest < search->count) {
            search->run = s.prefix == pages ? search->run + pages : s.suffix;
            return false;
        }
    }
    if (level == 0) return first_in_chunk(search, start);
    page_t length = level_length(tables.capacity, level - 1);
    for (page_t child = index << FANOUT_SHIFT; child < (index + 1) << FANOUT_SHIFT && child < length; child++)
        if (first_in(search, level - 1, child)) return true;
    return false;
}

page_t run_first(enum class class, page_t from, page_t count) {
    tables_settle();
    struct search search = {class, count, from, 0, PAGE_NONE};
    first_in(&search, tables.levels - 1, 0);
    return search.found;
}

static bool last_in_chunk(struct search *search, page_t start) {
    for (page_t word = CHUNK_WORDS; word-- > 0;) {
        page_t at = start + word * 64;
        uint64_t bits = class_word(search->class, at / 64);
        if (at >= search->limit) {
            bits = 0;
        } else if (search->limit - at < 64) {
            bits &= ((uint64_t)1 << (search->limit - at)) - 1;
        }
        uint32_t high = high_ones(bits);
        if (search->run + high >= search->count) {
            search->found = at + 64 + search->run - search->count;
            return true;
        }
        if (high == 64) {
            search->run += 64;
            continue;
        }
        uint64_t starts = search->count < 64 ? starts_of_runs(bits, search->count) : 0;
        if (starts) {
            search->found = at + 63 - (page_t)__builtin_clzll(starts);
            return true;
        }
        search->run = low_ones(bits);
    }
    return false;
}

static bool last_in(struct search *search, uint32_t level, page_t index) {
    page_t pages = level_pages(level), start = index * pages;
    if (start >= search->limit) return false;
    if ((uint64_t)start + pages <= search->limit) {
        struct summary s = unpack(tables.summaries[search->class][level][index]);
        if (search->run + s.suffix >= search->count) {
            search->found = start + pages + search->run - search->count;
            return true;
        }
        if (s.longest < search->count) {
            search->run = s.suffix == pages ? search->run + pages : s.prefix;
            return false;
        }
    }
    if (level == 0) return last_in_chunk(search, start);
    page_t length = level_length(tables.capacity, level - 1);
    page_t child = (index + 1) << FANOUT_SHIFT;
    if (child > length) child = length;
    while (child-- > index << FANOUT_SHIFT)
        if (last_in(search, level - 1, child)) return true;
    return false;
}

page_t run_last(enum class class, page_t to, page_t count) {
    tables_settle();
    struct search search = {class, count, to, 0, PAGE_NONE};
    last_in(&search, tables.levels - 1, 0);
    return search.found;
}

page_t run_end(enum class class, page_t start) {
    tables_settle();
    page_t page = start;
    while (page < tables.capacity) {
        if (page % CHUNK_PAGES == 0 &&
            unpack(tables.summaries[class][0][page >> CHUNK_SHIFT]).prefix == CHUNK_PAGES) {
            page += CHUNK_PAGES;
            continue;
        }
        uint64_t bits = class_word(class, page / 64) >> page % 64;
        uint32_t ones = low_ones(bits), left = 64 - page % 64;
        page += ones < left ? ones : left;
        if (ones < left) break;
    }
    return page;
}

page_t run_start(enum class class, page_t end) {
    tables_settle();
    page_t page = end;
    while (page > 0) {
        if (page % CHUNK_PAGES == 0 &&
            unpack(tables.summaries[class][0][(page - 1) >> CHUNK_SHIFT]).prefix == CHUNK_PAGES) {
            page -= CHUNK_PAGES;
            continue;
        }
        page_t last = page - 1, have = last % 64 + 1;
        uint32_t ones = high_ones(class_word(class, last / 64) << (64 - have));
        page -= ones < have ? ones : have;
        if (ones < have) break;
    }
    return page;
}

/* ---- Checking ---- */

/* What a summary has to be, by the states of pages alone: not by the words and summaries that it was made from. */
static uint64_t summary_by_pages(enum class class, uint32_t level, page_t index) {
    uint64_t start = (uint64_t)index * level_pages(level), end = start + level_pages(level);
    struct summary s = {0, 0, 0};
    uint32_t run = 0;
    bool open = true;
    for (uint64_t page = start; page < end; page++) {
        unsigned state = page < tables.capacity ? state_of((page_t)page) : PAGEMAN_FOREIGN;
        bool in = state_is_free(state) && (class == CLASS_FREE || state_is_zero(state) == (class == CLASS_ZERO));
        run = in ? run + 1 : 0;
        if (!in) open = false;
        if (open) s.prefix = run;
        if (run > s.longest) s.longest = run;
        if (!in && page >= tables.capacity) break;
    }
    s.suffix = run;
    return pack(s);
}

const char *tables_check(page_t pages) {
    tables_settle();
    page_t free = 0, zero = 0, foreign = 0, internal = 0;
    for (page_t page = 0; page < tables.capacity; page++) {
        unsigned state = state_of(page);
        bool is_free = tables.free[page / 64] >> page % 64 & 1;
        bool is_zero = tables.zero[page / 64] >> page % 64 & 1;
        if (state == 7) return "a page has a state that there is not";
        if (is_free != state_is_free(state)) return "a bit of free pages is not what the state says";
        if (is_zero != (state_is_free(state) && state_is_zero(state)))
            return "a bit of zero pages is not what the state says";
        if ((tables.idle[page / 64] >> page % 64 & 1) && (!is_free || is_zero))
            return "a page is idle that is not free and dirty";
        if (page >= pages && state != PAGEMAN_FOREIGN) return "a page beyond memory is not foreign";
        free += is_free;
        zero += is_zero;
        foreign += page < pages && state == PAGEMAN_FOREIGN;
        internal += state == PAGEMAN_INTERNAL;
    }
    if (free != manager.free) return "the number of free pages is wrong";
    if (zero != manager.zero) return "the number of zero pages is wrong";
    if (foreign != manager.foreign) return "the number of foreign pages is wrong";
    if (internal != manager.internal) return "the number of the manager's own pages is wrong";
    for (int class = 0; class < CLASSES; class++)
        for (uint32_t level = 0; level < tables.levels; level++)
            for (page_t index = 0; index < level_length(tables.capacity, level); index++)
                if (tables.summaries[class][level][index] != summary_by_pages((enum class)class, level, index))
                    return level ? "a summary of summaries is wrong" : "a summary of pages is wrong";
    return 0;
}
