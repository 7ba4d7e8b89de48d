"""How much a file may ask for: a few bytes can stand for gigabytes, so every size is checked before it is taken."""

# Of the user's own images. A set lies in memory as bytes, about twice while it is split.
SET_BYTES = 2 << 30  # all pixels of the training set, or of the test set
IMAGE_PIXELS = 50_000_000  # of one image before it is resized
IMAGE_FILE_BYTES = 512 << 20

# Of the sets that quern knows: CIFAR-10 has 184 MB unpacked, and its archive more than that of MNIST.
ARCHIVE_BYTES = 256 << 20  # of a download, of all that an archive unpacks to, and of a file of the cache
FILE_BYTES = 64 << 20  # one file, unpacked: MNIST's training images have 47 MB
LABELS_BYTES = 1 << 20  # JSON takes a hundred times its size in memory


def size(count: int) -> str:
    """A number of bytes for people."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
