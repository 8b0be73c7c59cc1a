/* Coming together: each rank of a world shows up in the store, and learns that all have. */
#ifndef COMM_CORE_JOIN_H
#define COMM_CORE_JOIN_H

#include <comm/store.h>

enum { JOIN_NONCE_BYTES = 16, JOIN_NONCE_TEXT = 2 * JOIN_NONCE_BYTES + 1 };

/* One comm_init under way. */
struct joining {
    const char *name, *secret;
    comm_store *names; /* what all worlds of this name share */
    comm_store *store; /* this world's own part of it; comm__join opens it, its caller closes it, also after a failure */
    int32_t rank, size;
    int64_t began_ns, deadline_ns;
    int64_t number; /* of worlds of this name that came together in this store before; -1: not known yet */
    int joined;     /* the rank is counted in, or has heard that there will be no world */
    char nonce[JOIN_NONCE_TEXT];
};

/* Show up as rank j->rank of j->size, and wait for the others until the deadline; sets store, number and nonce. */
comm_status comm__join(struct joining *j);

/* Before the store is closed: if rank 0 serves it, rank 0 stays for a moment (parameter leave_ms), until all have left.
 * Every rank that has joined calls it, with the world's view of the store, which is of no use afterwards. */
void comm__leave(comm_store *view, int32_t rank, int32_t size);

#endif
