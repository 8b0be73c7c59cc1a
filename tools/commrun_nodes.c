/* Several hosts, one commrun on each: which ranks each has, and an end that all of them learn.
 *
 * Everything goes through the store that node 0 serves, under commrun/. A node says how many ranks it brings, and reads
 * the others' numbers. One key, commrun/outcome, ends the run: the first failure writes it, or the last node to finish
 * well. Two threads: the watcher waits for that key, the pulse says twice a second that this node lives, and on node 0
 * looks after the others' pulses. The loop's thread hears of them by run->remote only. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commrun.h"

#define OUTCOME "commrun/outcome" /* "STATUS text"; STATUS 0 is success */

enum { JOIN_MS = 300000, JOIN_NEWS_MS = 5000, PULSE_MS = 500, LOST_MS = 6000, LEAVE_MS = 3000, NODE_KEY_BYTES = 64 };

struct nodes {
    struct run *run;
    uv_thread_t watcher, pulse;
    int watching;
    uv_mutex_t lock; /* guards all below */
    uv_cond_t changed;
    int stop;
    int done; /* this node's ranks have ended well */
    int decided; /* outcome holds it */
    char outcome[COMMRUN_TEXT_BYTES];
};

static void node_key(char key[NODE_KEY_BYTES], const char *what, int node)
{
    snprintf(key, NODE_KEY_BYTES, "commrun/%s/%d", what, node);
}

/* ---- Coming together ---- */

static int fail_store(struct run *run, const char *what)
{
    run_fail(run, 1, "%s: %s", what, comm_last_error());
    return -1;
}

static void list_missing(struct run *run, char *text, size_t capacity)
{
    size_t used = 0;
    text[0] = '\0';
    for (int node = 0; node < run->options.node_count && used + 16 < capacity; node++) {
        char key[NODE_KEY_BYTES];
        const char *keys[] = { key };
        int32_t there = 0;
        node_key(key, "ranks", node);
        if (comm_store_check(run->store, keys, 1, &there) == COMM_OK && !there)
            used += (size_t)snprintf(text + used, capacity - used, "%s%d", used ? ", " : "", node);
    }
}

static int wait_for_node(struct run *run, int node, uint64_t began, int *ret_count)
{
    char key[NODE_KEY_BYTES], missing[512];
    void *data;
    size_t bytes;
    node_key(key, "ranks", node);
    for (;;) {
        comm_status status = comm_store_get(run->store, key, JOIN_NEWS_MS, &data, &bytes);
        if (status == COMM_OK)
            break;
        if (status != COMM_ERR_TIMEOUT)
            return fail_store(run, "waiting for the other nodes");
        list_missing(run, missing, sizeof missing);
        uint64_t waited = (uv_hrtime() - began) / 1000000;
        if (waited > JOIN_MS) {
            run_fail(run, 1, "waited %d s for all %d nodes; missing: node %s", JOIN_MS / 1000, run->options.node_count,
                     missing);
            return -1;
        }
        run_say("waiting for node %s of %d", missing, run->options.node_count);
    }
    int of = 0, fields = sscanf(data, "%d ranks, %d nodes", ret_count, &of);
    comm_free(data);
    if (fields == 2 && of == run->options.node_count && *ret_count > 0)
        return 0;
    run_fail(run, 1, "node %d was started with --nnodes %d, this one with --nnodes %d", node, of,
             run->options.node_count);
    return -1;
}

/* Node 0's secret for all, unless every node was given one. */
static int share_secret(struct run *run)
{
    void *data;
    size_t bytes;
    if (run->options.node_rank == 0) {
        if (comm_store_set(run->store, "commrun/job", run->job, strlen(run->job)) != COMM_OK)
            return fail_store(run, "publishing the job's name");
        const char *secret = run->secret_is_given ? "" : run->secret;
        if (comm_store_set(run->store, "commrun/secret", secret, strlen(secret)) != COMM_OK)
            return fail_store(run, "publishing the job's secret");
        return 0;
    }
    if (comm_store_get(run->store, "commrun/secret", 0, &data, &bytes) != COMM_OK)
        return fail_store(run, "asking node 0 for the job's secret");
    int disagree = (bytes > 0) == (run->secret[0] != '\0');
    if (!disagree && bytes > 0)
        snprintf(run->secret, sizeof run->secret, "%.*s", (int)bytes, (const char *)data);
    comm_free(data);
    if (!disagree)
        return 0;
    run_fail(run, 1, "node 0 was started %s --secret-file (or COMM_SECRET), this node %s; do the same on all",
             bytes > 0 ? "without" : "with", bytes > 0 ? "with" : "without");
    return -1;
}

int nodes_join(struct run *run)
{
    char key[NODE_KEY_BYTES], text[64];
    int64_t claims = 0;
    node_key(key, "claim", run->options.node_rank);
    if (comm_store_add(run->store, key, 1, &claims) != COMM_OK)
        return fail_store(run, "joining the other nodes");
    if (claims != 1) {
        run_fail(run, 1, "node rank %d has joined already; give each host its own --node-rank", run->options.node_rank);
        return -1;
    }
    snprintf(text, sizeof text, "%d ranks, %d nodes", run->options.local_count, run->options.node_count);
    node_key(key, "ranks", run->options.node_rank);
    if (comm_store_set(run->store, key, text, strlen(text)) != COMM_OK)
        return fail_store(run, "joining the other nodes");
    uint64_t began = uv_hrtime();
    run->world_size = 0;
    for (int node = 0; node < run->options.node_count; node++) {
        int count = 0;
        if (node == run->options.node_rank)
            run->first_rank = run->world_size;
        if (wait_for_node(run, node, began, &count) != 0)
            return -1;
        run->world_size += count;
    }
    if (share_secret(run) != 0)
        return -1;
    struct nodes *nodes = calloc(1, sizeof *nodes);
    if (!nodes)
        abort();
    nodes->run = run;
    uv_mutex_init(&nodes->lock);
    uv_cond_init(&nodes->changed);
    run->nodes = nodes;
    return 0;
}

/* ---- While the ranks run ---- */

/* The first one to say something is right. 0: the store has not answered. */
static int propose(struct run *run, int status, const char *text)
{
    char value[COMMRUN_TEXT_BYTES + 32];
    void *data = NULL;
    size_t bytes;
    snprintf(value, sizeof value, "%d %s", status, text);
    if (comm_store_compare_set(run->store, OUTCOME, "", 0, value, strlen(value), &data, &bytes) != COMM_OK)
        return 0;
    comm_free(data);
    return 1;
}

static void decide(struct nodes *nodes, const char *text)
{
    uv_mutex_lock(&nodes->lock);
    if (!nodes->decided)
        snprintf(nodes->outcome, sizeof nodes->outcome, "%s", text);
    nodes->decided = 1;
    uv_mutex_unlock(&nodes->lock);
    uv_async_send(&nodes->run->remote);
}

static void watcher_main(void *context)
{
    struct nodes *nodes = context;
    void *data = NULL;
    size_t bytes;
    char text[COMMRUN_TEXT_BYTES];
    comm_status status = comm_store_get(nodes->run->store, OUTCOME, COMM_TIMEOUT_INFINITE, &data, &bytes);
    if (status == COMM_ERR_ABORTED)
        return; /* nodes_leave closes the store */
    if (status == COMM_OK)
        snprintf(text, sizeof text, "%.*s", (int)bytes, (const char *)data);
    else
        snprintf(text, sizeof text, "1 lost node 0: %s", comm_last_error());
    comm_free(data);
    decide(nodes, text);
}

/* Node 0 only: seen[] and since[] are each node's last pulse, and when it changed. */
static void look_after(struct nodes *nodes, int64_t *seen, uint64_t *since)
{
    struct run *run = nodes->run;
    uint64_t now = uv_hrtime();
    for (int node = 1; node < run->options.node_count; node++) {
        char key[NODE_KEY_BYTES], text[128];
        int64_t pulse;
        node_key(key, "pulse", node);
        if (comm_store_add(run->store, key, 0, &pulse) != COMM_OK)
            return;
        if (pulse != seen[node] || since[node] == 0) {
            seen[node] = pulse;
            since[node] = now;
        } else if ((now - since[node]) / 1000000 > LOST_MS && pulse >= 0) {
            snprintf(text, sizeof text, "nothing was heard of node %d for %d s; its host or its commrun is gone", node,
                     LOST_MS / 1000);
            (void)propose(run, 1, text);
        }
    }
}

/* Whoever finishes last finds that all have, and says so. 0: the store has not answered. All of it can be said again:
 * what was not answered in time may have reached the store, or may still do so. */
static int say_done(struct run *run)
{
    const size_t count = (size_t)run->options.node_count;
    char (*names)[NODE_KEY_BYTES] = calloc(count, sizeof *names);
    const char **keys = calloc(count, sizeof *keys);
    int32_t all = 0;
    int said = 0;
    for (size_t i = 0; names && keys && i < count; i++) {
        node_key(names[i], "done", (int)i);
        keys[i] = names[i];
    }
    if (names && keys)
        said = comm_store_set(run->store, names[run->options.node_rank], "", 0) == COMM_OK &&
               comm_store_check(run->store, keys, count, &all) == COMM_OK;
    if (all)
        said = propose(run, 0, "");
    free(names);
    free(keys);
    return said;
}

static void pulse_main(void *context)
{
    struct nodes *nodes = context;
    struct run *run = nodes->run;
    int said_done = 0;
    char key[NODE_KEY_BYTES];
    int64_t value, *seen = calloc((size_t)run->options.node_count, sizeof *seen);
    uint64_t *since = calloc((size_t)run->options.node_count, sizeof *since);
    node_key(key, "pulse", run->options.node_rank);
    uv_mutex_lock(&nodes->lock);
    while (!nodes->stop && seen && since) {
        int done = nodes->done;
        uv_mutex_unlock(&nodes->lock);
        if (done && !said_done)
            said_done = say_done(run);
        if (run->options.node_rank == 0)
            look_after(nodes, seen, since);
        else
            (void)comm_store_add(run->store, key, 1, &value); /* if node 0 is gone, the watcher says so */
        uv_mutex_lock(&nodes->lock);
        if (!nodes->stop && nodes->done == done)
            uv_cond_timedwait(&nodes->changed, &nodes->lock, PULSE_MS * 1000000ull);
    }
    uv_mutex_unlock(&nodes->lock);
    free(seen);
    free(since);
}

int nodes_watch(struct run *run)
{
    struct nodes *nodes = run->nodes;
    (void)comm_store_set_timeout(run->store, COMMRUN_STORE_MS);
    if (uv_thread_create(&nodes->watcher, watcher_main, nodes) != 0 ||
        uv_thread_create(&nodes->pulse, pulse_main, nodes) != 0) {
        run_fail(run, 1, "starting a thread failed");
        return -1;
    }
    nodes->watching = 1;
    return 0;
}

void nodes_failed(struct run *run)
{
    (void)propose(run, run->exit_status, run->failure);
}

/* Said by the pulse: the loop does not wait for the store. */
void nodes_succeeded(struct run *run)
{
    struct nodes *nodes = run->nodes;
    uv_mutex_lock(&nodes->lock);
    nodes->done = 1;
    uv_cond_signal(&nodes->changed);
    uv_mutex_unlock(&nodes->lock);
}

int nodes_outcome(struct run *run)
{
    struct nodes *nodes = run->nodes;
    uv_mutex_lock(&nodes->lock);
    int decided = nodes->decided;
    if (decided && !run->failed) {
        char *text;
        long status = strtol(nodes->outcome, &text, 10);
        if (status != 0) {
            run->failed = 1;
            run->exit_status = (int)status;
            snprintf(run->failure, sizeof run->failure, "%s", text + (*text == ' '));
        }
    }
    uv_mutex_unlock(&nodes->lock);
    return decided;
}

/* Node 0 keeps serving until all have read the outcome, or for a moment at most. */
void nodes_leave(struct run *run)
{
    struct nodes *nodes = run->nodes;
    int64_t left = 0;
    const char *keys[] = { "commrun/left" };
    int told = comm_store_add(run->store, "commrun/leaving", 1, &left) == COMM_OK;
    if (told && left == run->options.node_count)
        (void)comm_store_set(run->store, keys[0], "", 0);
    if (told && run->options.node_rank == 0)
        (void)comm_store_wait(run->store, keys, 1, LEAVE_MS);
    uv_mutex_lock(&nodes->lock);
    nodes->stop = 1;
    uv_cond_signal(&nodes->changed);
    uv_mutex_unlock(&nodes->lock);
    if (nodes->watching)
        uv_thread_join(&nodes->pulse);
    comm_store_close(run->store); /* ends the watcher's wait */
    run->store = NULL;
    if (nodes->watching)
        uv_thread_join(&nodes->watcher);
    free(nodes);
    run->nodes = NULL;
}
