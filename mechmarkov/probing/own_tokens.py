"""One sequence of a reader's own: what the model predicts at every position, where it looks, what decides."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.probing.names import in_words
from mechmarkov.probing.source_check import unlikely_transition
from mechmarkov.probing.subject import check_run
from mechmarkov.runs.run import Run
from mechmarkov.sources import Predictor, Source
from mechmarkov.theory.kernel import kl
from mechmarkov.utils.errors import list_of
from mechmarkov.utils.text import first_of, shown

MAX_CHANGED = 32  # positions that are changed, one after the other, from the end
MAX_PATCHED_TOKENS = 1 << 22  # that pass through the model: of long sequences fewer positions are changed
MAX_TOKENS = 1 << 16  # of one pass
MAX_DIGITS = 100  # of a state's number: Python refuses to read thousands
Variables = dict[str, tuple[str | tuple[str, ...], np.ndarray]]


def states_of(source: Source, sequence: Sequence[int | str]) -> list[int]:
    """States by their numbers; each may be given as its number or as its label.

    Raises:
        ValueError: Naming the first that is not a state.

    >>> from mechmarkov.sources import Circle
    >>> states_of(Circle(n_states=3, p=0.5), ["0", 2])
    [0, 2]
    """
    numbers = {name: number for number, name in enumerate(source.labels)}
    found = []
    for state in list_of("sequence", sequence, "a list of states by number"):
        number = state
        if isinstance(state, str):
            counted = state.isdecimal() and len(state) <= MAX_DIGITS and state not in numbers
            number = int(state) if counted else numbers.get(state, state)
        if isinstance(number, str):
            raise ValueError(f"sequence has {shown(number)}, expected states: {first_of(source.labels, 12)}")
        if isinstance(number, bool) or not hasattr(number, "__index__"):
            raise ValueError(f"sequence is {shown(sequence)}, expected a list of states by number")
        if not 0 <= number < source.n_states:
            raise ValueError(f"sequence has state {number}, expected 0 to {source.n_states - 1}")
        found.append(int(number))
    return found


def tokens_of(run: Run, states: Sequence[int | str]) -> Int[Tensor, "1 position"]:
    """Returns what the model reads of states: with the query token, or the beginning, where it has one.

    Raises:
        ValueError: States that are none of the source's, none at all, or as many as the model cannot read.
    """
    numbers = states_of(run.source, states)
    if not numbers:
        raise ValueError(f"sequence is {shown(states)}, expected a list of states by number")
    longest, query = run.config.n_ctx - run.objective.n_extra, run.objective.query
    if len(numbers) > longest or (query and len(numbers) < longest):
        expected = f"{longest} states before the query" if query else f"at most {longest} states"
        raise ValueError(f"sequence has {len(numbers)} states, expected {expected}")
    return run.objective.framed(torch.tensor([numbers]), run.config.d_vocab - 1)


@torch.no_grad()
def own_tokens(run: Run, states: Sequence[int | str], *, step: int) -> xr.Dataset:
    """Everything about one sequence: laws, attention, logit lens, and patches of one position.

    A patch: a state of the sequence is changed to the one that moves the last prediction most. Then the
    residual stream of the unchanged sequence is put in at one depth and position, and the model runs on from
    there. `patched` is the probability of the state that the model held most likely before the change.

    Args:
        run: A run whose model is read.
        states: The sequence, by number or label.
        step: A training step the run has kept, -1 for the last.

    Returns:
        `model` [read, state] and `law` [predictor, read, state], probabilities of the next state;
        `divergence` [predictor, read], KL from the law to the model (nats); `lens` [depth, read, state], the
        residual stream after 0, 1, … layers through `ln_final` and the unembedding (nostalgebraist 2020);
        `attention` [layer, head, query, key] where a layer has attention weights; `patched` [changed, depth,
        position], with `clean` and `corrupted` [changed] and the state `changed_to` [changed]. `token`
        [position] are the tokens in words, `read_position` [read] the positions whose output is a prediction.

    Raises:
        ValueError: A sequence that the model cannot read, or a step that was not kept.

    Example:
        >>> import mechmarkov as mm
        >>> data = own_tokens(mm.example("induction"), [0, 1, 2, 0, 1], step=-1)
        >>> data["model"].shape, data["lens"].shape  # [read, state], [depth, read, state]
        ((5, 3), (3, 5, 3))
    """
    check_run(run)
    tokens = tokens_of(run, states)
    model, objective, source = run.model(step), run.objective, run.source
    history = tokens[:, int(objective.bos) : tokens.shape[1] - int(objective.query)]
    known = (
        torch.tensor([history.shape[1] - 1]) if objective.reads_last_only else torch.arange(history.shape[1])
    )
    read = known + objective.n_extra
    if objective.reads_last_only and tokens.shape[1] < run.config.n_ctx:
        raise ValueError(
            f"sequence has {history.shape[1]} states, expected {run.config.n_ctx - objective.n_extra}: "
            "the model is read only at its last position"
        )
    layers = range(run.config.n_layers)
    depths = [*(f"blocks.{i}.hook_resid_pre" for i in layers), f"blocks.{layers[-1]}.hook_resid_post"]
    blocks = cast("list[Any]", model.blocks)
    looking = [i for i in layers if blocks[i].attn.has_attention_weights]
    patterns = [f"blocks.{i}.attn.hook_pattern" for i in looking]
    logits, cache = model.run_with_cache(tokens, names_filter=[*depths, *patterns])
    predicted = _predicted(objective, logits[0, read])
    data: Variables = {"model": (("read", "state"), predicted)}
    rules = source.predictors()
    if isinstance(best := source.best(), Predictor):
        rules |= {best.name: best}
    laws = np.stack([rule.probabilities(history.numpy())[0, known.numpy()] for rule in rules.values()])
    data["law"] = (("predictor", "read", "state"), laws)
    data["divergence"] = (("predictor", "read"), kl(laws, predicted))
    lens = [_predicted(objective, model.unembed(model.ln_final(cache[name][0, read]))) for name in depths]
    data["lens"] = (("depth", "read", "state"), np.stack(lens))
    if looking:
        stacked = torch.stack([cache[name][0] for name in patterns]).numpy()
        data["attention"] = (("layer", "head", "query", "key"), stacked)
    streams = [cache[name][0] for name in depths]
    data |= _patches(model, objective, tokens, history.shape[1], int(objective.bos), source.n_states, streams)
    extra = "beginning" if objective.bos else "query"
    words = [source.labels[token] if token < source.n_states else extra for token in tokens[0].tolist()]
    changed = data["changed_to"][1]
    coordinates: dict[str, Any] = {
        "state": list(source.labels),
        "predictor": list(rules),
        "token": ("position", words),
        "read_position": ("read", read.numpy()),
        "changed": history.shape[1] - len(changed) + int(objective.bos) + np.arange(len(changed)),
        "depth": np.arange(len(depths)),
    } | ({"layer": looking} if looking else {})
    told = {
        "title": run.title() if step == -1 else f"{run.title()}, here at step {step}",
        "step": int(run.steps[-1]) if step == -1 else step,
        "best": best.name if isinstance(best, Predictor) else list(rules)[-1],
        "best_in_words": best.label if isinstance(best, Predictor) else in_words(list(rules)[-1]),
        "why_not_best": "" if isinstance(best, Predictor) else best,
        "warning": unlikely_transition(source, history.numpy()) or "" if history.shape[1] > 1 else "",
    }
    return xr.Dataset(data, coordinates, told)


def _predicted(objective: Objective, scores: Float[Tensor, "read state"]) -> Float[np.ndarray, "read state"]:
    probabilities: np.ndarray = objective.predict(scores.double()).numpy()
    return probabilities


def _patches(
    model: HookedDecoder,
    objective: Objective,
    tokens: Int[Tensor, "1 position"],
    n_known: int,
    first: int,
    n_states: int,
    streams: Sequence[Float[Tensor, "position d_model"]],
) -> Variables:
    """Patches of one depth and position into the sequence with one state changed, read at its end."""
    length = tokens.shape[1]
    clean = _at_end(model, objective, tokens)[0]
    target = int(clean.argmax())
    affordable = max(1, MAX_PATCHED_TOKENS // (len(streams) * length**2))
    changed = range(max(0, n_known - min(MAX_CHANGED, affordable)), n_known)
    patched, changed_to, corrupted = [], [], []
    for place in changed:
        others = [state for state in range(n_states) if state != int(tokens[0, first + place])]
        if not others:  # one state only: nothing can be changed
            others = [int(tokens[0, first + place])]
        candidates = tokens.repeat(len(others), 1)
        candidates[:, first + place] = torch.tensor(others)
        laws = _at_end(model, objective, candidates)
        worst = int((laws - clean).abs().sum(-1).argmax())
        changed_to.append(others[worst])
        corrupted.append(float(laws[worst, target]))
        copies = candidates[worst].expand(length, -1)
        restored = [_restored(model, objective, copies, i, stream) for i, stream in enumerate(streams)]
        patched.append(np.stack(restored)[:, :, target])
    axes = ("changed", "depth", "position")
    return {
        "patched": (axes, np.stack(patched)),
        "changed_to": ("changed", np.array(changed_to)),
        "corrupted": ("changed", np.array(corrupted)),
        "clean": ("state", clean.numpy()),
        "target": ("target", np.array([target])),
    }


def _at_end(
    model: HookedDecoder, objective: Objective, tokens: Int[Tensor, "batch position"]
) -> Float[Tensor, "batch state"]:
    last = torch.tensor([tokens.shape[1] - 1])
    some = tokens.split(max(1, MAX_TOKENS // tokens.shape[1]))
    return torch.cat([objective.predict(model(part, read=last).double())[:, 0] for part in some])


def _restored(
    model: HookedDecoder,
    objective: Objective,
    copies: Int[Tensor, "position length"],
    depth: int,
    stream: Float[Tensor, "position d_model"],
) -> Float[np.ndarray, "position state"]:
    """Predictions at the end of copies of a sequence, each with one position's stream put in at a depth."""
    last = depth == model.config.n_layers
    hook = f"blocks.{depth - last}.hook_resid_{'post' if last else 'pre'}"
    predicted = []
    for places in torch.arange(len(copies)).split(max(1, MAX_TOKENS // len(copies))):

        def put_in(x: Tensor, hook: object, places: Tensor = places) -> Tensor:
            del hook
            x = x.clone()
            x[torch.arange(len(places)), places] = stream[places]
            return x

        # Without `read`, so that the last layer's stream has all positions.
        with model.hooks([(hook, put_in)]):
            logits = model(copies[places])
        predicted.append(objective.predict(logits[:, -1].double()).numpy())
    return np.concatenate(predicted)
