"""Models cut, pruned, merged or probed on another source: what their pages told that was not so."""

import json

import numpy as np
import pytest
import torch
import xarray as xr
from mechmarkov.probes.induction.claims import carried
from mixed_models import LONG, N_CTX, P, lag, log_of, reading, with_direct_table
from models_of_new_kinds import by_pair, equal
from more_models import P4, mlps
from probing_cases import probe_quickly, run_of

from mechmarkov.claims.claim import Claim
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import content_table, direct_table
from mechmarkov.report.dashboard import read_dashboard
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.forms import formed
from mechmarkov.report.words.sentences import sentence, sentences
from mechmarkov.sources import Chain, DirichletChains

CHAIN, L, L4, OWN = Chain(P), log_of(P), log_of(P4), lag(1)
NONE = torch.zeros(3, 3)
SPARSE = np.array(
    [
        [0.5, 0.3, 0.2, 0.0, 0.0],
        [0.0, 0.4, 0.3, 0.3, 0.0],
        [0.0, 0.3, 0.0, 0.3, 0.4],
        [0.4, 0.0, 0.0, 0.3, 0.3],
        [0.3, 0.0, 0.4, 0.0, 0.3],
    ]
)


def told(*models, probes, source=CHAIN, sequences=64):
    steps = "all" if len(models) > 1 else "last"
    result = probe_quickly(run_of(*models, source=source), probes, sequences=sequences, steps=steps)
    screen = headline(result)
    return result, screen, {tile.question: tile for tile in screen.tiles}


# Attention


@pytest.mark.parametrize(("sharp", "token"), [(60.0, "previous token"), (3.0, "previous token")])
def test_of_two_tokens_a_head_reads_one(sharp, token):
    """It was said to look by token, as the query's own token is a key that it never reads."""
    model = reading([L], [[0, 0]], n_ctx=2)
    with torch.no_grad():
        model.blocks[0].attn.W_Q *= sharp / 60.0
    claims = told(model, probes=["attention"])[0].claims
    assert claims.first("attends_to", status="shown").object == (token,)
    assert not claims.where("attends_by")


def test_a_head_that_looks_by_token_still_does():
    claims = told(content_table(L4, N_CTX), probes=["attention"], source=Chain(P4))[0].claims
    assert claims.first("attends_by").object == ("tokens",)


# Laws


def test_a_loss_is_held_against_the_unigrams():
    """It was "perhaps above the unigram's (−41368.9% to 23428.5%)": the best law gains next to nothing."""
    copies = direct_table(5 * torch.eye(4), 3)
    result, screen, _ = told(copies, probes=["behaviour"], source=DirichletChains(n_states=4))
    assert "above the unigram's" in screen.title
    assert "perhaps" not in screen.title
    assert result.claims.first("reaches").status == "excluded"
    assert "Its expected loss is above the unigram's." in sentences(result.claims)


def test_a_loss_perhaps_above_has_no_share():
    """Shares of a way stood behind a sentence of a loss."""
    way = Claim(("model",), "is_on_the_way_to", ("in_context_bigram",), -0.5, (-1.2, 0.1), unit="share")
    assert sentence(way) == "Its expected loss is perhaps above the unigram's."


def off_by(nats):
    """The rows of a chain, each as far off as is said."""
    rows = []
    for row, far in zip(P4, nats, strict=True):
        low, high = 0.0, 1.0
        for _ in range(50):
            share = (low + high) / 2
            mixed = (1 - share) * row + share * np.roll(row, 1)
            low, high = (share, high) if (row * np.log(row / mixed)).sum() < far else (low, share)
        rows.append(mixed)
    return np.array(rows)


@pytest.mark.parametrize(("nearest", "is_told"), [(0.007, False), (0.0005, True)])
def test_a_row_near_by_chance_is_not_told(nearest, is_told):
    """One row was near, of rows that are off by more and less, and the title named it."""
    table = log_of(off_by([0.25, nearest, 0.065, 0.4]))
    _, screen, _ = told(direct_table(table, N_CTX), probes=["behaviour"], source=Chain(P4))
    assert (screen.title == "Has the bigram only after state 1") is is_told


# Parts


@pytest.mark.parametrize(("gain", "is_one"), [(0.0, False), (3.0, True)])
def test_a_head_that_writes_nothing_is_not_one(gain, is_one):
    """Its attention is an ideal head's, and its output was zeroed."""
    result, *_ = told(
        induction_pair(4, LONG, gain=gain), probes=["induction"], source=DirichletChains(n_states=4)
    )
    head = result.claims.first("is_induction_head")
    assert sentence(head).startswith(f"L1H0 {'is an' if is_one else 'attends like an'} induction head")
    assert formed(result.claims, ["induction"])["an induction head"] is is_one


def test_a_path_that_is_too_sure_carries_something():
    """It was said to carry nothing: KL is as large without it, as the head writes 1.6 times the law."""
    result, _, tiles = told(
        induction_pair(4, LONG, gain=3.0),
        probes=["behaviour", "induction", "ablation"],
        source=DirichletChains(n_states=4),
    )
    carries = result.claims.first("carries")
    assert (carries.status, carries.object) == ("excluded", ("in_context_bigram",))
    assert carries.holds("too sure")
    assert tiles["Where does it live?"].answer == "L0H0 → L1H0"


@pytest.mark.parametrize(("intact", "is_told"), [(0.002, False), (0.1, True)])
def test_only_what_is_off_is_too_sure(intact, is_told):
    """Without the path KL stays: at nearly nothing, as the rest has the law too, or far off."""
    cut = xr.DataArray([intact + 0.001], [("input", ["K"])])
    head = xr.Dataset({"kl_intact": intact, "kl_cut": cut, "kl_error": 0 * cut + 1e-4, "simpler_error": 0.01})
    attrs = {"reference": "in_context_bigram", "simpler": "in_context_unigram"}
    data = xr.Dataset({"kl_simpler": 0.2}, attrs=attrs)
    (claim,) = carried(data, head, ("L1H0",), ("L0H0",), along=("L1H0",))
    assert claim.status == "excluded"
    assert claim.holds("too sure") is is_told


def test_an_induction_head_on_a_cycle_is_told():
    """Lag and tokens explain all attention there, so that its score is an untrained one's, and edits tell."""
    cycle = Chain(np.roll(np.eye(4), 1, axis=1))
    result, *_ = told(induction_pair(4, 20, gain=12.0), probes=["induction"], source=cycle)
    head = result.claims.first("is_induction_head")
    assert head.status == "shown"
    assert "untrained" not in sentence(head)


def test_parts_that_cancel_are_in_the_picture():
    """The picture of a home that holds all of it had bars of zero only."""
    _, _, tiles = told(mlps(3 * L, -2 * L), probes=["storage"])
    assert float(tiles["Where does it live?"].bars[0].text) == pytest.approx(1, abs=0.02)


def test_a_title_names_all_that_is_needed_or_none():
    """The direct path is worth as much as the circuit that the title named."""
    model = with_direct_table(induction_pair(3, LONG, gain=1.0), 0.5 * L)
    _, screen, tiles = told(model, probes=["behaviour", "induction", "ablation"])
    assert "direct path" in tiles["Where does it live?"].answer
    assert "feeds" not in screen.title


@pytest.mark.parametrize("row", [[0.8, 0.08, 0.06, 0.06, 0.0], [0.05, 0.0, 0.05, 0.0, 0.9]])
def test_rows_are_the_laws_next_to_one_far_off(row):
    """A cosine over all rows is that of the row that is far off."""
    table = log_of(SPARSE)
    table[1] = log_of(np.array(row))
    result, *_ = told(direct_table(table, N_CTX), probes=["alignment"], source=Chain(SPARSE))
    matches = result.claims.first("matches")
    assert (matches.status, matches.condition("other rows").words) == ("shown", ("1",))
    assert matches.value < 0.8


def test_rows_that_are_mostly_off_are_not_the_laws():
    table = L4.clone()
    table[[1, 2, 3]] = L4[[1, 2, 3]].roll(1, 1)
    result, *_ = told(direct_table(table, N_CTX), probes=["alignment"], source=Chain(P4))
    assert result.claims.first("matches").status == "excluded"


# When


def test_what_was_there_at_the_start_is_told_of_many():
    """It began with the bigram, and the tile began with the uniform law."""
    steps = [direct_table(table, N_CTX) for table in (L, L.flip(1), L, NONE, L)]
    _, _, tiles = told(*steps, probes=["dynamics"])
    assert tiles["How did it get there?"].answer == "Bigram from the start, 3 more, bigram by step 40"


# Files


def test_a_law_that_fails_after_pairs_is_listed(tmp_path):
    """No report of such a model could be read by the index."""
    result, screen, _ = told(by_pair(equal(L), NONE), probes=["behaviour"])
    assert any(claim.where.pairs for claim in result.claims)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text(json.dumps(result.summary()), "utf-8")
    board = read_dashboard(tmp_path)
    assert not board.unread
    assert [run.headline for run in board.runs] == [screen.title]
