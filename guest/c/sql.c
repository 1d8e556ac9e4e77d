// Runs SQL from standard input, statement by statement, and prints every row.
//
//     sql [DATABASE] <SCRIPT
//
// Without a name the database is in memory. A statement ends at the end of a
// line. One that fails prints what SQLite says of it, and the next one runs.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sqlite3.h"

static int failures;

static void print_value(sqlite3_stmt *statement, int column) {
    const unsigned char *bytes;
    switch (sqlite3_column_type(statement, column)) {
    case SQLITE_NULL:
        fputs("NULL", stdout);
        break;
    case SQLITE_INTEGER:
        printf("%lld", (long long)sqlite3_column_int64(statement, column));
        break;
    case SQLITE_FLOAT:
        printf("%.17g", sqlite3_column_double(statement, column));
        break;
    case SQLITE_BLOB:
        bytes = sqlite3_column_blob(statement, column);
        putchar('x');
        for (int i = 0; i < sqlite3_column_bytes(statement, column); i++)
            printf("%02x", bytes[i]);
        break;
    default:
        bytes = sqlite3_column_text(statement, column);
        fwrite(bytes, 1, sqlite3_column_bytes(statement, column), stdout);
    }
}

static void run(sqlite3 *database, const char *sql) {
    sqlite3_stmt *statement;
    int result = sqlite3_prepare_v2(database, sql, -1, &statement, NULL);
    if (result == SQLITE_OK) {
        while ((result = sqlite3_step(statement)) == SQLITE_ROW) {
            for (int i = 0; i < sqlite3_column_count(statement); i++) {
                if (i > 0)
                    putchar('|');
                print_value(statement, i);
            }
            putchar('\n');
        }
        if (result == SQLITE_DONE)
            result = SQLITE_OK;
    }
    if (result != SQLITE_OK) {
        printf("error: %s\n", sqlite3_errmsg(database));
        failures++;
    }
    sqlite3_finalize(statement);
}

int main(int argc, char **argv) {
    // A preopened directory has no locks: the database is this program's alone.
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    const char *name = argc > 1 ? argv[1] : ":memory:";
    sqlite3 *database;
    if (sqlite3_open_v2(name, &database, flags, "unix-none") != SQLITE_OK) {
        fprintf(stderr, "sql: %s: %s\n", name, sqlite3_errmsg(database));
        return EXIT_FAILURE;
    }

    char *sql = NULL, *line = NULL;
    size_t length = 0, capacity = 0, line_capacity = 0;
    ssize_t line_length;
    while ((line_length = getline(&line, &line_capacity, stdin)) >= 0) {
        if (length + line_length + 1 > capacity) {
            capacity = 2 * (length + line_length + 1);
            sql = realloc(sql, capacity);
            if (!sql)
                abort();
        }
        memcpy(sql + length, line, line_length + 1);
        length += line_length;
        if (sqlite3_complete(sql)) {
            run(database, sql);
            length = 0;
        }
    }
    free(sql);
    free(line);
    if (sqlite3_close(database) != SQLITE_OK) {
        fprintf(stderr, "sql: %s: %s\n", name, sqlite3_errmsg(database));
        return EXIT_FAILURE;
    }
    return failures ? 2 : EXIT_SUCCESS;
}
