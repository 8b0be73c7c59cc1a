/* The table of backends: the built-in ones (builtin.def), those registered by the program, and plugins as they are
 * loaded. */
#include "registry.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend_string.h"
#include "base/error.h"
#include "base/param.h"
#include "device.h"
#include "op.h"
#include "tuning.h"

enum { REGISTRY_MAX = 64, TEXT_BYTES = 256 };

struct entry {
    comm_backend backend; /* a copy: the plugin's own may be shorter */
    char *name, *origin;
    char version[32], traits[96];
    uint32_t kinds;                /* of device, as bits */
    char reason[COMM_ERROR_BYTES]; /* why it cannot be used; "" if it can */
    int loaded;
};

/* Recursive, because an entry function may call the library. Guards the table; entries do not move and do not go. */
static pthread_mutex_t lock;
static struct entry *entries[REGISTRY_MAX];
static size_t entry_count;

#define BACKEND(name) const comm_backend *comm__##name##_entry(const comm_host *host);
#include "builtin.def"
#undef BACKEND

static void add_builtin(void)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    const comm_backend *backend;
#define BACKEND(name) comm__registry_add(comm__##name##_entry, "built in", NULL, &backend);
#include "builtin.def"
#undef BACKEND
    (void)backend;
}

static void lock_table(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static _Thread_local int inside;
    if (!inside) { /* add_builtin itself comes here through comm__registry_add */
        inside = 1;
        pthread_once(&once, add_builtin);
        inside = 0;
    }
    pthread_mutex_lock(&lock);
}

static struct entry *find_loaded(const char *name)
{
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i]->loaded && strcmp(entries[i]->name, name) == 0)
            return entries[i];
    return NULL;
}

static struct entry *new_entry(const char *name, const char *origin)
{
    struct entry *e = entry_count < REGISTRY_MAX ? calloc(1, sizeof *e) : NULL;
    if (!e)
        return NULL;
    e->name = strdup(name);
    e->origin = strdup(origin);
    if (!e->name || !e->origin) {
        free(e->name);
        free(e->origin);
        free(e);
        return NULL;
    }
    entries[entry_count++] = e;
    return e;
}

/* ---- Taking one in ---- */

/* Copy what the backend has of the vtable, or say why it does not fit. */
static comm_status read_vtable(const comm_backend *theirs, const char *origin, comm_backend *ret_backend)
{
    if (theirs->abi_major != COMM_BACKEND_ABI_MAJOR)
        return comm__fail(COMM_ERR_VERSION,
                          "backend from %s: it was built for backend ABI %u.%u, libcomm %s has %d.%d; build it again "
                          "with this libcomm's headers",
                          origin, theirs->abi_major, theirs->abi_minor, comm_version(), COMM_BACKEND_ABI_MAJOR,
                          COMM_BACKEND_ABI_MINOR);
    if (theirs->struct_bytes < offsetof(comm_backend, submit) + sizeof theirs->submit)
        return comm__fail(COMM_ERR_INVALID, "backend from %s: struct_bytes is %u, which ends before 'submit'", origin,
                          theirs->struct_bytes);
    memset(ret_backend, 0, sizeof *ret_backend);
    memcpy(ret_backend, theirs, theirs->struct_bytes < sizeof *theirs ? theirs->struct_bytes : sizeof *theirs);
    if (ret_backend->struct_bytes > sizeof *ret_backend)
        ret_backend->struct_bytes = sizeof *ret_backend; /* a backend on top of this one reads no further */
    if (!theirs->name || !*theirs->name ||
        theirs->name[strspn(theirs->name, "abcdefghijklmnopqrstuvwxyz0123456789_-")] || strlen(theirs->name) > 63 ||
        strcmp(theirs->name, "auto") == 0)
        return comm__fail(COMM_ERR_INVALID,
                          "backend from %s: its name '%s' is not 1 to 63 lower-case letters, digits, _ and - (nor "
                          "'auto')",
                          origin, theirs->name ? theirs->name : "");
    if (theirs->op_bytes < offsetof(comm_op, label) || theirs->kind_end <= 0 || theirs->dtype_end <= 0)
        return comm__fail(
            COMM_ERR_INVALID,
            "backend '%s' from %s: op_bytes is %u and kind_end %d; begin the table with COMM_BACKEND_INIT",
            theirs->name, origin, theirs->op_bytes, theirs->kind_end);
    return COMM_OK;
}

static comm_status check_slots(const comm_backend *backend, const char *origin)
{
    const char *missing = !backend->world_open    ? "world_open"
                          : !backend->world_close ? "world_close"
                          : !backend->group_open  ? "group_open"
                          : !backend->group_abort ? "group_abort"
                          : !backend->group_close ? "group_close"
                          : !backend->submit      ? "submit"
                                                  : NULL;
    if (missing)
        return comm__fail(COMM_ERR_INVALID, "backend '%s' from %s: the slot %s is NULL, and it is needed",
                          backend->name, origin, missing);
    if (!backend->memory_open != !backend->memory_close)
        return comm__fail(COMM_ERR_INVALID, "backend '%s' from %s: memory_open and memory_close belong together",
                          backend->name, origin);
    return COMM_OK;
}

/* The entry that a listing made of the file, if it has the backend's name; other entries of the file say what became of
 * it. */
static struct entry *entry_for(const char *name, const char *origin)
{
    struct entry *known = NULL;
    for (size_t i = 0; i < entry_count; i++) {
        struct entry *e = entries[i];
        if (e->loaded || strcmp(e->origin, origin) != 0)
            continue;
        if (strcmp(e->name, name) == 0)
            known = e;
        else
            snprintf(e->reason, sizeof e->reason, "loaded: it is backend '%s'", name);
    }
    return known ? known : new_entry(name, origin);
}

static void write_traits(uint32_t traits, char *text, size_t capacity)
{
    static const struct {
        uint32_t bit;
        const char *name;
    } all[] = { { COMM_BACKEND_KEEPS_DEADLINES, "keeps_deadlines" },
                { COMM_BACKEND_CANNOT_CANCEL, "cannot_cancel" },
                { COMM_BACKEND_NOTICES_LOSS, "notices_loss" },
                { COMM_BACKEND_CHECKS_SIGNATURES, "checks_signatures" } };
    size_t used = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (traits & all[i].bit)
            used += (size_t)snprintf(text + used, capacity - used, "%s%s", used ? ", " : "", all[i].name);
}

static comm_status add_entry(const comm_backend *backend, uint32_t kinds, const char *origin, struct entry **ret_entry)
{
    struct entry *taken = find_loaded(backend->name);
    if (taken)
        return comm__fail(COMM_ERR_INVALID, "backend '%s' from %s: the name is taken by the one from %s", backend->name,
                          origin, taken->origin);
    comm_status status = comm__param_declare(backend);
    if (status != COMM_OK)
        return comm__fail_while(status, "backend from %s", origin);
    struct entry *e = entry_for(backend->name, origin);
    if (!e)
        return comm__fail(COMM_ERR_NO_MEMORY, "backend '%s' from %s: there are %zu backends already", backend->name,
                          origin, entry_count);
    e->backend = *backend;
    e->backend.name = e->name;
    e->loaded = 1;
    write_traits(backend->traits, e->traits, sizeof e->traits);
    e->reason[0] = '\0';
    snprintf(e->version, sizeof e->version, "%s", backend->version ? backend->version : "");
    e->kinds = kinds;
    *ret_entry = e;
    return COMM_OK;
}

static comm_status query(const comm_backend *backend)
{
    uint64_t fail_count = comm__fail_count();
    comm_status status = backend->query ? backend->query(backend->context) : COMM_OK;
    return status == COMM_OK ? COMM_OK : comm__slot_failed("query", status, fail_count);
}

static comm_status add_table(const comm_backend *theirs, const char *origin, const char *variant_of,
                             struct entry **ret_entry)
{
    comm_backend backend;
    uint32_t kinds = 0;
    comm_status status = read_vtable(theirs, origin, &backend);
    if (status == COMM_OK)
        status = check_slots(&backend, origin);
    if (status != COMM_OK)
        return status;
    if (variant_of && strcmp(backend.name, variant_of) != 0)
        return comm__fail(COMM_ERR_INVALID, "backend from %s: it calls itself '%s', not '%s'", origin, backend.name,
                          variant_of);
    if (variant_of && (status = query(&backend)) != COMM_OK)
        return status;
    status = comm__device_kinds(backend.devices ? backend.devices : "", &kinds);
    if (status != COMM_OK)
        return comm__fail_while(status, "backend '%s' from %s: devices", backend.name, origin);
    return add_entry(&backend, kinds, origin, ret_entry);
}

/* The first decides whether the library is taken in; another one that cannot be is listed with the reason. */
static comm_status add_locked(comm_backend_entry_fn entry, const char *origin, const char *variant_of,
                              struct entry **ret_entry)
{
    const uint64_t texts = comm__fail_count();
    const comm_backend *theirs = entry(&comm__host);
    if (!theirs && comm__fail_count() == texts)
        comm__fail(COMM_ERR_UNSUPPORTED, "it gave no reason");
    if (!theirs)
        return comm__fail_while(COMM_ERR_UNSUPPORTED, "backend from %s cannot run here", origin);
    comm_status status = add_table(theirs, origin, variant_of, ret_entry);
    struct entry *e = *ret_entry;
    while (status == COMM_OK && e && e->backend.next) {
        theirs = e->backend.next;
        e = NULL;
        if (add_table(theirs, origin, NULL, &e) != COMM_OK)
            comm__registry_refused(origin, origin, comm_last_error());
    }
    return status;
}

comm_status comm__registry_add(comm_backend_entry_fn entry, const char *origin, const char *variant_of,
                               const comm_backend **ret_backend)
{
    struct entry *e = NULL;
    lock_table();
    comm_status status = add_locked(entry, origin, variant_of, &e);
    if (status == COMM_OK)
        *ret_backend = &e->backend;
    pthread_mutex_unlock(&lock);
    return status;
}

void comm__registry_refused(const char *name, const char *origin, const char *reason)
{
    struct entry *e = NULL;
    lock_table();
    for (size_t i = 0; !e && i < entry_count; i++)
        if (!entries[i]->loaded && strcmp(entries[i]->origin, origin) == 0)
            e = entries[i];
    if (e || (e = new_entry(name, origin)))
        snprintf(e->reason, sizeof e->reason, "%s", reason);
    pthread_mutex_unlock(&lock);
}

comm_status comm_backend_register(comm_backend_entry_fn entry)
{
    const comm_backend *backend;
    if (!entry)
        return comm__fail(COMM_ERR_INVALID, "comm_backend_register: the entry function is NULL");
    return comm__registry_add(entry, "registered by the program", NULL, &backend);
}

comm_status comm_backend_load(const char *path_or_name)
{
    const comm_backend *backend;
    if (!path_or_name || !*path_or_name)
        return comm__fail(COMM_ERR_INVALID, "comm_backend_load: the path is %s", path_or_name ? "empty" : "NULL");
    if (!comm__backend_is_path(path_or_name))
        return comm__registry_find(path_or_name, &backend);
    lock_table();
    comm_status status = comm__plugin_load(path_or_name, NULL, &backend);
    if (status != COMM_OK)
        comm__registry_refused(path_or_name, path_or_name, comm_last_error());
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- What slots return ---- */

comm_status comm__slot_failed(const char *slot, comm_status status, uint64_t fail_count)
{
    const char *text = comm__fail_count() != fail_count ? comm_last_error() : "it gave no reason";
    if (status < 0 && comm__status_known(status))
        return comm__fail(status, "%s", text);
    return comm__fail(COMM_ERR_BACKEND, "%s returned %d, which is no status: %s", slot, status, text);
}

/* ---- Finding ---- */

static comm_status fail_unknown(const char *name, const char *places)
{
    char known[TEXT_BYTES] = "none";
    size_t used = 0;
    for (size_t i = 0; i < entry_count && used < sizeof known; i++)
        if (entries[i]->loaded)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", entries[i]->name);
    return comm__fail(COMM_ERR_NOT_FOUND,
                      "there is no backend '%s'; known are %s, and libcomm_%s.so is not in %s (COMM_PLUGIN_PATH adds "
                      "folders)",
                      name, known, name, *places ? places : "any folder");
}

comm_status comm__registry_find(const char *name, const comm_backend **ret_backend)
{
    char places[TEXT_BYTES] = "";
    comm_status status = COMM_OK;
    const comm_backend *backend = NULL;
    lock_table();
    struct entry *e = find_loaded(name);
    for (size_t i = 0; !e && i < entry_count; i++) /* a path that was loaded before */
        if (entries[i]->loaded && comm__backend_is_path(name) && strcmp(entries[i]->origin, name) == 0)
            e = entries[i];
    if (e)
        backend = &e->backend;
    else if (comm__backend_is_path(name))
        status = comm__plugin_load(name, NULL, &backend);
    else
        status = comm__plugin_find(name, &backend, places, sizeof places);
    if (status == COMM_ERR_NOT_FOUND && !comm__backend_is_path(name))
        fail_unknown(name, places);
    pthread_mutex_unlock(&lock);
    if (status == COMM_OK) {
        status = query(backend);
        if (status != COMM_OK)
            return comm__fail_while(status, "backend '%s' cannot be used here", backend->name);
    }
    if (status == COMM_OK)
        *ret_backend = backend;
    return status;
}

const comm_backend *comm__registry_known(const char *name)
{
    lock_table();
    struct entry *e = find_loaded(name);
    pthread_mutex_unlock(&lock);
    return e ? &e->backend : NULL;
}

uint32_t comm__registry_kinds(const comm_backend *backend)
{
    uint32_t kinds = 0;
    lock_table();
    for (size_t i = 0; i < entry_count; i++)
        if (&entries[i]->backend == backend)
            kinds = entries[i]->kinds;
    pthread_mutex_unlock(&lock);
    return kinds;
}

/* ---- "auto" ---- */

static int serves(const struct entry *e, const char *device)
{
    int32_t kind = comm__device_kind_of(device, strlen(device));
    return e->loaded && e->backend.preference > 0 && kind && (e->kinds & (1u << kind));
}

/* The backend with the highest preference among those not tried yet; of equals the first by name. */
static const comm_backend *preferred(const char *device, uint64_t tried, size_t *ret_index)
{
    const comm_backend *best = NULL;
    for (size_t i = 0; i < entry_count; i++) {
        const comm_backend *b = &entries[i]->backend;
        if (!serves(entries[i], device) || (tried & ((uint64_t)1 << i)))
            continue;
        if (!best || b->preference > best->preference ||
            (b->preference == best->preference && strcmp(b->name, best->name) < 0)) {
            best = b;
            *ret_index = i;
        }
    }
    return best;
}

/* One that does not load is no candidate. */
static void load_plugin(const char *name, const char *path, void *context)
{
    char base[NAME_MAX + 1], places[TEXT_BYTES] = "";
    const comm_backend *backend;
    (void)path, (void)context;
    snprintf(base, sizeof base, "%.*s", (int)strcspn(name, "."), name);
    if (!find_loaded(base))
        comm__plugin_find(base, &backend, places, sizeof places);
}

/* Gives where the reason stands, or `last`, the one before, if it is the same: shm-tcp cannot be used where shm
 * cannot. */
static const char *add_reason(char *reasons, size_t capacity, const char *last, const char *name)
{
    const char *reason = comm_last_error();
    size_t used = strlen(reasons);
    if (last && strstr(reason, last))
        return last;
    int bytes = snprintf(reasons + used, capacity - used, "%s%s: %s", used ? "; " : "", name, reason);
    if (used + (size_t)bytes >= capacity)
        strcpy(reasons + capacity - sizeof "...", "...");
    size_t at = used + (used ? 2 : 0) + strlen(name) + 2;
    return at < capacity ? reasons + at : last;
}

comm_status comm__registry_auto(const char *device, const comm_backend **ret_list, size_t capacity, size_t *ret_count,
                                char *reasons, size_t reasons_bytes)
{
    const comm_backend *backend;
    uint64_t tried = 0;
    size_t index = 0, count = 0;
    const char *last_reason = NULL;
    *reasons = '\0';
    lock_table();
    if (!preferred(device, tried, &index))
        comm__plugin_each(load_plugin, NULL);
    while (count < capacity && (backend = preferred(device, tried, &index))) {
        tried |= (uint64_t)1 << index;
        if (query(backend) == COMM_OK)
            ret_list[count++] = backend;
        else
            last_reason = add_reason(reasons, reasons_bytes, last_reason, backend->name);
    }
    pthread_mutex_unlock(&lock);
    *ret_count = count;
    return count > 0 ? COMM_OK
                     : comm__fail(COMM_ERR_NOT_FOUND,
                                  "no backend for device '%s' can be used here%s%s; comm-info lists the "
                                  "backends",
                                  device, *reasons ? ": " : "", reasons);
}

void comm__registry_ready(void)
{
    lock_table();
    pthread_mutex_unlock(&lock);
}

/* ---- Looking inside ---- */

static void note_plugin(const char *name, const char *path, void *context)
{
    (void)context;
    for (size_t i = 0; i < entry_count; i++)
        if (strcmp(entries[i]->origin, path) == 0 || strcmp(entries[i]->name, name) == 0)
            return;
    struct entry *e = new_entry(name, path);
    int base = (int)strcspn(name, ".");
    if (e && name[base])
        snprintf(e->reason, sizeof e->reason,
                 "found, but not loaded yet: a variant of '%.*s'; name that in a backend string, and the "
                 "first variant that can be used is loaded",
                 base, name);
    else if (e)
        snprintf(e->reason, sizeof e->reason, "found, but not loaded yet: name it in a backend string to load it");
}

size_t comm_backend_count(void)
{
    lock_table();
    comm__plugin_each(note_plugin, NULL);
    size_t count = entry_count;
    pthread_mutex_unlock(&lock);
    return count;
}

static comm_status entry_at(size_t index, struct entry **ret_entry)
{
    lock_table();
    struct entry *e = index < entry_count ? entries[index] : NULL;
    size_t count = entry_count;
    pthread_mutex_unlock(&lock);
    *ret_entry = e;
    return e ? COMM_OK : comm__fail(COMM_ERR_NOT_FOUND, "backend %zu: there are %zu", index, count);
}

comm_status comm_backend_routes(size_t index, void (*line)(const char *text, void *context), void *context)
{
    struct entry *e;
    comm_status status = entry_at(index, &e);
    if (status == COMM_OK && !line)
        status = comm__fail(COMM_ERR_INVALID, "comm_backend_routes: the function is NULL");
    if (status == COMM_OK && e->loaded && e->backend.describe_routes) {
        comm__tuning_describe(e->backend.name, line, context);
        e->backend.describe_routes(e->backend.context, line, context);
    }
    return status;
}

comm_status comm_backend_query(size_t index, comm_backend_info *ret_info)
{
    struct entry *e;
    comm_status status = entry_at(index, &e);
    if (status != COMM_OK)
        return status;
    int32_t usable = e->loaded;
    if (e->loaded && e->backend.query) {
        usable = query(&e->backend) == COMM_OK;
        pthread_mutex_lock(&lock);
        snprintf(e->reason, sizeof e->reason, "%s", usable ? "" : comm_last_error());
        pthread_mutex_unlock(&lock);
    }
    const comm_backend_info info = { .struct_bytes = sizeof info,
                                     .usable = usable,
                                     .name = e->name,
                                     .version = e->version,
                                     .devices = e->loaded ? e->backend.devices : "",
                                     .origin = e->origin,
                                     .reason = e->reason,
                                     .traits = e->traits,
                                     .preference = e->loaded ? e->backend.preference : 0 };
    return comm__give_struct(ret_info, &info, sizeof info, "comm_backend_query", "comm_backend_info");
}
