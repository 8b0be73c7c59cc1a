/* Frames that came before their receive was posted, and leave to send that came before the send. Bounded by the eager window (payloads)
 * and by TCP_EARLY_MOST (frames) per peer. */
#include <stdlib.h>
#include <string.h>

#include "tcp.h"

void early_list_init(struct early_list *list)
{
    list->head = NULL;
    list->tail = &list->head;
}

static size_t payload_bytes(const struct wire_header *h)
{
    return h->type == WIRE_EAGER ? (size_t)h->bytes : 0;
}

struct early *early_add(struct mesh *m, struct early_list *list, int32_t from, const struct wire_header *h)
{
    struct link *l = &m->links[from];
    if (l->early_count >= TCP_EARLY_MOST)
        return NULL;
    struct early *e = m->early_pool;
    if (e)
        m->early_pool = e->next;
    else if (!(e = malloc(sizeof *e)))
        return NULL;
    e->next = NULL;
    e->header = *h;
    e->from = from;
    e->complete = payload_bytes(h) == 0;
    e->claimed = NULL;
    e->data = e->inline_data;
    if (payload_bytes(h) > sizeof e->inline_data && !(e->data = malloc(payload_bytes(h)))) {
        e->next = m->early_pool;
        m->early_pool = e;
        return NULL;
    }
    l->early_count++;
    *list->tail = e;
    list->tail = &e->next;
    return e;
}

struct early *early_find(struct early_list *list, int32_t from, uint8_t type, uint64_t seq, uint32_t slice,
                         uint16_t round)
{
    for (struct early *e = list->head; e; e = e->next) {
        const struct wire_header *h = &e->header;
        int type_fits = type ? h->type == type : h->type == WIRE_EAGER || h->type == WIRE_RTS;
        if (e->from == from && h->seq == seq && h->slice == slice && h->round == round && type_fits && !e->claimed)
            return e;
    }
    return NULL;
}

void early_remove(struct early_list *list, struct early *e)
{
    struct early **at = &list->head;
    while (*at && *at != e)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = e->next;
    if (!*at)
        list->tail = at;
    e->next = NULL;
}

void early_free(struct mesh *m, struct early *e)
{
    int32_t from = e->from;
    if (from >= 0) {
        struct link *l = &m->links[from];
        l->early_count--;
        if (l->in.type && l->sink.kind == SINK_EARLY && l->sink.early == e) {
            /* The rest of its payload is still coming. */
            l->sink.kind = SINK_DISCARD;
            l->sink.early = NULL;
        } else if (e->header.type == WIRE_EAGER) {
            link_consumed(l, payload_bytes(&e->header));
        }
    }
    if (e->data != e->inline_data)
        free(e->data);
    e->next = m->early_pool;
    m->early_pool = e;
}

void early_list_clear(struct mesh *m, struct early_list *list)
{
    while (list->head) {
        struct early *e = list->head;
        early_remove(list, e);
        early_free(m, e);
    }
}

void early_completed(struct mesh *m, struct link *l, struct early *e)
{
    (void)l;
    e->complete = 1;
    struct tcp_op *op = e->claimed;
    if (!op)
        return;
    /* The receive was posted while the payload was coming; the list it stands in is that of the op's kind. */
    struct tcp_group *g = op->group;
    e->claimed = NULL;
    if (op->op.kind == COMM_OP_RECV) {
        size_t bytes = (size_t)e->header.bytes;
        if (bytes)
            memcpy(op->op.recv.data, e->data, bytes < op->bytes ? bytes : op->bytes);
        early_remove(&g->early_p2p, e);
        early_free(m, e);
        p2p_received(op, bytes);
    } else {
        engine_take_early(op, e->slot, e->step, e);
        uint32_t slot = e->slot, step = e->step;
        early_remove(&g->early, e);
        early_free(m, e);
        engine_received(op, slot, step);
    }
}
