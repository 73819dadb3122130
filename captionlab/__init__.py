"""Transformer image captioning: a course and a library."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .runs.catalog import list_runs, load

__version__ = "0.1.0"
__all__ = ["list_runs", "load"]


def __getattr__(name: str) -> object:
    """Import `load` and `list_runs` when they are first used: torch takes seconds."""
    if name in __all__:
        from .runs import catalog

        return getattr(catalog, name)
    raise AttributeError(f"module 'captionlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
