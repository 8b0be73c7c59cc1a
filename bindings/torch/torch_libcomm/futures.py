"""Futures of collectives, and what is chained to them.

What follows a collective may call others and wait for them, as DDP's powerSGD does. All ranks must call the collectives
of a group in one order, but they do not see completions at the same times. So what is chained to the futures of a
group runs one after the other, in the order in which the program has chained it and never in then() itself; and the
collectives that it calls go to a channel of their own, whose order is that of the chain. The callbacks of a chain are
of level 1, what they chain to futures of theirs is of level 2, and so on: each level has a thread and a channel.

Only then() and add_done_callback() of Python are served so: C++ chains to a future without asking us, and calls no
collectives there.
"""
import collections
import os
import threading

import torch

# Sets the level of the calling thread in the native layer.
tell_native = None

current = threading.local()
lock = threading.Lock()
chains = {}  # (group, level) -> what is still to be run; one thread runs each


def begin_again():
    """The child of a fork has none of the threads that run chains."""
    global lock
    lock = threading.Lock()
    chains.clear()


os.register_at_fork(after_in_child=begin_again)


def level():
    """0 for a thread of the program, 1 for the callbacks that it has chained."""
    return getattr(current, "level", 0)


def chain(group, call):
    """Run it after what this level has chained to the group's futures before."""
    place = group, level()
    with lock:
        if place in chains:
            chains[place].append(call)
            return
        chains[place] = collections.deque([call])
    threading.Thread(target=run, args=place, name="libcomm chain", daemon=True).start()


def run(group, outer_level):
    current.level = outer_level + 1
    if tell_native:
        tell_native(current.level)
    place = group, outer_level
    while True:
        with lock:
            if not chains[place]:
                del chains[place]
                return
            call = chains[place].popleft()
        call()


class Failed:
    """The value of a future that has failed. PyTorch's own set_exception() makes the exception the value, and C++ takes
    it for a result: it looks for tensors in it, by pickling, and DDP takes the first one of none."""

    def __init__(self, error):
        self.error = error

    def throw(self):
        raise self.error

    def __reduce_ex__(self, _protocol):
        self.throw()


class Future(torch.futures.Future):
    """Of an operation of `group`, whichever object that is, or of a callback."""

    def __init__(self, group):
        super().__init__()
        self.group = group

    def then(self, callback):
        child = Future(self.group)

        def call():
            self.await_end()
            try:
                result = callback(self)
            except BaseException as error:
                child.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
                return
            child.set_result(result)

        chain(self.group, call)
        return child

    def add_done_callback(self, callback):
        def call():
            self.await_end()
            try:
                callback(self)
            except Exception:
                import traceback
                traceback.print_exc()

        chain(self.group, call)

    def set_exception(self, error):
        self._set_unwrap_func(Failed.throw)
        self.set_result(Failed(error))

    def await_end(self):
        try:
            self.wait()
        except Exception:  # callbacks find it in value()
            pass

    def take(self, other):
        """End as that future has ended."""
        try:
            value = other.value()
        except Exception as error:
            self.set_exception(error)
            return
        self.set_result(value)


def of_native(work):
    """get_future() of the native layer's works."""
    plain = super(type(work), work).get_future()
    if not work.collective:
        return plain
    future = Future(work.group)
    plain.add_done_callback(future.take)
    return future
