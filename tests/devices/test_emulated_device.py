"""Training, sources and interventions on an emulated GPU: same numbers, and as few launches."""

import pytest
from device_cases import MISTAKES, differing, tried

import mechmarkov as mm
from mechmarkov.sources.base.registry import GROUP
from mechmarkov.utils.plugins import registered

pytestmark = pytest.mark.system
EXACT = (
    "source",
    "counted",
    "edit",
    "resumed",
)  # the same numbers of the same generators, moved and not rounded
# Losses of three steps. Kernels of the CPU that are fast sum in another order; half precision rounds to 8 or
# 11 bits, and a sum in another order may round to the next one.
HALF = {"trained with bfloat16": 1e-3, "trained with float16, scaled": 1e-4}
LAUNCHES = {
    "launches of a step": 103,
    "launches of a step of two layers": 191,
    "launches of a step, scaled": 170,
}


@pytest.fixture(scope="module")
def found():
    return tried()


def test_the_device_gives_what_the_processor_gives(found):
    assert len(found) > 50
    assert differing(found, EXACT, HALF, 1e-5) == {}


def test_a_mistake_that_a_gpu_refuses_is_noticed(found):
    assert {case: "error" in found[case] for case in MISTAKES} == dict.fromkeys(MISTAKES, True)
    assert "a token is not from 0 to 2" in found["token out of range"]["error"]


@pytest.mark.parametrize(("case", "launches"), LAUNCHES.items())
def test_a_step_asks_the_device_as_often_for_eight_models_as_for_two(found, case, launches):
    two, eight = (found[case]["counts"][seeds] for seeds in ("2", "8"))
    assert two == eight
    assert two["launches"] <= launches


def test_a_step_neither_waits_nor_copies_so_that_it_can_be_recorded_as_a_graph(found):
    steps = {case: line["counts"] for case, line in found.items() if case.startswith("launches of ")}
    assert len(steps) == len(LAUNCHES) + len(
        [n for n in mm.recipes() if mm.load_recipe(n).model.shares_stacks]
    )
    for case, counts in steps.items():
        for each in counts.values():
            assert each.get("waits", 0) == each.get("copies from the host", 0) == 0, case


def test_data_of_a_stack_are_few_launches_whatever_the_number_of_models(found):
    """Nothing is copied from the host, and nothing is waited for."""
    cases = {case: line for case, line in found.items() if case.startswith("data of")}
    assert len(cases) == 5
    for case, line in cases.items():
        counts = line["counts"]
        assert counts.get("waits", 0) == counts.get("copies from the host", 0) == 0, case
        assert counts["launches"] <= 3, case
    assert len({line["counts"]["launches"] for case, line in cases.items() if case.endswith(" 64")}) == 1


def test_what_a_pass_records_comes_to_the_host_once_whatever_the_number_of_chunks(found):
    """Explicit attention asks once a pass whether a whole row is masked; nothing else waits."""
    cases = {case: line for case, line in found.items() if case.startswith("recorded")}
    assert len(cases) == 4
    for case, line in cases.items():
        assert line["waits"]["4"] - line["waits"]["2"] <= 2 * line["layers"], case


def test_every_family_of_sources_and_every_recipe_is_tried(found):
    tried = {case.split()[-1] for case in found if case.startswith("source")}
    ours = {entry.name for entry in registered(GROUP).values() if entry.value.startswith("mechmarkov.")}
    assert tried == ours
    assert {f"recipe {name}" for name in mm.recipes()} <= set(found)
