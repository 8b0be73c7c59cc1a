/* Data-parallel training of a small byte-level language model, on as many ranks as there are:
 *
 *     build/tools/commrun -n 4 build/examples/train_bytes [FILE]
 *
 * Every rank has the whole model and the whole text. The samples of a step are chosen by the seed and the step alone;
 * each rank takes its share of them, and the gradients are summed over the ranks by libcomm while the backward pass
 * goes on. As all ranks then take the same step, their parameters stay equal to the last bit, which they prove at the
 * end.
 *
 * Where to look: train_buckets.c is what a framework would do with libcomm, train_text.c how one rank speaks for all,
 * train_model.c the arithmetic. */
#include "train_buckets.h"
#include "train_device.h"
#include "train_model.h"
#include "train_options.h"
#include "train_text.h"

#include <comm/store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct trainer {
    struct options options;
    comm_store *store; /* of a world of one; else NULL */
    comm_group *world;
    int32_t rank, ranks;
    struct text text;
    struct model model;
    struct device device; /* of the gradients' sums */
    struct buckets buckets;
    size_t first, share; /* which samples of a step are this rank's */
    const uint8_t **contexts;
    uint8_t *targets;
};

/* Since the last report. */
struct tally {
    size_t steps;
    double loss; /* summed */
    int64_t begin_ns, busy_ns, exposed_ns;
};

/* Everything but the gradients is in the CPU's memory. A group of several devices must be told. */
static const comm_op_options on_cpu = { .struct_bytes = sizeof on_cpu, .device = COMM_DEVICE_CPU };

/* A failure that each rank sees in its own way, such as a peer that is gone. */
static int fail(const struct trainer *trainer, const char *what)
{
    fprintf(stderr, "train_bytes: rank %d: %s: %s\n", trainer->rank, what, comm_last_error());
    return 1;
}

/* Meet the other ranks; without a launcher, be a world of one. All ranks have the same command line, so a mistake in it
 * is told by one of them. */
static int join(struct trainer *trainer, const comm_launch_info *launch)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    char error[512];

    if (trainer->options.on_gpu && device_open(&trainer->device, launch->local_rank, error, sizeof error) != 0) {
        if (launch->rank <= 0)
            fprintf(stderr, "train_bytes: %s\n", error);
        return 1;
    }
    options.backend = trainer->options.backend;
    if (launch->rank < 0) {
        if (comm_store_open("hash://", NULL, &trainer->store) != COMM_OK)
            return fail(trainer, "no store");
        options.store = trainer->store;
        options.world_size = 1;
    }
    comm_status status = comm_init(&options, &trainer->world);
    if (status != COMM_OK) {
        int mine = launch->rank <= 0 || (status != COMM_ERR_INVALID && status != COMM_ERR_NOT_FOUND);
        if (mine)
            fprintf(stderr, "train_bytes: %s\n", comm_last_error());
        return 1;
    }
    trainer->rank = comm_group_rank(trainer->world);
    trainer->ranks = comm_group_size(trainer->world);
    return 0;
}

/* Everything that a step needs, in memory. All ranks begin with rank 0's parameters. */
static int prepare(struct trainer *trainer)
{
    const struct options *options = &trainer->options;
    size_t rank = (size_t)trainer->rank, ranks = (size_t)trainer->ranks;

    trainer->first = options->batch * rank / ranks;
    trainer->share = options->batch * (rank + 1) / ranks - trainer->first;
    trainer->contexts = calloc(trainer->share + 1, sizeof *trainer->contexts);
    trainer->targets = calloc(trainer->share + 1, 1);
    if (!trainer->contexts || !trainer->targets ||
        model_create(&trainer->model, options->window, options->hidden, trainer->share, options->seed) != 0 ||
        buckets_create(&trainer->buckets, trainer->world, &trainer->device, trainer->model.gradients,
                       trainer->model.gradient_count, options->bucket_bytes) != 0) {
        fprintf(stderr, "train_bytes: rank %d: out of memory\n", trainer->rank);
        return 1;
    }
    if (comm_broadcast(trainer->world, trainer->model.parameters, trainer->model.parameter_count, COMM_DTYPE_F32, 0,
                       &on_cpu, NULL) != COMM_OK)
        return fail(trainer, "sending the first parameters");
    if (options->on_gpu && device_allocate(&trainer->device, trainer->world,
                                           trainer->model.gradient_count * sizeof *trainer->model.gradients) != COMM_OK)
        return fail(trainer, "memory for the gradients on the GPU");
    return 0;
}

/* Choose this rank's samples of a step. Sample i of a step is the same on every rank. */
static void choose_samples(struct trainer *trainer, size_t step)
{
    size_t window = trainer->options.window;
    uint64_t choices = trainer->text.bytes - window;

    for (size_t s = 0; s < trainer->share; s++) {
        uint64_t state = trainer->options.seed * 0x2545f4914f6cdd1du + step * 0x9e6c63d0676a9a99u;
        state = model_random(&state) + trainer->first + s;
        trainer->contexts[s] = trainer->text.data + model_random(&state) % choices;
        trainer->targets[s] = trainer->contexts[s][window];
    }
}

/* One step: forward; backward, during which the gradients leave bucket by bucket; wait; update. */
static int step_forward(struct trainer *trainer, size_t step, float *ret_loss)
{
    struct model *model = &trainer->model;

    choose_samples(trainer, step);
    buckets_begin(&trainer->buckets);
    model_forward(model, trainer->contexts, trainer->share);
    model_backward(model, trainer->contexts, trainer->targets, trainer->share, 1.0f / (float)trainer->options.batch,
                   buckets_ready, &trainer->buckets);
    if (buckets_wait(&trainer->buckets) != COMM_OK)
        return fail(trainer, "summing the gradients");
    model_update(model, (float)trainer->options.learning_rate);
    *ret_loss = model->gradients[model->parameter_count];
    return 0;
}

static void report(const struct trainer *trainer, size_t step, struct tally *tally)
{
    int64_t now_ns = clock_ns();
    double seconds = (double)(now_ns - tally->begin_ns) / 1e9;
    double bytes = (double)(tally->steps * trainer->options.batch);
    double steps = (double)tally->steps;

    if (trainer->rank == 0) {
        printf("%6zu %9.5f %10.0f %11.3f ms %10.3f ms\n", step, tally->loss / steps, bytes / seconds,
               (double)tally->busy_ns / 1e6 / steps, (double)tally->exposed_ns / 1e6 / steps);
        fflush(stdout);
    }
    *tally = (struct tally){ .begin_ns = now_ns };
}

static int train(struct trainer *trainer)
{
    const struct options *options = &trainer->options;
    int64_t begin_ns = clock_ns(), exposed_ns = 0, busy_ns = 0;
    struct tally tally = { .begin_ns = begin_ns };
    float loss = 0.0f;
    double first_loss = 0.0, last_loss = 0.0;

    if (trainer->rank == 0) {
        printf("%d %s over %s; %zu bytes of %s; %zu parameters, their gradients in %zu buckets; %zu steps\n",
               trainer->ranks, trainer->ranks == 1 ? "rank" : "ranks", comm_group_backend(trainer->world),
               trainer->text.bytes, options->path ? options->path : "libcomm's own sources",
               trainer->model.parameter_count, trainer->buckets.count, options->steps);
        printf("  step      loss    bytes/s  communicating    not hidden   (per step, on rank 0)\n");
    }
    for (size_t step = 1; step <= options->steps; step++) {
        if (step_forward(trainer, step, &loss))
            return 1;
        if (step == 1)
            first_loss = (double)loss;
        tally.steps++;
        tally.loss += (double)loss;
        last_loss = tally.loss / (double)tally.steps;
        tally.busy_ns += trainer->buckets.busy_ns;
        tally.exposed_ns += trainer->buckets.exposed_ns;
        busy_ns += trainer->buckets.busy_ns;
        exposed_ns += trainer->buckets.exposed_ns;
        if (step == 1 || step % options->every == 0 || step == options->steps)
            report(trainer, step, &tally);
    }
    if (trainer->rank == 0) {
        double seconds = (double)(clock_ns() - begin_ns) / 1e9;
        printf("loss %.3f -> %.3f in %.1f s; communication took %.1f s of that, %.1f s of it not hidden\n", first_loss,
               last_loss, seconds, (double)busy_ns / 1e9, (double)exposed_ns / 1e9);
    }
    return 0;
}

/* FNV-1a, over the bits of all parameters. */
static uint64_t hash(const float *parameters, size_t count)
{
    const uint8_t *bytes = (const uint8_t *)parameters;
    uint64_t value = 0xcbf29ce484222325u;

    for (size_t i = 0; i < count * sizeof *parameters; i++)
        value = (value ^ bytes[i]) * 0x100000001b3u;
    return value;
}

/* Compare the hash of each rank's parameters. Rank 0 speaks; every rank that is not satisfied fails. */
static int compare_parameters(struct trainer *trainer)
{
    if (trainer->options.spoil == trainer->rank)
        trainer->model.parameters[0] += 1.0f;
    uint64_t mine = hash(trainer->model.parameters, trainer->model.parameter_count);
    uint64_t *hashes = calloc((size_t)trainer->ranks, sizeof *hashes);
    if (!hashes) {
        fprintf(stderr, "train_bytes: rank %d: out of memory\n", trainer->rank);
        return 1;
    }
    if (comm_all_gather(trainer->world, &mine, hashes, 1, COMM_DTYPE_U64, &on_cpu, NULL) != COMM_OK) {
        free(hashes);
        return fail(trainer, "comparing parameters");
    }
    int different = 0;
    for (int32_t r = 1; r < trainer->ranks; r++) {
        if (hashes[r] == hashes[0])
            continue;
        if (trainer->rank == 0)
            fprintf(stderr, "%s%d", different ? ", " : "train_bytes: parameters differ from rank 0's on rank ", r);
        different++;
    }
    if (trainer->rank == 0 && different)
        fprintf(stderr, " (%d of %d ranks)\n", different, trainer->ranks);
    else if (trainer->rank == 0)
        printf("the parameters are bitwise equal on all ranks (%d, hash %016llx)\n", trainer->ranks,
               (unsigned long long)mine);
    free(hashes);
    /* A launcher ends all ranks when the first one fails: none may fail before rank 0 has printed its message. */
    if (different && comm_barrier(trainer->world, &on_cpu, NULL) != COMM_OK)
        return fail(trainer, "waiting for rank 0's report");
    return different > 0;
}

/* Let the model write, beginning with the first bytes of the text. Control characters could do things to a terminal. */
static void write_sample(struct trainer *trainer)
{
    size_t window = trainer->options.window;
    uint64_t state = trainer->options.seed;
    uint8_t *tail = malloc(window);

    if (!tail)
        return;
    memcpy(tail, trainer->text.data, window);
    printf("---- the model writes:\n");
    for (size_t i = 0; i < trainer->options.sample; i++) {
        float random = (float)(model_random(&state) >> 40) / 16777216.0f;
        uint8_t byte = model_sample(&trainer->model, tail, 0.7f, random);
        putchar(byte >= 32 && byte != 127 ? byte : byte == '\n' || byte == '\t' ? byte : '?');
        memmove(tail, tail + 1, window - 1);
        tail[window - 1] = byte;
    }
    printf("\n----\n");
    free(tail);
}

/* At the exit of other ranks. Rank 0 prints the failure that all ranks share. A launcher ends all ranks when the first
 * one fails, so the others wait for a moment until rank 0 has printed it. */
static void leave_after_rank_0(int status, void *context)
{
    (void)context;
    if (status)
        sleep(1);
}

int main(int argc, char **argv)
{
    struct trainer trainer = { .device = { .device = COMM_DEVICE_CPU } };
    comm_launch_info launch = { .struct_bytes = sizeof launch, .rank = -1 };

    /* Before comm_init, the launcher's variables tell which rank prints messages. An error here comes again in
     * comm_init. */
    (void)comm_launch_query(&launch);
    if (launch.rank > 0)
        on_exit(leave_after_rank_0, NULL);
    options_parse(argc, argv, launch.rank <= 0, &trainer.options);
    int status = join(&trainer, &launch);
    if (!status)
        status = text_load(trainer.world, trainer.options.path, trainer.options.window + 1, &trainer.text) ||
                 prepare(&trainer) || train(&trainer) || compare_parameters(&trainer);
    if (!status && trainer.rank == 0 && trainer.options.sample > 0)
        write_sample(&trainer);
    device_close(&trainer.device);
    if (trainer.world && comm_group_close(trainer.world) != COMM_OK && !status)
        status = fail(&trainer, "leaving");
    comm_store_close(trainer.store);
    comm_free(trainer.text.data);
    model_destroy(&trainer.model);
    buckets_destroy(&trainer.buckets);
    free(trainer.contexts);
    free(trainer.targets);
    return status;
}
