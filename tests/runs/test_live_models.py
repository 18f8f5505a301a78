"""Live HookedTransformers become runs: TransformerLens 3, which still has the class."""

import re
from importlib.util import find_spec

import pytest
import torch
from public_codes import SOURCE

from mechmarkov.objectives import Objective
from mechmarkov.runs import Run, load

LIVE = find_spec("transformer_lens.HookedTransformer") is not None
pytestmark = [
    pytest.mark.tl,
    pytest.mark.skipif(
        not LIVE, reason="HookedTransformer was removed in TransformerLens 4; runs in make test-tl3"
    ),
]

BASE = {
    "n_layers": 2, "d_model": 12, "n_ctx": 9, "d_head": 5, "n_heads": 3, "d_vocab": 5, "attn_only": True,
    "device": "cpu",
}  # fmt: skip
MLP = {"attn_only": False, "act_fn": "gelu", "d_mlp": 17}


def live(**changes: object) -> torch.nn.Module:
    """A HookedTransformer with every weight drawn."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    with pytest.warns(DeprecationWarning, match="HookedTransformer is deprecated"):
        model = HookedTransformer(HookedTransformerConfig(**(BASE | changes)))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize(
    "changes",
    [
        {"normalization_type": None},
        {"normalization_type": "LN"},
        {"normalization_type": "LNPre", "eps": 1e-3},
        dict(normalization_type="RMS", **MLP),
        {"normalization_type": None, "n_heads": 1, "d_head": 12, "seed": 3, "init_mode": "xavier_uniform"},
        dict(MLP, act_fn="relu"),
        dict(MLP, act_fn="gelu_new", normalization_type="RMSPre"),
        dict(MLP, parallel_attn_mlp=True),
        dict(
            MLP, normalization_type="RMS", final_rms=True, gated_mlp=True, act_fn="silu", n_key_value_heads=1
        ),
        dict(MLP, gated_mlp=True, act_fn="gelu_pytorch_tanh", use_qk_norm=True),
        {"use_attn_scale": False},
        {"attn_scale": 0.7},
        {"positional_embedding_type": "shortformer"},
        {"positional_embedding_type": "alibi", "normalization_type": "LN"},
        {"positional_embedding_type": "alibi", "n_heads": 3},
        {"positional_embedding_type": "rotary", "rotary_dim": 4},
        {
            "positional_embedding_type": "rotary",
            "d_head": 6,
            "rotary_adjacent_pairs": True,
            "rotary_base": 100,
        },
        {"use_local_attn": True, "window_size": 3, "attn_types": ["local", "local"]},
        {"use_attn_result": True, "use_split_qkv_input": True, "use_hook_tokens": True},
    ],
    ids=str,
)
def test_a_live_model_becomes_a_run(tmp_path, changes):
    model = live(**changes)
    Run.from_model(model, source=SOURCE).save(tmp_path / "run.pt")
    run = load(tmp_path / "run.pt")
    assert run.provenance["logit_difference"] <= 1e-5
    assert run.provenance["imported_from"].endswith("HookedTransformer")
    tokens = SOURCE.sample(4, 9, generator=torch.Generator().manual_seed(9))
    torch.testing.assert_close(run.model()(tokens), model(tokens), rtol=1e-5, atol=1e-5)


def test_a_query_token_and_fewer_outputs(tmp_path):
    model = live(d_vocab=6, d_vocab_out=5)
    objective = Objective(kind="squared", read="last", query=True)
    run = Run.from_model(model, source=SOURCE, objective=objective)
    assert (run.config.d_vocab, run.config.d_vocab_out, run.objective) == (6, 5, objective)
    assert run.provenance["logit_difference"] <= 1e-5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_dir": "bidirectional"}, "cfg.attention_dir is 'bidirectional', expected 'causal'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "cfg.scale_attn_by_inverse_layer_idx is True"),
        (dict(MLP, act_fn="relu2"), "cfg.act_fn is 'relu2', expected 'relu', 'gelu', 'gelu_new' or 'silu'"),
        ({"attn_scores_soft_cap": 5.0}, "cfg.attn_scores_soft_cap is 5.0"),
        ({"output_logits_soft_cap": 5.0}, "cfg.output_logits_soft_cap is 5.0"),
        ({"normalization_type": "LN", "final_rms": True}, "cfg.final_rms is True"),
        (
            {"use_local_attn": True, "window_size": 3, "attn_types": ["local", "global"]},
            "cfg.attn_types mixes",
        ),
        ({"d_vocab": 6}, "model.d_vocab is 6, but the source has 5 states"),
    ],
    ids=str,
)
def test_what_cannot_be_expressed_is_named(changes, words):
    with pytest.raises(ValueError, match=rf"\A{re.escape(words)}.*\Z"):
        Run.from_model(live(**changes), source=SOURCE)


def test_every_field_is_accounted_for():
    """A field that this version of TransformerLens added is refused where it is set, never passed over."""
    from dataclasses import MISSING, fields

    from transformer_lens import HookedTransformerConfig

    from mechmarkov.importing.hooked_transformer import HARMLESS, LOCAL, config_from_lens
    from mechmarkov.models import DecoderConfig

    model = live()
    unnamed = [
        field
        for field in fields(HookedTransformerConfig)
        if field.name not in DecoderConfig.model_fields and field.name not in HARMLESS | set(LOCAL)
    ]
    assert len(unnamed) > 30
    for field in unnamed:
        assert field.default is not MISSING
        setattr(model.cfg, field.name, "something else")
        with pytest.raises(ValueError, match=rf"cfg\.{field.name} is 'something else'"):
            config_from_lens(model.cfg)
        setattr(model.cfg, field.name, field.default)
    assert config_from_lens(model.cfg).n_layers == 2
