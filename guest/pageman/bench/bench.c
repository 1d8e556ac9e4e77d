/* What a program asks of mmap, to be timed from outside: built with the manager, and with what C libraries have in
 * its place. It uses what all of them have. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define KIB ((size_t)1 << 10)
#define LIVE_MAX 100000

static char *live[LIVE_MAX];
static uint32_t live_count;
static size_t live_length;

static char *try_map(size_t length) {
    char *address = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return address == MAP_FAILED ? NULL : address;
}

/* What is done with memory between: bits of `written`. */
enum { WRITE = 1, WITHOUT_ZEROS = 2 };

/* Where there are other ways than with zeros. */
#ifndef MAP_UNINITIALIZED
#define MAP_UNINITIALIZED 0
#endif

static char *map(size_t length, uint32_t written) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (written & WITHOUT_ZEROS ? MAP_UNINITIALIZED : 0);
    char *address = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (address == MAP_FAILED) __builtin_trap();
    return address;
}

static void unmap(char *address, size_t length) {
    if (munmap(address, length) != 0) __builtin_trap();
}

/* A byte in each of the host's pages. */
static void touch(char *address, size_t length) {
    for (size_t at = 0; at < length; at += 4096) address[at] = 1;
}

/* Maps so many KiB and unmaps them again, `count` times. */
__attribute__((export_name("map_and_unmap"))) uint32_t map_and_unmap(uint32_t kib, uint32_t count, uint32_t written) {
    for (uint32_t i = 0; i < count; i++) {
        char *address = map(kib * KIB, written);
        if (written & WRITE) touch(address, kib * KIB);
        unmap(address, kib * KIB);
    }
    return count;
}

/* Maps so many KiB `count` times, and keeps them. */
__attribute__((export_name("map_fresh"))) uint32_t map_fresh(uint32_t kib, uint32_t count, uint32_t written) {
    for (uint32_t i = 0; i < count; i++) {
        char *address = map(kib * KIB, written);
        if (written & WRITE) touch(address, kib * KIB);
    }
    return count;
}

/* Makes `count` maps of so many KiB to live beside what `one_of_many` does, or as many as there is room for. They
 * are written to, as all that is in use is. */
__attribute__((export_name("fill"))) uint32_t fill(uint32_t kib, uint32_t count, uint32_t unused) {
    (void)unused;
    live_length = kib * KIB;
    while (live_count < count && (live[live_count] = try_map(live_length))) touch(live[live_count++], live_length);
    return live_count;
}

/* Unmaps one of these, here and there, and maps another instead, `count` times: `reserved`, without access, so that
 * nothing has to be cleared. */
__attribute__((export_name("one_of_many"))) uint32_t one_of_many(uint32_t kib, uint32_t count, uint32_t reserved) {
    (void)kib;
    static uint32_t at;
    int protection = reserved ? PROT_NONE : PROT_READ | PROT_WRITE;
    for (uint32_t i = 0; i < count; i++) {
        at = (at + 7919) % live_count;
        unmap(live[at], live_length);
        live[at] = mmap(NULL, live_length, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (live[at] == MAP_FAILED) __builtin_trap();
    }
    return count;
}

static uint32_t holes[LIVE_MAX], hole_count;

/* Unmaps `count` of the live maps, here and there, and nothing else. */
__attribute__((export_name("unmap_some"))) uint32_t unmap_some(uint32_t kib, uint32_t count, uint32_t unused) {
    (void)kib, (void)unused;
    static uint32_t at;
    for (uint32_t i = 0; i < count; i++) {
        at = (at + 7919) % live_count;
        unmap(live[at], live_length);
        holes[hole_count++] = at;
    }
    return count;
}

/* Maps others in their places. */
__attribute__((export_name("refill"))) uint32_t refill(uint32_t kib, uint32_t unused, uint32_t written) {
    (void)kib, (void)unused;
    uint32_t count = hole_count;
    while (hole_count) touch(live[holes[--hole_count]] = map(live_length, written), live_length);
    return count;
}
