/* Each version has the calls that it should have, and no others, and says that it is this version.
 * exports CUDART VERSION NCCL [VERSION NCCL...] */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "calls.h"

static int wrong;

static void expect(void *library, const char *name, bool wanted, int version)
{
    bool found = dlsym(library, name);
    if (found != wanted)
        fprintf(stderr, "%d: %s is%s there\n", version, name, found ? "" : " not");
    wrong += found != wanted;
}

int main(int argc, char **argv)
{
    for (int i = 2; i + 1 < argc; i += 2) {
        int wanted = atoi(argv[i]), version = 0;
        void *library = dlopen(argv[i + 1], RTLD_NOW | RTLD_LOCAL);
        if (!library)
            return 1;
#define CALL(since, result, name, arguments) expect(library, "nccl" #name, since <= wanted, wanted);
#include "nccl.def"
#include "nccl_more.def"
#undef CALL
        calls_open(argv[1], argv[i + 1]);
        OK(nc.GetVersion(&version));
        CHECK((unsigned int)wanted, (unsigned int)version);
    }
    void *cudart = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
#define CALL(result, name, arguments) expect(cudart, "cuda" #name, true, 0);
#include "cuda.def"
#include "cuda_more.def"
#undef CALL
    return wrong != 0;
}
