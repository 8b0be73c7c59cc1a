/* comm.h: communicators of the stand-in NCCL.
 *
 * Ranks share a segment of memory per communicator: a memfd, of which the unique id names the process and the
 * descriptor, so nothing is left when processes are killed. A pair of ranks has a ring of bytes in each direction, and
 * each rank a bell, a futex, that rings when something of it has changed. */
#ifndef STANDIN_COMM_H
#define STANDIN_COMM_H

#include <pthread.h>
#include <stdatomic.h>

#include "standin.h"

#ifndef STANDIN_NCCL_VERSION
#define STANDIN_NCCL_VERSION 23203
#endif

enum { RANKS_MAX = 16, RING_BYTES = 32768, BOARD_BYTES = 64, LOG_ENTRIES = 64, TEXT_BYTES = 120 };

enum kind {
    ALL_REDUCE,
    BROADCAST,
    REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    SEND,
    RECV,
};

/* What ranks must agree on. */
struct signature {
    uint32_t kind, type, redop;
    int32_t root;
    uint64_t count;
};

/* What was made with RedOpCreatePreMulSum has this redop in signatures. */
enum { REDOP_PREMUL = 1000 };

struct ring {
    _Alignas(64) _Atomic uint64_t written;
    _Alignas(64) _Atomic uint64_t read;
    _Atomic uint32_t is_awaited; /* the sender sleeps until more has been read */
    char bytes[RING_BYTES];
};

enum seat_state { SEAT_EMPTY, SEAT_COMING, SEAT_TAKEN, SEAT_LEFT, SEAT_ABORTED };
struct seat {
    _Alignas(64) _Atomic uint32_t bell;
    _Atomic uint32_t sleepers, state;
    int32_t pid, device, size;
    uint64_t host;
    _Atomic uint64_t posted;
    _Atomic uint32_t connects; /* kinds of operations, a bit each */
    char boards[2][BOARD_BYTES];
    /* The last collectives that the rank has begun: number, and the words of the signature. */
    struct {
        _Atomic uint64_t number;
        _Atomic uint64_t words[3];
    } log[LOG_ENTRIES];
};

struct segment {
    char nonce[32];
    _Atomic uint32_t is_closed; /* the process that made it has closed its descriptor */
    _Atomic uint64_t arrivals;  /* of ranks in exchanges */
    struct seat seats[RANKS_MAX];
    struct ring rings[RANKS_MAX][RANKS_MAX]; /* from, to */
};

/* A unique id. */
struct segment_id {
    char magic[8];
    int32_t pid, fd;
    char nonce[32];
};

struct premul {
    bool used, on_device;
    nccl_type type;
    uint64_t scalar; /* its first bytes */
    const void *pointer;
};

enum { PREMULS_MAX = 64, HANDLES_MAX = 256 };

struct abort_flag {
    atomic_bool aborted;
    atomic_int refs;
};

struct ncclComm {
    bool live;
    bool is_blocking, is_finalized;
    atomic_int refs;
    int rank, size, device, number;
    char name[48];
    struct segment *_Atomic segment; /* NULL until the initialisation has come so far */
    uint64_t posted;                 /* boards */
    uint64_t given;                  /* collectives; a split has its place among them */
    struct ncclComm *parent;         /* while the communicator is being made of it */

    atomic_uint result; /* a status; IN_PROGRESS while a job runs */
    struct abort_flag *flag; /* a split shares it with resources */
    atomic_bool gone;
    bool shares; /* its splits share */
    uint32_t connected; /* kinds of operations */
    atomic_ullong owner; /* the thread that uses it, or has it in its group; 0: none */
    int owner_depth;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    int jobs, running; /* jobs and kernels under way */
    struct standin_chain chain;
    atomic_llong peers_checked_ms;

    /* Only kernels, of which one runs at a time. */
    uint64_t collectives, exchanges;
    char *scratch;
    size_t scratch_bytes;

    struct premul premuls[PREMULS_MAX];
    void *handles[HANDLES_MAX];
};

/* One call of an operation. */
struct task {
    struct signature what;
    const void *send;
    void *recv;
    int peer;
    cuda_stream stream;
    struct premul premul;
};

/* error.c */
nccl_status failed(nccl_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
size_t type_bytes(nccl_type type); /* 0: there is no such type in this version */
const char *describe(const struct signature *what, char *text, size_t bytes);

/* segment.c */
nccl_status segment_create(struct segment_id *id);
nccl_status segment_attach(struct ncclComm *comm, const struct segment_id *id);
/* All ranks sit, and no two on one device. */
nccl_status segment_gather(struct ncclComm *comm, const struct segment_id *id);
void segment_leave(struct ncclComm *comm, enum seat_state state);
/* Ring the bell of a rank. */
void bell_ring(struct ncclComm *comm, int rank);
uint32_t bell_read(struct ncclComm *comm);
/* Sleep until the own bell rings after it read `seen`, or a while. False: the communicator was aborted. */
bool bell_await(struct ncclComm *comm, uint32_t seen);
/* What a rank shows when it splits, shrinks, registers a window. */
enum board_kind { BOARD_SPLIT = 1, BOARD_SHRINK, BOARD_WINDOW };
/* Say that this rank comes to connect. */
void segment_announce(struct ncclComm *comm, const struct task *task);
/* Wait until all ranks that an operation like this needs make it for the first time. */
nccl_status segment_connect(struct ncclComm *comm, const struct task *task);
/* Each of the ranks shows `bytes` to the others. */
nccl_status board_exchange(struct ncclComm *comm, const bool *takes_part, const void *own, size_t bytes,
                           char all[RANKS_MAX][BOARD_BYTES]);
/* Look, from time to time, whether the processes of the peers live. */
void peers_check(struct ncclComm *comm);
/* The communicator has failed; the first failure stays. */
void comm_fail(struct ncclComm *comm, nccl_status status);
bool peers_are_silent(void);

/* comm.c */
/* A call of a thread begins: not NCCL_OK with a violation unless the communicator can be used now. */
nccl_status comm_enter(struct ncclComm *comm, const char *call);
/* The same for calls that give something back: also while a call is in progress, and after a failure. */
nccl_status comm_enter_ending(struct ncclComm *comm, const char *call);
void comm_leave(struct ncclComm *comm);
void comm_share_flag(struct ncclComm *child, struct ncclComm *parent);
bool comm_is_live(struct ncclComm *comm, const char *call);
void comm_release(struct ncclComm *comm);
struct ncclComm *comm_create(int rank, int size, int device);

/* config.c */
nccl_status config_read(struct ncclComm *comm, const nccl_config *config, const struct ncclComm *parent);

/* group.c */
struct job {
    struct job *next;
    struct ncclComm *comm; /* that waits for it */
    nccl_status (*run)(struct job *job);
    void (*release)(struct job *job);
    nccl_status status;
    pthread_t thread;
};
/* Run the job now, at the end of the group, or in the background. */
nccl_status job_submit(struct job *job);
/* A call inside of a group has failed: so does the group. Returns the status. */
nccl_status group_failed(nccl_status status);
nccl_status group_add(struct ncclComm *comm, const struct task *task);

/* kernel.c */
struct kernel {
    struct ncclComm *comm;
    int count;
    nccl_status fault; /* STANDIN_ASYNC */
    char text[TEXT_BYTES];
    struct task tasks[];
};
void kernel_run(void *kernel);
void kernel_release(void *kernel);

/* transfer.c */
struct transfer {
    struct signature what;
    bool is_send, is_quiet, is_eager, has_header; /* quiet: no bell rings; eager: a send that is not awaited */
    int peer;
    char *at;
    size_t bytes, moved;
    uint64_t end; /* the place in the ring that the peer must have read */
};
/* Until all are done; false: the communicator was aborted. */
bool transfers_run(struct ncclComm *comm, struct transfer *transfers, int count);
/* The same where every rank sends to all others and receives from them, at most EXCHANGE_BYTES each: the last rank to
 * come wakes the others, once. */
bool transfers_exchange(struct ncclComm *comm, struct transfer *transfers, int count);
enum { EXCHANGE_BYTES = RING_BYTES / 4 };

/* reduce.c */
/* The rank's input, multiplied where the redop says so. */
void reduce_begin(const struct task *task, int size, void *into, const void *from, size_t count);
void reduce_step(const struct task *task, void *into, const void *from, size_t count);
void reduce_end(const struct task *task, int size, void *into, size_t count);

#endif
