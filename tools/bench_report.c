/* Rows for people (a table), for spreadsheets (CSV) and for programs (JSON). The CSV header is a promise: scripts read
 * it. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

const char *bench_bytes_text(size_t bytes, char text[24])
{
    const char *suffix = "";
    if (bytes && bytes % (1u << 30) == 0)
        bytes >>= 30, suffix = "G";
    else if (bytes && bytes % (1u << 20) == 0)
        bytes >>= 20, suffix = "M";
    else if (bytes && bytes % (1u << 10) == 0)
        bytes >>= 10, suffix = "K";
    snprintf(text, 24, "%zu%s", bytes, suffix);
    return text;
}

static void erase_progress(const struct bench_report *report)
{
    if (report->progress)
        fprintf(stderr, "\r\033[K");
}

void bench_report_begin(struct bench_report *report)
{
    report->progress = isatty(STDERR_FILENO);
    if (report->format == BENCH_CSV)
        fprintf(report->out, "op,backend,ranks,bytes,mean_us,median_us,p99_us,algbw_GBps,busbw_GBps,errors%s%s\n",
                report->distance ? ",before_ns,after_ns" : "",
                report->roofline ? ",copy_GBps,of_copy,update_GBps,of_update" : "");
    else if (report->format == BENCH_TABLE)
        fprintf(report->out, "%-14s %-10s %5s %8s %12s %12s %12s %10s %10s %7s%s%s\n", "op", "backend", "ranks",
                "bytes", "mean us", "median us", "p99 us", "alg GB/s", "bus GB/s", "errors",
                report->distance ? " before ns after ns" : "",
                report->roofline ? "  copy GB/s  of it  update GB/s  of it" : "");
    fflush(report->out);
}

void bench_report_progress(struct bench_report *report, const char *op, size_t bytes, size_t done, size_t total)
{
    char text[24];
    if (!report->progress)
        return;
    fprintf(stderr, "\r\033[K[%zu/%zu] %s %s", done + 1, total, op, bench_bytes_text(bytes, text));
    fflush(stderr);
}

/* The row's bandwidth as a share of a roof. */
static double share(const struct bench_row *row, double roof)
{
    return roof > 0 ? row->algbw / roof : 0;
}

static void print_distance(const struct bench_report *report, const struct bench_row *row)
{
    fprintf(report->out, report->format == BENCH_CSV ? ",%.1f,%.1f" : " %9.1f %8.1f", row->before_ns, row->after_ns);
}

static void print_roofline(const struct bench_report *report, const struct bench_row *row)
{
    double of_copy = share(row, row->copy), of_update = share(row, row->update);
    if (report->format == BENCH_CSV)
        fprintf(report->out, ",%.4f,%.4f,%.4f,%.4f", row->copy, of_copy, row->update, of_update);
    else
        fprintf(report->out, " %10.3f %4.0f %% %11.3f %4.0f %%", row->copy, 100 * of_copy, row->update,
                100 * of_update);
}

int bench_report_row(struct bench_report *report, const struct bench_row *row)
{
    char text[24];
    if (report->row_count == report->row_capacity) {
        size_t capacity = report->row_capacity ? 2 * report->row_capacity : 64;
        struct bench_row *rows = realloc(report->rows, capacity * sizeof *rows);
        if (!rows)
            return -1;
        report->rows = rows;
        report->row_capacity = capacity;
    }
    report->rows[report->row_count++] = *row;
    erase_progress(report);
    const char *quote = strchr(row->backend, ',') ? "\"" : "";
    if (report->format == BENCH_CSV)
        fprintf(report->out, "%s,%s%s%s,%d,%zu,%.3f,%.3f,%.3f,%.4f,%.4f,%llu", row->op, quote, row->backend, quote,
                row->ranks, row->bytes, row->mean_us, row->median_us, row->p99_us, row->algbw, row->busbw,
                (unsigned long long)row->errors);
    else if (report->format == BENCH_TABLE)
        fprintf(report->out, "%-14s %-10s %5d %8s %12.2f %12.2f %12.2f %10.3f %10.3f %7llu", row->op, row->backend,
                row->ranks, bench_bytes_text(row->bytes, text), row->mean_us, row->median_us, row->p99_us, row->algbw,
                row->busbw, (unsigned long long)row->errors);
    if (report->distance && report->format != BENCH_JSON)
        print_distance(report, row);
    if (report->roofline && report->format != BENCH_JSON)
        print_roofline(report, row);
    if (report->format != BENCH_JSON)
        fputc('\n', report->out);
    fflush(report->out); /* a row is news: some take seconds */
    return 0;
}

static json_t *row_json(const struct bench_report *report, const struct bench_row *row)
{
    json_t *told = json_pack("{s:s, s:s, s:i, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "op", row->op,
                             "backend", row->backend, "ranks", (int)row->ranks, "bytes", (json_int_t)row->bytes,
                             "iterations", (json_int_t)row->iterations, "mean_us", row->mean_us, "least_us",
                             row->least_us, "most_us", row->most_us, "median_us", row->median_us, "p99_us",
                             row->p99_us, "algbw_GBps", row->algbw, "busbw_GBps", row->busbw, "errors",
                             (json_int_t)row->errors);
    if (told && report->distance)
        json_object_update_new(told, json_pack("{s:f, s:f}", "before_ns", row->before_ns, "after_ns", row->after_ns));
    if (told && report->roofline)
        json_object_update_new(told, json_pack("{s:f, s:f, s:f, s:f}", "copy_GBps", row->copy, "of_copy",
                                               share(row, row->copy), "update_GBps", row->update, "of_update",
                                               share(row, row->update)));
    return told;
}

static int print_json(struct bench_report *report)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < report->row_count; i++)
        json_array_append_new(rows, row_json(report, &report->rows[i]));
    json_t *all = json_pack("{s:s, s:s, s:s, s:o}", "version", comm_version(), "dtype", report->dtype, "redop",
                            report->redop, "rows", rows);
    int failed = !all || json_dumpf(all, report->out, JSON_INDENT(1) | JSON_REAL_PRECISION(8)) != 0;
    json_decref(all);
    fputc('\n', report->out);
    return failed ? -1 : 0;
}

int bench_report_end(struct bench_report *report)
{
    erase_progress(report);
    int failed = report->format == BENCH_JSON && print_json(report) != 0;
    failed |= fflush(report->out) != 0 || ferror(report->out);
    return failed ? -1 : 0;
}
