/* A collector of garbage on the page manager: mark and sweep of blocks that are aligned to their size.
 *
 *     collector [TREES]
 *
 * Objects of one size share a block of 256 KiB, so that the block, and in it the marks, follow from an object's address.
 * Blocks come from mmap at a multiple of their size: too much is reserved, and what is not needed is unmapped again,
 * as collectors do. A block without live objects is unmapped, and the memory is anyone's again. Roots are told to it,
 * as locals of WebAssembly cannot be looked at. The program makes and drops binary trees beside a large one that stays.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BLOCK ((size_t)256 << 10)
#define SIZES 4 /* of 16, 32, 64 and 128 bytes */
#define ROOTS 64

struct block {
    struct block *next;
    void *memory; /* of a block that malloc has made */
    uint32_t size, count;
    void **free; /* a list through the free objects */
    unsigned char *marks;
};

/* All blocks of a size, and the one that objects are taken from: those before it are full. */
static struct block *blocks[SIZES], *current[SIZES];
static void **roots[ROOTS];
static size_t root_count, live_blocks, blocks_max, collections, allocated_since;

/* ---- Blocks ---- */

static void out_of_memory(void) {
    fputs("collector: there is no memory\n", stderr);
    exit(1);
}

/* A block at a multiple of its size. */
static struct block *map_block(void) {
#ifdef EMULATED
    /* Without the manager nothing can be trimmed. */
    char *over = malloc(2 * BLOCK);
    if (!over) out_of_memory();
    struct block *block = (struct block *)(((uintptr_t)over + BLOCK - 1) & ~(uintptr_t)(BLOCK - 1));
    memset(block, 0, BLOCK);
    block->memory = over;
    return block;
#else
    char *over = mmap(NULL, 2 * BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (over == MAP_FAILED) out_of_memory();
    char *aligned = (char *)(((uintptr_t)over + BLOCK - 1) & ~(uintptr_t)(BLOCK - 1));
    if (aligned > over && munmap(over, (size_t)(aligned - over)) != 0) abort();
    if (munmap(aligned + BLOCK, (size_t)(over + BLOCK - aligned)) != 0) abort();
    if (mprotect(aligned, BLOCK, PROT_READ | PROT_WRITE) != 0) abort();
    return (struct block *)aligned;
#endif
}

static void unmap_block(struct block *block) {
#ifdef EMULATED
    free(block->memory);
#else
    if (munmap(block, BLOCK) != 0) abort();
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

static struct block *new_block(int class) {
    struct block *block = map_block();
    block->size = 16u << class;
    block->count = (uint32_t)((BLOCK - sizeof *block - 256) / (block->size + 1));
    block->marks = (unsigned char *)(block + 1);
    for (uint32_t i = block->count; i-- > 0;) list_free(block, i);
    block->next = blocks[class];
    blocks[class] = current[class] = block;
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
            live_blocks--;
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
    for (int class = 0; class < SIZES; class++) {
        sweep(&blocks[class]);
        current[class] = blocks[class];
    }
}

static void add_root(void *root) {
    if (root_count == ROOTS) abort();
    roots[root_count++] = root;
}

static void drop_roots(size_t count) { root_count -= count; }

static void *allocate(size_t size) {
    int class = 0;
    while (((size_t)16 << class) < size) class++;
    if (class >= SIZES) abort();
    /* When as much was allocated as there was live, and 1 MiB at least. */
    if (allocated_since > ((size_t)1 << 20) + live_blocks * BLOCK / 2) collect();
    struct block *block = current[class];
    while (block && !block->free) block = current[class] = block->next;
    if (!block) block = new_block(class);
    void **object = block->free;
    block->free = *object;
    memset(object, 0, block->size);
    allocated_since += block->size;
    return object;
}

/* ---- The program ---- */

struct tree {
    struct tree *left, *right;
    void *odd; /* of another size, at times */
};

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

int main(int argc, char **argv) {
    int trees = argc > 1 ? atoi(argv[1]) : 100;
    struct tree *kept = NULL, *tree = NULL;
    add_root(&kept), add_root(&tree);
    kept = make_tree(16);
    unsigned nodes = 0;
    for (int i = 0; i < trees; i++) {
        tree = make_tree(4 + i % 10);
        nodes += count_tree(tree);
        if (i % 25 == 24) kept = make_tree(12 + i / 25 % 5);
    }
    tree = NULL;
    unsigned left = count_tree(kept);
    kept = NULL;
    collect();
    printf("%u nodes in %d trees, %u in the one that was kept, %zu blocks left\n", nodes, trees, left, live_blocks);
    fprintf(stderr, "%zu collections, %zu blocks at most\n", collections, blocks_max);
    return live_blocks != 0;
}
