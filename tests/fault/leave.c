/* Ends that a program wants: abort while others are blocked, close with work unfinished, leaving early, fork and exec;
 * and what must not be left behind: descriptors, memory. With an argument: so many random programs that ranks leave. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faults.h"

struct scenario {
    struct page *page;
    enum menu what;
    enum wait_by how;
    int which;
    uint64_t seed;
};

/* ---- Abort ---- */

struct aborting {
    struct scenario *s;
    comm_group *world;
};

static void *aborts(void *context)
{
    struct aborting *a = context;
    fault_await(a->s->page, 0);
    int64_t begun = fault_now_ns();
    atomic_store(&a->s->page->event_ns, begun);
    CHECK_OK(comm_group_abort(a->world, "because"));
    atomic_store(&a->s->page->values[0], fault_now_ns() - begun);
    return NULL;
}

/* All but the last rank are blocked in the operation; another thread of rank 0 aborts. */
static void abort_while_blocked(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world();
    struct aborting a = { s, world };
    pthread_t thread;
    CHECK_OK(comm_barrier(world, NULL, NULL));
    fault_meet(s->page);
    if (rank == size - 1) {
        fault_await(s->page, 1); /* the others are through with it */
        CHECK_STATUS(menu_until_it_ends(world, s->what, NULL), COMM_ERR_ABORTED);
    } else {
        if (rank == 0 && pthread_create(&thread, NULL, aborts, &a) != 0)
            abort();
        comm_work *work;
        comm_status status = COMM_OK;
        /* A rank that needs nothing from the last one goes on until it is blocked too. */
        for (int first = 1; status == COMM_OK; first = 0) {
            status = menu_begin(world, s->what, NULL, &work);
            if (status != COMM_OK)
                break;
            if (first && rank == 0)
                fault_raise(s->page, 0);
            status = menu_wait(work, s->how);
            comm_work_release(work);
        }
        atomic_store(&s->page->noticed_ns[rank], fault_now_ns());
        CHECK_STATUS(status, COMM_ERR_ABORTED);
        if (rank == 0)
            pthread_join(thread, NULL);
    }
    CHECK_SAYS_OF(comm_last_error(), 0, " of group 'world' called comm_group_abort: because");
    if (rank == 0)
        fault_raise(s->page, 1);
    CHECK_STATUS(comm_group_status(world), COMM_ERR_ABORTED);
    CHECK_OK(fault_close(world));
}

static void close_with_work_unfinished(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world(), *group;
    comm_work *work;
    comm_status ended;
    CHECK_OK(comm_group_dup(world, NULL, &group));
    CHECK_OK(comm_barrier(group, NULL, NULL));
    fault_meet(s->page);
    if (rank != size - 1)
        CHECK_OK(menu_begin(group, s->what, NULL, &work));
    fault_meet(s->page);
    if (rank == size - 1) {
        fault_await(s->page, 0);
        ended = menu_until_it_ends(group, s->what, NULL);
    } else {
        if (rank == 0)
            CHECK_OK(comm_group_close(group));
        ended = menu_wait(work, s->how);
        if (ended == COMM_OK && rank != 0) /* it needed nothing from the last rank */
            ended = menu_until_it_ends(group, s->what, NULL);
        comm_work_release(work);
        if (rank == 0)
            fault_raise(s->page, 0);
    }
    /* The root of a broadcast may have nothing unfinished; then it is missed by the next one. */
    if (s->what == MENU_BROADCAST) {
        CHECK(ended == COMM_ERR_ABORTED || ended == (rank == 0 ? COMM_OK : COMM_ERR_PEER_LOST));
    } else {
        CHECK_STATUS(ended, COMM_ERR_ABORTED);
        CHECK_SAYS_OF(comm_last_error(), 0, " closed group '");
    }
    if (rank != 0)
        CHECK_OK(comm_group_close(group));
    CHECK_OK(comm_barrier(world, NULL, NULL)); /* the world is as it was */
    CHECK_OK(fault_close(world));
}

/* ---- Leaving early ---- */

/* Every rank does the same and closes when it is through, however far the others are. */
static void everybody_leaves_when_done(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world(), *copy;
    uint64_t random = s->seed;
    int copy_first = (int)(fault_random(&random) % 2);
    CHECK_OK(comm_group_dup(world, NULL, &copy));
    for (int i = 0; i < 6; i++) {
        enum menu what = (enum menu)(fault_random(&random) % MENU_END);
        enum wait_by how = (enum wait_by)(fault_random(&random) % WAIT_END);
        comm_work *work;
        comm_status status = menu_begin(i % 2 ? copy : world, what, NULL, &work);
        if (status == COMM_OK)
            status = menu_wait(work, how);
        if (status != COMM_OK)
            ranks_fail(__FILE__, __LINE__, "%s (%d of 6) gave %s: %s", menu_names[what], i, comm_status_name(status),
                       comm_last_error());
        comm_work_release(work);
    }
    (void)rank, (void)size;
    if (copy_first)
        CHECK_OK(comm_group_close(copy));
    CHECK_OK(fault_close(world));
    if (!copy_first)
        CHECK_OK(comm_group_close(copy));
}

/* What was sent before leaving arrives; what was not is said to be missing. */
static void messages_of_one_who_has_left(int rank, int size, void *arg)
{
    enum { COUNT = 12, EACH = 4000 }; /* sent before they are asked for */
    struct scenario *s = arg;
    comm_group *world = fault_world();
    static int32_t data[EACH];
    if (rank == 0) {
        for (int i = 0; i < COUNT; i++) {
            for (int k = 0; k < EACH; k++)
                data[k] = i * EACH + k;
            CHECK_OK(comm_send(world, data, EACH, COMM_DTYPE_I32, 1, NULL, NULL));
        }
        fault_raise(s->page, 0);
        CHECK_OK(fault_close(world));
        fault_raise(s->page, 1);
        return;
    }
    if (rank == 1) {
        fault_await(s->page, s->which); /* 0: it is closing; 1: it is gone */
        for (int i = 0; i < COUNT; i++) {
            memset(data, 0xff, sizeof data);
            CHECK_OK(comm_recv(world, data, EACH, COMM_DTYPE_I32, i % 2 ? 0 : COMM_ANY_SOURCE, NULL, NULL));
            for (int k = 0; k < EACH; k++)
                CHECK(data[k] == i * EACH + k);
        }
    }
    fault_await(s->page, 1);
    if (rank == 1) {
        comm_group *rest;
        const int32_t gone[] = { 0 };
        int32_t one = 1;
        CHECK_OK(comm_group_status(world));
        CHECK_STATUS(comm_recv(world, data, EACH, COMM_DTYPE_I32, 0, NULL, NULL), COMM_ERR_PEER_LOST);
        CHECK_ERROR_SAYS("has closed its world");
        CHECK_NAMES(comm_last_error(), 0);
        CHECK_OK(comm_group_shrink(world, gone, 1, NULL, &rest));
        CHECK_OK(comm_all_reduce(rest, &one, &one, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        CHECK_OK(comm_group_close(rest));
    } else {
        comm_group *rest;
        const int32_t gone[] = { 0 };
        int32_t one = 1;
        CHECK_OK(comm_group_shrink(world, gone, 1, NULL, &rest));
        CHECK_OK(comm_all_reduce(rest, &one, &one, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
        CHECK(one == size - 1);
        CHECK_OK(comm_group_close(rest));
    }
    CHECK_OK(fault_close(world));
}

/* Rank 0 leaves before the others begin, or when they wait for it. */
static void a_collective_without_one_who_has_left(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world();
    comm_op_options limit = COMM_OP_OPTIONS_INIT;
    comm_work *work = NULL;
    int32_t lost[2] = { -1, -1 };
    size_t count;
    limit.timeout_ms = 20000;
    CHECK_OK(comm_barrier(world, NULL, NULL));
    fault_meet(s->page); /* a rank may be in the barrier when another one is through */
    if (rank == 0) {
        for (int r = 1; s->which && r < size; r++)
            fault_await(s->page, r);
        CHECK_OK(fault_close(world));
        fault_raise(s->page, 0);
        return;
    }
    if (!s->which)
        fault_await(s->page, 0);
    comm_status status = menu_begin(world, MENU_ALL_REDUCE, &limit, &work);
    fault_raise(s->page, rank);
    if (status == COMM_OK) /* no other rank has said so already */
        status = comm_work_wait(work, 0);
    CHECK_STATUS(status, COMM_ERR_PEER_LOST);
    CHECK_NAMES(comm_last_error(), 0);
    /* A group of a larger world is closed before that: who asks in between is told so, and that rank is not lost. */
    if (!s->which || !fault_permuted() || !strstr(comm_last_error(), " has closed group 'world'")) {
        CHECK_ERROR_SAYS(" has closed its world before ");
        if (!strstr(comm_last_error(), "; the last collective that it called is #1"))
            CHECK_ERROR_SAYS(", without calling collective #2");
        CHECK_OK(comm_group_lost_ranks(world, lost, 2, &count)); /* also where another rank has noticed */
        CHECK(count == 1 && lost[0] == 0);
    }
    comm_work_release(work);
    CHECK_OK(fault_close(world));
}

/* Rank 1 has done its part of a gather, and closed the group. Rank 2 is the one that is missing. */
static void who_has_done_its_part_is_not_blamed(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world(), *group;
    comm_op_options limit = COMM_OP_OPTIONS_INIT;
    float data[4] = { 0 }, all[12];
    limit.timeout_ms = 300;
    (void)size;
    CHECK_OK(comm_group_dup(world, NULL, &group));
    CHECK_OK(comm_barrier(group, NULL, NULL));
    if (rank == 1) {
        CHECK_OK(comm_gather(group, data, all, 4, COMM_DTYPE_F32, 0, NULL, NULL));
        CHECK_OK(comm_group_close(group));
        fault_raise(s->page, 0);
    } else if (rank == 0) {
        fault_await(s->page, 0);
        CHECK_STATUS(comm_gather(group, data, all, 4, COMM_DTYPE_F32, 0, &limit, NULL), COMM_ERR_DEADLINE);
        CHECK_SAYS_OF(comm_last_error(), 2, " has finished barrier #1");
        CHECK(!says_of(comm_last_error(), 1, " has closed this group"));
        fault_raise(s->page, 1);
        CHECK_OK(comm_group_close(group));
    } else {
        fault_await(s->page, 1);
        CHECK_OK(comm_group_close(group));
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(fault_close(world));
}

/* A rank that closes a group does not say so; a rank that waits for its message asks, after a while or at the limit. */
static void a_message_of_one_who_has_closed_the_group(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world(), *group;
    comm_op_options limit = COMM_OP_OPTIONS_INIT;
    int32_t data = 0;
    limit.timeout_ms = s->which ? 300 : 60000;
    CHECK_OK(comm_group_dup(world, NULL, &group));
    CHECK_OK(comm_barrier(group, NULL, NULL));
    if (rank == 1) {
        /* With or without a message that rank 0 has read but not received. */
        if (s->seed)
            CHECK_OK(comm_send(group, &data, 1, COMM_DTYPE_I32, 0, NULL, NULL));
        fault_meet(s->page);
        CHECK_STATUS(comm_recv(group, &data, 1, COMM_DTYPE_I32, 0, &limit, NULL), COMM_ERR_PEER_LOST);
        CHECK_ERROR_SAYS("has closed ");
        CHECK_NAMES(comm_last_error(), 0);
    } else {
        fault_meet(s->page);
    }
    (void)size;
    CHECK_OK(comm_group_close(group));
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(fault_close(world));
}

static void nobody_is_left_to_send(int rank, int size, void *arg)
{
    comm_group *world = fault_world();
    int32_t data;
    (void)size, (void)arg;
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank == 0) {
        CHECK_STATUS(comm_recv(world, &data, 1, COMM_DTYPE_I32, COMM_ANY_SOURCE, NULL, NULL), COMM_ERR_PEER_LOST);
        CHECK_ERROR_SAYS("has closed its world");
    }
    CHECK_OK(fault_close(world));
}

/* A monitored barrier that timed out leaves nothing that disturbs ranks that are still at work. */
static void monitored_and_gone(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world(), *copy;
    comm_op_options limit = COMM_OP_OPTIONS_INIT;
    limit.timeout_ms = 300;
    CHECK_OK(comm_group_dup(world, NULL, &copy));
    CHECK_OK(comm_barrier(copy, NULL, NULL));
    if (rank == size - 1) {
        fault_await(s->page, 0);
    } else {
        CHECK_STATUS(comm_monitored_barrier(copy, &limit), COMM_ERR_TIMEOUT);
        if (rank == 0) {
            char words[60];
            snprintf(words, sizeof words, "1 rank has not come within 300 ms: %d", size - 1);
            CHECK_ERROR_SAYS(words);
            fault_raise(s->page, 0);
        }
    }
    fault_meet(s->page);
    CHECK_OK(comm_barrier(copy, NULL, NULL));
    if (rank == 0) {
        CHECK_OK(comm_group_close(copy));
        fault_raise(s->page, 1);
    } else {
        /* Rank 0 is through with the group; two others are not. */
        float data[4] = { 0 };
        fault_await(s->page, 1);
        if (rank == 1)
            CHECK_OK(comm_send(copy, data, 4, COMM_DTYPE_F32, size - 1, NULL, NULL));
        if (rank == size - 1)
            CHECK_OK(comm_recv(copy, data, 4, COMM_DTYPE_F32, 1, NULL, NULL));
        CHECK_OK(comm_group_status(copy));
        CHECK_OK(comm_group_close(copy));
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(fault_close(world));
}

/* ---- Forks and descriptors ---- */

static void expect_child(pid_t child)
{
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        ranks_fail(__FILE__, __LINE__, "the child ended with status 0x%x", (unsigned)status);
}

static void in_the_child(comm_group *world, comm_work *work)
{
    float data[4] = { 0 };
    comm_group *other;
    CHECK_STATUS(comm_all_reduce(world, data, data, 4, COMM_DTYPE_F32, COMM_REDOP_SUM, NULL, NULL), COMM_ERR_FORKED);
    CHECK_ERROR_SAYS("it lives on in the parent only");
    CHECK_STATUS(comm_work_wait(work, 0), comm_work_status(work) == COMM_IN_PROGRESS ? COMM_ERR_FORKED : COMM_OK);
    CHECK_STATUS(comm_group_dup(world, NULL, &other), COMM_ERR_FORKED);
    CHECK_STATUS(comm_group_abort(world, NULL), COMM_ERR_FORKED);
    CHECK_STATUS(comm_group_close(world), COMM_ERR_FORKED);
}

static void forks(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world();
    CHECK_OK(comm_barrier(world, NULL, NULL));
    for (int i = 0; i < 4; i++) {
        comm_work *work;
        CHECK_OK(menu_begin(world, s->what, NULL, &work));
        pid_t child = fork();
        if (child == 0) {
            in_the_child(world, work);
            _exit(0);
        }
        CHECK_OK(menu_wait(work, s->how));
        comm_work_release(work);
        expect_child(child);
    }
    (void)rank, (void)size;
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(fault_close(world));
}

/* What a runtime with a fork of its own does: no handler runs in the child, which keeps the parent's connections. */
static pid_t fork_past_handlers(void)
{
    return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
}

/* Whose children live on is noticed all the same when it dies. */
static void killed_but_its_child_lives(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world();
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank == 1) {
        if ((s->which ? fork_past_handlers() : fork()) == 0) {
            alarm(30);
            fault_await(s->page, 0);
            _exit(0);
        }
        CHECK_OK(comm_barrier(world, NULL, NULL));
        fault_meet(s->page);
        atomic_store(&s->page->event_ns, fault_now_ns());
        raise(SIGKILL);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    fault_meet(s->page);
    CHECK_STATUS(menu_until_it_ends(world, MENU_ALL_REDUCE, NULL), COMM_ERR_PEER_LOST);
    atomic_store(&s->page->noticed_ns[rank], fault_now_ns());
    CHECK_NAMES(comm_last_error(), 1);
    if (atomic_fetch_add(&s->page->values[1], 1) == size - 2) /* the last survivor */
        fault_raise(s->page, 0);
    CHECK_OK(fault_close(world));
}

static int descriptors(int *ret_highest_without_cloexec)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder != NULL);
    for (struct dirent *e; (e = readdir(folder)) != NULL;) {
        int fd = atoi(e->d_name);
        if (e->d_name[0] == '.' || fd == dirfd(folder))
            continue;
        count++;
        if (ret_highest_without_cloexec && fd > 2 && !(fcntl(fd, F_GETFD) & FD_CLOEXEC) &&
            fd > *ret_highest_without_cloexec)
            *ret_highest_without_cloexec = fd;
    }
    closedir(folder);
    return count;
}

static void descriptors_are_ours_alone(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    int inherited = 2, kept = 2, fd;
    comm_group *first = ranks_world(fault_backend_name()); /* what libraries keep for good: libuv's threads, urandom */
    CHECK_OK(comm_barrier(first, NULL, NULL));
    CHECK_OK(comm_group_close(first));
    int before = descriptors(&inherited);
    for (int i = 0; i < 3; i++) {
        comm_init_options o = COMM_INIT_OPTIONS_INIT;
        comm_group *world, *copy;
        comm_work *work;
        char name[20];
        snprintf(name, sizeof name, "again-%d", i);
        o.name = name;
        o.backend = fault_backend_name();
        CHECK_OK(ranks_init(&o, &world));
        CHECK_OK(comm_group_dup(world, NULL, &copy));
        CHECK_OK(menu_do(world, MENU_ALL_TO_ALL, WAIT_CALL, NULL));
        CHECK_OK(menu_begin(copy, MENU_BARRIER, NULL, &work));
        CHECK_OK(comm_work_fd(work, &fd));
        kept = 2;
        CHECK(descriptors(&kept) > before);
        if (kept != inherited)
            ranks_fail(__FILE__, __LINE__, "descriptor %d would be open in a program that is executed", kept);
        CHECK_OK(comm_work_wait(work, 0));
        comm_work_release(work);
        CHECK_OK(comm_group_close(copy));
        CHECK_OK(comm_group_close(world));
        int after = descriptors(NULL);
        if (after != before)
            ranks_fail(__FILE__, __LINE__, "%d descriptors before, %d after", before, after);
    }
    (void)rank, (void)size, (void)s;
}

/* ---- Floods ---- */

static void flood_of_messages(int rank, int size, void *arg)
{
    enum { COUNT = 70000, EACH = 64, LARGE = 1 << 20, LARGE_COUNT = 64 };
    struct scenario *s = arg;
    comm_group *world = fault_world();
    CHECK_OK(comm_barrier(world, NULL, NULL));
    if (rank == 1) {
        static int32_t data[COUNT][EACH / 4];
        static uint8_t large[LARGE];
        static comm_work *works[COUNT + LARGE_COUNT];
        comm_op_options o = COMM_OP_OPTIONS_INIT;
        for (int i = 0; i < COUNT; i++) {
            for (int k = 0; k < EACH / 4; k++)
                data[i][k] = i + k;
            CHECK_OK(comm_send(world, data[i], EACH / 4, COMM_DTYPE_I32, 0, NULL, &works[i]));
        }
        o.tag = 1;
        for (int i = 0; i < LARGE_COUNT; i++)
            CHECK_OK(comm_send(world, large, LARGE, COMM_DTYPE_U8, 0, &o, &works[COUNT + i]));
        for (int i = 0; i < 20; i++)
            CHECK_OK(comm_barrier(world, NULL, NULL)); /* other traffic is not held up */
        fault_meet(s->page);
        CHECK_OK(comm_work_wait_all(works, COUNT + LARGE_COUNT, 0));
        for (int i = 0; i < COUNT + LARGE_COUNT; i++)
            comm_work_release(works[i]);
    } else {
        long before = fault_resident_kib();
        for (int i = 0; i < 20; i++)
            CHECK_OK(comm_barrier(world, NULL, NULL));
        fault_meet(s->page);
        long grown = fault_resident_kib() - before;
        atomic_store(&s->page->values[0], grown);
        for (int i = 0; i < COUNT; i++) {
            int32_t got[EACH / 4];
            CHECK_OK(comm_recv(world, got, EACH / 4, COMM_DTYPE_I32, 1, NULL, NULL));
            for (int k = 0; k < EACH / 4; k++)
                CHECK(got[k] == i + k);
        }
        static uint8_t got[LARGE];
        comm_op_options o = COMM_OP_OPTIONS_INIT;
        o.tag = 1;
        for (int i = 0; i < LARGE_COUNT; i++)
            CHECK_OK(comm_recv(world, got, LARGE, COMM_DTYPE_U8, 1, &o, NULL));
        if (grown > (24 << 10) * FAULT_MEMORY_FACTOR)
            ranks_fail(__FILE__, __LINE__, "%ld KiB more for messages that nobody has received", grown);
    }
    (void)size;
    CHECK_OK(fault_close(world));
}

/* ---- */

static int run(int size, void (*fn)(int, int, void *), struct scenario s, const char *what, int threads,
               uint64_t may_fail)
{
    s.page = page_new(size);
    char name[200];
    snprintf(name, sizeof name, "%s, %d ranks%s, %s, waiting %s", what, size, threads ? " as threads" : "",
             menu_names[s.what], waiting_names[s.how]);
    struct ranks_options options = { .limit_s = 40, .name = name, .threads = threads, .may_fail = may_fail };
    int failed = fault_run(size, &options, fn, &s);
    if (atomic_load(&s.page->event_ns))
        failed |= fault_noticed_late(s.page, size, name, FAULT_NOTICE_MS);
    if (fn == abort_while_blocked)
        printf("%8.1f ms  for comm_group_abort itself\n", (double)atomic_load(&s.page->values[0]) / 1e6);
    if (fn == flood_of_messages)
        printf("%8lld KiB more for messages that nobody has received\n", (long long)atomic_load(&s.page->values[0]));
    fflush(stdout);
    page_free(s.page);
    return failed;
}

int main(int argc, char **argv)
{
    uint64_t random = fault_seed();
    int programs = argc > 1 ? atoi(argv[1]) : 24, failed = 0;
    for (int i = 0; i < MENU_END; i++) {
        struct scenario s = { .what = (enum menu)i,
                              .how = (enum wait_by)(i % WAIT_END),
                              .seed = fault_random(&random) };
        failed |= run(2 + i % 4, abort_while_blocked, s, "abort", 0, 0);
        failed |= run(5 - i % 4, close_with_work_unfinished, s, "close with work unfinished", 0, 0);
        failed |= run(2 + i % 4, forks, s, "fork", 0, 0);
    }
    for (int i = 0; i < programs; i++) {
        struct scenario s = { .seed = fault_random(&random) };
        failed |= run(2 + i % 4, everybody_leaves_when_done, s, "leaving when done", i % 3 == 2, 0);
    }
    struct scenario plain = { .seed = 1 }, gone = { .which = 1 };
    for (int size = 2; size <= 5; size++) {
        failed |= run(size, messages_of_one_who_has_left, plain, "messages of one who leaves", 0, 0);
        failed |= run(size, messages_of_one_who_has_left, gone, "messages of one who has left", 0, 0);
        failed |= run(size, nobody_is_left_to_send, plain, "nobody is left to send", 0, 0);
        failed |= run(size, a_collective_without_one_who_has_left, plain, "a collective of one who has left", 0, 0);
        failed |= run(size, a_collective_without_one_who_has_left, gone, "a collective of one who leaves", 0, 0);
        failed |= run(size, killed_but_its_child_lives, plain, "killed, but its child lives", 0, 2);
        if (strcmp(fault_backend_name(), "shm") == 0) /* tcp is told only when the connection ends */
            failed |= run(size, killed_but_its_child_lives, gone, "killed, but its strange child lives", 0, 2);
        if (size > 2)
            failed |= run(size, monitored_and_gone, plain, "a monitored barrier that timed out", 0, 0);
    }
    for (int i = 0; i < 4; i++) {
        struct scenario s = { .which = i % 2, .seed = (uint64_t)(i / 2) };
        failed |= run(3, a_message_of_one_who_has_closed_the_group, s, "a message of one who has closed", 0, 0);
    }
    setenv("COMM_TCP_ALGO", "gather:linear", 1);
    failed |= run(3, who_has_done_its_part_is_not_blamed, plain, "who has done its part", 0, 0);
    unsetenv("COMM_TCP_ALGO");
    if (!fault_permuted()) /* it makes worlds of its own */
        failed |= run(4, descriptors_are_ours_alone, plain, "descriptors", 0, 0);
    failed |= run(2, flood_of_messages, plain, "a flood", 0, 0);
    return failed;
}
