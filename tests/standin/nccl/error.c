/* Texts. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "comm.h"

static pthread_mutex_t text_lock = PTHREAD_MUTEX_INITIALIZER;
static char last_text[512];

nccl_status failed(nccl_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    pthread_mutex_lock(&text_lock);
    vsnprintf(last_text, sizeof last_text, format, list);
    pthread_mutex_unlock(&text_lock);
    va_end(list);
    return status;
}

/* The text lasts until the thread asks again. */
const char *ncclGetLastError(nccl_comm comm)
{
    static _Thread_local char text[sizeof last_text];
    (void)comm;
    pthread_mutex_lock(&text_lock);
    memcpy(text, last_text, sizeof text);
    pthread_mutex_unlock(&text_lock);
    return text;
}

const char *ncclGetErrorString(nccl_status status)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "operation in progress",
                                        "timeout"};
    unsigned int count = STANDIN_NCCL_VERSION >= 23003 ? 9 : 8;
    return status < count ? texts[status] : "unknown result code";
}

nccl_status ncclGetVersion(int *version)
{
    *version = STANDIN_NCCL_VERSION;
    return standin_fault("ncclGetVersion");
}

size_t type_bytes(nccl_type type)
{
    static const unsigned char bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    unsigned int count = STANDIN_NCCL_VERSION >= 22403 ? 12 : 10;
    return type < count ? bytes[type] : 0;
}

static const char *redop_name(uint32_t redop)
{
    static const char *const names[] = {"sum", "product", "max", "min", "avg"};
    return redop < 5 ? names[redop] : redop == REDOP_PREMUL ? "premul_sum" : "no";
}

const char *describe(const struct signature *what, char *text, size_t bytes)
{
    static const char *const kinds[] = {"AllReduce", "Broadcast", "Reduce",  "AllGather", "ReduceScatter",
                                        "AlltoAll",  "Gather",    "Scatter", "Send",      "Recv"};
    static const char *const types[] = {"i8",  "u8",  "i32", "u32",  "i64",    "u64",
                                        "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"};
    if (what->kind > RECV || what->type > NCCL_F8E5M2) {
        snprintf(text, bytes, "something else");
        return text;
    }
    int length = snprintf(text, bytes, "nccl%s(%llu of %s", kinds[what->kind], (unsigned long long)what->count,
                          types[what->type]);
    if (what->kind == ALL_REDUCE || what->kind == REDUCE || what->kind == REDUCE_SCATTER)
        length += snprintf(text + length, bytes - (size_t)length, ", %s", redop_name(what->redop));
    if (what->root >= 0)
        length += snprintf(text + length, bytes - (size_t)length, ", root %d", what->root);
    snprintf(text + length, bytes - (size_t)length, ")");
    return text;
}
