// Kernels that are measured and compared: each export takes how much work to do
// and returns a number that depends on all of it. Freestanding: no library, no
// imports. Compiles as a host's C, too, which says what the results must be.

#include <stddef.h>
#include <stdint.h>

#ifdef __wasm__
#define KERNEL(name) __attribute__((export_name(#name))) uint64_t name(uint32_t count)
#else
#define KERNEL(name) uint64_t name(uint32_t count)
#endif

// A generator of numbers that look random: the same ones every time.
static uint64_t state;

static uint32_t next(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static uint64_t mix(uint64_t sum, uint64_t value) {
    return (sum ^ value) * 0x9e3779b97f4a7c15u;
}

// -- sha256 ------------------------------------------------------------------

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t word, int bits) {
    return word >> bits | word << (32 - bits);
}

static void sha256_block(uint32_t digest[8], const uint8_t *block) {
    uint32_t w[64];
    for (int i = 0; i < 16; i++) {
        const uint8_t *at = block + 4 * i;
        w[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3)
            + (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    uint32_t a = digest[0], b = digest[1], c = digest[2], d = digest[3];
    uint32_t e = digest[4], f = digest[5], g = digest[6], h = digest[7];
    for (int i = 0; i < 64; i++) {
        uint32_t one = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g))
            + round_constants[i] + w[i];
        uint32_t two =
            (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
    }
    digest[0] += a, digest[1] += b, digest[2] += c, digest[3] += d;
    digest[4] += e, digest[5] += f, digest[6] += g, digest[7] += h;
}

// The first half of the digest of `count` letters `a`, as SHA-256 defines it.
KERNEL(sha256) {
    uint32_t digest[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t block[64];
    for (int i = 0; i < 64; i++) block[i] = 'a';
    uint32_t rest = count;
    for (; rest >= 64; rest -= 64) sha256_block(digest, block);
    block[rest] = 0x80;
    for (uint32_t i = rest + 1; i < 64; i++) block[i] = 0;
    if (rest >= 56) {
        sha256_block(digest, block);
        for (int i = 0; i < 64; i++) block[i] = 0;
    }
    uint64_t bits = (uint64_t)count * 8;
    for (int i = 0; i < 8; i++) block[63 - i] = (uint8_t)(bits >> 8 * i);
    sha256_block(digest, block);
    return (uint64_t)digest[0] << 32 | digest[1];
}

// -- nbody -------------------------------------------------------------------

typedef struct {
    double at[3], speed[3], mass;
} Body;

// `count` steps of five bodies that attract each other.
KERNEL(nbody) {
    Body bodies[5];
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < 3; k++) {
            bodies[i].at[k] = (double)((i * 7 + k * 5) % 11) - 5;
            bodies[i].speed[k] = (double)((i * 3 + k) % 7) / 8 - 0.375;
        }
        bodies[i].mass = i == 0 ? 40 : 0.25 * i;
    }
    const double step = 0x1p-10;
    for (uint32_t n = 0; n < count; n++) {
        for (int i = 0; i < 5; i++) {
            for (int j = i + 1; j < 5; j++) {
                Body *a = &bodies[i], *b = &bodies[j];
                double d[3], square = 0x1p-6;
                for (int k = 0; k < 3; k++) {
                    d[k] = a->at[k] - b->at[k];
                    square += d[k] * d[k];
                }
                double pull = step / (square * __builtin_sqrt(square));
                for (int k = 0; k < 3; k++) {
                    a->speed[k] -= d[k] * b->mass * pull;
                    b->speed[k] += d[k] * a->mass * pull;
                }
            }
        }
        for (int i = 0; i < 5; i++) {
            for (int k = 0; k < 3; k++) bodies[i].at[k] += step * bodies[i].speed[k];
        }
    }
    uint64_t sum = 0;
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < 3; k++) {
            union { double value; uint64_t bits; } view = {bodies[i].at[k]};
            sum = mix(sum, view.bits);
        }
    }
    return sum;
}

// -- mandelbrot --------------------------------------------------------------

typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Integers __attribute__((vector_size(16)));

// The set on a square of `count` by `count` points, four at a time.
#ifdef __wasm__
__attribute__((target("simd128")))
#endif
KERNEL(mandelbrot) {
    uint64_t sum = 0;
    const float scale = 3.0f / (float)count;
    for (uint32_t y = 0; y < count; y++) {
        for (uint32_t x = 0; x + 4 <= count; x += 4) {
            Floats real0 = {(float)x, (float)(x + 1), (float)(x + 2), (float)(x + 3)};
            real0 = real0 * scale - 2.0f;
            float at = (float)y * scale - 1.5f;
            Floats imaginary0 = {at, at, at, at};
            Floats real = real0, imaginary = imaginary0;
            Integers rounds = {0, 0, 0, 0};
            for (int i = 0; i < 64; i++) {
                Floats a = real * real, b = imaginary * imaginary;
                Integers inside = a + b <= 4.0f;
                if (!(inside[0] | inside[1] | inside[2] | inside[3])) break;
                rounds -= inside;
                imaginary = (real + real) * imaginary + imaginary0;
                real = a - b + real0;
            }
            sum += (uint32_t)(rounds[0] + rounds[1] + rounds[2] + rounds[3]);
        }
    }
    return sum;
}

// -- sort --------------------------------------------------------------------

static uint32_t numbers[1 << 20];

static void sort_range(uint32_t *low, uint32_t *high) {
    while (high - low > 16) {
        uint32_t a = low[0], b = low[(high - low) / 2], c = high[-1];
        uint32_t pivot = a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
        uint32_t *left = low, *right = high - 1;
        for (;;) {
            while (*left < pivot) left++;
            while (*right > pivot) right--;
            if (left >= right) break;
            uint32_t swap = *left;
            *left++ = *right;
            *right-- = swap;
        }
        if (left - low < high - left) {
            sort_range(low, left);
            low = left;
        } else {
            sort_range(left, high);
            high = left;
        }
    }
    for (uint32_t *at = low + 1; at < high; at++) {
        uint32_t value = *at, *to = at;
        for (; to > low && to[-1] > value; to--) *to = to[-1];
        *to = value;
    }
}

// Quicksort of `count` numbers.
KERNEL(sort) {
    state = count;
    for (uint32_t i = 0; i < count; i++) numbers[i] = next();
    sort_range(numbers, numbers + count);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0 && numbers[i - 1] > numbers[i]) return 0;
        sum = mix(sum, numbers[i]);
    }
    return sum;
}

// -- interpreter -------------------------------------------------------------

enum { SET, MOVE, ADD, MULTIPLY, AND, SHIFT, LESS, GO, GO_IF_ZERO, GO_IF_ONE, HALT };

typedef struct {
    uint8_t operation, a, b, c;
} Instruction;

// Sums the Collatz steps of all numbers up to r0: r1 counts, r2 walks, r3 sums.
static const Instruction program[] = {
    {SET, 1, 1, 0},
    {SET, 3, 0, 0},
    // 2: the next number
    {MOVE, 2, 1, 0},
    // 3: the next step
    {GO_IF_ONE, 2, 12, 0},
    {ADD, 3, 3, 1},
    {AND, 4, 2, 1},
    {GO_IF_ZERO, 4, 10, 0},
    {MULTIPLY, 2, 2, 3},
    {ADD, 2, 2, 1},
    {GO, 0, 3, 0},
    // 10: even
    {SHIFT, 2, 2, 1},
    {GO, 0, 3, 0},
    // 12: arrived
    {ADD, 1, 1, 1},
    {LESS, 4, 0, 1},
    {GO_IF_ZERO, 4, 2, 0},
    {HALT, 0, 0, 0},
};

// A loop around a switch, as interpreters have it.
KERNEL(interpreter) {
    uint64_t registers[8] = {count};
    for (const Instruction *at = program;; at++) {
        uint64_t *to = &registers[at->a & 7];
        uint64_t from = registers[at->b & 7];
        switch (at->operation) {
        case SET: *to = at->b; break;
        case MOVE: *to = from; break;
        case ADD: *to = from + at->c; break;
        case MULTIPLY: *to = from * at->c; break;
        case AND: *to = from & at->c; break;
        case SHIFT: *to = from >> (at->c & 63); break;
        case LESS: *to = registers[at->b & 7] < registers[at->c & 7]; break;
        case GO: at = program + at->b - 1; break;
        case GO_IF_ZERO: if (*to == 0) at = program + at->b - 1; break;
        case GO_IF_ONE: if (*to == 1) at = program + at->b - 1; break;
        default: return registers[3];
        }
    }
}

// -- dispatch ----------------------------------------------------------------

typedef uint64_t Method(uint64_t sum, uint64_t value);

__attribute__((noinline)) static uint64_t method_add(uint64_t sum, uint64_t value) {
    return sum + value;
}
__attribute__((noinline)) static uint64_t method_xor(uint64_t sum, uint64_t value) {
    return sum ^ value << 7;
}
__attribute__((noinline)) static uint64_t method_multiply(uint64_t sum, uint64_t value) {
    return sum * (value | 1);
}
__attribute__((noinline)) static uint64_t method_rotate(uint64_t sum, uint64_t value) {
    return (sum << 13 | sum >> 51) - value;
}

// Read at run time, so that no compiler knows what is called.
static Method *volatile methods[4] = {method_add, method_xor, method_multiply, method_rotate};

// `count` calls through function pointers.
KERNEL(dispatch) {
    Method *table[4];
    for (int i = 0; i < 4; i++) table[i] = methods[i];
    uint64_t sum = 1;
    for (uint32_t i = 0; i < count; i++) sum = table[i % 7 & 3](sum, i);
    return sum;
}

// -- memory ------------------------------------------------------------------

static uint8_t bytes[1 << 24];

// `count` copies of lengths that programs copy: most are short.
KERNEL(copy_short) {
    state = 1;
    for (uint32_t i = 0; i < 1 << 14; i++) bytes[i] = (uint8_t)next();
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t random = next();
        uint32_t length = random & 63, from = random >> 6 & 4095, to = 8192 + (random >> 18 & 4095);
        __builtin_memcpy(bytes + to, bytes + from, length);
        sum = mix(sum, bytes[to + length / 2]);
    }
    return sum;
}

// `count` copies of 64 KiB.
KERNEL(copy_long) {
    state = 2;
    for (uint32_t i = 0; i < 1 << 18; i++) bytes[i] = (uint8_t)next();
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t random = next();
        uint32_t from = random & 0xffff, to = (1 << 17) + (random >> 16);
        __builtin_memcpy(bytes + to, bytes + from, 1 << 16);
        sum = mix(sum, bytes[to + i % (1 << 16)]);
    }
    return sum;
}

// `count` sweeps over 16 MiB in strides.
KERNEL(sweep) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t stride = 64u << i % 4;
        for (uint32_t at = i % 64; at < sizeof bytes; at += stride) bytes[at] = (uint8_t)(at >> 6);
        for (uint32_t at = i % 64; at < sizeof bytes; at += stride) sum += bytes[at];
    }
    return sum;
}

// -- utf8 --------------------------------------------------------------------

// Counts the code points of `count` KiB of UTF-8, and checks it.
KERNEL(utf8) {
    uint32_t length = 0;
    state = 3;
    while (length < 1 << 16) {
        uint32_t random = next(), kind = random >> 28;
        uint32_t code = kind < 10 ? 0x20 + random % 0x5f
            : kind < 13           ? 0xa0 + random % 0x700
            : kind < 15           ? 0x1000 + random % 0x8000
                                  : 0x10000 + random % 0x100000;
        if (code < 0x80) {
            bytes[length++] = (uint8_t)code;
        } else if (code < 0x800) {
            bytes[length++] = (uint8_t)(0xc0 | code >> 6);
            bytes[length++] = 0x80 | (code & 63);
        } else if (code < 0x10000) {
            bytes[length++] = (uint8_t)(0xe0 | code >> 12);
            bytes[length++] = 0x80 | (code >> 6 & 63);
            bytes[length++] = 0x80 | (code & 63);
        } else {
            bytes[length++] = (uint8_t)(0xf0 | code >> 18);
            bytes[length++] = 0x80 | (code >> 12 & 63);
            bytes[length++] = 0x80 | (code >> 6 & 63);
            bytes[length++] = 0x80 | (code & 63);
        }
    }
    uint64_t points = 0, sum = 0;
    const uint8_t *at = bytes, *end = bytes + length;
    for (uint64_t rest = (uint64_t)count << 10; rest > 0; points++) {
        if (at == end) at = bytes;
        uint32_t first = *at, more = first < 0x80 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
        uint32_t code = more == 0 ? first : first & (0x3f >> more);
        for (uint32_t i = 1; i <= more; i++) {
            if ((at[i] & 0xc0) != 0x80) return 0;
            code = code << 6 | (at[i] & 0x3f);
        }
        if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0;
        at += more + 1;
        sum += code;
        rest = rest > more ? rest - more - 1 : 0;
    }
    return mix(points, sum);
}

// -- matrix ------------------------------------------------------------------

enum { SIDE = 160 };
static double left[SIDE][SIDE], right[SIDE][SIDE], product[SIDE][SIDE];

// The product of two matrices, `count` times.
KERNEL(matrix) {
    state = 4;
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) {
            left[i][j] = (double)(next() % 64) - 32;
            right[i][j] = (double)(next() % 64) / 64;
        }
    }
    uint64_t sum = 0;
    for (uint32_t n = 0; n < count; n++) {
        left[n % SIDE][0] += 1;
        for (int i = 0; i < SIDE; i++) {
            for (int j = 0; j < SIDE; j++) {
                double cell = 0;
                for (int k = 0; k < SIDE; k++) cell += left[i][k] * right[k][j];
                product[i][j] = cell;
            }
        }
        for (int i = 0; i < SIDE; i++) sum = mix(sum, (uint64_t)(product[i][i] * 64 + 1e6));
    }
    return sum;
}

#ifndef __wasm__
#include <stdio.h>
int main(void) {
#define SHOW(name, count) printf("%-12s %u %#018llx\n", #name, count, (unsigned long long)name(count))
    SHOW(sha256, 1000), SHOW(nbody, 100), SHOW(mandelbrot, 32), SHOW(sort, 1000);
    SHOW(interpreter, 100), SHOW(dispatch, 1000), SHOW(copy_short, 1000), SHOW(copy_long, 4);
    SHOW(sweep, 4), SHOW(utf8, 64), SHOW(matrix, 1);
}
#endif
