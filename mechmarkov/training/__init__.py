"""Training: recipes, objectives and the trainer over a stack of models. Tensors in, tensors out."""

from mechmarkov.training.fit import Fitted, fit
from mechmarkov.training.objective import Objective
from mechmarkov.training.recipe import Recipe, RecipeError, load_recipe, shipped_recipes

__all__ = ["Fitted", "Objective", "Recipe", "RecipeError", "fit", "load_recipe", "shipped_recipes"]
