/* comm-info: what this libcomm is, which backends it found and why not others, its parameters and its routes. */
#include <argp.h>
#include <stdio.h>
#include <string.h>

#include <comm/comm.h>

#include "reduce.h"
#include "select.h"

enum { KEY_PARAMETERS = 256, KEY_ROUTES, KEY_MARKDOWN };

struct wanted {
    int parameters, routes, markdown;
};

static const struct argp_option options[] = {
    { "parameters", KEY_PARAMETERS, NULL, 0, "Only the parameters, with help", 0 },
    { "markdown", KEY_MARKDOWN, NULL, 0, "The parameters as docs/environment.md has them", 0 },
    { "routes", KEY_ROUTES, NULL, 0, "Only the algorithms of tcp, and which is used when", 0 },
    { 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct wanted *w = state->input;
    (void)arg;
    switch (key) {
    case KEY_PARAMETERS: w->parameters = 1; return 0;
    case KEY_ROUTES: w->routes = 1; return 0;
    case KEY_MARKDOWN: w->markdown = 1; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static void print_parameters(int markdown)
{
    if (markdown)
        printf("# Parameters\n\nMade by `comm-info --markdown`. An option in the init string (`cpu:tcp?lanes=8`) wins over the "
               "variable.\n\n| variable | option | default | what it does |\n|---|---|---|---|\n");
    for (size_t i = 0; i < comm_param_count(); i++) {
        comm_param_info p = { .struct_bytes = sizeof p };
        if (comm_param_query(i, &p) != COMM_OK)
            continue;
        if (markdown)
            printf("| `%s` | %s `%s` | `%s` | %s |\n", p.env, p.scope, p.name, p.initial, p.help);
        else
            printf("  %-24s %s.%-16s = %-12s %s\n", p.env, p.scope, p.name, *p.value ? p.value : "(empty)", p.help);
    }
}

static void print_routes(void)
{
    const struct algo *algo;
    const char *rule;
    printf("algorithms of tcp:\n");
    for (size_t i = 0; (algo = select_algo_at(i)); i++)
        printf("  %-22s %s\n", algo->name, algo->help);
    printf("rules, first match wins (COMM_TCP_ALGO goes before them):\n");
    for (size_t i = 0; (rule = select_rule_at(i)); i++)
        printf("  %s\n", rule);
}

static void print_backends(void)
{
    printf("backends:\n");
    for (size_t i = 0; i < comm_backend_count(); i++) {
        comm_backend_info b = { .struct_bytes = sizeof b };
        if (comm_backend_query(i, &b) == COMM_OK)
            printf("  %-10s %-8s devices %-6s %s%s%s\n", b.name, b.version ? b.version : "", b.devices ? b.devices : "",
                   b.origin ? b.origin : "", b.usable ? "" : "; cannot be used: ", b.usable || !b.reason ? "" : b.reason);
    }
}

int main(int argc, char **argv)
{
    static const struct argp argp = { options, parse, NULL,
                                      "What this libcomm is and what it found: version, launcher, backends, parameters, routes.",
                                      NULL, NULL, NULL };
    struct wanted w = { 0 };
    comm_launch_info launch = { .struct_bytes = sizeof launch };
    argp_parse(&argp, argc, argv, 0, NULL, &w);
    if (w.parameters || w.markdown) {
        print_parameters(w.markdown);
        return 0;
    }
    if (w.routes) {
        print_routes();
        return 0;
    }
    printf("libcomm %s, reduction kernels: %s\n", comm_version(), comm__reduce_variant());
    if (comm_launch_query(&launch) == COMM_OK)
        printf("launcher: %s, rank %d of %d\n", launch.launcher, (int)launch.rank, (int)launch.world_size);
    else
        printf("launcher: %s\n", comm_last_error());
    print_backends();
    printf("parameters:\n");
    print_parameters(0);
    print_routes();
    return 0;
}
