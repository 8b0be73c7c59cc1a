/* Opening MPI's library, and deciding whether this process is one for it. What the program has loaded comes first.
 *
 * Open MPI's components are shared objects that are linked to nothing: they find the library's functions only if these
 * are global. So it is opened, or opened again, with RTLD_GLOBAL. */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

struct mpi_api mpi;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int is_open;

#ifdef OPEN_MPI
enum { OPEN_FLAGS = RTLD_NOW | RTLD_GLOBAL };
static const char *const names[] = { "libmpi.so.40", NULL };
static const char package[] = "libopenmpi3, or openmpi-bin";
#else
enum { OPEN_FLAGS = RTLD_NOW | RTLD_LOCAL };
static const char *const names[] = { "libmpich.so.12", "libmpi.so.12", "libmpi_intel.so.12", "libmpi_gnu.so.12", NULL };
static const char package[] = "libmpich12, or mpich";
#endif

/* ---- What the process is in ---- */

static int is_set(const char *name)
{
    const char *value = getenv(name);
    return value && *value;
}

/* The other implementation's launcher. srun and PMIx start both, and say nothing. */
static comm_status launcher_allows(void)
{
    int open_mpi = is_set("OMPI_COMM_WORLD_SIZE"), hydra = is_set("PMI_RANK") && is_set("MPI_LOCALRANKID");
#ifdef OPEN_MPI
    if (hydra && !open_mpi)
        return fail(COMM_ERR_UNSUPPORTED, "this is the variant for Open MPI, but the process was started by the "
                    "mpiexec of MPICH: use Open MPI's mpirun, or install the variant for MPICH");
#else
    if (open_mpi && !hydra)
        return fail(COMM_ERR_UNSUPPORTED, "this is the variant for MPICH, but the process was started by the mpirun "
                    "of Open MPI: use MPICH's mpiexec, or install the variant for Open MPI");
    if (is_set("PMIX_RANK") && !is_set("PMI_RANK") && !is_set("PMI_FD"))
        return fail(COMM_ERR_UNSUPPORTED, "this is the variant for MPICH, but the process was started by PMIx, which "
                    "speaks to Open MPI: use srun --mpi=pmi2, or name the library in COMM_MPI_LIBRARY if it is an "
                    "MPICH with PMIx");
#endif
    return COMM_OK;
}

/* The path of the first MPI library that the process has loaded, in whatever way. */
struct loaded {
    char path[512];
};

static int look_at(struct dl_phdr_info *info, size_t bytes, void *context)
{
    struct loaded *found = context;
    (void)bytes;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    const char *name = slash ? slash + 1 : info->dlpi_name ? info->dlpi_name : "";
    int is_mpi = strncmp(name, "libmpi.so", 9) == 0 || strncmp(name, "libmpich.so", 11) == 0 ||
                 (strncmp(name, "libmpi_", 7) == 0 && strstr(name, ".so.12"));
    if (is_mpi)
        snprintf(found->path, sizeof found->path, "%s", info->dlpi_name);
    return is_mpi;
}

/* ---- Opening ---- */

static void *open_one(const char *given, const struct loaded *loaded)
{
    void *object = NULL;
    if (given && *given)
        return dlopen(given, OPEN_FLAGS);
    if (loaded->path[0])
        return dlopen(loaded->path, OPEN_FLAGS);
    if (dlsym(RTLD_DEFAULT, "MPI_Get_library_version")) /* linked into the program */
        return dlopen(NULL, RTLD_NOW);
    for (size_t i = 0; names[i] && !object; i++)
        object = dlopen(names[i], OPEN_FLAGS);
    return object;
}

/* ISO C has no cast from object to function pointer. */
static int take(void *object, const char *name, void *function, size_t bytes)
{
    void *symbol = dlsym(object, name);
    memcpy(function, &symbol, bytes);
    return symbol != NULL;
}

static comm_status check_implementation(const char *where)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int length = 0;
    if (mpi.Get_library_version(version, &length) != MPI_SUCCESS)
        return fail(COMM_ERR_UNSUPPORTED, "%s does not say which MPI it is", where);
    version[strcspn(version, "\n,")] = '\0';
    int is_open_mpi = strstr(version, "Open MPI") || strstr(version, "Spectrum MPI");
#ifdef OPEN_MPI
    int is_ours = is_open_mpi;
#else
    int is_ours = !is_open_mpi;
#endif
    if (!is_ours)
        return fail(COMM_ERR_UNSUPPORTED, "this is the variant for " VARIANT_NAME ", but %s is %s", where, version);
    return COMM_OK;
}

static comm_status open_library(void)
{
    struct loaded loaded = { "" };
    const char *given = secure_getenv("COMM_MPI_LIBRARY"); /* a variant is asked before its parameters are known */
    dl_iterate_phdr(look_at, &loaded);
    if (!loaded.path[0] && !(given && *given)) {
        comm_status status = launcher_allows();
        if (status != COMM_OK)
            return status;
    }
    const char *where = given && *given ? given : loaded.path[0] ? "the MPI that the program has loaded" : names[0];
    signals_keep();
    void *object = open_one(given, &loaded);
    signals_give_back();
    if (!object)
        return fail(COMM_ERR_UNSUPPORTED, VARIANT_NAME " is missing: %s. Install it (Debian: %s), add its folder to "
                    "LD_LIBRARY_PATH, or name the file in COMM_MPI_LIBRARY", dlerror(), package);
    if (!take(object, "MPI_Get_library_version", &mpi.Get_library_version, sizeof mpi.Get_library_version))
        return fail(COMM_ERR_UNSUPPORTED, "%s is no MPI, or one older than 3.0", where);
    comm_status status = check_implementation(where);
    if (status != COMM_OK)
        return status;
#define CALL(name)                                                                                                     \
    if (!take(object, "MPI_" #name, &mpi.name, sizeof mpi.name))                                                       \
        return fail(COMM_ERR_UNSUPPORTED, "%s has no MPI_%s: it is older than MPI 3.0", where, #name);
#include "mpi.def"
#undef CALL
#ifdef OPEN_MPI
/* A program that is linked to Open MPI may have copies of these objects, which are the ones that count then. */
#define HANDLE(name)                                                                                                   \
    if (!take(RTLD_DEFAULT, #name, &mpi.name, sizeof mpi.name))                                                        \
        return fail(COMM_ERR_UNSUPPORTED, "%s has no %s: it is another Open MPI than 4 or 5", where, #name);
#include "handle.def"
#undef HANDLE
#endif
    return COMM_OK;
}

comm_status library_check(const comm_world_info *info)
{
    const char *given = secure_getenv("COMM_MPI_LIBRARY"), *asked = host->param_text(info->options, "mpi", "library");
    if (!asked || !*asked || (given && strcmp(given, asked) == 0))
        return COMM_OK;
    return fail(COMM_ERR_INVALID, "library=%s: MPI's library is opened before the options of a backend are read: name "
                "the file in the environment, as COMM_MPI_LIBRARY=%s", asked, asked);
}

comm_status library_query(void *context)
{
    comm_status status = COMM_OK;
    (void)context;
    pthread_mutex_lock(&lock);
    if (!is_open) {
        status = open_library();
        is_open = status == COMM_OK;
    }
    pthread_mutex_unlock(&lock);
    return status;
}
