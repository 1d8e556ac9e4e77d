/* Counts the words of a file, and prints the ten that are there most often.
 *
 *     words FILE
 *
 * The file is read through a map of it. The table of words is memory of mmap's that grows by mremap, and so moves
 * only where it has to. Built without the page manager, as it also can be, the table is malloc's.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct word {
    uint32_t start, length, count; /* `start` in the text */
};

static const char *text;
static struct word *table; /* open addressing; what is not in use has no count */
static size_t capacity = 1 << 10, used;

static void fail(const char *what) {
    fprintf(stderr, "words: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* `size` bytes more than `old_size` are zero. */
static void *grow(void *old, size_t old_size, size_t size) {
#ifdef MREMAP_MAYMOVE
    void *grown = old ? mremap(old, old_size, size, MREMAP_MAYMOVE)
                      : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (grown == MAP_FAILED) fail("the table");
#else
    char *grown = realloc(old, size);
    if (!grown) fail("the table");
    memset(grown + old_size, 0, size - old_size);
#endif
    return grown;
}

static uint32_t hash(const char *word, uint32_t length) {
    uint32_t hash = 2166136261u;
    for (uint32_t i = 0; i < length; i++) hash = (hash ^ (uint32_t)tolower((unsigned char)word[i])) * 16777619u;
    return hash;
}

static struct word *find(const char *word, uint32_t length) {
    size_t at = hash(word, length) & (capacity - 1);
    while (table[at].count && (table[at].length != length || strncasecmp(text + table[at].start, word, length) != 0))
        at = (at + 1) & (capacity - 1);
    return &table[at];
}

static void double_table(void) {
    size_t old = capacity, bytes = old * sizeof *table;
    struct word *copy = malloc(bytes);
    if (!copy) fail("a copy of the table");
    memcpy(copy, table, bytes);
    table = grow(table, bytes, 2 * bytes);
    memset(table, 0, bytes);
    capacity = 2 * old;
    for (size_t i = 0; i < old; i++)
        if (copy[i].count) *find(text + copy[i].start, copy[i].length) = copy[i];
    free(copy);
}

static void count(uint32_t start, uint32_t length) {
    struct word *word = find(text + start, length);
    if (word->count++) return;
    word->start = start;
    word->length = length;
    if (++used > capacity / 2) double_table();
}

/* The most frequent first; of equals the one that comes first in the text. */
static int compare(const void *left, const void *right) {
    const struct word *a = left, *b = right;
    if (a->count != b->count) return a->count < b->count ? 1 : -1;
    return a->start < b->start ? -1 : a->start > b->start;
}

int main(int argc, char **argv) {
    struct stat status;
    int fd = argc == 2 ? open(argv[1], O_RDONLY) : -1;
    if (argc != 2) return fputs("words: name a file\n", stderr), 2;
    if (fd < 0 || fstat(fd, &status) != 0) fail(argv[1]);
    size_t length = (size_t)status.st_size;
    text = length ? mmap(NULL, length, PROT_READ, MAP_PRIVATE, fd, 0) : "";
    if (text == MAP_FAILED) fail("a map of the file");
    table = grow(NULL, 0, capacity * sizeof *table);
    for (size_t at = 0; at < length;) {
        size_t start = at;
        while (at < length && isalpha((unsigned char)text[at])) at++;
        if (at > start) count((uint32_t)start, (uint32_t)(at - start));
        else at++;
    }
    qsort(table, capacity, sizeof *table, compare);
    printf("%zu words\n", used);
    for (size_t i = 0; i < 10 && table[i].count; i++)
        printf("%u %.*s\n", table[i].count, (int)table[i].length, text + table[i].start);
    return 0;
}
