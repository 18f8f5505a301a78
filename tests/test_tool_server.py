"""`mechmarkov mcp`, called by the SDK's own client over its pipes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

import mechmarkov as mm
from mechmarkov.cli import main

pytestmark = pytest.mark.system


def called(root, calls):
    """What the tools of a server answer, in turn: an error flag and a text each."""
    arguments = ["-m", "mechmarkov", "mcp", "--root", str(root)]
    parameters = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
    answers = []

    async def talk():
        async with stdio_client(parameters) as pipes, ClientSession(*pipes) as session:
            await session.initialize()
            answers.append([tool.name for tool in (await session.list_tools()).tools])
            for name, given in calls:
                answer = await session.call_tool(name, given)
                answers.append((answer.is_error, answer.content[0].text))

    anyio.run(talk)
    return answers


def test_a_folder_of_runs_is_told_by_run(tmp_path):
    (tmp_path / "runs").mkdir()
    for seed in (0, 1):
        mm.example("trap").save(tmp_path / "runs" / f"seed-{seed}.pt")
    _, (failed, text) = called(tmp_path, [("probe", {"run": "runs", "probes": ["attention"]})])
    assert not failed, text
    told = json.loads(text)
    verdicts = {name: list(run["verdicts"]) for name, run in told["runs"].items()}
    assert verdicts == {"seed-0": ["attention"], "seed-1": ["attention"]}


def test_a_run_and_its_folder_have_one_report(tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    mm.example("trap").save(tmp_path / "runs" / "mine" / "run.pt")
    mm.example("trap").save(tmp_path / "run.pt")
    runs = ["runs/mine", "runs/mine/run.pt", "run.pt"]
    _, *answers = called(tmp_path, [("probe", {"run": run, "probes": ["attention"]}) for run in runs])
    reports = [json.loads(text)["report"] for _, text in answers]
    assert reports == ["./reports/runs-mine", "./reports/runs-mine", "./reports/run"]


def test_a_program_trains_probes_and_certifies(tmp_path):
    mm.example("walk").save(tmp_path / "walk.pt")
    tools, *answers = called(
        tmp_path,
        [
            ("list", {}),
            ("train", {"recipe": "walk-k6-half", "changes": ["steps=3", "data.n_train=64"]}),
            ("probe", {"run": "walk.pt", "probes": ["behaviour", "attention"]}),
            ("claims", {"report": "reports/walk", "status": "shown"}),
            ("ablate", {"run": "walk.pt", "parts": ["L0H0"]}),
            ("certify", {"run": "walk.pt"}),
            ("bench", {"methods": ["activation-patching"], "cases": ["direct"]}),
        ],
    )
    assert tools == ["list", "train", "probe", "claims", "ablate", "certify", "bench"]
    assert [failed for failed, _ in answers] == [False] * 7, answers
    names, trained, probed, claims, ablated, certified, benched = (json.loads(text) for _, text in answers)
    assert "walk-k6-half" in names["recipes"]
    assert mm.load(tmp_path / trained["runs"][0]["file"]).steps[-1] == 3
    assert set(probed["verdicts"]) == {"behaviour", "attention"}
    assert {claim["status"] for claim in claims["claims"]} == {"shown"}
    low, high = ablated["interval"]
    assert low < ablated["rise"] < high
    assert certified["program"] == "parent"
    assert 0 < certified["worst_kl"] < 1e-6
    assert benched["rows"]


REFUSED = {
    "a name that is too long": (
        "certify",
        {"run": "x" * 300},
        "certify cannot read or write: File name too long",
    ),
    "a path outside": ("ablate", {"run": "../walk.pt", "parts": ["L0H0"]}, "not below"),
    "an absolute path": ("certify", {"run": "/etc/hostname"}, "not below"),
    "the network": ("probe", {"run": "hf://owner/name"}, "not below"),
    "a link that leads outside": ("probe", {"run": "link.pt"}, "not below"),
    "an option as a name": ("bench", {"methods": ["acdc"], "cases": ["--out"]}, "the first not '-'"),
    "a control character": ("train", {"recipe": "walk\x1b"}, "expected up to"),
    "a recipe that is not there": ("train", {"recipe": "nope"}, "no shipped recipe is called 'nope'"),
    "a pickle": ("probe", {"run": "evil.pt"}, "evil.pt"),
    "too little time": ("probe", {"run": "walk.pt", "seconds": 0.01}, "was stopped"),
    "no time": ("probe", {"run": "walk.pt", "seconds": -1}, "expected above 0"),
    "too many seeds": ("train", {"recipe": "walk-k6-half", "seeds": 10**9}, "expected 1 to"),
    "a part that is not there": ("ablate", {"run": "walk.pt", "parts": ["L9H9"]}, "component is 'L9H9'"),
    "a report that is not there": ("claims", {"report": "reports"}, "is not a folder"),
    "a folder with such a link": ("probe", {"run": "links"}, "holds a link that leads outside"),
    "checkpoints that are one": ("probe", {"run": "kept.pt"}, "holds a link that leads outside"),
    "a report that is one": ("claims", {"report": "links"}, "holds a link that leads outside"),
    "claims that are none": ("claims", {"report": "empty"}, "has no list of claims, expected"),
    "a list of numbers": ("ablate", {"run": "walk.pt", "parts": [1, 2]}, "parts.0 is 1, expected a string"),
    "a text for a list": ("bench", {"methods": "acdc", "cases": []}, "methods is 'acdc', expected a list"),
    "a text for a number": ("train", {"recipe": "walk", "seconds": "x"}, "seconds is 'x', expected a number"),
    "no parts": ("ablate", {"run": "walk.pt", "parts": []}, "parts is empty, expected a list of one name"),
    "no cases": ("bench", {"methods": ["acdc"], "cases": []}, "cases is empty, expected a list of one name"),
    "no run": ("probe", {}, "run is missing"),
    "a status that is none": (
        "claims",
        {"report": "empty", "status": "shwon"},
        "status is 'shwon'",
    ),
    "a kind that is none": ("ablate", {"run": "walk.pt", "parts": ["L0H0"], "kind": "zro"}, "kind is 'zro'"),
    "a bundled run by its name": ("probe", {"run": "trap"}, "the bundled run is 'example:trap'"),
    "a tool that is not there": ("delete", {}, "delete"),
}


def test_a_refusal_is_an_error_and_the_server_lives(tmp_path):
    import pickle

    root = tmp_path / "root"
    root.mkdir()
    mm.example("trap").save(root / "walk.pt")
    mm.example("trap").save(tmp_path / "outside.pt")
    (root / "link.pt").symlink_to(tmp_path / "outside.pt")
    for folder, name in {"links": "a.pt", "kept.pt.steps": "50.pt"}.items():
        (root / folder).mkdir()
        (root / folder / name).symlink_to(tmp_path / "outside.pt")
    (root / "empty").mkdir()
    (root / "empty" / "summary.json").write_text("{}", "utf-8")
    (root / "evil.pt").write_bytes(pickle.dumps(os.getcwd))
    _, *answers = called(root, [(name, given) for name, given, _ in REFUSED.values()] + [("list", {})])
    for (case, (_, _, words)), (failed, text) in zip(REFUSED.items(), answers, strict=False):
        assert failed, case
        assert words in text, (case, text)
        assert "Traceback" not in text
        assert len(text.splitlines()) == 1, (case, text)
    assert not answers[-1][0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside.pt", "root"]


def line(method, number=None, **parameters):
    """A message of the protocol, as a client writes it."""
    message = {"jsonrpc": "2.0", "method": method, "params": parameters}
    return json.dumps(message | ({} if number is None else {"id": number})).encode() + b"\n"


def is_there(process):
    """Whether a process runs: one that has ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_server_leaves_no_command(end, tmp_path):
    words = [sys.executable, "-m", "mechmarkov", "mcp", "--root", str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        who = {"name": "test", "version": "1"}
        server.stdin.write(
            line("initialize", 1, protocolVersion="2024-11-05", capabilities={}, clientInfo=who)
            + line("notifications/initialized")
            + line("tools/call", 2, name="train", arguments={"recipe": "mess3", "changes": ["steps=90000"]})
        )
        server.stdin.flush()
        lock = tmp_path / "runs" / "mess3" / ".lock.tmp"
        wait_until(lambda: lock.is_file() and b"}" in lock.read_bytes())
        command = json.loads(lock.read_bytes())["process"]
        assert is_there(command)
        server.send_signal(end)
    wait_until(lambda: not is_there(command))


def wait_until(is_so):
    """Wait for a minute at most."""
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.1)
    pytest.fail("it did not come about")


def test_a_folder_that_is_not_there_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["mcp", "--root", str(tmp_path / "none")])
    assert end.value.code == 2
    assert capsys.readouterr().err == f"error: --root {tmp_path / 'none'} is not a folder, expected one\n"


def test_an_argument_that_is_unknown_is_refused(tmp_path):
    calls = [("train", {"recipe": "walk-k6-half", "out": "w"}), ("probe", {"run": "x.pt", "step": "all"})]
    _, (failed, text), (also_failed, other) = called(tmp_path, calls)
    assert failed
    assert also_failed
    assert "train has no argument 'out', expected one of: recipe, changes, seeds, seconds" in text
    assert "probe has no argument 'step', did you mean steps?" in other
