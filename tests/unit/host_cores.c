/* Cores as text, and how many the ranks of a host have together. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/host_cores.h"

static void expect(const int32_t *hosts, const char *const *masks, int32_t size, const char *expected)
{
    char *text;
    assert_int_equal(comm__host_cores_write(hosts, masks, size, &text), COMM_OK);
    assert_string_equal(text, expected);
    free(text);
}

/* For each core that this process may run on alone, and for all of them. */
static void what_a_thread_says_of_itself_is_what_it_may_use(void **state)
{
    static const int32_t host[] = { 0 };
    cpu_set_t all, one;
    char mine[HOST_CORES_TEXT], expected[16];
    const char *mask = mine;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    comm__host_cores_mine(mine);
    snprintf(expected, sizeof expected, "%d,", CPU_COUNT(&all));
    expect(host, &mask, 1, expected);
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &all))
            continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
        comm__host_cores_mine(mine);
        assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
        assert_int_equal(strlen(mine), core / 4 + 1);
        assert_int_equal(mine[0], "1248"[core % 4]);
        assert_int_equal(strspn(mine + 1, "0"), core / 4);
        expect(host, &mask, 1, "1,");
    }
}

static void ranks_of_a_host_count_each_core_once(void **state)
{
    static const int32_t hosts[] = { 0, 1, 0, 1, 2, 0 };
    static const char *const masks[] = { "3", "1", "3", "2", "ff00000000000000000000000000000000\nmore", "80000000" };
    (void)state;
    expect(hosts, masks, 6, "3,2,8,");
    expect(hosts, masks, 5, "2,2,8,");
    expect(hosts, masks, 1, "2,");
}

static void all_cores_that_a_text_can_name_count(void **state)
{
    static const int32_t hosts[] = { 0, 0 };
    char low[CPU_SETSIZE / 4 + 1], high[CPU_SETSIZE / 4 + 1];
    const char *const masks[] = { low, high };
    (void)state;
    memset(low, 'f', sizeof low - 1);
    low[sizeof low - 1] = '\0';
    memset(high, '0', sizeof high - 1);
    high[0] = '8';
    high[sizeof high - 1] = '\0';
    expect(hosts, masks, 2, "1024,");
    low[0] = '0';
    expect(hosts, masks, 2, "1021,");
}

/* Another program may have written the text. */
static void one_that_does_not_know_leaves_its_host_unknown(void **state)
{
    static const int32_t hosts[] = { 0, 0, 1 };
    char long_text[CPU_SETSIZE / 4 + 2];
    const char *const wrong[] = { "0", "", "\n", "x1", " 1", "-1", "0000", "G", NULL, long_text };
    (void)state;
    memset(long_text, '1', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *const last[] = { "f", wrong[i], "3" }, *const first[] = { wrong[i], "f", "3" };
        expect(hosts, last, 3, "0,2,");
        expect(hosts, first, 3, "0,2,");
    }
}

static void a_number_that_is_not_there_is_not_known(void **state)
{
    static const char *const wrong[] = { "", "8", "x", "-1,", "0,", "1025,", "99999999999999999999,", "8;4,", "1e3," };
    (void)state;
    assert_int_equal(comm__host_cores_read("8,4,1024,", 0), 8);
    assert_int_equal(comm__host_cores_read("8,4,1024,", 1), 4);
    assert_int_equal(comm__host_cores_read("8,4,1024,", 2), 1024);
    for (int32_t host = 3; host < 6; host++)
        assert_int_equal(comm__host_cores_read("8,4,1024,", host), 0);
    assert_int_equal(comm__host_cores_read(NULL, 0), 0);
    assert_int_equal(comm__host_cores_read(NULL, 3), 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(comm__host_cores_read(wrong[i], 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_thread_says_of_itself_is_what_it_may_use),
        cmocka_unit_test(ranks_of_a_host_count_each_core_once),
        cmocka_unit_test(all_cores_that_a_text_can_name_count),
        cmocka_unit_test(one_that_does_not_know_leaves_its_host_unknown),
        cmocka_unit_test(a_number_that_is_not_there_is_not_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
