/* Groups: making, naming, ending, closing; joining a world: on the loopback backend, where ranks are threads, and on
 * tcp, where they are processes. */
#include <comm/comm.h>
#include <comm/store.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loopback.h"
#include "ranks.h"

static const char *backend; /* set before the ranks start */

static int32_t sum_over(comm_group *group, int32_t value)
{
    CHECK_OK(comm_all_reduce(group, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    return value;
}

static void groups_are_made_without_non_members(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world(backend), *group = NULL, *found, *other;
    const int32_t ranks[] = { 3, 1, 4 };
    int32_t mine = -1, listed[3];
    CHECK(strcmp(comm_group_backend(world), backend) == 0);
    CHECK_OK(comm_group_create(world, ranks, 3, NULL, &group));
    CHECK((group != NULL) == (rank == 1 || rank == 3 || rank == 4));
    CHECK_STATUS(comm_group_find(world, "no such", &found), COMM_ERR_NOT_FOUND);
    if (group) {
        CHECK(comm_group_size(group) == 3);
        CHECK(comm_group_rank(group) == (rank == 3 ? 0 : rank == 1 ? 1 : 2));
        CHECK_OK(comm_group_world_rank(group, comm_group_rank(group), &mine));
        CHECK(mine == rank);
        CHECK_OK(comm_group_rank_of(group, 4, &mine));
        CHECK(mine == 2);
        CHECK_STATUS(comm_group_rank_of(group, 0, &mine), COMM_ERR_NOT_FOUND);
        CHECK_STATUS(comm_group_world_rank(group, 3, &mine), COMM_ERR_NOT_FOUND);
        CHECK_OK(comm_group_ranks(group, listed));
        CHECK(memcmp(listed, ranks, sizeof ranks) == 0);
        CHECK_OK(comm_group_find(world, comm_group_name(group), &found));
        CHECK(found == group && strcmp(comm_group_name(group), "world[3,1,4]") == 0);
        CHECK(sum_over(group, rank) == 8);
        CHECK_OK(comm_group_create(world, ranks, 3, NULL, &other)); /* the same list again is another group */
        CHECK(strcmp(comm_group_name(other), "world[3,1,4]#1") == 0);
        CHECK_OK(comm_group_close(other));
        if (rank == 3) { /* a call that is refused on one rank must not put it out of step with the others */
            comm_group_options wrong = COMM_GROUP_OPTIONS_INIT;
            wrong.backend = "cpu:carrier-pigeon";
            CHECK_STATUS(comm_group_create(world, ranks, 3, &wrong, &other), COMM_ERR_NOT_FOUND);
        }
        CHECK_OK(comm_group_create(world, ranks, 3, NULL, &other));
        CHECK(strcmp(comm_group_name(other), "world[3,1,4]#2") == 0);
        CHECK(sum_over(other, 1) == 3 && sum_over(group, 2) == 6);
        CHECK_OK(comm_group_close(other));
    }
    if (rank == 3) { /* nor must it ask the others */
        comm_group_options wrong = COMM_GROUP_OPTIONS_INIT;
        wrong.backend = "cpu:carrier-pigeon";
        CHECK_STATUS(comm_group_split(world, 0, 0, &wrong, &other), COMM_ERR_NOT_FOUND);
    }
    CHECK_OK(comm_group_split(world, rank % 2, 0, NULL, &other));
    CHECK(sum_over(other, 1) == (rank % 2 ? 2 : 3));
    CHECK_OK(comm_group_close(other));
    const int32_t twice[] = { 1, 1 }, beyond[] = { 5 };
    CHECK_STATUS(comm_group_create(world, twice, 2, NULL, &other), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("rank 1 is in the list twice");
    CHECK_STATUS(comm_group_create(world, beyond, 1, NULL, &other), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_create(world, NULL, 0, NULL, &other), COMM_ERR_INVALID);
    CHECK_OK(comm_group_close(world)); /* before its child */
    if (group)
        CHECK(sum_over(group, 1) == 3);
    CHECK_OK(comm_group_close(group));
}

static void groups_are_divided(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world(backend), *half, *pair, *same;
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    options.name = "half";
    options.timeout_ms = 1234;
    CHECK_OK(comm_group_split(world, rank < 2 ? 0 : rank == 2 ? -1 : 7, -rank, &options, &half));
    CHECK((half == NULL) == (rank == 2));
    if (half) {
        CHECK(comm_group_rank(half) == (rank < 2 ? 1 - rank : size - 1 - rank));
        CHECK(comm_group_timeout(half) == 1234 && strcmp(comm_group_name(half), "half") == 0);
        CHECK(sum_over(half, 1) == comm_group_size(half));
    }
    CHECK_OK(comm_group_subgroups(world, 2, NULL, &pair));
    CHECK(comm_group_size(pair) == 2 && sum_over(pair, rank) == rank / 2 * 4 + 1);
    CHECK_STATUS(comm_group_subgroups(world, 4, NULL, &same), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("6 ranks cannot be divided into groups of 4");
    CHECK_OK(comm_group_dup(world, NULL, &same));
    CHECK(sum_over(same, 1) == size);
    CHECK(comm_group_seq(same) == 1);
    CHECK_OK(comm_group_close(same));
    CHECK_OK(comm_group_close(pair));
    CHECK_OK(comm_group_close(half));
    CHECK_OK(comm_group_close(world));
}

static void groups_are_enumerated(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world(backend), *mine, *untouched = (comm_group *)&mine;
    const int32_t ranks[] = { 4, 0, 1, 3, 2 };
    const size_t counts[] = { 2, 3 }, empty[] = { 2, 0, 3 }, beyond[] = { 2, 7 };
    const int32_t overlap[] = { 4, 0, 1, 0, 2 }, places[] = { 1, 0, 2, 1, 0 };
    CHECK(size == 6 && comm_group_count(world) == 1 && comm_group_device(world) == COMM_DEVICE_CPU);
    CHECK(strcmp(comm_group_description(world), "") == 0);
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    options.description = "every second Tuesday";
    CHECK_OK(comm_group_subgroups_list(world, ranks, counts, 2, &options, &mine));
    CHECK((mine == NULL) == (rank == 5));
    CHECK(comm_group_count(world) == (mine ? 2 : 1));
    if (mine) {
        CHECK(comm_group_size(mine) == (rank == 4 || rank == 0 ? 2 : 3));
        CHECK(comm_group_rank(mine) == places[rank]);
        CHECK(sum_over(mine, rank) == (rank == 4 || rank == 0 ? 4 : 6));
        CHECK(strcmp(comm_group_description(mine), "every second Tuesday") == 0);
    }
    CHECK_STATUS(comm_group_subgroups_list(world, overlap, counts, 2, NULL, &untouched), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("rank 0 is in the list twice");
    CHECK_STATUS(comm_group_subgroups_list(world, ranks, empty, 3, NULL, &untouched), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("counts[1] is 0");
    CHECK_STATUS(comm_group_subgroups_list(world, ranks, beyond, 2, NULL, &untouched), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_subgroups_list(world, ranks, NULL, 2, NULL, &untouched), COMM_ERR_INVALID);
    CHECK_STATUS(comm_group_subgroups_list(world, NULL, counts, 2, NULL, &untouched), COMM_ERR_INVALID);
    CHECK(untouched == (comm_group *)&mine);
    CHECK_OK(comm_group_close(mine));
    CHECK(comm_group_count(world) == 1 && comm_group_count(NULL) == -1);
    CHECK_OK(comm_group_close(world));
}

static void abort_ends_the_group_and_shrink_goes_on(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world(backend), *rest = NULL;
    const int32_t gone[] = { 1 };
    /* Rank 1 must not end it before the others have come. */
    for (int r = 0; r < size; r++) {
        if (rank == 1 && r != 1)
            CHECK_OK(comm_recv(world, NULL, 0, COMM_DTYPE_BYTE, r, NULL, NULL));
        if (rank != 1 && r == rank)
            CHECK_OK(comm_send(world, NULL, 0, COMM_DTYPE_BYTE, 1, NULL, NULL));
    }
    if (rank == 1)
        CHECK_OK(comm_group_abort(world, "out of coffee"));
    else
        CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_ABORTED);
    if (rank != 1) {
        CHECK_ERROR_SAYS("rank 1 of group 'world' called comm_group_abort: out of coffee");
        CHECK_OK(comm_group_shrink(world, gone, 1, NULL, &rest));
        CHECK(sum_over(rest, 1) == size - 1);
    }
    CHECK_STATUS(comm_barrier(world, NULL, NULL), COMM_ERR_ABORTED);
    CHECK_OK(comm_group_close(rest));
    CHECK_OK(comm_group_close(world));
}

static void different_calls_are_a_mismatch(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world(backend);
    float data[8] = { 0 };
    CHECK_STATUS(comm_all_reduce(world, data, data, rank == 0 ? 8 : 7, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, NULL),
                 COMM_ERR_MISMATCH);
    CHECK_OK(comm_group_close(world));
}

static void several_devices_must_be_told_apart(int rank, int size, void *arg)
{
    (void)rank, (void)arg;
    comm_group *world = ranks_world("loopback");
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    int32_t value = 1;
    CHECK(strcmp(comm_group_backend(world), "cpu:loopback,xpu:loopback") == 0);
    CHECK(comm_group_device(world) == COMM_DEVICE_DEFAULT);
    CHECK_STATUS(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL),
                 COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("options->device");
    options.device = COMM_DEVICE_CUDA;
    CHECK_STATUS(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL),
                 COMM_ERR_UNSUPPORTED);
    options.device = COMM_DEVICE_XPU;
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL));
    CHECK(value == size && comm_group_seq(world) == 1);
    CHECK_OK(comm_group_close(world));
}

static void byte_strings_travel(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world(backend);
    char mine[16];
    void *data;
    size_t *lengths, length, at = 0;
    int32_t source;
    size_t bytes = (size_t)snprintf(mine, sizeof mine, "%.*s", rank, "abcdefgh");
    CHECK_OK(comm_all_gather_bytes(world, mine, bytes, NULL, &data, &lengths));
    for (int r = 0; r < size; at += lengths[r++])
        CHECK(lengths[r] == (size_t)r && memcmp((char *)data + at, "abcdefgh", (size_t)r) == 0);
    comm_free(data);
    comm_free(lengths);
    CHECK_OK(comm_gather_bytes(world, mine, bytes, 1, NULL, &data, &lengths));
    CHECK((data != NULL) == (rank == 1));
    CHECK(rank != 1 || lengths[size - 1] == (size_t)size - 1);
    comm_free(data);
    comm_free(lengths);
    CHECK_OK(comm_broadcast_bytes(world, rank == 2 ? "hello" : NULL, rank == 2 ? 5 : 0, 2, NULL, &data, &length));
    CHECK(length == 5 && strcmp(data, "hello") == 0);
    comm_free(data);
    const void *parts[] = { "zero", "", "two" };
    const size_t part_bytes[] = { 4, 0, 3 };
    CHECK_OK(
        comm_scatter_bytes(world, rank == 0 ? parts : NULL, rank == 0 ? part_bytes : NULL, 0, NULL, &data, &length));
    CHECK(length == part_bytes[rank] && memcmp(data, parts[rank], length) == 0);
    comm_free(data);
    if (rank == 2) {
        comm_op_options options = COMM_OP_OPTIONS_INIT;
        options.tag = COMM_ANY_TAG;
        CHECK_OK(comm_recv_bytes(world, COMM_ANY_SOURCE, &options, &data, &length, &source));
        CHECK(source == 1 && length == 3 && memcmp(data, "one", 3) == 0);
        comm_free(data);
    } else if (rank == 1) {
        CHECK_OK(comm_send_bytes(world, "one", 3, 2, NULL));
    }
    CHECK_OK(comm_group_close(world));
}

static void negative_lengths_are_refused(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world(backend);
    const size_t minus_3 = (size_t)-3, part_bytes[] = { 1, minus_3, 1 }, much[] = { 1, (size_t)1 << 57, 1 };
    const void *parts[] = { "a", "b", "c" };
    void *data;
    size_t *lengths, length;
    CHECK_STATUS(comm_all_gather_bytes(world, "abc", minus_3, NULL, &data, &lengths), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("comm_all_gather_bytes on group 'world': send_bytes is 18446744073709551613: is it negative?");
    CHECK_STATUS(comm_gather_bytes(world, NULL, minus_3, 0, NULL, &data, &lengths), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("send_bytes is 18446744073709551613: is it negative?");
    CHECK_STATUS(comm_broadcast_bytes(world, "abc", minus_3, rank, NULL, &data, &length), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("bytes is 18446744073709551613: is it negative?");
    CHECK_STATUS(comm_scatter_bytes(world, parts, part_bytes, rank, NULL, &data, &length), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("send_bytes[1] is 18446744073709551613: is it negative?");
    CHECK_STATUS(comm_scatter_bytes(world, parts, much, rank, NULL, &data, &length), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("more than the address space holds");
    CHECK_STATUS(comm_send_bytes(world, "abc", minus_3, 0, NULL), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("bytes is 18446744073709551613: is it negative?");
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

/* Rank 1 gives a length that no string has, by the operation that the calls of the others begin with. */
static void check_gathered_length(comm_group *world, int rank, uint64_t length, comm_status expected, const char *says)
{
    comm_group *group;
    uint64_t lengths[8];
    void *data;
    size_t *gathered;
    CHECK_OK(comm_group_dup(world, NULL, &group));
    if (rank == 1) {
        comm_status status = comm_all_gather(group, &length, lengths, 1, COMM_DTYPE_U64, NULL, NULL);
        if (status == COMM_OK) /* the others may be faster, and their reason is here before this has ended */
            status = comm_barrier(group, NULL, NULL);
        CHECK_STATUS(status, expected);
    } else {
        CHECK_STATUS(comm_all_gather_bytes(group, "abc", 3, NULL, &data, &gathered), expected);
    }
    CHECK_ERROR_SAYS(says);
    CHECK_ERROR_SAYS("comm_all_gather_bytes on group");
    CHECK_STATUS(comm_group_status(group), expected);
    CHECK_OK(comm_barrier(world, NULL, NULL)); /* loopback forgets a group that all who have opened it have closed */
    CHECK_OK(comm_group_close(group));
}

/* Rank 0 sends something with comm_send that rank 1 receives with comm_recv_bytes. */
static void check_received(comm_group *world, int rank, const void *message, size_t bytes, comm_status expected,
                           const char *says)
{
    comm_group *group;
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    void *data;
    size_t length;
    options.tag = 6;
    CHECK_OK(comm_group_dup(world, NULL, &group));
    comm_status status = COMM_OK;
    if (rank == 0)
        status = comm_send(group, message, bytes, COMM_DTYPE_BYTE, 1, &options, NULL);
    if (rank == 1)
        status = comm_recv_bytes(group, 0, &options, &data, &length, NULL);
    else if (status == COMM_OK)
        status = comm_barrier(group, NULL, NULL);
    CHECK_STATUS(status, expected);
    CHECK_ERROR_SAYS(says);
    CHECK_ERROR_SAYS("from rank 0 with tag 6");
    CHECK_ERROR_SAYS("sent with comm_send_bytes");
    CHECK_STATUS(comm_group_status(group), expected);
    CHECK_OK(comm_barrier(world, NULL, NULL)); /* loopback forgets a group that all who have opened it have closed */
    CHECK_OK(comm_group_close(group));
}

static void absurd_lengths_end_the_group(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = ranks_world(backend);
    const uint64_t negative = (uint64_t)-3;
    static const char letters[400];
    check_gathered_length(world, rank, negative, COMM_ERR_PROTOCOL, "rank 1 gave the length 18446744073709551613");
    check_received(world, rank, letters, 4, COMM_ERR_MISMATCH, "it has 4 bytes instead of 8");
    check_received(world, rank, letters, 400, COMM_ERR_MISMATCH, "400");
    check_received(world, rank, &negative, 8, COMM_ERR_MISMATCH, "18446744073709551613, which is no length");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* these abort instead */
    const uint64_t much = (uint64_t)1 << 56;
    check_gathered_length(world, rank, much, COMM_ERR_ABORTED,
                          "could not allocate 72057594037927942 bytes for what was sent, of which rank 1 gave "
                          "72057594037927936");
    check_received(world, rank, &much, 8, COMM_ERR_ABORTED, "could not allocate 72057594037927936 bytes");
#endif
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

static void a_monitored_barrier_names_who_is_missing(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = ranks_world(backend);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.timeout_ms = rank == 0 ? 1200 : 900; /* the limits of the others are over before rank 0's */
    CHECK_OK(comm_monitored_barrier(world, NULL));
    if (rank != 2) {
        CHECK_STATUS(comm_monitored_barrier(world, &options), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS(rank == 0 ? "1 rank has not come within 1200 ms: 2" : "has not come in time, such as rank 2");
    }
    CHECK_OK(comm_barrier(world, NULL, NULL)); /* the group is still usable */
    options.timeout_ms = 10000;
    if (rank == 2) { /* late for the second one: rank 0 says so when it is in the third */
        CHECK_STATUS(comm_monitored_barrier(world, &options), COMM_ERR_TIMEOUT);
    }
    CHECK_OK(comm_monitored_barrier(world, &options));
    CHECK_OK(comm_monitored_barrier(world, &options));
    CHECK(comm_group_seq(world) == 1 && size == 4);
    comm_record records[64];
    size_t count;
    CHECK_OK(comm_group_records(world, records, sizeof(comm_record), 64, &count));
    CHECK(count > 3);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_close(world));
}

/* A group of the ranks 2, 0 and 1. */
static void texts_of_a_permuted_group_give_both_numbers(int rank, int size, void *arg)
{
    const int32_t members[] = { 2, 0, 1 };
    comm_op_options brief = COMM_OP_OPTIONS_INIT;
    comm_group *world = ranks_world(backend), *group;
    float value = 1;
    char own[64];
    (void)size, (void)arg;
    CHECK_OK(comm_group_create(world, members, 3, NULL, &group));
    snprintf(own, sizeof own, "(rank %d of 3, world rank %d)", comm_group_rank(group), rank);
    CHECK_STATUS(comm_all_reduce(group, &value, NULL, 1, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, NULL), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS(own);
    brief.timeout_ms = 900;
    if (rank != 0) { /* rank 1 of the group does not come */
        CHECK_STATUS(comm_monitored_barrier(group, &brief), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS(own);
        CHECK_ERROR_SAYS(rank == 2 ? ": 1 (world rank 0)" : "rank 0 (world rank 2)");
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(comm_group_abort(group, "enough"));
    CHECK_STATUS(comm_barrier(group, NULL, NULL), COMM_ERR_ABORTED);
    CHECK_ERROR_SAYS(own);
    CHECK_OK(comm_group_close(group));
    CHECK_OK(comm_group_close(world));
}

/* The members of a group that none of them has opened the backend for wait for each other, in the store. */
static void a_member_that_makes_no_group_is_named(int rank, int size, void *arg)
{
    const int32_t members[] = { 0, 1, 2 }, others[] = { 0, 1, 3 }, pair[] = { 0, 2 };
    comm_group *world = ranks_world(backend), *group = NULL;
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    comm_op_options brief = COMM_OP_OPTIONS_INIT;
    (void)size, (void)arg;
    options.backend = "cpu:shm";
    options.timeout_ms = 2000;
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank < 2) {
        CHECK_STATUS(comm_group_create(world, members, 3, &options, &group), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("opening backend 'shm': group 'world[0-2]' timed out after ");
        CHECK_ERROR_SAYS(": rank 2 has not opened shm for it; make the group on every member");
    }
    if (rank == 0) { /* a group of two does not wait for that */
        CHECK_OK(comm_group_create(world, pair, 2, &options, &group));
        CHECK_STATUS(comm_barrier(group, NULL, NULL), COMM_ERR_DEADLINE);
        CHECK_ERROR_SAYS("rank 1 (world rank 2) cannot be reached by rank 0");
        CHECK_ERROR_SAYS("that rank has not opened shm yet (make the group on every member, with the same backend "
                         "string)");
        CHECK_OK(comm_group_close(group));
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    options.timeout_ms = 30000;
    if (rank < 3) {
        CHECK_OK(comm_group_create(world, members, 3, &options, &group));
        CHECK(sum_over(group, 1) == 3);
        CHECK_OK(comm_group_close(group));
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    brief.timeout_ms = 30000;
    if (rank < 2) { /* rank 3 leaves, and that is known */
        CHECK_STATUS(comm_barrier(world, &brief, NULL), COMM_ERR_PEER_LOST);
        CHECK_STATUS(comm_group_create(world, others, 3, &options, &group), COMM_ERR_PEER_LOST);
        CHECK_ERROR_SAYS("group 'world[0,1,3]': rank 2 (world rank 3) has ended, or has closed its world, and has not");
    } else if (rank == 2) {
        CHECK_STATUS(comm_barrier(world, &brief, NULL), COMM_ERR_PEER_LOST);
    }
    CHECK_OK(comm_group_close(world));
}

static void wrong_options_are_refused(int rank, int size, void *arg) /* joining itself: join.c */
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = NULL;
    comm_init_options zero = { 0 }, options = COMM_INIT_OPTIONS_INIT;
    CHECK_STATUS(comm_init(&zero, &world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("COMM_INIT_OPTIONS_INIT");
    options.backend = "cpu:carrier-pigeon";
    options.name = "pigeons";
    CHECK_STATUS(ranks_init(&options, &world), COMM_ERR_NOT_FOUND);
    CHECK_ERROR_SAYS("there is no backend 'carrier-pigeon'");
    CHECK(world == NULL);
}

static void a_forked_child_is_told_so(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = ranks_world(backend);
    pid_t child = fork();
    if (child == 0) {
        int ok = comm_barrier(world, NULL, NULL) == COMM_ERR_FORKED && strstr(comm_last_error(), "fork()") &&
                 comm_group_status(world) == COMM_ERR_FORKED && strstr(comm_last_error(), "comm_group_status: ") &&
                 comm_group_close(world) == COMM_ERR_FORKED;
        _exit(ok ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_OK(comm_barrier(world, NULL, NULL)); /* the parent is unharmed */
    CHECK_OK(comm_group_close(world));
}

/* Each rank knows its own host only; hosts are numbered as they first appear, for groups in any order, too. */
static void hosts_are_told_to_all(int rank, int size, void *arg)
{
    static const char *const texts[] = { "z", "a", "z", "b", "a", "z" };
    static const int32_t expected[] = { 0, 1, 0, 2, 1, 0 }, backwards[] = { 5, 4, 3, 2, 1, 0 };
    int32_t hosts[6] = { 0 };
    comm_group *group;
    comm_group_options options = COMM_GROUP_OPTIONS_INIT;
    (void)arg;
    setenv("COMM_HOST_ID", texts[rank], 1);
    if (rank == 3)
        setenv("COMM_HANDOUT_BYTES", "0", 1); /* for worlds of many ranks, too */
    comm_group *world = ranks_world(backend);
    CHECK_OK(comm_group_hosts(world, hosts));
    CHECK(memcmp(hosts, expected, sizeof hosts) == 0);
    CHECK_OK(comm_group_create(world, backwards, (size_t)size, NULL, &group));
    CHECK_OK(comm_group_hosts(group, hosts));
    for (int r = 0; r < size; r++)
        CHECK(hosts[r] == expected[size - 1 - r]);
    CHECK_OK(comm_group_close(group));
    options.backend = "cpu:shm";
    CHECK_STATUS(comm_group_create(world, backwards, (size_t)size, &options, &group), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("ranks 0 and 1 are on different hosts");
    CHECK_ERROR_SAYS("; ranks 0 and 1 have different values of COMM_HOST_ID ('z' and 'a')");
    CHECK_OK(comm_barrier(world, NULL, NULL)); /* a rank asks the others' store for it */
    CHECK_OK(comm_group_close(world));
}

static int run(const struct ranks_options *how)
{
    return ranks_run(5, how, groups_are_made_without_non_members, NULL) ||
           ranks_run(6, how, groups_are_divided, NULL) || ranks_run(6, how, groups_are_enumerated, NULL) ||
           ranks_run(4, how, abort_ends_the_group_and_shrink_goes_on, NULL) ||
           ranks_run(3, how, different_calls_are_a_mismatch, NULL) || ranks_run(3, how, byte_strings_travel, NULL) ||
           ranks_run(3, how, negative_lengths_are_refused, NULL) ||
           ranks_run(3, how, absurd_lengths_end_the_group, NULL) ||
           ranks_run(4, how, a_monitored_barrier_names_who_is_missing, NULL) ||
           ranks_run(3, how, texts_of_a_permuted_group_give_both_numbers, NULL) ||
           ranks_run(2, how, wrong_options_are_refused, NULL) ||
           ranks_run(1, how, a_forked_child_is_told_so, NULL);
}

int main(void)
{
    const struct ranks_options threads = { .threads = 1, .limit_s = 60, .name = "groups, loopback" };
    const struct ranks_options processes = { .limit_s = 60, .name = "groups, tcp" };
    if (comm_backend_register(loopback_entry) != COMM_OK)
        return 1;
    backend = "cpu:loopback";
    if (run(&threads) || ranks_run(2, &threads, several_devices_must_be_told_apart, NULL))
        return 1;
    backend = "cpu:tcp";
    return run(&processes) || ranks_run(6, &processes, hosts_are_told_to_all, NULL) ||
           ranks_run(4, &processes, a_member_that_makes_no_group_is_named, NULL);
}
