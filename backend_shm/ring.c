#include "ring.h"

/* The processor asks for whole lines if it knows that all of it is written;
 * memcpy lets it know for lengths from 2 KiB on. */
void ring_copy_to_lines(void *to, const void *from, size_t bytes)
{
#ifdef __x86_64__
    enum { FEW = 256 };
    if (bytes >= FEW) {
        __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
        return;
    }
#endif
    memcpy(to, from, bytes);
}

void ring_put_frame(struct ring_out *r, uint64_t key, const struct frame *h, const void *payload, uint32_t bytes)
{
    struct ring_record *record = ring_begin_frame(r, key, h->credit, bytes);
    record->frame = *h;
    record->place.loan = 0;
    ring_end_frame(r, record, payload, bytes);
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
