"""The four tiles, the title's words and the curve: from scores and data made by hand."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from claim_cases import behaviour, result_of
from report_examples import outcome

import mechmarkov as mm
from mechmarkov.claims.claim import MODEL, Claim, Condition, Where
from mechmarkov.probing.score import Score
from mechmarkov.report.first_screen.curve import learning_curve
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.first_screen.readings import course, drawn_losses
from mechmarkov.report.words.short_forms import MAX_ANSWER_WORDS
from mechmarkov.report.words.tiles import MAX_TILE_WORDS
from mechmarkov.report.words.title import MAX_TITLE_WORDS
from mechmarkov.result import Result

BIGRAM = ("bigram",)


def needed(name: str, value: float) -> Claim:
    return Claim((name,), "is_needed", (), value, (value, value), 0.0, "nats")


def stores(*paths: str, share: float | None = 0.9, status: str = "shown", why: str = "") -> Claim:
    beside = (Condition(why),) if why else ()
    return Claim(paths, "stores", BIGRAM, share, unit="share", status=status, because=beside)


def trapped(status: str = "shown") -> Claim:
    return Claim((MODEL,), "is_trapped_by", ("shifts",), 0.0, unit="share", status=status, evidence="law")


def point(kind: str = "minimum", value: float = 0.125, largest: float = 1.0) -> Claim:
    beside = (
        Condition("outside the symmetric subspace"),
        Condition("near the best", False, 0.25, "nats"),
        Condition("largest eigenvalue", value=largest),
    )
    if kind == "not stationary":
        return Claim((MODEL,), "moves", (), value, unit="nats", evidence="law", because=beside)
    names = ("minimum", "saddle") if kind == "undecided" else (kind,)
    status = "open" if kind == "undecided" else "shown"
    return Claim((MODEL,), "is_at", names, value, status=status, evidence="law", because=beside)


def reads_parent(head: str = "L0H0", value: float = 0.97) -> Claim:
    return Claim((head,), "attends_to", ("parent", "previous token"), value, unit="probability")


def learned(**more: list[Claim]) -> Result:
    """A run of one step that found the bigram; with what other probes say in place of it."""
    said = {
        "behaviour": behaviour(0.5, right=0.5),
        "storage": [stores("L0H0"), Claim(("L0H0",), "holds_share", BIGRAM, 0.9, unit="share")],
        "attention": [reads_parent()],
        "ablation": [
            Claim(("L0H0",), "is_needed_most", (), 0.75, unit="nats", evidence="intervention"),
            needed("L0H0", 0.75),
        ],
        "symmetry": [trapped("excluded")],
        "landscape": [point()],
    }
    return result_of((50,), **(said | more))


def tiles(result: Result) -> dict:
    return {tile.question: tile for tile in headline(result).tiles}


def came(name: str, value: float, after: float, by: float, *names: str) -> Claim:
    beside = tuple(Condition(name) for name in names)
    return Claim(
        (MODEL,), "came_by", (name,), value, (after, by), unit="step", where=Where(steps=(0, 8)),
        because=beside,
    )  # fmt: skip


def test_a_model_that_learned_the_bigram_in_tiles():
    shown = tiles(learned())
    assert tuple(shown) == ("What has it learned?", "Where does it live?", "Is it stuck?")
    has, lives, stuck = shown.values()
    assert has.answer == "Closest to the bigram"
    assert has.score.value == 0.25
    assert "right 50.0% of the time" in has.sentence
    assert lives.answer == "L0H0"
    assert lives.score is None  # its sentence has the number
    assert [bar.label for bar in lives.bars] == ["L0H0"]
    assert stuck.answer == "Yes, at a local minimum"
    assert headline(learned()).named == ("L0H0",)


def test_paths_that_hold_it_together_are_named_once_each():
    result = learned(storage=[stores("direct", "L0H1", "L0H0", share=0.8)])
    lives = tiles(result)["Where does it live?"]
    assert headline(result).named == ("direct", "L0H1", "L0H0")
    assert lives.answer == "The direct path, L0H1 and L0H0"
    unknown = tiles(learned(storage=[stores("direct", "L0H1", share=None)]))["Where does it live?"]
    assert "%" not in unknown.sentence


def test_a_part_that_reads_the_parent_for_another_does_not_hold_the_bigram():
    result = learned(storage=[stores("L0.mlp", share=0.75)])
    assert tiles(result)["Where does it live?"].answer == "The MLP of layer 0"
    assert headline(result).named == ("L0.mlp",)
    assert "L0H0" not in headline(result).title


def test_a_law_is_named_where_it_is_imitated_and_is_the_closest_otherwise():
    close = Claim((MODEL,), "imitates", BIGRAM, 0.004, (0.003, 0.005), unit="nats")
    for like, answer in ((close, "The bigram"), (replace(close, status="open"), "Closest to the bigram")):
        result = learned(behaviour=[*behaviour(0.5), like])
        assert tiles(result)["What has it learned?"].answer == answer


def test_where_symmetry_has_no_answer_the_tile_is_of_another_probe():
    unsaid = trapped("does not apply")
    assert tiles(learned(symmetry=[unsaid]))["Is it stuck?"].answer == "Yes, at a local minimum"
    neither = learned(symmetry=[unsaid], landscape=[])
    assert tiles(neither)["Is it stuck?"].answer == "Not at the best possible: 0.25 nats away"


def test_a_trapped_model_is_told_from_a_learned_one():
    nothing = stores(share=None, status="excluded", why="nothing to share")
    result = learned(
        behaviour=behaviour(0.0, closest=("unigram",)),
        storage=[nothing],
        attention=[],
        symmetry=[trapped()],
        landscape=[point("saddle", -4.0, 4.0)],
        ablation=[],
    )
    shown = tiles(result)
    assert shown["Where does it live?"].answer == "No part holds the bigram"
    assert shown["Is it stuck?"].answer == "Yes, by symmetry"
    assert headline(result).badge == "trapped"
    assert headline(result).named == ()
    saddle = tiles(learned(symmetry=[], landscape=[point("saddle", -4.0, 4.0)]))["Is it stuck?"]
    assert saddle.score.value == -4.0
    assert [(bar.label, bar.start, bar.end) for bar in saddle.bars] == [
        ("smallest", 0, 50),
        ("largest", 50, 100),
    ]


def test_a_solved_model_is_not_stuck():
    stuck = tiles(learned(behaviour=behaviour(0.998)))["Is it stuck?"]
    assert stuck.answer == "No: 0.001 nats from the best possible"


def test_what_came_is_told_in_order_and_that_nothing_came():
    selection, bigram = came("selection", 2, 1, 2), came("bigram", 8, 6, 8)
    unigram = Claim((MODEL,), "came_by", ("unigram",), status="does not apply")
    (tile,) = headline(result_of((0, 8), dynamics=[selection, bigram, unigram])).tiles
    assert tile.answer == "Attention on the parent by step 2"  # the law that was closest is another claim
    assert tile.score is None
    assert tile.picture.startswith("first probed step")
    nothing = Claim((MODEL,), "came_by", ("selection",), status="excluded", where=Where(steps=(0, 8)))
    (tile,) = headline(result_of((0, 8), dynamics=[nothing])).tiles
    assert tile.answer == "It never began"


def test_what_held_at_the_first_probed_step_did_not_come():
    there = came("selection", 0, 0, 0, "from the first probed step")
    (tile,) = headline(result_of((0, 8), dynamics=[there])).tiles
    assert tile.answer == "Attention on the parent from the start"
    (tile,) = headline(result_of((0, 8), dynamics=[there, came("graph_head", 8, 6, 8)])).tiles
    assert tile.answer == "Head along the graph by step 8"
    (tile,) = headline(result_of((0, 8), dynamics=[came("graph_head", 4, 0, 4, "lost again")])).tiles
    assert tile.answer == "Head along the graph by step 4 (lost again)"


def test_a_component_whose_effect_is_within_its_null_is_not_named():
    most = Claim(("L0H0",), "is_needed_most", (), 0.75, unit="nats", evidence="intervention")
    for status, named in (("shown", ("L0H0",)), ("open", ())):
        assert headline(result_of(ablation=[replace(most, status=status)])).named == named


def induction(heads: tuple[str, ...], feeders: tuple[str, ...]) -> list[Claim]:
    feeds = Claim(feeders, "feeds", heads, 0.1, (0.0, 0.2), 1.0, "share", "shown" if feeders else "excluded")
    head = Claim(heads, "is_induction_head", (), 1.0, (0.9, 1.1), None, "of the ideal")
    return [feeds, head] if feeders else [head, feeds]


def test_an_induction_circuit_names_both_heads_and_what_was_not_asked_has_no_tile():
    result = result_of(induction=induction(("L1H0",), ("L0H1",)))
    (tile,) = headline(result).tiles
    assert (tile.question, tile.answer) == ("Where does it live?", "L0H1 → L1H0")
    assert headline(result).named == ("L0H1", "L1H0")


@pytest.mark.parametrize("feeders", [("L0H1",), ("L0H1", "L0H2"), ()])
def test_a_head_that_looks_one_back_and_feeds_nothing_is_not_said_to_feed(feeders):
    looks = Claim(("L0H0",), "attends_to", ("previous token",), 1.0, unit="probability")
    result = result_of(induction=[*induction(("L1H0",), feeders), looks])
    assert headline(result).named == (*feeders, "L1H0")
    (tile,) = headline(result).tiles
    assert "L0H0" not in tile.answer + tile.sentence


@pytest.mark.parametrize("n_feeders", range(5))
@pytest.mark.parametrize("n_heads", range(1, 5))
def test_however_many_heads_tie_and_feed_the_words_are_few(n_feeders, n_heads):
    feeders, heads = (
        tuple(f"L{layer}H{i}" for i in range(n)) for layer, n in enumerate((n_feeders, n_heads))
    )
    law = behaviour(0.5, best="in_context_bigram", closest=("in_context_bigram",))
    result = result_of(behaviour=law, induction=induction(heads, feeders))
    said = headline(result)
    assert len(said.title.split()) <= MAX_TITLE_WORDS
    assert said.named == (*feeders, *heads)
    lives = tiles(result)["Where does it live?"]
    assert len(lives.sentence.split()) <= MAX_TILE_WORDS
    assert len(lives.answer.split()) <= MAX_ANSWER_WORDS


def test_every_tile_of_every_outcome_is_short():
    for kind in ("minimum", "saddle", "not stationary", "undecided"):
        for status in ("shown", "excluded", "open", "does not apply"):
            for home in ("shown", "excluded", "open"):
                result = learned(
                    landscape=[point(kind, -0.125)],
                    symmetry=[trapped(status)],
                    storage=[stores("L0H0", status=home, why="" if home == "shown" else "nothing to share")],
                )
                for tile in headline(result).tiles:
                    assert len(tile.sentence.split()) <= MAX_TILE_WORDS, tile.sentence
                    assert len(tile.answer.split()) <= MAX_ANSWER_WORDS, tile.answer


@pytest.mark.parametrize("nearest", ["step_2", "latent", "in_context_order_2"])
def test_a_nearest_predictor_without_a_score_of_its_own(nearest):
    has = tiles(learned(behaviour=behaviour(0.5, closest=(nearest,))))["What has it learned?"]
    assert has.answer.startswith("Closest to the ")
    assert has.score.null is None


def curve_of(loss, levels, best):
    """The learning curve of a behaviour with these losses, and the levels of these predictors (nats)."""
    names = [*levels]
    data = xr.Dataset(
        {
            "loss": ("step", loss),
            "predictor_loss": ("predictor", [*levels.values()]),
            "kl": (("step", "predictor"), np.ones((len(loss), len(names)))),
            "best_loss": best,
            "excess": ("step", np.array(loss) - best),
            "gap": levels["unigram"] - best,
            "left_error": ("step", np.zeros(len(loss))),
        },
        coords={"step": np.arange(len(loss)) * 10, "predictor": names},
        attrs={"unigram": "unigram", "bigram": "bigram"},
    )
    found = {"loss": Score(float(loss[-1]), "nats"), "excess_loss": Score(float(loss[-1]) - best, "nats")}
    behaviour = replace(outcome("behaviour", scores=found), data=data)
    drawn = learning_curve(Result(metadata={"title": "t"}, steps=[0], outcomes={"behaviour": behaviour}))
    assert drawn is not None
    return drawn.content


def test_a_loss_above_every_level_is_on_the_curve():
    figure = curve_of([1.6, 1.5, 1.4], {"uniform": 1.1, "unigram": 1.07, "bigram": 0.9}, 0.78)
    low, high = figure.layout.yaxis.range
    assert low < 0.78
    assert high > 1.4


def test_names_of_near_levels_share_a_text_and_each_level_has_its_line():
    figure = curve_of([1.6, 1.4], {"uniform": 1.1, "unigram": 1.07, "bigram": 1.095}, 0.78)
    texts = {note.text: note.y for note in figure.layout.annotations if note.xref == "paper"}
    assert [*texts] == ["best", "uniform law<br>bigram<br>unigram"]
    assert texts["uniform law<br>bigram<br>unigram"] == pytest.approx((1.1 + 1.07 + 1.095) / 3)
    assert sorted(line.y0 for line in figure.layout.shapes if line.y0 == line.y1) == [0.78, 1.07, 1.095, 1.1]


def test_the_curve_is_as_far_above_the_best_as_the_tile_says():
    # 64 last predictions: sampled next states alone put the curve 0.07 nats elsewhere.
    result = mm.probe(mm.example("graph"), ["behaviour"], steps=[0, 300], sequences=64)
    data = result["behaviour"].data
    loss, levels = drawn_losses(result.outcomes["behaviour"])
    assert loss - levels["best"] == pytest.approx(data["excess"].values)
    assert levels[data.attrs["unigram"]] - levels["best"] == pytest.approx(float(data["gap"]))
    assert levels[data.attrs["best"]] == levels["best"]
    # It was trained on scores: the curve is of how often it is right, which the loss does not tell.
    assert learning_curve(result).content.data[0].y == pytest.approx(data["accuracy"].values)
    drawn = course(result.outcomes["behaviour"])
    assert drawn.levels["best"] == float(data["optimal_accuracy"])
    assert drawn.levels["uniform"] == pytest.approx(1 / 3)  # of three states, any is drawn among
    at_best = replace(result.outcomes["behaviour"], data=data.assign_attrs(objective="cross_entropy"))
    assert course(at_best).values == pytest.approx(loss)


def test_number_bars_and_verdict_are_of_all_predictions():
    # At its first position the model is not the in-context bigram.
    result = mm.probe(mm.example("induction"), ["behaviour"], sequences=64)
    claims = result.claims
    closest, reaches = claims.first("is_closest_to"), claims.first("reaches")
    learned, stuck = result.outcomes["behaviour"].probe.headline(claims)
    assert claims.first("fails_at").where.positions == (0,)
    assert learned.number.value == learned.bars["in_context_bigram"] == closest.value
    assert closest.value == pytest.approx(reaches.value) == stuck.number.value
