#include "ring.h"

#include <string.h>

void ring_put_frame(struct ring_out *r, uint64_t key, const struct frame *h, const void *payload, uint32_t bytes)
{
    struct ring_record *record = ring_next(r);
    record->key = key;
    record->credit = h->credit;
    record->bytes = bytes;
    record->frame = *h;
    if (bytes)
        memcpy(bytes > RING_INLINE ? (uint8_t *)(record + 1) : record->inlined, payload, bytes);
    ring_publish(r, ring_frame_lines(bytes));
}

void ring_put_lent(struct ring_out *r, uint64_t key, const struct frame *h, const struct ring_place *place)
{
    struct ring_record *record = ring_next(r);
    record->key = key;
    record->credit = h->credit;
    record->bytes = 0;
    record->place = *place;
    record->frame = *h;
    ring_publish(r, ring_frame_lines(0));
}

void ring_put_more(struct ring_out *r, const void *payload, uint32_t bytes)
{
    struct ring_record *record = ring_next(r);
    record->bytes = bytes;
    memcpy((uint8_t *)record + RING_LINE, payload, bytes);
    atomic_store_explicit(&record->stamp, ring_stamp(r->salt, r->tail) + 1, memory_order_release);
    r->tail += 1 + ring_payload_lines(bytes);
}
