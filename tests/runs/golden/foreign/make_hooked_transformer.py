"""Writes tl2_*.pt or tl3_*.pt: HookedTransformers of TransformerLens 2.18.0 or 3.9.0, as people save them.

    python tests/runs/golden/foreign/make_hooked_transformer.py

Run with each of the two installed.
"""

import warnings
from importlib.metadata import version

import torch
from foreign_numbers import HERE, LENGTH, K, draw, keep_logits, tokens

BASE = {"d_model": 8, "n_ctx": LENGTH, "d_head": 4, "n_heads": 2, "d_vocab": K, "device": "cpu", "seed": 0}
CASES = {
    "bare_attn_only": {"n_layers": 2, "attn_only": True, "normalization_type": None},
    "mlp_ln": {"n_layers": 1, "act_fn": "gelu", "d_mlp": 12},
    "lnpre_relu": {"n_layers": 1, "act_fn": "relu", "d_mlp": 12, "normalization_type": "LNPre"},
    "rotary": {"n_layers": 1, "attn_only": True, "positional_embedding_type": "rotary", "rotary_dim": 4},
    "shortformer": {"n_layers": 1, "attn_only": True, "positional_embedding_type": "shortformer"},
    "no_attn_scale": {"n_layers": 1, "attn_only": True, "use_attn_scale": False},
    "parallel": {"n_layers": 1, "act_fn": "relu", "parallel_attn_mlp": True},
}


def main() -> None:
    warnings.simplefilter("ignore")
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    major = version("transformer-lens").split(".")[0]
    for name, changes in CASES.items():
        model = draw(HookedTransformer(HookedTransformerConfig(**(BASE | changes))))
        state = model.state_dict()
        saved = state if name.startswith("bare") else {"cfg": model.cfg.to_dict(), "model": state}
        if name == "rotary":
            saved = {"config": model.cfg.to_dict(), "state_dict": state}
        torch.save(saved, HERE / f"tl{major}_{name}.pt")
        keep_logits(f"tl{major}_{name}", model(tokens()))
        if name == "mlp_ln":
            torch.save({"cfg": model.cfg, "model": state}, HERE / f"tl{major}_cfg_object.pt")


if __name__ == "__main__":
    main()
