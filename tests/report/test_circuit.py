"""The drawing of the circuit: from effects of paths made by hand."""

import numpy as np
import pytest
from report_examples import holds, outcome, with_paths

from mechmarkov.claims.claim import Claim, Condition
from mechmarkov.report.first_screen.circuit import MAX_NUMBERS, NO_CIRCUIT, circuit, path_effects
from mechmarkov.report.first_screen.circuit_layout import text_box
from mechmarkov.report.first_screen.readings import notes
from mechmarkov.result import Result

PATHS = {
    ("embed", "L0H0.V"): (0.5, 0.75),
    ("pos_embed", "L0H0.K"): (np.nan, 0.25),
    ("L0H0", "logits"): (1.0, 1.0),
    ("embed", "logits"): (0.001, 0.001),
}


def test_a_path_is_worth_its_mean_and_its_zero_where_it_has_no_mean():
    effects = path_effects(with_paths(PATHS)["ablation"].data)
    of_heads = {("embed", "L0H0.V"): 0.5, ("pos_embed", "L0H0.K"): 0.25, ("L0H0", "logits"): 1.0}
    assert effects == {**of_heads, ("embed", "logits"): 0.001}


def test_the_circuit_draws_the_paths_that_matter_as_wide_as_they_are_worth():
    probed = with_paths(PATHS, storage=holds("L0H0", L0H0=1.0))
    figure = circuit(probed)
    assert [trace.name for trace in figure.data if trace.name] == ["queries", "keys", "values", "output"]
    heads = [note for note in figure.layout.annotations if note.arrowhead]
    assert len(heads) == 3  # one for each path of the named circuit
    drawn = {trace.text: trace.line.width for trace in figure.data if trace.text}
    assert drawn == {
        "L0H0 → logits: 1 nats": pytest.approx(5.0),
        "embed → L0H0.V: 0.5 nats": pytest.approx(3.0),
        "pos_embed → L0H0.K: 0.25 nats": pytest.approx(2.0),
    }  # what is worth a thousandth is not drawn
    place = {note.text: note.y for note in figure.layout.annotations}
    assert {"1", "0.5", "0.25"} <= set(place)
    assert notes(probed.claims, "embed") == []
    # From the bottom up: tokens and positions, head, logits.
    tokens, positions = place["<b>embed</b><br>the tokens"], place["<b>pos_embed</b><br>the positions"]
    head, logits = place["<b>L0H0</b><br>100% of the bigram"], place["<b>logits</b><br>the prediction"]
    assert tokens == positions < head < logits


def test_where_no_path_matters_all_are_faint_and_none_is_named():
    figure = circuit(with_paths(dict.fromkeys(PATHS, (0.001, 0.001))))
    assert len(figure.data) == len(PATHS)
    assert {trace.line.width for trace in figure.data} == {1}
    assert not figure.layout.showlegend
    assert all("<b>" in note.text or note.text == NO_CIRCUIT for note in figure.layout.annotations)


def test_a_path_that_the_verdict_does_not_name_is_grey_and_one_whose_interval_holds_zero_is_not_drawn():
    probed = with_paths(PATHS, storage=holds("L0H1", L0H1=1.0))
    data = probed["ablation"].data
    low, high = data["path_effect"] - 0.3, data["path_effect"] + 0.3
    probed["ablation"].data.update({"path_effect_low": low, "path_effect_high": high})
    drawn = {trace.text: trace.meta for trace in circuit(probed).data if trace.text}
    assert {text: meta["grey"] for text, meta in drawn.items()} == {
        "L0H0 → logits: 1 nats": True,
        "embed → L0H0.V: 0.5 nats": True,
    }  # 0.25 less 0.3 is below zero
    assert drawn["embed → L0H0.V: 0.5 nats"]["share"] == 0.5


def test_no_text_of_a_crowded_circuit_lies_on_another():
    heads = [f"L{layer}H{head}" for layer in (0, 1) for head in (0, 1)]
    pairs = [(sender, head) for sender in ("embed", "pos_embed") for head in heads]
    pairs += [(sender, head) for sender in heads[:2] for head in heads[2:]]
    effects = {(sender, f"{head}.{side}"): (1.0, 1.0) for sender, head in pairs for side in "QKV"}
    effects |= {(sender, "logits"): (0.25, 1.0) for sender in ("embed", *heads, "L1.mlp")}
    one_back = Condition("previous token", value=0.9, words=("L0H0",))
    feeds = Claim(("L0H0",), "feeds", ("L1H0",), 0.1, because=(one_back,))
    named = [feeds, Claim(("L1H0",), "is_induction_head", (), 1.0)]
    figure = circuit(with_paths(effects, induction=named))
    written = [note for note in figure.layout.annotations if note.text]
    boxes = [text_box(note.x + (note.xshift or 0), note.y, note.text, note.font.size) for note in written]
    parts = [box for box, note in zip(boxes, written, strict=True) if "<b>" in note.text]
    low, high = figure.layout.xaxis.range
    assert not [one for i, one in enumerate(parts) for other in parts[:i] if one.meets(other)]
    assert all(low <= box.x - box.width / 2 and box.x + box.width / 2 <= high for box in parts)
    met = [one for i, one in enumerate(boxes) for other in boxes[:i] if one.meets(other)]
    assert not met
    assert len(parts) + 4 <= len(boxes) <= len(parts) + MAX_NUMBERS  # the largest have room for theirs


def test_the_path_between_two_named_parts_has_its_number_first():
    """Inputs from the tokens cost more, six of them: all the numbers there are room for."""
    inputs = {(start, f"{head}.{side}"): (1.0, 1.0 + i / 10) for i, (start, head, side) in enumerate(
        (start, head, side) for head in ("L0H0", "L1H0") for start in ("embed", "pos_embed") for side in "QK"
    )}  # fmt: skip
    between = {("L0H0", "L1H0.K"): (0.31, 0.31), ("L1H0", "logits"): (1.0, 1.0)}
    named = [Claim(("L0H0",), "feeds", ("L1H0",), 0.1), Claim(("L1H0",), "is_induction_head", (), 1.0)]
    texts = [note.text for note in circuit(with_paths(inputs | between, induction=named)).layout.annotations]
    assert "0.31" in texts


def test_without_ablation_there_is_no_circuit():
    with pytest.raises(KeyError, match="ablation"):
        circuit(Result({"title": "t"}, [0], {"attention": outcome("attention", scores={})}))


def test_numbers_beside_a_path_that_bows_are_inside_the_circuits_frame():
    """A path around a head, whose number stands beyond the bow."""
    effects = {("embed", "L0.mlp"): (0.3, 0.3), ("L0.mlp", "logits"): (0.5, 0.5)}
    effects |= {("embed", "L0H0.V"): (0.4, 0.4), ("L0H0", "L0.mlp"): (0.4, 0.4)}
    effects |= {("pos_embed", "L0H1.K"): (0.2, 0.2), ("pos_embed", "L0H0.K"): (0.2, 0.2)}
    held = holds("L0.mlp", **{"L0.mlp": 0.75, "L0H0": 0.19, "L0H1": 0.06})
    figure = circuit(with_paths(effects, storage=held))
    left, right = figure.layout.xaxis.range
    notes = [note for note in figure.layout.annotations if note.text and note.axref != "x"]
    assert "0.3" in [note.text for note in notes]
    for note in notes:
        at = note.x + (note.xshift or 0)
        half = text_box(at, note.y, note.text, note.font.size).width / 2
        assert left <= at - half <= at + half <= right


def test_small_paths_of_named_parts_are_grey_where_their_parts_have_a_larger_one():
    effects = {("embed", "L0H0.V"): 1.0, ("embed", "L0H0.Q"): 0.05}
    effects |= {("L0H0", "logits"): 0.9, ("pos_embed", "L0H0.K"): 0.04}
    result = with_paths(
        {path: (worth, worth) for path, worth in effects.items()}, storage=holds("L0H0", L0H0=1.0)
    )
    grey = {
        (trace.meta["row"]["sender"], trace.meta["row"]["receiver"]): trace.meta["grey"]
        for trace in circuit(result).data
        if trace.meta
    }
    assert [path for path, is_grey in grey.items() if is_grey] == [("embed", "L0H0.Q")]
    assert not grey["pos_embed", "L0H0.K"]  # all that the positions give
