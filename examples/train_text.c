/* Reading the text. Only rank 0 touches the file system, so that one rank gives the verdict on a bad file, and so that
 * the other ranks may run on hosts that do not have it. */
#include "train_text.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef SOURCE_FROM_HERE
#define SOURCE_FROM_HERE "." /* without libcomm's own build: what lies beside the program */
#endif

/* A text that grows as files are added to it. */
struct buffer {
    uint8_t *data;
    size_t bytes, capacity;
};

__attribute__((format(printf, 1, 2))) static int complain(const char *format, ...)
{
    va_list arguments;

    fputs("train_bytes: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return 1;
}

/* Append what can be read from `fd`, up to TEXT_BYTES_MAX in all. 0, or an errno. */
static int append(struct buffer *buffer, int fd)
{
    while (buffer->bytes < TEXT_BYTES_MAX) {
        if (buffer->bytes == buffer->capacity) {
            size_t capacity = buffer->capacity ? buffer->capacity * 2 : 65536;
            uint8_t *data = realloc(buffer->data, capacity);
            if (!data)
                return ENOMEM;
            buffer->data = data;
            buffer->capacity = capacity;
        }
        size_t want = buffer->capacity - buffer->bytes;
        if (want > TEXT_BYTES_MAX - buffer->bytes)
            want = TEXT_BYTES_MAX - buffer->bytes;
        ssize_t got = read(fd, buffer->data + buffer->bytes, want);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return errno;
        if (got == 0)
            break;
        buffer->bytes += (size_t)got;
    }
    return 0;
}

/* Append the file at `path`. 0, or 1 with a complaint. */
static int append_file(struct buffer *buffer, const char *path)
{
    struct stat status;

    /* Without O_NONBLOCK, opening a pipe without a writer would hang. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return complain("%s: %s", path, strerror(errno));
    int error = fstat(fd, &status) < 0 ? errno : 0;
    if (!error && S_ISDIR(status.st_mode)) {
        close(fd);
        return complain("%s is a directory; give a file", path);
    }
    if (!error && !S_ISREG(status.st_mode)) {
        close(fd);
        return complain("%s is not a regular file", path);
    }
    if (!error)
        error = append(buffer, fd);
    close(fd);
    if (error)
        return complain("%s cannot be read: %s", path, strerror(error));
    return 0;
}

static int is_source(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && (!strcmp(dot, ".c") || !strcmp(dot, ".h") || !strcmp(dot, ".md"));
}

static int by_name(const FTSENT **left, const FTSENT **right)
{
    return strcmp((*left)->fts_name, (*right)->fts_name);
}

/* Append libcomm's own sources, one after the other, in the order of their names. They are found from where this
 * program lies, so that source and build folders can be moved together: SOURCE_FROM_HERE is the way from one to the
 * other. */
static int append_sources(struct buffer *buffer)
{
    char here[PATH_MAX], root[PATH_MAX + sizeof SOURCE_FROM_HERE];
    const char *started_as = (const char *)getauxval(AT_EXECFN); /* a bare chroot has no /proc/self/exe */
    if (!started_as || !realpath(started_as, here))
        return complain("where this program lies cannot be found out (%s); give a text file",
                        started_as ? strerror(errno) : "the kernel does not say");
    snprintf(root, sizeof root, "%s/%s", dirname(here), SOURCE_FROM_HERE);

    char *folders[] = { root, NULL };
    FTS *walk = fts_open(folders, FTS_PHYSICAL | FTS_NOCHDIR, by_name);
    if (!walk)
        return complain("%s cannot be read: %s; give a text file", root, strerror(errno));
    int failed = 0;
    FTSENT *entry;
    while (!failed && (entry = fts_read(walk)) != NULL) {
        if (entry->fts_info == FTS_D && entry->fts_level > 0 &&
            (entry->fts_name[0] == '.' || !strncmp(entry->fts_name, "build", 5)))
            fts_set(walk, entry, FTS_SKIP);
        else if (entry->fts_info == FTS_F && is_source(entry->fts_name))
            failed = append_file(buffer, entry->fts_path);
    }
    fts_close(walk);
    if (!failed && buffer->bytes == 0)
        return complain("the sources of libcomm are not beside this program; give a text file");
    return failed;
}

/* What rank 0 does. 0, or 1 with a complaint. */
static int read_text(struct buffer *buffer, const char *path, size_t bytes_min)
{
    if (path ? append_file(buffer, path) : append_sources(buffer))
        return 1;
    if (!path)
        path = "libcomm's sources";
    if (buffer->bytes == 0)
        return complain("%s is empty", path);
    if (buffer->bytes < bytes_min)
        return complain("%s has only %zu bytes; this window needs at least %zu", path, buffer->bytes, bytes_min);
    if (buffer->bytes == TEXT_BYTES_MAX)
        complain("%s: only the first %zu MiB are used", path, TEXT_BYTES_MAX >> 20);
    return 0;
}

int text_load(comm_group *world, const char *path, size_t bytes_min, struct text *ret_text)
{
    struct buffer buffer = { NULL, 0, 0 };
    void *data;
    size_t bytes;

    if (comm_group_rank(world) == 0 && read_text(&buffer, path, bytes_min))
        buffer.bytes = 0;
    /* A text is never empty, so an empty one is the verdict that there is none. */
    comm_op_options on_cpu = COMM_OP_OPTIONS_INIT;
    on_cpu.device = COMM_DEVICE_CPU;
    comm_status status = comm_broadcast_bytes(world, buffer.data, buffer.bytes, 0, &on_cpu, &data, &bytes);
    free(buffer.data);
    if (status != COMM_OK)
        return complain("rank %d: %s", comm_group_rank(world), comm_last_error());
    if (bytes == 0) {
        comm_free(data);
        return 1;
    }
    ret_text->data = data;
    ret_text->bytes = bytes;
    return 0;
}
