/* comm-info: what this libcomm is, available backends, and why the others are not, its parameters and its routes. */
#include <argp.h>
#include <comm/comm.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_PARAMETERS = 256, KEY_ROUTES, KEY_MARKDOWN, KEY_JSON };

struct wanted {
    int parameters, routes, markdown, json;
};

static const struct argp_option options[] = {
    { "parameters", KEY_PARAMETERS, NULL, 0, "Only the parameters, with help", 0 },
    { "markdown", KEY_MARKDOWN, NULL, 0, "The parameters as docs/environment.md has them", 0 },
    { "json", KEY_JSON, NULL, 0, "All of it as one JSON object", 0 },
    { "routes", KEY_ROUTES, NULL, 0, "Only the algorithms of the backends, and which is used when", 0 },
    { 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct wanted *w = state->input;
    switch (key) {
    case KEY_PARAMETERS: w->parameters = 1; return 0;
    case KEY_ROUTES: w->routes = 1; return 0;
    case KEY_MARKDOWN: w->markdown = 1; return 0;
    case KEY_JSON: w->json = 1; return 0;
    case ARGP_KEY_ARG: argp_error(state, "unexpected argument '%s'", arg); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* What is in force; secrets stay ours, as this output is made for bug reports. */
static const char *shown_value(const comm_param_info *p)
{
    if (!*p->value)
        return "(empty)";
    return strcmp(p->name, "secret") == 0 ? "(set)" : p->value;
}

/* A program loads the plugins that its backend string names. Here all are loaded that are there: only so are their
 * versions, parameters and routes known, and why they cannot be used. Of a backend with variants (NAME.VARIANT), the
 * library takes the first that can be used. Failures are listed with the backends. */
static void load_plugins(void)
{
    size_t found = comm_backend_count();
    for (size_t i = 0; i < found; i++) {
        comm_backend_info b = { .struct_bytes = sizeof b };
        char name[256];
        if (comm_backend_query(i, &b) != COMM_OK || b.usable || *b.devices)
            continue;
        size_t length = strcspn(b.name, ".");
        snprintf(name, sizeof name, "%.*s", (int)length, b.name);
        (void)comm_backend_load(b.name[length] ? name : b.origin);
    }
}

static void print_parameters(int markdown)
{
    if (markdown)
        printf("# Parameters\n\nMade by `comm-info --markdown`. An option in the backend string (`cpu:tcp?lanes=8`) "
               "wins over the variable.\n\n| variable | option | default | what it does |\n|---|---|---|---|\n");
    for (size_t i = 0; i < comm_param_count(); i++) {
        comm_param_info p = { .struct_bytes = sizeof p };
        if (comm_param_query(i, &p) != COMM_OK)
            continue;
        if (markdown)
            printf("| `%s` | %s `%s` | %s%s%s | %s |\n", p.env, p.scope, p.name, *p.initial ? "`" : "", p.initial,
                   *p.initial ? "`" : "", p.help);
        else
            printf("  %-24s %s.%-*s = %-12s %s\n", p.env, p.scope, (int)(21 - strlen(p.scope)), p.name, shown_value(&p),
                   p.help);
    }
}

static void print_line(const char *text, void *context)
{
    const char **heading = context;
    if (*heading)
        printf("routes of %s:\n", *heading);
    *heading = NULL;
    printf("  %s\n", text);
}

static void print_routes(void)
{
    for (size_t i = 0; i < comm_backend_count(); i++) {
        comm_backend_info b = { .struct_bytes = sizeof b };
        if (comm_backend_query(i, &b) == COMM_OK)
            comm_backend_routes(i, print_line, &b.name);
    }
}

static void print_backends(void)
{
    printf("backends:\n");
    for (size_t i = 0; i < comm_backend_count(); i++) {
        comm_backend_info b = { .struct_bytes = sizeof b };
        if (comm_backend_query(i, &b) == COMM_OK)
            printf("  %-10s %-8s devices %-6s %s%s%s%s%s\n", b.name, b.version ? b.version : "",
                   b.devices ? b.devices : "", b.origin ? b.origin : "", *b.traits ? "; traits: " : "", b.traits,
                   b.usable ? "" : "; cannot be used: ", b.usable || !b.reason ? "" : b.reason);
    }
}

/* ---- What "auto" takes ---- */

enum { CANDIDATES_MAX = 64 };

struct candidates {
    comm_backend_info list[CANDIDATES_MAX];
    size_t count;
};

/* Is the name one of "cpu,xpu"? */
static int names_device(const char *devices, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = devices; *at; at += strspn(at, ",")) {
        size_t bytes = strcspn(at, ",");
        if (bytes == length && memcmp(at, name, length) == 0)
            return 1;
        at += bytes;
    }
    return 0;
}

static int by_preference(const void *a, const void *b)
{
    const comm_backend_info *x = a, *y = b;
    if (x->preference != y->preference)
        return x->preference < y->preference ? 1 : -1;
    return strcmp(x->name, y->name);
}

static struct candidates candidates_for(const char *device)
{
    struct candidates c = { .count = 0 };
    for (size_t i = 0; i < comm_backend_count() && c.count < CANDIDATES_MAX; i++) {
        comm_backend_info b = { .struct_bytes = sizeof b };
        if (comm_backend_query(i, &b) == COMM_OK && b.usable && b.preference > 0 && names_device(b.devices, device))
            c.list[c.count++] = b;
    }
    qsort(c.list, c.count, sizeof *c.list, by_preference);
    return c;
}

static void print_auto(void)
{
    const char *device, *set = getenv("COMM_BACKEND");
    printf("auto, which is the default for the cpu%s%s%s: a group gets the first that can serve the hosts of its ranks "
           "(COMM_EXPLAIN=1 says which, and why):\n",
           set && *set ? " (but here COMM_BACKEND is '" : "", set ? set : "", set && *set ? "')" : "");
    for (comm_device d = COMM_DEVICE_CPU; (device = comm_device_name(d)); d++) {
        struct candidates c = candidates_for(device);
        if (c.count)
            printf("  %-10s", device);
        for (size_t i = 0; i < c.count; i++)
            printf("%s%s", c.list[i].name, i + 1 < c.count ? ", " : "\n");
    }
}

/* ---- JSON ---- */

static json_t *json_launcher(void)
{
    comm_launch_info launch = { .struct_bytes = sizeof launch };
    if (comm_launch_query(&launch) != COMM_OK)
        return json_pack("{ss}", "error", comm_last_error());
    return json_pack("{ss si si si si}", "name", launch.launcher, "rank", (int)launch.rank, "world_size",
                     (int)launch.world_size, "local_rank", (int)launch.local_rank, "local_world_size",
                     (int)launch.local_world_size);
}

static json_t *json_backends(void)
{
    json_t *list = json_array();
    for (size_t i = 0; i < comm_backend_count(); i++) {
        comm_backend_info b = { .struct_bytes = sizeof b };
        if (comm_backend_query(i, &b) == COMM_OK)
            json_array_append_new(list, json_pack("{ss ss? ss? ss? ss sb ss?}", "name", b.name, "version", b.version,
                                                  "devices", b.devices, "origin", b.origin, "traits", b.traits,
                                                  "usable", (int)b.usable, "reason", b.usable ? NULL : b.reason));
    }
    return list;
}

/* By the names of the devices. */
static json_t *json_auto(void)
{
    json_t *all = json_object();
    const char *device;
    for (comm_device d = COMM_DEVICE_CPU; (device = comm_device_name(d)); d++) {
        struct candidates c = candidates_for(device);
        json_t *names = json_array();
        for (size_t i = 0; i < c.count; i++)
            json_array_append_new(names, json_string(c.list[i].name));
        if (c.count)
            json_object_set(all, device, names);
        json_decref(names);
    }
    return all;
}

static json_t *json_parameters(void)
{
    json_t *list = json_array();
    for (size_t i = 0; i < comm_param_count(); i++) {
        comm_param_info p = { .struct_bytes = sizeof p };
        if (comm_param_query(i, &p) == COMM_OK)
            json_array_append_new(list, json_pack("{ss ss ss ss ss ss}", "env", p.env, "scope", p.scope, "name", p.name,
                                                  "value", *p.value ? shown_value(&p) : "", "default", p.initial,
                                                  "help", p.help));
    }
    return list;
}

static void json_line(const char *text, void *context)
{
    json_array_append_new(context, json_string(text));
}

/* By the names of the backends that have any. */
static json_t *json_routes(void)
{
    json_t *all = json_object();
    for (size_t i = 0; i < comm_backend_count(); i++) {
        comm_backend_info b = { .struct_bytes = sizeof b };
        json_t *lines = json_array();
        if (comm_backend_query(i, &b) == COMM_OK && comm_backend_routes(i, json_line, lines) == COMM_OK &&
            json_array_size(lines))
            json_object_set(all, b.name, lines);
        json_decref(lines);
    }
    return all;
}

static int print_json(void)
{
    json_t *all = json_pack("{ss ss so so so so so}", "version", comm_version(), "kernels", comm_kernels(),
                            "launcher", json_launcher(), "backends", json_backends(), "auto", json_auto(), "parameters",
                            json_parameters(), "routes", json_routes());
    int failed = !all || json_dumpf(all, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF;
    json_decref(all);
    return failed;
}

/* ---- The command line ---- */

/* A full disk or a closed pipe is a failure. */
static int finish(int failed)
{
    if (fflush(stdout) == 0 && !ferror(stdout) && !failed) /* what was flushed before may have failed */
        return 0;
    fprintf(stderr, "comm-info: the output could not be written\n");
    return 1;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        options, parse,
        NULL,    "What this libcomm is and what it found: version, launcher, backends, parameters, routes.",
        NULL,    NULL,
        NULL
    };
    struct wanted w = { 0 };
    comm_launch_info launch = { .struct_bytes = sizeof launch };
    argp_err_exit_status = 2;
    argp_program_version = comm_version();
    argp_parse(&argp, argc, argv, 0, NULL, &w);
    load_plugins();
    if (w.json)
        return finish(print_json());
    if (w.parameters || w.markdown)
        print_parameters(w.markdown);
    if (w.routes)
        print_routes();
    if (w.parameters || w.markdown || w.routes)
        return finish(0);
    printf("libcomm %s, reduction kernels: %s\n", comm_version(), comm_kernels());
    if (comm_launch_query(&launch) == COMM_OK)
        printf("launcher: %s, rank %d of %d\n", launch.launcher, (int)launch.rank, (int)launch.world_size);
    else
        printf("launcher: %s\n", comm_last_error());
    print_backends();
    print_auto();
    printf("parameters:\n");
    print_parameters(0);
    print_routes();
    return finish(0);
}
