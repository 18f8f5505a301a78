"""Prints how far each imported golden file is from the logits of the library that made it, as a table.

python tests/runs/golden/foreign/differences.py
"""

import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
MADE_BY = {
    "tl2": "TransformerLens 2.18.0",
    "tl3": "TransformerLens 3.9.0",
    "bridge": "TransformerLens 4.3.0",
    "nanogpt": "nanoGPT 3adf61e",
    "gpt2": "transformers 5.23.0",
}


def main() -> None:
    sys.path.insert(0, str(HERE.parents[1]))
    from test_import_layouts import CASES, SOURCE

    from mechmarkov.runs.convert import difference
    from mechmarkov.runs.foreign.importing import import_run

    print("| layout | made by | file | largest logit difference |\n|---|---|---|---|")
    for name, given in CASES.items():
        run = import_run([HERE / name], source=SOURCE, given=given).run
        asked = torch.load(HERE / f"{name.removesuffix('.pt')}.logits.pt", weights_only=True)
        with torch.no_grad():
            found = difference(asked["logits"], run.decoder()(asked["tokens"]))
        maker = MADE_BY[name.split("_")[0]]
        print(f"| {run.provenance['imported_from']} | {maker} | `{name}` | {found.largest:.1e} |")


if __name__ == "__main__":
    main()
