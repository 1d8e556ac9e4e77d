/* Random sequences of calls, done by the page manager and by the host's kernel: errors and contents are equal.
 *
 * Both work on arenas of as many pages, the kernel's being of 4 KiB and the manager's of its own size. A place
 * that the manager chooses must be free in the kernel's arena. What is not compared is written at `skipped`.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common.h"
#include "port_native.h"

#define PAGES 384
#define FIRST 5 /* the manager's first page: those before hold the program's data */
#define KPAGE ((size_t)4096)
#define SAMPLES 16
#define FILES 6
#define FILE_PAGES 9 /* the last one half */

void *pageman_posix_mmap(void *, size_t, int, int, int, off_t);
int pageman_posix_munmap(void *, size_t);
int pageman_posix_mprotect(void *, size_t, int);
int pageman_posix_msync(void *, size_t, int);
int pageman_posix_madvise(void *, size_t, int);
int pageman_posix_mincore(void *, size_t, unsigned char *);
void *pageman_posix_mremap(void *, size_t, size_t, int, ...);
void *pageman_posix_sbrk(intptr_t);
void pageman_posix_forget(void);

static char *kernel; /* the kernel's arena */
static int memory;   /* /proc/self/mem, which reads what has no access, too */

/* What the test itself knows of a page. */
static struct known {
    bool mapped, shared, foreign;
    unsigned char protection;
    signed char file; /* -1 for none */
    unsigned char file_page;
} known[PAGES + 64];

static int manager_file[FILES], kernel_file[FILES];
static bool file_read_only[FILES];
static unsigned long skipped, counts[32];
static char arguments[128]; /* of the call that is compared */

/* System calls of the kernel, past the manager's names. */
static long kernel_mmap(size_t page, size_t length, int protection, int flags, int fd, size_t offset) {
    long result = syscall(SYS_mmap, kernel + page * KPAGE, length, protection, flags, fd, offset);
    return result == -1 ? -1 : 0;
}

static char *ours(size_t page) { return (char *)port_base() + page * PAGEMAN_PAGE_SIZE; }

static size_t page_of(const void *address) {
    return (size_t)((const char *)address - (const char *)port_base()) / PAGEMAN_PAGE_SIZE;
}

static void compare_page(size_t page) {
    if (!known[page].mapped) return;
    unsigned char theirs[KPAGE];
    if (pread(memory, theirs, KPAGE, (off_t)(uintptr_t)(kernel + page * KPAGE)) != (ssize_t)KPAGE)
        fail_test("page %zu is not mapped in the kernel: %s", page, strerror(errno));
    /* Pages without access that were never written may be dirty in the manager: nothing can see it. */
    if (state_of((page_t)page) == PAGEMAN_RESERVED_DIRTY) {
        for (size_t i = 0; i < KPAGE; i++) EXPECT(theirs[i] == 0);
        return;
    }
    const unsigned char *mine = (const unsigned char *)ours(page);
    if (PAGEMAN_PAGE_SIZE == KPAGE) {
        if (memcmp(mine, theirs, KPAGE) != 0) fail_test("page %zu differs", page);
        return;
    }
    /* A sample stands for its part of the page. */
    for (size_t sample = 0; sample < SAMPLES; sample++)
        if (mine[sample * (PAGEMAN_PAGE_SIZE / SAMPLES)] != theirs[sample * (KPAGE / SAMPLES)])
            fail_test("page %zu differs at sample %zu", page, sample);
    if (theirs[0] == 0 && memchr(theirs, 0, KPAGE) == theirs) {
        bool zero = true;
        for (size_t i = 0; i < KPAGE && zero; i++) zero = theirs[i] == 0;
        if (zero && (mine[0] || memcmp(mine, mine + 1, PAGEMAN_PAGE_SIZE - 1) != 0))
            fail_test("page %zu is not all zero", page);
    }
}

static void compare_states(size_t page) {
    unsigned state = state_of((page_t)page);
    bool mapped = state >= PAGEMAN_RESERVED_DIRTY;
    if (known[page].foreign) {
        if (state != PAGEMAN_FOREIGN) fail_test("page %zu is foreign, not in state %u", page, state);
        return;
    }
    if (mapped != known[page].mapped && state != PAGEMAN_INTERNAL)
        fail_test("page %zu: mapped %d, state %u", page, known[page].mapped, state);
    if (mapped && (state < PAGEMAN_USED ? 0 : state & 7) != known[page].protection)
        fail_test("page %zu: protection %u, state %u", page, known[page].protection, state);
}

/* What the kernel says of its maps is what the test knows. */
static void compare_maps(void) {
    FILE *list = fopen("/proc/self/maps", "r");
    char line[512], access[8];
    static unsigned char found[PAGES];
    memset(found, 255, sizeof found);
    unsigned long from, to, base = (unsigned long)kernel;
    while (list && fgets(line, sizeof line, list)) {
        if (sscanf(line, "%lx-%lx %7s", &from, &to, access) != 3) continue;
        for (unsigned long at = from; at < to; at += KPAGE)
            if (at >= base && at < base + PAGES * KPAGE)
                found[(at - base) / KPAGE] =
                    (unsigned char)((access[0] == 'r') | (access[1] == 'w') << 1 | (access[2] == 'x') << 2);
    }
    if (list) fclose(list);
    for (size_t page = 0; page < PAGES; page++) {
        if ((found[page] != 255) != known[page].mapped) fail_test("page %zu: the kernel has it %u", page, found[page]);
        if (known[page].mapped && found[page] != known[page].protection)
            fail_test("page %zu: protection of the kernel %u, known %u", page, found[page], known[page].protection);
    }
}

static void compare_files(void) {
    bool in_use[FILES][FILE_PAGES] = {{false}};
    for (size_t page = 0; page < PAGES; page++)
        if (known[page].mapped && known[page].file >= 0) in_use[known[page].file][known[page].file_page] = true;
    for (int file = 0; file < FILES; file++) {
        for (int page = 0; page < FILE_PAGES; page++) {
            if (in_use[file][page]) continue;
            for (size_t sample = 0; sample < SAMPLES; sample++) {
                unsigned char mine = 0, theirs = 0;
                ssize_t a = pread(manager_file[file], &mine, 1,
                                  (off_t)(page * PAGEMAN_PAGE_SIZE + sample * (PAGEMAN_PAGE_SIZE / SAMPLES)));
                ssize_t b = pread(kernel_file[file], &theirs, 1, (off_t)(page * KPAGE + sample * (KPAGE / SAMPLES)));
                if (a != b || mine != theirs) fail_test("file %d differs in page %d at sample %zu", file, page, sample);
            }
        }
    }
}

static void compare_all(void) {
    for (size_t page = 0; page < PAGES; page++) {
        compare_states(page);
        compare_page(page);
    }
    compare_maps();
    compare_files();
}

/* Whether a range has pages that the manager will not touch. */
static bool touches_foreign(size_t page, size_t count) {
    for (size_t i = page; i < page + count && i < PAGES; i++) {
        unsigned state = state_of((page_t)i);
        if (known[i].foreign || state == PAGEMAN_INTERNAL) return true;
    }
    return page < FIRST;
}

static void check_errors(const char *name, bool mine, int my_errno, bool theirs, int their_errno) {
    if (mine == theirs && (mine || my_errno == their_errno)) return;
    fail_test("%s(%s): %s here, %s in the kernel", name, arguments, mine ? "done" : strerrorname_np(my_errno),
              theirs ? "done" : strerrorname_np(their_errno));
}

/* Lengths that end in the middle of a page, and places that begin there, at times. */
struct range {
    size_t page, count;
    bool odd, partial;
};

static struct range random_range(void) {
    struct range range;
    range.count = random_below(4) ? random_below(9) : random_below(48);
    range.page = FIRST + random_below(PAGES - FIRST);
    if (random_below(30)) {
        if (range.page + range.count > PAGES) range.count = PAGES - range.page;
    }
    range.odd = random_below(60) == 0;
    range.partial = range.count && random_below(3) == 0;
    return range;
}

static void describe(struct range r, int a, int b, int c) {
    snprintf(arguments, sizeof arguments, "page %zu%s, %zu pages%s, %#x, %#x, %d", r.page, r.odd ? " and more" : "",
             r.count, r.partial ? " less some" : "", (unsigned)a, (unsigned)b, c);
}

static void *my_address(struct range r) { return ours(r.page) + (r.odd ? PAGEMAN_PAGE_SIZE / 4 : 0); }
static char *their_address(struct range r) { return kernel + r.page * KPAGE + (r.odd ? KPAGE / 4 : 0); }
static size_t my_length(struct range r) { return r.count * PAGEMAN_PAGE_SIZE - (r.partial ? PAGEMAN_PAGE_SIZE / 2 : 0); }
static size_t their_length(struct range r) { return r.count * KPAGE - (r.partial ? KPAGE / 2 : 0); }

static void know(size_t page, size_t count, struct known what) {
    for (size_t i = 0; i < count; i++) {
        known[page + i] = what;
        if (what.file >= 0) known[page + i].file_page = (unsigned char)(what.file_page + i);
    }
}

static bool file_in_use(int file) {
    for (size_t page = 0; page < PAGES; page++)
        if (known[page].mapped && known[page].file == file) return true;
    return false;
}

static void do_mprotect(struct range r);

/* Whether a map could lie there without more memory. */
static bool all_free(size_t page, size_t count, size_t pages) {
    if (page + count > pages) return false;
    for (size_t i = page; i < page + count; i++)
        if (known[i].mapped || known[i].foreign || state_of((page_t)i) == PAGEMAN_INTERNAL) return false;
    return true;
}

static void do_mmap(void) {
    struct range r = random_range();
    int protection = random_below(4) ? PROT_READ | PROT_WRITE : (int)random_below(8);
    int flags = random_below(6) ? MAP_PRIVATE : MAP_SHARED, file = -1;
    if (random_below(80) == 0) flags = 0;
    unsigned way = random_below(6);
    bool fixed = way == 0, no_replace = way == 1, hint = way == 2;
    size_t offset = 0;
    if (random_below(5) == 0) {
        file = (int)random_below(FILES);
        offset = random_below(FILE_PAGES);
        if (r.count > FILE_PAGES - offset) r.count = FILE_PAGES - offset;
        if (file_in_use(file)) return;
        if (file_read_only[file] && random_below(2)) {
            flags = MAP_SHARED;
            protection = PROT_READ;
        }
    } else {
        flags |= MAP_ANONYMOUS;
    }
    r.partial = r.partial && r.count;
    if (!fixed && !no_replace) r.odd = false;
    if (fixed) flags |= MAP_FIXED;
    if (no_replace) flags |= MAP_FIXED_NOREPLACE;
    bool placed = fixed || no_replace;
    /* Beyond the arena the kernel has other things. */
    if (placed && (r.page + r.count > PAGES || touches_foreign(r.page, r.count))) return;
    /* With the page's place in doubt an unaligned one is refused either way. */
    int my_file = file >= 0 ? manager_file[file] : -1, their_file = file >= 0 ? kernel_file[file] : -1;
    if (file >= 0 && random_below(40) == 0) my_file = their_file = 999;
    bool odd_offset = file >= 0 && random_below(40) == 0;

    void *address = placed ? my_address(r) : hint ? my_address(r) : NULL;
    page_t pages = manager.pages;
    bool was_free = hint && all_free(r.page, r.count, pages);
    errno = 0;
    char *mine = pageman_posix_mmap(address, my_length(r), protection, flags, my_file,
                                    (off_t)(offset * PAGEMAN_PAGE_SIZE + (odd_offset ? 512 : 0)));
    int my_errno = errno;
    size_t page = mine != MAP_FAILED ? page_of(mine) : r.page;
    if (mine == MAP_FAILED && my_errno == ENOMEM && !placed) {
        /* Full: there really is no such run, at the end neither. */
        size_t run = 0;
        /* Of a file's and of shared memory there are records, which need pages as well. */
        size_t records = file >= 0 || (flags & MAP_TYPE) == MAP_SHARED ? 4 : 0;
        for (size_t i = FIRST; i < PAGES; i++) {
            bool is_free = i >= manager.pages || state_is_free(state_of((page_t)i));
            run = is_free ? run + 1 : 0;
            if (run >= r.count + records && i < manager.pages)
                fail_test("there is a run of %zu pages, not for file %d, flags %#x", r.count, file, (unsigned)flags);
        }
        counts[30]++;
        return;
    }
    /* Memory that may not grow, and records that have just taken a page there. */
    if (mine == MAP_FAILED && my_errno == ENOMEM && placed &&
        (r.page + r.count > manager.pages || touches_foreign(r.page, r.count))) {
        counts[30]++;
        return;
    }
    struct range there = r;
    there.page = page;
    if (!placed) there.odd = false;
    describe(there, protection, flags, their_file);
    int their_flags = placed || mine == MAP_FAILED ? flags : flags | MAP_FIXED_NOREPLACE;
    errno = 0;
    long theirs = syscall(SYS_mmap, their_address(there), their_length(r), protection, their_flags, their_file,
                          offset * KPAGE + (odd_offset ? 512 : 0));
    int their_errno = errno;
    check_errors("mmap", mine != MAP_FAILED, my_errno, theirs != -1, their_errno);
    if (mine == MAP_FAILED) return;
    if (hint && page != r.page && was_free && all_free(r.page, r.count, pages)) fail_test("a hint was not heard");
    counts[31] += hint && page == r.page;
    struct known what = {.mapped = true, .shared = (flags & MAP_TYPE) == MAP_SHARED, .protection = (unsigned char)protection,
                         .file = (signed char)file, .file_page = (unsigned char)offset};
    know(page, r.count, what);
    for (size_t i = page; i < page + r.count; i++) compare_page(i);
    /* What a file allows is asked again here. */
    if (file >= 0 && random_below(4) == 0) do_mprotect((struct range){.page = page, .count = r.count});
}

static void do_munmap(void) {
    struct range r = random_range();
    if (touches_foreign(r.page, r.count) || r.page + r.count > PAGES) return;
    errno = 0;
    int mine = pageman_posix_munmap(my_address(r), my_length(r)), my_errno = errno;
    errno = 0;
    long theirs = syscall(SYS_munmap, their_address(r), their_length(r));
    describe(r, 0, 0, 0);
    check_errors("munmap", mine == 0, my_errno, theirs == 0, errno);
    if (mine == 0) know(r.page, r.count, (struct known){.file = -1});
}

static void do_mprotect(struct range r) {
    if (touches_foreign(r.page, r.count) || r.page + r.count > PAGES) return;
    int protection = random_below(3) ? PROT_READ | PROT_WRITE : (int)random_below(8);
    if (random_below(100) == 0) protection = 0x40;
    errno = 0;
    int mine = pageman_posix_mprotect(my_address(r), my_length(r), protection), my_errno = errno;
    errno = 0;
    long theirs = syscall(SYS_mprotect, their_address(r), their_length(r), protection);
    int their_errno = errno;
    describe(r, protection, 0, 0);
    check_errors("mprotect", mine == 0, my_errno, theirs == 0, their_errno);
    if (mine != 0 && my_errno != ENOMEM && my_errno != EACCES) return;
    for (size_t i = r.page; i < r.page + r.count && known[i].mapped; i++) {
        if (known[i].file >= 0 && known[i].shared && file_read_only[known[i].file] && protection & PROT_WRITE) break;
        known[i].protection = (unsigned char)protection;
    }
    for (size_t i = r.page; i < r.page + r.count; i++) {
        compare_states(i);
        compare_page(i);
    }
}

static void do_msync(void) {
    struct range r = random_range();
    if (touches_foreign(r.page, r.count) || r.page + r.count > PAGES) return;
    int flags = (int)random_below(8);
    errno = 0;
    int mine = pageman_posix_msync(my_address(r), my_length(r), flags), my_errno = errno;
    errno = 0;
    long theirs = syscall(SYS_msync, their_address(r), their_length(r), flags);
    describe(r, flags, 0, 0);
    check_errors("msync", mine == 0, my_errno, theirs == 0, errno);
    if (mine != 0 && my_errno != ENOMEM) return;
    /* The files are equal now where they are mapped in the range, too. */
    if (mine == 0)
        for (size_t i = r.page; i < r.page + r.count; i++) {
            if (known[i].file < 0 || !known[i].shared) continue;
            size_t sample = random_below(SAMPLES);
            unsigned char a = 0, b = 0;
            ssize_t x = pread(manager_file[known[i].file], &a, 1,
                              (off_t)(known[i].file_page * PAGEMAN_PAGE_SIZE + sample * (PAGEMAN_PAGE_SIZE / SAMPLES)));
            ssize_t y = pread(kernel_file[known[i].file], &b, 1,
                              (off_t)(known[i].file_page * KPAGE + sample * (KPAGE / SAMPLES)));
            EXPECT(x == y && a == b);
        }
}

static void do_madvise(void) {
    static const int advices[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED,
                                  MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED, 999};
    struct range r = random_range();
    if (touches_foreign(r.page, r.count) || r.page + r.count > PAGES) return;
    int advice = advices[random_below(8)];
    errno = 0;
    int mine = pageman_posix_madvise(my_address(r), my_length(r), advice), my_errno = errno;
    errno = 0;
    long theirs = syscall(SYS_madvise, their_address(r), their_length(r), advice);
    describe(r, advice, 0, 0);
    check_errors("madvise", mine == 0, my_errno, theirs == 0, errno);
    for (size_t i = r.page; i < r.page + r.count; i++) compare_page(i);
}

static void do_mincore(void) {
    struct range r = random_range();
    if (touches_foreign(r.page, r.count) || r.page + r.count > PAGES) return;
    unsigned char a[PAGES + 1], b[PAGES];
    memset(a, 0xaa, sizeof a);
    errno = 0;
    int mine = pageman_posix_mincore(my_address(r), my_length(r), a), my_errno = errno;
    errno = 0;
    long theirs = syscall(SYS_mincore, their_address(r), their_length(r), b);
    describe(r, 0, 0, 0);
    check_errors("mincore", mine == 0, my_errno, theirs == 0, errno);
    /* All that is mapped counts as resident, which the kernel says of what was touched; nothing is written behind. */
    for (size_t i = 0; i <= PAGES; i++) EXPECT(a[i] == (mine == 0 && i < r.count ? 1 : 0xaa));
}

/* Whether a range lies in one map of the kernel. */
static bool one_map(size_t page, size_t count) {
    FILE *list = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned long from, to, start = (unsigned long)kernel + page * KPAGE;
    bool one = false;
    while (list && fgets(line, sizeof line, list))
        if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= start && start + count * KPAGE <= to) one = true;
    if (list) fclose(list);
    return one;
}

/* Whether the file that a page is of has so many pages more, and no map has them. */
static bool file_has_more(size_t page, size_t more) {
    const struct known *last = &known[page];
    if (!last->mapped || last->file < 0 || last->file_page + more >= FILE_PAGES) return false;
    for (size_t i = 0; i < PAGES; i++)
        if (known[i].mapped && known[i].file == last->file && known[i].file_page > last->file_page &&
            known[i].file_page <= last->file_page + more)
            return false;
    return true;
}

/* Makes a range that of a map of a file, from its page `range.page` or one above on. */
static bool find_file_map(struct range *range) {
    size_t page = range->page, end;
    while (page < PAGES && !(known[page].mapped && known[page].file >= 0)) page++;
    for (end = page; end < PAGES && known[end].mapped && known[end].file == known[page].file &&
                     known[end].file_page == known[page].file_page + (end - page);)
        end++;
    *range = (struct range){.page = page, .count = end - page};
    return page < PAGES;
}

static void do_mremap(void) {
    struct range r = random_range();
    size_t target = FIRST + random_below(PAGES - FIRST), count = random_below(3) ? random_below(12) : random_below(60);
    r.partial = false;
    if (random_below(3) == 0 && find_file_map(&r)) count = r.count + 1 + random_below(3);
    if (touches_foreign(r.page, r.count) || r.page + r.count > PAGES) return;
    int flags = (int)random_below(4);
    if (random_below(50) == 0) flags = 8;
    bool fixed = flags & MREMAP_FIXED;
    if (fixed && (target + count > PAGES || touches_foreign(target, count))) return;
    bool whole = true, plain = true;
    for (size_t i = r.page; i < r.page + r.count; i++) {
        whole &= known[i].mapped;
        if (known[i].mapped && (known[i].file >= 0 || known[i].shared)) plain = false;
    }
    /* Not compared: a range of several maps, which works here; more of a file, or of anonymous shared memory, than there
     * is; more of a file that is in another map, too, which sees nothing of what this one writes; no pages at all,
     * which duplicates shared memory; a range that is not all mapped, of which the kernel may do a part. */
    if (r.count == 0 || (!whole && known[r.page].mapped) || (whole && !one_map(r.page, r.count)) ||
        (!plain && count > r.count && !file_has_more(r.page + r.count - 1, count - r.count))) {
        skipped++;
        return;
    }
    struct known last = known[r.page + (r.count ? r.count - 1 : 0)];
    last.file_page += last.file >= 0;
    errno = 0;
    char *mine = pageman_posix_mremap(my_address(r), r.count * PAGEMAN_PAGE_SIZE, count * PAGEMAN_PAGE_SIZE, flags,
                                      ours(target));
    int my_errno = errno;
    if (mine == MAP_FAILED && my_errno == ENOMEM && flags & MREMAP_MAYMOVE &&
        (!fixed || target + count > manager.pages || touches_foreign(target, count))) {
        counts[30]++;
        return;
    }
    size_t to = mine != MAP_FAILED ? page_of(mine) : target;
    bool moved = mine != MAP_FAILED && to != r.page;
    int their_flags = moved ? MREMAP_MAYMOVE | MREMAP_FIXED : mine != MAP_FAILED ? 0 : flags;
    if (mine != MAP_FAILED && moved && !fixed)
        for (size_t i = to; i < to + count; i++) EXPECT(!known[i].mapped);
    if (mine == MAP_FAILED && my_errno == ENOMEM && !(flags & MREMAP_MAYMOVE)) {
        /* The kernel may go on beyond the arena. */
        if (r.page + count > manager.pages || touches_foreign(r.page, count)) return;
    }
    errno = 0;
    long theirs = syscall(SYS_mremap, their_address(r), r.count * KPAGE, count * KPAGE, their_flags, kernel + to * KPAGE);
    describe(r, flags, (int)target, (int)count);
    check_errors("mremap", mine != MAP_FAILED, my_errno, theirs != -1, errno);
    if (mine == MAP_FAILED) return;
    struct known was[PAGES];
    memcpy(was, known + r.page, r.count * sizeof *was);
    size_t kept = r.count < count ? r.count : count;
    if (moved) know(r.page, r.count, (struct known){.file = -1});
    else if (count < r.count) know(r.page + count, r.count - count, (struct known){.file = -1});
    memcpy(known + to, was, kept * sizeof *was);
    if (count > kept) know(to + kept, count - kept, last);
    counts[29] += !plain && count > kept;
    for (size_t i = to; i < to + count; i++) {
        compare_states(i);
        compare_page(i);
    }
}

/* Writes the same to both, whole pages or a byte. */
static void do_write(void) {
    for (int turn = 0; turn < 8; turn++) {
        size_t page = FIRST + random_below(PAGES - FIRST);
        if (!known[page].mapped || !(known[page].protection & PROT_WRITE)) continue;
        if (known[page].file >= 0 && known[page].file_page == FILE_PAGES - 1) {
            /* Behind its end a file takes nothing. */
            ours(page)[0] = kernel[page * KPAGE] = (char)(1 + turn);
            continue;
        }
        int value = (int)random_below(256);
        if (random_below(2)) {
            memset(ours(page), value, PAGEMAN_PAGE_SIZE);
            memset(kernel + page * KPAGE, value, KPAGE);
        } else if (PAGEMAN_PAGE_SIZE == KPAGE) {
            size_t at = random_below(KPAGE);
            ours(page)[at] = kernel[page * KPAGE + at] = (char)value;
        } else {
            size_t sample = random_below(SAMPLES);
            ours(page)[sample * (PAGEMAN_PAGE_SIZE / SAMPLES)] = kernel[page * KPAGE + sample * (KPAGE / SAMPLES)] =
                (char)(value | 1);
        }
    }
}

/* The manager's own names beside those of POSIX. */
static void do_own(void) {
    size_t count = 1 + random_below(12);
    unsigned wish = random_below(2), shift = random_below(4);
    size_t alignment = shift ? PAGEMAN_PAGE_SIZE << shift : 0;
    char *mine = pageman_map(count * PAGEMAN_PAGE_SIZE, alignment, wish);
    if (!mine) return;
    size_t page = page_of(mine);
    EXPECT(!alignment || page % ((size_t)1 << shift) == 0);
    if (kernel_mmap(page, count * KPAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != 0)
        fail_test("pageman_map gave pages that are in use");
    know(page, count, (struct known){.mapped = true, .protection = 3, .file = -1});
    for (size_t i = page; i < page + count; i++) {
        if (wish == PAGEMAN_ANY) {
            memset(ours(i), 0x5a, PAGEMAN_PAGE_SIZE);
            memset(kernel + i * KPAGE, 0x5a, KPAGE);
        }
        compare_page(i);
    }
}

static void do_sbrk(void) {
    bool had[PAGES];
    for (size_t i = 0; i < PAGES; i++) had[i] = i >= FIRST && state_is_mapped(state_of((page_t)i));
    uintptr_t at = manager.break_at;
    intptr_t by = (intptr_t)random_below(6 * (uint32_t)PAGEMAN_PAGE_SIZE) - 2 * (intptr_t)PAGEMAN_PAGE_SIZE;
    char *old = pageman_posix_sbrk(by);
    if (old == (void *)-1) {
        EXPECT(manager.break_at == at);
        return;
    }
    EXPECT((char *)pageman_posix_sbrk(0) == old + by);
    for (size_t i = FIRST; i < PAGES; i++) {
        bool has = state_is_mapped(state_of((page_t)i));
        if (has == had[i]) continue;
        if (has) {
            if (kernel_mmap(i, KPAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != 0)
                fail_test("sbrk took a page that is in use");
            know(i, 1, (struct known){.mapped = true, .protection = 3, .file = -1});
        } else {
            syscall(SYS_munmap, kernel + i * KPAGE, KPAGE);
            know(i, 1, (struct known){.file = -1});
        }
        compare_page(i);
    }
}

static void do_odd_things(void) {
    switch (random_below(6)) {
    case 0: pageman_set_policy((enum pageman_policy)random_below(4)); break;
    case 1: native_discard_status = (int)random_below(3) - 1; break;
    case 2: pageman_trim(); break;
    case 3: pageman_decay(); break;
    case 4: native_growth_max = random_below(3) ? PAGE_NONE : random_below(40); break;
    default:
        if (random_below(4) == 0 && port_pages() + 16 < PAGES) {
            page_t page = native_grow_foreign((page_t)1 << (16 - PAGEMAN_PAGE_SHIFT));
            for (page_t i = 0; page != PAGE_NONE && i < (page_t)1 << (16 - PAGEMAN_PAGE_SHIFT); i++)
                known[page + i].foreign = true;
        }
    }
}

static void open_files(void) {
    char name[64];
    for (int file = 0; file < FILES; file++) {
        file_read_only[file] = file == 0;
        for (int side = 0; side < 2; side++) {
            size_t size = side ? KPAGE : PAGEMAN_PAGE_SIZE, length = (FILE_PAGES - 1) * size + size / 2;
            snprintf(name, sizeof name, "/tmp/pageman-%d-%d-%d", (int)getpid(), file, side);
            int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
            EXPECT(fd >= 0);
            for (size_t at = 0; at < length; at++) {
                char byte = (char)(at / size + 1 + 16 * (size_t)file);
                if (at % size == 0) {
                    static char block[1 << 16];
                    memset(block, byte, size);
                    EXPECT(pwrite(fd, block, length - at < size ? length - at : size, (off_t)at) > 0);
                    at += size - 1;
                }
            }
            if (file_read_only[file]) {
                close(fd);
                fd = open(name, O_RDONLY);
                EXPECT(fd >= 0);
            }
            unlink(name);
            *(side ? &kernel_file[file] : &manager_file[file]) = fd;
        }
    }
}

static void begin(void) {
    static const page_t initial[] = {FIRST, 16, 64, 200};
    syscall(SYS_munmap, kernel, PAGES * KPAGE);
    memset(known, 0, sizeof known);
    for (size_t i = 0; i < PAGES; i++) {
        known[i].file = -1;
        known[i].foreign = i < FIRST;
    }
    /* Whole units of growth. */
    page_t unit = port_growth_unit(), first = initial[random_below(4)];
    native_reset(PAGES, (first + unit - 1) / unit * unit, (FIRST - 1) * PAGEMAN_PAGE_SIZE + 1000);
    pageman_posix_forget();
    EXPECT(pageman_active());
}

int main(int argc, char **argv) {
    unsigned long operations = argc > 1 ? strtoul(argv[1], NULL, 0) : 50000;
    seed_random(argc > 2 ? strtoull(argv[2], NULL, 0) : 1);
    memory = open("/proc/self/mem", O_RDONLY);
    EXPECT(memory >= 0);
    /* Where the kernel puts nothing by itself. */
    kernel = (char *)((uintptr_t)3 << 44);
    for (step = 0; step < operations; step++) {
        if (step % 5000 == 0) {
            if (step) compare_all();
            begin();
            for (int file = 0; step && file < FILES; file++) {
                close(manager_file[file]);
                close(kernel_file[file]);
            }
            open_files();
        }
        unsigned what = random_below(20);
        counts[what]++;
        switch (what) {
        case 0: case 1: case 2: case 3: case 4: do_mmap(); break;
        case 5: case 6: case 7: do_munmap(); break;
        case 8: case 9: do_mprotect(random_range()); break;
        case 10: do_msync(); break;
        case 11: do_madvise(); break;
        case 12: do_mincore(); break;
        case 13: case 14: do_mremap(); break;
        case 15: do_own(); break;
        case 16: do_sbrk(); break;
        case 17: do_odd_things(); break;
        default: do_write(); break;
        }
        const char *wrong = pageman_check();
        if (wrong) fail_test("%s", wrong);
        EXPECT(pageman_page_map.sequence % 2 == 0);
        if (step % 512 == 0) compare_all();
    }
    compare_all();
    /* A test in which no hint is heard, and no map of a file grows, tests neither. */
    EXPECT(operations < 5000 || (counts[31] > operations / 1000 && counts[29] > operations / 10000));
    printf("%lu operations as in the kernel, %lu of mremap not compared, %lu times full, %lu hints heard, %lu times more of "
           "a file\n", operations, skipped, counts[30], counts[31], counts[29]);
    return 0;
}
