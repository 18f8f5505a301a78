"""The shape of a decoder, with HookedTransformerConfig's field names."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from mechmarkov.utils.config import Fields

# Far above any model this library is for, and small enough to check a config without exhausting memory.
MAX_LAYERS = 256
MAX_WIDTH = 1 << 16
MAX_LENGTH = 1 << 20
MAX_WINDOW = (1 << 31) - 1

STATE_SPACES = ("mamba", "mamba1")  # mixers that have the fields below
LAG_BIASES = ("relative_bias", "alibi")  # positions that add a number per lag to attention's scores
LAG_SCORES = ("relative", *LAG_BIASES)  # those that add to scores by lag
WITHOUT_SCORES = ("lstm", "mlp")  # mixers of ours that have no attention weights
STATE_SPACE_FIELDS = ("d_state", "d_conv", "n_groups", "dt_rank", "conv_act_fn", "use_gate", "use_gate_norm")
# What such mixers and state spaces must have.
WITHOUT_ATTENTION: Mapping[str, tuple[Any, ...]] = {
    "positional_embedding_type": ("none", "standard"),
    "n_key_value_heads": (None,),
    "use_qk_norm": (False,),
    "window": (None,),
}

# What is trained of a model: by a tensor's name `[start, stop]` per axis, or None for the whole of it.
Slices = dict[str, list[list[int]] | None]

# Fields whose default follows from others.
FOLLOWING = (
    "n_heads", "d_vocab_out", "d_mlp", "act_fn", "positional_embedding_type", "rotary_dim", "attn_scale",
    "initializer_range", "d_conv", "n_groups", "dt_rank", "conv_act_fn", "use_gate", "use_gate_norm",
    "final_norm",
)  # fmt: skip

Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]


class DecoderConfig(Fields):
    """The shape of a `HookedDecoder`; frozen, unknown keys refused.

    Field names, meanings and defaults are `HookedTransformerConfig`'s. A default that depends on other
    fields is filled in on construction, so that a dumped config is complete. Own fields, for what
    HookedTransformer lacks: `norm_first`, `final_norm`, `tied` (the unembedding is the embedding's
    transpose), `window` (attention limited to the last `window + 1` tokens, the query's own among them),
    `mixer` (what moves information between positions, by its name in `mechmarkov.models.mixer.MIXERS`) and
    the positional embedding types `"relative"` (a learned vector per head and lag, added to the key) and
    `"none"`, the default of a mixer `"mamba"` (Mamba-2), `"mamba1"` (Mamba), `"lstm"` or `"mlp"`. Only Mambas
    have `d_state` (of a head, or of a channel in Mamba), `d_conv` (the convolution's window; with 1 no
    position reaches another), `n_groups` (of heads that share `B` and `C`), `dt_rank` (Mamba's),
    `conv_act_fn`, `use_gate` and `use_gate_norm`. There are `n_heads * d_head` channels.

    Attributes:
        n_layers: Number of layers.
        d_model: Width of the residual stream.
        n_ctx: Number of tokens that the model reads.
        d_head: Width of a head.
        n_heads: Number of heads; `d_model // d_head` where it is not given.
        n_key_value_heads: Number of heads of keys and values, which neighbouring heads share.
        use_qk_norm: Whether each head's queries and keys have an RMS norm with a gain.
        d_vocab: Number of tokens that the model reads.
        d_vocab_out: Number of tokens that it predicts; `d_vocab` where it is not given.
        d_mlp: Width of the MLP; `4 * d_model` where it is not given.
        act_fn: Activation of the MLP; `relu` where it is not given.
        gated_mlp: Whether the MLP has a gate.
        attn_only: Whether layers have no MLP.
        parallel_attn_mlp: Whether the MLP reads what attention reads.
        normalization_type: Norm of each layer's two parts and before the unembedding.
        norm_first: Whether norms stand before each layer's parts. If not, each stands behind the residual sum
            (post-norm): `x = ln1(x + attn(x)); x = ln2(x + mlp(x))`.
        final_norm: Whether a norm stands before the unembedding, too; as `norm_first` where it is not given.
        eps: Added to the variance in a norm.
        positional_embedding_type: How the model knows positions. `relative_bias` is a learned number per head
            and lag, added to the score after its scale; `alibi` has HookedTransformer's slopes.
        rotary_dim: How many dimensions of a head are rotated; `d_head` where it is not given.
        rotary_base: Base of the rotations' frequencies.
        rotary_adjacent_pairs: Whether neighbouring dimensions are rotated together.
        use_attn_scale: Whether attention's scores are divided by `attn_scale`.
        attn_scale: What scores are divided by; `sqrt(d_head)` where it is not given.
        initializer_range: Standard deviation that HookedTransformer starts weights with. A recipe's `init`
            says how ours start.
        tied: Whether the unembedding is the embedding's transpose.
        window: How many tokens before its own a query sees; all where it is not given.
        mixer: What moves information between positions: `attention`, `mamba` (Mamba-2), `mamba1`, `lstm` or
            `mlp` (over positions).
        d_state: Size of a state space's state.
        d_conv: Window of a state space's convolution; 4 where it is not given.
        n_groups: Number of groups of heads that share `B` and `C`.
        dt_rank: Rank of Mamba's step sizes.
        conv_act_fn: Activation after a state space's convolution.
        use_gate: Whether a state space's output is gated.
        use_gate_norm: Whether the gated output is normed.

    Raises:
        ValueError: naming the field, its value and what was expected.

    Example:
        >>> config = DecoderConfig(n_layers=1, d_model=16, n_ctx=8, d_head=4, d_vocab=3, attn_only=True)
        >>> config.n_heads, config.d_vocab_out, config.d_mlp
        (4, 3, None)
    """

    model_config = ConfigDict(strict=True)

    n_layers: int = Field(ge=1, le=MAX_LAYERS)
    d_model: Width
    n_ctx: int = Field(ge=1, le=MAX_LENGTH)
    d_head: Width
    n_heads: Width = -1  # d_model // d_head
    n_key_value_heads: Width | None = None  # grouped queries: neighbouring heads share keys and values
    use_qk_norm: bool = False  # an RMS norm with a gain on each head's queries and keys
    d_vocab: Width
    d_vocab_out: Width = -1  # d_vocab
    d_mlp: Width | None = None
    act_fn: Literal["relu", "gelu", "gelu_new", "silu"] | None = None
    gated_mlp: bool = False
    attn_only: bool = False
    parallel_attn_mlp: bool = False  # the MLP reads what attention reads
    normalization_type: Literal["LN", "LNPre", "RMS", "RMSPre"] | None = "LN"
    norm_first: bool = True  # torch's name; its default is False
    final_norm: bool = True  # norm_first
    eps: float = Field(default=1e-5, ge=0, le=1)
    positional_embedding_type: Literal[
        "standard", "shortformer", "rotary", "alibi", "relative", "relative_bias", "none"
    ] = "standard"  # fmt: skip
    rotary_dim: int | None = None
    rotary_base: float = Field(default=10000.0, gt=1, le=1e12)
    rotary_adjacent_pairs: bool = False
    use_attn_scale: bool = True
    attn_scale: float = Field(default=-1.0, gt=0, le=1e6)  # sqrt(d_head)
    initializer_range: float = Field(default=-1.0, gt=0, le=1e6)  # 0.8 / sqrt(d_model)
    tied: bool = False
    window: int | None = Field(default=None, ge=0, le=MAX_WINDOW)
    mixer: str = Field(default="attention", pattern=r"^[a-z0-9_]{1,40}$")
    d_state: Width | None = None
    d_conv: Width | None = None  # 4
    n_groups: Width | None = None  # 1; of Mamba, n_heads
    dt_rank: Width | None = None  # of Mamba, d_model / 16
    conv_act_fn: Literal["silu", "relu", "gelu", "gelu_new", "none"] | None = None  # "silu"
    use_gate: bool | None = None  # true
    use_gate_norm: bool | None = None  # true; of Mamba, false

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        """Fill in HookedTransformer's dependent defaults (-1 or None mean "not given")."""
        if not isinstance(data, dict):
            return data
        data = dict(data)

        def told(name: str) -> Any:
            given = data.get(name)  # an array or a tensor would compare with each of its numbers
            return given if isinstance(given, bool | int | float | str) else None

        def is_open(name: str) -> bool:
            return data.get(name) is None or told(name) == -1

        def fill(name: str, value: Any) -> None:
            if is_open(name):
                data[name] = value

        def width(name: str) -> int | None:
            value = data.get(name)
            return value if type(value) is int and 1 <= value <= MAX_WIDTH else None

        d_model, d_head = width("d_model"), width("d_head")
        if is_open("n_heads") and d_model and d_head and d_model % d_head:
            raise ValueError(
                f"n_heads is not given and d_head {d_head} does not divide d_model {d_model}: give n_heads"
            )
        # A missing or wrong width is refused only under its own name, not under its dependants' too.
        d_model, d_head = d_model or 1, d_head or 1
        fill("n_heads", max(1, d_model // d_head))
        fill("d_vocab_out", width("d_vocab") or 1)
        fill("attn_scale", math.sqrt(d_head))
        fill("initializer_range", 0.8 / math.sqrt(d_model))
        if not told("attn_only"):
            fill("d_mlp", 4 * d_model)
            data.setdefault("act_fn", "relu")
        data.setdefault("final_norm", told("norm_first") is not False)
        if told("positional_embedding_type") == "rotary":
            fill("rotary_dim", d_head)
        if told("mixer") in WITHOUT_SCORES:
            data.setdefault("positional_embedding_type", "none")
        if told("mixer") in STATE_SPACES:
            selective = data["mixer"] == "mamba1"
            data.setdefault("positional_embedding_type", "none")
            fill("d_conv", 4)
            fill("n_groups", data["n_heads"] if selective else 1)
            fill("conv_act_fn", "silu")
            fill("use_gate", True)
            fill("use_gate_norm", not selective)
            if selective:
                fill("dt_rank", math.ceil(d_model / 16))
        return data

    @model_validator(mode="after")
    def _consistent(self) -> "DecoderConfig":
        if self.attn_only and (self.d_mlp is not None or self.act_fn is not None):
            raise ValueError(
                f"attn_only is true, but d_mlp is {self.d_mlp} and act_fn is {self.act_fn}: leave both out"
            )
        for name in ("gated_mlp", "parallel_attn_mlp"):
            if self.attn_only and getattr(self, name):
                raise ValueError(f"{name} is true, but attn_only is true: there is no MLP")
        for name in ("norm_first", "final_norm"):
            if self.normalization_type is None and not getattr(self, name):
                raise ValueError(f"{name} is False, expected it left out where normalization_type is None")
        if self.parallel_attn_mlp and not self.norm_first:
            raise ValueError("norm_first is False, expected true where parallel_attn_mlp is true")
        if not self.attn_only and self.act_fn is None:
            raise ValueError("act_fn is None, expected 'relu', 'gelu', 'gelu_new' or 'silu' for an MLP")
        if self.n_key_value_heads and self.n_heads % self.n_key_value_heads:
            raise ValueError(
                f"n_key_value_heads is {self.n_key_value_heads}, expected a divisor of n_heads {self.n_heads}"
            )
        if self.tied and self.d_vocab_out > self.d_vocab:
            raise ValueError(
                f"tied is true, but d_vocab_out {self.d_vocab_out} is larger than d_vocab {self.d_vocab}"
            )
        if self.mixer in STATE_SPACES:
            self._check_state_space()
        if self.mixer in WITHOUT_SCORES:
            self._check_values(WITHOUT_ATTENTION)
        for name in STATE_SPACE_FIELDS if self.mixer in ("attention", *WITHOUT_SCORES) else ():
            if (value := getattr(self, name)) is not None:
                raise ValueError(f"{name} is {value!r}, expected it left out where mixer is {self.mixer!r}")
        if self.positional_embedding_type == "rotary":
            if self.rotary_dim is None or self.rotary_dim % 2 or not 2 <= self.rotary_dim <= self.d_head:
                raise ValueError(
                    f"rotary_dim is {self.rotary_dim}, expected an even number up to d_head {self.d_head}"
                )
        elif self.rotary_dim is not None:
            raise ValueError(
                f"rotary_dim is {self.rotary_dim}, but positional_embedding_type is "
                f"{self.positional_embedding_type!r}"
            )
        return self

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Leave out the fields of a state space where there is none."""
        for name, value in super().__repr_args__():
            if value is not None or name not in STATE_SPACE_FIELDS:
                yield name, value

    @property
    def final_normalization_type(self) -> str | None:
        """The kind of the norm before the unembedding, None where there is none."""
        return self.normalization_type if self.final_norm else None

    def _check_state_space(self) -> None:
        """Check what a mixer of `STATE_SPACES` must have and cannot have."""
        mixer = f"where mixer is {self.mixer!r}"
        if self.d_state is None:
            raise ValueError(f"d_state is None, expected the size of a state {mixer}")
        expected = dict(WITHOUT_ATTENTION)
        if self.mixer == "mamba1":
            expected |= {"d_head": (1,), "n_groups": (self.n_heads,)}
        else:
            expected |= {"dt_rank": (None,)}
        self._check_values(expected)
        if self.n_groups is None or self.n_heads % self.n_groups:
            raise ValueError(f"n_groups is {self.n_groups}, expected a divisor of n_heads {self.n_heads}")

    def _check_values(self, expected: Mapping[str, tuple[Any, ...]]) -> None:
        """Check fields that have only these values where the mixer is this one."""
        for name, values in expected.items():
            if getattr(self, name) not in values:
                known = " or ".join(repr(value) for value in values)
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, expected {known} where mixer is {self.mixer!r}"
                )

    @property
    def scores_lags(self) -> bool:
        """Returns whether positions add to attention's scores by lag, learned or as ALiBi."""
        return self.positional_embedding_type in LAG_SCORES

    @property
    def has_lag_bias(self) -> bool:
        """Returns whether positions add a number to scores, the same for all pairs of tokens at a lag."""
        return self.positional_embedding_type in LAG_BIASES

    @property
    def score_scale(self) -> float:
        """Returns what attention scores are divided by: `attn_scale`, or 1 where `use_attn_scale` is off."""
        return self.attn_scale if self.use_attn_scale else 1.0
