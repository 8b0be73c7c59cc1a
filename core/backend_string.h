/* The backend string of comm_init: "tcp", "cpu:tcp,cuda:nccl", "cpu:tcp?lanes=4", "cpu:/path/libcomm_mine.so". Parses;
 * opens nothing. */
#ifndef COMM_CORE_BACKEND_STRING_H
#define COMM_CORE_BACKEND_STRING_H

#include <comm/comm.h>
#include <stddef.h>

enum {
    BACKEND_PAIRS_MAX = 8,     /* one for each device that a group has */
    BACKEND_OPTIONS_MAX = 32, /* of one pair; more than any backend has */
};

struct backend_option {
    const char *name, *value; /* name in lower case */
};

struct backend_pair {
    /* the kind's name in lower case, which a backend may bring; NULL: every one that the backend has */
    const char *device;
    const char *name;   /* in lower case, "auto", or a path as it was written */
    struct backend_option options[BACKEND_OPTIONS_MAX];
    size_t option_count;
};

struct backend_string {
    struct backend_pair pairs[BACKEND_PAIRS_MAX];
    size_t count;
    char *memory; /* the strings above point into it */
};

/* Parse `text`; NULL and "" are "cpu:auto". Case does not matter outside of paths and values. On failure nothing is to
 * be freed. Errors  INVALID; quotes the pair that is wrong. */
comm_status comm__backend_string_parse(const char *text, struct backend_string *ret_string);
void comm__backend_string_finish(struct backend_string *string);

/* Do they have the same options with the same values, in whatever order? */
int comm__same_options(const struct backend_pair *a, const struct backend_pair *b);

/* Is it a path to a shared object, not a name? */
int comm__backend_is_path(const char *name);

#endif
