#include "resolve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/own_thread.h"
#include "endpoint.h"
#include "say.h"

enum { FIRST_MS = 20, PATIENT_MS = 200 }; /* so long for one peer, then for the next one */

struct inquiry {
    struct inquiry *next;
    int32_t peer;
    resolver_fn tell;
    int64_t give_up_ns;
    char *endpoint;
    char error[256];
};

/* Guarded by `lock`, except what the thread alone uses. */
struct resolver {
    struct mesh *mesh;
    pthread_mutex_t lock;
    pthread_cond_t wanted;
    pthread_t thread;
    int stop;
    struct inquiry *asked, **asked_tail, *answered;
    uv_async_t done; /* closed with the loop */
};

/* In larger worlds the store would be asked while the caller holds the mesh's lock. In smaller ones all ranks have all
 * endpoints, unless COMM_HANDOUT_BYTES is small: then the store gets a millisecond to answer. */
enum { HANDED_OUT_RANKS_MAX = 1024 };

static void recall(struct port *p, int64_t wait_ms)
{
    struct link *l = link_of(p);
    char key[32], *endpoint;
    void *data = NULL;
    size_t bytes = 0;
    snprintf(key, sizeof key, "tcp/%d", (int)p->peer);
    if (l->mesh->domain.peers.size > HANDED_OUT_RANKS_MAX ||
        exec_host->store_get(l->mesh->store, NULL, key, wait_ms, &data, &bytes) != COMM_OK)
        return;
    endpoint = strndup(data, bytes);
    if (endpoint)
        endpoint_read(l, endpoint);
    free(endpoint);
    exec_host->free_memory(data);
}

void resolver_recall(struct port *p)
{
    recall(p, 1);
}

void resolver_recall_card(struct port *p)
{
    recall(p, COMM_HANDED_OUT);
}

/* ---- In the thread ---- */

/* 1 if there is an answer, good or bad; 0: not yet. */
static int ask_store(struct mesh *m, struct inquiry *q, int64_t wait_ms)
{
    char key[32];
    void *data = NULL;
    size_t bytes = 0;
    snprintf(key, sizeof key, "tcp/%d", (int)q->peer);
    comm_status status = exec_host->store_get(m->store, NULL, key, wait_ms, &data, &bytes);
    if (status == COMM_OK && !(q->endpoint = strndup(data, bytes)))
        snprintf(q->error, sizeof q->error, "no memory");
    exec_host->free_memory(data);
    if (status != COMM_OK)
        snprintf(q->error, sizeof q->error, "%s", exec_host->last_error());
    return status != COMM_ERR_TIMEOUT || clock_now_ns() >= q->give_up_ns;
}

static void put_last(struct resolver *r, struct inquiry *q)
{
    q->next = NULL;
    *r->asked_tail = q;
    r->asked_tail = &q->next;
}

static void *resolver_main(void *context)
{
    struct resolver *r = context;
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        struct inquiry *q = r->asked;
        if (!q) {
            pthread_cond_wait(&r->wanted, &r->lock);
            continue;
        }
        r->asked = q->next;
        if (!r->asked)
            r->asked_tail = &r->asked;
        int others_wait = r->asked != NULL;
        pthread_mutex_unlock(&r->lock);
        int answered = ask_store(r->mesh, q, others_wait ? FIRST_MS : PATIENT_MS);
        pthread_mutex_lock(&r->lock);
        if (!answered) {
            put_last(r, q);
            continue;
        }
        q->next = r->answered;
        r->answered = q;
        uv_async_send(&r->done);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* ---- With the mesh's lock ---- */

static void on_done(uv_async_t *done)
{
    struct resolver *r = done->data;
    pthread_mutex_lock(&r->lock);
    struct inquiry *q = r->answered;
    r->answered = NULL;
    pthread_mutex_unlock(&r->lock);
    while (q) {
        struct inquiry *next = q->next;
        q->tell(r->mesh, q->peer, q->endpoint, q->error);
        free(q->endpoint);
        free(q);
        q = next;
    }
}

static struct resolver *start(struct mesh *m)
{
    struct resolver *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->mesh = m;
    r->asked_tail = &r->asked;
    if (uv_async_init(&m->loop, &r->done, on_done) != 0) {
        free(r);
        return NULL;
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wanted, NULL);
    r->done.data = r;
    m->resolver = r; /* from here on resolver_stop and _free know it */
    if (own_thread_create(&r->thread, resolver_main, r) != 0)
        r->stop = 1;
    return r;
}

int resolver_ask(struct mesh *m, int32_t peer, resolver_fn answered)
{
    struct resolver *r = m->resolver ? m->resolver : start(m);
    struct inquiry *q = r && !r->stop ? calloc(1, sizeof *q) : NULL;
    if (!q)
        return 0;
    q->peer = peer;
    q->tell = answered;
    q->give_up_ns = clock_now_ns() + m->connect_ms * 1000000;
    pthread_mutex_lock(&r->lock);
    put_last(r, q);
    pthread_cond_signal(&r->wanted);
    pthread_mutex_unlock(&r->lock);
    return 1;
}

void resolver_stop(struct mesh *m)
{
    struct resolver *r = m->resolver;
    if (!r || r->stop)
        return;
    pthread_mutex_lock(&r->lock);
    r->stop = 1;
    pthread_cond_signal(&r->wanted);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
}

void resolver_free(struct mesh *m)
{
    struct resolver *r = m->resolver;
    if (!r)
        return;
    *r->asked_tail = r->answered;
    while (r->asked) {
        struct inquiry *q = r->asked;
        r->asked = q->next;
        free(q->endpoint);
        free(q);
    }
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->wanted);
    free(r);
}
