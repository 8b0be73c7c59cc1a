"""What a call costs: PyTorch's own nccl backend beside libcomm's, run as ranks: calls.py [--standin] [BYTES,... [MS]]

dist.all_reduce and comm_all_reduce of the same tensor of f32, in one process, in turns, as CSV. The mean is that of
many calls with one wait for the stream at their end (`blocking`: after each), the host's time that of a single call
into an idle stream, without the wait: medians of 5 turns and of up to 300 calls. libcomm is called by ctypes, which
costs it about a microsecond. `asynchronous` gives a work and lets the current stream wait for it. --standin tries this
program where there is no card, with Gloo in the place of PyTorch's nccl. Skips (77) and says why; tools/test-gpu runs
it.
"""
import argparse
import ctypes
import os
import statistics
import time

import tensors  # this folder's
from tensors import Card, StandIn, World, library, pointer, skip, torch

import torch.distributed as dist

TURNS, SINGLES = 5, 300
LEAST, MOST = 4, 5000  # calls of a turn


class PyTorchs:
    def __init__(self, tensor):
        self.tensor = tensor

    def on_stream(self):
        dist.all_reduce(self.tensor)

    def asynchronous(self):
        dist.all_reduce(self.tensor, async_op=True).wait()


class Ours:
    """Its calls are for the stream that is current when it is made."""

    def __init__(self, world, tensor):
        self.world, self.tensor, self.work = world, tensor, pointer()
        self.stream, self.at_work = pointer(world.place.current()), ctypes.byref(self.work)
        address, options = tensor.data_ptr(), world.options(tensors.ON_STREAM)
        self.call, self.wait, self.release = (library().comm_all_reduce, library().comm_work_wait_stream,
                                              library().comm_work_release)
        self.buffers = world.handle, address, address, tensor.numel(), tensors.DTYPES[tensor.dtype], tensors.SUM
        self.in_stream, self.beside = (ctypes.byref(options), None), (ctypes.byref(world.options(0)), self.at_work)

    def on_stream(self):
        tensors.check(self.call(*self.buffers, *self.in_stream))

    def asynchronous(self):
        tensors.check(self.call(*self.buffers, *self.beside))
        tensors.check(self.wait(self.work, self.stream))
        self.release(self.work)


def capture(make):
    """A function that launches a graph of one call."""
    make().on_stream()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # in a stream of its own
        make().on_stream()
    return graph.replay


def ways(make, place):
    """(name, call, whether each is waited for)."""
    who = make()
    yield "blocking", who.on_stream, True
    yield "on-stream", who.on_stream, False
    yield "asynchronous", who.asynchronous, False
    if isinstance(place, Card):
        yield "captured", capture(make), False


def mean_us(call, waits, place, count):
    place.finish()
    begin = time.perf_counter()
    for _ in range(count):
        call()
        if waits:
            place.finish()
    place.finish()
    return (time.perf_counter() - begin) / count * 1e6


def host_us(call, waits, place, count):
    spent = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        if waits:
            place.finish()
        spent.append(time.perf_counter() - begin)
        place.finish()
    return statistics.median(spent) * 1e6


def agreed(place, value):
    """The largest of all ranks."""
    largest = place.tensor([value], torch.float64)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    place.finish()
    return float(largest[0])


def compare(world, place, size, ms):
    """Rows: bytes, how, and four times."""
    tensor = place.tensor([0.0] * max(size // 4, 1), torch.float32)
    theirs_and_ours = zip(ways(lambda: PyTorchs(tensor), place), ways(lambda: Ours(world, tensor), place))
    for (how, theirs, waits), (_, ours, _) in theirs_and_ours:
        both = (theirs, ours)
        estimate = max(agreed(place, mean_us(call, waits, place, 8)) for call in both)
        count = int(min(MOST, max(LEAST, ms * 1e3 / estimate)))
        means = ([], [])
        for turn in range(TURNS):
            for which in (0, 1) if turn % 2 else (1, 0):
                agreed(place, 0.0)  # a barrier
                means[which].append(agreed(place, mean_us(both[which], waits, place, count)))
        hosts = []
        for call in both:
            agreed(place, 0.0)
            hosts.append(host_us(call, waits, place, min(count, SINGLES)))
        yield size, how, *(statistics.median(turn) for turn in means), *hosts


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bytes", nargs="?", default="8,1024,65536,1048576,16777216,268435456")
    parser.add_argument("ms", nargs="?", type=float, default=30)
    parser.add_argument("--standin", action="store_true")
    return parser.parse_args()


def main():
    options = parse()
    if not options.standin and not torch.cuda.is_available():
        skip("no card that PyTorch can use")
    place = (StandIn if options.standin else Card)(int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", 0))))
    dist.init_process_group("gloo" if options.standin else "nccl")
    world = World(place)
    with place.use(place.stream()):
        if world.rank == 0:
            print("bytes,how,c10d_us,libcomm_us,c10d_host_us,libcomm_host_us")
        for size in map(int, options.bytes.split(",")):
            for row in compare(world, place, size, options.ms):
                if world.rank == 0:
                    print(*(f"{cell:.3f}" if isinstance(cell, float) else cell for cell in row), sep=",", flush=True)
    world.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
