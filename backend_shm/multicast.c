#include "multicast.h"

#include <stdlib.h>
#include <string.h>

#include "duplex.h"
#include "region.h"

enum {
    /* A rank that runs ahead by more has the others read more in a row, while those that share their cores wait. */
    UNDER_WAY_MAX = 4,
    /* They are used in turn. By the time that one is written again its lines have gone from the readers' caches to the
     * last one, which gives them sooner: broadcasts of 16 KiB take 4 ranks 2.7 us so, and with 8 places 3.3. */
    PLACES = 16,
};

struct multicast_copy {
    const uint8_t *data;
    size_t bytes;
    int readers; /* those that may not have read it yet */
    struct {
        struct duplex *peer;
        struct loan loan;
    } reader[MULTICAST_PEERS_MAX];
};

struct multicast {
    struct region *region; /* NULL: there was no memory */
    unsigned made, read;   /* copies, in turn */
    unsigned vain;         /* so many, with one more, were read when a wait was in vain; 0: none was */
    struct multicast_copy under_way[UNDER_WAY_MAX];
};

static int is_read(const struct duplex *p, const struct loan *l)
{
    return p->port.state != PORT_UP || lend_is_taken(p, l);
}

/* That of a peer that has been lost and closed has been ended then: lend_end_all. */
static void end_loan(struct duplex *p, const struct loan *l)
{
    p->copies_lent--;
    if (p->segment.shared)
        lend_end(p, l);
}

/* 0: a peer has yet to read it. */
static int end_copy(struct multicast_copy *c)
{
    for (; c->readers; c->readers--) {
        struct duplex *p = c->reader[c->readers - 1].peer;
        const struct loan *l = &c->reader[c->readers - 1].loan;
        if (!is_read(p, l))
            return 0;
        end_loan(p, l);
    }
    return 1;
}

static struct multicast *open(struct fabric *f)
{
    struct multicast *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->region = region_create(f, (size_t)PLACES * MULTICAST_BYTES_MAX);
    if (m->region)
        region_enter(f, m->region);
    return m;
}

int multicast_has_place(struct fabric *f)
{
    struct multicast *m = f->multicast;
    if (!m && !(m = f->multicast = open(f)))
        return 0;
    while (m->read != m->made && end_copy(&m->under_way[m->read % UNDER_WAY_MAX]))
        m->read++;
    return m->region && m->made - m->read < UNDER_WAY_MAX;
}

int multicast_may_wait(const struct fabric *f)
{
    const struct multicast *m = f->multicast;
    return m && m->region && m->vain != m->read + 1;
}

void multicast_waited_in_vain(struct fabric *f)
{
    f->multicast->vain = f->multicast->read + 1;
}

/* To take in credit may queue a frame that gives some back, and that goes first. */
int multicast_has_room(struct duplex *p, size_t bytes)
{
    return duplex_has_credit(p, bytes) && duplex_is_clear(p) && lend_has_slot(p) &&
           ring_free(&p->out, ring_frame_lines(0)) >= (int64_t)ring_frame_lines(0) &&
           region_tell(p, p->fabric->multicast->region);
}

struct multicast_copy *multicast_make(struct fabric *f, const void *payload, size_t bytes)
{
    struct multicast *m = f->multicast;
    struct multicast_copy *c = &m->under_way[m->made % UNDER_WAY_MAX];
    uint8_t *place = region_data(m->region) + (size_t)(m->made % PLACES) * MULTICAST_BYTES_MAX;
    memcpy(place, payload, bytes);
    *c = (struct multicast_copy){ .data = place, .bytes = bytes };
    m->made++;
    return c;
}

void multicast_send(struct multicast_copy *c, struct duplex *p, struct frame *h)
{
    struct loan *l = &c->reader[c->readers].loan;
    c->reader[c->readers++].peer = p;
    *l = (struct loan){ .payload = c->data, .bytes = c->bytes };
    l->place = region_place(p->fabric->multicast->region, c->data);
    p->copies_lent++;
    duplex_put_lent(p, h, l);
}

void multicast_finish(struct fabric *f)
{
    free(f->multicast);
}
