/* A group that is closed is not watched any more, whatever its backends say of it meanwhile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/group.h"
#include "core/watchdog.h"

static void a_group_that_closes_is_not_watched_again(void **state)
{
    (void)state;
    for (int was_watched = 0; was_watched < 2; was_watched++) {
        comm_group *group = calloc(1, sizeof *group);
        assert_non_null(group);
        if (was_watched)
            comm__watch_from(group, INT64_MAX);
        assert_int_equal(atomic_load(&group->is_watched), was_watched);
        comm__unwatch(group);
        comm__watch_from(group, 0); /* as a backend's thread that has just found the group ended */
        assert_int_equal(atomic_load(&group->is_watched), was_watched);
        comm__watchdog_let_go(group);
        comm__watch_from(group, 0);
        assert_int_equal(atomic_load(&group->is_watched), 0);
        free(group);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_that_closes_is_not_watched_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
