/* A picture of the rows, drawn by gnuplot: the script and the data go through a pipe, so no files are left about. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

static const char *terminal_for(const char *path)
{
    const char *dot = strrchr(path, '.');
    if (dot && strcasecmp(dot, ".svg") == 0)
        return "svg size 1200,500 background 'white'";
    if (dot && strcasecmp(dot, ".pdf") == 0)
        return "pdfcairo size 24cm,10cm";
    if (dot && strcasecmp(dot, ".png") == 0)
        return "pngcairo size 1200,500";
    return NULL;
}

/* In gnuplot's single quotes only the quote itself is special: it is doubled. */
static void print_quoted(FILE *out, const char *text)
{
    fputc('\'', out);
    for (; *text; text++) {
        if (*text == '\'')
            fputc('\'', out);
        fputc(*text, out);
    }
    fputc('\'', out);
}

/* The rows of one operation follow each other: where does the next one begin? */
static size_t end_of_op(const struct bench_row *rows, size_t count, size_t begin)
{
    size_t end = begin;
    while (end < count && rows[end].op == rows[begin].op)
        end++;
    return end;
}

/* Each operation as a named block of data: bytes, mean, p99, bus bandwidth. */
static void print_blocks(FILE *out, const struct bench_row *rows, size_t count)
{
    for (size_t begin = 0, end; begin < count; begin = end) {
        end = end_of_op(rows, count, begin);
        fprintf(out, "$%s%zu << END_OF_ROWS\n", rows[begin].op, begin);
        for (size_t i = begin; i < end; i++)
            fprintf(out, "%zu %.6f %.6f %.6f\n", rows[i].bytes, rows[i].mean_us, rows[i].p99_us, rows[i].busbw);
        fprintf(out, "END_OF_ROWS\n");
    }
}

static void print_plot(FILE *out, const struct bench_row *rows, size_t count, int column)
{
    const char *separator = "plot ";
    for (size_t begin = 0, end; begin < count; begin = end, separator = ", ") {
        end = end_of_op(rows, count, begin);
        fprintf(out, "%s$%s%zu using 1:%d with linespoints pointtype 7 title '%s' noenhanced", separator,
                rows[begin].op, begin, column, rows[begin].op);
    }
    fputc('\n', out);
}

int bench_plot_possible(const char *path, char *error, size_t capacity)
{
    if (!terminal_for(path)) {
        snprintf(error, capacity, "%s: a plot's name must end with .png, .svg or .pdf", path);
        return -1;
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), made = fd >= 0;
    if (!made && errno == EEXIST)
        fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        snprintf(error, capacity, "the plot cannot be written to %s: %s", path, strerror(errno));
        return -1;
    }
    close(fd);
    if (made)
        unlink(path); /* a run that fails should leave nothing */
    return 0;
}

int bench_plot(const char *path, const struct bench_row *rows, size_t count, char *error, size_t capacity)
{
    const char *terminal = terminal_for(path);
    if (!terminal || count == 0)
        return 0;
    /* Without gnuplot the pipe breaks: that must give an error message, not end this program by SIGPIPE. */
    void (*old)(int) = signal(SIGPIPE, SIG_IGN);
    FILE *out = popen("exec gnuplot >/dev/null 2>&1", "w");
    if (!out) {
        snprintf(error, capacity, "cannot start gnuplot: %s", strerror(errno));
        signal(SIGPIPE, old);
        return -1;
    }
    fprintf(out, "set terminal %s\nset output ", terminal);
    print_quoted(out, path);
    fprintf(out, "\n");
    print_blocks(out, rows, count);
    fprintf(out, "set multiplot layout 1,2 title '%s, %d ranks' noenhanced\n", rows[0].backend, rows[0].ranks);
    fprintf(out, "set grid\nset key top left\nset logscale x 2\nset format x '%%.0b%%B'\nset xlabel 'bytes'\n");
    fprintf(out, "set logscale y\nset ylabel 'mean time, us'\n");
    print_plot(out, rows, count, 2);
    fprintf(out, "unset logscale y\nset yrange [0:*]\nset ylabel 'bus bandwidth, GB/s'\n");
    print_plot(out, rows, count, 4);
    fprintf(out, "unset multiplot\nunset output\n");
    int result = pclose(out);
    signal(SIGPIPE, old);
    if (WIFEXITED(result) && WEXITSTATUS(result) == 127)
        snprintf(error, capacity, "%s is not drawn: gnuplot is not installed (Debian: apt-get install gnuplot-nox)",
                 path);
    else if (result != 0)
        snprintf(error, capacity, "%s is not drawn: gnuplot ended with status %d", path,
                 WIFEXITED(result) ? WEXITSTATUS(result) : 128 + WTERMSIG(result));
    return result ? -1 : 0;
}
