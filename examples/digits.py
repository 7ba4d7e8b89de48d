"""Train a quaternion network on scikit-learn's 8x8 digits, and its real-valued twin beside it. Seconds, offline."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from quern import models

EPOCHS, BATCH, SEED = 15, 64, 0


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images (n, 1, 8, 8) in 0..1 and labels: 1,437 to train, 360 to test, always the same ones."""
    pixels, targets = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(targets)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))
    train, test = order[:1437], order[1437:]
    return images[train], labels[train], images[test], labels[test]


def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    network.eval()
    with torch.no_grad():
        return float((network(images).argmax(1) == labels).float().mean())


def train(network: nn.Module, images: Tensor, labels: Tensor) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=0.005)
    network.train()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()


def main() -> dict[str, float]:
    """Test accuracy by network."""
    images, labels, test_images, test_labels = data()
    print(f"digits: {len(images)} images to train, {len(test_images)} to test; {EPOCHS} epochs, seed {SEED}")
    print(f"{'network':24s} {'parameters':>10s} {'test accuracy':>14s}")
    found = {}
    for name, build in (("quaternion CNN", models.digits_qcnn), ("real-valued twin", models.digits_cnn)):
        torch.manual_seed(SEED)
        network = build()
        train(network, images, labels)
        found[name] = accuracy(network, test_images, test_labels)
        parameters = sum(p.numel() for p in network.parameters())
        print(f"{name:24s} {parameters:10,d} {found[name]:14.2%}", flush=True)
    return found


if __name__ == "__main__":
    main()
