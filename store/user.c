/* A store of the user's: comm_store_ops behind the interface of a kind.
 *
 * A function of the user's that waits cannot be woken, so it is asked for a short time only, again and again: then a
 * handle can be closed while a thread waits, whatever the user's store is made of. None of the user's functions can be
 * ended, but none is called when the time is over, whatever call of ours is made of it (but see store_grace). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "store.h"
#include "view.h"

enum { ERROR_CAPACITY = 512, SLICE_MS = 100 };

struct user_store {
    comm_store base;
    comm_store_ops ops;
    void *context;
    struct store_kind kind; /* with NULL where the user has nothing */
    char name[32];
};

static struct user_store *user(comm_store *s)
{
    return (struct user_store *)s;
}

static comm_status result(comm_store *s, comm_status status, char error[ERROR_CAPACITY])
{
    error[ERROR_CAPACITY - 1] = '\0';
    if (status == COMM_OK)
        return status;
    if (status > COMM_OK)
        return comm__fail(COMM_ERR_BUG, "store '%s': a function of it returned %d, which is no comm_status",
                          user(s)->name, (int)status);
    return comm__fail(status, "store '%s'%s: %s", user(s)->name, status == COMM_ERR_TIMEOUT ? " timed out" : "",
                      *error ? error : comm_status_name(status));
}

/* What the user gave, with a NUL after it. */
static comm_status take(comm_store *s, void *data, size_t bytes, void **ret_data, size_t *ret_bytes)
{
    if (!data && bytes)
        return comm__fail(COMM_ERR_BUG, "store '%s': it gave %zu B at NULL", user(s)->name, bytes);
    char *copy = realloc(data, bytes + 1);
    if (!copy) {
        free(data);
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a value of %zu B", bytes);
    }
    copy[bytes] = '\0';
    *ret_data = copy;
    *ret_bytes = bytes;
    return COMM_OK;
}

/* How long the user's function may wait this time. */
static int64_t slice_ms(const struct store_wait *wait)
{
    int64_t left = clock_left_ms(wait->deadline_ns);
    return left < 0 || left > SLICE_MS ? SLICE_MS : left > 0 ? left : 1;
}

static int goes_on(const struct store_wait *wait)
{
    return !store_wait_closed(wait) && clock_now_ns() < wait->deadline_ns;
}

/* The time is up, or the handle was closed. */
static comm_status ended(comm_store *s, const struct store_wait *wait, const char *const *keys, size_t count,
                         char error[ERROR_CAPACITY])
{
    error[ERROR_CAPACITY - 1] = '\0';
    return store_wait_closed(wait) ? store_fail_closed(wait)
                                   : store_fail_missing(s, keys, count, wait, *error ? error : NULL);
}

/* May one of the user's functions be called? */
static comm_status in_time(comm_store *s, const char *what, const struct store_wait *wait)
{
    if (!store_wait_over(wait))
        return COMM_OK;
    return comm__fail(COMM_ERR_TIMEOUT, "store '%s': timed out after %lld ms, before %s", user(s)->name,
                      store_wait_ms(wait), what);
}

static comm_status user_set(comm_store *s, const char *key, const void *data, size_t bytes,
                            const struct store_wait *wait)
{
    char error[ERROR_CAPACITY] = "";
    comm_status status = in_time(s, "set", wait);
    if (status != COMM_OK)
        return status;
    return result(s, user(s)->ops.set(user(s)->context, key, data, bytes, error, sizeof error), error);
}

static comm_status user_get(comm_store *s, const char *key, const struct store_wait *wait, void **ret_data,
                            size_t *ret_bytes)
{
    char error[ERROR_CAPACITY];
    void *data;
    size_t bytes;
    comm_status status = in_time(s, "get", wait);
    if (status != COMM_OK)
        return status;
    do {
        *error = '\0';
        data = NULL;
        bytes = 0;
        status = user(s)->ops.get(user(s)->context, key, slice_ms(wait), &data, &bytes, error, sizeof error);
    } while (status == COMM_ERR_TIMEOUT && goes_on(wait));
    if (status == COMM_ERR_TIMEOUT)
        return ended(s, wait, &key, 1, error);
    return status == COMM_OK ? take(s, data, bytes, ret_data, ret_bytes) : result(s, status, error);
}

static comm_status user_add(comm_store *s, const char *key, int64_t amount, const struct store_wait *wait,
                            int64_t *ret_value)
{
    char error[ERROR_CAPACITY] = "";
    comm_status status = in_time(s, "add", wait);
    if (status != COMM_OK)
        return status;
    return result(s, user(s)->ops.add(user(s)->context, key, amount, ret_value, error, sizeof error), error);
}

static comm_status user_compare_set(comm_store *s, const char *key, const void *expected, size_t expected_bytes,
                                    const void *desired, size_t desired_bytes, const struct store_wait *wait,
                                    void **ret_data, size_t *ret_bytes)
{
    char error[ERROR_CAPACITY] = "";
    void *data = NULL;
    size_t bytes = 0;
    comm_status status = in_time(s, "compare_set", wait);
    if (status != COMM_OK)
        return status;
    status = user(s)->ops.compare_set(user(s)->context, key, expected, expected_bytes, desired, desired_bytes, &data,
                                      &bytes, error, sizeof error);
    return status == COMM_OK ? take(s, data, bytes, ret_data, ret_bytes) : result(s, status, error);
}

static comm_status user_check(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait,
                              int32_t *ret_all)
{
    char error[ERROR_CAPACITY] = "";
    comm_status status = in_time(s, "check", wait);
    if (status != COMM_OK)
        return status;
    return result(s, user(s)->ops.check(user(s)->context, keys, count, ret_all, error, sizeof error), error);
}

static comm_status user_remove(comm_store *s, const char *key, const struct store_wait *wait, int32_t *ret_existed)
{
    char error[ERROR_CAPACITY] = "";
    comm_status status = in_time(s, "remove", wait);
    if (status != COMM_OK)
        return status;
    return result(s, user(s)->ops.remove(user(s)->context, key, ret_existed, error, sizeof error), error);
}

static comm_status user_wait(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait)
{
    char error[ERROR_CAPACITY];
    comm_status status = in_time(s, "wait", wait);
    if (status != COMM_OK)
        return status;
    do {
        *error = '\0';
        status = user(s)->ops.wait(user(s)->context, keys, count, slice_ms(wait), error, sizeof error);
    } while (status == COMM_ERR_TIMEOUT && goes_on(wait));
    return status == COMM_ERR_TIMEOUT ? ended(s, wait, keys, count, error) : result(s, status, error);
}

static comm_status user_append(comm_store *s, const char *key, const void *data, size_t bytes,
                               const struct store_wait *wait)
{
    char error[ERROR_CAPACITY] = "";
    comm_status status = in_time(s, "append", wait);
    if (status != COMM_OK)
        return status;
    return result(s, user(s)->ops.append(user(s)->context, key, data, bytes, error, sizeof error), error);
}

static comm_status user_num_keys(comm_store *s, const struct store_wait *wait, int64_t *ret_count)
{
    char error[ERROR_CAPACITY] = "";
    comm_status status = in_time(s, "num_keys", wait);
    if (status != COMM_OK)
        return status;
    return result(s, user(s)->ops.num_keys(user(s)->context, ret_count, error, sizeof error), error);
}

static comm_status user_list_keys(comm_store *s, const struct store_wait *wait, char ***ret_keys, size_t *ret_count)
{
    char error[ERROR_CAPACITY] = "";
    comm_status status = in_time(s, "list_keys", wait);
    if (status != COMM_OK)
        return status;
    return result(s, user(s)->ops.list_keys(user(s)->context, ret_keys, ret_count, error, sizeof error), error);
}

static comm_status user_queue_push(comm_store *s, const char *key, const void *data, size_t bytes,
                                   const struct store_wait *wait)
{
    char error[ERROR_CAPACITY] = "";
    comm_status status = in_time(s, "queue_push", wait);
    if (status != COMM_OK)
        return status;
    return result(s, user(s)->ops.queue_push(user(s)->context, key, data, bytes, error, sizeof error), error);
}

static comm_status user_queue_pop(comm_store *s, const char *key, const struct store_wait *wait, int32_t may_wait,
                                  void **ret_data, size_t *ret_bytes)
{
    char error[ERROR_CAPACITY];
    void *data;
    size_t bytes;
    comm_status status = in_time(s, "queue_pop", wait);
    if (status != COMM_OK)
        return status;
    do {
        *error = '\0';
        data = NULL;
        bytes = 0;
        status = user(s)->ops.queue_pop(user(s)->context, key, may_wait ? slice_ms(wait) : COMM_STORE_NO_WAIT, &data,
                                        &bytes, error, sizeof error);
    } while (status == COMM_ERR_TIMEOUT && may_wait && goes_on(wait));
    error[ERROR_CAPACITY - 1] = '\0';
    if (status == COMM_ERR_TIMEOUT)
        return store_wait_closed(wait) ? store_fail_closed(wait)
                                       : store_fail_queue_timeout(wait, key, *error ? error : NULL);
    return status == COMM_OK ? take(s, data, bytes, ret_data, ret_bytes) : result(s, status, error);
}

static comm_status user_queue_len(comm_store *s, const char *key, const struct store_wait *wait, int64_t *ret_count)
{
    char error[ERROR_CAPACITY] = "";
    comm_status status = in_time(s, "queue_len", wait);
    if (status != COMM_OK)
        return status;
    return result(s, user(s)->ops.queue_len(user(s)->context, key, ret_count, error, sizeof error), error);
}

static comm_status user_clone(comm_store *s, const struct store_wait *wait, comm_store **ret_store)
{
    (void)wait;
    store_ref(s); /* every handle is a view of its own already */
    *ret_store = s;
    return COMM_OK;
}

static void user_close(comm_store *s)
{
    if (user(s)->ops.close)
        user(s)->ops.close(user(s)->context);
    store_finish(s);
    free(s);
}

comm_status comm_store_create(const comm_store_ops *ops, void *context, comm_store **ret_store)
{
    if (!ops || ops->struct_bytes < offsetof(comm_store_ops, wait) || !ret_store)
        return comm__fail(COMM_ERR_INVALID, "comm_store_create: ops, its struct_bytes or ret_store is missing");
    for (size_t i = sizeof *ops; i < ops->struct_bytes; i++)
        if (((const char *)ops)[i])
            return comm__fail(COMM_ERR_VERSION, "comm_store_create: ops of a newer libcomm than this one (%s)",
                              comm_version());
    if (!ops->set || !ops->get || !ops->add || !ops->compare_set || !ops->check || !ops->remove)
        return comm__fail(COMM_ERR_INVALID,
                          "comm_store_create: set, get, add, compare_set, check and remove are all needed");
    struct user_store *u = calloc(1, sizeof *u);
    if (!u)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a store");
    memcpy(&u->ops, ops, ops->struct_bytes < sizeof u->ops ? ops->struct_bytes : sizeof u->ops);
    u->context = context;
    snprintf(u->name, sizeof u->name, "%s", ops->name ? ops->name : "user");
    u->kind = (struct store_kind){ .name = u->name,
                                   .set = user_set,
                                   .get = user_get,
                                   .add = user_add,
                                   .compare_set = user_compare_set,
                                   .check = user_check,
                                   .remove = user_remove,
                                   .wait = u->ops.wait ? user_wait : NULL,
                                   .append = u->ops.append ? user_append : NULL,
                                   .num_keys = u->ops.num_keys ? user_num_keys : NULL,
                                   .list_keys = u->ops.list_keys ? user_list_keys : NULL,
                                   .queue_push = u->ops.queue_push ? user_queue_push : NULL,
                                   .queue_pop = u->ops.queue_pop ? user_queue_pop : NULL,
                                   .queue_len = u->ops.queue_len ? user_queue_len : NULL,
                                   .clone = user_clone,
                                   .close = user_close };
    comm_status status = store_init(&u->base, &u->kind, u->name, "", -1, STORE_TIMEOUT_MS);
    if (status != COMM_OK) {
        u->ops.close = NULL;
        user_close(&u->base);
        return status;
    }
    status = store_view(NULL, STORE_TIMEOUT_MS, &u->base, ret_store);
    if (status != COMM_OK)
        u->ops.close = NULL;
    store_release(&u->base);
    return status;
}
