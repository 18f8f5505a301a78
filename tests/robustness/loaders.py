"""Every loader: a good file, how it is broken, how it is read, and what makes an answer right."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from golden_files import FOREIGN
from mutations import of_archive, of_file, of_numbers, of_words
from odd_probes import check_odd_probe
from run_files import handmade

from mechmarkov.runs import Run, RunFileError, load
from mechmarkov.runs.import_run import import_run
from mechmarkov.sources import Circle
from mechmarkov.sweeps import load_sweep
from mechmarkov.sweeps.spec import Sweep, SweepError, points
from mechmarkov.training import load_recipe
from mechmarkov.training import resume as partial
from mechmarkov.training.plan import Stack
from mechmarkov.training.recipe import Recipe, RecipeError
from mechmarkov.training.stack import StackInTraining
from mechmarkov.training.train import train_members
from mechmarkov.training.workload import members_of, workload_of
from mechmarkov.utils.toml import MESSAGE_CHARACTERS

ROOT = Path(__file__).parents[2] / "mechmarkov"
GOLDEN = Path(__file__).parents[1] / "runs" / "golden" / "v1.pt"
SHORTFORMER = ROOT / "training" / "recipes" / "in-context-k3-shortformer.toml"
WALK = ROOT / "training" / "recipes" / "walk-k6-trap.toml"
PHASE = ROOT / "sweeps" / "examples" / "binary-phase.toml"
SOURCE = Circle(n_states=5, p=0.3)
BARE = {"normalization_type": None, "positional_embedding_type": "standard"}


@dataclass(frozen=True)
class Loader:
    """One format.

    Attributes:
        good: Makes a good file, and says which file is to be broken.
        mutants: Broken copies of a file's bytes, by seed and number.
        read: Reads what `good` made; any answer is checked.
        error: The one class of errors.
        longest: The most characters of its line; a recipe names several faults.
    """

    good: Callable[[Path], tuple[Path, Path]]
    mutants: Callable[[bytes, int, int], Iterator[bytes]]
    read: Callable[[Path], None]
    error: type[Exception]
    longest: int = 800


def check_run(run: Run, folder: Path) -> None:
    """A run is right if it can be written, read again, and predicts."""
    path = folder / "again.pt"
    run.save(path)
    again = load(path)
    assert all(torch.equal(again.states[name], value) for name, value in run.states.items())
    tokens = torch.zeros(1, min(run.config.n_ctx, 8), dtype=torch.int64)
    with torch.no_grad():
        assert run.model()(tokens).shape[-1] == run.source.n_states
    path.unlink()


def read_run(path: Path) -> None:
    check_run(load(path), path.parent)


def _import(**given: object) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        check_run(import_run([path], source=SOURCE, given=given).run, path.parent)

    return read


def _partial(path: Path) -> None:
    snapshot = partial.read(path, MEMBERS, torch.device("cpu"))
    assert snapshot is not None
    training = StackInTraining(Stack((0, 1), tuple(MEMBERS), workload_of(RECIPE)), torch.device("cpu"))
    training.restore(snapshot)
    while training.step < RECIPE.steps:
        drawn, lr = training.batches.at(training.step), training.optimiser.rates(training.step)
        training.record(training.launch(training.update, lr, drawn))
    assert sorted(training.checkpoints) == RECIPE.checkpoint_steps


def _recipe(path: Path) -> None:
    recipe = load_recipe(path)
    assert Recipe.from_data(recipe.to_data()).to_data() == recipe.to_data()
    assert recipe.decoder_config.d_vocab_out == recipe.source.n_states


def _sweep(path: Path) -> None:
    sweep = load_sweep(path)
    assert isinstance(sweep, Sweep)
    assert all(point.recipe.steps for point in points(sweep)[:3])


RECIPE = load_recipe("binary-p05-q08-tied").with_set(
    ["model.n_ctx=8", "data.batch=4", "steps=4", "checkpoints=[1]"]
)
MEMBERS = members_of(RECIPE, [0, 1])


def handmade_run(folder: Path) -> tuple[Path, Path]:
    path = folder / "run.pt"
    torch.save(handmade(), path)
    return path, path


def interrupted(folder: Path) -> tuple[Path, Path]:
    """What a training that stops after two of four steps leaves."""
    path, options = folder / "partial.pt", {"device": "cpu", "save_every": 0, "at_once": 1}

    def stop(step: int, steps: int) -> None:
        if step == 3:
            raise InterruptedError

    with suppress(InterruptedError):
        train_members(MEMBERS, paths=[folder / "0.pt", folder / "1.pt"], progress=stop, **options)
    return path, path


def _golden(name: str, inside: str | None = None) -> Callable[[Path], tuple[Path, Path]]:
    def make(folder: Path) -> tuple[Path, Path]:
        path = folder / name
        if inside is None:
            shutil.copy(FOREIGN / name, path)
            return path, path
        shutil.copytree(FOREIGN / name, path)
        return path, path / inside

    return make


def _text(source: Path) -> Callable[[Path], tuple[Path, Path]]:
    def make(folder: Path) -> tuple[Path, Path]:
        path = folder / source.name
        shutil.copy(source, path)
        return path, path

    return make


def _words(good: bytes, seed: int, count: int) -> Iterator[bytes]:
    return of_words(good.decode(), seed, count)


def _numbers(good: bytes, seed: int, count: int) -> Iterator[bytes]:
    return of_numbers(good.decode(), seed, count)


class RefusedProbeError(Exception):
    """Why a probe of another package has no outcome."""


def _run_and_seed(folder: Path) -> tuple[Path, Path]:
    path, seed = folder / "run.pt", folder / "seed"
    shutil.copy(GOLDEN, path)
    seed.write_text("0", "utf-8")
    return path, seed


def _seeds(good: bytes, seed: int, count: int) -> Iterator[bytes]:
    return (str(seed * 1_000_000 + index).encode() for index in range(count))


def _odd_probe(path: Path) -> None:
    """A probe made by the seed in the file beside the run; seed 0 breaks nothing."""
    seed, out = int((path.parent / "seed").read_text("utf-8")), path.parent / "out"
    why = check_odd_probe(load(path), np.random.default_rng(seed) if seed else None, out)
    shutil.rmtree(out, ignore_errors=True)  # none where the odd one could not be made
    if why is not None:
        raise RefusedProbeError(why)


LOADERS = {
    "run.pt": Loader(handmade_run, of_archive, read_run, RunFileError),
    "partial.pt": Loader(interrupted, of_archive, _partial, ValueError),
    "HookedTransformer, bare": Loader(
        _golden("tl3_bare_attn_only.pt"), of_archive, _import(**BARE), RunFileError
    ),
    "HookedTransformer and cfg": Loader(_golden("tl2_mlp_ln.pt"), of_archive, _import(), RunFileError),
    "HookedTransformer, rotary": Loader(_golden("tl3_rotary.pt"), of_archive, _import(), RunFileError),
    "bridge": Loader(_golden("bridge_native_mlp.pt"), of_archive, _import(), RunFileError),
    "bridge around GPT-2": Loader(_golden("bridge_gpt2.pt"), of_archive, _import(), RunFileError),
    "nanoGPT": Loader(_golden("nanogpt_bias.pt"), of_archive, _import(act_fn="gelu"), RunFileError),
    "GPT-2, safetensors": Loader(
        _golden("gpt2_safetensors", "model.safetensors"), of_file, _import(), RunFileError
    ),
    "GPT-2, bin": Loader(_golden("gpt2_bin", "pytorch_model.bin"), of_archive, _import(), RunFileError),
    "GPT-2, config.json": Loader(_golden("gpt2_untied", "config.json"), _words, _import(), RunFileError),
    "recipe": Loader(_text(SHORTFORMER), _words, _recipe, RecipeError, MESSAGE_CHARACTERS),
    "recipe of a walk": Loader(_text(WALK), _words, _recipe, RecipeError, MESSAGE_CHARACTERS),
    "sweep": Loader(_text(PHASE), _words, _sweep, SweepError, MESSAGE_CHARACTERS),
    "budgets of a recipe": Loader(_text(SHORTFORMER), _numbers, _recipe, RecipeError, MESSAGE_CHARACTERS),
    "budgets of a walk": Loader(_text(WALK), _numbers, _recipe, RecipeError, MESSAGE_CHARACTERS),
    "budgets of a sweep": Loader(_text(PHASE), _numbers, _sweep, SweepError, MESSAGE_CHARACTERS),
    "probe of another package": Loader(_run_and_seed, _seeds, _odd_probe, RefusedProbeError),
}
