/* Backends in shared objects: where they are looked for, and how they are opened. They are never closed again. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "registry.h"

#define PREFIX "libcomm_"
#define SUFFIX ".so"

comm_status comm__plugin_load(const char *path, const char *variant_of, const comm_backend **ret_backend)
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
    return comm__registry_add(entry, path, variant_of, ret_backend);
}

/* The file that libcomm is in: the shared library or, as *ret_is_program says, a program that is linked with the static
 * one. The loader knows a program only by the name that it was called by, which may be relative to another folder. */
static int own_file(char file[PATH_MAX], int *ret_is_program)
{
    Dl_info info;
    const comm_host *here = &comm__host;
    const char *name = dladdr(here, &info) ? info.dli_fname : NULL;
    *ret_is_program = !name || strcmp(name, program_invocation_name) == 0;
    if (!*ret_is_program)
        return snprintf(file, PATH_MAX, "%s", name) < PATH_MAX;
    ssize_t length = readlink("/proc/self/exe", file, PATH_MAX - 1);
    file[length > 0 ? length : 0] = '\0';
    return length > 0;
}

/* The folder comm/ beside the shared library. A program may have it beside itself, or where `meson install` puts the
 * plugins for programs that it installs. */
static int each_own_folder(int (*visit)(const char *folder, void *context), void *context)
{
    static const char *const beside[] = { "comm", LIBDIR_FROM_PROGRAMS "/comm" };
    char file[PATH_MAX], folder[PATH_MAX];
    int is_program, result = 0;
    char *slash = own_file(file, &is_program) ? strrchr(file, '/') : NULL;
    if (!slash)
        return 0;
    *slash = '\0';
    for (int i = 0; i <= is_program && !result; i++) {
        int length = beside[i][0] == '/' ? snprintf(folder, sizeof folder, "%s", beside[i])
                                         : snprintf(folder, sizeof folder, "%s/%s", file, beside[i]);
        if (length < (int)sizeof folder)
            result = visit(folder, context);
    }
    return result;
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
    return each_own_folder(visit, context);
}

struct search {
    const char *name;
    char *places;
    size_t capacity;
    char path[PATH_MAX];
};

static int look_in(const char *folder, void *context)
{
    struct search *s = context;
    size_t used = strlen(s->places);
    snprintf(s->places + used, s->capacity - used, "%s%s", used ? ", " : "", folder);
    int length = snprintf(s->path, sizeof s->path, "%s/" PREFIX "%s" SUFFIX, folder, s->name);
    return length < (int)sizeof s->path && access(s->path, R_OK) == 0;
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

/* ---- Variants: libcomm_NAME.VARIANT.so ---- */

enum { VARIANTS_MAX = 32 };

struct variants {
    const char *name;
    size_t count, of_this_folder;
    char *paths[VARIANTS_MAX];
};

/* "open" of ".../libcomm_mpi.open.so", given "mpi". */
static const char *variant_in(const char *path, const char *name, int *ret_length)
{
    const char *variant = strrchr(path, '/') + 1 + strlen(PREFIX) + strlen(name) + 1;
    *ret_length = (int)(strlen(variant) - strlen(SUFFIX));
    return variant;
}

static void add_variant(const char *name, const char *path, void *context)
{
    struct variants *v = context;
    size_t length = strlen(v->name);
    if (strncmp(name, v->name, length) != 0 || name[length] != '.' || v->count == VARIANTS_MAX)
        return;
    char *copy = strdup(path);
    if (!copy)
        return;
    size_t at = v->count++; /* the order of a folder is by name; that of the folders is kept */
    for (; at > v->of_this_folder && strcmp(v->paths[at - 1], copy) > 0; at--)
        v->paths[at] = v->paths[at - 1];
    v->paths[at] = copy;
}

static int variants_in(const char *folder, void *context)
{
    struct variants *v = context;
    struct listing l = { add_variant, v };
    v->of_this_folder = v->count;
    return list_folder(folder, &l);
}

static void list_variant(const struct variants *v, size_t at, const char *reason)
{
    int length;
    char full[NAME_MAX + 1];
    const char *variant = variant_in(v->paths[at], v->name, &length);
    snprintf(full, sizeof full, "%s.%.*s", v->name, length, variant);
    comm__registry_refused(full, v->paths[at], reason);
}

/* The first that can be used is taken. What is not, is listed with the reason. */
static comm_status load_variant(const struct variants *v, const comm_backend **ret_backend)
{
    char reasons[COMM_ERROR_BYTES / 2] = "", text[COMM_ERROR_BYTES];
    size_t i = 0;
    for (; i < v->count && comm__plugin_load(v->paths[i], v->name, ret_backend) != COMM_OK; i++) {
        int length;
        const char *variant = variant_in(v->paths[i], v->name, &length);
        size_t used = strlen(reasons);
        snprintf(reasons + used, sizeof reasons - used, "%s%.*s: %s", used ? "; " : "", length, variant,
                 comm_last_error());
        list_variant(v, i, comm_last_error());
    }
    if (i == v->count)
        return comm__fail(COMM_ERR_UNSUPPORTED, "backend '%s': none of its variants can be used here: %s", v->name,
                          reasons);
    snprintf(text, sizeof text, "not taken: backend '%s' is %s", v->name, v->paths[i]);
    for (size_t other = i + 1; other < v->count; other++)
        list_variant(v, other, text);
    return COMM_OK;
}

static comm_status find_variant(const char *name, const comm_backend **ret_backend)
{
    struct variants v = { .name = name };
    each_folder(variants_in, &v);
    comm_status status = v.count ? load_variant(&v, ret_backend) : COMM_ERR_NOT_FOUND;
    for (size_t i = 0; i < v.count; i++)
        free(v.paths[i]);
    return status;
}

comm_status comm__plugin_find(const char *name, const comm_backend **ret_backend, char *places, size_t capacity)
{
    struct search s = { .name = name, .places = places, .capacity = capacity };
    if (!each_folder(look_in, &s))
        return find_variant(name,
                            ret_backend); /* NOT_FOUND: the caller knows what else there is, and writes the text */
    comm_status status = comm__plugin_load(s.path, NULL, ret_backend);
    if (status == COMM_OK && strcmp((*ret_backend)->name, name) != 0)
        return comm__fail(COMM_ERR_INVALID, "loading the backend %s: it calls itself '%s'", s.path,
                          (*ret_backend)->name);
    /* A file that is there is no "not found", whatever went wrong with it. */
    return status == COMM_ERR_NOT_FOUND ? COMM_ERR_UNSUPPORTED : status;
}
