"""The time of dist.all_reduce by size, beside that of the C call: speed.py [BACKEND]

The least and the median of 7 means; run it as ranks. With libcomm, and a PyTorch of 2.1 or newer, each line says three
times more. The C call is comm_all_reduce, called through ctypes on a world of its own; what a call through ctypes costs
is taken off: it is that of a function that does nothing. PyTorch's own time is that of dist.all_reduce on a group whose
backend does nothing (nothing.cc, compiled here once). Both, one after the other, is what a layer without any cost would
take, also where ranks share cores; the last number says how many times that dist.all_reduce takes.
Newer releases record each call of a backend in their flight recorder: TORCH_FR_BUFFER_SIZE=0 turns that off.
"""
import ctypes
import importlib.util
import os
import pathlib
import subprocess
import sys
import time

import torch
import torch.distributed as dist


def best(call, calls):
    """The least and the median of 7 means, in microseconds."""
    means = []
    for _ in range(20):
        call()
    for _ in range(7):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        means.append((time.perf_counter() - begin) / calls * 1e6)
    return min(means), sorted(means)[3]


def c_world(size, rank):
    """A function that gives a call of comm_all_reduce on a world of its own, and what any call costs."""
    from torch_libcomm.library import InitOptions, check, library, pointer
    from torch_libcomm.store import Store
    handle = pointer()
    c_world.store = Store(dist.PrefixStore("speed", dist.distributed_c10d._get_default_store()))  # as long as the world
    options = InitOptions(world_size=size, rank=rank, backend=(os.environ.get("COMM_BACKEND") or "cpu:auto").encode(),
                          store=c_world.store.handle, timeout_ms=60000, name=b"speed")
    check(library().comm_init(ctypes.byref(options), ctypes.byref(handle)))
    f32, redop_sum, arguments = 12, 0, [pointer, pointer, pointer, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, pointer,
                                        pointer]
    sum_up, nothing = (ctypes.CFUNCTYPE(ctypes.c_int, *arguments)((name, library()))
                       for name in ("comm_all_reduce", "comm_version"))

    def caller(function, tensor):
        given = handle, tensor.data_ptr(), tensor.data_ptr(), tensor.numel(), f32, redop_sum, None, None
        return lambda: function(*given)

    return lambda tensor: caller(sum_up, tensor), best(caller(nothing, torch.zeros(2)), 2000)[0]


def nothing_at_all(build):
    """A group of all ranks whose backend does nothing."""
    source = pathlib.Path(__file__).resolve().parent / "nothing.cc"
    library = build.target().parent / "nothing.so"
    if dist.get_rank() == 0 and not (library.exists() and library.stat().st_mtime > source.stat().st_mtime):
        library.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(build.command(library, source), check=True)
    dist.barrier()
    spec = importlib.util.spec_from_file_location("nothing", library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dist.Backend.register_backend("nothing", lambda _store, rank, size, _timeout: module.create(rank, size),
                                  devices=["cpu"])
    return dist.new_group(backend="nothing")


def main():
    backend = sys.argv[1] if len(sys.argv) > 1 else "libcomm"
    torch.set_num_threads(1)
    if backend == "libcomm":
        from torch_libcomm import build  # before PyTorch 2.5 this makes the name known, too
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    c_call, pair = None, torch.zeros(2)
    if backend == "libcomm" and build.VERSION >= (2, 1):
        nothing = nothing_at_all(build)
        pytorch = best(lambda: dist.all_reduce(pair, group=nothing), 2000)[0]
        c_call, by_ctypes = c_world(size, rank)
    for length, calls in ((8, 2000), (1024, 2000), (65536, 300), (1 << 20, 50)):
        tensor = torch.zeros(length // 4)
        dist.barrier()
        least, median = best(lambda: dist.all_reduce(tensor), calls)
        text = f"{backend}, {size} ranks, {length} bytes: {least:.1f} us, median {median:.1f}"
        if c_call:
            dist.barrier()
            call = c_call(tensor)
            bare = best(call, calls)[0] - by_ctypes
            both = best(lambda: (dist.all_reduce(pair, group=nothing), call()), calls)[0] - by_ctypes
            text += f"; C call {bare:.1f}, PyTorch {pytorch:.1f}, both {both:.1f}: {least / both:.2f} times"
        if rank == 0:
            print(text, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
