/* The words of errors: ranks, and two calls that do not fit together.
 *
 * A text about a group speaks of the group's ranks, on every rank that reads it; where a rank has another number in
 * the world, that one stands behind it: "rank 2 (world rank 1, node-b 10.0.0.7:40213)". */
#ifndef COMM_EXEC_TEXT_H
#define COMM_EXEC_TEXT_H

#include "exec_group.h"

/* A rank of the group, and the same with its address; in the buffers of say_rank. */
const char *text_rank(const struct exec_group *g, int32_t rank);
const char *text_peer(const struct exec_group *g, int32_t rank);
/* "tag 5" or "any tag". */
enum { TEXT_TAG_BYTES = 16 };
const char *text_tag(int32_t tag, char text[TEXT_TAG_BYTES]);
/* Of a peer whose address is asked for: it is in the store once the peer has opened the backend. */
void text_unresolved(const struct domain *d, char *text, size_t capacity);
/* The member `rank` is in another collective than we are, `mine`; or in the same, but sends other than the `bytes`
 * that we expect. */
void text_mismatch(const struct exec_group *g, int32_t rank, const struct frame *h, const struct call *mine, char *text,
                   size_t capacity);
void text_lengths(const struct exec_group *g, int32_t rank, const struct frame *h, const struct call *mine,
                  size_t bytes, char *text,
                  size_t capacity);

#endif
