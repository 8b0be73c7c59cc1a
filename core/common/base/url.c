/* The rendezvous URL parser. Every refusal quotes the part that was refused: a URL is often put together by scripts. */
#include "base/url.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

comm_status comm__url_check_scheme(const char *scheme, size_t bytes)
{
    int good = bytes > 0 && bytes < URL_SCHEME_BYTES && isalpha((unsigned char)scheme[0]);
    for (size_t i = 0; good && i < bytes; i++)
        good = isalnum((unsigned char)scheme[i]) || strchr("+-.", scheme[i]);
    if (!good)
        return comm__fail(
            COMM_ERR_INVALID,
            "'%.*s' is no URL scheme: it takes a letter, then letters, digits, '+', '-' or '.', at most %d",
            bytes > 64 ? 64 : (int)bytes, scheme, URL_SCHEME_BYTES - 1);
    return COMM_OK;
}

/* Digits only, so that "+1", " 1" and "1x" are refused. */
static int parse_digits(const char *text, size_t bytes, int32_t most, int32_t *ret_value)
{
    int64_t value = 0;
    if (bytes == 0 || bytes > 10)
        return 0;
    for (size_t i = 0; i < bytes; i++) {
        if (!isdigit((unsigned char)text[i]))
            return 0;
        value = value * 10 + (text[i] - '0');
    }
    if (value > most)
        return 0;
    *ret_value = (int32_t)value;
    return 1;
}

comm_status comm__url_port(const char *from, const char *text, int32_t *ret_port)
{
    if (!parse_digits(text, strlen(text), 65535, ret_port))
        return comm__fail(COMM_ERR_INVALID, "%s: '%s' is not a port, a number from 0 to 65535", from, text);
    return COMM_OK;
}

static comm_status parse_parameter(const char *text, const char *at, size_t bytes, struct comm__url *url)
{
    size_t name = 0;
    while (name < bytes && at[name] != '=')
        name++;
    const char *value = at + name + 1;
    size_t value_bytes = name < bytes ? bytes - name - 1 : 0;
    int32_t *number = NULL;
    if (name == 4 && memcmp(at, "rank", 4) == 0)
        number = &url->rank;
    else if (name == 10 && memcmp(at, "world_size", 10) == 0)
        number = &url->world_size;
    else if (name == 9 && memcmp(at, "use_libuv", 9) == 0)
        return COMM_OK;
    if (!number)
        return comm__fail(COMM_ERR_INVALID, "URL '%s': unknown parameter '%.*s'; there are rank and world_size", text,
                          (int)bytes, at);
    if (*number >= 0)
        return comm__fail(COMM_ERR_INVALID, "URL '%s': '%.*s' is given twice", text, (int)name, at);
    if (name == bytes || !parse_digits(value, value_bytes, INT32_MAX, number) ||
        (number == &url->world_size && *number == 0))
        return comm__fail(COMM_ERR_INVALID, "URL '%s': '%.*s' should be %.*s=NUMBER, from %d up", text, (int)bytes, at,
                          (int)name, at, number == &url->world_size);
    return COMM_OK;
}

comm_status comm__url_parse(const char *text, struct comm__url *ret_url)
{
    struct comm__url *url = ret_url;
    if (strlen(text) >= URL_BYTES)
        return comm__fail(COMM_ERR_INVALID, "URL of %zu bytes: at most %d are taken", strlen(text), URL_BYTES - 1);
    const char *rest = strstr(text, "://");
    if (!rest)
        return comm__fail(COMM_ERR_INVALID, "'%s' is not a URL; write env://, tcp://host:port or file:///path", text);
    comm_status status = comm__url_check_scheme(text, (size_t)(rest - text));
    if (status != COMM_OK)
        return comm__fail_while(status, "URL '%s'", text);
    for (size_t i = 0; i <= (size_t)(rest - text); i++)
        url->scheme[i] = (char)(text + i == rest ? '\0' : tolower((unsigned char)text[i]));
    const char *fragment = strchr(text, '#');
    if (fragment)
        return comm__fail(COMM_ERR_INVALID, "URL '%s': it ends with a fragment, '%s', which is not allowed here", text,
                          fragment);

    size_t base = strcspn(text, "?");
    snprintf(url->base, sizeof url->base, "%s%.*s", url->scheme, (int)(base - (size_t)(rest - text)), rest);
    url->rank = url->world_size = -1;
    const char *at = text + base;
    while (*at) {
        at++; /* '?' first, then '&' */
        size_t bytes = strcspn(at, "&");
        status = parse_parameter(text, at, bytes, url);
        if (status != COMM_OK)
            return status;
        at += bytes;
    }
    return COMM_OK;
}

static int hex_digit(char c)
{
    const char digits[] = "0123456789abcdef";
    const char *found = c ? strchr(digits, tolower((unsigned char)c)) : NULL;
    return found ? (int)(found - digits) : -1;
}

/* "%25" in the scope of an IPv6 address, mostly. */
static comm_status decode(const struct comm__url *url, const char *at, size_t bytes, char *host)
{
    size_t used = 0;
    for (size_t i = 0; i < bytes; i++) {
        int value = (unsigned char)at[i];
        if (at[i] == '%') {
            int whole = bytes - i >= 3;
            int high = whole ? hex_digit(at[i + 1]) : -1;
            int low = whole ? hex_digit(at[i + 2]) : -1;
            value = high * 16 + low;
            if (high < 0 || low < 0 || value == 0)
                return comm__fail(COMM_ERR_INVALID, "URL '%s': '%.*s' is no percent-encoded byte", url->base,
                                  (int)(bytes - i < 3 ? bytes - i : 3), at + i);
            i += 2;
        }
        if (value <= ' ' || value == 0x7f || strchr("/@\\", value))
            return comm__fail(COMM_ERR_INVALID, "URL '%s': a host name cannot contain the byte 0x%02x", url->base,
                              (unsigned)value);
        if (used + 1 >= URL_HOST_BYTES)
            return comm__fail(COMM_ERR_INVALID, "URL '%s': a host name has at most %d bytes", url->base,
                              URL_HOST_BYTES - 1);
        host[used++] = (char)value;
    }
    host[used] = '\0';
    return COMM_OK;
}

comm_status comm__url_host_port(const struct comm__url *url, char host[URL_HOST_BYTES], int32_t *ret_port)
{
    const char *at = strstr(url->base, "://") + 3, *end;
    if (*at == '[') {
        end = strchr(++at, ']');
        if (!end)
            return comm__fail(COMM_ERR_INVALID, "URL '%s': the ']' of the IPv6 address is missing", url->base);
    } else {
        end = at + strcspn(at, ":/");
        if (*end == ':' && strchr(end + 1, ':'))
            return comm__fail(COMM_ERR_INVALID,
                              "URL '%s': an IPv6 address must stand in brackets, as in tcp://[::1]:29500", url->base);
    }
    if (end == at)
        return comm__fail(COMM_ERR_INVALID, "URL '%s': the host is missing; write tcp://host:port", url->base);
    comm_status status = decode(url, at, (size_t)(end - at), host);
    if (status != COMM_OK)
        return status;
    const char *port = end + (*end == ']');
    if (*port != ':')
        return comm__fail(COMM_ERR_INVALID, "URL '%s': the port is missing after '%s'; write tcp://host:port",
                          url->base, host);
    port++;
    size_t digits = strcspn(port, "/");
    if (port[digits] == '/' && port[digits + 1] != '\0')
        return comm__fail(COMM_ERR_INVALID, "URL '%s': a path, '%s', is not allowed here", url->base, port + digits);
    if (!parse_digits(port, digits, 65535, ret_port))
        return comm__fail(COMM_ERR_INVALID, "URL '%s': '%.*s' is not a port, a number from 0 to 65535", url->base,
                          (int)digits, port);
    return COMM_OK;
}
