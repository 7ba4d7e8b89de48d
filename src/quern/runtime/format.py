"""The numbers of the format of packed networks, read from ``quern_rt.h``, where alone they stand.

``format.OP_CONV`` is the header's ``QRN_OP_CONV``, and so on for all of its names.
"""

import re
from importlib.resources import files

_HEADER = files("quern.runtime").joinpath("quern_rt.h").read_text(encoding="utf-8")
_CODE = re.sub(r"/\*.*?\*/", "", _HEADER, flags=re.DOTALL)
NUMBERS = {name: int(value, 0) for name, value in re.findall(r"QRN_(\w+) = (-?\w+)", _CODE)}


def __getattr__(name: str) -> int:
    try:
        return NUMBERS[name]
    except KeyError:
        raise AttributeError(f"quern_rt.h has no QRN_{name}.") from None
