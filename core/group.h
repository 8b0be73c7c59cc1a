/* Groups, the world they belong to, and the channels to their backends.
 *
 * Lock order: registry -> world->open_lock -> world->lock -> group->submission -> the watchdog's lock -> the leaves
 * group->lock, hooks->lock, memories->lock, inner_works->lock and batch_lock; monitor_lock, strings_lock and
 * round_robin->lock come before the submission lock. A lock may be taken while those to its left are held, never the
 * other way round. The submission lock is held during backend->submit and run, so a backend completes works there with
 * it held: the core then keeps the users' callbacks back until it is released (comm__callbacks_defer). No other lock is
 * held in a backend's function, except open_lock in world_open.
 *
 *   submit.c       the path of an op to its backend
 *   group.c        ending, flush, queries
 *   group_open.c   opening and closing; the world
 *   round_robin.c  groups whose calls take turns over others
 *   group_make.c   create, split, dup, subgroups, shrink */
#ifndef COMM_CORE_GROUP_H
#define COMM_CORE_GROUP_H

#include <comm/backend.h>
#include <comm/store.h>
#include <pthread.h>
#include <stdatomic.h>

#include "backend_string.h"
#include "base/error.h"
#include "base/futex_lock.h"
#include "cards.h"
#include "device.h"
#include "hook.h"
#include "inner_work.h"
#include "op.h"
#include "pending.h"
#include "recorder.h"
#include "work.h"

enum { WORLD_BACKENDS_MAX = 8, GROUP_NAME_BYTES = NAME_BYTES_MAX + 1 };

/* What the backend string says of a backend. Backends have it as `options`, for the host's parameter functions. */
struct backend_choice {
    const comm_backend *backend;
    const struct backend_pair *pair; /* the name as written, and the options */
};

/* A backend's state of the world: opened once, shared by all groups of the world, closed last. */
struct world_backend {
    struct world *world;
    struct backend_choice choice; /* its pair is `pair` */
    struct backend_pair pair;     /* a copy: the group that needed the backend first may be closed before the world */
    char *pair_memory;
    void *state;
    comm_store *store; /* a view for this backend's keys; the backend knows it as this struct (host.c) */
    comm_world_info info;
};

/* What the groups of one comm_init share; lives until the last of them is closed. */
struct world {
    atomic_int references; /* open groups */
    char *name, *secret;
    char *tuning;              /* the text of the file COMM_TUNING; NULL: none */
    struct candidates *candidates; /* auto.c; guarded by lock */
    comm_store *store;         /* a view with the world's prefix */
    comm_store *rendezvous;    /* the store that comm_init opened; NULL if the user gave one */
    int32_t rank, size;
    int32_t *hosts;            /* [size] the number of each rank's host: host_id.h */
    int32_t local_cores;       /* of this rank's host, that its ranks may run on, together; 0: not known */
    _Atomic uint8_t *lost;     /* [size] 1: a backend has said that this rank is lost */
    int came_together;         /* comm_init has succeeded */
    int takes_leave;           /* rank 0 serves that store, and this rank has joined: see comm__leave */
    comm_group *root; /* the world group, from before its channels open; its memory is kept, as it is the token of the
                       * world states */
    struct joining *joining;   /* while the backends of the world group open; guarded by looking */
    pthread_mutex_t looking;   /* a leaf */
    struct lifelines *lifelines; /* rank_check.c; NULL: ranks cannot be checked */
    struct cards cards;        /* of the ranks, with what their backends need to find each other */
    pthread_mutex_t open_lock; /* guards backends */
    struct world_backend backends[WORLD_BACKENDS_MAX];
    size_t backend_count;
    pthread_mutex_t lock; /* guards the list of open groups, and what auto may take */
    comm_group *groups;
};

/* A group's way to one backend. Constant while the group is open. */
struct channel {
    const comm_backend *backend;
    void *state;
    struct backend_choice choice;
    uint64_t seq, peer_seq; /* of the ops that went to this backend; guarded by the submission lock */
    struct world_backend *opened;
};

/* How often this group has been the parent of one and the same list of ranks. */
struct lineage {
    uint64_t list, count;
};

/* A call as the user made it, if it has neither options nor counts per rank nor lists. */
struct plain_call {
    int32_t kind;
    comm_dtype dtype;
    comm_redop redop;
    int32_t root;
    size_t send_count, recv_count;
    const void *send;
    void *recv;
};

/* Such a call that went to a backend of the group, checked: the next one that is like it needs other buffers and a
 * number. The last one of each kind is kept: programs send and receive in turn. */
struct checked {
    struct plain_call call; /* kind 0: there is none */
    struct op_extent extent;
    struct channel *channel;
    struct record_what record;
    comm_op op;
};

struct monitor;
struct round_robin;

/* Pieces of memory that the group's backends know (memory.h). */
struct memories {
    pthread_mutex_t lock; /* a leaf; guards the list */
    struct comm_memory *first;
    _Atomic size_t count; /* of those that a backend wants to see with ops */
};

struct comm_group {
    struct world *world;
    comm_group *next_open, **at_open; /* in world->groups, and what points to it there; guarded by world->lock */
    uint32_t generation;   /* of forks */
    int32_t rank, size;
    int32_t *world_ranks;
    uint64_t id;
    char name[GROUP_NAME_BYTES];
    char *description;
    char *backend_text;  /* "cpu:tcp?lanes=4" */
    char *backend_asked; /* the same with "cpu:auto", if that was asked for: groups made from this one choose anew */
    struct backend_string string;
    struct round_robin *round_robin; /* of a round-robin group, which has no channels */
    struct channel channels[BACKEND_PAIRS_MAX];
    size_t channel_count;
    comm_device device; /* that the user named; 0: none */
    struct channel *routes[DEVICE_KIND_END]; /* by kind of device; [COMM_DEVICE_DEFAULT] is the only one, or NULL if
                                              * there are several */
    _Atomic int64_t timeout_ms;

    /* the open handle, once it is closed the works that are out, and the world for its root: keep the memory */
    atomic_int references;
    /* threads that are in a backend because of the group, or complete a work of it: close waits for them */
    atomic_int drivers;
    atomic_int closing;

    _Atomic int32_t ended; /* 0, or the status that ended the group; its release publishes ended_text */
    atomic_int ending;     /* the thread that sets it writes ended_text and ended_ns */
    int64_t ended_ns;
    /* a backend has ended the group in a place where the others could not be told; the watchdog does it, once all of
     * them are open */
    atomic_int untold, is_open;
    char ended_text[COMM_ERROR_BYTES];

    /* the submission lock: guards what follows, the channels' numbers, and the setting of `closing` */
    struct futex_lock submission;
    _Atomic uint64_t seq; /* written with the submission lock, read without */
    uint64_t peer_seq;
    struct checked checked[COMM_OP_KIND_END];
    struct recorder recorder;
    struct pending pending;
    comm_work *free_works;
    size_t work_count;                   /* of all_works */
    _Atomic(comm_work *) all_works;      /* grows with the submission lock, read without */
    _Atomic(comm_work *) returned_works; /* see work_return */

    pthread_mutex_t lock; /* guards what follows */
    struct lineage *lineages;
    size_t lineage_count;
    comm_store *user_store;
    pthread_mutex_t monitor_lock; /* held by comm_monitored_barrier throughout: one at a time */
    struct monitor *monitor;

    pthread_mutex_t strings_lock; /* comm_send_bytes: nothing of another string comes between a length and its bytes */
    pthread_mutex_t batch_lock; /* guards free_batches; a leaf: a batch may come back under the submission lock */
    struct batch *free_batches;
    atomic_int is_watched;
    comm_group *next_watched, **at_watched; /* guarded by the watchdog's lock */
    struct inner_works inner_works; /* of backends that wrap others */
    struct hooks hooks;
    struct memories memories;
};

/* ---- submit.c ---- */

/* What every collective ends in: check, then write down (coalescing), or submit, and wait if ret_work is NULL. The
 * second is for calls of the plain form. */
comm_status comm__group_call(comm_group *group, comm_op *op, const comm_op_options *options, comm_work **ret_work);
comm_status comm__group_call_plain(comm_group *group, const struct plain_call *call, const comm_op_options *options,
                                   comm_work **ret_work);

/* Its end: wait, release, and give the work's status. */
comm_status comm__work_finish(comm_work *work);

/* The same for point-to-point messages of the library's own: a tag below COMM_ANY_TAG, no deadline, and flush does not
 * wait for it. */
comm_status comm__group_call_internal(comm_group *group, comm_op *op, comm_work **ret_work);

/* The channel that a prepared op goes to, whose backend can do it; op->device is set. */
comm_status comm__group_route(comm_group *group, comm_op *op, struct channel **ret_channel);

/* Submit routed ops to the channel; `works` gets `count` new ones. `parent` is the work of the batch that they are, or
 * NULL. */
comm_status comm__group_submit(comm_group *group, struct channel *channel, comm_op *const *ops, comm_work **works,
                               size_t count, comm_work *parent);

/* host->run_waits, host->run_may_wait */
void comm__run_waits(void);
int32_t comm__run_may_wait(void);

/* A time limit in nanoseconds: the group's for COMM_TIMEOUT_DEFAULT; INT64_MAX: none. */
int64_t comm__group_limit_ns(const comm_group *group, int64_t timeout_ms);

/* ---- group.c ---- */

/* Can the group be used? FORKED, or why it ended; `call` begins the text. */
comm_status comm__group_usable(const comm_group *group, const char *call);
comm_status comm__fail_forked(const comm_group *group, const char *call);

/* The group has ended: remember the first reason, and end its other channels than `from`. NULL: some backend says so,
 * perhaps with its locks held; the watchdog ends the channels then. */
void comm__group_end(comm_group *group, const struct channel *from, comm_status status, const char *text);
/* A slot of `from` has failed with this status, and this thread's error text says how: a status that ends groups ends
 * this one. Returns the status, and the text is still there. */
comm_status comm__group_end_for(comm_group *group, const struct channel *from, comm_status status);
/* The same from our side: end all channels. */
void comm__group_abort(comm_group *group, comm_status status, const char *text);

/* When the group needs the core because a backend has not done its part, and to do that part then (overdue.c). */
int64_t comm__group_due_ns(comm_group *group);
void comm__group_enforce(comm_group *group);

/* Where the group's ops are, for checks and texts. */
struct op_place comm__group_op_place(const comm_group *group);
/* "group 'g' (rank 2 of 8, world rank 5)": comm__op_place_text. */
void comm__group_place(const comm_group *group, char text[OP_PLACE_BYTES]);
/* "all_reduce #12 on group 'g' (rank 2 of 8, world rank 5)": comm__op_describe. */
void comm__group_describe(const comm_group *group, const comm_op *op, char *text, size_t capacity);
/* "rank 2", or "rank 2 (world rank 5)" where the world has another number for it. */
enum { GROUP_RANK_BYTES = 64 };
void comm__group_rank_text(const comm_group *group, int32_t rank, char text[GROUP_RANK_BYTES]);

/* ---- group_make.c ---- */

/* Begin a name with another one, or with as many of its characters as fit into `most` bytes. Returns how many it
 * has. */
int comm__name_from(const char *other, size_t most, char name[GROUP_NAME_BYTES]);
/* How often a group of this list has been made of `group` before: part of the new one's id, which no other group of the
 * world ever has. And if it was not made after all: the next one of this list has the number that it has on the other
 * ranks. */
comm_status comm__group_count_use(comm_group *group, uint64_t list, uint64_t *ret_count);
void comm__group_uncount_use(comm_group *group, uint64_t list, uint64_t count);

/* ---- group_open.c ---- */

struct group_plan {
    struct world *world; /* one reference is taken if the group opens */
    const comm_group *parent; /* that it is made from; NULL for the world group */
    int32_t everyone;    /* all ranks of the parent make such a group by the same call */
    uint64_t call;       /* which is this one; 0: not by everyone */
    const int32_t *excluded; /* shrink: ranks of the parent that do not take part */
    int32_t excluded_count;
    comm_device device;  /* 0: not named */
    const int32_t *world_ranks;
    int32_t rank, size;
    uint64_t id;
    const char *name, *backend;
    const char *description; /* may be NULL */
    int64_t timeout_ms;
};
/* Are these backends there, for a group that is to be made of this one? */
comm_status comm__group_check_backends(comm_group *parent, const char *text);
/* *ret_known: if this fails, members may have heard of the group all the same, and it is over. */
comm_status comm__group_open(const struct group_plan *plan, comm_group **ret_group, int *ret_known);

/* Why no channel fits a device, and what to do: INVALID (the group has several devices) or UNSUPPORTED (none such). */
comm_status comm__group_no_channel(const comm_group *group, comm_device device, char *text, size_t capacity);
/* "cuda:nccl": what to add to the backend string for buffers on the device. */
enum { CURE_BYTES = 64 };
void comm__device_cure(comm_device device, char text[CURE_BYTES]);

/* The channel for buffers on `device`, and the device as backends know it: with the index that the user has named.
 * `call` begins the text.  Errors  INVALID (the group has several devices), UNSUPPORTED (none such). */
comm_status comm__group_channel(const comm_group *group, const char *call, comm_device device,
                                struct channel **ret_channel, comm_device *ret_device);

/* The world group is opened in steps, as the ranks come together in between (init.c). Choose its backends; it is
 * world->root then, also if that fails, and goes with the world. */
comm_status comm__world_choose(const struct group_plan *plan);
/* What all ranks must have alike: "cpu:tcp?lanes=4", with the options sorted, and paths as the names of what is there.
 * Gives *ret_terms (free). */
comm_status comm__world_terms(struct world *world, char **ret_terms);
/* And what of its backends' parameters that all ranks must have alike is set in the environment, a line each. */
comm_status comm__world_settings(struct world *world, char **ret_settings);
/* The option in the backend string, or NULL: "lanes" for the backend that the string names, or any that "auto" may
 * take; "tcp.lanes" also for a backend that it wraps. */
const char *comm__option_of(const struct backend_choice *choice, const char *backend, const char *name);
/* Open its channels. */
comm_status comm__world_open(struct world *world);
/* All ranks have done so: the group can be used. */
void comm__world_enter(struct world *world, comm_group **ret_group);
/* A round-robin group; takes turns, also if it fails. */
comm_status comm__group_open_round_robin(const struct group_plan *plan, struct round_robin *rr, comm_group **ret_group);

/* comm_group_close for callers that have seen to it that closing is allowed here, or whose group was never used. */
comm_status comm__group_close(comm_group *group);

void comm__group_ref(comm_group *group);
void comm__group_unref(comm_group *group);

/* From stay to let_go close waits, and the memory is kept: for a thread that acts on a group that others may close. */
void comm__group_stay(comm_group *group);
void comm__group_let_go(comm_group *group);

/* Frees a world without groups; half-built ones and NULL are fine. */
void comm__world_destroy(struct world *world, int32_t forked);

/* monitored.c: end the receive that a monitored barrier may have left, so that it is no unfinished work; then free what
 * is left of a closed group's. */
void comm__monitor_hush(comm_group *group);
void comm__monitor_destroy(struct monitor *monitor);

#endif
