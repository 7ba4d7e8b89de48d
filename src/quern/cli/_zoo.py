"""``quern zoo``."""

from typing import Annotated

import typer

from quern.cli._console import out_console, say
from quern.cli._help import Command, Group

app = typer.Typer(help="Small trained networks that come with quern.", no_args_is_help=True, cls=Group)


@app.command("list", cls=Command)
def zoo_list() -> None:
    """The networks of the zoo, in int8: how good, how large."""
    from rich.table import Table

    from quern import zoo

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("network", "parameters", "test accuracy", "packed bytes", "flash", "memory", "instructions"):
        table.add_column(head, justify="left" if head == "network" else "right", no_wrap=True)
    for name in zoo.names():
        card = zoo.card(name)
        numbers = (card.packed_bytes, card.board.flash, card.board.ram)
        accuracy, million = f"{100 * card.packed_accuracy:.2f} %", f"{card.board.instructions / 1e6:.2f} million"
        table.add_row(name, f"{card.parameters:,}", accuracy, *(f"{n:,}" for n in numbers), million)
    out_console.print(table, highlight=False)
    say("Flash, memory and instructions on an emulated Cortex-M4F. More of one: quern zoo show NAME.")


@app.command("show", cls=Command)
def zoo_show(name: Annotated[str, typer.Argument(help="A network of quern zoo list.")]) -> None:
    """How a network was made, and what it does."""
    from quern import zoo

    say(str(zoo.card(name)))
    say(f"  from here       quern compress --dataset {zoo.card(name).dataset} --start zoo:{name} --out runs/mine")
