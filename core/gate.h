/* The submission lock of a group: one atomic exchange in, a plain store out. Whoever finds it held spins for a moment,
 * then sleeps. Not fair, and not for a thread that holds it already. */
#ifndef COMM_CORE_GATE_H
#define COMM_CORE_GATE_H

#include <stdatomic.h>
#include <stdint.h>

enum { GATE_OPEN = 0, GATE_HELD = 1, GATE_AWAITED = 2 }; /* AWAITED: held, and somebody sleeps */

struct gate {
    _Atomic uint32_t word; /* a futex */
};

void comm__gate_wait(struct gate *gate);
void comm__gate_wake(struct gate *gate);

static inline void gate_enter(struct gate *gate)
{
    uint32_t open = GATE_OPEN;
    if (!atomic_compare_exchange_strong_explicit(&gate->word, &open, GATE_HELD, memory_order_acquire,
                                                 memory_order_relaxed))
        comm__gate_wait(gate);
}

/* The look is before the store, as the group may be freed right after it. Whoever comes to wait in between is not seen,
 * and sleeps until its time is over: see comm__gate_wait. */
static inline void gate_leave(struct gate *gate)
{
    uint32_t seen = atomic_load_explicit(&gate->word, memory_order_relaxed);
    atomic_store_explicit(&gate->word, GATE_OPEN, memory_order_release);
    if (seen == GATE_AWAITED)
        comm__gate_wake(gate);
}

#endif
