#include "host_cores.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { DIGIT_BITS = 4, DIGITS = CPU_SETSIZE / DIGIT_BITS };
_Static_assert(DIGITS + 1 <= HOST_CORES_TEXT, "a digit for each four cores");

static int digit_of(const cpu_set_t *cores, int place)
{
    int digit = 0;
    for (int i = 0; i < DIGIT_BITS; i++)
        digit |= (CPU_ISSET(place * DIGIT_BITS + i, cores) != 0) << i;
    return digit;
}

/* The kernel refuses if it counts more cores than a cpu_set_t holds. */
void comm__host_cores_mine(char text[HOST_CORES_TEXT])
{
    cpu_set_t mine;
    int place = DIGITS - 1;
    if (sched_getaffinity(0, sizeof mine, &mine) != 0)
        CPU_ZERO(&mine);
    while (place > 0 && digit_of(&mine, place) == 0)
        place--;
    for (; place >= 0; place--)
        *text++ = "0123456789abcdef"[digit_of(&mine, place)];
    *text = '\0';
}

/* Add a rank's cores to those of its host; 0 if it does not know them. Another program may have written the text. */
static int add(const char *mask, cpu_set_t *cores)
{
    static const char digits[] = "0123456789abcdef";
    size_t count = mask ? strspn(mask, digits) : 0;
    int known = 0;
    if (count > DIGITS)
        return 0;
    for (size_t i = 0; i < count; i++) {
        int digit = (int)(strchr(digits, mask[i]) - digits);
        known |= digit;
        for (int bit = 0; bit < DIGIT_BITS; bit++)
            if (digit >> bit & 1)
                CPU_SET((count - 1 - i) * DIGIT_BITS + (size_t)bit, cores);
    }
    return known != 0;
}

struct host_cores {
    cpu_set_t cores;
    int unknown;
};

comm_status comm__host_cores_write(const int32_t *hosts, const char *const *masks, int32_t size, char **ret_text)
{
    size_t bytes = 0;
    int32_t count = 0;
    struct host_cores *all = calloc((size_t)size, sizeof *all);
    FILE *text = all ? open_memstream(ret_text, &bytes) : NULL;
    for (int32_t r = 0; text && r < size; r++) {
        struct host_cores *h = &all[hosts[r]];
        h->unknown |= !add(masks[r], &h->cores);
        count = hosts[r] < count ? count : hosts[r] + 1;
    }
    for (int32_t h = 0; text && h < count; h++)
        fprintf(text, "%d,", all[h].unknown ? 0 : CPU_COUNT(&all[h].cores));
    free(all);
    if (text && fclose(text) == 0)
        return COMM_OK;
    return comm__fail(COMM_ERR_NO_MEMORY, "the cores of %d ranks", size);
}

int32_t comm__host_cores_read(const char *text, int32_t host)
{
    char *end;
    for (; host > 0 && text; host--) {
        text = strchr(text, ',');
        if (text)
            text++;
    }
    long cores = text ? strtol(text, &end, 10) : 0;
    return cores > 0 && cores <= CPU_SETSIZE && *end == ',' ? (int32_t)cores : 0;
}
