/* The whole of data parallelism: one all_reduce per bucket, started early and waited for late. */
#include "train_buckets.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

int64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int buckets_create(struct buckets *buckets, comm_group *world, const struct device *device, float *gradients,
                   size_t gradient_count, size_t bucket_bytes)
{
    size_t capacity = bucket_bytes / sizeof(float);

    memset(buckets, 0, sizeof *buckets);
    buckets->world = world;
    buckets->device = device;
    buckets->gradients = gradients;
    buckets->count = (gradient_count + capacity - 1) / capacity;
    buckets->buckets = calloc(buckets->count, sizeof *buckets->buckets);
    if (!buckets->buckets)
        return -1;
    size_t end = gradient_count;
    for (size_t b = 0; b < buckets->count; b++) {
        buckets->buckets[b].count = end < capacity ? end : capacity;
        end -= buckets->buckets[b].count;
        buckets->buckets[b].offset = end;
    }
    return 0;
}

void buckets_destroy(struct buckets *buckets)
{
    free(buckets->buckets);
    memset(buckets, 0, sizeof *buckets);
}

void buckets_begin(struct buckets *buckets)
{
    buckets->started = 0;
    buckets->status = COMM_OK;
    buckets->busy_ns = 0;
    buckets->exposed_ns = 0;
}

/* Start the sum of one bucket. On a GPU it follows the copy in the same stream: the CPU does not wait for that. */
static comm_status start(struct buckets *buckets, struct bucket *bucket)
{
    const struct device *device = buckets->device;
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    float *data = buckets->gradients + bucket->offset;

    options.device = device->device;
    if (device->data) {
        size_t offset = bucket->offset * sizeof *data;
        unsigned int failed = device_write(device, data, offset, bucket->count * sizeof *data);
        if (failed)
            return device_failed(failed);
        options.stream = device->stream;
        data = (float *)((char *)device->data + offset);
    }
    /* SUM and not AVG: a rank with more samples than another counts for more. See `weight` in model_backward. */
    return comm_all_reduce(buckets->world, data, data, bucket->count, COMM_DTYPE_F32, COMM_REDOP_SUM, &options,
                           &bucket->work);
}

/* The sums, where the model wants them. */
static comm_status fetch(const struct buckets *buckets, const struct bucket *bucket)
{
    float *data = buckets->gradients + bucket->offset;

    if (!buckets->device->data)
        return COMM_OK;
    unsigned int failed = device_read(buckets->device, data, bucket->offset * sizeof *data,
                                      bucket->count * sizeof *data);
    return failed ? device_failed(failed) : COMM_OK;
}

void buckets_ready(void *context, size_t offset)
{
    struct buckets *buckets = context;

    while (buckets->status == COMM_OK && buckets->started < buckets->count) {
        struct bucket *bucket = &buckets->buckets[buckets->started];
        if (bucket->offset < offset)
            break;
        bucket->started_ns = clock_ns();
        buckets->status = start(buckets, bucket);
        buckets->exposed_ns += clock_ns() - bucket->started_ns;
        if (buckets->status == COMM_OK)
            buckets->started++;
    }
}

comm_status buckets_wait(struct buckets *buckets)
{
    int64_t begin_ns = clock_ns();
    int64_t busy_until_ns = 0;

    for (size_t b = 0; b < buckets->started; b++) {
        struct bucket *bucket = &buckets->buckets[b];
        comm_status status = comm_work_wait(bucket->work, 0);
        if (status == COMM_OK)
            status = fetch(buckets, bucket);
        if (buckets->status == COMM_OK)
            buckets->status = status;
        /* Buckets overlap each other; count the time in which there was at least one. */
        int64_t end_ns = bucket->started_ns + comm_work_duration_ns(bucket->work);
        int64_t from_ns = bucket->started_ns > busy_until_ns ? bucket->started_ns : busy_until_ns;
        if (end_ns > from_ns) {
            buckets->busy_ns += end_ns - from_ns;
            busy_until_ns = end_ns;
        }
        comm_work_release(bucket->work);
        bucket->work = NULL;
    }
    buckets->exposed_ns += clock_ns() - begin_ns;
    return buckets->status;
}
