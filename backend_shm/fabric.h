/* A fabric: opening and closing it, and what its driver does with it. See shm.h. */
#ifndef COMM_SHM_FABRIC_H
#define COMM_SHM_FABRIC_H

#include "base/relax.h"
#include "shm.h"
#include "waiting.h"

/* The duplexes become the domain's ports for ranks of this host, and for those that have none. With zeroed memory;
 * finish frees also what is half made. */
comm_status fabric_init(struct fabric *f, struct domain *d, const struct carrier_driver *driver,
                        const struct carrier_looks *looks, const comm_world_info *info);
void fabric_finish(struct fabric *f);
/* Of a ring between two ranks of a host, if there is memory for it. */
size_t fabric_ring_bytes(const comm_world_info *info);
/* The longest message that is sent before the receiver has asked for it. */
int64_t fabric_eager_bytes(const comm_world_info *info);
/* What reaches outside; close takes it half done. */
comm_status fabric_open(struct fabric *f);
void fabric_close(struct fabric *f);
/* In a child of fork(). */
void fabric_close_descriptors(struct fabric *f);

/* Take in all that lies in the rings; look_around: and new connections. Returns 1 if something has come. */
int fabric_look(struct fabric *f);
int fabric_look_around(struct fabric *f);
void fabric_timer(struct fabric *f, int64_t now_ns);
int64_t fabric_due_ns(const struct fabric *f);
/* Send BYE to the peers that have not got it yet. Returns 1 as long as there is something to deliver. */
int fabric_leave(struct fabric *f);

/* What fabric_look_again does now and then. */
int fabric_look_at_clock(struct fabric *f, int64_t spin_ns, int64_t *until_ns);

/* Yield, if that need not be measured; else 0. Until when to look is not known before the first look at the clock.
 * Inline: after another rank has had the core a processor predicts each return wrongly, and to yield three functions
 * deeper takes 0.1 us longer. */
static inline int fabric_yield_unmeasured(struct fabric *f, int64_t *until_ns)
{
    enum { UNTIL_LATER = -1 };
    struct waiting *w = f->looks.waiting;
    if (atomic_load_explicit(f->looks.contenders, memory_order_relaxed) || !waiting_yield_unmeasured(w))
        return 0;
    if (!*until_ns) {
        *until_ns = UNTIL_LATER;
        waiting_begins(w);
    }
    return 1;
}

/* How often a thread that yields looks before it does.
 * LONG: all that it misses comes from other cores. It looks as long as a line takes from a core that is far, and less
 * than half of a yield. Else two ranks on a core change places for nothing. So a barrier of 4 ranks on 2 near cores
 * takes 1.7 us and not 2.4, and its 99th percentile is 3.7 us and not 5.7.
 * SHORT: it receives short messages of a rank that does not wait for it. Several come while others have its core. So it
 * seldom looks at lines that are about to be written, and its processor asks beforehand for those that it reads. The
 * median of broadcasts of 8 B between 4 ranks on 2 cores far from each other is 0.09 us so, and else 0.18.
 * ONCE: it misses a message of a rank that needs its core. */
enum { FABRIC_LOOKS_ONCE = 1, FABRIC_LOOKS_SHORT = 8, FABRIC_LOOKS_LONG = 32 };

/* For a thread that has the lock and looks for something that takes a moment to come: look again (1), or stop (0),
 * because it has looked for spin_ns, rests, or another thread wants the lock? `turn` counts from 1, *until_ns begins at
 * 0. What comes at once comes before the first look at the clock, which takes half as long as a message. A thread that
 * yields does that after so many `looks`, a power of two. */
static inline int fabric_look_again(struct fabric *f, unsigned turn, unsigned looks, int64_t spin_ns, int64_t *until_ns)
{
    enum { OFTEN = 16 };
    if (waiting_spins(f->looks.waiting) ? turn % OFTEN == 0 : (turn & (looks - 1)) == 0)
        return fabric_yield_unmeasured(f, until_ns) || fabric_look_at_clock(f, spin_ns, until_ns);
    relax();
    return 1;
}

/* A thread does an op at once, and fabric_look_again says that it has looked long enough for what another rank sends.
 * Wait on (1), for as long as it would poll in the engine, or give the op to that (0)? The engine is kept from all else
 * meanwhile, so it must have nothing to do, and no other thread may want the lock or the group. Nor may there be
 * sockets: whether a rank of another host waits for this one to read does not show. */
int fabric_waits_on(struct fabric *f, int64_t idle_since);

/* It has come, in this turn. What is there at the first look was not waited for. */
static inline void fabric_found(const struct fabric *f, unsigned turn, int64_t until_ns)
{
    if (until_ns) {
        waiting_came(f->looks.waiting);
        waiting_anew(f->looks.waiting);
    } else if (turn > 1) {
        waiting_paid(f->looks.waiting);
    }
}

/* With the lock: an op is run at once, so the helper need not look. */
static inline void fabric_runs(const struct fabric *f)
{
    unsigned runs = atomic_load_explicit(f->looks.runs, memory_order_relaxed);
    atomic_store_explicit(f->looks.runs, runs + 1, memory_order_relaxed);
}

#endif
