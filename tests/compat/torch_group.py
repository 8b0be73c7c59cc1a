"""A torch.distributed process group over libcomm: Python and ctypes, and nothing but the public C ABI.

    import torch_group
    torch_group.register("/usr/lib/libcomm.so.0")
    torch.distributed.init_process_group("comm", ...)

Serves PyTorch 1.13 (where a third-party backend is a ProcessGroup subclass, found by Backend.register_backend) and 2.x.
Every group is a world of its own that meets through PyTorch's store: see Store. Tensors are on the CPU.

What keeps what alive. libcomm keeps the buffers of an operation until its work completes, so a Work holds its tensors;
and PyTorch's C++ code holds Works whose Python half would otherwise be collected, so a group holds its Works.
"""
import collections
import ctypes
import datetime
import threading
import time
import weakref

import torch
import torch.distributed as dist

try:
    from torch.distributed import Work as TorchWork
except ImportError:
    from torch._C._distributed_c10d import Work as TorchWork

OK, IN_PROGRESS, ERR_UNSUPPORTED, ERR_NOT_FOUND, ERR_TIMEOUT, ERR_SYSTEM = 0, 1, -2, -4, -5, -6
ANY_SOURCE, ANY_TAG = -1, -1
PREMUL_SUM = 8

# torch's name of a dtype -> COMM_DTYPE_; a release of PyTorch has some of them.
DTYPES = {
    "int8": 1, "uint8": 2, "int16": 3, "uint16": 4, "int32": 5, "uint32": 6, "int64": 7, "uint64": 8, "bool": 9,
    "float16": 10, "bfloat16": 11, "float32": 12, "float64": 13, "float8_e4m3fn": 14, "float8_e5m2": 15,
    "complex64": 16, "complex128": 17,
}
DTYPES = {getattr(torch, name): number for name, number in DTYPES.items() if hasattr(torch, name)}

pointer, c_int, c_long, c_size, c_text = (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_size_t,
                                          ctypes.c_char_p)


class OpOptions(ctypes.Structure):
    """comm_op_options."""
    _fields_ = [("struct_bytes", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("timeout_ms", c_long), ("tag", c_int),
                ("device", c_int), ("stream", pointer), ("premul", pointer), ("reduce_fn", pointer),
                ("reduce_context", pointer), ("label", c_text)]

    def __init__(self, **fields):
        super().__init__(struct_bytes=ctypes.sizeof(OpOptions), **fields)


class InitOptions(ctypes.Structure):
    """comm_init_options."""
    _fields_ = [("struct_bytes", ctypes.c_uint32), ("world_size", c_int), ("rank", c_int), ("backend", c_text),
                ("rendezvous", c_text), ("store", pointer), ("timeout_ms", c_long), ("name", c_text),
                ("secret", c_text)]

    def __init__(self, **fields):
        super().__init__(struct_bytes=ctypes.sizeof(InitOptions), **fields)


ERROR = (pointer, c_size)  # the last arguments of a store's functions: where a text goes, and its room
SET_FN = ctypes.CFUNCTYPE(c_int, pointer, c_text, pointer, c_size, *ERROR)
GET_FN = ctypes.CFUNCTYPE(c_int, pointer, c_text, c_long, ctypes.POINTER(pointer), ctypes.POINTER(c_size), *ERROR)
ADD_FN = ctypes.CFUNCTYPE(c_int, pointer, c_text, c_long, ctypes.POINTER(c_long), *ERROR)
COMPARE_SET_FN = ctypes.CFUNCTYPE(c_int, pointer, c_text, pointer, c_size, pointer, c_size, ctypes.POINTER(pointer),
                                  ctypes.POINTER(c_size), *ERROR)
CHECK_FN = ctypes.CFUNCTYPE(c_int, pointer, ctypes.POINTER(c_text), c_size, ctypes.POINTER(c_int), *ERROR)
REMOVE_FN = ctypes.CFUNCTYPE(c_int, pointer, c_text, ctypes.POINTER(c_int), *ERROR)
COMPLETE_FN = ctypes.CFUNCTYPE(None, pointer, c_int, pointer)


class StoreOps(ctypes.Structure):
    """comm_store_ops; the functions that libcomm makes itself stay NULL."""
    _fields_ = ([("struct_bytes", ctypes.c_uint32), ("name", c_text), ("set", SET_FN), ("get", GET_FN),
                 ("add", ADD_FN), ("compare_set", COMPARE_SET_FN), ("check", CHECK_FN), ("remove", REMOVE_FN)] +
                [(name, pointer) for name in ("wait", "append", "num_keys", "list_keys", "queue_push", "queue_pop",
                                              "queue_len", "close")])


def load(path):
    """libcomm, with the types of what is called here."""
    library = ctypes.CDLL(path)
    tail = (ctypes.POINTER(OpOptions), ctypes.POINTER(pointer))
    block = (pointer, pointer, c_size, c_int)
    signatures = {
        "comm_init": (c_int, ctypes.POINTER(InitOptions), ctypes.POINTER(pointer)),
        "comm_group_close": (c_int, pointer),
        "comm_group_abort": (c_int, pointer, c_text),
        "comm_group_seq": (ctypes.c_uint64, pointer),
        "comm_last_error": (c_text,),
        "comm_broadcast": (c_int, pointer, pointer, c_size, c_int, c_int, *tail),
        "comm_all_reduce": (c_int, pointer, *block, c_int, *tail),
        "comm_reduce": (c_int, pointer, *block, c_int, c_int, *tail),
        "comm_all_gather": (c_int, pointer, *block, *tail),
        "comm_all_gather_list": (c_int, pointer, pointer, pointer, pointer, c_int, *tail),
        "comm_gather_list": (c_int, pointer, pointer, c_size, pointer, pointer, c_int, c_int, *tail),
        "comm_scatter_list": (c_int, pointer, pointer, pointer, pointer, c_size, c_int, c_int, *tail),
        "comm_reduce_scatter": (c_int, pointer, *block, c_int, *tail),
        "comm_reduce_scatter_list": (c_int, pointer, pointer, pointer, pointer, c_int, c_int, *tail),
        "comm_all_to_all_v": (c_int, pointer, pointer, pointer, pointer, pointer, pointer, pointer, c_int, *tail),
        "comm_all_to_all_list": (c_int, pointer, pointer, pointer, pointer, pointer, c_int, *tail),
        "comm_barrier": (c_int, pointer, *tail),
        "comm_monitored_barrier": (c_int, pointer, ctypes.POINTER(OpOptions)),
        "comm_send": (c_int, pointer, pointer, c_size, c_int, c_int, *tail),
        "comm_recv": (c_int, pointer, pointer, c_size, c_int, c_int, *tail),
        "comm_coalesce_begin": (c_int, pointer),
        "comm_coalesce_end": (c_int, pointer, pointer, ctypes.POINTER(pointer)),
        "comm_work_wait": (c_int, pointer, c_long),
        "comm_work_test": (c_int, pointer, ctypes.POINTER(c_int)),
        "comm_work_status": (c_int, pointer),
        "comm_work_error": (c_text, pointer),
        "comm_work_on_complete": (c_int, pointer, COMPLETE_FN, pointer),
        "comm_work_source_rank": (c_int, pointer),
        "comm_work_release": (None, pointer),
        "comm_store_create": (c_int, ctypes.POINTER(StoreOps), pointer, ctypes.POINTER(pointer)),
        "comm_store_close": (None, pointer),
        "comm_version": (c_text,),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def milliseconds(timeout):
    """A timedelta of PyTorch as libcomm counts; its "unset" is negative or 0."""
    count = int(timeout / datetime.timedelta(milliseconds=1)) if timeout else 0
    return max(count, 0)


# ---- The store ----------------------------------------------------------------------------------


class Store:
    """A store of PyTorch's, whatever it is, as a comm_store.

    Nothing here waits inside PyTorch's store: its clients of 1.13 cannot be used any more once a wait has timed out.
    That release has no check() either, but compare_set with an expected value that is never set reads without waiting.
    """
    ABSENT = "\x00comm: absent\x00"

    def __init__(self, library, store):
        self.store, self.handle = store, pointer()
        self.malloc = ctypes.CDLL(None).malloc
        self.malloc.restype, self.malloc.argtypes = pointer, [c_size]
        # The structure holds the functions, and must live as long as the handle.
        self.ops = StoreOps(struct_bytes=ctypes.sizeof(StoreOps), name=b"torch", set=SET_FN(self.guard(self.set)),
                            get=GET_FN(self.guard(self.get)), add=ADD_FN(self.guard(self.add)),
                            compare_set=COMPARE_SET_FN(self.guard(self.compare_set)),
                            check=CHECK_FN(self.guard(self.check)), remove=REMOVE_FN(self.guard(self.remove)))
        status = library.comm_store_create(ctypes.byref(self.ops), None, ctypes.byref(self.handle))
        if status != OK:
            raise RuntimeError(library.comm_last_error().decode())

    @staticmethod
    def guard(function):
        """No exception may go through C: it becomes a status and a text."""
        def call(_context, key, *arguments):
            *arguments, error, room = arguments
            try:
                return function(key, *arguments)
            except Exception as exception:
                text = str(exception).encode()[:max(room - 1, 0)] + b"\0"
                ctypes.memmove(error, text, min(len(text), room))
                return ERR_SYSTEM
        return call

    def give(self, value, ret_data, ret_bytes):
        value = value.encode() if isinstance(value, str) else bytes(value)
        memory = self.malloc(len(value) + 1)
        ctypes.memmove(memory, value, len(value))
        ret_data[0], ret_bytes[0] = memory, len(value)
        return OK

    def peek(self, key):
        """The value, or None."""
        value = self.store.compare_set(key.decode(), self.ABSENT, self.ABSENT)
        value = value.encode() if isinstance(value, str) else bytes(value)
        return None if value == self.ABSENT.encode() else value

    def set(self, key, data, size):
        self.store.set(key.decode(), ctypes.string_at(data, size) if size else b"")
        return OK

    def get(self, key, timeout_ms, ret_data, ret_bytes):
        deadline, pause = time.monotonic() + timeout_ms / 1000, 0.0005
        while (value := self.peek(key)) is None:
            if time.monotonic() > deadline:
                return ERR_TIMEOUT
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        return self.give(value, ret_data, ret_bytes)

    def add(self, key, amount, ret_value):
        ret_value[0] = self.store.add(key.decode(), amount)
        return OK

    def compare_set(self, key, expected, expected_size, desired, desired_size, ret_data, ret_bytes):
        value = self.store.compare_set(key.decode(), ctypes.string_at(expected, expected_size),
                                       ctypes.string_at(desired, desired_size))
        return self.give(value, ret_data, ret_bytes)

    def check(self, keys, count, ret_all):
        ret_all[0] = all(self.peek(keys[i]) is not None for i in range(count))
        return OK

    def remove(self, key, ret_existed):
        existed = self.store.delete_key(key.decode())
        if ret_existed:
            ret_existed[0] = bool(existed)
        return OK


# ---- Works --------------------------------------------------------------------------------------


class Work(TorchWork):
    """A comm_work. `finish` is called once after success: it copies results to where they belong."""

    def __init__(self, group, outputs, keep, finish=None):
        super().__init__()
        self.group, self.outputs, self.keep, self.finish = group, outputs, keep, finish
        self.library, self.handle = group.library, None
        self.future, self.lock = None, threading.Lock()

    def __del__(self):
        # None: it was never submitted, or is one of a batch that another one stands for.
        if self.handle:
            self.library.comm_work_release(self.handle)

    def _conclude(self):
        with self.lock:
            finish, self.finish, self.keep = self.finish, None, None
        if finish:
            finish()

    def _error(self):
        return RuntimeError(self.library.comm_work_error(self.handle).decode())

    def wait(self, timeout=datetime.timedelta(0)):
        status = self.library.comm_work_wait(self.handle, milliseconds(timeout))
        if status == ERR_TIMEOUT and self.library.comm_work_status(self.handle) == IN_PROGRESS:
            raise RuntimeError(self.library.comm_last_error().decode())
        if status != OK:
            raise self._error()
        self._conclude()
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        done = c_int()
        self.library.comm_work_test(self.handle, ctypes.byref(done))
        return bool(done.value)

    def is_success(self):
        return self.library.comm_work_status(self.handle) == OK

    def exception(self):
        return None if self.library.comm_work_status(self.handle) in (OK, IN_PROGRESS) else self._error()

    def result(self):
        return self.outputs

    def source_rank(self):
        return self.library.comm_work_source_rank(self.handle)

    _source_rank = source_rank

    def get_future(self):
        if not self.future:
            self.future = torch.futures.Future()
            awaited[id(self)] = self
            if self.library.comm_work_on_complete(self.handle, complete_future, id(self)) != OK:
                del awaited[id(self)]
                raise RuntimeError(self.library.comm_last_error().decode())
        return self.future

    def _complete_future(self, status):
        try:
            if status == OK:
                self._conclude()
                self.future.set_result(self.outputs)
            else:
                self.future.set_exception(self._error())
        except Exception as exception:
            print("torch_group: completing a future:", exception, flush=True)


# Works whose futures are not complete, by the context that their callback gets. One function serves them all: a
# thunk of ctypes must not be freed while it runs, as one per work would be.
awaited = {}


@COMPLETE_FN
def complete_future(_work, status, context):
    """On whichever thread completes the work."""
    awaited.pop(context)._complete_future(status)


# ---- The group ----------------------------------------------------------------------------------


def addresses(tensors):
    return (pointer * len(tensors))(*[t.data_ptr() for t in tensors])


def counts(tensors):
    return (c_size * len(tensors))(*[t.numel() for t in tensors])


class Group(dist.ProcessGroup):
    WORKS_KEPT = 4096

    def __init__(self, library, store, rank, size, timeout):
        super().__init__(rank, size)
        self.library, self.handle, self.timeout_ms = library, pointer(), milliseconds(timeout)
        self.my_rank, self.my_size = rank, size
        self.works, self.batch = collections.deque(maxlen=self.WORKS_KEPT), None
        self.store = Store(library, store)
        options = InitOptions(world_size=size, rank=rank, backend=b"cpu:tcp", store=self.store.handle,
                              timeout_ms=self.timeout_ms, name=b"torch")
        status = library.comm_init(ctypes.byref(options), ctypes.byref(self.handle))
        if status != OK:
            library.comm_store_close(self.store.handle)
            raise RuntimeError(library.comm_last_error().decode())
        # Also before the interpreter ends: no thread of libcomm may call Python after that.
        self._close = weakref.finalize(self, Group._close_all, library, self.handle, self.store)

    @staticmethod
    def _close_all(library, handle, store):
        library.comm_group_close(handle)
        library.comm_store_close(store.handle)

    def getBackendName(self):
        return "comm"

    _get_backend_name = name = getBackendName

    def size(self):
        return self.my_size

    def rank(self):
        return self.my_rank

    def shutdown(self):
        self._close()

    def abort(self):
        self.library.comm_group_abort(self.handle, b"ProcessGroup.abort")

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return self.library.comm_group_seq(self.handle)

    # ---- Calling ----

    def _options(self, given=None, tag=0):
        return OpOptions(tag=tag, timeout_ms=milliseconds(getattr(given, "timeout", None)))

    def _submit(self, call, outputs, keep, finish, *arguments, options):
        """Call a collective with the group in front and the options and the work behind. Inside a batch no work is
        given; the batch's will stand for all."""
        work = Work(self, outputs, (keep, options), finish)
        handle = pointer()
        status = getattr(self.library, call)(self.handle, *arguments, ctypes.byref(options),
                                             None if self.batch is not None else ctypes.byref(handle))
        if status != OK:
            raise RuntimeError(self.library.comm_last_error().decode())
        if self.batch is not None:
            self.batch.append(work)
        else:
            work.handle = handle
            self.works.append(work)
        return work

    def _redop(self, op, dtype, options):
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

    @staticmethod
    def _flat(tensor):
        """The tensor in one piece, and what to do with the piece when it has been written."""
        if tensor.layout != torch.strided:
            raise RuntimeError("comm: sparse tensors are not supported")
        if tensor.is_contiguous():
            return tensor, None
        piece = tensor.contiguous()
        return piece, lambda: tensor.copy_(piece)

    @staticmethod
    def _flat_list(tensors):
        pairs = [Group._flat(tensor) for tensor in tensors]
        copies = [copy for _, copy in pairs if copy]
        return [piece for piece, _ in pairs], (lambda: [copy() for copy in copies]) if copies else None

    @staticmethod
    def _dtype(tensor):
        if tensor.dtype not in DTYPES:
            raise RuntimeError(f"comm: there is no dtype for {tensor.dtype}")
        return DTYPES[tensor.dtype]

    @staticmethod
    def _only(tensors):
        tensors = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        if len(tensors) != 1:
            raise RuntimeError(f"comm: one tensor per rank, not {len(tensors)}")
        return tensors[0]

    # ---- Collectives ----

    def broadcast(self, tensors, opts=None):
        tensor = self._only(tensors)
        root = opts if isinstance(opts, int) else opts.rootRank if opts else 0
        piece, copy = self._flat(tensor)
        return self._submit("comm_broadcast", [tensor], piece, copy, piece.data_ptr(), piece.numel(),
                            self._dtype(piece), root, options=self._options(opts))

    def allreduce(self, tensors, opts=None):
        tensor = self._only(tensors)
        piece, copy = self._flat(tensor)
        options = self._options(opts)
        redop, factor = self._redop(getattr(opts, "reduceOp", opts or dist.ReduceOp.SUM), piece.dtype, options)
        return self._submit("comm_all_reduce", [tensor], (piece, factor), copy, piece.data_ptr(), piece.data_ptr(),
                            piece.numel(), self._dtype(piece), redop, options=options)

    def allreduce_coalesced(self, tensors, opts=None):
        self._start_coalescing()
        works = [self.allreduce([tensor], opts) for tensor in tensors]
        return self._end_batch(works, list(tensors))

    def reduce(self, tensors, opts):
        tensor = self._only(tensors)
        piece, copy = self._flat(tensor)
        options = self._options(opts)
        redop, factor = self._redop(opts.reduceOp, piece.dtype, options)
        at_root = opts.rootRank == self.my_rank
        return self._submit("comm_reduce", [tensor], (piece, factor), copy if at_root else None, piece.data_ptr(),
                            piece.data_ptr(), piece.numel(), self._dtype(piece), redop, opts.rootRank,
                            options=options)

    def allgather(self, output_tensors, input_tensors, opts=None):
        outputs = output_tensors[0] if isinstance(output_tensors[0], (list, tuple)) else output_tensors
        piece, _ = self._flat(self._only(input_tensors))
        pieces, copy = self._flat_list(outputs)
        return self._submit("comm_all_gather_list", [outputs], (piece, pieces), copy, piece.data_ptr(),
                            addresses(pieces), counts(pieces), self._dtype(piece), options=self._options(opts))

    def allgather_coalesced(self, output_lists, input_list, opts=None):
        self._start_coalescing()
        # output_lists: by tensor, then by rank; older releases have it the other way round.
        by_tensor = output_lists if len(output_lists) == len(input_list) else list(zip(*output_lists))
        works = [self.allgather([list(outputs)], [tensor], opts) for outputs, tensor in zip(by_tensor, input_list)]
        return self._end_batch(works, output_lists)

    def _allgather_base(self, output, input, opts=None):
        piece, _ = self._flat(input)
        target, copy = self._flat(output)
        return self._submit("comm_all_gather", [output], (piece, target), copy, piece.data_ptr(), target.data_ptr(),
                            piece.numel(), self._dtype(piece), options=self._options(opts))

    all_gather_single = _allgather_base

    def gather(self, output_tensors, input_tensors, opts):
        piece, _ = self._flat(self._only(input_tensors))
        outputs = output_tensors[0] if output_tensors else []
        pieces, copy = self._flat_list(outputs)
        return self._submit("comm_gather_list", [outputs], (piece, pieces), copy, piece.data_ptr(), piece.numel(),
                            addresses(pieces) if pieces else None, counts(pieces) if pieces else None,
                            self._dtype(piece), opts.rootRank, options=self._options(opts))

    def scatter(self, output_tensors, input_tensors, opts):
        output = self._only(output_tensors)
        target, copy = self._flat(output)
        pieces, _ = self._flat_list(input_tensors[0] if input_tensors else [])
        return self._submit("comm_scatter_list", [output], (target, pieces), copy,
                            addresses(pieces) if pieces else None, counts(pieces) if pieces else None,
                            target.data_ptr(), target.numel(), self._dtype(target), opts.rootRank,
                            options=self._options(opts))

    def reduce_scatter(self, output_tensors, input_tensors, opts):
        output = self._only(output_tensors)
        inputs = input_tensors[0] if isinstance(input_tensors[0], (list, tuple)) else input_tensors
        target, copy = self._flat(output)
        pieces, _ = self._flat_list(inputs)
        options = self._options(opts)
        redop, factor = self._redop(getattr(opts, "reduceOp", opts), target.dtype, options)
        return self._submit("comm_reduce_scatter_list", [output], (target, pieces, factor), copy, addresses(pieces),
                            target.data_ptr(), counts(pieces), self._dtype(target), redop, options=options)

    def _reduce_scatter_base(self, output, input, opts):
        target, copy = self._flat(output)
        piece, _ = self._flat(input)
        options = self._options(opts)
        redop, factor = self._redop(opts.reduceOp, target.dtype, options)
        return self._submit("comm_reduce_scatter", [output], (target, piece, factor), copy, piece.data_ptr(),
                            target.data_ptr(), target.numel(), self._dtype(target), redop, options=options)

    reduce_scatter_single = _reduce_scatter_base

    def alltoall(self, output_tensors, input_tensors, opts=None):
        targets, copy = self._flat_list(output_tensors)
        pieces, _ = self._flat_list(input_tensors)
        return self._submit("comm_all_to_all_list", [output_tensors], (targets, pieces), copy, addresses(pieces),
                            counts(pieces), addresses(targets), counts(targets), self._dtype(pieces[0]),
                            options=self._options(opts))

    def _splits(self, tensor, splits):
        """Rows per rank as elements per rank."""
        if not splits:
            if tensor.size(0) % self.my_size:
                raise RuntimeError(f"comm: {tensor.size(0)} rows cannot be divided by {self.my_size} ranks")
            splits = [tensor.size(0) // self.my_size] * self.my_size
        if len(splits) != self.my_size or sum(splits) != tensor.size(0):
            raise RuntimeError(f"comm: the splits {splits} do not fit {tensor.size(0)} rows")
        row = tensor.numel() // tensor.size(0) if tensor.size(0) else 0
        return (c_size * len(splits))(*[rows * row for rows in splits])

    def alltoall_base(self, output, input, output_split_sizes, input_split_sizes, opts=None):
        target, copy = self._flat(output)
        piece, _ = self._flat(input)
        sends, receives = self._splits(piece, input_split_sizes), self._splits(target, output_split_sizes)
        return self._submit("comm_all_to_all_v", [output], (target, piece), copy, piece.data_ptr(), sends, None,
                            target.data_ptr(), receives, None, self._dtype(piece), options=self._options(opts))

    all_to_all_single = alltoall_base

    def barrier(self, opts=None):
        return self._submit("comm_barrier", [], None, None, options=self._options(opts))

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        options = self._options()
        options.timeout_ms = milliseconds(timeout)
        if self.library.comm_monitored_barrier(self.handle, ctypes.byref(options)) != OK:
            raise RuntimeError(self.library.comm_last_error().decode())

    # ---- Point-to-point ----

    def send(self, tensors, peer, tag=0):
        piece, _ = self._flat(self._only(tensors))
        return self._submit("comm_send", [], piece, None, piece.data_ptr(), piece.numel(), self._dtype(piece), peer,
                            options=self._options(tag=tag))

    def recv(self, tensors, peer, tag=0):
        tensor = self._only(tensors)
        piece, copy = self._flat(tensor)
        return self._submit("comm_recv", [tensor], piece, copy, piece.data_ptr(), piece.numel(), self._dtype(piece),
                            peer, options=self._options(tag=tag))

    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, ANY_SOURCE, tag)

    # ---- Coalescing ----

    supports_coalescing = True

    def _get_backend(self, _device):
        """2.x asks the backend of a device whether it coalesces; a group of this kind is its own."""
        return self

    def _start_coalescing(self, _device=None):
        if self.library.comm_coalesce_begin(self.handle) != OK:
            raise RuntimeError(self.library.comm_last_error().decode())
        self.batch = []

    def _end_batch(self, works, outputs):
        """One work for all; the members' tensors and copies become its own."""
        members, self.batch = self.batch, None

        def finish():
            for member in members:
                member._conclude()

        work, handle = Work(self, outputs, members, finish), pointer()
        if self.library.comm_coalesce_end(self.handle, None, ctypes.byref(handle)) != OK:
            raise RuntimeError(self.library.comm_last_error().decode())
        work.handle = handle
        self.works.append(work)
        return work

    def _end_coalescing(self, reqs=None):
        """2.x takes the one work; 1.13 gives the list of what the calls inside returned, to wait for each."""
        work = self._end_batch(reqs, [])
        for member in reqs if isinstance(reqs, list) else []:
            member.wait = work.wait
        return work


def register(path, name="comm"):
    """Make init_process_group(name) use the libcomm at `path`."""
    library = load(path)

    def create(store, rank, size, timeout):
        return Group(library, store, rank, size, timeout)

    try:
        dist.Backend.register_backend(name, create, devices=["cpu"])
    except TypeError:  # 1.13 knows no devices
        dist.Backend.register_backend(name, create)
    return library
