/* The lines of a tuning file that are for one backend: BACKEND [ranks=A-B] [hosts=A-B] and an override as in its
 * parameter algo. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "domain.h"
#include "say.h"
#include "select.h"

#define BLANKS " \t\r"

/* Cut the next word off; NULL: there is none. A comment ends the line. */
static char *next_word(char **rest)
{
    char *word = *rest + strspn(*rest, BLANKS);
    if (*word == '\0' || *word == '#')
        return NULL;
    *rest = word + strcspn(word, BLANKS);
    if (**rest)
        *(*rest)++ = '\0';
    return word;
}

/* "2", "3-8" or "9-". */
static int parse_range(const char *text, int32_t *ret_least, int32_t *ret_most)
{
    char *end;
    long least = strtol(text, &end, 10), most = least;
    if (end == text || least < 1 || least > INT32_MAX)
        return -1;
    if (*end == '-' && end[1]) {
        most = strtol(end + 1, &end, 10);
    } else if (*end == '-') {
        most = INT32_MAX;
        end++;
    }
    if (*end || most < least || most > INT32_MAX)
        return -1;
    *ret_least = (int32_t)least;
    *ret_most = (int32_t)most;
    return 0;
}

struct limits {
    int32_t min_ranks, max_ranks, min_hosts, max_hosts;
};

static int parse_limit(const char *word, struct limits *l, char *error, size_t capacity)
{
    int failed = strncmp(word, "ranks=", 6) == 0 ? parse_range(word + 6, &l->min_ranks, &l->max_ranks)
                                                 : parse_range(word + 6, &l->min_hosts, &l->max_hosts);
    if (failed)
        snprintf(error, capacity, "'%s': a range is a number from 1, or two, such as 2, 3-8 or 9-", word);
    return failed;
}

/* 1: a rule; 0: none for this backend; -1: what is wrong is in `error`. */
static int parse_line(char *line, const char *backend, struct override *o, char *error, size_t capacity)
{
    struct limits l = { 0, INT32_MAX, 0, INT32_MAX };
    char *word = next_word(&line);
    if (!word || strcmp(word, backend) != 0)
        return 0;
    while ((word = next_word(&line)) && (strncmp(word, "ranks=", 6) == 0 || strncmp(word, "hosts=", 6) == 0))
        if (parse_limit(word, &l, error, capacity))
            return -1;
    if (!word) {
        snprintf(error, capacity, "the rule is missing: OPERATION:ALGORITHM[@MIN-MAX][/SLICE]");
        return -1;
    }
    if (select_override_parse(word, strlen(word), o, error, capacity))
        return -1;
    if ((word = next_word(&line))) {
        snprintf(error, capacity, "'%s': a rule ends the line", word);
        return -1;
    }
    o->min_ranks = l.min_ranks;
    o->max_ranks = l.max_ranks;
    o->min_hosts = l.min_hosts;
    o->max_hosts = l.max_hosts;
    return 1;
}

static size_t count_lines(const char *text)
{
    size_t count = 1;
    for (; *text; text++)
        count += *text == '\n';
    return count;
}

/* Cuts the text up. */
static comm_status parse_text(char *text, const char *backend, struct select_overrides *tuning)
{
    char error[768], *line;
    for (int number = 1; (line = strsep(&text, "\n")); number++) {
        int found = parse_line(line, backend, &tuning->items[tuning->count], error, sizeof error);
        if (found < 0)
            return exec_fail(COMM_ERR_INVALID, "the file that COMM_TUNING names, line %d: %s", number, error);
        tuning->count += (size_t)found;
    }
    return COMM_OK;
}

comm_status domain_tune(struct domain *d, const char *backend, const char *text)
{
    if (!text)
        return COMM_OK;
    char *copy = strdup(text);
    d->tuning = calloc(1, sizeof *d->tuning + count_lines(text) * sizeof *d->tuning->items);
    comm_status status = copy && d->tuning ? parse_text(copy, backend, d->tuning)
                                           : exec_fail(COMM_ERR_NO_MEMORY, "no memory for the tuning file");
    free(copy);
    return status;
}
