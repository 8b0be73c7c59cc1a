/* What random programs found, once each and without chance. Each claim is run by name, as a test of its own. */
#include <comm/comm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

/* ---- A world of one ---- */

static void one_rank_gives_one_form(int rank, int size, void *arg)
{
    enum { COUNT_MAX = 1200000 };
    static const size_t counts[] = { 1, 5000, COUNT_MAX };
    static const comm_redop redops[] = { COMM_REDOP_MIN, COMM_REDOP_MAX };
    uint16_t *nan = malloc(COUNT_MAX * sizeof *nan);
    uint8_t *truth = malloc(COUNT_MAX);
    comm_group *world = ranks_world("cpu:tcp");
    (void)rank, (void)size, (void)arg;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        size_t count = counts[c];
        for (size_t i = 0; i < count; i++) {
            nan[i] = 0xfcb5;
            truth[i] = 7;
        }
        CHECK_OK(comm_all_reduce(world, nan, nan, count, COMM_DTYPE_F16, redops[c % 2], NULL, NULL));
        CHECK_OK(comm_all_reduce(world, truth, truth, count, COMM_DTYPE_BOOL, COMM_REDOP_BXOR, NULL, NULL));
        for (size_t i = 0; i < count; i++)
            CHECK(nan[i] == 0x7e00 && truth[i] == 1);
    }
    CHECK_OK(comm_group_close(world));
    free(nan);
    free(truth);
}

/* ---- Slices that are not of one length, with algorithms that regroup blocks in scratch ---- */

static void last_slice_is_shorter(int rank, int size, void *arg)
{
    enum { COUNT = 2831, RANKS = 7 };
    static int16_t send[COUNT * RANKS], recv[COUNT * RANKS];
    comm_group *world = ranks_world("cpu:tcp?slice_bytes=1000");
    (void)arg;
    for (int i = 0; i < COUNT * size; i++)
        send[i] = (int16_t)(rank * 1000 + i % 997);
    for (int32_t root = 0; root < size; root += 3) {
        memset(recv, -1, sizeof recv);
        CHECK_OK(comm_gather(world, send, recv, COUNT, COMM_DTYPE_I16, root, NULL, NULL));
        for (int i = 0; rank == root && i < COUNT * size; i++)
            CHECK(recv[i] == (int16_t)(i / COUNT * 1000 + i % COUNT % 997));
        CHECK_OK(comm_scatter(world, send, recv, COUNT, COMM_DTYPE_I16, root, NULL, NULL));
        for (int i = 0; i < COUNT; i++)
            CHECK(recv[i] == (int16_t)(root * 1000 + (rank * COUNT + i) % 997));
        memset(recv, -1, sizeof recv);
        CHECK_OK(comm_all_gather(world, send, recv, COUNT, COMM_DTYPE_I16, NULL, NULL));
        for (int i = 0; i < COUNT * size; i++)
            CHECK(recv[i] == (int16_t)(i / COUNT * 1000 + i % COUNT % 997));
    }
    CHECK_OK(comm_group_close(world));
}

/* ---- A message that comes before its receive, which has no room and no buffer (seen by UBSan) ---- */

static void early_message_meets_no_room(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:tcp");
    int32_t number = 7, got = -1;
    (void)size, (void)arg;
    if (rank == 0) {
        CHECK_OK(comm_send(world, &number, 1, COMM_DTYPE_I32, 1, NULL, NULL));
        CHECK_OK(comm_send(world, &number, 1, COMM_DTYPE_I32, 1, NULL, NULL));
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank == 1) {
        CHECK_STATUS(comm_recv(world, NULL, 0, COMM_DTYPE_I32, 0, NULL, NULL), COMM_ERR_TRUNCATED);
        CHECK_OK(comm_recv(world, &got, 1, COMM_DTYPE_I32, 0, NULL, NULL));
        CHECK(got == 7);
    }
    CHECK_OK(comm_group_close(world));
}

static int claim_early_message_meets_no_room(void)
{
    return ranks_run(2, NULL, early_message_meets_no_room, NULL);
}

/* ---- Many ranks, each of which knows only its own blocks: they choose one algorithm all the same ---- */

static void blocks_that_one_rank_knows(int rank, int size, void *arg)
{
    enum { MANY = 40, LONG = 2 << 20 };
    size_t counts[MANY], own[MANY] = { 0 };
    int32_t out[MANY], in = rank;
    comm_group *world = ranks_world(arg);
    for (int r = 0; r < size; r++)
        counts[r] = 1;
    for (int32_t root = 0; root < size; root += size - 1) {
        memset(out, -1, sizeof out);
        CHECK_OK(rank == root
                     ? comm_gather_v(world, &in, 1, out, counts, NULL, COMM_DTYPE_I32, root, NULL, NULL)
                     : comm_gather(world, &in, NULL, 1, COMM_DTYPE_I32, root, NULL, NULL));
        for (int r = 0; rank == root && r < size; r++)
            CHECK(out[r] == r);
        CHECK_OK(rank == root
                     ? comm_scatter_v(world, out, counts, NULL, &in, 1, COMM_DTYPE_I32, root, NULL, NULL)
                     : comm_scatter(world, NULL, &in, 1, COMM_DTYPE_I32, root, NULL, NULL));
        CHECK(in == rank);
    }
    /* Two ranks have much for each other, the others have nothing. */
    uint8_t *send = malloc(LONG), *recv = calloc(LONG, 1);
    CHECK(send && recv);
    memset(send, rank + 1, LONG);
    if (rank < 2)
        own[1 - rank] = LONG;
    CHECK_OK(comm_all_to_all_v(world, send, own, NULL, recv, own, NULL, COMM_DTYPE_U8, NULL, NULL));
    CHECK(rank > 1 || (recv[0] == 2 - rank && recv[LONG - 1] == 2 - rank));
    CHECK_OK(comm_group_close(world));
    free(send);
    free(recv);
}

/* ---- Calls that wait, between begin and end: what they wait for would only be written down ---- */

static void waiting_calls_are_refused_in_a_batch(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("cpu:tcp"), *part;
    void *data;
    size_t *lengths, bytes;
    const void *strings[] = { "ab", "cd" };
    size_t string_bytes[] = { 2, 2 };
    (void)rank, (void)size, (void)arg;
    CHECK_OK(comm_coalesce_begin(world));
    CHECK_STATUS(comm_all_gather_bytes(world, "ab", 2, NULL, &data, &lengths), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("comm_coalesce_begin");
    CHECK_STATUS(comm_gather_bytes(world, "ab", 2, 0, NULL, &data, &lengths), COMM_ERR_INVALID);
    CHECK_STATUS(comm_broadcast_bytes(world, "ab", 2, 0, NULL, &data, &bytes), COMM_ERR_INVALID);
    CHECK_STATUS(comm_scatter_bytes(world, strings, string_bytes, 0, NULL, &data, &bytes), COMM_ERR_INVALID);
    CHECK_STATUS(comm_send_bytes(world, "ab", 2, 1 - rank, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_recv_bytes(world, 1 - rank, NULL, &data, &bytes, NULL), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_split(world, 0, 0, NULL, &part), COMM_ERR_INVALID);
    CHECK_STATUS(comm_monitored_barrier(world, NULL), COMM_ERR_INVALID);
    CHECK_OK(comm_barrier(world, NULL, NULL)); /* written down */
    CHECK_OK(comm_coalesce_end(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

static int claim_waiting_calls_are_refused_in_a_batch(void)
{
    return ranks_run(2, NULL, waiting_calls_are_refused_in_a_batch, NULL);
}

static int claim_many_ranks_choose_alike(void)
{
    return ranks_run(20, NULL, blocks_that_one_rank_knows, "cpu:tcp") ||
           ranks_run(20, NULL, blocks_that_one_rank_knows, "cpu:shm");
}

static int claim_one_rank_gives_one_form(void)
{
    return ranks_run(1, NULL, one_rank_gives_one_form, NULL);
}

static int claim_last_slice_is_shorter(void)
{
    setenv("COMM_TCP_ALGO", "gather:binomial,scatter:binomial,all_gather:bruck", 1);
    return ranks_run(7, NULL, last_slice_is_shorter, NULL);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(void);
    } claims[] = {
        { "one_rank_gives_one_form", claim_one_rank_gives_one_form },
        { "last_slice_is_shorter", claim_last_slice_is_shorter },
        { "many_ranks_choose_alike", claim_many_ranks_choose_alike },
        { "early_message_meets_no_room", claim_early_message_meets_no_room },
        { "waiting_calls_are_refused_in_a_batch", claim_waiting_calls_are_refused_in_a_batch },
    };
    for (size_t i = 0; argc == 2 && i < sizeof claims / sizeof *claims; i++)
        if (strcmp(argv[1], claims[i].name) == 0)
            return claims[i].run();
    fprintf(stderr, "usage: %s CLAIM\n", argv[0]);
    return 2;
}
