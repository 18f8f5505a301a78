"""The interface of a block's mixer, the component that moves information between positions."""

from typing import ClassVar

from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import FactoredMatrix
from transformer_lens.hook_points import HookPoint

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.layers import affine, parameter


class Mixer(nn.Module):
    """Base of `Attention`, and of whatever else a block mixes positions with; it stands at `block.attn`.

    A mixer has heads. Each reads the residual stream, gathers values over positions in `z`, and writes
    `z @ W_O` to the stream. A subclass sets the two class attributes and `forward`. Recording and
    interventions ask these, and never assume attention scores.

    Attributes:
        inputs: Which of Q, K and V a head reads the stream by. Each has `W_Q` `[*stack, head, d_model,
            d_head]`, `b_Q` `[*stack, head, d_head]` and `hook_q` `[*stack, batch, position, head, d_head]`,
            and is a receiver of paths (`L1H0.Q`). V is always there: `W_V @ W_O` is the value circuit.
        has_attention_weights: Whether there are `hook_attn_scores` and `hook_pattern` `[*stack, batch, head,
            query, key]`. Without them, recording leaves the layer out and interventions on attention
            refuse it.
        W_O: `[*stack, head, d_head, d_model]`, with `b_O` `[*stack, d_model]`.
        hook_z: `[*stack, batch, position, head, d_head]`.
    """

    inputs: ClassVar[tuple[str, ...]]
    has_attention_weights: ClassVar[bool]

    W_V: nn.Parameter
    b_V: nn.Parameter
    hook_v: HookPoint
    hook_result: HookPoint  # exists after `set_use_attn_result(True)`

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        heads, width = config.n_heads, config.d_head
        # Parameters in this order, in which `initialise` draws them.
        for side in self.inputs:
            self.register_parameter(f"W_{side}", parameter(stack, heads, config.d_model, width))
        self.W_O = parameter(stack, heads, width, config.d_model)
        for side in self.inputs:
            self.register_parameter(f"b_{side}", parameter(stack, heads, width))
        self.b_O = parameter(stack, config.d_model)
        for side in self.inputs:
            self.add_module(f"hook_{side.lower()}", HookPoint())
        self.hook_z = HookPoint()

    def forward(
        self, query_input: Tensor, key_input: Tensor, value_input: Tensor, tokens: Tensor | None = None
    ) -> Float[Tensor, "*stack batch position d_model"]:
        """What the heads add to the residual stream.

        Args:
            query_input: `[*stack, batch, position, d_model]`, or with a head axis before `d_model` where the
                inputs were split by head.
            key_input: The same for keys.
            value_input: The same for values.
            tokens: The sequences, where the inputs are those of the sequences that repeat one token
                (`HookedDecoder.use_fast_kernels`; given to `Attention` alone).
        """
        raise NotImplementedError

    @property
    def OV(self) -> FactoredMatrix:
        """What a head writes for what it reads: `W_V @ W_O`, `[*stack, head, d_model, d_model]`."""
        return FactoredMatrix(self.W_V, self.W_O)

    def value_circuit(
        self, x: Float[Tensor, "*stack row d_model"]
    ) -> Float[Tensor, "*stack head row d_model"]:
        """What each head writes for the vectors that it reads: `x @ W_V @ W_O`, in the dtype of `x`."""
        return x.unsqueeze(-3) @ self.W_V.to(x.dtype) @ self.W_O.to(x.dtype)

    def project(self, side: str, x: Tensor) -> Float[Tensor, "... position head d_head"]:
        """Queries, keys or values (`side` Q, K or V) of an input of `forward`, through their hook."""
        weight: Tensor = getattr(self, f"W_{side}")  # a tensor under `torch.func.functional_call`
        bias: Tensor = getattr(self, f"b_{side}")
        hook: HookPoint = getattr(self, f"hook_{side.lower()}")
        if x.ndim - weight.ndim == 1:  # split by head: [*stack, batch, position, head, d_model]
            m = "model " * (weight.ndim - 3)
            split = einsum(x, weight, f"{m}b p head d_in, {m}head d_in d_head -> {m}b p head d_head")
            return hook(split + (bias if weight.ndim == 3 else bias[:, None, None]))
        flat = affine(
            x,
            rearrange(weight, "... head d_in d_head -> ... d_in (head d_head)"),
            rearrange(bias, "... head d_head -> ... (head d_head)"),
        )
        return hook(flat.view(*flat.shape[:-1], *bias.shape[-2:]))

    def write(self, z: Float[Tensor, "... position head d_head"]) -> Float[Tensor, "... position d_model"]:
        """`z @ W_O + b_O`, through `hook_z` and, where it exists, `hook_result`."""
        z = self.hook_z(z)
        if "hook_result" in self._modules:
            m = "model " * (self.W_O.ndim - 3)
            result = einsum(z, self.W_O, f"{m}b p head d_head, {m}head d_head d -> {m}b p head d")
            result = self.hook_result(result)  # [*stack, batch, position, head, d_model]
            total: Tensor = result.sum(-2) + (self.b_O if not m else self.b_O[:, None, None])
            return total
        weight = rearrange(self.W_O, "... head d_head d_model -> ... (head d_head) d_model")
        return affine(z.flatten(-2), weight, self.b_O)
