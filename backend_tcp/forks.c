#include "forks.h"

#include <pthread.h>

#include "socket.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mesh *meshes; /* all that are open; guarded by `lock` */

void forks_close_descriptors(struct mesh *m)
{
    for (int32_t i = 0; i < m->domain.peers.size; i++)
        socket_close(&m->links[i].fd);
    for (int i = 0; i < TCP_PENDING_CONNS_MAX; i++)
        socket_close(&m->pending[i].fd);
    socket_close(&m->listener);
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
    for (struct mesh *m = meshes; m; m = m->next)
        forks_close_descriptors(m);
    meshes = NULL;
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void forks_enlist(struct mesh *m)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    m->next = meshes;
    meshes = m;
    pthread_mutex_unlock(&lock);
}

void forks_delist(const struct mesh *m)
{
    pthread_mutex_lock(&lock);
    struct mesh **at = &meshes;
    while (*at && *at != m)
        at = &(*at)->next;
    if (*at)
        *at = m->next;
    pthread_mutex_unlock(&lock);
}
