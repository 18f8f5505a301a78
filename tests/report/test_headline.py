"""The four tiles, the title's words and the curve: from scores and data made by hand."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from report_examples import outcome

from mechmarkov.probing.score import Score
from mechmarkov.report.first_screen.curve import learning_curve
from mechmarkov.report.first_screen.headline import _how, headline
from mechmarkov.report.first_screen.tiles import MAX_ANSWER_WORDS, MAX_TILE_WORDS
from mechmarkov.report.first_screen.verdict import MAX_TITLE_WORDS
from mechmarkov.result import Result


def scores(**values):
    return {
        name: Score(value, "") if value is not None else Score(None, "", reason="none")
        for name, value in values.items()
    }


def result(steps=(0,), skipped=None, **probes):
    outcomes = {name: outcome(name, scores=scores(**found)) for name, found in probes.items()}
    return Result(run={"title": "t"}, steps=list(steps), outcomes=outcomes, skipped=skipped or {})


LEARNED = {
    "behaviour": {
        "nearest_predictor": "bigram",
        "kl_bigram": 0.125,
        "excess_loss": 0.25,
        "accuracy": 0.5,
        "optimal_accuracy": 0.5,
    },
    "storage": {"bigram_home": "L0H0", "share_L0H0": 0.9, "gain": 0.8},
    "attention": {"parent_head": "L0H0", "parent_score": 0.97},
    "ablation": {"largest_effect_component": "L0H0", "largest_effect": 0.75},
    "symmetry": {"trapped": False, "first_step_information": 0.5},
    "landscape": {"kind": "minimum", "hessian_min": 0.125, "escape_rate": 0.0},
}


def tiles(found):
    return {tile.question: tile for tile in headline(found).tiles}


def test_a_model_that_learned_the_bigram_in_four_tiles():
    skipped = {"dynamics": "one step is probed"}
    found = tiles(result(steps=[50], skipped=skipped, **LEARNED))
    questions = ("What has it learned?", "Where does it live?", "How did it get there?", "Is it stuck?")
    assert tuple(found) == questions
    learned, lives, came, stuck = found.values()
    assert learned.answer == "Nearest: the bigram"
    assert learned.score.value == 0.125
    assert "50.0% of the time" in learned.sentence
    assert lives.answer == "L0H0"
    assert "90% of the bigram" in lives.sentence
    assert "97.0% of its attention on the parent" in lives.sentence
    assert lives.score.value == 0.75
    assert "--steps all" in came.sentence
    assert "first gradient tells states apart" in stuck.sentence
    assert "at a minimum" in stuck.sentence


def test_paths_that_hold_it_together_are_named_once_each():
    storage = {"bigram_home": "direct + L0H1 + L0H0", "share_direct": 0.4, "share_L0H1": 0.3}
    several = LEARNED | {"storage": storage | {"share_L0H0": 0.1}}
    found = result(**several)
    lives = tiles(found)["Where does it live?"]
    assert named_heads(found) == ["direct", "L0H1", "L0H0"]
    assert lives.answer == "direct, L0H1 and L0H0"
    assert "hold 80% of the bigram" in lives.sentence
    assert "of its attention" not in lives.sentence  # which of them?
    unknown = tiles(result(**LEARNED | {"storage": storage}))["Where does it live?"]
    assert "%" not in unknown.sentence


def test_a_part_that_reads_the_parent_for_another_does_not_hold_the_bigram():
    storage = {"bigram_home": "L0.mlp", "share_L0.mlp": 0.75}
    found = result(**LEARNED | {"storage": storage})
    lives = tiles(found)["Where does it live?"]
    assert lives.answer == "L0.mlp and L0H0"
    assert lives.sentence == "L0.mlp holds 75% of the bigram."
    assert "L0H0" not in headline(found).title


@pytest.mark.parametrize(
    ("away", "error", "answer"),
    [(0.014, 0, "The bigram"), (0.014, 0.001, "Nearest: the bigram"), (0.016, 0, "Nearest: the bigram")],
)
def test_the_tile_has_a_predictor_where_the_verdict_says_so(away, error, answer):
    """Within a tenth of the distance to the next predictor, whatever sampling makes of it."""
    found = result(**LEARNED)
    kl = xr.DataArray([[0.15, away]], {"predictor": ["unigram", "bigram"]}, ("step", "predictor"))
    data = xr.Dataset({"kl": kl, "kl_error": xr.full_like(kl, error)})
    found.outcomes["behaviour"] = replace(found["behaviour"], data=data)
    assert tiles(found)["What has it learned?"].answer == answer


def test_where_symmetry_has_no_answer_the_tile_has_none():
    unsaid = {"trapped": None, "first_step_information": 0.5}
    found = tiles(result(**LEARNED | {"symmetry": unsaid}))
    assert found["Is it stuck?"].sentence == "It ends at a minimum, within the tolerance band."
    with_kind = {
        "behaviour": LEARNED["behaviour"],
        "symmetry": unsaid,
        "landscape": {"kind": "of another probe"},
    }
    assert tiles(result(**with_kind))["Is it stuck?"].sentence == ""


def test_a_predictor_in_context_has_its_distance_under_the_short_name():
    behaviour = LEARNED["behaviour"] | {"nearest_predictor": "in_context_bigram"}
    tile = headline(result(behaviour=behaviour)).tiles[0]
    assert tile.answer == "Nearest: the in-context bigram"
    assert tile.score.value == 0.125


def test_a_trapped_model_is_told_from_a_learned_one():
    trapped = LEARNED | {
        "storage": {"bigram_home": "none", "gain": 0.001},
        "attention": {"parent_head": None},
        "symmetry": {"trapped": True, "first_step_information": 0.0},
        "landscape": {"kind": "saddle", "hessian_min": -4.0, "hessian_max": 4.0, "escape_rate": 4.0},
    }
    found = tiles(result(**trapped))
    assert found["Where does it live?"].answer == "Nothing to place"
    stuck = found["Is it stuck?"]
    assert stuck.answer == "Yes, by symmetry"
    assert "same for every state" in stuck.sentence
    assert "saddle" in stuck.sentence
    assert stuck.score.value == -4.0
    assert [(bar.label, bar.start, bar.end) for bar in stuck.bars] == [
        ("smallest", 0, 50),
        ("largest", 50, 100),
    ]


def test_a_solved_model_is_not_stuck():
    behaviour = LEARNED["behaviour"] | {"kl_best": 0.001}
    stuck = tiles(result(**(LEARNED | {"behaviour": behaviour})))["Is it stuck?"]
    assert stuck.answer == "No: 0.001 nats from the best possible"
    assert "at a minimum" in stuck.sentence


def test_what_came_is_told_in_order_and_that_nothing_came():
    came = {
        "t_bigram": Score(8, "step", interval=(6.0, 8.0)),
        "t_selection": Score(2, "step", interval=(1.0, 2.0)),
        "t_unigram": Score(None, "step", reason="no better than the uniform law"),
    }
    probed = Result({"title": "t"}, [0, 8], {"dynamics": outcome("dynamics", scores=came)})
    (tile,) = headline(probed).tiles
    assert tile.answer == "Selection by step 2, bigram by step 8"
    assert tile.sentence == "Parent attended by steps 1 to 2; halfway to the bigram by steps 6 to 8."
    assert tile.score.interval == (6.0, 8.0)
    came["t_bigram"] = Score(4, "step", interval=(2.0, 8.0))  # holds at 4, and surely at 8
    (tile,) = headline(probed).tiles
    assert tile.answer == "Selection by step 2, bigram by step 8"
    assert tile.score.interval == (2.0, 8.0)
    nothing = outcome("dynamics", verdict="Nothing happened.", scores=scores(t_bigram=None))
    (tile,) = headline(Result({"title": "t"}, [0, 8], {"dynamics": nothing})).tiles
    assert tile.answer == "Not seen"


def test_what_held_at_the_first_probed_step_did_not_come():
    there = {"t_selection": Score(0, "step", interval=(0.0, 0.0))}
    probed = Result({"title": "t"}, [0, 8], {"dynamics": outcome("dynamics", scores=there)})
    (tile,) = headline(probed).tiles
    assert tile.answer == "It began there"
    assert "step 0" in tile.sentence
    came = there | {"t_bigram": Score(8, "step", interval=(6.0, 8.0))}
    (tile,) = headline(Result({"title": "t"}, [0, 8], {"dynamics": outcome("dynamics", scores=came)})).tiles
    assert tile.answer == "Bigram by step 8"
    coords = {"step": [0, 4, 8], "event": ["bigram"]}
    progress = xr.DataArray([[0.1], [0.9], [0.1]], coords, ("step", "event"))
    came |= {"t_bigram": Score(4, "step", interval=(0.0, 4.0))}
    gone = Result({"title": "t"}, [0, 4, 8], {"dynamics": outcome("dynamics", scores=came)})
    gone.outcomes["dynamics"] = replace(gone["dynamics"], data=xr.Dataset({"progress": progress}))
    gone["dynamics"].scores.pop("t_selection")
    (tile,) = headline(gone).tiles
    assert tile.answer == "Bigram by step 4 (lost again)"


def test_the_home_is_not_said_to_look_at_the_parent_where_another_head_does():
    other = LEARNED | {"attention": {"parent_head": "L0H1", "parent_score": 0.97}}
    assert "parent" not in headline(result(**other)).tiles[1].sentence


def test_a_component_whose_effect_is_within_its_null_is_not_named():
    effect = {"largest_effect_component": Score("L0H0", "")}
    for value, named in ((0.75, ["L0H0"]), (0.25, [])):
        found = effect | {"largest_effect": Score(value, "nats", (0.0, 0.1, 0.5))}
        probed = Result({"title": "t"}, [0], {"ablation": outcome("ablation", scores=found)})
        assert named_heads(probed) == named


def test_an_induction_circuit_names_both_heads_and_what_was_not_asked_has_no_tile():
    found = scores(induction_head="L1H0", previous_token_head="L0H1", feeders="L0H1")
    probed = Result({"title": "t"}, [0], {"induction": outcome("induction", scores=found)})
    (tile,) = headline(probed).tiles
    assert (tile.question, tile.answer) == ("Where does it live?", "L0H1 → L1H0")
    assert "earlier copies of the current token" in tile.sentence


@pytest.mark.parametrize(
    ("feeders", "said"), [("L0H1", "L0H1 feeds it"), ("L0H1 + L0H2", "L0H1 and L0H2 feed it"), (None, "")]
)
def test_a_head_that_looks_one_back_and_feeds_nothing_is_not_said_to_feed(feeders, said):
    found = scores(induction_head="L1H0", previous_token_head="L0H0")
    found["feeders"] = Score(feeders, "", reason="none")
    probed = Result({"title": "t"}, [0], {"induction": outcome("induction", scores=found)})
    assert named_heads(probed) == [*(feeders.split(" + ") if feeders else []), "L1H0"]
    (tile,) = headline(probed).tiles
    assert said in tile.sentence
    assert "L0H0" not in tile.answer + tile.sentence


@pytest.mark.parametrize("n_feeders", range(5))
@pytest.mark.parametrize("n_heads", range(1, 5))
def test_however_many_heads_tie_and_feed_the_words_are_few(n_feeders, n_heads):
    feeders, heads = ([f"L{layer}H{i}" for i in range(n)] for layer, n in enumerate((n_feeders, n_heads)))
    found = scores(
        induction_head="L1H0", induction_heads=" + ".join(heads), feeders=" + ".join(feeders) or None
    )
    probed = Result({"title": "t"}, [0], {"induction": outcome("induction", scores=found)})
    how = _how(probed, is_bigram=True)
    assert len(how.split()) <= MAX_TITLE_WORDS - len(["34%", "towards", "the", "in-context", "bigram:"])
    assert ("heads" in how.split("induction")[1]) == (n_heads > 1)
    assert ("feeds" in how) == (n_feeders == 1)
    assert named_heads(probed) == [*feeders, *heads]
    (tile,) = headline(probed).tiles
    assert len(tile.sentence.split()) <= MAX_TILE_WORDS
    assert len(tile.answer.split()) <= MAX_ANSWER_WORDS


def test_every_tile_of_every_outcome_is_short():
    kinds, flags = ("minimum", "saddle", "not stationary", "undecided"), (True, False)
    homes = ("L0H0", "none")
    for kind in kinds:
        for trapped in flags:
            for home in homes:
                found = LEARNED | {
                    "landscape": {"kind": kind, "hessian_min": -0.125, "hessian_max": 1.0},
                    "symmetry": {"trapped": trapped, "first_step_information": 0.0},
                    "storage": {"bigram_home": home, "share_L0H0": 0.9, "gain": 0.8},
                }
                for tile in headline(result(**found)).tiles:
                    assert len(tile.sentence.split()) <= MAX_TILE_WORDS, tile.sentence
                    assert len(tile.answer.split()) <= MAX_ANSWER_WORDS, tile.answer


@pytest.mark.parametrize("nearest", ["step_2", "latent", "in_context_order_2"])
def test_a_nearest_predictor_without_a_score_of_its_own(nearest):
    behaviour = LEARNED["behaviour"] | {"nearest_predictor": nearest}
    learned = tiles(result(**(LEARNED | {"behaviour": behaviour})))["What has it learned?"]
    assert learned.answer.startswith("Nearest: the ")
    assert learned.score.value is None


def test_a_head_that_reads_the_parent_without_effect_is_not_named_beside_the_home():
    def probed(worth):
        effect = xr.DataArray(
            [[[[0.5, worth]]]],
            dims=("step", "measure", "kind", "component"),
            coords={"measure": ["loss"], "kind": ["mean"], "component": ["L0.mlp", "L0H0"]},
        )
        found = {
            "storage": outcome("storage", scores={"bigram_home": Score("L0.mlp", "")}),
            "attention": outcome("attention", scores={"parent_head": Score("L0H0", "")}),
            "ablation": replace(outcome("ablation"), data=xr.Dataset({"effect": effect})),
        }
        return named_heads(Result({"title": "t"}, [0], found))

    assert probed(0.3) == ["L0.mlp", "L0H0"]
    assert probed(1e-8) == ["L0.mlp"]


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
    drawn = learning_curve(Result(run={"title": "t"}, steps=[0], outcomes={"behaviour": behaviour}))
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
    assert [*texts] == ["best", "uniform<br>bigram<br>unigram"]
    assert texts["uniform<br>bigram<br>unigram"] == pytest.approx((1.1 + 1.07 + 1.095) / 3)
    assert sorted(line.y0 for line in figure.layout.shapes if line.y0 == line.y1) == [0.78, 1.07, 1.095, 1.1]
