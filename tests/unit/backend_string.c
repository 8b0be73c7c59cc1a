/* The backend string: what it takes, and that what it refuses is quoted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <comm/comm.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend_string.h"

static struct backend_string parsed(const char *text)
{
    struct backend_string s;
    if (comm__backend_string_parse(text, &s) != COMM_OK)
        fail_msg("'%s': %s", text, comm_last_error());
    return s;
}

static void assert_refused(const char *text, const char *quoted)
{
    struct backend_string s;
    assert_int_equal(comm__backend_string_parse(text, &s), COMM_ERR_INVALID);
    if (!strstr(comm_last_error(), quoted))
        fail_msg("'%s' does not quote '%s'", comm_last_error(), quoted);
}

static void nothing_is_auto_on_the_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct backend_string s = parsed(i ? "" : NULL);
        assert_int_equal(s.count, 1);
        assert_string_equal(s.pairs[0].device, "cpu");
        assert_string_equal(s.pairs[0].name, "auto");
        comm__backend_string_finish(&s);
    }
}

static void a_bare_name_is_for_all_devices(void **state)
{
    (void)state;
    struct backend_string s = parsed("TCP");
    assert_int_equal(s.count, 1);
    assert_null(s.pairs[0].device);
    assert_string_equal(s.pairs[0].name, "tcp");
    comm__backend_string_finish(&s);
}

static void pairs_and_options_are_taken_apart(void **state)
{
    (void)state;
    struct backend_string s = parsed("CPU:Tcp?Lanes=4&Label=MiXed,cuda:nccl");
    assert_int_equal(s.count, 2);
    assert_string_equal(s.pairs[0].device, "cpu");
    assert_string_equal(s.pairs[0].name, "tcp");
    assert_int_equal(s.pairs[0].option_count, 2);
    assert_string_equal(s.pairs[0].options[0].name, "lanes");
    assert_string_equal(s.pairs[0].options[0].value, "4");
    assert_string_equal(s.pairs[0].options[1].name, "label");
    assert_string_equal(s.pairs[0].options[1].value, "MiXed");
    assert_string_equal(s.pairs[1].device, "cuda");
    assert_string_equal(s.pairs[1].name, "nccl");
    comm__backend_string_finish(&s);
}

static void a_path_keeps_its_case(void **state)
{
    (void)state;
    struct backend_string s = parsed("cpu:/opt/My/libcomm_Mine.so?a=b");
    assert_string_equal(s.pairs[0].name, "/opt/My/libcomm_Mine.so");
    assert_int_equal(s.pairs[0].option_count, 1);
    comm__backend_string_finish(&s);
}

static void what_is_malformed_is_quoted(void **state)
{
    (void)state;
    assert_refused("cpu:tcp,,cuda:nccl", "''");
    assert_refused("cpu:tcp,cpu:shm", "'cpu:shm'");
    assert_refused("tcp,cuda:nccl", "'cuda:nccl'");
    assert_refused("cpu:tcp,nccl", "'nccl'");
    assert_refused("8pu:tcp", "'8pu:tcp'");
    assert_refused("cpu:", "'cpu:'");
    assert_refused(":tcp", "':tcp'");
    assert_refused("cpu:tcp:1", "'cpu:tcp:1'");
    assert_refused("cpu:tcp?", "'cpu:tcp?'");
    assert_refused("cpu:tcp?lanes", "'cpu:tcp?lanes'");
    assert_refused("cpu:tcp?=4", "'cpu:tcp?=4'");
    assert_refused("cpu:tcp?lanes=1&LANES=2", "'cpu:tcp?lanes=1&LANES=2'");
    assert_refused("cpu:t c p", "'cpu:t c p'");
    assert_refused("cpu:a,cuda:b,hip:c,xpu:d,cpu:e", "'cpu:e'");
    assert_refused("default:tcp", "'default:tcp'");
}

static void options_are_the_same_in_any_order(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int same;
    } cases[] = {
        { "cpu:tcp,xpu:tcp", 1 },           { "cpu:tcp?a=1&b=2,xpu:tcp?b=2&a=1", 1 },
        { "cpu:tcp?a=1,xpu:tcp", 0 },       { "cpu:tcp?a=1&b=2,xpu:tcp?a=1&c=2", 0 },
        { "cpu:tcp?a=1,xpu:tcp?a=01", 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct backend_string s = parsed(cases[i].text);
        if (comm__same_options(&s.pairs[0], &s.pairs[1]) != cases[i].same)
            fail_msg("'%s'", cases[i].text);
        comm__backend_string_finish(&s);
    }
}

static comm_status open_world(const char *backend, comm_group **ret_world)
{
    comm_init_options o = COMM_INIT_OPTIONS_INIT;
    o.rendezvous = "hash://backend_string";
    o.world_size = 1;
    o.backend = backend;
    return comm_init(&o, ret_world);
}

static void the_environment_names_it_if_the_program_does_not(void **state)
{
    (void)state;
    comm_group *world;
    setenv("COMM_BACKEND", "cpu:tcp?lanes=2", 1);
    assert_int_equal(open_world(NULL, &world), COMM_OK);
    assert_string_equal(comm_group_backend(world), "cpu:tcp?lanes=2");
    comm_group_close(world);
    assert_int_equal(open_world("cpu:tcp", &world), COMM_OK);
    assert_string_equal(comm_group_backend(world), "cpu:tcp");
    comm_group_close(world);
    setenv("COMM_BACKEND", "cpu:nonesuch", 1);
    assert_int_equal(open_world(NULL, &world), COMM_ERR_NOT_FOUND);
    assert_non_null(strstr(comm_last_error(), "nonesuch"));
    unsetenv("COMM_BACKEND");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_auto_on_the_cpu),        cmocka_unit_test(a_bare_name_is_for_all_devices),
        cmocka_unit_test(pairs_and_options_are_taken_apart), cmocka_unit_test(a_path_keeps_its_case),
        cmocka_unit_test(what_is_malformed_is_quoted),       cmocka_unit_test(options_are_the_same_in_any_order),
        cmocka_unit_test(the_environment_names_it_if_the_program_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
