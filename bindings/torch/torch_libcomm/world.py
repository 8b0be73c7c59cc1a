"""What both layers ask of PyTorch's options."""
import datetime
import hashlib
import os
import sys

import torch.distributed as dist


def milliseconds(timeout):
    """A time limit of PyTorch's as libcomm counts: a timedelta, or seconds. 0 if it is none, or unset."""
    if not timeout:
        return 0
    if not isinstance(timeout, datetime.timedelta):
        timeout = datetime.timedelta(seconds=timeout)
    if timeout < datetime.timedelta(0):
        return 0
    return max(int(timeout / datetime.timedelta(milliseconds=1)), 1)


def name_of(text):
    """A name as libcomm takes it for a world: at most 47 bytes, without control characters."""
    text = "".join(letter if letter.isprintable() else "_" for letter in text)
    return text.encode()[:47].decode(errors="ignore")


def prefix_of(ranks):
    """What tells groups of these ranks from those of others in a store."""
    return hashlib.sha256(",".join(map(str, ranks)).encode()).hexdigest()[:32]


def default_group(options):
    """The default group, if a group of these _DistributedBackendOptions is one of its ranks, by their numbers there; or
    None. Only members are asked to make a group, so all of them must come to the same answer: it does not depend on
    whether the default group has ended, which some may not know yet."""
    ranks = options.global_ranks_in_group
    if not ranks or not dist.is_initialized():
        return None
    default = dist.distributed_c10d._get_default_group()
    fits = len(ranks) == options.group_size and ranks[options.group_rank] == default.rank()
    return default if fits else None


def arguments(options):
    """Of a _DistributedBackendOptions: the store, rank, size, time limit in ms, the name, that of libcomm's world, and
    libcomm's backend."""
    store, ranks = options.store, options.global_ranks_in_group
    if ranks:
        # Groups without a common rank may have been given one and the same name, and so prefix.
        store = dist.PrefixStore(prefix_of(ranks), store)
    return (store, options.group_rank, options.group_size, milliseconds(options.timeout), options.group_id,
            name_of(options.group_id), os.environ.get("COMM_BACKEND") or "cpu:auto")


def ended_by():
    """What ends the interpreter, if that is an exception that nothing has caught; else "". The other ranks shall read
    that, and not that this one has closed its groups."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None or hasattr(sys, "ps1"):  # at a prompt the last one may be long ago
        return ""
    text = "".join(letter if letter.isprintable() else " " for letter in f"{type(error).__name__}: {error}")
    return f"ended by {text[:200]}"
