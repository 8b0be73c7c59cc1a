"""How programs begin, end and break off: launches.py [CLAIM...]. It starts its ranks itself."""
import atexit
import ctypes
import datetime
import gc
import inspect
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist

VERSION = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
SIZE = 2


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def begin(backend="libcomm", **options):
    if VERSION < (2, 5):
        import torch_libcomm  # newer releases find it by its entry point
    dist.init_process_group(backend, **options)


def add_up(group=None):
    tensor = torch.full((3,), float(dist.get_rank(group) + 1))
    dist.all_reduce(tensor, group=group)
    check(float(tensor[0]) == sum(range(1, dist.get_world_size(group) + 1)), f"the sum is {tensor}")


def start(function, *arguments, context="fork", size=SIZE):
    """A process for each rank: function(rank, ...)."""
    make = multiprocessing.get_context(context).Process
    ranks = [make(target=function, args=(rank, *arguments)) for rank in range(size)]
    for rank in ranks:
        rank.start()
    return ranks


def codes(ranks, limit_s=60):
    """Their exit statuses, when all have ended."""
    deadline = time.monotonic() + limit_s
    for rank in ranks:
        rank.join(max(deadline - time.monotonic(), 0))
    stuck = [rank for rank in ranks if rank.is_alive()]
    for rank in stuck:
        rank.kill()
        rank.join()
    check(not stuck, f"{len(stuck)} ranks have not ended")
    return [rank.exitcode for rank in ranks]


# ---- Beginning ----------------------------------------------------------------------------------


def by_url(rank, url):
    begin(init_method=url, rank=rank, world_size=SIZE)
    add_up()
    dist.destroy_process_group()


def every_url_is_a_meeting_point():
    for url in (f"file://{tempfile.mktemp()}", f"tcp://127.0.0.1:{free_port()}"):
        check(codes(start(by_url, url)) == [0] * SIZE, url)


def by_environment(rank, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(SIZE), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    begin()
    add_up()
    dist.destroy_process_group()


def the_environment_is_a_meeting_point():
    check(codes(start(by_environment, free_port())) == [0] * SIZE, "env://")


def with_a_device(rank, url):
    begin(init_method=url, rank=rank, world_size=SIZE, device_id=torch.device("cpu:0"))
    add_up()
    add_up(dist.new_group())
    dist.destroy_process_group()


def the_cpu_may_be_named_as_the_device():
    if VERSION >= (2, 15):  # older ones take no device_id, or none of the CPU
        check(codes(start(with_a_device, f"file://{tempfile.mktemp()}")) == [0] * SIZE, "device_id")


def by_store(rank, path):
    kept = []
    for i in range(20):
        begin(store=dist.FileStore(f"{path}{i}", SIZE), rank=rank, world_size=SIZE)
        add_up()
        kept.append(dist.new_group())
        add_up(kept[-1])
        dist.destroy_process_group()
    stores = dist.PrefixStore("again", dist.FileStore(path, SIZE))
    begin(store=stores, rank=rank, world_size=SIZE)
    add_up()  # and ends without destroying it


def a_process_begins_many_times():
    check(codes(start(by_store, tempfile.mktemp())) == [0] * SIZE, "20 times")


def spawned_processes_are_ranks():
    check(codes(start(by_url, f"file://{tempfile.mktemp()}", context="spawn")) == [0] * SIZE, "spawn")


def alone(_rank):
    begin(store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    dist.barrier()
    check(tensor.tolist() == [1, 1, 1], f"{tensor}")
    dist.destroy_process_group()


def a_world_of_one_rank():
    check(codes(start(alone)) == [0] * SIZE, "one rank")


# ---- Groups -------------------------------------------------------------------------------------


# zlib.crc32 makes one number of them.
COLLIDING = (90, 350, 973, 885, 365, 729, 763, 192), (899, 710, 212, 282, 869, 227, 51, 435)


def beside_gloo(rank, url):
    begin("gloo", init_method=url, rank=rank, world_size=SIZE)
    for ranks in ([0, 1], [1], [0, 1]):
        group = dist.new_group(ranks, backend="libcomm")
        if rank in ranks:
            add_up(group)
    add_up()
    dist.destroy_process_group()


def groups_beside_a_default_group_of_another_kind():
    """There is none of ours to make them from."""
    check(codes(start(beside_gloo, f"file://{tempfile.mktemp()}")) == [0] * SIZE, "beside Gloo")


def closes_the_default_first(rank, url):
    begin(init_method=url, rank=rank, world_size=SIZE)
    groups = [dist.new_group()]
    if hasattr(dist, "split_group") and VERSION >= (2, 12):
        groups.append(dist.split_group(None, [[0, 1]]))
    default = dist.group.WORLD
    if hasattr(default, "shutdown"):
        default.shutdown()
    groups.append(dist.new_group())  # a world of its own
    gc.collect()
    for group in groups:
        add_up(group)
    dist.destroy_process_group()


def groups_outlive_the_default_group():
    """With the store that they have come together by."""
    check(codes(start(closes_the_default_first, f"file://{tempfile.mktemp()}")) == [0] * SIZE, "the default is closed")


def rank_0_of_three_dies(rank, url):
    begin(init_method=url, rank=rank, world_size=3)
    pair, everybody = dist.new_group([1, 2]), dist.new_group()
    add_up(everybody)
    if rank == 0:
        os._exit(1)
    for group in (everybody, None):
        try:
            add_up(group)
            check(False, "a sum without rank 0")
        except RuntimeError as error:
            check("rank 0" in str(error), f"the text is: {error}")
    for _ in range(100):
        add_up(pair)
    if VERSION >= (2, 1):  # older ones ask the store, which has ended with rank 0
        add_up(dist.new_group([1, 2]))
    dist.destroy_process_group(pair)
    dist.destroy_process_group()


def groups_without_the_dead_go_on():
    """And the ranks that are left make new ones."""
    ended = codes(start(rank_0_of_three_dies, f"tcp://127.0.0.1:{free_port()}", size=3))
    check(ended == [1, 0, 0], f"exit statuses {ended}")


def groups_of_other_ranks_have_other_places_in_the_store():
    """Also two lists of which zlib.crc32 makes the same number."""
    from torch_libcomm.world import prefix_of
    first, second = COLLIDING
    check(prefix_of(first) != prefix_of(second), "two lists have one prefix")


# ---- Breaking off -------------------------------------------------------------------------------


def tell_the_end_of(step, texts):
    """It is done until it fails, as another rank has ended."""
    try:
        for i in range(1000000):
            step(i)
    except RuntimeError as error:
        texts.put(str(error))
        sys.exit(7)


def one_fails(rank, url, texts):
    begin(init_method=url, rank=rank, world_size=SIZE)
    add_up()
    if rank == 1:
        sys.stderr = open(os.devnull, "w")
        raise ValueError("this rank gives up")
    tell_the_end_of(lambda _: add_up(), texts)


def check_told(function, words):
    """Rank 1 ends in that function, and what rank 0 is told has these words."""
    texts = multiprocessing.get_context("fork").SimpleQueue()
    ended = codes(start(function, f"file://{tempfile.mktemp()}", texts))
    check(ended == [7, 1], f"exit statuses {ended}")
    text = texts.get()
    check(words in text, f"the text is: {text}")


def an_exception_in_one_rank_is_told_to_the_others():
    check_told(one_fails, "rank 1")


def one_dies_in_training(rank, url, texts):
    begin(init_method=url, rank=rank, world_size=SIZE)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))

    def train(i):
        if i == 3 and rank == 1:
            os._exit(1)
        model(torch.ones(2, 3)).sum().backward()

    tell_the_end_of(train, texts)


def a_death_is_an_exception_of_the_backward_pass():
    check_told(one_dies_in_training, "rank 1")


def one_ends_by_an_exception(rank, url, texts):
    """As the interpreter ends by one: a process of multiprocessing does not."""
    begin(init_method=url, rank=rank, world_size=SIZE)
    add_up()
    if rank == 1:
        sys.last_value = ValueError("my bug")
        atexit._run_exitfuncs()
        os._exit(1)
    tell_the_end_of(lambda _: add_up(), texts)


def the_exception_that_ends_a_rank_is_told_to_the_others():
    check_told(one_ends_by_an_exception, "ended by ValueError: my bug")


def interrupted(call):
    """Whether Ctrl-C ends it, when this thread has begun it."""
    main, begins = threading.get_ident(), []

    def interrupt():
        while not begins or sys._current_frames()[main].f_code is interrupted.__code__:
            pass
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        begins.append(True)
        call()
    except KeyboardInterrupt:
        return True
    finally:
        thread.join()
    return False


GROUPS = 10  # an interrupt ends the group


def waits_and_is_interrupted(rank, url, first_ended, second_ended, number=GROUPS):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    begin(init_method=url, rank=rank, world_size=SIZE)
    add_up()
    tensor = torch.ones(1)
    groups = [dist.new_group() for _ in range(number)]
    if rank == 1:
        first_ended.wait()
        dist.all_reduce(tensor)
        second_ended.wait()
        return
    work = dist.all_reduce(tensor, async_op=True)
    check(interrupted(lambda: work.wait()), "a wait for a work has not ended")
    first_ended.set()
    work.wait()
    check(float(tensor) == 2, f"the sum is {tensor}")
    if os.environ.get("TORCH_LIBCOMM_LAYER") == "native" or not hasattr(dist.AllreduceOptions(), "asyncOp"):
        # On one processor the signal mostly comes when the call has let go of Python's lock, and does not wait yet.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        for group in groups:
            check(interrupted(lambda: dist.all_reduce(tensor, group=group)), "a blocking call has not ended")
    second_ended.set()


def an_interrupt_ends_waits():
    events = [multiprocessing.get_context("fork").Event() for _ in range(2)]
    ended = codes(start(waits_and_is_interrupted, f"file://{tempfile.mktemp()}", *events))
    check(ended == [0] * SIZE, f"exit statuses {ended}")


def completes_a_future(rank, url):
    begin(init_method=url, rank=rank, world_size=SIZE)
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    check(float(future.then(lambda done: done.value()[0].sum()).wait()) == 3 * SIZE, "the sum")
    dist.destroy_process_group()


def forks_ranks(_rank):
    """When it has been a rank itself."""
    begin(store=dist.HashStore(), rank=0, world_size=1)
    for _ in range(3):
        dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda done: None).wait()
    dist.destroy_process_group()
    check(codes(start(completes_a_future, f"file://{tempfile.mktemp()}"), 15) == [0] * SIZE, "futures")
    events = [multiprocessing.get_context("fork").Event() for _ in range(2)]
    ranks = start(waits_and_is_interrupted, f"file://{tempfile.mktemp()}", *events, 2)
    check(codes(ranks, 15) == [0] * SIZE, "interrupts")


def processes_forked_from_a_rank_have_threads_of_their_own():
    """Those that complete futures, and the one that listens for Ctrl-C."""
    check(codes(start(forks_ranks)) == [0] * SIZE, "forked ranks")


LATE_WAITS = """
#define _GNU_SOURCE
#include <dlfcn.h>
int comm_work_wait(void *work, long timeout_ms)
{
    int (*wait)(void *, long) = (int (*)(void *, long))dlsym(RTLD_NEXT, "comm_work_wait");
    return wait(work, 0) == 0 && timeout_ms > 0 ? -5 : 0; /* TIMEOUT */
}
"""


def waits_too_short(_rank, own, late):
    ctypes.CDLL(own)  # which the other one is linked to
    os.environ["TORCH_LIBCOMM_LIBRARY"] = late
    begin(store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    check(work.wait(), "the wait has failed")
    work = dist.all_reduce(tensor, async_op=True)
    check(work.wait(datetime.timedelta(milliseconds=20)), "the wait with a time limit has failed")
    dist.destroy_process_group()


def an_operation_ends_between_two_waits():
    """A library in front of libcomm tells each wait that its time is over, when the operation has just ended."""
    compiler = shutil.which("cc")
    if not compiler:
        return
    import torch_libcomm
    with tempfile.TemporaryDirectory() as folder:
        source, late = os.path.join(folder, "late.c"), os.path.join(folder, "late.so")
        with open(source, "w") as file:
            file.write(LATE_WAITS)
        own = os.path.realpath(torch_libcomm.library_path())
        subprocess.run([compiler, "-shared", "-fPIC", "-o", late, source, "-Wl,--no-as-needed", own, "-ldl"],
                       check=True)
        ended = codes(start(waits_too_short, own, late))
    check(ended == [0] * SIZE, f"exit statuses {ended}")


def calls_what_others_do_not(rank, url, texts):
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    begin(init_method=url, rank=rank, world_size=SIZE)
    add_up()
    try:
        dist.all_reduce(torch.ones(3 + rank))
    except RuntimeError as error:
        texts.put(str(error))


def the_debug_level_detail_finds_mismatches():
    """In PyTorch's words where PyTorch's wrapper can be put around our backend; libcomm finds them at every level."""
    texts = multiprocessing.get_context("fork").SimpleQueue()
    check(codes(start(calls_what_others_do_not, f"file://{tempfile.mktemp()}", texts)) == [0] * SIZE, "an error")
    native = os.environ.get("TORCH_LIBCOMM_LAYER") == "native"
    for _ in range(SIZE):
        text = texts.get()
        check(("Detected mismatch between collectives" if native else "disagree") in text, f"the text is: {text}")


ELASTIC = """
import os, sys, torch, torch.distributed as dist
{imports}
dist.init_process_group("libcomm")
tensor = torch.ones(3)
dist.all_reduce(tensor)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
    os._exit(3)
for _ in range(50):
    dist.all_reduce(tensor)
dist.barrier()
line = "rank %d after %s restarts\\n" % (dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"])
os.write(1, line.encode())  # at once: the ranks share the pipe
dist.destroy_process_group()
"""


def torchrun_starts_again_after_a_death():
    if VERSION < (2, 0):
        return  # Debian's torchrun does not run under its own Python
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "program.py")
        with open(program, "w") as file:
            file.write(ELASTIC.format(imports="import torch_libcomm" if VERSION < (2, 5) else ""))
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(SIZE), "--max-restarts", "1",
                   "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    check(done.returncode == 0, done.stdout + done.stderr)
    for rank in range(SIZE):
        check(f"rank {rank} after 1 restarts" in done.stdout, done.stdout + done.stderr)


def main():
    torch.set_num_threads(1)
    helpers = (check, free_port, begin, add_up, start, codes, interrupted, main)
    for claim in [one for one in globals().values() if inspect.isfunction(one) and one not in helpers
                  and not inspect.signature(one).parameters]:
        if not sys.argv[1:] or claim.__name__ in sys.argv[1:]:
            claim()
            print(claim.__name__.replace("_", " "), flush=True)


if __name__ == "__main__":
    main()
