/* Lifelines: while ranks come together, each can tell that another's process has ended. */
#ifndef COMM_CORE_LIFELINE_H
#define COMM_CORE_LIFELINE_H

#include <stdint.h>
#include <sys/socket.h>

enum { LIFELINE_ENDPOINT_BYTES = 1024, LIFELINE_ADDRESSES_MAX = 8, LIFELINE_WATCHES_MAX = 40 };

/* What a rank offers to the ranks that watch it: a port that is open for as long as it is coming together with the
 * others. */
struct lifeline {
    int listener; /* -1: none, for want of descriptors; then other ranks cannot watch this one */
    char endpoint[LIFELINE_ENDPOINT_BYTES]; /* where it is; for the store */
};

void comm__lifeline_open(struct lifeline *l);
void comm__lifeline_close(struct lifeline *l);

/* One rank that we watch. Zeroed, then begun with its endpoint. */
struct watch {
    int begun;
    int same_host;
    struct sockaddr_storage addresses[LIFELINE_ADDRESSES_MAX];
    int count, next;
    int fd;          /* if connecting or connected */
    int connecting, connected;
    int failures;    /* in a row: the port is closed, or there is no route */
    int refused;     /* one of these found it closed */
};

void comm__watch_begin(struct watch *w, const char *endpoint);
void comm__watch_end(struct watch *w);
/* Look once, without waiting. 1 if its process has ended, or has given up coming together. */
int comm__watch_look(struct watch *w);
/* On another host: it could never be reached, and several looks in a row found its port closed. */
int comm__watch_refused(const struct watch *w);

#endif
