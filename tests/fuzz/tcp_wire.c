/* What ranks say to each other (SOURCES: backend_tcp/wire.c -lsodium). The first byte of the input chooses: a hello, a
 * challenge or a frame header; the rest, if it is long enough, is decoded where the memory behind it cannot be read.
 * What is accepted is within its limits, and is what the encoder makes of it again. */
#include "fuzz.h"

#include "backend_tcp/wire.h"

static void try_hello(const uint8_t *in)
{
    struct wire_hello hello;
    uint8_t again[WIRE_HELLO_BYTES];
    if (wire_get_hello(in, &hello) != 0)
        return;
    wire_put_hello(&hello, again);
    memcpy(again + 12, in + 12, 4); /* reserved, not read */
    FUZZ_CHECK(memcmp(again, in, sizeof again) == 0);
}

static void try_challenge(const uint8_t *in)
{
    struct wire_challenge challenge;
    uint8_t again[WIRE_CHALLENGE_BYTES];
    if (wire_get_challenge(in, &challenge) != 0)
        return;
    FUZZ_CHECK(challenge.verdict <= WIRE_OTHER_VERSION);
    wire_put_challenge(&challenge, again);
    FUZZ_CHECK(memcmp(again, in, sizeof again) == 0);
}

static void try_header(const uint8_t *in)
{
    struct frame h;
    uint8_t again[WIRE_HEADER_BYTES];
    const char *wrong = wire_get_header(in, &h);
    if (wrong) {
        FUZZ_CHECK(*wrong != '\0');
        return;
    }
    FUZZ_CHECK(h.type > 0 && h.type < FRAME_TYPE_END);
    FUZZ_CHECK(h.type != FRAME_EAGER || h.bytes <= FRAME_EAGER_MAX);
    FUZZ_CHECK((h.type != FRAME_FAIL && h.type != FRAME_ANSWER) || h.bytes <= FRAME_TEXT_MAX);
    wire_put_header(&h, again);
    FUZZ_CHECK(memcmp(again, in, sizeof again) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const struct {
        void (*try_it)(const uint8_t *in);
        size_t bytes;
    } kinds[] = {
        { try_hello, WIRE_HELLO_BYTES }, { try_challenge, WIRE_CHALLENGE_BYTES }, { try_header, WIRE_HEADER_BYTES }
    };
    if (bytes == 0)
        return 0;
    size_t kind = data[0] % 3;
    if (bytes - 1 >= kinds[kind].bytes)
        kinds[kind].try_it(fuzz_before_the_cliff(data + 1, kinds[kind].bytes));
    return 0;
}
