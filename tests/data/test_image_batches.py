"""Batches of pictures: each epoch has all of them once, each batch is a function of seed, epoch and index.

Axes: B pictures, N pictures, C channels, Y and X height and width in pixels.
"""

import numpy as np
import pytest
import torch

from qkv.data.augment import AugmentConfig
from qkv.data.image_batches import ImageBatch, ImageBatches, ImageBatchesConfig, Scale, measured
from qkv.data.images import Images, ImagesConfig
from qkv.errors import QkvError

N = 23
PIXELS_NCYX = np.random.default_rng(1).integers(0, 200, (N, 3, 5, 7), dtype=np.uint8)
IMAGES = Images(PIXELS_NCYX, np.arange(N) % 4, [str(row) for row in range(N)], tuple("abcd"))
PLAIN = ImagesConfig(size=(5, 7), channels=3, mean=(0.1, 0.2, 0.3), deviation=(0.5, 1.0, 2.0))


def batches(size: int = 5, seed: int = 0, **augment: object) -> ImageBatches:
    return ImageBatches(IMAGES, ImageBatchesConfig(size=size), AugmentConfig(**augment), Scale(PLAIN), seed)


def same(one: ImageBatch, other: ImageBatch) -> bool:
    tensors = ("image_BCYX", "label_B", "other_B", "share_B")
    return np.array_equal(one.rows, other.rows) and all(
        torch.equal(getattr(one, t), getattr(other, t)) for t in tensors
    )


@pytest.mark.parametrize("size", [1, 4, 5, 22, 23, 99])
def test_each_epoch_has_every_picture_once_in_batches_of_like_size(size: int):
    epoch = batches(size).epoch(3)
    sizes = [len(epoch[number].rows) for number in range(len(epoch))]
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1
    rows = np.concatenate([epoch[number].rows for number in range(len(epoch))])
    assert sorted(rows.tolist()) == list(range(N))


def test_a_batch_is_the_pictures_of_its_rows_scaled():
    batch = batches().epoch(1)[2]
    wanted = PIXELS_NCYX[batch.rows].astype(np.float64) / 255
    for channel, (mean, deviation) in enumerate([(0.1, 0.5), (0.2, 1.0), (0.3, 2.0)]):
        got = batch.image_BCYX[:, channel].double().numpy()
        np.testing.assert_allclose(got, (wanted[:, channel] - mean) / deviation, rtol=0, atol=1e-6)
    assert batch.label_B.tolist() == (batch.rows % 4).tolist()
    assert batch.share_B.tolist() == [1.0] * len(batch.rows)


def test_seed_epoch_and_index_decide_and_nothing_before():
    config = {"shift": 1, "flip": True, "changes": 2, "mixup": 0.4}
    whole = batches(seed=7, **config).epoch(2)
    kept = [whole[number] for number in range(len(whole))]
    later = batches(seed=7, **config).epoch(2)  # as a resumed run comes to it
    assert all(same(later[number], kept[number]) for number in (4, 1, 3))
    for other in (batches(seed=8, **config).epoch(2), batches(seed=7, **config).epoch(3)):
        assert not any(same(other[number], kept[number]) for number in range(len(kept)))


def test_mixed_pictures_are_shares_of_two_and_know_both_classes():
    plain, mixed = batches().epoch(0)[1], batches(mixup=0.5).epoch(0)[1]
    assert np.array_equal(plain.rows, mixed.rows)
    B = len(plain.rows)
    assert 0 < mixed.share_B.min() < mixed.share_B.max() < 1
    for row in range(B):
        share, before = mixed.share_B[row], (row - 1) % B
        wanted = share * plain.image_BCYX[row] + (1 - share) * plain.image_BCYX[before]
        torch.testing.assert_close(mixed.image_BCYX[row], wanted, rtol=0, atol=1e-5)
        assert mixed.label_B[row] == plain.label_B[row]
        assert mixed.other_B[row] == plain.label_B[before]


def test_mean_and_deviation_are_those_of_all_pixels_channel_by_channel():
    mean, deviation = measured(IMAGES)
    values = PIXELS_NCYX.astype(np.float64) / 255
    np.testing.assert_allclose(mean, values.mean((0, 2, 3)), rtol=0, atol=1e-12)
    np.testing.assert_allclose(deviation, values.std((0, 2, 3)), rtol=0, atol=1e-12)
    black = Images(np.zeros((2, 1, 3, 3), np.uint8), np.zeros(2, int), ["a", "b"], ("x",))
    assert measured(black) == ((0.0,), (1.0,))


def test_scales_that_do_not_fit_the_channels_are_refused():
    with pytest.raises(
        QkvError, match=r"images\.mean has 1 numbers, images\.deviation 3, and the pictures 3 channels"
    ):
        Scale(ImagesConfig(size=(5, 7), channels=3, mean=(0.1,), deviation=(1.0, 1.0, 1.0)))
