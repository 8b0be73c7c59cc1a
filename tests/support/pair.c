#include "pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/exec/ending.h"
#include "core/exec/groups.h"
#include "core/exec/queue.h"
#include "core/exec/receive.h"
#include "core/exec/say.h"
#include "core/exec/submit.h"
#include "core/registry.h"

struct sent_frame {
    struct sent_frame *next;
    struct frame head;
    const uint8_t *payload;
    uint8_t *owned;          /* the payload, once it is on its way */
    size_t bytes;
    struct message *message; /* NULL: it is on its way */
    int queued;
};

enum { UNTOLD_MAX = 64 };

struct pair_port {
    struct port port; /* first */
    struct sent_frame *out, **tail;
    int is_slow;
    struct message *untold[UNTOLD_MAX]; /* on their way, which the sender does not know yet */
    size_t untold_count;
};

static struct {
    struct domain domain;
    struct pair_port ports[2]; /* by world rank; its own is idle */
    struct exec_group *group;
} ranks[2];

static comm_host host;
static const char *param_algo;
static int64_t param_lanes, param_slice_bytes;
static size_t sent_count[2];

static struct pair_port *of(struct port *p)
{
    return (struct pair_port *)p;
}

static struct pair_port *out_of(int32_t rank)
{
    return &ranks[rank].ports[1 - rank];
}

/* ---- Ports ---- */

static void frame_free(struct sent_frame *f)
{
    free(f->owned);
    free(f);
}

static void start(struct sent_frame *f)
{
    f->owned = malloc(f->bytes + 1);
    if (f->bytes)
        memcpy(f->owned, f->payload, f->bytes);
    f->payload = f->owned;
    f->queued = 0;
}

static int port_send(struct port *p, struct frame *h, const void *payload, size_t bytes, struct message *m)
{
    struct pair_port *pp = of(p);
    if (port_is_gone(p)) {
        p->table->lost_pending = 1;
        return 0;
    }
    sent_count[p->table->in_round]++;
    h->credit = port_take_owed(p);
    struct sent_frame *f = calloc(1, sizeof *f);
    *f = (struct sent_frame){ .head = *h, .payload = payload, .bytes = bytes, .message = m, .queued = 1 };
    *pp->tail = f;
    pp->tail = &f->next;
    if (m && pp->is_slow)
        return 0;
    f->message = NULL;
    start(f);
    return 1;
}

static void port_send_text(struct port *p, struct frame *h, const char *text, int is_reply)
{
    (void)is_reply;
    h->bytes = strlen(text);
    port_send(p, h, text, strlen(text), NULL);
}

static void port_give_credit(struct port *p)
{
    struct frame h = { .type = FRAME_CREDIT };
    port_send(p, &h, NULL, 0, NULL);
}

static int port_read(struct port *p)
{
    return pair_deliver(p->peer) != 0;
}

static void port_forget(struct port *p, const void *owner)
{
    struct sent_frame **at = &of(p)->out;
    if (p->in.type && p->sink.message && p->sink.message->owner == owner) {
        p->sink.kind = SINK_DISCARD;
        p->sink.message = NULL;
    }
    while (*at) {
        struct sent_frame *f = *at;
        if (!f->queued || f->message->owner != owner) {
            at = &f->next;
            continue;
        }
        port_untake(p, &f->head);
        *at = f->next;
        frame_free(f);
    }
    of(p)->tail = at;
    of(p)->untold_count = 0;
}

static void port_sweep(struct port *p)
{
    if (port_is_gone(p))
        p->in.type = 0;
}

static void port_describe_trouble(const struct port *p, char *text, size_t capacity)
{
    snprintf(text, capacity, "%s", p->state == PORT_OPENING ? "no answer to connecting" : "");
}

static const struct port_ops operations = {
    .send = port_send,
    .send_text = port_send_text,
    .give_credit = port_give_credit,
    .read = port_read,
    .forget = port_forget,
    .sweep = port_sweep,
    .describe_trouble = port_describe_trouble,
};

/* ---- What moves ---- */

void pair_slow(int32_t rank, int is_slow)
{
    out_of(rank)->is_slow = is_slow;
}

void pair_move(int32_t rank)
{
    struct pair_port *pp = out_of(rank);
    for (struct sent_frame *f = pp->out; f; f = f->next) {
        if (!f->queued)
            continue;
        start(f);
        if (pp->untold_count == UNTOLD_MAX)
            abort();
        pp->untold[pp->untold_count++] = f->message;
    }
}

void pair_flush(int32_t rank)
{
    struct pair_port *pp = out_of(rank);
    pair_move(rank);
    size_t count = pp->untold_count;
    pp->untold_count = 0;
    for (size_t i = 0; i < count; i++)
        pp->port.table->events->sent(pp->untold[i]);
}

const struct frame *pair_next(int32_t rank)
{
    const struct sent_frame *f = out_of(rank)->out;
    return f && !f->queued ? &f->head : NULL;
}

void pair_drop(int32_t rank)
{
    struct pair_port *pp = out_of(rank);
    struct sent_frame *f = pp->out;
    pp->out = f->next;
    if (!pp->out)
        pp->tail = &pp->out;
    frame_free(f);
}

int pair_deliver_head(int32_t rank)
{
    const struct frame *next = pair_next(rank);
    if (!next)
        return 0;
    struct frame h = *next;
    port_begins(pair_port(1 - rank), &h);
    return h.type;
}

void pair_deliver_rest(int32_t rank)
{
    struct port *p = pair_port(1 - rank);
    const uint8_t *at = out_of(rank)->out->payload;
    int comes = p->in.type != 0; /* else it had no payload */
    while (comes && sink_left(&p->sink)) {
        size_t n = sink_takes(&p->sink, sink_left(&p->sink));
        sink_feed(&p->sink, p->table->bounce, at, n);
        at += n;
    }
    if (comes)
        port_complete(p);
    pair_drop(rank);
}

int pair_deliver(int32_t rank)
{
    int type = pair_deliver_head(rank);
    if (type)
        pair_deliver_rest(rank);
    return type;
}

void pair_deliver_all(void)
{
    while (pair_deliver(0) || pair_deliver(1))
        ;
}

size_t pair_sent(int in_round)
{
    return sent_count[in_round];
}

/* ---- The ranks ---- */

static comm_status host_fail(comm_status status, const char *text)
{
    (void)text;
    return status;
}

static int32_t host_log_wanted(int32_t level)
{
    (void)level;
    return 0;
}

static void host_group_failed(void *token, comm_status status, const char *error)
{
    (void)token;
    (void)status;
    (void)error;
}

static int32_t lost_rank;

static void host_rank_lost(void *token, int32_t world_rank, const char *text)
{
    (void)token;
    (void)text;
    lost_rank = world_rank;
}

int32_t pair_lost(void)
{
    return lost_rank;
}

static int32_t host_rank_is_lost(void *token, int32_t world_rank)
{
    (void)token;
    (void)world_rank;
    return 0;
}

static void host_describe(void *token, const comm_op *op, char *text, size_t capacity)
{
    (void)token;
    snprintf(text, capacity, "op #%llu", (unsigned long long)op->seq);
}

static const char *host_param_text(const void *options, const char *backend, const char *name)
{
    (void)options;
    (void)backend;
    return strcmp(name, "algo") == 0 ? param_algo : NULL;
}

static int64_t host_param_int(const void *options, const char *backend, const char *name)
{
    (void)options;
    (void)backend;
    return strcmp(name, "lanes") == 0       ? param_lanes
           : strcmp(name, "answer_ms") == 0 ? PAIR_ANSWER_MS
                                            : param_slice_bytes;
}

static void open_rank(int32_t rank)
{
    static const int32_t world_ranks[] = { 0, 1 };
    struct domain *d = &ranks[rank].domain;
    comm_group_info info = { .struct_bytes = sizeof info, .rank = rank, .size = 2, .world_ranks = world_ranks, .id = 7,
                             .name = "g" };
    if (!domain_init(d, "tcp", rank, 2, &receive_events))
        abort();
    d->matching.eager_bytes = PAIR_EAGER;
    for (int32_t i = 0; i < 2; i++) {
        port_init(&ranks[rank].ports[i].port, &operations, &d->peers, i);
        ranks[rank].ports[i].tail = &ranks[rank].ports[i].out;
    }
    pair_port(rank)->state = PORT_UP;
    if (group_create(d, &info, &ranks[rank].group) != COMM_OK)
        abort();
    group_enter(ranks[rank].group);
}

void pair_open(const char *algo, int64_t lanes, int64_t slice_bytes)
{
    param_algo = algo;
    param_lanes = lanes;
    param_slice_bytes = slice_bytes;
    host = comm__host; /* the kernels and names are the core's */
    host.fail = host_fail;
    host.log_wanted = host_log_wanted;
    host.group_failed = host_group_failed;
    host.rank_lost = host_rank_lost;
    host.rank_is_lost = host_rank_is_lost;
    host.describe = host_describe;
    host.param_text = host_param_text;
    host.param_int = host_param_int;
    exec_host = &host;
    memset(ranks, 0, sizeof ranks);
    lost_rank = -1;
    sent_count[0] = sent_count[1] = 0;
    open_rank(0);
    open_rank(1);
}

void pair_close_world(int32_t rank)
{
    ranks[rank].domain.world = ranks[rank].group->id;
    group_close(ranks[rank].group);
    ranks[rank].group = NULL;
}

void pair_close(void)
{
    for (int32_t rank = 0; rank < 2; rank++) {
        struct domain *d = &ranks[rank].domain;
        if (ranks[rank].group)
            group_close(ranks[rank].group);
        pair_turn(rank);
        unexpected_list_clear(&d->unexpected);
        while (out_of(rank)->out)
            pair_drop(rank);
        port_finish(pair_port(rank));
        domain_finish(d);
    }
}

struct exec_group *pair_group(int32_t rank)
{
    return ranks[rank].group;
}

struct port *pair_port(int32_t rank)
{
    return &out_of(rank)->port;
}

comm_status pair_submit(int32_t rank, const comm_op *op, struct pair_work *work)
{
    int is_async;
    comm_work *works[] = { (comm_work *)work };
    return submit_ops(ranks[rank].group, &op, works, 1, &is_async);
}

void pair_turn(int32_t rank)
{
    struct completion done;
    turn_end(&ranks[rank].domain);
    while (queue_take_done(&ranks[rank].domain, &done, 1)) {
        struct pair_work *work = (struct pair_work *)done.work;
        work->completed++;
        work->status = done.status;
        snprintf(work->error, sizeof work->error, "%s", done.error ? done.error : "");
        free(done.error);
    }
}

static const char *unrest_of(int32_t rank)
{
    const struct port *p = pair_port(rank), *back = pair_port(1 - rank);
    const struct box *box = &ranks[rank].group->boxes[1 - rank];
    if (out_of(rank)->out)
        return "a frame has not arrived";
    if (p->interest || p->active_index >= 0)
        return "something is awaited";
    if (p->announced || p->held.head)
        return "a send is announced or held";
    if (p->unexpected_count || ranks[rank].domain.matching.count)
        return "an unexpected frame is kept";
    if (box->posted.head || box->unexpected.head || box->cleared.head)
        return "the box is not empty";
    for (size_t i = 0; i < MATCH_ANNOUNCED_BUCKETS; i++)
        if (ranks[rank].domain.matching.announced[i].head)
            return "a send waits for its clearance";
    if (p->in.type)
        return "a frame is coming";
    if (p->credit + back->eager_held != PORT_CREDIT_WINDOW)
        return "credit and what was received are not the window";
    if (back->eager_held != back->credit_owed)
        return "not all that was received would be given back";
    return NULL;
}

const char *pair_unrest(void)
{
    const char *unrest = unrest_of(0);
    return unrest ? unrest : unrest_of(1);
}
