import os

import nbformat
import pytest
from nbclient import NotebookClient

from mechmarkov.utils.progress import watched


@pytest.mark.parametrize(("opened", "is_watched"), [(os.pipe, False), (os.openpty, True)])
def test_a_terminal_is_watched_and_a_pipe_is_not(monkeypatch, opened, is_watched):
    ours, theirs = opened()
    with os.fdopen(ours, "rb"), os.fdopen(theirs, "w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        assert watched() == is_watched


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's own transport
def test_a_notebook_is_watched():
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell("from mechmarkov.utils.progress import watched\nwatched()")]
    NotebookClient(notebook, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    assert output["data"]["text/plain"] == "True"
