/* Takes a backend string apart. The string is copied once and cut in place. */
#include "backend_string.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "device.h"

#define DEFAULT_STRING "cpu:auto"

int comm__backend_is_path(const char *name)
{
    return strchr(name, '/') != NULL;
}

static int has_option(const struct backend_pair *pair, const struct backend_option *option)
{
    for (size_t i = 0; i < pair->option_count; i++)
        if (strcmp(pair->options[i].name, option->name) == 0)
            return strcmp(pair->options[i].value, option->value) == 0;
    return 0;
}

int comm__same_options(const struct backend_pair *a, const struct backend_pair *b)
{
    int same = a->option_count == b->option_count; /* no pair has an option twice */
    for (size_t i = 0; same && i < a->option_count; i++)
        same = has_option(b, &a->options[i]);
    return same;
}

static void lower(char *text)
{
    for (; *text; text++)
        *text = (char)tolower((unsigned char)*text);
}

static comm_status refuse(const char *whole, const char *pair, const char *why)
{
    return comm__fail(COMM_ERR_INVALID, "backend string '%s': '%s' %s", whole, pair, why);
}

/* "lanes=4&simd=avx2"; `pair` is the whole pair, for errors. */
static comm_status parse_options(const char *whole, const char *pair, char *text, struct backend_pair *p)
{
    char *rest;
    for (char *word = text; word; word = rest) {
        rest = strchr(word, '&');
        if (rest)
            *rest++ = '\0';
        char *equals = strchr(word, '=');
        if (!equals || equals == word)
            return refuse(whole, pair, "has an option that is not name=value");
        *equals = '\0';
        lower(word);
        for (size_t i = 0; i < p->option_count; i++)
            if (strcmp(p->options[i].name, word) == 0)
                return refuse(whole, pair, "gives an option twice");
        if (p->option_count == BACKEND_OPTIONS_MAX)
            return refuse(whole, pair, "has too many options");
        p->options[p->option_count++] = (struct backend_option){ word, equals + 1 };
    }
    return COMM_OK;
}

static comm_status parse_device(const char *whole, const char *pair, char **name, const char **ret_device)
{
    *ret_device = NULL;
    char *colon = strchr(*name, ':');
    if (!colon)
        return COMM_OK;
    *colon = '\0';
    lower(*name);
    size_t length = strlen(*name);
    if (length == 0 || length >= DEVICE_NAME_BYTES || !isalpha((unsigned char)**name) ||
        (*name)[strspn(*name, "abcdefghijklmnopqrstuvwxyz0123456789_")] || strcmp(*name, "default") == 0)
        return refuse(whole, pair, "does not begin with a device (such as cpu, cuda, hip, xpu); write device:backend");
    *ret_device = *name;
    *name = colon + 1;
    if (strchr(*name, ':'))
        return refuse(whole, pair, "has more than one ':'; write device:backend");
    return COMM_OK;
}

static comm_status parse_pair(const char *whole, const char *pair, char *text, struct backend_pair *p)
{
    char *question = strchr(text, '?');
    if (question)
        *question = '\0';
    char *name = text;
    comm_status status = parse_device(whole, pair, &name, &p->device);
    if (status != COMM_OK)
        return status;
    if (*name == '\0')
        return refuse(whole, pair, "names no backend; write device:backend");
    if (!comm__backend_is_path(name)) {
        lower(name);
        if (name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-")] != '\0')
            return refuse(whole, pair, "is not a backend name (letters, digits, _ and -) nor a path (with a '/')");
    }
    p->name = name;
    return question ? parse_options(whole, pair, question + 1, p) : COMM_OK;
}

static comm_status check_devices(const char *whole, const char *pair, const struct backend_string *s)
{
    const struct backend_pair *last = &s->pairs[s->count - 1];
    for (size_t i = 0; i + 1 < s->count; i++) {
        if (!s->pairs[i].device || !last->device)
            return refuse(whole, pair,
                          "and another pair: with several backends, each needs its device (device:backend)");
        if (strcmp(s->pairs[i].device, last->device) == 0)
            return refuse(whole, pair, "gives a backend to a device that has one already");
    }
    return COMM_OK;
}

static comm_status parse(const char *whole, char *copy, char *quote, struct backend_string *s)
{
    char *rest;
    for (char *text = copy; text; text = rest) {
        rest = strchr(text, ',');
        if (rest)
            *rest++ = '\0';
        strcpy(quote, text); /* as long as the whole: text is about to be cut */
        if (s->count == BACKEND_PAIRS_MAX)
            return refuse(whole, quote, "is one pair more than there are kinds of device");
        comm_status status = parse_pair(whole, quote, text, &s->pairs[s->count++]);
        if (status == COMM_OK)
            status = check_devices(whole, quote, s);
        if (status != COMM_OK)
            return status;
    }
    return COMM_OK;
}

comm_status comm__backend_string_parse(const char *text, struct backend_string *ret_string)
{
    const char *whole = text && *text ? text : DEFAULT_STRING;
    struct backend_string s = { .memory = strdup(whole) };
    char *quote = malloc(strlen(whole) + 1);
    comm_status status = s.memory && quote ? parse(whole, s.memory, quote, &s)
                                           : comm__fail(COMM_ERR_NO_MEMORY, "parsing a backend string");
    free(quote);
    if (status == COMM_OK)
        *ret_string = s;
    else
        free(s.memory);
    return status;
}

void comm__backend_string_finish(struct backend_string *string)
{
    free(string->memory);
    string->memory = NULL;
}
