/* What control groups let a process use, by files as the kernel has them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/exec/control_group.h"
#include "kernel_files.h"

static const char *folder;

/* -1: as many as there are. */
static int64_t millicores(void)
{
    uint64_t limit = control_group_millicores(folder, folder);
    return limit == UINT64_MAX ? -1 : (int64_t)limit;
}

static void the_least_of_all_groups_counts(void **state)
{
    (void)state;
    assert_int_equal(millicores(), -1);
    kernel_files_write("self/cgroup", "1:name=systemd:/x\n0::/a/b\n");
    assert_int_equal(millicores(), -1);
    kernel_files_write("a/b/cpu.max", "max 100000\n");
    assert_int_equal(millicores(), -1);
    kernel_files_write("a/cpu.max", "250000 100000\n");
    assert_int_equal(millicores(), 2500);
    kernel_files_write("a/b/cpu.max", "10000 20000\n");
    assert_int_equal(millicores(), 500);
    kernel_files_write("cpu.max", "1000 100000\n");
    assert_int_equal(millicores(), 10);
    kernel_files_write("self/cgroup", "0::/\n"); /* a name space of its own */
    assert_int_equal(millicores(), 10);
    kernel_files_write("self/cgroup", "5:cpu:/a/b\n"); /* without version 2 */
    assert_int_equal(millicores(), 10);
}

static void what_is_no_limit_is_none(void **state)
{
    static const char *const lines[] = { "", "\n", "100000\n", "100000 0\n", "x 100000\n", "18446744073709551615 1\n" };
    (void)state;
    kernel_files_write("self/cgroup", "0::/\n");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        kernel_files_write("cpu.max", lines[i]);
        assert_int_equal(millicores(), -1);
    }
}

static int make_folder(void **state)
{
    (void)state;
    folder = kernel_files_make();
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return kernel_files_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_least_of_all_groups_counts, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(what_is_no_limit_is_none, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
