/* LightGBM's network over libcomm: the two functions that LGBM_NetworkInitWithFunctions takes.
 *
 * They get no pointer of ours, so the group is kept per thread, as LightGBM keeps its network. They return nothing, so
 * an error leaves as a C++ exception, which LightGBM's C API turns into its error: the one that its own sockets
 * throw. */
#include "comm_lightgbm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What this thread's functions need; the arrays have an entry per rank. */
struct network {
    comm_group *group;
    int32_t rank, size;
    size_t *counts, *offsets;
    const void **blocks;
};

static _Thread_local struct network *network;

/* ---- Errors ---- */

typedef void (*throw_fn)(const char *text) __attribute__((noreturn));

/* std::runtime_error by the C++ library that LightGBM has loaded: std::__throw_runtime_error. */
static throw_fn find_throw(void)
{
    throw_fn function = NULL;
    void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = library ? dlsym(library, "_ZSt21__throw_runtime_errorPKc") : NULL;
    if (symbol)
        memcpy(&function, &symbol, sizeof function); /* ISO C has no cast from object to function pointer */
    return function;
}

/* Does not return. This file is compiled with -fexceptions. */
static void fail(const char *text)
{
    throw_fn throw_error = find_throw();
    if (throw_error)
        throw_error(text);
    fprintf(stderr, "LightGBM over libcomm: %s\n", text);
    abort();
}

static void check(comm_status status)
{
    if (status != COMM_OK)
        fail(comm_last_error());
}

static const struct network *network_of(int num_block)
{
    if (!network)
        fail("comm_lightgbm_begin was not called on the thread that trains");
    if (num_block != network->size)
        fail("LightGBM was initialized with another number of machines than the group has ranks");
    return network;
}

/* ---- LightGBM's functions ---- */

static int overlap(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

void comm_lightgbm_all_gather(char *input, int32_t input_size, const int32_t *block_start, const int32_t *block_len,
                              int num_block, char *output, int32_t output_size)
{
    const struct network *n = network_of(num_block);
    for (int32_t r = 0; r < n->size; r++) {
        n->counts[r] = (size_t)block_len[r];
        n->offsets[r] = (size_t)block_start[r];
    }
    /* LightGBM may give the beginning of `output` as `input`. */
    char *own = output + block_start[n->rank];
    if (input != own && overlap(input, (size_t)input_size, output, (size_t)output_size))
        input = memmove(own, input, (size_t)block_len[n->rank]);
    check(comm_all_gather_v(n->group, input, output, n->counts, n->offsets, COMM_DTYPE_BYTE, NULL, NULL));
}

struct reduction {
    comm_lightgbm_reduce reduce;
    int32_t element_bytes;
};

/* LightGBM's reducers take int32_t bytes and are commutative. */
static void reduce(const void *in, void *inout, size_t count, comm_dtype dtype, void *context)
{
    const struct reduction *r = context;
    (void)dtype;
    r->reduce(in, inout, r->element_bytes, (int32_t)(count * (size_t)r->element_bytes));
}

void comm_lightgbm_reduce_scatter(char *input, int32_t input_size, int type_size, const int32_t *block_start,
                                  const int32_t *block_len, int num_block, char *output, int32_t output_size,
                                  const comm_lightgbm_reduce *reducer)
{
    const struct network *n = network_of(num_block);
    struct reduction reduction = { *reducer, type_size };
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    (void)output_size;
    options.reduce_fn = reduce;
    options.reduce_context = &reduction;
    options.element_bytes = (uint32_t)type_size;
    for (int32_t r = 0; r < n->size; r++) {
        if (block_len[r] % type_size != 0)
            fail("LightGBM gave a block that is not of whole elements");
        n->counts[r] = (size_t)(block_len[r] / type_size);
        n->blocks[r] = input + block_start[r];
    }
    char *own = input + block_start[n->rank];
    size_t own_bytes = (size_t)block_len[n->rank];
    int is_apart = !overlap(input, (size_t)input_size, output, own_bytes);
    /* `input` is LightGBM's scratch memory: the result may go there first. */
    check(comm_reduce_scatter_list(n->group, n->blocks, is_apart ? output : own, n->counts, COMM_DTYPE_BYTE,
                                   COMM_REDOP_USER, &options, NULL));
    if (!is_apart)
        memmove(output, own, own_bytes);
}

/* ---- The group ---- */

comm_status comm_lightgbm_begin(const char *backend, int32_t *ret_rank, int32_t *ret_size)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    struct network *n = calloc(1, sizeof *n);
    comm_lightgbm_end();
    if (!n)
        return COMM_ERR_NO_MEMORY;
    options.backend = backend;
    comm_status status = comm_init(&options, &n->group);
    if (status != COMM_OK) {
        free(n);
        return status;
    }
    network = n;
    *ret_rank = n->rank = comm_group_rank(n->group);
    *ret_size = n->size = comm_group_size(n->group);
    n->counts = calloc((size_t)n->size, sizeof *n->counts);
    n->offsets = calloc((size_t)n->size, sizeof *n->offsets);
    n->blocks = calloc((size_t)n->size, sizeof *n->blocks);
    if (n->counts && n->offsets && n->blocks)
        return COMM_OK;
    comm_lightgbm_end();
    return COMM_ERR_NO_MEMORY;
}

comm_group *comm_lightgbm_group(void)
{
    return network ? network->group : NULL;
}

void comm_lightgbm_end(void)
{
    struct network *n = network;
    network = NULL;
    if (!n)
        return;
    comm_group_close(n->group);
    free(n->counts);
    free(n->offsets);
    free(n->blocks);
    free(n);
}
