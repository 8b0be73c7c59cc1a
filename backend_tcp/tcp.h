/* A mesh is one process's view of one world over TCP: a domain (domain.h) whose ports are links, or some of them those
 * of another carrier (carrier.h), one libuv loop, and what it takes to get connected. Everything in it is guarded by
 * mesh->lock, and the thread that holds the lock may drive the loop: a thread that waits for a work, or the mesh's
 * helper thread when no thread waits (progress.c). Completed works are handed to the core after the lock is released,
 * so that a user's callback may call the library. */
#ifndef COMM_TCP_TCP_H
#define COMM_TCP_TCP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/socket.h>
#include <uv.h>

#include "carrier.h"
#include "domain.h"
#include "forked.h"
#include "helper.h"
#include "waiting.h"
#include "wire.h"

enum {
    TCP_RX_BYTES = 64 << 10,          /* a link's read buffer: an eager message and its header fit */
    TCP_PENDING_CONNS_MAX = 256,      /* connections shaking hands at a time */
    TCP_HANDSHAKE_MS = 10000,
};

struct mesh;
struct tx;

/* A connection that came in and has not proved yet whose it is. */
struct pending_conn {
    struct mesh *mesh;
    int fd;
    uv_poll_t *poll;
    int64_t give_up_ns;
    uint8_t hello[WIRE_HELLO_BYTES], nonce[WIRE_NONCE_BYTES], proof[WIRE_PROOF_BYTES];
    size_t got;
    int32_t from; /* -1: hello not complete */
};

/* How far a link is that is being opened: port.state is PORT_OPENING, else the phase is LINK_NOT_OPENING. */
enum link_phase {
    LINK_NOT_OPENING,
    LINK_RESOLVING,  /* asking the store for the peer's addresses */
    LINK_CONNECTING,
    LINK_CHALLENGED, /* hello sent, waiting for the challenge */
    LINK_AWAITED,    /* the peer is connecting to us */
};

struct link {
    struct port port;     /* first: link_of */
    struct mesh *mesh;
    int fd;
    int broken;           /* errno of a failed send */
    uv_poll_t *poll;      /* heap: libuv closes handles later */
    int poll_events;
    struct tx *tx_head, **tx_tail; /* frames that wait for the socket */
    uint32_t replies;     /* queued answers to what the peer asked */
    int bye_sent;
    uint8_t *rx;          /* TCP_RX_BYTES */
    size_t rx_begin, rx_end;
    /* connect.c, until it is up. */
    uint8_t phase;        /* enum link_phase */
    struct sockaddr_storage *candidates;
    int candidate_count, candidate_next;
    int64_t attempt_end_ns; /* of the address that is being tried */
    int refusals;         /* attempts in a row that met a closed port */
    int same_host;
    int64_t begun_ns;     /* when the peer was wanted */
    int64_t give_up_ns;
    int64_t acknowledged_ns; /* until then all that was sent has been acknowledged, or some of it; read every second */
    uint8_t hello[WIRE_HELLO_BYTES];
    uint8_t shake[WIRE_CHALLENGE_BYTES];
    size_t shake_got;
    char trouble[256];    /* of the latest attempt */
};

struct mesh {
    struct domain domain; /* first: mesh_of */
    struct forked forked;
    struct link *links;   /* [size] */
    struct carrier *local; /* has the ports to the other ranks of this host; NULL: they are links, too */
    uv_poll_t *local_poll;
    char *secret;
    void *store;

    /* progress.c */
    pthread_mutex_t lock;
    atomic_int contenders;  /* threads that want the lock for a short time: a driver makes room */
    atomic_int sleeping;    /* the driver sleeps in the kernel: wake it by uv_async_send */
    struct helper helper;
    pthread_mutex_t park_lock;
    pthread_cond_t park;    /* waiting threads that do not drive */
    atomic_int parked;
    struct waiting waiting;
    int has_read;              /* a link that the loop watches, in this turn of the loop */

    /* loop.c */
    int loop_made;          /* the loop is there to be closed */
    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t timer;       /* deadlines, handshakes */
    uv_timer_t nap;         /* ends a driver's sleep */
    void (*on_due)(struct mesh *m, int64_t now_ns); /* the timer has gone off */
    int64_t timer_due_ns;
    int64_t tick_due_ns;
    int unwatched;          /* libuv was asked for something after it last told the kernel what it waits for */
    int open_handles;

    struct tx *tx_pool;

    /* connect.c, listen.c, endpoint.c, resolve.c */
    struct resolver *resolver; /* NULL until a peer is asked for */
    int listener;
    uv_poll_t *listener_poll;
    int64_t listen_again_ns; /* 0: it listens */
    int listening_paused;    /* it has been said */
    struct pending_conn *pending; /* [TCP_PENDING_CONNS_MAX] */
    int pending_count;
    uint64_t refused;        /* connections */
    int32_t tcp_port;
    char host_identity[96];  /* netaddr_identity */
    int64_t linger_ms, connect_ms, silence_ms;
    char congestion[16];
    char interfaces[128];
};

static inline struct link *link_of(struct port *p)
{
    return (struct link *)p;
}

/* Is it one of ours, or the carrier's? */
static inline int is_link(const struct mesh *m, const struct port *p)
{
    return p == &m->links[p->peer].port;
}

static inline int link_phase(const struct link *l)
{
    return l->port.state == PORT_OPENING ? l->phase : LINK_NOT_OPENING;
}

static inline void link_opening(struct link *l, enum link_phase phase)
{
    l->port.state = PORT_OPENING;
    l->phase = (uint8_t)phase;
}

#endif
