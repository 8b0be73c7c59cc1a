/* Writes and reads the flight record. Always on: an op costs two short locks that nobody else wants. */
#include "recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/utf8.h"
#include "op.h"

/* A group of a thousand that does little should not cost 70 KB: the ring grows until it has its full size. */
enum { ROOM_AT_FIRST = 16 };

comm_status comm__recorder_init(struct recorder *r, size_t room)
{
    *r = (struct recorder){ .most = room };
    pthread_mutex_init(&r->lock, NULL);
    room = room < ROOM_AT_FIRST ? room : ROOM_AT_FIRST;
    r->slots = calloc(room, sizeof *r->slots);
    r->room = r->slots ? room : 0;
    return r->slots ? COMM_OK : comm__fail(COMM_ERR_NO_MEMORY, "a flight record of %zu operations", room);
}

static struct record_slot *slot_of(const struct recorder *r, uint64_t number)
{
    return &r->slots[(number - 1) % r->room];
}

/* The ring is full for the first time, so record n is still in slot n - 1. Without memory it stays as small as it is.
 */
static void grow(struct recorder *r)
{
    size_t room = r->room * 2 < r->most ? r->room * 2 : r->most;
    struct record_slot *slots = realloc(r->slots, room * sizeof *slots);
    if (!slots)
        return;
    memset(slots + r->room, 0, (room - r->room) * sizeof *slots);
    r->slots = slots;
    r->room = room;
}

void comm__recorder_finish(struct recorder *r)
{
    if (r->slots)
        pthread_mutex_destroy(&r->lock);
    free(r->slots);
}

void comm__record_fill(comm_record *record, const comm_op *op, int64_t now_ns)
{
    record->seq = op->group_seq;
    record->op = comm__op_name(op->kind);
    record->dtype = op->dtype;
    record->redop = op->redop;
    record->peer = op->root;
    record->tag = op->tag;
    record->count = comm__op_count(op);
    record->status = COMM_IN_PROGRESS;
    record->submitted_ns = now_ns;
    record->completed_ns = 0;
    size_t label_bytes = op->label ? strlen(op->label) : 0;
    if (label_bytes >= sizeof record->label)
        label_bytes = utf8_cut(op->label, sizeof record->label - 1);
    if (label_bytes)
        memcpy(record->label, op->label, label_bytes);
    record->label[label_bytes] = '\0';
}

uint64_t comm__recorder_begin(struct recorder *r, const comm_op *op, int64_t now_ns)
{
    pthread_mutex_lock(&r->lock);
    if (r->written == r->room && r->room < r->most)
        grow(r);
    uint64_t number = ++r->written;
    struct record_slot *slot = slot_of(r, number);
    slot->number = number;
    comm__record_fill(&slot->record, op, now_ns);
    pthread_mutex_unlock(&r->lock);
    return number;
}

void comm__recorder_end(struct recorder *r, uint64_t number, comm_status status, int64_t now_ns)
{
    pthread_mutex_lock(&r->lock);
    struct record_slot *slot = slot_of(r, number);
    if (slot->number == number) {
        slot->record.status = status;
        slot->record.completed_ns = now_ns;
    }
    pthread_mutex_unlock(&r->lock);
}

size_t comm__recorder_read(struct recorder *r, comm_record *ret_records, size_t room)
{
    int64_t to_wall = clock_wall_ns() - clock_now_ns();
    pthread_mutex_lock(&r->lock);
    size_t kept = r->written < r->room ? (size_t)r->written : r->room;
    size_t count = kept < room ? kept : room;
    for (size_t i = 0; i < count; i++) {
        uint64_t number = r->written - count + 1 + i;
        ret_records[i] = slot_of(r, number)->record;
        ret_records[i].submitted_ns += to_wall;
        if (ret_records[i].completed_ns)
            ret_records[i].completed_ns += to_wall;
    }
    pthread_mutex_unlock(&r->lock);
    return count;
}
