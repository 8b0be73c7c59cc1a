/* Findings on their way from a rank to their reader: a rank writes one line per fact, in one write(2); the parent sorts
 * and explains them. Under a launcher a rank has no parent and explains them itself. */
#include <jansson.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { EQUAL_MAX = 2, LINES_MAX = 600, SHOWN_MAX = 6, WRITTEN_MAX = 25 };

const struct rule_text rule_texts[RULE_COUNT] = {
#define RULE(name, section, words) [RULE_##name] = { #name, section, words },
#include "rules.def"
#undef RULE
};

/* ---- In a rank ---- */

static int report_fd = -1;

void report_to(int fd)
{
    report_fd = fd;
}

static void explain(const char *rule, int rank, const char *text, const struct check_case *c, int size, uint64_t seed);

static void write_line(char kind, int rank, const char *rule, const char *text)
{
    char line[CHECK_TEXT_BYTES + 200];
    int used = snprintf(line, sizeof line, "%c\t%lld\t%d\t%s\t%s", kind, (long long)check_now_ns(), rank, rule, text);
    if (used >= (int)sizeof line - 1)
        used = (int)sizeof line - 2;
    for (int i = (int)strcspn(line, "\t"), tabs = 0; i < used; i++)
        if (line[i] == '\n' || (line[i] == '\t' && ++tabs > 4))
            line[i] = ' ';
    line[used++] = '\n';
    if (report_fd >= 0 && write(report_fd, line, (size_t)used) != used)
        _exit(3);
    if (report_fd < 0 && kind == 'F')
        explain(rule, rank, text, self_case(), self_size(), settings.seed);
    if (report_fd < 0 && kind == 'N' && rank == 0)
        printf("  note: %s\n", text);
}

/* Equal ones, but for their numbers, are told a few times only. */
static bool is_new(enum rule rule)
{
    static int told[RULE_COUNT];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    bool fresh = told[rule]++ < EQUAL_MAX;
    pthread_mutex_unlock(&lock);
    return fresh;
}

static int findings_of_rank;

static void vfinding(enum rule rule, const char *format, va_list arguments)
{
    char text[CHECK_TEXT_BYTES];
    vsnprintf(text, sizeof text, format, arguments);
    __atomic_fetch_add(&findings_of_rank, 1, __ATOMIC_RELAXED);
    if (is_new(rule))
        write_line('F', self_rank(), rule_texts[rule].name, text);
}

void finding(enum rule rule, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfinding(rule, format, arguments);
    va_end(arguments);
}

void finding_ends(enum rule rule, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (rule == RULE_result) /* its cause may show a moment later */
        nanosleep(&(const struct timespec){ 0, 200000000 }, NULL);
    vfinding(rule, format, arguments);
    va_end(arguments);
    fflush(NULL);
    _exit(1);
}

void note(const char *format, ...)
{
    char text[CHECK_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    write_line('N', self_rank(), "", text);
}

void fact(const char *key, const char *format, ...)
{
    char text[CHECK_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    write_line('T', self_rank(), key, text);
}

jmp_buf *skip_to;

void skip(const char *format, ...)
{
    char text[CHECK_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (skip_to)
        longjmp(*skip_to, 1);
    write_line('S', self_rank(), "", text);
    fflush(NULL);
    _exit(0);
}

void report_line(FILE *lines, int rank, char kind, const char *rule, const char *format, ...)
{
    char text[CHECK_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fseek(lines, 0, SEEK_END);
    fprintf(lines, "%c\t%lld\t%d\t%s\t%s\n", kind, (long long)check_now_ns(), rank, rule, text);
}

/* ---- In the parent ---- */

struct line {
    char kind, rule[40];
    long long ns;
    int rank;
    char text[CHECK_TEXT_BYTES];
};

static json_t *all_findings, *all_cases, *all_notes, *table;
static int total;

static void begin(void)
{
    if (all_findings)
        return;
    all_findings = json_array();
    all_cases = json_array();
    all_notes = json_array();
    table = json_object();
}

/* The command that runs this case only. */
static void again_text(char *text, size_t capacity, const struct check_case *c, int size, uint64_t seed)
{
    char how[60] = "--as-rank";
    if (!settings.as_rank)
        snprintf(how, sizeof how, "-n %d%s", size, settings.threads ? " --threads" : "");
    snprintf(text, capacity, "comm-backend-check %s --seed %llu --only %s.%s '%s'%s", how, (unsigned long long)seed,
             c->section, c->name, settings.backend, settings.as_rank ? " on as many ranks of the launcher" : "");
}

static const struct rule_text *text_of_rule(const char *name)
{
    for (int r = 0; r < RULE_COUNT; r++)
        if (strcmp(rule_texts[r].name, name) == 0)
            return &rule_texts[r];
    return &rule_texts[RULE_crash];
}

static void explain(const char *rule, int rank, const char *text, const struct check_case *c, int size, uint64_t seed)
{
    const struct rule_text *r = text_of_rule(rule);
    char again[500];
    begin();
    again_text(again, sizeof again, c, size, seed);
    total++;
    json_array_append_new(all_findings,
                          json_pack("{ss ss ss ss ss si si sI ss}", "rule", r->name, "section", r->section, "words",
                                    r->words, "text", text, "case", c->name, "ranks", size, "rank", rank, "seed",
                                    (json_int_t)seed, "again", again));
    if (settings.json)
        return;
    printf("\nFOUND in %s.%s, rank %d of %d: %s\n", c->section, c->name, rank, size, text);
    printf("    rule '%s', backend.h, section %s: \"%s\"\n", r->name, r->section, r->words);
    printf("    again: %s\n", again);
    fflush(stdout);
}

/* What a rank sees when another one has broken a rule is not told beside it. */
static bool is_consequence(const char *rule)
{
    return strcmp(rule, "result") == 0 || strcmp(rule, "complete_always") == 0 || strcmp(rule, "deadline") == 0;
}

static int read_lines(FILE *file, struct line *lines)
{
    static char text[CHECK_TEXT_BYTES + 300];
    int count = 0;
    rewind(file);
    while (count < LINES_MAX && fgets(text, sizeof text, file)) {
        struct line *l = &lines[count];
        char *at = strchr(text, '\n');
        if (at)
            *at = '\0';
        const char *fields[4] = { NULL };
        char *rest = text;
        for (int f = 0; f < 4 && rest; f++)
            fields[f] = strsep(&rest, "\t");
        if (!rest || !*fields[0])
            continue;
        l->kind = *fields[0];
        l->ns = atoll(fields[1]);
        l->rank = atoi(fields[2]);
        snprintf(l->rule, sizeof l->rule, "%s", fields[3]);
        snprintf(l->text, sizeof l->text, "%s", rest);
        count++;
    }
    return count;
}

static int by_time(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    return x->ns < y->ns ? -1 : x->ns > y->ns;
}

static void tell_note(const char *text)
{
    for (size_t i = 0; i < json_array_size(all_notes); i++)
        if (strcmp(json_string_value(json_array_get(all_notes, i)), text) == 0)
            return;
    json_array_append_new(all_notes, json_string(text));
    if (!settings.json)
        printf("  note: %s\n", text);
}

/* What the ranks were doing, if it hung, and the end of what they have written themselves. */
static void tell_stories(const struct line *lines, int count)
{
    int left[CHECK_RANKS_MAX] = { 0 };
    for (int i = 0; i < count; i++)
        left[lines[i].rank % CHECK_RANKS_MAX] += lines[i].kind == 'P';
    for (int i = 0; i < count; i++) {
        if (lines[i].kind == 'H')
            printf("    rank %d: %s\n", lines[i].rank, lines[i].text);
        if (lines[i].kind == 'P' && left[lines[i].rank % CHECK_RANKS_MAX]-- <= WRITTEN_MAX)
            printf("    rank %d has written: %s\n", lines[i].rank, lines[i].text);
    }
}

int report_take(FILE *file, const struct check_case *c, int size, uint64_t seed)
{
    struct line *lines = calloc(LINES_MAX, sizeof *lines);
    int count = read_lines(file, lines), findings = 0, direct = 0;
    begin();
    qsort(lines, (size_t)count, sizeof *lines, by_time);
    for (int i = 0; i < count; i++) {
        if (lines[i].kind == 'T' && json_object_set_new(table, lines[i].rule, json_string(lines[i].text)) == 0 &&
            !settings.json)
            printf("  %-18s %s\n", lines[i].rule, lines[i].text);
        if (lines[i].kind == 'N')
            tell_note(lines[i].text);
        direct += lines[i].kind == 'F' && !is_consequence(lines[i].rule);
    }
    for (int i = 0; i < count; i++) {
        bool told = false;
        for (int k = 0; k < i && !told; k++)
            told = lines[k].kind == 'F' && strcmp(lines[k].rule, lines[i].rule) == 0;
        if (lines[i].kind != 'F' || told || (direct && is_consequence(lines[i].rule)) || findings == SHOWN_MAX)
            continue;
        explain(lines[i].rule, lines[i].rank, lines[i].text, c, size, seed);
        findings++;
    }
    if (findings && !settings.json)
        tell_stories(lines, count);
    free(lines);
    return findings;
}

void report_case(const struct check_case *c, int size, int findings, const char *skipped)
{
    const char *how = findings ? "FOUND" : skipped ? "skipped" : "ok";
    begin();
    json_array_append_new(all_cases, json_pack("{ss ss si ss ss?}", "section", c->section, "case", c->name, "ranks",
                                               size, "outcome", how, "reason", skipped));
    if (settings.json)
        return;
    printf("  %-12s %-28s %d rank%s  %s%s%s\n", c->section, c->name, size, size == 1 ? " " : "s", how,
           skipped ? ": " : "", skipped ? skipped : "");
    fflush(stdout);
}

int report_count(void)
{
    return total;
}

int report_end(void)
{
    begin();
    if (settings.as_rank && self_rank() != 0 && total == 0)
        return 0; /* rank 0 says it */
    if (settings.json) {
        json_t *all = json_pack("{ss ss sI so so so so}", "version", comm_version(), "backend", settings.backend,
                                "seed", (json_int_t)settings.seed, "table", table, "cases", all_cases, "notes",
                                all_notes, "findings", all_findings);
        if (json_dumpf(all, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF)
            return 2;
        json_decref(all);
    } else if (settings.as_rank && self_rank() != 0) {
        printf("\n%d finding%s on rank %d\n", total, total == 1 ? "" : "s", self_rank());
    } else {
        printf("\n%d finding%s, %zu case%s\n", total, total == 1 ? "" : "s", json_array_size(all_cases),
               json_array_size(all_cases) == 1 ? "" : "s");
    }
    return fflush(stdout) != 0 ? 2 : total > 0;
}
