/* The flight record is always on: an op costs one cache line and one reading of the processor's counter at its
 * beginning, and its end is written when its work is used again or the record is read. */
#include "recorder.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"

/* A group of a thousand that does little should not cost 32 KB: the ring grows until it has its full size. */
enum { CAPACITY_AT_FIRST = 16 };

static struct record_slot *slots_create(uint64_t capacity)
{
    struct record_slot *slots = aligned_alloc(_Alignof(struct record_slot), capacity * sizeof *slots);
    if (slots)
        memset(slots, 0, capacity * sizeof *slots);
    return slots;
}

comm_status comm__recorder_init(struct recorder *r, size_t most)
{
    comm__ticks_begin();
    *r = (struct recorder){ .most = most, .capacity = CAPACITY_AT_FIRST };
    r->slots = slots_create(r->capacity);
    return r->slots ? COMM_OK : comm__fail(COMM_ERR_NO_MEMORY, "a flight record of %zu operations", most);
}

void comm__recorder_finish(struct recorder *r)
{
    free(r->slots);
    free(r->labels);
}

/* Record n is still in slot n - 1. Without memory the ring stays as small as it is. */
void comm__recorder_grow(struct recorder *r)
{
    struct record_slot *slots = slots_create(r->capacity * 2);
    record_label *labels = slots && r->labels ? realloc(r->labels, r->capacity * 2 * sizeof *labels) : NULL;
    if (labels)
        r->labels = labels;
    if (!slots || (r->labels && !labels)) {
        free(slots);
        return;
    }
    memcpy(slots, r->slots, r->capacity * sizeof *slots);
    free(r->slots);
    r->slots = slots;
    r->capacity *= 2;
}

static void copy_label(record_label to, const char *label)
{
    size_t bytes = label ? strlen(label) : 0;
    if (bytes >= sizeof(record_label))
        bytes = utf8_cut(label, sizeof(record_label) - 1);
    if (bytes)
        memcpy(to, label, bytes);
    to[bytes] = '\0';
}

void comm__recorder_label(struct recorder *r, struct record_slot *slot, const char *label)
{
    if (!r->labels)
        r->labels = malloc(r->capacity * sizeof *r->labels);
    if (!r->labels)
        return;
    copy_label(r->labels[slot - r->slots], label);
    slot->what.has_label = 1;
}

void comm__recorder_end(struct recorder *r, uint64_t number, comm_status status, int64_t ticks)
{
    struct record_slot *slot = recorder_slot(r, number);
    if (slot->number != number)
        return;
    slot->status = status;
    slot->ended = ticks;
}

/* A moment on both clocks, and how they relate. */
struct now {
    int64_t ticks, wall_ns;
    double ns_per_tick;
};

static void give(const struct recorder *r, const struct record_slot *slot, const struct now *now,
                 comm_record *ret_record)
{
    *ret_record = (comm_record){ .seq = slot->seq,
                                 .op = comm__op_name(slot->what.kind),
                                 .dtype = slot->what.dtype,
                                 .redop = slot->what.redop,
                                 .peer = slot->what.peer,
                                 .tag = slot->what.tag,
                                 .count = slot->what.count,
                                 .status = slot->status,
                                 .submitted_ns = now->wall_ns -
                                                 ticks_between_ns(slot->began, now->ticks, now->ns_per_tick) };
    if (slot->ended)
        ret_record->completed_ns = ret_record->submitted_ns +
                                   ticks_between_ns(slot->began, slot->ended, now->ns_per_tick);
    if (slot->what.has_label)
        memcpy(ret_record->label, r->labels[slot - r->slots], sizeof ret_record->label);
}

size_t comm__recorder_read(const struct recorder *r, comm_record *ret_records, size_t capacity)
{
    uint64_t shown = r->most < r->capacity ? r->most : r->capacity;
    size_t kept = (size_t)(r->written < shown ? r->written : shown);
    size_t count = kept < capacity ? kept : capacity;
    const struct now now = { ticks_now(), clock_wall_ns(), comm__ns_per_tick() };
    for (size_t i = 0; i < count; i++) {
        uint64_t number = r->written - count + 1 + i;
        give(r, recorder_slot(r, number), &now, &ret_records[i]);
    }
    return count;
}

void comm__record_fill(comm_record *record, const comm_op *op, int64_t now_ns)
{
    *record = (comm_record){ .seq = op->group_seq,
                             .op = comm__op_name(op->kind),
                             .dtype = op->dtype,
                             .redop = op->redop,
                             .peer = op->root,
                             .tag = op->tag,
                             .count = comm__op_count(op),
                             .status = COMM_IN_PROGRESS,
                             .submitted_ns = now_ns };
    copy_label(record->label, op->label);
}
