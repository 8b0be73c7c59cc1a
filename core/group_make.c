/* Groups from groups. No messages: every member computes the same id from the parent, the list of ranks, and how often
 * that list was used before; only split has to ask the ranks for their colours. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/utf8.h"
#include "coalesce.h"
#include "fork.h"
#include "group.h"
#include "round_robin.h"

/* A parent may have ended (shrink); it must only be of this process. */
static comm_status check_parent(const comm_group *parent, const char *call, const comm_group_options *options,
                                comm_group **ret_group)
{
    if (!parent || !ret_group)
        return comm__fail(COMM_ERR_INVALID, "%s: %s is NULL", call, parent ? "ret_group" : "the group");
    if (comm__forked_since(parent->generation))
        return comm__fail_forked(parent, call);
    comm_status status = comm__refuse_in_reduce_fn(call);
    if (status == COMM_OK)
        status = comm__check_struct(options, sizeof *options, "comm_group_options");
    if (status == COMM_OK && options && options->flags)
        status = comm__fail(COMM_ERR_INVALID, "%s: options->flags is 0x%x; there are none yet", call, options->flags);
    if (status == COMM_OK && options &&
        options->struct_bytes >= offsetof(comm_group_options, timeout_ms) + sizeof options->timeout_ms &&
        options->timeout_ms < COMM_TIMEOUT_INFINITE)
        status = comm__fail(COMM_ERR_INVALID, "%s: options->timeout_ms is %lld; it is milliseconds, 0 or "
                            "COMM_TIMEOUT_INFINITE", call, (long long)options->timeout_ms);
    if (status == COMM_OK && options &&
        options->struct_bytes >= offsetof(comm_group_options, name) + sizeof options->name && options->name)
        status = comm__check_name(call, "options->name", options->name);
    return status;
}

int comm__name_from(const char *other, size_t most, char name[GROUP_NAME_BYTES])
{
    size_t bytes = strlen(other);
    if (bytes <= most)
        return snprintf(name, GROUP_NAME_BYTES, "%s", other);
    return snprintf(name, GROUP_NAME_BYTES, "%.*s..", (int)utf8_cut(other, most - 2), other);
}

comm_status comm__group_count_use(comm_group *parent, uint64_t list, uint64_t *ret_count)
{
    comm_status status = COMM_OK;
    pthread_mutex_lock(&parent->lock);
    size_t i = 0;
    while (i < parent->lineage_count && parent->lineages[i].list != list)
        i++;
    if (i == parent->lineage_count) {
        /* Doubling: room is the power of two at or above the count. */
        if ((i & (i - 1)) == 0) {
            struct lineage *grown = realloc(parent->lineages, (i ? i * 2 : 1) * sizeof *grown);
            if (grown)
                parent->lineages = grown;
            else
                status = comm__fail(COMM_ERR_NO_MEMORY, "making a group of '%s'", parent->name);
        }
        if (status == COMM_OK)
            parent->lineages[parent->lineage_count++] = (struct lineage){ list, 0 };
    }
    if (status == COMM_OK)
        *ret_count = parent->lineages[i].count++;
    pthread_mutex_unlock(&parent->lock);
    return status;
}

void comm__group_uncount_use(comm_group *parent, uint64_t list, uint64_t count)
{
    pthread_mutex_lock(&parent->lock);
    for (size_t i = 0; i < parent->lineage_count; i++)
        if (parent->lineages[i].list == list && parent->lineages[i].count == count + 1)
            parent->lineages[i].count = count;
    pthread_mutex_unlock(&parent->lock);
}

/* "world[0-3]", "world[0,2,4]", "world[0,2,..30]#1": the same on all members. Of a long parent's name only the
 * beginning. */
static void write_name(const comm_group *parent, const int32_t *ranks, int32_t count, uint64_t use, char *name)
{
    int consecutive = 1;
    for (int32_t i = 1; i < count; i++)
        consecutive &= ranks[i] == ranks[i - 1] + 1;
    int used = comm__name_from(parent->name, GROUP_NAME_BYTES / 2, name);
    used += snprintf(name + used, GROUP_NAME_BYTES - (size_t)used, "[%d", ranks[0]);
    if (consecutive && count > 1)
        used += snprintf(name + used, GROUP_NAME_BYTES - (size_t)used, "-%d", ranks[count - 1]);
    for (int32_t i = 1; !consecutive && i < count && i < 4; i++)
        used += snprintf(name + used, GROUP_NAME_BYTES - (size_t)used, "%s,%d", i == 3 && count > 4 ? ",.." : "",
                         i == 3 ? ranks[count - 1] : ranks[i]);
    used += snprintf(name + used, GROUP_NAME_BYTES - (size_t)used, "]");
    if (use)
        snprintf(name + used, GROUP_NAME_BYTES - (size_t)used, "#%" PRIu64, use);
}

static comm_status check_ranks(const comm_group *parent, const char *call, const int32_t *ranks, size_t count)
{
    if (!ranks)
        return comm__fail(COMM_ERR_INVALID, "%s from '%s': the list of ranks is NULL", call, parent->name);
    if (count == 0 || count > (size_t)parent->size)
        return comm__fail(COMM_ERR_INVALID, "%s from '%s': the list has %zu ranks; it needs 1 to %d", call,
                          parent->name, count, parent->size);
    uint8_t *seen = calloc((size_t)parent->size, 1);
    if (!seen)
        return comm__fail(COMM_ERR_NO_MEMORY, "%s from '%s'", call, parent->name);
    comm_status status = COMM_OK;
    for (size_t i = 0; status == COMM_OK && i < count; i++)
        if (ranks[i] < 0 || ranks[i] >= parent->size)
            status = comm__fail(COMM_ERR_INVALID, "%s from '%s': ranks[%zu] is %d; the ranks are 0 to %d", call,
                                parent->name, i, ranks[i], parent->size - 1);
        else if (seen[ranks[i]]++)
            status = comm__fail(COMM_ERR_INVALID, "%s from '%s': rank %d is in the list twice", call, parent->name,
                                ranks[i]);
    free(seen);
    return status;
}

/* Which ranks make groups by the same call: everyone of the parent, or all but the `excluded`, or maybe the members
 * only. */
struct callers {
    uint64_t division; /* everyone: how the call divides the parent, which all ranks know; else 0 */
    const int32_t *excluded;
    size_t excluded_count;
};
static const struct callers members_only;

/* What a division is computed from differs by the call; the seeds keep these apart, and from lists of ranks. */
enum { SEED_OF_RANGES = 1, SEED_OF_LISTS, SEED_OF_COLORS, SEED_OF_CALLS };

static struct callers everyone(const void *division, size_t bytes, uint64_t seed)
{
    return (struct callers){ .division = XXH64(division, bytes, seed) | 1 };
}

/* How often the parent was divided like this before says which call it is. *ret_call is not changed if it is not one of
 * everyone. */
static comm_status count_call(comm_group *parent, const struct callers *callers, uint64_t *ret_use, uint64_t *ret_call)
{
    uint64_t identity[3] = { parent->id, callers->division, 0 };
    if (!callers->division)
        return COMM_OK;
    comm_status status = comm__group_count_use(parent, callers->division, &identity[2]);
    *ret_use = identity[2];
    *ret_call = XXH64(identity, sizeof identity, SEED_OF_CALLS) | 1;
    return status;
}

/* `ranks` are checked. */
static comm_status make(comm_group *parent, const int32_t *ranks, int32_t count, struct callers callers,
                        const comm_group_options *given, comm_group **ret_group)
{
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    if (given)
        memcpy(&options, given, given->struct_bytes < sizeof options ? given->struct_bytes : sizeof options);
    int32_t rank = -1;
    for (int32_t i = 0; i < count; i++)
        if (ranks[i] == parent->rank)
            rank = i;
    if (rank < 0) {
        *ret_group = NULL;
        return COMM_OK;
    }
    int32_t *world_ranks = malloc((size_t)count * sizeof *world_ranks);
    if (!world_ranks)
        return comm__fail(COMM_ERR_NO_MEMORY, "making a group of %d ranks of '%s'", count, parent->name);
    for (int32_t i = 0; i < count; i++)
        world_ranks[i] = parent->world_ranks[ranks[i]];
    uint64_t identity[3] = { parent->id, XXH64(world_ranks, (size_t)count * sizeof *world_ranks, 0), 0 };
    uint64_t use = 0, call = 0;
    comm_status status = comm__group_count_use(parent, identity[1], &identity[2]);
    if (status == COMM_OK && (status = count_call(parent, &callers, &use, &call)) != COMM_OK)
        comm__group_uncount_use(parent, identity[1], identity[2]);
    char name[GROUP_NAME_BYTES];
    write_name(parent, ranks, count, identity[2], name);
    struct group_plan plan = {
        .world = parent->world,
        .parent = parent,
        .everyone = callers.division != 0,
        .call = call,
        .excluded = callers.excluded,
        .excluded_count = (int32_t)callers.excluded_count,
        .device = options.device ? options.device : parent->device,
        .world_ranks = world_ranks,
        .rank = rank,
        .size = count,
        .id = XXH64(identity, sizeof identity, 0),
        .name = options.name ? options.name : name,
        .description = options.description,
        .backend = options.backend ? options.backend : parent->backend_asked,
        .timeout_ms = options.timeout_ms ? options.timeout_ms : comm_group_timeout(parent),
    };
    if (status == COMM_OK) {
        int is_known;
        status = comm__group_open(&plan, ret_group, &is_known);
        if (status != COMM_OK && !is_known) { /* else members may keep messages of the one that has failed */
            comm__group_uncount_use(parent, identity[1], identity[2]);
            comm__group_uncount_use(parent, callers.division, use);
        }
    }
    free(world_ranks);
    return status;
}

comm_status comm_group_create(comm_group *parent, const int32_t *ranks, size_t count, const comm_group_options *options,
                              comm_group **ret_group)
{
    comm_status status = check_parent(parent, "comm_group_create", options, ret_group);
    if (status == COMM_OK)
        status = check_ranks(parent, "comm_group_create", ranks, count);
    return status == COMM_OK ? make(parent, ranks, (int32_t)count, members_only, options, ret_group) : status;
}

/* Make a group of the ranks first, first + 1 ... */
static comm_status make_range(comm_group *parent, int32_t first, int32_t count, const comm_group_options *options,
                              comm_group **ret_group)
{
    int32_t *ranks = malloc((size_t)count * sizeof *ranks);
    if (!ranks)
        return comm__fail(COMM_ERR_NO_MEMORY, "making a group of %d ranks of '%s'", count, parent->name);
    for (int32_t i = 0; i < count; i++)
        ranks[i] = first + i;
    comm_status status = make(parent, ranks, count, everyone(&count, sizeof count, SEED_OF_RANGES), options, ret_group);
    free(ranks);
    return status;
}

comm_status comm_group_dup(comm_group *group, const comm_group_options *options, comm_group **ret_group)
{
    comm_status status = check_parent(group, "comm_group_dup", options, ret_group);
    return status == COMM_OK ? make_range(group, 0, group->size, options, ret_group) : status;
}

comm_status comm_group_subgroups(comm_group *parent, int32_t group_size, const comm_group_options *options,
                                 comm_group **ret_group)
{
    comm_status status = check_parent(parent, "comm_group_subgroups", options, ret_group);
    if (status != COMM_OK)
        return status;
    if (group_size < 1 || parent->size % group_size != 0)
        return comm__fail(COMM_ERR_INVALID,
                          "comm_group_subgroups of '%s': %d ranks cannot be divided into groups of %d", parent->name,
                          parent->size, group_size);
    return make_range(parent, parent->rank / group_size * group_size, group_size, options, ret_group);
}

static struct callers listed(const comm_group *parent, const int32_t *ranks, const size_t *counts, size_t group_count,
                             size_t total)
{
    if (total != (size_t)parent->size)
        return members_only;
    return everyone(counts, group_count * sizeof *counts, XXH64(ranks, total * sizeof *ranks, SEED_OF_LISTS));
}

comm_status comm_group_subgroups_list(comm_group *parent, const int32_t *ranks, const size_t *counts,
                                      size_t group_count, const comm_group_options *options, comm_group **ret_group)
{
    static const char call[] = "comm_group_subgroups_list";
    comm_status status = check_parent(parent, call, options, ret_group);
    if (status == COMM_OK && (!counts || group_count == 0))
        status = comm__fail(COMM_ERR_INVALID, "%s from '%s': there are no counts", call, parent->name);
    if (status != COMM_OK)
        return status;
    size_t total = 0, first = 0, mine = group_count;
    for (size_t g = 0; g < group_count; g++) {
        if (counts[g] == 0 || counts[g] > (size_t)parent->size)
            return comm__fail(COMM_ERR_INVALID, "%s from '%s': counts[%zu] is %zu; it needs 1 to %d", call,
                              parent->name, g, counts[g], parent->size);
        total += counts[g];
    }
    status = check_ranks(parent, call, ranks, total);
    for (size_t g = 0, at = 0; status == COMM_OK && g < group_count; at += counts[g++])
        for (size_t i = at; i < at + counts[g]; i++)
            if (ranks[i] == parent->rank) {
                first = at;
                mine = g;
            }
    if (status == COMM_OK && mine == group_count)
        *ret_group = NULL;
    else if (status == COMM_OK)
        status = make(parent, ranks + first, (int32_t)counts[mine], listed(parent, ranks, counts, group_count, total),
                      options, ret_group);
    return status;
}

comm_status comm_group_shrink(comm_group *group, const int32_t *excluded, size_t excluded_count,
                              const comm_group_options *options, comm_group **ret_group)
{
    comm_status status = check_parent(group, "comm_group_shrink", options, ret_group);
    if (status == COMM_OK && excluded_count > 0)
        status = check_ranks(group, "comm_group_shrink", excluded, excluded_count);
    if (status != COMM_OK)
        return status;
    int32_t *ranks = malloc((size_t)group->size * sizeof *ranks), count = 0;
    if (!ranks)
        return comm__fail(COMM_ERR_NO_MEMORY, "comm_group_shrink of '%s'", group->name);
    for (int32_t r = 0; r < group->size; r++) {
        size_t i = 0;
        while (i < excluded_count && excluded[i] != r)
            i++;
        if (i == excluded_count)
            ranks[count++] = r;
        else if (r == group->rank)
            status = comm__fail(COMM_ERR_INVALID,
                                "comm_group_shrink of '%s': rank %d excludes itself; excluded ranks do "
                                "not call",
                                group->name, r);
    }
    if (status == COMM_OK)
        status = make(group, ranks, count, (struct callers){ 0, excluded, excluded_count }, options, ret_group);
    free(ranks);
    return status;
}

/* ---- Split ---- */

struct choice {
    int32_t color, key;
};

struct member {
    int32_t key, rank;
};

static int by_key(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static comm_status make_of_color(comm_group *parent, const struct choice *choices, int32_t color,
                                 const comm_group_options *options, comm_group **ret_group)
{
    struct member *members = malloc((size_t)parent->size * sizeof *members);
    struct callers callers = everyone(choices, (size_t)parent->size * sizeof *choices, SEED_OF_COLORS);
    int32_t *ranks = malloc((size_t)parent->size * sizeof *ranks), count = 0;
    comm_status status = COMM_OK;
    if (!members || !ranks)
        status = comm__fail(COMM_ERR_NO_MEMORY, "comm_group_split of '%s'", parent->name);
    for (int32_t r = 0; status == COMM_OK && r < parent->size; r++) {
        if (choices[r].color < 0)
            callers = members_only;
        if (choices[r].color == color)
            members[count++] = (struct member){ choices[r].key, r };
    }
    if (status == COMM_OK) {
        qsort(members, (size_t)count, sizeof *members, by_key);
        for (int32_t i = 0; i < count; i++)
            ranks[i] = members[i].rank;
        status = make(parent, ranks, count, callers, options, ret_group);
    }
    free(members);
    free(ranks);
    return status;
}

enum { BACKEND_END = offsetof(comm_group_options, backend) + sizeof(char *) };

comm_status comm_group_split(comm_group *parent, int32_t color, int32_t key, const comm_group_options *options,
                             comm_group **ret_group)
{
    comm_status status = check_parent(parent, "comm_group_split", options, ret_group);
    if (status == COMM_OK)
        status = comm__batch_refuse(parent, "comm_group_split");
    /* Before the ranks ask each other: a call that is refused has no part in that. */
    const char *backend = options && options->struct_bytes >= BACKEND_END ? options->backend : NULL;
    if (status == COMM_OK && backend)
        status = comm__group_check_backends(parent, backend);
    if (status != COMM_OK)
        return status;
    const comm_group *asked = parent->round_robin ? parent->round_robin->groups[0] : parent;
    if (!asked->routes[COMM_DEVICE_CPU])
        return comm__fail(COMM_ERR_UNSUPPORTED,
                          "comm_group_split of '%s': it has no backend for the CPU ('%s') to ask the others with; add "
                          "cpu:auto to the backend string, or use comm_group_create",
                          parent->name, parent->backend_text);
    struct choice mine = { color, key }, *choices = malloc((size_t)parent->size * sizeof *choices);
    if (!choices)
        return comm__fail(COMM_ERR_NO_MEMORY, "comm_group_split of '%s'", parent->name);
    comm_op_options cpu = COMM_OP_OPTIONS_INIT;
    cpu.device = COMM_DEVICE_CPU;
    cpu.label = "split";
    status = comm_all_gather(parent, &mine, choices, 2, COMM_DTYPE_I32, &cpu, NULL);
    if (status == COMM_OK && color < 0)
        *ret_group = NULL;
    else if (status == COMM_OK)
        status = make_of_color(parent, choices, color, options, ret_group);
    free(choices);
    return status;
}
