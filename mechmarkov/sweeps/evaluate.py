"""Headline scores of trained members: `behaviour` for all seeds of a recipe at once, others a run each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.kernels import use_fast_kernels
from mechmarkov.probe_run import probe
from mechmarkov.probing.chunking import chunked
from mechmarkov.probing.nulls import NULL_MODELS, fresh_models, null_sequences
from mechmarkov.probing.probe import load_probe
from mechmarkov.probing.subject import Subject
from mechmarkov.result import Result
from mechmarkov.runs.run import Run
from mechmarkov.sweeps.stuck import Stuck, line_of, stuck

MAX_ACTIVATION_ELEMENTS = 1 << 22  # of the largest activation of a pass: 16 MB in float32


@dataclass(frozen=True)
class Evaluation:
    """Scores of one run, as plain JSON data.

    Attributes:
        scores: Scores as `Score.to_data()` gives them, by probe and name.
        skipped: Probes that do not apply, and why.
        failed: Probes that raised, and what.
        stuck: Whether it has less than half of the best predictor's gain over the unigram.
    """

    scores: dict[str, dict[str, dict[str, Any]]]
    skipped: dict[str, str]
    failed: dict[str, str]
    stuck: Stuck


class Outputs(Subject):
    """A subject of which only outputs are computed: fused passes, and nothing recorded."""

    @cached_property
    def probabilities(self) -> Float[np.ndarray, "member batch read state"]:
        """The models' predictions."""
        config, tokens, stack = self.config, self.batch.tokens, self.decoder
        place = stack.embed.W_E.device
        widest = max(config.d_model, config.d_mlp or 0, config.n_heads * config.d_head)
        shape = (len(stack), len(tokens), len(self.batch.read), config.d_vocab_out)
        scores = torch.empty(shape, dtype=torch.float64)
        room = MAX_ACTIVATION_ELEMENTS
        sequences = room // (tokens.shape[1] * widest)
        with torch.no_grad():
            for chunk in chunked(stack, tokens, room, per_token=widest, sequences=sequences):
                use_fast_kernels(chunk.model)
                out = chunk.model(chunk.tokens.to(place))[..., self.batch.read.to(place), :]
                scores[chunk.members, chunk.sequences] = out.cpu().double()
        predicted: np.ndarray = self.objective.predict(scores).numpy()
        return predicted


def evaluate(
    runs: Sequence[Run],
    probes: Sequence[str],
    *,
    steps: Literal["last", "all"] = "last",
    device: torch.device | str = "cpu",
) -> list[Evaluation]:
    """Scores of runs of one recipe, which differ only in their seed, one `Evaluation` a run.

    `behaviour` is that of `mm.probe` at the last step, of the same evaluation data and the same null models.

    Args:
        runs: The runs.
        probes: Other probes whose scores are wanted.
        steps: Which checkpoints these see.
        device: Where the models of `behaviour` run.
    """
    if any(run.trainable is not None for run in runs) and len(runs) > 1:
        # A null model keeps what is not trained, which may be each run's own.
        return [one for run in runs for one in evaluate([run], probes, steps=steps, device=device)]
    subject, null = _subjects(runs, device)
    behaviour = load_probe("behaviour")
    data, null_data = behaviour.measure(subject), behaviour.measure(null)
    line = line_of(subject)
    others = [name for name in probes if name != "behaviour"]
    evaluations = []
    for index, run in enumerate(runs):
        own = data.isel(seed=[index])
        result = probe(run, others, steps=steps) if others else Result({}, [], {})
        by_probe = {"behaviour": behaviour.scores(own, null_data)}
        by_probe |= {name: outcome.scores for name, outcome in result.outcomes.items()}
        scores = {
            name: {key: score.to_data() for key, score in one.items()} for name, one in by_probe.items()
        }
        evaluations.append(Evaluation(scores, result.skipped, result.failed, stuck(own, line)))
    return evaluations


def _subjects(runs: Sequence[Run], device: torch.device | str) -> tuple[Outputs, Outputs]:
    """The last weights of the runs as one stack, and their null, on one batch."""
    first = runs[0]
    alone = Subject.of(first)
    stack = HookedDecoder.stack([run.model() for run in runs]).to(device)
    null = fresh_models(first, range(NULL_MODELS)).to(device)
    few = alone.batch.head(null_sequences(alone.batch.tokens.shape[1]))
    return (
        Outputs(first, stack, alone.batch, axis="seed", coordinates=list(range(len(runs)))),
        Outputs(first, null, few, axis="seed", coordinates=list(range(NULL_MODELS))),
    )
