/* The servers that this process has in common, by port. A caller that asks for a port that is served already becomes
 * one more user of it: two worlds of one process can then meet at one address, as in PyTorch's multi-tenant stores. */
#include "tcp_shared.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "tcp_listen.h"
#include "tcp_server.h"

struct tcp_shared {
    struct tcp_shared *next;
    struct tcp_server *server;
    pid_t owner; /* a child of fork has the list, and not the server's thread */
    int32_t port;
    int users;
    char bind_to[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list and `users` */
static struct tcp_shared *list;

static comm_status start(const char *bind_to, int32_t port, struct tcp_shared **ret_shared)
{
    int fd;
    comm_status status = tcp_listen(bind_to, port, &fd, &port);
    if (status != COMM_OK)
        return status;
    struct tcp_shared *s = calloc(1, sizeof *s + strlen(bind_to) + 1);
    if (!s) {
        close(fd);
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a store server");
    }
    status = tcp_server_start(fd, &s->server);
    if (status != COMM_OK) {
        free(s);
        return status;
    }
    strcpy(s->bind_to, bind_to);
    s->owner = getpid();
    s->port = port;
    s->next = list;
    list = s;
    *ret_shared = s;
    return COMM_OK;
}

comm_status tcp_shared_serve(const char *bind_to, int32_t *port, struct tcp_shared **ret_shared)
{
    comm_status status = COMM_OK;
    if (!bind_to)
        bind_to = "";
    pthread_mutex_lock(&lock);
    struct tcp_shared *s = *port ? list : NULL;
    while (s && (s->owner != getpid() || s->port != *port || strcmp(s->bind_to, bind_to) != 0))
        s = s->next;
    if (!s)
        status = start(bind_to, *port, &s);
    if (status == COMM_OK) {
        s->users++;
        *port = s->port;
        *ret_shared = s;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void tcp_shared_leave(struct tcp_shared *shared)
{
    if (!shared)
        return;
    pthread_mutex_lock(&lock);
    assert(shared->users > 0);
    int last = --shared->users == 0;
    struct tcp_shared **at = &list;
    while (last && *at != shared)
        at = &(*at)->next;
    if (last) {
        *at = shared->next;
        tcp_server_stop(shared->server); /* under the lock: the next opener finds the port free */
        free(shared);
    }
    pthread_mutex_unlock(&lock);
}
