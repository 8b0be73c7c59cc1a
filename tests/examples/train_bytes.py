"""What train_bytes promises, tried: train_bytes.py CLAIM COMMRUN TRAIN_BYTES SOURCE-FOLDER

Each claim below is one test. The text is libcomm's own header, so that the tests need no fixture.
"""
import os
import re
import subprocess
import sys
import tempfile

STEPS = 30
SMALL = ["--steps", str(STEPS), "--every", "1", "--hidden", "48", "--window", "8"]


class Program:
    def __init__(self, commrun, train_bytes, source):
        self.commrun, self.train_bytes = commrun, train_bytes
        self.launcher = []
        self.text = os.path.join(source, "include", "comm", "comm.h")

    def run(self, ranks, *arguments):
        """On `ranks` ranks under commrun; with 0, without a launcher."""
        launcher = [self.commrun, "-n", str(ranks), "--", *self.launcher] if ranks else []
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        return subprocess.run([*launcher, self.train_bytes, *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=50, errors="replace", env=environment)

    def train(self, ranks, *arguments):
        """The losses, step by step, and the whole output; the run must succeed."""
        result = self.run(ranks, *SMALL, *arguments, self.text)
        shown = [float(m[1]) for m in re.finditer(r"\s\d+\s+(\d+\.\d+)\s+\d+\s+[\d.]+ ms", "\n" + result.stdout)]
        if result.returncode != 0 or len(shown) != STEPS:
            sys.exit(f"{ranks} ranks: exit status {result.returncode}, {len(shown)} losses\n"
                     f"{result.stdout}{result.stderr}")
        return shown, result.stdout


def same_curve(one, other, what):
    """Sums in another order round differently, and training makes that grow; a wrong weight is far above."""
    worst = max(abs(a - b) for a, b in zip(one, other))
    print(f"{what}: loss {one[0]} -> {one[-1]}, the curves differ by {worst:.6f} at most")
    if worst > 0.005:
        sys.exit(f"{what}: the curves differ\n{one}\n{other}")
    some = min(5, len(one) // 2) # one batch may be harder than another
    if not sum(one[-some:]) / some < sum(one[:some]) / some - 0.25:
        sys.exit(f"{what}: nothing was learnt\n{one}")


def proved_equal(output, ranks):
    if f"bitwise equal on all ranks ({ranks}," not in output:
        sys.exit(f"the ranks did not prove that they are equal\n{output}")


def curve_of_4_ranks_is_that_of_1(program):
    one, _ = program.train(0, "--batch", "64")
    four, output = program.train(4, "--batch", "64", "--bucket-bytes", "16384")
    same_curve(one, four, "1 and 4 ranks")
    proved_equal(output, 4)


def uneven_batch_is_weighted_right(program):
    one, _ = program.train(1, "--batch", "32")
    three, output = program.train(3, "--batch", "32")
    same_curve(one, three, "1 and 3 ranks with a batch of 32")
    proved_equal(output, 3)


def more_ranks_than_samples_works(program):
    one, _ = program.train(1, "--batch", "5")
    eight, output = program.train(8, "--batch", "5")
    same_curve(one, eight, "1 and 8 ranks with a batch of 5")
    proved_equal(output, 8)


def every_size_of_bucket_works(program):
    one, _ = program.train(2, "--batch", "16", "--bucket-bytes", "1073741824")
    # 997 bytes are no whole number of floats, and no layer is a whole number of buckets.
    many, output = program.train(2, "--batch", "16", "--bucket-bytes", "997")
    same_curve(one, many, "one bucket and many")
    if not re.search(r"in [1-9]\d\d buckets", output):
        sys.exit(f"expected hundreds of buckets\n{output}")


def gradients_are_summed_on_a_gpu(program):
    """On the stand-in, which meson names in the environment. NCCL takes each rank for a host, so they share a GPU."""
    on_cpu, _ = program.train(2, "--batch", "32")
    program.launcher = ["sh", "-c", 'NCCL_HOSTID=$RANK exec "$@"', "sh"]
    on_gpu, output = program.train(2, "--batch", "32", "--device", "cuda", "--bucket-bytes", "16384")
    same_curve(on_cpu, on_gpu, "sums on the CPU and on a GPU")
    proved_equal(output, 2)
    if "2 ranks over cpu:tcp,cuda:nccl" not in output:
        sys.exit(f"the group has not both backends\n{output}")


def without_cuda_there_is_one_clear_error(program):
    os.environ["COMM_NCCL_CUDART"] = "/no/such/libcudart.so"
    result = program.run(3, *SMALL, "--device", "cuda", program.text)
    said = re.findall(r"(?m)^\[\d\] train_bytes: --device cuda needs the CUDA runtime: /no/such", result.stderr)
    if result.returncode == 0 or len(said) != 1:
        sys.exit(f"exit status {result.returncode}\n{result.stdout}{result.stderr}")


def different_parameters_are_found(program):
    result = program.run(4, *SMALL, "--steps", "2", "--spoil", "2", program.text)
    text = result.stdout + result.stderr
    if result.returncode == 0 or "parameters differ from rank 0's on rank 2 (1 of 4 ranks)" not in text:
        sys.exit(f"exit status {result.returncode}\n{text}")


def own_sources_are_the_default_text(program):
    result = program.run(2, *SMALL, "--steps", "2", "--sample", "64")
    if result.returncode != 0 or "libcomm's own sources" not in result.stdout:
        sys.exit(f"exit status {result.returncode}\n{result.stdout}{result.stderr}")
    if "the model writes" not in result.stdout:
        sys.exit(f"no sample of text\n{result.stdout}")


def one_error(program, ranks, arguments, expected):
    """The run fails and the ranks say the words once. (commrun's report comes last, and repeats them.)"""
    result = program.run(ranks, *arguments)
    text = result.stdout + result.stderr
    said = ("\n" + result.stderr).split("\ncommrun: ")[0].count(expected)
    if result.returncode == 0 or said != 1 or "bitwise" in text:
        sys.exit(f"{arguments} on {ranks} ranks: status {result.returncode}, '{expected}' said {said} times\n{text}")
    print(f"{ranks} ranks, {arguments}: {expected}")


def bad_input_is_one_error(program):
    with tempfile.TemporaryDirectory() as folder:
        empty, short, pipe, secret = (os.path.join(folder, name) for name in ("empty", "short", "pipe", "secret"))
        for name, text in (empty, ""), (short, "x" * 8), (secret, "x" * 1000):
            with open(name, "w") as file:
                file.write(text)
        os.chmod(secret, 0)
        os.mkfifo(pipe)
        cases = [([empty], "is empty"), ([short, "--window", "8"], "has only 8 bytes; this window needs at least 9"),
                 ([folder], "is a directory"), ([folder + "/none"], "No such file or directory"),
                 ([pipe], "is not a regular file"),
                 (["--batch", "0"], "--batch takes a whole number"), (["--bogus"], "unrecognized option"),
                 (["--batch"], "requires an argument"), (["--help=x"], "doesn't allow an argument"),
                 (["--lr", "x"], "--lr takes a number"), ([program.text, "again"], "only one file can be given"),
                 ([program.text, "--backend", "cpu:nosuch"], "there is no backend 'nosuch'")]
        if os.path.exists("/proc/self/mem"):
            cases.append((["/proc/self/mem"], "cannot be read"))
        if os.getuid() != 0:
            cases.append(([secret], "Permission denied"))
        for arguments, expected in cases:
            one_error(program, 3, arguments, expected)
            one_error(program, 0, arguments, expected)


def help_is_said_once_and_every_rank_leaves(program):
    for option in "--help", "-?", "--usage":
        for ranks in 3, 0:
            result = program.run(ranks, program.text, option)
            if result.returncode != 0 or result.stdout.count("Usage: train_bytes") != 1 or result.stderr:
                sys.exit(f"{option} on {ranks} ranks: status {result.returncode}\n{result.stdout}{result.stderr}")


CLAIMS = [curve_of_4_ranks_is_that_of_1, uneven_batch_is_weighted_right, more_ranks_than_samples_works,
          every_size_of_bucket_works, gradients_are_summed_on_a_gpu, without_cuda_there_is_one_clear_error,
          different_parameters_are_found, own_sources_are_the_default_text,
          bad_input_is_one_error, help_is_said_once_and_every_rank_leaves]

if __name__ == "__main__":
    {claim.__name__: claim for claim in CLAIMS}[sys.argv[1]](Program(*sys.argv[2:]))
