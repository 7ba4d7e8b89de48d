"""A quaternion CNN and a quaternion LSTM: built, run and printed."""

import torch
from torch import nn

from quern import nn as qnn

cnn = nn.Sequential(
    qnn.QConv2d(3, 32, 3, padding=1, input_parts="ijk"),  # RGB images as they are: (0, r, g, b)
    qnn.QBatchNorm2d(32),  # one real scale per quaternion neuron
    nn.ReLU(),
    nn.MaxPool2d(2),
    qnn.QConv2d(32, 64, 3, padding=1),  # sizes are real channels: 8 quaternions in, 16 out
    nn.ReLU(),
    nn.Flatten(),
    qnn.QLinear(64 * 16 * 16, 40),
    qnn.Modulus(),  # 40 real numbers = 10 quaternions to 10 scores
)
lstm = qnn.QLSTM(16, 32, num_layers=2, batch_first=True)  # called as torch.nn.LSTM

scores = cnn(torch.randn(8, 3, 32, 32))
output, (h, c) = lstm(torch.randn(8, 20, 16))
print(cnn, lstm, tuple(scores.shape), tuple(output.shape), sep="\n")
