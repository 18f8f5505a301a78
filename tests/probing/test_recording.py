"""What is recorded, against loops over the raw pattern of every sequence."""

import math

import numpy as np
import pytest
import torch
from probing_cases import RAW_LOG, SHAPES, random_run, subject_of

from mechmarkov.objectives import Objective
from mechmarkov.probing.chunking import chunked
from mechmarkov.probing.recording import ATTENTION, MLP_BY_PARENT, NORM_SCALE, SCORES
from mechmarkov.probing.recording.attention import AttentionStats

LAST = Objective(read="last")
CASES = [(shape, objective) for shape in SHAPES for objective in (Objective(),)] + [
    ("plain", LAST),
    ("window", LAST),
    ("plain", RAW_LOG),
    ("window", RAW_LOG),
    ("window of itself alone", RAW_LOG),
    ("LN and MLP", RAW_LOG),
]
IDS = [f"{shape}, {o.kind}, {o.read}" for shape, o in CASES]


def by_hand(subject, member: int, layer: int, head: int) -> dict[str, float | np.ndarray]:
    """The fields of AttentionStats from the raw pattern, in loops."""
    batch, window = subject.batch, subject.config.window
    name = f"blocks.{layer}.attn.hook_"
    _, cache = subject.decoder[member].run_with_cache(batch.tokens)
    pattern = cache[name + "pattern"][:, head].double().numpy()
    scores = cache[name + "attn_scores"][:, head].double().numpy()
    history = batch.history.numpy()
    n, real = history.shape
    keys = pattern.shape[-1]
    read, known = batch.read.tolist(), batch.known.tolist()

    lag_mass, reached = np.zeros(keys + 1), np.zeros(keys + 1)
    previous, hits, effective = [], np.zeros(2), 0.0
    for b in range(n):
        for q, parent in zip(read, known, strict=True):
            for key in range(q + 1):
                # The predicted token comes right after its parent; a query token is at lag 0.
                lag = parent + 1 - key
                lag_mass[lag] += pattern[b, q, key]
                reached[lag] += 1
            if q >= 1:
                previous.append(pattern[b, q, q - 1])
            weights = pattern[b, q, :real]
            largest = np.flatnonzero(weights >= weights.max() * (1 - 1e-5))
            # At least and at most: rounding decides between equal weights.
            hits += np.array([largest.tolist() == [parent], parent in largest])
            effective += math.exp(sum(-p * math.log(p) for p in pattern[b, q] if p > 0))
    rows = n * len(read)

    q = read[-1]
    seen = [s for s in range(real) if window is None or q - s <= window]
    spread = np.mean([max(pattern[b, q, seen]) - min(pattern[b, q, seen]) for b in range(n)]) if seen else 0.0
    logits = {(b, s): scores[b, q, s] for b in range(n) for s in seen}
    shares = {}
    grand = np.mean(list(logits.values())) if logits else 0.0
    total = sum((x - grand) ** 2 for x in logits.values())
    for name_of, group in (("position_share", lambda b, s: s), ("token_share", lambda b, s: history[b, s])):
        groups: dict[int, list[float]] = {}
        for (b, s), x in logits.items():
            groups.setdefault(int(group(b, s)), []).append(x)
        between = sum(len(xs) * (np.mean(xs) - grand) ** 2 for xs in groups.values())
        shares[name_of] = between / total if total > 1e-9 else np.nan
    means = np.zeros((n, subject.source.n_states))
    for b in range(n):
        for s in range(real):
            means[b, history[b, s]] += pattern[b, q, s]
    return {
        "lag_mass": lag_mass / np.maximum(reached, 1),
        "previous_token": np.mean(previous) if previous else 0.0,
        "selector": hits / rows,
        "effective_tokens": effective / rows,
        "spread": spread,
        "last_mass": pattern[:, q].mean(0),
        "token_mean_variance": means.var(axis=0).sum(),
        **shares,
    }


@pytest.mark.parametrize(("shape", "objective"), CASES, ids=IDS)
def test_attention_statistics_are_those_of_the_raw_pattern(shape, objective):
    subject = subject_of(random_run(shape, n_steps=2, objective=objective), sequences=6)
    stats = subject.recorded(ATTENTION)
    config = subject.config
    for where in np.ndindex(2, config.n_layers, config.n_heads):
        expected = by_hand(subject, *where)
        for name, value in expected.items():
            found = getattr(stats, name)[where]
            if name == "selector":
                assert value[0] - 2e-6 <= found <= value[1] + 2e-6, (where, found, value)
                continue
            assert np.allclose(found, value, atol=2e-6, equal_nan=True), (where, name, found, value)


@pytest.mark.parametrize(("shape", "objective"), CASES, ids=IDS)
def test_scores_norms_and_mlps_are_those_of_the_model(shape, objective):
    subject = subject_of(random_run(shape, n_steps=2, objective=objective), sequences=20)
    batch = subject.batch
    scores, norm_scale = subject.recorded(SCORES), subject.recorded(NORM_SCALE)
    mlp_by_parent = subject.recorded(MLP_BY_PARENT)
    for member in range(2):
        out, cache = subject.decoder[member].run_with_cache(batch.tokens)
        assert np.allclose(scores[member], out[:, batch.read].detach().numpy(), atol=1e-5)
        norms = {name.removesuffix(".hook_scale") for name in cache if name.endswith("hook_scale")}
        where_read = {f"{name}.where_read" for name in norms if not subject.config.norm_first}
        assert set(norm_scale) == norms | where_read
        for name in where_read:
            scale = cache[name.replace("where_read", "hook_scale")][:, batch.read]
            assert norm_scale[name][member] == pytest.approx(float(scale.mean()), rel=1e-5)
        for name in norms:
            scale = cache[f"{name}.hook_scale"]
            scale = scale[:, batch.read] if name == "ln_final" else scale
            assert norm_scale[name][member] == pytest.approx(float(scale.mean()), rel=1e-5)
        if subject.config.attn_only:
            assert mlp_by_parent.shape[1] == 0
            continue
        for layer in range(subject.config.n_layers):
            written = cache[f"blocks.{layer}.hook_mlp_out"].detach().numpy()
            for state in range(3):
                rows = [
                    written[b, q]
                    for b in range(len(batch.tokens))
                    for q, parent in zip(batch.read.tolist(), batch.known.tolist(), strict=True)
                    if batch.history[b, parent] == state
                ]
                assert np.allclose(mlp_by_parent[member, layer, state], np.mean(rows, 0), atol=1e-5)


def test_a_parent_that_is_never_seen_has_no_mean():
    subject = subject_of(random_run("LN and MLP", n_ctx=1), sequences=1)
    unseen = [state for state in range(3) if state != int(subject.batch.parents[0, 0])]
    assert np.isnan(subject.recorded(MLP_BY_PARENT)[0, :, unseen]).all()
    assert np.isfinite(subject.recorded(MLP_BY_PARENT)[0, :, int(subject.batch.parents[0, 0])]).all()


@pytest.mark.parametrize("elements", [1, 200, 1200])
@pytest.mark.parametrize("shape", ["LN and MLP", "window"])
def test_chunks_change_nothing(shape, elements):
    run = random_run(shape, n_steps=3)
    whole = subject_of(run, sequences=10)
    parts = subject_of(run, sequences=10, chunk_elements=elements)
    assert len(list(chunked(parts.decoder, parts.batch.tokens, elements))) > 1
    for name in AttentionStats.__dataclass_fields__:
        ours, theirs = getattr(parts.recorded(ATTENTION), name), getattr(whole.recorded(ATTENTION), name)
        assert np.allclose(ours, theirs, atol=1e-6, equal_nan=True), name
    largest = np.abs(whole.recorded(SCORES)).max()
    assert np.allclose(parts.recorded(SCORES), whole.recorded(SCORES), atol=1e-6 * largest)
    assert np.allclose(parts.recorded(MLP_BY_PARENT), whole.recorded(MLP_BY_PARENT), atol=1e-5)
    for name, scale in whole.recorded(NORM_SCALE).items():
        assert np.allclose(parts.recorded(NORM_SCALE)[name], scale, atol=1e-6)


def test_recording_leaves_no_hook_behind():
    subject = subject_of(random_run(), sequences=4)
    assert len(subject.recorded(SCORES)) == 1
    assert not any(len(point.fwd_hooks) for point in subject.decoder.hook_dict.values())


def test_a_common_offset_of_the_scores_costs_the_shares_nothing():
    # 1e4 on all logits leaves float32 about 1e-3; their variance is 1.
    run = random_run("plain", n_layers=1, use_attn_scale=False, n_heads=1, d_head=8)
    state = run.states
    plain = subject_of(run, sequences=32).recorded(ATTENTION)
    width = state["blocks.0.attn.W_K"].shape[-1]
    state["blocks.0.attn.b_Q"] = torch.zeros(1, 1, width)
    state["blocks.0.attn.W_Q"] = torch.zeros_like(state["blocks.0.attn.W_Q"])
    state["blocks.0.attn.b_Q"][..., 0] = 1.0
    before = subject_of(run, sequences=32).recorded(ATTENTION)
    state["blocks.0.attn.b_K"] = torch.zeros(1, 1, width)
    state["blocks.0.attn.b_K"][..., 0] = 1e4
    after = subject_of(run, sequences=32).recorded(ATTENTION)
    assert after.position_share == pytest.approx(before.position_share, abs=1e-2)
    assert after.token_share == pytest.approx(before.token_share, abs=1e-2)
    assert plain.position_share != pytest.approx(before.position_share, abs=1e-2)
