/* nccl.h: what the files of the backend share.
 *
 *   world          a rank's part of a job: its groups, and one poller thread
 *   group          the state behind one comm_group: its communicators
 *   communicator   one ncclComm_t: of all ranks of the group, per device; or of the two ranks of a pair, per direction
 *   flight         an operation from submission until the device is past it
 *
 * Locks: world->lock, then group->lock. No lock is held while a work is completed. */
#ifndef NCCL_NCCL_H
#define NCCL_NCCL_H

#include <comm/backend.h>
#include <pthread.h>
#include <stdatomic.h>

#include "nccl_api.h"

enum { TEXT_BYTES = 1024, KEY_BYTES = 96, SCRATCHES_MAX = 40 };

extern const comm_host *host;

struct group;

struct world {
    const comm_world_info *info;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* of the poller */
    pthread_t poller, listener;
    atomic_int has_poller; /* and the listener */
    int has_listener, stopping;
    atomic_int idle; /* the poller sleeps until it is woken */
    struct group *groups;
    struct group *closing; /* no longer among `groups`; their threads have not left */
    struct group *checked; /* the listener looks after the peers of this one, which is not closed meanwhile */
    char *note; /* of what this rank has done: peers.c */
    size_t note_bytes;
    char **left; /* [size] the notes of ranks that have closed their worlds; NULL: none was looked for */
    pthread_cond_t stopped; /* of the listener */
};

/* Whether an operation was submitted with others; then they all enter, which is: come after what their callers' streams
 * have at one moment. */
enum batch_state { BATCH_NONE, BATCH_TO_ENTER, BATCH_ENTERED };

struct flight {
    struct flight *next; /* in one of its communicator's lists, or in to_self */
    struct communicator *at;
    comm_work *work; /* NULL: completed (ON_STREAM) */
    comm_op op;
    cuda_stream stream; /* where it runs: the caller's, or the communicator's */
    cuda_event done;
    nccl_redop made; /* for PREMUL_SUM */
    int64_t began_ns, deadline_ns;
    uint32_t index, generation;
    uint32_t batch;    /* queued flights with the same number are issued as one NCCL group */
    uint64_t submission; /* of the group's, by its number */
    uint64_t number;     /* of the communicator's flights, from 1: the same on all its ranks */
    struct flight *mate; /* of a batch that has not entered yet: the next flight, in a circle */
    uint8_t captured;  /* the operation runs when the graph does: `done` is not recorded */
    uint8_t issued;    /* NCCL has it, and `done` is recorded */
    uint8_t of_batch;  /* enum batch_state */
    uint8_t entered;   /* of a batch: until then, `done` is what the caller's stream had before */
    size_t scratch_at; /* its part of the communicator's scratch memory */
};

struct flight_list {
    struct flight *first, *last;
};

/* WORKING: its thread makes the ncclComm_t, waits for NCCL, and issues what is queued meanwhile. READY: submit issues
 * at once. CALLING: submit does so, without the group's lock. */
enum communicator_state { COMMUNICATOR_WORKING, COMMUNICATOR_READY, COMMUNICATOR_CALLING };

/* Collectives that have been issued, by what NCCL chooses its connections by: a number each, which says its place. */
enum { KNOWN_MAX = 256 };

struct communicator {
    struct communicator *next;
    struct group *group;
    int device;
    int source, target; /* of a pair; -1: all ranks of the group. Equal: copies within this rank, without NCCL */
    int rank, size;     /* in the communicator */
    int number;         /* communicators of this kind that the group had before */
    enum communicator_state state;
    int has_thread, connected, is_finalized;
    pthread_t thread;
    uint64_t given; /* flights */
    int wanted;     /* threads that wait until it is ready */
    int windows;    /* that were to be made */
    const struct communicator *voter; /* a child's that may be made of this one: the ranks vote on it. What is submitted
                                       * meanwhile is queued */
    _Atomic int64_t decide_ns; /* how this one connects, for the sake of limits that wait for it */
    int borrowed; /* a child's thread makes its communicator from this one */
    nccl_comm made; /* what NCCL makes of the root for a child, and writes at any time until the root is ready again */
    int makes_orphan; /* the child has ended before; this one is WORKING, and its thread waits for NCCL */
    nccl_comm root; /* what the ranks have connected: it does not block, so that it can be aborted at any time */
    nccl_comm comm; /* what operations are given to: the root; or with blocking=1 one that is split from it, blocks, and
                     * shares its resources and its flag of abort */
    int is_called;  /* a thread is within a call of `comm` that may block */
    int is_stuck;   /* and has not come back when it was aborted: neither can be freed */
    uint64_t known[KNOWN_MAX];
    cuda_stream stream; /* the backend's own */
    cuda_event entry;   /* orders one stream after another, in passing */
    void *word;         /* for barriers */
    void *scratches[SCRATCHES_MAX]; /* the last one is in use; those before it were outgrown */
    size_t scratch_count, scratch_bytes;
    struct flight_list queued, issuing, pending, captured;
    struct flight *unsaid; /* in `pending`: from here on, works ON_STREAM are not completed yet */
    struct flight *free;
    int64_t began_ns;
    int64_t next_check_ns; /* of deadlines and asynchronous errors */
};

enum { FLIGHTS_PER_CHUNK = 64, CHUNKS_MAX = 4096 };

struct group {
    struct group *next; /* in world->groups, or world->closing */
    struct world *world;
    comm_group_info info[1]; /* a copy; `parent` and `excluded` were lent */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a communicator became ready, a flight was issued, the group has ended */
    struct communicator *communicators;
    struct flight *chunks[CHUNKS_MAX];
    uint32_t chunk_count, batches;
    uint64_t submissions;
    struct flight_list to_self[2]; /* sends and receives with this rank itself that wait for each other */
    struct memory *memories;
    struct group *parent; /* with from_parent=1: to split or shrink from. Guarded by the world's lock */
    uint64_t call;        /* with from_parent=1: the same on all ranks that made the group, or another one of the same
                           * division, by one call; 0: maybe only its members did */
    int32_t callers;      /* how many ranks these are */
    int32_t color;        /* the parent's rank that is rank 0 here: another one in each group of a division */
    int32_t *excluded;    /* a copy, with from_parent=1 */
    int is_closing;       /* no child may begin to use it */
    int32_t last_kind; /* the newest collective, for others' errors; 0: none */
    uint64_t last_seq;

    int64_t checked_ns; /* the listener has looked after the peers; guarded by the world's lock */
    int32_t awaited;    /* ranks that were gone with the store then, whose last messages it waited for */
    atomic_int ended; /* the status; 0: it lives. The text is written before */
    char ended_text[TEXT_BYTES];
    int told; /* the other ranks know that it ended, or are told by another */
    atomic_int store_failed; /* no id of NCCL's could be exchanged: that says nothing about the peers */
    int asks; /* the ender asks the other ranks, or listens to them: the reason is not certain yet */
    comm_status heard; /* while it asks: another rank reports an end of its own */
    char heard_text[TEXT_BYTES];
    int has_ender;
    pthread_t ender;

    int blocking, check_buffers, high_priority, from_parent, group_batches, share, windows, max_ctas;
};

struct memory {
    struct memory *next;
    int device;
    void *data;
    size_t bytes;
    int owned; /* 1: by ncclMemAlloc; 2: by cudaMalloc */
    void *handle;
    nccl_window window;
    nccl_comm comm; /* that `handle` and `window` belong to */
};

/* device.c: the thread's current device, for the time of a slot. */
struct device_scope {
    int before, changed;
};
comm_status device_enter(struct device_scope *scope, int device);
void device_leave(const struct device_scope *scope);
comm_status device_of(comm_device device, int *ret_index);
comm_status device_check_buffer(const void *data, int device, const char *side);
comm_status device_check_reduction(const comm_op *op, int32_t group_size);
comm_status device_check_op(const comm_op *op, int device, int32_t group_size);
/* Calls that CUDA forbids while another thread captures a graph are allowed from here on, as they do not concern it.
 * capture_relax gives what capture_restore takes. */
unsigned int capture_relax(void);
void capture_restore(unsigned int mode);

/* say.c */
void pause_for(int64_t ns); /* less than a second */
comm_status fail(comm_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
comm_status fail_cuda(cuda_status status, const char *call);
comm_status fail_nccl(const struct communicator *c, nccl_status status, const char *call);
comm_status status_that_ends(comm_status status); /* BACKEND in place of one that ends no group */
comm_status status_of_nccl(nccl_status status);
void say_rank(const struct group *g, int rank, char *text, size_t capacity);
void say_communicator(const struct communicator *c, char *text, size_t capacity);

/* types.c */
nccl_type type_of(comm_dtype dtype, size_t *ret_parts);
nccl_redop redop_of(comm_redop redop, comm_dtype dtype, int size);
comm_status op_supported(const comm_op *op, int size); /* of the group */
void describe_calls(void *context, void (*line)(const char *text, void *line_context), void *line_context);

/* issue.c: give ops to NCCL. NCCL_IN_PROGRESS: NCCL goes on by itself. */
nccl_status issue_op(struct communicator *c, struct flight *f);
int op_needs_scratch(const comm_op *op, int size, size_t *ret_bytes);

/* communicator.c */
static inline int is_to_self(const struct communicator *c)
{
    return c->source >= 0 && c->source == c->target;
}
comm_status communicator_want(struct group *g, int device, int source, int target, struct communicator **ret_c);
comm_status communicator_wait_ready(struct communicator *c, int64_t deadline_ns);
/* Until its thread, which has connected it, has issued what there is and left: for 0.1 s at most, or for 2 s if a child
 * is made of it. */
void communicator_settle(struct communicator *c);
comm_status communicator_start_thread(struct communicator *c);
/* With its group's lock. No other thread uses it meanwhile: what is submitted is queued. */
void communicator_hold(struct communicator *p);
void communicator_borrow(struct communicator *p); /* and it stays */
void communicator_give_back(struct communicator *p);
int communicator_connects(const struct communicator *c); /* with the group's lock */
int communicator_makes_child(const struct communicator *c);
int communicator_can_block(const struct communicator *c); /* its calls, with blocking=1 */
void communicator_end(struct communicator *c, int abort); /* no lock is held */
void communicator_key(const struct communicator *c, char key[KEY_BYTES]); /* the same on all its ranks */
void communicator_free(struct communicator *c);

/* Until NCCL has done what it said IN_PROGRESS to, or the deadline; INT64_MAX: or the group has ended. */
nccl_status communicator_wait_for_nccl(const struct communicator *c, nccl_comm comm, int64_t deadline_ns);

/* derive.c: with from_parent=1, on the communicator's thread. *ret_done 0: it is to connect by a unique id. */
comm_status communicator_derive(struct communicator *c, nccl_config *config, int *ret_done);
void communicator_hurry(struct communicator *c, int64_t deadline_ns); /* with the group's lock: this limit waits */

/* flight.c */
comm_status flights_submit(struct group *g, const comm_op *const *ops, comm_work *const *works, size_t count);
comm_status flights_end(struct group *g, const comm_op *const *ops, comm_work *const *works, size_t count);
comm_status flights_issue(struct communicator *c, struct flight_list *list, nccl_status *ret_nccl);
comm_status flights_issued(struct communicator *c);
int flights_must_wait(struct flight *first); /* of what is issued as one NCCL group */
size_t flights_scratch(const struct communicator *c, struct flight *first);
struct flight *flight_of_work(struct group *g, comm_work *work);
void flight_give_back(struct flight *f);
int flights_wait_for_device(const struct flight *first, int64_t until_ns); /* 0: not in time; until 0: asks once */
void flight_append(struct flight_list *list, struct flight *f);
struct flight *flight_remove_first(struct flight_list *list);
comm_status flight_wait_stream(struct group *g, comm_work *work, cuda_stream stream);
void flights_free(struct group *g);

/* poll.c */
struct finished {
    comm_work *work;
    int source; /* of a receive, else -1 */
    size_t count;
};
enum { FINISHED_MAX = 64 };
struct finished_list {
    struct finished entries[FINISHED_MAX];
    size_t count;
};
void finished_take_enqueued(struct group *g, struct finished_list *list); /* locked; those ON_STREAM */
void finished_complete(const struct finished_list *list); /* no lock is held: callbacks of the user may run */
comm_status poller_start(struct world *w);
void poller_wake(struct world *w);
void poller_stop(struct world *w);
void group_finish(struct group *g); /* complete what is finished; no lock is held */
comm_status poll_wait(struct group *g, comm_work *work, int64_t deadline_ns);

/* ending.c. The group's lock is held. */
void group_end(struct group *g, comm_status status, const char *text, int told);
/* A call of NCCL or CUDA has failed, host->last_error says how; the ender finds out which rank is to blame. */
void group_end_failed(struct group *g, comm_status status);
void group_end_late(struct group *g, const struct flight *f);
comm_status group_ended_why(struct group *g); /* fails with the reason, and waits until it is certain */
void group_finish_ending(struct group *g); /* wait until the group is over; no lock is held */

/* alarm.c: how the ranks tell each other of an end, by the world's store. No lock is held. */
int alarm_raise(struct group *g); /* 1: the others hear of the end */
void alarm_look_for_reason(struct group *g); /* g->heard, if another rank has ended the group */
void alarm_look_for_lost(struct group *g); /* for comm_group_lost_ranks */
/* 1: a rank is lost; `text` says which. */
int alarm_name_the_ended(struct group *g, char *text, size_t capacity);
void alarm_ask(struct group *g, const char *what, char *answer, size_t capacity);
void alarm_leave(struct world *w); /* rank 0 has left a note */
char *alarm_get_text(struct world *w, const char *key); /* NULL: not there. free() it */
int alarm_store_answers(struct world *w);
comm_status listener_start(struct world *w);
void listener_stop(struct world *w);

/* peers.c: which peers are gone. No lock is held. */
enum { WHY_BYTES = 192 };
enum peer_state { PEER_THERE, PEER_LEFT, PEER_LOST }; /* LEFT: in good order, and no operation misses it */
/* `why` is written if the rank is gone. The core hears of a lost one. */
enum peer_state peers_look(struct group *g, int rank, char why[WHY_BYTES]);
int peers_lost(struct group *g, char why[WHY_BYTES]); /* the first one, or -1; looks at all */
int32_t peers_gone_with_store(struct group *g); /* how many are gone, if the store does not answer; else 0 */
void peers_note(struct group *g); /* its communicators are gone */
void peers_take_leave(struct world *w); /* closing: tell the others what was noted */
void peers_read_first(struct world *w); /* rank 0 leaves, and the store may end with it */
void peers_free(struct world *w);

/* memory.c */
comm_status nccl_memory_open(void *state, comm_memory_info *info, void **ret_handle);
void nccl_memory_close(void *state, void *handle, int32_t forked);
void memories_register(struct communicator *c);
void memories_forget(struct communicator *c);

#endif
