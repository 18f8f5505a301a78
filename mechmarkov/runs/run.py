"""A trained model with everything that made it: `Run`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from mechmarkov.importing import vocabulary
from mechmarkov.importing.live.difference import compare
from mechmarkov.importing.live.inside import inside
from mechmarkov.importing.live.other_weights import check_other_weights
from mechmarkov.importing.live.untouched import our_own_numbers, same_random_numbers
from mechmarkov.importing.live_model import converted
from mechmarkov.importing.names.table import Names
from mechmarkov.importing.options import checked_fields
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.runs import hub, schema
from mechmarkov.runs.given import check_source, checked_objective, checked_step, example_tokens
from mechmarkov.runs.provenance import number_types, provenance
from mechmarkov.runs.stored import Stored
from mechmarkov.safe import file as safe_file
from mechmarkov.safe import folder as shared_folder
from mechmarkov.safe.plain_data import RunFileError, describe
from mechmarkov.sources import Source
from mechmarkov.utils.errors import integer_of, list_of, path_of
from mechmarkov.utils.text import fact_table, shown

UNKNOWN_STEP = {"step": "unknown"}  # in the provenance of a run whose one checkpoint stands as step 0
COMPARED_SEQUENCES = 4  # by a model and its conversion, at every checkpoint of a recorder

STEPS = "'all' or a list of training steps"


@dataclass(frozen=True, eq=False, repr=False)
class Run(Stored):
    """A model over its training: config, data source, weights at `n` steps, curves, provenance.

    Attributes:
        config: The shape of the model.
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

    Example:
        >>> from mechmarkov.runs.loading import example
        >>> run = example("walk")
        >>> run.model(step=-1).config == run.config, run.metrics["loss"]["value"].ndim
        (True, 1)
    """

    def model(self, step: int = -1, *, steps: Literal["all"] | Sequence[int] | None = None) -> HookedDecoder:
        """The model at a training step, or a stack of it at several.

        Args:
            step: A training step the run holds, -1 for the last.
            steps: Instead of `step`: "all", or training steps in the order the stack shall have.

        Returns:
            A `HookedDecoder` whose weights are copies; with `steps` a stack with one member a step.

        Raises:
            ValueError: For a step the run does not hold, naming those it does.

        Example:
            >>> import mechmarkov as mm
            >>> run = mm.example("walk")
            >>> run.model().n_models, run.model(steps="all").n_models, len(run.steps)
            (None, 14, 14)
        """
        if isinstance(steps, int) or (isinstance(steps, str) and steps != "all"):
            raise ValueError(f"steps is {shown(steps)}, expected {STEPS}")
        if isinstance(steps, str):
            indices = list(range(self.n_steps))
        else:
            chosen_steps = [step] if steps is None else list_of("steps", steps, STEPS)
            indices = [self._index(one) for one in chosen_steps]
        if not indices:
            raise ValueError(f"steps is empty, expected {STEPS}")
        decoder = HookedDecoder(self.config, None if steps is None else len(indices))
        chosen = {}
        for name, values in self.states.items():
            rows = values[[0] * len(indices) if len(values) == 1 else indices]
            chosen[name] = rows[0] if steps is None else rows
        decoder.load_state_dict(chosen)
        decoder.labels = (*self.source.labels, *["query"] * self.objective.query)
        decoder.not_logits = _why_not_logits(self.objective)
        return decoder

    decoder = model  # what code calls it that was written before `config` and `model` had their names

    def _index(self, step: int) -> int:
        held: list[int] = self.steps.tolist()
        try:
            number = integer_of("step", step)
        except TypeError:
            number = -2  # no step either
        if number == -1:
            return len(held) - 1
        if number not in held:
            some = [*map(str, held[:8]), "…", str(held[-1])] if len(held) > 10 else [*map(str, held)]
            raise ValueError(f"step is {shown(step)}, expected -1 (the last) or one of {', '.join(some)}")
        return held.index(number)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to a file; one that is there is replaced whole or, on any failure, not at all.

        Raises:
            RunFileError: One line, for a run that breaks the contract (such as NaN weights, named) and for
                a place that cannot be written.
        """
        path = path_of("path", path)
        safe_file.write(path, self._checked(path))

    def to_bytes(self) -> bytes:
        """Returns the content of the file that `save` writes."""
        return safe_file.to_bytes(self._checked(Path("run.pt")))

    def save_folder(self, folder: str | os.PathLike[str], result: hub.Summarised | None = None) -> Path:
        """Write the run as a folder to share: safetensors, JSON and a card. `load` reads it.

        Args:
            folder: A folder that is not there yet.
            result: What `mm.probe` found, for the card.

        Raises:
            RunFileError: One line, as for `save`, and for a folder that is there.
        """
        folder = path_of("folder", folder)
        pages = hub.pages(self.title(), self.contents(), result)
        return shared_folder.write(folder, self._checked(folder), pages)

    def push_to_hub(self, name: str, result: hub.Summarised | None = None, *, private: bool = False) -> str:
        """Upload the run to the Hugging Face Hub as `owner/name`, and return what `mm.load` takes.

        Args:
            name: The repository; it is made if it is not there. `hf auth login` says who writes it.
            result: What `mm.probe` found, for the card.
            private: Whether a repository that is made is private.

        Returns:
            The address, "hf://owner/name".

        Raises:
            RunFileError: One line, as for `save`, for another name, and for what the Hub refuses.
            ImportError: huggingface_hub is not installed; the line says how.
        """
        hub.check_name(name)
        pages = hub.pages(self.title(), self.contents(), result)
        return hub.push(name, self._checked(Path(name)), pages, private)

    def _checked(self, path: Path) -> dict[str, Any]:
        data = schema.dump(schema.Fields(**vars(self)))  # type: ignore[typeddict-item]
        with safe_file.naming(path):
            try:
                schema.parse(data)
            except RunFileError as error:
                raise RunFileError(f"not written: {error}") from error.__cause__
        return data

    @classmethod
    def from_model(
        cls,
        model: nn.Module,
        *,
        source: Source,
        objective: Objective | None = None,
        tokens: Mapping[str | int, int] | None = None,
        bos: int | None = None,
        n_ctx: int | None = None,
        given: Mapping[str, Any] | None = None,
        names: Names | None = None,
        step: int | None = None,
    ) -> "Run":
        """A run of one step from a model that was trained elsewhere.

        Takes a live HookedTransformer (TransformerLens 3.9), a TransformerBridge (4: native, or around one of
        transformers' models), a GPT with GPT-2's names (nanoGPT's, minGPT's), transformers' GPT-2, Llama,
        Mistral, Qwen2, Qwen3, Gemma, GPT-NeoX and Mamba, a `HookedDecoder`, any module that has
        HookedTransformer's `cfg`, parameter names and logits, or a decoder written by hand, whose forward
        pass tells which weight is which; also inside `torch.compile`, DDP, accelerate's `prepare` or a
        LightningModule. The same tokens, drawn from the source, go through copies of its
        weights in float32, in evaluation mode and without autocast, and through the conversion. The largest
        logit difference is kept in `provenance`.

        Args:
            model: The model; it is not changed. Its forward pass may return logits, or a tuple, a dict or an
                object with them, and may need `targets` or `labels`.
            source: What it was trained on.
            objective: What it was trained for; by default cross-entropy at every position.
            tokens: The model's token of each state, by its number or label, and of "query" where there is
                a query token; by default token i is state i. Tokens that are not states can then neither be
                read nor predicted (`mechmarkov.importing.vocabulary`).
            bos: The model's token that every sequence begins with: so does every sequence of the run
                (`Objective.bos`). The other tokens are then the states in order, unless `tokens` says which.
            n_ctx: The length of the context that it was trained on; by default its config's, which for rotary
                positions may be far longer.
            given: Fields of the config that the model does not say, as `mechmarkov import --set` gives them:
                `{"n_heads": 2, "window": 8}`.
            names: For a model whose forward pass does not tell it, which weight is which: see the page
                "My model has names of its own" and `mechmarkov.importing.names.table`.
            step: The training step that the model is at; `joined` makes one run of several. One that is not
                given stands as step 0, and the run's title says that it is unknown.

        Raises:
            ValueError: For a config a `HookedDecoder` cannot express (the field is named), parameters that
                do not fit, a vocabulary that is not the source's states, and logits that differ by more
                than rounding, 1e-5 of their size.

        Example:
            >>> import torch
            >>> from mechmarkov.models import DecoderConfig, HookedDecoder
            >>> from mechmarkov.sources import Binary
            >>> words = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=9, attn_only=True)
            >>> run = Run.from_model(HookedDecoder(words), source=Binary(p=0.5, q=0.8), tokens={0: 7, 1: 3})
            >>> run.config.d_vocab, run.provenance["tokens"]
            (2, [7, 3])
        """
        check_source(source)
        if step is not None:
            step = checked_step(step)
        objective, given = checked_objective(objective), checked_fields(given)
        if bos is not None:
            objective = objective.beginning()
        live = inside(model, whole=names is not None)
        with same_random_numbers(live.model):
            decoder, reading = converted(live, n_ctx, given, names)
        config, ids = decoder.config, None
        with our_own_numbers():
            states = {name: value.detach()[None].clone() for name, value in decoder.state_dict().items()}
            if tokens is not None:
                source, ids = vocabulary.source_and_ids(tokens, source, objective)
            if ids is not None or bos is not None:
                python = vocabulary.IN_PYTHON
                ids = vocabulary.tokens_of_states(config, source, objective, ids, None, bos, python)
            if ids is not None:
                config = vocabulary.picked_config(config, len(ids), source.n_states)
            elif config.d_vocab != source.n_states + objective.n_extra:
                extra = " and a query token" if objective.query else " and a beginning-of-sequence token"
                count = f"{source.n_states} states" + extra * objective.n_extra
                raise RunFileError(
                    f"model.d_vocab is {config.d_vocab}, but the source has {count}: "
                    "say which token is which state, tokens={state: token, …}"
                    + source.advice(config.d_vocab - objective.n_extra)
                )
            schema.check_consistent(config, source, objective)
            drawn = example_tokens(config, source, objective)
            read = (drawn if ids is None else torch.tensor(ids)[drawn])[:COMPARED_SEQUENCES]
        as_laws = objective.kind == "cross_entropy"
        with same_random_numbers(live.model):
            compared = compare(live, decoder, read, reading.advice, as_laws=as_laws, modules=reading.modules)
            if reading.again is not None:
                check_other_weights(live, decoder.config, reading.again, read, reading.advice)
        origin = {**compared, **reading.said}
        if ids is not None:
            with our_own_numbers():
                part = vocabulary.pick(decoder.config, config, states, ids, drawn)
            states = part.states
            origin |= part.origin(objective)
        return cls(
            config=config,
            source=source,
            objective=objective,
            steps=torch.tensor([0 if step is None else step], device="cpu"),
            states=states,
            provenance={
                **provenance(next(live.model.parameters()).device),
                "imported_from": f"{type(live.model).__module__}.{type(live.model).__qualname__}",
                **number_types(live.model),
                **origin,
                **(UNKNOWN_STEP if step is None else {}),
            },
        )

    @classmethod
    def joined(cls, runs: Sequence["Run"]) -> "Run":
        """Join runs of one training, by step; metrics and recipe are left out, the rest is the first's.

        Raises:
            ValueError: No run, another model, source or objective than the first one's, or a step twice.

        Example:
            >>> from mechmarkov.models import DecoderConfig, HookedDecoder
            >>> from mechmarkov.sources import Binary
            >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=2, attn_only=True)
            >>> model, kept = HookedDecoder(config), []
            >>> for step in (0, 10):  # in a training loop of one's own
            ...     kept.append(Run.from_model(model, source=Binary(p=0.5, q=0.8), step=step))
            >>> Run.joined(kept).steps.tolist()
            [0, 10]
        """
        runs = list_of("runs", runs, "a list of runs")
        for number, run in enumerate(runs):
            if not isinstance(run, Run):
                raise TypeError(f"runs[{number}] is {describe(run)}, expected a Run")
        if not runs:
            raise ValueError("runs are empty, expected at least one")
        first = runs[0]
        for name in ("config", "source", "objective", "trainable"):
            for number, run in enumerate(runs):
                if getattr(run, name) != getattr(first, name):
                    raise ValueError(f"runs[{number}] has another {name} than runs[0], expected the same")
        steps = torch.cat([run.steps for run in runs])
        if len(set(steps.tolist())) < len(steps):
            raise ValueError(f"steps are {steps.tolist()}, expected each once")
        order = steps.argsort()
        states = {
            name: torch.cat([run.states[name].expand(run.n_steps, *value.shape[1:]) for run in runs])[order]
            for name, value in first.states.items()
        }
        known = {key: value for key, value in first.provenance.items() if len(runs) == 1 or key != "step"}
        return replace(first, steps=steps[order], states=states, metrics={}, recipe=None, provenance=known)

    def __repr__(self) -> str:
        """The title, and what to do with a run."""
        return (
            f"Run({self.title()})\n"
            "  mm.probe(run) asks what it learned; run.model() is the model, run.contents() what is kept"
        )

    def _repr_html_(self) -> str:
        """Returns what a notebook shows: the title and what the run holds."""
        known = {name: str(value) for name, value in self.provenance.items() if value is not None}
        return fact_table(self.title(), self.contents() | known)


def _why_not_logits(objective: Objective) -> str | None:
    """Returns why a decoder's outputs are not logits of the next token; None if they are."""
    if objective.query:
        return "the model predicts a state at a query token: its outputs elsewhere are untrained"
    if objective.kind != "cross_entropy":
        how = "run.objective.predict(decoder(tokens)) gives probabilities"
        return f"trained with {objective.kind}, its outputs are scores, not logits: {how}"
    return None
