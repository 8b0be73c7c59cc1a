/* A card is a list of values, each as "<bytes of the key> <bytes of the value> ", then both: so cards can be put one
 * behind the other. What comes from the store is checked. */
#include "cards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { CARD_BYTES = 8192, HEAD_BYTES = 48 };

void comm__cards_init(struct cards *c)
{
    pthread_mutex_init(&c->lock, NULL);
}

void comm__cards_finish(struct cards *c)
{
    free(c->own);
    free(atomic_load(&c->all));
    pthread_mutex_destroy(&c->lock);
}

void comm__cards_note(struct cards *c, const char *backend, const char *key, const void *data, size_t bytes)
{
    size_t key_bytes = strlen(backend) + 1 + strlen(key), most = HEAD_BYTES + key_bytes + bytes;
    pthread_mutex_lock(&c->lock);
    char *grown = c->written || most > CARD_BYTES - c->own_bytes ? NULL : realloc(c->own, c->own_bytes + most);
    if (grown) {
        c->own = grown;
        char *at = grown + c->own_bytes;
        at += sprintf(at, "%zu %zu %s/%s", key_bytes, bytes, backend, key);
        memcpy(at, data, bytes);
        c->own_bytes = (size_t)(at - grown) + bytes;
    }
    pthread_mutex_unlock(&c->lock);
}

const char *comm__cards_own(struct cards *c, size_t *ret_bytes)
{
    pthread_mutex_lock(&c->lock);
    c->written = 1;
    *ret_bytes = c->own_bytes;
    pthread_mutex_unlock(&c->lock);
    return c->own ? c->own : "";
}

void comm__cards_take(struct cards *c, const void *all, size_t bytes)
{
    char *copy = bytes ? malloc(bytes + 1) : NULL;
    if (!copy)
        return;
    memcpy(copy, all, bytes);
    copy[bytes] = '\0'; /* numbers end there at the latest */
    c->all_bytes = bytes;
    atomic_store_explicit(&c->all, copy, memory_order_release);
}

int comm__cards_next(const char **at, const char *end, const char **ret_key, size_t *ret_key_bytes, size_t *ret_bytes)
{
    char *rest;
    if (*at >= end)
        return 0;
    unsigned long long key_bytes = strtoull(*at, &rest, 10);
    unsigned long long bytes = *rest == ' ' ? strtoull(rest + 1, &rest, 10) : 0;
    if (*rest != ' ')
        return 0;
    size_t left = (size_t)(end - ++rest);
    if (key_bytes > left || bytes > left - key_bytes)
        return 0;
    *ret_key = rest;
    *ret_key_bytes = (size_t)key_bytes;
    *ret_bytes = (size_t)bytes;
    *at = rest + key_bytes + bytes;
    return 1;
}

comm_status comm__cards_find(struct cards *c, const char *backend, const char *key, void **ret_data, size_t *ret_bytes)
{
    const char *all = atomic_load_explicit(&c->all, memory_order_acquire), *at = all, *name, *latest = NULL;
    size_t name_bytes, bytes, latest_bytes = 0, wanted = strlen(backend), key_bytes = wanted + 1 + strlen(key);
    while (all && comm__cards_next(&at, all + c->all_bytes, &name, &name_bytes, &bytes))
        if (name_bytes == key_bytes && memcmp(name, backend, wanted) == 0 && name[wanted] == '/' &&
            memcmp(name + wanted + 1, key, key_bytes - wanted - 1) == 0) {
            latest = name + key_bytes;
            latest_bytes = bytes;
        }
    if (!latest)
        return COMM_ERR_NOT_FOUND;
    char *data = malloc(latest_bytes + 1);
    if (!data)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for '%s'", key);
    memcpy(data, latest, latest_bytes);
    data[latest_bytes] = '\0';
    *ret_data = data;
    *ret_bytes = latest_bytes;
    return COMM_OK;
}
