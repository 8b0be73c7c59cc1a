"""PyTorch's tensors reduced in place on a card by libcomm, by ctypes alone: tensors.py [--standin], run as ranks

What a program in any language would do: a tensor gives its address (data_ptr()), the current stream its handle
(torch.cuda.current_stream().cuda_stream), and nothing is copied or waited for on the host. With --standin the tensors
lie in memory of tests/standin's CUDA runtime, to try this program where there is no card. Skips (77) and says why where
it cannot run; tools/test-gpu runs it.
"""
import contextlib
import ctypes
import os
import sys


def skip(why):
    print("skipped:", why)
    sys.exit(77)


try:
    import torch
except ImportError as error:
    skip(f"no PyTorch: {error}")
from torch_libcomm.group import DTYPES
from torch_libcomm.library import InitOptions, OpOptions, check, library, pointer

BACKEND, TIMEOUT_MS = os.environ.get("COMM_BACKEND", "cpu:tcp,cuda:nccl").encode(), 60000
CPU, CUDA, SUM, MAX, ON_STREAM = 1, 2, 0, 4, 1 << 1
COUNT = 5000


class Card:
    """Tensors and streams of one GPU."""

    def __init__(self, rank):
        self.index = rank % torch.cuda.device_count()
        torch.cuda.set_device(self.index)

    def tensor(self, values, dtype):
        return torch.tensor(values, dtype=dtype, device=torch.device("cuda", self.index))

    def stream(self):
        return torch.cuda.Stream()

    def use(self, stream):
        return torch.cuda.stream(stream)

    def current(self):
        return torch.cuda.current_stream().cuda_stream

    def enqueued(self):
        """PyTorch's kernels come after what is in the stream."""

    def finish(self):
        torch.cuda.current_stream().synchronize()


class StandIn:
    """The same, but what PyTorch does is done at once, on the CPU."""

    def __init__(self, rank):
        self.cuda = ctypes.CDLL(os.environ["COMM_NCCL_CUDART"])
        count = ctypes.c_int()
        self.call("cudaGetDeviceCount", ctypes.byref(count))
        self.index = rank % count.value
        self.call("cudaSetDevice", self.index)
        self.in_use = None

    def call(self, name, *arguments):
        if getattr(self.cuda, name)(*arguments) != 0:
            raise RuntimeError(f"{name} failed")

    def tensor(self, values, dtype):
        own, address = torch.tensor(values, dtype=dtype), pointer()
        size = own.numel() * own.element_size()
        self.call("cudaMallocManaged", ctypes.byref(address), ctypes.c_size_t(size), 1)  # PyTorch reads it
        there = torch.frombuffer((ctypes.c_char * size).from_address(address.value), dtype=dtype)
        there.copy_(own)
        return there

    def stream(self):
        stream = pointer()
        self.call("cudaStreamCreateWithFlags", ctypes.byref(stream), 1)
        return stream.value

    @contextlib.contextmanager
    def use(self, stream):
        self.in_use = stream
        yield
        self.in_use = None

    def current(self):
        return self.in_use

    def enqueued(self):
        self.finish()

    def finish(self):
        self.call("cudaStreamSynchronize", pointer(self.in_use))


class World:
    """A group of all ranks, and the calls that are tried here."""

    def __init__(self, place):
        self.place, self.handle = place, pointer()
        library().comm_group_rank.argtypes = library().comm_group_size.argtypes = [pointer]
        library().comm_work_wait_stream.argtypes = [pointer, pointer]
        options = InitOptions(backend=BACKEND, timeout_ms=TIMEOUT_MS)
        check(library().comm_init(ctypes.byref(options), ctypes.byref(self.handle)))
        self.rank = library().comm_group_rank(self.handle)
        self.size = library().comm_group_size(self.handle)

    def options(self, flags):
        """Of an operation on this rank's GPU, in the order of the current stream."""
        return OpOptions(flags=flags, device=CUDA | (self.place.index + 1) << 8, stream=self.place.current())

    def all_reduce(self, tensor, redop=SUM, flags=ON_STREAM, work=None):
        """In place."""
        check(library().comm_all_reduce(self.handle, tensor.data_ptr(), tensor.data_ptr(), tensor.numel(),
                                        DTYPES[tensor.dtype], redop, ctypes.byref(self.options(flags)), work))

    def close(self):
        check(library().comm_group_close(self.handle))

    def total(self):
        return self.size * (self.size + 1) // 2


def expect(tensor, value, what):
    wrong = (tensor != value).nonzero()
    assert not wrong.numel(), f"{what}: element {wrong[0].item()} is {tensor[wrong[0]].item()}, not {value}"


def between_kernels(world, place):
    """Kernels before and after it in the current stream, and no wait of the host."""
    for stream in (place.stream(), None):
        with place.use(stream) if stream else contextlib.nullcontext():
            for turn in range(4):
                x = place.tensor([world.rank + 1] * COUNT, torch.float32)
                x.mul_(2 + turn)
                world.all_reduce(x)
                place.enqueued()
                y = x * 3
                place.finish()
                expect(y, 3 * (2 + turn) * world.total(), "between kernels")


def every_type(world, place):
    """What PyTorch and NCCL both have; a slice of a tensor, which begins anywhere."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32,
                  torch.int64):
        x = place.tensor([world.rank + 1] * COUNT, dtype)
        part = x[3:4000]
        world.all_reduce(part)
        world.all_reduce(x[4500:], MAX)
        place.finish()
        expect(part, world.total(), dtype)
        expect(x[4500:], world.size, dtype)
        expect(x[4000:4500], world.rank + 1, dtype)
        expect(x[:3], world.rank + 1, dtype)


def asynchronous(world, place):
    """Several at once; another stream waits for them without the host."""
    first, other, works, tensors = place.stream(), place.stream(), [], []
    with place.use(first):
        for number in range(6):
            tensors.append(place.tensor([world.rank + number] * COUNT, torch.int32))
            works.append(pointer())
            world.all_reduce(tensors[-1], flags=0, work=ctypes.byref(works[-1]))
    with place.use(other):
        for number in reversed(range(6)):
            check(library().comm_work_wait_stream(works[number], pointer(place.current())))
            place.enqueued()
            doubled = tensors[number] * 2
            place.finish()
            expect(doubled, 2 * (world.total() - world.size + number * world.size), "another stream")
    for work in works:
        check(library().comm_work_wait(work, TIMEOUT_MS))
        library().comm_work_release(work)


def captured(world, place):
    """PyTorch's graph has the operation in it, between two kernels."""
    if not isinstance(place, Card):
        if world.rank == 0:  # tests/nccl/streams.c captures on the stand-in
            print("skipped: a graph: PyTorch's graphs are those of CUDA", flush=True)
        return
    x, graph = place.tensor([0.0] * COUNT, torch.float32), torch.cuda.CUDAGraph()
    world.all_reduce(x)  # the ranks are connected before the capture
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        doubled = x * 2
        world.all_reduce(doubled)
        y = doubled + 1
    for turn in range(3):
        x.fill_(world.rank + 1 + turn)
        graph.replay()
        place.finish()
        expect(y, 2 * (world.total() + turn * world.size) + 1, "a graph")


def on_the_cpu(world):
    """The CPU backend of the same group."""
    x = torch.full((COUNT,), world.rank + 1.0)
    check(library().comm_all_reduce(world.handle, x.data_ptr(), x.data_ptr(), COUNT, DTYPES[x.dtype], SUM,
                                    ctypes.byref(OpOptions(device=CPU)), None))
    expect(x, world.total(), "on the CPU")


def main():
    on_standin = sys.argv[1:] == ["--standin"]
    if not on_standin and not torch.cuda.is_available():
        skip("no card that PyTorch can use")
    place = (StandIn if on_standin else Card)(int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", 0))))
    world = World(place)
    for case in (between_kernels, every_type, asynchronous, captured):
        case(world, place)
    on_the_cpu(world)
    world.close()
    if world.rank == 0:
        name = "the stand-in" if on_standin else torch.cuda.get_device_name(place.index)
        print(f"PyTorch {torch.__version__}, {world.size} ranks, {name}: its tensors were reduced in place")


if __name__ == "__main__":
    main()
