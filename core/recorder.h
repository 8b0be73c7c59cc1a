/* The flight record: a group's last operations in a ring. Guarded by the group's submission lock. */
#ifndef COMM_CORE_RECORDER_H
#define COMM_CORE_RECORDER_H

#include <comm/backend.h>

#include "base/likely.h"
#include "base/ticks.h"
#include "op.h"

/* What a record says of an op that is the same whenever the op comes again. */
struct record_what {
    uint64_t count;
    int32_t peer, tag;
    uint16_t kind, dtype, redop;
    uint16_t has_label;
};

/* One operation, in one cache line. */
struct record_slot {
    _Alignas(64) uint64_t number; /* ordinal of the op held here, from 1; 0: empty */
    uint64_t seq;
    int64_t began, ended; /* ticks; ended is 0 while it is under way */
    struct record_what what;
    comm_status status;
};

typedef char record_label[sizeof((comm_record *)0)->label];

struct recorder {
    struct record_slot *slots;
    record_label *labels; /* of the slots; NULL until an op has one */
    uint64_t capacity;    /* slots there are: a power of two */
    uint64_t most;        /* records that are shown */
    uint64_t written;     /* ops so far */
};

comm_status comm__recorder_init(struct recorder *r, size_t most);
void comm__recorder_finish(struct recorder *r);

/* The ring is full for the first time. */
void comm__recorder_grow(struct recorder *r);
void comm__recorder_label(struct recorder *r, struct record_slot *slot, const char *label);

static inline struct record_slot *recorder_slot(const struct recorder *r, uint64_t number)
{
    return &r->slots[(number - 1) & (r->capacity - 1)];
}

/* Field by field: one wide load of what was just written by several narrow stores would stall until they are done. */
static inline void record_what(struct record_what *ret_what, const comm_op *op)
{
    ret_what->count = op->send.count > op->recv.count ? op->send.count : op->recv.count;
    ret_what->peer = op->root;
    ret_what->tag = op->tag;
    ret_what->kind = (uint16_t)op->kind;
    ret_what->dtype = (uint16_t)op->dtype;
    ret_what->redop = (uint16_t)op->redop;
    ret_what->has_label = 0;
}

/* The next slot, without what is said of the op. */
static inline struct record_slot *recorder_next(struct recorder *r, uint64_t seq, int64_t ticks)
{
    if (UNLIKELY(r->written == r->capacity && r->capacity < r->most))
        comm__recorder_grow(r);
    uint64_t number = ++r->written;
    struct record_slot *slot = recorder_slot(r, number);
    slot->number = number;
    slot->seq = seq;
    slot->began = ticks;
    slot->ended = 0;
    slot->status = COMM_IN_PROGRESS;
    return slot;
}

/* An op begins. The slot's number is for comm__recorder_end. */
static inline struct record_slot *recorder_begin(struct recorder *r, const comm_op *op, int64_t ticks)
{
    struct record_slot *slot = recorder_next(r, op->group_seq, ticks);
    record_what(&slot->what, op);
    if (op->label)
        comm__recorder_label(r, slot, op->label);
    return slot;
}

/* Ignores a record that the ring has dropped since. */
void comm__recorder_end(struct recorder *r, uint64_t number, comm_status status, int64_t ticks);

/* Copy the last ones, oldest first. Times are CLOCK_REALTIME. */
size_t comm__recorder_read(const struct recorder *r, comm_record *ret_records, size_t capacity);

/* What a record says of an op that begins: for hooks, which are told before anything is written. */
void comm__record_fill(comm_record *record, const comm_op *op, int64_t now_ns);

#endif
