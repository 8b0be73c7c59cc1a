/* The parameter table and its look-up. Add a parameter: one row in param.def. */
#include "base/param.h"

#include <comm/comm.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "op.h"

enum param_kind { PARAM_KIND_INT, PARAM_KIND_BYTES, PARAM_KIND_TEXT };

struct param {
    const char *scope, *name, *env;
    enum param_kind kind;
    int64_t initial, least, most;
    const char *initial_text;
    const char *help;
};

static const struct param table[] = {
#define PARAM_INT(scope, name, env, initial, least, most, help) \
    { scope, name, env, PARAM_KIND_INT, initial, least, most, #initial, help },
#define PARAM_BYTES(scope, name, env, initial, least, most, help) \
    { scope, name, env, PARAM_KIND_BYTES, initial, least, most, #initial, help },
#define PARAM_TEXT(scope, name, env, initial, help) { scope, name, env, PARAM_KIND_TEXT, 0, 0, 0, initial, help },
#include "param.def"
#undef PARAM_INT
#undef PARAM_BYTES
#undef PARAM_TEXT
};
enum { PARAM_COUNT = sizeof table / sizeof *table };

static const struct param *find(const char *scope, const char *name)
{
    for (size_t i = 0; i < PARAM_COUNT; i++)
        if (strcmp(table[i].scope, scope) == 0 && strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

static int64_t suffix_factor(enum param_kind kind, const char *suffix)
{
    if (*suffix == '\0')
        return 1;
    if (kind != PARAM_KIND_BYTES || suffix[1] != '\0')
        return 0;
    switch (*suffix) {
    case 'k': case 'K': return 1 << 10;
    case 'm': case 'M': return 1 << 20;
    case 'g': case 'G': return 1 << 30;
    default: return 0;
    }
}

static comm_status parse(const struct param *p, const char *text, int64_t *ret_value)
{
    char *end;
    errno = 0;
    int64_t value = strtoll(text, &end, 10);
    int64_t factor = end == text ? 0 : suffix_factor(p->kind, end);
    if (errno || factor == 0 || value > INT64_MAX / factor || value * factor < p->least || value * factor > p->most)
        return comm__fail(COMM_ERR_INVALID, "%s (or the option '%s'): '%s' is not %s from %" PRId64 " to %" PRId64,
                          p->env, p->name, text,
                          p->kind == PARAM_KIND_BYTES ? "a number of bytes (such as 256K or 4M)" : "a number",
                          p->least, p->most);
    *ret_value = value * factor;
    return COMM_OK;
}

int64_t comm__param_int(const char *scope, const char *name)
{
    const struct param *p = find(scope, name);
    if (!p || p->kind == PARAM_KIND_TEXT)
        return 0;
    const char *text = getenv(p->env);
    int64_t value = p->initial;
    if (text && *text && parse(p, text, &value) != COMM_OK)
        comm__log(COMM_LOG_WARN, "%s; using %" PRId64, comm_last_error(), p->initial);
    return value;
}

const char *comm__param_text(const char *scope, const char *name)
{
    const struct param *p = find(scope, name);
    if (!p)
        return "";
    const char *text = getenv(p->env);
    return text && *text ? text : p->initial_text;
}

comm_status comm__param_parse_int(const char *scope, const char *name, const char *text, int64_t *ret_value)
{
    const struct param *p = find(scope, name);
    if (!p || p->kind == PARAM_KIND_TEXT)
        return comm__fail(COMM_ERR_NOT_FOUND, "there is no option '%s' of '%s'; comm-info --parameters lists them",
                          name, scope);
    return parse(p, text, ret_value);
}

int comm__param_known(const char *scope, const char *name)
{
    return find(scope, name) != NULL;
}

comm_status comm__param_check(const char *scope, const char *name, const char *text)
{
    const struct param *p = find(scope, name);
    int64_t value;
    if (p)
        return p->kind == PARAM_KIND_TEXT ? COMM_OK : parse(p, text, &value);
    char names[256] = "";
    for (size_t i = 0, used = 0; i < PARAM_COUNT && used < sizeof names; i++)
        if (strcmp(table[i].scope, scope) == 0)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", table[i].name);
    return *names ? comm__fail(COMM_ERR_INVALID, "there is no option '%s' of '%s'; it has %s", name, scope, names)
                  : COMM_OK;
}

size_t comm_param_count(void)
{
    return PARAM_COUNT;
}

comm_status comm_param_query(size_t index, comm_param_info *ret_info)
{
    if (index >= PARAM_COUNT)
        return comm__fail(COMM_ERR_NOT_FOUND, "parameter %zu: there are %d", index, (int)PARAM_COUNT);
    const struct param *p = &table[index];
    const char *text = getenv(p->env);
    const comm_param_info info = { .struct_bytes = sizeof info,
                                   .name = p->name,
                                   .env = p->env,
                                   .scope = p->scope,
                                   .value = text && *text ? text : p->initial_text,
                                   .initial = p->initial_text,
                                   .help = p->help };
    return comm__give_struct(ret_info, &info, sizeof info, "comm_param_query", "comm_param_info");
}
