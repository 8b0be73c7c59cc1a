#include "sink.h"

#include <assert.h>
#include <string.h>

#include "copy.h"

void sink_reset(struct sink *s)
{
    memset(s, 0, offsetof(struct sink, carry));
}

uint8_t *sink_window(struct sink *s, uint8_t *bounce, size_t *ret_bytes)
{
    size_t left = sink_left(s), carried = 0;
    switch (s->kind) {
    case SINK_UNEXPECTED:
    case SINK_TEXT:
        *ret_bytes = left;
        return s->dst + s->done;
    case SINK_COPY:
        if (s->done < s->dst_bytes) {
            *ret_bytes = left < s->dst_bytes - s->done ? left : s->dst_bytes - s->done;
            return s->dst + s->done;
        }
        break;
    case SINK_REDUCE:
        carried = s->carry_bytes;
        memcpy(bounce, s->carry, carried);
        break;
    default:
        break;
    }
    *ret_bytes = left < SINK_BOUNCE_BYTES - carried ? left : SINK_BOUNCE_BYTES - carried;
    return bounce + carried;
}

size_t sink_takes(const struct sink *s, size_t bytes)
{
    size_t left = sink_left(s), n = bytes < left ? bytes : left;
    if (s->kind == SINK_REDUCE && s->carry_bytes + n > SINK_BOUNCE_BYTES)
        n = SINK_BOUNCE_BYTES - s->carry_bytes;
    return n;
}

/* Reduce what lies at `data`, which begins with the carried bytes; keep a begun element for later. */
static void reduce(struct sink *s, const uint8_t *data, size_t bytes)
{
    size_t whole = bytes / s->element_bytes, offset = s->done - s->carry_bytes;
    if (whole) {
        const uint8_t *local = s->local + offset;
        uint8_t *dst = s->dst + offset / s->element_bytes * s->result_bytes;
        if (s->local_is_lower)
            s->kernel(dst, local, data, whole);
        else
            s->kernel(dst, data, local, whole);
    }
    s->carry_bytes = (uint32_t)(bytes - whole * s->element_bytes);
    memmove(s->carry, data + whole * s->element_bytes, s->carry_bytes);
}

/* A block is copied while it is in the first cache. */
static void reduce_and_copy(const struct sink *s, uint8_t *dst, uint8_t *also, const uint8_t *a, const uint8_t *b,
                            size_t bytes)
{
    enum { BLOCK_BYTES = 2 << 10 };
    for (size_t at = 0, now; at < bytes; at += now) {
        now = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
        s->kernel(dst + at, a + at, b + at, now / s->element_bytes);
        memcpy(also + at, dst + at, now);
    }
}

void sink_feed_to_two(struct sink *s, uint8_t *also, const uint8_t *data, size_t n)
{
    const uint8_t *local = s->local + s->done, *a = s->local_is_lower ? local : data, *b = a == local ? data : local;
    uint8_t *dst = s->dst + s->done;
    assert(s->kind == SINK_REDUCE && s->carry_bytes == 0 && s->result_bytes == s->element_bytes &&
           n % s->element_bytes == 0);
    if (s->to_two)
        s->to_two(dst, also, a, b, n / s->element_bytes);
    else
        reduce_and_copy(s, dst, also, a, b, n);
    s->done += n;
}

void sink_feed(struct sink *s, uint8_t *bounce, const uint8_t *data, size_t n)
{
    switch (s->kind) {
    case SINK_UNEXPECTED:
    case SINK_TEXT:
        if (data != s->dst + s->done)
            memcpy(s->dst + s->done, data, n);
        break;
    case SINK_COPY:
        if (s->done < s->dst_bytes && data != s->dst + s->done)
            copy_part(s->dst + s->done, data, n < s->dst_bytes - s->done ? n : s->dst_bytes - s->done, s->is_long);
        break;
    case SINK_REDUCE:
        if (data == bounce + s->carry_bytes) {
            reduce(s, bounce, s->carry_bytes + n);
        } else if (s->carry_bytes == 0) {
            reduce(s, data, n);
        } else {
            memcpy(bounce, s->carry, s->carry_bytes);
            memcpy(bounce + s->carry_bytes, data, n);
            reduce(s, bounce, s->carry_bytes + n);
        }
        break;
    default:
        break;
    }
    s->done += n;
}
