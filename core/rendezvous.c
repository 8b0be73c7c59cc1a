/* Turns a URL into a store, a rank and a world size. One row per scheme; users add theirs at run time.
 *
 * Rank and world size are found before the store: in the URL's query, else in the arguments, else from the launcher.
 * Nothing here waits for the whole world to come: comm_init does that, and logs the missing ranks while it waits. */
#include "rendezvous.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "launch.h"
#include "bootstrap.h"
#include "base/url.h"

#define RENDEZVOUS_TIMEOUT_MS ((int64_t)300000) /* a store's default */

/* One call of comm_rendezvous under way. */
struct rendezvous {
    struct comm__url url;
    int32_t rank, world_size; /* -1: not known yet */
    int64_t timeout_ms;
    int64_t deadline_ns;
    int rank_of_process; /* the rank is the launcher's, so other ranks are other processes */
    int rank_0_serves;   /* the store, which ends with it */
};

struct scheme {
    const char *name;
    comm_status (*meet)(struct rendezvous *m, comm_store **ret_store);
};

struct user_scheme {
    struct user_scheme *next;
    comm_rendezvous_fn fn;
    void *context;
    char name[URL_SCHEME_BYTES];
};

static pthread_mutex_t user_lock = PTHREAD_MUTEX_INITIALIZER; /* guards user_schemes; entries are never removed */
static struct user_scheme *user_schemes;

/* ---- Rank and world size ---- */

static comm_status take_arguments(struct rendezvous *m, int32_t rank, int32_t world_size)
{
    const char *url = m->url.base;
    if (world_size < 0)
        return comm__fail(COMM_ERR_INVALID, "rendezvous at %s: world_size is %d; give at least 1, or 0 for 'not given'",
                          url, world_size);
    m->rank = m->url.rank;
    m->world_size = m->url.world_size;
    if (world_size == 0)
        return COMM_OK;
    if (m->world_size >= 0)
        return comm__fail(
            COMM_ERR_INVALID,
            "rendezvous at %s: world_size is given twice, as %d in the URL and as %d in the arguments; leave one out",
            url, m->world_size, world_size);
    if (m->rank >= 0 && rank >= 0)
        return comm__fail(
            COMM_ERR_INVALID,
            "rendezvous at %s: rank is given twice, as %d in the URL and as %d in the arguments; leave one "
            "out (an argument of -1 is none)",
            url, m->rank, rank);
    m->world_size = world_size;
    if (m->rank < 0)
        m->rank = rank;
    return COMM_OK;
}

static comm_status fail_unknown(const struct rendezvous *m, const struct comm__launch *launch)
{
    const char *what = m->rank < 0 ? (m->world_size < 0 ? "rank and world size" : "the rank") : "the world size";
    if (strcmp(launch->launcher, "none") == 0 && strcmp(m->url.scheme, "env") != 0)
        return comm__fail(
            COMM_ERR_NOT_FOUND,
            "rendezvous at %s: %s: give both in the URL, %s?rank=0&world_size=4, or start the program with "
            "a launcher (commrun, torchrun, mpirun, srun), or set RANK and WORLD_SIZE",
            m->url.base, what, m->url.base);
    if (strcmp(launch->launcher, "none") == 0)
        return comm__fail(
            COMM_ERR_NOT_FOUND,
            "rendezvous at %s: %s: no launcher has started this process, and RANK and WORLD_SIZE are not "
            "set; start it with `commrun -n 4 program` (or torchrun, mpirun, srun), or set RANK, WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT",
            m->url.base, what);
    return comm__fail(COMM_ERR_INVALID, "rendezvous at %s: %s: the environment variable %s is not set, though %s is",
                      m->url.base, what, m->rank < 0 ? "RANK" : "WORLD_SIZE", m->rank < 0 ? "WORLD_SIZE" : "RANK");
}

static comm_status find_rank(struct rendezvous *m)
{
    struct comm__launch launch;
    if (m->rank < 0 || m->world_size < 0) {
        comm_status status = comm__launch_find(&launch);
        if (status != COMM_OK)
            return comm__fail_while(status, "rendezvous at %s", m->url.base);
        m->rank_of_process = m->rank < 0;
        if (m->rank < 0)
            m->rank = launch.rank;
        if (m->world_size < 0)
            m->world_size = launch.world_size;
        if (m->rank < 0 || m->world_size < 0)
            return fail_unknown(m, &launch);
    }
    if (m->rank >= m->world_size)
        return comm__fail(COMM_ERR_INVALID, "rendezvous at %s: rank %d in a world of %d; ranks go from 0 to %d",
                          m->url.base, m->rank, m->world_size, m->world_size - 1);
    return COMM_OK;
}

/* ---- Where do we meet ---- */

/* Do the ranks join a store that their launcher serves (torchrun, commrun)? Then none of them serves. */
static int agent_serves(void)
{
    const char *value = getenv("TORCHELASTIC_USE_AGENT_STORE");
    return value && (strcmp(value, "True") == 0 || strcmp(value, "true") == 0 || strcmp(value, "1") == 0);
}

/* After a restart the agent's store may still hold the keys of the ranks that died, so each restart gets its own names:
 * those that PyTorch uses. */
static comm_status prefix_restart(comm_store *store, comm_store **ret_store)
{
    const char *attempt = getenv("TORCHELASTIC_RESTART_COUNT");
    if (!attempt || !*attempt || strcmp(attempt, "0") == 0) {
        *ret_store = store;
        return COMM_OK;
    }
    char prefix[64];
    snprintf(prefix, sizeof prefix, "/worker/attempt_%.32s", attempt);
    comm_status status = comm_store_prefix(prefix, store, ret_store);
    comm_store_close(store); /* the view keeps it open */
    return status;
}

static comm_status meet_tcp(struct rendezvous *m, comm_store **ret_store)
{
    char host[URL_HOST_BYTES];
    int32_t port, agent_port;
    comm_status status = comm__url_host_port(&m->url, host, &port);
    if (status != COMM_OK)
        return status;
    const char *agent_host = getenv("MASTER_ADDR"), *agent_port_text = getenv("MASTER_PORT");
    int agent = agent_serves() && agent_host && agent_port_text && strcmp(agent_host, host) == 0 &&
                comm__url_port("MASTER_PORT", agent_port_text, &agent_port) == COMM_OK && agent_port == port;
    if (port == 0 && (m->world_size > 1 || agent))
        return comm__fail(
            COMM_ERR_INVALID,
            "rendezvous at %s: other ranks cannot find port 0; name a free port, or use commrun, which needs none",
            m->url.base);
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    options.serve = m->rank == 0 && !agent;
    m->rank_0_serves = !agent;
    options.multi_tenant = 1;
    options.timeout_ms = m->timeout_ms;
    if (strcmp(host, "localhost") == 0)
        options.bind = "127.0.0.1"; /* a user who says localhost does not mean to serve the network */
    comm_store *store;
    status = comm_store_open(m->url.base, &options, &store);
    if (status != COMM_OK)
        return comm__fail_while(status, "rank %d of %d %s %s", m->rank, m->world_size,
                                options.serve ? "serving the store at" : "connecting to the store at", m->url.base);
    if (agent)
        return prefix_restart(store, ret_store);
    *ret_store = store;
    return COMM_OK;
}

static comm_status meet_file(struct rendezvous *m, comm_store **ret_store)
{
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    options.timeout_ms = m->timeout_ms;
    options.world_size = m->world_size;
    return comm_store_open(m->url.base, &options, ret_store);
}

/* Ranks that are threads of one process. A world of several ranks that cannot come together here would wait until its
 * time is up. */
static comm_status meet_hash(struct rendezvous *m, comm_store **ret_store)
{
    if (m->world_size > 1 && m->rank_of_process)
        return comm__fail(COMM_ERR_INVALID,
                          "rendezvous at %s: only threads of one process meet there, but rank %d of %d, from the "
                          "environment, is a process; use env://, tcp:// or file://, or give each thread its rank "
                          "(hash://name?rank=0&world_size=4)",
                          m->url.base, m->rank, m->world_size);
    if (m->world_size > 1 && strcmp(m->url.base, "hash://") == 0)
        return comm__fail(COMM_ERR_INVALID,
                          "rendezvous at %s: a hash store without a name is shared with no other rank, so rank %d "
                          "would never meet the other ranks of its world of %d; give it a name, the same for "
                          "all: hash://name",
                          m->url.base, m->rank, m->world_size);
    return meet_file(m, ret_store);
}

static comm_status meet_master(struct rendezvous *m, const char *addr, const char *port_text, comm_store **ret_store)
{
    int32_t port;
    comm_status status = comm__url_port("MASTER_PORT", port_text, &port);
    if (status != COMM_OK)
        return status;
    int bare_ipv6 = strchr(addr, ':') && addr[0] != '[';
    snprintf(m->url.base, sizeof m->url.base, bare_ipv6 ? "tcp://[%.256s]:%d" : "tcp://%.256s:%d", addr, port);
    status = meet_tcp(m, ret_store);
    return status == COMM_OK ? status : comm__fail_while(status, "MASTER_ADDR and MASTER_PORT");
}

static comm_status meet_env(struct rendezvous *m, comm_store **ret_store)
{
    const char *addr = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    if (strcmp(m->url.base, "env://") != 0)
        return comm__fail(COMM_ERR_INVALID, "URL '%s': only a query may follow env://", m->url.base);
    int has_addr = addr && *addr, has_port = port && *port;
    if (has_addr && has_port)
        return meet_master(m, addr, port, ret_store);
    if (has_addr || has_port)
        return comm__fail(COMM_ERR_INVALID,
                          "rendezvous at env://: the environment variable %s is not set, though %s is; set both",
                          has_addr ? "MASTER_PORT" : "MASTER_ADDR", has_addr ? "MASTER_ADDR" : "MASTER_PORT");
    if (m->world_size == 1)
        return comm_store_open("hash://", NULL, ret_store); /* a world of one meets no other rank */
    struct comm__launch launch;
    comm_status status = comm__launch_find(&launch);
    if (status != COMM_OK)
        return status;
    int same = launch.rank == m->rank && launch.world_size == m->world_size;
    if (!same || strcmp(launch.launcher, "env") == 0 || strcmp(launch.launcher, "none") == 0)
        return comm__fail(COMM_ERR_INVALID,
                          "rendezvous at env://: rank %d of %d does not know where to meet the others: set MASTER_ADDR "
                          "to rank 0's host and MASTER_PORT to a free port there, the same for all ranks",
                          m->rank, m->world_size);
    m->rank_0_serves = 1;
    status = comm__bootstrap_open(&launch, m->deadline_ns, ret_store);
    if (status == COMM_OK)
        status = comm_store_set_timeout(*ret_store, m->timeout_ms);
    return status;
}

static const struct scheme schemes[] = {
    { "env", meet_env },
    { "tcp", meet_tcp },
    { "file", meet_file },
    { "hash", meet_hash },
};
enum { SCHEME_COUNT = sizeof schemes / sizeof *schemes };

/* ---- Schemes of the user's ---- */

static const struct user_scheme *find_user_scheme(const char *name, size_t bytes)
{
    pthread_mutex_lock(&user_lock);
    const struct user_scheme *s = user_schemes;
    while (s && (strlen(s->name) != bytes || strncasecmp(s->name, name, bytes) != 0))
        s = s->next;
    pthread_mutex_unlock(&user_lock);
    return s;
}

comm_status comm_rendezvous_register(const char *scheme, comm_rendezvous_fn fn, void *context)
{
    if (!scheme || !fn)
        return comm__fail(COMM_ERR_INVALID, "comm_rendezvous_register: %s is NULL", scheme ? "fn" : "scheme");
    comm_status status = comm__url_check_scheme(scheme, strlen(scheme));
    if (status != COMM_OK)
        return status;
    for (size_t i = 0; i < SCHEME_COUNT; i++)
        if (strcasecmp(schemes[i].name, scheme) == 0)
            return comm__fail(COMM_ERR_INVALID, "the rendezvous scheme '%s' is libcomm's own", scheme);
    struct user_scheme *added = calloc(1, sizeof *added);
    if (!added)
        return comm__fail(COMM_ERR_NO_MEMORY, "registering the rendezvous scheme '%s': out of memory", scheme);
    snprintf(added->name, sizeof added->name, "%s", scheme);
    added->fn = fn;
    added->context = context;
    pthread_mutex_lock(&user_lock);
    int taken = 0;
    for (const struct user_scheme *s = user_schemes; s; s = s->next)
        taken |= strcasecmp(s->name, scheme) == 0;
    if (!taken) {
        added->next = user_schemes;
        user_schemes = added;
    }
    pthread_mutex_unlock(&user_lock);
    if (!taken)
        return COMM_OK;
    free(added);
    return comm__fail(COMM_ERR_INVALID, "the rendezvous scheme '%s' is registered already", scheme);
}

static comm_status meet_user(const struct user_scheme *scheme, const char *url, struct rendezvous *m, int32_t rank,
                             int32_t world_size, comm_store **ret_store)
{
    char error[COMM_ERROR_BYTES] = "";
    comm_status status = scheme->fn(url, rank, world_size, m->timeout_ms, ret_store, &m->rank, &m->world_size,
                                    scheme->context, error, sizeof error);
    error[sizeof error - 1] = '\0';
    if (status != COMM_OK)
        return comm__fail(status, "rendezvous at %s%s: %s", url, status == COMM_ERR_TIMEOUT ? " timed out" : "",
                          error[0] ? error : "its handler failed and gave no reason");
    if (!*ret_store || m->rank < 0 || m->world_size < 1 || m->rank >= m->world_size) {
        comm_store_close(*ret_store);
        return comm__fail(COMM_ERR_INVALID, "rendezvous at %s: its handler gave %s, rank %d of %d", url,
                          *ret_store ? "a store" : "no store", m->rank, m->world_size);
    }
    return COMM_OK;
}

/* ---- The call ---- */

static comm_status meet(struct rendezvous *m, const char *url, int32_t rank, int32_t world_size, comm_store **ret_store)
{
    const char *rest = strstr(url, "://");
    const struct user_scheme *user = rest ? find_user_scheme(url, (size_t)(rest - url)) : NULL;
    if (user)
        return meet_user(user, url, m, rank, world_size, ret_store);
    comm_status status = comm__url_parse(url, &m->url);
    if (status != COMM_OK)
        return status;
    for (size_t i = 0; i < SCHEME_COUNT; i++) {
        if (strcmp(schemes[i].name, m->url.scheme) != 0)
            continue;
        status = take_arguments(m, rank, world_size);
        if (status == COMM_OK)
            status = find_rank(m);
        return status == COMM_OK ? schemes[i].meet(m, ret_store) : status;
    }
    return comm__fail(COMM_ERR_NOT_FOUND,
                      "rendezvous at %s: unknown scheme '%s'; there are env, tcp, file, hash and those added with "
                      "comm_rendezvous_register",
                      url, m->url.scheme);
}

comm_status comm__rendezvous(const char *url, int32_t rank, int32_t world_size, int64_t timeout_ms,
                             comm_store **ret_store, int32_t *ret_rank, int32_t *ret_world_size,
                             int *ret_rank_0_serves)
{
    struct rendezvous *m = calloc(1, sizeof *m);
    if (!m)
        return comm__fail(COMM_ERR_NO_MEMORY, "rendezvous at %s: out of memory", url);
    m->timeout_ms = timeout_ms ? timeout_ms : RENDEZVOUS_TIMEOUT_MS;
    m->deadline_ns = clock_deadline_ns(m->timeout_ms);
    m->rank = m->world_size = -1;
    comm_store *store = NULL;
    comm_status status = meet(m, url, rank, world_size, &store);
    if (status == COMM_OK) {
        *ret_store = store;
        *ret_rank = m->rank;
        *ret_world_size = m->world_size;
        *ret_rank_0_serves = m->rank_0_serves;
    }
    free(m);
    return status;
}

comm_status comm_rendezvous(const char *url, int32_t rank, int32_t world_size, int64_t timeout_ms,
                            comm_store **ret_store, int32_t *ret_rank, int32_t *ret_world_size)
{
    int rank_0_serves;
    if (!url || !ret_store || !ret_rank || !ret_world_size)
        return comm__fail(COMM_ERR_INVALID, "comm_rendezvous: url or a ret_ pointer is NULL");
    if (timeout_ms < 0 && timeout_ms != COMM_TIMEOUT_INFINITE)
        return comm__fail(COMM_ERR_INVALID, "rendezvous at %s: a timeout of %lld ms", url, (long long)timeout_ms);
    return comm__rendezvous(url, rank, world_size, timeout_ms, ret_store, ret_rank, ret_world_size, &rank_0_serves);
}
