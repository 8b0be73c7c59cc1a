/* The flight record: a group's last operations in a ring of fixed size. Guarded by its own lock, a leaf. */
#ifndef COMM_CORE_RECORDER_H
#define COMM_CORE_RECORDER_H

#include <comm/backend.h>
#include <pthread.h>

struct record_slot {
    uint64_t number;    /* the how-manieth op it holds, from 1; 0: none yet */
    comm_record record; /* times are CLOCK_MONOTONIC in here */
};

struct recorder {
    pthread_mutex_t lock;
    struct record_slot *slots;
    size_t room, most; /* slots there are, and may be */
    uint64_t written; /* ops so far */
};

comm_status comm__recorder_init(struct recorder *r, size_t room);
void comm__recorder_finish(struct recorder *r);

/* What a record says of an op that begins. */
void comm__record_fill(comm_record *record, const comm_op *op, int64_t now_ns);

/* An op begins; the number is for comm__recorder_end, which ignores a record that the ring has dropped since. */
uint64_t comm__recorder_begin(struct recorder *r, const comm_op *op, int64_t now_ns);
void comm__recorder_end(struct recorder *r, uint64_t number, comm_status status, int64_t now_ns);

/* Copy the last ones, oldest first. Times become CLOCK_REALTIME. */
size_t comm__recorder_read(struct recorder *r, comm_record *ret_records, size_t room);

#endif
