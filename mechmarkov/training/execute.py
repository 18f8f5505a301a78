"""A plan carried out: the stacks, and the steps of each."""

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial

import torch

from mechmarkov.runs.owner import owned
from mechmarkov.runs.provenance import provenance
from mechmarkov.runs.run import Run
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.training import resume
from mechmarkov.training.plan import Stack, TrainingPlan
from mechmarkov.training.recipe import Recipe
from mechmarkov.training.stack import Fitted, StackInTraining, solved
from mechmarkov.utils.forked import Stop, forked
from mechmarkov.utils.memory import freed_memory_kept
from mechmarkov.utils.progress import Progress, Told
from mechmarkov.utils.threads import threads

SECONDS_BETWEEN_LOSSES = 0.5
ADVICE = "memory=... takes how many bytes may be used"


@dataclass(frozen=True)
class Diverged:
    """Stands for a run that there is not: some weight or metric is NaN or infinite.

    Attributes:
        recipe: What was trained.
        seed: The seed of its start and its data.
    """

    recipe: Recipe
    seed: int

    @property
    def message(self) -> str:
        """Returns one line that names the seed and the number of steps."""
        return f"weights of seed {self.seed} are not finite after {self.recipe.steps} steps"


def execute(plan: TrainingPlan, told: Told = None) -> list[Run | Diverged]:
    """Train what a plan says, and save what it says where; `train_members` makes a plan and does this.

    Args:
        plan: What to train, and how: see `plan_training`.
        told: True or False for a progress bar, None for one where somebody sees it, or a function of the
            steps done and the steps in all.

    Returns:
        For each member of the plan, in its order, its run, or `Diverged`.

    Raises:
        RunFileError: Files that cannot be written, what another training left, or a folder that another one
            is using.

    Example:
        >>> from mechmarkov.training.plan import plan_training
        >>> from mechmarkov.training.recipe import load_recipe
        >>> from mechmarkov.training.workload import Member
        >>> recipe = load_recipe("walk-k6-half").with_set(["steps=2", "checkpoints=[]", "model.n_ctx=6"])
        >>> runs = execute(plan_training([Member(recipe, 0), Member(recipe, 1)], device="cpu"), told=False)
        >>> [(run.seed, run.steps.tolist()) for run in runs]
        [(0, [0, 2]), (1, [0, 2])]
    """
    results: dict[int, Run | Diverged] = dict(plan.earlier)
    one_by_one = min(len(plan.stacks), plan.at_once) <= 1
    steps = sum(stack.workload.recipe.steps for stack in plan.stacks)
    stop = Stop()
    name, aim = plan.members[0].recipe.name, aim_in_words([member.recipe for member in plan.members])
    progress = Progress(name, len(plan.stacks), steps, told, at_each_step=one_by_one, aim=aim)
    with ExitStack() as held:
        held.enter_context(freed_memory_kept())
        held.enter_context(closing(progress))
        held.enter_context(threads(1 if plan.device.type == "cpu" else torch.get_num_threads()))
        for folder in sorted({path.parent for path in plan.paths}):
            held.enter_context(owned(folder, RunFileError))
        trained = forked(
            partial(_train_stack, plan, progress, stop),
            range(len(plan.stacks)),
            plan.at_once,
            copied=plan.copied,
            advice=ADVICE,
            meanwhile=progress.tell,
            stop=stop.set,
        )
        for number, runs in trained:
            results.update(zip(plan.stacks[number].places, runs, strict=True))
    return [results[place] for place in range(len(plan.members))]


def _train_stack(plan: TrainingPlan, progress: Progress, stop: Stop, number: int) -> list[Run | Diverged]:
    """Train one stack of a plan, from where an earlier call was interrupted; save its runs.

    A stack whose runs are there already, as it ended before another one was interrupted, is not trained.
    """
    stack = plan.stacks[number]
    recipe, file = stack.workload.recipe, stack.partial
    interrupted = None if file is None else resume.read(file, stack.members, plan.device)
    if interrupted is None and all(place in plan.earlier for place in stack.places):
        progress.step(number, recipe.steps)
        return [plan.earlier[place] for place in stack.places]
    if not recipe.model.shares_stacks:
        return _results(plan, stack, solved(stack))
    training = StackInTraining(stack, plan.device, plan.start)
    if interrupted is not None:
        training.restore(interrupted)
    written = noted = time.monotonic()
    for step in range(training.step, recipe.steps):
        lr = training.optimiser.rates(step)
        drawn = () if training.fixed else (training.batches.at(step),)
        training.record(training.launch(training.update, lr, *drawn))
        due = time.monotonic() - written >= plan.save_every
        if file is not None and due and training.step < recipe.steps:
            resume.write(file, stack.members, plan.device, training.snapshot())
            written = time.monotonic()
        if progress.shows_loss and time.monotonic() - noted >= SECONDS_BETWEEN_LOSSES:
            progress.loss(number, training.loss())
            noted = time.monotonic()
        stop.check()
        progress.step(number, training.step)
    return _results(plan, stack, training.fitted())


def aim_in_words(recipes: Sequence[Recipe]) -> str:
    """The entropy rate that the loss cannot stay below, where it is one number in the loss's unit.

    >>> from mechmarkov.training import load_recipe
    >>> aim_in_words([load_recipe("binary-p05-q08-tied")])
    ', entropy rate 0.619'
    >>> aim_in_words([load_recipe("walk-k6-half")])  # a loss of another scale
    ''
    """
    if any(recipe.objective.kind != "cross_entropy" for recipe in recipes):
        return ""
    rates = {getattr(recipe.source, "entropy_rate", None) for recipe in recipes}
    return f", entropy rate {rate:.4g}" if len(rates) == 1 and (rate := rates.pop()) is not None else ""


def _results(plan: TrainingPlan, stack: Stack, fitted: Fitted) -> list[Run | Diverged]:
    """The members' runs, saved; then nothing is left to resume."""
    results = [
        Diverged(member.recipe, member.seed) if fitted.diverged(i) else _run(plan, stack, fitted, i)
        for i, member in enumerate(stack.members)
    ]
    for result, path in zip(results, stack.paths, strict=bool(stack.paths)):
        if isinstance(result, Run):
            result.save(path)
    if stack.partial is not None:
        stack.partial.unlink(missing_ok=True)
    return results


def _run(plan: TrainingPlan, stack: Stack, fitted: Fitted, index: int) -> Run:
    recipe, seed = stack.members[index].recipe, stack.members[index].seed
    states, metrics = fitted.member(index)
    return Run(
        config=stack.workload.config,
        source=recipe.source,
        objective=recipe.objective,
        trainable=stack.workload.trainable,
        recipe=recipe.to_keep(),
        seed=seed,
        steps=torch.tensor(sorted(fitted.checkpoints)),
        states={name: tensor.to(torch.float32) for name, tensor in states.items()},
        metrics={name: {"step": torch.arange(len(v)), "value": v} for name, v in metrics.items()},
        provenance={
            **provenance(fitted.device, wall_seconds=fitted.seconds),
            "trained_together": len(stack.members),
            "computed_by": fitted.computed_by,
            **({} if plan.start is None else {"started_from": plan.start.title()}),
        },
    )
