"""Heads that feed an induction head by its queries are named, and no head is where the embedding does."""

import torch
from mechmarkov.probes.induction.circuit_told import circuit_of
from probing_cases import claims_of, run_of, subject_of

from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import SHARP
from mechmarkov.probes import induction
from mechmarkov.sources import DirichletChains

REDRAWN = DirichletChains(n_states=3, start="uniform")
N_CTX = 16


def asked(decoder):
    data = induction.probe.measure(subject_of(run_of(decoder, source=REDRAWN), sequences=64))
    return claims_of(induction.probe, data, None), data


@torch.no_grad()
def pair_that_asks_by_a_head() -> HookedDecoder:
    """An induction pair whose query comes from a head on the current token and not from the embedding."""
    decoder = induction_pair(3, N_CTX, lags=(1, 2), gain=2.3)
    first, second = (block.attn for block in decoder.blocks)
    position = 3 + torch.arange(N_CTX)
    first.W_Q[1, position] = 0.0
    first.W_Q[1, position, torch.arange(N_CTX)] = SHARP  # head 1 carries the current token over
    states, carried = torch.arange(3), 3 + N_CTX + 3
    second.W_Q[0, : carried + 3, :6] = 0.0
    second.W_Q[0, carried + states, states] = SHARP
    second.W_K[0, :, 3:6] = 0.0
    return decoder


def test_a_head_that_asks_is_named_next_to_the_one_that_answers():
    said, _ = asked(pair_that_asks_by_a_head())
    by_input = {
        claim.condition("through").words: claim.subject for claim in said.where("feeds", status="shown")
    }
    assert by_input == {("keys",): ("L0H0",), ("queries",): ("L0H1",)}
    fed = [claim.subject for claim in circuit_of(said) if claim.relation == "feeds"]
    assert fed == [("L0H0",), ("L0H1",)]


def test_a_query_from_the_embedding_names_no_head():
    said, data = asked(induction_pair(3, N_CTX))
    assert [claim.condition("through").words for claim in said.where("feeds")] == [("keys",)]
    assert float(data["query_left"].isel(step=-1).sel(estimate="value")) > 0.9
