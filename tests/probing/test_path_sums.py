"""What paths add to the logits: against a cache read by hand, and against the logits they add up to."""

import numpy as np
import pytest
import torch
from probing_cases import RAW_LOG, SHAPES, random_run, subject_of

from mechmarkov.objectives import Objective
from mechmarkov.probing.recording import PATHS, SCORES
from mechmarkov.probing.recording import paths as path_sums

NO_LAST_NORM = "no last norm"


def by_hand(subject, member: int) -> dict[str, np.ndarray]:
    """Each path's contribution `[batch, read, state]`, from the activations of one model."""
    decoder, config, read = subject.decoder[member], subject.config, subject.batch.read
    _, cache = decoder.run_with_cache(subject.batch.tokens)
    written = {} if subject.objective.query else {"direct": cache["hook_embed"]}
    for layer in range(config.n_layers):
        for head in range(config.n_heads):
            z = cache[f"blocks.{layer}.attn.hook_z"][:, :, head]
            written[f"L{layer}H{head}"] = z @ decoder.blocks[layer].attn.W_O[head]
        if not config.attn_only:
            written[f"L{layer}.mlp"] = cache[f"blocks.{layer}.hook_mlp_out"]
    found = {}
    for name, x in written.items():
        for norm in norms_behind(config, name):
            if config.normalization_type in ("LN", "LNPre"):
                x = x - x.mean(-1, keepdim=True)
            x = x / cache[f"{norm}.hook_scale"]
            if config.normalization_type in ("LN", "RMS"):
                x = x * decoder.get_parameter(f"{norm}.w")
        found[name] = (x @ decoder.W_U)[:, read].detach().double().numpy()
    return found


def norms_behind(config, name: str) -> list[str]:
    """The norms that a path of a model with MLPs, or with norms only in front, passes; worked out by hand."""
    behind = []
    if not config.norm_first:
        layer = 0 if name == "direct" else int(name[1])
        behind += [f"blocks.{i}.ln{k}" for i in range(layer, config.n_layers) for k in (1, 2)]
        behind = behind[1:] if name.endswith("mlp") else behind
    return behind + ["ln_final"] * (config.normalization_type is not None and config.final_norm)


@pytest.mark.parametrize("shape", [*SHAPES, NO_LAST_NORM])
@pytest.mark.parametrize("objective", [Objective(), RAW_LOG], ids=["next token", "query"])
def test_contributions_tables_and_means_are_those_of_the_activations(shape, objective):
    if shape == "one token of context" and objective.query:
        shape = "two tokens of context"
    changes = {"final_norm": False} if shape == NO_LAST_NORM else {}
    shape = "LN and MLP" if shape == NO_LAST_NORM else shape
    run = random_run(shape, n_steps=3, objective=objective, **changes)
    subject = subject_of(run, sequences=6, chunk_elements=500)  # several chunks
    found, parents = subject.recorded(PATHS), subject.batch.parents.numpy()
    assert len(found.kept) == len(subject.batch.read)
    for member in range(3):
        expected = by_hand(subject, member)
        assert tuple(expected) == found.names
        for i, values in enumerate(expected.values()):
            assert np.allclose(found.logits[member, i], values, rtol=1e-4, atol=1e-5)
            assert np.allclose(found.mean[member, i], values.mean((0, 1)), rtol=1e-4, atol=1e-5)
            for state in range(3):
                rows = values[parents == state]
                mean = rows.mean(0) if len(rows) else np.full(3, np.nan)
                assert np.allclose(found.table[member, i, state], mean, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("shape", ["no positions", "relative"])
def test_paths_and_biases_add_up_to_the_scores(shape):
    subject = subject_of(random_run(shape, normalization_type="LN"), sequences=6)
    decoder = subject.decoder[0]
    _, cache = decoder.run_with_cache(subject.batch.tokens)
    bias = sum(block.attn.b_O for block in decoder.blocks)
    rest = (bias - bias.mean()) / cache["ln_final.hook_scale"] * decoder.ln_final.w + decoder.ln_final.b
    rest = (rest @ decoder.W_U + decoder.b_U).detach().numpy()
    total = subject.recorded(PATHS).logits[0].sum(0) + rest
    assert np.allclose(total, subject.recorded(SCORES)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("objective", [Objective(), RAW_LOG], ids=["next token", "query"])
@pytest.mark.parametrize("shape", ["plain", "LN and MLP", "shortformer"])
def test_the_means_of_all_parts_add_up(shape, objective):
    subject = subject_of(random_run(shape, objective=objective), sequences=6)
    decoder, found = subject.decoder[0], subject.recorded(PATHS)
    norm = getattr(decoder.ln_final, "b", None)
    bias = decoder.b_U if norm is None else decoder.b_U + norm @ decoder.W_U
    _, cache = decoder.run_with_cache(subject.batch.tokens)
    written = sum(block.attn.b_O for block in decoder.blocks)
    scale = 1.0
    if norm is not None:
        written = (written - written.mean()) * decoder.ln_final.w
        scale = cache["ln_final.hook_scale"][:, subject.batch.read]
    bias = (bias + (written / scale @ decoder.W_U).reshape(-1, 3).mean(0)).detach().numpy()
    assert found.fixed_names == (*["direct"] * objective.query, *["pos_embed"] * (shape != "shortformer"))
    total = found.mean[0].sum(0) + found.fixed[0].sum(0) + bias
    assert np.allclose(total, subject.recorded(SCORES)[0].mean((0, 1)), rtol=1e-4, atol=1e-5)


def test_behind_norms_each_path_is_what_goes_without_it():
    """With scales and all outputs kept, the logits are affine in what a part writes."""
    subject = subject_of(random_run("post-norm"), sequences=6)
    decoder, tokens, found = subject.decoder[0], subject.batch.tokens, subject.recorded(PATHS)
    scores, cache = decoder.run_with_cache(tokens)
    kept = [f"blocks.{i}.{x}" for i in (0, 1) for x in ("hook_attn_out", "hook_mlp_out", "attn.hook_z")]
    kept += [f"blocks.{i}.ln{k}.hook_scale" for i in (0, 1) for k in (1, 2)]
    hooks = [(name, lambda x, hook: cache[hook.name]) for name in kept]
    W_O = [block.attn.W_O for block in decoder.blocks]
    without = {"direct": ("hook_embed", lambda x, hook: 0 * x)}
    for layer, head in ((0, 0), (0, 1), (1, 0), (1, 1)):
        written = cache[f"blocks.{layer}.attn.hook_z"][:, :, head] @ W_O[layer][head]
        place = f"blocks.{layer}.hook_attn_out"
        without[f"L{layer}H{head}"] = place, lambda x, hook, written=written: x - written
    without |= {f"L{i}.mlp": (f"blocks.{i}.hook_mlp_out", lambda x, hook: 0 * x) for i in (0, 1)}
    for name, added in zip(found.names, found.logits[0], strict=True):
        left = decoder.run_with_hooks(tokens, fwd_hooks=[*hooks, without[name]])
        assert np.allclose(added, (scores - left).detach().numpy(), rtol=1e-4, atol=1e-5), name


def test_where_there_is_much_a_part_is_kept_and_all_of_it_is_in_the_means(monkeypatch):
    run = random_run("plain")
    whole = subject_of(run, sequences=6).recorded(PATHS)
    monkeypatch.setattr(path_sums, "KEPT_ELEMENTS", 3 * whole.logits[..., 0, :].size)
    part = subject_of(run, sequences=6).recorded(PATHS)
    assert part.kept == (1, 3, 5)
    assert np.array_equal(part.logits, whole.logits[:, :, :, list(part.kept)])
    assert np.array_equal(part.mean, whole.mean)
    assert np.array_equal(part.table, whole.table, equal_nan=True)


def test_the_way_down_is_the_norms_and_the_unembeddings():
    subject = subject_of(random_run("LN and MLP", n_steps=2), sequences=6)
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    decoder = subject.decoder
    scale = ((x - x.mean(-1, keepdim=True)).pow(2).mean(-1, keepdim=True) + decoder.config.eps).sqrt()
    expected = decoder.unembed(decoder.ln_final(x)) - decoder.unembed(
        decoder.ln_final.b[:, None].expand_as(x)
    )
    assert torch.allclose(x @ decoder.folded_unembedding() / scale, expected, rtol=1e-4, atol=1e-5)
