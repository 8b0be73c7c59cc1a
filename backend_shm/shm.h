/* An arena is one process's view of one world over shared memory: a domain (domain.h), its ports, and the threads that
 * wait. Everything in an arena is guarded by arena->lock, and the thread that holds the lock may drive: a thread that
 * waits for a work, or the helper thread when no thread waits (driver.c). Completed works are handed to the core after
 * the lock is released, so that a user's callback may call the library.
 *
 * The ports are duplexes. A duplex is this rank and one peer: two rings, and a socket that ends when the peer's process
 * does. All duplexes of a domain with what it takes to get connected are a fabric, which has no lock and no threads: it
 * belongs to an arena, or to another driver of the domain, which has ports of another kind as well (carrier.h). */
#ifndef COMM_SHM_SHM_H
#define COMM_SHM_SHM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/un.h>

#include "base/futex_lock.h"
#include "carrier.h"
#include "domain.h"
#include "forked.h"
#include "helper.h"
#include "ring.h"
#include "segment.h"
#include "waiting.h"

enum {
    SHM_SILENT_MAX = 256,   /* connections at a time that have not said of which rank they are */
    SHM_HANDSHAKE_MS = 10000,
    SHM_WHY_BYTES = 240,    /* of a reason, with its zero */
    SHM_NAME_BYTES = 64,    /* of a socket, with its zero */
    SHM_LENDABLE = 1024,
    SHM_WRITE_BACK_BYTES = 4096, /* what is shorter is sooner sent than asked for */
};

struct fabric;
struct mapping;
struct multicast;
struct region;
struct tx;

/* A descriptor that is waited for, and what to do when something has come there. */
struct watch {
    void (*ready)(struct watch *w);
    int fd; /* -1: none */
};

/* A connection that came in and has not proved yet which rank it is of. */
struct pending_conn {
    struct watch watch; /* first */
    struct fabric *fabric;
    int64_t give_up_ns;
    int32_t from;       /* -1: it has not said */
    int reserved[2];    /* descriptors that are closed when those of the memory and the bell come; -1: none */
};

/* How far a duplex is that is being opened: port.state is PORT_OPENING, else the phase is DUPLEX_NOT_OPENING. */
enum duplex_phase {
    DUPLEX_NOT_OPENING,
    DUPLEX_RESOLVING,  /* asking the store for the peer's socket */
    DUPLEX_CONNECTING, /* its queue of connections is full; again soon */
    DUPLEX_GREETED,    /* hello sent, waiting for the answer */
    DUPLEX_AWAITED,    /* the peer is connecting to us */
};

/* A message that the peer has announced and that may be read in its memory. */
struct offer {
    struct frame head; /* of a DATA frame */
    struct ring_place place;
};

/* What results of operations of one size take this rank, each step for COPY_OUT_UNIT bytes, and by how many messages
 * that is known; and the way that it has chosen: write_back.c. */
enum back_step { BACK_STAGE, BACK_REDUCE, BACK_TAKE, BACK_KERNEL, BACK_STEPS };

struct back_times {
    int64_t ns[BACK_STEPS];
    uint8_t noted[BACK_STEPS];
    uint8_t way;
    uint32_t messages, operations;
    uint64_t seq; /* of the latest */
};

/* How messages of one size go where both ranks send: lend.c. */
struct ring_choice {
    uint8_t way;     /* as in ring_shared */
    uint8_t doubts;  /* for so many messages in a row the other way has seemed faster */
    uint32_t chosen; /* for so many messages this way was chosen, since it was the other one */
    uint64_t asked;  /* about this message, last */
};

struct duplex {
    struct port port;      /* first: duplex_of */
    struct fabric *fabric;
    struct ring_out out;
    struct ring_in in;
    struct segment segment;
    struct watch watch;    /* the socket */
    struct watch process;  /* the peer's: readable when that has ended */
    int bell;              /* the peer's: an eventfd */
    int hung_up;           /* the socket has ended: what is in the ring is all that comes */
    char why[SHM_WHY_BYTES]; /* the peer has ended it, as it says; "": it has said nothing */
    int32_t up_index;      /* in fabric->up */
    struct tx *tx_head, **tx_tail; /* frames that wait for space in the ring */
    struct tx *lent_head, **lent_tail; /* frames that are sent, whose payload the peer has not read yet */
    struct tx *begun_head; /* what was lent when it went, and has no message yet */
    uint32_t replies;      /* queued answers to what the peer asked */
    int bye_sent;
    uint32_t said_core;    /* as in ring_shared */
    uint32_t small_steps;  /* duplex_give_credit: so many more */
    uint32_t messages;     /* that have come from the peer */
    uint32_t messages_before; /* so many had, when this rank sent its last one at once: duplex_is_in_turn */
    /* lend.c */
    uint32_t loans;        /* a bit for each slot that is taken */
    uint32_t loan;         /* the last one's number */
    int copies_lent;       /* multicast.c: of those slots */
    struct region *staging; /* copies of payloads that are lent, so that the peer can write back; NULL: not made yet */
    uint32_t staged;       /* a bit for each place there that is taken */
    uint32_t staged_in[RING_LOANS]; /* of those, the one of what is lent in a slot */
    int cannot_stage;      /* there is no memory for it */
    uint32_t stuck;        /* a bit for each slot that is taken as long as the peer writes to what was lent there */
    struct back_times back[RING_BACK_SIZES];
    uint8_t borrowed_size; /* of the operation, as above */
    struct ring_place borrowed; /* of the frame that is coming; loan 0: it is not lent */
    int borrowed_kind;          /* as read_ns: of an operation in which both send, of another, or both copy it */
    const uint8_t *borrowed_data; /* in a mapping; NULL: the kernel reads it */
    uint8_t *borrowed_back; /* where the result may be written; NULL: nowhere */
    struct offer offers[RING_LOANS]; /* what the peer has offered, by slot; may be taken back */
    uint32_t accepted;      /* a bit for each of them that is to be read */
    uint8_t way;            /* lend.c: of the latest message that goes one way and could choose */
    uint8_t eager_way;      /* the same of those that are eager */
    uint8_t ring_for;       /* so many of the next eager messages go through the ring: the kernel cannot win */
    uint8_t peer_lends;     /* the peer's latest eager message was lent, but for short ones in the ring */
    uint32_t lends_later;   /* so many of the next eager messages are not lent, as the latest was not read in time */
    uint32_t lends_later_next; /* and so many the next time; 0: as few as at first */
    struct ring_choice choices[RING_WAYS];
    uint64_t tries, tried;  /* so many messages went through the ring as tries; the latest one */
    /* Long parts of messages that the kernel has read for this rank: since the latest piece, as many as there were
     * then, came from the ring; and since one was measured. */
    uint32_t reads_in_a_row, pieces_before, reads_unmeasured;
    uint8_t reads_noted[3]; /* so many, up to a few: of each kind, as read_ns */
    int64_t read_ns[3], take_ns[COPY_OUT_READERS][COPY_OUT_WAYS]; /* as in ring_shared */
    int64_t record_ns;      /* as in ring_shared */
    uint32_t records;       /* of eager messages of LEND_EAGER_LEAST and more, taken from the ring */
    uint32_t pieces;        /* of long messages, and those records */
    uint32_t piece_way;     /* that the latest of them went */
    int probed;            /* whether this rank can read the peer's memory is known, and said */
    pid_t pid;             /* the peer's, if its memory can be read */
    pid_t thread;          /* by whose number the kernel finds it: pid, or another thread if the first one has ended */
    int sees_threads;      /* what the peer's threads do can be seen */
    uint32_t split_before; /* the latest loan that was */
    /* region.c */
    struct mapping *mappings; /* the peer's regions */
    int mapping_count;
    uint32_t maps_heard;      /* of the peer's regions; as in ring_shared */
    int map_refused;          /* the latest of them could not be mapped */
    uint32_t maps_told;       /* of this rank's regions; as in ring_shared */
    struct region *awaited;   /* the latest of them, if the peer has not answered yet; NULL also if it is gone */
    int notice_is_due;        /* it has not been told to look at the socket yet */
    struct kept *kept;        /* keep.c: payloads that stay in the ring, the newest first */
    /* dial.c, until it is up. */
    uint8_t phase;         /* enum duplex_phase */
    char name[SHM_NAME_BYTES]; /* of the peer's socket; "": not known */
    int64_t give_up_ns, again_ns;
    int dial_error, dial_breaks; /* errno of the latest attempt that failed; attempts that the peer has broken off */
};

/* Memory of 256 KiB, and a bit for each 4 KiB of it of which the kernel has read a byte, as for other processes. */
struct lendable {
    uintptr_t number;
    uint64_t parts;
};

struct fabric {
    struct domain *domain;
    const struct carrier_driver *driver;
    struct carrier_looks looks;
    int is_alone;            /* an arena's: there are no sockets that its driver must look at */
    int64_t asked_ns;        /* when a thread that waited on last asked the kernel whether something has happened */
    struct duplex *duplexes; /* [size]: those of ranks of this host are ports of the domain */
    struct duplex **up;      /* [size]: those that are up */
    int32_t up_count;
    char *secret;
    void *store;

    /* events.c */
    int epoll;
    struct watch bell;      /* an eventfd: peers that have something for us ring it when no thread looks */
    int has_barrier;        /* membarrier works here */
    int is_barred;          /* the rings say that this rank passes it before it sleeps */
    int is_asleep;          /* the rings say that no thread looks */

    struct tx *tx_pool;

    /* dial.c, accept.c */
    struct watch listener;
    int64_t listen_again_ns; /* 0: it listens */
    int has_paused;          /* since it accepted the latest connection, without descriptors */
    char name[SHM_NAME_BYTES]; /* of our socket */
    struct pending_conn *pending; /* those that shake hands */
    int pending_places, pending_count; /* there is a place for each rank, too */
    uint64_t refused;       /* connections */
    atomic_int resolving;   /* those for whose peer the helper asks the store */
    int64_t connect_ms;
    size_t ring_bytes;

    /* lend.c */
    uint64_t probe_word;
    int64_t cma_bytes;
    int cma_measured;
    enum copy_out_way copy_way;
    int64_t cma_call_ns, cma_copy_ns; /* what a read costs, and COPY_OUT_UNIT bytes of it; 0: not known */
    struct lendable lendable[SHM_LENDABLE];
    struct region *regions; /* region.c: this rank's */
    uint32_t region_id;     /* the latest one's */
    int has_detached;       /* one of them, once */

    int64_t multicast_bytes;
    struct multicast *multicast; /* NULL: not used yet */
};

struct arena {
    struct domain domain;   /* first: arena_of */
    struct fabric fabric;
    struct forked forked;

    /* driver.c */
    struct futex_lock lock;
    atomic_int contenders;  /* threads that want the lock for a short time: a driver makes room */
    atomic_int sleeping;    /* the driver sleeps in the kernel: wake it by its own bell */
    struct helper helper;
    pthread_mutex_t park_lock;
    pthread_cond_t park;    /* waiting threads that do not drive */
    atomic_int parked;
    int64_t helper_until_ns; /* when its sleep ends if nothing happens */
    struct waiting waiting;
    int64_t nap_ns;          /* how long the helper naps while the program computes; 0: it does not */
    int64_t due_ns;            /* the next deadline, handshake or tick */
    int64_t tick_due_ns;
    int64_t linger_ms;
};

static inline struct arena *arena_of(const struct domain *d)
{
    return (struct arena *)d;
}

static inline struct duplex *duplex_of(struct port *p)
{
    return (struct duplex *)p;
}

/* The operation of what is being read has ended at the sender: what is read of it is not used. The message stays open
 * until the news of that end come. */
static inline void duplex_drop_borrowed(struct duplex *p)
{
    /* An unexpected message costs credit until it is dropped, for it keeps its memory. */
    int is_paid = p->port.in.type == FRAME_EAGER && p->port.sink.kind != SINK_UNEXPECTED;
    size_t eager_bytes = (size_t)p->port.in.bytes;
    p->port.sink.kind = SINK_NONE;
    p->port.sink.message = NULL;
    p->port.sink.unexpected = NULL;
    p->port.in.type = 0;
    if (is_paid)
        port_consumed(&p->port, eager_bytes);
    p->borrowed.loan = 0;
}

static inline int duplex_phase(const struct duplex *p)
{
    return p->port.state == PORT_OPENING ? p->phase : DUPLEX_NOT_OPENING;
}

static inline void duplex_opening(struct duplex *p, enum duplex_phase phase)
{
    p->port.state = PORT_OPENING;
    p->phase = (uint8_t)phase;
}

#endif
