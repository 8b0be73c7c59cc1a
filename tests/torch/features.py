"""What is built on process groups in PyTorch, each feature once, as one rank of two: features.py [BACKEND]

Started by run.py with libcomm. With gloo, it tells what Gloo can do of the same list.
"""
import copy
import datetime
import importlib
import inspect
import os
import re
import shutil
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LIMIT = datetime.timedelta(seconds=120)
FEATURES = []
VERSION = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])


def feature(function):
    FEATURES.append(function)
    return function


def since(*release):
    """A feature that older releases of PyTorch do not have."""
    return feature if VERSION >= release else lambda function: function


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def check(condition, what=""):
    if not condition:
        raise AssertionError(what)


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))


def batch_of(owner, seed=0):
    return torch.randn(12, 8, generator=torch.Generator().manual_seed(100 * seed + owner))


def mean_gradients(steps=1):
    """Of one process that has all ranks' data."""
    model = make_model()
    for step in range(steps):
        for r in range(size()):
            (model(batch_of(r, step)).square().mean() / size()).backward()
    return [parameter.grad for parameter in model.parameters()]


def same_gradients(model, want):
    for parameter, gradient in zip(model.parameters(), want):
        check(torch.allclose(parameter.grad, gradient, rtol=1e-4, atol=1e-6), "the gradients differ")


def equal_everywhere(tensor):
    theirs = tensor.detach().clone()
    dist.broadcast(theirs, 0)
    check(torch.equal(theirs, tensor.detach()), "the ranks differ")


# ---- DDP ----------------------------------------------------------------------------------------


@feature
def ddp():
    model = DistributedDataParallel(make_model())
    model(batch_of(rank())).square().mean().backward()
    same_gradients(model, mean_gradients())


@feature
def ddp_with_a_static_graph():
    model = DistributedDataParallel(make_model(), static_graph=True)
    model(batch_of(rank())).square().mean().backward()
    same_gradients(model, mean_gradients())


@feature
def ddp_with_many_buckets():
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.0005, gradient_as_bucket_view=True)
    for _ in range(2):
        model.zero_grad()
        model(batch_of(rank())).square().mean().backward()
    same_gradients(model, mean_gradients())


@feature
def ddp_no_sync():
    model = DistributedDataParallel(make_model())
    with model.no_sync():
        model(batch_of(rank(), 0)).square().mean().backward()
    model(batch_of(rank(), 1)).square().mean().backward()
    same_gradients(model, mean_gradients(2))


@feature
def ddp_with_unused_parameters():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.both = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

        def forward(self, inputs):
            return self.both[rank() % 2](inputs)

    torch.manual_seed(3)
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    for _ in range(2):
        model(batch_of(rank())).sum().backward()
    for parameter in model.parameters():
        equal_everywhere(parameter.grad)


@feature
def ddp_join():
    model = DistributedDataParallel(make_model())
    with model.join():
        for step in range(2 + 3 * rank()):
            model(batch_of(rank(), step)).sum().backward()


@feature
def ddp_synchronises_buffers():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    model[1].running_mean += rank()
    model = DistributedDataParallel(model)
    model(batch_of(rank())).sum().backward()
    model(batch_of(rank())).sum().backward()


@feature
def ddp_with_a_hook_for_16_bits():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    for hook in (default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook):
        model = DistributedDataParallel(make_model())
        model.register_comm_hook(None, hook)
        model(batch_of(rank())).square().mean().backward()
        for parameter, gradient in zip(model.parameters(), mean_gradients()):
            check(torch.allclose(parameter.grad, gradient, rtol=0.05, atol=1e-2), "the gradients differ")


@feature
def ddp_with_power_sgd():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    model = DistributedDataParallel(make_model())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2,
                                        min_compression_rate=0.1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for step in range(4):
        model.zero_grad()
        model(batch_of(rank(), step)).square().mean().backward()
    for parameter in model.parameters():
        equal_everywhere(parameter.grad)


@feature
def local_sgd():
    from torch.distributed.algorithms.model_averaging import averagers
    model = make_model()
    model(batch_of(rank())).sum().backward()  # parameters without a gradient are left alone
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(rank())
    averagers.PeriodicModelAverager(period=1, warmup_steps=0).average_parameters(list(model.parameters()))
    for parameter in model.parameters():
        equal_everywhere(parameter)


@feature
def zero_redundancy_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for step in range(2):
        optimizer.zero_grad()
        model(batch_of(rank(), step)).square().mean().backward()
        optimizer.step()
    for parameter in model.parameters():
        equal_everywhere(parameter)


# ---- Sharding -----------------------------------------------------------------------------------


@feature
def fsdp_1():
    from torch.distributed.fsdp import FullyShardedDataParallel
    model = FullyShardedDataParallel(make_model(), device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        model(batch_of(rank(), step)).square().mean().backward()
        optimizer.step()
    with FullyShardedDataParallel.summon_full_params(model):
        for parameter in model.parameters():
            equal_everywhere(parameter)


@since(2, 6)  # others wanted streams of CUDA
def fsdp_2():
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    model = make_model()
    mesh = init_device_mesh("cpu", (size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(batch_of(rank())).square().mean().backward()
    for parameter, gradient in zip(model.parameters(), mean_gradients()):
        check(torch.allclose(parameter.grad.full_tensor(), gradient, rtol=1e-4, atol=1e-6), "the gradients differ")


@feature
def device_mesh():
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (size(), 1), mesh_dim_names=("dp", "tp"))
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=mesh.get_group("dp"))
    dist.all_reduce(tensor, group=mesh["tp"].get_group())
    check(torch.equal(tensor, torch.full((3,), float(size()))), f"{tensor}")


def tensor_names(*names):
    module = importlib.import_module("torch.distributed.tensor" if VERSION >= (2, 5) else "torch.distributed._tensor")
    return [getattr(module, name) for name in names]


@feature
def dtensor():
    from torch.distributed.device_mesh import init_device_mesh
    Replicate, Shard, distribute_tensor = tensor_names("Replicate", "Shard", "distribute_tensor")
    mesh = init_device_mesh("cpu", (size(),))
    whole = torch.arange(60.0).reshape(10, 6)
    by_rows = distribute_tensor(whole, mesh, [Shard(0)])
    check(torch.equal(by_rows.full_tensor(), whole), "rows")
    check(torch.equal(by_rows.redistribute(mesh, [Shard(1)]).full_tensor(), whole), "columns")
    check(torch.equal(by_rows.redistribute(mesh, [Replicate()]).to_local(), whole), "replicas")
    check(torch.allclose((by_rows.t() @ by_rows).full_tensor(), whole.t() @ whole), "a product")
    check(by_rows.sum().full_tensor() == whole.sum(), "a sum")


@feature
def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh("cpu", (size(),))
    model = parallelize_module(make_model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    check(torch.allclose(model(batch_of(0)), make_model()(batch_of(0)), rtol=1e-4, atol=1e-5), "the outputs differ")
    model(batch_of(0)).sum().backward()


@since(2, 5)
def pipeline():
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    whole = make_model()
    part = nn.Sequential(*list(whole)[:2]) if rank() == 0 else nn.Sequential(*list(whole)[2:])
    if rank() > 1:
        return
    stage = PipelineStage(copy.deepcopy(part), rank(), 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=3, loss_fn=nn.functional.mse_loss)
    if rank() == 0:
        schedule.step(batch_of(0))
    else:
        losses = []
        output = schedule.step(target=torch.zeros(12, 8), losses=losses)
        check(torch.allclose(output, whole(batch_of(0)), rtol=1e-4, atol=1e-5), "the outputs differ")
        check(len(losses) == 3, f"{losses}")


@feature
def distributed_checkpoint():
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    Shard, distribute_tensor = tensor_names("Shard", "distribute_tensor")
    place = [tempfile.mkdtemp() if rank() == 0 else None]
    dist.broadcast_object_list(place, 0)
    mesh = init_device_mesh("cpu", (size(),))
    whole = torch.arange(40.0).reshape(10, 4)
    checkpoint.save({"weight": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=place[0])
    state = {"weight": distribute_tensor(torch.zeros(10, 4), mesh, [Shard(1)])}
    checkpoint.load(state, checkpoint_id=place[0])
    check(torch.equal(state["weight"].full_tensor(), whole), "what was loaded is not what was saved")
    future = checkpoint.async_save({"weight": torch.ones(3)}, checkpoint_id=place[0] + "/second")
    future.result()


# ---- Collectives --------------------------------------------------------------------------------


@feature
def functional_collectives():
    import torch.distributed._functional_collectives as functional
    world = dist.group.WORLD
    check(torch.equal(functional.all_reduce(torch.ones(3), "sum", world) + 0, torch.full((3,), float(size()))))
    outputs = functional.all_to_all_single(torch.arange(4.0 * size()), None, None, world) + 0
    check(torch.equal(outputs[:4], torch.arange(4.0) + 4 * rank()), f"{outputs}")


@feature
def collectives_with_gradients():
    from torch.distributed.nn import functional
    tensor = torch.full((3,), float(rank() + 1), requires_grad=True)
    functional.all_reduce(tensor, group=dist.group.WORLD).sum().backward()
    check(torch.equal(tensor.grad, torch.full((3,), float(size()))), f"{tensor.grad}")


@feature
def objects():
    gathered = [None] * size()
    dist.all_gather_object(gathered, {"rank": rank(), "text": "x" * 1000 * rank()})
    check([one["rank"] for one in gathered] == list(range(size())))
    received = [None]
    dist.scatter_object_list(received, list(range(size())) if rank() == 0 else None, 0)
    check(received == [rank()])


@feature
def objects_from_rank_to_rank():
    if rank() == 0:
        dist.send_object_list(["text", 5], dst=1)
    elif rank() == 1:
        received = [None, None]
        dist.recv_object_list(received, src=0)
        check(received == ["text", 5])


@feature
def all_to_all_of_uneven_splits():
    sends = [rank() + r + 1 for r in range(size())]
    inputs, outputs = torch.full((sum(sends), 2), float(rank())), torch.empty(sum(sends), 2)
    dist.all_to_all_single(outputs, inputs, sends, sends)
    want = torch.cat([torch.full((rank() + r + 1, 2), float(r)) for r in range(size())])
    check(torch.equal(outputs, want), f"{outputs}")


@feature
def all_gather_of_uneven_sizes():
    outputs = [torch.zeros(r + 1) for r in range(size())]
    dist.all_gather(outputs, torch.full((rank() + 1,), float(rank())))
    check(all(torch.equal(output, torch.full((r + 1,), float(r))) for r, output in enumerate(outputs)), f"{outputs}")


@feature
def averages_of_whole_numbers():
    tensor = torch.tensor([2, 4]) * (rank() + 1)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    check(tensor.tolist() == [2 * (size() + 1) // 2, 4 * (size() + 1) // 2], f"{tensor}")


@feature
def reductions_of_every_type():
    for dtype in (torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16,
                  torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64):
        tensor = torch.ones(5).to(dtype)
        dist.all_reduce(tensor)
        check(torch.equal(tensor.to(torch.complex64), torch.full((5,), float(size())).to(torch.complex64)), f"{dtype}")


@feature
def batches_of_sends_and_receives():
    other, got = size() - 1 - rank(), torch.empty(100000)
    sent = torch.full((100000,), float(rank()))
    operations = [dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, got, other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    check(torch.equal(got, torch.full((100000,), float(other))))


@feature
def sparse_all_reduce():
    tensor = torch.eye(4)[rank()].to_sparse()
    dist.all_reduce(tensor)
    check(torch.equal(tensor.to_dense(), torch.eye(4)[:size()].sum(0)), f"{tensor}")


@feature
def coalesced_collectives():
    tensors, outputs = [torch.ones(3), torch.ones(5)], [torch.empty(2 * size()), torch.empty(3 * size())]
    with dist.distributed_c10d._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    with dist.distributed_c10d._coalescing_manager():
        for i, output in enumerate(outputs):
            dist.all_gather_into_tensor(output, torch.full((i + 2,), float(rank())))
    check(tensors[1][0] == size() and outputs[1][-1] == size() - 1, f"{tensors} {outputs}")


@since(2, 5)
def splitting_a_group():
    half = dist.split_group(None, [[0], list(range(1, size()))])
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=half)
    check(tensor[0] == (1 if rank() == 0 else size() - 1), f"{tensor}")


@feature
def time_limits():
    group = dist.new_group(timeout=datetime.timedelta(seconds=3))
    if rank() == 0:
        try:
            dist.barrier(group=group)
        except RuntimeError as error:
            check("imed out" in str(error) or "imeout" in str(error), f"{error}")
            return
        check(False, "no error")


@since(2, 6)  # others had it with Gloo alone
def monitored_barrier():
    group = dist.new_group(list(range(size())))
    if rank() == 0:
        try:
            dist.monitored_barrier(group=group, timeout=datetime.timedelta(seconds=0.2))
        except RuntimeError as error:
            check("Rank 1 failed to pass monitoredBarrier" in str(error), f"{error}")
            return
        check(False, "no error")


# ---- Compilers, RPC, debugging ------------------------------------------------------------------


@feature
def compiling_a_function_with_collectives():
    import torch.distributed._functional_collectives as functional

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(tensor):
        return functional.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1

    check(torch.equal(step(torch.ones(4)), torch.full((4,), 2.0 * size() + 1)))


def compiling_with_inductor():
    """Only when it is asked for: it takes minutes on a busy machine. Inductor calls a C++ compiler."""
    import torch.distributed._functional_collectives as functional

    @torch.compile(fullgraph=True)
    def step(tensor):
        return functional.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1

    check(torch.equal(step(torch.ones(4)), torch.full((4,), 2.0 * size() + 1)))
    model = torch.compile(DistributedDataParallel(make_model()))
    model(batch_of(rank())).square().mean().backward()
    same_gradients(model, mean_gradients())


@feature
def compiling_a_ddp_model():
    model = torch.compile(DistributedDataParallel(make_model()), backend="aot_eager")
    model(batch_of(rank())).square().mean().backward()
    same_gradients(model, mean_gradients())


@feature
def remote_procedure_calls():
    from torch.distributed import rpc
    address = [f"file://{tempfile.mktemp()}" if rank() == 0 else None]
    dist.broadcast_object_list(address, 0)
    rpc.init_rpc(f"worker{rank()}", rank=rank(), world_size=size(),
                 rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=address[0]))
    result = rpc.rpc_sync(f"worker{(rank() + 1) % size()}", torch.add, args=(torch.ones(2), 1))
    check(torch.equal(result, torch.full((2,), 2.0)))
    rpc.shutdown()


@feature
def profiler_spans():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        dist.all_reduce(torch.ones(4))
        dist.broadcast(torch.ones(4), 0)
    names = [event.name for event in profile.events()]
    check(any(name.endswith("oo:all_reduce") or name == "libcomm:all_reduce" for name in names), f"{names}")


@feature
def bitwise_the_parameters_of_gloo():
    """Two ranks add two numbers: no order of sums can differ."""
    if size() != 2:
        return
    models = []
    for backend in (dist.get_backend(), "gloo"):
        model = DistributedDataParallel(make_model(), process_group=dist.new_group(backend=backend))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(5):
            optimizer.zero_grad()
            model(batch_of(rank(), step)).square().mean().backward()
            optimizer.step()
        models.append(model)
    for ours, theirs in zip(*(model.parameters() for model in models)):
        check(torch.equal(ours, theirs), "the parameters differ")


def main():
    backend = sys.argv[1] if len(sys.argv) > 1 else "libcomm"
    chosen = sys.argv[2:]
    torch.set_num_threads(1)
    failed = []
    if backend == "libcomm":
        import torch_libcomm  # before PyTorch 2.5 this makes the name known
    if "compiling_with_inductor" in chosen:
        if not shutil.which("g++"):
            print("skipped: no g++")
            sys.exit(77)
        FEATURES.append(compiling_with_inductor)
    for function in FEATURES:
        if chosen and function.__name__ not in chosen:
            continue
        dist.init_process_group(backend, timeout=LIMIT)
        try:
            function()
        except Exception as error:
            traceback.print_exc()
            failed.append(function.__name__)
            print(f"{function.__name__}: {type(error).__name__}: {error}", flush=True)
        dist.barrier() if function.__name__ not in failed else None
        if rank() == 0:
            print(("no  " if function.__name__ in failed else "yes ") + function.__name__.replace("_", " "), flush=True)
        dist.destroy_process_group()
    print(f"{backend}: {len(chosen or FEATURES) - len(failed)} of {len(chosen or FEATURES)} features; not: {failed}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
