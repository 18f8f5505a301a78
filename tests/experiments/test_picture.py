"""A browser that does not answer holds no measurement up."""

import shutil

import plotly.graph_objects as go
import pytest

from experiments import picture

pytestmark = pytest.mark.browser


@pytest.fixture
def browser(tmp_path, monkeypatch):
    """A browser that does not answer before it has been started so often."""

    def deaf(times):
        path = tmp_path / "browser"
        path.write_text(
            f"""#!/bin/sh
echo >> {tmp_path}/starts
test $(wc -l < {tmp_path}/starts) -le {times} && exec sleep 20
exec {shutil.which("chromium")} "$@"
"""
        )
        path.chmod(0o755)
        monkeypatch.setenv("BROWSER_PATH", str(path))

    return deaf


def test_a_picture_is_drawn_again_where_the_browser_does_not_answer(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(picture, "SECONDS", 10)
    browser(1)
    picture.draw(go.Figure(), tmp_path / "empty.svg")
    assert (tmp_path / "empty.svg").read_text().startswith("<svg")
    assert len((tmp_path / "starts").read_text()) == 2


def test_a_browser_that_never_answers_is_one_line(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(picture, "SECONDS", 2)
    browser(9)
    with pytest.raises(RuntimeError, match=r"^Chromium gave no picture in 2 s, 3 times$"):
        picture.draw(go.Figure(), tmp_path / "empty.svg")
