/* Flow control and early messages of the tcp backend, brought into their rare states on purpose: a receiver that is
 * late, credit that is used up, more announcements than a link may have, groups that end in the middle. flow_check then
 * asks whether all came back. */
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "core/exec/exec_group.h"
#include "backend_tcp/progress.h"
#include "faults.h"
#include "flow.h"
#include "core/group.h"

struct scenario {
    struct page *page;
    uint64_t seed;
};

static struct link *link_to(comm_group *world, int rank)
{
    const struct exec_group *g = world->channels[0].state;
    return &((struct mesh *)g->domain)->links[g->world_ranks[rank]];
}

/* What a rank may still send to another, or how many frames of that rank are kept. */
static int64_t credit_to(comm_group *world, int rank)
{
    struct link *l = link_to(world, rank);
    progress_enter(l->mesh);
    int64_t credit = l->port.credit;
    progress_leave(l->mesh);
    return credit;
}

static void await_early(comm_group *world, int rank, size_t count)
{
    const struct timespec soon = { .tv_nsec = 1000000 };
    struct link *l = link_to(world, rank);
    for (size_t seen = 0; seen < count; nanosleep(&soon, NULL)) {
        progress_enter(l->mesh);
        seen = l->port.unexpected_count;
        progress_leave(l->mesh);
    }
}

static comm_work *start_send(comm_group *g, const void *data, size_t bytes, int32_t to, int32_t tag)
{
    comm_op_options o = COMM_OP_OPTIONS_INIT;
    comm_work *work;
    o.tag = tag;
    CHECK_OK(comm_send(g, data, bytes, COMM_DTYPE_U8, to, &o, &work));
    return work;
}

static comm_work *start_recv(comm_group *g, void *data, size_t bytes, int32_t from, int32_t tag)
{
    comm_op_options o = COMM_OP_OPTIONS_INIT;
    comm_work *work;
    o.tag = tag;
    CHECK_OK(comm_recv(g, data, bytes, COMM_DTYPE_U8, from, &o, &work));
    return work;
}

static void finish(comm_work *work)
{
    CHECK_OK(comm_work_wait(work, 0));
    comm_work_release(work);
}

/* ---- Short collectives when the credit is used up ---- */

enum { SHORT_OPS = 9 };

static void start_short(comm_group *g, int op, int32_t rank, int32_t size, int32_t *in, int32_t *out, comm_work **work)
{
    comm_status status = COMM_OK;
    for (int r = 0; r < size; r++) {
        in[r] = 100 * op + 10 * rank + r;
        out[r] = -1;
    }
    switch (op) {
    case 0:
        status = comm_all_reduce(g, in, out, 1, COMM_DTYPE_I32, COMM_REDOP_MAX, NULL, work);
        break;
    case 1:
        status = comm_all_gather(g, in, out, 1, COMM_DTYPE_I32, NULL, work);
        break;
    case 2:
        status = comm_all_to_all(g, in, out, 1, COMM_DTYPE_I32, NULL, work);
        break;
    case 3:
        status = comm_broadcast(g, rank == 1 ? in : out, 1, COMM_DTYPE_I32, 1, NULL, work);
        break;
    case 4:
        status = comm_reduce(g, in, out, 1, COMM_DTYPE_I32, COMM_REDOP_MIN, 0, NULL, work);
        break;
    case 5:
        status = comm_gather(g, in, out, 1, COMM_DTYPE_I32, 0, NULL, work);
        break;
    case 6:
        status = comm_scatter(g, in, out, 1, COMM_DTYPE_I32, 1, NULL, work);
        break;
    case 7:
        status = comm_reduce_scatter(g, in, out, 1, COMM_DTYPE_I32, COMM_REDOP_MAX, NULL, work);
        break;
    default:
        status = comm_barrier(g, NULL, work);
    }
    CHECK_OK(status);
}

static void check_short(int op, int32_t rank, int32_t size, const int32_t *out)
{
    int base = 100 * op, last = base + 10 * (size - 1);
    for (int r = 0; r < size; r++) {
        if (op == 1)
            CHECK(out[r] == base + 10 * r);
        if (op == 2)
            CHECK(out[r] == base + 10 * r + rank);
        if (op == 5 && rank == 0)
            CHECK(out[r] == base + 10 * r);
    }
    if (op == 0)
        CHECK(out[0] == last);
    if (op == 3 && rank != 1)
        CHECK(out[0] == base + 10);
    if (op == 4 && rank == 0)
        CHECK(out[0] == base);
    if (op == 6)
        CHECK(out[0] == base + 10 + rank);
    if (op == 7)
        CHECK(out[0] == last + rank);
}

/* Every rank sends to every rank until no more may be sent unasked; then come short collectives, to which rank 0 or
 * rank 1 is late. */
static void credit_is_used_up(int rank, int size, void *arg)
{
    enum { FILL = PORT_CREDIT_WINDOW / 32768 + 4, BYTES = 32768, RANKS = 3 };
    struct scenario *s = arg;
    comm_group *world = fault_world();
    static uint8_t data[BYTES], got[BYTES];
    comm_work *sends[RANKS][FILL];
    int32_t in[RANKS], out[RANKS];
    CHECK_OK(comm_barrier(world, NULL, NULL));
    memset(data, 'a' + rank, sizeof data);
    for (int r = 0; r < size; r++)
        for (int i = 0; r != rank && i < FILL; i++)
            sends[r][i] = start_send(world, data, BYTES, r, 5);
    for (int r = 0; r < size; r++)
        if (r != rank)
            CHECK(credit_to(world, r) < BYTES + PORT_FRAME_COST);
    /* The last of it is used up by messages of one byte. */
    for (int r = 0; r < size; r++)
        while (r != rank && credit_to(world, r) > PORT_FRAME_COST)
            comm_work_release(start_send(world, data, 1, r, 6));
    for (int turn = 0; turn < 2 * SHORT_OPS; turn++) {
        comm_work *work;
        int late = turn % 2;
        fault_meet(s->page);
        if (rank != late)
            start_short(world, turn / 2, rank, size, in, out, &work);
        fault_meet(s->page);
        if (rank == late)
            start_short(world, turn / 2, rank, size, in, out, &work);
        finish(work);
        check_short(turn / 2, rank, size, out);
    }
    comm_work_release(start_send(world, "x", 1, (rank + 1) % size, 7)); /* a receive that is late */
    fault_meet(s->page);
    finish(start_recv(world, got, 1, (rank + size - 1) % size, 7));
    CHECK(got[0] == 'x');
    for (int r = 0; r < size; r++)
        for (int i = 0; r != rank && i < FILL; i++) {
            memset(got, 0, sizeof got);
            finish(start_recv(world, got, BYTES, r, 5));
            CHECK(got[0] == 'a' + r && memcmp(got, got + 1, BYTES - 1) == 0);
        }
    for (int r = 0; r < size; r++)
        for (int i = 0; r != rank && i < FILL; i++)
            finish(sends[r][i]);
    /* The bytes: how many there are depends on the credit. */
    comm_work_release(start_send(world, "z", 1, (rank + 1) % size, 8));
    finish(start_recv(world, got, 1, (rank + size - 1) % size, 8));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    for (int r = 0; r < size; r++)
        for (int i = 0; r != rank && i < BYTES + PORT_FRAME_COST && link_to(world, r)->port.unexpected_count; i++)
            finish(start_recv(world, got, 1, r, 6));
    flow_check(world);
    CHECK_OK(fault_close(world));
}

/* ---- Announcements ---- */

/* More long messages in all than a link may have announced at a time; then more at a time; and as many whose group
 * ends, while one of another group is held back behind them: that one goes then. */
static void many_are_announced(int rank, int size, void *arg)
{
    enum { WAVES = 40, EACH = 500, AT_ONCE = MATCH_ANNOUNCED_MAX + 100 };
    static comm_work *works[AT_ONCE];
    static uint8_t byte[1];
    comm_group *world = fault_world(), *group;
    comm_group_options twin = COMM_GROUP_OPTIONS_INIT;
    twin.name = "twin";
    (void)arg, (void)size;
    for (int wave = 0; wave <= WAVES; wave++) {
        int count = wave < WAVES ? EACH : AT_ONCE;
        for (int i = 0; i < count; i++)
            works[i] = rank == 0 ? start_send(world, "m", 1, 1, wave) : start_recv(world, byte, 1, 0, wave);
        for (int i = 0; i < count; i++)
            finish(works[i]);
    }
    flow_check(world);
    CHECK_OK(comm_group_dup(world, &twin, &group));
    for (int i = 0; i < AT_ONCE; i++)
        works[i] = start_send(group, "m", 1, !rank, 1);
    comm_work *held = rank == 0 ? start_send(world, "m", 1, 1, WAVES + 1) : start_recv(world, byte, 1, 0, WAVES + 1);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank == 0)
        CHECK_OK(comm_group_abort(group, "enough"));
    for (int i = 0; i < AT_ONCE; i++) {
        CHECK_STATUS(comm_work_wait(works[i], 0), COMM_ERR_ABORTED);
        CHECK_SAYS_OF(comm_work_error(works[i]), 0, " of group 'twin' called comm_group_abort: enough");
        comm_work_release(works[i]);
    }
    finish(held);
    CHECK_OK(comm_group_close(group));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    flow_check(world);
    CHECK_OK(fault_close(world));
}

/* ---- A group that ends in the middle, beside one that does not ---- */

enum { PIECES = 12 };

/* Sends and receives that may or may not meet, of all lengths, from memory that is gone as soon as they have ended. */
static int start_anything(comm_group *g, int32_t rank, int32_t size, uint64_t *random, uint8_t *memory, size_t piece,
                          comm_work **works)
{
    int count = 0;
    for (int i = 0; i < PIECES; i++) {
        uint64_t r = fault_random(random);
        size_t bytes = (size_t)(r >> 8) % (piece >> r % 14);
        int32_t peer = (rank + 1 + (int32_t)(r >> 40) % (size - 1)) % size, tag = (int32_t)(r >> 48) % 2;
        comm_op_options o = COMM_OP_OPTIONS_INIT;
        o.tag = tag;
        uint8_t *at = memory + (size_t)i * piece;
        comm_status status = r >> 56 & 1 ? comm_send(g, at, bytes, COMM_DTYPE_U8, peer, &o, &works[count])
                                         : comm_recv(g, at, piece, COMM_DTYPE_U8, r >> 57 & 1 ? COMM_ANY_SOURCE : peer,
                                                     &o, &works[count]);
        count += status == COMM_OK;
    }
    comm_status status = comm_all_reduce(g, memory + PIECES * piece, memory + (PIECES + 1) * piece, piece / 4,
                                         COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, &works[count]);
    return count + (status == COMM_OK);
}

static void ends_in_the_middle(int rank, int size, void *arg)
{
    enum { TURNS = 30, PIECE = 1 << 20 };
    const size_t capacity = (size_t)(PIECES + 2) * PIECE;
    struct scenario *s = arg;
    comm_group *world = fault_world(), *group;
    uint64_t random = s->seed + (uint64_t)rank;
    for (int turn = 0; turn < TURNS; turn++) {
        comm_work *works[PIECES + 2], *lasting[2];
        int32_t done, mine = rank * 1000 + turn, others = -1;
        uint8_t *memory = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(memory != MAP_FAILED);
        CHECK_OK(comm_group_dup(world, NULL, &group));
        lasting[0] = start_recv(world, &others, sizeof others, (rank + size - 1) % size, 3);
        int count = start_anything(group, rank, size, &random, memory, PIECE, works);
        if (rank == turn % size) {
            for (uint64_t looks = fault_random(&random) % 200; looks && count; looks--)
                comm_work_test(works[0], &done);
            CHECK_OK(comm_group_abort(group, "in the middle"));
        }
        lasting[1] = start_send(world, &mine, sizeof mine, (rank + 1) % size, 3);
        for (int i = 0; i < count; i++) {
            comm_status status = comm_work_wait(works[i], 0);
            /* closed: by a rank that had heard of the abort sooner */
            if (status != COMM_OK && status != COMM_ERR_TRUNCATED && status != COMM_ERR_ABORTED)
                CHECK_SAYS(comm_work_error(works[i]), "has closed this group");
            comm_work_release(works[i]);
        }
        munmap(memory, capacity);
        finish(lasting[0]);
        finish(lasting[1]);
        CHECK(others == (rank + size - 1) % size * 1000 + turn);
        CHECK_OK(comm_group_close(group));
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    flow_check(world);
    CHECK_OK(fault_close(world));
}

/* ---- Whose message is whose ---- */

/* Of two messages that came before the receive from any source, the first one is taken. */
static void the_first_to_come_is_taken(int rank, int size, void *arg)
{
    enum { TURNS = 4 };
    struct scenario *s = arg;
    comm_group *world = fault_world();
    static const size_t lengths[TURNS] = { 1, 1, 70000, 70000 }; /* with the message, and only announced */
    static uint8_t data[70000];
    CHECK_OK(comm_barrier(world, NULL, NULL));
    for (int turn = 0; turn < TURNS; turn++) {
        int first = 1 + turn % 2, second = 3 - first;
        comm_work *work = NULL;
        fault_meet(s->page);
        if (rank == first)
            work = start_send(world, data, lengths[turn], 0, 4);
        if (rank == 0)
            await_early(world, first, 1);
        fault_meet(s->page);
        if (rank == second)
            work = start_send(world, data, lengths[turn], 0, 4);
        if (rank == 0) {
            await_early(world, second, 1);
            for (int i = 0; i < 2; i++) {
                work = start_recv(world, data, sizeof data, COMM_ANY_SOURCE, COMM_ANY_TAG);
                CHECK_OK(comm_work_wait(work, 0));
                CHECK(comm_work_source_rank(work) == (i == 0 ? first : second));
                comm_work_release(work);
            }
        } else {
            finish(work);
        }
    }
    (void)size;
    flow_check(world);
    CHECK_OK(fault_close(world));
}

/* ---- Awaited links ---- */

/* Each link that something is awaited from knows its place among them. */
static void check_places(comm_group *world)
{
    struct mesh *m = link_to(world, 0)->mesh;
    progress_enter(m);
    const struct port_table *t = &m->domain.peers;
    for (int32_t i = 0; i < t->active_count; i++)
        CHECK(t->active[i]->active_index == i && t->active[i]->interest > 0);
    for (int32_t r = 0; r < t->size; r++)
        CHECK((t->at[r]->active_index >= 0) == (t->at[r]->interest > 0));
    progress_leave(m);
}

/* Rank 0 awaits something from all the others, which send in an order of chance. */
static void awaited_in_any_order(int rank, int size, void *arg)
{
    enum { TURNS = 12 };
    struct scenario *s = arg;
    comm_group *world = fault_world();
    comm_work *works[FAULT_RANKS_MAX];
    int order[FAULT_RANKS_MAX];
    uint64_t random = s->seed;
    uint8_t byte;
    CHECK_OK(comm_barrier(world, NULL, NULL));
    for (int turn = 0; turn < TURNS; turn++) {
        for (int r = 1; r < size; r++) { /* a permutation, the same on all ranks */
            int at = 1 + (int)(fault_random(&random) % (unsigned)r);
            order[r] = order[at];
            order[at] = r;
        }
        for (int r = 1; rank == 0 && r < size; r++)
            works[r] = start_recv(world, &byte, 1, r, 4);
        for (int i = 1; i < size; i++) {
            fault_meet(s->page);
            if (rank == order[i])
                finish(start_send(world, "x", 1, 0, 4));
            if (rank == 0) {
                finish(works[order[i]]);
                check_places(world);
            }
        }
    }
    flow_check(world);
    CHECK_OK(fault_close(world));
}

static int run(int size, void (*fn)(int, int, void *), const char *backend, uint64_t seed, const char *name)
{
    struct scenario s = { .page = page_new(size), .seed = seed };
    struct ranks_options options = { .limit_s = 60, .name = name };
    fault_backend = backend;
    int failed = fault_run(size, &options, fn, &s);
    page_free(s.page);
    return failed;
}

int main(void)
{
    uint64_t random = fault_seed();
    int failed = run(3, credit_is_used_up, "cpu:tcp", 0, "the credit is used up");
    failed |= run(2, many_are_announced, "cpu:tcp?eager_bytes=0", 0, "many are announced");
    for (int size = 2; size <= 4; size++)
        failed |= run(size, ends_in_the_middle, "cpu:tcp?slice_bytes=100000&lanes=3", fault_random(&random),
                      "a group ends in the middle");
    failed |= run(5, awaited_in_any_order, "cpu:tcp", fault_random(&random), "awaited in any order");
    return failed | run(3, the_first_to_come_is_taken, "cpu:tcp", 0, "the first to come is taken");
}
