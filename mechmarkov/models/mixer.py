"""The interface of a block's mixer, which moves information between positions, and what it is given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformer_lens import FactoredMatrix
from transformer_lens.hook_points import HookPoint

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.layers import affine, parameter

MIXERS: dict[str, type["Mixer"]] = {}  # by the name that `DecoderConfig.mixer` chooses
UNKNOWN_TOKEN = -1  # stands for each token of a pass that begins from a residual stream, if none are given


@dataclass(frozen=True, eq=False)
class Context:
    """The inputs of one layer's queries beyond the causal mask.

    Attributes:
        visible: False for a token that no query attends to; None where all are visible. It has the tokens
            of earlier passes first.
        past: The layer's entry of TransformerLens' `TransformerLensKeyValueCache`, to which `append` adds
            keys and values; None without earlier passes.
    """

    visible: Bool[Tensor, "*stack batch key"] | None = None
    past: Any = None


class Mixer(nn.Module):
    """Base of `Attention`, and of whatever else a block mixes positions with; it stands at `block.attn`.

    A mixer has heads. Each reads the residual stream, gathers values over positions in `z`, and writes
    `z @ W_O` to the stream. A subclass sets `inputs`, `has_attention_weights` and `mix`, and gives its name:
    `class Attention(Mixer, name="attention")`. Recording and interventions ask these, and never assume
    attention scores.

    With `n_key_value_heads` the keys and values of neighbouring heads are one (grouped queries; Ainslie et
    al. 2023, arXiv 2305.13245). Parameters are then `_W_K`, `_b_K`, `_W_V` and `_b_V`, and activations up to
    `per_head` have `kv_head` for `head`. `W_K` and the like still have an entry for each head.

    Attributes:
        inputs: Which of Q, K and V a head reads the stream by. Each has `W_Q` `[*stack, head, d_model,
            d_head]`, `b_Q` `[*stack, head, d_head]` and `hook_q` `[*stack, batch, position, head, d_head]`,
            and is a receiver of paths (`L1H0.Q`). V is always there: `W_V @ W_O` is the value circuit.
        has_attention_weights: Whether there are `hook_attn_scores` and `hook_pattern` `[*stack, batch, head,
            query, key]`. Without them, recording leaves the layer out and interventions on attention
            refuse it.
        takes_last_queries: Whether `mix` takes queries of the last positions with all keys and values.
        takes_context: Whether `mix` takes a `Context`: masked keys, and keys of earlier passes.
        is_ungrouped: Whether keys and values that heads share are computed for each head, with equal results
            (HookedTransformer's `ungroup_grouped_query_attention`).
        is_linear: Whether scores are products of queries and keys, and `z` sums of values: whether
            `W_Q @ W_K^T` and `W_V @ W_O` say what a head does. Else what reads these leaves the layer out.
        W_O: `[*stack, head, d_head, d_model]`, with `b_O` `[*stack, d_model]`.
        hook_z: `[*stack, batch, position, head, d_head]`.
    """

    inputs: ClassVar[tuple[str, ...]]
    has_attention_weights: ClassVar[bool]
    takes_last_queries: ClassVar[bool] = False
    takes_context: ClassVar[bool] = False
    is_ungrouped = False
    is_linear: ClassVar[bool] = True
    # Of queries, keys and values, which then have positions last in memory: see `use_fast_kernels`.
    fused: Callable[..., Tensor] | None = None

    W_V: nn.Parameter
    b_V: nn.Parameter
    hook_v: HookPoint
    hook_result: HookPoint  # exists after `set_use_attn_result(True)`

    def __init_subclass__(cls, name: str | None = None) -> None:
        if name in MIXERS:
            raise ValueError(f"mixer {name!r} is {MIXERS[name].__module__}.{MIXERS[name].__name__} already")
        if name is not None:
            MIXERS[name] = cls

    def __init__(self, config: DecoderConfig, stack: tuple[int, ...]) -> None:
        super().__init__()
        self.config = config
        # Parameters in this order, in which `initialise` draws them.
        for side in self.inputs:
            n, width = self.read_shape(side)
            self.register_parameter(self._stored(f"W_{side}"), parameter(stack, n, config.d_model, width))
        self.W_O = parameter(stack, config.n_heads, config.d_head, config.d_model)
        for side in self.inputs:
            self.register_parameter(self._stored(f"b_{side}"), parameter(stack, *self.read_shape(side)))
        self.b_O = parameter(stack, config.d_model)
        for side in self.inputs:
            self.add_module(f"hook_{side.lower()}", HookPoint())
        self.hook_z = HookPoint()

    def add_input(self, side: str, stack: tuple[int, ...], width: int) -> None:
        """Build one more input of each head, for `project`: weight, bias and hook."""
        heads = self.config.n_heads
        self.register_parameter(f"W_{side}", parameter(stack, heads, self.config.d_model, width))
        self.register_parameter(f"b_{side}", parameter(stack, heads, width))
        self.add_module(f"hook_{side.lower()}", HookPoint())

    def read_shape(self, side: str) -> tuple[int, int]:
        """Returns how many heads, or groups, have their own input (`side` Q, K or V), and its width."""
        heads = self.config.n_heads if side == "Q" else self.config.n_key_value_heads or self.config.n_heads
        return heads, self.config.d_head

    def shares(self, side: str) -> bool:
        """Returns whether heads share an input: HookedTransformer marks its parameters, `_W_K` for `W_K`."""
        return self.config.n_key_value_heads is not None and side in "KV"

    def n_inputs(self, side: str) -> int:
        """Returns how many inputs a side has where inputs are split: one for each head, or group of heads."""
        shared = self.config.n_key_value_heads if side in "KV" and not self.is_ungrouped else None
        return shared or self.config.n_heads

    def _stored(self, name: str) -> str:
        """The parameter that holds a weight."""
        return f"_{name}" if self.shares(name[2:]) else name

    def _reader(self, name: str) -> Tensor:
        """A weight as inputs are read by it: of each head, or of groups of heads."""
        return getattr(self, name if self.is_ungrouped else self._stored(name))

    def __getattr__(self, name: str) -> Any:
        """`W_K`, `b_K` and the like of each head, where heads share them."""
        if name[:2] in ("W_", "b_") and f"_{name}" in self._parameters:
            return self.per_head(getattr(self, f"_{name}"), axis=-3 if name[0] == "W" else -2)
        return super().__getattr__(name)

    def per_head(self, x: Tensor, axis: int = -2) -> Tensor:
        """Returns what groups of heads share, `kv_head` at `axis`, an entry for each head; else unchanged."""
        repeats = self.config.n_heads // x.shape[axis]
        return x if repeats == 1 else x.repeat_interleave(repeats, axis)

    def forward(
        self, query_input: Tensor, key_input: Tensor, value_input: Tensor, *context: Context
    ) -> Float[Tensor, "*stack batch position d_model"]:
        """Returns what the heads add to the residual stream; arguments as of `mix`."""
        return self.write(self.mix(query_input, key_input, value_input, *context))

    def mix(
        self, query_input: Tensor, key_input: Tensor, value_input: Tensor
    ) -> Float[Tensor, "*stack batch position head d_head"]:
        """Returns what each head gathers, `z`; of groups of heads, where these gather the same.

        Args:
            query_input: `[*stack, batch, position, d_model]`, or with a head axis before `d_model` where the
                inputs were split by head.
            key_input: That of keys.
            value_input: That of values.

        A mixer that `takes_context` is given one last, where a pass has one.
        """
        raise NotImplementedError

    @property
    def OV(self) -> FactoredMatrix:
        """Returns what a head writes for what it reads: `W_V @ W_O`, `[*stack, head, d_model, d_model]`."""
        return FactoredMatrix(self.W_V, self.W_O)

    def value_circuit(
        self, x: Float[Tensor, "*stack row d_model"]
    ) -> Float[Tensor, "*stack head row d_model"]:
        """Returns what each head writes for vectors that it reads: `x @ W_V @ W_O`, in the dtype of `x`."""
        return x.unsqueeze(-3) @ self.W_V.to(x.dtype) @ self.W_O.to(x.dtype)

    def read_by(
        self, side: str, x: Float[Tensor, "*stack_lead row d_model"]
    ) -> Float[Tensor, "*stack_lead head row d_head"]:
        """Each head's queries, keys or values (`side` Q, K or V) of vectors that it reads, no positions."""
        weight, bias = getattr(self, f"W_{side}"), getattr(self, f"b_{side}")
        stack, lead = weight.shape[:-3], [1] * (x.ndim + 1 - weight.ndim)
        weight = weight.view(*stack, *lead, *weight.shape[-3:])
        return x.unsqueeze(-3) @ weight + bias.view(*stack, *lead, *bias.shape[-2:]).unsqueeze(-2)

    def project(self, side: str, x: Tensor) -> Float[Tensor, "... position head d_head"]:
        """Compute queries, keys or values (`side` Q, K or V) of an input of `forward`, through their hook.

        Keys and values are those of groups of heads where heads share them; of every head where the input
        is split by head.
        """
        split = x.ndim - self.W_O.ndim == 1  # [*stack, batch, position, head, d_model]
        names = f"W_{side}", f"b_{side}"
        if split and x.shape[-2] == self.config.n_heads:
            weight, bias = (getattr(self, name) for name in names)
        else:
            weight, bias = map(self._reader, names)  # tensors under `torch.func.functional_call`
        hook: HookPoint = getattr(self, f"hook_{side.lower()}")
        if split:
            m = "model " * (weight.ndim - 3)
            split = einsum(x, weight, f"{m}b p head d_in, {m}head d_in d_head -> {m}b p head d_head")
            return hook(split + (bias if weight.ndim == 3 else bias[:, None, None]))
        matrix = rearrange(weight, "... head d_in d_head -> ... d_in (head d_head)")
        flat = affine(x, matrix, bias.flatten(-2), transposed=self.fused is not None)
        return hook(flat.view(*flat.shape[:-1], *bias.shape[-2:]))

    def project_all(self, **inputs: Tensor) -> list[Float[Tensor, "... position head d_head"]]:
        """Compute `project` of some sides.

        What sides of a stack read together is one product, unless it is trained.
        A product with 6 columns takes longer than one with 18 (oneMKL).
        """
        readers: dict[int, list[str]] = {}
        for side, x in inputs.items():
            readers.setdefault(id(x), []).append(side)
        found: dict[str, Tensor] = {}
        for sides in readers.values():
            x = inputs[sides[0]]
            if len(sides) == 1 or x.ndim != self.W_O.ndim or x.ndim < 4 or torch.is_grad_enabled():
                continue
            own = [[self._reader(f"{kind}_{side}") for side in sides] for kind in "Wb"]
            weights = [rearrange(weight, "m head d_in d_head -> m d_in (head d_head)") for weight in own[0]]
            biases = torch.cat([bias.flatten(-2) for bias in own[1]], -1)
            out = affine(x, torch.cat(weights, -1), biases, transposed=self.fused is not None)
            parts = out.split([weight.shape[-1] for weight in weights], -1)
            for side, part, bias in zip(sides, parts, own[1], strict=True):
                found[side] = part.unflatten(-1, bias.shape[-2:])
        hooks = {side: self.get_submodule(f"hook_{side.lower()}") for side in found}
        return [
            hooks[side](found[side]) if side in found else self.project(side, x) for side, x in inputs.items()
        ]

    def write(self, z: Float[Tensor, "... position head d_head"]) -> Float[Tensor, "... position d_model"]:
        """Compute `z @ W_O + b_O`, through `hook_z` and, where it exists, `hook_result`."""
        z = self.hook_z(self.per_head(z))
        if "hook_result" in self._modules:
            m = "model " * (self.W_O.ndim - 3)
            result = einsum(z, self.W_O, f"{m}b p head d_head, {m}head d_head d -> {m}b p head d")
            result = self.hook_result(result)  # [*stack, batch, position, head, d_model]
            return result.sum(-2) + (self.b_O if not m else self.b_O[:, None, None])
        weight = rearrange(self.W_O, "... head d_head d_model -> ... (head d_head) d_model")
        # In training the residual stream too has positions last.
        is_turned = self.fused is not None and torch.is_grad_enabled()
        return affine(z.flatten(-2), weight, self.b_O, transposed=is_turned)
