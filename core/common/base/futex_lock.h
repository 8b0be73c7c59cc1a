/* A lock of one word: an exchange takes it, a plain store releases it. A thread that finds it held spins for a moment,
 * then sleeps. Not fair, and not for a thread that holds it already. */
#ifndef COMM_BASE_FUTEX_LOCK_H
#define COMM_BASE_FUTEX_LOCK_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/likely.h"
#include "base/relax.h"

enum { FUTEX_LOCK_FREE = 0, FUTEX_LOCK_HELD = 1, FUTEX_LOCK_AWAITED = 2 }; /* AWAITED: held, and a thread sleeps */

struct futex_lock {
    _Atomic uint32_t word; /* a futex; 0: free */
};

/* Take it if it is free; 0: it is not. */
static inline int futex_lock_try(struct futex_lock *lock)
{
    uint32_t open = FUTEX_LOCK_FREE;
    return atomic_compare_exchange_strong_explicit(&lock->word, &open, FUTEX_LOCK_HELD, memory_order_acquire,
                                                   memory_order_relaxed);
}

/* The mark may be overwritten by a holder that releases the lock and did not see it: its store may take as long as the
 * stores before it. So the first sleeps are short, and each round sets the mark again. */
__attribute__((noinline, unused)) static void futex_lock_wait(struct futex_lock *lock)
{
    enum { SPINS = 100, SLEEP_NS_MIN = 20000, SLEEP_NS_MAX = 1000000 };
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&lock->word, memory_order_relaxed) == FUTEX_LOCK_FREE && futex_lock_try(lock))
            return;
        relax();
    }
    struct timespec most = { 0, SLEEP_NS_MIN };
    while (atomic_exchange_explicit(&lock->word, FUTEX_LOCK_AWAITED, memory_order_acquire) != FUTEX_LOCK_FREE) {
        syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, FUTEX_LOCK_AWAITED, &most, NULL, 0);
        if (most.tv_nsec < SLEEP_NS_MAX / 2)
            most.tv_nsec *= 2;
    }
}

/* The address may be another's memory by now: then it is a wake-up for nothing, which every futex must bear. */
__attribute__((noinline, unused)) static void futex_lock_wake(struct futex_lock *lock)
{
    syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static inline void futex_lock_take(struct futex_lock *lock)
{
    if (UNLIKELY(!futex_lock_try(lock)))
        futex_lock_wait(lock);
}

/* For its holder: does a thread wait for it, for longer than a moment? It may not be seen at once, and is also said to
 * a holder that has waited itself. */
static inline int futex_lock_is_awaited(struct futex_lock *lock)
{
    return atomic_load_explicit(&lock->word, memory_order_relaxed) == FUTEX_LOCK_AWAITED;
}

/* The look is before the store, as the lock's memory may be freed right after it. A thread that begins to wait in
 * between is not seen, and sleeps until its time is over: see futex_lock_wait. */
static inline void futex_lock_release(struct futex_lock *lock)
{
    uint32_t seen = atomic_load_explicit(&lock->word, memory_order_relaxed);
    atomic_store_explicit(&lock->word, FUTEX_LOCK_FREE, memory_order_release);
    if (UNLIKELY(seen == FUTEX_LOCK_AWAITED))
        futex_lock_wake(lock);
}

#endif
