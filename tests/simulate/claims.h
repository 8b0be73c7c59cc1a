/* What each algorithm promises beyond the right result; its file says why. What is not here promises nothing more. */
#ifndef CLAIMS_H
#define CLAIMS_H

/* Amounts, for p ranks: of messages' rounds, and of vectors (or of all blocks together) that all ranks together send. */
enum amount { ANY, ONE, TWO, LOG_P, P_LESS_1, TWICE_P_LESS_1, P_TIMES_P_LESS_1 };

enum {
    ORDER = 1,        /* reduces in rank order, in some grouping */
    ORDER_FROM_0 = 2, /* ... if the root is rank 0 */
    EVEN = 4,         /* all ranks send the same amount, when size divides the count */
};

struct claim {
    const char *op, *name;
    enum amount rounds, sent;
    int flags;
};

static const struct claim claims[] = {
    { "all_reduce", "recursive_doubling", ANY, ANY, ORDER },
    { "all_reduce", "one_shot", ONE, P_TIMES_P_LESS_1, ORDER | EVEN },
    { "all_reduce", "direct", TWO, TWICE_P_LESS_1, ORDER | EVEN },
    { "all_reduce", "halving_doubling", ANY, ANY, ORDER },
    { "all_reduce", "ring", TWICE_P_LESS_1, TWICE_P_LESS_1, EVEN },
    { "reduce_scatter", "direct", ONE, P_LESS_1, ORDER | EVEN },
    { "reduce_scatter", "ring", P_LESS_1, P_LESS_1, EVEN },
    { "reduce_scatter", "circulant", LOG_P, P_LESS_1, EVEN },
    { "all_gather", "direct", ONE, P_LESS_1, EVEN },
    { "all_gather", "ring", P_LESS_1, P_LESS_1, EVEN },
    { "all_gather", "bruck", LOG_P, P_LESS_1, EVEN },
    { "broadcast", "binomial", LOG_P, P_LESS_1, 0 },
    { "broadcast", "chain", P_LESS_1, P_LESS_1, 0 },
    { "broadcast", "scatter_direct", ANY, P_LESS_1, 0 },
    { "broadcast", "scatter_ring", ANY, P_LESS_1, 0 },
    { "reduce", "binomial", LOG_P, P_LESS_1, ORDER_FROM_0 },
    { "reduce", "direct_gather", TWO, ANY, ORDER },
    { "gather", "linear", ONE, ANY, 0 },
    { "gather", "binomial", LOG_P, ANY, 0 },
    { "scatter", "linear", ONE, ANY, 0 },
    { "scatter", "binomial", LOG_P, ANY, 0 },
    { "all_to_all", "direct", ONE, ANY, EVEN },
    { "all_to_all", "pairwise", P_LESS_1, ANY, EVEN },
    { "all_to_all", "bruck", LOG_P, ANY, EVEN },
    { "barrier", "dissemination", LOG_P, ANY, 0 },
};

#endif
