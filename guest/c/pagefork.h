// Helpers for programs in C and C++ that are started once and then forked, as `pagefork serve
// --warm` and `pagefork fork` do. Header-only; needs C99 with POSIX's `setenv`, or C++11.
//
//     #include "pagefork.h"
//
//     int main(void) {
//         build_tables();                                  // Once, when the server starts.
//         if (pagefork_snapshot() != 0) {                  // Each fork goes on from here.
//             enum pagefork_head head = pagefork_read_request();
//             if (head != PAGEFORK_HEAD_OK) {
//                 fprintf(stderr, "%s\n", pagefork_head_text(head));
//                 return 1;
//             }
//         }
//         printf("Content-Type: text/plain\r\n\r\n%s\n", getenv("PATH_INFO"));
//         pagefork_end(0);
//     }
//
// Such a program is a plain CGI program too: where it is not forked, the number is 0, and its
// variables are in the environment from the start.

#ifndef PAGEFORK_GUEST_H
#define PAGEFORK_GUEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Most bytes that the head of a request may have. Define it before the header is included to
// have another bound.
#ifndef PAGEFORK_HEAD_MAX
#define PAGEFORK_HEAD_MAX 1048576
#endif
#if PAGEFORK_HEAD_MAX < 1 || PAGEFORK_HEAD_MAX > 100000000
#error "PAGEFORK_HEAD_MAX must lie between 1 and 100000000"
#endif

#if defined(__wasm__) && !defined(PAGEFORK_NO_IMPORT)
#ifdef __cplusplus
extern "C"
#endif
__attribute__((import_module("pagefork"), import_name("snapshot")))
uint32_t pagefork_imported_snapshot(void);
#endif

// Says that the program is to be captured here, unless that was at an earlier read of standard
// input. Returns the fork's number, from 1; 0 in a program that is run and not forked.
//
// A module imports `pagefork.snapshot` if it calls this function, and does not otherwise.
// WebAssembly has no optional imports: a module that has the import starts only where that is
// defined, as by all commands of `pagefork` that run programs. For other runtimes, compile with
// PAGEFORK_NO_IMPORT: the function then returns 0, as it does in native programs. A program that
// only calls `pagefork_read_request` needs no import and is captured there.
static inline uint32_t pagefork_snapshot(void) {
#if defined(__wasm__) && !defined(PAGEFORK_NO_IMPORT)
    return pagefork_imported_snapshot();
#else
    return 0;
#endif
}

// What became of reading the head of a request.
enum pagefork_head {
    PAGEFORK_HEAD_OK = 0,
    // Standard input ended within the head, or has nothing.
    PAGEFORK_HEAD_CUT_SHORT,
    // Standard input cannot be read; `errno` says why.
    PAGEFORK_HEAD_UNREADABLE,
    // The head does not begin with its size in decimal and a colon.
    PAGEFORK_HEAD_NO_SIZE,
    // The head has more than PAGEFORK_HEAD_MAX bytes.
    PAGEFORK_HEAD_TOO_LONG,
    // The head does not end with a comma.
    PAGEFORK_HEAD_NO_COMMA,
    // The head is not names and values that each end with a NUL, or not those of SCGI.
    PAGEFORK_HEAD_NO_VARIABLES,
    // There is not enough memory.
    PAGEFORK_HEAD_NO_MEMORY
};

// A sentence about a result of `pagefork_read_request`.
static inline const char *pagefork_head_text(enum pagefork_head head) {
    switch (head) {
    case PAGEFORK_HEAD_OK:
        return "the head of the request was read";
    case PAGEFORK_HEAD_CUT_SHORT:
        return "standard input ends within the head of the request";
    case PAGEFORK_HEAD_UNREADABLE:
        return "standard input cannot be read";
    case PAGEFORK_HEAD_NO_SIZE:
        return "standard input does not begin with the size of a request's head";
    case PAGEFORK_HEAD_TOO_LONG:
        return "the head of the request is too long";
    case PAGEFORK_HEAD_NO_COMMA:
        return "the head of the request does not end with a comma";
    case PAGEFORK_HEAD_NO_VARIABLES:
        return "the head of the request does not hold the variables of SCGI";
    case PAGEFORK_HEAD_NO_MEMORY:
        return "there is not enough memory for the head of the request";
    }
    return "unknown result";
}

// Whether these are the variables of SCGI: `size` bytes, of which the last is followed by another
// that may be read.
static inline int pagefork_is_scgi(const char *head, size_t size) {
    int is_first = 1, has_version = 0;
    size_t at = 0;
    if (size == 0 || head[size - 1] != 0) {
        return 0;
    }
    while (at < size) {
        const char *name = head + at, *value;
        at += strlen(name) + 1;
        // A name without a value.
        if (at >= size) {
            return 0;
        }
        value = head + at;
        at += strlen(value) + 1;
        if (*name == 0 || strchr(name, '=')) {
            return 0;
        }
        // The size of the body comes first, and once.
        if (is_first != (strcmp(name, "CONTENT_LENGTH") == 0)) {
            return 0;
        }
        if (is_first && (strlen(value) > 19 || strspn(value, "0123456789") != strlen(value))) {
            return 0;
        }
        is_first = 0;
        has_version |= strcmp(name, "SCGI") == 0 && strcmp(value, "1") == 0;
    }
    return has_version;
}

// Reads the head of a request from standard input and makes its variables those of the
// environment. The body comes next from `stdin`: CONTENT_LENGTH bytes, or all that there are if
// that variable is not set. After an error nothing in the environment has changed, except where
// there is not enough memory.
//
// A program that has not been captured before is captured here, when it first reads.
static inline enum pagefork_head pagefork_read_request(void) {
    size_t size = 0, got, at;
    int has_digit = 0;
    char *head;
    for (;;) {
        int byte = getc(stdin);
        if (byte == EOF) {
            return ferror(stdin) ? PAGEFORK_HEAD_UNREADABLE : PAGEFORK_HEAD_CUT_SHORT;
        }
        if (byte == ':' && has_digit) {
            break;
        }
        // Digits do not begin with a zero.
        if (byte < '0' || byte > '9' || (has_digit && size == 0)) {
            return PAGEFORK_HEAD_NO_SIZE;
        }
        has_digit = 1;
        size = size * 10 + (size_t)(byte - '0');
        if (size > PAGEFORK_HEAD_MAX) {
            return PAGEFORK_HEAD_TOO_LONG;
        }
    }
    head = (char *)malloc(size + 1);
    if (!head) {
        return PAGEFORK_HEAD_NO_MEMORY;
    }
    got = fread(head, 1, size + 1, stdin);
    if (got != size + 1 || head[size] != ',' || !pagefork_is_scgi(head, size)) {
        enum pagefork_head wrong = PAGEFORK_HEAD_NO_VARIABLES;
        if (got != size + 1) {
            wrong = ferror(stdin) ? PAGEFORK_HEAD_UNREADABLE : PAGEFORK_HEAD_CUT_SHORT;
        } else if (head[size] != ',') {
            wrong = PAGEFORK_HEAD_NO_COMMA;
        }
        free(head);
        return wrong;
    }
    unsetenv("CONTENT_LENGTH");
    unsetenv("SCGI");
    for (at = 0; at < size;) {
        const char *name = head + at, *value = name + strlen(name) + 1;
        int is_unset = strcmp(name, "SCGI") == 0;
        at += strlen(name) + strlen(value) + 2;
        // The size of the body is empty where it is not known.
        is_unset |= strcmp(name, "CONTENT_LENGTH") == 0 && *value == 0;
        if (!is_unset && setenv(name, value, 1) != 0) {
            free(head);
            return PAGEFORK_HEAD_NO_MEMORY;
        }
    }
    free(head);
    return PAGEFORK_HEAD_OK;
}

// The response is complete: writes what is buffered and ends the program at once, without
// destructors and functions of `atexit`. What a fork does not write to on its way out need not be
// copied and restored. C++ streams other than `std::cout` and `std::cerr`, which write through
// `stdio`, have to be flushed before. If the output cannot be written, a status of 0 becomes 1.
#ifdef __GNUC__
__attribute__((noreturn))
#endif
static inline void pagefork_end(int status) {
    int failed = fflush(NULL) != 0 || ferror(stdout);
    _Exit(failed && status == 0 ? 1 : status);
}

#endif
