/* Whether what an operation reads and writes stays in the caches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache.h"

enum { MIB = 1 << 20 };

static void lists_of_cores_are_counted(void **state)
{
    static const struct {
        const char *text;
        int32_t count;
    } lists[] = {
        { "0\n", 1 },  { "0-1\n", 2 },  { "0-3,8", 5 }, { "0,2,4-7,100-101\n", 8 }, { "5", 1 }, { "", 0 }, { "\n", 0 },
        { "0-", 0 },   { "-1", 0 },     { "3-1", 0 },   { "0,", 0 },                { "x", 0 }, { "0-1;", 0 },
        { "0,x", 0 },  { ",1", 0 },     { "0-99999999999999999999", 0 },            { "0--1", 0 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        assert_int_equal(cache_count_list(lists[i].text), lists[i].count);
}

static void sizes_are_read(void **state)
{
    (void)state;
    assert_int_equal(cache_read_size("32768K\n"), 32 * MIB);
    assert_int_equal(cache_read_size("260M"), 260 * MIB);
    assert_int_equal(cache_read_size("100"), 100);
    assert_int_equal(cache_read_size(""), 0);
    assert_int_equal(cache_read_size("x"), 0);
    assert_int_equal(cache_read_size("99999999999999999999K"), 0);
}

static void a_cache_of_many_cores_is_worth_less(void **state)
{
    struct cache c = { 0 };
    (void)state;
    assert_int_equal(cache_worth(&c, 100 * MIB), 12 * MIB);
    assert_int_equal(c.is_far, 1);
    assert_int_equal(cache_worth(&c, 96 * MIB), 96 * MIB);
    assert_int_equal(c.is_far, 0);
}

static void all_that_the_ranks_touch_must_fit(void **state)
{
    const struct cache four = { .bytes = 20 * MIB, .sharers = 4 }, none = { 0 };
    const struct cache far = { .bytes = 20 * MIB, .sharers = 4, .is_far = 1 };
    (void)state;
    assert_false(cache_is_passed(&four, 4 * MIB, 20 * MIB, 1));
    assert_true(cache_is_passed(&four, 4 * MIB, 20 * MIB + 1, 1));
    assert_false(cache_is_passed(&four, 4 * MIB, 10 * MIB, 2));
    assert_true(cache_is_passed(&four, 4 * MIB, 10 * MIB + 1, 2));
    assert_false(cache_is_passed(&four, 4 * MIB, 5 * MIB, 100)); /* the others have other caches */
    assert_true(cache_is_passed(&four, 4 * MIB, 5 * MIB + 1, 100));
    assert_false(cache_is_passed(&four, 2 * MIB - 1, 100 * MIB, 2));
    assert_true(cache_is_passed(&four, 2 * MIB, 100 * MIB, 2));
    assert_false(cache_is_passed(&far, 1 * MIB - 1, 100 * MIB, 2));
    assert_true(cache_is_passed(&far, 1 * MIB, 100 * MIB, 2));
    assert_true(cache_is_passed(&none, 2 * MIB, 2 * MIB, 2)); /* nobody has chosen */
    assert_false(cache_is_passed(&none, 2 * MIB - 1, 2 * MIB, 2));
}

static void what_was_asked_for_is_what_there_is(void **state)
{
    const int32_t online = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    struct cache c;
    (void)state;
    cache_choose(&c, 8 * MIB, 1);
    assert_int_equal(c.bytes, 3 * MIB);
    assert_int_equal(c.sharers, 1);
    cache_choose(&c, 1, 1);
    assert_int_equal(c.bytes, 0);
    cache_choose(&c, 0, 3 * online);
    assert_true(c.bytes > 0);
    assert_true(c.sharers >= 3 && c.sharers <= 3 * online); /* three to a core */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_cores_are_counted),
        cmocka_unit_test(sizes_are_read),
        cmocka_unit_test(a_cache_of_many_cores_is_worth_less),
        cmocka_unit_test(all_that_the_ranks_touch_must_fit),
        cmocka_unit_test(what_was_asked_for_is_what_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
