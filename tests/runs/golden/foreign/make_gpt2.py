"""Writes gpt2_*/: transformers' GPT2LMHeadModel (5.23.0), as `save_pretrained` and as older versions left it.

python tests/runs/golden/foreign/make_gpt2.py
"""

import torch
from foreign_numbers import HERE, LENGTH, K, draw, keep_logits, tokens

CASES = {
    "safetensors": {},
    "bin": {"activation_function": "relu", "n_inner": 12},
    "untied": {"activation_function": "gelu", "tie_word_embeddings": False},
    "inverse_layer": {"scale_attn_by_inverse_layer_idx": True},
    "no_scale": {"scale_attn_weights": False},
}


def main() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    for name, changes in CASES.items():
        special = {"bos_token_id": 0, "eos_token_id": 0}
        shape = {"vocab_size": K, "n_positions": LENGTH, "n_embd": 8, "n_layer": 2, "n_head": 2}
        model = draw(GPT2LMHeadModel(GPT2Config(**shape, **special, **changes)))
        folder = HERE / f"gpt2_{name}"
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink()
        if name == "bin":  # as on the hub of old: no prefix, no head, the causal mask among the weights
            (folder / "model.safetensors").unlink()
            state = model.transformer.state_dict()
            for layer in range(2):
                state[f"h.{layer}.attn.bias"] = torch.ones(1, 1, LENGTH, LENGTH).tril().bool()
                state[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
            torch.save(state, folder / "pytorch_model.bin")
        keep_logits(f"gpt2_{name}", model(tokens()).logits)


if __name__ == "__main__":
    main()
