/* What our client says, byte for byte, to servers that follow a script: PyTorch's of several ages, ours, and some that
 * are broken or hostile. The keys that it asks for go in the order of the script; a byte too many or too few fails. */
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lines.h"
#include "ranks.h"

/* What the server does:
 *   A  accept a connection      H  hear the greeting of today, echo its number, and say `text`
 *   C  hear `text`              S  say `text`
 *   K  hear `text`, then a string of any content       R  say that string
 *   X  end the connection       E  hear that the client closes it
 *   L  stop listening
 * Small letters: the same on the connection before the latest one that is not closed. */
struct act {
    char what;
    const char *text;
};

#define GREETING "00 ce f7 85 3c 0d ?? ?? ff 00 05 01.. 0f.. 'libcomm/ordered'"
#define GREETING_OF_OLD "00 ce f7 85 3c 07 07 07 07 05 01.. 0f.. 'libcomm/ordered'"
#define GREETING_2_1 "04 01.. 0f.. 'libcomm/ordered' 0b"
#define GREETING_1_13 "04 01.. 0f.. 'libcomm/ordered'"

struct server {
    pthread_t thread;
    int listener, port;
    int fd, fd_before;
    uint8_t string[8 + 256]; /* with its length */
    const struct act *acts;
};

static void hear_greeting(int fd, const char *reply)
{
    uint8_t head[10];
    CHECK(recv(fd, head, sizeof head, MSG_WAITALL) == (ssize_t)sizeof head);
    CHECK(memcmp(head, "\0\xce\xf7\x85\x3c\x0d", 6) == 0);
    lines_hear(fd, "05 01.. 0f.. 'libcomm/ordered'");
    lines_send(fd, head + 6, 4);
    lines_say(fd, reply);
}

static void hear_string(struct server *s, int fd, const char *query)
{
    uint8_t *length = s->string;
    lines_hear(fd, query);
    CHECK(recv(fd, length, 8, MSG_WAITALL) == 8);
    CHECK(length[1] == 0 && recv(fd, s->string + 8, length[0], MSG_WAITALL) == (ssize_t)length[0]);
}

/* Say no more, and read on until the client has closed: else it might lose what was said before. */
static void end_connection(int *fd)
{
    char ignored[256];
    shutdown(*fd, SHUT_WR);
    while (recv(*fd, ignored, sizeof ignored, 0) > 0)
        ;
    close(*fd);
    *fd = -1;
}

static void *serve(void *argument)
{
    struct server *s = argument;
    for (const struct act *act = s->acts; act->what; act++) {
        int before = act->what >= 'a', *fd = before ? &s->fd_before : &s->fd;
        switch (before ? act->what - 'a' + 'A' : act->what) {
        case 'A':
            if (s->fd >= 0 && s->fd_before >= 0)
                close(s->fd_before);
            if (s->fd >= 0)
                s->fd_before = s->fd;
            s->fd = lines_accept(s->listener);
            break;
        case 'H': hear_greeting(*fd, act->text); break;
        case 'C': lines_hear(*fd, act->text); break;
        case 'S': lines_say(*fd, act->text); break;
        case 'K': hear_string(s, *fd, act->text); break;
        case 'R': lines_send(*fd, s->string, 8 + (size_t)s->string[0]); break;
        case 'E': lines_hear_end(*fd); close(*fd); *fd = -1; break;
        case 'L': close(s->listener); s->listener = -1; break;
        default: end_connection(fd); break;
        }
    }
    return NULL;
}

static struct server *server_start(const struct act *acts)
{
    struct server *s = calloc(1, sizeof *s);
    CHECK(s != NULL);
    s->fd = s->fd_before = -1;
    s->acts = acts;
    s->listener = lines_listen(&s->port);
    CHECK(pthread_create(&s->thread, NULL, serve, s) == 0);
    return s;
}

static comm_store *store_open(const struct server *s, int64_t timeout_ms)
{
    char url[64];
    comm_store *store;
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", s->port);
    CHECK_OK(comm_store_open(url, &options, &store));
    return store;
}

static comm_store *begin(const struct act *acts, struct server **ret_server)
{
    *ret_server = server_start(acts);
    return store_open(*ret_server, LINES_LIMIT_MS);
}

static void end(comm_store *store, struct server *s)
{
    pthread_join(s->thread, NULL); /* the script has been followed to its end */
    if (s->fd >= 0)
        lines_hear_nothing(s->fd);
    comm_store_close(store);
    if (s->fd >= 0)
        close(s->fd);
    if (s->fd_before >= 0)
        close(s->fd_before);
    close(s->listener);
    free(s);
}

/* ---- Calls with known results ---- */

static void get(comm_store *s, const char *key, const char *want)
{
    void *data = NULL;
    size_t bytes = 12345;
    CHECK_OK(comm_store_get(s, key, 0, &data, &bytes));
    CHECK(bytes == strlen(want) && memcmp(data, want, bytes) == 0);
    comm_free(data);
}

static void add(comm_store *s, const char *key, int64_t amount, int64_t want)
{
    int64_t value = -12345;
    CHECK_OK(comm_store_add(s, key, amount, &value));
    CHECK(value == want);
}

static void compare_set(comm_store *s, const char *key, const char *expected, const char *desired, const char *want)
{
    void *data = NULL;
    size_t bytes = 12345;
    CHECK_OK(comm_store_compare_set(s, key, expected, strlen(expected), desired, strlen(desired), &data, &bytes));
    CHECK(bytes == strlen(want) && memcmp(data, want, bytes) == 0);
    comm_free(data);
}

static void get_two(comm_store *s, const char *a, const char *b)
{
    const char *const keys[] = { "a", "b" }, *const want[] = { a, b };
    void *data[2] = { NULL, NULL };
    size_t bytes[2] = { 1, 2 };
    CHECK_OK(comm_store_multi_get(s, keys, 2, 0, data, bytes));
    for (int i = 0; i < 2; i++) {
        CHECK(bytes[i] == strlen(want[i]) && memcmp(data[i], want[i], bytes[i]) == 0);
        comm_free(data[i]);
    }
}

static void set_two(comm_store *s)
{
    const char *const keys[] = { "a", "b" };
    const void *const data[] = { "x", "yz" };
    const size_t bytes[] = { 1, 2 };
    CHECK_OK(comm_store_multi_set(s, keys, 2, data, bytes));
}

static void pop(comm_store *s, int64_t timeout_ms, comm_status want)
{
    void *data = NULL;
    size_t bytes = 12345;
    CHECK_STATUS(comm_store_queue_pop(s, "q", timeout_ms, &data, &bytes), want);
    if (want == COMM_OK) {
        CHECK(bytes == 1 && memcmp(data, "v", 1) == 0);
        comm_free(data);
    }
}

static void list_one(comm_store *s)
{
    char **keys = NULL;
    size_t count = 12345;
    CHECK_OK(comm_store_list_keys(s, &keys, &count));
    CHECK(count == 1 && strcmp(keys[0], "a") == 0);
    comm_free(keys);
}

static comm_status try_get(comm_store *s, int64_t timeout_ms)
{
    void *data;
    size_t bytes;
    return comm_store_get(s, "k", timeout_ms, &data, &bytes);
}

/* ---- PyTorch of today ---- */

#define TWO_KEYS "02.. 02.. '/a' 02.. '/b'"
/* A COMPARE_SET of what no key holds, after an empty value: it is what it says, or the key is not there ('R'). */
#define EMPTY_OR_NOT(key) { 'K', "02 02.. " key }, { 'K', "" }

static void pytorch_of_today(void)
{
    static const struct act acts[] = {
        { 'A', "" }, { 'H', "01" },
        { 'C', "01 02.. '/k' 01.. 'v'" },
        { 'C', "06 01.. 02.. '/k'" }, { 'S', "00" }, { 'C', "03 02.. '/k'" }, { 'S', "01.. 'v'" },
        { 'C', "04 04.. '/ctr' f9 ff ff ff ff ff ff ff" }, { 'S', "fe ff ff ff ff ff ff ff" },
        { 'C', "02 03.. '/cs' 01.. 'x' 01.. 'y'" }, { 'S', "01.. 'b'" },
        { 'C', "05 " TWO_KEYS }, { 'S', "01" },
        { 'C', "08 02.. '/k'" }, { 'S', "01.." },
        { 'C', "07" }, { 'S', "04.." },
        { 'C', "09 03.. '/ap' 01.. 'x' 05 01.. 03.. '/ap'" }, { 'S', "00" },
        { 'C', "0b 02.. 02.. '/a' 01.. 'x' 02.. '/b' 02.. 'yz'" },
        { 'C', "06 " TWO_KEYS }, { 'S', "00" }, { 'C', "0a " TWO_KEYS }, { 'S', "01.. 'x' 00.." },
        EMPTY_OR_NOT("'/b'"), { 'S', "00.." },
        { 'C', "01 05.. '/p/q/' 00.." },
        { 0, NULL } };
    struct server *server;
    comm_store *s = begin(acts, &server);
    const char *const keys[] = { "a", "b" };
    int32_t yes = -1;
    int64_t count = -1;
    CHECK_OK(comm_store_set(s, "k", "v", 1));
    get(s, "k", "v");
    add(s, "ctr", -7, -2);
    compare_set(s, "cs", "x", "y", "b");
    CHECK_OK(comm_store_check(s, keys, 2, &yes));
    CHECK(yes == 0);
    CHECK_OK(comm_store_delete(s, "k", &yes));
    CHECK(yes == 1);
    CHECK_OK(comm_store_num_keys(s, &count));
    CHECK(count == 4);
    CHECK_OK(comm_store_append(s, "ap", "x", 1));
    set_two(s);
    get_two(s, "x", "");
    comm_store *view;
    CHECK_OK(comm_store_prefix("p", s, &view));
    CHECK_OK(comm_store_set(view, "q/", NULL, 0));
    comm_store_close(view);
    end(s, server);
}

static void timeouts_on_pytorch(void)
{
    static const struct act acts[] = {
        { 'A', "" }, { 'H', "01" },
        { 'C', "06 01.. 02.. '/k'" }, { 'C', "0c" }, { 'S', "01" },
        /* The wake-up crosses the cancelling: the keys have come after all. */
        { 'C', "06 01.. 02.. '/k'" }, { 'C', "0c" }, { 'S', "00 01" }, { 'C', "03 02.. '/k'" }, { 'S', "01.. 'v'" },
        { 'C', "06 " TWO_KEYS }, { 'C', "0c" }, { 'S', "01" },
        { 'C', "05 01.. 02.. '/a' 05 01.. 02.. '/b'" }, { 'S', "00 01" },
        { 'C', "07" }, { 'S', "04.." },
        { 0, NULL } };
    struct server *server;
    comm_store *s = begin(acts, &server);
    const char *const keys[] = { "a", "b" };
    int64_t count = -1;
    void *data = NULL;
    size_t bytes = 0;
    CHECK_STATUS(try_get(s, 30), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("'k'");
    CHECK_OK(comm_store_get(s, "k", 30, &data, &bytes));
    CHECK(bytes == 1);
    comm_free(data);
    CHECK_STATUS(comm_store_wait(s, keys, 2, 30), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("1 key did not");
    CHECK_ERROR_SAYS("'b'");
    CHECK_OK(comm_store_num_keys(s, &count));
    CHECK(count == 4);
    end(s, server);
}

static void what_pytorch_may_have(void)
{
    static const struct act acts[] = {
        { 'A', "" }, { 'H', "01" },
        { 'A', "" }, { 'H', "01" }, { 'K', "10" }, { 'S', "00.." }, { 'E', "" }, /* are there queues? yes */
        { 'c', "0e 02.. '/q' 01.. 'v'" },
        { 'c', "10 02.. '/q'" }, { 's', "01.." },
        { 'c', "0f 02.. '/q'" }, { 's', "01.. 01.. 'v'" },
        { 'c', "0f 02.. '/q'" }, { 's', "00.." },
        /* Another client was quicker: wait again, and never again on a connection that has waited for a queue. */
        { 'c', "06 01.. 02.. '/q'" }, { 's', "00" }, { 'c', "0f 02.. '/q'" }, { 's', "00.." }, { 'e', "" },
        { 'A', "" }, { 'H', "01" },
        { 'C', "06 01.. 02.. '/q'" }, { 'S', "00" }, { 'C', "0f 02.. '/q'" }, { 'S', "01.. 01.. 'v'" }, { 'E', "" },
        { 'A', "" }, { 'H', "01" },
        { 'A', "" }, { 'H', "01" }, { 'C', "11" }, { 'S', "00.." }, { 'E', "" }, /* LIST_KEYS? yes */
        /* one without "/", one with a NUL inside */
        { 'c', "11" }, { 's', "03.. 05.. 'init/' 02.. '/a' 04.. '/x' 00 79" },
        { 'A', "" }, { 'H', "01" }, { 'K', "12" }, { 'C', "01.." }, { 'K', "08" }, { 'S', "00 01.." }, { 'E', "" },
        { 'c', "12 04.. '/bar' 02.." }, { 's', "00" },
        { 'c', "12 04.. '/bar' 02.." }, { 'c', "0c" }, { 's', "01" },
        { 'c', "04 04.. '/bar' 00.." }, { 's', "01.." },
        { 0, NULL } };
    struct server *server;
    comm_store *s = begin(acts, &server);
    int64_t count = -1;
    CHECK_OK(comm_store_queue_push(s, "q", "v", 1));
    CHECK_OK(comm_store_queue_len(s, "q", &count));
    CHECK(count == 1);
    pop(s, COMM_STORE_NO_WAIT, COMM_OK);
    pop(s, COMM_STORE_NO_WAIT, COMM_ERR_NOT_FOUND);
    pop(s, 0, COMM_OK);
    list_one(s);
    CHECK_OK(comm_store_barrier(s, "bar", 2, 0));
    CHECK_STATUS(comm_store_barrier(s, "bar", 2, 30), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("1 of 2");
    end(s, server);
}

static void what_pytorch_may_lack(void)
{
    static const struct act acts[] = {
        { 'A', "" }, { 'H', "01" },
        { 'A', "" }, { 'H', "01" }, { 'K', "10" }, { 'X', "" },
        { 'A', "" }, { 'H', "01" }, { 'C', "11" }, { 'X', "" },
        { 0, NULL } };
    struct server *server;
    comm_store *s = begin(acts, &server);
    char **keys;
    size_t count;
    for (int i = 0; i < 2; i++) { /* it is asked once */
        CHECK_STATUS(comm_store_queue_push(s, "q", "v", 1), COMM_ERR_UNSUPPORTED);
        CHECK_ERROR_SAYS("QUEUE_PUSH");
        CHECK_STATUS(comm_store_list_keys(s, &keys, &count), COMM_ERR_UNSUPPORTED);
        CHECK_ERROR_SAYS("LIST_KEYS");
    }
    end(s, server);
}

/* ---- Ours ---- */

static void ours(void)
{
    static const struct act acts[] = {
        { 'A', "" }, { 'H', "00" },
        { 'C', "06 01.. 02.. '/k' 03 02.. '/k'" }, { 'S', "00 01.. 'v'" },
        { 'C', "06 01.. 02.. '/k' 03 02.. '/k'" }, { 'C', "0c" }, { 'S', "01 00.." },
        { 'C', "06 01.. 02.. '/k' 03 02.. '/k'" }, { 'C', "0c" }, { 'S', "00 01.. 'v' 01" },
        { 'C', "0e 02.. '/q' 01.. 'v'" },
        { 'C', "06 01.. 02.. '/q' 0f 02.. '/q'" }, { 'S', "00 01.. 01.. 'v'" },
        { 'C', "06 01.. 02.. '/q' 0f 02.. '/q'" }, { 'C', "0c" }, { 'S', "01 00.." },
        { 'C', "11" }, { 'S', "01.. 02.. '/a'" },
        { 'C', "12 04.. '/bar' 01.." }, { 'S', "00" },
        { 0, NULL } };
    struct server *server;
    comm_store *s = begin(acts, &server);
    void *data = NULL;
    size_t bytes = 0;
    get(s, "k", "v");
    CHECK_STATUS(try_get(s, 30), COMM_ERR_TIMEOUT);
    CHECK_OK(comm_store_get(s, "k", 30, &data, &bytes));
    CHECK(bytes == 1);
    comm_free(data);
    CHECK_OK(comm_store_queue_push(s, "q", "v", 1));
    pop(s, 0, COMM_OK);
    pop(s, 30, COMM_ERR_TIMEOUT);
    list_one(s);
    CHECK_OK(comm_store_barrier(s, "bar", 1, 0));
    end(s, server);
}

static void a_value_that_is_none(void)
{
    static const struct act acts[] = {
        { 'A', "" }, { 'H', "00" },
        { 'C', "06 01.. 02.. '/k' 03 02.. '/k'" }, { 'S', "00 00.." }, EMPTY_OR_NOT("'/k'"), { 'R', "" },
        { 'C', "06 01.. 02.. '/k' 03 02.. '/k'" }, { 'S', "00 00.." }, EMPTY_OR_NOT("'/k'"), { 'S', "02.. 'vw'" },
        { 'C', "06 01.. 02.. '/k' 03 02.. '/k'" }, { 'S', "00 00.." }, EMPTY_OR_NOT("'/k'"), { 'S', "00.." },
        { 'C', "06 " TWO_KEYS }, { 'S', "00" }, { 'C', "0a " TWO_KEYS }, { 'S', "01.. 'x' 00.." },
        EMPTY_OR_NOT("'/b'"), { 'R', "" },
        { 'C', "06 01.. 02.. '/b' 03 02.. '/b'" }, { 'S', "00 02.. 'yz'" },
        { 0, NULL } };
    struct server *server;
    comm_store *s = begin(acts, &server);
    get(s, "k", "vw");
    get(s, "k", "");
    get_two(s, "x", "yz");
    end(s, server);
}

/* ---- Older ones ---- */

static void pytorch_before_2_5(void)
{
    static const struct act acts[] = {
        { 'A', "" }, { 'C', GREETING }, { 'X', "" },
        { 'A', "" }, { 'C', GREETING_OF_OLD }, { 'S', "03.. 03.. 03.. 03.. 01" },
        { 'C', "01 02.. '/k' 01.. 'v'" },
        { 'C', "08 02.. '/k'" }, { 'S', "00.." },
        { 0, NULL } };
    struct server *server;
    comm_store *s = begin(acts, &server);
    CHECK_OK(comm_store_set(s, "k", "v", 1));
    CHECK_OK(comm_store_delete(s, "k", NULL));
    end(s, server);
}

static void pytorch_2_1(void)
{
    static const struct act acts[] = {
        { 'A', "" }, { 'C', GREETING }, { 'X', "" },
        { 'A', "" }, { 'C', GREETING_OF_OLD }, { 'X', "" },
        { 'A', "" }, { 'C', GREETING_2_1 }, { 'S', "01 01" },
        { 'C', "00 02.. '/k' 01.. 'v'" },
        { 'C', "07 02.. '/k'" }, { 'S', "01.." },
        { 'C', "08 03.. '/ap' 01.. 'x' 04 01.. 03.. '/ap'" }, { 'S', "00" },
        { 'C', "0a 02.. 02.. '/a' 01.. 'x' 02.. '/b' 02.. 'yz'" },
        { 'C', "05 " TWO_KEYS }, { 'S', "00" }, { 'C', "09 " TWO_KEYS }, { 'S', "01.. 'x' 02.. 'yz'" },
        { 'C', "05 01.. 02.. '/k'" }, { 'C', "0b" }, { 'S', "01" },
        { 'C', "06" }, { 'S', "04.." },
        { 0, NULL } };
    struct server *server;
    comm_store *s = begin(acts, &server);
    char **keys;
    size_t list_count;
    int64_t count = -1;
    CHECK_OK(comm_store_set(s, "k", "v", 1));
    CHECK_OK(comm_store_delete(s, "k", NULL));
    CHECK_OK(comm_store_append(s, "ap", "x", 1));
    set_two(s);
    get_two(s, "x", "yz");
    CHECK_STATUS(try_get(s, 30), COMM_ERR_TIMEOUT);
    CHECK_STATUS(comm_store_list_keys(s, &keys, &list_count), COMM_ERR_UNSUPPORTED);
    CHECK_OK(comm_store_num_keys(s, &count));
    CHECK(count == 4);
    end(s, server);
}

static void pytorch_1_13(void)
{
    static const struct act acts[] = {
        { 'A', "" }, { 'C', GREETING }, { 'X', "" },
        { 'A', "" }, { 'C', GREETING_OF_OLD }, { 'X', "" },
        { 'A', "" }, { 'C', GREETING_2_1 }, { 'X', "" },
        { 'A', "" }, { 'C', GREETING_1_13 }, { 'S', "01" },
        { 'C', "00 02.. '/k' 01.. 'v'" },
        { 'C', "08 02.. '/k'" }, { 'S', "01.." },
        { 'C', "00 02.. '/a' 01.. 'x' 00 02.. '/b' 02.. 'yz'" },
        { 'C', "05 " TWO_KEYS }, { 'S', "00" }, { 'C', "02 02.. '/a' 02 02.. '/b'" }, { 'S', "01.. 'x' 02.. 'yz'" },
        { 'C', "05 01.. 02.. '/k'" }, { 'E', "" }, /* it cannot be told that the wait is over */
        { 'A', "" }, { 'C', GREETING_1_13 }, { 'S', "01" },
        { 'C', "04 01.. 02.. '/k'" }, { 'S', "01" }, /* is it the key, or the server? */
        { 'C', "06" }, { 'S', "04.." },
        /* A barrier of other calls. */
        { 'C', "03 10.. '/bar/num_members' 01.." }, { 'S', "02.." },
        { 'C', "00 10.. '/bar/last_member' 01.. '1'" },
        { 0, NULL } };
    struct server *server;
    comm_store *s = begin(acts, &server);
    int64_t count = -1;
    CHECK_OK(comm_store_set(s, "k", "v", 1));
    CHECK_OK(comm_store_delete(s, "k", NULL));
    set_two(s);
    get_two(s, "x", "yz");
    CHECK_STATUS(try_get(s, 30), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("'k'");
    CHECK_OK(comm_store_num_keys(s, &count));
    CHECK(count == 4);
    CHECK_OK(comm_store_barrier(s, "bar", 2, 0));
    end(s, server);
}

/* ---- Servers that are broken or mean harm ---- */

/* One call to a server that says `reply` and closes the connection. */
static void misled(const char *reply, comm_status want, comm_status (*call)(comm_store *s))
{
    const struct act acts[] = { { 'A', "" }, { 'H', "00" }, { 'L', "" }, { 'S', reply }, { 'X', "" }, { 0, NULL } };
    struct server *server;
    comm_store *s = begin(acts, &server);
    CHECK_STATUS(call(s), want);
    pthread_join(server->thread, NULL);
    if (want == COMM_ERR_PEER_LOST) /* at once, although the store's time limit is long */
        CHECK_STATUS(call(s), COMM_ERR_PEER_LOST);
    comm_store_close(s);
    free(server);
}

static comm_status call_get(comm_store *s)
{
    return try_get(s, 0);
}

static comm_status call_add(comm_store *s)
{
    int64_t value;
    return comm_store_add(s, "k", 1, &value);
}

static comm_status call_list(comm_store *s)
{
    char **keys;
    size_t count;
    return comm_store_list_keys(s, &keys, &count);
}

static comm_status call_multi_get(comm_store *s)
{
    const char *const keys[] = { "a", "b" };
    void *data[2];
    size_t bytes[2];
    return comm_store_multi_get(s, keys, 2, 0, data, bytes);
}

static comm_status call_barrier(comm_store *s)
{
    return comm_store_barrier(s, "b", 2, 0);
}

static void broken_servers(void)
{
    misled("", COMM_ERR_PEER_LOST, call_get);
    misled("00 05.. 'ab'", COMM_ERR_PEER_LOST, call_get);
    misled("07", COMM_ERR_PROTOCOL, call_get);
    misled("00 ffffffffffffffff..", COMM_ERR_PROTOCOL, call_get);
    misled("00 4000001..", COMM_ERR_PROTOCOL, call_get);
    misled("01 02 03", COMM_ERR_PEER_LOST, call_add);
    misled("7fffffffffffffff.. 02.. '/a'", COMM_ERR_PEER_LOST, call_list);
    misled("01.. ffffffffffffffff..", COMM_ERR_PROTOCOL, call_list);
    misled("00 01.. 'x' ffffffffffffffff..", COMM_ERR_PROTOCOL, call_multi_get);
    misled("00 01.. 'x' 05.. 'y'", COMM_ERR_PEER_LOST, call_multi_get);
    misled("01", COMM_ERR_PROTOCOL, call_barrier);
    misled("", COMM_ERR_PEER_LOST, call_barrier);
}

static void a_server_that_is_silent(void)
{
    static const struct act acts[] = {
        { 'A', "" }, { 'H', "01" }, { 'C', "04 02.. '/k' 01.." }, { 'E', "" }, { 0, NULL }
    };
    struct server *server = server_start(acts);
    comm_store *s = store_open(server, 2000);
    CHECK_OK(comm_store_set_timeout(s, 50));
    CHECK_STATUS(call_add(s), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("has not answered");
    end(s, server);
}

/* There is an answer, but not from a store. */
static void no_store_at_all(void)
{
    struct server *server;
    static const struct act acts[] = {
        { 'A', "" }, { 'C', GREETING }, { 'S', "'HTTP/1.1' 20 '400' 0d 0a" }, { 'E', "" }, { 0, NULL }
    };
    comm_store *store;
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    char url[64];
    server = server_start(acts);
    options.timeout_ms = 300;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", server->port);
    CHECK_STATUS(comm_store_open(url, &options, &store), COMM_ERR_TIMEOUT);
    CHECK_ERROR_SAYS("no server answered");
    pthread_join(server->thread, NULL);
    close(server->listener);
    free(server);
}

/* It serves itself, so what is missing is the other client, whatever it was doing when the limit passed. */
static void a_client_that_does_not_come(void)
{
    comm_store *store;
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    options.serve = 1;
    options.world_size = 2;
    for (int64_t told = 0, limit_ms = 100; told < 10;) {
        options.timeout_ms = limit_ms + told;
        CHECK_STATUS(comm_store_open("tcp://127.0.0.1:0", &options, &store), COMM_ERR_TIMEOUT);
        if (strstr(comm_last_error(), "no server answered")) { /* not even connected: the machine is busy */
            limit_ms *= 2;
            CHECK(limit_ms < 20000);
            continue;
        }
        CHECK_ERROR_SAYS("1 of 2 clients have joined");
        told++;
    }
}

int main(void)
{
    static void (*const tests[])(void) = {
        pytorch_of_today, timeouts_on_pytorch, what_pytorch_may_have, what_pytorch_may_lack, ours, a_value_that_is_none,
        pytorch_before_2_5, pytorch_2_1, pytorch_1_13, broken_servers, a_server_that_is_silent, no_store_at_all,
        a_client_that_does_not_come,
    };
    alarm(100);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        printf("test %zu\n", i);
        fflush(stdout);
        tests[i]();
    }
    return 0;
}
