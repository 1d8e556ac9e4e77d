// Surveys source trees: files and lines by language, largest first.
//
//     survey [DIRECTORY or FILE]...

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct language {
    const char *name;
    const char *extensions; // each followed by a blank
    const char *line_comment;
    long files, blank, comment, code;
};

static struct language languages[] = {
    {.name = "Assembly", .extensions = "s S ", .line_comment = "#"},
    {.name = "C", .extensions = "c h ", .line_comment = "//"},
    {.name = "C++", .extensions = "cc cpp hpp ", .line_comment = "//"},
    {.name = "Go", .extensions = "go ", .line_comment = "//"},
    {.name = "JavaScript", .extensions = "js mjs ", .line_comment = "//"},
    {.name = "Markdown", .extensions = "md "},
    {.name = "Python", .extensions = "py ", .line_comment = "#"},
    {.name = "Rust", .extensions = "rs ", .line_comment = "//"},
    {.name = "Shell", .extensions = "sh ", .line_comment = "#"},
    {.name = "TOML", .extensions = "toml ", .line_comment = "#"},
    {.name = "WebAssembly text", .extensions = "wat wast ", .line_comment = ";;"},
};
enum { LANGUAGES = sizeof languages / sizeof *languages };

static int failures;

static void fail(const char *path) {
    fprintf(stderr, "survey: %s: %s\n", path, strerror(errno));
    failures++;
}

static struct language *language_of(const char *path) {
    const char *dot = strrchr(path, '.');
    char word[16];
    if (!dot || strchr(dot, '/') || strlen(dot) > sizeof word - 2)
        return NULL;
    int length = snprintf(word, sizeof word, "%s ", dot + 1);
    for (int i = 0; i < LANGUAGES; i++)
        for (const char *at = languages[i].extensions; *at; at = strchr(at, ' ') + 1)
            if (!strncmp(at, word, length))
                return &languages[i];
    return NULL;
}

static void count(struct language *language, const char *line) {
    while (isspace((unsigned char)*line))
        line++;
    const char *comment = language->line_comment;
    if (!*line)
        language->blank++;
    else if (comment && !strncmp(line, comment, strlen(comment)))
        language->comment++;
    else
        language->code++;
}

static void survey_file(const char *path) {
    struct language *language = language_of(path);
    if (!language)
        return;
    FILE *file = fopen(path, "r");
    if (!file) {
        fail(path);
        return;
    }
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, file) >= 0)
        count(language, line);
    free(line);
    fclose(file);
    language->files++;
}

static void survey(const char *path) {
    struct stat status;
    if (stat(path, &status)) {
        fail(path);
        return;
    }
    if (!S_ISDIR(status.st_mode)) {
        survey_file(path);
        return;
    }
    DIR *directory = opendir(path);
    if (!directory) {
        fail(path);
        return;
    }
    struct dirent *entry;
    while ((entry = readdir(directory))) {
        // What is hidden or was built is nobody's source.
        if (entry->d_name[0] == '.' || !strcmp(entry->d_name, "target"))
            continue;
        size_t size = strlen(path) + strlen(entry->d_name) + 2;
        char *child = malloc(size);
        if (!child)
            abort();
        snprintf(child, size, "%s/%s", path, entry->d_name);
        survey(child);
        free(child);
    }
    closedir(directory);
}

static int larger(const void *left, const void *right) {
    const struct language *a = left, *b = right;
    if (a->code != b->code)
        return a->code < b->code ? 1 : -1;
    return strcmp(a->name, b->name);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        survey(argv[i]);
    if (argc == 1)
        survey(".");
    qsort(languages, LANGUAGES, sizeof *languages, larger);

    printf("%-18s%8s%9s%9s%9s\n", "language", "files", "blank", "comment", "code");
    struct language total = {.name = "total"};
    for (int i = 0; i < LANGUAGES; i++) {
        const struct language *l = &languages[i];
        if (!l->files)
            continue;
        printf("%-18s%8ld%9ld%9ld%9ld  ", l->name, l->files, l->blank, l->comment, l->code);
        long bar = languages[0].code ? (30 * l->code + languages[0].code - 1) / languages[0].code : 0;
        while (bar-- > 0)
            fputs("\u2588", stdout);
        putchar('\n');
        total.files += l->files;
        total.blank += l->blank;
        total.comment += l->comment;
        total.code += l->code;
    }
    printf("%-18s%8ld%9ld%9ld%9ld\n", total.name, total.files, total.blank, total.comment, total.code);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
