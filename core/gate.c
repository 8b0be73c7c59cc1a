/* Waiting for the submission lock. */
#include "gate.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPINS = 100, SLEEP_NS_MOST = 1000000 };

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int try_enter(struct gate *gate)
{
    uint32_t open = GATE_OPEN;
    return atomic_load_explicit(&gate->word, memory_order_relaxed) == GATE_OPEN &&
           atomic_compare_exchange_strong_explicit(&gate->word, &open, GATE_HELD, memory_order_acquire,
                                                   memory_order_relaxed);
}

void comm__gate_wait(struct gate *gate)
{
    for (int i = 0; i < SPINS; i++) {
        if (try_enter(gate))
            return;
        relax();
    }
    /* The mark may be overwritten by a holder that leaves and did not see it. That takes nanoseconds unless the holder
     * is preempted in between; so each sleep is short, and the next round sets the mark again. */
    const struct timespec most = { 0, SLEEP_NS_MOST };
    while (atomic_exchange_explicit(&gate->word, GATE_AWAITED, memory_order_acquire) != GATE_OPEN)
        syscall(SYS_futex, &gate->word, FUTEX_WAIT_PRIVATE, GATE_AWAITED, &most, NULL, 0);
}

/* The address may be another's memory by now: then it is a wake-up for nothing, which every futex must bear. */
void comm__gate_wake(struct gate *gate)
{
    syscall(SYS_futex, &gate->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
