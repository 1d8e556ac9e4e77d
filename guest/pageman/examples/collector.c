/* A collector of garbage on the page manager: mark and sweep of blocks that are aligned to their size.
 *
 *     collector [TREES [ARRAYS]]
 *
 * Objects of one size share a block of 256 KiB, so that the block, and in it the marks, follow from an object's address.
 * Blocks come from mmap at a multiple of their size: too much is reserved, and what is not needed is unmapped again,
 * as collectors do. An object that is larger than those has a block of its own, as long as it needs. A block without live
 * objects is unmapped, and the memory is anyone's again. Roots are told to it, as locals of WebAssembly cannot be looked at.
 * The program makes and drops binary trees beside a large one that stays, and arrays of trees.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BLOCK ((size_t)256 << 10)
#define SIZES 4 /* of 16, 32, 64 and 128 bytes; all others are large */
#define PAGE ((size_t)64 << 10)
#define ROOTS 64

struct block {
    struct block *next;
    void *memory; /* of a block that malloc has made */
    size_t length; /* of all that it has */
    uint32_t size, count;
    void **free; /* a list through the free objects */
    unsigned char *marks;
};

/* All blocks of a size, and the one that objects are taken from: those before it are full. */
static struct block *blocks[SIZES + 1], *current[SIZES];
static void **roots[ROOTS];
static size_t root_count, live_blocks, blocks_max, live_bytes, collections, allocated_since;

/* ---- Blocks ---- */

static void out_of_memory(void) {
    fputs("collector: there is no memory\n", stderr);
    exit(1);
}

/* A block at a multiple of 256 KiB. */
static struct block *map_block(size_t length) {
#ifdef EMULATED
    /* Without the manager nothing can be trimmed. */
    char *over = malloc(length + BLOCK);
    if (!over) out_of_memory();
    struct block *block = (struct block *)(((uintptr_t)over + BLOCK - 1) & ~(uintptr_t)(BLOCK - 1));
    memset(block, 0, length);
    block->memory = over;
    return block;
#else
    char *over = mmap(NULL, length + BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (over == MAP_FAILED) out_of_memory();
    char *aligned = (char *)(((uintptr_t)over + BLOCK - 1) & ~(uintptr_t)(BLOCK - 1));
    if (aligned > over && munmap(over, (size_t)(aligned - over)) != 0) abort();
    if (aligned < over + BLOCK && munmap(aligned + length, (size_t)(over + BLOCK - aligned)) != 0) abort();
    if (mprotect(aligned, length, PROT_READ | PROT_WRITE) != 0) abort();
    return (struct block *)aligned;
#endif
}

static void unmap_block(struct block *block) {
    live_blocks--;
    live_bytes -= block->length;
#ifdef EMULATED
    free(block->memory);
#else
    if (munmap(block, block->length) != 0) abort();
#endif
}

static struct block *block_of(void *object) { return (struct block *)((uintptr_t)object & ~(uintptr_t)(BLOCK - 1)); }

static char *objects_of(struct block *block) { return (char *)block->marks + (block->count + 127) / 128 * 128; }

static uint32_t index_of(struct block *block, void *object) {
    return (uint32_t)((char *)object - objects_of(block)) / block->size;
}

static void list_free(struct block *block, uint32_t index) {
    void **object = (void **)(objects_of(block) + (size_t)index * block->size);
    *object = block->free;
    block->free = object;
}

/* A block for objects of a size: of one of them, if they are large. */
static struct block *new_block(int class, size_t size) {
    size_t length = class < SIZES ? BLOCK : (sizeof(struct block) + 384 + size + PAGE - 1) / PAGE * PAGE;
    struct block *block = map_block(length);
    block->length = length;
    block->size = (uint32_t)size;
    block->count = class < SIZES ? (uint32_t)((BLOCK - sizeof *block - 256) / (size + 1)) : 1;
    block->marks = (unsigned char *)(block + 1);
    for (uint32_t i = block->count; i-- > 0;) list_free(block, i);
    block->next = blocks[class];
    blocks[class] = block;
    live_bytes += length;
    if (++live_blocks > blocks_max) blocks_max = live_blocks;
    return block;
}

/* ---- Collecting ---- */

/* Objects are made of pointers to objects, or null. Depth is that of the longest list. */
static void mark(void *object) {
    while (object) {
        struct block *block = block_of(object);
        uint32_t index = index_of(block, object);
        if (block->marks[index]) return;
        block->marks[index] = 1;
        void **fields = object;
        for (uint32_t field = 1; field < block->size / sizeof *fields; field++) mark(fields[field]);
        object = fields[0];
    }
}

static void sweep(struct block **link) {
    while (*link) {
        struct block *block = *link;
        uint32_t live = 0;
        for (uint32_t i = 0; i < block->count; i++) live += block->marks[i];
        if (!live) {
            *link = block->next;
            unmap_block(block);
            continue;
        }
        block->free = NULL;
        for (uint32_t i = block->count; i-- > 0;)
            if (!block->marks[i]) list_free(block, i);
        memset(block->marks, 0, block->count);
        link = &block->next;
    }
}

static void collect(void) {
    collections++;
    allocated_since = 0;
    for (size_t i = 0; i < root_count; i++) mark(*roots[i]);
    for (int class = 0; class <= SIZES; class++) sweep(&blocks[class]);
    memcpy(current, blocks, sizeof current);
}

static void add_root(void *root) {
    if (root_count == ROOTS) abort();
    roots[root_count++] = root;
}

static void drop_roots(size_t count) { root_count -= count; }

static void *allocate(size_t size) {
    int class = 0;
    while (class < SIZES && ((size_t)16 << class) < size) class++;
    /* When half as much was allocated as there was live, and 1 MiB at least. */
    if (allocated_since > ((size_t)1 << 20) + live_bytes / 2) collect();
    struct block *block = class < SIZES ? current[class] : NULL;
    while (block && !block->free) block = current[class] = block->next;
    if (!block) {
        block = new_block(class, class < SIZES ? (size_t)16 << class : size);
        if (class < SIZES) current[class] = block;
    }
    void **object = block->free;
    block->free = *object;
    /* What is large is new memory, which reads zero but for the list. */
    memset(object, 0, class < SIZES ? block->size : sizeof *object);
    allocated_since += block->size;
    return object;
}

/* ---- The program ---- */

struct tree {
    struct tree *left, *right;
    void *odd; /* of another size, at times */
};

static unsigned array_count = 16;
static unsigned made;

static struct tree *make_tree(int depth) {
    struct tree *tree = NULL, *left = NULL, *right = NULL;
    add_root(&tree), add_root(&left), add_root(&right);
    if (depth > 0) {
        left = make_tree(depth - 1);
        right = make_tree(depth - 1);
    }
    tree = allocate(sizeof *tree);
    tree->left = left;
    tree->right = right;
    if (++made % 64 == 0) {
        void *odd = allocate(17u + made / 64 % 110);
        tree->odd = odd;
    }
    drop_roots(3);
    return tree;
}

static unsigned count_tree(const struct tree *tree) {
    return tree ? 1 + count_tree(tree->left) + count_tree(tree->right) : 0;
}

/* Makes an array of some pointers, or many, in place of another. */
static void **replace_array(void **arrays, unsigned turn, struct tree *first) {
    uint32_t random = turn * 2654435761u;
    size_t count = ((size_t)1 << (12 + (random >> 28) % 8)) + (random >> 8) % 4096;
    void **array = allocate(count * sizeof *array);
    array[0] = array[count - 1] = first;
    arrays[(random >> 4) % array_count] = array;
    return array;
}

int main(int argc, char **argv) {
    int trees = argc > 1 ? atoi(argv[1]) : 100;
    if (argc > 2) array_count = (unsigned)atoi(argv[2]);
    struct tree *kept = NULL, *tree = NULL;
    void **arrays = NULL;
    add_root(&kept), add_root(&tree), add_root(&arrays);
    kept = make_tree(16);
    arrays = allocate(array_count * sizeof *arrays);
    unsigned nodes = 0, in_arrays = 0;
    for (int i = 0; i < trees; i++) {
        tree = make_tree(4 + i % 10);
        nodes += count_tree(tree);
        for (unsigned j = 0; j < 3; j++) in_arrays += count_tree(replace_array(arrays, 3 * (unsigned)i + j, tree)[0]);
        if (i % 25 == 24) kept = make_tree(12 + i / 25 % 5);
    }
    tree = NULL;
    unsigned left = count_tree(kept);
    kept = NULL;
    arrays = NULL;
    collect();
    printf("%u nodes in %d trees, %u in arrays, %u in the one that was kept, %zu blocks left\n", nodes, trees, in_arrays, left,
           live_blocks);
    fprintf(stderr, "%zu collections, %zu blocks at most\n", collections, blocks_max);
    return live_blocks != 0;
}
