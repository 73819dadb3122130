"""Count the operators of PyTorch that a piece of code calls."""

from collections import Counter

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

class WaitCounter(TorchDispatchMode):
    """A context that counts where a program would wait if tensors were on a GPU.

    Tensors that are computed from those of the GPU are on the GPU, too. Waits are operators whose
    result is a number for Python or has a shape that depends on numbers, copies to the CPU, and
    tensors that are made from Python's numbers for a device.

    Args:
        tensors: that are on the GPU.
    """

    OPERATORS = ("nonzero", "_local_scalar_dense", "equal", "is_nonzero", "masked_select", "_unique2")

    def __init__(self, tensors):
        super().__init__()
        self.counts = Counter()
        self.storages = {}  # of the tensors on the GPU; as long as they live here none is reused
        self.python_calls = _PythonCalls(self)
        self._add(tensors)

    def __enter__(self):
        self.python_calls.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.python_calls.__exit__(*error)

    def _add(self, tensors):
        for tensor in tensors:
            if tensor.layout != torch.strided:
                continue
            storage = tensor.untyped_storage()
            self.storages[storage._cdata] = storage

    def holds(self, tensor):
        """Whether a tensor is on the GPU."""
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            return False
        return tensor.untyped_storage()._cdata in self.storages

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if any(map(self.holds, tree_leaves([args, kwargs]))):
            self._add(x for x in tree_leaves(result) if isinstance(x, Tensor))
            name = func.name().removeprefix("aten::").partition(".")[0]
            indices = args[1] if name in ("index", "index_put", "index_put_") else []
            is_boolean = any(x is not None and x.dtype == torch.bool for x in indices)
            if name in self.OPERATORS or is_boolean:
                self.counts[name] += 1
        return result


class _PythonCalls(TorchFunctionMode):
    """Counts the calls that PyTorch answers without an operator, for a `WaitCounter`."""

    def __init__(self, waits):
        super().__init__()
        self.waits = waits

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in ("tolist", "numpy", "cpu") and self.waits.holds(args[0]):
            self.waits.counts[name] += 1
            if name == "cpu":       # a copy, which is on the CPU
                result = result.clone()
                self.waits.storages.pop(result.untyped_storage()._cdata, None)
            return result
        if name == "new_tensor" or (name == "tensor" and (kwargs or {}).get("device")):
            self.waits.counts[name] += 1
        return result
