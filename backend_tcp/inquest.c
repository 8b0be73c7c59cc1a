/* When an operation's time is over: ask every member what it is doing, and end the group with a text that says who has not come. The first
 * rank to finish its inquest tells the others, so that all of them have the same words. */
#include <string.h>

#include "tcp.h"

static const int64_t GRACE_NS = 500 * 1000000ll; /* a live process answers within microseconds; this is for slow networks */

static void ask(struct tcp_group *g, struct tcp_op *op, int64_t now_ns)
{
    g->inquest = op;
    g->inquest_end_ns = now_ns + GRACE_NS;
    memset(g->answers, 0, (size_t)g->size * sizeof *g->answers);
    for (int32_t r = 0; r < g->size; r++) {
        if (r == g->rank)
            continue;
        struct link *l = &g->mesh->links[g->world_ranks[r]];
        struct wire_header h = { .type = WIRE_QUERY, .group = g->id, .seq = op->op.seq };
        mesh_want(g->mesh, l->peer);
        link_send(l, &h, NULL, 0, NULL, 0, 0);
    }
}

void inquest_query(struct tcp_group *g, struct link *l, const struct wire_header *h)
{
    struct wire_header answer = { .type = WIRE_ANSWER, .group = h->group, .tag = -1 };
    char text[160] = "has not opened this group";
    if (g) {
        int busy = g->head != NULL;
        answer.seq = g->entered_seq;
        answer.round = (uint16_t)busy;
        answer.tag = busy ? engine_awaits(g->head) : -1;
        if (g->entered_seq == 0)
            snprintf(text, sizeof text, "has called no collective yet");
        else
            snprintf(text, sizeof text, "%s %s #%llu", busy ? "is in" : "has finished",
                     tcp_host->op_name(g->entered.kind), (unsigned long long)g->entered_seq);
    }
    link_send_text(l, &answer, text);
}

void inquest_answer(struct tcp_group *g, struct link *l, const struct wire_header *h, const char *text)
{
    struct answer *a = &g->answers[g->rank_of[l->peer]];
    a->state = 1;
    a->header = *h;
    snprintf(a->text, sizeof a->text, "%s", text);
    if (!g->inquest)
        return;
    for (int32_t r = 0; r < g->size; r++)
        if (r != g->rank && !g->answers[r].state)
            return;
    g->inquest_end_ns = 0; /* All have answered. */
    progress_rearm(g->mesh, 0);
}

static void add(char *text, size_t room, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void add(char *text, size_t room, const char *format, ...)
{
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, room - used, format, arguments);
    va_end(arguments);
}

static void verdict(struct tcp_group *g)
{
    struct tcp_op *op = g->inquest;
    int p2p = op->op.kind == COMM_OP_SEND || op->op.kind == COMM_OP_RECV;
    char what[256], text[WIRE_TEXT_MOST] = "", late[400] = "", waits[300] = "";
    group_describe(g, &op->op, what, sizeof what);
    for (int32_t r = 0; r < g->size; r++) {
        const struct answer *a = &g->answers[r];
        const char *who = mesh_peer_text(g->mesh, g->world_ranks[r]);
        if (r == g->rank)
            continue;
        if (!a->state)
            add(late, sizeof late, "%srank %d (%s does not answer: stopped, or cut off)", *late ? ", " : "", (int)r, who);
        else if (p2p ? r == op->op.root : a->header.seq < op->op.seq)
            add(late, sizeof late, "%srank %d (%s)", *late ? ", " : "", (int)r, a->text);
        else if (a->header.round && a->header.tag >= 0)
            add(waits, sizeof waits, "%srank %d waits for rank %d", *waits ? ", " : "", (int)r, (int)a->header.tag);
    }
    add(text, sizeof text, "%s: its time limit has passed", what);
    if (*late)
        add(text, sizeof text, "; %s: %s", p2p ? "the other side" : "not in it", late);
    else
        add(text, sizeof text, "; all ranks are in it");
    if (!p2p && engine_awaits(op) >= 0)
        add(text, sizeof text, "; rank %d waits for rank %d", (int)g->rank, (int)engine_awaits(op));
    if (*waits)
        add(text, sizeof text, ", %s", waits);
    group_fail(g, COMM_ERR_DEADLINE, text, 1);
}

static struct tcp_op *expired(struct tcp_op *list, int64_t now_ns)
{
    while (list && list->op.deadline_ns > now_ns)
        list = list->next;
    return list;
}

static struct tcp_op *expired_of(struct tcp_group *g, int64_t now_ns)
{
    struct tcp_op *op = expired(g->head, now_ns);
    if (!op)
        op = expired(g->recvs, now_ns);
    return op ? op : expired(g->sends, now_ns);
}

void inquest_check(struct mesh *m, int64_t now_ns)
{
    for (struct tcp_group *g = m->groups; g; g = g->next) {
        if (g->status != COMM_OK)
            continue;
        struct tcp_op *op = g->inquest ? NULL : expired_of(g, now_ns);
        if (op)
            ask(g, op, now_ns);
        if (g->inquest && (g->inquest_end_ns <= now_ns || g->size == 1))
            verdict(g);
    }
}

static int64_t earliest(const struct tcp_op *list, int64_t due)
{
    for (; list; list = list->next)
        if (list->op.deadline_ns < due)
            due = list->op.deadline_ns;
    return due;
}

int64_t inquest_due_ns(const struct mesh *m)
{
    int64_t due = INT64_MAX;
    for (const struct tcp_group *g = m->groups; g; g = g->next) {
        if (g->status != COMM_OK)
            continue;
        if (g->inquest) {
            due = g->inquest_end_ns < due ? g->inquest_end_ns : due;
            continue;
        }
        due = earliest(g->head, due);
        due = earliest(g->recvs, due);
        due = earliest(g->sends, due);
    }
    return due;
}
