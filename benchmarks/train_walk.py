"""Training the K=6, N=97 walk: this library beside a plain HookedTransformer-style loop, in one run.

    python -m benchmarks.train_walk [--steps 50] [--repeats 3]

The peer is what a researcher would write: the same construction as a hooked model with frozen parameters,
`loss.backward()` and `torch.optim.SGD`, on the same 1000 sequences. With TransformerLens 3.9 it is
HookedTransformer itself; with 4.x, which has none, it is HookedDecoder with its parameters and hooks.
"""

import argparse
import warnings
from collections.abc import Callable

import torch

import mechmarkov as mm
from benchmarks.timing import report
from mechmarkov.models.constructions.walk import walk_frozen_state, walk_trainable, walk_trained_state
from mechmarkov.training.model_sections import WalkSection


def peer_model(recipe: mm.Recipe) -> tuple[torch.nn.Module, str]:
    """The walk construction as a trainable hooked model, from zero weights."""
    assert isinstance(recipe.model, WalkSection)
    shape = recipe.model.shape(recipe.source.n_states)
    config = recipe.decoder_config
    try:
        from transformer_lens import HookedTransformer, HookedTransformerConfig
    except ImportError:
        model: torch.nn.Module = mm.HookedDecoder(config)
        name = "HookedDecoder loop (TransformerLens 4 has no HookedTransformer)"
    else:
        fields = {
            k: v for k, v in config.model_dump().items() if k not in ("tied", "window") and v is not None
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            model = HookedTransformer(HookedTransformerConfig(**fields | {"normalization_type": None}))
        name = "HookedTransformer loop"
    K = shape.n_states
    weights = walk_frozen_state(shape) | walk_trained_state(torch.zeros(K, K), torch.zeros(shape.width))
    model.load_state_dict(weights, strict=False)
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter_name in walk_trainable(shape))
    return model, name


def peer(recipe: mm.Recipe, steps: int) -> Callable[[], object]:
    """Full-batch gradient descent with `backward` and SGD."""
    source = mm.sources.source_from_data(recipe.to_data()["source"])
    states = source.sample(1000, recipe.decoder_config.n_ctx, generator=torch.Generator().manual_seed(0))
    tokens = torch.cat([states[:, :-1], torch.full((1000, 1), source.n_states)], dim=1)
    slices = recipe.trainable_slices
    assert slices is not None

    def train() -> object:
        model, _ = peer_model(recipe)
        optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
        for _ in range(steps):
            scores = model(tokens)[:, -1]
            loss = -(scores.gather(-1, states[:, -1:]) + 0.1).log().mean()
            optimiser.zero_grad()
            loss.backward()
            for name, spans in slices.items():  # only the slices that the walk model has are trained
                gradient = model.get_parameter(name).grad
                assert gradient is not None
                assert spans is not None
                kept = gradient[tuple(slice(*span) for span in spans)].clone()
                gradient.zero_()[tuple(slice(*span) for span in spans)] = kept
            optimiser.step()
        return model

    return train


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = mm.load_recipe("walk-k6-half").with_set([f"steps={options.steps}", "checkpoints={every=1}"])
    report(
        f"walk K=6, N=97, {options.steps} steps, 1000 sequences, one thread",
        {
            "mechmarkov (all checkpoints and metrics)": lambda: mm.train(chosen, seed=0, progress=False),
            peer_model(chosen)[1]: peer(chosen, options.steps),
        },
        options.repeats,
    )
