"""The size of a network, counted by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from quern import nn as qnn
from quern._size import size_of
from quern.compact import plan
from quern.models import BUILDERS
from quern.sparsity import measure
from tests.builders import images_for


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=4), st.integers(1, 3))
def test_a_neuron_is_an_output_quaternion_and_a_parameter_a_number(layers: list[tuple[int, bool]], inputs: int) -> None:
    made, width, neurons, parameters = [], inputs, 0, 0
    for outputs, bias in layers:
        made += [qnn.QLinear(4 * width, 4 * outputs, bias=bias), nn.ReLU()]
        neurons += outputs
        parameters += 4 * outputs * (width + bias)
        width = outputs
    size = size_of(nn.Sequential(*made, nn.Linear(4 * width, 3)))
    assert (size.neurons, size.parameters) == (neurons, parameters + 3 * (4 * width + 1))
    assert (size.nonzero_parameters, size.macs, size.bytes) == (None, None, None)


@pytest.mark.parametrize("name", ["mnist_qcnn", "digits_qcnn", "digits_cnn"])
def test_measuring_and_planning_start_from_the_same_size(name: str) -> None:
    network = BUILDERS[name]()
    example = images_for(name, 2)
    size, measured = size_of(network), measure(network).size
    assert (measured.neurons, measured.parameters) == (size.neurons, size.parameters)
    assert plan(network, example).before == size
