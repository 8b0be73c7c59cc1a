/* Opens two handles to one store, for each kind of store that there is. */
#ifndef COMM_TESTS_STORE_KINDS_H
#define COMM_TESTS_STORE_KINDS_H

#include <comm/store.h>

/* What a store may lack; the suite asserts that it says so, and that everything else works. */
enum { LACKS_NUM_KEYS = 1, LACKS_LIST_KEYS = 2 };

struct pair {
    comm_store *a, *b;   /* the two handles; a test that closes one sets it to NULL */
    const char *kind;    /* what comm_store_kind should say */
    unsigned lacks;      /* LACKS_ values */
    size_t prefix_bytes; /* that are put in front of each key */
    comm_store *rest[4]; /* what else must be open */
    char path[300];      /* of a file store, or "" */
};

/* `name` is one of hash, file, tcp (a serves), clients (of a third handle that serves), user (with all functions),
 * least (only the needed ones); with "prefix+", "nested+" or "clone+" in front: both are such views. Ends the process
 * if that fails. */
void pair_open(const char *name, struct pair *p);
void pair_close(struct pair *p);

/* A store of the user's, in memory. */
comm_store *user_store_open(int with_all);

#endif
