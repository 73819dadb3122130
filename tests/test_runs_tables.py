"""The registry of the papers' tables: every row can be trained, every figure is the paper's."""

import pytest

from captionlab.models import find_preset, list_models, model_presets
from captionlab.runs.tables import PROTOCOLS, TABLES, find_protocol, find_table

ROWS = [(table, row) for table in TABLES.values() for row in table.rows]
TRAINED = [(table, row) for table, row in ROWS if row.model]


def identify(value):
    return getattr(value, "name", None)


@pytest.mark.parametrize(("table", "row"), TRAINED, ids=identify)
@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=list(PROTOCOLS))
def test_the_plan_of_every_row_is_valid(table, row, protocol):
    assert row.model in list_models()
    assert row.stage in ("xe", "scst")
    for variant, shift in [(row.variant, 0), *row.members]:
        preset = row.preset(protocol, variant)
        assert preset.inputs.fields, f"{table.name} {row.name} would read nothing"
        assert shift >= 0
    assert row.result(protocol).startswith(f"{protocol.data}/{row.model}-")


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_rows_are_named_once_and_comparisons_name_rows(table):
    names = [row.name for row in table.rows]
    assert len(set(names)) == len(names)
    for pair in table.comparisons:
        assert pair[0] != pair[1]
        assert {table.row(name).name for name in pair} == set(pair)


def test_one_result_is_of_one_training():
    plans = {}
    for protocol in PROTOCOLS.values():
        for _, row in TRAINED:
            plan = (row.model, row.variant, row.stage, row.members, row.oracle,
                    row.preset_settings(protocol))
            assert plans.setdefault(row.result(protocol), plan) == plan


@pytest.mark.parametrize(("table", "pair", "difference"), [
    ("pat-2", ("fpn", "vanilla"), 6.3),
    ("pat-3", ("position_aware", "fpn"), 0.5),
    ("pat-5", ("position_aware", "bottom-up"), 5.4),
    ("eta-1", ("two xe", "eta xe"), 1.4),
    ("eta-1", ("two scst", "eta scst"), 1.0),
    ("eta-2", ("oracle", "eta"), 86.3),
    ("eta-4", ("visual", "visual_no_encoder"), 2.0),
    ("eta-5", ("eta", "parallel"), 1.7),
    ("eta-5", ("visual", "visual+semantic"), 5.4),
    ("eta-6", ("eta", "tanh"), 11.1),
    ("it-1", ("released", "aoanet"), 1.0),
    ("it-3", ("full", "baseline"), 2.5),
    ("captioners", ("image_transformer scst", "vanilla scst"), 0.8),
    ("captioners", ("position_aware scst", "vanilla scst"), -4.5),
])
def test_published_differences_are_those_of_the_papers(table, pair, difference):
    assert find_table(table).published_difference(pair) == pytest.approx(difference)


def test_results_are_named_as_evaluate_names_them():
    scenes, photos = PROTOCOLS["scenes"], PROTOCOLS["photos"]
    assert find_table("eta-2").row("eta").result(scenes) == "scenes/entangled-tiny-xe"
    assert find_table("eta-2").row("oracle").result(scenes) == "scenes/entangled-oracle-tiny-xe"
    assert find_table("eta-1").row("two xe").result(scenes) == "scenes/entangled-eta+eta-tiny-xe"
    assert (find_table("it-3").row("full").result(photos)
            == "flickr8k/image_transformer-released-ablation-xe")
    grid = find_table("eta-4").row("visual")
    assert grid.result(scenes) == "scenes/entangled-visual-grid-tiny-xe"
    assert (grid.preset(scenes).inputs.max_boxes, grid.preset(scenes).inputs.grid) == (0, 8)


@pytest.mark.parametrize("model", ["vanilla", "cptr", "position_aware", "entangled",
                                   "image_transformer"])
def test_the_preset_of_ablations_is_the_one_of_photos_trained_less(model):
    ablation = find_preset(model, "ablation")
    presets = model_presets(model)
    base = presets.get("small", presets["squeezenet"])
    assert ablation.inputs == base.inputs
    assert (ablation.training.epochs, ablation.scst.epochs) == (8, 4)
    assert ablation.training.lr == base.training.lr


@pytest.mark.parametrize(("call", "message"), [
    (lambda: find_table("eta-9"), "no table 'eta-9': choose from pat-2"),
    (lambda: find_protocol("coco"), "no protocol 'coco': choose from scenes, photos"),
    (lambda: find_table("eta-2").row("both"), "eta-2 has no row 'both': choose from semantic"),
    (lambda: find_table("it-1").row("vorn").preset(PROTOCOLS["scenes"]),
     "captionlab has no model for the row vorn"),
])
def test_unknown_names_list_what_there_is(call, message):
    with pytest.raises(ValueError, match=message):
        call()
