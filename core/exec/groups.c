#include "groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "queue.h"
#include "say.h"
#include "text.h"

/* ---- Groups that are not open here ---- */

/* `other` keeps its text. */
static void set_reason(struct reason *why, const struct reason *other)
{
    free(why->text);
    *why = *other;
    why->text = strdup(other->text);
}

static struct past_group *past_new(struct past_group *ring, size_t capacity, size_t *count, uint64_t id)
{
    struct past_group *p = &ring[(*count)++ % capacity];
    free(p->why.text);
    *p = (struct past_group){ .id = id, .from = -1 };
    return p;
}

static struct past_group *past_find(struct past_group *ring, size_t capacity, size_t count, uint64_t id)
{
    for (size_t i = 0; i < capacity && i < count; i++)
        if (ring[i].id == id)
            return &ring[i];
    return NULL;
}

const struct past_group *group_closed(struct domain *d, uint64_t id)
{
    return past_find(d->closed, DOMAIN_CLOSED_MAX, d->closed_count, id);
}

static void note_closed(struct exec_group *g)
{
    struct domain *d = g->domain;
    struct past_group *p = past_new(d->closed, DOMAIN_CLOSED_MAX, &d->closed_count, g->id);
    p->seq = g->entered_seq;
    p->why = g->why;
    g->why.text = NULL;
    if (g->status != COMM_OK)
        return;
    char text[384];
    struct reason why = { .status = COMM_OK, .reporter = g->rank, .text = text };
    if (g->id == d->world) { /* a BYE follows, but what comes before it is answered */
        snprintf(text, sizeof text, "%s has closed its world before the others were done with it",
                 text_peer(g, g->rank));
        if (g->entered_seq)
            text_add(text, sizeof text, "; the last collective that it called is #%llu",
                     (unsigned long long)g->entered_seq);
        else
            text_add(text, sizeof text, "; it has called no collective");
        why.lost = (uint64_t)d->peers.rank + 1;
        why.lost_here = 1;
    } else {
        snprintf(text, sizeof text, "%s has closed group '%s'", text_peer(g, g->rank), g->name);
    }
    set_reason(&p->why, &why);
}

/* What the peer has sent for a group that is not open here is of no use once the group has ended there: it would be
 * kept for as long as the group is not opened. Nothing of it follows. */
static void drop_unexpected(struct port *p, uint64_t id)
{
    struct unexpected *next;
    for (struct unexpected *u = domain_of(p)->unexpected.head; u; u = next) {
        next = u->next;
        if (u->head.group == id && u->port == p)
            unexpected_drop(u);
    }
}

void group_note_end(struct port *p, uint64_t id, const struct reason *why)
{
    struct domain *d = domain_of(p);
    drop_unexpected(p, id);
    struct past_group *past = past_find(d->closed, DOMAIN_CLOSED_MAX, d->closed_count, id);
    for (size_t i = 0; !past && i < DOMAIN_TOLD_MAX; i++)
        if (d->told[i].id == id && d->told[i].from == p->peer && d->told[i].why.status != COMM_OK)
            return;
    if (!past)
        past = past_new(d->told, DOMAIN_TOLD_MAX, &d->told_count, id);
    past->from = p->peer;
    if (past->why.status == COMM_OK)
        set_reason(&past->why, why);
}

/* Who has ended the group may have told another member first, which passes it on: the loss is to be known when the
 * group ends, not when the reporter's own words come. */
static void note_lost(const struct exec_group *g, const struct reason *why)
{
    int64_t lost = why->lost <= (uint64_t)g->domain->peers.size ? (int64_t)why->lost - 1 : -1;
    if (lost >= 0 && g->rank_of[lost] >= 0 && g->rank_of[lost] != g->rank && g->rank_of[lost] != why->reporter)
        exec_host->rank_lost(g->token, (int32_t)lost, why->text);
}

void group_end_as_told(struct exec_group *g, int32_t from, const struct reason *why)
{
    struct reason said = *why;
    int is_rank = why->reporter >= 0 && why->reporter < g->size && why->reporter != g->rank;
    said.text = why->text ? why->text : "";
    if (is_rank)
        note_lost(g, &said);
    else
        said.reporter = from;
    group_fail_as_reported(g, &said);
}

/* The group is open now. A report of its end that a member sent before counts; of several, the first. */
static void end_as_told(struct exec_group *g)
{
    struct domain *d = g->domain;
    for (size_t i = 0; i < DOMAIN_TOLD_MAX; i++) {
        struct past_group *p = &d->told[(d->told_count + i) % DOMAIN_TOLD_MAX];
        if (p->id != g->id || p->why.status == COMM_OK)
            continue;
        if (p->from >= 0 && g->rank_of[p->from] >= 0)
            group_end_as_told(g, g->rank_of[p->from], &p->why);
        free(p->why.text);
        *p = (struct past_group){ .from = -1 };
    }
}

void group_end_if_lost(struct exec_group *g, const struct port *p)
{
    char text[768];
    /* The report may be false: it counts only for groups that its sender is in, which the sender could end anyway. */
    int32_t rank = group_rank_of(g, p), by = p->said_lost_by ? g->rank_of[p->said_lost_by - 1] : -1;
    if (rank < 0 || g->status != COMM_OK || (!p->loss_told && by < 0))
        return;
    snprintf(text, sizeof text, "%s %s", text_peer(g, rank), p->loss_told && p->lost_text ? p->lost_text : "is lost");
    group_fail_as_reported(g, &(struct reason){ COMM_ERR_PEER_LOST, p->loss_told ? g->rank : by, text,
                                                (uint64_t)p->peer + 1, 0 });
}

static void end_as_lost(struct exec_group *g)
{
    for (int32_t r = 0; r < g->size; r++)
        if (r != g->rank)
            group_end_if_lost(g, group_port(g, r));
}

static void forget_past(struct domain *d)
{
    for (size_t i = 0; i < DOMAIN_CLOSED_MAX; i++)
        free(d->closed[i].why.text);
    for (size_t i = 0; i < DOMAIN_TOLD_MAX; i++)
        free(d->told[i].why.text);
}

/* ---- The domain ---- */

int domain_init(struct domain *d, const char *backend, int32_t rank, int32_t size, const struct port_events *events)
{
    d->backend = backend;
    d->due_ns = INT64_MAX;
    d->peers.matching = &d->matching;
    matching_init(&d->matching);
    unexpected_list_init(&d->unexpected, NULL);
    return port_table_init(&d->peers, rank, size, events);
}

void domain_finish(struct domain *d)
{
    while (d->op_pool) {
        struct exec_op *op = d->op_pool;
        d->op_pool = op->next;
        free(op);
    }
    matching_finish(&d->matching);
    forget_past(d);
    select_overrides_destroy(d->tuning);
    d->tuning = NULL;
    port_table_finish(&d->peers);
    free(d->done);
}

/* ---- Making and finding ---- */

/* Each member's host, and how many hosts there are. 0: no memory. */
static int learn_hosts(struct exec_group *g)
{
    const struct domain *d = g->domain;
    if (!d->hosts || d->hosts[0] < 0)
        return 1; /* not known */
    g->hosts = malloc((size_t)g->size * sizeof *g->hosts);
    uint8_t *seen = calloc((size_t)d->peers.size, 1);
    for (int32_t r = 0; g->hosts && seen && r < g->size; r++) {
        g->hosts[r] = d->hosts[g->world_ranks[r]];
        g->host_count += !seen[g->hosts[r]];
        seen[g->hosts[r]] = 1;
    }
    free(seen);
    return g->hosts && seen;
}

static int memory_of(const struct exec_group *g)
{
    if (g->domain->memory != SELECT_MEMORY_HOSTS)
        return g->domain->memory;
    return g->host_count == 1         ? SELECT_MEMORY_ALL
           : g->host_count == g->size ? SELECT_MEMORY_NONE
                                      : SELECT_MEMORY_HOSTS;
}

/* Of what decides which messages an op is made of. */
static uint64_t mark_of(const char *algo, int64_t slice_bytes)
{
    return *algo || slice_bytes ? XXH64(algo, strlen(algo), (uint64_t)slice_bytes) : 0;
}

comm_status group_create(struct domain *d, const comm_group_info *info, struct exec_group **ret_group)
{
    struct exec_group *g = calloc(1, sizeof *g);
    if (g) {
        g->world_ranks = malloc((size_t)info->size * sizeof *g->world_ranks);
        g->rank_of = malloc((size_t)d->peers.size * sizeof *g->rank_of);
        g->answers = calloc((size_t)info->size, sizeof *g->answers);
        g->sources = malloc((size_t)info->size * sizeof *g->sources);
        g->boxes = boxes_create(info->size, &g->early);
        g->p2p_boxes = boxes_create(info->size, NULL);
    }
    if (!g || !g->world_ranks || !g->rank_of || !g->answers || !g->sources || !g->boxes || !g->p2p_boxes) {
        group_destroy(g);
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory for group '%s'", info->name);
    }
    g->domain = d;
    g->id = info->id;
    g->rank = info->rank;
    g->size = info->size;
    g->name = info->name;
    g->token = info->token;
    g->tail = &g->head;
    op_list_init(&g->recvs);
    op_list_init(&g->sends);
    memcpy(g->world_ranks, info->world_ranks, (size_t)info->size * sizeof *g->world_ranks);
    for (int32_t i = 0; i < d->peers.size; i++)
        g->rank_of[i] = -1;
    for (int32_t r = 0; r < g->size; r++)
        g->rank_of[g->world_ranks[r]] = r;
    if (!learn_hosts(g)) {
        group_destroy(g);
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory for group '%s'", info->name);
    }
    g->memory = memory_of(g);
    g->lanes = (uint32_t)exec_host->param_int(info->options, d->backend, "lanes");
    g->slice_bytes = exec_host->param_int(info->options, d->backend, "slice_bytes");
    g->answer_ms = exec_host->param_int(info->options, d->backend, "answer_ms");
    const char *algo = exec_host->param_text(info->options, d->backend, "algo");
    char error[512];
    if (algo && *algo && !(g->overrides = select_overrides_create(algo, error, sizeof error))) {
        group_destroy(g);
        return exec_fail(COMM_ERR_INVALID, "the option 'algo' (or its variable in the environment): %s", error);
    }
    g->settings_mark = mark_of(algo ? algo : "", g->slice_bytes);
    *ret_group = g;
    return COMM_OK;
}

void group_destroy(struct exec_group *g)
{
    if (!g)
        return;
    while (g->plans) {
        struct plan_entry *e = g->plans;
        g->plans = e->next;
        plan_finish(&e->plan);
        free(e);
    }
    select_overrides_destroy(g->overrides);
    free(g->world_ranks);
    free(g->rank_of);
    free(g->hosts);
    free(g->at_once);
    free(g->answers);
    free(g->sources);
    free(g->boxes);
    free(g->p2p_boxes);
    free(g->offsets);
    free(g->error_memory);
    free(g->why.text);
    free(g->scratch);
    free(g->prepared);
    free(g->step_pool);
    free(g->kept);
    free(g);
}

struct exec_group *group_find(struct domain *d, uint64_t id)
{
    struct exec_group *g = d->buckets[id % DOMAIN_BUCKETS];
    while (g && g->id != id)
        g = g->bucket_next;
    return g;
}

/* Frames that came before the group was opened here now find it. */
static void adopt_unexpected(struct exec_group *g)
{
    struct unexpected *next;
    for (struct unexpected *u = g->domain->unexpected.head; u; u = next) {
        next = u->next;
        if (u->head.group != g->id)
            continue;
        if (g->status != COMM_OK || group_rank_of(g, u->port) < 0) {
            unexpected_drop(u); /* The group has ended, perhaps with this sender; or that is not a member. */
            continue;
        }
        struct box *box = group_box(g, u->port, u->head.kind);
        unexpected_move(u, u->head.type == FRAME_CTS ? &box->cleared : &box->unexpected);
    }
}

void group_enter(struct exec_group *g)
{
    struct domain *d = g->domain;
    struct exec_group **bucket = &d->buckets[g->id % DOMAIN_BUCKETS];
    g->bucket_next = *bucket;
    *bucket = g;
    g->next = d->groups;
    g->at = &d->groups;
    if (g->next)
        g->next->at = &g->next;
    d->groups = g;
    end_as_told(g);
    end_as_lost(g);
    adopt_unexpected(g);
}

void group_leave(struct exec_group *g)
{
    struct exec_group **at = &g->domain->buckets[g->id % DOMAIN_BUCKETS];
    while (*at && *at != g)
        at = &(*at)->bucket_next;
    if (*at)
        *at = g->bucket_next;
    *g->at = g->next;
    if (g->next)
        g->next->at = g->at;
    note_closed(g);
}

enum { HEAR_MAX = 64 }; /* reads: more than a text needs, fewer than a peer that never stops sending */

void group_hear(struct exec_group *g)
{
    for (int32_t r = 0; r < g->size; r++) {
        struct port *p = group_port(g, r);
        for (int i = 0; i < HEAR_MAX && r != g->rank && g->status == COMM_OK && p->ops->read(p); i++)
            ;
    }
}

/* ---- Frames for groups that are not open here, or have ended ---- */

struct frame group_end_frame(uint64_t id, const struct reason *why)
{
    return (struct frame){ .type = FRAME_FAIL, .group = id, .reporter = why->reporter, .lost = why->lost,
                           .flags = why->lost_here ? FRAME_LOST_HERE : 0,
                           .status = why->status == COMM_OK ? COMM_ERR_PEER_LOST : why->status };
}

static void reply_end(struct port *p, uint64_t id, const struct reason *why)
{
    struct frame h = group_end_frame(id, why);
    p->ops->send_text(p, &h, why->text ? why->text : "", 1);
}

int group_tell_why(struct port *p, const struct exec_group *g, uint64_t id)
{
    struct domain *d = domain_of(p);
    const struct past_group *past = g ? NULL : group_closed(d, id);
    if (!g && !past)
        past = past_find(d->told, DOMAIN_TOLD_MAX, d->told_count, id);
    const struct reason *why = g ? &g->why : past ? &past->why : NULL;
    if (!why || why->status == COMM_OK)
        return 0;
    reply_end(p, id, why);
    return 1;
}

int group_may_come(struct port *p, const struct exec_group *g, const struct frame *h)
{
    struct domain *d = domain_of(p);
    const struct past_group *closed = g ? NULL : group_closed(d, h->group);
    /* The end of a group is told to its members when it comes, so all that is under way by then needs no answer. Of
     * one that was closed without an end the peer is told once. */
    if (closed && closed->why.status == COMM_OK && p->closed_told != h->group) {
        p->closed_told = h->group;
        reply_end(p, h->group, &closed->why);
    }
    if (g || closed || past_find(d->told, DOMAIN_TOLD_MAX, d->told_count, h->group))
        return 0;
    if (h->type == FRAME_DATA)
        port_lose(p, COMM_ERR_PROTOCOL, "sent data for a group that was never open here");
    return h->type != FRAME_DATA;
}
