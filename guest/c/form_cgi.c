// Answers a form, as a CGI program: shows its fields, decoded, one a line.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Prints one side of a field, with "+" and "%xx" as what they stand for.
static void print_decoded(const char *text, size_t size) {
    for (size_t at = 0; at < size; at++) {
        char hex[3] = {0};
        if (text[at] == '%' && at + 2 < size) {
            memcpy(hex, text + at + 1, 2);
            putchar((int)strtol(hex, NULL, 16));
            at += 2;
        } else {
            putchar(text[at] == '+' ? ' ' : text[at]);
        }
    }
}

int main(void) {
    const char *method = getenv("REQUEST_METHOD");
    const char *length = getenv("CONTENT_LENGTH");
    const char *query = getenv("QUERY_STRING");
    char *form = NULL;
    if (method && strcmp(method, "POST") == 0) {
        size_t size = length ? strtoul(length, NULL, 10) : 0;
        form = malloc(size + 1);
        if (!form || fread(form, 1, size, stdin) != size) {
            printf("Status: 400 Bad Request\r\nContent-Type: text/plain\r\n\r\nno form\n");
            return 0;
        }
        form[size] = 0;
        query = form;
    }
    printf("Content-Type: text/plain; charset=utf-8\r\n\r\n");
    while (query && *query) {
        size_t size = strcspn(query, "&");
        size_t name = strcspn(query, "=&");
        print_decoded(query, name);
        printf(": ");
        if (name < size) {
            print_decoded(query + name + 1, size - name - 1);
        }
        putchar('\n');
        query += size + (query[size] == '&');
    }
    free(form);
    return 0;
}
