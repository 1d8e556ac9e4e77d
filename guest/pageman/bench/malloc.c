/* What a program asks of malloc, to be timed from outside: built with malloc on the manager, with the C library's malloc
 * on the manager, and without it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LIVE 20000

static struct {
    unsigned char *at;
    uint32_t size;
} live[LIVE];

static uint64_t state;

static uint32_t below(uint32_t limit) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 32) * limit >> 32);
}

/* Mostly small, as programs' are; `spread` is the power of two that they stay below. */
static uint32_t random_size(uint32_t spread) { return 1 + below(1u << (4 + below(spread - 3))); }

static void allocate(uint32_t index, uint32_t size) {
    live[index].at = malloc(size);
    if (!live[index].at) __builtin_trap();
    live[index].size = size;
    live[index].at[0] = live[index].at[size - 1] = (unsigned char)index;
}

static void release(uint32_t index) {
    if (live[index].at[0] != (unsigned char)index) __builtin_trap();
    free(live[index].at);
    live[index].at = NULL;
}

/* Of the first `blocks`: a look at more would be what is measured. */
static void release_all(uint32_t blocks) {
    for (uint32_t i = 0; i < blocks; i++)
        if (live[i].at) release(i);
}

/* Blocks below 2^`spread` bytes come and go at random beside up to `blocks` others. */
__attribute__((export_name("churn"))) uint32_t churn(uint32_t spread, uint32_t count, uint32_t blocks) {
    state = 1;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = below(blocks);
        if (live[index].at) release(index);
        else allocate(index, random_size(spread));
    }
    release_all(blocks);
    return count;
}

/* Lists are built and dropped as a whole, as a parser's or a request's. */
__attribute__((export_name("lists"))) uint32_t lists(uint32_t spread, uint32_t count, uint32_t blocks) {
    state = 2;
    for (uint32_t i = 0; i < count;) {
        for (uint32_t j = 0; j < blocks && i < count; j++, i++) allocate(j, random_size(spread));
        release_all(blocks);
    }
    return count;
}

/* Blocks grow by half until they have 2^`spread` bytes, side by side. */
__attribute__((export_name("grow"))) uint32_t grow(uint32_t spread, uint32_t count, uint32_t blocks) {
    state = 3;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = below(blocks);
        if (!live[index].at) {
            allocate(index, 32);
            continue;
        }
        uint32_t size = live[index].size + live[index].size / 2;
        if (size > 1u << spread) {
            release(index);
            continue;
        }
        unsigned char *grown = realloc(live[index].at, size);
        if (!grown) __builtin_trap();
        memset(grown + live[index].size, 1, size - live[index].size);
        live[index].at = grown;
        live[index].size = size;
    }
    release_all(blocks);
    return count;
}

/* Large blocks of zeros, of which a part is written. */
__attribute__((export_name("zeros"))) uint32_t zeros(uint32_t spread, uint32_t count, uint32_t blocks) {
    state = 4;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = below(blocks), size = (1u << (spread - 1)) + below(1u << (spread - 1));
        if (live[index].at) release(index);
        live[index].at = calloc(1, size);
        if (!live[index].at || live[index].at[size - 1]) __builtin_trap();
        live[index].size = size;
        for (uint32_t at = 0; at < size / 2; at += 4096) live[index].at[at] = (unsigned char)index;
        live[index].at[0] = (unsigned char)index;
    }
    release_all(blocks);
    return count;
}
