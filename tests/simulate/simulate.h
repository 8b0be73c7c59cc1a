/* A simulator of plans: it executes the plans of all ranks on buffers in one process, in a random order of everything
 * that may happen in any order, and says what is wrong with them. No links, no engine: what it finds is the
 * algorithm's fault. */
#ifndef SIMULATE_H
#define SIMULATE_H

#include <stddef.h>
#include <stdint.h>

#include "core/exec/plan.h"

/* An element is reduced by four operations at once, each for a question of its own. */
struct element {
    int64_t sum;      /* is every rank's share in it exactly once? */
    int64_t average;  /* ... and is it divided exactly once, at the end? */
    uint64_t product; /* of 2x2 matrices modulo a prime, which do not commute: is rank order kept? */
    uint64_t hash;    /* neither associative nor commutative: the same bits everywhere, and ((0 op 1) op 2) ...? */
};

/* What is simulated. */
struct setting {
    int32_t kind; /* COMM_OP_ALL_REDUCE ... */
    int32_t size, root;
    const int32_t *hosts;   /* [size] the host of each rank, or NULL: all are on one */
    size_t count;           /* elements of the vector, or of each block */
    const size_t *lengths;  /* block ops: NULL, or the length of what rank i has for rank j at [i * size + j];
                             * all rows alike except for all_to_all */
    int in_place;
    int32_t slices;         /* each runs the same plans on its part of the vector or of each block */
    int rendezvous;         /* a send is done when it has been received; else at once, its bytes copied */
    int keeps_order;        /* check `product`: the algorithm claims that it reduces in rank order, in some grouping */
    int one_rounding;       /* check `hash`: it reduces ((0 op 1) op 2) ... */
    uint64_t seed;
};

/* What came of it. */
struct outcome {
    char error[256];        /* "" if all is well */
    size_t sent_total, sent_most; /* elements sent, by all ranks and by the one that sent most */
    size_t crossed;         /* elements sent from one host to another */
    uint64_t digest;        /* of all results: the same from run to run, whatever the order of events */
};

/* Check the plans (plans[r] is rank r's) and execute them. 0 if all is well. */
int simulate(const struct setting *setting, const struct plan *plans, struct outcome *ret_outcome);

/* How many rounds have messages on any rank. */
int32_t message_rounds(const struct plan *plans, int32_t size);

/* ---- Between the files of the simulator ------------------------------------------------------- */

/* One side of one rank: a vector, or a block per rank. */
struct side {
    struct element *vector;
    struct element **blocks; /* [size]; NULL: this rank does not have it */
    size_t *counts;          /* [size] */
};

struct world {
    const struct setting *setting;
    const struct plan *plans;
    struct outcome *outcome;
    struct element **memory, **expected; /* [size]: all of a rank's memory, and what it should be in the end */
    uint8_t **is_result;                 /* [size]: 1 for elements that the op writes */
    size_t *memory_count;
    struct side *send, *recv;            /* [size] */
    struct element **scratch;            /* [size * slices]: the slots, and behind them SUMS if the plan widens */
    uint64_t random;
};

/* A region, found. */
struct span {
    struct element *data;
    size_t count;
};

/* Always -1; the first text stays. */
int fail(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t next_random(uint64_t *state);
int is_vector_op(int32_t kind);

void element_reduce(struct element *dst, const struct element *a, const struct element *b, size_t count);
void element_divide(struct element *data, size_t count, int32_t divisor);

/* memory.c: lay out the buffers, fill them, compute what should come out; compare. */
int world_open(struct world *w);
int world_compare(struct world *w);
void world_close(struct world *w);
size_t slot_count(const struct world *w, int32_t slice);
int find_region(struct world *w, int32_t rank, int32_t slice, struct plan_region region, struct span *ret_span);

/* check.c: what can be seen without executing: bounds, hazards, one message per pair and round. */
int check_plan(struct world *w, int32_t rank, int32_t slice);

/* execute.c */
int execute(struct world *w);

#endif
