/* What ports tell: each frame is brought to the group that it is for, and there to the receive, send or question. */
#include "receive.h"

#include "desync.h"
#include "groups.h"
#include "match.h"
#include "p2p.h"
#include "queue.h"
#include "say.h"
#include "witness.h"

static int is_member(struct port *p, const struct exec_group *g)
{
    if (group_rank_of(g, p) >= 0)
        return 1;
    port_lose(p, COMM_ERR_PROTOCOL, "is not in group '%s' but sends to it", g->name);
    return 0;
}

/* As group_may_come. A group that is not open here has two ranks perhaps that disagree. */
static int may_come(struct port *p, const struct exec_group *g, const struct frame *h)
{
    if (!group_may_come(p, g, h))
        return 0;
    return h->kind == COMM_OP_SEND || witness_agrees(NULL, p, h);
}

/* ---- Messages ---- */

/* There is no place for what has come; `did` says what that was. */
static void lose_for_place(struct port *p, const char *did, const char *without)
{
    if (p->unexpected_count < MATCH_UNEXPECTED_MAX)
        port_lose(p, COMM_ERR_BACKEND, "%s a message before its %s, and this rank has no memory to keep it", did,
                  without);
    else
        port_lose(p, COMM_ERR_PROTOCOL, "%s more than %d messages without a matching %s", did, MATCH_UNEXPECTED_MAX,
                  without);
}

static void keep(struct port *p, struct unexpected_list *list, const struct frame *h)
{
    struct unexpected *u = unexpected_add(list, p, h);
    if (!u) {
        lose_for_place(p, "sent", "receive");
        return;
    }
    p->sink.kind = SINK_UNEXPECTED;
    p->sink.unexpected = u;
    p->sink.dst = u->data;
}

/* 1 if the message needs no place of its own: it has a receive, or is not wanted. */
static int collective_begins(struct exec_group *g, struct port *p, const struct frame *h)
{
    if (!witness_agrees(g, p, h))
        return 1;
    struct message *m = match_find_posted(group_box(g, p, h->kind), h);
    if (m)
        match_begins(m, p, h);
    return m != NULL;
}

static void on_begins(struct port *p, const struct frame *h)
{
    struct domain *d = domain_of(p);
    struct exec_group *g = group_find(d, h->group);
    const int is_p2p = h->kind == COMM_OP_SEND;
    p->sink.kind = SINK_DISCARD;
    if (is_p2p && h->round) {
        port_lose(p, COMM_ERR_PROTOCOL, "sent a point-to-point message with a round, which only collectives have");
        return;
    }
    if (!g || g->status != COMM_OK) {
        /* DATA was asked for, so the group was open here. */
        if (may_come(p, g, h) && h->type == FRAME_EAGER)
            keep(p, &d->unexpected, h);
        return;
    }
    if (!is_member(p, g))
        return;
    if (is_p2p ? p2p_begins(g, p, h) : collective_begins(g, p, h))
        return;
    if (h->type == FRAME_DATA)
        port_lose(p, COMM_ERR_PROTOCOL, "sent data that was not asked for");
    else
        keep(p, &group_box(g, p, h->kind)->unexpected, h);
}

static void on_complete(struct port *p, const struct frame *h)
{
    struct sink *s = &p->sink;
    enum sink_kind kind = s->kind;
    struct message *m = s->message;
    s->kind = SINK_NONE;
    s->message = NULL;
    if (h->type == FRAME_EAGER && kind != SINK_UNEXPECTED)
        port_consumed(p, (size_t)h->bytes);
    if (kind == SINK_UNEXPECTED)
        match_unexpected_complete(s->unexpected);
    else if (m)
        match_received(m);
}

/* ---- Promises: RTS and CTS ---- */

static void keep_promise(struct port *p, struct unexpected_list *list, const struct frame *h)
{
    if (!unexpected_add(list, p, h))
        lose_for_place(p, h->type == FRAME_RTS ? "announced" : "asked for", h->type == FRAME_RTS ? "receive" : "send");
}

static void collective_promise(struct exec_group *g, struct port *p, const struct frame *h)
{
    struct box *box = group_box(g, p, h->kind);
    if (!witness_agrees(g, p, h))
        return;
    if (h->type == FRAME_CTS) {
        if (!match_cleared(p, box, h) && h->seq > g->ended_seq)
            keep_promise(p, &box->cleared, h);
        return;
    }
    struct message *m = match_find_posted(box, h);
    if (m)
        match_announced(m, h);
    else if (h->seq > g->ended_seq)
        keep_promise(p, &box->unexpected, h);
}

static void p2p_promise(struct exec_group *g, struct port *p, const struct frame *h)
{
    struct box *box = group_box(g, p, h->kind);
    if (h->type == FRAME_CTS)
        match_cleared(p, box, h);
    else if (!p2p_announced(g, p, h))
        keep_promise(p, &box->unexpected, h);
}

static void promise(struct exec_group *g, struct port *p, const struct frame *h)
{
    if (!g || g->status != COMM_OK) {
        if (may_come(p, g, h))
            keep_promise(p, &domain_of(p)->unexpected, h);
    } else if (is_member(p, g)) {
        (h->kind == COMM_OP_SEND ? p2p_promise : collective_promise)(g, p, h);
    }
}

/* ---- Everything else ---- */

/* A member of `g` has lost another one, which this rank may have no connection to. Groups that both are in have ended
 * there, or will not be opened there any more: a rank that waits in one would never be answered. Only losses that the
 * sender has noticed itself count: correct ranks pass on texts unchecked, also those of a misbehaving rank. */
static void hear_of_loss(struct exec_group *g, struct port *p, const struct frame *h, const char *text)
{
    struct domain *d = domain_of(p);
    if (h->lost == 0 || h->lost > (uint64_t)d->peers.size || h->lost == (uint64_t)d->peers.rank + 1)
        return;
    struct port *lost = d->peers.at[h->lost - 1];
    if (!g || h->reporter < 0 || h->reporter != group_rank_of(g, p) || group_rank_of(g, lost) < 0)
        return;
    exec_host->rank_lost(g->token, lost->peer, text);
    if (h->flags & FRAME_LOST_HERE)
        return;
    lost->said_lost_by = p->peer + 1;
    if (!*lost->where && lost->ops->find_place)
        lost->ops->find_place(lost);
    for (struct exec_group *other = d->groups; other; other = other->next)
        if (other != g)
            group_end_if_lost(other, lost);
}

/* Does it say of itself that it has left? Then this rank has noticed that, as it would by the BYE that follows. */
static int says_it_has_left(const struct exec_group *g, const struct port *p, const struct frame *h)
{
    return (h->flags & FRAME_LOST_HERE) && h->lost == (uint64_t)p->peer + 1 && h->reporter == group_rank_of(g, p);
}

static void hear_of_end(struct exec_group *g, struct port *p, const struct frame *h, const char *text)
{
    struct reason why = {
        .status = h->status >= COMM_ERR_BACKEND && h->status <= COMM_ERR_PEER_LOST ? h->status : COMM_ERR_PROTOCOL,
        .reporter = h->reporter,
        .text = (char *)text,
        .lost = h->lost,
        .lost_here = h->flags & FRAME_LOST_HERE,
    };
    hear_of_loss(g, p, h, text);
    if (!g) {
        group_note_end(p, h->group, &why);
    } else if (g->status == COMM_OK && is_member(p, g) && says_it_has_left(g, p, h)) {
        why.reporter = g->rank;
        why.text = (char *)(text ? text : "");
        group_fail_as_reported(g, &why);
    } else if (g->status == COMM_OK && is_member(p, g)) {
        group_end_as_told(g, group_rank_of(g, p), &why);
    }
}

static void on_frame(struct port *p, const struct frame *h, const char *text)
{
    struct exec_group *g = group_find(domain_of(p), h->group);
    switch (h->type) {
    case FRAME_BYE:
        port_left(p);
        break;
    case FRAME_FAIL:
        hear_of_end(g, p, h, text);
        break;
    case FRAME_QUERY:
        desync_query(g, p, h);
        break;
    case FRAME_ANSWER:
        if (g && g->status == COMM_OK && is_member(p, g))
            desync_answer(g, p, h, text);
        break;
    case FRAME_CALL:
        if (g && g->status == COMM_OK && is_member(p, g))
            witness_told(g, h);
        break;
    case FRAME_RTS:
    case FRAME_CTS:
        promise(g, p, h);
        break;
    default: /* CREDIT */
        break;
    }
}

const struct port_events receive_events = { .begins = on_begins, .complete = on_complete, .frame = on_frame,
                                            .sent = match_sent };
