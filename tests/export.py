"""nbdev_export with lines of at most 100 columns: nbdev itself wraps `__all__` at 120."""

import textwrap

from nbdev import maker
from nbdev.doclinks import nbdev_export

COLUMNS = 100
PREFIX = len("__all__ = ")  # which nbdev writes before the wrapped text


def wrapper(*, width: int, **options: object) -> textwrap.TextWrapper:
    """Return nbdev's TextWrapper, but no wider than the project's lines."""
    return textwrap.TextWrapper(width=min(width, COLUMNS - PREFIX), **options)


if __name__ == "__main__":
    maker.TextWrapper = wrapper
    nbdev_export()
    import tidy  # needs what was exported

    tidy.main()
