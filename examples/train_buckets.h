/* Gradients go to the other ranks in buckets: pieces of the gradient array, from its end to its beginning, each of
 * which is all-reduced as soon as the backward pass has completed it. */
#ifndef TRAIN_BUCKETS_H
#define TRAIN_BUCKETS_H

#include <comm/comm.h>
#include <stddef.h>
#include <stdint.h>

#include "train_device.h"

struct bucket {
    size_t offset, count; /* elements of the gradient array */
    comm_work *work;      /* NULL unless under way */
    int64_t started_ns;
};

struct buckets {
    comm_group *world;
    float *gradients;
    const struct device *device; /* where they are summed */
    struct bucket *buckets; /* the first one holds the end of the array */
    size_t count;
    size_t started;     /* so many are under way, or done */
    comm_status status; /* the first failure of this step */
    int64_t busy_ns;    /* this step: at least one bucket was under way */
    int64_t exposed_ns; /* this step: the trainer did nothing but wait or submit */
};

/* Divide `gradient_count` elements into buckets of at most `bucket_bytes`. `device` is borrowed, and has memory for all
 * of them unless it is the CPU. 0, or -1 without memory. */
int buckets_create(struct buckets *buckets, comm_group *world, const struct device *device, float *gradients,
                   size_t gradient_count, size_t bucket_bytes);
void buckets_destroy(struct buckets *buckets);

/* A new step. Then all gradients from `offset` on are complete: start the buckets that this fills (a model_ready_fn).
 * Then wait for all of them: each gradient is now the sum over the ranks. */
void buckets_begin(struct buckets *buckets);
void buckets_ready(void *buckets, size_t offset);
comm_status buckets_wait(struct buckets *buckets);

int64_t clock_ns(void);

#endif
