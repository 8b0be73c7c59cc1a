/* comm-store: a stand-alone store server, and a store's calls from the shell. */
#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <comm/store.h>

/* The exit status says what kind of failure it was; --help shows them. */
enum { EXIT_ERROR = 1, EXIT_USAGE = 2, EXIT_TIMEOUT = 3, EXIT_NO = 4, EXIT_LOST = 5 };

struct arguments {
    const char *url, *bind, *port_file;
    int port, no_wait, listen_fd; /* listen_fd: -1 if none is given */
    int64_t timeout_ms;
    const char **words; /* the command and its arguments */
    int word_count;
};

static int failed(comm_status status)
{
    if (status == COMM_OK)
        return 0;
    fprintf(stderr, "comm-store: %s\n", comm_last_error());
    switch (status) {
    case COMM_ERR_INVALID:
        return EXIT_USAGE;
    case COMM_ERR_TIMEOUT:
        return EXIT_TIMEOUT;
    case COMM_ERR_NOT_FOUND:
        return EXIT_NO;
    default:
        return comm_status_scope(status) == COMM_SCOPE_OBJECT ? EXIT_LOST : EXIT_ERROR;
    }
}

static int usage_error(const char *what, const char *text)
{
    fprintf(stderr, "comm-store: '%s' is %s; see comm-store --help\n", text, what);
    return EXIT_USAGE;
}

/* Digits with a sign, and nothing else. */
static int parse_number(const char *text, int64_t least, int64_t most, int64_t *ret_number)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (isspace((unsigned char)*text) || end == text || *end || errno || number < least || number > most)
        return 0;
    *ret_number = number;
    return 1;
}

/* ---- Values ---- */

struct value {
    char *data; /* malloc */
    size_t bytes;
};

static int read_stdin(struct value *v)
{
    size_t capacity = 0;
    for (;;) {
        if (v->bytes == capacity) {
            capacity = capacity ? capacity * 2 : 65536;
            char *more = realloc(v->data, capacity);
            if (!more) {
                fprintf(stderr, "comm-store: no memory for a value of %zu B\n", capacity);
                return EXIT_ERROR;
            }
            v->data = more;
        }
        ssize_t n = read(STDIN_FILENO, v->data + v->bytes, capacity - v->bytes);
        if (n < 0 && errno != EINTR) {
            perror("comm-store: reading the value from stdin");
            return EXIT_ERROR;
        }
        if (n == 0)
            return 0;
        v->bytes += n > 0 ? (size_t)n : 0;
        if (v->bytes > (size_t)64 << 20) { /* far beyond what a store takes: the store will say its limit */
            return 0;
        }
    }
}

/* The word itself, or for "-" all of stdin. */
static int take_value(const char *word, struct value *ret_value)
{
    *ret_value = (struct value){ NULL, 0 };
    if (strcmp(word, "-") == 0)
        return read_stdin(ret_value);
    ret_value->data = strdup(word);
    ret_value->bytes = strlen(word);
    return ret_value->data ? 0 : EXIT_ERROR;
}

static int print_value(const void *data, size_t bytes)
{
    if (fwrite(data, 1, bytes, stdout) == bytes && fflush(stdout) == 0)
        return 0;
    perror("comm-store: writing the value to stdout");
    return EXIT_ERROR;
}

static int print_number(int code, int64_t number)
{
    if (code)
        return code;
    printf("%lld\n", (long long)number);
    return 0;
}

/* ---- Commands ---- */

/* Put the value of words[2] with one of the calls that put one. */
static int put(comm_store *store, const char **words,
               comm_status (*call)(comm_store *store, const char *key, const void *data, size_t bytes))
{
    struct value v;
    int code = take_value(words[2], &v);
    if (!code)
        code = failed(call(store, words[1], v.data, v.bytes));
    free(v.data);
    return code;
}

static int do_set(comm_store *store, const struct arguments *a)
{
    return put(store, a->words, comm_store_set);
}

static int do_append(comm_store *store, const struct arguments *a)
{
    return put(store, a->words, comm_store_append);
}

static int do_push(comm_store *store, const struct arguments *a)
{
    return put(store, a->words, comm_store_queue_push);
}

static int do_get(comm_store *store, const struct arguments *a)
{
    void *data = NULL;
    size_t bytes = 0;
    int code = failed(comm_store_get(store, a->words[1], 0, &data, &bytes));
    if (!code)
        code = print_value(data, bytes);
    comm_free(data);
    return code;
}

static int do_pop(comm_store *store, const struct arguments *a)
{
    void *data = NULL;
    size_t bytes = 0;
    int code = failed(comm_store_queue_pop(store, a->words[1], a->no_wait ? COMM_STORE_NO_WAIT : 0, &data, &bytes));
    if (!code)
        code = print_value(data, bytes);
    comm_free(data);
    return code;
}

static int do_add(comm_store *store, const struct arguments *a)
{
    int64_t amount, sum = 0;
    if (!parse_number(a->words[2], INT64_MIN, INT64_MAX, &amount))
        return usage_error("no 64-bit number", a->words[2]);
    int code = failed(comm_store_add(store, a->words[1], amount, &sum));
    return print_number(code, sum);
}

static int do_compare_set(comm_store *store, const struct arguments *a)
{
    struct value expected = { NULL, 0 }, desired = { NULL, 0 };
    void *now = NULL;
    size_t bytes = 0;
    int code = take_value(a->words[2], &expected);
    if (!code)
        code = take_value(a->words[3], &desired);
    if (!code)
        code = failed(comm_store_compare_set(store, a->words[1], expected.data, expected.bytes, desired.data,
                                             desired.bytes, &now, &bytes));
    if (!code)
        code = print_value(now, bytes);
    if (!code && (bytes != desired.bytes || memcmp(now, desired.data, bytes) != 0))
        code = EXIT_NO;
    comm_free(now);
    free(expected.data);
    free(desired.data);
    return code;
}

static int do_wait(comm_store *store, const struct arguments *a)
{
    return failed(comm_store_wait(store, a->words + 1, (size_t)a->word_count - 1, 0));
}

static int do_check(comm_store *store, const struct arguments *a)
{
    int32_t all = 0;
    int code = failed(comm_store_check(store, a->words + 1, (size_t)a->word_count - 1, &all));
    return code ? code : all ? 0 : EXIT_NO;
}

static int do_delete(comm_store *store, const struct arguments *a)
{
    int32_t existed = 0;
    int code = failed(comm_store_delete(store, a->words[1], &existed));
    return code ? code : existed ? 0 : EXIT_NO;
}

static int do_list(comm_store *store, const struct arguments *a)
{
    char **keys = NULL;
    size_t count = 0;
    (void)a;
    int code = failed(comm_store_list_keys(store, &keys, &count));
    for (size_t i = 0; i < count; i++)
        puts(keys[i]);
    comm_free(keys);
    return code;
}

static int do_num_keys(comm_store *store, const struct arguments *a)
{
    int64_t count = 0;
    (void)a;
    int code = failed(comm_store_num_keys(store, &count));
    return print_number(code, count);
}

static int do_len(comm_store *store, const struct arguments *a)
{
    int64_t count = 0;
    int code = failed(comm_store_queue_len(store, a->words[1], &count));
    return print_number(code, count);
}

static int do_barrier(comm_store *store, const struct arguments *a)
{
    int64_t world_size;
    if (!parse_number(a->words[2], 1, INT32_MAX, &world_size))
        return usage_error("no number of callers", a->words[2]);
    return failed(comm_store_barrier(store, a->words[1], (int32_t)world_size, 0));
}

/* ---- The server ---- */

/* The file appears with its content, or not at all. */
static int write_port(const char *path, int port)
{
    char draft[4096];
    snprintf(draft, sizeof draft, "%s.%d", path, (int)getpid());
    FILE *f = fopen(draft, "w");
    if (f)
        fprintf(f, "%d\n", port);
    if (!f || fclose(f) != 0 || rename(draft, path) != 0) {
        fprintf(stderr, "comm-store: writing the port to %s: %s\n", path, strerror(errno));
        unlink(draft);
        return EXIT_ERROR;
    }
    return 0;
}

/* An open socket that the starter of this process has bound; it need not listen yet. */
static int listen_on(int fd)
{
    if (fd < 0 || listen(fd, SOMAXCONN) == 0)
        return 0;
    fprintf(stderr, "comm-store: listening on the socket that is descriptor %d: %s\n", fd, strerror(errno));
    return EXIT_ERROR;
}

static int do_serve(comm_store *unused, const struct arguments *a)
{
    char url[300];
    comm_store *store;
    comm_store_options o = COMM_STORE_OPTIONS_INIT;
    sigset_t ends;
    int signal_number;
    (void)unused;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL); /* Also in the server's thread. */
    o.serve = 1;
    o.bind = a->bind;
    o.listen_fd_plus_one = a->listen_fd + 1;
    if (listen_on(a->listen_fd) != 0)
        return EXIT_ERROR;
    snprintf(url, sizeof url, "tcp://localhost:%d", a->port);
    int code = failed(comm_store_open(url, &o, &store));
    if (code)
        return code;
    printf("listening on %s:%d\n", a->bind ? a->bind : "*", (int)comm_store_port(store));
    fflush(stdout);
    if (a->port_file)
        code = write_port(a->port_file, (int)comm_store_port(store));
    if (!code) {
        sigwait(&ends, &signal_number);
        if (a->port_file)
            unlink(a->port_file);
    }
    comm_store_close(store);
    return code;
}

/* ---- The command line ---- */

static const struct command {
    const char *name, *arguments;
    int least, most; /* number of arguments; most -1: any */
    int (*run)(comm_store *store, const struct arguments *a);
    const char *help;
} commands[] = {
    { "serve", "", 0, 0, do_serve, "serve a store until SIGINT or SIGTERM" },
    { "set", "KEY VALUE", 2, 2, do_set, "put" },
    { "get", "KEY", 1, 1, do_get, "wait for the key; print its value as it is" },
    { "add", "KEY N", 2, 2, do_add, "add to a number that begins at 0; print the sum" },
    { "append", "KEY VALUE", 2, 2, do_append, "put at the end of the value" },
    { "compare-set", "KEY OLD NEW", 3, 3, do_compare_set, "replace OLD; print the value after that (1)" },
    { "wait", "KEY...", 1, -1, do_wait, "wait until all the keys are there" },
    { "check", "KEY...", 1, -1, do_check, "are all the keys there? (2)" },
    { "delete", "KEY", 1, 1, do_delete, "delete the key (2)" },
    { "list", "", 0, 0, do_list, "print all keys, a line each, in no order" },
    { "num-keys", "", 0, 0, do_num_keys, "print how many keys there are" },
    { "push", "QUEUE VALUE", 2, 2, do_push, "put at the end of a queue" },
    { "pop", "QUEUE", 1, 1, do_pop, "wait for a queue's first; take and print it (3)" },
    { "len", "QUEUE", 1, 1, do_len, "print how many are in a queue" },
    { "barrier", "KEY N", 2, 2, do_barrier, "wait until N callers have come; once per key" },
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

static const struct argp_option options[] = {
    { "store", 's', "URL", 0,
      "tcp://HOST:PORT or file:///PATH. Default: COMM_STORE_URL, else tcp://MASTER_ADDR:MASTER_PORT, from the "
      "environment",
      0 },
    { "timeout", 't', "MS", 0, "Time limit to connect, and of what waits; -1 is none (default 300000)", 0 },
    { "no-wait", 'n', NULL, 0, "pop: do not wait", 0 },
    { "port", 'p', "PORT", 0, "serve: the port; 0 lets the system choose (default)", 0 },
    { "port-file", 'f', "FILE", 0, "serve: write the port there, and remove the file at the end", 0 },
    { "bind", 'b', "ADDRESS", 0, "serve: listen on this address only", 0 },
    { "listen-fd", 'l', "FD", 0, "serve: on the bound socket that is open as this descriptor, instead of a port", 0 },
    { 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;
    int64_t number = 0;
    switch (key) {
    case 's':
        a->url = arg;
        return 0;
    case 'f':
        a->port_file = arg;
        return 0;
    case 'b':
        a->bind = arg;
        return 0;
    case 'l':
        if (!parse_number(arg, 0, INT32_MAX - 1, &number))
            argp_error(state, "'%s' is no descriptor, a number from 0", arg);
        a->listen_fd = (int)number;
        return 0;
    case 'n':
        a->no_wait = 1;
        return 0;
    case 't':
        if (!parse_number(arg, -1, INT64_MAX, &a->timeout_ms))
            argp_error(state, "'%s' is no number of milliseconds", arg);
        return 0;
    case 'p':
        if (!parse_number(arg, 0, 65535, &number))
            argp_error(state, "'%s' is no port, a number from 0 to 65535", arg);
        a->port = (int)number;
        return 0;
    case ARGP_KEY_ARG:
        a->words[a->word_count++] = *arg == '\1' ? arg + 1 : arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* A negative number is an argument, not an option: hide it from argp behind a byte that parse takes off. */
static int hide_negative_numbers(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        size_t bytes = strlen(argv[i]);
        if (argv[i][0] != '-' || !isdigit((unsigned char)argv[i][1]) || strcmp(argv[i - 1], "-t") == 0 ||
            strcmp(argv[i - 1], "--timeout") == 0)
            continue;
        char *hidden = malloc(bytes + 2);
        if (!hidden)
            return 0;
        hidden[0] = '\1';
        memcpy(hidden + 1, argv[i], bytes + 1);
        argv[i] = hidden;
    }
    return 1;
}

static char *make_doc(void)
{
    char *doc = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&doc, &bytes);
    if (!out)
        return NULL;
    fprintf(out, "A key-value store's calls from the shell, and a server that PyTorch's TCPStore clients "
                 "understand.\vCommands:\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        char call[40];
        snprintf(call, sizeof call, "%s %s", commands[i].name, commands[i].arguments);
        fprintf(out, "  %-24s %s\n", call, commands[i].help);
    }
    fprintf(out, "  (1) an empty OLD also makes a key that is not there; exit status 4\n"
                 "      if the value is not NEW\n"
                 "  (2) exit status 4 if not\n"
                 "  (3) with --no-wait, exit status 4 if the queue is empty\n\n"
                 "A VALUE of - is read from stdin, to its end. An argument that begins with - and is no number comes "
                 "behind --.\n\n"
                 "Exit status: 0 done, 1 an error of the system, 2 wrong usage or a wrong value, 3 out of time, 4 not "
                 "there (see "
                 "above), 5 the store is lost or damaged. Errors go to stderr.");
    fclose(out);
    return doc;
}

/* Adds the brackets that an IPv6 address in MASTER_ADDR lacks. */
static const char *default_url(char *text, size_t bytes)
{
    const char *url = getenv("COMM_STORE_URL"), *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    if (url && *url)
        return url;
    if (!host || !*host || !port || !*port)
        return NULL;
    snprintf(text, bytes, strchr(host, ':') && *host != '[' ? "tcp://[%s]:%s" : "tcp://%s:%s", host, port);
    return text;
}

static int run(const struct arguments *a, const struct command *command)
{
    char text[300];
    comm_store *store;
    comm_store_options o = COMM_STORE_OPTIONS_INIT;
    if (a->word_count - 1 < command->least || (command->most >= 0 && a->word_count - 1 > command->most)) {
        fprintf(stderr, "comm-store: wrong number of arguments; it is: comm-store %s %s\n", command->name,
                command->arguments);
        return EXIT_USAGE;
    }
    if (command->run == do_serve)
        return do_serve(NULL, a);
    const char *url = a->url ? a->url : default_url(text, sizeof text);
    if (!url) {
        fprintf(stderr,
                "comm-store: which store? Give --store URL, or set COMM_STORE_URL, or MASTER_ADDR and MASTER_PORT\n");
        return EXIT_USAGE;
    }
    o.timeout_ms = a->timeout_ms;
    int code = failed(comm_store_open(url, &o, &store));
    if (code)
        return code == EXIT_NO ? EXIT_USAGE : code; /* an unknown scheme is no missing key */
    code = command->run(store, a);
    comm_store_close(store);
    return code;
}

int main(int argc, char **argv)
{
    static struct arguments a; /* static, as all that is needed to the end */
    static char *doc;
    a.listen_fd = -1;
    a.words = calloc((size_t)argc + 1, sizeof *a.words);
    doc = make_doc();
    struct argp argp = { options, parse, "COMMAND [ARGUMENT...]", doc, NULL, NULL, NULL };
    if (!a.words || !doc || !hide_negative_numbers(argc, argv)) {
        fprintf(stderr, "comm-store: no memory\n");
        return EXIT_ERROR;
    }
    argp_err_exit_status = EXIT_USAGE;
    argp_program_version = comm_version();
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(commands[i].name, a.words[0]) == 0)
            return run(&a, &commands[i]);
    return usage_error("no command", a.words[0]);
}
