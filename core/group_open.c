/* Opening and closing: a group's channels to its backends, and the world that groups share. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "auto.h"
#include "base/clock.h"
#include "base/counter.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/param.h"
#include "coalesce.h"
#include "fork.h"
#include "group.h"
#include "host_difference.h"
#include "host_id.h"
#include "memory.h"
#include "join.h"
#include "launch.h"
#include "rank_check.h"
#include "registry.h"
#include "round_robin.h"
#include "tuning.h"
#include "watchdog.h"

/* How long close waits for a backend to complete the works that it was told to abort. A correct backend has completed
 * them by then. */
#define CLOSE_PATIENCE_NS ((int64_t)10000000000)

enum { OTHER_NAME_BYTES = 64 };

/* After a failed comm_init: how long rank 0 keeps its store open at most, so that the other ranks can read the reason
 * there. Some of them may have died. */
#define LEAVE_FAILED_MS 1000

/* What a backend says in the store when it closes the world: a server that is silent does not hold it up for longer. */
#define CLOSE_STORE_MS 2000

/* ---- Memory ---- */

void comm__group_ref(comm_group *group)
{
    atomic_fetch_add_explicit(&group->references, 1, memory_order_relaxed);
}

void comm__group_unref(comm_group *group)
{
    if (count_down(&group->references) > 0)
        return;
    comm__work_free_all(group);
    comm__batch_free_all(group);
    comm__recorder_finish(&group->recorder);
    comm__hooks_finish(&group->hooks);
    comm__memories_finish(&group->memories);
    comm__backend_string_finish(&group->string);
    pthread_mutex_destroy(&group->lock);
    pthread_mutex_destroy(&group->inner_works.lock);
    pthread_mutex_destroy(&group->strings_lock);
    pthread_mutex_destroy(&group->batch_lock);
    pthread_mutex_destroy(&group->monitor_lock);
    comm__round_robin_destroy(group->round_robin);
    free(group->lineages);
    free(group->world_ranks);
    free(group->backend_text);
    free(group->backend_asked);
    free(group->description);
    free(group);
}

void comm__group_stay(comm_group *group)
{
    comm__group_ref(group);
    atomic_fetch_add(&group->drivers, 1);
}

void comm__group_let_go(comm_group *group)
{
    count_down(&group->drivers);
    comm__group_unref(group);
}

static comm_status group_create(const struct group_plan *plan, comm_group **ret_group)
{
    comm_group *group = calloc(1, sizeof *group);
    if (!group)
        return comm__fail(COMM_ERR_NO_MEMORY, "opening group '%s'", plan->name);
    atomic_init(&group->references, 1);
    pthread_mutex_init(&group->lock, NULL);
    pthread_mutex_init(&group->strings_lock, NULL);
    pthread_mutex_init(&group->batch_lock, NULL);
    pthread_mutex_init(&group->monitor_lock, NULL);
    comm__hooks_init(&group->hooks);
    comm__inner_works_init(&group->inner_works);
    comm__memories_init(&group->memories);
    group->world = plan->world;
    group->generation = atomic_load(&comm__fork_generation);
    group->rank = plan->rank;
    group->size = plan->size;
    group->id = plan->id;
    group->device = plan->device;
    atomic_init(&group->timeout_ms, plan->timeout_ms);
    snprintf(group->name, sizeof group->name, "%s", plan->name);
    comm_status status = comm__recorder_init(&group->recorder, (size_t)comm__param_int("records"));
    group->world_ranks = malloc((size_t)plan->size * sizeof *group->world_ranks);
    group->description = plan->description ? strdup(plan->description) : NULL;
    if (status == COMM_OK && (!group->world_ranks || (plan->description && !group->description)))
        status = comm__fail(COMM_ERR_NO_MEMORY, "opening group '%s' of %d ranks", plan->name, plan->size);
    if (status != COMM_OK) {
        comm__group_unref(group);
        return status;
    }
    memcpy(group->world_ranks, plan->world_ranks, (size_t)plan->size * sizeof *group->world_ranks);
    *ret_group = group;
    return COMM_OK;
}

/* ---- Which backend for which device ---- */

/* "lanes" is an option of the pair's backend, "tcp.lanes" one of a backend that it may wrap. */
static comm_status check_option(const comm_backend *backend, const struct backend_option *option)
{
    const char *dot = strchr(option->name, '.');
    char name[OTHER_NAME_BYTES];
    if (!dot)
        return comm__param_check(backend, option->name, option->value);
    snprintf(name, sizeof name, "%.*s", (int)(dot - option->name), option->name);
    comm_status status = comm__registry_find(name, &backend);
    return status == COMM_OK ? comm__param_check(backend, dot + 1, option->value)
                             : comm__fail_while(status, "the option '%s'", option->name);
}

static comm_status check_options(const comm_group *group, const struct backend_pair *pair, const comm_backend *backend)
{
    for (size_t i = 0; i < pair->option_count; i++) {
        const struct backend_option *option = &pair->options[i];
        comm_status status = comm__is_auto(pair) && !strchr(option->name, '.')
                                 ? comm__auto_check_option(group->world, pair, option)
                                 : check_option(backend, option);
        if (status != COMM_OK)
            return comm__fail_while(status, "backend string of group '%s'", group->name);
    }
    return COMM_OK;
}

/* One channel per backend, also for several devices: it has one set of options. */
static comm_status channel_for(comm_group *group, const comm_backend *backend, const struct backend_pair *pair,
                               struct channel **ret_channel)
{
    for (size_t i = 0; i < group->channel_count && !comm__is_auto(pair); i++) {
        struct channel *channel = &group->channels[i];
        if (channel->backend != backend || comm__is_auto(channel->choice.pair))
            continue;
        *ret_channel = channel;
        return comm__same_options(channel->choice.pair, pair)
                   ? COMM_OK
                   : comm__fail(COMM_ERR_INVALID,
                                "opening group '%s': backend '%s' is to serve several devices, with other options for "
                                "'%s' than before; give it the same ones for all",
                                group->name, backend->name, pair->device ? pair->device : "all");
    }
    struct channel *channel = &group->channels[group->channel_count++];
    channel->backend = backend;
    channel->choice = (struct backend_choice){ backend, pair };
    *ret_channel = channel;
    return COMM_OK;
}

static comm_status find_backend(struct world *world, const struct backend_pair *pair, const comm_backend **ret_backend)
{
    return comm__is_auto(pair) ? comm__auto_first(world, pair, ret_backend)
                               : comm__registry_find(pair->name, ret_backend);
}

static comm_status route_pair(comm_group *group, const struct backend_pair *pair)
{
    const comm_backend *backend;
    comm_status status = find_backend(group->world, pair, &backend);
    if (status != COMM_OK)
        return comm__fail_while(status, "opening group '%s'", group->name);
    uint32_t kinds = comm__registry_kinds(backend), wanted = kinds;
    if (pair->device || comm__is_auto(pair)) {
        const char *device = pair->device ? pair->device : "cpu";
        wanted = kinds & (1u << comm__device_kind_of(device, strlen(device)));
        if ((wanted & ~1u) == 0)
            return comm__fail(COMM_ERR_UNSUPPORTED,
                              "opening group '%s': backend '%s' does not serve device '%s'; it serves %s", group->name,
                              backend->name, device, backend->devices);
    }
    struct channel *channel;
    status = check_options(group, pair, backend);
    if (status == COMM_OK)
        status = channel_for(group, backend, pair, &channel);
    if (status != COMM_OK)
        return status;
    for (int32_t d = COMM_DEVICE_CPU; d < DEVICE_KIND_END; d++)
        if (wanted & (1u << d))
            group->routes[d] = channel;
    return COMM_OK;
}

static const char *name_for_text(const struct channel *channel, int as_asked)
{
    const struct backend_pair *pair = channel->choice.pair;
    if (as_asked && comm__is_auto(pair))
        return "auto";
    /* A path stays one: a group made from this one must find the same backend. */
    return comm__backend_is_path(pair->name) ? pair->name : channel->backend->name;
}

/* The backend string again, with every name resolved: "cpu:tcp?lanes=4"; but `auto` stays if it is as asked. */
static comm_status write_text(const comm_group *group, int as_asked, char **ret_text)
{
    size_t bytes = 0;
    FILE *text = open_memstream(ret_text, &bytes);
    const char *comma = "";
    for (int32_t d = COMM_DEVICE_CPU; text && d < DEVICE_KIND_END; d++) {
        const struct channel *channel = group->routes[d];
        if (!channel)
            continue;
        fprintf(text, "%s%s:%s", comma, comm_device_name(d), name_for_text(channel, as_asked));
        for (size_t i = 0; i < channel->choice.pair->option_count; i++)
            fprintf(text, "%c%s=%s", i ? '&' : '?', channel->choice.pair->options[i].name,
                    channel->choice.pair->options[i].value);
        comma = ",";
    }
    if (!text || fclose(text) != 0)
        return comm__fail(COMM_ERR_NO_MEMORY, "opening group '%s'", group->name);
    return COMM_OK;
}

static comm_status choose_backends(comm_group *group, const char *text)
{
    comm_status status = comm__backend_string_parse(text, &group->string);
    for (size_t i = 0; status == COMM_OK && i < group->string.count; i++)
        status = route_pair(group, &group->string.pairs[i]);
    if (status != COMM_OK)
        return status;
    int devices = 0;
    for (int32_t d = COMM_DEVICE_CPU; d < DEVICE_KIND_END; d++)
        if (group->routes[d]) {
            devices++;
            group->routes[COMM_DEVICE_DEFAULT] = group->routes[d];
        }
    if (devices > 1)
        group->routes[COMM_DEVICE_DEFAULT] = NULL;
    return COMM_OK;
}

comm_status comm__group_check_backends(comm_group *parent, const char *text)
{
    comm_group *group = NULL;
    comm_status status = group_create(&(struct group_plan){ .world = parent->world, .world_ranks = parent->world_ranks,
                                                            .size = parent->size, .name = parent->name }, &group);
    if (status != COMM_OK)
        return status;
    status = choose_backends(group, text);
    comm__group_unref(group);
    return status;
}

/* ---- Channels ---- */

static int32_t local_size(int32_t world_size)
{
    struct comm__launch launch;
    if (comm__launch_find(&launch) != COMM_OK || launch.local_world_size <= 0)
        return 0;
    return launch.local_world_size < world_size ? launch.local_world_size : world_size;
}

/* What the user named for one of the backend's kinds; else its only kind, else DEFAULT. */
static comm_device device_of(const comm_group *group, const struct channel *channel)
{
    comm_device device = COMM_DEVICE_DEFAULT;
    int devices = 0;
    if (group->device && group->routes[comm_device_kind(group->device)] == channel)
        return group->device;
    for (int32_t d = COMM_DEVICE_CPU; d < DEVICE_KIND_END; d++)
        if (group->routes[d] && group->routes[d] == channel) {
            device = d;
            devices++;
        }
    return devices == 1 ? device : COMM_DEVICE_DEFAULT;
}

void comm__device_cure(comm_device device, char text[CURE_BYTES])
{
    int32_t kind = comm_device_kind(device);
    const char *name = comm_device_name(device);
    snprintf(text, CURE_BYTES, "%s:%s", name ? name : "DEVICE",
             kind == COMM_DEVICE_CPU    ? "auto"
             : kind == COMM_DEVICE_CUDA ? "nccl"
                                        : "BACKEND");
}

comm_status comm__group_no_channel(const comm_group *group, comm_device device, char *text, size_t capacity)
{
    char name[DEVICE_NAME_BYTES + 16], cure[CURE_BYTES];
    if (device == COMM_DEVICE_DEFAULT) {
        snprintf(text, capacity, "the group has several devices (%s); say in options->device where the buffers are",
                 group->backend_text);
        return COMM_ERR_INVALID;
    }
    comm__device_text(device, name, sizeof name);
    comm__device_cure(device, cure);
    snprintf(text, capacity, "the group has no backend for device %s; it was opened with '%s'%s%s%s", name,
             group->backend_text, comm_device_name(device) ? ": add " : "", comm_device_name(device) ? cure : "",
             comm_device_name(device) ? " to the backend string" : "");
    return COMM_ERR_UNSUPPORTED;
}

comm_status comm__group_channel(const comm_group *group, const char *call, comm_device device,
                                struct channel **ret_channel, comm_device *ret_device)
{
    int32_t kind = comm_device_kind(device);
    char where[OP_PLACE_BYTES], text[COMM_ERROR_BYTES / 2];
    struct channel *channel = device >= 0 && kind < DEVICE_KIND_END ? group->routes[kind] : NULL;
    if (!channel) {
        comm_status status = comm__group_no_channel(group, device, text, sizeof text);
        comm__group_place(group, where);
        return comm__fail(status, "%s on %s: %s", call, where, text);
    }
    if (kind == COMM_DEVICE_DEFAULT) {
        kind = COMM_DEVICE_CPU;
        while (group->routes[kind] != channel)
            kind++;
        device = kind;
    }
    *ret_device = device == kind && comm_device_kind(group->device) == kind ? group->device : device;
    *ret_channel = channel;
    return COMM_OK;
}

/* The state of the same backend in the group that this one is made from. */
static void *parent_state(const comm_group *parent, const comm_backend *backend)
{
    for (size_t i = 0; parent && i < parent->channel_count; i++)
        if (parent->channels[i].backend == backend)
            return parent->channels[i].state;
    return NULL;
}

static comm_status check_opened(const comm_backend *backend, const char *slot, comm_status status, uint64_t fail_count,
                                void **ret_state)
{
    if (status == COMM_OK && *ret_state)
        return COMM_OK;
    status = status == COMM_OK ? comm__fail(COMM_ERR_BACKEND, "%s gave no state", slot)
                               : comm__slot_failed(slot, status, fail_count);
    *ret_state = NULL;
    return comm__fail_while(status, "opening backend '%s'", backend->name);
}

static comm_status copy_pair(const struct backend_pair *pair, struct world_backend *wb)
{
    size_t bytes = strlen(pair->name) + 1;
    for (size_t i = 0; i < pair->option_count; i++)
        bytes += strlen(pair->options[i].name) + strlen(pair->options[i].value) + 2;
    char *at = malloc(bytes);
    if (!at)
        return comm__fail(COMM_ERR_NO_MEMORY, "opening backend '%s'", pair->name);
    wb->pair_memory = at;
    wb->pair = *pair;
    wb->pair.device = NULL;
    wb->pair.name = at;
    at = stpcpy(at, pair->name) + 1;
    for (size_t i = 0; i < pair->option_count; i++) {
        wb->pair.options[i].name = at;
        at = stpcpy(at, pair->options[i].name) + 1;
        wb->pair.options[i].value = at;
        at = stpcpy(at, pair->options[i].value) + 1;
    }
    return COMM_OK;
}

static comm_status open_world_state(const comm_group *group, const struct channel *channel, comm_device device,
                                    struct world_backend *wb)
{
    struct world *world = group->world;
    const comm_backend *backend = channel->backend;
    wb->info = (comm_world_info){
        .struct_bytes = sizeof(comm_world_info),
        .rank = world->root->rank,
        .size = world->root->size,
        .local_size = local_size(world->root->size),
        .id = world->root->id,
        .name = world->root->name,
        .secret = world->secret,
        .hosts = world->hosts,
        .store = wb,
        .options = &wb->choice,
        .device = device,
        .timeout_ms = atomic_load(&world->root->timeout_ms),
        .tuning = world->tuning,
        .local_cores = world->local_cores,
    };
    uint64_t fail_count = comm__fail_count();
    if (world->tuning && world->rank == 0 && comm__param_int("explain"))
        comm__log(COMM_LOG_WARN, "world '%s': %zu rules for %s from COMM_TUNING=%s", world->name,
                  comm__tuning_count(world->tuning, backend->name), backend->name, comm__param_text("tuning"));
    comm_status status = backend->world_open(backend->context, &wb->info, &wb->state);
    return check_opened(backend, "world_open", status, fail_count, &wb->state);
}

/* The backend's state of the world; opened for whichever group needs it first, or with the world (open_possible). Holds
 * open_lock. */
static comm_status open_world_backend(comm_group *group, const struct channel *channel, comm_device device,
                                      struct world_backend **ret_wb)
{
    struct world *world = group->world;
    const comm_backend *backend = channel->backend;
    for (size_t i = 0; i < world->backend_count; i++)
        if (world->backends[i].choice.backend == backend) {
            *ret_wb = &world->backends[i];
            return COMM_OK;
        }
    if (world->backend_count == WORLD_BACKENDS_MAX)
        return comm__fail(COMM_ERR_UNSUPPORTED, "opening group '%s': one world can use %d backends", group->name,
                          WORLD_BACKENDS_MAX);
    struct world_backend *wb = &world->backends[world->backend_count];
    char prefix[96];
    snprintf(prefix, sizeof prefix, "backend/%s", backend->name);
    memset(wb, 0, sizeof *wb);
    wb->world = world;
    wb->choice = (struct backend_choice){ backend, &wb->pair };
    comm_status status = copy_pair(channel->choice.pair, wb);
    if (status == COMM_OK)
        status = comm_store_prefix(prefix, world->store, &wb->store);
    if (status == COMM_OK)
        status = open_world_state(group, channel, device, wb);
    if (status != COMM_OK) {
        comm_store_close(wb->store);
        free(wb->pair_memory);
        return status;
    }
    world->backend_count++;
    *ret_wb = wb;
    return COMM_OK;
}

/* The backend may have refused the group because of its ranks' hosts. If its user thinks that they are one, the rule
 * (host_id.c) and the text of the refusal do not say which part of the rule they do not meet. */
static comm_status explain_hosts(const comm_group *group, const comm_backend *backend, comm_status status)
{
    char difference[HOST_DIFFERENCE_TEXT + 40];
    if (status != COMM_ERR_UNSUPPORTED || !backend->serves_hosts)
        return status;
    comm__host_difference(group, difference, sizeof difference);
    return *difference ? comm__fail(status, "%s; %s", comm_last_error(), difference) : status;
}

/* What may fail because of other ranks, or of this one's surroundings, mostly does so here, before a member can have
 * heard of the group. */
static comm_status open_backends(comm_group *group)
{
    struct world *world = group->world;
    comm_status status = COMM_OK;
    pthread_mutex_lock(&world->open_lock);
    for (size_t i = 0; status == COMM_OK && i < group->channel_count; i++) {
        struct channel *channel = &group->channels[i];
        status = open_world_backend(group, channel, device_of(group, channel), &channel->opened);
    }
    pthread_mutex_unlock(&world->open_lock);
    return status;
}

static comm_status open_channel(const struct group_plan *plan, comm_group *group, struct channel *channel)
{
    const comm_backend *backend = channel->backend;
    const comm_group_info info = {
        .struct_bytes = sizeof info,
        .rank = group->rank,
        .size = group->size,
        .world_ranks = group->world_ranks,
        .id = group->id,
        .name = group->name,
        .options = &channel->choice,
        .token = group,
        .parent = parent_state(plan->parent, backend),
        .everyone = plan->everyone,
        .excluded_count = plan->excluded_count,
        .excluded = plan->excluded,
        .device = device_of(group, channel),
        .timeout_ms = atomic_load(&group->timeout_ms),
        .call = plan->call,
    };
    uint64_t fail_count = comm__fail_count();
    comm_status status = backend->group_open(channel->opened->state, &info, &channel->state);
    status = check_opened(backend, "group_open", status, fail_count, &channel->state);
    return explain_hosts(group, backend, status);
}

static int has_works(const comm_group *group)
{
    return comm__pending_count(group) > 0;
}

static int has_drivers(const comm_group *group)
{
    return atomic_load(&group->drivers) > 0;
}

/* Wait until the group has none of these any more. That takes a moment, unless the backend broke its promise: so check
 * often, but not without limit. */
static int settles(const comm_group *group, int (*has)(const comm_group *))
{
    int64_t deadline_ns = clock_deadline_ns(CLOSE_PATIENCE_NS / 1000000);
    while (has(group)) {
        if (clock_now_ns() > deadline_ns)
            return 0;
        struct timespec pause = { 0, 50000 };
        nanosleep(&pause, NULL);
    }
    return 1;
}

/* Before the backends close their parts: the watchdog may be ending the group on them. 0: that does not end. */
static int stop_watching(comm_group *group)
{
    comm__unwatch(group);
    if (!settles(group, has_drivers))
        return 0;
    comm__watchdog_let_go(group);
    return 1;
}

static void close_channels(comm_group *group, int32_t forked)
{
    for (size_t i = 0; i < group->channel_count; i++) {
        struct channel *channel = &group->channels[i];
        if (channel->state)
            channel->backend->group_close(channel->state, forked);
        channel->state = NULL;
    }
    comm__inner_works_finish(group, forked);
}

static void enter_world(struct world *world, comm_group *group)
{
    pthread_mutex_lock(&world->lock);
    group->next_open = world->groups;
    group->at_open = &world->groups;
    if (group->next_open)
        group->next_open->at_open = &group->next_open;
    world->groups = group;
    pthread_mutex_unlock(&world->lock);
    atomic_fetch_add(&world->references, 1);
}

/* *ret_known is set once members may have heard of the group, which is over if this fails then. */
static comm_status open_channels(const struct group_plan *plan, comm_group *group, int *ret_known)
{
    comm_status status = write_text(group, 1, &group->backend_asked);
    if (status == COMM_OK)
        status = comm__auto_choose(group);
    if (status == COMM_OK)
        status = write_text(group, 0, &group->backend_text);
    if (status == COMM_OK)
        status = open_backends(group);
    for (size_t i = 0; status == COMM_OK && i < group->channel_count; i++) {
        status = open_channel(plan, group, &group->channels[i]);
        *ret_known |= status == COMM_OK;
    }
    if (status != COMM_OK) {
        stop_watching(group); /* a backend may have ended it already */
        close_channels(group, 0);
        return status;
    }
    atomic_store(&group->is_open, 1); /* before a last look: see comm__group_end */
    if (atomic_load(&group->untold))
        comm__watch_from(group, 0);
    return COMM_OK;
}

comm_status comm__group_open(const struct group_plan *plan, comm_group **ret_group, int *ret_known)
{
    comm_group *group = NULL;
    *ret_known = 0;
    comm_status status = group_create(plan, &group);
    if (status != COMM_OK)
        return status;
    status = choose_backends(group, plan->backend);
    if (status == COMM_OK)
        status = open_channels(plan, group, ret_known);
    if (status != COMM_OK) {
        comm__group_unref(group);
        return status;
    }
    enter_world(plan->world, group);
    *ret_group = group;
    return COMM_OK;
}

/* ---- The world group ---- */

comm_status comm__world_choose(const struct group_plan *plan)
{
    comm_status status = group_create(plan, &plan->world->root);
    return status == COMM_OK ? choose_backends(plan->world->root, plan->backend) : status;
}

static int by_option(const void *a, const void *b)
{
    return strcmp(((const struct backend_option *)a)->name, ((const struct backend_option *)b)->name);
}

comm_status comm__world_terms(struct world *world, char **ret_terms)
{
    size_t bytes = 0;
    FILE *text = open_memstream(ret_terms, &bytes);
    for (int32_t d = COMM_DEVICE_CPU; text && d < DEVICE_KIND_END; d++) {
        const struct channel *channel = world->root->routes[d];
        if (!channel)
            continue;
        struct backend_option options[BACKEND_OPTIONS_MAX];
        size_t count = channel->choice.pair->option_count;
        memcpy(options, channel->choice.pair->options, count * sizeof *options);
        qsort(options, count, sizeof *options, by_option);
        fprintf(text, "%s%s:", ftell(text) > 0 ? "," : "", comm_device_name(d));
        if (comm__is_auto(channel->choice.pair))
            comm__auto_write_terms(world, channel->choice.pair, text);
        else
            fprintf(text, "%s", channel->backend->name);
        for (size_t i = 0; i < count; i++)
            fprintf(text, "%c%s=%s", i ? '&' : '?', options[i].name, options[i].value);
    }
    if (!text || fclose(text) != 0)
        return comm__fail(COMM_ERR_NO_MEMORY, "opening a world");
    return COMM_OK;
}

static void write_agreed(const struct backend_choice *choice, const comm_backend *backend, FILE *text)
{
    for (size_t i = 0; backend && backend->params && backend->params[i]; i++) {
        const comm_backend_param *p = backend->params[i];
        if (p->kind & COMM_PARAM_AGREED && !comm__option_of(choice, backend->name, p->name))
            comm__param_write_set(backend, p, text);
    }
}

comm_status comm__world_settings(struct world *world, char **ret_settings)
{
    size_t bytes = 0;
    FILE *text = open_memstream(ret_settings, &bytes);
    for (int32_t d = COMM_DEVICE_CPU; text && d < DEVICE_KIND_END; d++) {
        const struct channel *channel = world->root->routes[d];
        if (!channel)
            continue;
        const struct backend_pair *pair = channel->choice.pair;
        const comm_backend *const *list = &channel->backend;
        size_t count = comm__is_auto(pair) ? comm__auto_candidates(world, pair, &list) : 1;
        for (size_t i = 0; i < count; i++)
            write_agreed(&channel->choice, list[i], text);
        if (strcmp(channel->backend->name, "shm-tcp") == 0) /* it has the algorithms and slices of tcp */
            write_agreed(&channel->choice, comm__registry_known("tcp"), text);
    }
    if (!text || fclose(text) != 0)
        return comm__fail(COMM_ERR_NO_MEMORY, "opening a world");
    return COMM_OK;
}

/* The other backends that `auto` gives to groups on some of the hosts: opened with the world, so that their addresses
 * are on this rank's card, and no group needs the store, which may have ended with a rank. One that cannot be opened is
 * tried again when a group needs it, and says why. */
static void open_possible(struct world *world, const struct channel *channel)
{
    const comm_backend *list[AUTO_BACKENDS_MAX];
    const comm_device device = device_of(world->root, channel);
    size_t count = 0;
    if (comm__is_auto(channel->choice.pair))
        comm__auto_possible(world, channel->choice.pair, list, &count);
    for (size_t i = 0; i < count; i++) {
        struct channel other = { .backend = list[i], .choice = { list[i], channel->choice.pair } };
        struct world_backend *unused;
        if (open_world_backend(world->root, &other, device, &unused) != COMM_OK)
            comm__log(COMM_LOG_INFO, "world '%s': %s", world->name, comm_last_error());
    }
}

comm_status comm__world_open(struct world *world)
{
    int unused = 0;
    comm_status status = open_channels(&(struct group_plan){ .world = world }, world->root, &unused);
    pthread_mutex_lock(&world->open_lock);
    for (size_t i = 0; status == COMM_OK && i < world->root->channel_count; i++)
        open_possible(world, &world->root->channels[i]);
    pthread_mutex_unlock(&world->open_lock);
    return status;
}

void comm__world_enter(struct world *world, comm_group **ret_group)
{
    comm__group_ref(world->root); /* the user's; the world has one of its own */
    enter_world(world, world->root);
    *ret_group = world->root;
}

comm_status comm__group_open_round_robin(const struct group_plan *plan, struct round_robin *rr, comm_group **ret_group)
{
    comm_group *group = NULL;
    comm_status status = group_create(plan, &group);
    if (status != COMM_OK) {
        comm__round_robin_destroy(rr);
        return status;
    }
    group->round_robin = rr;
    group->backend_text = strdup(rr->groups[0]->backend_text);
    group->backend_asked = strdup(plan->backend);
    if (!group->backend_text || !group->backend_asked) {
        comm__group_unref(group);
        return comm__fail(COMM_ERR_NO_MEMORY, "opening group '%s'", plan->name);
    }
    enter_world(plan->world, group);
    *ret_group = group;
    return COMM_OK;
}

/* ---- Closing ---- */

void comm__world_destroy(struct world *world, int32_t forked)
{
    if (!world)
        return;
    if (world->root && !forked && !atomic_load(&world->root->closing)) /* a world that did not come together */
        stop_watching(world->root);
    if (world->root) /* or one that lives no longer than its group */
        close_channels(world->root, forked);
    for (size_t i = 0; i < world->backend_count; i++) {
        struct world_backend *wb = &world->backends[i];
        comm__store_set_deadline(wb->store, clock_deadline_ns(world->came_together ? CLOSE_STORE_MS : 1));
        wb->choice.backend->world_close(wb->state, forked);
        comm_store_close(wb->store);
        free(wb->pair_memory);
    }
    /* A world that has failed may have lost ranks: it does not wait for them. */
    if (world->takes_leave && !forked && (!world->root || atomic_load(&world->root->ended) == COMM_OK))
        comm__leave(world->store, world->rank, world->size,
                    world->came_together ? INT64_MAX : LEAVE_FAILED_MS);
    if (world->root)
        comm__group_unref(world->root);
    comm_store_close(world->store);
    comm_store_close(world->rendezvous);
    comm__lifelines_finish(world);
    comm__cards_finish(&world->cards);
    comm__auto_finish(world);
    pthread_mutex_destroy(&world->looking);
    pthread_mutex_destroy(&world->open_lock);
    pthread_mutex_destroy(&world->lock);
    free(world->hosts);
    free(world->name);
    free(world->secret);
    free(world->tuning);
    free(world->lost);
    free(world);
}

static void unlink_group(comm_group *group)
{
    struct world *world = group->world;
    pthread_mutex_lock(&world->lock);
    *group->at_open = group->next_open;
    if (group->next_open)
        group->next_open->at_open = group->at_open;
    pthread_mutex_unlock(&world->lock);
}

static int end_works(comm_group *group)
{
    futex_lock_take(&group->submission); /* a thread that was submitting is through */
    futex_lock_release(&group->submission);
    size_t unfinished = comm__pending_count(group);
    if (unfinished > 0) {
        char text[COMM_ERROR_BYTES], self[GROUP_RANK_BYTES];
        comm__group_rank_text(group, group->rank, self);
        snprintf(text, sizeof text, "%s closed group '%s' with %zu unfinished operations", self, group->name,
                 unfinished);
        comm__group_abort(group, COMM_ERR_ABORTED, text);
    }
    int settled = settles(group, has_works);
    futex_lock_take(&group->submission);
    atomic_store(&group->closing, 1); /* see drive_once and comm__group_submit */
    futex_lock_release(&group->submission);
    return stop_watching(group) && settled;
}

static comm_status close_forked(comm_group *group)
{
    struct world *world = group->world;
    comm__fail_forked(group, "comm_group_close");
    /* No locks: a thread that does not exist here may hold them. */
    comm__memories_close(group, 1);
    close_channels(group, 1);
    if (count_down(&world->references) == 0)
        comm__world_destroy(world, 1);
    comm__works_close(group);
    comm__group_unref(group);
    return COMM_ERR_FORKED;
}

comm_status comm_group_close(comm_group *group)
{
    if (!group)
        return COMM_OK;
    comm_status status = comm__refuse_in_callback("comm_group_close");
    return status == COMM_OK ? comm__group_close(group) : status;
}

comm_status comm__group_close(comm_group *group)
{
    if (comm__forked_since(group->generation))
        return close_forked(group);
    comm__batch_forget(group);
    struct world *world = group->world;
    unlink_group(group);
    comm__monitor_hush(group);
    if (!end_works(group)) {
        /* A leak is better than to free what a backend still uses. */
        return comm__fail(COMM_ERR_BUG, "closing group '%s': backend '%s' did not end %zu aborted operations",
                          group->name, group->backend_text, comm__pending_count(group));
    }
    comm__monitor_destroy(group->monitor);
    group->monitor = NULL;
    comm_store_close(group->user_store);
    comm__memories_close(group, 0);
    close_channels(group, 0);
    if (count_down(&world->references) == 0)
        comm__world_destroy(world, 0);
    comm__works_close(group);
    comm__group_unref(group);
    return COMM_OK;
}
