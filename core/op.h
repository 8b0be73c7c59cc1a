/* The op descriptor: names, checks and fingerprints. Pure functions; any thread. */
#ifndef COMM_CORE_OP_H
#define COMM_CORE_OP_H

#include <comm/backend.h>
#include <stddef.h>

/* The group that an op is for, as far as checking it needs to know. */
struct op_place {
    const char *group_name;
    int32_t rank, size;
    int32_t world_rank;
};

/* "group 'g' (rank 2 of 8)", or "... (rank 2 of 8, world rank 5)" where the two differ. */
enum { OP_PLACE_BYTES = 200, OP_DESCRIBED_BYTES = 400 };
void comm__op_place_text(const struct op_place *place, char text[OP_PLACE_BYTES]);
/* "all_reduce #12 on group ...", "recv #3 from rank 1 with tag 5 on group ..."; without number, peer and tag while the
 * op has no number. NULL is "idle". */
void comm__op_describe(const comm_op *op, const struct op_place *place, char *text, size_t capacity);

/* "all_reduce"; NULL for an unknown kind. */
const char *comm__op_name(int32_t kind);

/* Is it point-to-point, with a count of its own? */
static inline int comm__op_is_peer(int32_t kind)
{
    return kind == COMM_OP_SEND || kind == COMM_OP_RECV;
}

/* Refuse a struct whose struct_bytes is not from an _INIT macro, or that has unknown fields set: INVALID or VERSION.
 * `known` is this library's size, `name` the type's. NULL is fine. */
comm_status comm__check_struct(const void *options, size_t known, const char *name);

/* A name or label must be UTF-8 without control characters, of at most NAME_BYTES_MAX bytes: it stands in texts, and
 * is never cut. `call` and `what` ("the name") are for the text.  Errors  INVALID. */
enum { NAME_BYTES_MAX = 95 };
comm_status comm__check_name(const char *call, const char *what, const char *name);

/* Write `full`, of `known` bytes, to a struct of the caller's, as far as its struct_bytes goes. `call` and `name` are
 * for the text.  Errors  INVALID (NULL, or struct_bytes is not set). */
comm_status comm__give_struct(void *ret_info, const void *full, size_t known, const char *call, const char *name);

/* Make a filled-in op fit to be submitted: drop the sides that this rank does not have, take the options over (may be
 * NULL), refuse what is illegal with a text that names op, group, rank and argument, and compute the signature. Leaves
 * device, numbers and time to the group. */
comm_status comm__op_prepare(comm_op *op, const struct op_place *place, const comm_op_options *options);

/* Where the buffers of a prepared op lie: what must be looked at again when the same op comes with other buffers. */
struct op_extent {
    size_t send_bytes, recv_bytes; /* 0: this rank does not have that side, or nothing is in it */
    ptrdiff_t in_place_at;         /* recv less send, in bytes, if they coincide */
};

/* Of an op whose sides are single buffers: neither counts nor lists. */
struct op_extent comm__op_extent(const comm_op *op, const struct op_place *place);

/* Are these buffers as good as those that were checked? If not, comm__op_prepare says in its error what is wrong. */
static inline int op_extent_takes(const struct op_extent *x, const void *send, const void *recv)
{
    uintptr_t from = (uintptr_t)send, to = (uintptr_t)recv;
    if ((x->send_bytes && !send) || (x->recv_bytes && !recv))
        return 0;
    return !x->send_bytes || !x->recv_bytes || to - from == (uintptr_t)x->in_place_at || from >= to + x->recv_bytes ||
           to >= from + x->send_bytes;
}

/* How many elements the op speaks of in records: of a block for block ops. */
uint64_t comm__op_count(const comm_op *op);

#endif
