#include "child.h"

#include <pthread.h>

#include "descriptor.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct arena *arenas; /* all that are open; guarded by `lock` */

void child_close_descriptors(struct arena *a)
{
    for (int32_t i = 0; i < a->domain.peers.size; i++) {
        descriptor_close(&a->duplexes[i].watch.fd);
        descriptor_close(&a->duplexes[i].bell);
    }
    for (int i = 0; i < SHM_PENDING_MAX; i++)
        descriptor_close(&a->pending[i].watch.fd);
    descriptor_close(&a->listener.fd);
    descriptor_close(&a->bell.fd);
    descriptor_close(&a->epoll);
}

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
    for (struct arena *a = arenas; a; a = a->next)
        child_close_descriptors(a);
    arenas = NULL;
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void child_enlist(struct arena *a)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    a->next = arenas;
    arenas = a;
    pthread_mutex_unlock(&lock);
}

void child_delist(const struct arena *a)
{
    pthread_mutex_lock(&lock);
    struct arena **at = &arenas;
    while (*at && *at != a)
        at = &(*at)->next;
    if (*at)
        *at = a->next;
    pthread_mutex_unlock(&lock);
}
