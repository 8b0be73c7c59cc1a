/* How long a thread that waits polls before it sleeps.
 *
 * Spinning is the fastest way to notice a message, but only on a core of one's own. While other programs use the
 * machine the scheduler often puts two ranks on one core. The other rank then runs only when this one stops spinning,
 * and each message takes the whole spinning time (over TCP an all_reduce of 8 B 220 us, not 5). So after spinning
 * without result a few times in a row a rank rests: for a while it sleeps in the kernel at once. To try again after
 * each rest costs little. Where it is cheap to yield (shm) it first yields between polls for a while. Ranks that share
 * a core while another one is free are then all runnable, and the scheduler moves one within some milliseconds. Of
 * ranks that sleep in turn it sees only one at a time: it left them there for 60 ms, where an all_reduce of 8 B took
 * 6.6 us. Preemptions by other programs are no reason to rest: measured, ranks on cores of their own that stop
 * spinning for that are 10 to 30 % slower, not faster. Nor is a program's fair share of a core, if waits are short:
 * beside two busy programs of other sessions four ranks on two cores had a 99th percentile of 34 us when they rested
 * after each of its slices, and 14 us without; the mean was 5 us in some runs and 10 to 27 in others, and is 9
 * without.
 *
 * Real programs compute between operations, and one rank is later than the others by more than they spin. A thread that
 * sleeps then takes 10 to 60 us to wake up: an all_reduce of 8 B between two ranks that had computed for 0.2 to 0.6 ms
 * was done 10 to 16 us after the later one had come, and is now after 2. So a thread goes on polling for much longer
 * than it spins, and yields now and then. A program that wants the core gets it at the next yield, which takes long
 * then, and for some time the thread sleeps after spinning, as such programs are left sooner by a thread that wakes up.
 * It takes time from ranks whose control group (version 2) has a limit; there no thread does it.
 */
#ifndef COMM_EXEC_WAITING_H
#define COMM_EXEC_WAITING_H

#include <sched.h>

#include <comm/backend.h>

/* CPU time that the processes of this host's ranks have used together, and on how many cores they run. */
struct waiting_usage {
    int64_t (*of_ranks)(const void *ranks, int32_t *ret_cores); /* -1, or no function: not known */
    const void *ranks;
    int64_t asked_ns, used_ns; /* the last answer */
};

/* CPU time of this process, by which its helper thread knows whether the program computes. */
struct waiting_process {
    int64_t share;             /* of the host's cores, in thousandths */
    int64_t asked_ns, used_ns; /* the last answer */
    int computes;
};

struct waiting {
    int64_t spin_ns, yield_ns; /* how long a thread polls, or polls and yields, before it sleeps */
    int64_t poll_ns;           /* how long in all, if nobody else wants the core: it yields now and then */
    int64_t polls_on_ns;       /* since when it does, in this wait; 0: it does not */
    int64_t poll_until_ns;     /* the end of that; 0: it begins when the next wait is long. See waiting_anew */
    int gave_core;             /* since polls_on_ns a yield took so long that another rank may have run */
    int64_t rest_ns;           /* how long it rests after polling without result */
    int64_t share_ns;          /* how long it yields between polls before that; 0: it does not */
    int64_t yield_until_ns;    /* the end of that; never, if crowded */
    int yields;                /* it does now: seen without a look at the clock */
    int64_t rest_until_ns;
    int64_t long_rest_ns;      /* the latest one after yielding to a program that kept the core */
    int64_t no_poll_until_ns, no_poll_ns; /* the same of polling on */
    int64_t got_back_ns;       /* when it got the core back, after such a yield or a rest */
    int64_t waits;             /* since then */
    int64_t yielded_ns;        /* the last yield that was measured ended then */
    int short_yields;          /* in a row, one soon after the other */
    int unmeasured;            /* the next yields need not be measured */
    struct waiting_usage usage;
    struct waiting_process process;
    int is_crowded;            /* more ranks on this host than cores that they may run on */
    int vain;                  /* times in a row that spinning brought nothing */
    int64_t switches;          /* when this wait began, if `vain` says something; else when it began to poll on */
};

enum { WAITING_LONG_LOOK_NS = 1000000 }; /* a yield of so long gave the core to more than a short message */

/* By the backend's parameters spin_us, yield_us and poll_us. With more ranks on this host than cores the others need
 * this core more than we need to poll again: then a thread yields between polls. */
void waiting_choose(struct waiting *w, const char *backend, const comm_world_info *info);
int32_t waiting_local_ranks(const comm_world_info *info); /* of this world on this host */
/* Are these more than the cores that they may run on, together? The ranks of a host all say the same: what only one of
 * them knows does not count. */
int waiting_shares_cores(const comm_world_info *info);

/* A thread that polls keeps the core meanwhile. */
static inline int waiting_spins(const struct waiting *w)
{
    return w->spin_ns && !w->yields;
}

static inline int waiting_rests(const struct waiting *w, int64_t now)
{
    return now < w->rest_until_ns;
}

int64_t waiting_switches(void); /* how often this thread has left the core to another one */

/* A thread looks for something and has not found it. */
static inline void waiting_begins(struct waiting *w)
{
    w->waits++;
    w->polls_on_ns = 0;
    if (w->vain)
        w->switches = waiting_switches();
}

/* Something came while a thread polled. */
static inline void waiting_paid(struct waiting *w)
{
    w->vain = 0;
}

/* Something came to a thread that polled longer than it spins. */
void waiting_polled(struct waiting *w);

/* Something has come or is done, so that the next wait may poll as long again. A thread that has slept in vain does
 * not. */
static inline void waiting_anew(struct waiting *w)
{
    w->poll_until_ns = 0;
}

/* Something came to a thread that has polled since waiting_begins. If it did not run all the time, that proves nothing:
 * the rank that sent this may have run meanwhile, on this core. */
static inline void waiting_came(struct waiting *w)
{
    if (w->polls_on_ns)
        waiting_polled(w);
    else if (w->vain && waiting_switches() == w->switches)
        waiting_paid(w);
}

/* Have the other threads of this process used its share of the host's cores since this was last asked, all but the half
 * of one? For one thread that asks again and again. */
int waiting_computes(struct waiting *w, int64_t now);

/* Let another rank run. */
void waiting_yield(struct waiting *w, int64_t now);
/* The same without a look at the clock; 0: this yield must be measured, and nothing was done. To look twice at each
 * yield is a twentieth of a barrier of 4 ranks on 2 cores. So while ranks share cores and only short yields were
 * measured, one in eight is. */
static inline int waiting_yield_unmeasured(struct waiting *w)
{
    if (!w->unmeasured)
        return 0;
    w->unmeasured--;
    sched_yield();
    return 1;
}

/* Nothing has come since idle_since: poll for as long as a thread does that has a core of its own (1), or not (0)? */
int waiting_polls_on(struct waiting *w, int64_t now, int64_t idle_since);

/* Nothing has come since idle_since: poll again (1), or sleep (0)? */
int waiting_look_again(struct waiting *w, int64_t now, int64_t idle_since);

#endif
