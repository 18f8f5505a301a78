"""GIM: no output changes, shares are those of the paper, and the softmax has the slope of a warmer one."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import mechmarkov as mm
from mechmarkov.bench.case import case_of
from mechmarkov.bench.cases import CASES
from mechmarkov.bench.gradients import edge_attribution
from mechmarkov.bench.interaction_gradients import changed_gradients, gim, interaction_gradients
from mechmarkov.bench.method import counted_passes
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.init import initialise

SHAPE = {"n_layers": 1, "d_model": 6, "n_ctx": 5, "d_head": 3, "n_heads": 2, "d_vocab": 4}


def model_of(**changes):
    model = HookedDecoder(DecoderConfig(**SHAPE | changes))
    initialise(model, [0])
    return model.double()


@pytest.mark.parametrize("name", ["induction", "trained-walk", "bundled-induction"])
def test_no_output_changes(name):
    case = CASES[name](0)
    before = case.predicted(case.clean)
    with changed_gradients(case.model):
        torch.testing.assert_close(case.predicted(case.clean), before, rtol=0, atol=1e-14)
    assert torch.equal(case.predicted(case.clean), before)


def test_values_have_half_and_keys_a_quarter():
    model = model_of(attn_only=True, n_heads=1, normalization_type=None)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(20)  # so that attention is not even
    source = mm.Chain(P=np.random.default_rng(0).dirichlet(np.ones(4), size=4))
    case = case_of("one", "", model, source, seed=0, pairs="resampled").under("logit-difference")
    plain, shared = edge_attribution(case), interaction_gradients(case, temperature=1.0)
    share = {"embed→L0H0.V": 0.5, "embed→L0H0.K": 0.25, "embed→L0H0.Q": 0.25, "L0H0→logits": 1.0}
    for edge, part in share.items():
        assert abs(plain[edge]) > 1e-6, edge
        assert shared[edge] == pytest.approx(part * plain[edge], rel=1e-6), edge


def test_scores_have_the_slope_of_a_warmer_softmax():
    model, tokens = (
        model_of(attn_only=True),
        torch.randint(4, (2, 5), generator=torch.Generator().manual_seed(0)),
    )
    caught = {}

    def grab(x, hook):
        caught[hook.name] = x
        x.retain_grad()
        return x

    names = [f"blocks.0.attn.hook_{name}" for name in ("attn_scores", "pattern")]
    with changed_gradients(model), model.hooks([(name, grab) for name in names]):
        model(tokens).square().sum().backward()
    scores, slope = caught[names[0]].detach().numpy(), caught[names[1]].grad.numpy()
    soft = np.exp(scores / 2 - (scores / 2).max(-1, keepdims=True))
    soft /= soft.sum(-1, keepdims=True)
    jacobian = soft[..., None] * np.eye(5) - soft[..., None] * soft[..., None, :]
    expected = (jacobian @ slope[..., None])[..., 0]
    np.testing.assert_allclose(caught[names[0]].grad.numpy(), expected, atol=1e-12)


def test_a_norms_scale_is_frozen():
    model = model_of(attn_only=True, normalization_type="RMS")
    tokens = torch.tensor([[0, 1, 2, 3, 0]])
    stream = {}

    def grab(x, hook):
        stream["x"] = x.detach().requires_grad_()
        return stream["x"]

    with changed_gradients(model), model.hooks([("blocks.0.hook_resid_post", grab)]):
        model(tokens).sum().backward()
    x = stream["x"].detach()
    scale = (x.square().mean(-1, keepdim=True) + model.config.eps).sqrt()
    expected = (model.ln_final.w * model.W_U.sum(-1)) / scale
    torch.testing.assert_close(stream["x"].grad, expected.detach().expand_as(x))


@pytest.mark.parametrize(("gated", "share"), [(True, 0.5), (False, 1.0)])
def test_both_factors_of_a_gate_have_half(gated, share):
    model = model_of(d_mlp=5, gated_mlp=gated, act_fn="relu", normalization_type=None)
    around = model.W_U[:, 0].detach().expand(1, 3, -1)  # the gradient of the path past the MLP
    plain, changed = (
        slope_before_the_mlp(model, nullcontext()),
        slope_before_the_mlp(model, changed_gradients(model)),
    )
    torch.testing.assert_close(changed - around, share * (plain - around))


def slope_before_the_mlp(model, change):
    stream = {}

    def grab(x, hook):
        stream["x"] = x.detach().requires_grad_()
        return stream["x"]

    with change, model.hooks([("blocks.0.hook_resid_mid", grab)]):
        model(torch.tensor([[0, 1, 2]]))[..., 0].sum().backward()
    return stream["x"].grad


def test_it_takes_the_passes_that_it_declares():
    case = CASES["induction"](0)
    with counted_passes() as passes:
        gim.claims(case)
    assert len(passes) <= gim.declared(case)
