"""A Run: there and back through a file, models at steps, models from elsewhere."""

import html
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from run_files import K, assert_same, handmade, saved
from torch import nn

from mechmarkov.importing.hooked_transformer import config_from_lens
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.runs import Run, RunFileError, load
from mechmarkov.runs.provenance import provenance
from mechmarkov.sources import Binary, Chain, Circle, DirichletChains

SWAP = Chain(P=np.eye(2)[::-1])
SOURCES = [Circle(n_states=4, p=0.3), Binary(p=0.5, q=0.8), DirichletChains(n_states=3), SWAP]


@st.composite
def plans(draw) -> dict:
    """What a small run of any shape is made from by `build`."""
    source = draw(st.sampled_from(SOURCES))
    query, attn_only = draw(st.booleans()), draw(st.booleans())
    config = DecoderConfig(
        n_layers=draw(st.integers(1, 2)),
        d_model=draw(st.integers(1, 5)),
        n_ctx=draw(st.integers(2, 6)),
        d_head=2 * draw(st.integers(1, 2)),
        n_heads=draw(st.integers(1, 2)),
        d_vocab=source.n_states + query,
        d_vocab_out=source.n_states,
        attn_only=attn_only,
        act_fn=None if attn_only else draw(st.sampled_from(["relu", "gelu", "gelu_new"])),
        normalization_type=draw(st.sampled_from([None, "LN", "LNPre", "RMS", "RMSPre"])),
        positional_embedding_type=draw(
            st.sampled_from(
                ["standard", "shortformer", "rotary", "alibi", "relative", "relative_bias", "none"]
            )
        ),
        tied=draw(st.booleans()),
        window=draw(st.none() | st.integers(0, 3)),
    )
    return {
        "model": config,
        "source": source,
        "objective": Objective(kind=draw(st.sampled_from(["cross_entropy", "raw_log"])), query=query),
        "steps": sorted(draw(st.sets(st.integers(0, 10**12), min_size=1, max_size=4))),
        "frozen": draw(st.sampled_from(["", "b_", "W_", "embed"])),
        "whole": draw(st.booleans()),
        "recipe": draw(st.none() | st.just({"lr": 0.1, "betas": [0.9, 0.99], "nested": {"ü": None}})),
        "seed": draw(st.none() | st.integers(0, 2**63 - 1)),
    }


def build(model, source, objective, steps, frozen, whole, recipe, seed) -> Run:
    """A run with weights drawn; those whose name holds `frozen` never change."""
    generator = torch.Generator().manual_seed(0)
    states = {
        name: 0.3
        * torch.randn(1 if frozen and frozen in name else len(steps), *value.shape, generator=generator)
        for name, value in HookedDecoder(model).state_dict().items()
    }
    trainable = {name: [[0, n] for n in value.shape[1:]] for name, value in list(states.items())[:2]}
    return Run(
        config=model,
        source=source,
        objective=objective,
        steps=torch.tensor(steps),
        states=states,
        trainable=None if whole else trainable | {"unembed.b_U": None},
        recipe=recipe,
        seed=seed,
        metrics={"loss": {"step": torch.tensor(steps), "value": torch.randn(len(steps), 2)}},
        provenance=provenance("cpu", wall_seconds=0.25),
    )


@given(plans())
@settings(max_examples=20, deadline=None)
def test_save_then_load_is_the_identity(tmp_path_factory, plan):
    run = build(**plan)
    path = tmp_path_factory.mktemp("run") / "run.pt"
    run.save(path)
    assert_same(load(path), run)
    load(path).save(path)
    assert_same(load(path), run)


@given(plans())
@settings(max_examples=12, deadline=None)
def test_a_stack_of_steps_is_its_members(plan):
    run = build(**plan)
    tokens = run.source.sample(2, run.config.n_ctx, generator=torch.Generator().manual_seed(0))
    # In float64: a norm over two coordinates can amplify float32 rounding without bound.
    stack = run.model(steps="all").double()(tokens)
    assert len(stack) == run.n_steps
    for index, step in enumerate(run.steps.tolist()):
        logits = run.model(step).double()(tokens)
        torch.testing.assert_close(logits, stack[index], rtol=1e-7, atol=1e-7)
    assert torch.equal(run.model()(tokens), run.model(step=-1)(tokens))
    assert torch.equal(run.model()(tokens), run.model(int(run.steps[-1]))(tokens))


@pytest.fixture
def run(tmp_path) -> Run:
    return load(saved(tmp_path / "hand.pt", handmade((0, 10, 50))))


def test_the_weights_of_a_step(run):
    held = run.model(10).state_dict()
    assert held.keys() == run.states.keys()
    for name, value in run.states.items():
        assert torch.equal(held[name], value[min(1, len(value) - 1)]), name
    assert {len(value) for value in run.states.values()} == {1, 3}
    some = run.model(steps=[50, 0])
    assert some.n_models == 2
    assert torch.equal(some.embed.W_E, run.states["embed.W_E"][[2, 0]])
    with torch.no_grad():
        some.embed.W_E.zero_()
    assert run.states["embed.W_E"].abs().sum() > 0


def test_a_step_that_is_not_there_is_named_with_those_that_are(run):
    for ask in (lambda: run.model(7), lambda: run.model(steps=[0, 7])):
        with pytest.raises(ValueError, match=r"step is 7, expected -1 \(the last\) or one of 0, 10, 50"):
            ask()
    with pytest.raises(ValueError, match="step is -2"):
        run.model(-2)
    with pytest.raises(ValueError, match="steps is empty"):
        run.model(steps=[])
    many = replace(run, steps=torch.arange(30), states={k: v[-1:] for k, v in run.states.items()})
    with pytest.raises(ValueError, match=r"one of 0, 1, 2, 3, 4, 5, 6, 7, …, 29$"):
        many.model(77)


def test_a_run_that_breaks_the_contract_is_not_saved(run, tmp_path):
    path = tmp_path / "run.pt"
    run.save(path)
    before = path.read_bytes()
    broken = {
        "steps is not ascending": {"steps": torch.tensor([3, 2, 1])},
        'states["unembed.b_U"] holds NaN': {
            "states": run.states | {"unembed.b_U": torch.full((3, K), float("nan"))}
        },
        'provenance["where"] is a tuple': {"provenance": {"where": ("here",)}},
        "model.d_vocab is 3, but the source has 2 states": {"source": Binary(p=0.5, q=0.5)},
    }
    for words, change in broken.items():
        with pytest.raises(RunFileError) as caught:
            replace(run, **change).save(path)
        assert str(caught.value).startswith(f"{path}: not written: {words}")
    assert path.read_bytes() == before


def test_a_run_shows_itself(run):
    assert repr(run).splitlines()[0] == f"Run({run.title()})"
    for words in (run.source.title(), "1 layer of 2 heads, attention only, width 4", "step 50", "seed 3"):
        assert words in run.title()
    shown = run._repr_html_()
    assert html.escape(run.title()) in shown
    assert "0, 10, 50 (3)" in shown
    hostile = replace(run, provenance={"<script>a</script>": "<img src=x onerror=alert(1)>"})
    assert "<script" not in hostile._repr_html_()
    assert "<img" not in hostile._repr_html_()


def test_provenance_names_versions():
    made = provenance("cpu", wall_seconds=2.5)
    assert torch.__version__.startswith(made["torch"])  # with CUDA it adds "+cu…"
    assert made["python"] == ".".join(map(str, sys.version_info[:3]))
    assert (made["device"], made["wall_seconds"]) == ("cpu", 2.5)


# -- models from elsewhere ---------------------------------------------------------------------------------

CONFIG = DecoderConfig(n_layers=2, d_model=6, n_ctx=7, d_head=3, d_vocab=4, act_fn="gelu", n_heads=2)
SOURCE = Circle(n_states=4, p=0.3)


def randomised(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


class Elsewhere(nn.Module):
    """HookedTransformer's surface on other code: a cfg, its parameter names and buffers, logits."""

    def __init__(self, inner: HookedDecoder, **cfg: object) -> None:
        super().__init__()
        for name, child in inner.named_children():
            self.add_module(name, child)
        for block in self.blocks:
            block.attn.register_buffer("mask", torch.ones(7, 7).tril() > 0)
            block.attn.register_buffer("IGNORE", torch.tensor(-torch.inf))
        own = {"tied", "window"}
        self.cfg = SimpleNamespace(**(inner.config.model_dump(exclude=own) | cfg))
        self.inner = (inner,)
        self.offset = 0.0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.inner[0](tokens) + self.offset


def test_a_hooked_decoder_becomes_a_run(tmp_path):
    model = randomised(HookedDecoder(CONFIG))
    run = Run.from_model(model, source=SOURCE)
    assert run.provenance["logit_difference"] == 0.0
    assert run.provenance["imported_from"] == "mechmarkov.models.decoder.HookedDecoder"
    assert (run.n_steps, run.objective, run.config) == (1, Objective(), CONFIG)
    run.save(tmp_path / "run.pt")
    tokens = SOURCE.sample(3, 7, generator=torch.Generator().manual_seed(1))
    assert torch.equal(load(tmp_path / "run.pt").model()(tokens), model(tokens))


def test_a_module_with_the_surface_becomes_a_run():
    model = Elsewhere(
        randomised(HookedDecoder(CONFIG)),
        seed=np.int64(3),
        dtype=torch.float32,
        attn_scale=np.sqrt(3.0),
        n_key_value_heads=None,
        gated_mlp=False,
        attention_dir="causal",
        attn_scores_soft_cap=-1.0,
        learning_rate=3e-4,  # a field of one's own: that it changes nothing is for the logits to say
    )
    run = Run.from_model(model, source=SOURCE, objective=Objective(read="last"))
    assert run.config == CONFIG
    assert run.objective.read == "last"
    assert 0 <= run.provenance["logit_difference"] <= 1e-5
    assert torch.equal(run.states["blocks.1.mlp.W_in"][0], model.blocks[1].mlp.W_in)
    assert not any("mask" in name or "IGNORE" in name for name in run.states)


def test_a_model_that_computes_something_else_is_refused():
    model = Elsewhere(randomised(HookedDecoder(CONFIG)))
    model.offset = 2e-4
    with pytest.raises(
        ValueError,
        match=r"Elsewhere and its conversion disagree: .* 0\.0002, 0\.0002 of their size, expected",
    ):
        Run.from_model(model, source=SOURCE)
    model.offset = float("nan")
    with pytest.raises(ValueError, match="logits differ by up to nan"):
        Run.from_model(model, source=SOURCE)
    model.offset = 5e-6
    assert Run.from_model(model, source=SOURCE).provenance["logit_difference"] == pytest.approx(5e-6, rel=0.1)


@pytest.mark.parametrize(
    ("cfg", "words"),
    [
        ({"gated_mlp": True}, "no parameter blocks.0.mlp.W_gate"),
        ({"parallel_attn_mlp": True}, "Elsewhere and its conversion disagree: logits differ by up to"),
        ({"scale_attn_by_inverse_layer_idx": True}, "cfg.scale_attn_by_inverse_layer_idx is True"),
        ({"attention_dir": "bidirectional"}, "cfg.attention_dir is 'bidirectional', expected 'causal'"),
        ({"attn_scores_soft_cap": 50.0}, "cfg.attn_scores_soft_cap is 50.0, expected -1.0"),
        ({"n_key_value_heads": 1}, "no parameter blocks.0.attn._W_K"),
        ({"act_fn": "solu_ln"}, "cfg.act_fn is 'solu_ln', expected 'relu', 'gelu', 'gelu_new' or 'silu'"),
        (
            {"positional_embedding_type": "relative_positional_bias"},
            "cfg.positional_embedding_type is 'relative_positional_bias', expected",
        ),
        ({"positional_embedding_type": "alibi"}, "Elsewhere and its conversion disagree: logits differ by"),
        (
            {"use_local_attn": True, "window_size": 3, "attn_types": ["local", "global"]},
            "cfg.attn_types mixes",
        ),
        ({"n_layers": 1}, 'a parameter "blocks.1.ln1.w" that a HookedDecoder lacks'),
        ({"n_layers": 3}, "no parameter blocks.2"),
        ({"d_mlp": 5}, r"blocks.0.mlp.W_in has shape \[6, 24\], expected \[6, 5\]"),
    ],
)
def test_what_cannot_be_expressed_is_named(cfg, words):
    with pytest.raises(ValueError, match=words):
        Run.from_model(Elsewhere(randomised(HookedDecoder(CONFIG)), **cfg), source=SOURCE)


def test_local_attention_is_a_window():
    windowed = DecoderConfig(**(CONFIG.model_dump() | {"window": 2}))
    model = Elsewhere(
        randomised(HookedDecoder(windowed)), use_local_attn=True, window_size=3, attn_types=["local"] * 2
    )
    assert Run.from_model(model, source=SOURCE).config == windowed


def test_a_mapping_is_a_config_too():
    sizes = {"n_layers": 1, "d_model": 8, "n_ctx": 4, "d_head": 4, "d_vocab": 3}
    cfg = {**sizes, "act_fn": "relu", "attn_only": True}
    config = config_from_lens(cfg | {"d_mlp": 32, "n_heads": -1, "attn_scale": -1.0, "d_vocab_out": -1})
    assert (config.n_heads, config.attn_scale, config.d_vocab_out, config.d_mlp) == (2, 2.0, 3, None)


def test_models_that_do_not_fit_are_refused():
    model = randomised(HookedDecoder(CONFIG))
    with pytest.raises(ValueError, match=r"model\.d_vocab is 4, but the source has 6 states"):
        Run.from_model(model, source=Circle(n_states=6, p=0.5))
    with pytest.raises(
        ValueError,
        match="the weights of Linear are called weight, bias: say which weight is which with names=",
    ):
        Run.from_model(nn.Linear(2, 2), source=SOURCE)
    with pytest.raises(ValueError, match="a stack of 2: import a member"):
        Run.from_model(HookedDecoder(CONFIG, n_models=2), source=SOURCE)
    with torch.no_grad():
        model.embed.W_E[1, 2] = torch.nan
    with pytest.raises(ValueError, match=r"embed\.W_E holds NaN or infinite values"):
        Run.from_model(model, source=SOURCE)


def test_the_query_token_is_part_of_the_comparison():
    config = DecoderConfig(**(CONFIG.model_dump() | {"d_vocab": 5, "d_vocab_out": 4, "n_ctx": 7}))
    model = Elsewhere(randomised(HookedDecoder(config)))
    seen = []
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    run = Run.from_model(model, source=SOURCE, objective=Objective(kind="raw_log", read="last", query=True))
    assert run.objective.query
    assert (seen[0][:, -1] == 4).all()
    assert (seen[0][:, :-1] < 4).all()
    assert seen[0].shape == (4, 7)
