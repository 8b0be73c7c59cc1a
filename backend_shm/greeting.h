/* What two ranks say to each other over their socket before they share memory, one packet each:
 *
 *     connector             acceptor
 *     hello            ->
 *                      <-   answer, with its bell
 *     ready, with the memory and its bell  ->
 *
 * Both are on one host, under one kernel, and of one user, which the kernel vouches for; hello and answer prove that
 * each has the job's secret. Later the socket carries what region.c says of registered memory, and the connection's
 * end. */
#ifndef COMM_SHM_GREETING_H
#define COMM_SHM_GREETING_H

#include <sys/socket.h>
#include <sys/types.h>

#include "shm.h"

enum {
    GREETING_VERSION = 11 + 256 * (sizeof(void *) != 8),
    GREETING_TOKEN_BYTES = 32,
    GREETING_FDS_MAX = 2,
};

enum greeting_verdict {
    GREETING_WELCOME,
    GREETING_DUPLICATE, /* I am connecting to you: wait for that */
    GREETING_BUSY,      /* I have no descriptors for it: again soon */
    GREETING_OTHER_WORLD, /* another world, or I have closed this one */
    GREETING_OTHER_VERSION,
};

struct greeting_hello {
    char magic[8];
    uint32_t version;
    int32_t from, to; /* world ranks */
    uint32_t reserved;
    uint64_t world;
    uint8_t token[GREETING_TOKEN_BYTES];
};

struct greeting_answer {
    uint32_t verdict, version;
    int32_t node; /* NUMA; -1: not known */
    uint32_t reserved;
    uint8_t token[GREETING_TOKEN_BYTES];
};

struct greeting_ready {
    uint64_t ring_bytes;
    uint64_t salts[2]; /* of the rings: the lower rank's, the higher one's */
};

/* The socket of this name, in the name space of sockets that have no file. */
socklen_t greeting_address(const char *name, struct sockaddr_un *ret_address);
/* What a rank proves with that it has the secret, to or as the rank that listens at `name`. */
void greeting_token(const char *secret, char side, const char *name, const struct greeting_hello *hello,
                    uint8_t ret_token[GREETING_TOKEN_BYTES]);
int greeting_same(const uint8_t *a, const uint8_t *b);
void greeting_hello(const struct fabric *f, int32_t to, const char *name, struct greeting_hello *ret_hello);
/* 1 if it is of this library's. */
int greeting_is_hello(const struct greeting_hello *hello);
void greeting_random(void *out, size_t bytes);

/* Is the process at the other end this user's? Then its id, else -1. */
pid_t greeting_peer(int fd);
/* 0 if it could not be sent. */
int greeting_send(int fd, const void *data, size_t bytes, const int *fds, int fd_count);
/* As recv: `bytes`, if it was a whole packet with so many descriptors; 0 at the end; -1 with errno. */
ssize_t greeting_receive(int fd, void *data, size_t bytes, int *ret_fds, int fd_count);
/* The same with any number of descriptors up to GREETING_FDS_MAX. */
ssize_t greeting_receive_any(int fd, void *data, size_t bytes, int *ret_fds, int *ret_count);

#endif
