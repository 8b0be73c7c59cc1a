/* Wraps the loopback backend. */
#include "faulty.h"

#include <pthread.h>
#include <stdlib.h>

#include "loopback.h"

atomic_int faulty_fault, faulty_aborts;
comm_status faulty_status;
const char *faulty_text;

static const comm_host *host;
static comm_backend inner;

struct state {
    void *inner, *token;
};

/* Works that are kept, of all groups. */
struct kept {
    struct kept *next;
    struct state *state;
    comm_work *work;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *all_kept;

static void keep(struct state *state, comm_work *work)
{
    struct kept *k = malloc(sizeof *k);
    *k = (struct kept){ NULL, state, work };
    pthread_mutex_lock(&lock);
    k->next = all_kept;
    all_kept = k;
    pthread_mutex_unlock(&lock);
}

/* Of one group, or of all. */
static void complete_kept(const struct state *state, comm_status status, const char *error)
{
    struct kept *mine = NULL, **link = &all_kept;
    pthread_mutex_lock(&lock);
    while (*link) {
        struct kept *k = *link;
        if (state && k->state != state) {
            link = &k->next;
            continue;
        }
        *link = k->next;
        k->next = mine;
        mine = k;
    }
    pthread_mutex_unlock(&lock);
    while (mine) {
        struct kept *k = mine;
        mine = k->next;
        host->work_complete(k->work, status, error);
        free(k);
    }
}

void faulty_complete_kept(void)
{
    complete_kept(NULL, COMM_OK, NULL);
}

static comm_status fail(void)
{
    return faulty_text ? host->fail(faulty_status, faulty_text) : faulty_status;
}

/* ---- The slots ---- */

static comm_status group_open(void *world, const comm_group_info *info, void **ret_state)
{
    if (atomic_load(&faulty_fault) == FAULTY_OPEN)
        return faulty_status == COMM_OK ? COMM_OK : fail();
    struct state *state = calloc(1, sizeof *state);
    state->token = info->token;
    *ret_state = state;
    return inner.group_open(world, info, &state->inner);
}

static void group_abort(void *opaque, comm_status status, const char *reason)
{
    struct state *state = opaque;
    atomic_fetch_add(&faulty_aborts, 1);
    inner.group_abort(state->inner, status, reason);
    if (atomic_load(&faulty_fault) != FAULTY_KEEPS)
        complete_kept(state, status, reason);
}

static void group_close(void *opaque, int32_t forked)
{
    struct state *state = opaque;
    inner.group_close(state->inner, forked);
    free(state);
}

static int is_whole(const comm_op *op)
{
    return op->struct_bytes == sizeof *op && op->kind > 0 && op->device > 0 && op->element_bytes > 0 &&
           op->timeout_ns > 0;
}

static comm_status supports(void *opaque, const comm_op *op)
{
    (void)opaque;
    if (atomic_load(&faulty_fault) == FAULTY_LOOKS && !is_whole(op))
        return host->fail(COMM_ERR_UNSUPPORTED, "the op is not whole");
    return atomic_load(&faulty_fault) == FAULTY_SUPPORTS ? fail() : COMM_OK;
}

/* With a status that does not exist, submit has begun the ops, as the core must reckon. */
static int begins_all_the_same(void)
{
    return faulty_status > 0 || faulty_status < COMM_ERR_BUG;
}

static comm_status submit(void *opaque, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct state *state = opaque;
    int fault = atomic_load(&faulty_fault);
    if (fault == FAULTY_SUBMIT) {
        for (size_t i = 0; begins_all_the_same() && i < count; i++)
            keep(state, works[i]);
        return fail();
    }
    if (fault == FAULTY_NOT || fault == FAULTY_SUPPORTS || fault == FAULTY_LOOKS)
        return inner.submit(state->inner, ops, works, count);
    for (size_t i = 0; i < count; i++)
        if (fault == FAULTY_COMPLETES)
            host->work_complete(works[i], faulty_status, faulty_text);
        else
            keep(state, works[i]);
    if (fault == FAULTY_ENDS_GROUP)
        host->group_failed(state->token, faulty_status, faulty_text);
    return COMM_OK;
}

static comm_status progress(void *opaque, comm_work *work, int64_t deadline_ns)
{
    (void)opaque, (void)work, (void)deadline_ns;
    return atomic_load(&faulty_fault) == FAULTY_PROGRESS ? fail() : COMM_OK;
}

static comm_backend make(const comm_host *given, const char *name)
{
    host = given;
    inner = *loopback_entry(given);
    comm_backend backend = inner;
    backend.name = name;
    backend.group_open = group_open;
    backend.group_abort = group_abort;
    backend.group_close = group_close;
    backend.supports = supports;
    backend.submit = submit;
    return backend;
}

const comm_backend *faulty_entry(const comm_host *given)
{
    static comm_backend backend;
    backend = make(given, "faulty");
    return &backend;
}

const comm_backend *faulty_driven_entry(const comm_host *given)
{
    static comm_backend backend;
    backend = make(given, "faulty_driven");
    backend.progress = progress;
    return &backend;
}
