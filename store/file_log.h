/* The records of a file store's log: bytes to records and back. No I/O.
 *
 * A file store is a log of records and nothing else. All numbers are little endian:
 *
 *      0   4  "CSF1"
 *      4   8  XXH64, with seed 0, of all that follows
 *     12   4  kind: 1 SET, 2 DELETE, 3 APPEND, 4 PUSH, 5 POP, 6 OPEN, 7 CLOSE
 *     16   4  length of the key, at most 8191
 *     20   4  length of the value, at most 8 MiB
 *     24      the key, then the value
 *
 * PUSH and POP are of the queue that the key names; POP has no value. OPEN has no key; its value says who opened the
 * file ("host:pid"), and the n-th OPEN of a file has number n, from 0. CLOSE has that number as its value, in decimal.
 *
 * A record is written by one write at the end of the file. A writer that is killed in it leaves the beginning of a
 * record, which is FILE_TORN: its call has not returned, so it may be cut off. Anything else that is not a record is
 * FILE_BAD. */
#ifndef COMM_STORE_FILE_LOG_H
#define COMM_STORE_FILE_LOG_H

#include "table.h"

enum file_kind {
    FILE_SET = 1,
    FILE_DELETE = 2,
    FILE_APPEND = 3,
    FILE_PUSH = 4,
    FILE_POP = 5,
    FILE_OPEN = 6,
    FILE_CLOSE = 7,
};

enum { FILE_HEADER_BYTES = 24 };

struct file_record {
    enum file_kind kind;
    struct table_bytes key, value;
};

/* How many bytes the record takes, and put them to `to`. */
size_t file_record_bytes(const struct file_record *record);
void file_encode(const struct file_record *record, void *to);

enum file_verdict { FILE_RECORD, FILE_TORN, FILE_BAD };

/* Look at the `bytes` that the log has from here on; there must be one. FILE_RECORD lends *ret_record, which points
 * into `data`. *ret_bytes is how many bytes the record takes, or for FILE_TORN how many it takes at least. *ret_why is
 * set for FILE_BAD. */
enum file_verdict file_decode(const void *data, size_t bytes, struct file_record *ret_record, size_t *ret_bytes,
                              const char **ret_why);

#endif
