/* Why a group ended is told also to ranks that have not opened it yet, or have closed it: the first reason counts, and
 * the rank that gave it is named, although that rank may have closed the group and left the world long before. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "faults.h"

struct scenario {
    struct page *page;
    int leaves; /* ranks that know the reason close their world before the late rank opens the group */
    int late;   /* the rank that is held up */
    uint64_t seed;
};

enum { SIZE = 4 };

/* Ranks of the group under test that make the group "odd": its rank 0 is rank 2 here, and so on. None has its number in
 * the world, too. */
static const int32_t members[] = { 2, 3, 0 };
enum { MEMBERS = 3 };

/* As texts name its ranks, up to the address: "rank 2 (world rank 0". */
static const char *member_text(int member, char text[60])
{
    snprintf(text, 60, "rank %d (world rank %d", member, fault_world_rank(members[member], SIZE));
    return text;
}

static comm_status make(comm_group *world, comm_group **ret_group)
{
    comm_group_options o = COMM_GROUP_OPTIONS_INIT;
    o.name = "odd";
    return comm_group_create(world, members, MEMBERS, &o, ret_group);
}

/* Every rank is connected with every other. */
static comm_group *meet(void)
{
    comm_group *world = fault_world();
    float data[2 * SIZE] = { 0 }, other[2 * SIZE];
    CHECK_OK(comm_all_to_all(world, data, other, 2, COMM_DTYPE_F32, NULL, NULL));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    return world;
}

/* What the others said on the way to us has arrived: they sent this after it, on the same connection, or have left. */
static void hear(comm_group *world, const struct scenario *s, int from)
{
    int32_t word;
    comm_op_options o = COMM_OP_OPTIONS_INIT;
    o.tag = 9;
    if (!s->leaves)
        CHECK_OK(comm_recv(world, &word, 1, COMM_DTYPE_I32, from, &o, NULL));
}

static void say(comm_group *world, const struct scenario *s, int to)
{
    int32_t word = 1;
    comm_op_options o = COMM_OP_OPTIONS_INIT;
    o.tag = 9;
    if (!s->leaves)
        CHECK_OK(comm_send(world, &word, 1, COMM_DTYPE_I32, to, &o, NULL));
}

/* One aborts and closes; another one opens the group when all that is over. */
static void aborted_before_it_was_made(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = meet(), *group;
    int32_t one = 1;
    if (rank == 0) {
        CHECK_OK(make(world, &group));
        CHECK_OK(comm_group_abort(group, "my reason"));
        CHECK_OK(comm_group_close(group));
        for (int r = 1; r < size; r++)
            say(world, s, r);
        if (s->leaves)
            CHECK_OK(fault_close(world));
        fault_raise(s->page, 0);
        if (s->leaves)
            return;
    } else if (rank != 1) {
        fault_await(s->page, 0);
        hear(world, s, 0);
        CHECK_OK(make(world, &group));
        CHECK_STATUS(comm_all_reduce(group, &one, &one, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL),
                     COMM_ERR_ABORTED);
        char words[200], who[60];
        snprintf(words, sizeof words, "%s) reports: %s) of group 'odd' called comm_group_abort: my reason",
                 member_text(2, who), who);
        CHECK_ERROR_SAYS(words);
        CHECK_STATUS(comm_group_status(group), COMM_ERR_ABORTED);
        CHECK_OK(comm_group_close(group));
    } else {
        hear(world, s, 0);
    }
    CHECK_OK(fault_close(world));
}

/* Rank 1 misses rank 3, which has left the world, in a group that rank 0 opens later: its end says who is lost. */
static void lost_before_it_was_made(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = meet(), *group;
    int32_t word, lost[SIZE];
    size_t count;
    (void)size;
    if (rank == 3) {
        CHECK_OK(fault_close(world));
        fault_raise(s->page, 0);
        return;
    }
    fault_await(s->page, 0);
    if (rank == 0)
        hear(world, s, 1);
    CHECK_OK(comm_group_dup(world, NULL, &group));
    if (rank == 1)
        CHECK_STATUS(comm_recv(group, &word, 1, COMM_DTYPE_I32, 3, NULL, NULL), COMM_ERR_PEER_LOST);
    if (rank == 1)
        say(world, s, 0);
    if (rank == 0) {
        CHECK_STATUS(comm_barrier(group, NULL, NULL), COMM_ERR_PEER_LOST);
        CHECK_SAYS_OF(comm_last_error(), 3, " has closed its world before ");
        CHECK_OK(comm_group_lost_ranks(group, lost, SIZE, &count));
        CHECK(count == 1 && lost[0] == 3);
    }
    fault_raise(s->page, 1 + rank);
    for (int r = 0; r < 3; r++)
        fault_await(s->page, 1 + r);
    CHECK_OK(comm_group_close(group));
    CHECK_OK(fault_close(world));
}

/* Rank 1 misses rank 3, which has left the world. Rank 0 has never talked to that one, and is told who is lost. */
static void who_has_left_is_told_to_all(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world();
    int32_t word = 1, lost[SIZE];
    size_t count;
    (void)size;
    if (rank == 3) {
        CHECK_OK(comm_send(world, &word, 1, COMM_DTYPE_I32, 1, NULL, NULL));
        CHECK_OK(fault_close(world));
        fault_raise(s->page, 0);
        return;
    }
    if (rank == 1) {
        CHECK_OK(comm_recv(world, &word, 1, COMM_DTYPE_I32, 3, NULL, NULL));
        fault_await(s->page, 0);
        CHECK_STATUS(comm_recv(world, &word, 1, COMM_DTYPE_I32, 3, NULL, NULL), COMM_ERR_PEER_LOST);
    } else if (rank == 0) {
        CHECK_STATUS(comm_recv(world, &word, 1, COMM_DTYPE_I32, 1, NULL, NULL), COMM_ERR_PEER_LOST);
        CHECK_SAYS_OF(comm_last_error(), 3, " has closed its world before ");
        CHECK_OK(comm_group_lost_ranks(world, lost, SIZE, &count));
        CHECK(count == 1 && lost[0] == 3);
    }
    fault_raise(s->page, 1 + rank);
    for (int r = 0; r < 3; r++)
        fault_await(s->page, 1 + r);
    CHECK_OK(fault_close(world));
}

/* Two disagree and close; the third has not made the group yet. */
static void disagreed_before_it_was_made(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = meet(), *group;
    float data[4] = { 0 };
    int late = members[s->late], first = members[(s->late + 1) % MEMBERS], second = members[(s->late + 2) % MEMBERS];
    if (rank == first || rank == second) {
        comm_status status = COMM_OK;
        CHECK_OK(make(world, &group));
        while (status == COMM_OK)
            status = rank == first ? comm_all_reduce(group, data, data, 4, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, NULL)
                                   : comm_barrier(group, NULL, NULL);
        CHECK_STATUS(status, COMM_ERR_MISMATCH);
        CHECK_OK(comm_group_close(group));
        say(world, s, late);
        if (s->leaves)
            CHECK_OK(fault_close(world));
        fault_raise(s->page, rank == first);
        if (s->leaves)
            return;
    } else if (rank == late) {
        char words[60];
        fault_await(s->page, 0);
        fault_await(s->page, 1);
        hear(world, s, first);
        hear(world, s, second);
        CHECK_OK(make(world, &group));
        CHECK_STATUS(comm_barrier(group, NULL, NULL), COMM_ERR_MISMATCH);
        CHECK_ERROR_SAYS(" reports: the ranks of group 'odd' disagree on collective #1: ");
        CHECK_ERROR_SAYS("called barrier()");
        CHECK_ERROR_SAYS("called all_reduce(4 x f32, sum)");
        CHECK_ERROR_SAYS(member_text((s->late + 1) % MEMBERS, words));
        CHECK_ERROR_SAYS(member_text((s->late + 2) % MEMBERS, words));
        CHECK_OK(comm_group_close(group));
    }
    CHECK_OK(fault_close(world));
    (void)size;
}

/* The others disagree and leave before this one has called anything; it may still be on its way out of comm_init. */
static void disagreed_before_it_came(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    float data[4] = { 0 };
    comm_group *world = fault_world();
    comm_status status = COMM_OK;
    for (int r = 0; r < size && rank == s->late; r++)
        if (r != rank)
            fault_await(s->page, r);
    while (status == COMM_OK)
        status = rank == (s->late + 1) % size
                     ? comm_all_reduce(world, data, data, 4, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, NULL)
                     : comm_barrier(world, NULL, NULL);
    CHECK_STATUS(status, COMM_ERR_MISMATCH);
    CHECK_ERROR_SAYS("the ranks of group 'world' disagree on collective #1: ");
    CHECK_ERROR_SAYS("called barrier()");
    CHECK_ERROR_SAYS("called all_reduce(4 x f32, sum)");
    CHECK_OK(fault_close(world));
    fault_raise(s->page, rank);
}

/* ---- Whatever the order ---- */

static void a_moment(uint64_t *random)
{
    int64_t end = fault_now_ns() + (int64_t)(fault_random(random) % 4000000);
    while (fault_now_ns() < end)
        ;
}

/* One aborts, or calls something else; each makes the group and goes at a moment of its own, without waiting for
 * another. */
static void everybody_hears_the_reason(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    uint64_t random = s->seed, own = s->seed ^ (uint64_t)(rank + 1) * 77777;
    int32_t ranks[SIZE], one = 1;
    int culprit = (int)(fault_random(&random) % (unsigned)size), aborts = (int)(fault_random(&random) % 2);
    for (int r = 0; r < size; r++)
        ranks[r] = r;
    for (int r = size - 1; r > 0; r--) {
        int other = (int)(fault_random(&random) % (unsigned)(r + 1));
        int32_t moved = ranks[r];
        ranks[r] = ranks[other];
        ranks[other] = moved;
    }
    comm_group *world = fault_random(&random) % 2 ? meet() : fault_world(), *group;
    a_moment(&own);
    CHECK_OK(comm_group_create(world, ranks, (size_t)size, NULL, &group));
    comm_status status = COMM_OK, expected = aborts ? COMM_ERR_ABORTED : COMM_ERR_MISMATCH;
    if (rank == culprit && aborts)
        CHECK_OK(comm_group_abort(group, "my reason"));
    while (status == COMM_OK)
        status = rank == culprit ? comm_barrier(group, NULL, NULL)
                                 : comm_all_reduce(group, &one, &one, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL);
    CHECK_STATUS(status, expected);
    CHECK_ERROR_SAYS(aborts ? "called comm_group_abort: my reason" : "called barrier()");
    a_moment(&own);
    CHECK_OK(comm_group_close(group));
    CHECK_OK(fault_close(world));
}

static int run_any_order(uint64_t seed, int size)
{
    struct scenario s = { .seed = seed };
    char name[80];
    snprintf(name, sizeof name, "everybody hears the reason, seed %llu", (unsigned long long)seed);
    struct ranks_options options = { .limit_s = 30, .name = name };
    return fault_run(size, &options, everybody_hears_the_reason, &s);
}

/* Rank 0 has never talked to rank 2, and hears of its loss from rank 1, one group after the other. Every group's text
 * names the lost rank with its address. */
static void a_loss_is_told_with_the_address(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *groups[3] = { fault_world() };
    comm_work *works[3];
    int32_t word;
    (void)size;
    for (int i = 1; i < 3; i++)
        CHECK_OK(comm_group_dup(groups[0], NULL, &groups[i]));
    if (rank == 1) { /* so that these two pairs are connected */
        CHECK_OK(comm_send(groups[0], &rank, 1, COMM_DTYPE_I32, 0, NULL, NULL));
        CHECK_OK(comm_send(groups[0], &rank, 1, COMM_DTYPE_I32, 2, NULL, NULL));
    } else {
        CHECK_OK(comm_recv(groups[0], &word, 1, COMM_DTYPE_I32, 1, NULL, NULL));
    }
    for (int i = 0; i < 3 && rank != 2; i++)
        CHECK_OK(comm_recv(groups[i], &word, 1, COMM_DTYPE_I32, 1 + rank, NULL, &works[i]));
    fault_meet(s->page);
    if (rank == 2)
        raise(SIGKILL);
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(comm_work_wait(works[i], COMM_TIMEOUT_INFINITE), COMM_ERR_PEER_LOST);
        const char *name = strstr(comm_last_error(), "rank 2 (");
        char place[200];
        snprintf(place, sizeof place, "%.*s", name ? (int)strcspn(name, ")") : 0, name ? name : "");
        if (!fault_is_place(place))
            ranks_fail(__FILE__, __LINE__, "group %d: '%s' does not say where rank 2 was", i, comm_last_error());
        comm_work_release(works[i]);
    }
    for (int i = 2; i > 0; i--)
        CHECK_OK(comm_group_close(groups[i]));
    CHECK_OK(fault_close(groups[0]));
}

/* Sending fails in the middle of a message, through no fault of the peer's. */
static void a_buffer_that_cannot_be_read(int rank, int size, void *arg)
{
    enum { BYTES = 1 << 20 };
    struct scenario *s = arg;
    comm_group *world = fault_world();
    char *data = mmap(NULL, BYTES, rank == 0 ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t lost = 0;
    CHECK(data != MAP_FAILED);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank == 0) {
        CHECK(comm_recv(world, data, BYTES, COMM_DTYPE_BYTE, 1, NULL, NULL) != COMM_OK);
    } else {
        CHECK_STATUS(comm_send(world, data, BYTES, COMM_DTYPE_BYTE, 0, NULL, NULL), COMM_ERR_BACKEND);
        CHECK_SAYS(comm_last_error(), "this rank's buffer is memory that cannot be read");
        CHECK_OK(comm_group_lost_ranks(world, NULL, 0, &lost));
        CHECK(lost == 0);
    }
    (void)size, (void)s;
    munmap(data, BYTES);
    CHECK_OK(fault_close(world));
}

/* No message is awaited from rank 1 in particular, and it has gone before it was connected with anybody. */
static void gone_before_it_was_heard(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world();
    comm_op_options limit = COMM_OP_OPTIONS_INIT;
    int32_t data;
    limit.timeout_ms = 300;
    if (rank == 1)
        CHECK_OK(fault_close(world));
    fault_meet(s->page);
    if (rank == 1)
        return;
    CHECK_STATUS(comm_recv(world, &data, 1, COMM_DTYPE_I32, COMM_ANY_SOURCE, &limit, NULL), COMM_ERR_DEADLINE);
    CHECK_NAMES(comm_last_error(), 1);
    CHECK_SAYS(comm_last_error(), "cannot be reached");
    CHECK_SAYS(comm_last_error(), "its process has ended, or has closed its world");
    (void)size;
    CHECK_OK(fault_close(world));
}

static int run(int size, void (*fn)(int, int, void *), int leaves, int late, const char *what)
{
    struct scenario s = { .page = page_new(size), .leaves = leaves, .late = late };
    char name[160];
    snprintf(name, sizeof name, "%s, %s, rank %d is late", what,
             leaves ? "and the others leave the world" : "and they stay", late);
    struct ranks_options options = { .limit_s = 30, .name = name };
    int failed = fault_run(size, &options, fn, &s);
    page_free(s.page);
    return failed;
}

int main(void)
{
    int failed = 0;
    for (int leaves = 0; leaves < 2; leaves++) {
        failed |= run(SIZE, aborted_before_it_was_made, leaves, 0, "aborted before it was made");
        for (int late = 0; late < MEMBERS; late++)
            failed |= run(SIZE, disagreed_before_it_was_made, leaves, late, "a disagreement before it was made");
    }
    failed |= run(SIZE, lost_before_it_was_made, 0, 0, "a loss before it was made");
    failed |= run(SIZE, who_has_left_is_told_to_all, 0, 0, "a loss that others have noticed");
    for (int late = 0; late < 3; late++)
        failed |= run(3, disagreed_before_it_came, 1, late, "a disagreement before it came");
    failed |= run(3, gone_before_it_was_heard, 0, 1, "gone before it was heard");
    if (!getenv("FAULT_BACKEND")) /* with shm it is this process that reads it, and crashes */
        failed |= run(2, a_buffer_that_cannot_be_read, 0, 0, "a buffer that cannot be read");
    struct scenario s = { .page = page_new(3) };
    struct ranks_options rank_2_dies = { .limit_s = 30, .may_fail = 1 << 2, .name = "a loss is told with the address" };
    failed |= fault_run(3, &rank_2_dies, a_loss_is_told_with_the_address, &s);
    page_free(s.page);
    uint64_t random = fault_seed();
    for (uint64_t i = 0; i < 40; i++)
        failed |= run_any_order(i % 2 ? fault_random(&random) : i, 2 + (int)(i % 3));
    return failed;
}
