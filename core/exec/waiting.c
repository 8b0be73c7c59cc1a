#include "waiting.h"

#include <stddef.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "control_group.h"
#include "say.h"

/* After yielding to a program that kept the core. */
static const int64_t LONG_REST_LEAST_NS = 5000000, NO_POLL_LEAST_NS = 80000000, LONG_REST_MAX_NS = 320000000;

enum { MILLICORES = 1000 };

enum { VAIN_MAX = 3 }; /* a rank that is late now and then must not keep us from spinning for the next message */

int32_t waiting_local_ranks(const comm_world_info *info)
{
    int32_t count = 0;
    for (int32_t r = 0; r < info->size; r++)
        count += info->hosts[r] == info->hosts[info->rank];
    return count;
}

/* 0: the core does not know, or is too old to say. */
static int32_t local_cores(const comm_world_info *info)
{
    enum { END = offsetof(comm_world_info, local_cores) + sizeof info->local_cores };
    return info->struct_bytes >= END ? info->local_cores : 0;
}

int waiting_shares_cores(const comm_world_info *info)
{
    int32_t cores = local_cores(info);
    return cores > 0 && waiting_local_ranks(info) > cores;
}

/* The launcher counts ranks of this machine that COMM_HOST_ID or containers put on several hosts. */
static int32_t ranks_here(const comm_world_info *info)
{
    int32_t local = waiting_local_ranks(info);
    return local > info->local_size ? local : info->local_size;
}

/* A container's limit on time, not on cores: who polls uses up what the ranks that compute need. */
static int is_limited(const comm_world_info *info)
{
    return control_group_millicores("/proc", "/sys/fs/cgroup") < (uint64_t)ranks_here(info) * MILLICORES;
}

void waiting_choose(struct waiting *w, const char *backend, const comm_world_info *info)
{
    int32_t online = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    int32_t cores = local_cores(info) > 0 ? local_cores(info) : online;
    w->is_crowded = waiting_local_ranks(info) > cores || info->local_size > online;
    w->spin_ns = w->is_crowded ? 0 : exec_host->param_int(info->options, backend, "spin_us") * 1000;
    w->yield_ns = exec_host->param_int(info->options, backend, "yield_us") * 1000;
    w->poll_ns = w->spin_ns && !is_limited(info) ? exec_host->param_int(info->options, backend, "poll_us") * 1000 : 0;
    w->yields = w->is_crowded;
    w->yield_until_ns = w->is_crowded ? INT64_MAX : 0;
    w->process.share = (int64_t)MILLICORES * cores / ranks_here(info);
}

static int64_t cpu_ns(clockid_t clock)
{
    struct timespec t = { 0 };
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int waiting_computes(struct waiting *w, int64_t now)
{
    enum { BRIEF_NS = 50000 }; /* too brief to tell */
    struct waiting_process *p = &w->process;
    int64_t passed_ns = now - p->asked_ns, least = p->share > MILLICORES ? p->share - MILLICORES / 2 : p->share / 2;
    if (passed_ns < BRIEF_NS)
        return p->computes;
    int64_t used_ns = cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    int64_t more_ns = used_ns - p->used_ns;
    p->computes = more_ns > passed_ns / MILLICORES * least;
    p->asked_ns = now;
    p->used_ns = used_ns;
    return p->computes;
}

/* Has the core gone to another rank, which does its part of a long operation? Then the ranks have used nearly all of
 * the cores' time since this was last asked. If they had nothing to do for a part of it, the next time tells. */
static int ranks_use_cores(struct waiting_usage *u)
{
    enum { EIGHTHS = 7 };
    int32_t cores = 1;
    int64_t used_ns = u->of_ranks ? u->of_ranks(u->ranks, &cores) : -1, now = clock_now_ns();
    int64_t passed_ns = now - u->asked_ns, more_ns = used_ns - u->used_ns;
    if (used_ns < 0)
        return 0;
    u->asked_ns = now;
    u->used_ns = used_ns;
    return more_ns >= passed_ns / 8 * EIGHTHS * cores;
}

static void got_back(struct waiting *w, int64_t now)
{
    w->got_back_ns = now;
    w->waits = 0;
}

/* A program had the core for so long. Was that its fair share, and do waits mostly end sooner than a thread wakes up?
 * Then a rest would cost more than it gains. */
static int may_have_core(struct waiting *w, int64_t began_ns, int64_t ended_ns)
{
    enum { SHARE = 8, WAKING_NS = 10000 };
    int64_t had_ns = began_ns - w->got_back_ns, waits = w->waits;
    got_back(w, ended_ns);
    return had_ns > (ended_ns - began_ns) / SHARE && had_ns < waits * WAKING_NS;
}

/* Has another program had the core of late, or may it have? */
static void learn_to_measure(struct waiting *w, int64_t ended_ns)
{
    enum { SHORT_YIELDS = 64, UNMEASURED = 7 };
    int is_short = ended_ns - w->yielded_ns <= WAITING_LONG_LOOK_NS;
    w->yielded_ns = ended_ns;
    w->short_yields = !is_short ? 0 : w->short_yields < SHORT_YIELDS ? w->short_yields + 1 : SHORT_YIELDS;
    w->unmeasured = w->is_crowded && w->short_yields == SHORT_YIELDS ? UNMEASURED : 0;
}

/* How long it took, from `now` on. */
static int64_t yield_for(struct waiting *w, int64_t now)
{
    w->yields = now < w->yield_until_ns;
    if (w->got_back_ns < w->rest_until_ns)
        got_back(w, now); /* from the rest */
    sched_yield();
    int64_t ended_ns = clock_now_ns();
    learn_to_measure(w, ended_ns);
    return ended_ns - now;
}

/* Twice as long each time that it happens again soon: a program that ran only briefly costs one short rest, one that
 * stays doubles it each time. */
static void rest_longer(int64_t *until_ns, int64_t *rest_ns, int64_t least_ns, int64_t now)
{
    int64_t longer_ns = *rest_ns < LONG_REST_MAX_NS ? 2 * *rest_ns : LONG_REST_MAX_NS;
    *rest_ns = now - *until_ns < *rest_ns ? longer_ns : least_ns;
    *until_ns = now + *rest_ns;
}

/* When that took long, and not for another rank, the core went to a program that is not waiting for anything. If that
 * gets more than its share, a whole slice at every yield, better sleep: the scheduler prefers a thread that wakes up to
 * one that yields. */
void waiting_yield(struct waiting *w, int64_t now)
{
    int64_t took_ns = yield_for(w, now);
    if (took_ns > WAITING_LONG_LOOK_NS && !ranks_use_cores(&w->usage) && !may_have_core(w, now, now + took_ns))
        rest_longer(&w->rest_until_ns, &w->long_rest_ns, LONG_REST_LEAST_NS, now);
}

/* Neither a long copy nor an interrupt, such as that for packets that come, is one. */
int64_t waiting_switches(void)
{
    struct rusage usage = { 0 };
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw + usage.ru_nivcsw;
}

/* Polling brought nothing while the thread had the core. */
static void in_vain(struct waiting *w, int64_t now)
{
    if (++w->vain < VAIN_MAX)
        return;
    w->vain = VAIN_MAX - 1; /* the next try decides */
    if (w->share_ns && !w->yields) {
        w->yields = 1;
        w->yield_until_ns = now + w->share_ns;
    } else {
        w->rest_until_ns = now + w->rest_ns;
    }
}

/* Nobody else may have wanted the core of late, no other rank either. Short waits are not changed by a program that
 * does: for those the thread spins. It yields as soon as it has spun, and then seldom: each system call takes the core
 * for up to a microsecond in which what comes is not seen, and leaves its caches and predictions as they were not. */
int waiting_polls_on(struct waiting *w, int64_t now, int64_t idle_since)
{
    enum { YIELD_EVERY_NS = 20000, SWITCHES_NS = 2000 };
    if (!w->poll_until_ns)
        w->poll_until_ns = idle_since + w->poll_ns;
    if (now >= w->poll_until_ns || now < w->no_poll_until_ns)
        return 0;
    if (now - idle_since < w->spin_ns || (w->polls_on_ns && now - w->yielded_ns < YIELD_EVERY_NS))
        return 1;
    if (!w->polls_on_ns) {
        if (!w->vain)
            w->switches = waiting_switches();
        w->polls_on_ns = now;
        w->gave_core = 0;
    }
    const int64_t took_ns = yield_for(w, now);
    w->gave_core |= took_ns > SWITCHES_NS;
    if (took_ns > WAITING_LONG_LOOK_NS)
        rest_longer(&w->no_poll_until_ns, &w->no_poll_ns, NO_POLL_LEAST_NS, now);
    return 1;
}

/* What came as soon as another rank had the core, which may have waited for this thread to stop spinning, says that to
 * spin was in vain. Whether it had is asked only if a yield took so long that it may have: that is a system call, too,
 * and the caller waits. */
void waiting_polled(struct waiting *w)
{
    int64_t now = clock_now_ns();
    int is_soon = now - w->polls_on_ns < w->spin_ns;
    w->polls_on_ns = 0;
    if (is_soon && w->gave_core && waiting_switches() != w->switches)
        in_vain(w, now);
    else
        waiting_paid(w);
}

int waiting_look_again(struct waiting *w, int64_t now, int64_t idle_since)
{
    if (waiting_rests(w, now))
        return 0;
    if (now - idle_since < (w->yields ? w->yield_ns : w->spin_ns)) {
        if (w->yields)
            waiting_yield(w, now);
        return 1;
    }
    if (waiting_polls_on(w, now, idle_since))
        return 1;
    int has_polled = w->polls_on_ns || (w->poll_ns && now >= w->poll_until_ns); /* perhaps not in this wait */
    if (w->spin_ns && !has_polled) /* yielding alone keeps the core from no other rank */
        in_vain(w, now);
    return 0;
}
