"""Metrics of one's own."""

import numpy as np
import pytest

from captionlab.data import Item
from captionlab.metrics import metric_sources, register_metric, registry, score_rows

ITEMS = [Item("a", ("x",), image=1), Item("b", ("y", "z"), image=2)]


@pytest.fixture(autouse=True)
def _no_metrics_stay(monkeypatch):
    monkeypatch.setattr(registry, "_SCORERS", {})


@pytest.mark.parametrize("name", ["CIDEr", "truth", "TER"])
def test_a_name_of_the_package_is_refused(name, monkeypatch):
    monkeypatch.undo()
    with pytest.raises(ValueError, match=f"captionlab has a metric '{name}'"):
        register_metric(name, len)


def test_a_metric_gets_what_belongs_together():
    calls = []

    def metric(images, captions, references):
        calls.append((images, captions, references))
        return [0.25, 0.75]

    assert score_rows({"run": ["one", "two"]}, ITEMS) == {"run": {}}
    register_metric("stub", metric)
    assert metric_sources(["stub", "other"]) == {"stub": "registered"}
    assert score_rows({"run": ["one", "two"]}, ITEMS) == {"run": {"stub": 0.5}}
    assert calls == [([1, 2], ["one", "two"], [("x",), ("y", "z")])]


@pytest.mark.parametrize("value", [[0.5], [np.nan, 1], [[0.5], [0.5]], [np.inf, 0], 0.5])
def test_what_is_no_number_for_each_caption_is_an_error(value):
    register_metric("stub", lambda *_: value)
    with pytest.raises(ValueError, match="metric stub returned .* finite number for each of 2 captions"):
        score_rows({"run": ["a", "b"]}, ITEMS)
