#include "tuning.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "base/param.h"
#include "registry.h"

enum { FILE_BYTES_MAX = 1 << 20, NAME_BYTES = 64, LINE_BYTES = 512 };

#define BLANKS " \t\r"

static size_t line_bytes(const char *line)
{
    return strcspn(line, "\n");
}

/* The first word of a line: its backend. "" for a blank line or a comment. */
static void read_name(const char *line, char name[NAME_BYTES])
{
    line += strspn(line, BLANKS);
    snprintf(name, NAME_BYTES, "%.*s", (int)strcspn(line, BLANKS "\n#"), line);
}

static const char *next_line(const char *line)
{
    line += line_bytes(line);
    return *line ? line + 1 : line;
}

static comm_status check_names(const char *path, const char *text)
{
    char name[NAME_BYTES];
    int number = 1;
    for (const char *line = text; *line; line = next_line(line), number++) {
        read_name(line, name);
        if (*name && !comm__registry_known(name))
            return comm__fail(COMM_ERR_INVALID,
                              "COMM_TUNING=%s, line %d: there is no backend '%s'; a rule is BACKEND [ranks=A-B] "
                              "[hosts=A-B] OPERATION:ALGORITHM[@MIN-MAX][/SLICE], such as 'tcp ranks=2 "
                              "all_reduce:ring@1M-/512K'",
                              path, number, name);
    }
    return COMM_OK;
}

static comm_status read_file(const char *path, char **ret_text)
{
    FILE *file = fopen(path, "re");
    char *text = file ? malloc(FILE_BYTES_MAX + 1) : NULL;
    size_t bytes = text ? fread(text, 1, FILE_BYTES_MAX + 1, file) : 0;
    comm_status status = COMM_OK;
    if (!file || (text && ferror(file)))
        status = comm__fail(COMM_ERR_INVALID, "COMM_TUNING=%s: cannot read it: %s", path, strerror(errno));
    else if (!text)
        status = comm__fail(COMM_ERR_NO_MEMORY, "reading COMM_TUNING=%s", path);
    else if (bytes > FILE_BYTES_MAX || memchr(text, '\0', bytes))
        status = comm__fail(COMM_ERR_INVALID, "COMM_TUNING=%s: it is no file of rules: %s", path,
                            bytes > FILE_BYTES_MAX ? "longer than 1 MiB" : "it has bytes that are no text");
    if (file)
        fclose(file);
    if (status != COMM_OK) {
        free(text);
        return status;
    }
    text[bytes] = '\0';
    *ret_text = text;
    return COMM_OK;
}

comm_status comm__tuning_read(char **ret_text)
{
    const char *path = comm__param_text("tuning");
    char *text = NULL;
    comm_status status = *path ? read_file(path, &text) : COMM_OK;
    if (status == COMM_OK && text)
        status = check_names(path, text);
    if (status == COMM_OK)
        *ret_text = text;
    else
        free(text);
    return status;
}

uint64_t comm__tuning_mark(const char *text)
{
    return text ? XXH64(text, strlen(text), 0) | 1 : 0;
}

size_t comm__tuning_count(const char *text, const char *backend)
{
    char name[NAME_BYTES];
    size_t count = 0;
    for (const char *line = text; line && *line; line = next_line(line)) {
        read_name(line, name);
        count += strcmp(name, backend) == 0;
    }
    return count;
}

void comm__tuning_describe(const char *backend, void (*line)(const char *text, void *line_context), void *line_context)
{
    char *text = NULL, name[NAME_BYTES], shown[LINE_BYTES];
    if (comm__tuning_read(&text) != COMM_OK) {
        line(comm_last_error(), line_context);
        return;
    }
    if (!text)
        return;
    size_t count = comm__tuning_count(text, backend);
    if (count) {
        snprintf(shown, sizeof shown, "rules of COMM_TUNING=%s, which go before those below:",
                 comm__param_text("tuning"));
        line(shown, line_context);
    }
    for (const char *at = text; *at; at = next_line(at)) {
        read_name(at, name);
        if (strcmp(name, backend) != 0)
            continue;
        at += strspn(at, BLANKS);
        snprintf(shown, sizeof shown, "  %.*s", (int)line_bytes(at), at);
        line(shown, line_context);
    }
    free(text);
}
