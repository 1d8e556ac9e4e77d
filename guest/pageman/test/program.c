/* What programs rely on, as a program: malloc and mmap share memory, zeros are promised and kept, memory that was
 * freed is had again. It runs in a WebAssembly runtime with malloc on top of the manager. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"
#include "pageman.h"

#define MIB ((size_t)1 << 20)
#define PAGE pageman_page_size()

static void check(void) {
    const char *wrong = pageman_check();
    if (wrong) fail_test("%s", wrong);
}

/* Compilers believe that malloc leaves errno alone, and succeeds where nothing uses the block, and
 * that what calloc returns is zero without a look at it. */
static void *(*volatile do_malloc)(size_t) = malloc;
static void *(*volatile do_calloc)(size_t, size_t) = calloc;
static void *(*volatile do_realloc)(void *, size_t) = realloc;
static void *(*volatile do_aligned_alloc)(size_t, size_t) = aligned_alloc;

static bool all_are(const unsigned char *bytes, size_t length, unsigned char value) {
    return length == 0 || (bytes[0] == value && memcmp(bytes, bytes + 1, length - 1) == 0);
}

static void *map(size_t length) {
    void *address = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return address == MAP_FAILED ? NULL : address;
}

static uint64_t memory_pages(void) {
    struct pageman_statistics statistics;
    pageman_statistics(&statistics);
    return statistics.memory_pages;
}

#ifdef DLMALLOC
/* malloc begins behind the program's data, within the page these end in, where the C library may have asked it for a few KiB
 * already; the break is behind that page, and does not come back into it. */
static void the_first_page_is_used(void) {
    extern unsigned char __heap_base;
    uintptr_t first = (uintptr_t)malloc(1), heap = (uintptr_t)&__heap_base, end = (heap + PAGE - 1) / PAGE * PAGE;
    if (end - heap < 1024) return;
    EXPECT((uintptr_t)sbrk(0) == end && (first < end || end - heap < 16384));
    EXPECT(sbrk(-1) == (void *)-1 && errno == ENOMEM);
    EXPECT((uintptr_t)sbrk((intptr_t)PAGE) >= end && sbrk(-(intptr_t)PAGE) != (void *)-1);
}

/* Free blocks of malloc's are pages for others once it is asked for them. */
static void free_blocks_are_given_back(void) {
    int malloc_trim(size_t keep);
    static void *blocks[16];
    malloc_trim(0);
    struct pageman_statistics before, after;
    pageman_statistics(&before);
    for (int i = 0; i < 16; i++) EXPECT((blocks[i] = malloc(100000)));
    for (int i = 0; i < 16; i++) free(blocks[i]);
    EXPECT(malloc_trim(0) == 1);
    pageman_statistics(&after);
    EXPECT(after.mapped_pages <= before.mapped_pages + 65536 / PAGE && malloc_trim(0) == 0);
    check();
}
#endif

/* Most of memory by mmap, free, by malloc, free, and so on: memory does not grow after the first turn. */
static void back_and_forth(void) {
    enum { PIECES = 48 };
    static void *pieces[PIECES];
    uint64_t pages = 0;
    for (int turn = 0; turn < 100; turn++) {
        step = (unsigned long)turn;
        for (int i = 0; i < PIECES; i++) {
            pieces[i] = map(MIB);
            EXPECT(pieces[i] && all_are(pieces[i], MIB, 0));
            memset(pieces[i], 0xaa, MIB);
        }
        for (int i = 0; i < PIECES; i++) EXPECT(munmap(pieces[i], MIB) == 0);
        for (int i = 0; i < PIECES; i++) {
            pieces[i] = i % 2 ? malloc(MIB - 4096) : do_calloc(1, MIB - 4096);
            EXPECT(pieces[i]);
            EXPECT(i % 2 || all_are(pieces[i], MIB - 4096, 0));
            memset(pieces[i], 0xbb, MIB - 4096);
        }
        for (int i = 0; i < PIECES; i++) free(pieces[i]);
        check();
        if (turn == 1) pages = memory_pages();
        if (turn > 1) EXPECT(memory_pages() == pages);
    }
}

/* calloc of large blocks from fresh memory writes nothing. */
static void large_calloc_clears_nothing(void) {
    struct pageman_statistics before, after;
    pageman_statistics(&before);
    unsigned char *block = do_calloc(before.free_pages * PAGE / MIB + 64, MIB);
    pageman_statistics(&after);
    EXPECT(block);
    EXPECT(after.cleared_pages - before.cleared_pages <= before.dirty_pages);
    free(block);
    block = do_calloc(1, 3 * MIB);
    EXPECT(block && all_are(block, 3 * MIB, 0));
    free(block);
    check();
}

/* Makes all free memory, and so much that is fresh, hold other bytes than zeros. */
static void soil(size_t fresh) {
    static struct run {
        struct run *next;
        size_t length;
    } *runs = NULL;
    for (;;) {
        struct pageman_statistics statistics;
        pageman_statistics(&statistics);
        size_t length = statistics.longest_free_run * PAGE;
        if (!length && !fresh) break;
        if (!length) length = fresh, fresh = 0;
        struct run *run = pageman_map(length, 0, PAGEMAN_ANY);
        EXPECT(run);
        memset(run, 0xee, length);
        *run = (struct run){runs, length};
        runs = run;
    }
    while (runs) {
        struct run run = *runs;
        EXPECT(pageman_unmap(runs, run.length) == PAGEMAN_OK);
        runs = run.next;
    }
}

/* Where blocks begin to have pages of their own, which is at a few bytes less than a limit because malloc adds some, calloc
 * reads zero, too, even if no free page does. All blocks stay, so that none is made of an earlier one. */
static void calloc_is_zero_at_every_size_around_a_limit(void) {
    static const size_t limits[] = {262144, 524288};
    enum { AROUND = 150 };
    static unsigned char *blocks[2 * AROUND];
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        soil(256 * MIB);
        for (size_t at = 0; at < 2 * AROUND; at++) {
            size_t size = step = limits[i] - AROUND + at;
            EXPECT((blocks[at] = do_calloc(1, size)));
            if (!all_are(blocks[at], size, 0)) fail_test("%zu bytes of calloc are not all zero", size);
        }
        for (size_t at = 0; at < 2 * AROUND; at++) free(blocks[at]);
    }
    check();
}

/* Callers of malloc, its relatives and mmap mixed: nothing overlaps, nothing is lost, zeros are zeros. */
static void mixed(unsigned long operations) {
    enum { BLOCKS = 400 };
    static struct block {
        unsigned char *at;
        size_t size;
        unsigned char value;
        bool mapped;
    } blocks[BLOCKS];
    for (step = 0; step < operations; step++) {
        struct block *block = &blocks[random_below(BLOCKS)];
        if (block->at) {
            if (!all_are(block->at, block->size, block->value)) fail_test("a block was changed by others");
            if (block->mapped) {
                /* In pieces, from anywhere in it. */
                size_t pages = (block->size + PAGE - 1) / PAGE, at = random_below((uint32_t)pages);
                EXPECT(munmap(block->at + at * PAGE, (pages - at) * PAGE) == 0);
                if (at) EXPECT(munmap(block->at, at * PAGE) == 0);
            } else if (random_below(4) == 0) {
                size_t size = 1 + random_below(1u << (4 + random_below(14)));
                unsigned char *at = realloc(block->at, size);
                EXPECT(at && all_are(at, size < block->size ? size : block->size, block->value));
                memset(at, block->value, size);
                block->at = at;
                block->size = size;
                continue;
            } else {
                free(block->at);
            }
            block->at = NULL;
            continue;
        }
        size_t size = 1 + random_below(1u << (4 + random_below(random_below(20) ? 12 : 17)));
        unsigned way = random_below(6);
        bool zero = way == 1 || way == 4;
        void *at = NULL;
        switch (way) {
        case 1: at = do_calloc(size, 1); break;
        case 2: at = aligned_alloc((size_t)1 << (4 + random_below(8)), size); break;
        case 3: EXPECT(posix_memalign(&at, 64, size) == 0); break;
        case 4: at = map(size); break;
        default: at = malloc(size); break;
        }
        EXPECT(at);
        if (zero && !all_are(at, size, 0)) fail_test("zeros were promised (way %u, %zu bytes)", way, size);
        block->at = at;
        block->size = size;
        block->mapped = way == 4;
        block->value = (unsigned char)(1 + random_below(255));
        memset(at, block->value, size);
        if (step % 64 == 0) check();
    }
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].at) {
            if (blocks[i].mapped) munmap(blocks[i].at, blocks[i].size);
            else free(blocks[i].at);
            blocks[i].at = NULL;
        }
    check();
}

/* Not all C libraries' headers have these. */
void *memalign(size_t, size_t);
void *valloc(size_t);
void *reallocarray(void *, size_t, size_t);
size_t malloc_usable_size(void *);

/* Each entry point of malloc, with what careless programs ask of it. */
static void entry_points(void) {
    static const size_t too_much[] = {SIZE_MAX, SIZE_MAX - 7, SIZE_MAX - 64, SIZE_MAX - 4095, SIZE_MAX - 65535,
                                      SIZE_MAX - 3 * MIB, SIZE_MAX / 2 + 1};
    free(NULL);
    void *nothing = malloc(0), *block = malloc(1000), *aligned = NULL;
    EXPECT(nothing && block && nothing != block && malloc_usable_size(block) >= 1000 && malloc_usable_size(NULL) == 0);
    free(nothing);
    memset(block, 0x11, 1000);
    for (step = 0; step < sizeof too_much / sizeof *too_much; step++) {
        size_t size = too_much[step];
        for (int way = 0; way < 6; way++) {
            errno = 0;
            void *had = way == 0   ? do_malloc(size)
                        : way == 1 ? do_calloc(1, size)
                        : way == 2 ? do_calloc(size / 16 + 1, 17)
                        : way == 3 ? do_realloc(block, size)
                        : way == 4 ? reallocarray(block, size / 16 + 1, 17)
                                   : do_aligned_alloc(1 << 16, size);
            if (had || errno != ENOMEM) fail_test("way %d to have %zu bytes: %p, errno %d", way, size, had, errno);
        }
        EXPECT(posix_memalign(&aligned, 64, size) == ENOMEM && aligned == NULL);
    }
    EXPECT(all_are(block, 1000, 0x11));
    EXPECT(posix_memalign(&aligned, 3, 10) == EINVAL && posix_memalign(&aligned, 0, 10) == EINVAL);
    EXPECT(posix_memalign(&aligned, 48, 10) == EINVAL && aligned == NULL);
    /* From no alignment at all to 16 MiB. */
    static const size_t sizes[] = {0, 1, 100, 5000, 70000, 300000, 3 * MIB};
    for (step = 0; step <= 24; step++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            size_t alignment = (size_t)1 << step;
            void *had[3] = {aligned_alloc(alignment, sizes[i]), memalign(alignment, sizes[i]), NULL};
            if (alignment >= sizeof(void *)) EXPECT(posix_memalign(&had[2], alignment, sizes[i]) == 0 && had[2]);
            for (int way = 0; way < 3; way++) {
                EXPECT(way == 2 || had[way]);
                EXPECT((uintptr_t)had[way] % alignment == 0);
                if (had[way]) EXPECT(malloc_usable_size(had[way]) >= sizes[i]);
                if (had[way]) memset(had[way], way, sizes[i]);
            }
            for (int way = 0; way < 3; way++) {
                EXPECT(!had[way] || all_are(had[way], sizes[i], (unsigned char)way));
                free(had[way]);
            }
        }
    void *page = valloc(10);
    EXPECT(page && (uintptr_t)page % PAGE == 0);
    free(page);
    /* Up to 48 MiB and down again, where it is or elsewhere. */
    for (size_t size = 2000; size < 48 * MIB; size += size / 2) {
        EXPECT((block = realloc(block, size)) && all_are(block, 1000, 0x11));
        ((unsigned char *)block)[size - 1] = 1;
    }
    for (size_t size = 40 * MIB; size > 1000; size -= size / 3) EXPECT((block = realloc(block, size)));
    EXPECT(all_are(block, 1000, 0x11));
    free(block);
    EXPECT((block = reallocarray(NULL, 10, 100)) && (block = reallocarray(block, 20, 100)));
    free(block);
    check();
}

/* Aligned blocks become shorter and longer: each keeps what it had and shares no byte with those made after it. */
static void aligned_blocks_are_resized(void) {
    size_t sizes[] = {1000, 100 * 1024, 300 * 1024, 8 * 65536 - 4096, 2 * MIB + 4096};
    for (size_t alignment = 32; alignment <= MIB; alignment *= 2) {
        for (int from = 0; from < 5; from++) {
            for (int to = 0; to < 5; to++) {
                size_t had = (sizes[from] + alignment - 1) / alignment * alignment, has = sizes[to];
                unsigned char *block = do_aligned_alloc(alignment, had);
                EXPECT(block && (uintptr_t)block % alignment == 0);
                memset(block, 1, had);
                EXPECT((block = do_realloc(block, has)) && all_are(block, had < has ? had : has, 1));
                unsigned char *others[2] = {do_malloc(300 * 1024), do_malloc(100)};
                EXPECT(others[0] && others[1]);
                memset(others[0], 2, 300 * 1024);
                memset(others[1], 3, 100);
                EXPECT(all_are(block, had < has ? had : has, 1));
                memset(block, 4, has);
                EXPECT(all_are(others[0], 300 * 1024, 2) && all_are(others[1], 100, 3));
                free(block), free(others[0]), free(others[1]);
            }
        }
    }
    check();
}

/* As a collector of garbage gets a block of 2 MiB at a multiple of its size, and frees it in pieces. */
static void over_map_and_trim(void) {
    for (step = 0; step < 50; step++) {
        size_t block = 2 * MIB;
        unsigned char *over = mmap(NULL, 2 * block, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        EXPECT(over != MAP_FAILED);
        unsigned char *aligned = (unsigned char *)(((uintptr_t)over + block - 1) & ~(uintptr_t)(block - 1));
        if (aligned != over) EXPECT(munmap(over, (size_t)(aligned - over)) == 0);
        size_t tail = (size_t)(over + 2 * block - (aligned + block));
        if (tail) EXPECT(munmap(aligned + block, tail) == 0);
        EXPECT(mprotect(aligned, block, PROT_READ | PROT_WRITE) == 0);
        EXPECT(all_are(aligned, block, 0));
        memset(aligned, 0xcc, block);
        /* The middle of a run of many pages, then the rest. */
        EXPECT(munmap(aligned + 4 * PAGE, block - 8 * PAGE) == 0);
        EXPECT(all_are(aligned, 4 * PAGE, 0xcc) && all_are(aligned + block - 4 * PAGE, 4 * PAGE, 0xcc));
        EXPECT(munmap(aligned, block) == 0);
        check();
    }
    /* The manager's own way needs no trimming. */
    void *own = pageman_map(2 * MIB, 2 * MIB, PAGEMAN_ZERO);
    EXPECT(own && (uintptr_t)own % (2 * MIB) == 0 && pageman_unmap(own, 2 * MIB) == 0);
    /* The middle of a run of more than 64 pages. */
    size_t pages = 200;
    unsigned char *run = map(pages * PAGE);
    EXPECT(run);
    memset(run, 1, pages * PAGE);
    EXPECT(munmap(run + 50 * PAGE, 100 * PAGE) == 0);
    EXPECT(pageman_state_of(run + 49 * PAGE) >= PAGEMAN_USED && pageman_state_of(run + 50 * PAGE) < PAGEMAN_FOREIGN &&
           pageman_state_of(run + 149 * PAGE) < PAGEMAN_FOREIGN && pageman_state_of(run + 150 * PAGE) >= PAGEMAN_USED);
    EXPECT(munmap(run, pages * PAGE) == 0);
    check();
}

/* Blocks of 16 pages, of 64 KiB where these have 4, freed a piece at a time in other orders: what is not freed yet stays, a
 * piece is had again alone, and at last the whole block at its place. */
static void freed_in_pieces(void) {
    enum { BLOCKS = 24, PIECES = 16 };
    static unsigned char *blocks[BLOCKS];
    size_t length = PIECES * PAGE;
    uint64_t pages = 0;
    for (step = 0; step < 20; step++) {
        for (int i = 0; i < BLOCKS; i++) {
            EXPECT((blocks[i] = map(length)) && all_are(blocks[i], length, 0));
            memset(blocks[i], 1 + i, length);
        }
        for (int freed = 1; freed <= PIECES; freed++) {
            for (int i = 0; i < BLOCKS; i++) {
                /* From the start, from the end, and here and there: multiples of an odd number meet every piece. */
                int orders[] = {freed - 1, PIECES - freed, (freed * 5 + i) % PIECES};
                unsigned char *piece = blocks[i] + (size_t)orders[i % 3] * PAGE;
                EXPECT(all_are(piece, PAGE, 1 + (unsigned char)i) && munmap(piece, PAGE) == 0);
            }
            check();
            for (int i = 0; i < BLOCKS; i++) {
                int left = 0;
                for (int j = 0; j < PIECES; j++) {
                    if (pageman_state_of(blocks[i] + (size_t)j * PAGE) < PAGEMAN_USED) continue;
                    EXPECT(all_are(blocks[i] + (size_t)j * PAGE, PAGE, 1 + (unsigned char)i));
                    left++;
                }
                EXPECT(left == PIECES - freed);
            }
            if (freed == PIECES) break;
            unsigned char *again = map(PAGE);
            EXPECT(again && all_are(again, PAGE, 0) && munmap(again, PAGE) == 0);
        }
        for (int i = 0; i < BLOCKS; i++) {
            int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
            EXPECT(mmap(blocks[i], length, PROT_READ | PROT_WRITE, flags, -1, 0) == blocks[i]);
            EXPECT(all_are(blocks[i], length, 0));
        }
        if (step == 1) pages = memory_pages();
        if (step > 1) EXPECT(memory_pages() == pages);
        for (int i = 0; i < BLOCKS; i++) EXPECT(munmap(blocks[i], length) == 0);
        check();
    }
}

#ifdef __wasm__
/* Grows memory past the manager; where it begins. */
static size_t grow_memory(size_t wasm_pages) {
    size_t page = __builtin_wasm_memory_grow(0, wasm_pages);
#ifdef __EMSCRIPTEN__
    /* JavaScript's views of memory are of its old size. */
    extern void emscripten_notify_memory_growth(size_t);
    emscripten_notify_memory_growth(0);
#endif
    return page;
}
#endif

/* Memory that others grow is left alone. */
static void foreign_memory(void) {
#ifdef __wasm__
    size_t page = grow_memory(3);
    EXPECT(page != (size_t)-1);
    unsigned char *foreign = (unsigned char *)(page << 16);
    memset(foreign, 0x77, 3 << 16);
    void *behind = map(64 * MIB);
    EXPECT(behind);
    EXPECT(pageman_state_of(foreign) == PAGEMAN_FOREIGN);
    errno = 0;
    EXPECT(munmap(foreign, 3 << 16) == -1 && errno == EINVAL);
    EXPECT(munmap(behind, 64 * MIB) == 0);
    EXPECT(all_are(foreign, 3 << 16, 0x77));
    check();
#endif
}

/* What sbrk gives after going down and up again reads zero, too. */
static void breaks(void) {
    unsigned char *old = sbrk(0);
    EXPECT(old != (void *)-1);
    unsigned char *at = sbrk((intptr_t)(3 * PAGE));
    EXPECT(at != (void *)-1 && all_are(at, 3 * PAGE, 0));
    memset(at, 0x44, 3 * PAGE);
    EXPECT(sbrk(-(intptr_t)(2 * PAGE)) == at + 3 * PAGE);
    unsigned char *again = sbrk((intptr_t)(2 * PAGE));
    EXPECT(again == at + PAGE);
    /* The rest of a page that stayed keeps what it had. */
    size_t kept = (PAGE - (uintptr_t)again % PAGE) % PAGE;
    EXPECT(all_are(again, kept, 0x44) && all_are(again + kept, PAGE, 0));
    EXPECT(sbrk(-(intptr_t)(3 * PAGE)) != (void *)-1);
    check();
}

/* Memory of a file: private memory leaves it alone, shared memory is written back by msync and munmap. */
static void files(const char *directory) {
    char name[256], text[64];
    snprintf(name, sizeof name, "%s/pageman.txt", directory);
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) fail_test("%s: %s", name, strerror(errno));
    EXPECT(write(fd, "what the file holds", 19) == 19);
    char *shared = mmap(NULL, 100, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *private = mmap(NULL, 100, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    EXPECT(shared != MAP_FAILED && private != MAP_FAILED);
    EXPECT(memcmp(shared, "what the file holds", 20) == 0 && strcmp(private, "what the file holds") == 0);
    EXPECT(all_are((unsigned char *)shared + 19, PAGE - 19, 0));
    memcpy(private, "mine", 4);
    memcpy(shared, "WHAT", 4);
    EXPECT(msync(shared, 100, MS_SYNC) == 0 && pread(fd, text, 64, 0) == 19 && memcmp(text, "WHAT the", 8) == 0);
    memcpy(shared + 5, "THE", 3);
    EXPECT(munmap(shared, 100) == 0 && pread(fd, text, 64, 0) == 19 && memcmp(text, "WHAT THE file", 13) == 0);
    EXPECT(munmap(private, 100) == 0 && pread(fd, text, 64, 0) == 19 && memcmp(text, "WHAT", 4) == 0);
    /* POSIX's errors. */
    errno = 0;
    EXPECT(mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EINVAL);
    EXPECT(mmap(NULL, 10, PROT_READ, MAP_PRIVATE, fd, 1) == MAP_FAILED && errno == EINVAL);
    EXPECT(mmap(NULL, 10, PROT_READ, 0, fd, 0) == MAP_FAILED && errno == EINVAL);
    EXPECT(mmap(NULL, 10, PROT_READ, MAP_PRIVATE, 99, 0) == MAP_FAILED && errno == EBADF);
    close(fd);
    fd = open(name, O_RDONLY);
    EXPECT(mmap(NULL, 10, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EACCES);
    shared = mmap(NULL, 10, PROT_READ, MAP_SHARED, fd, 0);
    EXPECT(shared != MAP_FAILED && mprotect(shared, 10, PROT_READ | PROT_WRITE) == -1 && errno == EACCES);
    EXPECT(munmap(shared, 10) == 0);
    close(fd);
    /* What has the number of a closed descriptor is not written to, and nothing is lost. */
    char other[256];
    snprintf(other, sizeof other, "%s/other.txt", directory);
    fd = open(name, O_RDWR);
    shared = mmap(NULL, 100, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT(shared != MAP_FAILED);
    memcpy(shared, "lost", 4);
    close(fd);
    EXPECT(munmap(shared, 100) == -1 && errno == EBADF);
    EXPECT(open(other, O_RDWR | O_CREAT | O_TRUNC, 0600) == fd && write(fd, "mine", 4) == 4);
    EXPECT(munmap(shared, 100) == -1 && errno == EBADF && msync(shared, 100, MS_SYNC) == -1);
    EXPECT(pread(fd, text, 64, 0) == 4 && memcmp(text, "mine", 4) == 0);
    close(fd);
    EXPECT(open(name, O_RDWR) == fd && munmap(shared, 100) == 0);
    EXPECT(pread(fd, text, 64, 0) == 19 && memcmp(text, "lost", 4) == 0);
    close(fd);
    /* What cannot be read stays where it is, as it is, whether it would have to move or not. */
    fd = open(name, O_RDWR);
    private = mmap(NULL, 100, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    EXPECT(private != MAP_FAILED);
    memcpy(private, "mine", 4);
    close(fd);
    for (int turn = 0; turn < 4; turn++) {
        if (turn == 1) EXPECT(open(name, O_WRONLY) == fd);
        if (turn == 2) EXPECT(mmap(private + PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == private + PAGE);
        if (turn == 3) close(fd);
        errno = 0;
        EXPECT(mremap(private, 100, 3 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EBADF);
        EXPECT(memcmp(private, "mine", 4) == 0);
        if (turn % 3 == 0) EXPECT(madvise(private, 100, MADV_DONTNEED) == -1 && errno == EBADF && memcmp(private, "mine", 4) == 0);
        check();
    }
    EXPECT(munmap(private, 2 * PAGE) == 0);
    unlink(other);
    fd = open(directory, O_RDONLY | O_DIRECTORY);
    EXPECT(mmap(NULL, 10, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && (errno == ENODEV || errno == EACCES));
    close(fd);
    unlink(name);
    check();
}

/* Nearly all of 4 GiB can be had, and no number overflows there. */
static void all_of_memory(void) {
    static void *pieces[64];
    int count = 0;
    for (size_t size = 1024 * MIB; size >= 16 * MIB; size /= 2) {
        void *piece;
        while (count < 64 && (piece = map(size))) {
            ((unsigned char *)piece)[size - 1] = 1;
            pieces[count++] = piece;
        }
    }
    /* Nothing ends where addresses begin again. */
    uintptr_t top = 0;
    for (uintptr_t page; (page = (uintptr_t)map(PAGE)); top = page > top ? page : top) continue;
    EXPECT(top + PAGE != 0 && top + PAGE + 65536 == 0);
    check();
    EXPECT(map(1024 * MIB) == NULL);
    EXPECT(mmap((void *)(uintptr_t)(0 - PAGE), 4 * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED);
    EXPECT(errno == ENOMEM);
    EXPECT(munmap((void *)(uintptr_t)(0 - PAGE), 4 * PAGE) == -1 && errno == EINVAL);
    struct pageman_statistics statistics;
    pageman_statistics(&statistics);
    printf("%d MiB of memory, longest free run %d pages, tables of %d bytes\n",
           (int)(statistics.memory_pages * PAGE / MIB), (int)statistics.longest_free_run, (int)statistics.table_bytes);
    EXPECT(statistics.memory_pages * PAGE >= 3800 * (uint64_t)MIB);
    EXPECT(statistics.table_bytes <= 4096 * (uint64_t)MIB / PAGE);
    while (count) EXPECT(munmap(pieces[--count], 16 * MIB) == 0);
    check();
}

/* Kept for the host, which looks how much of it is resident. */
static void *zeros[64];

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "zeros") == 0) {
        for (int i = 0; i < 64; i++) EXPECT((zeros[i] = do_calloc(1, MIB)));
        return 0;
    }
    unsigned long operations = argc > 1 ? strtoul(argv[1], NULL, 0) : 20000;
    EXPECT(pageman_active() && (uintptr_t)malloc(1) != 0);
#ifdef DLMALLOC
    the_first_page_is_used();
    free_blocks_are_given_back();
#endif
    back_and_forth();
    large_calloc_clears_nothing();
    calloc_is_zero_at_every_size_around_a_limit();
    entry_points();
    aligned_blocks_are_resized();
    over_map_and_trim();
    freed_in_pieces();
    breaks();
    foreign_memory();
    mixed(operations);
    if (argc > 2) files(argv[2]);
    if (argc > 3) all_of_memory();
    static char text[4096];
    size_t length = pageman_print(text, sizeof text, true);
    EXPECT(length == strlen(text) && text[0] == '{' && text[length - 1] == '}');
    puts("all is as promised");
    return 0;
}
