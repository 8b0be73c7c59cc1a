/* Plays the files of a folder to a fuzz target, whole and cut off at every byte: replay FOLDER. See fuzz.h. */
#include <dirent.h>

#include "fuzz.h"

enum { FILE_BYTES_MAX = 64 << 10 };

static void play(const char *path)
{
    static uint8_t data[FILE_BYTES_MAX];
    FILE *file = fopen(path, "rb");
    FUZZ_CHECK(file != NULL);
    size_t bytes = fread(data, 1, sizeof data, file);
    fclose(file);
    for (size_t n = bytes < 2048 ? 0 : bytes; n <= bytes; n++) {
        uint8_t *copy = malloc(n ? n : 1);
        FUZZ_CHECK(copy != NULL);
        if (n)
            memcpy(copy, data, n);
        LLVMFuzzerTestOneInput(copy, n);
        free(copy);
    }
}

int main(int argc, char **argv)
{
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    int count = 0;
    if (!folder) {
        fprintf(stderr, "usage: replay FOLDER\n");
        return 2;
    }
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        fprintf(stderr, "%s\n", entry->d_name); /* the last one, should it crash */
        play(path);
        count++;
    }
    closedir(folder);
    printf("%d inputs\n", count);
    return count == 0; /* an empty corpus tests nothing */
}
