#include "watch.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "answers.h"
#include "memory.h"
#include "span.h"
#include "watch_op.h"

const comm_host *watch_host;
static comm_backend inner; /* a copy of its table */

struct world {
    void *inner;
    comm_world_info *info;
};

/* ---- What a slot returns ---- */

static bool is_status(comm_status status)
{
    return strncmp(comm_status_name(status), "COMM_", 5) == 0;
}

/* The text that is there before a slot is called, so that one without a text of its own is known. */
static const char no_text[] = "(comm-backend-check: no text)";

static void forget_text(void)
{
    watch_host->fail(COMM_ERR_BUG, no_text);
}

/* `also`: COMM_IN_PROGRESS where a slot may return it. */
static void check_status(const char *slot, comm_status status, comm_status also, const char *what)
{
    if (status == COMM_OK || status == also)
        return;
    if (status > 0 || !is_status(status))
        finding(RULE_slot_status, "%s%s returned %d, which is no status that it can return", slot, what, status);
    else if (strcmp(comm_last_error(), no_text) == 0) {
        finding(RULE_say_why, "%s%s returned %s without a text", slot, what, comm_status_name(status));
        watch_host->fail(status, "it gave no reason");
    }
}

/* ---- Worlds ---- */

void (*watch_before_world_open)(void), (*watch_after_world_open)(void);

static comm_status world_open(void *context, const comm_world_info *info, void **ret_world)
{
    struct world *w = calloc(1, sizeof *w);
    (void)context;
    w->info = lent_take(info->struct_bytes, "comm_world_info");
    memcpy(w->info, info, info->struct_bytes);
    struct span span;
    if (watch_before_world_open)
        watch_before_world_open();
    forget_text();
    span_begin(&span, "world_open", "");
    comm_status status = inner.world_open(inner.context, w->info, &w->inner);
    span_end(&span, RULE_world_open_local);
    if (watch_after_world_open)
        watch_after_world_open();
    check_status("world_open", status, COMM_OK, "");
    if (status == COMM_OK && !w->inner)
        finding_ends(RULE_world_open_null, "world_open returned COMM_OK and left *ret_world NULL");
    if (status != COMM_OK) {
        lent_end(w->info, RULE_arrays);
        free(w);
        return status;
    }
    *ret_world = w;
    return COMM_OK;
}

static void world_close(void *world, int32_t forked)
{
    struct world *w = world;
    struct span span;
    if (forked) { /* our own locks may be held for ever, too */
        inner.world_close(w->inner, forked);
        return;
    }
    span_begin(&span, "world_close", "");
    inner.world_close(w->inner, forked);
    span_end(&span, RULE_COUNT);
    lent_end(w->info, RULE_lets_go);
    free(w);
}

/* ---- Groups ---- */

static struct watched *_Atomic world_group; /* of any rank of this process */

static comm_status group_open(void *world, const comm_group_info *info, void **ret_state)
{
    const struct world *w = world;
    struct watched *g = watched_create(info);
    comm_group_info *theirs = lent_take(info->struct_bytes, "comm_group_info");
    memcpy(theirs, info, info->struct_bytes);
    theirs->parent = info->parent ? ((struct watched *)info->parent)->inner : NULL;
    struct span span;
    forget_text();
    span_begin(&span, "group_open", "");
    comm_status status = inner.group_open(w->inner, theirs, &g->inner);
    span_end(&span, RULE_group_open_local);
    check_status("group_open", status, COMM_OK, "");
    if (status == COMM_OK && !g->inner)
        finding_ends(RULE_group_open_null, "group_open of group '%s' returned COMM_OK and left *ret_state NULL",
                     info->name);
    lent_end(theirs, RULE_submit_const);
    if (status != COMM_OK) {
        watched_destroy(g);
        return status;
    }
    struct watched *none = NULL;
    if (!info->parent)
        atomic_compare_exchange_strong(&world_group, &none, g);
    *ret_state = g;
    return COMM_OK;
}

static comm_status group_connect(void *state, comm_device device, int64_t deadline_ns)
{
    struct watched *g = state;
    struct span span;
    forget_text();
    span_begin(&span, "group_connect", "");
    comm_status status = inner.group_connect(g->inner, device, deadline_ns);
    span_end(&span, RULE_COUNT);
    check_status("group_connect", status, COMM_OK, "");
    return status;
}

static void group_abort(void *state, comm_status status, const char *reason)
{
    struct watched *g = state;
    struct span span;
    if (!g->aborted_ns)
        atomic_store(&g->aborted_ns, watch_host->now_ns());
    span_begin(&span, "group_abort", "");
    inner.group_abort(g->inner, status, reason);
    span_end(&span, RULE_slot_blocks);
}

static void group_close(void *state, int32_t forked)
{
    struct watched *g = state;
    struct span span;
    struct watched *mine = g;
    atomic_compare_exchange_strong(&world_group, &mine, NULL);
    if (forked) { /* works, and locks, are the parent's */
        inner.group_close(g->inner, forked);
        return;
    }
    span_begin(&span, "group_close", "");
    inner.group_close(g->inner, forked);
    span_end(&span, RULE_COUNT);
    watched_check_left(g);
    watched_destroy(g);
}

/* ---- Operations ---- */

static comm_status ask(struct watched *g, const comm_op *op)
{
    char what[WHAT_BYTES], lent_what[WHAT_BYTES + 20];
    op_text(g, op, what);
    snprintf(lent_what, sizeof lent_what, "the comm_op of %s", what);
    comm_op *lent = op_lend(op, lent_what);
    struct span span;
    forget_text();
    span_begin(&span, "supports", what);
    comm_status status = inner.supports(g->inner, lent);
    span_end(&span, RULE_slot_blocks);
    check_status("supports of ", status, COMM_OK, what);
    op_take_back(lent, op, what);
    return status;
}

/* Twice: the answer holds. */
static comm_status ask_twice(struct watched *g, const comm_op *op)
{
    char what[WHAT_BYTES], text[CHECK_TEXT_BYTES];
    comm_status first = ask(g, op);
    snprintf(text, sizeof text, "%s", comm_last_error());
    comm_status second = ask(g, op);
    op_text(g, op, what);
    if (first != second)
        finding(RULE_supports_blocks, "supports of %s, asked twice, gave %s and then %s", what,
                comm_status_name(first), comm_status_name(second));
    answers_note(op, second == COMM_OK, what);
    return second == COMM_OK ? COMM_OK : watch_host->fail(second, second == first ? text : comm_last_error());
}

static comm_status supports(void *state, const comm_op *op)
{
    return inner.supports ? ask_twice(state, op) : COMM_OK;
}

comm_status watch_ask(const comm_op *op)
{
    struct watched *g = atomic_load(&world_group);
    return g && inner.supports ? ask_twice(g, op) : COMM_OK;
}

/* The other backend has completed the work; perhaps inside one of its slots. */
static void is_done(comm_work *work, comm_status status, const char *error, void *context)
{
    struct watched_op *op = context;
    (void)work;
    char what[WHAT_BYTES];
    snprintf(what, sizeof what, "%s", op->what);
    if (!is_status(status) || status == COMM_IN_PROGRESS)
        finding(RULE_status, "%s was completed with the status %d, which is no error of comm.h's", what, status);
    else if (status == COMM_OK && error && *error)
        finding(RULE_status, "%s was completed with COMM_OK and the error '%s'", what, error);
    else if (status != COMM_OK && (!error || !*error))
        finding(RULE_say_why, "%s was completed with %s and no text", what, comm_status_name(status));
    if (watched_op_is_refused(op)) {
        finding(RULE_submit_call, "%s was completed, with %s, after submit had refused it", what,
                comm_status_name(status));
        return;
    }
    watched_op_facts(op, status);
    comm_work *outer = watched_op_done(op, status);
    if (!outer)
        return;
    span_inside_completion(1);
    watch_host->work_complete(outer, status, error);
    span_inside_completion(-1);
}

static comm_status submit(void *state, const comm_op *const *ops, comm_work *const *works, size_t count)
{
    struct watched *g = state;
    comm_work **theirs = calloc(count, sizeof *theirs);
    struct watched_op **mine = calloc(count, sizeof *mine);
    comm_op **lent = calloc(count, sizeof *lent);
    const comm_op **list = calloc(count, sizeof *list);
    for (size_t i = 0; i < count; i++) {
        mine[i] = watched_op_create(g, ops[i], works[i], is_done);
        theirs[i] = mine[i]->inner;
        char lent_what[WHAT_BYTES + 20];
        snprintf(lent_what, sizeof lent_what, "the comm_op of %s", mine[i]->what);
        lent[i] = op_lend(&mine[i]->op, lent_what);
        list[i] = lent[i];
    }
    struct span span;
    forget_text();
    span_begin(&span, "submit", mine[0]->what);
    comm_status status = inner.submit(g->inner, list, theirs, count);
    span_end(&span, RULE_submit_blocks);
    check_status("submit of ", status, COMM_OK, mine[0]->what);
    for (size_t i = 0; i < count; i++) {
        op_take_back(lent[i], &mine[i]->op, mine[i]->what);
        if (status < 0 && is_status(status) && watched_op_refuse(mine[i]))
            finding(RULE_submit_call, "submit of %s returned %s, but its work was completed", mine[i]->what,
                    comm_status_name(status));
    }
    free(theirs);
    free(mine);
    free(lent);
    free(list);
    return status;
}

static comm_status run(void *state, const comm_op *op, int64_t spin_ns)
{
    struct watched *g = state;
    char what[WHAT_BYTES], lent_what[WHAT_BYTES + 20];
    op_text(g, op, what);
    snprintf(lent_what, sizeof lent_what, "the comm_op of %s", what);
    comm_op *lent = op_lend(op, lent_what);
    struct span span;
    forget_text();
    span_begin(&span, "run", what);
    comm_status status = inner.run(g->inner, lent, spin_ns);
    span_end(&span, RULE_run_spins);
    if (status != COMM_ERR_UNSUPPORTED) /* "use submit" is no failure */
        check_status("run of ", status, COMM_IN_PROGRESS, what);
    op_take_back(lent, op, what);
    return status;
}

static comm_status progress(void *state, comm_work *work, int64_t deadline_ns)
{
    struct watched *g = state;
    struct watched_op *op = *watch_host->work_slot(work);
    if (watch_host->work_done(work) || !op)
        return COMM_OK;
    if (watched_op_is_back(op)) { /* another thread is handing it on */
        sched_yield();
        return COMM_OK;
    }
    struct span span;
    forget_text();
    span_begin(&span, "progress", op->what);
    span.aborted_ns = &g->aborted_ns;
    comm_status status = inner.progress(g->inner, op->inner, deadline_ns);
    span_end(&span, deadline_ns == 0 ? RULE_progress_short : RULE_COUNT);
    if (status != COMM_OK)
        finding(RULE_progress_ok, "progress for %s returned %d (%s)", op->what, status, comm_status_name(status));
    return status;
}

static comm_status wait_stream(void *state, comm_work *work, void *stream)
{
    struct watched *g = state;
    struct watched_op *op = *watch_host->work_slot(work);
    return inner.wait_stream(g->inner, op->inner, stream);
}

static comm_status memory_open(void *state, comm_memory_info *info, void **ret_handle)
{
    return inner.memory_open(((struct watched *)state)->inner, info, ret_handle);
}

static void memory_close(void *state, void *handle, int32_t forked)
{
    inner.memory_close(((struct watched *)state)->inner, handle, forked);
}

/* ---- The table ---- */

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static const comm_backend *watched_entry(const comm_host *host)
{
    static comm_backend table;
    (void)host;
    table = (comm_backend){ COMM_BACKEND_INIT,
                            .name = "watched",
                            .version = inner.version,
                            .license = "Apache-2.0",
                            .devices = inner.devices,
                            .traits = inner.traits,
                            .world_open = world_open,
                            .world_close = world_close,
                            .group_open = group_open,
                            .group_connect = inner.group_connect ? group_connect : NULL,
                            .group_abort = group_abort,
                            .group_close = group_close,
                            .supports = supports,
                            .submit = submit,
                            .run = inner.run ? run : NULL,
                            .progress = inner.progress ? progress : NULL,
                            .wait_stream = inner.wait_stream ? wait_stream : NULL,
                            .memory_open = inner.memory_open ? memory_open : NULL,
                            .memory_close = inner.memory_open ? memory_close : NULL };
    table.op_flags &= inner.op_flags;
    table.kind_end = smaller(table.kind_end, inner.kind_end);
    table.dtype_end = smaller(table.dtype_end, inner.dtype_end);
    table.redop_end = smaller(table.redop_end, inner.redop_end);
    return &table;
}

/* The first of two registrations: to have the host table. */
static const comm_backend *finder_entry(const comm_host *host)
{
    watch_host = host;
    host->fail(COMM_ERR_UNSUPPORTED, "only asked for the host table");
    return NULL;
}

/* What the core logs, but does not return to any caller. */
static void on_log(int32_t level, const char *text, void *context)
{
    (void)context;
    if (strstr(text, "completed a work twice"))
        finding(RULE_complete_once, "%s. %s", text, watched_last_done());
    else if (level <= COMM_LOG_WARN)
        fprintf(stderr, "%s\n", text);
}

struct traces {
    int threads, descriptors;
    struct sigaction actions[32];
};

static void look(struct traces *t)
{
    t->threads = thread_count();
    t->descriptors = descriptor_count();
    for (int s = 1; s < 32; s++)
        sigaction(s, NULL, &t->actions[s]);
}

static void compare_traces(const struct traces *before, const char *what)
{
    struct traces now;
    look(&now);
    if (now.threads > before->threads)
        finding(RULE_query_effects, "%s has started %d threads", what, now.threads - before->threads);
    if (now.descriptors > before->descriptors)
        finding(RULE_query_effects, "%s has left %d descriptors open", what, now.descriptors - before->descriptors);
    for (int s = 1; s < 32; s++)
        if (now.actions[s].sa_handler != before->actions[s].sa_handler)
            finding(RULE_no_handlers, "%s has changed the action of signal %d", what, s);
}

static void check_table(const comm_backend *b)
{
    if (!b->version || !*b->version)
        finding(RULE_table, "the table has no version");
    if (!b->license || !*b->license)
        finding(RULE_table, "the table has no license");
    if (!b->devices || !*b->devices)
        finding(RULE_table, "the table has no devices: it serves nothing");
    if (b->abi_major == COMM_BACKEND_ABI_MAJOR && b->op_bytes != sizeof(comm_op))
        note("it was compiled with a comm_op of %u bytes; this libcomm's has %zu", b->op_bytes, sizeof(comm_op));
}

/* Nothing can be looked for. */
__attribute__((format(printf, 1, 2), noreturn)) static void cannot_be_used(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    fflush(NULL);
    _exit(CANNOT_BE_USED);
}

void watch_begin(bool describes)
{
    const comm_backend *found;
    struct traces before;
    comm_log_set(on_log, NULL);
    (void)comm_backend_register(finder_entry);
    look(&before);
    comm_status status = watch_host->backend_find(settings.name, &found);
    if (status != COMM_OK)
        cannot_be_used("the backend cannot be used: %s", comm_last_error());
    inner = *found;
    compare_traces(&before, "loading it, and its query,");
    look(&before);
    for (int i = 0; i < 3 && inner.query; i++) {
        forget_text();
        status = inner.query(inner.context);
        check_status("query", status, COMM_OK, "");
        if (status != COMM_OK)
            finding_ends(RULE_query_effects, "query said yes, and %s when asked again", comm_status_name(status));
    }
    compare_traces(&before, "query");
    if (describes)
        check_table(&inner);
    memory_given_back = watched_given_back;
    if (comm_backend_register(watched_entry) != COMM_OK)
        cannot_be_used("the backend cannot be wrapped: %s", comm_last_error());
}

const comm_backend *watch_inner(void)
{
    return &inner;
}
