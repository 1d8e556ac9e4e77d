/* What the tests share: random numbers that are the same everywhere, and failing with a sentence. */
#ifndef PAGEMAN_TEST_COMMON_H
#define PAGEMAN_TEST_COMMON_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t random_state = 1;
static unsigned long step; /* the operation that is being done */

/* xorshift64*, by Vigna. */
static inline uint64_t random_bits(void) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * UINT64_C(2685821657736338717);
}

static inline uint32_t random_below(uint32_t limit) { return (uint32_t)((random_bits() >> 32) * limit >> 32); }

static inline void seed_random(uint64_t seed) { random_state = seed * 2 + 1; }

__attribute__((format(printf, 1, 2), noreturn)) static inline void fail_test(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    fprintf(stderr, "operation %lu: ", step);
    vfprintf(stderr, format, rest);
    fprintf(stderr, "\n");
    va_end(rest);
    exit(1);
}

#define EXPECT(condition) ((condition) ? (void)0 : fail_test("%s:%d: not so: %s", __FILE__, __LINE__, #condition))

#endif
