/* Takes a rendezvous URL apart: scheme://rest?rank=R&world_size=W. Pure; no I/O. */
#ifndef COMM_BASE_URL_H
#define COMM_BASE_URL_H

#include <comm/comm.h>

enum { URL_BYTES = 4096, URL_SCHEME_BYTES = 32, URL_HOST_BYTES = 256 };

struct comm__url {
    char scheme[URL_SCHEME_BYTES]; /* in lower case */
    char base[URL_BYTES];          /* the URL without its query: what comm_store_open takes */
    int32_t rank, world_size;      /* -1: not in the query */
};

/* Strict: a query holds rank and world_size, each once, and use_libuv, which c10d knows and we have no use for.
 * Errors  INVALID (quotes the part). */
comm_status comm__url_parse(const char *text, struct comm__url *ret_url);

/* The host (percent-decoded, without brackets) and port of "tcp://host:port".  Errors  INVALID (quotes the part). */
comm_status comm__url_host_port(const struct comm__url *url, char host[URL_HOST_BYTES], int32_t *ret_port);

/* The scheme's name, or what is wrong with it.  Errors  INVALID. */
comm_status comm__url_check_scheme(const char *scheme, size_t bytes);

/* A port from 0 to 65535. `from` says where `text` stands ("MASTER_PORT").  Errors  INVALID. */
comm_status comm__url_port(const char *from, const char *text, int32_t *ret_port);

#endif
