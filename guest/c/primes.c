// Answers with prime numbers, as a CGI program that can be started warm: it computes its table
// once, and each fork has that.

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pagefork.h"

enum { LIMIT = 1000000 };

static int primes[LIMIT];
static int primes_count;
// Requests that this instance has answered.
static int answered;

static void compute(void) {
    char *composite = calloc(LIMIT, 1);
    if (!composite) {
        exit(1);
    }
    for (int n = 2; n < LIMIT; n++) {
        if (composite[n]) {
            continue;
        }
        primes[primes_count++] = n;
        for (long multiple = (long)n * 2; multiple < LIMIT; multiple += n) {
            composite[multiple] = 1;
        }
    }
    free(composite);
}

// What an instance that is torn down tells.
static void torn_down(void) {
    fprintf(stderr, "torn down\n");
}

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value ? value : "none";
}

int main(void) {
    atexit(torn_down);
    compute();
    unsigned fork = pagefork_snapshot();
    if (fork != 0) {
        enum pagefork_head head = pagefork_read_request();
        if (head != PAGEFORK_HEAD_OK) {
            fprintf(stderr, "primes: %s\n", pagefork_head_text(head));
            return 1;
        }
    }
    // "/25" asks for the 25th.
    const char *path = variable("PATH_INFO"), *length = getenv("CONTENT_LENGTH");
    long which = *path == '/' ? strtol(path + 1, NULL, 10) : 0;
    size_t left = length ? strtoul(length, NULL, 10) : fork != 0 ? SIZE_MAX : 0;
    size_t size = 0;
    unsigned sum = 0;
    char buffer[4096];
    while (left > 0) {
        size_t got = fread(buffer, 1, left < sizeof buffer ? left : sizeof buffer, stdin);
        if (got == 0) {
            break;
        }
        for (size_t at = 0; at < got; at++) {
            sum += (unsigned char)buffer[at];
        }
        size += got;
        left -= got;
    }
    answered++;
    printf("Content-Type: text/plain; charset=utf-8\r\n\r\n");
    printf("method: %s\npath: %s\nquery: %s\n", variable("REQUEST_METHOD"), path,
           variable("QUERY_STRING"));
    printf("length: %s\nbody: %zu bytes, sum %u\n", variable("CONTENT_LENGTH"), size, sum);
    printf("mode: %s\nscgi: %s\nanswered: %d\n", variable("MODE"), variable("SCGI"), answered);
    if (which >= 1 && which <= primes_count) {
        printf("prime: %d of %d\n", primes[which - 1], primes_count);
    } else {
        printf("prime: none of %d\n", primes_count);
    }
    pagefork_end(0);
}
