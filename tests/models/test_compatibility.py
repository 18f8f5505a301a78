"""Every row of `mm.compat()`: other people's tools on a decoder, or on its `as_lens()`."""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from decoder_cases import CASES, config_of, decoder_of, tokens_of

from mechmarkov.models.compatibility import AS_LENS, BRIDGE_ONLY, TRIALS, compat
from mechmarkov.models.lens.left_out import LEFT_OUT

pytestmark = pytest.mark.tl

# The shapes that a row is tried with; by default one with MLPs and norms.
SHAPES = {
    "direct_logit_attribution": ["plain"],
    "attribution_patch: nodes, attention only": ["plain"],
    "attribution_patch: edges": ["gelu and LN", "tied", "Qwen3", "attention and MLP in parallel"],
}
# What the decoder itself is told where a row needs `as_lens`.
WITHOUT_LENS = {
    "attribution_patch: nodes, attention only": "blocks.0.hook_mlp_out",
    "attribution_patch: edges": "attn.hook_q_input|n_key_value_heads=2 for n_heads=4|there is no MLP",
    "nnsight: read an attention pattern": "hook_pattern",
}
LAST = torch.full((3,), 8)  # the last position of each of three sequences


def pair(model):
    return tokens_of(model.config, seed=1), tokens_of(model.config, seed=2)


def metric(logits):
    return (logits[:, -1, 1] - logits[:, -1, 3]).sum()


def last_logits(model):
    return lambda tokens: model(tokens)[:, -1]


def cache_with_gradients(model, tokens, names):
    """Activations and the gradients of the metric, by torch's autograd alone."""
    kept = {}

    def keep(x, hook):
        kept[hook.name] = x
        x.retain_grad()

    metric(model.run_with_hooks(tokens, fwd_hooks=[(name, keep) for name in names])).backward()
    return {name: (x.detach(), x.grad) for name, x in kept.items()}


# -- one check a row -----------------------------------------------------------------------------------------


def activation_cache(model):
    _, cache = model.run_with_cache(pair(model)[0])
    assert torch.allclose(cache.decompose_resid(layer=-1).sum(0), cache["resid_post", 1], atol=1e-12)


def factored_matrix(model):
    w = {name: value.numpy() for name, value in model.state_dict().items()}
    dense = w["blocks.1.attn.W_V"][2] @ w["blocks.1.attn.W_O"][2]
    expected = sorted(abs(np.linalg.eigvals(dense)))[-5:]  # rank d_head
    assert np.allclose(sorted(model.OV.eigenvalues[1, 2].abs().detach().numpy()), expected, atol=1e-9)


@torch.no_grad()
def patching_the_stream(model):
    from transformer_lens import patching

    clean, corrupted = pair(model)
    _, cache = model.run_with_cache(clean)
    table = patching.get_act_patch_resid_pre(model, corrupted, cache, metric)
    assert table.shape == (2, 9)
    name = "blocks.1.hook_resid_pre"

    def patch(x, hook):
        x[:, 4] = cache[name][:, 4]
        return x

    expected = metric(model.run_with_hooks(corrupted, fwd_hooks=[(name, patch)])).item()
    assert table[1, 4].item() == pytest.approx(expected)


def logit_lens(model):
    from transformer_lens.tools.analysis import logit_lens

    tokens = pair(model)[0]
    values = logit_lens(model, tokens).values  # [depth, batch, token], at the last position
    assert torch.allclose(values[-1], model(tokens)[:, -1], atol=1e-10)
    assert (values[0] - values[-1]).abs().max() > 0.1


def direct_logit_attribution(model):
    from transformer_lens.tools.analysis import direct_logit_attribution

    tokens = pair(model)[0]
    found = direct_logit_attribution(model, tokens, answer_tokens=torch.tensor([1, 2, 3]))
    expected = (model(tokens) - model.b_U)[range(3), -1, [1, 2, 3]]
    assert torch.allclose(found.attribution.sum(0), expected, atol=1e-10)


def nodes(model):
    from transformer_lens.tools.analysis import attribution_patch

    clean, corrupted = pair(model)
    scores = attribution_patch(model, clean, corrupted, metric).node_scores
    point = "blocks.0.attn.hook_z"
    _, cache = model.run_with_cache(clean)
    value, gradient = cache_with_gradients(model, corrupted, [point])[point]
    expected = ((cache[point] - value) * gradient).sum(-1).mean(0)  # [position, head]
    found = {(n.position, n.head): s for n, s in scores.items() if n.kind == "attn_head_out" and n.layer == 0}
    assert len(found) == 9 * model.config.n_heads
    for (position, head), score in found.items():
        assert score == pytest.approx(expected[position, head].item(), abs=1e-9)
    assert expected.abs().max() > 1e-3
    return scores


def edges(model):
    from transformer_lens.tools.analysis import EdgeAttributionConfig, attribution_patch

    clean, corrupted = pair(model)
    points = set(model.hook_dict)
    found = attribution_patch(model, clean, corrupted, metric, EdgeAttributionConfig(granularity="edge"))
    assert set(model.hook_dict) == points  # the optional hook points are switched off again
    assert not [name for name, module in model.named_modules() if module.training]
    # An edge from the embedding to the logits carries what the last stream hears of it directly.
    _, cache = model.run_with_cache(clean)
    kept = cache_with_gradients(model, corrupted, ["hook_embed", "blocks.1.hook_resid_post"])
    change = cache["hook_embed"] - kept["hook_embed"][0]
    expected = (change * kept["blocks.1.hook_resid_post"][1]).sum(-1).mean(0)
    scores = {
        w.position: s for (w, r), s in found.edge_scores.items() if (w.kind, r.kind) == ("embed", "logits")
    }
    assert [scores[position] for position in range(9)] == pytest.approx(expected.tolist(), abs=1e-9)
    # The edges that leave a node add up to its score.
    for node, score in nodes(model).items():
        assert found.node_scores[node] == pytest.approx(score, abs=1e-9)


def interchange(model):
    from transformer_lens.tools.analysis import (
        SubspaceInterchange,
        collect_activations,
        fit_das,
        intervened_logits,
    )

    point, (base, source) = "blocks.0.hook_resid_post", pair(model)
    task = last_logits(model)
    found = fit_das(
        model, point, base, source, torch.tensor([0, 1, 2]), task,
        rank=2, base_positions=LAST, source_positions=LAST, epochs=8, lr=0.1,
    )  # fmt: skip
    assert found.losses[-1] < found.losses[0]
    # Interchanging every direction replaces the activation.
    whole = SubspaceInterchange(torch.eye(model.config.d_model, dtype=torch.float64))
    acts = collect_activations(model, point, source, task, positions=LAST)
    logits = intervened_logits(model, point, whole, base, acts, task, positions=LAST)

    def replace(x, hook):
        x[:, -1] = acts
        return x

    with torch.no_grad():
        expected = model.run_with_hooks(base, fwd_hooks=[(point, replace)])[:, -1]
    assert torch.allclose(logits, expected, atol=1e-10)


def sparse_probe(model):
    from transformer_lens.tools.analysis import fit_sparse_probe

    tokens = tokens_of(model.config, 12)
    _, cache = model.run_with_cache(tokens)
    features = cache["embed"].flatten(0, 1).detach()
    # Where the embedding's first coordinate is, one coordinate is enough to tell.
    labels = features[:, 0] > features[:, 0].median()
    found = fit_sparse_probe(features, labels, k=1)
    assert found.selected_features.tolist() == [0]
    assert found.metrics.accuracy > 0.9


def jacobian_lens(model):
    from transformer_lens.tools.analysis import JacobianLens

    with pytest.raises(TypeError, match="TransformerBridge only"):
        JacobianLens.fit(model, [tokens_of(model.config)], corpus="a chain")


def devinterp_llc(model):
    from datasets import Dataset
    from devinterp.slt.llc import llc

    model = model.float()
    tokens = pair(model)[0]
    data = Dataset.from_dict({"input_ids": tokens.tolist()}).with_format("torch")
    settings = {"n_beta": 3.0, "num_chains": 1, "num_draws": 4, "batch_size": 3, "num_init_loss_batches": 1}
    still = llc(model, data, {}, lr=0.0, **settings)
    expected = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).item()
    assert float(still.init_loss) == pytest.approx(expected, rel=1e-5)
    assert float(still.llc_mean) == pytest.approx(0.0, abs=1e-4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    moved = llc(model, data, {}, lr=1e-3, noise_level=0.0, **settings)
    assert float(moved.llc_mean) < -0.01  # without noise the chain goes down
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def sae_trainer(model):
    from sae_lens import SAETrainer, StandardTrainingSAE, StandardTrainingSAEConfig
    from sae_lens.config import SAETrainerConfig

    _, cache = model.float().run_with_cache(pair(model)[0])
    activations = cache["resid_post", 0].detach().flatten(0, 1)

    def feed():
        while True:
            yield activations

    torch.manual_seed(0)
    sae = StandardTrainingSAE(StandardTrainingSAEConfig(d_in=12, d_sae=24, l1_coefficient=0.01))
    settings = {
        "total_training_samples": 27 * 200,
        "train_batch_size_samples": 27,
        "lr": 1e-2,
        "lr_end": 1e-2,
    }
    sae = SAETrainer(SAETrainerConfig(**settings), sae, feed()).fit()
    unexplained = (sae(activations) - activations).var() / activations.var()
    assert unexplained < 0.1


def nnsight_stream(model):
    import nnsight

    tokens, other = pair(model)
    _, cache = model.run_with_cache(other)
    donor, name = cache["resid_post", 0].detach(), "blocks.0.hook_resid_post"
    seen = nnsight.NNsight(model)
    with seen.trace(tokens):
        read = seen.blocks[0].hook_resid_post.output.save()
        logits = seen.output.save()
    _, cache = model.run_with_cache(tokens)
    assert torch.allclose(read, cache["resid_post", 0], atol=1e-12)
    assert torch.equal(logits, model(tokens))
    with seen.trace(tokens):
        seen.blocks[0].hook_resid_post.output = donor
        replaced = seen.output.save()
    expected = model.run_with_hooks(tokens, fwd_hooks=[(name, lambda x, hook: donor)])
    assert torch.equal(replaced, expected)


def nnsight_pattern(model):
    import nnsight

    tokens = pair(model)[0]
    seen = nnsight.NNsight(model)
    with seen.trace(tokens):
        pattern = seen.blocks[1].attn.hook_pattern.output.save()
    _, cache = model.run_with_cache(tokens)
    assert torch.allclose(pattern, cache["pattern", 1], atol=1e-12)


CHECKS = {
    "ActivationCache: the parts of the residual stream": activation_cache,
    "FactoredMatrix: eigenvalues of a head's value circuit": factored_matrix,
    "patching: the residual stream at each position": patching_the_stream,
    "logit_lens": logit_lens,
    "direct_logit_attribution": direct_logit_attribution,
    "attribution_patch: nodes": nodes,
    "attribution_patch: nodes, attention only": nodes,
    "attribution_patch: edges": edges,
    "interchange: fit_das, intervened_logits": interchange,
    "fit_sparse_probe on a cache": sparse_probe,
    "JacobianLens.fit": jacobian_lens,
    "devinterp: llc": devinterp_llc,
    "SAELens: SAETrainer on a cache": sae_trainer,
    "nnsight: read and replace the residual stream": nnsight_stream,
    "nnsight: read an attention pattern": nnsight_pattern,
}


@pytest.mark.filterwarnings("default")  # of the tools, about themselves
@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.tried)
def test_a_row_of_the_table(trial):
    if why := trial.differs():
        pytest.skip(f"{why}; make test-tools runs it")
    check = CHECKS[trial.tried]
    for shape in SHAPES.get(trial.tried, ["gelu and LN"]):
        decoder = decoder_of(config_of(shape)).double()
        check(decoder.as_lens() if trial.runs_on == AS_LENS else decoder)
        if trial.runs_on == AS_LENS:  # else the row should say that the decoder will do
            with pytest.raises(Exception, match=WITHOUT_LENS[trial.tried]):
                check(decoder)
        if trial.runs_on == BRIDGE_ONLY:
            check(decoder.as_lens())


def test_every_row_has_a_check_and_every_installed_tool_a_row():
    assert [trial.tried for trial in TRIALS] == list(CHECKS)
    assert {trial.tried for trial in TRIALS if trial.runs_on == AS_LENS} == set(WITHOUT_LENS)
    lens = ".".join(version("transformer-lens").split(".")[:2])
    assert any(lens in trial.distributions.get("transformer-lens", []) for trial in TRIALS), lens


def test_the_table_shows_itself():
    lines = repr(compat()).splitlines()
    assert lines.index("") == 1 + len(TRIALS)
    assert len(lines) == 1 + len(TRIALS) + 2 + len(LEFT_OUT)
    (row,) = (line for line in lines if line.startswith("nnsight: read an attention pattern"))
    assert AS_LENS in row
    assert "nnsight 0.8" in row
    assert "logit_lens" in compat()._repr_html_()


def test_the_page_has_the_same_rows():
    page = (Path(__file__).parents[2] / "docs" / "other-tools.md").read_text()
    table = page.split("|---|---|---|\n")[1].split("\n\n")[0]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert rows == [[trial.tried, trial.runs_on, ", ".join(trial.versions)] for trial in TRIALS]


# -- as_lens -------------------------------------------------------------------------------------------------


# Tools take the stream for a sum, so that a lens of norms behind the sums is refused (`test_post_norm.py`).
@pytest.mark.parametrize("case", [case for case, fields in CASES.items() if fields.get("norm_first", True)])
def test_a_lens_has_equal_logits(case):
    decoder = decoder_of(config_of(case)).double()
    lens = decoder.as_lens()
    tokens = tokens_of(decoder.config)
    assert torch.allclose(lens(tokens), decoder(tokens), atol=1e-12)
    assert lens.config.n_key_value_heads is None
    assert lens.blocks[0].mlp is not None
    # A copy: what a tool does to it leaves the decoder alone.
    with torch.no_grad():
        lens.embed.W_E.zero_()
    assert decoder.W_E.abs().max() > 0


def test_hook_points_that_are_added_follow_the_models_mode():
    decoder = decoder_of(config_of("gelu and LN"))
    decoder.set_use_attn_result(True)
    assert not any(module.training for module in decoder.modules())
    decoder.train().set_use_split_qkv_input(True)
    assert decoder.blocks[0].hook_q_input.training


def test_split_inputs_of_a_lens_have_both_names_of_transformer_lens():
    decoder = decoder_of(config_of()).as_lens()
    decoder.set_use_split_qkv_input(True)
    tokens = tokens_of(decoder.config)
    seen = []
    names = ["blocks.1.hook_k_input", "blocks.1.attn.hook_k_input"]
    decoder.run_with_hooks(tokens, fwd_hooks=[(name, lambda x, hook: seen.append(x)) for name in names])
    assert len(seen) == 2
    assert torch.equal(*seen)
    decoder.set_use_split_qkv_input(False)
    assert not set(names) & set(decoder.hook_dict)


def test_a_stack_is_no_lens():
    with pytest.raises(TypeError, match=r"this is a stack of 2 models.*use a member, stack\[i\]"):
        decoder_of(config_of(), n_models=2).as_lens()
