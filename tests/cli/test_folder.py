"""Where a command may write."""

from pathlib import Path

from tests.commands import refused


def test_a_device_is_refused_before_any_work(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.safetensors"  # so what is wrong with the device comes first
    for name in ("device.onnx", "device.pt2", "device"):
        (tmp_path / name).symlink_to("/dev/null")
    sentence = "cannot be written: it is not a regular file; give another file"
    assert sentence in refused("export", nothing, tmp_path / "device.onnx")
    assert sentence in refused("export", nothing, tmp_path / "device.pt2")
    assert sentence in refused("compact", nothing, "--out", tmp_path / "device")
    assert sentence in refused("bench", nothing, "--out", tmp_path / "device")
    assert "it is a folder" in refused("compact", nothing, "--out", tmp_path)
    assert [path.readlink() for path in tmp_path.iterdir()] == [Path("/dev/null")] * 3
