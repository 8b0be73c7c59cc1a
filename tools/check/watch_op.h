/* The groups and operations that the watched backend has. Works that were made for the backend under test are kept
 * until the group is closed, so that a second completion is known as one. */
#ifndef COMM_CHECK_WATCH_OP_H
#define COMM_CHECK_WATCH_OP_H

#include <pthread.h>
#include <stdatomic.h>

#include "span.h"
#include "watch.h"

extern const comm_host *watch_host;

struct watched_op;

struct watched {
    struct watched *next_open;
    void *inner, *token;
    int32_t rank, size;
    char name[100];
    pthread_mutex_t lock; /* guards the list and the states of the ops */
    struct watched_op *ops;
    _Atomic int64_t aborted_ns; /* 0: not */
};

/* An op that the backend under test has been given. */
struct watched_op {
    struct watched_op *next;
    struct watched *group;
    comm_work *outer, *inner; /* the core's, and the one that we have made */
    comm_op op;               /* its arrays are ours, until it has completed */
    void *arrays;
    int64_t since_ns;
    int state;
    char what[WHAT_BYTES];
};

struct watched *watched_create(const comm_group_info *info);
void watched_destroy(struct watched *g);
int watched_pending(struct watched *g);
/* After group_close: has it left works? */
void watched_check_left(struct watched *g);

struct watched_op *watched_op_create(struct watched *g, const comm_op *op, comm_work *outer, comm_work_done_fn done);
/* submit has refused it. Returns whether it had completed all the same. */
bool watched_op_refuse(struct watched_op *op);
bool watched_op_is_refused(struct watched_op *op);
bool watched_op_is_back(struct watched_op *op);
/* A receive must have its facts, which go on to the core's work. */
void watched_op_facts(struct watched_op *op, comm_status status);
/* It has completed. Gives the work to complete, or NULL if that has been done. */
comm_work *watched_op_done(struct watched_op *op, comm_status status);
/* The operations that completed last, as a sentence. */
const char *watched_last_done(void);
void watched_given_back(const void *memory, size_t bytes);

/* "all_reduce #3 of 10 f32 by sum on group 'world' (rank 0 of 2)". */
void op_text(const struct watched *g, const comm_op *op, char what[WHAT_BYTES]);
/* A copy in memory of its own, and its end: the backend must not have changed it. */
comm_op *op_lend(const comm_op *op, const char *what);
void op_take_back(comm_op *lent, const comm_op *op, const char *what);

#endif
