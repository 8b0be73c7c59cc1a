/* A backend of a pretended device ("xpu") for tests: it has streams, memory and a step that connects, and says what it
 * was given. Operations without COMM_OP_FLAG_ON_STREAM are done by the loopback backend; those on a stream wait in it
 * until the test runs it, and then it does an all_reduce of f32 in a group of one rank. */
#ifndef COMM_TESTS_PRETEND_H
#define COMM_TESTS_PRETEND_H

#include <comm/backend.h>
#include <stdatomic.h>

/* What goes to options->stream. NULL is pretend_default. */
struct pretend_stream {
    comm_op ops[8];
    int queued; /* ops that have not been done */
    int waits;  /* how often wait_stream was called for it */
};
extern struct pretend_stream pretend_default;
void pretend_run(struct pretend_stream *stream);

/* The op that submit had last. */
extern comm_op pretend_last;

/* Pieces of memory that are open, and how many were closed in a child of fork. */
extern int pretend_pieces, pretend_pieces_forked;
/* What memory_open and group_connect return, unless it is COMM_OK; with this text. */
extern comm_status pretend_status;
extern const char *pretend_text;
/* memory_open gives no handle. */
extern int pretend_no_handle;

/* group_connect waits until so many are in it. */
extern atomic_int pretend_expected;
extern atomic_int pretend_in_connect, pretend_connects;
extern comm_device pretend_device; /* that it was called for last */

const comm_backend *pretend_entry(const comm_host *host);

#endif
