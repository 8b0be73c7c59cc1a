/* Coming together: each rank of a world shows up in the store and learns that all have; then each opens its backends,
 * says so, and learns that all have. What one rank cannot do, all are told. */
#ifndef COMM_CORE_JOIN_H
#define COMM_CORE_JOIN_H

#include <comm/store.h>

#include "base/error.h"
#include "lifeline.h"

enum { JOIN_NONCE_BYTES = 16, JOIN_NONCE_TEXT = 2 * JOIN_NONCE_BYTES + 1 };
enum { JOIN_LOOK_MS = 500 }; /* a waiting rank looks after the others so often */

/* One comm_init under way. */
struct joining {
    const char *name, *secret;
    const char *backends; /* what all ranks must have alike: comm__world_terms */
    const char *settings; /* and what they have set in the environment: comm__world_settings */
    const char *unusable; /* what auto cannot take here, and why; "": nothing */
    uint64_t tuning;       /* and the mark of what they read from COMM_TUNING; 0: nothing */
    comm_store *names; /* what all worlds of this name share; the caller closes it */
    /* this world's own part of it; comm__join opens it, its caller closes it, also after a failure */
    comm_store *store;
    int32_t rank, size;
    int64_t began_ns, deadline_ns;
    int64_t number; /* of worlds of this name that came together in this store before; -1: not known yet */
    int served;     /* by rank 0: the store */
    int swept;      /* what an earlier world has left */
    int joined;     /* the rank is counted in, or has heard that there will be no world */
    char nonce[JOIN_NONCE_TEXT];
    /* [size] the number of each rank's host (host_id.h); a caller that needs it longer takes it and leaves NULL */
    int32_t *hosts;
    int32_t local_cores; /* how many cores the ranks on this host may run on, together; 0: not known (host_cores.h) */
    int heard;      /* there is a verdict */
    char *verdict;  /* of the latest round; its payload follows the NUL */
    size_t verdict_bytes;
    struct lifeline lifeline;
    struct watch *watches; /* LIFELINE_WATCHES_MAX, once this rank has to wait for others */
};

/* Show up as rank j->rank of j->size, and wait for the others until the deadline; sets store, number, nonce, hosts and
 * local_cores. `able` says whether this rank can take part: if not, all are told the last error's text. */
comm_status comm__join(struct joining *j, comm_status able);

/* After comm__join, once this rank's backends are open (`able`), or could not be opened: then all are told the last
 * error's text. Waits until all ranks are open, and gives their cards one after the other (j owns them); 0 bytes if
 * they are too long together. */
comm_status comm__join_confirm(struct joining *j, comm_status able, const void *card, size_t bytes,
                               const void **ret_cards, size_t *ret_bytes);

/* In between, called every JOIN_LOOK_MS by a thread that waits for something while its backends open: fails if there
 * will be no world. One at a time. */
comm_status comm__join_look(struct joining *j);

/* For a world of one rank: what comm__join would set, without a store. */
comm_status comm__join_alone(struct joining *j);

/* Free what a joining holds, but for `store`. */
void comm__join_end(struct joining *j);

/* Before the store is closed: if rank 0 serves it, rank 0 stays for a moment (parameter leave_ms, and at most
 * most_ms), until all have left. Every rank that has joined calls it, with the world's view of the store, which is of
 * no use afterwards. */
void comm__leave(comm_store *view, int32_t rank, int32_t size, int64_t most_ms);

#endif
