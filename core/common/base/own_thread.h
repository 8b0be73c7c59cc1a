/* Threads of the library. */
#ifndef COMM_BASE_OWN_THREAD_H
#define COMM_BASE_OWN_THREAD_H

#include <pthread.h>
#include <signal.h>

/* As pthread_create, with all signals blocked: the program's are for its own threads, also for one that blocks them to
 * wait for them. But for those of a fault: they go to the thread that made it, and would end the process without a word
 * of the program's handler. */
static inline int own_thread_create(pthread_t *ret_thread, void *(*main)(void *), void *context)
{
    static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT };
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int failed = pthread_create(ret_thread, NULL, main, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

#endif
