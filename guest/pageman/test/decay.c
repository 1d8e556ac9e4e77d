/* When free pages are offered to the host, and what the manager says of itself, however little room there is for it. */
#include <string.h>

#include "common.h"
#include "port_native.h"

#define MIB ((size_t)1 << 20)

static struct pageman_statistics statistics(void) {
    struct pageman_statistics statistics;
    pageman_statistics(&statistics);
    return statistics;
}

static char *map(size_t length) {
    char *address = pageman_map(length, 0, PAGEMAN_ANY);
    EXPECT(address);
    return address;
}

static void unmap(char *address, size_t length) { EXPECT(pageman_unmap(address, length) == PAGEMAN_OK); }

/* What is used again before a step of decay is over is never offered, however often. */
static void pages_that_are_used_again_do_not_bounce(void) {
    native_reset(4096, 64, 4096);
    native_discard_status = 0;
    for (step = 0; step < 10000; step++) {
        char *block = map(MIB);
        block[step % MIB] = 1;
        unmap(block, MIB);
    }
    EXPECT(statistics().discards == 0);
}

/* Where nothing reads zero any more, what was freed last is cleared for the next who wants zeros. */
static void what_was_freed_last_is_cleared(void) {
    native_reset(256, 64, 4096);
    while (pageman_map(PAGEMAN_PAGE_SIZE, 0, PAGEMAN_ANY)) continue;
    char *last = (char *)port_base() + 200 * PAGEMAN_PAGE_SIZE;
    for (step = 1; step < 40; step++) {
        size_t length = step * PAGEMAN_PAGE_SIZE;
        memset(last, 1, length);
        unmap(last, length);
        EXPECT(pageman_map(length, 0, step % 3 ? PAGEMAN_ZERO : PAGEMAN_ANY) == last);
        for (size_t at = 0; at < length; at += 1000) EXPECT(last[at] == (step % 3 ? 0 : 1));
        EXPECT(last[length - 1] == (step % 3 ? 0 : 1) && !pageman_check());
    }
}

/* What stays free is: at the second step, or after 64 MiB were freed beside it. */
static void pages_that_stay_free_are_given_back(void) {
    page_t mib = (page_t)(MIB / PAGEMAN_PAGE_SIZE);
    native_reset(4096 * mib, 64, 4096);
    native_discard_status = 0;
    char *block = map(4 * MIB), *other = map(128 * MIB);
    memset(block, 1, 4 * MIB);
    unmap(block, 4 * MIB);
    pageman_decay();
    EXPECT(statistics().released_pages == 0);
    pageman_decay();
    /* Where pages are small, old tables are among them. */
    uint64_t released = statistics().released_pages;
    EXPECT(released >= 4 * mib && released < 5 * mib && statistics().discarded_pages == released);
    EXPECT(pageman_state_of(block) == PAGEMAN_FREE_DISCARDED && block[0] == 0);
    /* Each call frees more than makes a step; the next one gives back what the one before has freed. */
    unmap(other, 65 * MIB);
    unmap(other + 65 * MIB, 63 * MIB);
    pageman_decay();
    EXPECT(statistics().released_pages == released + 65 * mib);
    EXPECT(pageman_trim() == 63 * mib && statistics().dirty_pages == 0);
}

/* A host that declines a short run is still offered longer ones, and no more that are as short. */
static void longer_runs_are_offered_after_a_short_one(void) {
    native_reset((page_t)(64 * MIB / PAGEMAN_PAGE_SIZE), 64, 4096);
    native_discard_status = 0;
    native_discard_min = 4 * MIB;
    char *blocks[8], *between[8];
    for (int i = 0; i < 8; i++) {
        blocks[i] = map((i < 6 ? 1 : 8) * MIB);
        between[i] = map(PAGEMAN_PAGE_SIZE);
    }
    for (int i = 0; i < 8; i++) unmap(blocks[i], (i < 6 ? 1 : 8) * MIB);
    EXPECT(pageman_trim() == 16 * MIB / PAGEMAN_PAGE_SIZE);
    EXPECT(statistics().discards == 3 && statistics().declined_pages == MIB / PAGEMAN_PAGE_SIZE);
    unmap(between[7], PAGEMAN_PAGE_SIZE);
}

/* A host that only writes zeros is believed; one that declines is asked less and less often. */
static void hosts_are_asked_less_often_if_they_decline(void) {
    native_reset(4096, 64, 4096);
    char *block = map(MIB);
    memset(block, 1, MIB);
    unmap(block, MIB);
    for (step = 0; step < 1000; step++) pageman_decay();
    uint64_t asked = statistics().discards;
    EXPECT(asked >= 5 && asked <= 40);
    EXPECT(statistics().released_pages == 0 && statistics().dirty_pages == MIB / PAGEMAN_PAGE_SIZE);
    native_discard_status = 1;
    for (step = 0; step < 200; step++) pageman_decay();
    EXPECT(statistics().zeroed_pages == MIB / PAGEMAN_PAGE_SIZE && statistics().dirty_pages == 0);
    EXPECT(pageman_state_of(block) == PAGEMAN_FREE_ZERO);
}

/* A step looks at a word for each 64 pages, so it comes no sooner than that many calls. */
static void steps_are_as_rare_as_they_are_long(void) {
    native_reset(PAGES_MAX / 2, 64, 4096);
    native_discard_status = 0;
    map((size_t)(PAGES_MAX / 4) * PAGEMAN_PAGE_SIZE);
    char *block = map(MIB), *other = map(PAGEMAN_PAGE_SIZE);
    unmap(block, MIB);
    pageman_decay();
    unsigned long calls = 0, words = manager.pages / 64;
    for (; statistics().released_pages == 0; calls += 2) {
        unmap(other, PAGEMAN_PAGE_SIZE);
        other = map(PAGEMAN_PAGE_SIZE);
    }
    EXPECT(words > 256 && calls >= words && calls <= words + 2);
}

/* Texts have their whole length, whatever of them fits, and end with a zero. */
static void texts_are_cut_off_where_room_ends(void) {
    static char whole[1 << 16], part[1 << 16];
    native_reset(4096, 64, 4096);
    for (int i = 0; i < 40; i++) map(PAGEMAN_PAGE_SIZE);
    for (int i = 0; i < 40; i++) unmap(map(2 * PAGEMAN_PAGE_SIZE), PAGEMAN_PAGE_SIZE);
    for (int what = 0; what < 4; what++) {
        size_t (*print)(char *, size_t, bool) = what / 2 ? pageman_dump : pageman_print;
        bool json = what % 2;
        size_t length = print(whole, sizeof whole, json);
        EXPECT(length == strlen(whole) && length > 300);
        EXPECT(json ? whole[0] == '{' : strtoul(whole, NULL, 10) == PAGEMAN_PAGE_SIZE);
        EXPECT(whole[length - 1] == (json ? '}' : '\n'));
        for (size_t room = 0; room <= length + 1; room += 1 + room / 3) {
            memset(part, 'x', sizeof part);
            EXPECT(print(room ? part : NULL, room, json) == length);
            if (!room) continue;
            size_t kept = room - 1 < length ? room - 1 : length;
            EXPECT(memcmp(part, whole, kept) == 0 && part[kept] == 0 && part[room] == 'x');
        }
        /* As many open as close, and a number behind each name. */
        int depth = 0;
        for (size_t i = 0; json && i < length; i++) {
            depth += (whole[i] == '{' || whole[i] == '[') - (whole[i] == '}' || whole[i] == ']');
            EXPECT(depth > 0 || i == length - 1);
        }
        EXPECT(depth == 0);
    }
}

int main(void) {
    pages_that_are_used_again_do_not_bounce();
    what_was_freed_last_is_cleared();
    pages_that_stay_free_are_given_back();
    longer_runs_are_offered_after_a_short_one();
    hosts_are_asked_less_often_if_they_decline();
    steps_are_as_rare_as_they_are_long();
    texts_are_cut_off_where_room_ends();
    const char *wrong = pageman_check();
    if (wrong) fail_test("%s", wrong);
    return 0;
}
