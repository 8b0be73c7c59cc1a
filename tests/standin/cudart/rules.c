/* Violations, and what the environment asks for: faults, delays, the list of leaks. */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cudart.h"

enum { EXIT_VIOLATION = 97, CALLS_MAX = 128, KINDS_MAX = 16, LOOK_NS = 5000000 };

static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;
static struct counted {
    const char *name;
    long count;
} calls[CALLS_MAX], kinds[KINDS_MAX];
static atomic_uint salt, numbers;

long parameter(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 10) : otherwise;
}

void standin_rule(const char *cure, const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "standin: RULE: %s; cure: %s\n", text, cure);
    const char *rules = getenv("STANDIN_RULES");
    if (!rules || strcmp(rules, "log"))
        _exit(EXIT_VIOLATION);
}

/* The entry of a name, which is a literal. */
static struct counted *counted_find(struct counted *table, int capacity, const char *name)
{
    for (int i = 0; i < capacity; i++) {
        if (!table[i].name)
            table[i].name = name;
        if (!strcmp(table[i].name, name))
            return &table[i];
    }
    fprintf(stderr, "standin: more than %d names of calls\n", capacity);
    abort();
}

_Thread_local bool in_host_call;
static atomic_bool has_forked;

/* The locks are free in the child, which says which rule it breaks rather than wait for a thread that it has not. */
static void before_fork(void)
{
    pthread_mutex_lock(&lock);
    pthread_mutex_lock(&fault_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&fault_lock);
    pthread_mutex_unlock(&lock);
}

static void forked(void)
{
    atomic_store(&has_forked, streams != NULL);
    after_fork();
}

static void __attribute__((constructor)) watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, forked);
}

/* STANDIN_FAIL is "call:nth:status", several with commas. */
static unsigned int fault_of(const char *list, const char *call, long nth)
{
    size_t length = strlen(call);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        long wanted;
        unsigned int status;
        if (!strncmp(at, call, length) && at[length] == ':' && sscanf(at + length, ":%ld:%u", &wanted, &status) == 2 &&
            wanted == nth)
            return status;
    }
    return 0;
}

unsigned int standin_fault(const char *call)
{
    const char *list = getenv("STANDIN_FAIL");
    if (in_host_call)
        standin_rule("let another thread make the call", "%s in a function of cudaLaunchHostFunc", call);
    if (atomic_load(&has_forked))
        standin_rule("fork before the first call of CUDA", "%s in the child of a process that used CUDA before", call);
    if (!list)
        return 0;
    pthread_mutex_lock(&fault_lock);
    long nth = ++counted_find(calls, CALLS_MAX, call)->count;
    pthread_mutex_unlock(&fault_lock);
    return fault_of(list, call, nth);
}

void standin_salt(uint32_t value)
{
    unsigned int none = 0;
    atomic_compare_exchange_strong(&salt, &none, value);
}

uint32_t standin_random(uint32_t limit)
{
    static atomic_long seed = -1;
    if (atomic_load(&seed) == -1)
        atomic_store(&seed, parameter("STANDIN_SEED", 0));
    if (!atomic_load(&seed) || !limit)
        return 0;
    uint64_t x =
        (uint64_t)atomic_load(&seed) << 32 ^ (uint64_t)atomic_load(&salt) << 20 ^ atomic_fetch_add(&numbers, 1);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ x >> 31) >> 8) % limit;
}

void standin_delay(void)
{
    static atomic_long most_us = -1;
    long most = atomic_load(&most_us);
    if (most == -1) {
        most = parameter("STANDIN_DELAY_US", parameter("STANDIN_SEED", 0) ? 300 : 0);
        atomic_store(&most_us, most);
    }
    long wait_us = !most                           ? 0
                   : !parameter("STANDIN_SEED", 0) ? most
                   : standin_random(3)             ? 0
                                                   : standin_random((uint32_t)most);
    struct timespec time = {wait_us / 1000000, wait_us % 1000000 * 1000};
    if (wait_us)
        nanosleep(&time, NULL);
}

static pthread_mutex_t stop_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t goes_on = PTHREAD_COND_INITIALIZER;
static const char *stops; /* a literal; NULL: nothing */
static int stopped;

void standin_stop(const char *what)
{
    pthread_mutex_lock(&stop_lock);
    stops = what;
    stopped = 0;
    pthread_mutex_unlock(&stop_lock);
}

void standin_go_on(void)
{
    pthread_mutex_lock(&stop_lock);
    stops = NULL;
    pthread_cond_broadcast(&goes_on);
    pthread_mutex_unlock(&stop_lock);
}

int standin_stopped(void)
{
    pthread_mutex_lock(&stop_lock);
    int count = stopped;
    pthread_mutex_unlock(&stop_lock);
    return count;
}

void standin_pass(const char *what, atomic_bool *aborted)
{
    pthread_mutex_lock(&stop_lock);
    if (stops && !strcmp(stops, what))
        stopped++;
    while (stops && !strcmp(stops, what) && !atomic_load(aborted)) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&goes_on, &stop_lock, &until);
    }
    pthread_mutex_unlock(&stop_lock);
}

void standin_count(const char *kind, int change)
{
    pthread_mutex_lock(&fault_lock);
    counted_find(kinds, KINDS_MAX, kind)->count += change;
    pthread_mutex_unlock(&fault_lock);
}

static void __attribute__((destructor)) report_leaks(void)
{
    if (!parameter("STANDIN_LEAKS", 0))
        return;
    for (int i = 0; i < KINDS_MAX && kinds[i].name; i++)
        if (kinds[i].count)
            fprintf(stderr, "standin: LEAK: %ld %s\n", kinds[i].count, kinds[i].name);
}
