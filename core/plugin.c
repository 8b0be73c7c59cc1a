/* Backends in shared objects: where they are looked for, and how they are opened. They are never closed again. */
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "registry.h"

#define PREFIX "libcomm_"
#define SUFFIX ".so"

comm_status comm__plugin_load(const char *path, const comm_backend **ret_backend)
{
    /* RTLD_LOCAL: two plugins may bring two versions of one library. RTLD_NOW: what is missing is said here, not in the
     * middle of an op. */
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object)
        return comm__fail(access(path, F_OK) == 0 ? COMM_ERR_UNSUPPORTED : COMM_ERR_NOT_FOUND,
                          "loading the backend %s: %s", path, dlerror());
    comm_backend_entry_fn entry;
    void *symbol = dlsym(object, "comm_backend_entry");
    if (!symbol)
        return comm__fail(COMM_ERR_VERSION,
                          "loading the backend %s: it does not export comm_backend_entry (backend ABI %d.%d); it is no "
                          "libcomm backend, or one for another version",
                          path, COMM_BACKEND_ABI_MAJOR, COMM_BACKEND_ABI_MINOR);
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from object to function pointer */
    return comm__registry_add(entry, path, ret_backend);
}

/* The folder of libcomm itself, for $libdir/comm. */
static int library_folder(char *folder, size_t room)
{
    Dl_info info;
    const comm_host *here = &comm__host;
    if (!dladdr(here, &info) || !info.dli_fname)
        return 0;
    const char *slash = strrchr(info.dli_fname, '/');
    return slash && snprintf(folder, room, "%.*s/comm", (int)(slash - info.dli_fname), info.dli_fname) < (int)room;
}

/* Call `visit` with each folder until it returns non-zero, and return that. secure_getenv: a setuid program must not
 * load what its caller names. */
static int each_folder(int (*visit)(const char *folder, void *context), void *context)
{
    char folder[PATH_MAX];
    const char *list = secure_getenv("COMM_PLUGIN_PATH");
    while (list && *list) {
        size_t length = strcspn(list, ":");
        if (length > 0 && length < sizeof folder) {
            memcpy(folder, list, length);
            folder[length] = '\0';
            int result = visit(folder, context);
            if (result)
                return result;
        }
        list += length + (list[length] == ':');
    }
    return library_folder(folder, sizeof folder) ? visit(folder, context) : 0;
}

struct search {
    const char *name;
    char *places;
    size_t room;
    char path[PATH_MAX];
};

static int look_in(const char *folder, void *context)
{
    struct search *s = context;
    size_t used = strlen(s->places);
    snprintf(s->places + used, s->room - used, "%s%s", used ? ", " : "", folder);
    int length = snprintf(s->path, sizeof s->path, "%s/" PREFIX "%s" SUFFIX, folder, s->name);
    return length < (int)sizeof s->path && access(s->path, R_OK) == 0;
}

comm_status comm__plugin_find(const char *name, const comm_backend **ret_backend, char *places, size_t room)
{
    struct search s = { .name = name, .places = places, .room = room };
    if (!each_folder(look_in, &s))
        return COMM_ERR_NOT_FOUND; /* the caller knows what else there is, and writes the text */
    comm_status status = comm__plugin_load(s.path, ret_backend);
    if (status == COMM_OK && strcmp((*ret_backend)->name, name) != 0)
        return comm__fail(COMM_ERR_INVALID, "loading the backend %s: it calls itself '%s'", s.path,
                          (*ret_backend)->name);
    /* A file that is there is no "not found", whatever went wrong with it. */
    return status == COMM_ERR_NOT_FOUND ? COMM_ERR_UNSUPPORTED : status;
}

struct listing {
    void (*found)(const char *name, const char *path, void *context);
    void *context;
};

static int list_folder(const char *folder, void *context)
{
    const struct listing *l = context;
    DIR *dir = opendir(folder);
    const struct dirent *file;
    while (dir && (file = readdir(dir)) != NULL) {
        size_t length = strlen(file->d_name), around = strlen(PREFIX) + strlen(SUFFIX);
        char name[NAME_MAX + 1], path[PATH_MAX];
        if (length <= around || memcmp(file->d_name, PREFIX, strlen(PREFIX)) != 0 ||
            strcmp(file->d_name + length - strlen(SUFFIX), SUFFIX) != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(length - around), file->d_name + strlen(PREFIX));
        if (snprintf(path, sizeof path, "%s/%s", folder, file->d_name) < (int)sizeof path)
            l->found(name, path, l->context);
    }
    if (dir)
        closedir(dir);
    return 0;
}

void comm__plugin_each(void (*found)(const char *name, const char *path, void *context), void *context)
{
    struct listing l = { found, context };
    each_folder(list_folder, &l);
}
