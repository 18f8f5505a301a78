"""Models of known truth whose page said otherwise: heads that divide work, corrections, spikes, opposites."""

import numpy as np
import pytest
import torch
from mixed_models import LONG, N_CTX, induction_within, lag, log_of, reading
from more_models import OWN, P4, only_after, stationary
from probing_cases import probe_quickly, run_of

from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.models.constructions.n_grams import n_gram_model
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.sentences import sentence, sentences
from mechmarkov.sources import Chain, ChainMixture, DirichletChains, OrderK

L4, CHAIN = log_of(P4), Chain(P4)
STICKY = np.array([[0.9, 0.1], [0.1, 0.9]])
NOTHING = torch.zeros(4, 4)
P5 = np.array(
    [
        [0.55, 0.2, 0.15, 0.06, 0.04],
        [0.1, 0.1, 0.6, 0.1, 0.1],
        [0.05, 0.45, 0.1, 0.3, 0.1],
        [0.3, 0.05, 0.05, 0.1, 0.5],
        [0.2, 0.15, 0.25, 0.35, 0.05],
    ]
)


def told(*models, source=CHAIN, probes=("behaviour",), sequences=64):
    run = run_of(*models, source=source)
    steps = "all" if len(models) > 1 else "last"
    result = probe_quickly(run, list(probes), sequences=sequences, steps=steps, drawn=True)
    screen = headline(result)
    return result, screen, {tile.question: tile for tile in screen.tiles}


def lives(tiles):
    return tiles["Where does it live?"]


# Heads that share work


@torch.no_grad()
def two_heads_by_state():
    """Build two induction heads of which each matches after two of four states."""
    model = induction_pair(4, LONG, gain=4.0, readers=2)
    second = model.blocks[1].attn
    for head, others in enumerate(([2, 3], [0, 1])):
        second.W_Q[head, others, :4] = 0.0
    return model


def test_each_induction_head_has_its_own_states():
    """The claim of the first head's states named both."""
    result, *_ = told(two_heads_by_state(), source=DirichletChains(n_states=4), probes=["induction"])
    by_head = {claim.subject: claim for claim in result.claims.where("is_induction_head", status="excluded")}
    assert by_head[("L1H0",)].where.states == ("2", "3")
    assert by_head[("L1H1",)].where.states == ("0", "1")
    assert sentence(by_head[("L1H1",)]) == "L1H1 finds matches after 2 and 3, not after 0 and 1."


@torch.no_grad()
def near_and_far():
    """Build two induction heads: one of near matches, and one of those far away."""
    near, far = (induction_within(3, LONG, least, most, 1.5) for least, most in ((0, 6), (7, LONG)))
    model = HookedDecoder(DecoderConfig(**near.config.model_dump() | {"n_heads": 2}))
    for parameter in model.parameters():
        parameter.zero_()
    for name in ("embed.W_E", "pos_embed.W_pos", "unembed.W_U"):
        model.get_parameter(name).copy_(near.get_parameter(name))
    for layer, heads in ((0, [near]), (1, [near, far])):
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            for head, other in enumerate(heads):
                whole = other.get_parameter(f"blocks.{layer}.attn.{name}")
                model.get_parameter(f"blocks.{layer}.attn.{name}")[head] = whole[0]
    return model


def test_a_weaker_induction_head_is_told_too():
    result, *_ = told(near_and_far(), source=DirichletChains(n_states=3), probes=["induction"])
    head = result.claims.first("is_induction_head")
    assert head.subject == ("L1H0",)
    assert head.condition("moved less").words == ("L1H1",)
    assert "L1H1 is moved likewise" in " ".join(sentences(result["induction"].claims))


def test_a_circuit_of_three_tokens_is_a_circuit():
    """It was judged by the bigram in context, from which the law of two tokens is farther with it."""
    model = induction_pair(2, LONG, lags=(1, 2), gain=4.0)
    source = DirichletChains(n_states=2, order=2, start="uniform")
    _, _, tiles = told(model, source=source, probes=["behaviour", "induction", "ablation"])
    assert lives(tiles).answer.startswith("L0H0 → L1H0")


def test_of_equal_heads_none_is_worth_most():
    """Three heads write one table, and a norm takes their number away."""
    n, at = 4, torch.arange(N_CTX)
    shape = {"n_layers": 1, "d_model": 2 * n + N_CTX, "n_ctx": N_CTX, "d_head": N_CTX, "n_heads": 3}
    model = HookedDecoder(
        DecoderConfig(**shape, d_vocab=n, attn_only=True, use_attn_scale=False, normalization_type="LN")
    )
    rows = L4 - L4.mean(1, keepdim=True)
    rows = rows / rows.norm(dim=1, keepdim=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.blocks[0].ln1.w.fill_(1.0)
        model.ln_final.w.fill_(1.0)
        model.embed.W_E[:, :n] = 0.1 * torch.eye(n)
        model.get_parameter("pos_embed.W_pos")[:, 2 * n :] = 0.1 * torch.eye(N_CTX)
        attn = model.blocks[0].attn
        attn.W_Q[:, 2 * n + at, at] = 60.0
        attn.W_K[:, 2 * n + at, at] = 1.0
        attn.W_V[:, :n, :n] = torch.eye(n)
        attn.W_O[:, :n, n : 2 * n] = 200 * rows
        model.get_parameter("unembed.W_U")[n : 2 * n] = 0.4 * torch.eye(n)
    result, *_ = told(model, probes=["ablation"])
    most = result.claims.first("is_needed_most")
    assert most.subject == ("L0H0", "L0H1", "L0H2")
    assert most.holds("group")
    assert most.condition("largest of them").words == ()
    assert "is worth most of them" not in " ".join(sentences(result["ablation"].claims))


# What corrects others, does harm, or says the opposite


def test_a_part_that_corrects_works_against_nothing():
    """The direct path is sharply wrong after one state, and the MLP puts that right."""
    table = log_of(P5)
    wrong = table.clone()
    wrong[2] = 2 * table[2].flip(0)
    model = reading([0 * table], [OWN], direct=wrong, mlp=only_after(table - wrong, [2]))
    result, screen, tiles = told(model, source=Chain(P5), probes=["behaviour", "storage"])
    against = result.claims.first("works_against")
    assert against.subject == ("L0.mlp",)
    assert against.condition("corrects").value > 0.01
    assert "corrects the others" in sentence(against)
    assert lives(tiles).answer == "The direct path"
    assert "others take away" not in lives(tiles).sentence
    assert screen.badge == "solved"


def test_what_does_harm_is_named():
    model = induction_pair(4, LONG, gain=-5.0)
    _, _, tiles = told(model, source=DirichletChains(n_states=4), probes=["behaviour", "ablation"])
    assert lives(tiles).answer == "In none: L1H0 does harm"
    assert "without L1H0 the loss falls by" in lives(tiles).sentence


@pytest.mark.parametrize("P", [P4, STICKY])
def test_an_opposite_does_not_come_nearest(P):
    result, *_ = told(direct_table(-log_of(P), N_CTX), source=Chain(P), probes=["alignment"])
    assert "the direct path has its opposite" in result["alignment"].verdict


def test_what_is_needed_is_told_among_noise():
    """The direct path is right, and a head adds so much noise that no part holds the bigram."""
    noise = torch.tensor(np.random.default_rng(3).normal(size=(4, 4)) * 3).float()
    model = reading([noise], [None], direct=L4)
    result, _, tiles = told(model, probes=["behaviour", "storage", "ablation"])
    assert result.claims.first("stores").status == "excluded"
    assert lives(tiles).answer == "The direct path"


# Laws that a model has, or only seems to have


def test_a_constant_law_has_no_states():
    """After state 0 it is right by chance: it says the same after state 1."""
    result, screen, _ = told(direct_table(log_of(STICKY[[0, 0]]), N_CTX), source=Chain(STICKY))
    assert result.claims.first("fails_at") is None
    assert screen.badge == "another law"


def test_whoever_reads_a_token_is_not_uniform():
    """All probabilities are within 0.01 nats of uniform, and the likeliest state is the right one."""
    flat = torch.zeros(4, 4)
    flat[torch.arange(4), L4.argmax(1)] = 0.3
    result, screen, tiles = told(direct_table(flat, N_CTX))
    like = result.claims.first("imitates", object="uniform")
    assert like.value < 0.01
    assert like.status == "excluded"
    assert "has the uniform law" not in screen.title
    assert tiles["What has it learned?"].answer == "Closest to the uniform law"


def test_all_that_a_lesser_law_needs_is_its_home():
    """The 3-gram of a chain of order 3: the first position knows one token."""
    kernel = np.random.default_rng(7).dirichlet([0.4, 0.4], size=(2, 2, 2)).clip(0.02)
    source = OrderK((kernel / kernel.sum(-1, keepdims=True)).tolist())
    model = n_gram_model(_of_two_tokens(np.array(source.kernel)), 20)
    _, screen, tiles = told(model, source=source, probes=["behaviour", "storage", "ablation"])
    assert screen.title == "Has the 3-gram, but not at position 0"
    assert lives(tiles).answer == "L0H0, L0H1 and the MLP of layer 0"  # not where it is written only


def _of_two_tokens(kernel):
    """Returns the law of the next of two states given two, of a stationary chain of order 3."""
    histories = np.zeros((8, 8))
    for i, (a, b, c) in enumerate(np.ndindex(2, 2, 2)):
        histories[i, [(4 * b + 2 * c) % 8, (4 * b + 2 * c + 1) % 8]] = kernel[a, b, c]
    weighed = stationary(histories).reshape(2, 2, 2)[..., None] * kernel
    return weighed.sum(0) / weighed.sum(0).sum(-1, keepdims=True)


def test_what_loses_to_chance_is_told():
    """Rows of other states, six times as sure."""
    result, screen, tiles = told(direct_table(6 * L4[[2, 3, 1, 0]], N_CTX))
    assert result.claims.first("is_right").condition("less than chance").value == 0.25
    assert "less often than by chance (25.0%)" in tiles["What has it learned?"].sentence
    assert "above the uniform law's" in screen.title


def test_a_wide_share_is_told_by_its_ends():
    """The commoner one of two chains: how often the other one comes differs between samples."""
    source = ChainMixture(chains=(P5.tolist(), P5[::-1].tolist()), weights=(0.8, 0.2))
    result, screen, _ = told(direct_table(log_of(P5), 16), source=source)
    low, high = result.claims.first("is_on_the_way_to").interval
    assert high - low > 0.2
    assert screen.title.startswith(f"{low:.0%} to {high:.0%} of the way from")


# Where a head looks, and what came when


def test_a_head_of_one_position_is_told():
    fixed = [min(4, at) for at in range(N_CTX)]
    result, *_ = told(reading([L4], [fixed]), probes=["attention", "program"])
    assert result["attention"].verdict == "L0H0 gives position 4 100% of the attention of later ones."
    looks = result.claims.first("explains", subject="tables from weights")
    assert looks is None or looks.condition("looks up").holds is None


@pytest.mark.parametrize("k", [1, 3])
def test_a_head_of_one_lag_has_no_position(k):
    result, *_ = told(reading([L4], [lag(k)]), probes=["attention"])
    assert all(not claim.condition("at position") for claim in result.claims.where("attends_to"))


def test_a_law_on_its_way_loses_nothing():
    """Between the unigram and the bigram KL from the unigram is larger than the uniform law's."""
    table, pi = log_of(P5), log_of(stationary(P5)).repeat(5, 1)
    tables = [0 * table, pi, 0.75 * pi + 0.25 * table, table]
    models = [direct_table(one, N_CTX) for one in tables]
    result, *_ = told(*models, source=Chain(P5), probes=["behaviour", "dynamics"])
    progress = result["dynamics"].data["progress"].sel(event="unigram").values
    assert progress[2] < 0.5 < progress[3]
    assert result.claims.first("came_by", object="unigram").condition("lost again") is None
    assert result.claims.first("was_lost") is None


def test_what_is_lost_and_regained_is_said_once():
    tables = [t * L4 for t in (0.0, 1.0, 0.0, 1.0)]
    result, *_ = told(*(direct_table(t, N_CTX) for t in tables), probes=["behaviour", "dynamics"])
    said = " ".join(sentences(result["dynamics"].claims))
    assert "Halfway to the bigram between steps 0 and 10, lost later and regained." in said
    assert "The unigram is there at the last step" not in said


def test_a_spike_does_not_hide_the_start():
    tables = [t * L4 for t in (1.0, 1.0, -2.0, 1.0)]
    _, _, tiles = told(*(direct_table(t, N_CTX) for t in tables), probes=["behaviour", "dynamics"])
    assert tiles["How did it get there?"].answer.startswith("Bigram from the start, ")
