/* The backends that this process knows. Entries are added and never removed, so what is found stays valid. */
#ifndef COMM_CORE_REGISTRY_H
#define COMM_CORE_REGISTRY_H

#include <comm/backend.h>

/* The backend of that name, or of that path to a shared object; loads a plugin if need be and asks it whether it can be
 * used here. Errors  NOT_FOUND (says where it was looked for, and what there is), VERSION, INVALID, UNSUPPORTED. */
comm_status comm__registry_find(const char *name, const comm_backend **ret_backend);

/* The registered backend of that name, or NULL: loads nothing. */
const comm_backend *comm__registry_known(const char *name);

/* The backends for the device of that name that can be used and want to be found ("auto"), the preferred one first; and
 * in words why others cannot. NOT_FOUND: there is none. */
comm_status comm__registry_auto(const char *device, const comm_backend **ret_list, size_t capacity, size_t *ret_count,
                                char *reasons, size_t reasons_bytes);

/* The kinds of device that a registered backend serves, as bits. */
uint32_t comm__registry_kinds(const comm_backend *backend);

/* The built-in backends are registered from here on. */
void comm__registry_ready(void);

/* Take a library's backends in, and give the first. `origin` is "built in", "registered" or a path. `variant_of` (or
 * NULL): only if it has this name and can be used here. (plugin.c and comm_backend_register.) */
comm_status comm__registry_add(comm_backend_entry_fn entry, const char *origin, const char *variant_of,
                               const comm_backend **ret_backend);
/* List a file that was not taken in, and why. */
void comm__registry_refused(const char *name, const char *origin, const char *reason);

/* plugin.c: load one shared object (variant_of: as above); look for the plugin of a name in the folders, or else for a
 * variant of it that can be used (NOT_FOUND: none there); call `found` with each plugin file there is, with its NAME or
 * NAME.VARIANT. `places` gets the folders for an error text. */
comm_status comm__plugin_load(const char *path, const char *variant_of, const comm_backend **ret_backend);
comm_status comm__plugin_find(const char *name, const comm_backend **ret_backend, char *places, size_t capacity);
void comm__plugin_each(void (*found)(const char *name, const char *path, void *context), void *context);

/* host.c: what backends get from us. */
extern const comm_host comm__host;

/* What a slot of a backend returned that was not OK, with its text, as the error of this thread. A status that does not
 * exist is BACKEND, and says so; `fail_count` was comm__fail_count() before the call, so that no other call's text is
 * taken for its. */
comm_status comm__slot_failed(const char *slot, comm_status status, uint64_t fail_count);

#endif
