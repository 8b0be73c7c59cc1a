/* backend.h: for people who write a backend.
 *
 * A backend moves the data. libcomm's core checks a call, numbers it, records it and hands it over as a `comm_op`;
 * the backend completes the op's `comm_work` exactly once, through the host table. `tcp` is written against this
 * file alone, and so can yours be: it links to nothing of libcomm. Put it in a shared object that exports
 *
 *     COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *host)
 *
 * and name it in COMM_PLUGIN_PATH (libcomm_NAME.so), in the init string ("cpu:/path/libcomm_mine.so"), or by
 * comm_backend_load; or register it from your program with comm_backend_register. libcomm never unloads it.
 *
 * Rules that hold for every slot:
 *  - Structs grow at the end and begin with struct_bytes; read a field only if it lies within. abi_major differs: refused, with both numbers.
 *  - On failure return a status and say why with host->fail(status, "text"). No printing; host->log for what cannot be returned.
 *  - `any`: called from any thread, also at the same time for different groups. For one group, submit calls never overlap.
 *  - A slot that must not block must also not wait for another thread that blocks.
 */
#ifndef COMM_BACKEND_H
#define COMM_BACKEND_H

#include <comm/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

#define COMM_BACKEND_ABI_MAJOR 1
#define COMM_BACKEND_ABI_MINOR 0

#if defined(__GNUC__)
#define COMM_BACKEND_EXPORT __attribute__((visibility("default")))
#else
#define COMM_BACKEND_EXPORT
#endif

/* ---- The op descriptor ------------------------------------------------------------------------ */

/* Kinds of operation. Numbers are part of the ABI and of the wire; new ones are added at the end. */
enum {
    COMM_OP_BROADCAST = 1,
    COMM_OP_ALL_REDUCE = 2,
    COMM_OP_REDUCE = 3,
    COMM_OP_ALL_GATHER = 4,
    COMM_OP_GATHER = 5,
    COMM_OP_SCATTER = 6,
    COMM_OP_REDUCE_SCATTER = 7,
    COMM_OP_ALL_TO_ALL = 8,
    COMM_OP_BARRIER = 9,
    COMM_OP_SEND = 10,
    COMM_OP_RECV = 11,
    COMM_OP_KIND_END
};

/* One side of an op: one contiguous buffer, or blocks, one per rank.
 *   counts == NULL    `count` elements at `data`; an op with a block per rank has `count` in each, one after the other
 *   counts != NULL    counts[r] elements, at data + offsets[r] elements; offsets == NULL: one after the other
 *   list != NULL      block r is at list[r]; counts[r] elements, or `count` if counts == NULL
 * comm_op_block() below hides the difference. */
typedef struct comm_buffers {
    void *data;
    size_t count;
    const size_t *counts;
    const size_t *offsets;
    void *const *list;
} comm_buffers;

/* Flags of an op. Bits 0 to 15 are the user's (COMM_OP_FLAG_ in comm.h), bits 16 to 31 the core's. */
enum {
    COMM_OP_FLAG_WAITING = 1 << 16, /* the caller will wait on the work at once: no need to wake a helper thread */
    COMM_OP_FLAG_UNEVEN = 1 << 17,  /* a _v or _list form: blocks differ */
};

/* What is to be done. Lent during submit only; arrays inside live until the work completes. */
typedef struct comm_op {
    uint32_t struct_bytes;
    int32_t kind;
    comm_dtype dtype;
    comm_redop redop;   /* reducing kinds */
    int32_t root;       /* rooted kinds: the root; SEND, RECV: the peer, or COMM_ANY_SOURCE; else -1 */
    int32_t tag;        /* SEND, RECV. Below COMM_ANY_TAG they are libcomm's own: tags like others, but a receive with COMM_ANY_TAG takes none */
    uint32_t flags;
    comm_device device;
    uint64_t seq;       /* collectives of this group count 1, 2, ... over all its backends, so that one of several sees gaps, the
                         * same on all ranks; point-to-point has a count of its own. 0 in `supports` */
    uint64_t signature; /* the same on all ranks of a matching collective: kind, dtype, redop, root, counts that must agree */
    comm_buffers send, recv; /* a buffer that this rank does not have is all zero */
    int64_t deadline_ns;     /* CLOCK_MONOTONIC, INT64_MAX for none */
    void *stream;
    const void *premul;      /* PREMUL_SUM: one element, in the CPU's memory whatever the device; lives until the work completes */
    comm_reduce_fn reduce_fn; /* USER */
    void *reduce_context;
    const char *label;       /* lives until the work completes; may be NULL */
    int64_t submitted_ns;    /* CLOCK_MONOTONIC; deadline_ns less this is the operation's time limit */
} comm_op;

/* Block `rank` of one side: where it begins; its element count in *ret_count. */
static inline void *comm_op_block(const comm_buffers *side, size_t element_bytes, int32_t rank, size_t *ret_count)
{
    size_t count = side->counts ? side->counts[rank] : side->count;
    size_t offset = 0;
    int32_t r;
    *ret_count = count;
    if (side->list)
        return side->list[rank];
    if (side->offsets)
        offset = side->offsets[rank];
    else if (side->counts)
        for (r = 0; r < rank; r++)
            offset += side->counts[r];
    else
        offset = (size_t)rank * side->count;
    return side->data ? (char *)side->data + offset * element_bytes : NULL;
}

/* ---- What libcomm offers to a backend --------------------------------------------------------- */

typedef struct comm_host {
    uint32_t struct_bytes;
    uint16_t abi_major, abi_minor;
    const char *version; /* of libcomm */

    /* Keep `text` as the thread's error and return `status`.  any */
    comm_status (*fail)(comm_status status, const char *text);
    const char *(*last_error)(void);
    /* Log a line at a COMM_LOG_ level; log_wanted says whether it would go anywhere.  any */
    void (*log)(int32_t level, const char *text);
    int32_t (*log_wanted)(int32_t level);

    /* Complete a work: exactly once. `error` (NULL if status is OK) is copied; unless it begins with what `describe` writes, the
     * operation and the backend's name are put in front. A status that is no error of comm.h's, and OK with an error, count as
     * BACKEND. After it the work and the op's arrays must not be touched. Callbacks of the user may run inside it, so hold no lock that submit or abort takes.  any */
    void (*work_complete)(comm_work *work, comm_status status, const char *error);
    /* Facts about a receive, before it is completed. */
    void (*work_received)(comm_work *work, int32_t source_rank, int32_t tag, size_t count);
    /* 1 once the work has completed; cheap (one acquire load). For loops in `progress`.  any */
    int32_t (*work_done)(const comm_work *work);
    /* The group has ended for a reason that no single work carries (a peer died while idle): later calls get this, and the group
     * ends on its other backends. May be called with locks of the backend's own held; group_abort may follow on another thread.
     * any */
    void (*group_failed)(void *group_token, comm_status status, const char *error);
    /* "all_reduce #12 on group 'world' (rank 2 of 8)": how errors begin. Writes at most `room` bytes.  any */
    void (*describe)(void *group_token, const comm_op *op, char *text, size_t room);

    /* The group's store, for exchanging addresses; keys are private to this backend and group family. get waits; release the
     * data with free_memory. What a rank sets while its world's state opens, up to 8 KiB, all ranks have when the world is open: get
     * then gives it without asking the store. So set a key once. And get fails at once when the world will not open, as another
     * rank could not take part.  any, may block */
    comm_status (*store_set)(void *store, const char *key, const void *data, size_t bytes);
    comm_status (*store_get)(void *store, const char *key, int64_t timeout_ms, void **ret_data, size_t *ret_bytes);
    comm_status (*store_add)(void *store, const char *key, int64_t amount, int64_t *ret_value);
    void (*free_memory)(void *memory);

    /* The CPU reduction kernels (NULL or UNSUPPORTED for an illegal pair); see comm.h section 2 for what they do.
     *   kernel: dst[i] = a[i] OP b[i]; AVG and PREMUL_SUM give the SUM kernel; 16- and 8-bit floats through fp32
     *   reduce_many: dst = sources[0] OP sources[1] ... in order, one rounding, AVG divided
     *   premultiply: dst = src * factor[0];  divide: data /= divisor (f32, f64, complex)  any */
    void (*(*reduce_kernel)(comm_redop redop, comm_dtype dtype))(void *dst, const void *a, const void *b, size_t count);
    comm_status (*reduce_many)(void *dst, const void *const *sources, size_t source_count, size_t count,
                               comm_redop redop, comm_dtype dtype);
    void (*premultiply)(void *dst, const void *src, size_t count, comm_dtype dtype, const void *factor);
    void (*divide)(void *data, size_t count, comm_dtype dtype, int32_t divisor);

    size_t (*dtype_bytes)(comm_dtype dtype);
    const char *(*dtype_name)(comm_dtype dtype);
    const char *(*redop_name)(comm_redop redop);
    const char *(*op_name)(int32_t kind);

    /* A parameter's value: the backend's option in the init string, else the environment, else the table. For a backend of libcomm's
     * own the name is in the table; for others the option or the variable COMM_<BACKEND>_<NAME> is read, and NULL or
     * `initial` returned if neither is set. `group_token` may be NULL: then without the init string.  any */
    const char *(*param_text)(void *group_token, const char *backend, const char *name);
    int64_t (*param_int)(void *group_token, const char *backend, const char *name, int64_t initial);
} comm_host;

/* ---- What a backend offers -------------------------------------------------------------------- */

typedef struct comm_group_info {
    uint32_t struct_bytes;
    int32_t rank, size;
    const int32_t *world_ranks; /* [size]; lives as long as the group */
    int32_t world_rank, world_size;
    uint64_t id;                /* the same on all members, different for each group of the world */
    const char *name;           /* for errors; lives as long as the group */
    const char *secret;         /* of the job; "" if none */
    void *store;                /* for the host's store functions; shared by all groups of the world */
    void *token;                /* the core's group: for the host's functions */
    void *world_state;          /* what group_open gave for the world group of this backend; NULL while that itself is opened */
    comm_device device;
    int64_t timeout_ms;
    int32_t local_size;         /* ranks of the world on this host, as the launcher says; 0: not known */
    const int32_t *hosts;       /* [world_size] the number of each rank's host (comm_group_hosts); lives as long as the world */
} comm_group_info;

typedef struct comm_backend {
    uint32_t struct_bytes;
    uint16_t abi_major, abi_minor; /* COMM_BACKEND_ABI_MAJOR and _MINOR when you compiled */
    const char *name;              /* lower case; as in the init string */
    const char *version;
    const char *license;
    uint32_t devices;              /* bit (1 << COMM_DEVICE_x) for each kind of memory that it serves */
    uint32_t reserved;

    /* Can it be used in this process, now? NULL slot: yes. UNSUPPORTED with a text why not ("no GPU").  any; must not block long */
    comm_status (*query)(void);

    /* Open a group. The first call of a world is for the world group (info->world_state is NULL): join the others as far as needed, publish
     * addresses. If it fails on one rank, the world opens on none, and all have this one's text. Later groups get the world's state and should cost no messages. May block until info->timeout_ms for the world, must not
     * block for others. The world's state is closed after all groups that were opened from it. *ret_state must not be NULL.  any */
    comm_status (*group_open)(const comm_group_info *info, void **ret_state);

    /* End the group with `status` and `reason`: complete every pending work with it, tell the peers, fail
     * what is submitted later. What is not complete a second later is completed by the core: the backend may complete it once more
     * and is not heard, but must have let go of the buffers when group_close returns. May come more than once. The state stays
     * valid.  any, also while other slots run; must not block. */
    void (*group_abort)(void *state, comm_status status, const char *reason);

    /* Give the group back. Pending works have been completed or aborted. May block for a bounded time to deliver what was accepted.
     * `forked` is 1 in a child of fork(): let go of memory and descriptors, send nothing.  any */
    void (*group_close)(void *state, int32_t forked);

    /* Can it do this op? NULL slot: yes to all. UNSUPPORTED with a text. Called before an op gets its number.  any; must not block */
    comm_status (*supports)(void *state, const comm_op *op);

    /* Start `count` ops; works[i] is ops[i]'s. Several ops come from one coalesced batch and must not block each other.
     * Must not block. On failure nothing was started, no work will be completed. A work must come to its end though nobody calls
     * progress for it, unless its op has COMM_OP_FLAG_WAITING. A deadline is best kept by the backend, which knows who is missing:
     * the core ends the group one second after it, and cannot say why. A status that is no error of comm.h's ends the group, too.
     * Ops of one group run in this order (sends and receives may overtake collectives and each other, but not the same pair and tag). */
    comm_status (*submit)(void *state, const comm_op *ops, comm_work *const *works, size_t count);

    /* Help: called by a thread that waits for `work`. Move data until the work is done or `deadline_ns` passes, then return OK. If
     * another thread is doing it, wait (not spin) until the work is done or it is this thread's turn. deadline_ns 0: one short round, no
     * waiting. NULL slot: the backend has threads of its own, and the core sleeps. An error ends the group: the core aborts it, and
     * waits for the works all the same.  any; may block */
    comm_status (*progress)(void *state, comm_work *work, int64_t deadline_ns);

    /* Make `stream` wait for the work. NULL slot: the core waits on the host.  any */
    comm_status (*wait_stream)(void *state, comm_work *work, void *stream);
} comm_backend;

typedef const comm_backend *(*comm_backend_entry_fn)(const comm_host *host);

/* Add a backend of this process's own; a NULL from entry means that it cannot run here (host->fail says why).  any
 * Errors  INVALID (the name is taken, a slot that is needed is missing), VERSION (ABI; the text has both numbers). */
COMM_API comm_status comm_backend_register(comm_backend_entry_fn entry);

#ifdef __cplusplus
}
#endif

#endif
