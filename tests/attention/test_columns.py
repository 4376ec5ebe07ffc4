"""Columns: every prefix sees its own past and nothing else, however a search reorders, drops and forgets."""

import random

import pytest
import torch
from torch import Tensor

from qkv.attention.attend import attend
from qkv.attention.columns import LANES, Columns, for_heads, in_lanes, look, moved

Y, G, K = 2, 3, 5


def random_search(steps: int, seed: int, width: int = 3) -> tuple[Columns, list[list[Tensor]]]:
    """Columns after so many steps with random picks, and the tensors that each row should see, one a step."""
    draw, like = random.Random(seed), torch.zeros((), dtype=torch.float64)
    sentences, columns = 4, Columns((Y, G, K), 4, 1, like)
    pasts: list[list[Tensor]] = [[] for _ in range(sentences)]
    for _ in range(steps):
        before = len(pasts) // sentences
        order = list(range(sentences))
        if draw.random() < 0.2 and sentences > 2:
            order[draw.randrange(sentences)] = order[-1]  # one leaves, the last takes its place
            order.pop()
        rows = [draw.randrange(before) + before * sentence for sentence in order for _ in range(width)]
        stays = None if len(order) == sentences else torch.tensor(order)
        columns, pasts, sentences = (
            columns.pick(torch.tensor(rows), width, stays),
            [[*pasts[row]] for row in rows],
            len(order),
        )
        offered = torch.randn(Y, 2, sentences, G, width, K, dtype=torch.float64)
        columns.append()[0].copy_(offered)
        for row, past in enumerate(pasts):
            past.append(offered[:, :, row // width, :, row % width])
    return columns, pasts


@pytest.mark.parametrize("seed", range(4))
def test_each_row_sees_its_own_past(seed: int):
    columns, pasts = random_search(25, seed)
    for layer, (keys_RGTK, values_RGTK) in enumerate(columns.of_rows()):
        for row, past in enumerate(pasts):
            wanted = torch.stack(past, dim=-2)[layer]
            assert torch.equal(torch.stack([keys_RGTK[row], values_RGTK[row]]), wanted)


def test_what_nothing_descends_from_is_forgotten():
    """Rows that copy one another have one past, so that room grows with the steps and not with steps × rows."""
    columns, _ = random_search(200, seed=1, width=5)
    assert columns.held.shape[-2] <= 2 * in_lanes(200 + 3 * 5 * 8)


def test_a_look_is_attention_to_what_is_not_hidden():
    B, W, H, C = 2, 3, 6, 16
    torch.manual_seed(0)
    q, keys, values = torch.randn(B * W, H, K), torch.randn(B * G, C, K), torch.randn(B * G, C, K)
    sees = torch.rand(B, W, C) < 0.5
    sees[..., 0] = True
    hidden = torch.zeros(B, W, C).masked_fill(~sees, torch.finfo(torch.float32).min)
    found = look(q, keys, values, for_heads(hidden, H, G), B)
    q_BHWK = q.view(B, W, H, K).transpose(1, 2)
    wanted = attend(q_BHWK, keys.view(B, G, C, K), values.view(B, G, C, K), allow=sees.unsqueeze(1), beta=1.0)
    torch.testing.assert_close(found, wanted.transpose(1, 2).reshape(B * W, H * K))


@pytest.mark.parametrize("stays", [[0, 1, 2, 3], [0, 3, 2], [3, 1], [2], [3, 2, 1, 0], [0, 0, 1, 1, 3], []])
def test_moving_in_place_and_in_a_copy_are_the_same(stays: list[int]):
    held = torch.randn(Y, 2, 4, G, LANES, K)
    wanted = held.clone()[:, :, stays]
    stays_B = torch.tensor(stays, dtype=torch.long)
    before = held.clone()
    assert torch.equal(moved(held, stays_B, in_place=False), wanted)
    assert torch.equal(held, before)
    assert torch.equal(moved(held, stays_B, in_place=True), wanted)


def test_only_what_changes_its_place_is_copied():
    held = torch.randn(Y, 2, 9, G, LANES, K)
    after = moved(held, torch.tensor([0, 1, 8, 3, 4, 5]), in_place=True)
    assert after.data_ptr() == held.data_ptr()


def test_what_inference_mode_made_is_written_to_only_in_a_copy():
    with torch.inference_mode():
        columns = Columns((Y, G, K), 2, 1, torch.zeros(()))
        columns.append()[0].fill_(1.0)
    with torch.no_grad():
        new, _, _ = columns.append()
        new.fill_(2.0)
        (keys, _), *_ = columns.of_rows()
    assert keys[0, 0, :, 0].tolist() == [1.0, 2.0]
