/* A plugin with one fault: it wraps tcp, passes everything on, and breaks the rule that COMM_PLANTED_FAULT names.
 * What each fault is, the code at its name says; check.py has the rule that each of them breaks. */
#include <comm/backend.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const comm_host *host;
static const comm_backend *tcp;
static const char *fault;

struct world {
    void *inner, *store;
    int32_t rank, size;
};

struct group {
    void *inner, *token;
    int32_t rank, size;
    pthread_mutex_t lock;
    int aborted;
    struct op *_Atomic ops; /* all, for group_close */
};

struct op {
    struct op *next;
    struct group *group;
    comm_work *work, *inner;
    comm_op op;
};

static int is(const char *name)
{
    return strcmp(fault, name) == 0;
}

static int one_in(int n)
{
    static atomic_int count;
    return atomic_fetch_add(&count, 1) % n == n - 1;
}

static void sleep_ms(int ms)
{
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

static void *sleep_for_ever(void *unused)
{
    (void)unused;
    for (;;)
        pause();
    return NULL;
}

static void start(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, body, argument) == 0)
        pthread_detach(thread);
}

/* ---- After the completion ---- */

struct late {
    volatile char *at;
    const volatile size_t *counts;
    const volatile comm_op *op;
    int ms, writes;
    char value;
};

static void *be_late(void *argument)
{
    struct late *l = argument;
    sleep_ms(l->ms);
    if (l->writes)
        *l->at = l->value;
    else if (l->at)
        l->value = *l->at;
    if (l->counts)
        l->value = (char)l->counts[0];
    if (l->op)
        l->value = (char)l->op->kind;
    free(l);
    return NULL;
}

static void touch_later(struct late l)
{
    struct late *copy = malloc(sizeof *copy);
    *copy = l;
    start(be_late, copy);
}

static void before_completion(struct op *o)
{
    const comm_op *op = &o->op;
    char *out = op->recv.data;
    size_t bytes = op->recv.count * op->element_bytes;
    if (is("wrong_block") && op->kind == COMM_OP_ALL_GATHER && !op->recv.counts && bytes && o->group->size > 1)
        memcpy(out, out + bytes, bytes);
    if (is("flipped_bit") && op->kind == COMM_OP_BROADCAST && bytes)
        out[bytes - 1] ^= 1;
    if (is("late_data") && bytes && out && !op->recv.counts) {
        touch_later((struct late){ .at = out, .ms = 10, .writes = 1, .value = *out });
        *out ^= 0x55;
    }
}

static void after_completion(const comm_op *op)
{
    size_t sent = op->send.count, received = op->recv.count;
    if (is("late_write") && op->recv.data && received && !op->recv.counts)
        touch_later((struct late){ .at = op->recv.data, .ms = 60, .writes = 1, .value = 1 });
    if (is("late_read") && op->send.data && sent && !op->send.counts)
        touch_later((struct late){ .at = op->send.data, .ms = 60 });
    if (is("late_counts") && op->recv.counts)
        touch_later((struct late){ .counts = op->recv.counts, .ms = 5 });
}

static void complete(struct op *o, comm_status status, const char *error)
{
    comm_work *work = o->work;
    comm_op op = o->op;
    if (is("bad_status"))
        host->work_complete(work, 12345, "a status of its own");
    else if (is("ok_with_error"))
        host->work_complete(work, COMM_OK, "all is lost");
    else if (is("no_text") && op.kind == COMM_OP_BARRIER)
        host->work_complete(work, COMM_ERR_BACKEND, NULL);
    else if (is("loss_as_backend") && status == COMM_ERR_PEER_LOST)
        host->work_complete(work, COMM_ERR_BACKEND, error);
    else if (is("mismatch_as_protocol") && status == COMM_ERR_MISMATCH)
        host->work_complete(work, COMM_ERR_PROTOCOL, error);
    else
        host->work_complete(work, status, error);
    if (is("twice"))
        host->work_complete(work, status, error);
    if (status == COMM_OK)
        after_completion(&op);
}

static void is_back(comm_work *inner, comm_status status, const char *error, void *context)
{
    struct op *o = context;
    int32_t source, tag;
    size_t count;
    host->work_facts(inner, &source, &tag, &count);
    if (source >= 0 && !is("no_facts"))
        host->work_received(o->work, source, tag, count);
    before_completion(o);
    if (is("never") && one_in(7))
        return;
    if ((is("abort_ignored") || is("close_leaves") || is("late_after_close")) && status != COMM_OK)
        return;
    if (is("locks"))
        pthread_mutex_lock(&o->group->lock);
    complete(o, status, error);
    if (is("locks"))
        pthread_mutex_unlock(&o->group->lock);
}

/* ---- Worlds and groups ---- */

/* Wait for a key of every rank. */
static void wait_for_all(const struct world *w, const char *what)
{
    char key[60];
    void *data;
    size_t bytes;
    strcpy(key, what);
    strcat(key, "0");
    key[strlen(key) - 1] = (char)('0' + w->rank);
    host->store_set(w->store, key, "x", 1);
    for (int r = 0; r < w->size; r++) {
        key[strlen(key) - 1] = (char)('0' + r);
        if (host->store_get(w->store, NULL, key, 60000, &data, &bytes) == COMM_OK)
            host->free_memory(data);
    }
}

static comm_status world_open(void *context, const comm_world_info *info, void **ret_world)
{
    struct world *w = calloc(1, sizeof *w);
    (void)context;
    if (is("world_null"))
        return COMM_OK;
    if (is("world_silent"))
        return COMM_ERR_SYSTEM;
    w->store = info->store;
    w->rank = info->rank;
    w->size = info->size;
    if (is("world_open_waits"))
        wait_for_all(w, "planted/world/");
    if (is("threads_left"))
        start(sleep_for_ever, NULL);
    if (is("descriptors_left") && open("/dev/null", O_RDONLY | O_CLOEXEC) < 0)
        return host->fail(COMM_ERR_SYSTEM, "/dev/null");
    comm_status status = tcp->world_open(tcp->context, info, &w->inner);
    *ret_world = w;
    return status;
}

static void world_close(void *world, int32_t forked)
{
    struct world *w = world;
    tcp->world_close(w->inner, forked);
    free(w);
}

static comm_status group_open(void *world, const comm_group_info *info, void **ret_state)
{
    struct world *w = world;
    struct group *g = calloc(1, sizeof *g);
    comm_group_info theirs = *info;
    if (is("group_null") && info->parent)
        return COMM_OK;
    if (is("group_open_waits") && info->parent && info->size == 2)
        wait_for_all(w, info->world_ranks[0] ? "planted/a/" : "planted/b/");
    if (is("memory_left") && !malloc(1000))
        return host->fail(COMM_ERR_NO_MEMORY, "nothing");
    g->rank = info->rank;
    g->size = info->size;
    g->token = info->token;
    pthread_mutex_init(&g->lock, NULL);
    theirs.parent = info->parent ? ((struct group *)info->parent)->inner : NULL;
    comm_status status = tcp->group_open(w->inner, &theirs, &g->inner);
    *ret_state = g;
    return status;
}

static void group_abort(void *state, comm_status status, const char *reason)
{
    struct group *g = state;
    g->aborted = 1;
    if (is("abort_sleeps"))
        sleep_ms(2500);
    if (is("abort_ignored"))
        return;
    tcp->group_abort(g->inner, status, reason);
}

static void group_close(void *state, int32_t forked)
{
    struct group *g = state;
    if (forked && is("fork_hangs"))
        sleep_for_ever(NULL);
    if (forked && is("fork_crashes"))
        abort();
    tcp->group_close(g->inner, forked);
    if (forked)
        return;
    for (struct op *o = atomic_load(&g->ops), *next; o; o = next) {
        next = o->next;
        host->work_release(o->inner);
        free(o);
    }
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* ---- Operations ---- */

static comm_status supports(void *state, const comm_op *op)
{
    static atomic_int asked;
    struct group *g = state;
    if (is("supports_flips") && op->kind == COMM_OP_BROADCAST && atomic_fetch_add(&asked, 1) % 2)
        return host->fail(COMM_ERR_UNSUPPORTED, "not every second time");
    if (is("supports_by_rank") && op->kind == COMM_OP_ALL_GATHER && g->rank == 1)
        return host->fail(COMM_ERR_UNSUPPORTED, "not on this rank");
    if (is("supports_threads"))
        start(sleep_for_ever, NULL);
    if (is("supports_silent") && op->kind == COMM_OP_GATHER)
        return COMM_ERR_UNSUPPORTED;
    return tcp->supports ? tcp->supports(g->inner, op) : COMM_OK;
}

/* What touches the op or the thread. */
static void plant_in_submit(struct group *g, const comm_op *op)
{
    static _Thread_local sigset_t set;
    char copy[sizeof *op + 8];
    if (is("changes_op"))
        ((comm_op *)(uintptr_t)op)->tag++;
    if (is("reads_past_op"))
        memcpy(copy, op, op->struct_bytes + 8);
    if (is("keeps_op"))
        touch_later((struct late){ .op = op, .ms = 5 });
    if (is("submit_sleeps"))
        sleep_ms(40);
    if (is("submit_naps"))
        sleep_ms(8);
    if (is("submit_spins"))
        for (int64_t until_ns = host->now_ns() + 500000000; host->now_ns() < until_ns;)
            ;
    if (is("submit_crashes"))
        abort();
    if (is("signal_mask")) {
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &set, NULL);
    }
    if (is("locks")) {
        pthread_mutex_lock(&g->lock);
        pthread_mutex_unlock(&g->lock);
    }
}

static comm_status submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct group *g = state;
    comm_work **theirs = calloc(count, sizeof *theirs);
    const comm_op **list = calloc(count, sizeof *list);
    plant_in_submit(g, ops[0]);
    for (size_t i = 0; i < count; i++) {
        struct op *o = calloc(1, sizeof *o);
        o->group = g;
        o->work = works[i];
        comm_op_copy(&o->op, ops[i]);
        if (host->work_create(g->token, is_back, o, &theirs[i]) != COMM_OK)
            abort();
        o->inner = theirs[i];
        *host->work_slot(works[i]) = o;
        o->next = atomic_exchange(&g->ops, o); /* submits of one group do not overlap */
        if (is("deadlines_not_kept"))
            o->op.timeout_ns = INT64_MAX;
        list[i] = &o->op;
    }
    comm_status status = tcp->submit(g->inner, list, theirs, count);
    if (is("submit_waits") && status == COMM_OK)
        while (!host->work_done(theirs[0]) && !g->aborted)
            tcp->progress(g->inner, theirs[0], host->now_ns() + 10000000);
    if (is("refused_but_done") && status == COMM_OK)
        status = host->fail(COMM_ERR_NO_MEMORY, "nothing was started, it says");
    if (is("submit_silent") && ops[0]->kind == COMM_OP_GATHER)
        status = COMM_ERR_NO_MEMORY;
    if (is("submit_status") && status == COMM_OK)
        status = 777;
    free(theirs);
    free(list);
    return status;
}

static comm_status run(void *state, const comm_op *op, int64_t spin_ns)
{
    (void)state, (void)op, (void)spin_ns;
    if (is("run_sleeps"))
        sleep_ms(40);
    return host->fail(COMM_ERR_UNSUPPORTED, "by submit");
}

static comm_status progress(void *state, comm_work *work, int64_t deadline_ns)
{
    struct group *g = state;
    struct op *o = *host->work_slot(work);
    if (is("progress_fails") && one_in(3))
        return host->fail(COMM_ERR_PROTOCOL, "it could not help");
    if (is("progress_sleeps") && deadline_ns == 0)
        sleep_ms(40);
    if (is("progress_stays"))
        while (!host->work_done(work) && host->now_ns() < deadline_ns)
            tcp->progress(g->inner, o->inner, host->now_ns() + 50000000);
    if (host->work_done(work) || host->work_done(o->inner)) {
        sleep_ms(1);
        return COMM_OK;
    }
    return tcp->progress(g->inner, o->inner, deadline_ns);
}

static void handle(int number)
{
    (void)number;
}

static comm_status query(void *context)
{
    (void)context;
    if (is("query_threads"))
        start(sleep_for_ever, NULL);
    if (is("query_handler"))
        signal(SIGUSR2, handle);
    return COMM_OK;
}

COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *given);
COMM_BACKEND_EXPORT const comm_backend *comm_backend_entry(const comm_host *given)
{
    static comm_backend backend;
    host = given;
    fault = getenv("COMM_PLANTED_FAULT");
    if (!fault)
        fault = "";
    if (host->backend_find("tcp", &tcp) != COMM_OK)
        return NULL;
    if (is("entry_threads"))
        start(sleep_for_ever, NULL);
    backend = (comm_backend){ COMM_BACKEND_INIT,
                              .name = "planted",
                              .version = is("no_version") ? NULL : "1",
                              .license = "Apache-2.0",
                              .devices = "cpu",
                              .traits = tcp->traits,
                              .query = query,
                              .world_open = world_open,
                              .world_close = world_close,
                              .group_open = group_open,
                              .group_abort = group_abort,
                              .group_close = group_close,
                              .supports = supports,
                              .submit = submit,
                              .run = run,
                              .progress = progress };
    return &backend;
}
