/* What POSIX says of mmap, munmap and their relatives, as far as one process sees it, case by case.
 *
 * It is done by the page manager on the host and in a WebAssembly runtime, and with HOST by the host's own
 * kernel, which shows that the cases themselves are right.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

#if defined(__wasm__)
#include "pageman.h"
#define PAGE pageman_page_size()
#elif defined(HOST)
#define PAGE ((size_t)4096)
#else
#include "port_native.h"
#define PAGE PAGEMAN_PAGE_SIZE
#define mmap pageman_posix_mmap
#define munmap pageman_posix_munmap
#define mprotect pageman_posix_mprotect
#define msync pageman_posix_msync
#define posix_madvise pageman_posix_posix_madvise
#define mlock pageman_posix_mlock
#define munlock pageman_posix_munlock
void *mmap(void *, size_t, int, int, int, off_t);
int munmap(void *, size_t);
int mprotect(void *, size_t, int);
int msync(void *, size_t, int);
int posix_madvise(void *, size_t, int);
int mlock(const void *, size_t);
int munlock(const void *, size_t);
#endif

#define READ_WRITE (PROT_READ | PROT_WRITE)
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)

static const char *directory;
static char file_name[256];

/* Fails with this error. */
#define FAILS(call, error) (errno = 0, EXPECT((call) == -1 && errno == (error)))
#define MAP_FAILS(error, ...) (errno = 0, EXPECT(mmap(__VA_ARGS__) == MAP_FAILED && errno == (error)))

static char *map(size_t length) {
    char *address = mmap(NULL, length, READ_WRITE, ANONYMOUS, -1, 0);
    EXPECT(address != MAP_FAILED);
    return address;
}

static bool is_mapped(void *address, size_t length) { return posix_madvise(address, length, POSIX_MADV_NORMAL) == 0; }

static bool all_are(const char *bytes, size_t length, char value) {
    for (size_t at = 0; at < length; at++)
        if (bytes[at] != value) return false;
    return true;
}

/* A file of two pages and a half: 'a', 'b' and 'c'. */
static int make_file(void) {
    snprintf(file_name, sizeof file_name, "%s/pageman-posix.txt", directory);
    int fd = open(file_name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) fail_test("%s: %s", file_name, strerror(errno));
    static char page[1 << 16];
    for (int i = 0; i < 3; i++) {
        size_t length = i < 2 ? PAGE : PAGE / 2;
        memset(page, 'a' + i, length);
        EXPECT(write(fd, page, length) == (ssize_t)length);
    }
    return fd;
}

static char in_file(int fd, size_t at) {
    char byte = 0;
    EXPECT(pread(fd, &byte, 1, (off_t)at) == 1);
    return byte;
}

/* ---- mmap: where ---- */

/* Without MAP_FIXED a place of the system's choice, never 0, at a page's start, and nothing is replaced. */
static void the_system_chooses_a_place(void) {
    char *first = map(PAGE), *second = mmap(first, PAGE, READ_WRITE, ANONYMOUS, -1, 0);
    EXPECT(first && (uintptr_t)first % PAGE == 0 && second != MAP_FAILED && second != first);
    first[0] = 1;
    EXPECT(second[0] == 0);
    EXPECT(munmap(first, PAGE) == 0 && munmap(second, PAGE) == 0);
}

/* An address without MAP_FIXED is a wish. Where nothing is mapped it is heard here and in Linux, and in the middle of a page the
 * place is a page's start all the same; where something is, that stays. */
static void a_wish_for_a_place_is_heard_if_it_is_free(void) {
    char *pages = map(6 * PAGE), *kept = pages + 4 * PAGE;
    memset(kept, 5, PAGE);
    EXPECT(munmap(pages, 4 * PAGE) == 0);
    EXPECT(mmap(pages + 2 * PAGE, PAGE, READ_WRITE, ANONYMOUS, -1, 0) == pages + 2 * PAGE);
    char *near = mmap(pages + 8, PAGE, READ_WRITE, ANONYMOUS, -1, 0);
    EXPECT(near != MAP_FAILED && (uintptr_t)near % PAGE == 0);
    char *other = mmap(pages + 3 * PAGE, 2 * PAGE, READ_WRITE, ANONYMOUS, -1, 0);
    EXPECT(other != MAP_FAILED && (other + 2 * PAGE <= pages + 2 * PAGE || other >= pages + 6 * PAGE));
    EXPECT(all_are(kept, PAGE, 5) && all_are(other, 2 * PAGE, 0));
    EXPECT(munmap(other, 2 * PAGE) == 0 && munmap(near, PAGE) == 0 && munmap(pages + 2 * PAGE, 4 * PAGE) == 0);
}

/* With MAP_FIXED exactly there, in place of what was mapped in these pages, and of no others. */
static void fixed_maps_replace_what_was_there(void) {
    char *pages = map(4 * PAGE);
    memset(pages, 7, 4 * PAGE);
    EXPECT(mmap(pages + PAGE, 2 * PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0) == pages + PAGE);
    EXPECT(all_are(pages, PAGE, 7) && all_are(pages + PAGE, 2 * PAGE, 0) && all_are(pages + 3 * PAGE, PAGE, 7));
    EXPECT(munmap(pages, 4 * PAGE) == 0);
}

static void a_fixed_place_begins_a_page(void) {
    char *pages = map(2 * PAGE);
    MAP_FAILS(EINVAL, pages + 1, PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0);
    EXPECT(munmap(pages, 2 * PAGE) == 0);
}

static void nothing_lies_beyond_the_address_space(void) {
    MAP_FAILS(ENOMEM, (void *)((uintptr_t)0 - PAGE), 4 * PAGE, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0);
    MAP_FAILS(ENOMEM, NULL, SIZE_MAX, READ_WRITE, ANONYMOUS, -1, 0);
}

/* ---- mmap: what ---- */

static void no_length_is_refused(void) { MAP_FAILS(EINVAL, NULL, 0, READ_WRITE, ANONYMOUS, -1, 0); }

static void a_map_is_private_or_shared(void) {
    int fd = make_file();
    MAP_FAILS(EINVAL, NULL, PAGE, PROT_READ, 0, fd, 0);
    MAP_FAILS(EINVAL, NULL, PAGE, PROT_READ, MAP_ANONYMOUS, -1, 0);
    close(fd);
}

static void anonymous_memory_reads_zero(void) {
    char *private = map(3 * PAGE), *shared = mmap(NULL, 3 * PAGE, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(shared != MAP_FAILED && all_are(private, 3 * PAGE, 0) && all_are(shared, 3 * PAGE, 0));
    memset(private, 1, 3 * PAGE);
    memset(shared, 2, 3 * PAGE);
    EXPECT(munmap(private, 3 * PAGE) == 0 && munmap(shared, 3 * PAGE) == 0);
    private = map(6 * PAGE);
    EXPECT(all_are(private, 6 * PAGE, 0) && munmap(private, 6 * PAGE) == 0);
}

static void every_protection_can_be_asked_for(void) {
    for (int protection = PROT_NONE; protection <= (PROT_READ | PROT_WRITE | PROT_EXEC); protection++) {
        char *page = mmap(NULL, PAGE, protection, ANONYMOUS, -1, 0);
        EXPECT(page != MAP_FAILED && is_mapped(page, PAGE));
        if (protection & PROT_READ) EXPECT(all_are(page, PAGE, 0));
        EXPECT(munmap(page, PAGE) == 0);
    }
}

/* ---- mmap: files ---- */

static void an_offset_begins_a_page(void) {
    int fd = make_file();
    MAP_FAILS(EINVAL, NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 1);
    MAP_FAILS(EINVAL, NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, (off_t)(PAGE / 2));
    char *page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, (off_t)PAGE);
    EXPECT(page != MAP_FAILED && all_are(page, PAGE, 'b') && munmap(page, PAGE) == 0);
    close(fd);
}

static void the_file_is_open_and_of_a_kind_that_can_be_mapped(void) {
    MAP_FAILS(EBADF, NULL, PAGE, PROT_READ, MAP_PRIVATE, 999, 0);
    MAP_FAILS(EBADF, NULL, PAGE, PROT_READ, MAP_PRIVATE, -1, 0);
    int fd = open(directory, O_RDONLY | O_DIRECTORY);
    errno = 0;
    EXPECT(fd >= 0 && mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED);
    EXPECT(errno == ENODEV || errno == EACCES);
    close(fd);
}

/* It must be open for reading always, and for writing if what is written is to reach it. */
static void access_is_what_the_file_was_opened_for(void) {
    close(make_file());
    int fd = open(file_name, O_RDONLY);
    MAP_FAILS(EACCES, NULL, PAGE, READ_WRITE, MAP_SHARED, fd, 0);
    MAP_FAILS(EACCES, NULL, PAGE, PROT_WRITE, MAP_SHARED, fd, 0);
    char *page = mmap(NULL, PAGE, READ_WRITE, MAP_PRIVATE, fd, 0);
    EXPECT(page != MAP_FAILED);
    page[0] = 'x';
    EXPECT(munmap(page, PAGE) == 0);
    page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    EXPECT(page != MAP_FAILED && page[0] == 'a');
    FAILS(mprotect(page, PAGE, READ_WRITE), EACCES);
    EXPECT(munmap(page, PAGE) == 0);
    close(fd);
    fd = open(file_name, O_WRONLY);
    MAP_FAILS(EACCES, NULL, PAGE, PROT_WRITE, MAP_PRIVATE, fd, 0);
    MAP_FAILS(EACCES, NULL, PAGE, PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
}

static void what_is_written_to_private_memory_stays_there(void) {
    int fd = make_file();
    char *page = mmap(NULL, PAGE, READ_WRITE, MAP_PRIVATE, fd, 0);
    EXPECT(page != MAP_FAILED && all_are(page, PAGE, 'a'));
    memset(page, 'x', PAGE);
    EXPECT(msync(page, PAGE, MS_SYNC) == 0 && munmap(page, PAGE) == 0 && in_file(fd, 0) == 'a');
    close(fd);
}

static void what_is_written_to_shared_memory_reaches_the_file(void) {
    int fd = make_file();
    char *pages = mmap(NULL, 2 * PAGE, READ_WRITE, MAP_SHARED, fd, (off_t)PAGE);
    EXPECT(pages != MAP_FAILED && all_are(pages, PAGE, 'b') && all_are(pages + PAGE, PAGE / 2, 'c'));
    pages[3] = 'x';
    EXPECT(msync(pages, PAGE, MS_SYNC) == 0 && in_file(fd, PAGE + 3) == 'x' && in_file(fd, PAGE + 2) == 'b');
    pages[PAGE + 5] = 'y';
    EXPECT(munmap(pages, 2 * PAGE) == 0 && in_file(fd, 2 * PAGE + 5) == 'y' && in_file(fd, 0) == 'a');
    close(fd);
}

/* Behind its end the last page reads zero, and what is written there is no part of the file. */
static void the_rest_of_the_last_page_is_zero_and_no_part_of_the_file(void) {
    int fd = make_file();
    char *page = mmap(NULL, PAGE / 2, READ_WRITE, MAP_SHARED, fd, 2 * (off_t)PAGE);
    EXPECT(page != MAP_FAILED && all_are(page, PAGE / 2, 'c') && all_are(page + PAGE / 2, PAGE / 2, 0));
    memset(page, 'x', PAGE);
    EXPECT(munmap(page, PAGE / 2) == 0 && in_file(fd, 2 * PAGE) == 'x');
    EXPECT(lseek(fd, 0, SEEK_END) == (off_t)(2 * PAGE + PAGE / 2));
    close(fd);
}

static void memory_of_a_closed_file_can_be_read(void) {
    int fd = make_file();
    char *page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    EXPECT(page != MAP_FAILED && close(fd) == 0 && all_are(page, PAGE, 'a') && munmap(page, PAGE) == 0);
}

static void an_offset_has_a_largest_value(void) {
    int fd = make_file();
    off_t last = (off_t)(INT64_MAX & ~(int64_t)(PAGE - 1));
    MAP_FAILS(EOVERFLOW, NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE, fd, last);
    close(fd);
}

/* ---- munmap ---- */

static void what_cannot_be_unmapped_is_refused(void) {
    char *pages = map(2 * PAGE);
    FAILS(munmap(pages, 0), EINVAL);
    FAILS(munmap(pages + 1, PAGE), EINVAL);
    FAILS(munmap((void *)((uintptr_t)0 - PAGE), 4 * PAGE), EINVAL);
    EXPECT(is_mapped(pages, 2 * PAGE) && munmap(pages, 2 * PAGE) == 0);
}

static void every_page_of_which_a_part_is_meant_goes(void) {
    char *pages = map(3 * PAGE);
    EXPECT(munmap(pages, PAGE + 1) == 0);
    EXPECT(!is_mapped(pages, PAGE) && !is_mapped(pages + PAGE, PAGE) && is_mapped(pages + 2 * PAGE, PAGE));
    EXPECT(munmap(pages + 2 * PAGE, 1) == 0 && !is_mapped(pages + 2 * PAGE, PAGE));
}

static void the_middle_of_a_map_goes_and_its_ends_stay(void) {
    char *pages = map(5 * PAGE);
    memset(pages, 4, 5 * PAGE);
    EXPECT(munmap(pages + 2 * PAGE, PAGE) == 0);
    EXPECT(is_mapped(pages, 2 * PAGE) && !is_mapped(pages + 2 * PAGE, PAGE) && is_mapped(pages + 3 * PAGE, 2 * PAGE));
    EXPECT(all_are(pages, 2 * PAGE, 4) && all_are(pages + 3 * PAGE, 2 * PAGE, 4));
    EXPECT(munmap(pages, 5 * PAGE) == 0);
}

static void several_maps_and_what_is_between_go_at_once(void) {
    int fd = make_file();
    char *pages = map(6 * PAGE);
    EXPECT(mmap(pages + PAGE, PAGE, READ_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == pages + PAGE);
    EXPECT(munmap(pages + 3 * PAGE, PAGE) == 0);
    pages[PAGE] = 'x';
    EXPECT(munmap(pages, 6 * PAGE) == 0 && in_file(fd, 0) == 'x');
    for (int i = 0; i < 6; i++) EXPECT(!is_mapped(pages + (size_t)i * PAGE, PAGE));
    close(fd);
}

static void where_nothing_is_mapped_nothing_happens(void) {
    char *pages = map(2 * PAGE);
    EXPECT(munmap(pages, 2 * PAGE) == 0 && munmap(pages, 2 * PAGE) == 0);
}

static void what_was_written_to_private_memory_is_gone(void) {
    int fd = make_file();
    char *page = mmap(NULL, PAGE, READ_WRITE, MAP_PRIVATE, fd, 0);
    EXPECT(page != MAP_FAILED);
    memset(page, 'x', PAGE);
    EXPECT(munmap(page, PAGE) == 0);
    page = mmap(NULL, PAGE, READ_WRITE, MAP_PRIVATE, fd, 0);
    EXPECT(page != MAP_FAILED && all_are(page, PAGE, 'a') && munmap(page, PAGE) == 0);
    close(fd);
}

/* ---- Their relatives ---- */

static void msync_says_what_is_wrong(void) {
    char *pages = map(2 * PAGE);
    FAILS(msync(pages, PAGE, MS_SYNC | MS_ASYNC), EINVAL);
    FAILS(msync(pages + 1, PAGE, MS_SYNC), EINVAL);
    EXPECT(munmap(pages + PAGE, PAGE) == 0);
    FAILS(msync(pages, 2 * PAGE, MS_SYNC), ENOMEM);
    EXPECT(msync(pages, PAGE, MS_ASYNC) == 0 && msync(pages, PAGE, MS_SYNC | MS_INVALIDATE) == 0);
    EXPECT(munmap(pages, PAGE) == 0);
}

static void mprotect_changes_whole_pages_that_are_mapped(void) {
    char *pages = mmap(NULL, 3 * PAGE, PROT_NONE, ANONYMOUS, -1, 0);
    EXPECT(pages != MAP_FAILED);
    FAILS(mprotect(pages + 1, PAGE, PROT_READ), EINVAL);
    EXPECT(mprotect(pages, PAGE + 1, READ_WRITE) == 0);
    EXPECT(all_are(pages, 2 * PAGE, 0));
    memset(pages, 1, 2 * PAGE);
    EXPECT(mprotect(pages, PAGE, PROT_READ) == 0 && all_are(pages, 2 * PAGE, 1));
    EXPECT(munmap(pages + 2 * PAGE, PAGE) == 0);
    FAILS(mprotect(pages, 3 * PAGE, READ_WRITE), ENOMEM);
    EXPECT(munmap(pages, 2 * PAGE) == 0);
}

/* It returns the error, and never changes what memory holds. */
static void posix_madvise_is_only_advice(void) {
    static const int advice[] = {POSIX_MADV_NORMAL, POSIX_MADV_SEQUENTIAL, POSIX_MADV_RANDOM, POSIX_MADV_WILLNEED,
                                 POSIX_MADV_DONTNEED};
    char *pages = map(2 * PAGE);
    memset(pages, 9, 2 * PAGE);
    for (size_t i = 0; i < sizeof advice / sizeof *advice; i++) {
        errno = 0;
        EXPECT(posix_madvise(pages, 2 * PAGE, advice[i]) == 0 && errno == 0);
    }
    EXPECT(all_are(pages, 2 * PAGE, 9));
    EXPECT(posix_madvise(pages, PAGE, 99) == EINVAL && posix_madvise(pages + 1, PAGE, POSIX_MADV_NORMAL) == EINVAL);
    EXPECT(munmap(pages + PAGE, PAGE) == 0);
    EXPECT(posix_madvise(pages, 2 * PAGE, POSIX_MADV_NORMAL) == ENOMEM && errno == 0);
    EXPECT(munmap(pages, PAGE) == 0);
}

static void mlock_needs_mapped_pages(void) {
    char *pages = map(2 * PAGE);
    EXPECT(mlock(pages, PAGE) == 0 && munlock(pages, PAGE) == 0);
    EXPECT(munmap(pages + PAGE, PAGE) == 0);
    FAILS(mlock(pages, 2 * PAGE), ENOMEM);
    FAILS(munlock(pages, 2 * PAGE), ENOMEM);
    EXPECT(munmap(pages, PAGE) == 0);
}

static void (*const cases[])(void) = {
    the_system_chooses_a_place,
    a_wish_for_a_place_is_heard_if_it_is_free,
    fixed_maps_replace_what_was_there,
    a_fixed_place_begins_a_page,
    nothing_lies_beyond_the_address_space,
    no_length_is_refused,
    a_map_is_private_or_shared,
    anonymous_memory_reads_zero,
    every_protection_can_be_asked_for,
    an_offset_begins_a_page,
    the_file_is_open_and_of_a_kind_that_can_be_mapped,
    access_is_what_the_file_was_opened_for,
    what_is_written_to_private_memory_stays_there,
    what_is_written_to_shared_memory_reaches_the_file,
    the_rest_of_the_last_page_is_zero_and_no_part_of_the_file,
    memory_of_a_closed_file_can_be_read,
    an_offset_has_a_largest_value,
    what_cannot_be_unmapped_is_refused,
    every_page_of_which_a_part_is_meant_goes,
    the_middle_of_a_map_goes_and_its_ends_stay,
    several_maps_and_what_is_between_go_at_once,
    where_nothing_is_mapped_nothing_happens,
    what_was_written_to_private_memory_is_gone,
    msync_says_what_is_wrong,
    mprotect_changes_whole_pages_that_are_mapped,
    posix_madvise_is_only_advice,
    mlock_needs_mapped_pages,
};

int main(int argc, char **argv) {
    directory = argc > 1 ? argv[1] : ".";
#if !defined(__wasm__) && !defined(HOST)
    native_reset(512, 64, 4096);
#endif
    for (step = 0; step < sizeof cases / sizeof *cases; step++) {
        cases[step]();
#ifndef HOST
        const char *wrong = pageman_check();
        if (wrong) fail_test("%s", wrong);
#endif
    }
    unlink(file_name);
    printf("%lu cases as POSIX has them\n", step);
    return 0;
}
