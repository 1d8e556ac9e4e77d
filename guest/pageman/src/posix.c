/* <sys/mman.h> and sbrk for programs with a C library: errno, and memory of files through their descriptors. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

#ifdef __wasm__
#define POSIX(name) name
#else
/* Beside the host's own, for tests. */
#define POSIX(name) pageman_posix_##name
#endif

/* Memory that is not private and anonymous: what a later call needs to know of it. */
struct file_map {
    page_t start, end;
    int descriptor; /* -1 for anonymous memory, which is shared then */
    dev_t device;   /* the file's, since its descriptor may be another one's later */
    ino_t inode;
    bool shared;
    bool writable;  /* the descriptor may be written to */
    bool written;   /* access to write was given, so that the file is behind */
    off_t offset;   /* of `start` in the file */
};

/* Reading and writing of files may wait for other threads, as emscripten's do for the first one, which allocates and frees
 * meanwhile: the manager's lock is malloc's, too, so files have one of their own, taken before that. */
#if defined(__wasm_atomics__) && __has_include(<pthread.h>)
#include <pthread.h>
static pthread_mutex_t files = PTHREAD_MUTEX_INITIALIZER;
static void lock_files(void) { pthread_mutex_lock(&files); }
static bool try_lock_files(void) { return pthread_mutex_trylock(&files) == 0; }
static void unlock_files(void) { pthread_mutex_unlock(&files); }
#else
static void lock_files(void) {}
static bool try_lock_files(void) { return true; }
static void unlock_files(void) {}
#endif

/* Whether the manager is switched off, which nothing changes once there are maps. */
static bool inactive(void) {
    if (!manager.started || manager.active) return false;
    errno = ENOSYS;
    return true;
}

/* By address. */
static struct file_map *maps;
static size_t map_count, map_capacity;
static page_t map_pages;

RARE static int fail_with(int error) {
    switch (error) {
    case PAGEMAN_NO_MEMORY: errno = ENOMEM; break;
    case PAGEMAN_EXISTS: errno = EEXIST; break;
    case PAGEMAN_NOT_MAPPED: errno = EFAULT; break;
    case PAGEMAN_BUSY: errno = EBUSY; break;
    default: errno = EINVAL; break;
    }
    return -1;
}

static inline int fail(int error) { return error == PAGEMAN_OK ? 0 : fail_with(error); }

static bool reserve_maps(size_t more) {
    if (map_count + more <= map_capacity) return true;
    page_t pages = map_pages ? 2 * map_pages : 1;
    uint32_t before = manager_enter();
    struct file_map *larger = manager_own(pages);
    if (larger && map_count) memcpy(larger, maps, map_count * sizeof *maps);
    if (larger && maps) manager_disown(maps, map_pages);
    manager_leave(before);
    if (!larger) return false;
    maps = larger;
    map_pages = pages;
    map_capacity = ((size_t)pages << PAGEMAN_PAGE_SHIFT) / sizeof *maps;
    return true;
}

/* The first map that ends behind a page. */
static size_t map_at(page_t page) {
    size_t low = 0, high = map_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (maps[middle].end > page) high = middle;
        else low = middle + 1;
    }
    return low;
}

/* Whether one map goes on where another ends, in memory and in their file. Anonymous memory has none. */
static bool joins(const struct file_map *left, const struct file_map *right) {
    if (left->end != right->start || left->descriptor != right->descriptor || left->shared != right->shared)
        return false;
    return left->descriptor < 0 ||
           (left->writable == right->writable && left->device == right->device && left->inode == right->inode &&
            left->offset + ((off_t)(left->end - left->start) << PAGEMAN_PAGE_SHIFT) == right->offset);
}

static void insert_map(struct file_map map) {
    size_t at = map_at(map.start);
    if (at > 0 && joins(&maps[at - 1], &map)) {
        maps[at - 1].end = map.end;
        maps[at - 1].written |= map.written;
        return;
    }
    if (at < map_count && joins(&map, &maps[at])) {
        maps[at].start = map.start;
        maps[at].offset = map.offset;
        maps[at].written |= map.written;
        return;
    }
    memmove(maps + at + 1, maps + at, (map_count - at) * sizeof *maps);
    maps[at] = map;
    map_count++;
}

static bool any_map(page_t start, page_t end) {
    size_t at = map_at(start);
    return at < map_count && maps[at].start < end;
}

/* The most that one call reads or writes: what it returns has a sign. */
#define PART_MAX ((size_t)1 << 30)

/* Reads a part of a file to pages that read zero where the file does not reach. */
static int read_file(int descriptor, off_t offset, char *to, size_t length) {
    for (size_t done = 0; done < length;) {
        size_t most = length - done < PART_MAX ? length - done : PART_MAX;
        ssize_t part = pread(descriptor, to + done, most, offset + (off_t)done);
        if (part < 0 && errno == EINTR) continue;
        if (part < 0) return -1;
        if (part == 0) break;
        done += (size_t)part;
    }
    return 0;
}

/* What there is of a map's file: an error if its descriptor was closed, or is another file's now. */
static int find_file(const struct file_map *map, struct stat *status) {
    if (fstat(map->descriptor, status) != 0) return -1;
    if (status->st_dev == map->device && status->st_ino == map->inode) return 0;
    errno = EBADF;
    return -1;
}

/* Reads what a map has from a page of its file on. */
static int read_again(const struct file_map *map, page_t page, size_t length) {
    struct stat status;
    if (find_file(map, &status) != 0) return -1;
    off_t offset = map->offset + ((off_t)(page - map->start) << PAGEMAN_PAGE_SHIFT);
    return read_file(map->descriptor, offset, page_address(page), length);
}

/* Writes pages of a shared map to its file, as far as that reaches. */
static int write_back(const struct file_map *map, page_t start, page_t end) {
    if (!map->shared || map->descriptor < 0 || !map->written) return 0;
    struct stat status;
    if (find_file(map, &status) != 0) return -1;
    off_t offset = map->offset + ((off_t)(start - map->start) << PAGEMAN_PAGE_SHIFT);
    if (offset >= status.st_size) return 0;
    uint64_t length = (uint64_t)(end - start) << PAGEMAN_PAGE_SHIFT;
    if (length > (uint64_t)(status.st_size - offset)) length = (uint64_t)(status.st_size - offset);
    const char *from = page_address(start);
    for (uint64_t done = 0; done < length;) {
        size_t most = length - done < PART_MAX ? (size_t)(length - done) : PART_MAX;
        ssize_t part = pwrite(map->descriptor, from + done, most, offset + (off_t)done);
        if (part < 0 && errno == EINTR) continue;
        if (part < 0) return -1;
        done += (uint64_t)part;
    }
    return 0;
}

static int write_back_range(page_t start, page_t end) {
    for (size_t at = map_at(start); at < map_count && maps[at].start < end; at++) {
        page_t from = maps[at].start > start ? maps[at].start : start;
        page_t to = maps[at].end < end ? maps[at].end : end;
        if (write_back(&maps[at], from, to) != 0) return -1;
    }
    return 0;
}

/* Forgets what is known of a range. There is room for one map more. */
static void cut_maps(page_t start, page_t end) {
    for (size_t at = map_at(start); at < map_count && maps[at].start < end;) {
        struct file_map right = maps[at];
        bool keep_left = maps[at].start < start, keep_right = right.end > end;
        if (keep_right) {
            right.offset += (off_t)(end - right.start) << PAGEMAN_PAGE_SHIFT;
            right.start = end;
        }
        if (keep_left) {
            maps[at++].end = start;
            if (keep_right) insert_map(right);
        } else if (keep_right) {
            maps[at++] = right;
        } else {
            memmove(maps + at, maps + at + 1, (map_count - at - 1) * sizeof *maps);
            map_count--;
        }
        if (keep_right) return;
    }
}

static bool range_of(void *address, size_t length, page_t *start, page_t *end) {
    return manager_range((uintptr_t)address, length, start, end);
}

/* ---- mmap ---- */

/* What a file must be for a map of it; its record but for the place. */
static int check_file(int descriptor, int protection, int flags, struct file_map *map) {
    struct stat status;
    int mode = fcntl(descriptor, F_GETFL);
    if (mode < 0 || fstat(descriptor, &status) != 0) {
        errno = EBADF;
        return -1;
    }
    int type = flags & MAP_TYPE;
    if (type != MAP_SHARED && type != MAP_PRIVATE && type != MAP_SHARED_VALIDATE) {
        errno = EINVAL;
        return -1;
    }
    map->device = status.st_dev;
    map->inode = status.st_ino;
    map->shared = type != MAP_PRIVATE;
    map->writable = (mode & O_ACCMODE) == O_RDWR;
    map->written = map->shared && (protection & PROT_WRITE);
    if ((mode & O_ACCMODE) == O_WRONLY || (map->written && !map->writable)) {
        errno = EACCES;
        return -1;
    }
    if (!S_ISREG(status.st_mode)) {
        errno = ENODEV;
        return -1;
    }
    return 0;
}

static void *map_memory(void *address, size_t length, int protection, int flags, struct file_map *map) {
    bool file = map->descriptor >= 0, fixed = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE);
    page_t start, end;
    /* Programs that map only private memory have no records. The first page of them is taken when the place of
     * the map is known, so as not to be in its way. */
    if (map_count && !reserve_maps(2)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    if (fixed && !(flags & MAP_FIXED_NOREPLACE) && length && range_of(address, length, &start, &end)) {
        if (write_back_range(start, end) != 0) return MAP_FAILED;
    }
    /* A file's contents are written here even where the program itself may not. */
    int made_with = file && !(protection & PROT_WRITE) ? PROT_READ | PROT_WRITE : protection;
    if (fail(pageman_mmap(&address, length, made_with, file && (flags & MAP_TYPE) == MAP_SHARED_VALIDATE
                                                           ? (flags & ~MAP_TYPE) | MAP_SHARED
                                                           : flags)) != 0)
        return MAP_FAILED;
    range_of(address, length, &start, &end);
    cut_maps(start, end);
    if ((file || map->shared) && !reserve_maps(1)) {
        pageman_munmap(address, length);
        errno = ENOMEM;
        return MAP_FAILED;
    }
    if (file && read_file(map->descriptor, map->offset, address, (size_t)(end - start) << PAGEMAN_PAGE_SHIFT) != 0) {
        int error = errno;
        pageman_munmap(address, length);
        errno = error;
        return MAP_FAILED;
    }
    if (made_with != protection) pageman_mprotect(address, length, protection);
    if (file || map->shared) {
        map->start = start;
        map->end = end;
        insert_map(*map);
    }
    return address;
}

/* What there are, or may come to be, records of. */
RARE static void *map_recorded(void *address, size_t length, int protection, int flags, int descriptor, off_t offset) {
    struct file_map map = {.descriptor = -1, .offset = offset};
    if (offset & (off_t)(PAGEMAN_PAGE_SIZE - 1)) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    if (flags & MAP_ANONYMOUS) {
        map.shared = (flags & MAP_TYPE) == MAP_SHARED;
    } else {
        if (check_file(descriptor, protection, flags, &map) != 0) {
            /* A bad descriptor comes first, all else of the file after the place. */
            int error = errno;
            if (error != EBADF) {
                uint32_t before = manager_enter();
                int place = fail(manager_check_place(address, length, flags));
                manager_leave(before);
                if (place != 0) return MAP_FAILED;
            }
            errno = error;
            return MAP_FAILED;
        }
        map.descriptor = descriptor;
        uint64_t bytes = ((uint64_t)length + PAGEMAN_PAGE_SIZE - 1) & ~(uint64_t)(PAGEMAN_PAGE_SIZE - 1);
        if (offset < 0 || (uint64_t)offset > INT64_MAX - bytes) {
            errno = EOVERFLOW;
            return MAP_FAILED;
        }
    }
    lock_files();
    void *mapped = map_memory(address, length, protection, flags, &map);
    unlock_files();
    return mapped;
}

void *POSIX(mmap)(void *address, size_t length, int protection, int flags, int descriptor, off_t offset) {
    if (inactive()) return MAP_FAILED;
    /* Without records there is nothing else to do for private memory. */
    if (map_count || !(flags & MAP_ANONYMOUS) || (flags & MAP_TYPE) != MAP_PRIVATE || offset != 0)
        return map_recorded(address, length, protection, flags, descriptor, offset);
    return fail(pageman_mmap(&address, length, protection, flags)) == 0 ? address : MAP_FAILED;
}

/* ---- The others ---- */

RARE static int unmap_recorded(void *address, size_t length) {
    page_t start, end;
    if (length == 0 || !range_of(address, length, &start, &end)) return fail(PAGEMAN_INVALID);
    lock_files();
    int result = 0;
    if (any_map(start, end)) {
        /* What cannot be written to its file stays, so that it is not lost without a word. */
        result = !reserve_maps(1) ? fail(PAGEMAN_NO_MEMORY) : write_back_range(start, end);
    }
    if (result == 0) {
        result = fail(pageman_munmap(address, length));
        if (result == 0) cut_maps(start, end);
    }
    unlock_files();
    return result;
}

int POSIX(munmap)(void *address, size_t length) {
    if (inactive()) return -1;
    return map_count ? unmap_recorded(address, length) : fail(pageman_munmap(address, length));
}

int POSIX(mprotect)(void *address, size_t length, int protection) {
    page_t start, end;
    if (inactive()) return -1;
    if (!map_count) return fail(pageman_mprotect(address, length, protection));
    lock_files();
    int result = 0;
    if (length && protection & PROT_WRITE && range_of(address, length, &start, &end)) {
        for (size_t at = map_at(start); at < map_count && maps[at].start < end; at++) {
            if (!maps[at].shared || maps[at].descriptor < 0) continue;
            if (!maps[at].writable) {
                /* As in Linux, what lies before has its new protection. */
                page_t before = maps[at].start > start ? maps[at].start - start : 0;
                result = fail(pageman_mprotect(address, (size_t)before << PAGEMAN_PAGE_SHIFT, protection));
                if (result == 0) errno = EACCES;
                result = -1;
                break;
            }
            maps[at].written = true;
        }
    }
    if (result == 0) result = fail(pageman_mprotect(address, length, protection));
    unlock_files();
    return result;
}

int POSIX(msync)(void *address, size_t length, int flags) {
    page_t start, end;
    if (inactive()) return -1;
    if ((flags & ~(MS_ASYNC | MS_INVALIDATE | MS_SYNC)) || (flags & MS_ASYNC && flags & MS_SYNC))
        return fail(PAGEMAN_INVALID);
    if ((uintptr_t)address % PAGEMAN_PAGE_SIZE) return fail(PAGEMAN_INVALID);
    if (length == 0) return 0;
    if (!range_of(address, length, &start, &end)) return fail(PAGEMAN_NO_MEMORY);
    if (!map_count) return fail(pageman_madvise(address, length, MADV_NORMAL));
    lock_files();
    int result = write_back_range(start, end);
    if (result == 0) result = fail(pageman_madvise(address, length, MADV_NORMAL));
    unlock_files();
    return result;
}

int POSIX(madvise)(void *address, size_t length, int advice) {
    page_t start, end;
    if (inactive()) return -1;
    if (!map_count) return fail(pageman_madvise(address, length, advice));
    lock_files();
    int result;
    if (advice != MADV_DONTNEED || length == 0 || !range_of(address, length, &start, &end) || !any_map(start, end)) {
        result = fail(pageman_madvise(address, length, advice));
    } else {
        result = fail(pageman_madvise(address, length, MADV_NORMAL));
        int error = errno;
        /* Shared memory keeps its contents, private memory of a file gets the file's again. */
        for (page_t page = start; page < end;) {
            size_t at = map_at(page);
            bool in = at < map_count && maps[at].start <= page;
            page_t next = at < map_count ? (in ? maps[at].end : maps[at].start) : end;
            if (next > end) next = end;
            size_t bytes = (size_t)(next - page) << PAGEMAN_PAGE_SHIFT;
            bool again = in && !maps[at].shared;
            struct stat status;
            if (again && find_file(&maps[at], &status) != 0) {
                error = errno;
                result = -1;
            } else {
                if (!in || !maps[at].shared) pageman_madvise(page_address(page), bytes, MADV_DONTNEED);
                if (again && read_again(&maps[at], page, bytes) != 0) {
                    error = errno;
                    result = -1;
                }
            }
            page = next;
        }
        errno = error;
    }
    unlock_files();
    return result;
}

int POSIX(posix_madvise)(void *address, size_t length, int advice) {
    if (advice < POSIX_MADV_NORMAL || advice > POSIX_MADV_DONTNEED) return EINVAL;
    /* POSIX's own advice never changes contents. */
    int saved = errno, result = POSIX(madvise)(address, length, MADV_NORMAL) == 0 ? 0 : errno;
    errno = saved;
    return result;
}

int POSIX(mincore)(void *address, size_t length, unsigned char *vector) {
    return inactive() ? -1 : fail(pageman_mincore(address, length, vector));
}

static int lock_range(const void *address, size_t length) {
    page_t start, end;
    uintptr_t at = (uintptr_t)address & ~(uintptr_t)(PAGEMAN_PAGE_SIZE - 1), before = (uintptr_t)address - at;
    if (inactive()) return -1;
    if (length > SIZE_MAX - before || !range_of((void *)at, length + before, &start, &end))
        return fail(PAGEMAN_NO_MEMORY);
    return fail(pageman_madvise((void *)at, length + before, MADV_NORMAL));
}

int POSIX(mlock)(const void *address, size_t length) { return lock_range(address, length); }
int POSIX(munlock)(const void *address, size_t length) { return lock_range(address, length); }

/* Moves a record along with its pages. */
static void move_record(page_t old_start, page_t old_end, page_t start, page_t end) {
    struct file_map map = maps[map_at(old_start)];
    cut_maps(old_start, old_end);
    if (start != old_start) cut_maps(start, end);
    map.offset += (off_t)(old_start - map.start) << PAGEMAN_PAGE_SHIFT;
    map.start = start;
    map.end = end;
    insert_map(map);
}

/* Makes a map of a file longer, where it is if it can be. What it has more of the file is read before its pages move, so that
 * they stay where they are if that fails; what was mapped at a fixed place is lost then, as in Linux. */
static int grow_map(const struct file_map *map, void **address, page_t start, page_t end, page_t count, int flags, void *target) {
    size_t had = (size_t)(end - start) << PAGEMAN_PAGE_SHIFT, more = (size_t)(count - (end - start)) << PAGEMAN_PAGE_SHIFT;
    int descriptor = map->descriptor;
    off_t offset = map->offset + ((off_t)(end - map->start) << PAGEMAN_PAGE_SHIFT);
    struct stat status;
    if (find_file(map, &status) != 0) return -1;
    if (!(flags & MREMAP_FIXED)) {
        int error = pageman_mremap(address, had, had + more, 0, NULL);
        if (error == PAGEMAN_OK) {
            if (read_file(descriptor, offset, (char *)*address + had, more) == 0) return 0;
            error = errno;
            pageman_mremap(address, had + more, had, 0, NULL);
            errno = error;
            return -1;
        }
        if (!(flags & MREMAP_MAYMOVE)) return fail(error);
    }
    int protection = state_of(end - 1) >= PAGEMAN_USED ? (int)(state_of(end - 1) & 7) : PROT_NONE;
    int placed = flags & MREMAP_FIXED ? MAP_FIXED : 0;
    if (fail(pageman_mmap(&target, had + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | placed)) != 0) return -1;
    if (read_file(descriptor, offset, (char *)target + had, more) != 0) {
        int error = errno;
        page_t to, to_end;
        pageman_munmap(target, had + more);
        if (placed && range_of(target, had + more, &to, &to_end)) cut_maps(to, to_end);
        errno = error;
        return -1;
    }
    pageman_mprotect((char *)target + had, more, protection);
    return fail(pageman_mremap(address, had, had, MREMAP_MAYMOVE | MREMAP_FIXED, target));
}

static void *remap(void *address, size_t old_length, size_t new_length, int flags, void *target) {
    page_t start, end, to = 0, to_end = 0;
    bool known = old_length && range_of(address, old_length, &start, &end);
    bool records = known && any_map(start, end);
    bool onto = flags & MREMAP_FIXED && range_of(target, new_length, &to, &to_end);
    if (flags & MREMAP_FIXED && (!onto || (known && to < end && start < to_end))) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    /* One moved from the middle of a map into the middle of another leaves parts of both. */
    if (map_count && !reserve_maps(3)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    const struct file_map *grows = NULL;
    page_t count;
    bool counted = manager_pages_of(new_length, &count);
    if (records) {
        const struct file_map *map = &maps[map_at(start)];
        if (counted && count <= end - start && !(flags & MREMAP_FIXED)) {
            if (write_back_range(start + count, end) != 0) return MAP_FAILED;
            if (fail(pageman_mremap(&address, old_length, new_length, flags, target)) != 0) return MAP_FAILED;
            cut_maps(start + count, end);
            return address;
        }
        if (map->start > start || map->end < end) {
            /* Several maps cannot be moved as one. */
            errno = EFAULT;
            return MAP_FAILED;
        }
        if (counted && count < end - start && write_back_range(start + count, end) != 0) return MAP_FAILED;
        if (counted && count > end - start && map->descriptor >= 0) grows = map;
    }
    if (onto && write_back_range(to, to_end) != 0) return MAP_FAILED;
    if ((grows ? grow_map(grows, &address, start, end, count, flags, target)
               : fail(pageman_mremap(&address, old_length, new_length, flags, target))) != 0)
        return MAP_FAILED;
    if (onto) cut_maps(to, to_end);
    if (!records) return address;
    range_of(address, new_length, &to, &to_end);
    move_record(start, end, to, to_end);
    return address;
}

void *POSIX(mremap)(void *address, size_t old_length, size_t new_length, int flags, ...) {
    void *target = 0;
    if (flags & MREMAP_FIXED) {
        va_list rest;
        va_start(rest, flags);
        target = va_arg(rest, void *);
        va_end(rest);
    }
    if (inactive()) return MAP_FAILED;
    if ((flags & ~(MREMAP_MAYMOVE | MREMAP_FIXED)) || (flags & MREMAP_FIXED && !(flags & MREMAP_MAYMOVE)) ||
        (uintptr_t)address % PAGEMAN_PAGE_SIZE || old_length == 0 || new_length == 0) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    if (!map_count && !(flags & MREMAP_FIXED))
        return fail(pageman_mremap(&address, old_length, new_length, flags, target)) == 0 ? address : MAP_FAILED;
    lock_files();
    void *moved = remap(address, old_length, new_length, flags, target);
    unlock_files();
    return moved;
}

/* A program may have mapped something into pages of its break. */
static int leave_break(intptr_t increment) {
    page_t start, end;
    uintptr_t down = (uintptr_t)0 - (uintptr_t)increment;
    if (down > manager.break_at - manager.break_start) return 0;
    start = (page_t)((manager.break_at - down + PAGEMAN_PAGE_SIZE - 1) >> PAGEMAN_PAGE_SHIFT);
    end = (page_t)(manager.break_end >> PAGEMAN_PAGE_SHIFT);
    if (start >= end || !any_map(start, end)) return 0;
    if (!reserve_maps(1) || write_back_range(start, end) != 0) return -1;
    cut_maps(start, end);
    return 0;
}

void *POSIX(sbrk)(intptr_t increment) {
    void *previous = (void *)-1;
    /* A malloc may hold a lock of its own that whoever reads a file waits for. It does without what it gives back. */
    bool down = increment < 0 && map_count, locked = !down || try_lock_files();
    bool moved = locked && (!down || leave_break(increment) == 0) && pageman_sbrk(increment, &previous) == PAGEMAN_OK;
    if (down && locked) unlock_files();
    if (moved) return previous;
    errno = ENOMEM;
    return (void *)-1;
}

#ifdef __wasm__
/* The switch at run time, before anything is mapped. */
__attribute__((constructor)) static void read_switch(void) {
    const char *value = getenv("PAGEMAN");
    if (value && strcmp(value, "off") == 0) pageman_set_active(false);
}
#else
void pageman_posix_forget(void);
void pageman_posix_forget(void) {
    maps = NULL;
    map_count = map_capacity = map_pages = 0;
}
#endif
