"""The public names of each subpackage: all of its modules, importable, none like a module."""

import importlib
import pkgutil
from collections import Counter

import pytest

# Subpackages whose __init__ imports public names lazily.
SUBPACKAGES = (
    "data", "decoding", "deploy", "course", "explore", "features", "metrics", "runs",
    "scenes", "training",
)


def modules(subpackage: str) -> dict[str, list[str]]:
    """The modules of a subpackage, each with its public names."""
    package = importlib.import_module(f"captionlab.{subpackage}")
    names = [info.name for info in pkgutil.iter_modules(package.__path__)]
    return {
        name: importlib.import_module(f"captionlab.{subpackage}.{name}").__all__ for name in names
    }


@pytest.mark.parametrize("subpackage", SUBPACKAGES)
def test_a_subpackage_lists_the_public_names_of_its_modules(subpackage):
    package = importlib.import_module(f"captionlab.{subpackage}")
    names = [name for public in modules(subpackage).values() for name in public]
    assert [name for name, times in Counter(names).items() if times > 1] == []
    assert sorted(package.__all__) == sorted(names) == dir(package)


@pytest.mark.parametrize("subpackage", SUBPACKAGES)
def test_each_public_name_is_that_of_its_module(subpackage):
    package = importlib.import_module(f"captionlab.{subpackage}")
    for module, names in modules(subpackage).items():
        source = importlib.import_module(f"captionlab.{subpackage}.{module}")
        for name in names:
            assert getattr(package, name) is getattr(source, name)


@pytest.mark.parametrize("subpackage", SUBPACKAGES)
def test_no_public_name_is_that_of_a_module(subpackage):
    package = importlib.import_module(f"captionlab.{subpackage}")
    assert set(package.__all__) & modules(subpackage).keys() == set()


@pytest.mark.parametrize("subpackage", SUBPACKAGES)
def test_another_name_is_an_attribute_error(subpackage):
    package = importlib.import_module(f"captionlab.{subpackage}")
    with pytest.raises(AttributeError, match=f"'captionlab.{subpackage}' has no attribute 'nope'"):
        package.nope  # noqa: B018 - the access is the test
