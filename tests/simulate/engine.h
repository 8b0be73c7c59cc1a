/* A simulator of the whole tcp backend: the meshes of all ranks in one process and one thread, with the real engine, links, queues and wire
 * format. Only the sockets are ours: bounded queues in memory that take and give as many bytes as they like, or fail with EAGAIN and EINTR.
 * Which rank goes on next, with which link, and how far, is drawn from a seed. What comes out is compared with what comm.h says. */
#ifndef SIMULATE_ENGINE_H
#define SIMULATE_ENGINE_H

#include <comm/backend.h>
#include <stddef.h>
#include <stdint.h>

#include "backend_tcp/tcp.h"

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
    struct mesh **meshes;
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
    uint64_t moves;      /* whatever happens adds to it; who waits for nothing is stuck */
    int failed;
};

extern struct world *world;

/* Say what is wrong with this run, with its seed; the first time also how to repeat it. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- engine_net.c: sockets in memory ---- */
void net_open(int32_t size, size_t most_room);
void net_close(void);
/* The adversary takes and gives all that there is, and interrupts nothing. */
extern int net_generous;
int net_is_empty(void);
/* The connection breaks when so many more bytes have gone from one to the other. */
void net_cut(int32_t from, int32_t to, size_t after_bytes);
/* The port's `open`: the link is to come up, on both sides. */
void net_want(struct port *p);
/* A link that a rank asked for comes up; returns 0 if none was asked for. */
int net_connect_one(void);

/* ---- engine_world.c: ranks, groups, and who goes on ---- */
void world_open(void);
void world_close(void);
struct team *team_new(const int32_t *world_ranks, int32_t size, const char *name);
void member_open(struct member *member);
/* Let everybody go on until all is done; complains about who is stuck. */
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
