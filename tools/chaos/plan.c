/* The options, and what is drawn: every number comes from the seed, the rank, the group's name and the op's number, so
 * that it does not depend on time or threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chaos.h"

#define NAME "chaos"
#define MILLISECOND ((int64_t)1000000)
enum { TEXT_BYTES = 300 };

#define PARAM(kind, name, initial, minimum, maximum, help) \
    &(const comm_backend_param){ sizeof(comm_backend_param), kind, name, initial, minimum, maximum, help },
#define PARAM_INT(name, initial, minimum, maximum, help) PARAM(COMM_PARAM_INT, name, #initial, minimum, maximum, help)
#define PARAM_TEXT(name, initial, help) PARAM(COMM_PARAM_TEXT, name, initial, 0, 0, help)
const comm_backend_param *const chaos_params[] = {
#include "param.def"
    NULL
};

static const char *const rate_names[FAULT_END] = {
    [FAULT_DELAY] = "delay", [FAULT_REORDER] = "reorder", [FAULT_DROP] = "drop",
    [FAULT_LOSE] = "lose",   [FAULT_KILL] = "kill",       [FAULT_STALL] = "stall",
    [FAULT_ABORT] = "abort", [FAULT_ERROR] = "error",     [FAULT_CORRUPT] = "corrupt",
};

/* ---- Options ---- */

static comm_status refuse(const char *option, const char *value, const char *wanted)
{
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "the option %s is '%s', which is not %s", option, value, wanted);
    return chaos_host->fail(COMM_ERR_INVALID, text);
}

/* Digits only. Gives what follows them, or NULL. */
static const char *read_number(const char *text, uint64_t *ret_number)
{
    char *end;
    if (*text < '0' || *text > '9')
        return NULL;
    *ret_number = strtoull(text, &end, 10);
    return end;
}

static bool read_rate(const char *text, struct rate *ret_rate)
{
    struct rate rate = { .whole = 1 };
    const char *rest;
    if (*text == '@') {
        rate.part = 1;
        rest = read_number(text + 1, &rate.at);
        *ret_rate = rate;
        return rest && !*rest && rate.at > 0;
    }
    rest = read_number(text, &rate.part);
    if (rest && *rest == '/')
        rest = read_number(rest + 1, &rate.whole);
    else if (rest && strcmp(rest, "%") == 0)
        rate.whole = 100, rest++;
    *ret_rate = rate;
    return rest && !*rest && rate.whole > 0 && rate.part <= rate.whole;
}

static comm_status read_rates(const void *options, struct plan *plan)
{
    for (int f = 0; f < FAULT_END; f++) {
        const char *text = chaos_host->param_text(options, NAME, rate_names[f]);
        if (!read_rate(text, &plan->rates[f]))
            return refuse(rate_names[f], text, "a part such as 1/1000 or 5%, nor @ and the number of an operation");
    }
    return COMM_OK;
}

/* "0;4-7": is `rank` one of them? */
static comm_status read_ranks(const char *text, int32_t rank, bool *ret_is_one)
{
    const char *at = text;
    *ret_is_one = strcmp(text, "all") == 0;
    while (!*ret_is_one && at) {
        uint64_t first, last;
        at = read_number(at, &first);
        last = first;
        if (at && *at == '-')
            at = read_number(at + 1, &last);
        if (!at || (*at && *at != ';' && *at != ','))
            return refuse("ranks", text, "'all' or a list of ranks such as 0;4-7");
        *ret_is_one = (uint64_t)rank >= first && (uint64_t)rank <= last;
        if (!*at++)
            break;
    }
    return COMM_OK;
}

static comm_status read_status(const char *text, comm_status *ret_status)
{
    static const struct {
        const char *name;
        comm_status status;
    } known[] = {
        { "invalid", COMM_ERR_INVALID },     { "unsupported", COMM_ERR_UNSUPPORTED },
        { "no_memory", COMM_ERR_NO_MEMORY }, { "not_found", COMM_ERR_NOT_FOUND },
        { "system", COMM_ERR_SYSTEM },       { "truncated", COMM_ERR_TRUNCATED },
        { "peer_lost", COMM_ERR_PEER_LOST }, { "deadline", COMM_ERR_DEADLINE },
        { "mismatch", COMM_ERR_MISMATCH },   { "protocol", COMM_ERR_PROTOCOL },
        { "aborted", COMM_ERR_ABORTED },     { "backend", COMM_ERR_BACKEND },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(text, known[i].name) == 0) {
            *ret_status = known[i].status;
            return COMM_OK;
        }
    return refuse("status", text, "the name of a status in lower case, such as backend, protocol or no_memory");
}

/* FNV-1a: the same in every run, unlike a group's id. */
static uint64_t hash(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

comm_status chaos_plan_read(const comm_group_info *info, uint64_t fresh_seed, struct plan *ret_plan)
{
    const void *options = info->options;
    const char *group = chaos_host->param_text(options, NAME, "group");
    struct plan plan = {
        .seed = (uint64_t)chaos_host->param_int(options, NAME, "seed"),
        .after = (uint64_t)chaos_host->param_int(options, NAME, "after"),
        .delay_ns = chaos_host->param_int(options, NAME, "delay_ms") * MILLISECOND,
        .stall_ns = chaos_host->param_int(options, NAME, "stall_ms") * MILLISECOND,
        .rank = info->world_ranks[info->rank],
        .key = hash(info->name),
    };
    if (plan.seed == 0)
        plan.seed = fresh_seed;
    bool is_one = false;
    comm_status status = read_rates(options, &plan);
    if (status == COMM_OK)
        status = read_ranks(chaos_host->param_text(options, NAME, "ranks"), plan.rank, &is_one);
    if (status == COMM_OK)
        status = read_status(chaos_host->param_text(options, NAME, "status"), &plan.status);
    plan.is_off = !is_one || (*group && strcmp(group, info->name) != 0);
    if (status == COMM_OK)
        *ret_plan = plan;
    return status;
}

/* ---- Drawing ---- */

/* The finalizer of splitmix64. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t chaos_draw(const struct plan *plan, uint64_t op_number, int use)
{
    const uint64_t facts[] = { plan->seed, (uint64_t)plan->rank, plan->key, op_number, (uint64_t)use };
    uint64_t state = 0;
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        state = mix(state + facts[i] + 0x9e3779b97f4a7c15u);
    return state;
}

bool chaos_hits(const struct plan *plan, uint64_t op_number, enum fault fault)
{
    const struct rate *rate = &plan->rates[fault];
    if (plan->is_off || op_number <= plan->after || (rate->at && rate->at != op_number))
        return false;
    return chaos_draw(plan, op_number, (int)fault) % rate->whole < rate->part;
}

int64_t chaos_draw_delay_ns(const struct plan *plan, uint64_t op_number, int use)
{
    return plan->delay_ns ? (int64_t)(chaos_draw(plan, op_number, use) % (uint64_t)plan->delay_ns) : 0;
}
