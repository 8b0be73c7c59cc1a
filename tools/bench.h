/* What the files of comm-bench share. One subject each:
 *   comm-bench.c     the command line, and one rank's run     bench_sizes.c   "8:64M" and "8,1024,1M"
 *   bench_ops.c      the operations and their buffers         bench_data.c    random data, and what it must become
 *   bench_measure.c  the timing method                        bench_report.c  rows as table, CSV or JSON; progress
 *   bench_plot.c     a picture, through gnuplot               bench_spawn.c   -n: ranks without a launcher
 *   bench_roofline.c what the memory could do at best
 *   bench_kernels.c  `comm-bench kernels`: reducing alone
 *   bench_core.c     `comm-bench core`: a call without a backend
 *   bench_device.c   buffers on GPUs
 *   bench_groups.c   `comm-bench groups`: making, using and closing many groups
 *   bench_tune.c     `comm-bench --tune`: rules for this machine
 *   bench_store*.c   `comm-bench store`: see bench_store.h
 *
 * "bytes" of a row means what it means in tools/peers/bench_common.h, so that rows can be laid side by side:
 *   broadcast, all_reduce, reduce, pingpong   the message itself
 *   all_gather                                the whole output of a rank
 *   reduce_scatter, all_to_all                the whole input of a rank
 *   gather, scatter                           the whole buffer at the root
 * A block is at least one element, so 8 B of f32 on 4 ranks moves 16 B where there is a block per rank. */
#ifndef COMM_BENCH_H
#define COMM_BENCH_H

#include <comm/comm.h>
#include <comm/store.h>
#include <stdio.h>

#define BENCH_SIZES_MAX 256   /* sizes in one --bytes: a range of factor 1.1 over the whole address space fits */
#define BENCH_OPS_MAX 32      /* operations in one run */
#define BENCH_DEPTH_MAX 256   /* --async: each in flight has buffers of its own */
#define BENCH_REPEATS_MAX 1000

/* ---- bench_sizes.c ---- */

/* A number of bytes: digits and at most one of K M G (binary). 0 on success, -1 if it is none or does not fit. */
int bench_parse_bytes(const char *text, size_t *ret_bytes);

/* A comma-separated list of numbers and ranges FROM:TO. A range multiplies by `factor` (over 1) and always ends
 * with TO. Writes at most BENCH_SIZES_MAX; returns how many, or -1 with a sentence in `error`. */
int bench_parse_sizes(const char *text, double factor, size_t *ret_sizes, char *error, size_t capacity);

/* ---- bench_ops.c ---- */

/* What one side of an operation is, on a rank that has it. */
enum bench_side { BENCH_NOTHING, BENCH_ONE, BENCH_PER_RANK }; /* `count` elements; `count` for each rank */
enum bench_where { BENCH_EVERYWHERE, BENCH_AT_ROOT, BENCH_PAIR }; /* PAIR: ranks 0 and 1 */

/* Where a rank's result comes from. */
enum bench_result_from {
    BENCH_FROM_NONE,
    BENCH_FROM_ROOT,   /* the root's elements */
    BENCH_FROM_ALL,    /* all ranks' elements, reduced */
    BENCH_FROM_BLOCKS, /* block r from rank r */
    BENCH_FROM_PEER,   /* the other one of the pair */
};

struct bench_call;
struct bench_op {
    const char *name, *help;
    enum bench_side send, recv;
    enum bench_where send_where, recv_where;
    enum bench_result_from from;
    int own_part;          /* the sources' elements are those from rank * count on */
    int in_place_by_default; /* as the peers' programs do (MPI_IN_PLACE) */
    double (*bus_factor)(int32_t ranks); /* nccl-tests: what makes bandwidths of different rank counts comparable */
    comm_status (*run)(struct bench_call *call, comm_work **ret_work);
};

/* The i-th operation, NULL past the end; by name, NULL if there is none. */
const struct bench_op *bench_op_at(size_t index);
const struct bench_op *bench_op_find(const char *name);

/* One operation ready to be called any number of times. Owned by the rank's only thread. */
struct bench_call {
    const struct bench_op *op;
    comm_group *group;
    int32_t rank, ranks, root;
    comm_dtype dtype;
    comm_redop redop; /* -1 if the operation does not reduce */
    size_t count;     /* the argument of the call: elements, or elements per block */
    int in_place, wants_registered;
    char *send, *recv;                /* what the call gets; NULL where this rank has none */
    char *send_host, *recv_host;      /* the same in the CPU's memory: filled and checked there */
    size_t send_count, recv_count;    /* elements there */
    char *memory[2];                  /* what was allocated */
    size_t memory_bytes[2];
    void *device_data[2];             /* and on the device, if that is not the CPU */
    comm_memory *registered[2];       /* by comm_mem_alloc */
    comm_op_options options;
    char premul[16];
    void *graph; /* a CUDA graph of the call, which is launched in its place; NULL: none */
};

/* What the user asked for, as far as a call needs it. */
struct bench_call_options {
    comm_dtype dtype;
    comm_redop redop;
    int32_t root;
    int in_place; /* 1, 0, or -1: as the operation likes */
    comm_device device; /* where the buffers are */
    int registered;     /* the buffers are comm_mem_alloc's, on the CPU too */
    int on_stream;      /* the call returns when it is in `stream` */
    int captured;       /* and it is captured into a graph, which is launched */
    void *stream;
};

/* Allocate (zeroed, touched) buffers for `bytes`. finish takes half-built and zeroed calls. */
comm_status bench_call_init(struct bench_call *call, const struct bench_op *op, comm_group *group, size_t bytes,
                            const struct bench_call_options *options);
void bench_call_finish(struct bench_call *call);

/* Fill the inputs with random data (from `seed`) and poison everything else, guard bytes included. */
void bench_call_prepare(struct bench_call *call, uint64_t seed);
/* After the operation: how many elements of this rank are wrong: results, inputs that should have stayed, guards. */
uint64_t bench_call_wrong(const struct bench_call *call, uint64_t seed);
/* All zero, so that a sum in place stays finite however often it is repeated. */
void bench_call_clear(struct bench_call *call);

/* Every rank's `values` become their reduction; they are in the CPU's memory. */
comm_status bench_reduce_values(const struct bench_call *call, void *values, size_t count, comm_dtype dtype,
                                comm_redop redop);

/* ---- bench_device.c ---- */

/* Open CUDA, and use the device, or if it has no index the one of this local rank. 0, or -1 with a sentence in `error`.
 * The others end the program when CUDA fails. */
int bench_device_open(comm_device *device, int32_t local_rank, void **ret_stream, char *error, size_t capacity);
void bench_device_copy(void *to, const void *from, size_t bytes); /* either may be on the device */
void bench_device_wait(void *stream);
/* What comes into the stream between the two becomes a graph. */
void bench_device_begin_capture(void *stream);
void *bench_device_end_capture(void *stream);
void bench_device_drop_capture(void *stream);
void bench_device_launch(void *graph, void *stream);
void bench_device_destroy_graph(void *graph);

/* ---- bench_data.c ---- */

/* Rank `rank`'s elements [first, first + count). `redop` -1: arbitrary bits, for operations that only move. */
void bench_data_fill(void *dst, comm_dtype dtype, comm_redop redop, uint64_t seed, int32_t rank, size_t first,
                     size_t count);
/* How many elements of `got` are not rank `rank`'s elements from `first` on. */
uint64_t bench_data_wrong(const void *got, comm_dtype dtype, comm_redop redop, uint64_t seed, int32_t rank,
                          size_t first, size_t count);
/* How many elements of `got` are not the reduction of all ranks' elements from `first` on. Computed from the
 * definition in comm.h in 64-bit integers and doubles, with nothing of the library's. */
uint64_t bench_data_wrong_reduced(const void *got, comm_dtype dtype, comm_redop redop, uint64_t seed, int32_t ranks,
                                  size_t first, size_t count);
/* The factor of PREMUL_SUM: one element, 2. */
void bench_data_premul(void *dst, comm_dtype dtype);

/* ---- bench_measure.c ---- */

struct bench_method {
    double target_ms;  /* of one repeat */
    double warm_up_ms; /* at least, before the first one */
    long iterations;   /* 0: chosen from the target */
    long repeats;
    int check;
    int sync;          /* a barrier before each call, which is not counted */
    double compute_us; /* computing before each call, about so long; 0: none */
    double overlap_us; /* computing while each operation is under way; 0: none */
    size_t depth;      /* 1: each call waits; else so many works in flight */
};

struct bench_row {
    const char *op, *backend;
    int32_t ranks;
    size_t bytes;
    long iterations;
    double mean_us, least_us, most_us; /* back to back: the median, least and most of the repeats' means */
    double median_us, p99_us;          /* of single iterations */
    double algbw, busbw; /* GB/s, 1e9 */
    double before_ns, after_ns; /* the distance of ranks 0 and 1: --distance; 0: not measured */
    double copy, update; /* GB/s of a rank's memory while all ranks do so: --roofline; 0: not measured */
    uint64_t errors;
};

/* Measure one operation at one size; every rank calls it and gets the same row. */
comm_status bench_measure(comm_group *group, const struct bench_op *op, size_t bytes,
                          const struct bench_call_options *call_options, const struct bench_method *method,
                          struct bench_row *ret_row);

double bench_now_us(void);

/* Sorts `values`. The p-quantile is the smallest value that at least p of all do not exceed. */
double bench_quantile(double *values, size_t count, double p);

/* ---- bench_roofline.c ---- */

/* Measure what the ranks' memory does with as many bytes as the row has; every rank calls it and gets the same. */
comm_status bench_roofline(comm_group *group, const struct bench_call_options *call_options,
                           const struct bench_method *method, struct bench_row *row);

/* ---- bench_kernels.c ---- */

enum bench_format { BENCH_TABLE, BENCH_CSV, BENCH_JSON };
/* Print the speed of every reduction kernel at these sizes, as CSV or else a table. Returns the exit status. */
int bench_kernels(const size_t *sizes, int size_count, const struct bench_method *method, enum bench_format format);

/* ---- bench_core.c ---- */

/* Print what a call costs in the core, as CSV or else a table: the cases whose CSV rows begin with `only` (NULL: all).
 * Returns the exit status. */
int bench_core(const struct bench_method *method, const char *only, enum bench_format format);

/* ---- bench_groups.c ---- */

/* Make, use twice and close `count` groups in each way; rows come out on rank 0, as CSV or else a table. */
comm_status bench_groups(comm_group *world, long count, enum bench_format format);

/* ---- bench_tune.c ---- */

struct bench_tune_options {
    const char *backends[2]; /* "shm" */
    size_t backend_count;
    const struct bench_op *const *ops;
    size_t op_count;
    const size_t *sizes;
    size_t size_count;
    struct bench_call_options call;
    struct bench_method method; /* `repeats`: turns of all candidates */
    FILE *out;                  /* on rank 0 */
};
/* Find the fastest algorithms, and write rules of them on rank 0. Every rank calls it. *ret_measured: so many pairs of
 * a backend and an op had a choice. */
comm_status bench_tune(comm_group *world, const struct bench_tune_options *options, size_t *ret_measured);

/* ---- bench_report.c ---- */

struct bench_report {
    enum bench_format format;
    FILE *out;
    const char *dtype, *redop; /* for JSON */
    int roofline;              /* rows have it */
    int distance;              /* rows have it */
    struct bench_row *rows;
    size_t row_count, row_capacity;
    int progress; /* 1: stderr is a terminal */
};
void bench_report_begin(struct bench_report *report);
/* Say on a terminal what is being measured now. */
void bench_report_progress(struct bench_report *report, const char *op, size_t bytes, size_t done, size_t total);
/* 0, or -1 when out of memory. */
int bench_report_row(struct bench_report *report, const struct bench_row *row);
/* 0, or -1 if the output could not be written. */
int bench_report_end(struct bench_report *report);
/* 4096 -> "4K"; "1000" as it is. Writes to `text` and returns it. */
const char *bench_bytes_text(size_t bytes, char text[24]);

/* ---- bench_plot.c ---- */

/* Can a picture be written there? Better known before the measurement. 0, or -1 with a sentence in `error`. */
int bench_plot_possible(const char *path, char *error, size_t capacity);

/* Draw time and bus bandwidth over size with gnuplot; the kind of picture is the file's ending (png, svg, pdf).
 * 0, or -1 with a sentence in `error`. */
int bench_plot(const char *path, const struct bench_row *rows, size_t count, char *error, size_t capacity);

/* ---- bench_spawn.c ---- */

struct bench_spawned {
    int32_t rank, ranks;
    int port;        /* of the store that the parent serves on 127.0.0.1 */
    char secret[33]; /* of this job alone */
};
/* Fork `ranks` processes that each return fn's result as their exit status, and wait for them. If one fails the
 * others are ended. `bind`: pin rank r to the r-th core that this process may use. Returns the exit status. */
int bench_spawn(int32_t ranks, int bind, int (*fn)(const struct bench_spawned *self, void *context), void *context);
/* Pin this process to the index-th (modulo) of its cores. */
void bench_bind(int32_t index);
int32_t bench_core_count(void);

#endif
