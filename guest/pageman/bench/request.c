/* A CGI program that maps, writes and unmaps so many KiB, so many times, before it answers. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
    if (argc != 3) return 1;
    size_t length = strtoul(argv[1], NULL, 10) << 10;
    unsigned long count = strtoul(argv[2], NULL, 10);
    for (unsigned long i = 0; i < count; i++) {
        char *address = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (address == MAP_FAILED) return 1;
        for (size_t at = 0; at < length; at += 4096) address[at] = 1;
        if (munmap(address, length) != 0) return 1;
    }
    printf("Content-Type: text/plain\n\n%lu times\n", count);
    return 0;
}
