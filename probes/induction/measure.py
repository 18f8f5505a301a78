"""What the induction probe measures: every head's scores, and what cutting the best pair's path does."""

from collections.abc import Hashable

import numpy as np
import xarray as xr

from mechmarkov.models.components import head_name
from mechmarkov.probing.subject import Subject
from mechmarkov.probing.value_circuits import path_tables

from .checks import predecessor_effect, repeated_score
from .composition import INPUTS, composition, copying, random_composition
from .matches import MAX_MATCHED
from .paths import Head, trace
from .recorded import INDUCTION

# A predecessor moves attention if, at the low end of its interval, it moves this share of the ideal.
CAUSAL = 0.05

# A whole pattern of 64 tokens is unreadable; the end of the sequence is where most has been seen.
EXAMPLE_POSITIONS = 24


def measure(subject: Subject) -> xr.Dataset:
    """Scores of every head, composition of every pair, and what cutting the best pair's path does.

    Returns, over [axis, layer, head] if nothing else is said:
        `match_mass` and `induction` [.., matched] (probability): attention on keys whose last 1, 2, 3
        predecessors are the last tokens of the query, and that less what lag, tokens and one match fewer
        explain (`mechmarkov.probes.induction.matches`), over queries with a match; `induction_error`: its
        standard error over sequences; `fidelity` [.., matched] (nats):
        KL(uniform on the matches ‖ attention); `ideal` [matched]: the `induction` of a head that is uniform
        on the matches;
        `effect`, `effect_low`, `effect_high`: how far editing only a key's predecessor moves the attention
        to it, 1 for that ideal head (`mechmarkov.probes.induction.checks`);
        `repeated` (probability): TransformerLens' induction score on repeated random sequences, less
        `repeated_chance`; `previous_token`, `duplicate_token` (probability): attention on the token before,
        on earlier copies; `previous_chance`, `duplicate_chance`: of uniform attention;
        `copying`: eigenvalue score of the head's OV circuit, in -1 … 1 (NaN if it is constant);
        `q_composition`, `k_composition`, `v_composition` [axis, from_layer, from_head, layer, head];
        For a run, not for its null, also `random_composition` [pair], that of random matrices, what `_paths`
        measures, and an `example` [axis, shown, query, key_shown]:
        attention of the last model's circuit on the end of the first sequence, and of an ideal head.
    """
    axis, found = subject.axis, subject.recorded(INDUCTION)
    reference, elements = found.reference, subject.chunk_elements
    effect = predecessor_effect(subject.decoder, subject.batch, elements)
    repeated, repeated_chance = repeated_score(subject.decoder, subject.batch, elements)
    tables = path_tables(subject)
    shape = effect.effect.shape
    copies = np.stack([copying(table) for name, table in tables.items() if "H" in name], 1).reshape(shape)
    per_head, pairs = (axis, "layer", "head"), (axis, "from_layer", "from_head", "layer", "head")
    per_k = (*per_head, "matched")
    probability = {"unit": "probability"}
    data = xr.Dataset(
        {
            "match_mass": (per_k, found.mass, probability),
            "induction": (per_k, found.score, probability),
            "induction_error": (per_k, found.error, probability),
            "fidelity": (per_k, found.fidelity, {"unit": "nats"}),
            "ideal": ("matched", reference.ideal, probability),
            "queries": ("matched", reference.queries, {"unit": "queries"}),
            "effect": (per_head, effect.effect, {"unit": "of the ideal"}),
            "effect_low": (per_head, effect.low, {"unit": "of the ideal"}),
            "effect_high": (per_head, effect.high, {"unit": "of the ideal"}),
            "repeated": (per_head, repeated, probability),
            "repeated_chance": ((), repeated_chance, probability),
            "previous_token": (per_head, found.previous_token, probability),
            "previous_chance": ((), reference.previous_chance, probability),
            "duplicate_token": (per_head, found.duplicate_token, probability),
            "duplicate_chance": ((), reference.duplicate_chance, probability),
            "copying": (per_head, copies, {"unit": "balance of eigenvalues"}),
        }
        | {
            f"{into.lower()}_composition": (pairs, score, {"unit": "composition"})
            for into, score in composition(subject.decoder).items()
        },
        coords={axis: subject.coordinates, "matched": np.arange(1, MAX_MATCHED + 1)},
        attrs={"source": subject.source.title(), "n_states": subject.source.n_states},
    )
    if axis == "seed":
        return data
    data["random_composition"] = ("pair", random_composition(subject.config), {"unit": "composition"})
    data = data.merge(_paths(subject, data)).assign_attrs(_references(subject))
    return data.merge(_example(subject, data), combine_attrs="no_conflicts")


def headline(data: xr.Dataset) -> dict[Hashable, xr.DataArray]:
    """For each model, the head with the largest induction score among those that a predecessor moves.

    Among all heads, where a predecessor moves none.
    """
    causal = data["effect_low"] > CAUSAL
    score = data["induction"].sel(matched=1).fillna(-1.0).round(6)  # of heads alike the first
    return (score + 10.0 * causal).argmax(("layer", "head"))


def _references(subject: Subject) -> dict[str, str]:
    """The predictors that a cut path is judged by: the in-context ones where the source redraws its chain."""
    prefix = "in_context_" if subject.source.redraws else ""
    names = list(subject.exact)  # simplest first
    return {
        "reference": prefix + "bigram" if prefix + "bigram" in names else names[-1],
        "simpler": prefix + "unigram" if prefix + "unigram" in names else names[0],
    }


def _paths(subject: Subject, data: xr.Dataset) -> xr.Dataset:
    """Cut the paths into the head h that `headline` names, in models where a predecessor moves it.

    Returns:
        `key_cut` [axis, from_layer, from_head] (probability): the induction score of h with that earlier
        head's output at its mean in h's keys; `feeder_layer`, `feeder_head` [axis]: the head whose cut takes
        the most (-1: there is none); `intact` [axis] and `cut` [axis, input] (probability): the score of h,
        whole and with the feeder cut from its Q, K or V; `kl_intact` [axis], `kl_cut`, `kl_error`
        [axis, input] (nats): KL from the reference predictor to the model, and the standard error of the
        difference; `kl_simpler` (nats): KL from it to the simpler predictor on the same sequences.
    """
    axis, heads = subject.axis, headline(data)
    readers: list[Head | None] = [
        (int(heads["layer"][i]), int(heads["head"][i])) if causal else None
        for i, causal in enumerate((data["effect_low"].isel(heads) > CAUSAL).values)
    ]
    names = _references(subject)
    cut = trace(subject, readers, subject.exact[names["reference"]], subject.exact[names["simpler"]])
    nats, probability = {"unit": "nats"}, {"unit": "probability"}
    return xr.Dataset(
        {
            "key_cut": ((axis, "from_layer", "from_head"), cut.key_cut, probability),
            "feeder_layer": (axis, cut.feeder[:, 0], {"unit": "layer"}),
            "feeder_head": (axis, cut.feeder[:, 1], {"unit": "head"}),
            "intact": (axis, cut.intact, probability),
            "cut": ((axis, "input"), cut.cut, probability),
            "kl_intact": (axis, cut.kl_intact, nats),
            "kl_cut": ((axis, "input"), cut.kl_cut, nats),
            "kl_error": ((axis, "input"), cut.kl_error, nats),
            "kl_simpler": ((), cut.kl_simpler, nats),
        },
        coords={axis: subject.coordinates, "input": list(INPUTS)},
    )


def _example(subject: Subject, data: xr.Dataset) -> xr.Dataset:
    """Attention of the last model's circuit on the end of the first sequence, and of an ideal head."""
    now = data.isel({subject.axis: -1})
    shown = [(int(index[-1]) for index in headline(data).values())]
    if int(now["feeder_layer"]) >= 0:
        shown.insert(0, (int(now[name]) for name in ("feeder_layer", "feeder_head")))
    heads = [tuple(head) for head in shown]
    tokens = subject.batch.tokens[:1]
    end = slice(max(0, tokens.shape[1] - EXAMPLE_POSITIONS), None)
    names = {layer: f"blocks.{layer}.attn.hook_pattern" for layer, _ in heads}
    uniform = subject.recorded(INDUCTION).reference.matches.uniform[0, 0].numpy()
    labels = [head_name(*head) for head in heads]
    ideal = uniform.shape == (tokens.shape[1],) * 2  # every position is read
    members = []
    for member in range(len(subject.decoder)):
        _, cache = subject.decoder[member].run_with_cache(tokens, names_filter=list(names.values()))
        patterns = [cache[names[layer]][0, head].detach().numpy() for layer, head in heads]
        members.append(np.stack([*patterns, uniform] if ideal else patterns)[:, end, end])
    states = [*subject.source.labels, "query"]
    return xr.Dataset(
        {
            "example": (
                (subject.axis, "shown", "query", "key_shown"),
                np.stack(members),
                {"unit": "probability"},
            )
        },
        coords={"shown": [*labels, "ideal"] if ideal else labels},
        attrs={"example_tokens": [states[int(token)] for token in tokens[0, end]]},
    )
