/* This rank's part in one group. */
#ifndef COMM_EXEC_GROUP_H
#define COMM_EXEC_GROUP_H

#include "domain.h"
#include "exec_op.h"

enum { GROUP_ENDED_MAX = 64 }; /* past collectives that are remembered: to notice a peer that called another */

struct plan_entry {
    struct plan_entry *next;
    const struct algo *algo;
    int32_t root;
    uint8_t widens;
    uint32_t widest;        /* messages and local steps of the widest round */
    struct plan plan;
};

/* A member's answer to a query: see desync.c. */
struct answer {
    uint8_t answered;
    uint8_t asks;           /* it asks, too */
    uint16_t flags;         /* FRAME_ANSWER_ */
    int32_t waits_for;      /* -1: no rank */
    char text[FRAME_ANSWER_TEXT_MAX + 1];
};

struct exec_group {
    struct exec_group *next, **at; /* in domain->groups, and what points to it there */
    struct exec_group *bucket_next;
    struct exec_group *ready_next;
    uint8_t is_ready;       /* in domain->ready */
    uint8_t in_failed;      /* in domain->failed: its operations have not been ended yet */
    struct exec_group *failed_next;
    struct domain *domain;
    uint64_t id;
    int32_t rank, size;
    int32_t *world_ranks;   /* [size] */
    int32_t *rank_of;       /* [world size]; -1: not a member */
    int32_t *hosts;         /* [size] each rank's host, for plans; NULL: not known */
    int32_t host_count;     /* 0: not known */
    int memory;             /* enum select_memory */
    int kernel_reads;       /* of select_query: the same for all members */
    const char *name;
    void *token;
    comm_status status;     /* OK, or why it has ended */
    const char *error;      /* as this rank says it */
    char *error_memory;
    struct reason why;      /* as the rank that found out says it */
    struct exec_op *head, **tail; /* collectives in order; the head is running */
    struct op_list sends, recvs;  /* of point-to-point, under way */
    uint64_t sends_begun;
    uint64_t entered_seq;   /* the latest collective submitted; 0: none yet */
    uint64_t ended_seq;     /* the latest collective that ended here */
    struct call ended[GROUP_ENDED_MAX];
    struct box *boxes;      /* [size], by the other rank: messages of collectives */
    struct box *p2p_boxes;
    size_t early;           /* frames in `boxes` that are not awaited yet */
    /* Kept from op to op, so that the same shape again allocates nothing: prepare.c. */
    struct plan_entry *plans;
    struct select_overrides *overrides;
    uint32_t lanes;
    int64_t slice_bytes;    /* 0: as the route says */
    uint64_t settings_mark; /* of those two: ranks with others have other signatures; 0: neither is set */
    uint8_t *scratch;
    size_t scratch_bytes;
    uint8_t *prepared;
    size_t prepared_bytes;
    struct step *step_pool;
    size_t step_pool_bytes;
    struct kept *kept;      /* [size] for each slot */
    size_t kept_bytes;
    const void **sources;   /* [size] what the step at hand reduces */
    size_t *offsets;
    size_t offsets_bytes;
    struct begun begun;     /* for the engine, which clears it: nothing is left of an op that is done */
    void *at_once;          /* what a carrier keeps for ops that it does at once: free()d with the group */
    /* desync.c, while it asks: whose deadline passed, what the others say. */
    struct exec_op *asks_for;
    int64_t answer_ms;      /* how long the others may take to answer */
    int64_t step_ends_ns;   /* of that, or of waiting for a lower rank */
    int steps_left;         /* after this one */
    int defers;             /* a lower rank may speak first */
    struct answer *answers; /* [size] */
};

static inline struct port *group_port(const struct exec_group *g, int32_t rank)
{
    return g->domain->peers.at[g->world_ranks[rank]];
}

/* The peer's rank in the group; -1: it is not a member. */
static inline int32_t group_rank_of(const struct exec_group *g, const struct port *p)
{
    return g->rank_of[p->peer];
}

/* What the peer and this rank have for each other; the peer is a member. */
static inline struct box *group_box(const struct exec_group *g, const struct port *p, int32_t kind)
{
    return &(kind == COMM_OP_SEND ? g->p2p_boxes : g->boxes)[g->rank_of[p->peer]];
}

#endif
