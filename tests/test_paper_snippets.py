"""Code of the pages on tables and figures for a paper runs as it stands there."""

import re
from pathlib import Path

import pandas as pd

DOCS = Path(__file__).parents[1] / "docs"


def snippet(page: str, word: str) -> str:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    (found,) = [block for block in blocks if word in block]
    return found


def test_scores_and_figures_are_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = snippet("how-to-read-a-report.md", "to_dataframe").splitlines()
    exec("\n".join(line for line in lines if "write_image" not in line), {})  # that one needs a browser
    assert "kl_best" in Path("scores.csv").read_text("utf-8")
    assert Path("lag.csv").read_text("utf-8").startswith("step,layer,head,lag,lag_mass\n")
    assert Path("kl.html").is_file()


def test_a_share_has_wilsons_interval(capsys):
    heads = ["L1H0", None, "L1H1", None]
    table = pd.DataFrame({"model.n_layers": [1, 1, 2, 2], "induction.induction_head": heads})
    exec(snippet("clusters.md", "wilson"), {"table": table})
    assert capsys.readouterr().out.splitlines()[0].startswith("1 0.5 (0.09")
