"""Distributed LightGBM over libcomm trains what it trains over its own sockets, and says which rank is lost:
lightgbm_ranks.py CLAIM COMMRUN ADAPTER EXAMPLE-FOLDER CACHE-FOLDER

Without LightGBM for this python3, PyPI's is installed into the cache folder, unless COMM_TEST_LIGHTGBM=here; where that
does not work the test is skipped (77). As a rank (RANK in the environment) it trains, one after the other:
lightgbm_ranks.py FOLDER SHAPE...
"""
import fcntl
import importlib.util
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

LIMIT_S = 100


def packages(cache):
    """The folder to import lightgbm from: "" if it needs none. Or the reason why there is none."""
    if importlib.util.find_spec("lightgbm"):
        return "", None
    if os.environ.get("COMM_TEST_LIGHTGBM") == "here":
        return "", "no LightGBM here"
    folder = pathlib.Path(cache, "packages")
    folder.mkdir(parents=True, exist_ok=True)
    with open(pathlib.Path(cache, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two tests may have started at once
        reason = None if (folder / "complete").exists() else install(folder)
    return str(folder), reason


def install(folder):
    """The reason why that cannot be done, or None."""
    try:
        done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--no-compile",
                               "--target", str(folder), "lightgbm"], capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return "installing LightGBM took too long"
    if done.returncode != 0:
        return "LightGBM cannot be installed: " + (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]
    (folder / "complete").touch()
    return None


# ---- A rank -------------------------------------------------------------------------------------

def shapes():
    import lightgbm
    import numpy
    draw = numpy.random.default_rng(5)
    x = draw.normal(size=(3000, 12))
    wave = x[:, 0] * x[:, 1] + numpy.sin(2 * x[:, 2]) + 0.5 * x[:, 3]
    kinds = x.copy()
    kinds[:, :4] = draw.integers(0, 60, size=(3000, 4))
    kinds[draw.random(size=kinds.shape) < 0.1] = numpy.nan
    from_kinds = numpy.nan_to_num(kinds[:, 0]) % 3 + numpy.nan_to_num(kinds[:, 1]) % 2
    stop = lightgbm.early_stopping(3, verbose=False)
    return {
        "regression": (x, numpy.round(8 * wave) / 8, {"objective": "regression"}, {}),
        "voting": (x, numpy.round(8 * wave) / 8, {"objective": "regression", "tree_learner": "voting", "top_k": 4}, {}),
        "binary": (x, (wave > 0).astype(float), {"objective": "binary", "is_unbalance": True}, {}),
        "classes": (x, numpy.digitize(wave, numpy.linspace(-2, 2, 12)), {"objective": "multiclass", "num_class": 13},
                    {}),
        "categories": (kinds, from_kinds, {"objective": "regression", "min_data_per_group": 5},
                       {"categorical_feature": [0, 1, 2, 3]}),
        "quantized": (x, wave, {"objective": "regression", "use_quantized_grad": True, "num_grad_quant_bins": 8,
                                "stochastic_rounding": False}, {}),
        "wide": (numpy.hstack([x] + [numpy.roll(x, shift, axis=0) for shift in range(1, 20)]), wave,
                 {"objective": "regression", "max_bin": 255, "num_leaves": 15}, {}),
        "early end": (x, wave + draw.normal(size=3000), {"objective": "regression", "metric": "l2",
                                                         "learning_rate": 0.3}, {"callbacks": [stop], "valid": wave}),
        "killed": (x, wave, {"objective": "regression"}, {"callbacks": [die]}),
    }


def die(environment):
    """A callback: rank 1 is killed after the fifth tree."""
    if os.environ["RANK"] == "1" and environment.iteration == 5:
        os.kill(os.getpid(), signal.SIGKILL)


def train(rank, size, shape, more):
    import lightgbm
    x, y, parameters, settings = shapes()[shape]
    parameters = {"tree_learner": "data", **parameters, "num_machines": size, "pre_partition": True, "verbosity": -1,
                  "num_threads": 1, "seed": 3, "deterministic": True, **more}
    categories = {name: settings[name] for name in settings if name == "categorical_feature"}
    mine = slice(0, 7) if shape == "regression" and size == 3 and rank == 2 else slice(rank, None, size)
    data = lightgbm.Dataset(x[mine], y[mine], params=parameters, **categories)
    valid = [data.create_valid(x[:500], settings["valid"][:500])] if "valid" in settings else None
    return lightgbm.train(parameters, data, num_boost_round=60 if valid else 15, valid_sets=valid,
                          callbacks=settings.get("callbacks"))


def be_a_rank(folder, *names):
    """Write the models without their parameters, which name the network, and what they predict."""
    from train import own_sockets
    from comm_lightgbm import network
    for number, shape in enumerate(names):
        if "SOCKETS" in os.environ:
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            model = train(rank, size, shape, own_sockets(rank, size, int(os.environ["SOCKETS"]) + number * size))
        else:
            with network() as (rank, size):
                model = train(rank, size, shape, {})
        text = model.model_to_string().split("\nparameters:")[0]
        predicted = model.predict(shapes()[shape][0][:50]).tolist()
        pathlib.Path(folder, f"{shape}.{rank}").write_text(f"{text}\n{predicted}\n")


# ---- Claims -------------------------------------------------------------------------------------

def free_ports(count):
    """Neighbours, as LightGBM wants to be told them; and below those that the system gives to outgoing connections."""
    for _ in range(100):
        first, taken = random.randrange(10000, 32000), []
        try:
            for port in range(first, first + count):
                taken.append(socket.socket())
                taken[-1].bind(("127.0.0.1", port))
            return str(first)
        except OSError:
            continue
        finally:
            for one in taken:
                one.close()
    sys.exit("no free ports")


class Ranks:
    def __init__(self, commrun, adapter, example, path, cache):
        self.commrun = commrun
        self.environment = {**{k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")},
                            "COMM_LIGHTGBM": adapter, "PYTHONPATH": os.pathsep.join(filter(None, [path, example])),
                            # compiled once, not by each rank
                            "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(pathlib.Path(cache, "bytecode")),
                            "OMP_NUM_THREADS": "1"}

    def models(self, count, names, **more):
        """The models of every rank, by shape."""
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([self.commrun, "-n", str(count), "--", sys.executable, __file__, folder, *names],
                                  env={**self.environment, **more}, capture_output=True, text=True, timeout=LIMIT_S)
            if done.returncode != 0:
                sys.exit(f"{count} ranks, {more}: {done.stdout}{done.stderr}")
            return {shape: [pathlib.Path(folder, f"{shape}.{rank}").read_text() for rank in range(count)]
                    for shape in names}


def the_model_is_that_of_its_own_sockets(ranks, wanted=None):
    """Sums of floats in double precision have no rounding here, whatever their order: the models are the same text."""
    for count, names in (wanted or SHAPES).items():
        ours = ranks.models(count, names)
        own = ranks.models(count, names, SOCKETS=free_ports(count * len(names)))
        for shape in names:
            # With voting, the root's value is each rank's own, in both.
            different = len(set(ours[shape]))
            if ours[shape] != own[shape] or (different != 1 and shape != "voting"):
                sys.exit(f"{shape}, {count} ranks: the models are not the same, or {different} among ours")
            trees = ours[shape][0].count("Tree=")
            print(f"{shape}, {count} ranks: the same model of {trees} trees")
            if trees < 3 or (shape == "early end" and trees >= 60):
                sys.exit(f"{shape}: {trees} trees")


def some_models_are_those_of_its_own_sockets(ranks):
    the_model_is_that_of_its_own_sockets(ranks, SOME)


def a_killed_rank_is_an_error_on_the_others(ranks):
    """Started by hand: a launcher would end the others."""
    environment = {**ranks.environment, "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_ports(1)}
    with tempfile.TemporaryDirectory() as folder:
        processes = [subprocess.Popen([sys.executable, __file__, folder, "killed"],
                                      env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True) for rank in range(3)]
        said = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    if processes[1].returncode != -signal.SIGKILL:
        sys.exit(f"rank 1 ended with {processes[1].returncode}: {said[1]}")
    for rank in (0, 2):
        last = said[rank].strip().splitlines()[-1]
        print(last)
        if processes[rank].returncode != 1 or "LightGBMError" not in last or "rank 1 (" not in last:
            sys.exit(f"rank {rank} ended with {processes[rank].returncode}: {said[rank]}")


SHAPES = {
    1: ("regression", "binary"),
    3: ("regression", "binary", "classes", "categories", "quantized", "wide", "early end"),
    4: ("regression", "voting", "categories", "wide"),
}
SOME = {1: ("binary",), 3: ("regression", "quantized", "early end"), 4: ("voting", "categories")}


def main():
    claim, commrun, adapter, example, cache = sys.argv[1:]
    path, reason = packages(cache)
    if reason:
        print("skipped:", reason)
        sys.exit(77)
    globals()[claim](Ranks(commrun, adapter, example, path, cache))


if __name__ == "__main__":
    be_a_rank(*sys.argv[1:]) if "RANK" in os.environ else main()
