#include "calls.h"

#include <string.h>

#include "base/clock.h"
#include "ranks.h"

enum { BIG = 8 << 20 };

const char *calls_host = "127.0.0.1";

int64_t now_ms(void)
{
    return clock_now_ns() / 1000000;
}

/* ---- The calls ---- */

static char big[BIG];
static const char *const three[] = { "a", "b", "c" };

static comm_status call_get(comm_store *s, int64_t limit_ms)
{
    void *data;
    return comm_store_get(s, "asked for", limit_ms, &data, NULL);
}

static comm_status call_wait(comm_store *s, int64_t limit_ms)
{
    return comm_store_wait(s, three, 3, limit_ms);
}

static comm_status call_multi_get(comm_store *s, int64_t limit_ms)
{
    void *data[3];
    size_t bytes[3];
    return comm_store_multi_get(s, three, 3, limit_ms, data, bytes);
}

static comm_status call_queue_pop(comm_store *s, int64_t limit_ms)
{
    void *data;
    return comm_store_queue_pop(s, "q", limit_ms, &data, NULL);
}

static comm_status call_pop_at_once(comm_store *s, int64_t limit_ms)
{
    void *data;
    (void)limit_ms;
    return comm_store_queue_pop(s, "q", COMM_STORE_NO_WAIT, &data, NULL);
}

static comm_status call_barrier(comm_store *s, int64_t limit_ms)
{
    return comm_store_barrier(s, "bar", 2, limit_ms);
}

static comm_status call_set(comm_store *s, int64_t limit_ms)
{
    (void)limit_ms;
    comm_status status = COMM_OK;
    /* more than what the kernel takes for a server that does not read */
    for (int i = 0; i < 8 && status == COMM_OK; i++)
        status = comm_store_set(s, "big", big, sizeof big);
    return status;
}

static comm_status call_multi_set(comm_store *s, int64_t limit_ms)
{
    const void *data[] = { big, big, big };
    const size_t bytes[] = { sizeof big, sizeof big, sizeof big };
    (void)limit_ms;
    comm_status status = COMM_OK;
    for (int i = 0; i < 4 && status == COMM_OK; i++)
        status = comm_store_multi_set(s, three, 3, data, bytes);
    return status;
}

static comm_status call_append(comm_store *s, int64_t limit_ms)
{
    (void)limit_ms;
    return comm_store_append(s, "appended", "x", 1);
}

static comm_status call_add(comm_store *s, int64_t limit_ms)
{
    (void)limit_ms;
    return comm_store_add(s, "counted", 1, NULL);
}

static comm_status call_compare_set(comm_store *s, int64_t limit_ms)
{
    void *data;
    (void)limit_ms;
    return comm_store_compare_set(s, "compared", "", 0, "x", 1, &data, NULL);
}

static comm_status call_check(comm_store *s, int64_t limit_ms)
{
    int32_t all;
    (void)limit_ms;
    return comm_store_check(s, three, 3, &all);
}

static comm_status call_delete(comm_store *s, int64_t limit_ms)
{
    (void)limit_ms;
    return comm_store_delete(s, "deleted", NULL);
}

static comm_status call_num_keys(comm_store *s, int64_t limit_ms)
{
    int64_t count;
    (void)limit_ms;
    return comm_store_num_keys(s, &count);
}

static comm_status call_list_keys(comm_store *s, int64_t limit_ms)
{
    char **keys;
    size_t count;
    (void)limit_ms;
    return comm_store_list_keys(s, &keys, &count);
}

static comm_status call_queue_len(comm_store *s, int64_t limit_ms)
{
    int64_t count;
    (void)limit_ms;
    return comm_store_queue_len(s, "q", &count);
}

static comm_status call_clone(comm_store *s, int64_t limit_ms)
{
    comm_store *other;
    (void)limit_ms;
    return comm_store_clone(s, &other);
}

static comm_status call_broadcast(comm_store *s, int64_t limit_ms)
{
    void *data;
    size_t bytes;
    return comm_store_broadcast(s, "cast", "x", 1, 1, 0, 2, limit_ms, &data, &bytes);
}

static comm_status call_all_gather(comm_store *s, int64_t limit_ms)
{
    void *data;
    size_t *bytes;
    return comm_store_all_gather(s, "gathered", "x", 1, 0, 8, limit_ms, &data, &bytes);
}

static comm_status call_all_sum(comm_store *s, int64_t limit_ms)
{
    int64_t sum;
    return comm_store_all_sum(s, "summed", 1, 0, 8, limit_ms, &sum);
}

const struct call calls[CALL_COUNT] = {
    [CALL_GET] = { "get", call_get },
    [CALL_WAIT] = { "wait", call_wait },
    [CALL_MULTI_GET] = { "multi_get", call_multi_get },
    [CALL_QUEUE_POP] = { "queue_pop", call_queue_pop },
    [CALL_POP_AT_ONCE] = { "queue_pop at once", call_pop_at_once },
    [CALL_BARRIER] = { "barrier", call_barrier },
    [CALL_SET] = { "set", call_set },
    [CALL_MULTI_SET] = { "multi_set", call_multi_set },
    [CALL_APPEND] = { "append", call_append },
    [CALL_ADD] = { "add", call_add },
    [CALL_COMPARE_SET] = { "compare_set", call_compare_set },
    [CALL_CHECK] = { "check", call_check },
    [CALL_DELETE] = { "delete", call_delete },
    [CALL_NUM_KEYS] = { "num_keys", call_num_keys },
    [CALL_LIST_KEYS] = { "list_keys", call_list_keys },
    [CALL_QUEUE_LEN] = { "queue_len", call_queue_len },
    [CALL_CLONE] = { "clone", call_clone },
    [CALL_BROADCAST] = { "broadcast", call_broadcast },
    [CALL_ALL_GATHER] = { "all_gather", call_all_gather },
    [CALL_ALL_SUM] = { "all_sum", call_all_sum },
};

/* ---- One call, in a thread ---- */

static void *run_main(void *argument)
{
    struct run *r = argument;
    int64_t began = now_ms();
    r->status = r->call->run(r->store, r->limit_ms);
    r->took_ms = now_ms() - began;
    snprintf(r->text, sizeof r->text, "%s", r->status == COMM_OK ? "" : comm_last_error());
    return NULL;
}

void run_start(struct run *r, const struct call *call, comm_store *store, int64_t limit_ms)
{
    *r = (struct run){ .call = call, .store = store, .limit_ms = limit_ms };
    CHECK(pthread_create(&r->thread, NULL, run_main, r) == 0);
}

int run_is_late(const struct run *r)
{
    return r->took_ms > r->limit_ms + PROMISED_MS;
}

void run_check(const struct run *r, const char *when)
{
    char server[80], connecting[80];
    snprintf(server, sizeof server, "the server at %s port", calls_host);
    snprintf(connecting, sizeof connecting, "connecting to the store at %s port", calls_host);
    int blamed = strstr(r->text, server) || strstr(r->text, connecting);
    if (r->status != COMM_ERR_TIMEOUT || !strstr(r->text, "timed out") || !blamed ||
        strstr(r->text, "did not appear") || strstr(r->text, "has not come"))
        ranks_fail(__FILE__, __LINE__, "%s, %s with %d ms: %s: %s", when, r->call->name, (int)r->limit_ms,
                   comm_status_name(r->status), r->text);
    if (r->took_ms < r->limit_ms - 1)
        ranks_fail(__FILE__, __LINE__, "%s, %s with %d ms took only %d: %s", when, r->call->name, (int)r->limit_ms,
                   (int)r->took_ms, r->text);
}

void fail_late(const struct run *r, const char *when)
{
    ranks_fail(__FILE__, __LINE__, "%s, %s with %d ms took %d: %s", when, r->call->name, (int)r->limit_ms,
               (int)r->took_ms, r->text);
}

/* All at once. A call that is late gets a second chance: the machine may be loaded. */
void check_all(const char *when, comm_store *handles[2][CALL_COUNT])
{
    static struct run runs[2][CALL_COUNT];
    int64_t limits[2] = { BRIEF_MS, LONGER_MS };
    for (int again = 0; again < 2; again++) {
        for (size_t i = 0; i < 2 * CALL_COUNT; i++)
            run_start(&runs[i % 2][i / 2], &calls[i / 2], handles[i % 2][i / 2], limits[i % 2]);
        for (size_t i = 0; i < 2 * CALL_COUNT; i++)
            pthread_join(runs[i % 2][i / 2].thread, NULL);
        for (size_t i = 0; i < 2 * CALL_COUNT; i++) {
            struct run *r = &runs[i % 2][i / 2];
            run_check(r, when);
            if (run_is_late(r)) {
                run_main(r);
                run_check(r, when);
            }
            if (run_is_late(r))
                fail_late(r, when);
        }
    }
}

/* ---- Handles ---- */

comm_store *open_at(const char *url, int64_t timeout_ms)
{
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    comm_store *store;
    options.timeout_ms = timeout_ms;
    CHECK_OK(comm_store_open(url, &options, &store));
    return store;
}

void open_handles(const char *url, const char *prefix, comm_store *handles[2][CALL_COUNT])
{
    for (size_t i = 0; i < 2 * CALL_COUNT; i++) {
        comm_store *store = open_at(url, PLENTY_MS), *view;
        if (prefix) {
            CHECK_OK(comm_store_prefix(prefix, store, &view));
            comm_store_close(store);
            store = view;
        }
        CHECK_OK(comm_store_set_timeout(store, i % 2 ? LONGER_MS : BRIEF_MS));
        handles[i % 2][i / 2] = store;
    }
}

void check_good_again(comm_store *handles[2][CALL_COUNT])
{
    for (size_t i = 0; i < CALL_COUNT; i++) {
        CHECK_OK(comm_store_set_timeout(handles[1][i], PLENTY_MS));
        CHECK_OK(comm_store_add(handles[1][i], "still there", 1, NULL));
    }
}

void close_handles(comm_store *handles[2][CALL_COUNT])
{
    int64_t began = now_ms();
    for (size_t i = 0; i < 2 * CALL_COUNT; i++)
        comm_store_close(handles[i % 2][i / 2]);
    CHECK(now_ms() - began < PROMISED_MS);
}
