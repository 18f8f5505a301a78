"""The answers of models with more than one MLP are in sight without a scroll."""

from itertools import pairwise

import pytest
from model_zoo import model_zoo

import mechmarkov as mm
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.init import initialise
from mechmarkov.report.first_screen.circuit_layout import arrange
from mechmarkov.report.html import write

READY = "return [...document.querySelectorAll('.hero .drawing')].every((d) => d.matches('.drawn'))"


@pytest.mark.browser
@pytest.mark.usefixtures("few_nulls")
def test_four_layers_of_eight_heads_fit_on_one_screen(browser, tmp_path):
    shape = {"n_layers": 4, "n_heads": 8, "d_model": 16, "d_head": 2, "n_ctx": 16, "d_vocab": 3}
    model = HookedDecoder(DecoderConfig(attn_only=True, **shape))
    initialise(model, [0], std=0.2)
    run = mm.Run.from_model(model, source=mm.DirichletChains(n_states=3))
    probes = ["behaviour", "attention", "ablation"]
    browser.open(write(mm.probe(run, probes, sequences=16), tmp_path / "heads.html"))
    browser.wait(READY, "the first screen is not drawn")
    assert browser.js("return document.querySelectorAll('.choose button').length") == 32
    bottom = browser.js(
        "return [...document.querySelectorAll('.tile')].at(-1).getBoundingClientRect().bottom"
    )
    assert bottom + 44 <= 800  # and where a run has a slider


@pytest.mark.browser
@pytest.mark.usefixtures("few_nulls")
def test_two_layers_with_mlps_fit_on_one_screen(browser, tmp_path):
    run = model_zoo()["mixed: half in each MLP"]()
    probes = ["behaviour", "attention", "storage", "ablation"]
    browser.open(write(mm.probe(run, probes, sequences=16), tmp_path / "mlps.html"))
    browser.wait(READY, "the first screen is not drawn")
    shown = "document.querySelectorAll('.hero figure, .tile')"
    bottoms = browser.js(f"return [...{shown}].map((e) => e.getBoundingClientRect().bottom)")
    assert len(bottoms) == 2 + 3  # without `dynamics`, nothing is told of how it came
    assert max(bottoms) + 44 <= 800  # and where a run has a slider
    heights = (
        "return [...document.querySelectorAll('.hero .main-svg:first-child')].map((e) => e.clientHeight)"
    )
    curve, circuit = browser.js(heights)
    assert curve == circuit > 300  # the picture beside a tall one is as tall


def test_many_rows_are_as_high_as_their_texts():
    texts = {"embed": "embed<br>tokens", "logits": "logits<br>prediction"}
    for layer in range(2):
        texts |= {f"L{layer}H0": f"L{layer}H0", f"L{layer}.mlp": f"L{layer}.mlp<br>50% of the bigram"}
    boxes, _, height = arrange(texts)
    ordered = sorted(boxes.values(), key=lambda box: box.y)
    gaps = [above.y - above.height / 2 - below.y - below.height / 2 for below, above in pairwise(ordered)]
    assert all(gap == pytest.approx(20) for gap in gaps)
    assert height < 340
