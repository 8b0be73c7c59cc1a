/* Round-robin groups. All ranks call the collectives of a group in the same order, so each counts its turns for itself
 * and all come to the same group. Point-to-point has no such order: it all goes to the first group. */
#include "round_robin.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/clock.h"

/* ---- Making ---- */

void comm__round_robin_destroy(struct round_robin *rr)
{
    if (!rr)
        return;
    for (size_t i = 0; rr->groups && i < rr->count; i++)
        comm__group_unref(rr->groups[i]);
    pthread_mutex_destroy(&rr->lock);
    free(rr->groups);
    free(rr);
}

static struct round_robin *round_robin_create(comm_group *const *groups, size_t count)
{
    struct round_robin *rr = calloc(1, sizeof *rr);
    if (!rr)
        return NULL;
    pthread_mutex_init(&rr->lock, NULL);
    rr->groups = malloc(count * sizeof(comm_group *));
    if (!rr->groups) {
        comm__round_robin_destroy(rr);
        return NULL;
    }
    rr->count = count;
    for (size_t i = 0; i < count; i++) {
        rr->groups[i] = groups[i];
        comm__group_ref(groups[i]);
    }
    return rr;
}

static comm_status check_groups(comm_group *const *groups, size_t count, const char *call)
{
    if (!groups || count == 0)
        return comm__fail(COMM_ERR_INVALID, "%s: there are no groups", call);
    for (size_t i = 0; i < count; i++) {
        comm_status status = comm__group_usable(groups[i], call);
        if (status != COMM_OK)
            return comm__fail_while(status, "%s: group %zu", call, i);
        if (groups[i]->round_robin)
            return comm__fail(COMM_ERR_INVALID, "%s: '%s' is a round-robin group itself", call, groups[i]->name);
        if (groups[i]->world != groups[0]->world || groups[i]->size != groups[0]->size ||
            memcmp(groups[i]->world_ranks, groups[0]->world_ranks,
                   (size_t)groups[0]->size * sizeof *groups[0]->world_ranks) != 0)
            return comm__fail(COMM_ERR_INVALID, "%s: '%s' and '%s' do not have the same ranks in the same order", call,
                              groups[0]->name, groups[i]->name);
        for (size_t j = 0; j < i; j++)
            if (groups[j] == groups[i])
                return comm__fail(COMM_ERR_INVALID, "%s: '%s' is listed twice", call, groups[i]->name);
    }
    return COMM_OK;
}

static comm_status check_options(const comm_group_options *given, comm_group_options *ret_options, const char *call)
{
    comm_status status = comm__check_struct(given, sizeof *given, "comm_group_options");
    if (status != COMM_OK)
        return status;
    if (given)
        memcpy(ret_options, given, given->struct_bytes < sizeof *given ? given->struct_bytes : sizeof *given);
    if (ret_options->flags || ret_options->backend || ret_options->device)
        return comm__fail(COMM_ERR_INVALID, "%s: options->%s", call,
                          ret_options->flags     ? "flags: there are none yet"
                          : ret_options->backend ? "backend: the groups have theirs"
                                                 : "device: the groups have theirs");
    return ret_options->name ? comm__check_name(call, "options->name", ret_options->name) : COMM_OK;
}

static comm_status identify(comm_group *const *groups, size_t count, uint64_t identity[2])
{
    uint64_t *ids = malloc(count * sizeof *ids);
    if (!ids)
        return comm__fail(COMM_ERR_NO_MEMORY, "comm_group_round_robin over %zu groups", count);
    for (size_t i = 0; i < count; i++)
        ids[i] = groups[i]->id;
    identity[0] = XXH64(ids, count * sizeof *ids, 1);
    free(ids);
    return comm__group_count_use(groups[0], identity[0], &identity[1]);
}

/* "turns over 2 of world[0-3]", "turns over 2 of world[0-3]#1" */
static void write_name(comm_group *const *groups, size_t count, uint64_t use, char *name)
{
    char first[GROUP_NAME_BYTES];
    comm__name_from(groups[0]->name, GROUP_NAME_BYTES / 2, first);
    int used = snprintf(name, GROUP_NAME_BYTES, "turns over %zu of %.48s", count, first);
    if (use)
        snprintf(name + used, GROUP_NAME_BYTES - (size_t)used, "#%" PRIu64, use);
}

comm_status comm_group_round_robin(comm_group *const *groups, size_t count, const comm_group_options *given,
                                   comm_group **ret_group)
{
    static const char call[] = "comm_group_round_robin";
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    if (!ret_group)
        return comm__fail(COMM_ERR_INVALID, "%s: ret_group is NULL", call);
    comm_status status = check_groups(groups, count, call);
    if (status == COMM_OK)
        status = check_options(given, &options, call);
    if (status != COMM_OK)
        return status;
    uint64_t identity[2]; /* of the groups, and how often they have been given before */
    status = identify(groups, count, identity);
    if (status != COMM_OK)
        return status;
    char name[GROUP_NAME_BYTES];
    write_name(groups, count, identity[1], name);
    struct group_plan plan = {
        .world = groups[0]->world,
        .world_ranks = groups[0]->world_ranks,
        .rank = groups[0]->rank,
        .size = groups[0]->size,
        .device = groups[0]->device,
        .id = XXH64(identity, sizeof identity, 1),
        .name = options.name ? options.name : name,
        .description = options.description,
        .backend = groups[0]->backend_asked,
        .timeout_ms = options.timeout_ms ? options.timeout_ms : comm_group_timeout(groups[0]),
    };
    struct round_robin *rr = round_robin_create(groups, count);
    status = rr ? comm__group_open_round_robin(&plan, rr, ret_group)
                : comm__fail(COMM_ERR_NO_MEMORY, "%s over %zu groups", call, count);
    if (status != COMM_OK)
        comm__group_uncount_use(groups[0], identity[0], identity[1]);
    return status;
}

/* ---- Whose turn ---- */

/* If one of the groups has ended, all of it has: the other ranks would wait for us there. */
comm_status comm__round_robin_usable(const comm_group *group, const char *call)
{
    comm_status status = COMM_OK;
    for (size_t i = 0; status == COMM_OK && i < group->round_robin->count; i++) {
        const comm_group *one = group->round_robin->groups[i];
        status = comm__group_usable(one, call);
        if (status == COMM_OK && atomic_load(&one->closing))
            status = comm__fail(COMM_ERR_INVALID, "%s on group '%s': its group '%s' was closed before it", call,
                                group->name, one->name);
    }
    return status;
}

comm_group *comm__turn_begin(comm_group *group, int takes_turn)
{
    struct round_robin *rr = group->round_robin;
    if (!rr)
        return group;
    if (!takes_turn)
        return rr->groups[0];
    comm__callbacks_defer(); /* they may submit to this group */
    pthread_mutex_lock(&rr->lock);
    comm__thread.takes_turn = 1;
    return rr->groups[rr->taken % rr->count];
}

void comm__turn_end(comm_group *group, int takes_turn, size_t submitted)
{
    struct round_robin *rr = group->round_robin;
    if (!rr || !takes_turn)
        return;
    if (submitted) {
        rr->taken++;
        atomic_fetch_add_explicit(&group->seq, submitted, memory_order_relaxed);
    }
    comm__thread.takes_turn = 0;
    pthread_mutex_unlock(&rr->lock);
    comm__callbacks_run();
}

comm_status comm__round_robin_flush(comm_group *group, int64_t deadline_ns)
{
    comm_status first = COMM_OK;
    char text[COMM_ERROR_BYTES];
    for (size_t i = 0; i < group->round_robin->count; i++) {
        int64_t left_ms = clock_left_ms(deadline_ns);
        comm_status status = comm_group_flush(group->round_robin->groups[i], left_ms == 0 ? 1 : left_ms);
        if (status != COMM_OK && first == COMM_OK) {
            first = status;
            memcpy(text, comm_last_error(), sizeof text);
        }
    }
    return first == COMM_OK ? COMM_OK : comm__fail(first, "%s", text);
}

comm_status comm__round_robin_status(const comm_group *group)
{
    comm_status status = COMM_OK;
    for (size_t i = 0; status == COMM_OK && i < group->round_robin->count; i++)
        status = comm_group_status(group->round_robin->groups[i]);
    return status;
}
