"""torch.distributed over libcomm: every claim below, as one rank of several. Started by run.py, under commrun."""
import copy
import datetime
import inspect
import os
import sys

import torch
import torch.distributed as dist

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split("a")[0].split(".")[:2])
LIMIT = datetime.timedelta(seconds=120)


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def data(owner, count, dtype=torch.float32):
    """What rank `owner` has; exact in every dtype, also summed."""
    values = (torch.arange(count, dtype=torch.int64) * 7 + owner * 3) % 5
    return values % 2 == 0 if dtype == torch.bool else values.to(dtype)


def same(got, want, what=""):
    if got.shape != want.shape or got.dtype != want.dtype or not torch.equal(got, want):
        sys.exit(f"rank {rank()}, {inspect.stack()[1].function} {what}: {got} is not {want}")


def check(condition, what):
    if not condition:
        sys.exit(f"rank {rank()}, {inspect.stack()[1].function}: {what}")


def total(count, dtype=torch.float32):
    return sum(data(r, count, dtype) for r in range(size()))


# ---- Collectives --------------------------------------------------------------------------------


def all_reduce_of_every_dtype():
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
                  torch.float32, torch.float64, torch.complex64, torch.complex128):
        for count in (0, 1, 1000):
            tensor = data(rank(), count, dtype)
            dist.all_reduce(tensor)
            same(tensor, total(count, dtype), dtype)


def all_reduce_with_every_op():
    all_data = torch.stack([data(r, 100, torch.int32) + 1 for r in range(size())])
    wants = {dist.ReduceOp.SUM: all_data.sum(0), dist.ReduceOp.PRODUCT: all_data.prod(0),
             dist.ReduceOp.MIN: all_data.min(0).values, dist.ReduceOp.MAX: all_data.max(0).values}
    for op, bitwise in ((dist.ReduceOp.BAND, torch.bitwise_and), (dist.ReduceOp.BOR, torch.bitwise_or),
                        (dist.ReduceOp.BXOR, torch.bitwise_xor)):
        want = all_data[0]
        for r in range(1, size()):
            want = bitwise(want, all_data[r])
        wants[op] = want
    for op, want in wants.items():
        tensor = data(rank(), 100, torch.int32) + 1
        dist.all_reduce(tensor, op)
        same(tensor, want.to(torch.int32), op)
    tensor = data(rank(), 100)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    same(tensor, total(100) / size(), "avg")
    truth = torch.tensor([rank() == 0, True, False])
    dist.all_reduce(truth, dist.ReduceOp.BAND)
    same(truth, torch.tensor([size() == 1, True, False]), "bool")


def async_works_complete_in_any_order():
    tensors = [data(rank(), 50000 * (i % 3) + 5) + i for i in range(9)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i in (4, 0, 8, 2, 6):
        works[i].wait()
    for i, work in enumerate(works):
        if i % 2:
            while not work.is_completed():
                pass
            work.wait()
        check(work.is_success(), "not a success")
        same(tensors[i], total(50000 * (i % 3) + 5) + i * size(), i)


def futures_complete_without_a_wait():
    tensor = data(rank(), 3000)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    same(doubled.wait(), total(3000) * 2)


def broadcast_from_every_root():
    for root in range(size()):
        tensor = data(rank(), 100, torch.int64) + rank()
        dist.broadcast(tensor, root)
        same(tensor, data(root, 100, torch.int64) + root, root)


def non_contiguous_tensors_are_served():
    matrix = torch.stack([data(rank(), 40) + i for i in range(6)])
    column = matrix.t()
    dist.all_reduce(column)
    same(matrix, torch.stack([total(40) + i * size() for i in range(6)]))


def reduce_to_every_root():
    for root in range(size()):
        tensor = data(rank(), 3000)
        dist.reduce(tensor, root)
        if rank() == root:
            same(tensor, total(3000), root)


def all_gather_in_lists_and_in_one():
    outputs = [torch.empty(77, dtype=torch.int32) for _ in range(size())]
    dist.all_gather(outputs, data(rank(), 77, torch.int32))
    for r, output in enumerate(outputs):
        same(output, data(r, 77, torch.int32), r)
    whole = torch.empty(size() * 77)
    gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
    gather(whole, data(rank(), 77))
    same(whole, torch.cat([data(r, 77) for r in range(size())]))


def gather_and_scatter():
    for root in range(size()):
        outputs = [torch.zeros(55) for _ in range(size())] if rank() == root else None
        dist.gather(data(rank(), 55), outputs, dst=root)
        for r in range(size() if rank() == root else 0):
            same(outputs[r], data(r, 55), r)
        output = torch.zeros(31, dtype=torch.uint8)
        inputs = [data(r, 31, torch.uint8) + root for r in range(size())] if rank() == root else None
        dist.scatter(output, inputs, src=root)
        same(output, data(rank(), 31, torch.uint8) + root, root)


def reduce_scatter_in_lists_and_in_one():
    output = torch.zeros(64)
    dist.reduce_scatter(output, [data(rank(), 64) + r for r in range(size())])
    same(output, total(64) + rank() * size())
    scatter = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
    scatter(output, torch.cat([data(rank(), 64) * (r + 1) for r in range(size())]), op=dist.ReduceOp.MAX)
    want = torch.stack([data(r, 64) for r in range(size())]).max(0).values * (rank() + 1)
    same(output, want)


def all_to_all_in_lists_and_with_splits():
    inputs = [data(rank(), 10 + r) for r in range(size())]
    outputs = [torch.empty(10 + rank()) for _ in range(size())]
    dist.all_to_all(outputs, inputs)
    for r, output in enumerate(outputs):
        same(output, data(r, 10 + rank()), r)
    output = torch.empty(size() * 4, 3)
    dist.all_to_all_single(output, data(rank(), size() * 12).reshape(-1, 3))
    want = torch.cat([data(r, size() * 12).reshape(-1, 3)[rank() * 4:rank() * 4 + 4] for r in range(size())])
    same(output, want)
    sends = [(rank() + r) % 3 for r in range(size())]  # rows; what i sends to j, j receives from i
    source = data(rank(), sum(sends) * 2).reshape(-1, 2)
    output = torch.empty(sum(sends), 2)
    dist.all_to_all_single(output, source, sends, sends)
    parts = []
    for r in range(size()):
        theirs = [(r + k) % 3 for k in range(size())]
        begin = sum(theirs[:rank()])
        parts.append(data(r, sum(theirs) * 2).reshape(-1, 2)[begin:begin + theirs[rank()]])
    same(output, torch.cat(parts))


def barriers():
    dist.barrier()
    dist.barrier(async_op=True).wait()


def coalesced_all_reduce():
    if not hasattr(dist, "all_reduce_coalesced"):
        return
    tensors = [data(rank(), 10 + i) for i in range(5)]
    dist.all_reduce_coalesced(tensors)
    for i, tensor in enumerate(tensors):
        same(tensor, total(10 + i), i)


# ---- Point-to-point -----------------------------------------------------------------------------


def send_and_recv_with_tags():
    following, before = (rank() + 1) % size(), (rank() - 1) % size()
    got = [torch.zeros(1000), torch.zeros(70000)]
    works = [dist.isend(data(rank(), 1000), following, tag=1), dist.isend(data(rank(), 70000) + 1, following, tag=2)]
    works += [dist.irecv(got[1], before, tag=2), dist.irecv(got[0], before, tag=1)]
    for work in works:
        work.wait()
    same(got[0], data(before, 1000))
    same(got[1], data(before, 70000) + 1)
    tensor = torch.zeros(5)
    if rank() == 0:
        dist.send(data(0, 5), 1)
    elif rank() == 1:
        dist.recv(tensor, 0)
        same(tensor, data(0, 5))


def recv_from_any_source():
    if rank() != 0:
        dist.send(data(rank(), 20), 0, tag=9)
        return
    sources = set()
    for _ in range(size() - 1):
        tensor = torch.zeros(20)
        source = dist.recv(tensor, tag=9)
        same(tensor, data(source, 20), source)
        sources.add(source)
    check(sources == set(range(1, size())), f"messages came from {sources}")


def batches_of_sends_and_receives():
    following, before = (rank() + 1) % size(), (rank() - 1) % size()
    got = torch.zeros(100000)
    ops = [dist.P2POp(dist.isend, data(rank(), 100000), following), dist.P2POp(dist.irecv, got, before)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(got, data(before, 100000))


# ---- Groups and objects -------------------------------------------------------------------------


def new_groups_are_independent():
    groups = [(ranks, dist.new_group(ranks)) for ranks in ([0], [0, 1], list(range(size())), [size() - 1, 0])]
    for ranks, group in groups:
        if rank() not in ranks:
            continue
        members = sorted(set(ranks))
        tensor = data(rank(), 100)
        dist.all_reduce(tensor, group=group)
        same(tensor, sum(data(r, 100) for r in members), ranks)
        tensor = data(rank(), 100)
        dist.broadcast(tensor, members[-1], group=group)
        same(tensor, data(members[-1], 100), ranks)
    dist.barrier()


def open_things():
    """Of this process: descriptors and threads."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def new_groups_use_what_the_default_group_has_open():
    """Programs make dozens of them. It is there when every rank has talked to every other one."""
    dist.all_to_all_single(torch.empty(size()), torch.ones(size()))
    before = open_things()
    for i in range(12):
        ranks = sorted({i % size(), (i + 1) % size()})
        group = dist.new_group(ranks)
        if rank() in ranks:
            tensor = data(rank(), 1000) + i
            dist.all_reduce(tensor, group=group)
            same(tensor, sum(data(r, 1000) for r in ranks) + i * len(ranks), ranks)
    after = open_things()
    check(after[0] <= before[0] and after[1] <= before[1], f"descriptors and threads: {before}, now {after}")


def objects_of_unequal_length():
    mine = {"rank": rank(), "text": "x" * (rank() * 1000)}
    all_objects = [None] * size()
    dist.all_gather_object(all_objects, mine)
    check(all_objects == [{"rank": r, "text": "x" * (r * 1000)} for r in range(size())], "all_gather_object")
    gathered = [None] * size() if rank() == 0 else None
    dist.gather_object(mine, gathered, dst=0)
    check(rank() != 0 or gathered == all_objects, "gather_object")
    objects = [rank(), "root's" if rank() == 1 else None]
    dist.broadcast_object_list(objects, src=1)
    check(objects == [1, "root's"], f"broadcast_object_list: {objects}")
    received = [None]
    dist.scatter_object_list(received, [f"for {r}" for r in range(size())] if rank() == 0 else None, src=0)
    check(received == [f"for {rank()}"], f"scatter_object_list: {received}")


# ---- Training -----------------------------------------------------------------------------------


def make_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))


def train(model, inputs, targets, steps=8):
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.3), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def ddp_learns_what_one_process_learns():
    torch.manual_seed(2)
    inputs, targets = torch.randn(12 * size(), 8), torch.randint(0, 3, (12 * size(),))
    mine = slice(12 * rank(), 12 * rank() + 12)
    alone = make_model()
    expected = train(alone, inputs, targets)
    model = make_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(rank())  # DDP begins with rank 0's
    together = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0005)
    losses = train(together, inputs[mine], targets[mine])
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    check(torch.allclose(losses, expected, rtol=1e-4, atol=1e-5), f"losses {losses}, alone {expected}")
    check(losses[-1] < losses[0], "it learned nothing")
    for parameter, other in zip(model.parameters(), alone.parameters()):
        check(torch.allclose(parameter, other, rtol=1e-3, atol=1e-4), "the parameters differ from one process's")
        theirs = parameter.detach().clone()
        dist.broadcast(theirs, 0)
        same(theirs, parameter.detach(), "all ranks have the same parameters")


def a_communication_hook_is_served():
    model = torch.nn.parallel.DistributedDataParallel(make_model())

    def hook(_state, bucket):
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0] / size())

    model.register_comm_hook(None, hook)
    plain = copy.deepcopy(make_model())
    inputs = data(rank(), 80).reshape(10, 8)
    model(inputs).sum().backward()
    plain(inputs).sum().backward()
    for parameter, other in zip(model.parameters(), plain.parameters()):
        want = other.grad.clone()
        dist.all_reduce(want)
        check(torch.allclose(parameter.grad, want / size(), rtol=1e-5, atol=1e-5), "the gradients differ")


# ---- Errors -------------------------------------------------------------------------------------


def errors_are_exceptions_that_say_what():
    try:
        dist.all_reduce(torch.zeros(3, dtype=torch.float32), dist.ReduceOp.BAND)
        check(False, "BAND of floats went through")
    except RuntimeError as error:
        check("band" in str(error) and "f32" in str(error), f"the text is: {error}")
    group = dist.new_group(list(range(size())), timeout=LIMIT)
    try:
        dist.all_reduce(torch.zeros(3 + rank()), group=group)
        check(False, "unequal counts went through")
    except RuntimeError as error:
        check("disagree" in str(error) or "count" in str(error) or "group" in str(error), f"the text is: {error}")
    dist.barrier()


# ---- What was missing once ----------------------------------------------------------------------


def fails_with(words, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except RuntimeError as error:
        check(words in str(error), f"the text is: {error}")
        return
    check(False, f"no error that says '{words}'")


def allgather_coalesced_goes_by_rank_then_by_tensor():
    """Also with as many tensors as ranks, when the two orders cannot be told apart by their lengths."""
    if not hasattr(dist, "all_gather_coalesced"):
        return
    for number in (1, size(), 5):
        outputs = [[torch.zeros(3 + i) for i in range(number)] for _ in range(size())]
        dist.all_gather_coalesced(outputs, [data(rank(), 3 + i) + i for i in range(number)])
        for r in range(size()):
            for i in range(number):
                same(outputs[r][i], data(r, 3 + i) + i, f"tensor {i} of rank {r}, of {number}")


def coalescing_manager_makes_one_batch():
    manager = dist.distributed_c10d._coalescing_manager
    if VERSION < (2, 1):
        return
    for device in (None, torch.device("cpu")):
        for async_ops in (False, True):
            tensors = [data(rank(), 10 + i) for i in range(3)]
            with manager(device=device, async_ops=async_ops) as batch:
                for tensor in tensors:
                    dist.all_reduce(tensor)
            if async_ops:
                batch.wait()
            for i, tensor in enumerate(tensors):
                same(tensor, total(10 + i), (device, async_ops, i))
    gathered, scattered = [torch.empty(size() * 5) for _ in range(2)], [torch.empty(4) for _ in range(2)]
    with manager():
        for i, output in enumerate(gathered):
            dist.all_gather_into_tensor(output, data(rank(), 5) + i)
    with manager():
        for i, output in enumerate(scattered):
            dist.reduce_scatter_tensor(output, torch.cat([data(rank(), 4) + r + i for r in range(size())]))
    for i in range(2):
        same(gathered[i], torch.cat([data(r, 5) + i for r in range(size())]), i)
        same(scattered[i], total(4) + (rank() + i) * size(), i)


def chains_of_futures_call_collectives_in_one_order():
    """As DDP's powerSGD does: what follows each all_reduce waits for a second one, and what follows that for a third,
    while the program itself goes on with others. Each has another length, so that a wrong order is found."""
    def follow(done):
        tensor = done.value()
        tensor = tensor[0] if isinstance(tensor, list) else tensor
        return dist.all_reduce(tensor, async_op=True).get_future().wait()[0]

    futures = []
    for i in range(40):
        future = dist.all_reduce(data(rank(), 10 + i) + i, async_op=True).get_future()
        futures.append(future.then(follow).then(follow))
        same_sum = data(rank(), 5 + i)
        dist.all_reduce(same_sum)
        same(same_sum, total(5 + i), i)
    for i, future in enumerate(futures):
        same(future.wait(), (total(10 + i) + i * size()) * size() * size(), i)


def chains_start_chains_of_their_own():
    """What a callback chains to the future of its own operation is of the next level."""
    def sum_twice(tensor):
        inner = dist.all_reduce(tensor, async_op=True).get_future()
        return inner.then(lambda done: dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0])

    outer = [dist.all_reduce(data(rank(), 10 + i), async_op=True).get_future() for i in range(8)]
    outer = [future.then(lambda done: sum_twice(done.value()[0]).wait()) for future in outer]
    for i, future in enumerate(outer):
        same(future.wait(), total(10 + i) * size() * size(), i)


def errors_go_along_a_chain():
    future = dist.all_reduce(data(rank(), 10), async_op=True).get_future()
    called = []

    def fail(_done):
        raise RuntimeError("no luck")

    last = future.then(fail).then(lambda done: called.append(done) or done.value())
    fails_with("no luck", last.wait)
    check(len(called) == 1, "what follows a failed callback is called, and finds the error")
    future.add_done_callback(lambda done: called.append(done.value()[0]))
    future.then(lambda done: None).wait()
    same(called[1], total(10))


def ddp_learns_with_power_sgd():
    """In several buckets: the hook calls collectives from callbacks of each."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    model = torch.nn.Sequential(*[torch.nn.Linear(48, 48) for _ in range(6)])
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.005)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2,
                                        min_compression_rate=0.1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    torch.manual_seed(rank())
    losses = train(model, torch.randn(12, 48), torch.randint(0, 48, (12,)), steps=12)
    check(torch.isfinite(losses).all(), f"losses {losses}")
    for parameter in model.parameters():
        theirs = parameter.detach().clone()
        dist.broadcast(theirs, 0)
        same(theirs, parameter.detach(), "all ranks have the same parameters")


def a_work_may_be_dropped_before_its_end():
    """The operation still writes its memory, which must not be reused meanwhile."""
    group = dist.new_group(list(range(size())))
    if rank() == 0:
        dist.all_reduce(torch.ones(50000), async_op=True, group=group)
        others = [torch.full((50000,), 7.0) for _ in range(20)]
    dist.barrier()  # of another group: now the others come
    if rank() != 0:
        dist.all_reduce(torch.ones(50000), group=group)
    dist.barrier()
    dist.barrier(group=group)
    check(rank() != 0 or all((other == 7).all() for other in others), "somebody's memory was written")


def a_destroyed_group_is_an_exception():
    group = dist.new_group(list(range(size())))
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    if hasattr(group, "shutdown"):
        group.shutdown()
        fails_with("destroyed", group.allreduce, [tensor])
        fails_with("destroyed", group.barrier)
    dist.destroy_process_group(group)


def groups_have_names_and_devices():
    if VERSION < (2, 1):
        return
    group = dist.new_group(list(range(size())), group_desc="the claims") if VERSION >= (2, 4) else dist.new_group()
    names = [None] * size()
    dist.all_gather_object(names, group.group_name)
    check(names == [group.group_name] * size() and group.group_name, f"the names are {names}")
    check(torch.device("cpu") in group._device_types, f"the devices are {group._device_types}")
    if VERSION >= (2, 4):
        check(group.group_desc == "the claims", f"the description is {group.group_desc}")


def time_limits_are_told_in_pytorch_s_words():
    group = dist.new_group(list(range(size())), timeout=datetime.timedelta(seconds=3))
    if rank() == 0:
        fails_with("Timed out", dist.barrier, group=group)
        fails_with("timed out", dist.barrier, group=group)
    dist.barrier()
    group = dist.new_group(list(range(size())))
    if rank() == 0:
        work = group.recv([torch.zeros(3)], 1, 77)
        fails_with("Timed out waiting 20ms", work.wait, datetime.timedelta(milliseconds=20))
        fails_with("timed out after 250 ms", work.wait, datetime.timedelta(milliseconds=250))  # in several parts
    dist.barrier()
    if rank() == 1:
        group.send([torch.ones(3)], 0, 77).wait()
    elif rank() == 0:
        work.wait()


def monitored_barriers_name_who_is_missing():
    group = dist.new_group(list(range(size())))
    barrier = group.monitored_barrier
    barrier(datetime.timedelta(seconds=30))
    if rank() == 0:
        everybody = ", ".join(map(str, range(1, size())))
        words = f"Rank{'s' if size() > 2 else ''} {everybody} failed to pass monitoredBarrier in 100 ms"
        fails_with(words, barrier, datetime.timedelta(seconds=0.1), wait_all_ranks=True)
        fails_with("Rank 0 timed out in monitoredBarrier", barrier, datetime.timedelta(seconds=0))
    dist.barrier()
    group = dist.new_group(list(range(size())))
    if rank() == 0:
        fails_with("[Rank 0]: Rank 1 failed to pass monitoredBarrier", group.monitored_barrier,
                   datetime.timedelta(seconds=2))
    elif rank() > 1:
        fails_with(f"Rank {rank()} successfully reached monitoredBarrier, but received errors while waiting for "
                   "send/recv from rank 0", group.monitored_barrier, datetime.timedelta(seconds=2))
    dist.barrier()


def groups_of_one_rank_leave_the_store_alone():
    if VERSION < (2, 1):  # 1.13 makes no subgroups without CUDA
        return
    for group_size in {1, 2}:
        mine, _ = dist.new_subgroups(group_size=group_size)
        tensor = data(rank(), 20)
        dist.all_reduce(tensor, group=mine)
        first = rank() - rank() % group_size
        same(tensor, sum(data(r, 20) for r in range(first, first + group_size)), group_size)


def groups_can_be_split():
    if not hasattr(dist, "split_group") or VERSION < (2, 12):
        return
    half = dist.split_group(None, [list(range(size() // 2)), list(range(size() // 2, size()))])
    first = 0 if rank() < size() // 2 else size() // 2
    tensor = data(rank(), 30)
    dist.all_reduce(tensor, group=half)
    same(tensor, sum(data(r, 30) for r in range(first, first + size() // 2)))
    if size() > 2:  # errors say the name that PyTorch has given
        fails_with(half.group_name, dist.all_reduce, torch.ones(2 + rank()), group=half)


def sparse_tensors_are_summed():
    dense = torch.zeros(6, 3)
    dense[rank()] = rank() + 1
    dense[5] = 1
    sparse = dense.to_sparse()
    dist.all_reduce(sparse)
    want = torch.zeros(6, 3)
    for r in range(size()):
        want[r] += r + 1
        want[5] += 1
    same(sparse.to_dense(), want)


def profilers_see_operations():
    with torch.autograd.profiler.profile() as profile:
        dist.all_reduce(torch.ones(4))
        dist.all_reduce(torch.ones(4), async_op=True).wait()
    names = [event.name for event in profile.function_events]
    check(sum("libcomm:all_reduce" in name for name in names) == 2, f"the events are {names}")


def functional_collectives_are_served():
    if VERSION < (2, 1):
        return
    import torch.distributed._functional_collectives as functional
    world = dist.group.WORLD
    same(functional.all_reduce(data(rank(), 9), "sum", world) + 0, total(9))
    same(functional.all_gather_tensor(data(rank(), 4), 0, world) + 0, torch.cat([data(r, 4) for r in range(size())]))
    same(functional.reduce_scatter_tensor(torch.cat([data(rank(), 4)] * size()), "sum", 0, world) + 0, total(4))
    tensors = functional.all_reduce_coalesced([data(rank(), 3), data(rank(), 8)], "sum", world)
    same(tensors[1] + 0, total(8))


def the_cpu_s_part_of_a_group_for_several_devices():
    """As in "cpu:libcomm,cuda:nccl"; only the native layer can be one of several."""
    if os.environ.get("TORCH_LIBCOMM_LAYER") != "native":
        return
    group = dist.new_group(backend="cpu:libcomm,cuda:gloo")
    check({device.type for device in group._device_types} == {"cpu", "cuda"}, f"devices {group._device_types}")
    check(group._get_backend(torch.device("cpu")).name() == "libcomm", "the CPU's backend is another one")
    tensor = data(rank(), 50)
    dist.all_reduce(tensor, group=group)
    same(tensor, total(50))
    objects = [None] * size()
    dist.all_gather_object(objects, rank(), group=group)
    check(objects == list(range(size())), f"the objects are {objects}")


def the_library_finds_what_it_needs_in_the_wheel():
    import torch_libcomm
    own = os.path.dirname(os.path.realpath(torch_libcomm.library_path()))
    if own != os.path.dirname(os.path.realpath(torch_libcomm.__file__)):
        return  # the sources are tried, with the library of the build folder
    if VERSION < (2, 1):
        return  # Debian's PyTorch has brought libuv itself
    with open("/proc/self/maps") as maps:
        files = {line.split()[-1] for line in maps if "/" in line}
    for name in ("libcomm.so", "libuv.so", "libsodium.so", "libxxhash.so"):
        found = {file for file in files if os.path.basename(file).startswith(name)}
        check(found and all(os.path.dirname(file) == own for file in found), f"{name} comes from {found}, not {own}")


def run(claims):
    """Those that are named by the arguments, or all."""
    torch.set_num_threads(1)
    if VERSION < (2, 5):
        import torch_libcomm  # newer releases find it by its entry point
    dist.init_process_group("libcomm", timeout=LIMIT)
    chosen = sys.argv[1:]
    for claim in claims:
        if chosen and claim.__name__ not in chosen:
            continue
        try:
            claim()
        except Exception as error:
            import traceback
            traceback.print_exc()
            sys.exit(f"rank {rank()}, {claim.__name__}: {type(error).__name__}: {error}")
        dist.barrier()
        if rank() == 0:
            print(claim.__name__.replace("_", " "), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    run([claim for name, claim in list(globals().items())
         if inspect.isfunction(claim) and not inspect.signature(claim).parameters and name not in (
             "rank", "size", "make_model", "open_things")])
