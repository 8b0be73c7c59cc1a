#!/usr/bin/env python3
"""Distributed LightGBM over libcomm: each rank trains on its own part of the rows, and all get the same model.

    commrun -n 4 python3 train.py --rounds 50

With --sockets PORT it is LightGBM's own network instead, on PORT, PORT + 1 ... of this host.
"""
import argparse
import os
import sys
import time

import lightgbm
import numpy

from comm_lightgbm import network


def rows_of(rank, size, arguments):
    """This rank's part of rows that are the same in every run."""
    random = numpy.random.default_rng(arguments.seed)
    x = random.normal(size=(arguments.rows, arguments.features))
    y = numpy.round(8 * (x[:, 0] * x[:, 1] + numpy.sin(2 * x[:, 2]) + 0.5 * x[:, 3])) / 8
    return x[rank::size], y[rank::size]


def train(rank, size, arguments, more=None):
    x, y = rows_of(rank, size, arguments)
    parameters = {"objective": "regression", "num_leaves": arguments.leaves, "verbosity": -1, "num_threads": 1,
                  "tree_learner": arguments.learner, "num_machines": size, "pre_partition": True, **(more or {})}
    data = lightgbm.Dataset(x, y, params=parameters)
    times = []
    model = lightgbm.train(parameters, data, num_boost_round=arguments.rounds,
                           callbacks=[lambda environment: times.append(time.perf_counter())])
    return model, (times[-1] - times[0]) / max(len(times) - 1, 1)


def own_sockets(rank, size, first_port):
    machines = ",".join(f"127.0.0.1:{first_port + r}" for r in range(size))
    return {"machines": machines, "local_listen_port": first_port + rank, "num_machines": size} if size > 1 else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=20000)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--leaves", type=int, default=31)
    parser.add_argument("--learner", choices=["data", "feature", "voting"], default="data")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", help="libcomm's backend string")
    parser.add_argument("--sockets", type=int, metavar="PORT", help="LightGBM's own network, from this port on")
    parser.add_argument("--model", help="write the model to this file")
    arguments = parser.parse_args()
    if arguments.sockets:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        model, seconds = train(rank, size, arguments, own_sockets(rank, size, arguments.sockets))
    else:
        with network(arguments.backend) as (rank, size):
            model, seconds = train(rank, size, arguments)
    if rank == 0:
        print(f"{size} ranks, {model.num_trees()} trees, {1000 * seconds:.2f} ms each")
    if rank == 0 and arguments.model:
        model.save_model(arguments.model)


if __name__ == "__main__":
    sys.exit(main())
