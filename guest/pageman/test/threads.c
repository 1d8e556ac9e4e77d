/* Several threads map and unmap at a time: none gets pages of another, and the tables are right afterwards. */
#include <pthread.h>
#include <string.h>

#include "common.h"
#include "pageman.h"

#define THREADS 4
#define BLOCKS 24

static unsigned long operations = 250000; /* of each thread */

static void *work(void *argument) {
    struct block {
        unsigned char *at;
        size_t pages;
    } blocks[BLOCKS] = {{0}};
    unsigned char mark = (unsigned char)(uintptr_t)argument;
    uint64_t state = 2 * (uint64_t)mark + 1;
    for (unsigned long i = 0; i < operations; i++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        struct block *block = &blocks[(state >> 33) % BLOCKS];
        if (block->at) {
            for (size_t page = 0; page < block->pages; page++)
                if (block->at[page * PAGEMAN_PAGE_SIZE] != mark) fail_test("thread %d: another was here", mark);
            if (pageman_unmap(block->at, block->pages * PAGEMAN_PAGE_SIZE) != PAGEMAN_OK) fail_test("unmap");
            block->at = NULL;
        } else {
            block->pages = 1 + (state >> 40) % 6;
            block->at = pageman_map(block->pages * PAGEMAN_PAGE_SIZE, 0, (state >> 50) % 2);
            if (!block->at) fail_test("there is no memory");
            for (size_t page = 0; page < block->pages; page++) block->at[page * PAGEMAN_PAGE_SIZE] = mark;
        }
    }
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].at) pageman_unmap(blocks[i].at, blocks[i].pages * PAGEMAN_PAGE_SIZE);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc > 1) operations = strtoul(argv[1], NULL, 0) / THREADS;
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(i + 1)) != 0) fail_test("a thread does not start");
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    const char *wrong = pageman_check();
    if (wrong) fail_test("%s", wrong);
    struct pageman_statistics statistics;
    pageman_statistics(&statistics);
    /* The C library has pages, too, by sbrk. */
    if (statistics.maps != statistics.unmaps) fail_test("%d blocks are left", (int)(statistics.maps - statistics.unmaps));
    printf("%lu operations of %d threads\n", operations * THREADS, THREADS);
    return 0;
}
