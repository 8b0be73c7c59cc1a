/* The backend "chaos": it wraps another one and disturbs what goes through, as a seed says.
 *
 * An op comes by `submit`, gets its number, and its faults are drawn (plan.c). It then waits in its batch until it is
 * handed over to the other backend, comes back when that one completes it, and is given back to the core, perhaps later
 * (queue.c). */
#ifndef COMM_CHAOS_H
#define COMM_CHAOS_H

#include <comm/backend.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

extern const comm_host *chaos_host;

/* Does the other backend have the slot? Its table may be shorter than ours. */
#define HAS(inner, slot) \
    ((inner)->struct_bytes >= offsetof(comm_backend, slot) + sizeof((inner)->slot) && (inner)->slot != NULL)

/* ---- plan.c: which fault, and when ---- */

enum fault {
    FAULT_DELAY,
    FAULT_REORDER,
    FAULT_DROP,
    FAULT_LOSE,
    FAULT_KILL,
    FAULT_STALL,
    FAULT_ABORT,
    FAULT_ERROR,
    FAULT_CORRUPT,
    FAULT_END
};

/* How often: "1/1000", "5%", "0", "1", or "@41": op 41 only. */
struct rate {
    uint64_t part, whole; /* part of whole */
    uint64_t at;          /* 0: any */
};

struct plan {
    uint64_t seed, after;
    int64_t delay_ns, stall_ns;
    comm_status status;
    struct rate rates[FAULT_END];
    bool is_off; /* not on this rank, or not in this group */
    int32_t rank; /* in the world */
    uint64_t key; /* of the group */
};

extern const comm_backend_param *const chaos_params[];

/* Read the options for a group. `fresh_seed` is taken if the seed is 0. */
comm_status chaos_plan_read(const comm_group_info *info, uint64_t fresh_seed, struct plan *ret_plan);
/* A number that depends on the seed, the rank, the group, the op and `use` (FAULT_ or DRAW_) alone. */
enum { DRAW_BEGIN_DELAY = FAULT_END, DRAW_END_DELAY, DRAW_WHEN, DRAW_PEER, DRAW_WHERE };
uint64_t chaos_draw(const struct plan *plan, uint64_t op_number, int use);
bool chaos_hits(const struct plan *plan, uint64_t op_number, enum fault fault);
/* From 0 to the plan's longest delay. */
int64_t chaos_draw_delay_ns(const struct plan *plan, uint64_t op_number, int use);

/* ---- Worlds, groups, ops ---- */

struct world {
    const comm_backend *inner;
    void *state; /* the other backend's */
    uint64_t id;
};

enum place { OP_WAITS, OP_IS_THERE, OP_IS_STUCK, OP_IS_BACK };

struct op {
    struct op *next, **at; /* in group->ops, ->back or ->kept */
    struct group *group;
    comm_op op; /* what the other backend gets */
    comm_work *work, *inner;
    uint64_t number; /* among the group's ops on this rank: 1, 2, 3 ... */
    enum place place;
    int64_t due_ns;   /* when it is given back */
    int64_t limit_ns; /* when its time is over, if we keep deadlines */
    bool is_held;     /* until another op has overtaken it, or it is due */
    bool kills;       /* once it has been handed over */
    bool is_dropped;  /* it is not handed over, and gets stuck */
    bool is_lost;     /* a send that is not handed over, and completes */
    bool fails;       /* with the plan's status */
    bool has_failed;  /* so; the other backend has not */
    bool flips;       /* a bit of the result */
    comm_status status;
    char *error;
    void *copy;     /* of the payload, with a bit flipped */
    int references; /* one until it is given back, and one while the other backend's submit or progress looks at it */
};

/* What came by one call of submit. */
struct batch {
    struct batch *next;
    int64_t due_ns;
    size_t count;
    struct op *ops[];
};

struct group {
    const struct world *world;
    const comm_backend *inner;
    void *state, *token; /* the other backend's; the core's */
    int32_t rank, size;
    const int32_t *world_ranks;
    struct plan plan;
    pthread_mutex_t handing; /* held while the other backend's submit is called; before `lock` */
    uint64_t seq, peer_seq;  /* of what the other backend has got; guarded by `handing` */
    uint64_t number;         /* of the last op; guarded by the core, which calls submit */
    bool is_stuck;           /* a collective was dropped; likewise */
    pthread_t thread;        /* hands over and gives back what is due */
    pthread_mutex_t lock;    /* guards what follows; a leaf but for host functions on works that do not call out */
    pthread_cond_t changed;
    struct batch *waiting, **waiting_end; /* in the order of submission */
    struct op *ops;                       /* that are not back */
    struct op *back;                      /* that are, by the time when they are due */
    struct op *kept; /* given back, for wait_stream: the core does not say when a work is released */
    int aborts;
    bool is_closing, is_overdue;
    comm_status end_status; /* of the first abort */
    char *end_reason;
};

/* ---- queue.c ---- */

comm_status chaos_queue_start(struct group *g);
/* Give back all that is left, and end the thread. */
void chaos_queue_stop(struct group *g);
void chaos_queue_finish(struct group *g);
struct op *chaos_op_create(struct group *g, const comm_op *op, comm_work *work);
/* Holds the group's lock. */
void chaos_op_unref(struct op *op);
/* The ops of a batch that is not handed over are no more. */
void chaos_batch_destroy(struct group *g, struct batch *batch);
/* Takes the batch. Hand it over now if it is due and nothing stands before it, else later. If that fails with a CALL
 * status nothing was begun. */
comm_status chaos_queue_add(struct group *g, struct batch *batch);
/* End the group on the other backend, and what that one has not got. */
void chaos_end(struct group *g, comm_status status, const char *reason);
/* Wait until something changes or the deadline passes. Holds the group's lock. */
void chaos_wait(struct group *g, int64_t deadline_ns);

/* ---- faults.c ---- */

/* Log what is done to an op. */
void chaos_tell(int32_t level, const struct group *g, const struct op *op, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Draw the faults of an op that is being submitted, and do what is done at once: the process may end or stop here. Not
 * OK: the op is refused, and the text says so. */
comm_status chaos_disturb(struct group *g, struct op *op);
void chaos_kill(const struct group *g, const struct op *op, const char *when);
/* Flip a bit of what the op has received. */
void chaos_flip_result(const struct group *g, struct op *op);

#endif
