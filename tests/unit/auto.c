/* "auto": a group gets the preferred backend that can serve the hosts of its members. The preferred one here is tcp by
 * another name, for one host only; COMM_HOST_ID says which host a rank is on. Usage: auto [CASE]. */
#include <comm/backend.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ranks.h"

static const comm_host *near_host;

static comm_status one_host_only(void *context, const int32_t *hosts, int32_t size)
{
    (void)context;
    for (int32_t r = 1; r < size; r++)
        if (hosts[r] != hosts[0])
            return near_host->fail(COMM_ERR_UNSUPPORTED, "it is for one host");
    return COMM_OK;
}

static const comm_backend *near_entry(const comm_host *host)
{
    static comm_backend near_one;
    const comm_backend *tcp;
    near_host = host;
    if (host->backend_find("tcp", &tcp) != COMM_OK)
        return NULL;
    near_one = *tcp;
    near_one.name = "near";
    near_one.devices = "cpu,xpu";
    near_one.preference = 1000;
    near_one.serves_hosts = one_host_only;
    return &near_one;
}

/* What rank 0 has said of its choices. */
static char said[4096];

static void note(int32_t level, const char *text, void *context)
{
    size_t used = strlen(said);
    (void)level, (void)context;
    snprintf(said + used, sizeof said - used, "%s\n", text);
}

static comm_group *world_on(const char *host, const char *backend)
{
    setenv("COMM_HOST_ID", host, 1);
    setenv("COMM_EXPLAIN", "1", 1);
    comm_log_set(note, NULL);
    CHECK_OK(comm_backend_register(near_entry));
    return ranks_world(backend);
}

static void check_backend(comm_group *group, const char *expected)
{
    int32_t sum = 1;
    if (strcmp(comm_group_backend(group), expected) != 0)
        ranks_fail(__FILE__, __LINE__, "group '%s' is on '%s', not on '%s'", comm_group_name(group),
                   comm_group_backend(group), expected);
    CHECK_OK(comm_all_reduce(group, &sum, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(sum == comm_group_size(group));
}

static void check_said(int rank, const char *words)
{
    if (rank == 0 && !strstr(said, words))
        ranks_fail(__FILE__, __LINE__, "'%s' does not say '%s'", said, words);
}

static comm_group *members(comm_group *parent, int rank, int a, int b)
{
    const int32_t ranks[] = { a, b };
    comm_group *group = NULL;
    if (rank == a || rank == b)
        CHECK_OK(comm_group_create(parent, ranks, 2, NULL, &group));
    return group;
}

static void one_host(int rank, int size, void *arg)
{
    (void)arg;
    comm_group *world = world_on("same", NULL), *dup;
    check_backend(world, "cpu:near");
    CHECK_OK(comm_group_dup(world, NULL, &dup));
    check_backend(dup, "cpu:near");
    char words[80];
    snprintf(words, sizeof words, "group 'world' of %d ranks on 1 host: auto takes near for cpu", size);
    check_said(rank, words);
    CHECK_OK(comm_group_close(dup));
    CHECK_OK(comm_group_close(world));
}

/* The world spans two hosts; a group of the ranks of one gets what serves one, and a group made from that by ranks of
 * both, were it possible, would not: each group chooses anew. */
static void two_hosts(int rank, int size, void *arg)
{
    (void)arg, (void)size;
    comm_group *world = world_on(rank < 2 ? "a" : "b", "cpu:auto?tcp.lanes=2"), *group, *again;
    check_backend(world, "cpu:shm-tcp?tcp.lanes=2");
    check_said(rank, "group 'world' of 4 ranks on 2 hosts with 2 ranks each: auto takes shm-tcp for cpu; near: it is "
                     "for one host");
    group = members(world, rank, 0, 1);
    if (!group)
        group = members(world, rank, 2, 3);
    check_backend(group, "cpu:near?tcp.lanes=2");
    CHECK_OK(comm_group_dup(group, NULL, &again));
    check_backend(again, "cpu:near?tcp.lanes=2");
    CHECK_OK(comm_group_close(again));
    CHECK_OK(comm_group_close(group));
    group = members(world, rank, 0, 3);
    if (!group)
        group = members(world, rank, 1, 2);
    check_backend(group, "cpu:tcp?tcp.lanes=2");
    check_said(rank, "of 2 ranks on 2 hosts with 1 rank each: auto takes tcp for cpu; near: it is for one host; ");
    check_said(rank, "; shm-tcp: no two ranks share a host");
    CHECK_OK(comm_group_close(group));
    CHECK_OK(comm_group_split(world, rank < 2, 0, NULL, &group));
    check_backend(group, "cpu:near?tcp.lanes=2");
    CHECK_OK(comm_group_close(group));
    CHECK_OK(comm_group_close(world));
}

static void check_sum_on(comm_group *group, comm_device device)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    int32_t sum = 1;
    options.device = device;
    CHECK_OK(comm_all_reduce(group, &sum, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, &options, NULL));
    CHECK(sum == comm_group_size(group));
}

/* What auto takes for one device may serve another one by name: that is one backend, with one set of options. */
static void two_devices_share_a_backend(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_group *world = world_on("same", "cpu:auto?lanes=2&eager_bytes=1000,xpu:near?eager_bytes=1000&lanes=2"), *dup;
    CHECK_OK(comm_group_dup(world, NULL, &dup));
    if (strcmp(comm_group_backend(dup), comm_group_backend(world)) != 0 ||
        strncmp(comm_group_backend(world), "cpu:near?lanes=2&eager_bytes=1000,xpu:near?", 43) != 0)
        ranks_fail(__FILE__, __LINE__, "the world is on '%s', its dup on '%s'", comm_group_backend(world),
                   comm_group_backend(dup));
    check_sum_on(dup, COMM_DEVICE_CPU);
    check_sum_on(dup, COMM_DEVICE_XPU);
    check_said(rank, "auto takes near for cpu");
    CHECK_OK(comm_group_close(dup));
    CHECK_OK(comm_group_close(world));
}

static void two_devices_want_other_options(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    static const char *const strings[] = { "cpu:auto,xpu:near?lanes=2", "cpu:auto?lanes=1,xpu:near?lanes=2",
                                           "xpu:near,cpu:auto?lanes=2", "cpu:auto,xpu:auto?lanes=2" };
    CHECK_OK(comm_backend_register(near_entry));
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        comm_init_options options = COMM_INIT_OPTIONS_INIT;
        comm_group *world;
        options.name = strings[i];
        options.backend = strings[i];
        CHECK_STATUS(ranks_init(&options, &world), COMM_ERR_INVALID);
        CHECK_ERROR_SAYS("auto takes near for");
        CHECK_ERROR_SAYS("with other options; give it the same ones");
    }
}

static void an_explicit_name_is_obeyed(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_group *world = world_on("same", "cpu:tcp");
    check_backend(world, "cpu:tcp");
    check_said(rank, "");
    CHECK(!strstr(said, "auto"));
    CHECK_OK(comm_group_close(world));
}

/* A rank that knows other backends would choose otherwise. */
static void candidates_must_be_the_same(int rank, int size, void *arg)
{
    (void)size, (void)arg;
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    options.timeout_ms = 20000;
    if (rank == 1)
        CHECK_OK(comm_backend_register(near_entry));
    CHECK(ranks_init(&options, &world) != COMM_OK);
    CHECK_ERROR_SAYS("'cpu:auto(near,");
    CHECK_ERROR_SAYS("but rank");
}

/* The limit of a file's length stands for a kernel or container that gives no memory to share. */
static void without_shared_memory_it_is_tcp(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    const struct rlimit none = { 0, 0 };
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    options.rendezvous = "hash://without";
    options.world_size = 1;
    CHECK_OK(comm_init(&options, &world));
    check_backend(world, "cpu:shm");
    CHECK_OK(comm_group_close(world));
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
    CHECK_OK(comm_init(&options, &world));
    check_backend(world, "cpu:tcp");
    CHECK_OK(comm_group_close(world));
    options.backend = "cpu:shm";
    CHECK_STATUS(comm_init(&options, &world), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("ranks cannot share memory here: ");
}

static void options_are_checked(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    options.backend = "cpu:auto?nonesuch=1";
    CHECK_STATUS(ranks_init(&options, &world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("nonesuch");
    options.backend = "cpu:auto?eager_bytes=524288"; /* fits tcp only */
    CHECK_STATUS(ranks_init(&options, &world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("COMM_SHM_EAGER_BYTES");
    options.backend = "cpu:auto?interface=lo"; /* of tcp alone */
    options.name = "another";
    CHECK_OK(ranks_init(&options, &world));
    CHECK_OK(comm_group_close(world));
    options.backend = "cpu:auto?tcp.nonesuch=1";
    CHECK_STATUS(ranks_init(&options, &world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("nonesuch");
}

static comm_status ask(const int32_t *hosts, int32_t size)
{
    const comm_backend *both;
    CHECK_OK(near_host->backend_find("shm-tcp", &both));
    return both->serves_hosts(both->context, hosts, size);
}

/* In time that grows with the ranks, not with their square: that would not end within the limit. */
static void a_million_ranks_are_asked_for(int rank, int size, void *arg)
{
    enum { MANY = 1000000 };
    int32_t *hosts = malloc(MANY * sizeof *hosts);
    (void)rank, (void)size, (void)arg;
    CHECK(hosts);
    CHECK_OK(comm_backend_register(near_entry));
    for (int32_t r = 0; r < MANY; r++)
        hosts[r] = MANY - 1 - r;
    CHECK_STATUS(ask(hosts, MANY), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("no two ranks share a host");
    hosts[0] = hosts[MANY - 1];
    CHECK_OK(ask(hosts, MANY));
    for (int32_t r = 0; r < MANY; r++)
        hosts[r] = 4000;
    CHECK_STATUS(ask(hosts, 4096), COMM_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("all ranks are on one host");
    hosts[4095] = 3;
    CHECK_OK(ask(hosts, 4096));
    free(hosts);
}

/* A rank that cannot tell must not take another backend than the others. */
static comm_status no_memory(void *context, const int32_t *hosts, int32_t size)
{
    (void)context, (void)hosts, (void)size;
    return near_host->fail(COMM_ERR_NO_MEMORY, "no memory for that");
}

static const comm_backend *short_of_memory_entry(const comm_host *host)
{
    static comm_backend near_one;
    const comm_backend *found = near_entry(host);
    if (!found)
        return NULL;
    near_one = *found;
    near_one.serves_hosts = no_memory;
    return &near_one;
}

static void a_backend_that_cannot_tell_ends_it(int rank, int size, void *arg)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    (void)rank, (void)size, (void)arg;
    CHECK_OK(comm_backend_register(short_of_memory_entry));
    CHECK_STATUS(ranks_init(&options, &world), COMM_ERR_NO_MEMORY);
    CHECK_ERROR_SAYS("no memory for that");
}

static int queries_left; /* after so many it cannot be used */

static comm_status query_near(void *context)
{
    (void)context;
    return queries_left-- > 0 ? COMM_OK : near_host->fail(COMM_ERR_UNSUPPORTED, "memory | has run out");
}

static const comm_backend *near_for_a_while(const comm_host *host)
{
    static comm_backend near_one;
    const comm_backend *found = near_entry(host);
    if (!found)
        return NULL;
    near_one = *found;
    near_one.query = query_near;
    return &near_one;
}

/* Then a group must still take the same one everywhere. */
static void one_rank_could_not_use_it_later(int rank, int size, void *arg)
{
    comm_group *world, *other;
    int32_t sum = 1;
    (void)arg;
    queries_left = rank == 1 ? 1 : 1000;
    CHECK_OK(comm_backend_register(near_for_a_while));
    world = ranks_world("cpu:auto");
    CHECK_OK(comm_group_dup(world, NULL, &other));
    check_backend(world, "cpu:near");
    check_backend(other, "cpu:near");
    CHECK_OK(comm_all_reduce(other, &sum, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(sum == size);
    CHECK_OK(comm_group_close(other));
    CHECK_OK(comm_group_close(world));
}

/* All gave the same string, so it is said why they have different backends. */
static void one_rank_cannot_use_it(int rank, int size, void *arg)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    (void)size, (void)arg;
    queries_left = rank == 1 ? 0 : 1000;
    CHECK_OK(comm_backend_register(near_for_a_while));
    options.backend = "cpu:auto";
    CHECK_STATUS(ranks_init(&options, &world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("the ranks have different backends: rank ");
    CHECK_ERROR_SAYS("has 'cpu:auto(near,shm,shm-tcp,tcp)'");
    CHECK_ERROR_SAYS("has 'cpu:auto(shm,shm-tcp,tcp)', for it cannot use near: memory / has run out");
    CHECK_ERROR_SAYS("Name one that all of them can use, such as cpu:tcp");
}

/* The reason is there as a whole, and not once more for shm-tcp. */
static void one_rank_cannot_share_memory(int rank, int size, void *arg)
{
    const struct rlimit little = { 4096, 4096 }; /* enough for what it writes */
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    (void)size, (void)arg;
    signal(SIGXFSZ, SIG_IGN);
    CHECK(rank == 0 || setrlimit(RLIMIT_FSIZE, &little) == 0);
    CHECK_STATUS(ranks_init(&options, &world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("has 'cpu:tcp', for it cannot use shm: ranks cannot share memory here: neither ");
    CHECK_ERROR_SAYS("the limit of file sizes (ulimit -f) holds for shared memory, too, and is less");
    CHECK_ERROR_SAYS("Name one that all of them can use, such as cpu:tcp, or mend what keeps some of them from it");
    CHECK(!strstr(comm_last_error(), "shm-tcp:"));
}

static comm_status query_verbose(void *context)
{
    char reason[1000];
    (void)context;
    memset(reason, 'x', sizeof reason - 1);
    reason[sizeof reason - 1] = '\0';
    return near_host->fail(COMM_ERR_UNSUPPORTED, reason);
}

static const comm_backend *verbose_entry(const comm_host *host)
{
    static comm_backend verbose;
    const comm_backend *found = near_entry(host);
    if (!found)
        return NULL;
    verbose = *found;
    verbose.name = "verbose";
    verbose.query = query_verbose;
    return &verbose;
}

static const comm_backend *far_entry(const comm_host *host)
{
    static comm_backend far;
    const comm_backend *found = verbose_entry(host);
    if (!found)
        return NULL;
    far = *found;
    far.name = "far";
    return &far;
}

/* Two of them share the text, and its end is there. */
static void long_reasons_are_marked_where_they_are_cut(int rank, int size, void *arg)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    (void)size, (void)arg;
    CHECK_OK(comm_backend_register(rank == 1 ? verbose_entry : far_entry));
    CHECK(rank == 1 || comm_backend_register(near_entry) == COMM_OK);
    CHECK_STATUS(ranks_init(&options, &world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("for it cannot use far: xxxx");
    CHECK_ERROR_SAYS("for it cannot use verbose: xxxx");
    CHECK_ERROR_SAYS("xxxx..., but rank");
    CHECK_ERROR_SAYS("xxxx.... Name one that all of them can use, such as cpu:tcp, or mend what keeps some of them");
}

static const struct {
    const char *name;
    void (*fn)(int rank, int size, void *arg);
    int size;
} cases[] = {
    { "one host", one_host, 3 },
    { "two hosts", two_hosts, 4 },
    { "one rank could not use it later", one_rank_could_not_use_it_later, 3 },
    { "one rank cannot use it", one_rank_cannot_use_it, 2 },
    { "one rank cannot share memory", one_rank_cannot_share_memory, 2 },
    { "long reasons are marked where they are cut", long_reasons_are_marked_where_they_are_cut, 2 },
    { "two devices share a backend", two_devices_share_a_backend, 2 },
    { "two devices want other options", two_devices_want_other_options, 1 },
    { "an explicit name is obeyed", an_explicit_name_is_obeyed, 2 },
    { "candidates must be the same", candidates_must_be_the_same, 3 },
    { "without shared memory it is tcp", without_shared_memory_it_is_tcp, 1 },
    { "options are checked", options_are_checked, 1 },
    { "a million ranks are asked for", a_million_ranks_are_asked_for, 1 },
    { "a backend that cannot tell ends it", a_backend_that_cannot_tell_ends_it, 1 },
};

int main(int argc, char **argv)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ranks_options options = { .limit_s = 30, .name = cases[i].name };
        if (argc < 2 || strcmp(argv[1], cases[i].name) == 0)
            failed |= ranks_run(cases[i].size, &options, cases[i].fn, NULL);
    }
    return failed;
}
