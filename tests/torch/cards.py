"""Training on a card with "cpu:libcomm,cuda:nccl", as ranks: cards.py [cpu]

The gradients go through NCCL, control traffic and a checkpoint's objects through libcomm. `cpu` tries this program
where there is no card, with Gloo in NCCL's place. Skips (77) and says why where it cannot run; tools/test-gpu runs it.
"""
import os
import sys


def skip(why):
    print("skipped:", why)
    sys.exit(77)


try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    skip(f"no PyTorch: {error}")


def native_layer():
    """Only the native layer can stand beside NCCL."""
    from torch_libcomm import build
    if not build.built():
        try:
            build.build()
        except (OSError, RuntimeError, build.subprocess.CalledProcessError) as error:
            skip(f"the native layer cannot be built: {error}")
    os.environ["TORCH_LIBCOMM_LAYER"] = "native"


def main():
    on_cpu = sys.argv[1:] == ["cpu"]
    if not on_cpu and not torch.cuda.is_available():
        skip("no card that PyTorch can use")
    native_layer()
    import torch_libcomm
    dist.init_process_group("cpu:libcomm,cuda:gloo" if on_cpu else "cpu:libcomm,cuda:nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    local = int(os.environ.get("LOCAL_RANK", rank))
    device = torch.device("cpu") if on_cpu else torch.device("cuda", local % torch.cuda.device_count())
    if not on_cpu:
        torch.cuda.set_device(device)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).to(device)
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=None if on_cpu else [device.index])
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(128, 64, generator=generator).to(device)
    targets = torch.randint(0, 8, (128,), generator=generator).to(device)
    for step in range(50):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        on_host = loss.detach().cpu()
        dist.all_reduce(on_host, dist.ReduceOp.AVG)  # through libcomm, while NCCL is in use
        losses.append(float(on_host))
    everybody = [None] * size
    dist.all_gather_object(everybody, [parameter.detach().cpu() for parameter in model.parameters()],
                           group=dist.new_group(backend="libcomm"))
    assert all(torch.equal(a, b) for one in everybody for a, b in zip(one, everybody[0])), "the parameters differ"
    assert losses[-1] < 0.9 * losses[0], f"it learned nothing: {losses[0]} to {losses[-1]}"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "no card"
    if rank == 0:
        print(f"PyTorch {torch.__version__}, {size} ranks, {name}: loss {losses[0]:.3f}, then {losses[-1]:.3f}")
    dist.barrier(group=None if on_cpu else dist.new_group(backend="libcomm"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
