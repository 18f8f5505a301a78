"""What a score is: said by its probe, opened at its name in the report."""

from dataclasses import replace

import pytest
from looking import violations
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from mechmarkov.probing.probe import load_probe
from mechmarkov.probing.score import Score
from mechmarkov.report.glossary import explanation

OPEN = "return [...document.querySelectorAll('.explained:popover-open')].map((e) => e.innerText)"


@pytest.mark.parametrize(
    ("probe", "score", "unit", "low"),
    [
        ("behaviour", "kl_bigram", "nats", "from 0"),
        ("alignment", "kernel_kl", "nats", "from 0"),
        ("induction", "fidelity", "nats", "from 0"),
        ("behaviour", "excess_loss", "nats", "0 at the best"),
        ("storage", "gain", "nats", "0 without effect; below 0"),
        ("alignment", "kernel_cosine", "cosine", "−1 to 1"),
        ("alignment", "kernel_slope", "1 is exact", "no bounds"),
    ],
)
def test_a_divergence_is_never_below_zero_and_a_gain_may_be(probe, score, unit, low):
    assert explanation(load_probe(probe), score, Score(0.1, unit)).range.startswith(low)


def test_the_formula_is_the_scores_own_or_the_probes_line_of_that_name_or_all_of_them():
    probe = load_probe("attention")
    (spread,) = explanation(probe, "spread", Score(0.1, "probability")).formula
    assert spread in probe.formula
    assert spread.startswith("spread =")
    (information,) = explanation(
        load_probe("symmetry"), "first_step_information", Score(0.1, "share")
    ).formula
    assert information.startswith("first-step information =")
    share = explanation(load_probe("storage"), "share_L0H1", Score(0.1, "share"))
    assert share.formula == (load_probe("storage").formulas["share_*"],)
    bare = replace(probe, formulas={})
    every = explanation(bare, "best_lag", Score(1, "lag", null_kind="24 fresh models"))
    assert list(every.formula) == probe.formula.splitlines()
    assert (every.null, every.source) == ("24 fresh models", probe.cites)


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_a_scores_name_opens_what_it_is(browser, walk, width, scheme):
    browser.open(walk, width, scheme)
    browser.js("document.querySelectorAll('details').forEach((fold) => (fold.open = true))")
    names = browser.driver.find_elements(By.CSS_SELECTOR, ".scores th .why")
    assert len(names) == len(browser.driver.find_elements(By.CSS_SELECTOR, ".scores tbody tr")) > 3
    targets = [name.get_attribute("popovertarget") for name in names]
    assert len(set(targets)) == len(targets)
    browser.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", names[1])
    names[1].send_keys(Keys.ENTER)
    (said,) = browser.js(OPEN)
    assert said.startswith(names[1].text)
    for word in ("Range", "Null"):
        assert word in said
    box = "document.querySelector('.explained:popover-open').getBoundingClientRect()"
    box = browser.js(f"const b = {box}; return [b.left, b.right]")
    assert 0 <= box[0] < box[1] <= width
    assert violations(browser) == []
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert browser.js(OPEN) == []
    assert browser.said() == []
    assert browser.requests() == [walk.as_uri()]
