"""The C functions and structs of libcomm that the layer in Python uses."""
import ctypes
import functools

from . import library_path

OK, IN_PROGRESS, ERR_TIMEOUT, ERR_SYSTEM, ERR_DEADLINE = 0, 1, -5, -6, -21
ANY_SOURCE = -1
SUM, PREMUL_SUM = 0, 8

pointer, c_int, c_long, c_size, c_text = (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_size_t,
                                          ctypes.c_char_p)


class Sized(ctypes.Structure):
    """A struct that begins with its own size."""

    def __init__(self, **fields):
        super().__init__(struct_bytes=ctypes.sizeof(self), **fields)


class OpOptions(Sized):
    """comm_op_options."""
    _fields_ = [("struct_bytes", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("timeout_ms", c_long), ("tag", c_int),
                ("device", c_int), ("stream", pointer), ("premul", pointer), ("reduce_fn", pointer),
                ("reduce_context", pointer), ("label", c_text)]


class InitOptions(Sized):
    """comm_init_options."""
    _fields_ = [("struct_bytes", ctypes.c_uint32), ("world_size", c_int), ("rank", c_int), ("backend", c_text),
                ("rendezvous", c_text), ("store", pointer), ("timeout_ms", c_long), ("name", c_text),
                ("secret", c_text)]


class GroupOptions(Sized):
    """comm_group_options."""
    _fields_ = [("struct_bytes", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("backend", c_text),
                ("timeout_ms", c_long), ("name", c_text), ("description", c_text)]


ERROR = (pointer, c_size)  # the last arguments of a store's functions: where a text goes, and its capacity
SET_FN = ctypes.CFUNCTYPE(c_int, pointer, c_text, pointer, c_size, *ERROR)
GET_FN = ctypes.CFUNCTYPE(c_int, pointer, c_text, c_long, ctypes.POINTER(pointer), ctypes.POINTER(c_size), *ERROR)
ADD_FN = ctypes.CFUNCTYPE(c_int, pointer, c_text, c_long, ctypes.POINTER(c_long), *ERROR)
COMPARE_SET_FN = ctypes.CFUNCTYPE(c_int, pointer, c_text, pointer, c_size, pointer, c_size, ctypes.POINTER(pointer),
                                  ctypes.POINTER(c_size), *ERROR)
CHECK_FN = ctypes.CFUNCTYPE(c_int, pointer, ctypes.POINTER(c_text), c_size, ctypes.POINTER(c_int), *ERROR)
REMOVE_FN = ctypes.CFUNCTYPE(c_int, pointer, c_text, ctypes.POINTER(c_int), *ERROR)
COMPLETE_FN = ctypes.CFUNCTYPE(None, pointer, c_int, pointer)


class StoreOps(Sized):
    """comm_store_ops; the functions that libcomm makes itself stay NULL."""
    _fields_ = ([("struct_bytes", ctypes.c_uint32), ("name", c_text), ("set", SET_FN), ("get", GET_FN),
                 ("add", ADD_FN), ("compare_set", COMPARE_SET_FN), ("check", CHECK_FN), ("remove", REMOVE_FN)] +
                [(name, pointer) for name in ("wait", "append", "num_keys", "list_keys", "queue_push", "queue_pop",
                                              "queue_len", "close")])


def signatures():
    tail = (ctypes.POINTER(OpOptions), ctypes.POINTER(pointer))
    block = (pointer, pointer, c_size, c_int)
    return {
        "comm_init": (c_int, ctypes.POINTER(InitOptions), ctypes.POINTER(pointer)),
        "comm_group_create": (c_int, pointer, pointer, c_size, ctypes.POINTER(GroupOptions), ctypes.POINTER(pointer)),
        "comm_group_dup": (c_int, pointer, ctypes.POINTER(GroupOptions), ctypes.POINTER(pointer)),
        "comm_group_close": (c_int, pointer),
        "comm_group_abort": (c_int, pointer, c_text),
        "comm_group_seq": (ctypes.c_uint64, pointer),
        "comm_group_timeout": (c_long, pointer),
        "comm_group_set_timeout": (c_int, pointer, c_long),
        "comm_last_error": (c_text,),
        "comm_broadcast": (c_int, pointer, pointer, c_size, c_int, c_int, *tail),
        "comm_all_reduce": (c_int, pointer, *block, c_int, *tail),
        "comm_reduce": (c_int, pointer, *block, c_int, c_int, *tail),
        "comm_all_gather": (c_int, pointer, *block, *tail),
        "comm_all_gather_list": (c_int, pointer, pointer, pointer, pointer, c_int, *tail),
        "comm_gather": (c_int, pointer, *block, c_int, *tail),
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
        "comm_coalesce_cancel": (c_int, pointer),
        "comm_work_wait": (c_int, pointer, c_long),
        "comm_work_test": (c_int, pointer, ctypes.POINTER(c_int)),
        "comm_work_status": (c_int, pointer),
        "comm_work_error": (c_text, pointer),
        "comm_work_on_complete": (c_int, pointer, COMPLETE_FN, pointer),
        "comm_work_source_rank": (c_int, pointer),
        "comm_work_seq": (ctypes.c_uint64, pointer),
        "comm_work_timeout": (c_long, pointer),
        "comm_work_duration_ns": (c_long, pointer),
        "comm_work_release": (None, pointer),
        "comm_store_create": (c_int, ctypes.POINTER(StoreOps), pointer, ctypes.POINTER(pointer)),
        "comm_store_close": (None, pointer),
        "comm_alloc": (pointer, c_size),
    }


@functools.lru_cache(maxsize=None)
def library():
    """libcomm, loaded once."""
    found = ctypes.CDLL(library_path())
    for name, (result, *arguments) in signatures().items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def failure(status, text, timeout_ms=0):
    """The exception for a status and its text. A time limit has PyTorch's words, for programs that look for them."""
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    if status in (ERR_TIMEOUT, ERR_DEADLINE):
        limit = f" waiting {timeout_ms}ms" if timeout_ms > 0 else ""
        text = f"Operation Timed out{limit}: {text}"
    return RuntimeError(f"libcomm: {text}")


def check(status):
    """Raise this thread's error, unless the status is OK."""
    if status != OK:
        raise failure(status, library().comm_last_error())
