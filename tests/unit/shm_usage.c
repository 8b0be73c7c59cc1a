/* Which processes count as ranks of this host when shm asks what CPU time they have used: each once, however many ranks
 * it has; and when the answer is that nobody knows. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend_shm/greeting.h"
#include "backend_shm/usage.h"

enum { MOST = 64, PEERS = MOST + 6, MS = 1000000 }; /* as many processes as are asked, and more */

static struct duplex duplexes[PEERS], *up[PEERS];
static struct fabric fabric = { .up = up };
static pid_t peers[PEERS]; /* by the descriptor of the duplex */
static pid_t children[PEERS];

pid_t __wrap_greeting_peer(int fd);

pid_t __wrap_greeting_peer(int fd)
{
    return peers[fd];
}

static int64_t use_of(int count)
{
    int32_t cores = 0;
    fabric.up_count = count;
    int64_t used = usage_of_ranks(&fabric, &cores);
    assert_true(used < 0 || cores > 0);
    return used;
}

static void end_child(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < PEERS; i++) {
        up[i] = &duplexes[i];
        duplexes[i].watch.fd = i;
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                pause();
        }
        peers[i] = children[i];
    }
    while (clock() < 50 * (CLOCKS_PER_SEC / 1000)) /* so that one more of this process is seen */
        ;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < PEERS; i++)
        end_child(children[i]);
    return 0;
}

static void ranks_of_one_process_count_once(void **state)
{
    (void)state;
    int64_t alone = use_of(0);
    assert_true(alone >= 50 * (int64_t)MS);
    for (int i = 0; i < 4; i++)
        peers[i] = i % 2 ? getpid() : children[0];
    assert_in_range(use_of(4), alone, 2 * alone - 1);
    for (int i = 0; i < PEERS; i++)
        peers[i] = children[i % MOST];
    assert_true(use_of(PEERS) >= alone);
    for (int i = 0; i < PEERS; i++)
        peers[i] = children[i];
}

static void more_processes_than_are_asked(void **state)
{
    (void)state;
    assert_true(use_of(MOST) > 0);
    for (int count = MOST + 1; count <= PEERS; count++)
        assert_int_equal(use_of(count), -1);
}

static void one_that_cannot_be_asked(void **state)
{
    pid_t ended = fork();
    (void)state;
    assert_true(ended >= 0);
    if (ended == 0)
        _exit(0);
    waitpid(ended, NULL, 0);
    const pid_t unknown[] = { ended, 0, -1 };
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        peers[1] = unknown[i];
        assert_int_equal(use_of(3), -1);
    }
    peers[1] = children[1];
    assert_true(use_of(3) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_one_process_count_once),
        cmocka_unit_test(more_processes_than_are_asked),
        cmocka_unit_test(one_that_cannot_be_asked),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
