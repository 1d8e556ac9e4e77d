/* A program that needs 512 MiB for a moment and 64 MiB afterwards: the host looks at its pages when it has ended. */
#include <string.h>
#include <sys/mman.h>

#include "common.h"
#include "pageman.h"

#define MIB ((size_t)1 << 20)
#define PIECE (MIB / 4)
#define PIECES (512 * 4)
#define KEPT (64 * 4)

static char *pieces[PIECES];

static char *map(size_t length) {
    char *address = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(address != MAP_FAILED);
    return address;
}

int main(void) {
    for (int i = 0; i < PIECES; i++) {
        pieces[i] = map(PIECE);
        memset(pieces[i], 1 + i % 255, PIECE);
    }
    for (int i = KEPT; i < PIECES; i++) EXPECT(munmap(pieces[i], PIECE) == 0);
    /* It goes on with a small part, and what was freed is given back by and by. */
    for (step = 0; step < 1200; step++) {
        char *small = map(PAGEMAN_PAGE_SIZE);
        small[step] = 1;
        EXPECT(munmap(small, PAGEMAN_PAGE_SIZE) == 0);
    }
    for (int i = 0; i < KEPT; i++) EXPECT(pieces[i][PIECE / 2] == (char)(1 + i % 255));
    struct pageman_statistics statistics;
    pageman_statistics(&statistics);
    printf("%d mapped, %d free, %d released\n", (int)statistics.mapped_pages, (int)statistics.free_pages,
           (int)statistics.released_pages);
    const char *wrong = pageman_check();
    if (wrong) fail_test("%s", wrong);
    return 0;
}
