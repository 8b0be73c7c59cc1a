/* The bytes between two ranks: the handshake and the frame header. No I/O here, so that it can be fuzzed.
 * docs/wire.md says the same for people. All numbers are little-endian. */
#ifndef COMM_TCP_WIRE_H
#define COMM_TCP_WIRE_H

#include <stddef.h>
#include <stdint.h>

#define WIRE_VERSION 1u

enum {
    WIRE_HELLO_BYTES = 64,     /* connector -> acceptor: who am I, whom do I want, nonce */
    WIRE_CHALLENGE_BYTES = 72, /* acceptor -> connector: verdict, nonce, proof of the secret */
    WIRE_PROOF_BYTES = 32,     /* connector -> acceptor: proof of the secret; frames may follow at once */
    WIRE_NONCE_BYTES = 32,
    WIRE_HEADER_BYTES = 64,
    WIRE_EAGER_MOST = 1 << 20, /* no honest peer sends a longer EAGER payload */
    WIRE_TEXT_MOST = 1024,     /* payload of FAIL and ANSWER */
};

struct wire_hello {
    uint32_t version;
    uint64_t world;   /* the world group's id */
    int32_t from, to; /* world ranks */
    uint8_t nonce[WIRE_NONCE_BYTES];
};

enum wire_verdict {
    WIRE_WELCOME = 0,
    WIRE_DUPLICATE = 1, /* the acceptor is connecting to you itself; wait for it */
    WIRE_STRANGER = 2,  /* wrong world, or not the rank that you want */
    WIRE_OTHER_VERSION = 3,
};

struct wire_challenge {
    uint32_t verdict;
    uint32_t version;
    uint8_t nonce[WIRE_NONCE_BYTES];
    uint8_t proof[WIRE_PROOF_BYTES];
};

void wire_put_hello(const struct wire_hello *hello, uint8_t out[WIRE_HELLO_BYTES]);
/* 0, or -1 if these bytes are no hello at all. A hello of another version is decoded as far as `version`. */
int wire_get_hello(const uint8_t in[WIRE_HELLO_BYTES], struct wire_hello *ret_hello);
void wire_put_challenge(const struct wire_challenge *challenge, uint8_t out[WIRE_CHALLENGE_BYTES]);
int wire_get_challenge(const uint8_t in[WIRE_CHALLENGE_BYTES], struct wire_challenge *ret_challenge);

/* HMAC-SHA256 of the handshake under the job's secret; side is 'A' or 'C'. */
void wire_prove(const char *secret, char side, const uint8_t hello[WIRE_HELLO_BYTES],
                const uint8_t nonce[WIRE_NONCE_BYTES], uint8_t ret_proof[WIRE_PROOF_BYTES]);
int wire_same(const uint8_t *a, const uint8_t *b, size_t bytes); /* constant time */
void wire_random(uint8_t *out, size_t bytes);

enum wire_type {
    WIRE_EAGER = 1, /* a message; the payload follows. Paid for with credit */
    WIRE_RTS,       /* I have a message of `bytes` for you, tell me when you can take it */
    WIRE_CTS,       /* send it */
    WIRE_DATA,      /* a message that CTS asked for */
    WIRE_CREDIT,    /* only gives back credit (every frame can) */
    WIRE_FAIL,      /* the group has ended: status in tag, text in the payload */
    WIRE_QUERY,     /* what are you doing in this group? */
    WIRE_ANSWER,    /* to the QUERY with that seq: round has WIRE_ANSWER_ bits, kind ... slice (the root) are those of collective #seq, tag
                     * is the rank that it waits for, or -1; the payload says in words what the rank does */
    WIRE_BYE,       /* I close my world; nothing follows */
    WIRE_TYPE_END,
};

enum {
    WIRE_ANSWER_ENTERED = 1, /* collective #seq, or a later one, has been called */
    WIRE_ANSWER_IN_IT = 2,   /* it is under way */
    WIRE_ANSWER_BEHIND = 4,  /* an earlier one is under way */
    WIRE_ANSWER_KNOWN = 8,   /* kind, dtype, redop, slice, count and signature are those of #seq */
    WIRE_ANSWER_CLOSED = 16, /* the group has been closed there */
    WIRE_ANSWER_TEXT_MOST = 200,
};

/* One header before each frame. (group, seq, signature) are in every message of an op, so any two ranks that meet in
 * different ops notice; kind, dtype, redop, root and count are there to spell it out. */
struct wire_header {
    uint8_t type;
    uint8_t kind, dtype, redop;
    uint32_t credit;    /* bytes of eager window given back */
    uint64_t group;
    uint64_t seq;       /* collectives: the group's count; point-to-point: the sender's count */
    uint64_t signature; /* collectives */
    uint32_t slice;
    uint16_t round;
    int32_t tag;        /* point-to-point: the tag; collectives: the root */
    uint64_t count;     /* elements */
    uint64_t bytes;     /* of the payload that follows (EAGER, DATA, FAIL, ANSWER) or is promised (RTS) */
};

void wire_put_header(const struct wire_header *h, uint8_t out[WIRE_HEADER_BYTES]);
/* NULL if the header makes sense, else what is wrong with it. */
const char *wire_get_header(const uint8_t in[WIRE_HEADER_BYTES], struct wire_header *ret_header);

#endif
