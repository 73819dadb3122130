"""Count the operators of PyTorch that a piece of code calls."""

from collections import Counter

from torch.utils._python_dispatch import TorchDispatchMode


class OperatorCounter(TorchDispatchMode):
    """A context in which calls are counted by name, such as "aten::mm"."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.name().partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))
