/* Byte strings of unequal length and the monitored barrier, comm.h sections 5 and 8. Usage: bytes BACKEND [SEED
 * [ROUNDS]]. */
#include <comm/comm.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"
#include "suite.h"

enum { RANKS_MAX = 9 };

/* In a world that serves GPUs, too, the buffers' device must be said. */
static const comm_op_options on_cpu = { .struct_bytes = sizeof on_cpu, .device = COMM_DEVICE_CPU };

struct suite {
    const char *backend;
    uint64_t seed;
    int rounds;
    bool threads;
};

/* Rank `from`'s string for `to` in this round: how long it is, and what is in it, is drawn from `key`. */
static size_t string_bytes(uint64_t key, int from, int to)
{
    static const size_t lengths[] = { 0, 0, 1, 2, 15, 16, 1000, 4097, 70001, 400000 };
    uint64_t state = key + (uint64_t)(from * RANKS_MAX + to);
    return lengths[reference_random(&state) % (reference_random(&state) % 4 == 0 ? 10 : 7)];
}

static void write_string(uint64_t key, int from, int to, uint8_t *at, size_t bytes)
{
    uint64_t state = key ^ (uint64_t)(from * RANKS_MAX + to + 1) * 7919;
    for (size_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(i % 8 == 0 ? reference_random(&state) : at[i - 1] * 5u + 1);
}

static uint8_t *string_of(uint64_t key, int from, int to, size_t *ret_bytes)
{
    *ret_bytes = string_bytes(key, from, to);
    uint8_t *string = malloc(*ret_bytes + 1);
    write_string(key, from, to, string, *ret_bytes);
    return string;
}

static void check_string(const char *what, uint64_t key, int from, int to, const void *got, size_t got_bytes)
{
    size_t bytes;
    uint8_t *wanted = string_of(key, from, to, &bytes);
    if (bytes != got_bytes || (bytes && memcmp(got, wanted, bytes) != 0))
        ranks_fail(__FILE__, __LINE__, "%s: the string of rank %d has %zu bytes, not %zu, or others", what, from,
                   got_bytes, bytes);
    free(wanted);
}

static void check_strings(const char *what, uint64_t key, int size, void *data, size_t *lengths)
{
    const uint8_t *at = data;
    for (int r = 0; r < size; at += lengths[r++])
        check_string(what, key, r, 0, at, lengths[r]);
    comm_free(data);
    comm_free(lengths);
}

static void collectives_round(uint64_t key, comm_group *g)
{
    int rank = comm_group_rank(g), size = comm_group_size(g), root = (int)(key % (uint64_t)size);
    size_t bytes, length, *lengths, part_bytes[RANKS_MAX];
    uint8_t *mine = string_of(key, rank, 0, &bytes), *parts[RANKS_MAX] = { NULL };
    void *data;
    CHECK_OK(comm_all_gather_bytes(g, bytes ? mine : NULL, bytes, NULL, &data, &lengths));
    check_strings("all_gather_bytes", key, size, data, lengths);

    data = &data, lengths = &bytes; /* must become NULL where nothing is given */
    CHECK_OK(comm_gather_bytes(g, mine, bytes, root, NULL, &data, &lengths));
    if (rank == root)
        check_strings("gather_bytes", key, size, data, lengths);
    else
        CHECK(data == NULL && lengths == NULL);

    CHECK_OK(comm_broadcast_bytes(g, rank == root ? mine : NULL, rank == root ? bytes : 0, root, NULL, &data, &length));
    check_string("broadcast_bytes", key, root, 0, data, length);
    CHECK(data != mine);
    comm_free(data);

    for (int r = 0; rank == root && r < size; r++)
        parts[r] = string_of(key, root, r, &part_bytes[r]);
    CHECK_OK(comm_scatter_bytes(g, rank == root ? (const void *const *)parts : NULL, rank == root ? part_bytes : NULL,
                                root, NULL, &data, &length));
    check_string("scatter_bytes", key, root, rank, data, length);
    comm_free(data);
    for (int r = 0; r < size; r++)
        free(parts[r]);
    free(mine);
}

static void collectives(int rank, int size, void *arg)
{
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend), *half;
    uint64_t state = suite->seed + (uint64_t)size;
    CHECK_OK(comm_group_split(world, rank % 2, -rank, NULL, &half));
    for (int i = 0; i < 6 * suite->rounds; i++) {
        collectives_round(reference_random(&state), world);
        collectives_round(reference_random(&state), half);
    }
    CHECK_OK(comm_group_close(half));
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

/* Rank 0 hears from every rank in any order, each string after the other from one rank, by tag or from any source. */
static void messages(int rank, int size, void *arg)
{
    enum { EACH = 6 };
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    for (int i = 0; rank > 0 && i < EACH; i++) {
        size_t bytes;
        uint8_t *string = string_of(suite->seed + (uint64_t)i, rank, 0, &bytes);
        options.tag = i % 2;
        CHECK_OK(comm_send_bytes(world, string, bytes, 0, &options));
        free(string);
    }
    int next[RANKS_MAX] = { 0 };
    for (int i = 0; rank == 0 && i < EACH * (size - 1); i++) {
        void *data;
        size_t bytes;
        int32_t source = -1;
        options.tag = COMM_ANY_TAG;
        CHECK_OK(comm_recv_bytes(world, COMM_ANY_SOURCE, &options, &data, &bytes, &source));
        CHECK(source > 0 && source < size && next[source] < EACH);
        check_string("recv_bytes", suite->seed + (uint64_t)next[source]++, source, 0, data, bytes);
        comm_free(data);
    }
    CHECK_OK(comm_barrier(world, &on_cpu, NULL));
    for (int i = 0; i < 2 && rank < 2 && size > 1; i++) { /* by name, without asking for the source */
        options.tag = 5;
        void *data;
        size_t bytes;
        if (rank == i) {
            CHECK_OK(comm_send_bytes(world, &i, sizeof i, 1 - rank, &options));
        } else {
            CHECK_OK(comm_recv_bytes(world, 1 - rank, &options, &data, &bytes, NULL));
            CHECK(bytes == sizeof i && memcmp(data, &i, bytes) == 0);
            comm_free(data);
        }
    }
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

static comm_work *send_tagged(comm_group *g, const void *data, size_t count, comm_dtype dtype, int32_t tag)
{
    comm_op_options options = on_cpu;
    comm_work *work;
    options.tag = tag;
    CHECK_OK(comm_send(g, data, count, dtype, 0, &options, &work));
    return work;
}

/* Two strings of one rank that are under way at once, as two of its threads may send them: each is its length, then its
 * bytes. A receiver that takes any tag gets the bytes that belong to the length. */
static void strings_do_not_mix(int rank, int size, void *arg)
{
    static const char *const strings[] = { "three", "four!" }; /* of one length */
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    const uint64_t length = 5;
    (void)size;
    if (rank == 1) {
        comm_work *works[4];
        for (int i = 0; i < 2; i++)
            works[i] = send_tagged(world, &length, 1, COMM_DTYPE_U64, 3 + i);
        for (int i = 1; i >= 0; i--)
            works[2 + i] = send_tagged(world, strings[i], 5, COMM_DTYPE_BYTE, 3 + i);
        CHECK_OK(comm_work_wait_all(works, 4, 0));
        for (int i = 0; i < 4; i++)
            comm_work_release(works[i]);
    }
    for (int i = 0; rank == 0 && i < 2; i++) {
        void *data;
        size_t bytes;
        options.tag = COMM_ANY_TAG;
        CHECK_OK(comm_recv_bytes(world, 1, &options, &data, &bytes, NULL));
        CHECK(bytes == 5 && memcmp(data, strings[i], 5) == 0);
        comm_free(data);
    }
    CHECK_OK(comm_barrier(world, &on_cpu, NULL));
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

enum { FROM_A_THREAD = 200 };

struct sending {
    comm_group *world;
    char letter;
};

static void *send_strings(void *arg)
{
    const struct sending *s = arg;
    for (int i = 0; i < FROM_A_THREAD; i++) {
        char text[16];
        snprintf(text, sizeof text, "%c%07d", s->letter, i); /* as long as a length is */
        CHECK_OK(comm_send_bytes(s->world, text, 8, 1, NULL));
    }
    return NULL;
}

/* With one tag: each thread's come in its order, and each is whole. */
static void threads_send_strings(int rank, int size, void *arg)
{
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend);
    struct sending senders[] = { { world, 'a' }, { world, 'b' } };
    int next[2] = { 0 };
    (void)size;
    if (rank == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, send_strings, &senders[1]) == 0);
        send_strings(&senders[0]);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    for (int i = 0; rank == 1 && i < 2 * FROM_A_THREAD; i++) {
        void *data;
        size_t bytes;
        CHECK_OK(comm_recv_bytes(world, 0, NULL, &data, &bytes, NULL));
        const char *text = data;
        CHECK(bytes == 8 && (text[0] == 'a' || text[0] == 'b') && atoi(text + 1) == next[text[0] - 'a']++);
        comm_free(data);
    }
    CHECK_OK(comm_barrier(world, &on_cpu, NULL));
    CHECK_OK(comm_group_close(world));
}

/* All missing ranks are named; the group goes on, and so do its other operations meanwhile. */
static void monitored_barriers(int rank, int size, void *arg)
{
    const struct suite *suite = arg;
    comm_group *world = ranks_world(suite->backend);
    comm_op_options brief = COMM_OP_OPTIONS_INIT, any = on_cpu;
    brief.timeout_ms = 1500; /* the ranks that come must do so in this time on a busy machine */
    /* A receive of any tag from any source is not for the barrier's own messages. */
    int32_t anything = -1;
    comm_work *work;
    any.tag = COMM_ANY_TAG;
    CHECK_OK(comm_recv(world, &anything, 1, COMM_DTYPE_I32, COMM_ANY_SOURCE, &any, &work));
    for (int i = 0; i < 3; i++)
        CHECK_OK(comm_monitored_barrier(world, NULL));
    CHECK_OK(comm_send(world, &rank, 1, COMM_DTYPE_I32, (rank + 1) % size, &on_cpu, NULL));
    CHECK_OK(comm_work_wait(work, 0));
    CHECK(anything == (rank + size - 1) % size);
    comm_work_release(work);
    bool comes = rank != 1 && rank != size - 1;
    if (comes) {
        CHECK_STATUS(comm_monitored_barrier(world, &brief), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("monitored_barrier");
        if (rank == 0) {
            char names[32];
            snprintf(names, sizeof names, "1, %d", size - 1);
            CHECK_ERROR_SAYS(names);
        }
    }
    int32_t sum;
    CHECK_OK(comm_group_status(world));
    CHECK_OK(comm_all_reduce(world, &rank, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &on_cpu, NULL));
    CHECK(sum == size * (size - 1) / 2);
    if (!comes) /* too late for the one that was given up */
        CHECK_STATUS(comm_monitored_barrier(world, &brief), COMM_ERR_TIMEOUT);
    for (int i = 0; i < 3; i++)
        CHECK_OK(comm_monitored_barrier(world, NULL));
    ranks_quiet(world);
    CHECK_OK(comm_group_close(world));
}

static const struct {
    const char *name;
    void (*fn)(int, int, void *);
    int least, most;
} cases[] = {
    { "collectives of byte strings", collectives, 1, 9 },
    { "messages of byte strings", messages, 1, 4 },
    { "strings do not mix", strings_do_not_mix, 2, 2 },
    { "threads send strings", threads_send_strings, 2, 2 },
    { "monitored barriers", monitored_barriers, 3, 5 },
};

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s BACKEND [SEED|fresh [ROUNDS]]\n", argv[0]);
        return 2;
    }
    struct suite suite = {
        .backend = argv[1],
        .seed = suite_seed(argc, argv),
        .rounds = argc > 3 ? atoi(argv[3]) : 1,
        .threads = suite_has_threads(argv[1]),
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int size = cases[c].least; size <= cases[c].most; size++) {
            struct ranks_options options = { .threads = suite.threads, .limit_s = 100, .name = cases[c].name };
            if (ranks_run(size, &options, cases[c].fn, &suite) != 0)
                return 1;
        }
    return 0;
}
