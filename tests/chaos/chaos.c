/* The backend chaos: each fault is noticed in the way that libcomm promises, happens where it was asked for, and again
 * with the same seed. COMM_PLUGIN_PATH leads to the plugin. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ranks.h"

enum { RANKS = 3, LINES_MAX = 2000, LINE_BYTES = 300 };

/* What each rank's chaos has logged, in memory that all processes share. */
struct log {
    atomic_int count;
    char lines[LINES_MAX][LINE_BYTES];
};
static struct log *logs;

static void note(int32_t level, const char *text, void *log_of_rank)
{
    struct log *log = log_of_rank;
    (void)level;
    if (strncmp(text, "chaos: ", 7) != 0)
        return;
    int at = atomic_fetch_add(&log->count, 1);
    CHECK(at < LINES_MAX);
    snprintf(log->lines[at], LINE_BYTES, "%s", text);
}

static int logged(int rank, const char *words)
{
    int count = 0;
    for (int i = 0; i < atomic_load(&logs[rank].count); i++)
        count += strstr(logs[rank].lines[i], words) != NULL;
    return count;
}

static comm_group *open_world(int rank, const char *options)
{
    char backend[300];
    snprintf(backend, sizeof backend, "cpu:chaos?of=tcp&%s", options);
    comm_log_set(note, &logs[rank]);
    return ranks_world(backend);
}

static comm_status sum(comm_group *group, int32_t *ret_sum, int64_t timeout_ms)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    int32_t one = 1;
    options.timeout_ms = timeout_ms;
    return comm_all_reduce(group, &one, ret_sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL);
}

static comm_status sums_until_it_ends(comm_group *group, int most, int64_t timeout_ms)
{
    comm_status status = COMM_OK;
    int32_t got;
    for (int i = 0; i < most && status == COMM_OK; i++)
        status = sum(group, &got, timeout_ms);
    return status;
}

/* ---- The same again ---- */

static void many_operations(int rank, int size, void *options)
{
    enum { STEPS = 40, FLYING = 4 };
    comm_group *world = open_world(rank, options), *other;
    CHECK_OK(comm_group_dup(world, NULL, &other));
    for (int i = 0; i < STEPS; i++) {
        comm_work *works[FLYING];
        int32_t values[FLYING], got = -1;
        for (int w = 0; w < FLYING; w++) {
            values[w] = rank + w;
            CHECK_OK(comm_all_reduce(w % 2 ? world : other, &values[w], &values[w], 1, COMM_DTYPE_I32, COMM_REDOP_SUM,
                                     NULL, &works[w]));
        }
        comm_work *send;
        CHECK_OK(comm_send(world, &rank, 1, COMM_DTYPE_I32, (rank + 1) % size, NULL, &send));
        CHECK_OK(comm_recv(world, &got, 1, COMM_DTYPE_I32, (rank + size - 1) % size, NULL, NULL));
        CHECK(got == (rank + size - 1) % size);
        CHECK_OK(comm_work_wait_all(works, FLYING, 0));
        CHECK_OK(comm_work_wait(send, 0));
        comm_work_release(send);
        for (int w = 0; w < FLYING; w++) {
            CHECK(values[w] == size * w + size * (size - 1) / 2);
            comm_work_release(works[w]);
        }
    }
    CHECK_OK(comm_group_close(other));
    CHECK_OK(comm_group_close(world));
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* The lines of all ranks, in an order that does not depend on time. */
static char *run_and_read_log(char *options)
{
    char *text = NULL;
    size_t bytes = 0;
    for (int r = 0; r < RANKS; r++)
        atomic_store(&logs[r].count, 0);
    if (ranks_run(RANKS, NULL, many_operations, options) != 0)
        exit(1);
    FILE *file = open_memstream(&text, &bytes);
    for (int r = 0; r < RANKS; r++) {
        qsort(logs[r].lines, (size_t)atomic_load(&logs[r].count), LINE_BYTES, by_text);
        for (int i = 0; i < atomic_load(&logs[r].count); i++)
            fprintf(file, "%s\n", logs[r].lines[i]);
    }
    fclose(file);
    return text;
}

static int the_same_seed_does_the_same(void)
{
    static char seven[] = "seed=7&delay_ms=1&delay=1/4&reorder=1/8";
    static char eight[] = "seed=8&delay_ms=1&delay=1/4&reorder=1/8";
    setenv("COMM_LOG", "info", 1);
    char *first = run_and_read_log(seven), *again = run_and_read_log(seven), *other = run_and_read_log(eight);
    unsetenv("COMM_LOG");
    int wrong = strlen(first) < 1000 || strcmp(first, again) != 0 || strcmp(first, other) == 0 ||
                !strstr(first, "later") || !strstr(first, "overtakes");
    if (wrong)
        printf("not the same, or the same with another seed:\n%s---- again\n%s---- seed 8\n%s", first, again, other);
    free(first);
    free(again);
    free(other);
    return wrong;
}

/* ---- Each fault ---- */

static void a_dropped_operation_names_its_rank(int rank, int size, void *arg)
{
    comm_group *world = open_world(rank, "ranks=1&drop=@3");
    int32_t got;
    (void)size, (void)arg;
    CHECK_OK(sum(world, &got, 20000));
    CHECK_OK(sum(world, &got, 20000));
    CHECK_STATUS(sum(world, &got, 700), COMM_ERR_DEADLINE);
    if (rank != 1)
        CHECK_ERROR_SAYS("rank 1");
    CHECK(!strstr(comm_last_error(), "has not completed the operation"));
    CHECK(logged(rank, "all_reduce #3 on group 'world' (rank 1 of 3): dropped") == (rank == 1));
    CHECK_STATUS(comm_group_status(world), COMM_ERR_DEADLINE);
    CHECK_OK(comm_group_close(world));
}

/* As it would be without chaos: a rank that hangs in one operation begins none of the next. */
static void what_follows_a_dropped_one_waits(int rank, int size, void *arg)
{
    comm_group *world = open_world(rank, "ranks=1&drop=@1");
    comm_work *works[3];
    int32_t values[3] = { 1, 1, 1 };
    (void)size, (void)arg;
    for (int i = 0; i < 3; i++) {
        comm_op_options options = COMM_OP_OPTIONS_INIT;
        int32_t *value = &values[i];
        options.timeout_ms = 500;
        CHECK_OK(comm_all_reduce(world, value, value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, &works[i]));
    }
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(comm_work_wait(works[i], 0), COMM_ERR_DEADLINE);
        comm_work_release(works[i]);
    }
    CHECK_OK(comm_group_close(world));
}

static void a_lost_message_is_missed(int rank, int size, void *arg)
{
    comm_group *world = open_world(rank, "ranks=0&lose=@2");
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    comm_store *store = ranks_store();
    const char *over = "over";
    int32_t got = -1;
    (void)size, (void)arg;
    for (int32_t i = 0; rank == 0 && i < 2; i++)
        CHECK_OK(comm_send(world, &i, 1, COMM_DTYPE_I32, 1, NULL, NULL));
    if (rank == 1) {
        CHECK_OK(comm_recv(world, &got, 1, COMM_DTYPE_I32, 0, NULL, NULL));
        CHECK(got == 0);
        options.timeout_ms = 300;
        CHECK_STATUS(comm_recv(world, &got, 1, COMM_DTYPE_I32, 0, &options, NULL), COMM_ERR_DEADLINE);
        CHECK_ERROR_SAYS("rank 0");
        CHECK_OK(comm_store_set(store, over, "1", 1));
    }
    CHECK_OK(comm_store_wait(store, &over, 1, 20000));
    comm_store_close(store);
    CHECK(logged(rank, "lost: the message is not sent") == (rank == 0));
    CHECK_OK(comm_group_close(world));
}

static void a_killed_rank_is_named(int rank, int size, void *options)
{
    comm_group *world = open_world(rank, options);
    (void)size;
    CHECK_STATUS(sums_until_it_ends(world, 10, 20000), COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("rank 1");
    /* It may have died before this rank was through with the fifth, or after its part of the sixth. */
    CHECK(comm_group_seq(world) >= 5 && comm_group_seq(world) <= 7);
    CHECK_OK(comm_group_close(world));
}

static void a_stopped_rank_goes_on(int rank, int size, void *arg)
{
    comm_group *world = open_world(rank, "ranks=1&stall=@2&stall_ms=300");
    struct timespec begin, end;
    (void)size, (void)arg;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    CHECK_OK(sums_until_it_ends(world, 4, 20000));
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (rank == 1)
        CHECK((end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000 >= 299);
    CHECK(logged(rank, "stopped for 300 ms") == (rank == 1));
    CHECK_OK(comm_group_close(world));
}

static void a_rank_that_stops_too_long_is_named(int rank, int size, void *arg)
{
    comm_group *world = open_world(rank, "ranks=1&stall=@2&stall_ms=3000");
    comm_status status = sums_until_it_ends(world, 4, 500);
    (void)size, (void)arg;
    if (rank != 1) {
        CHECK_STATUS(status, COMM_ERR_DEADLINE);
        CHECK_ERROR_SAYS("rank 1");
    }
    CHECK(status != COMM_OK);
    CHECK_OK(comm_group_close(world));
}

static void a_peer_seems_lost(int rank, int size, void *arg)
{
    comm_group *world = open_world(rank, "ranks=2&abort=@3");
    int32_t lost[RANKS];
    size_t count;
    (void)size, (void)arg;
    comm_status status = sums_until_it_ends(world, 10, 20000);
    CHECK_STATUS(status, COMM_ERR_PEER_LOST);
    CHECK_ERROR_SAYS("as the option abort has asked for");
    CHECK_OK(comm_group_lost_ranks(world, lost, RANKS, &count));
    CHECK(count <= 1); /* the one that seems lost does not know */
    if (count == 1) {
        CHECK(lost[0] != 2 && lost[0] != rank);
        CHECK_ERROR_SAYS(lost[0] == 0 ? "rank 0 (world rank 0) is lost" : "rank 1 (world rank 1) is lost");
    } else {
        CHECK_ERROR_SAYS(rank == 0 ? "rank 0 (world rank 0) is lost" : "rank 1 (world rank 1) is lost");
    }
    CHECK_OK(comm_group_close(world));
}

static void an_error_has_the_status_that_was_asked_for(int rank, int size, void *arg)
{
    comm_group *world = open_world(rank, arg);
    comm_status status = sums_until_it_ends(world, 100, 20000);
    (void)size;
    CHECK_STATUS(status, COMM_ERR_PROTOCOL);
    CHECK_ERROR_SAYS("as the option error has asked for");
    if (rank != 0)
        CHECK_ERROR_SAYS("rank 0 reports: ");
    CHECK_OK(comm_group_close(world));
}

/* A call that is refused has done nothing: the next ones match those of the other ranks. */
static void a_refused_call_can_be_made_again(int rank, int size, void *arg)
{
    comm_group *world = open_world(rank, "error=1/6&status=no_memory&seed=5");
    int refusals = 0, late = 0;
    (void)arg;
    for (int i = 0; i < 60; i++) {
        int32_t value = rank, got = -1;
        comm_work *work;
        comm_status status;
        do {
            status = comm_all_reduce(world, &value, &got, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, &work);
            CHECK(status == COMM_OK || status == COMM_ERR_NO_MEMORY);
            refusals += status != COMM_OK;
        } while (status != COMM_OK);
        status = comm_work_wait(work, 0);
        CHECK(status == COMM_OK || status == COMM_ERR_NO_MEMORY);
        late += status != COMM_OK;
        CHECK(got == size * (size - 1) / 2);
        comm_work_release(work);
    }
    CHECK(refusals > 0 && late > 0 && refusals + late == logged(rank, "an error"));
    CHECK_OK(comm_group_close(world));
}

static void flipped_bits_make_wrong_results(int rank, int size, void *arg)
{
    enum { STEPS = 60 };
    comm_group *world = open_world(rank, "ranks=1&corrupt=1/5");
    int wrong = 0, wrong_sends = 0;
    (void)size, (void)arg;
    for (int i = 0; i < STEPS; i++) {
        uint64_t mine = (uint64_t)i * 77, got = 0;
        CHECK_OK(comm_all_reduce(world, &mine, &got, 1, COMM_DTYPE_U64, COMM_REDOP_BXOR, NULL, NULL));
        wrong += got != mine; /* of three equal ones */
        CHECK(mine == (uint64_t)i * 77);
    }
    for (int i = 0; i < STEPS; i++) {
        unsigned char text[9] = "eightlong";
        CHECK_OK(comm_broadcast(world, text, sizeof text, COMM_DTYPE_BYTE, 1, NULL, NULL));
        wrong_sends += memcmp(text, "eightlong", sizeof text) != 0;
    }
    int payloads = logged(1, "of the payload flipped"), results = logged(1, "of the result flipped");
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK(rank != 1 || (payloads > 5 && results > 0));
    CHECK(rank != 1 || wrong + logged(1, "broadcast") == payloads + results);
    CHECK(rank == 1 ? wrong_sends == 0 : wrong > 0 && wrong_sends == logged(1, "broadcast"));
    CHECK_OK(comm_group_close(world));
}

/* ---- Where ---- */

static void faults_happen_where_they_were_asked_for(int rank, int size, void *arg)
{
    comm_group_options named = COMM_GROUP_OPTIONS_INIT;
    comm_group *world = open_world(rank, "ranks=0;2-9&group=chosen&after=5&delay_ms=1"), *chosen;
    named.name = "chosen";
    (void)size, (void)arg;
    CHECK_OK(comm_group_dup(world, &named, &chosen));
    CHECK_OK(sums_until_it_ends(world, 8, 0));
    CHECK_OK(sums_until_it_ends(chosen, 8, 0));
    CHECK(logged(rank, "'world'") == 0 && logged(rank, "op 5 ") == 0);
    CHECK(rank == 1 ? logged(rank, "") == 0 : logged(rank, "begins") == 3 && logged(rank, "ends") == 3);
    CHECK_OK(comm_group_close(chosen));
    CHECK_OK(comm_group_close(world));
}

/* ---- Options ---- */

static void wrong_options_are_refused(int rank, int size, void *arg)
{
    static const struct {
        const char *backend, *says;
        comm_status status;
    } wrong[] = {
        { "cpu:chaos?kill=2/1", "the option kill is '2/1'", COMM_ERR_INVALID },
        { "cpu:chaos?kill=often", "the option kill is 'often'", COMM_ERR_INVALID },
        { "cpu:chaos?drop=@0", "the option drop is '@0'", COMM_ERR_INVALID },
        { "cpu:chaos?drop=101%", "the option drop is '101%'", COMM_ERR_INVALID },
        { "cpu:chaos?ranks=1;x", "the option ranks is '1;x'", COMM_ERR_INVALID },
        { "cpu:chaos?status=sad", "the option status is 'sad'", COMM_ERR_INVALID },
        { "cpu:chaos?of=chaos", "chaos cannot wrap itself", COMM_ERR_INVALID },
        { "cpu:chaos?of=nothing", "there is no backend 'nothing'", COMM_ERR_NOT_FOUND },
        { "cpu:chaos?delay_ms=-1", "delay_ms", COMM_ERR_INVALID },
        { "cpu:chaos?nonsense=1", "there is no option 'nonsense' of 'chaos'", COMM_ERR_INVALID },
        { "cpu:chaos?tcp.nonsense=1", "there is no option 'nonsense' of 'tcp'", COMM_ERR_INVALID },
        { "cpu:chaos?tcp.lanes=0", "lanes", COMM_ERR_INVALID },
        { "cpu:chaos?nothing.lanes=4", "the option 'nothing.lanes'", COMM_ERR_NOT_FOUND },
        { "cpu:chaos?of=tcp,xpu:chaos?of=shm", "with other options for 'xpu'", COMM_ERR_INVALID },
        /* The wrapped backend has got the value. */
        { "cpu:chaos?tcp.algo=all_reduce:none", "none", COMM_ERR_INVALID },
    };
    (void)rank, (void)size, (void)arg;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        comm_init_options options = COMM_INIT_OPTIONS_INIT;
        comm_group *world;
        char name[16];
        snprintf(name, sizeof name, "world%zu", i);
        options.name = name;
        options.backend = wrong[i].backend;
        CHECK_STATUS(ranks_init(&options, &world), wrong[i].status);
        CHECK_ERROR_SAYS(wrong[i].says);
    }
    comm_group *world = ranks_world("cpu:chaos?of=tcp&seed=0"), *group;
    comm_group_options other = COMM_GROUP_OPTIONS_INIT;
    other.backend = "cpu:chaos?of=loopback";
    CHECK(comm_group_dup(world, &other, &group) != COMM_OK);
    CHECK_OK(comm_group_close(world));
}

static void a_device_that_the_other_does_not_serve(int rank, int size, void *arg)
{
    comm_group *world = ranks_world("chaos?of=tcp");
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    int32_t value = 1;
    (void)rank, (void)arg;
    options.device = COMM_DEVICE_XPU;
    CHECK_STATUS(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL),
                 COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("does not serve the device");
    options.device = COMM_DEVICE_CPU;
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL));
    CHECK(value == size);
    CHECK_OK(comm_group_close(world));
}

static int run(void (*claim)(int rank, int size, void *arg), const char *name, char *options, uint64_t may_fail)
{
    const struct ranks_options how = { .may_fail = may_fail, .name = name };
    for (int r = 0; r < RANKS; r++)
        atomic_store(&logs[r].count, 0);
    return ranks_run(RANKS, &how, claim, options);
}
#define RUN(claim, options, may_fail) run(claim, #claim, options, may_fail)

/* Before the operation, or in it: as the seed says. */
static int ranks_are_killed(void)
{
    int before = 0, in = 0, failed = 0;
    for (int seed = 1; seed <= 8 && !failed; seed++) {
        char options[64];
        snprintf(options, sizeof options, "ranks=1&kill=@6&seed=%d", seed);
        failed = RUN(a_killed_rank_is_named, options, 2);
        before += logged(1, "killed before it begins");
        in += logged(1, "killed once it has begun");
    }
    if (!failed && (before == 0 || in == 0 || before + in != 8))
        printf("killed %d times before an operation, %d times in it\n", before, in);
    return failed || before == 0 || in == 0 || before + in != 8;
}

int main(void)
{
    logs = mmap(NULL, RANKS * sizeof *logs, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (logs == MAP_FAILED)
        return 1;
    int failed = the_same_seed_does_the_same() || RUN(a_dropped_operation_names_its_rank, NULL, 0) ||
                 RUN(what_follows_a_dropped_one_waits, NULL, 0) || RUN(a_lost_message_is_missed, NULL, 0) ||
                 ranks_are_killed() ||
                 RUN(a_stopped_rank_goes_on, NULL, 0) || RUN(a_rank_that_stops_too_long_is_named, NULL, 0) ||
                 RUN(a_peer_seems_lost, NULL, 0) ||
                 RUN(an_error_has_the_status_that_was_asked_for, "ranks=0&error=1/4&status=protocol&seed=3", 0) ||
                 RUN(an_error_has_the_status_that_was_asked_for, "ranks=0&error=1/4&status=protocol&seed=4", 0) ||
                 RUN(an_error_has_the_status_that_was_asked_for, "ranks=0&error=1/4&status=protocol&seed=5", 0) ||
                 RUN(a_refused_call_can_be_made_again, NULL, 0) || RUN(flipped_bits_make_wrong_results, NULL, 0) ||
                 RUN(wrong_options_are_refused, NULL, 0) || RUN(a_device_that_the_other_does_not_serve, NULL, 0);
    setenv("COMM_LOG", "info", 1);
    return failed || RUN(faults_happen_where_they_were_asked_for, NULL, 0);
}
