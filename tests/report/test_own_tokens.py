"""A sequence of one's own: laws, lens and patches against the model itself, and its page in a browser."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from looking import CUT, assert_nothing_is_wrong
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

import mechmarkov as mm
from mechmarkov.cli import cli, main
from mechmarkov.probing.own_tokens import states_of

SEQUENCE = [0, 1, 2, 0, 1, 2, 2]


@pytest.fixture(scope="module")
def induction() -> mm.Run:
    return mm.example("induction")


def law(run: mm.Run, sequence: list[int]) -> np.ndarray:
    """The model's own prediction after every state."""
    with torch.no_grad():
        return run.model()(torch.tensor([sequence]))[0].double().softmax(-1).numpy()


def test_the_law_is_the_models_and_the_sources(induction):
    data = mm.tokens(induction, SEQUENCE).data
    np.testing.assert_allclose(data["model"], law(induction, SEQUENCE), atol=1e-6)
    counts = np.ones((3, 3))  # add-one counts of pairs, counted here
    for position, state in enumerate(SEQUENCE):
        expected = counts[state] / counts[state].sum()
        np.testing.assert_allclose(data["law"].sel(predictor="in_context_bigram")[position], expected)
        if position + 1 < len(SEQUENCE):
            counts[state, SEQUENCE[position + 1]] += 1
    kl = (data["law"] * np.log(data["law"] / data["model"])).sum("state")
    np.testing.assert_allclose(data["divergence"], kl, atol=1e-9)


def test_a_query_is_answered_at_the_end():
    run = mm.example("walk")
    source = run.source
    assert isinstance(source, mm.Circle)
    states = [(3 * i + i // 5) % 6 for i in range(run.config.n_ctx - 1)]
    data = mm.tokens(run, states).data
    assert data["read_position"].values.tolist() == [run.config.n_ctx - 1]
    with torch.no_grad():
        logits = run.model()(torch.tensor([[*states, 6]]))[0, -1]
    expected = run.objective.predict(logits.double()).numpy()
    np.testing.assert_allclose(data["model"].values, expected[None], atol=1e-6)
    np.testing.assert_allclose(data["law"].sel(predictor="bigram").values, source.P[states[-1:]], atol=1e-12)


def test_the_last_depth_of_the_lens_is_the_model(induction):
    data = mm.tokens(induction, SEQUENCE).data
    np.testing.assert_allclose(data["lens"][-1], data["model"], atol=1e-6)
    model = induction.model()
    residual = model.embed(torch.tensor([SEQUENCE]))
    first = model.unembed(model.ln_final(residual))[0].double().softmax(-1)
    np.testing.assert_allclose(data["lens"][0], first.detach(), atol=1e-6)


def test_attention_is_that_of_the_model(induction):
    data = mm.tokens(induction, SEQUENCE).data
    _, cache = induction.model().run_with_cache(torch.tensor([SEQUENCE]))
    np.testing.assert_allclose(
        data["attention"][1], cache["blocks.1.attn.hook_pattern"][0].detach(), atol=1e-6
    )


def test_patched_tokens_are_the_unchanged_sequence(induction):
    data = mm.tokens(induction, SEQUENCE).data
    target = int(law(induction, SEQUENCE)[-1].argmax())
    for i, place in enumerate(data["changed"].values):
        changed = list(SEQUENCE)
        changed[place] = int(data["changed_to"][i])
        corrupted = law(induction, changed)[-1, target]
        assert data["corrupted"][i] == pytest.approx(corrupted, abs=1e-6)
        # The embedding at the changed position is all that differs: putting it back undoes the change.
        expected = np.full(len(SEQUENCE), corrupted)
        expected[place] = law(induction, SEQUENCE)[-1, target]
        np.testing.assert_allclose(data["patched"][i, 0], expected, atol=1e-6)
        # After the last layer only the last position is read.
        expected = np.full(len(SEQUENCE), corrupted)
        expected[-1] = law(induction, SEQUENCE)[-1, target]
        np.testing.assert_allclose(data["patched"][i, -1], expected, atol=1e-6)


@pytest.mark.parametrize("name", ["walk", "mamba", "graph"])
def test_every_kind_of_run_has_a_page(name, tmp_path):
    run = mm.example(name)
    n = run.config.n_ctx - run.objective.n_extra if run.objective.read == "last" else 12
    shown = mm.tokens(run, [i % run.source.n_states for i in range(n)])
    text = shown.report(tmp_path / "tokens.html").read_text("utf-8")
    assert ("Where each head looks" in text) == ("attention" in shown.data)
    json.dumps(shown.to_data(), allow_nan=False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--tokens", "0 1 7"], "sequence has state 7, expected 0 to 2"),
        (["--tokens", "0 x"], "sequence has 'x', expected states: 0, 1, 2"),
        (["--tokens", " "], "--tokens is ' ', expected states"),
        (["--tokens", "0 " * 500], "sequence has 500 states, expected at most"),
        (["--tokens", "0 1", "--step", "7"], "step is 7, expected"),
    ],
)
def test_bad_tokens_are_one_line(words, expected, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["tokens", "--example", "induction", *words, "--out", str(tmp_path / "out")])
    told = capsys.readouterr()
    assert (left.value.code, told.out, len(told.err.splitlines())) == (2, "", 1)
    assert expected in told.err
    assert not (tmp_path / "out").exists()


def test_the_command_line_prints_json_only(tmp_path):
    words = ["tokens", "--example", "induction", "--tokens", "0,1,2", "--json", "--out", str(tmp_path)]
    data = json.loads(CliRunner().invoke(cli, words, catch_exceptions=False).stdout)
    assert data["tokens"] == ["0", "1", "2"]
    assert sum(data["positions"][2]["model"].values()) == pytest.approx(1)
    assert Path(data["page"]).is_file()


def test_labels_and_numbers_are_both_states():
    ring = mm.Graph(n_states=3, edges=[(0, 1), (1, 2), (0, 2)], labels=("a", "b", "2"))
    assert states_of(ring, ["a", "b", "2", "0", 1]) == [0, 1, 2, 0, 1]


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_the_page_shows_each_change(browser, tmp_path, width, scheme):
    path = mm.tokens(mm.example("induction"), SEQUENCE).report(tmp_path / "tokens.html")
    browser.open(path, width, scheme)
    assert browser.draw_all() == ["own-laws", "own-divergence", "own-attention", "own-lens", "own-patch"]
    choice = Select(browser.driver.find_element(By.ID, "step"))
    assert len(choice.options) == len(SEQUENCE)
    browser.driver.find_element(By.ID, "step").send_keys(Keys.ARROW_DOWN * 2)
    browser.js("document.getElementById('own-patch').scrollIntoView({behavior: 'instant'})")
    follows = "return document.querySelector('#own-patch .caption').textContent.startsWith(arguments[0])"
    wanted = choice.options[2].text
    WebDriverWait(browser.driver, 60).until(lambda driver: driver.execute_script(follows, wanted))
    assert_nothing_is_wrong(browser, width)
    assert browser.requests() == [path.as_uri()]


@pytest.mark.browser
def test_a_report_on_given_tokens_shows_the_first(browser, tmp_path):
    result = mm.probe(
        mm.example("induction"), ["behaviour"], tokens=[SEQUENCE, SEQUENCE[::-1]], steps=[0, 5000]
    )
    path = result.report(tmp_path / "report.html")
    browser.open(path)
    assert {"own-laws", "own-attention", "own-patch"} <= set(browser.draw_all())
    assert browser.js(CUT) == []
    assert browser.said() == []
