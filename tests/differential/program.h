/* A random program: which groups there are, and what is called on them in which order. Every rank makes the same one
 * from the same seed. What may differ from rank to rank without changing any result (waiting at once or later, in which
 * order, how, alone or in a batch, how fast) is drawn while the program runs. */
#ifndef COMM_TESTS_DIFFERENTIAL_PROGRAM_H
#define COMM_TESTS_DIFFERENTIAL_PROGRAM_H

#include <comm/comm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { RANKS_MAX = 9, GROUPS_MAX = 24, MAKINGS_MAX = 6, LANES_MAX = 3, STEPS_MAX = 2000 };

/* ---- Groups ---- */

enum how { BY_LIST, BY_SPLIT, BY_DUP, BY_SUBGROUPS };

/* One call that makes groups of a parent; group 0 is the world. */
struct making {
    enum how how;
    int parent;
    int first, count;          /* the groups that it makes: several, without common ranks, by split and subgroups */
    int32_t list[RANKS_MAX];   /* BY_LIST: ranks of the parent */
    int32_t list_size;
    int32_t group_size;        /* BY_SUBGROUPS */
    int32_t color[RANKS_MAX]; /* BY_SPLIT, by rank of the parent; -1 joins none */
    int32_t key[RANKS_MAX];
};

struct group_def {
    int32_t size;
    int32_t world_ranks[RANKS_MAX];
    int lane; /* the thread that drives it */
};

/* ---- Steps ---- */

enum kind {
    BROADCAST,
    ALL_REDUCE,
    REDUCE,
    ALL_GATHER,
    GATHER,
    SCATTER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    BARRIER,
    MESSAGE,       /* root sends to peer */
    FAN_IN,        /* some send to root, which receives from any source */
    ALL_GATHER_BYTES,
    GATHER_BYTES,
    BROADCAST_BYTES,
    SCATTER_BYTES,
    MESSAGE_BYTES, /* root sends to peer */
    MONITORED_BARRIER,
    CHILD,         /* a group is made of this one, used, and closed */
    KIND_COUNT,
};

enum form { PLAIN, UNEVEN, LIST };

/* How a receive names its message. */
enum naming { BY_SOURCE_AND_TAG, BY_TAG, BY_SOURCE };

struct step {
    int number, group;
    int batch; /* steps with the same number above 0 may be coalesced: they follow one another on one group */
    int repeats; /* the number of the earlier step that this one repeats, or -1 */
    enum kind kind;
    enum form form;
    comm_dtype dtype;
    comm_redop redop;
    size_t struct_bytes; /* USER on BYTE: of one element; 0: no struct */
    bool rank_order, specials, in_place, offsets;
    bool on_gpu;         /* the buffers are */
    size_t count;
    size_t longest;      /* of uneven blocks one in `long_one_in` has about so many elements; 0: none */
    size_t long_one_in;
    int32_t root, peer, tag;
    enum naming naming;
    size_t capacity;  /* MESSAGE: how much is received; less than count is an error that is expected */
    uint64_t key; /* of the data */
};

struct program {
    uint64_t seed;
    int32_t size;
    int making_count, group_count, lane_count, step_count;
    struct making makings[MAKINGS_MAX];
    struct group_def groups[GROUPS_MAX];
    struct step steps[STEPS_MAX];
    char backend[480]; /* with options */
    size_t eager_bytes, slice_bytes; /* of these options; 0: none */
    bool hurried;      /* no delays */
    bool has_cpu, has_gpu;
};

/* `backend` is a backend string; "cpu:tcp", "cpu:shm" and "cpu:auto" may get options. */
void program_make(struct program *p, uint64_t seed, int32_t size, int steps, const char *backend);

/* The bytes of one element. */
size_t program_element(const struct step *s);

/* The elements of a step's block from rank `from` to rank `to`; for operations with one block per rank, `to` is that of
 * the block's owner. */
size_t program_count(const struct step *s, int32_t from, int32_t to);

/* One line, without its end. */
void program_print_step(const struct program *p, const struct step *s, FILE *out);
void program_print_groups(const struct program *p, FILE *out);

bool program_reduces(enum kind kind);

#endif
