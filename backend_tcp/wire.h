/* The bytes between two ranks: the handshake, and a frame's header (frame.h) as bytes. No I/O here, so that it can be
 * fuzzed. docs/wire.md says the same for people. All numbers are little-endian. */
#ifndef COMM_TCP_WIRE_H
#define COMM_TCP_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "frame.h"

#define WIRE_VERSION 1u

enum {
    WIRE_HELLO_BYTES = 64,     /* connector -> acceptor: sender's rank, rank it wants, nonce */
    WIRE_CHALLENGE_BYTES = 72, /* acceptor -> connector: verdict, nonce, proof of the secret */
    WIRE_PROOF_BYTES = 32,     /* connector -> acceptor: proof of the secret; frames may follow at once */
    WIRE_NONCE_BYTES = 32,
    WIRE_HEADER_BYTES = 64,
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
    WIRE_OTHER_WORLD = 2, /* wrong world, or not the rank that you want */
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

void wire_put_header(const struct frame *h, uint8_t out[WIRE_HEADER_BYTES]);
/* NULL if the header makes sense, else what is wrong with it. */
const char *wire_get_header(const uint8_t in[WIRE_HEADER_BYTES], struct frame *ret_header);

#endif
