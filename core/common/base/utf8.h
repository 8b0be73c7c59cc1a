/* Texts that others wrote go to terminals, logs and JSON: they are made valid UTF-8 without control characters. No I/O,
 * no memory. */
#ifndef COMM_BASE_UTF8_H
#define COMM_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The character at `at`, of 1 to 4 bytes; 0: there is none (a wrong or overlong sequence, a surrogate, beyond
 * U+10FFFF), -1: the text ends within it. */
static inline int utf8_length(const unsigned char *at, size_t left, uint32_t *ret_character)
{
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    int length = at[0] < 0x80 ? 1 : at[0] >> 5 == 6 ? 2 : at[0] >> 4 == 14 ? 3 : at[0] >> 3 == 30 ? 4 : 0;
    uint32_t c = length == 1 ? at[0] : at[0] & (0x7fu >> length);
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= left)
            return -1;
        if (at[i] >> 6 != 2)
            return 0;
        c = c << 6 | (at[i] & 0x3fu);
    }
    if (length && (c < least[length] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)))
        return 0;
    *ret_character = c;
    return length;
}

/* Does it steer a terminal (C0, DEL, C1, line and paragraph separators) or turn the direction of what follows it? */
static inline int utf8_is_control(uint32_t c)
{
    return c < ' ' || (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

/* Put '?' in the place of each byte that is no UTF-8 and of each control character; a character that the end cuts off
 * is dropped. Returns the new length, which is not longer. */
static inline size_t utf8_clean(char *text, size_t bytes)
{
    size_t in = 0, out = 0;
    while (in < bytes) {
        uint32_t c = 0;
        int length = utf8_length((const unsigned char *)text + in, bytes - in, &c);
        if (length < 0)
            break;
        if (length == 0 || utf8_is_control(c)) {
            text[out++] = '?';
            in += length ? (size_t)length : 1;
            continue;
        }
        memmove(text + out, text + in, (size_t)length);
        in += (size_t)length;
        out += (size_t)length;
    }
    return out;
}

/* The same for a string. */
static inline void utf8_clean_string(char *text)
{
    text[utf8_clean(text, strlen(text))] = '\0';
}

/* How many of the first `bytes` bytes are whole characters, of a valid text that may go on: where to cut it. */
static inline size_t utf8_cut(const char *text, size_t bytes)
{
    while (bytes && ((unsigned char)text[bytes] & 0xc0) == 0x80)
        bytes--;
    return bytes;
}

/* Drop a character that the end of the text cuts off. */
static inline void utf8_trim(char *text)
{
    size_t bytes = strlen(text), at = bytes;
    uint32_t c;
    while (at && ((unsigned char)text[at - 1] & 0xc0) == 0x80)
        at--;
    if (at && utf8_length((unsigned char *)text + at - 1, bytes - at + 1, &c) < 0)
        text[at - 1] = '\0';
}

#endif
