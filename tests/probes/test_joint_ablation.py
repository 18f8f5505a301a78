"""What parts are worth together, and what later parts change where one is cut."""

from functools import partial

import numpy as np
import pytest
import torch
from mechmarkov.probes.ablation.joint import DRAWS, resampled_interval
from models_by_hand import LOG_P
from probing_cases import P3, ask, probe_quickly, random_run, run_of
from scipy.special import ndtri, stdtrit

import mechmarkov as mm
from mechmarkov.interventions.ablate import ablate
from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import cancelling_tables, value_table
from mechmarkov.probes import ablation
from mechmarkov.probing import Subject
from mechmarkov.probing.effects import sequences_for
from mechmarkov.sources import Chain

answers = partial(ask, ablation.probe)


def repaired(n_ctx: int = 8) -> HookedDecoder:
    """A head that writes the bigram, and a later MLP that writes it where the head does not."""
    n = 3
    config = value_table(LOG_P, n_ctx).config.model_copy(
        update={"attn_only": False, "act_fn": "relu", "d_mlp": n, "d_model": 3 * n + n_ctx, "d_vocab_out": n}
    )
    decoder, head = HookedDecoder(config), value_table(LOG_P, n_ctx)
    with torch.no_grad():
        for name, value in head.state_dict().items():
            decoder.state_dict()[name][tuple(slice(size) for size in value.shape)].copy_(value)
        # The head marks the state too, which shuts the MLP's unit of it; at the head's mean it opens.
        decoder.get_parameter("blocks.0.attn.W_O")[0, :n, 2 * n + n_ctx :] = torch.eye(n)
        decoder.get_parameter("blocks.0.mlp.W_in")[:n] = torch.eye(n)
        decoder.get_parameter("blocks.0.mlp.W_in")[2 * n + n_ctx :] = -torch.eye(n)
        decoder.get_parameter("blocks.0.mlp.W_out")[:, n : 2 * n] = LOG_P
    return decoder


def test_what_later_components_change_is_said():
    data, scores, claims = answers(run_of(repaired()))
    last = data.isel(step=-1)
    direct = float(last["path_effect"].sel(path="L0H0 → logits", path_kind="mean", measure="loss"))
    total = float(last["effect"].sel(component="L0H0", kind="mean", measure="loss"))
    assert float(last["direct_effect"].sel(part="L0H0")) == pytest.approx(direct, abs=1e-6)
    assert scores["self_repair"].value == pytest.approx(direct - total, abs=1e-6)
    assert scores["self_repair"].interval[0] > 0
    repairs = claims.first("repairs", subject="L0H0", status="shown")
    assert repairs.value == pytest.approx(direct - total, abs=1e-6)
    assert repairs.condition("cut from the logits only").value == pytest.approx(direct, abs=1e-6)
    _, alone, others = answers(run_of(value_table(LOG_P, n_ctx=8)))
    assert alone["self_repair"].value == pytest.approx(0, abs=1e-6)
    assert others.first("repairs") is None


def test_intervals_of_the_largest_hold_for_all_parts_at_once():
    """Of parts in the last layer the direct path is all there is: one effect, judged alone and among them."""
    last = answers(run_of(random_run("plain").model()), sequences=256)[0].isel(step=-1)
    heads = ["L1H0", "L1H1"]
    alone = last.sel(component=heads, kind="mean", measure="loss")
    among = last.sel(part=heads)
    np.testing.assert_allclose(among["direct_effect"], alone["effect"], atol=1e-6)
    wider = (among["direct_effect_high"] - among["direct_effect_low"]).values
    wider /= (alone["effect_high"] - alone["effect_low"]).values
    expected = ndtri(1 - 0.025 / last.sizes["part"]) / ndtri(0.975)
    np.testing.assert_allclose(wider, expected, rtol=0.1)  # ends of 1000 draws
    assert expected > 1.2


def two_heads(P: np.ndarray, first: float, second: float) -> HookedDecoder:
    """Each writes so much of log P."""
    decoder = cancelling_tables(torch.tensor(np.log(P)).float(), n_ctx=8, gain=1.0)
    with torch.no_grad():
        decoder.get_parameter("unembed.W_U")[:3] = 0
        written = decoder.get_parameter("blocks.0.attn.W_O")
        written[1] = second * written[0]
        written[0] *= first
    return decoder


@pytest.mark.parametrize("first", [0.5, 0.8])
def test_two_that_add_do_not_stand_in_for_each_other(first):
    """KL is convex in the logits, so that both cost more than one and the other, whatever they share."""
    data, scores, claims = answers(run_of(two_heads(P3, first, 1 - first)))
    last = data.isel(step=-1).sel(pair="L0H0 + L0H1")
    assert float(last["redundancy"]) > max(0.01, 0.25 * float(last["joint_effect"]))
    assert scores["redundancy"].interval[0] > 0
    assert claims.first("stands_in_for") is None


def test_two_that_stand_in_for_each_other_are_redundant():
    """Two heads with the table, and a softmax that saturates: one alone is nearly enough."""
    sticky = Chain(0.997 * np.eye(3) + 0.001)
    run = run_of(two_heads(sticky.P, 1.0, 1.0), source=sticky)
    data, scores, claims = answers(run)
    last = data.isel(step=-1)
    model, batch = run.model(), Subject.of(run, sequences=64).batch
    with ablate(model, ["L0H0", "L0H1"], kind="mean"):
        both = measures_of_chain(model, batch)
    joint = float(both - measures_of_chain(model, batch))
    assert float(last["joint_effect"].sel(pair="L0H0 + L0H1")) == pytest.approx(joint, rel=1e-5)
    single = last["effect"].sel(component=["L0H0", "L0H1"], kind="mean", measure="loss").sum()
    more = float(last["redundancy"].sel(pair="L0H0 + L0H1"))
    assert more == pytest.approx(joint - float(single), rel=1e-4)
    assert claims.first("is_needed_most").subject == ("L0H0", "L0H1")
    pair = claims.first("stands_in_for")
    assert (*pair.subject, *pair.object) == ("L0H0", "L0H1")
    assert scores["redundancy"].interval[0] > 0


def measures_of_chain(model: HookedDecoder, batch) -> float:
    logits = model(batch.tokens).detach().double().log_softmax(-1)
    return -logits.gather(-1, batch.targets[..., None]).mean()


@pytest.mark.parametrize("part", ["L0H1", "L1.mlp", "direct"])
def test_drawn_sequences_are_passes_of_their_own(part):
    """The interval from passes over the drawn sequences, one after the other, without anything kept."""
    run = random_run("LN and MLP", n_ctx=12)
    subject = Subject.of(run, sequences=16)
    batch, model = sequences_for(subject), subject.decoder[-1]

    def losses(keep: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            chosen = model(batch.tokens[keep]).log_softmax(-1).gather(-1, batch.targets[keep][..., None])
        return -chosen.squeeze(-1).double().mean(-1).numpy()

    clean, n = losses(np.arange(len(batch.tokens))), len(batch.tokens)
    draws = np.random.default_rng(0).integers(n, size=(DRAWS, n))
    with ablate(model, part, kind="mean"):
        whole = (losses(np.arange(n)) - clean).mean()
        effects = [(losses(keep) - clean[keep]).mean() for keep in draws]
    low, high = resampled_interval(subject, batch, part)
    reach = stdtrit(DRAWS - 1, 0.975) * np.std(effects, ddof=1)
    ends = [whole - reach - max(0, np.mean(effects) - whole), whole + reach]
    np.testing.assert_allclose([low, high], ends, atol=1e-5)


@pytest.mark.parametrize(("n", "n_ctx"), [(2, 24), (2, 20), (3, 24)])
def test_a_mean_that_a_sharp_reader_amplifies_shows_no_need(n, n_ctx):
    """Told was "L0H1 is needed: 0.118 nats (0.091 to 0.147)" of what costs −0.007 with an exact mean."""
    model = induction_pair(n, n_ctx, lags=(1, 2))
    source = mm.DirichletChains(n_states=n, order=2, start="uniform")
    result = probe_quickly(run_of(model, source=source), ["ablation"], sequences=256)
    fresh = source.sample(8192, n_ctx, generator=torch.Generator().manual_seed(5))
    laws = torch.from_numpy(source.best().probabilities(fresh[:512].numpy()))

    def loss():
        return float(-(laws * model(fresh[:512]).log_softmax(-1)).sum(-1).mean())

    for part in ("L0H0", "L0H1"):
        with torch.no_grad():
            clean = loss()
            with ablate(model, part, kind="mean", reference=fresh[512:]):
                assert loss() - clean < 1e-3
        assert result.claims.first("is_needed", subject=part, probe="ablation").status != "shown"
