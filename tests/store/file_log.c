/* store/file_log.c: the bytes of a file store's records, one by one. file_log [SEED] */
#include "store/file_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ranks.h"

static struct table_bytes text(const char *words)
{
    return (struct table_bytes){ words, strlen(words) };
}

/* Written down by hand; the checks come from another implementation of XXH64. */
static const struct {
    struct file_record record;
    uint8_t bytes[64];
    size_t count;
} known
    [] = {
        { { FILE_SET, { "k", 1 }, { "v", 1 } },
          { 'C', 'S', 'F', '1', 0xbf, 0xf0, 0x51, 0x42, 0x09, 0x7f, 0xdf, 0x36, 1,
            0,   0,   0,   1,   0,    0,    0,    1,    0,    0,    0,    'k',  'v' },
          26 },
        { { FILE_DELETE, { "key", 3 }, { NULL, 0 } },
          { 'C', 'S', 'F', '1', 0xaf, 0x8a, 0xf4, 0xd0, 0x9e, 0x76, 0xba, 0xa1, 2,  0,
            0,   0,   3,   0,   0,    0,    0,    0,    0,    0,    'k',  'e',  'y' },
          27 },
        { { FILE_OPEN, { NULL, 0 }, { "host:42", 7 } },
          { 'C', 'S', 'F', '1', 0xe4, 0xeb, 0xbc, 0x10, 0x06, 0xf2, 0x4e, 0x28, 6,   0,   0,  0,
            0,   0,   0,   0,   7,    0,    0,    0,    'h',  'o',  's',  't',  ':', '4', '2' },
          31 },
    };

static void known_records_have_known_bytes(void)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint8_t bytes[64];
        struct file_record back;
        size_t taken = 0;
        const char *why = NULL;
        CHECK(file_record_bytes(&known[i].record) == known[i].count);
        file_encode(&known[i].record, bytes);
        for (size_t k = 0; k < known[i].count; k++)
            if (bytes[k] != known[i].bytes[k])
                ranks_fail(__FILE__, __LINE__, "record %zu: byte %zu is 0x%02x, not 0x%02x", i, k, bytes[k],
                           known[i].bytes[k]);
        CHECK(file_decode(known[i].bytes, known[i].count, &back, &taken, &why) == FILE_RECORD);
        CHECK(taken == known[i].count && back.kind == known[i].record.kind);
        CHECK(back.key.bytes == known[i].record.key.bytes && back.value.bytes == known[i].record.value.bytes);
    }
}

static void every_beginning_is_torn(void)
{
    const struct file_record r = { FILE_APPEND, text("a key"), text("some value") };
    uint8_t bytes[64];
    struct file_record back;
    const char *why = NULL;
    size_t whole = file_record_bytes(&r), needed;
    file_encode(&r, bytes);
    for (size_t n = 1; n < whole; n++) {
        CHECK(file_decode(bytes, n, &back, &needed, &why) == FILE_TORN);
        CHECK(needed == (n < FILE_HEADER_BYTES ? FILE_HEADER_BYTES : whole));
    }
    CHECK(file_decode(bytes, sizeof bytes, &back, &needed, &why) == FILE_RECORD &&
          needed == whole); /* and what follows is left */
    CHECK(back.key.bytes == 5 && memcmp(back.key.data, "a key", 5) == 0 &&
          memcmp(back.value.data, "some value", 10) == 0);
}

static void every_changed_bit_is_found(void)
{
    const struct file_record r = { FILE_SET, text("a key"), text("some value") };
    uint8_t bytes[64];
    struct file_record back;
    size_t whole = file_record_bytes(&r), taken;
    const char *why = NULL;
    file_encode(&r, bytes);
    for (size_t bit = 0; bit < whole * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK(file_decode(bytes, whole, &back, &taken, &why) != FILE_RECORD); /* longer lengths look torn */
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    CHECK(file_decode(bytes, whole, &back, &taken, &why) == FILE_RECORD);
}

static void check_bad(uint32_t kind, size_t key_bytes, size_t value_bytes, const char *words)
{
    static char long_text[10000];
    const struct file_record r = { (enum file_kind)kind, { long_text, key_bytes }, { long_text, value_bytes } };
    uint8_t *bytes = malloc(file_record_bytes(&r));
    struct file_record back;
    size_t taken;
    const char *why = "";
    CHECK(bytes != NULL);
    file_encode(&r, bytes);
    CHECK(file_decode(bytes, file_record_bytes(&r), &back, &taken, &why) == FILE_BAD);
    if (!strstr(why, words))
        ranks_fail(__FILE__, __LINE__, "'%s' does not say '%s'", why, words);
    free(bytes);
}

/* The check is right, and yet no libcomm writes this. */
static void what_makes_no_sense_is_bad(void)
{
    check_bad(0, 1, 1, "unknown kind");
    check_bad(8, 1, 1, "unknown kind");
    check_bad(FILE_SET, 0, 1, "no key");
    check_bad(FILE_SET, 8192, 1, "too long");
    check_bad(FILE_OPEN, 1, 1, "a key where none belongs");
    check_bad(FILE_CLOSE, 1, 1, "a key where none belongs");
    check_bad(FILE_DELETE, 1, 1, "a value where none belongs");
    check_bad(FILE_POP, 1, 1, "a value where none belongs");
    uint8_t header[FILE_HEADER_BYTES] = "CSF1";
    struct file_record back;
    size_t taken;
    const char *why = "";
    header[12] = FILE_SET;
    header[16] = 1;
    header[23] = 0x7f; /* a value of 2 GiB: refused before a reader waits for it or makes room */
    CHECK(file_decode(header, sizeof header, &back, &taken, &why) == FILE_BAD && strstr(why, "too long"));
    CHECK(file_decode("\x09\0\0\0refcount/\x01\0\0\0"
                      "1",
                      18, &back, &taken, &why) == FILE_BAD &&
          strstr(why, "PyTorch"));
}

static void random_bytes_are_never_a_record(uint64_t seed)
{
    srandom((unsigned)seed);
    for (int round = 0; round < 20000; round++) {
        uint8_t bytes[200];
        struct file_record back;
        size_t taken, count = 1 + (size_t)random() % sizeof bytes;
        const char *why = NULL;
        for (size_t i = 0; i < count; i++)
            bytes[i] = (uint8_t)random();
        if (round % 2)
            memcpy(bytes, "CSF1", count < 4 ? count : 4);
        if (round % 4 == 3 && count > 24) { /* a likely header */
            memset(bytes + 12, 0, 12);
            bytes[12] = (uint8_t)(random() % 9);
            bytes[16] = (uint8_t)(random() % 100);
            bytes[20] = (uint8_t)(random() % 100);
        }
        enum file_verdict verdict = file_decode(bytes, count, &back, &taken, &why);
        CHECK(verdict != FILE_RECORD);
        CHECK(verdict == FILE_BAD ? why != NULL : taken > count);
    }
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)seed);
    known_records_have_known_bytes();
    every_beginning_is_torn();
    every_changed_bit_is_found();
    what_makes_no_sense_is_bad();
    random_bytes_are_never_a_record(seed);
    return 0;
}
