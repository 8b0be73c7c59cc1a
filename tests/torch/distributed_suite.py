"""PyTorch's own distributed_test.py over libcomm: distributed_suite.py [--gloo] [--some] [TEST...]

The tests that PyTorch runs for Gloo, with libcomm where they say "gloo": its name is given to our creator, and the
profiler's spans are looked for under ours. --gloo leaves Gloo in its place. What fails is tried over Gloo, too: tests
that fail there are not libcomm's. --some leaves two of three out. Each test runs in processes of its own, WORLD_SIZE of
them (3). Tests that need GPUs skip by themselves.
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", "3")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "0")
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp())

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

# Why a test does not pass, and is not meant to.
KNOWN = {
    "test_ddp_logging_data_cpu": "wants C++ to know the backend by name, which says 'custom' for all but PyTorch's own",
}


def replace_gloo():
    import torch_libcomm
    torch_libcomm.register()
    old = torch.__version__.startswith("1.")
    if not old and not hasattr(dist.Backend, "_ensure_backend_registered"):
        print("skipped: this release of PyTorch makes Gloo's groups by itself")
        sys.exit(77)
    dist.Backend._plugins["GLOO"] = dist.Backend._plugins["LIBCOMM"]
    if hasattr(dist.Backend, "backend_type_map"):  # C++ would take our backend for a ProcessGroupGloo
        dist.Backend.backend_type_map["gloo"] = dist.ProcessGroup.BackendType.CUSTOM

    class Options:
        """Older releases do not look for Gloo there: they make its group by themselves, with these arguments."""

        def __init__(self, store, rank, size, timeout):
            self.store, self.group_rank, self.group_size, self.timeout = store, rank, size, timeout
            self.group_id, self.global_ranks_in_group = "gloo", []

    def create(store, rank, size, timeout=None):
        return torch_libcomm.create(Options(store, rank, size, timeout))

    if old:
        distributed_c10d.ProcessGroupGloo = create
        # It checks Gloo's groups in the debug level DETAIL, in C++, and those of others not.
        distributed_c10d._create_process_group_wrapper = lambda wrapped_pg, **_: wrapped_pg


def native():
    import torch_libcomm
    return torch_libcomm.layer() == "native"


def fail_over_gloo(names):
    """Which of these tests do not pass over Gloo either."""
    if not names:
        return set()
    output = subprocess.run([sys.executable, __file__, "--gloo", *names], stdout=subprocess.PIPE, text=True).stdout
    return set(re.findall(r"'(test_\w+)'", output.rpartition("failed:")[2]))


def make_cases(ours):
    from torch.testing._internal.distributed import distributed_test
    if ours:
        find = distributed_test.get_profiling_event

        def find_ours(name, *arguments, **options):
            events = find(name.replace("gloo:", "libcomm:"), *arguments, **options)
            for event in events:
                event.name = event.name.replace("libcomm:", "gloo:")
            return events

        distributed_test.get_profiling_event = find_ours
        if not native():  # its spans have no shapes, and end with the call
            for name in ("", "CUDA_", "SEND_RECV_"):
                setattr(distributed_test, name + "PROFILING_SUPPORTED_BACKENDS", [])

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    Suite.__module__, Suite.__qualname__ = "__main__", "Suite"
    return Suite


def main():
    arguments = sys.argv[1:]
    ours = "--gloo" not in arguments
    chosen = [argument for argument in arguments if not argument.startswith("--")]
    torch.set_num_threads(1)
    if ours:
        replace_gloo()
    try:
        suite = make_cases(ours)
    except ImportError as error:
        print("skipped: PyTorch's tests cannot be imported:", error)
        sys.exit(77)
    names = chosen or unittest.TestLoader().getTestCaseNames(suite)[::3 if "--some" in arguments else 1]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(suite(name) for name in names))
    failed = {case.id().rpartition(".")[2] for case, _ in result.failures + result.errors}
    for name in sorted(failed & set(KNOWN)):
        print(f"{name} does not pass: it {KNOWN[name]}")
    of_pytorch = fail_over_gloo(sorted(failed - set(KNOWN))) if ours else set()
    unexpected = failed - set(KNOWN) - of_pytorch
    passed = result.testsRun - len(failed) - len(result.skipped)
    print(f"PyTorch {torch.__version__}, {'libcomm' if ours else 'Gloo'}, {os.environ['WORLD_SIZE']} ranks: "
          f"{passed} passed, {len(result.skipped)} skipped, {len(of_pytorch)} fail over Gloo, too, "
          f"failed: {sorted(failed - of_pytorch)}")
    sys.exit(1 if ours and unexpected else 0)


if __name__ == "__main__":
    main()
