"""HookedTransformer's processing of weights: norms folded in, weights centred, predictions unchanged."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from mechmarkov.models.lens.errors import LensError

FOLDED = {"LN": "LNPre", "RMS": "RMSPre"}
CHANGE = 1e-3  # of a log probability: weights are processed in float32
SEQUENCES, LENGTH = 4, 32  # that are compared


@torch.no_grad()
def process_weights_(
    self: Any,
    fold_ln: bool = True,
    center_writing_weights: bool = True,
    center_unembed: bool = True,
    refactor_factored_attn_matrices: bool = False,
) -> None:
    """Simplify the weights in place, by TransformerLens' own `ProcessWeights`; log probabilities stay.

    What a norm multiplies and adds goes into the weights that read it, and `normalization_type` becomes
    "LNPre" or "RMSPre". Value biases go into `b_O`. Logits change by a constant at each position.

    Args:
        self: The model; its log probabilities before and after are compared on random tokens.
        fold_ln: Fold the weights of norms, where there are some.
        center_writing_weights: Take the mean from what writes into the residual stream, where LayerNorm does.
        center_unembed: Take the mean over tokens from `W_U` and `b_U`.
        refactor_factored_attn_matrices: Replace `W_Q`, `W_K` and `W_V`, `W_O` by others with equal products.

    Raises:
        TypeError: For a stack.
        LensError: For tied embeddings, norms that stand elsewhere than HookedTransformer's, and where
            predictions would change, as with shortformer positions; the model then stays as it is.
    """
    from transformer_lens.weight_processing import ProcessWeights  # imports transformers, which takes seconds

    self._refuse_stack("process_weights_")
    if self.config.tied:
        raise LensError("process_weights_: tied is true, and W_U cannot change without W_E")
    if self.config.mixer != "attention":
        raise LensError(f"process_weights_: mixer is {self.config.mixer!r}, expected 'attention'")
    for name in ("norm_first", "final_norm"):
        if not getattr(self.config, name):
            raise LensError(f"process_weights_: {name} is False, expected True: it folds such norms in")
    folds = fold_ln and self.config.normalization_type in FOLDED
    fields = vars(self.cfg) | ({} if self.pos_embed else {"positional_embedding_type": "rotary"})  # no W_pos
    after: dict[str, Tensor] = ProcessWeights.process_weights(
        {name: value.clone() for name, value in self.state_dict().items()},
        SimpleNamespace(**fields),
        fold_ln=folds,
        center_writing_weights=center_writing_weights,
        center_unembed=center_unembed,
        refactor_factored_attn_matrices=refactor_factored_attn_matrices,
    )
    kind = FOLDED[self.config.normalization_type] if folds else self.config.normalization_type
    processed = type(self)(self.config.model_copy(update={"normalization_type": kind}))
    processed.to(self.embed.W_E.device, self.embed.W_E.dtype)
    processed.load_state_dict({name: after[name] for name in processed.state_dict()})
    change = _change(self, processed)
    if not change < CHANGE:
        raise LensError(f"process_weights_ would change a log probability by {change:.2g}: the model stays")
    self.config, self.ln_final = processed.config, processed.ln_final
    for block, new in zip(self.blocks, processed.blocks, strict=True):
        block.ln1 = new.ln1
        if block.mlp is not None:
            block.ln2 = new.ln2
    self.load_state_dict(processed.state_dict())
    self.setup()


def _change(model: Any, other: Any) -> float:
    """The largest difference of a log probability, without the model's hooks."""
    length = min(model.config.n_ctx, LENGTH)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.d_vocab, (SEQUENCES, length), generator=generator)
    plain = type(model)(model.config).to(model.embed.W_E.device, model.embed.W_E.dtype)
    plain.load_state_dict(model.state_dict())
    ours, theirs = (one(tokens).log_softmax(-1) for one in (plain, other))
    return float((ours - theirs).abs().max())
