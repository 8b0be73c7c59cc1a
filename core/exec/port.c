#include "port.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "say.h"

int port_table_init(struct port_table *t, int32_t rank, int32_t size, const struct port_events *events)
{
    t->rank = rank;
    t->size = size;
    t->events = events;
    t->at = calloc((size_t)size, sizeof *t->at);
    t->active = calloc((size_t)size, sizeof *t->active);
    int failed = posix_memalign((void **)&t->bounce, 4096, SINK_BOUNCE_BYTES);
    return !failed && t->at && t->active;
}

void port_table_finish(struct port_table *t)
{
    free(t->at);
    free(t->active);
    free(t->bounce);
}

void port_init(struct port *p, const struct port_ops *ops, struct port_table *t, int32_t peer)
{
    p->ops = ops;
    p->table = t;
    p->peer = peer;
    t->at[peer] = p;
    p->active_index = -1;
    p->held.tail = &p->held.head;
    p->credit = PORT_CREDIT_WINDOW;
    p->credit_step = PORT_CREDIT_WINDOW / 4;
}

void port_finish(struct port *p)
{
    free(p->lost_text);
}

const char *port_text(const struct port *p)
{
    return say_rank(p->peer, p->peer, p->where);
}

void port_want(struct port *p)
{
    if (p->state == PORT_UP)
        return;
    if (p->state == PORT_IDLE && p->peer != p->table->rank && !p->table->closing)
        p->ops->open(p);
    if (port_is_gone(p))
        p->table->lost_pending = 1;
}

void port_lose(struct port *p, comm_status status, const char *format, ...)
{
    if (p->state == PORT_LOST)
        return;
    p->table->lost_pending = 1;
    if (p->state == PORT_LEFT)
        return;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    p->state = PORT_LOST;
    p->lost_status = status;
    free(p->lost_text);
    p->lost_text = strdup(text);
    exec_log(COMM_LOG_INFO, "rank %d: %s %s", (int)p->table->rank, port_text(p), text);
}

void port_left(struct port *p)
{
    p->state = PORT_LEFT;
    p->table->lost_pending = 1;
}

void port_interest(struct port *p, int change)
{
    struct port_table *t = p->table;
    assert(change > 0 || p->interest > 0);
    p->interest = (uint32_t)((int)p->interest + change);
    if (p->interest && p->active_index < 0) {
        p->active_index = t->active_count;
        t->active[t->active_count++] = p;
    } else if (!p->interest && p->active_index >= 0) {
        struct port *last = t->active[--t->active_count];
        t->active[p->active_index] = last;
        last->active_index = p->active_index;
        p->active_index = -1;
    }
}

void port_consumed(struct port *p, size_t payload_bytes)
{
    p->credit_owed += (uint32_t)(payload_bytes + PORT_FRAME_COST);
    assert(p->credit_owed <= p->eager_held);
    if (p->credit_owed >= p->credit_step)
        p->ops->give_credit(p);
}

/* Take in what the header says of credit; 0 if that cannot be true. */
static int take_credit(struct port *p, const struct frame *h)
{
    p->credit += h->credit;
    if (h->type == FRAME_EAGER)
        p->eager_held += (int64_t)h->bytes + PORT_FRAME_COST;
    if (p->credit > PORT_CREDIT_WINDOW) {
        port_lose(p, COMM_ERR_PROTOCOL, "gave back more credit than it had received");
        return 0;
    }
    if (p->eager_held > PORT_CREDIT_WINDOW) {
        port_lose(p, COMM_ERR_PROTOCOL, "sent more than it had credit for");
        return 0;
    }
    return 1;
}

int port_settle(struct port *p)
{
    const struct frame nothing = { 0 };
    if (!take_credit(p, &nothing))
        return 0;
    p->ops->give_credit(p);
    return 1;
}

void port_begins(struct port *p, const struct frame *h)
{
    p->heard = 1;
    if (!take_credit(p, h))
        return;
    sink_reset(&p->sink);
    switch (h->type) {
    case FRAME_EAGER:
    case FRAME_DATA:
        p->in = *h;
        p->table->events->begins(p, h);
        break;
    case FRAME_FAIL:
    case FRAME_ANSWER:
        p->in = *h;
        p->sink.kind = SINK_TEXT;
        p->sink.dst = p->sink.text;
        break;
    default:
        p->table->events->frame(p, h, NULL);
        return;
    }
    p->sink.total = (size_t)h->bytes;
    if (h->bytes == 0 && p->state == PORT_UP)
        port_complete(p);
}

void port_complete(struct port *p)
{
    struct frame h = p->in;
    p->in.type = 0;
    if (p->sink.kind != SINK_TEXT) {
        p->table->events->complete(p, &h);
        return;
    }
    p->sink.kind = SINK_NONE;
    p->sink.text[utf8_clean((char *)p->sink.text, p->sink.total)] = '\0'; /* It goes to terminals and logs. */
    p->table->events->frame(p, &h, (const char *)p->sink.text);
}

void port_untake(struct port *p, const struct frame *h)
{
    if (h->type == FRAME_EAGER)
        p->credit += (int64_t)(h->bytes + PORT_FRAME_COST);
    p->credit_owed += h->credit;
    p->eager_held += h->credit;
    assert(p->credit <= PORT_CREDIT_WINDOW);
}
