"""What users do with torch.distributed, each once, as one rank of several: usage.py [CLAIM...]. Started by run.py."""
import datetime
import inspect
import os
import threading

import torch
import torch.distributed as dist

from claims import LIMIT, VERSION, check, data, fails_with, rank, run, same, size, total

AS_ONE = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
SCATTERED = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base


# ---- Tensors of all kinds -----------------------------------------------------------------------


def tensors_without_elements():
    for shape in ((0,), (3, 0), (0, 4)):
        tensor = torch.empty(shape)
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        dist.reduce(tensor, 0)
        dist.all_gather([torch.empty(shape) for _ in range(size())], tensor)
        dist.all_to_all([torch.empty(shape) for _ in range(size())], [torch.empty(shape)] * size())
        dist.scatter(tensor, [torch.empty(shape)] * size() if rank() == 0 else None, 0)
        dist.gather(tensor, [torch.empty(shape) for _ in range(size())] if rank() == 0 else None, 0)
        check(tensor.shape == shape, f"the shape has become {tensor.shape}")
    AS_ONE(torch.empty(0), torch.empty(0))
    SCATTERED(torch.empty(0), torch.empty(0))
    dist.all_to_all_single(torch.empty(0), torch.empty(0))
    none = [0] * size()
    dist.all_to_all_single(torch.empty(0, 3), torch.empty(0, 3), none, none)


def tensors_without_dimensions():
    tensor = torch.tensor(float(rank()))
    dist.all_reduce(tensor)
    same(tensor, torch.tensor(float(sum(range(size())))))
    outputs = [torch.tensor(0.0) for _ in range(size())]
    dist.all_gather(outputs, torch.tensor(float(rank())))
    check([float(output) for output in outputs] == list(range(size())), f"{outputs}")
    whole = torch.empty(size())
    AS_ONE(whole, torch.tensor(float(rank())))
    same(whole, torch.arange(float(size())))
    part = torch.tensor(0.0)
    dist.scatter(part, [torch.tensor(float(r)) for r in range(size())] if rank() == 0 else None, 0)
    same(part, torch.tensor(float(rank())))
    SCATTERED(part, torch.arange(float(size())))
    same(part, torch.tensor(float(rank() * size())))
    number = torch.tensor(rank() == 0)
    dist.broadcast(number, 0)
    check(bool(number), "a single truth value")


def strided_tensors_in_every_operation():
    def strided(values):
        """The same values with gaps between them."""
        wide = torch.full((*values.shape, 2), -1, dtype=values.dtype)
        wide[..., 0] = values
        return wide[..., 0]

    def zeros(*shape):
        return strided(torch.zeros(shape))

    mine = strided(data(rank(), 12).reshape(3, 4))
    outputs = [zeros(3, 4) for _ in range(size())]
    dist.all_gather(outputs, mine)
    for r, output in enumerate(outputs):
        same(output, data(r, 12).reshape(3, 4), r)
    rows = torch.zeros(3, 4 * size())
    dist.all_gather(list(rows.chunk(size(), dim=1)), mine)
    same(rows, torch.cat([data(r, 12).reshape(3, 4) for r in range(size())], 1))
    whole = zeros(3 * size(), 4)
    AS_ONE(whole, mine)
    same(whole, torch.cat([data(r, 12).reshape(3, 4) for r in range(size())]))
    part = zeros(3, 4)
    SCATTERED(part, strided(torch.cat([data(rank(), 12).reshape(3, 4) + r for r in range(size())])))
    same(part, total(12).reshape(3, 4) + rank() * size())
    dist.reduce_scatter(part, [mine + r for r in range(size())])
    same(part, total(12).reshape(3, 4) + rank() * size())
    dist.scatter(part, [strided(data(r, 12).reshape(3, 4)) for r in range(size())] if rank() == 0 else None, 0)
    same(part, mine + 0)
    dist.gather(mine, outputs if rank() == 0 else None, 0)
    dist.all_to_all(outputs, [mine] * size())
    same(outputs[-1], data(size() - 1, 12).reshape(3, 4))
    dist.all_to_all_single(whole, strided(torch.cat([data(rank(), 12).reshape(3, 4)] * size())))
    same(whole, torch.cat([data(r, 12).reshape(3, 4) for r in range(size())]))
    reduced = strided(data(rank(), 12).reshape(3, 4)).t()
    dist.reduce(reduced, 0)
    if rank() == 0:
        same(reduced, total(12).reshape(3, 4).t())
    got = zeros(5)
    requests = [dist.isend(strided(data(rank(), 5)), (rank() + 1) % size()), dist.irecv(got, (rank() - 1) % size())]
    for request in requests:
        request.wait()
    same(got, data((rank() - 1) % size(), 5))
    image = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last) * (rank() + 1)
    dist.all_reduce(image)
    check(image.stride()[1] == 1 and bool((image == sum(range(1, size() + 1))).all()), "channels_last")


def views_of_larger_tensors():
    whole = torch.zeros(10)
    whole[3:7] = rank() + 1.0
    dist.all_reduce(whole[3:7])
    same(whole, torch.tensor([0.0] * 3 + [float(sum(range(1, size() + 1)))] * 4 + [0.0] * 3))


def expanded_tensors():
    """Several elements are one in memory."""
    parts = [data(r, 3).reshape(1, 3, 1) for r in range(size())]
    for function, want in ((dist.all_reduce, total(3).reshape(1, 3, 1)),
                           (lambda tensor: dist.broadcast(tensor, 1), parts[1])):
        tensor = data(rank(), 3).reshape(1, 3, 1).expand(4, 3, 2)
        function(tensor)
        same(tensor + 0, want.expand(4, 3, 2))
    reduced = data(rank(), 1).expand(5)
    dist.reduce(reduced, 0)
    if rank() == 0:
        same(reduced + 0, total(1).expand(5))
    outputs = [torch.zeros(3) for _ in range(size())]
    dist.all_gather(outputs, data(rank(), 1).expand(3))
    for r in range(size()):
        same(outputs[r], data(r, 1).expand(3) + 0, r)
    if rank() == 0:  # the others have called nothing
        fails_with("expanded", dist.recv, torch.zeros(1).expand(3), 1)
        fails_with("expanded", dist.all_gather, [torch.zeros(1).expand(3) for _ in range(size())], torch.ones(3))
    dist.barrier()


def negated_views():
    """PyTorch negates them when they are read. (It refuses complex tensors that are still to be conjugated.)"""
    negated = torch.complex(data(rank(), 6), data(rank(), 6) + 1).conj().imag
    outputs = [torch.zeros(6) for _ in range(size())]
    dist.all_gather(outputs, negated)
    for r, output in enumerate(outputs):
        same(output, -(data(r, 6) + 1), r)
    outputs = [torch._neg_view(torch.zeros(6)) for _ in range(size())]
    dist.all_gather(outputs, data(rank(), 6))
    for r, output in enumerate(outputs):
        same(output + 0, data(r, 6), r)
    dist.all_reduce(negated)
    same(negated + 0, -(total(6) + size()))
    contiguous = torch._neg_view(data(rank(), 6))
    dist.all_reduce(contiguous)
    same(contiguous + 0, -total(6))
    contiguous = torch._neg_view(data(rank(), 6))
    dist.broadcast(contiguous, 0)
    same(contiguous + 0, -data(0, 6))
    received = torch._neg_view(torch.zeros(6))
    swap = [dist.P2POp(dist.isend, data(rank(), 6), (rank() + 1) % size()),
            dist.P2POp(dist.irecv, received, (rank() - 1) % size())]
    for work in dist.batch_isend_irecv(swap):
        work.wait()
    same(received + 0, data((rank() - 1) % size(), 6))
    gloo = dist.new_group(backend="gloo")  # as ever
    outputs = [torch.zeros(6) for _ in range(size())]
    dist.all_gather(outputs, torch._neg_view(data(rank(), 6)), group=gloo)
    for r, output in enumerate(outputs):
        same(output, -data(r, 6), r)
    dist.destroy_process_group(gloo)


def truth_values_with_every_op():
    for op, want in ((dist.ReduceOp.SUM, True), (dist.ReduceOp.MAX, True), (dist.ReduceOp.BOR, True),
                     (dist.ReduceOp.PRODUCT, size() == 1), (dist.ReduceOp.MIN, size() == 1),
                     (dist.ReduceOp.BAND, size() == 1)):
        tensor = torch.tensor([rank() == 0, True, False])
        dist.all_reduce(tensor, op)
        same(tensor, torch.tensor([want, True, False]), op)


def short_floats_in_every_operation():
    for dtype in (torch.bfloat16, torch.float16):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT, dist.ReduceOp.AVG):
            tensor = torch.full((5,), float(rank() + 1), dtype=dtype)
            dist.all_reduce(tensor, op)
            ranks = torch.arange(1.0, size() + 1)
            want = {dist.ReduceOp.SUM: ranks.sum(), dist.ReduceOp.MAX: ranks.max(), dist.ReduceOp.MIN: ranks.min(),
                    dist.ReduceOp.PRODUCT: ranks.prod(), dist.ReduceOp.AVG: ranks.mean()}[op]
            same(tensor, torch.full((5,), float(want), dtype=dtype), op)


def parameters_and_their_gradients():
    parameter = torch.nn.Parameter(data(rank(), 8))
    (parameter * (rank() + 1)).sum().backward()
    dist.all_reduce(parameter.grad)
    same(parameter.grad, torch.full((8,), float(sum(range(1, size() + 1)))))
    with torch.no_grad():
        dist.broadcast(parameter, 0)
    dist.broadcast(parameter.data, 0)
    same(parameter.detach(), data(0, 8))
    with torch.inference_mode():
        tensor = data(rank(), 8)
        dist.all_reduce(tensor)
        matrix = data(rank(), 6).reshape(2, 3).t()
        dist.all_reduce(matrix)
        outputs = [torch.empty(3, 2) for _ in range(size())]
        dist.all_gather(outputs, matrix)
        same(tensor, total(8))
        same(matrix + 0, total(6).reshape(2, 3).t())


def tensors_that_cannot_be_sent():
    fails_with("parse", dist.broadcast, torch.eye(3).to_sparse(), 0)
    dist.barrier()


# ---- Objects ------------------------------------------------------------------------------------


def large_objects():
    mine = {"rank": rank(), "blob": os.urandom(3 << 20) if rank() else b"", "tensor": torch.full((1000,), rank())}
    found = [None] * size()
    dist.all_gather_object(found, mine)
    check([len(one["blob"]) for one in found] == [0] + [3 << 20] * (size() - 1), "the sizes differ")
    check(all(bool((one["tensor"] == r).all()) for r, one in enumerate(found)), "the tensors differ")
    objects = [mine["blob"], None, {1: 2}] if rank() == size() - 1 else [None] * 3
    dist.broadcast_object_list(objects, src=size() - 1)
    check(len(objects[0]) == 3 << 20 and objects[2] == {1: 2}, "broadcast_object_list")
    part = [None]
    dist.scatter_object_list(part, [list(range(r * 1000)) for r in range(size())] if rank() == 0 else None, 0)
    check(part == [list(range(rank() * 1000))], "scatter_object_list")


# ---- Groups -------------------------------------------------------------------------------------


def roots_of_groups_are_ranks_of_the_world():
    backwards = list(range(size()))[::-1]
    group = dist.new_group(backwards)
    for root in backwards:
        outputs = [torch.zeros(2) for _ in range(size())] if rank() == root else None
        dist.gather(torch.full((2,), float(rank())), outputs, dst=root, group=group)
        if rank() == root:
            members = dist.get_process_group_ranks(group) if VERSION >= (2, 0) else sorted(backwards)
            check([int(output[0]) for output in outputs] == members, f"{outputs}")
        tensor = torch.full((2,), float(rank()))
        dist.broadcast(tensor, src=root, group=group)
        check(int(tensor[0]) == root, f"{tensor} is not of rank {root}")
        found = [None] * size() if rank() == root else None
        dist.gather_object(rank(), found, dst=root, group=group)


def overlapping_groups_at_the_same_time():
    pairs = [[a, b] for a in range(size()) for b in range(a + 1, size())]
    groups = [(ranks, dist.new_group(ranks)) for ranks in pairs]
    works = []
    for ranks, group in groups:
        if rank() in ranks:
            tensor = data(rank(), 50)
            works.append((ranks, tensor, dist.all_reduce(tensor, group=group, async_op=True)))
    for ranks, tensor, work in reversed(works):
        work.wait()
        same(tensor, sum(data(r, 50) for r in ranks), ranks)
    for _, group in groups:
        dist.destroy_process_group(group)


def groups_made_and_destroyed_many_times():
    for i in range(30):
        group = dist.new_group(list(range(size())))
        tensor = data(rank(), i)
        dist.all_reduce(tensor, group=group)
        same(tensor, total(i), i)
        dist.destroy_process_group(group)


def groups_in_threads():
    """Each thread has a group of its own."""
    groups, errors = [dist.new_group(list(range(size()))) for _ in range(4)], []

    def work(group, seed):
        try:
            for i in range(30):
                tensor = data(rank(), 20) + seed + i
                dist.all_reduce(tensor, group=group)
                same(tensor, total(20) + (seed + i) * size())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(group, 100 * i)) for i, group in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not errors, f"{errors}")


def messages_of_one_group_hold_up_no_other():
    """They wait for their receiver, who calls all of another group's operations first."""
    first, second = [dist.new_group(list(range(size()))) for _ in range(2)]
    for count, number in ((1 << 17, 4), (100, 200)):
        sent = [torch.full((count,), float(i)) for i in range(number)]
        works = [dist.isend(tensor, 1, group=first) for tensor in sent] if rank() == 0 else []
        for i in range(5):
            tensor = torch.full((1 << 16,), float(rank() + i))
            dist.all_reduce(tensor, group=second)
            same(tensor, torch.full((1 << 16,), float(sum(range(i, i + size())))), i)
        for i in range(number if rank() == 1 else 0):
            got = torch.empty(count)
            dist.recv(got, 0, group=first)
            same(got, torch.full((count,), float(i)), i)
        for work in works:
            work.wait()


# ---- Sends and receives -------------------------------------------------------------------------


def cycles_of_batches():
    for step in range(1, size()):
        to, source = (rank() + step) % size(), (rank() - step) % size()
        got = [torch.zeros(100 * (i + 1)) for i in range(3)]
        ops = []
        for i in range(3):
            ops.append(dist.P2POp(dist.isend, data(rank(), 100 * (i + 1)) + i, to))
            ops.append(dist.P2POp(dist.irecv, got[i], source))
        for work in dist.batch_isend_irecv(ops[::-1] if rank() % 2 and step == -1 else ops):
            work.wait()
        for i in range(3):
            same(got[i], data(source, 100 * (i + 1)) + i, i)


def messages_longer_than_their_buffer():
    group = dist.new_group(list(range(size())))
    if rank() == 0:
        try:
            dist.send(torch.ones(20), 1, group=group)
        except RuntimeError:
            pass  # whether the sender learns of it
    elif rank() == 1:
        try:
            dist.recv(torch.zeros(10), 0, group=group)
            check(False, "a message of 20 went into a buffer of 10")
        except RuntimeError as error:
            check("20" in str(error) or "80" in str(error), f"the text is: {error}")
    dist.barrier()


def a_thousand_operations_at_once():
    tensors = [data(rank(), 3) + i for i in range(1000)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    works[-1].wait()
    for i, work in enumerate(works):
        work.wait()
        same(tensors[i], total(3) + i * size(), i)


# ---- Mistakes -----------------------------------------------------------------------------------


def types_that_differ_are_an_error():
    group = dist.new_group(list(range(size())))
    tensor = torch.ones(4, dtype=torch.float32 if rank() else torch.float64)
    fails_with("f64", dist.all_reduce, tensor, group=group)
    dist.barrier()


def operations_that_differ_are_an_error():
    group = dist.new_group(list(range(size())))
    if rank() == 0:
        outputs = [torch.empty(4) for _ in range(size())]
        fails_with("all_reduce", dist.all_gather, outputs, torch.ones(4), group=group)
    else:
        fails_with("all_gather", dist.all_reduce, torch.ones(4), group=group)
    dist.barrier()


def zeros(number, count=4, dtype=torch.float32):
    return [torch.zeros(count, dtype=dtype) for _ in range(number)]


def with_root(options, root=0):
    options.rootRank = root
    return options


def refused_calls(n):
    """(what the text says, a call that does not fit), whose neighbours in memory must stay as they are."""
    group, c10d, four = dist.group.WORLD, dist.distributed_c10d, torch.ones(4)
    double, gathering, scattering = four.double(), with_root(c10d.GatherOptions()), with_root(c10d.ScatterOptions())
    yield f"all_gather_into_tensor: the output has 6 elements; {n} ranks with 4 each need {4 * n}", \
        lambda around: AS_ONE(around[:6], four)
    yield f"the output has {4 * n + 4} elements", lambda around: AS_ONE(around[:4 * n + 4], four)
    yield "the output is of dtype", lambda around: AS_ONE(around[:4 * n], double)
    yield f"reduce_scatter_tensor: the input has 4 elements; {n} ranks with 4 each need {4 * n}", \
        lambda around: SCATTERED(torch.zeros(4), around[:4])
    yield f"the input has {4 * n + 4} elements", lambda around: SCATTERED(torch.zeros(4), around[:4 * n + 4])
    yield "the input is of dtype", lambda around: SCATTERED(around[:4], torch.ones(4 * n, dtype=torch.int8))
    yield f"all_gather: the output list has {n - 1} tensors; a group of {n} ranks needs {n}", \
        lambda around: dist.all_gather(zeros(n - 1), four)
    yield f"the output list has {n + 1} tensors", lambda around: dist.all_gather(zeros(n + 1), four)
    yield "all_gather: the output for rank 0, this one, has 4 elements; the input has 2, and they must be equal", \
        lambda around: dist.all_gather(zeros(n), around[:2])
    yield "the input has 6, and", lambda around: dist.all_gather(zeros(n), around[:6])
    yield "the output for rank 0 is of dtype", lambda around: group.allgather([zeros(n, dtype=torch.int8)], [four])
    yield "one output list per rank is needed, not 0", lambda around: group.allgather([], [four])
    yield "all_gather_coalesced: the output list has 1 tensor;", \
        lambda around: group.allgather_coalesced([zeros(1)], [four])
    yield "the output list has 1 tensor, the input list 2", \
        lambda around: group.allgather_coalesced([zeros(1)] * n, [four, four])
    yield "gather: the output list has 1 tensor;", lambda around: group.gather([zeros(1)], [four], gathering)
    yield "the output for rank 0 is of dtype", \
        lambda around: group.gather([zeros(n, dtype=torch.int8)], [four], gathering)
    yield "one output list per rank is needed, not 0", lambda around: group.gather([], [four], gathering)
    yield "scatter: the input list has 1 tensor;", lambda around: group.scatter([around[:4]], [zeros(1)], scattering)
    yield "the input for rank 0, this one, has 4 elements; the output has 2", \
        lambda around: group.scatter([around[:2]], [zeros(n)], scattering)
    yield "the input for rank 0 is of dtype", lambda around: group.scatter([double], [zeros(n)], scattering)
    yield "reduce_scatter: the input list has 1 tensor;", lambda around: dist.reduce_scatter(around[:4], zeros(1))
    yield "has 8 elements; the output has 2", lambda around: dist.reduce_scatter(around[:2], zeros(n, 8))
    yield "has 8 elements; the output has 20", lambda around: dist.reduce_scatter(around[:20], zeros(n, 8))
    yield "all_to_all: the input list has 1 tensor;", lambda around: group.alltoall(zeros(n), zeros(1))
    yield "all_to_all: the output list has 1 tensor;", lambda around: group.alltoall(zeros(1), zeros(n))
    yield "for rank 0 is of dtype", lambda around: group.alltoall(zeros(n), zeros(n, dtype=torch.int8))
    yield "for rank 0, this one, has 2 elements", lambda around: group.alltoall(zeros(n, 2), zeros(n))
    yield "all_to_all_single: the output is of dtype", \
        lambda around: group.alltoall_base(around[:4 * n], torch.ones(4 * n, dtype=torch.int8), [], [])
    yield f"the output has {n + 1} rows, which cannot be divided by {n} ranks", \
        lambda around: group.alltoall_base(around[:n + 1], torch.ones(n), [], [])
    yield "a split of -2 after 10 does not fit", lambda around: group.alltoall_base(
        torch.zeros(8 + n), around[:8 + n], [8] + [0] * (n - 2) + [n], [10, -2] + [0] * (n - 2))
    yield f"the input has 8 rows for {n} ranks; 1 split of 8", \
        lambda around: group.alltoall_base(torch.zeros(8), around[:8], [8] + [0] * (n - 1), [8])
    yield "the input has 3 elements for rank 0, this one, and the output 4", lambda around: group.alltoall_base(
        torch.zeros(8), around[:8], [4] + [0] * (n - 2) + [4], [3] + [0] * (n - 2) + [5])
    if hasattr(dist, "gather_single"):
        yield f"gather_single: the output has 4 elements; {n} ranks with 4 each need {4 * n}", \
            lambda around: group.gather_single(around[:4], four, gathering)
    if VERSION >= (2, 1):
        def coalesced(around):
            with c10d._coalescing_manager():
                AS_ONE(torch.zeros(4 * n), four)
                AS_ONE(around[:4], four)
        yield "all_gather_into_tensor: the output has 4 elements", coalesced


def calls_whose_sizes_do_not_fit_are_refused():
    """On the rank that calls it alone: the others have called nothing, and the next call has the same number on all."""
    if rank() == 0:
        for words, call in refused_calls(size()):
            around = torch.zeros(64)
            fails_with(words, call, around)
            same(around, torch.zeros(64), words)
    tensor = data(rank(), 4)
    dist.all_reduce(tensor)
    same(tensor, total(4))


def lists_count_only_at_the_root():
    group, c10d, last = dist.group.WORLD, dist.distributed_c10d, size() - 1
    output, outputs = torch.zeros(4), zeros(size() if rank() == last else 1)
    group.gather([outputs], [data(rank(), 4)], with_root(c10d.GatherOptions(), last)).wait()
    group.scatter([output], [outputs], with_root(c10d.ScatterOptions(), last)).wait()
    same(output, data(rank(), 4))


def sparse_tensors_that_differ_are_refused_on_all_ranks():
    first = rank() == 0
    for shape, dtype in (((4 - first, 3), torch.float32), ((4, 3 - first), torch.float32), ((4, 3), torch.float64)):
        tensor = torch.ones(shape, dtype=dtype if first else torch.float32).to_sparse()
        fails_with("all_reduce: the sparse tensor of rank", dist.all_reduce, tensor)
    dist.barrier()


def a_limit_of_a_group_ends_only_the_group():
    group = dist.new_group(list(range(size())), timeout=datetime.timedelta(seconds=1))
    if rank() == 0:
        fails_with("Timed out", dist.all_reduce, torch.ones(4), group=group)
    dist.barrier()
    tensor = data(rank(), 4)
    dist.all_reduce(tensor)
    same(tensor, total(4))


# ---- Other processes ----------------------------------------------------------------------------


def workers_of_data_loaders():
    """Processes that are forked while the group is in use, and end without it."""
    numbers = torch.utils.data.TensorDataset(torch.arange(40.0))
    loader = torch.utils.data.DataLoader(numbers, batch_size=4, num_workers=2)
    for epoch in range(2):
        for (batch,) in loader:
            dist.all_reduce(batch)
        same(batch, torch.arange(36.0, 40) * size(), epoch)


if __name__ == "__main__":
    run([claim for claim in list(globals().values()) if inspect.isfunction(claim) and claim.__module__ == "__main__"
         and not inspect.signature(claim).parameters])
