"""Cut a picture into square patches and turn each into a token.

Axes: B batch, C channels, Y and X height and width in pixels, T patches (row by row), D width.
"""

from torch import Tensor, nn

from qkv.errors import QkvError


class PatchEmbedding(nn.Module):
    """Flatten each patch and project it, as one convolution (ViT: Dosovitskiy et al. 2021, equation 1)."""

    def __init__(self, channels: int, patch: int, width: int):
        super().__init__()
        if min(channels, patch, width) < 1:
            raise QkvError(f"channels={channels}, patch={patch}, width={width}: each must be 1 or more")
        self.projection = nn.Conv2d(channels, width, kernel_size=patch, stride=patch)
        self.channels, self.patch = channels, patch

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches in a picture of this many pixels."""
        if not height or not width or height % self.patch or width % self.patch:
            raise QkvError(
                f"the picture is {height} x {width} pixels; multiples of the patch, {self.patch}, are "
                "wanted: resize or crop it"
            )
        return height // self.patch, width // self.patch

    def forward(self, image_BCYX: Tensor) -> Tensor:
        """(B,C,Y,X) -> (B,T,D)."""
        if image_BCYX.ndim != 4 or image_BCYX.shape[1] != self.channels:
            raise QkvError(
                f"the pictures have shape {tuple(image_BCYX.shape)}; "
                f"(batch, {self.channels}, height, width) is wanted: put the channels second"
            )
        self.grid(*image_BCYX.shape[2:])
        return self.projection(image_BCYX).flatten(2).transpose(1, 2)
