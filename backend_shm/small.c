/* Small collectives at once. A plan of one round is kept: what goes to which rank and comes from which is looked up
 * once per shape of op. A call then writes its records, looks until those of the others are there, and takes them out
 * of the rings straight to where they belong, or reduces them there. Longer messages that are only copied are offered:
 * a call reads those of the others where they lie, and waits until its own have been read.
 *
 * The records are those that the engine sends and expects for the same op. So ranks that call it asynchronously, or
 * take longer, do the same op together with ranks that run it here. Of what goes through the rings nothing is taken out
 * before all is there, and what is lent (lend.h) is claimed; what is offered is read in the plan's order. An op that
 * takes too long is handed to the engine, which finds all as it would have, but for what is sent and received already
 * (struct begun). */
#include "small.h"

#include <stdlib.h>
#include <string.h>

#include "base/likely.h"
#include "duplex.h"
#include "events.h"
#include "fabric.h"
#include "multicast.h"
#include "operands.h"
#include "prepare.h"
#include "queue.h"
#include "room.h"
#include "rounds.h"
#include "say.h"
#include "split.h"

/* Between two ranks that share a cache a third of the shortest ops' time is instructions: what they need is in few
 * functions, and what they do not need is in others. */
#define INLINED __attribute__((always_inline)) static inline
#define APART __attribute__((noinline)) static

/* ---- Shapes ---- */

/* The signature is that of all that is the same on all ranks. */
INLINED int is_of(const struct small_shape *s, const comm_op *op)
{
    return s->known && s->signature == op->signature && s->flags == op->flags &&
           s->send_count == op->send.count && s->recv_count == op->recv.count;
}

static struct small_message message(const struct exec_op *op, int32_t rank, const uint8_t *base, const uint8_t *at)
{
    struct port *p = group_port(op->group, rank);
    return (struct small_message){ (struct duplex *)p, rank, at ? (size_t)(at - base) : 0 };
}

/* One step of the plan; 0 if this file cannot do it. */
static int learn_step(struct small_shape *s, struct exec_op *op, const struct plan_step *step)
{
    const uint8_t *send = op->in.data, *recv = op->op.recv.data, *region;
    struct slot *slot = &op->slots[0];
    size_t count, unused;
    switch (step->kind) {
    case PLAN_STEP_SEND:
        region = operand_region(op, slot, &step->source, &count);
        if (step->source.buffer != PLAN_SEND || s->send_messages == SMALL_PEERS_MAX)
            return 0;
        s->sends[s->send_messages++] = message(op, step->peer, send, region);
        break;
    case PLAN_STEP_RECV:
        region = operand_region(op, slot, &step->dst, &count);
        if ((count && step->dst.buffer == PLAN_SEND) || s->recv_messages == SMALL_PEERS_MAX)
            return 0;
        if (step->dst.buffer == PLAN_SCRATCH && step->dst.slot != step->peer * step->dst.count)
            return 0; /* not where PLAN_STEP_REDUCE_RANKS looks for it */
        if (step->dst.buffer == PLAN_SCRATCH)
            region = recv;
        s->recvs[s->recv_messages++] = message(op, step->peer, recv, region);
        break;
    case PLAN_STEP_COPY:
        s->copy_to = (size_t)(operand_region(op, slot, &step->dst, &count) - recv);
        s->copy_from = (size_t)(operand_region(op, slot, &step->source, &unused) - send);
        s->copy_bytes = count * op->element_bytes;
        return step->dst.buffer == PLAN_RECV && step->source.buffer == PLAN_SEND;
    case PLAN_STEP_REDUCE_RANKS:
        s->reduce_to = (size_t)(operand_region(op, slot, &step->dst, &count) - recv);
        s->reduce_from = (size_t)(operand_region(op, slot, &step->source, &unused) - send);
        s->reduce_count = count;
        return step->dst.buffer == PLAN_RECV && step->source.buffer == PLAN_SEND && step->other.slot == 0;
    default:
        return 0;
    }
    size_t bytes = count * op->element_bytes;
    int same = s->send_messages + s->recv_messages == 1 || s->bytes == bytes;
    s->bytes = bytes;
    return same && step->round == 0;
}

/* As the engine does. 0: there is no memory, nothing to do, or more than one slice. */
static int prepare_one_slice(struct exec_op *op)
{
    if (prepare_op(op) || op->slice_count > 1 || (op->total == 0 && op->op.kind != COMM_OP_BARRIER))
        return 0;
    op->slots[0] = (struct slot){ .op = op, .end = op->total, .scratch = op->slots[0].scratch };
    op->slots[0].stride = operand_stride(op, op->total);
    return 1;
}

/* What the engine would do. */
static int learn_plan(struct small_shape *s, struct exec_op *op)
{
    int fits = 1, sends = 0, receives = 0;
    for (size_t i = 0; i < op->plan->step_count; i++) {
        int kind = op->plan->steps[i].kind;
        sends |= kind == PLAN_STEP_SEND;
        receives |= kind == PLAN_STEP_RECV || kind == PLAN_STEP_RECV_REDUCE;
        fits = fits && learn_step(s, op, &op->plan->steps[i]);
    }
    s->only_sends = sends && !receives;
    if (!fits)
        return 0;
    size_t eager_bytes = (size_t)match_eager_bytes(&op->group->domain->matching, op->op.kind);
    size_t longest = s->send_messages + s->recv_messages > 1 ? LEND_OFFERS_BYTES : LEND_OFFER_BYTES;
    s->is_offered = !s->reduce_count && s->bytes <= longest && s->bytes > eager_bytes &&
                    !(s->copy_bytes && operand_is_long(op)); /* the engine copies that past the caches */
    s->awaits_room = s->only_sends && s->bytes > SMALL_BYTES && s->bytes <= eager_bytes;
    s->may_be_lent = s->bytes >= LEND_EAGER_LEAST && s->bytes <= eager_bytes && op->plan->round == 1 &&
                     !(comm_op_traits_of(op->op.kind)->traits & COMM_OP_TRAIT_REDUCES);
    return s->is_offered || (s->bytes <= SMALL_BYTES && s->bytes <= eager_bytes);
}

/* A peer that writes a record which is longer than its ring must not have it read: with what comes after the ring. How
 * long that is, is known once the peer is connected; until then the shape is not known. */
static void learn_rings(struct small_shape *s)
{
    for (int i = 0; s->fits && i < s->recv_messages; i++) {
        const struct duplex *p = s->recvs[i].peer;
        s->known &= p->port.state == PORT_UP;
        s->fits &= s->is_offered || s->bytes <= p->in.short_bytes;
    }
}

/* Ops whose messages have no regular places, or need a copy of the input. */
static int is_plain(const comm_op *op)
{
    return !(op->flags & COMM_OP_FLAG_UNEVEN) && op->redop != COMM_REDOP_USER && op->redop != COMM_REDOP_PREMUL_SUM;
}

/* A rank that only sends waits for nobody, and would fill its ring before another rank had its core. Then it stands
 * still until the others have read all that. So it yields its core before. The 99th percentile of broadcasts of 4, 16
 * and 32 KiB between 4 ranks on 2 cores is 7, 10 and 13 us so, and else 45, 14 and 25. The means are longer: 1.9, 3.5
 * and 6.7 us, and else 1.0, 2.9 and 5.1. Shorter messages fill a ring so seldom that the 99th percentile does not see
 * it; of longer ones it holds too few. A message to several keeps the core for longer than one to one rank. */
static int turn_share_of(const struct small_shape *s, const struct exec_group *g)
{
    enum { LEAST_BYTES = 4 << 10, MOST_BYTES = 64 << 10, SEVERAL_BYTES = 32 << 10, MESSAGES = 4, SEVERAL_MESSAGES = 2 };
    const int to_several = s->send_messages > 1;
    const size_t turn_bytes = to_several ? SEVERAL_BYTES : MOST_BYTES;
    const int most = to_several ? SEVERAL_MESSAGES : MESSAGES;
    if (!g->domain->shares_cores || !s->only_sends || s->bytes < LEAST_BYTES || s->bytes > MOST_BYTES)
        return 0;
    int messages = (int)(turn_bytes / s->bytes);
    return SMALL_TURN / (messages < 1 ? 1 : messages < most ? messages : most);
}

/* Short messages of several ranks to one: of how many to wait for room at a time (await_batch). */
static void learn_batch(struct small_shape *s, const struct exec_group *g)
{
    if (!s->fits || !s->only_sends || s->send_messages != 1 || g->size == 2 || !g->domain->shares_cores)
        return;
    const struct duplex *p = s->sends[0].peer;
    s->known &= p->port.state == PORT_UP;
    s->batch = s->known ? room_batch(p, s->bytes) : 0;
}

/* Are the messages the same for all, and long enough that one copy for all of them is sooner there? A stream of
 * broadcasts of 8 KiB takes 4 ranks on 2 cores 2.2 us so, and 1.9 through the rings; of 16 KiB 2.7 and 3.1. Of ranks
 * with a core each only many gain by it: an all_gather of 128 and 256 KiB takes 16 of them 27 and 41 us so, and 41 and
 * 88 through the rings; 8 take as long either way. */
static int may_multicast(const struct small_shape *s, const struct exec_group *g)
{
    enum { STREAM_LEAST = 16 << 10, FEW_RANKS = 8 };
    if (!s->may_be_lent || s->send_messages < 2)
        return 0;
    const struct fabric *f = s->sends[0].peer->fabric;
    size_t least = f->multicast_bytes >= 0 ? (size_t)f->multicast_bytes
                   : s->recv_messages ? g->domain->shares_cores || g->size > FEW_RANKS ? LEND_EAGER_LEAST : 0
                   : g->domain->shares_cores ? STREAM_LEAST : 0;
    int same = s->send_messages <= MULTICAST_PEERS_MAX;
    for (int i = 1; i < s->send_messages; i++)
        same &= s->sends[i].offset == s->sends[0].offset;
    return same && least && s->bytes >= least && s->bytes <= MULTICAST_BYTES_MAX;
}

/* What this rank does is not all in the first round: done at once by rounds.c. Until all peers are connected the shape
 * is not known. */
static void learn_rounds(struct small *small, struct small_shape *s, struct exec_op *op)
{
    size_t eager_bytes = (size_t)match_eager_bytes(&op->group->domain->matching, op->op.kind);
    if (op->group->size == 2) {
        s->swaps = swap_learn(&small->swap[s - small->shapes], op);
        return;
    }
    if (!small->rounds)
        small->rounds = calloc(SMALL_SHAPES, sizeof *small->rounds);
    s->has_rounds = small->rounds && rounds_learn(&small->rounds[s - small->shapes], op,
                                                  eager_bytes < SMALL_BYTES ? eager_bytes : SMALL_BYTES, &s->known);
}

APART void learn(struct small *small, struct small_shape *s, struct exec_group *g, const comm_op *o)
{
    *s = (struct small_shape){ .redop = o->redop, .dtype = o->dtype, .flags = o->flags, .send_count = o->send.count,
                               .recv_count = o->recv.count, .signature = o->signature };
    struct exec_op *op = queue_op(g, o, NULL);
    if (!op)
        return;
    s->known = 1;
    int is_ready = is_plain(o) && prepare_one_slice(op);
    s->fits = is_ready && learn_plan(s, op);
    learn_rings(s);
    learn_batch(s, g);
    if (is_ready && !s->fits && !s->awaits_room && !s->may_be_lent && !s->is_offered)
        learn_rounds(small, s, op);
    s->head = op->head;
    s->head.bytes = s->bytes;
    s->head.type = FRAME_RTS;
    s->offered = ring_key_base(&s->head);
    s->head.type = FRAME_EAGER;
    s->sent = ring_key_base(&s->head);
    s->is_special = !s->fits || s->is_offered || s->may_be_lent;
    s->turn_share = turn_share_of(s, g);
    s->multicasts = may_multicast(s, g);
    s->is_fenced = s->send_messages &&
                   duplex_wants_fence(s->sends[0].peer, s->send_messages, s->recv_messages, s->bytes);
    s->is_barrier = o->kind == COMM_OP_BARRIER && g->size > 2 && s->send_messages == g->size - 1 &&
                    s->recv_messages == g->size - 1;
    int is_simple = s->reduce_count && g->size == 2 && o->redop != COMM_REDOP_AVG;
    s->kernel = is_simple ? exec_host->reduce_kernel(o->redop, o->dtype) : NULL;
    queue_put_back(g->domain, op);
}

/* ---- A call ---- */

/* What follows is compiled three times: for one message each way, as between two ranks; for a barrier of more ranks;
 * and for any messages. */
struct messages {
    int sends, recvs;
    size_t bytes; /* of each */
    int is_barrier;
    int may_be_lent; /* what comes */
};

static inline struct messages messages_of(const struct small_shape *s)
{
    return (struct messages){ s->send_messages, s->recv_messages, s->bytes, s->is_barrier, 0 };
}

/* Two ranks mostly have a core each. To more ranks the hints are of use where they yield: see base/likely.h. */
#define LIKELY_IF_SEVERAL(n, condition) ((n).sends == 1 ? (condition) : LIKELY(condition))

INLINED int can_send(const struct small_shape *s, struct messages n)
{
    uint64_t lines = ring_frame_lines((uint32_t)n.bytes);
    for (int i = 0; i < n.sends; i++)
        if (UNLIKELY(!duplex_is_clear(s->sends[i].peer) || !room_for(s->sends[i].peer, n.bytes, lines)))
            return 0;
    return 1;
}

/* If one peer lacks room all are waited for; if anything else is missing none is. */
static void await_room(struct fabric *f, const struct small_shape *s, int64_t spin_ns)
{
    int lacks = 0, waited = 0;
    int64_t until_ns = 0;
    for (int i = 0; i < s->send_messages; i++) {
        if (!duplex_is_clear(s->sends[i].peer))
            return;
        lacks |= !room_is_there(s->sends[i].peer, s->bytes);
    }
    while (lacks && waited < s->send_messages && room_await(f, s->sends[waited].peer, s->bytes, spin_ns, &until_ns))
        waited++;
}

/* Several ranks that each send short messages to one, as in a stream of reductions, run ahead until there is no room,
 * and each would stand still in another operation, so that more than one operation in 100 waits. So all wait in the
 * same ones, in which the operation's number is a multiple of the batch, until there is room for so many. Between 4
 * ranks on 2 cores the 99th percentile of reductions of 2 and 3 KiB is 2 us so, and else 12 and 27. */
APART void await_batch(struct fabric *f, const struct small_shape *s, int64_t spin_ns)
{
    int64_t until_ns = 0;
    if (duplex_is_clear(s->sends[0].peer))
        room_await_batch(f, s->sends[0].peer, s->bytes, spin_ns, &until_ns);
}

/* There may be room for this message, though less than was waited for. */
APART int can_send_later(const struct small_shape *s, struct messages n, struct fabric *f, int64_t spin_ns)
{
    await_room(f, s, spin_ns);
    return can_send(s, n);
}

INLINED int can_receive(const struct small_shape *s, struct messages n)
{
    for (int i = 0; i < n.recvs; i++)
        if (UNLIKELY(s->recvs[i].peer->port.state != PORT_UP || s->recvs[i].peer->port.in.type))
            return 0;
    return 1;
}

/* Where ranks yield (`core`), each peer wants a fence: then one for all is the least. */
INLINED void ring_bells(const struct small_shape *s, struct messages n, uint32_t core)
{
    int is_fenced = (core && n.sends > 1) || s->is_fenced;
    if (LIKELY_IF_SEVERAL(n, is_fenced))
        ring_fence();
    for (int i = 0; i < n.sends; i++)
        if (LIKELY_IF_SEVERAL(n, is_fenced))
            duplex_ring_bell_fenced(s->sends[i].peer);
        else
            duplex_ring_bell(s->sends[i].peer);
}

/* The messages of ranks that may share this core are looked for first. As long as one of them is missing this rank
 * yields, and does not take the lines of other records away from the cores that are about to write them. */
static void put_mates_first(struct small_shape *s)
{
    s->mates = 0;
    for (int i = 0; i < s->recv_messages; i++) {
        struct small_message m = s->recvs[i];
        if (duplex_is_elsewhere(m.peer, s->core))
            continue;
        s->recvs[i] = s->recvs[s->mates];
        s->recvs[s->mates++] = m;
    }
}

static int all_cores_are_known(const struct small_shape *s)
{
    int known = s->core != 0;
    for (int i = 0; i < s->recv_messages; i++)
        known &= duplex_core_of(s->recvs[i].peer) != 0;
    return known;
}

/* And again in the next call, as long as a rank has not said where it runs. */
APART void ask_for_cores(struct small_shape *s, const struct fabric *f)
{
    s->core = duplex_own_core(f);
    for (int i = 0; i < s->send_messages; i++)
        duplex_say_core(s->sends[i].peer, s->core);
    if (!s->is_offered) /* those are received in the plan's order */
        put_mates_first(s);
    if (!all_cores_are_known(s))
        s->core_calls = 0;
}

/* duplex_own_core. Of each shape it is asked and said once in so many calls, as is where the others run: ranks seldom
 * move. What is known may be old in a shape that is used seldom, or by several threads in turn; then a rank looks too
 * long before it yields, or not long enough. */
INLINED uint32_t own_core(struct small_shape *s, struct messages n, const struct fabric *f)
{
    enum { SELDOM = 16 };
    if (!LIKELY_IF_SEVERAL(n, !waiting_spins(f->looks.waiting)))
        return 0;
    if (UNLIKELY(s->core_calls++ % SELDOM == 0))
        ask_for_cores(s, f);
    return s->core;
}

/* For ranks that yield: the lines of the next records come while this rank waits. Between cores far from each other
 * that is a twentieth of a barrier. To take the lines of payloads as well made an all_reduce of 4 KiB a fifth slower.
 * A rank that only sends asks for those, too. */
INLINED void take_next(const struct small_shape *s, struct messages n)
{
    enum { LONGEST = 1 << 10 };
    for (int i = 0; i < n.sends; i++)
        if (n.recvs)
            ring_take_next(&s->sends[i].peer->out, 0, RING_WAITS_BOTH);
        else if (n.bytes <= LONGEST)
            ring_take_next(&s->sends[i].peer->out, (uint32_t)n.bytes, RING_WAITS_NO);
}

/* Is a message missing from a rank that may share this core? Then this one is about to yield, and takes the lines after
 * that: the kernel's first atomic instruction waits until all stores before it are done. So a barrier of 4 ranks on 2
 * cores far from each other takes 3.3 us, and else 3.65. */
INLINED int lacks_a_mate(const struct small_shape *s, struct messages n)
{
    const struct ring_record *unused;
    return n.recvs && s->mates && ring_look(&s->recvs[0].peer->in, &unused) == RING_NOTHING;
}

INLINED void put_record(const struct small_shape *s, int i, size_t bytes, uint64_t seq, uint64_t key,
                        const uint8_t *from)
{
    struct duplex *p = s->sends[i].peer;
    port_spend(&p->port, bytes);
    uint32_t credit = port_take_owed(&p->port);
    struct ring_record *record = ring_begin_frame(&p->out, key, credit, (uint32_t)bytes);
    record->frame = s->head;
    record->frame.seq = seq;
    record->frame.credit = credit;
    ring_end_frame(&p->out, record, from + s->sends[i].offset, (uint32_t)bytes);
}

INLINED void send_all(const struct small_shape *s, struct messages n, uint64_t seq, uint64_t key, const uint8_t *from,
                      uint32_t core)
{
    for (int i = 0; i < n.sends; i++)
        put_record(s, i, n.bytes, seq, key, from);
    ring_bells(s, n, core);
    if (n.sends == 1)
        duplex_take_next(s->sends[0].peer, (uint32_t)n.bytes, n.recvs > 0);
    else if (LIKELY_IF_SEVERAL(n, core) && !lacks_a_mate(s, n))
        take_next(s, n);
}

/* A long one takes longer to write than a look that is too early costs, and a rank that only receives has no turn to
 * keep. */
INLINED int backs_off(const struct fabric *f, struct messages n)
{
    enum { LONGEST = 1 << 10 };
    return n.sends && n.bytes <= LONGEST && !LIKELY_IF_SEVERAL(n, !waiting_spins(f->looks.waiting));
}

/* Of 1 KiB a rank does not look seldom: the median is a tenth less so, but the 99th percentile 20 us and not 1. */
INLINED unsigned looks_before_yield(struct messages n)
{
    enum { LONGEST = 256 };
    return !n.sends && n.recvs == 1 && n.bytes <= LONGEST ? FABRIC_LOOKS_SHORT : FABRIC_LOOKS_LONG;
}

/* The record of an eager message of some length. The peer may change it; what is read then is checked. */
INLINED int is_lent(const struct ring_record *record)
{
    return record->bytes == 0 && record->place.loan;
}

/* Ranks whose offers have come wait until they are read, which the engine does in any order: so of several none is
 * waited for long. */
INLINED int waits_on(struct fabric *f, const struct small_shape *s, int64_t until_ns)
{
    return (!s->is_offered || s->recv_messages == 1) && fabric_waits_on(f, until_ns);
}

/* Wait for all messages from the one of index `here` on; 0 if that takes too long, or something else is in front of
 * one. */
INLINED int are_here(struct fabric *f, struct small_shape *s, struct messages n, int here, uint64_t key, uint32_t bytes,
                     const struct ring_record **records, uint32_t core, int64_t spin_ns)
{
    const unsigned looks = looks_before_yield(n);
    const int looks_later = backs_off(f, n);
    const uint64_t zero = looks_later ? backoff_zero(&s->backoff) : 0;
    int64_t until_ns = 0;
    for (unsigned turn = 1;; turn++) {
        while (here < n.recvs) {
            enum ring_found what = ring_look_after(&s->recvs[here].peer->in, zero, &records[here]);
            if (what == RING_NOTHING)
                break;
            if (UNLIKELY(what == RING_MORE || records[here]->key != key ||
                         (records[here]->bytes != bytes && !(n.may_be_lent && is_lent(records[here]))))) {
                if (!duplex_passes_credit(s->recvs[here].peer))
                    return 0;
                break; /* and look at the clock: a peer could send nothing else */
            }
            here++;
        }
        if (here == n.recvs) {
            if (looks_later)
                backoff_learn(&s->backoff, turn == 1);
            fabric_found(f, turn, until_ns);
            return 1;
        }
        int misses_mate = here < s->mates;
        if (!fabric_look_again(f, turn, core && !misses_mate ? looks : FABRIC_LOOKS_ONCE, spin_ns, &until_ns) &&
            !waits_on(f, s, until_ns))
            return 0;
        if (n.sends > 1 && core && misses_mate && turn == 1)
            take_next(s, n);
    }
}

/* To hand an op to the engine takes a microsecond and more for each message, in which the rank looks at nothing. If the
 * others do not wait for so long, they hand theirs over as well, and each is late for the next op of another one. In a
 * model of 16 ranks, which runs this code in virtual time, that goes on for good after one rank was late once: 40 us an
 * op, and not 3. So they wait longer if there are more. */
INLINED int64_t wait_ns(const struct fabric *f, struct messages n, int64_t spin_ns)
{
    enum { FEW = 3, QUARTERS = 4 };
    return n.recvs > 1 && waiting_spins(f->looks.waiting) ? spin_ns * (n.recvs + FEW) / QUARTERS : spin_ns;
}

INLINED int all_are_here(struct fabric *f, struct small_shape *s, struct messages n, uint64_t key, uint32_t bytes,
                         const struct ring_record **records, uint32_t core, int64_t spin_ns)
{
    return are_here(f, s, n, 0, key, bytes, records, core, wait_ns(f, n, spin_ns));
}

static inline void copy_own(const struct small_shape *s, const uint8_t *send, uint8_t *recv)
{
    if (s->copy_bytes && recv + s->copy_to != send + s->copy_from)
        memcpy(recv + s->copy_to, send + s->copy_from, s->copy_bytes);
}

INLINED void reduce_all(const struct small_shape *s, const struct exec_group *g, struct messages n,
                        const struct ring_record **records, const uint8_t *send, uint8_t *recv)
{
    const void *sources[SMALL_PEERS_MAX + 1];
    sources[g->rank] = send + s->reduce_from;
    for (int i = 0; i < n.recvs; i++)
        sources[s->recvs[i].rank] = ring_payload(records[i], RING_FRAME, (uint32_t)n.bytes);
    if (s->kernel)
        s->kernel(recv + s->reduce_to, sources[0], sources[1], s->reduce_count);
    else
        exec_host->reduce_many(recv + s->reduce_to, sources, (size_t)g->size, s->reduce_count, s->redop, s->dtype);
}

INLINED void take_all(const struct small_shape *s, const struct exec_group *g, struct messages n,
                      const struct ring_record **records, const uint8_t *send, uint8_t *recv)
{
    if (n.is_barrier)
        return;
    copy_own(s, send, recv);
    if (s->reduce_count)
        reduce_all(s, g, n, records, send, recv);
    else if (n.bytes)
        for (int i = 0; i < n.recvs; i++)
            memcpy(recv + s->recvs[i].offset, ring_payload(records[i], RING_FRAME, (uint32_t)n.bytes), n.bytes);
}

INLINED void let_go(const struct small_shape *s, struct messages n, uint8_t type, const struct ring_record **records)
{
    for (int i = 0; i < n.recvs; i++)
        duplex_took(s->recvs[i].peer, type, n.bytes, records[i]->credit);
}

INLINED comm_status run_sent(struct small_shape *s, struct messages n, struct fabric *f, struct exec_group *g,
                             const comm_op *op, int64_t spin_ns)
{
    const struct ring_record *records[SMALL_PEERS_MAX];
    const uint8_t *send = op->send.data ? op->send.data : op->recv.data;
    uint64_t key = ring_key_of(s->sent, op->seq);
    if (n.recvs == 0 && UNLIKELY(s->batch && (op->seq & (s->batch - 1)) == 0))
        await_batch(f, s, spin_ns);
    if (UNLIKELY(!can_send(s, n)) && (n.recvs || !can_send_later(s, n, f, spin_ns)))
        return COMM_ERR_UNSUPPORTED;
    const uint32_t core = own_core(s, n, f);
    send_all(s, n, op->seq, key, send, core);
    exec_host->run_waits();
    queue_runs(g, op);
    if (UNLIKELY(!all_are_here(f, s, n, key, (uint32_t)n.bytes, records, core, spin_ns)))
        return COMM_IN_PROGRESS;
    take_all(s, g, n, records, send, op->recv.data);
    let_go(s, n, FRAME_EAGER, records);
    queue_ran(g, op->seq);
    return COMM_OK;
}

ON_EACH_CALL APART comm_status run_sent_pair(struct small_shape *s, struct fabric *f, struct exec_group *g,
                                             const comm_op *op, int64_t spin_ns)
{
    const struct messages pair = { 1, 1, s->bytes, 0, 0 };
    return run_sent(s, pair, f, g, op, spin_ns);
}

ON_EACH_CALL APART comm_status run_sent_any(struct small_shape *s, struct fabric *f, struct exec_group *g,
                                            const comm_op *op, int64_t spin_ns)
{
    return run_sent(s, messages_of(s), f, g, op, spin_ns);
}

ON_EACH_CALL APART comm_status run_sent_barrier(struct small_shape *s, struct fabric *f, struct exec_group *g,
                                                const comm_op *op, int64_t spin_ns)
{
    const struct messages all = { g->size - 1, g->size - 1, 0, 1, 0 };
    return run_sent(s, all, f, g, op, spin_ns);
}

/* ---- A call whose messages are offered ---- */

/* Such a call does not ask on which core the others run: what it waits for takes longer than a yield. To look longer
 * gained nothing with 64 and 256 KiB. */

/* A rank that reads or copies as well, or sends to several, has no time for it. */
static int may_split(const struct small_shape *s)
{
    return s->send_messages == 1 && !s->recv_messages && !s->copy_bytes && split_suits(s->sends[0].peer, s->bytes);
}

/* Those that are not drafted yet. Returns how many are now. */
static int draft_each(const struct small_shape *s, const uint8_t *from, struct tx **offers, int by_kernel)
{
    int drafted = 0;
    for (int i = 0; i < s->send_messages; i++) {
        const struct loan loan = { .payload = from + s->sends[i].offset, .bytes = s->bytes, .splits = may_split(s),
                                   .by_kernel = by_kernel };
        if (!offers[i])
            offers[i] = duplex_draft_offer(s->sends[i].peer, &s->head, &loan);
        drafted += offers[i] != NULL;
    }
    return drafted;
}

/* All, or none and 0. If most are better read by the kernel, all are: with one that goes through the ring the op is the
 * engine's. */
static int draft_all(const struct small_shape *s, const uint8_t *from, struct tx **offers)
{
    memset(offers, 0, (size_t)s->send_messages * sizeof *offers);
    int drafted = draft_each(s, from, offers, 0);
    if (drafted < s->send_messages && 2 * drafted >= s->send_messages)
        drafted = draft_each(s, from, offers, 1);
    for (int i = 0; drafted < s->send_messages && i < s->send_messages; i++)
        if (offers[i])
            duplex_drop_draft(s->sends[i].peer, offers[i]);
    return drafted == s->send_messages;
}

static void offer_all(struct small_shape *s, const struct exec_group *g, struct tx **offers)
{
    for (int i = 0; i < s->send_messages; i++)
        duplex_make_offer(s->sends[i].peer, &s->head, offers[i], g);
    ring_bells(s, messages_of(s), 0);
}

/* Wait until the others have read what was offered or lent (not NULL); 0 if that takes too long. */
static int are_read(struct fabric *f, const struct small_shape *s, struct tx **offers, int64_t spin_ns)
{
    int64_t until_ns = 0;
    for (int i = 0; i < s->send_messages; i++)
        for (unsigned turn = 1; offers[i] && !duplex_is_read(s->sends[i].peer, offers[i]); turn++)
            if (!fabric_look_again(f, turn, FABRIC_LOOKS_ONCE, spin_ns, &until_ns))
                return 0;
    for (int i = 0; i < s->send_messages; i++)
        if (offers[i])
            duplex_end_offer(s->sends[i].peer, offers[i]);
    return 1;
}

/* Of 8 or 16 ranks one is often later than a call may spin, when all read for 100 to 300 us; yet it comes, and to hand
 * the op to the engine takes longer. */
static int64_t patience_ns(const struct small_shape *s, const struct fabric *f, int64_t spin_ns)
{
    enum { MOST = 10 };
    int64_t reads_ns = (int64_t)s->bytes * s->recv_messages / LEND_BYTES_PER_NS;
    if (!waiting_spins(f->looks.waiting))
        return spin_ns;
    return spin_ns + (reads_ns < MOST * spin_ns ? reads_ns : MOST * spin_ns);
}

/* Read them one after the other, in the plan's order: so each rank reads in another one's memory. Returns how many are
 * read. It is not all if one does not come in time, was announced and not offered, or its operation has ended there;
 * then the engine goes on with that one. */
static int read_offers(struct fabric *f, struct small_shape *s, uint64_t key, uint8_t *recv, int64_t spin_ns)
{
    const struct ring_record *records[SMALL_PEERS_MAX];
    struct messages n = messages_of(s);
    for (int i = 0; i < s->recv_messages; i++) {
        n.recvs = i + 1;
        if (!are_here(f, s, n, i, key, 0, records, 0, spin_ns))
            return i;
        const struct ring_place place = ring_place(records[i]);
        struct duplex *p = s->recvs[i].peer;
        if (!place.loan || !lend_read_now(p, &s->head, &place, recv + s->recvs[i].offset))
            return i;
        duplex_took(p, FRAME_RTS, s->bytes, records[i]->credit);
    }
    return s->recv_messages;
}

static comm_status run_offered(struct small_shape *s, struct fabric *f, struct exec_group *g, const comm_op *op,
                               struct tx **offers, int64_t spin_ns)
{
    uint8_t *recv = op->recv.data;
    offer_all(s, g, offers);
    exec_host->run_waits();
    queue_runs(g, op);
    copy_own(s, op->send.data ? op->send.data : recv, recv);
    int read = read_offers(f, s, ring_key_of(s->offered, op->seq), recv, patience_ns(s, f, spin_ns));
    g->begun.received = (uint16_t)read;
    if (read < s->recv_messages || !are_read(f, s, offers, spin_ns + lend_read_ns(s->bytes)))
        return COMM_IN_PROGRESS;
    g->begun.received = 0;
    queue_ran(g, op->seq);
    return COMM_OK;
}

/* In place what comes is written over what the others have yet to read, unless that was copied to a ring. The shape
 * does not tell: it is that of the same op with two buffers. */
static int writes_over_offers(const comm_op *op)
{
    return op->kind == COMM_OP_ALL_TO_ALL && op->send.data == op->recv.data;
}

/* COMM_ERR_UNSUPPORTED if they cannot be. */
APART comm_status run_if_offered(struct small_shape *s, struct fabric *f, struct exec_group *g, const comm_op *op,
                                 int64_t spin_ns)
{
    struct tx *offers[SMALL_PEERS_MAX];
    s->head.type = FRAME_RTS;
    s->head.seq = op->seq;
    if (writes_over_offers(op) || !draft_all(s, op->send.data ? op->send.data : op->recv.data, offers))
        return COMM_ERR_UNSUPPORTED;
    return run_offered(s, f, g, op, offers, spin_ns);
}

/* ---- A call whose messages are eager, and may be lent ---- */

/* Claim what is lent, before anything is taken out: if one has been taken back the engine waits for it, and for all
 * others. The loan of a message that is not lent is 0. */
static int claim_all(const struct small_shape *s, const struct ring_record **records, struct ring_place *places)
{
    int claimed = 0;
    for (; claimed < s->recv_messages; claimed++) {
        struct duplex *p = s->recvs[claimed].peer;
        places[claimed].loan = 0;
        if (is_lent(records[claimed]) ? !duplex_claim_lent(p, &s->head, records[claimed], &places[claimed])
                                      : !ring_holds(&p->in, (uint32_t)s->bytes))
            break;
    }
    for (int i = 0; claimed < s->recv_messages && i < claimed; i++)
        if (places[i].loan)
            lend_give_up_claim(s->recvs[i].peer, &places[i]);
    return claimed == s->recv_messages;
}

/* 0: an operation has ended at its rank, or that rank is lost. */
static int take_all_lendable(const struct small_shape *s, const struct ring_record **records, uint8_t *recv)
{
    struct ring_place places[SMALL_PEERS_MAX];
    int taken = 0, can = claim_all(s, records, places);
    for (; can && taken < s->recv_messages; taken++) {
        struct duplex *p = s->recvs[taken].peer;
        const struct ring_record *record = records[taken];
        uint8_t *to = recv + s->recvs[taken].offset;
        if (places[taken].loan) {
            can = duplex_read_claimed(p, &s->head, &places[taken], record->credit, to);
        } else {
            duplex_copy_out(p, to, ring_payload(record, RING_FRAME, (uint32_t)s->bytes), s->bytes);
            duplex_took(p, FRAME_EAGER, s->bytes, record->credit);
        }
    }
    return can;
}

/* Where ranks share cores to wait until the peers have read takes a turn of each. A root of several would wait for all
 * of them. */
static int may_lend(const struct small_shape *s, const struct fabric *f, const comm_op *op)
{
    return (waiting_spins(f->looks.waiting) || !f->cma_measured) && (s->recv_messages || s->send_messages == 1) &&
           !writes_over_offers(op);
}

/* Each message by itself; NULL: it is not lent. How many are. */
static int draft_lent(const struct small_shape *s, const struct fabric *f, const comm_op *op, struct tx **lent)
{
    const uint8_t *from = op->send.data ? op->send.data : op->recv.data;
    const int may = may_lend(s, f, op);
    int count = 0;
    for (int i = 0; i < s->send_messages; i++) {
        struct duplex *p = s->sends[i].peer;
        const struct loan loan = { .payload = from + s->sends[i].offset, .bytes = s->bytes, .splits = may_split(s) };
        enum lend_flow flow = s->recv_messages ? LEND_BOTH : duplex_is_in_turn(p) ? LEND_IN_TURN : LEND_STREAM;
        lent[i] = may ? duplex_draft_lent(p, &s->head, &loan, flow) : NULL;
        count += lent[i] != NULL;
    }
    return count;
}

/* Is there a way for those that are not lent, and for those that are due? */
static int can_send_lendable(struct small_shape *s, struct messages n, struct fabric *f, int lent, int64_t spin_ns)
{
    if (s->fits)
        return can_send(s, n) || (!n.recvs && can_send_later(s, n, f, spin_ns));
    for (int i = 0; n.sends == 0 && i < n.recvs; i++)
        if (!s->recvs[i].peer->peer_lends)
            return 0;
    return lent == n.sends;
}

/* A rank that only sends waits for peers that are behind; others send through the rings then, and it does, too, if it
 * has waited in vain. */
static int can_multicast(const struct small_shape *s, struct fabric *f, int64_t spin_ns)
{
    int64_t until_ns = 0;
    for (unsigned turn = 1;; turn++) {
        int can = multicast_has_place(f);
        for (int i = 0; i < s->send_messages; i++)
            if (!duplex_is_clear(s->sends[i].peer))
                return 0;
            else
                can = can && multicast_has_room(s->sends[i].peer, s->bytes);
        if (can)
            fabric_found(f, turn, until_ns);
        if (can || s->recv_messages || !multicast_may_wait(f))
            return can;
        if (!fabric_look_again(f, turn, FABRIC_LOOKS_ONCE, spin_ns, &until_ns)) {
            multicast_waited_in_vain(f);
            return 0;
        }
    }
}

static void multicast(struct small_shape *s, struct messages n, struct fabric *f, const comm_op *op)
{
    const uint32_t core = own_core(s, n, f);
    const uint8_t *from = op->send.data ? op->send.data : op->recv.data;
    struct multicast_copy *copy = multicast_make(f, from + s->sends[0].offset, s->bytes);
    for (int i = 0; i < n.sends; i++)
        multicast_send(copy, s->sends[i].peer, &s->head);
    ring_bells(s, n, core);
}

/* Send each: one copy for all, lent, or through the ring. 0: none is possible. Of a copy nobody waits for the end. */
static int send_lendable(struct small_shape *s, struct messages n, struct fabric *f, struct exec_group *g,
                         const comm_op *op, struct tx **lent, int64_t spin_ns)
{
    if (s->multicasts && can_multicast(s, f, spin_ns)) {
        memset(lent, 0, (size_t)n.sends * sizeof *lent);
        multicast(s, n, f, op);
        return 1;
    }
    int count = draft_lent(s, f, op, lent);
    if (!can_send_lendable(s, n, f, count, spin_ns)) {
        for (int i = 0; i < n.sends; i++)
            if (lent[i])
                duplex_drop_draft(s->sends[i].peer, lent[i]);
        return 0;
    }
    const uint32_t core = own_core(s, n, f);
    const uint64_t key = ring_key_of(s->sent, op->seq);
    const uint8_t *from = op->send.data ? op->send.data : op->recv.data;
    for (int i = 0; i < n.sends; i++)
        if (lent[i])
            duplex_make_lent(s->sends[i].peer, &s->head, lent[i], g);
        else
            put_record(s, i, s->bytes, op->seq, key, from);
    ring_bells(s, n, core);
    if (n.sends == 1 && !count)
        duplex_take_next(s->sends[0].peer, (uint32_t)n.bytes, n.recvs > 0);
    return 1;
}

/* The peer does not come for it. A rank that only sends, to one, need not wait for that. */
static comm_status send_instead(const struct small_shape *s, struct exec_group *g, const comm_op *op, struct tx *tx)
{
    struct frame h = s->head;
    if (s->recv_messages || !duplex_send_instead(s->sends[0].peer, &h, tx)) {
        g->begun.received = (uint16_t)s->recv_messages;
        return COMM_IN_PROGRESS;
    }
    queue_ran(g, op->seq);
    return COMM_OK;
}

APART comm_status run_lendable(struct small_shape *s, struct fabric *f, struct exec_group *g, const comm_op *op,
                               int64_t spin_ns)
{
    const struct messages n = { s->send_messages, s->recv_messages, s->bytes, 0, 1 };
    const struct ring_record *records[SMALL_PEERS_MAX];
    struct tx *lent[SMALL_PEERS_MAX];
    s->head.seq = op->seq;
    if (!send_lendable(s, n, f, g, op, lent, spin_ns))
        return COMM_ERR_UNSUPPORTED;
    exec_host->run_waits();
    queue_runs(g, op);
    copy_own(s, op->send.data ? op->send.data : op->recv.data, op->recv.data);
    if (!all_are_here(f, s, n, ring_key_of(s->sent, op->seq), (uint32_t)n.bytes, records, s->core, spin_ns) ||
        !take_all_lendable(s, records, op->recv.data))
        return COMM_IN_PROGRESS;
    if (!are_read(f, s, lent, spin_ns + lend_read_ns(s->bytes)))
        return send_instead(s, g, op, lent[0]);
    queue_ran(g, op->seq);
    return COMM_OK;
}

/* Does none of them come to be lent, by what is known without asking what both ways take? */
static int is_for_rings(const struct small_shape *s, const struct fabric *f)
{
    int lends = waiting_spins(f->looks.waiting) || !f->cma_measured, may = s->multicasts;
    for (int i = 0; i < s->send_messages; i++) {
        struct duplex *p = s->sends[i].peer;
        may |= lends && !p->ring_for;
        if (p->ring_for)
            p->ring_for--;
    }
    for (int i = 0; i < s->recv_messages; i++)
        may |= s->recvs[i].peer->peer_lends;
    return s->fits && !may;
}

/* What may be lent or offered, waits for room, or cannot be done at once. */
APART comm_status run_special(struct small *small, struct small_shape *s, struct fabric *f, struct exec_group *g,
                              const comm_op *op, int64_t spin_ns)
{
    comm_status status = COMM_ERR_UNSUPPORTED;
    if (s->may_be_lent && is_for_rings(s, f))
        return s->send_messages == 1 && s->recv_messages == 1 ? run_sent_pair(s, f, g, op, spin_ns)
                                                              : run_sent_any(s, f, g, op, spin_ns);
    if (s->may_be_lent)
        status = run_lendable(s, f, g, op, spin_ns);
    if (status != COMM_ERR_UNSUPPORTED || (s->may_be_lent && s->fits)) /* it has waited for room */
        return status;
    if (s->awaits_room) {
        await_room(f, s, spin_ns);
        return COMM_ERR_UNSUPPORTED;
    }
    if (!s->is_offered)
        return COMM_ERR_UNSUPPORTED;
    status = run_if_offered(s, f, g, op, spin_ns);
    s->head.type = FRAME_EAGER;
    if (status != COMM_ERR_UNSUPPORTED) /* what was offered has been read: this rank has waited */
        small->turn_taken = 0;
    return status;
}

/* What is not all in the first round, or not copied. */
APART comm_status run_longer(struct small *small, struct small_shape *s, struct fabric *f, struct exec_group *g,
                             const comm_op *op, int64_t spin_ns)
{
    if ((!s->has_rounds && !s->swaps) || writes_over_offers(op))
        return COMM_ERR_UNSUPPORTED; /* in place the engine exchanges a copy */
    events_awake(f);
    fabric_runs(f);
    if (s->swaps)
        return swap_run(&small->swap[s - small->shapes], f, g, op, &s->head, spin_ns);
    return rounds_run(&small->rounds[s - small->shapes], f, g, op, &s->head, spin_ns);
}

INLINED comm_status run_shape(struct small *small, struct small_shape *s, struct fabric *f, struct exec_group *g,
                              const comm_op *op, int64_t spin_ns)
{
    const struct messages n = messages_of(s);
    if (UNLIKELY((!s->fits && !s->awaits_room && !s->may_be_lent) || !can_receive(s, n)))
        return run_longer(small, s, f, g, op, spin_ns);
    events_awake(f);
    fabric_runs(f);
    if (UNLIKELY(s->is_special))
        return run_special(small, s, f, g, op, spin_ns);
    if (n.sends == 1 && n.recvs == 1)
        return run_sent_pair(s, f, g, op, spin_ns);
    return LIKELY(s->is_barrier) ? run_sent_barrier(s, f, g, op, spin_ns) : run_sent_any(s, f, g, op, spin_ns);
}

/* What has come early may be what the op would wait for. */
INLINED int can_run(const struct exec_group *g)
{
    return g->status == COMM_OK && !g->head && !g->early;
}

/* The last that is done is a call, which the compiler makes a jump: after another rank has had the core a processor
 * predicts each return wrongly, which is 10 ns. */
ON_EACH_CALL comm_status small_run(struct small *small, struct fabric *f, struct exec_group *g, const comm_op *op,
                                   int64_t spin_ns)
{
    struct small_shape *s = &small->shapes[(op->signature ^ op->signature >> 32) % SMALL_SHAPES];
    int can = can_run(g), is_known = is_of(s, op);
    if (UNLIKELY(can && !is_known)) {
        learn(small, s, g, op);
        is_known = 1;
    }
    int share = is_known ? s->turn_share : 0;
    small->turn_taken = share ? small->turn_taken + share : 0;
    return LIKELY(can) ? run_shape(small, s, f, g, op, spin_ns) : COMM_ERR_UNSUPPORTED;
}

void small_finish(struct small *small)
{
    free(small->rounds);
}
