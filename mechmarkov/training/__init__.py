"""Training: recipes, objectives and the trainer over a stack of models."""

from mechmarkov.objectives import Objective
from mechmarkov.training.recipe import Recipe, RecipeError, load_recipe, recipes
from mechmarkov.training.train import TrainingDivergedError, train
from mechmarkov.training.trainer import Fitted, fit

__all__ = [
    "Fitted",
    "Objective",
    "Recipe",
    "RecipeError",
    "TrainingDivergedError",
    "fit",
    "load_recipe",
    "recipes",
    "train",
]
