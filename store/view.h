/* A handle upon another store, with a prefix or without; see prefix.c. */
#ifndef COMM_STORE_VIEW_H
#define COMM_STORE_VIEW_H

#include "store.h"

/* `prefix` goes in front of every key as it is. Takes a reference of `store`. */
comm_status store_view(const char *kind, const char *prefix, const char *url, comm_store *store,
                       comm_store **ret_store);

#endif
