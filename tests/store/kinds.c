#include "kinds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ranks.h"

static comm_store *open_store(const char *url, int serve)
{
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    comm_store *store;
    options.serve = serve;
    CHECK_OK(comm_store_open(url, &options, &store));
    return store;
}

static void open_tcp(struct pair *p, int serve_from_a)
{
    char url[64];
    comm_store *server = open_store("tcp://127.0.0.1:0", 1);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", (int)comm_store_port(server));
    p->a = serve_from_a ? server : open_store(url, 0);
    p->b = open_store(url, 0);
    p->rest[0] = serve_from_a ? NULL : server;
    p->kind = "tcp";
}

static void open_base(const char *name, struct pair *p)
{
    static int opened;
    char url[400];
    p->kind = name;
    if (strcmp(name, "hash") == 0) {
        snprintf(url, sizeof url, "hash://conformance-%d", opened++);
        p->a = open_store(url, 0);
        p->b = open_store(url, 0);
    } else if (strcmp(name, "file") == 0) {
        const char *base = getenv("TMPDIR");
        snprintf(p->path, sizeof p->path, "%s/comm-store-XXXXXX", base && *base ? base : "/tmp");
        int fd = mkstemp(p->path);
        CHECK(fd >= 0);
        close(fd);
        snprintf(url, sizeof url, "file://%s", p->path);
        p->a = open_store(url, 0);
        p->b = open_store(url, 0);
    } else if (strcmp(name, "tcp") == 0 || strcmp(name, "clients") == 0) {
        open_tcp(p, strcmp(name, "tcp") == 0);
    } else if (strcmp(name, "user") == 0 || strcmp(name, "least") == 0) {
        int with_all = strcmp(name, "user") == 0;
        p->a = user_store_open(with_all);
        CHECK_OK(comm_store_clone(p->a, &p->b));
        p->kind = "tests";
        p->lacks = with_all ? 0 : LACKS_NUM_KEYS | LACKS_LIST_KEYS;
    } else {
        fprintf(stderr, "there is no kind '%s'\n", name);
        exit(2);
    }
}

/* Put views in the place of the handles; the inner stores stay open by the views alone. */
static void put_prefix(struct pair *p, const char *prefix)
{
    comm_store *a = p->a, *b = p->b;
    CHECK_OK(comm_store_prefix(prefix, a, &p->a));
    CHECK_OK(comm_store_prefix(prefix, b, &p->b));
    comm_store_close(a);
    comm_store_close(b);
    p->prefix_bytes += strlen(prefix) + 1;
    p->kind = "prefix";
}

static void put_clones(struct pair *p)
{
    comm_store *a = p->a, *b = p->b;
    CHECK_OK(comm_store_clone(a, &p->a));
    CHECK_OK(comm_store_clone(p->a, &p->b)); /* a clone's clone */
    comm_store_close(b);
    if (comm_store_port(a) > 0)
        p->rest[1] = a; /* it may serve */
    else
        comm_store_close(a);
}

void pair_open(const char *name, struct pair *p)
{
    static const char *const wrappers[] = { "prefix+", "nested+", "clone+" };
    *p = (struct pair){ 0 };
    size_t w = 0;
    while (w < 3 && strncmp(name, wrappers[w], strlen(wrappers[w])) != 0)
        w++;
    if (w == 3) {
        open_base(name, p);
        return;
    }
    pair_open(name + strlen(wrappers[w]), p);
    if (w == 2) {
        put_clones(p);
        return;
    }
    CHECK_OK(comm_store_set(p->a, "outside", "the prefix", 10)); /* must never show */
    comm_store *other;
    CHECK_OK(comm_store_prefix("p", p->a, &other)); /* nor must another's */
    CHECK_OK(comm_store_set(other, "neighbour", "x", 1));
    comm_store_close(other);
    put_prefix(p, "prefix");
    if (w == 1)
        put_prefix(p, "in/side");
}

void pair_close(struct pair *p)
{
    comm_store_close(p->b);
    comm_store_close(p->a);
    for (size_t i = 0; i < sizeof p->rest / sizeof *p->rest; i++)
        comm_store_close(p->rest[i]);
    if (p->path[0])
        unlink(p->path);
}
