/* comm.h: process groups, collectives and works for any framework in any language.
 *
 * libcomm is what PyTorch's c10d is inside PyTorch, as one small C library. A *store* brings
 * processes together, a *group* is an ordered set of ranks, a *collective* called on a group is
 * routed by device to a *backend*, and the backend completes a *work*.
 *
 *     #include <comm/comm.h>
 *     #include <stdio.h>
 *
 *     int main(void)
 *     {
 *         comm_group *world;
 *         if (comm_init(NULL, &world) != COMM_OK) {
 *             fprintf(stderr, "%s\n", comm_last_error());
 *             return 1;
 *         }
 *         float value = (float)comm_group_rank(world);
 *         comm_status status = comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, NULL);
 *         if (status == COMM_OK)
 *             printf("the ranks add up to %g\n", (double)value);
 *         else
 *             fprintf(stderr, "%s\n", comm_last_error());
 *         comm_group_close(world);
 *         return status != COMM_OK;
 *     }
 *
 * Run it with `commrun -n 4 ./hello`, torchrun, mpirun or srun: comm_init(NULL, ...) finds its rank.
 *
 * How to read this file. A function's comment says what it does for the caller, then, in this
 * order and only where there is something to say:
 *   Shapes    what the buffers hold.          Order    which ranks must call it, and in what order.
 *   Memory    *borrows* during the call, *keeps* until the named event, *takes* (the library
 *             owns it now), *gives* (the caller owns it), *lends* (valid until the named event).
 *   Threads   *any*, or *one at a time* per object.      Errors   which, and what they mean here.
 *
 * Contents: 1 status · 2 types · 3 options · 4 worlds and groups · 5 meshes · 6 collectives
 * · 7 point-to-point · 8 coalescing · 9 byte strings · 10 works · 11 memory · 12 looking inside
 */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <stddef.h>
#include <stdint.h>

#define COMM_VERSION_MAJOR 0
#define COMM_VERSION_MINOR 1
#define COMM_VERSION_PATCH 0

#if defined(__GNUC__)
#define COMM_API __attribute__((visibility("default")))
#else
#define COMM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1 Status ---------------------------------------------------------------------------------
 *
 * Every call that can fail returns a comm_status; 0 is success. The code says what is still usable:
 *
 *   -1 .. -19   CALL     the group (or store) is as usable as before: fix the call and go on. Nothing
 *                        happened, with two exceptions: after TIMEOUT, what was waited for goes on; after TRUNCATED,
 *                        the message has been received as far as it fitted
 *   -20 .. -39  OBJECT   this group (or store) has ended; close it and open another
 *   -40 .. -59  PROCESS  the library, or this handle in this process, cannot be used any more
 *
 * When a call fails, do not use what it would have given (its ret_ arguments). */
typedef int32_t comm_status;

enum {
    COMM_OK = 0,
    COMM_IN_PROGRESS = 1, /* only from comm_work_status: not complete yet */

    COMM_ERR_INVALID = -1,     /* an argument or a configuration text is wrong */
    COMM_ERR_UNSUPPORTED = -2, /* legal, but the backend or the type cannot do it; never replaced */
    COMM_ERR_NO_MEMORY = -3,
    COMM_ERR_NOT_FOUND = -4,   /* no such key, group, backend, rank in group */
    COMM_ERR_TIMEOUT = -5,     /* a wait ended; what was waited for goes on */
    COMM_ERR_SYSTEM = -6,      /* the operating system refused; the text has its message */
    COMM_ERR_VERSION = -7,     /* a struct or plugin is newer or older than can be understood */
    COMM_ERR_TRUNCATED = -8,   /* a message was longer than the receive; the group is still usable */

    COMM_ERR_PEER_LOST = -20, /* a rank died, left, or cannot be reached */
    COMM_ERR_DEADLINE = -21,  /* an operation did not finish in its time and ended its group */
    COMM_ERR_MISMATCH = -22,  /* ranks called different operations; the text spells out both */
    COMM_ERR_PROTOCOL = -23,  /* bytes from a peer made no sense */
    COMM_ERR_ABORTED = -24,   /* here or on another rank: comm_group_abort, or no memory for a byte string */
    COMM_ERR_BACKEND = -25,   /* the backend's own library failed, or the store that it needs, or the kernel could
                               * not read or write this rank's buffer */

    COMM_ERR_FORKED = -40, /* the handle was made before fork(); it lives on in the parent only */
    COMM_ERR_BUG = -41,    /* libcomm broke its own rule; please report the text */
};

enum { COMM_SCOPE_NONE = 0, COMM_SCOPE_CALL = 1, COMM_SCOPE_OBJECT = 2, COMM_SCOPE_PROCESS = 3 };

/* What is still usable after `status`: a COMM_SCOPE_ value.  Threads any. */
COMM_API int32_t comm_status_scope(comm_status status);

/* The name of a status, such as "COMM_ERR_PEER_LOST"; never NULL.  Memory lends, for ever.  Threads any. */
COMM_API const char *comm_status_name(comm_status status);

/* The text of this thread's latest failed call: what was being done, what happened, which rank and
 * address, and the cure if it is known. Empty if no call has failed.
 * There is one text per thread of the operating system, so it must be read on the thread that called, before anything
 * else is called there. Languages that move a task between threads (Go, async Rust, fibres) must pin the task from the
 * call until the text is copied: runtime.LockOSThread in Go, no await in between in Rust. A work keeps its own text
 * (comm_work_error), which any thread can read.
 * Memory   lends, until this thread's next failing call.   Threads  any. */
COMM_API const char *comm_last_error(void);

/* Release memory that libcomm gave where the manual says comm_free. NULL is fine.  Threads any. */
COMM_API void comm_free(void *memory);

/* Memory that libcomm can release, for what a store of your own gives back (comm/store.h); NULL if there is none left.
 * It is libc's malloc, for languages that do not have that at hand.
 * Memory   gives `bytes` bytes, 0 included (comm_free).   Threads  any. */
COMM_API void *comm_alloc(size_t bytes);

/* The version of the library that is linked, "0.1.0", and the number major * 10000 + minor * 100 + patch.
 * Memory  lends, for ever.   Threads  any. */
COMM_API const char *comm_version(void);
COMM_API int32_t comm_version_number(void);
/* The reduction kernels that this CPU runs: "avx512", "avx2", "sse2", "neon" ... (COMM_SIMD chooses).
 * Memory  lends, for ever.   Threads  any. */
COMM_API const char *comm_kernels(void);

/* ---- 2 Types ---------------------------------------------------------------------------------- */

typedef struct comm_group comm_group; /* an ordered set of ranks; the first one is the world */
typedef struct comm_work comm_work;   /* one operation under way or done */
typedef struct comm_store comm_store; /* comm/store.h */

/* Element types. A 16- or 8-bit float is reduced in fp32. BYTE is for moving raw bytes, and for structs that a function
 * of the user's reduces (COMM_REDOP_USER with options->element_bytes); no other reduce op takes it. BOOL is one byte, 0
 * is false and anything else true; results are 0 or 1. */
typedef int32_t comm_dtype;
enum {
    COMM_DTYPE_I8 = 1,
    COMM_DTYPE_U8 = 2,
    COMM_DTYPE_I16 = 3,
    COMM_DTYPE_U16 = 4,
    COMM_DTYPE_I32 = 5,
    COMM_DTYPE_U32 = 6,
    COMM_DTYPE_I64 = 7,
    COMM_DTYPE_U64 = 8,
    COMM_DTYPE_BOOL = 9,
    COMM_DTYPE_F16 = 10,
    COMM_DTYPE_BF16 = 11,
    COMM_DTYPE_F32 = 12,
    COMM_DTYPE_F64 = 13,
    COMM_DTYPE_F8E4M3 = 14, /* the OCP "fn" form: no infinities, overflow becomes NaN */
    COMM_DTYPE_F8E5M2 = 15, /* OCP, with infinities */
    COMM_DTYPE_C64 = 16,    /* two f32: real, imaginary */
    COMM_DTYPE_C128 = 17,   /* two f64 */
    COMM_DTYPE_BYTE = 18,
    COMM_DTYPE_END /* one more than the last */
};

/* Reduce ops. The numbers are c10d's.
 *
 *   SUM PRODUCT      integers wrap around; BOOL: SUM is "or", PRODUCT is "and"
 *   AVG              the sum divided by the number of ranks. Integers: the exact sum (it cannot
 *                    overflow on the way), divided toward zero. Not for BOOL.
 *   MIN MAX          not for complex. If any operand is NaN the result is the canonical quiet NaN. -0 counts as smaller
 *                    than +0.
 *   BAND BOR BXOR    integers and BOOL only
 *   PREMUL_SUM       each rank's input times its own options->premul, then summed. Not for BOOL. The product is rounded
 *                    to the type (integers: wraps around) before it is summed: two roundings, never a fused one.
 *   USER             options->reduce_fn, in rank order
 *
 * What follows holds for backends that reduce with libcomm's own kernels, as tcp does on the CPU, for every size and
 * algorithm. The result is the same bits on every rank, and from run to run for the same shape. Floats are rounded to
 * nearest even; 16- and 8-bit floats are reduced in fp32 and rounded once, at the end (PREMUL_SUM: also each product).
 * A NaN that is made or passed on is the quiet NaN without sign and payload; only a group of one rank, where SUM, AVG
 * and PRODUCT copy, keeps the one that it is given. docs/reduce.md has every rule.
 *
 * A backend that leaves reducing to another library has that library's rules, and says so in its manual:
 *
 *                          order of floats            MIN, MAX with NaN     16- and 8-bit floats        RANK_ORDER
 *   libcomm's kernels      fixed for a shape          NaN                   fp32, one rounding          yes
 *   NCCL, RCCL             fixed for a shape and      up to the library     rounded at each step, or    UNSUPPORTED
 *                          a number of channels                             as the library does
 *   MPI                    up to the library          up to the library     UNSUPPORTED unless the      UNSUPPORTED
 *                                                                           backend reduces itself
 *
 * A pair that a backend cannot do is refused with UNSUPPORTED, never replaced by another one; comm_group_supports
 * tells. */
typedef int32_t comm_redop;
enum {
    COMM_REDOP_SUM = 0,
    COMM_REDOP_AVG = 1,
    COMM_REDOP_PRODUCT = 2,
    COMM_REDOP_MIN = 3,
    COMM_REDOP_MAX = 4,
    COMM_REDOP_BAND = 5,
    COMM_REDOP_BOR = 6,
    COMM_REDOP_BXOR = 7,
    COMM_REDOP_PREMUL_SUM = 8,
    COMM_REDOP_USER = 9,
    COMM_REDOP_END /* one more than the last */
};

/* Kinds of operation. The numbers are part of the backend ABI and of the wire; new ones are added at the end. */
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
    COMM_OP_KIND_END /* one more than the last */
};

/* Where a buffer is: a kind of memory, and optionally which device of that kind. A kind's number alone means "the
 * calling thread's current device"; comm_device_at(COMM_DEVICE_CUDA, 1) is "cuda:1". DEFAULT means the group's only
 * kind. The list of kinds is open: a backend can bring one of its own, which then has a number in this process
 * (comm_device_parse) and a name in backend strings ("npu2:mine").
 *
 * A buffer of an operation on the CPU that lies in a CUDA device's memory is refused (INVALID) if the process has
 * loaded CUDA's driver, which is asked about buffers that are not those of the call before; managed and pinned memory
 * is the CPU's. Nothing is copied between devices. */
typedef int32_t comm_device;
enum {
    COMM_DEVICE_DEFAULT = 0,
    COMM_DEVICE_CPU = 1,
    COMM_DEVICE_CUDA = 2,
    COMM_DEVICE_HIP = 3,
    COMM_DEVICE_XPU = 4,
    COMM_DEVICE_NPU = 5,
    COMM_DEVICE_HPU = 6,
    COMM_DEVICE_METAL = 7,
    COMM_DEVICE_OTHER = 8,
};

/* A device of kind and index, and its parts. Without an index comm_device_index gives -1. */
static inline comm_device comm_device_at(int32_t kind, int32_t index)
{
    return (comm_device)((uint32_t)kind | (uint32_t)(index + 1) << 8);
}
static inline int32_t comm_device_kind(comm_device device)
{
    return device & 0xff;
}
static inline int32_t comm_device_index(comm_device device)
{
    return (device >> 8) - 1;
}

/* Names and sizes. An unknown number gives NULL or 0; an unknown name gives INVALID with the list
 * of names. Names: "f32", "bf16", "f8e4m3" ...; "sum", "avg" ...; "cpu", "cuda" ...  Threads any. */
COMM_API size_t comm_dtype_bytes(comm_dtype dtype);
COMM_API const char *comm_dtype_name(comm_dtype dtype);
COMM_API comm_status comm_dtype_parse(const char *name, comm_dtype *ret_dtype);
COMM_API const char *comm_redop_name(comm_redop redop);
COMM_API comm_status comm_redop_parse(const char *name, comm_redop *ret_redop);
COMM_API const char *comm_device_name(comm_device device); /* of the kind: "cuda" */
COMM_API comm_status comm_device_parse(const char *name, comm_device *ret_device); /* "cuda", "cuda:1" */

/* 1 if `redop` can reduce `dtype`, else 0 (the CPU backends do every pair for which this is 1). */
COMM_API int32_t comm_redop_supports(comm_redop redop, comm_dtype dtype);

/* ---- 3 Options --------------------------------------------------------------------------------
 *
 * Every options struct begins with struct_bytes, set by its _INIT macro; every other field may stay
 * zero, which means the default. A NULL options pointer means all defaults. A struct from a newer
 * header is taken as long as the fields that this library does not know are zero; one from an older
 * header leaves the newer fields at their defaults. Structs that a call fills in (comm_..._info) work
 * the other way round: set struct_bytes to their sizeof first, and no more than that is written.
 *
 * Names of worlds, groups and mesh dimensions and labels of operations are UTF-8 without control characters, of at most
 * 95 bytes (a world's: 47); others are refused with INVALID, none is cut. A record keeps the first 23 bytes of a label,
 * in whole characters. Descriptions and reasons may be of any length. */

/* Time limits are in milliseconds. When an operation's has passed, the other ranks are asked what they are doing; the
 * error that says so comes within half a second after the limit. What 0 and COMM_TIMEOUT_INFINITE mean:
 *
 *                                            0                              INFINITE
 *   comm_init_options.timeout_ms             30 min                         no limit
 *   comm_group_options.timeout_ms            the parent's                   no limit
 *   comm_op_options.timeout_ms               the group's                    no limit
 *   of comm_coalesce_end                     each operation's own           no limit but the operations' own
 *   comm_group_connect                       the group's                    no limit
 *   comm_group_set_timeout                   INVALID                        no limit
 *   comm_work_wait, comm_work_wait_all,      no limit but the operations'   the same
 *     comm_group_flush                       own
 *   comm_store_options.timeout_ms            5 min                          no limit
 *   timeout_ms of a store's calls            the store's                    no limit
 *   comm_store_set_timeout                   5 min                          no limit
 *
 * No call takes 0 for "do not wait": that is comm_work_test, and COMM_STORE_NO_WAIT for queues. Without a limit, abort
 * and dead peers still end the wait. */
#define COMM_TIMEOUT_DEFAULT ((int64_t)0)
#define COMM_TIMEOUT_INFINITE ((int64_t)-1)

#define COMM_ANY_SOURCE (-1) /* comm_recv: from whichever rank sends first */
#define COMM_ANY_TAG (-1)    /* comm_recv: with any tag. 0 is an ordinary tag and the default */

/* A reduction of the user's: for each i, inout[i] = in[i] OP inout[i], where `in` comes from lower
 * ranks than `inout` (MPI_User_function's order). The operation must be associative; it need not
 * be commutative. It is called on a thread that drives the group, one call at a time per group, and must not call
 * libcomm: what would use a group is refused there with INVALID. A call gets some of the elements, from 1 to all of
 * them. `in` and `inout` are aligned for `dtype` if the buffers that were given to the operation are. For BYTE with
 * options->element_bytes, `count` is in elements of that size, whole ones only; the function gets the size by its
 * context, and addresses are multiples of it from the start of the buffer, not aligned. */
typedef void (*comm_reduce_fn)(const void *in, void *inout, size_t count, comm_dtype dtype, void *context);

enum {
    /* Reduce ((0 op 1) op 2) ... whatever the size and the algorithm. All ranks give it, or none. UNSUPPORTED on a
     * backend that cannot. */
    COMM_OP_FLAG_RANK_ORDER = 1 << 0,
    /* Devices with streams: the operation is done when it has been enqueued on options->stream; later work in the
     * stream sees the result. A call without ret_work then returns without waiting for the device, and can be captured
     * into a graph. (c10d's synchronous collectives on a GPU.) Without it, a call that waits returns when the result is
     * in memory. */
    COMM_OP_FLAG_ON_STREAM = 1 << 1,
    /* options->premul is in the memory of the operation's device, and is read by that device when the operation runs:
     * it is kept until the work completes (with ON_STREAM: until the stream is past the operation), and no CPU reads
     * it. Without effect on the CPU. */
    COMM_OP_FLAG_PREMUL_ON_DEVICE = 1 << 2,
};

typedef struct comm_op_options {
    uint32_t struct_bytes;
    uint32_t flags;          /* COMM_OP_FLAG_ values */
    int64_t timeout_ms;      /* for this operation; when it passes, the group ends with DEADLINE, whether or not a
                              * thread waits for it: within half a second by tcp, at once where the backend keeps no
                              * deadlines */
    int32_t tag;             /* send and recv; 0 .. INT32_MAX, or COMM_ANY_TAG to receive */
    comm_device device;      /* where the buffers are; needed only if the group has several devices */
    void *stream;            /* devices with streams: the operation reads and writes its buffers after the work that is
                              * in this stream already. NULL is the device's default stream, not "no stream". Unused on
                              * the CPU */
    const void *premul;      /* PREMUL_SUM: borrows one element of the call's dtype, in memory that the CPU can read, or
                              * see COMM_OP_FLAG_PREMUL_ON_DEVICE. In other operations INVALID, if it is not NULL */
    comm_reduce_fn reduce_fn; /* USER. In other operations INVALID, if it is not NULL */
    void *reduce_context;    /* USER: given to reduce_fn; keeps until the work completes */
    const char *label;       /* borrows; a few words of yours that errors and records will show */
    uint32_t element_bytes;  /* USER on BYTE: the size of one element, any number, for reducing structs; counts are in
                              * such elements. The same on all ranks, else MISMATCH. 0: 1. INVALID elsewhere */
    uint32_t reserved;
} comm_op_options;
#define COMM_OP_OPTIONS_INIT { (uint32_t)sizeof(comm_op_options), 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0 }

/* ---- 4 Worlds and groups ---------------------------------------------------------------------- */

typedef struct comm_init_options {
    uint32_t struct_bytes;
    int32_t world_size;     /* 0: from the URL or the launcher */
    int32_t rank;           /* read only if world_size is given */
    const char *backend;    /* "tcp", "cpu:tcp,cuda:nccl", "cpu:tcp?lanes=4"; NULL: COMM_BACKEND, else "cpu:auto",
                             * for each group by its hosts: shm on one, tcp between hosts, shm-tcp (both) where some
                             * of several hosts' ranks share one */
    const char *rendezvous; /* "env://", "tcp://host:port?rank=0&world_size=2", "file:///path?..."; NULL: env:// */
    comm_store *store;      /* instead of rendezvous; needs rank and world_size. Keeps until the world is closed */
    int64_t timeout_ms;     /* to come together, and then the default of every operation */
    const char *name;       /* of the world, as errors show it; "world". See comm_init */
    const char *secret;     /* of the job: processes without it are refused. NULL: COMM_SECRET, else a nonce in the
                             * store */
    comm_device device;     /* that this rank will use, such as comm_device_at(COMM_DEVICE_CUDA, 1): for backends that
                             * bind to one (c10d's device_id). 0: not said */
    uint32_t reserved;
} comm_init_options;
#define COMM_INIT_OPTIONS_INIT { (uint32_t)sizeof(comm_init_options), 0, 0, NULL, NULL, NULL, 0, NULL, NULL, 0, 0 }

/* Come together with the other ranks and give the world group. With NULL options the rank, the world
 * size and the meeting point are those of the launcher: commrun, torchrun, mpirun, srun, or plain
 * RANK WORLD_SIZE MASTER_ADDR MASTER_PORT. (c10d's init_process_group; but the world is a handle, and a
 * process may hold several.) While it waits it logs the missing ranks; its TIMEOUT error names them, too.
 * When it succeeds, the backends of all ranks are open, and this rank knows the others' addresses: when it has on all
 * ranks, the store's server may stop (a world of more than 1024 ranks, or with COMM_HANDOUT_BYTES=0, asks it when two
 * ranks first talk). When one rank cannot take part, it fails on all with that rank's reason. Ranks that wait notice a
 * rank whose process ends before that, and name it: within 2 seconds on one host or where hosts can connect to each
 * other; within 7 if its whole host is gone. All this holds for every kind of store. A world of one rank leaves the
 * store alone.
 * The same processes may open one world after the other, or several, by the same store or URL: worlds of one name are
 * told apart by their order. Worlds that differ in their members, or that are opened by several threads at the same
 * time, need different names; so does a world that children of fork() open among themselves. A world's keys stay in the
 * store until the second world of its name after it comes together there; a world that did not come together leaves
 * them for as long as the store lives. So worlds that follow each other on one store should have one name.
 *
 * Order    every rank of the world calls it; worlds of one name in the same order.
 * Memory   borrows the options; gives *ret_world, to be closed with comm_group_close.
 * Threads  any.
 * Errors   INVALID (an option, a malformed URL or backend string, a rank that joined twice; the ranks disagree about
 *          size, secret, backends or settings), NOT_FOUND (no such backend or scheme; no launcher), TIMEOUT (names the
 *          missing ranks), PEER_LOST (a rank has ended, or the store has), SYSTEM, NO_MEMORY, and those of a backend.
 *          The text names the rank that could not. */
COMM_API comm_status comm_init(const comm_init_options *options, comm_group **ret_world);

typedef struct comm_group_options {
    uint32_t struct_bytes;
    uint32_t flags;      /* none yet */
    const char *backend; /* the same on all members; NULL: the parent's */
    int64_t timeout_ms;  /* 0: the parent's */
    const char *name;    /* for errors, records and comm_group_find; NULL: made from the parent's. Need not be unique */
    const char *description; /* a few words of yours, for comm_group_description; NULL: "" */
    comm_device device;      /* as in comm_init_options; 0: the parent's */
    uint32_t reserved;
} comm_group_options;
#define COMM_GROUP_OPTIONS_INIT { (uint32_t)sizeof(comm_group_options), 0, NULL, 0, NULL, NULL, 0, 0 }

/* What comm_group_create says of memory, threads and errors holds for all calls that make groups.
 *
 * Make a group of `count` ranks of `parent`; a member's rank in it is its index in `ranks`. It is local: no message is
 * sent, no store is asked and no other rank is waited for, so it cannot hang, and a member that never makes the group
 * is noticed by the group's first operation (or comm_group_connect), which waits for it until its time limit. What
 * "auto" may choose for some of the ranks is open since comm_init; but the first group with another backend opens that,
 * which needs the store. It may wait there for the other members, which open it by making the group, until the group's
 * time limit: then it gives TIMEOUT and names a rank that has not, or PEER_LOST if that rank is known to have gone.
 * (c10d's new_group with use_local_synchronization, MPI_Comm_create_group.)
 *
 * Order    every member calls it. Other ranks may call it too, and get *ret_group = NULL. Groups of one and the same
 *          list of ranks must be made in the same order by its members: one whose call has failed repeats it before it
 *          makes another one of that list.
 * Memory   borrows; gives *ret_group.
 * Threads  any.
 * Errors   INVALID (a rank twice, out of range, an empty list), NOT_FOUND (backend); for a backend that is opened, also
 *          TIMEOUT, PEER_LOST and those of the store. A call that failed may be repeated. */
COMM_API comm_status comm_group_create(comm_group *parent, const int32_t *ranks, size_t count,
                                       const comm_group_options *options, comm_group **ret_group);

/* Divide `parent`: ranks that give the same `color` form a group, ordered by `key`, then by rank in the parent. A
 * negative colour joins none and gets NULL. The ranks ask each other by one all_gather on the CPU, with all that comes
 * with it: a place in the parent's order, a record, a time limit. A parent without a backend for the CPU gives
 * UNSUPPORTED: use comm_group_create.
 * Order    a collective of the parent.   Errors  those of an all_gather, too.   (MPI_Comm_split, ncclCommSplit.) */
COMM_API comm_status comm_group_split(comm_group *parent, int32_t color, int32_t key,
                                      const comm_group_options *options, comm_group **ret_group);

/* The same ranks again, with their own sequence of operations, so that a library's traffic and its
 * user's cannot mix.  Order  every rank of the group.  (MPI_Comm_dup.) */
COMM_API comm_status comm_group_dup(comm_group *group, const comm_group_options *options, comm_group **ret_group);

/* Divide `parent` into consecutive groups of `group_size` ranks and give the one that holds the caller. The parent's
 * size must be a multiple of `group_size`.  Order  every rank of the parent.  (c10d's new_subgroups.) */
COMM_API comm_status comm_group_subgroups(comm_group *parent, int32_t group_size, const comm_group_options *options,
                                          comm_group **ret_group);

/* Divide `parent` as you list it: `ranks` holds one group after the other, of counts[0], counts[1] ... ranks each, and
 * a member's rank is its place in its list. Gives the one that holds the caller, or NULL if none does.
 * Order    every listed rank, with the same lists.  (c10d's new_subgroups_by_enumeration.)
 * Errors   INVALID (a rank in two groups or twice, out of range, an empty group). */
COMM_API comm_status comm_group_subgroups_list(comm_group *parent, const int32_t *ranks, const size_t *counts,
                                               size_t group_count, const comm_group_options *options,
                                               comm_group **ret_group);

/* The group without the `excluded` ranks: the way to go on with the survivors. `group` may have ended because ranks
 * died. `excluded` are ranks of `group`, in any order, none twice; the other ranks keep their order and are numbered
 * from 0. excluded_count 0 gives a group of the same ranks. comm_group_lost_ranks says which ranks are lost, and shows
 * the loop.
 * Order    every rank that is left calls it, with the same excluded ranks; the excluded ones do not. Like
 *          comm_group_create it is local, so ranks that name different ones learn of it by the first use of the group.
 * Errors   INVALID (the caller excludes itself, a rank twice or out of range).
 * (ncclCommShrink, c10d's shrink_group.) */
COMM_API comm_status comm_group_shrink(comm_group *group, const int32_t *excluded, size_t excluded_count,
                                       const comm_group_options *options, comm_group **ret_group);

/* A group whose collectives take turns over `groups`, which have the same ranks in the same order: the first goes to
 * groups[0], the second to groups[1], and so on. So operations that are under way at the same time run on different
 * backends, or on different lanes of one. (c10d's ProcessGroupRoundRobin.)
 *
 * Sends and receives, and comm_monitored_barrier, all go to groups[0]. A batch goes to one group: it takes its turn
 * when it ends; one of sends and receives takes none, and the two cannot be mixed. comm_group_seq counts its own
 * collectives; comm_work_seq and the records are those of the group whose turn it was, and hooks belong there too.
 * Aborting it aborts all; when one has ended, so has it. Groups made from it are ordinary ones, on the backend of
 * groups[0].
 *
 * Order    every rank, with the groups in the same order; several over the same groups in the same order on all ranks.
 * Memory   keeps the groups until it is closed; closing it leaves them open. Gives *ret_group.
 * Errors   INVALID (no groups, one twice, different ranks, a round-robin group among them, options->backend and
 *          ->device). */
COMM_API comm_status comm_group_round_robin(comm_group *const *groups, size_t count,
                                            const comm_group_options *options, comm_group **ret_group);

/* Give back a group; the handle is gone then. Unfinished works of this rank end with ABORTED; bytes already accepted
 * are still delivered. Other groups made from it live on. When it returns, the callbacks of its works have returned.
 * Closing the last group of a world closes the world. That takes at most 4 s, whatever the other ranks do: the
 * parameter linger_ms (2 s) to deliver and to wait until the other ranks close theirs, and leave_ms (2 s) if rank 0
 * serves the store. A batch that this thread has begun on the group (comm_coalesce_begin) and not ended is dropped; no
 * other thread may have begun one. NULL is fine.
 * There is no call that finalises the library: after the last group and the last store of a process are closed, no
 * thread of libcomm runs. Two descriptors stay open until the process ends, a pipe that libuv makes once.
 * Order    none: it does not wait for the other ranks, and they may go on among themselves. Those that need this rank
 *          afterwards get PEER_LOST, which ends the group for them; a comm_barrier before it lets all finish.
 * Threads  one at a time, and no other call on this group at the same time, except a comm_group_abort whose effect has
 *          been seen: that one may still be about to return.
 * Errors   FORKED (the child of a fork frees its copies; the parent is unharmed), INVALID (in a work's callback or
 *          a hook: the group stays open). */
COMM_API comm_status comm_group_close(comm_group *group);

/* End the group now: every pending operation, here and on the other ranks, ends with ABORTED and a
 * text that names this rank and `reason` (NULL is fine). Returns at once, also while other threads wait on the group,
 * which must then still be closed.  Threads any. */
COMM_API comm_status comm_group_abort(comm_group *group, const char *reason);

/* The same for all groups of this process that belong to the world of `any`, which is one of them: the way out when
 * several groups wait for each other. Each group's text names the rank in it.
 * (c10d's _abort_process_group without a group.)
 * Threads any. */
COMM_API comm_status comm_group_abort_all(comm_group *any, const char *reason);

/* Connect to the other ranks now for operations on `device` (DEFAULT: each kind of device that the group serves), which
 * otherwise happens in the first operation: before timing, before capturing a graph, or so that a rank that cannot take
 * part is found here. A backend that needs no such step returns at once, so OK does not say that the others are alive.
 * (c10d's device_id and eager initialisation, ncclCommInitRank, MPI_Comm_create_group.)
 *
 * Order    every rank of the group calls it, with the same device, at the same place among its calls on this group.
 * Threads  one at a time, with no other call on this group meanwhile but comm_group_abort, which ends it.
 * Errors   TIMEOUT (not connected within timeout_ms; 0: the group's time limit. The group is still usable, and the call
 *          can be repeated), INVALID (operations of the group are unfinished; in a batch; in a work's callback or a
 *          hook), UNSUPPORTED (the group has no backend for that device), the reason why the group has ended, those of
 *          the backend. */
COMM_API comm_status comm_group_connect(comm_group *group, comm_device device, int64_t timeout_ms);

/* Wait until all works that were submitted to the group so far have completed; the first error wins. An operation that
 * another thread waits for in its call is one of them. What stands in an open batch (comm_coalesce_begin) has not been
 * submitted yet, and is not waited for.
 * (c10d's _wait_for_pending_works.)  Threads any.  Errors  TIMEOUT, or a work's own. */
COMM_API comm_status comm_group_flush(comm_group *group, int64_t timeout_ms);

/* Queries.  Threads any.  Memory lends, until the group is closed. */
COMM_API int32_t comm_group_rank(const comm_group *group);
COMM_API int32_t comm_group_size(const comm_group *group);
COMM_API const char *comm_group_name(const comm_group *group);
COMM_API const char *comm_group_description(const comm_group *group); /* "" if it was given none */
COMM_API const char *comm_group_backend(const comm_group *group); /* the normalised backend string */
COMM_API comm_device comm_group_device(const comm_group *group); /* its only kind; DEFAULT if it has several */
COMM_API int64_t comm_group_timeout(const comm_group *group); /* in ms; COMM_TIMEOUT_INFINITE: no limit */
/* Set the time limit of operations that are submitted from now on and have none of their own.  Errors INVALID (0). */
COMM_API comm_status comm_group_set_timeout(comm_group *group, int64_t timeout_ms);
COMM_API uint64_t comm_group_seq(const comm_group *group); /* collectives submitted so far */
COMM_API comm_store *comm_group_store(comm_group *group);  /* the world's, prefixed for this group: yours to use */
/* OK, or why the group has ended; FORKED in the child of a fork. */
COMM_API comm_status comm_group_status(const comm_group *group);

/* Ranks between groups: this group's rank -> the world's, and back. NOT_FOUND says that it is in no such group. */
COMM_API comm_status comm_group_world_rank(const comm_group *group, int32_t rank, int32_t *ret_world_rank);
COMM_API comm_status comm_group_rank_of(const comm_group *group, int32_t world_rank, int32_t *ret_rank);
/* Write the world ranks of all members, in order; `ret_ranks` has room for comm_group_size of them. */
COMM_API comm_status comm_group_ranks(const comm_group *group, int32_t *ret_ranks);
/* Write the number of each member's host, in order; `ret_hosts` has room for comm_group_size of them. Hosts are
 * numbered from 0 in the order in which they first appear among the world's ranks, the same on all ranks and in all
 * groups. Two ranks are on one host if they can share memory and reach each other by loopback: same kernel, same
 * user, same /dev/shm, same network name space. So a container is a host of its own unless it shares these.
 * COMM_HOST_ID, any text, takes the rule's place: ranks with the same text are on one host. */
COMM_API comm_status comm_group_hosts(const comm_group *group, int32_t *ret_hosts);

/* Which ranks of the group are known to be lost: they died, closed their world while they were needed, or cannot be
 * reached. Writes the first `capacity` of them in ascending order, as ranks of this group; *ret_count is how many there
 * are. A rank that has closed this group and not its world is not among them, as it lives, although an operation that
 * needs it ends with PEER_LOST, whose text names it: who goes on without it adds it to the excluded ranks. What one
 * rank has noticed reaches the others with the news that the group has ended, so ask after a call has failed with
 * PEER_LOST; but when several ranks die, some survivors may know of fewer at first. Shrinking and trying settles that:
 * a survivor that has missed a loss gets PEER_LOST from the first use of the shrunken group, and shrinks the original
 * again.
 *
 *     comm_group *rest = NULL;
 *     comm_status status;
 *     do {
 *         comm_group_close(rest);
 *         rest = NULL;
 *         comm_group_lost_ranks(group, lost, capacity, &count);
 *         status = comm_group_shrink(group, lost, count, NULL, &rest);
 *         if (status == COMM_OK)
 *             status = comm_barrier(rest, NULL, NULL);
 *     } while (status == COMM_ERR_PEER_LOST);
 *
 * Threads any.  Errors  INVALID. */
COMM_API comm_status comm_group_lost_ranks(const comm_group *group, int32_t *ret_ranks, size_t capacity,
                                             size_t *ret_count);

/* 1 if the group can do this operation on this device (0: its only kind), else 0 and comm_last_error says why: by the
 * rules of comm_redop_supports, by what the backend knows, and by what it says itself. `dtype` and `redop` count where
 * the operation has them. It sends no message, and promises nothing about flags, counts and buffers.  Threads any. */
COMM_API int32_t comm_group_supports(comm_group *group, int32_t kind, comm_dtype dtype, comm_redop redop,
                                     comm_device device);

/* The open group of this process that has that name within `world`'s family; of several, the one that was made last.
 * Memory lends.  Errors NOT_FOUND. */
COMM_API comm_status comm_group_find(comm_group *world, const char *name, comm_group **ret_group);
/* How many groups of `world`'s family are open in this process. (c10d's get_pg_count.) */
COMM_API int32_t comm_group_count(const comm_group *world);

/* Where this process runs, as the environment of its launcher says; all -1 and "none" if there is none.
 * Threads any.  Errors INVALID (a variable that makes no sense, or two that contradict each other). */
typedef struct comm_launch_info {
    uint32_t struct_bytes;
    int32_t rank, world_size, local_rank, local_world_size;
    const char *launcher; /* "commrun", "torchrun", "openmpi", "mpich", "slurm", "env", "none"; lends, for ever */
} comm_launch_info;
COMM_API comm_status comm_launch_query(comm_launch_info *ret_info);

/* ---- 5 Meshes ----------------------------------------------------------------------------------
 *
 * A mesh lays ranks out as a grid of one or more dimensions, in row-major order, and has a group along each: 8 ranks as
 * 2 x 4 with the names "dp" and "tp" have groups of 2 along dp and of 4 along tp. (c10d's DeviceMesh.) A sub-mesh is a
 * view of some dimensions, through the caller's own place in the others; it shares their groups. All views are handles
 * of their own, to be destroyed in any order; the groups are closed with the last one.
 *
 * Names may be NULL altogether; then dimensions are known by number only. Ranks in results are world ranks.
 * Threads  any, but destroying, and using a handle that is destroyed. */
typedef struct comm_mesh comm_mesh;

/* Lay out ranks of `parent`: all of them in order (ranks NULL, rank_count 0), or `ranks`, any of its ranks in any
 * order. `shape` and `names` have `dims` entries (1 to 32).
 *
 * Order    every rank of the mesh calls it, with the same arguments. Others may, and get *ret_mesh = NULL. No messages
 *          are sent.
 * Memory   borrows; gives *ret_mesh (comm_mesh_destroy). `parent` may be closed before it. The options are those of the
 *          groups: with a name "grid", the groups are called "grid.dp" and so on; without description they get
 *          "mesh_dp".
 * Errors   INVALID: the shape's product is not the number of ranks, a rank or a name twice, an empty name; those of
 *          comm_group_create. When a backend is opened for the mesh and that fails on some ranks, as one comes too late
 *          (TIMEOUT), groups that they had made are closed, and over for the other ranks: it cannot be repeated. Open
 *          such a backend before, by a group of all ranks. */
COMM_API comm_status comm_mesh_create(comm_group *parent, const int32_t *ranks, size_t rank_count,
                                      const int32_t *shape, const char *const *names, size_t dims,
                                      const comm_group_options *options, comm_mesh **ret_mesh);

/* A mesh of groups that are there already, one per dimension. `ranks` are the world ranks of the whole grid in
 * row-major order; it may be NULL for one group. Group i must be the caller's line along dimension i, in order.
 * Memory   keeps the groups until the last view is destroyed; they are not closed with it. Close them after it, or make
 *          no more dimensions of it (comm_mesh_flatten: INVALID). */
COMM_API comm_status comm_mesh_from_groups(comm_group *const *groups, const char *const *names, size_t dims,
                                           const int32_t *ranks, comm_mesh **ret_mesh);

/* The view of some dimensions, named in the mesh's order: of "dp", "cp", "tp" one can take "dp", or "dp" and "tp", but
 * not "tp" and "dp". Names made by comm_mesh_flatten count. No messages are sent.
 * Memory   gives *ret_mesh.   Errors  NOT_FOUND (lists the names), INVALID (the order). */
COMM_API comm_status comm_mesh_sub(comm_mesh *mesh, const char *const *names, size_t count, comm_mesh **ret_mesh);

/* All dimensions of this view as one, with a group of its own over them; `name` NULL joins the names: "dp_cp". The mesh
 * and its other views know the name from then on. Asked again, it is the same group.
 * Order    every rank of the view.   Memory  gives *ret_mesh, of one dimension. Without options the group is like the
 *          view's first one.
 * Errors   INVALID (the name is taken, the view's first group is closed), those of comm_group_create. */
COMM_API comm_status comm_mesh_flatten(comm_mesh *mesh, const char *name, const comm_group_options *options,
                                       comm_mesh **ret_mesh);

/* Give back a view; NULL is fine. The last one closes the groups that the mesh made (see comm_group_close).
 * Threads  one at a time, and no call on its groups at the same time.
 * Errors   INVALID (in a work's callback or a hook: the view stays). */
COMM_API comm_status comm_mesh_destroy(comm_mesh *mesh);

/* Queries. An unknown dimension gives -1, "" or NOT_FOUND. */
COMM_API int32_t comm_mesh_dims(const comm_mesh *mesh);                    /* how many dimensions */
COMM_API int32_t comm_mesh_size(const comm_mesh *mesh, int32_t dim);       /* ranks along it */
COMM_API int32_t comm_mesh_rank_count(const comm_mesh *mesh);              /* ranks in all: the product */
COMM_API const char *comm_mesh_dim_name(const comm_mesh *mesh, int32_t dim); /* lends, as the groups */
COMM_API comm_status comm_mesh_dim(const comm_mesh *mesh, const char *name, int32_t *ret_dim);
/* The group along a dimension, and all of them (room for comm_mesh_dims).  Memory lends, until the last view is
 * destroyed. */
COMM_API comm_status comm_mesh_group(const comm_mesh *mesh, int32_t dim, comm_group **ret_group);
COMM_API comm_status comm_mesh_groups(const comm_mesh *mesh, comm_group **ret_groups);
/* Where the caller stands: along one dimension, which is its rank in that group, and along all (room for
 * comm_mesh_dims). */
COMM_API int32_t comm_mesh_local_rank(const comm_mesh *mesh, int32_t dim);
COMM_API comm_status comm_mesh_coordinates(const comm_mesh *mesh, int32_t *ret_coordinates);
/* Places of other ranks: the coordinates of one in this view (NOT_FOUND if it is not in it), the rank at coordinates,
 * and all ranks of the view in row-major order (room for comm_mesh_rank_count). */
COMM_API comm_status comm_mesh_coordinates_of(const comm_mesh *mesh, int32_t world_rank, int32_t *ret_coordinates);
COMM_API comm_status comm_mesh_rank_at(const comm_mesh *mesh, const int32_t *coordinates, int32_t *ret_world_rank);
COMM_API comm_status comm_mesh_ranks(const comm_mesh *mesh, int32_t *ret_world_ranks);

/* ---- 6 Collectives ----------------------------------------------------------------------------
 *
 * What holds for all of them:
 *
 * Shapes   counts are elements, of any size. Buffers are contiguous, at any address: alignment is not needed. send and
 *          recv of one call may not overlap, except in the in-place form that each names. Blocks that are only read may
 *          overlap one another; blocks that are written may not, which is not checked: the result there is any of them,
 *          or a mix. count 0 is legal (and still meets the others). A group of one rank is legal.
 * Order    all ranks of a group call its collectives in the same order with matching arguments. If they do not, a
 *          backend that checks it, as tcp does, ends the group with MISMATCH on all ranks, and the text spells out both
 *          calls. NCCL and MPI cannot: there ranks that do not match hang until the time limit (DEADLINE), or get wrong
 *          results. A rank that needs nothing more from the others (the root of a broadcast or scatter, the others in a
 *          reduce or gather) may have OK for this call and be told by one that follows. Groups are independent.
 *          To match, the operation, kind of device, dtype, redop, root, counts and COMM_OP_FLAG_RANK_ORDER must be the
 *          same on all ranks. Devices are not compared: in a group that has several, each has operations of its own,
 *          and two ranks that take different ones may get wrong results. Each rank's own are its addresses and offsets,
 *          in place or not, waiting or not, timeout, label, premul and reduce_fn. With COMM_REDOP_USER on BYTE,
 *          element_bytes must be the same, too.
 * Waiting  with ret_work == NULL the call returns when its part is over: the result is in memory, on a device, too, and
 *          the buffers can be used by any thread or stream. With COMM_OP_FLAG_ON_STREAM it returns when the operation
 *          has been enqueued.
 * Memory   with ret_work == NULL the call waits and borrows everything. Otherwise it keeps the data buffers until the
 *          work completes, borrows all arrays and options, and gives *ret_work (comm_work_release).
 * Threads  any. Calls on one group from several threads are taken in arrival order.
 * Errors   at once, and nothing happened: INVALID, UNSUPPORTED, NO_MEMORY, FORKED, or the reason why the group has
 *          ended. Later, by the work (or by the call, if it waits): PEER_LOST, DEADLINE, MISMATCH, ABORTED, PROTOCOL.
 *
 * A "_v" form takes uneven blocks: counts[r] elements for rank r, at offsets[r] elements into the buffer;
 * offsets == NULL means one after the other. Where every rank gives `counts`, all must give the same ones.
 * A "_list" form takes one pointer per rank instead of one buffer; counts[r] are its elements.
 * The _v and the _list form of one operation match each other. The plain form of gather and scatter matches them, too;
 * that of all_gather, reduce_scatter and all_to_all does not, even if all counts are equal.
 * Where a form in place is "its own block", that is the block of this rank in the longer buffer: at rank * count in the
 * plain form, at offsets[rank] in a _v form, at list[rank] in a _list form. */

/* `buffer` of `root` is copied to `buffer` of every rank.  Shapes  `count` elements. */
COMM_API comm_status comm_broadcast(comm_group *group, void *buffer, size_t count, comm_dtype dtype, int32_t root,
                                    const comm_op_options *options, comm_work **ret_work);

/* Reduce `send` over all ranks; every rank gets the result.  Shapes  both `count`; in place: recv == send. */
COMM_API comm_status comm_all_reduce(comm_group *group, const void *send, void *recv, size_t count, comm_dtype dtype,
                                     comm_redop redop, const comm_op_options *options, comm_work **ret_work);

/* Reduce `send` over all ranks; `root` gets the result. Elsewhere recv is not touched and may be NULL.
 * In place at the root: recv == send. */
COMM_API comm_status comm_reduce(comm_group *group, const void *send, void *recv, size_t count, comm_dtype dtype,
                                 comm_redop redop, int32_t root, const comm_op_options *options,
                                 comm_work **ret_work);

/* Every rank gets every rank's `send`, in rank order.  Shapes  send `count`; recv `count` x ranks.
 * In place (all forms): send == its own block of recv. */
COMM_API comm_status comm_all_gather(comm_group *group, const void *send, void *recv, size_t count, comm_dtype dtype,
                                     const comm_op_options *options, comm_work **ret_work);
COMM_API comm_status comm_all_gather_v(comm_group *group, const void *send, void *recv, const size_t *counts,
                                       const size_t *offsets, comm_dtype dtype, const comm_op_options *options,
                                       comm_work **ret_work);
COMM_API comm_status comm_all_gather_list(comm_group *group, const void *send, void *const *recv,
                                          const size_t *counts, comm_dtype dtype, const comm_op_options *options,
                                          comm_work **ret_work);

/* `root` gets every rank's `send`, in rank order. recv, counts and offsets are read at the root only, send_count
 * everywhere: it must be what the root has for that rank, else MISMATCH (for the root's own: INVALID). In place at the
 * root (all forms): send == its own block of recv. */
COMM_API comm_status comm_gather(comm_group *group, const void *send, void *recv, size_t count, comm_dtype dtype,
                                 int32_t root, const comm_op_options *options, comm_work **ret_work);
COMM_API comm_status comm_gather_v(comm_group *group, const void *send, size_t send_count, void *recv,
                                   const size_t *counts, const size_t *offsets, comm_dtype dtype, int32_t root,
                                   const comm_op_options *options, comm_work **ret_work);
COMM_API comm_status comm_gather_list(comm_group *group, const void *send, size_t send_count, void *const *recv,
                                      const size_t *counts, comm_dtype dtype, int32_t root,
                                      const comm_op_options *options, comm_work **ret_work);

/* The reverse: block r of the root's `send` goes to rank r. send, counts and offsets are read at the root only.
 * In place at the root (all forms): recv == its own block of send. */
COMM_API comm_status comm_scatter(comm_group *group, const void *send, void *recv, size_t count, comm_dtype dtype,
                                  int32_t root, const comm_op_options *options, comm_work **ret_work);
COMM_API comm_status comm_scatter_v(comm_group *group, const void *send, const size_t *counts, const size_t *offsets,
                                    void *recv, size_t recv_count, comm_dtype dtype, int32_t root,
                                    const comm_op_options *options, comm_work **ret_work);
COMM_API comm_status comm_scatter_list(comm_group *group, const void *const *send, const size_t *counts, void *recv,
                                       size_t recv_count, comm_dtype dtype, int32_t root,
                                       const comm_op_options *options, comm_work **ret_work);

/* Reduce over all ranks; rank r gets block r of the result.  Shapes  send `count` x ranks; recv `count`.
 * In place (all forms): recv == its own block of send. The blocks of the _v form lie one after the other. */
COMM_API comm_status comm_reduce_scatter(comm_group *group, const void *send, void *recv, size_t count,
                                         comm_dtype dtype, comm_redop redop, const comm_op_options *options,
                                         comm_work **ret_work);
COMM_API comm_status comm_reduce_scatter_v(comm_group *group, const void *send, void *recv, const size_t *counts,
                                           comm_dtype dtype, comm_redop redop, const comm_op_options *options,
                                           comm_work **ret_work);
COMM_API comm_status comm_reduce_scatter_list(comm_group *group, const void *const *send, void *recv,
                                              const size_t *counts, comm_dtype dtype, comm_redop redop,
                                              const comm_op_options *options, comm_work **ret_work);

/* Block j of rank i's `send` becomes block i of rank j's `recv`.  Shapes  both `count` x ranks; in place: recv == send
 * (plain form only). In the _v and _list forms, what i sends to j must be what j expects from i, else MISMATCH; to
 * itself, else INVALID. */
COMM_API comm_status comm_all_to_all(comm_group *group, const void *send, void *recv, size_t count, comm_dtype dtype,
                                     const comm_op_options *options, comm_work **ret_work);
COMM_API comm_status comm_all_to_all_v(comm_group *group, const void *send, const size_t *send_counts,
                                       const size_t *send_offsets, void *recv, const size_t *recv_counts,
                                       const size_t *recv_offsets, comm_dtype dtype, const comm_op_options *options,
                                       comm_work **ret_work);
COMM_API comm_status comm_all_to_all_list(comm_group *group, const void *const *send, const size_t *send_counts,
                                          void *const *recv, const size_t *recv_counts, comm_dtype dtype,
                                          const comm_op_options *options, comm_work **ret_work);

/* Returns once every rank of the group has called it. */
COMM_API comm_status comm_barrier(comm_group *group, const comm_op_options *options, comm_work **ret_work);

/* A barrier that finds the missing ranks: returns TIMEOUT after options->timeout_ms, naming on rank 0 all ranks that
 * have not come, and one of them on the ranks that have. It leaves the group usable. Uses point-to-point messages with
 * a tag of its own. (c10d's monitored_barrier with wait_all_ranks.)
 * Rank 0 decides when its timeout_ms is over. The other ranks wait for its answer for 1 s beyond their own timeout_ms,
 * since rank 0 may have come a moment later than they have; only then is rank 0 itself the one that they name.
 * All ranks call it equally often. A rank that comes after rank 0 has given up gets TIMEOUT, too: when rank 0 is in its
 * next one, or else after the latecomer's own timeout_ms and that second. A rank that gives up for itself (its
 * timeout_ms is shorter than rank 0's by more than a second) has come all the same.
 * Threads any.  Errors  TIMEOUT, and what a send and a receive can fail with. */
COMM_API comm_status comm_monitored_barrier(comm_group *group, const comm_op_options *options);

/* ---- 7 Point-to-point -------------------------------------------------------------------------
 *
 * Messages between one pair of ranks with the same tag arrive in the order sent. They are independent of
 * collectives: neither waits for the other. Sending to oneself works (with a work, or a receive already
 * posted). What arrives before its receive is held in bounded memory; then the sender waits. */

/* Send `count` elements to `peer` with options->tag. Completes when `buffer` may be reused. (c10d's send and isend.) */
COMM_API comm_status comm_send(comm_group *group, const void *buffer, size_t count, comm_dtype dtype, int32_t peer,
                               const comm_op_options *options, comm_work **ret_work);

/* Receive up to `count` elements from `peer` (or COMM_ANY_SOURCE) with options->tag (or COMM_ANY_TAG). A shorter
 * message is fine: comm_work_received_count says how long it was. A longer one fills the buffer and fails with
 * TRUNCATED; the group goes on, the rest of the message is lost, and comm_work_received_count is what fitted: `count`.
 * Messages are bytes: the dtypes of the two sides are not compared, and a count is in whole elements of
 * the receiver's. */
COMM_API comm_status comm_recv(comm_group *group, void *buffer, size_t count, comm_dtype dtype, int32_t peer,
                               const comm_op_options *options, comm_work **ret_work);

/* ---- 8 Coalescing -----------------------------------------------------------------------------
 *
 * Between begin and end, this thread's calls on `group` (collectives, send and recv, with ret_work == NULL) are
 * only written down; end submits them together and gives one work for all (or waits, if ret_work is NULL). Sends and
 * receives of one batch cannot block each other. (NCCL's group calls, c10d's batch_isend_irecv and coalescing manager.)
 * A batch is this rank's own affair: its calls meet the other ranks' as if made one by one, in a batch there or not.
 * (Not so on a round-robin group, where a batch takes one turn: there all ranks must batch alike.)
 * Memory  the data buffers are kept until that work completes. Options, what they point to, counts, offsets and lists
 *         are borrowed during each call, as everywhere: a batch has copies.
 * cancel forgets what was written down, and so does closing the group: it has taken no number and no turn, so the other
 * ranks need not know.
 * The options of end are those of the batch as a whole; NULL: none.
 *   timeout_ms   the limit of operations that were given none of their own; the others keep theirs if it is shorter.
 *                0: each has its own, or the group's
 *   label        of operations without one; also what comm_group_records shows for these
 *   stream       of operations without one
 *   flags        COMM_OP_FLAG_ON_STREAM: for all operations
 * Any other field that is set is refused with INVALID, and the batch stays open: end it again, or cancel it.
 * Errors  INVALID (begin twice, end without begin; inside, ret_work given, or a call that waits in any case: byte
 *         strings, comm_group_split, comm_monitored_barrier). When the backend refuses the batch, nothing of it was
 *         begun, and the batch is forgotten. */
COMM_API comm_status comm_coalesce_begin(comm_group *group);
COMM_API comm_status comm_coalesce_end(comm_group *group, const comm_op_options *options, comm_work **ret_work);
COMM_API comm_status comm_coalesce_cancel(comm_group *group);

/* ---- 9 Byte strings ---------------------------------------------------------------------------
 *
 * Byte strings of unequal length, such as serialised objects; the receivers need not know the lengths. These
 * calls wait. (c10d's *_object collectives, without the pickle.) Each call is two operations of its kind, the lengths
 * and then the bytes: so it is counted, recorded and told to hooks. *ret_data holds the strings one after the other,
 * and (*ret_bytes)[r] is the length of rank r's.
 * Order    as for the collectives, and the messages, of which they are made.
 * Memory   borrows; gives *ret_data, with a NUL byte after it that is not counted, and *ret_bytes: comm_free each.
 * Threads  any; but strings of one peer with one tag are received by one thread at a time.
 * Errors   those of the operations; INVALID inside a batch, or for a length that no memory has. What comes may end the
 *          group on all ranks: ABORTED (no memory for it; the text says how many bytes of which rank. Or this rank's
 *          bytes are refused when their lengths have been told), PROTOCOL
 *          (lengths that no memory holds), MISMATCH (comm_recv_bytes: it was not sent with comm_send_bytes). */
COMM_API comm_status comm_all_gather_bytes(comm_group *group, const void *send, size_t send_bytes,
                                           const comm_op_options *options, void **ret_data, size_t **ret_bytes);
/* As above at the root; elsewhere both are NULL. */
COMM_API comm_status comm_gather_bytes(comm_group *group, const void *send, size_t send_bytes, int32_t root,
                                       const comm_op_options *options, void **ret_data, size_t **ret_bytes);
/* The root's `data` reaches every other rank as *ret_data; at the root *ret_data is a copy. */
COMM_API comm_status comm_broadcast_bytes(comm_group *group, const void *data, size_t bytes, int32_t root,
                                          const comm_op_options *options, void **ret_data, size_t *ret_bytes);
/* At the root, send[r] of send_bytes[r] goes to rank r; elsewhere both may be NULL. */
COMM_API comm_status comm_scatter_bytes(comm_group *group, const void *const *send, const size_t *send_bytes,
                                        int32_t root, const comm_op_options *options, void **ret_data,
                                        size_t *ret_bytes);
COMM_API comm_status comm_send_bytes(comm_group *group, const void *data, size_t bytes, int32_t peer,
                                     const comm_op_options *options);
/* ret_source may be NULL; it gets the sender's rank, for a peer of COMM_ANY_SOURCE. */
COMM_API comm_status comm_recv_bytes(comm_group *group, int32_t peer, const comm_op_options *options, void **ret_data,
                                     size_t *ret_bytes, int32_t *ret_source);

/* ---- 10 Works ----------------------------------------------------------------------------------
 *
 * A work completes exactly once, with OK or an error. Any thread may call what is here, several at the same time on one
 * work. Releasing an unfinished work is legal: the operation goes on, and its buffers are still kept until it has
 * completed (comm_group_flush tells). All works stay readable after their group is closed.
 * When a group has ended and a backend does not complete an operation within a second, its work fails all the same;
 * its text says that the buffers may be in use until the group is closed. */

/* Wait until the work completes, or timeout_ms passes (0 and COMM_TIMEOUT_INFINITE: no limit but the operation's own).
 * The waiting thread itself moves the data.  Threads any.  Errors  TIMEOUT (still running), or the work's own. */
COMM_API comm_status comm_work_wait(comm_work *work, int64_t timeout_ms);
/* Wait for all of `count` works; the first error wins, but all are waited for. NULL entries are skipped. */
COMM_API comm_status comm_work_wait_all(comm_work *const *works, size_t count, int64_t timeout_ms);
/* *ret_done becomes 1 if the work has completed, well or not. Moves data along if no other thread does.
 * Threads any.  Errors  the work's own, once done. */
COMM_API comm_status comm_work_test(comm_work *work, int32_t *ret_done);
/* COMM_IN_PROGRESS, COMM_OK, or the error; does not drive anything. */
COMM_API comm_status comm_work_status(const comm_work *work);
/* The text of the work's error; "" if it has none (yet).  Memory lends, until the work is released. */
COMM_API const char *comm_work_error(const comm_work *work);
/* Add a reference to the work, so that several owners can each release theirs. Gives `work`; NULL gives NULL.
 * Threads any, while the caller has a handle. */
COMM_API comm_work *comm_work_retain(comm_work *work);
/* Let go of the handle; NULL is fine.  Threads any, once for each handle, which must not be used afterwards. */
COMM_API void comm_work_release(comm_work *work);

/* Order the device stream after the work, without blocking the host: what is enqueued on it later sees the result. NULL
 * is the device's default stream. Also after the work has completed; where there are no streams (the CPU), it waits. It
 * may wait until the operation has been enqueued.  (c10d's Work.synchronize.)
 * Threads any.  Errors  the work's own, and those of the backend. */
COMM_API comm_status comm_work_wait_stream(comm_work *work, void *stream);

/* Call fn(work, status, context) once when the work completes; at once if it has. It runs on whichever thread
 * completes the work, must not block, and may call only what is marked "Threads any" here and does not wait: calls that
 * wait for works, and comm_group_close, fail there with INVALID. To wait for a work that has completed is no waiting,
 * and gives its result. It may release the work. `work` is lent during the call.
 * Errors  INVALID (a second callback). */
typedef void (*comm_work_fn)(comm_work *work, comm_status status, void *context);
COMM_API comm_status comm_work_on_complete(comm_work *work, comm_work_fn fn, void *context);

/* A descriptor that becomes readable when the work completes, for poll and event loops; no thread needs to call test
 * or wait meanwhile. Asked again, it is the same one. Only poll it.
 * Memory  lends: it belongs to the work and is closed with it. */
COMM_API comm_status comm_work_fd(comm_work *work, int32_t *ret_fd);

/* Facts about a work.  Threads any. */
COMM_API int32_t comm_work_source_rank(const comm_work *work);   /* of a receive that has completed, else -1 */
COMM_API int32_t comm_work_tag(const comm_work *work);           /* of a receive that has completed, else -1 */
COMM_API size_t comm_work_received_count(const comm_work *work); /* elements; of a receive that has completed, else 0 */
COMM_API uint64_t comm_work_seq(const comm_work *work);          /* its number in the group, known at once; 0: batch */
COMM_API int64_t comm_work_duration_ns(const comm_work *work);   /* from submission to completion; -1 before */
COMM_API int64_t comm_work_timeout(const comm_work *work);       /* what it was given, in ms; known at once */
COMM_API const char *comm_work_op(const comm_work *work);        /* "all_reduce"; lends, for ever */

/* ---- 11 Memory --------------------------------------------------------------------------------
 *
 * Buffers that many operations use can be made known to a group's backend once: so that peers can read them directly
 * (shared memory), for RDMA, for NCCL's windows. What this gains depends on the backend; a backend that gains nothing
 * ignores it, so a program need not ask. Results are the same with and without it. shm: peers map the memory of
 * comm_mem_alloc, reduce and copy right from there, and write results of all_reduce there; that of comm_mem_register is
 * read as any other memory is, through the kernel where it allows that. At log level info the library says which.
 * A peer that has no descriptor or no addresses left to map it warns once, and gets copies instead. Each piece of
 * comm_mem_alloc keeps a descriptor of this process there, and peers map 4096 pieces of a rank at most: few large
 * pieces are better than many small ones.
 * For memory that is not of comm_mem_alloc, and that operations move again and again, shm asks the kernel for huge
 * pages (docs/tuning.md; COMM_SHM_HUGE_PAGES=0: never). Its contents and addresses stay.
 *
 * The calls are local: the ranks need not call them alike. An operation's send or recv side whose elements all lie
 * within one piece of the group's memory uses it, in the plain and the _v forms; of a _list form none does.
 *
 * Memory   a piece belongs to its group. Release it before the group is closed, and when no operation uses it; closing
 *          the group releases what is left, and the handles are gone then. The memory of comm_mem_alloc is freed with
 *          its piece; that of comm_mem_register stays the caller's, and must stay valid until the release. In the child
 *          of a fork() only closing the group is possible; with shm the memory of comm_mem_alloc is shared with it
 *          (MAP_SHARED), not copied: what the child writes there, its parent and the peers read. A child that needs
 *          its contents, such as a worker that loads data, copies them first.
 * Threads  any.
 * Errors   INVALID (NULL, no bytes, a device that must be said), UNSUPPORTED (the group has no backend for that device;
 *          a round-robin group: use the groups that it takes turns over), NO_MEMORY, FORKED, the reason why the group
 *          has ended, and those of the backend. */
typedef struct comm_memory comm_memory;

/* Memory for buffers on `device` (0: the group's only kind). The core gives plain memory for CPU buffers, aligned to 64
 * bytes, where the backend has none of its own; for other devices that is UNSUPPORTED. The bytes are not cleared.
 * Memory   gives *ret_memory, and with it *ret_data.   (ncclMemAlloc, MPI_Alloc_mem.) */
COMM_API comm_status comm_mem_alloc(comm_group *group, size_t bytes, comm_device device, void **ret_data,
                                    comm_memory **ret_memory);
/* Make `bytes` bytes at `data` known.   Memory   keeps `data` until the release; gives *ret_memory.
 * (ncclCommRegister.) */
COMM_API comm_status comm_mem_register(comm_group *group, void *data, size_t bytes, comm_device device,
                                       comm_memory **ret_memory);
/* NULL is fine. */
COMM_API comm_status comm_mem_release(comm_memory *memory);

/* ---- 12 Looking inside ------------------------------------------------------------------------ */

/* The flight record: each group's last operations, always on, in a ring of fixed size.
 * Write the newest `capacity` of them, or all if they are fewer, to `ret_records`, the oldest of these first;
 * *ret_count says how many. `record_bytes` is sizeof(comm_record): a record can grow in later versions, and each one is
 * written record_bytes after the one before. A caller with a shorter record gets what fits; in a longer one the rest is
 * zero.
 * Threads any.  Errors  INVALID (record_bytes is 0). */
typedef struct comm_record {
    uint64_t seq;             /* of the group over all its backends: collectives count 1, 2, 3 ..., the same on all
                               * ranks; sends and receives of this rank have a count of their own */
    const char *op;           /* lends, for ever */
    comm_dtype dtype;
    comm_redop redop;
    int32_t peer;             /* root, destination or source; -1 if none. A receive keeps what it asked for:
                               * COMM_ANY_SOURCE */
    int32_t tag;              /* likewise, COMM_ANY_TAG */
    uint64_t count;           /* elements; of a receive, the room that it had */
    comm_status status;       /* COMM_IN_PROGRESS, COMM_OK, or the error */
    int64_t submitted_ns, completed_ns; /* CLOCK_REALTIME; completed_ns is 0 if not yet, and equals submitted_ns for an
                                         * operation that its backend did within the call (about 10 us or less) */
    char label[24];
} comm_record;
COMM_API comm_status comm_group_records(const comm_group *group, comm_record *ret_records, size_t record_bytes,
                                        size_t capacity, size_t *ret_count);

/* Hooks: be told of every operation of a group, and of its end.
 *   SUBMIT     an operation has its number and goes to the backend next, on the thread that called
 *   COMPLETE   it has completed, or the backend refused it: once for each SUBMIT, on whichever thread completes it,
 *              before threads that wait for it go on
 *   END        the group has ended (abort, a lost peer, a deadline ...); before the backends are told
 * A batch gives the events of each of its operations. A call for byte strings gives those of its two operations, under
 * their names ("all_gather"). The library's own messages (monitored_barrier) give none.
 * For a receive that went well, COMPLETE has the real source, tag and count. */
enum { COMM_EVENT_SUBMIT = 1, COMM_EVENT_COMPLETE = 2, COMM_EVENT_END = 4 };
typedef struct comm_event {
    uint32_t struct_bytes;
    int32_t kind;              /* one of COMM_EVENT_ */
    comm_group *group;
    const comm_record *record; /* of the operation; NULL for END */
    comm_status status;        /* COMM_IN_PROGRESS for SUBMIT */
    uint32_t record_bytes;     /* how long *record is: read a field that your header has added only if it lies within */
    const char *error;         /* "" if there is none */
} comm_event;
typedef void (*comm_event_fn)(const comm_event *event, void *context);

/* Call fn for `events`, any sum of COMM_EVENT_. It may run on any thread, at the same time on several, and with the
 * library's locks held: it must be quick and must not block. It may ask a group for its name, rank and size, and
 * call nothing else of libcomm: calls that wait, submit, close or change hooks fail there with INVALID. What it is
 * given is lent during the call. (c10d's pre, post and abort hooks, and its on-completion hook.)
 * Threads  any.   Errors  INVALID. */
COMM_API comm_status comm_group_hook_add(comm_group *group, uint32_t events, comm_event_fn fn, void *context,
                                         int32_t *ret_hook);
/* Returns when the function is not running any more.  Threads any, but not from a hook.  Errors NOT_FOUND. */
COMM_API comm_status comm_group_hook_remove(comm_group *group, int32_t hook);

/* Backends: how many are known, and of each its name, the devices it serves ("cpu"), where it came from ("built in" or
 * a path), and whether it can be used here; if not, `reason` says why. Plugins that were found but not loaded are
 * listed too.
 * Memory  lends, until the next call that loads a backend.   Threads  any.   Errors  NOT_FOUND (index too large). */
typedef struct comm_backend_info {
    uint32_t struct_bytes;
    int32_t usable;
    const char *name, *version, *devices, *origin, *reason;
    const char *traits; /* what it does or cannot do, as in backend.h: "keeps_deadlines, cannot_cancel" */
    int32_t preference; /* "auto" takes the usable backend with the highest one that can serve the hosts of a group's
                         * ranks; 0: only by name */
    uint32_t reserved;
} comm_backend_info;
COMM_API size_t comm_backend_count(void);
COMM_API comm_status comm_backend_query(size_t index, comm_backend_info *ret_info);
/* Which algorithm the backend would take for which operation, as lines for people: one call of `line` each.
 * Memory  `text` is lent during the call.   Threads  any.   Errors  NOT_FOUND (index too large), INVALID. */
COMM_API comm_status comm_backend_routes(size_t index, void (*line)(const char *text, void *context), void *context);
/* Load a plugin: the shared object of that path (with a '/'), or as a backend string would, the backend of that name,
 * which must then be one that can be used here. Registering one of your own is in comm/backend.h.   Threads  any.
 * Errors  NOT_FOUND, INVALID, VERSION, UNSUPPORTED, and those of the backend. */
COMM_API comm_status comm_backend_load(const char *path_or_name);

/* Parameters: every environment variable and backend option that libcomm reads. A parameter of a backend is looked up
 * in this order: the option in the backend string of the group ("cpu:tcp?lanes=4"), which a group without a string of
 * its own has from its parent; the environment variable, as it is when the world or group is opened; the default. One
 * of the core: the variable, the default. An option that does not exist, or whose value does not fit, is INVALID; a
 * variable whose value does not fit is logged, and the default counts.
 * Memory  lends, for ever; `value` until the variable changes.   Threads  any.
 * Errors  NOT_FOUND (index too large). */
typedef struct comm_param_info {
    uint32_t struct_bytes;
    const char *name;    /* as in the backend string: "lanes" */
    const char *env;     /* "COMM_TCP_LANES" */
    const char *scope;   /* "core", "tcp" ... */
    const char *value;   /* now in force */
    const char *initial; /* the default */
    const char *help;
} comm_param_info;
COMM_API size_t comm_param_count(void);
COMM_API comm_status comm_param_query(size_t index, comm_param_info *ret_info);

/* Logging. The library returns errors and logs only what a call cannot return: warnings by default, to stderr. COMM_LOG
 * (error, warn, info, debug) sets the level. A callback takes the place of stderr; NULL restores it.
 * It may be called from any thread, must not call libcomm, and borrows the text. */
enum { COMM_LOG_ERROR = 1, COMM_LOG_WARN = 2, COMM_LOG_INFO = 3, COMM_LOG_DEBUG = 4 };
typedef void (*comm_log_fn)(int32_t level, const char *text, void *context);
COMM_API void comm_log_set(comm_log_fn fn, void *context);
COMM_API void comm_log_set_level(int32_t level);

#ifdef __cplusplus
}
#endif

#endif
