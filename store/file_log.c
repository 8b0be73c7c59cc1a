/* The records of a file store's log; see file_log.h. */
#include "file_log.h"

#include <string.h>
#include <xxhash.h>

#include "base/limits.h"

static const char MAGIC[4] = { 'C', 'S', 'F', '1' };

static uint32_t get_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void put_u32(uint8_t *at, uint32_t number)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(number >> 8 * i);
}

/* Of a whole record. */
static uint64_t check_of(const uint8_t *record, size_t bytes)
{
    return XXH64(record + 12, bytes - 12, 0);
}

size_t file_record_bytes(const struct file_record *record)
{
    return FILE_HEADER_BYTES + record->key.bytes + record->value.bytes;
}

void file_encode(const struct file_record *record, void *to)
{
    uint8_t *at = to;
    memcpy(at, MAGIC, 4);
    put_u32(at + 12, (uint32_t)record->kind);
    put_u32(at + 16, (uint32_t)record->key.bytes);
    put_u32(at + 20, (uint32_t)record->value.bytes);
    if (record->key.bytes)
        memcpy(at + FILE_HEADER_BYTES, record->key.data, record->key.bytes);
    if (record->value.bytes)
        memcpy(at + FILE_HEADER_BYTES + record->key.bytes, record->value.data, record->value.bytes);
    uint64_t check = check_of(at, file_record_bytes(record));
    put_u32(at + 4, (uint32_t)check);
    put_u32(at + 8, (uint32_t)(check >> 32));
}

/* Whether a record of this kind can have a key and a value of these lengths. */
static const char *why_not(uint32_t kind, size_t key_bytes, size_t value_bytes)
{
    if (kind < FILE_SET || kind > FILE_CLOSE)
        return "a record of unknown kind";
    if (key_bytes > LIMIT_STORE_KEY_BYTES || value_bytes > LIMIT_STORE_VALUE_BYTES)
        return "a record that is too long";
    if ((key_bytes == 0) != (kind == FILE_OPEN || kind == FILE_CLOSE))
        return key_bytes ? "a key where none belongs" : "no key";
    if (value_bytes > 0 && (kind == FILE_DELETE || kind == FILE_POP))
        return "a value where none belongs";
    return NULL;
}

enum file_verdict file_decode(const void *data, size_t bytes, struct file_record *ret_record, size_t *ret_bytes,
                              const char **ret_why)
{
    const uint8_t *at = data;
    *ret_bytes = FILE_HEADER_BYTES;
    if (memcmp(at, MAGIC, bytes < 4 ? bytes : 4) != 0) {
        *ret_why = bytes >= 13 && memcmp(at + 4, "refcount/", 9) == 0 ? "it is a FileStore of PyTorch"
                                                                      : "no record begins there";
        return FILE_BAD;
    }
    if (bytes < FILE_HEADER_BYTES)
        return FILE_TORN;
    uint32_t kind = get_u32(at + 12);
    size_t key_bytes = get_u32(at + 16), value_bytes = get_u32(at + 20);
    *ret_why = why_not(kind, key_bytes, value_bytes);
    if (*ret_why)
        return FILE_BAD;
    *ret_bytes += key_bytes + value_bytes;
    if (bytes < *ret_bytes)
        return FILE_TORN;
    if (check_of(at, *ret_bytes) != ((uint64_t)get_u32(at + 8) << 32 | get_u32(at + 4))) {
        *ret_why = "the checksum is wrong";
        return FILE_BAD;
    }
    *ret_record = (struct file_record){ (enum file_kind)kind,
                                        { at + FILE_HEADER_BYTES, key_bytes },
                                        { at + FILE_HEADER_BYTES + key_bytes, value_bytes } };
    return FILE_RECORD;
}
