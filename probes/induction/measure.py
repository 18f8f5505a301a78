"""What the induction probe measures: every head's scores, and what cutting the best pair's path does."""

import numpy as np
import xarray as xr
from jaxtyping import Float

from mechmarkov.models.components import head_index
from mechmarkov.models.decoder import activations
from mechmarkov.probing.dataset import Variables, head_name, variables
from mechmarkov.probing.preconditions import best_of, predictor_of, why_no_value_circuit
from mechmarkov.probing.recording import PATHS
from mechmarkov.probing.subject import Subject
from mechmarkov.probing.value_circuits import path_tables
from mechmarkov.theory.bootstrap import standard_error

from .checks import predecessor_effect, repeated_score
from .circuit import last_induction_head, strongest_feeder, tied_heads
from .composition import composition, copying, random_composition
from .matches import MAX_MATCHED
from .paths import trace
from .recorded import INDUCTION

# A whole pattern of 64 tokens is unreadable; the end of the sequence is where most has been seen.
EXAMPLE_POSITIONS = 24
LEAST_ODDS = 1e-4  # what the law holds impossible would outweigh all else in its logarithm


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
        For a run, not for its null, also `along` (slope) and `along_error`: how much of the law's log-odds
        each head writes; `random_composition` [pair], that of random matrices; an `example`
        [axis, shown, query, key_shown]: attention of the last model's circuit on the end of the first
        sequence, and of an ideal head; and what `mechmarkov.probes.induction.paths.trace` returns.

    Example:
        >>> import mechmarkov as mm
        >>> data = measure(mm.Subject.of(mm.example("induction"), sequences=8))
        >>> data.effect.round(1).values.tolist()  # step, layer, head: the first of the second layer
        [[[0.0, 0.0], [0.8, 0.3]]]
    """
    axis, recorded = subject.axis, subject.recorded(INDUCTION)
    reference = recorded.reference
    effect = predecessor_effect(subject.decoder, subject.batch, subject.chunk_elements)
    repeated, repeated_chance = repeated_score(subject.decoder, subject.batch, subject.chunk_elements)
    tables = path_tables(subject)
    by_head = np.stack([table for name, table in tables.items() if head_index(name)], axis=1)
    copies = copying(by_head).reshape(effect.effect.shape)
    composed = {f"{into.lower()}_composition": score for into, score in composition(subject.decoder).items()}
    per_head, pairs = (axis, "layer", "head"), (axis, "from_layer", "from_head", "layer", "head")
    per_match = (*per_head, "matched")
    masses = {"match_mass": recorded.mass, "induction": recorded.score, "induction_error": recorded.error}
    moved = {"effect": effect.effect, "effect_low": effect.low, "effect_high": effect.high}
    attended = {"previous_token": recorded.previous_token, "duplicate_token": recorded.duplicate_token}
    chances = {
        "repeated_chance": repeated_chance,
        "previous_chance": reference.previous_chance,
        "duplicate_chance": reference.duplicate_chance,
    }
    data = xr.Dataset(
        variables("probability", per_match, **masses)
        | variables("nats", per_match, fidelity=recorded.fidelity)
        | variables("probability", "matched", ideal=reference.ideal)
        | variables("queries", "matched", queries=reference.queries)
        | variables("of the ideal", per_head, **moved)
        | variables("probability", per_head, repeated=repeated, **attended)
        | variables("probability", (), **chances)
        | variables("balance of eigenvalues", per_head, copying=copies)
        | variables("composition", pairs, **composed),
        coords={axis: subject.coordinates, "matched": np.arange(1, MAX_MATCHED + 1)},
        attrs={
            "source": subject.source.title(),
            "n_states": subject.source.n_states,
            "labels": list(subject.source.labels),
            "is_linear": int(why_no_value_circuit(subject.decoder) is None),
        },
    )
    if axis == "seed":
        return data
    random = random_composition(subject.config)
    data = data.assign(variables("composition", "pair", random_composition=random))
    judges = _judges(subject)
    readers = [tied_heads(data.isel({axis: i})) for i in range(data.sizes[axis])]
    cuts = trace(subject, readers, *(subject.exact[name] for name in judges.values()))
    data = data.assign_attrs(judges).merge(cuts, combine_attrs="no_conflicts")
    data = data.merge(_example(subject, data), combine_attrs="no_conflicts")
    return data.assign(_along(subject, subject.exact[judges["reference"]]))


def _judges(subject: Subject) -> dict[str, str]:
    """Returns the laws by which a cut path is judged: in context where the source redraws its chain.

    The best law where the bigram of one law for all sequences is not the best: what a circuit adds to that.
    """
    bigram, unigram = (predictor_of(subject.source, name) for name in ("bigram", "unigram"))
    best = best_of(subject.source, subject.exact) or bigram
    if subject.source.redraws or best == bigram or best not in subject.exact:
        return {"reference": bigram, "simpler": unigram}
    return {"reference": best, "simpler": bigram}


def _along(subject: Subject, law: Float[np.ndarray, "batch read state"]) -> Variables:
    """Returns how much of a law's log-odds each head writes to the logits, and its standard error.

    Below 0 of one that writes against them: it may look where an induction head does, and say the opposite.
    """
    paths = subject.recorded(PATHS)
    logs = np.log(np.maximum(law[:, list(paths.kept)], LEAST_ODDS))
    logs = logs - logs.mean(-1, keepdims=True)
    logs = logs - logs.mean((0, 1))
    heads = [i for i, name in enumerate(paths.names) if head_index(name)]
    by_sequence = np.einsum("mpskv,skv->mps", paths.logits[:, heads].astype(np.float64), logs)
    slope = by_sequence / max(float(np.square(logs).sum()), LEAST_ODDS) * len(logs)  # each sequence's own
    shape = (len(subject.decoder), subject.config.n_layers, -1)
    values = {"along": slope.mean(-1), "along_error": standard_error(slope)}
    per_head = (subject.axis, "layer", "head")
    return variables("slope", per_head, **{name: x.reshape(shape) for name, x in values.items()})


def _example(subject: Subject, data: xr.Dataset) -> xr.Dataset:
    """Attention of the last model's circuit on the end of the first sequence, and of an ideal head."""
    reader, name = last_induction_head(data)
    feeder = strongest_feeder(reader)
    labels = [head_name(feeder), name] if feeder is not None else [name]
    heads = [head for label in labels if (head := head_index(label)) is not None]
    tokens = subject.batch.tokens[:1]
    end = slice(max(0, tokens.shape[1] - EXAMPLE_POSITIONS), None)
    names = {layer: f"blocks.{layer}.attn.hook_pattern" for layer, _ in heads}
    uniform = subject.recorded(INDUCTION).reference.matches.part(slice(1), most=1).uniform[0, 0].numpy()
    ideal = uniform.shape == (tokens.shape[1],) * 2  # every position is read
    members = []
    for member in range(len(subject.decoder)):
        seen = activations(subject.decoder[member], tokens, names.values())
        patterns = [seen[names[layer]][0, head].numpy() for layer, head in heads]
        members.append(np.stack([*patterns, uniform] if ideal else patterns)[:, end, end])
    states = [*subject.source.labels, "beginning" if subject.objective.bos else "query"]
    return xr.Dataset(
        variables("probability", (subject.axis, "shown", "query", "key_shown"), example=np.stack(members)),
        coords={"shown": [*labels, "ideal"] if ideal else labels},
        attrs={
            "example_tokens": [states[int(token)] for token in tokens[0, end]],
            "example_keys": tokens.shape[1],
        },
    )
