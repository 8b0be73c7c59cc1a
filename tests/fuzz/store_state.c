/* The state of a store's server (SOURCES: store/tcp_state.c store/table.c store/wire.c core/common/base/error.c ...,
 * link with -lxxhash), with three clients. The input is pieces: one byte for the client and a length, then that many
 * bytes from the client; a length of 0 closes its connection. What tcp_server.c does between the sockets and the state
 * is done here in the same way. */
#include "fuzz.h"
#include "store/tcp_state.h"

enum { CLIENTS = 3, STEPS_MAX = 2000 };

struct client {
    struct state_client state; /* first */
    struct wire_parser parser;
    struct wire_buffer held;
    int waiting, gone;
    size_t owed; /* bytes of replies */
};

static struct client clients[CLIENTS];

static void leave(struct state *state, struct client *c)
{
    if (!c->gone)
        state_leave(state, &c->state);
    c->gone = 1;
    wire_buffer_finish(&c->held);
}

static void forget(struct wire_buffer *b, size_t bytes)
{
    b->bytes -= bytes;
    memmove(b->data, b->data + bytes, b->bytes);
}

static void run(struct state *state, struct client *c)
{
    struct wire_buffer reply = { 0 };
    for (int steps = 0; !c->gone && !c->waiting && c->held.bytes > 0 && steps < STEPS_MAX; steps++) {
        struct wire_request request;
        enum wire_verdict verdict = wire_parse(&c->parser, c->held.data, c->held.bytes, &request);
        if (verdict == WIRE_MORE)
            break;
        comm_status status = COMM_ERR_PROTOCOL;
        if (verdict == WIRE_COMPLETE) {
            status = state_execute(state, &c->state, &request, &reply);
            FUZZ_CHECK(reply.bytes < 1 << 24);
        }
        c->owed += reply.bytes;
        reply.bytes = 0;
        if (status < COMM_OK) {
            leave(state, c);
            break;
        }
        c->waiting = status == COMM_IN_PROGRESS;
        FUZZ_CHECK(c->waiting == (c->state.missing > 0));
        if (c->state.values_sent == 0)
            forget(&c->held, request.bytes);
    }
    wire_buffer_finish(&reply);
}

static void run_ready(struct state *state)
{
    for (struct state_client *h; (h = state_take_ready(state));) {
        struct client *c = (struct client *)h;
        FUZZ_CHECK(!c->gone && c->waiting && c->state.missing == 0);
        c->waiting = 0;
        run(state, c);
    }
}

static void feed(struct state *state, struct client *c, const uint8_t *data, size_t bytes)
{
    if (c->gone)
        return;
    if (bytes == 0) {
        leave(state, c);
    } else if (c->waiting && data[0] == WIRE_CANCEL_WAIT) {
        state_cancel(state, &c->state);
        c->waiting = 0;
        wire_parser_rewind(&c->parser);
        run(state, c);
    } else {
        wire_put_bytes(&c->held, data, bytes);
        run(state, c);
    }
    run_ready(state);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct state *state;
    FUZZ_CHECK(state_create(&state) == COMM_OK);
    memset(clients, 0, sizeof clients);
    for (size_t at = 0; at < bytes;) {
        struct client *c = &clients[data[at] >> 6];
        size_t length = data[at++] & 63;
        length = length < bytes - at ? length : bytes - at;
        if (c < clients + CLIENTS)
            feed(state, c, data + at, length);
        at += length;
    }
    for (int i = 0; i < CLIENTS; i++)
        leave(state, &clients[i]);
    FUZZ_CHECK(state_take_ready(state) == NULL);
    state_destroy(state);
    return 0;
}
