/* Several threads map, move and unmap, and allocate, at a time: none gets memory of another, and the tables are right afterwards. */
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"
#include "pageman.h"

#define THREADS 4
#define BLOCKS 24

static unsigned long operations = 250000; /* of each thread */

/* A thread's own memory: pages of the manager's, of mmap's, or a block of malloc's. */
struct block {
    unsigned char *at;
    size_t length;
    enum { OWN, MAPPED, ALLOCATED } kind;
};

static void mark_all(struct block *block, size_t from, unsigned char mark) {
    for (size_t at = from; at < block->length; at += 1024) block->at[at] = mark;
}

/* Some blocks are so large that they have pages of their own. */
static size_t size_max(uint64_t random) { return random >> 21 & 7 ? 96 << 10 : 640 << 10; }

static void make(struct block *block, uint64_t random) {
    block->kind = random % 3;
    block->length = block->kind == ALLOCATED ? 1 + (random >> 10) % size_max(random) : (1 + (random >> 10) % 6) * PAGEMAN_PAGE_SIZE;
    if (block->kind == ALLOCATED && random >> 24 & 1) {
        block->at = memalign((size_t)16 << (random >> 20) % 14, block->length);
    } else if (block->kind == ALLOCATED) {
        block->at = calloc(1, block->length);
        for (size_t at = 0; block->at && at < block->length; at += 1024)
            if (block->at[at]) fail_test("a byte of a new block is %d", block->at[at]);
    } else if (block->kind == OWN) {
        block->at = pageman_map(block->length, 0, (random >> 20) % 2);
    } else {
        block->at = mmap(NULL, block->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block->at == MAP_FAILED) block->at = NULL;
        for (size_t at = 0; block->at && at < block->length; at += 1024)
            if (block->at[at]) fail_test("a byte of new memory is %d", block->at[at]);
    }
    if (!block->at) fail_test("there is no memory");
}

/* Makes it longer or shorter; it may be elsewhere then, with what it held. */
static void resize(struct block *block, uint64_t random, unsigned char mark) {
    size_t old = block->length;
    if (block->kind == ALLOCATED) {
        block->length = 1 + random % size_max(random);
        block->at = realloc(block->at, block->length);
        if (!block->at) fail_test("there is no memory");
    } else {
        block->length = (1 + random % 6) * PAGEMAN_PAGE_SIZE;
        block->at = mremap(block->at, old, block->length, MREMAP_MAYMOVE);
        if (block->at == MAP_FAILED) fail_test("mremap");
    }
    /* The next place that has a mark, and all behind it. */
    if (block->length > old) mark_all(block, (old + 1023) / 1024 * 1024, mark);
}

static void drop(struct block *block) {
    if (block->kind == ALLOCATED) free(block->at);
    else if (munmap(block->at, block->length) != 0) fail_test("munmap");
    block->at = NULL;
}

static void *work(void *argument) {
    struct block blocks[BLOCKS] = {{0}};
    unsigned char mark = (unsigned char)(uintptr_t)argument;
    uint64_t state = 2 * (uint64_t)mark + 1;
    for (unsigned long i = 0; i < operations; i++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        struct block *block = &blocks[(state >> 33) % BLOCKS];
        if (!block->at) {
            make(block, state >> 38);
            mark_all(block, 0, mark);
            continue;
        }
        for (size_t at = 0; at < block->length; at += 1024)
            if (block->at[at] != mark) fail_test("thread %d: another was here", mark);
        if ((state >> 60) == 0) resize(block, state >> 38, mark);
        else drop(block);
    }
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].at) drop(&blocks[i]);
    return NULL;
}

static void *begin(void *argument) {
    unsigned char *block = malloc(1000);
    if (!block) fail_test("there is no memory");
    memset(block, (unsigned char)(uintptr_t)argument, 1000);
    for (int i = 0; i < 1000; i++)
        if (block[i] != (unsigned char)(uintptr_t)argument) fail_test("another thread was here");
    free(block);
    return NULL;
}

static atomic_bool all_have_begun;

/* Has maps of a file: other threads allocate and free while it is read and written. */
static void *map_files(void *argument) {
    static const char name[] = "threads.txt";
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, "first", 5) != 5) fail_test("%s", name);
    do {
        char *private = mmap(NULL, 100, PROT_READ, MAP_PRIVATE, fd, 0);
        char *shared = mmap(NULL, 100, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (private == MAP_FAILED || shared == MAP_FAILED) fail_test("a map of a file");
        if (memcmp(private, shared, 6) != 0) fail_test("two maps of a file differ");
        shared[0]++;
        if (munmap(shared, 100) != 0 || munmap(private, 100) != 0) fail_test("munmap of a map of a file");
    } while (!all_have_begun);
    close(fd);
    return argument;
}

/* Emscripten's threads allocate the memory of their own variables: by then nothing that is a thread's own tells them apart. */
static void begin_many(int times) {
    pthread_t threads[THREADS], mapper;
    if (pthread_create(&mapper, NULL, map_files, NULL) != 0) fail_test("a thread does not start");
    for (int time = 0; time < times; time++) {
        for (uintptr_t i = 0; i < THREADS; i++)
            if (pthread_create(&threads[i], NULL, begin, (void *)(i + 1)) != 0) fail_test("a thread does not start");
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    }
    all_have_begun = true;
    pthread_join(mapper, NULL);
}

int main(int argc, char **argv) {
    begin_many(argc > 2 ? atoi(argv[2]) : 0);
    if (argc > 1) operations = strtoul(argv[1], NULL, 0) / THREADS;
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(i + 1)) != 0) fail_test("a thread does not start");
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    const char *wrong = pageman_check();
    if (wrong) fail_test("%s", wrong);
    printf("%lu operations of %d threads\n", operations * THREADS, THREADS);
    return 0;
}
