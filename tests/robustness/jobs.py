"""Work that is killed: each job writes into a folder; whether what is there is whole, and what it says."""

import json
import multiprocessing
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from ctypes import CDLL, c_uint32
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from golden_files import FOREIGN

import mechmarkov as mm
from mechmarkov.cli import main
from mechmarkov.runs import load
from mechmarkov.safe import file as files
from mechmarkov.training import train
from mechmarkov.training.train import AnyRecipe
from mechmarkov.training.workload import workload_of

GOLDEN = Path(__file__).parents[1] / "runs" / "golden" / "v1.pt"
SMALL = {"model.n_ctx": 8, "data.batch": 4, "checkpoints": [1, 3], "model.d_model": 4, "model.d_head": 4}
SWEEP = """
name = "tiny"
recipe = "binary-p05-q08-tied"
seeds = 2
keep_runs = true
set = { "model.n_ctx" = 8, "data.batch" = 4, checkpoints = [], steps = 4 }
grid = { "source.p" = [0.2, 0.5], "init.std" = [0.02] }
phase = { x = "source.p", y = "init.std" }
"""
LOADED = [
    "jobs", "mechmarkov.probing", "mechmarkov.report.html", "mechmarkov.runs.import_run",
    "mechmarkov.sweeps", "mechmarkov.probes.behaviour", "plotly.graph_objects", "h5netcdf",
]  # fmt: skip
EVENTS = (
    "open", "os.rename", "os.remove", "os.mkdir", "os.listdir", "os.scandir", "os.rmdir", "shutil.rmtree",
)  # fmt: skip


def _recipe() -> AnyRecipe:
    from mechmarkov.training import load_recipe

    return load_recipe("binary-p05-q08-tied").replace(**SMALL | {"steps": 12})


def _says_errors(work: Callable[[], Any]) -> None:
    """As the command line does it."""
    try:
        work()
    except (ValueError, OSError) as error:
        print(f"error: {error}")
        sys.exit(2)


def do_train(folder: Path) -> None:
    _says_errors(
        lambda: train(_recipe(), seeds=[0, 1], device="cpu", out=folder, progress=False, save_every=0.0)
    )


def do_import(folder: Path) -> None:
    source = '{"kind": "circle", "n_states": 5, "p": 0.3}'
    main(["import", str(FOREIGN / "tl2_mlp_ln.pt"), "--source", source, "--out", str(folder / "run.pt")])


def do_probe(folder: Path) -> None:
    main(["probe", str(GOLDEN), "--probes", "behaviour", "--out", str(folder)])


def do_plugins(folder: Path) -> None:
    """Probes of other packages: one that raises, one that does not end, one that is right."""
    from odd_probes import endless_probe, good_probe, raising_probe

    asked = [raising_probe(), endless_probe(), good_probe()]
    result = mm.probe(load(GOLDEN), asked, sequences=4, time_limit=0.3, progress=False)
    _says_errors(lambda: result.save(folder))


def do_budget(folder: Path) -> None:
    """A fleet that fits into its memory one member at a time."""
    recipe, memory = _recipe(), workload_of(_recipe()).bytes
    options = {"device": "cpu", "out": folder, "progress": False, "save_every": 0.0, "memory": memory}
    _says_errors(lambda: train(recipe, seeds=[0, 1, 2], **options))


def do_sweep(folder: Path) -> None:
    options = ["--fleet", "2", "--jobs", "1", "--device", "cpu"]
    main(["sweep", f"{folder}.toml", "--out", str(folder), *options])


JOBS: dict[str, Callable[[Path], None]] = {
    "train": do_train,
    "import": do_import,
    "probe": do_probe,
    "sweep": do_sweep,
    "probe with plugins": do_plugins,
    "train within a budget": do_budget,
}


def do_record(folder: Path) -> None:
    """A training loop of somebody's own, from its first step on: what the last one left is dropped."""
    model = mm.HookedDecoder(
        mm.DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=2, attn_only=True)
    )
    mm.models.initialise(model, [0])
    source = mm.Binary(p=0.5, q=0.8)
    recorder = mm.Recorder(folder / "run.pt", source=source, every=1, resume="drop_later")
    for step in range(8):
        recorder(step, model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)
    recorder.finish(8, model)


def do_bench(folder: Path) -> None:
    asked = ["--methods", "eap,difference-norm", "--cases", "direct", "--seeds", "1", "--jobs", "1"]
    main(["bench", *asked, "--out", str(folder)])


def do_certify(folder: Path) -> None:
    trap = Path(mm.__file__).parent / "runs" / "examples" / "trap.pt"
    main(["certify", str(trap), "--program", "constant", "--out", str(folder / "proof.json")])


# What is killed too; a recorder never stops a training, so that a full disk is a warning.
KILLED = JOBS | {"record": do_record, "bench": do_bench, "certify": do_certify}


def do_probe_together(folder: Path) -> None:
    options = ["--probes", "behaviour,attention,ablation", "--jobs", "2"]
    main(["probe", str(GOLDEN), *options, "--out", str(folder)])


def do_sweep_together(folder: Path) -> None:
    main(["sweep", f"{folder}.toml", "--out", str(folder), "--fleet", "1", "--jobs", "2", "--device", "cpu"])


def do_sweep_on_ray(folder: Path) -> None:
    main(["sweep", f"{folder}.toml", "--out", str(folder), "--fleet", "1", "--ray", "local"])


# Jobs of several processes: none of which may be left, whoever is killed.
TOGETHER = {
    "probe of two processes": do_probe_together,
    "sweep of two processes": do_sweep_together,
    "sweep on Ray": do_sweep_on_ray,
}
MARK = "MECHMARKOV_KILLED_JOB"  # in the environment of every process that a job starts


def check_whole(folder: Path) -> None:
    """Whatever has a name of its own can be read to its end; only hidden temporary files may be broken."""
    for path in folder.rglob("*"):
        if path.is_dir() or (path.name.startswith(".") and path.suffix == ".tmp"):
            continue
        match path.suffix:
            case ".pt" if path.name.startswith("partial"):
                files.read(path)
                files.verify(path)
            case ".pt":
                load(path)
            case ".json":
                json.loads(path.read_text("utf-8"))
            case ".nc":
                import xarray as xr

                with xr.open_datatree(path, engine="h5netcdf") as tree:
                    tree.load()
            case ".html":
                assert path.read_text("utf-8").rstrip().endswith("</html>")
            case ".csv":
                import pandas as pd

                pd.read_csv(path)
            case ".jsonl":
                pass  # lines of cells: one that was cut off is measured again
            case ".parquet":
                import pyarrow.parquet as pq

                pq.read_table(path)
            case _:
                raise AssertionError(f"{path} is of no kind that is written")


def found(folder: Path) -> dict[str, Any]:
    """What a finished job left, without times and places."""
    content: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".pt":
            run = load(path)
            content[name] = {key: value.tolist() for key, value in run.states.items()}
        elif path.suffix == ".csv":
            import pandas as pd

            content[name] = pd.read_csv(path).drop(columns="seconds", errors="ignore").to_csv()
        elif path.suffix == ".json":
            content[name] = _timeless(json.loads(path.read_text("utf-8")))
        elif path.is_file() and path.suffix != ".tmp":
            content[name] = None
    return content


def _timeless(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _timeless(value) for key, value in data.items() if key not in ("seconds", "provenance")}
    return [_timeless(one) for one in data] if isinstance(data, list) else data


@dataclass(frozen=True)
class Harm:
    """What befalls a job.

    Attributes:
        at_event: It is killed at so many changes of files.
        room: Bytes that a file of it may have.
        bound: Permissions bind it, though it is root.
    """

    at_event: int | None = None
    room: int | None = None
    bound: bool = False


def carry_out(name: str, folder: Path, said: Path, harm: Harm, events: Any, seconds: Any) -> None:
    """In a process of its own: one job, with what befalls it; what it says goes to a file."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    with open(said, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if harm.room is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (harm.room, resource.RLIM_INFINITY))
    if harm.bound:
        # No rights beyond those of an owner: version 3 of the header, three sets of 64 bits, all empty.
        assert CDLL(None).capset((c_uint32 * 2)(0x20080522, 0), (c_uint32 * 6)()) == 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS and (event != "open" or str(arguments[0]).startswith(f"{folder}/")):
            events.value += 1
            if events.value == harm.at_event:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    os.setsid()
    os.environ[MARK] = str(folder)
    (KILLED | TOGETHER)[name](folder)
    seconds.value = time.perf_counter() - began


_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(LOADED)


@dataclass(frozen=True)
class Said:
    """What came of a command: its exit code, what it said, its seconds of computing, bytes it grew by."""

    code: int
    said: str
    seconds: float
    grown: int


def _command(arguments: tuple[str, ...], connection: Any) -> None:
    """In a process of its own, with what it needs loaded: one command."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CPU, (20, 25))
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.dup2(writer, 2)
    at_rest, began = _resident(), time.process_time()
    code: Any = 0
    try:
        main(arguments)
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
        code = 1
    seconds, grown = time.process_time() - began, _resident("VmHWM") - at_rest
    sys.stdout.flush(), sys.stderr.flush()
    os.set_blocking(reader, False)
    said = os.read(reader, 60_000) if select.select([reader], [], [], 0)[0] else b""
    connection.send(Said(code or 0, said.decode(errors="replace"), seconds, grown))


def _resident(line: str = "VmRSS") -> int:
    """Bytes of memory that this process has, or had at most."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.split(f"{line}:")[1].split()[0]) << 10


def in_a_process(arguments: tuple[str, ...]) -> Said:
    """A command of the command line, measured without its imports."""
    ours, theirs = _context.Pipe()
    process = _context.Process(target=_command, args=(arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.poll(120), f"{arguments} hangs"
        answer: Said = ours.recv()
    finally:
        process.kill()
        process.join()
    return answer


@dataclass(frozen=True)
class Started:
    """A job in a process of its own."""

    process: BaseProcess
    said: Path
    events: Any
    seconds: Any


def start(name: str, folder: Path, harm: Harm = Harm()) -> Started:
    """Begin a job."""
    Path(f"{folder}.toml").write_text(SWEEP, "utf-8")
    said, events, seconds = Path(f"{folder}.said"), _context.Value("i", 0), _context.Value("d", 0.0)
    arguments = (name, folder, said, harm, events, seconds)
    # A daemon may have no processes of its own.
    process = _context.Process(target=carry_out, args=arguments, daemon=name not in TOGETHER)
    process.start()
    return Started(process, said, events, seconds)


@dataclass(frozen=True)
class Finished:
    """What came of a job: its exit code, what it said, its changes of files and its seconds."""

    code: int
    said: str
    events: int
    seconds: float


def finish(name: str, folder: Path, harm: Harm = Harm()) -> Finished:
    """Begin a job and wait for its end."""
    started = start(name, folder, harm)
    started.process.join(300)
    assert started.process.exitcode is not None, f"{name} hangs"
    return Finished(
        started.process.exitcode, started.said.read_text("utf-8"), started.events.value, started.seconds.value
    )
