"""Where probes come from: distributions on disk, and folders that get in the way."""

import json
import subprocess
import sys
import textwrap

import pytest
from distributions import install

from mechmarkov.catalogue.probes import GROUP, registered
from mechmarkov.probing.probe import load_probe

PROBE = """
from mechmarkov.probing import Probe
probe = Probe("{name}", "?", "-", *[lambda *_: None] * 5)
"""


def test_ours_come_first_and_in_the_order_of_a_report():
    assert list(registered())[:3] == ["behaviour", "attention", "alignment"]
    for name in list(registered())[:3]:
        assert load_probe(name).name == name


def test_anybodys_probe_is_found_after_ours(tmp_path, monkeypatch):
    install(tmp_path, "weather", GROUP, "aaa = weather_probe:probe", weather_probe=PROBE.format(name="aaa"))
    monkeypatch.syspath_prepend(tmp_path)
    assert list(registered())[-1] == "aaa"
    assert load_probe("aaa").name == "aaa"


def test_two_of_one_name_are_an_error_that_names_both(tmp_path, monkeypatch):
    install(tmp_path, "weather", GROUP, "attention = weather_probe_2:probe")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="two probes are named 'attention'") as caught:
        registered()
    assert "mechmarkov.probes.attention:probe of mechmarkov" in str(caught.value)
    assert "weather_probe_2:probe of weather" in str(caught.value)


def test_a_name_that_is_none_is_refused_with_those_that_are():
    with pytest.raises(
        ValueError, match="no probe is named 'nope'; there are behaviour, attention, alignment"
    ):
        load_probe("nope")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("probe = 3", "is a int, expected a mechmarkov Probe"),
        (PROBE.format(name="else"), "is registered as 'odd' but calls itself 'else'"),
    ],
)
def test_what_is_no_probe_is_refused(tmp_path, monkeypatch, text, said):
    name = f"odd_probe_{len(text)}"
    install(tmp_path, "odd", GROUP, f"odd = {name}:probe", **{name: text})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=said):
        load_probe("odd")


@pytest.mark.system
def test_a_users_probes_folder_is_left_alone(tmp_path):
    (tmp_path / "probes").mkdir()
    (tmp_path / "probes" / "__init__.py").write_text("", "utf-8")
    (tmp_path / "probes" / "behaviour.py").write_text("raise SystemExit('the wrong probe was run')", "utf-8")
    script = """
        import json, torch
        import mechmarkov as mm
        from mechmarkov.models.constructions.lookup_tables import direct_table
        decoder = direct_table(torch.zeros(2, 2), n_ctx=3)
        run = mm.Run.from_model(decoder, source=mm.Binary(p=0.5, q=0.8))
        print(json.dumps(mm.probe(run, ["behaviour", "attention"], sequences=4).failed))
    """
    (tmp_path / "user_script.py").write_text(textwrap.dedent(script), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "user_script"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}
