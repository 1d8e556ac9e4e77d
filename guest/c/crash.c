// Traps three calls deep, with one of them inlined: for showing that backtraces
// name lines of source code. Built with debug information and without libc.

static volatile int depth;

static inline __attribute__((always_inline)) int read_at(const int *place) {
    return *place; // the trap: far outside of memory
}

__attribute__((noinline)) static int look(int distance) {
    depth += 1;
    return read_at((const int *)(0x7fff0000u + distance)) + depth;
}

__attribute__((export_name("crash"))) int crash(int distance) {
    depth = 0;
    int found = look(distance);
    return found + depth;
}
