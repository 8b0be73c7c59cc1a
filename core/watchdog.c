/* One thread that sleeps until something is overdue. It takes none of a group's locks, neither to look nor to act:
 * callbacks of the user's may run then. */
#include "watchdog.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/monotonic_cond.h"
#include "base/own_thread.h"

_Atomic int64_t comm__watchdog_wakes_ns = INT64_MAX;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows; comes after a submission lock */
static pthread_cond_t changed;                           /* something is due earlier, or the last group is gone */
static pthread_cond_t stopped = PTHREAD_COND_INITIALIZER;
static pthread_t thread;
static int runs, stops;
static comm_group *groups;
static comm_group *nowhere; /* a group whose at_watched this is will not be watched again */
static size_t group_count; /* with those that are being closed, where it may still be at work */

/* ---- Its thread ---- */

/* A group that must be looked after now, with what keeps it; else NULL, and the time when one must. */
static comm_group *find_overdue(int64_t *ret_due_ns)
{
    int64_t now_ns = clock_now_ns();
    *ret_due_ns = INT64_MAX;
    for (comm_group *group = groups; group; group = group->next_watched) {
        int64_t due_ns = comm__group_due_ns(group);
        if (due_ns <= now_ns) {
            comm__group_stay(group);
            return group;
        }
        *ret_due_ns = due_ns < *ret_due_ns ? due_ns : *ret_due_ns;
    }
    return NULL;
}

static void sleep_until(int64_t due_ns)
{
    struct timespec until = { (time_t)(due_ns / 1000000000), (long)(due_ns % 1000000000) };
    if (due_ns == INT64_MAX)
        pthread_cond_wait(&changed, &lock);
    else
        pthread_cond_timedwait(&changed, &lock, &until);
}

static void *watch(void *argument)
{
    int64_t due_ns;
    (void)argument;
    pthread_mutex_lock(&lock);
    while (!stops) {
        /* First, so that a thread that submits while we look calls comm__watch_from. */
        atomic_store(&comm__watchdog_wakes_ns, INT64_MAX);
        comm_group *group = find_overdue(&due_ns);
        if (!group) {
            atomic_store(&comm__watchdog_wakes_ns, due_ns);
            sleep_until(due_ns);
            continue;
        }
        pthread_mutex_unlock(&lock);
        comm__group_enforce(group);
        comm__group_let_go(group);
        pthread_mutex_lock(&lock);
    }
    atomic_store(&comm__watchdog_wakes_ns, INT64_MAX);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* ---- Beginning and ending ---- */

static void start(void)
{
    monotonic_cond_init(&changed);
    int failed = own_thread_create(&thread, watch, NULL);
    runs = !failed;
    if (failed)
        comm__log(COMM_LOG_WARN,
                  "no thread for the watchdog (%s): an operation that no thread waits for may stay unfinished "
                  "when its time limit has passed",
                  strerror(failed));
}

void comm__watch_from(comm_group *group, int64_t due_ns)
{
    pthread_mutex_lock(&lock);
    while (stops)
        pthread_cond_wait(&stopped, &lock);
    if (group->at_watched == &nowhere) { /* a backend has ended it while it closes */
        pthread_mutex_unlock(&lock);
        return;
    }
    if (!group->at_watched) {
        group->next_watched = groups;
        group->at_watched = &groups;
        if (groups)
            groups->at_watched = &group->next_watched;
        groups = group;
        group_count++;
        atomic_store(&group->is_watched, 1);
    }
    if (!runs)
        start();
    if (due_ns < atomic_load(&comm__watchdog_wakes_ns)) {
        atomic_store(&comm__watchdog_wakes_ns, due_ns);
        pthread_cond_signal(&changed);
    }
    pthread_mutex_unlock(&lock);
}

/* Holds the lock, and gives it up while the thread ends; no group is left that it works for, so that takes no time. */
static void stop(void)
{
    stops = 1;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    pthread_mutex_lock(&lock);
    pthread_cond_destroy(&changed);
    runs = stops = 0;
    pthread_cond_broadcast(&stopped);
}

void comm__unwatch(comm_group *group)
{
    pthread_mutex_lock(&lock);
    if (group->at_watched && group->at_watched != &nowhere) {
        *group->at_watched = group->next_watched;
        if (group->next_watched)
            group->next_watched->at_watched = group->at_watched;
    }
    group->at_watched = &nowhere;
    pthread_mutex_unlock(&lock);
}

void comm__watchdog_let_go(comm_group *group)
{
    if (!atomic_load(&group->is_watched))
        return;
    pthread_mutex_lock(&lock);
    atomic_store(&group->is_watched, 0);
    assert(group_count > 0);
    if (--group_count == 0 && runs)
        stop();
    pthread_mutex_unlock(&lock);
}

void comm__watchdog_forked(void)
{
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&stopped, NULL);
    runs = stops = 0;
    groups = NULL;
    group_count = 0;
    atomic_store(&comm__watchdog_wakes_ns, INT64_MAX);
}
