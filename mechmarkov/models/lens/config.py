"""A decoder's config under HookedTransformerConfig's field names."""

from types import SimpleNamespace
from typing import Any

from mechmarkov.models.config import STATE_SPACE_FIELDS, DecoderConfig

# Fields that HookedTransformerConfig lacks, and what stands for "off" in them.
OWN = {"norm_first": True, "final_norm": True, "tied": False, "window": None, "mixer": "attention"}
OWN |= dict.fromkeys(STATE_SPACE_FIELDS)
OF_TOOLS = ("use_hook_result",)  # which TransformerLens' tools ask, and HookedTransformerConfig has not
SWITCHES = (
    "use_attn_result",
    "use_split_qkv_input",
    "use_attn_in",
    "use_hook_mlp_in",
    "ungroup_grouped_query_attention",
)


class LensConfig(SimpleNamespace):
    """The config that `HookedDecoder.cfg` returns: a copy, which cannot be written to."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse a change that would be ignored, and say what makes it."""
        how = f"call model.set_{name}({value!r})" if name in SWITCHES else "make a model of another config"
        raise AttributeError(f"cfg.{name} = {value!r} would change a copy of the config: {how}")

    def to_dict(self) -> dict[str, Any]:
        """The fields, such that `HookedTransformerConfig.from_dict` makes the same model, or refuses.

        It refuses fields that only a `HookedDecoder` has: they are left out where they change nothing.
        """
        fields = {name: value for name, value in vars(self).items() if name not in OF_TOOLS}
        if self.window is not None:  # theirs counts the query's own token
            local = ["local"] * self.n_layers
            fields |= {
                "use_local_attn": True,
                "window_size": self.window + 1,
                "attn_types": local,
                "window": None,
            }
        return {name: value for name, value in fields.items() if name not in OWN or value != OWN[name]}


def lens_config(config: DecoderConfig, **found: Any) -> LensConfig:
    """Returns a decoder's config with further fields that TransformerLens' tools ask for."""
    return LensConfig(
        **config.model_dump(),
        n_params=hidden_weights(config),
        n_devices=1,
        model_name="custom",
        tokenizer_name=None,
        default_prepend_bos=False,
        **found,
    )


def hidden_weights(config: DecoderConfig) -> int:
    """Returns how many numbers the matrices of attention and MLPs hold: HookedTransformer's `n_params`.

    Biases and embeddings do not count; keys and values count for every head, shared or not, as there (Kaplan
    et al. 2020, arXiv 2001.08361).

    Example:
        >>> hidden_weights(DecoderConfig(n_layers=2, d_model=8, n_ctx=4, d_head=4, d_vocab=3, attn_only=True))
        512
    """
    per_layer = 4 * config.d_model * config.n_heads * config.d_head
    if config.d_mlp is not None:
        per_layer += (2 + config.gated_mlp) * config.d_model * config.d_mlp
    return config.n_layers * per_layer
