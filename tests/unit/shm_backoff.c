/* How long a rank waits before its first look for a message: longer after a look in vain, and as long as one look in
 * thirteen is in vain. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend_shm/backoff.h"

enum { SHARE = 12, MANY = 10000 };

static void learn(struct backoff *b, int has_found, int times)
{
    for (int i = 0; i < times; i++)
        backoff_learn(b, has_found);
}

static void what_is_there_is_looked_for_at_once(void **state)
{
    struct backoff b = { 0 };
    (void)state;
    learn(&b, 1, MANY);
    assert_int_equal(b.delay, 0);
}

static void the_delay_stays_where_one_look_in_thirteen_is_in_vain(void **state)
{
    struct backoff b = { 0 };
    (void)state;
    learn(&b, 0, 20);
    unsigned before = b.delay;
    assert_true(before >= BACKOFF_PARTS);
    for (int i = 0; i < MANY; i++) {
        learn(&b, 0, 1);
        learn(&b, 1, SHARE);
    }
    assert_int_equal(b.delay, before);
    learn(&b, 1, SHARE);
    assert_true(b.delay < before);
    learn(&b, 0, 2);
    assert_true(b.delay > before);
}

static void the_delay_has_an_end(void **state)
{
    struct backoff b = { 0 };
    (void)state;
    learn(&b, 0, MANY);
    assert_in_range(b.delay, BACKOFF_MAX, BACKOFF_MAX + SHARE);
    learn(&b, 1, BACKOFF_MAX + SHARE);
    assert_int_equal(b.delay, 0);
}

/* Multiplications of anything else would say how many there were. */
static void the_delay_is_what_was_learned_and_changes_no_address(void **state)
{
    (void)state;
    for (unsigned delay = 0; delay <= BACKOFF_MAX; delay++) {
        struct backoff b = { .delay = delay };
        assert_int_equal(backoff_zero(&b), 0);
        uint64_t product = 1;
        for (unsigned i = 0; i < delay / BACKOFF_PARTS; i++)
            product *= backoff_factor;
        b.zero = 1;
        assert_true(backoff_zero(&b) == product);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_there_is_looked_for_at_once),
        cmocka_unit_test(the_delay_stays_where_one_look_in_thirteen_is_in_vain),
        cmocka_unit_test(the_delay_has_an_end),
        cmocka_unit_test(the_delay_is_what_was_learned_and_changes_no_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
