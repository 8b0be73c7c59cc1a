/* comm-backend-check: does a backend keep the rules of comm/backend.h? tools/check/ has the parts. */
#include <argp.h>
#include <comm/comm.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check/check.h"

struct settings settings = { .patience_s = 10, .seconds = 0 };

enum { KEY_SEED = 256, KEY_SECONDS, KEY_ONLY, KEY_LIST, KEY_JSON, KEY_AS_RANK, KEY_THREADS, KEY_PATIENCE };

static const struct argp_option options[] = {
    { "ranks", 'n', "N", 0, "Number of ranks (1 to 4 in turn)", 0 },
    { "seed", KEY_SEED, "N", 0, "Of all that is drawn (of the clock); it is printed", 0 },
    { "seconds", KEY_SECONDS, "S", 0, "How long each random case goes on (one round)", 0 },
    { "only", KEY_ONLY, "SECTION[.CASE]", 0, "Run only these", 0 },
    { "list", KEY_LIST, NULL, 0, "List the cases and the rules, and run nothing", 0 },
    { "threads", KEY_THREADS, NULL, 0, "The ranks are threads of one process", 0 },
    { "as-rank", KEY_AS_RANK, NULL, 0, "This process is one rank of those that a launcher has started", 0 },
    { "patience", KEY_PATIENCE, "S", 0, "A case that takes longer is told as hanging (10)", 0 },
    { "json", KEY_JSON, NULL, 0, "One JSON object in place of text", 0 },
    { 0 },
};

static double number(const char *text, double least, struct argp_state *state)
{
    char *end;
    double value = strtod(text, &end);
    if (*end || end == text || value < least)
        argp_error(state, "'%s' is not a number of at least %g", text, least);
    return value;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct settings *s = state->input;
    switch (key) {
    case 'n': s->ranks = (int)number(argument, 1, state); return 0;
    case KEY_SEED: s->seed = (uint64_t)number(argument, 0, state); return 0;
    case KEY_SECONDS: s->seconds = number(argument, 0, state); return 0;
    case KEY_ONLY: s->only = argument; return 0;
    case KEY_LIST: s->lists = true; return 0;
    case KEY_THREADS: s->threads = true; return 0;
    case KEY_AS_RANK: s->as_rank = true; return 0;
    case KEY_PATIENCE: s->patience_s = number(argument, 0.5, state); return 0;
    case KEY_JSON: s->json = true; return 0;
    case ARGP_KEY_ARG:
        if (s->backend)
            argp_error(state, "one backend at a time, not '%s' too", argument);
        s->backend = argument;
        return 0;
    case ARGP_KEY_END:
        if (!s->backend && !s->lists)
            argp_error(state, "which backend? give its name, 'cpu:NAME?option=value', or the path of its .so");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* An option of the backend string becomes the variable that stands for it: options of a backend that another one stands
 * on are looked up in the environment only. */
static void set_option(const char *name, char *option)
{
    char variable[400];
    char *value = strchr(option, '=');
    if (!value) {
        fprintf(stderr, "comm-backend-check: '%s' is no option=value\n", option);
        exit(2);
    }
    *value++ = '\0';
    snprintf(variable, sizeof variable, "COMM_%s_%s", name, option);
    for (char *at = variable; *at; at++)
        *at = *at == '-' ? '_' : (char)toupper((unsigned char)*at);
    setenv(variable, value, 1);
}

/* "cpu:NAME?a=b&c=d", "NAME", or a path. */
static void take_backend(struct settings *s)
{
    comm_device device;
    const char *text = s->backend ? s->backend : "", *colon = strchr(text, ':');
    char prefix[40] = "";
    if (colon && !memchr(text, '/', (size_t)(colon - text)) && colon - text < (ptrdiff_t)sizeof prefix) {
        memcpy(prefix, text, (size_t)(colon - text));
        if (comm_device_parse(prefix, &device) == COMM_OK) {
            if (device != COMM_DEVICE_CPU) {
                fprintf(stderr, "comm-backend-check: it checks backends for memory of the CPU, not of %s\n", prefix);
                exit(2);
            }
            text = colon + 1;
        }
    }
    size_t length = strcspn(text, "?");
    snprintf(s->name, sizeof s->name, "%.*s", (int)length, text);
    char *given = text[length] ? strdup(text + length + 1) : NULL;
    for (char *rest = given, *option; rest && (option = strsep(&rest, "&")) != NULL;)
        set_option(s->name, option);
    free(given);
}

static int list(void)
{
    for (size_t i = 0; i < check_case_count; i++)
        printf("%-10s %-18s %d to %d ranks  %s\n", check_cases[i].section, check_cases[i].name, check_cases[i].least,
               check_cases[i].most, check_cases[i].what);
    printf("\nrules of comm/backend.h:\n");
    for (int r = 0; r < RULE_COUNT; r++)
        printf("%-18s section %s: \"%s\"\n", rule_texts[r].name, rule_texts[r].section, rule_texts[r].words);
    return 0;
}

static bool is_known_case(const char *only)
{
    char full[100];
    for (size_t i = 0; i < check_case_count; i++) {
        snprintf(full, sizeof full, "%s.%s", check_cases[i].section, check_cases[i].name);
        if (strcmp(only, full) == 0 || strcmp(only, check_cases[i].section) == 0)
            return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        options, parse, "BACKEND",
        "Does a backend keep the rules of comm/backend.h? BACKEND is a name, a backend string such as "
        "'cpu:NAME?option=value', or the path of a plugin. Ranks are processes that are started here, or, with "
        "--as-rank, by a launcher: mpirun -n 4 comm-backend-check --as-rank --seed 1 NAME\v"
        "Exit status: 0 if nothing was found, 1 if something was, 2 if it could not be looked for.",
        NULL, NULL, NULL
    };
    argp_err_exit_status = 2;
    argp_program_version = comm_version();
    settings.seed = (uint64_t)time(NULL) % 1000000;
    argp_parse(&argp, argc, argv, 0, NULL, &settings);
    if (settings.lists)
        return list();
    if (settings.ranks > CHECK_RANKS_MAX || (settings.only && !is_known_case(settings.only))) {
        fprintf(stderr, "comm-backend-check: %s; --list tells what there is, and a case has at most %d ranks\n",
                settings.only && !is_known_case(settings.only) ? "there is no such case" : "too many ranks",
                CHECK_RANKS_MAX);
        return 2;
    }
    take_backend(&settings);
    if (!settings.json && !settings.as_rank)
        printf("comm-backend-check %s: '%s', seed %llu\n", comm_version(), settings.backend,
               (unsigned long long)settings.seed);
    return run_cases();
}
