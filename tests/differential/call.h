/* One rank's part in one step: its memory, the call, and whether the memory is afterwards what the reference says. */
#ifndef COMM_TESTS_DIFFERENTIAL_CALL_H
#define COMM_TESTS_DIFFERENTIAL_CALL_H

#include "program.h"
#include "reference.h"

/* Memory for a buffer or for blocks with gaps, between margins; `image` is what it must be in the end. */
struct region {
    uint8_t *memory, *image;
    size_t bytes;
    uint8_t *data;
    size_t *counts, *offsets; /* of blocks, in elements; NULL if it is one buffer */
    comm_device device;
};

/* A message to oneself is two calls; otherwise a rank does the half that is its own. */
enum half { OWN_HALF, SENDING_HALF, RECEIVING_HALF };

struct call {
    const struct step *step;
    enum half half;
    int32_t rank, size; /* in the group */
    struct region send, recv;
    const void *send_at; /* what is given to the library; in place they lie in one region */
    void *recv_at;
    void **send_list, **recv_list;
    comm_device device;
    uint8_t *reduced; /* where the reduction's result must come; NULL if none comes */
    size_t reduced_count;
    int32_t reduced_block;
    uint8_t factor[16];
    comm_op_options options;
};

/* Make the memory. Every rank of the group may call it; `random` is this rank's own. */
void call_prepare(struct call *c, const struct step *step, comm_device device, enum half half, int32_t rank,
                  int32_t size, uint64_t *random);
/* Hand it to the library. */
comm_status call_submit(struct call *c, comm_group *group, comm_work **ret_work);
/* Is the result right? Says in `text` why not. *ret_hash is of a reduction's result, else 0. */
bool call_check(struct call *c, char *text, size_t capacity, uint64_t *ret_hash);
void call_finish(struct call *c);

/* Does this rank do anything in the step? */
bool call_takes_part(const struct step *step, int32_t rank);

#endif
