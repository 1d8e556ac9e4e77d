/* Runs of pages are found where a look at every page finds them: in tables of several levels, which grow. */
#include "common.h"
#include "port_native.h"

#define PAGES 9000

static bool in_class(enum class class, page_t page) {
    unsigned state = state_of(page);
    return state_is_free(state) && (class == CLASS_FREE || state_is_zero(state) == (class == CLASS_ZERO));
}

static page_t plain_first(enum class class, page_t from, page_t count) {
    page_t run = 0;
    for (page_t page = from; page < tables.capacity; page++) {
        run = in_class(class, page) ? run + 1 : 0;
        if (run == count) return page + 1 - count;
    }
    return PAGE_NONE;
}

static page_t plain_last(enum class class, page_t to, page_t count) {
    page_t run = 0;
    for (page_t page = to < tables.capacity ? to : tables.capacity; page-- > 0;) {
        run = in_class(class, page) ? run + 1 : 0;
        if (run == count) return page;
    }
    return PAGE_NONE;
}

static page_t random_length(void) { return 1 + random_below(1u << random_below(13)); }

int main(int argc, char **argv) {
    static const unsigned states[] = {PAGEMAN_FREE_ZERO,     PAGEMAN_FREE_DIRTY,    PAGEMAN_FREE_DISCARDED,
                                      PAGEMAN_RESERVED_ZERO, PAGEMAN_RESERVED_DIRTY, PAGEMAN_USED | 3, PAGEMAN_FREE_ZERO};
    unsigned long operations = argc > 1 ? strtoul(argv[1], NULL, 0) : 3000;
    page_t first_pages = 64;
    for (step = 0; step < operations; step++) {
        if (step % 500 == 0) {
            /* Small at first, then with tables that were moved once and twice. */
            seed_random(step + 1);
            native_reset(PAGES, first_pages, 0);
            EXPECT(pageman_active());
            first_pages = first_pages == 64 ? 4096 : 64;
        }
        if (step % 100 == 50) {
            /* Others grow it, so that the tables have to move. */
            native_grow_foreign(16 * random_below(150));
            EXPECT(pageman_map(PAGEMAN_PAGE_SIZE, 0, PAGEMAN_ZERO));
        }
        page_t start = random_below(manager.pages), length = random_length();
        page_t end = start + length < manager.pages ? start + length : manager.pages;
        for (page_t page = start; page < end;) {
            /* Neither the tables nor what is foreign. */
            page_t next = states_end(page, end);
            unsigned state = state_of(page);
            if (state != PAGEMAN_FOREIGN && state != PAGEMAN_INTERNAL) states_set(page, next, states[random_below(7)]);
            page = next;
        }
        /* Frees in a row, near and far, of which nothing is looked at until the search. */
        for (uint32_t frees = random_below(4) ? 0 : random_below(60); frees; frees--) {
            page_t page = random_below(manager.pages), most = page + 1 + random_below(200);
            page_t next = states_end(page, most < manager.pages ? most : manager.pages);
            if (state_is_mapped(state_of(page))) states_free(page, next);
        }
        enum class class = (enum class)random_below(CLASSES);
        page_t count = random_length(), at = random_below(tables.capacity);
        EXPECT(run_first(class, at, count) == plain_first(class, at, count));
        EXPECT(run_last(class, at, count) == plain_last(class, at, count));
        page_t run = at;
        while (run < tables.capacity && in_class(class, run)) run++;
        EXPECT(run_end(class, at) == run);
        for (run = at; run > 0 && in_class(class, run - 1);) run--;
        EXPECT(run_start(class, at) == run);
        page_t longest = longest_run(class);
        EXPECT(longest == 0 || plain_first(class, 0, longest) != PAGE_NONE);
        EXPECT(plain_first(class, 0, longest + 1) == PAGE_NONE);
        const char *wrong = step % 16 ? NULL : pageman_check();
        if (wrong) fail_test("%s", wrong);
        EXPECT(tables_size(tables.capacity) <= tables.capacity);
    }
    printf("%lu searches as by a look at every page\n", operations);
    return 0;
}
