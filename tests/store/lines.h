/* Bytes of the store's protocol as one writes them down, and sockets that say and hear them. Notation, in words between
 * blanks: 2f        one byte 03..      eight bytes: 3 as a little-endian number (in hexadecimal) 'text'    its
 * characters (no blanks)
 *     ??        any byte (only where something is awaited)
 * Everything here fails the test by itself, and nothing waits for longer than LINES_LIMIT_MS. */
#ifndef COMM_TESTS_LINES_H
#define COMM_TESTS_LINES_H

#include <stddef.h>
#include <stdint.h>

enum { LINES_LIMIT_MS = 20000, LINES_BYTES_MAX = 4096 };

/* How many bytes; any[i] (may be NULL) is 1 for a "??". */
size_t lines_parse(const char *text, uint8_t bytes[LINES_BYTES_MAX], uint8_t any[LINES_BYTES_MAX]);

int lines_connect(int port);
/* A listening socket on the loopback, and its port. */
int lines_listen(int *ret_port);
int lines_accept(int listener);

void lines_send(int fd, const void *data, size_t bytes);
void lines_say(int fd, const char *text);
/* Exactly these bytes come next. */
void lines_hear(int fd, const char *text);
/* The other side closes the connection, and says nothing before. */
void lines_hear_end(int fd);
/* Nothing has come. */
void lines_hear_nothing(int fd);

#endif
