"""The badge at its borders, and the title in twelve words."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from claim_cases import GAP, REACHED, behaviour, claims_of
from scipy.optimize import brentq
from scipy.special import softmax

import mechmarkov as mm
from mechmarkov.claims.claim import MODEL, Claim, Claims
from mechmarkov.claims.tile import LIVES, Tile
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.report.first_screen.headline import Headline, at_step, headline
from mechmarkov.report.first_screen.verdict import (
    SOLVED_ACCURACY,
    SOLVED_ATTENTION,
    SOLVED_COSINE,
    UNIGRAM_KL,
    UNIGRAM_PROGRESS,
    badge,
)
from mechmarkov.report.words.names import share
from mechmarkov.report.words.title import MAX_TITLE_WORDS, title

NOT_JUDGED = "The loss is on scores, where an exact circuit counts as solved. The circuit was not judged: "
STORES = Tile(LIVES, (Claim(("direct",), "stores", ("bigram",), 1.0, unit="share"),))


def at(progress: float, error: float = 0.0, trapped: bool = False, **more: object) -> Claims:
    """Claims with this progress from the unigram (0) to the best (1)."""
    stuck = [Claim((MODEL,), "is_trapped_by", ("shifts",), 0.0, evidence="law")] if trapped else []
    near = {"closest": ("unigram",)} if progress < 0.5 else {}
    return claims_of(behaviour=behaviour(progress, error, **(near | more)), symmetry=stuck)


@pytest.mark.parametrize(
    ("progress", "word"),
    [
        (1.0, "solved"),
        (REACHED + 1e-9, "solved"),
        (REACHED - 1e-9, "partly"),
        (UNIGRAM_PROGRESS + 1e-9, "partly"),
        (UNIGRAM_PROGRESS - 1e-9, "at the unigram"),
        (0.0, "at the unigram"),
        (-UNIGRAM_PROGRESS + 1e-9, "at the unigram"),
        (-UNIGRAM_PROGRESS - 1e-9, "another law"),
    ],
)
def test_the_badge_at_its_borders(progress, word):
    assert badge(at(progress)) == word


@pytest.mark.parametrize(
    ("progress", "error", "word"),
    [
        (0.92, 0.011, "partly"),
        (0.92, 0.009, "solved"),
        (0.08, 0.011, "partly"),
        (0.08, 0.009, "at the unigram"),
    ],
)
def test_a_word_for_a_range_is_used_where_the_whole_interval_is_in_it(progress, error, word):
    claims = at(progress, error)
    assert badge(claims) == word
    if word == "partly":
        assert title(word, claims, None) == f"{share(progress)} of the way from unigram to bigram"
        assert title(word, claims, STORES).endswith(" of the way from unigram to bigram: in the direct path")


@pytest.mark.parametrize("progress", [-UNIGRAM_PROGRESS + 1e-9, 0.0, UNIGRAM_PROGRESS - 1e-9])
@pytest.mark.parametrize(("kl", "word"), [(UNIGRAM_KL, "at the unigram"), (UNIGRAM_KL + 1e-9, "another law")])
def test_the_unigrams_loss_is_not_the_unigram(progress, kl, word):
    assert badge(at(progress, kl_unigram=kl * GAP)) == word


def test_a_trapped_model_is_one_that_symmetry_holds_at_the_unigram():
    assert badge(at(0.0, trapped=True)) == "trapped"
    assert badge(at(UNIGRAM_PROGRESS + 1e-9, trapped=True)) == "partly"  # it got out
    assert badge(at(1.0, trapped=True)) == "solved"
    assert badge(at(-1.0, trapped=True)) == "trapped"  # on its way to the unigram


def test_before_the_first_step_a_model_is_untrained_unless_it_began_with_the_answer():
    assert badge(at(-2.0, untouched=True)) == badge(at(0.5, untouched=True)) == "untrained"
    assert badge(at(1.0, untouched=True)) == "solved"  # trained before, and trained on


@pytest.mark.parametrize(
    ("cosine", "attention", "accuracy", "word"),
    [
        (SOLVED_COSINE, SOLVED_ATTENTION, SOLVED_ACCURACY, "solved"),
        (SOLVED_COSINE - 1e-9, SOLVED_ATTENTION, SOLVED_ACCURACY, "partly"),
        (SOLVED_COSINE, SOLVED_ATTENTION - 1e-9, SOLVED_ACCURACY, "partly"),
        (SOLVED_COSINE, SOLVED_ATTENTION, SOLVED_ACCURACY - 1e-9, "partly"),
        (None, 1.0, 1.0, "partly"),
        (1.0, None, 1.0, "partly"),
    ],
)
def test_on_a_loss_on_scores_the_exact_circuit_and_the_accuracy_decide(cosine, attention, accuracy, word):
    said = {"behaviour": behaviour(0.8, on_scores=True, right=accuracy, possible=1.0)}
    if cosine is not None:
        said["alignment"] = [Claim(("L0H0",), "matches", ("sqrt P",), cosine, unit="cosine")]
    if attention is not None:
        said["attention"] = [Claim(("L0H0",), "attends_to", ("parent",), attention, unit="probability")]
    assert badge(claims_of(**said)) == word


def test_an_exact_circuit_of_two_heads_is_none():
    """One has the table, the other looks at the parent."""
    said = {
        "behaviour": behaviour(0.8, on_scores=True),
        "alignment": [Claim(("L0H0",), "matches", ("sqrt P",), 1.0, unit="cosine")],
        "attention": [Claim(("L0H1",), "attends_to", ("parent",), 1.0, unit="probability")],
    }
    assert badge(claims_of(**said)) == "partly"


def test_another_law_that_is_nearer_is_not_the_best():
    assert badge(at(0.95, closest=("order_2",))) == "partly"  # as a bigram is of order 2 that gains little


def test_where_the_unigram_is_the_best_only_the_distance_to_it_decides():
    near = at(1.0, gap=0.0, best="unigram", closest=("unigram",))
    assert badge(near) == "solved"
    far = at(-1.0, gap=0.0, best="unigram", closest=("uniform",))
    assert badge(far) == "another law"


def test_a_best_predictor_that_gains_nothing_is_not_said_to_be_learned():
    claims = at(1.0, gap=0.005)
    assert badge(claims) is None
    assert title(None, claims, None) == "The unigram and the bigram coincide within 0.01 nats"


def test_a_model_near_another_law_is_not_at_the_unigram():
    assert badge(at(0.0)) == "at the unigram"
    assert badge(at(0.0, closest=("bigram",))) == "another law"


def test_every_title_has_at_most_twelve_words():
    feeds = Claim(("L10H11",), "feeds", ("L11H10",), 0.1, unit="share")
    head = Claim(("L11H10",), "is_induction_head", (), 1.0, unit="of the ideal")
    lives = (None, STORES, Tile(LIVES, (feeds,), (head,)))
    bests = ("bigram", "in_context_bigram", "in_context_order_2")
    for progress, best, tile, untouched in product((-2.0, 0.0, 0.5, 1.0), bests, lives, (True, False)):
        for trapped in (True, False):
            for kl in (0.0, 1.0):
                claims = at(progress, untouched=untouched, trapped=trapped, kl_unigram=kl, best=best)
                text = title(badge(claims), claims, tile)
                assert len(text.split()) <= MAX_TITLE_WORDS, text


def test_a_law_at_another_temperature_and_one_that_fails_somewhere_are_titles():
    hot = Claim((MODEL,), "tempers", ("bigram",), 0.5, null=1.0, unit="temperature")
    claims = claims_of(behaviour=[*behaviour(0.7), hot])
    assert title(badge(claims), claims, None) == "Has the bigram, but is less sure than it should be"
    fails = Claim((MODEL,), "fails_at", ("bigram",), 3.0, unit="nats", where=mm.probing.Where(states=("2",)))
    claims = claims_of(behaviour=[*behaviour(1.0), fails])
    assert title(badge(claims), claims, None) == "Learned the bigram, but not after state 2"


P = np.full((4, 4), 0.1) + 0.6 * np.roll(np.eye(4), 1, axis=1)  # from a state to the next, mostly


def first_screen(table: np.ndarray) -> Headline:
    """Of a model whose logits are the logarithms of a table."""
    source = mm.Chain(P.tolist())
    run = mm.Run.from_model(direct_table(torch.tensor(np.log(table), dtype=torch.float32), 32), source=source)
    return headline(mm.probe(run, ["behaviour"], sequences=64))


def test_a_model_of_another_law_is_not_called_untrained():
    said = first_screen(P[[1, 2, 3, 0]])
    assert said.badge == "another law"
    assert said.title.endswith(", with a loss above the unigram's")
    assert first_screen(P).badge == "solved"


@pytest.mark.parametrize(
    ("apart", "badge", "title"),
    [(1e-3, "solved", "Learned the bigram"), (0.05, "partly", "9")],  # 99.9…% and some 98 % of the way
)
def test_a_bigram_has_learned_what_is_as_good_as_a_bigram(apart, badge, title):
    """Of order 2, but the state before the last hardly tells: as `Observed` may estimate it."""
    rows = np.array([[0.8, 0.2], [0.3, 0.7]])
    shift = apart * np.array([[[1, -1], [1, -1]], [[-1, 1], [-1, 1]]])
    source = mm.OrderK(kernel=(rows + shift).tolist())
    bigram = source.predictors()["bigram"].probabilities(np.array([[0, 1]]))[0]
    table = direct_table(torch.tensor(np.log(bigram), dtype=torch.float32), 32)
    said = headline(mm.probe(mm.Run.from_model(table, source=source), ["behaviour"], sequences=512))
    assert said.badge == badge
    assert said.title.startswith(title)


@pytest.mark.parametrize("name", ["walk", "trap", "induction"])
@pytest.mark.parametrize("steps", [[0], [0, 1]])
def test_a_run_is_untrained_at_its_step_0_whatever_else_is_probed(name, steps):
    result = mm.probe(mm.example(name), ["behaviour"], steps=steps, sequences=64)
    assert headline(at_step(result, 0)).badge == "untrained"


@pytest.mark.parametrize("steps", [[1], [0, 1]])
def test_only_a_lone_step_cannot_tell(steps):
    result = mm.probe(mm.example("walk"), ["behaviour"], steps=steps, sequences=64)
    of_an_lstm = replace(result, skipped={"dynamics": "its mixer is 'lstm'"})
    answers = [tile.answer for tile in headline(at_step(of_an_lstm, len(steps) - 1)).tiles]
    assert ("One checkpoint cannot tell" in answers) == (len(steps) == 1)


def test_a_lone_checkpoint_whose_step_is_not_known_is_not_called_untrained():
    walk = mm.example("walk")
    told = {"source": walk.source, "objective": walk.objective}
    lone = mm.Run.from_model(walk.model(step=0), **told)
    several = mm.Run.joined([lone, mm.Run.from_model(walk.model(step=50), **told, step=50)])
    badges = [
        headline(mm.probe(run, ["behaviour"], steps=[0], sequences=64)).badge for run in (lone, several)
    ]
    assert badges == ["at the unigram", "untrained"]


@pytest.mark.parametrize(
    ("probes", "note"),
    [
        (["behaviour"], "add alignment and attention to the probes."),
        (["behaviour", "attention"], "add alignment to the probes."),
        (["behaviour", "alignment", "attention"], ""),
    ],
)
def test_a_badge_that_the_circuit_could_change_says_which_probes_judge_it(probes, note):
    said = headline(mm.probe(mm.example("walk"), probes, sequences=64))
    assert said.badge == ("partly" if note else "solved")
    assert said.note.removeprefix(NOT_JUDGED) == note


def test_a_probe_of_the_circuit_that_failed_is_named_and_other_losses_have_no_note():
    result = mm.probe(mm.example("walk"), ["behaviour", "attention"], sequences=64)
    failed = replace(result, failed={"alignment": "ValueError: why"})
    assert headline(failed).note == f"{NOT_JUDGED}alignment failed."
    assert headline(replace(result, skipped={"alignment": "why"})).note == ""
    assert headline(mm.probe(mm.example("trap"), ["behaviour"], sequences=64)).note == ""  # nothing is right
    assert headline(mm.probe(mm.example("induction"), ["behaviour"], sequences=64)).note == ""


def test_a_model_that_nobody_trained_and_that_does_not_say_so_gets_a_title_that_is_true():
    """Random weights from elsewhere predict some law, which no title may call learned or untrained."""
    noise = np.random.default_rng(0).dirichlet(np.ones(4), size=4)
    said = first_screen(noise)
    assert said.badge == "another law"
    assert said.title.startswith("Closest to ")


def test_a_model_that_is_half_right_and_half_wrong_is_not_at_the_unigram():
    right = -(P[0] * np.log(P[0])).sum()

    def wrong(t: float) -> np.ndarray:
        return softmax(-t * np.log(P), axis=1)

    # Two states wrong by as much as two are right: the loss is the unigram's, log 4.
    t = brentq(lambda t: -(P[0] * np.log(wrong(t)[0])).sum() + right - 2 * np.log(4), 0.0, 10.0)
    said = first_screen(np.concatenate([P[:2], wrong(t)[2:]]))
    assert (said.badge, said.title) == ("partly", "Has the bigram, but not after states 2 and 3")
    assert first_screen(np.full((4, 4), 0.25)).badge == "at the unigram"
