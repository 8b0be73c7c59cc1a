/* The count of forks; the child handler runs in the child's only thread. */
#include "fork.h"

#include <pthread.h>

#include "watchdog.h"

_Atomic uint32_t comm__fork_generation;

static void in_child(void)
{
    atomic_fetch_add_explicit(&comm__fork_generation, 1, memory_order_relaxed);
    comm__watchdog_forked();
}

static void watch(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

void comm__fork_watch(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch);
}
