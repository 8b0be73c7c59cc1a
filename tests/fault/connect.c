/* Connections that cannot be made: the error says which rank could not reach which, at which address, and why; and an
 * address that does not answer does not keep a rank from the next one. Rank 1 puts another page about itself into the
 * store before any rank asks. The linker puts our accept4 in place of the library's (--wrap). */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faults.h"
#include "core/group.h"

struct scenario {
    struct page *page;
    int which;
};

enum { NOBODY_LISTENS, NOT_LIBCOMM, SAYS_NOTHING, ANOTHER_WORLD, NONSENSE, NO_ADDRESS, NO_INTERFACE, WHICH_END };
static const char *const words[WHICH_END] = { "Connection refused; its port is closed",
                                              "what answers there is not libcomm",
                                              "",
                                              "what answers there does not have this job's secret",
                                              "what it published makes no sense",
                                              "what it published makes no sense",
                                              "elsewhere) has published no address: its host has no network" };

static void publish_of(comm_group *world, int rank, const char *page)
{
    char key[16];
    snprintf(key, sizeof key, "tcp/%d", fault_world_rank(rank, 2));
    CHECK_OK(comm_store_set(world->world->backends[0].store, key, page, strlen(page)));
}

static void publish(comm_group *world, const char *page)
{
    publish_of(world, 1, page);
}

static int own_port(comm_group *world)
{
    char key[16];
    void *page;
    size_t bytes;
    snprintf(key, sizeof key, "tcp/%d", fault_world_rank(1, 2));
    CHECK_OK(comm_store_get(world->world->backends[0].store, key, 5000, &page, &bytes));
    char *copy = strndup(page, bytes), *rest = copy;
    comm_free(page);
    strsep(&rest, "\n");
    strsep(&rest, "\n");
    int port = atoi(strsep(&rest, "\n"));
    free(copy);
    return port;
}

/* A listener at 127.0.0.`host`; 0: any port. */
static int listener(int host, int backlog, int *port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)*port) };
    socklen_t bytes = sizeof a;
    a.sin_addr.s_addr = htonl(0x7f000000u + (unsigned)host);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, backlog) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&a, &bytes) == 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static int dial(int host, int port, int flags)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    a.sin_addr.s_addr = htonl(0x7f000000u + (unsigned)host);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    CHECK(fd >= 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0)
        CHECK(flags != 0);
    return fd;
}

/* Answers every connection with the same bytes. */
struct impostor {
    int listener;
    const char *answer;
};

static void *impostor_main(void *context)
{
    struct impostor *i = context;
    for (int fd; (fd = accept(i->listener, NULL, NULL)) >= 0; close(fd)) {
        char hello[64];
        size_t got = 0;
        for (ssize_t n = 1; got < sizeof hello && n > 0; got += (size_t)(n > 0 ? n : 0))
            n = recv(fd, hello + got, sizeof hello - got, 0);
        send(fd, i->answer, 72, MSG_NOSIGNAL);
    }
    return NULL;
}

static void it_cannot_be_reached(int rank, int size, void *arg)
{
    static const char http[80] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                      zero[80] = "";
    struct scenario *s = arg;
    comm_group *world = fault_world();
    char page[200];
    int port = 0, fd = -1;
    pthread_t thread;
    static struct impostor impostor;
    if (rank == 1) {
        const char *format = "elsewhere\nanother kernel\n%d\n127.0.0.2\n";
        if (s->which < NONSENSE)
            fd = listener(2, 16, &port);
        if (s->which == NOBODY_LISTENS)
            close(fd);
        if (s->which == NONSENSE)
            format = "\377\n\n-7x%d";
        if (s->which == NO_ADDRESS)
            format = "elsewhere\nanother kernel\n80%d\nnot an address\n12:34\n999.1.1.1\n";
        if (s->which == NO_INTERFACE)
            format = "elsewhere\nanother kernel\n80%d\n";
        snprintf(page, sizeof page, format, port);
        publish(world, page);
        if (s->which == NOT_LIBCOMM || s->which == ANOTHER_WORLD) {
            impostor = (struct impostor){ fd, s->which == NOT_LIBCOMM ? http : zero };
            CHECK(pthread_create(&thread, NULL, impostor_main, &impostor) == 0);
        }
    }
    fault_meet(s->page);
    if (rank == 0) {
        comm_op_options limit = COMM_OP_OPTIONS_INIT;
        limit.timeout_ms = s->which == NOBODY_LISTENS || s->which >= NONSENSE ? 20000 : 1000;
        atomic_store(&s->page->event_ns, fault_now_ns());
        comm_status status = comm_send(world, page, 1, COMM_DTYPE_U8, 1, &limit, NULL);
        atomic_store(&s->page->noticed_ns[0], fault_now_ns());
        CHECK_STATUS(status, limit.timeout_ms == 1000 ? COMM_ERR_DEADLINE : COMM_ERR_PEER_LOST);
        CHECK_ERROR_SAYS(words[s->which]);
        CHECK_ERROR_SAYS(fault_permuted() ? "rank 1 (world rank 2" : "rank 1 ");
        if (s->which < NONSENSE) {
            CHECK_NAMES(comm_last_error(), 1);
            CHECK_ERROR_SAYS(fault_permuted() ? "rank 1 (world rank 2, elsewhere 127.0.0.2:"
                                              : "rank 1 (elsewhere 127.0.0.2:");
        }
        if (strstr(comm_last_error(), "reached by"))
            CHECK_NAMES(comm_last_error(), 0);
        snprintf(s->page->text[0], sizeof s->page->text[0], "%s", comm_last_error());
    }
    fault_meet(s->page);
    (void)size;
    CHECK_OK(fault_close(world));
}

/* ---- A relay, and an address that swallows everything ---- */

static void *relay_main(void *context)
{
    int *ports = context, from = accept(ports[1], NULL, NULL), to = dial(1, ports[0], 0);
    struct pollfd p[2] = { { .fd = from, .events = POLLIN }, { .fd = to, .events = POLLIN } };
    for (int open = 1; open && poll(p, 2, -1) > 0;)
        for (int i = 0; i < 2; i++) {
            char bytes[4096];
            ssize_t n = p[i].revents ? recv(p[i].fd, bytes, sizeof bytes, 0) : -1;
            if (p[i].revents && n <= 0)
                open = 0;
            else if (n > 0)
                open = send(p[!i].fd, bytes, (size_t)n, MSG_NOSIGNAL) == n;
        }
    close(from);
    close(to);
    return NULL;
}

static void the_next_address_is_tried(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world();
    static int ports[2];
    int black_hole, port = 0, filling[4];
    pthread_t thread;
    uint8_t data = 7;
    if (rank == 1) {
        char page[200];
        ports[0] = own_port(world);
        ports[1] = listener(3, 16, &port);
        black_hole = listener(2, 0, &port);
        for (int i = 0; i < 4; i++) /* its queue is full: what comes now is not even refused */
            filling[i] = dial(2, port, SOCK_NONBLOCK);
        snprintf(page, sizeof page, "elsewhere\nanother kernel\n%d\n127.0.0.2\n127.0.0.3\n", port);
        publish(world, page);
        CHECK(pthread_create(&thread, NULL, relay_main, ports) == 0);
    }
    fault_meet(s->page);
    atomic_store(&s->page->event_ns, fault_now_ns());
    if (rank == 0)
        CHECK_OK(comm_send(world, &data, 1, COMM_DTYPE_U8, 1, NULL, NULL));
    fault_meet(s->page); /* rank 1 must not connect itself */
    atomic_store(&s->page->noticed_ns[rank], fault_now_ns());
    if (rank == 1) {
        data = 0;
        CHECK_OK(comm_recv(world, &data, 1, COMM_DTYPE_U8, 0, NULL, NULL));
        CHECK(data == 7);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(fault_close(world));
    if (rank == 1) {
        pthread_join(thread, NULL);
        for (int i = 0; i < 4; i++)
            close(filling[i]);
        close(black_hole);
        close(ports[1]);
    }
    (void)size;
}

/* ---- Only one of the two can reach the other ---- */

/* what rank `which % 2` publishes leads nowhere: the connection is never made, or (from here on) is made and never
 * answered */
enum { UNANSWERED = 2 };

static void only_one_can_reach_the_other(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world();
    comm_op_options limit = COMM_OP_OPTIONS_INIT;
    int hidden = s->which % 2, port = 0, hole = -1, filling[4] = { -1, -1, -1, -1 };
    uint8_t data = rank == 0 ? 7 : 0;
    if (rank == hidden) {
        char page[200];
        hole = listener(2, s->which >= UNANSWERED ? 16 : 0, &port);
        for (int i = 0; i < 4 && s->which < UNANSWERED; i++)
            filling[i] = dial(2, port, SOCK_NONBLOCK);
        snprintf(page, sizeof page, "elsewhere\nanother kernel\n%d\n127.0.0.2\n", port);
        publish_of(world, rank, page);
    }
    fault_meet(s->page);
    atomic_store(&s->page->event_ns, fault_now_ns());
    limit.timeout_ms = 15000;
    if (rank == 0)
        CHECK_OK(comm_send(world, &data, 1, COMM_DTYPE_U8, 1, &limit, NULL));
    else
        CHECK_OK(comm_recv(world, &data, 1, COMM_DTYPE_U8, 0, &limit, NULL));
    atomic_store(&s->page->noticed_ns[rank], fault_now_ns());
    CHECK(data == 7);
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(fault_close(world));
    for (int i = 0; i < 4; i++)
        if (filling[i] >= 0)
            close(filling[i]);
    if (hole >= 0)
        close(hole);
    (void)size;
}

/* ---- No descriptor for a new connection ---- */

enum { VAIN_ACCEPTS = 4 };

static atomic_int short_port;             /* of the listener that gets no descriptor; 0: none */
static atomic_int vain_accepts, warnings; /* warnings of that */
static _Atomic int64_t soonest_ns;        /* between two vain accepts */

int __real_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
    static int64_t last_ns;
    struct pollfd p = { .fd = fd, .events = POLLIN };
    struct sockaddr_storage own;
    socklen_t own_bytes = sizeof own;
    int ours = getsockname(fd, (struct sockaddr *)&own, &own_bytes) == 0 &&
               ntohs(((struct sockaddr_in *)&own)->sin_port) == atomic_load(&short_port);
    if (!ours || poll(&p, 1, 0) != 1 || atomic_load(&vain_accepts) == VAIN_ACCEPTS)
        return __real_accept4(fd, address, bytes, flags);
    int64_t now = fault_now_ns();
    if (atomic_fetch_add(&vain_accepts, 1) > 0 && now - last_ns < atomic_load(&soonest_ns))
        atomic_store(&soonest_ns, now - last_ns);
    last_ns = now;
    errno = EMFILE;
    return -1;
}

static void count_warnings(int32_t level, const char *text, void *context)
{
    (void)context;
    if (level == COMM_LOG_WARN && strstr(text, "cannot accept a connection: Too many open files"))
        atomic_fetch_add(&warnings, 1);
}

static void who_comes_waits_for_a_descriptor(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    comm_group *world = fault_world();
    uint8_t data = rank == 0 ? 7 : 0;
    if (rank == 1) {
        comm_log_set_level(COMM_LOG_WARN); /* whatever COMM_LOG says */
        comm_log_set(count_warnings, NULL);
        atomic_store(&soonest_ns, INT64_MAX);
        atomic_store(&short_port, own_port(world));
    }
    fault_meet(s->page);
    atomic_store(&s->page->event_ns, fault_now_ns());
    if (rank == 0)
        CHECK_OK(comm_send(world, &data, 1, COMM_DTYPE_U8, 1, NULL, NULL));
    fault_meet(s->page); /* rank 1 must not connect itself */
    if (rank == 1) {
        CHECK_OK(comm_recv(world, &data, 1, COMM_DTYPE_U8, 0, NULL, NULL));
        CHECK(data == 7);
        comm_log_set(NULL, NULL);
        CHECK(atomic_load(&vain_accepts) == VAIN_ACCEPTS);
        CHECK(atomic_load(&warnings) == 1);
        /* a pause, not one look after the other; a busy machine makes it longer */
        CHECK(atomic_load(&soonest_ns) > 10000000);
    }
    atomic_store(&s->page->noticed_ns[rank], fault_now_ns());
    (void)size;
    CHECK_OK(fault_close(world));
}

/* ---- A connection that stays silent ---- */

static void a_silent_stranger_is_sent_away(int rank, int size, void *arg)
{
    comm_group *world = fault_world();
    (void)size, (void)arg;
    if (rank == 1) {
        char byte;
        int fd = dial(1, own_port(world), 0);
        struct pollfd p = { .fd = fd, .events = POLLIN };
        CHECK(poll(&p, 1, 25000) == 1 && recv(fd, &byte, 1, 0) <= 0);
        close(fd);
    }
    CHECK_OK(comm_barrier(world, NULL, NULL));
    CHECK_OK(fault_close(world));
}

static int run(void (*fn)(int, int, void *), int which, const char *name)
{
    struct scenario s = { .page = page_new(2), .which = which };
    struct ranks_options options = { .limit_s = 30, .name = name };
    int failed = fault_run(2, &options, fn, &s);
    failed |= fault_noticed_late(s.page, 2, *s.page->text[0] ? s.page->text[0] : name, 3000);
    page_free(s.page);
    return failed;
}

int main(void)
{
    int failed = 0, status;
    setenv("COMM_HANDOUT_BYTES", "0", 1); /* or no rank would ask the store */
    pid_t aside = fork(); /* it takes long, and does nothing */
    if (aside == 0)
        return run(a_silent_stranger_is_sent_away, 0, "a silent stranger is sent away");
    for (int i = 0; i < WHICH_END; i++)
        failed |= run(it_cannot_be_reached, i, "it cannot be reached");
    for (int i = 0; i < 4; i++) {
        char name[80];
        snprintf(name, sizeof name, "rank %d cannot be reached, but can reach the other%s", i % 2,
                 i >= UNANSWERED ? "; it seems to answer" : "");
        failed |= run(only_one_can_reach_the_other, i, name);
    }
    failed |= run(the_next_address_is_tried, 0, "an address that swallows everything, then one that works");
    failed |= run(who_comes_waits_for_a_descriptor, 0, "who comes waits for a descriptor");
    return failed | (waitpid(aside, &status, 0) != aside || status != 0);
}
