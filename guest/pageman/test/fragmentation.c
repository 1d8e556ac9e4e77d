/* How much each policy fragments memory: a long run of a collector's kind, with blocks of 64 KiB to 4 MiB. */
#include "common.h"
#include "port_native.h"

#define BLOCKS 900

static const char *const names[] = {"first fit", "best fit", "two ends"};

/* Sizes and lives as a collector with generations has them: many small regions that die soon, few large ones that
 * stay, blocks freed in pieces, and now and then a collection that frees most. */
struct result {
    double share_at_most;
    uint64_t longest;
};

static struct result run(enum pageman_policy policy, unsigned long operations) {
    static struct block {
        char *at;
        page_t pages;
    } blocks[BLOCKS];
    native_reset(PAGES_MAX / 2, 32, 4096);
    pageman_set_policy(policy);
    seed_random(42);
    for (int i = 0; i < BLOCKS; i++) blocks[i].at = 0;
    page_t live = 0, most = 0;
    uint64_t longest = 0, turns = 0;
    double share = 0;
    for (step = 0; step < operations; step++) {
        /* Young blocks are replaced ten times as often as old ones. */
        struct block *block = &blocks[random_below(10) ? random_below(BLOCKS / 3) : random_below(BLOCKS)];
        if (block->at) {
            page_t keep = random_below(8) == 0 ? random_below(block->pages) : 0;
            EXPECT(pageman_unmap(block->at + keep * PAGEMAN_PAGE_SIZE, (block->pages - keep) * PAGEMAN_PAGE_SIZE) == 0);
            live -= block->pages - keep;
            block->pages = keep;
            if (!keep) block->at = 0;
        } else {
            uint32_t kind = random_below(100);
            block->pages = kind < 60 ? 1 + random_below(2) : kind < 90 ? 4 + random_below(13) : 32 + random_below(33);
            bool aligned = kind >= 95;
            block->at = pageman_map(block->pages * PAGEMAN_PAGE_SIZE, aligned ? 2 << 20 : 0, random_below(2));
            EXPECT(block->at);
            live += block->pages;
            if (live > most) most = live;
        }
        if (step % 20000 == 19999)
            for (int i = 0; i < BLOCKS / 3; i++)
                if (blocks[i].at && random_below(3)) {
                    EXPECT(pageman_unmap(blocks[i].at, blocks[i].pages * PAGEMAN_PAGE_SIZE) == 0);
                    live -= blocks[i].pages;
                    blocks[i].at = 0;
                }
        if (step > operations / 2 && step % 1000 == 0) {
            turns++;
            share += (double)live / (manager.pages - manager.first);
            longest += longest_run(CLASS_FREE);
        }
    }
    const char *wrong = pageman_check();
    if (wrong) fail_test("%s", wrong);
    printf("%-9s  of %u pages %4.1f %% in use at most, %4.1f %% on average, longest free run %u pages\n", names[policy],
           manager.pages, 100.0 * most / manager.pages, 100 * share / (double)turns, (unsigned)(longest / turns));
    return (struct result){100.0 * most / manager.pages, longest / turns};
}

int main(int argc, char **argv) {
    unsigned long operations = argc > 1 ? strtoul(argv[1], NULL, 0) : 200000;
    for (int policy = 0; policy < 3; policy++) {
        struct result result = run((enum pageman_policy)policy, operations);
        /* What is published of a like manager, for the policy that is there by default. */
        if (policy == PAGEMAN_FIRST_FIT) EXPECT(result.share_at_most >= 76.6 && result.longest >= 461);
    }
    return 0;
}
