/* A store of the user's: comm_store_ops behind the interface of a kind. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "store.h"
#include "view.h"

enum { ERROR_ROOM = 512 };

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

static comm_status result(comm_store *s, comm_status status, const char *error)
{
    return status == COMM_OK ? status
                             : comm__fail(status, "store '%s': %s", user(s)->name, *error ? error : comm_status_name(status));
}

static int64_t left_ms(const struct store_wait *wait)
{
    int64_t left = clock_left_ms(wait->deadline_ns);
    return left == 0 ? 1 : left;
}

static comm_status user_set(comm_store *s, const char *key, const void *data, size_t bytes)
{
    char error[ERROR_ROOM] = "";
    return result(s, user(s)->ops.set(user(s)->context, key, data, bytes, error, sizeof error), error);
}

static comm_status user_get(comm_store *s, const char *key, const struct store_wait *wait, void **ret_data,
                            size_t *ret_bytes)
{
    char error[ERROR_ROOM] = "";
    comm_status status =
        user(s)->ops.get(user(s)->context, key, left_ms(wait), ret_data, ret_bytes, error, sizeof error);
    return status == COMM_ERR_TIMEOUT ? store_fail_timeout(wait, &key, 1, *error ? error : NULL)
                                      : result(s, status, error);
}

static comm_status user_add(comm_store *s, const char *key, int64_t amount, int64_t *ret_value)
{
    char error[ERROR_ROOM] = "";
    return result(s, user(s)->ops.add(user(s)->context, key, amount, ret_value, error, sizeof error), error);
}

static comm_status user_compare_set(comm_store *s, const char *key, const void *expected, size_t expected_bytes,
                                    const void *desired, size_t desired_bytes, void **ret_data, size_t *ret_bytes)
{
    char error[ERROR_ROOM] = "";
    comm_status status = user(s)->ops.compare_set(user(s)->context, key, expected, expected_bytes, desired,
                                                  desired_bytes, ret_data, ret_bytes, error, sizeof error);
    return result(s, status, error);
}

static comm_status user_check(comm_store *s, const char *const *keys, size_t count, int32_t *ret_all)
{
    char error[ERROR_ROOM] = "";
    return result(s, user(s)->ops.check(user(s)->context, keys, count, ret_all, error, sizeof error), error);
}

static comm_status user_remove(comm_store *s, const char *key, int32_t *ret_existed)
{
    char error[ERROR_ROOM] = "";
    int32_t existed;
    return result(s, user(s)->ops.remove(user(s)->context, key, ret_existed ? ret_existed : &existed, error, sizeof error),
                  error);
}

static comm_status user_wait(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait)
{
    char error[ERROR_ROOM] = "";
    comm_status status = user(s)->ops.wait(user(s)->context, keys, count, left_ms(wait), error, sizeof error);
    return status == COMM_ERR_TIMEOUT ? store_fail_timeout(wait, keys, count, *error ? error : NULL)
                                      : result(s, status, error);
}

static comm_status user_append(comm_store *s, const char *key, const void *data, size_t bytes)
{
    char error[ERROR_ROOM] = "";
    return result(s, user(s)->ops.append(user(s)->context, key, data, bytes, error, sizeof error), error);
}

static comm_status user_num_keys(comm_store *s, int64_t *ret_count)
{
    char error[ERROR_ROOM] = "";
    return result(s, user(s)->ops.num_keys(user(s)->context, ret_count, error, sizeof error), error);
}

static comm_status user_list_keys(comm_store *s, char ***ret_keys, size_t *ret_count)
{
    char error[ERROR_ROOM] = "";
    return result(s, user(s)->ops.list_keys(user(s)->context, ret_keys, ret_count, error, sizeof error), error);
}

static comm_status user_queue_push(comm_store *s, const char *key, const void *data, size_t bytes)
{
    char error[ERROR_ROOM] = "";
    return result(s, user(s)->ops.queue_push(user(s)->context, key, data, bytes, error, sizeof error), error);
}

static comm_status user_queue_pop(comm_store *s, const char *key, const struct store_wait *wait, int32_t may_wait,
                                  void **ret_data, size_t *ret_bytes)
{
    char error[ERROR_ROOM] = "";
    int64_t timeout_ms = may_wait ? left_ms(wait) : COMM_STORE_NO_WAIT;
    comm_status status =
        user(s)->ops.queue_pop(user(s)->context, key, timeout_ms, ret_data, ret_bytes, error, sizeof error);
    return status == COMM_ERR_TIMEOUT ? store_fail_timeout(wait, &key, 1, *error ? error : NULL)
                                      : result(s, status, error);
}

static comm_status user_queue_len(comm_store *s, const char *key, int64_t *ret_count)
{
    char error[ERROR_ROOM] = "";
    return result(s, user(s)->ops.queue_len(user(s)->context, key, ret_count, error, sizeof error), error);
}

static comm_status user_clone(comm_store *s, comm_store **ret_store)
{
    return store_view("prefix", "", s->url, s, ret_store);
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
    if (!ops->set || !ops->get || !ops->add || !ops->compare_set || !ops->check || !ops->remove)
        return comm__fail(COMM_ERR_INVALID, "comm_store_create: set, get, add, compare_set, check and remove are all needed");
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
    comm_status status = store_init(&u->base, &u->kind, u->name, "", -1, 300000);
    if (status != COMM_OK) {
        u->ops.close = NULL;
        user_close(&u->base);
        return status;
    }
    *ret_store = &u->base;
    return COMM_OK;
}
