/* How much each policy fragments memory: a long run of a collector's kind, with blocks of 64 KiB to 4 MiB. */
#include "common.h"
#include "port_native.h"

#define BLOCKS 900

static const char *const names[] = {"first fit", "best fit", "two ends", "by length"};

/* Sizes and lives as a collector with generations has them: many small regions that die soon, few large ones that
 * stay, blocks freed in pieces, and now and then a collection that frees most. */
struct result {
    double pages, at_most, on_average, longest;
};

static struct result run(enum pageman_policy policy, unsigned long operations, uint64_t seed) {
    static struct block {
        char *at;
        page_t pages;
    } blocks[BLOCKS];
    native_reset(PAGES_MAX / 2, 32, 4096);
    pageman_set_policy(policy);
    seed_random(seed);
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
            block->at = pageman_map(block->pages * PAGEMAN_PAGE_SIZE, aligned ? 2 << 20 : 0, random_below(8) == 0);
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
    return (struct result){manager.pages, 100.0 * most / manager.pages, 100 * share / (double)turns,
                           (double)longest / (double)turns};
}

/* Of several runs, as each has luck of its own. */
int main(int argc, char **argv) {
    unsigned long operations = argc > 1 ? strtoul(argv[1], NULL, 0) : 100000;
    uint64_t seeds = argc > 2 ? strtoull(argv[2], NULL, 0) : 10;
    for (int policy = 0; policy < 4; policy++) {
        struct result mean = {0, 0, 0, 0};
        double lowest = 100;
        for (uint64_t seed = 1; seed <= seeds; seed++) {
            struct result result = run((enum pageman_policy)policy, operations, seed);
            mean.pages += result.pages / (double)seeds;
            mean.at_most += result.at_most / (double)seeds;
            mean.on_average += result.on_average / (double)seeds;
            mean.longest += result.longest / (double)seeds;
            if (result.at_most < lowest) lowest = result.at_most;
        }
        printf("%-9s  of %.0f pages %.1f %% in use at most (%.1f %% in the worst run), %.1f %% on average, longest free "
               "run %.0f pages\n",
               names[policy], mean.pages, mean.at_most, lowest, mean.on_average, mean.longest);
        /* What is published of a like manager, for the policy that is there by default. */
        if (policy == PAGEMAN_BY_LENGTH) EXPECT(mean.at_most >= 76.6 && mean.longest >= 461);
    }
    return 0;
}
