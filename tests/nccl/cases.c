#include "cases.h"

static const char *backend = "cuda:nccl";

int cases_main(int argc, char **argv, const struct nccl_case *cases, size_t count)
{
    int ran = 0, failed = 0;
    if (argc > 1)
        backend = argv[1];
    for (size_t i = 0; i < count; i++) {
        if (argc > 2 && strcmp(argv[2], cases[i].name) != 0)
            continue;
        struct ranks_options options = { .limit_s = 60, .name = cases[i].name };
        failed |= ranks_run(cases[i].size, &options, cases[i].fn, NULL);
        ran++;
    }
    if (ran == 0)
        fprintf(stderr, "there is no case '%s'\n", argc > 2 ? argv[2] : "");
    return failed || ran == 0;
}

bool cases_on_standin(void)
{
    const char *library = getenv("COMM_NCCL_LIBRARY");
    return library && strstr(library, "standin") != NULL;
}

comm_group *cases_world(int rank, const char *more)
{
    char text[200];
    gpu_open(backend, rank);
    snprintf(text, sizeof text, "%s%s", backend, more ? more : "");
    return ranks_world(text);
}

comm_op_options on_gpu(void)
{
    comm_op_options options = COMM_OP_OPTIONS_INIT;
    options.device = gpu_device();
    return options;
}

comm_op_options on_stream(cuda_stream stream)
{
    comm_op_options options = on_gpu();
    options.stream = stream;
    options.flags = COMM_OP_FLAG_ON_STREAM;
    return options;
}

int32_t *vector_new(size_t count, int32_t value)
{
    int32_t *vector = gpu_memory(count * sizeof *vector);
    vector_fill(vector, count, value);
    return vector;
}

void vector_fill(int32_t *vector, size_t count, int32_t value)
{
    int32_t *image = malloc(count * sizeof *image + 1);
    for (size_t i = 0; i < count; i++)
        image[i] = value;
    gpu_write(vector, image, count * sizeof *image);
    free(image);
}

void vector_check(const int32_t *vector, size_t count, int32_t value, const char *file, int line)
{
    int32_t *image = malloc(count * sizeof *image + 1);
    gpu_read(image, vector, count * sizeof *image);
    for (size_t i = 0; i < count; i++)
        if (image[i] != value)
            ranks_fail(file, line, "element %zu of %zu is %d, not %d", i, count, image[i], value);
    free(image);
}

void finish(comm_work *work)
{
    CHECK_OK(comm_work_wait(work, 30000));
    comm_work_release(work);
}

int32_t sum_of_ranks(int size)
{
    return size * (size + 1) / 2;
}
