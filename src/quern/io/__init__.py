"""A network as one file: its tensors, and how to build it, in the safetensors format.

The header holds JSON in place of code: the name of a builder in ``quern.models`` with its arguments, the steps done to
the network since (compaction, folding), and what the user wants to know of it later. A file is read by building the
network anew, doing the same steps to it and putting the tensors in, so reading a stranger's file runs nothing of his.

Every file carries a SHA-256 over all its bytes (:mod:`quern.io.tensorfile` says how). A file that was changed anywhere
since it was saved, by a single bit or by many, raises :class:`quern.errors.FileError`; so does one that was made to
deceive, before any memory is taken for what it claims to hold.
"""

from quern.io._load import describe, load
from quern.io._save import save
from quern.io._stored import Stored
from quern.io._structure import replay

__all__ = ["Stored", "describe", "load", "replay", "save"]
