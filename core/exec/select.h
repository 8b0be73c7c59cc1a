/* Which algorithm for which op: a table that can be printed (comm-info --routes) and overridden (a backend's
 * parameter 'algo'). */
#ifndef COMM_EXEC_SELECT_H
#define COMM_EXEC_SELECT_H

#include <stddef.h>
#include <stdint.h>

#include "plan.h"

/* One row of algo.def. */
struct algo {
    int32_t kind;       /* COMM_OP_ALL_REDUCE ... */
    const char *name;   /* "ring" */
    const char *help;   /* one line */
    void (*build)(struct plan *p);
    uint32_t traits;    /* ALGO_ values */
};

enum {
    ALGO_ONE_ROUNDING = 1, /* reduces by REDUCE_RANKS only: fit for 16- and 8-bit floats, AVG of integers, USER,
                            * RANK_ORDER */
    ALGO_WIDE_SUMS = 16,   /* sums in SUMS and SCRATCH, so that its plan can widen: fit for 16- and 8-bit floats. As a
                            * need: one of these two */
    ALGO_UNEVEN = 2,       /* block ops: blocks may differ, each rank knowing only its own sends and receives */
    ALGO_AGREED = 4,       /* block ops: blocks may differ, if all ranks know all lengths */
    ALGO_LEVELS = 8,       /* makes use of plan_set_hosts */
};

/* Which of an op's ranks share memory. */
enum select_memory {
    SELECT_MEMORY_NONE,
    SELECT_MEMORY_ALL,
    SELECT_MEMORY_HOSTS, /* those of one host, and there are several hosts, of which one has several */
};

struct route {
    const struct algo *algo;
    size_t slice_bytes; /* the engine cuts the op into slices of about so many bytes (per chunk for block ops); 0: it
                         * does not */
};

/* What select must know of an op, the same on all ranks. `bytes`: of the vector; of all blocks together for block ops;
 * 0 where a rank knows only its own blocks (ALGO_UNEVEN). */
struct select_query {
    int32_t kind;
    int32_t size;
    int32_t hosts;  /* that the ranks are on; 0: not known */
    size_t bytes;
    uint32_t needs; /* ALGO_ traits that the algorithm must have */
    int memory;     /* enum select_memory */
    int shares_cores; /* this rank's host has more ranks than cores for them; counts where all share memory */
    int kernel_reads; /* all may read each other's memory by the kernel, as far as all know; counts where all share
                       * memory */
};

/* What the user says, or a tuning file: an algorithm for so many ranks, hosts and bytes. */
struct override {
    const struct algo *algo;
    int32_t min_ranks, max_ranks, min_hosts, max_hosts;
    size_t min_bytes, max_bytes;
    size_t slice_bytes; /* SIZE_MAX: the rules' */
};

struct select_overrides {
    size_t count;
    struct override items[];
};

/* The best algorithm that has what is needed. Never fails for the kinds in algo.def. `overrides` is the parsed
 * parameter or NULL, `tuning` what a tuning file has for this backend or NULL; the first that fits counts. */
struct route select_route(const struct select_query *query, const struct select_overrides *overrides,
                          const struct select_overrides *tuning);

/* Parse "all_reduce:ring@64K-1M,broadcast:binomial" (or ";" for ","; first match wins; an algorithm that lacks what is
 * needed is passed over). A range includes its ends, and either may be left out; "/512K" behind sets the slices, "/0"
 * means none. On a malformed text or an unknown op or algorithm returns NULL and writes what is wrong, with the list
 * of what there is, to `error`. destroy(NULL) is fine. */
struct select_overrides *select_overrides_create(const char *text, char *error, size_t capacity);
void select_overrides_destroy(struct select_overrides *o);

/* One item of that, for any ranks and hosts: 0, or -1 with what is wrong in `error`. */
int select_override_parse(const char *text, size_t length, struct override *ret_override, char *error, size_t capacity);

/* For printing: the i-th algorithm (NULL past the end), and a line of the routing table for people. */
const struct algo *select_algo_at(size_t index);
/* "all_reduce  -32K  recursive_doubling"; NULL past the end; for ever. `memory` is an enum select_memory. */
const char *select_rule_at(int memory, size_t index);
/* All of both, a call of `line` for each: a backend's describe_routes. `variable` is the one of its parameter algo. */
void select_describe(int memory, const char *variable, void (*line)(const char *text, void *line_context),
                     void *line_context);

#endif
