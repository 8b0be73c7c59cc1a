/* What happens before what: vector clocks, and the accesses to memory that are not known to be over. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudart.h"

struct clock host_clock;

void clock_merge(struct clock *into, const struct clock *from)
{
    for (int i = 0; i < ACTORS_MAX; i++)
        into->at[i] = into->at[i] > from->at[i] ? into->at[i] : from->at[i];
}

static bool is_before(const struct access *access, const struct clock *clock)
{
    return clock->at[access->actor] >= access->time;
}

void accesses_free(struct access *list)
{
    while (list) {
        struct access *next = list->next;
        free(list);
        list = next;
    }
}

static void remove_access(struct access **at)
{
    struct access *gone = *at;
    *at = gone->next;
    free(gone);
}

void accesses_prune(struct access **list)
{
    while (*list) {
        if (is_before(*list, &host_clock))
            remove_access(list);
        else
            list = &(*list)->next;
    }
}

static void report_race(const struct access *before, const struct access *now)
{
    standin_rule("let the second wait for an event recorded after the first, or await the first on the host",
                 "data race: %s %s bytes that %s %s, and nothing orders the two (%p to %p)", now->text,
                 now->write ? "writes" : "reads", before->text, before->write ? "writes" : "reads",
                 (void *)(now->from > before->from ? now->from : before->from),
                 (void *)(now->to < before->to ? now->to : before->to));
}

/* The new access, which comes after the old one, will be in the way of all that the old one would be. */
static bool replaces(const struct access *now, const struct access *before)
{
    return now->from <= before->from && now->to >= before->to && (now->write || !before->write);
}

void access_add(struct access **list, const struct standin_access *access, cuda_stream stream, const char *text)
{
    struct access now = {.from = (uintptr_t)access->at,
                         .to = (uintptr_t)access->at + access->bytes,
                         .actor = stream->actor,
                         .time = stream->clock.at[stream->actor],
                         .write = access->write};
    snprintf(now.text, sizeof now.text, "%s", text);
    for (struct access **at = list; *at;) {
        struct access *before = *at;
        bool overlaps = before->from < now.to && now.from < before->to;
        bool ordered = is_before(before, &stream->clock);
        if (overlaps && !ordered && (before->write || now.write))
            report_race(before, &now);
        if (ordered && replaces(&now, before))
            remove_access(at);
        else
            at = &before->next;
    }
    struct access *kept = malloc(sizeof *kept);
    *kept = now;
    kept->next = *list;
    *list = kept;
}
