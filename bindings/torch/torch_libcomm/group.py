"""A process group in Python: ctypes, and nothing but the public C ABI."""
import atexit
import collections
import ctypes
import functools
import re
import threading
import weakref

import torch
import torch.distributed as dist

from . import futures
from .checks import Checks, number_of, sparse_form, sparse_words
from .library import (ANY_SOURCE, ERR_TIMEOUT, OK, PREMUL_SUM, SUM, GroupOptions, InitOptions, OpOptions, c_int,
                      c_size, check, failure, library, pointer)
from .store import Store
from .works import Work
from .world import arguments, default_group, ended_by, milliseconds, name_of

VERSION = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])

# torch's name of a dtype -> COMM_DTYPE_; a release of PyTorch has some of them.
DTYPES = {
    "int8": 1, "uint8": 2, "int16": 3, "uint16": 4, "int32": 5, "uint32": 6, "int64": 7, "uint64": 8, "bool": 9,
    "float16": 10, "bfloat16": 11, "float32": 12, "float64": 13, "float8_e4m3fn": 14, "float8_e5m2": 15,
    "complex64": 16, "complex128": 17,
}
DTYPES = {getattr(torch, name): number for name, number in DTYPES.items() if hasattr(torch, name)}
INT64 = 7


def addresses(tensors):
    return (pointer * len(tensors))(*[t.data_ptr() for t in tensors])


def counts(tensors):
    return (c_size * len(tensors))(*[t.numel() for t in tensors])


READ, WRITTEN, IN_PLACE = range(3)


def copy_back(tensor, piece, use):
    """A function that copies the piece to the tensor. One that is expanded has several elements in one place of memory.
    They have been equal, and are after an operation in place: one of them is copied. What else is written there need
    not be equal."""
    target, source = tensor, piece
    for i in range(tensor.dim()):
        if tensor.stride(i) == 0 and tensor.size(i) > 1:
            if use != IN_PLACE:
                raise RuntimeError("libcomm: an output is an expanded tensor: it has several elements in one place of "
                                   "memory, and each is to be written. Give clone() of it")
            target, source = target.narrow(i, 0, 1), source.narrow(i, 0, 1)
    return lambda: target.copy_(source)


def flat(tensor, use=READ):
    """The tensor in one piece, and what to do with the piece when it has been written."""
    if not tensor.is_cpu:
        raise RuntimeError(f"libcomm: a tensor on {tensor.device}; this group serves the CPU only. A group for both, "
                           "such as 'cpu:libcomm,cuda:nccl', needs the native layer: python3 -m torch_libcomm.build")
    if tensor.layout != torch.strided:
        raise RuntimeError(f"libcomm: a tensor of layout {tensor.layout}; sparse tensors can be all-reduced only")
    lazy = tensor.is_neg() or tensor.is_conj()  # the memory has other values than those that are read
    if tensor.is_contiguous() and not lazy:
        return tensor, None
    piece = (tensor.resolve_conj().resolve_neg() if lazy else tensor).contiguous()
    return piece, copy_back(tensor, piece, use) if use != READ else None


def flat_list(tensors, use=READ):
    pairs = [flat(tensor, use) for tensor in tensors]
    copies = [copy for _, copy in pairs if copy]
    return [piece for piece, _ in pairs], (lambda: [copy() for copy in copies]) if copies else None


def dtype_of(tensor):
    if tensor.dtype not in DTYPES:
        raise RuntimeError(f"libcomm: there is no dtype for {tensor.dtype}")
    return DTYPES[tensor.dtype]


def only(tensors):
    tensors = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    if len(tensors) != 1:
        raise RuntimeError(f"libcomm: one tensor per rank, not {len(tensors)}")
    return tensors[0]

# PyTorch's recorder cannot be attached to a group in Python; libcomm has records of its own.
getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set()).add("libcomm")


class Channel:
    """A group of libcomm's, and the batch that is open on it."""

    def __init__(self, handle):
        self.handle, self.batch = handle, None


open_groups = weakref.WeakSet()


@functools.lru_cache(maxsize=None)
def abort_at_end():
    """Called when weakref has a function of its own to be called at the end of the interpreter: that one closes the
    groups, and comes after this one."""
    atexit.register(abort_all)


def abort_all():
    reason = ended_by()
    for group in list(open_groups) if reason else []:
        for channel in group.channels:
            library().comm_group_abort(channel.handle, reason.encode())


class Group(dist.ProcessGroup):
    # Before PyTorch 2.8 its C++ code may hold a Work without holding its Python half; then the half must be kept here.
    WORKS_KEPT = 256 if VERSION < (2, 8) else 0
    supports_splitting = supports_coalescing = True

    @classmethod
    def create(cls, options):
        """For PyTorch's _DistributedBackendOptions: of ranks of the default group, if that is one of this kind; else a
        world of its own, which meets through PyTorch's store."""
        store, rank, size, timeout_ms, name, world_name, backend = arguments(options)
        parent = default_group(options)
        if isinstance(parent, Group) and parent.channels:
            return parent._subgroup(options.global_ranks_in_group, name, timeout_ms, options.store, backend.encode())
        ours, handle = Store(store), pointer()
        init = InitOptions(world_size=size, rank=rank, backend=backend.encode(), store=ours.handle,
                           timeout_ms=timeout_ms, name=world_name.encode())
        try:
            check(library().comm_init(ctypes.byref(init), ctypes.byref(handle)))
        except RuntimeError:
            ours.close()
            raise
        return cls(handle, rank, size, name, options.store, ours)

    def __init__(self, handle, rank, size, name, torch_store, store):
        super().__init__(rank, size)
        self.my_rank, self.my_size, self.torch_store = rank, size, torch_store
        self.my_name, self.description = name, "undefined"
        # By the level of the thread that calls (futures.py). The second one is made now: the ranks must make groups of
        # the same ranks in one order.
        self.channels, self.channels_lock = [Channel(handle)], threading.Lock()
        self._channel_of(1)
        self.works = collections.deque(maxlen=self.WORKS_KEPT)
        # Also before the interpreter ends: no thread of libcomm may call Python after that.
        # The groups of a world keep its store, as each of them may be the last one.
        self.store, self._close = store, weakref.finalize(self, Group._close_all, self.channels, store)
        open_groups.add(self)
        abort_at_end()

    @staticmethod
    def _close_all(channels, _store):
        while channels:
            library().comm_group_close(channels.pop().handle)

    def _channel_of(self, level):
        with self.channels_lock:
            while len(self.channels) <= level:
                handle = pointer()
                check(library().comm_group_dup(self.channels[-1].handle, None, ctypes.byref(handle)))
                self.channels.append(Channel(handle))
            return self.channels[level]

    def _channel(self, collective=True):
        """Where this thread's operations go. A peer may call the other half of a send or receive on another level."""
        if not self.channels:
            raise RuntimeError(f"libcomm: the process group '{self.my_name}' has been destroyed")
        level = futures.level()
        if level == 0:
            return self.channels[0]
        own = self._channel_of(level)
        return own if collective or own.batch is not None else self.channels[0]

    # ---- What PyTorch asks a group ----

    def getBackendName(self):
        return "libcomm"

    _get_backend_name = name = getBackendName

    def size(self):
        return self.my_size

    def rank(self):
        return self.my_rank

    @property
    def group_name(self):
        return self.my_name

    def _set_group_name(self, name):
        self.my_name = name

    @property
    def group_desc(self):
        return self.description

    def _set_group_desc(self, description):
        self.description = description

    @property
    def _device_types(self):
        return [torch.device("cpu")]

    def _get_backend(self, _device):
        """A group of this kind is its own backend."""
        return self

    def get_group_store(self):
        return self.torch_store

    def eager_connect_single_device(self, _device):
        """Called if init_process_group is given a device_id; there is nothing to be done."""

    def shutdown(self):
        self._close()

    def abort(self):
        self._open()
        for channel in self.channels:
            library().comm_group_abort(channel.handle, b"ProcessGroup.abort")

    def set_timeout(self, timeout):
        self._open()
        for channel in self.channels:
            check(library().comm_group_set_timeout(channel.handle, milliseconds(timeout) or -1))

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return library().comm_group_seq(self._open())

    def split_group(self, ranks, timeout=None, opts=None, group_name=None, group_desc=None, device_types=None):
        """The group of these ranks, or None if this one is none of them. No rank is waited for."""
        if self.my_rank not in ranks:
            return None
        name = group_name or f"{self.my_name}:split"
        group = self._subgroup(ranks, name, milliseconds(timeout), dist.PrefixStore(name, self.torch_store))
        group.description = group_desc or f"{self.description}:split"
        return group

    def _subgroup(self, ranks, name, timeout_ms, torch_store, backend=None):
        """A group of these ranks, of which this one is one. `backend` is libcomm's; None: this group's."""
        self._open()
        handle, options = pointer(), GroupOptions(backend=backend, timeout_ms=timeout_ms, name=name_of(name).encode())
        check(library().comm_group_create(self.channels[0].handle, (c_int * len(ranks))(*ranks), len(ranks),
                                          ctypes.byref(options), ctypes.byref(handle)))
        return Group(handle, ranks.index(self.my_rank), len(ranks), name, torch_store, self.store)

    # ---- Calling ----

    def _checks(self, call):
        return Checks(call, self.my_rank, self.my_size)

    def _open(self):
        return self._channel().handle

    @staticmethod
    def _options(given=None, tag=0):
        timeout = getattr(given, "timeout", None)
        return OpOptions(tag=tag, timeout_ms=milliseconds(timeout) if timeout else 0)

    def _submit(self, call, outputs, keep, finish, *arguments, options, wait=False):
        """Call an operation with the group in front and the options and the work behind. Inside a batch no work is
        given: the batch's stands for all."""
        if torch.autograd._profiler_enabled():
            with torch.autograd.profiler.record_function(call.replace("comm_", "libcomm:", 1)):
                return self._call(call, outputs, keep, finish, arguments, options, wait)
        return self._call(call, outputs, keep, finish, arguments, options, wait)

    def _call(self, call, outputs, keep, finish, arguments, options, wait):
        collective = call not in ("comm_send", "comm_recv")
        channel = self._channel(collective)
        function, group, batch = getattr(library(), call), channel.handle, channel.batch
        if batch is not None:
            work = Work(outputs, (keep, options), finish, leader=batch)
            check(function(group, *arguments, ctypes.byref(options), None))
            batch.keep.append(work)
            return work
        if wait:
            status = function(group, *arguments, ctypes.byref(options), None)
            if status != OK:
                raise failure(status, library().comm_last_error(),
                              options.timeout_ms or library().comm_group_timeout(group))
            if finish:
                finish()
            return Work(outputs, group=id(self))
        handle = pointer()
        work = Work(outputs, (keep, options), finish, group=id(self) if collective else None)
        check(function(group, *arguments, ctypes.byref(options), ctypes.byref(handle)))
        work.handle = handle
        self.works.append(work)
        return work

    @staticmethod
    def _waits(options):
        """Whether the caller waits for the operation right away. Releases that do not say so wait for the work."""
        return not getattr(options, "asyncOp", True)

    @staticmethod
    def _redop(op, dtype, options):
        """The number of a ReduceOp; PREMUL_SUM brings its factor."""
        number = int(getattr(op, "op", op))
        if number != PREMUL_SUM:
            return number, None
        factor = op.__getstate__()[1]
        if not torch.is_tensor(factor):
            factor = torch.tensor([factor], dtype=dtype)
        factor = factor.to(dtype).contiguous()
        options.premul = factor.data_ptr()
        return number, factor

    # ---- Collectives ----

    def broadcast(self, tensors, opts=None):
        tensor = only(tensors)
        root = opts if isinstance(opts, int) else opts.rootRank if opts else 0
        piece, copy = flat(tensor, IN_PLACE)
        return self._submit("comm_broadcast", [tensor], piece, copy, piece.data_ptr(), piece.numel(), dtype_of(piece),
                            root, options=self._options(opts), wait=self._waits(opts))

    def allreduce(self, tensors, opts=None):
        tensor = only(tensors)
        if tensor.layout == torch.sparse_coo:
            return self._allreduce_sparse(tensor, opts)
        piece, copy = flat(tensor, IN_PLACE)
        options = self._options(opts)
        redop, factor = self._redop(getattr(opts, "reduceOp", opts or dist.ReduceOp.SUM), piece.dtype, options)
        address = piece.data_ptr()
        return self._submit("comm_all_reduce", [tensor], (piece, factor), copy, address, address, piece.numel(),
                            dtype_of(piece), redop, options=options, wait=self._waits(opts))

    def _allreduce_sparse(self, tensor, opts):
        """The union of all ranks' indices. It waits: how much comes is known only when the others have said it."""
        if int(getattr(opts.reduceOp, "op", opts.reduceOp)) != SUM:
            raise RuntimeError("libcomm: sparse tensors can only be summed")
        own, checks = tensor.coalesce(), self._checks("all_reduce")
        mine = sparse_form(checks, own, dtype_of(own))
        forms = [torch.zeros_like(mine) for _ in range(self.my_size)]
        self.allgather([forms], [mine]).wait()
        for rank, form in enumerate(forms):
            if not torch.equal(form[1:], mine[1:]):
                checks.refuse(f"the sparse tensor of rank {rank} has {sparse_words(form, DTYPES)}, that of this rank "
                              f"{sparse_words(mine, DTYPES)}; they must be equal")
        shapes = [int(form[0]) for form in forms]
        indices = [torch.empty((own.sparse_dim(), shape), dtype=torch.int64) for shape in shapes]
        values = [torch.empty((shape, *own.values().shape[1:]), dtype=tensor.dtype) for shape in shapes]
        self.allgather([indices], [own.indices()]).wait()
        self.allgather([values], [own.values()]).wait()
        total = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), tensor.shape).coalesce()
        with torch.no_grad():
            tensor.copy_(total)
        return Work([tensor])

    def reduce(self, tensors, opts):
        tensor = only(tensors)
        piece, copy = flat(tensor, IN_PLACE if opts.rootRank == self.my_rank else READ)
        options = self._options(opts)
        redop, factor = self._redop(opts.reduceOp, piece.dtype, options)
        return self._submit("comm_reduce", [tensor], (piece, factor), copy, piece.data_ptr(),
                            piece.data_ptr(), piece.numel(), dtype_of(piece), redop, opts.rootRank, options=options,
                            wait=self._waits(opts))

    def allgather(self, output_tensors, input_tensors, opts=None):
        checks, tensor = self._checks("all_gather"), only(input_tensors)
        outputs = checks.only_list("output", output_tensors)
        checks.list("output", outputs, "input", tensor)
        piece, _ = flat(tensor)
        pieces, copy = flat_list(outputs, WRITTEN)
        return self._submit("comm_all_gather_list", [outputs], (piece, pieces), copy, piece.data_ptr(),
                            addresses(pieces), counts(pieces), dtype_of(piece), options=self._options(opts),
                            wait=self._waits(opts))

    def all_gather_single(self, output, input, opts=None):
        self._checks("all_gather_into_tensor").whole("output", output, "input", input)
        piece, _ = flat(input)
        target, copy = flat(output, WRITTEN)
        return self._submit("comm_all_gather", [output], (piece, target), copy, piece.data_ptr(), target.data_ptr(),
                            piece.numel(), dtype_of(piece), options=self._options(opts), wait=self._waits(opts))

    _allgather_base = all_gather_single

    def gather(self, output_tensors, input_tensors, opts):
        tensor, outputs = only(input_tensors), []
        if opts.rootRank == self.my_rank:
            checks = self._checks("gather")
            outputs = checks.only_list("output", output_tensors)
            checks.list("output", outputs, "input", tensor)
        piece, _ = flat(tensor)
        pieces, copy = flat_list(outputs, WRITTEN)
        return self._submit("comm_gather_list", [outputs], (piece, pieces), copy, piece.data_ptr(), piece.numel(),
                            addresses(pieces) if pieces else None, counts(pieces) if pieces else None,
                            dtype_of(piece), opts.rootRank, options=self._options(opts), wait=self._waits(opts))

    def gather_single(self, output, input, opts):
        target, copy = None, None
        if opts.rootRank == self.my_rank:
            checks = self._checks("gather_single")
            if output is None:
                checks.refuse("the root needs an output")
            checks.whole("output", output, "input", input)
            target, copy = flat(output, WRITTEN)
        piece, _ = flat(input)
        return self._submit("comm_gather", [output], (piece, target), copy, piece.data_ptr(),
                            target.data_ptr() if target is not None else None, piece.numel(), dtype_of(piece),
                            opts.rootRank, options=self._options(opts), wait=self._waits(opts))

    gather_into_tensor = gather_single

    def scatter(self, output_tensors, input_tensors, opts):
        output, inputs = only(output_tensors), []
        if opts.rootRank == self.my_rank:
            checks = self._checks("scatter")
            inputs = checks.only_list("input", input_tensors)
            checks.list("input", inputs, "output", output)
        target, copy = flat(output, WRITTEN)
        pieces, _ = flat_list(inputs)
        return self._submit("comm_scatter_list", [output], (target, pieces), copy,
                            addresses(pieces) if pieces else None, counts(pieces) if pieces else None,
                            target.data_ptr(), target.numel(), dtype_of(target), opts.rootRank,
                            options=self._options(opts), wait=self._waits(opts))

    def reduce_scatter(self, output_tensors, input_tensors, opts):
        checks, output = self._checks("reduce_scatter"), only(output_tensors)
        inputs = checks.only_list("input", input_tensors)
        checks.list("input", inputs, "output", output)
        target, copy = flat(output, WRITTEN)
        pieces, _ = flat_list(inputs)
        options = self._options(opts)
        redop, factor = self._redop(getattr(opts, "reduceOp", opts), target.dtype, options)
        return self._submit("comm_reduce_scatter_list", [output], (target, pieces, factor), copy, addresses(pieces),
                            target.data_ptr(), counts(pieces), dtype_of(target), redop, options=options,
                            wait=self._waits(opts))

    def reduce_scatter_single(self, output, input, opts):
        self._checks("reduce_scatter_tensor").whole("input", input, "output", output)
        target, copy = flat(output, WRITTEN)
        piece, _ = flat(input)
        options = self._options(opts)
        redop, factor = self._redop(opts.reduceOp, target.dtype, options)
        return self._submit("comm_reduce_scatter", [output], (target, piece, factor), copy, piece.data_ptr(),
                            target.data_ptr(), target.numel(), dtype_of(target), redop, options=options,
                            wait=self._waits(opts))

    _reduce_scatter_base = reduce_scatter_single

    def alltoall(self, output_tensors, input_tensors, opts=None):
        checks = self._checks("all_to_all")
        checks.length("input", input_tensors)
        checks.list("output", output_tensors, "input for this rank", input_tensors[self.my_rank])
        checks.list("input", input_tensors, "output for this rank", output_tensors[self.my_rank])
        targets, copy = flat_list(output_tensors, WRITTEN)
        pieces, _ = flat_list(input_tensors)
        return self._submit("comm_all_to_all_list", [output_tensors], (targets, pieces), copy, addresses(pieces),
                            counts(pieces), addresses(targets), counts(targets), dtype_of(pieces[0]),
                            options=self._options(opts), wait=self._waits(opts))

    def all_to_all_single(self, output, input, output_split_sizes, input_split_sizes, opts=None):
        checks = self._checks("all_to_all_single")
        checks.type("output", output, "input", input)
        sends = checks.splits("input", input, input_split_sizes)
        receives = checks.splits("output", output, output_split_sizes)
        own_send, own_receive = sends[self.my_rank], receives[self.my_rank]
        if own_send != own_receive:
            checks.refuse(f"the input has {number_of(own_send, 'element')} for rank {self.my_rank}, this one, and the "
                          f"output {own_receive}; they must be equal")
        target, copy = flat(output, WRITTEN)
        piece, _ = flat(input)
        sends, receives = (c_size * len(sends))(*sends), (c_size * len(receives))(*receives)
        return self._submit("comm_all_to_all_v", [output], (target, piece), copy, piece.data_ptr(), sends, None,
                            target.data_ptr(), receives, None, dtype_of(piece), options=self._options(opts),
                            wait=self._waits(opts))

    alltoall_base = all_to_all_single

    def barrier(self, opts=None):
        return self._submit("comm_barrier", [], None, None, options=self._options(opts), wait=self._waits(opts))

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        options = OpOptions()
        options.timeout_ms = 1 if timeout is not None and not timeout else milliseconds(timeout)
        status = library().comm_monitored_barrier(self._open(), ctypes.byref(options))
        if status == OK:
            return
        text = library().comm_last_error().decode()
        if status != ERR_TIMEOUT:
            raise failure(status, text)
        if self.my_rank != 0:
            raise RuntimeError(f"Rank {self.my_rank} successfully reached monitoredBarrier, but received errors while "
                               f"waiting for send/recv from rank 0: {text}")
        limit = milliseconds(timeout)
        if limit == 0 and timeout is not None:
            raise RuntimeError(f"Rank 0 timed out in monitoredBarrier after 0 ms: {text}")
        missing = re.findall(r"(?:^|, )(\d+)", text.rpartition(" ms: ")[2])
        who = f"Ranks {', '.join(missing)}" if wait_all_ranks and len(missing) > 1 else f"Rank {missing[0]}"
        raise RuntimeError(f"[Rank 0]: {who} failed to pass monitoredBarrier in {options.timeout_ms} ms: {text}")

    # ---- Point-to-point ----

    def send(self, tensors, peer, tag=0):
        piece, _ = flat(only(tensors))
        return self._submit("comm_send", [], piece, None, piece.data_ptr(), piece.numel(), dtype_of(piece), peer,
                            options=self._options(tag=tag))

    def recv(self, tensors, peer, tag=0):
        tensor = only(tensors)
        piece, copy = flat(tensor, WRITTEN)
        return self._submit("comm_recv", [tensor], piece, copy, piece.data_ptr(), piece.numel(), dtype_of(piece),
                            peer, options=self._options(tag=tag))

    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, ANY_SOURCE, tag)

    # ---- Coalescing ----

    def _start_coalescing(self, _device=None):
        channel = self._channel()
        check(library().comm_coalesce_begin(channel.handle))
        channel.batch = Work([], keep=[], group=id(self))
        channel.batch.open = True

    def _end_coalescing(self, reqs=None):
        """2.x takes the one work; 1.13 waits for each of those that the calls inside have returned."""
        channel, handle = self._channel(), pointer()
        batch, channel.batch = channel.batch, None
        batch.open, members = False, batch.keep
        batch.finish = lambda: [member.conclude() for member in members]
        check(library().comm_coalesce_end(channel.handle, None, ctypes.byref(handle)))
        batch.handle = handle
        self.works.append(batch)
        return batch

    def _together(self, calls, outputs, opts=None):
        """The calls as one batch, or as a part of the one that is open."""
        batch = self._channel().batch
        if batch is not None:
            for call in calls:
                call()
            return Work(outputs, leader=batch)
        self._start_coalescing()
        try:
            for call in calls:
                call()
        except BaseException:
            channel = self._channel()
            library().comm_coalesce_cancel(channel.handle)
            channel.batch = None
            raise
        batch = self._end_coalescing()
        batch.outputs = outputs
        if self._waits(opts):
            batch.wait()
        return batch

    def allreduce_coalesced(self, tensors, opts=None):
        return self._together([lambda tensor=tensor: self.allreduce([tensor], opts) for tensor in tensors],
                              list(tensors), opts)

    def allgather_coalesced(self, output_lists, input_list, opts=None):
        """output_lists: by rank, then by tensor."""
        checks = self._checks("all_gather_coalesced")
        checks.length("output", output_lists)
        for of_rank in output_lists:
            checks.as_many("output", of_rank, "input", input_list)
        by_tensor = list(zip(*output_lists))
        return self._together([lambda outputs=outputs, tensor=tensor: self.allgather([list(outputs)], [tensor], opts)
                               for outputs, tensor in zip(by_tensor, input_list)], output_lists, opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        self._checks("all_gather_into_tensor").as_many("output", outputs, "input", inputs)
        return self._together([lambda output=output, tensor=tensor: self.all_gather_single(output, tensor, opts)
                               for output, tensor in zip(outputs, inputs)], list(outputs), opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        self._checks("reduce_scatter_tensor").as_many("output", outputs, "input", inputs)
        return self._together([lambda output=output, tensor=tensor: self.reduce_scatter_single(output, tensor, opts)
                               for output, tensor in zip(outputs, inputs)], list(outputs), opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
