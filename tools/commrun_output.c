/* What ranks write, line by line: "[2] text". A line is shown when it is whole, so that ranks cannot tear each other's
 * lines, and whatever bytes it has; the last one of a stream also without its newline. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commrun.h"

enum { READ_BYTES = 65536 };

/* All of it, also to a terminal or a pipe that does not take it at once. */
static void write_all(struct run *run, int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes);
        if (n >= 0) {
            data += n;
            bytes -= (size_t)n;
        } else if (errno == EAGAIN) {
            poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, -1);
        } else if (errno != EINTR) {
            /* `commrun ... | head` has seen enough. Without a reader of stdout there is no point in going on. */
            if (fd == 1)
                run_fail(run, 128 + SIGPIPE, "writing to stdout: %s", strerror(errno));
            return;
        }
    }
}

static int uses_color(const struct run *run, int fd)
{
    const char *terminal = getenv("TERM"), *no_color = getenv("NO_COLOR");
    return !run->options.no_color && !(no_color && *no_color) && isatty(fd) && terminal &&
           strcmp(terminal, "dumb") != 0;
}

static void remember(struct rank *rank, const char *line, size_t bytes)
{
    char **slot = &rank->last[rank->last_next++ % COMMRUN_LAST_LINES];
    free(*slot);
    *slot = strndup(line, bytes > COMMRUN_LAST_BYTES / 2 ? COMMRUN_LAST_BYTES / 2 : bytes);
}

/* One line, without its newline. One write, so that what others write to the same terminal stays outside. */
static void show(struct stream *s, const char *line, size_t bytes)
{
    static const char *const colors[] = { "36", "32", "33", "35", "34", "31" };
    struct run *run = s->rank->run;
    char prefix[48] = "";
    if (s->fd == 2)
        remember(s->rank, line, bytes);
    if (s->rank->log) {
        fwrite(line, 1, bytes, s->rank->log);
        fputc('\n', s->rank->log);
    }
    if (!run->options.no_prefix && uses_color(run, s->fd))
        snprintf(prefix, sizeof prefix, "\x1b[%sm[%d]\x1b[0m ", colors[s->rank->rank % 6], s->rank->rank);
    else if (!run->options.no_prefix)
        snprintf(prefix, sizeof prefix, "[%d] ", s->rank->rank);
    size_t prefix_bytes = strlen(prefix);
    char *whole = malloc(prefix_bytes + bytes + 1);
    if (!whole)
        abort();
    memcpy(whole, prefix, prefix_bytes);
    memcpy(whole + prefix_bytes, line, bytes);
    whole[prefix_bytes + bytes] = '\n';
    write_all(run, s->fd, whole, prefix_bytes + bytes + 1);
    free(whole);
}

static void take(struct stream *s, const char *data, size_t bytes)
{
    while (bytes > 0) {
        const char *newline = memchr(data, '\n', bytes);
        size_t part = newline ? (size_t)(newline - data) : bytes;
        if (s->bytes == 0 && newline) {
            show(s, data, part);
        } else {
            if (s->bytes + part > s->capacity) {
                s->capacity = (s->bytes + part) * 2;
                s->line = realloc(s->line, s->capacity);
                if (!s->line)
                    abort();
            }
            memcpy(s->line + s->bytes, data, part);
            s->bytes += part;
            if (newline || s->bytes >= COMMRUN_LINE_BYTES) {
                show(s, s->line, s->bytes);
                s->bytes = 0;
            }
        }
        part += newline != NULL;
        data += part;
        bytes -= part;
    }
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buf)
{
    static char memory[READ_BYTES]; /* one read at a time: the loop has one thread */
    (void)handle;
    (void)suggested;
    *ret_buf = uv_buf_init(memory, sizeof memory);
}

static void on_closed(uv_handle_t *handle)
{
    struct stream *s = handle->data;
    struct run *run = s->rank->run;
    run->streams_open--;
    run_check_ended(run);
}

void output_close(struct stream *s)
{
    if (!s->open)
        return;
    s->open = 0;
    if (s->bytes > 0)
        show(s, s->line, s->bytes);
    s->bytes = 0;
    uv_close((uv_handle_t *)&s->pipe, on_closed);
}

static void on_read(uv_stream_t *pipe, ssize_t bytes, const uv_buf_t *buf)
{
    struct stream *s = pipe->data;
    if (bytes > 0)
        take(s, buf->base, (size_t)bytes);
    else if (bytes < 0)
        output_close(s);
}

void output_read(struct stream *s, int fd)
{
    struct run *run = s->rank->run;
    uv_pipe_init(&run->loop, &s->pipe, 0);
    s->pipe.data = s;
    uv_pipe_open(&s->pipe, fd);
    uv_read_start((uv_stream_t *)&s->pipe, on_alloc, on_read);
    s->open = 1;
    run->streams_open++;
}

int output_open(struct rank *rank)
{
    struct run *run = rank->run;
    rank->out.rank = rank->err.rank = rank;
    rank->out.fd = 1;
    rank->err.fd = 2;
    if (!run->options.log_dir)
        return 0;
    char path[4096];
    snprintf(path, sizeof path, "%s/rank-%d.log", run->options.log_dir, rank->rank);
    if (mkdir(run->options.log_dir, 0777) != 0 && errno != EEXIST) {
        run_fail(run, 1, "making the folder '%s': %s", run->options.log_dir, strerror(errno));
        return -1;
    }
    rank->log = fopen(path, "we");
    if (!rank->log) {
        run_fail(run, 1, "opening the log file '%s': %s", path, strerror(errno));
        return -1;
    }
    setvbuf(rank->log, NULL, _IOLBF, 0);
    return 0;
}

void output_finish(struct rank *rank)
{
    if (rank->log)
        fclose(rank->log);
    for (int i = 0; i < COMMRUN_LAST_LINES; i++)
        free(rank->last[i]);
    free(rank->out.line);
    free(rank->err.line);
}

void output_last_words(const struct rank *rank, char *text, size_t capacity)
{
    size_t used = 0;
    for (size_t i = 0; i < COMMRUN_LAST_LINES; i++) {
        const char *line = rank->last[(rank->last_next + i) % COMMRUN_LAST_LINES];
        if (!line || used + strlen(line) + 16 > capacity)
            continue;
        used += (size_t)snprintf(text + used, capacity - used, "\n  %s", line);
    }
}

/* ---- A terminal's stdin, to rank 0 ---- */

static void stdin_stop(struct run *run)
{
    if (run->stdin_polled)
        uv_close((uv_handle_t *)&run->stdin_poll, NULL);
    run->stdin_polled = 0;
    close(run->stdin_rank_fd);
    run->stdin_rank_fd = -1;
}

static void on_stdin(uv_poll_t *poll_handle, int status, int events)
{
    struct run *run = poll_handle->data;
    char data[4096]; /* a terminal gives a line of at most this size, and a pipe takes it whole */
    (void)status;
    (void)events;
    if (tcgetpgrp(0) != getpgrp()) {
        uv_poll_stop(poll_handle); /* in the background, where reading would stop us; SIGCONT brings us back */
        return;
    }
    ssize_t bytes = read(0, data, sizeof data);
    if (bytes < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    ssize_t written = bytes <= 0 ? -1 : write(run->stdin_rank_fd, data, (size_t)bytes);
    if (written < 0 && bytes > 0 && errno == EAGAIN)
        run_say("rank 0 does not read its input; %zd bytes of it are lost", bytes);
    else if (written < 0)
        stdin_stop(run);
}

/* Also to go on after having been in the background. */
void output_stdin_start(struct run *run)
{
    if (run->stdin_rank_fd < 0)
        return;
    if (!run->stdin_polled) {
        run->stdin_poll.data = run;
        if (uv_poll_init(&run->loop, &run->stdin_poll, 0) != 0)
            return;
        fcntl(run->stdin_rank_fd, F_SETFL,
              O_NONBLOCK); /* a rank that does not read must not block the others' output */
        run->stdin_polled = 1;
    }
    uv_poll_start(&run->stdin_poll, UV_READABLE, on_stdin);
    uv_unref((uv_handle_t *)&run->stdin_poll);
}
