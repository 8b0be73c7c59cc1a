/* Signals and --timeout before there are ranks. While commrun waits for its store and the other nodes, its loop does
 * not run, so that libuv's handlers would not be called until then. There is nothing to clean up yet, except the guard
 * process. */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "commrun.h"

static const int ending[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
static struct run *early_run;
static char waiting[400], late[sizeof waiting + 100]; /* texts for the handler, which cannot make any */

static void write_text(const char *text)
{
    if (write(2, text, strlen(text)) < 0)
        return;
}

/* Calls only what is async-signal-safe; sigabbrev_np is, too. */
static void on_early_signal(int signal)
{
    static atomic_flag once = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&once))
        return; /* another thread is about to end this process */
    if (signal == SIGALRM) {
        write_text(late);
    } else {
        write_text("commrun: ended by SIG");
        write_text(sigabbrev_np(signal));
        write_text(waiting);
    }
    if (early_run->guard_pid > 0)
        spawn_guard_done(early_run);
    _exit(signal == SIGALRM ? COMMRUN_EXIT_TIMEOUT : 128 + signal);
}

/* Signals for the ranks are kept until there are ranks. */
static void keep_user_signals(int how)
{
    sigset_t user;
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    sigaddset(&user, SIGUSR2);
    pthread_sigmask(how, &user, NULL);
}

void early_start(struct run *run)
{
    struct sigaction action = { .sa_handler = on_early_signal };
    const struct options *o = &run->options;
    early_run = run;
    signal(SIGPIPE, SIG_IGN);
    snprintf(waiting, sizeof waiting, " before a rank was started\n");
    if (o->node_count > 1)
        snprintf(waiting, sizeof waiting, " before a rank was started, while waiting for the other nodes at %.300s\n",
                 o->rendezvous);
    snprintf(late, sizeof late, "commrun: --timeout %g s passed%s", o->timeout_s, waiting);
    sigfillset(&action.sa_mask);
    for (size_t i = 0; i < sizeof ending / sizeof *ending; i++)
        sigaction(ending[i], &action, NULL);
    keep_user_signals(SIG_BLOCK);
    if (o->timeout_s <= 0)
        return;
    struct itimerval timer = { .it_value = { .tv_sec = (time_t)o->timeout_s } };
    timer.it_value.tv_usec = (suseconds_t)((o->timeout_s - (double)timer.it_value.tv_sec) * 1e6);
    if (timer.it_value.tv_sec == 0 && timer.it_value.tv_usec == 0)
        timer.it_value.tv_usec = 1; /* 0 would be no limit */
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

uint64_t early_end(const struct run *run)
{
    struct itimerval none = { .it_value = { 0 } }, left = none;
    keep_user_signals(SIG_UNBLOCK);
    if (run->options.timeout_s <= 0)
        return 0;
    setitimer(ITIMER_REAL, &none, &left);
    signal(SIGALRM, SIG_DFL);
    return (uint64_t)left.it_value.tv_sec * 1000 + (uint64_t)left.it_value.tv_usec / 1000 + 1;
}
