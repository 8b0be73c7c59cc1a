/* Where the ranks of an mpirun or srun job meet when MASTER_ADDR and MASTER_PORT are not set.
 *
 * On one host, rank 0 serves on a port that the system chooses and publishes it in a file under $TMPDIR, named after
 * the user and the job. Nothing is ever fixed, so any number of jobs run side by side. The file also holds a token that
 * rank 0's store must answer with: a file that a crashed job left behind leads to a closed port or to a store with
 * another token, and is passed over until rank 0 has written the new one. The last rank to come removes the file.
 *
 * On several hosts there is no common folder to count on. Slurm's variables name the first host, where rank 0 runs; the
 * port is derived from the job's number. The store must answer with that number, so that two jobs whose ports collide
 * fail instead of mixing. */
#include "bootstrap.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/deadline.h"

#define BOOTSTRAP_KEY "libcomm/bootstrap" /* the job's token */
#define BOOTSTRAP_MET_KEY "libcomm/met" /* how many ranks have found rank 0 */
#define BOOTSTRAP_FILE_FORMAT "libcomm meeting 1\n%d\n%32s\n"

enum {
    BOOTSTRAP_FILE_BYTES = 128,
    BOOTSTRAP_PATH_BYTES = 512,
    BOOTSTRAP_TOKEN_BYTES = 33,
    /* One try to reach what the file says: long enough for a busy rank 0, short enough to get past a stale file. */
    BOOTSTRAP_TRY_MS = 2000,
    BOOTSTRAP_POLL_FIRST_US = 500,
    BOOTSTRAP_POLL_MAX_US = 20000,
    /* Below the ports that the system gives to outgoing connections (32768 and up). */
    BOOTSTRAP_PORT_FIRST = 15000,
    BOOTSTRAP_PORT_COUNT = 16000,
};

/* Calls of comm__bootstrap_open so far. All ranks of a job make them in the same order, so the n-th of one rank is the
 * n-th of all. */
static atomic_int bootstrap_count;

static comm_status fail_without_point(const struct comm__launch *launch, const char *why)
{
    return comm__fail(COMM_ERR_INVALID,
                      "rank %d of %d, started by %s, cannot tell where to meet the others: %s; set MASTER_ADDR to rank "
                      "0's host and MASTER_PORT to a free port there, the same for all ranks",
                      launch->rank, launch->world_size, launch->launcher, why);
}

/* ---- The name of the job ---- */

/* The parent of `pid`, its name and when it started, which together with the pid is unique until the next boot. */
static int read_stat(int pid, char name[32], int *ret_parent, uint64_t *ret_started)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    if (bytes <= 0)
        return 0;
    text[bytes] = '\0';
    /* "pid (name) state parent ..."; the name may hold parentheses itself. The start time is the 22nd field. */
    char *open_paren = strchr(text, '('), *close_paren = strrchr(text, ')');
    if (!open_paren || !close_paren)
        return 0;
    snprintf(name, 32, "%.*s", (int)(close_paren - open_paren - 1), open_paren + 1);
    return sscanf(close_paren + 1,
                  " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64, ret_parent,
                  ret_started) == 2;
}

/* Hydra tells its ranks no name of the job; but all of them on this host descend from one of its proxies, however
 * many wrapper scripts are in between. Without /proc (a bare chroot) the nearest ancestor has to be it. */
static int name_job_by_proxy(char *job, size_t capacity)
{
    int pid = getppid(), parent = 0;
    char name[32];
    uint64_t started;
    if (!read_stat(getpid(), name, &parent, &started)) {
        snprintf(job, capacity, "hydra-%d", pid);
        return 1;
    }
    while (pid > 1 && read_stat(pid, name, &parent, &started)) {
        if (strcmp(name, "hydra_pmi_proxy") == 0) {
            snprintf(job, capacity, "hydra-%d.%" PRIu64, pid, started);
            return 1;
        }
        pid = parent;
    }
    return 0;
}

/* ---- Several hosts ---- */

static comm_status check_token(comm_store *store, const char *token, int64_t deadline_ns)
{
    void *data = NULL;
    size_t bytes;
    int64_t left = clock_left_ms(deadline_ns);
    comm_status status = comm_store_get(store, BOOTSTRAP_KEY, left == 0 ? 1 : left, &data, &bytes);
    if (status != COMM_OK)
        return status;
    if (bytes != strlen(token) || memcmp(data, token, bytes) != 0)
        status = comm__fail(COMM_ERR_PROTOCOL, "the store at %s belongs to another job", comm_store_url(store));
    comm_free(data);
    return status;
}

static comm_status meet_at(const char *url, const char *token, const struct comm__launch *launch, int64_t deadline_ns,
                           comm_store **ret_store)
{
    comm_store *store = NULL;
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    options.serve = launch->rank == 0;
    options.timeout_ms = clock_left_ms(deadline_ns);
    if (options.timeout_ms == 0)
        options.timeout_ms = 1;
    comm_status status = comm_store_open(url, &options, &store);
    if (status == COMM_OK && launch->rank == 0)
        status = comm_store_set(store, BOOTSTRAP_KEY, token, strlen(token));
    else if (status == COMM_OK)
        status = check_token(store, token, deadline_ns);
    if (status != COMM_OK) {
        comm_store_close(store);
        return status;
    }
    *ret_store = store;
    return COMM_OK;
}

static comm_status bootstrap_slurm(const struct comm__launch *launch, int ordinal, int64_t deadline_ns,
                                   comm_store **ret_store)
{
    const char *list = getenv("SLURM_STEP_NODELIST");
    if (!list)
        list = getenv("SLURM_NODELIST");
    if (!list)
        list = getenv("SLURM_JOB_NODELIST");
    if (!list)
        return fail_without_point(launch, "SLURM_STEP_NODELIST is not set");
    char host[256], url[300], token[LAUNCH_JOB_BYTES + 16];
    comm__slurm_first_host(list, host, sizeof host);
    if (!host[0] || strchr(host, ':'))
        return fail_without_point(launch, "the first host of SLURM_STEP_NODELIST cannot be read");
    snprintf(token, sizeof token, "%s/%d", launch->job, ordinal);
    int port = BOOTSTRAP_PORT_FIRST + (int)(XXH3_64bits(token, strlen(token)) % BOOTSTRAP_PORT_COUNT);
    snprintf(url, sizeof url, "tcp://%s:%d", host, port);
    comm_status status = meet_at(url, token, launch, deadline_ns, ret_store);
    if (status != COMM_OK)
        return comm__fail_while(status,
                                "meeting at %s (the first host of the job and a port made from its number; set "
                                "MASTER_ADDR and MASTER_PORT to meet elsewhere)",
                                url);
    return COMM_OK;
}

/* ---- One host ---- */

static comm_status publish(const char *path, int32_t port, const char *token)
{
    char temporary[BOOTSTRAP_PATH_BYTES + 8], text[BOOTSTRAP_FILE_BYTES];
    int length = snprintf(text, sizeof text, BOOTSTRAP_FILE_FORMAT, port, token);
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    int fd = mkostemp(temporary, O_CLOEXEC); /* with mode 0600: the token is for this user only */
    if (fd < 0)
        return comm__fail(COMM_ERR_SYSTEM, "making a file like '%s', to tell this host's ranks where to meet: %s",
                          temporary, strerror(errno));
    int failed = write(fd, text, (size_t)length) != length;
    failed |= close(fd) != 0;
    /* Renaming replaces what a crashed job may have left, and no rank reads half a file. */
    if (failed || rename(temporary, path) != 0) {
        int error = errno;
        unlink(temporary);
        return comm__fail(COMM_ERR_SYSTEM, "writing '%s', to tell this host's ranks where to meet: %s", path,
                          strerror(error));
    }
    return COMM_OK;
}

/* 1 if a file of this user's is there and makes sense. Another user's file in a common folder is not to be trusted. */
static int read_published(const char *path, int32_t *ret_port, char token[BOOTSTRAP_TOKEN_BYTES])
{
    char text[BOOTSTRAP_FILE_BYTES];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return 0;
    ssize_t bytes = -1;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid())
        bytes = read(fd, text, sizeof text - 1);
    close(fd);
    if (bytes <= 0)
        return 0;
    text[bytes] = '\0';
    return sscanf(text, BOOTSTRAP_FILE_FORMAT, ret_port, token) == 2 && *ret_port > 0 && *ret_port <= 65535;
}

static comm_status serve_on_host(const char *path, int64_t deadline_ns, const struct comm__launch *launch,
                                 comm_store **ret_store)
{
    unsigned char random[16];
    char token[BOOTSTRAP_TOKEN_BYTES];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return comm__fail(COMM_ERR_SYSTEM, "getrandom: %s", strerror(errno));
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(token + 2 * i, 3, "%02x", random[i]);
    comm_store *store = NULL;
    comm_status status = meet_at("tcp://127.0.0.1:0", token, launch, deadline_ns, &store);
    if (status == COMM_OK)
        status = publish(path, comm_store_port(store), token);
    if (status != COMM_OK) {
        comm_store_close(store);
        return status;
    }
    *ret_store = store;
    return COMM_OK;
}

static void count_in(comm_store *store, const char *path, const struct comm__launch *launch)
{
    int64_t met = 0;
    if (comm_store_add(store, BOOTSTRAP_MET_KEY, 1, &met) != COMM_OK || met != launch->world_size - 1)
        return; /* If the store is gone already, its next user will say so. */
    unlink(path);
    comm_store_delete(store, BOOTSTRAP_MET_KEY, NULL);
    comm_store_delete(store, BOOTSTRAP_KEY, NULL);
}

static comm_status join_on_host(const char *path, int64_t deadline_ns, const struct comm__launch *launch,
                                comm_store **ret_store)
{
    int64_t began_ns = clock_now_ns();
    useconds_t pause_us = BOOTSTRAP_POLL_FIRST_US;
    char token[BOOTSTRAP_TOKEN_BYTES], last[COMM_ERROR_BYTES] = "rank 0 has not written it";
    for (;;) {
        int32_t port;
        if (read_published(path, &port, token)) {
            char url[64];
            int64_t try_ns = clock_deadline_ns(BOOTSTRAP_TRY_MS);
            snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
            if (meet_at(url, token, launch, try_ns < deadline_ns ? try_ns : deadline_ns, ret_store) == COMM_OK) {
                comm__store_set_deadline(*ret_store, deadline_ns);
                count_in(*ret_store, path, launch);
                comm__store_set_deadline(*ret_store, DEADLINE_NEVER);
                return COMM_OK;
            }
            snprintf(last, sizeof last, "%s", comm_last_error());
        }
        if (clock_left_ms(deadline_ns) == 0)
            return comm__fail(COMM_ERR_TIMEOUT,
                              "rank %d of %d timed out after %.1f s of waiting for rank 0 to say in the file '%s' "
                              "where to meet: %s (is "
                              "TMPDIR the same for all ranks?)",
                              launch->rank, launch->world_size, (double)(clock_now_ns() - began_ns) / 1e9, path, last);
        usleep(pause_us);
        pause_us = pause_us * 2 > BOOTSTRAP_POLL_MAX_US ? BOOTSTRAP_POLL_MAX_US : pause_us * 2;
    }
}

static comm_status bootstrap_local(const struct comm__launch *launch, int ordinal, int64_t deadline_ns,
                                   comm_store **ret_store)
{
    char job[LAUNCH_JOB_BYTES], path[BOOTSTRAP_PATH_BYTES];
    snprintf(job, sizeof job, "%s", launch->job);
    if (!job[0] && !name_job_by_proxy(job, sizeof job))
        return fail_without_point(launch, "the launcher's environment has no name for this job");
    const char *folder = getenv("TMPDIR");
    int length = snprintf(path, sizeof path, "%s/libcomm-%u-%016" PRIx64 "-%d", folder && *folder ? folder : "/tmp",
                          (unsigned)geteuid(), XXH3_64bits(job, strlen(job)), ordinal);
    if (length >= (int)sizeof path)
        return fail_without_point(launch, "the path in TMPDIR is too long");
    return launch->rank == 0 ? serve_on_host(path, deadline_ns, launch, ret_store)
                             : join_on_host(path, deadline_ns, launch, ret_store);
}

comm_status comm__bootstrap_open(const struct comm__launch *launch, int64_t deadline_ns, comm_store **ret_store)
{
    int ordinal = atomic_fetch_add_explicit(&bootstrap_count, 1, memory_order_relaxed);
    if (launch->hosts == 1)
        return bootstrap_local(launch, ordinal, deadline_ns, ret_store);
    if (strcmp(launch->launcher, "slurm") == 0 && launch->job[0])
        return bootstrap_slurm(launch, ordinal, deadline_ns, ret_store);
    return fail_without_point(launch, "they may be on several hosts");
}
