"""What the measurements share: recipes, what is trained of a model, and what is followed over training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

import mechmarkov as mm
from experiments.sampling_error import over_sequences
from experiments.where_is_the_bigram import memories
from mechmarkov.theory.kernel import kl

KEYS_1, KEYS_2, OUTPUT = "blocks.0.attn.W_K", "blocks.1.attn.W_K", "blocks.1.attn.W_O"
FEED_FORWARD = tuple(f"blocks.1.mlp.{name}" for name in ("W_in", "b_in", "W_out", "b_out"))
HALF = 0.5  # a recall or an accuracy is "there" when it is above one half; chance is 1/12


def recipe(name: str, **changes: Any) -> mm.Recipe:
    """A recipe of this folder; `__` in a key is a dot, as in `data__batch=8`."""
    values = {key.replace("__", "."): value for key, value in changes.items()}
    path = Path(__file__).parent / "recipes" / f"{name}.toml"
    return mm.load_recipe(path).replace(**values)


def only(*names: str) -> dict[str, None]:
    """What is trained, as a recipe says it: these parameters, all of each."""
    return dict.fromkeys(names)


@dataclass(frozen=True, eq=False)
class Followed:
    """A model with triggers over training, one entry a kept step.

    Attributes:
        step: The steps.
        bigram: KL from the global bigram where no trigger stands, nats.
        accuracy: How often what followed a trigger before is the likeliest after it, where it is known.
        copy: Recall of layer 1's output matrix.
        match: Recall of layer 1's keys, through what layer 0 wrote.
        back: Recall of layer 0's keys.
        early: The same over the first quarter of the positions.
        feed_forward: KL from the global bigram to layer 1's MLP alone, nats.
        unigram: KL from the global bigram to the best prediction without any token, nats.
    """

    step: Float[np.ndarray, " step"]
    bigram: Float[np.ndarray, " step"]
    accuracy: Float[np.ndarray, " step"]
    copy: Float[np.ndarray, " step"]
    match: Float[np.ndarray, " step"]
    back: Float[np.ndarray, " step"]
    early: Float[np.ndarray, " step"]
    feed_forward: Float[np.ndarray, " step"]
    unigram: float


def follow(run: mm.Run) -> Followed:
    """Everything that is followed, on 32 fresh sequences."""
    subject = mm.Subject.of(run, "all", sequences=32)
    free = ~run.source.trigger_mask(subject.batch.history.numpy())
    bigram = subject.exact["bigram"]
    law = bigram[free]
    accuracy, back = memories.outputs(subject), memories.previous(subject)
    assert accuracy is not None
    assert back is not None
    return Followed(
        step=run.steps.double().numpy(),
        bigram=over_sequences(kl(bigram, subject.probabilities), free),
        accuracy=accuracy,
        copy=memories.copies(subject)[:, 1, 0],
        match=memories.matches(subject)[:, 0, 0, 1, 0],
        back=back[:, 0, 0],
        early=_early(run),
        feed_forward=memories.mlp_kl(subject)[:, 1],
        unigram=float(kl(law, law.mean(0)[None]).mean()),
    )


def _early(run: mm.Run) -> Float[np.ndarray, " step"]:
    """The recall of layer 0's keys over the first quarter of the positions: that of a shorter model."""
    n_ctx = run.config.n_ctx // 4
    states = {name: value for name, value in run.states.items() if name != "pos_embed.W_pos"}
    shorter = replace(
        run,
        config=run.config.model_copy(update={"n_ctx": n_ctx}),
        states=states | {"pos_embed.W_pos": run.states["pos_embed.W_pos"][:, :n_ctx]},
    )
    back = memories.previous(mm.Subject.of(shorter, "all", sequences=1))
    assert back is not None
    return back[:, 0, 0]


def mean_of(followed: Sequence[Followed], name: str) -> Float[np.ndarray, " step"]:
    """The mean curve of a quantity over seeds."""
    return np.mean([getattr(one, name) for one in followed], axis=0)


def band_of(followed: Sequence[Followed], name: str) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest over seeds, step by step."""
    curves = np.stack([getattr(one, name) for one in followed])
    return curves.min(0), curves.max(0)
