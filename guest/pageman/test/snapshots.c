/* A program of which a host makes snapshots, between calls and in the middle of them: it maps and frees memory at
 * random and knows what each byte of it has to be. */
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "common.h"
#include "pageman.h"

enum { BLOCKS = 64, PAGES = 6 };

static struct block {
    unsigned char *at;
    size_t length;
    unsigned char value;
    bool allocated; /* by malloc */
} blocks[BLOCKS];

static unsigned digest;

static bool all_are(const struct block *block, unsigned char value) {
    return block->at[0] == value && memcmp(block->at, block->at + 1, block->length - 1) == 0;
}

static void map(struct block *block) {
    block->length = (1 + random_below(PAGES)) * PAGEMAN_PAGE_SIZE;
    block->at = mmap(NULL, block->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(block->at != MAP_FAILED && all_are(block, 0));
    block->value = (unsigned char)(1 + random_below(255));
    memset(block->at, block->value, block->length);
}

#ifdef WITH_MALLOC
/* Takes a block of malloc's, or of calloc's. */
static void allocate(struct block *block) {
    bool zero = random_below(2);
    block->length = 1 + random_below(1u << (4 + random_below(15)));
    block->at = zero ? calloc(1, block->length) : malloc(block->length);
    EXPECT(block->at && (!zero || all_are(block, 0)));
    block->value = (unsigned char)(1 + random_below(255));
    block->allocated = true;
    memset(block->at, block->value, block->length);
}

/* Gives one back, or makes it longer or shorter. */
static void allocate_again(struct block *block) {
    size_t length = random_below(3) ? 0 : 1 + random_below(1u << (4 + random_below(15)));
    if (!length) {
        free(block->at);
        block->at = NULL;
        block->allocated = false;
        return;
    }
    size_t kept = length < block->length ? length : block->length;
    block->at = realloc(block->at, length);
    block->length = kept;
    EXPECT(block->at && all_are(block, block->value));
    block->length = length;
    memset(block->at, block->value, length);
}
#endif

/* Does so many random calls. What it returns depends on these alone, not on where and when they are done. */
__attribute__((export_name("turn"))) unsigned turn(unsigned calls) {
    for (; calls; calls--, step++) {
        struct block *block = &blocks[random_below(BLOCKS)];
#ifdef WITH_MALLOC
        if (block->allocated || (!block->at && random_below(2))) {
            if (block->at) EXPECT(all_are(block, block->value));
            if (block->at) allocate_again(block);
            else allocate(block);
        } else
#endif
        if (!block->at) {
            map(block);
        } else if (block->length > PAGEMAN_PAGE_SIZE && random_below(3) == 0) {
            block->length -= PAGEMAN_PAGE_SIZE;
            EXPECT(munmap(block->at + block->length, PAGEMAN_PAGE_SIZE) == 0);
        } else {
            EXPECT(all_are(block, block->value));
            EXPECT(munmap(block->at, block->length) == 0);
            block->at = NULL;
        }
        digest = digest * 31 + (unsigned)(block->at ? block->length + block->value : 1);
    }
    return digest;
}

/* Looks at all that is mapped and at the manager's tables; how many pages are free and dirty. */
__attribute__((export_name("verify"))) unsigned verify(void) {
    struct pageman_statistics statistics;
    for (struct block *block = blocks; block < blocks + BLOCKS; block++)
        EXPECT(!block->at || all_are(block, block->value));
    const char *wrong = pageman_check();
    if (wrong) fail_test("%s", wrong);
    pageman_statistics(&statistics);
    return (unsigned)statistics.dirty_pages;
}
