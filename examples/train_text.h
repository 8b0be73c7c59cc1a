/* The text that train_bytes learns from: rank 0 reads it and sends it to the others. */
#ifndef TRAIN_TEXT_H
#define TRAIN_TEXT_H

#include <comm/comm.h>
#include <stddef.h>
#include <stdint.h>

/* More of a file than this is not read: every rank holds the text in memory. */
#define TEXT_BYTES_MAX ((size_t)256 << 20)

struct text {
    uint8_t *data; /* release with comm_free */
    size_t bytes;
};

/* Rank 0 reads the file at `path` (NULL: libcomm's own sources), at least `bytes_min` bytes of it, and sends it to all.
 * 0, or 1 on every rank if there is no usable text or the ranks cannot talk; rank 0 has said why in the first case, and
 * every rank in the second. */
int text_load(comm_group *world, const char *path, size_t bytes_min, struct text *ret_text);

#endif
