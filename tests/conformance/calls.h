/* Calls drawn at random from all operations, dtypes, reduce ops, counts, roots and forms, and what each must do, worked
 * out from comm.h alone. collectives.c and programs.c make them. */
#ifndef COMM_TESTS_CALLS_H
#define COMM_TESTS_CALLS_H

#include <comm/comm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { POISON = 0xa5, MARGIN = 64, RANKS_MAX = 16 };

enum form { PLAIN, UNEVEN, LIST };

enum kind {
    BROADCAST,
    ALL_REDUCE,
    REDUCE,
    ALL_GATHER,
    GATHER,
    SCATTER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    BARRIER,
    SEND_RECV,
    KIND_COUNT,
};

/* One call, as all ranks draw it. */
struct one {
    enum kind kind;
    enum form form;
    comm_device device; /* the kind is what all ranks draw, the index is this rank's own */
    comm_dtype dtype;
    comm_redop redop;
    size_t count;                          /* plain forms */
    size_t counts[RANKS_MAX][RANKS_MAX]; /* [from][to] of all_to_all; else [0] */
    int32_t root;
    bool in_place;
    bool rank_order;
    uint64_t layout; /* where the blocks lie, if there are offsets: in any order, with gaps */
};

/* One rank's memory for it, MARGIN of poison before and behind recv. */
struct memory {
    uint8_t *send_memory, *send, *send_copy;
    uint8_t *recv_memory, *recv, *expected; /* expected is as long as recv_memory */
    size_t send_bytes, recv_bytes, recv_capacity;
    void *send_list[RANKS_MAX], *recv_list[RANKS_MAX];
    size_t send_counts[RANKS_MAX], recv_counts[RANKS_MAX];
    size_t send_offsets[RANKS_MAX], recv_offsets[RANKS_MAX];
    uint8_t factor[16];
    comm_op_options options;
    comm_work *sent; /* of SEND_RECV, until compare */
};

/* In each rank, once the world is open: for which devices calls are drawn, which kinds the backend
 * has, and which reductions on a GPU. */
void calls_begin(comm_group *world);

uint64_t draw(uint64_t *state);
size_t below(uint64_t *state, size_t end);

/* One of the devices that the world serves; DEFAULT if it serves the CPU only. */
comm_device draw_device(uint64_t *state);
/* A call for a group of `size` ranks; every rank draws the same one. */
struct one draw_one(uint64_t *state, int32_t size, comm_device device);

/* Fill the inputs, poison the outputs; `memory` lives until compare. */
void prepare(const struct one *c, comm_group *g, struct memory *memory);
/* Make the call, waiting if `work` is NULL. A SEND_RECV is a send to the next and a receive from the previous rank. */
comm_status call(const struct one *c, comm_group *g, struct memory *memory, comm_work **work);
/* Check every byte and free the memory; `number` is for messages. */
void compare(const struct one *c, comm_group *g, struct memory *memory, int number);
/* What a call is, for messages. */
enum { DESCRIBED_BYTES = 200 };
void describe(const struct one *c, const comm_group *g, char text[DESCRIBED_BYTES]);
/* Free the memory of a call that was refused. */
void forget(const struct one *c, struct memory *memory);

#endif
