#include "forked.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct forked *listed; /* guarded by `lock` */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void)
{
    for (struct forked *f = listed; f; f = f->next)
        f->close(f);
    listed = NULL;
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void forked_enlist(struct forked *f, void (*close)(struct forked *f))
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    f->close = close;
    f->next = listed;
    listed = f;
    pthread_mutex_unlock(&lock);
}

void forked_delist(const struct forked *f)
{
    pthread_mutex_lock(&lock);
    struct forked **at = &listed;
    while (*at && *at != f)
        at = &(*at)->next;
    if (*at)
        *at = f->next;
    pthread_mutex_unlock(&lock);
}
