/* The bytes between two ranks, as docs/wire.md says them: every field at its place, whatever the host's byte order, and
 * every refusal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sodium.h>
#include <string.h>

#include "backend_tcp/wire.h"

static void a_hello_is_64_bytes(void **state)
{
    (void)state;
    struct wire_hello hello = { WIRE_VERSION, 0x1122334455667788u, 2, 0x01020304, { 0 } }, got;
    static const uint8_t head[] = { 'l', 'i', 'b', 'c', 'o', 'm', 'm', '\n', 1, 0, 0, 0, 0, 0, 0, 0,
                                    0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 2, 0, 0, 0, 4, 3, 2, 1 };
    uint8_t bytes[WIRE_HELLO_BYTES];
    for (int i = 0; i < WIRE_NONCE_BYTES; i++)
        hello.nonce[i] = (uint8_t)(200 + i);
    wire_put_hello(&hello, bytes);
    assert_int_equal(sizeof head, 32);
    assert_memory_equal(bytes, head, sizeof head);
    assert_memory_equal(bytes + 32, hello.nonce, sizeof hello.nonce);
    assert_int_equal(wire_get_hello(bytes, &got), 0);
    assert_true(got.version == 1 && got.world == hello.world && got.from == 2 && got.to == 0x01020304);
    assert_memory_equal(got.nonce, hello.nonce, sizeof hello.nonce);
    for (int i = 0; i < 8; i++) {
        bytes[i] ^= 0x20;
        assert_int_equal(wire_get_hello(bytes, &got), -1);
        bytes[i] ^= 0x20;
    }
}

static void a_challenge_is_72_bytes(void **state)
{
    (void)state;
    struct wire_challenge challenge = { WIRE_DUPLICATE, WIRE_VERSION, { 7 }, { 8 } }, got;
    uint8_t bytes[WIRE_CHALLENGE_BYTES];
    wire_put_challenge(&challenge, bytes);
    assert_true(bytes[0] == 1 && bytes[4] == 1 && bytes[8] == 7 && bytes[40] == 8);
    assert_int_equal(wire_get_challenge(bytes, &got), 0);
    assert_int_equal(got.verdict, WIRE_DUPLICATE);
    bytes[0] = WIRE_OTHER_VERSION + 1;
    assert_int_equal(wire_get_challenge(bytes, &got), -1);
    bytes[0] = 0;
    bytes[3] = 0x80;
    assert_int_equal(wire_get_challenge(bytes, &got), -1);
}

static struct frame sample(void)
{
    return (struct frame){ .type = FRAME_RTS,
                           .kind = 2,
                           .dtype = 12,
                           .redop = 3,
                           .credit = 0x0a0b0c0d,
                           .group = 0x1112131415161718u,
                           .seq = 0x2122232425262728u,
                           .signature = 0x3132333435363738u,
                           .slice = 0x41424344,
                           .round = 0x5152,
                           .tag = -2,
                           .count = 0x6162636465666768u,
                           .bytes = 0x7172737475767778u };
}

static void a_header_is_64_bytes(void **state)
{
    (void)state;
    struct frame h = sample(), got;
    static const uint8_t expected[] = {
        'L', 'C', 'M', '1', FRAME_RTS, 2, 12, 3,                   /* magic, type, kind, dtype, redop */
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,           /* group */
        0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,           /* seq */
        0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31,           /* signature */
        0x44, 0x43, 0x42, 0x41, 0x52, 0x51, 0, 0,                 /* slice, round */
        0xfe, 0xff, 0xff, 0xff, 0x0d, 0x0c, 0x0b, 0x0a,           /* tag, credit */
        0x68, 0x67, 0x66, 0x65, 0x64, 0x63, 0x62, 0x61,           /* count */
        0x78, 0x77, 0x76, 0x75, 0x74, 0x73, 0x72, 0x71,           /* bytes */
    };
    uint8_t bytes[WIRE_HEADER_BYTES];
    wire_put_header(&h, bytes);
    assert_int_equal(sizeof expected, WIRE_HEADER_BYTES);
    assert_memory_equal(bytes, expected, sizeof expected);
    assert_null(wire_get_header(bytes, &got));
    assert_true(got.type == h.type && got.kind == h.kind && got.dtype == h.dtype && got.redop == h.redop);
    assert_true(got.credit == h.credit && got.group == h.group && got.seq == h.seq && got.signature == h.signature);
    assert_true(got.slice == h.slice && got.round == h.round && got.tag == h.tag && got.count == h.count);
    assert_true(got.bytes == h.bytes);
}

static const char *refusal(uint8_t type, uint64_t payload)
{
    struct frame h = sample(), got;
    uint8_t bytes[WIRE_HEADER_BYTES];
    h.type = type;
    h.bytes = payload;
    wire_put_header(&h, bytes);
    return wire_get_header(bytes, &got);
}

static void what_makes_no_sense_is_refused(void **state)
{
    (void)state;
    struct frame h = sample(), got;
    uint8_t bytes[WIRE_HEADER_BYTES];
    assert_non_null(refusal(0, 0));
    assert_non_null(refusal(FRAME_TYPE_END, 0));
    assert_non_null(refusal(255, 0));
    assert_null(refusal(FRAME_EAGER, FRAME_EAGER_MAX));
    assert_non_null(refusal(FRAME_EAGER, FRAME_EAGER_MAX + 1));
    assert_null(refusal(FRAME_DATA, UINT64_MAX)); /* as long as its receive is; the rest is dropped */
    assert_null(refusal(FRAME_FAIL, FRAME_TEXT_MAX));
    assert_non_null(refusal(FRAME_FAIL, FRAME_TEXT_MAX + 1));
    assert_null(refusal(FRAME_ANSWER, FRAME_TEXT_MAX));
    assert_non_null(refusal(FRAME_ANSWER, UINT64_MAX));
    wire_put_header(&h, bytes);
    for (int i = 0; i < 4; i++) {
        bytes[i] ^= 1;
        assert_non_null(wire_get_header(bytes, &got));
        bytes[i] ^= 1;
    }
    bytes[38] = 1; /* the round is 16 bits in a field of 32 */
    assert_non_null(wire_get_header(bytes, &got));
}

/* HMAC-SHA256 of side, hello and the acceptor's nonce. */
static void a_proof_depends_on_everything(void **state)
{
    (void)state;
    uint8_t hello[WIRE_HELLO_BYTES] = { 1 }, nonce[WIRE_NONCE_BYTES] = { 2 },
            message[1 + WIRE_HELLO_BYTES + WIRE_NONCE_BYTES];
    uint8_t proof[WIRE_PROOF_BYTES], other[WIRE_PROOF_BYTES], expected[crypto_auth_hmacsha256_BYTES];
    crypto_auth_hmacsha256_state s;
    message[0] = 'C';
    memcpy(message + 1, hello, sizeof hello);
    memcpy(message + 1 + sizeof hello, nonce, sizeof nonce);
    crypto_auth_hmacsha256_init(&s, (const unsigned char *)"secret", 6);
    crypto_auth_hmacsha256_update(&s, message, sizeof message);
    crypto_auth_hmacsha256_final(&s, expected);
    wire_prove("secret", 'C', hello, nonce, proof);
    assert_memory_equal(proof, expected, sizeof proof);
    assert_true(wire_same(proof, expected, sizeof proof));
    wire_prove("secret", 'A', hello, nonce, other);
    assert_false(wire_same(proof, other, sizeof proof));
    wire_prove("secrets", 'C', hello, nonce, other);
    assert_false(wire_same(proof, other, sizeof proof));
    hello[63] ^= 1;
    wire_prove("secret", 'C', hello, nonce, other);
    assert_false(wire_same(proof, other, sizeof proof));
    hello[63] ^= 1;
    nonce[31] ^= 1;
    wire_prove("secret", 'C', hello, nonce, other);
    assert_false(wire_same(proof, other, sizeof proof));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hello_is_64_bytes),           cmocka_unit_test(a_challenge_is_72_bytes),
        cmocka_unit_test(a_header_is_64_bytes),          cmocka_unit_test(what_makes_no_sense_is_refused),
        cmocka_unit_test(a_proof_depends_on_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
