#include "auto.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "host_difference.h"
#include "host_id.h"
#include "registry.h"

enum { CANDIDATES_MAX = 64, REASONS_BYTES = COMM_ERROR_BYTES / 2 };

/* For a device, in a world. */
struct candidates {
    struct candidates *next;
    char device[DEVICE_NAME_BYTES];
    const comm_backend *list[CANDIDATES_MAX];
    size_t count;
    char reasons[REASONS_BYTES]; /* why others are none */
};

int comm__is_auto(const struct backend_pair *pair)
{
    return strcmp(pair->name, "auto") == 0;
}

static const char *device_of(const struct backend_pair *pair)
{
    return pair->device ? pair->device : "cpu";
}

/* Known, or made known by this. */
static struct candidates *known_candidates(struct world *world, const char *device, struct candidates *new)
{
    pthread_mutex_lock(&world->lock);
    struct candidates *c = world->candidates;
    while (c && strcmp(c->device, device) != 0)
        c = c->next;
    if (!c && new) {
        new->next = world->candidates;
        world->candidates = c = new;
    }
    pthread_mutex_unlock(&world->lock);
    return c;
}

static comm_status find_candidates(struct world *world, const struct backend_pair *pair,
                                   const struct candidates **ret_candidates)
{
    const char *device = device_of(pair);
    if ((*ret_candidates = known_candidates(world, device, NULL)))
        return COMM_OK;
    struct candidates *c = calloc(1, sizeof *c), *known;
    if (!c)
        return comm__fail(COMM_ERR_NO_MEMORY, "backends for device '%s'", device);
    snprintf(c->device, sizeof c->device, "%s", device);
    comm_status status =
        comm__registry_auto(device, c->list, CANDIDATES_MAX, &c->count, c->reasons, sizeof c->reasons);
    known = status == COMM_OK ? known_candidates(world, device, c) : NULL;
    if (known != c)
        free(c);
    *ret_candidates = known;
    return status;
}

comm_status comm__auto_first(struct world *world, const struct backend_pair *pair, const comm_backend **ret_backend)
{
    const struct candidates *c;
    comm_status status = find_candidates(world, pair, &c);
    *ret_backend = status == COMM_OK ? c->list[0] : NULL;
    return status;
}

comm_status comm__auto_check_option(struct world *world, const struct backend_pair *pair,
                                    const struct backend_option *option)
{
    const struct candidates *c;
    comm_status status = find_candidates(world, pair, &c);
    int is_known = 0;
    for (size_t i = 0; status == COMM_OK && i < c->count; i++)
        if (comm__param_has(c->list[i], option->name)) {
            status = comm__param_check(c->list[i], option->name, option->value);
            is_known = 1;
        }
    return status == COMM_OK && !is_known ? comm__param_check(c->list[0], option->name, option->value) : status;
}

size_t comm__auto_candidates(struct world *world, const struct backend_pair *pair,
                             const comm_backend *const **ret_list)
{
    const struct candidates *c;
    if (find_candidates(world, pair, &c) != COMM_OK)
        return 0;
    *ret_list = c->list;
    return c->count;
}

void comm__auto_write_terms(struct world *world, const struct backend_pair *pair, FILE *text)
{
    const comm_backend *const *list = NULL;
    size_t count = comm__auto_candidates(world, pair, &list);
    fprintf(text, "%s", count > 1 ? "auto(" : "");
    for (size_t i = 0; i < count; i++)
        fprintf(text, "%s%s", i ? "," : "", list[i]->name);
    fprintf(text, "%s", count > 1 ? ")" : "");
}

const char *comm__auto_reasons(const struct world *world)
{
    const struct candidates *c = world->candidates;
    while (c && !*c->reasons)
        c = c->next;
    return c ? c->reasons : "";
}

void comm__auto_finish(struct world *world)
{
    while (world->candidates) {
        struct candidates *c = world->candidates;
        world->candidates = c->next;
        free(c);
    }
}

/* ---- The hosts are known ---- */

/* The host of each member. free() it. */
static int32_t *hosts_of(const comm_group *group)
{
    int32_t *hosts = malloc((size_t)group->size * sizeof *hosts);
    for (int32_t r = 0; hosts && r < group->size; r++)
        hosts[r] = group->world->hosts[group->world_ranks[r]];
    return hosts;
}

/* "2 hosts with 1 to 3 ranks each" */
static void write_hosts(const comm_group *group, const int32_t *hosts, char *text, size_t capacity)
{
    int32_t count = 0, least = group->size, most = 0, numbers = group->world->size;
    int32_t *ranks = calloc((size_t)numbers, sizeof *ranks);
    if (!ranks) {
        snprintf(text, capacity, "some hosts");
        return;
    }
    for (int32_t r = 0; r < group->size; r++)
        ranks[hosts[r]]++;
    for (int32_t h = 0; h < numbers; h++) {
        if (ranks[h] == 0)
            continue;
        count++;
        least = ranks[h] < least ? ranks[h] : least;
        most = ranks[h] > most ? ranks[h] : most;
    }
    free(ranks);
    if (count == 1)
        snprintf(text, capacity, "1 host");
    else if (least == most)
        snprintf(text, capacity, "%d hosts with %d rank%s each", count, most, most == 1 ? "" : "s");
    else
        snprintf(text, capacity, "%d hosts with %d to %d ranks each", count, least, most);
}

static void explain(const comm_group *group, const struct backend_pair *pair, const comm_backend *taken,
                    const int32_t *hosts, const char *reasons)
{
    char places[80], difference[HOST_DIFFERENCE_TEXT + 40] = "";
    if (group->rank != 0 || !comm__param_int("explain"))
        return;
    write_hosts(group, hosts, places, sizeof places);
    if (*reasons)
        comm__host_difference(group, difference, sizeof difference);
    comm__log(COMM_LOG_WARN, "group '%s' of %d rank%s on %s: auto takes %s for %s%s%s%s%s", group->name, group->size,
              group->size == 1 ? "" : "s", places, taken->name, device_of(pair), *reasons ? "; " : "", reasons,
              *difference ? "; " : "", difference);
}

/* The first that serves ranks on these hosts; UNSUPPORTED: none does. Why those before it do not is in `reasons`. */
static comm_status first_for(const struct candidates *c, const int32_t *hosts, int32_t size, char *reasons,
                             const comm_backend **ret_backend)
{
    *reasons = '\0';
    for (size_t i = 0; i < c->count; i++) {
        const comm_backend *b = c->list[i];
        comm_status status = b->serves_hosts ? b->serves_hosts(b->context, hosts, size) : COMM_OK;
        *ret_backend = b;
        if (status != COMM_ERR_UNSUPPORTED)
            return status; /* it cannot say; the other ranks may have taken it */
        size_t used = strlen(reasons);
        snprintf(reasons + used, REASONS_BYTES - used, "%s%s: %s", used ? "; " : "", b->name, comm_last_error());
    }
    return COMM_ERR_UNSUPPORTED;
}

static comm_status choose(const comm_group *group, const struct backend_pair *pair, const int32_t *hosts,
                          const comm_backend **ret_backend)
{
    const struct candidates *c;
    char reasons[REASONS_BYTES];
    comm_status status = find_candidates(group->world, pair, &c);
    if (status != COMM_OK)
        return status;
    status = first_for(c, hosts, group->size, reasons, ret_backend);
    if (status == COMM_OK)
        explain(group, pair, *ret_backend, hosts, reasons);
    if (status != COMM_ERR_UNSUPPORTED)
        return status;
    return comm__fail(COMM_ERR_UNSUPPORTED, "group '%s': no backend for %s can serve its ranks: %s", group->name,
                      device_of(pair), reasons);
}

static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* Groups differ by whether their hosts are one or several, and have one rank each, or one of them has several. Writes
 * the hosts of such a group, of which the ascending list of all ranks' hosts has enough; 0: it has not. */
static int32_t part_of(const int32_t *all, int32_t size, int has_several, int one_host, int32_t *part)
{
    int32_t count = 0, host = all[0];
    int is_shared = 0; /* a host, by several ranks: that one */
    for (int32_t r = 1; r < size && !is_shared; r++)
        if (all[r] == all[r - 1]) {
            is_shared = 1;
            host = all[r];
        }
    if (has_several && !is_shared)
        return 0;
    for (int32_t r = 0; r < size; r++) {
        int is_first = r == 0 || all[r] != all[r - 1];
        if ((has_several || is_first) && (!one_host || all[r] == host))
            part[count++] = all[r];
    }
    return count;
}

void comm__auto_possible(const struct world *world, const struct backend_pair *pair, const comm_backend **list,
                         size_t *ret_count)
{
    const struct candidates *c;
    char reasons[REASONS_BYTES];
    const size_t bytes = (size_t)world->size * sizeof *world->hosts;
    int32_t *all = malloc(bytes), *part = malloc(bytes);
    *ret_count = 0;
    if (all && part && find_candidates((struct world *)world, pair, &c) == COMM_OK) {
        memcpy(all, world->hosts, bytes);
        qsort(all, (size_t)world->size, sizeof *all, by_number);
        for (int kind = 0; kind < AUTO_BACKENDS_MAX; kind++) {
            int32_t count = part_of(all, world->size, kind & 1, kind >> 1, part);
            if (count > 0 && first_for(c, part, count, reasons, &list[*ret_count]) == COMM_OK)
                ++*ret_count;
        }
    }
    free(all);
    free(part);
}

/* One group has one channel to a backend: that of `gone` becomes the other one's. */
static void merge(comm_group *group, struct channel *gone, struct channel *kept)
{
    struct channel *last = &group->channels[group->channel_count - 1];
    for (int32_t d = 0; d < DEVICE_KIND_END; d++)
        if (group->routes[d] == gone)
            group->routes[d] = kept;
    for (int32_t d = 0; d < DEVICE_KIND_END && last != gone; d++)
        if (group->routes[d] == last)
            group->routes[d] = gone;
    *gone = *last;
    group->channel_count--;
}

/* Two channels of one backend, at least one of which auto has chosen. */
static comm_status merge_two(comm_group *group, struct channel *kept, struct channel *gone)
{
    const struct backend_pair *a = kept->choice.pair, *b = gone->choice.pair;
    if (!comm__same_options(a, b)) {
        const struct backend_pair *by_auto = comm__is_auto(a) ? a : b;
        return comm__fail(COMM_ERR_INVALID,
                          "opening group '%s': auto takes %s for %s, and %s is to serve %s too, with other options; "
                          "give it the same ones for all devices",
                          group->name, kept->backend->name, device_of(by_auto), kept->backend->name,
                          device_of(by_auto == a ? b : a));
    }
    merge(group, gone, kept);
    return COMM_OK;
}

static comm_status merge_all(comm_group *group)
{
    comm_status status = COMM_OK;
    for (size_t i = 0; i < group->channel_count; i++)
        for (size_t k = i + 1; status == COMM_OK && k < group->channel_count;)
            if (group->channels[i].backend == group->channels[k].backend)
                status = merge_two(group, &group->channels[i], &group->channels[k]);
            else
                k++;
    return status;
}

static int has_auto(const comm_group *group)
{
    for (size_t i = 0; i < group->channel_count; i++)
        if (comm__is_auto(group->channels[i].choice.pair))
            return 1;
    return 0;
}

comm_status comm__auto_choose(comm_group *group)
{
    if (!has_auto(group))
        return COMM_OK;
    char text[COMM_ERROR_BYTES];
    comm_status status = COMM_OK;
    int32_t *hosts = hosts_of(group);
    if (!hosts)
        return comm__fail(COMM_ERR_NO_MEMORY, "opening group '%s'", group->name);
    comm__error_before(text);
    for (size_t i = 0; i < group->channel_count && status == COMM_OK; i++) {
        struct channel *channel = &group->channels[i];
        if (!comm__is_auto(channel->choice.pair))
            continue;
        status = choose(group, channel->choice.pair, hosts, &channel->backend);
        channel->choice.backend = channel->backend;
    }
    free(hosts);
    comm__error_after(status, text);
    return status == COMM_OK ? merge_all(group) : status;
}
