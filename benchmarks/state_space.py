"""A training step of a state-space model beside transformers' own path on a CPU, which is plain torch too."""

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import mechmarkov as mm
from benchmarks.timing import report
from mechmarkov.models import DecoderConfig, HookedDecoder, initialise
from mechmarkov.models.kernels import use_fast_kernels

# The sizes of Bondaschi et al.'s code (arXiv 2502.10178), but for the batch: 64 there.
WIDTH, CHANNELS, STATE, WINDOW, LENGTH, STATES = 8, 16, 8, 4, 256, 2


def ours(mixer: str, n_models: int, tokens: Tensor) -> Callable[[], None]:
    """A forward and a backward pass of a stack."""
    shape = {"mamba": (1, CHANNELS), "mamba1": (CHANNELS, 1)}[mixer]
    config = DecoderConfig(
        n_layers=1,
        d_model=WIDTH,
        n_ctx=LENGTH,
        n_heads=shape[0],
        d_head=shape[1],
        d_vocab=STATES,
        d_state=STATE,
        d_conv=WINDOW,
        mixer=mixer,
        attn_only=True,
        normalization_type="RMS",
    )
    model = HookedDecoder(config, n_models=n_models)
    initialise(model, range(n_models), std=0.1)
    use_fast_kernels(model)

    def step() -> None:
        model.zero_grad()
        logits = model(tokens)[..., :-1, :]
        F.cross_entropy(logits.flatten(0, -2), tokens[:, 1:].expand(n_models, -1, -1).flatten()).backward()

    return step


def theirs(mixer: str, tokens: Tensor) -> Callable[[], None]:
    """The same of transformers' model of these sizes."""
    import transformers  # takes seconds

    transformers.logging.set_verbosity_error()
    sizes: dict[str, Any] = {"vocab_size": STATES, "num_hidden_layers": 1}
    sizes |= {"hidden_size": WIDTH, "state_size": STATE}
    if mixer == "mamba":
        sizes |= {"num_heads": 1, "head_dim": CHANNELS, "n_groups": 1, "conv_kernel": WINDOW}
        model: Any = transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**sizes))
    else:
        model = transformers.MambaForCausalLM(transformers.MambaConfig(**sizes, conv_kernel=WINDOW))

    def step() -> None:
        model.zero_grad()
        model(tokens, labels=tokens).loss.backward()

    return step


def main() -> None:
    """Time one model and eight as one stack, by mixer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    source = mm.DirichletChains(n_states=STATES, start="uniform")
    tokens = source.sample(options.batch, LENGTH, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mixer, name in (("mamba", "Mamba-2"), ("mamba1", "Mamba")):
            alternatives = {
                "one model": ours(mixer, 1, tokens),
                "eight models as one stack": ours(mixer, 8, tokens),
                "transformers, one model": theirs(mixer, tokens),
            }
            title = f"{name}, a step on {options.batch} sequences of {LENGTH}, width {WIDTH}"
            report(title, alternatives, options.repeats)


if __name__ == "__main__":
    main()
