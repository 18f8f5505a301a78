"""What a run is, in words, for the head of a report."""

import hashlib
import json
from typing import Any

from mechmarkov.models.config import DecoderConfig
from mechmarkov.runs.stored import Stored
from mechmarkov.utils.text import counted

# Kinds of positional embeddings by what they do, where their name does not say it.
POSITIONS = {
    "none": "no positions",
    "shortformer": "positions in queries and keys only (shortformer)",
    "alibi": "ALiBi",
    "relative_bias": "a learned bias of scores by lag",
}

# Fields of a recipe that name or record a training, or that are settings of their own.
NOT_TRAINING = ("name", "title", "checkpoints", "source", "model", "objective")
HASH_CHARACTERS = 12


def describe(run: Stored) -> dict[str, Any]:
    """Returns what a run is, as plain data for people.

    Example:
        >>> import mechmarkov as mm
        >>> describe(mm.example("walk"))["source"]
        'Circle walk on 6 states, p = 0.5'
    """
    objective, model = run.objective, run.config
    mlp = [*["gated"] * model.gated_mlp, *["parallel"] * model.parallel_attn_mlp, str(model.act_fn)]
    no_mlp = "attention only" if model.mixer == "attention" else "no MLP"
    shape = [
        f"{counted(model.n_layers, 'layer')} of {counted(model.n_heads, 'head')}",
        no_mlp if model.attn_only else f"MLP of {model.d_mlp} ({', '.join(mlp)})",
        f"width {model.d_model}",
        f"context {model.n_ctx}",
        _norms(model),
        POSITIONS.get(model.positional_embedding_type, f"{model.positional_embedding_type} positions"),
    ]
    shape += [f"{model.n_key_value_heads} key-value heads"] * (model.n_key_value_heads is not None)
    shape += ["norms on queries and keys"] * model.use_qk_norm
    shape += [f"mixer {model.mixer}"] * (model.mixer != "attention")
    shape += ["tied embeddings"] * model.tied
    shape += [f"window of {model.window} back"] * (model.window is not None)
    loss = {
        "cross_entropy": "cross-entropy",
        "raw_log": f"-log(score + {objective.eps:g}) on raw scores",
        "normalised_log": f"-log(score / sum + {objective.eps:g}) on scores",
        "squared": "squared error on scores",
    }[objective.kind]
    trained = f"{loss}, read at {'the last position' if objective.read == 'last' else 'every position'}"
    return {
        "title": run.title(),
        "source": run.source.title(),
        "model": ", ".join(shape),
        "objective": trained
        + (", which is an added query token" if objective.query else "")
        + (", a beginning-of-sequence token" if objective.bos else ""),
        "seed": run.seed,
        **{f"training {name.replace('_', ' ')}": text for name, text in run.sampling_errors().items()},
        "provenance": run.provenance,
    }


def fingerprints(run: Stored) -> dict[str, str]:
    """Returns a hash of each setting of a run in full: titles of different sources may be equal.

    Its seed is not part of them, nor is what only names or records a training.

    Example:
        >>> import mechmarkov as mm
        >>> walk, trap = (fingerprints(mm.example(name)) for name in ("walk", "trap"))
        >>> [name for name in walk if walk[name] != trap[name]]
        ['source', 'training']
    """
    training = {name: value for name, value in (run.recipe or {}).items() if name not in NOT_TRAINING}
    settings = {name: getattr(run, name).model_dump(mode="json") for name in ("source", "objective")}
    settings |= {"model": run.config.model_dump(mode="json"), "training": [training, run.trainable]}
    return {
        name: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:HASH_CHARACTERS]
        for name, value in settings.items()
    }


def _norms(model: DecoderConfig) -> str:
    """Returns what norms a model has and where they stand, as one part of its description."""
    if model.normalization_type is None:
        return "no norm"
    place = "" if model.norm_first else " behind the sums"
    last = "" if model.final_norm == model.norm_first else " and a last one" if place else ", no last one"
    return f"norm {model.normalization_type}{place}{last}"
