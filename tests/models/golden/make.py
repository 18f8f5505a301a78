"""Write the golden files beside this script: weights and logits of a live HookedTransformer.

HookedTransformer exists up to TransformerLens 3, so that with TransformerLens 4 these files stand for it.
Run with TransformerLens 3.9.0:

    python tests/models/golden/make.py
"""

import warnings
from importlib.metadata import version
from pathlib import Path

import torch

SMALL = {
    "n_layers": 2,
    "d_model": 8,
    "n_ctx": 6,
    "d_head": 3,
    "n_heads": 2,
    "d_vocab": 5,
    "normalization_type": None,
}
ATTENTION_ONLY = dict(SMALL, attn_only=True)
CASES = {
    "attention_only": dict(ATTENTION_ONLY, d_vocab_out=4),
    "no_attention_scale": dict(ATTENTION_ONLY, use_attn_scale=False, normalization_type="LNPre"),
    "attention_scale": dict(ATTENTION_ONLY, attn_scale=0.6, normalization_type="RMS"),
    "mlp": dict(SMALL, act_fn="gelu", d_mlp=9, normalization_type="LN"),
    "mlp_relu": dict(SMALL, act_fn="relu", d_mlp=9, normalization_type="RMSPre"),
    "shortformer": dict(ATTENTION_ONLY, positional_embedding_type="shortformer"),
    "rotary": dict(ATTENTION_ONLY, positional_embedding_type="rotary", d_head=4, rotary_dim=2),
    "rotary_adjacent": dict(
        ATTENTION_ONLY, positional_embedding_type="rotary", d_head=4, rotary_dim=4, rotary_adjacent_pairs=True
    ),
    "window": dict(ATTENTION_ONLY, window=2),
}


def main() -> None:
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    warnings.simplefilter("ignore", DeprecationWarning)
    for seed, (name, config) in enumerate(CASES.items()):
        theirs = dict(config)
        if (window := theirs.pop("window", None)) is not None:  # theirs counts the query's own token
            theirs |= {"use_local_attn": True, "window_size": window + 1, "attn_types": ["local"] * 2}
        torch.manual_seed(seed)
        model = HookedTransformer(HookedTransformerConfig(**theirs))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(0.6 * torch.randn_like(parameter))
            tokens = torch.randint(config["d_vocab"], (2, config["n_ctx"]))
            logits = model(tokens)
        content = {
            "made_with": f"transformer-lens {version('transformer-lens')}, torch {version('torch')}",
            "config": config,
            "state": {key: value.clone() for key, value in model.state_dict().items()},
            "tokens": tokens,
            "logits": logits,
        }
        torch.save(content, Path(__file__).with_name(f"{name}.pt"))


if __name__ == "__main__":
    main()
