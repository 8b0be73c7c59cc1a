#include "train_options.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

enum {
    KEY_STEPS = 256,
    KEY_BATCH,
    KEY_SEED,
    KEY_BUCKET,
    KEY_RATE,
    KEY_WINDOW,
    KEY_HIDDEN,
    KEY_BACKEND,
    KEY_DEVICE,
    KEY_SAMPLE,
    KEY_EVERY,
    KEY_SPOIL
};

static const struct argp_option table[] = {
    { "steps", KEY_STEPS, "N", 0, "training steps (1500)", 0 },
    { "batch", KEY_BATCH, "N", 0, "samples per step, over all ranks (1024)", 0 },
    { "window", KEY_WINDOW, "N", 0, "bytes that a prediction looks at (16)", 0 },
    { "hidden", KEY_HIDDEN, "N", 0, "width of the two hidden layers (256)", 0 },
    { "lr", KEY_RATE, "X", 0, "learning rate (0.002)", 0 },
    { "seed", KEY_SEED, "N", 0, "of the first parameters and of every batch (1)", 0 },
    { "bucket-bytes", KEY_BUCKET, "N", 0, "gradients are all-reduced in pieces of so many bytes (262144)", 0 },
    { "backend", KEY_BACKEND, "TEXT", 0, "libcomm's backend string, such as cpu:tcp", 0 },
    { "device", KEY_DEVICE, "NAME", 0,
      "where the gradients are summed: cpu, or cuda (then the backend is cpu:tcp,cuda:nccl by itself)", 0 },
    { "every", KEY_EVERY, "N", 0, "report every N steps (a twentieth of all)", 0 },
    { "sample", KEY_SAMPLE, "N", 0, "write N bytes of text of the model's own at the end (0)", 0 },
    { "spoil", KEY_SPOIL, "RANK", 0, "change a parameter on one rank before the ranks compare theirs, to see it found",
      0 },
    { 0 },
};

/* A whole number within limits; otherwise an error by way of argp. */
static error_t parse_number(const char *what, const char *text, uint64_t low, uint64_t high, uint64_t *ret_value,
                            struct argp_state *state)
{
    char *end;

    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno || end == text || *end || strchr(text, '-') || value < low || value > high) {
        argp_error(state, "--%s takes a whole number from %llu to %llu, not '%s'", what, (unsigned long long)low,
                   (unsigned long long)high, text);
        return EINVAL;
    }
    *ret_value = value;
    return 0;
}

static error_t parse_size(const char *what, const char *text, size_t low, size_t high, size_t *ret_value,
                          struct argp_state *state)
{
    uint64_t value;
    error_t error = parse_number(what, text, low, high, &value, state);

    if (!error)
        *ret_value = (size_t)value;
    return error;
}

static error_t parse_rate(const char *text, double *ret_rate, struct argp_state *state)
{
    char *end;

    double value = strtod(text, &end);
    if (end == text || *end || !(value > 0.0 && value <= 1.0)) {
        argp_error(state, "--lr takes a number above 0 and up to 1, not '%s'", text);
        return EINVAL;
    }
    *ret_rate = value;
    return 0;
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;
    uint64_t rank;
    error_t error;

    switch (key) {
    case KEY_STEPS:
        return parse_size("steps", text, 1, 1000000000, &options->steps, state);
    case KEY_BATCH:
        return parse_size("batch", text, 1, 1 << 20, &options->batch, state);
    case KEY_WINDOW:
        return parse_size("window", text, 1, 1024, &options->window, state);
    case KEY_HIDDEN:
        return parse_size("hidden", text, 1, 8192, &options->hidden, state);
    case KEY_SEED:
        return parse_number("seed", text, 0, UINT64_MAX, &options->seed, state);
    case KEY_BUCKET:
        return parse_size("bucket-bytes", text, sizeof(float), 1 << 30, &options->bucket_bytes, state);
    case KEY_EVERY:
        return parse_size("every", text, 1, 1000000000, &options->every, state);
    case KEY_SAMPLE:
        return parse_size("sample", text, 0, 1 << 20, &options->sample, state);
    case KEY_SPOIL:
        error = parse_number("spoil", text, 0, INT32_MAX, &rank, state);
        if (!error)
            options->spoil = (int64_t)rank;
        return error;
    case KEY_RATE:
        return parse_rate(text, &options->learning_rate, state);
    case KEY_BACKEND:
        options->backend = text;
        return 0;
    case KEY_DEVICE:
        if (strcmp(text, "cpu") != 0 && strcmp(text, "cuda") != 0) {
            argp_error(state, "--device is cpu or cuda, not '%s'", text);
            return EINVAL;
        }
        options->on_gpu = strcmp(text, "cuda") == 0;
        return 0;
    case ARGP_KEY_ARG:
        if (options->path) {
            argp_error(state, "only one file can be given, not '%s' as well", text);
            return EINVAL;
        }
        options->path = text;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Point stderr to /dev/null; returns a descriptor that restores it. */
static int hide_stderr(void)
{
    int kept = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere >= 0) {
        dup2(nowhere, STDERR_FILENO);
        close(nowhere);
    }
    return kept;
}

static void show_stderr(int kept)
{
    if (kept < 0)
        return;
    dup2(kept, STDERR_FILENO);
    close(kept);
}

void options_parse(int argc, char **argv, int talk, struct options *ret_options)
{
    static const struct argp argp = {
        table,
        parse,
        "[FILE]",
        "Train a small model that predicts the next byte of FILE (without one: of libcomm's own sources), on all ranks "
        "that a launcher started, or on one.\vThe samples of a step depend on the seed and the step only, so that any "
        "number of "
        "ranks sees the same loss, within rounding. The first 256 MiB of FILE are used; only rank 0 reads it.",
        NULL,
        NULL,
        NULL
    };

    *ret_options = (struct options){ .steps = 1500,
                                     .batch = 1024,
                                     .window = 16,
                                     .hidden = 256,
                                     .bucket_bytes = 262144,
                                     .seed = 1,
                                     .learning_rate = 0.002,
                                     .spoil = -1 };
    /* argp itself prints and exits, after --help as after a mistake. It must do so on every rank: a rank that went on
     * would wait for those that have left. (With ARGP_NO_ERRS, --help prints nothing and goes on.) So the ranks that
     * are not to talk do the same without a place to write to. */
    argp_err_exit_status = EX_USAGE;
    if (!talk && !freopen("/dev/null", "w", stdout))
        exit(EX_OSERR);
    int hidden = talk ? -1 : hide_stderr();
    argp_parse(&argp, argc, argv, 0, NULL, ret_options);
    show_stderr(hidden);
    if (ret_options->on_gpu && !ret_options->backend)
        ret_options->backend = "cpu:tcp,cuda:nccl";
    if (ret_options->every == 0)
        ret_options->every = ret_options->steps < 20 ? 1 : ret_options->steps / 20;
}
