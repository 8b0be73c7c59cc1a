/* The client's side of cut_off.py: cut_off HOST PORT. Handles are connected and a world is open when the server's host
 * is cut off. No call then takes longer than its limit and PROMISED_MS; the world that is open goes on; and the handles
 * work again when the network does. */
#include <comm/comm.h>
#include <string.h>
#include <unistd.h>

#include "calls.h"
#include "ranks.h"

static const char *url;

/* ---- A world of two threads, whose store is over there ---- */

enum { CLOSE_MS = 4000 }; /* the most that linger_ms and leave_ms allow */

struct rank {
    pthread_t thread;
    int32_t rank;
    comm_store *store;
    comm_group *world;
};

static void sum_up(comm_group *world)
{
    int32_t value = 1;
    CHECK_OK(comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(value == 2);
}

static void *open_world(void *context)
{
    struct rank *r = context;
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    r->store = open_at(url, PLENTY_MS);
    options.store = r->store;
    options.rank = r->rank;
    options.world_size = 2;
    options.timeout_ms = PLENTY_MS;
    CHECK_OK(comm_init(&options, &r->world));
    sum_up(r->world);
    return NULL;
}

static void *work_and_close(void *context)
{
    struct rank *r = context;
    comm_group *group;
    sum_up(r->world);
    CHECK_OK(comm_group_dup(r->world, NULL, &group));
    sum_up(group);
    CHECK_OK(comm_group_close(group));
    int64_t began = now_ms();
    CHECK_OK(comm_group_close(r->world));
    int64_t took_ms = now_ms() - began;
    if (took_ms > CLOSE_MS + PROMISED_MS)
        ranks_fail(__FILE__, __LINE__, "closing the world took %d ms", (int)took_ms);
    return NULL;
}

static void start_both(struct rank ranks[2], void *(*fn)(void *))
{
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&ranks[i].thread, NULL, fn, &ranks[i]) == 0);
}

static void join_both(struct rank ranks[2])
{
    for (int i = 0; i < 2; i++)
        pthread_join(ranks[i].thread, NULL);
}

/* ---- comm_init ---- */

/* Of rank 1 of 2, by this store or, with NULL, by the URL: the other one does not come. */
static comm_status call_init(comm_store *store, int64_t limit_ms)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    options.name = "later";
    options.rendezvous = store ? NULL : url;
    options.store = store;
    options.rank = 1;
    options.world_size = 2;
    options.timeout_ms = limit_ms;
    return comm_init(&options, &world);
}

static void end_init(struct run *r, const char *when)
{
    pthread_join(r->thread, NULL);
    run_check(r, when);
    if (run_is_late(r))
        fail_late(r, when);
}

static void ask(const char *what)
{
    char line[20];
    puts(what);
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

int main(int count, char **arguments)
{
    static const struct call init = { "comm_init", call_init };
    static comm_store *handles[2][CALL_COUNT];
    struct rank ranks[2] = { { .rank = 0 }, { .rank = 1 } };
    struct run waits, begins[2];
    char text[100];
    if (count != 3)
        return 2;
    alarm(100);
    calls_host = arguments[1];
    snprintf(text, sizeof text, "tcp://%s:%s", arguments[1], arguments[2]);
    url = text;
    open_handles(url, NULL, handles);
    start_both(ranks, open_world);
    join_both(ranks);
    comm_store *store = open_at(url, PLENTY_MS), *another = open_at(url, PLENTY_MS);
    run_start(&waits, &init, another, 6 * LONGER_MS);
    CHECK_OK(comm_store_wait(store, (const char *[]){ "comm/later/0/joined" }, 1, PLENTY_MS));
    ask("connected");
    start_both(ranks, work_and_close);
    check_all("cut off", handles);
    run_start(&begins[0], &init, store, LONGER_MS);
    run_start(&begins[1], &init, NULL, LONGER_MS);
    end_init(&begins[0], "by a store that is cut off");
    end_init(&begins[1], "at a server that is cut off");
    end_init(&waits, "cut off while it waits");
    join_both(ranks);
    ask("checked");
    check_good_again(handles);
    close_handles(handles);
    comm_store_close(store);
    comm_store_close(another);
    for (int i = 0; i < 2; i++)
        comm_store_close(ranks[i].store);
    return 0;
}
