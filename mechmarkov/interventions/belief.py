"""Force a belief: move the residual stream so that a linear reading of it says what it is told to say.

    with mm.force_belief(model, 0, 2, source=source): ...  # after block 0, as if hidden state 2 were known

The reading is the least-squares map from the residual stream to the exact belief. The move is the one that
changes the stream least in the metric of its own covariance, the reading's pattern (Haufe et al. 2014,
NeuroImage 87, equation 6), so that what goes with the belief in the data goes with it here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.interventions.intervention import intervention
from mechmarkov.models.decoder import HookedDecoder, activations, check_decoder
from mechmarkov.sources import Hidden, Source
from mechmarkov.utils.text import shown

EMBEDDING = -1  # the layer whose output the first block reads
SEQUENCES = 256  # that `force_belief` fits its reading to
RANK_TOLERANCE = 1e-6  # of the largest singular value; below it float32 activations are rounding


@dataclass(frozen=True, eq=False)
class Reading:
    """A linear reading of the belief from the residual stream, `belief = x @ weights + bias`.

    Attributes:
        weights: The least-squares map.
        bias: Its constant.
        pattern: How the stream moves as the reading does, in the data.
        root: A square root of the stream's covariance.
    """

    weights: Float[np.ndarray, "d_model hidden"]
    bias: Float[np.ndarray, " hidden"]
    pattern: Float[np.ndarray, "hidden d_model"]
    root: Float[np.ndarray, "d_model d_model"]

    def read(self, stream: Float[np.ndarray, "*row d_model"]) -> Float[np.ndarray, "*row hidden"]:
        """The belief that the stream says, `stream @ weights + bias`; not clipped to the simplex."""
        return np.asarray(stream @ self.weights + self.bias)

    def moves(
        self, stream: Float[np.ndarray, "*row d_model"], belief: Float[np.ndarray, " hidden"]
    ) -> Float[np.ndarray, "*row d_model"]:
        """The change of the stream after which it reads as a belief: `(belief - read(stream)) @ pattern`."""
        return np.asarray((belief - self.read(stream)) @ self.pattern)


def fit_reading(
    stream: Float[np.ndarray, "row d_model"], beliefs: Float[np.ndarray, "row hidden"]
) -> Reading:
    """The least-squares reading of beliefs from the stream; the shortest one where several fit equally.

    Example:
        >>> beliefs = np.array([[0.1, 0.9], [0.5, 0.5], [0.8, 0.2]])
        >>> reading = fit_reading(np.hstack([beliefs, np.ones((3, 1))]), beliefs)
        >>> reading.read(np.array([0.3, 0.7, 1.0])).round(6).tolist()
        [0.3, 0.7]
    """
    stream, beliefs = stream.astype(np.float64), beliefs.astype(np.float64)
    mean, middle = stream.mean(0), beliefs.mean(0)
    centred = stream - mean
    weights = np.linalg.lstsq(centred, beliefs - middle, rcond=RANK_TOLERANCE)[0]
    covariance = centred.T @ centred / len(centred)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0))
    pattern = np.linalg.pinv(weights.T @ covariance @ weights, rcond=RANK_TOLERANCE) @ weights.T @ covariance
    return Reading(weights, middle - mean @ weights, pattern, root)


def stream_hook(layer: int) -> str:
    """The hook point of the residual stream after a block; -1 is the embedding.

    Example:
        >>> stream_hook(-1), stream_hook(0)
        ('blocks.0.hook_resid_pre', 'blocks.0.hook_resid_post')
    """
    return "blocks.0.hook_resid_pre" if layer == EMBEDDING else f"blocks.{layer}.hook_resid_post"


def streams(
    model: HookedDecoder, tokens: Int[Tensor, "batch position"]
) -> dict[int, Float[np.ndarray, "batch position d_model"]]:
    """The residual stream of one model: by layer, the embedding (-1) and after every block.

    Example:
        >>> import mechmarkov as mm
        >>> by_layer = streams(mm.example("walk").model(), torch.zeros(2, 97, dtype=torch.long))
        >>> {layer: stream.shape for layer, stream in by_layer.items()}
        {-1: (2, 97, 103), 0: (2, 97, 103)}
    """
    hooks = {layer: stream_hook(layer) for layer in range(EMBEDDING, model.config.n_layers)}
    seen = activations(model, tokens, hooks.values())
    return {layer: seen[name].double().cpu().numpy() for layer, name in hooks.items()}


@intervention
def force_reading(
    model: HookedDecoder,
    layer: int,
    reading: Reading,
    belief: Float[np.ndarray, " hidden"],
    *,
    control: int | None = None,
) -> Iterator[HookedDecoder]:
    """Move one model's stream after a block, at every position, until a reading of it is a belief.

    Args:
        model: One model.
        layer: After which block; -1 is the embedding.
        reading: A reading of that stream, from `fit_reading`.
        belief: The law of what is hidden that it is to read (probability).
        control: A seed: every move is replaced by one as long in a random direction of the data.

    Raises:
        TypeError: The model is not one, such as a run.
    """
    check_decoder(model)

    def moved(x: Tensor) -> Tensor:
        change = reading.moves(x.detach().double().cpu().numpy(), belief)
        if control is not None:
            noise = np.random.default_rng(control).normal(size=len(reading.root))
            direction = reading.root @ noise
            lengths = np.linalg.norm(change, axis=-1, keepdims=True)
            change = lengths * direction / max(np.linalg.norm(direction), np.finfo(float).tiny)
        return x + torch.from_numpy(change).to(x)

    with model.hooks([(stream_hook(layer), lambda x, hook: moved(x))]):
        yield model


@intervention
def force_belief(
    model: HookedDecoder,
    layer: int,
    state: int,
    *,
    source: Source,
    control: int | None = None,
    seed: int = 0,
) -> Iterator[HookedDecoder]:
    """Make the residual stream after a block say that a hidden state is known, at every position.

    Args:
        model: One model of next tokens.
        layer: After which block; -1 is the embedding.
        state: The hidden state, of a mixture the chain, of `SelectiveLag` the place of the lag.
        source: What the model was trained on; `source.laws_of_hidden(tokens)[:, :, state]` is what it should
            then predict.
        control: A seed: every move is replaced by one as long in a random direction of the data.
        seed: The seed of the 256 sequences that the reading is fitted to.

    Raises:
        TypeError: The model is not one, such as a run.
        ValueError: A stack, an unknown layer or state, a source with nothing hidden, or a model of other
            tokens.

    Example:
        >>> import mechmarkov as mm
        >>> from mechmarkov.models.constructions.belief import belief_model
        >>> source = mm.HiddenMarkov(transitions=[[0.8, 0.2], [0.3, 0.7]], emissions=[[0.9, 0.1], [0.4, 0.6]])
        >>> tokens = torch.tensor([[0], [1]])
        >>> beliefs, laws = source.beliefs(tokens.numpy())[:, 0], source.T @ source.E
        >>> model = belief_model([beliefs], laws)
        >>> with mm.force_belief(model, 0, 1, source=source):
        ...     model(tokens).softmax(-1)[:, 0].allclose(torch.tensor(laws[1]).float(), atol=1e-4)
        True
    """
    check_decoder(model)
    if model.n_models is not None:
        raise ValueError(f"model is a stack of {model.n_models}, expected one: stack[i] is a member")
    if not isinstance(source, Hidden):
        given = repr(source.kind) if isinstance(source, Source) else shown(source)
        raise ValueError(f"source is {given}, expected one with something hidden")
    if model.config.d_vocab != source.n_states:
        raise ValueError(
            f"model reads {model.config.d_vocab} tokens, expected the source's {source.n_states}"
        )
    if not EMBEDDING <= layer < model.config.n_layers:
        raise ValueError(f"layer is {layer}, expected -1 to {model.config.n_layers - 1}")
    generator = torch.Generator().manual_seed(seed)
    tokens = source.sample_held_out(SEQUENCES, model.config.n_ctx, generator=generator)
    beliefs = source.beliefs(tokens.numpy())
    n_hidden = beliefs.shape[-1]
    if not 0 <= state < n_hidden:
        raise ValueError(f"state is {state}, expected 0 to {n_hidden - 1}")
    stream = streams(model, tokens)[layer]
    reading = fit_reading(stream.reshape(-1, stream.shape[-1]), beliefs.reshape(-1, n_hidden))
    with force_reading(model, layer, reading, np.eye(n_hidden)[state], control=control):
        yield model
