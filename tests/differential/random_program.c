/* Random programs of calls, run by real ranks, against a sequential reference. All that is random comes from the seed,
 * which is printed; a failure prints the command that runs its program again, and --only-steps makes the program
 * shorter, because no step depends on another one. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "execute.h"
#include "gpu.h"
#include "loopback.h"
#include "ranks.h"

struct settings {
    const char *backend;
    const char *hosts; /* layouts as in RANKS_HOSTS, with commas; NULL: as it is */
    bool threads;
    uint64_t seed;
    int32_t size; /* 0: 1 to 9 in turn; with GPUs, to 8 */
    int programs, seconds, steps, limit_s;
    int first_step, last_step;
    bool shows;
};

static const struct argp_option options[] = {
    { "backend", 'b', "INIT", 0, "Backend string (cpu:tcp)", 0 },
    { "hosts", 'h', "LAYOUT,...", 0, "Pretended hosts of the ranks, a letter each: a layout after the other", 0 },
    { "threads", 't', NULL, 0, "Ranks are threads of one process", 0 },
    { "seed", 's', "N", 0, "Of the first program; the next one has the next number", 0 },
    { "size", 'n', "N", 0, "Number of ranks (1 to 9 in turn)", 0 },
    { "programs", 'p', "N", 0, "How many programs", 0 },
    { "seconds", 'S', "N", 0, "Begin no further program after so long", 0 },
    { "steps", 'k', "N", 0, "Steps of a program", 0 },
    { "limit", 'l', "S", 0, "Seconds that a program may take (120)", 0 },
    { "only-steps", 'o', "A:B", 0, "Run only steps A to B", 0 },
    { "show", 'w', NULL, 0, "Print the program too", 0 },
    { 0 },
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct settings *s = state->input;
    switch (key) {
    case 'b':
        s->backend = argument;
        return 0;
    case 'h':
        s->hosts = argument;
        return 0;
    case 't':
        s->threads = true;
        return 0;
    case 's':
        s->seed = strtoull(argument, NULL, 0);
        return 0;
    case 'n':
        s->size = atoi(argument);
        return 0;
    case 'p':
        s->programs = atoi(argument);
        return 0;
    case 'S':
        s->seconds = atoi(argument);
        return 0;
    case 'k':
        s->steps = atoi(argument);
        return 0;
    case 'l':
        s->limit_s = atoi(argument);
        return 0;
    case 'o':
        if (sscanf(argument, "%d:%d", &s->first_step, &s->last_step) != 2)
            argp_error(state, "--only-steps takes two numbers, such as 10:20");
        return 0;
    case 'w':
        s->shows = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Each number of ranks meets each layout in turn. "": none. */
static void choose_hosts(const struct settings *s, uint64_t seed, char layout[40])
{
    size_t count = 1;
    const char *at = s->hosts ? s->hosts : "";
    for (const char *c = at; *c; c++)
        count += *c == ',';
    for (size_t i = (size_t)(seed / RANKS_MAX) % count; i > 0; i--)
        at = strchr(at, ',') + 1;
    snprintf(layout, 40, "%.*s", (int)strcspn(at, ","), at);
    if (s->hosts)
        setenv("RANKS_HOSTS", layout, 1);
}

static int run_program(const struct settings *s, uint64_t seed, int32_t size)
{
    static struct program program;
    char again[400], layout[40];
    choose_hosts(s, seed, layout);
    program_make(&program, seed, size, s->steps, s->backend);
    snprintf(again, sizeof again, "random_program --backend=%s%s%s%s --seed=%llu --size=%d --steps=%d --programs=1",
             s->backend, *layout ? " --hosts=" : "", layout, s->threads ? " --threads" : "", (unsigned long long)seed,
             size, s->steps);
    if (s->shows) {
        program_print_groups(&program, stdout);
        for (int i = 0; i < program.step_count; i++) {
            program_print_step(&program, &program.steps[i], stdout);
            printf("\n");
        }
        fflush(stdout);
    }
    struct execution execution = {
        .program = &program, .first_step = s->first_step, .last_step = s->last_step, .again = again
    };
    struct ranks_options ranks = { .limit_s = s->limit_s, .threads = s->threads, .name = again };
    if (ranks_run(size, &ranks, execute, &execution) == 0)
        return 0;
    printf("FAILED: %s\n", again);
    return 1;
}

int main(int argc, char **argv)
{
    struct settings s = { .backend = "cpu:tcp",
                          .seed = (uint64_t)time(NULL) * 1000,
                          .programs = 9,
                          .seconds = 1000000,
                          .steps = 60,
                          .limit_s = 120,
                          .last_step = STEPS_MAX };
    const struct argp argp = { options, parse, NULL, "Random programs against a sequential reference.", NULL, NULL,
                               NULL };
    argp_parse(&argp, argc, argv, 0, NULL, &s);
    if (s.size < 0 || s.size > RANKS_MAX || s.steps < 1 || s.steps > STEPS_MAX) {
        fprintf(stderr, "a world has 1 to %d ranks, a program 1 to %d steps\n", RANKS_MAX, STEPS_MAX);
        return 2;
    }
    if (strstr(s.backend, "loopback") && (!s.threads || comm_backend_register(loopback_entry) != COMM_OK)) {
        fprintf(stderr, "loopback needs --threads: %s\n", comm_last_error());
        return 2;
    }
    printf("seed %llu, backend %s\n", (unsigned long long)s.seed, s.backend);
    fflush(stdout);
    time_t begin = time(NULL);
    int done = 0;
    uint64_t sizes = gpu_in(s.backend) ? 8 : RANKS_MAX;
    for (; done < s.programs && time(NULL) - begin < s.seconds; done++) {
        uint64_t seed = s.seed + (uint64_t)done;
        if (run_program(&s, seed, s.size ? s.size : 1 + (int32_t)(seed % sizes)))
            return 1;
    }
    printf("%d programs of %d steps were right\n", done, s.steps);
    return 0;
}
