"""The time of dist.all_reduce by size: speed.py [BACKEND]. The least and the median of 7 means; run it as ranks."""
import sys
import time

import torch
import torch.distributed as dist


def mean(tensor, calls):
    """In microseconds."""
    for _ in range(20):
        dist.all_reduce(tensor)
    tensor.fill_(1)
    begin = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor)
    return (time.perf_counter() - begin) / calls * 1e6


def main():
    backend = sys.argv[1] if len(sys.argv) > 1 else "libcomm"
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    for size, calls in ((8, 2000), (1024, 2000), (65536, 300), (1 << 20, 50)):
        tensor = torch.ones(size // 4)
        means = sorted(mean(tensor, calls) for _ in range(7))
        if dist.get_rank() == 0:
            print(f"{backend}, {dist.get_world_size()} ranks, {size} bytes: {means[0]:.1f} us, median {means[3]:.1f}",
                  flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
