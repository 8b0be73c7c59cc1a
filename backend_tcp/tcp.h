/* The objects of the tcp backend and who owns them.
 *
 * A mesh is one process's view of one world: one libuv loop, one link per peer it has talked to, and all the groups that were
 * opened from the world. Everything in this file is guarded by mesh->lock, and whoever holds the lock may drive the loop: a thread that
 * waits for a work, or the mesh's helper thread when nobody waits (progress.c). Completed works are handed to the core after the lock is
 * released, so that a user's callback may call the library.
 *
 *   backend.c   the vtable: entry, open, submit, abort, close
 *   engine.c    executes plans: rounds, slices, steps        plan.c algo/ select.c   what to execute
 *   prepare.c   what an op needs before it starts            operands.c   where a step's operands lie; local steps
 *   p2p.c       send and recv: matching by source and tag
 *   early.c     frames that came before anybody asked for them
 *   group.c     groups: failing, finding, mismatches         inquest.c   deadlines: who has not come
 *   link.c      one connection: queue of frames out, state machine of bytes in
 *   mesh.c      listener, addresses, connecting and shaking hands      resolve.c   asking the store where a peer is
 *   text.c      the words of errors: ranks, calls           say.c       errors and log lines       wire.c      bytes
 *   progress.c  the lock, waiting, the helper thread
 */
#ifndef COMM_TCP_TCP_H
#define COMM_TCP_TCP_H

#include <comm/backend.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <uv.h>

#include "plan.h"
#include "say.h"
#include "select.h"
#include "wire.h"

/* Limits, with their reasons. */
enum {
    TCP_CREDIT_WINDOW = 1 << 20,      /* bytes that a peer may send before they are asked for: bounds memory to 1 MiB a peer */
    TCP_FRAME_COST = WIRE_HEADER_BYTES, /* what an eager frame costs besides its payload */
    TCP_RX_BYTES = 64 << 10,          /* a link's read buffer: an eager message and its header fit */
    TCP_BOUNCE_BYTES = 256 << 10,     /* what is received before it is reduced: fits L2; smaller reads cost 15 % */
    TCP_SEND_MOST = 1 << 20,          /* per system call: more spills the cache without saving calls */
    TCP_EARLY_MOST = 65536,           /* frames of one peer waiting for their receive; beyond it the peer misbehaves */
    TCP_ANNOUNCED_MOST = 16384,       /* sends to one peer that wait for its leave; more wait here, so that the peer need not keep so many */
    TCP_EARLY_INLINE = 256,           /* payloads up to this size need no allocation of their own */
    TCP_REPLIES_MOST = 256,           /* answers waiting for a peer to read them; an honest one asks once per inquest and group */
    TCP_STRANGERS_MOST = 256,         /* connections shaking hands at a time */
    TCP_HANDSHAKE_MS = 10000,
    TCP_CONNECT_MS = 3000,            /* an address that drops what we send must not keep us from the next one */
    TCP_FIRST_MS = 1000,              /* so long the lower rank's attempt at a connection goes before the higher one's */
    TCP_AWAIT_MS = 1500,              /* so long who was told to wait for the other's attempt waits: longer than TCP_FIRST_MS */
    TCP_ACCEPT_PAUSE_MS = 50,         /* when there are no more file descriptors */
    TCP_RETRY_MS = 50,                /* between two rounds through a peer's addresses */
    TCP_REFUSED_HERE_MS = 100,        /* a peer of this host whose port is closed that long has ended */
    TCP_REFUSED_MS = 2000,            /* of another host: a firewall or proxy may refuse for a moment */
    TCP_SLOTS_MOST = 16,              /* slices of one op under way at a time */
    TCP_BUCKETS = 512,
    TCP_CLOSED_REMEMBERED = 1024,     /* groups closed here whose late frames are answered, not kept */
    TCP_TOLD_REMEMBERED = 1024,       /* ends of groups that are not open here yet; 1 KiB each at most */
    TCP_ENDED_MAX = 64,               /* past collectives that are remembered: to notice a peer that called another */
};

struct mesh;
struct link;
struct tcp_group;
struct tcp_op;

/* ---- Frames on their way out ------------------------------------------------------------------ */

struct tx {
    struct tx *next;
    uint8_t header[WIRE_HEADER_BYTES];
    const uint8_t *payload;
    size_t payload_bytes;
    size_t sent;        /* of header and payload together */
    struct tcp_op *op;  /* to be told when it is sent; NULL if nobody cares */
    uint32_t slot, step;
    void *owned;        /* payload memory to free */
    uint8_t reply;      /* counted in link->replies */
};

/* ---- Where incoming bytes go ------------------------------------------------------------------ */

enum sink_kind { SINK_NONE, SINK_DISCARD, SINK_COPY, SINK_REDUCE, SINK_EARLY, SINK_TEXT };

struct sink {
    enum sink_kind kind;
    uint8_t *dst;          /* COPY, REDUCE, EARLY */
    size_t dst_bytes;      /* COPY: what does not fit is dropped (a truncated receive) */
    const uint8_t *local;  /* REDUCE: the other operand */
    int local_is_lower;
    size_t element_bytes;
    void (*kernel)(void *dst, const void *a, const void *b, size_t count);
    size_t total, done;    /* payload bytes */
    uint8_t carry[16];     /* REDUCE: the begun element */
    uint32_t carry_bytes;
    struct tcp_op *op;     /* COPY, REDUCE: whose receive it is */
    uint32_t slot, step;
    struct early *early;   /* EARLY */
};

/* A frame that came before its receive was posted (or a promise of one, or leave to send). */
struct early {
    struct early *next;
    struct early_list *list; /* that it stands in */
    struct frame header;
    int32_t from;            /* world rank; -1: its payload will never be complete */
    uint64_t arrival;        /* counts up over all senders: who was first, for a receive from anybody */
    uint8_t complete;        /* the payload is here */
    uint8_t *data;           /* inline_data or heap */
    struct tcp_op *claimed;  /* posted while the payload was still coming */
    uint32_t slot, step;
    uint8_t inline_data[TCP_EARLY_INLINE];
};

struct early_list {
    struct early *head, **tail;
};

/* ---- Links ------------------------------------------------------------------------------------ */

enum link_state {
    LINK_IDLE,       /* never needed yet */
    LINK_RESOLVING,  /* asking the store for the peer's addresses */
    LINK_CONNECTING,
    LINK_CHALLENGED, /* hello sent, waiting for the challenge */
    LINK_AWAITED,    /* the peer is connecting to us */
    LINK_UP,
    LINK_LEFT,       /* the peer said goodbye */
    LINK_LOST,
};

struct link {
    struct mesh *mesh;
    int32_t peer;         /* world rank */
    enum link_state state;
    int broken;           /* errno of a failed send */
    uint8_t heard;        /* the peer has said something: it knows of this connection */
    int fd;
    uv_poll_t *poll;      /* heap: libuv closes handles later */
    int poll_events;
    struct tx *tx_head, **tx_tail;
    size_t early_count;
    int said_goodbye;
    int32_t hot_index;    /* in mesh->hot while interest > 0, else -1 */
    uint32_t interest;    /* receives and clearances awaited from the peer */
    int64_t credit;       /* eager bytes that may still be sent */
    uint32_t credit_owed; /* eager bytes consumed here and not given back yet */
    uint32_t announced;   /* sends that wait for the peer's leave */
    struct tcp_op *held, **held_tail; /* sends that wait until they may be announced, or go at once; whoever comes later must not pass them */
    int64_t eager_held;   /* eager bytes received and not given back: beyond the window the peer cheats */
    uint32_t replies;     /* queued answers to what the peer asked */
    uint64_t closed_told; /* the latest group of which the peer was told that it is closed here */
    uint8_t *rx;          /* TCP_RX_BYTES */
    size_t rx_begin, rx_end;
    struct frame in; /* the frame whose payload is coming; type 0: none */
    struct sink sink;
    uint8_t text[FRAME_TEXT_MAX + 1];
    /* Connecting. */
    char *address_book;    /* what the peer published */
    struct sockaddr_storage *candidates;
    int candidate_count, candidate_next;
    int64_t attempt_end_ns; /* of the address that is being tried */
    int refusals;          /* attempts in a row that met a closed port */
    int same_host;
    int64_t begun_ns;      /* when the peer was wanted */
    int64_t give_up_ns;
    int64_t acknowledged_ns; /* until then all that was sent has been acknowledged, or some of it; read every second */
    uint8_t hello[WIRE_HELLO_BYTES];
    uint8_t shake[WIRE_CHALLENGE_BYTES];
    size_t shake_got;
    char where[80];        /* "node-b 10.0.0.7:40213", for errors */
    char trouble[256];     /* of the latest attempt */
    comm_status lost_status;
    char *lost_text;
};

/* ---- Operations ------------------------------------------------------------------------------- */

enum step_state { STEP_TODO, STEP_POSTED, STEP_AWAITS_CTS, STEP_SENDING, STEP_DONE };

struct step {
    uint8_t state;
    uint8_t cleared; /* CTS sent */
};

/* One slice under way. */
struct slot {
    uint8_t active;
    uint32_t slice;
    size_t begin, end;      /* elements: of the vector, or of each block */
    uint16_t round;
    uint32_t first, last;   /* the round's steps in the plan */
    uint32_t pending;       /* messages of the round not done yet */
    struct step *steps;     /* by index in the plan minus first; room for the widest round */
    uint8_t *scratch;
};

/* What ranks must agree on, and what errors say of an operation: all that is kept of one that is over. */
struct call {
    uint64_t seq, signature, count;
    int32_t root;
    uint8_t kind, dtype, redop;
};

/* A collective, a send or a receive. */
struct tcp_op {
    struct tcp_op *next;    /* in the group's queue or list, or the pool */
    struct tcp_op **at;     /* in an op_list: what points to it */
    struct tcp_group *group;
    comm_work *work;
    comm_op op;
    struct call call;
    int64_t deadline_ns;    /* INT64_MAX: none */
    size_t element_bytes;
    uint8_t started;
    uint8_t dying;          /* completed; its memory waits for the end of the engine's turn */
    uint32_t begun_tick;    /* mesh->ticks when a collective was submitted */
    /* Collectives. */
    const struct plan *plan;
    struct route route;
    uint32_t slice_count, slice_next, slices_done;
    size_t slice_elements;
    uint32_t slot_count;
    struct slot slots[TCP_SLOTS_MOST];
    comm_buffers in;        /* SEND as the plan sees it: the user's, or a prepared copy */
    /* Point-to-point. */
    size_t bytes;           /* of the buffer; at a receive then of the message */
    int32_t matched_from, matched_tag;
    uint64_t matched_seq;
    uint8_t p2p_state;      /* enum step_state; of a send TODO: held back */
    struct tcp_op *held_next, **held_at;
};

/* Sends or receives, oldest first. */
struct op_list {
    struct tcp_op *head, **tail;
};

/* ---- Groups ----------------------------------------------------------------------------------- */

struct plan_entry {
    struct plan_entry *next;
    const struct algo *algo;
    int32_t root;
    uint32_t widest;        /* messages and local steps of the widest round */
    struct plan plan;
};

/* Why a group has ended, in the words of the rank that found out. They are passed on as they are, so all members have the same. */
struct reason {
    comm_status status;     /* OK: it has not */
    int32_t reporter;       /* that rank, in the group */
    char *text;             /* NULL: there was no memory for it */
};

struct answer {
    uint8_t answered;
    uint8_t asks;           /* it holds an inquest itself */
    uint16_t flags;         /* FRAME_ANSWER_ */
    int32_t waits_for;      /* -1: nobody */
    char text[FRAME_ANSWER_TEXT_MAX + 1];
};

struct tcp_group {
    struct tcp_group *next, **at; /* in mesh->groups, and what points to it there */
    struct tcp_group *bucket_next;
    struct tcp_group *ready_next;
    uint8_t is_ready;       /* in mesh->ready */
    struct mesh *mesh;
    uint64_t id;
    int32_t rank, size;
    int32_t *world_ranks;   /* [size] */
    int32_t *rank_of;       /* [world size]; -1: not a member */
    int32_t *hosts;         /* [size] each rank's host, for plans; NULL: not known */
    int32_t host_count;     /* 0: not known */
    const char *name;
    void *token;
    comm_status status;     /* OK, or why it has ended */
    const char *error;      /* as this rank says it */
    char *error_memory;
    struct reason why;      /* as the rank that found out says it */
    struct tcp_op *head, **tail; /* collectives in order; the head is running */
    struct op_list sends;   /* held back, waiting for leave to send, or for the socket */
    struct op_list recvs;
    uint64_t sends_begun;
    struct call entered;    /* the latest collective submitted; seq 0: none yet */
    uint64_t ended_seq;     /* the latest collective that ended here */
    struct call ended[TCP_ENDED_MAX];
    /* [size] each, by the sender's rank, in order of arrival: a rank that runs far ahead must not be searched through for another's frame. */
    struct early_list *early;     /* of collectives */
    struct early_list *early_p2p;
    struct plan_entry *plans;
    struct select_overrides *overrides;
    uint32_t lanes;
    int64_t slice_bytes;    /* 0: as the route says */
    uint8_t *scratch;
    size_t scratch_bytes;
    uint8_t *prepared;
    size_t prepared_bytes;
    struct step *step_pool;
    size_t step_pool_room;
    /* An inquest under way: whose deadline passed, what the others say. */
    struct tcp_op *inquest;
    int64_t inquest_end_ns;
    int inquest_defers;     /* a lower rank may speak first */
    struct answer *answers; /* [size] */
};

/* ---- The mesh --------------------------------------------------------------------------------- */

/* A group that is not open here: closed here, or ended elsewhere before it was opened here. */
struct past_group {
    uint64_t id;
    uint64_t seq;           /* closed here: its last collective */
    int32_t from;           /* told: by that world rank, which may turn out not to be a member */
    struct reason why;      /* closed here before it ended: the status is OK and the text says who has closed it */
};

struct completion {
    comm_work *work;
    comm_status status;
    char *error;
};

struct mesh {
    struct mesh *next;      /* of this process's; see "Forks" in mesh.c */
    int32_t rank, size;
    uint64_t world;         /* the world group's id */
    char *secret;
    void *store;
    char host_name[64];
    char host_identity[96]; /* netaddr_identity */
    const int32_t *hosts;   /* [size] which ranks share a host; NULL: not known. The core's */

    /* progress.c */
    pthread_mutex_t lock;
    atomic_int contenders;  /* threads that want the lock for a short time: a driver makes room */
    atomic_int sleeping;    /* the driver sits in the kernel: wake it by uv_async_send */
    atomic_int async_works; /* ops that nobody waits for, under way */
    _Atomic int64_t driven_ns; /* when a waiting thread last drove */
    pthread_mutex_t park_lock;
    pthread_cond_t park;    /* waiting threads that do not drive */
    atomic_int parked;
    pthread_cond_t helper_park; /* the helper's own: a waiting thread that woke it at each op would pay two switches */
    atomic_int helper_parked;
    atomic_uint helper_kicks;   /* counts, so that a kick just before the helper lies down is not lost */
    pthread_t helper;
    int helper_runs;
    atomic_int helper_polls;  /* it waits for what it has asked the kernel for */
    atomic_int waiter_drives; /* who holds the lock is a waiting thread, and keeps it until its work is done */
    atomic_int stop;
    int64_t spin_ns, yield_ns; /* how long a waiting thread looks, or looks and yields, before it sleeps */
    int64_t rest_until_ns;     /* no spinning or yielding before that: it did not pay */
    int vain;                  /* times in a row that spinning brought nothing */

    int loop_made;          /* the loop is there to be closed */
    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t timer;       /* deadlines, handshakes */
    struct resolver *resolver; /* resolve.c; NULL until somebody is asked for */
    uv_timer_t nap;         /* ends a driver's sleep */
    int64_t timer_due_ns;
    int unwatched;          /* libuv was asked for something after it last told the kernel what it waits for */
    uint32_t ticks;         /* seconds, roughly: a clock that costs nothing to read */
    int64_t tick_due_ns;

    struct link *links;     /* [size] */
    struct link **hot;      /* links that something is awaited from */
    int32_t hot_count;
    struct tcp_group *ready; /* groups whose next collective may start at the end of the turn */
    int lost_pending;       /* some link has failed and its groups must be told */
    uint8_t in_round;       /* the engine goes through rounds: nothing may be told to operations now, which is asserted */
    struct tcp_group *groups;
    struct tcp_group *buckets[TCP_BUCKETS]; /* the same by id: each message asks, and a world may have thousands */
    struct early_list orphans; /* frames of groups that are not open here (yet) */
    uint64_t arrivals;
    struct past_group closed[TCP_CLOSED_REMEMBERED], told[TCP_TOLD_REMEMBERED]; /* rings: the oldest is forgotten */
    size_t closed_count, told_count;
    uint8_t *bounce;

    struct tx *tx_pool;
    struct tcp_op *op_pool;
    struct early *early_pool;
    struct tcp_op *dying;   /* ops to put back into the pool */
    struct completion *done;
    size_t done_count, done_room;
    size_t works_out;       /* submitted and not handed back: all of them fit into `done` */

    int listener;
    uv_poll_t *listener_poll;
    int64_t listen_again_ns; /* 0: it listens */
    int listening_paused;    /* it has been said */
    struct stranger *strangers;
    int stranger_count;
    uint64_t strangers_refused;
    int32_t port;
    int64_t eager_bytes, linger_ms, connect_ms, silence_ms;
    char congestion[16];
    char interfaces[128];
    int closing;          /* 1: no new connections, but those begun for what was accepted go on; 2: nothing does */
    int open_handles;
};

/* ---- mesh.c ---- */
comm_status mesh_open(const comm_world_info *info, struct mesh **ret_mesh);
/* Its part that needs no network: links that are idle, and memory. */
comm_status mesh_allocate(struct mesh *m, const char *secret);
void mesh_close(struct mesh *m, int forked);
/* Make sure that the link to a peer is up or on its way. */
void mesh_want(struct mesh *m, int32_t peer);
void mesh_tick(struct mesh *m);  /* every second: dead hosts */
void mesh_timer(struct mesh *m); /* due handshakes and connects */
int64_t mesh_due_ns(const struct mesh *m);

/* ---- text.c ---- */
/* A rank of the group: "rank 3", or "rank 3 (world rank 1)" where the two differ; text_peer with its address: "rank 3 (node-b
 * 10.0.0.7:40213)", "rank 3 (world rank 1, node-b 10.0.0.7:40213)"; and a rank of the world, where there is no group. All in a ring of eight
 * buffers of this thread. */
const char *text_rank(const struct tcp_group *g, int32_t rank);
const char *text_peer(const struct tcp_group *g, int32_t rank);
const char *mesh_peer_text(struct mesh *m, int32_t peer);
/* The member `rank` is in another collective than we are, `mine`; or in the same, but sends other than the `bytes` that we expect. */
void text_mismatch(const struct tcp_group *g, int32_t rank, const struct frame *h, const struct call *mine, char *text, size_t room);
void text_lengths(const struct tcp_group *g, int32_t rank, const struct frame *h, const struct call *mine, size_t bytes,
                  char *text, size_t room);

/* ---- resolve.c ---- */
/* Ask the store for a peer's page. 0 without memory; else `answered` gets the page, to take apart, or NULL and why there is none. */
typedef void (*resolver_fn)(struct mesh *m, int32_t peer, char *page, const char *error);
int resolver_ask(struct mesh *m, int32_t peer, resolver_fn answered);
void resolver_stop(struct mesh *m); /* waits for its thread */
void resolver_free(struct mesh *m); /* after the loop */

/* ---- link.c ---- */
/* Put a frame on its way. Returns 1 if it was sent already (`op` is then not told), else 0: link_flush will send the rest and tell `op`,
 * which may be NULL. Calls nothing back. */
int link_send(struct link *l, struct frame *h, const void *payload, size_t bytes, struct tcp_op *op,
              uint32_t slot, uint32_t step);
/* A frame with a short text of its own. */
void link_send_text(struct link *l, struct frame *h, const char *text);
/* The same in answer to a frame of the peer's: bounded, should the peer only ask. */
void link_reply_text(struct link *l, struct frame *h, const char *text);
void link_up(struct link *l, int fd);
/* Read what is there, and write what is queued: for the driver of the loop only, since operations are told what has come and what is
 * sent. link_read returns 1 if something came. */
int link_read(struct link *l);
void link_flush(struct link *l);
/* The text follows the peer's name: "closed the connection". Each group that is told puts the name in its own terms. */
void link_lose(struct link *l, comm_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
void link_close(struct link *l);
void link_interest(struct link *l, int change);
void link_consumed(struct link *l, size_t payload_bytes);
/* The operations of the group are over: their memory must not be read or written any more. */
void link_forget(struct link *l, const struct tcp_group *g);
void link_poll(struct link *l, int events);
void link_sweep_lost(struct mesh *m);

/* ---- operands.c ---- */
/* Does the op move a block per rank, not one vector that the plan cuts into chunks? */
int operand_is_blocks(int32_t kind);
/* Has that side (send, else recv) of such an op a block for each rank? */
int operand_per_rank(int32_t kind, int send_side);
/* Elements of the vector, or of the longest block: what slices are cut from. */
size_t operand_total(const struct tcp_op *op);
/* Elements of the longest chunk in a slice of so many. */
size_t operand_largest_chunk(const struct tcp_op *op, size_t slice_elements);
/* Where a region lies in this slot's slice, and its elements. */
uint8_t *operand_region(const struct tcp_op *op, const struct slot *slot, const struct plan_region *r, size_t *ret_count);
/* Carry out a step that needs no message. 0 without memory. */
int operand_local_step(struct tcp_op *op, struct slot *slot, const struct plan_step *step);

/* ---- prepare.c ---- */
/* Route, plan, slices and memory for the op. NULL, or what is wrong. */
const char *prepare_op(struct tcp_op *op, size_t total);

/* ---- engine.c ---- */
void engine_start(struct tcp_op *op);
void engine_sent(struct tcp_op *op, uint32_t slot, uint32_t step);
void engine_received(struct tcp_op *op, uint32_t slot, uint32_t step);
/* An incoming message of a collective; fills the sink, or returns 0 if it must be kept as early. */
int engine_sink(struct tcp_group *g, struct link *l, const struct frame *h, struct sink *ret_sink);
void engine_cts(struct tcp_group *g, struct link *l, const struct frame *h);
void engine_rts(struct tcp_group *g, struct link *l, const struct frame *h);
/* Put an early frame's payload where the step wants it. */
void engine_take_early(struct tcp_op *op, uint32_t slot, uint32_t step, const struct early *e);
/* A rank of the group that the running collective waits for; -1 if none. */
int32_t engine_awaits(const struct tcp_op *op);
/* Count again what the group's ops await, after all interest in links was dropped. */
void engine_restore_interest(struct tcp_group *g);
/* 1 if the op has something to get from or to bring to that world rank. */
int engine_needs(const struct tcp_op *op, int32_t world_rank);

/* ---- p2p.c ---- */
void p2p_submit(struct tcp_op *op);
void p2p_sent(struct tcp_op *op);
void p2p_list_init(struct op_list *list);
/* Let go what may go by now of the sends that were held back. */
void p2p_release(struct link *l);
/* The op is over, in whatever state it was. */
void p2p_forget(struct tcp_op *op);
void p2p_fill(struct tcp_op *op, const uint8_t *data, size_t message_bytes); /* copy what fits */
void p2p_received(struct tcp_op *op, size_t message_bytes);
int p2p_sink(struct tcp_group *g, struct link *l, const struct frame *h, struct sink *ret_sink);
void p2p_cts(struct tcp_group *g, struct link *l, const struct frame *h);
void p2p_rts(struct tcp_group *g, struct link *l, const struct frame *h);

/* ---- early.c ---- */
/* Where a group keeps what a member sends early; NULL if the sender is not a member. */
struct early_list *early_list_of(struct tcp_group *g, int32_t from, int32_t kind);
struct early *early_add(struct mesh *m, struct early_list *list, int32_t from, const struct frame *h);
/* The first that fits; NULL if there is none. `type` 0: EAGER or RTS. */
struct early *early_find(struct early_list *list, uint8_t type, uint64_t seq, uint32_t slice, uint16_t round);
void early_move(struct early *e, struct early_list *list);
/* Take it out of its list and forget it. */
void early_drop(struct mesh *m, struct early *e);
void early_list_init(struct early_list *list);
void early_list_clear(struct mesh *m, struct early_list *list);
/* [size] empty lists; NULL without memory. */
struct early_list *early_lists_create(int32_t size);
void early_lists_clear(struct mesh *m, struct early_list *lists, int32_t size);
/* The payload of a claimed or waiting frame is complete. */
void early_completed(struct mesh *m, struct link *l, struct early *e);

/* ---- group.c ---- */
comm_status group_create(struct mesh *m, const comm_group_info *info, struct tcp_group **ret_group);
void group_destroy(struct tcp_group *g);
struct tcp_group *group_find(struct mesh *m, uint64_t id);
/* It is open from now on; and has ended, if another rank has said so already. */
void group_enter(struct mesh *m, struct tcp_group *g);
/* It is closed from now on; why it ended, if it did, is kept for those who ask. */
void group_leave(struct tcp_group *g);
void group_forget_past(struct mesh *m); /* when the mesh goes */
/* End the group, for a reason that this rank found: complete all its ops, tell the other members. */
void group_fail(struct tcp_group *g, comm_status status, const char *text);
/* Its next collective may start at the end of the turn. */
void group_ready(struct tcp_group *g);
/* An op is done. */
void group_complete(struct tcp_op *op, comm_status status, const char *text);
/* The end of a turn: start what became first in its queue, tell the groups of lost links, put back what is done. */
void group_turn_end(struct mesh *m);
/* Frames of the control kind, and messages of groups; from link.c. */
void group_frame(struct link *l, const struct frame *h, const char *text);
/* If it is known here why that group ended, tell the peer. `g` is NULL if it is not open. Returns 1 if it is known. */
int group_tell_why(struct link *l, const struct tcp_group *g, uint64_t id);
/* A message for a group that is not open here, or has ended: 1 if the group may still be opened, else the peer has been told, perhaps now. */
int group_may_come(struct link *l, const struct tcp_group *g, const struct frame *h);
/* Does this header belong to the collective that we have (or had) with that number, or to this one? If not, both sides fail. */
int group_matches(struct tcp_group *g, struct link *l, const struct frame *h);
int group_matches_call(struct tcp_group *g, struct link *l, const struct frame *h, const struct call *mine);
/* The collective with that number, if it is queued, running or not long over here; else NULL. */
const struct call *group_collective(struct tcp_group *g, uint64_t seq);
/* The group of that id that was closed here; else NULL. */
const struct past_group *group_closed(struct mesh *m, uint64_t id);
/* The peer's message for this op has another length than `bytes`: their counts differ, and both sides fail. */
void group_lengths_differ(struct tcp_op *op, struct link *l, const struct frame *h, size_t bytes);
/* What is kept of an op, and what headers say of it. */
struct call group_call(const comm_op *op);
void group_header(struct tcp_op *op, uint8_t type, struct frame *ret_header);
void group_peer_gone(struct mesh *m, struct link *l, comm_status status, const char *text);
void group_describe(struct tcp_group *g, const comm_op *op, char *text, size_t room);
struct tcp_op *op_get(struct mesh *m);

/* ---- inquest.c ---- */
void inquest_check(struct mesh *m, int64_t now_ns); /* expired deadlines, inquests that are over */
void inquest_tick(struct mesh *m);                  /* every second: collectives that take long */
int64_t inquest_due_ns(const struct mesh *m);
void inquest_query(struct tcp_group *g, struct link *l, const struct frame *h);
void inquest_answer(struct tcp_group *g, struct link *l, const struct frame *h, const char *text);

/* ---- progress.c ---- */
comm_status progress_start(struct mesh *m);
comm_status progress_helper(struct mesh *m);
void progress_stop(struct mesh *m);
void progress_nap(struct mesh *m, uint64_t most_ms); /* one turn of the loop, for closing */
void progress_enter(struct mesh *m); /* take the lock for a short time */
void progress_leave(struct mesh *m); /* release it and hand completed works to the core */
void progress_leave_quietly(struct mesh *m); /* without handing over: for callers that hold locks of the core */
void progress_rearm(struct mesh *m, int64_t due_ns); /* a deadline earlier than the timer's */
comm_status progress_wait(struct mesh *m, comm_work *work, int64_t deadline_ns);
void progress_leave_to_helper(struct mesh *m); /* so too, and an op that nobody waits for has begun: the helper should look after it */
/* uv_poll_start, noted: epoll hears of it when the loop runs next. */
void progress_watch(struct mesh *m, uv_poll_t *poll, int events, uv_poll_cb fn);
/* Make room for the completion of `count` works that are about to be submitted; or they are not after all. */
comm_status progress_expect(struct mesh *m, size_t count);
void progress_expect_not(struct mesh *m, size_t count);
void progress_done(struct mesh *m, comm_work *work, comm_status status, const char *text);

#endif
