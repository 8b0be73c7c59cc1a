/* The part of the suite in which a client waits: woken, out of time, or closed; and several threads at once. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "conformance.h"
#include "store/store.h" /* only to see that a thread is inside a call */

/* ---- A thread that waits ---- */

enum how { BY_GET, BY_WAIT, BY_MULTI_GET, BY_POP, BY_BARRIER, HOW_COUNT };

struct waiter {
    pthread_t thread;
    comm_store *store;
    enum how how;
    const char *keys[3];
    const char *const *many; /* in the place of `keys`, by BY_WAIT; or NULL */
    size_t count;
    int64_t timeout_ms;
    comm_status status;
    char text[1024];
    void *data;
    size_t bytes;
};

static void *waiter_main(void *context)
{
    struct waiter *w = context;
    void *data[3] = { NULL, NULL, NULL };
    size_t bytes[3] = { 0, 0, 0 };
    switch (w->how) {
    case BY_GET:
        w->status = comm_store_get(w->store, w->keys[0], w->timeout_ms, &data[0], &bytes[0]);
        break;
    case BY_WAIT:
        w->status = comm_store_wait(w->store, w->many ? w->many : w->keys, w->count, w->timeout_ms);
        break;
    case BY_MULTI_GET:
        w->status = comm_store_multi_get(w->store, w->keys, w->count, w->timeout_ms, data, bytes);
        break;
    case BY_POP:
        w->status = comm_store_queue_pop(w->store, w->keys[0], w->timeout_ms, &data[0], &bytes[0]);
        break;
    default:
        w->status = comm_store_barrier(w->store, w->keys[0], 3, w->timeout_ms);
        break;
    }
    if (w->status != COMM_OK)
        snprintf(w->text, sizeof w->text, "%s", comm_last_error());
    w->data = data[0];
    w->bytes = bytes[0];
    for (size_t i = 1; i < 3; i++)
        comm_free(data[i]);
    return NULL;
}

static void start(struct waiter *w)
{
    CHECK(pthread_create(&w->thread, NULL, waiter_main, w) == 0);
}

/* `count` threads are inside a call on this handle. */
static void until_inside(comm_store *store, unsigned count)
{
    while (atomic_load(&store->calls) / 2 < count)
        nanosleep(&(struct timespec){ 0, 100000 }, NULL);
}

static void finish(struct waiter *w, comm_status want)
{
    pthread_join(w->thread, NULL);
    if (w->status != want)
        ranks_fail(__FILE__, __LINE__, "the waiter (way %d) ended with %s, not %s: %s", (int)w->how,
                   comm_status_name(w->status), comm_status_name(want), w->text);
    comm_free(w->data);
}

static void check_says(const struct waiter *w, const char *words)
{
    if (!strstr(w->text, words))
        ranks_fail(__FILE__, __LINE__, "'%s' does not say '%s'", w->text, words);
}

/* ---- Woken ---- */

static void put_somehow(comm_store *store, int way, const char *key)
{
    void *data = NULL;
    size_t bytes;
    switch (way) {
    case 0:
        CHECK_OK(comm_store_set(store, key, "7", 1));
        break;
    case 1:
        CHECK_OK(comm_store_add(store, key, 7, NULL));
        break;
    case 2:
        CHECK_OK(comm_store_append(store, key, "7", 1));
        break;
    case 3:
        CHECK_OK(comm_store_compare_set(store, key, "", 0, "7", 1, &data, &bytes));
        break;
    default:
        CHECK_OK(comm_store_multi_set(store, &key, 1, (const void *[]){ "7" }, &(size_t){ 1 }));
        break;
    }
    comm_free(data);
}

static void every_way_of_writing_wakes_who_waits(struct pair *p)
{
    for (int way = 0; way < 5; way++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", way);
        struct waiter w[3] = { { .how = BY_GET }, { .how = BY_WAIT }, { .how = BY_MULTI_GET } };
        for (int i = 0; i < 3; i++) {
            w[i].store = p->a;
            w[i].timeout_ms = i == 1 ? COMM_TIMEOUT_INFINITE : LONG_MS;
            w[i].keys[0] = key;
            w[i].count = 1;
            start(&w[i]);
        }
        until_inside(p->a, 3);
        put_somehow(way % 2 ? p->a : p->b, way, key); /* the same handle is not blocked by its waiters */
        for (int i = 0; i < 3; i++) {
            if (i != 1) {
                pthread_join(w[i].thread, NULL);
                CHECK_STATUS(w[i].status, COMM_OK);
                CHECK(w[i].bytes == 1 && memcmp(w[i].data, "7", 2) == 0);
                comm_free(w[i].data);
            } else {
                finish(&w[i], COMM_OK);
            }
        }
    }
}

static void what_does_not_write_wakes_nobody(struct pair *p)
{
    struct waiter w = { .store = p->a, .how = BY_GET, .keys = { "k" }, .timeout_ms = LONG_MS };
    void *data = NULL;
    size_t bytes;
    start(&w);
    until_inside(p->a, 1);
    CHECK_OK(comm_store_compare_set(p->b, "k", "something", 9, "new", 3, &data, &bytes)); /* makes nothing */
    comm_free(data);
    CHECK_OK(comm_store_delete(p->b, "k", NULL));
    CHECK_OK(comm_store_set(p->b, "other", "x", 1));
    CHECK(!is_there(p->b, "k"));
    CHECK_OK(comm_store_set(p->b, "k", "", 0)); /* an empty value is a value */
    finish(&w, COMM_OK);
}

static void a_wait_for_several_ends_with_the_last(struct pair *p)
{
    struct waiter w = { .store = p->a, .how = BY_WAIT, .keys = { "1", "2", "3" }, .count = 3, .timeout_ms = LONG_MS };
    struct waiter m = {
        .store = p->a, .how = BY_MULTI_GET, .keys = { "1", "2", "1" }, .count = 3, .timeout_ms = LONG_MS
    };
    CHECK_OK(comm_store_set(p->b, "2", "x", 1));
    start(&w);
    start(&m);
    until_inside(p->a, 2);
    CHECK_OK(comm_store_set(p->b, "1", "x", 1));
    finish(&m, COMM_OK);
    CHECK_OK(comm_store_set(p->b, "3", "x", 1));
    finish(&w, COMM_OK);
    CHECK_OK(comm_store_wait(p->a, w.keys, 3, LONG_MS)); /* all there: no waiting */
    CHECK_OK(comm_store_wait(p->a, NULL, 0, LONG_MS));
}

static void many_are_woken_at_once(struct pair *p)
{
    enum { COUNT = 24 };
    struct waiter w[COUNT];
    for (int i = 0; i < COUNT; i++) {
        w[i] = (struct waiter){ .store = i % 2 ? p->a : p->b, .how = BY_GET, .keys = { "k" }, .timeout_ms = LONG_MS };
        start(&w[i]);
    }
    until_inside(p->a, COUNT / 2);
    until_inside(p->b, COUNT / 2);
    CHECK_OK(comm_store_set(p->a, "k", "v", 1));
    for (int i = 0; i < COUNT; i++)
        finish(&w[i], COMM_OK);
}

/* ---- Out of time ---- */

static void a_timeout_names_the_keys_that_are_missing(struct pair *p)
{
    void *data = (void *)8, *several[2] = { NULL, NULL };
    size_t bytes = 4711, lengths[2];
    const char *keys[] = { "is here", "is missing", "too" };
    CHECK_OK(comm_store_set(p->a, "is here", "x", 1));
    settle(p->a);
    CHECK_STATUS(comm_store_get(p->b, "is missing", SHORT_MS, &data, &bytes), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("is missing'");
    CHECK_ERROR_SAYS(" ms");
    CHECK_ERROR_SAYS(comm_store_url(p->b));
    CHECK(data == (void *)8 && bytes == 4711);
    CHECK_STATUS(comm_store_wait(p->b, keys, 3, SHORT_MS), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("2 keys");
    CHECK_ERROR_SAYS("is missing'");
    CHECK_ERROR_SAYS("too'");
    CHECK(!strstr(comm_last_error(), "is here"));
    CHECK_STATUS(comm_store_multi_get(p->b, keys, 2, SHORT_MS, several, lengths), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("1 key ");
    CHECK_ERROR_SAYS("is missing'");
    CHECK_OK(comm_store_set(p->b, "is missing", "y", 1)); /* the handle is as good as before */
    check_text(p->b, "is missing", "y");
    CHECK_OK(comm_store_set_timeout(p->b, SHORT_MS)); /* the handle's own */
    CHECK_STATUS(comm_store_wait(p->b, keys + 2, 1, 0), COMM_ERR_TIMEOUT);
    CHECK_STATUS(comm_store_get(p->b, "too", 0, &data, &bytes), COMM_ERR_TIMEOUT);
    CHECK_OK(comm_store_set(p->a, "too", "z", 1));
    CHECK_OK(comm_store_set_timeout(p->b, LONG_MS));
    check_text(p->b, "too", "z");
}

static void many_missing_keys_make_a_short_text(struct pair *p)
{
    enum { COUNT = 400 };
    static char names[COUNT][16];
    const char *keys[COUNT];
    for (int i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "missing-%d", i);
        keys[i] = names[i];
    }
    CHECK_STATUS(comm_store_wait(p->a, keys, COUNT, SHORT_MS), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("missing-0'");
    CHECK_ERROR_SAYS("more");
    CHECK(strlen(comm_last_error()) < 900);
}

/* More than a server's table of awaited keys begins with, by two clients that wait for them in different order. */
static void over_a_thousand_awaited_keys(struct pair *p)
{
    enum { COUNT = 1500 };
    static char names[COUNT][16];
    static const char *keys[COUNT], *reversed[COUNT];
    struct waiter w = { .store = p->a, .how = BY_WAIT, .many = keys, .count = COUNT, .timeout_ms = LONG_MS };
    struct waiter back = { .store = p->b, .how = BY_WAIT, .many = reversed, .count = COUNT, .timeout_ms = LONG_MS };
    for (int i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "many-%d", i);
        keys[i] = reversed[COUNT - 1 - i] = names[i];
    }
    start(&w);
    start(&back);
    until_inside(p->a, 1);
    until_inside(p->b, 1);
    for (int i = 0; i < COUNT; i++) /* 7 has no divisor with the count in common: each once, in no order of theirs */
        CHECK_OK(comm_store_set(i % 2 ? p->a : p->b, names[i * 7 % COUNT], "x", 1));
    finish(&w, COMM_OK);
    finish(&back, COMM_OK);
    CHECK_OK(comm_store_wait(p->a, keys, COUNT, LONG_MS));
}

static void an_empty_queue_times_out(struct pair *p)
{
    void *data = (void *)8;
    size_t bytes = 4711;
    int64_t timeout_ms = SHORT_MS;
    for (int answers = 0; answers < 3;) {
        CHECK_STATUS(comm_store_queue_pop(p->a, "jobs", timeout_ms, &data, &bytes), COMM_ERR_TIMEOUT);
        CHECK_ERROR_SAYS("jobs'");
        if (strstr(comm_last_error(), "has not answered") && timeout_ms < LONG_MS) { /* a server without a core */
            timeout_ms *= 2;
            continue;
        }
        CHECK_ERROR_SAYS("nothing was pushed to the queue");
        answers++;
    }
    CHECK(data == (void *)8 && bytes == 4711);
    CHECK_OK(comm_store_queue_push(p->a, "jobs", "x", 1)); /* nothing is lost to clients that gave up */
    CHECK_OK(comm_store_queue_pop(p->a, "jobs", LONG_MS, &data, &bytes));
    CHECK(bytes == 1 && *(char *)data == 'x');
    comm_free(data);
}

static void a_barrier_says_how_many_came(struct pair *p)
{
    CHECK_STATUS(comm_store_barrier(p->a, "too few", 3, SHORT_MS), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("too few'");
    CHECK_ERROR_SAYS("1 of 3");
    CHECK_STATUS(comm_store_barrier(p->b, "too few", 3, SHORT_MS), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("2 of 3");
    CHECK_OK(comm_store_barrier(p->b, "too few", 3, LONG_MS));
    CHECK_OK(comm_store_barrier(p->b, "one", 1, LONG_MS));
}

static void bad_timeouts_are_refused(struct pair *p)
{
    void *data = NULL;
    size_t bytes;
    const char *key = "k";
    CHECK_STATUS(comm_store_get(p->a, "k", COMM_STORE_NO_WAIT, &data, &bytes), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_wait(p->a, &key, 1, -2), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_multi_get(p->a, &key, 1, -3, &data, &bytes), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_queue_pop(p->a, "k", -3, &data, &bytes), COMM_ERR_INVALID);
    CHECK_STATUS(comm_store_barrier(p->a, "k", 1, -2), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("-2 ms");
}

/* ---- Closed ---- */

static void closing_ends_the_waits_of_that_handle_alone(struct pair *p)
{
    struct waiter w[HOW_COUNT], other = { .store = p->a, .how = BY_GET, .keys = { "later" }, .timeout_ms = LONG_MS };
    comm_store *handle;
    CHECK_OK(comm_store_clone(p->b, &handle));
    for (int i = 0; i < HOW_COUNT; i++) {
        w[i] = (struct waiter){ .store = handle, .how = (enum how)i, .keys = { "never" }, .count = 1 };
        if (i == BY_BARRIER) /* some stores count at the key itself, which then exists */
            w[i].keys[0] = "never met";
        w[i].timeout_ms = i % 2 ? COMM_TIMEOUT_INFINITE : LONG_MS;
        start(&w[i]);
    }
    start(&other);
    until_inside(handle, HOW_COUNT);
    until_inside(p->a, 1);
    comm_store_close(handle);
    for (int i = 0; i < HOW_COUNT; i++) {
        finish(&w[i], COMM_ERR_ABORTED);
        check_says(&w[i], "closed");
    }
    CHECK_OK(comm_store_set(p->b, "later", "x", 1));
    finish(&other, COMM_OK);
}

static void a_view_is_closed_like_a_store(struct pair *p)
{
    comm_store *view;
    CHECK_OK(comm_store_prefix("view", p->a, &view));
    struct waiter w = { .store = view, .how = BY_GET, .keys = { "never" }, .timeout_ms = COMM_TIMEOUT_INFINITE };
    struct waiter inner = { .store = p->a, .how = BY_GET, .keys = { "view/x" }, .timeout_ms = LONG_MS };
    start(&w);
    start(&inner);
    until_inside(view, 1);
    until_inside(p->a, 1);
    comm_store_close(view);
    finish(&w, COMM_ERR_ABORTED);
    CHECK_OK(comm_store_set(p->b, "view/x", "v", 1));
    finish(&inner, COMM_OK);
}

/* ---- Threads ---- */

enum { THREADS = 4, ROUNDS = 60 };

struct worker {
    pthread_t thread;
    comm_store *store;
    int number;
    int popped;
};

static void run_workers(struct pair *p, int one_handle, void *(*main)(void *), struct worker w[THREADS])
{
    for (int i = 0; i < THREADS; i++) {
        w[i] = (struct worker){ .store = one_handle || i % 2 ? p->a : p->b, .number = i };
        CHECK(pthread_create(&w[i].thread, NULL, main, &w[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(w[i].thread, NULL);
}

static void *work_on_one_handle(void *context)
{
    struct worker *w = context;
    char key[32], next[32], value[64];
    for (int i = 0; i < ROUNDS; i++) {
        snprintf(key, sizeof key, "%d.%d", w->number, i);
        snprintf(next, sizeof next, "%d.%d", (w->number + 1) % THREADS, i);
        int bytes = snprintf(value, sizeof value, "thread %d, round %d", w->number, i);
        CHECK_OK(comm_store_set(w->store, key, value, (size_t)bytes));
        CHECK_OK(comm_store_add(w->store, "count", 1, NULL));
        CHECK_OK(comm_store_append(w->store, "log", "x", 1)); /* all append the same byte */
        bytes = snprintf(value, sizeof value, "thread %d, round %d", (w->number + 1) % THREADS, i);
        check_value(w->store, next, value, (size_t)bytes); /* waits for a neighbour */
        CHECK_OK(comm_store_barrier(w->store, next + strcspn(next, "."), THREADS, LONG_MS));
    }
    return NULL;
}

static void threads_share_a_handle(struct pair *p)
{
    struct worker w[THREADS];
    char all[THREADS * ROUNDS];
    run_workers(p, 1, work_on_one_handle, w);
    int64_t count = 0;
    CHECK_OK(comm_store_add(p->b, "count", 0, &count));
    CHECK(count == THREADS * ROUNDS);
    settle(p->a);
    memset(all, 'x', sizeof all);
    check_value(p->b, "log", all, sizeof all); /* none is lost */
}

static void threads_work_on_two_handles(struct pair *p)
{
    struct worker w[THREADS];
    char all[THREADS * ROUNDS];
    run_workers(p, 0, work_on_one_handle, w);
    settle(p->a);
    settle(p->b);
    memset(all, 'x', sizeof all);
    check_value(p->a, "log", all, sizeof all);
}

static void *push_and_pop(void *context)
{
    struct worker *w = context;
    for (int i = 0; i < ROUNDS; i++) {
        void *data = NULL;
        size_t bytes = 0;
        char item[16], key[32];
        int item_bytes = snprintf(item, sizeof item, "%d", w->number * ROUNDS + i);
        CHECK_OK(comm_store_queue_push(w->store, "q", item, (size_t)item_bytes));
        CHECK_OK(comm_store_queue_pop(w->store, "q", LONG_MS, &data, &bytes));
        snprintf(key, sizeof key, "popped %.10s", (char *)data);
        comm_free(data);
        int64_t times = 0;
        CHECK_OK(comm_store_add(w->store, key, 1, &times));
        CHECK(times == 1); /* each item goes to one */
    }
    return NULL;
}

static void each_item_is_popped_once(struct pair *p)
{
    struct worker w[THREADS];
    void *data = NULL;
    size_t bytes;
    run_workers(p, 0, push_and_pop, w);
    CHECK_STATUS(comm_store_queue_pop(p->a, "q", COMM_STORE_NO_WAIT, &data, &bytes), COMM_ERR_NOT_FOUND);
    for (int i = 0; i < THREADS * ROUNDS; i++) {
        char key[32];
        snprintf(key, sizeof key, "popped %d", i);
        CHECK(is_there(p->a, key));
    }
}

static void *increase_by_compare_set(void *context)
{
    struct worker *w = context;
    char mine[32];
    for (int done = 0; done < ROUNDS / 4;) {
        void *old = NULL, *now = NULL;
        size_t old_bytes, now_bytes;
        CHECK_OK(comm_store_get(w->store, "number", LONG_MS, &old, &old_bytes));
        int bytes = snprintf(mine, sizeof mine, "%d %d.%d", atoi(old) + 1, w->number, done);
        CHECK_OK(comm_store_compare_set(w->store, "number", old, old_bytes, mine, (size_t)bytes, &now, &now_bytes));
        done += now_bytes == (size_t)bytes && memcmp(now, mine, now_bytes) == 0;
        comm_free(old);
        comm_free(now);
    }
    return NULL;
}

static void compare_set_is_atomic(struct pair *p)
{
    struct worker w[THREADS];
    void *data = NULL;
    CHECK_OK(comm_store_set(p->a, "number", "0", 1));
    run_workers(p, 0, increase_by_compare_set, w);
    CHECK_OK(comm_store_get(p->a, "number", LONG_MS, &data, NULL));
    CHECK(atoi(data) == THREADS * (ROUNDS / 4));
    comm_free(data);
}

const struct test_case waiting_cases[] = {
    { "every way of writing wakes who waits", every_way_of_writing_wakes_who_waits },
    { "what does not write wakes nobody", what_does_not_write_wakes_nobody },
    { "a wait for several ends with the last", a_wait_for_several_ends_with_the_last },
    { "many are woken at once", many_are_woken_at_once },
    { "a timeout names the keys that are missing", a_timeout_names_the_keys_that_are_missing },
    { "over a thousand awaited keys", over_a_thousand_awaited_keys },
    { "many missing keys make a short text", many_missing_keys_make_a_short_text },
    { "an empty queue times out", an_empty_queue_times_out },
    { "a barrier says how many came", a_barrier_says_how_many_came },
    { "bad timeouts are refused", bad_timeouts_are_refused },
    { "closing ends the waits of that handle alone", closing_ends_the_waits_of_that_handle_alone },
    { "a view is closed like a store", a_view_is_closed_like_a_store },
    { "threads share a handle", threads_share_a_handle },
    { "threads work on two handles", threads_work_on_two_handles },
    { "each item is popped once", each_item_is_popped_once },
    { "compare_set is atomic", compare_set_is_atomic },
    { NULL, NULL },
};
