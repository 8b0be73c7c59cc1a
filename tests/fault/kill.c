/* One rank is killed with SIGKILL: before any rank has talked, between two operations, or in the middle of one. Every
 * survivor's pending and every later operation ends with PEER_LOST and a text that names the rank and its address;
 * other groups go on. */
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "faults.h"

enum phase { BEFORE, BETWEEN, DURING, PHASE_END };
static const char *const phase_names[PHASE_END] = { "before", "between", "during" };

struct scenario {
    struct page *page;
    enum phase phase;
    enum menu what;
    enum wait_by how;
    int victim;
    int64_t delay_ns; /* from the operation's beginning */
};

static void die(struct scenario *s)
{
    atomic_store(&s->page->event_ns, fault_now_ns());
    raise(SIGKILL);
}

/* In the victim: wait until the operation is under way, and a random moment longer. */
static void *dies_soon(void *context)
{
    struct scenario *s = context;
    fault_await(s->page, 0);
    int64_t end = fault_now_ns() + s->delay_ns;
    while (fault_now_ns() < end)
        ;
    die(s);
    return NULL;
}

static void be_victim(struct scenario *s, comm_group *world)
{
    pthread_t killer;
    if (s->phase != DURING)
        die(s);
    if (pthread_create(&killer, NULL, dies_soon, s) != 0)
        abort();
    for (;;)
        menu_do(world, s->what, s->how, NULL);
}

static void go_on_without(comm_group *world, comm_group *others, int victim)
{
    const int32_t gone[] = { victim };
    comm_group *rest;
    int32_t one = 1;
    CHECK_OK(comm_all_reduce(others, &one, &one, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(one == comm_group_size(world) - 1);
    CHECK_OK(comm_group_shrink(world, gone, 1, NULL, &rest));
    CHECK_OK(comm_all_reduce(rest, &one, &one, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(one == comm_group_size(rest) * comm_group_size(rest));
    CHECK_OK(comm_group_close(rest));
}

static void one_is_killed(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world(), *others = NULL;
    int32_t ranks[FAULT_RANKS_MAX], count = 0;
    for (int r = 0; r < size; r++)
        if (r != s->victim)
            ranks[count++] = r;
    CHECK_OK(comm_group_create(world, ranks, (size_t)count, NULL, &others));
    if (s->phase != BEFORE) {
        CHECK_OK(menu_do(world, MENU_BARRIER, WAIT_CALL, NULL));
        CHECK_OK(menu_do(world, s->what, WAIT_CALL, NULL));
    }
    fault_meet(s->page);
    if (rank == s->victim)
        be_victim(s, world);
    comm_status status;
    if (s->phase == DURING) {
        comm_work *work;
        status = menu_begin(world, s->what, NULL, &work);
        fault_raise(s->page, 0);
        if (status == COMM_OK) {
            status = menu_wait(work, s->how);
            comm_work_release(work);
        }
    } else {
        status = menu_do(world, s->what, s->how, NULL);
    }
    /* Some operations do not need the victim everywhere: the root of a broadcast may have all that it wanted. */
    while (status == COMM_OK)
        status = menu_do(world, s->what, s->how, NULL);
    atomic_store(&s->page->noticed_ns[rank], fault_now_ns());
    CHECK_STATUS(status, COMM_ERR_PEER_LOST);
    CHECK_NAMES(comm_last_error(), s->victim);
    CHECK_STATUS(comm_group_status(world), COMM_ERR_PEER_LOST);
    CHECK_STATUS(menu_do(world, MENU_BARRIER, s->how, NULL), COMM_ERR_PEER_LOST);
    CHECK_NAMES(comm_last_error(), s->victim);
    go_on_without(world, others, s->victim);
    CHECK_OK(comm_group_close(others));
    CHECK_OK(fault_close(world));
}

static int run(int size, enum phase phase, enum menu what, enum wait_by how, uint64_t *random)
{
    struct scenario s = { .page = page_new(size), .phase = phase, .what = what, .how = how };
    s.victim = (int)(fault_random(random) % (unsigned)size);
    s.delay_ns = (int64_t)(fault_random(random) % 8000000);
    char name[200];
    snprintf(name, sizeof name, "%s, rank %d of %d killed %s it, waiting %s", menu_names[what], s.victim, size,
             phase_names[phase], waiting_names[how]);
    struct ranks_options options = { .limit_s = 20, .may_fail = 1u << s.victim, .name = name };
    int failed = fault_run(size, &options, one_is_killed, &s);
    failed |= fault_noticed_late(s.page, size, name, FAULT_NOTICE_MS);
    page_free(s.page);
    return failed;
}

/* ---- The store ends with its rank ---- */

struct ending {
    const char *hosts; /* a letter for each rank's, which COMM_HOST_ID pretends */
    int port;
};

/* The others go on. They are on one host, or have one rank on each, so that `auto` gives them another backend than the
 * world has. */
static void the_store_ends_with_its_rank(int rank, int size, void *arg)
{
    const struct ending *s = arg;
    const char host[] = { s->hosts[rank], '\0' };
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world, *rest = NULL;
    comm_status status;
    int32_t lost[FAULT_RANKS_MAX], one;
    size_t count;
    char url[64];
    setenv("COMM_HOST_ID", host, 1);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", s->port);
    options.rendezvous = url;
    options.rank = rank;
    options.world_size = size;
    options.backend = "cpu:auto";
    options.timeout_ms = 30000;
    CHECK_OK(comm_init(&options, &world));
    if (comm_barrier(world, NULL, NULL) == COMM_OK && rank == 0)
        raise(SIGKILL);
    while (comm_barrier(world, NULL, NULL) == COMM_OK)
        ;
    do {
        comm_group_close(rest);
        rest = NULL;
        one = 1; /* an operation that has failed leaves anything there */
        CHECK_OK(comm_group_lost_ranks(world, lost, FAULT_RANKS_MAX, &count));
        status = comm_group_shrink(world, lost, count, NULL, &rest);
        if (status == COMM_OK)
            status = comm_all_reduce(rest, &one, &one, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL);
    } while (status == COMM_ERR_PEER_LOST);
    CHECK_OK(status);
    CHECK(comm_group_size(rest) == size - 1);
    CHECK(one == size - 1);
    CHECK(strcmp(comm_group_backend(rest), comm_group_backend(world)) != 0);
    CHECK_OK(comm_group_close(rest));
    CHECK_OK(comm_group_close(world));
}

static int run_without_store(const char *hosts)
{
    struct ending s = { hosts, fault_free_port() };
    struct ranks_options options = { .limit_s = 30, .may_fail = 1, .name = hosts };
    return ranks_run((int)strlen(hosts), &options, the_store_ends_with_its_rank, &s);
}

int main(int count, char **arguments)
{
    uint64_t random = fault_seed();
    int wanted = count > 1 ? atoi(arguments[1]) : -1, failed = 0; /* a phase, or all (-1) */
    unsigned size = 0, how = 0;
    static const char *const hosts[] = { "abb", "aabc" };
    for (int phase = 0; phase < PHASE_END; phase++)
        for (int what = 0; what < MENU_END; what++, size++, how++)
            if (wanted < 0 || wanted == phase)
                failed |= run(2 + (int)(size % 4), (enum phase)phase, (enum menu)what, (enum wait_by)(how % WAIT_END),
                              &random);
    for (size_t i = 0; count == 1 && i < sizeof hosts / sizeof *hosts; i++)
        failed |= run_without_store(hosts[i]);
    return failed;
}
