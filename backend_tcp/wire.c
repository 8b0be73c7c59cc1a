/* Encoding and decoding of handshake and frames; every byte from a peer passes through here first. */
#include "wire.h"

#include <sodium.h>
#include <string.h>

static const uint8_t hello_magic[8] = { 'l', 'i', 'b', 'c', 'o', 'm', 'm', '\n' };
static const uint32_t frame_magic = 0x314d434c; /* "LCM1" */

static void put32(uint8_t *out, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(v >> (8 * i));
}

static void put64(uint8_t *out, uint64_t v)
{
    put32(out, (uint32_t)v);
    put32(out + 4, (uint32_t)(v >> 32));
}

static uint32_t get32(const uint8_t *in)
{
    return (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

static uint64_t get64(const uint8_t *in)
{
    return get32(in) | (uint64_t)get32(in + 4) << 32;
}

void wire_put_hello(const struct wire_hello *hello, uint8_t out[WIRE_HELLO_BYTES])
{
    memcpy(out, hello_magic, 8);
    put32(out + 8, hello->version);
    put32(out + 12, 0);
    put64(out + 16, hello->world);
    put32(out + 24, (uint32_t)hello->from);
    put32(out + 28, (uint32_t)hello->to);
    memcpy(out + 32, hello->nonce, WIRE_NONCE_BYTES);
}

int wire_get_hello(const uint8_t in[WIRE_HELLO_BYTES], struct wire_hello *ret_hello)
{
    if (memcmp(in, hello_magic, 8) != 0)
        return -1;
    ret_hello->version = get32(in + 8);
    ret_hello->world = get64(in + 16);
    ret_hello->from = (int32_t)get32(in + 24);
    ret_hello->to = (int32_t)get32(in + 28);
    memcpy(ret_hello->nonce, in + 32, WIRE_NONCE_BYTES);
    return 0;
}

void wire_put_challenge(const struct wire_challenge *challenge, uint8_t out[WIRE_CHALLENGE_BYTES])
{
    put32(out, challenge->verdict);
    put32(out + 4, challenge->version);
    memcpy(out + 8, challenge->nonce, WIRE_NONCE_BYTES);
    memcpy(out + 8 + WIRE_NONCE_BYTES, challenge->proof, WIRE_PROOF_BYTES);
}

int wire_get_challenge(const uint8_t in[WIRE_CHALLENGE_BYTES], struct wire_challenge *ret_challenge)
{
    ret_challenge->verdict = get32(in);
    ret_challenge->version = get32(in + 4);
    memcpy(ret_challenge->nonce, in + 8, WIRE_NONCE_BYTES);
    memcpy(ret_challenge->proof, in + 8 + WIRE_NONCE_BYTES, WIRE_PROOF_BYTES);
    return ret_challenge->verdict > WIRE_OTHER_VERSION ? -1 : 0;
}

void wire_prove(const char *secret, char side, const uint8_t hello[WIRE_HELLO_BYTES],
                const uint8_t nonce[WIRE_NONCE_BYTES], uint8_t ret_proof[WIRE_PROOF_BYTES])
{
    crypto_auth_hmacsha256_state state;
    crypto_auth_hmacsha256_init(&state, (const unsigned char *)secret, strlen(secret));
    crypto_auth_hmacsha256_update(&state, (const unsigned char *)&side, 1);
    crypto_auth_hmacsha256_update(&state, hello, WIRE_HELLO_BYTES);
    crypto_auth_hmacsha256_update(&state, nonce, WIRE_NONCE_BYTES);
    crypto_auth_hmacsha256_final(&state, ret_proof);
}

int wire_same(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    return sodium_memcmp(a, b, bytes) == 0;
}

void wire_random(uint8_t *out, size_t bytes)
{
    randombytes_buf(out, bytes);
}

void wire_put_header(const struct frame *h, uint8_t out[WIRE_HEADER_BYTES])
{
    put32(out, frame_magic);
    out[4] = h->type;
    out[5] = h->kind;
    out[6] = h->dtype;
    out[7] = h->redop;
    put64(out + 8, h->group);
    put64(out + 16, h->seq);
    put64(out + 24, h->signature);
    put32(out + 32, h->slice);
    put32(out + 36, h->round);
    put32(out + 40, (uint32_t)h->tag);
    put32(out + 44, h->credit);
    put64(out + 48, h->count);
    put64(out + 56, h->bytes);
}

const char *wire_get_header(const uint8_t in[WIRE_HEADER_BYTES], struct frame *ret_header)
{
    struct frame *h = ret_header;
    if (get32(in) != frame_magic)
        return "bytes that are no frame";
    h->type = in[4];
    h->kind = in[5];
    h->dtype = in[6];
    h->redop = in[7];
    h->group = get64(in + 8);
    h->seq = get64(in + 16);
    h->signature = get64(in + 24);
    h->slice = get32(in + 32);
    h->round = (uint16_t)get32(in + 36);
    h->tag = (int32_t)get32(in + 40);
    h->credit = get32(in + 44);
    h->count = get64(in + 48);
    h->bytes = get64(in + 56);
    if (h->type == 0 || h->type >= FRAME_TYPE_END)
        return "a frame of unknown type";
    if (get32(in + 36) > UINT16_MAX)
        return "an impossible round number";
    if (h->type == FRAME_EAGER && h->bytes > FRAME_EAGER_MAX)
        return "an eager message beyond the limit";
    if ((h->type == FRAME_FAIL || h->type == FRAME_ANSWER) && h->bytes > FRAME_TEXT_MAX)
        return "a text beyond the limit";
    return NULL;
}
