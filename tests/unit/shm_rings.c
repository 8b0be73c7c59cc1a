/* How long a ring is, and a message that is sent before it is asked for, by how many ranks the host has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend_shm/fabric.h"
#include "say.h"

enum { RANKS_MAX = 100 };

static int64_t wanted_ring_bytes, wanted_eager_bytes;
static int32_t hosts[RANKS_MAX];

static int64_t host_param_int(const void *options, const char *backend, const char *name)
{
    (void)options;
    assert_string_equal(backend, "shm");
    return strcmp(name, "ring_bytes") == 0 ? wanted_ring_bytes : wanted_eager_bytes;
}

static const comm_host host = { .struct_bytes = sizeof host, .param_int = host_param_int };

static int setup(void **state)
{
    (void)state;
    exec_host = &host;
    wanted_ring_bytes = 0;
    wanted_eager_bytes = -1;
    memset(hosts, 0, sizeof hosts);
    return 0;
}

static comm_world_info world_of(int32_t ranks)
{
    return (comm_world_info){ .struct_bytes = sizeof(comm_world_info), .size = ranks, .hosts = hosts };
}

static void more_ranks_have_shorter_rings(void **state)
{
    static const struct {
        int32_t ranks;
        size_t ring_bytes;
        int64_t eager_bytes;
    } cases[] = { { 1, 2 << 20, 64 << 10 },  { 2, 2 << 20, 64 << 10 },  { 3, 1 << 20, 32 << 10 },
                  { 4, 512 << 10, 16 << 10 }, { 8, 512 << 10, 16 << 10 }, { 9, 256 << 10, 16 << 10 },
                  { 16, 256 << 10, 16 << 10 }, { 17, 128 << 10, 16 << 10 },
                  { 32, 128 << 10, 16 << 10 }, { 33, 64 << 10, 16 << 10 }, { RANKS_MAX, 64 << 10, 16 << 10 } };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const comm_world_info info = world_of(cases[i].ranks);
        assert_int_equal(fabric_ring_bytes(&info), cases[i].ring_bytes);
        assert_int_equal(fabric_eager_bytes(&info), cases[i].eager_bytes);
    }
}

/* All of them in the same few caches. */
static void ranks_that_share_cores_have_shorter_rings_still(void **state)
{
    static const struct {
        int32_t ranks;
        size_t ring_bytes;
    } cases[] = { { 2, 2 << 20 },    { 3, 1 << 20 },    { 4, 512 << 10 },  { 5, 256 << 10 }, { 6, 256 << 10 },
                  { 7, 128 << 10 },  { 8, 128 << 10 },  { 16, 128 << 10 }, { 32, 128 << 10 }, { 33, 64 << 10 } };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        comm_world_info info = world_of(cases[i].ranks);
        info.local_cores = cases[i].ranks - 1;
        assert_int_equal(fabric_ring_bytes(&info), cases[i].ring_bytes);
        info.local_cores = cases[i].ranks;
        assert_true(fabric_ring_bytes(&info) >= cases[i].ring_bytes);
    }
}

static void ranks_of_other_hosts_do_not_count(void **state)
{
    (void)state;
    comm_world_info info = world_of(9);
    for (int32_t r = 2; r < 9; r++)
        hosts[r] = r;
    assert_int_equal(fabric_ring_bytes(&info), 2 << 20);
    info.rank = 5;
    assert_int_equal(fabric_ring_bytes(&info), 2 << 20);
}

static void what_the_user_wants_counts(void **state)
{
    (void)state;
    const comm_world_info info = world_of(2);
    wanted_ring_bytes = 300 << 10;
    assert_int_equal(fabric_ring_bytes(&info), 256 << 10);
    assert_int_equal(fabric_eager_bytes(&info), 16 << 10);
    wanted_ring_bytes = 1;
    assert_int_equal(fabric_ring_bytes(&info), segment_ring_least());
    wanted_ring_bytes = 64 << 20;
    assert_int_equal(fabric_ring_bytes(&info), 64 << 20);
    assert_int_equal(fabric_eager_bytes(&info), 64 << 10);
    wanted_eager_bytes = 0;
    assert_int_equal(fabric_eager_bytes(&info), 0);
    wanted_eager_bytes = 1000;
    assert_int_equal(fabric_eager_bytes(&info), 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(more_ranks_have_shorter_rings, setup),
        cmocka_unit_test_setup(ranks_that_share_cores_have_shorter_rings_still, setup),
        cmocka_unit_test_setup(ranks_of_other_hosts_do_not_count, setup),
        cmocka_unit_test_setup(what_the_user_wants_counts, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
