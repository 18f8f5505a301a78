"""Programs read from the weights: run as a loop over tokens runs them, and compared with the model."""

import dataclasses

import numpy as np
import pytest
import torch
from mechmarkov.probes.induction.recorded import INDUCTION
from mechmarkov.probes.program import extraction, selectors
from mechmarkov.probes.program.extraction import Program, composed_tables, contributions, extract, parts
from mechmarkov.probes.program.match_mass import MATCH_MASS
from mechmarkov.probes.program.measure import compare
from models_by_hand import LOG_P
from probing_cases import CHAIN, P3, RAW_LOG, claims_of, config_of, random_run, run_of, subject_of
from scipy.special import softmax

import mechmarkov as mm
from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.lookup_tables import direct_table, value_table
from mechmarkov.objectives import Objective
from mechmarkov.probes import program
from mechmarkov.probing import Subject
from mechmarkov.probing.batch import draw
from mechmarkov.probing.recording import ATTENTION, SCORES


def scores(found, batch, member):
    by_part = [sum(contributions(found, part, member)) for _, part in parts(batch)]
    return found.base[member] + np.concatenate(by_part)


def by_hand(found: Program, batch, member: int) -> np.ndarray:
    """A program's scores, token by token."""

    def attention(path, b, read):
        """Weight on each history position, for the prediction that knows `known` last."""
        layer, head = int(path[1]), int(path[3])
        known = int(batch.known[read])
        x = batch.history[b].tolist()
        weight = {}
        for key in range(known + 1):
            w = found.lag_weight[member, layer, head, known + 1 - key]
            if key >= 1 and x[key - 1] == x[known]:
                w = w * np.exp(found.match_bonus[member, layer, head])
            weight[key] = w
        total = sum(weight.values())
        if batch.parent_lag == 1:
            total += found.lag_weight[member, layer, head, 0]
        return {key: w / total for key, w in weight.items()}

    n, n_read = len(batch.tokens), len(batch.read)
    out = np.tile(found.base[member], (n, n_read, 1)).astype(float)
    for b in range(n):
        x = batch.history[b].tolist()
        for read in range(n_read):
            for path, tables in found.tables.items():
                table = tables[member]
                if "→" in path:
                    first, second = path.split("→")
                    for key, w in attention(second, b, read).items():
                        for other, v in attention(first, b, key).items():
                            out[b, read] += w * v * table[x[other]]
                elif "H" in path:
                    for key, w in attention(path, b, read).items():
                        out[b, read] += w * table[x[key]]
                else:
                    out[b, read] += table[x[int(batch.known[read])]]
    return out


@pytest.mark.parametrize(
    ("shape", "objective"),
    [
        ("plain", Objective()),
        ("LN and MLP", Objective()),
        ("plain", RAW_LOG),
        ("plain", Objective(read="last")),
    ],
    ids=["all read", "LN and MLP", "query", "last read"],
)
@pytest.mark.parametrize("few_match", [False, True])
def test_a_program_is_run_as_a_loop_over_tokens_runs_it(shape, objective, few_match, monkeypatch):
    if few_match:  # as with many states, and two sequences at once
        monkeypatch.setattr(selectors, "MAX_STATES_AT_ONCE", 0)
        monkeypatch.setattr(extraction, "SEQUENCES_AT_ONCE", 2)
        monkeypatch.setattr(extraction, "TOKENS_AT_ONCE", 1)
    subject = subject_of(random_run(shape, n_steps=2, objective=objective), sequences=5)
    found = extract(subject)
    assert ("L0H1→L1H0" in found.tables) == (len(subject.batch.read) > 1)
    bonus = np.array(found.match_bonus)
    bonus[:, 1] = [[0.7, -0.4], [2.0, 0.0]]
    found = dataclasses.replace(found, match_bonus=bonus)
    for member in range(2):
        np.testing.assert_allclose(
            scores(found, subject.batch, member), by_hand(found, subject.batch, member), atol=1e-9
        )


def test_the_mean_score_of_a_program_is_the_models():
    subject = subject_of(random_run("LN and MLP", n_steps=2), sequences=9)
    found = extract(subject)
    for member in range(2):
        mean = scores(found, subject.batch, member).mean((0, 1))
        np.testing.assert_allclose(mean, subject.recorded(SCORES)[member].mean((0, 1)), atol=1e-5)


def test_composed_tables_are_products_of_weights():
    subject = subject_of(random_run("plain"), sequences=4)
    tables = composed_tables(subject)
    assert set(tables) == {f"L0H{i}→L1H{j}" for i in range(2) for j in range(2)}
    w = {name: value[0].double() for name, value in subject.decoder.state_dict().items()}
    expected = w["embed.W_E"]
    for layer, head in ((0, 1), (1, 0)):
        attn = f"blocks.{layer}.attn"
        expected = expected @ w[f"{attn}.W_V"][head] @ w[f"{attn}.W_O"][head]
    expected = expected @ w["unembed.W_U"]
    np.testing.assert_allclose(tables["L0H1→L1H0"][0], expected.numpy(), rtol=1e-9)


def lag_model(logits: np.ndarray, table: torch.Tensor) -> HookedDecoder:
    """A head whose attention is a softmax over lags: `b_Q . W_rel`, no token content."""
    n_ctx = len(logits)
    config = config_of(n_layers=1, n_heads=1, n_ctx=n_ctx, positional_embedding_type="relative", d_model=6)
    decoder = HookedDecoder(config)
    with torch.no_grad():
        decoder.embed.W_E[:, :3] = torch.eye(3)
        decoder.get_parameter("blocks.0.attn.b_Q")[0, 0] = 1
        decoder.get_parameter("blocks.0.attn.W_rel")[0, :, 0] = torch.tensor(logits).float()
        decoder.get_parameter("blocks.0.attn.W_V")[0, :3] = torch.eye(3)
        decoder.get_parameter("blocks.0.attn.W_O")[0, :, 3:] = table
        decoder.get_parameter("unembed.W_U")[3:] = torch.eye(3)
    return decoder


def test_attention_that_is_a_softmax_over_lags_is_recovered_and_explains_everything():
    logits = np.array([0.3, 2.0, -1.0, 0.5, 0.0, 1.0, -0.5, 0.2])
    run = run_of(lag_model(logits, 3 * LOG_P))
    scale = run.config.score_scale
    subject = Subject.of(run, sequences=64)
    found = extract(subject)
    np.testing.assert_allclose(found.lag_weight[0, 0, 0, 1:], softmax(logits / scale, axis=-1), atol=1e-5)
    data = program.probe.measure(Subject.of(run, sequences=64))
    values = {name: score.value for name, score in program.scores(data, None).items()}
    assert values["kl_by_weights"] < 1e-8
    assert values["explained_by_weights"] > 1 - 1e-6
    assert values["explained"] > 1 - 1e-3
    assert values["program"] == "bias + head over lags"
    (claim,) = claims_of(program.probe, data).where("explains", subject="tables read from the weights")
    assert "previous token" in claim.condition("looks up").words


def mass_on(found: Program, subject: Subject, head: tuple[int, int, int]) -> tuple[np.ndarray, float]:
    """A selector's mean mass on each lag, and on matches over the predictions that have one; in loops."""
    member, layer, index = head
    batch = subject.batch
    by_lag = np.zeros(found.lag_weight.shape[-1])
    matched = []
    for b in range(len(batch.tokens)):
        x = batch.history[b].tolist()
        for known in batch.known.tolist():
            w = np.array(
                [found.lag_weight[member, layer, index, known + 1 - key] for key in range(known + 1)]
            )
            match = np.array([key > 0 and x[key - 1] == x[known] for key in range(known + 1)])
            w = w * np.exp(found.match_bonus[member, layer, index] * match)
            own = found.lag_weight[member, layer, index, 0] * batch.parent_lag  # of a query token itself
            by_lag[0] += own / (w.sum() + own)
            w /= w.sum() + own
            for key in range(known + 1):
                by_lag[known + 1 - key] += w[key]
            if match.any():
                matched.append(w[match].sum())
    return by_lag / (len(batch.tokens) * len(batch.known)), float(np.mean(matched))


@pytest.mark.parametrize("objective", [Objective(), Objective(read="last"), RAW_LOG])
@pytest.mark.parametrize("shape", ["plain", "window", "two tokens of context"])
def test_the_mass_on_matches_is_that_of_the_induction_probe(shape, objective):
    subject = subject_of(random_run(shape, n_steps=3, objective=objective), sequences=9, chunk_elements=400)
    found, expected = subject.recorded(MATCH_MASS), subject.recorded(INDUCTION).mass[..., 0]
    np.testing.assert_allclose(found[:, 1:], expected[:, 1:], rtol=1e-5, atol=1e-7)
    assert np.isnan(found[:, 0]).all()


@pytest.mark.parametrize("objective", [Objective(), RAW_LOG], ids=["all read", "query"])
@pytest.mark.parametrize("layer", [0, 1])
def test_selectors_have_the_models_mass_on_lags_and_on_matches(layer, objective):
    subject = subject_of(random_run("plain", objective=objective), sequences=24)
    found = extract(subject)
    for head in range(2):
        recorded = subject.recorded(ATTENTION).lag_mass[0, layer, head] * subject.batch.reach.numpy()
        by_lag, matched = mass_on(found, subject, (0, layer, head))
        np.testing.assert_allclose(by_lag, recorded, atol=1e-4)
        if layer == 1:
            assert found.match_bonus[0, 1, head] != 0
            assert matched == pytest.approx(float(subject.recorded(MATCH_MASS)[0, 1, head]), abs=1e-4)
        else:
            assert not found.match_bonus[:, 0].any()


def test_what_is_left_is_measured_by_position_and_state(monkeypatch):
    monkeypatch.setattr(extraction, "SEQUENCES_AT_ONCE", 5)
    monkeypatch.setattr(extraction, "TOKENS_AT_ONCE", 1)
    subject = subject_of(random_run("plain", n_steps=2), sequences=12)
    fresh = draw(subject.source, subject.objective, subject.config, seed=5, sequences=12)
    found = extract(subject)
    data = compare(subject, found, fresh)
    for member in range(2):
        logits = subject.decoder[member](fresh.tokens).detach().double().numpy()
        model, guess = softmax(logits, -1), softmax(by_hand(found, fresh, member), -1)
        by_token = subject.decoder[member](subject.batch.tokens).detach().double().softmax(-1).numpy()
        mean = by_token.mean((0, 1))
        kl = (model * np.log(model / guess)).sum(-1)
        kl_mean = (model * np.log(model / mean)).sum(-1).mean()
        here = data.isel(step=member)
        assert float(here["kl_by_weights"]) == pytest.approx(kl.mean(), rel=1e-5)
        assert float(here["kl_mean"]) == pytest.approx(kl_mean, rel=1e-5)
        assert float(here["explained_by_weights"]) == pytest.approx(1 - kl.mean() / kl_mean, abs=1e-5)
        np.testing.assert_allclose(here["kl_by_weights_at"], kl.mean(0), rtol=1e-5)
        parent = fresh.history.numpy()
        after = [kl[parent == state].mean() for state in range(3)]
        np.testing.assert_allclose(here["kl_by_weights_after"], after, rtol=1e-5)
        for path in ("direct", "L0H1", "L0H1→L1H0"):
            rest = dataclasses.replace(found, tables={k: t for k, t in found.tables.items() if k != path})
            mean = (by_hand(found, subject.batch, member) - by_hand(rest, subject.batch, member)).mean((0, 1))
            without = softmax(by_hand(rest, fresh, member) + mean, -1)
            kl = (model * np.log(model / without)).sum(-1).mean()
            assert float(here["kl_without"].sel(path=path)) == pytest.approx(kl, rel=1e-5)


@pytest.mark.parametrize("path", ["direct", "L0H0"])
def test_a_wrong_table_explains_little_and_its_nats_are_after_that_state(path):
    build = {"direct": direct_table, "L0H0": value_table}[path]
    subject = Subject.of(run_of(build(LOG_P, n_ctx=8)), sequences=64)
    found = extract(subject)
    table = np.array(found.tables[path])
    table[:, 2] = table[:, 2, [1, 0, 2]]  # after state 2, the successors 0 and 1 are exchanged
    wrong = dataclasses.replace(found, tables=found.tables | {path: table})
    fresh = draw(subject.source, subject.objective, subject.config, seed=3, sequences=64)
    data = compare(subject, wrong, fresh)
    after = P3[2] @ np.log(P3[2] / P3[2, [1, 0, 2]])
    np.testing.assert_allclose(data["kl_by_weights_after"][0], [0, 0, after], atol=1e-5)
    assert float(data["explained_by_weights"][0]) < 0.8
    shuffled = dataclasses.replace(found, tables=found.tables | {path: found.tables[path][:, [1, 2, 0]]})
    data = compare(subject, shuffled, fresh)
    assert float(data["explained_by_weights"][0]) < 0


def test_renaming_states_changes_nothing():
    run = random_run("LN and MLP")
    new, old = [2, 0, 1], np.argsort([2, 0, 1])
    names = dict(run.states)
    names["embed.W_E"] = run.states["embed.W_E"][:, old]
    names["unembed.W_U"] = run.states["unembed.W_U"][..., old]
    names["unembed.b_U"] = run.states["unembed.b_U"][..., old]
    source = mm.Chain(P3[np.ix_(old, old)])
    moved = dataclasses.replace(run, source=source, states=names)
    here = subject_of(run, sequences=16)
    fresh = draw(CHAIN, run.objective, run.config, seed=1, sequences=16)

    def renamed(batch):
        change = {
            name: torch.tensor(new)[getattr(batch, name)] for name in ("tokens", "history", "following")
        }
        return dataclasses.replace(batch, **change)

    there = Subject(moved, moved.model(steps=[0]), renamed(here.batch), axis="step", coordinates=[0])
    ours = compare(here, extract(here), fresh)
    theirs = compare(there, extract(there), renamed(fresh))
    for name in ("kl_by_weights", "kl_mean", "explained_by_weights"):
        assert float(ours[name][0]) == pytest.approx(float(theirs[name][0]), rel=1e-4)
    np.testing.assert_allclose(
        ours["kl_by_weights_after"][0].values[old], theirs["kl_by_weights_after"][0].values, rtol=1e-3
    )


@pytest.mark.parametrize("mass", [1e-6, 0.02, 0.1, 0.9, 1 - 1e-6])
def test_a_bonus_puts_the_mass_on_matches(mass):
    share = np.random.default_rng(0).beta(1, 20, 500)
    bonus = selectors._solve(share, mass)
    lifted = share * np.exp(bonus)
    assert (lifted / (lifted + 1 - share)).mean() == pytest.approx(mass, rel=1e-8)
