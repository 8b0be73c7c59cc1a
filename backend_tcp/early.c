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

struct early_list *early_lists_create(int32_t size)
{
    struct early_list *lists = malloc((size_t)size * sizeof *lists);
    for (int32_t i = 0; lists && i < size; i++)
        early_list_init(&lists[i]);
    return lists;
}

struct early_list *early_list_of(struct tcp_group *g, int32_t from, int32_t kind)
{
    int32_t rank = g->rank_of[from];
    return rank < 0 ? NULL : &(kind == COMM_OP_SEND ? g->early_p2p : g->early)[rank];
}

static size_t payload_bytes(const struct frame *h)
{
    return h->type == FRAME_EAGER ? (size_t)h->bytes : 0;
}

static void list_append(struct early_list *list, struct early *e)
{
    e->next = NULL;
    e->list = list;
    *list->tail = e;
    list->tail = &e->next;
}

static void list_remove(struct early *e)
{
    struct early **at = &e->list->head;
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    if (!*at)
        e->list->tail = at;
}

void early_move(struct early *e, struct early_list *list)
{
    list_remove(e);
    list_append(list, e);
}

struct early *early_add(struct mesh *m, struct early_list *list, int32_t from, const struct frame *h)
{
    struct link *l = &m->links[from];
    if (l->early_count >= TCP_EARLY_MOST)
        return NULL;
    struct early *e = m->early_pool;
    if (e)
        m->early_pool = e->next;
    else if (!(e = malloc(sizeof *e)))
        return NULL;
    e->header = *h;
    e->arrival = m->arrivals++;
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
    list_append(list, e);
    return e;
}

struct early *early_find(struct early_list *list, uint8_t type, uint64_t seq, uint32_t slice, uint16_t round)
{
    for (struct early *e = list->head; e; e = e->next) {
        const struct frame *h = &e->header;
        int type_fits = type ? h->type == type : h->type == FRAME_EAGER || h->type == FRAME_RTS;
        if (h->seq == seq && h->slice == slice && h->round == round && type_fits && e->from >= 0 && !e->claimed)
            return e;
    }
    return NULL;
}

void early_drop(struct mesh *m, struct early *e)
{
    int32_t from = e->from;
    list_remove(e);
    if (from >= 0) {
        struct link *l = &m->links[from];
        l->early_count--;
        if (l->in.type && l->sink.kind == SINK_EARLY && l->sink.early == e) {
            /* The rest of its payload is still coming. */
            l->sink.kind = SINK_DISCARD;
            l->sink.early = NULL;
        } else if (e->header.type == FRAME_EAGER) {
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
    while (list->head)
        early_drop(m, list->head);
}

void early_lists_clear(struct mesh *m, struct early_list *lists, int32_t size)
{
    for (int32_t i = 0; i < size; i++)
        early_list_clear(m, &lists[i]);
}

void early_completed(struct mesh *m, struct link *l, struct early *e)
{
    (void)l;
    e->complete = 1;
    struct tcp_op *op = e->claimed;
    if (!op)
        return;
    /* The receive was posted while the payload was coming. */
    e->claimed = NULL;
    if (op->op.kind == COMM_OP_RECV) {
        size_t bytes = (size_t)e->header.bytes;
        p2p_fill(op, e->data, bytes);
        early_drop(m, e);
        p2p_received(op, bytes);
    } else {
        engine_take_early(op, e->slot, e->step, e);
        uint32_t slot = e->slot, step = e->step;
        early_drop(m, e);
        engine_received(op, slot, step);
    }
}
