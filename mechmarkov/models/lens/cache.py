"""TransformerLens' cache of activations, without the sums that norms at other places make wrong."""

from collections.abc import Callable
from typing import Any, NoReturn

from transformer_lens import ActivationCache

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.lens.errors import LensError


def _refused(call: str) -> Callable[..., NoReturn]:
    """A method of a cache that says why it cannot be right."""

    def method(*_: Any, **__: Any) -> NoReturn:
        raise LensError(
            f"{call}: norm_first is False: norms stand behind the sums, so that the residual stream is not "
            "the sum of what components write"
        )

    return method


class PostNormCache(ActivationCache):  # type: ignore[misc]  # TransformerLens is not typed for us
    """A cache of a model with norms behind its sums: parts of the stream do not add up to it."""

    apply_ln_to_stack = _refused("apply_ln_to_stack")
    decompose_resid = _refused("decompose_resid")
    get_full_resid_decomposition = _refused("get_full_resid_decomposition")


class NoLastNormCache(ActivationCache):  # type: ignore[misc]
    """A cache of a model without a last norm: nothing is done to a stack that is unembedded."""

    def apply_ln_to_stack(self, stack: Any, layer: int | None = None, *args: Any, **rest: Any) -> Any:
        """TransformerLens' own, but for the unembedding, before which there is no norm.

        Raises:
            LensError: For the unembedding.
        """
        if layer in (None, -1, self.model.config.n_layers):
            raise LensError("apply_ln_to_stack: final_norm is False: no norm stands before the unembedding")
        return super().apply_ln_to_stack(stack, layer, *args, **rest)


def cache_of(config: DecoderConfig) -> type[ActivationCache]:
    """Returns the class of a model's cache, by where its norms stand."""
    if not config.norm_first:
        return PostNormCache
    return ActivationCache if config.final_norm else NoLastNormCache
