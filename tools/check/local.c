/* What must be done without the other ranks: they come only when this one is through. And what is left behind. */
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cases.h"
#include "check.h"
#include "gpu.h"
#include "small.h"
#include "watch.h"

static void must(comm_status status, const char *what)
{
    if (status != COMM_OK)
        finding_ends(RULE_result, "%s failed with %s: %s", what, comm_status_name(status), comm_last_error());
}

/* ---- Without the others ---- */

static _Thread_local comm_store *store_of_ranks;

static void opened_key(char key[40], int rank)
{
    snprintf(key, 40, "opened/%d", rank);
}

/* Rank 0 is held in front of the backend's world_open until the others are through. */
static void hold_rank_0(void)
{
    char key[40];
    for (int r = 1; self_rank() == 0 && r < self_size(); r++) {
        const char *one = key;
        opened_key(key, r);
        if (comm_store_wait(store_of_ranks, &one, 1, (int64_t)(settings.patience_s * 500)) != COMM_OK)
            finding(RULE_world_open_local, "world_open on rank %d has not returned while rank 0 was kept from its own",
                    r);
    }
}

static void tell_opened(void)
{
    char key[40];
    opened_key(key, self_rank());
    (void)comm_store_set(store_of_ranks, key, "x", 1);
}

void local_world_open(void)
{
    store_of_ranks = rank_store();
    watch_before_world_open = hold_rank_0;
    watch_after_world_open = tell_opened;
    comm_group *world = open_world(NULL);
    small_do(world, small_kind(world));
    meet(world, "end");
    comm_group_close(world);
    comm_store_close(store_of_ranks);
}

/* Looking at a work is quick, too: comm_work_test asks progress for one round. */
static void must_wait_for_no_other(comm_work *work)
{
    int32_t done = 0;
    for (int i = 0; i < 3 && !done; i++)
        must(comm_work_test(work, &done), "comm_work_test");
}

/* Each rank in turn is the first in each kind: the others begin when its call has returned. */
void local_submit(void)
{
    comm_group *world = open_world(NULL);
    const int32_t *kinds = small_kinds(world);
    for (int k = 0; kinds[k]; k++)
        for (int first = 0; first < self_size(); first++) {
            char key[40];
            struct small s;
            snprintf(key, sizeof key, "%d/%d", (int)kinds[k], first);
            if (self_rank() != first)
                await_told(world, key);
            self_doing("calling the operation of kind %d, rank %d first", (int)kinds[k], first);
            must(small_begin(&s, world, kinds[k], NULL), "an operation");
            if (self_rank() == first) {
                must_wait_for_no_other(s.work);
                tell(world, key);
            }
            must(small_end(&s), "an operation");
        }
    meet(world, "end");
    comm_group_close(world);
}

static void exchange(comm_group *world, size_t bytes, int round)
{
    int32_t size = self_size(), to = (self_rank() + 1) % size, from = (self_rank() + size - 1) % size;
    char key[40];
    uint8_t *out = gpu_buffer(COMM_DEVICE_CPU, bytes), *in = gpu_buffer(COMM_DEVICE_CPU, bytes);
    comm_work *sent, *received;
    memset(out, self_rank() * 16 + round, bytes);
    must(comm_send(world, out, bytes, COMM_DTYPE_U8, to, NULL, &sent), "a send");
    snprintf(key, sizeof key, "sent/%d", round);
    meet(world, key); /* no rank receives before all have sent */
    must(comm_recv(world, in, bytes, COMM_DTYPE_U8, from, NULL, &received), "a receive");
    must(comm_work_wait(received, 0), "a receive");
    must(comm_work_wait(sent, 0), "a send");
    for (size_t i = 0; i < bytes; i++)
        if (in[i] != (uint8_t)(from * 16 + round))
            finding_ends(RULE_result, "byte %zu of a message of %zu from rank %d is %02x, not %02x", i, bytes, from,
                         in[i], (uint8_t)(from * 16 + round));
    comm_work_release(sent);
    comm_work_release(received);
    gpu_buffer_free(COMM_DEVICE_CPU, out);
    gpu_buffer_free(COMM_DEVICE_CPU, in);
}

void local_messages(void)
{
    static const size_t lengths[] = { 0, 1, 1000, 70000, 3000000 };
    comm_group *world = open_world(NULL);
    if (!comm_group_supports(world, COMM_OP_SEND, COMM_DTYPE_U8, 0, COMM_DEVICE_CPU) ||
        !comm_group_supports(world, COMM_OP_RECV, COMM_DTYPE_U8, 0, COMM_DEVICE_CPU))
        skip("the backend has no messages");
    for (int i = 0; i < (int)(sizeof lengths / sizeof *lengths); i++)
        exchange(world, lengths[i], i);
    meet(world, "end");
    comm_group_close(world);
}

static comm_group *group_of(comm_group *world, int32_t a, int32_t b)
{
    const int32_t ranks[] = { a, b };
    comm_group *group;
    must(comm_group_create(world, ranks, 2, NULL, &group), "comm_group_create");
    return group;
}

void local_group_open(void)
{
    comm_group *world = open_world(NULL), *first = NULL, *second = NULL;
    int32_t kind = small_kind(world);
    if (self_rank() == 0) {
        first = group_of(world, 0, 1);
        second = group_of(world, 1, 0);
        tell(world, "made");
    } else if (self_rank() == 1) {
        await_told(world, "made");
        second = group_of(world, 1, 0);
        first = group_of(world, 0, 1);
    }
    for (int i = 0; i < 3 && self_rank() < 2; i++) {
        small_do(first, kind);
        small_do(second, kind);
    }
    if (self_rank() < 2) {
        comm_group_close(first);
        comm_group_close(second);
    }
    meet(world, "end");
    comm_group_close(world);
}

/* Two groups of ranks 0 and 1, which come to them in opposite orders, without waiting in between. */
void local_opposite_orders(void)
{
    comm_group *world = open_world(NULL), *groups[2];
    int32_t kind = small_kind(world);
    struct small s[2];
    for (int i = 0; i < 2 && self_rank() < 2; i++)
        groups[i] = group_of(world, i, 1 - i);
    for (int i = 0; i < 2 && self_rank() < 2; i++) {
        int which = self_rank() == 0 ? i : 1 - i;
        must(small_begin(&s[which], groups[which], kind, NULL), "an operation");
    }
    for (int i = 0; i < 2 && self_rank() < 2; i++) {
        self_doing("waiting for two groups that the ranks use in opposite orders");
        must(small_end(&s[i]), "an operation on one of two groups");
    }
    for (int i = 0; i < 2 && self_rank() < 2; i++)
        comm_group_close(groups[i]);
    meet(world, "end");
    comm_group_close(world);
}

/* ---- Callbacks ---- */

enum { LINKS = 6 };

struct chain {
    comm_group *world;
    int32_t kind;
    struct small small[LINKS];
    atomic_int next, done;
    comm_status status;
};

static void go_on(comm_work *work, comm_status status, void *context)
{
    struct chain *c = context;
    (void)work;
    int next = atomic_fetch_add(&c->next, 1);
    if (status == COMM_OK && next < LINKS)
        status = small_begin(&c->small[next], c->world, c->kind, NULL);
    if (status == COMM_OK && next < LINKS)
        status = comm_work_on_complete(c->small[next].work, go_on, c);
    if (status != COMM_OK || next >= LINKS) {
        c->status = status;
        atomic_store(&c->done, 1);
    }
}

void local_callback(void)
{
    struct chain *c = calloc(1, sizeof *c);
    const struct timespec moment = { 0, 1000000 };
    c->world = open_world(NULL);
    c->kind = small_kind(c->world);
    self_doing("in a chain of operations, each submitted by the callback of the one before");
    must(small_begin(&c->small[0], c->world, c->kind, NULL), "an operation");
    atomic_store(&c->next, 1);
    must(comm_work_on_complete(c->small[0].work, go_on, c), "comm_work_on_complete");
    while (!atomic_load(&c->done)) /* without helping: works complete by themselves */
        nanosleep(&moment, NULL);
    must(c->status, "an operation in a chain of callbacks");
    for (int i = 0; i < LINKS; i++)
        must(small_end(&c->small[i]), "an operation in a chain of callbacks");
    meet(c->world, "end");
    comm_group_close(c->world);
    free(c);
}

/* ---- What belongs to a world ---- */

void state_two_worlds(void)
{
    comm_group *one = open_world("one"), *two = open_world("two");
    int32_t kind = small_kind(one);
    for (int i = 0; i < 5; i++) {
        small_do(i % 2 ? one : two, kind);
        small_do(i % 2 ? two : one, kind);
    }
    meet(two, "used");
    comm_group_close(one);
    small_do(two, kind);
    meet(two, "end");
    comm_group_close(two);
}

static void use_world(int round)
{
    char name[40];
    snprintf(name, sizeof name, "world-%d", round);
    comm_group *world = open_world(name), *group;
    int32_t kind = small_kind(world);
    must(comm_group_dup(world, NULL, &group), "comm_group_dup");
    small_do(world, kind);
    small_do(group, kind);
    meet(world, "end");
    comm_group_close(group);
    comm_group_close(world);
}

/* Threads end when they are joined; the kernel may show one for a moment longer. */
static int settled(int (*count)(void), int expected)
{
    const struct timespec moment = { 0, 5000000 };
    int now = count();
    for (int i = 0; i < 100 && now > expected; i++) {
        nanosleep(&moment, NULL);
        now = count();
    }
    return now;
}

void state_left_behind(void)
{
    enum { ROUNDS = 4 };
    int threads = thread_count(), descriptors = descriptor_count();
    use_world(0);
    int threads_after = settled(thread_count, threads), descriptors_after = settled(descriptor_count, descriptors);
    if (threads_after > threads)
        note("%d threads are there that were not before the first world; they may be its library's own",
             threads_after - threads);
    if (descriptors_after > descriptors)
        note("%d descriptors are open that were not before the first world; they may be its library's own",
             descriptors_after - descriptors);
    for (int i = 1; i < ROUNDS; i++)
        use_world(i);
    int more = settled(thread_count, threads_after) - threads_after;
    if (more >= ROUNDS - 1)
        finding(RULE_lets_go, "after %d worlds were opened and closed, %d more threads are there", ROUNDS - 1, more);
    more = settled(descriptor_count, descriptors_after) - descriptors_after;
    if (more >= ROUNDS - 1)
        finding(RULE_lets_go, "after %d worlds were opened and closed, %d more descriptors are open", ROUNDS - 1,
                more);
}

static size_t in_use(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static size_t growth_of(comm_group *world, int32_t kind, int rounds)
{
    size_t before = in_use();
    for (int i = 0; i < rounds; i++) {
        comm_group *group;
        must(comm_group_dup(world, NULL, &group), "comm_group_dup");
        for (int k = 0; k < 4; k++)
            small_do(group, kind);
        comm_group_close(group);
    }
    size_t after = in_use();
    return after > before ? after - before : 0;
}

/* Caches fill up in the first rounds; a leak goes on in all. */
void state_memory(void)
{
    enum { ROUNDS = 25, TOLERATED = 400 }; /* bytes for each group: names and numbers that a world remembers */
    comm_group *world = open_world(NULL);
    int32_t kind = small_kind(world);
    growth_of(world, kind, ROUNDS);
    size_t least = SIZE_MAX;
    for (int i = 0; i < 3; i++) {
        size_t growth = growth_of(world, kind, ROUNDS);
        least = growth < least ? growth : least;
    }
    if (least > (size_t)(ROUNDS * TOLERATED))
        finding(RULE_lets_go,
                "memory is lost: each group that was opened, used for 4 operations and closed left %zu bytes",
                least / ROUNDS);
    meet(world, "end");
    comm_group_close(world);
}
