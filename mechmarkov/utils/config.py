"""Frozen models of plain values, whose constructor says in one line which fields are wrong."""

import inspect
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Strict, ValidationError
from pydantic_core import PydanticCustomError

from mechmarkov.utils.errors import all_faults, generator_in


def _integer(value: Any) -> Any:
    """Pydantic takes true for 1, and a text for the number in it; 1e4 is written for 10000."""
    if isinstance(value, bool | str):
        raise PydanticCustomError("integer", "Input should be an integer")
    return value


Integer = Annotated[int, BeforeValidator(_integer)]
Number = Annotated[float, Strict()]
Truth = Annotated[bool, Strict()]


class FieldError(ValueError):
    """The complaints of a constructor, in one line: class, field, value and what was expected."""


class Fields(BaseModel):
    """A frozen pydantic model without unknown keys, whose constructor raises a `FieldError` of one line.

    Raises:
        TypeError: Fields without their names.

    Example:
        >>> from mechmarkov.sources import Circle
        >>> Circle(n_states=6, p=1.2)
        Traceback (most recent call last):
        mechmarkov.utils.config.FieldError: Circle: p is 1.2, expected a probability in [0, 1]
        >>> Circle(6, 0.5)
        Traceback (most recent call last):
        TypeError: Circle takes its fields by name: Circle(n_states=…, p=…)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, *nameless: Any, **data: Any) -> None:
        name = type(self).__name__
        if nameless:
            wanted = [f"{key}=…" for key, field in type(self).model_fields.items() if field.is_required()]
            raise TypeError(f"{name} takes its fields by name: {name}({', '.join(wanted) or 'field=…'})")
        if (where := generator_in(data)) is not None:
            raise FieldError(f"{name}: {where.lstrip('.')} is a generator, expected a list")
        try:
            return super().__init__(**data)
        except ValidationError as error:
            message = all_faults(error, type(self))
        field, _, rest = message.partition(": ")
        # Outside of `except`, so that there is no second traceback above.
        raise FieldError(f"{name}: {rest if rest.startswith(field) else message}")

    def __init_subclass__(cls, **options: Any) -> None:
        """An `__init__` only names arguments; pydantic fills fields from data without it."""
        if "__init__" in cls.__dict__:
            vars(cls.__init__)["__pydantic_base_init__"] = True
        super().__init_subclass__(**options)

    # What pydantic looks at: not to be called on data from files, and a signature of only the fields.
    vars(__init__).update(__pydantic_base_init__=True, __signature__=inspect.signature(BaseModel.__init__))
