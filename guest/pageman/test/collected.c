/* How much each policy fragments the memory of a collector: the example, which runs for long on the manager, and whose calls are
 * the trace. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "common.h"
#include "port_native.h"

void *pageman_posix_mmap(void *, size_t, int, int, int, off_t);
int pageman_posix_munmap(void *, size_t);
int pageman_posix_mprotect(void *, size_t, int);

static struct {
    page_t most;
    uint64_t longest, turns, calls;
    double share;
} seen;

/* Each call of the collector is one of its trace. Once memory has been full for the first time, it counts. */
static void look(void) {
    page_t live = manager.pages - manager.free - manager.foreign - manager.internal - (recent.end - recent.start);
    if (live > seen.most) seen.most = live;
    if (++seen.calls % 64 == 0) {
        tables_settle();
        seen.turns++;
        seen.share += (double)live / (manager.pages - manager.first);
        seen.longest += longest_run(CLASS_FREE);
    }
}

static void *traced_mmap(void *address, size_t length, int protection, int flags, int descriptor, off_t offset) {
    void *mapped = pageman_posix_mmap(address, length, protection, flags, descriptor, offset);
    look();
    return mapped;
}

static int traced_munmap(void *address, size_t length) {
    int result = pageman_posix_munmap(address, length);
    look();
    return result;
}

#define mmap traced_mmap
#define munmap traced_munmap
#define mprotect pageman_posix_mprotect
#define main collector_main
#include "../examples/collector.c"
#undef main

int main(int argc, char **argv) {
    static const char *const names[] = {"first fit", "best fit", "two ends", "by length"};
    EXPECT(argc == 4); /* the policy, trees, and arrays */
    int policy = 0;
    while (strcmp(names[policy], argv[1]) != 0) EXPECT(++policy < 4);
    native_reset(PAGES_MAX / 2, 32, 4096);
    pageman_set_policy((enum pageman_policy)policy);
    char *arguments[] = {argv[0], argv[2], argv[3], NULL};
    EXPECT(collector_main(3, arguments) == 0);
    const char *wrong = pageman_check();
    if (wrong) fail_test("%s", wrong);
    double at_most = 100.0 * seen.most / (manager.pages - manager.first), longest = (double)seen.longest / (double)seen.turns;
    printf("%-9s  %lu calls, of %u pages %.1f %% in use at most, %.1f %% on average, longest free run %.0f pages\n", names[policy],
           (unsigned long)seen.calls, (unsigned)(manager.pages - manager.first), at_most, 100 * seen.share / (double)seen.turns,
           longest);
    /* What is published of a like manager, in memory that is large enough to have such runs. */
    if (policy == PAGEMAN_BY_LENGTH && array_count >= 128) EXPECT(at_most >= 76.55 && longest >= 461);
    return 0;
}
