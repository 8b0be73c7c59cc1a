"""A store of PyTorch's, whatever it is, as a comm_store."""
import ctypes
import time
import weakref

from .library import (ADD_FN, CHECK_FN, COMPARE_SET_FN, ERR_SYSTEM, ERR_TIMEOUT, GET_FN, OK, REMOVE_FN, SET_FN,
                      StoreOps, check, library, pointer)


class Store:
    """Nothing here waits inside PyTorch's store: its clients of 1.13 cannot be used any more once a wait has timed out.
    That release has no check() either, but compare_set with an expected value that is never set reads without waiting.
    It is closed when nothing keeps it any more, or by close().
    """
    ABSENT = "\x00comm: absent\x00"

    def __init__(self, store):
        self.store, self.handle = store, pointer()
        # The structure holds the functions, and must live as long as libcomm may call them: as the world's groups.
        self.ops = StoreOps(name=b"torch", set=SET_FN(self.guard(self.set)), get=GET_FN(self.guard(self.get)),
                            add=ADD_FN(self.guard(self.add)), compare_set=COMPARE_SET_FN(self.guard(self.compare_set)),
                            check=CHECK_FN(self.guard(self.check)), remove=REMOVE_FN(self.guard(self.remove)))
        check(library().comm_store_create(ctypes.byref(self.ops), None, ctypes.byref(self.handle)))
        self.close = weakref.finalize(self, library().comm_store_close, self.handle)

    @staticmethod
    def guard(function):
        """No exception may go through C: it becomes a status and a text."""
        def call(_context, key, *arguments):
            *arguments, error, capacity = arguments
            try:
                return function(key, *arguments)
            except Exception as exception:
                text = str(exception).encode()[:max(capacity - 1, 0)] + b"\0"
                ctypes.memmove(error, text, min(len(text), capacity))
                return ERR_SYSTEM
        return call

    @staticmethod
    def give(value, ret_data, ret_bytes):
        value = value.encode() if isinstance(value, str) else bytes(value)
        memory = library().comm_alloc(len(value) + 1)
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
