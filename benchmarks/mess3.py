"""The figure and the numbers of `docs/belief.md`: Mess3, learned by one and by two layers.

python -m benchmarks.mess3        # two minutes of processor time
"""

from pathlib import Path

import numpy as np
from mechmarkov.probes.belief.figures import CORNERS

import mechmarkov as mm
from mechmarkov.training import load_recipe

FIGURE = Path(__file__).parents[1] / "docs" / "mess3.svg"
SIZE = 300  # of each triangle, pixels


def drawn(exact: np.ndarray, image: np.ndarray) -> str:
    """Beliefs and their image `[point, hidden]` as a picture, a point of the same colour in both."""
    colours = (40 + 200 * np.clip(exact, 0, 1)).astype(int)
    dots = []
    for panel, beliefs in enumerate((exact, image)):
        for (x, y), (r, g, b) in zip(beliefs @ CORNERS, colours, strict=True):
            at = f'cx="{20 + SIZE * (1.1 * panel + x):.1f}" cy="{SIZE * (1 - y):.1f}"'
            dots.append(f'<circle {at} r="2" fill="rgb({r},{g},{b})"/>')
    size = f'viewBox="0 0 {2.1 * SIZE + 40:.0f} {SIZE + 20}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n' + "\n".join(dots) + "\n</svg>\n"


if __name__ == "__main__":
    head = ["layers", "KL to the filter", "after attention", "after blocks", "forced KL", "clean KL"]
    print("|", " | ".join(head), "|\n|" + "---|" * len(head))
    for layers in (1, 2):
        run = mm.train(load_recipe("mess3").with_set([f"model.n_layers={layers}"]), seed=0, progress=False)
        result = mm.probe(run, ["behaviour", "belief"])
        data, scores = result["belief"].data.isel(step=-1), result["belief"].scores
        rows = [data["attention_r2"].values, data["r2"].values[1:]]
        numbers = [", ".join(f"{value:.3f}" for value in row) for row in rows]
        kls = [result["behaviour"].scores["kl_best"], scores["forced_kl"], scores["clean_kl"]]
        best, *rest = [f"{score.value:.4f}" for score in kls]
        print("|", " | ".join([str(layers), best, *numbers, *rest]), "|")
        if layers == 1:
            FIGURE.write_text(drawn(data["exact"].values, data["image"].values))
    print(f"additive {float(data['additive_r2']):.3f}, carried on {float(data['carried_r2']):.3f}")
