"""Arrays of an npz file, read by someone who trusts none of it: a megabyte of zip can stand for gigabytes."""

import io
import math
import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from quern._files import open_regular
from quern.data._limits import SET_BYTES, size
from quern.errors import DataError, words_of

_HEADER_BYTES = 1 << 14  # numpy itself takes no header beyond 10,000
_PART = 1 << 20


def read_npz(path: Path, wanted: tuple[str, ...]) -> tuple[list[str], dict[str, np.ndarray]]:
    """The names of all arrays in a file, and those of them that are ``wanted``."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            arrays: dict[str, np.ndarray] = {}
            for name in (name for name in wanted if name in members):
                room = SET_BYTES - sum(array.nbytes for array in arrays.values())
                arrays[name] = _read(archive, members[name], name, room)
    except zipfile.BadZipFile as reason:
        raise DataError(f"{path} cannot be read as an npz file: it is another kind of file, or damaged.") from reason
    except Exception as reason:  # numpy, zipfile and zlib have many ways to say that a file is damaged
        raise DataError(f"{path} cannot be read as an npz file: {words_of(reason)}.") from reason
    return list(members), arrays


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, room: int) -> np.ndarray:
    """One array of at most ``room`` bytes. No more is unpacked than its header and the zip's own table agree on."""
    with archive.open(info) as member:
        start = io.BytesIO(member.read(_HEADER_BYTES))  # numpy would read as long a header as the file claims
        version = npy.read_magic(start)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"the array '{name}' is in a format of numpy that is not known here")
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read_header(start)
        if dtype.kind not in "biufcSUmM":
            raise ValueError(f"the array '{name}' is of {dtype}, but must hold plain numbers")
        if any(n < 0 for n in shape):
            raise ValueError(f"the array '{name}' has the shape {shape}")
        count = math.prod(shape) * dtype.itemsize
        if count > room:
            raise ValueError(f"the array '{name}' takes {size(count)}, and a set may have {size(SET_BYTES)}")
        if info.file_size != start.tell() + count:
            raise ValueError(f"the array '{name}' has not the size it claims")
        content = bytearray(start.read())
        while part := member.read(_PART):  # to the end, where the checksum is compared
            content += part
        if len(content) != count:
            raise ValueError(f"the array '{name}' is cut short")
        return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
