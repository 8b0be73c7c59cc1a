/* comm-store: a stand-alone store server, and a store's calls from the shell.
 * Exit status: 0 all right, 1 an error, 2 usage, 3 a timeout, 4 not found. */
#include <argp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <comm/store.h>

struct arguments {
    const char *url, *bind, *port_file, *words[8];
    int word_count, port;
    int64_t timeout_ms;
};

static const struct argp_option options[] = {
    { "store", 's', "URL", 0, "The store; default: COMM_STORE_URL, else tcp://MASTER_ADDR:MASTER_PORT", 0 },
    { "timeout", 't', "MS", 0, "Time limit of waiting calls (default 300000)", 0 },
    { "port", 'p', "PORT", 0, "serve: the port; 0 lets the system choose (default)", 0 },
    { "port-file", 'f', "FILE", 0, "serve: write the port there", 0 },
    { "bind", 'b', "ADDRESS", 0, "serve: listen on this address only", 0 },
    { 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case 's': a->url = arg; return 0;
    case 't': a->timeout_ms = atoll(arg); return 0;
    case 'p': a->port = atoi(arg); return 0;
    case 'f': a->port_file = arg; return 0;
    case 'b': a->bind = arg; return 0;
    case ARGP_KEY_ARG:
        if (a->word_count == 8)
            argp_error(state, "too many words");
        a->words[a->word_count++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (a->word_count == 0)
            argp_usage(state);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int failed(comm_status status)
{
    if (status == COMM_OK)
        return 0;
    fprintf(stderr, "comm-store: %s\n", comm_last_error());
    return status == COMM_ERR_TIMEOUT ? 3 : status == COMM_ERR_NOT_FOUND ? 4 : 1;
}

/* The file appears with its content, or not at all. */
static int write_port(const char *path, int port)
{
    char draft[4096];
    snprintf(draft, sizeof draft, "%s.%d", path, (int)getpid());
    FILE *f = fopen(draft, "w");
    if (f)
        fprintf(f, "%d\n", port);
    if (!f || fclose(f) != 0 || rename(draft, path) != 0) {
        perror("comm-store: writing the port file");
        return 1;
    }
    return 0;
}

static int serve(const struct arguments *a)
{
    char url[300];
    comm_store *store;
    comm_store_options o = COMM_STORE_OPTIONS_INIT;
    sigset_t ends;
    int signal_number;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL); /* Also in the server's thread. */
    o.serve = 1;
    o.bind = a->bind;
    snprintf(url, sizeof url, "tcp://localhost:%d", a->port);
    int code = failed(comm_store_open(url, &o, &store));
    if (code)
        return code;
    printf("listening on %s:%d\n", a->bind ? a->bind : "*", (int)comm_store_port(store));
    fflush(stdout);
    if (a->port_file)
        code = write_port(a->port_file, (int)comm_store_port(store));
    if (!code)
        sigwait(&ends, &signal_number);
    comm_store_close(store);
    return code;
}

static int call(const struct arguments *a, comm_store *store)
{
    const char *verb = a->words[0], *key = a->word_count > 1 ? a->words[1] : NULL;
    const char *value = a->word_count > 2 ? a->words[2] : "";
    void *data = NULL;
    size_t bytes = 0;
    int64_t number = 0;
    int code = 2;
    if (strcmp(verb, "set") == 0 && a->word_count == 3) {
        code = failed(comm_store_set(store, key, value, strlen(value)));
    } else if (strcmp(verb, "append") == 0 && a->word_count == 3) {
        code = failed(comm_store_append(store, key, value, strlen(value)));
    } else if (strcmp(verb, "get") == 0 && a->word_count == 2) {
        code = failed(comm_store_get(store, key, 0, &data, &bytes));
        fwrite(data ? data : "", 1, bytes, stdout);
    } else if (strcmp(verb, "add") == 0 && a->word_count == 3) {
        code = failed(comm_store_add(store, key, atoll(value), &number));
        if (!code)
            printf("%lld\n", (long long)number);
    } else if (strcmp(verb, "wait") == 0 && a->word_count > 1) {
        code = failed(comm_store_wait(store, a->words + 1, (size_t)a->word_count - 1, 0));
    } else if (strcmp(verb, "delete") == 0 && a->word_count == 2) {
        int32_t existed = 0;
        code = failed(comm_store_delete(store, key, &existed));
        code = code ? code : existed ? 0 : 4;
    } else if (strcmp(verb, "num-keys") == 0) {
        code = failed(comm_store_num_keys(store, &number));
        if (!code)
            printf("%lld\n", (long long)number);
    } else {
        fprintf(stderr, "comm-store: '%s' with %d arguments is no command; see comm-store --help\n", verb,
                a->word_count - 1);
    }
    comm_free(data);
    return code;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        options, parse, "serve\nset KEY VALUE\nget KEY\nadd KEY N\nappend KEY VALUE\nwait KEY...\ndelete KEY\nnum-keys",
        "A key-value store server that PyTorch's TCPStore clients understand, and its calls from the shell.\vExit status: 0 "
        "all right, 1 an error, 2 usage, 3 a timeout, 4 not found.",
        NULL, NULL, NULL
    };
    struct arguments a = { 0 };
    char url[300];
    comm_store *store;
    comm_store_options o = COMM_STORE_OPTIONS_INIT;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    if (strcmp(a.words[0], "serve") == 0)
        return serve(&a);
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    snprintf(url, sizeof url, "tcp://%s:%s", host ? host : "", port ? port : "");
    if (!a.url)
        a.url = getenv("COMM_STORE_URL");
    if (!a.url && !(host && port)) {
        fprintf(stderr, "comm-store: which store? Give --store URL, or set COMM_STORE_URL, or MASTER_ADDR and MASTER_PORT\n");
        return 2;
    }
    o.timeout_ms = a.timeout_ms;
    int code = failed(comm_store_open(a.url ? a.url : url, &o, &store));
    if (code)
        return code;
    code = call(&a, store);
    comm_store_close(store);
    return code;
}
