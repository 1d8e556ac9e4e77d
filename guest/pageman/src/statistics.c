/* What the manager tells of itself: numbers, text, JSON, and a check of everything. */
#include "internal.h"

const char *pageman_check(void) {
    uint32_t before = manager_enter();
    const char *wrong = 0;
    if (manager.pages > tables.capacity) wrong = "there are more pages than the tables have room for";
    else if (manager.pages > port_pages()) wrong = "there are more pages than memory has";
    else if (manager.break_at < manager.break_start || manager.break_at > manager.break_end)
        wrong = "the break lies outside its pages";
    else wrong = tables_check(manager.pages);
    manager_leave(before);
    return wrong;
}

void pageman_statistics(struct pageman_statistics *statistics) {
    uint32_t before = manager_enter();
    manager_sync();
    tables_settle();
    uint64_t discarded = 0, reserved = 0;
    for (page_t page = 0; page < manager.pages;) {
        page_t next = states_end(page, manager.pages);
        unsigned state = state_of(page);
        if (state == PAGEMAN_FREE_DISCARDED) discarded += next - page;
        if (state == PAGEMAN_RESERVED_DIRTY || state == PAGEMAN_RESERVED_ZERO) reserved += next - page;
        page = next;
    }
    *statistics = manager.counts;
    statistics->page_size = PAGEMAN_PAGE_SIZE;
    statistics->memory_pages = port_pages();
    statistics->free_pages = manager.free;
    statistics->dirty_pages = manager.free - manager.zero;
    statistics->discarded_pages = discarded;
    statistics->mapped_pages = manager.pages - manager.free - manager.foreign - manager.internal;
    statistics->reserved_pages = reserved;
    statistics->foreign_pages = manager.foreign + (port_pages() - manager.pages);
    statistics->internal_pages = manager.internal;
    statistics->mapped_pages_max = manager.mapped_max;
    statistics->longest_free_run = longest_run(CLASS_FREE);
    statistics->table_bytes = tables_size(tables.capacity);
    manager_leave(before);
}

/* Text that is cut off at the end of a buffer, but counted. */
struct text {
    char *buffer;
    size_t size, length;
};

static void put(struct text *text, const char *part) {
    for (; *part; part++) {
        if (text->length + 1 < text->size) text->buffer[text->length] = *part;
        text->length++;
    }
}

static void put_number(struct text *text, uint64_t number) {
    char digits[24];
    char *at = digits + sizeof digits;
    *--at = 0;
    do *--at = (char)('0' + number % 10);
    while (number /= 10);
    put(text, at);
}

static size_t finish(struct text *text) {
    if (text->size) text->buffer[text->length < text->size ? text->length : text->size - 1] = 0;
    return text->length;
}

static void put_field(struct text *text, const char *name, uint64_t value, bool json, bool first) {
    if (json) {
        put(text, first ? "{\"" : ",\"");
        put(text, name);
        put(text, "\":");
        put_number(text, value);
    } else {
        put_number(text, value);
        put(text, " ");
        put(text, name);
        put(text, "\n");
    }
}

static void put_statistics(struct text *text, bool json) {
    struct pageman_statistics s;
    pageman_statistics(&s);
    const struct {
        const char *name;
        uint64_t value;
    } fields[] = {
        {"page_size", s.page_size},
        {"memory_pages", s.memory_pages},
        {"free_pages", s.free_pages},
        {"dirty_pages", s.dirty_pages},
        {"discarded_pages", s.discarded_pages},
        {"mapped_pages", s.mapped_pages},
        {"reserved_pages", s.reserved_pages},
        {"foreign_pages", s.foreign_pages},
        {"internal_pages", s.internal_pages},
        {"mapped_pages_max", s.mapped_pages_max},
        {"longest_free_run", s.longest_free_run},
        {"table_bytes", s.table_bytes},
        {"maps", s.maps},
        {"unmaps", s.unmaps},
        {"grown_pages", s.grown_pages},
        {"cleared_pages", s.cleared_pages},
        {"spared_pages", s.spared_pages},
        {"discards", s.discards},
        {"released_pages", s.released_pages},
        {"zeroed_pages", s.zeroed_pages},
        {"declined_pages", s.declined_pages},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        put_field(text, fields[i].name, fields[i].value, json, i == 0);
}

static const char *state_name(unsigned state) {
    static const char *const names[] = {
        "free and zero", "free and dirty", "discarded", "foreign", "internal", "reserved and dirty", "reserved"};
    static const char *const used[] = {"used ---", "used r--", "used -w-", "used rw-",
                                       "used --x", "used r-x", "used -wx", "used rwx"};
    if (state >= PAGEMAN_USED) return used[state & 7];
    return state < 7 ? names[state] : "unknown";
}

size_t pageman_print(char *buffer, size_t size, bool json) {
    struct text text = {buffer, size, 0};
    put_statistics(&text, json);
    if (json) put(&text, "}");
    return finish(&text);
}

size_t pageman_dump(char *buffer, size_t size, bool json) {
    struct text text = {buffer, size, 0};
    uint32_t before = manager_enter();
    put_statistics(&text, json);
    if (json) put(&text, ",\"runs\":[");
    for (page_t page = 0; page < manager.pages;) {
        page_t next = states_end(page, manager.pages);
        if (json) {
            put(&text, page ? ",{\"page\":" : "{\"page\":");
            put_number(&text, page);
            put(&text, ",\"pages\":");
            put_number(&text, next - page);
            put(&text, ",\"state\":\"");
            put(&text, state_name(state_of(page)));
            put(&text, "\"}");
        } else {
            put_number(&text, page);
            put(&text, " + ");
            put_number(&text, next - page);
            put(&text, ": ");
            put(&text, state_name(state_of(page)));
            put(&text, "\n");
        }
        page = next;
    }
    if (json) put(&text, "]}");
    manager_leave(before);
    return finish(&text);
}
