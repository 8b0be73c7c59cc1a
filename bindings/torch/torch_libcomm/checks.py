"""Sizes and types of a call's tensors, for the layer in Python; backend.cc has the same.

libcomm is told a count and a dtype for some of a call's tensors, and takes the others to be as large as follows from
that. So each call looks at all of them before it is submitted: one that is refused takes no number.
"""
import torch

SPARSE_FIXED, SPARSE_DIMENSIONS = 4, 60


def number_of(count, noun):
    return f"{count} {noun}{'' if count == 1 else 's'}"


class Checks:
    """Of one call, by its name."""

    def __init__(self, call, rank, size):
        self.call, self.rank, self.size = call, rank, size

    def refuse(self, text):
        raise RuntimeError(f"libcomm: {self.call}: {text}")

    def type(self, name, tensor, other_name, other):
        if tensor.dtype != other.dtype:
            self.refuse(f"the {name} is of dtype {tensor.dtype}, the {other_name} of {other.dtype}; both need the same "
                        "one")

    def whole(self, name, tensor, part_name, part):
        """One tensor that has a part for each rank."""
        self.type(name, tensor, part_name, part)
        count, each = tensor.numel(), part.numel()
        if count != each * self.size:
            self.refuse(f"the {name} has {number_of(count, 'element')}; {number_of(self.size, 'rank')} with {each} "
                        f"each need {each * self.size}")

    def length(self, name, tensors):
        if len(tensors) != self.size:
            self.refuse(f"the {name} list has {number_of(len(tensors), 'tensor')}; a group of "
                        f"{number_of(self.size, 'rank')} needs {self.size}")

    def list(self, name, tensors, own_name, own):
        """A tensor for each rank. `own` is the other end of this rank's."""
        self.length(name, tensors)
        for rank, tensor in enumerate(tensors):
            if tensor.dtype != own.dtype:
                self.type(f"{name} for rank {rank}", tensor, own_name, own)
        count = tensors[self.rank].numel()
        if count != own.numel():
            self.refuse(f"the {name} for rank {self.rank}, this one, has {number_of(count, 'element')}; the {own_name} "
                        f"has {own.numel()}, and they must be equal")

    def only_list(self, name, lists):
        """1.13 also gives the list itself."""
        lists = lists or []
        if lists and torch.is_tensor(lists[0]):
            return lists
        if len(lists) != 1:
            self.refuse(f"one {name} list per rank is needed, not {len(lists)}")
        return lists[0]

    def as_many(self, name, tensors, other_name, others):
        if len(tensors) != len(others):
            self.refuse(f"the {name} list has {number_of(len(tensors), 'tensor')}, the {other_name} list "
                        f"{len(others)}; they must be equal")

    def splits(self, name, tensor, given):
        """Rows per rank as elements per rank."""
        if tensor.dim() == 0:
            self.refuse(f"the {name} has no dimension that could be split")
        rows, total = tensor.size(0), 0
        if not given:
            if rows % self.size:
                self.refuse(f"the {name} has {number_of(rows, 'row')}, which cannot be divided by "
                            f"{number_of(self.size, 'rank')}")
            given = [rows // self.size] * self.size
        for split in given:
            if not 0 <= split <= rows - total:
                self.refuse(f"the {name} has {number_of(rows, 'row')}; a split of {split} after {total} does not fit")
            total += split
        if total != rows or len(given) != self.size:
            self.refuse(f"the {name} has {number_of(rows, 'row')} for {number_of(self.size, 'rank')}; "
                        f"{number_of(len(given), 'split')} of {total} together do not fit")
        row = tensor.numel() // rows if rows else 0
        return [split * row for split in given]


def sparse_form(checks, tensor, dtype):
    """What the ranks must tell each other of a sparse tensor before they can sum them: how many elements it has, and
    what must be equal on all of them."""
    if tensor.dim() > SPARSE_DIMENSIONS:
        checks.refuse(f"a sparse tensor of more than {SPARSE_DIMENSIONS} dimensions")
    form = [tensor._nnz(), dtype, tensor.sparse_dim(), tensor.dim(), *tensor.shape]
    return torch.tensor(form + [0] * (SPARSE_FIXED + SPARSE_DIMENSIONS - len(form)))


def sparse_words(form, dtypes):
    _, dtype, sparse, dimensions, *shape = form.tolist()
    dtype = next(name for name, number in dtypes.items() if number == dtype)
    return f"the shape {shape[:dimensions]} with {number_of(sparse, 'sparse dimension')} and dtype {dtype}"
