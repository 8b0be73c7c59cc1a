/* Opening the CUDA runtime and NCCL. What the program has loaded already is taken first, so that a framework and
 * libcomm use the same NCCL. */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "nccl.h"

struct cuda_api cuda;
struct nccl_api nccl;

enum { CUDA_OLDEST = 11000, NCCL_OLDEST = 21800 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int is_open;

static const char *const cuda_names[] = { "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so",
                                          NULL };
static const char *const nccl_names[] = { "libnccl.so.2", "libnccl.so", NULL };

static void *open_one(const char *given, const char *const *names, const char *probe)
{
    void *object = NULL;
    if (given && *given)
        return dlopen(given, RTLD_NOW | RTLD_LOCAL);
    if (dlsym(RTLD_DEFAULT, probe)) /* linked into the program, also statically */
        return dlopen(NULL, RTLD_NOW);
    for (size_t i = 0; names[i] && !object; i++)
        object = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    for (size_t i = 0; names[i] && !object; i++)
        object = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return object;
}

/* ISO C has no cast from object to function pointer. */
static int take(void *object, const char *name, void *function, size_t bytes)
{
    void *symbol = dlsym(object, name);
    memcpy(function, &symbol, bytes);
    return symbol != NULL;
}

static void path_of(const void *function, size_t bytes, char *path, size_t capacity)
{
    void *address;
    Dl_info info;
    memcpy(&address, function, bytes);
    snprintf(path, capacity, "%s", dladdr(address, &info) && info.dli_fname ? info.dli_fname : "?");
}

static comm_status open_cuda(void)
{
    const char *given = host->param_text(NULL, "nccl", "cudart");
    void *object = open_one(given, cuda_names, "cudaRuntimeGetVersion");
    if (!object)
        return fail(COMM_ERR_UNSUPPORTED,
                    "the CUDA runtime is missing: %s. Install CUDA's libcudart (11, 12 or 13), add its folder to "
                    "LD_LIBRARY_PATH, or name the file in COMM_NCCL_CUDART", dlerror());
#define CALL(result, name, arguments)                                                                                 \
    if (!take(object, "cuda" #name, &cuda.name, sizeof cuda.name))                                                    \
        return fail(COMM_ERR_UNSUPPORTED, "the CUDA runtime %s has no cuda%s: it is older than 11, or none", given,   \
                    #name);
#include "cuda.def"
#undef CALL
    path_of(&cuda.GetDevice, sizeof cuda.GetDevice, cuda.path, sizeof cuda.path);
    cuda_status status = cuda.RuntimeGetVersion(&cuda.version);
    if (status != CUDA_OK)
        return fail_cuda(status, "cudaRuntimeGetVersion");
    if (cuda.version < CUDA_OLDEST)
        return fail(COMM_ERR_UNSUPPORTED, "the CUDA runtime %s is version %d.%d; 11.0 or newer is needed", cuda.path,
                    cuda.version / 1000, cuda.version % 1000 / 10);
    return COMM_OK;
}

static comm_status open_nccl(void)
{
    const char *given = host->param_text(NULL, "nccl", "library");
    void *object = open_one(given, nccl_names, "ncclGetVersion");
    if (!object)
        return fail(COMM_ERR_UNSUPPORTED,
                    "NCCL is missing: %s. Install NCCL 2.18 or newer (libnccl2, or nvidia-nccl-cu13 from PyPI), add "
                    "its folder to LD_LIBRARY_PATH, or name the file in COMM_NCCL_LIBRARY", dlerror());
    if (!take(object, "ncclGetVersion", &nccl.GetVersion, sizeof nccl.GetVersion) || nccl.GetVersion(&nccl.version))
        return fail(COMM_ERR_UNSUPPORTED, "%s does not say which version of NCCL it is", given ? given : nccl_names[0]);
    path_of(&nccl.GetVersion, sizeof nccl.GetVersion, nccl.path, sizeof nccl.path);
    if (nccl.version < NCCL_OLDEST)
        return fail(COMM_ERR_UNSUPPORTED, "%s is NCCL %d.%d.%d; 2.18 or newer is needed", nccl.path,
                    nccl.version / 10000, nccl.version / 100 % 100, nccl.version % 100);
#define CALL(since, result, name, arguments)                                                                          \
    if (nccl.version < (since))                                                                                       \
        nccl.name = NULL;                                                                                             \
    else if (!take(object, "nccl" #name, &nccl.name, sizeof nccl.name))                                               \
        return fail(COMM_ERR_UNSUPPORTED, "%s calls itself NCCL %d, but has no nccl%s", nccl.path, nccl.version, #name);
#include "nccl.def"
#undef CALL
    return COMM_OK;
}

int libraries_open(void)
{
    int status = COMM_OK;
    pthread_mutex_lock(&lock);
    if (!is_open) {
        status = open_cuda();
        if (status == COMM_OK)
            status = open_nccl();
        is_open = status == COMM_OK;
    }
    pthread_mutex_unlock(&lock);
    return status;
}
