"""The table `[model]` of a recipe: which model is trained, and what a recipe must know of it."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from mechmarkov.models.config import FOLLOWING, DecoderConfig, Slices
from mechmarkov.models.constructions import context_conditioned, disentangled
from mechmarkov.models.constructions.walk import Form, WalkShape, walk_decoder_config, walk_trainable
from mechmarkov.models.decoder import HookedDecoder, parameter_shapes
from mechmarkov.sources import Source
from mechmarkov.training.learner import DecoderLearner, Learner, LearnerJob
from mechmarkov.training.walk import Trajectory, WalkLearner, reduced_trajectory
from mechmarkov.utils.config import Fields, Integer, Truth

FLOAT_BYTES = 4

# Of what a state space saves for its backward pass: itself, its gradients, and blocks that malloc keeps.
# Nine shapes took 1.4 to 2.3 times what they save.
PEAK_TO_SAVED = 2.5

# A dotted `{key}` of the recipe, the values that fit the model, of which the first is `{expected}`, and the
# error for any other `{value}`.
Requirement = tuple[str, tuple[Any, ...], str]


class TrainedModel:
    """The model of a recipe's `[model]` section: how it is trained, by default as any decoder.

    `n_states` is the number of states of the recipe's source, `config` the decoder of checkpoints.
    """

    follows: ClassVar[frozenset[str]] = frozenset()  # fields that follow from others where not written

    @property
    def shares_stacks(self) -> bool:
        """Returns whether seeds train together; else the training is integrated once (`solution`)."""
        return True

    def requirements(self) -> Iterator[Requirement]:
        """Yields what the rest of the recipe must say: a key, the values that fit, an error for others."""
        yield from ()

    def trainable(self, n_states: int) -> Slices | None:  # noqa: ARG002 - others need it
        """Returns which part of each of the decoder's parameters is trained; None for every parameter."""
        return None

    def fixed(self, n_states: int) -> dict[str, Tensor] | None:  # noqa: ARG002 - others need it
        """Returns weights that are part of the architecture, by name; what is trained is added to them."""
        return None

    def learner(self, job: LearnerJob) -> Learner:
        """Build the stack of models that is trained.

        Raises:
            ValueError: `job.start` is given, and the model has no weights to start from.
        """
        return DecoderLearner(job, self.fixed(job.config.d_vocab_out))

    def solution(self, source: Source, lr: float, eps: float, checkpoints: Sequence[int]) -> Trajectory:
        """Compute the whole training of a model that shares no stack; see `reduced_trajectory`."""
        raise NotImplementedError

    def checkpoint_bytes(self, config: DecoderConfig) -> int:
        """Returns how many bytes the weights at one step take."""
        return FLOAT_BYTES * sum(math.prod(shape) for shape in parameter_shapes(config).values())

    def member_bytes(self, config: DecoderConfig, sequences: int, length: int, checkpoints: int) -> int:
        """Returns an upper estimate of the bytes of one seed: weights, moments, checkpoints, activations.

        Args:
            config: The decoder of checkpoints.
            sequences: How many sequences a step reads.
            length: How many states each has.
            checkpoints: At how many steps weights are kept.
        """
        activations = _activation_bytes(config, sequences, length)
        return self.checkpoint_bytes(config) * (6 + checkpoints) + activations


class DecoderSection(DecoderConfig, TrainedModel):
    """`[model] kind = "decoder"`: a `DecoderConfig`, whose vocabulary follows from the source."""

    follows: ClassVar[frozenset[str]] = frozenset(FOLLOWING)
    kind: Literal["decoder"] = "decoder"

    @model_validator(mode="before")
    @classmethod
    def _none_in_words(cls, data: Any) -> Any:
        """TOML has no null: `normalization_type = "none"`, and so for the other fields that may be None."""
        if not isinstance(data, dict):
            return data
        may_be_none = ("normalization_type", "act_fn", "d_mlp", "window", "n_key_value_heads")
        return {k: None if k in may_be_none and v == "none" else v for k, v in data.items()}

    def decoder_config(self, n_states: int) -> DecoderConfig:  # noqa: ARG002 - in its vocabulary already
        """Returns the decoder, without `kind`."""
        return DecoderConfig(**self.model_dump(exclude={"kind"}))


class DisentangledSection(Fields, TrainedModel):
    """`[model] kind = "disentangled"`: the two-layer model of Nichani et al. (2024); K comes from the source.

    Fields are those of `DisentangledShape` (`mechmarkov.models.constructions.disentangled`). What is trained
    starts by `init`, on top of `key_start`.
    """

    kind: Literal["disentangled"] = "disentangled"
    n_ctx: Integer = Field(ge=2, le=1 << 10)
    heads: tuple[int, int] = (1, 1)
    form: disentangled.DisentangledForm = "full"
    key_start: float = Field(default=1.0, ge=0, le=1e3)

    def requirements(self) -> Iterator[Requirement]:
        last = "{key} is {value!r}, expected {expected!r}: the last token is the query, and only it predicts"
        yield "objective.query", (False,), last
        yield "objective.read", ("last",), last
        message = "init.scheme is {value!r}, expected 'zero' or 'normal' for the disentangled model"
        yield "init.scheme", ("zero", "normal"), message
        yield "trainable", (None,), "trainable is given, but the model says itself what is trained"
        if self.form == "reduced":
            message = "{key} is {value!r}, expected {expected!r} where model.form is 'reduced': "
            yield "objective.kind", ("raw_log",), message + "outputs are frequencies"

    def shape(self, n_states: int) -> disentangled.DisentangledShape:
        """Returns the sizes of the model; a ValueError where they do not fit each other."""
        return disentangled.DisentangledShape(n_states, self.n_ctx, self.heads, self.form, self.key_start)

    def decoder_config(self, n_states: int) -> DecoderConfig:
        """Returns the decoder that the model is."""
        return disentangled.disentangled_config(self.shape(n_states))

    def trainable(self, n_states: int) -> Slices | None:
        return disentangled.disentangled_trainable(self.shape(n_states))

    def fixed(self, n_states: int) -> dict[str, Tensor] | None:
        return dict(disentangled.disentangled_decoder(self.shape(n_states)).state_dict())


class ContextConditionedSection(Fields, TrainedModel):
    """`[model] kind = "context_conditioned"`: Ildiz et al.'s attention layer; K comes from the source.

    Attributes:
        n_ctx: Number of tokens that the model reads.
    """

    kind: Literal["context_conditioned"] = "context_conditioned"
    n_ctx: Integer = Field(ge=2, le=1 << 16)

    def requirements(self) -> Iterator[Requirement]:
        law = "{key} is {value!r}, but this model's outputs are a law, expected {expected!r}"
        yield "objective.kind", ("raw_log",), law
        yield "objective.query", (False,), law
        yield "init.scheme", ("zero", "normal"), "init.scheme is {value!r}, expected 'zero' or 'normal'"
        for key, value in {"init.zero": (), "trainable": None, "frozen": ()}.items():
            yield key, (value,), "{key} is given, but this model says itself what is trained: leave it out"

    def decoder_config(self, n_states: int) -> DecoderConfig:
        """Returns the decoder that checkpoints are weights of."""
        return context_conditioned.context_conditioned_config(n_states, self.n_ctx)

    def trainable(self, n_states: int) -> Slices | None:  # noqa: ARG002 - others need it
        return {context_conditioned.TRAINED: None}

    def fixed(self, n_states: int) -> dict[str, Tensor] | None:
        return context_conditioned.context_conditioned_weights(n_states)


class WalkSection(Fields, TrainedModel):
    """`[model] kind = "walk"`: Shi & Cao's model; K comes from the source.

    Attributes:
        form: `small` and `full` are trained on sequences; `reduced` integrates the K + N numbers that
            describe a deterministic circle exactly, with its symmetry built in.
        unit_columns: Whether the columns that attention reads are scaled to unit length.
        dtype: The type of its weights and of all that is computed.
    """

    kind: Literal["walk"] = "walk"
    n_ctx: Integer = Field(ge=2, le=1 << 16)
    n_positions: Integer = Field(default=1000, ge=1, le=1 << 16)
    positions: Literal["one_hot", "sine"] = "one_hot"
    form: Literal["small", "full", "reduced"] = "small"
    unit_columns: Truth = False
    dtype: Literal["float32", "float64"] = "float32"

    @property
    def shares_stacks(self) -> bool:
        return self.form != "reduced"

    def learner(self, job: LearnerJob) -> Learner:
        if job.start is not None:
            raise ValueError(
                "start is given, but model.kind is 'walk', expected 'decoder': walk models start by init"
            )
        form: Form = "full" if self.form == "full" else "small"
        return WalkLearner(job, self.shape(job.config.d_vocab_out), form, getattr(torch, self.dtype))

    def solution(self, source: Source, lr: float, eps: float, checkpoints: Sequence[int]) -> Trajectory:
        return reduced_trajectory(self.shape(source.n_states), source, lr, eps, checkpoints)

    def requirements(self) -> Iterator[Requirement]:
        message = "objective.query is false, expected true: the walk model has a query token"
        yield "objective.query", (True,), message
        message = "init.scheme is {value!r}, expected 'zero' or 'normal' for the walk model"
        yield "init.scheme", ("zero", "normal"), message
        yield "init.zero", ((),), "init.zero names parameters, but the walk model has its own: leave it out"
        own_form = "{key} is {value!r}, but the walk model has its own form and model.dtype"
        yield "compile", (False,), own_form
        yield "precision", ("float32",), own_form
        yield "trainable", (None,), "trainable is given, but the walk model says itself what is trained"
        yield "frozen", ((),), "frozen is given, but the walk model says itself what is trained"
        if self.form != "reduced":
            return
        circle = "{key} is {value!r}, expected a circle where model.form is 'reduced'"
        yield "source.kind", ("circle",), circle
        message = "{key} is {value!r}, expected {expected!r} where model.form is 'reduced'"
        for key, value in {
            "data.population": True,
            "optimiser.kind": "gd",
            "objective.kind": "raw_log",
            "init.scheme": "zero",
            "model.unit_columns": False,
            "model.dtype": "float64",
        }.items():
            yield key, (value,), message

    def shape(self, n_states: int) -> WalkShape:
        """Returns the sizes of the model; a ValueError where they do not fit each other."""
        return WalkShape(n_states, self.n_ctx, self.n_positions, self.positions, self.unit_columns)

    def decoder_config(self, n_states: int) -> DecoderConfig:
        """Returns the decoder that checkpoints are weights of."""
        return walk_decoder_config(self.shape(n_states))

    def trainable(self, n_states: int) -> Slices | None:
        return walk_trainable(self.shape(n_states))

    @property
    def _float_bytes(self) -> int:
        return 8 if self.dtype == "float64" else 4

    def checkpoint_bytes(self, config: DecoderConfig) -> int:
        shapes = parameter_shapes(config)
        trained = walk_trainable(self.shape(config.d_vocab_out))
        return self._float_bytes * sum(math.prod(shapes[name]) for name in trained)

    def member_bytes(self, config: DecoderConfig, sequences: int, length: int, checkpoints: int) -> int:
        weights = config.d_vocab**2 + (config.d_model**2 if self.form == "full" else config.d_model)
        activations = 4 * sequences * length * (config.d_vocab + 2)  # one-hot sequences and their products
        stored = self.checkpoint_bytes(config) * (1 + checkpoints)
        return self._float_bytes * (activations + 6 * weights) + stored


Model = Annotated[
    DecoderSection | DisentangledSection | ContextConditionedSection | WalkSection,
    Field(discriminator="kind"),
]


def _activation_bytes(config: DecoderConfig, sequences: int, length: int) -> int:
    """An upper estimate of what one forward pass keeps for the backward pass, and of its gradients.

    By a formula for attention, whose kernels keep no pattern; counted for every other mixer. Layers that are
    compiled whole keep a fifth of it.
    """
    if config.mixer != "attention":
        return int(PEAK_TO_SAVED * _saved_bytes(config, sequences))
    numbers = sequences * length * _numbers_per_token(config)
    # Lag scores are as large as a pattern: twice itself, its gradients, and blocks that malloc keeps.
    if config.scores_lags:
        numbers += sequences * config.n_heads * length**2 * 5 * config.n_layers
    return 2 * FLOAT_BYTES * numbers


@lru_cache(maxsize=64)  # every member of a fleet asks
def _saved_bytes(config: DecoderConfig, sequences: int) -> int:
    """Returns what autograd saves of a forward pass on `n_ctx` tokens a sequence, counted without memory."""
    saved: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.enable_grad(), torch.device("meta"), saved_tensors_hooks(note, lambda tensor: tensor):
        HookedDecoder(config, n_models=1)(torch.zeros(sequences, config.n_ctx, dtype=torch.long))
    storages = [tensor.untyped_storage() for tensor in saved]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def _numbers_per_token(config: DecoderConfig) -> int:
    heads = config.n_heads * config.d_head
    norms = 0 if config.normalization_type is None else 6 * config.d_model
    shared = 2 if config.n_key_value_heads else 0  # keys and values, before each head has its own
    normed = 6 if config.use_qk_norm else 0
    hidden = (6 if config.gated_mlp else 3) * (config.d_mlp or 0)
    layer = norms + (5 + shared + normed) * heads + 5 * config.d_model + hidden
    return config.n_layers * layer + 4 * config.d_model + 4 * config.d_vocab_out + 2 * config.d_vocab
