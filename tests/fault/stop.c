/* Ranks that are stopped, late, or busy elsewhere when an operation's time is over. All ranks get DEADLINE with the
 * same text: which rank is missing, where it is, and what it does instead. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "faults.h"

enum { FAULT_INQUEST_MS = 750 }; /* asking the others, and leaving the word to a lower rank */
static const char *const PASSED = " ms has passed";

struct scenario {
    struct page *page;
    enum menu what;
    enum wait_by how;
    int victim, stopped, talked;
    int64_t delay_ns;
};

static comm_op_options limit_of(int64_t timeout_ms)
{
    comm_op_options o = COMM_OP_OPTIONS_INIT;
    o.timeout_ms = timeout_ms;
    return o;
}

/* All ranks that were waiting must have the same words; the descriptions of their own operations before them may
 * differ. */
static void all_say_the_same(struct page *page, int rank, int size, int but)
{
    snprintf(page->text[rank], sizeof page->text[rank], "%s", comm_last_error());
    fault_meet(page);
    const char *mine = strstr(page->text[rank], PASSED);
    CHECK(mine != NULL);
    for (int r = 0; r < size; r++) {
        const char *theirs = strstr(page->text[r], PASSED);
        if (r != but && (!theirs || strcmp(mine, theirs) != 0))
            ranks_fail(__FILE__, __LINE__, "rank %d says '%s', rank %d says '%s'", rank, page->text[rank], r,
                       page->text[r]);
    }
}

static void stop_it(struct scenario *s)
{
    int pid = atomic_load(&s->page->pids[s->victim]);
    int64_t end = fault_now_ns() + s->delay_ns;
    while (fault_now_ns() < end)
        ;
    atomic_store(&s->page->event_ns, fault_now_ns());
    fault_stop(pid);
}

static void one_is_stopped(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    int stopper = s->victim == 0;
    comm_group *world = fault_world();
    comm_op_options limit = limit_of(1200);
    comm_status status = COMM_OK;
    atomic_store(&s->page->pids[rank], getpid());
    if (s->talked) /* all pairs: also those that only ask each other what is wrong */
        CHECK_OK(menu_do(world, MENU_ALL_TO_ALL, WAIT_CALL, NULL));
    fault_meet(s->page);
    if (rank == stopper && !s->talked)
        stop_it(s);
    if (!s->talked && rank == stopper)
        fault_raise(s->page, 0);
    if (!s->talked && rank != s->victim)
        fault_await(s->page, 0);
    if (!s->talked && rank == s->victim)
        fault_await(s->page, 1); /* stopped in here */
    while (status == COMM_OK) {
        comm_work *work;
        status = menu_begin(world, s->what, &limit, &work);
        if (s->talked && rank == stopper && !fault_is_stopped(atomic_load(&s->page->pids[s->victim])))
            stop_it(s);
        if (status != COMM_OK)
            break;
        status = menu_wait(work, s->how);
        comm_work_release(work);
    }
    atomic_store(&s->page->noticed_ns[rank], fault_now_ns());
    CHECK_STATUS(status, COMM_ERR_DEADLINE);
    if (rank != s->victim) {
        CHECK_NAMES(comm_last_error(), s->victim);
        CHECK_SAYS(comm_last_error(),
                   s->talked ? " ms: it is stopped, or gets no time on a core" : "cannot be reached by");
        CHECK(!strstr(comm_last_error(), " and cannot reach ")); /* that others do not, either, is not told */
    }
    if (rank == stopper) {
        fault_raise(s->page, 1);
        CHECK(kill(atomic_load(&s->page->pids[s->victim]), SIGCONT) == 0);
    }
    /* The stopped one has the reason when it goes on, and is not lost. */
    all_say_the_same(s->page, rank, size, -1);
    CHECK_STATUS(comm_group_status(world), COMM_ERR_DEADLINE);
    CHECK_OK(fault_close(world));
}

static int run_stopped(int size, int talked, enum menu what, enum wait_by how, uint64_t *random)
{
    struct scenario s = { .page = page_new(size), .what = what, .how = how, .talked = talked };
    s.victim = (int)(fault_random(random) % (unsigned)size);
    s.delay_ns = (int64_t)(fault_random(random) % 5000000);
    char name[200];
    snprintf(name, sizeof name, "%s, rank %d of %d stopped %s, limit 1200 ms, waiting %s", menu_names[what], s.victim,
             size, talked ? "in it" : "before anybody talked", waiting_names[how]);
    struct ranks_options options = { .limit_s = 25, .name = name };
    int failed = fault_run(size, &options, one_is_stopped, &s);
    failed |= fault_noticed_late(s.page, size, name, 1200 + FAULT_INQUEST_MS);
    page_free(s.page);
    return failed;
}

/* ---- Late, but alive ---- */

enum instead { NOTHING, FINISHED, RECEIVING, ELSEWHERE, BEFORE_IT, INSTEAD_END };

static void one_is_late(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world(), *other;
    comm_op_options limit = limit_of(400), quick = limit_of(20000), other_tag = limit_of(20000);
    comm_work *work = NULL;
    other_tag.tag = 6;
    enum instead instead = (enum instead)s->stopped;
    float data[4] = { 0 };
    CHECK_OK(comm_group_dup(world, NULL, &other));
    if (instead != NOTHING)
        CHECK_OK(comm_barrier(world, &quick, NULL));
    int32_t from = s->victim == 0;
    if (instead == RECEIVING && rank == from)
        CHECK_OK(comm_send(world, data, 4, COMM_DTYPE_F32, s->victim, &other_tag, NULL));
    fault_meet(s->page);
    if (rank == s->victim) {
        if (instead == RECEIVING) {
            quick.tag = 5;
            CHECK_OK(comm_recv(world, data, 4, COMM_DTYPE_F32, from, &quick, &work));
        } else if (instead == ELSEWHERE) {
            CHECK_OK(comm_barrier(other, &quick, &work));
        }
        fault_meet(s->page);
        /* The others' time has passed. Now it comes, and is told why there is nothing to come to. */
        fault_meet(s->page);
        if (instead == RECEIVING)
            CHECK_STATUS(comm_work_wait(work, 0), COMM_ERR_DEADLINE);
        CHECK_STATUS(menu_until_it_ends(world, MENU_ALL_REDUCE, &quick), COMM_ERR_DEADLINE);
    } else {
        fault_meet(s->page);
        atomic_store(&s->page->event_ns, fault_now_ns());
        CHECK_STATUS(menu_do(world, MENU_ALL_REDUCE, WAIT_CALL, &limit), COMM_ERR_DEADLINE);
        atomic_store(&s->page->noticed_ns[rank], fault_now_ns());
        fault_meet(s->page);
    }
    CHECK_NAMES(comm_last_error(), s->victim);
    CHECK_SAYS(comm_last_error(), instead == NOTHING ? "has called no collective yet" : "has finished barrier #1");
    if (instead == RECEIVING) {
        CHECK_SAYS(comm_last_error(), " and waits for a message from rank ");
        CHECK_SAYS(comm_last_error(), " has sent a message with tag 6 that no receive asks for");
    }
    if (instead == ELSEWHERE)
        CHECK_SAYS(comm_last_error(), "it is in barrier #1 of group '");
    all_say_the_same(s->page, rank, size, -1);
    comm_work_release(work);
    CHECK_OK(comm_group_close(other));
    CHECK_OK(fault_close(world));
}

/* One is in an earlier collective, because another one is missing there. */
static void one_is_behind(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world();
    comm_op_options limit = limit_of(500);
    comm_work *first, *second;
    float data[4] = { 0 };
    CHECK_OK(comm_barrier(world, NULL, NULL));
    /* Rank 0 is the root of a broadcast, so it is through at once, and in the next one while rank 1 is missing in
     * both. */
    if (rank == 1) {
        fault_meet(s->page);
    } else {
        CHECK_OK(comm_broadcast(world, data, 4, COMM_DTYPE_F32, 0, NULL, &first));
        CHECK_OK(comm_all_reduce(world, data, data, 4, COMM_DTYPE_F32, COMM_REDOP_SUM, &limit, &second));
        CHECK_STATUS(comm_work_wait(second, 0), COMM_ERR_DEADLINE);
        CHECK_NAMES(comm_last_error(), 1);
        CHECK_SAYS(comm_last_error(), "all_reduce #3 on group 'world'");
        CHECK_SAYS(comm_last_error(), "has finished barrier #1");
        comm_work_release(first);
        comm_work_release(second);
        fault_meet(s->page);
    }
    (void)size;
    CHECK_OK(fault_close(world));
}

/* Rank 1 is in the collective before the one that the others' time ran out in, because rank 2 is missing there. */
static void one_is_in_the_one_before(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world();
    comm_op_options limit = limit_of(500);
    comm_work *first, *second;
    float data[4] = { 0 }, all[4 * FAULT_RANKS_MAX];
    CHECK_OK(comm_barrier(world, NULL, NULL));
    fault_meet(s->page);
    if (rank == 2) {
        fault_meet(s->page);
    } else {
        CHECK_OK(comm_gather(world, data, all, 4, COMM_DTYPE_F32, 1, rank == 1 ? NULL : &limit, &first));
        CHECK_OK(
            comm_all_reduce(world, data, data, 4, COMM_DTYPE_F32, COMM_REDOP_SUM, rank == 1 ? NULL : &limit, &second));
        CHECK_STATUS(comm_work_wait(second, 0), COMM_ERR_DEADLINE);
        const char *text = comm_last_error();
        CHECK_SAYS(text, "all_reduce #3 on group 'world'");
        CHECK_NAMES(text, 1);
        CHECK_SAYS_OF(text, 1, " is in gather #2");
        CHECK_SAYS_OF(text, 2, " has finished barrier #1");
        comm_work_release(first);
        comm_work_release(second);
        fault_meet(s->page);
    }
    (void)size;
    CHECK_OK(fault_close(world));
}

/* All but the root wait for the root, and are said to. */
static void who_waits_for_whom(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world();
    comm_op_options limit = limit_of(500);
    float data[4] = { 0 };
    char words[60];
    int root = size - 1;
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank != root) {
        CHECK_STATUS(comm_scatter(world, NULL, data, 4, COMM_DTYPE_F32, root, &limit, NULL), COMM_ERR_DEADLINE);
        snprintf(words, sizeof words, " waits for rank %d", root);
        for (int r = 0; r < size - 1; r++)
            CHECK_SAYS_OF(comm_last_error(), r, words);
        CHECK_NAMES(comm_last_error(), root);
        CHECK_SAYS_OF(comm_last_error(), root, " has finished barrier #1 and called no collective since");
        if (rank != 0)
            CHECK_SAYS_OF(comm_last_error(), 0, " reports: timed out: its time limit of 500 ms has passed");
    }
    fault_meet(s->page);
    CHECK_OK(fault_close(world));
}

/* ---- Messages that are not sent or not received ---- */

/* What rank 0 waits for in a group of its own, and what it must be told; rank 1 has done something else there. */
enum { TO_SEND = -2, LONG = 1 << 20 };
static const struct message_case {
    int peer; /* TO_SEND: a long message to rank 1 */
    int32_t tag;
    const char *words, *more;
} message_cases[] = {
    { 1, 0, "recv #1 from rank 1 with tag 0 on group '",
      " has not sent it; it is in no operation of this group, but in barrier #2 of group 'world'" },
    { COMM_ANY_SOURCE, COMM_ANY_TAG, "recv #1 from any rank with any tag on group '",
      "no rank has sent a message that fits" },
    { 0, 3, ": its peer is rank 0", " itself, which has not called the matching send" },
    { TO_SEND, 9, "send #1 to rank 1 with tag 9 on group '", " has not received it; it is in no operation" },
    { 1, 5, " has not sent it; it is in", " has sent a message with tag 6 that no receive asks for" },
    { COMM_ANY_SOURCE, 5, "no rank has sent a message that fits; rank 1", " has sent a message with tag 6 that no " },
    { 1, COMM_ANY_TAG, " has not sent it; it waits for a message from rank 0", " with tag 7" },
    { 1, 8, " has not sent it; it sends a message to rank 0", " has sent a message with tag 7 that no receive asks" },
};
enum { MESSAGE_CASES = sizeof message_cases / sizeof *message_cases, TAG_6 = 4, RECEIVES = 6, SENDS_LONG = 7 };

/* What rank 1 does in the group of that case. */
static void do_another_thing(int i, comm_group *group, float *data, comm_work **ret_work)
{
    comm_op_options o = limit_of(20000);
    o.tag = 7;
    if (i == RECEIVES)
        CHECK_OK(comm_recv(group, data, 4, COMM_DTYPE_F32, 0, &o, ret_work));
    if (i == SENDS_LONG)
        CHECK_OK(comm_send(group, data, LONG, COMM_DTYPE_F32, 0, &o, ret_work));
    o.tag = 6;
    if (i == TAG_6 || i == TAG_6 + 1)
        CHECK_OK(comm_send(group, data, 4, COMM_DTYPE_F32, 0, &o, NULL));
}

/* Rank 2, which is stopped or does not exist, is named only if it is `named`. */
static void wait_in_vain(const struct message_case *c, comm_group *group, float *data, int named)
{
    int is_named;
    comm_op_options limit = limit_of(300);
    limit.tag = c->tag;
    comm_status status = c->peer == TO_SEND ? comm_send(group, data, LONG, COMM_DTYPE_F32, 1, &limit, NULL)
                                            : comm_recv(group, data, 4, COMM_DTYPE_F32, c->peer, &limit, NULL);
    CHECK_STATUS(status, COMM_ERR_DEADLINE);
    CHECK_SAYS(comm_last_error(), c->words);
    CHECK_SAYS(comm_last_error(), c->more);
    is_named = strstr(comm_last_error(), ": rank 2") || strstr(comm_last_error(), "; rank 2");
    CHECK(is_named == (named == 2));
}

static void messages_that_do_not_come(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world(), *g[MESSAGE_CASES];
    comm_work *works[MESSAGE_CASES] = { NULL };
    static float data[LONG];
    for (int i = 0; i < MESSAGE_CASES; i++) {
        CHECK_OK(comm_group_dup(world, NULL, &g[i]));
        if (rank == 1)
            do_another_thing(i, g[i], data, &works[i]);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    for (int i = 0; rank == 0 && i < MESSAGE_CASES; i++)
        wait_in_vain(&message_cases[i], g[i], data, -1);
    CHECK_OK(comm_barrier(world, NULL, NULL)); /* rank 1 was here all the time */
    for (int i = 0; i < MESSAGE_CASES; i++) {
        if (message_cases[i].peer != 0) /* rank 0 is alone with its message to itself: the other may not know yet */
            CHECK_STATUS(comm_group_status(g[i]), COMM_ERR_DEADLINE);
        if (works[i])
            CHECK_STATUS(comm_work_wait(works[i], 0), COMM_ERR_DEADLINE);
        comm_work_release(works[i]);
        CHECK_OK(comm_group_close(g[i]));
    }
    (void)size, (void)s;
    CHECK_OK(fault_close(world));
}

/* It does not answer. It is named where a message may be from it, and not where neither the receive nor the rank that
 * this is from waits for it. */
static void messages_beside_a_stopped_rank(int rank, int size, void *arg)
{
    static const struct message_case cases[] = {
        { 1, 5, "timed out", " has not sent it; it is in no operation of this group" },
        { 2, 5, " has not answered within ", " has sent a message with tag 6 that no receive asks for" },
        { COMM_ANY_SOURCE, 5, " has not answered within ", " has sent a message with tag 6 that no receive asks for" },
    };
    enum { CASES = sizeof cases / sizeof *cases, STOPPED = 2 };
    struct scenario *s = arg;
    comm_group *world = fault_world(), *g[CASES];
    comm_op_options tag_6 = limit_of(20000);
    static float data[4];
    tag_6.tag = 6;
    atomic_store(&s->page->pids[rank], getpid());
    for (int i = 0; i < CASES; i++) {
        CHECK_OK(comm_group_dup(world, NULL, &g[i]));
        if (rank == STOPPED)
            CHECK_OK(comm_send(g[i], data, 4, COMM_DTYPE_F32, 0, &tag_6, NULL));
    }
    CHECK_OK(menu_do(world, MENU_ALL_TO_ALL, WAIT_CALL, NULL));
    fault_meet(s->page);
    if (rank == 0) {
        fault_stop(atomic_load(&s->page->pids[STOPPED]));
        for (int i = 0; i < CASES; i++)
            wait_in_vain(&cases[i], g[i], data, i == 0 ? -1 : STOPPED);
        CHECK(kill(atomic_load(&s->page->pids[STOPPED]), SIGCONT) == 0);
        fault_raise(s->page, 0);
    } else {
        fault_await(s->page, 0);
    }
    for (int i = 0; i < CASES; i++)
        CHECK_OK(comm_group_close(g[i]));
    (void)size;
    CHECK_OK(fault_close(world));
}

static void alone(int rank, int size, void *arg)
{
    comm_group *world = fault_world();
    comm_op_options limit = limit_of(100);
    float data[4];
    CHECK_OK(comm_barrier(world, &limit, NULL));
    CHECK_OK(comm_monitored_barrier(world, &limit));
    CHECK_STATUS(comm_recv(world, data, 4, COMM_DTYPE_F32, COMM_ANY_SOURCE, &limit, NULL), COMM_ERR_DEADLINE);
    CHECK_SAYS(comm_last_error(), PASSED);
    CHECK_STATUS(comm_barrier(world, &limit, NULL), COMM_ERR_DEADLINE);
    (void)rank, (void)size, (void)arg;
    CHECK_OK(fault_close(world));
}

/* A wait that ends leaves the operation as it is. */
static void waiting_ends_the_operation_goes_on(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world();
    comm_work *work;
    CHECK_OK(menu_begin(world, MENU_BARRIER, NULL, &work));
    CHECK_OK(comm_work_wait(work, 0));
    comm_work_release(work);
    if (rank == 0) {
        for (int r = 1; r < size; r++)
            fault_await(s->page, r);
        CHECK_OK(comm_barrier(world, NULL, NULL));
    } else {
        CHECK_OK(menu_begin(world, MENU_BARRIER, NULL, &work));
        CHECK_STATUS(comm_work_wait(work, 150), COMM_ERR_TIMEOUT);
        CHECK_SAYS(comm_last_error(), " timed out after ");
        CHECK_SAYS(comm_last_error(), " ms: not finished yet; the operation goes on");
        fault_raise(s->page, rank);
        CHECK_OK(comm_work_wait(work, 0));
        comm_work_release(work);
    }
    CHECK_OK(fault_close(world));
}

static int run_with(int size, int instead, void (*fn)(int, int, void *), const char *name)
{
    struct scenario s = { .page = page_new(size), .victim = size - 1, .stopped = instead };
    struct ranks_options options = { .limit_s = 25, .name = name };
    int failed = fault_run(size, &options, fn, &s);
    if (atomic_load(&s.page->event_ns))
        failed |= fault_noticed_late(s.page, size, name, 400 + FAULT_INQUEST_MS);
    page_free(s.page);
    return failed;
}

int main(void)
{
    static const enum menu menus[] = { MENU_ALL_REDUCE, MENU_ALL_REDUCE_LARGE, MENU_BARRIER, MENU_ALL_TO_ALL };
    uint64_t random = fault_seed();
    int failed = 0;
    if (access("/proc/self/stat", R_OK) != 0) {
        puts("skipped: without /proc nobody sees whether a rank has stopped");
        return 77;
    }
    for (unsigned i = 0; i < sizeof menus / sizeof *menus; i++) {
        failed |= run_stopped(2 + (int)i % 4, 1, menus[i], (enum wait_by)(i % WAIT_END), &random);
        failed |= run_stopped(5 - (int)i % 4, 0, menus[i], (enum wait_by)((i + 3) % WAIT_END), &random);
    }
    for (int i = 0; i < BEFORE_IT; i++)
        failed |= run_with(2 + i, i, one_is_late, "a late rank, limit 400 ms");
    failed |= run_with(4, 0, one_is_behind, "a rank that is missing in the operation before");
    failed |= run_with(3, 0, one_is_in_the_one_before, "a rank that is in the operation before");
    setenv("COMM_TCP_ALGO", "scatter:linear", 1);
    failed |= run_with(4, 0, who_waits_for_whom, "who waits for whom");
    unsetenv("COMM_TCP_ALGO");
    failed |= run_with(2, 0, messages_that_do_not_come, "messages that do not come");
    failed |= run_with(3, 0, messages_beside_a_stopped_rank, "messages beside a stopped rank");
    failed |= run_with(1, 0, alone, "a world of one rank");
    failed |= run_with(3, 0, waiting_ends_the_operation_goes_on, "a wait that ends");
    return failed;
}
