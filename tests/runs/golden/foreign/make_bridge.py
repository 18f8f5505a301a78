"""Writes bridge_*.pt: state dicts of TransformerLens 4's TransformerBridge, native and around a GPT-2.

python tests/runs/golden/foreign/make_bridge.py
"""

from tempfile import TemporaryDirectory

import torch
from foreign_numbers import HERE, LENGTH, K, draw, keep_logits, tokens

BASE = {"d_model": 8, "n_ctx": LENGTH, "d_head": 4, "n_heads": 2, "d_vocab": K, "device": "cpu", "seed": 0}
CASES = {
    "native_mlp": {"n_layers": 2, "act_fn": "gelu_new", "d_mlp": 12, "normalization_type": "LN"},
    "native_attn_only": {"n_layers": 1, "attn_only": True, "normalization_type": None},
    "native_rotary": {
        "n_layers": 1,
        "attn_only": True,
        "normalization_type": "RMS",
        "positional_embedding_type": "rotary",
        "rotary_adjacent_pairs": True,
    },
}


def native(**changes: object) -> torch.nn.Module:
    """A bridge of TransformerLens' own."""
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    return draw(TransformerBridge.boot_native(TransformerBridgeConfig(**(BASE | changes))))


def around_gpt2() -> torch.nn.Module:
    """A bridge around a GPT-2 of transformers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=K, n_positions=LENGTH, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return around(draw(GPT2LMHeadModel(config)))


def around(model: torch.nn.Module) -> torch.nn.Module:
    """A bridge around a model of transformers."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

    model.config.architectures = [type(model).__name__]
    words = Tokenizer(WordLevel({str(state): state for state in range(K)}, unk_token="0"))
    made = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="0", bos_token="0", eos_token="0")
    with TemporaryDirectory() as folder:  # TransformerLens asks where it came from
        made.save_pretrained(folder)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(
            type(model).__name__, hf_model=model, tokenizer=tokenizer, device="cpu"
        )
    return bridge.eval()


def main() -> None:
    bridges = {name: native(**changes) for name, changes in CASES.items()}
    for name, bridge in {**bridges, "gpt2": around_gpt2()}.items():
        saved = {"cfg": bridge.cfg.to_dict(), "model": bridge.state_dict()}
        torch.save(saved, HERE / f"bridge_{name}.pt")
        keep_logits(f"bridge_{name}", bridge(tokens()))


if __name__ == "__main__":
    main()
