/* What control groups let a process use, by files as the kernel has them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "core/exec/control_group.h"

static char folder[128];

static void write_file(const char *name, const char *text)
{
    char path[320];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = strchr(path + strlen(folder) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

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
    write_file("self/cgroup", "1:name=systemd:/x\n0::/a/b\n");
    assert_int_equal(millicores(), -1);
    write_file("a/b/cpu.max", "max 100000\n");
    assert_int_equal(millicores(), -1);
    write_file("a/cpu.max", "250000 100000\n");
    assert_int_equal(millicores(), 2500);
    write_file("a/b/cpu.max", "10000 20000\n");
    assert_int_equal(millicores(), 500);
    write_file("cpu.max", "1000 100000\n");
    assert_int_equal(millicores(), 10);
    write_file("self/cgroup", "0::/\n"); /* a name space of its own */
    assert_int_equal(millicores(), 10);
    write_file("self/cgroup", "5:cpu:/a/b\n"); /* without version 2 */
    assert_int_equal(millicores(), 10);
}

static void what_is_no_limit_is_none(void **state)
{
    static const char *const lines[] = { "", "\n", "100000\n", "100000 0\n", "x 100000\n", "18446744073709551615 1\n" };
    (void)state;
    write_file("self/cgroup", "0::/\n");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        write_file("cpu.max", lines[i]);
        assert_int_equal(millicores(), -1);
    }
}

static int make_folder(void **state)
{
    const char *base = getenv("TMPDIR");
    (void)state;
    snprintf(folder, sizeof folder, "%.100s/comm-groups-XXXXXX", base && *base ? base : "/tmp");
    return !mkdtemp(folder);
}

static int remove_folder(void **state)
{
    char command[160];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_least_of_all_groups_counts, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(what_is_no_limit_is_none, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
