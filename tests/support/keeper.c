/* Keeps ops in an array. */
#include "keeper.h"

#include <pthread.h>
#include <stdlib.h>

enum { KEPT_MAX = 4096 };

comm_status keeper_submits;
comm_status (*keeper_runs)(const comm_op *op, int64_t spin_ns);
_Atomic int keeper_submitted, keeper_asked, keeper_aborted;
const comm_host *keeper_host;
const comm_world_info *keeper_world;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept all[KEPT_MAX];
static int count;

int keeper_count(void)
{
    pthread_mutex_lock(&lock);
    int n = count;
    pthread_mutex_unlock(&lock);
    return n;
}

struct kept keeper_take(int i)
{
    pthread_mutex_lock(&lock);
    if (i >= count)
        abort();
    struct kept kept = all[i];
    for (count--; i < count; i++)
        all[i] = all[i + 1];
    pthread_mutex_unlock(&lock);
    return kept;
}

void keeper_complete(comm_status status, const char *error)
{
    while (keeper_count() > 0)
        keeper_host->work_complete(keeper_take(0).work, status, error);
}

/* ---- The slots ---- */

static comm_status world_open(void *context, const comm_world_info *info, void **ret_world)
{
    keeper_world = info;
    *ret_world = context;
    return COMM_OK;
}

static void world_close(void *world, int32_t forked)
{
    (void)world, (void)forked;
}

static comm_status group_open(void *world, const comm_group_info *info, void **ret_state)
{
    (void)info;
    *ret_state = world;
    return COMM_OK;
}

static void group_close(void *state, int32_t forked)
{
    (void)state, (void)forked;
}

static void group_abort(void *state, comm_status status, const char *reason)
{
    (void)state;
    keeper_aborted++;
    keeper_complete(status, reason);
}

static comm_status supports(void *state, const comm_op *op)
{
    (void)state, (void)op;
    keeper_asked++;
    return COMM_OK;
}

static comm_status submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t n)
{
    (void)state;
    keeper_submitted++;
    if (keeper_submits != COMM_OK)
        return keeper_host->fail(keeper_submits, "the keeper keeps nothing");
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n; i++) {
        if (count == KEPT_MAX)
            abort();
        all[count++] = (struct kept){ *ops[i], works[i] };
    }
    pthread_mutex_unlock(&lock);
    return COMM_OK;
}

static comm_status run(void *state, const comm_op *op, int64_t spin_ns)
{
    (void)state;
    return keeper_runs ? keeper_runs(op, spin_ns) : keeper_host->fail(COMM_ERR_UNSUPPORTED, "nothing runs");
}

static comm_backend make(const char *name)
{
    static int context;
    return (comm_backend){
        COMM_BACKEND_INIT,
        .name = name,
        .version = "1",
        .license = "Apache-2.0",
        .devices = "cpu,xpu",
        .context = &context,
        .world_open = world_open,
        .world_close = world_close,
        .group_open = group_open,
        .group_close = group_close,
        .group_abort = group_abort,
        .supports = supports,
        .submit = submit,
    };
}

const comm_backend *keeper_entry(const comm_host *host)
{
    static comm_backend backend;
    keeper_host = host;
    backend = make("keeper");
    return &backend;
}

const comm_backend *keeper_run_entry(const comm_host *host)
{
    static comm_backend backend;
    keeper_host = host;
    backend = make("keeper_run");
    backend.run = run;
    return &backend;
}
