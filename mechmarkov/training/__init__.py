"""Training: a recipe is resolved into a `TrainingPlan`, and `execute` carries the plan out.

`plan.stacks` are the central data: members of one shape train as one model with a leading axis.
"""

from mechmarkov.objectives import Objective
from mechmarkov.training.execute import Diverged
from mechmarkov.training.recipe import Recipe, RecipeError, load_recipe
from mechmarkov.training.train import TrainingDivergedError, train, train_members
from mechmarkov.training.workload import Member

__all__ = [
    "Diverged", "Member", "Objective", "Recipe", "RecipeError", "TrainingDivergedError", "load_recipe",
    "train", "train_members",
]  # fmt: skip
