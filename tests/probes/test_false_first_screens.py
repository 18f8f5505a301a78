"""What the first screen does not say: models whose parts cancel or tie, probes not asked, few sequences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models_by_hand import LOG_P
from probing_cases import P3, probe_quickly, run_of

import mechmarkov as mm
from mechmarkov.claims.claim import Claim, Claims, Condition
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import _reading_one_token, direct_table, value_table
from mechmarkov.models.constructions.n_grams import n_gram_model
from mechmarkov.objectives import Objective
from mechmarkov.report.compare import render
from mechmarkov.report.first_screen.headline import chosen_tiles, headline
from mechmarkov.report.first_screen.readings import drawn_losses, notes
from mechmarkov.report.first_screen.verdict import badge
from mechmarkov.report.words.title import title
from mechmarkov.sources import Chain, DirichletChains, OrderK

STAYING = Chain([[0.8, 0.2], [0.2, 0.8]])
LAST = Objective(read="last")


def beside_direct(head, direct):
    """A head on the parent that writes one table, beside another from token to logits."""
    model = value_table(head, 16)
    with torch.no_grad():
        model.get_parameter("unembed.W_U")[:3] = direct
    return model


def screen(model, probes, sequences=64, **of_run):
    result = probe_quickly(run_of(model, **of_run), probes, sequences=sequences)
    shown = headline(result)
    return result, shown, {tile.question: tile for tile in shown.tiles}


def lives(tiles):
    tile = tiles["Where does it live?"]
    return tile.answer, tile.sentence


def test_two_parts_that_cancel_are_not_called_it():
    result, shown, _ = screen(beside_direct(-0.8 * LOG_P, LOG_P), ["behaviour", "storage", "ablation"])
    assert result.claims.first("cancels").subject == ("direct", "L0H0")
    assert result.claims.first("stores").subject == ("direct",)  # the other one writes against it
    assert shown.named == ("direct",)


def test_of_two_parts_that_cancel_wholly_neither_is_said_to_hold_nothing():
    result, shown, _ = screen(beside_direct(-LOG_P, LOG_P), ["behaviour", "storage", "ablation"])
    stores = result.claims.first("stores")
    assert stores.status == "excluded"
    assert stores.condition("others undo it") or stores.condition("nothing to share")
    assert shown.named == ()


def test_two_induction_heads_that_cancel_are_no_circuit():
    model = induction_pair(3, 32, gain=2.3, readers=2)
    with torch.no_grad():
        model.blocks[1].attn.W_O[0] *= 2
        model.blocks[1].attn.W_O[1] *= -2
    asked = ["behaviour", "ablation", "induction"]
    result, shown, _ = screen(model, asked, source=DirichletChains(n_states=3))
    assert "feeds" not in shown.title
    assert "without effect" not in notes(result.claims, "L1H0") + notes(result.claims, "L1H1")


def test_a_bar_is_the_distance_that_is_told_where_no_best_law_is_exact():
    """With a stationary start the loss above the best is not KL from the in-context bigram."""
    model, source = induction_pair(3, 24), DirichletChains(n_states=3)
    result, _, _ = screen(model, ["behaviour"], source=source)
    (learned,) = (tile for tile in chosen_tiles(result) if tile.picture == "kl")
    assert learned.bars["in_context_bigram"] == learned.number.value


def test_an_induction_head_that_does_harm_is_not_said_to_have_no_effect():
    asked, source = ["behaviour", "ablation", "induction"], DirichletChains(n_states=3)
    result, *_ = screen(induction_pair(3, 32, gain=-1.0), asked, source=source)
    assert notes(result.claims, "L1H0") == ["induction head, does harm"]


def test_a_share_of_little_is_not_said_to_be_a_share_of_the_bigram():
    result, shown, tiles = screen(value_table(LOG_P, 32, every=8), ["behaviour", "storage"])
    assert shown.badge == "partly"
    assert result.claims.first("stores").condition("what there is of it").holds
    assert "what there is of the bigram" in lives(tiles)[1]


def test_the_part_that_is_worth_most_is_named_before_the_one_that_looks_at_the_parent():
    asked = ["behaviour", "ablation", "attention"]
    _, shown, tiles = screen(beside_direct(0.35 * LOG_P, 0.65 * LOG_P), asked)
    assert shown.title == "Learned the bigram: the direct path is needed most"
    assert lives(tiles)[0] == "The direct path"


def test_of_two_equal_heads_both_are_needed_most():
    with torch.no_grad():
        model = _reading_one_token(3, torch.arange(16), n_heads=2)
        model.blocks[0].attn.W_O[:, :3, 3:6] = 0.5 * LOG_P
    result, shown, tiles = screen(model, ["behaviour", "ablation"])
    assert shown.title == "Learned the bigram: L0H0 and L0H1 are needed most"
    assert lives(tiles)[0] == "L0H0 and L0H1"
    assert set(result.claims.first("is_needed_most").subject) == {"L0H0", "L0H1"}
    assert set(shown.named) == {"L0H0", "L0H1"}


@pytest.mark.parametrize(("sequences", "said"), [(8, "open"), (512, "shown")])
def test_few_sequences_do_not_show_that_no_part_matters(sequences, said):
    table = torch.tensor(np.log(STAYING.P)).float() * torch.tensor([[0.3], [-0.1]])
    run = run_of(direct_table(table, 8), source=STAYING, objective=LAST)
    most = mm.probe(run, ["ablation"], sequences=sequences, seed=2).claims.first("is_needed_most")
    assert (most.subject, most.status) == (("direct",), said)


def test_a_head_that_was_never_elsewhere_did_not_begin_there():
    """It looks at the parent from the first step on and writes nothing: no law was learned."""
    decoy = value_table(torch.zeros(3, 3), 16)
    result = probe_quickly(run_of(decoy, decoy), ["behaviour", "dynamics"], steps="all")
    (came,) = [tile for tile in headline(result).tiles if tile.question == "How did it get there?"]
    assert came.answer.startswith("From the start closest to")
    assert came.sentence == "Attention on the current token was there at step 0, the first probed."
    assert {claim.status for claim in result.claims.where("came_by", object="bigram")} == {"excluded"}


@pytest.mark.parametrize(
    ("progress", "error", "word", "said"),
    [
        (-0.03, 0.077, None, "Undecided: too few sequences tell it from the unigram"),
        (-0.03, 0.05, "at the unigram", "At the unigram: at most 7% of the way to the bigram"),
        (
            -0.37,
            0.25,
            "another law",
            "Closest to the uniform law, with a loss perhaps above the unigram's",
        ),
        (-0.37, 0.1, "another law", "Closest to the uniform law, with a loss above the unigram's"),
    ],
)
def test_a_wide_interval_leaves_the_badge_open(progress, error, word, said):
    model, ends = ("model",), (progress - 1.96 * error, progress + 1.96 * error)
    beside = (
        Condition("unigram is told from the best", value=0.8),
        Condition("the nearest law is the best", False),
        Condition("the nearest law is the unigram", value=0.0),
    )
    far = Claim(model, "reaches", ("bigram",), 0.8, status="excluded", because=beside, probe="behaviour")
    way = Claim(model, "is_on_the_way_to", ("bigram",), progress, ends, unit="share", probe="behaviour")
    near = Claim(model, "is_closest_to", ("uniform",), 0.3, probe="behaviour")
    claims = Claims((near, far, way))
    assert badge(claims) == word
    assert title(word, claims, None) == said


def test_an_exact_model_is_not_said_to_be_some_rounding_away():
    *_, tiles = screen(direct_table(LOG_P, 8), ["behaviour"])
    assert tiles["Is it stuck?"].answer == "No: under 10⁻⁶ nats from the best possible"


def test_a_head_that_only_looks_does_not_share_the_circuit_of_another_part():
    model = beside_direct(torch.zeros(3, 3), torch.tensor(P3).float() + 0.15)
    asked = ["behaviour", "alignment", "attention"]
    _, shown, _ = screen(model, asked, objective=Objective(kind="raw_log", eps=0.05, read="all"))
    assert shown.badge != "solved"


def test_the_page_of_several_runs_says_that_a_verdict_is_undecided():
    weak = Chain([[0.56, 0.44], [0.44, 0.56]])
    result, shown, _ = screen(direct_table(torch.zeros(2, 2), 8), ["behaviour"], source=weak)
    assert shown.badge is None
    assert shown.title in render({"a": result, "b": result})


def test_one_step_cannot_tell_whether_a_model_is_stuck_but_where_it_lacks():
    kernel = np.random.default_rng(0).dirichlet(np.ones(3), size=(3, 3))
    model, source = n_gram_model(kernel, 8), OrderK(kernel.tolist())
    result, shown, tiles = screen(model, ["behaviour", "attention", "ablation", "dynamics"], source=source)
    assert tiles["Is it stuck?"].answer == "One checkpoint cannot tell"
    assert "nearly all of it at position 0, where it has seen one token" in tiles["Is it stuck?"].sentence
    reads = {notes(result.claims, name, shown.named)[0] for name in ("L0H0", "L0H1")}
    assert reads == {"current token: 100%", "previous token: 100%"}


def test_a_model_with_losses_in_many_places_is_not_said_to_lack_one():
    _, _, tiles = screen(direct_table(0.5 * LOG_P, 8), ["behaviour", "dynamics"])
    assert "nearly all of it" not in tiles["Is it stuck?"].sentence


def test_a_circuit_of_a_loss_on_scores_is_measured_by_how_often_it_is_right():
    result = probe_quickly(mm.example("walk"), ["behaviour", "attention", "alignment", "dynamics"])
    tiles = {tile.question: tile for tile in headline(result).tiles}
    questions = ("What has it learned?", "How did it get there?", "Is it stuck?")
    learned, came, stuck = (tiles[question] for question in questions)
    assert {bar.label: bar.text for bar in learned.bars} == {
        "this model": "50%", "bigram": "50%", "unigram": "17%", "uniform law": "17%"
    }  # fmt: skip
    assert learned.score is None
    assert "sqrt P" in learned.sentence
    assert "bigram" not in {bar.label for bar in came.bars}
    assert stuck.bars == ()


def test_a_named_head_that_reads_nothing_in_particular_says_so():
    spread = Claim(("L0H0",), "attends_to", ("2 tokens back",), 0.11, status="excluded")
    claims = Claims((spread,))
    assert notes(claims, "L0H0", ("L0H0",)) == ["attention spread"]
    assert notes(claims, "L0H0") == []
    most = Claims((replace(spread, value=0.43),))
    assert notes(most, "L0H0", ("L0H0",)) == ["2 tokens back: 43%", "elsewhere: 57%"]


def test_the_uniform_law_is_drawn_at_the_logarithm_of_the_states():
    result = probe_quickly(run_of(direct_table(LOG_P, 8)), ["behaviour"])
    loss, levels = drawn_losses(result["behaviour"])
    assert levels["uniform"] == pytest.approx(np.log(3), abs=1e-12)
    assert loss[-1] == pytest.approx(levels["best"], abs=1e-6)
