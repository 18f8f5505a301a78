"""A trained model with everything that made it: `Run`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mechmarkov.importing import vocabulary as mapping
from mechmarkov.importing.live_model import check_difference, decoder_from_model, logit_difference, unwrapped
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.runs import schema
from mechmarkov.runs.provenance import provenance
from mechmarkov.safe import file as safe_file
from mechmarkov.safe.plain_data import RunFileError, describe
from mechmarkov.sources import Source
from mechmarkov.utils.text import fact_table


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A model over its training: config, data source, weights at `n` steps, curves, provenance.

    Attributes:
        model: The shape of the model.
        source: The Markov data it was trained on.
        objective: The loss, and how its output is read as a prediction.
        trainable: The parameters that were trained: None for all, else name to None (the whole of it) or a
            list of `[start, stop]` per axis.
        recipe: The recipe it was trained by, as data.
        seed: The seed of its initialisation and data.
        steps: Training steps `[n]`, int64, ascending; the last is the end of training.
        states: Parameters by HookedTransformer's names, float32 `[n, ...]`, or `[1, ...]` where one never
            changes.
        metrics: Curves by name, each a `step` `[m]` and a `value` `[m, ...]`.
        provenance: Versions, device, wall seconds.
    """

    model: DecoderConfig
    source: Source
    objective: Objective
    steps: Tensor
    states: dict[str, Tensor]
    trainable: dict[str, list[list[int]] | None] | None = None
    recipe: dict[str, Any] | None = None
    seed: int | None = None
    metrics: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def n_steps(self) -> int:
        """How many training steps the run holds weights of."""
        return len(self.steps)

    def decoder(
        self, step: int = -1, *, steps: Literal["all"] | Sequence[int] | None = None
    ) -> HookedDecoder:
        """The model at a training step, or a stack of it at several.

        Args:
            step: A training step the run holds, -1 for the last.
            steps: Instead of `step`: "all", or training steps in the order the stack shall have.

        Returns:
            A `HookedDecoder` whose weights are copies; with `steps` a stack with one member a step.

        Raises:
            ValueError: For a step the run does not hold, naming those it does.
        """
        if steps is None:
            return self._decoder([self._index(step)], n_models=None)
        if isinstance(steps, int) or (isinstance(steps, str) and steps != "all"):
            raise ValueError(f"steps is {steps!r}, expected 'all' or a list of training steps")
        if isinstance(steps, str):
            indices = list(range(self.n_steps))
        else:
            indices = [self._index(step) for step in steps]
        if not indices:
            raise ValueError("steps is empty, expected 'all' or a list of training steps")
        return self._decoder(indices, n_models=len(indices))

    def _index(self, step: int) -> int:
        held: list[int] = self.steps.tolist()
        if step == -1:
            return len(held) - 1
        if step not in held:
            shown = [*map(str, held[:8]), "…", str(held[-1])] if len(held) > 10 else [*map(str, held)]
            raise ValueError(f"step is {step}, expected -1 (the last) or one of {', '.join(shown)}")
        return held.index(step)

    def _decoder(self, indices: list[int], n_models: int | None) -> HookedDecoder:
        decoder = HookedDecoder(self.model, n_models)
        chosen = {}
        for name, values in self.states.items():
            rows = values[[0] * len(indices) if len(values) == 1 else indices]
            chosen[name] = rows[0] if n_models is None else rows
        decoder.load_state_dict(chosen)
        return decoder

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to a file; one that is there is replaced whole or, on any failure, not at all.

        Raises:
            RunFileError: One line, for a run that breaks the contract (such as NaN weights, named) and for
                a place that cannot be written.
        """
        fields = schema.Fields(**{item.name: getattr(self, item.name) for item in dataclass_fields(self)})  # type: ignore[typeddict-item]
        data = schema.dump(fields)
        try:
            schema.parse(data)
        except RunFileError as error:
            raise RunFileError(f"{safe_file.shown(path)}: not written: {error}") from error.__cause__
        safe_file.write(path, data)

    @classmethod
    def from_model(
        cls,
        model: nn.Module,
        *,
        source: Source,
        objective: Objective | None = None,
        tokens: Mapping[str | int, int] | None = None,
    ) -> "Run":
        """A run of one step from a model that was trained elsewhere.

        Takes a live HookedTransformer (TransformerLens 3.9), a TransformerBridge (4: native, or around a
        GPT-2), nanoGPT's GPT, transformers' GPT2LMHeadModel, a `HookedDecoder`, or any module that has
        HookedTransformer's `cfg`, parameter names and logits. The same tokens, drawn from the source, go
        through the model and its conversion; the largest logit difference is kept in `provenance`.

        Args:
            model: The model; it is not changed.
            source: What it was trained on.
            objective: What it was trained for; by default cross-entropy at every position.
            tokens: The model's token of each state, by its number or label, and of "query" where there is
                a query token; by default token i is state i. Tokens that are no state can then neither be
                read nor predicted (`mechmarkov.importing.vocabulary`).

        Raises:
            ValueError: For a config a `HookedDecoder` cannot express (the field is named), parameters that
                do not fit, a vocabulary that is not the source's states, and logits that differ by more
                than 1e-4 · max(1, |logit|).

        Example:
            >>> import torch
            >>> from mechmarkov.models import DecoderConfig, HookedDecoder
            >>> from mechmarkov.sources import Binary
            >>> words = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=9, attn_only=True)
            >>> run = Run.from_model(HookedDecoder(words), source=Binary(p=0.5, q=0.8), tokens={0: 7, 1: 3})
            >>> run.model.d_vocab, run.provenance["tokens"]
            (2, [7, 3])
        """
        if not isinstance(source, Source):
            raise ValueError(
                f"source is {describe(source)}, expected a source such as mm.Circle(n_states=6, p=0.5)"
            )
        objective = objective or Objective()
        model = unwrapped(model)
        decoder = decoder_from_model(model)
        states = {name: value.detach()[None].clone() for name, value in decoder.state_dict().items()}
        config, ids = decoder.config, None
        if tokens is not None:
            ids = mapping.ids_of(tokens, source, objective)
            mapping.check_tokens(config, ids, source, "tokens")
            config = mapping.picked_config(config, len(ids), source.n_states, None)
        elif config.d_vocab != source.n_states + objective.query:
            count = f"{source.n_states} states" + (" and a query token" if objective.query else "")
            raise RunFileError(
                f"model.d_vocab is {config.d_vocab}, but the source has {count}: "
                "say which token is which state, tokens={state: token, …}"
            )
        schema.check_consistent(config, source, objective)
        drawn = example_tokens(config, source, objective)
        read = drawn if ids is None else torch.tensor(ids)[drawn]
        difference = logit_difference(model, decoder, read)
        check_difference(difference, f"{type(model).__name__} and its conversion disagree:")
        facts: dict[str, Any] = {"logit_difference": difference.largest}
        if ids is not None:
            part = mapping.pick(decoder.config, config, states, ids, None, drawn)
            states, facts = part.states, facts | {"tokens": ids}
            if objective.kind == "cross_entropy":
                facts["probability_left_out"] = part.left_out
        return cls(
            model=config,
            source=source,
            objective=objective,
            steps=torch.tensor([0]),
            states=states,
            provenance={
                **provenance(next(model.parameters()).device),
                "imported_from": f"{type(model).__module__}.{type(model).__qualname__}",
                **facts,
            },
        )

    def title(self) -> str:
        """One line for people: the data, the model and the training."""
        model = self.model
        layers = f"{model.n_layers} layer{'s' if model.n_layers > 1 else ''}"
        heads = f"{model.n_heads} head{'s' if model.n_heads > 1 else ''}"
        kind = "attention only" if model.attn_only else "with MLP"
        parts = [
            self.source.title(),
            f"{layers} of {heads}, {kind}, width {model.d_model}",
            self.objective.kind.replace("_", " "),
            f"step {int(self.steps[-1])}",
        ]
        if self.seed is not None:
            parts.append(f"seed {self.seed}")
        return " ".join(" · ".join(parts).split())

    def __repr__(self) -> str:
        return f"Run({self.title()})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the title and what the run holds."""
        steps = (
            f"{int(self.steps[0])} … {int(self.steps[-1])} ({self.n_steps})"
            if self.n_steps > 1
            else (str(int(self.steps[0])))
        )
        rows = {
            "steps": steps,
            "parameters": f"{sum(value[0].numel() for value in self.states.values()):,}",
            "metrics": ", ".join(self.metrics) or "none",
            **{name: str(value) for name, value in self.provenance.items() if value is not None},
        }
        return fact_table(self.title(), rows)


def load(path: str | os.PathLike[str]) -> Run:
    """Read a run file: nothing in it is executed, and everything in it is checked.

    Raises:
        RunFileError: One line that begins with the path and names what is wrong.
    """
    data = safe_file.read(path)
    try:
        fields = schema.parse(data)
    except RunFileError as error:
        raise RunFileError(f"{safe_file.shown(path)}: {error}") from error.__cause__
    safe_file.verify(path)
    return Run(**safe_file.owned(fields))


def example_tokens(config: DecoderConfig, source: Source, objective: Objective) -> Tensor:
    """Sequences `[batch, position]` of the model's full length, for comparing two models."""
    length = config.n_ctx - objective.query
    batch = max(1, min(8, 8192 // config.n_ctx))
    drawn = source.sample(batch, source.length or length, generator=torch.Generator().manual_seed(0))
    tokens: Tensor = drawn[:, :length]
    if objective.query:
        tokens = torch.cat([tokens, torch.full((batch, 1), source.n_states)], dim=1)
    return tokens
