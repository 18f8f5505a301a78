"""Words about several runs together: as on their own pages, and of sources of one title."""

from functools import partial

import numpy as np
import pytest
from mixed_models import LONG, N_CTX, P, lag, log_of, reading
from more_models import P4
from probing_cases import probe_quickly, run_of

from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import direct_table, mlp_table, value_table
from mechmarkov.models.constructions.n_grams import k_gram_counter
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.differences import differences, settings
from mechmarkov.sources import Chain, DirichletChains, LaggedChain, OrderK

L, L4 = log_of(P), log_of(P4)
OTHER = OrderK([[[0.7, 0.3], [0.3, 0.7]], [[0.1, 0.9], [0.9, 0.1]]])
SAME_ROWS = np.array([[0.6, 0.3, 0.1]] * 3)
REDRAWN = DirichletChains(n_states=4)


def side_by_side(probes=("behaviour",), **runs):
    """Returns what is told of models on their sources, and their titles."""
    results = {
        name: probe_quickly(run_of(make(), source=source), [*probes], sequences=64)
        for name, (make, source) in runs.items()
    }
    screens = {name: headline(result) for name, result in results.items()}
    told = differences(
        {name: screen.badge for name, screen in screens.items()},
        {name: result.claims for name, result in results.items()},
        {name: screen.named for name, screen in screens.items()},
    )
    return told + settings({name: one.metadata for name, one in results.items()}), screens


def test_what_is_the_best_law_of_one_only_is_not_learned_by_both():
    bigram = partial(direct_table, log_of(OTHER.P), N_CTX), OTHER
    told, screens = side_by_side(a=bigram, b=(partial(direct_table, L4, N_CTX), Chain(P4)))
    assert screens["a"].badge != screens["b"].badge
    assert told.startswith("a ended with the bigram; b learned the bigram. They differ in source (Order-2")


@pytest.mark.parametrize(
    ("run", "did"),
    [
        ((partial(direct_table, log_of(SAME_ROWS), N_CTX), Chain(SAME_ROWS)), "ended at the bigram, which"),
        ((partial(induction_pair, 4, LONG, gain=2.0), REDRAWN), "ended closest to the in-context bigram"),
    ],
)
def test_a_run_without_a_badge_is_told_as_on_its_page(run, did):
    """It "cannot be judged", next to a page that says which law it is at, or closest to."""
    told, screens = side_by_side(a=run, b=(partial(direct_table, L, N_CTX), Chain(P)))
    assert screens["a"].badge is None
    assert told.startswith(f"a {did}")


def test_a_wide_interval_is_told_as_in_the_title():
    told, screens = side_by_side(
        a=(partial(k_gram_counter, 4, LONG, order=1), REDRAWN), b=(partial(direct_table, L, N_CTX), Chain(P))
    )
    way = screens["a"].title.partition(" from ")[0]
    assert way.endswith("of the way")
    assert told.startswith(f"a came {way} to the in-context bigram;")


@pytest.mark.parametrize(
    ("sources", "title"),
    [
        ((Chain(P4), Chain(P4[:, ::-1])), "Chain on 4 states"),
        ((LaggedChain(P4, 2), LaggedChain(P4[::-1], 2)), "Chain on 4 states with the parent at lag 2"),
    ],
)
def test_sources_of_one_title_are_told_apart(sources, title):
    one, other = ((partial(direct_table, 0 * L4, N_CTX), source) for source in sources)
    told, _ = side_by_side(a=one, b=other)
    assert told.endswith(f" They differ in source (each is “{title}”).")
    assert side_by_side(a=one, b=one)[0].endswith("uniform law.")


@pytest.mark.parametrize(
    ("other", "how"),
    [
        (lambda: reading([0 * L4, L4], [lag(1)] * 2), "."),  # its heads exchanged
        (lambda: reading([0.5 * L4, 0.5 * L4], [lag(1)] * 2), "."),
        (lambda: reading([L4, 0 * L4], [lag(1)] * 2), ", through the same parts (L0H0)."),
        (partial(mlp_table, L4, N_CTX), ", through different parts."),
        (partial(direct_table, L4, N_CTX), ", through different parts."),
        (lambda: reading([0.5 * L4], [lag(1)], direct=0.5 * L4), "."),
    ],
)
def test_heads_of_a_layer_are_not_told_apart_by_their_names(other, how):
    def one():
        return reading([L4, 0 * L4], [lag(1)] * 2)

    chain = Chain(P4)
    told, screens = side_by_side(("behaviour", "attention", "storage"), a=(one, chain), b=(other, chain))
    assert screens["a"].named == ("L0H0",)
    assert told.startswith(f"Both runs learned the bigram{how}")


def test_a_training_that_differs_is_told():
    hashes = [{"training": "4f0a"}, {"training": "b71c"}, {"training": "4f0a"}]
    runs = {str(i): {"source": "Chain on 3 states", "fingerprints": each} for i, each in enumerate(hashes)}
    assert settings(runs) == " They differ in training."
    assert settings({name: run for name, run in runs.items() if name != "1"}) == ""


def test_value_tables_of_one_layer_are_in_one_part():
    run = (partial(value_table, L, N_CTX), Chain(P))
    told, _ = side_by_side(("behaviour", "attention", "storage"), a=run, b=run)
    assert told == "Both runs learned the bigram, through the same parts (L0H0)."
