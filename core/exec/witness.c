#include "witness.h"

#include "queue.h"

/* A place for few of them, by group and number: of two that are for the same place the latter stays. */
static struct frame *place_for(struct domain *d, const struct frame *h)
{
    return &d->heard[(h->group ^ h->seq) % DOMAIN_HEARD_MAX];
}

static void hear(struct port *p, const struct frame *h)
{
    struct frame *heard = place_for(domain_of(p), h);
    if (heard->group != h->group || heard->seq != h->seq) {
        *heard = (struct frame){ .type = FRAME_CALL, .kind = h->kind, .dtype = h->dtype, .redop = h->redop,
                                 .group = h->group, .seq = h->seq, .signature = h->signature, .caller = p->peer,
                                 .root = h->root, .count = h->count };
        return;
    }
    struct frame call = *heard;
    if (call.signature != h->signature)
        p->ops->send_text(p, &call, "", 1);
}

int witness_agrees(struct exec_group *g, struct port *p, const struct frame *h)
{
    const struct call *mine = g ? queue_call(g, h->seq) : NULL;
    if (mine)
        return queue_matches_call(g, p, h, mine);
    hear(p, h);
    return 1;
}

void witness_told(struct exec_group *g, const struct frame *h)
{
    struct port_table *peers = &g->domain->peers;
    const struct call *mine = queue_call(g, h->seq);
    if (!mine || h->caller < 0 || h->caller >= peers->size || h->caller == peers->rank)
        return;
    struct port *caller = peers->at[h->caller];
    if (group_rank_of(g, caller) < 0)
        return;
    if (!*caller->where && caller->ops->find_place)
        caller->ops->find_place(caller);
    queue_matches_call(g, caller, h, mine);
}
