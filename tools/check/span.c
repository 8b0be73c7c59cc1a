#include "span.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A slot that sleeps, or works on and on, is told when it does so again and again: in every tenth call for long, or in
 * every second one for a little, but longer than a lock's holder that has lost its CPU may be the cause of; or once for
 * so long that nothing else can be. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOW = 4 };
#else
enum { SLOW = 1 };
#endif
enum { LONG_NS = 20000000, LITTLE_NS = 4000000, BUSY_NS = 100000000 * SLOW, ONCE_MS = 1500, STALLED_MS = 1000 };
enum { LONG_CALLS = 3, LITTLE_CALLS = 8 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct span *spans;
static _Thread_local struct span *innermost;
static _Thread_local int in_completion;

/* The thread's time on a CPU, and its time in a queue for one. What is left of the time that passed, it slept. */
static void thread_times(int64_t *ret_run_ns, int64_t *ret_waited_ns)
{
    char text[100] = "";
    long long run = 0, waited = 0;
    int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (got > 0 && sscanf(text, "%lld %lld", &run, &waited) != 2)
        run = waited = 0;
    *ret_run_ns = run;
    *ret_waited_ns = waited;
}

void span_begin(struct span *span, const char *slot, const char *what)
{
    memset(span, 0, sizeof *span);
    span->slot = slot;
    snprintf(span->what, sizeof span->what, "%s", what);
    span->inside_completion = in_completion;
    span->thread = syscall(SYS_gettid);
    pthread_sigmask(SIG_SETMASK, NULL, &span->mask);
    thread_times(&span->run_ns, &span->waited_ns);
    pthread_mutex_lock(&lock);
    span->outer = innermost;
    innermost = span;
    span->next = spans;
    spans = span;
    pthread_mutex_unlock(&lock);
    span->begun_ns = check_now_ns();
}

struct sleeper {
    const char *slot;
    int calls, long_ones, little_ones;
};

/* How often the slot has slept, out of how many calls; on any group of the process. */
static struct sleeper *sleeper_of(const char *slot)
{
    static struct sleeper sleepers[16];
    for (int i = 0; i < 16; i++) {
        if (!sleepers[i].slot)
            sleepers[i].slot = slot;
        if (strcmp(sleepers[i].slot, slot) == 0)
            return &sleepers[i];
    }
    return &sleepers[15];
}

static void judge(const struct span *span, enum rule rule, int64_t slept_ns, int64_t busy_ns)
{
    pthread_mutex_lock(&lock);
    struct sleeper *s = sleeper_of(span->slot);
    bool is_long = slept_ns >= LONG_NS || busy_ns >= BUSY_NS, is_little = slept_ns >= LITTLE_NS;
    s->calls++;
    s->long_ones += is_long;
    s->little_ones += is_little;
    bool often = (is_long && s->long_ones >= LONG_CALLS && s->long_ones * 10 >= s->calls) ||
                 (is_little && s->little_ones >= LITTLE_CALLS && s->little_ones * 2 >= s->calls);
    int calls = s->calls, like_this = is_long ? s->long_ones : s->little_ones;
    pthread_mutex_unlock(&lock);
    if (often || slept_ns >= (int64_t)ONCE_MS * SLOW * 1000000)
        finding(rule, "%s%s%s %s for %lld ms (so did %d of the %d calls until now)", span->slot,
                *span->what ? " of " : "", span->what, slept_ns >= busy_ns ? "slept" : "kept the thread busy",
                (long long)((slept_ns >= busy_ns ? slept_ns : busy_ns) / 1000000), like_this, calls);
}

void span_end(struct span *span, enum rule must_not_sleep)
{
    int64_t run_ns, waited_ns, took_ns = check_now_ns() - span->begun_ns;
    sigset_t mask;
    pthread_mutex_lock(&lock);
    struct span **link = &spans;
    while (*link != span)
        link = &(*link)->next;
    *link = span->next;
    innermost = span->outer;
    pthread_mutex_unlock(&lock);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    for (int s = 1; s < 32; s++)
        if (sigismember(&mask, s) != sigismember(&span->mask, s))
            finding(RULE_slot_thread, "%s left signal %d %s", span->slot, s,
                    sigismember(&mask, s) ? "blocked" : "unblocked");
    if (must_not_sleep == RULE_COUNT)
        return;
    thread_times(&run_ns, &waited_ns);
    run_ns -= span->run_ns;
    waited_ns -= span->waited_ns;
    if (run_ns > 0)
        judge(span, must_not_sleep, took_ns - run_ns - waited_ns, run_ns);
}

void span_inside_completion(int change)
{
    in_completion += change;
}

void span_where(char *text, size_t capacity)
{
    if (innermost)
        snprintf(text, capacity, "%s%s%s", innermost->slot, *innermost->what ? " of " : "", innermost->what);
    else
        snprintf(text, capacity, "a thread that is in no slot");
}

size_t span_story(char *text, size_t capacity)
{
    size_t used = 0;
    pthread_mutex_lock(&lock);
    for (const struct span *s = spans; s && used < capacity; s = s->next)
        used += (size_t)snprintf(text + used, capacity - used, "%sin %s%s%s for %.1f s", used ? "; " : "", s->slot,
                                 *s->what ? " of " : "", s->what, (double)(check_now_ns() - s->begun_ns) * 1e-9);
    pthread_mutex_unlock(&lock);
    return used < capacity ? used : capacity;
}

/* The rule that a slot breaks by not returning; RULE_COUNT: it may wait. */
static enum rule rule_of(const struct span *s)
{
    static const struct {
        const char *slot;
        enum rule rule;
    } rules[] = {
        { "world_open", RULE_world_open_local }, { "group_open", RULE_group_open_local },
        { "submit", RULE_submit_blocks },        { "supports", RULE_slot_blocks },
        { "group_abort", RULE_slot_blocks },     { "run", RULE_run_spins },
        { "group_close", RULE_close_leaves },    { "world_close", RULE_lets_go },
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (strcmp(rules[i].slot, s->slot) == 0)
            return rules[i].rule;
    if (s->aborted_ns && atomic_load(s->aborted_ns) && check_now_ns() - atomic_load(s->aborted_ns) > 1000000000)
        return RULE_progress_abort;
    return RULE_COUNT;
}

int span_hangs(void)
{
    int found = 0;
    pthread_mutex_lock(&lock);
    for (const struct span *s = spans; s; s = s->next) {
        enum rule rule = rule_of(s);
        if (rule == RULE_COUNT || check_now_ns() - s->begun_ns < (int64_t)STALLED_MS * 1000000)
            continue;
        bool at_once = s->inside_completion && (rule == RULE_submit_blocks || rule == RULE_slot_blocks);
        finding(at_once ? RULE_locks : rule, "%s%s%s has not returned for %.1f s%s", s->slot, *s->what ? " of " : "",
                s->what, (double)(check_now_ns() - s->begun_ns) * 1e-9,
                at_once ? "; it was called from a callback inside host->work_complete of the same thread" : "");
        found++;
    }
    pthread_mutex_unlock(&lock);
    return found;
}
