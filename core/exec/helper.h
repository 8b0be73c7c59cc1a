/* A backend's helper thread: when it drives, and how long it rests.
 *
 * It looks after ops that no thread waits for, and after all else while no thread drives. In a stream of ops that are
 * submitted and soon waited for it must cost nothing: so it is not woken for each op, but naps while there are such
 * ops, and drives if no thread has driven for a while. Only after a time without them does it park, and has to be
 * woken. From time to time it looks by itself whether still a thread drives: in a long stream of ops more and more
 * seldom, as each look takes the core from a rank. (Every 5 ms that was often enough for the 99th percentile of ops of
 * 10 us between 4 ranks on 2 cores: broadcast of 64 KiB 29 us, and 11 now.) A long rest is followed by a short one, so
 * that the end of a stream is noticed soon after.
 *
 * Where the program computes on all of its cores meanwhile, to wake up for each message would cost it more than the op
 * itself. There a backend may have the helper nap between its turns, and sleep until nothing else; briefly if some
 * turns in a row found something, as more may come soon.
 *
 * A thread whose ops are all there when it calls looks at nothing else. So the helper looks around now and then though
 * a thread drives: for ranks that connect, questions, news of the end of a group, and what is due. */
#ifndef COMM_EXEC_HELPER_H
#define COMM_EXEC_HELPER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include <comm/comm.h>

enum {
    HELPER_NAP_NS = 200000,
    HELPER_AWHILE_NS = 5000000,
    HELPER_DOUBLINGS = 3,  /* the longest rest is so many times twice as long */
    HELPER_SPIN_NS = 20000,
    HELPER_FINDS = 3, /* one op alone must not make the naps brief */
    HELPER_LOOK_AROUND_NS = 100000000,
};

/* What other threads tell it. */
struct helper_signs {
    atomic_int waiter_drives;  /* the lock is held by a waiting thread, which keeps it until its work is done */
    _Atomic int64_t driven_ns; /* when a waiting thread last drove */
    _Atomic int64_t looked_ns; /* when a thread last looked at all that may come */
    atomic_uint runs;          /* ops that were run at once */
    atomic_int has_done;       /* works are done that no thread may wait for, and the core does not know */
};

/* What it remembers. */
struct helper_memory {
    unsigned runs, wakes;
    unsigned rests;   /* in a row, while a thread drove */
    int64_t async_ns; /* when there was last an op that no thread waits for */
};

/* Does a thread drive? Asked before each turn and rest. `wakes`: how often it has been woken, for such an op or
 * something else to do soon. `async_works`: ops that no thread waits for. */
static inline int helper_sees_driver(struct helper_memory *h, const struct helper_signs *s, unsigned wakes,
                                     int async_works, int64_t now)
{
    unsigned runs_before = h->runs;
    int64_t patience = async_works ? HELPER_NAP_NS / 2 : HELPER_AWHILE_NS;
    if (async_works || h->wakes != wakes)
        h->async_ns = now;
    h->wakes = wakes;
    h->runs = atomic_load_explicit(&s->runs, memory_order_relaxed);
    int is_driven = h->runs != runs_before || atomic_load(&s->waiter_drives) ||
                    now - atomic_load_explicit(&s->driven_ns, memory_order_relaxed) < patience;
    if (!is_driven)
        h->rests = 0;
    return is_driven;
}

/* Is there something to do, whoever drives? Then it takes the lock though others want it, but not from a thread that
 * waits: that looks around itself. */
static inline int helper_must_look(const struct helper_signs *s, int64_t now)
{
    return atomic_load(&s->has_done) ||
           now - atomic_load_explicit(&s->looked_ns, memory_order_relaxed) > HELPER_LOOK_AROUND_NS;
}

/* Up to HELPER_NAP_NS it just sleeps, else it may be woken. */
static inline int64_t helper_rest_ns(struct helper_memory *h, const struct helper_signs *s, int is_driven, int64_t now)
{
    if (now - h->async_ns < HELPER_AWHILE_NS || atomic_load(&s->has_done)) {
        h->rests = 0;
        return HELPER_NAP_NS;
    }
    unsigned rests = is_driven ? h->rests++ : 0, doublings = rests / 2;
    if (rests % 2)
        return HELPER_AWHILE_NS;
    return (int64_t)HELPER_AWHILE_NS << (doublings < HELPER_DOUBLINGS ? doublings : HELPER_DOUBLINGS);
}

/* ---- The thread ---- */

struct domain;

/* What the backend that it helps does for it. */
struct helper_ops {
    /* Take the domain's lock: only if it is free (0: it is not), or as other short visitors do. */
    int (*try_lock)(struct domain *d);
    void (*lock)(struct domain *d);
    /* Optional, asked while there are ops that no thread waits for, and none drives: how long to nap after the turn; 0:
     * not, but to sleep until something happens. */
    int64_t (*nap_ns)(struct domain *d, int64_t now);
    /* Look after the domain, with the lock, and release it. Returns for how many ms to sleep then, until something
     * happens; 0 if `is_driven`, which is also said before a nap, or if there is more to do. Before it releases the
     * lock it says in helper->polls whether that is so: a thread that then changes something, or takes what happens for
     * itself, rouses it. */
    int (*turn)(struct domain *d, int is_driven);
    /* What may block, without the lock, until *stop. */
    void (*resolve)(struct domain *d, const atomic_int *stop);
};

struct helper {
    struct helper_signs signs; /* first, beside the lock of the domain: used by each op */
    const struct helper_ops *ops;
    struct domain *domain;
    const atomic_int *async_works; /* of the domain */
    int events;            /* a descriptor that is readable when something has happened; all threads read it */
    atomic_int bell;       /* an eventfd that only the helper reads: no other thread takes its wake-up; -1: none */
    atomic_int has_none;   /* the program has closed both */
    pthread_mutex_t lock;  /* a leaf */
    pthread_cond_t parked; /* its own: a waiting thread that woke it at each op would pay two switches */
    atomic_int is_parked;
    atomic_uint wakes;     /* counts, so that a wake-up just before it sleeps is not lost */
    atomic_int polls;      /* it sleeps at these two, or is about to */
    atomic_int stop;
    pthread_t thread;
    int runs;
    unsigned finds;        /* the backend's, for naps: turns in a row that found something to have come, or done */
};

/* With zeroed memory. `async_works`: ops that no thread waits for. Each helper_init is followed by one helper_stop,
 * whether or not the thread was started. */
void helper_init(struct helper *h, const struct helper_ops *ops, struct domain *d, const atomic_int *async_works);
comm_status helper_start(struct helper *h, int events);
/* If it is parked it wakes up, and drives soon. Nothing after helper_stop. */
void helper_wake(struct helper *h);
/* If it sleeps until something happens it looks again. Nothing after helper_stop. */
void helper_rouse(struct helper *h);
/* In a child of fork(), which has no such thread. */
void helper_close_descriptors(struct helper *h);
/* The program has closed them, and may have others by these numbers. */
void helper_forget_descriptors(struct helper *h);
/* End the thread, and free what the helper has. */
void helper_stop(struct helper *h);

#endif
