/* The store server's mind (SOURCES: store/hub.c store/table.c store/wire.c core/common/base/error.c ..., link with
 * -lxxhash): three clients in one hub. The input is pieces: a client and a length in one byte, then so many bytes from
 * that client; a length of 0 is its hanging up. What a server does around the hub is done here as tcp_server.c does
 * it. */
#include "fuzz.h"
#include "store/hub.h"

enum { CLIENTS = 3, STEPS_MAX = 2000 };

struct client {
    struct hub_client hub; /* first */
    struct wire_parser parser;
    struct wire_buffer held;
    int waiting, gone;
    size_t owed; /* bytes of replies */
};

static struct client clients[CLIENTS];

static void leave(struct hub *hub, struct client *c)
{
    if (!c->gone)
        hub_leave(hub, &c->hub);
    c->gone = 1;
    wire_buffer_finish(&c->held);
}

static void forget(struct wire_buffer *b, size_t bytes)
{
    b->bytes -= bytes;
    memmove(b->data, b->data + bytes, b->bytes);
}

static void run(struct hub *hub, struct client *c)
{
    struct wire_buffer reply = { 0 };
    for (int steps = 0; !c->gone && !c->waiting && c->held.bytes > 0 && steps < STEPS_MAX; steps++) {
        struct wire_request request;
        enum wire_verdict verdict = wire_parse(&c->parser, c->held.data, c->held.bytes, &request);
        if (verdict == WIRE_MORE)
            break;
        comm_status status = COMM_ERR_PROTOCOL;
        if (verdict == WIRE_COMPLETE) {
            status = hub_execute(hub, &c->hub, &request, &reply);
            FUZZ_CHECK(reply.bytes < 1 << 24);
        }
        c->owed += reply.bytes;
        reply.bytes = 0;
        if (status < COMM_OK) {
            leave(hub, c);
            break;
        }
        c->waiting = status == COMM_IN_PROGRESS;
        FUZZ_CHECK(c->waiting == (c->hub.missing > 0));
        if (c->hub.values_sent == 0)
            forget(&c->held, request.bytes);
    }
    wire_buffer_finish(&reply);
}

static void run_ready(struct hub *hub)
{
    for (struct hub_client *h; (h = hub_take_ready(hub));) {
        struct client *c = (struct client *)h;
        FUZZ_CHECK(!c->gone && c->waiting && c->hub.missing == 0);
        c->waiting = 0;
        run(hub, c);
    }
}

static void feed(struct hub *hub, struct client *c, const uint8_t *data, size_t bytes)
{
    if (c->gone)
        return;
    if (bytes == 0) {
        leave(hub, c);
    } else if (c->waiting && data[0] == WIRE_CANCEL_WAIT) {
        hub_cancel(hub, &c->hub);
        c->waiting = 0;
        wire_parser_rewind(&c->parser);
        run(hub, c);
    } else {
        wire_put_bytes(&c->held, data, bytes);
        run(hub, c);
    }
    run_ready(hub);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct hub *hub;
    FUZZ_CHECK(hub_create(&hub) == COMM_OK);
    memset(clients, 0, sizeof clients);
    for (size_t at = 0; at < bytes;) {
        struct client *c = &clients[data[at] >> 6];
        size_t length = data[at++] & 63;
        length = length < bytes - at ? length : bytes - at;
        if (c < clients + CLIENTS)
            feed(hub, c, data + at, length);
        at += length;
    }
    for (int i = 0; i < CLIENTS; i++)
        leave(hub, &clients[i]);
    FUZZ_CHECK(hub_take_ready(hub) == NULL);
    hub_destroy(hub);
    return 0;
}
