"""Layouts: does a tensor come out as it was packed, and is the packed form minimal?"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.optimizer.capture.layout import Layout, as_captured
from tests.drawn_examples import examples

BASE = torch.arange(4 * 6 * 10, dtype=torch.float32).view(4, 6, 10)
COMPLEX = torch.view_as_complex(torch.arange(24, dtype=torch.float32).view(3, 4, 2).sin())

VIEWS = {
    "contiguous": (BASE, 240),
    "transposed": (BASE.transpose(0, 2), 240),
    "expanded": (BASE[:, :1, :].expand(4, 6, 10), 40),
    "scalar expanded": (torch.ones(()).expand(3, 5), 1),
    "columns": (BASE[:, :, 2:7], 120),
    "every other": (BASE[:, ::2], 120),
    "columns transposed": (BASE[:, :, 2:7].permute(2, 0, 1), 120),
    "offset": (BASE[2:], 120),
    "scalar": (torch.tensor(3.5), 1),
    "empty": (torch.empty(0, 3), 0),
    "windows": (torch.arange(10.0).unfold(0, 4, 1), 28),
    "windows of windows": (
        torch.arange(20.0)[1:].unfold(0, 6, 2).unfold(1, 3, 1).expand(2, 7, 4, 3),
        84,
    ),
    "bool": (BASE.transpose(0, 1) > 7, 240),
    "complex": (COMPLEX, 12),
    "conjugate": (COMPLEX.conj(), 12),
    "conjugate transposed": (COMPLEX[:, 1:].mH, 9),
    "imaginary of conjugate": (COMPLEX.conj().imag, 12),
    "one imaginary of conjugate": (COMPLEX[:1, :1].conj().imag, 1),
    "channels last": (torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last), 120),
}


@pytest.mark.parametrize("name", VIEWS)
def test_values_and_strides_survive(name: str) -> None:
    value, elements = VIEWS[name]
    layout = Layout.of(value)
    assert layout.wire_bytes == elements * value.element_size()
    wire = layout.pack(value)
    assert wire.dtype == torch.uint8 and wire.shape == (layout.wire_bytes,)
    assert wire.is_contiguous()
    there = layout.unpack(wire.clone())
    assert torch.equal(there, value) and there.is_conj() == value.is_conj()
    assert there.stride() == value.stride()


def test_what_is_dense_is_sent_without_a_copy() -> None:
    value = BASE.transpose(0, 2)
    assert Layout.of(value).pack(value).data_ptr() == value.data_ptr()


def test_other_strides_at_run_time_are_normalised() -> None:
    captured = Layout.of(BASE)
    value = BASE.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert value.stride() != BASE.stride()
    assert torch.equal(captured.unpack(captured.pack(value)), BASE)
    assert as_captured(value, captured.size, captured.stride).stride() == BASE.stride()
    assert as_captured(BASE, captured.size, captured.stride) is BASE


def test_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="shapes depend on its data"):
        as_captured(BASE[1:], (4, 6, 10), (60, 10, 1))


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_any_view_survives(data: st.DataObject) -> None:
    value = torch.arange(3 * 4 * 5 * 2, dtype=torch.int64).view(3, 4, 5, 2)
    for _ in range(data.draw(st.integers(0, 4))):
        d = data.draw(st.integers(0, value.dim() - 1))
        match data.draw(st.sampled_from(["slice", "swap", "select", "expand"])):
            case "slice":
                start = data.draw(st.integers(0, value.shape[d] - 1))
                value = value.narrow(d, start, data.draw(st.integers(1, value.shape[d] - start)))
            case "swap":
                value = value.transpose(d, data.draw(st.integers(0, value.dim() - 1)))
            case "select" if value.dim() > 1:
                value = value.select(d, 0)
            case "expand":
                value = value.unsqueeze(d).expand(*value.shape[:d], 3, *value.shape[d:])
            case _:
                continue
    layout = Layout.of(value)
    there = layout.unpack(layout.pack(value).clone())
    assert torch.equal(there, value)
    assert there.stride() == value.stride()
