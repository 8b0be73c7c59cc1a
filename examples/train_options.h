/* The command line of train_bytes. */
#ifndef TRAIN_OPTIONS_H
#define TRAIN_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

struct options {
    const char *path;    /* NULL: libcomm's own sources */
    const char *backend; /* NULL: libcomm's default */
    int on_gpu;          /* gradients are summed in the memory of a GPU */
    size_t steps, batch, window, hidden, bucket_bytes, sample, every;
    uint64_t seed;
    double learning_rate;
    int64_t spoil; /* a rank, or -1 */
};

/* Parse, with defaults for what is not given. All ranks have the same command line, so only one of them should `talk`.
 * After a mistake, and after --help, every rank exits in here; the one that talks says why. */
void options_parse(int argc, char **argv, int talk, struct options *ret_options);

#endif
