"""gim-explain, the package of GIM's authors: its claims about our models are ours, and where they are not."""

from dataclasses import replace

import gim
import pandas as pd
import pytest
import torch
from circle import LENGTH, SOURCE, sequences

import mechmarkov as mm
from mechmarkov.bench import Method
from mechmarkov.bench.case import case_of
from mechmarkov.bench.cases import CASES
from mechmarkov.bench.gradients import edge_gradients
from mechmarkov.bench.interaction_gradients import changed_gradients, interaction_gradients
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.init import initialise
from mechmarkov.models.lens.errors import LensError

SHAPE = {"n_layers": 1, "d_model": 6, "n_ctx": LENGTH, "d_head": 3, "n_heads": 2, "d_vocab": SOURCE.n_states}
NAMES = ["head", "induction", "order-2", "cancel", "trigram", "belief", "bundled-walk", "bundled-induction"]
CLOSE = {"rel": 1e-9, "abs": 1e-12}  # of claims in float64


def of_the_package(case, *, stepwise=True, **settings):
    """Edge attribution with the gradients of `gim.GIM`, whose softmax is only where one is called."""
    model = case.model.as_lens() if stepwise else case.model
    norms = model.config.normalization_type is not None
    found = edge_gradients(replace(case, model=model), [gim.GIM(model, freeze_norm=norms, **settings)])
    return {name: found[name] for name in case.edges}


def case_with(**changes):
    model = HookedDecoder(DecoderConfig(**SHAPE | changes))
    initialise(model, [0])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".attn.W" in name:
                parameter.mul_(20)  # so that attention is not even
    return case_of("one", "", model, SOURCE, seed=0, pairs="resampled").under("logit-difference")


@pytest.mark.parametrize("name", NAMES)
def test_its_claims_are_ours(name):
    case = CASES[name](0).under("logit-difference")
    ours = interaction_gradients(case)
    assert max(map(abs, ours.values())) > 1e-3
    assert of_the_package(case) == pytest.approx(ours, **CLOSE)


def test_fused_attention_has_no_softmax_to_change():
    case = CASES["bundled-induction"](0).under("logit-difference")
    fused = of_the_package(case, stepwise=False)
    assert fused == pytest.approx(interaction_gradients(case, temperature=1.0), **CLOSE)
    assert fused != pytest.approx(interaction_gradients(case), rel=0.1)


def test_a_gate_keeps_its_whole_gradient_there():
    case = case_with(d_mlp=5, gated_mlp=True, act_fn="silu", normalization_type="RMS")
    ours, theirs = interaction_gradients(case), of_the_package(case)
    into_the_mlp = {name for name, (_, receiver) in case.edges.items() if receiver.endswith("mlp")}
    assert len(into_the_mlp) == 3
    for name in into_the_mlp:
        assert ours[name] == pytest.approx(theirs[name] / 2, **CLOSE), name


def test_a_model_without_norms_refuses_its_hooks_on_norms():
    model = case_with(normalization_type=None).model
    with pytest.raises(LensError, match="matches none of this model's hook points"), gim.GIM(model):
        pass


def test_explain_attributes_a_logit_to_tokens():
    model = case_with(attn_only=True, normalization_type="LN").model.as_lens()
    (tokens,), baseline, target = sequences(1), 2, 3
    found = gim.explain(model, tokens, target_token_id=target, baseline_token_id=baseline)
    start = model.embed(tokens[None]).detach().requires_grad_()
    with changed_gradients(model), model.hooks([("hook_embed", lambda x, hook: start)]):
        model(tokens[None])[0, -1, target].backward()
    moved = start.detach() - model.embed(torch.full_like(tokens[None], baseline))
    torch.testing.assert_close(found, (start.grad * moved).sum(-1)[0], rtol=1e-9, atol=1e-12)
    assert found.abs().max() > 1e-3


def test_a_plugin_of_it_has_our_scores():
    theirs = Method("gim-explain", "edges", of_the_package, "gim-explain", ("logit-difference",), passes=3)
    mm.bench.check(theirs)
    scores = mm.bench.run([theirs, "gim"], cases=["induction", "cancel", "trap"], seeds=1).scores
    theirs_scores, our_scores = (
        scores[scores["method"] == name].drop(columns=["method", "seconds"]).set_index(["case", "metric"])
        for name in ("gim-explain", "gim")
    )
    assert our_scores["rank"].notna().sum() >= 4
    pd.testing.assert_frame_equal(theirs_scores, our_scores, rtol=1e-9)
