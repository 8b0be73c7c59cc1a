/* A simulator of the whole tcp backend: all ranks in one process and one thread, with the real engine and matching.
 * What carries the frames is drawn from the seed: the real links, queues and wire format over sockets of ours (bounded
 * queues in memory that take and give as many bytes as they like, or fail with EAGAIN and EINTR), or ports of ours.
 * Which rank goes on next, with which port, and how far, is drawn too. What comes out is compared with what comm.h
 * says. */
#ifndef SIMULATE_ENGINE_H
#define SIMULATE_ENGINE_H

#include <comm/backend.h>
#include <stddef.h>
#include <stdint.h>

#include "core/exec/exec_group.h"

/* ---- Random ---- */

uint64_t draw(void);
size_t below(size_t end); /* 0 .. end - 1 */
int one_in(size_t n);

/* ---- What is simulated ---- */

struct team;
struct collective;

enum { MARGIN = 64, POISON = 0xa5, RETIRED = 0x5c };

/* Memory of the user's, with poison before and behind it. */
struct area {
    uint8_t *memory;
    size_t bytes; /* without the margins */
};

enum part_state { PART_WAITING, PART_SUBMITTED, PART_DONE, PART_REFUSED };

/* What one rank does in one operation. A pointer to it is the comm_work that the backend gets. */
struct part {
    struct member *member;
    struct collective *call; /* NULL: point-to-point */
    comm_op op;
    enum part_state state;
    comm_status status;
    char error[256];
    struct area send, recv;
    uint8_t *send_at, *recv_at; /* where the blocks begin */
    size_t *send_offsets, *recv_offsets; /* of blocks, in elements */
    void **send_list, **recv_list;
    /* Point-to-point: what work_received said; a copy of what was received. */
    int32_t from, tag;
    size_t count;
    struct area got;
    uint64_t content;
};

/* One rank in one group; the token that the backend knows it by. */
struct member {
    struct team *team;
    int32_t rank;
    void *state; /* the backend's; NULL until it is opened */
    int closed;
    uint64_t seq;
    struct part **program;
    size_t program_count, submitted, unfinished;
};

struct team {
    char name[32];
    uint64_t id;
    int32_t size;
    int32_t *world_ranks;
    struct member *members;
    char algo[512];
    int64_t lanes, slice_bytes;
    int opens_late; /* members open it when they first need it */
    int doomed;     /* a fault was planned for it: works may fail */
    uint64_t starts_after; /* moves: nothing is submitted before, unless all others are stuck */
};

enum fault { FAULT_NONE, FAULT_ABORT, FAULT_CLOSE, FAULT_CUT, FAULT_DISAGREE, FAULTS };
enum moment { MOMENT_ANY, MOMENT_HALF_READ, MOMENT_HALF_SENT, MOMENT_QUEUED };

/* One run. */
struct world {
    uint64_t seed;
    int32_t size;
    const struct sim_carrier *carrier;
    struct domain **domains;
    struct team **teams; /* teams[0] is the world */
    size_t team_count;
    struct collective *calls;
    size_t parts_open;   /* parts not ended yet */
    int32_t slow_rank;   /* comes to its turn seldom; -1: none */
    int64_t eager_bytes;
    size_t budget;       /* bytes that all ranks' buffers of one collective may have */
    enum fault fault;
    enum moment moment;
    struct team *fault_team;
    int32_t fault_rank, fault_peer; /* of fault_team */
    uint64_t fault_after;           /* moves */
    int fault_done;
    uint64_t moves;      /* whatever happens adds to it; while it stands still, all ranks are stuck */
    int failed;
};

extern struct world *world;

/* Say what is wrong with this run, with its seed; the first time also how to repeat it. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- What carries frames ---- */

struct sim_carrier {
    const char *name;
    struct domain *(*open)(int32_t rank); /* with idle ports to all others */
    void (*silence)(struct domain *d);    /* nothing is said any more */
    void (*close)(struct domain *d);
    /* As the slots of a backend. */
    comm_status (*group_open)(struct domain *d, const comm_group_info *info, void **ret_state);
    void (*group_close)(void *state);
    void (*group_abort)(void *state);
    comm_status (*submit)(void *state, const comm_op *const *ops, comm_work *const *works, size_t count);
    /* What a driver does: enter, look at ports, leave, which ends the turn and hands works over. */
    void (*enter)(struct domain *d);
    void (*visit)(struct port *p);
    void (*leave)(struct domain *d);
    /* Both sides that asked for it come up at a time of their own. */
    void (*up)(struct port *p);
    /* Do frames wait, or messages of this owner if it is not NULL; with `begun`, one that is partly gone? */
    int (*has_queued)(const struct port *p, const void *owner, int begun);
    /* Nothing moves any more: complain about what is left in the port. */
    void (*check)(const struct port *p);
    int (*is_empty)(void); /* nothing that a rank could still hear is on its way */
    /* The connection breaks when so many more bytes have gone from one to the other. */
    void (*cut)(int32_t from, int32_t to, size_t after_bytes);
};

extern const struct sim_carrier sockets, memory_ports;
extern const comm_backend *backend; /* tcp, with a host table of ours */
extern comm_host host;

void net_open(int32_t size, size_t most_capacity);
void net_close(void);
extern uint64_t ports_kept; /* payloads that were kept until they were read, in all runs */
void ports_open(int32_t size);
void ports_close(void);

/* Everything takes and gives all that there is. */
extern int generous;
/* How many of so many bytes: often nearly none, or about a header. */
size_t some_of(size_t bytes);

/* The `open` of all ports: this end and the other are to come up, each at a time of its own. */
void world_want(struct port *p);

/* ---- engine_world.c: ranks, groups, and which rank goes on ---- */
void world_open(void);
void world_close(void);
struct team *team_new(const int32_t *world_ranks, int32_t size, const char *name);
void member_open(struct member *member);
/* Let the ranks go on until all is done; complains about those that are stuck. */
void world_run(void);
/* Nothing moves any more: is everything given back? */
void world_check_quiet(void);

/* ---- engine_calls.c: collectives, drawn and checked ---- */
/* A collective for the team; `kind` 0: any. */
void call_draw(struct team *team, int32_t kind);
/* A rank of the team expects a block of another length than is sent to it. */
void call_draw_disagreeing(struct team *team, int32_t rank);
void call_check(struct part *part);
void calls_free(void);

/* ---- engine_messages.c: sends and receives ---- */
void messages_draw(struct team *team, size_t count);
/* So many from one rank to another. */
void messages_flood(struct team *team, int32_t from, int32_t to, size_t count);
void messages_check(void);

/* ---- Between them ---- */
void member_append(struct member *member, struct part *part);
struct part *part_new(struct member *member, struct collective *call);
void part_free(struct part *part);
void area_open(struct area *area, size_t bytes);
/* The operation is over: nothing may read or write this memory any more. */
void area_retire(struct area *area);
void area_check_retired(const struct part *part, struct area *area, const char *which);
void area_close(struct area *area);
/* Bytes that `seed` gives, from any offset that is a multiple of 8. */
void content_write(uint8_t *at, size_t bytes, uint64_t seed);
uint64_t mix(uint64_t a, uint64_t b);
/* A number of bytes around one of the library's limits, or small. */
size_t draw_bytes(size_t most);

#endif
