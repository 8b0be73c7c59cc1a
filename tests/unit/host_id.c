/* Hosts: what identifies one, how they are numbered, and the numbers as text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/host_id.h"

static void a_text_takes_the_rules_place(void **state)
{
    (void)state;
    unsetenv("COMM_HOST_ID");
    uint64_t own = comm__host_id();
    assert_true(own == comm__host_id());
    setenv("COMM_HOST_ID", "a", 1);
    uint64_t a = comm__host_id();
    setenv("COMM_HOST_ID", "b", 1);
    assert_true(a != own && comm__host_id() != own && comm__host_id() != a);
    setenv("COMM_HOST_ID", "a", 1);
    assert_true(comm__host_id() == a);
    setenv("COMM_HOST_ID", "", 1);
    assert_true(comm__host_id() == own);
}

static int own_memory(void)
{
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("none", "/dev/shm", "tmpfs", 0, NULL) == 0;
}

/* In a child in a name space of its own: is the identity the same? -1 where no such name space may be made. */
static int same_in(int flags)
{
    uint64_t own = comm__host_id();
    pid_t child = fork();
    int status = 0;
    if (child == 0) {
        if (unshare(flags) != 0 || (flags == CLONE_NEWNS && !own_memory()))
            _exit(2);
        _exit(comm__host_id() == own);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status) == 2 ? -1 : WEXITSTATUS(status);
}

static void name_spaces_tell_hosts_apart(void **state)
{
    (void)state;
    unsetenv("COMM_HOST_ID");
    int network = same_in(CLONE_NEWNET), memory = same_in(CLONE_NEWNS), name = same_in(CLONE_NEWUTS);
    if (network < 0 || memory < 0 || name < 0) {
        print_message("no name spaces may be made here\n");
        skip();
    }
    assert_int_equal(network, 0);
    assert_int_equal(memory, 0);
    assert_int_equal(name, 1);
}

/* The shm backend lets in only ranks of its own user. */
static void another_user_is_on_another_host(void **state)
{
    (void)state;
    unsetenv("COMM_HOST_ID");
    uint64_t own = comm__host_id();
    if (seteuid(geteuid() + 1) != 0) {
        print_message("this user may not become another one\n");
        skip();
    }
    uint64_t theirs = comm__host_id();
    assert_int_equal(seteuid(getuid()), 0);
    assert_true(own != theirs);
    assert_int_not_equal(same_in(CLONE_NEWUSER), 1);
}

static void differ(const char *mine, const char *theirs, const char *expected)
{
    char text[HOST_DIFFERENCE_TEXT];
    comm__host_parts_differ(mine, theirs, text, sizeof text);
    assert_string_equal(text, expected);
}

static void what_differs_between_hosts_is_named(void **state)
{
    char own[HOST_PARTS_TEXT], text[HOST_DIFFERENCE_TEXT];
    (void)state;
    differ("1a 2b 3 4 0 ", "1a 2b 3 4 65534 ", "run on the same kernel, but as different users (0 and 65534)");
    differ("1a 2b 3 4 0 ", "1a 2c 3 4 0 ", "run on the same kernel, but in different network name spaces");
    differ("1a 2b 3 4 0 ", "1a 2c 5 6 0 ",
           "run on the same kernel, but in different user name spaces and with different file systems at /dev/shm and "
           "in different network name spaces");
    differ("1a 2b 3 4 0 ", "1b 2c 5 6 7 ", "");
    differ("1a 2b 3 4 0 ", "1a 2b 3 4 0 ", "");
    differ("1a 2b 3 4 0 a b", "1b 2b 3 4 0 ", "have different values of COMM_HOST_ID ('a b' and not set)");
    differ("1a 2b 3 4 0", "1a 2b 3 4 65534 ", "");
    differ("", "1a 2b", "");
    unsetenv("COMM_HOST_ID");
    comm__host_parts_mine(own);
    differ(own, own, "");
    if (seteuid(geteuid() + 1) == 0) {
        char theirs[HOST_PARTS_TEXT];
        comm__host_parts_mine(theirs);
        assert_int_equal(seteuid(getuid()), 0);
        comm__host_parts_differ(own, theirs, text, sizeof text);
        assert_non_null(strstr(text, "run on the same kernel, but as different users ("));
    }
    setenv("COMM_HOST_ID", "two\nlines", 1);
    comm__host_parts_mine(text);
    differ(own, text, "have different values of COMM_HOST_ID (not set and 'two?lines')");
    unsetenv("COMM_HOST_ID");
}

static void hosts_are_numbered_as_they_appear(void **state)
{
    const uint64_t ids[] = { 900, 900, 7, 55, 7, 900, 1, UINT64_MAX };
    const int32_t expected[] = { 0, 0, 1, 2, 1, 0, 3, 4 };
    int32_t hosts[8], again[8];
    char *text;
    (void)state;
    assert_int_equal(comm__hosts_number(ids, 8, hosts), COMM_OK);
    assert_memory_equal(hosts, expected, sizeof hosts);
    assert_int_equal(comm__hosts_write(hosts, 8, &text), COMM_OK);
    assert_string_equal(text, "2*0,1*1,1*2,1*1,1*0,1*3,1*4,");
    assert_int_equal(comm__hosts_read(text, 8, again), COMM_OK);
    assert_memory_equal(again, expected, sizeof again);
    free(text);
}

static void many_ranks_take_little_text(void **state)
{
    enum { RANKS = 100000, PER_HOST = 8 };
    uint64_t *ids = malloc(RANKS * sizeof *ids);
    int32_t *hosts = malloc(RANKS * sizeof *hosts), *again = malloc(RANKS * sizeof *again);
    char *text;
    (void)state;
    for (int i = 0; i < RANKS; i++)
        ids[i] = (uint64_t)(i / PER_HOST) * 0x9e3779b97f4a7c15u;
    assert_int_equal(comm__hosts_number(ids, RANKS, hosts), COMM_OK);
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(hosts[i], i / PER_HOST);
    assert_int_equal(comm__hosts_write(hosts, RANKS, &text), COMM_OK);
    assert_true(strlen(text) < RANKS);
    assert_int_equal(comm__hosts_read(text, RANKS, again), COMM_OK);
    assert_memory_equal(again, hosts, RANKS * sizeof *hosts);
    free(text);
    free(ids);
    free(hosts);
    free(again);
}

/* The text comes from a store, which may be another program's. */
static void a_wrong_text_is_refused(void **state)
{
    static const char *const wrong[] = { "",       "4",        "4*",       "4*0",     "3*0,",       "5*0,",
                                         "4*1,",   "2*0,2*2,", "0*0,4*0,", "-1*0,5*0,", "2*0,2*-1,", "2*0;2*1;",
                                         "x*0,4*0,", "99999999999999999999*0," };
    int32_t hosts[4];
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(comm__hosts_read(wrong[i], 4, hosts), COMM_ERR_PROTOCOL);
    assert_int_equal(comm__hosts_read("2*0,2*1,", 4, hosts), COMM_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_takes_the_rules_place),
        cmocka_unit_test(another_user_is_on_another_host),
        cmocka_unit_test(name_spaces_tell_hosts_apart),
        cmocka_unit_test(what_differs_between_hosts_is_named),
        cmocka_unit_test(hosts_are_numbered_as_they_appear),
        cmocka_unit_test(many_ranks_take_little_text),
        cmocka_unit_test(a_wrong_text_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
