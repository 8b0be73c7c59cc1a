/* A collective as data: a plan is a list of steps in rounds, for one rank. Algorithms (algo/) append steps and know
 * nothing else; the engine executes them over links; the simulator in tests/simulate executes them for all ranks
 * without any.
 *
 * What a plan speaks of are chunks, not bytes, so one plan serves every count and every slice:
 *   - a vector op (broadcast, all_reduce, reduce) has one vector, cut evenly into `size` chunks (plan_chunk);
 *   - a block op (all_gather, gather, scatter, reduce_scatter, all_to_all) has one block per rank: chunk r is rank
 *     r's.
 * SEND and RECV are the user's buffers, which may be the same memory. A rank that has only its own block on a side
 * (all_gather's SEND, reduce_scatter's RECV, gather's SEND, scatter's RECV) names it as chunk `rank`. A broadcast
 * leaves its root's RECV and the others' SEND alone; likewise a side that only the root has. SCRATCH is memory of the
 * engine: numbered slots of exactly the largest chunk's length, without gaps between them; a region of k chunks takes
 * k slots and lies in one piece from the first one's begin. (So what was written as one region may be read by other
 * groupings only if all chunks have one length.) SUMS is for sums of some ranks' vectors: RECV itself, unless the plan
 * is for elements that must not be rounded before all is summed (`widens`). Then SUMS is a vector of the engine's, and
 * its elements and SCRATCH's are of the wider type that is summed in. Copies convert, and so does a reduction of
 * narrow elements; a message has its sender's elements: those of `source`, of RECV those of `dst`.
 *
 * Rounds. All messages of a round go on at the same time; the next round begins when the round's messages are done
 * here (a send is done when its buffer may be written). Local steps (copy, reduce ...) of a round run in order before
 * its messages start. Within a round no message may write a region that another message or step of that round reads or
 * writes, and one rank sends another at most one message. A round's k-th message from A to B is matched by round
 * number, so both sides must count alike. */
#ifndef COMM_EXEC_PLAN_H
#define COMM_EXEC_PLAN_H

#include <stddef.h>
#include <stdint.h>

enum plan_buffer { PLAN_SEND, PLAN_RECV, PLAN_SCRATCH, PLAN_SUMS };

/* `count` chunks from `first`; in SCRATCH at slots slot, slot + 1, ...; the length is always that of the chunks. */
struct plan_region {
    uint8_t buffer;
    int32_t first, count;
    int32_t slot;
};

enum plan_step_kind {
    PLAN_STEP_SEND,         /* source -> peer */
    PLAN_STEP_RECV,         /* peer -> dst */
    PLAN_STEP_RECV_REDUCE,  /* dst = received OP source, or source OP received if the source is from lower ranks */
    PLAN_STEP_COPY,         /* dst = source; nothing if they are the same memory */
    PLAN_STEP_REDUCE,       /* dst = source OP other */
    PLAN_STEP_REDUCE_RANKS, /* dst = rank 0's OP rank 1's OP ... with one rounding: this rank's is in source, rank r's
                             * in scratch at slot other.slot + r * source.count */
    PLAN_STEP_AVERAGE,      /* dst /= size if the redop is AVG: for sums made by RECV_REDUCE and REDUCE */
};

/* Two ranks that swap what they reduce, and then what came of it. Where they share memory the reducer may write its
 * result straight to the other rank's RECV, so that the second pair of messages is not needed. */
enum plan_write_back {
    PLAN_NO_WRITE_BACK,
    PLAN_MAY_WRITE_BACK, /* SEND: the peer's result belongs to dst here; RECV_REDUCE: the result goes to the peer */
    PLAN_UNLESS_WRITTEN, /* SEND, RECV of the next round: that result, unless it was written back */
};

struct plan_step {
    uint8_t kind;
    uint8_t source_is_lower; /* RECV_REDUCE */
    uint8_t write_back;      /* enum plan_write_back */
    uint8_t may_stay;        /* RECV: what comes is read once, by a REDUCE_RANKS of the next round */
    uint16_t round;
    int32_t peer;            /* rank in the group; -1 for local steps */
    struct plan_region dst, source, other;
};

struct plan {
    int32_t rank, size;
    int32_t root;
    int32_t host_count;            /* 1 until plan_set_hosts has said more */
    int32_t host_least, host_most; /* ranks on the host that has fewest, and on the one that has most */
    int32_t *host_of, *place, *members, *host; /* tables of plan_set_hosts, in one piece of memory; NULL: one host */
    struct plan_step *steps; /* in order of rounds */
    size_t step_count, step_capacity;
    uint16_t round;          /* being appended to; afterwards: how many there are */
    int32_t scratch_slots;   /* how many the regions need */
    uint8_t ranged;          /* some region of SEND or RECV has several chunks: a block op can then not be sliced */
    uint8_t keeps;           /* some step may stay */
    uint8_t widens;          /* set before it is built: SUMS and SCRATCH have wider elements than SEND and RECV */
    uint8_t failed;          /* out of memory, or an impossible step; the builder calls after it do nothing */
};

/* Begin an empty plan; finish frees it (a zeroed plan is fine). */
void plan_init(struct plan *p, int32_t rank, int32_t size, int32_t root);
void plan_finish(struct plan *p);

/* For algorithms of two levels: which ranks share a host. hosts[r] is rank r's, as any number; NULL: all ranks are on
 * one. The plan numbers hosts from 0 in the order in which they first appear, and the members of a host in the order
 * of their ranks. */
void plan_set_hosts(struct plan *p, const int32_t *hosts);
static inline int32_t plan_host_of(const struct plan *p, int32_t rank);
static inline int32_t plan_host_size(const struct plan *p, int32_t host);
static inline int32_t plan_member(const struct plan *p, int32_t host, int32_t place); /* a rank; and back: */
static inline int32_t plan_place(const struct plan *p, int32_t rank);
/* Hosts counted from the root's on, and the members of a host counted from its head on, which is the root or the first
 * member. */
int32_t plan_host_number(const struct plan *p);                 /* this rank's host's */
int32_t plan_head(const struct plan *p, int32_t host_number);   /* a rank */
int32_t plan_member_number(const struct plan *p);               /* this rank's on its host */
int32_t plan_fellow(const struct plan *p, int32_t member_number); /* the rank with that number on this rank's host */

/* Regions. */
struct plan_region plan_chunk(enum plan_buffer buffer, int32_t chunk);
struct plan_region plan_range(enum plan_buffer buffer, int32_t first, int32_t count);
struct plan_region plan_all(const struct plan *p, enum plan_buffer buffer); /* chunks 0 .. size - 1 */
struct plan_region plan_slot(int32_t slot, int32_t first, int32_t count);   /* SCRATCH, as long as those chunks */

/* Steps; appended to the current round. An algorithm closes each of its rounds, also the last one, with
 * plan_next_round. */
void plan_send(struct plan *p, int32_t peer, struct plan_region source);
void plan_recv(struct plan *p, int32_t peer, struct plan_region dst);
void plan_recv_reduce(struct plan *p, int32_t peer, struct plan_region dst, struct plan_region source,
                      int source_is_lower);
/* The steps of the latest round, one send to and one recv_reduce from the same peer, are followed in the next round by
 * one send of what was reduced and one recv of the peer's result, to dst: and by nothing else that has to do with
 * either, but for an average. */
void plan_may_write_back(struct plan *p, struct plan_region dst);
/* The steps of the latest round are those that follow. */
void plan_unless_written(struct plan *p);
void plan_copy(struct plan *p, struct plan_region dst, struct plan_region source);
void plan_reduce(struct plan *p, struct plan_region dst, struct plan_region source, struct plan_region other);
/* dst = share 0 OP share 1 OP ... of `count` shares: this rank's, number `place`, is `mine`; share i is in scratch at
 * slot first_slot + i * mine.count, where the sum of the first ones lies at `place` meanwhile. dst may be `mine`, or
 * lie there. */
void plan_reduce_shares(struct plan *p, struct plan_region dst, struct plan_region mine, int32_t place, int32_t count,
                        int32_t first_slot);
void plan_reduce_ranks(struct plan *p, struct plan_region dst, struct plan_region source, int32_t first_slot);
void plan_average(struct plan *p, struct plan_region dst);
/* Of the whole vector's sums [first, first + count), in SUMS, come results in RECV. */
void plan_finish_sums(struct plan *p, int32_t first, int32_t count);
/* Is what a region holds of the wider type? */
static inline int plan_is_wide(const struct plan *p, const struct plan_region *r);
void plan_next_round(struct plan *p);

/* A rank or chunk number, counted round: -1 is the last, `size` is 0 again. */
static inline int32_t plan_around(const struct plan *p, int32_t number)
{
    return (number % p->size + p->size) % p->size;
}

static inline int plan_is_wide(const struct plan *p, const struct plan_region *r)
{
    return p->widens && r->buffer >= PLAN_SCRATCH;
}

static inline int32_t plan_host_of(const struct plan *p, int32_t rank)
{
    return p->host_of ? p->host_of[rank] : 0;
}

static inline int32_t plan_host_size(const struct plan *p, int32_t host)
{
    return p->host ? p->host[host + 1] - p->host[host] : p->size;
}

static inline int32_t plan_member(const struct plan *p, int32_t host, int32_t place)
{
    return p->members ? p->members[p->host[host] + place] : place;
}

static inline int32_t plan_place(const struct plan *p, int32_t rank)
{
    return p->place ? p->place[rank] : rank;
}

/* The elements [*ret_begin, *ret_end) of chunk `chunk` of `count` elements cut into `size`. The first count % size
 * chunks are one longer. */
static inline void plan_cut(size_t count, int32_t size, int32_t chunk, size_t *ret_begin, size_t *ret_end)
{
    size_t base = count / (size_t)size, more = count % (size_t)size, i = (size_t)chunk;
    *ret_begin = i * base + (i < more ? i : more);
    *ret_end = *ret_begin + base + (i < more ? 1 : 0);
}

/* Every algorithm: void algo_KIND_NAME(struct plan *p), in algo/KIND_NAME.c. */
#define ALGO(kind, name, traits, help) void algo_##kind##_##name(struct plan *p);
#include "algo.def"
#undef ALGO

#endif
