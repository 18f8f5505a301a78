"""What a decoder is given: tokens, a residual stream to begin from, masks and earlier passes."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.models.block import added
from mechmarkov.models.layers import is_hooked
from mechmarkov.models.lens.errors import LensError, NoTokenizerError
from mechmarkov.models.lens.surface import LensSurface
from mechmarkov.models.mixer import UNKNOWN_TOKEN, Context
from mechmarkov.utils.text import shown

Embedded = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


class Inputs(LensSurface):
    """HookedTransformer's ways into a forward pass, on a single model and on a stack."""

    def input_to_embed(
        self,
        input: Int[Tensor, "*batch position"],  # noqa: A002 - HookedTransformer's name
        prepend_bos: bool | None = None,  # noqa: ARG002 - only of text
        padding_side: str | None = None,  # noqa: ARG002
        attention_mask: Tensor | None = None,
        past_kv_cache: Any = None,
    ) -> Embedded:
        """The residual stream before the first layer, from which a pass begins with `start_at_layer=0`.

        Arguments and errors are those of `HookedDecoder.forward`.

        Returns:
            The stream `[*stack, batch, position, d_model]`, the tokens `[*stack, batch, position]`, a
            shortformer model's positions (else None), and the mask, with that of a cache before it.
        """
        earlier = _length_of(past_kv_cache)
        tokens = self._checked(input, earlier)
        if attention_mask is not None:
            attention_mask = self._checked_mask(attention_mask, tokens)
        if past_kv_cache is not None:
            self._check_cache(past_kv_cache, tokens)
            new = torch.ones_like(tokens) if attention_mask is None else attention_mask
            attention_mask = past_kv_cache.append_attention_mask(new)
        embed = self.hook_embed(self.embed(tokens))
        positions = self._positions(embed, earlier, attention_mask)
        if positions is None:
            return embed, tokens, None, attention_mask
        if self.config.positional_embedding_type == "shortformer":
            return embed, tokens, positions, attention_mask
        return added(embed, positions, self.embed, self.hook_embed), tokens, None, attention_mask

    def get_residual(
        self,
        embed: Float[Tensor, "*batch position d_model"],
        pos_offset: int = 0,
        prepend_bos: bool | None = None,  # noqa: ARG002 - only of text
        attention_mask: Tensor | None = None,
        tokens: Tensor | None = None,  # noqa: ARG002 - the embedding has their shape
        return_shortformer_pos_embed: bool = True,
        device: Any = None,  # noqa: ARG002 - the model's
    ) -> Any:
        """Embeddings with positions, from which a pass begins with `start_at_layer=0`.

        Returns:
            The residual stream, and besides it, unless that is not wanted, a shortformer model's positions.
        """
        embed = self._checked_residual(embed, pos_offset)
        positions = self._positions(embed, pos_offset, attention_mask)
        shortformer = self.config.positional_embedding_type == "shortformer"
        residual = embed if positions is None or shortformer else embed + positions
        return (residual, positions if shortformer else None) if return_shortformer_pos_embed else residual

    def _positions(self, embed: Tensor, earlier: int, mask: Tensor | None) -> Tensor | None:
        if self.pos_embed is None:
            return None
        positions: Tensor = self.pos_embed(embed[..., 0], earlier, mask)
        if is_hooked(self.hook_pos_embed):  # a hook that writes in place writes into one sequence
            positions = self.hook_pos_embed(positions.clone())
        return positions

    def _contexts(self, residual: Tensor, mask: Tensor | None, cache: Any) -> list[Context]:
        """Returns what each layer's mixer has besides its inputs."""
        blocks: list[Any] = list(self.blocks)
        given = "attention_mask" if cache is None else "past_kv_cache"
        if without := [type(block.attn).__name__ for block in blocks if not block.attn.takes_context]:
            raise ValueError(f"{given} is given, but a {without[0]} does not take one")
        if cache is not None:
            self._check_cache(cache, residual[..., 0])
        if mask is not None:
            mask = mask.bool().expand(*residual.shape[:-2], mask.shape[-1])
            if mask.shape[-1] != _length_of(cache) + residual.shape[-2]:
                n = _length_of(cache) + residual.shape[-2]
                raise LensError(f"attention_mask has {mask.shape[-1]} positions, expected {n}")
        return [Context(mask, None if cache is None else cache[layer]) for layer in range(len(blocks))]

    def _layer(self, name: str, layer: int) -> int:
        n = self.config.n_layers
        if not -n <= layer <= n:
            raise ValueError(f"{name} is {layer}, expected {-n} to {n} for this model's {n} layers")
        return layer if layer >= 0 else n + layer

    def _shortformer(
        self, residual: Tensor, given: Tensor | None, mask: Tensor | None, cache: Any
    ) -> Tensor | None:
        """Returns what a pass from a residual stream adds to queries and keys."""
        kind = self.config.positional_embedding_type
        if kind == "shortformer":
            return self._positions(residual, _length_of(cache), mask) if given is None else given
        if given is not None:
            raise ValueError(f"shortformer_pos_embed is given, but this model has {kind} positions")
        return None

    def _given(self, residual: Tensor, tokens: Tensor | None, layer: int) -> tuple[Tensor, Tensor | None]:
        """A residual stream to begin from at a layer, and its tokens; who follows tokens is told them."""
        residual = self._checked_residual(residual)
        if tokens is not None:
            tokens = self._checked(tokens)
            if tokens.shape != residual.shape[:-1]:
                shapes = list(tokens.shape), list(residual.shape[:-1])
                raise ValueError(f"tokens have shape {shapes[0]}, expected the input's {shapes[1]}")
        told = residual.new_full(residual.shape[:-1], UNKNOWN_TOKEN).long() if tokens is None else tokens
        for listener in self.embed.listeners:
            listener(told, layer)
        return residual, tokens

    def _checked(self, tokens: Tensor, earlier: int = 0) -> Tensor:
        """Tokens `[*stack, batch, position]` on the model's device, after those of earlier passes."""
        if not isinstance(tokens, Tensor):
            texts = tokens if isinstance(tokens, (list, tuple)) else [tokens]
            if any(isinstance(text, str) for text in texts):
                raise NoTokenizerError(f"input is {shown(tokens)}")
            raise TypeError(f"input is {shown(tokens)}, expected a tensor: torch.as_tensor(input)")
        m, tokens = self.n_models, _batched(tokens)
        if tokens.ndim != 2 and (m is None or tokens.ndim != 3 or tokens.shape[0] != m):
            stack = "" if m is None else f" or [{m}, batch, position] for this stack"
            shape = list(tokens.shape)
            raise ValueError(f"tokens have shape {shape}, expected [batch, position], [position]{stack}")
        if tokens.dtype not in (torch.int64, torch.int32):  # a lookup takes no others
            raise ValueError(f"tokens are {tokens.dtype}, expected integers")
        self._check_length(tokens.shape[-1], earlier)
        if tokens.device != self.embed.W_E.device:
            tokens = tokens.to(self.embed.W_E.device)
        return tokens if m is None or tokens.ndim == 3 else tokens.expand(m, *tokens.shape)

    def _checked_residual(self, x: Tensor, earlier: int = 0) -> Tensor:
        """A residual stream that is given, `[*stack, batch, position, d_model]`."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            found = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise LensError(f"input is {found}, expected the residual stream before a layer, of numbers")
        m, d_model = self.n_models, self.config.d_model
        fits = x.ndim == 3 or (m is not None and x.ndim == 4 and x.shape[0] == m)
        if not fits or x.shape[-1] != d_model:
            stack = "" if m is None else f" or [{m}, batch, position, {d_model}] for this stack"
            shape = list(x.shape)
            raise ValueError(f"input has shape {shape}, expected [batch, position, {d_model}]{stack}")
        self._check_length(x.shape[-2], earlier)
        x = x.to(self.embed.W_E.device)
        return x if m is None or x.ndim == 4 else x.expand(m, *x.shape)

    def _checked_mask(self, mask: Tensor, tokens: Tensor) -> Tensor:
        """A mask of tokens, of a stack for each member."""
        mask = _batched(mask.to(tokens.device))
        if mask.ndim < tokens.ndim:
            mask = mask.expand(len(tokens), *mask.shape)
        if mask.shape != tokens.shape:
            shapes = list(mask.shape), list(tokens.shape)
            raise LensError(f"attention_mask has shape {shapes[0]}, expected the tokens' {shapes[1]}")
        return mask

    def _check_cache(self, cache: Any, tokens: Tensor) -> None:
        self._refuse_stack("past_kv_cache")
        if (n := len(cache[0].past_keys)) != len(tokens):
            raise LensError(f"past_kv_cache holds {n} sequences, expected {len(tokens)}")

    def _check_length(self, length: int, earlier: int) -> None:
        n_ctx = self.config.n_ctx
        if length < 1 or length + earlier > n_ctx:
            before = f" after {earlier} of a cache" if earlier else ""
            raise ValueError(f"tokens have {length} positions{before}, expected 1 to n_ctx = {n_ctx}")


def _batched(x: Tensor) -> Tensor:
    return x[None] if x.ndim == 1 else x


def _length_of(cache: Any) -> int:
    return 0 if cache is None else int(cache[0].past_keys.shape[1])
