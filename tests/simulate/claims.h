/* What each algorithm promises beyond the right result; its file says why. What is not here promises nothing more. */
#ifndef CLAIMS_H
#define CLAIMS_H

/* Amounts, for p ranks: of messages' rounds, and of vectors (or of all blocks together) that all ranks together send.
 * What crosses from one host to another is claimed in the same words, with the hosts for p: P_LESS_1 is once to each
 * host. */
enum amount { ANY, ONE, TWO, LOG_P, P_LESS_1, TWICE_P_LESS_1, P_TIMES_P_LESS_1 };

enum {
    ORDER = 1,        /* reduces in rank order, in some grouping */
    ORDER_FROM_0 = 2, /* ... if the root is rank 0 */
    EVEN = 4,         /* all ranks send the same amount, when size divides the count */
    BY_HOST = 8,      /* the order is kept only if the ranks of each host follow each other */
};

struct claim {
    const char *op, *name;
    enum amount rounds, sent, crossed;
    int flags;
};

static const struct claim claims[] = {
    { "all_reduce", "recursive_doubling", ANY, ANY, ANY, ORDER },
    { "all_reduce", "one_shot", ONE, P_TIMES_P_LESS_1, ANY, ORDER | EVEN },
    { "all_reduce", "direct", TWO, TWICE_P_LESS_1, ANY, ORDER | EVEN },
    { "all_reduce", "halving_doubling", ANY, ANY, ANY, ORDER },
    { "all_reduce", "ring", TWICE_P_LESS_1, TWICE_P_LESS_1, ANY, EVEN },
    { "all_reduce", "two_level", ANY, TWICE_P_LESS_1, TWICE_P_LESS_1, ORDER | BY_HOST },
    { "all_reduce", "two_level_leaders", ANY, ANY, P_TIMES_P_LESS_1, ORDER | BY_HOST },
    { "reduce_scatter", "direct", ONE, P_LESS_1, ANY, ORDER | EVEN },
    { "reduce_scatter", "ring", P_LESS_1, P_LESS_1, ANY, EVEN },
    { "reduce_scatter", "circulant", LOG_P, P_LESS_1, ANY, EVEN },
    { "reduce_scatter", "two_level", ANY, P_LESS_1, P_LESS_1, 0 },
    { "all_gather", "direct", ONE, P_LESS_1, ANY, EVEN },
    { "all_gather", "ring", P_LESS_1, P_LESS_1, ANY, EVEN },
    { "all_gather", "bruck", LOG_P, P_LESS_1, ANY, EVEN },
    { "all_gather", "two_level", ANY, P_LESS_1, P_LESS_1, 0 },
    { "broadcast", "binomial", LOG_P, P_LESS_1, ANY, 0 },
    { "broadcast", "chain", P_LESS_1, P_LESS_1, ANY, 0 },
    { "broadcast", "scatter_direct", ANY, P_LESS_1, ANY, 0 },
    { "broadcast", "scatter_ring", ANY, P_LESS_1, ANY, 0 },
    { "broadcast", "two_level", ANY, P_LESS_1, P_LESS_1, 0 },
    { "broadcast", "two_level_chain", ANY, P_LESS_1, P_LESS_1, 0 },
    { "reduce", "binomial", LOG_P, P_LESS_1, ANY, ORDER_FROM_0 },
    { "reduce", "chain", P_LESS_1, P_LESS_1, ANY, ORDER_FROM_0 },
    { "reduce", "direct_gather", TWO, ANY, ANY, ORDER },
    { "reduce", "two_level", ANY, P_LESS_1, P_LESS_1, ORDER_FROM_0 | BY_HOST },
    { "reduce", "two_level_chain", ANY, P_LESS_1, P_LESS_1, ORDER_FROM_0 | BY_HOST },
    { "gather", "linear", ONE, ANY, ANY, 0 },
    { "gather", "binomial", LOG_P, ANY, ANY, 0 },
    { "scatter", "linear", ONE, ANY, ANY, 0 },
    { "scatter", "binomial", LOG_P, ANY, ANY, 0 },
    { "all_to_all", "direct", ONE, ANY, ANY, EVEN },
    { "all_to_all", "pairwise", P_LESS_1, ANY, ANY, EVEN },
    { "all_to_all", "bruck", LOG_P, ANY, ANY, EVEN },
    { "barrier", "dissemination", LOG_P, ANY, ANY, 0 },
};

#endif
