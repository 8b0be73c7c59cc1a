/* The store server's event loop and connections; tcp_state.c executes the requests.
 *
 * One thread, one libuv loop. Everything below the first section is owned by that thread. Bytes are read into one large
 * buffer that all connections share and are parsed in place; a connection has memory of its own only while a request is
 * cut in two, or while it does not read its replies. The replies to all that one read brought go out in one send.
 *
 * A connection that waits (WAIT, BARRIER) keeps what it sends afterwards until the wait is over, so that replies
 * come in the order of requests; only a CANCEL_WAIT among it is acted on at once. Clients of the old dialect cannot
 * cancel: they give up after a while and send their next request, so that any request of theirs ends their wait. */
#include "tcp_server.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "base/descriptors.h"
#include "base/error.h"
#include "base/log.h"
#include "base/own_thread.h"
#include "tcp_listen.h"
#include "tcp_state.h"
#include "wire.h"

enum {
    INPUT_BYTES = 256 << 10,     /* the shared read buffer */
    READ_IN_PLACE_BYTES = 16 << 10, /* a request that has grown beyond this is read straight into its own buffer */
    REPLY_KEEP_BYTES = 4 << 20,     /* the shared reply buffer is freed when a reply made it larger */
    KEEP_BYTES = 64 << 10,       /* a connection's own buffer larger than this is freed when it is empty */
    ACCEPTS_AT_ONCE = 256,       /* before the clients that are there get a turn again */
    ACCEPT_PAUSE_MS = 50,        /* when there are no more file descriptors */
};
/* A client with so many unread replies gets no new ones, and is dropped if it sends more requests: the replies that are
 * kept for it cannot grow beyond this and one largest reply. */
static const size_t unsent_bytes_max = 4 << 20;
static const size_t unasked_bytes_max = 1 << 20;
/* All buffers of all connections. Ten thousand hostile clients together must not take the memory of the host. */
static const size_t held_bytes_max = (size_t)2 << 30;

struct tcp_server {
    pthread_t thread;
    uv_loop_t loop;
    uv_async_t stop;
    uv_poll_t listener;
    uv_timer_t accept_again;
    int loop_ready;
    int listen_fd; /* -1 when closed */
    int accept_paused; /* it has been said */
    struct state *state;
    struct connection *connections;
    uint8_t *input;
    struct wire_buffer reply; /* to the connection that is being served */
    size_t held_bytes;
    uint64_t open, dropped; /* connections: now, and those that broke the rules so far */
};

struct connection {
    struct state_client client; /* first: the state's clients are our connections */
    uv_poll_t poll;
    struct tcp_server *server;
    struct connection *prev, *next;
    int fd; /* -1 when closed */
    int ended; /* the client will send no more: close when the replies are out */
    int polled; /* the events that are watched */
    int waiting;
    size_t long_bytes; /* of the MULTI_GET at the front of `held` while its reply is on the way (client.values_sent) */
    size_t ahead;         /* in `held`: how far it has been searched for a CANCEL_WAIT */
    int cancels_answered; /* up to there: CANCEL_WAITs, which have had their reply already */
    struct wire_parser parser;
    struct wire_buffer held;   /* received, and not executed yet */
    struct wire_buffer unsent; /* replies */
    size_t sent;               /* of `unsent` */
};

static void on_event(uv_poll_t *poll, int status, int events);

/* ---- The end of a connection ---- */

static void on_connection_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static void free_held(struct tcp_server *server, struct wire_buffer *buffer)
{
    server->held_bytes -= buffer->capacity;
    wire_buffer_finish(buffer);
}

static void connection_close(struct connection *c)
{
    struct tcp_server *server = c->server;
    if (c->fd < 0)
        return;
    state_leave(server->state, &c->client);
    *(c->prev ? &c->prev->next : &server->connections) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    free_held(server, &c->held);
    free_held(server, &c->unsent);
    uv_close((uv_handle_t *)&c->poll, on_connection_closed);
    close(c->fd); /* after uv_close, which has taken it out of the poll set */
    c->fd = -1;
    assert(server->open > 0);
    server->open--;
}

/* The client broke the rules: close, count, and say so, but not once for each of a million port scans. */
__attribute__((format(printf, 2, 3))) static void connection_drop(struct connection *c, const char *format, ...)
{
    uint64_t dropped = ++c->server->dropped;
    int32_t level = dropped <= 8 || (dropped & (dropped - 1)) == 0 ? COMM_LOG_WARN : COMM_LOG_DEBUG;
    if (comm__log_wanted(level)) {
        char reason[256], host[64] = "?", port[16] = "?";
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(reason, sizeof reason, format, arguments);
        va_end(arguments);
        struct sockaddr_storage peer;
        socklen_t bytes = sizeof peer;
        if (getpeername(c->fd, (struct sockaddr *)&peer, &bytes) == 0)
            getnameinfo((struct sockaddr *)&peer, bytes, host, sizeof host, port, sizeof port,
                        NI_NUMERICHOST | NI_NUMERICSERV);
        comm__log(level, "store server: dropped the client at %s port %s: %s (%llu dropped so far)", host, port, reason,
                  (unsigned long long)dropped);
    }
    connection_close(c);
}

/* ---- Buffers that a connection keeps ---- */

/* Add to one of the connection's own buffers; -1 if it was dropped for that. */
static int keep(struct connection *c, struct wire_buffer *buffer, const uint8_t *data, size_t bytes)
{
    struct tcp_server *server = c->server;
    size_t capacity = buffer->capacity;
    if (wire_reserve(buffer, bytes) != 0) {
        connection_drop(c, "no memory for %zu B of it", bytes);
        return -1;
    }
    server->held_bytes += buffer->capacity - capacity;
    if (server->held_bytes > held_bytes_max) {
        connection_drop(c, "the unfinished requests and unread replies of all clients hold %zu MiB",
                        server->held_bytes >> 20);
        return -1;
    }
    if (data)
        wire_put_bytes(buffer, data, bytes);
    return 0;
}

static void forget_front(struct tcp_server *server, struct wire_buffer *buffer, size_t bytes)
{
    buffer->bytes -= bytes;
    if (buffer->bytes == 0 && buffer->capacity > KEEP_BYTES)
        free_held(server, buffer);
    else if (buffer->bytes > 0 && bytes > 0)
        memmove(buffer->data, buffer->data + bytes, buffer->bytes);
}

/* ---- Replies ---- */

static int has_to_send(const struct connection *c)
{
    return c->unsent.bytes > 0 || c->client.values_sent > 0;
}

static int watch(struct connection *c)
{
    int events = (c->ended ? 0 : UV_READABLE) | (has_to_send(c) ? UV_WRITABLE : 0);
    if (events == c->polled)
        return 0;
    c->polled = events;
    return uv_poll_start(&c->poll, events, on_event);
}

/* How many bytes the socket took; -1 if the connection is broken. */
static ssize_t send_some(struct connection *c, const uint8_t *data, size_t bytes)
{
    ssize_t n = send(c->fd, data, bytes, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    return n;
}

static int is_stalled(const struct connection *c)
{
    return c->unsent.bytes - c->sent > unsent_bytes_max;
}

/* Send what has been gathered in server->reply; what the socket does not take is kept. -1: the connection is gone. */
static int flush_reply(struct connection *c)
{
    struct wire_buffer *reply = &c->server->reply;
    size_t bytes = reply->bytes;
    ssize_t n = 0;
    reply->bytes = 0;
    if (bytes > 0 && c->unsent.bytes == 0)
        n = send_some(c, reply->data, bytes);
    if (n < 0) {
        connection_close(c);
        return -1;
    }
    if ((size_t)n < bytes && keep(c, &c->unsent, reply->data + n, bytes - (size_t)n) != 0)
        return -1;
    if (reply->capacity > REPLY_KEEP_BYTES)
        wire_buffer_finish(reply);
    return 0;
}

/* The socket takes bytes again. */
static int flush_unsent(struct connection *c)
{
    ssize_t n = send_some(c, c->unsent.data + c->sent, c->unsent.bytes - c->sent);
    if (n < 0) {
        connection_close(c);
        return -1;
    }
    c->sent += (size_t)n;
    if (c->sent == c->unsent.bytes) {
        forget_front(c->server, &c->unsent, c->sent);
        c->sent = 0;
    } else if (c->sent > KEEP_BYTES && c->sent > c->unsent.bytes / 2) {
        forget_front(c->server, &c->unsent, c->sent);
        c->sent = 0;
    }
    return 0;
}

/* ---- Requests ---- */

/* Execute what is complete in `data`; gives how many bytes that was. -1: the connection is gone. */
static ssize_t execute(struct connection *c, const uint8_t *data, size_t bytes)
{
    struct tcp_server *server = c->server;
    struct wire_request request;
    size_t done = 0;
    while (!c->waiting && !is_stalled(c) && done < bytes) {
        enum wire_verdict verdict = wire_parse(&c->parser, data + done, bytes - done, &request);
        if (verdict == WIRE_MORE)
            break;
        if (verdict == WIRE_BAD) {
            if (flush_reply(c) == 0)
                connection_drop(c, "%s: %llu", c->parser.reason, (unsigned long long)c->parser.culprit);
            return -1;
        }
        if (request.query == WIRE_CANCEL_WAIT && c->cancels_answered > 0) {
            c->cancels_answered--;
            done += request.bytes;
            continue;
        }
        comm_status status = state_execute(server->state, &c->client, &request, &server->reply);
        if (status < COMM_OK) {
            server->reply.failed = 0;
            if (flush_reply(c) == 0)
                connection_drop(c, "%s", comm_last_error());
            return -1;
        }
        if (c->client.values_sent > 0) {
            c->long_bytes = request.bytes;
            break;
        }
        done += request.bytes;
        c->waiting = status == COMM_IN_PROGRESS;
        if (server->reply.bytes > INPUT_BYTES && flush_reply(c) != 0)
            return -1;
    }
    return (ssize_t)done;
}

/* While the connection waits: does it say, in what it has sent since, that it has waited long enough? No byte is
 * searched twice, however often it waits, and all CANCEL_WAITs in what has been searched are answered. */
static int look_for_cancel(struct connection *c)
{
    struct wire_request request;
    if (c->parser.dialect == WIRE_DIALECT_OLD && c->held.bytes > c->ahead) {
        state_cancel(c->server->state, &c->client);
        c->waiting = 0;
        return 0;
    }
    while (c->ahead < c->held.bytes) {
        enum wire_verdict verdict =
            wire_parse(&c->parser, c->held.data + c->ahead, c->held.bytes - c->ahead, &request);
        if (verdict == WIRE_MORE)
            break;
        if (verdict == WIRE_BAD) {
            connection_drop(c, "%s: %llu", c->parser.reason, (unsigned long long)c->parser.culprit);
            return -1;
        }
        c->ahead += request.bytes;
        if (request.query != WIRE_CANCEL_WAIT)
            continue;
        state_cancel(c->server->state, &c->client);
        wire_put_u8(&c->server->reply, WIRE_WAIT_CANCELED);
        c->cancels_answered++;
        c->waiting = 0;
        break;
    }
    if (!c->waiting)
        wire_parser_rewind(&c->parser);
    return 0;
}

/* Execute what the connection holds, as far as it goes. -1: the connection is gone. */
static int execute_held(struct connection *c)
{
    size_t done = 0; /* forgotten at the end: what lies behind it is moved once, not for every WAIT in it */
    for (;;) {
        if (c->waiting && look_for_cancel(c) != 0)
            return -1;
        if (c->waiting || done == c->held.bytes)
            break;
        ssize_t more = execute(c, c->held.data + done, c->held.bytes - done);
        if (more < 0)
            return -1;
        done += (size_t)more;
        if (c->ahead < done)
            c->ahead = done;
        if (!c->waiting)
            break;
    }
    c->ahead -= c->ahead < done ? c->ahead : done;
    forget_front(c->server, &c->held, done);
    return 0;
}

/* Send what there is to send, and watch for what comes next. */
static void settle(struct connection *c)
{
    if (flush_reply(c) != 0)
        return;
    if (c->ended && (c->waiting || !has_to_send(c))) {
        connection_close(c);
        return;
    }
    if (watch(c) != 0)
        connection_drop(c, "the event loop cannot watch it");
}

/* Clients that were waiting for what the last requests did get their reply, and their turn. */
static void serve_ready(struct tcp_server *server)
{
    for (struct state_client *client; (client = state_take_ready(server->state));) {
        struct connection *c = (struct connection *)client;
        c->waiting = 0;
        wire_parser_rewind(&c->parser);
        wire_put_u8(&server->reply, WIRE_STOP_WAITING);
        if (execute_held(c) == 0) {
            state_told(server->state, client);
            settle(c);
        }
        server->reply.bytes = 0;
    }
}

/* ---- Reading ---- */

/* Bytes have come; `data` is the shared buffer, or NULL if they are at the end of c->held already. */
static int take_input(struct connection *c, const uint8_t *data, size_t bytes)
{
    if (data && c->held.bytes == 0 && !c->waiting) {
        ssize_t done = execute(c, data, bytes);
        if (done < 0)
            return -1;
        data += done;
        bytes -= (size_t)done;
    }
    if (data && bytes > 0 && keep(c, &c->held, data, bytes) != 0)
        return -1;
    if (c->waiting && c->held.bytes > WIRE_REQUEST_MAX + INPUT_BYTES) {
        connection_drop(c, "%zu B of requests behind a WAIT", c->held.bytes);
        return -1;
    }
    if (is_stalled(c) && c->held.bytes > unasked_bytes_max + (c->client.values_sent ? c->long_bytes : 0)) {
        connection_drop(c, "it sends requests and does not read the replies: %zu B wait for it",
                        c->unsent.bytes - c->sent);
        return -1;
    }
    return execute_held(c);
}

static void on_readable(struct connection *c)
{
    struct tcp_server *server = c->server;
    struct wire_buffer *held = &c->held;
    int in_place = held->bytes > READ_IN_PLACE_BYTES;
    if (in_place && held->capacity - held->bytes < INPUT_BYTES && keep(c, held, NULL, INPUT_BYTES) != 0)
        return;
    uint8_t *to = in_place ? held->data + held->bytes : server->input;
    ssize_t n = recv(c->fd, to, in_place ? held->capacity - held->bytes : INPUT_BYTES, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n < 0) {
        connection_close(c);
        return;
    }
    if (n == 0)
        c->ended = 1;
    else if (in_place)
        held->bytes += (size_t)n;
    if (n > 0 && take_input(c, in_place ? NULL : to, (size_t)n) != 0)
        return;
    settle(c);
}

/* What was held back because its replies were not read has its turn when they are; and the next part of a long reply
 * when the one before is out. */
static void on_writable(struct connection *c)
{
    int was_stalled = is_stalled(c);
    if (c->unsent.bytes > 0 && flush_unsent(c) != 0)
        return;
    int may_go_on = c->client.values_sent ? c->unsent.bytes == 0 : was_stalled && !is_stalled(c);
    if (may_go_on && execute_held(c) != 0)
        return;
    settle(c);
}

static void on_event(uv_poll_t *poll, int status, int events)
{
    struct connection *c = poll->data;
    struct tcp_server *server = c->server;
    if (status < 0) {
        connection_close(c);
    } else {
        if ((events & UV_WRITABLE) && has_to_send(c))
            on_writable(c);
        if ((events & UV_READABLE) && c->fd >= 0 && !c->ended)
            on_readable(c);
    }
    server->reply.bytes = 0; /* of a connection that did not live to see it */
    serve_ready(server);
}

/* ---- Accepting ---- */

static void connection_create(struct tcp_server *server, int fd)
{
    struct connection *c = calloc(1, sizeof *c);
    if (!c || uv_poll_init(&server->loop, &c->poll, fd) != 0) {
        free(c);
        close(fd);
        return;
    }
    tcp_tune(fd);
    c->poll.data = c;
    c->server = server;
    c->fd = fd;
    c->next = server->connections;
    if (c->next)
        c->next->prev = c;
    server->connections = c;
    server->open++;
    if (watch(c) != 0)
        connection_drop(c, "the event loop cannot watch it");
}

static void on_store_listener(uv_poll_t *poll, int status, int events);

static void on_accept_again(uv_timer_t *timer)
{
    struct tcp_server *server = timer->data;
    uv_poll_start(&server->listener, UV_READABLE, on_store_listener);
}

/* No more file descriptors: let them queue, as the listener would be readable for ever. */
static void pause_accepting(struct tcp_server *server, int error)
{
    static const char text[] = "store server: cannot accept more than %llu connections: %s; others wait until some "
                               "close (raise the limit: ulimit -n)";
    unsigned long long open = (unsigned long long)server->open;
    if (!server->accept_paused)
        comm__log(COMM_LOG_WARN, text, open, strerror(error));
    server->accept_paused = 1;
    uv_poll_stop(&server->listener);
    uv_timer_start(&server->accept_again, on_accept_again, ACCEPT_PAUSE_MS, 0);
}

static void on_store_listener(uv_poll_t *poll, int status, int events)
{
    struct tcp_server *server = poll->data;
    (void)status;
    (void)events;
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            connection_create(server, fd);
        } else if (errno == EAGAIN) {
            return;
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            pause_accepting(server, errno);
            return;
        } /* else the connection broke while it was queued, and there is nothing to do */
    }
}

/* ---- Life ---- */

static void on_stop(uv_async_t *async)
{
    struct tcp_server *server = async->data;
    while (server->connections)
        connection_close(server->connections);
    uv_close((uv_handle_t *)&server->listener, NULL);
    uv_close((uv_handle_t *)&server->accept_again, NULL);
    uv_close((uv_handle_t *)&server->stop, NULL);
    close(server->listen_fd);
    server->listen_fd = -1;
}

static void *run(void *argument)
{
    struct tcp_server *server = argument;
    pthread_setname_np(pthread_self(), "comm-store");
    uv_run(&server->loop, UV_RUN_DEFAULT); /* returns when on_stop has closed every handle */
    return NULL;
}

/* One server may have to carry ten thousand clients; the soft limit is often 1024. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void close_handle(uv_handle_t *handle, void *unused)
{
    (void)unused;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* Takes one that is half built; the thread has ended, or was never there. */
static void server_destroy(struct tcp_server *server)
{
    if (server->loop_ready) {
        uv_walk(&server->loop, close_handle, NULL);
        uv_run(&server->loop, UV_RUN_DEFAULT);
        uv_loop_close(&server->loop);
    }
    if (server->listen_fd >= 0)
        close(server->listen_fd);
    state_destroy(server->state);
    wire_buffer_finish(&server->reply);
    free(server->input);
    free(server);
}

static comm_status server_init(struct tcp_server *server)
{
    comm_status status = state_create(&server->state);
    if (status != COMM_OK)
        return status;
    server->input = malloc(INPUT_BYTES);
    if (!server->input)
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a store server");
    int error = -descriptors_for_loop();
    if (!error)
        error = uv_loop_init(&server->loop);
    if (!error) {
        server->loop_ready = 1;
        error = uv_async_init(&server->loop, &server->stop, on_stop);
    }
    if (!error)
        error = uv_timer_init(&server->loop, &server->accept_again);
    if (!error)
        error = uv_poll_init(&server->loop, &server->listener, server->listen_fd);
    if (!error)
        error = uv_poll_start(&server->listener, UV_READABLE, on_store_listener);
    server->stop.data = server->listener.data = server->accept_again.data = server;
    if (!error)
        error = -own_thread_create(&server->thread, run, server);
    return !error ? COMM_OK
                  : comm__fail(COMM_ERR_SYSTEM, "start a store server: %s%s", uv_strerror(error),
                               descriptors_cure(-error));
}

comm_status tcp_server_start(int listen_fd, struct tcp_server **ret_server)
{
    struct tcp_server *server = calloc(1, sizeof *server);
    if (!server) {
        close(listen_fd);
        return comm__fail(COMM_ERR_NO_MEMORY, "no memory for a store server");
    }
    server->listen_fd = listen_fd;
    raise_descriptor_limit();
    comm_status status = server_init(server);
    if (status != COMM_OK) {
        server_destroy(server);
        return status;
    }
    *ret_server = server;
    return COMM_OK;
}

void tcp_server_stop(struct tcp_server *server)
{
    if (!server)
        return;
    uv_async_send(&server->stop);
    pthread_join(server->thread, NULL);
    server_destroy(server);
}
