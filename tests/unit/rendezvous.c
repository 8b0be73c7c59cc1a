/* comm_rendezvous: rank and world size, the store to meet at, and what the refusals say. The launchers' ways of meeting
 * are tried by tests/tools/launchers.py on real processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <comm/store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TIMEOUT_MS = 5000 };

static void environment(const char *const *pairs)
{
    clearenv();
    for (; *pairs; pairs++)
        assert_int_equal(putenv((char *)*pairs), 0);
}
#define ENVIRONMENT(...) environment((const char *const[]){ __VA_ARGS__, NULL })

static void assert_meets(const char *url, int32_t rank, int32_t world_size, int32_t want_rank, int32_t want_world_size,
                         const char *want_kind)
{
    comm_store *store = NULL;
    int32_t got_rank = -7, got_world_size = -7;
    if (comm_rendezvous(url, rank, world_size, TIMEOUT_MS, &store, &got_rank, &got_world_size) != COMM_OK)
        fail_msg("%s: %s", url, comm_last_error());
    assert_int_equal(got_rank, want_rank);
    assert_int_equal(got_world_size, want_world_size);
    assert_string_equal(comm_store_kind(store), want_kind);
    assert_int_equal(comm_store_set(store, "k", "v", 1), COMM_OK);
    comm_store_close(store);
}

static void assert_refused(const char *url, int32_t rank, int32_t world_size, comm_status want, const char *words)
{
    comm_store *store = (comm_store *)8;
    int32_t got_rank = -7, got_world_size = -7;
    comm_status status = comm_rendezvous(url, rank, world_size, TIMEOUT_MS, &store, &got_rank, &got_world_size);
    if (status != want || !strstr(comm_last_error(), words))
        fail_msg("%s: %s, '%s', should be %s and say %s", url, comm_status_name(status), comm_last_error(),
                 comm_status_name(want), words);
    assert_true(store == (comm_store *)8 && got_rank == -7 && got_world_size == -7);
}

static void rank_and_size_come_from_query_arguments_or_launcher(void **state)
{
    (void)state;
    clearenv();
    assert_meets("hash://here?rank=2&world_size=3", 0, 0, 2, 3, "hash");
    assert_meets("hash://here", 1, 4, 1, 4, "hash");
    assert_meets("hash://here?rank=1", -1, 4, 1, 4, "hash");
    char url[64] = "file:///tmp/comm-rendezvous-XXXXXX";
    int fd = mkstemp(url + strlen("file://"));
    assert_true(fd >= 0);
    close(fd);
    ENVIRONMENT("RANK=3", "WORLD_SIZE=5");
    assert_meets(url, 0, 0, 3, 5, "file");
    unlink(url + strlen("file://"));
    assert_meets("hash://?rank=0&world_size=1", 0, 0, 0, 1, "hash");
    assert_meets("hash://here?rank=4", 0, 0, 4, 5, "hash");
}

static void a_hash_store_where_nobody_could_come_is_refused(void **state)
{
    (void)state;
    clearenv();
    assert_refused("hash://?rank=0&world_size=2", 0, 0, COMM_ERR_INVALID, "give it a name");
    assert_refused("HASH://", 1, 2, COMM_ERR_INVALID, "would never meet the other ranks of its world of 2");
    assert_meets("hash://", 0, 1, 0, 1, "hash");
    ENVIRONMENT("RANK=3", "WORLD_SIZE=5");
    assert_refused("hash://here", 0, 0, COMM_ERR_INVALID, "rank 3 of 5, from the environment, is a process");
    ENVIRONMENT("RANK=0", "WORLD_SIZE=1");
    assert_meets("hash://here", 0, 0, 0, 1, "hash");
}

static void contradictions_are_refused(void **state)
{
    (void)state;
    clearenv();
    assert_refused("hash://?world_size=2", 0, 2, COMM_ERR_INVALID, "world_size is given twice");
    assert_refused("hash://?rank=1", 1, 2, COMM_ERR_INVALID, "rank is given twice");
    assert_refused("hash://?rank=2&world_size=2", 0, 0, COMM_ERR_INVALID, "rank 2 in a world of 2");
    assert_refused("hash://", 0, -1, COMM_ERR_INVALID, "world_size is -1");
    assert_refused("nfs://x?rank=0&world_size=1", 0, 0, COMM_ERR_NOT_FOUND, "unknown scheme 'nfs'");
    assert_refused("env://host?rank=0&world_size=1", 0, 0, COMM_ERR_INVALID, "follow env://");
    assert_refused("tcp://127.0.0.1:0?rank=0&world_size=2", 0, 0, COMM_ERR_INVALID, "port 0");
}

static void what_is_missing_is_named_with_the_cure(void **state)
{
    (void)state;
    clearenv();
    assert_refused("env://", 0, 0, COMM_ERR_NOT_FOUND, "commrun -n 4 program");
    assert_refused("tcp://127.0.0.1:1", 0, 0, COMM_ERR_NOT_FOUND,
                   "give both in the URL, tcp://127.0.0.1:1?rank=0&world_size=4");
    ENVIRONMENT("RANK=0");
    assert_refused("env://", 0, 0, COMM_ERR_INVALID, "WORLD_SIZE is not set");
    ENVIRONMENT("WORLD_SIZE=2");
    assert_refused("env://", 0, 0, COMM_ERR_INVALID, "RANK is not set");
    ENVIRONMENT("RANK=0", "WORLD_SIZE=2");
    assert_refused("env://", 0, 0, COMM_ERR_INVALID, "set MASTER_ADDR");
    ENVIRONMENT("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1");
    assert_refused("env://", 0, 0, COMM_ERR_INVALID, "MASTER_PORT is not set");
    ENVIRONMENT("RANK=0", "WORLD_SIZE=2", "MASTER_PORT=1");
    assert_refused("env://", 0, 0, COMM_ERR_INVALID, "MASTER_ADDR is not set");
    ENVIRONMENT("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=http");
    assert_refused("env://", 0, 0, COMM_ERR_INVALID, "'http' is not a port");
}

static void a_world_of_one_needs_no_meeting_point(void **state)
{
    (void)state;
    ENVIRONMENT("RANK=0", "WORLD_SIZE=1");
    assert_meets("env://", 0, 0, 0, 1, "hash");
    clearenv();
    assert_meets("tcp://127.0.0.1:0", 0, 1, 0, 1, "tcp");
}

static void under_an_agent_rank_0_is_a_client_and_restarts_get_their_own_keys(void **state)
{
    (void)state;
    static char port[32];
    comm_store *agent, *store;
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    int32_t rank, world_size, there = 0;
    options.serve = 1;
    assert_int_equal(comm_store_open("tcp://127.0.0.1:0", &options, &agent), COMM_OK);
    snprintf(port, sizeof port, "MASTER_PORT=%d", comm_store_port(agent));
    ENVIRONMENT("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", port, "TORCHELASTIC_USE_AGENT_STORE=True");
    for (int attempt = 0; attempt < 2; attempt++) {
        if (attempt == 1)
            setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
        assert_int_equal(comm_rendezvous("env://", 0, 0, TIMEOUT_MS, &store, &rank, &world_size), COMM_OK);
        if (comm_store_set(store, "mine", "v", 1) != COMM_OK)
            fail_msg("%s", comm_last_error());
        assert_int_equal(comm_store_check(store, (const char *[]){ "mine" }, 1, &there), COMM_OK);
        assert_int_equal(there, 1);
        comm_store_close(store);
        const char *at_agent = attempt == 0 ? "mine" : "/worker/attempt_1/mine";
        assert_int_equal(comm_store_check(agent, &at_agent, 1, &there), COMM_OK);
        assert_int_equal(there, 1);
    }
    comm_store_close(agent);
}

/* As PyTorch's multi-tenant stores: a rank that serves an address that this process serves already joins in. */
static void rendezvous_of_one_process_share_a_server(void **state)
{
    (void)state;
    comm_store *first, *second, *third;
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    int32_t rank, world_size, there = 0;
    char url[64];
    clearenv();
    assert_int_equal(comm_rendezvous("tcp://127.0.0.1:0", 0, 1, TIMEOUT_MS, &first, &rank, &world_size), COMM_OK);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", comm_store_port(first));
    assert_int_equal(comm_rendezvous(url, 0, 2, TIMEOUT_MS, &second, &rank, &world_size), COMM_OK);
    assert_int_equal(comm_store_set(first, "k", "v", 1), COMM_OK);
    comm_store_close(first);
    /* a set is not acknowledged */
    assert_int_equal(comm_store_wait(second, (const char *[]){ "k" }, 1, TIMEOUT_MS), COMM_OK);
    options.serve = 1; /* on its own: the port is taken */
    assert_int_equal(comm_store_open(url, &options, &third), COMM_ERR_SYSTEM);
    assert_non_null(strstr(comm_last_error(), "in use"));
    comm_store_close(second);
    assert_int_equal(comm_rendezvous(url, 0, 2, TIMEOUT_MS, &third, &rank, &world_size), COMM_OK);
    assert_int_equal(comm_store_check(third, (const char *[]){ "k" }, 1, &there), COMM_OK);
    assert_int_equal(there, 0); /* a new server */
    comm_store_close(third);
}

/* A bare chroot has no /etc/hosts, and no name server knows these. */
static void localhost_needs_no_resolver(void **state)
{
    (void)state;
    static const char *const names[] = { "localhost", "LocalHost.", "any.thing.localhost" };
    comm_store *server, *client;
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    options.serve = 1;
    options.bind = "localhost";
    assert_int_equal(comm_store_open("tcp://localhost:0", &options, &server), COMM_OK);
    options = (comm_store_options)COMM_STORE_OPTIONS_INIT;
    options.timeout_ms = TIMEOUT_MS;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char url[64];
        snprintf(url, sizeof url, "tcp://%s:%d", names[i], comm_store_port(server));
        if (comm_store_open(url, &options, &client) != COMM_OK)
            fail_msg("%s", comm_last_error());
        comm_store_close(client);
    }
    comm_store_close(server);
}

static comm_status meet_nowhere(const char *url, int32_t rank, int32_t world_size, int64_t timeout_ms,
                                comm_store **ret_store, int32_t *ret_rank, int32_t *ret_world_size, void *context,
                                char *error, size_t capacity)
{
    (void)rank;
    (void)world_size;
    (void)timeout_ms;
    if (strstr(url, "fail")) {
        snprintf(error, capacity, "the register is closed");
        return COMM_ERR_TIMEOUT;
    }
    *ret_rank = *(int32_t *)context;
    *ret_world_size = 9;
    return comm_store_open("hash://", NULL, ret_store);
}

static void a_scheme_of_the_user_s_is_called(void **state)
{
    (void)state;
    static int32_t place = 8, outside = 9;
    clearenv();
    assert_int_equal(comm_rendezvous_register("etcd", meet_nowhere, &place), COMM_OK);
    assert_meets("etcd://anything?they=like", 0, 0, 8, 9, "hash");
    assert_refused("etcd://fail", 0, 0, COMM_ERR_TIMEOUT, "timed out: the register is closed");
    assert_int_equal(comm_rendezvous_register("ETCD", meet_nowhere, &place), COMM_ERR_INVALID);
    assert_int_equal(comm_rendezvous_register("tcp", meet_nowhere, &place), COMM_ERR_INVALID);
    assert_int_equal(comm_rendezvous_register("no scheme", meet_nowhere, &place), COMM_ERR_INVALID);
    assert_int_equal(comm_rendezvous_register("", meet_nowhere, &place), COMM_ERR_INVALID);
    assert_int_equal(comm_rendezvous_register("wrong", meet_nowhere, &outside), COMM_OK);
    assert_refused("wrong://x", 0, 0, COMM_ERR_INVALID, "rank 9 of 9");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_and_size_come_from_query_arguments_or_launcher),
        cmocka_unit_test(a_hash_store_where_nobody_could_come_is_refused),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(what_is_missing_is_named_with_the_cure),
        cmocka_unit_test(a_world_of_one_needs_no_meeting_point),
        cmocka_unit_test(under_an_agent_rank_0_is_a_client_and_restarts_get_their_own_keys),
        cmocka_unit_test(rendezvous_of_one_process_share_a_server),
        cmocka_unit_test(localhost_needs_no_resolver),
        cmocka_unit_test(a_scheme_of_the_user_s_is_called),
    };
    return cmocka_run_group_tests_name("rendezvous", tests, NULL, NULL);
}
