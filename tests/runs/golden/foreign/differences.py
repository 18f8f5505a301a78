"""Prints how far models of elsewhere and their conversions are apart: golden files first, then live ones.

    python tests/runs/golden/foreign/differences.py [FOLDER_OF_NANOGPT]

Live models are those of the libraries installed here; nanoGPT is none, and is named.
"""

import contextlib
import io
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from foreign_numbers import HERE, LENGTH, K, draw

sys.path.append(str(HERE.parents[1]))

from golden_files import golden

MADE_BY = {
    "tl2": "TransformerLens 2.18.0",
    "tl3": "TransformerLens 3.9.0",
    "bridge": "TransformerLens 4.3.0",
    "nanogpt": "nanoGPT 3adf61e",
    "gpt2": "transformers 5.23.0",
}


def live() -> Iterator[tuple[str, torch.nn.Module]]:
    """Models that the installed libraries make, by what they are called."""
    import make_bridge
    import make_gpt2
    from transformers import GPT2Config, GPT2LMHeadModel

    for name, changes in make_bridge.CASES.items():
        yield f"TransformerBridge {name}", make_bridge.native(**changes)
    yield "TransformerBridge around GPT-2", make_bridge.around_gpt2()
    shape = {"vocab_size": K, "n_positions": LENGTH, "n_embd": 8, "n_layer": 2, "n_head": 2}
    special = {"bos_token_id": 0, "eos_token_id": 0}
    for name, changes in make_gpt2.CASES.items():
        if name != "inverse_layer":  # which is refused
            yield f"GPT2LMHeadModel {name}", draw(GPT2LMHeadModel(GPT2Config(**shape, **special, **changes)))
    if len(sys.argv) > 1:
        sys.path.insert(0, sys.argv[1])
        from model import GPT, GPTConfig  # nanoGPT's

        for bias in (True, False):
            sizes = {"n_layer": 2, "n_head": 2, "n_embd": 8}
            with contextlib.redirect_stdout(io.StringIO()):  # it counts its parameters aloud
                model = draw(GPT(GPTConfig(LENGTH, K, **sizes, bias=bias)))
            yield f"nanoGPT's GPT, {'with' if bias else 'without'} biases", model


def main() -> None:
    warnings.simplefilter("ignore")  # what TransformerLens says while it makes a bridge
    sys.path.insert(0, str(HERE.parents[1]))
    from test_import_layouts import BARE_BRIDGES, CASES, SOURCE

    from mechmarkov.importing.live_model import difference
    from mechmarkov.runs import Run
    from mechmarkov.runs.import_run import import_run

    def apart(path: Path, given: dict, name: str) -> tuple[str, float]:
        run = import_run([path], source=SOURCE, given=given).run
        original = torch.load(HERE / f"{name.removesuffix('.pt')}.logits.pt", weights_only=True)
        with torch.no_grad():
            found = difference(original["logits"], run.model()(original["tokens"]))
        return run.provenance["imported_from"], found.largest

    print("| layout | made by | file | largest logit difference |\n|---|---|---|---|")
    for name, given in CASES.items():
        layout, largest = apart(HERE / name, given, name)
        print(f"| {layout} | {MADE_BY[name.split('_')[0]]} | `{name}` | {largest:.1e} |")
    for name, given in BARE_BRIDGES.items():
        with tempfile.TemporaryDirectory() as folder:
            bare = Path(folder) / "bare.pt"
            torch.save(golden(f"bridge_{name}.pt")["model"], bare)
            layout, largest = apart(bare, given, f"bridge_{name}")
        print(f"| {layout}, bare | {MADE_BY['bridge']} | state dict of `bridge_{name}.pt` | {largest:.1e} |")
    print("\n| live model | largest logit difference |\n|---|---|")
    for name, model in live():
        run = Run.from_model(model, source=SOURCE)
        print(f"| {name} | {run.provenance['logit_difference']:.1e} |")


if __name__ == "__main__":
    main()
