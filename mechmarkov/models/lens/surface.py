"""What TransformerLens' tools call on a model, besides its weights.

`ActivationCache`, `patching` and the like take any `HookedRootModule` that has `cfg` and HookedTransformer's
weight properties. They index activations as `[:, position]`. On a stack that is silently the wrong axis, so a
stack refuses them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.lens.cache import cache_of
from mechmarkov.models.lens.config import LensConfig, lens_config
from mechmarkov.models.lens.errors import LensError
from mechmarkov.models.lens.generate import generate
from mechmarkov.models.lens.left_out import LEFT_OUT
from mechmarkov.models.lens.loss import next_token_loss
from mechmarkov.models.lens.processed import process_weights_
from mechmarkov.models.lens.weights import LensWeights
from mechmarkov.utils.text import shown

# Optional hook points and their switches: they add computation.
OPTIONAL_POINTS = {
    "hook_result": "set_use_attn_result",
    "hook_q_input": "set_use_split_qkv_input",
    "hook_k_input": "set_use_split_qkv_input",
    "hook_v_input": "set_use_split_qkv_input",
    "hook_attn_in": "set_use_attn_in",
    "hook_mlp_in": "set_use_hook_mlp_in",
}

Surface = TypeVar("Surface", bound="LensSurface")


class LensSurface(LensWeights):
    """The part of a model that TransformerLens' tools need; a stack refuses what would go wrong."""

    is_lens = False  # made by `as_lens`
    not_logits: str | None = None  # why outputs are not logits of the next token; `Run.decoder` knows
    generate = generate
    process_weights_ = process_weights_
    loss_fn = staticmethod(next_token_loss)

    # -- configuration -------------------------------------------------------------------------------------

    @property
    def cfg(self) -> LensConfig:
        """The config under the names TransformerLens' tools read; for a stack an error that says so."""
        self._refuse_stack("cfg")
        weight = self.embed.W_E
        return lens_config(
            self.config,
            device=weight.device,
            dtype=weight.dtype,
            use_attn_result=self._has("hook_result"),
            use_hook_result=self._has("hook_result"),
            use_split_qkv_input=self._has("hook_q_input"),
            ungroup_grouped_query_attention=any(block.attn.is_ungrouped for block in self.blocks),
            use_attn_in=self._has("hook_attn_in"),
            use_hook_mlp_in=self._has("hook_mlp_in"),
        )

    def __getattr__(self, name: str) -> Any:
        """Say of HookedTransformer's calls that are left out on purpose what to do instead."""
        if name in LEFT_OUT:
            raise AttributeError(f"a HookedDecoder has no {name}: {LEFT_OUT[name]}")
        return super().__getattr__(name)

    def outputs_as(self, other: "LensSurface") -> None:
        """Name tokens, and say whether outputs are logits, as another model of the same data does."""
        self.labels, self.not_logits = other.labels, other.not_logits

    def to(self: Surface, *args: Any, print_details: bool = False, **kwargs: Any) -> Surface:  # noqa: ARG002
        """Move the model as torch's `to` does; HookedTransformer's `print_details` changes nothing."""
        return super().to(*args, **kwargs)

    def as_lens(self: Surface) -> Surface:
        """A copy with equal logits for tools that expect more than this model computes (`mm.compat()`).

        Attention is computed step by step, so that `hook_attn_scores` and `hook_pattern` run in every pass.
        Split inputs are at `attn.hook_q_input` too, where TransformerLens 4 has them. Each head has keys and
        values of its own. A model without MLPs gets one of width 1 that writes zeros.

        Raises:
            LensError: Its norms stand behind the sums.
            TypeError: It is a stack.
        """
        self._refuse_stack("as_lens")
        if not self.config.norm_first:
            raise LensError(
                "as_lens: norm_first is False, expected True: its tools take the stream for a sum"
            )
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
        lens.outputs_as(self)
        for block in lens.blocks:
            block.attn.is_explicit = True
        return lens

    # -- optional hook points ------------------------------------------------------------------------------

    def setup(self) -> None:
        """Set TransformerLens' tables of modules and hook points; for 4 split inputs are under `attn` too."""
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
            raise LensError("split q, k, v inputs and a common attention input exclude each other")
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

        Keys and values that heads share have one input for each group of heads.
        """
        split = ("hook_q_input", "hook_k_input", "hook_v_input")
        self._switch(use_split_qkv_input, "", *split, excludes="hook_attn_in")

    def set_ungroup_grouped_query_attention(self, ungroup_grouped_query_attention: bool) -> None:
        """Give each head keys and values of its own where groups of heads share them, with equal results.

        `hook_k`, `hook_v` and the split inputs then have an entry for each head.
        """
        for block in self.blocks:
            block.attn.is_ungrouped = ungroup_grouped_query_attention

    def set_use_attn_in(self, use_attn_in: bool) -> None:
        """Hook what each head reads, one input for its q, k and v: `hook_attn_in`."""
        self._switch(use_attn_in, "", "hook_attn_in", excludes="hook_q_input")

    def set_use_hook_mlp_in(self, use_hook_mlp_in: bool) -> None:
        """Hook what the MLP reads, apart from the residual stream: `hook_mlp_in`; a LensError of no MLP."""
        if self.config.attn_only:
            if use_hook_mlp_in:
                raise LensError("use_hook_mlp_in is true, but attn_only is true: there is no MLP")
            return
        self._switch(use_hook_mlp_in, "", "hook_mlp_in")

    # -- running with hooks --------------------------------------------------------------------------------

    def _check_hook(self, name: str | Callable[[str], bool], hook: Callable[..., Any]) -> None:
        """Refuse a hook that would be ignored, or would write along the wrong axis."""
        if callable(name) and not any(map(name, self.hook_dict)):
            raise LensError("the hook's filter matches none of this model's hook points")
        if isinstance(name, str) and name not in self.hook_dict:
            point = name.rsplit(".", 1)[-1]
            optional = point in OPTIONAL_POINTS and not self._has(point)
            advice = f"; call {OPTIONAL_POINTS[point]}(True) first" if optional else ""
            raise LensError(f"this model has no hook point {shown(name)}{advice}")
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

        Raises:
            TypeError: For `remove_batch_dim` of a stack.
            LensError: For `remove_batch_dim` of several sequences.
        """
        without_batch = kwargs.get("remove_batch_dim", False)
        if without_batch:
            self._refuse_stack("remove_batch_dim")
            if args and isinstance(args[0], Tensor):
                single = args[0][None] if args[0].ndim == 1 else args[0]
                if len(single) != 1:
                    raise LensError(f"remove_batch_dim of {len(single)} sequences, expected one")
                args = (single, *args[1:])
        output, cache = super().run_with_cache(*args, **kwargs)
        if self.n_models is not None or not return_cache_object:
            return output, cache
        kind = cache_of(self.config)
        return output, kind(cache, self, has_batch_dim=not without_batch)
