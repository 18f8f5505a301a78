"""Parts of what is hidden: models set by hand that hold both, and that hold one of them."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from mechmarkov.probes.belief import probe
from mechmarkov.probes.belief.parts import laws_of_values, overlaps, r2_of_parts
from probing_cases import probe_quickly, run_of

import mechmarkov as mm
from mechmarkov.bench.circuits import hidden_belief
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.sentences import sentence

ONE = {"transitions": [[0.9, 0.1], [0.2, 0.8]], "emissions": [[0.8, 0.2], [0.3, 0.7]]}
OTHER = {"transitions": [[0.7, 0.3], [0.4, 0.6]], "emissions": [[0.9, 0.1], [0.2, 0.8]]}
E = [[0.9, 0.1], [0.1, 0.9]]
STAYS, TURNS = ({"transitions": rows, "emissions": E} for rows in (E, E[::-1]))
MIXTURE = mm.sources.HiddenMixture(tasks=[STAYS, TURNS])
FACTORED = mm.sources.FactoredHiddenMarkov(factors=[ONE, OTHER])


def beliefs(n=400):
    tokens = FACTORED.sample(n, 5, generator=torch.Generator().manual_seed(0)).numpy()
    return tokens, FACTORED.beliefs(tokens)


@cache
def probed(**options):
    run = run_of(hidden_belief(MIXTURE, 5, **options), source=MIXTURE)
    return probe_quickly(run, ["belief"])["belief"]


def tile(result):
    return next(one for one in headline(result).tiles if one.question == "Where does it live?")


def test_a_model_that_holds_the_belief_tells_each_part():
    result = probed()
    for part in ("task", "state"):
        assert result.scores[f"part_r2_{part}"].value == pytest.approx(1, abs=1e-3)
        assert f"part_forced_kl_{part}" not in result.scores  # a known task tells of the state
    claims = [claim for claim in result.claims if claim.relation == "reads_part"]
    assert [claim.object[0] for claim in claims] == ["task", "state"]
    assert all(claim.subject == ("L0",) for claim in claims)


def test_a_model_without_the_belief_tells_less_of_the_task():
    result = probed(carries=False, reads=False)
    assert result.scores["part_r2_task"].value < 0.9


@pytest.mark.parametrize(("chance", "status"), [(-1.0, "shown"), (0.5, "open"), (1.0, "excluded")])
def test_a_part_is_read_if_more_than_from_fresh_models(chance, status):
    result, value, error = probed(), 0.4, 0.05
    data = result.data.assign(part_r2=0 * result.data["part_r2"] + value)
    data = data.assign(part_r2_error=0 * data["part_r2_error"] + error)
    null = (-1.0, -1.0, value + (chance - 0.5) * 8 * error)
    scores = {**result.scores, "part_r2_task": replace(result.scores["part_r2_task"], null=null)}
    claim = next(one for one in probe.claims(data, scores) if one.object == ("task",))
    assert claim.status == status
    assert ("no better than in untrained models" in sentence(claim)) == (status == "excluded")


def test_what_is_carried_and_not_followed_comes_after_what_is_needed():
    runs = [run_of(hidden_belief(MIXTURE, 5, reads=reads), source=MIXTURE) for reads in (True, False)]
    carried, unused = (probe_quickly(run, ["behaviour", "belief", "ablation"]) for run in runs)
    assert tile(carried).answer == "The stream after layer 0: the belief over hidden tasks and states"
    ours, theirs = (probe.headline(result.claims)[0] for result in (carried, unused))
    assert ours.rank < 5 < theirs.rank  # parts without which the loss rises have 5
    assert tile(unused).sentence.startswith("Predictions do not follow")


def test_a_trained_model_follows_one_factor_alone():
    recipe = mm.load_recipe("factored-chains").with_set(["steps=250", "checkpoints=[0]", "data.batch=64"])
    result = probe_quickly(mm.train(recipe, seed=0), ["belief"])["belief"]
    for part in ("factor_0", "factor_1"):
        forced = result.scores[f"part_forced_kl_{part}"]
        clean = float(result.data["part_clean_kl"].sel(part=part.replace("_", " "))[-1])
        assert forced.value < 0.25 * min(forced.null, clean)
    assert result.scores["part_overlap_factor_0_factor_1"].value < 0.1


def test_parts_of_an_exact_reading_are_exact_and_of_a_mean_none():
    _, exact = beliefs()
    mean = np.broadcast_to(exact.mean((0, 1)), exact.shape)
    r2, _ = r2_of_parts(np.stack([exact, mean]), exact, FACTORED.parts)
    np.testing.assert_allclose(r2, [[1, 0], [1, 0]], atol=1e-9)


def test_directions_of_two_factors_are_orthogonal_or_one():
    _, exact = beliefs(4_000)
    first, second = (exact @ values for values in FACTORED.parts.values())
    apart = np.concatenate([first[..., :1], second[..., :1]], -1)
    assert overlaps(apart, exact, FACTORED.parts)[0] < 0.01
    together = first[..., :1] + second[..., :1]
    assert overlaps(together, exact, FACTORED.parts)[0] == pytest.approx(1)


def test_a_known_factor_leaves_the_belief_of_the_other():
    """Against the product of one factor's row and the other's own prediction."""
    tokens, exact = beliefs(10)
    laws = FACTORED.laws_of_hidden(tokens)
    given = laws_of_values(exact, laws, FACTORED.parts["factor 0"])
    first, second = FACTORED.factors
    rows = first.T @ first.E  # [value, token of the first]
    other = second.best().probabilities(tokens % 2)
    expected = np.einsum("vi,brj->brvij", rows, other).reshape(given.shape)
    np.testing.assert_allclose(given, expected, atol=1e-12)
