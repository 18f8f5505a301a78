"""What TransformerLens' tools read from a model.

`ActivationCache`, `patching`, `SVDInterpreter` and the composition scores take any `HookedRootModule` that
has `cfg` and HookedTransformer's weight properties. They index activations as `[:, position]`. On a stack
that is silently the wrong axis, so a stack refuses them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Literal, NoReturn, TypeVar

import torch
from torch import Tensor, nn
from transformer_lens import ActivationCache, FactoredMatrix, HookedRootModule
from transformer_lens.hook_points import HookPoint
from transformer_lens.utilities import composition_scores

from mechmarkov.models.components import head_names
from mechmarkov.models.config import DecoderConfig

# Optional hook points and their switches: they add computation.
OPTIONAL_POINTS = {
    "hook_result": "set_use_attn_result",
    "hook_q_input": "set_use_split_qkv_input",
    "hook_k_input": "set_use_split_qkv_input",
    "hook_v_input": "set_use_split_qkv_input",
    "hook_attn_in": "set_use_attn_in",
    "hook_mlp_in": "set_use_hook_mlp_in",
}


def _weight(place: str, shape: str) -> property:
    """A property that is a weight; one of the blocks is stacked along a layer axis."""

    def weight(self: "LensSurface") -> Tensor:
        self._refuse_stack(place)
        if not shape.startswith("[layer"):
            return self.weight(place)
        return torch.stack([self.weight(f"blocks.{i}.{place}") for i in range(len(self.blocks))])

    return property(weight, doc=f"`{shape}`.")


Surface = TypeVar("Surface", bound="LensSurface")


class LensSurface(HookedRootModule):  # type: ignore[misc]  # TransformerLens is not typed for us
    """What TransformerLens' tools need of a model; a stack refuses what would go wrong."""

    config: DecoderConfig
    n_models: int | None
    is_lens = False  # made by `as_lens`

    # -- configuration -------------------------------------------------------------------------------------

    @property
    def cfg(self) -> SimpleNamespace:
        """The config under the names TransformerLens' tools read; for a stack an error that says so."""
        self._refuse_stack("cfg")
        weight = self.embed.W_E
        return SimpleNamespace(
            **self.config.model_dump(),
            device=weight.device,
            dtype=weight.dtype,
            n_devices=1,
            use_attn_result=self._has("hook_result"),
            use_hook_result=self._has("hook_result"),
            use_split_qkv_input=self._has("hook_q_input"),
            ungroup_grouped_query_attention=self._has("hook_q_input") or self._has("hook_attn_in"),
            use_attn_in=self._has("hook_attn_in"),
            use_hook_mlp_in=self._has("hook_mlp_in"),
        )

    def _refuse_stack(self, what: str) -> None:
        if self.n_models is not None:
            raise TypeError(
                f"{what}: this is a stack of {self.n_models} models, and TransformerLens' tools would index "
                "its model axis as the batch; use a member, stack[i]"
            )

    def to_tokens(self, *_: Any, **__: Any) -> NoReturn:
        """Always an error: there is no tokenizer, and Markov data are integers already."""
        raise TypeError("a HookedDecoder has no tokenizer: give it integer tokens [batch, position]")

    def to(self: Surface, *args: Any, print_details: bool = False, **kwargs: Any) -> Surface:  # noqa: ARG002
        """As torch's `to`; `print_details`, which HookedTransformer takes, changes nothing."""
        return super().to(*args, **kwargs)

    def as_lens(self: Surface) -> Surface:
        """A copy with equal logits for tools that expect more than this model computes (`mm.compat()`).

        Attention is computed step by step, so that `hook_attn_scores` and `hook_pattern` run in every pass.
        Split inputs are at `attn.hook_q_input` too, where TransformerLens 4 has them. Each head has keys and
        values of its own. A model without MLPs gets one of width 1 that writes zeros.
        """
        self._refuse_stack("as_lens")
        config = self.config.model_dump() | {"n_key_value_heads": None}
        if config["attn_only"]:
            config |= {"attn_only": False, "act_fn": "relu", "d_mlp": 1}
        lens = type(self)(DecoderConfig(**config))
        lens.to(self.embed.W_E.device, self.embed.W_E.dtype)
        with torch.no_grad():
            for name, parameter in lens.named_parameters():
                if (".mlp." not in name and ".ln2." not in name) or not self.config.attn_only:
                    parameter.copy_(self.weight(name))
        lens.is_lens = True
        for block in lens.blocks:
            block.attn.is_explicit = True
        return lens

    # -- optional hook points ------------------------------------------------------------------------------

    def setup(self) -> None:
        """TransformerLens' tables of modules and hook points; for 4 split inputs are under `attn` too."""
        super().setup()
        for name, point in list(self.hook_dict.items()) if self.is_lens else []:
            block, _, last = name.rpartition(".")
            if last in ("hook_q_input", "hook_k_input", "hook_v_input"):
                self.mod_dict[f"{block}.attn.{last}"] = self.hook_dict[f"{block}.attn.{last}"] = point

    def _has(self, point: str) -> bool:
        return any(name.endswith("." + point) for name in self.hook_dict)

    def _switch(
        self, on: bool, place: Literal["attn", ""], *points: str, excludes: str | None = None
    ) -> None:
        if on and excludes and self._has(excludes):
            raise ValueError("split q, k, v inputs and a common attention input exclude each other")
        for block in self.blocks:
            module: nn.Module = getattr(block, place) if place else block
            for point in points:
                if on and point not in module._modules:
                    module.add_module(point, HookPoint().train(self.training))
                elif not on and point in module._modules:
                    delattr(module, point)
        self.setup()

    def set_use_attn_result(self, use_attn_result: bool) -> None:
        """Compute each head's own output, and hook it: `hook_result` `[..., position, head, d_model]`."""
        self._switch(use_attn_result, "attn", "hook_result")

    def set_use_split_qkv_input(self, use_split_qkv_input: bool) -> None:
        """Hook what queries, keys and values read, by head: `hook_q_input` and the like.

        Every head then has keys and values of its own (HookedTransformer's
        `ungroup_grouped_query_attention`).
        """
        split = ("hook_q_input", "hook_k_input", "hook_v_input")
        self._switch(use_split_qkv_input, "", *split, excludes="hook_attn_in")

    def set_use_attn_in(self, use_attn_in: bool) -> None:
        """Hook what each head reads, one input for its q, k and v: `hook_attn_in`."""
        self._switch(use_attn_in, "", "hook_attn_in", excludes="hook_q_input")

    def set_use_hook_mlp_in(self, use_hook_mlp_in: bool) -> None:
        """Hook what the MLP reads, apart from the residual stream: `hook_mlp_in`; without MLPs, nothing."""
        if not self.config.attn_only:
            self._switch(use_hook_mlp_in, "", "hook_mlp_in")

    # -- running with hooks --------------------------------------------------------------------------------

    def _check_hook(self, name: str | Callable[[str], bool], hook: Callable[..., Any]) -> None:
        """Refuse a hook that would be ignored, or would write along the wrong axis."""
        if callable(name) and not any(map(name, self.hook_dict)):
            raise ValueError("the hook's filter matches none of this model's hook points")
        if isinstance(name, str) and name not in self.hook_dict:
            point = name.rsplit(".", 1)[-1]
            optional = point in OPTIONAL_POINTS and not self._has(point)
            advice = f"; call {OPTIONAL_POINTS[point]}(True) first" if optional else ""
            raise ValueError(f"this model has no hook point {name!r}{advice}")
        while isinstance(hook, partial):
            hook = hook.func
        home = getattr(hook, "__module__", None) or ""
        if home.startswith("transformer_lens.") and home != "transformer_lens.HookedRootModule":
            self._refuse_stack(f"{home}.{getattr(hook, '__qualname__', 'hook')}")

    @contextmanager
    def hooks(
        self,
        fwd_hooks: Any = (),
        bwd_hooks: Any = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> Iterator["LensSurface"]:
        """TransformerLens' temporary hooks; an unknown hook point is an error."""
        fwd_hooks, bwd_hooks = list(fwd_hooks), list(bwd_hooks)
        for name, hook in fwd_hooks + bwd_hooks:
            self._check_hook(name, hook)
        with super().hooks(fwd_hooks, bwd_hooks, reset_hooks_end, clear_contexts):
            yield self

    def remove_all_hook_fns(
        self, direction: Any = "both", including_permanent: bool = False, level: int | None = None
    ) -> None:
        """TransformerLens' own, at the hook points that have hooks: at all of them it outlasts a pass."""
        for point in self.hook_points():
            if point.fwd_hooks or point.bwd_hooks:
                point.remove_hooks(direction, including_permanent=including_permanent, level=level)

    def add_hook(self, name: Any, hook: Any, *args: Any, **kwargs: Any) -> None:
        """TransformerLens' permanent hook, until `reset_hooks`; an unknown hook point is an error."""
        self._check_hook(name, hook)
        super().add_hook(name, hook, *args, **kwargs)

    def run_with_cache(self, *args: Any, return_cache_object: bool = True, **kwargs: Any) -> Any:
        """Output and activations: an `ActivationCache` for a single model, a plain dict for a stack.

        With `return_cache_object=False` it is a dict for both. Other arguments are TransformerLens' own.
        """
        if kwargs.get("remove_batch_dim"):
            self._refuse_stack("remove_batch_dim")
        output, cache = super().run_with_cache(*args, **kwargs)
        if self.n_models is not None or not return_cache_object:
            return output, cache
        return output, ActivationCache(cache, self, has_batch_dim=not kwargs.get("remove_batch_dim", False))

    # -- weights -------------------------------------------------------------------------------------------

    def weight(self, name: str) -> Tensor:
        """A weight by its name, `blocks.0.attn.W_K`; of each head where the parameter `_W_K` is shared."""
        return attrgetter(name)(self)

    # -- weights, stacked over layers ----------------------------------------------------------------------

    W_E = _weight("embed.W_E", "[d_vocab, d_model]")
    W_U = _weight("unembed.W_U", "[d_model, d_vocab_out]")
    b_U = _weight("unembed.b_U", "[d_vocab_out]")

    @property
    def W_pos(self) -> Tensor:
        """`[n_ctx, d_model]`."""
        self._refuse_stack("W_pos")
        if self.pos_embed is None:
            raise ValueError(f"{self.config.positional_embedding_type} positions have no W_pos")
        return self.weight("pos_embed.W_pos")

    W_Q = _weight("attn.W_Q", "[layer, head, d_model, d_head]")
    W_K = _weight("attn.W_K", "[layer, head, d_model, d_head]")
    W_V = _weight("attn.W_V", "[layer, head, d_model, d_head]")
    W_O = _weight("attn.W_O", "[layer, head, d_head, d_model]")
    b_Q = _weight("attn.b_Q", "[layer, head, d_head]")
    b_K = _weight("attn.b_K", "[layer, head, d_head]")
    b_V = _weight("attn.b_V", "[layer, head, d_head]")
    b_O = _weight("attn.b_O", "[layer, d_model]")
    W_gate = _weight("mlp.W_gate", "[layer, d_model, d_mlp]")
    W_in = _weight("mlp.W_in", "[layer, d_model, d_mlp]")
    b_in = _weight("mlp.b_in", "[layer, d_mlp]")
    W_out = _weight("mlp.W_out", "[layer, d_mlp, d_model]")
    b_out = _weight("mlp.b_out", "[layer, d_model]")

    def tl_parameters(self) -> dict[str, Tensor]:
        """The weights by name, for `SVDInterpreter`; a tied unembedding is among them."""
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
        """How much of each head's output a later head can read (composition; Elhage et al. 2021).

        Returns:
            `[layer, head, layer, head]`, zero where the second head is not in a later layer.
        """
        reader = {"Q": lambda: self.QK, "K": lambda: self.QK.T, "V": lambda: self.OV}
        if mode not in reader:
            raise ValueError(f"mode is {mode!r}, expected 'Q', 'K' or 'V'")
        scores: Tensor = composition_scores(self.OV, reader[mode](), broadcast_dims=True)
        layer = torch.arange(self.config.n_layers, device=scores.device)
        later = layer[:, None, None, None] < layer[None, None, :, None]
        return torch.where(later, scores, 0.0)

    def all_head_labels(self) -> list[str]:
        """`["L0H0", "L0H1", …]`."""
        return head_names(self.config)

    def tokens_to_residual_directions(self, tokens: Tensor) -> Tensor:
        """The unembedding direction of each token, `[*tokens, d_model]`."""
        return self.W_U.mT[tokens]

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Tensor:
        """The sum of all output biases before `layer`, `[d_model]`."""
        self._refuse_stack("accumulated_bias")
        total = torch.zeros_like(self.embed.W_E[0])
        for i, block in enumerate(self.blocks):
            if i < layer or (i == layer and mlp_input):
                total = total + block.attn.b_O
            if i < layer and block.mlp is not None and include_mlp_biases:
                total = total + block.mlp.b_out
        return total
