"""How the help of a command looks."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _PlainTypes:
    """Flags are shown without a type, and options that can be repeated with the type of one value."""

    def get_params(self, ctx: Any) -> list[Any]:
        params = super().get_params(ctx)  # pyright: ignore[reportAttributeAccessIssue]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            elif getattr(param, "multiple", False) and param.metavar is None:
                param.metavar = param.display_type(ctx).replace("list[", "").replace("]", "")
        return params


class Command(_PlainTypes, TyperCommand):
    pass


class Group(_PlainTypes, TyperGroup):
    pass
