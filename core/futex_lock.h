/* The submission lock of a group: one atomic exchange in, a plain store out. A thread that finds it held spins for a
 * moment, then sleeps. Not fair, and not for a thread that holds it already. */
#ifndef COMM_CORE_FUTEX_LOCK_H
#define COMM_CORE_FUTEX_LOCK_H

#include <stdatomic.h>
#include <stdint.h>

enum { FUTEX_LOCK_FREE = 0, FUTEX_LOCK_HELD = 1, FUTEX_LOCK_AWAITED = 2 }; /* AWAITED: held, and a thread sleeps */

struct futex_lock {
    _Atomic uint32_t word; /* a futex */
};

void comm__futex_lock_wait(struct futex_lock *lock);
void comm__futex_lock_wake(struct futex_lock *lock);

static inline void futex_lock_take(struct futex_lock *lock)
{
    uint32_t open = FUTEX_LOCK_FREE;
    if (!atomic_compare_exchange_strong_explicit(&lock->word, &open, FUTEX_LOCK_HELD, memory_order_acquire,
                                                 memory_order_relaxed))
        comm__futex_lock_wait(lock);
}

/* The look is before the store, as the group may be freed right after it. A thread that begins to wait in between is
 * not seen, and sleeps until its time is over: see comm__futex_lock_wait. */
static inline void futex_lock_release(struct futex_lock *lock)
{
    uint32_t seen = atomic_load_explicit(&lock->word, memory_order_relaxed);
    atomic_store_explicit(&lock->word, FUTEX_LOCK_FREE, memory_order_release);
    if (seen == FUTEX_LOCK_AWAITED)
        comm__futex_lock_wake(lock);
}

#endif
