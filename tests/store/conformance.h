/* The cases of the suite that every kind of store must pass. */
#ifndef COMM_TESTS_STORE_CONFORMANCE_H
#define COMM_TESTS_STORE_CONFORMANCE_H

#include <comm/store.h>
#include <stdint.h>
#include <string.h>

#include "kinds.h"
#include "ranks.h"

struct test_case {
    const char *name;
    void (*run)(struct pair *p);
};
extern const struct test_case simple_cases[], waiting_cases[]; /* end with a NULL name */

enum { LONG_MS = 60000, SHORT_MS = 30 };
#define VALUE_MAX ((size_t)8 << 20)
#define KEY_MAX ((size_t)8191)

uint64_t random_u64(void); /* seeded by the program's argument; for one thread */
void random_bytes(void *to, size_t bytes);

/* After this, what was set through `store` is seen through every other handle: a set alone is not acknowledged by tcp.
 */
static inline void settle(comm_store *store)
{
    CHECK_OK(comm_store_add(store, "settled", 0, NULL));
}

/* The value is there now, or comes, and is this. */
static inline void check_value(comm_store *store, const char *key, const void *want, size_t want_bytes)
{
    void *data = NULL;
    size_t bytes = 12345;
    CHECK_OK(comm_store_get(store, key, LONG_MS, &data, &bytes));
    if (bytes != want_bytes || memcmp(data, want, bytes) != 0)
        ranks_fail(__FILE__, __LINE__, "'%.60s' holds %zu B: '%.60s', not %zu B: '%.60s'", key, bytes, (char *)data,
                   want_bytes, (const char *)want);
    CHECK(((char *)data)[bytes] == '\0');
    comm_free(data);
}

static inline int is_there(comm_store *store, const char *key)
{
    int32_t all = -7;
    CHECK_OK(comm_store_check(store, &key, 1, &all));
    CHECK(all == 0 || all == 1);
    return all;
}

static inline void check_text(comm_store *store, const char *key, const char *want)
{
    check_value(store, key, want, strlen(want));
}

#endif
