"""``python -m quern`` is the ``quern`` command."""

from quern.cli import main

main()
