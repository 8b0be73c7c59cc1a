/* Cards: what a rank's backends put into the store while the world opens, such as addresses; and all ranks' cards, once
 * they have been handed out. What is among them needs no store. */
#ifndef COMM_CORE_CARDS_H
#define COMM_CORE_CARDS_H

#include <comm/comm.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

struct cards {
    pthread_mutex_t lock; /* guards what this rank's own card is made of */
    char *own;
    size_t own_bytes;
    int written; /* the card has been handed in; later values are not on it */
    _Atomic(char *) all; /* written once; its release publishes all_bytes */
    size_t all_bytes;
};

void comm__cards_init(struct cards *c);
void comm__cards_finish(struct cards *c);
/* Note what a backend has set. What does not fit is not on the card: others ask the store for it. */
void comm__cards_note(struct cards *c, const char *backend, const char *key, const void *data, size_t bytes);
/* This rank's card, lent until finish; the last note has been taken. */
const char *comm__cards_own(struct cards *c, size_t *ret_bytes);
/* All cards, one after the other, as the store gave them. Without memory there are none. */
void comm__cards_take(struct cards *c, const void *all, size_t bytes);
/* The value at *at, of a card that is followed by a NUL; *at moves on. 0 at `end`, or if this is no card. Lends
 * *ret_key, "<backend>/<key>". */
int comm__cards_next(const char **at, const char *end, const char **ret_key, size_t *ret_key_bytes, size_t *ret_bytes);
/* Gives *ret_data (free), with a NUL after it; NOT_FOUND, which leaves no text, if it is on no card. */
comm_status comm__cards_find(struct cards *c, const char *backend, const char *key, void **ret_data, size_t *ret_bytes);

#endif
