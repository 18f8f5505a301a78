"""HookedTransformer's weights of a decoder, stacked over layers, and what follows from them."""

from operator import attrgetter
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens import FactoredMatrix, HookedRootModule
from transformer_lens.utilities import composition_scores

from mechmarkov.models.components import head_names
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.lens.labels import Labels
from mechmarkov.utils.text import shown


def _weight(place: str, shape: str) -> property:
    """A property that is a weight; one of the blocks is stacked along a layer axis."""

    def weight(self: "LensWeights") -> Tensor:
        self._refuse_stack(place)
        if not shape.startswith("[layer"):
            return self.weight(place)
        return torch.stack([self.weight(f"blocks.{i}.{place}") for i in range(len(self.blocks))])

    return property(weight, doc=f"`{shape}`.")


class LensWeights(Labels, HookedRootModule):  # type: ignore[misc]  # TransformerLens is not typed for us
    """The weights that TransformerLens' tools read; a stack refuses what would go wrong."""

    config: DecoderConfig
    n_models: int | None

    def _refuse_stack(self, what: str) -> None:
        if self.n_models is not None:
            raise TypeError(
                f"{what}: this is a stack of {self.n_models} models, and TransformerLens' tools would index "
                "its model axis as the batch; use a member, stack[i]"
            )

    def weight(self, name: str) -> Tensor:
        """Returns a weight by its name, `blocks.0.attn.W_K`: that of each head, shared or not."""
        return attrgetter(name)(self)

    W_E = _weight("embed.W_E", "[d_vocab, d_model]")
    W_U = _weight("unembed.W_U", "[d_model, d_vocab_out]")
    b_U = _weight("unembed.b_U", "[d_vocab_out]")

    @property
    def W_pos(self) -> Tensor:
        """`[n_ctx, d_model]`; a ValueError where positions are not learned vectors."""
        self._refuse_stack("W_pos")
        if self.pos_embed is None:
            raise ValueError(f"{self.config.positional_embedding_type} positions have no W_pos")
        return self.weight("pos_embed.W_pos")

    @property
    def W_E_pos(self) -> Tensor:
        """`W_E` above `W_pos`, `[d_vocab + n_ctx, d_model]`."""
        self._refuse_stack("W_E_pos")
        return torch.cat([self.W_E, self.W_pos])

    W_Q = _weight("attn.W_Q", "[layer, head, d_model, d_head]")
    W_K = _weight("attn.W_K", "[layer, head, d_model, d_head]")
    W_V = _weight("attn.W_V", "[layer, head, d_model, d_head]")
    W_O = _weight("attn.W_O", "[layer, head, d_head, d_model]")
    b_Q = _weight("attn.b_Q", "[layer, head, d_head]")
    b_K = _weight("attn.b_K", "[layer, head, d_head]")
    b_V = _weight("attn.b_V", "[layer, head, d_head]")
    b_O = _weight("attn.b_O", "[layer, d_model]")
    W_in = _weight("mlp.W_in", "[layer, d_model, d_mlp]")
    b_in = _weight("mlp.b_in", "[layer, d_mlp]")
    W_out = _weight("mlp.W_out", "[layer, d_mlp, d_model]")
    b_out = _weight("mlp.b_out", "[layer, d_model]")
    _W_gates = _weight("mlp.W_gate", "[layer, d_model, d_mlp]")

    @property
    def W_gate(self) -> Tensor | None:
        """`[layer, d_model, d_mlp]`; None where the MLPs have no gate."""
        self._refuse_stack("W_gate")
        return self._W_gates if self.config.gated_mlp else None

    @property
    def n_params_total(self) -> int:
        """Returns how many numbers all parameters hold, of a stack those of all its models.

        `cfg.n_params` counts only the matrices of attention and MLPs.
        """
        return sum(parameter.numel() for parameter in self.parameters())

    def tl_parameters(self) -> dict[str, Tensor]:
        """Returns the weights by name, for `SVDInterpreter`; a tied unembedding is among them."""
        self._refuse_stack("tl_parameters")
        return {**dict(self.named_parameters()), "unembed.W_U": self.W_U}

    @property
    def OV(self) -> FactoredMatrix:
        """`W_V @ W_O` of every head, `[layer, head, d_model, d_model]`."""
        return FactoredMatrix(self.W_V, self.W_O)

    @property
    def QK(self) -> FactoredMatrix:
        """`W_Q @ W_K^T` of every head, `[layer, head, d_model, d_model]`."""
        return FactoredMatrix(self.W_Q, self.W_K.mT)

    def all_composition_scores(self, mode: Literal["Q", "K", "V"]) -> Tensor:
        """Returns how much of each head's output a later head can read (composition; Elhage et al. 2021).

        Returns:
            `[layer, head, layer, head]`, zero where the second head is not in a later layer.

        Raises:
            ValueError: Another mode.
        """
        reader = {"Q": lambda: self.QK, "K": lambda: self.QK.T, "V": lambda: self.OV}
        if mode not in reader:
            raise ValueError(f"mode is {shown(mode)}, expected 'Q', 'K' or 'V'")
        scores: Tensor = composition_scores(self.OV, reader[mode](), broadcast_dims=True)
        layer = torch.arange(self.config.n_layers, device=scores.device)
        later = layer[:, None, None, None] < layer[None, None, :, None]
        return torch.where(later, scores, 0.0)

    def all_head_labels(self) -> list[str]:
        """`["L0H0", "L0H1", …]`."""
        return head_names(self.config)

    def tokens_to_residual_directions(self, tokens: Int[Tensor, "*tokens"] | int | str) -> Tensor:
        """Returns the unembedding direction of each token, `[*tokens, d_model]`; of a single one `[d_model]`.

        A token may be its label.
        """
        if isinstance(tokens, str):
            tokens = self.to_single_token(tokens)
        if isinstance(tokens, Tensor) and tokens.numel() == 1:  # as HookedTransformer has it
            tokens = tokens.reshape(())
        return self.W_U.mT[tokens]

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Tensor:
        """Returns the sum of all output biases before `layer`, `[d_model]`."""
        self._refuse_stack("accumulated_bias")
        total = torch.zeros_like(self.embed.W_E[0])
        for i, block in enumerate(self.blocks):
            if i < layer or (i == layer and mlp_input):
                total = total + block.attn.b_O
            if i < layer and block.mlp is not None and include_mlp_biases:
                total = total + block.mlp.b_out
        return total
