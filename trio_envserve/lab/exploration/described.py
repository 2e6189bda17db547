"""The description of a configuration, for people and for programs."""

from __future__ import annotations

import dataclasses
from typing import ClassVar


class Described:
    """A mixin of dataclasses."""

    __slots__ = ()
    ALWAYS: ClassVar[tuple[str, ...]] = ()
    """The fields that are named even if they are as usual."""
    BOUNDED: ClassVar[tuple[str, ...]] = ()
    """The kinds of trouble that are counted, in the order in which a state counts them."""

    @property
    def bounds(self) -> dict[str, int]:
        """How often each kind of trouble may come."""
        return {name: getattr(self, name) for name in self.BOUNDED}

    def describe(self) -> str:
        """One line for people: what is not as usual."""
        parts = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # see above
            value = getattr(self, field.name)
            if field.name != "name" and (value != field.default or field.name in self.ALWAYS):
                parts.append(field.name if value is True else f"{field.name} {value}")
        return ", ".join(parts)

    def record(self) -> dict[str, int | bool | None]:
        """For programs: all its bounds."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # see above
        return {f.name: getattr(self, f.name) for f in fields if f.name != "name"}
