/* The file of a file store, shared by processes on one or several hosts: opening, locking, reading what others wrote,
 * writing, and which other processes have it open. file.c makes a store of it. */
#ifndef COMM_STORE_FILE_SHARE_H
#define COMM_STORE_FILE_SHARE_H

#include <pthread.h>
#include <sys/types.h>

#include "file_log.h"
#include "store.h"

struct file_opener {
    char *who;  /* "host:pid" */
    int closed; /* it said so */
};

struct file_share {
    pthread_mutex_t lock; /* guards what follows, and with the lock on the file the file */
    int fd;
    char *path;
    off_t read_to; /* the end of the last whole record that is in `table` */
    off_t torn;    /* bytes of a torn record behind it */
    struct table *table;
    struct file_opener *openers;
    size_t opener_count, opener_capacity;
    size_t number; /* of ours among them */
};

/* Open or make the file. Refuses what is no log, what a crashed job has left, and more openers than `world_size` (if >
 * 0); but a process that has closed the file waits until the others of the world have, too. On failure file_share_close
 * is still right. */
comm_status file_share_open(struct file_share *f, const char *path, int32_t world_size,
                            const struct store_wait *wait);
/* Say that we have closed; the last of a world (`world_size` > 0) removes the file. Frees what `f` holds. */
void file_share_close(struct file_share *f, int32_t world_size);

enum file_access { FILE_READ, FILE_WRITE };

/* Both locks, and up to date with what others wrote: from here to file_leave the table is the file's. `wait` says until
 * when to try for the file's lock; its handle may be NULL, and else closing it ends the attempt. */
comm_status file_enter(struct file_share *f, enum file_access access, const struct store_wait *wait);
comm_status file_leave(struct file_share *f, comm_status status);

/* Inside, with FILE_WRITE: put a record into the file, and what it says into the table. */
comm_status file_append(struct file_share *f, enum file_kind kind, struct table_bytes key, struct table_bytes value);

/* Inside: a text that names the processes that have the file open, and those that ended without closing it. */
void file_say_who(const struct file_share *f, char *text, size_t capacity);

#endif
