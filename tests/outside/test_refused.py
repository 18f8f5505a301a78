"""What no `HookedDecoder` computes: one line that names it."""

import pytest
import torch
import transformers
from circle import LENGTH, N_STATES, SOURCE, SPECIAL
from torch import nn

import mechmarkov as mm

SIZES = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "vocab_size": N_STATES, "max_position_embeddings": LENGTH,
}  # fmt: skip

LINEAR = {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("Mixtral", {"num_local_experts": 2}, "model_type is 'mixtral', expected gpt2, llama"),
        ("Gemma2", {"head_dim": 8}, "model_type is 'gemma2', expected gpt2, llama"),
        ("Llama", {"rope_scaling": LINEAR}, "rope_type is 'linear': a HookedDecoder cannot express it"),
        ("Llama", {"mlp_bias": True}, "mlp_bias is True: a HookedDecoder cannot express it"),
    ],
)  # fmt: skip
def test_a_model_of_transformers_that_it_cannot_express(kind, changes, words):
    config = getattr(transformers, f"{kind}Config")(**(SIZES | SPECIAL | changes))
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with pytest.raises(ValueError, match=words) as caught:
        mm.Run.from_model(model, source=SOURCE)
    assert len(str(caught.value).splitlines()) == 1


class PostNorm(nn.Module):
    """torch's own encoder with a causal mask: by default it norms after the residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(N_STATES, 16), nn.Embedding(LENGTH, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, N_STATES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(
            self.encoder(self.tokens(tokens) + self.places.weight[:length], mask, is_causal=True)
        )


class PreNorm(PostNorm):
    """The same with `norm_first=True` and a last norm."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(16), enable_nested_tensor=False)


AT, TO = r"encoder\.layers\.(\d+)\.", r"blocks.\1."
NAMES = {
    "tokens.weight": "embed.W_E",
    "places.weight": "pos_embed.W_pos",
    "head.weight": "unembed.W_U",
    "head.bias": "unembed.b_U",
    "encoder.norm.weight": "ln_final.w",
    "encoder.norm.bias": "ln_final.b",
    AT + "self_attn.in_proj_weight": {"to": [f"{TO}attn.W_{x}" for x in "QKV"], "split": "parts"},
    AT + "self_attn.in_proj_bias": {"to": [f"{TO}attn.b_{x}" for x in "QKV"], "split": "parts"},
    AT + "self_attn.out_proj.weight": TO + "attn.W_O",
    AT + "self_attn.out_proj.bias": TO + "attn.b_O",
    AT + r"norm(\d)\.weight": TO + r"ln\2.w",
    AT + r"norm(\d)\.bias": TO + r"ln\2.b",
    AT + r"linear1\.weight": TO + "mlp.W_in",
    AT + r"linear1\.bias": TO + "mlp.b_in",
    AT + r"linear2\.weight": TO + "mlp.W_out",
    AT + r"linear2\.bias": TO + "mlp.b_out",
}


class NoLastNorm(PostNorm):
    """The same with `norm_first=True` and no last norm."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@pytest.mark.parametrize(
    ("model", "places"), [(PostNorm, (False, False)), (PreNorm, (True, True)), (NoLastNorm, (True, False))]
)
def test_torchs_own_encoder_comes_in(model, places):
    run = mm.Run.from_model(model(), source=SOURCE, names=NAMES, given={"n_heads": 2, "act_fn": "relu"})
    assert run.provenance["logit_difference"] <= 1e-5
    assert (run.config.norm_first, run.config.final_norm) == places
