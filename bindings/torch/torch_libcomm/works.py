"""Operations under way or done."""
import concurrent.futures
import ctypes
import datetime
import itertools
import os
import re
import threading

import torch

from .futures import Future
from .library import COMPLETE_FN, ERR_TIMEOUT, IN_PROGRESS, OK, c_int, check, failure, library
from .world import milliseconds

try:
    from torch.distributed import Work as TorchWork
except ImportError:
    from torch._C._distributed_c10d import Work as TorchWork

# Futures are completed by threads of their own, never by libcomm's, which move the data. What Python chains to them
# runs elsewhere (futures.py); what C++ chains, here.
def make_pool():
    """Also in the child of a fork, which has none of the parent's threads."""
    global pool
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=256, thread_name_prefix="libcomm future")


make_pool()
os.register_at_fork(after_in_child=make_pool)

SIGNAL_CHECK_MS = 100  # how long a thread that waits may leave signals alone


class Work(TorchWork):
    """A comm_work. `finish` is called once after success: it copies results where they belong. `keep` is what libcomm
    reads and writes until then. A work without a handle is done, or part of a batch, whose own work is `leader`.
    `group` is that of a collective."""

    def __init__(self, outputs, keep=None, finish=None, leader=None, group=None):
        super().__init__()
        self.outputs, self.keep, self.finish, self.leader, self.group = outputs, keep, finish, leader, group
        self.handle, self.future, self.lock = None, None, threading.Lock()
        self.library = library()  # at the end of a program the module may be gone before its works
        self.open = False  # a batch to which operations are still added

    def __del__(self):
        """An operation under way goes on without its work, and needs its memory until it has ended."""
        if not self.handle:
            return
        if self.library.comm_work_status(self.handle) == IN_PROGRESS:
            tell(self.handle, Left((self.keep, self.outputs)))
        self.library.comm_work_release(self.handle)

    def conclude(self):
        """Once, after success."""
        with self.lock:
            finish, self.finish, self.keep = self.finish, None, None
            if finish:
                finish()

    def _error(self):
        status = self.library.comm_work_status(self.handle)
        return failure(status, self.library.comm_work_error(self.handle), self.library.comm_work_timeout(self.handle))

    def wait(self, timeout=datetime.timedelta(0)):
        if self.leader:
            return self.leader.wait(timeout)
        if self.open:
            raise RuntimeError("libcomm: an operation of a batch cannot be waited for before the batch has ended")
        if self.handle:
            self._await(milliseconds(timeout))
        self.conclude()
        return True

    def _await(self, limit):
        """0 is no limit. Python runs the handlers of signals between the calls; what they raise ends the wait, and the
        operation goes on."""
        waited = 0
        while True:
            part = min(limit - waited, SIGNAL_CHECK_MS) if limit > 0 else SIGNAL_CHECK_MS
            status = self.library.comm_work_wait(self.handle, part)
            ended = self.library.comm_work_status(self.handle)  # perhaps after the wait's time was over
            if ended == OK:
                return
            if ended != IN_PROGRESS:
                raise self._error()
            waited += part
            if status != ERR_TIMEOUT or 0 < limit <= waited:
                text = self.library.comm_last_error().decode(errors="replace")
                # It is about the last part of the wait.
                text = re.sub(r"(.*timed out after )\d+", rf"\g<1>{waited}", text, count=1)
                raise failure(status, text, limit)

    def synchronize(self):
        self.wait()

    def is_completed(self):
        if self.leader:
            return self.leader.is_completed()
        if not self.handle:
            return not self.open
        done = c_int()
        status = self.library.comm_work_test(self.handle, ctypes.byref(done))
        if done.value and status == OK:
            self.conclude()
        return bool(done.value)

    def _status(self):
        if self.leader:
            return self.leader._status()
        return self.library.comm_work_status(self.handle) if self.handle else OK

    def is_success(self):
        return self._status() == OK

    def exception(self):
        return None if self._status() in (OK, IN_PROGRESS) else (self.leader or self)._error()

    def result(self):
        return self.outputs

    def source_rank(self):
        return self.library.comm_work_source_rank(self.handle)

    _source_rank = source_rank

    def _get_sequence_number(self):
        return self.library.comm_work_seq(self.handle) if self.handle else 0

    def _get_duration(self):
        return self.library.comm_work_duration_ns(self.handle) / 1e6 if self.handle else 0.0

    def get_future(self):
        if self.leader:
            return self.leader.get_future()
        with self.lock:
            if self.future:
                return self.future
            self.future = torch.futures.Future() if self.group is None else Future(self.group)
        if not self.handle:
            self.conclude()
            self.future.set_result(self.outputs)
            return self.future
        check(tell(self.handle, self))
        return self.future

    def completed(self, status):
        try:
            if status != OK:
                raise self._error()
            self.conclude()
        except Exception as error:
            self.future.set_exception(error)
            return
        self.future.set_result(self.outputs)


class Left:
    """The memory of an operation whose work has no reference left."""

    def __init__(self, memory):
        self.memory = memory

    def completed(self, _status):
        self.memory = None


# The listeners to the end of an operation, by the context that its callback gets. One function serves them all: a thunk
# of ctypes must not be freed while it runs, as one per work would be.
awaited, keys = {}, itertools.count(1)


def tell(handle, listener):
    """Have listener.completed(status) called by a thread of the pool when the work has completed; gives a status."""
    key = next(keys)
    awaited[key] = listener
    status = library().comm_work_on_complete(handle, complete, key)
    if status != OK:
        del awaited[key]
    return status


@COMPLETE_FN
def complete(_work, status, context):
    """On whichever thread completes the work."""
    listener = awaited.pop(context)
    try:
        pool.submit(listener.completed, status)
    except RuntimeError:  # the interpreter is ending: no thread waits for the future any more
        pass
