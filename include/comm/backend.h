/* backend.h: for backend authors.
 *
 * A backend moves the data. libcomm's core checks a call, numbers it, records it and hands it over as a `comm_op`; the
 * backend completes the op's `comm_work` exactly once, through the host table. The built-in `tcp` backend is written
 * against this file alone, and a plugin links to nothing of libcomm. Compile it into a shared object that exports
 *
 *     COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *host)
 *
 * and either put it as libcomm_NAME.so into a folder of COMM_PLUGIN_PATH, name its path in the backend string
 * ("cpu:/path/libcomm_mine.so"), or call comm_backend_load. A program can also register a backend of its own with
 * comm_backend_register. libcomm never unloads a plugin.
 *
 * Variants. A backend that exists in several builds, such as one for Open MPI and one for MPICH, is installed as
 * libcomm_NAME.VARIANT.so, one file each. The first variant (in alphabetical order) whose `query` returns OK is NAME.
 *
 * Contents: 1 rules · 2 versions · 3 operations · 4 the host table · 5 worlds and groups · 6 the backend table
 *
 * ---- 1 Rules -----------------------------------------------------------------------------------
 *
 * Memory
 *  - `host` and everything it points to live until the process ends.
 *  - The core copies the comm_backend when it is registered. Strings, params and context that it points to must live
 *    until the process ends.
 *  - An op is lent during the call; comm_op_copy keeps one. Arrays and memory that it points to (buffers, counts,
 *    offsets, lists, premul, label) live until its work completes.
 *  - What was written to the buffers before host->work_complete is visible to every thread that sees the work done.
 *  - State belongs to a world or a group, not to the process: a process can have several worlds, even several ranks of
 *    one world in its threads.
 *
 * Threads
 *  - *any* in a slot's comment: called from any thread, also at the same time for different groups.
 *  - For one group: `submit` and `run` never overlap each other. `supports`, `group_abort`, `progress`, `wait_stream`,
 *    `memory_open` and `memory_close` may overlap these and each other. `group_connect` may overlap `group_abort` only.
 *    `group_close` overlaps nothing; no slot of the group is called after it.
 *  - The core may hold its locks while it calls `submit`, `run`, `supports` and `group_open`. Do not call a user's
 *    function there. host->work_complete is safe there: the core runs the user's callbacks later.
 *  - A slot that must not block must also not wait for a thread that blocks. "Takes microseconds" is the aim.
 *  - What must block (connecting, a collective MPI_Comm_create, a store key that another rank sets) is done by a thread
 *    of the backend's own, while the works stay pending; or in group_connect. One thread per group that connects: a
 *    shared one waits for ever when ranks use two groups first in opposite orders.
 *  - No C++ exception, Rust panic or longjmp may leave a slot. A slot leaves the thread as it found it: its current
 *    device, its signal mask. A backend installs no signal handlers.
 *  - In a child of fork() only group_close and world_close are called, with `forked` 1: threads of the backend are not
 *    there, and locks may be held by those.
 *
 * Failing
 *  - To fail, return a negative status and say why with host->fail(status, "text"). Do not print. What cannot be
 *    returned goes to host->log.
 *  - A CALL status (-1 to -19) means that nothing happened. An OBJECT status (-20 to -39) ends the group: the core ends
 *    it on its other backends, too. A PROCESS status (-40 and below) likewise. A status that does not exist counts as
 *    BACKEND. A work may complete with a CALL status of its own, such as TRUNCATED; the group goes on then.
 *
 * How things end
 *  - A work completes once its buffers are no longer touched: neither read nor written, by host or device.
 *  - Every work completes, even if `progress` is never called, unless its op has COMM_OP_FLAG_WAITING.
 *  - When a peer is lost, complete the pending works with COMM_ERR_PEER_LOST, or call host->group_failed if there are
 *    none; and name each lost rank with host->rank_lost, before the group ends.
 *  - `group_abort` begins the end of a group. It must not block. Works that a backend cannot end at once it completes
 *    when their buffers are free. A second after the abort the core completes the work in the backend's place; the
 *    backend's own completion is then ignored, but its buffers must be free when `group_close` returns. A thread that
 *    is in `progress` returns soon after group_abort, or it could not be told of that second. What blocks, such as
 *    ncclCommAbort, is done by a thread of the backend's own. A backend that cannot get its buffers back
 *    (COMM_BACKEND_CANNOT_CANCEL) logs that in group_close, and leaks what the operations use.
 *
 * Time
 *  - Limits of ops are relative (`timeout_ns`). Blocking slots have an absolute `deadline_ns` of host->now_ns
 *    (CLOCK_MONOTONIC). INT64_MAX: none.
 *  - A backend with COMM_BACKEND_KEEPS_DEADLINES ends the group itself when an op's limit has passed, because it can
 *    say which rank is missing; the core does it three seconds later should the backend not. For other backends the
 *    core ends the group at the limit. To end it is group_abort with COMM_ERR_DEADLINE. A slot's deadline_ns is kept by
 *    the slot alone.
 *
 * Streams (devices with streams, such as GPUs)
 *  - op->stream is ordered before the op: the op reads its buffers after the work already in the stream. NULL is the
 *    device's default stream.
 *  - Without a flag, a work completes when the result is in memory. With COMM_OP_FLAG_ON_STREAM it completes when the
 *    op has been enqueued on op->stream: the call returns without waiting for the device, later work in the stream sees
 *    the result, and the op can be captured into a graph. An error that the device reports later is given to
 *    host->group_failed.
 *  - `wait_stream` orders a stream after a work. It may be called for a work that has completed meanwhile, and may wait
 *    until the op has been enqueued.
 *
 * What an op can be
 *  - Groups of one rank, counts of 0 (`data` may be NULL then), sends to oneself and operations in place reach the
 *    backend like all others. In place is not flagged. Where comm_op_traits.in_place is SAME, it is recv.data ==
 *    send.data; where it is OWN, the side of one buffer begins where comm_op_block of the other side and this rank's
 *    own number does. The core has refused all other overlaps, but for those between the blocks of an uneven all_to_all
 *    with offsets or lists.
 *  - The core has refused every mistake that one rank's arguments show: ranks, tags, counts, pairs of dtype and redop.
 *    It cannot see that ranks call different operations: see COMM_BACKEND_CHECKS_SIGNATURES.
 *  - A backend may refuse what it cannot do (`supports`, UNSUPPORTED): a dtype, COMM_ANY_SOURCE, tags above its limit,
 *    the library's own tags. All ranks must refuse the same: decide by what the ranks have alike.
 *
 * Wrapping another backend
 *  - A backend can wrap another one (host->backend_find): it calls the other's slots with the other's `context`,
 *    world and state, by the same rules as the core. Read a slot only if it lies within the other's struct_bytes; it
 *    may be NULL.
 *  - It opens the other's world and groups with the infos that it was given, or with copies (as much as struct_bytes
 *    says) in which it has changed something: `parent` must be the other's state. Store, options, token and id are the
 *    same for both: keys of the wrapper must differ from the other's. The backend string gives the other's options with
 *    its name in front: "cpu:chaos?seed=7&tcp.lanes=4".
 *  - It hands over the ops that it was given, or copies, with works of its own (host->work_create). The other must know
 *    them: declare the smaller of both op_flags, kind_end, dtype_end and redop_end. If the other gets only some of the
 *    ops, or more, number them anew: its seq must have no gaps.
 *  - It forwards group_abort, group_close, world_close and `forked`; progress with the work that the other has (keep it
 *    under host->work_slot); work_facts, before it completes a receive. group_failed and rank_lost reach the core from
 *    the other itself; after group_failed the core calls the wrapper's group_abort, and so the other's.
 *  - tests/support/delay.c is a whole one; tools/chaos finds the other's name among its options.
 */
#ifndef COMM_BACKEND_H
#define COMM_BACKEND_H

#include <comm/comm.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 2 Versions --------------------------------------------------------------------------------
 *
 * A backend compiled against an older or newer header of the same major version works. Structs grow at the end and
 * begin with struct_bytes: read a field only if it lies within. A backend declares what it knew when it was compiled
 * (COMM_BACKEND_INIT); the core refuses what the backend does not know with COMM_ERR_UNSUPPORTED, and never hands it
 * over. A new field of comm_op that changes what is to be done comes with a new flag. Another major version exports
 * another symbol (comm_backend_entry_2), so one library can serve two. */
#define COMM_BACKEND_ABI_MAJOR 1
#define COMM_BACKEND_ABI_MINOR 0

#if defined(__GNUC__)
#define COMM_BACKEND_EXPORT __attribute__((visibility("default")))
#else
#define COMM_BACKEND_EXPORT
#endif

/* ---- 3 Operations ------------------------------------------------------------------------------ */

/* What kinds of operation are, one row per COMM_OP_ kind of comm.h. A rank has a side if the kind has it and the
 * AT_ROOT and BUT_ROOT traits give it to the rank: in a broadcast the root has send and no recv, the others recv and no
 * send.
 * Sides: NONE, ONE (`count` elements in one buffer), BLOCKS (one block per rank). */
enum { COMM_OP_SIDE_NONE = 0, COMM_OP_SIDE_ONE = 1, COMM_OP_SIDE_BLOCKS = 2 };
/* How recv may coincide with send: not at all, as the same buffer, or one side is this rank's own block of the
 * other. */
enum { COMM_OP_IN_PLACE_NONE = 0, COMM_OP_IN_PLACE_SAME = 1, COMM_OP_IN_PLACE_OWN = 2 };
enum {
    COMM_OP_TRAIT_ROOTED = 1 << 0,
    COMM_OP_TRAIT_REDUCES = 1 << 1,
    COMM_OP_TRAIT_PEER = 1 << 2,          /* point-to-point: op->root is the peer */
    COMM_OP_TRAIT_SEND_AT_ROOT = 1 << 3,  /* only the root has a send side */
    COMM_OP_TRAIT_RECV_AT_ROOT = 1 << 4,  /* only the root has a recv side */
    COMM_OP_TRAIT_RECV_BUT_ROOT = 1 << 5, /* all ranks but the root have a recv side */
    COMM_OP_TRAIT_COUNTS_AGREE = 1 << 6,  /* in an uneven form every rank gives the same counts */
};

typedef struct comm_op_traits {
    const char *name; /* "all_reduce" */
    uint8_t send, recv, in_place, reserved;
    uint32_t traits;
} comm_op_traits;

/* The row of a kind; NULL if this header does not know it. */
static inline const comm_op_traits *comm_op_traits_of(int32_t kind)
{
    static const comm_op_traits table[COMM_OP_KIND_END] = {
        { NULL, 0, 0, 0, 0, 0 },
        { "broadcast", COMM_OP_SIDE_ONE, COMM_OP_SIDE_ONE, COMM_OP_IN_PLACE_SAME, 0,
          COMM_OP_TRAIT_ROOTED | COMM_OP_TRAIT_SEND_AT_ROOT | COMM_OP_TRAIT_RECV_BUT_ROOT },
        { "all_reduce", COMM_OP_SIDE_ONE, COMM_OP_SIDE_ONE, COMM_OP_IN_PLACE_SAME, 0, COMM_OP_TRAIT_REDUCES },
        { "reduce", COMM_OP_SIDE_ONE, COMM_OP_SIDE_ONE, COMM_OP_IN_PLACE_SAME, 0,
          COMM_OP_TRAIT_ROOTED | COMM_OP_TRAIT_REDUCES | COMM_OP_TRAIT_RECV_AT_ROOT },
        { "all_gather", COMM_OP_SIDE_ONE, COMM_OP_SIDE_BLOCKS, COMM_OP_IN_PLACE_OWN, 0, COMM_OP_TRAIT_COUNTS_AGREE },
        { "gather", COMM_OP_SIDE_ONE, COMM_OP_SIDE_BLOCKS, COMM_OP_IN_PLACE_OWN, 0,
          COMM_OP_TRAIT_ROOTED | COMM_OP_TRAIT_RECV_AT_ROOT },
        { "scatter", COMM_OP_SIDE_BLOCKS, COMM_OP_SIDE_ONE, COMM_OP_IN_PLACE_OWN, 0,
          COMM_OP_TRAIT_ROOTED | COMM_OP_TRAIT_SEND_AT_ROOT },
        { "reduce_scatter", COMM_OP_SIDE_BLOCKS, COMM_OP_SIDE_ONE, COMM_OP_IN_PLACE_OWN, 0,
          COMM_OP_TRAIT_REDUCES | COMM_OP_TRAIT_COUNTS_AGREE },
        { "all_to_all", COMM_OP_SIDE_BLOCKS, COMM_OP_SIDE_BLOCKS, COMM_OP_IN_PLACE_SAME, 0, 0 },
        { "barrier", COMM_OP_SIDE_NONE, COMM_OP_SIDE_NONE, COMM_OP_IN_PLACE_NONE, 0, 0 },
        { "send", COMM_OP_SIDE_ONE, COMM_OP_SIDE_NONE, COMM_OP_IN_PLACE_NONE, 0, COMM_OP_TRAIT_PEER },
        { "recv", COMM_OP_SIDE_NONE, COMM_OP_SIDE_ONE, COMM_OP_IN_PLACE_NONE, 0, COMM_OP_TRAIT_PEER },
    };
    return kind > 0 && kind < COMM_OP_KIND_END ? &table[kind] : NULL;
}

/* One side of an op: one contiguous buffer, or blocks, one per rank.
 *   counts == NULL    `count` elements at `data`; a side with a block per rank has `count` in each, one after the other
 *   counts != NULL    counts[r] elements, at data + offsets[r] elements; offsets == NULL: one after the other
 *   list != NULL      block r is at list[r]; counts[r] elements, or `count` if counts == NULL
 * comm_op_block() below hides the difference. */
typedef struct comm_buffers {
    void *data;
    size_t count;
    const size_t *counts;
    const size_t *offsets;
    void *const *list;
    void *memory; /* `memory_open`'s handle if `data` lies in registered memory as a whole, else NULL */
    uint64_t reserved;
} comm_buffers;

/* Flags of an op. Bits 0 to 15 are the user's (COMM_OP_FLAG_ in comm.h), bits 16 to 31 the core's. */
enum {
    COMM_OP_FLAG_WAITING = 1 << 16, /* the caller will wait on the work at once: no need to wake a helper thread */
    COMM_OP_FLAG_UNEVEN = 1 << 17,  /* a _v or _list form: blocks differ */
    COMM_OP_FLAG_BEGUN = 1 << 18,   /* `run` has begun this op: submit only gives it its work */
};
/* All flags of this header. */
#define COMM_OP_FLAGS_KNOWN \
    ((uint32_t)(COMM_OP_FLAG_RANK_ORDER | COMM_OP_FLAG_ON_STREAM | COMM_OP_FLAG_PREMUL_ON_DEVICE | \
                COMM_OP_FLAG_WAITING | COMM_OP_FLAG_UNEVEN | COMM_OP_FLAG_BEGUN))

/* What is to be done. */
typedef struct comm_op {
    uint32_t struct_bytes;
    int32_t kind; /* COMM_OP_ */
    comm_dtype dtype; /* 0 for a barrier */
    comm_redop redop; /* reducing kinds; else 0 */
    int32_t root;     /* rooted kinds: the root; SEND, RECV: the peer, or COMM_ANY_SOURCE; else -1 */
    int32_t tag;      /* SEND, RECV. Below COMM_ANY_TAG they are libcomm's own: tags like others, but a receive with
                       * COMM_ANY_TAG takes none of these */
    uint32_t flags;
    comm_device device; /* kind and index; never DEFAULT. No index: the calling thread's current device */
    uint32_t element_bytes; /* of the dtype; for USER on BYTE the user's. 1 for a barrier */
    uint32_t reserved;
    uint64_t seq;       /* collectives of this group on this backend: 1, 2, 3 ... without gaps, the same on all ranks;
                         * point-to-point has a count of its own. 0 in `supports`: what is refused takes no number */
    uint64_t group_seq; /* the number that users see: collectives of this group over all its backends. 0 in
                         * `supports` */
    uint64_t signature; /* the same on all ranks of a matching collective: of kind, dtype, redop, root, RANK_ORDER, and
                         * the counts that must agree */
    comm_buffers send, recv; /* a side that this rank does not have is all zero */
    int64_t timeout_ns;      /* the time limit, from submission; INT64_MAX: none */
    int64_t submitted_ns;    /* host->now_ns; 0: the core has not read the clock */
    void *stream;
    const void *premul; /* PREMUL_SUM: one element. In the CPU's memory, or with PREMUL_ON_DEVICE where the buffers are;
                         * the core has not touched it then */
    comm_reduce_fn reduce_fn; /* USER */
    void *reduce_context;
    const char *label; /* may be NULL */
} comm_op;

/* Copy an op for as long as it runs: what its struct_bytes and this header both have. What it points to stays the
 * core's. */
static inline void comm_op_copy(comm_op *to, const comm_op *from)
{
    size_t known = from->struct_bytes < sizeof *to ? from->struct_bytes : sizeof *to;
    memset(to, 0, sizeof *to);
    memcpy(to, from, known);
    to->struct_bytes = (uint32_t)known;
}

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

/* ---- 4 The host table --------------------------------------------------------------------------
 *
 * What libcomm offers to a backend. All of it: any thread. "May block" is said where it is so. */

typedef struct comm_backend comm_backend;
typedef void (*comm_work_done_fn)(comm_work *work, comm_status status, const char *error, void *context);

#define COMM_HANDED_OUT INT64_MIN /* store_get: a "timeout" with which no store is asked */

typedef struct comm_host {
    uint32_t struct_bytes;
    uint16_t abi_major, abi_minor;
    const char *version; /* of libcomm */

    /* Keep `text` as the thread's error and return `status`. */
    comm_status (*fail)(comm_status status, const char *text);
    const char *(*last_error)(void);
    /* Log a line at a COMM_LOG_ level; log_wanted says whether it would go anywhere. */
    void (*log)(int32_t level, const char *text);
    int32_t (*log_wanted)(int32_t level);

    /* Complete a work: exactly once. `error` (NULL if status is OK) is copied; unless it begins with what `describe`
     * writes, the operation and the backend's name are put in front. A status that is no error of comm.h's, and OK with
     * an error, count as BACKEND. After it the work and the op's arrays must not be touched. Callbacks of the user may
     * run inside it, so hold no lock that submit or abort takes. */
    void (*work_complete)(comm_work *work, comm_status status, const char *error);
    /* Facts about a receive, before it is completed: for every RECV that gets a message. source_rank is in the group;
     * count in elements, of what was written. */
    void (*work_received)(comm_work *work, int32_t source_rank, int32_t tag, size_t count);
    /* 1 once the work has completed; cheap (one acquire load). For loops in `progress`. */
    int32_t (*work_done)(const comm_work *work);
    /* The group has ended for a reason that no single work carries (a peer died while idle): later calls get this, and
     * the group ends on its other backends. May be called with locks of the backend's own held; group_abort may follow
     * on another thread. */
    void (*group_failed)(void *group_token, comm_status status, const char *error);
    /* "all_reduce #12 on group 'world' (rank 2 of 8)": how errors begin. Writes at most `capacity` bytes. */
    void (*describe)(void *group_token, const comm_op *op, char *text, size_t capacity);

    /* The world's store, for exchanging addresses. Keys are private to this backend and world. Set a key once.
     * What a rank sets while world_open runs, up to 8 KiB, all ranks have when the world is open: get then gives it
     * without asking the store, also after a delete. delete is OK if there is no such key; a rank that asks for the key
     * only afterwards waits until its time limit. get waits for the key; it fails when the world will not open because
     * another rank cannot take part, and with the group's status when the group `group_token` (may be NULL) ends.
     * Release the data with free_memory.  May block, but for a store_get with COMM_HANDED_OUT as timeout_ms: it gives
     * only what was handed out to all ranks when the world opened, else NOT_FOUND. */
    comm_status (*store_set)(void *store, const char *key, const void *data, size_t bytes);
    comm_status (*store_get)(void *store, void *group_token, const char *key, int64_t timeout_ms, void **ret_data,
                             size_t *ret_bytes);
    comm_status (*store_add)(void *store, const char *key, int64_t amount, int64_t *ret_value);
    comm_status (*store_check)(void *store, const char *key, int32_t *ret_exists);
    comm_status (*store_delete)(void *store, const char *key);
    void (*free_memory)(void *memory);

    /* The CPU reduction kernels (NULL or UNSUPPORTED for an illegal pair); see comm.h section 2 for what they do.
     *   kernel: dst[i] = a[i] OP b[i]; AVG and PREMUL_SUM give the SUM kernel; 16- and 8-bit floats through fp32
     *   reduce_many: dst = sources[0] OP sources[1] ... in order, one rounding, AVG divided. PREMUL_SUM only sums: call
     *                premultiply for each rank's input first. USER is refused: call op->reduce_fn. dst may be a source
     *   premultiply: dst = src * factor[0];  divide: data /= divisor (f32, f64, complex) */
    void (*(*reduce_kernel)(comm_redop redop, comm_dtype dtype))(void *dst, const void *a, const void *b, size_t count);
    comm_status (*reduce_many)(void *dst, const void *const *sources, size_t source_count, size_t count,
                               comm_redop redop, comm_dtype dtype);
    void (*premultiply)(void *dst, const void *src, size_t count, comm_dtype dtype, const void *factor);
    void (*divide)(void *data, size_t count, comm_dtype dtype, int32_t divisor);

    size_t (*dtype_bytes)(comm_dtype dtype);
    const char *(*dtype_name)(comm_dtype dtype);
    const char *(*redop_name)(comm_redop redop);
    const char *(*op_name)(int32_t kind);

    /* The value of a parameter that the backend has declared in `params`. Looked up in this order: the option in the
     * backend string ("cpu:tcp?lanes=4") of the world or group whose info gave `options`; the variable
     * COMM_<BACKEND>_<NAME>; the declared default. `options` NULL: without the backend string. Text lends until the
     * group or world is closed. A name that is not declared gives NULL or 0. */
    const char *(*param_text)(const void *options, const char *backend, const char *name);
    int64_t (*param_int)(const void *options, const char *backend, const char *name);

    /* CLOCK_MONOTONIC, in nanoseconds: the clock of all deadlines. */
    int64_t (*now_ns)(void);
    /* A pointer of the backend's own per work: NULL when the op is submitted; valid until the last release of the work,
     * so also in wait_stream after completion. What it points to is freed by the backend, which is not told of the
     * release: keep it in memory that the group owns. */
    void **(*work_slot)(comm_work *work);
    /* A rank of the world is lost to this group: it died, left or cannot be reached. What comm_group_lost_ranks
     * tells. */
    void (*rank_lost)(void *group_token, int32_t world_rank, const char *why);

    /* For a backend that wraps another one (section 1, "Wrapping"). find gives the backend of that name, loading
     * its plugin if need be; NOT_FOUND, or the status of its query. May block.
     *   work_create   a work to submit to the other backend. It belongs to the group but is no operation of the user's:
     *                 it has no number, no record and no deadline. All host functions for works take it
     *   done          is called once, when the other backend completes the work, with the status and the error (NULL if
     *                 none; lent) that it gave; in the thread that completes, so also inside the other's submit,
     *                 progress and group_abort
     *   work_facts    what work_received said of it; -1, -1 and 0 if nothing
     *   work_release  by the creator, once: in done or later, or if the work was not submitted. Works that are left
     *                 when group_close has returned are released by the core, and their done is not called */
    comm_status (*backend_find)(const char *name, const comm_backend **ret_backend);
    comm_status (*work_create)(void *group_token, comm_work_done_fn done, void *context, comm_work **ret_work);
    void (*work_facts)(const comm_work *work, int32_t *ret_source_rank, int32_t *ret_tag, size_t *ret_count);
    void (*work_release)(comm_work *work);
    /* Is that rank's process still there? OK: yes, or it cannot be told; PEER_LOST: it has ended, or has closed its
     * world. For backends whose library would wait for ever: ask when an operation takes long, such as once a second.
     * The first check of a rank connects to it; later ones cost a system call. Only in worlds that were opened with a
     * backend without COMM_BACKEND_NOTICES_LOSS.  May block for 0.1 s. */
    comm_status (*rank_check)(void *group_token, int32_t world_rank);
    /* 1 if the rank is known to be lost: a backend of this rank's has named it with rank_lost. For a group_abort with
     * PEER_LOST: another backend may have noticed, and the other ranks are to be told who is lost.  Does not block. */
    int32_t (*rank_is_lost)(void *group_token, int32_t world_rank);
    /* For `run`: call it once the other ranks have this rank's part of the op, before waiting for theirs, in the thread
     * that `run` was called in. The core does then what nobody waits for: it reads the clock and records the op, which
     * it otherwise does after `run`. Elsewhere it does nothing. */
    void (*run_waits)(void);

    /* Sums of 16- and 8-bit floats that are to be rounded once, but are made in several steps, in fp32.
     *   widening_kernel: sum[i] = a[i] + b[i], a and b of the dtype. NULL for other dtypes, and for ops other than SUM,
     *                    AVG and PREMUL_SUM. The kernel of fp32 goes on with such sums
     *   widen: sum = src;  narrow: dst = sum, to nearest even. For AVG divide the sums before, as fp32
     * The memory of the sums is apart from that of the elements. */
    void (*(*widening_kernel)(comm_redop redop, comm_dtype dtype))(void *sum, const void *a, const void *b,
                                                                   size_t count);
    void (*widen)(float *sum, const void *src, size_t count, comm_dtype dtype);
    void (*narrow)(void *dst, const float *sum, size_t count, comm_dtype dtype);
    /* A sum that is wanted in two places, such as here and in a peer's memory: dst[i] = also[i] = a[i] + b[i], with the
     * same bits as reduce_kernel's. Each of dst and also may be a or b; they are apart from each other. NULL for ops
     * other than SUM, AVG and PREMUL_SUM, for BOOL and for an illegal pair: use reduce_kernel, and copy. */
    void (*(*reduce_to_two_kernel)(comm_redop redop, comm_dtype dtype))(void *dst, void *also, const void *a,
                                                                        const void *b, size_t count);
    /* For `run` that has waited for spin_ns: 1 if it may wait on for other ranks, which are late. 0: another thread
     * wants the group, or the op's limit has passed; return IN_PROGRESS, or UNSUPPORTED. Ask again every few
     * microseconds, in the thread that `run` was called in; elsewhere it is 0.  Does not block. */
    int32_t (*run_may_wait)(void);

    /* Around each call of op->reduce_fn, in the thread that makes it: a call of libcomm's from that function, which may
     * have to wait for this thread, is refused with INVALID. */
    void (*reduce_fn_begins)(void);
    void (*reduce_fn_ends)(void);

    /* Is a work of this process under way that has a callback or a descriptor? Somebody may wait for it to be told,
     * whom a backend does not see: it does not put works off then. May be asked in any thread, often. */
    int32_t (*some_are_told)(void);
} comm_host;

/* ---- 5 Worlds and groups ----------------------------------------------------------------------- */

typedef struct comm_world_info {
    uint32_t struct_bytes;
    int32_t rank, size;
    int32_t local_size;   /* ranks of the world on this host, as the launcher says; 0: not known */
    uint64_t id;          /* the same on all ranks; the world group has it, too. Fresh for each comm_init, so also fit
                           * for names that other jobs could have (shared memory) */
    const char *name;     /* for errors */
    const char *secret;   /* of the job; "" if none */
    const int32_t *hosts; /* [size] the number of each rank's host, from 0, the same on all ranks. Ranks with the same
                           * number share a kernel, /dev/shm and a network (COMM_HOST_ID overrides) */
    void *store;          /* for the host's store functions */
    const void *options;  /* for the host's parameter functions */
    comm_device device;   /* that this rank will use, if the user has said so; else the kind, or DEFAULT */
    int64_t timeout_ms;   /* to come together, and then the default of every operation */
    const char *tuning;   /* the text of the file COMM_TUNING, the same on all ranks; NULL: none. Lines that begin with
                           * the backend's name are for it: docs/tuning.md */
    int32_t local_cores;  /* how many cores the ranks on this rank's host may run on, all of them together, by their
                           * affinity when they joined: with more ranks than this, one that waits should let the others
                           * run. 0: not known */
    int32_t reserved;
} comm_world_info; /* lives as long as the world's state */

typedef struct comm_group_info {
    uint32_t struct_bytes;
    int32_t rank, size;
    const int32_t *world_ranks; /* [size] */
    uint64_t id;                /* the same on all members, different for each group of the world: for keys and names */
    const char *name;           /* for errors */
    const void *options;        /* for the host's parameter functions */
    void *token;                /* the core's group, for the host's functions */
    void *parent;               /* the state, on this backend, of the group that this one was made from. NULL: it had
                                 * none, or this is the world group. Lent during group_open only */
    int32_t everyone;           /* 1: every rank of the parent makes such a group by the same call, so that a collective
                                 * of the parent's can be used in group_connect or at the first op (ncclCommSplit) */
    int32_t excluded_count;     /* shrink: ranks of the parent that are not in this group and do not answer */
    const int32_t *excluded;    /* [excluded_count] ranks in the parent. Lent during group_open only */
    comm_device device;         /* as in comm_world_info */
    int64_t timeout_ms;         /* the default of the group's operations */
    uint64_t call;              /* with `everyone`: the same on all ranks of the parent, and different for each such
                                 * call, so that ranks whose groups differ (comm_group_subgroups) know which belong
                                 * together. 0: not known */
} comm_group_info; /* its pointers live as long as the group's state, where nothing else is said */

/* A piece of memory that collectives will use often: for RDMA registration, peers that map it, NCCL windows. */
typedef struct comm_memory_info {
    uint32_t struct_bytes;
    comm_device device;
    void *data; /* NULL: allocate, and set it. Else register what is there */
    size_t bytes;
} comm_memory_info;

/* ---- 6 The backend table ----------------------------------------------------------------------- */

/* A parameter: an option in the backend string, and the variable COMM_<BACKEND>_<NAME>. comm-info lists it. An option
 * that is not declared, or whose value does not fit, is refused when the group is made. */
enum { COMM_PARAM_INT = 1, COMM_PARAM_BYTES = 2 /* an INT that takes K, M, G */, COMM_PARAM_TEXT = 3 };
/* Added to a kind: all ranks must have the same value, as of what decides which messages an operation is made of. Where
 * the variables of the world's backends differ, comm_init fails on all ranks; it names a variable and two ranks. */
enum { COMM_PARAM_AGREED = 1 << 8 };
typedef struct comm_backend_param {
    uint32_t struct_bytes;
    int32_t kind;           /* COMM_PARAM_INT, BYTES or TEXT, and perhaps | COMM_PARAM_AGREED */
    const char *name;       /* lower case: "lanes" */
    const char *initial;    /* the default, as text */
    int64_t minimum, maximum; /* INT and BYTES */
    const char *help;       /* one line */
} comm_backend_param;

enum {
    COMM_BACKEND_KEEPS_DEADLINES = 1 << 0,   /* see "Time" above */
    COMM_BACKEND_CANNOT_CANCEL = 1 << 1,     /* after an abort, buffers stay in use until the ops end by themselves
                                              * (MPI) */
    COMM_BACKEND_NOTICES_LOSS = 1 << 3,      /* notices by itself that a peer's process has ended, as by its
                                              * connections */
    COMM_BACKEND_CHECKS_SIGNATURES = 1 << 2, /* notices that ranks call different operations: COMM_ERR_MISMATCH */
};

/* How a comm_backend begins: the ABI, and what this header knows. In C:
 *     static const comm_backend mine = { COMM_BACKEND_INIT, .name = "mine", ... };
 * In C++ (before 20):
 *     static comm_backend mine = comm_backend_begun(); mine.name = "mine"; ... */
#define COMM_BACKEND_INIT \
    (uint32_t)sizeof(comm_backend), COMM_BACKEND_ABI_MAJOR, COMM_BACKEND_ABI_MINOR, (uint32_t)sizeof(comm_op), \
        COMM_OP_FLAGS_KNOWN, COMM_OP_KIND_END, COMM_DTYPE_END, COMM_REDOP_END

struct comm_backend {
    uint32_t struct_bytes;
    uint16_t abi_major, abi_minor;
    uint32_t op_bytes, op_flags;
    int32_t kind_end, dtype_end, redop_end; /* these eight by COMM_BACKEND_INIT */
    uint32_t traits;     /* COMM_BACKEND_ values */
    const char *name;    /* lower case; as in the backend string */
    const char *version;
    const char *license;
    const char *devices; /* the kinds of memory that it serves: "cpu", "cuda,hip". A name that libcomm does not know yet
                          * is registered as a new kind (comm_device_parse gives its number) */
    int32_t preference;  /* "auto" takes the usable backend with the highest preference for the device. 0: only by
                          * name */
    uint32_t reserved;
    void *context;       /* given to the slots that have no state: one library can register several backends */
    const comm_backend_param *const *params; /* ends with NULL; NULL: none */
    const comm_backend *next; /* one more backend of the same library, which is taken in with this one; NULL: none */

    /* Can the backend be used in this process, now? No side effects: no MPI_Init, no CUDA context. NULL slot: yes.
     * UNSUPPORTED with a text: why not ("no GPU").  any; must not block long */
    comm_status (*query)(void *context);

    /* Open the world: once per world and rank, before its first group on this backend, which may be a group of some
     * ranks long after the world has come together. Local: it waits for no other rank.
     * What needs the others happens at the first op, or in group_connect. It may publish addresses (store_set). When it
     * fails on one rank while the world opens, the world opens on none, and all ranks have this one's text.
     * *ret_world must not be NULL. world_close comes after all its groups are closed, and may block for a bounded time
     * to deliver what was accepted. `forked` is 1 in a child of fork(): free memory, close descriptors, send
     * nothing. */
    comm_status (*world_open)(void *context, const comm_world_info *info, void **ret_world);
    void (*world_close)(void *world, int32_t forked);

    /* Open a group of the world; the world group is the first, if the backend serves it. One state per group, however
     * many kinds of device the group has named this backend for: op->device tells. The options are then those of the
     * first kind that named it. Local: it waits for no other
     * rank and sends no message, as members may make their groups in different orders. *ret_state must not be NULL.
     * any; must not block */
    comm_status (*group_open)(void *world, const comm_group_info *info, void **ret_state);

    /* Connect to the other members for ops on `device`, which otherwise happens at the first op (NCCL communicators,
     * MPI_Comm_create_group). All members call it (comm_group_connect). NULL slot: nothing to do.  May block until
     * deadline_ns, or until the group is aborted. */
    comm_status (*group_connect)(void *state, comm_device device, int64_t deadline_ns);

    /* End the group with `status` and `reason`: complete every pending work with it, tell the peers, fail what is
     * submitted later. See "How things end". May come more than once. The state stays valid.  any, also while other
     * slots run; must not block */
    void (*group_abort)(void *state, comm_status status, const char *reason);

    /* Give the group back. Pending works have been completed or aborted.  May block for a bounded time. */
    void (*group_close)(void *state, int32_t forked);

    /* Can it do this op? The op is whole but for `seq`, `group_seq`, `submitted_ns` and BEGUN. UNSUPPORTED with a text:
     * why not. The core has refused kinds, dtypes, redops and flags that are not declared. The answer holds: it is not
     * asked again for a call that differs from the group's last one in nothing but its buffers. NULL slot: yes to all.
     * must not block */
    comm_status (*supports)(void *state, const comm_op *op);

    /* Start `count` ops; works[i] is ops[i]'s. Several ops come from one coalesced batch and must not block each other.
     * On failure with a CALL status nothing was started, and no work will be completed. Ops of one group run in the
     * order of submission (sends and receives may overtake collectives and each other, but not a send of the same pair,
     * nor a receive that could take the same message). Takes microseconds; must not block. */
    comm_status (*submit)(void *state, const comm_op *const *ops, comm_work *const *works, size_t count);

    /* Optional: do a small op at once, without a work. The caller waits for it anyway.
     *   OK            done; the buffers are free
     *   IN_PROGRESS   begun, but not done within about `spin_ns`: the same op follows at once in submit, alone, with
     *                 COMM_OP_FLAG_BEGUN
     *   else          not begun, as when submit fails; UNSUPPORTED: not here, use submit
     * It may spin for spin_ns (10 us; some times as long if it goes on meanwhile), but must not sleep or block: the
     * core holds the group's submission lock, so other threads of the group wait meanwhile. If it waits for several
     * ranks it may spin longer, by a quarter of spin_ns for each further one; and as long as host->run_may_wait says so
     * if the backend has nothing else to do meanwhile, yielding the core now and then. Calling host->run_waits before
     * it spins makes small ops faster. The op has the WAITING flag, its numbers, and submitted_ns 0. The core does not
     * call it when a hook of the user's wants to be told of operations. A group_abort may come meanwhile, from another
     * thread; group_close waits until run has returned. If submit then refuses an op that has BEGUN, the group ends
     * with COMM_ERR_BACKEND, since the other ranks go on with it. The op's limit counts for a begun op as for any
     * other. */
    comm_status (*run)(void *state, const comm_op *op, int64_t spin_ns);

    /* Help: called by a thread that waits for `work`. Move data until the work is done or `deadline_ns` passes, then
     * return OK: always OK. If another thread is doing it, wait (not spin) until the work is done or it is this
     * thread's turn. deadline_ns 0: one short round, no waiting. An error ends the group. NULL slot: the backend has
     * threads of its own, and the core sleeps.  any; may block */
    comm_status (*progress)(void *state, comm_work *work, int64_t deadline_ns);

    /* Make `stream` wait for the work. See "Streams". NULL slot: the core waits on the host.  any */
    comm_status (*wait_stream)(void *state, comm_work *work, void *stream);

    /* Allocate or register memory (comm_memory_info). Local. The handle is given back as comm_buffers.memory with ops
     * whose buffers lie within. NULL slots: plain CPU memory can be allocated by the core, and registering does
     * nothing. */
    comm_status (*memory_open)(void *state, comm_memory_info *info, void **ret_handle);
    void (*memory_close)(void *state, void *handle, int32_t forked);

    /* Say which algorithm the backend takes for which op: one call of `line` per line, for people. NULL slot: nothing
     * to say. */
    void (*describe_routes)(void *context, void (*line)(const char *text, void *line_context), void *line_context);

    /* "auto" asks for each group: can the backend serve these members? hosts[r] is the number of member r's host, as in
     * comm_world_info. Decide by nothing else, so that all members decide alike. UNSUPPORTED with a text: why not.
     * NULL slot: yes, wherever they are. any; must not block */
    comm_status (*serves_hosts)(void *context, const int32_t *hosts, int32_t size);
};

/* A table with COMM_BACKEND_INIT, and zero else. */
static inline comm_backend comm_backend_begun(void)
{
    static const struct {
        uint32_t struct_bytes;
        uint16_t abi_major, abi_minor;
        uint32_t op_bytes, op_flags;
        int32_t kind_end, dtype_end, redop_end;
    } head = { COMM_BACKEND_INIT };
    static comm_backend none;
    comm_backend begun = none;
    begun.struct_bytes = head.struct_bytes;
    begun.abi_major = head.abi_major;
    begun.abi_minor = head.abi_minor;
    begun.op_bytes = head.op_bytes;
    begun.op_flags = head.op_flags;
    begun.kind_end = head.kind_end;
    begun.dtype_end = head.dtype_end;
    begun.redop_end = head.redop_end;
    return begun;
}

typedef const comm_backend *(*comm_backend_entry_fn)(const comm_host *host);

/* Add a backend of this process's own. entry returns NULL if it cannot run here (host->fail says why).  any
 * Errors  INVALID (the name is taken, a slot that is needed is missing: world_open, world_close, group_open,
 *         group_close, group_abort, submit), VERSION (ABI; the text has both numbers). */
COMM_API comm_status comm_backend_register(comm_backend_entry_fn entry);

#ifdef __cplusplus
}
#endif

#endif
