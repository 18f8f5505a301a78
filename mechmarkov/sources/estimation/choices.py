"""What only the user can decide about sequences: a complaint with the options that would settle it."""

import json
from collections.abc import Mapping
from typing import Any

Options = Mapping[str, Any]


class OptionError(ValueError):
    """Sequences that may be meant in several ways, or in one that must be asked for.

    The options are kept as data, so that the command line can write them in its own way.

    Args:
        complaint: What is wrong.
        choices: Each some options of `Observed` or `Observed.read`, and what they do.

    Example:
        >>> str(OptionError("x.bin holds bytes", ({"dtype": "uint16"}, "reads numbers of two bytes")))
        'x.bin holds bytes: dtype="uint16" reads numbers of two bytes'
    """

    def __init__(self, complaint: str, *choices: tuple[Options, str]) -> None:
        self.complaint, self.choices = complaint, choices
        ways = "; ".join(f"{_in_python(options)} {effect}" for options, effect in choices)
        super().__init__(f"{complaint}: {ways}")

    def on_command_line(self, options: Options) -> str:
        r"""The complaint, with each choice as `--source` takes it, added to the options that were given.

        >>> error = OptionError("tokens have gaps", ({"relabel": True}, "closes them"))
        >>> error.on_command_line({"path": "x.npy"})
        'tokens have gaps: --source \'{"path": "x.npy", "relabel": true}\' closes them'
        """
        ways = "; ".join(
            f"--source '{json.dumps({**options, **more}, ensure_ascii=False)}' {effect}"
            for more, effect in self.choices
        )
        return f"{self.complaint}: {ways}"


def _in_python(options: Options) -> str:
    return ", ".join(
        f'{name}="{value}"' if isinstance(value, str) else f"{name}={value!r}"
        for name, value in options.items()
    )
