/* Waiting for the submission lock. */
#include "futex_lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPINS = 100, SLEEP_NS_MAX = 1000000 };

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int try_take(struct futex_lock *lock)
{
    uint32_t open = FUTEX_LOCK_FREE;
    return atomic_load_explicit(&lock->word, memory_order_relaxed) == FUTEX_LOCK_FREE &&
           atomic_compare_exchange_strong_explicit(&lock->word, &open, FUTEX_LOCK_HELD, memory_order_acquire,
                                                   memory_order_relaxed);
}

void comm__futex_lock_wait(struct futex_lock *lock)
{
    for (int i = 0; i < SPINS; i++) {
        if (try_take(lock))
            return;
        relax();
    }
    /* The mark may be overwritten by a holder that leaves and did not see it. That takes nanoseconds unless the holder
     * is preempted in between; so each sleep is short, and the next round sets the mark again. */
    const struct timespec most = { 0, SLEEP_NS_MAX };
    while (atomic_exchange_explicit(&lock->word, FUTEX_LOCK_AWAITED, memory_order_acquire) != FUTEX_LOCK_FREE)
        syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, FUTEX_LOCK_AWAITED, &most, NULL, 0);
}

/* The address may be another's memory by now: then it is a wake-up for nothing, which every futex must bear. */
void comm__futex_lock_wake(struct futex_lock *lock)
{
    syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
