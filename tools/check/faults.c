/* What goes wrong around a backend, and how it must end. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cases.h"
#include "check.h"
#include "small.h"
#include "watch.h"

/* The core ends a group three seconds after a limit that its backend should have kept. */
static const double CORE_ENDS_S = 0.6 + 2.7;

enum { LIMIT_MS = 600, LONG_LIMIT_MS = 1500, PENDING = 3 };

static bool has(uint32_t trait)
{
    return (watch_inner()->traits & trait) != 0;
}

static bool is_last(void)
{
    return self_rank() == self_size() - 1;
}

/* Core and backend end a group in several places; this is what is expected of a work then. */
static void check_end(comm_status status, comm_status expected, enum rule rule, const char *when)
{
    if (status != expected)
        finding(rule, "%s: the work ended with %s (%s), not with %s", when, comm_status_name(status),
                status == COMM_OK ? "" : comm_last_error(), comm_status_name(expected));
    if (strstr(comm_last_error(), "has not completed the operation") && !has(COMM_BACKEND_CANNOT_CANCEL))
        finding(RULE_abort_ends, "%s: a second after group_abort the backend had not completed the work", when);
}

/* The group has ended: what is submitted now must fail. */
static void check_ended(comm_group *group, int32_t kind, const char *when)
{
    struct small s;
    if (comm_group_status(group) == COMM_OK)
        finding(RULE_abort_ends, "%s: the group has not ended", when);
    else if (small_begin(&s, group, kind, NULL) == COMM_OK)
        finding(RULE_abort_ends, "%s: an operation was submitted to the ended group", when);
}

/* The last rank takes part in one operation, and not in the next one. */
void faults_missing_rank(void)
{
    comm_group *world = open_world(NULL);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    int32_t kind = small_kind(world);
    options.timeout_ms = LIMIT_MS;
    small_do(world, kind);
    struct small s[PENDING];
    if (!is_last()) {
        self_doing("waiting for an operation with a limit of %d ms, to which a rank does not come", LIMIT_MS);
        for (int i = 0; i < PENDING; i++)
            if (small_begin(&s[i], world, kind, &options) != COMM_OK)
                finding_ends(RULE_deadline, "an operation that waits for another one was refused: %s",
                             comm_last_error());
        int64_t begun_ns = check_now_ns();
        for (int i = 0; i < PENDING; i++)
            check_end(small_wait(&s[i]), COMM_ERR_DEADLINE, RULE_deadline,
                      "a rank does not come, and the limit passes");
        double seconds = (double)(check_now_ns() - begun_ns) * 1e-9;
        if (has(COMM_BACKEND_KEEPS_DEADLINES) && seconds > CORE_ENDS_S)
            finding(RULE_keeps_deadlines,
                    "the core had to end the group: the limit was %d ms, the end came after %.1f s", LIMIT_MS, seconds);
        check_ended(world, kind, "after a deadline");
    }
    meet(world, "end");
    comm_group_close(world);
    for (int i = 0; i < PENDING && !is_last() && !has(COMM_BACKEND_CANNOT_CANCEL); i++)
        small_free(&s[i]);
}

void faults_killed_rank(void)
{
    comm_group *world = open_world(NULL);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    int32_t kind = small_kind(world), lost[CHECK_RANKS_MAX];
    struct small s;
    size_t count = 0;
    options.timeout_ms = LONG_LIMIT_MS;
    small_do(world, kind);
    if (is_last()) {
        await_told(world, "pending");
        kill(getpid(), SIGKILL);
    }
    self_doing("waiting for an operation while a rank is killed");
    comm_status status = small_begin(&s, world, kind, &options);
    if (self_rank() == 0)
        tell(world, "pending");
    int64_t begun_ns = check_now_ns();
    bool begun = status == COMM_OK;
    if (begun)
        status = small_wait(&s);
    double seconds = (double)(check_now_ns() - begun_ns) * 1e-9;
    if (self_rank() == 0)
        note("of a killed rank, rank 0 of %d was told by %s%s%s", self_size(), comm_status_name(status),
             seconds < 1 ? " at once" : "", status == COMM_ERR_DEADLINE ? ", at its time limit" : "");
    if (has(COMM_BACKEND_NOTICES_LOSS) ? status != COMM_ERR_PEER_LOST
                                       : status != COMM_ERR_PEER_LOST && status != COMM_ERR_DEADLINE)
        finding(RULE_loss, "a rank was killed: the work ended with %s after %.1f s: %s", comm_status_name(status),
                seconds, comm_last_error());
    (void)comm_group_lost_ranks(world, lost, CHECK_RANKS_MAX, &count);
    if (has(COMM_BACKEND_NOTICES_LOSS) && status == COMM_ERR_PEER_LOST && (count != 1 || lost[0] != self_size() - 1))
        finding(RULE_loss_named, "rank %d was killed, but comm_group_lost_ranks tells of %zu ranks", self_size() - 1,
                count);
    comm_group_close(world);
    if (begun && !has(COMM_BACKEND_CANNOT_CANCEL))
        small_free(&s);
}

/* Rank 0 has operations that no other rank comes to, and aborts. Then the others come, and must hear of it. */
void faults_abort(void)
{
    comm_group *world = open_world(NULL), *group;
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    int32_t kind = small_kind(world);
    struct small s[PENDING + 1];
    int begun = 0;
    options.timeout_ms = LONG_LIMIT_MS;
    small_do(world, kind);
    if (comm_group_dup(world, NULL, &group) != COMM_OK)
        finding_ends(RULE_result, "comm_group_dup failed: %s", comm_last_error());
    small_do(group, kind);
    if (self_rank() == 0) {
        while (begun < PENDING && small_begin(&s[begun], group, kind, &options) == COMM_OK)
            begun++;
        self_doing("aborting a group");
        (void)comm_group_abort(group, "a test");
        for (int i = 0; i < begun; i++) {
            comm_status status = small_wait(&s[i]);
            if (self_size() > 1 || status != COMM_OK) /* alone, it may have been done */
                check_end(status, COMM_ERR_ABORTED, RULE_abort_ends, "comm_group_abort with works pending");
        }
        check_ended(group, kind, "after an abort");
        tell(world, "aborted");
    } else {
        await_told(world, "aborted");
        self_doing("in an operation on a group that rank 0 has aborted");
        comm_status status = COMM_OK;
        while (begun <= PENDING && status == COMM_OK) { /* rank 0 has taken part in some of them */
            status = small_begin(&s[begun], group, kind, &options);
            if (status == COMM_OK)
                status = small_wait(&s[begun++]);
        }
        if (status == COMM_ERR_DEADLINE)
            note("a rank hears of another rank's abort by its time limit only");
        else if (comm_status_scope(status) != COMM_SCOPE_OBJECT)
            finding(RULE_abort_ends, "rank 0 aborted the group, and then an operation on rank %d gave %s", self_rank(),
                    comm_status_name(status));
    }
    meet(world, "aborted by all");
    comm_group_close(group);
    for (int i = 0; i < begun && !has(COMM_BACKEND_CANNOT_CANCEL); i++)
        small_free(&s[i]);
    small_do(world, kind);
    meet(world, "end");
    comm_group_close(world);
}

/* Rank 0 closes a group on which it has works that cannot end. Afterwards their buffers are its own. */
void faults_close(void)
{
    comm_group *world = open_world(NULL), *group;
    int32_t kind = small_kind(world);
    struct small s[PENDING];
    int begun = 0;
    if (comm_group_dup(world, NULL, &group) != COMM_OK)
        finding_ends(RULE_result, "comm_group_dup failed: %s", comm_last_error());
    while (self_rank() == 0 && begun < PENDING && small_begin(&s[begun], group, kind, NULL) == COMM_OK)
        begun++;
    self_doing("closing a group with works pending");
    comm_status status = self_rank() == 0 ? comm_group_close(group) : COMM_OK;
    if (status != COMM_OK)
        finding(RULE_close_leaves, "comm_group_close with works pending gave %s", comm_status_name(status));
    for (int i = 0; i < begun; i++) {
        if (comm_work_status(s[i].work) == COMM_IN_PROGRESS)
            finding(RULE_close_leaves, "a work is still in progress after its group was closed");
        comm_work_release(s[i].work);
        if (has(COMM_BACKEND_CANNOT_CANCEL))
            continue; /* its memory is lost, as its manual says */
        small_free(&s[i]);
    }
    meet(world, "closed");
    if (self_rank() != 0)
        comm_group_close(group);
    small_do(world, kind);
    meet(world, "end");
    comm_group_close(world);
}

void faults_dropped_works(void)
{
    enum { COUNT = 12 };
    comm_group *world = open_world(NULL);
    int32_t kind = small_kind(world);
    struct small s[COUNT];
    for (int i = 0; i < COUNT; i++) {
        if (small_begin(&s[i], world, kind, NULL) != COMM_OK)
            finding_ends(RULE_result, "an operation failed: %s", comm_last_error());
        comm_work_release(s[i].work);
    }
    self_doing("waiting, by comm_group_flush, for works that were dropped");
    if (comm_group_flush(world, (int64_t)(settings.patience_s * 1000) * 2) != COMM_OK)
        finding(RULE_complete_always, "works that were dropped do not end: %s", comm_last_error());
    for (int i = 0; i < COUNT; i++) {
        small_free(&s[i]);
    }
    meet(world, "end");
    comm_group_close(world);
}

/* ---- fork() ---- */

/* The child has one thread, and the locks of all threads as they were. */
static void child_lets_go(comm_group *group, comm_group *world)
{
    (void)comm_group_close(group);
    (void)comm_group_close(world);
    _exit(0);
}

static bool await_child(pid_t child, int *ret_status)
{
    const struct timespec moment = { 0, 5000000 };
    int64_t until_ns = check_now_ns() + (int64_t)(settings.patience_s * 5e8);
    while (check_now_ns() < until_ns) {
        if (waitpid(child, ret_status, WNOHANG) == child)
            return true;
        nanosleep(&moment, NULL);
    }
    kill(child, SIGKILL);
    waitpid(child, ret_status, 0);
    return false;
}

/* Several times, with operations under way, so that a lock may be held at that moment. */
void faults_fork(void)
{
    enum { CHILDREN = 6 };
    comm_group *world = open_world(NULL), *group;
    int32_t kind = small_kind(world);
    if (comm_group_dup(world, NULL, &group) != COMM_OK)
        finding_ends(RULE_result, "comm_group_dup failed: %s", comm_last_error());
    for (int i = 0; i < CHILDREN; i++) {
        struct small s[PENDING];
        int status = 0, begun = 0;
        while (begun < PENDING && small_begin(&s[begun], group, kind, NULL) == COMM_OK)
            begun++;
        pid_t child = fork();
        if (child == 0)
            child_lets_go(group, world);
        for (int k = 0; k < begun; k++)
            if (small_end(&s[k]) != COMM_OK)
                finding_ends(RULE_fork, "a child was forked, and then an operation of the parent failed: %s",
                             comm_last_error());
        self_doing("waiting for a child of fork() that closes its groups");
        if (!await_child(child, &status))
            finding_ends(RULE_fork, "the child does not get out of group_close or world_close");
        if (WIFSIGNALED(status))
            finding_ends(RULE_fork, "the child is ended by signal %d in group_close or world_close", WTERMSIG(status));
        small_do(world, kind);
    }
    meet(world, "end");
    comm_group_close(group);
    comm_group_close(world);
}

/* ---- Disagreement ---- */

void faults_mismatch(void)
{
    comm_group *world = open_world(NULL);
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    const int32_t *kinds = small_kinds(world);
    struct small s;
    options.timeout_ms = LONG_LIMIT_MS;
    if (!has(COMM_BACKEND_CHECKS_SIGNATURES))
        skip("the backend does not check signatures");
    if (!kinds[0] || !kinds[1])
        skip("the backend has fewer than two kinds of collectives");
    self_doing("in an operation where another rank calls another one");
    comm_status status = small_begin(&s, world, kinds[is_last()], &options);
    bool begun = status == COMM_OK;
    if (begun)
        status = small_wait(&s);
    if (status != COMM_ERR_MISMATCH)
        finding(RULE_mismatch, "ranks called different operations, and rank %d got %s", self_rank(),
                comm_status_name(status));
    meet(world, "end");
    comm_group_close(world);
    if (begun && !has(COMM_BACKEND_CANNOT_CANCEL))
        small_free(&s);
}
