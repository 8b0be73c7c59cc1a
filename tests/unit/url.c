/* The rendezvous URL parser: what it takes, and that each refusal quotes what it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <comm/comm.h>
#include <stdlib.h>
#include <string.h>

#include "base/url.h"

static struct comm__url parsed(const char *text)
{
    struct comm__url url;
    memset(&url, 0x5a, sizeof url);
    if (comm__url_parse(text, &url) != COMM_OK)
        fail_msg("%s: %s", text, comm_last_error());
    return url;
}

static void a_query_gives_rank_and_world_size(void **state)
{
    (void)state;
    struct comm__url url = parsed("TCP://h:1?rank=3&world_size=4");
    assert_string_equal(url.scheme, "tcp");
    assert_string_equal(url.base, "tcp://h:1");
    assert_int_equal(url.rank, 3);
    assert_int_equal(url.world_size, 4);
    url = parsed("tcp://h:1?world_size=4&use_libuv=0");
    assert_int_equal(url.rank, -1);
    assert_int_equal(url.world_size, 4);
    url = parsed("file:///a/b%20c?rank=0");
    assert_string_equal(url.base, "file:///a/b%20c");
    url = parsed("env://");
    assert_string_equal(url.base, "env://");
}

static void malformed_urls_are_refused_with_the_part(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        { "tcp:h:1", "'tcp:h:1' is not a URL" },
        { "", "is not a URL" },
        { "://h:1", "is no URL scheme" },
        { "t cp://h:1", "'t cp' is no URL scheme" },
        { "1tcp://h:1", "'1tcp' is no URL scheme" },
        { "tcp://h:1?rank=", "'rank='" },
        { "tcp://h:1?rank", "'rank'" },
        { "tcp://h:1?rank=1x", "'rank=1x'" },
        { "tcp://h:1?rank=-1", "'rank=-1'" },
        { "tcp://h:1?rank=+1", "'rank=+1'" },
        { "tcp://h:1?rank=99999999999", "'rank=99999999999'" },
        { "tcp://h:1?world_size=0", "'world_size=0'" },
        { "tcp://h:1?rank=1&rank=1", "'rank' is given twice" },
        { "tcp://h:1?ranks=1", "unknown parameter 'ranks=1'" },
        { "tcp://h:1?rank=1&", "unknown parameter ''" },
        { "tcp://h:1#rank=1", "'#rank=1'" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct comm__url url;
        assert_int_equal(comm__url_parse(cases[i][0], &url), COMM_ERR_INVALID);
        if (!strstr(comm_last_error(), cases[i][1]))
            fail_msg("%s: '%s' should say %s", cases[i][0], comm_last_error(), cases[i][1]);
    }
}

static void an_endless_url_is_refused(void **state)
{
    (void)state;
    struct comm__url *url = malloc(sizeof *url);
    char *text = malloc(URL_BYTES + 100);
    memset(text, 'a', URL_BYTES + 99);
    memcpy(text, "file:///", 8);
    text[URL_BYTES + 99] = '\0';
    assert_int_equal(comm__url_parse(text, url), COMM_ERR_INVALID);
    text[URL_BYTES - 1] = '\0';
    assert_int_equal(comm__url_parse(text, url), COMM_OK);
    free(text);
    free(url);
}

static void hosts_and_ports_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *url, *host;
        int32_t port;
    } cases[] = {
        { "tcp://node1:29500", "node1", 29500 }, { "tcp://10.0.0.1:0", "10.0.0.1", 0 },
        { "tcp://[::1]:65535", "::1", 65535 },   { "tcp://[fe80::1%25eth0]:5", "fe80::1%eth0", 5 },
        { "tcp://h%2dx:1/", "h-x", 1 },          { "tcp://a.b.c:80?rank=1", "a.b.c", 80 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct comm__url url = parsed(cases[i].url);
        char host[URL_HOST_BYTES];
        int32_t port = -7;
        if (comm__url_host_port(&url, host, &port) != COMM_OK)
            fail_msg("%s: %s", cases[i].url, comm_last_error());
        assert_string_equal(host, cases[i].host);
        assert_int_equal(port, cases[i].port);
    }
}

static void bad_hosts_and_ports_are_refused_with_the_part(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        { "tcp://h", "the port is missing" },
        { "tcp://h/x", "the port is missing" },
        { "tcp://:1", "the host is missing" },
        { "tcp://", "the host is missing" },
        { "tcp://[]:1", "the host is missing" },
        { "tcp://[::1:1", "']'" },
        { "tcp://[::1]", "the port is missing" },
        { "tcp://[::1]x:1", "the port is missing" },
        { "tcp://::1:29500", "must stand in brackets" },
        { "tcp://h:", "'' is not a port" },
        { "tcp://h:65536", "'65536' is not a port" },
        { "tcp://h:12a", "'12a' is not a port" },
        { "tcp://h:-1", "'-1' is not a port" },
        { "tcp://h:1/path", "'/path'" },
        { "tcp://h%2:1", "'%2'" },
        { "tcp://h%zz:1", "'%zz'" },
        { "tcp://h%00:1", "'%00'" },
        { "tcp://user@h:1", "0x40" },
        { "tcp://h h:1", "0x20" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct comm__url url = parsed(cases[i][0]);
        char host[URL_HOST_BYTES];
        int32_t port;
        assert_int_equal(comm__url_host_port(&url, host, &port), COMM_ERR_INVALID);
        if (!strstr(comm_last_error(), cases[i][1]))
            fail_msg("%s: '%s' should say %s", cases[i][0], comm_last_error(), cases[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_query_gives_rank_and_world_size),
        cmocka_unit_test(malformed_urls_are_refused_with_the_part),
        cmocka_unit_test(an_endless_url_is_refused),
        cmocka_unit_test(hosts_and_ports_are_read),
        cmocka_unit_test(bad_hosts_and_ports_are_refused_with_the_part),
    };
    return cmocka_run_group_tests_name("url", tests, NULL, NULL);
}
