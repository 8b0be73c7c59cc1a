/* state.h: what the files of the backend share.
 *
 *   start          MPI in this process: initialised once, finalised at exit if it was us
 *   world          a rank's part of a job: its groups, and one poller thread
 *   group          the state behind one comm_group: two communicators, and the operations that are under way
 *   flight         an operation from submission until MPI is past it
 *
 * Locks: world->lock, then group->lock, then the lock of a serialised MPI. No lock is held while a work is
 * completed. */
#ifndef MPI_STATE_H
#define MPI_STATE_H

#include <comm/backend.h>
#include <pthread.h>
#include <stdatomic.h>

#include "mpi_api.h"

/* Tags on group->own. MPI has at least 32768; from TAG_FLIGHT on, all that it has are of operations. */
enum { TAG_END = 0, TAG_LIBRARY = 8, TAG_FLIGHT = 16384 };

enum { TEXT_BYTES = 1024, KEY_BYTES = 64, FEW_REQUESTS = 8, BLOCKS_MAX = 6, END_BYTES = TEXT_BYTES + 32 };

extern const comm_host *host;

struct group;
struct arrival;

struct world {
    const comm_world_info *info;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* the poller is to wake, or does not use a group any more */
    pthread_t poller;
    atomic_int has_poller, is_idle; /* idle: it sleeps until it is woken */
    int stopping;
    int64_t linger_ms;
    int yields; /* there are more ranks than cores on this host */
    struct group *groups;
    struct group *polled; /* the poller is at it, without the lock: it is not closed meanwhile */
    char *note; /* what this rank has done: note.c */
    size_t note_bytes;
    char **left; /* [size] the notes of ranks that are gone; NULL: none was looked for */
};

struct flight {
    struct flight *next, **at; /* in one of its group's lists */
    struct group *group;
    comm_work *work; /* NULL in the slot `run` */
    comm_op op;
    MPI_Request few[FEW_REQUESTS], *requests;
    int request_count, request_capacity, done_count; /* done: the first ones */
    int receive_count;                           /* the first ones are receives, which MPI can cancel */
    comm_status (*then)(struct flight *f);       /* what follows when all requests are done; may begin new ones */
    MPI_Status received;    /* of a receive: its sender and tag */
    size_t received_bytes;
    int mpi_error; /* of a request */
    comm_status status;
    char *text; /* of `status`, when it is an error */
    void *blocks[BLOCKS_MAX]; /* memory that lives as long as the flight */
    int block_count;
    MPI_Datatype *types;
    int type_count, type_capacity;
    char *scratch;
    size_t part; /* elements that a rank reduces */
    uint64_t number; /* of a collective in its group, from 1: the same on all ranks */
    int64_t began_ns;
    int64_t waited_ns;       /* when a thread that waits for it last looked; 0: none does */
    uint8_t is_busy;      /* a thread is in `then`, without the lock */
    uint8_t is_begun;     /* by `run`; waits for its work */
    uint8_t is_issued;    /* MPI has it */
    uint8_t is_unmatched; /* a receive without a message yet */
    uint8_t is_whole;     /* MPI was past it before the group ended */
};

enum communicator_state { COMMUNICATOR_CONNECTING, COMMUNICATOR_READY, COMMUNICATOR_FAILED };

enum { AWAITS_RANKS, AWAITS_MPI, AWAITS_OWN, AWAITS_OTHERS }; /* own, others: the processes of those ranks */

struct group {
    struct group *next; /* in world->groups */
    struct world *world;
    comm_group_info info[1]; /* a copy; `parent` and `excluded` were lent */
    pthread_mutex_t lock;
    pthread_mutex_t user;   /* while a function of the user's is called */
    pthread_cond_t changed; /* the communicators are ready, or the group has ended */
    enum communicator_state state;
    comm_status failed; /* why there are no communicators */
    char failed_text[TEXT_BYTES];
    atomic_int closing;
    atomic_int abandoned; /* the thread has not ended when the group was closed: only the group is left to it */
    atomic_int awaits; /* what the communicators wait for */
    _Atomic int64_t turn; /* that rank 0 has to pass on; 0: none */
    int has_thread;
    pthread_t thread; /* makes the communicators */
    int is_watched;   /* the thread is one of `awaited` */
    int awaited;      /* threads that wait for the communicators otherwise than by `queued` */
    int64_t connect_ns; /* since when */
    MPI_Comm comm;    /* collectives, and the user's messages */
    MPI_Comm own;     /* messages of libcomm's */
    int asked; /* how often the members were, whether their processes are free */
    struct flight *queued, **queued_end; /* wait for the communicators */
    struct flight *pending, **pending_end;
    struct flight *begun, *free;
    struct arrival *arrivals, **arrivals_end; /* messages that no receive fits yet */
    struct arrival *spare;                    /* memory for the next one */
    int unmatched;                            /* receives without a message */
    uint64_t collectives;                     /* that MPI was given */

    atomic_int ended; /* the status; 0: it lives. The text is written before */
    char ended_text[TEXT_BYTES];
    int told; /* the other ranks know, or are told by another */
    int lost; /* the rank whose loss has ended it, or -1 */
    MPI_Request heard; /* receives the news of an end */
    char heard_text[END_BYTES], end_text[END_BYTES];
    MPI_Request *tellings; /* [size] sends of the news */
    int64_t looked_ns; /* for what the others tell */
    int64_t checked_ns; /* which ranks are there; the poller's */
    int checked_rank, suspect; /* suspect: it was gone at the last look, too */

    int native_ops, direct_ranks;
    int64_t max_count;
};

/* say.c */
void pause_for(int64_t ns); /* less than a second */
comm_status fail(comm_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
comm_status fail_mpi(int error, const char *call); /* COMM_OK for MPI_SUCCESS */
comm_status status_that_ends(comm_status status);  /* BACKEND in place of one that ends no group */
void say_rank(const struct group *g, int rank, char *text, size_t capacity);

/* library.c */
comm_status library_query(void *context);
comm_status library_check(const comm_world_info *info); /* INVALID: its options name another library */

/* signals.c. One window at a time, around opening MPI's library and around initialising MPI. */
void signals_keep(void);
void signals_give_back(void);

/* start.c */
/* card: where this process is in MPI. */
comm_status start_begin(const comm_world_info *info, char *card, size_t capacity);
comm_status start_wait(const struct group *g);   /* until MPI is initialised */
int start_tag_max(void); /* -1: MPI is not initialised yet */
void start_world_closed(int64_t until_ns); /* how long it may wait for MPI */
void start_leak(void);    /* MPI has something of ours that will not end: it is not finalised */
void mpi_lock(void);      /* around calls of MPI; it does nothing where MPI takes several at a time */
void mpi_unlock(void);
int mpi_is_serialised(void); /* known when MPI is initialised */

/* types.c */
enum route { ROUTE_LOCAL, ROUTE_MPI, ROUTE_DIRECT };
enum route route_of(const struct group *g, const comm_op *op);
MPI_Datatype type_of(comm_dtype dtype);
MPI_Op op_of(const struct group *g, comm_redop redop, comm_dtype dtype);
comm_status types_create(void);
void describe_calls(void *context, void (*line)(const char *text, void *line_context), void *line_context);

/* communicator.c */
comm_status communicator_start(struct group *g);
comm_status communicator_usable(const struct group *g);              /* locked */
comm_status communicator_wait(struct group *g, int64_t deadline_ns); /* locked */
void communicator_awaited(struct group *g, int change);              /* not locked: by so many threads more */
void communicator_end(struct group *g);

/* issue.c, direct.c, blocks.c: give the op to MPI. Group locked, but for `then`. */
comm_status issue_op(struct flight *f);
comm_status direct_issue(struct flight *f);
comm_status local_reduce(struct flight *f);
comm_status counted(struct flight *f, size_t bytes, int *ret_count, MPI_Datatype *ret_type);
MPI_Request *request_next(struct flight *f); /* NULL: no memory, and host->last_error says so */
void *flight_memory(struct flight *f, size_t bytes); /* likewise */
typedef char *block_fn(const struct flight *f, int rank, size_t *ret_bytes);
comm_status begun(int error, const char *call, MPI_Request *request);
comm_status send_bytes(struct flight *f, void *data, size_t bytes, int to, int tag, MPI_Comm comm);
comm_status recv_bytes(struct flight *f, void *data, size_t bytes, int from, int tag, MPI_Comm comm);
comm_status exchange(struct flight *f, block_fn *send, block_fn *recv);

/* match.c. The group is locked, and MPI. */
comm_status match_posted(struct flight *f);
void match_arrivals(struct group *g);
void match_drop(struct group *g);
void match_discard(MPI_Comm comm);

/* leaving.c */
void leaving_add(struct group *g, int keeps);
void leaving_look(void);
void leaving_wait(const struct world *w, int64_t until_ns); /* NULL: of all worlds */

/* note.c */
void note_group(struct group *g); /* it is closed here */
void note_leave(struct world *w); /* the world is */
/* What a rank that is gone has left; 0: nothing about the group. *ret_count: how many collectives it has done. The
 * poller calls it. May block for 0.3 s. */
int note_read(struct group *g, int rank, uint64_t *ret_count);
void notes_free(struct world *w);

/* flight.c */
void flight_fail(struct flight *f); /* host->last_error says why */
int flight_is_truncated(const struct flight *f);
comm_status flights_submit(struct group *g, const comm_op *const *ops, comm_work *const *works, size_t count);
comm_status flight_run(struct group *g, const comm_op *op, int64_t spin_ns);
void flights_issue_queued(struct group *g);
int flight_advance(struct flight *f); /* 1: it is over */
void flight_unlink(struct flight *f);
void flight_free(struct flight *f);
void flights_free(struct group *g);

/* poll.c */
struct finished_list {
    struct flight *first, **end;
};
void finished_begin(struct finished_list *list);
void finished_add(struct finished_list *list, struct flight *f);
void finished_complete(struct finished_list *list); /* no lock is held: callbacks of the user may run */
void poll_sweep(struct group *g, struct finished_list *list); /* locked: what is over? */
comm_status poll_wait(struct group *g, comm_work *work, int64_t deadline_ns);
comm_status poller_start(struct world *w);
void poller_wake(struct world *w);
void poller_stop(struct world *w);

/* ending.c. The group's lock is held. */
void flight_cancel(struct flight *f); /* its receives */
void group_end(struct group *g, comm_status status, const char *text, struct finished_list *list);
void group_tell(struct group *g); /* the other ranks that it has ended, if they do not know */
void group_listen(struct group *g);
void group_look(struct group *g, struct finished_list *list); /* has another rank told of an end? */
void group_check_ranks(struct group *g);                      /* not locked; may block for some 0.1 s */
void group_let_go(struct group *g);                           /* not locked: closing */

#endif
