/* A handle for another store, with a prefix or without; see prefix.c. */
#ifndef COMM_STORE_VIEW_H
#define COMM_STORE_VIEW_H

#include "store.h"

/* A handle for `store`. `prefix` goes in front of every key as it is; NULL makes a plain second handle, of the same
 * kind as the store. Takes a reference of `store`; the hash, file and user kinds give all their users such handles, and
 * clone by giving one more. */
comm_status store_view(const char *prefix, int64_t timeout_ms, comm_store *store, comm_store **ret_store);

#endif
