/* Which rank is missing? Three occasions to ask the other ranks what they are doing in a group:
 *
 *   - an operation's time is over: every rank is asked, and the group ends with a text that says which ranks have not
 *     come, what they are doing instead, and which rank waits for which. The first rank that has its answers tells the
 *     others; of several ranks that are in the operation the lowest goes first, so that all of them get the same text;
 *   - a collective is under way for long: the rank that it waits for is asked whether it is in the same one, and so is
 *     a witness, which other ranks ask as well. By this two ranks that disagree notice it, though they only wait for
 *     each other, such as two different roots of a broadcast, or each for another rank that has not come;
 *   - so is a send or receive: its peer may have closed the group, which a rank says only when asked;
 *   - the group may have ended there without our having been told: then the answer is the reason. */
#include "desync.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "engine.h"
#include "exec_group.h"
#include "groups.h"
#include "p2p.h"
#include "queue.h"
#include "say.h"
#include "text.h"
#include "witness.h"

/* A process answers in microseconds, but on a loaded machine it may have to wait for a core. How long the others may
 * take (the parameter answer_ms) is therefore cut into steps, and a step during which this rank itself was kept from
 * running counts as one, however long it took. All steps together stay below the half second after the limit that
 * comm.h promises. */
enum {
    ANSWER_STEPS = 4,
    DEFER_STEPS = 3, /* so many of the same length may a lower rank take to speak first */
};

static const uint16_t IN_TROUBLE = FRAME_ANSWER_IN_IT | FRAME_ANSWER_BEHIND | FRAME_ANSWER_ENTERED;

enum {
    PROBE_FIRST_TICKS = 2, /* seconds under way until the first question */
    PROBE_TICKS = 4,       /* seconds between questions */
    PROBE_BLOCK = 32,      /* ranks that have a witness in common */
};

/* The collective that holds up `op`: itself, or the one that runs while it waits for its turn. NULL: it is
 * point-to-point. */
static const struct exec_op *culprit(const struct exec_group *g, const struct exec_op *op)
{
    return op_is_p2p(op) ? NULL : g->head;
}

/* All but the root, which QUERY and ANSWER have in different places. */
static void put_call(struct frame *h, const struct call *call)
{
    h->flags |= FRAME_ANSWER_KNOWN;
    h->kind = call->kind;
    h->dtype = call->dtype;
    h->redop = call->redop;
    h->count = call->count;
    h->signature = call->signature;
}

static void query(struct exec_group *g, int32_t rank, uint64_t seq)
{
    struct port *p = group_port(g, rank);
    struct frame h = { .type = FRAME_QUERY, .group = g->id, .seq = seq };
    const struct call *call = queue_call(g, seq);
    if (call) {
        put_call(&h, call);
        h.root = call->root;
    }
    port_want(p);
    p->ops->send(p, &h, NULL, 0, NULL);
}

/* Wait for so many steps. */
static void be_patient(struct exec_group *g, int64_t now_ns, int steps)
{
    g->steps_left = steps - 1;
    g->step_ends_ns = now_ns + g->answer_ms * 1000000 / ANSWER_STEPS;
}

/* There is nothing to wait for any more. */
static void stop_waiting(struct exec_group *g)
{
    g->steps_left = 0;
    g->step_ends_ns = 0;
}

static void ask_all(struct exec_group *g, struct exec_op *op, int64_t now_ns)
{
    const struct exec_op *collective = culprit(g, op);
    g->asks_for = op;
    g->defers = 0;
    be_patient(g, now_ns, ANSWER_STEPS);
    if (g->size == 1)
        stop_waiting(g);
    memset(g->answers, 0, (size_t)g->size * sizeof *g->answers);
    for (int32_t r = 0; r < g->size; r++)
        if (r != g->rank)
            query(g, r, collective ? collective->op.seq : 0);
}

/* ---- Answering ---- */

static const struct exec_op *users_own(const struct exec_op *list)
{
    while (list && list->op.tag < COMM_ANY_TAG)
        list = list->next;
    return list;
}

/* Of the rank that the collective waits for: is there trouble with its connection? The rank that asks may reach both,
 * and would name neither. */
static int say_what_holds_up(const struct exec_group *g, char *text, size_t capacity)
{
    int32_t rank = g->head ? engine_awaits(g->head) : -1;
    char trouble[FRAME_ANSWER_TEXT_MAX] = "";
    if (rank < 0 || rank == g->rank)
        return 0;
    const struct port *p = group_port(g, rank);
    p->ops->describe_trouble(p, trouble, sizeof trouble);
    if (*trouble)
        text_add(text, capacity, ", and %s %s: %.120s", p->state == PORT_UP ? "waits for" : "cannot reach",
                 text_rank(g, rank), trouble);
    return *trouble != '\0';
}

/* The first receive that is not done, or else the first send. */
static int say_message(const struct exec_group *g, const char *before, char *text, size_t capacity)
{
    const struct exec_op *recv = users_own(g->recvs.head), *op = recv ? recv : users_own(g->sends.head);
    char tag[TEXT_TAG_BYTES];
    if (!op)
        return 0;
    text_add(text, capacity, "%s%s %s with %s", before, recv ? "waits for a message from" : "sends a message to",
             op->op.root == COMM_ANY_SOURCE ? "any rank" : text_rank(g, op->op.root), text_tag(op->op.tag, tag));
    if (recv && !recv->matched)
        p2p_say_unexpected(recv, text, capacity);
    return 1;
}

/* What this rank does in the group: a text that follows "rank 3". `for_message`: a rank asks that waits for a message
 * and not for a collective. */
static void say_what_we_do(const struct exec_group *g, int for_message, char *text, size_t capacity)
{
    const struct call *now = queue_call(g, g->ended_seq + 1); /* also one that is begun, and not the engine's yet */
    const char *elsewhere = "; it is in";
    *text = '\0';
    if (now) {
        text_add(text, capacity, "is in %s #%llu", exec_host->op_name(now->kind), (unsigned long long)now->seq);
    } else if (for_message && !say_message(g, "", text, capacity)) {
        text_add(text, capacity, "is in no operation of this group");
        elsewhere = ", but in";
    } else if (!for_message && g->ended_seq == 0) {
        text_add(text, capacity, "has called no collective yet");
    } else if (!for_message) {
        text_add(text, capacity, "has finished %s #%llu and called no collective since",
                 exec_host->op_name(queue_call(g, g->ended_seq)->kind), (unsigned long long)g->ended_seq);
    }
    if (now || !for_message)
        say_message(g, ", and ", text, capacity);
    for (const struct exec_group *other = g->domain->groups; other && !now; other = other->next)
        if (other != g && other->head) {
            text_add(text, capacity, "%s %s #%llu of group '%.40s'", elsewhere,
                     exec_host->op_name(other->head->op.kind), (unsigned long long)other->head->op.seq, other->name);
            return;
        }
}

static void tell_collective(struct exec_group *g, uint64_t seq, struct frame *answer)
{
    const struct call *call = queue_call(g, seq);
    if (!call)
        return;
    put_call(answer, call);
    answer->root_known = call->root;
}

static void answer_for_closed(struct port *p, const struct frame *h, struct frame *answer)
{
    const struct past_group *closed = group_closed(domain_of(p), h->group);
    char unknown[FRAME_ANSWER_TEXT_MAX];
    snprintf(unknown, sizeof unknown, "has not opened this group with backend '%.40s'", domain_of(p)->backend);
    if (closed) {
        answer->flags = FRAME_ANSWER_CLOSED;
        if (closed->seq >= h->seq)
            answer->flags |= FRAME_ANSWER_ENTERED;
    }
    p->ops->send_text(p, answer, closed ? "has closed this group" : unknown, 1);
}

void desync_query(struct exec_group *g, struct port *p, const struct frame *h)
{
    struct frame answer = { .type = FRAME_ANSWER, .group = h->group, .seq = h->seq, .waits_for = -1 };
    char text[FRAME_ANSWER_TEXT_MAX];
    if (group_tell_why(p, g, h->group))
        return;
    int is_theirs = h->flags & FRAME_ANSWER_KNOWN && (!g || group_rank_of(g, p) >= 0);
    if (is_theirs && !witness_agrees(g, p, h))
        return;
    if (!g) {
        answer_for_closed(p, h, &answer);
        return;
    }
    const struct call *now = queue_call(g, g->ended_seq + 1);
    if (g->entered_seq >= h->seq || (now && now->seq >= h->seq))
        answer.flags |= FRAME_ANSWER_ENTERED;
    if (g->head && (g->head->op.seq == h->seq || h->seq == 0)) {
        answer.flags |= FRAME_ANSWER_IN_IT;
        answer.waits_for = engine_awaits(g->head);
    } else if (g->head && g->head->op.seq < h->seq) {
        answer.flags |= FRAME_ANSWER_BEHIND;
    }
    tell_collective(g, h->seq, &answer);
    say_what_we_do(g, h->seq == 0, text, sizeof text);
    if (say_what_holds_up(g, text, sizeof text))
        answer.flags |= FRAME_ANSWER_HELD_UP;
    p->ops->send_text(p, &answer, text, 1);
    if (g->asks_for && group_rank_of(g, p) >= 0 && group_rank_of(g, p) < g->rank)
        g->answers[group_rank_of(g, p)].asks = 1;
}

/* ---- Listening ---- */

static int all_have_answered(const struct exec_group *g)
{
    for (int32_t r = 0; r < g->size; r++)
        if (r != g->rank && !g->answers[r].answered)
            return 0;
    return 1;
}

void desync_answer(struct exec_group *g, struct port *p, const struct frame *h, const char *text)
{
    struct exec_op *head = g->head;
    struct frame theirs = *h;
    theirs.root = h->root_known; /* where other frames have it */
    int same = head && head->op.seq == h->seq;
    if (same && (h->flags & FRAME_ANSWER_KNOWN) && !queue_matches_call(g, p, &theirs, &head->call))
        return;
    if (same && (h->flags & FRAME_ANSWER_CLOSED) && !(h->flags & FRAME_ANSWER_ENTERED) && engine_needs(head, p)) {
        char whole[512];
        snprintf(whole, sizeof whole, "%s has closed group '%s' without calling collective #%llu",
                 text_peer(g, group_rank_of(g, p)), g->name, (unsigned long long)h->seq);
        group_fail(g, COMM_ERR_PEER_LOST, whole);
        return;
    }
    if ((h->flags & FRAME_ANSWER_CLOSED) && p2p_needs(g, p)) {
        char whole[512];
        snprintf(whole, sizeof whole, "%s has closed group '%s' before %s was done with it",
                 text_peer(g, group_rank_of(g, p)), g->name, text_rank(g, g->rank));
        group_fail(g, COMM_ERR_PEER_LOST, whole);
        return;
    }
    if (!g->asks_for)
        return;
    struct answer *a = &g->answers[group_rank_of(g, p)];
    a->answered = 1;
    a->flags = h->flags;
    a->waits_for = h->waits_for;
    snprintf(a->text, sizeof a->text, "%s", text);
    utf8_clean_string(a->text); /* it may have been cut within a character */
    if (!all_have_answered(g) || g->defers)
        return;
    stop_waiting(g);
    domain_due(g->domain, 0);
}

/* ---- The verdict ---- */

/* Why a rank has not answered: a text that follows its name. */
static void say_why_silent(const struct exec_group *g, int32_t rank, char *text, size_t capacity)
{
    const struct port *p = group_port(g, rank);
    char trouble[256];
    p->ops->describe_trouble(p, trouble, sizeof trouble);
    if (p->state == PORT_LEFT)
        snprintf(text, capacity, "has closed its world");
    else if (p->state == PORT_LOST && p->lost_text) /* before it was heard, and no operation needs it in particular */
        snprintf(text, capacity, "%s", p->lost_text);
    else if (p->state == PORT_UP)
        snprintf(text, capacity, "has not answered within %lld ms: %.200s", (long long)g->answer_ms,
                 *trouble ? trouble : "it is stopped, or gets no time on a core");
    else if (*trouble)
        snprintf(text, capacity, "cannot be reached by %s: %.200s", text_peer(g, g->rank), trouble);
    else
        snprintf(text, capacity, "has not connected yet");
}

struct verdict {
    char missing[560], waits[400];
    int named, unnamed;
};

static void name_missing(struct verdict *v, struct exec_group *g, int32_t rank, const char *what)
{
    const char *who = text_peer(g, rank);
    if (strlen(v->missing) + strlen(who) + strlen(what) + 12 >= sizeof v->missing) {
        v->unnamed++;
        return;
    }
    text_add(v->missing, sizeof v->missing, "%s%s %s", *v->missing ? "; " : "", who, what);
    v->named++;
}

static void name_waiting(struct verdict *v, struct exec_group *g, int32_t rank, int32_t awaited)
{
    size_t used = strlen(v->waits), kept = rank == g->rank ? 0 : 100; /* room for ourselves */
    if (used + kept + 100 < sizeof v->waits)
        text_add(v->waits, sizeof v->waits, "%s %s waits for %s", used ? "," : ";", text_rank(g, rank),
                 text_rank(g, awaited));
}

/* Whom does this rank wait for in the collective, by its answer? -1: for none, or that is not known. */
static int32_t awaited_by(const struct exec_group *g, int32_t rank)
{
    const struct answer *a = &g->answers[rank];
    int is_known = a->answered && (a->flags & FRAME_ANSWER_IN_IT) && a->waits_for < g->size;
    return is_known ? a->waits_for : -1;
}

/* It is named as such. That others do not reach it either need not be told by each of them. */
static int is_silent(const struct exec_group *g, int32_t rank)
{
    return rank >= 0 && rank != g->rank && !g->answers[rank].answered;
}

static void name_silent(struct verdict *v, struct exec_group *g, int32_t rank)
{
    char why[400];
    say_why_silent(g, rank, why, sizeof why);
    name_missing(v, g, rank, why);
}

static void judge_rank(struct verdict *v, struct exec_group *g, int32_t rank)
{
    const struct answer *a = &g->answers[rank];
    if (!a->answered)
        name_silent(v, g, rank);
    else if (!(a->flags & FRAME_ANSWER_ENTERED) || (a->flags & FRAME_ANSWER_BEHIND) ||
             ((a->flags & FRAME_ANSWER_HELD_UP) && !is_silent(g, awaited_by(g, rank))))
        name_missing(v, g, rank, a->text);
    else if (awaited_by(g, rank) >= 0)
        name_waiting(v, g, rank, awaited_by(g, rank));
}

static void judge_collective(struct verdict *v, struct exec_group *g, const struct exec_op *collective)
{
    for (int32_t r = 0; r < g->size; r++)
        if (r != g->rank)
            judge_rank(v, g, r);
        else if (engine_awaits(collective) >= 0)
            name_waiting(v, g, r, engine_awaits(collective));
}

/* The peer, whom that one waits for in a collective, and so on up to the rank that is missing there. */
static void judge_message(struct verdict *v, struct exec_group *g, const struct exec_op *op)
{
    int32_t rank = op->matched ? group_rank_of(g, op->message.port) : op->op.root, awaited;
    for (int32_t r = 0; r < g->size && rank == COMM_ANY_SOURCE; r++)
        if (is_silent(g, r))
            name_silent(v, g, r);
    if (rank >= 0 && rank != g->rank && g->answers[rank].answered) {
        char what[FRAME_ANSWER_TEXT_MAX + 40];
        snprintf(what, sizeof what, "%s %s",
                 op->op.kind == COMM_OP_SEND ? "has not received it; it"
                 : op->matched               ? "has not sent all of it; it"
                                             : "has not sent it; it",
                 g->answers[rank].text);
        name_missing(v, g, rank, what);
    }
    for (int32_t named = 0; rank >= 0 && rank != g->rank && named < g->size; named++, rank = awaited) {
        if (is_silent(g, rank))
            name_silent(v, g, rank);
        awaited = awaited_by(g, rank);
        if (awaited >= 0)
            name_waiting(v, g, rank, awaited);
    }
}

static void say_why_no_message(const struct exec_group *g, const struct exec_op *op, char *text, size_t capacity)
{
    if (op->op.root == g->rank)
        text_add(text, capacity, ": its peer is %s itself, which has not called the matching %s",
                 text_rank(g, g->rank), op->op.kind == COMM_OP_RECV ? "send" : "receive");
    else
        text_add(text, capacity, ": no rank has sent a message that fits");
}

/* The ranks in their order: two that speak at the same time say the same. */
static void verdict(struct exec_group *g)
{
    struct exec_op *op = g->asks_for;
    const struct exec_op *collective = culprit(g, op);
    struct verdict v = { .missing = "" };
    char what[OP_TEXT_BYTES], text[FRAME_TEXT_MAX] = "";
    queue_describe(g, &op->op, what, sizeof what);
    if (collective)
        judge_collective(&v, g, collective);
    else
        judge_message(&v, g, op);
    text_add(text, sizeof text, "%s: timed out: its time limit of %lld ms has passed", what,
             (long long)(op->op.timeout_ns / 1000000));
    if (collective && collective != op)
        text_add(text, sizeof text, " before its turn, after %s #%llu", exec_host->op_name(collective->op.kind),
            (unsigned long long)collective->op.seq);
    if (*v.missing)
        text_add(text, sizeof text, ": %s", v.missing);
    else if (!collective)
        say_why_no_message(g, op, text, sizeof text);
    else
        text_add(text, sizeof text, ": all ranks have called it");
    if (v.unnamed)
        text_add(text, sizeof text, "; and %d more", v.unnamed);
    text_add(text, sizeof text, "%s", v.waits);
    if (!collective && op->op.kind == COMM_OP_RECV)
        p2p_say_unexpected(op, text, sizeof text);
    group_fail(g, COMM_ERR_DEADLINE, text);
}

/* A lower rank that waits for the same should report it, so that all ranks get the same text: it asks, too, or it is in
 * this collective, or in one before or after it, for a rank that is stopped may have given some of the others what they
 * needed. */
static int lower_rank_may_speak(const struct exec_group *g)
{
    for (int32_t r = 0; r < g->rank; r++)
        if (g->answers[r].asks || (!op_is_p2p(g->asks_for) && (g->answers[r].flags & IN_TROUBLE)))
            return 1;
    return 0;
}

/* ---- Time ---- */

static struct exec_op *expired(struct exec_op *list, int64_t now_ns)
{
    while (list && list->deadline_ns > now_ns)
        list = list->next;
    return list;
}

static struct exec_op *expired_of(struct exec_group *g, int64_t now_ns)
{
    struct exec_op *op = expired(g->head, now_ns);
    if (!op)
        op = expired(g->recvs.head, now_ns);
    return op ? op : expired(g->sends.head, now_ns);
}

static int is_time_to_ask(const struct exec_op *op)
{
    uint32_t ticks = op->group->domain->ticks - op->begun_tick;
    return ticks >= PROBE_FIRST_TICKS && (ticks - PROBE_FIRST_TICKS) % PROBE_TICKS == 0;
}

/* The peers of the user's sends and receives, of each run of them for one peer once. */
static void probe_peers(struct exec_group *g, const struct exec_op *list)
{
    int32_t asked = g->rank;
    for (const struct exec_op *op = list; op; op = op->next)
        if (op->op.root >= 0 && op->op.root != asked && op->op.root != g->rank && op->op.tag >= COMM_ANY_TAG &&
            is_time_to_ask(op)) {
            asked = op->op.root;
            query(g, asked, 0);
        }
}

/* Two ranks that disagree may each wait for another one that has not come. So each also asks the first rank of its
 * block, and the first ranks of the blocks ask rank 0. A rank that is asked has heard of both calls, whether it has
 * come itself or not (witness.c). In a large group no rank is asked by all others. */
static void query_witness(struct exec_group *g, int32_t asked, uint64_t seq)
{
    int32_t witness = g->rank % PROBE_BLOCK ? g->rank - g->rank % PROBE_BLOCK : 0;
    if (witness != asked && witness != g->rank)
        query(g, witness, seq);
}

static void probe(struct exec_group *g)
{
    const struct exec_op *op = g->head;
    if (g->asks_for)
        return;
    int32_t rank = op && is_time_to_ask(op) ? engine_awaits(op) : -1;
    if (rank >= 0 && rank != g->rank) {
        query(g, rank, op->op.seq);
        query_witness(g, rank, op->op.seq);
    }
    probe_peers(g, g->recvs.head);
    probe_peers(g, g->sends.head);
}

void desync_tick(struct domain *d)
{
    d->ticks++;
    for (struct exec_group *g = d->groups; g; g = g->next)
        if (g->status == COMM_OK)
            probe(g);
}

/* The time for answers is over, or all have come. */
static void conclude(struct exec_group *g, int64_t now_ns)
{
    group_hear(g); /* what has come while this rank did not run counts */
    if (!g->asks_for)
        return;
    if (!g->defers && lower_rank_may_speak(g)) {
        g->defers = 1;
        be_patient(g, now_ns, DEFER_STEPS);
    } else {
        verdict(g);
    }
}

void desync_check(struct domain *d, int64_t now_ns)
{
    for (struct exec_group *g = d->groups; g; g = g->next) {
        struct exec_op *op = g->asks_for || g->status != COMM_OK ? NULL : expired_of(g, now_ns);
        if (op)
            ask_all(g, op, now_ns);
        if (!g->asks_for || g->step_ends_ns > now_ns)
            continue;
        if (g->steps_left)
            be_patient(g, now_ns, g->steps_left);
        else
            conclude(g, now_ns);
    }
}

static int64_t earliest(const struct exec_op *list, int64_t due)
{
    for (; list; list = list->next)
        if (list->deadline_ns < due)
            due = list->deadline_ns;
    return due;
}

int64_t desync_due_ns(const struct domain *d)
{
    int64_t due = INT64_MAX;
    for (const struct exec_group *g = d->groups; g; g = g->next) {
        if (g->status != COMM_OK)
            continue;
        if (g->asks_for) {
            due = g->step_ends_ns < due ? g->step_ends_ns : due;
            continue;
        }
        due = earliest(g->head, due);
        due = earliest(g->recvs.head, due);
        due = earliest(g->sends.head, due);
    }
    return due;
}
