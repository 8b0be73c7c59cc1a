"""torch.distributed over libcomm: init_process_group("libcomm")."""
import os

import torch.distributed as dist

__version__ = "0.1.0"
NAME = "libcomm"


def create(options, _backend_options=None):
    """What init_process_group and new_group call."""
    from .group import Group
    return Group.create(options)


def library_path():
    """libcomm.so: TORCH_LIBCOMM_LIBRARY, else the one of this package, else the one that the loader finds."""
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libcomm.so")
    return os.environ.get("TORCH_LIBCOMM_LIBRARY") or (own if os.path.exists(own) else "libcomm.so.0")


def register():
    """Make the name known to PyTorch. Newer releases call it by themselves, by the entry points of this package."""
    if NAME.upper() in dist.Backend._plugins:
        return
    try:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
    except TypeError:  # 1.13 knows no devices
        dist.Backend.register_backend(NAME, create, extended_api=True)
    recorders = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", None)
    if recorders is not None:
        recorders.add(NAME)  # PyTorch's recorder cannot be attached to a group in Python; libcomm has its own records


register()
