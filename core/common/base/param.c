/* The parameters of the core and of the backends: declared as comm_backend_param, looked up by name. */
#include "base/param.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/param_rows.h"

static const comm_backend_param *const core_table[] = {
#include "param.def"
};
enum { CORE_COUNT = sizeof core_table / sizeof *core_table, ENV_BYTES = 160 };

/* ---- Names ---- */

/* "COMM_LOG", "COMM_TCP_LANES". `backend` is NULL for the core. */
static void write_env(const char *backend, const char *name, char env[ENV_BYTES])
{
    snprintf(env, ENV_BYTES, "COMM_%s%s%s", backend ? backend : "", backend ? "_" : "", name);
    for (char *c = env; *c; c++)
        *c = (char)(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c == '-' ? '_' : *c);
}

static const char *from_environment(const char *backend, const char *name)
{
    char env[ENV_BYTES];
    write_env(backend, name, env);
    const char *value = getenv(env);
    return value && *value ? value : NULL;
}

static const comm_backend_param *find_core(const char *name)
{
    for (size_t i = 0; i < CORE_COUNT; i++)
        if (strcmp(core_table[i]->name, name) == 0)
            return core_table[i];
    return NULL;
}

static const comm_backend_param *find(const comm_backend *backend, const char *name)
{
    for (size_t i = 0; backend->params && backend->params[i]; i++)
        if (strcmp(backend->params[i]->name, name) == 0)
            return backend->params[i];
    return NULL;
}

/* ---- Values ---- */

static int32_t kind_of(const comm_backend_param *p)
{
    return p->kind & ~COMM_PARAM_AGREED;
}

static int64_t suffix_factor(int32_t kind, const char *suffix)
{
    if (*suffix == '\0')
        return 1;
    if (kind != COMM_PARAM_BYTES || suffix[1] != '\0')
        return 0;
    switch (*suffix) {
    case 'k': case 'K': return 1 << 10;
    case 'm': case 'M': return 1 << 20;
    case 'g': case 'G': return 1 << 30;
    default: return 0;
    }
}

/* Returns 0 if `text` is not what the parameter takes. */
static int parse_number(const comm_backend_param *p, const char *text, int64_t *ret_value)
{
    char *end;
    errno = 0;
    int64_t value = strtoll(text, &end, 10);
    int64_t factor = end == text ? 0 : suffix_factor(kind_of(p), end);
    if (errno || factor == 0 || value > INT64_MAX / factor || value * factor < p->minimum ||
        value * factor > p->maximum)
        return 0;
    *ret_value = value * factor;
    return 1;
}

static comm_status parse(const char *backend, const comm_backend_param *p, const char *text, int64_t *ret_value)
{
    char env[ENV_BYTES];
    if (parse_number(p, text, ret_value))
        return COMM_OK;
    write_env(backend, p->name, env);
    return comm__fail(COMM_ERR_INVALID, "%s (or the option '%s'): '%s' is not %s from %" PRId64 " to %" PRId64, env,
                      p->name, text,
                      kind_of(p) == COMM_PARAM_BYTES ? "a number of bytes (such as 256K or 4M)" : "a number",
                      p->minimum, p->maximum);
}

static int64_t value_of(const char *backend, const comm_backend_param *p, const char *option)
{
    int64_t value = 0;
    if (option && parse_number(p, option, &value)) /* it was checked when the group was made */
        return value;
    parse_number(p, p->initial, &value);
    const char *text = from_environment(backend, p->name);
    if (text && parse(backend, p, text, &value) != COMM_OK)
        comm__log(COMM_LOG_WARN, "%s; using %s", comm_last_error(), p->initial);
    return value;
}

int64_t comm__param_int(const char *name)
{
    const comm_backend_param *p = find_core(name);
    return p && kind_of(p) != COMM_PARAM_TEXT ? value_of(NULL, p, NULL) : 0;
}

const char *comm__param_text(const char *name)
{
    const comm_backend_param *p = find_core(name);
    const char *text = p ? from_environment(NULL, name) : "";
    return text ? text : p->initial;
}

int64_t comm__param_backend_int(const comm_backend *backend, const char *name, const char *option)
{
    const comm_backend_param *p = find(backend, name);
    return p && kind_of(p) != COMM_PARAM_TEXT ? value_of(backend->name, p, option) : 0;
}

const char *comm__param_backend_text(const comm_backend *backend, const char *name, const char *option)
{
    const comm_backend_param *p = find(backend, name);
    const char *text = p && !option ? from_environment(backend->name, name) : option;
    return !p ? NULL : text ? text : p->initial;
}

void comm__param_write_set(const comm_backend *backend, const comm_backend_param *p, FILE *text)
{
    const char *set = from_environment(backend->name, p->name);
    int64_t initial = 0, value = 0;
    char env[ENV_BYTES];
    write_env(backend->name, p->name, env);
    if (set && kind_of(p) == COMM_PARAM_TEXT && strcmp(set, p->initial) != 0)
        fprintf(text, "%s=%s\n", env, set);
    else if (set && kind_of(p) != COMM_PARAM_TEXT && parse_number(p, p->initial, &initial) &&
             parse_number(p, set, &value) && value != initial)
        fprintf(text, "%s=%" PRId64 "\n", env, value);
}

int comm__param_has(const comm_backend *backend, const char *name)
{
    return find(backend, name) != NULL;
}

comm_status comm__param_check(const comm_backend *backend, const char *name, const char *text)
{
    const comm_backend_param *p = find(backend, name);
    int64_t value;
    if (p)
        return kind_of(p) == COMM_PARAM_TEXT ? COMM_OK : parse(backend->name, p, text, &value);
    char names[256] = "";
    for (size_t i = 0, used = 0; backend->params && backend->params[i] && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", backend->params[i]->name);
    return comm__fail(COMM_ERR_INVALID, "there is no option '%s' of '%s'; it has %s", name, backend->name,
                      *names ? names : "none of its own; one of a backend that it uses is written 'tcp.lanes'");
}

/* ---- The list of all ---- */

/* What comm_param_query tells; `env` is on the heap. Entries do not go. */
struct listed {
    const char *scope;
    const comm_backend_param *param;
    char *env;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct listed *list;
static size_t list_count;

/* Holds the lock. */
static comm_status add_to_list(const char *backend, const comm_backend_param *param)
{
    char env[ENV_BYTES];
    struct listed *longer = realloc(list, (list_count + 1) * sizeof *list);
    if (longer)
        list = longer;
    write_env(backend, param->name, env);
    char *copy = longer ? strdup(env) : NULL;
    if (!copy)
        return comm__fail(COMM_ERR_NO_MEMORY, "the parameter %s", env);
    list[list_count++] = (struct listed){ backend ? backend : "core", param, copy };
    return COMM_OK;
}

static comm_status check_declared(const comm_backend *backend, const comm_backend_param *p)
{
    int64_t value;
    const char *wrong = NULL;
    if (p->struct_bytes < sizeof *p)
        wrong = "its struct_bytes is too small";
    else if (!p->name || !*p->name || p->name[strspn(p->name, "abcdefghijklmnopqrstuvwxyz0123456789_")])
        wrong = "its name is not of lower-case letters, digits and _";
    else if (!p->initial || !p->help)
        wrong = "its default or its help is NULL";
    else if (kind_of(p) < COMM_PARAM_INT || kind_of(p) > COMM_PARAM_TEXT)
        wrong = "its kind is no COMM_PARAM_ value";
    else if (kind_of(p) != COMM_PARAM_TEXT && !parse_number(p, p->initial, &value))
        wrong = "its default is not within its limits";
    return wrong ? comm__fail(COMM_ERR_INVALID, "backend '%s', parameter '%s': %s", backend->name,
                              p->name ? p->name : "", wrong)
                 : COMM_OK;
}

static void list_core(void)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < CORE_COUNT; i++)
        add_to_list(NULL, core_table[i]);
    pthread_mutex_unlock(&lock);
}

/* The core's rows come first. */
static void begin_list(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, list_core);
}

comm_status comm__param_declare(const comm_backend *backend)
{
    comm_status status = COMM_OK;
    begin_list();
    for (size_t i = 0; status == COMM_OK && backend->params && backend->params[i]; i++)
        status = check_declared(backend, backend->params[i]);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; status == COMM_OK && backend->params && backend->params[i]; i++)
        status = add_to_list(backend->name, backend->params[i]);
    pthread_mutex_unlock(&lock);
    return status;
}

size_t comm__param_count(void)
{
    begin_list();
    pthread_mutex_lock(&lock);
    size_t count = list_count;
    pthread_mutex_unlock(&lock);
    return count;
}

comm_param_info comm__param_listed(size_t index)
{
    pthread_mutex_lock(&lock);
    struct listed it = list[index];
    pthread_mutex_unlock(&lock);
    const char *text = getenv(it.env);
    int64_t unused;
    int counts = text && *text && (kind_of(it.param) == COMM_PARAM_TEXT || parse_number(it.param, text, &unused));
    return (comm_param_info){ .struct_bytes = sizeof(comm_param_info),
                              .name = it.param->name,
                              .env = it.env,
                              .scope = it.scope,
                              .value = counts ? text : it.param->initial,
                              .initial = it.param->initial,
                              .help = it.param->help };
}
