#include "watch_op.h"

#include <stdlib.h>
#include <string.h>

#include "memory.h"

enum { GIVEN, REFUSED, BACK };

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows; before a group's lock */
static struct watched *open_groups;

/* What a completed operation has received: it must not change before the program gives the buffer back. */
enum { RECEIPTS = 256, BLOCKS_MAX = CHECK_RANKS_MAX };
struct receipt {
    const void *blocks[BLOCKS_MAX];
    size_t bytes[BLOCKS_MAX];
    int count;
    uint64_t hash;
    char what[WHAT_BYTES];
};
static struct receipt receipts[RECEIPTS];
static unsigned receipt_next;
static pthread_mutex_t receipt_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- Ops ---- */

void op_text(const struct watched *g, const comm_op *op, char what[WHAT_BYTES])
{
    char name[120];
    const comm_op_traits *t = comm_op_traits_of(op->kind);
    watch_host->describe(g->token, op, name, sizeof name);
    size_t count = op->send.count > op->recv.count ? op->send.count : op->recv.count;
    bool reduces = t && (t->traits & COMM_OP_TRAIT_REDUCES);
    int used = snprintf(what, WHAT_BYTES, "%s", name);
    if (op->kind == COMM_OP_BARRIER || used >= WHAT_BYTES)
        return;
    used += snprintf(what + used, (size_t)(WHAT_BYTES - used), " (%zu %s%s%s", count, watch_host->dtype_name(op->dtype),
                     reduces ? " by " : "", reduces ? watch_host->redop_name(op->redop) : "");
    if (used < WHAT_BYTES && op->root >= -1 && t && (t->traits & (COMM_OP_TRAIT_ROOTED | COMM_OP_TRAIT_PEER)))
        used += snprintf(what + used, (size_t)(WHAT_BYTES - used), ", %s %d",
                         t->traits & COMM_OP_TRAIT_ROOTED ? "root" : "peer", op->root);
    if (used < WHAT_BYTES)
        snprintf(what + used, (size_t)(WHAT_BYTES - used), "%s)", op->flags & COMM_OP_FLAG_UNEVEN ? ", uneven" : "");
}

comm_op *op_lend(const comm_op *op, const char *what)
{
    size_t bytes = op->struct_bytes < sizeof *op ? op->struct_bytes : sizeof *op;
    comm_op *lent = lent_take(bytes, what);
    memcpy(lent, op, bytes);
    lent->struct_bytes = (uint32_t)bytes;
    return lent;
}

void op_take_back(comm_op *lent, const comm_op *op, const char *what)
{
    if (memcmp(lent, op, lent->struct_bytes) != 0)
        finding(RULE_submit_const, "the comm_op of %s was changed by the backend; it is const", what);
    lent_end(lent, RULE_submit_const);
}

/* ---- Arrays ---- */

static size_t array_bytes(const comm_buffers *side, int32_t size)
{
    size_t arrays = (side->counts != NULL) + (side->offsets != NULL) + (side->list != NULL);
    return arrays * (size_t)size * sizeof(size_t);
}

static char *move(const void **array, char *to, size_t bytes)
{
    if (!*array)
        return to;
    memcpy(to, *array, bytes);
    *array = to;
    return to + bytes;
}

static char *move_side(comm_buffers *side, char *to, int32_t size)
{
    size_t bytes = (size_t)size * sizeof(size_t);
    to = move((const void **)&side->counts, to, bytes);
    to = move((const void **)&side->offsets, to, bytes);
    return move((const void **)&side->list, to, bytes);
}

/* Counts, offsets, lists and the scalar into memory that is taken away when the op has completed. */
static void lend_arrays(struct watched_op *o)
{
    char text[WHAT_BYTES + 60];
    comm_op *op = &o->op;
    int32_t size = o->group->size;
    size_t scalar = op->premul ? 16 : 0, bytes = array_bytes(&op->send, size) + array_bytes(&op->recv, size) + scalar;
    if (!bytes)
        return;
    snprintf(text, sizeof text, "the counts, offsets, lists or the scalar of %s", o->what);
    o->arrays = lent_take(bytes, text);
    char *at = o->arrays;
    if (scalar) {
        memcpy(at, op->premul, op->element_bytes < 16 ? op->element_bytes : 16);
        op->premul = at;
        at += scalar;
    }
    move_side(&op->recv, move_side(&op->send, at, size), size);
}

/* ---- Groups ---- */

struct watched *watched_create(const comm_group_info *info)
{
    struct watched *g = calloc(1, sizeof *g);
    g->token = info->token;
    g->rank = info->rank;
    g->size = info->size;
    snprintf(g->name, sizeof g->name, "%s", info->name);
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_lock(&list_lock);
    g->next_open = open_groups;
    open_groups = g;
    pthread_mutex_unlock(&list_lock);
    return g;
}

void watched_destroy(struct watched *g)
{
    pthread_mutex_lock(&list_lock);
    struct watched **link = &open_groups;
    while (*link != g)
        link = &(*link)->next_open;
    *link = g->next_open;
    pthread_mutex_unlock(&list_lock);
    while (g->ops) {
        struct watched_op *op = g->ops;
        g->ops = op->next;
        watch_host->work_release(op->inner);
        lent_end(op->arrays, RULE_close_buffers);
        free(op);
    }
    pthread_mutex_destroy(&g->lock);
    free(g);
}

int watched_pending(struct watched *g)
{
    int count = 0;
    pthread_mutex_lock(&g->lock);
    for (const struct watched_op *op = g->ops; op; op = op->next)
        count += op->state == GIVEN;
    pthread_mutex_unlock(&g->lock);
    return count;
}

void watched_check_left(struct watched *g)
{
    int count = watched_pending(g);
    if (count == 0)
        return;
    const struct watched_op *op = g->ops;
    while (op->state != GIVEN)
        op = op->next;
    if (!(watch_inner()->traits & COMM_BACKEND_CANNOT_CANCEL))
        finding(RULE_close_leaves,
                "group_close of group '%s' returned, but %d works have not been completed, such as %s", g->name,
                count, op->what);
}

/* ---- An op's way ---- */

struct watched_op *watched_op_create(struct watched *g, const comm_op *op, comm_work *outer, comm_work_done_fn done)
{
    struct watched_op *o = calloc(1, sizeof *o);
    o->group = g;
    o->outer = outer;
    o->since_ns = watch_host->now_ns();
    comm_op_copy(&o->op, op);
    op_text(g, op, o->what);
    lend_arrays(o);
    if (watch_host->work_create(g->token, done, o, &o->inner) != COMM_OK)
        abort();
    *watch_host->work_slot(outer) = o;
    pthread_mutex_lock(&g->lock);
    o->next = g->ops;
    g->ops = o;
    pthread_mutex_unlock(&g->lock);
    return o;
}

bool watched_op_refuse(struct watched_op *op)
{
    pthread_mutex_lock(&op->group->lock);
    bool was_back = op->state == BACK;
    op->state = REFUSED;
    pthread_mutex_unlock(&op->group->lock);
    *watch_host->work_slot(op->outer) = NULL;
    return was_back;
}

static int state_of(struct watched_op *op)
{
    pthread_mutex_lock(&op->group->lock);
    int state = op->state;
    pthread_mutex_unlock(&op->group->lock);
    return state;
}

bool watched_op_is_refused(struct watched_op *op)
{
    return state_of(op) == REFUSED;
}

bool watched_op_is_back(struct watched_op *op)
{
    return state_of(op) == BACK;
}

void watched_op_facts(struct watched_op *op, comm_status status)
{
    int32_t source, tag;
    size_t count;
    if (op->op.kind != COMM_OP_RECV)
        return;
    watch_host->work_facts(op->inner, &source, &tag, &count);
    if (source >= 0) {
        watch_host->work_received(op->outer, source, tag, count);
        if (source >= op->group->size || count > op->op.recv.count)
            finding(RULE_received, "%s: work_received said %zu elements from rank %d", op->what, count, source);
    } else if (status == COMM_OK || status == COMM_ERR_TRUNCATED) {
        finding(RULE_received, "%s was completed with %s, but work_received had not been called", op->what,
                comm_status_name(status));
    }
}

/* ---- What must not change any more ---- */

static uint64_t hash_of(const struct receipt *r)
{
    uint64_t hash = 1;
    for (int b = 0; b < r->count; b++) {
        const unsigned char *at = r->blocks[b];
        size_t bytes = r->bytes[b];
        for (; bytes >= 8; at += 8, bytes -= 8) {
            uint64_t word;
            memcpy(&word, at, 8);
            hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
            hash ^= hash >> 29;
        }
        for (; bytes > 0; at++, bytes--)
            hash = (hash ^ *at) * 0x100000001b3u;
    }
    return hash;
}

static void write_receipt(const struct watched_op *o)
{
    const comm_op_traits *t = comm_op_traits_of(o->op.kind);
    struct receipt r = { .count = 0 };
    int32_t blocks = t->recv == COMM_OP_SIDE_BLOCKS ? o->group->size : t->recv == COMM_OP_SIDE_ONE ? 1 : 0;
    for (int32_t b = 0; b < blocks && b < BLOCKS_MAX; b++) {
        size_t count;
        const void *at = blocks == 1 && t->recv == COMM_OP_SIDE_ONE
                             ? (count = o->op.recv.count, o->op.recv.data)
                             : comm_op_block(&o->op.recv, o->op.element_bytes, b, &count);
        if (!at || !count || !memory_holds(at))
            continue;
        r.blocks[r.count] = at;
        r.bytes[r.count++] = count * o->op.element_bytes;
    }
    r.hash = hash_of(&r);
    snprintf(r.what, sizeof r.what, "%s", o->what);
    pthread_mutex_lock(&receipt_lock);
    receipts[receipt_next++ % RECEIPTS] = r;
    pthread_mutex_unlock(&receipt_lock);
}

static bool lies_within(const struct receipt *r, const char *memory, size_t bytes)
{
    for (int b = 0; b < r->count; b++)
        if ((const char *)r->blocks[b] >= memory && (const char *)r->blocks[b] < memory + bytes)
            return true;
    return false;
}

/* All of them if `memory` is NULL. Those that were looked at are forgotten. */
static bool look_at_receipts(const void *memory, size_t bytes)
{
    bool found = false;
    pthread_mutex_lock(&receipt_lock);
    for (int i = 0; i < RECEIPTS; i++) {
        struct receipt *r = &receipts[i];
        if (!r->count || (memory && !lies_within(r, memory, bytes)))
            continue;
        if (hash_of(r) != r->hash) {
            found = true;
            finding(RULE_complete_late, "%s: its receive buffer was written after it had been completed", r->what);
        }
        r->count = 0;
    }
    pthread_mutex_unlock(&receipt_lock);
    return found;
}

void watched_given_back(const void *memory, size_t bytes)
{
    look_at_receipts(memory, bytes);
}

const char *watched_last_done(void)
{
    static _Thread_local char text[WHAT_BYTES + 60];
    pthread_mutex_lock(&receipt_lock);
    const struct receipt *last = &receipts[(receipt_next + RECEIPTS - 1) % RECEIPTS];
    snprintf(text, sizeof text, "The last one that was completed before is %s", *last->what ? last->what : "none");
    pthread_mutex_unlock(&receipt_lock);
    return text;
}

bool watch_late_writes(void)
{
    return look_at_receipts(NULL, 0);
}

comm_work *watched_op_done(struct watched_op *op, comm_status status)
{
    if (status == COMM_OK)
        write_receipt(op);
    pthread_mutex_lock(&op->group->lock);
    comm_work *outer = op->state == GIVEN ? op->outer : NULL;
    if (outer)
        op->state = BACK;
    void *arrays = op->arrays;
    op->arrays = NULL;
    pthread_mutex_unlock(&op->group->lock);
    lent_end(arrays, RULE_arrays);
    return outer;
}

/* ---- The story of a rank ---- */

void watch_where(char *text, size_t capacity)
{
    span_where(text, capacity);
}

void watch_story(char *text, size_t capacity)
{
    int shown = 0;
    size_t used = span_story(text, capacity);
    pthread_mutex_lock(&list_lock);
    for (struct watched *g = open_groups; g; g = g->next_open) {
        pthread_mutex_lock(&g->lock);
        for (const struct watched_op *op = g->ops; op && shown < 6 && used < capacity; op = op->next)
            if (op->state == GIVEN && ++shown)
                used += (size_t)snprintf(text + used, capacity - used, "%spending for %.1f s: %s", used ? "; " : "",
                                         (double)(watch_host->now_ns() - op->since_ns) * 1e-9, op->what);
        pthread_mutex_unlock(&g->lock);
    }
    pthread_mutex_unlock(&list_lock);
}

int watch_hangs(void)
{
    int found = span_hangs();
    if (found)
        return found;
    pthread_mutex_lock(&list_lock);
    for (struct watched *g = open_groups; g; g = g->next_open) {
        pthread_mutex_lock(&g->lock);
        for (const struct watched_op *op = g->ops; op; op = op->next)
            if (op->state == GIVEN && watch_host->now_ns() - op->since_ns > 1000000000) {
                finding(self_case()->hangs ? self_case()->hangs : RULE_complete_always,
                        "%s has not been completed for %.1f s", op->what,
                        (double)(watch_host->now_ns() - op->since_ns) * 1e-9);
                found++;
            }
        pthread_mutex_unlock(&g->lock);
    }
    pthread_mutex_unlock(&list_lock);
    return found;
}

int watch_pending(void)
{
    int count = 0;
    pthread_mutex_lock(&list_lock);
    for (struct watched *g = open_groups; g; g = g->next_open)
        count += watched_pending(g);
    pthread_mutex_unlock(&list_lock);
    return count;
}
